//! The standard normal distribution `Φ`, its inverse and its density, accurate in both tails.
//!
//! A certificate subtracts normal scores of probabilities that may differ from 0 or 1 by less than any rounding of
//! `1 - p` can hold. So a [`Probability`] carries both sides of itself, and each function here reads the smaller one.
//!
//! ```
//! use retrievalguard::normal::{Probability, probability, quantile};
//!
//! // A success missed once in 10²⁰ trials: as a plain number it would be rounded to 1.
//! let nearly_sure = Probability::from_complement(1e-20)?;
//! assert_eq!(nearly_sure.get(), 1.0);
//! assert!((quantile(nearly_sure) - 9.262340089798408).abs() < 1e-14);
//!
//! // The same score shifted by a perturbation of two standard deviations.
//! let shifted = probability(quantile(nearly_sure) - 2.0);
//! assert!((shifted.complement() / 1.902e-13 - 1.0).abs() < 1e-3);
//! # Ok::<(), retrievalguard::normal::ProbabilityError>(())
//! ```

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use serde::Serialize;
use statrs::function::erf::erfc_inv;

/// What `FRAC_1_SQRT_2` misses of `1/√2`: `1/√2 = FRAC_1_SQRT_2 + FRAC_1_SQRT_2_REST` to 107 bits.
///
/// Computed with mpmath at 50 digits.
const FRAC_1_SQRT_2_REST: f64 = -4.833646656726457e-17;

/// `1/√(2π)`, computed with mpmath at 50 digits.
const FRAC_1_SQRT_2_PI: f64 = 0.3989422804014327;

/// Beyond this distance from 0 the density and the smaller tail are below the smallest `f64`.
const FARTHEST: f64 = 40.0;

/// A number that is not a probability.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbabilityError {
    /// A probability lies between 0 and 1, both included; not-a-number does not.
    #[error("probability is {0}, wanted a number from 0 to 1")]
    Range(f64),
}

/// A probability `p` together with `1 - p`, each to full relative precision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Probability {
    value: f64,
    complement: f64,
}

impl Probability {
    /// The impossible event.
    pub const ZERO: Probability = Probability { value: 0.0, complement: 1.0 };

    /// The sure event.
    pub const ONE: Probability = Probability { value: 1.0, complement: 0.0 };

    /// Accepts 0 to 1; use [`Probability::from_complement`] when the distance to 1 is what is known exactly.
    pub fn new(value: f64) -> Result<Self, ProbabilityError> {
        if (0.0..=1.0).contains(&value) {
            // Exact for p ≥ 1/2; below, the complement is no small number.
            Ok(Self { value, complement: 1.0 - value })
        } else {
            Err(ProbabilityError::Range(value))
        }
    }

    /// The probability `1 - complement`; accepts 0 to 1.
    pub fn from_complement(complement: f64) -> Result<Self, ProbabilityError> {
        Self::new(complement).map(Self::opposite)
    }

    /// Both sides from a computation that has each to full relative precision.
    pub(crate) fn from_parts(value: f64, complement: f64) -> Self {
        debug_assert!((0.0..=1.0).contains(&value) && (0.0..=1.0).contains(&complement));
        debug_assert!((value + complement - 1.0).abs() < 1e-12);
        Self { value, complement }
    }

    /// The probability `p`.
    pub fn get(self) -> f64 {
        self.value
    }

    /// The probability `1 - p` of the opposite event.
    pub fn complement(self) -> f64 {
        self.complement
    }

    /// The opposite event: `p` and `1 - p` exchanged.
    pub fn opposite(self) -> Self {
        Self { value: self.complement, complement: self.value }
    }
}

/// Probability that a standard normal variable is at most `x`.
///
/// ```text
/// Φ(x) = erfc(−x/√2)/2
/// ```
///
/// Largest relative error measured against 50-digit values for `Φ(x) > 1e-307`: 5e-16. Increasing in `x`
/// up to that error. For the distance to 1 use [`probability`].
pub fn distribution(x: f64) -> f64 {
    if x < -1.0 && x > -FARTHEST {
        // The rounding of x/√2 alone would cost x² units in the last place: add its first-order effect.
        let scaled = -x * FRAC_1_SQRT_2;
        let rest = (-x).mul_add(FRAC_1_SQRT_2, -scaled) - x * FRAC_1_SQRT_2_REST;
        0.5 * (libm::erfc(scaled) - rest * FRAC_2_SQRT_PI * libm::exp(-scaled * scaled))
    } else {
        0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
    }
}

/// `Φ(x)` and `Φ(−x)` as one probability.
///
/// # Panics
///
/// If `x` is not a number: it has no probability, and letting one pass would end in a meaningless certificate.
pub fn probability(x: f64) -> Probability {
    assert!(!x.is_nan(), "the normal distribution was asked about a value that is not a number");
    Probability { value: distribution(x), complement: distribution(-x) }
}

/// Normal score of a probability, the inverse of [`probability`].
///
/// ```text
/// Φ⁻¹(p) = −√2 erfc⁻¹(2p) = √2 erfc⁻¹(2(1 − p))
/// ```
///
/// `−∞` at 0 and `+∞` at 1. The form with the smaller argument is used, so that both tails are equally accurate.
/// Largest relative error measured against 50-digit values, for probabilities down to 1e-300: 5e-16.
pub fn quantile(p: Probability) -> f64 {
    if p.value <= p.complement {
        -SQRT_2 * erfc_inv(2.0 * p.value)
    } else {
        SQRT_2 * erfc_inv(2.0 * p.complement)
    }
}

