//! `half-space-mean`: half-spaces when only the mean of the score is bounded (theory, section 2.2).
//!
//! Needs no distribution, so it says how much of the gain of `half-space` comes from replacing balls by half-spaces and
//! how much from the distribution. Negatives that look dangerous on the pilot get a betting bound on their mean score,
//! the others an empirical Bernstein bound from the covariance of the sample; each negative has one bound, fixed on
//! the pilot, at the full level.

use super::betting::{BETS, mean_lower_bound, plan_bets};
use super::domain::{Domain, ScoreRange};
use super::empirical_distribution::EmpiricalDistribution;
use super::projection::scores;
use super::separation::{HalfSpace, Separation, WEIGHT_UNIT, separate};
use super::{
    CertificateError, CertificateName, Certifier, Explanation, Outcome, Radius, SampledQuery, Verdict,
    VisibleRows, squared_distance,
};
use crate::gallery::{Gallery, Relevance};
use crate::normal::{self, Probability};
use crate::product::product;
use crate::{Components, NormBound, Samples, Sigma};

/// Positives that are tried against each negative.
const CANDIDATES: usize = 4;
/// Negatives that get the betting bound.
const DANGEROUS: usize = 32;
/// Allowance for the rounding of a mean of `samples` scores, relative to `F`: sums of 256, and of those.
fn rounding(samples: u32, dimension: usize) -> f64 {
    8.0 * f64::EPSILON * (300.0 + f64::from(samples) / 256.0 + dimension as f64)
}

/// Radius when the score has mean `mean` and the negative wins at `offset`.
///
/// ```text
/// r = σ [ Φ⁻¹((t+F)/2F) − Φ⁻¹((s+F)/2F) ]
/// ```
///
/// Increasing in `mean`, decreasing in `offset`; negative if the mean is below the offset.
///
/// ```
/// use retrievalguard::certificate::half_space_mean_radius;
/// use retrievalguard::{NormBound, Sigma};
///
/// // P(S = 1) = Φ(1) and S = ±1: the mean reaches zero after one σ, and the formula is exact there.
/// let radius = half_space_mean_radius(0.682_689_492, 0.0, Sigma::new(0.5)?, NormBound::UNIT);
/// assert!((radius - 0.5).abs() < 1e-6);
/// # Ok::<(), retrievalguard::ParameterError>(())
/// ```
pub fn half_space_mean_radius(mean: f64, offset: f64, sigma: Sigma, norm_bound: NormBound) -> f64 {
    radius_in(mean, offset, sigma, ScoreRange::symmetric(norm_bound.get()))
}

/// The normal score of where a value lies within its range.
fn normal_score(value: f64, range: ScoreRange) -> f64 {
    let above = ((value - range.lower) / range.width()).clamp(0.0, 1.0);
    let below = ((range.upper - value) / range.width()).clamp(0.0, 1.0);
    normal::quantile(Probability::from_parts(above, below))
}

fn radius_in(mean: f64, offset: f64, sigma: Sigma, range: ScoreRange) -> f64 {
    let score = |value| normal_score(value, range);
    let radius = sigma.certified() * (score(mean) - score(offset));
    // Both scores infinite: nothing can be shown.
    if radius.is_nan() { f64::NEG_INFINITY } else { radius }
}

/// The mean at which [`radius_in`] is a little above `radius`; the whole range for an infinite one.
fn mean_for(radius: f64, offset: f64, sigma: Sigma, range: ScoreRange) -> f64 {
    let score = normal_score(offset, range);
    let tail = normal::distribution(-(score + radius.max(0.0) / sigma.certified()));
    let (middle, half) = (f64::midpoint(range.lower, range.upper), range.width() / 2.0);
    (middle + half * (1.0 - 2.0 * tail) + 1e-6 * half).min(range.upper)
}

/// One negative with the positive that the pilot set against it.
struct Pairing {
    negative: usize,
    positive: usize,
    /// Radius in population if the pilot's mean were the truth.
    promise: f64,
}

/// In which half-space the positive of a pairing is nearer than its negative.
fn face(gallery: &Gallery, pairing: &Pairing, domain: &Domain) -> Separation {
    let positive = [(gallery.vector(pairing.positive), WEIGHT_UNIT)];
    separate(&positive, gallery.vector(pairing.negative), domain)
}

