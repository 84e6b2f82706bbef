//! Networks that can be trained: a backbone, a linear head, and rows of length 1, or rows that move no faster than pictures.
//!
//! The layers of a backbone are a list that is written once per architecture and then run, given weights by name, or
//! exported. All tensors have the names and shapes of the usual PyTorch implementation, so its checkpoints fit.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use retrievalguard::Seed;
//! use retrievalguard_train::network::{Architecture, Network, NetworkConfig, PictureSize};
//!
//! let picture = PictureSize { channels: 3, height: 32, width: 32 };
//! let config = NetworkConfig { dimension: 16, ..NetworkConfig::new(Architecture::Small, picture) };
//! let network = Network::new(&config, Seed::new(1), &Device::default())?;
//! let pictures = Tensor::<4>::zeros([2, 3, 32, 32], &Device::default());
//! assert_eq!(network.forward(config.normalise(pictures)).dims(), [2, 16]);
//! # Ok::<(), retrievalguard_train::network::ConfigError>(())
//! ```

use std::sync::Arc;

use burn::module::{Module, ParamId, list_param_ids};
use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::Seed;
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use serde::{Deserialize, Serialize};

use crate::kernel;

mod config;
mod efficientnet;
mod layer;
mod layer_graph;
mod lipschitz;
mod orthonormal;
mod residual;
mod resnet;
mod small;
mod start;

pub use config::{Architecture, ConfigError, HeadKind, NetworkConfig, Normalisation, PictureSize};
use layer::{Linear, Unit};
pub(crate) use layer::{Role, Slot};
pub(crate) use layer_graph::{LayerGraph, Pooling, ProjectionSpec, ResidualSpec, Step, UnitSpec, Value};
pub use lipschitz::LipschitzStage;
pub(crate) use orthonormal::Factored;
use orthonormal::Orthonormal;
use residual::Residual;
pub(crate) use residual::exported_scales;

/// Lengths below this count as this: a row of zeros stays a row of zeros and has a gradient.
pub(crate) const SHORTEST: f64 = 1e-12;

/// Whose mean and variance the batch normalisations use while training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistics {
    /// The running ones, which stay as they are; scale and shift learn all the same. Usual for pretrained backbones.
    Frozen,
    /// Those of the batch; the running ones follow.
    Batch,
}

/// The two halves of a network, which often learn at different rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything before the head.
    Backbone,
    /// The linear layer, if there is one.
    Head,
}

/// An encoder: pictures in, rows out; of length 1, if the architecture [normalises](Architecture::normalises).
#[derive(Module, Debug)]
pub struct Network {
    backbone: Vec<Unit>,
    residuals: Vec<Residual>,
    projections: Vec<Orthonormal>,
    head: Option<Linear>,
    orthonormal_head: Option<Orthonormal>,
    #[module(skip)]
    shape: Arc<Shape>,
}

/// What does not learn.
#[derive(Debug)]
struct Shape {
    config: NetworkConfig,
    graph: LayerGraph,
    last_uses: Vec<usize>,
    device: Device,
}

/// A tensor under the name that it has in a state dictionary.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Its name, for instance `layer1.0.conv1.weight`.
    pub name: String,
    /// Its sides.
    pub shape: Vec<usize>,
    /// Its numbers, the last side running fastest.
    pub values: Vec<f32>,
}

/// Most weights of a network: 4 GiB of them.
const MOST_WEIGHTS: u64 = 1 << 30;

