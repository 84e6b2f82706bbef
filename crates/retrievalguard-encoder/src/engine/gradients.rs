//! Gradients of any encoder in an ONNX file, for attacks on its certificates.
//!
//! Engines give values only. [`OnnxGradients`] evaluates the graph itself ([`crate::graph::evaluate`]), with the preparation
//! of the pixels before it and the normalisation of the output after it. It is believed only after its embeddings were
//! compared with the engine's on two pictures.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use retrievalguard::attack::{InputGradients, Mode, NoisyCopies};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Embedder, EmbedderFailure, Seed};

use super::preparation::{Preparation, l2_normalise};
use super::{Batch, ModelFacts, OnnxEmbedder};
use crate::graph::evaluate::{EvaluationError, EvaluationSpec, Evaluator, Trace};
use crate::graph::{ElementType, Model, ModelFileError};

/// Embeddings may differ from the engine's by this share of their norm.
const ALIKE: f64 = 1e-3;

/// The same for networks that round on the way, to few levels or to half precision: a number that falls on the other
/// side of a level moves by the whole level.
const ALIKE_ROUNDED: f64 = 5e-2;

/// Pictures on which the two are compared.
const COMPARED: usize = 2;

/// Numbers that the copies of one gradient may keep between their ways forwards and back; beyond them, the way
/// forwards is repeated.
const MOST_KEPT: usize = 1 << 27;

/// Why the gradients of an encoder cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradientsError {
    /// The file cannot be read.
    #[error(transparent)]
    Model(#[from] ModelFileError),
    /// It is not the file that the encoder was opened with.
    #[error("`{}` changed since the encoder was opened", path.display())]
    Changed {
        /// The model.
        path: PathBuf,
    },
    /// Its graph holds something that cannot be evaluated or differentiated.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// The encoder could not be run for the comparison.
    #[error("the encoder could not be run beside its graph")]
    Embedder(#[source] EmbedderFailure),
    /// The graph, evaluated here, is not what the engine computes.
    #[error(
        "embeddings evaluated from the graph are {found:.1e} of their norm away from the engine's, wanted {wanted}"
    )]
    Unlike {
        /// Largest distance of an embedding from the engine's, as a share of its norm.
        found: f64,
        /// The largest that rounding explains.
        wanted: f64,
    },
}

/// An encoder whose gradients can be computed.
pub struct OnnxGradients {
    evaluator: Evaluator<f32>,
    preparation: Preparation,
    normalise: bool,
    /// Places of a picture and its copies in one run of the graph.
    places: usize,
    dimension: usize,
    threads: usize,
}

impl OnnxGradients {
    /// Reads the graph of an encoder that is open, and compares the two; gradients are computed on so many threads.
    pub fn open(
        model: &Path,
        embedder: &OnnxEmbedder,
        threads: NonZeroUsize,
    ) -> Result<Self, GradientsError> {
        let read = Model::read(model)?;
        let facts = ModelFacts::of(model, &read)?;
        if facts.hash != embedder.facts.hash {
            return Err(GradientsError::Changed { path: model.to_owned() });
        }
        let config = &embedder.model_config;
        let preparation = embedder.preparation.clone();
        let places = match embedder.batch {
            Batch::Any => 1,
            Batch::Always(size) => size,
        };
        let [first, second, third] = preparation.axes;
        let input = facts.input(config.input.name.as_deref()).map_or("", |input| &input.name);
        let output = facts.output(config.output.name.as_deref()).map_or("", |output| &output.name);
        let spec = EvaluationSpec { input, shape: &[places, first, second, third], output };
        let evaluator = Evaluator::new(model, &read, &spec)?;
        let (normalise, dimension) = (config.output.normalise, embedder.dimension);
        let threads = threads.get();
        let found = Self { evaluator, preparation, normalise, places, dimension, threads };
        let half = |element: ElementType| [ElementType::FLOAT16, ElementType::BFLOAT16].contains(&element);
        let rounds = facts.quantised
            || facts.inputs.iter().any(|tensor| half(tensor.element))
            || read.graph.initializers.iter().any(|tensor| half(tensor.element));
        found.compare(embedder, if rounds { ALIKE_ROUNDED } else { ALIKE })?;
        Ok(found)
    }

    /// Compares the graph with the encoder on pictures of noise.
    fn compare(&self, embedder: &OnnxEmbedder, wanted: f64) -> Result<(), GradientsError> {
        let mut pixels = vec![0.0; COMPARED * self.preparation.pixels];
        let identity = ImageIdentity::new("gradients");
        NoiseStream::new(Seed::new(0), &identity, Stage::Attack).fill(0, 0, &mut pixels);
        pixels.iter_mut().for_each(|pixel| *pixel = 0.5 + 0.25 * *pixel);
        let mut engine = vec![0.0; COMPARED * self.dimension];
        embedder.embed(&pixels, &mut engine).map_err(GradientsError::Embedder)?;
        let mut found: f64 = 0.0;
        for (picture, engine) in
            pixels.chunks_exact(self.preparation.pixels).zip(engine.chunks_exact(self.dimension))
        {
            let trace = self.evaluator.trace(&self.prepared(picture), self.threads)?;
            let own = self.embedding(&trace).map_err(GradientsError::Embedder)?;
            found = found.max(distance(&own, engine));
        }
        // Written so that what is no number is refused.
        if found <= wanted { Ok(()) } else { Err(GradientsError::Unlike { found, wanted }) }
    }

    /// The graph's input for one picture: as often as it takes pictures.
    fn prepared(&self, picture: &[f32]) -> Vec<f32> {
        let mut prepared = vec![0.0; self.preparation.pixels];
        self.preparation.apply(picture, &mut prepared);
        prepared.repeat(self.places)
    }