impl Certifier<'_> {
    /// The mean-only certificate for Recall@1.
    pub(super) fn half_space_mean(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<Outcome, CertificateError> {
        let gallery = self.memory("half-space-mean")?;
        let visible = self.check_and_split(query, relevance)?;
        let samples = &query.certifying;
        let domain = Domain::of(samples);
        let range = domain.range;
        let mean = samples.mean();
        let mut explain = Explanation::default();
        explain
            .add("samples n", samples.count(), "theory 2.2")
            .add("pilot samples", query.pilot.count(), "theory 0, pilot")
            .add("norm bound F", samples.norm_bound().get(), "theory 0")
            .add("sigma", self.sigma.get(), "theory 0")
            .add("alpha", self.alpha.get(), "theory 2.5");
        if samples.components() == Components::NonNegative {
            explain.add("components", "clamped", "theory 12.1");
        }
        let name = CertificateName::HalfSpaceMean;
        let Some(before) = visible.negatives_before_positives(gallery, &mean) else {
            return Ok(Outcome { name, verdict: Verdict::Misretrieved, samples: samples.count(), explain });
        };
        let pairings = self.pair(gallery, &visible, &query.pilot, &domain);
        let (dangerous, others) = pairings.split_at(DANGEROUS.min(pairings.len()));
        let mut weakest: Option<(f64, &Pairing, f64, f64, &'static str)> = None;
        let mut note = |radius: f64, pairing, mean_lower, offset, bound| {
            if weakest.as_ref().is_none_or(|other| radius < other.0) {
                weakest = Some((radius, pairing, mean_lower, offset, bound));
            }
            weakest.as_ref().map_or(f64::INFINITY, |other| other.0)
        };
        let mut smallest = f64::INFINITY;
        for pairing in dangerous {
            smallest = match face(gallery, pairing, &domain) {
                Separation::Always => note(f64::INFINITY, pairing, range, -range, "none needed"),
                Separation::Never => note(f64::NEG_INFINITY, pairing, -range, range, "none possible"),
                Separation::Open(half_space) => {
                    // A mean that gives as much as another negative has already is enough.
                    let most = mean_for(smallest, half_space.offset, self.sigma, half_space.scores);
                    let lower = self.bet_on_mean(&half_space, query, range, most);
                    let radius = radius_in(lower, half_space.offset, self.sigma, half_space.scores);
                    note(radius, pairing, lower, half_space.offset, "betting")
                }
            };
        }
        if !others.is_empty() {
            let moments = Moments::new(samples, &mean);
            for pairing in others {
                smallest = match face(gallery, pairing, &domain) {
                    Separation::Always => smallest,
                    Separation::Never => note(f64::NEG_INFINITY, pairing, -range, range, "none possible"),
                    Separation::Open(half_space) => {
                        let lower = moments.mean_lower_bound(&half_space, self.alpha.get(), range);
                        let radius = radius_in(lower, half_space.offset, self.sigma, half_space.scores);
                        note(radius, pairing, lower, half_space.offset, "empirical Bernstein")
                    }
                };
            }
        }
        if let Some((_, pairing, lower, offset, bound)) = weakest {
            explain
                .add("deciding negative row", pairing.negative, "theory 2.4")
                .add("positive row", pairing.positive, "theory 2.1")
                .add("bound on the mean", bound, "theory 2.2")
                .add("threshold s", offset, "theory 2.1")
                .add("lower mean score", lower, "theory 2.2");
        }
        let radius = if smallest == f64::INFINITY {
            Radius::Unbounded
        } else {
            Radius::Finite(smallest * (1.0 - 1e-12))
        };
        let verdict = Verdict::from_radius(before == 0, Some(radius));
        explain.conclude(verdict, "theory 2.2, 2.5");
        Ok(Outcome { name, verdict, samples: samples.count(), explain })
    }

    /// The best positive for each negative on the pilot, most dangerous negative first.
    fn pair(
        &self,
        gallery: &Gallery,
        visible: &VisibleRows,
        pilot: &Samples,
        domain: &Domain,
    ) -> Vec<Pairing> {
        let mean = pilot.mean();
        // Directions of all pairs would take long; the whole ball is good enough to rank by.
        let range = ScoreRange::symmetric(domain.range);
        let positives = visible.nearest_positives(gallery, &mean, CANDIDATES);
        let mut pairings: Vec<Pairing> = visible
            .negatives
            .iter()
            .filter_map(|&negative| {
                let vector = gallery.vector(negative);
                let distance = squared_distance(&mean, vector);
                positives
                    .iter()
                    .map(|&(positive_distance, positive)| {
                        let gap: f64 = vector
                            .iter()
                            .zip(gallery.vector(positive))
                            .map(|(&left, &right)| (f64::from(left) - f64::from(right)).powi(2))
                            .sum::<f64>()
                            .sqrt()
                            .max(1e-12);
                        let norms = gallery.squared_norm(positive) - gallery.squared_norm(negative);
                        let offset = norms / (2.0 * gap);
                        let score = offset + (distance - positive_distance) / (2.0 * gap);
                        Pairing { negative, positive, promise: radius_in(score, offset, self.sigma, range) }
                    })
                    .reduce(|left, right| if right.promise > left.promise { right } else { left })
            })
            .collect();
        pairings.sort_by(|left, right| left.promise.total_cmp(&right.promise));
        pairings
    }

    /// Bets on the mean score, planned for where the bound is expected to end.
    fn mean_bets(&self, empirical: &EmpiricalDistribution, samples: u32, range: ScoreRange) -> [f64; BETS] {
        let points = empirical.points();
        // The mean of the points themselves: beside the width of many samples, what they leave out is not small.
        let expected: f64 = points.iter().map(|&(score, mass)| mass * (score - range.lower)).sum();
        // Where the bound is expected to end: one standard error times the usual quantile below the mean.
        let variance: f64 =
            points.iter().map(|&(score, mass)| mass * (score - range.lower - expected).powi(2)).sum();
        let width = (2.0 * variance * -self.alpha.get().ln() / f64::from(samples)).sqrt();
        let hurdle = (expected - width).max(0.05 * expected).max(1e-9 * range.size());
        let values: Vec<(f64, f64)> =
            points.iter().map(|&(score, mass)| ((score - range.lower).max(0.0) / hurdle, mass)).collect();
        plan_bets(&values).0
    }

    /// Betting bound on the mean score, its bets planned on the pilot.
    fn bet_on_mean(&self, half_space: &HalfSpace, query: &SampledQuery, range: f64, most: f64) -> f64 {
        let SampledQuery { pilot, certifying: samples } = query;
        let within = half_space.scores;
        let pilot_scores = scores(pilot, range, &half_space.direction);
        let empirical = EmpiricalDistribution::new(pilot_scores, within, pilot.dimension());
        let fractions = self.mean_bets(&empirical, samples.count(), within);
        let scores = scores(samples, range, &half_space.direction);
        let most = (most - within.lower).min(within.width());
        mean_lower_bound(&scores, -within.lower, fractions, self.alpha.get(), most) + within.lower
            - rounding(samples.count(), samples.dimension()) * range
    }
}

/// Mean and covariance of a sample, for bounds on many directions at once.
struct Moments {
    mean: Vec<f64>,
    covariance: Vec<f32>,
    count: f64,
}

impl Moments {
    fn new(samples: &Samples, mean: &[f64]) -> Self {
        let dimension = samples.dimension();
        // The product wants the long side last: transpose the centred sample block by block.
        let mut covariance = vec![0.0_f64; dimension * dimension];
        let mut part = vec![0.0_f32; dimension * dimension];
        for block in samples.values().chunks(1024 * dimension) {
            let rows = block.len() / dimension;
            let mut transposed = vec![0.0_f32; block.len()];
            for (sample, row) in block.chunks_exact(dimension).enumerate() {
                for (component, (&value, &mean)) in row.iter().zip(mean).enumerate() {
                    transposed[component * rows + sample] = (f64::from(value) - mean) as f32;
                }
            }
            product(&transposed, &transposed, rows, &mut part);
            for (total, &part) in covariance.iter_mut().zip(&part) {
                *total += f64::from(part);
            }
        }
        let count = f64::from(samples.count());
        let covariance = covariance.iter().map(|&total| (total / (count - 1.0).max(1.0)) as f32).collect();
        Self { mean: mean.to_vec(), covariance, count }
    }

    /// Empirical Bernstein bound on the mean score (Maurer and Pontil 2009, Theorem 4), for scores in an interval of length
    /// `w`, `2F` in the ball.
    ///
    /// ```text
    /// E S ≥ mean − sqrt(2 V ln(2/α) / n) − 7w ln(2/α) / (3(n−1))
    /// ```
    ///
    /// `V` is raised by a bound on the `f32` rounding of the covariance.
    fn mean_lower_bound(&self, half_space: &HalfSpace, level: f64, range: f64) -> f64 {
        if self.count < 2.0 {
            return half_space.scores.lower;
        }
        let dimension = self.mean.len();
        let direction = &half_space.direction;
        let variance: f64 = self
            .covariance
            .chunks_exact(dimension)
            .zip(direction)
            .map(|(row, &left)| {
                let inner: f64 =
                    row.iter().zip(direction).map(|(&entry, &right)| f64::from(entry) * right).sum();
                left * inner
            })
            .sum();
        // Blocks of 1024 centred products: entries are off by at most 1026·2⁻²⁴ of the diagonal's size, which is
        // at most (2F)² per sample summed over the trace.
        let blur = 1100.0 * f64::from(f32::EPSILON) * 4.0 * range * range;
        let variance = variance.max(0.0) + blur;
        let mean: f64 = self.mean.iter().zip(direction).map(|(left, right)| left * right).sum();
        let log = (2.0 / level).ln();
        mean - (2.0 * variance * log / self.count).sqrt()
            - 7.0 * half_space.scores.width() * log / (3.0 * (self.count - 1.0))
            - rounding(self.count as u32, dimension) * range
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Excess;
    use crate::gallery::{Gallery, Metric, Positives};

    fn coins(plus: usize, minus: usize) -> Samples {
        let values = [1.0_f32, 0.0].repeat(plus).into_iter().chain([-1.0, 0.0].repeat(minus)).collect();
        Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
    }

    fn along_first() -> HalfSpace {
        HalfSpace { direction: vec![1.0, 0.0], offset: 0.0, scores: ScoreRange::symmetric(1.0) }
    }

    #[test]
    fn the_bernstein_bound_is_its_formula() {
        let samples = coins(900, 100);
        let half_space = along_first();
        let found = Moments::new(&samples, &samples.mean()).mean_lower_bound(&half_space, 0.05, 1.0);
        // Mean 0.8, unbiased variance 0.36·1000/999.
        let log = 40_f64.ln();
        let expected =
            0.8 - (2.0 * 0.36 * 1_000.0 / 999.0 * log / 1_000.0).sqrt() - 14.0 * log / (3.0 * 999.0);
        assert!(found <= expected && expected - found < 1e-3, "{found} {expected}");
    }

    #[test]
    fn the_mean_decides_exactly_when_the_score_has_only_the_ends_of_its_range() {
        let sigma = Sigma::new(0.5).unwrap();
        for (lower, upper) in [(-1.0, 1.0), (-0.7, 0.7), (-0.2, 0.9), (0.0, 1.0)] {
            // P(S = upper) = Φ(1), and after one σ it is Φ(0).
            let range = ScoreRange { lower, upper };
            let mean = lower + (upper - lower) * normal::distribution(1.0);
            let offset = f64::midpoint(lower, upper);
            let radius = radius_in(mean, offset, sigma, range);
            assert!((radius - 0.5).abs() < 1e-12, "{range:?}: {radius}");
            let most = mean_for(0.5, offset, sigma, range);
            assert!(most >= mean && most - mean < 2e-6, "{range:?}: {most} {mean}");
            assert_eq!(mean_for(f64::INFINITY, offset, sigma, range), upper);
        }
    }

    #[test]
    fn the_betting_bound_is_taken_at_alpha_with_bets_from_the_pilot() {
        let gallery = Gallery::new(
            vec![1.0, 0.0, -1.0, 0.0],
            2,
            vec!["a".into(), "b".into()],
            &["a", "b"],
            Metric::Euclidean,
        )
        .unwrap();
        let certifier = Certifier::new(&gallery, Sigma::new(0.5).unwrap(), crate::Alpha::new(0.03).unwrap());
        let query = SampledQuery { pilot: coins(80, 20), certifying: coins(850, 150) };
        let outcome = certifier.half_space_mean(&query, &Relevance::new(Positives::Item(0), vec![])).unwrap();
        let range = Domain::of(&query.pilot).range;
        let within = ScoreRange::symmetric(range);
        let empirical = EmpiricalDistribution::new(scores(&query.pilot, range, &[1.0, 0.0]), within, 2);
        let bets = certifier.mean_bets(&empirical, 1_000, within);
        let values = scores(&query.certifying, range, &[1.0, 0.0]);
        let bound = |level| mean_lower_bound(&values, range, bets, level, 2.0 * range) - range;
        let found = outcome.explain.number("lower mean score").unwrap();
        assert!((found - bound(0.03)).abs() < 1e-6, "{found} {}", bound(0.03));
        assert!((found - bound(0.06)).abs() > 1e-3, "the level must be felt");
    }

    #[test]
    fn many_samples_bring_the_betting_bound_close_to_the_mean_at_every_level() {
        let many = coins(85_000, 15_000);
        let range = Domain::of(&many).range;
        let half_space = along_first();
        let gallery =
            Gallery::new(vec![1.0, 0.0], 2, vec!["one".into()], &["one"], Metric::Euclidean).unwrap();
        for plus in 160..180 {
            for level in [0.1, 0.01, 1e-4] {
                let certifier =
                    Certifier::new(&gallery, Sigma::new(1.0).unwrap(), crate::Alpha::new(level).unwrap());
                let query = SampledQuery { pilot: coins(plus, 200 - plus), certifying: many.clone() };
                let lower = certifier.bet_on_mean(&half_space, &query, range, range);
                // The mean is 0.7 and the variance 0.51.
                let width = (2.0 * 0.51 * -level.ln() / 100_000.0).sqrt();
                assert!(lower < 0.7, "{plus} at {level}: {lower}");
                assert!(lower > 0.7 - 1.6 * width, "{plus} at {level}: {lower}, width {width}");
            }
        }
    }
}
