//! How one picture was taken: pose, light, background, what stands in the way, and the camera.

use super::design::{Colour, colour, mixture};
use super::rng::{CounterRng, Grain};
use super::silhouette::Point;

/// Where the product stands and how it is turned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pose {
    shift: Point,
    scale: f64,
    shear: f64,
    /// How much farther away one side is.
    tilt: Point,
    turn: (f64, f64),
}

impl Pose {
    fn new(rng: &mut CounterRng) -> Self {
        let angle = rng.between(-0.36, 0.36);
        Self {
            shift: Point::new(rng.between(-0.13, 0.13), rng.between(-0.13, 0.13)),
            scale: rng.between(0.7, 0.97),
            shear: rng.between(-0.14, 0.14),
            tilt: Point::new(rng.between(-0.14, 0.14), rng.between(-0.14, 0.14)),
            turn: (libm::cos(angle), libm::sin(angle)),
        }
    }

    /// The product's coordinates of a point of the picture.
    pub(super) fn to_product(self, point: Point) -> Point {
        let from = point.minus(self.shift);
        let from = from.times(1.0 / (self.scale * (1.0 + self.tilt.dot(from))));
        let (cosine, sine) = self.turn;
        let upright = from.turned((cosine, -sine));
        Point::new(upright.x + self.shear * upright.y, upright.y)
    }

    /// A direction of the product as the picture shows it.
    pub(super) fn to_picture(self, direction: Point) -> Point {
        direction.turned(self.turn)
    }
}

/// One lamp, and what comes from everywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Light {
    /// Towards the lamp, in the picture's plane and out of it, of length 1.
    towards: (Point, f64),
    ambient: f64,
    tint: Colour,
    shadow: f64,
}

impl Light {
    fn new(rng: &mut CounterRng) -> Self {
        let (angle, lean) = (rng.between(0.0, 2.0 * std::f64::consts::PI), rng.between(0.25, 0.7));
        let direction = Point::new(libm::cos(angle), libm::sin(angle)).times(lean);
        let warmth = rng.between(-0.1, 0.1);
        let brightness = rng.between(0.8, 1.15);
        Self {
            towards: (direction, (1.0 - lean * lean).sqrt()),
            ambient: rng.between(0.5, 0.75),
            tint: [brightness * (1.0 + warmth), brightness, brightness * (1.0 - warmth)],
            shadow: rng.between(0.15, 0.5),
        }
    }

    /// Where the shadow of a point falls, as an offset from it.
    pub(super) fn shadow_offset(&self) -> Point {
        self.towards.0.times(-0.28)
    }

    /// How dark the ground is at this distance from the shadow's outline.
    pub(super) fn shadow_at(&self, distance: f64) -> f64 {
        1.0 - self.shadow * (0.5 - distance / 0.3).clamp(0.0, 1.0)
    }

    /// Paint as it looks where the surface leans by `lean` (0 where it faces the viewer).
    pub(super) fn on(&self, paint: Colour, lean: Point, gloss: f64) -> Colour {
        let (towards, out) = self.towards;
        let length = (1.0 + lean.dot(lean)).sqrt();
        let facing = ((lean.dot(towards) + out) / length).max(0.0);
        // Halfway between the lamp and the viewer, who looks straight down.
        let half = (2.0 + 2.0 * out).sqrt();
        let mirror = ((lean.dot(towards) + out + 1.0) / (length * half)).max(0.0);
        let sharp = (0..5).fold(mirror, |power, _| power * power);
        let strength = self.ambient + (1.0 - self.ambient) * facing;
        [0, 1, 2].map(|channel| self.tint[channel] * (paint[channel] * strength + 0.45 * gloss * sharp))
    }
}

/// A flat thing of one colour: a disc, or a box that may be turned.
#[derive(Clone, Copy, Debug)]
struct Patch {
    centre: Point,
    half: Point,
    turn: (f64, f64),
    round: bool,
    colour: Colour,
}

impl Patch {
    fn covers(&self, point: Point) -> bool {
        let from = point.minus(self.centre).turned(self.turn);
        let (x, y) = (from.x / self.half.x, from.y / self.half.y);
        if self.round { x * x + y * y < 1.0 } else { x.abs() < 1.0 && y.abs() < 1.0 }
    }

