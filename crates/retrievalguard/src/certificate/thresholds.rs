//! The first finite-sample form of the whole-distribution certificate: thresholds and Clopper–Pearson bounds
//! (theory, section 2.3).

use std::collections::HashMap;

use super::domain::ScoreRange;
use crate::Sigma;
use crate::binomial;
use crate::normal;

/// Radii are searched up to this many σ.
pub(crate) const RADIUS_CAP: f64 = 40.0;

/// Allowance for the rounding of a bound on a mean, relative to the largest score.
const ROUNDING: f64 = 1e-12;

/// Normal scores `Φ⁻¹(p_low)` of Clopper–Pearson lower bounds at one level, remembered by count.
pub(crate) struct ScoreTable {
    trials: u32,
    level: f64,
    known: HashMap<u32, f64>,
}

impl ScoreTable {
    pub(crate) fn new(trials: u32, level: f64) -> Self {
        Self { trials, level, known: HashMap::new() }
    }

    /// `Φ⁻¹` of the lower bound for this many successes, rounded down.
    pub(crate) fn score(&mut self, successes: u32) -> f64 {
        let (trials, level) = (self.trials, self.level);
        *self.known.entry(successes).or_insert_with(|| {
            // A count beyond the trials or a level outside (0, 1) cannot be built here; certify nothing if it is.
            match binomial::lower_bound(successes, trials, level) {
                Ok(bound) => {
                    let score = normal::quantile(bound);
                    score - 1e-13 * (1.0 + score.abs().min(f64::MAX))
                }
                Err(_) => f64::NEG_INFINITY,
            }
        })
    }
}

/// A lower bound on the mean of `S` after a shift, as a sum over steps between thresholds.
///
/// ```text
/// L(ρ) ≥ τ_0 + Σ_j (τ_j − τ_{j−1}) Φ(z_j − ρ/σ),    z_j = Φ⁻¹(p_j)
/// ```
///
/// `τ_0` is the least score that an embedding can have, `−F` in the ball.
/// Decreasing in `ρ`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepBound {
    /// Width and normal score of each step.
    steps: Vec<(f64, f64)>,
    range: ScoreRange,
    sigma: f64,
}

impl StepBound {
    /// `thresholds` ascend within `range`; `scores` are the normal scores of lower bounds on `P(S > τ_j)`.
    pub(crate) fn new(
        thresholds: &[f32],
        scores: impl Iterator<Item = f64>,
        range: ScoreRange,
        sigma: Sigma,
    ) -> Self {
        let mut previous = range.lower;
        let mut steps: Vec<(f64, f64)> = thresholds
            .iter()
            .zip(scores)
            .map(|(&threshold, score)| {
                let width = f64::from(threshold) - previous;
                previous = f64::from(threshold);
                (width, score)
            })
            .collect();
        // P(S > τ_i) ≥ P(S > τ_j) for i < j, so a bound at a higher threshold serves all lower ones.
        let mut best = f64::NEG_INFINITY;
        for step in steps.iter_mut().rev() {
            best = best.max(step.1);
            step.1 = best;
        }
        Self { steps, range, sigma: sigma.certified() }
    }

    /// `L(ρ)`, rounded down.
    pub(crate) fn mean_after(&self, radius: f64) -> f64 {
        let shift = radius / self.sigma;
        let total: f64 =
            self.steps.iter().map(|&(width, score)| width * normal::distribution(score - shift)).sum();
        total + self.range.lower - ROUNDING * self.range.size()
    }

    /// `sup{ρ : L(ρ) > offset}`, rounded down; `None` if even `L(0)` is not above the offset.
    pub(crate) fn radius(&self, offset: f64) -> Option<f64> {
        if self.mean_after(0.0) <= offset {
            return None;
        }
        let (mut low, mut high) = (0.0, RADIUS_CAP * self.sigma);
        if self.mean_after(high) > offset {
            return Some(high);
        }
        while high - low > 1e-9 * self.sigma {
            let middle = f64::midpoint(low, high);
            if self.mean_after(middle) > offset {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(low)
    }
}

/// Adds to `counts[j]` how many scores are strictly above `thresholds[j]`.
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calling code compiled for instructions detected at run time")
)]
pub(crate) fn count_above(scores: &[f32], thresholds: &[f32], counts: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor was just found to have the instructions.
        unsafe { count_above_avx2(scores, thresholds, counts) };
        return;
    }
    count_above_anywhere(scores, thresholds, counts);
}

