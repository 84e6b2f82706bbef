//! Convolution over all channels as matrix products, without writing the unrolled pictures to memory.

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use super::product::{self, COLUMNS, LEFT_ROWS, RIGHT_ROWS, ROWS};
use super::vector::{Kernel, dispatch};
use super::{Frame, Sizes};

/// Columns that are packed before the weights pass over them once.
const BLOCK: usize = 8 * COLUMNS;

/// Products in a row that stay in the nearest cache: a packed strip of columns takes 64 bytes for each.
const DEPTH: usize = 288;

/// Columns of one inner product of the weights' gradient.
const LENGTH: usize = 512;

/// From row to row of packed columns: no power of two, or the rows would compete for the same lines of the cache.
const PITCH: usize = LENGTH + COLUMNS;

thread_local! {
    /// Framed pictures, packed columns, packed gradients: kept from call to call.
    static SCRATCH: RefCell<[Vec<f32>; 3]> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) };
}

/// `output[n, o, y, x] = Σ weight[o, c, i, j] · input[n, c, y·stride + i − top, x·stride + j − left]`.
pub(crate) fn forward(sizes: &Sizes, input: &[f32], weight: &[f32], output: &mut [f32]) {
    let walk = Walk::forward(sizes);
    let weights = Packed::new(&walk, weight, [sizes.inputs * sizes.taps(), sizes.taps()]);
    multiply(&[(walk, weights)], input, output);
}

/// Gradient of [`forward`] with respect to its input: one convolution for each remainder of a position by the stride.
pub(crate) fn input_gradient(sizes: &Sizes, gradient: &[f32], weight: &[f32], output: &mut [f32]) {
    let walks: Vec<_> = (0..sizes.stride[0] * sizes.stride[1])
        .map(|phase| {
            let walk = Walk::backward(sizes, [phase / sizes.stride[1], phase % sizes.stride[1]]);
            let weights = Packed::new(&walk, weight, [sizes.taps(), sizes.inputs * sizes.taps()]);
            (walk, weights)
        })
        .collect();
    if walks.iter().any(|(walk, _)| walk.taps.is_empty()) {
        output.fill(0.0);
    }
    multiply(&walks, gradient, output);
}

/// Gradient of [`forward`] with respect to its weights, summed over the pictures in their order.
pub(crate) fn weight_gradient(sizes: &Sizes, input: &[f32], gradient: &[f32], output: &mut [f32]) {
    let taps = sizes.taps();
    let channels = (DEPTH / 2 / taps).clamp(1, sizes.inputs);
    let blocks = sizes.inputs.div_ceil(channels);
    // At least four pieces where there are as many rows: cut by shape, never by the number of threads.
    let rows = (sizes.outputs * blocks).div_ceil(4).next_multiple_of(LEFT_ROWS).clamp(LEFT_ROWS, 64);
    let pieces: Vec<_> = (0..blocks)
        .flat_map(|block| {
            let channels = block * channels..((block + 1) * channels).min(sizes.inputs);
            (0..sizes.outputs.div_ceil(rows))
                .map(move |part| (channels.clone(), part * rows..((part + 1) * rows).min(sizes.outputs)))
        })
        .collect();
    let bare = taps == 1 && sizes.stride == [1, 1] && sizes.input == sizes.output;
    let sums: Vec<_> = pieces
        .par_iter()
        .map(|(channels, rows)| {
            let mut sums = vec![0.0; rows.len() * channels.len() * taps];
            if bare && sizes.positions() >= LENGTH / 2 {
                multiply_bare(sizes, input, gradient, channels.clone(), rows.clone(), &mut sums);
            } else {
                multiply_packed(sizes, input, gradient, channels.clone(), rows.clone(), &mut sums);
            }
            sums
        })
        .collect();
    for ((channels, rows), sums) in pieces.iter().zip(&sums) {
        for (row, sums) in rows.clone().zip(sums.chunks_exact(channels.len() * taps)) {
            let start = (row * sizes.inputs + channels.start) * taps;
            output[start..start + sums.len()].copy_from_slice(sums);
        }
    }
}

/// Where a kernel's tap reads, relative to a column's source, and which of the kernel's values it is.
struct Tap {
    offset: usize,
    index: usize,
}

/// One position of the result: where its window begins in the framed planes, and where it is written.
#[derive(Clone, Copy)]
struct Column {
    source: usize,
    target: usize,
}

