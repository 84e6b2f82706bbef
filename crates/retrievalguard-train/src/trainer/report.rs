//! What a run tells while it goes on and when it ends.

use std::fmt;

use retrievalguard_encoder::recall::Recall;
use serde::Serialize;

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
    /// The boundary `β`.
    pub beta: f64,
    /// Share of the pairs that still have a loss.
    pub active: f64,
    /// Learning rate of the backbone.
    pub learning_rate: f64,
    /// Pictures learnt from per second, since this process began.
    pub pictures_per_second: f64,
}

/// What an evaluation showed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationReport {
    /// Epochs completed; zero before the first.
    pub epochs: u32,
    /// Steps made since the beginning.
    #[serde(skip)]
    pub step: u64,
    /// Noise of the smoothed recall.
    pub sigma: f64,
    /// What was measured.
    #[serde(flatten)]
    pub recall: Recall,
    /// The same of the backbone's features before the first step, without a head, if the run's log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untrained: Option<Recall>,
}

impl fmt::Display for EvaluationReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sigma, recall, untrained, .. } = self;
        write!(
            formatter,
            "held-out Recall@1 {:.4} clean, {:.4} smoothed with sigma {sigma}, on {} pictures of {} classes",
            recall.clean, recall.smoothed, recall.pictures, recall.classes
        )?;
        match untrained {
            Some(untrained) => write!(
                formatter,
                " (untrained backbone: {:.4} clean, {:.4} smoothed)",
                untrained.clean, untrained.smoothed
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
