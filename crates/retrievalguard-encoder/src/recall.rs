//! Recall@1 of an encoder, clean and smoothed: every picture asks for its label among all the others.
//!
//! Nothing is certified here; it is what one wants to know of an encoder before, so it has noise of its own: an encoder or a
//! `σ` that was chosen by it is certified on noise that the choice has not seen.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::Range;

use retrievalguard::certificate::{CertificateError, Certifier, RateOptions, RateTest, Verdict};
use retrievalguard::gallery::{Gallery, GalleryError, Metric, Positives, Relevance, SearchError};
use retrievalguard::noise::Stage;
use retrievalguard::{
    Alpha, Embedder as _, Excess, SampleCount, Samples, Seed, Sigma, Smoother, SmoothingError, TargetRadius,
};
use serde::{Deserialize, Serialize};

use crate::dataset::{BrokenPictures, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::picture::PictureError;
use crate::pipeline::{EncoderInputs, PictureOutcome, PipelineError};
use crate::work::{Observer, Stopped, WorkQueue};

/// Why recall could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecallError {
    /// A picture could not be read.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A picture does not fit the encoder.
    #[error(transparent)]
    Pipeline(Box<PipelineError>),
    /// The encoder failed.
    #[error(transparent)]
    Smoothing(#[from] SmoothingError),
    /// The embeddings make no gallery.
    #[error(transparent)]
    Gallery(#[from] GalleryError),
    /// The gallery could not be searched.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A picture's copies cannot be counted.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Among pictures of one label every answer is right.
    #[error("all {pictures} pictures have the label `{label}`, wanted at least two labels to tell apart")]
    OneLabel {
        /// How many pictures there are.
        pictures: usize,
        /// The label.
        label: String,
    },
    /// The measurement was told to stop.
    #[error("stopped after {done} of {total} pictures")]
    Stopped {
        /// Pictures embedded.
        done: usize,
        /// Pictures in all.
        total: usize,
    },
}

impl From<PipelineError> for RecallError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Picture(error) => Self::Picture(error),
            error => Self::Pipeline(Box::new(error)),
        }
    }
}

impl From<Stopped> for RecallError {
    fn from(Stopped { done, total }: Stopped) -> Self {
        Self::Stopped { done, total }
    }
}

/// Share of pictures whose nearest other picture has their label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    /// Pictures asked for and searched in.
    pub pictures: usize,
    /// Their labels; among few of them, finding the right one is easy.
    pub classes: usize,
    /// With the embeddings `h(x)`.
    pub clean: f64,
    /// With the means of `h(x + z)`, for queries and gallery alike.
    pub smoothed: f64,
    /// Share certified under `pairwise` at the radius that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified: Option<f64>,
}

/// A radius at which certified recall is measured, under `pairwise`.
#[derive(Clone, Copy, Debug)]
pub struct RecallTarget {
    /// The radius.
    pub radius: TargetRadius,
    /// Probability that one decision is wrong.
    pub alpha: Alpha,
    /// Most noisy copies for one decision.
    pub cap: SampleCount,
}

/// How smoothed embeddings are estimated.
#[derive(Clone, Copy, Debug)]
pub struct Smoothing {
    /// Noise.
    pub sigma: Sigma,
    /// Noisy copies per picture.
    pub samples: u32,
    /// Seed of the noise.
    pub seed: Seed,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// Noisy copies per call of the encoder.
    pub batch: NonZeroUsize,
    /// Where certified recall is measured, too.
    pub target: Option<RecallTarget>,
}

