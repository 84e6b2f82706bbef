//! Certificates: from samples of one query to a radius inside which its retrieval cannot change.
//!
//! Certifying is arithmetic on samples that were drawn before: no encoder, no thread, no file and no random number.
//! Everything that chooses something is decided on the pilot sample; the certifying sample is fresh. Each certificate
//! is valid at `α` by itself, about the stored gallery as it is (`paper-repaired`: about exactly smoothed items); the
//! largest of several is not. [`LipschitzCertifier`] needs neither samples nor `α`: it takes one embedding and a bound on how
//! fast the encoder moves.
//!
//! ```
//! use retrievalguard::certificate::{CertificateName, Certifier, Radius, SampledQuery, Verdict};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::{Alpha, Excess, NormBound, Samples, Sigma};
//!
//! // Two stored items, and a query whose noisy embeddings all fall near the first.
//! let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
//! let near_first = |count| Samples::new([0.9, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse);
//! let query = SampledQuery { pilot: near_first(100)?, certifying: near_first(1_000)? };
//! let label = gallery.label_named("label 0").expect("the gallery has it");
//! let relevance = Relevance { positives: Positives::Label(label), excluded: vec![] };
//!
//! let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
//! let outcome = certifier.certify(CertificateName::HalfSpace, &query, &relevance)?;
//! assert!(matches!(outcome.verdict, Verdict::Certified { radius: Radius::Finite(r) } if r > 0.5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adaptive;
mod betting;
#[cfg(test)]
mod coverage;
mod domain;
#[cfg(test)]
mod domain_coverage;
mod empirical_distribution;
mod explain;
mod forecast;
mod growing;
mod half_space;
mod half_space_mean;
mod lipschitz;
mod pairwise;
mod paper;
mod pilot_choice;
mod planned;
mod projection;
mod radius;
#[cfg(test)]
mod rate_coverage;
mod rate_test;
#[cfg(test)]
mod replanning_coverage;
mod retriever;
mod rows;
mod separation;
mod similarity;
mod thresholds;
#[cfg(test)]
mod view_coverage;
mod vote;
mod win_rates;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use adaptive::{AdaptiveOptions, AdaptiveOutcome, AdaptiveRun, AdaptiveTest, Decision, Rule};
pub use explain::{Explanation, Step, StepValue, statement_in_words};
pub use forecast::{Forecast, Forecaster};
pub use growing::{GrowingOptions, GrowingOutcome, GrowingTest};
pub(crate) use half_space::Bets;
pub(crate) use half_space::HalfSpacePlan;
pub(crate) use half_space::weaker;
pub use half_space::{Form, HalfSpaceOptions, HalfSpaceOutcome};
pub use half_space_mean::half_space_mean_radius;
pub(crate) use lipschitz::Findings;
pub use lipschitz::{
    ConstantOrigin, Distance, LipschitzBound, LipschitzCertifier, LipschitzName, LipschitzOutcome, Mixtures,
    Threshold,
};
pub use pairwise::Contest;
use paper::Statement;
pub use paper::{
    certified_radius, certified_radius_linear, concentration, lipschitz_bound, lipschitz_bound_linear,
    matrix_concentration, mean_shift_bound,
};
pub(crate) use pilot_choice::smallest_promises;
pub use planned::{PlannedForm, PlannedTest};
pub use radius::{Radius, round_down};
pub use rate_test::{
    DecisionCost, RateOptions, RateTest, decision_cost, fewest_to_decide, samples_to_decide,
};
pub use retriever::Retriever;
pub use rows::{Outputs, RowsError, SampleRole};
pub use similarity::Similarity;
pub use vote::{Rule as VoteRule, Votes};

use crate::gallery::{Gallery, Neighbour, Relevance, RowRelevance, SearchError};
use crate::storage::stored::{GalleryRef, Unsearchable};
use crate::{Alpha, Components, ParameterError, SampleCount, SampleError, Samples, Sigma};

