//! What a service promises and what it refuses.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use retrievalguard::certificate::{CertificateName, Retriever};
use retrievalguard::{Alpha, Excess, SampleCount, Sigma, TargetRadius};
use retrievalguard_encoder::engine::{EngineError, OnnxEmbedder};
use retrievalguard_encoder::receipt::ReceiptKey;
use retrievalguard_encoder::run::{LipschitzBounded, Procedure};

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
    /// Seconds after which a query is cancelled.
    pub seconds: u64,
    /// Requests answered at the same time; more are refused.
    pub queue: usize,
    /// Of these, requests of one client.
    pub per_client: usize,
    /// Jobs that are kept, finished ones included.
    pub jobs: usize,
    /// Pictures of a job.
    pub job_pictures: usize,
    /// Open connections.
    pub connections: usize,
    /// Of these, connections from one address; further ones are refused before anything is read.
    pub connections_per_client: usize,
    /// Seconds that a search for a perturbation may take.
    pub search_seconds: u64,
}

/// A limit that no service can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limit on {name} is {found}, wanted a number from {least} to {most}")]
pub struct LimitError {
    /// What is limited.
    pub name: &'static str,
    /// The limit.
    pub found: u64,
    /// The smallest that makes sense.
    pub least: u64,
    /// The largest that is accepted.
    pub most: u64,
}

impl Limits {
    /// Whether every limit can be kept; times are added to clocks, and counts become semaphores and tables.
    pub fn check(&self) -> Result<(), LimitError> {
        const MANY: u64 = 1_000_000;
        for (name, found, least, most) in [
            ("the bytes of a body", self.body_bytes as u64, 1, 1 << 40),
            ("the pixels of a picture", self.pixels, 1, 1 << 40),
            ("the samples of a query", u64::from(self.samples), 1, u64::from(u32::MAX)),
            ("the samples of a job", u64::from(self.job_samples), 1, u64::from(u32::MAX)),
            ("the items of an answer", self.top_k as u64, 1, MANY),
            ("the seconds of a query", self.seconds, 1, MANY),
            ("the requests at once", self.queue as u64, 1, MANY),
            ("the requests of one client", self.per_client as u64, 1, MANY),
            ("the jobs", self.jobs as u64, 1, MANY),
            ("the pictures of a job", self.job_pictures as u64, 1, MANY),
            ("the connections", self.connections as u64, 1, MANY),
            ("the connections of one client", self.connections_per_client as u64, 1, MANY),
            ("the seconds of a search", self.search_seconds, 1, MANY),
        ] {
            if !(least..=most).contains(&found) {
                return Err(LimitError { name, found, least, most });
            }
        }
        Ok(())
    }
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
            connections_per_client: 256,
            search_seconds: 20,
        }
    }
}

/// Everything that decides how a service behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gallery's directory.
    pub gallery: PathBuf,
    /// Whether the gallery is served as it is, without its lock; it is, too, if it cannot be written to.
    pub read_only: bool,
    /// The folder of jobs; without one there are none.
    pub jobs: Option<PathBuf>,
    /// How noisy copies are drawn and judged; without it answers rest on a bound on the encoder, and there is no noise.
    pub sampling: Option<Sampling>,
    /// Threads that run the encoder.
    pub threads: NonZeroUsize,
    /// Passes per call of the encoder.
    pub batch: NonZeroUsize,
    /// What requests may cost.
    pub limits: Limits,
    /// The key that signs receipts; none for receipts without a signature.
    pub receipt_key: Option<ReceiptKey>,
    /// Who may ask; without tokens, everyone who reaches the service.
    pub tokens: Tokens,
    /// Names beside those of the loopback interface under which the service may be addressed.
    pub hosts: Vec<String>,
    /// Time that running requests have when the service shuts down.
    pub grace: Duration,
}

impl Settings {
    /// Refuses limits that cannot be kept.
    pub(crate) fn check(&self) -> Result<(), LimitError> {
        self.limits.check()?;
        let (found, most) = (self.grace.as_secs(), 1_000_000);
        if found > most {
            return Err(LimitError { name: "the seconds of grace", found, least: 0, most });
        }
        Ok(())
    }
}

/// How noisy copies are drawn, and what is made of them.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Noise level of the queries.
    pub sigma: Sigma,
    /// Probability that an answer's guarantee is wrong.
    pub alpha: Alpha,
    /// Which smoothed retriever answers.
    pub retriever: Retriever,
    /// Pilot samples.
    pub pilot: SampleCount,
    /// Certifying samples of a query that does not ask for a number.
    pub samples: SampleCount,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
}

/// What answers rest on.
pub(crate) enum Basis {
    /// Samples of noisy copies.
    Samples(Sampling),
    /// A bound on the encoder itself: one pass, and no chance.
    Bound(LipschitzBounded),
}

impl Basis {
    /// Samples if there are any; otherwise the bound that was computed from the weights when the encoder was opened.
    pub(crate) fn of(sampling: Option<Sampling>, embedder: &OnnxEmbedder) -> Result<Self, EngineError> {
        Ok(match sampling {
            Some(sampling) => Self::Samples(sampling),
            None => Self::Bound(LipschitzBounded {
                certificates: vec![CertificateName::Lipschitz],
                top_k: NonZeroUsize::MIN,
                mixtures: NonZeroUsize::MIN,
                lipschitz: embedder.lipschitz()?.clone(),
            }),
        })
    }

    /// How samples are drawn, if there are any.
    pub(crate) fn sampling(&self) -> Option<&Sampling> {
        match self {
            Self::Samples(sampling) => Some(sampling),
            Self::Bound(_) => None,
        }
    }

    /// Who answers.
    pub(crate) fn retriever(&self) -> Retriever {
        self.sampling().map_or(Retriever::Plain, |sampling| sampling.retriever)
    }
}

/// What every answer is made under.
pub(crate) struct Guarantees {
    pub(crate) basis: Basis,
    /// Channels, height and width of what the encoder gets.
    pub(crate) input: [usize; 3],
    /// SHA-256 of the model file.
    pub(crate) model: String,
    /// SHA-256 of the model config.
    pub(crate) contract: String,
}

impl Sampling {
    /// How a query with so many samples, or at most so many, is certified.
    pub(crate) fn procedure(&self, samples: SampleCount, target_radius: Option<TargetRadius>) -> Procedure {
        Procedure {
            sigma: self.sigma,
            alpha: self.alpha,
            pilot: self.pilot,
            samples,
            certificates: vec![self.retriever.certificate()],
            top_k: 1,
            target_radius,
            replan_bets: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_no_clock_or_counter_can_hold_are_refused_by_name() {
        Limits::default().check().unwrap();
        let usual = Limits::default();
        for (limits, name) in [
            (Limits { seconds: u64::MAX, ..usual }, "the seconds of a query"),
            (Limits { search_seconds: 0, ..usual }, "the seconds of a search"),
            (Limits { connections: usize::MAX, ..usual }, "the connections"),
            (Limits { connections_per_client: 0, ..usual }, "the connections of one client"),
            (Limits { queue: usize::MAX, ..usual }, "the requests at once"),
            (Limits { body_bytes: usize::MAX, ..usual }, "the bytes of a body"),
            (Limits { pixels: 0, ..usual }, "the pixels of a picture"),
        ] {
            assert_eq!(limits.check().unwrap_err().name, name);
        }
    }
}
