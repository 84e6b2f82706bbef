//! What makes a product: outline, colours, pattern and label.
//!
//! Products come in lines of [`LINE`]. Those of one line have the same kind of outline and pattern and differ as flavours
//! of one brand do, in colours and a little in everything else: a line is where retrieval is hard.

use super::pattern::{Pattern, Weave};
use super::rng::{CounterRng, Purpose};
use super::silhouette::{Family, Point, Silhouette};

/// Products in a line.
pub(super) const LINE: u64 = 4;

/// Red, green and blue in `[0, 1]`.
pub(super) type Colour = [f64; 3];

/// A mixture of two colours.
pub(super) fn mixture(from: Colour, to: Colour, share: f64) -> Colour {
    [0, 1, 2].map(|channel| from[channel] + (to[channel] - from[channel]) * share)
}

/// A colour by hue (in turns), saturation and value.
pub(super) fn colour(hue: f64, saturation: f64, value: f64) -> Colour {
    [0.0, 4.0, 2.0].map(|offset: f64| {
        let place = hue * 6.0 + offset;
        let place = place - (place / 6.0).floor() * 6.0;
        let ramp = ((place - 3.0).abs() - 1.0).clamp(0.0, 1.0);
        value * (1.0 - saturation * (1.0 - ramp))
    })
}

/// The shape printed on a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emblem {
    Disc,
    Diamond,
    Cross,
    Square,
}

impl Emblem {
    const ALL: [Self; 4] = [Self::Disc, Self::Diamond, Self::Cross, Self::Square];

    fn covers(self, point: Point, size: f64) -> bool {
        let (x, y) = (point.x.abs() / size, point.y.abs() / size);
        match self {
            Self::Disc => x * x + y * y < 1.0,
            Self::Diamond => x + y < 1.2,
            Self::Cross => (x < 0.38 && y < 1.0) || (y < 0.38 && x < 1.0),
            Self::Square => x < 0.85 && y < 0.85,
        }
    }
}

/// A band across the product with an emblem on it.
#[derive(Clone, Copy, Debug)]
struct Label {
    height: f64,
    half: f64,
    emblem: Emblem,
    size: f64,
}

/// One product.
#[derive(Clone, Debug)]
pub(super) struct Design {
    pub(super) silhouette: Silhouette,
    /// How much the surface shines, in `[0, 1]`.
    pub(super) gloss: f64,
    base: Colour,
    second: Colour,
    accent: Colour,
    weave: Weave,
    label: Option<Label>,
}

impl Design {
    /// The product of a class.
    pub(super) fn new(seed: u64, class: u64) -> Self {
        let mut line = CounterRng::new(seed, Purpose::Line, class / LINE, 0);
        let mut own = CounterRng::new(seed, Purpose::Product, class, 0);

        let family = line.pick(&Family::ALL);
        let proportions = [(); 4].map(|()| line.uniform());
        let proportions = proportions.map(|shared| (shared + own.between(-0.25, 0.25)).clamp(0.0, 1.0));
        let pattern = line.pick(&Pattern::ALL);
        let angle = line.between(0.0, std::f64::consts::PI) + own.between(-0.25, 0.25);
        let pitch = line.between(0.28, 0.6) * own.between(0.8, 1.25);
        let share = line.between(0.35, 0.65);
        let labelled = line.chance(0.5);
        let (height, emblem) = (line.between(-0.15, 0.45), line.pick(&Emblem::ALL));
        let label = labelled.then(|| {
            let half = own.between(0.16, 0.3);
            Label { height, half, emblem, size: half * 0.8 }
        });

        let hue = line.uniform() + own.between(-0.22, 0.22);
        let base = colour(hue, own.between(0.35, 1.0), own.between(0.35, 1.0));
        let second = colour(hue + own.between(0.15, 0.85), own.between(0.1, 0.9), own.between(0.25, 1.0));
        let accent = colour(own.uniform(), own.between(0.5, 1.0), own.between(0.2, 1.0));
        Self {
            silhouette: Silhouette { family, proportions },
            gloss: line.uniform(),
            base,
            second,
            accent,
            weave: Weave {
                pattern,
                grain: own.grain(),
                direction: (libm::cos(angle), libm::sin(angle)),
                pitch,
                share,
            },
            label,
        }
    }

    /// The paint at a point of the product, before any light.
    pub(super) fn paint(&self, point: Point) -> Colour {
        if let Some(label) = &self.label {
            let from = Point::new(point.x, point.y - label.height);
            if label.emblem.covers(from, label.size) {
                return self.accent;
            }
            if from.y.abs() < label.half {
                return mixture(self.second, [1.0; 3], 0.55);
            }
        }
        mixture(self.base, self.second, self.weave.at(point))
    }
}
