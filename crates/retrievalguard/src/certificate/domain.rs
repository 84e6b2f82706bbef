//! Where embeddings lie, and so where their scores can (theory, sections 0 and 12.1).

use crate::{Components, Samples};

/// The set that holds every embedding of an encoder: the `F`-ball, or its part without negative components.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Domain {
    /// The norm bound that certificates compute with: `F` raised by what `f64` rounding may hide.
    pub(crate) range: f64,
    components: Components,
}

/// Norm of a vector whose squares all fall below the smallest number: what a sum of squares may lose, with room.
const UNDERFLOW: f64 = 1e-140;

impl Domain {
    /// The domain of the encoder that these samples come from.
    ///
    /// A row passes the door if its computed squared norm is at most `F²`, and directions are divided by a computed norm;
    /// both are sums of `k` products, so a score lies within `F(1 + (k+8)·2⁻⁵²)` of zero.
    pub(crate) fn of(samples: &Samples) -> Self {
        let rounding = (samples.dimension() as f64 + 16.0) * f64::EPSILON;
        let range = samples.norm_bound().get() * (1.0 + rounding.max(1e-12));
        Self { range, components: samples.components() }
    }

    /// Scores that an embedding in the domain can have in a direction, rounded outwards.
    ///
    /// ```text
    /// ‖h‖ ≤ F             −F ≤ ⟨h, u⟩ ≤ F
    /// and h ≥ 0     −F‖u₋‖ ≤ ⟨h, u⟩ ≤ F‖u₊‖
    /// ```
    ///
    /// What raises `F` for the rounding of `‖h‖` and `‖u‖` has room for that of `‖u₋‖` and `‖u₊‖`, too.
    pub(crate) fn scores(&self, direction: &[f64]) -> ScoreRange {
        let whole = ScoreRange::symmetric(self.range);
        match self.components {
            Components::Any => whole,
            Components::NonNegative => {
                let norm = |sign: f64| -> f64 {
                    direction.iter().map(|value| (sign * value).max(0.0).powi(2)).sum::<f64>().sqrt()
                        + UNDERFLOW
                };
                ScoreRange {
                    lower: (-self.range * norm(-1.0)).max(whole.lower),
                    upper: (self.range * norm(1.0)).min(whole.upper),
                }
            }
        }
    }
}

#[cfg(test)]
impl Domain {
    /// The ball of this radius.
    pub(crate) fn ball(range: f64) -> Self {
        Self { range, components: Components::Any }
    }
}

/// An interval that holds every score in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScoreRange {
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl ScoreRange {
    /// `[−range, range]`.
    pub(crate) fn symmetric(range: f64) -> Self {
        Self { lower: -range, upper: range }
    }

    /// The largest absolute value of a score.
    pub(crate) fn size(&self) -> f64 {
        self.upper.max(-self.lower)
    }

    pub(crate) fn width(&self) -> f64 {
        self.upper - self.lower
    }

    /// Whether a place lies strictly inside.
    pub(crate) fn encloses(&self, place: f64) -> bool {
        self.lower < place && place < self.upper
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Excess, NormBound};

    fn random() -> impl FnMut() -> f32 {
        let mut state = 3_u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        }
    }

    fn unit(mut direction: Vec<f64>) -> Vec<f64> {
        let norm = direction.iter().map(|value| value * value).sum::<f64>().sqrt();
        direction.iter_mut().for_each(|value| *value /= norm);
        direction
    }

    #[test]
    fn scores_of_non_negative_embeddings_reach_both_ends_and_not_beyond() {
        let mut next = random();
        for dimension in [1_usize, 2, 3, 17, 128] {
            for bound in [1.0, 0.1, 3.0] {
                let bound = NormBound::new(bound).unwrap();
                let direction = unit((0..dimension).map(|_| f64::from(next())).collect());
                // The embeddings that attain the ends, made a little too long and then brought into the ball.
                let extreme = |sign: f64| -> Vec<f32> {
                    let part = unit(direction.iter().map(|value| (sign * value).max(0.0) + 1e-30).collect());
                    part.iter().map(|value| (1.0001 * bound.get() * value) as f32).collect()
                };
                let mut values: Vec<f32> = (0..200 * dimension).map(|_| next()).collect();
                values.extend([extreme(1.0), extreme(-1.0)].concat());
                let samples = Samples::new(values, dimension, bound, Excess::Project).unwrap().clamped();
                let range = Domain::of(&samples).scores(&direction);
                let scores: Vec<f64> = (0..samples.count() as usize)
                    .map(|sample| {
                        let pairs = samples.row(sample).iter().zip(&direction);
                        pairs.map(|(&value, &unit)| f64::from(value) * unit).sum()
                    })
                    .collect();
                for &score in &scores {
                    assert!(range.lower <= score && score <= range.upper, "{score} outside {range:?}");
                }
                let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let close = 1e-6 * bound.get();
                if direction.iter().any(|&value| value < 0.0) {
                    assert!(least - range.lower < close, "{least} {range:?}");
                }
                if direction.iter().any(|&value| value > 0.0) {
                    assert!(range.upper - most < close, "{most} {range:?}");
                }
            }
        }
    }

    #[test]
    fn without_the_declaration_scores_fill_the_ball_whatever_the_rows_are() {
        let samples = Samples::new(vec![0.6, 0.8], 2, NormBound::UNIT, Excess::Refuse).unwrap();
        let domain = Domain::of(&samples);
        let direction = [0.6, -0.8];
        assert_eq!(domain.scores(&direction), ScoreRange { lower: -domain.range, upper: domain.range });
        let clamped = Domain::of(&samples.clamped()).scores(&direction);
        assert!((clamped.lower + 0.8).abs() < 1e-11 && clamped.lower <= -0.8, "{clamped:?}");
        assert!((clamped.upper - 0.6).abs() < 1e-11 && clamped.upper >= 0.6, "{clamped:?}");
    }

    #[test]
    fn components_too_small_to_square_are_not_forgotten() {
        let samples = Samples::new(vec![0.6, 0.8], 2, NormBound::UNIT, Excess::Refuse).unwrap().clamped();
        let range = Domain::of(&samples).scores(&[1.0, -1e-170]);
        assert!(range.lower <= -1e-170, "{range:?}");
        assert!(range.lower > -1e-100, "{range:?}");
    }
}
