//! Monte-Carlo smoothing: from a picture and an encoder `h` to samples of `h(x + z)` and their mean `ĝ(x)`.
//!
//! Sampling is the expensive part of the method and only returns what it drew; nothing here decides anything.
//! Sample `i` of a stage depends on (seed, picture, stage, `i`) alone, and sums run in a fixed order, so the same
//! bits come out for any number of threads and any batch size.
//!
//! ```
//! # use retrievalguard::{Embedder, EmbedderFailure, NormBound};
//! # struct Sign;
//! # impl Embedder for Sign {
//! #     fn input_shape(&self) -> &[usize] { &[1] }
//! #     fn dimension(&self) -> usize { 1 }
//! #     fn norm_bound(&self) -> NormBound { NormBound::UNIT }
//! #     fn embed(&self, pictures: &[f32], out: &mut [f32]) -> Result<(), EmbedderFailure> {
//! #         for (pixel, value) in pictures.iter().zip(out) { *value = pixel.signum(); }
//! #         Ok(())
//! #     }
//! # }
//! use retrievalguard::noise::Stage;
//! use retrievalguard::{Picture, Seed, Sigma, Smoother};
//!
//! let smoother = Smoother::new(&Sign, Sigma::new(0.5)?, Seed::new(7));
//! let picture = Picture { identity: "one", pixels: &[0.5] };
//! let smoothed = smoother.mean(&picture, Stage::Certify, 0..20_000)?;
//! // E sign(x + z) = 2Φ(x/σ) − 1 = 0.6827 at x = σ.
//! assert!((smoothed.mean[0] - 0.6827).abs() < 0.02);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use crate::noise::{ImageIdentity, NoiseStream, Stage};
use crate::samples::{RUN, add_into, admit, clamp, run_sum};
use crate::{Components, Embedder, Excess, Samples, Seed, Sigma};

mod error;

pub use error::SmoothingError;

/// Values of a picture or an embedding beyond which memory could not hold a batch.
const COUNTABLE: usize = 1 << 40;

/// One picture: who it is, and its pixels in `[0, 1]` in the encoder's layout.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// Name that is unique in the data set; the noise depends on it.
    pub identity: &'a str,
    /// Pixels, in the order of the encoder's input shape.
    pub pixels: &'a [f32],
}

/// The estimate `ĝ(x)` of a smoothed embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct SmoothedEmbedding {
    /// Number of samples `n` behind the estimate.
    pub count: u32,
    /// Mean of the samples.
    pub mean: Vec<f64>,
}

/// Draws noisy copies of pictures and embeds them.
#[derive(Clone, Copy)]
pub struct Smoother<'a> {
    embedder: &'a dyn Embedder,
    sigma: Sigma,
    seed: Seed,
    excess: Excess,
    components: Components,
    threads: NonZeroUsize,
    batch: NonZeroUsize,
}

impl<'a> Smoother<'a> {
    /// One thread, batches of 64, embeddings above the norm bound refused, clamped if the encoder is.
    pub fn new(embedder: &'a dyn Embedder, sigma: Sigma, seed: Seed) -> Self {
        let batch = const { NonZeroUsize::new(64).expect("64 is not zero") };
        Self {
            embedder,
            sigma,
            seed,
            excess: Excess::Refuse,
            components: embedder.components(),
            threads: NonZeroUsize::MIN,
            batch,
        }
    }

    /// Sets how many threads call the encoder; the result does not depend on it.
    #[must_use]
    pub fn threads(self, threads: NonZeroUsize) -> Self {
        Self { threads, ..self }
    }

    /// Sets how many pictures the encoder is given at once; the result does not depend on it.
    #[must_use]
    pub fn batch(self, batch: NonZeroUsize) -> Self {
        // More than a run is never handed over at once.
        let most = const { NonZeroUsize::new(RUN).expect("a run is not empty") };
        Self { batch: batch.min(most), ..self }
    }

    /// Sets what happens to embeddings above the norm bound.
    #[must_use]
    pub fn excess(self, excess: Excess) -> Self {
        Self { excess, ..self }
    }

    /// Sets negative components of every embedding to zero: samples, means and clean embeddings are those of the clamped
    /// encoder ([`Samples::clamped`]).
    #[must_use]
    pub fn clamped(self) -> Self {
        Self { components: Components::NonNegative, ..self }
    }

    /// The same with another root of the noise.
    #[must_use]
    pub fn seed(self, seed: Seed) -> Self {
        Self { seed, ..self }
    }

    /// Noise level `σ`.
    pub fn sigma(&self) -> Sigma {
        self.sigma
    }