/// Names under which certificates are requested and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateName {
    /// Proposition 3.9 exactly as printed.
    Paper,
    /// The looser radius that follows from the linear Lipschitz bound, Eq. (2).
    PaperLinear,
    /// Proposition 3.9 with the union over positives and the gallery's own sampling error.
    PaperRepaired,
    /// Proposition 3.9 for a gallery whose stored vectors are the system.
    PaperFrozen,
    /// Half-spaces, knowing only the mean of the query's projection.
    HalfSpaceMean,
    /// Half-spaces, using the whole distribution of the query's projection.
    HalfSpace,
    /// Vote over the retrievals of the noisy copies, by majority or against the runner-up: another smoothed system.
    Vote,
    /// Every rival beaten by itself in most noisy copies: a third smoothed system.
    Pairwise,
    /// Distances to bisectors under a bound on the encoder itself: the retriever without noise.
    Lipschitz,
    /// Half the margin of the distances under such a bound: the remark that ends the paper's section 3.1.
    LipschitzMargin,
}

impl CertificateName {
    /// Every certificate, in the order in which tables show them.
    pub const ALL: [CertificateName; 10] = [
        CertificateName::Paper,
        CertificateName::PaperLinear,
        CertificateName::PaperRepaired,
        CertificateName::PaperFrozen,
        CertificateName::HalfSpaceMean,
        CertificateName::HalfSpace,
        CertificateName::Vote,
        CertificateName::Pairwise,
        CertificateName::Lipschitz,
        CertificateName::LipschitzMargin,
    ];

    /// Those that come from samples of noisy copies.
    pub const SMOOTHED: [CertificateName; 8] = [
        CertificateName::Paper,
        CertificateName::PaperLinear,
        CertificateName::PaperRepaired,
        CertificateName::PaperFrozen,
        CertificateName::HalfSpaceMean,
        CertificateName::HalfSpace,
        CertificateName::Vote,
        CertificateName::Pairwise,
    ];

    /// The name as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            CertificateName::Paper => "paper",
            CertificateName::PaperLinear => "paper-linear",
            CertificateName::PaperRepaired => "paper-repaired",
            CertificateName::PaperFrozen => "paper-frozen",
            CertificateName::HalfSpaceMean => "half-space-mean",
            CertificateName::HalfSpace => "half-space",
            CertificateName::Vote => "vote",
            CertificateName::Pairwise => "pairwise",
            CertificateName::Lipschitz => LipschitzName::Lipschitz.as_str(),
            CertificateName::LipschitzMargin => LipschitzName::LipschitzMargin.as_str(),
        }
    }

    /// The name among those that need no noise; none for certificates from samples.
    pub fn lipschitz(self) -> Option<LipschitzName> {
        LipschitzName::ALL.into_iter().find(|&name| CertificateName::from(name) == self)
    }
}

impl From<LipschitzName> for CertificateName {
    fn from(name: LipschitzName) -> Self {
        match name {
            LipschitzName::Lipschitz => CertificateName::Lipschitz,
            LipschitzName::LipschitzMargin => CertificateName::LipschitzMargin,
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for CertificateName {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Self, CertificateError> {
        CertificateName::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| CertificateError::UnknownName(text.to_owned()))
    }
}

/// Verdict on one query. Only `Certified` is a proof: of samples it is wrong with probability at most `α`, of a Lipschitz
/// bound never.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The retrieved label stays right for every perturbation with `‖δ‖₂ < radius`.
    Certified {
        /// How far the proof reaches.
        radius: Radius,
    },
    /// The right label was retrieved, but that could not be shown.
    Abstained,
    /// The nearest stored vector has another label.
    Misretrieved,
}

impl Verdict {
    /// The certified radius, if there is one.
    pub fn radius(self) -> Option<Radius> {
        match self {
            Verdict::Certified { radius } => Some(radius),
            Verdict::Abstained | Verdict::Misretrieved => None,
        }
    }

