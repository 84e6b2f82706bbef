//! Layers that treat every value for itself: scaling, normalising, adding, activating.

use rayon::prelude::*;

use super::vector::{Kernel, LANES, dispatch, multiply_add, sum};
use crate::kernel::Activation;

/// Values that make a task of their own; smaller planes share one.
const TASK: usize = 1 << 14;

/// What is known of a channel: two numbers per channel, in the order of the channels.
type Pairs<'a> = &'a [(f32, f32)];

/// `output = activation(scale · input + shift)`; `affine` holds `(scale, shift)`.
pub(crate) fn scale_shift(
    input: &[f32],
    affine: Pairs<'_>,
    plane: usize,
    activation: Activation,
    output: &mut [f32],
) {
    each_plane(input, output, plane, |index, input, output| {
        dispatch(ScaleShift { input, affine: affine[index % affine.len()], activation, output });
    });
}

/// Turns the gradient of [`scale_shift`]'s output into that of its input, and returns those of scale and shift.
pub(crate) fn scale_shift_gradient(
    input: &[f32],
    affine: Pairs<'_>,
    plane: usize,
    activation: Activation,
    gradient: &mut [f32],
) -> Vec<(f32, f32)> {
    let sums = each_plane(input, gradient, plane, |index, input, gradient| {
        let mut sums = [0.0; 2];
        let affine = affine[index % affine.len()];
        dispatch(ScaleShiftGradient { input, affine, activation, gradient, sums: &mut sums });
        sums
    });
    reduce(&sums, affine.len()).into_iter().map(|[scale, shift]| (scale as f32, shift as f32)).collect()
}

/// Mean and biased variance of every channel.
pub(crate) fn statistics(input: &[f32], channels: usize, plane: usize) -> Vec<(f64, f64)> {
    let together = (TASK / plane).max(1);
    let moments: Vec<[f64; 2]> = input
        .par_chunks(together * plane)
        .flat_map_iter(|planes| {
            planes.chunks_exact(plane).map(|plane| {
                let mut moments = [0.0; 2];
                dispatch(Moments { plane, moments: &mut moments });
                moments
            })
        })
        .collect();
    let (pictures, count) = (moments.len() / channels, plane as f64);
    (0..channels)
        .map(|channel| {
            let of_channel = || moments[channel..].iter().step_by(channels);
            let mean = of_channel().map(|[mean, _]| mean).sum::<f64>() / pictures as f64;
            // Squares around a plane's own mean, moved to the mean of all.
            let squares: f64 =
                of_channel().map(|[own, squares]| squares + count * (own - mean) * (own - mean)).sum();
            (mean, squares / (count * pictures as f64))
        })
        .collect()
}

/// What the gradient of a normalised channel needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Channel {
    scale: f32,
    shift: f32,
    mean: f32,
    /// `1 / √(variance + ε)`.
    inverse: f32,
}

impl Channel {
    pub(crate) fn new((scale, shift): (f32, f32), (mean, variance): (f32, f32), epsilon: f64) -> Self {
        let inverse = (1.0 / (f64::from(variance) + epsilon).sqrt()) as f32;
        Self { scale, shift, mean, inverse }
    }
}

/// Turns the gradient of `activation(scale · (x − mean) · inverse + shift)` into that of `x`, the statistics being those of
/// `x` itself, and returns the gradients of scale and shift.
pub(crate) fn normalise_gradient(
    input: &[f32],
    channels: &[Channel],
    plane: usize,
    activation: Activation,
    gradient: &mut [f32],
) -> Vec<(f32, f32)> {
    let sums = each_plane(input, gradient, plane, |index, input, gradient| {
        let mut sums = [0.0; 2];
        let channel = channels[index % channels.len()];
        dispatch(NormaliseSums { input, channel, activation, gradient, sums: &mut sums });
        sums
    });
    let sums = reduce(&sums, channels.len());
    let count = (input.len() / channels.len()) as f64;
    each_plane(input, gradient, plane, |index, input, gradient| {
        let index = index % channels.len();
        let means = sums[index].map(|sum| (sum / count) as f32);
        dispatch(NormaliseGradient { input, channel: channels[index], means, gradient });
    });
    sums.into_iter().map(|[scale, shift]| (scale as f32, shift as f32)).collect()
}

