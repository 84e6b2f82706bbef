//! Who a student learns from: the rows of another encoder for the clean pictures.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Embedder as _, Seed};
use retrievalguard_encoder::engine::{EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;

use super::TrainError;
use crate::loading::Batch;
use crate::network::{Factored, Network, normalise_rows};
use crate::recipe::Recipe;

/// An encoder that gives the rows which the student is to give for noisy pictures.
pub(super) struct Teacher {
    encoder: Encoder,
    /// Orthonormal rows that bring the teacher's dimension down to the student's.
    projection: Option<Tensor<2>>,
    scale: f64,
    device: Device,
}

enum Encoder {
    /// The student as it was before the first step.
    Initial(Box<Network>),
    /// An encoder from a file.
    Onnx(Box<OnnxEmbedder>),
}

impl Teacher {
    /// The student's own beginning; `device` is without gradients.
    pub(super) fn initial(recipe: &Recipe, network: &Network, device: &Device) -> Result<Self, TrainError> {
        let tensors = network.tensors();
        let mut values = tensors.into_iter().map(|tensor| tensor.values);
        let network = Network::build(network.config(), device, |_| {
            values.next().expect("one list of numbers for every tensor, in the network's own order")
        })?;
        let dimension = recipe.network.dimension;
        Self::new(recipe, Encoder::Initial(Box::new(network)), dimension, device)
    }

    /// An encoder from a file, with its model config beside it.
    pub(super) fn onnx(
        recipe: &Recipe,
        model: &Path,
        options: &EngineOptions,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let embedder = OnnxEmbedder::open(model, ModelConfig::for_model(model)?, options)?;
        let found = embedder.model_config().picture_shape();
        let wanted = [recipe.network.channels, recipe.network.height, recipe.network.width];
        if found != wanted {
            return Err(TrainError::TeacherPicture { model: model.to_owned(), found, wanted });
        }
        let dimension = embedder.dimension();
        Self::new(recipe, Encoder::Onnx(Box::new(embedder)), dimension, device)
    }

    fn new(recipe: &Recipe, encoder: Encoder, found: usize, device: &Device) -> Result<Self, TrainError> {
        let wanted = recipe.network.dimension;
        if found < wanted {
            return Err(TrainError::TeacherDimension { found, wanted });
        }
        let projection = (found > wanted).then(|| projection(recipe.seed(), wanted, found, device));
        let scale = recipe.distillation.as_ref().map_or(1.0, |part| part.scale);
        Ok(Self { encoder, projection, scale, device: device.clone() })
    }

    /// What the student is to give for a batch; a constant.
    pub(super) fn rows(&self, recipe: &Recipe, batch: &Batch) -> Result<Tensor<2>, TrainError> {
        let pixels = batch.clean.as_ref().unwrap_or(&batch.pixels);
        let rows = match &self.encoder {
            Encoder::Initial(network) => {
                let pictures = TensorData::new(pixels.clone(), batch.shape);
                let pictures = Tensor::<4>::from_data(pictures, &self.device);
                network.forward(recipe.network_config().normalise(pictures))
            }
            Encoder::Onnx(embedder) => {
                let (pictures, dimension) = (batch.shape[0], embedder.dimension());
                let mut rows = vec![0.0; pictures * dimension];
                embedder.embed(pixels, &mut rows).map_err(|source| TrainError::Teacher { source })?;
                Tensor::from_data(TensorData::new(rows, [pictures, dimension]), &self.device)
            }
        };
        let rows = match &self.projection {
            Some(projection) => rows.matmul(projection.clone().transpose()),
            None => rows,
        };
        Ok(normalise_rows(rows) * self.scale)
    }
}

/// Orthonormal rows that depend on the seed and the two dimensions alone.
fn projection(seed: Seed, rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    let mut values = vec![0.0; rows * columns];
    let identity = ImageIdentity::new("projection of the teacher");
    NoiseStream::new(seed, &identity, Stage::Train).fill(0, 0, &mut values);
    let values = Factored::of(&values, rows, columns).rows.into_iter().map(|value| value as f32).collect();
    Tensor::from_data(TensorData::new::<f32, _>(values, [rows, columns]), device)
}
