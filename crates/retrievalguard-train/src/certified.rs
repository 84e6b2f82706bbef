//! Recall and certified radii of a Lipschitz encoder: one pass in `f64`, no noise, nothing estimated.
//!
//! The constant is not the training's word: it is read off the exported file.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::{
    CertificateError, LipschitzBound, LipschitzCertifier, LipschitzName, Verdict,
};
use retrievalguard::gallery::{Gallery, GalleryError, Metric, Positives, Relevance};
use retrievalguard_encoder::dataset::{BrokenPictures, RecordSet};
use retrievalguard_encoder::graph::bound::{BoundReading, NetworkBound, Precision};
use retrievalguard_encoder::graph::evaluate::{EvaluationError, EvaluationSpec, Evaluator};
use retrievalguard_encoder::graph::{GraphError, Model, ModelFileError};
use retrievalguard_encoder::model_config::{ModelConfig, ModelConfigError};
use retrievalguard_encoder::pipeline::{EncoderInputs, PictureOutcome, PipelineError};
use retrievalguard_encoder::work::{Observer, Stopped, WorkQueue};
use serde::{Deserialize, Serialize};

use crate::export::{INPUT, OUTPUT};

/// Radii at which the recall that is certified is told.
pub const RADII: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 1.0];

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertifiedError {
    /// The file cannot be read.
    #[error(transparent)]
    Model(#[from] ModelFileError),
    /// Its model config cannot be read.
    #[error(transparent)]
    ModelConfig(#[from] ModelConfigError),
    /// Its graph has no flow.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The encoder has no proved constant.
    #[error("encoder `{}` has no Lipschitz constant: {reading}", model.display())]
    Unbounded {
        /// The file.
        model: PathBuf,
        /// What the verifier says.
        reading: String,
    },
    /// The encoder cannot be evaluated in `f64`.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// A picture cannot be read, or does not fit the encoder.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The embeddings make no gallery.
    #[error(transparent)]
    Gallery(#[from] GalleryError),
    /// A query cannot be certified.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A number of the bound is not usable.
    #[error(transparent)]
    Parameter(#[from] retrievalguard::ParameterError),
    /// The measurement was told to stop.
    #[error("stopped after {done} of {total} pictures")]
    Stopped {
        /// Pictures embedded.
        done: usize,
        /// Pictures in all.
        total: usize,
    },
}

impl From<Stopped> for CertifiedError {
    fn from(Stopped { done, total }: Stopped) -> Self {
        Self::Stopped { done, total }
    }
}

/// What a Lipschitz encoder finds, and what is certified of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CertifiedRecall {
    /// Pictures asked for.
    pub pictures: usize,
    /// Their labels.
    pub classes: usize,
    /// Share of the pictures whose nearest item has their label.
    pub recall: f64,
    /// Mean certified radius, zero for those without any.
    pub average_radius: f64,
    /// Share of the pictures that are certified at each of [`RADII`].
    pub certified: [f64; RADII.len()],
    /// The verified Lipschitz constant.
    pub constant: f64,
}

/// An exported encoder with its proved constant, evaluated in `f64`.
#[derive(Debug)]
pub struct LipschitzEncoder {
    config: ModelConfig,
    bound: NetworkBound,
    evaluator: Evaluator<f64>,
}

impl LipschitzEncoder {
    /// Reads an exported encoder and bounds its constant.
    pub fn open(path: &Path) -> Result<Self, CertifiedError> {
        let config = ModelConfig::for_model(path)?;
        let model = Model::read(path)?;
        let bound = match BoundReading::of(&model, &config)? {
            BoundReading::Bounded(bound) => bound,
            reading @ BoundReading::Unknown { .. } => {
                return Err(CertifiedError::Unbounded {
                    model: path.to_owned(),
                    reading: reading.to_string(),
                });
            }
        };
        let [channels, height, width] = config.picture_shape();
        let named = |name: &Option<String>, usual: &str| name.clone().unwrap_or_else(|| usual.to_owned());
        let spec = EvaluationSpec {
            input: &named(&config.input.name, INPUT),
            shape: &[1, channels, height, width],
            output: &named(&config.output.name, OUTPUT),
        };
        let evaluator = Evaluator::new(path, &model, &spec)?;
        Ok(Self { config, bound, evaluator })
    }

    /// The proved bound, layer by layer.
    pub fn bound(&self) -> &NetworkBound {
        &self.bound
    }

    /// The embeddings of all pictures, one after another.
    pub fn embed(
        &self,
        records: &RecordSet,
        threads: NonZeroUsize,
        observer: &dyn Observer,
    ) -> Result<Vec<f64>, CertifiedError> {
        let inputs = EncoderInputs { records, config: &self.config, broken: BrokenPictures::Fatal };
        let queue = WorkQueue { pieces: records.len(), before: 0, threads, observer };
        let plane = self.config.input.height * self.config.input.width;
        let rows = queue.collect(|position| {
            inputs.with(position, |_, picture| {
                let planes = picture.pixels.chunks_exact(plane);
                let affine = self.config.input.mean.iter().zip(&self.config.input.std);
                // In f32, as every picture is prepared; the bound knows it.
                let prepared = planes.zip(affine).flat_map(|(plane, (&mean, &std))| {
                    plane.iter().map(move |&pixel| f64::from((pixel - mean as f32) / std as f32))
                });
                let prepared: Vec<f64> = prepared.collect();
                Ok::<_, CertifiedError>(self.evaluator.value(&prepared, 1)?)
            })
        })?;
        let mut embeddings = Vec::new();
        for row in rows {
            match row {
                PictureOutcome::Done(row) => embeddings.extend(row),
                PictureOutcome::Skipped(_) => {}
            }
        }
        Ok(embeddings)
    }

    /// What certificates take: the constant, and the error of `f64` anywhere in a certified ball.
    ///
    /// A certified radius is at most the distance of two pictures in `[0, 1]`, since the gallery is made of such.
    fn certifying(&self) -> Result<LipschitzBound, CertifiedError> {
        let pixels = self.config.picture_shape().iter().product::<usize>() as f64;
        Ok(self.bound.at(Precision::Double, 3.0 * pixels.sqrt())?)
    }
}

/// Certifies every query in a gallery; without one, among all the other queries.
pub fn certified_recall(
    encoder: &LipschitzEncoder,
    queries: &RecordSet,
    gallery: Option<&RecordSet>,
    threads: NonZeroUsize,
    observer: &dyn Observer,
) -> Result<CertifiedRecall, CertifiedError> {
    let embeddings = encoder.embed(queries, threads, observer)?;
    let dimension = embeddings.len() / queries.len().max(1);
    let stored = match gallery {
        Some(gallery) => &encoder.embed(gallery, threads, observer)?,
        None => &embeddings,
    };
    let items = gallery.unwrap_or(queries);
    let identities = items.iter().map(|record| record.identity.clone()).collect();
    let labels: Vec<&str> = items.iter().map(|record| record.label.as_str()).collect();
    let stored = stored.iter().map(|&value| value as f32).collect();
    let stored = Gallery::new(stored, dimension, identities, &labels, Metric::Euclidean)?;
    let certifier = LipschitzCertifier::new(&stored, encoder.certifying()?);
    let row_of = |label: &str| labels.iter().position(|&other| other == label);
    let relevance: Vec<Relevance> = queries
        .iter()
        .enumerate()
        .map(|(place, record)| {
            let positives = match row_of(&record.label) {
                Some(row) => Positives::Label(stored.label(row)),
                None => Positives::Absent,
            };
            let own = if gallery.is_some() { Vec::new() } else { vec![place] };
            Relevance::new(positives, own)
        })
        .collect();
    let (mut right, mut total, mut certified) = (0, 0.0, [0; RADII.len()]);
    certifier.certify_each(
        &[LipschitzName::Lipschitz],
        &embeddings,
        |query| &relevance[query],
        |_, outcomes| {
            let verdict = outcomes.first().map_or(Verdict::Misretrieved, |outcome| outcome.verdict());
            right += usize::from(verdict != Verdict::Misretrieved);
            let radius = verdict.radius().map_or(0.0, |radius| radius.get());
            total += radius;
            for (count, limit) in certified.iter_mut().zip(RADII) {
                *count += usize::from(radius >= limit);
            }
        },
    )?;
    let share = |count: usize| count as f64 / queries.len().max(1) as f64;
    let mut classes: Vec<&str> = queries.iter().map(|record| record.label.as_str()).collect();
    classes.sort_unstable();
    classes.dedup();
    Ok(CertifiedRecall {
        pictures: queries.len(),
        classes: classes.len(),
        recall: share(right),
        average_radius: total / queries.len().max(1) as f64,
        certified: certified.map(share),
        constant: encoder.bound.constant,
    })
}
