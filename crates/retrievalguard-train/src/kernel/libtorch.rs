//! The layers' operations on libtorch: its own, where the bindings reach them, and our loops for the gradients of scaling
//! and normalising.

#![expect(
    unsafe_code,
    reason = "libtorch's gradient of a convolution has a C interface but no binding, and its values are read in place"
)]
#![expect(
    deprecated,
    reason = "burn 0.22 announces the end of its libtorch backend; until then it is offered"
)]

use std::ffi::c_void;
use std::ptr::null;
use std::slice;

use burn::backend::LibTorch;
use burn::backend::libtorch::TchTensor;
use burn::backend::ops::ModuleOps;
use tch::{Kind, Tensor};

use super::cpu::pointwise::{self, Channel};
use super::operations::{KernelOps, options};
use super::{Activation, Geometry};

unsafe extern "C" {
    /// `aten::convolution_backward`, from libtorch's interface for compiled models; anything but 0 is a failure.
    fn aoti_torch_cpu_convolution_backward(
        gradient: *const c_void,
        input: *const c_void,
        weight: *const c_void,
        bias: *const *const i64,
        bias_axes: i64,
        stride: *const i64,
        stride_axes: i64,
        padding: *const i64,
        padding_axes: i64,
        dilation: *const i64,
        dilation_axes: i64,
        transposed: i32,
        output_padding: *const i64,
        output_padding_axes: i64,
        groups: i64,
        wanted: *const i32,
        wanted_count: i64,
        of_input: *mut *mut c_void,
        of_weight: *mut *mut c_void,
        of_bias: *mut *mut c_void,
    ) -> i32;
}

impl KernelOps for LibTorch {
    fn kernel_convolution_input_gradient(
        input: TchTensor,
        weight: TchTensor,
        gradient: TchTensor,
        geometry: Geometry,
    ) -> TchTensor {
        match convolution_gradients([&gradient, &input, &weight], geometry, [true, false]) {
            Some([found, _]) => TchTensor::new(found),
            None => Self::conv2d_x_backward(input, weight, gradient, options(geometry)),
        }
    }

    fn kernel_convolution_weight_gradient(
        input: TchTensor,
        weight: TchTensor,
        gradient: TchTensor,
        geometry: Geometry,
    ) -> TchTensor {
        match convolution_gradients([&gradient, &input, &weight], geometry, [false, true]) {
            Some([_, found]) => TchTensor::new(found),
            None => Self::conv2d_weight_backward(input, weight, gradient, options(geometry)),
        }
    }

    fn kernel_scale_shift(
        input: TchTensor,
        scale: TchTensor,
        shift: TchTensor,
        activation: Activation,
    ) -> TchTensor {
        let (mean, variance) = (scale.tensor.zeros_like(), scale.tensor.ones_like());
        let (output, _, _) = input.tensor.native_batch_norm(
            Some(&scale.tensor),
            Some(&shift.tensor),
            Some(&mean),
            Some(&variance),
            false,
            0.0,
            0.0,
        );
        TchTensor::new(activated(output, activation))
    }

    fn kernel_scale_shift_gradient(
        input: TchTensor,
        scale: TchTensor,
        shift: TchTensor,
        gradient: TchTensor,
        activation: Activation,
    ) -> (TchTensor, TchTensor, TchTensor) {
        let (input, mut gradient) = (input.tensor.contiguous(), owned(gradient));
        let sums = pointwise::scale_shift_gradient(
            values(&input),
            &pairs(&scale, &shift),
            plane(&input),
            activation,
            values_mut(&mut gradient),
        );
        let (scale, shift) = unzip(sums);
        (TchTensor::new(gradient), scale, shift)
    }

    fn kernel_normalise(
        input: TchTensor,
        scale: TchTensor,
        shift: TchTensor,
        epsilon: f64,
        activation: Activation,
    ) -> (TchTensor, TchTensor, TchTensor) {
        let (output, mean, inverse) = input.tensor.native_batch_norm(
            Some(&scale.tensor),
            Some(&shift.tensor),
            None,
            None,
            true,
            0.0,
            epsilon,
        );
        // `inverse` is `1 / √(variance + ε)`.
        let variance = (inverse.pow_tensor_scalar(-2) - epsilon).clamp_min(0.0);
        (TchTensor::new(activated(output, activation)), TchTensor::new(mean), TchTensor::new(variance))
    }

    fn kernel_normalise_gradient(
        input: TchTensor,
        scale: TchTensor,
        shift: TchTensor,
        mean: TchTensor,
        variance: TchTensor,
        gradient: TchTensor,
        epsilon: f64,
        activation: Activation,
    ) -> (TchTensor, TchTensor, TchTensor) {
        let (input, mut gradient) = (input.tensor.contiguous(), owned(gradient));
        let channels: Vec<_> = pairs(&scale, &shift)
            .into_iter()
            .zip(pairs(&mean, &variance))
            .map(|(affine, statistics)| Channel::new(affine, statistics, epsilon))
            .collect();
        let sums = pointwise::normalise_gradient(
            values(&input),
            &channels,
            plane(&input),
            activation,
            values_mut(&mut gradient),
        );
        let (scale, shift) = unzip(sums);
        (TchTensor::new(gradient), scale, shift)
    }

