//! Distance-weighted negative sampling: which negatives an anchor meets.
//!
//! C.-Y. Wu, R. Manmatha, A. J. Smola and P. Krähenbühl, *Sampling Matters in Deep Embedding Learning*, ICCV 2017,
//! Section 4. Distances between uniform points on the unit sphere of `d` dimensions have the density
//!
//! ```text
//! q(D) ∝ D^(d−2) (1 − D²/4)^((d−3)/2)
//! ```
//!
//! so in high dimensions nearly all negatives are `√2` away and teach nothing. Weights in proportion to `1/q(D)` make
//! the distances of the sampled negatives nearly uniform.

use retrievalguard::Seed;
use serde::{Deserialize, Serialize};

use super::Triplets;
use crate::random::{Purpose, RandomCounter, RandomSource};

/// Weight of a negative by its distance from the anchor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistanceWeights {
    /// Distances below this count as this: the weights of very near negatives would have a huge variance.
    pub lower_cutoff: f64,
    /// Negatives this far away or farther are never chosen: their loss is zero.
    pub upper_cutoff: Option<f64>,
}

impl Default for DistanceWeights {
    /// 0.5 and 1.4, as in the code of Wu et al.
    fn default() -> Self {
        Self { lower_cutoff: 0.5, upper_cutoff: Some(1.4) }
    }
}

impl DistanceWeights {
    /// No upper cut-off, as in the code of Roth et al. (ICML 2020), where it made results slightly worse.
    pub const ROTH: Self = Self { lower_cutoff: 0.5, upper_cutoff: None };

    /// Logarithm of the weight at a distance, up to a constant; `−∞` for a negative that is never chosen.
    ///
    /// ```text
    /// ln w(D) = (2 − d) ln D − (d − 3)/2 · ln(1 − D²/4),   D = max(distance, lower cut-off)
    /// ```
    ///
    /// Paper: Section 4.1, which leaves the weights to Wu et al. Departure: its sentence that far negatives are more
    /// probable is not what Wu et al. do; of two negatives nearer than `√2` the nearer never has less weight.
    ///
    /// Needs `d ≥ 2`. At `D = 2`, which only rounding goes beyond, the density has no inverse: such a negative is
    /// never chosen.
    pub fn log_weight(&self, distance: f64, dimension: usize) -> f64 {
        let distance = distance.max(self.lower_cutoff);
        if distance >= self.upper_cutoff.unwrap_or(2.0).min(2.0) {
            return f64::NEG_INFINITY;
        }
        let d = dimension as f64;
        // (1 − D/2)(1 + D/2) keeps its digits near D = 2.
        let rest = (1.0 - 0.5 * distance) * (1.0 + 0.5 * distance);
        (2.0 - d) * distance.ln() - 0.5 * (d - 3.0) * rest.ln()
    }

    /// Probability of each position of the batch to be the anchor's negative, from the anchor's distances to all.
    ///
    /// Departure: an anchor whose negatives all lie beyond the upper cut-off takes any of them with equal probability.
    /// The code of Wu et al. takes any position of the batch there, even of the anchor's class; pytorch-metric-learning
    /// leaves the anchor out. All probabilities are zero only if there is no negative at all.
    pub fn probabilities(&self, distances: &[f64], dimension: usize, labels: &[u32], label: u32) -> Vec<f64> {
        let negative = |position: usize| labels[position] != label;
        let log_weights: Vec<f64> = distances
            .iter()
            .enumerate()
            .map(|(position, &distance)| match negative(position) {
                true => self.log_weight(distance, dimension),
                false => f64::NEG_INFINITY,
            })
            .collect();
        let largest = log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = if largest == f64::NEG_INFINITY {
            (0..labels.len()).map(|position| f64::from(u8::from(negative(position)))).collect()
        } else {
            log_weights.iter().map(|log_weight| (log_weight - largest).exp()).collect()
        };
        // At least 1 unless there is no negative.
        let total = weights.iter().sum::<f64>().max(1.0);
        weights.into_iter().map(|weight| weight / total).collect()
    }
}

