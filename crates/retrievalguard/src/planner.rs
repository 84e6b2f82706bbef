//! What could be certified at all, before any sample is drawn.
//!
//! With `n` samples nothing can be told apart from a distribution that puts a mass of about `ln(1/α)/n` anywhere, so every
//! certificate has a ceiling that depends on `n`, `α` and `σ` alone. Nobody should wait hours to find it.
//!
//! ```
//! use retrievalguard::certificate::CertificateName;
//! use retrievalguard::planner::Ceiling;
//! use retrievalguard::{Alpha, NormBound, SampleCount, Sigma};
//!
//! let ceiling = Ceiling::new(Sigma::new(0.25)?, Alpha::new(0.01)?, NormBound::UNIT, 128);
//! let hundred = SampleCount::new(100)?;
//! // The paper's certificate cannot say anything with a hundred samples, whatever the query.
//! assert_eq!(ceiling.largest_radius(CertificateName::Paper, hundred), None);
//! assert!(ceiling.largest_radius(CertificateName::HalfSpace, hundred).is_some_and(|radius| radius > 0.4));
//! # Ok::<(), retrievalguard::ParameterError>(())
//! ```

use crate::certificate::{
    CertificateName, certified_radius, certified_radius_linear, concentration, half_space_mean_radius,
    matrix_concentration,
};
use crate::normal::{self, Probability};
use crate::{Alpha, NormBound, SampleCount, Sigma};

/// The largest radii that a query could get against items in the `F`-ball that some query could retrieve.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    sigma: Sigma,
    alpha: Alpha,
    norm_bound: NormBound,
    dimension: usize,
    offset: f64,
    gallery_samples: Option<SampleCount>,
}

impl Ceiling {
    /// Ceilings for a gallery whose vectors have equal norms, so that every half-space passes through the origin.
    pub fn new(sigma: Sigma, alpha: Alpha, norm_bound: NormBound, dimension: usize) -> Self {
        Self { sigma, alpha, norm_bound, dimension, offset: 0.0, gallery_samples: None }
    }

    /// Sets the threshold `s` of the half-space in question (theory, section 2.1); zero for equal norms.
    #[must_use]
    pub fn offset(self, offset: f64) -> Self {
        Self { offset, ..self }
    }

    /// Sets the samples behind each gallery vector, which `paper-repaired` needs.
    #[must_use]
    pub fn gallery_samples(self, samples: SampleCount) -> Self {
        Self { gallery_samples: Some(samples), ..self }
    }

    /// The radius of a query whose every sample is as good as can be; `None` if even that query would abstain.
    ///
    /// ```text
    /// paper, paper-*:              the formula at the largest margin, d = 2F
    /// half-space, half-space-mean: σ [Φ⁻¹(α^(1/n)) − Φ⁻¹((s+F)/2F)]
    /// vote, pairwise:              σ Φ⁻¹(α^(1/n))
    /// ```
    ///
    /// `α^(1/n)` is the lower bound when all `n` samples agree and no level is shared. Both forms of `half-space` and
    /// the betting bound on the mean end there: `n` samples at `S = F` multiply the wealth by at most
    /// `(2F/(m+F))ⁿ`, and a tangent of `w_ρ` at `α^(1/n)` touches it exactly there.
    pub fn largest_radius(&self, name: CertificateName, samples: SampleCount) -> Option<f64> {
        let (n, bound, alpha) = (samples.get(), self.norm_bound, self.alpha.get());
        let from_margin = |error: f64, radius: fn(f64, Sigma, NormBound) -> f64| {
            let margin = 2.0 * bound.get() - error;
            (margin > 0.0).then(|| radius(margin, self.sigma, bound))
        };
        let printed = || 4.0 * matrix_concentration(n, self.dimension, alpha / 4.0, bound);
        let agreed = Probability::from_complement(-(alpha.ln() / f64::from(n)).exp_m1()).ok()?;
        let positive = |radius: f64| (radius > 0.0).then_some(radius);
        match name {
            CertificateName::Paper => from_margin(printed(), certified_radius),
            CertificateName::PaperLinear => from_margin(printed(), certified_radius_linear),
            CertificateName::PaperRepaired => {
                // One positive is the best case for the union.
                let level = alpha / 3.0;
                let gallery = self.gallery_samples.unwrap_or(samples).get();
                let error = concentration(n, self.dimension, level, bound)
                    + concentration(gallery, self.dimension, level, bound);
                from_margin(2.0 * error, certified_radius)
            }
            CertificateName::PaperFrozen => {
                from_margin(2.0 * concentration(n, self.dimension, alpha, bound), certified_radius)
            }
            CertificateName::HalfSpaceMean | CertificateName::HalfSpace => {
                let mean = bound.get() * (2.0 * agreed.get() - 1.0);
                positive(half_space_mean_radius(mean, self.offset, self.sigma, bound))
            }
            CertificateName::Vote | CertificateName::Pairwise => {
                positive(self.sigma.get() * normal::quantile(agreed))
            }
            // They have no samples.
            CertificateName::Lipschitz | CertificateName::LipschitzMargin => None,
        }
    }

