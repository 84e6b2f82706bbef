//! The numbers a run is made with, each checked once and trusted afterwards.
//!
//! Every type here accepts exactly the values for which the theory holds and answers everything else with a
//! [`ParameterError`] that carries the offending value.
//!
//! ```
//! use retrievalguard::{Alpha, ParameterError, Sigma};
//!
//! let sigma = Sigma::new(0.25)?;
//! assert_eq!(sigma.get(), 0.25);
//! assert_eq!(Alpha::new(1.5), Err(ParameterError::Alpha(1.5)));
//! assert_eq!("0.01".parse::<Alpha>()?.get(), 0.01);
//! # Ok::<(), ParameterError>(())
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A parameter outside the range in which the certificates hold.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// The noise level must be one that pixels from 0 to 1 can carry.
    #[error("sigma is {0}, wanted a number from 0.0001 to 2, in pixels scaled to [0, 1]{hint}", hint = in_grey_levels(*.0))]
    Sigma(f64),
    /// A failure probability lies strictly between 0 and 1.
    #[error("alpha is {0}, wanted a number between 0 and 1, both excluded")]
    Alpha(f64),
    /// A norm bound must be positive, finite and well inside the range of `f32`.
    #[error("norm bound is {0}, wanted a finite number between 1e-6 and 1e6")]
    NormBound(f64),
    /// A Monte-Carlo mean needs at least one sample and a count that `u32` holds.
    #[error("sample count is {0}, wanted a whole number from 1 to 4294967295")]
    SampleCount(u64),
    /// A radius to be decided must be positive and finite.
    #[error("target radius is {0}, wanted a finite number above 0")]
    TargetRadius(f64),
    /// A Lipschitz constant must be positive, finite and far from the ends of the range of `f64`.
    #[error("Lipschitz constant is {0}, wanted a number from 1e-12 to 1e12")]
    LipschitzConstant(f64),
    /// A bound on a forward error is not negative.
    #[error("forward error is {0}, wanted a finite number that is not negative")]
    ForwardError(f64),
    /// Text that is not a number at all.
    #[error("{parameter} is `{text}`, wanted {wanted}")]
    Text {
        /// Which parameter was being read.
        parameter: &'static str,
        /// What was found.
        text: String,
        /// What would have been accepted.
        wanted: &'static str,
    },
}

/// Noise beyond this drowns every picture whose pixels run from 0 to 1: whoever asks for it counts in grey levels.
const LARGEST_SIGMA: f64 = 2.0;

/// What a noise level that is too large would be if it was meant in grey levels.
fn in_grey_levels(sigma: f64) -> String {
    if sigma > LARGEST_SIGMA && sigma <= 255.0 {
        format!(" (if {sigma} of 255 grey levels was meant, it is {:.3})", sigma / 255.0)
    } else {
        String::new()
    }
}

