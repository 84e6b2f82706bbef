//! What a run tells while it goes on and when it ends.

use std::fmt;

use retrievalguard_encoder::recall::Recall;
use serde::{Deserialize, Serialize};

use crate::certified::{CertifiedRecall, RADII};

/// How a run is going.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// Epoch, counted from 1.
    pub epoch: u32,
    /// Steps made since the beginning.
    #[serde(skip)]
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Loss of the batch.
    pub loss: f64,
    /// The boundary `β` of the margin loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// Share of the pairs that still have a margin loss, or of the rows whose radius is below the one aimed at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<f64>,
    /// Mean squared distance from the teacher's rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distillation: Option<f64>,
    /// Learning rate of the backbone.
    pub learning_rate: f64,
    /// Pictures learnt from per second, since this process began.
    pub pictures_per_second: f64,
}

/// What was measured on held-out pictures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Measured {
    /// Clean and smoothed recall.
    Smoothed(Recall),
    /// Recall and certified radii of a Lipschitz encoder.
    Certified(CertifiedRecall),
}

/// What an evaluation showed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationReport {
    /// Epochs completed; zero before the first.
    pub epochs: u32,
    /// Steps made since the beginning.
    #[serde(skip)]
    pub step: u64,
    /// Noise of the smoothed recall; none for a Lipschitz encoder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
    /// Radius of the certified recall with noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radius: Option<f64>,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// The same of the backbone's features before the first step, without a head, if the run's log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untrained: Option<Measured>,
}

impl Measured {
    /// Names and values for curves.
    pub(super) fn numbers(&self) -> Vec<(&'static str, f64)> {
        match self {
            Self::Smoothed(recall) => {
                let certified = recall.certified.map(|certified| ("certified_recall", certified));
                [("recall_clean", recall.clean), ("recall_smoothed", recall.smoothed)]
                    .into_iter()
                    .chain(certified)
                    .collect()
            }
            Self::Certified(found) => vec![
                ("recall_clean", found.recall),
                ("average_radius", found.average_radius),
                ("certified_recall_0.5", found.certified[HALF]),
            ],
        }
    }
}

/// Place of the radius 0.5 among [`RADII`].
const HALF: usize = 2;

impl fmt::Display for EvaluationReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.measured {
            Measured::Smoothed(recall) => {
                write!(
                    formatter,
                    "held-out Recall@1 {:.4} clean, {:.4} smoothed with sigma {}",
                    recall.clean,
                    recall.smoothed,
                    self.sigma.unwrap_or_default(),
                )?;
                if let (Some(certified), Some(radius)) = (recall.certified, self.radius) {
                    write!(formatter, ", {certified:.4} certified at {radius}")?;
                }
                write!(formatter, ", on {} pictures of {} classes", recall.pictures, recall.classes)?;
            }
            Measured::Certified(found) => write!(
                formatter,
                "held-out Recall@1 {:.4}, average certified radius {:.4}, certified recall {:.4} at {}, on {} pictures of {} classes",
                found.recall,
                found.average_radius,
                found.certified[HALF],
                RADII[HALF],
                found.pictures,
                found.classes
            )?,
        }
        match self.untrained {
            Some(Measured::Smoothed(recall)) => write!(
                formatter,
                " (untrained backbone: {:.4} clean, {:.4} smoothed)",
                recall.clean, recall.smoothed
            ),
            Some(Measured::Certified(found)) => write!(
                formatter,
                " (untrained backbone: {:.4}, radius {:.4})",
                found.recall, found.average_radius
            ),
            None => Ok(()),
        }
    }
}

/// Hears how a run is going and may stop it.
pub trait TrainObserver: Sync {
    /// A step was made.
    fn stepped(&self, report: &StepReport);
    /// Recall was measured.
    fn evaluated(&self, report: &EvaluationReport);
    /// Something a person should know.
    fn note(&self, words: &str);
    /// Whether to write a checkpoint and stop.
    fn stop(&self) -> bool {
        false
    }
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct TrainReport {
    /// Steps of the whole run.
    pub steps: u64,
    /// What the last evaluation of this process showed.
    pub evaluation: Option<EvaluationReport>,
}
