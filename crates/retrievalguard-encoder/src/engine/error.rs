//! Why an encoder cannot be opened or run.

use std::fmt;
use std::path::{Path, PathBuf};

use retrievalguard::EmbedderFailure;

use super::{Attempt, Provider};
use crate::graph::{ElementType, GraphError, ModelFileError};

/// Why an encoder cannot be opened or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A word that names nothing.
    #[error("{what} is `{found}`, wanted {wanted}")]
    Word {
        /// What was being read.
        what: &'static str,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: &'static str,
    },
    /// The model's file cannot be read.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// The names in the model's graph do not fit together.
    #[error("the graph of model `{model}` is inconsistent")]
    Graph {
        /// The model.
        model: PathBuf,
        /// What is wrong.
        source: GraphError,
    },
    /// The model draws random numbers, so it is no function of its input.
    #[error(
        "model `{model}` draws random numbers at node `{node}` ({operator}), wanted the same embedding every time; was it exported in training mode?"
    )]
    Random {
        /// The model.
        model: PathBuf,
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// The same picture gave other numbers the second time.
    #[error(
        "model `{model}` gave two embeddings for the same picture, {difference:.1e} of their norm apart, wanted the same bits"
    )]
    NotDeterministic {
        /// The model.
        model: PathBuf,
        /// Largest difference in any component, as a share of the embedding's norm.
        difference: f64,
    },
    /// A picture in `[0, 1]` gave something that is no number.
    #[error(
        "model `{model}` gave {value} in component {component} for a picture in [0, 1], wanted a finite number"
    )]
    NotFinite {
        /// The model.
        model: PathBuf,
        /// Which component.
        component: usize,
        /// What was found there.
        value: f32,
    },
    /// The encoder must run picture by picture and has nothing to say about a single picture.
    #[error(
        "model `{model}` must run picture by picture ({reason}), and a picture by itself has an embedding of length 0, which cannot be normalised"
    )]
    NothingAlone {
        /// The model.
        model: PathBuf,
        /// Why pictures cannot share a batch.
        reason: String,
    },
    /// onnxruntime was asked for and is not there.
    #[error("no usable onnxruntime was found: {}", attempts_text(attempts))]
    NoOnnxruntime {
        /// Every place, and why it gave nothing.
        attempts: Vec<Attempt>,
    },
    /// Only onnxruntime knows providers other than the processor.
    #[error("provider `{provider}` needs onnxruntime, found an engine that runs on the CPU alone")]
    ProviderNeedsOnnxruntime {
        /// The provider asked for.
        provider: Provider,
    },
    /// This build of onnxruntime cannot use the provider.
    #[error("the onnxruntime at `{library}` cannot use provider `{provider}`")]
    Provider {
        /// The provider asked for.
        provider: Provider,
        /// The library.
        library: PathBuf,
        /// What onnxruntime said.
        source: EmbedderFailure,
    },
    /// The engine cannot load the model.
    #[error("the engine cannot load model `{model}`")]
    Load {
        /// The model.
        model: PathBuf,
        /// What the engine said.
        source: EmbedderFailure,
    },
    /// The engine failed on a batch.
    #[error("the engine failed on a batch")]
    Run {
        /// What the engine said.
        source: EmbedderFailure,
    },
    /// Nothing is known about how fast the model's embeddings move.
    #[error("model `{model}` cannot be certified without noise: {why}")]
    NoBound {
        /// The model.
        model: PathBuf,
        /// What the verifier says.
        why: String,
    },
    /// The model has no such input or output, or too many to choose from.
    #[error("model `{model}` has {side} {found:?}, wanted {wanted}")]
    Tensor {
        /// The model.
        model: PathBuf,
        /// `inputs` or `outputs`.
        side: &'static str,
        /// Names of those it has.
        found: Vec<String>,
        /// What was looked for.
        wanted: String,
    },
    /// The input or output does not hold 32-bit floating-point numbers.
    #[error("{side} `{tensor}` of model `{model}` is {found}, wanted float32")]
    Element {
        /// The model.
        model: PathBuf,
        /// `input` or `output`.
        side: &'static str,
        /// Its name.
        tensor: String,
        /// Its type.
        found: ElementType,
    },
    /// The input does not have the model config's shape.
    #[error("input `{tensor}` of model `{model}` has shape {found}, the model config says {wanted}")]
    InputShape {
        /// The model.
        model: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: String,
        /// The model config's.
        wanted: String,
    },
    /// The output is not one vector per picture.
    #[error("output `{tensor}` of model `{model}` has shape {found}, wanted [batch, dimension]")]
    OutputShape {
        /// The model.
        model: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: String,
    },
    /// A batch gave another number of embeddings than it had pictures.
    #[error("a batch of {pictures} pictures gave an output of shape {found:?}, wanted {wanted:?}")]
    BatchShape {
        /// Number of pictures.
        pictures: usize,
        /// Shape of the output.
        found: Vec<usize>,
        /// Shape that was wanted.
        wanted: Vec<usize>,
    },
    /// An embedding cannot be normalised.
    #[error("picture {row} of the batch has an embedding of length 0, which cannot be normalised")]
    ZeroNorm {
        /// Which picture of the batch, counted from 0.
        row: usize,
    },
    /// The caller's slices do not hold whole pictures and embeddings.
    #[error(
        "found {pictures} pixel values and room for {embeddings} embedding values, wanted multiples of {pixels} and {dimension} for the same number of pictures"
    )]
    Slices {
        /// Values given.
        pictures: usize,
        /// Room given.
        embeddings: usize,
        /// Values of one picture.
        pixels: usize,
        /// Values of one embedding.
        dimension: usize,
    },
}

pub(super) fn engine_failure(model: &Path, error: impl fmt::Display) -> EngineError {
    EngineError::Load { model: model.to_owned(), source: error.to_string().into() }
}

/// All places in one line.
pub(super) fn attempts_text(attempts: &[Attempt]) -> String {
    attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