/// A product to be taken: every column of the result is the weights times what the taps read.
struct Walk {
    frame: Frame,
    channels: usize,
    taps: Vec<Tap>,
    /// Columns of one picture.
    columns: Vec<Column>,
    rows: usize,
    /// Values of one plane of the result.
    target_plane: usize,
}

impl Walk {
    fn forward(sizes: &Sizes) -> Self {
        let frame = Frame::around_input(sizes);
        let pitch = frame.padded[1];
        let [stride_down, stride_across] = sizes.stride;
        let columns = positions(sizes.output, [0, 0], [1, 1], sizes.output[1], |y, x| {
            y * stride_down * pitch + x * stride_across
        });
        let taps = (0..sizes.taps())
            .map(|index| Tap { offset: index / sizes.kernel[1] * pitch + index % sizes.kernel[1], index })
            .collect();
        let (channels, rows, target_plane) = (sizes.inputs, sizes.outputs, sizes.positions());
        Self { frame, channels, taps, columns, rows, target_plane }
    }

    /// Positions of the input whose remainders by the stride are `phase`: `y = y'·stride + phase` meets tap `i` at the
    /// output `y' + (phase + top − i) / stride`, where that is whole.
    fn backward(sizes: &Sizes, phase: [usize; 2]) -> Self {
        let shifts: [Vec<(isize, usize)>; 2] = [0, 1].map(|axis| sizes.shifts(axis, phase[axis]));
        let (frame, first) = Frame::around_gradient(sizes);
        let pitch = frame.padded[1];
        let columns = positions(sizes.input, phase, sizes.stride, sizes.input[1], |y, x| y * pitch + x);
        let taps = shifts[0]
            .iter()
            .flat_map(|&(down, i)| {
                shifts[1].iter().map(move |&(across, j)| Tap {
                    offset: (down - first[0]).unsigned_abs() * pitch + (across - first[1]).unsigned_abs(),
                    index: i * sizes.kernel[1] + j,
                })
            })
            .collect();
        let (channels, rows) = (sizes.outputs, sizes.inputs);
        Self { frame, channels, taps, columns, rows, target_plane: sizes.input[0] * sizes.input[1] }
    }

    /// How many pictures share their strips of columns: as few as leave no more than a tenth of the columns empty.
    fn pictures_together(&self) -> usize {
        let columns = self.columns.len();
        let fits = |&pictures: &usize| {
            let used = pictures * columns;
            used >= 3 * COLUMNS && used.next_multiple_of(COLUMNS) * 10 <= used * 11
        };
        (1..=8).find(fits).unwrap_or(8)
    }

    /// The columns of several pictures that lie one after another.
    fn columns_of(&self, pictures: usize) -> Vec<Column> {
        let (source, target) = (self.channels * self.frame.plane(), self.rows * self.target_plane);
        (0..pictures)
            .flat_map(|picture| {
                self.columns.iter().map(move |column| Column {
                    source: column.source + picture * source,
                    target: column.target + picture * target,
                })
            })
            .collect()
    }
}

/// Columns for the positions `phase`, `phase + step`, … of a plane with rows of `width`.
fn positions(
    size: [usize; 2],
    phase: [usize; 2],
    step: [usize; 2],
    width: usize,
    source: impl Fn(usize, usize) -> usize,
) -> Vec<Column> {
    let mut columns = Vec::with_capacity(size[0] * size[1] / (step[0] * step[1]) + size[0] + size[1]);
    for (y, row) in (phase[0]..size[0]).step_by(step[0]).enumerate() {
        for (x, column) in (phase[1]..size[1]).step_by(step[1]).enumerate() {
            columns.push(Column { source: source(y, x), target: row * width + column });
        }
    }
    columns
}

/// Weights in the order in which the products need them.
struct Packed {
    parts: Vec<Part>,
}

/// A run of channels short enough for the caches; strips of [`ROWS`] rows, and in each strip one product after another.
struct Part {
    channels: Range<usize>,
    strips: Vec<f32>,
}

impl Packed {
    /// The weight of `row`, `channel` and tap lies at `row · strides[0] + channel · strides[1] + index`.
    fn new(walk: &Walk, weight: &[f32], strides: [usize; 2]) -> Self {
        let together = (DEPTH / walk.taps.len().max(1)).max(1);
        let parts = (0..walk.channels)
            .step_by(together)
            .map(|start| {
                let channels = start..(start + together).min(walk.channels);
                let mut strips = Vec::with_capacity(walk.rows * channels.len() * walk.taps.len());
                for first in (0..walk.rows).step_by(ROWS) {
                    let rows = first..(first + ROWS).min(walk.rows);
                    for channel in channels.clone() {
                        for tap in &walk.taps {
                            let start = channel * strides[1] + tap.index;
                            strips.extend(rows.clone().map(|row| weight[row * strides[0] + start]));
                        }
                    }
                }
                Part { channels, strips }
            })
            .collect();
        Self { parts }
    }
}

