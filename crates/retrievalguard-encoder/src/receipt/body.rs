//! The fields of a receipt, as `docs/receipts.md` describes them.

use std::fmt;

use retrievalguard::certificate::CertificateName;
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::digest::Digest;
use retrievalguard::{Alpha, Components, Excess, ParameterError, SampleCount, Seed, Sigma, TargetRadius};
use serde::{Deserialize, Serialize};

use crate::run::{Procedure, Retriever};

/// A real number, kept as the shortest text that gives it back; infinite where a radius is unbounded.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Real(f64);

/// Text that is no real number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no number in shortest digits, wanted one such as \"0.25\"")]
pub struct RealError(String);

impl Real {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl From<f64> for Real {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl fmt::Display for Real {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY { formatter.pad("unbounded") } else { self.0.fmt(formatter) }
    }
}

impl TryFrom<String> for Real {
    type Error = RealError;

    fn try_from(text: String) -> Result<Self, RealError> {
        let value = match text.as_str() {
            "unbounded" => Some(f64::INFINITY),
            number => number.parse().ok().filter(|value: &f64| value.is_finite()),
        };
        // One number has one text, so that digests of equal receipts are equal.
        let real = value.map(Self).filter(|real| real.to_string() == text);
        real.ok_or_else(|| RealError(text.chars().take(80).collect()))
    }
}

impl From<Real> for String {
    fn from(real: Real) -> Self {
        real.to_string()
    }
}

/// Which picture was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PictureFacts {
    /// The name that enters the noise.
    pub identity: String,
    /// Digest of the file.
    pub file: Digest,
    /// Digest of what the encoder gets, before mean and standard deviation.
    pub pixels: Digest,
}

impl PictureFacts {
    /// The facts of a picture whose file has this digest.
    pub fn new(identity: &str, file: Digest, pixels: &[f32]) -> Self {
        let bytes: Vec<u8> = pixels.iter().flat_map(|pixel| pixel.to_le_bytes()).collect();
        Self { identity: identity.to_owned(), file, pixels: Digest::of_bytes(&bytes) }
    }
}

/// The encoder, and who ran it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderFacts {
    /// Digest of the model file.
    pub model: Digest,
    /// The model config, as JSON in a text.
    pub config: String,
    /// Length of an embedding.
    pub dimension: usize,
    /// Whether negative components are set to zero.
    pub components: Components,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// Who ran it.
    pub engine: String,
}

/// What was searched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GalleryFacts {
    /// Stored vectors.
    pub rows: usize,
    /// Length of each.
    pub dimension: usize,
    /// Vectors of an item.
    pub views: usize,
    /// Digest of the vectors.
    pub vectors: Digest,
    /// Digest of identities, labels and views.
    pub items: Digest,
    /// Rows that the query did not see, ascending.
    pub excluded: Vec<usize>,
}

impl GalleryFacts {
    /// A gallery and what was hidden of it.
    pub fn new(content: &GalleryContent, excluded: Vec<usize>) -> Self {
        let GalleryContent { rows, dimension, views, vectors, items } = *content;
        Self { rows, dimension, views, vectors, items, excluded }
    }
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The label that is asked about; that which the retriever finds, if none.
    pub label: Option<String>,
}

/// When certifying samples are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Once, when all are there.
    Fixed,
    /// Until a target radius is decided.
    Target,
    /// Again and again, with a radius that grows.
    Growing,
}

/// Where the seed comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeedFrom {
    /// The caller gave it, so it is no secret.
    Given,
    /// The operating system, for this answer alone.
    Fresh,
}

/// How noise is drawn and judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseFacts {
    /// Standard deviation.
    pub sigma: Real,
    /// Failure probability.
    pub alpha: Real,
    /// Pilot samples.
    pub pilot: u32,
    /// Certifying samples, or the most of them.
    pub samples: u32,
    /// When they are looked at.
    pub schedule: Schedule,
    /// A radius that is enough.
    pub target_radius: Option<Real>,
    /// Depth that the run was planned for.
    pub top_k: usize,
    /// Whether bets are planned again.
    pub replan_bets: bool,
    /// Where the seed comes from.
    pub seed_from: SeedFrom,
}

impl NoiseFacts {
    /// The facts of a procedure.
    pub fn new(procedure: &Procedure, schedule: Schedule, seed_from: SeedFrom) -> Self {
        Self {
            sigma: procedure.sigma.get().into(),
            alpha: procedure.alpha.get().into(),
            pilot: procedure.pilot.get(),
            samples: procedure.samples.get(),
            schedule,
            target_radius: procedure.target_radius.map(|target| target.get().into()),
            top_k: procedure.top_k,
            replan_bets: procedure.replan_bets,
            seed_from,
        }
    }