/// Refuses a network whose weights would not fit, before any of them is made.
fn check_size(graph: &LayerGraph, dimension: usize) -> Result<(), ConfigError> {
    let product = |sides: &[usize]| sides.iter().fold(1_u64, |all, &side| all.saturating_mul(side as u64));
    let head = product(&[graph.features(), dimension]);
    let units = graph.units.iter().map(|unit| product(&unit.shape));
    let residuals = graph.residuals.iter().map(|layer| {
        let ResidualSpec { inner, channels, kernel, .. } = *layer;
        product(&[inner, channels, kernel, kernel])
    });
    let projections = graph.projections.iter().map(|layer| product(&[layer.outputs, layer.inputs]));
    let weights = units.chain(residuals).chain(projections).fold(head, u64::saturating_add);
    if weights > MOST_WEIGHTS {
        return Err(ConfigError {
            field: "architecture",
            found: format!("{weights} weights with this width, dimension and picture"),
            wanted: format!("at most {MOST_WEIGHTS}"),
        });
    }
    Ok(())
}

/// Means and variances of the batches that a network saw, for [`Network::absorb`].
#[derive(Clone, Debug, Default)]
#[must_use = "the running statistics follow only if they are absorbed"]
pub struct BatchStatistics(Vec<layer::Moments>);

impl Network {
    /// A network with random weights, a pure function of configuration and seed.
    ///
    /// Convolutions are normal with variance `2 / (outputs · rows · columns / groups)` as in torchvision's ResNet
    /// (Kaiming, fan-out), the head's matrix with variance `1 / (3 · features)`, that of PyTorch's uniform default.
    pub fn new(config: &NetworkConfig, seed: Seed, device: &Device) -> Result<Self, ConfigError> {
        Self::build(config, device, |slot| initial(slot, seed))
    }

    /// A network with the values that `fill` gives for every tensor.
    pub(crate) fn build(
        config: &NetworkConfig,
        device: &Device,
        mut fill: impl FnMut(&Slot) -> Vec<f32>,
    ) -> Result<Self, ConfigError> {
        let graph = config.layer_graph()?;
        check_size(&graph, config.dimension)?;
        let backbone = graph.units.iter().map(layer::unit_slots).map(|slots| {
            let values = slots.each_ref().map(&mut fill);
            Unit::new(&slots, values, device)
        });
        let backbone = backbone.collect();
        let residuals = graph.residuals.iter().map(residual::slots).map(|slots| {
            let values = slots.each_ref().map(&mut fill);
            Residual::new(&slots, values, device)
        });
        let residuals = residuals.collect();
        let projections = graph.projections.iter().map(layer::projection_slot);
        let projections = projections.map(|slot| Orthonormal::new(&slot, fill(&slot), device)).collect();
        let features = graph.features();
        let (mut head, mut orthonormal_head) = (None, None);
        match (config.head, config.architecture.normalises()) {
            (HeadKind::None, _) => {}
            (HeadKind::Linear, true) => {
                let slots = layer::head_slots(features, config.dimension);
                head = Some(Linear::new(&slots, slots.each_ref().map(&mut fill), device));
            }
            (HeadKind::Linear, false) => {
                let slot = layer::orthonormal_head_slot(features, config.dimension);
                orthonormal_head = Some(Orthonormal::new(&slot, fill(&slot), device));
            }
        }
        let last_uses = graph.last_uses();
        let shape = Arc::new(Shape { config: config.clone(), graph, last_uses, device: device.clone() });
        Ok(Self { backbone, residuals, projections, head, orthonormal_head, shape })
    }

    /// What the network was built from.
    pub fn config(&self) -> &NetworkConfig {
        &self.shape.config
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.shape.device.clone()
    }

    /// Numbers of the parameters of one part, running statistics among them.
    pub fn parameters(&self, part: Part) -> Vec<ParamId> {
        match part {
            Part::Backbone => [
                list_param_ids(&self.backbone),
                list_param_ids(&self.residuals),
                list_param_ids(&self.projections),
            ]
            .concat(),
            Part::Head => [list_param_ids(&self.head), list_param_ids(&self.orthonormal_head)].concat(),
        }
    }

