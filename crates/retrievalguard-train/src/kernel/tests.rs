//! Every layer against burn's own operations, against finite differences, and against itself on more threads.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::module::{batch_norm_train, conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::backend::Backend;

/// Two ways to the same sum in `f32` differ by no more than this, relative to the largest value.
const TOLERANCE: f32 = 2e-5;

/// Finite differences in `f32` with a step of 1e-2 are good to about this, relative to the largest gradient.
const DIFFERENCE_TOLERANCE: f32 = 2e-2;

/// Repeatable values in `[-1, 1)`.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn tensor<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values(shape.iter().product(), seed), shape), device)
}

fn vector<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("single precision")
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    let largest = expected.iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = (found - expected).abs();
        assert!(distance <= tolerance * largest, "{what}, value {index}: {found} instead of {expected}");
    }
}

/// Inputs of a layer: one of four axes, and any number of vectors and weights.
struct Inputs {
    large: Vec<[usize; 4]>,
    small: Vec<usize>,
}

/// A layer as a function of its inputs.
type Layer<'a> = &'a dyn Fn(&[Tensor<4>], &[Tensor<1>]) -> Tensor<4>;

/// The output, and the gradients of `Σ output · weights` with respect to every input.
fn outcome(layer: Layer<'_>, inputs: &Inputs, device: Device) -> Vec<Vec<f32>> {
    let device = device.autodiff();
    let large: Vec<_> =
        (1..).zip(&inputs.large).map(|(seed, &shape)| tensor(shape, seed, &device).require_grad()).collect();
    let small: Vec<_> =
        (51..).zip(&inputs.small).map(|(seed, &size)| tensor([size], seed, &device).require_grad()).collect();
    let output = layer(&large, &small);
    let weights = tensor(output.dims(), 99, &device);
    let gradients = (output.clone() * weights).sum().backward();
    let mut outcome = vec![vector(output)];
    outcome.extend(large.iter().map(|input| vector(input.grad(&gradients).expect("tracked"))));
    outcome.extend(small.iter().map(|input| vector(input.grad(&gradients).expect("tracked"))));
    outcome
}

fn assert_same(ours: Layer<'_>, plain: Layer<'_>, inputs: &Inputs, what: &str) {
    let plain = outcome(plain, inputs, Device::flex());
    for backend in [Backend::Cpu, Backend::Libtorch] {
        let Ok(device) = backend.device() else { continue };
        for (index, (ours, plain)) in outcome(ours, inputs, device).iter().zip(&plain).enumerate() {
            let part = if index == 0 { "output".to_owned() } else { format!("gradient {index}") };
            assert_close(ours, plain, TOLERANCE, &format!("{backend}, {what}, {part}"));
        }
    }
}

fn plain_convolution(input: Tensor<4>, weight: Tensor<4>, geometry: Geometry) -> Tensor<4> {
    let Geometry { stride, padding, groups } = geometry;
    conv2d(input, weight, None, ConvOptions::new_with_padding(stride, padding, [1, 1], groups))
}

fn plain_scale_shift(
    input: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    activation: Activation,
) -> Tensor<4> {
    let shape = [1, scale.dims()[0], 1, 1];
    activation.apply(input * scale.reshape(shape) + shift.reshape(shape))
}

const ACTIVATIONS: [Activation; 3] = [Activation::Identity, Activation::Relu, Activation::Relu6];

/// Pictures, channels in, channels out, height, width, kernel, stride, padding.
type Case = (usize, usize, usize, [usize; 2], [usize; 2], [usize; 2], [(usize, usize); 2]);

const DENSE: [Case; 16] = [
    (1, 1, 1, [1, 1], [1, 1], [1, 1], [(0, 0), (0, 0)]),
    (2, 3, 5, [7, 9], [3, 3], [1, 1], [(1, 1), (1, 1)]),
    (3, 4, 7, [8, 8], [3, 3], [2, 2], [(0, 1), (0, 1)]),
    (1, 3, 8, [17, 13], [7, 7], [2, 2], [(3, 3), (3, 3)]),
    (5, 16, 6, [3, 3], [3, 3], [1, 1], [(1, 1), (1, 1)]),
    (9, 13, 17, [4, 4], [1, 1], [1, 1], [(0, 0), (0, 0)]),
    (2, 10, 12, [20, 21], [1, 1], [1, 1], [(0, 0), (0, 0)]),
    (2, 6, 4, [9, 8], [1, 1], [2, 2], [(0, 0), (0, 0)]),
    (1, 2, 3, [6, 5], [5, 3], [1, 2], [(2, 1), (0, 1)]),
    (2, 40, 20, [14, 14], [3, 3], [1, 1], [(1, 1), (1, 1)]),
    (17, 2, 3, [7, 7], [3, 3], [1, 1], [(1, 1), (1, 1)]),
    (1, 400, 7, [5, 5], [1, 1], [1, 1], [(0, 0), (0, 0)]),
    (2, 3, 2, [8, 7], [2, 2], [3, 3], [(0, 0), (0, 0)]),
    (1, 2, 2, [5, 5], [2, 2], [1, 1], [(2, 3), (3, 2)]),
    (3, 70, 13, [6, 6], [3, 3], [2, 2], [(1, 1), (1, 1)]),
    (2, 3, 65, [25, 24], [3, 3], [1, 1], [(0, 0), (0, 0)]),
];

