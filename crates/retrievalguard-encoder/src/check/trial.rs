//! Tries an encoder out on pictures.

use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use retrievalguard::{Embedder, EmbedderFailure};

use super::report::{Agreement, Comparison, INDEPENDENCE_TOLERANCE, ModelReport};

/// How an encoder is checked.
#[derive(Clone, Debug)]
pub struct CheckOptions<'a> {
    /// How many pictures are run together.
    pub batch: NonZeroUsize,
    /// How many threads run at once while speed is measured.
    pub threads: NonZeroUsize,
    /// How long speed is measured.
    pub time: Duration,
    /// How many of the pictures are run with other companions.
    pub companions: usize,
    /// Embeddings of the same pictures made elsewhere, one row each.
    pub reference: Option<&'a [f32]>,
    /// Largest difference from the reference in any component that still passes.
    pub reference_tolerance: f64,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        Self {
            batch: const { NonZeroUsize::new(8).expect("8 is not zero") },
            threads: NonZeroUsize::MIN,
            time: Duration::from_millis(200),
            companions: 16,
            reference: None,
            reference_tolerance: 1e-3,
        }
    }
}

/// Why an encoder could not be checked at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// No picture, or a part of one.
    #[error("found {found} pixel values, wanted a multiple of {wanted} above 0")]
    Pictures {
        /// Number of values given.
        found: usize,
        /// Number of values of one picture.
        wanted: usize,
    },
    /// The reference does not have one row per picture.
    #[error("the reference has {found} values, wanted {pictures} embeddings of {dimension}")]
    Reference {
        /// Number of values given.
        found: usize,
        /// Number of pictures.
        pictures: usize,
        /// Length of an embedding.
        dimension: usize,
    },
    /// The encoder failed.
    #[error("the encoder failed on a batch of {batch} pictures")]
    Embedder {
        /// Size of the batch.
        batch: usize,
        /// What it said.
        source: EmbedderFailure,
    },
    /// An embedding has a component that is no number.
    #[error(
        "the encoder gave {value} in component {component} for picture {picture}, wanted a finite number"
    )]
    NotFinite {
        /// Which picture, counted from 0.
        picture: usize,
        /// Which component.
        component: usize,
        /// What was found there.
        value: f32,
    },
}

/// Runs an encoder on consecutive pictures and reports what it does.
pub fn check_model(
    encoder: &dyn Embedder,
    pictures: &[f32],
    options: &CheckOptions<'_>,
) -> Result<ModelReport, CheckError> {
    let pixels = encoder.input_len();
    let count = pictures.len().checked_div(pixels).unwrap_or(0);
    if count == 0 || count * pixels != pictures.len() {
        return Err(CheckError::Pictures { found: pictures.len(), wanted: pixels });
    }
    let dimension = encoder.dimension();
    if let Some(reference) = options.reference
        && reference.len() != count * dimension
    {
        return Err(CheckError::Reference { found: reference.len(), pictures: count, dimension });
    }
    let run = Run { encoder, pixels, dimension };
    let embeddings = run.in_batches(pictures, options.batch.get())?;
    for (picture, row) in embeddings.chunks_exact(dimension).enumerate() {
        if let Some(component) = row.iter().position(|value| !value.is_finite()) {
            return Err(CheckError::NotFinite { picture, component, value: row[component] });
        }
    }
    let norms = embeddings.chunks_exact(dimension).map(norm);
    let (smallest_norm, largest_norm) = norms
        .fold((f64::INFINITY, 0.0_f64), |(smallest, largest), norm| (smallest.min(norm), largest.max(norm)));
    let norm_bound = encoder.norm_bound().get();

    let mut determinism = Differences::default();
    determinism.add(dimension, 0, &embeddings, &run.in_batches(pictures, options.batch.get())?);
    let mut reference = Differences::default();
    if let Some(rows) = options.reference {
        reference.add(dimension, 0, &embeddings, rows);
    }
    let independence = independence(&run, pictures, &embeddings, options)?;
    Ok(ModelReport {
        pictures: count,
        input_shape: encoder.input_shape().to_vec(),
        dimension,
        norm_bound,
        smallest_norm,
        largest_norm,
        determinism: determinism.verdict(0.0),
        independence: independence.verdict(INDEPENDENCE_TOLERANCE * norm_bound),
        reference: options.reference.map(|_| reference.verdict(options.reference_tolerance)),
        pictures_per_second: speed(&run, pictures, options)?,
        batch: options.batch.get(),
        threads: options.threads.get(),
    })
}

fn norm(row: &[f32]) -> f64 {
    row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

/// An encoder and its sizes.
struct Run<'a> {
    encoder: &'a dyn Embedder,
    pixels: usize,
    dimension: usize,
}