/// Takes all the products, a few pictures at a time.
fn multiply(walks: &[(Walk, Packed)], source: &[f32], output: &mut [f32]) {
    let Some((first, _)) = walks.first() else { return };
    let together = first.pictures_together();
    let inner = first.channels * first.frame.inner_plane();
    let tables: Vec<_> = walks.iter().map(|(walk, _)| walk.columns_of(together)).collect();
    output
        .par_chunks_mut(together * first.rows * first.target_plane)
        .zip(source.par_chunks(together * inner))
        .for_each(|(output, source)| {
            SCRATCH.with_borrow_mut(|[framed, panel, _]| {
                let framed = first.frame.place(source, framed);
                let with_taps = walks.iter().zip(&tables).filter(|((walk, _), _)| !walk.taps.is_empty());
                for ((walk, weights), columns) in with_taps {
                    let pictures = source.len() / inner;
                    let columns = &columns[..pictures * walk.columns.len()];
                    dispatch(Products { walk, weights, framed, columns, panel, output });
                }
            });
        });
}

/// The products of one group of pictures.
struct Products<'a> {
    walk: &'a Walk,
    weights: &'a Packed,
    framed: &'a [f32],
    columns: &'a [Column],
    panel: &'a mut Vec<f32>,
    output: &'a mut [f32],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { walk, weights, framed, columns, panel, output } = self;
        if panel.len() < BLOCK * DEPTH.max(walk.taps.len()) {
            panel.resize(BLOCK * DEPTH.max(walk.taps.len()), 0.0);
        }
        for columns in columns.chunks(BLOCK) {
            for (turn, part) in weights.parts.iter().enumerate() {
                let depth = part.channels.len() * walk.taps.len();
                let size = depth * COLUMNS;
                for (strip, target) in columns.chunks(COLUMNS).zip(panel.chunks_exact_mut(size)) {
                    pack(
                        framed,
                        walk.frame.plane(),
                        part.channels.clone(),
                        &walk.taps,
                        strip,
                        target,
                        COLUMNS,
                    );
                }
                for (strip, left) in part.strips.chunks(ROWS * depth).enumerate() {
                    let mut tile =
                        OutputTile { output, row: strip * ROWS, plane: walk.target_plane, add: turn > 0 };
                    for (columns, right) in columns.chunks(COLUMNS).zip(panel.chunks_exact(size)) {
                        match left.len() / depth {
                            6 => tile.put(&product::outer::<FUSED, 6>(left, right), columns),
                            5 => tile.put(&product::outer::<FUSED, 5>(left, right), columns),
                            4 => tile.put(&product::outer::<FUSED, 4>(left, right), columns),
                            3 => tile.put(&product::outer::<FUSED, 3>(left, right), columns),
                            2 => tile.put(&product::outer::<FUSED, 2>(left, right), columns),
                            _ => tile.put(&product::outer::<FUSED, 1>(left, right), columns),
                        }
                    }
                }
            }
        }
    }
}

/// Where a block of the result goes.
struct OutputTile<'a> {
    output: &'a mut [f32],
    row: usize,
    plane: usize,
    add: bool,
}

impl OutputTile<'_> {
    #[inline(always)]
    fn put<const R: usize>(&mut self, block: &[[f32; COLUMNS]; R], columns: &[Column]) {
        let first = columns[0].target;
        // Targets only grow, so the ends tell whether they lie side by side.
        let together = columns.len() == COLUMNS && columns[COLUMNS - 1].target == first + COLUMNS - 1;
        for (i, values) in block.iter().enumerate() {
            let start = (self.row + i) * self.plane;
            if together {
                let output = &mut self.output[start + first..start + first + COLUMNS];
                if self.add {
                    output.iter_mut().zip(values).for_each(|(output, value)| *output += value);
                } else {
                    output.copy_from_slice(values);
                }
            } else {
                for (column, value) in columns.iter().zip(values) {
                    let output = &mut self.output[start + column.target];
                    *output = if self.add { *output + value } else { *value };
                }
            }
        }
    }
}

