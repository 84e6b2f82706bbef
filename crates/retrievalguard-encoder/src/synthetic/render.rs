//! From a product and a scene to pixels.

use super::design::{Colour, Design};
use super::fabric::{Fabric, Folds};
use super::rng::CounterRng;
use super::scene::Scene;
use super::silhouette::Point;

/// Rays per pixel, each way.
const RAYS: usize = 3;

/// How far from its outline a product is flat, in its own coordinates.
const BEVEL: f64 = 0.3;

/// What the camera points at.
pub(super) enum Motif {
    /// A product before a background.
    Product(Design),
    /// Cloth from edge to edge.
    Cloth(Fabric, Folds),
}

/// Interleaved 8-bit RGB of a square picture.
pub(super) fn render(motif: &Motif, scene: &Scene, side: usize, mut camera: CounterRng) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 * side * side);
    let place = |pixel: usize, ray: usize| {
        2.0 * (pixel as f64 + (ray as f64 + 0.5) / RAYS as f64) / side as f64 - 1.0
    };
    for row in 0..side {
        for column in 0..side {
            let mut sum = [0.0; 3];
            for ray in 0..RAYS * RAYS {
                let point = Point::new(place(column, ray % RAYS), place(row, ray / RAYS));
                let seen = ray_colour(motif, scene, point);
                sum = [0, 1, 2].map(|channel| sum[channel] + seen[channel].clamp(0.0, 1.0));
            }
            let lens = scene.lens(Point::new(place(column, RAYS / 2), place(row, RAYS / 2)));
            for total in sum {
                let level = lens * total / (RAYS * RAYS) as f64 + scene.noise * camera.bell();
                bytes.push((level.clamp(0.0, 1.0) * 255.0 + 0.5).floor() as u8);
            }
        }
    }
    bytes
}

/// What is seen along one ray.
fn ray_colour(motif: &Motif, scene: &Scene, point: Point) -> Colour {
    if let Some(obstacle) = scene.obstacle(point) {
        return scene.light.on(obstacle, Point::new(0.0, 0.0), 0.0);
    }
    match motif {
        Motif::Product(design) => product_colour(design, scene, point),
        Motif::Cloth(fabric, folds) => fabric.seen(scene, folds, point),
    }
}

/// What is seen of a product and what lies behind it.
fn product_colour(design: &Design, scene: &Scene, point: Point) -> Colour {
    let (light, flat) = (&scene.light, Point::new(0.0, 0.0));
    let place = scene.pose.to_product(point);
    let distance = design.silhouette.distance(place);
    if distance < 0.0 {
        let steepness = (1.0 + distance / BEVEL).max(0.0);
        let lean = if steepness > 0.0 {
            scene.pose.to_picture(design.silhouette.outward(place)).times(1.2 * steepness)
        } else {
            flat
        };
        return light.on(design.paint(place), lean, design.gloss);
    }
    let caster = scene.pose.to_product(point.minus(light.shadow_offset()));
    let shade = light.shadow_at(design.silhouette.distance(caster));
    light.on(scene.background.at(point), flat, 0.0).map(|channel| channel * shade)
}