    fn kernel_activation_gradient(
        value: TchTensor,
        gradient: TchTensor,
        activation: Activation,
    ) -> TchTensor {
        if activation == Activation::Identity {
            return gradient;
        }
        let (value, mut gradient) = (value.tensor.contiguous(), owned(gradient));
        pointwise::activation_gradient(values(&value), activation, values_mut(&mut gradient));
        TchTensor::new(gradient)
    }
}

/// Gradients of input and weights, of which only the wanted ones are defined; nothing for padding that is not the same on
/// both sides.
fn convolution_gradients(
    [gradient, input, weight]: [&TchTensor; 3],
    geometry: Geometry,
    wanted: [bool; 2],
) -> Option<[Tensor; 2]> {
    let Geometry { stride, padding, groups } = geometry;
    if padding.iter().any(|(before, after)| before != after) {
        return None;
    }
    for tensor in [gradient, input, weight] {
        assert_eq!(tensor.tensor.device(), tch::Device::Cpu, "libtorch runs on the CPU");
    }
    let [stride, padding] =
        [stride, padding.map(|(before, _)| before)].map(|pair| pair.map(|size| size as i64));
    let wanted = [i32::from(wanted[0]), i32::from(wanted[1]), 0];
    let mut found: [*mut c_void; 3] = [std::ptr::null_mut(); 3];
    let [of_input, of_weight, of_bias] = &mut found;
    // SAFETY: the three tensors and the arrays live until the call returns, every length is that of its array, and a
    // null pointer stands for no bias.
    let failure = unsafe {
        aoti_torch_cpu_convolution_backward(
            gradient.tensor.as_ptr().cast(),
            input.tensor.as_ptr().cast(),
            weight.tensor.as_ptr().cast(),
            null(),
            0,
            stride.as_ptr(),
            2,
            padding.as_ptr(),
            2,
            [1_i64, 1].as_ptr(),
            2,
            0,
            [0_i64, 0].as_ptr(),
            2,
            groups as i64,
            wanted.as_ptr(),
            3,
            of_input,
            of_weight,
            of_bias,
        )
    };
    assert_eq!(failure, 0, "libtorch's gradient of a convolution");
    // SAFETY: on success each pointer is a tensor, defined or not, that is nobody else's.
    let [of_input, of_weight, _] = found.map(|tensor| unsafe { Tensor::from_ptr(tensor.cast()) });
    Some([of_input, of_weight])
}

/// Applied in place.
fn activated(mut tensor: Tensor, activation: Activation) -> Tensor {
    match activation {
        Activation::Identity => tensor,
        Activation::Relu => tensor.relu_(),
        Activation::Relu6 => tensor.clamp_(0.0, 6.0),
    }
}

/// A contiguous tensor whose values nobody else sees.
fn owned(tensor: TchTensor) -> Tensor {
    match (tensor.tensor.is_contiguous(), tensor.can_mut()) {
        (true, true) => tensor.tensor,
        (true, false) => tensor.tensor.copy(),
        (false, _) => tensor.tensor.contiguous(),
    }
}

/// Values of one channel of one picture.
fn plane(tensor: &Tensor) -> usize {
    tensor.size()[2..].iter().product::<i64>() as usize
}

fn assert_plain(tensor: &Tensor) {
    let plain = tensor.kind() == Kind::Float && tensor.device() == tch::Device::Cpu && tensor.is_contiguous();
    assert!(plain, "a contiguous tensor of single precision on the CPU");
}

fn values(tensor: &Tensor) -> &[f32] {
    assert_plain(tensor);
    if tensor.numel() == 0 {
        return &[];
    }
    // SAFETY: a contiguous tensor has so many values from this address on, and lives as long as the borrow.
    unsafe { slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// Of a tensor that came from [`owned`].
fn values_mut(tensor: &mut Tensor) -> &mut [f32] {
    assert_plain(tensor);
    if tensor.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as in `values`; no other tensor shares the memory.
    unsafe { slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}

fn pairs(left: &TchTensor, right: &TchTensor) -> Vec<(f32, f32)> {
    let (left, right) = (left.tensor.contiguous(), right.tensor.contiguous());
    values(&left).iter().copied().zip(values(&right).iter().copied()).collect()
}

fn unzip(pairs: Vec<(f32, f32)>) -> (TchTensor, TchTensor) {
    let (left, right): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (TchTensor::new(Tensor::from_slice(&left)), TchTensor::new(Tensor::from_slice(&right)))
}
