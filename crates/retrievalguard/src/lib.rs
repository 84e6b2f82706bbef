//! Provably robust nearest-neighbour retrieval.
//!
//! The crate holds the method and nothing else: no tensors, no async runtime, no argument parser.

pub mod binomial;
pub mod certificate;
mod embedding;
pub mod evaluation;
pub mod gallery;
pub mod noise;
pub mod normal;
mod parameters;
pub mod planner;
mod product;
mod samples;
mod smoothing;
pub mod storage;

pub use embedding::{Embedder, EmbedderFailure};
pub use parameters::{Alpha, NormBound, ParameterError, SampleCount, Seed, Sigma, TargetRadius};
pub use samples::{Excess, SampleError, Samples};
pub use smoothing::{Picture, SmoothedEmbedding, Smoother, SmoothingError};
