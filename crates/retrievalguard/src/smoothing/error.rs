//! What can be wrong with a picture, an encoder or its embeddings.

use crate::samples::RowFault;
use crate::{EmbedderFailure, NormBound, SampleError};

/// Why a picture could not be smoothed; every variant names the picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SmoothingError {
    /// The picture does not fit the encoder.
    #[error("picture `{picture}` has {found} values, wanted {wanted} for the encoder's shape {shape:?}")]
    Shape {
        /// Identity of the picture.
        picture: String,
        /// How many values it has.
        found: usize,
        /// How many the encoder takes.
        wanted: usize,
        /// The encoder's input shape.
        shape: Vec<usize>,
    },
    /// A pixel is NaN or infinite.
    #[error("picture `{picture}` has {value} at pixel {pixel}, wanted a finite number")]
    Pixel {
        /// Identity of the picture.
        picture: String,
        /// Index of the pixel.
        pixel: usize,
        /// What was found there.
        value: f32,
    },
    /// The encoder's shape or dimension is empty or too large to be counted.
    #[error(
        "the encoder takes shape {shape:?} and gives {dimension} numbers, wanted at least one and at most 2^40 of each"
    )]
    Encoder {
        /// The encoder's input shape.
        shape: Vec<usize>,
        /// The encoder's dimension.
        dimension: usize,
    },
    /// Pixels so large that `f32` would swallow part of the noise.
    #[error(
        "picture `{picture}` has pixels up to {largest}, beside which noise of sigma {sigma} is lost in rounding; wanted at most {limit}"
    )]
    Resolution {
        /// Identity of the picture.
        picture: String,
        /// Largest absolute value of a pixel.
        largest: f32,
        /// Noise level.
        sigma: f64,
        /// Largest absolute value that this noise allows.
        limit: f64,
    },
    /// No sample was asked for.
    #[error("the sample range of picture `{picture}` is {start}..{end}, wanted at least one sample")]
    NoSamples {
        /// Identity of the picture.
        picture: String,
        /// First sample asked for.
        start: u32,
        /// End of the range.
        end: u32,
    },
    /// More samples than memory may hold.
    #[error("picture `{picture}` cannot be smoothed")]
    Samples {
        /// Identity of the picture.
        picture: String,
        /// How many were asked for.
        source: SampleError,
    },
    /// The engine failed.
    #[error("the encoder failed on picture `{picture}`, samples {start}..{end}")]
    Embedder {
        /// Identity of the picture.
        picture: String,
        /// First sample of the batch.
        start: u32,
        /// End of the batch.
        end: u32,
        /// What the engine said.
        source: EmbedderFailure,
    },
    /// An embedding has a NaN or infinite component.
    #[error(
        "the encoder gave {value} in component {component} for sample {sample} of picture `{picture}`, wanted a finite number"
    )]
    NotFinite {
        /// Identity of the picture.
        picture: String,
        /// Index of the sample.
        sample: u32,
        /// Component of the embedding.
        component: usize,
        /// What was found there.
        value: f32,
    },
    /// An embedding is longer than the encoder promised.
    #[error(
        "the encoder gave an embedding of norm {norm} for sample {sample} of picture `{picture}`, wanted at most {bound}"
    )]
    NormExceeded {
        /// Identity of the picture.
        picture: String,
        /// Index of the sample.
        sample: u32,
        /// Norm of the embedding.
        norm: f64,
        /// The promised bound `F`.
        bound: f64,
    },
}

impl RowFault {
    /// The fault as an error that names the picture.
    pub(super) fn of_picture(self, picture: &str, sample: u32, bound: NormBound) -> SmoothingError {
        let picture = picture.to_owned();
        match self {
            RowFault::NotFinite { component, value } => {
                SmoothingError::NotFinite { picture, sample, component, value }
            }
            RowFault::NormExceeded { norm } => {
                SmoothingError::NormExceeded { picture, sample, norm, bound: bound.get() }
            }
        }
    }
}
