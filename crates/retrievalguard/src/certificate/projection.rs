//! Scores `S = ⟨h(x+z), u⟩` of many samples in many directions, never above the truth.
//!
//! The product runs in `f32`; each score is then lowered by a bound on its rounding error, so that whatever is
//! counted or accumulated from lowered scores is a lower bound of what exact arithmetic would give.

use crate::Samples;
use crate::product::product;

/// Directions that go through the product together.
const DIRECTIONS: usize = 256;
/// Samples that go through the product together.
const SAMPLES: usize = 512;

/// Bound on the distance between an `f32` score and `⟨h, u⟩`, for `‖h‖ ≤ range` and `‖u‖ = 1`.
///
/// ```text
/// |fl(⟨h, ũ⟩) − ⟨h, u⟩| ≤ γ_k ‖h‖‖ũ‖ + ‖h‖‖ũ − u‖,     γ_k = kε/(1 − kε),  ε = 2⁻²⁴
/// ```
///
/// holds for every order of summation, with or without fused multiply-add; `ũ` is `u` rounded to `f32`. Eight further
/// `ε` cover that rounding, the norm of `ũ`, the subtraction of the bound itself and underflow.
pub(crate) fn score_error(dimension: usize, range: f64) -> f64 {
    let relative = (dimension as f64 + 8.0) * f64::from(f32::EPSILON) / 2.0;
    range * relative / (1.0 - relative).max(0.5)
}

/// Calls `visit(direction, first_sample, scores)` with lowered scores, tile by tile.
///
/// `fill(direction, row)` writes a direction as `f32`. For each direction the samples come in ascending order.
/// Memory is one tile, whatever the numbers of samples and directions.
pub(crate) fn for_each_score(
    samples: &Samples,
    range: f64,
    directions: usize,
    mut fill: impl FnMut(usize, &mut [f32]),
    mut visit: impl FnMut(usize, usize, &[f32]),
) {
    let dimension = samples.dimension();
    let error = score_error(dimension, range) as f32;
    let mut rows = vec![0.0_f32; DIRECTIONS.min(directions) * dimension];
    let mut scores = vec![0.0_f32; DIRECTIONS.min(directions) * SAMPLES];
    for first_direction in (0..directions).step_by(DIRECTIONS) {
        let count = DIRECTIONS.min(directions - first_direction);
        for (place, row) in rows.chunks_exact_mut(dimension).take(count).enumerate() {
            fill(first_direction + place, row);
        }
        for (tile, block) in samples.values().chunks(SAMPLES * dimension).enumerate() {
            let width = block.len() / dimension;
            product(&rows[..count * dimension], block, dimension, &mut scores[..count * width]);
            for (place, scores) in scores[..count * width].chunks_exact_mut(width).enumerate() {
                scores.iter_mut().for_each(|score| *score -= error);
                visit(first_direction + place, tile * SAMPLES, scores);
            }
        }
    }
}

/// Lowered scores of all samples in one direction.
pub(crate) fn scores(samples: &Samples, range: f64, direction: &[f64]) -> Vec<f32> {
    let mut narrowed = vec![0.0; direction.len()];
    narrow(direction, &mut narrowed);
    let error = score_error(samples.dimension(), range) as f32;
    samples.values().chunks_exact(samples.dimension()).map(|row| dot(row, &narrowed) - error).collect()
}

/// Lowered scores of all samples in several directions, one row per direction.
pub(crate) fn scores_in_all(samples: &Samples, range: f64, directions: &[&[f64]]) -> Vec<Vec<f32>> {
    let mut all = vec![Vec::with_capacity(samples.count() as usize); directions.len()];
    for_each_score(
        samples,
        range,
        directions.len(),
        |place, row| narrow(directions[place], row),
        |place, _, scores| all[place].extend_from_slice(scores),
    );
    all
}

/// `⟨left, right⟩` in lanes, so that it compiles to vector instructions.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0_f32; LANES];
    let (left, right) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(left, right)| left * right).sum();
    for (left, right) in left.zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Rounds a direction to `f32`.
pub(crate) fn narrow(direction: &[f64], row: &mut [f32]) {
    for (narrow, &wide) in row.iter_mut().zip(direction) {
        *narrow = wide as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Excess, NormBound};

    #[test]
    fn lowered_scores_are_never_above_the_f64_scores() {
        let mut state = 5_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for dimension in [1_usize, 2, 7, 64, 128, 300] {
            let values = (0..700 * dimension).map(|_| next()).collect();
            let samples = Samples::new(values, dimension, NormBound::UNIT, Excess::Project).unwrap();
            let mut direction: Vec<f64> = (0..dimension).map(|_| f64::from(next())).collect();
            let norm = direction.iter().map(|value| value * value).sum::<f64>().sqrt();
            direction.iter_mut().for_each(|value| *value /= norm);
            let lowered = scores(&samples, 1.0, &direction);
            assert_eq!(lowered.len(), 700);
            for (sample, &low) in lowered.iter().enumerate() {
                let exact: f64 = samples
                    .row(sample)
                    .iter()
                    .zip(&direction)
                    .map(|(&value, &unit)| f64::from(value) * unit)
                    .sum();
                assert!(f64::from(low) <= exact, "dimension {dimension}, sample {sample}");
                assert!(exact - f64::from(low) <= 2.0 * score_error(dimension, 1.0), "dimension {dimension}");
            }
        }
    }

    #[test]
    fn counts_from_lowered_scores_never_exceed_the_counts_in_f64() {
        // Samples and threshold sit on the same value, so any upward rounding would be counted.
        let dimension = 33;
        let value = (1.0_f32 / 33.0).sqrt();
        let samples =
            Samples::new(vec![value; dimension * 1_000], dimension, NormBound::UNIT, Excess::Project)
                .unwrap();
        let direction = vec![(1.0_f64 / 33.0).sqrt(); dimension];
        let exact: f64 =
            samples.row(0).iter().zip(&direction).map(|(&left, &right)| f64::from(left) * right).sum();
        let above = scores(&samples, 1.0, &direction).iter().filter(|&&low| f64::from(low) > exact).count();
        assert_eq!(above, 0);
    }
}
