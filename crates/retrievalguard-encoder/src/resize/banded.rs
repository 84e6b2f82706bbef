//! Upper bound on the l2 norm of the matrix that resamples one axis (theory, section 15.2).
//!
//! Windows of neighbouring positions overlap, all others are orthogonal: `WWᵀ` has a narrow band, and so has `WᵀW`.
//! `‖W‖² ≤ μ` if `μI − WWᵀ` has a Cholesky factorisation, which takes a moment in a band. Its rounding is bounded, so that a
//! factorisation that runs to its end proves the inequality up to a known error; bisection then finds the least such `μ`.

use super::weights::Weights;
use crate::graph::bound::gamma;
use crate::graph::bound::upwards::{add, mul, root};

/// Unit roundoff of `f64`.
const ROUNDOFF: f64 = f64::EPSILON / 2.0;
/// What underflow can take from a sum of products.
const UNDERFLOW: f64 = 1e-290;
/// How close the bound comes to the squared norm, relatively.
const TIGHTNESS: f64 = 1e-10;

/// A symmetric matrix whose entries farther from the diagonal than `width` are zero.
struct Band {
    width: usize,
    /// Row by row the entries at and before the diagonal, the diagonal first.
    rows: Vec<Vec<f64>>,
}

/// Never below the norm of the matrix with these rows, and above it by less than 10⁻⁹ of itself.
pub(super) fn norm(weights: &Weights<f64>) -> f64 {
    let columns = weights.reach().len();
    // Both products have the same largest eigenvalue.
    let turned;
    let narrow = if weights.len() <= columns {
        weights
    } else {
        turned = transposed(weights);
        &turned
    };
    let terms = narrow.0.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
    let gram = gram(narrow);
    let entries = (2 * gram.width + 1) as f64;
    // Each entry is off by at most γ‖w_i‖‖w_j‖, and the squares of the norms stand on the diagonal, up to γ themselves.
    let largest = gram.rows.iter().map(|row| row[0]).fold(0.0, f64::max);
    let entry_error = add(mul(mul(2.0, gamma(terms + 2, ROUNDOFF)), largest), UNDERFLOW);
    root(add(largest_eigenvalue(&gram), mul(entries, entry_error)))
}

/// Upper bound on the largest eigenvalue of the band as it is stored.
fn largest_eigenvalue(band: &Band) -> f64 {
    let entries = 2 * band.width + 1;
    let share = add(1.0, gamma(entries, ROUNDOFF));
    // Row sums to begin with: each entry stands in its own row and in that of its column.
    let mut sums = vec![0.0_f64; band.rows.len()];
    for (place, row) in band.rows.iter().enumerate() {
        sums[place] += row[0].abs();
        for (distance, entry) in row.iter().enumerate().skip(1) {
            sums[place] += entry.abs();
            sums[place - distance] += entry.abs();
        }
    }
    let mut bound = mul(sums.into_iter().fold(0.0, f64::max), share);
    let mut above = bound;
    let mut below = band.rows.iter().map(|row| row[0]).fold(0.0, f64::max);
    // Factors LLᵀ = A + E with |E_ij| ≤ γ‖l_i‖‖l_j‖ and ‖l_i‖² ≤ a_ii/(1 − γ), a_ii ≤ μ: E has a band, too. Twice that
    // covers the division, and one more the rounding of μ − g_ii.
    let factor_error = mul(entries as f64 + 1.0, mul(2.0, gamma(band.width + 4, ROUNDOFF)));
    while above - below > TIGHTNESS * above {
        let middle = below + 0.5 * (above - below);
        if !(below < middle && middle < above) {
            break;
        }
        if is_positive_definite(band, middle) {
            above = middle;
            bound = bound.min(add(mul(middle, add(1.0, factor_error)), mul(entries as f64, UNDERFLOW)));
        } else {
            below = middle;
        }
    }
    bound
}

/// Whether the Cholesky factorisation of `shift·I − band` runs to its end.
fn is_positive_definite(band: &Band, shift: f64) -> bool {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(band.rows.len());
    for (place, entries) in band.rows.iter().enumerate() {
        // Entry `distance` of a row belongs to the column `place − distance`.
        let mut row = vec![0.0; entries.len()];
        for distance in (0..entries.len()).rev() {
            // What is before the column in its own row; entries outside of the band are zero and left out.
            let other: &[f64] = if distance == 0 { &row } else { &factor[place - distance] };
            let begun = if distance == 0 { shift - entries[0] } else { -entries[distance] };
            let before = row[distance + 1..].iter().zip(&other[1..]);
            let rest = before.fold(begun, |rest, (left, right)| rest - left * right);
            row[distance] = if distance > 0 {
                rest / other[0]
            } else if rest > 0.0 {
                rest.sqrt()
            } else {
                return false;
            };
        }
        factor.push(row);
    }
    true
}