const DEPTHWISE: [Case; 8] = [
    (1, 2, 2, [5, 5], [3, 3], [1, 1], [(1, 1), (1, 1)]),
    (2, 3, 3, [7, 9], [3, 3], [2, 2], [(1, 1), (1, 1)]),
    (3, 5, 5, [8, 8], [3, 3], [2, 2], [(0, 1), (0, 1)]),
    (2, 4, 4, [14, 14], [5, 5], [1, 1], [(2, 2), (2, 2)]),
    (2, 3, 3, [15, 12], [5, 5], [2, 2], [(1, 2), (1, 2)]),
    (1, 2, 2, [19, 17], [7, 7], [1, 2], [(3, 3), (3, 2)]),
    (1, 3, 3, [4, 4], [5, 5], [1, 1], [(2, 2), (2, 2)]),
    (2, 130, 130, [30, 30], [3, 3], [1, 1], [(0, 0), (0, 0)]),
];

fn assert_convolution(case: &Case, groups: usize) {
    let &(pictures, inputs, outputs, [height, width], [rows, columns], stride, padding) = case;
    let geometry = Geometry { stride, padding, groups };
    let large = vec![[pictures, inputs, height, width], [outputs, inputs / groups, rows, columns]];
    assert_same(
        &|large, _| convolution(large[0].clone(), large[1].clone(), geometry),
        &|large, _| plain_convolution(large[0].clone(), large[1].clone(), geometry),
        &Inputs { large, small: vec![] },
        &format!("{case:?}"),
    );
}

#[test]
fn a_dense_convolution_is_burns_and_so_are_its_gradients() {
    DENSE.iter().for_each(|case| assert_convolution(case, 1));
}

#[test]
fn a_depthwise_convolution_is_burns_and_so_are_its_gradients() {
    DEPTHWISE.iter().for_each(|case| assert_convolution(case, case.1));
}

#[test]
fn other_groups_and_kernels_are_left_to_burn() {
    assert_convolution(&(2, 6, 4, [5, 6], [3, 3], [1, 1], [(1, 1), (1, 1)]), 2);
    assert_convolution(&(2, 3, 3, [5, 6], [2, 4], [1, 1], [(1, 1), (1, 1)]), 3);
}

const SHAPES: [[usize; 4]; 5] = [[1, 1, 1, 1], [2, 3, 5, 7], [3, 5, 8, 8], [7, 2, 1, 3], [2, 40, 28, 27]];

#[test]
fn scaling_and_shifting_is_burns_and_so_are_its_gradients() {
    for (shape, activation) in
        SHAPES.iter().flat_map(|shape| ACTIVATIONS.map(|activation| (*shape, activation)))
    {
        assert_same(
            &|large, small| {
                // Wide enough that the upper edge of ReLU6 is met.
                scale_shift(large[0].clone() * 20.0, small[0].clone(), small[1].clone(), activation)
            },
            &|large, small| {
                plain_scale_shift(large[0].clone() * 20.0, small[0].clone(), small[1].clone(), activation)
            },
            &Inputs { large: vec![shape], small: vec![shape[1]; 2] },
            &format!("{shape:?} {activation:?}"),
        );
    }
}

#[test]
fn normalising_is_burns_and_so_are_its_gradients() {
    for (shape, activation) in
        SHAPES[1..].iter().flat_map(|shape| ACTIVATIONS.map(|activation| (*shape, activation)))
    {
        let scaled = |input: &Tensor<1>| input.clone() * 10.0;
        assert_same(
            &|large, small| {
                normalise(large[0].clone(), scaled(&small[0]), small[1].clone(), 1e-2, activation).output
            },
            &|large, small| {
                let result = batch_norm_train(large[0].clone(), scaled(&small[0]), small[1].clone(), 1e-2);
                activation.apply(result.output)
            },
            &Inputs { large: vec![shape], small: vec![shape[1]; 2] },
            &format!("{shape:?} {activation:?}"),
        );
    }
}

