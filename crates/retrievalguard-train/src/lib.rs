//! Trains encoders: deep metric learning with the margin loss, with and without Gaussian noise on the pictures;
//! Lipschitz encoders by their certified radius; and students of a teacher that has seen no noise.

mod augment;
pub mod backend;
mod batches;
pub mod certified;
pub mod checkpoint;
pub mod export;
pub mod kernel;
mod loading;
pub mod loss;
pub mod network;
mod picture_cache;
mod prefetch;
pub mod random;
pub mod recipe;
mod run_log;
mod tensorboard;
pub mod trainer;
pub mod weights;

pub use augment::ViewError;
pub use backend::{Backend, BackendError};
pub use batches::BatchPlanError;
pub use certified::{CertifiedError, CertifiedRecall, LipschitzEncoder, certified_recall};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use export::{ExportError, Exported, export};
pub use network::{Architecture, Network, NetworkConfig};
pub use recipe::{Preset, Recipe, RecipeError};
pub use run_log::RunLogError;
pub use tensorboard::EventFileError;
pub use trainer::{
    EvaluationReport, Measured, RunFolder, Start, StepReport, TrainError, TrainObserver, TrainReport,
    TrainRequest, train,
};
pub use weights::{Weights, WeightsError};
