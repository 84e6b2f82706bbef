//! The largest value of each window.

use rayon::prelude::*;

use super::vector::{Kernel, dispatch};

/// Values that make a task of their own; smaller planes share one.
const TASK: usize = 1 << 14;

/// Windows over a plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) window: usize,
    pub(crate) stride: usize,
    /// Positions outside of the plane on either side; they never win.
    pub(crate) padding: usize,
}

/// The largest value of each window and where in its plane it was found, the first of equals.
pub(crate) fn forward(windows: Windows, input: &[f32], output: &mut [f32], indices: &mut [i32]) {
    let (inner, outer) = windows.planes();
    let together = (TASK / inner).max(1);
    output
        .par_chunks_mut(together * outer)
        .zip(indices.par_chunks_mut(together * outer))
        .zip(input.par_chunks(together * inner))
        .for_each(|((output, indices), input)| {
            let outputs = output.chunks_exact_mut(outer).zip(indices.chunks_exact_mut(outer));
            for ((output, indices), input) in outputs.zip(input.chunks_exact(inner)) {
                if windows.are_pairs() {
                    dispatch(Pairs { windows, input, output, indices });
                } else {
                    windows.search(input, output, indices);
                }
            }
        });
}

/// Sends every gradient to where the largest value was found.
pub(crate) fn backward(windows: Windows, indices: &[i32], gradient: &[f32], output: &mut [f32]) {
    let (inner, outer) = windows.planes();
    let together = (TASK / inner).max(1);
    output
        .par_chunks_mut(together * inner)
        .zip(indices.par_chunks(together * outer).zip(gradient.par_chunks(together * outer)))
        .for_each(|(output, (indices, gradient))| {
            output.fill(0.0);
            let gradients = indices.chunks_exact(outer).zip(gradient.chunks_exact(outer));
            for (output, (indices, gradient)) in output.chunks_exact_mut(inner).zip(gradients) {
                for (&index, gradient) in indices.iter().zip(gradient) {
                    output[index as usize] += gradient;
                }
            }
        });
}

impl Windows {
    fn planes(&self) -> (usize, usize) {
        (self.input[0] * self.input[1], self.output[0] * self.output[1])
    }

    /// Two rows and two columns each, side by side.
    fn are_pairs(&self) -> bool {
        (self.window, self.stride, self.padding) == (2, 2, 0)
    }

    fn search(&self, input: &[f32], output: &mut [f32], indices: &mut [i32]) {
        let [height, width] = self.input;
        let range = |position: usize, size: usize| {
            let start = position * self.stride;
            start.saturating_sub(self.padding)..(start + self.window).saturating_sub(self.padding).min(size)
        };
        let rows = output.chunks_exact_mut(self.output[1]).zip(indices.chunks_exact_mut(self.output[1]));
        for (y, (output, indices)) in rows.enumerate() {
            for (x, (output, index)) in output.iter_mut().zip(indices).enumerate() {
                let (mut largest, mut place) = (f32::NEG_INFINITY, usize::MAX);
                for row in range(y, height) {
                    for column in range(x, width) {
                        let value = input[row * width + column];
                        if value > largest || place == usize::MAX {
                            (largest, place) = (value, row * width + column);
                        }
                    }
                }
                *output = largest;
                *index = place as i32;
            }
        }
    }
}

/// Windows of two by two over one plane.
struct Pairs<'a> {
    windows: Windows,
    input: &'a [f32],
    output: &'a mut [f32],
    indices: &'a mut [i32],
}

impl Kernel for Pairs<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { windows, input, output, indices } = self;
        let (width, columns) = (windows.input[1], windows.output[1]);
        let rows = output.chunks_exact_mut(columns).zip(indices.chunks_exact_mut(columns));
        for ((y, (output, indices)), input) in (0..).zip(rows).zip(input.chunks_exact(2 * width)) {
            let (upper, lower) = input.split_at(width);
            let (upper, _) = upper.as_chunks::<2>();
            let (lower, _) = lower.as_chunks::<2>();
            let start = 2 * y * width as i32;
            let places = output.iter_mut().zip(indices.iter_mut()).zip(upper.iter().zip(lower));
            for ((output, index), (upper, lower)) in places {
                let above = if upper[1] > upper[0] { (upper[1], 1) } else { (upper[0], 0) };
                let below = if lower[1] > lower[0] { (lower[1], 1) } else { (lower[0], 0) };
                let below = (below.0, below.1 + width as i32);
                (*output, *index) = if below.0 > above.0 { below } else { above };
            }
            for (x, index) in (0..).zip(indices.iter_mut()) {
                *index += start + 2 * x;
            }
        }
    }
}