impl Run<'_> {
    fn one(&self, pictures: &[f32]) -> Result<Vec<f32>, CheckError> {
        self.in_batches(pictures, pictures.len() / self.pixels)
    }

    fn in_batches(&self, pictures: &[f32], batch: usize) -> Result<Vec<f32>, CheckError> {
        let mut embeddings = vec![0.0; pictures.len() / self.pixels * self.dimension];
        let batches = pictures.chunks(batch * self.pixels);
        for (pictures, rows) in batches.zip(embeddings.chunks_mut(batch * self.dimension)) {
            let batch = pictures.len() / self.pixels;
            self.encoder.embed(pictures, rows).map_err(|source| CheckError::Embedder { batch, source })?;
        }
        Ok(embeddings)
    }
}

/// The largest difference met so far.
#[derive(Default)]
struct Differences {
    largest: f64,
    picture: usize,
    bits: bool,
}

impl Differences {
    /// Compares rows; the first belongs to picture `first`.
    fn add(&mut self, dimension: usize, first: usize, left: &[f32], right: &[f32]) {
        for (index, (&left, &right)) in left.iter().zip(right).enumerate() {
            if left.to_bits() == right.to_bits() {
                continue;
            }
            let difference = (f64::from(left) - f64::from(right)).abs();
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            if !self.bits || difference > self.largest {
                (self.largest, self.picture) = (difference, first + index / dimension);
            }
            self.bits = true;
        }
    }

    fn verdict(&self, tolerance: f64) -> Comparison {
        let agreement = match self {
            Self { bits: false, .. } => Agreement::SameBits,
            Self { largest, .. } if *largest <= tolerance => Agreement::WithinTolerance,
            Self { .. } => Agreement::Differs,
        };
        Comparison { agreement, largest_difference: self.largest, picture: self.picture }
    }
}

/// Runs pictures alone, backwards, and at the front, in the middle and at the end of batches of strangers.
fn independence(
    run: &Run<'_>,
    pictures: &[f32],
    embeddings: &[f32],
    options: &CheckOptions<'_>,
) -> Result<Differences, CheckError> {
    let (pixels, dimension) = (run.pixels, run.dimension);
    let mut found = Differences::default();
    let some = pictures.chunks_exact(pixels).zip(embeddings.chunks_exact(dimension)).take(options.companions);
    let some: Vec<(&[f32], &[f32])> = some.collect();
    // Black, white and stripes: nothing has more different statistics.
    let strangers: [Vec<f32>; 3] = [
        vec![0.0; pixels],
        vec![1.0; pixels],
        (0..pixels).map(|pixel| f32::from(u8::from(pixel % 2 == 0))).collect(),
    ];
    for (index, &(picture, row)) in some.iter().enumerate() {
        found.add(dimension, index, row, &run.one(picture)?);
        for (length, place) in [(2, 0), (2, 1), (3, 1), (7, 0), (7, 3), (7, 6)] {
            let batch: Vec<f32> = (0..length)
                .flat_map(|slot| if slot == place { picture } else { &strangers[(slot + index) % 3] })
                .copied()
                .collect();
            let rows = run.one(&batch)?;
            found.add(dimension, index, row, &rows[place * dimension..][..dimension]);
        }
    }
    // Statistics over the batch that alike companions leave as they are give way to these.
    let loud = [vec![1000.0; pixels], vec![-1000.0; pixels]];
    for (index, &(picture, row)) in some.iter().enumerate().take(2) {
        for place in 0..3 {
            let batch: Vec<f32> = (0..3)
                .flat_map(|slot| if slot == place { picture } else { &loud[slot % 2] })
                .copied()
                .collect();
            // Companions so far from any picture may have no embedding; that is their own affair.
            if let Ok(rows) = run.one(&batch) {
                found.add(dimension, index, row, &rows[place * dimension..][..dimension]);
            }
        }
    }
    let backwards: Vec<f32> = some.iter().rev().flat_map(|(picture, _)| *picture).copied().collect();
    let rows = run.one(&backwards)?;
    for (index, row) in rows.chunks_exact(dimension).rev().enumerate() {
        found.add(dimension, index, some[index].1, row);
    }
    Ok(found)
}

