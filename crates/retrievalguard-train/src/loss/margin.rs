//! The margin loss of given triplets.

use burn::module::{Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::Triplets;

/// Squared distances below this count as this, so that the root has a gradient (of zero) where two embeddings meet.
///
/// The distance is then at most `1e-8` too large, which an `f32` sum with `β ≥ 0.5` does not keep.
const LEAST_SQUARED_DISTANCE: f32 = 1e-16;

/// What the sum over the triplets is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Average {
    /// The number of triplets: the paper's expectation.
    #[default]
    Triplets,
    /// The number of pairs whose loss is not zero: the code of Wu et al. and of Roth et al., which the paper's training
    /// adapts. The steps do not shrink as pairs become easy.
    ActivePairs,
}

/// The margin loss with its learnable boundary `β`.
#[derive(Module, Debug)]
pub struct MarginLoss {
    /// Boundary `β` between the distances of positives and of negatives; one value.
    pub beta: Param<Tensor<1>>,
    /// Margin `γ` on both sides of the boundary.
    pub gamma: f64,
    #[module(skip)]
    average: Average,
}

/// The loss of one batch and what it is made of.
#[derive(Clone, Debug)]
pub struct LossParts {
    /// What is minimised; one value.
    pub total: Tensor<1>,
    /// Mean over the triplets of `(‖h(x) − h(x⁺)‖ − β + γ)₊`; one value.
    pub positive: Tensor<1>,
    /// Mean over the triplets of `(β − ‖h(x) − h(x⁻)‖ + γ)₊`; one value.
    pub negative: Tensor<1>,
    /// How many pairs of anchor and positive have a loss; one value.
    pub active_positives: Tensor<1, Int>,
    /// How many pairs of anchor and negative have a loss; one value.
    pub active_negatives: Tensor<1, Int>,
}

impl MarginLoss {
    /// Begins with the boundary `beta`: 1.2 or 0.6 in the paper, which sets `gamma` to 0.2.
    pub fn new(beta: f64, gamma: f64, average: Average, device: &Device) -> Self {
        Self { beta: Param::from_tensor(Tensor::from_floats([beta as f32], device)), gamma, average }
    }

    /// What the sum is divided by.
    pub fn average(&self) -> Average {
        self.average
    }

    /// The loss of the triplets.
    ///
    /// ```text
    /// L(h, β) = E[ (‖h(x) − h(x⁺)‖₂ − β + γ)₊ + (β − ‖h(x) − h(x⁻)‖₂ + γ)₊ ]
    /// ```
    ///
    /// Paper: Section 4.1; Section 4.2 if the pictures are noisy. Departure: `β` is one number as in the paper's
    /// formula, while the framework it adapts keeps one per class; [`Average::ActivePairs`] divides by another number.
    ///
    /// `embeddings` are rows `h(x)`; gradients flow to them and to `β`. Without triplets the loss is zero.
    pub fn forward(&self, embeddings: Tensor<2>, triplets: &Triplets) -> LossParts {
        let device = embeddings.device();
        let rows = |positions: &[usize]| {
            let positions: Vec<i64> = positions.iter().map(|&position| position as i64).collect();
            let count = positions.len();
            let positions = Tensor::<1, Int>::from_data(TensorData::new(positions, [count]), &device);
            embeddings.clone().select(0, positions)
        };
        if triplets.is_empty() {
            let zero = embeddings.sum() * 0.0 + self.beta.val() * 0.0;
            let none = Tensor::<1, Int>::zeros([1], &device);
            return LossParts {
                total: zero.clone(),
                positive: zero.clone().detach(),
                negative: zero.detach(),
                active_positives: none.clone(),
                active_negatives: none,
            };
        }
        let anchors = rows(&triplets.anchors);
        let near = distance(anchors.clone(), rows(&triplets.positives));
        let far = distance(anchors, rows(&triplets.negatives));
        let beta = self.beta.val();
        let positive = relu(near - beta.clone() + self.gamma);
        let negative = relu(beta - far + self.gamma);
        let active_positives = positive.clone().greater_elem(0.0).int().sum();
        let active_negatives = negative.clone().greater_elem(0.0).int().sum();
        let sum = (positive.clone() + negative.clone()).sum();
        let total = match self.average {
            Average::Triplets => sum / triplets.len() as f64,
            Average::ActivePairs => {
                // No pair at all: zero over one.
                let active = (active_positives.clone() + active_negatives.clone()).clamp_min(1);
                sum / active.float()
            }
        };
        LossParts {
            total,
            positive: positive.detach().mean(),
            negative: negative.detach().mean(),
            active_positives,
            active_negatives,
        }
    }
}

/// Euclidean distances of equal rows of two matrices.
fn distance(left: Tensor<2>, right: Tensor<2>) -> Tensor<1> {
    (left - right).square().sum_dim(1).squeeze_dim::<1>(1).clamp_min(LEAST_SQUARED_DISTANCE).sqrt()
}

#[cfg(test)]
mod tests;