    /// A radius counts only above zero and only for a query that was retrieved rightly.
    pub(crate) fn from_radius(retrieved: bool, radius: Option<Radius>) -> Self {
        match radius {
            _ if !retrieved => Verdict::Misretrieved,
            Some(radius) if radius > Radius::Finite(0.0) => Verdict::Certified { radius },
            Some(_) | None => Verdict::Abstained,
        }
    }
}

/// Why a query cannot be answered at all.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// No certificate has this name.
    #[error(
        "`{0}` is not a certificate, wanted one of paper, paper-linear, paper-repaired, paper-frozen, half-space-mean, half-space, vote, pairwise, lipschitz, lipschitz-margin"
    )]
    UnknownName(String),
    /// No retriever has this name.
    #[error("`{0}` is not a retriever, wanted one of mean, vote, pairwise, plain")]
    UnknownRetriever(String),
    /// Samples say nothing about a retriever without noise.
    #[error(
        "`{0}` is computed from one embedding and a bound on the encoder, wanted a certificate of samples"
    )]
    NotFromSamples(CertificateName),
    /// Query and gallery are embedded differently.
    #[error("the query's samples have dimension {found}, the gallery's vectors {wanted}")]
    DimensionMismatch {
        /// Dimension of the samples.
        found: usize,
        /// Dimension of the gallery.
        wanted: usize,
    },
    /// Pilot and certifying samples come from different encoders.
    #[error(
        "the pilot has dimension {pilot} and norm bound {pilot_bound}, the certifying sample {certifying} and {certifying_bound}"
    )]
    PilotMismatch {
        /// Dimension of the pilot.
        pilot: usize,
        /// Norm bound of the pilot.
        pilot_bound: f64,
        /// Dimension of the certifying sample.
        certifying: usize,
        /// Norm bound of the certifying sample.
        certifying_bound: f64,
    },
    /// One of the two samples was clamped and the other was not: they come from different encoders.
    #[error("the pilot has {pilot} components, the certifying sample {certifying} ones")]
    PilotComponents {
        /// Components of the pilot.
        pilot: Components,
        /// Components of the certifying sample.
        certifying: Components,
    },
    /// Without another label there is nothing that a retrieval could change to.
    #[error("the gallery has no item that would be a wrong answer, wanted at least one")]
    NoNegatives,
    /// Recall@k over so few items cannot fail and needs no certificate.
    #[error("top_k is {top_k}, wanted at most {negatives}, the number of items that would be wrong answers")]
    TopKTooLarge {
        /// The `k` that was asked for.
        top_k: usize,
        /// How many negatives there are.
        negatives: usize,
    },
    /// `k` counts from one.
    #[error("top_k is 0, wanted at least 1")]
    TopKZero,
    /// The item of a similarity question is not a direction.
    #[error("similarity to the zero vector is always 0, wanted a vector with a direction")]
    ZeroVector,
    /// A similarity threshold must be a number.
    #[error("the similarity threshold is {0}, wanted a finite number")]
    SimilarityThreshold(f64),
    /// A distance threshold must be a length.
    #[error("the distance threshold is {0}, wanted a finite number that is not negative")]
    DistanceThreshold(f64),
    /// No Lipschitz certificate has this name.
    #[error("`{0}` is not a Lipschitz certificate, wanted one of lipschitz, lipschitz-margin")]
    UnknownLipschitzName(String),
    /// Adaptive sampling asks for its samples in order.
    #[error("{found} samples were shown to an adaptive test that wanted {wanted}")]
    UnwantedSamples {
        /// How many samples were shown.
        found: usize,
        /// How many were wanted.
        wanted: usize,
    },
    /// Samples of one query do not belong together.
    #[error(transparent)]
    Samples(#[from] SampleError),
    /// Samples that were made elsewhere cannot be independent.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// A look's share of the failure probability vanished.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The gallery could not be searched.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A gallery on disk could not be read.
    #[error(transparent)]
    Unsearchable(Unsearchable),
    /// The computation looks at the vectors again and again.
    #[error(
        "{0} needs the gallery in memory, and this one is in shards on disk; there vote, pairwise, the paper's certificates, and \
         half-space for recall@1 without a target radius can be had"
    )]
    InMemoryOnly(&'static str),
}

/// The samples of one query: the pilot chooses, the certifying sample proves.
///
/// Stages of [`noise`](crate::noise) make them independent; rows from elsewhere come through [`Certifier::sampled`].
#[derive(Clone, Debug, PartialEq)]
pub struct SampledQuery {
    /// Samples on which every choice is made.
    pub pilot: Samples,
    /// Fresh samples, independent of the pilot, on which bounds are computed.
    pub certifying: Samples,
}