/// Which positives an anchor meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// Every other picture of its class in the batch, each with a negative of its own: Wu et al.
    #[default]
    EveryPositive,
    /// One of them, chosen at random: Roth et al.
    OnePositive,
}

/// Chooses the triplets of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TripletSampler {
    /// Weights of the negatives.
    pub weights: DistanceWeights,
    /// Choice of the positives.
    pub pairing: Pairing,
}

/// Why a batch has no triplets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// The embeddings are not one row per label.
    #[error("a batch of {labels} labels has {values} embedding values, wanted a multiple of the labels")]
    Shape {
        /// Number of labels.
        labels: usize,
        /// Number of values.
        values: usize,
    },
    /// On a sphere of fewer dimensions distances have no density.
    #[error("embeddings have {found} dimensions, wanted at least 2")]
    Dimension {
        /// Number of values of one embedding.
        found: usize,
    },
    /// Training has diverged, or the encoder is broken.
    #[error(
        "embedding {row} of the batch has the value {value} at position {column}, wanted a finite number"
    )]
    NotFinite {
        /// Position in the batch.
        row: usize,
        /// Position in the embedding.
        column: usize,
        /// The value.
        value: f32,
    },
    /// No picture has both a positive and a negative.
    #[error("a batch of {labels} pictures has no triplet, wanted two of one class and one of another")]
    NoTriplet {
        /// Number of labels.
        labels: usize,
    },
}

impl TripletSampler {
    /// The triplets of a batch, anchors in order; a pure function of its arguments.
    ///
    /// `embeddings` are the l2-normalised rows of the batch, one after another.
    ///
    /// Paper: Section 4.1, `p_tri`.
    pub fn triplets(
        &self,
        embeddings: &[f32],
        labels: &[u32],
        seed: Seed,
        epoch: u64,
        step: u64,
    ) -> Result<Triplets, SamplingError> {
        let dimension = check(embeddings, labels)?;
        let mut triplets = Triplets::default();
        let mut distances = vec![0.0; labels.len()];
        for (anchor, &label) in labels.iter().enumerate() {
            let alike = |&position: &usize| position != anchor && labels[position] == label;
            let mut positives: Vec<usize> = (0..labels.len()).filter(alike).collect();
            if positives.is_empty() {
                continue;
            }
            let counter = RandomCounter { epoch, step, slot: anchor as u64 };
            let mut source = RandomSource::new(seed, Purpose::Triplets, counter);
            if self.pairing == Pairing::OnePositive {
                positives = vec![positives[source.below(positives.len())]];
            }
            distances_from(anchor, embeddings, dimension, &mut distances);
            let probabilities = self.weights.probabilities(&distances, dimension, labels, label);
            for positive in positives {
                if let Some(negative) = source.weighted(&probabilities) {
                    triplets.push(anchor, positive, negative);
                }
            }
        }
        if triplets.is_empty() {
            Err(SamplingError::NoTriplet { labels: labels.len() })
        } else {
            Ok(triplets)
        }
    }
}

/// The number of dimensions, if everything is as it should be.
fn check(embeddings: &[f32], labels: &[u32]) -> Result<usize, SamplingError> {
    if labels.is_empty() || !embeddings.len().is_multiple_of(labels.len()) {
        return Err(SamplingError::Shape { labels: labels.len(), values: embeddings.len() });
    }
    let dimension = embeddings.len() / labels.len();
    if dimension < 2 {
        return Err(SamplingError::Dimension { found: dimension });
    }
    match embeddings.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(SamplingError::NotFinite {
            row: at / dimension,
            column: at % dimension,
            value: embeddings[at],
        }),
        None => Ok(dimension),
    }
}

/// Euclidean distances of one row from all.
fn distances_from(anchor: usize, embeddings: &[f32], dimension: usize, distances: &mut [f64]) {
    let from = &embeddings[anchor * dimension..][..dimension];
    for (distance, to) in distances.iter_mut().zip(embeddings.chunks_exact(dimension)) {
        let squared: f64 =
            from.iter().zip(to).map(|(&left, &right)| (f64::from(left) - f64::from(right)).powi(2)).sum();
        *distance = squared.sqrt();
    }
}

#[cfg(test)]
mod tests;
