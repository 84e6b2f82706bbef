//! One step of training, and everything that a step changes.

use std::collections::BTreeMap;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::ParamId;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Bytes, Device, Tensor, TensorData};
use burn_pack::{Reader, Writer};
use retrievalguard::Seed;

use super::TrainError;
use crate::checkpoint::{Checkpoint, TrainingPosition};
use crate::loading::Batch;
use crate::loss::{MarginLoss, TripletSampler, distillation_loss};
use crate::network::{Network, Part};
use crate::recipe::{LossKind, Recipe};
use crate::trainer::teacher::Teacher;

/// Added to the root of Adam's second moment: PyTorch's default.
const EPSILON: f32 = 1e-8;

/// Number of the parameter `β`, the same in every run, so that its optimiser's state fits after a restart.
const BETA: u64 = 1;

/// Names of the optimisers in a checkpoint.
const BACKBONE_STATE: &str = "backbone";
const HEAD_STATE: &str = "head";
const LOSS_STATE: &str = "loss";

/// The network, its loss, and what Adam remembers of both.
pub(super) struct Learner {
    /// `None` only while a step replaces it.
    network: Option<Network>,
    loss: Option<MarginLoss>,
    backbone_optimiser: ModuleOptimizer,
    head_optimiser: ModuleOptimizer,
    loss_optimiser: ModuleOptimizer,
    sampler: TripletSampler,
    teacher: Option<Teacher>,
    learns_beta: bool,
    seed: Seed,
    device: Device,
}

/// What a step showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The loss before the step.
    pub(super) loss: f64,
    /// The boundary `β` after it, where there is one.
    pub(super) beta: Option<f64>,
    /// Share of the pairs that still have a loss, or of the rows with a radius below `ρ`.
    pub(super) active: Option<f64>,
    /// Mean squared distance from the teacher's rows.
    pub(super) distillation: Option<f64>,
}

/// What labels teach a batch.
struct Labelled {
    total: Tensor<1>,
    active: f64,
}

impl Learner {
    /// Before the first step; `device` carries gradients.
    pub(super) fn new(recipe: &Recipe, network: Network, teacher: Option<Teacher>, device: &Device) -> Self {
        let part = &recipe.loss;
        let loss = MarginLoss::new(part.beta, part.gamma, part.average, device);
        let adam = AdamConfig::new().with_epsilon(EPSILON);
        let clip = recipe.optimiser.clip.map(|clip| GradientClippingConfig::Norm(clip as f32));
        let decay = recipe.optimiser.weight_decay;
        let clipped = adam.clone().with_grad_clipping(clip);
        let weights = if decay > 0.0 {
            clipped.with_weight_decay(Some(WeightDecayConfig::new(decay as f32)))
        } else {
            clipped
        };
        Self {
            network: Some(network),
            loss: Some(with_number(loss)),
            backbone_optimiser: weights.init(),
            head_optimiser: weights.init(),
            loss_optimiser: adam.init(),
            sampler: recipe.sampler(),
            teacher,
            learns_beta: recipe.uses_labels() && recipe.loss.kind == LossKind::Margin,
            seed: recipe.seed(),
            device: device.clone(),
        }
    }

