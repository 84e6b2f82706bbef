//! The layers as operations of a backend, each with a body in burn's own operations.
//!
//! A backend that has something faster overrides them: so do the CPU, in `flex.rs`, and libtorch, in `libtorch.rs`.
//! The graphics processors take the bodies below.

#![expect(
    clippy::too_many_arguments,
    reason = "a gradient takes what the forward pass was given and what it returned"
)]
#![cfg_attr(
    feature = "tch",
    expect(
        deprecated,
        reason = "burn 0.22 announces the end of its libtorch backend; until then it is offered"
    )
)]

use burn::backend::ops::ConvOptions;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Shape, TensorMetadata, backend_extension, get_or_init_device_settings};

use super::{Activation, Geometry};

/// The windows of a max-pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns.
    pub size: usize,
    /// Step down and across.
    pub stride: usize,
    /// Positions outside of the plane on every side; they never win.
    pub padding: usize,
}

/// The layers and their gradients.
#[backend_extension(
    Flex,
    LibTorch: cfg(feature = "tch"),
    Cube: cfg(any(feature = "cuda", feature = "wgpu")),
    Autodiff,
)]
pub trait KernelOps: Backend {
    /// Convolves `input` with `weight`.
    fn kernel_convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        Self::conv2d(input, weight, None, options(geometry))
    }

    /// Gradient of the convolution with respect to its input, of which only the shape is looked at.
    fn kernel_convolution_input_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        Self::conv2d_x_backward(input, weight, gradient, options(geometry))
    }

    /// Gradient of the convolution with respect to its weights, of which only the shape is looked at.
    fn kernel_convolution_weight_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        Self::conv2d_weight_backward(input, weight, gradient, options(geometry))
    }

    /// `activation(scale · input + shift)`, channel by channel.
    fn kernel_scale_shift(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        activate::<Self>(affine::<Self>(input, scale, shift), activation)
    }

    /// Gradients of input, scale and shift.
    fn kernel_scale_shift_gradient(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        scale_shift_gradient::<Self>(input, scale, shift, gradient, activation)
    }

    /// Normalised, scaled, shifted and activated input; mean and biased variance of its channels.
    fn kernel_normalise(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let result = Self::batch_norm_train(input, scale, shift, epsilon);
        (activate::<Self>(result.output, activation), result.mean, result.variance)
    }

    /// Gradients of input, scale and shift.
    fn kernel_normalise_gradient(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        epsilon: f64,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        normalise_gradient::<Self>(input, scale, shift, mean, variance, gradient, epsilon, activation)
    }

    /// `activation(left + right)`.
    fn kernel_add(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        activate::<Self>(Self::float_add(left, right), activation)
    }

    /// The gradient where the activation lets it through; `value` may be from before or after the activation.
    fn kernel_activation_gradient(
        value: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        activation_gradient::<Self>(value, gradient, activation)
    }

    /// The largest value of each window.
    fn kernel_max_pool(input: FloatTensor<Self>, window: Window) -> FloatTensor<Self> {
        let Window { size, stride, padding } = window;
        Self::max_pool2d(input, [size; 2], [stride; 2], [padding; 2], [1, 1], false)
    }

    /// The largest value of each window, and what the backend needs to find it again.
    fn kernel_max_pool_with_indices(
        input: FloatTensor<Self>,
        window: Window,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let Window { size, stride, padding } = window;
        let kind = get_or_init_device_settings::<Self>(&input.device()).int_dtype;
        let result =
            Self::max_pool2d_with_indices(input, [size; 2], [stride; 2], [padding; 2], [1, 1], false, kind);
        (result.output, result.indices)
    }

    /// Gradient of the max-pooling with respect to its input, of which only the shape is looked at.
    fn kernel_max_pool_gradient(
        input: FloatTensor<Self>,
        indices: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        window: Window,
    ) -> FloatTensor<Self> {
        let Window { size, stride, padding } = window;
        Self::max_pool2d_with_indices_backward(
            input,
            [size; 2],
            [stride; 2],
            [padding; 2],
            [1, 1],
            false,
            gradient,
            indices,
        )
        .x_grad
    }
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl KernelOps for burn::backend::Cube {}

pub(super) fn options(geometry: Geometry) -> ConvOptions<2> {
    let Geometry { stride, padding, groups } = geometry;
    ConvOptions::new_with_padding(stride, padding, [1, 1], groups)
}

fn activate<B: Backend>(input: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Identity => input,
        Activation::Relu => B::relu(input),
        Activation::Relu6 => B::float_clamp(input, 0.0.into(), 6.0.into()),
    }
}

fn affine<B: Backend>(input: FloatTensor<B>, scale: FloatTensor<B>, shift: FloatTensor<B>) -> FloatTensor<B> {
    B::float_add(B::float_mul(input, per_channel::<B>(scale)), per_channel::<B>(shift))
}

fn per_channel<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let channels = values.shape()[0];
    B::float_reshape(values, Shape::new([1, channels, 1, 1]))
}

fn sum_over_channel<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let channels = values.shape()[1];
    B::float_reshape(B::float_sum_dims(values, &[0, 2, 3]), Shape::new([channels]))
}

/// Gradients of input, scale and shift of `activation(scale · input + shift)`.
pub(super) fn scale_shift_gradient<B: Backend>(
    input: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let before = affine::<B>(input.clone(), scale.clone(), shift);
    let passed = activation_gradient::<B>(before, gradient, activation);
    let of_scale = sum_over_channel::<B>(B::float_mul(passed.clone(), input));
    let of_shift = sum_over_channel::<B>(passed.clone());
    (B::float_mul(passed, per_channel::<B>(scale)), of_scale, of_shift)
}

/// Gradients of input, scale and shift of a normalised, scaled, shifted and activated input.
pub(super) fn normalise_gradient<B: Backend>(
    input: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    mean: FloatTensor<B>,
    variance: FloatTensor<B>,
    gradient: FloatTensor<B>,
    epsilon: f64,
    activation: Activation,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let before = B::batch_norm(input.clone(), scale.clone(), shift, mean.clone(), variance.clone(), epsilon);
    let passed = activation_gradient::<B>(before, gradient, activation);
    let result = B::batch_norm_train_backward(input, scale, mean, variance, epsilon, passed);
    (result.x_grad, result.gamma_grad, result.beta_grad)
}

/// The gradient where the activation lets it through.
pub(super) fn activation_gradient<B: Backend>(
    value: FloatTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    match activation {
        Activation::Identity => gradient,
        Activation::Relu => B::relu_backward(value, gradient),
        Activation::Relu6 => {
            let kind = get_or_init_device_settings::<B>(&value.device()).bool_dtype;
            let cut = B::float_greater_equal_elem(value.clone(), 6.0.into(), kind);
            B::float_mask_fill(B::relu_backward(value, gradient), cut, 0.0.into())
        }
    }
}
