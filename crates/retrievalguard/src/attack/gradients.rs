//! Gradients of an encoder: computed by whoever knows its insides, or estimated from its outputs alone.

use serde::{Deserialize, Serialize};

use crate::{Embedder, EmbedderFailure};

/// Where gradients come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By differentiating the encoder.
    WhiteBox,
    /// From its outputs alone.
    BlackBox,
}

impl Mode {
    /// What was done for gradients, in a word.
    pub fn gradients(self) -> &'static str {
        match self {
            Self::WhiteBox => "computed",
            Self::BlackBox => "estimated",
        }
    }

    /// The name as files and people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::WhiteBox => "white-box",
            Self::BlackBox => "black-box",
        }
    }
}

/// Noisy copies of one point, laid end to end.
#[derive(Clone, Copy, Debug)]
pub struct NoisyCopies<'a> {
    /// The point.
    pub centre: &'a [f32],
    /// The copies: in pairs `centre + z`, `centre − z`, or the centre itself.
    pub copies: &'a [f32],
    /// Standard deviation of the noise; 0 if the only copy is the centre.
    pub sigma: f64,
}

/// Gradients of an encoder with respect to its input.
pub trait InputGradients: Sync {
    /// Where they come from.
    fn mode(&self) -> Mode;

    /// Embeds the copies, asks `towards` for a direction `w` of the embedding space in view of the embeddings, and returns
    /// the gradient of the mean score `(1/n) Σ ⟨w, h(copy_i)⟩` with respect to a shift of all copies.
    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure>;
}

/// Gradients of any encoder, from its outputs alone.
///
/// ```text
/// ∇ E⟨w, h(x+z)⟩ = E[⟨w, h(x+z)⟩ z] / σ²  ≈  (1/n) Σ ⟨w, h(x+z_i)⟩ z_i / σ²
/// ```
///
/// Stein's identity (theory, section 10.2). Pairs `±z` cancel whatever part of the score does not depend on `z`.
pub struct BlackBox<'a> {
    embedder: &'a dyn Embedder,
}

impl<'a> BlackBox<'a> {
    /// The encoder as it is.
    pub fn new(embedder: &'a dyn Embedder) -> Self {
        Self { embedder }
    }
}

impl InputGradients for BlackBox<'_> {
    fn mode(&self) -> Mode {
        Mode::BlackBox
    }

    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure> {
        let (pixels, dimension) = (noisy.centre.len(), self.embedder.dimension());
        let count = noisy.copies.len() / pixels;
        let mut embeddings = vec![0.0; count * dimension];
        self.embedder.embed(noisy.copies, &mut embeddings)?;
        let direction = towards(&embeddings);
        let mut gradient = vec![0.0; pixels];
        for (copy, row) in noisy.copies.chunks_exact(pixels).zip(embeddings.chunks_exact(dimension)) {
            let score: f64 =
                row.iter().zip(&direction).map(|(&left, &right)| f64::from(left) * f64::from(right)).sum();
            for ((gradient, &copy), &centre) in gradient.iter_mut().zip(copy).zip(noisy.centre) {
                *gradient += score * (f64::from(copy) - f64::from(centre));
            }
        }
        let scale = 1.0 / (count as f64 * noisy.sigma * noisy.sigma);
        gradient.iter_mut().for_each(|value| *value *= scale);
        Ok(gradient)
    }
}
