//! What certifying with many samples would give, guessed from a few noisy copies.
//!
//! A forecast proves nothing and needs no `α` of its own: it is for choosing `σ`, a retriever and a number of samples before
//! anything is certified, on noise that no certificate looks at.
//!
//! ```
//! use retrievalguard::certificate::{Certifier, Forecaster, Retriever};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Sigma};
//!
//! let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
//! let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
//! let copies = Samples::new([0.9, 0.1].repeat(100), 2, NormBound::UNIT, Excess::Refuse)?;
//! let relevance = Relevance::new(Positives::Item(0), vec![]);
//! let forecast = Forecaster::new(certifier, SampleCount::new(1_000)?)
//!     .forecast(Retriever::Pairwise, &copies, &relevance)?;
//! // All of a hundred copies agree: a radius of σ is nearly certain, one of 3 σ is out of reach of 1,000 samples.
//! assert!(forecast.certified_at(0.25) > 0.99 && forecast.certified_at(0.75) == 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::vote::Ballot;
use super::{CertificateError, CertificateName, Certifier, Radius, Retriever, SampledQuery};
use crate::binomial;
use crate::gallery::{Relevance, RowRelevance};
use crate::normal;
use crate::{Excess, SampleCount, Samples};

/// What is expected of one query.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Whether the retriever finds the right answer, judged by the copies.
    pub right: bool,
    /// Share of the copies that speak for the answer; none for the mean, which has no such share.
    pub rate: Option<f64>,
    /// Radii that may be certified with their probabilities; what is missing to 1 is certified nowhere.
    radii: Vec<(f64, f64)>,
}

impl Forecast {
    /// Probability that a radius above this one will be certified.
    pub fn certified_at(&self, radius: f64) -> f64 {
        self.radii.iter().filter(|(own, _)| *own > radius).fold(0.0, |sum, (_, weight)| sum + weight)
    }

    /// The radius that is expected, zero where nothing is certified.
    pub fn average_radius(&self) -> f64 {
        self.radii.iter().fold(0.0, |sum, (radius, weight)| sum + radius * weight)
    }
}

/// Forecasts certificates from a fixed number of samples.
#[derive(Clone, Debug)]
pub struct Forecaster<'a> {
    certifier: Certifier<'a>,
    planned: SampleCount,
    /// `Φ⁻¹` of the lower bound for each number of successes, at `α` and at `α/2`.
    lower: Vec<f64>,
    lower_half: Vec<f64>,
    /// `Φ⁻¹` of the upper bound at `α/2`.
    upper_half: Vec<f64>,
}

impl<'a> Forecaster<'a> {
    /// Forecasts what this certifier would say of `planned` samples.
    pub fn new(certifier: Certifier<'a>, planned: SampleCount) -> Self {
        let (trials, alpha) = (planned.get(), certifier.alpha.get());
        let scores = |bound: &dyn Fn(u32) -> Result<normal::Probability, binomial::BinomialError>| {
            (0..=trials).map(|count| bound(count).map_or(f64::NAN, normal::quantile)).collect()
        };
        Self {
            certifier,
            planned,
            lower: scores(&|count| binomial::lower_bound(count, trials, alpha)),
            lower_half: scores(&|count| binomial::lower_bound(count, trials, alpha / 2.0)),
            upper_half: scores(&|count| binomial::upper_bound(count, trials, alpha / 2.0)),
        }
    }

    /// What is expected of a query under a retriever.
    pub fn forecast(
        &self,
        retriever: Retriever,
        copies: &Samples,
        relevance: &Relevance,
    ) -> Result<Forecast, CertificateError> {
        match retriever {
            Retriever::Mean => self.mean(copies, relevance),
            Retriever::Vote => Ok(self.vote(&self.certifier.ballot(copies, relevance)?)),
            Retriever::Pairwise => {
                let contest = self.certifier.contest(copies, relevance)?;
                let weights = beta_binomial(contest.wins, contest.total, self.planned.get());
                let radius = |wins: usize| self.lower[wins];
                Ok(Forecast {
                    right: 2 * contest.wins > contest.total,
                    rate: Some(share(contest.wins, contest.total)),
                    radii: self.radii(&weights, radius),
                })
            }
            Retriever::Plain => Err(CertificateError::NotFromSamples(retriever.certificate())),
        }
    }

