//! A certified radius, its order, and how it is printed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Sigma;

/// How far a certificate reaches, in the l2 norm of pixels scaled to `[0, 1]`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Radius {
    /// Every perturbation shorter than this.
    Finite(f64),
    /// Every perturbation whatsoever.
    Unbounded,
}

impl Radius {
    /// The radius as a number, infinite when unbounded.
    pub fn get(self) -> f64 {
        match self {
            Radius::Finite(radius) => radius,
            Radius::Unbounded => f64::INFINITY,
        }
    }

    /// The radius in units of the noise level.
    pub fn in_sigmas(self, sigma: Sigma) -> f64 {
        self.get() / sigma.get()
    }

    /// By how many of 255 grey levels *one* value of the picture may change, if all others stay: `255 r`.
    ///
    /// No change of a single pixel that a picture can show is larger than 255. What the same radius allows everywhere at
    /// once is far less: [`in_grey_levels`](Self::in_grey_levels).
    pub fn in_8bit_steps(self) -> f64 {
        self.get() * 255.0
    }

    /// By how many of 255 grey levels *every* one of a picture's `values` numbers may change at once: `255 r / √d`.
    ///
    /// ```
    /// use retrievalguard::certificate::{Radius, round_down};
    ///
    /// // A radius of 0.1 on 112 × 112 pixels of three channels: nobody sees it.
    /// assert_eq!(round_down(Radius::Finite(0.1).in_grey_levels(3 * 112 * 112), 2), "0.13");
    /// ```
    pub fn in_grey_levels(self, values: usize) -> f64 {
        self.l_infinity(values).in_8bit_steps()
    }

    /// Radius in the l1 norm that follows: `‖δ‖₂ ≤ ‖δ‖₁`, so an l1 ball fits into the l2 ball of its radius.
    ///
    /// ```
    /// use retrievalguard::certificate::Radius;
    ///
    /// assert_eq!(Radius::Finite(0.5).l1(), Radius::Finite(0.5));
    /// ```
    #[must_use]
    pub fn l1(self) -> Radius {
        self
    }

    /// Radius in the l∞ norm that follows: `‖δ‖₂ ≤ √d ‖δ‖_∞` for pictures of `values` numbers.
    ///
    /// Rounded towards zero, so that the cube stays inside the ball.
    ///
    /// ```
    /// use retrievalguard::certificate::Radius;
    ///
    /// let cube = Radius::Finite(0.5).l_infinity(100).get();
    /// assert!(cube <= 0.05 && cube > 0.05 - 1e-12);
    /// ```
    #[must_use]
    pub fn l_infinity(self, values: usize) -> Radius {
        match self {
            Radius::Finite(radius) => {
                Radius::Finite((radius / (values.max(1) as f64).sqrt()) * (1.0 - 4.0 * f64::EPSILON))
            }
            Radius::Unbounded => Radius::Unbounded,
        }
    }
}

impl fmt::Display for Radius {
    /// Rounds down to the asked number of decimals, four by default.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Radius::Finite(radius) => formatter.pad_integral(
                *radius >= 0.0,
                "",
                round_down(radius.abs(), formatter.precision().unwrap_or(4)).as_str(),
            ),
            Radius::Unbounded => formatter.pad("unbounded"),
        }
    }
}

/// A non-negative number cut after `decimals` decimals: a shortened lower bound stays a lower bound.
///
/// ```
/// use retrievalguard::certificate::round_down;
///
/// assert_eq!(round_down(0.29999, 3), "0.299");
/// assert_eq!(round_down(2.0, 1), "2.0");
/// ```
pub fn round_down(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    // 1074 decimals write every f64 exactly, so cutting the text is cutting the number; adding zero drops the sign of −0.
    let mut text = format!("{:.1074}", value + 0.0);
    let point = text.find('.').unwrap_or(text.len());
    text.truncate(if decimals == 0 { point } else { point + 1 + decimals.min(1074) });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_radii_are_never_above_the_radius() {
        for (radius, decimals, shown) in
            [(0.123456, 4, "0.1234"), (0.99999, 2, "0.99"), (1.5, 0, "1"), (0.3, 17, "0.29999999999999998")]
        {
            let text = format!("{:.*}", decimals, Radius::Finite(radius));
            assert_eq!(text, shown);
            assert!(text.parse::<f64>().unwrap() <= radius, "{text}");
        }
        assert_eq!(round_down(-0.0, 2), "0.00");
        assert_eq!(Radius::Unbounded.to_string(), "unbounded");
        assert_eq!(format!("{:>8}", Radius::Finite(0.5)), "  0.5000");
    }

    #[test]
    fn unbounded_is_above_every_finite_radius() {
        assert!(Radius::Unbounded > Radius::Finite(f64::MAX));
        assert!(Radius::Finite(1.0) > Radius::Finite(0.5));
    }

    #[test]
    fn the_cube_of_the_infinity_radius_fits_into_the_ball() {
        for values in [1_usize, 3, 784, 150_528] {
            let side = Radius::Finite(0.37).l_infinity(values).get();
            assert!(side * (values as f64).sqrt() <= 0.37, "{values}");
        }
    }
}