    /// The raw embeddings `h(x + z_i)` for a range of sample indices.
    ///
    /// Keep them: new galleries, labels, alphas and certificates need no further encoder call.
    pub fn samples(
        &self,
        picture: &Picture<'_>,
        stage: Stage,
        range: Range<u32>,
    ) -> Result<Samples, SmoothingError> {
        self.check(picture, &range)?;
        let dimension = self.embedder.dimension();
        Samples::check_memory(range.end - range.start, dimension)
            .map_err(|source| SmoothingError::Samples { picture: picture.identity.to_owned(), source })?;
        let mut values = vec![0.0_f32; range.len() * dimension];
        // Nothing is summed here, so jobs may be as small as a batch, and few samples still keep every thread busy.
        let step = RUN.min(self.batch.get());
        let jobs = Mutex::new(range.clone().step_by(step).zip(values.chunks_mut(step * dimension)));
        self.work(|| {
            let mut worker = Worker::new(self, picture, stage);
            loop {
                let next = jobs.lock().expect("no holder of this lock can panic").next();
                let Some((start, rows)) = next else { return Ok(()) };
                // After a failure the queue is emptied, so that no other thread starts a new run.
                worker.fill(start, rows).inspect_err(|_| drain(&jobs))?;
            }
        })?;
        let samples = Samples::from_admitted(values, dimension, self.embedder.norm_bound());
        Ok(samples.with(self.components))
    }

    /// The mean of `h(x + z_i)` over a range of sample indices, in memory that does not grow with the range.
    ///
    /// Gives the same bits as [`Samples::mean`] of [`samples`](Self::samples).
    pub fn mean(
        &self,
        picture: &Picture<'_>,
        stage: Stage,
        range: Range<u32>,
    ) -> Result<SmoothedEmbedding, SmoothingError> {
        self.check(picture, &range)?;
        let dimension = self.embedder.dimension();
        let jobs = Mutex::new(run_starts(&range).enumerate());
        let sums = Mutex::new(OrderedSums::new(dimension));
        self.work(|| {
            let mut worker = Worker::new(self, picture, stage);
            let mut rows = vec![0.0_f32; RUN * dimension];
            loop {
                let next = jobs.lock().expect("no holder of this lock can panic").next();
                let Some((run, start)) = next else { return Ok(()) };
                let count = RUN.min((range.end - start) as usize);
                worker.fill(start, &mut rows[..count * dimension]).inspect_err(|_| drain(&jobs))?;
                let sum = run_sum(&rows[..count * dimension], dimension);
                sums.lock().expect("no holder of this lock can panic").add(run, sum);
            }
        })?;
        let count = u32::try_from(range.len()).expect("a range of u32 has at most that many members");
        let mut mean = sums.into_inner().expect("no holder of this lock can panic").total;
        mean.iter_mut().for_each(|value| *value /= f64::from(count));
        Ok(SmoothedEmbedding { count, mean })
    }

    /// The embedding `h(x)` of the clean picture, checked like every sample.
    pub fn clean(&self, picture: &Picture<'_>) -> Result<Vec<f32>, SmoothingError> {
        self.check_picture(picture)?;
        let mut row = vec![0.0; self.embedder.dimension()];
        let name = |source| SmoothingError::Embedder {
            picture: picture.identity.to_owned(),
            start: 0,
            end: 0,
            source,
        };
        self.embedder.embed(picture.pixels, &mut row).map_err(name)?;
        let bound = self.embedder.norm_bound();
        admit(&mut row, bound, self.excess).map_err(|fault| fault.of_picture(picture.identity, 0, bound))?;
        if self.components == Components::NonNegative {
            clamp(&mut row);
        }
        Ok(row)
    }

