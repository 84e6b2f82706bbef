//! Upper bounds on the norms of constant matrices and convolutions (theory, section 14.5).

use super::gamma;
use super::shapes::Windows;
use super::upwards::{add, mul, root};

/// Unit roundoff of `f64`.
const ROUNDOFF: f64 = f64::EPSILON / 2.0;
/// What underflow can take from a sum of products.
const UNDERFLOW: f64 = 1e-290;
/// Largest side of a matrix whose powers are taken.
const LARGEST_POWER: usize = 512;
/// How often such a matrix is squared: 2⁹ times its size as an exponent leaves less than 1 % between the bound and the norm.
const SQUARINGS: usize = 9;
/// Most rounds in search of weights, and most products in all of them; poor weights cost tightness, never validity.
const ROUNDS: usize = 4_000;
const ROUND_PRODUCTS: usize = 1 << 31;
/// Most channels, and most products, of an autocorrelation; beyond, the norm of `|K|` serves.
pub(super) const MOST_CHANNELS: usize = 4096;
const MOST_PRODUCTS: usize = 1 << 36;

/// The weights of a convolution or, with a window of one, of a matrix.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) outputs: usize,
    /// Inputs of each group.
    pub(super) inputs: usize,
    pub(super) groups: usize,
    pub(super) window: [usize; 2],
    /// Output, input, row, column; the last runs fastest.
    pub(super) weights: Vec<f64>,
}

impl Kernel {
    /// How many products make one output.
    pub(super) fn terms(&self) -> usize {
        self.inputs * self.window[0] * self.window[1]
    }

    /// Whether the correlations of its outputs can be computed in a reasonable time.
    pub(super) fn is_small(&self) -> bool {
        let size = self.window[0].saturating_mul(self.window[1]);
        let pairs = self.outputs.saturating_mul(self.outputs / self.groups);
        let products = pairs.saturating_mul(self.terms()).saturating_mul(size);
        self.outputs <= MOST_CHANNELS && products <= MOST_PRODUCTS
    }

    /// Inputs and outputs exchanged, for a kernel of one group.
    fn turned(&self) -> Self {
        let size = self.window[0] * self.window[1];
        let mut weights = Vec::with_capacity(self.weights.len());
        for input in 0..self.inputs {
            for output in 0..self.outputs {
                let start = (output * self.inputs + input) * size;
                weights.extend_from_slice(&self.weights[start..start + size]);
            }
        }
        Self { outputs: self.inputs, inputs: self.outputs, groups: 1, window: self.window, weights }
    }
}

/// Upper bound on the norm of a convolution, for every size of picture and every zero padding.
///
/// ```text
/// ‖K‖² ≤ max_i Σ_j A_ij q_j/q_i,    A_ij = Σ over offsets of |autocorrelation of kernels i and j|
/// ```
pub(super) fn convolution(kernel: &Kernel, windows: &Windows) -> f64 {
    if !kernel.is_small() {
        return absolute(kernel);
    }
    let ones = |count: usize| vec![1.0; count];
    let squared = weighted(&correlations(kernel, windows), &ones(kernel.outputs), 0.0);
    let mut norm = root(squared);
    if kernel.groups == 1 && kernel.inputs < kernel.outputs && kernel.turned().is_small() {
        // Without strides it is the norm of its transpose, and strides only leave outputs away.
        let dense = Windows { strides: [1, 1], ..windows.clone() };
        let turned = kernel.turned();
        norm = norm.min(root(weighted(&correlations(&turned, &dense), &ones(turned.outputs), 0.0)));
    }
    norm
}

