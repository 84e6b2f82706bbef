//! What trying an encoder out has shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Largest difference that companions may make, in units of the norm bound.
///
/// Rounding in another order moves a component by about 1e-7; statistics over the batch move it by far more.
pub const INDEPENDENCE_TOLERANCE: f64 = 1e-5;

/// How well two runs agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// In every bit.
    SameBits,
    /// Not in every bit, but within the tolerance.
    WithinTolerance,
    /// Not even that.
    Differs,
}

/// The largest difference between embeddings that ought to be equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The verdict.
    pub agreement: Agreement,
    /// Largest difference in any component.
    pub largest_difference: f64,
    /// The picture with that difference, counted from 0.
    pub picture: usize,
}

/// What [`check_model`](super::check_model) found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// How many pictures were run.
    pub pictures: usize,
    /// Shape of one picture.
    pub input_shape: Vec<usize>,
    /// Length of an embedding.
    pub dimension: usize,
    /// Norm bound `F` that the model config promises.
    pub norm_bound: f64,
    /// Smallest norm of an embedding.
    pub smallest_norm: f64,
    /// Largest norm of an embedding.
    pub largest_norm: f64,
    /// The same batches twice.
    pub determinism: Comparison,
    /// Every picture alone against the same picture with other companions, in other places of the batch.
    pub independence: Comparison,
    /// Embeddings against those made elsewhere.
    pub reference: Option<Comparison>,
    /// Speed, all threads together.
    pub pictures_per_second: f64,
    /// How many pictures were run together while speed was measured.
    pub batch: usize,
    /// How many threads were running.
    pub threads: usize,
}

impl ModelReport {
    /// Whether a certificate for this encoder means what it says.
    pub fn passed(&self) -> bool {
        self.failures().is_empty()
    }

    /// What is wrong, in whole sentences.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if self.determinism.agreement != Agreement::SameBits {
            failures.push(format!(
                "the same batch gave other numbers the second time: picture {} differs by {:.1e}",
                self.determinism.picture, self.determinism.largest_difference
            ));
        }
        if self.independence.agreement == Agreement::Differs {
            failures.push(format!(
                "embeddings depend on the rest of the batch: picture {} differs by {:.1e}, wanted at most {:.1e}; \
                 was the model exported in training mode?",
                self.independence.picture,
                self.independence.largest_difference,
                INDEPENDENCE_TOLERANCE * self.norm_bound
            ));
        }
        if self.largest_norm > self.norm_bound * NORM_SLACK {
            failures.push(format!(
                "the largest norm is {}, the model config promises at most {}",
                self.largest_norm, self.norm_bound
            ));
        }
        if let Some(reference) = &self.reference
            && reference.agreement == Agreement::Differs
        {
            failures.push(format!(
                "picture {} differs from the reference by {:.1e}",
                reference.picture, reference.largest_difference
            ));
        }
        failures
    }
}

/// Rounding in `f32` may leave a normalised embedding this much too long.
const NORM_SLACK: f64 = 1.0 + 1e-5;

impl fmt::Display for ModelReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compared = |comparison: &Comparison| match comparison.agreement {
            Agreement::SameBits => "same bits".to_owned(),
            Agreement::WithinTolerance => {
                format!("within tolerance (largest difference {:.1e})", comparison.largest_difference)
            }
            Agreement::Differs => {
                format!("DIFFERS by {:.1e} (picture {})", comparison.largest_difference, comparison.picture)
            }
        };
        writeln!(out, "pictures      {} of shape {:?}", self.pictures, self.input_shape)?;
        writeln!(out, "dimension     {}", self.dimension)?;
        let (smallest, largest) = (self.smallest_norm, self.largest_norm);
        writeln!(out, "norms         {smallest:.6} to {largest:.6}, bound {}", self.norm_bound)?;
        writeln!(out, "determinism   {}", compared(&self.determinism))?;
        writeln!(out, "independence  {}", compared(&self.independence))?;
        if let Some(reference) = &self.reference {
            writeln!(out, "reference     {}", compared(reference))?;
        }
        let (batch, threads) = (self.batch, self.threads);
        write!(
            out,
            "speed         {:.1} pictures/s (batch {batch}, {threads} threads)",
            self.pictures_per_second
        )
    }
}
