//! A trained network as an encoder: `encoder.onnx` for any number of pictures, and its `encoder.toml`.
//!
//! The ONNX file takes normalised pictures and gives rows of length 1, or of any length if the network has a Lipschitz
//! constant. Batch normalisations are folded into the
//! convolutions before them, so an engine has nothing to do that a hand-made file would save it.
//!
//! The graph is written from the network's list of layers and not captured from a run: a captured ReLU6 is four
//! operations on every activation instead of one, at which onnxruntime runs EfficientNet-Lite0 0.57 times as fast.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use retrievalguard::NormBound;
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard_encoder::model_config::{
    ChannelOrder, Crop, Input, Layout, ModelConfig, ModelConfigFault, Output, Resize,
};
use retrievalguard_encoder::resize::{Interpolation, PassOrder, Resampling};

use crate::network::{Network, NetworkConfig, Normalisation, PictureSize};

mod graph;

use graph::Rows;
pub(crate) use graph::{INPUT, OUTPUT};

/// Why a network could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A weight, or what folding makes of it, is not finite.
    #[error("tensor `{tensor}` has a number that is not finite, wanted finite weights")]
    NotFinite {
        /// The tensor.
        tensor: String,
    },
    /// The pictures' preparation does not fit the network.
    #[error("the encoder's model config is not usable")]
    ModelConfig(#[from] ModelConfigFault),
    /// The folder is not there and cannot be made.
    #[error("folder `{}` cannot be made", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("the encoder cannot be stored")]
    Write(#[from] WriteError),
}

/// How pictures are brought to the network's size; goes into the model config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// How a picture is scaled.
    pub resize: Resize,
    /// How the scaled picture is cut.
    pub crop: Crop,
}

impl Preparation {
    /// The shorter side becomes `size`, and the middle is cut out.
    ///
    /// Paper: Section 4.3, training parameters: centre crop for evaluation.
    pub fn shorter_side(size: usize, interpolation: Interpolation, resampling: Resampling) -> Self {
        let order = PassOrder::default();
        let resize = Resize::ShorterSide { size, interpolation, order, resampling };
        Self { resize, crop: Crop::Centre }
    }
}

/// The files of an exported encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// `encoder.onnx`.
    pub model: PathBuf,
    /// `encoder.toml`.
    pub model_config: PathBuf,
}

/// The model config under which an exported network is run.
///
/// The network's rows have length 1 up to rounding; the tool normalises them once more, so that the norm bound of 1
/// holds without any tolerance. Those of a Lipschitz encoder are left as they are; see [`export`] for their bound.
pub fn model_config(
    config: &NetworkConfig,
    preparation: Preparation,
) -> Result<ModelConfig, ModelConfigFault> {
    model_config_with(config, preparation, 0.0)
}

/// The same, `origin` being the length of the embedding of a black picture.
fn model_config_with(
    config: &NetworkConfig,
    preparation: Preparation,
    origin: f64,
) -> Result<ModelConfig, ModelConfigFault> {
    let PictureSize { channels, height, width } = config.picture;
    let Normalisation { mean, std } = config.normalisation();
    let model_config = ModelConfig {
        input: Input {
            name: Some(INPUT.to_owned()),
            channels,
            height,
            width,
            channel_order: ChannelOrder::Rgb,
            layout: Layout::Nchw,
            mean,
            std,
        },
        resize: preparation.resize,
        crop: preparation.crop,
        output: Output {
            name: Some(OUTPUT.to_owned()),
            normalise: config.architecture.normalises(),
            norm_bound: norm_bound(config, origin),
        },
    };
    model_config.check()?;
    Ok(model_config)
}

/// Of a Lipschitz encoder: twice the norm of a white picture, room for whatever is added to it, beyond a black one's.
fn norm_bound(config: &NetworkConfig, origin: f64) -> Option<NormBound> {
    if config.architecture.normalises() {
        return None;
    }
    let PictureSize { channels, height, width } = config.picture;
    let white = ((channels * height * width) as f64).sqrt();
    let norm = (2.0 * white + origin).ceil();
    Some(NormBound::new(norm).unwrap_or(NormBound::UNIT))
}

/// Length of the embedding of a black picture.
fn origin(network: &Network) -> f64 {
    let PictureSize { channels, height, width } = network.config().picture;
    let black = Tensor::zeros([1, channels, height, width], &network.device());
    let row: Vec<f32> = network.forward(black).into_data().iter::<f32>().collect();
    row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

/// Writes `encoder.onnx` and `encoder.toml` into a folder, each of them completely or not at all.
///
/// The same network gives the same bytes. The embeddings of a Lipschitz encoder have no fixed length; its norm bound is that of
/// a black picture's embedding and twice a white picture's norm, which noise of any level up to 1 keeps.
pub fn export(network: &Network, preparation: Preparation, folder: &Path) -> Result<Exported, ExportError> {
    write(network, Rows::Embeddings, preparation, folder)
}

/// The same for what the head gets: the backbone's features, at length 1.
pub fn export_features(
    network: &Network,
    preparation: Preparation,
    folder: &Path,
) -> Result<Exported, ExportError> {
    write(network, Rows::Features, preparation, folder)
}

fn write(
    network: &Network,
    rows: Rows,
    preparation: Preparation,
    folder: &Path,
) -> Result<Exported, ExportError> {
    let lipschitz = !network.config().architecture.normalises();
    let origin = if lipschitz { origin(network) } else { 0.0 };
    let model_config = model_config_with(network.config(), preparation, origin)?;
    let model = graph::encode(network, rows)?;
    fs::create_dir_all(folder).map_err(|source| ExportError::Folder { path: folder.to_owned(), source })?;
    let exported = Exported { model: folder.join("encoder.onnx"), model_config: folder.join("encoder.toml") };
    let config = network.config();
    let length = match rows {
        Rows::Embeddings => config.dimension,
        Rows::Features => network.layer_graph().features(),
    };
    let title = format!(
        "# {}, {length} dimensions; exported by retrievalguard {}\n\n",
        config.architecture,
        env!("CARGO_PKG_VERSION")
    );
    atomic::write(&exported.model, &model)?;
    atomic::write(&exported.model_config, (title + &model_config.to_toml()).as_bytes())?;
    Ok(exported)
}

#[cfg(test)]
mod tests;