    /// Embeddings of pictures that [`NetworkConfig::normalise`] normalised, with the running statistics.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        self.embed(self.features(pictures))
    }

    /// What the head gets: one row of pooled features per picture, with the running statistics.
    pub fn features(&self, pictures: Tensor<4>) -> Tensor<2> {
        flatten(self.run(pictures, |unit, spec, input| unit.forward(spec, input)), self.shape.graph.pooling)
    }

    /// [`forward`](Self::forward) with a choice of statistics; what they were is to be
    /// [absorbed](Self::absorb) after the step.
    pub fn forward_training(
        &self,
        pictures: Tensor<4>,
        statistics: Statistics,
    ) -> (Tensor<2>, BatchStatistics) {
        let mut seen = Vec::new();
        let features = match statistics {
            Statistics::Frozen => self.features(pictures),
            Statistics::Batch => {
                let last = self.run(pictures, |unit, spec, input| {
                    let (output, moments) = unit.forward_batch(spec, input);
                    seen.push(moments);
                    output
                });
                flatten(last, self.shape.graph.pooling)
            }
        };
        (self.embed(features), BatchStatistics(seen))
    }

    /// Moves the running statistics a tenth of the way towards those of a batch, with the unbiased variance.
    ///
    /// Nothing happens for a batch with frozen statistics.
    pub fn absorb(self, statistics: BatchStatistics) -> Self {
        if statistics.0.is_empty() {
            return self;
        }
        let backbone = self.backbone.into_iter().zip(statistics.0);
        Self { backbone: backbone.map(|(unit, moments)| unit.absorb(moments)).collect(), ..self }
    }

    fn run(
        &self,
        pictures: Tensor<4>,
        unit: impl FnMut(&Unit, &UnitSpec, Tensor<4>) -> Tensor<4>,
    ) -> Tensor<4> {
        self.run_until(self.shape.graph.steps.len(), pictures, unit)
    }

    /// What the first steps make of the pictures.
    fn run_until(
        &self,
        steps: usize,
        pictures: Tensor<4>,
        mut unit: impl FnMut(&Unit, &UnitSpec, Tensor<4>) -> Tensor<4>,
    ) -> Tensor<4> {
        let Shape { graph, last_uses, .. } = &*self.shape;
        let mut values = vec![Some(pictures)];
        for (at, &step) in graph.steps.iter().enumerate().take(steps) {
            let mut value = |index: usize| {
                let value = &mut values[index];
                let found = if last_uses[index] == at { value.take() } else { value.clone() };
                found.expect("a value is dropped only after the last step that reads it")
            };
            let output = match step {
                Step::Unit { input, unit: number } => {
                    unit(&self.backbone[number], &graph.units[number], value(input))
                }
                Step::MaxPool { input, window, stride, padding } => {
                    kernel::max_pool(value(input), window, stride, padding)
                }
                Step::Add { left, right, activation } => kernel::add(value(left), value(right), activation),
                Step::SpaceToDepth { input, block } => space_to_depth(value(input), block),
                Step::PadChannels { input, channels } => pad_channels(value(input), channels),
                Step::Residual { input, residual } => {
                    self.residuals[residual].forward(&graph.residuals[residual], value(input))
                }
                Step::Projection { input, projection } => {
                    combine(value(input), self.projections[projection].rows())
                }
            };
            values.push(Some(output));
        }
        values.pop().flatten().expect("the last value is read by nothing before")
    }

    /// Head and normalisation: `y / max(‖y‖₂, 10⁻¹²)` with `y = W x + b`, or `W x` with orthonormal rows.
    fn embed(&self, features: Tensor<2>) -> Tensor<2> {
        let rows = match (&self.head, &self.orthonormal_head) {
            (Some(head), _) => head.forward(features),
            (None, Some(head)) => features.matmul(head.rows().transpose()),
            (None, None) => features,
        };
        if self.shape.config.architecture.normalises() { normalise_rows(rows) } else { rows }
    }

    /// The layers of the backbone.
    pub(crate) fn layer_graph(&self) -> &LayerGraph {
        &self.shape.graph
    }

    /// Every tensor with its name, running statistics among them, in the order of the layers.
    pub fn tensors(&self) -> Vec<NamedTensor> {
        let Shape { graph, config, .. } = &*self.shape;
        let mut tensors = Vec::new();
        for (unit, spec) in self.backbone.iter().zip(&graph.units) {
            tensors.extend(layer::unit_slots(spec).into_iter().zip(unit.tensors()));
        }
        for (layer, spec) in self.residuals.iter().zip(&graph.residuals) {
            tensors.extend(residual::slots(spec).into_iter().zip(layer.tensors()));
        }
        for (layer, spec) in self.projections.iter().zip(&graph.projections) {
            tensors.push((layer::projection_slot(spec), layer.tensor()));
        }
        if let Some(head) = &self.head {
            let slots = layer::head_slots(graph.features(), config.dimension);
            tensors.extend(slots.into_iter().zip(head.tensors()));
        }
        if let Some(head) = &self.orthonormal_head {
            tensors.push((layer::orthonormal_head_slot(graph.features(), config.dimension), head.tensor()));
        }
        let named = |(Slot { name, shape, .. }, values): (Slot, TensorData)| {
            let values = values.convert::<f32>().try_into_vec().expect("converted to 32 bits just before");
            NamedTensor { name, shape, values }
        };
        tensors.into_iter().map(named).collect()
    }
}

