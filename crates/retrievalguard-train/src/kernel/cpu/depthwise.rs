//! Convolution of every channel with a kernel of its own.

use std::cell::RefCell;

use rayon::prelude::*;

use super::vector::{Kernel, LANES, dispatch, multiply_add, sum};
use super::{Frame, Sizes};

/// Values of a plane that make a task of their own; smaller planes share one.
const TASK: usize = 1 << 14;

thread_local! {
    /// Planes with zeros around them, sorted by their columns' remainder: kept from call to call.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Whether there is a loop for this kernel.
pub(super) fn knows(kernel: [usize; 2]) -> bool {
    matches!(kernel, [3, 3] | [5, 5] | [7, 7])
}

/// `output[n, c, y, x] = Σ weight[c, i, j] · input[n, c, y·stride + i − top, x·stride + j − left]`.
pub(crate) fn forward(sizes: &Sizes, input: &[f32], weight: &[f32], output: &mut [f32]) {
    let lattice = Lattice { frame: Frame::around_input(sizes), spread: [1, 1], step: sizes.stride };
    each_plane(sizes, lattice, sizes.output, input, weight, output);
}

/// Gradient of [`forward`] with respect to its input: the kernel turned around, over the gradient spread by the stride.
pub(crate) fn input_gradient(sizes: &Sizes, gradient: &[f32], weight: &[f32], output: &mut [f32]) {
    let before = [0, 1].map(|axis| sizes.kernel[axis] - 1 - sizes.padding[axis].0);
    let padded = [0, 1].map(|axis| {
        let spread = (sizes.output[axis] - 1) * sizes.stride[axis] + 1;
        (before[axis] + spread).max(sizes.input[axis] + sizes.kernel[axis] - 1)
    });
    let frame = Frame { inner: sizes.output, before, padded };
    let lattice = Lattice { frame, spread: sizes.stride, step: [1, 1] };
    let turned: Vec<f32> =
        weight.chunks_exact(sizes.taps()).flat_map(|kernel| kernel.iter().rev().copied()).collect();
    each_plane(sizes, lattice, sizes.input, gradient, &turned, output);
}

/// Whether [`input_gradient`] can be asked for: the zeros around the input may not exceed the kernel.
pub(crate) fn applies(sizes: &Sizes) -> bool {
    knows(sizes.kernel) && (0..2).all(|axis| sizes.padding[axis].0 < sizes.kernel[axis])
}

/// Gradient of [`forward`] with respect to its weights, summed over the pictures in their order.
pub(crate) fn weight_gradient(sizes: &Sizes, input: &[f32], gradient: &[f32], output: &mut [f32]) {
    let lattice = Lattice { frame: Frame::around_input(sizes), spread: [1, 1], step: sizes.stride };
    output.par_chunks_mut(sizes.taps()).enumerate().for_each(|(channel, output)| {
        SCRATCH.with_borrow_mut(|[planes, rows]| {
            let mut sums = vec![0.0; sizes.taps()];
            let pitch = sizes.output[1].next_multiple_of(LANES);
            rows.clear();
            rows.resize(sizes.output[0] * pitch, 0.0);
            lattice.clear(planes);
            for picture in 0..sizes.pictures {
                let plane = picture * sizes.inputs + channel;
                let input = &input[plane * lattice.frame.inner_plane()..][..lattice.frame.inner_plane()];
                let gradient = &gradient[plane * sizes.positions()..][..sizes.positions()];
                lattice.place(input, planes);
                let sorted = planes.as_slice();
                for (row, target) in gradient.chunks_exact(sizes.output[1]).zip(rows.chunks_exact_mut(pitch))
                {
                    target[..row.len()].copy_from_slice(row);
                }
                let sums = &mut sums;
                match sizes.kernel[0] {
                    3 => dispatch(Correlate::<3> { lattice, sorted, rows, pitch, sums }),
                    5 => dispatch(Correlate::<5> { lattice, sorted, rows, pitch, sums }),
                    _ => dispatch(Correlate::<7> { lattice, sorted, rows, pitch, sums }),
                }
            }
            output.iter_mut().zip(&sums).for_each(|(output, sum)| *output = *sum as f32);
        });
    });
}

/// A plane that is read with a step: its columns are sorted by their remainder, so that every read is a run.
#[derive(Clone, Copy)]
struct Lattice {
    frame: Frame,
    /// From value to value, zeros between them.
    spread: [usize; 2],
    /// From output to output.
    step: [usize; 2],
}

impl Lattice {
    /// From row to row of one remainder, with room to read a vector past the end.
    fn pitch(&self) -> usize {
        self.frame.padded[1].div_ceil(self.step[1])
    }

    /// Values of one remainder.
    fn part(&self) -> usize {
        self.frame.padded[0] * self.pitch() + 2 * LANES
    }

    /// Where the values under each column of a kernel begin.
    #[inline(always)]
    fn starts<const K: usize>(&self) -> [usize; K] {
        let (part, [_, across]) = (self.part(), self.step);
        std::array::from_fn(|column| column % across * part + column / across)
    }

    /// Zeros for everything that no plane writes.
    fn clear(&self, scratch: &mut Vec<f32>) {
        scratch.clear();
        scratch.resize(self.step[1] * self.part(), 0.0);
    }

    /// Writes a plane over the one before it, between zeros that stay.
    fn place(&self, plane: &[f32], scratch: &mut [f32]) {
        let (pitch, part, [_, step]) = (self.pitch(), self.part(), self.step);
        let ([_, before], [down, across]) = (self.frame.before, self.spread);
        for (row, values) in plane.chunks_exact(self.frame.inner[1]).enumerate() {
            let row = (self.frame.before[0] + row * down) * pitch;
            if step == 1 && across == 1 {
                scratch[row + before..][..values.len()].copy_from_slice(values);
            } else if step == 1 {
                let targets = scratch[row + before..].iter_mut().step_by(across);
                targets.zip(values).for_each(|(target, value)| *target = *value);
            } else {
                for phase in 0..step {
                    // The first column with this remainder, and where it goes.
                    let first = (phase + step - before % step) % step;
                    let start = phase * part + row + (before + first) / step;
                    let sources = values.iter().skip(first).step_by(step);
                    scratch[start..].iter_mut().zip(sources).for_each(|(target, value)| *target = *value);
                }
            }
        }
    }
}

/// Convolves every plane, several small ones in a task.
fn each_plane(
    sizes: &Sizes,
    lattice: Lattice,
    output_size: [usize; 2],
    input: &[f32],
    weight: &[f32],
    output: &mut [f32],
) {
    let (inner, outer, taps) = (lattice.frame.inner_plane(), output_size[0] * output_size[1], sizes.taps());
    let together = (TASK / outer).max(1);
    output.par_chunks_mut(together * outer).zip(input.par_chunks(together * inner)).enumerate().for_each(
        |(task, (output, input))| {
            SCRATCH.with_borrow_mut(|[planes, _]| {
                lattice.clear(planes);
                let planes_of = output.chunks_exact_mut(outer).zip(input.chunks_exact(inner));
                for (plane, (output, input)) in (task * together..).zip(planes_of) {
                    lattice.place(input, planes);
                    let sorted = planes.as_slice();
                    let weight = &weight[plane % sizes.inputs * taps..][..taps];
                    let width = output_size[1];
                    match sizes.kernel[0] {
                        3 => dispatch(Convolve::<3> { lattice, sorted, weight, width, output }),
                        5 => dispatch(Convolve::<5> { lattice, sorted, weight, width, output }),
                        _ => dispatch(Convolve::<7> { lattice, sorted, weight, width, output }),
                    }
                }
            });
        },
    );
}

/// One plane of the output.
struct Convolve<'a, const K: usize> {
    lattice: Lattice,
    sorted: &'a [f32],
    weight: &'a [f32],
    width: usize,
    output: &'a mut [f32],
}

