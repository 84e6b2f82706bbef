//! One picture, answered: by an encoder in an ONNX file with noise or without, or by a Python function with noise.

use std::num::NonZeroUsize;
use std::ops::Range;

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use retrievalguard::certificate::{CertificateError, Outcome, Verdict};
use retrievalguard::gallery::Neighbour;
use retrievalguard::noise::Stage;
use retrievalguard::{Components, Embedder, Picture, Samples, Smoother};
use retrievalguard_encoder::dataset::BrokenPictures;
use retrievalguard_encoder::pipeline::{
    Answered, CertifyOptions, OptionsError, PipelineError, PlainCertifier, Query, QueryCertifier, Relevant,
    check_kind, nearest_items, nearest_plain, uncertified,
};
use retrievalguard_encoder::run::{LipschitzBounded, Method, Retriever, Smoothed};
use retrievalguard_encoder::work::{Observer, Unobserved};

use crate::certify::{Answer, described};
use crate::encoder::Encoder;
use crate::errors::{raised, refused};
use crate::gallery::Gallery;
use crate::interruptible::interruptible;
use crate::parameters;
use crate::pipeline::{Certifying, failed};
use crate::smooth::Function;

/// Samples between which somebody who waits is heard, for each thread.
const STEP: u32 = 256;

/// A Python function and what is known of it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Called {
    call: Py<PyAny>,
    shape: Vec<usize>,
    dimension: usize,
    norm_bound: f64,
    batch: usize,
}

/// What is asked about a picture.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Asked {
    identity: String,
    /// None for what the pilot retrieves.
    label: Option<String>,
    item: Option<usize>,
    excluded: Vec<usize>,
    /// Among how many queries `alpha` is shared, if it is.
    queries: usize,
}

impl Asked {
    fn query(&self, retriever: Retriever) -> Query<'_> {
        let relevant = match (self.item, &self.label) {
            (Some(item), _) => Relevant::Item(item),
            (None, Some(name)) => Relevant::Label(name),
            (None, None) => Relevant::Retrieved(retriever),
        };
        Query { relevant, excluded: &self.excluded }
    }

    /// The answer as Python has it; `plain` is the row that the encoder without noise finds.
    fn told(
        &self,
        gallery: &Gallery,
        answered: Answered,
        plain: Option<usize>,
    ) -> Result<Answer, CertificateError> {
        let gallery = gallery.gallery();
        let Answered { label, relevance, outcomes, deeper, decision, mean } = answered;
        let retrieved = nearest_items(gallery, &mean, 1, &relevance.excluded)?;
        let pair = gallery.nearest_positive_and_negative(&mean, |_| &relevance)?;
        let row = |neighbour: &Neighbour| neighbour.row;
        let found = || label.map(|label| gallery.label_name(label).to_owned());
        let deepest = outcomes.first().map(|outcome| outcome.name);
        let outcome = |mut outcome: Outcome| {
            // Nobody said what would be right: another answer than the pilot's is no wrong one.
            if self.label.is_none() && self.item.is_none() && outcome.verdict == Verdict::Misretrieved {
                outcome.verdict = Verdict::Abstained;
            }
            let own = deeper.iter().filter(|_| Some(outcome.name) == deepest);
            let deeper = own.map(|&verdict| parameters::verdict(verdict)).collect();
            described(&outcome).with_deeper(deeper).decided(decision)
        };
        Ok(Answer {
            label: if self.item.is_some() { None } else { self.label.clone().or_else(found) },
            retrieved: retrieved.first().map(row),
            nearest_wrong: pair.first().and_then(|pair| pair.negative.as_ref()).map(row),
            plain,
            outcomes: outcomes.into_iter().map(outcome).collect(),
        })
    }
}

/// An encoder, or a function in its place.
type Embedding<'py> = (Option<Bound<'py, Encoder>>, Option<Called>);

