//! RetrievalGuard as a service: an HTTP interface and a page.
//!
//! One encoder and one gallery, and answers with guarantees for everyone who asks. [`scheduler`] shares the encoder
//! between queries, and the rest turns requests into queries and certificates into answers; the method itself stays
//! in the method crate. Sampling threads, the gallery's writer and the jobs outlive a request; a request whose client is gone
//! is cancelled.

mod access;
mod admission;
mod answer;
mod api;
mod app;
mod connections;
mod form;
mod gallery_writer;
mod jobs;
mod metrics;
mod origin;
mod page;
mod perturbation;
mod problem;
mod query_execution;
pub mod scheduler;
mod search;
mod service;
mod serving;
mod settings;

use std::io;
use std::path::PathBuf;

use retrievalguard::storage::manifest::StorageError;
use retrievalguard::{SampleError, Seed};
use retrievalguard_encoder::engine::EngineError;
use retrievalguard_encoder::pipeline::PipelineError;

pub use access::{Role, TokenError, Tokens};
pub use api::document;
pub use search::SharedGradients;
pub use serving::{ReloadError, Reloader, Serving, Stop};
pub use settings::{LimitError, Limits, Sampling, Settings};

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The gallery cannot be read, or another program writes to it.
    #[error(transparent)]
    Gallery(#[from] StorageError),
    /// The gallery was made for another encoder or noise level.
    #[error(transparent)]
    Mismatch(#[from] PipelineError),
    /// Without noise, the encoder has no bound that answers could rest on.
    #[error(transparent)]
    Bound(#[from] EngineError),
    /// More samples are allowed than memory may hold.
    #[error(transparent)]
    Samples(#[from] SampleError),
    /// The folder of jobs cannot be used.
    #[error("the jobs in `{}` cannot be read", path.display())]
    Jobs {
        /// The folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// An allowed host is not a name.
    #[error("allowed host is `{found}`, wanted a name or an address, without a port")]
    Host {
        /// What was given.
        found: String,
    },
    /// A limit cannot be kept.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A thread could not be started.
    #[error("a thread could not be started")]
    Threads(#[source] io::Error),
    /// The encoder failed on its first passes.
    #[error("the encoder does not run")]
    Encoder(#[source] scheduler::PassError),
    /// The address cannot be used.
    #[error("`{address}` cannot be listened on")]
    Listen {
        /// The address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Anyone could reach the service without a token.
    #[error("`{address}` can be reached from other machines, wanted tokens or a loopback address")]
    Unguarded {
        /// The address.
        address: String,
    },
}

/// Random bytes of the operating system.
pub fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes)
        .map_err(|error| io::Error::other(format!("the operating system gave no random bytes: {error}")))?;
    Ok(bytes)
}

/// A name that nobody can guess: 32 hexadecimal digits.
fn random_name() -> io::Result<String> {
    Ok(random_bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A seed that nobody can guess, for answers that an attacker must not foresee.
pub fn secret_seed() -> io::Result<Seed> {
    Ok(Seed::from_bytes(random_bytes()?))
}