/// Upper bound on the norm of a matrix.
pub(super) fn dense(matrix: &Kernel) -> f64 {
    let turned;
    let narrow = if matrix.outputs <= matrix.inputs {
        matrix
    } else {
        turned = matrix.turned();
        &turned
    };
    if !narrow.is_small() {
        return absolute(matrix);
    }
    let side = narrow.outputs;
    let rows: Vec<&[f64]> = narrow.weights.chunks_exact(narrow.inputs).collect();
    let mut gram = vec![0.0; side * side];
    for (place, row) in rows.iter().enumerate() {
        for (other, column) in rows.iter().enumerate().skip(place) {
            let product = dot(row, column);
            gram[place * side + other] = product;
            gram[other * side + place] = product;
        }
    }
    let share = gamma(narrow.inputs + 1, ROUNDOFF);
    let lengths: Vec<f64> = rows.iter().map(|row| length(row)).collect();
    let absolute: Vec<f64> = (0..side * side)
        .map(|place| {
            let (row, column) = (place / side, place % side);
            add(add(gram[place].abs(), mul(share, mul(lengths[row], lengths[column]))), UNDERFLOW)
        })
        .collect();
    let squared = weighted(&absolute, &vec![1.0; side], 0.0);
    if side > LARGEST_POWER {
        return root(squared);
    }
    let total = lengths.iter().fold(0.0, |sum, &length| add(sum, mul(length, length)));
    let error = add(mul(share, total), mul(side as f64, UNDERFLOW));
    // Rows that are nearly orthonormal: what is left beside a multiple of the identity is small.
    let middle = (0..side).map(|place| gram[place * side + place]).sum::<f64>() / side as f64;
    let mut beside = gram.clone();
    let mut rounded = 0.0_f64;
    for place in 0..side {
        let left = &mut beside[place * side + place];
        *left -= middle;
        rounded = rounded.max(left.abs());
    }
    let rounded = mul(rounded, f64::EPSILON);
    let shifted = add(middle, add(spectral(beside, side), rounded));
    root(squared.min(add(spectral(gram, side).min(shifted), error)))
}

/// Upper bound on the norm of `|K|`, all weights positive: the root of its largest row sum times its largest column sum.
pub(super) fn absolute(kernel: &Kernel) -> f64 {
    let size = kernel.window[0] * kernel.window[1];
    let per_group = kernel.outputs / kernel.groups;
    let mut columns = vec![0.0; kernel.groups * kernel.inputs];
    let mut largest = 0.0_f64;
    for (output, weights) in kernel.weights.chunks_exact(kernel.terms()).enumerate() {
        let mut row = 0.0;
        for (input, weights) in weights.chunks_exact(size).enumerate() {
            let sum: f64 = weights.iter().map(|weight| weight.abs()).sum();
            row += sum;
            columns[output / per_group * kernel.inputs + input] += sum;
        }
        largest = largest.max(row);
    }
    let column = columns.into_iter().fold(0.0, f64::max);
    let share = 1.0 + gamma(kernel.terms() + per_group * size + 8, ROUNDOFF);
    root(mul(mul(largest, column), mul(share, share)))
}

/// `A_ij` of a convolution: row by row, never too small.
pub(super) fn correlations(kernel: &Kernel, windows: &Windows) -> Vec<f64> {
    let Kernel { outputs, inputs, groups, window: [rows, columns], .. } = *kernel;
    let size = rows * columns;
    // Channels last, so that sums over them run along memory.
    let mut weights = vec![0.0; kernel.weights.len()];
    for output in 0..outputs {
        for input in 0..inputs {
            for place in 0..size {
                weights[(output * size + place) * inputs + input] =
                    kernel.weights[(output * inputs + input) * size + place];
            }
        }
    }
    let at = |output: usize, row: usize, column: usize| {
        let start = ((output * rows + row) * columns + column) * inputs;
        &weights[start..start + inputs]
    };
    // Offsets between windows are multiples of the stride.
    let offsets = |axis: usize, side: usize| {
        let (stride, dilation) = (windows.strides[axis], windows.dilations[axis]);
        let reach = side as i64 - 1;
        (-reach..=reach)
            .filter(move |offset| (offset * dilation as i64) % stride as i64 == 0)
            .collect::<Vec<i64>>()
    };
    let (down, across) = (offsets(0, rows), offsets(1, columns));
    let count = down.len() * across.len();
    let share = gamma(inputs * size + 1, ROUNDOFF);
    let sums = 1.0 + gamma(count + 1, ROUNDOFF);
    let lengths: Vec<f64> = weights.chunks_exact(size * inputs).map(length).collect();
    let per_group = outputs / groups;
    let mut found = vec![0.0; outputs * outputs];
    for left in 0..outputs {
        let group = left / per_group;
        for right in left..(group + 1) * per_group {
            let mut total = 0.0;
            for &lower in &down {
                for &further in &across {
                    let mut correlation = 0.0;
                    for row in lower.max(0)..(rows as i64 + lower).min(rows as i64) {
                        for column in further.max(0)..(columns as i64 + further).min(columns as i64) {
                            correlation += dot(
                                at(left, row as usize, column as usize),
                                at(right, (row - lower) as usize, (column - further) as usize),
                            );
                        }
                    }
                    total += correlation.abs();
                }
            }
            let error = mul(count as f64, add(mul(share, mul(lengths[left], lengths[right])), UNDERFLOW));
            let bound = add(mul(total, sums), error);
            found[left * outputs + right] = bound;
            found[right * outputs + left] = bound;
        }
    }
    found
}

