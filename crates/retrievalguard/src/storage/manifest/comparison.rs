//! Whether a gallery and queries belong together.

use std::fmt;

use super::{GalleryManifest, Provenance};
use crate::storage::digest::Digest;
use crate::{Components, NormBound, Sigma};

/// What the queries of a run are embedded with, to be checked against a gallery.
#[derive(Clone, Debug, PartialEq)]
pub struct QuerySide {
    /// Noise level of the queries, none if they have no noise.
    pub sigma: Option<Sigma>,
    /// Length of their embeddings.
    pub dimension: usize,
    /// Norm bound of their encoder.
    pub norm_bound: NormBound,
    /// Whether negative components of the embeddings are set to zero.
    pub components: Components,
    /// Digest of the model file, if there is one.
    pub model: Option<Digest>,
    /// Digest of the model config, if there is one.
    pub contract: Option<Digest>,
}

/// One thing in which a gallery and the queries disagree.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Disagreement {
    /// Another noise level.
    Sigma {
        /// That of the gallery.
        gallery: Sigma,
        /// That of the queries.
        queries: Sigma,
    },
    /// A noise level where the queries have none.
    Noise {
        /// That of the gallery.
        gallery: Sigma,
    },
    /// Another length of embeddings.
    Dimension {
        /// That of the gallery.
        gallery: usize,
        /// That of the queries.
        queries: usize,
    },
    /// Another norm bound.
    NormBound {
        /// That of the gallery.
        gallery: NormBound,
        /// That of the queries.
        queries: NormBound,
    },
    /// Negative components were set to zero on one side only.
    Components {
        /// Those of the gallery.
        gallery: Components,
        /// Those of the queries.
        queries: Components,
    },
    /// Another model file.
    Model {
        /// That of the gallery.
        gallery: Digest,
        /// That of the queries.
        queries: Digest,
    },
    /// Another preprocessing.
    ModelConfig {
        /// That of the gallery.
        gallery: Digest,
        /// That of the queries.
        queries: Digest,
    },
}

impl fmt::Display for Disagreement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sigma { gallery, queries } => {
                write!(formatter, "was smoothed with sigma {gallery}, the queries with {queries}")
            }
            Self::Noise { gallery } => {
                write!(formatter, "was smoothed with sigma {gallery}, the queries have no noise")
            }
            Self::Dimension { gallery, queries } => {
                write!(formatter, "has vectors of dimension {gallery}, the queries of {queries}")
            }
            Self::NormBound { gallery, queries } => {
                write!(formatter, "has norm bound {gallery}, the queries {queries}")
            }
            Self::Components { gallery, queries } => {
                write!(formatter, "has {gallery} embeddings, the queries {queries} ones")
            }
            Self::Model { gallery, queries } => {
                write!(formatter, "was embedded by model {gallery:.12}…, the queries by {queries:.12}…")
            }
            Self::ModelConfig { gallery, queries } => {
                write!(
                    formatter,
                    "was prepared by model config {gallery:.12}…, the queries by {queries:.12}…"
                )
            }
        }
    }
}

/// A gallery and queries that do not belong together, with every reason.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("gallery `{gallery}` {}", .disagreements.iter().map(ToString::to_string).collect::<Vec<_>>().join("; it "))]
pub struct Mismatch {
    /// Name of the gallery.
    pub gallery: String,
    /// What differs, at least one thing.
    pub disagreements: Vec<Disagreement>,
}

impl GalleryManifest {
    /// Whether queries made with `queries` may be asked of the gallery called `name`.
    ///
    /// What either side does not know is not compared, see [`GalleryManifest::unknown`]; a gallery of clean embeddings
    /// has no noise level and serves every one.
    pub fn check_against(&self, name: &str, queries: &QuerySide) -> Result<(), Mismatch> {
        self.provenance.check_against(self.dimension, name, queries)
    }

    /// Names of the things that the manifest does not know and that can therefore not be checked.
    pub fn unknown(&self) -> Vec<&'static str> {
        self.provenance.gaps()
    }
}

impl Provenance {
    /// Whether queries made with `queries` may be asked of a gallery called `name` with vectors of this dimension.
    pub(in crate::storage) fn check_against(
        &self,
        dimension: usize,
        name: &str,
        queries: &QuerySide,
    ) -> Result<(), Mismatch> {
        let own = self;
        let mut disagreements = Vec::new();
        match (own.sigma, queries.sigma) {
            (Some(gallery), Some(queries)) if gallery != queries => {
                disagreements.push(Disagreement::Sigma { gallery, queries });
            }
            (Some(gallery), None) => disagreements.push(Disagreement::Noise { gallery }),
            (Some(_), Some(_)) | (None, _) => {}
        }
        if dimension != queries.dimension {
            let (gallery, queries) = (dimension, queries.dimension);
            disagreements.push(Disagreement::Dimension { gallery, queries });
        }
        if own.norm_bound != queries.norm_bound {
            let (gallery, queries) = (own.norm_bound, queries.norm_bound);
            disagreements.push(Disagreement::NormBound { gallery, queries });
        }
        if own.components != queries.components {
            let (gallery, queries) = (own.components, queries.components);
            disagreements.push(Disagreement::Components { gallery, queries });
        }
        if let Some((gallery, queries)) = own.model.zip(queries.model).filter(|(left, right)| left != right) {
            disagreements.push(Disagreement::Model { gallery, queries });
        }
        if let Some((gallery, queries)) =
            own.contract.zip(queries.contract).filter(|(left, right)| left != right)
        {
            disagreements.push(Disagreement::ModelConfig { gallery, queries });
        }
        if disagreements.is_empty() {
            Ok(())
        } else {
            Err(Mismatch { gallery: name.to_owned(), disagreements })
        }
    }

    /// Names of the things that are not known and can therefore not be checked.
    pub fn gaps(&self) -> Vec<&'static str> {
        let own = self;
        [
            // Clean embeddings have no sigma, and say so by zero samples.
            ("sigma", own.sigma.is_none() && own.samples != Some(0)),
            ("samples", own.samples.is_none()),
            ("model", own.model.is_none()),
            ("model config", own.contract.is_none()),
            ("engine", own.engine.is_none()),
            ("data set", own.data_set.is_none()),
        ]
        .into_iter()
        .filter_map(|(name, missing)| missing.then_some(name))
        .collect()
    }
}
