//! The paper's certificate: as printed, linear, repaired, and for a frozen gallery (theory, section 1).

use super::{
    CertificateError, CertificateName, Certifier, Explanation, Outcome, Radius, SampledQuery, Verdict,
};
use crate::gallery::{Metric, Relevance, positive_rows};
use crate::{NormBound, SampleCount, Sigma};

/// How far two smoothed embeddings can be apart when the pictures are `distance` apart.
///
/// ```text
/// ‖g(x) − g(y)‖ ≤ 2F (Φ(‖x−y‖/2σ) − Φ(−‖x−y‖/2σ))
/// ```
///
/// Paper: Lemma 3.3, Eq. (1). Met with equality by `h(x) = F·sign(x)` at mirrored points.
///
/// ```
/// use retrievalguard::certificate::{lipschitz_bound, lipschitz_bound_linear};
/// use retrievalguard::{NormBound, Sigma};
///
/// let sigma = Sigma::new(0.1)?;
/// let exact = lipschitz_bound(0.3, sigma, NormBound::UNIT);
/// assert!(exact < 2.0 && exact < lipschitz_bound_linear(0.3, sigma, NormBound::UNIT));
/// # Ok::<(), retrievalguard::ParameterError>(())
/// ```
pub fn lipschitz_bound(distance: f64, sigma: Sigma, norm_bound: NormBound) -> f64 {
    2.0 * norm_bound.get() * libm::erf(distance / (2.0 * std::f64::consts::SQRT_2 * sigma.get()))
}

/// The linear bound on the same quantity.
///
/// ```text
/// ‖g(x) − g(y)‖ ≤ F sqrt(2/(πσ²)) ‖x−y‖
/// ```
///
/// Paper: Eq. (2). Never below [`lipschitz_bound`].
pub fn lipschitz_bound_linear(distance: f64, sigma: Sigma, norm_bound: NormBound) -> f64 {
    norm_bound.get() * (2.0 / std::f64::consts::PI).sqrt() / sigma.get() * distance
}

/// Radius inside which a retrieval with margin `d = margin` cannot change.
///
/// ```text
/// r = 2σ Φ⁻¹(1/2 + d/8F)
/// ```
///
/// Paper: Theorem 3.5, Eq. (3). Needs `0 < d ≤ 2F`. Increasing in `d`, so a lower bound on `d` gives a lower
/// bound on `r` (Proposition 3.9).
///
/// ```
/// use retrievalguard::certificate::certified_radius;
/// use retrievalguard::{NormBound, Sigma};
///
/// // The largest possible margin certifies 1.349 σ.
/// let radius = certified_radius(2.0, Sigma::new(1.0)?, NormBound::UNIT);
/// assert!((radius - 1.3489795).abs() < 1e-6);
/// # Ok::<(), retrievalguard::ParameterError>(())
/// ```
pub fn certified_radius(margin: f64, sigma: Sigma, norm_bound: NormBound) -> f64 {
    // erf⁻¹ rather than Φ⁻¹: adding 1/2 first would round small margins away.
    let scaled = margin / (4.0 * norm_bound.get());
    2.0 * std::f64::consts::SQRT_2 * sigma.get() * statrs::function::erf::erf_inv(scaled)
}

/// Radius from the linear Lipschitz bound.
///
/// ```text
/// r = σ sqrt(π) / (2 sqrt(2) F) · d
/// ```
///
/// Paper: Eq. (2) and the text after it. Never above [`certified_radius`].
pub fn certified_radius_linear(margin: f64, sigma: Sigma, norm_bound: NormBound) -> f64 {
    sigma.get() * std::f64::consts::PI.sqrt() / (2.0 * std::f64::consts::SQRT_2 * norm_bound.get()) * margin
}

/// Distance between a mean of `samples` bounded vectors and its expectation, by the matrix Chernoff bound.
///
/// ```text
/// ε = sqrt( 8F² ln((k+1)/α) / (3n) )
/// ```
///
/// Paper: Lemma 3.6. Departure: none; but its constant is safe only for `ε ≤ F/2`, which [`concentration`] checks.
pub fn matrix_concentration(samples: u32, dimension: usize, level: f64, norm_bound: NormBound) -> f64 {
    let log = ((dimension as f64 + 1.0) / level).ln();
    norm_bound.get() * (8.0 * log / (3.0 * f64::from(samples))).sqrt()
}

