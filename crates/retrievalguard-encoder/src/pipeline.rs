//! From data sets to galleries, tables of certificates and attacks on them, resumable at any moment.
//!
//! All runs keep an append-only journal (`resumable.rs`): what it acknowledges is on disk. The same call made again after
//! an interruption takes up where the journal ends and writes the same bytes as an uninterrupted run, because every record
//! is a function of inputs, parameters and engine alone.

mod answer;
mod attack;
mod certify;
mod encoder_inputs;
mod index;
mod kept_samples;
mod lipschitz;
mod options;
mod resumable;
pub mod run_files;
pub mod upgrade;

use std::path::Path;

use retrievalguard::attack::AttackError;
use retrievalguard::certificate::CertificateError;
use retrievalguard::gallery::GalleryError;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::journal::{Differences, JournalError};
use retrievalguard::storage::manifest::{Mismatch, StorageError};
use retrievalguard::storage::sample_cache::CacheError;
use retrievalguard::views::ViewError;
use retrievalguard::{ParameterError, SampleError, SmoothingError};

pub use answer::{
    Answered, Query, QueryCertifier, Relevant, Sighting, nearest_items, nearest_plain, uncertified,
};
pub(crate) use answer::{relevance_of, whole_items};
pub use attack::{AttackReport, AttackRequest, AttackTarget, attack, begun_judge_seed};
pub use certify::{
    CertifyPlan, CertifyReport, CertifyRequest, LeaveOneOut, QueryAnswer, certify, check_gallery, query_side,
};
pub use encoder_inputs::{EncoderInputs, input_values};
pub use index::{IndexReport, IndexRequest, index};
pub use kept_samples::Drawn;
pub use lipschitz::{PlainAnswered, PlainCertifier};
pub use options::{
    CertifyOptions, OptionsError, check_bets, check_cap, check_depth, check_kind, default_pilot, noise_of,
    usual_certificates,
};
pub use resumable::PictureOutcome;
pub(crate) use resumable::ResumableRun;

use crate::engine::EngineError;
use crate::model_config::ModelConfig;
use crate::picture::PictureError;
use crate::receipt::ReceiptError;
use crate::run::DescriptionError;
use crate::table::TableError;
use crate::work::Stopped;

/// Why a run ended without its result; everything acknowledged before is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A picture could not be read.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A picture does not have the encoder's input size after preparation.
    #[error(
        "picture `{picture}` is {found_height} × {found_width} after resizing, wanted {height} × {width} for the encoder"
    )]
    Size {
        /// Identity of the picture.
        picture: String,
        /// Its height.
        found_height: usize,
        /// Its width.
        found_width: usize,
        /// Height of the encoder's input.
        height: usize,
        /// Width of the encoder's input.
        width: usize,
    },
    /// The views make no sense for the encoder's pictures.
    #[error(transparent)]
    Views(#[from] ViewError),
    /// The encoder failed or broke its promise.
    #[error(transparent)]
    Smoothing(#[from] SmoothingError),
    /// The encoder failed, or has no bound.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// More samples were asked for than memory may hold.
    #[error(transparent)]
    Samples(#[from] SampleError),
    /// A query could not be certified.
    #[error("query `{query}` cannot be certified")]
    Certificate {
        /// Identity of the query.
        query: String,
        /// Why not.
        source: CertificateError,
    },
    /// A query could not be attacked.
    #[error("query `{query}` cannot be attacked")]
    Attack {
        /// Identity of the query.
        query: String,
        /// Why not.
        source: Box<AttackError>,
    },
    /// The gallery could not be built.
    #[error(transparent)]
    Gallery(#[from] GalleryError),
    /// The gallery and the queries were made differently.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The gallery's files could not be written or read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The journal could not be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A record of the journal is intact but not one of ours.
    #[error("record {record} of journal `{path}` is not a result of this run")]
    Record {
        /// The journal.
        path: String,
        /// Number of the record.
        record: usize,
    },
    /// The table could not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The run is described otherwise than it is made.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// Kept samples could not be read or written.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A receipt could not be made.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// A parameter is out of its range.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// Nothing is left to work on.
    #[error("no picture is left: all {skipped} were skipped as broken")]
    NothingLeft {
        /// How many were skipped.
        skipped: usize,
    },
    /// The run was told to stop; what was acknowledged is kept.
    #[error("stopped after {done} of {total}; the same command continues from there")]
    Stopped {
        /// How many are done.
        done: usize,
        /// How many there are.
        total: usize,
    },
}

impl From<Stopped> for PipelineError {
    fn from(Stopped { done, total }: Stopped) -> Self {
        Self::Stopped { done, total }
    }
}

/// The model config that a gallery's pictures were prepared by, in its directory.
const MODEL_CONFIG_FILE: &str = "contract.toml";

/// How it was settled that the encoder of a gallery is a function of each picture alone, in its directory.
const CHECK_FILE: &str = "encoder-check.json";

/// Says in which fields the model config of a gallery differs from the queries', if the gallery has kept its own.
pub fn model_config_difference(gallery: &Path, queries: &ModelConfig) -> Option<String> {
    let own = ModelConfig::read(&gallery.join(MODEL_CONFIG_FILE)).ok()?;
    let [own, queries] = [&own, queries].map(|config| serde_json::to_value(config).ok());
    let differences = Differences::between(&own?, &queries?);
    (!differences.0.is_empty()).then(|| differences.to_string())
}