    fn embedding(&self, trace: &Trace<f32>) -> Result<Vec<f32>, EmbedderFailure> {
        let mut row = trace.value().get(..self.dimension).ok_or("the graph gives no embedding")?.to_vec();
        if self.normalise {
            l2_normalise(&mut row).map_err(|_| "an embedding of norm 0 has no direction")?;
        }
        Ok(row)
    }

    /// The gradient of `⟨direction, embedding⟩` with respect to the pixels, added nowhere: it is written.
    fn pull_back(
        &self,
        trace: Trace<f32>,
        direction: &[f32],
        threads: usize,
        into: &mut [f32],
    ) -> Result<(), EvaluationError> {
        let row = &trace.value()[..self.dimension];
        let mut towards = vec![0.0; trace.value().len()];
        if self.normalise {
            // d(z/‖z‖) = (I − eeᵀ) dz / ‖z‖ with e = z/‖z‖.
            let norm = row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            let along: f64 = row
                .iter()
                .zip(direction)
                .map(|(&value, &towards)| f64::from(value) * f64::from(towards))
                .sum();
            for ((towards, &value), &direction) in towards.iter_mut().zip(row).zip(direction) {
                let part = f64::from(direction) - f64::from(value) * along / (norm * norm);
                *towards = (part / norm) as f32;
            }
        } else {
            towards[..self.dimension].copy_from_slice(direction);
        }
        let prepared = self.evaluator.pull_back(trace, &towards, threads)?;
        into.fill(0.0);
        // Every place holds the same picture.
        for place in prepared.chunks_exact(self.preparation.pixels) {
            self.preparation.pull_back(place, into);
        }
        Ok(())
    }
}

/// Distance of two embeddings as a share of the second's norm.
fn distance(own: &[f32], engine: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let apart =
        squares(&mut own.iter().zip(engine).map(|(&own, &engine)| f64::from(own) - f64::from(engine)));
    let norm = squares(&mut engine.iter().map(|&engine| f64::from(engine)));
    if own.len() != engine.len() {
        f64::INFINITY
    } else if apart == 0.0 {
        0.0
    } else {
        (apart / norm).sqrt()
    }
}

impl InputGradients for OnnxGradients {
    fn mode(&self) -> Mode {
        Mode::WhiteBox
    }

    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure> {
        let pixels = self.preparation.pixels;
        let count = noisy.copies.len() / pixels;
        if noisy.centre.len() != pixels || count == 0 || noisy.copies.len() != count * pixels {
            return Err(
                format!("copies have {} numbers, wanted multiples of {pixels}", noisy.copies.len()).into()
            );
        }
        // Copies are shared among threads; threads that are left help within each.
        let share = count.div_ceil(self.threads.min(count));
        let inside = (self.threads / count.div_ceil(share)).max(1);
        let keeps = (MOST_KEPT / self.evaluator.trace_len().max(1)).max(1);
        let mut embeddings = vec![0.0; count * self.dimension];
        let mut traces: Vec<Option<Trace<f32>>> = (0..count).map(|_| None).collect();
        let forward = |copy: usize, row: &mut [f32], kept: &mut Option<Trace<f32>>| {
            let prepared = self.prepared(&noisy.copies[copy * pixels..][..pixels]);
            let trace = self.evaluator.trace(&prepared, inside)?;
            row.copy_from_slice(&self.embedding(&trace)?);
            if copy < keeps {
                *kept = Some(trace);
            }
            Ok::<_, EmbedderFailure>(())
        };
        let rows = embeddings.chunks_exact_mut(self.dimension).zip(&mut traces).enumerate();
        shared(share, rows.collect(), |(copy, (row, kept))| forward(copy, row, kept))?;
        let direction = towards(&embeddings);
        if direction.len() != self.dimension {
            return Err(
                format!("a direction of {} numbers, wanted {}", direction.len(), self.dimension).into()
            );
        }
        let mut gradients = vec![0.0; count * pixels];
        let backward = |copy: usize, into: &mut [f32], kept: &mut Option<Trace<f32>>| {
            let trace = match kept.take() {
                Some(trace) => trace,
                None => {
                    let prepared = self.prepared(&noisy.copies[copy * pixels..][..pixels]);
                    self.evaluator.trace(&prepared, inside)?
                }
            };
            Ok::<_, EmbedderFailure>(self.pull_back(trace, &direction, inside, into)?)
        };
        let rows = gradients.chunks_exact_mut(pixels).zip(&mut traces).enumerate();
        shared(share, rows.collect(), |(copy, (into, kept))| backward(copy, into, kept))?;
        // In the order of the copies, so that threads change nothing.
        let mut gradient = vec![0.0; pixels];
        for row in gradients.chunks_exact(pixels) {
            gradient.iter_mut().zip(row).for_each(|(gradient, &value)| *gradient += f64::from(value));
        }
        gradient.iter_mut().for_each(|value| *value /= count as f64);
        Ok(gradient)
    }
}

/// Works through the items, `share` of them on each thread; the first failure in their order counts.
fn shared<T: Send>(
    share: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<(), EmbedderFailure> + Sync,
) -> Result<(), EmbedderFailure> {
    if items.len() <= share {
        return items.into_iter().try_for_each(work);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let (mut threads, mut items) = (Vec::new(), items.into_iter());
        loop {
            let part: Vec<T> = items.by_ref().take(share).collect();
            if part.is_empty() {
                break;
            }
            threads.push(scope.spawn(move || part.into_iter().try_for_each(work)));
        }
        let mut result = Ok(());
        for thread in threads {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(done);
        }
        result
    })
}

#[cfg(test)]
mod tests;