/// All products of two rows.
fn gram(weights: &Weights<f64>) -> Band {
    let mut width = 0;
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(weights.len());
    for (place, (first, row)) in weights.0.iter().enumerate() {
        let mut products = Vec::new();
        // Windows move on, so those that overlap are neighbours.
        for (other, before) in weights.0[..=place].iter().rev() {
            let overlap = (other + before.len()).saturating_sub(*first);
            if overlap == 0 {
                break;
            }
            let start = before.len() - overlap.min(before.len());
            let offset = (other + start) - first;
            products.push(before[start..].iter().zip(&row[offset..]).map(|(a, b)| a * b).sum());
        }
        width = width.max(products.len().saturating_sub(1));
        rows.push(if products.is_empty() { vec![0.0] } else { products });
    }
    Band { width, rows }
}

/// Columns as rows.
fn transposed(weights: &Weights<f64>) -> Weights<f64> {
    let reach = weights.reach();
    let mut columns: Vec<(usize, Vec<f64>)> = vec![(0, Vec::new()); reach.len()];
    for (place, (first, row)) in weights.0.iter().enumerate() {
        for (offset, &weight) in row.iter().enumerate() {
            let (start, column) = &mut columns[first + offset - reach.start];
            if column.is_empty() {
                *start = place;
            }
            column.push(weight);
        }
    }
    Weights(columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resize::Interpolation;
    use crate::resize::weights::Axis;

    /// What many steps of power iteration find: never above the norm.
    fn estimate(weights: &Weights<f64>) -> f64 {
        let reach = weights.reach();
        let mut vector: Vec<f64> = (0..reach.len()).map(|place| 1.0 + (place as f64 * 0.7).sin()).collect();
        let mut found = 0.0;
        for _ in 0..2_000 {
            let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
            vector.iter_mut().for_each(|value| *value /= length);
            let mut back = vec![0.0; vector.len()];
            let mut squared = 0.0;
            for (first, row) in &weights.0 {
                let start = first - reach.start;
                let product: f64 = row.iter().zip(&vector[start..]).map(|(a, b)| a * b).sum();
                squared += product * product;
                row.iter().zip(&mut back[start..]).for_each(|(weight, value)| *value += weight * product);
            }
            found = squared.sqrt();
            vector = back;
        }
        found
    }

    #[test]
    fn a_box_of_s_pixels_has_the_norm_one_over_the_root_of_s() {
        for (factor, length) in [(1, 5), (2, 112), (3, 1), (7, 224), (64, 32)] {
            let row = |place| (place * factor, vec![1.0 / factor as f64; factor]);
            let found = norm(&Weights((0..length).map(row).collect()));
            let wanted = 1.0 / (factor as f64).sqrt();
            assert!((1.0..1.0 + 1e-14 * factor as f64).contains(&(found / wanted)), "{factor}: {found}");
        }
    }

    #[test]
    fn one_row_has_its_length_and_pixels_that_are_repeated_have_the_root_of_their_number() {
        let found = norm(&Weights(vec![(3, vec![3.0, -4.0])]));
        assert!((5.0..5.0 + 1e-13).contains(&found), "{found}");
        let repeated = Weights([0, 0, 0, 1, 2, 2].map(|pixel| (pixel, vec![1.0])).to_vec());
        let found = norm(&repeated);
        assert!((1.0..1.0 + 1e-14).contains(&(found / 3.0_f64.sqrt())), "{found}");
    }

    #[test]
    fn no_matrix_has_a_smaller_bound_than_power_iteration_finds_and_none_a_much_larger_one() {
        for interpolation in
            [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Lanczos]
        {
            for (source, resized, crop) in [
                (90, 41, 41),
                (41, 90, 60),
                (64, 32, 20),
                (57, 56, 56),
                (5, 33, 33),
                (33, 5, 4),
                (200, 3, 3),
                (9, 9, 5),
            ] {
                let weights = Axis::new(resized, Some(crop)).weights(source, interpolation);
                let (found, estimate) = (norm(&weights), estimate(&weights));
                let case = format!("{interpolation:?} {source} {resized} {crop}: {found}, {estimate}");
                assert!(found >= estimate * (1.0 - 1e-15), "{case}");
                assert!(found <= estimate * 1.002, "{case}");
                // Turning the matrix around changes nothing.
                let turned = norm(&transposed(&weights));
                assert!(
                    (turned / found - 1.0).abs() < 1e-9 || interpolation == Interpolation::Nearest,
                    "{case}, {turned}"
                );
            }
        }
    }
}
