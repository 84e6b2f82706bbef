//! Which pixels of an axis make one position of the result, and with which weights.

use std::ops::Range;

use super::Interpolation;

/// Fractional bits of fixed-point weights (`PRECISION_BITS` of Pillow's `Resample.c`).
pub(super) const WEIGHT_BITS: u32 = 32 - 8 - 2;

/// Where one axis of the result comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Length after resizing.
    pub(super) resized: usize,
    /// First position after resizing that is kept, and how many.
    pub(super) start: usize,
    pub(super) kept: usize,
    /// Black before the kept part.
    pub(super) border: usize,
    /// Length of the result.
    pub(super) length: usize,
}

impl Axis {
    /// torchvision's `CenterCrop`: border rounded down, crop start rounded half to even.
    pub(super) fn new(resized: usize, crop: Option<usize>) -> Self {
        let length = crop.unwrap_or(resized);
        if length >= resized {
            return Self { resized, start: 0, kept: resized, border: (length - resized) / 2, length };
        }
        let start = ((resized - length) as f64 / 2.0).round_ties_even() as usize;
        Self { resized, start, kept: length, border: 0, length }
    }

    /// The weights of the kept positions, in `f64`.
    ///
    /// An axis that keeps its length is copied: each pixel with weight one.
    pub(super) fn weights(&self, source: usize, interpolation: Interpolation) -> Weights<f64> {
        if interpolation == Interpolation::Nearest {
            return Weights(self.nearest(source).into_iter().map(|pixel| (pixel, vec![1.0])).collect());
        }
        if source == self.resized {
            return Weights((self.start..self.start + self.kept).map(|at| (at, vec![1.0])).collect());
        }
        self.filtered(source, interpolation)
    }

    /// `precompute_coeffs` of Pillow's `Resample.c`, for the kept positions.
    fn filtered(&self, source: usize, interpolation: Interpolation) -> Weights<f64> {
        let scale = source as f64 / self.resized as f64;
        let filter_scale = scale.max(1.0);
        let support = interpolation.support() * filter_scale;
        let row = |position: usize| {
            let centre = (position as f64 + 0.5) * scale;
            // Casts to integers stop at zero, as Pillow's comparison does.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(source);
            let mut weights: Vec<f64> = (first..end)
                .map(|pixel| interpolation.weight((pixel as f64 - centre + 0.5) * (1.0 / filter_scale)))
                .collect();
            let total: f64 = weights.iter().sum();
            if total != 0.0 {
                weights.iter_mut().for_each(|weight| *weight /= total);
            }
            (first, weights)
        };
        Weights((self.start..self.start + self.kept).map(row).collect())
    }

    /// Source pixel of each kept position; Pillow adds up the steps instead of multiplying.
    pub(super) fn nearest(&self, source: usize) -> Vec<usize> {
        let scale = source as f64 / self.resized as f64;
        let mut at = scale * 0.5;
        let mut sources = Vec::with_capacity(self.kept);
        for position in 0..self.start + self.kept {
            if position >= self.start {
                sources.push((at as usize).min(source - 1));
            }
            at += scale;
        }
        sources
    }
}

/// For each position of the result the first pixel it depends on, and the weights from there on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weights<W>(pub(super) Vec<(usize, Vec<W>)>);

impl<W> Weights<W> {
    /// Positions of the result.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The source pixels that the kept positions depend on.
    pub(super) fn reach(&self) -> Range<usize> {
        let start = self.0.first().map_or(0, |(first, _)| *first);
        start..self.0.last().map_or(start, |(first, weights)| first + weights.len())
    }
}

impl Weights<f64> {
    /// `normalize_coeffs_8bpc` of Pillow's `Resample.c`.
    pub(super) fn fixed(&self) -> Weights<i32> {
        let fixed = |&weight: &f64| {
            let scaled = weight * f64::from(1 << WEIGHT_BITS);
            (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
        };
        let row = |(first, weights): &(usize, Vec<f64>)| (*first, weights.iter().map(fixed).collect());
        Weights(self.0.iter().map(row).collect())
    }
}

impl Weights<i32> {
    /// The same numbers in `f64`, without any rounding.
    pub(super) fn exact(&self) -> Weights<f64> {
        let exact = |&weight: &i32| f64::from(weight) / f64::from(1 << WEIGHT_BITS);
        let row = |(first, weights): &(usize, Vec<i32>)| (*first, weights.iter().map(exact).collect());
        Weights(self.0.iter().map(row).collect())
    }
}
