//! What learns in the usual networks: convolutions with their batch normalisations, and the linear head.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::noise::ImageIdentity;

use super::layer_graph::{ProjectionSpec, UnitSpec};
use crate::kernel;

/// Share of a batch in the running statistics: PyTorch's default.
const MOMENTUM: f64 = 0.1;

/// Names of a head's tensors.
pub(super) const HEAD: [&str; 2] = ["head.weight", "head.bias"];

/// What a tensor is for; decides how it begins and whether it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Kernels of a convolution with so many groups.
    Kernels { groups: usize },
    /// Factor of a batch normalisation.
    Scale,
    /// Summand of a batch normalisation.
    Shift,
    /// Running mean; learns nothing.
    Mean,
    /// Running variance; learns nothing.
    Variance,
    /// Matrix of the head, one row per output.
    Matrix,
    /// Matrix of which the orthonormal rows are used.
    Orthonormal,
    /// Summand of the head or of a residual layer.
    Bias,
}

impl Role {
    pub(super) fn learns(self) -> bool {
        match self {
            Self::Kernels { .. }
            | Self::Scale
            | Self::Shift
            | Self::Matrix
            | Self::Orthonormal
            | Self::Bias => true,
            Self::Mean | Self::Variance => false,
        }
    }
}

/// A tensor of a network: its name in a state dictionary, its shape and its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) role: Role,
}

impl Slot {
    pub(super) fn new(name: String, shape: &[usize], role: Role) -> Self {
        Self { name, shape: shape.to_vec(), role }
    }

    /// The parameter with these values; its number follows from its name, so optimiser states fit after a restart.
    pub(super) fn parameter<const RANK: usize>(
        &self,
        values: Vec<f32>,
        device: &Device,
    ) -> Param<Tensor<RANK>> {
        let tensor = Tensor::from_data(TensorData::new(values, self.shape.clone()), device);
        let mut parameter = Param::from_tensor(tensor);
        parameter.id = ParamId::from(ImageIdentity::new(&self.name).get() as u64);
        if self.role.learns() { parameter } else { parameter.set_require_grad(false) }
    }
}

/// The tensors of a unit, in the order of [`Unit::new`].
pub(super) fn unit_slots(spec: &UnitSpec) -> [Slot; 5] {
    let UnitSpec { convolution, norm, shape, geometry, .. } = spec;
    let channels = &shape[..1];
    [
        Slot::new(format!("{convolution}.weight"), shape, Role::Kernels { groups: geometry.groups }),
        Slot::new(format!("{norm}.weight"), channels, Role::Scale),
        Slot::new(format!("{norm}.bias"), channels, Role::Shift),
        Slot::new(format!("{norm}.running_mean"), channels, Role::Mean),
        Slot::new(format!("{norm}.running_var"), channels, Role::Variance),
    ]
}

/// The tensors of a head, in the order of [`Linear::new`].
pub(super) fn head_slots(features: usize, dimension: usize) -> [Slot; 2] {
    let [weight, bias] = HEAD.map(str::to_owned);
    [Slot::new(weight, &[dimension, features], Role::Matrix), Slot::new(bias, &[dimension], Role::Bias)]
}

/// The tensor of an orthonormal head.
pub(super) fn orthonormal_head_slot(features: usize, dimension: usize) -> Slot {
    Slot::new(HEAD[0].to_owned(), &[dimension, features], Role::Orthonormal)
}

/// The tensor of a projection.
pub(super) fn projection_slot(spec: &ProjectionSpec) -> Slot {
    let ProjectionSpec { name, outputs, inputs } = spec;
    Slot::new(format!("{name}.weight"), &[*outputs, *inputs], Role::Orthonormal)
}

/// A convolution without bias and its batch normalisation, with PyTorch's shapes.
#[derive(Module, Debug)]
pub(super) struct Unit {
    weight: Param<Tensor<4>>,
    scale: Param<Tensor<1>>,
    shift: Param<Tensor<1>>,
    running_mean: Param<Tensor<1>>,
    running_variance: Param<Tensor<1>>,
}

/// Mean and unbiased variance of a batch, channel by channel.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    mean: Tensor<1>,
    variance: Tensor<1>,
}