/// Distance between a mean of `samples` bounded vectors and its expectation, free of the dimension.
///
/// ```text
/// ε = F/sqrt(n) + F sqrt(2 ln(1/α) / n)
/// ```
///
/// `E‖ĝ−g‖ ≤ F/√n` by Jensen, and one sample moves `‖ĝ−g‖` by at most `2F/n` (McDiarmid).
pub fn mean_shift_bound(samples: u32, level: f64, norm_bound: NormBound) -> f64 {
    norm_bound.get() * (1.0 + (2.0 * (1.0 / level).ln()).sqrt()) / f64::from(samples).sqrt()
}

/// The smaller of the two bounds; both are free of data, so the choice costs nothing.
///
/// ```
/// use retrievalguard::certificate::{concentration, matrix_concentration, mean_shift_bound};
/// use retrievalguard::NormBound;
///
/// let bound = concentration(10_000, 128, 0.01, NormBound::UNIT);
/// assert!(bound <= mean_shift_bound(10_000, 0.01, NormBound::UNIT));
/// assert!(bound <= matrix_concentration(10_000, 128, 0.01, NormBound::UNIT));
/// ```
///
/// Paper: Lemma 3.6. Departure: the matrix bound is used only where its constant 3/8 is safe, `ε ≤ F/2`.
pub fn concentration(samples: u32, dimension: usize, level: f64, norm_bound: NormBound) -> f64 {
    let free = mean_shift_bound(samples, level, norm_bound);
    let matrix = matrix_concentration(samples, dimension, level, norm_bound);
    if matrix <= norm_bound.get() / 2.0 { free.min(matrix) } else { free }
}

/// The statements of section 1 from which a radius can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    Printed,
    Linear,
    Repaired,
    Frozen,
}

impl Statement {
    fn name(self) -> CertificateName {
        match self {
            Statement::Printed => CertificateName::Paper,
            Statement::Linear => CertificateName::PaperLinear,
            Statement::Repaired => CertificateName::PaperRepaired,
            Statement::Frozen => CertificateName::PaperFrozen,
        }
    }
}

/// Relative allowance for the rounding of a radius.
const ROUNDING: f64 = 1e-12;