    /// The vote of many samples, by the better of its two rules on the expected counts, as a pilot would choose it.
    fn vote(&self, ballot: &Ballot) -> Forecast {
        let planned = self.planned.get();
        let weights = beta_binomial(ballot.right, ballot.total, planned);
        // What the answer does not get goes to the strongest rival in the same proportion as among the copies.
        let proportion = share(ballot.rival, ballot.total - ballot.right);
        let rival = |right: usize| ((f64::from(planned) - right as f64) * proportion).ceil() as usize;
        let majority = |right: usize| self.lower[right];
        let runner_up = |right: usize| (self.lower_half[right] - self.upper_half[rival(right)]) / 2.0;
        let expected = (share(ballot.right, ballot.total) * f64::from(planned)).round() as usize;
        let radii = if runner_up(expected) > majority(expected) {
            self.radii(&weights, runner_up)
        } else {
            self.radii(&weights, majority)
        };
        Forecast { right: ballot.right > ballot.rival, rate: Some(share(ballot.right, ballot.total)), radii }
    }

    /// `half-space` itself, on copies that stand for as many samples as are planned.
    fn mean(&self, copies: &Samples, relevance: &Relevance) -> Result<Forecast, CertificateError> {
        let retrieved = self.certifier.retrieve(copies, &relevance.excluded)?;
        let right = retrieved.is_some_and(|nearest| {
            relevance.of_row(self.certifier.gallery, nearest.row) == RowRelevance::Positive
        });
        let mut radii = Vec::new();
        if right {
            // The same copies choose and prove: nothing that is proved here is believed.
            let query = SampledQuery { pilot: copies.clone(), certifying: repeated(copies, self.planned)? };
            let outcome = self.certifier.certify(CertificateName::HalfSpace, &query, relevance)?;
            radii.extend(outcome.verdict.radius().map(|radius: Radius| (radius.get(), 1.0)));
        }
        Ok(Forecast { right, rate: None, radii })
    }

    /// Radii above zero with their weights.
    fn radii(&self, weights: &[f64], score: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
        let sigma = self.certifier.sigma.certified();
        let found = weights.iter().enumerate().map(|(count, &weight)| (sigma * score(count), weight));
        found.filter(|(radius, weight)| *radius > 0.0 && radius.is_finite() && *weight > 0.0).collect()
    }
}