/// Embeds every picture, clean and smoothed, and searches for each among the others.
///
/// The pictures that were left out because they cannot be read come with the result: identity and reason. With a target, each
/// picture is then certified against the smoothed others, on copies that come after those of the means; they are of the stage
/// `Measure` like all that is drawn here, so what is chosen by it has to be certified on fresh noise.
pub fn recall_at_1(
    embedder: &OnnxEmbedder,
    records: &RecordSet,
    smoothing: Smoothing,
    broken: BrokenPictures,
    threads: NonZeroUsize,
    observer: &dyn Observer,
) -> Result<(Recall, Vec<(String, String)>), RecallError> {
    let all: Vec<&str> = records.iter().map(|record| record.label.as_str()).collect();
    refuse_one_label(&all)?;
    let inputs = EncoderInputs { records, config: embedder.model_config(), broken };
    let smoother = Smoother::new(embedder, smoothing.sigma, smoothing.seed)
        .excess(smoothing.excess)
        .batch(smoothing.batch);
    let queue = WorkQueue { pieces: records.len(), before: 0, threads, observer };
    let outcomes = queue.collect(|position| {
        inputs.with(position, |_, picture| {
            let clean = smoother.clean(picture)?;
            let smoothed = smoother.mean(picture, Stage::Measure, 0..smoothing.samples)?;
            Ok::<_, RecallError>((clean, smoothed.mean.iter().map(|&value| value as f32).collect::<Vec<_>>()))
        })
    })?;
    let (mut clean, mut smoothed, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let mut skipped = Vec::new();
    for (record, outcome) in records.iter().zip(outcomes) {
        match outcome {
            PictureOutcome::Done((own_clean, own_smoothed)) => {
                clean.extend(own_clean);
                smoothed.extend(own_smoothed);
                labels.push(record.label.as_str());
            }
            PictureOutcome::Skipped(reason) => skipped.push((record.identity.clone(), reason)),
        }
    }
    // Pictures that could not be read may have been all of the other labels.
    refuse_one_label(&labels)?;
    let dimension = embedder.dimension();
    let clean = searchable(clean, dimension, &labels)?;
    let smoothed = searchable(smoothed, dimension, &labels)?;
    let certified = smoothing.target.map(|target| {
        // Rows of the gallery: pictures that cannot be read have none.
        let unread: HashSet<&str> = skipped.iter().map(|(identity, _)| identity.as_str()).collect();
        let read: Vec<usize> =
            (0..records.len()).filter(|&place| !unread.contains(records[place].identity.as_str())).collect();
        let certifier = Certifier::new(&smoothed, smoothing.sigma, target.alpha);
        let queue = WorkQueue { pieces: read.len(), before: 0, threads, observer };
        let reached = queue.collect(|row| {
            inputs.with(read[row], |_, picture| {
                is_certified(&certifier, row, target, |range| {
                    let copies = range.start + smoothing.samples..range.end + smoothing.samples;
                    smoother.samples(picture, Stage::Measure, copies)
                })
            })
        })?;
        let reached = reached.iter().filter(|outcome| matches!(outcome, PictureOutcome::Done(true))).count();
        Ok::<_, RecallError>(reached as f64 / read.len() as f64)
    });
    let recall = Recall {
        pictures: labels.len(),
        classes: labels.iter().collect::<HashSet<_>>().len(),
        clean: leave_one_out(&clean)?,
        smoothed: leave_one_out(&smoothed)?,
        certified: certified.transpose()?,
    };
    Ok((recall, skipped))
}

/// Whether the label of a gallery's row is certified at a target radius against all other rows.
fn is_certified(
    certifier: &Certifier<'_>,
    row: usize,
    target: RecallTarget,
    draw: impl Fn(Range<u32>) -> Result<Samples, SmoothingError>,
) -> Result<bool, RecallError> {
    let gallery = certifier.gallery();
    let relevance = Relevance::new(Positives::Label(gallery.label(row)), vec![row]);
    let options = RateOptions::deciding(target.radius, target.cap);
    let mut test = RateTest::pairwise(certifier, &relevance, &options)?;
    while let Some(range) = test.wants() {
        test.see(&draw(range)?)?;
    }
    Ok(matches!(test.outcome().verdict, Verdict::Certified { .. }))
}

/// Refuses a recall of 1 that says nothing.
pub(crate) fn refuse_one_label(labels: &[&str]) -> Result<(), RecallError> {
    match labels {
        [first, others @ ..] if others.iter().all(|label| label == first) => {
            Err(RecallError::OneLabel { pictures: labels.len(), label: (*first).to_owned() })
        }
        _ => Ok(()),
    }
}

/// A gallery whose rows ask for each other.
fn searchable(vectors: Vec<f32>, dimension: usize, labels: &[&str]) -> Result<Gallery, GalleryError> {
    let identities = (0..labels.len()).map(|row| row.to_string()).collect();
    Gallery::new(vectors, dimension, identities, labels, Metric::Euclidean)
}

/// Share of rows whose nearest other row has their label.
fn leave_one_out(gallery: &Gallery) -> Result<f64, RecallError> {
    let rows = gallery.len();
    let own: Vec<[usize; 1]> = (0..rows).map(|row| [row]).collect();
    let answers = gallery.nearest(gallery.vectors(), 1, |query| &own[query])?;
    let right = answers.iter().enumerate().filter(|(row, answer)| {
        answer.first().is_some_and(|neighbour| gallery.label(neighbour.row) == gallery.label(*row))
    });
    Ok(right.count() as f64 / rows as f64)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::dataset::{PictureSource, Record, Role};
    use crate::engine::{Engine, EngineOptions};
    use crate::model_config::ModelConfig;
    use crate::work::Unobserved;

    #[test]
    fn recall_does_not_look_at_the_noise_that_certifies() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/convolutional.onnx");
        let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
        let config = ModelConfig::for_model(&model).unwrap();
        let embedder = OnnxEmbedder::open(&model, config, &options).unwrap();
        let record = |place: usize| Record {
            identity: format!("picture {place}"),
            source: PictureSource::Grey { width: 16, height: 16, pixels: vec![128; 256] },
            crop: None,
            label: format!("class {}", place % 3),
            category: None,
            split: None,
            role: Role::Unassigned,
        };
        let records: RecordSet = (0..24).map(record).collect();
        let labels: Vec<&str> = records.iter().map(|record| record.label.as_str()).collect();
        // Equal pictures, one noisy copy of each: which is nearest to which is the noise's doing alone.
        let (sigma, one) = (Sigma::new(0.5).unwrap(), NonZeroUsize::MIN);
        let measured = |seed: Seed| {
            let (excess, target) = (Excess::Refuse, None);
            let smoothing = Smoothing { sigma, samples: 1, seed, excess, batch: one, target };
            let broken = BrokenPictures::Fatal;
            recall_at_1(&embedder, &records, smoothing, broken, one, &Unobserved).unwrap().0.smoothed
        };
        let expected = |seed: Seed, stage: Stage| {
            let smoother = Smoother::new(&embedder, sigma, seed);
            let broken = BrokenPictures::Fatal;
            let inputs = EncoderInputs { records: &records, config: embedder.model_config(), broken };
            let rows = (0..records.len()).flat_map(|place| {
                let row = inputs.with(place, |_, picture| {
                    let samples = smoother.samples(picture, stage, 0..1)?;
                    Ok::<_, PipelineError>(samples.values().to_vec())
                });
                let PictureOutcome::Done(row) = row.unwrap() else { panic!("picture {place} is broken") };
                row
            });
            leave_one_out(&searchable(rows.collect(), embedder.dimension(), &labels).unwrap()).unwrap()
        };
        let seeds: Vec<Seed> = (0..8).map(Seed::new).collect();
        let found: Vec<f64> = seeds.iter().map(|&seed| measured(seed)).collect();
        for stage in Stage::ALL {
            let wanted: Vec<f64> = seeds.iter().map(|&seed| expected(seed, stage)).collect();
            assert_eq!(found == wanted, stage == Stage::Measure, "{stage:?}: {found:?} {wanted:?}");
        }
    }

    #[test]
    fn pictures_of_one_label_have_no_recall() {
        let error = refuse_one_label(&["cars_train", "cars_train"]).unwrap_err();
        let words = "all 2 pictures have the label `cars_train`, wanted at least two labels to tell apart";
        assert_eq!(error.to_string(), words);
        assert!(refuse_one_label(&["a", "b"]).is_ok());
    }

    #[test]
    fn the_nearest_other_row_decides() {
        let vectors = vec![0.0, 0.0, 0.1, 0.0, 5.0, 0.0, 5.2, 0.0, 5.1, 0.0];
        let labels = ["a", "a", "b", "b", "a"];
        // Rows 0 and 1 find each other; 2 and 3 find row 4, which finds one of them.
        assert_eq!(leave_one_out(&searchable(vectors, 2, &labels).unwrap()).unwrap(), 0.4);
    }
}
