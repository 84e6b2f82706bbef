//! Fabrics: two patterns in three colours that fill the picture, seen in folds.
//!
//! There is no outline and no background to tell one from another, so an encoder has to go by colour and texture; like
//! products they come in lines of similar ones.

use super::design::{Colour, LINE, colour, mixture};
use super::pattern::{Pattern, Weave};
use super::rng::{CounterRng, Purpose};
use super::scene::Scene;
use super::silhouette::Point;

/// One fabric.
#[derive(Clone, Debug)]
pub(super) struct Fabric {
    weaves: [Weave; 2],
    colours: [Colour; 3],
    gloss: f64,
}

impl Fabric {
    /// The fabric of a class.
    pub(super) fn new(seed: u64, class: u64) -> Self {
        let mut line = CounterRng::new(seed, Purpose::Bolt, class / LINE, 0);
        let mut own = CounterRng::new(seed, Purpose::Fabric, class, 0);
        let mut weave = |pitch: f64| {
            let angle = line.between(0.0, std::f64::consts::PI) + own.between(-0.3, 0.3);
            Weave {
                pattern: line.pick(&Pattern::REPEATING),
                grain: own.grain(),
                direction: (libm::cos(angle), libm::sin(angle)),
                pitch: pitch * line.between(0.7, 1.4) * own.between(0.75, 1.3),
                share: line.between(0.3, 0.6) + own.between(-0.1, 0.1),
            }
        };
        let weaves = [weave(0.9), weave(0.45)];
        let hue = line.uniform() + own.between(-0.2, 0.2);
        let colours = [
            colour(hue, own.between(0.3, 0.9), own.between(0.3, 1.0)),
            colour(hue + own.between(0.1, 0.6), own.between(0.2, 0.9), own.between(0.3, 1.0)),
            colour(own.uniform(), own.between(0.3, 1.0), own.between(0.15, 1.0)),
        ];
        Self { weaves, colours, gloss: line.between(0.0, 0.6) }
    }

    /// What is seen of it along one ray of a picture.
    pub(super) fn seen(&self, scene: &Scene, folds: &Folds, point: Point) -> Colour {
        let place = scene.pose.to_product(point).minus(folds.shift);
        let [broad, fine] = &self.weaves;
        let ground = mixture(self.colours[0], self.colours[1], broad.at(place));
        let paint = mixture(ground, self.colours[2], 0.8 * fine.at(place));
        scene.light.on(paint, folds.lean(point), self.gloss)
    }
}

/// How the cloth lies in one picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folds {
    shift: Point,
    direction: (f64, f64),
    frequency: f64,
    phase: f64,
    depth: f64,
}

impl Folds {
    pub(super) fn new(rng: &mut CounterRng) -> Self {
        let angle = rng.between(0.0, std::f64::consts::PI);
        Self {
            shift: Point::new(rng.between(-2.0, 2.0), rng.between(-2.0, 2.0)),
            direction: (libm::cos(angle), libm::sin(angle)),
            frequency: rng.between(1.5, 5.0),
            phase: rng.between(0.0, 6.0),
            depth: rng.between(0.1, 0.7),
        }
    }

    /// How the cloth leans at a point of the picture.
    fn lean(&self, point: Point) -> Point {
        let (cosine, sine) = self.direction;
        let across = cosine * point.x + sine * point.y;
        let slope = self.depth * libm::sin(self.frequency * across + self.phase);
        Point::new(cosine * slope, sine * slope)
    }
}
