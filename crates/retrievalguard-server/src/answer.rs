//! What clients get: answers, and the words of the guarantee.

use retrievalguard::Alpha;
use retrievalguard::certificate::{Decision, LipschitzBound, Radius, Retriever, Verdict};
use retrievalguard::gallery::Neighbour;
use retrievalguard_encoder::receipt::{Circumstances, statement};
use retrievalguard_encoder::table::FilePixels;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::gallery_writer::Snapshot;
use crate::settings::{Basis, Guarantees};

/// Whether an answer is guaranteed
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VerdictWord {
    /// The label is proved to stay inside the radius
    Certified,
    /// Nothing could be proved
    Abstained,
}

/// Why no more samples were drawn
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DecisionWord {
    /// More samples are on their way
    Open,
    /// The number of samples was fixed beforehand
    Fixed,
    /// The target radius is certified
    Reached,
    /// The sample cap was reached first
    Capped,
    /// The target radius is out of reach
    Hopeless,
}

impl From<Decision> for DecisionWord {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Open => Self::Open,
            Decision::Reached => Self::Reached,
            Decision::Capped => Self::Capped,
            Decision::Hopeless => Self::Hopeless,
        }
    }
}

/// How far a guarantee can be trusted
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GuaranteeWord {
    /// No chance is involved: it follows from a bound on the encoder
    Always,
    /// It rests on noise that was drawn, and is wrong with probability at most `alpha`
    #[default]
    Probable,
}

impl From<&Basis> for GuaranteeWord {
    fn from(basis: &Basis) -> Self {
        match basis {
            Basis::Samples(_) => Self::Probable,
            Basis::Bound(_) => Self::Always,
        }
    }
}

/// What an answer without noise rests on
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct BoundFacts {
    /// Upper bound on the encoder's Lipschitz constant, from pixels in [0, 1] to embeddings, in the l2 norm
    pub(crate) constant: f64,
    /// Upper bound on the rounding error of embeddings around this picture; it was taken off twice
    pub(crate) forward_error: f64,
    /// Whose proof the constant is: `verified`, computed from the encoder's weights
    pub(crate) origin: Origin,
}

/// Whose proof a constant is
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Origin {
    /// It was computed from the encoder's weights when the service was opened
    Verified,
}

impl From<LipschitzBound> for BoundFacts {
    fn from(bound: LipschitzBound) -> Self {
        Self {
            constant: bound.constant.get(),
            forward_error: bound.forward_error.get(),
            origin: Origin::Verified,
        }
    }
}

/// A gallery item near a query
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Item {
    /// 1 for the nearest
    pub(crate) rank: usize,
    pub(crate) identity: String,
    pub(crate) label: String,
    /// Which of its views is nearest; absent where items have one vector each
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) view: Option<String>,
    /// Euclidean distance between the query's embedding and the stored vector
    pub(crate) distance: f64,
    /// Whether its picture can be had
    pub(crate) picture: bool,
}

impl Item {
    /// Rows of a gallery that has the items of a snapshot, with their distances.
    pub(crate) fn list(snapshot: &Snapshot, nearest: &[Neighbour]) -> Vec<Self> {
        let gallery = snapshot.gallery();
        let item = |(place, neighbour): (usize, &Neighbour)| Self {
            rank: place + 1,
            identity: gallery.identity(neighbour.row).to_owned(),
            label: gallery.label_name(gallery.label(neighbour.row)).to_owned(),
            view: gallery.view(neighbour.row).map(str::to_owned),
            distance: neighbour.squared_distance.sqrt(),
            picture: snapshot.picture_path(neighbour.row).is_some(),
        };
        nearest.iter().enumerate().map(item).collect()
    }
}

/// How long an answer took
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Milliseconds {
    /// From the moment at which the picture was there
    pub(crate) total: f64,
    /// Of these, waiting for the encoder
    pub(crate) waiting: f64,
}

/// What an answer was made from, as SHA-256
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Hashes {
    /// The picture as it was sent
    pub(crate) picture: String,
    pub(crate) model: String,
    /// How pictures are prepared and embeddings normalised
    pub(crate) contract: String,
    /// The gallery, with every change up to this answer
    pub(crate) gallery: String,
}