/// `output = activation(left + right)`.
pub(crate) fn add(left: &[f32], right: &[f32], activation: Activation, output: &mut [f32]) {
    output
        .par_chunks_mut(TASK)
        .zip(left.par_chunks(TASK).zip(right.par_chunks(TASK)))
        .for_each(|(output, (left, right))| dispatch(Add { left, right, activation, output }));
}

/// Stops the gradient where the activation did not let through.
pub(crate) fn activation_gradient(output: &[f32], activation: Activation, gradient: &mut [f32]) {
    gradient
        .par_chunks_mut(TASK)
        .zip(output.par_chunks(TASK))
        .for_each(|(gradient, output)| dispatch(Mask { output, activation, gradient }));
}

/// Works on every plane of `input` and `changed` together and collects what each of them returns.
fn each_plane<T: Send>(
    input: &[f32],
    changed: &mut [f32],
    plane: usize,
    work: impl Fn(usize, &[f32], &mut [f32]) -> T + Sync,
) -> Vec<T> {
    let together = (TASK / plane).max(1);
    let work = &work;
    changed
        .par_chunks_mut(together * plane)
        .zip(input.par_chunks(together * plane))
        .enumerate()
        .flat_map_iter(|(task, (changed, input))| {
            let planes = changed.chunks_exact_mut(plane).zip(input.chunks_exact(plane));
            (task * together..).zip(planes).map(move |(index, (changed, input))| work(index, input, changed))
        })
        .collect()
}

/// Sums over the pictures, channel by channel, in the pictures' order.
fn reduce(sums: &[[f64; 2]], channels: usize) -> Vec<[f64; 2]> {
    let mut totals = vec![[0.0; 2]; channels];
    for picture in sums.chunks_exact(channels) {
        for (total, sum) in totals.iter_mut().zip(picture) {
            total[0] += sum[0];
            total[1] += sum[1];
        }
    }
    totals
}

/// The activation's value; not-a-number stays what it is.
#[inline(always)]
fn activate(activation: Activation, value: f32) -> f32 {
    match activation {
        Activation::Identity => value,
        Activation::Relu => {
            if value < 0.0 {
                0.0
            } else {
                value
            }
        }
        Activation::Relu6 => {
            let value = if value < 0.0 { 0.0 } else { value };
            if value > 6.0 { 6.0 } else { value }
        }
    }
}

/// The gradient that the activation lets through at this value, before or after it.
#[inline(always)]
fn pass(activation: Activation, value: f32, gradient: f32) -> f32 {
    match activation {
        Activation::Identity => gradient,
        Activation::Relu => {
            if value > 0.0 {
                gradient
            } else {
                0.0
            }
        }
        Activation::Relu6 => {
            if value > 0.0 && value < 6.0 {
                gradient
            } else {
                0.0
            }
        }
    }
}

/// Runs `$body` with the activation as the constant `$name`, so that nothing is decided inside its loops.
macro_rules! by_activation {
    ($activation:expr, $name:ident => $body:expr) => {
        match $activation {
            Activation::Identity => {
                const $name: Activation = Activation::Identity;
                $body
            }
            Activation::Relu => {
                const $name: Activation = Activation::Relu;
                $body
            }
            Activation::Relu6 => {
                const $name: Activation = Activation::Relu6;
                $body
            }
        }
    };
}

/// Sums of two series over a plane: vectors of the widest kind, and a remainder.
#[inline(always)]
fn two_sums(
    input: &[f32],
    gradient: &mut [f32],
    mut each: impl FnMut(f32, &mut f32) -> [f32; 2],
) -> [f64; 2] {
    let (inputs, input_rest) = input.as_chunks::<LANES>();
    let (gradients, gradient_rest) = gradient.as_chunks_mut::<LANES>();
    let mut lanes = [[0.0; LANES]; 2];
    for (input, gradient) in inputs.iter().zip(gradients) {
        for lane in 0..LANES {
            let [one, other] = each(input[lane], &mut gradient[lane]);
            lanes[0][lane] += one;
            lanes[1][lane] += other;
        }
    }
    let mut sums = lanes.map(|lanes| f64::from(sum(lanes)));
    for (&input, gradient) in input_rest.iter().zip(gradient_rest) {
        let [one, other] = each(input, gradient);
        sums[0] += f64::from(one);
        sums[1] += f64::from(other);
    }
    sums
}

struct ScaleShift<'a> {
    input: &'a [f32],
    affine: (f32, f32),
    activation: Activation,
    output: &'a mut [f32],
}

