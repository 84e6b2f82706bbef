//! From numbers to places.

use super::{Axis, Scale};
use super::{text, ticks};

/// An axis laid out over a length.
#[derive(Clone, Debug)]
pub(super) struct PlacedAxis {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    /// Numbers or names along the axis, with their places.
    pub(super) ticks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    Log10,
    Names,
}

/// Room that a number on an axis needs, in multiples of the size of its letters.
const TICK_ROOM: (f64, f64) = (5.0, 2.5);

/// Which way an axis runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Horizontal,
    Vertical,
}

impl PlacedAxis {
    /// Lays an axis out from `from` to `to`; `values` are the numbers it has to show, those that are none apart.
    pub(super) fn new(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        direction: Direction,
        (from, to): (f64, f64),
        letters: f64,
    ) -> Self {
        let room = match direction {
            Direction::Horizontal => TICK_ROOM.0,
            Direction::Vertical => TICK_ROOM.1,
        };
        let values = values.filter(|value| value.is_finite());
        let wanted = ((to - from).abs() / (room * letters)).floor().clamp(2.0, 7.0) as usize;
        match &axis.scale {
            Scale::Names(names) => {
                let last = names.len().max(1) as f64 - 0.5;
                // Downwards, so that names read from the top.
                let (low, high) = if direction == Direction::Vertical { (last, -0.5) } else { (-0.5, last) };
                let ticks = names.iter().map(|name| text::printable(name)).enumerate();
                let ticks = ticks.map(|(place, name)| (place as f64, name)).collect();
                Self { kind: Kind::Names, low, high, from, to, ticks }
            }
            Scale::Linear => {
                let (low, high) = match axis.range.filter(|&(low, high)| usable(low, high)) {
                    Some(range) => range,
                    None => {
                        let (low, high) = linear_extent(values);
                        ticks::widened(low, high, wanted)
                    }
                };
                let places = ticks::linear(low, high, wanted);
                let ticks = ticks::linear_labels(&places);
                Self {
                    kind: Kind::Linear,
                    low,
                    high,
                    from,
                    to,
                    ticks: places.into_iter().zip(ticks).collect(),
                }
            }
            Scale::Log10 => {
                let given = axis.range.filter(|&(low, high)| usable(low, high) && low > 0.0);
                let (low, high) =
                    given.unwrap_or_else(|| logarithmic_extent(values.filter(|value| *value > 0.0)));
                let places = ticks::logarithmic(low, high, wanted);
                let ticks = ticks::logarithmic_labels(&places);
                Self {
                    kind: Kind::Log10,
                    low,
                    high,
                    from,
                    to,
                    ticks: places.into_iter().zip(ticks).collect(),
                }
            }
        }
    }

    /// The place of a number, or none if it has no place on this axis.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let share = match self.kind {
            Kind::Linear | Kind::Names => (value - self.low) / (self.high - self.low),
            Kind::Log10 if value > 0.0 => {
                (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
            }
            Kind::Log10 => return None,
        };
        // Far outside is far enough: renderers lose their way among huge coordinates.
        let place = self.from + share.clamp(-50.0, 50.0) * (self.to - self.from);
        (value.is_finite() && place.is_finite()).then_some(place)
    }

    /// Whether a number lies between the axis' ends.
    pub(super) fn holds(&self, value: f64) -> bool {
        let (low, high) = (self.low.min(self.high), self.low.max(self.high));
        let slack = (high - low) * 1e-9;
        value >= low - slack && value <= high + slack
    }

    /// Where bars begin: at zero, or at the end that is nearest to it.
    pub(super) fn floor(&self) -> f64 {
        match self.kind {
            Kind::Linear | Kind::Names => 0.0_f64.clamp(self.low.min(self.high), self.low.max(self.high)),
            Kind::Log10 => self.low,
        }
    }

    /// The length of one unit of a linear axis.
    pub(super) fn unit(&self) -> f64 {
        ((self.to - self.from) / (self.high - self.low)).abs()
    }

    /// Whether the axis has names.
    pub(super) fn has_names(&self) -> bool {
        self.kind == Kind::Names
    }
}

fn usable(low: f64, high: f64) -> bool {
    // A range that rounding cannot tell from a point has no ticks.
    low.is_finite()
        && high.is_finite()
        && high - low > 1e-12 * low.abs().max(high.abs())
        && (high - low).is_finite()
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

fn linear_extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    match extent(values) {
        None => (0.0, 1.0),
        Some((low, high)) if usable(low, high) => (low, high),
        Some((0.0, _)) => (0.0, 1.0),
        Some((value, _)) => (value - value.abs() * 0.5, value + value.abs() * 0.5),
    }
}

fn logarithmic_extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    match extent(values) {
        None => (1.0, 10.0),
        Some((low, high)) if high > low * 1.001 => (low, high),
        Some((value, _)) => (value / 3.0, value * 3.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(axis: &Axis, values: &[f64]) -> PlacedAxis {
        PlacedAxis::new(axis, values.iter().copied(), Direction::Horizontal, (100.0, 300.0), 11.0)
    }

    #[test]
    fn ends_of_the_axis_are_ends_of_the_length() {
        let linear = placed(&Axis::linear("x").range(-1.0, 1.0), &[]);
        assert_eq!(
            [-1.0, 0.0, 1.0].map(|value| linear.place(value)),
            [Some(100.0), Some(200.0), Some(300.0)]
        );
        let logarithmic = placed(&Axis::log10("x").range(1.0, 10_000.0), &[]);
        assert!((logarithmic.place(100.0).unwrap() - 200.0).abs() < 1e-9);
        assert_eq!(logarithmic.place(0.0), None);
        assert_eq!(logarithmic.place(-1.0), None);
    }

    #[test]
    fn an_unusable_range_is_replaced_by_that_of_the_values() {
        for (low, high) in [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            let axis = placed(&Axis::linear("x").range(low, high), &[0.0, 4.0]);
            assert!(axis.holds(0.0) && axis.holds(4.0), "{low} {high}");
        }
        let axis = placed(&Axis::log10("x").range(0.0, 10.0), &[5.0, 500.0]);
        assert!(axis.holds(5.0) && axis.holds(500.0) && axis.place(5.0).is_some());
    }

    #[test]
    fn no_values_one_value_and_huge_values_have_an_axis() {
        for values in
            [&[][..], &[0.0], &[7.0], &[-3.0], &[1e300, -1e300], &[1e-300], &[f64::NAN, f64::INFINITY]]
        {
            for axis in [Axis::linear("x"), Axis::log10("x")] {
                let axis = placed(&axis, values);
                assert!(axis.low.is_finite() && axis.high > axis.low, "{values:?}: {axis:?}");
                assert!(axis.ticks.iter().all(|(value, _)| axis.place(*value).is_some()), "{values:?}");
            }
        }
    }
}
