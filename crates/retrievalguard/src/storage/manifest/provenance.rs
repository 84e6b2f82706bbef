//! How the vectors of a gallery were made.

use serde::{Deserialize, Serialize};

use crate::storage::digest::Digest;
use crate::views::ViewSet;
use crate::{Components, NormBound, Seed, Sigma};

/// Which randomness a gallery was smoothed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeedRecord {
    /// A fixed seed: the gallery can be made again.
    Fixed(Seed),
    /// A seed that was drawn and not kept.
    Secret,
}

/// Program that ran the encoder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// How the vectors of a gallery were made; unknown things are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Noise level, `None` for vectors of clean pictures or from elsewhere.
    pub sigma: Option<Sigma>,
    /// Samples behind each vector, 0 for the embedding of the clean picture, `None` if unknown.
    pub samples: Option<u32>,
    /// Randomness of the noise, if there was any.
    pub seed: Option<SeedRecord>,
    /// Norm bound `F` of the encoder.
    pub norm_bound: NormBound,
    /// Whether negative components were set to zero.
    #[serde(default, skip_serializing_if = "Components::is_any")]
    pub components: Components,
    /// Digest of the model file.
    pub model: Option<Digest>,
    /// Digest of the model config: preprocessing and normalisation.
    pub contract: Option<Digest>,
    /// What ran the model.
    pub engine: Option<Engine>,
    /// Digest of the pictures and labels.
    pub data_set: Option<Digest>,
    /// The views that every item has; none where an item is one vector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub views: Option<ViewSet>,
}

impl Provenance {
    /// For vectors that were made elsewhere: nothing is known but their norm.
    pub fn unknown(norm_bound: NormBound) -> Self {
        Self {
            sigma: None,
            samples: None,
            seed: None,
            norm_bound,
            components: Components::Any,
            model: None,
            contract: None,
            engine: None,
            data_set: None,
            views: None,
        }
    }
}