impl Certifier<'_> {
    /// The four certificates of section 1; they differ in what is subtracted from the margin, and in the last line.
    ///
    /// Paper: Definition 3.1, Lemma 3.2, Lemma 3.8, Proposition 3.9, Algorithm 1.
    /// Departure: Algorithm 1 rejects at `d_low < 0`; the proposition needs `d_low > 0`, and so do we.
    pub(super) fn paper(
        &self,
        statement: Statement,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<Outcome, CertificateError> {
        let name = statement.name();
        self.check(query, relevance)?;
        let positives = || {
            positive_rows(
                self.gallery.labels(),
                self.gallery.views(),
                relevance.positives,
                &relevance.excluded,
            )
            .len()
        };
        let samples = &query.certifying;
        let mut explain = Explanation::default();
        let (n, bound) = (samples.count(), samples.norm_bound());
        explain
            .add("samples n", n, "Algorithm 1")
            .add("dimension k", samples.dimension(), "Lemma 3.6")
            .add("sigma", self.sigma.get(), "Lemma 3.3")
            .add("norm bound F", bound.get(), "Lemma 3.3");
        let nearest = self.gallery.nearest_positive_and_negative(&samples.mean(), |_| relevance)?.remove(0);
        let (Some(positive), Some(negative)) = (nearest.positive, nearest.negative) else {
            explain.add("positives", positives(), "Definition 3.1");
            return Ok(Outcome { name, verdict: Verdict::Misretrieved, samples: n, explain });
        };
        let margin = negative.squared_distance.sqrt() - positive.squared_distance.sqrt();
        explain
            .add("nearest positive row", positive.row, "Definition 3.1")
            .add("nearest negative row", negative.row, "Definition 3.1")
            .add("distance to positive", positive.squared_distance.sqrt(), "Definition 3.1")
            .add("distance to negative", negative.squared_distance.sqrt(), "Definition 3.1")
            .add("margin d", margin, "Definition 3.1");

        let (alpha, dimension) = (self.alpha.get(), samples.dimension());
        let error = match statement {
            Statement::Repaired => {
                // Scaling a mean to length one scales its error by an unknown factor.
                let known = self.gallery_samples.filter(|_| self.gallery.metric() == Metric::Euclidean);
                let Some(gallery_samples) = known.map(SampleCount::get) else {
                    // Without the gallery's own error nothing can be subtracted, so nothing is shown.
                    explain.add("error of a gallery item", "unknown", "theory 1, paper-repaired");
                    let verdict = Verdict::from_radius(margin > 0.0, None);
                    return Ok(Outcome { name, verdict, samples: n, explain });
                };
                // The nearest positive is found on the sample, so every positive and the nearest negative may fail.
                let level = alpha / (positives() as f64 + 2.0);
                let query_error = concentration(n, dimension, level, bound);
                // Stored vectors are means rounded to f32.
                let gallery_error = concentration(gallery_samples, dimension, level, bound)
                    + bound.get() * f64::from(f32::EPSILON);
                explain
                    .add("level", level, "theory 1, paper-repaired")
                    .add("error of the query", query_error, "theory 1, the smaller of two bounds")
                    .add("samples per gallery item", gallery_samples, "theory 1, paper-repaired")
                    .add("error of a gallery item", gallery_error, "theory 1, the smaller of two bounds");
                2.0 * query_error + 2.0 * gallery_error
            }
            Statement::Frozen => {
                let error = concentration(n, dimension, alpha, bound);
                explain.add("level", alpha, "theory 0, frozen gallery").add(
                    "error of the query",
                    error,
                    "Lemma 3.6",
                );
                2.0 * error
            }
            Statement::Printed | Statement::Linear => {
                let error = matrix_concentration(n, dimension, alpha / 4.0, bound);
                explain.add("level", alpha / 4.0, "Lemma 3.8").add("error", error, "Lemma 3.6");
                4.0 * error
            }
        };
        // The mean is a sum of n/256 sums of 256; each distance is the root of a sum of k squares.
        let operations = 300.0 + f64::from(n) / 256.0 + dimension as f64;
        let scale = positive.squared_distance.sqrt() + negative.squared_distance.sqrt() + 2.0 * bound.get();
        let lower = margin - error - operations * f64::EPSILON * scale;
        explain.add("lower margin", lower, "Lemma 3.8");
        let radius = (lower > 0.0).then(|| {
            // Gallery vectors outside the F-ball could push the margin past 2F, where the formula has no value.
            let capped = lower.min(2.0 * bound.get());
            let (radius, source) = match statement {
                Statement::Linear => (certified_radius_linear(capped, self.sigma, bound), "Eq. (2)"),
                Statement::Printed | Statement::Repaired | Statement::Frozen => {
                    (certified_radius(capped, self.sigma, bound), "Theorem 3.5, Proposition 3.9")
                }
            };
            let radius = radius * (1.0 - ROUNDING) * (self.sigma.certified() / self.sigma.get());
            explain.add("radius", radius, source);
            Radius::Finite(radius)
        });
        let verdict = Verdict::from_radius(margin > 0.0, radius);
        Ok(Outcome { name, verdict, samples: n, explain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concentration_follows_its_formulas() {
        // 8 ln(129/0.0025)/(3·100,000), and (1 + √(2 ln 100))/√100,000.
        let matrix = matrix_concentration(100_000, 128, 0.0025, NormBound::UNIT);
        assert!((matrix - (8.0 * 51_600_f64.ln() / 300_000.0).sqrt()).abs() < 1e-15);
        let free = mean_shift_bound(100_000, 0.01, NormBound::UNIT);
        assert!((free - (1.0 + 9.210_340_371_976_184_f64.sqrt()) / 100_000_f64.sqrt()).abs() < 1e-15);
        let doubled = NormBound::new(2.0).unwrap();
        assert_eq!(mean_shift_bound(100_000, 0.01, doubled), 2.0 * free);
        assert_eq!(concentration(100_000, 128, 0.01, NormBound::UNIT), free);
        // Few samples: the matrix bound is not trusted beyond F/2.
        assert_eq!(concentration(4, 1, 0.5, NormBound::UNIT), mean_shift_bound(4, 0.5, NormBound::UNIT));
    }

    #[test]
    fn means_of_bounded_vectors_stay_within_both_bounds_often_enough() {
        // Signs in one dimension are the widest bounded vectors; n = 50 of them, 4,000 times.
        let mut state = 7_u64;
        let (mut outside_free, mut outside_matrix) = (0, 0);
        for _ in 0..4_000 {
            let mut sum = 0.0;
            for _ in 0..50 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                sum += if state >> 63 == 0 { 1.0 } else { -1.0 };
            }
            let distance = f64::abs(sum / 50.0);
            outside_free += u32::from(distance > mean_shift_bound(50, 0.1, NormBound::UNIT));
            outside_matrix += u32::from(distance > matrix_concentration(50, 1, 0.1, NormBound::UNIT));
        }
        assert!(outside_free <= 400 && outside_matrix <= 400, "{outside_free} {outside_matrix}");
    }
}