fn share(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

/// The same rows again and again, up to a number.
fn repeated(samples: &Samples, count: SampleCount) -> Result<Samples, CertificateError> {
    let rows = (0..count.get()).map(|row| samples.row((row % samples.count()) as usize));
    let values = rows.flatten().copied().collect();
    let repeated = Samples::new(values, samples.dimension(), samples.norm_bound(), Excess::Project)?;
    Ok(if samples.components() == repeated.components() { repeated } else { repeated.clamped() })
}

/// How likely each number of successes among `planned` is after `successes` of `trials`, by the prior of Jeffreys.
///
/// ```text
/// P(x) ∝ (n choose x) B(x + a, n − x + b),     a = successes + 1/2, b = failures + 1/2
/// ```
fn beta_binomial(successes: u32, trials: u32, planned: u32) -> Vec<f64> {
    let (a, b) = (f64::from(successes) + 0.5, f64::from(trials - successes) + 0.5);
    let n = f64::from(planned);
    let mut logs = vec![0.0; planned as usize + 1];
    for x in 0..planned as usize {
        let at = x as f64;
        logs[x + 1] = logs[x] + ((at + a) / (n - at - 1.0 + b) * (n - at) / (at + 1.0)).ln();
    }
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::{Gallery, Metric, Positives};
    use crate::{Alpha, NormBound, Sigma};

    #[test]
    fn successes_to_come_follow_their_closed_form() {
        // One success of one, two to come: B(x + 3/2, 5/2 − x) (2 choose x) / B(3/2, 1/2).
        let weights = beta_binomial(1, 1, 2);
        for (found, wanted) in weights.iter().zip([1.0 / 8.0, 2.0 / 8.0, 5.0 / 8.0]) {
            assert!((found - wanted).abs() < 1e-12, "{weights:?}");
        }
        let mean: f64 =
            beta_binomial(70, 99, 1_000).iter().enumerate().map(|(x, weight)| x as f64 * weight).sum();
        assert!((mean - 1_000.0 * 70.5 / 100.0).abs() < 1e-6, "{mean}");
    }

    fn gallery() -> Gallery {
        let names = |word: &str| (0..3).map(|row| format!("{word} {row}")).collect::<Vec<_>>();
        let vectors = vec![1.0, 0.0, -1.0, 0.0, 0.0, 1.0];
        Gallery::new(vectors, 2, names("item"), &names("label"), Metric::Euclidean).unwrap()
    }

    /// Copies near the first item in all but a share of them, by a fixed sequence.
    fn copies(count: u32, spread: f64, seed: u64) -> Samples {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut values = Vec::new();
        for _ in 0..count {
            let (angle, length) = ((next() + next() - 1.0) * spread, 0.5 + 0.5 * next());
            values.extend([(length * angle.cos()) as f32, (length * angle.sin()) as f32]);
        }
        Samples::new(values, 2, NormBound::UNIT, Excess::Project).unwrap()
    }

    #[test]
    fn a_forecast_from_a_hundred_copies_comes_near_to_what_is_certified_from_a_thousand() {
        let gallery = gallery();
        let sigma = Sigma::new(0.25).unwrap();
        let certifier = Certifier::new(&gallery, sigma, Alpha::new(0.01).unwrap());
        let planned = SampleCount::new(1_000).unwrap();
        let forecaster = Forecaster::new(certifier, planned);
        let relevance = Relevance::new(Positives::Item(0), vec![]);
        let queries = 200_u32;
        for retriever in Retriever::SMOOTHED {
            let (mut radii, mut forecasts) = (Vec::new(), Vec::new());
            for query in 0..queries {
                // From queries that are always right to queries that are right half of the time.
                let spread = 0.5 + 1.6 * f64::from(query) / f64::from(queries);
                let seed = u64::from(query) + 1;
                let few = copies(100, spread, seed);
                forecasts.push(forecaster.forecast(retriever, &few, &relevance).unwrap());
                let sampled = SampledQuery {
                    pilot: copies(200, spread, seed + 10_000),
                    certifying: copies(1_000, spread, seed + 20_000),
                };
                let outcome = certifier.certify(retriever.certificate(), &sampled, &relevance).unwrap();
                radii.push(outcome.verdict.radius().map_or(0.0, Radius::get));
            }
            for radius in [0.0, 0.125, 0.25, 0.5] {
                let certified = radii.iter().filter(|own| **own > radius).count() as f64 / f64::from(queries);
                let forecast = forecasts.iter().map(|forecast| forecast.certified_at(radius)).sum::<f64>()
                    / f64::from(queries);
                assert!(
                    (certified - forecast).abs() < 0.05,
                    "{retriever} at {radius}: {forecast} for {certified}"
                );
            }
        }
    }

    #[test]
    fn a_query_that_is_wrong_or_has_no_answer_is_expected_to_get_nothing() {
        let gallery = gallery();
        let certifier = Certifier::new(&gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap());
        let forecaster = Forecaster::new(certifier, SampleCount::new(500).unwrap());
        let copies = copies(60, 0.3, 7);
        for positives in [Positives::Item(1), Positives::Absent] {
            for retriever in Retriever::SMOOTHED {
                let forecast =
                    forecaster.forecast(retriever, &copies, &Relevance::new(positives, vec![])).unwrap();
                assert!(!forecast.right, "{retriever} {positives:?}");
                assert!(forecast.certified_at(0.0) < 1e-9 && forecast.average_radius() < 1e-9, "{retriever}");
            }
        }
    }
}