/// The same loop, compiled for wider vectors; comparing and counting give the same numbers on every path.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn count_above_avx2(scores: &[f32], thresholds: &[f32], counts: &mut [u32]) {
    count_above_anywhere(scores, thresholds, counts);
}

#[inline(always)]
fn count_above_anywhere(scores: &[f32], thresholds: &[f32], counts: &mut [u32]) {
    for (&threshold, count) in thresholds.iter().zip(counts) {
        let mut above = 0_u32;
        for &score in scores {
            above = above.wrapping_add(u32::from(score > threshold));
        }
        *count += above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BALL: ScoreRange = ScoreRange { lower: -1.0, upper: 1.0 };

    fn sigma(value: f64) -> Sigma {
        Sigma::new(value).unwrap()
    }

    #[test]
    fn two_atoms_give_the_closed_form() {
        // S is −1 or 1, with P(S = 1) = Φ(1): the mean reaches 0 after a shift of exactly one σ.
        let bound = StepBound::new(&[0.999_999], [1.0].into_iter(), BALL, sigma(0.5));
        let radius = bound.radius(0.0).unwrap();
        assert!((radius - 0.5).abs() < 1e-5 && radius < 0.5, "{radius}");
        assert_eq!(bound.radius(0.7), None);
    }

    #[test]
    fn two_atoms_at_the_ends_of_a_narrow_range_give_the_closed_form_too() {
        // S is −a or b, with P(S = b) = Φ(1): the mean −a + (a + b)Φ(1 − ρ) reaches the offset where Φ(1 − ρ) = share.
        for (lower, upper, share) in [(-0.7, 0.7, 0.5_f64), (-0.2, 0.9, 0.3), (0.0, 1.0, 0.6)] {
            let offset = lower + (upper - lower) * share;
            let threshold = [(upper - 1e-6) as f32];
            let radius = |range| {
                StepBound::new(&threshold, [1.0].into_iter(), range, sigma(0.5)).radius(offset).unwrap_or(0.0)
            };
            let truth = 0.5 * (1.0 - normal::quantile(normal::Probability::new(share).unwrap()));
            let found = radius(ScoreRange { lower, upper });
            assert!((found - truth).abs() < 1e-5 && found < truth, "{found} {truth}");
            assert!(radius(BALL) < found - 0.05, "the range must be felt");
        }
    }

    #[test]
    fn bounds_become_monotone_towards_lower_thresholds() {
        let bound = StepBound::new(&[-0.5, 0.5], [0.0, 2.0].into_iter(), BALL, sigma(1.0));
        assert_eq!(bound.steps, vec![(0.5, 2.0), (1.0, 2.0)]);
    }

    #[test]
    fn a_radius_beyond_the_cap_is_cut_there() {
        let bound = StepBound::new(&[0.9], [60.0].into_iter(), BALL, sigma(0.1));
        assert_eq!(bound.radius(-0.5), Some(4.0));
    }

    #[test]
    fn equality_with_a_threshold_is_not_counted() {
        let mut counts = [0, 0];
        count_above(&[0.1, 0.2, 0.2, 0.3], &[0.1, 0.2], &mut counts);
        assert_eq!(counts, [3, 1]);
    }

    #[test]
    fn every_path_counts_alike() {
        let scores: Vec<f32> = (0..1_003_u32).map(|place| ((place * 7_919) % 997) as f32 / 997.0).collect();
        let thresholds = [-0.5, 0.0, 0.25, 0.5, 0.999, 2.0];
        let (mut fast, mut plain) = ([0; 6], [0; 6]);
        count_above(&scores, &thresholds, &mut fast);
        count_above_anywhere(&scores, &thresholds, &mut plain);
        assert_eq!(fast, plain);
        assert_eq!((fast[0], fast[5]), (1_003, 0));
    }
}
