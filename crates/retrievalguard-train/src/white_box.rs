//! Gradients of encoders that were trained here, for attacks on their certificates.
//!
//! An exported `encoder.onnx` holds all that is needed: its graph is called by the architecture, and its constants are the
//! weights with the batch normalisations folded in. The network is built again from them, with batch normalisations that
//! add the folded shift and do nothing else, and differentiated with respect to the pictures alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::attack::{InputGradients, Mode, NoisyCopies};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Embedder, EmbedderFailure, Seed};
use retrievalguard_encoder::engine::{StoredNetwork, StoredTensor};
use retrievalguard_encoder::graph::ModelFileError;
use retrievalguard_encoder::model_config::{ChannelOrder, Layout, ModelConfig};

use crate::export::PRODUCER;
use crate::network::{
    Architecture, ConfigError, Network, NetworkConfig, Normalisation, PictureSize, Role, Slot,
};

/// Embeddings of the rebuilt network may differ from the encoder's by this much, component by component.
const ALIKE: f32 = 1e-3;

/// Pictures on which the two are compared.
const COMPARED: usize = 2;

/// Why the gradients of an encoder cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhiteBoxError {
    /// The file cannot be read.
    #[error(transparent)]
    Model(#[from] ModelFileError),
    /// It was written by another program.
    #[error("model `{}` was written by `{found}`, wanted an encoder exported by `retrievalguard train`", path.display())]
    Foreign {
        /// The model.
        path: PathBuf,
        /// Who wrote it.
        found: String,
    },
    /// A weight is missing or has another shape.
    #[error("tensor `{tensor}` of model `{}` is {found}, wanted the shape {wanted:?}", path.display())]
    Tensor {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape, or that it is missing.
        found: String,
        /// The shape wanted.
        wanted: Vec<usize>,
    },
    /// The pictures are laid out in another way than trained networks take them.
    #[error(
        "the config of model `{}` has layout {layout:?} and channel order {order:?}, wanted Nchw and Rgb",
        path.display()
    )]
    ModelConfig {
        /// The model.
        path: PathBuf,
        /// Its layout.
        layout: Layout,
        /// Its channel order.
        order: ChannelOrder,
    },
    /// No network can be built like that.
    #[error(transparent)]
    Network(#[from] ConfigError),
    /// The encoder could not be run for the comparison.
    #[error("the encoder could not be run beside its rebuilt network")]
    Embedder(#[source] EmbedderFailure),
    /// The rebuilt network is not the encoder.
    #[error(
        "the network rebuilt from the model gives embeddings {found} away from the encoder's, wanted at most {ALIKE}"
    )]
    Unlike {
        /// Largest difference of a component.
        found: f32,
    },
}

/// A network whose gradients can be computed.
pub struct WhiteBox {
    network: Network,
    device: Device,
}

impl WhiteBox {
    /// Rebuilds the network of an exported encoder.
    pub fn open(model: &Path, model_config: &ModelConfig) -> Result<Self, WhiteBoxError> {
        let stored = StoredNetwork::read(model)?;
        if stored.producer != PRODUCER {
            return Err(WhiteBoxError::Foreign { path: model.to_owned(), found: stored.producer });
        }
        let input = &model_config.input;
        if input.layout != Layout::Nchw || input.channel_order != ChannelOrder::Rgb {
            let (layout, order) = (input.layout, input.channel_order);
            return Err(WhiteBoxError::ModelConfig { path: model.to_owned(), layout, order });
        }
        let tensors: HashMap<&str, &StoredTensor> =
            stored.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let outputs = |name: &str| tensors.get(name).and_then(|tensor| tensor.shape.first().copied());
        let picture = PictureSize { channels: input.channels, height: input.height, width: input.width };
        let usual = NetworkConfig::new(stored.graph.parse::<Architecture>()?, picture);
        let config = NetworkConfig {
            dimension: outputs("head.weight").unwrap_or(usual.dimension),
            // Only the four-block encoder looks at it.
            width: outputs("blocks.0.convolution.weight").unwrap_or(usual.width),
            normalisation: Some(Normalisation { mean: input.mean.clone(), std: input.std.clone() }),
            ..usual
        };
        let device = Device::flex().autodiff();
        let network = build(&config, &tensors, model, &device)?;
        Ok(Self { network: network.no_grad(), device })
    }

