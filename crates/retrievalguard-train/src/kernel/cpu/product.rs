//! The inner loops of matrix products: small blocks of the result that stay in registers.

use super::vector::{LANES, multiply_add, sum};

/// Rows of a block of [`outer`].
pub(super) const ROWS: usize = 6;

/// Columns of a block of [`outer`].
pub(super) const COLUMNS: usize = 16;

/// `block[i][j] = Σ_k left[k][i] · right[k][j]`, both packed so that one step of `k` lies together.
#[inline(always)]
pub(super) fn outer<const FUSED: bool, const R: usize>(left: &[f32], right: &[f32]) -> [[f32; COLUMNS]; R] {
    let mut block = [[0.0; COLUMNS]; R];
    let (left, _) = left.as_chunks::<R>();
    let (right, _) = right.as_chunks::<COLUMNS>();
    for (left, right) in left.iter().zip(right) {
        for i in 0..R {
            for j in 0..COLUMNS {
                block[i][j] = multiply_add::<FUSED>(left[i], right[j], block[i][j]);
            }
        }
    }
    block
}

/// Left rows of a block of [`inner`].
pub(super) const LEFT_ROWS: usize = 4;

/// Right rows of a block of [`inner`].
pub(super) const RIGHT_ROWS: usize = 3;

/// `block[i][j] = ⟨left_i, right_j⟩` for rows of the same length.
#[inline(always)]
pub(super) fn inner<const FUSED: bool, const L: usize, const R: usize>(
    left: [&[f32]; L],
    right: [&[f32]; R],
) -> [[f32; R]; L] {
    let left_parts = left.map(|row| row.as_chunks::<LANES>());
    let right_parts = right.map(|row| row.as_chunks::<LANES>());
    let steps = right_parts[0].0.len();
    let left_lanes = left_parts.map(|(lanes, _)| &lanes[..steps]);
    let right_lanes = right_parts.map(|(lanes, _)| &lanes[..steps]);
    let mut sums = [[[0.0; LANES]; R]; L];
    for step in 0..steps {
        for i in 0..L {
            for j in 0..R {
                for lane in 0..LANES {
                    sums[i][j][lane] = multiply_add::<FUSED>(
                        left_lanes[i][step][lane],
                        right_lanes[j][step][lane],
                        sums[i][j][lane],
                    );
                }
            }
        }
    }
    let mut block = [[0.0; R]; L];
    for i in 0..L {
        for j in 0..R {
            block[i][j] = sum(sums[i][j]);
            for (&one, &other) in left_parts[i].1.iter().zip(right_parts[j].1) {
                block[i][j] = multiply_add::<FUSED>(one, other, block[i][j]);
            }
        }
    }
    block
}