/// Certifies one picture that is prepared already.
#[pyfunction]
pub(crate) fn certify_picture<'py>(
    py: Python<'py>,
    embedding: Embedding<'py>,
    pixels: PyReadonlyArray1<'py, f32>,
    gallery: &Bound<'py, Gallery>,
    asked: Asked,
    certifying: Certifying,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Answer> {
    let (pixels, gallery) = (pixels.as_slice()?.to_vec(), gallery.get());
    let given = certifying.sigma.map(parameters::sigma).transpose()?;
    let sigma = given.or(gallery.noise());
    certifying.refuse_unused(sigma, gallery.name())?;
    let wrong = |error: OptionsError| raised(&error);
    let answer = match embedding {
        (Some(encoder), _) => {
            let encoder = encoder.get();
            let options =
                certifying.options(sigma, BrokenPictures::Fatal, (encoder.threads, encoder.batch))?;
            options.check().map_err(wrong)?;
            let method = options.method(sigma, asked.queries, &encoder.embedder, gallery.name());
            gallery.check_encoder(encoder, sigma)?;
            match method.map_err(wrong)? {
                Method::Smoothed(smoothed) => {
                    let draws = Draws { embedder: &encoder.embedder, smoothed: &smoothed, options: &options };
                    draws.check(gallery)?;
                    interruptible(py, progress.as_ref(), |observer| {
                        draws.answer(gallery, &asked, &pixels, observer)
                    })?
                }
                Method::Lipschitz(bounded) => {
                    py.detach(|| without_noise(encoder, gallery, &asked, &bounded, &pixels))
                }
            }
        }
        (None, Some(called)) => {
            let Some(sigma) = sigma else {
                return Err(refused(format!(
                    "gallery `{}` does not say its noise level, wanted sigma, or lipschitz for a function that has such a bound",
                    gallery.name()
                )));
            };
            let batch = NonZeroUsize::new(called.batch).unwrap_or(NonZeroUsize::MIN);
            let options =
                certifying.options(Some(sigma), BrokenPictures::Fatal, (NonZeroUsize::MIN, batch))?;
            options.check().map_err(wrong)?;
            let norm_bound = parameters::norm_bound(called.norm_bound)?;
            gallery.check(sigma, called.dimension, norm_bound, Components::Any)?;
            let procedure = options.procedure(sigma, asked.queries).map_err(wrong)?;
            let smoothed = Smoothed::new(procedure, options.seed, options.excess);
            let Called { call, shape, dimension, .. } = called;
            let embedder = Function { call: Some(call), shape, dimension, norm_bound };
            let draws = Draws { embedder: &embedder, smoothed: &smoothed, options: &options };
            draws.check(gallery)?;
            // The function is called on this thread, where Ctrl-C ends it.
            py.detach(|| draws.answer(gallery, &asked, &pixels, &Unobserved))
        }
        (None, None) => return Err(refused("there is neither an encoder nor a function")),
    };
    answer.map_err(|error| failed(&error))
}

/// What answers with noise.
struct Draws<'a> {
    embedder: &'a dyn Embedder,
    smoothed: &'a Smoothed,
    options: &'a CertifyOptions,
}

impl Draws<'_> {
    /// Refuses what cannot be answered, before anything is drawn.
    fn check(&self, gallery: &Gallery) -> PyResult<()> {
        let procedure = &self.smoothed.procedure;
        check_kind(procedure, gallery.gallery()).map_err(|error| raised(&error))?;
        for count in [procedure.pilot, procedure.samples] {
            let checked = Samples::check_memory(count.get(), self.embedder.dimension());
            checked.map_err(|error| raised(&error))?;
        }
        Ok(())
    }

    fn answer(
        &self,
        gallery: &Gallery,
        asked: &Asked,
        pixels: &[f32],
        observer: &dyn Observer,
    ) -> Result<Answer, PipelineError> {
        let procedure = &self.smoothed.procedure;
        let threads = self.options.threads;
        let smoother = Smoother::new(self.embedder, procedure.sigma, self.smoothed.seed)
            .batch(self.options.batch)
            .excess(self.smoothed.excess())
            .threads(threads);
        let picture = Picture { identity: &asked.identity, pixels };
        let certifier = QueryCertifier::new(procedure, gallery.gallery());
        let certifier = certifier.gallery_samples(gallery.samples_behind());
        let step = STEP.saturating_mul(u32::try_from(threads.get()).unwrap_or(u32::MAX));
        let total = procedure.pilot.get() as usize + procedure.samples.get() as usize;
        let mut done = 0;
        let mut drawn = |stage: Stage, range: Range<u32>| -> Result<Samples, PipelineError> {
            if observer.stop() {
                return Err(PipelineError::Stopped { done, total });
            }
            let samples = smoother.samples(&picture, stage, range)?;
            done += samples.count() as usize;
            observer.advanced(done, total);
            Ok(samples)
        };
        let draw = |stage: Stage, range: Range<u32>| -> Result<Samples, PipelineError> {
            let end_of = |start: u32| start.saturating_add(step).min(range.end);
            let mut all = drawn(stage, range.start..end_of(range.start))?;
            while range.start + all.count() < range.end {
                let start = range.start + all.count();
                all.append(&drawn(stage, start..end_of(start))?)?;
            }
            Ok(all)
        };
        let uncertified = uncertified::<PipelineError>(&asked.identity);
        let query = asked.query(certifier.retriever());
        let answered = certifier.answer(&query, draw, &uncertified)?;
        let plain = match gallery.plain() {
            Some(clean) => nearest_plain(clean, &smoother.clean(&picture)?, &asked.excluded),
            None => Ok(None),
        };
        let plain = plain.map_err(&uncertified)?.map(|found| found.row);
        asked.told(gallery, answered, plain).map_err(uncertified)
    }
}

/// Answers from one pass in double precision.
fn without_noise(
    encoder: &Encoder,
    gallery: &Gallery,
    asked: &Asked,
    bounded: &LipschitzBounded,
    pixels: &[f32],
) -> Result<Answer, PipelineError> {
    let certifier = PlainCertifier::new(bounded, gallery.gallery(), gallery.largest_norm()?);
    let query = asked.query(Retriever::Plain);
    let found = certifier.answer_picture(&query, &encoder.embedder, (&asked.identity, pixels))?;
    // What the encoder without noise retrieves is the answer itself.
    asked.told(gallery, found.answered, None).map_err(uncertified::<PipelineError>(&asked.identity))
}
