//! Convolutions of two axes, forwards and backwards; a transposed convolution is the same read the other way.

use std::sync::Arc;

use super::scalar::{Matrix, Scalar, Target};
use super::workspace::{Workspace, in_pieces, product};

/// Rows of the matrix of windows that are made at once on the way back: few enough for the caches, and enough that
/// the product is worth its packing.
const ROWS_AT_ONCE: usize = 144;

/// A map from `[batch, inputs, height, width]` to `[batch, outputs, height', width']` by the same kernels everywhere.
#[derive(Clone, Debug)]
pub(super) struct Convolution<S> {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels taken and given, of all groups.
    pub(super) channels: [usize; 2],
    /// Height and width of what is taken, and of what is given.
    pub(super) taken: [usize; 2],
    pub(super) given: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) strides: [usize; 2],
    pub(super) dilations: [usize; 2],
    /// Zeros before the first row and the first column.
    pub(super) pads: [usize; 2],
    /// `[outputs, inputs / groups, height, width]`.
    pub(super) weights: Arc<Vec<S>>,
}

impl<S: Scalar> Convolution<S> {
    fn taken_plane(&self) -> usize {
        self.taken[0] * self.taken[1]
    }

    fn given_plane(&self) -> usize {
        self.given[0] * self.given[1]
    }

    fn window(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn is_depthwise(&self) -> bool {
        self.channels[0] == self.groups && self.channels[1] == self.groups
    }

    fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && self.strides == [1, 1] && self.pads == [0, 0] && self.taken == self.given
    }

    /// Where the windows of the places `0..given` of one axis meet what is taken, for one place of the kernel:
    /// the first and the last of them, and where the first reads.
    fn overlap(&self, axis: usize, tap: usize) -> Option<(usize, usize, usize)> {
        let (stride, pad) = (self.strides[axis], self.pads[axis]);
        let reach = tap * self.dilations[axis];
        let first = pad.saturating_sub(reach).div_ceil(stride);
        let last = (self.taken[axis] + pad).checked_sub(reach + 1)? / stride;
        let last = last.min(self.given[axis] - 1);
        (first <= last).then(|| (first, last, first * stride + reach - pad))
    }

    /// Adds the convolution of `taken` to what is in `given`.
    pub(super) fn add_to(&self, taken: &[S], given: &mut [S], work: &mut Workspace<S>) {
        let [inputs, outputs] = self.channels.map(|channels| channels / self.groups);
        let (plane, area) = (self.taken_plane(), self.given_plane());
        let multiplications = outputs * inputs * self.window() * area;
        if self.is_depthwise() {
            let threads = work.threads_for(4 * self.groups * multiplications);
            in_pieces(threads, given, area, |first, piece| {
                for (place, given) in piece.chunks_exact_mut(area).enumerate() {
                    let channel = (first + place) % self.groups;
                    self.depthwise(channel, &taken[(first + place) * plane..][..plane], given);
                }
            });
            return;
        }
        let threads = work.threads_for(multiplications);
        let inner = inputs * self.window();
        let mut windows = if self.is_pointwise() { Vec::new() } else { work.take(inner * area) };
        let groups = taken.chunks_exact(inputs * plane).zip(given.chunks_exact_mut(outputs * area));
        for (place, (taken, given)) in groups.enumerate() {
            let columns = if self.is_pointwise() {
                taken
            } else {
                in_pieces(threads, &mut windows, self.window() * area, |first, piece| {
                    for (place, rows) in piece.chunks_exact_mut(self.window() * area).enumerate() {
                        self.unfold(&taken[(first + place) * plane..][..plane], rows);
                    }
                });
                &windows
            };
            let group = place % self.groups;
            let weights = &self.weights[group * outputs * inner..][..outputs * inner];
            let (left, right) = (Matrix::new(weights, outputs, inner), Matrix::new(columns, inner, area));
            product(threads, left, right, Target::Added, given);
        }
        if !windows.is_empty() {
            work.give(windows);
        }
    }

    /// Adds the transpose of the convolution, applied to `given`, to what is in `taken`.
    pub(super) fn add_transposed_to(&self, given: &[S], taken: &mut [S], work: &mut Workspace<S>) {
        let [inputs, outputs] = self.channels.map(|channels| channels / self.groups);
        let (plane, area) = (self.taken_plane(), self.given_plane());
        let multiplications = outputs * inputs * self.window() * area;
        if self.is_depthwise() {
            let threads = work.threads_for(4 * self.groups * multiplications);
            in_pieces(threads, taken, plane, |first, piece| {
                for (place, taken) in piece.chunks_exact_mut(plane).enumerate() {
                    let channel = (first + place) % self.groups;
                    self.depthwise_transposed(channel, &given[(first + place) * area..][..area], taken);
                }
            });
            return;
        }
        let threads = work.threads_for(multiplications);
        let inner = inputs * self.window();
        let at_once = ROWS_AT_ONCE.div_ceil(self.window());
        let groups = taken.chunks_exact_mut(inputs * plane).zip(given.chunks_exact(outputs * area));
        for (place, (taken, given)) in groups.enumerate() {
            let group = place % self.groups;
            let weights = &self.weights[group * outputs * inner..][..outputs * inner];
            let left = Matrix::new(weights, outputs, inner).transposed();
            let right = Matrix::new(given, outputs, area);
            if self.is_pointwise() {
                product(threads, left, right, Target::Added, taken);
                continue;
            }
            in_pieces(threads, taken, plane, |first, piece| {
                let channels = piece.len() / plane;
                let mut windows = vec![S::ZERO; at_once.min(channels) * self.window() * area];
                for start in (0..channels).step_by(at_once) {
                    let count = at_once.min(channels - start);
                    let rows = count * self.window();
                    let windows = &mut windows[..rows * area];
                    let left = left.rows((first + start) * self.window(), rows);
                    S::product(left, right, Target::Fresh, windows);
                    let planes = piece[start * plane..].chunks_exact_mut(plane);
                    for (taken, rows) in planes.zip(windows.chunks_exact(self.window() * area)) {
                        self.fold(rows, taken);
                    }
                }
            });
        }
    }