    /// At the position of a checkpoint.
    pub(super) fn resume(
        recipe: &Recipe,
        checkpoint: &Checkpoint,
        teacher: Option<Teacher>,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let config = recipe.network_config();
        let mut fault = None;
        let network = Network::build(&config, device, |slot| match checkpoint.network.get(&slot.name) {
            Some((shape, values)) if *shape == slot.shape => values.clone(),
            found => {
                fault.get_or_insert_with(|| TrainError::CheckpointTensor {
                    tensor: slot.name.clone(),
                    found: found.map_or("missing".to_owned(), |(shape, _)| format!("{shape:?}")),
                    wanted: slot.shape.clone(),
                });
                vec![0.0; slot.shape.iter().product()]
            }
        })?;
        if let Some(fault) = fault {
            return Err(fault);
        }
        let mut learner = Self::new(recipe, network, teacher, device);
        let part = &recipe.loss;
        let loss = MarginLoss::new(f64::from(checkpoint.beta), part.gamma, part.average, device);
        learner.loss = Some(with_number(loss));
        let restore = |optimiser: ModuleOptimizer, name: &'static str| {
            let state =
                checkpoint.optimisers.get(name).ok_or(TrainError::OptimiserState { optimiser: name })?;
            if state.is_empty() {
                return Ok(optimiser);
            }
            optimiser
                .from_bytes(Bytes::from_bytes_vec(state.clone()))
                .map_err(|_| TrainError::OptimiserState { optimiser: name })
        };
        learner.backbone_optimiser = restore(learner.backbone_optimiser, BACKBONE_STATE)?;
        learner.head_optimiser = restore(learner.head_optimiser, HEAD_STATE)?;
        learner.loss_optimiser = restore(learner.loss_optimiser, LOSS_STATE)?;
        Ok(learner)
    }

    /// Everything that [`resume`](Self::resume) needs.
    pub(super) fn checkpoint(&self, position: TrainingPosition) -> Result<Checkpoint, TrainError> {
        let mut network = BTreeMap::new();
        for tensor in self.network().tensors() {
            network.insert(tensor.name, (tensor.shape, tensor.values));
        }
        let finite =
            network.values().all(|(_, values): &(_, Vec<f32>)| values.iter().all(|value| value.is_finite()));
        if !finite || !self.beta().is_finite() {
            return Err(TrainError::WeightsNotFinite { position });
        }
        let mut optimisers = BTreeMap::new();
        let has_head = !self.network().parameters(Part::Head).is_empty();
        for (name, optimiser, learns) in [
            (BACKBONE_STATE, &self.backbone_optimiser, true),
            (HEAD_STATE, &self.head_optimiser, has_head),
            (LOSS_STATE, &self.loss_optimiser, self.learns_beta),
        ] {
            // Before the first step, and where nothing learns, there is nothing to remember.
            let state = if position.step == 0 || !learns {
                Vec::new()
            } else {
                optimiser_state(optimiser).map_err(|_| TrainError::OptimiserState { optimiser: name })?
            };
            optimisers.insert(name.to_owned(), state);
        }
        Ok(Checkpoint { position, network, beta: self.beta(), optimisers })
    }

    /// The network as it is.
    pub(super) fn network(&self) -> &Network {
        self.network.as_ref().expect("a step puts the network back")
    }

    /// The boundary `β` as it is.
    pub(super) fn beta(&self) -> f32 {
        let loss = self.loss.as_ref().expect("a step puts the loss back");
        floats(loss.beta.val().into_data())[0]
    }

    /// Learns from one batch at a learning rate, unless its loss is not a number.
    pub(super) fn step(
        &mut self,
        recipe: &Recipe,
        batch: Batch,
        position: TrainingPosition,
        rate: f64,
    ) -> Result<Outcome, TrainError> {
        let wanted = self.teacher.as_ref().map(|teacher| teacher.rows(recipe, &batch)).transpose()?;
        let network = self.network.take().expect("a step puts the network back");
        let loss = self.loss.take().expect("a step puts the loss back");
        let config = recipe.network_config();
        let pictures = Tensor::<4>::from_data(TensorData::new(batch.pixels, batch.shape), &self.device);
        let (embeddings, statistics) =
            network.forward_training(config.normalise(pictures), recipe.network.batch_norm);
        let labelled = if recipe.uses_labels() {
            Some(self.labelled(recipe, &loss, embeddings.clone(), &batch.labels, position)?)
        } else {
            None
        };
        let taught = wanted.map(|wanted| distillation_loss(embeddings, wanted.autodiff()));
        let distillation = taught.clone().map(|taught| f64::from(floats(taught.into_data())[0]));
        let weight = recipe.distillation.as_ref().map_or(0.0, |part| part.weight);
        let active = labelled.as_ref().map(|labelled| labelled.active);
        let by_labels = labelled.map(|labelled| labelled.total * recipe.loss.weight);
        let total = match (by_labels, taught.map(|taught| taught * weight)) {
            (Some(labels), Some(teacher)) => labels + teacher,
            (Some(total), None) | (None, Some(total)) => total,
            (None, None) => {
                unreachable!("a recipe without labels has a teacher, which its check makes sure of")
            }
        };
        let value = f64::from(floats(total.clone().into_data())[0]);
        if !value.is_finite() {
            return Err(TrainError::LossNotFinite { position, value });
        }
        let mut gradients = total.backward();
        let part = |gradients: &mut _, part| {
            GradientsParams::from_params(gradients, &network, &network.parameters(part))
        };
        let backbone = part(&mut gradients, Part::Backbone);
        let head = part(&mut gradients, Part::Head);
        let boundary = GradientsParams::from_module(&mut gradients, &loss);
        let network = self.backbone_optimiser.step(rate, network, backbone);
        let network = self.head_optimiser.step(rate * recipe.optimiser.head_factor, network, head);
        self.network = Some(network.absorb(statistics));
        self.loss = Some(if self.learns_beta {
            self.loss_optimiser.step(recipe.loss.beta_learning_rate, loss, boundary)
        } else {
            loss
        });
        let beta = self.learns_beta.then(|| f64::from(self.beta()));
        Ok(Outcome { loss: value, beta, active, distillation })
    }

    /// The loss that the labels of a batch give.
    fn labelled(
        &self,
        recipe: &Recipe,
        loss: &MarginLoss,
        embeddings: Tensor<2>,
        labels: &[u32],
        position: TrainingPosition,
    ) -> Result<Labelled, TrainError> {
        match recipe.loss.kind {
            LossKind::Margin => {
                let mut rows = floats(embeddings.clone().into_data());
                if !recipe.network.architecture.normalises() {
                    like_on_a_sphere(&mut rows, labels.len());
                }
                let (epoch, step) = (u64::from(position.epoch), u64::from(position.batch));
                let triplets = self.sampler.triplets(&rows, labels, self.seed, epoch, step);
                let triplets = triplets.map_err(|source| TrainError::Sampling { position, source })?;
                let pairs = (2 * triplets.len()) as f64;
                let parts = loss.forward(embeddings, &triplets);
                let active = (parts.active_positives + parts.active_negatives).into_data();
                let active = active.iter::<i64>().next().unwrap_or(0) as f64 / pairs;
                Ok(Labelled { total: parts.total, active })
            }
            LossKind::CertifiedRadius => {
                let parts = recipe.certified_radius_loss().forward(embeddings, labels);
                Ok(Labelled { total: parts.total, active: parts.active })
            }
        }
    }
}

