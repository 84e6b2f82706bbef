//! Provably robust nearest-neighbour retrieval.
//!
//! The crate holds the method and nothing else: no tensors, no async runtime, no argument parser. A query goes from a
//! picture to samples ([`Smoother`]), and from samples and a [`gallery`] to a verdict ([`certificate`]):
//!
//! ```
//! use retrievalguard::certificate::{CertificateName, Certifier, SampledQuery, Verdict};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::noise::Stage;
//! use retrievalguard::{Alpha, Embedder, EmbedderFailure, NormBound, Picture, Seed, Sigma, Smoother};
//!
//! /// Embeds a picture of one pixel as its sign: the paper's tight example.
//! struct Sign;
//!
//! impl Embedder for Sign {
//!     fn input_shape(&self) -> &[usize] {
//!         &[1]
//!     }
//!     fn dimension(&self) -> usize {
//!         1
//!     }
//!     fn norm_bound(&self) -> NormBound {
//!         NormBound::UNIT
//!     }
//!     fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
//!         for (pixel, embedding) in pictures.iter().zip(embeddings) {
//!             *embedding = pixel.signum();
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let (sigma, alpha) = (Sigma::new(0.25)?, Alpha::new(0.01)?);
//! let smoother = Smoother::new(&Sign, sigma, Seed::new(7));
//! let picture = Picture { identity: "query", pixels: &[0.5] };
//! let query = SampledQuery {
//!     pilot: smoother.samples(&picture, Stage::Pilot, 0..500)?,
//!     certifying: smoother.samples(&picture, Stage::Certify, 0..10_000)?,
//! };
//! let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! let gallery = Gallery::new(vec![1.0, -1.0], 1, names("item"), &names("label"), Metric::Euclidean)?;
//! let relevance = Relevance::new(Positives::Item(0), vec![]);
//! let outcome = Certifier::new(&gallery, sigma, alpha).certify(CertificateName::HalfSpace, &query, &relevance)?;
//!
//! // The pixel is 0.5 away from the boundary, so that is the true radius.
//! let Verdict::Certified { radius } = outcome.verdict else { panic!("{}", outcome.explain) };
//! assert!(radius.get() <= 0.5 && radius.get() > 0.45);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attack;
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
pub mod views;

pub use embedding::{Embedder, EmbedderFailure};
pub use parameters::{
    Alpha, ForwardError, LipschitzConstant, NormBound, ParameterError, SampleCount, Seed, Sigma, TargetRadius,
};
pub use samples::{Components, Excess, SampleError, Samples};
pub use smoothing::{Picture, SmoothedEmbedding, Smoother, SmoothingError};

/// The code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// For tests that share a file with those outside of the crate.
#[cfg(test)]
extern crate self as retrievalguard;
