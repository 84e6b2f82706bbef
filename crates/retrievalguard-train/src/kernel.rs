//! The layers' arithmetic: convolution, channel-wise scaling, batch normalisation, pooling.

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

mod cpu;
mod flex;
mod gradient;
#[cfg(feature = "tch")]
mod libtorch;
mod memory;
mod operations;

pub use operations::{KernelOps, Window};

/// What follows a layer, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
}

impl Activation {
    /// Applies it.
    pub fn apply(self, input: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Identity => input,
            Self::Relu => relu(input),
            Self::Relu6 => input.clamp(0.0, 6.0),
        }
    }
}

/// How a convolution walks over its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Step down and across.
    pub stride: [usize; 2],
    /// Zeros above and below, left and right.
    pub padding: [(usize, usize); 2],
    /// Number of groups; as many as channels for a depthwise convolution.
    pub groups: usize,
}

/// Convolves `[pictures, channels, height, width]` with `[outputs, channels / groups, rows, columns]`.
pub fn convolution(input: Tensor<4>, weight: Tensor<4>, geometry: Geometry) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::kernel_convolution(
        input.into_dispatch(),
        weight.into_dispatch(),
        geometry,
    ))
}

/// `activation(scale · x + shift)` with one scale and one shift per channel: a frozen batch normalisation.
pub fn scale_shift(
    input: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    activation: Activation,
) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::kernel_scale_shift(
        input.into_dispatch(),
        scale.into_dispatch(),
        shift.into_dispatch(),
        activation,
    ))
}

/// Batch normalisation with the statistics of the batch.
#[derive(Clone, Debug)]
pub struct Normalised {
    /// `activation(scale · (x − mean) / √(variance + ε) + shift)`.
    pub output: Tensor<4>,
    /// Mean of each channel over the batch; carries no gradient.
    pub mean: Tensor<1>,
    /// Biased variance of each channel over the batch; carries no gradient.
    pub variance: Tensor<1>,
}

/// Normalises every channel by its own mean and variance over the batch, then scales, shifts and activates.
pub fn normalise(
    input: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    epsilon: f64,
    activation: Activation,
) -> Normalised {
    let (output, mean, variance) = Dispatch::kernel_normalise(
        input.into_dispatch(),
        scale.into_dispatch(),
        shift.into_dispatch(),
        epsilon,
        activation,
    );
    Normalised {
        output: Tensor::from_dispatch(output),
        mean: Tensor::from_dispatch(mean).detach(),
        variance: Tensor::from_dispatch(variance).detach(),
    }
}

/// `activation(left + right)`: the end of a residual block.
pub fn add(left: Tensor<4>, right: Tensor<4>, activation: Activation) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::kernel_add(left.into_dispatch(), right.into_dispatch(), activation))
}

/// The largest value of each window.
pub fn max_pool(input: Tensor<4>, window: usize, stride: usize, padding: usize) -> Tensor<4> {
    let window = Window { size: window, stride, padding };
    Tensor::from_dispatch(Dispatch::kernel_max_pool(input.into_dispatch(), window))
}

#[cfg(test)]
mod tests;
