//! From verdicts to the numbers that papers and reports show.
//!
//! Misretrieved and abstained queries count as zero everywhere, and the denominator of every share is all queries.
//!
//! ```
//! use retrievalguard::certificate::{Radius, Verdict};
//! use retrievalguard::evaluation::{Guarantee, Summary};
//! use retrievalguard::Alpha;
//!
//! let verdicts = [
//!     Verdict::Certified { radius: Radius::Finite(0.3) },
//!     Verdict::Certified { radius: Radius::Finite(0.1) },
//!     Verdict::Abstained,
//!     Verdict::Misretrieved,
//! ];
//! let summary = Summary::new(&verdicts, Guarantee::PerQuery { alpha: Alpha::new(0.01)? })?;
//! assert_eq!(summary.recall.share, 0.75);
//! assert_eq!(summary.rejected.share, 0.25);
//! assert_eq!(summary.certified_recall(0.2).share, 0.25);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;

use serde::Serialize;

use crate::Alpha;
use crate::binomial;
use crate::certificate::{Radius, Verdict};

/// Confidence intervals of shares miss the truth with this probability.
const INTERVAL_LEVEL: f64 = 0.05;

/// Why verdicts cannot be summarised.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// There is no share of nothing.
    #[error("no verdicts were given, wanted at least one query")]
    Empty,
    /// More verdicts than can be counted.
    #[error("{0} verdicts are more than the 4294967295 that can be counted")]
    TooMany(usize),
}

/// How often certificates may be wrong, and what a failure probability speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Each certificate by itself is wrong with probability at most `alpha`.
    PerQuery {
        /// Failure probability of one certificate.
        alpha: Alpha,
    },
    /// All certificates hold at once with probability at least `1 − alpha`; each was computed at `alpha / queries`.
    Simultaneous {
        /// Failure probability of the whole table.
        alpha: Alpha,
    },
    /// No chance is involved: the certificates follow from a bound on the encoder itself.
    Always,
}

impl Guarantee {
    /// The largest expected number of wrong certificates among `queries` (theory, section 2.5).
    pub fn expected_failures(self, queries: u32) -> f64 {
        match self {
            Guarantee::PerQuery { alpha } => alpha.get() * f64::from(queries),
            Guarantee::Simultaneous { alpha } => alpha.get(),
            Guarantee::Always => 0.0,
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Guarantee::PerQuery { alpha } => {
                write!(formatter, "each certificate is wrong with probability at most {alpha}")
            }
            Guarantee::Simultaneous { alpha } => {
                write!(formatter, "all certificates hold at once except with probability at most {alpha}")
            }
            Guarantee::Always => {
                formatter.write_str("every certificate holds always: no noise and no chance is involved")
            }
        }
    }
}

/// A share of the queries with its 95 % Clopper–Pearson interval over the choice of queries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// How many queries.
    pub count: u32,
    /// The share of all queries.
    pub share: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

impl Share {
    /// `count` of so many queries.
    pub fn new(count: u32, queries: u32) -> Self {
        let ends = binomial::interval(count, queries, INTERVAL_LEVEL);
        let (lower, upper) = ends.map_or((0.0, 1.0), |(lower, upper)| (lower.get(), upper.get()));
        Self { count, share: f64::from(count) / f64::from(queries), lower, upper }
    }
}

/// One point of a certified-recall curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Radius `r`.
    pub radius: f64,
    /// Recall@k(r): queries whose certified radius exceeds `r`.
    pub recall: Share,
}

/// What became of each query. Certified ones alone would hide whether the others lack a proof or a right answer.
///
/// ```
/// use retrievalguard::certificate::{Radius, Verdict};
/// use retrievalguard::evaluation::Counts;
///
/// let certified = Verdict::Certified { radius: Radius::Finite(0.1) };
/// let counts = Counts::of([certified, Verdict::Misretrieved, Verdict::Abstained, Verdict::Misretrieved]);
/// assert_eq!(counts.to_string(), "1 of 4 certified, 1 abstained, 2 misretrieved (recall@1 0.5000)");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Right, with a proof.
    pub certified: usize,
    /// Right, without a proof.
    pub abstained: usize,
    /// Wrong.
    pub misretrieved: usize,
}