/// `max_i d_i Σ_j A_ij q_j/q_i` for some positive `q`, rounded upwards: at least the norm of `D^½ A D^½`.
///
/// Looks for a good `q` until the bound is `enough`; it is the direction in which `DA` stretches most.
pub(super) fn weighted(absolute: &[f64], scales: &[f64], enough: f64) -> f64 {
    let side = scales.len();
    let share = 1.0 + gamma(side + 4, ROUNDOFF);
    let mut weights = vec![1.0_f64; side];
    let (mut best, mut since) = (f64::INFINITY, 0);
    let rounds = (ROUND_PRODUCTS / (side * side).max(1)).clamp(20, ROUNDS);
    for _ in 0..rounds {
        let stretched: Vec<f64> =
            absolute.chunks_exact(side).zip(scales).map(|(row, scale)| scale * dot(row, &weights)).collect();
        let ratios = stretched.iter().zip(&weights).map(|(after, before)| after / before);
        // What overflowed has no bound; `max` would pass over a NaN.
        let ratio =
            ratios.fold(0.0, |most: f64, ratio| if ratio.is_nan() { f64::INFINITY } else { most.max(ratio) });
        let bound = mul(ratio, share);
        since = if bound < best * (1.0 - 1e-12) { 0 } else { since + 1 };
        best = best.min(bound);
        if best <= enough || since > 20 {
            break;
        }
        let largest = stretched.iter().copied().fold(0.0, f64::max);
        if largest <= 0.0 {
            break;
        }
        // Half a step: what swings from side to side comes to rest.
        for (weight, after) in weights.iter_mut().zip(&stretched) {
            *weight = (0.5 * *weight + 0.5 * after / largest).max(1e-200);
        }
    }
    best
}

/// Upper bound on the norm of a symmetric matrix: `‖A‖² = ‖A²‖`, again and again.
fn spectral(mut matrix: Vec<f64>, side: usize) -> f64 {
    let share = gamma(side, ROUNDOFF);
    // What each squaring adds to the square of the norm, and by which power of two the matrix was made smaller.
    let mut steps: Vec<(f64, f64)> = Vec::new();
    let mut bound = length(&matrix);
    for _ in 0..SQUARINGS {
        let size = length(&matrix);
        if !(size > 0.0 && size.is_finite()) {
            break;
        }
        let scale = 2.0_f64.powi(size.log2().round() as i32);
        matrix.iter_mut().for_each(|value| *value /= scale);
        let size = length(&matrix);
        let mut square = vec![0.0; side * side];
        for row in 0..side {
            for column in row..side {
                let (left, right) =
                    (&matrix[row * side..(row + 1) * side], &matrix[column * side..(column + 1) * side]);
                let product = dot(left, right);
                square[row * side + column] = product;
                square[column * side + row] = product;
            }
        }
        steps.push((add(mul(share, mul(size, size)), mul(side as f64, UNDERFLOW)), scale));
        bound = length(&square);
        matrix = square;
    }
    for (error, scale) in steps.into_iter().rev() {
        bound = mul(add(root(add(bound, error)), UNDERFLOW * side as f64), scale);
    }
    bound
}

/// The norm of some numbers, rounded upwards.
fn length(numbers: &[f64]) -> f64 {
    let share = 1.0 + gamma(numbers.len() + 2, ROUNDOFF);
    root(add(mul(dot(numbers, numbers), share), UNDERFLOW * 1e-10))
}

/// A sum of products in eight sums at once, for bounds that hold for any order.
fn dot(left: &[f64], right: &[f64]) -> f64 {
    const LANES: usize = 8;
    let (lefts, left_rest) = left.as_chunks::<LANES>();
    let (rights, right_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for (left, right) in lefts.iter().zip(rights) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(a, b)| a * b).sum();
    sums.into_iter().sum::<f64>() + rest
}
