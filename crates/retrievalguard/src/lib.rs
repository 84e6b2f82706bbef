//! Provably robust nearest-neighbour retrieval.
//!
//! The crate holds the method and nothing else: no tensors, no async runtime, no argument parser.

pub mod binomial;
pub mod gallery;
pub mod noise;
pub mod normal;
mod parameters;

pub use parameters::{Alpha, NormBound, ParameterError, SampleCount, Seed, Sigma, TargetRadius};