/// What was retrieved and what is guaranteed about it
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Answer {
    pub(crate) verdict: VerdictWord,
    /// The retrieved label; null unless certified
    pub(crate) label: Option<String>,
    /// The label that was to be certified
    pub(crate) candidate_label: Option<String>,
    /// No change of the prepared picture below this l2 norm changes the label; null if abstained or unbounded
    pub(crate) radius: Option<f64>,
    /// No change of the file's own pixels (decoded, in [0, 1], same width and height) below this l2 norm changes the label;
    /// null if abstained, unbounded, or used up by rounding while the picture is resized
    #[serde(default)]
    pub(crate) file_radius: Option<f64>,
    /// Whether no change whatsoever can change the label
    pub(crate) unbounded: bool,
    /// The guarantee in words
    pub(crate) statement: String,
    /// Whether chance is involved
    #[serde(default)]
    pub(crate) guarantee: GuaranteeWord,
    /// Certifying samples drawn; null without noise
    pub(crate) samples: Option<u32>,
    /// Pilot samples, on which the label was chosen; null without noise
    pub(crate) pilot: Option<u32>,
    /// Which retriever answered: `mean`, `vote` or `pairwise`, or `plain` without noise
    #[serde(default = "mean_retriever")]
    pub(crate) retriever: String,
    /// Why no more samples were drawn; null without noise
    pub(crate) decision: Option<DecisionWord>,
    /// Noise level; null without noise
    pub(crate) sigma: Option<f64>,
    /// Probability that the guarantee is wrong; null without noise, where it holds always
    pub(crate) alpha: Option<f64>,
    /// What asking again about the same picture means for that probability; null without noise
    #[serde(default)]
    pub(crate) asking_again: Option<String>,
    /// The bound on the encoder that an answer without noise rests on; null with noise
    #[serde(default)]
    pub(crate) lipschitz: Option<BoundFacts>,
    /// The nearest items, nearest first
    pub(crate) items: Vec<Item>,
    /// What the encoder without noise retrieves, about which nothing is proved; null where the gallery has no embeddings
    /// of its clean pictures
    #[serde(default)]
    pub(crate) plain: Option<Item>,
    pub(crate) milliseconds: Milliseconds,
    pub(crate) hashes: Hashes,
    /// The receipt of the answer, if one was asked for; `retrievalguard verify` checks it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) receipt: Option<Value>,
    /// Name of the request in the logs
    pub(crate) request_id: String,
}

/// What binds the service before the first sample is drawn: the receipt of the answer opens it
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Commitment {
    /// SHA-256 of everything that is settled, the seed and a salt
    pub(crate) commitment: String,
}

/// What answered before there was a choice.
fn mean_retriever() -> String {
    Retriever::Mean.as_str().to_owned()
}

/// A certified radius on its way
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Step {
    /// Certifying samples drawn so far
    pub(crate) samples: u32,
    pub(crate) verdict: VerdictWord,
    pub(crate) label: Option<String>,
    pub(crate) radius: Option<f64>,
    pub(crate) file_radius: Option<f64>,
    pub(crate) unbounded: bool,
    pub(crate) statement: String,
    pub(crate) milliseconds: f64,
}

/// The part of an answer that a certificate decides.
pub(crate) struct Guarantee {
    pub(crate) verdict: VerdictWord,
    pub(crate) label: Option<String>,
    pub(crate) radius: Option<f64>,
    pub(crate) file_radius: Option<f64>,
    pub(crate) unbounded: bool,
    pub(crate) statement: String,
}

impl Guarantee {
    /// An answer is given only with a proof; everything else is an abstention.
    pub(crate) fn new(
        verdict: Verdict,
        candidate: Option<&str>,
        (system, samples): (&Guarantees, u32),
        file: Option<FilePixels>,
    ) -> Self {
        let (Verdict::Certified { radius }, Some(label)) = (verdict, candidate) else {
            return Self {
                verdict: VerdictWord::Abstained,
                label: None,
                radius: None,
                file_radius: None,
                unbounded: false,
                statement: abstention(candidate, &system.basis, samples),
            };
        };
        let alpha = system.basis.sampling().map(|sampling| sampling.alpha.to_string());
        let under = Circumstances {
            retriever: system.basis.retriever(),
            input: system.input,
            alpha: alpha.as_deref(),
            hidden: &[],
        };
        let statement = statement(label, radius, &under);
        let in_file = file.map_or(String::new(), |file| format!(" {}", file.statement(radius)));
        let finite = |radius: Radius| Some(radius.get()).filter(|radius| radius.is_finite());
        Self {
            verdict: VerdictWord::Certified,
            label: Some(label.to_owned()),
            radius: finite(radius),
            file_radius: file.and_then(|file| file.radius(radius)).and_then(finite),
            unbounded: radius == Radius::Unbounded,
            statement: statement + &in_file,
        }
    }
}

/// Every answer is an attempt of its own.
pub(crate) fn asking_again(alpha: Alpha) -> String {
    format!(
        "Asking again about the same picture draws other noise and is a new attempt at {alpha}: of k answers the best is \
         wrong with probability up to k times that."
    )
}

fn abstention(candidate: Option<&str>, basis: &Basis, samples: u32) -> String {
    let nearest = candidate.map_or(String::new(), |label| match basis.retriever() {
        Retriever::Mean | Retriever::Plain => {
            format!(" The nearest item has the label {label}, without a guarantee.")
        }
        Retriever::Vote | Retriever::Pairwise => {
            format!(" The pilot retrieves the label {label}, without a guarantee.")
        }
    });
    match (basis, samples) {
        (Basis::Bound(_), _) => {
            format!(
                "Two labels are equally near, as far as rounding can tell: none can be guaranteed.{nearest}"
            )
        }
        (Basis::Samples(_), 0) => format!("Nothing is proved yet.{nearest}"),
        (Basis::Samples(_), _) => format!("After {samples} samples no label can be guaranteed.{nearest}"),
    }
}