impl Counts {
    /// Counts verdicts.
    pub fn of(verdicts: impl IntoIterator<Item = Verdict>) -> Self {
        let mut counts = Self::default();
        for verdict in verdicts {
            match verdict {
                Verdict::Certified { .. } => counts.certified += 1,
                Verdict::Abstained => counts.abstained += 1,
                Verdict::Misretrieved => counts.misretrieved += 1,
            }
        }
        counts
    }

    /// All queries.
    pub fn queries(self) -> usize {
        self.certified + self.abstained + self.misretrieved
    }

    /// What to say when most answers are wrong to begin with, which no certificate mends.
    pub fn warning(self) -> Option<String> {
        (2 * self.misretrieved > self.queries()).then(|| {
            format!(
                "{} of {} queries retrieve a wrong label before anybody attacks them",
                self.misretrieved,
                self.queries()
            )
        })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recall = (self.certified + self.abstained) as f64 / self.queries().max(1) as f64;
        write!(
            formatter,
            "{} of {} certified, {} abstained, {} misretrieved (recall@1 {recall:.4})",
            self.certified,
            self.queries(),
            self.abstained,
            self.misretrieved
        )
    }
}

/// What a set of verdicts of one certificate amounts to.
///
/// Verdicts for Recall@k give Recall@k and Recall@k(r) by the same arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of queries.
    pub queries: u32,
    /// Queries retrieved rightly, shown or not: Recall@1 of the smoothed retriever.
    pub recall: Share,
    /// Queries with a certificate.
    pub certified: Share,
    /// Queries retrieved rightly but not shown: the rejected ratio of the paper's Figure 3.
    pub rejected: Share,
    /// Queries whose nearest item is wrong.
    pub misretrieved: Share,
    /// Mean certified radius over all queries, zero where there is none; unbounded if any radius is.
    pub average_certified_radius: Radius,
    /// Mean over all queries without an unbounded radius.
    pub average_finite_radius: f64,
    /// Queries with an unbounded radius.
    pub unbounded: u32,
    /// How often the certificates may be wrong.
    pub guarantee: Guarantee,
    #[serde(skip)]
    ascending: Vec<f64>,
}

impl Summary {
    /// Counts verdicts.
    ///
    /// Paper: Section 4.3, Recall@1 and Recall@1(r); Figure 3, rejected ratio.
    pub fn new(verdicts: &[Verdict], guarantee: Guarantee) -> Result<Self, EvaluationError> {
        if verdicts.is_empty() {
            return Err(EvaluationError::Empty);
        }
        let queries = u32::try_from(verdicts.len()).map_err(|_| EvaluationError::TooMany(verdicts.len()))?;
        let (mut abstained, mut misretrieved, mut unbounded) = (0, 0, 0);
        let mut ascending = Vec::new();
        for verdict in verdicts {
            match verdict {
                Verdict::Certified { radius } => {
                    unbounded += u32::from(*radius == Radius::Unbounded);
                    ascending.push(radius.get());
                }
                Verdict::Abstained => abstained += 1,
                Verdict::Misretrieved => misretrieved += 1,
            }
        }
        ascending.sort_by(f64::total_cmp);
        // An empty sum of floats is −0; a radius is never negative.
        let finite = ascending.iter().filter(|radius| radius.is_finite()).sum::<f64>() + 0.0;
        let average_finite_radius = finite / f64::from(queries - unbounded).max(1.0);
        let certified = queries - abstained - misretrieved;
        Ok(Self {
            queries,
            recall: Share::new(certified + abstained, queries),
            certified: Share::new(certified, queries),
            rejected: Share::new(abstained, queries),
            misretrieved: Share::new(misretrieved, queries),
            average_certified_radius: if unbounded > 0 {
                Radius::Unbounded
            } else {
                Radius::Finite(finite / f64::from(queries))
            },
            average_finite_radius,
            unbounded,
            guarantee,
            ascending,
        })
    }

