//! The layers' operations on the CPU: from burn's tensors to the loops of `cpu` and back.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::ModuleOps;
use burn::backend::tensor::IntTensor;
use burn::backend::{DType, Flex, Shape, TensorData, TensorMetadata};

use super::cpu::pointwise::{self, Channel};
use super::cpu::pooling::Windows;
use super::cpu::{Sizes, dense, depthwise, pooling};
use super::memory::{buffer, tensor};
use super::operations::{KernelOps, Window, options};
use super::{Activation, Geometry};

impl KernelOps for Flex {
    fn kernel_convolution(input: FlexTensor, weight: FlexTensor, geometry: Geometry) -> FlexTensor {
        let Some((kind, sizes)) = loops_for(&input, &weight, geometry) else {
            return Self::conv2d(input, weight, None, options(geometry));
        };
        let (input, weight) = (contiguous(input), contiguous(weight));
        let mut output = buffer(sizes.pictures * sizes.outputs * sizes.output[0] * sizes.output[1]);
        match kind {
            Kind::Dense => dense::forward(&sizes, values(&input), values(&weight), &mut output),
            Kind::Depthwise => depthwise::forward(&sizes, values(&input), values(&weight), &mut output),
        }
        tensor(output, [sizes.pictures, sizes.outputs, sizes.output[0], sizes.output[1]])
    }

    fn kernel_convolution_input_gradient(
        input: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        geometry: Geometry,
    ) -> FlexTensor {
        let Some((kind, sizes)) = loops_for(&input, &weight, geometry) else {
            return Self::conv2d_x_backward(input, weight, gradient, options(geometry));
        };
        let (weight, gradient) = (contiguous(weight), contiguous(gradient));
        let mut output = buffer(sizes.pictures * sizes.inputs * sizes.input[0] * sizes.input[1]);
        match kind {
            Kind::Dense => dense::input_gradient(&sizes, values(&gradient), values(&weight), &mut output),
            Kind::Depthwise => {
                depthwise::input_gradient(&sizes, values(&gradient), values(&weight), &mut output);
            }
        }
        tensor(output, [sizes.pictures, sizes.inputs, sizes.input[0], sizes.input[1]])
    }

    fn kernel_convolution_weight_gradient(
        input: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        geometry: Geometry,
    ) -> FlexTensor {
        let Some((kind, sizes)) = loops_for(&input, &weight, geometry) else {
            return Self::conv2d_weight_backward(input, weight, gradient, options(geometry));
        };
        let (input, gradient) = (contiguous(input), contiguous(gradient));
        let shape = weight.shape();
        let mut output = buffer(shape.num_elements());
        match kind {
            Kind::Dense => dense::weight_gradient(&sizes, values(&input), values(&gradient), &mut output),
            Kind::Depthwise => {
                depthwise::weight_gradient(&sizes, values(&input), values(&gradient), &mut output);
            }
        }
        tensor(output, shape)
    }

    fn kernel_scale_shift(
        input: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        activation: Activation,
    ) -> FlexTensor {
        let (input, shape, plane) = planes(input);
        let mut output = buffer(shape.num_elements());
        pointwise::scale_shift(values(&input), &pairs(scale, shift), plane, activation, &mut output);
        tensor(output, shape)
    }

    fn kernel_scale_shift_gradient(
        input: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        gradient: FlexTensor,
        activation: Activation,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (input, _, plane) = planes(input);
        let mut gradient = contiguous(gradient);
        let sums = pointwise::scale_shift_gradient(
            values(&input),
            &pairs(scale, shift),
            plane,
            activation,
            gradient.storage_mut(),
        );
        let (scale, shift) = unzip(sums);
        (gradient, scale, shift)
    }

    fn kernel_normalise(
        input: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        epsilon: f64,
        activation: Activation,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (input, shape, plane) = planes(input);
        let statistics = pointwise::statistics(values(&input), shape[1], plane);
        let affine: Vec<_> = pairs(scale, shift)
            .into_iter()
            .zip(&statistics)
            .map(|((scale, shift), (mean, variance))| {
                let scale = f64::from(scale) / (variance + epsilon).sqrt();
                (scale as f32, (f64::from(shift) - scale * mean) as f32)
            })
            .collect();
        let mut output = buffer(shape.num_elements());
        pointwise::scale_shift(values(&input), &affine, plane, activation, &mut output);
        let statistics =
            statistics.into_iter().map(|(mean, variance)| (mean as f32, variance as f32)).collect();
        let (mean, variance) = unzip(statistics);
        (tensor(output, shape), mean, variance)
    }

