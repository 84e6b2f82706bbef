//! The tables of a recipe.

use retrievalguard_encoder::resize::{Interpolation, Resampling};
use serde::{Deserialize, Serialize};

use crate::loss::{Average, DistanceWeights, Pairing};
use crate::network::{Architecture, HeadKind, LipschitzStage, Statistics};

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPart {
    /// The backbone.
    pub architecture: Architecture,
    /// Length `k` of an embedding.
    pub dimension: usize,
    /// 3 for colour, 1 for grey.
    pub channels: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Which statistics batch normalisation uses.
    pub batch_norm: Statistics,
    /// Channels of the small encoder's convolutions; other architectures have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<usize>,
    /// Stages of the Lipschitz encoder; without them, what suits the size of the pictures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<LipschitzStage>,
    /// What comes after the features.
    #[serde(default, skip_serializing_if = "is_default")]
    pub head: HeadKind,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How pictures become inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PicturesPart {
    /// Shorter side before the centre is cut out for evaluation.
    pub resize: usize,
    /// Filter of every resize.
    pub interpolation: Interpolation,
    /// In which numbers; recipes that do not say it are of encoders that were trained with 8 bits.
    #[serde(default)]
    pub resampling: Resampling,
    /// Smallest and largest share of a picture's area that a training crop takes.
    pub crop_area: [f64; 2],
    /// Smallest and largest ratio of a training crop's width to its height.
    pub crop_ratio: [f64; 2],
    /// Whether half of the training views are mirrored.
    pub flip: bool,
}

/// What one step sees: `classes × pictures` views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchPart {
    /// Classes `P` in a batch.
    pub classes: usize,
    /// Pictures `K` of each.
    pub pictures: usize,
}

/// Noise on the pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoisePart {
    /// Standard deviation `σ`, in pixels scaled to `[0, 1]`; zero for none.
    pub sigma: f64,
}

/// Which loss labels teach by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// The paper's, over triplets.
    #[default]
    Margin,
    /// The certified radius of a Lipschitz encoder, made smooth.
    CertifiedRadius,
}

/// The loss that labels teach by; `beta` to `upper_cutoff` are those of the margin loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossPart {
    /// Which loss.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: LossKind,
    /// Its factor; zero for a run without labels, which a teacher alone teaches.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: f64,
    /// Radius `ρ` that the certified-radius loss aims at.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rho: f64,
    /// Width `τ` over which the certified-radius loss is smooth.
    #[serde(default = "usual_tau", skip_serializing_if = "is_usual_tau")]
    pub tau: f64,
    /// Initial boundary `β` between the classes' distances.
    pub beta: f64,
    /// Learning rate of `β`.
    pub beta_learning_rate: f64,
    /// Margin `γ` on both sides of the boundary.
    pub gamma: f64,
    /// What the sum over triplets is divided by.
    pub average: Average,
    /// Which positives an anchor meets.
    #[serde(default)]
    pub pairing: Pairing,
    /// Distances of negatives below this count as this.
    #[serde(default = "lower_cutoff")]
    pub lower_cutoff: f64,
    /// Negatives this far away or farther are not sampled; 2, which none is beyond, for no such limit.
    #[serde(default = "upper_cutoff")]
    pub upper_cutoff: f64,
}

fn one() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_one(value: &f64) -> bool {
    *value == one()
}

fn usual_tau() -> f64 {
    0.25
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_usual_tau(value: &f64) -> bool {
    *value == usual_tau()
}

/// A teacher: the rows that another encoder gives for the clean pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistillationPart {
    /// Factor of the squared distance from the teacher's rows.
    #[serde(default = "one")]
    pub weight: f64,
    /// Length of the teacher's rows for a Lipschitz student; rows of other students have length 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub scale: f64,
}

fn lower_cutoff() -> f64 {
    DistanceWeights::default().lower_cutoff
}

fn upper_cutoff() -> f64 {
    DistanceWeights::default().upper_cutoff.unwrap_or(2.0)
}

/// Adam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimiserPart {
    /// Learning rate of the backbone at the start.
    pub learning_rate: f64,
    /// Learning rate of the head, as a multiple of the backbone's.
    pub head_factor: f64,
    /// Pulls weights to zero, added to the gradient.
    pub weight_decay: f64,
    /// Gradients of a tensor that are longer than this are shortened to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// By a factor at every milestone.
    #[default]
    Steps,
    /// Along half a cosine to zero, step by step; `milestones` and `factor` are not used.
    Cosine,
}

/// How long, and how the steps shrink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulePart {
    /// Times the training set is seen.
    pub epochs: u32,
    /// How the learning rate falls.
    #[serde(default, skip_serializing_if = "is_default")]
    pub curve: Curve,
    /// Epochs (counted from zero) from which on the learning rate is smaller.
    pub milestones: Vec<u32>,
    /// Factor on the learning rate at each.
    pub factor: f64,
}

/// What is measured on the way: Recall@1 on classes that are not trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationPart {
    /// Epochs from one evaluation to the next; the last epoch is always evaluated. Zero for never.
    pub every: u32,
    /// Share of the classes kept out of training for it, unless other pictures are given.
    pub held_out: f64,
    /// At most so many pictures.
    pub pictures: usize,
    /// Noisy copies averaged per picture for the smoothed recall.
    pub samples: u32,
    /// Noise of the smoothed recall; that of training, or 0.25 if there is none, by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
    /// Radius at which certified recall is measured with noise, under `pairwise`; not measured without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub radius: Option<f64>,
}