/// Density of the standard normal distribution.
///
/// ```text
/// φ(x) = exp(−x²/2)/√(2π)
/// ```
///
/// Largest relative error measured against 50-digit values for `|x| < 37.5`: 5e-16.
pub fn density(x: f64) -> f64 {
    if x.abs() > FARTHEST {
        return 0.0;
    }
    let square = x * x;
    // The exponent is large: without its rounding error every unit of x²/2 would cost one in the last place.
    let rest = x.mul_add(x, -square);
    FRAC_1_SQRT_2_PI * libm::exp(-0.5 * square) * (1.0 - 0.5 * rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        found == expected || (found - expected).abs() <= tolerance * expected.abs()
    }

    #[test]
    fn a_number_outside_the_unit_interval_is_no_probability() {
        for value in [-1e-300, 1.0 + f64::EPSILON, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Probability::new(value), Err(ProbabilityError::Range(value)));
            assert_eq!(Probability::from_complement(value), Err(ProbabilityError::Range(value)));
        }
        assert!(matches!(Probability::new(f64::NAN), Err(ProbabilityError::Range(value)) if value.is_nan()));
        assert_eq!(
            Probability::new(1.5).unwrap_err().to_string(),
            "probability is 1.5, wanted a number from 0 to 1"
        );
    }

    #[test]
    fn the_smaller_side_of_a_probability_is_kept_exactly() {
        for tail in [0.0, 1e-300, 1e-20, 0.1, 0.3, 0.5] {
            assert_eq!(Probability::new(tail).unwrap().get(), tail);
            assert_eq!(Probability::from_complement(tail).unwrap().complement(), tail);
            assert_eq!(
                Probability::new(tail).unwrap().opposite(),
                Probability::from_complement(tail).unwrap()
            );
        }
        assert_eq!(Probability::new(0.0).unwrap(), Probability::ZERO);
        assert_eq!(Probability::new(1.0).unwrap(), Probability::ONE);
    }

    #[test]
    fn a_probability_is_written_with_both_sides() {
        let text = serde_json::to_string(&Probability::from_complement(1e-20).unwrap()).unwrap();
        assert_eq!(text, r#"{"value":1.0,"complement":1e-20}"#);
    }

    #[test]
    fn reflecting_the_argument_exchanges_the_sides() {
        for step in 0..=400 {
            let x = f64::from(step) * 0.1;
            assert_eq!(probability(x), probability(-x).opposite(), "x = {x}");
            assert_eq!(density(x), density(-x), "x = {x}");
            let sum = distribution(x) + distribution(-x);
            assert!((sum - 1.0).abs() <= 2.0 * f64::EPSILON, "x = {x}");
        }
    }

    #[test]
    fn the_distribution_and_the_quantile_increase() {
        let mut before = (0.0, f64::NEG_INFINITY);
        for step in -3_800..=0 {
            let x = f64::from(step) * 0.01;
            let tail = distribution(x);
            let score = quantile(Probability::new(tail).unwrap());
            assert!(tail > before.0 && score > before.1, "x = {x}");
            assert!(distribution(-x) >= distribution(-x - 0.01), "x = {x}");
            before = (tail, score);
        }
    }

    #[test]
    fn the_quantile_undoes_the_distribution_in_both_tails() {
        for step in -3_700..=3_700 {
            let x = f64::from(step) * 0.01;
            let back = quantile(probability(x));
            // Near the middle p itself is rounded, so no relative accuracy of x is left to recover.
            assert!((back - x).abs() <= 1e-15 * x.abs().max(1.0), "x = {x}, back = {back}");
        }
    }

    #[test]
    fn the_ends_are_infinite_and_the_middle_is_zero() {
        assert_eq!(quantile(Probability::ZERO), f64::NEG_INFINITY);
        assert_eq!(quantile(Probability::ONE), f64::INFINITY);
        assert_eq!(quantile(Probability::new(0.5).unwrap()), 0.0);
        assert_eq!(probability(f64::NEG_INFINITY), Probability::ZERO);
        assert_eq!(probability(f64::INFINITY), Probability::ONE);
        assert_eq!(probability(0.0), Probability::new(0.5).unwrap());
        for far in [41.0, 1e200, f64::INFINITY] {
            assert_eq!(distribution(-far), 0.0);
            assert_eq!(distribution(far), 1.0);
            assert_eq!(density(far), 0.0);
        }
    }

    #[test]
    fn not_a_number_stays_not_a_number() {
        assert!(distribution(f64::NAN).is_nan());
        assert!(density(f64::NAN).is_nan());
    }

    #[test]
    #[should_panic(expected = "not a number")]
    fn not_a_number_has_no_probability() {
        let _ = probability(f64::NAN);
    }

    #[test]
    fn the_density_is_the_slope_of_the_distribution() {
        for step in -350..=0 {
            let x = f64::from(step) * 0.1;
            let width = 1e-3;
            let slope = (8.0 * (distribution(x + width) - distribution(x - width))
                - (distribution(x + 2.0 * width) - distribution(x - 2.0 * width)))
                / (12.0 * width);
            // Five-point rule: its error is width⁴/30 times the fifth derivative, about x⁴ times the density.
            assert!(close(slope, density(x), 1e-10 + 4e-14 * x.powi(4)), "x = {x}");
        }
    }
}