/// Writes what every channel and tap reads for a strip of columns, one row of `pitch` values each; lanes without a column
/// become zero.
#[inline(always)]
fn pack(
    framed: &[f32],
    plane: usize,
    channels: Range<usize>,
    taps: &[Tap],
    columns: &[Column],
    target: &mut [f32],
    pitch: usize,
) {
    const HALF: usize = COLUMNS / 2;
    let furthest = taps.iter().map(|tap| tap.offset).max().unwrap_or(0);
    let end = (channels.end - 1) * plane + furthest;
    let mut rows = target.chunks_mut(pitch);
    match runs(columns).filter(|halves| end + halves[1].1 + COLUMNS <= framed.len()) {
        Some([(first, _, HALF), (second, _, HALF)]) if second == first + HALF => {
            for channel in channels {
                let values = &framed[channel * plane + first..];
                for (tap, row) in taps.iter().zip(&mut rows) {
                    row[..COLUMNS].copy_from_slice(&values[tap.offset..][..COLUMNS]);
                }
            }
        }
        Some([(first, then, change), (second, last, turn)]) => {
            let (change, turn) = (mask(change), mask(turn));
            for channel in channels {
                let sources = [first, then, second, last].map(|start| &framed[channel * plane + start..]);
                for (tap, row) in taps.iter().zip(&mut rows) {
                    let [first, then, second, last] = sources.map(|values| &values[tap.offset..][..HALF]);
                    let row = &mut row[..COLUMNS];
                    for lane in 0..HALF {
                        row[lane] = choose(change[lane], first[lane], then[lane]);
                    }
                    for lane in 0..HALF {
                        row[HALF + lane] = choose(turn[lane], second[lane], last[lane]);
                    }
                }
            }
        }
        None => {
            let mut sources = [columns[columns.len() - 1].source; COLUMNS];
            sources.iter_mut().zip(columns).for_each(|(source, column)| *source = column.source);
            for channel in channels {
                let values = &framed[channel * plane..];
                for (tap, row) in taps.iter().zip(&mut rows) {
                    let values = &values[tap.offset..];
                    for (value, source) in row[..COLUMNS].iter_mut().zip(sources) {
                        *value = values[source];
                    }
                }
            }
        }
    }
    if columns.len() < COLUMNS {
        target.chunks_mut(pitch).for_each(|row| row[columns.len()..COLUMNS].fill(0.0));
    }
}

/// All bits for the lanes before `change`, none from there on.
#[inline(always)]
fn mask(change: usize) -> [u32; COLUMNS / 2] {
    std::array::from_fn(|lane| if lane < change { u32::MAX } else { 0 })
}

/// One of two values, by a mask of all bits or none.
#[inline(always)]
fn choose(mask: u32, one: f32, other: f32) -> f32 {
    f32::from_bits((one.to_bits() & mask) | (other.to_bits() & !mask))
}

/// For either half of a strip, `(first, then, change)`: lane `l` reads at `first + l` before `change` and at `then + l`
/// from there on. Nothing if a half consists of more pieces than two.
#[inline(always)]
fn runs(columns: &[Column]) -> Option<[(usize, usize, usize); 2]> {
    const HALF: usize = COLUMNS / 2;
    let last = columns.len() - 1;
    // Lanes past the end read on: the frame ends with room for them.
    let source = |lane: usize| columns[lane.min(last)].source + lane.saturating_sub(last);
    let mut halves = [(0, 0, HALF); 2];
    for (half, run) in halves.iter_mut().enumerate() {
        let first = source(half * HALF);
        *run = (first, first, HALF);
        for lane in 1..HALF {
            let (start, then, change) = *run;
            let here = source(half * HALF + lane);
            if change == HALF && here != start + lane {
                *run = (start, here - lane, lane);
            } else if change < HALF && here != then + lane {
                return None;
            }
        }
    }
    Some(halves)
}

/// Gradient of a piece of the weights of a 1 × 1 convolution, straight from the planes.
fn multiply_bare(
    sizes: &Sizes,
    input: &[f32],
    gradient: &[f32],
    channels: Range<usize>,
    rows: Range<usize>,
    sums: &mut [f32],
) {
    let plane = sizes.positions();
    for picture in 0..sizes.pictures {
        let left = &gradient[picture * sizes.outputs * plane..][rows.start * plane..rows.end * plane];
        let right = &input[picture * sizes.inputs * plane..][channels.start * plane..channels.end * plane];
        for start in (0..plane).step_by(LENGTH) {
            let length = LENGTH.min(plane - start);
            dispatch(Inner { left, right, pitch: plane, start, length, sums });
        }
    }
}