impl Kernel for ScaleShift<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { input, affine: (scale, shift), activation, output } = self;
        by_activation!(activation, ACTIVATION => {
            for (output, &input) in output.iter_mut().zip(input) {
                *output = activate(ACTIVATION, multiply_add::<FUSED>(scale, input, shift));
            }
        });
    }
}

struct ScaleShiftGradient<'a> {
    input: &'a [f32],
    affine: (f32, f32),
    activation: Activation,
    gradient: &'a mut [f32],
    sums: &'a mut [f64; 2],
}

impl Kernel for ScaleShiftGradient<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { input, affine: (scale, shift), activation, gradient, sums } = self;
        *sums = by_activation!(activation, ACTIVATION => {
            two_sums(input, gradient, |input, gradient| {
                let passed = pass(ACTIVATION, multiply_add::<FUSED>(scale, input, shift), *gradient);
                *gradient = scale * passed;
                [passed * input, passed]
            })
        });
    }
}

/// Mean of a plane and the sum of squares around it.
struct Moments<'a> {
    plane: &'a [f32],
    moments: &'a mut [f64; 2],
}

impl Kernel for Moments<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let (blocks, rest) = self.plane.as_chunks::<LANES>();
        let mut lanes = [0.0; LANES];
        for block in blocks {
            for lane in 0..LANES {
                lanes[lane] += block[lane];
            }
        }
        let total = f64::from(sum(lanes)) + rest.iter().map(|&value| f64::from(value)).sum::<f64>();
        let mean = total / self.plane.len() as f64;
        let centre = mean as f32;
        let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
        for block in blocks {
            for lane in 0..LANES {
                let distance = block[lane] - centre;
                first[lane] += distance;
                second[lane] = multiply_add::<FUSED>(distance, distance, second[lane]);
            }
        }
        let (mut first, mut second) = (f64::from(sum(first)), f64::from(sum(second)));
        for &value in rest {
            let distance = f64::from(value) - f64::from(centre);
            first += distance;
            second += distance * distance;
        }
        // What the rounded centre left over is a correction to the mean, and to the squares.
        let count = self.plane.len() as f64;
        *self.moments = [f64::from(centre) + first / count, second - first * first / count];
    }
}

struct NormaliseSums<'a> {
    input: &'a [f32],
    channel: Channel,
    activation: Activation,
    gradient: &'a mut [f32],
    sums: &'a mut [f64; 2],
}

impl Kernel for NormaliseSums<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { input, channel, activation, gradient, sums } = self;
        let Channel { scale, shift, mean, inverse } = channel;
        *sums = by_activation!(activation, ACTIVATION => {
            two_sums(input, gradient, |input, gradient| {
                let normalised = (input - mean) * inverse;
                let before = multiply_add::<FUSED>(scale, normalised, shift);
                *gradient = pass(ACTIVATION, before, *gradient);
                [*gradient * normalised, *gradient]
            })
        });
    }
}

struct NormaliseGradient<'a> {
    input: &'a [f32],
    channel: Channel,
    /// Mean gradients of scale and shift.
    means: [f32; 2],
    gradient: &'a mut [f32],
}

impl Kernel for NormaliseGradient<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { input, channel: Channel { scale, mean, inverse, .. }, means, gradient } = self;
        let factor = scale * inverse;
        for (gradient, &input) in gradient.iter_mut().zip(input) {
            let normalised = (input - mean) * inverse;
            *gradient = factor * (*gradient - means[1] - normalised * means[0]);
        }
    }
}

struct Add<'a> {
    left: &'a [f32],
    right: &'a [f32],
    activation: Activation,
    output: &'a mut [f32],
}

impl Kernel for Add<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { left, right, activation, output } = self;
        by_activation!(activation, ACTIVATION => {
            for ((output, &left), &right) in output.iter_mut().zip(left).zip(right) {
                *output = activate(ACTIVATION, left + right);
            }
        });
    }
}

struct Mask<'a> {
    output: &'a [f32],
    activation: Activation,
    gradient: &'a mut [f32],
}

impl Kernel for Mask<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { output, activation, gradient } = self;
        by_activation!(activation, ACTIVATION => {
            for (gradient, &output) in gradient.iter_mut().zip(output) {
                *gradient = pass(ACTIVATION, output, *gradient);
            }
        });
    }
}
