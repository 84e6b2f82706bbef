//! Runs that many machines share: a manifest, tasks, parts, and their merge.
//!
//! A run is kept in a directory or in an object store, and holds everything that a worker needs: the encoder, the gallery,
//! the pictures and every parameter. It is cut into tasks, each a function of the run alone, and each task leaves one
//! part under a name of its own. Workers need not know of each other: any number of them, killed and repeated at will,
//! leave the same parts, and the merge puts them together in the order of the queries, to the bytes of a run on one
//! machine.
//!
//! ```text
//! shared.json        the run's description, and the digests of everything below and of itself
//! model.onnx         the encoder, and contract.toml how pictures are prepared for it
//! gallery/           vectors.npy, items.jsonl, manifest.json, and plain.npy if there is one
//! pictures/000042    a query's picture, as it was read
//! parts/000042-003   what a task made
//! ```

mod manifest;
mod merging;
mod part;
mod sharing;
mod store;
mod task;
mod working;

use std::io;

use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::lock::LockError;
use retrievalguard::storage::manifest::StorageError;
use retrievalguard::storage::sealed::SealError;
use retrievalguard_encoder::engine::EngineError;
use retrievalguard_encoder::model_config::ModelConfigError;
use retrievalguard_encoder::picture::PictureError;
use retrievalguard_encoder::pipeline::PipelineError;
use retrievalguard_encoder::work::Stopped;

pub use manifest::{Notes, RunManifest, SHARED_FORMAT, SharedQuery};
pub use merging::{Merged, merge};
pub use sharing::{Sharing, share};
pub use store::RunStore;
pub use task::{Assignment, AssignmentError, Task};
pub use working::{Unfinished, Worked, Worker, WorkerOptions, unfinished, work};

/// Why a shared run cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The address cannot be used.
    #[error("`{address}` cannot hold a run: {reason}")]
    Address {
        /// The address as it was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address is one of an object store, and this build has none.
    #[error(
        "`{address}` is in an object store, and `{scheme}://` needs a build with the feature `cloud`: run the same \
         command with `cargo run --release --features cloud --`"
    )]
    NoCloud {
        /// The address as it was given.
        address: String,
        /// What stands before `://`.
        scheme: String,
    },
    /// An object could not be read or written.
    #[error("`{name}` of run `{run}` cannot be {what}")]
    Store {
        /// The run.
        run: String,
        /// The object.
        name: String,
        /// What was tried.
        what: &'static str,
        /// What the store said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing was shared there.
    #[error("`{run}` has no shared.json: nothing was shared there, or sharing was interrupted")]
    NoRun {
        /// The run.
        run: String,
    },
    /// The address holds another run.
    #[error("`{run}` holds another run already, wanted an empty address or the same run")]
    Taken {
        /// The run.
        run: String,
    },
    /// The manifest is not one of ours.
    #[error("shared.json of `{run}` is not {wanted}")]
    Manifest {
        /// The run.
        run: String,
        /// What should stand there.
        wanted: String,
    },
    /// The manifest was changed.
    #[error("shared.json of `{run}` failed verification")]
    Seal {
        /// The run.
        run: String,
        /// What is wrong with it.
        source: SealError,
    },
    /// What would be worked on is not what the table will say.
    #[error(
        "run `{run}` has other {what} than its description says: sha256 {found:.16}…, wanted {wanted:.16}…"
    )]
    Other {
        /// The run.
        run: String,
        /// What differs.
        what: &'static str,
        /// Its digest.
        found: Digest,
        /// The digest in the description.
        wanted: Digest,
    },
    /// A file differs from what the manifest says.
    #[error("`{name}` of run `{run}` has sha256 {found:.16}…, its manifest says {wanted:.16}…")]
    Changed {
        /// The run.
        run: String,
        /// The object.
        name: String,
        /// Its digest.
        found: String,
        /// The digest in the manifest.
        wanted: String,
    },
    /// Last digits depend on who computes.
    #[error("run `{run}` needs engine {wanted}, this worker has {found}")]
    Engine {
        /// The run.
        run: String,
        /// The worker's engine.
        found: String,
        /// The run's engine.
        wanted: String,
    },
    /// Adaptive sampling decides as it goes which samples are wanted.
    #[error("a target radius decides query by query how many samples are drawn, wanted no --chunk beside it")]
    ChunkedTarget,
    /// The merge needs every part.
    #[error("{missing} of {total} parts of run `{run}` are missing, first that of {first}; run more workers")]
    Missing {
        /// The run.
        run: String,
        /// How many are missing.
        missing: usize,
        /// How many there should be.
        total: usize,
        /// The first that is missing, in words.
        first: String,
    },
    /// A part is not what its task makes.
    #[error("part `{name}` of run `{run}` cannot be used: {reason}; remove it and run a worker again")]
    Part {
        /// The run.
        run: String,
        /// The part.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory for the table holds the results of another run.
    #[error(
        "`{path}` holds the results of another run, wanted a new or empty directory or those of this run"
    )]
    Occupied {
        /// The directory.
        path: String,
    },
    /// The run has no such task.
    #[error("run `{run}` has no task {number}, wanted one below {total}")]
    Number {
        /// The run.
        run: String,
        /// What was asked for.
        number: usize,
        /// How many there are.
        total: usize,
    },
    /// The worker was asked to stop.
    #[error("stopped after {done} of {total} tasks; the same command continues from there")]
    Stopped {
        /// Tasks done.
        done: usize,
        /// Tasks of this worker.
        total: usize,
    },
    /// A file of this machine could not be used.
    #[error("`{path}` cannot be used")]
    File {
        /// The file.
        path: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The encoder does not run here.
    #[error(transparent)]
    Encoder(#[from] EngineError),
    /// The model config cannot be read.
    #[error(transparent)]
    ModelConfig(#[from] ModelConfigError),
    /// The gallery cannot be read.
    #[error(transparent)]
    Gallery(#[from] StorageError),
    /// A picture is broken.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A query could not be certified.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Somebody else writes to the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl From<Stopped> for WorkerError {
    fn from(Stopped { done, total }: Stopped) -> Self {
        Self::Stopped { done, total }
    }
}