#[test]
fn a_far_mean_does_not_spoil_the_variance() {
    let device = Device::flex();
    let input = tensor([4, 2, 28, 28], 5, &device) + 1000.0;
    let exact = |channel: usize| {
        let values: Vec<_> = vector(input.clone())
            .chunks_exact(784)
            .enumerate()
            .filter(|(plane, _)| plane % 2 == channel)
            .flat_map(|(_, plane)| plane.iter().map(|&value| f64::from(value)).collect::<Vec<_>>())
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / values.len() as f64
    };
    let ones = Tensor::<1>::ones([2], &device);
    let found = normalise(input.clone(), ones.clone(), ones, 0.0, Activation::Identity);
    for (channel, variance) in vector(found.variance).into_iter().enumerate() {
        let expected = exact(channel);
        assert!((f64::from(variance) / expected - 1.0).abs() < 1e-6, "{variance} instead of {expected}");
    }
}

#[test]
fn adding_is_burns_and_so_are_its_gradients() {
    for (shape, activation) in
        SHAPES.iter().flat_map(|shape| ACTIVATIONS.map(|activation| (*shape, activation)))
    {
        assert_same(
            &|large, _| add(large[0].clone() * 8.0, large[1].clone(), activation),
            &|large, _| activation.apply(large[0].clone() * 8.0 + large[1].clone()),
            &Inputs { large: vec![shape; 2], small: vec![] },
            &format!("{shape:?} {activation:?}"),
        );
    }
}

#[test]
fn pooling_is_burns_and_so_is_its_gradient() {
    for (shape, window, stride, padding) in [
        ([2, 3, 8, 6], 2, 2, 0),
        ([1, 2, 7, 9], 2, 2, 0),
        ([2, 3, 9, 8], 3, 2, 1),
        ([1, 1, 5, 5], 3, 1, 1),
        ([2, 70, 28, 28], 2, 2, 0),
    ] {
        assert_same(
            &|large, _| max_pool(large[0].clone(), window, stride, padding),
            &|large, _| {
                let options = MaxPoolOptions {
                    stride: [stride; 2],
                    padding: [(padding, padding); 2],
                    ..MaxPoolOptions::new([window; 2])
                };
                max_pool2d(large[0].clone(), options)
            },
            &Inputs { large: vec![shape], small: vec![] },
            &format!("{shape:?} {window} {stride} {padding}"),
        );
    }
}

/// Central differences of `Σ output · weights`, one input value at a time.
fn assert_slopes(layer: Layer<'_>, inputs: &Inputs, what: &str) {
    const STEP: f32 = 1e-2;
    let device = Device::flex();
    let found = outcome(layer, inputs, Device::flex());
    let large: Vec<_> = (1..).zip(&inputs.large).map(|(seed, &shape)| tensor(shape, seed, &device)).collect();
    let small: Vec<_> =
        (51..).zip(&inputs.small).map(|(seed, &size)| tensor([size], seed, &device)).collect();
    let objective = |large: &[Tensor<4>], small: &[Tensor<1>]| -> f64 {
        let output = layer(large, small);
        let weights = vector(tensor(output.dims(), 99, &device));
        vector(output).iter().zip(&weights).map(|(&one, &other)| f64::from(one) * f64::from(other)).sum()
    };
    for input in 0..large.len() + small.len() {
        let count = found[1 + input].len();
        let slopes: Vec<f32> = (0..count)
            .map(|index| {
                let moved = |step: f32| {
                    let (mut large, mut small) = (large.clone(), small.clone());
                    let mut shift = vec![0.0; count];
                    shift[index] = step;
                    if input < large.len() {
                        let shape = large[input].dims();
                        let shift = Tensor::from_data(TensorData::new(shift, shape), &device);
                        large[input] = large[input].clone() + shift;
                    } else {
                        let input = input - large.len();
                        let shift = Tensor::from_data(TensorData::new(shift, [count]), &device);
                        small[input] = small[input].clone() + shift;
                    }
                    objective(&large, &small)
                };
                ((moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP)) as f32
            })
            .collect();
        assert_close(&found[1 + input], &slopes, DIFFERENCE_TOLERANCE, &format!("{what}, input {input}"));
    }
}