#[cfg(test)]
impl Network {
    /// Weights and statistics as training leaves them: none at its beginning, activations on both sides of 0 and 6.
    pub(crate) fn lifelike(config: &NetworkConfig, seed: Seed, device: &Device) -> Self {
        Self::build(config, device, |slot| {
            let identity = ImageIdentity::new(format!("lifelike {}", slot.name));
            let mut noise = vec![0.0; slot.shape.iter().product()];
            NoiseStream::new(seed, &identity, Stage::Train).fill(0, 0, &mut noise);
            match slot.role {
                // Fan-in, so that the lengths of activations stay what they are from layer to layer.
                Role::Kernels { .. } | Role::Matrix => {
                    let inputs: usize = slot.shape[1..].iter().product();
                    noise.iter_mut().for_each(|value| *value *= (2.0 / inputs as f32).sqrt());
                }
                Role::Scale => noise.iter_mut().for_each(|value| *value = 0.9 + 0.2 * *value),
                Role::Variance => noise.iter_mut().for_each(|value| *value = 0.5 + value.abs()),
                Role::Shift => noise.iter_mut().for_each(|value| *value *= 1.5),
                Role::Orthonormal => {}
                Role::Mean | Role::Bias => noise.iter_mut().for_each(|value| *value *= 0.2),
            }
            noise
        })
        .unwrap()
    }

    /// The largest number that each unit gives.
    pub(crate) fn largest_activations(&self, pictures: Tensor<4>) -> Vec<f32> {
        let mut largest = Vec::new();
        let _ = self.run(pictures, |unit, spec, input| {
            let output = unit.forward(spec, input);
            largest.push(output.clone().max().into_scalar());
            output
        });
        largest
    }

    /// The gradient of everything that learns, by name.
    pub(crate) fn gradients(&self, gradients: &burn::tensor::Gradients) -> Vec<(String, Vec<f32>)> {
        let Shape { graph, config, .. } = &*self.shape;
        let mut all = Vec::new();
        for (unit, spec) in self.backbone.iter().zip(&graph.units) {
            all.extend(layer::unit_slots(spec).into_iter().zip(unit.gradients(gradients)));
        }
        for (layer, spec) in self.residuals.iter().zip(&graph.residuals) {
            all.extend(residual::slots(spec).into_iter().zip(layer.gradients(gradients)));
        }
        for (layer, spec) in self.projections.iter().zip(&graph.projections) {
            all.push((layer::projection_slot(spec), layer.gradient(gradients)));
        }
        if let Some(head) = &self.head {
            let slots = layer::head_slots(graph.features(), config.dimension);
            all.extend(slots.into_iter().zip(head.gradients(gradients)));
        }
        if let Some(head) = &self.orthonormal_head {
            let slot = layer::orthonormal_head_slot(graph.features(), config.dimension);
            all.push((slot, head.gradient(gradients)));
        }
        all.into_iter()
            .filter_map(|(slot, values)| {
                assert_eq!(slot.role.learns(), values.is_some(), "{}", slot.name);
                Some((slot.name, values?.try_into_vec().unwrap()))
            })
            .collect()
    }
}

