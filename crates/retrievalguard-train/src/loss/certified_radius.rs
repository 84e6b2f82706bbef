//! The certified radius as a loss, for encoders that move no faster than pictures.

use burn::tensor::activation::softplus;
use burn::tensor::{Bool, Device, Tensor, TensorData};

/// Squared distances below this count as this: equal rows have a root with a finite gradient.
const LEAST_SQUARED_DISTANCE: f32 = 1e-12;

/// What stands for no pair at all beside real ones, over `τ`.
const NONE: f32 = -1e9;

/// The loss with its two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CertifiedRadiusLoss {
    /// Radius `ρ` that is aimed at, in pixels scaled to `[0, 1]`.
    pub rho: f64,
    /// Width `τ` over which minima and maxima are made smooth.
    pub tau: f64,
}

/// The loss of a batch.
#[derive(Clone, Debug)]
pub struct RadiusLossParts {
    /// What is minimised; one value.
    pub total: Tensor<1>,
    /// Share of the rows whose radius in the batch, made smooth, is below `ρ`.
    pub active: f64,
}

impl CertifiedRadiusLoss {
    /// Every row of the batch asks for its class among all the others.
    ///
    /// ```text
    /// M_ab = (‖h−v_b‖² − ‖h−v_a‖²) / (2‖v_a−v_b‖)        distance of h from the bisector of a and b
    /// L    = mean over rows of τ softplus( LSE_b( (ρ − τ LSE_a(M_ab/τ)) / τ ) )
    /// ```
    ///
    /// `a` runs over the other rows of the same class, `b` over those of other classes. With a small `τ` it is the mean of
    /// `(ρ − r)₊`, where `r = min_b max_a M_ab` is the certified radius at a Lipschitz constant of 1 (theory, section 14.1).
    /// A row without any positive or negative has no part in it.
    pub fn forward(&self, embeddings: Tensor<2>, labels: &[u32]) -> RadiusLossParts {
        let device = embeddings.device();
        let count = labels.len();
        let asking: Vec<bool> = (0..count).map(|row| has_both(labels, row)).collect();
        let askers = asking.iter().filter(|&&asks| asks).count();
        if askers == 0 {
            return RadiusLossParts { total: embeddings.sum() * 0.0, active: 0.0 };
        }
        // Distances do not know where the origin is, and rounding is smallest near it.
        let middle = embeddings.clone().detach().mean_dim(0);
        let squared = squared_distances(embeddings - middle);
        let lengths = squared.clone().clamp_min(LEAST_SQUARED_DISTANCE).sqrt() * 2.0;
        // Axes: the row that asks, the positive, the negative.
        let from_negative = squared.clone().unsqueeze_dim::<3>(1);
        let from_positive = squared.unsqueeze_dim::<3>(2);
        let reach = (from_negative - from_positive) / lengths.unsqueeze_dim::<3>(0) / self.tau;
        let no_positive = mask(count, &device, |row, other| row == other || labels[row] != labels[other]);
        let no_negative = mask(count, &device, |row, other| labels[row] == labels[other]);
        let reach = reach.mask_fill(no_positive.unsqueeze_dim::<3>(2).expand([count; 3]), NONE);
        let best = log_sum_exp(reach, 1).squeeze_dim::<2>(1);
        let short = (-best + self.rho / self.tau).mask_fill(no_negative, NONE);
        let short = log_sum_exp(short, 1).squeeze_dim::<1>(1);
        let asks: Vec<f32> = asking.iter().map(|&asks| f32::from(u8::from(asks))).collect();
        let asks = Tensor::<1>::from_data(TensorData::new(asks, [count]), &device);
        let active = short.clone().detach().greater_elem(0.0).float() * asks.clone();
        let active: f32 = active.sum().into_data().iter::<f32>().sum();
        let total = (softplus(short, 1.0) * asks).sum() * (self.tau / askers as f64);
        RadiusLossParts { total, active: f64::from(active) / askers as f64 }
    }
}

/// Whether a row has another of its class, and one of another class.
fn has_both(labels: &[u32], row: usize) -> bool {
    let positive = labels.iter().enumerate().any(|(other, label)| other != row && *label == labels[row]);
    positive && labels.iter().any(|label| *label != labels[row])
}

fn squared_distances(rows: Tensor<2>) -> Tensor<2> {
    let lengths = rows.clone().powf_scalar(2.0).sum_dim(1);
    let products = rows.clone().matmul(rows.transpose());
    (lengths.clone() + lengths.transpose() - products * 2.0).clamp_min(0.0)
}

fn mask(count: usize, device: &Device, hides: impl Fn(usize, usize) -> bool) -> Tensor<2, Bool> {
    let values: Vec<bool> = (0..count * count).map(|place| hides(place / count, place % count)).collect();
    Tensor::from_data(TensorData::new(values, [count, count]), device)
}

/// `ln Σ exp` along an axis, which stays with length 1.
fn log_sum_exp<const D: usize>(values: Tensor<D>, axis: usize) -> Tensor<D> {
    let largest = values.clone().detach().max_dim(axis);
    (values - largest.clone()).exp().sum_dim(axis).log() + largest
}

#[cfg(test)]
mod tests;