    /// The procedure again.
    pub fn procedure(&self, certificates: &[CertificateName]) -> Result<Procedure, ParameterError> {
        Ok(Procedure {
            sigma: Sigma::new(self.sigma.get())?,
            alpha: Alpha::new(self.alpha.get())?,
            pilot: SampleCount::new(u64::from(self.pilot))?,
            samples: SampleCount::new(u64::from(self.samples))?,
            certificates: certificates.to_vec(),
            top_k: self.top_k,
            target_radius: self.target_radius.map(|target| TargetRadius::new(target.get())).transpose()?,
            replan_bets: self.replan_bets,
        })
    }
}

/// What an answer without noise rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundFacts {
    /// Right items that may stand together.
    pub mixtures: usize,
    /// Depth that the run was planned for.
    pub top_k: usize,
    /// The encoder's Lipschitz constant.
    pub constant: Real,
}

/// Everything that is settled before the first sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// Name and version of the program.
    pub tool: String,
    /// The picture.
    pub picture: PictureFacts,
    /// The encoder.
    pub encoder: EncoderFacts,
    /// The gallery.
    pub gallery: GalleryFacts,
    /// The question.
    pub question: Question,
    /// Who settles the label where none is given.
    pub retriever: Retriever,
    /// The certificates, in the order of the answers.
    pub certificates: Vec<CertificateName>,
    /// The noise, if there is any.
    pub noise: Option<NoiseFacts>,
    /// The bound, where there is none.
    pub bound: Option<BoundFacts>,
    /// Text of the asker.
    pub challenge: Option<String>,
}

/// What the commitment hid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// The seed.
    pub seed: Seed,
    /// 32 bytes that keep the seed from being found by trying.
    pub salt: Digest,
}

/// Samples of one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrawnRange {
    /// `pilot` or `certify`.
    pub stage: String,
    /// The first.
    pub first: u32,
    /// Behind the last.
    pub end: u32,
}

/// How a verdict is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictName {
    /// A radius is proved.
    Certified,
    /// The label was retrieved, and no radius is proved.
    Abstained,
    /// It was not retrieved.
    Misretrieved,
}

/// Copies that speak for a wrong label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RivalCount {
    /// The label.
    pub label: String,
    /// How many copies.
    pub copies: u32,
}

/// The votes of the certifying copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoteCounts {
    /// For the label.
    pub right: u32,
    /// Which rule the pilot chose.
    pub rule: String,
    /// For others.
    pub rivals: Vec<RivalCount>,
}

/// A right row and its weight in 4096ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedShare {
    /// The row.
    pub row: usize,
    /// Its weight.
    pub share: u32,
}

/// How one dangerous wrong row was tested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestFacts {
    /// The row.
    pub row: usize,
    /// What faces it.
    pub positives: Vec<PlannedShare>,
    /// The form of the test.
    pub form: String,
}

/// What a certificate without noise was computed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundCounts {
    /// The Lipschitz constant.
    pub constant: Real,
    /// The forward error around this picture.
    pub forward_error: Real,
    /// The embedding.
    pub embedding: Vec<Real>,
}

/// A number on the way to a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepFacts {
    /// What it is.
    pub quantity: String,
    /// Its text.
    pub value: String,
}

/// What a verdict is arithmetic on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Copies in which each rival is ahead, under `pairwise`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<Vec<RivalCount>>,
    /// The votes, under `vote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<VoteCounts>,
    /// The tests of dangerous rows, under `half-space`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<Vec<TestFacts>>,
    /// Bound and embedding, without noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundCounts>,
    /// The numbers on the way.
    pub steps: Vec<StepFacts>,
}

/// What one certificate says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertifiedAnswer {
    /// Which certificate.
    pub certificate: CertificateName,
    /// The label that was tried.
    pub label: Option<String>,
    /// What it says of it.
    pub verdict: VerdictName,
    /// The radius, if one is certified.
    pub radius: Option<Real>,
    /// Certifying samples that it rests on.
    pub samples: u32,
    /// Why sampling ended, where that was not fixed.
    pub decision: Option<String>,
    /// The claim in words.
    pub statement: String,
    /// What it was counted from.
    pub counted: Counted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_has_one_text() {
        for text in ["0.25", "1", "0.00001", "0.1", "unbounded", "-0.5", "123456789"] {
            assert_eq!(String::from(Real::try_from(text.to_owned()).unwrap()), text);
        }
        for other in ["0.250", "1.0", "1e-5", "+1", "NaN", "inf", "", " 1", "01", "0.1000000000000000001"] {
            assert!(Real::try_from(other.to_owned()).is_err(), "{other}");
        }
    }
}