impl<const K: usize> Kernel for Convolve<'_, K> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { lattice, sorted, weight, width, output } = self;
        let (pitch, [down, _]) = (lattice.pitch(), lattice.step);
        let starts = lattice.starts::<K>();
        let weight: [[f32; K]; K] = std::array::from_fn(|i| std::array::from_fn(|j| weight[i * K + j]));
        for (y, output) in output.chunks_exact_mut(width).enumerate() {
            for (block, output) in output.chunks_mut(LANES).enumerate() {
                let mut sums = [0.0; LANES];
                for (i, weight) in weight.iter().enumerate() {
                    let row = (y * down + i) * pitch + block * LANES;
                    for (weight, start) in weight.iter().zip(starts) {
                        let values = &sorted[row + start..][..LANES];
                        for lane in 0..LANES {
                            sums[lane] = multiply_add::<FUSED>(*weight, values[lane], sums[lane]);
                        }
                    }
                }
                if let Ok(output) = <&mut [f32; LANES]>::try_from(&mut *output) {
                    *output = sums;
                } else {
                    output.copy_from_slice(&sums[..output.len()]);
                }
            }
        }
    }
}

/// Adds one plane's part to the gradient of a kernel.
struct Correlate<'a, const K: usize> {
    lattice: Lattice,
    sorted: &'a [f32],
    rows: &'a [f32],
    pitch: usize,
    sums: &'a mut [f64],
}

impl<const K: usize> Kernel for Correlate<'_, K> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { lattice, sorted, rows, pitch, sums } = self;
        let [down, _] = lattice.step;
        let starts = lattice.starts::<K>();
        for i in 0..K {
            let mut lanes = [[0.0; LANES]; K];
            for (y, row) in rows.chunks_exact(pitch).enumerate() {
                let start = (y * down + i) * lattice.pitch();
                for (block, gradient) in row.as_chunks::<LANES>().0.iter().enumerate() {
                    for j in 0..K {
                        let values = &sorted[start + block * LANES + starts[j]..][..LANES];
                        for lane in 0..LANES {
                            lanes[j][lane] =
                                multiply_add::<FUSED>(gradient[lane], values[lane], lanes[j][lane]);
                        }
                    }
                }
            }
            for j in 0..K {
                sums[i * K + j] += f64::from(sum(lanes[j]));
            }
        }
    }
}