    /// Recall@k(r): the share of queries whose certified radius exceeds `radius`.
    pub fn certified_recall(&self, radius: f64) -> Share {
        let above = self.ascending.len() - self.ascending.partition_point(|&other| other <= radius);
        Share::new(u32::try_from(above).unwrap_or(self.queries), self.queries)
    }

    /// Recall@k(r) at each of the radii.
    pub fn curve(&self, radii: &[f64]) -> Vec<CurvePoint> {
        radii.iter().map(|&radius| CurvePoint { radius, recall: self.certified_recall(radius) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_query() -> Guarantee {
        Guarantee::PerQuery { alpha: Alpha::new(0.01).unwrap() }
    }

    fn certified(radius: f64) -> Verdict {
        Verdict::Certified { radius: Radius::Finite(radius) }
    }

    #[test]
    fn every_share_has_all_queries_below_the_line() {
        let verdicts =
            [certified(0.5), certified(0.25), Verdict::Abstained, Verdict::Misretrieved, certified(0.25)];
        let summary = Summary::new(&verdicts, per_query()).unwrap();
        assert_eq!((summary.recall.share, summary.rejected.share), (0.8, 0.2));
        assert_eq!(summary.average_certified_radius, Radius::Finite(0.2));
        // Strictly above, as the paper's indicator says.
        let recalls: Vec<f64> =
            summary.curve(&[0.0, 0.2, 0.25, 0.5]).iter().map(|point| point.recall.share).collect();
        assert_eq!(recalls, [0.6, 0.6, 0.2, 0.0]);
    }

    #[test]
    fn wrong_answers_are_pointed_at_when_they_are_the_most() {
        let counts = Counts { certified: 3, abstained: 0, misretrieved: 17 };
        assert_eq!(counts.to_string(), "3 of 20 certified, 0 abstained, 17 misretrieved (recall@1 0.1500)");
        assert!(counts.warning().unwrap().starts_with("17 of 20 queries retrieve a wrong label"));
        assert_eq!(Counts { certified: 0, abstained: 10, misretrieved: 10 }.warning(), None);
        assert_eq!(Counts::of([]).warning(), None);
    }

    #[test]
    fn an_unbounded_radius_is_above_every_radius_and_kept_out_of_the_finite_mean() {
        let verdicts = [Verdict::Certified { radius: Radius::Unbounded }, certified(0.5), Verdict::Abstained];
        let summary = Summary::new(&verdicts, per_query()).unwrap();
        assert_eq!(summary.certified_recall(1e300).count, 1);
        assert_eq!(summary.average_certified_radius, Radius::Unbounded);
        assert_eq!(summary.average_finite_radius, 0.25);
    }

    #[test]
    fn intervals_are_clopper_pearson() {
        let share = Share::new(0, 10);
        assert_eq!(share.lower, 0.0);
        assert!((share.upper - (1.0 - 0.025_f64.powf(0.1))).abs() < 1e-9);
    }

    #[test]
    fn no_verdicts_are_an_error_and_guarantees_say_what_they_mean() {
        assert_eq!(Summary::new(&[], per_query()), Err(EvaluationError::Empty));
        assert_eq!(per_query().expected_failures(500), 5.0);
        let all = Guarantee::Simultaneous { alpha: Alpha::new(0.05).unwrap() };
        assert_eq!(all.expected_failures(500), 0.05);
        assert!(all.to_string().contains("at once"));
        let always = Guarantee::Always;
        assert_eq!(always.expected_failures(500), 0.0);
        assert!(always.to_string().contains("always") && !always.to_string().contains("probability"));
    }
}
