//! Why a run ended without its encoder.

use std::io;
use std::path::PathBuf;

use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::lock::LockError;
use retrievalguard_encoder::engine::EngineError;
use retrievalguard_encoder::model_config::ModelConfigError;
use retrievalguard_encoder::recall::RecallError;

use crate::augment::ViewError;
use crate::backend::BackendError;
use crate::batches::BatchPlanError;
use crate::certified::CertifiedError;
use crate::checkpoint::{CheckpointError, TrainingPosition};
use crate::export::ExportError;
use crate::loss::SamplingError;
use crate::network::ConfigError;
use crate::recipe::RecipeError;
use crate::run_log::RunLogError;
use crate::tensorboard::EventFileError;
use crate::weights::{FitError, WeightsError};

/// Why a run ended without its encoder; the last checkpoint is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The folder holds another run.
    #[error("`{folder}` holds a run already (`{file}`), wanted a new folder")]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The file that says so.
        file: PathBuf,
    },
    /// Another run is writing to the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder could not be made.
    #[error("folder `{folder}` cannot be made")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no run to go on with.
    #[error("there is no run to resume: `{file}` cannot be read")]
    NothingToResume {
        /// The file that a run would have.
        file: PathBuf,
    },
    /// The list of inputs is damaged.
    #[error("`{file}` is not the list of a run's inputs")]
    Inputs {
        /// The file.
        file: PathBuf,
        /// What its reader says.
        source: serde_json::Error,
    },
    /// A run can only go on as it began.
    #[error("{what} changed since the run began: found {given}, wanted {found}")]
    Changed {
        /// What is different.
        what: &'static str,
        /// What the run began with.
        found: String,
        /// What was given.
        given: String,
    },
    /// The checkpoint is of another run.
    #[error("checkpoint `{file}` is of another run, wanted the one of this folder's recipe and inputs")]
    ForeignCheckpoint {
        /// The file.
        file: PathBuf,
    },
    /// A tensor of the checkpoint does not fit the network.
    #[error("tensor `{tensor}` of the checkpoint is {found}, wanted shape {wanted:?}")]
    CheckpointTensor {
        /// Its name.
        tensor: String,
        /// What was found.
        found: String,
        /// What the network has.
        wanted: Vec<usize>,
    },
    /// What Adam remembered cannot be written or read.
    #[error(
        "the state of the optimiser of the {optimiser} is missing or damaged, wanted one that burn wrote"
    )]
    OptimiserState {
        /// Which optimiser.
        optimiser: &'static str,
    },
    /// The loss is not a number: the run has diverged.
    #[error(
        "the loss is {value} in epoch {}, batch {}; the last checkpoint is kept",
        position.epoch + 1,
        position.batch + 1
    )]
    LossNotFinite {
        /// The step that was not made.
        position: TrainingPosition,
        /// The loss.
        value: f64,
    },
    /// A weight is not a number: the run has diverged.
    #[error(
        "a weight is not a finite number before epoch {}, batch {}; the last checkpoint is kept",
        position.epoch + 1,
        position.batch + 1
    )]
    WeightsNotFinite {
        /// The step that comes next.
        position: TrainingPosition,
    },
    /// The batch's embeddings give no triplets.
    #[error(
        "epoch {}, batch {} cannot be trained on; the last checkpoint is kept",
        position.epoch + 1,
        position.batch + 1
    )]
    Sampling {
        /// The step that was not made.
        position: TrainingPosition,
        /// Why not.
        source: SamplingError,
    },
    /// All classes are held out, or too few are.
    #[error(
        "{held_out} of {classes} classes are held out, wanted at least two held out and two trained on; change evaluation.held_out"
    )]
    HeldOut {
        /// Classes held out.
        held_out: usize,
        /// Classes in all.
        classes: usize,
    },
    /// A class is in both sets.
    #[error("class `{label}` is both trained on and held out, wanted classes that are not trained on")]
    SharedClass {
        /// Its label.
        label: String,
    },
    /// The run was asked to stop.
    #[error("stopped in epoch {} after {} batches; --resume goes on from there", position.epoch + 1, position.batch)]
    Stopped {
        /// The next step.
        position: TrainingPosition,
    },
    /// A teacher without anything to teach.
    #[error("a teacher is given, but the recipe has no [distillation] table, wanted distillation.weight")]
    NoDistillation,
    /// The teacher takes other pictures than the student.
    #[error("teacher `{}` takes pictures of {found:?}, wanted {wanted:?}, what the student takes", model.display())]
    TeacherPicture {
        /// The file.
        model: PathBuf,
        /// Channels, rows and columns of the teacher.
        found: [usize; 3],
        /// Those of the student.
        wanted: [usize; 3],
    },
    /// The teacher says too little.
    #[error("the teacher gives {found} dimensions, wanted at least the student's {wanted}")]
    TeacherDimension {
        /// Dimensions of the teacher.
        found: usize,
        /// Those of the student.
        wanted: usize,
    },
    /// The student's beginning is its teacher, and cannot be had again.
    #[error("the run is taught by its own initial weights, wanted the same --weights again")]
    TeacherWeights,
    /// The teacher failed.
    #[error("the teacher gave nothing for a batch")]
    Teacher {
        /// Why not.
        source: retrievalguard::EmbedderFailure,
    },
    /// Certified recall could not be measured.
    #[error(transparent)]
    Certified(Box<CertifiedError>),
    /// The log could not be written or read.
    #[error(transparent)]
    Log(#[from] RunLogError),
    /// An event file could not be written.
    #[error(transparent)]
    Events(#[from] EventFileError),
    /// The file of initial weights cannot be read.
    #[error("weights `{file}` cannot be read")]
    WeightsFile {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The recipe is wrong.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The network cannot be built.
    #[error(transparent)]
    Network(#[from] ConfigError),
    /// The backend cannot be used.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The pictures give no batches.
    #[error(transparent)]
    Batches(#[from] BatchPlanError),
    /// A picture could not be loaded.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The weights could not be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The initial weights do not fit.
    #[error(transparent)]
    Fit(#[from] Box<FitError>),
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The encoder could not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The exported encoder's model config cannot be read.
    #[error(transparent)]
    ModelConfig(#[from] ModelConfigError),
    /// The exported encoder could not be opened.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Recall could not be measured.
    #[error(transparent)]
    Recall(#[from] RecallError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<CertifiedError> for TrainError {
    fn from(error: CertifiedError) -> Self {
        Self::Certified(Box::new(error))
    }
}
