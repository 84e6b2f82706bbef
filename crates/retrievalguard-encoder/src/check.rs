//! Does an encoder keep the promises that the theory builds on?
//!
//! A certificate holds for an encoder that is a function of each picture alone and always gives the same answer. A
//! network exported in training mode, with batch normalisation over the batch, breaks the first promise and no shape
//! tells. Whoever opens an encoder gets an [`EncoderCheck`], which says how that was settled; [`check_model`] tries an
//! encoder out on real pictures besides, and measures its speed.
//!
//! ```
//! # use retrievalguard::{Embedder, EmbedderFailure, NormBound};
//! # struct Sign;
//! # impl Embedder for Sign {
//! #     fn input_shape(&self) -> &[usize] { &[1] }
//! #     fn dimension(&self) -> usize { 1 }
//! #     fn norm_bound(&self) -> NormBound { NormBound::UNIT }
//! #     fn embed(&self, pictures: &[f32], out: &mut [f32]) -> Result<(), EmbedderFailure> {
//! #         for (pixel, value) in pictures.iter().zip(out) { *value = (pixel - 0.3).signum(); }
//! #         Ok(())
//! #     }
//! # }
//! use retrievalguard_encoder::check::{Agreement, CheckOptions, check_model};
//!
//! let report = check_model(&Sign, &[0.2, 0.9, 0.4], &CheckOptions::default())?;
//! assert_eq!(report.independence.agreement, Agreement::SameBits);
//! assert!(report.passed());
//! # Ok::<(), retrievalguard_encoder::check::CheckError>(())
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::graph::batch::BatchReading;

mod report;
mod trial;

pub use report::{Agreement, Comparison, INDEPENDENCE_TOLERANCE, ModelReport};
pub use trial::{CheckError, CheckOptions, check_model};

/// How it was settled that embeddings are functions of single pictures; kept with every run.
///
/// A function of the model, its model config and the engine, so the same on every machine that gives the same embeddings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderCheck {
    /// What the graph says about pictures that share a batch.
    pub graph: BatchReading,
    /// What hostile companions did to two pictures when it was tried.
    pub companions: Companions,
    /// How pictures go through the network because of that.
    pub passes: Passes,
}

/// What companions in a batch do to a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Companions {
    /// No more than rounding.
    Harmless,
    /// They change its embedding.
    Felt,
    /// It never has any.
    None,
}

/// How pictures go through the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Passes {
    /// Several in a batch.
    Together,
    /// Each by itself; where the model wants more, beside copies of itself.
    OneByOne,
}

impl EncoderCheck {
    /// Why pictures go through the network one by one, if they do.
    pub fn reason(&self) -> Option<String> {
        match (self.passes, &self.graph, self.companions) {
            (Passes::Together, _, _) => None,
            (Passes::OneByOne, BatchReading::Independent, _) => Some(
                "companions in the batch change an embedding by more than rounding, although nothing in the graph couples them"
                    .to_owned(),
            ),
            (Passes::OneByOne, reading, _) => Some(reading.to_string()),
        }
    }

    /// What a person should be told about it.
    pub fn notice(&self) -> Option<String> {
        let reason = self.reason()?;
        Some(format!("every picture goes through the encoder by itself, which is slower: {reason}"))
    }
}

impl fmt::Display for EncoderCheck {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(reason) => write!(out, "one by one: {reason}"),
            None => write!(out, "together: {}", self.graph),
        }
    }
}
