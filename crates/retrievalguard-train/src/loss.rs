//! What training minimises: the margin loss over triplets whose negatives are sampled by distance, the certified radius of
//! Lipschitz encoders, and the distance from a teacher.
//!
//! [`sampling`] chooses the triplets of a batch from its embeddings, in plain `f64`; [`margin`] is the loss of given
//! triplets, in tensors that carry gradients.

mod certified_radius;
mod distillation;
pub mod margin;
pub mod sampling;

#[cfg(test)]
mod reference;

pub use self::certified_radius::{CertifiedRadiusLoss, RadiusLossParts};
pub use self::distillation::distillation_loss;
pub use self::margin::{Average, LossParts, MarginLoss};
pub use self::sampling::{DistanceWeights, Pairing, SamplingError, TripletSampler};

/// Positions `(x, x⁺, x⁻)` in a batch; the three lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Triplets {
    /// Anchors `x`.
    pub anchors: Vec<usize>,
    /// Positives `x⁺`: of the anchor's class, but not the anchor.
    pub positives: Vec<usize>,
    /// Negatives `x⁻`: of another class.
    pub negatives: Vec<usize>,
}

impl Triplets {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.anchors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    fn push(&mut self, anchor: usize, positive: usize, negative: usize) {
        self.anchors.push(anchor);
        self.positives.push(positive);
        self.negatives.push(negative);
    }
}