macro_rules! checked_float {
    ($(#[$doc:meta])* $name:ident, $word:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Checks the value; the error carries it.
            pub fn new(value: f64) -> Result<Self, ParameterError> {
                let accepts: fn(f64) -> bool = $accepts;
                if accepts(value) { Ok(Self(value)) } else { Err(ParameterError::$name(value)) }
            }

            /// The checked value.
            pub fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = ParameterError;

            fn try_from(value: f64) -> Result<Self, ParameterError> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }

        impl FromStr for $name {
            type Err = ParameterError;

            fn from_str(text: &str) -> Result<Self, ParameterError> {
                let value = text.trim().parse().map_err(|_| ParameterError::Text {
                    parameter: $word,
                    text: text.to_owned(),
                    wanted: "a number",
                })?;
                Self::new(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

checked_float!(
    /// Standard deviation `σ` of the smoothing noise `N(0, σ²I)`; pixels live in `[0, 1]`.
    ///
    /// Below `1e-4` the steps of `f32` pixels would be felt in the noise, and radii would no longer be what is proved.
    /// Beyond 2 nothing is left of a picture; 25 means 25 of 255 grey levels, and the error says what that is.
    ///
    /// ```
    /// use retrievalguard::Sigma;
    ///
    /// let error = Sigma::new(25.0).unwrap_err().to_string();
    /// assert!(error.ends_with("(if 25 of 255 grey levels was meant, it is 0.098)"), "{error}");
    /// ```
    Sigma,
    "sigma",
    |value| (1e-4..=LARGEST_SIGMA).contains(&value)
);

checked_float!(
    /// Probability `α` with which a certificate may be wrong.
    Alpha,
    "alpha",
    |value| value > 0.0 && value < 1.0
);

checked_float!(
    /// Largest Euclidean norm `F` of an embedding.
    ///
    /// The range keeps products of embeddings far from the overflow and underflow of `f32`.
    NormBound,
    "norm bound",
    |value| (1e-6..=1e6).contains(&value)
);

checked_float!(
    /// Radius that adaptive sampling is asked to decide.
    TargetRadius,
    "target radius",
    |value| value.is_finite() && value > 0.0
);

checked_float!(
    /// Lipschitz constant `L` of an encoder: `‖h(x) − h(y)‖₂ ≤ L‖x − y‖₂` for all pictures, pixels in `[0, 1]`.
    LipschitzConstant,
    "Lipschitz constant",
    |value| (1e-12..=1e12).contains(&value)
);

checked_float!(
    /// Bound `e` on `‖ĥ − h‖₂`: how far what an encoder computes is from the function that is Lipschitz.
    ForwardError,
    "forward error",
    |value| value.is_finite() && value >= 0.0
);

impl ForwardError {
    /// The encoder computes without rounding.
    pub const NONE: ForwardError = ForwardError(0.0);
}

impl Sigma {
    /// The level at which certificates are computed: the smaller of `σ` and the `f32` number the noise is scaled by.
    ///
    /// Radii grow with `σ`, so this is on the safe side; it differs from [`get`](Self::get) by at most 6e-8 of it.
    pub fn certified(self) -> f64 {
        self.0.min(f64::from(self.0 as f32))
    }
}

impl Alpha {
    /// An equal share of the failure probability, so that `parts` statements hold at once.
    ///
    /// `α/N` for `N` queries makes the guarantee simultaneous instead of per query.
    pub fn share(self, parts: SampleCount) -> Alpha {
        // A share that underflows stays a probability above zero; it certifies next to nothing.
        Alpha((self.0 / f64::from(parts.get())).max(f64::MIN_POSITIVE))
    }
}

impl NormBound {
    /// `F = 1`: encoders whose output is l2-normalised.
    pub const UNIT: NormBound = NormBound(1.0);
}

/// A number of Monte-Carlo samples, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct SampleCount(u32);

impl SampleCount {
    /// Accepts 1 to `u32::MAX`.
    pub fn new(value: u64) -> Result<Self, ParameterError> {
        match u32::try_from(value) {
            Ok(count) if count > 0 => Ok(Self(count)),
            _ => Err(ParameterError::SampleCount(value)),
        }
    }

    /// The checked value.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u64> for SampleCount {
    type Error = ParameterError;

    fn try_from(value: u64) -> Result<Self, ParameterError> {
        Self::new(value)
    }
}

impl From<SampleCount> for u64 {
    fn from(value: SampleCount) -> u64 {
        u64::from(value.0)
    }
}

impl FromStr for SampleCount {
    type Err = ParameterError;

    fn from_str(text: &str) -> Result<Self, ParameterError> {
        let digits: String = text.trim().chars().filter(|&letter| letter != '_' && letter != ',').collect();
        let value = digits.parse().map_err(|_| ParameterError::Text {
            parameter: "sample count",
            text: text.to_owned(),
            wanted: "a whole number from 1 to 4294967295",
        })?;
        Self::new(value)
    }
}

impl fmt::Display for SampleCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Root of all randomness of a run: 128 bits.
///
/// Fixed seeds are for evaluation on inputs that were fixed beforehand. In deployment draw the bytes from the
/// operating system after the picture arrived: an attacker who knows the noise can aim at it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Seed(u128);

impl Seed {
    /// A seed for repeatable evaluation.
    pub const fn new(value: u64) -> Self {
        Self(value as u128)
    }

    /// A seed from 16 bytes, for instance of the operating system's generator.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// All 128 bits.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A secret seed must not reach a log by way of a derived Debug of some larger struct.
        formatter.write_str("Seed(..)")
    }
}

impl From<Seed> for String {
    fn from(seed: Seed) -> String {
        seed.0.to_string()
    }
}

impl TryFrom<String> for Seed {
    type Error = ParameterError;

    fn try_from(text: String) -> Result<Self, ParameterError> {
        text.parse()
    }
}

impl FromStr for Seed {
    type Err = ParameterError;

    fn from_str(text: &str) -> Result<Self, ParameterError> {
        text.trim().parse().map(Self).map_err(|_| ParameterError::Text {
            parameter: "seed",
            text: text.to_owned(),
            wanted: "a whole number from 0 to 2^128 - 1",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NaN compares unequal to itself, so the carried value is compared by bits.
    fn carried(error: &ParameterError) -> u64 {
        match error {
            ParameterError::Sigma(value)
            | ParameterError::Alpha(value)
            | ParameterError::NormBound(value)
            | ParameterError::TargetRadius(value)
            | ParameterError::LipschitzConstant(value)
            | ParameterError::ForwardError(value) => value.to_bits(),
            ParameterError::SampleCount(value) => *value,
            ParameterError::Text { .. } => panic!("not a value"),
        }
    }

    #[test]
    fn refused_values_are_carried_by_the_error() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -1.0] {
            let errors = [
                Sigma::new(value).unwrap_err(),
                Alpha::new(value).unwrap_err(),
                NormBound::new(value).unwrap_err(),
                TargetRadius::new(value).unwrap_err(),
                LipschitzConstant::new(value).unwrap_err(),
            ];
            for error in &errors {
                assert_eq!(carried(error), value.to_bits(), "{error:?}");
            }
            assert!(matches!(errors[0], ParameterError::Sigma(_)));
            assert!(matches!(errors[1], ParameterError::Alpha(_)));
            assert!(matches!(errors[2], ParameterError::NormBound(_)));
            assert!(matches!(errors[3], ParameterError::TargetRadius(_)));
        }
        for value in [f64::NAN, f64::INFINITY, -1e-300] {
            assert_eq!(carried(&ForwardError::new(value).unwrap_err()), value.to_bits());
        }
        assert_eq!(ForwardError::new(0.0), Ok(ForwardError::NONE));
        assert_eq!(Alpha::new(1.0), Err(ParameterError::Alpha(1.0)));
        assert_eq!(SampleCount::new(0), Err(ParameterError::SampleCount(0)));
        assert_eq!(SampleCount::new(1 << 32), Err(ParameterError::SampleCount(1 << 32)));
    }

    #[test]
    fn a_share_of_alpha_never_vanishes() {
        let parts = SampleCount::new(1_000).unwrap();
        assert_eq!(Alpha::new(0.01).unwrap().share(parts).get(), 1e-5);
        assert!(Alpha::new(5e-324).unwrap().share(parts).get() > 0.0);
    }

    #[test]
    fn text_that_is_no_number_is_named_with_what_was_wanted() {
        let error = "much".parse::<Sigma>().unwrap_err();
        assert_eq!(error.to_string(), "sigma is `much`, wanted a number");
        assert_eq!("-3".parse::<Sigma>(), Err(ParameterError::Sigma(-3.0)));
        assert!("1e5".parse::<SampleCount>().is_err());
        assert_eq!("100_000".parse::<SampleCount>().unwrap().get(), 100_000);
        assert!("-1".parse::<Seed>().is_err());
    }

    #[test]
    fn a_sigma_in_grey_levels_is_refused_with_what_it_would_be() {
        assert!(Sigma::new(2.0).is_ok());
        let wanted = "wanted a number from 0.0001 to 2, in pixels scaled to [0, 1]";
        for (sigma, hint) in [
            (2.55, " (if 2.55 of 255 grey levels was meant, it is 0.010)"),
            (63.75, " (if 63.75 of 255 grey levels was meant, it is 0.250)"),
            (1_000.0, ""),
            (-25.0, ""),
        ] {
            let error = Sigma::new(sigma).unwrap_err();
            assert_eq!(error.to_string(), format!("sigma is {sigma}, {wanted}{hint}"));
        }
    }

    #[test]
    fn deserialising_checks_the_range_too() {
        assert!(serde_json::from_str::<Sigma>("0.5").is_ok());
        assert!(serde_json::from_str::<Sigma>("-0.5").is_err());
        assert!(serde_json::from_str::<SampleCount>("0").is_err());
        let seed = Seed::from_bytes([0xff; 16]);
        let text = serde_json::to_string(&seed).unwrap();
        assert_eq!(serde_json::from_str::<Seed>(&text).unwrap(), seed);
    }

    #[test]
    fn a_seed_does_not_print_itself_in_debug_output() {
        assert_eq!(format!("{:?}", Seed::new(42)), "Seed(..)");
    }
}