/// Pictures per second, all threads together.
fn speed(run: &Run<'_>, pictures: &[f32], options: &CheckOptions<'_>) -> Result<f64, CheckError> {
    let (batch, pixels) = (options.batch.get(), run.pixels);
    let filled: Vec<f32> = pictures.iter().copied().cycle().take(batch * pixels).collect();
    let embedder = run.encoder;
    let worker = || {
        let mut rows = vec![0.0; batch * run.dimension];
        let failure = |source| CheckError::Embedder { batch, source };
        // Once without the clock: a new thread opens its session here.
        embedder.embed(&filled, &mut rows).map_err(failure)?;
        let start = Instant::now();
        let mut done = 0_usize;
        while done == 0 || start.elapsed() < options.time {
            embedder.embed(&filled, &mut rows).map_err(failure)?;
            done += batch;
        }
        Ok(done as f64 / start.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads.get()).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use retrievalguard::NormBound;

    use super::*;

    /// Two components per picture of two pixels, with a chosen fault.
    #[derive(Default)]
    struct Faulty {
        batch_mean: f32,
        drift: f32,
        length: f32,
        calls: AtomicU32,
    }

    impl Embedder for Faulty {
        fn input_shape(&self) -> &[usize] {
            &[1, 1, 2]
        }

        fn dimension(&self) -> usize {
            2
        }

        fn norm_bound(&self) -> NormBound {
            NormBound::UNIT
        }

        fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
            let mean = pictures.iter().sum::<f32>() / pictures.len() as f32;
            let call = self.calls.fetch_add(1, Ordering::Relaxed) as f32;
            for (picture, row) in pictures.chunks_exact(2).zip(embeddings.chunks_exact_mut(2)) {
                let angle = picture[0] + 2.0 * picture[1] + self.batch_mean * mean + self.drift * call;
                let length = 1.0 + self.length;
                row.copy_from_slice(&[length * angle.cos(), length * angle.sin()]);
            }
            Ok(())
        }
    }

    const PICTURES: [f32; 6] = [0.1, 0.2, 0.3, 0.9, 0.6, 0.5];

    #[test]
    fn a_sound_encoder_passes_and_every_fault_is_named() {
        let options = CheckOptions { time: Duration::ZERO, ..CheckOptions::default() };
        let check = |faulty: Faulty| check_model(&faulty, &PICTURES, &options).unwrap();
        let sound = check(Faulty::default());
        assert!(sound.passed(), "{sound}");
        assert_eq!((sound.pictures, sound.dimension), (3, 2));
        assert!(sound.pictures_per_second > 0.0);

        let cheater = check(Faulty { batch_mean: 0.1, ..Faulty::default() });
        assert_eq!(cheater.independence.agreement, Agreement::Differs);
        assert!(cheater.failures()[0].contains("rest of the batch"), "{:?}", cheater.failures());
        // Felt beside companions a thousand times louder, though beside its like it would pass for rounding.
        let shy = check(Faulty { batch_mean: 1e-6, ..Faulty::default() });
        assert_eq!(shy.independence.agreement, Agreement::Differs);
        let rounding = check(Faulty { batch_mean: 1e-9, ..Faulty::default() });
        assert_eq!(rounding.independence.agreement, Agreement::WithinTolerance);
        assert!(rounding.passed());
        let drifting = check(Faulty { drift: 1e-6, ..Faulty::default() });
        assert_eq!(drifting.determinism.agreement, Agreement::Differs);
        let long = check(Faulty { length: 0.1, ..Faulty::default() });
        assert_eq!(long.failures().len(), 1, "{:?}", long.failures());
    }

    #[test]
    fn one_picture_is_enough_to_catch_statistics_over_the_batch() {
        let options = CheckOptions { time: Duration::ZERO, ..CheckOptions::default() };
        let cheater = Faulty { batch_mean: 0.01, ..Faulty::default() };
        let report = check_model(&cheater, &PICTURES[..2], &options).unwrap();
        assert_eq!(report.independence.agreement, Agreement::Differs);
    }

    #[test]
    fn embeddings_made_elsewhere_are_compared_row_by_row() {
        let mut rows = vec![0.0; 6];
        Faulty::default().embed(&PICTURES, &mut rows).unwrap();
        let check = |reference: &[f32]| {
            let time = Duration::ZERO;
            let options = CheckOptions { time, reference: Some(reference), ..CheckOptions::default() };
            check_model(&Faulty::default(), &PICTURES, &options)
        };
        assert_eq!(check(&rows).unwrap().reference.unwrap().agreement, Agreement::SameBits);
        rows[5] += 1e-4;
        assert_eq!(check(&rows).unwrap().reference.unwrap().agreement, Agreement::WithinTolerance);
        rows[2] += 0.5;
        let report = check(&rows).unwrap();
        assert_eq!(report.reference.unwrap().picture, 1);
        assert!(!report.passed());
        assert!(matches!(
            check(&rows[..4]),
            Err(CheckError::Reference { found: 4, pictures: 3, dimension: 2 })
        ));
    }

    #[test]
    fn parts_of_pictures_are_refused() {
        for count in [0, 3] {
            let error = check_model(&Faulty::default(), &PICTURES[..count], &CheckOptions::default());
            assert!(matches!(error, Err(CheckError::Pictures { wanted: 2, .. })), "{count}");
        }
    }
}
