//! Patterns that cover the plane: what products are painted with and fabrics are woven of.

use super::rng::Grain;
use super::silhouette::Point;

/// How a surface is painted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Plain,
    Stripes,
    Dots,
    Checks,
    Marble,
    Fade,
    Halves,
}

impl Pattern {
    pub(super) const ALL: [Self; 7] =
        [Self::Plain, Self::Stripes, Self::Dots, Self::Checks, Self::Marble, Self::Fade, Self::Halves];

    /// Those that look alike wherever one stands.
    pub(super) const REPEATING: [Self; 4] = [Self::Stripes, Self::Dots, Self::Checks, Self::Marble];
}

/// A pattern with its size and direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weave {
    pub(super) pattern: Pattern,
    pub(super) grain: Grain,
    /// Cosine and sine of the pattern's direction.
    pub(super) direction: (f64, f64),
    pub(super) pitch: f64,
    /// How much of the surface has the second colour.
    pub(super) share: f64,
}

impl Weave {
    /// How much of the second colour there is at a point, in `[0, 1]`.
    pub(super) fn at(&self, point: Point) -> f64 {
        let place = point.turned(self.direction).times(1.0 / self.pitch);
        let cell = |value: f64| value - value.floor();
        match self.pattern {
            Pattern::Plain => 0.0,
            Pattern::Stripes => f64::from(cell(place.x) < self.share),
            Pattern::Dots => {
                let from = Point::new(cell(place.x) - 0.5, cell(place.y) - 0.5);
                f64::from(from.length() < 0.2 + 0.4 * self.share)
            }
            Pattern::Checks => f64::from((cell(place.x) < 0.5) != (cell(place.y) < 0.5)),
            Pattern::Marble => {
                let veins = self.grain.at(place.x * 1.3 + 40.0, place.y * 1.3 + 40.0);
                ((veins - self.share) * 6.0 + 0.5).clamp(0.0, 1.0)
            }
            Pattern::Fade => (0.5 + 0.6 * place.x * self.pitch).clamp(0.0, 1.0),
            Pattern::Halves => f64::from(place.x * self.pitch > self.share - 0.5),
        }
    }
}