    /// One row for each place of the kernel: what it meets in a channel, window by window.
    fn unfold(&self, taken: &[S], rows: &mut [S]) {
        let [width, across] = [self.taken[1], self.given[1]];
        let area = self.given_plane();
        for (tap, row) in rows.chunks_exact_mut(area).enumerate() {
            let (down, along) = (tap / self.kernel[1], tap % self.kernel[1]);
            let (Some(vertical), Some(horizontal)) = (self.overlap(0, down), self.overlap(1, along)) else {
                row.fill(S::ZERO);
                continue;
            };
            let (first, last, from) = horizontal;
            for (place, line) in row.chunks_exact_mut(across).enumerate() {
                if place < vertical.0 || place > vertical.1 {
                    line.fill(S::ZERO);
                    continue;
                }
                let source = vertical.2 + (place - vertical.0) * self.strides[0];
                let source = &taken[source * width..][..width];
                line[..first].fill(S::ZERO);
                line[last + 1..].fill(S::ZERO);
                let line = &mut line[first..=last];
                if self.strides[1] == 1 {
                    line.copy_from_slice(&source[from..][..line.len()]);
                } else {
                    let values = source[from..].iter().step_by(self.strides[1]);
                    line.iter_mut().zip(values).for_each(|(out, &value)| *out = value);
                }
            }
        }
    }

    /// The transpose of [`Self::unfold`], added.
    fn fold(&self, rows: &[S], taken: &mut [S]) {
        let [width, across] = [self.taken[1], self.given[1]];
        for (tap, row) in rows.chunks_exact(self.given_plane()).enumerate() {
            let (down, along) = (tap / self.kernel[1], tap % self.kernel[1]);
            let (Some(vertical), Some(horizontal)) = (self.overlap(0, down), self.overlap(1, along)) else {
                continue;
            };
            let (first, last, from) = horizontal;
            for place in vertical.0..=vertical.1 {
                let target = vertical.2 + (place - vertical.0) * self.strides[0];
                let target = &mut taken[target * width..][..width];
                let line = &row[place * across..][first..=last];
                add_strided(&mut target[from..], self.strides[1], line, S::ONE);
            }
        }
    }

    fn depthwise(&self, channel: usize, taken: &[S], given: &mut [S]) {
        let [width, across] = [self.taken[1], self.given[1]];
        let weights = &self.weights[channel * self.window()..][..self.window()];
        for (tap, &weight) in weights.iter().enumerate() {
            let (down, along) = (tap / self.kernel[1], tap % self.kernel[1]);
            let (Some(vertical), Some(horizontal)) = (self.overlap(0, down), self.overlap(1, along)) else {
                continue;
            };
            let (first, last, from) = horizontal;
            for place in vertical.0..=vertical.1 {
                let source = vertical.2 + (place - vertical.0) * self.strides[0];
                let source = &taken[source * width..][from..width];
                let line = &mut given[place * across..][first..=last];
                if self.strides[1] == 1 {
                    line.iter_mut().zip(source).for_each(|(out, &value)| *out += weight * value);
                } else {
                    let values = source.iter().step_by(self.strides[1]);
                    line.iter_mut().zip(values).for_each(|(out, &value)| *out += weight * value);
                }
            }
        }
    }

    fn depthwise_transposed(&self, channel: usize, given: &[S], taken: &mut [S]) {
        let [width, across] = [self.taken[1], self.given[1]];
        let weights = &self.weights[channel * self.window()..][..self.window()];
        for (tap, &weight) in weights.iter().enumerate() {
            let (down, along) = (tap / self.kernel[1], tap % self.kernel[1]);
            let (Some(vertical), Some(horizontal)) = (self.overlap(0, down), self.overlap(1, along)) else {
                continue;
            };
            let (first, last, from) = horizontal;
            for place in vertical.0..=vertical.1 {
                let target = vertical.2 + (place - vertical.0) * self.strides[0];
                let target = &mut taken[target * width..][from..width];
                add_strided(target, self.strides[1], &given[place * across..][first..=last], weight);
            }
        }
    }
}

/// `target[i · stride] += weight · line[i]`.
fn add_strided<S: Scalar>(target: &mut [S], stride: usize, line: &[S], weight: S) {
    if stride == 1 {
        target.iter_mut().zip(line).for_each(|(out, &value)| *out += weight * value);
    } else {
        target.iter_mut().step_by(stride).zip(line).for_each(|(out, &value)| *out += weight * value);
    }
}
