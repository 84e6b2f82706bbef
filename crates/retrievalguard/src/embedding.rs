//! The thin trait that every encoder implements.
//!
//! The theory asks three things of an encoder `h`: it is a function of each picture alone (no statistics over the
//! batch), it always gives the same answer, and its output lies in the ball of radius `F`. The first two are the
//! implementor's promise; the third is checked on every output.
//!
//! ```
//! use retrievalguard::{Embedder, EmbedderFailure, NormBound};
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
//! let mut out = [0.0; 2];
//! Sign.embed(&[0.3, -0.2], &mut out)?;
//! assert_eq!(out, [1.0, -1.0]);
//! # Ok::<(), EmbedderFailure>(())
//! ```

use crate::{Components, NormBound};

/// What an engine reports when it cannot run.
pub type EmbedderFailure = Box<dyn std::error::Error + Send + Sync>;

/// An encoder `h`: pictures in, embeddings out.
///
/// It is called from several threads at once; an engine with one session per thread keeps a pool behind `&self`.
pub trait Embedder: Sync {
    /// Shape of one picture, for instance `[3, 224, 224]`; pixels are in `[0, 1]` before noise is added.
    fn input_shape(&self) -> &[usize];

    /// Length `k` of an embedding.
    fn dimension(&self) -> usize;

    /// Norm bound `F` of the embeddings.
    fn norm_bound(&self) -> NormBound;

    /// Embeds the consecutive pictures in `pictures` into rows of `embeddings`.
    ///
    /// The caller guarantees that both slices hold the same whole number of rows.
    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure>;

    /// Embeds one picture in double precision, neither checked nor projected; none for an encoder that does not compute so.
    fn embed_double(&self, picture: &[f32]) -> Option<Result<Vec<f64>, EmbedderFailure>> {
        let _ = picture;
        None
    }

    /// What is known of the components of every embedding; negative ones are set to zero where it says so.
    fn components(&self) -> Components {
        Components::Any
    }

    /// Number of pixels (times channels) of one picture.
    fn input_len(&self) -> usize {
        self.input_shape().iter().product()
    }
}