/// A verdict and every number that led to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which certificate this is.
    pub name: CertificateName,
    /// What it says.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Certifying samples used.
    pub samples: u32,
    /// The chain of numbers behind the verdict.
    pub explain: Explanation,
}

/// A gallery and the parameters of a guarantee: everything but the query.
#[derive(Clone, Copy, Debug)]
pub struct Certifier<'a> {
    pub(crate) gallery: GalleryRef<'a>,
    pub(crate) sigma: Sigma,
    pub(crate) alpha: Alpha,
    pub(crate) gallery_samples: Option<SampleCount>,
    bets: Bets,
}

impl<'a> Certifier<'a> {
    /// A certifier for queries smoothed with `sigma`, each certificate wrong with probability at most `alpha`.
    ///
    /// The gallery is in memory, or in [shards](crate::storage::shards) on disk.
    pub fn new(gallery: impl Into<GalleryRef<'a>>, sigma: Sigma, alpha: Alpha) -> Self {
        Self { gallery: gallery.into(), sigma, alpha, gallery_samples: None, bets: Bets::Fixed }
    }

    /// Says how many samples each gallery vector was averaged from; without it `paper-repaired` abstains.
    #[must_use]
    pub fn gallery_samples(self, samples: SampleCount) -> Self {
        Self { gallery_samples: Some(samples), ..self }
    }

    /// Plans bets again at doublings of the certifying sample, from what was seen of it (theory, section 12.2).
    ///
    /// Radii of `half-space` grow a little where the pilot is small, and take about twice as long to compute. It is decided
    /// before the certifying sample is looked at: the larger of two radii, with it and without, is not proved at `α`.
    #[must_use]
    pub fn replanning_bets(self) -> Self {
        Self { bets: Bets::Replanned, ..self }
    }