/// One row of features per picture.
fn flatten(last: Tensor<4>, pooling: Pooling) -> Tensor<2> {
    let [pictures, channels, height, width] = last.dims();
    match pooling {
        Pooling::Average => {
            last.reshape([pictures, channels, height * width]).mean_dim(2).reshape([pictures, channels])
        }
        Pooling::Flatten => last.reshape([pictures, channels * height * width]),
    }
}

/// `y / max(‖y‖₂, 10⁻¹²)`, row by row.
pub(crate) fn normalise_rows(rows: Tensor<2>) -> Tensor<2> {
    // Below the bound the gradient of the length is zero, not infinite.
    let lengths = rows.clone().powf_scalar(2.0).sum_dim(1).clamp_min(SHORTEST * SHORTEST).sqrt();
    rows / lengths
}

/// Channel `(row · block + column) · C + c` of the result is channel `c` at that place of its block.
fn space_to_depth(input: Tensor<4>, block: usize) -> Tensor<4> {
    let [pictures, channels, height, width] = input.dims();
    let (rows, columns) = (height / block, width / block);
    let blocks = input.reshape([pictures, channels, rows, block, columns, block]);
    blocks.permute([0, 3, 5, 1, 2, 4]).reshape([pictures, channels * block * block, rows, columns])
}

fn pad_channels(input: Tensor<4>, channels: usize) -> Tensor<4> {
    let [pictures, own, height, width] = input.dims();
    let zeros = Tensor::zeros([pictures, channels - own, height, width], &input.device());
    Tensor::cat(vec![input, zeros], 1)
}

/// The same combinations of the channels at every position.
fn combine(input: Tensor<4>, rows: Tensor<2>) -> Tensor<4> {
    let [outputs, inputs] = rows.dims();
    let geometry = kernel::Geometry { stride: [1; 2], padding: [(0, 0); 2], groups: 1 };
    kernel::convolution(input, rows.reshape([outputs, inputs, 1, 1]), geometry)
}

/// What a tensor holds before anything is learnt.
fn initial(slot: &Slot, seed: Seed) -> Vec<f32> {
    let count = slot.shape.iter().product();
    let normal = |variance: f64| {
        // The word before the name keeps a picture of the same name from sharing the stream.
        let identity = ImageIdentity::new(format!("parameter {}", slot.name));
        let mut values = vec![0.0; count];
        NoiseStream::new(seed, &identity, Stage::Train).fill(0, 0, &mut values);
        let deviation = variance.sqrt() as f32;
        values.iter_mut().for_each(|value| *value *= deviation);
        values
    };
    match (slot.role, &*slot.shape) {
        (Role::Kernels { groups }, &[outputs, _, rows, columns]) => {
            normal(2.0 / (outputs / groups * rows * columns) as f64)
        }
        (Role::Matrix, &[_, features]) => normal(1.0 / (3 * features) as f64),
        (Role::Orthonormal, &[_, features]) => normal(1.0 / features as f64),
        (Role::Scale | Role::Variance, _) => vec![1.0; count],
        (
            Role::Kernels { .. } | Role::Matrix | Role::Orthonormal | Role::Shift | Role::Mean | Role::Bias,
            _,
        ) => vec![0.0; count],
    }
}

#[cfg(test)]
mod tests;
