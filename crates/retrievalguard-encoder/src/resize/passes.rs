//! One pass along an axis, in 22-bit fixed point that ends in 8 bits or in `f64` that ends as it is.

use std::ops::Range;

use super::weights::{WEIGHT_BITS, Weights};

/// In which numbers a pass computes.
pub(super) trait Weight: Copy {
    /// What sums are kept in.
    type Sum: Copy;
    /// What a pass leaves.
    type Value: Copy;
    /// Where a sum begins.
    const START: Self::Sum;

    /// What a finished sum stands for, in steps of 1/255.
    fn finish(sum: Self::Sum) -> Self::Value;
}

/// A weight that can be multiplied by such a pixel.
pub(super) trait Weighs<V>: Weight {
    fn plus(self, sum: Self::Sum, value: V) -> Self::Sum;
}

impl Weight for i32 {
    type Sum = i32;
    type Value = u8;
    const START: i32 = 1 << (WEIGHT_BITS - 1);

    fn finish(sum: i32) -> u8 {
        (sum >> WEIGHT_BITS).clamp(0, 255) as u8
    }
}

impl Weighs<u8> for i32 {
    fn plus(self, sum: i32, value: u8) -> i32 {
        sum + i32::from(value) * self
    }
}

impl Weight for f64 {
    type Sum = f64;
    type Value = f64;
    const START: f64 = 0.0;

    fn finish(sum: f64) -> f64 {
        sum
    }
}

impl<V: Into<f64>> Weighs<V> for f64 {
    fn plus(self, sum: f64, value: V) -> f64 {
        sum + value.into() * self
    }
}

/// Interleaved RGB rows, cut from a larger picture whose column `left` and row `top` they begin with.
pub(super) struct Lines<'a, V> {
    pub(super) pixels: &'a [V],
    /// Values from one row to the next.
    pub(super) stride: usize,
    pub(super) left: usize,
    pub(super) top: usize,
}

impl<V: Copy> Lines<'_, V> {
    /// Resamples the given rows of the larger picture across.
    pub(super) fn across<W: Weighs<V>>(&self, rows: Range<usize>, weights: &Weights<W>) -> Vec<W::Value> {
        let mut output = Vec::with_capacity(rows.len() * weights.len() * 3);
        for row in rows {
            let line = &self.pixels[(row - self.top) * self.stride..(row - self.top + 1) * self.stride];
            for (first, weights) in &weights.0 {
                let mut sums = [W::START; 3];
                let pixels = line[(first - self.left) * 3..].as_chunks::<3>().0;
                for (pixel, &weight) in pixels.iter().zip(weights) {
                    for (sum, &value) in sums.iter_mut().zip(pixel) {
                        *sum = weight.plus(*sum, value);
                    }
                }
                output.extend(sums.map(W::finish));
            }
        }
        output
    }

    /// Resamples the given columns of the larger picture down.
    pub(super) fn down<W: Weighs<V>>(&self, columns: Range<usize>, weights: &Weights<W>) -> Vec<W::Value> {
        let part = (columns.start - self.left) * 3..(columns.end - self.left) * 3;
        let mut output = Vec::with_capacity(weights.len() * part.len());
        let mut sums = vec![W::START; part.len()];
        for (first, weights) in &weights.0 {
            sums.fill(W::START);
            let lines = self.pixels[(first - self.top) * self.stride..].chunks_exact(self.stride);
            for (line, &weight) in lines.zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(&line[part.clone()]) {
                    *sum = weight.plus(*sum, value);
                }
            }
            output.extend(sums.iter().map(|&sum| W::finish(sum)));
        }
        output
    }
}