/// Scales rows so that their squared distances are 2 on average, as on the sphere for which the sampler's weights are made.
fn like_on_a_sphere(rows: &mut [f32], count: usize) {
    let dimension = rows.len() / count.max(1);
    let mut variance = 0.0;
    for column in 0..dimension {
        let values = || rows.iter().skip(column).step_by(dimension).map(|&value| f64::from(value));
        let mean = values().sum::<f64>() / count as f64;
        variance += values().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64;
    }
    // The mean squared distance of two rows is twice the variance.
    let factor = if variance > 0.0 { variance.sqrt().recip() as f32 } else { 1.0 };
    rows.iter_mut().for_each(|value| *value *= factor);
}

/// What an optimiser remembers, as burn writes it but in alphabetical order: burn keeps it in a hash map, whose order
/// changes from process to process, and equal runs leave equal checkpoints.
fn optimiser_state(optimiser: &ModuleOptimizer) -> Result<Vec<u8>, burn_pack::Error> {
    let written = optimiser.into_bytes().map_err(|error| burn_pack::Error::IoError(error.to_string()))?;
    let reader = Reader::from_bytes(written)?;
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let mut tensors = reader.into_tensors()?;
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    let mut writer = Writer::new(tensors);
    for (key, &value) in &scalars {
        writer = writer.with_scalar(key, value);
    }
    for (key, value) in &metadata {
        writer = writer.with_metadata(key, value);
    }
    Ok(writer.into_bytes()?.to_vec())
}

/// The loss with the number of its parameter that every run uses.
fn with_number(mut loss: MarginLoss) -> MarginLoss {
    loss.beta.id = ParamId::from(BETA);
    loss
}

fn floats(values: TensorData) -> Vec<f32> {
    values.iter::<f32>().collect()
}