    /// Compares the network with the encoder on random pictures.
    pub fn check(&self, embedder: &dyn Embedder) -> Result<(), WhiteBoxError> {
        let mut pixels = vec![0.0; COMPARED * embedder.input_len()];
        let identity = ImageIdentity::new("white box");
        NoiseStream::new(Seed::new(0), &identity, Stage::Attack).fill(0, 0, &mut pixels);
        pixels.iter_mut().for_each(|pixel| *pixel = 0.5 + 0.25 * *pixel);
        let mut wanted = vec![0.0; COMPARED * embedder.dimension()];
        embedder.embed(&pixels, &mut wanted).map_err(WhiteBoxError::Embedder)?;
        let found = floats(self.network.forward(self.network.config().normalise(self.pictures(&pixels))));
        let largest = found
            .iter()
            .zip(&wanted)
            .map(|(found, wanted)| (found - wanted).abs())
            .fold(if found.len() == wanted.len() { 0.0 } else { f32::INFINITY }, f32::max);
        if largest <= ALIKE { Ok(()) } else { Err(WhiteBoxError::Unlike { found: largest }) }
    }

    fn pictures(&self, pixels: &[f32]) -> Tensor<4> {
        let PictureSize { channels, height, width } = self.network.config().picture;
        let count = pixels.len() / (channels * height * width);
        let shape = [count, channels, height, width];
        Tensor::from_data(TensorData::new(pixels.to_vec(), shape), &self.device)
    }
}

/// The network with folded weights, and batch normalisations that only add.
fn build(
    config: &NetworkConfig,
    tensors: &HashMap<&str, &StoredTensor>,
    model: &Path,
    device: &Device,
) -> Result<Network, WhiteBoxError> {
    let layers = config.layer_graph()?;
    let shifts: HashMap<String, String> = layers
        .units
        .iter()
        .map(|unit| (format!("{}.bias", unit.norm), format!("{}.bias", unit.convolution)))
        .collect();
    // Every epsilon of a network is the same.
    let epsilon = layers.units.first().map_or(0.0, |unit| unit.epsilon);
    let mut fault = None;
    let mut stored = |name: &str, slot: &Slot| match tensors.get(name) {
        Some(tensor) if tensor.shape == slot.shape => tensor.values.clone(),
        found => {
            fault.get_or_insert_with(|| WhiteBoxError::Tensor {
                path: model.to_owned(),
                tensor: name.to_owned(),
                found: found.map_or("missing".to_owned(), |tensor| format!("{:?}", tensor.shape)),
                wanted: slot.shape.clone(),
            });
            vec![0.0; slot.shape.iter().product()]
        }
    };
    let network = Network::build(config, device, |slot| {
        let constant = |value: f64| vec![value as f32; slot.shape.iter().product()];
        match slot.role {
            Role::Kernels { .. } | Role::Matrix | Role::Bias => stored(&slot.name, slot),
            Role::Shift => stored(shifts.get(&slot.name).map_or("", String::as_str), slot),
            Role::Scale => constant(1.0),
            Role::Mean => constant(0.0),
            Role::Variance => constant(1.0 - epsilon),
        }
    })?;
    fault.map_or(Ok(network), Err)
}

fn floats<const RANK: usize>(tensor: Tensor<RANK>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

impl InputGradients for WhiteBox {
    fn mode(&self) -> Mode {
        Mode::WhiteBox
    }

    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure> {
        let pictures = self.pictures(noisy.copies).require_grad();
        let embeddings = self.network.forward(self.network.config().normalise(pictures.clone()));
        let direction = towards(&floats(embeddings.clone()));
        let direction = TensorData::new(direction, [1, self.network.config().dimension]);
        let scores = (embeddings * Tensor::from_data(direction, &self.device)).sum();
        let gradients = scores.backward();
        let of_copies = pictures.grad(&gradients).ok_or("the embeddings do not depend on the pictures")?;
        let pixels = noisy.centre.len();
        let mut gradient = vec![0.0; pixels];
        for row in floats(of_copies).chunks_exact(pixels) {
            gradient.iter_mut().zip(row).for_each(|(gradient, &value)| *gradient += f64::from(value));
        }
        let count = (noisy.copies.len() / pixels) as f64;
        gradient.iter_mut().for_each(|value| *value /= count);
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests;