    /// Whether a picture can be smoothed: it fits the encoder, its pixels are finite, and the noise is not lost beside them.
    ///
    /// Nothing is drawn and the encoder does not run.
    pub fn check_picture(&self, picture: &Picture<'_>) -> Result<(), SmoothingError> {
        let (shape, dimension) = (self.embedder.input_shape(), self.embedder.dimension());
        let wanted = shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side));
        let wanted = match wanted {
            Some(wanted) if (1..=COUNTABLE).contains(&wanted) && (1..=COUNTABLE).contains(&dimension) => {
                wanted
            }
            Some(_) | None => return Err(SmoothingError::Encoder { shape: shape.to_vec(), dimension }),
        };
        if picture.pixels.len() != wanted {
            return Err(SmoothingError::Shape {
                picture: picture.identity.to_owned(),
                found: picture.pixels.len(),
                wanted,
                shape: self.embedder.input_shape().to_vec(),
            });
        }
        if let Some(pixel) = picture.pixels.iter().position(|value| !value.is_finite()) {
            let value = picture.pixels[pixel];
            return Err(SmoothingError::Pixel { picture: picture.identity.to_owned(), pixel, value });
        }
        // Rounding x + σz to f32 moves it by at most 2⁻²⁵ of its size: keep that below a thousandth of σ.
        let largest = picture.pixels.iter().fold(0.0_f32, |largest, pixel| largest.max(pixel.abs()));
        let limit = self.sigma.get() / (256.0 * f64::from(f32::EPSILON));
        if f64::from(largest) > limit {
            let (picture, sigma) = (picture.identity.to_owned(), self.sigma.get());
            return Err(SmoothingError::Resolution { picture, largest, sigma, limit });
        }
        Ok(())
    }

    fn check(&self, picture: &Picture<'_>, range: &Range<u32>) -> Result<(), SmoothingError> {
        self.check_picture(picture)?;
        if range.is_empty() {
            let picture = picture.identity.to_owned();
            return Err(SmoothingError::NoSamples { picture, start: range.start, end: range.end });
        }
        Ok(())
    }

    /// Runs `job` on every thread and returns the first error in the order of threads.
    fn work<J>(&self, job: J) -> Result<(), SmoothingError>
    where
        J: Fn() -> Result<(), SmoothingError> + Sync,
    {
        if self.threads.get() == 1 {
            return job();
        }
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads.get()).map(|_| scope.spawn(&job)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

/// Takes all work that is left.
fn drain<I: Iterator>(jobs: &Mutex<I>) {
    jobs.lock().expect("no holder of this lock can panic").by_ref().for_each(drop);
}

/// First sample index of each run.
fn run_starts(range: &Range<u32>) -> impl Iterator<Item = u32> + use<> {
    range.clone().step_by(RUN)
}

/// Adds the sums of runs in the order of the runs, whatever the order in which they arrive.
struct OrderedSums {
    total: Vec<f64>,
    next: usize,
    waiting: std::collections::BTreeMap<usize, Vec<f64>>,
}

impl OrderedSums {
    fn new(dimension: usize) -> Self {
        Self { total: vec![0.0; dimension], next: 0, waiting: std::collections::BTreeMap::new() }
    }

    fn add(&mut self, run: usize, sum: Vec<f64>) {
        self.waiting.insert(run, sum);
        while let Some(sum) = self.waiting.remove(&self.next) {
            add_into(&mut self.total, &sum);
            self.next += 1;
        }
    }
}

/// One thread's buffers.
struct Worker<'s, 'a> {
    smoother: &'s Smoother<'a>,
    picture: &'s Picture<'s>,
    stream: NoiseStream,
    noisy: Vec<f32>,
}

impl<'s, 'a> Worker<'s, 'a> {
    fn new(smoother: &'s Smoother<'a>, picture: &'s Picture<'s>, stage: Stage) -> Self {
        let stream = NoiseStream::new(smoother.seed, &ImageIdentity::new(picture.identity), stage);
        let noisy = vec![0.0; smoother.batch.get().min(RUN) * picture.pixels.len()];
        Self { smoother, picture, stream, noisy }
    }

    /// Embeds as many noisy copies as `rows` has room for, beginning with sample `start`.
    fn fill(&mut self, start: u32, rows: &mut [f32]) -> Result<(), SmoothingError> {
        let embedder = self.smoother.embedder;
        let (dimension, pixels) = (embedder.dimension(), self.picture.pixels.len());
        let mut first = start;
        for rows in rows.chunks_mut(self.smoother.batch.get() * dimension) {
            let count = rows.len() / dimension;
            let last = first + count as u32;
            for (sample, noisy) in (first..last).zip(self.noisy.chunks_exact_mut(pixels)) {
                self.stream.add(sample, self.smoother.sigma, self.picture.pixels, noisy);
            }
            embedder.embed(&self.noisy[..count * pixels], rows).map_err(|source| {
                SmoothingError::Embedder {
                    picture: self.picture.identity.to_owned(),
                    start: first,
                    end: last,
                    source,
                }
            })?;
            let bound = embedder.norm_bound();
            for (sample, row) in (first..last).zip(rows.chunks_exact_mut(dimension)) {
                admit(row, bound, self.smoother.excess)
                    .map_err(|fault| fault.of_picture(self.picture.identity, sample, bound))?;
            }
            if self.smoother.components == Components::NonNegative {
                clamp(rows);
            }
            first = last;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