impl Unit {
    pub(super) fn new(slots: &[Slot; 5], values: [Vec<f32>; 5], device: &Device) -> Self {
        let [weight, scale, shift, mean, variance] = slots;
        let [weight_values, scale_values, shift_values, mean_values, variance_values] = values;
        Self {
            weight: weight.parameter(weight_values, device),
            scale: scale.parameter(scale_values, device),
            shift: shift.parameter(shift_values, device),
            running_mean: mean.parameter(mean_values, device),
            running_variance: variance.parameter(variance_values, device),
        }
    }

    pub(super) fn tensors(&self) -> [TensorData; 5] {
        let Self { weight, scale, shift, running_mean, running_variance } = self;
        let channels = [scale, shift, running_mean, running_variance].map(|part| part.val().into_data());
        let [scale, shift, mean, variance] = channels;
        [weight.val().into_data(), scale, shift, mean, variance]
    }

    #[cfg(test)]
    pub(super) fn gradients(&self, gradients: &burn::tensor::Gradients) -> [Option<TensorData>; 5] {
        let Self { weight, scale, shift, running_mean, running_variance } = self;
        let channels = [scale, shift, running_mean, running_variance];
        let [scale, shift, mean, variance] =
            channels.map(|part| part.val().grad(gradients).map(Tensor::into_data));
        [weight.val().grad(gradients).map(Tensor::into_data), scale, shift, mean, variance]
    }

    /// With the running statistics, which stay as they are.
    pub(super) fn forward(&self, spec: &UnitSpec, input: Tensor<4>) -> Tensor<4> {
        let scale = self.scale.val() / (self.running_variance.val() + spec.epsilon).sqrt();
        let shift = self.shift.val() - self.running_mean.val() * scale.clone();
        let output = kernel::convolution(input, self.weight.val(), spec.geometry);
        kernel::scale_shift(output, scale, shift, spec.activation)
    }

    /// With the statistics of the batch, which are handed back.
    pub(super) fn forward_batch(&self, spec: &UnitSpec, input: Tensor<4>) -> (Tensor<4>, Moments) {
        let output = kernel::convolution(input, self.weight.val(), spec.geometry);
        let [pictures, _, height, width] = output.dims();
        let count = (pictures * height * width) as f64;
        let (scale, shift) = (self.scale.val(), self.shift.val());
        let normalised = kernel::normalise(output, scale, shift, spec.epsilon, spec.activation);
        let unbiased = count / (count - 1.0).max(1.0);
        let moments = Moments { mean: normalised.mean, variance: normalised.variance * unbiased };
        (normalised.output, moments)
    }

    /// Moves the running statistics a step towards those of a batch.
    pub(super) fn absorb(self, moments: Moments) -> Self {
        let step = |running: Param<Tensor<1>>, batch: Tensor<1>| {
            running.map(|running| (running * (1.0 - MOMENTUM) + batch * MOMENTUM).detach())
        };
        Self {
            running_mean: step(self.running_mean, moments.mean),
            running_variance: step(self.running_variance, moments.variance),
            ..self
        }
    }
}

/// A matrix and a summand.
#[derive(Module, Debug)]
pub(super) struct Linear {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Linear {
    pub(super) fn new(slots: &[Slot; 2], values: [Vec<f32>; 2], device: &Device) -> Self {
        let ([weight, bias], [weight_values, bias_values]) = (slots, values);
        Self { weight: weight.parameter(weight_values, device), bias: bias.parameter(bias_values, device) }
    }

    pub(super) fn tensors(&self) -> [TensorData; 2] {
        [self.weight.val().into_data(), self.bias.val().into_data()]
    }

    #[cfg(test)]
    pub(super) fn gradients(&self, gradients: &burn::tensor::Gradients) -> [Option<TensorData>; 2] {
        let weight = self.weight.val().grad(gradients).map(Tensor::into_data);
        [weight, self.bias.val().grad(gradients).map(Tensor::into_data)]
    }

    pub(super) fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        features.matmul(self.weight.val().transpose()) + self.bias.val().unsqueeze()
    }
}
