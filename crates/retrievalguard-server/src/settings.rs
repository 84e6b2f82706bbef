//! What a service promises and what it refuses.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use retrievalguard::{Alpha, Excess, SampleCount, Sigma};

use crate::access::Tokens;

/// What one request may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Pixels of a picture.
    pub pixels: u64,
    /// Certifying samples of a query.
    pub samples: u32,
    /// Certifying samples of each picture of a job.
    pub job_samples: u32,
    /// Items in an answer.
    pub top_k: usize,
    /// Seconds until a query is given up.
    pub seconds: u64,
    /// Requests that are answered at once; more are sent away.
    pub queue: usize,
    /// Of these, requests of one client.
    pub per_client: usize,
    /// Jobs that are kept, finished ones included.
    pub jobs: usize,
    /// Pictures of a job.
    pub job_pictures: usize,
    /// Open connections.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            pixels: 40_000_000,
            samples: 10_000,
            job_samples: 100_000,
            top_k: 100,
            seconds: 30,
            queue: 64,
            per_client: 32,
            jobs: 256,
            job_pictures: 100,
            connections: 1_024,
        }
    }
}

/// Everything that decides how a service behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gallery's directory.
    pub gallery: PathBuf,
    /// Where jobs are kept.
    pub jobs: PathBuf,
    /// Noise level of the queries.
    pub sigma: Sigma,
    /// Probability that an answer's guarantee is wrong.
    pub alpha: Alpha,
    /// Pilot samples.
    pub pilot: SampleCount,
    /// Certifying samples of a query that does not ask for a number.
    pub samples: SampleCount,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// Threads that run the encoder.
    pub threads: NonZeroUsize,
    /// Passes per call of the encoder.
    pub batch: NonZeroUsize,
    /// What requests may cost.
    pub limits: Limits,
    /// Who may ask; nobody is asked for a token if there are none.
    pub tokens: Tokens,
    /// Time that requests have to end when the service does.
    pub grace: Duration,
}

/// What every answer is made under.
pub(crate) struct Guarantees {
    pub(crate) sigma: Sigma,
    pub(crate) alpha: Alpha,
    pub(crate) pilot: SampleCount,
    /// Channels, height and width of what the encoder gets.
    pub(crate) input: [usize; 3],
    /// SHA-256 of the model file.
    pub(crate) model: String,
    /// SHA-256 of the contract.
    pub(crate) contract: String,
}