    fn kernel_normalise_gradient(
        input: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        mean: FlexTensor,
        variance: FlexTensor,
        gradient: FlexTensor,
        epsilon: f64,
        activation: Activation,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (input, _, plane) = planes(input);
        let mut gradient = contiguous(gradient);
        let channels: Vec<_> = pairs(scale, shift)
            .into_iter()
            .zip(pairs(mean, variance))
            .map(|(affine, statistics)| Channel::new(affine, statistics, epsilon))
            .collect();
        let sums = pointwise::normalise_gradient(
            values(&input),
            &channels,
            plane,
            activation,
            gradient.storage_mut(),
        );
        let (scale, shift) = unzip(sums);
        (gradient, scale, shift)
    }

    fn kernel_add(left: FlexTensor, right: FlexTensor, activation: Activation) -> FlexTensor {
        let (left, right) = (contiguous(left), contiguous(right));
        let shape = left.shape();
        let mut output = buffer(shape.num_elements());
        pointwise::add(values(&left), values(&right), activation, &mut output);
        tensor(output, shape)
    }

    fn kernel_activation_gradient(
        value: FlexTensor,
        gradient: FlexTensor,
        activation: Activation,
    ) -> FlexTensor {
        if activation == Activation::Identity {
            return gradient;
        }
        let (value, mut gradient) = (contiguous(value), contiguous(gradient));
        pointwise::activation_gradient(values(&value), activation, gradient.storage_mut());
        gradient
    }

    fn kernel_max_pool(input: FlexTensor, window: Window) -> FlexTensor {
        Self::kernel_max_pool_with_indices(input, window).0
    }

    fn kernel_max_pool_with_indices(input: FlexTensor, window: Window) -> (FlexTensor, IntTensor<Flex>) {
        let input = contiguous(input);
        let [pictures, channels, height, width] = input.shape().dims();
        let windows = windows([height, width], window);
        let shape = [pictures, channels, windows.output[0], windows.output[1]];
        let size = shape.iter().product();
        let (mut output, mut indices) = (buffer(size), vec![0_i32; size]);
        pooling::forward(windows, values(&input), &mut output, &mut indices);
        (tensor(output, shape), FlexTensor::from_data(TensorData::new(indices, shape)))
    }

    fn kernel_max_pool_gradient(
        input: FlexTensor,
        indices: IntTensor<Flex>,
        gradient: FlexTensor,
        window: Window,
    ) -> FlexTensor {
        let shape = input.shape();
        let gradient = contiguous(gradient);
        let windows = windows([shape[2], shape[3]], window);
        let mut output = buffer(shape.num_elements());
        pooling::backward(windows, indices.storage(), values(&gradient), &mut output);
        tensor(output, shape)
    }
}

/// Which loops a convolution takes.
enum Kind {
    Dense,
    Depthwise,
}

/// Nothing for what the loops do not cover: other numbers than `f32`, several channels to a group, uncommon kernels.
fn loops_for(input: &FlexTensor, weight: &FlexTensor, geometry: Geometry) -> Option<(Kind, Sizes)> {
    let Geometry { stride, padding, groups } = geometry;
    let [pictures, inputs, height, width] = input.shape().dims();
    let [outputs, _, rows, columns] = weight.shape().dims();
    let (input_size, kernel) = ([height, width], [rows, columns]);
    let output = [0, 1].map(|axis| {
        let (before, after) = padding[axis];
        (input_size[axis] + before + after)
            .checked_sub(kernel[axis])
            .map_or(0, |room| room / stride[axis] + 1)
    });
    let sizes = Sizes { pictures, inputs, outputs, input: input_size, kernel, output, stride, padding };
    let numbers = input.dtype() == DType::F32 && weight.dtype() == DType::F32;
    let something = pictures * inputs * outputs * height * width * output[0] * output[1] > 0;
    match groups {
        _ if !numbers || !something => None,
        1 => Some((Kind::Dense, sizes)),
        _ if groups == inputs && inputs == outputs && depthwise::applies(&sizes) => {
            Some((Kind::Depthwise, sizes))
        }
        _ => None,
    }
}

fn windows(input: [usize; 2], window: Window) -> Windows {
    let Window { size, stride, padding } = window;
    let output = input.map(|length| (length + 2 * padding - size) / stride + 1);
    Windows { input, output, window: size, stride, padding }
}

/// Contiguous values from the first to the last of the buffer.
fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.storage()
}

/// The contiguous tensor, its shape, and the values of a plane.
fn planes(tensor: FlexTensor) -> (FlexTensor, Shape, usize) {
    let tensor = contiguous(tensor);
    let shape = tensor.shape();
    let plane = shape[2] * shape[3];
    (tensor, shape, plane)
}

fn pairs(left: FlexTensor, right: FlexTensor) -> Vec<(f32, f32)> {
    let (left, right) = (contiguous(left), contiguous(right));
    values(&left).iter().copied().zip(values(&right).iter().copied()).collect()
}

fn unzip(pairs: Vec<(f32, f32)>) -> (FlexTensor, FlexTensor) {
    let channels = pairs.len();
    let (left, right): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (tensor(left, [channels]), tensor(right, [channels]))
}