#[test]
fn gradients_are_slopes() {
    let geometry = |stride, groups| Geometry { stride: [stride; 2], padding: [(0, 1), (1, 0)], groups };
    assert_slopes(
        &|large, _| convolution(large[0].clone(), large[1].clone(), geometry(1, 1)),
        &Inputs { large: vec![[2, 3, 5, 4], [4, 3, 3, 3]], small: vec![] },
        "dense",
    );
    assert_slopes(
        &|large, _| convolution(large[0].clone(), large[1].clone(), geometry(2, 3)),
        &Inputs { large: vec![[2, 3, 6, 7], [3, 1, 3, 3]], small: vec![] },
        "depthwise",
    );
    assert_slopes(
        &|large, small| {
            scale_shift(large[0].clone(), small[0].clone(), small[1].clone(), Activation::Identity)
        },
        &Inputs { large: vec![[2, 3, 3, 3]], small: vec![3, 3] },
        "scale and shift",
    );
    assert_slopes(
        &|large, small| {
            normalise(large[0].clone(), small[0].clone(), small[1].clone(), 0.1, Activation::Identity).output
        },
        &Inputs { large: vec![[2, 3, 3, 3]], small: vec![3, 3] },
        "normalise",
    );
}

#[test]
fn one_thread_and_two_give_the_same_bits() {
    let layers = || {
        let geometry = |side: usize, stride, groups| Geometry {
            stride: [stride; 2],
            padding: [(side / 2, side / 2); 2],
            groups,
        };
        outcome(
            &|large, small| {
                let stem = convolution(large[0].clone(), large[1].clone(), geometry(3, 2, 1));
                let stem = normalise(stem, small[0].clone(), small[1].clone(), 1e-3, Activation::Relu).output;
                let wide = convolution(stem.clone(), large[2].clone(), geometry(1, 1, 1));
                let wide = scale_shift(wide, small[2].clone(), small[3].clone(), Activation::Relu6);
                let deep = convolution(wide, large[3].clone(), geometry(5, 1, 48));
                let narrow = convolution(deep, large[4].clone(), geometry(1, 1, 1));
                max_pool(add(stem, narrow, Activation::Relu), 3, 2, 1)
            },
            &Inputs {
                large: vec![[9, 3, 40, 40], [16, 3, 3, 3], [48, 16, 1, 1], [48, 1, 5, 5], [16, 48, 1, 1]],
                small: vec![16, 16, 48, 48],
            },
            Device::flex(),
        )
    };
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let (one, two) = (pool(1).install(layers), pool(2).install(layers));
    for (index, (one, two)) in one.iter().zip(&two).enumerate() {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(one), bits(two), "part {index}");
    }
}

#[test]
fn the_bodies_for_other_backends_give_the_same_gradients() {
    let large = |seed| FlexTensor::from_data(TensorData::new(values(2 * 3 * 35, seed), [2, 3, 5, 7]));
    let small = |seed, scale: f32| {
        let values: Vec<_> = values(3, seed).into_iter().map(|value| value.abs() * scale).collect();
        FlexTensor::from_data(TensorData::new(values, [3]))
    };
    let found =
        |tensor: FlexTensor| -> Vec<f32> { tensor.into_data().try_to_vec().expect("single precision") };
    for activation in ACTIVATIONS {
        let (scale, shift, mean, variance) = (small(3, 9.0), small(4, 3.0), small(5, 0.1), small(6, 0.3));
        let affine = || (large(1), scale.clone(), shift.clone());
        let (input, one, other) = affine();
        let ours = Flex::kernel_scale_shift_gradient(input, one, other, large(2), activation);
        let (input, one, other) = affine();
        let plain = operations::scale_shift_gradient::<Flex>(input, one, other, large(2), activation);
        for (ours, plain) in <[_; 3]>::from(ours).into_iter().zip(<[_; 3]>::from(plain)) {
            assert_close(&found(ours), &found(plain), TOLERANCE, &format!("scale and shift, {activation:?}"));
        }
        let (input, one, other) = affine();
        let (centre, spread) = (mean.clone(), variance.clone());
        let ours =
            Flex::kernel_normalise_gradient(input, one, other, centre, spread, large(2), 1e-3, activation);
        let (input, one, other) = affine();
        let plain = operations::normalise_gradient::<Flex>(
            input,
            one,
            other,
            mean,
            variance,
            large(2),
            1e-3,
            activation,
        );
        for (ours, plain) in <[_; 3]>::from(ours).into_iter().zip(<[_; 3]>::from(plain)) {
            assert_close(&found(ours), &found(plain), TOLERANCE, &format!("normalise, {activation:?}"));
        }
        let ours = Flex::kernel_activation_gradient(large(1), large(2), activation);
        let plain = operations::activation_gradient::<Flex>(large(1), large(2), activation);
        assert_close(&found(ours), &found(plain), TOLERANCE, &format!("{activation:?}"));
    }
}