    /// The fewest samples with which `radius` is within reach, or `None` if no number of samples suffices.
    pub fn samples_needed(&self, name: CertificateName, radius: f64) -> Option<SampleCount> {
        let reaches = |count: u32| {
            let samples = SampleCount::new(u64::from(count)).ok()?;
            self.largest_radius(name, samples).filter(|&reached| reached >= radius).map(|_| samples)
        };
        let mut best = reaches(u32::MAX)?;
        let mut low = 0;
        while best.get() - low > 1 {
            let middle = low + (best.get() - low) / 2;
            match reaches(middle) {
                Some(samples) => best = samples,
                None => low = middle,
            }
        }
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling() -> Ceiling {
        Ceiling::new(Sigma::new(0.5).unwrap(), Alpha::new(0.01).unwrap(), NormBound::UNIT, 128)
    }

    fn count(value: u64) -> SampleCount {
        SampleCount::new(value).unwrap()
    }

    #[test]
    fn ceilings_grow_with_the_samples() {
        for name in CertificateName::SMOOTHED {
            let radii: Vec<f64> = [10, 100, 1_000, 10_000, 100_000, 10_000_000]
                .map(|samples| ceiling().largest_radius(name, count(samples)).unwrap_or(0.0))
                .to_vec();
            assert!(radii.is_sorted(), "{name}: {radii:?}");
            assert!(radii[5] > 0.0, "{name}");
        }
    }

    #[test]
    fn the_paper_never_reaches_beyond_its_constant() {
        let radius = ceiling().largest_radius(CertificateName::Paper, count(1 << 31)).unwrap();
        assert!(radius < 1.349 * 0.5 && radius > 1.34 * 0.5, "{radius}");
        assert_eq!(ceiling().samples_needed(CertificateName::Paper, 0.7), None);
    }

    #[test]
    fn unanimous_samples_give_the_closed_form() {
        // 0.01^(1/1000) = 0.995405…, whose normal score is 2.6047…
        let radius = ceiling().largest_radius(CertificateName::HalfSpace, count(1_000)).unwrap();
        let expected = 0.5 * normal::quantile(Probability::new(0.01_f64.powf(1e-3)).unwrap());
        assert!((radius - expected).abs() < 1e-9, "{radius} {expected}");
    }

    #[test]
    fn the_samples_needed_are_the_fewest() {
        for name in [CertificateName::HalfSpace, CertificateName::Vote, CertificateName::PaperFrozen] {
            let needed = ceiling().samples_needed(name, 0.4).unwrap();
            assert!(ceiling().largest_radius(name, needed).unwrap() >= 0.4, "{name}");
            let fewer = count(u64::from(needed.get()) - 1);
            assert!(ceiling().largest_radius(name, fewer).is_none_or(|radius| radius < 0.4), "{name}");
        }
    }
}