    /// The gallery that is searched.
    pub fn gallery(&self) -> GalleryRef<'a> {
        self.gallery
    }

    /// The same guarantee about another gallery.
    pub(crate) fn over<'other>(&self, gallery: &'other Gallery) -> Certifier<'other> {
        Certifier { gallery: gallery.into(), ..*self }
    }

    /// The gallery in memory, which `what` cannot do without.
    pub(crate) fn memory(&self, what: &'static str) -> Result<&'a Gallery, CertificateError> {
        match self.gallery {
            GalleryRef::Memory(gallery) => Ok(gallery),
            GalleryRef::Shards(_) => Err(CertificateError::InMemoryOnly(what)),
        }
    }

    /// Noise level of the queries.
    pub fn sigma(&self) -> Sigma {
        self.sigma
    }

    /// Failure probability of one certificate.
    pub fn alpha(&self) -> Alpha {
        self.alpha
    }

    /// Computes one certificate; all of them read the same samples.
    pub fn certify(
        &self,
        name: CertificateName,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<Outcome, CertificateError> {
        match name {
            CertificateName::Paper => self.paper(Statement::Printed, query, relevance),
            CertificateName::PaperLinear => self.paper(Statement::Linear, query, relevance),
            CertificateName::PaperRepaired => self.paper(Statement::Repaired, query, relevance),
            CertificateName::PaperFrozen => self.paper(Statement::Frozen, query, relevance),
            CertificateName::HalfSpaceMean => self.half_space_mean(query, relevance),
            CertificateName::HalfSpace => {
                let outcome = self.half_space(query, relevance, &HalfSpaceOptions::default())?;
                Ok(outcome.into_outcome())
            }
            CertificateName::Vote => self.vote(query, relevance),
            CertificateName::Pairwise => self.pairwise(query, relevance),
            CertificateName::Lipschitz | CertificateName::LipschitzMargin => {
                Err(CertificateError::NotFromSamples(name))
            }
        }
    }

    /// The stored item nearest to the mean of `samples`, by its nearest view: what the smoothed retriever answers.
    ///
    /// In deployment it is asked of the pilot; its label is then what gets certified.
    pub fn retrieve(
        &self,
        samples: &Samples,
        excluded: &[usize],
    ) -> Result<Option<Neighbour>, CertificateError> {
        self.check_dimension(samples)?;
        let found = self.gallery.nearest(&samples.mean(), 1, |_| excluded)?;
        Ok(found.into_iter().flatten().next())
    }

    fn check_dimension(&self, samples: &Samples) -> Result<(), CertificateError> {
        let (found, wanted) = (samples.dimension(), self.gallery.dimension());
        if found == wanted { Ok(()) } else { Err(CertificateError::DimensionMismatch { found, wanted }) }
    }

    /// Checks a query once for all certificates.
    fn check(&self, query: &SampledQuery, relevance: &Relevance) -> Result<(), CertificateError> {
        self.check_dimension(&query.pilot)?;
        check_alike(&query.pilot, &query.certifying)?;
        self.check_negatives(relevance)
    }

    /// Whether there is anything that a retrieval could change to.
    fn check_negatives(&self, relevance: &Relevance) -> Result<(), CertificateError> {
        self.gallery.extent().check_relevance(0, relevance)?;
        let negative = |row| relevance.of_row(self.gallery, row) == RowRelevance::Negative;
        if (0..self.gallery.len()).any(negative) { Ok(()) } else { Err(CertificateError::NoNegatives) }
    }

    /// Checks a query and splits the gallery by relevance.
    fn check_and_split(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<VisibleRows, CertificateError> {
        self.check(query, relevance)?;
        self.visible_rows(relevance)
    }

    /// The positives and the negatives.
    fn visible_rows(&self, relevance: &Relevance) -> Result<VisibleRows, CertificateError> {
        self.gallery.extent().check_relevance(0, relevance)?;
        let mut visible = VisibleRows { positives: Vec::new(), negatives: Vec::new() };
        for row in 0..self.gallery.len() {
            match relevance.of_row(self.gallery, row) {
                RowRelevance::Positive => visible.positives.push(row),
                RowRelevance::Negative => visible.negatives.push(row),
                RowRelevance::Excluded => {}
            }
        }
        if visible.negatives.is_empty() { Err(CertificateError::NoNegatives) } else { Ok(visible) }
    }
}

/// Pilot and certifying sample must be embeddings by one encoder.
pub(crate) fn check_alike(pilot: &Samples, certifying: &Samples) -> Result<(), CertificateError> {
    if pilot.dimension() != certifying.dimension() || pilot.norm_bound() != certifying.norm_bound() {
        return Err(CertificateError::PilotMismatch {
            pilot: pilot.dimension(),
            pilot_bound: pilot.norm_bound().get(),
            certifying: certifying.dimension(),
            certifying_bound: certifying.norm_bound().get(),
        });
    }
    let (pilot, certifying) = (pilot.components(), certifying.components());
    if pilot == certifying { Ok(()) } else { Err(CertificateError::PilotComponents { pilot, certifying }) }
}

/// The rows that a query may retrieve.
#[derive(Clone, Debug)]
pub(crate) struct VisibleRows {
    pub(crate) positives: Vec<usize>,
    pub(crate) negatives: Vec<usize>,
}

impl VisibleRows {
    /// The `count` positives nearest to `mean`, each behind its squared distance.
    pub(crate) fn nearest_positives(
        &self,
        gallery: &Gallery,
        mean: &[f64],
        count: usize,
    ) -> Vec<(f64, usize)> {
        let mut positives: Vec<(f64, usize)> =
            self.positives.iter().map(|&row| (squared_distance(mean, gallery.vector(row)), row)).collect();
        positives.sort_unstable_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
        positives.truncate(count);
        positives
    }

    /// How many wrong items have a row at least as near to `mean` as the nearest positive; `None` without positives.
    pub(crate) fn negatives_before_positives(&self, gallery: &Gallery, mean: &[f64]) -> Option<usize> {
        let nearest = self
            .positives
            .iter()
            .map(|&row| squared_distance(mean, gallery.vector(row)))
            .min_by(f64::total_cmp)?;
        let before = |row: &usize| squared_distance(mean, gallery.vector(*row)) <= nearest;
        let before: Vec<usize> = self.negatives.iter().copied().filter(before).collect();
        Some(gallery.count_items(&before))
    }
}

/// `‖mean − vector‖²`, summed in order.
pub(crate) fn squared_distance(mean: &[f64], vector: &[f32]) -> f64 {
    mean.iter().zip(vector).map(|(&left, &right)| (left - f64::from(right)).powi(2)).sum()
}