/// Gradient of a piece of the weights from packed rows, several pictures in a row if they are small.
fn multiply_packed(
    sizes: &Sizes,
    input: &[f32],
    gradient: &[f32],
    channels: Range<usize>,
    rows: Range<usize>,
    sums: &mut [f32],
) {
    let mut walk = Walk::forward(sizes);
    walk.channels = channels.len();
    let together = (LENGTH / sizes.positions()).clamp(1, sizes.pictures);
    let columns = walk.columns_of(together);
    let targets: Vec<_> = columns.iter().map(|column| Column { source: column.target, target: 0 }).collect();
    let inner = walk.frame.inner_plane();
    let (input_size, output_size) = (sizes.inputs * inner, sizes.outputs * sizes.positions());
    let depth = channels.len() * walk.taps.len();
    SCRATCH.with_borrow_mut(|[framed, right, left]| {
        let larger = |scratch: &mut Vec<f32>, size: usize| {
            if scratch.len() < size {
                scratch.resize(size, 0.0);
            }
        };
        larger(right, depth * PITCH);
        larger(left, rows.len() * PITCH);
        for first in (0..sizes.pictures).step_by(together) {
            let pictures = first..(first + together).min(sizes.pictures);
            let planes = pictures
                .clone()
                .map(|picture| &input[picture * input_size..][channels.start * inner..channels.end * inner]);
            let framed = walk.frame.place_all(planes, framed);
            let gradient = &gradient[pictures.start * output_size..pictures.end * output_size];
            let columns = &columns[..pictures.len() * sizes.positions()];
            for start in (0..columns.len()).step_by(LENGTH) {
                let end = (start + LENGTH).min(columns.len());
                let (columns, targets) = (&columns[start..end], &targets[start..end]);
                dispatch(Rows {
                    framed,
                    plane: walk.frame.plane(),
                    channels: 0..channels.len(),
                    taps: &walk.taps,
                    columns,
                    target: right,
                });
                let one = [Tap { offset: 0, index: 0 }];
                dispatch(Rows {
                    framed: gradient,
                    plane: sizes.positions(),
                    channels: rows.clone(),
                    taps: &one,
                    columns: targets,
                    target: left,
                });
                let length = columns.len().next_multiple_of(COLUMNS);
                let (left, right) = (&left[..rows.len() * PITCH], &right[..depth * PITCH]);
                dispatch(Inner { left, right, pitch: PITCH, start: 0, length, sums });
            }
        }
    });
}

/// Packs rows for [`Inner`].
struct Rows<'a> {
    framed: &'a [f32],
    plane: usize,
    channels: Range<usize>,
    taps: &'a [Tap],
    columns: &'a [Column],
    target: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { framed, plane, channels, taps, columns, target } = self;
        for (strip, columns) in columns.chunks(COLUMNS).enumerate() {
            let rows = channels.len() * taps.len();
            let target = &mut target[strip * COLUMNS..rows * PITCH];
            pack(framed, plane, channels.clone(), taps, columns, target, PITCH);
        }
    }
}

/// Adds `⟨left_i, right_j⟩` to every sum.
struct Inner<'a> {
    left: &'a [f32],
    right: &'a [f32],
    /// From row to row, on both sides.
    pitch: usize,
    start: usize,
    length: usize,
    sums: &'a mut [f32],
}

impl Kernel for Inner<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { left, right, pitch, start, length, sums } = self;
        let (rows, columns) = (left.len() / pitch, right.len() / pitch);
        for first_row in (0..rows).step_by(LEFT_ROWS) {
            // Rows past the end repeat the last one, and their sums go nowhere.
            let lefts: [&[f32]; LEFT_ROWS] =
                std::array::from_fn(|i| &left[(first_row + i).min(rows - 1) * pitch + start..][..length]);
            for first_column in (0..columns).step_by(RIGHT_ROWS) {
                let rights: [&[f32]; RIGHT_ROWS] = std::array::from_fn(|j| {
                    &right[(first_column + j).min(columns - 1) * pitch + start..][..length]
                });
                let block = product::inner::<FUSED, LEFT_ROWS, RIGHT_ROWS>(lefts, rights);
                for (row, values) in (first_row..rows).zip(&block) {
                    let sums = &mut sums[row * columns + first_column..(row + 1) * columns];
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
        }
    }
}
