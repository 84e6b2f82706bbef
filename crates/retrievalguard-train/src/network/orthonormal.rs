//! Matrices with orthonormal rows: `W = C⁻¹V` with the Cholesky factor `C` of `VVᵀ`, and its exact gradient.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::layer::Slot;

/// A matrix `V` that learns; what is used of it are the orthonormal rows.
#[derive(Module, Debug)]
pub(super) struct Orthonormal {
    weight: Param<Tensor<2>>,
}

impl Orthonormal {
    pub(super) fn new(slot: &Slot, values: Vec<f32>, device: &Device) -> Self {
        Self { weight: slot.parameter(values, device) }
    }

    pub(super) fn tensor(&self) -> TensorData {
        self.weight.val().into_data()
    }

    #[cfg(test)]
    pub(super) fn gradient(&self, gradients: &burn::tensor::Gradients) -> Option<TensorData> {
        self.weight.val().grad(gradients).map(Tensor::into_data)
    }

    /// The rows, with a gradient.
    pub(super) fn rows(&self) -> Tensor<2> {
        rows(self.weight.val())
    }
}

/// Orthonormal rows that span what the rows of a matrix span; the first row keeps its direction.
///
/// The values come from `f64`. For the gradient they are written as their own first-order expansion, with `E = C⁻¹(V − V₀)`
/// of the value zero and constants of the index 0:
///
/// ```text
/// W = W₀ + E − Φ(E W₀ᵀ + W₀ Eᵀ) W₀,    Φ: the lower triangle, its diagonal halved
/// ```
///
/// which is what differentiating `VVᵀ = CCᵀ` gives.
pub(super) fn rows(matrix: Tensor<2>) -> Tensor<2> {
    let device = matrix.device();
    let [rows, columns] = matrix.dims();
    let values: Vec<f32> = matrix.clone().into_data().iter::<f32>().collect();
    let Factored { rows: orthonormal, inverse } = Factored::of(&values, rows, columns);
    let tensor = |values: Vec<f64>, columns: usize| {
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, columns]), &device)
    };
    let orthonormal = tensor(orthonormal, columns);
    if !matrix.is_autodiff() {
        return orthonormal;
    }
    let half: Vec<f64> = (0..rows * rows)
        .map(|place| match (place / rows).cmp(&(place % rows)) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Greater => 1.0,
        })
        .collect();
    let moved = tensor(inverse, rows).matmul(matrix.clone() - matrix.detach());
    let turned = moved.clone().matmul(orthonormal.clone().transpose());
    let turned = (turned.clone() + turned.transpose()) * tensor(half, rows);
    orthonormal.clone() + moved - turned.matmul(orthonormal)
}

/// The same in `f64`, for a file and for a start.
pub(crate) struct Factored {
    /// `W`, row by row.
    pub(crate) rows: Vec<f64>,
    /// `C⁻¹`, row by row.
    pub(crate) inverse: Vec<f64>,
}

impl Factored {
    /// Of a matrix given row by row; not a number everywhere if its rows depend on each other.
    pub(crate) fn of(values: &[f32], rows: usize, columns: usize) -> Self {
        let matrix: Vec<&[f32]> = values.chunks_exact(columns).collect();
        let mut factor = vec![0.0; rows * rows];
        for row in 0..rows {
            for other in 0..=row {
                let mut sum = dot(matrix[row], matrix[other]);
                for place in 0..other {
                    sum -= factor[row * rows + place] * factor[other * rows + place];
                }
                // The root of what is not above zero is not a number, and the loss shows it.
                factor[row * rows + other] =
                    if other == row { positive_root(sum) } else { sum / factor[other * rows + other] };
            }
        }
        let mut inverse = vec![0.0; rows * rows];
        for row in 0..rows {
            let (done, rest) = inverse.split_at_mut(row * rows);
            let own = &mut rest[..rows];
            own[row] = 1.0;
            for other in 0..row {
                let share = factor[row * rows + other];
                for (own, before) in own.iter_mut().zip(&done[other * rows..][..=other]) {
                    *own -= share * before;
                }
            }
            let diagonal = factor[row * rows + row];
            own.iter_mut().for_each(|value| *value /= diagonal);
        }
        let mut orthonormal = vec![0.0; rows * columns];
        for (row, target) in orthonormal.chunks_exact_mut(columns).enumerate() {
            for (other, source) in matrix.iter().enumerate().take(row + 1) {
                let share = inverse[row * rows + other];
                for (target, &value) in target.iter_mut().zip(*source) {
                    *target += share * f64::from(value);
                }
            }
        }
        Self { rows: orthonormal, inverse }
    }
}

fn positive_root(value: f64) -> f64 {
    if value > 0.0 { value.sqrt() } else { f64::NAN }
}

/// In eight sums, so that the processor adds several at a time; always in the same order.
fn dot(left: &[f32], right: &[f32]) -> f64 {
    let mut sums = [0.0_f64; 8];
    let (lefts, rights) = (left.chunks_exact(8), right.chunks_exact(8));
    let rest = lefts.remainder().iter().zip(rights.remainder());
    let rest: f64 = rest.map(|(&left, &right)| f64::from(left) * f64::from(right)).sum();
    for (left, right) in lefts.zip(rights) {
        for (sum, (&left, &right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += f64::from(left) * f64::from(right);
        }
    }
    sums.iter().sum::<f64>() + rest
}