    fn new(rng: &mut CounterRng, centre: Point, largest: f64) -> Self {
        let angle = rng.between(0.0, std::f64::consts::PI);
        Self {
            centre,
            half: Point::new(rng.between(0.3, 1.0) * largest, rng.between(0.3, 1.0) * largest),
            turn: (libm::cos(angle), libm::sin(angle)),
            round: rng.chance(0.5),
            colour: colour(rng.uniform(), rng.between(0.1, 0.8), rng.between(0.2, 0.95)),
        }
    }
}

/// What a background is made of.
#[derive(Clone, Copy, Debug)]
enum Ground {
    Plain,
    Gradient,
    Tiles { pitch: f64 },
    Grain { grain: Grain, across: f64, down: f64 },
}

/// What lies behind the product.
#[derive(Clone, Debug)]
pub(super) struct Background {
    ground: Ground,
    turn: (f64, f64),
    colours: [Colour; 2],
    clutter: Vec<Patch>,
}

impl Background {
    fn new(rng: &mut CounterRng) -> Self {
        let angle = rng.between(0.0, 2.0 * std::f64::consts::PI);
        let mut pale = || colour(rng.uniform(), rng.between(0.0, 0.3), rng.between(0.4, 1.0));
        let first = pale();
        let second = mixture(first, pale(), 0.6);
        let ground = match (rng.uniform() * 4.0) as u32 {
            0 => Ground::Plain,
            1 => Ground::Gradient,
            2 => Ground::Tiles { pitch: rng.between(0.25, 0.7) },
            _ => Ground::Grain {
                grain: rng.grain(),
                across: rng.between(1.0, 3.0),
                down: rng.between(3.0, 8.0),
            },
        };
        let pieces = if rng.chance(0.4) { 2 + (rng.uniform() * 3.0) as usize } else { 0 };
        let clutter = (0..pieces)
            .map(|_| {
                let centre = Point::new(rng.between(-1.0, 1.0), rng.between(-1.0, 1.0));
                Patch::new(rng, centre, 0.35)
            })
            .collect();
        Self { ground, turn: (libm::cos(angle), libm::sin(angle)), colours: [first, second], clutter }
    }

    /// The colour at a point of the picture.
    pub(super) fn at(&self, point: Point) -> Colour {
        if let Some(patch) = self.clutter.iter().rev().find(|patch| patch.covers(point)) {
            return patch.colour;
        }
        let place = point.turned(self.turn);
        let share = match self.ground {
            Ground::Plain => 0.0,
            Ground::Gradient => (0.5 + 0.5 * place.x).clamp(0.0, 1.0),
            Ground::Tiles { pitch } => {
                let odd = |value: f64| (value / pitch).floor() as i64 & 1 == 0;
                f64::from(odd(place.x) != odd(place.y))
            }
            Ground::Grain { grain, across, down } => grain.at(place.x * across + 9.0, place.y * down + 9.0),
        };
        mixture(self.colours[0], self.colours[1], share)
    }
}

/// Everything about one picture but the product.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) pose: Pose,
    pub(super) light: Light,
    pub(super) background: Background,
    /// Standard deviation of the camera's noise.
    pub(super) noise: f64,
    obstacle: Option<Patch>,
    vignette: f64,
}

impl Scene {
    pub(super) fn new(rng: &mut CounterRng) -> Self {
        let pose = Pose::new(rng);
        let light = Light::new(rng);
        let background = Background::new(rng);
        let obstacle = rng.chance(0.3).then(|| {
            let angle = rng.between(0.0, 2.0 * std::f64::consts::PI);
            let centre = Point::new(libm::cos(angle), libm::sin(angle)).times(rng.between(0.55, 0.8));
            Patch::new(rng, centre, 0.33)
        });
        Self {
            pose,
            light,
            background,
            noise: rng.between(0.005, 0.03),
            obstacle,
            vignette: rng.between(0.0, 0.2),
        }
    }

    /// What stands before everything else at a point.
    pub(super) fn obstacle(&self, point: Point) -> Option<Colour> {
        self.obstacle.filter(|patch| patch.covers(point)).map(|patch| patch.colour)
    }

    /// How much of the light the lens lets through at a point.
    pub(super) fn lens(&self, point: Point) -> f64 {
        1.0 - self.vignette * point.dot(point) / 2.0
    }
}
