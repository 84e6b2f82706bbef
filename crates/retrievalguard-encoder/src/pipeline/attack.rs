//! Certified queries in, what attacks on them have shown out.

use std::num::NonZeroUsize;
use std::path::Path;

use retrievalguard::attack::{Attacked, Attacker, Effort, FACTORS, InputGradients, Judging};
use retrievalguard::certificate::{CertificateName, Retriever};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::Journal;
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard::{Embedder, Excess, Samples, Seed, Sigma};
use serde_json::json;

use super::{EncoderInputs, PipelineError, ResumableRun, relevance_of};
use crate::dataset::{BrokenPictures, Record, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::run::EncoderDescription;
use crate::work::Observer;

/// What is claimed of one query.
#[derive(Clone, Debug)]
pub struct AttackTarget {
    /// Its certified radius.
    pub radius: f64,
    /// Rows of the gallery that it does not see.
    pub excluded: Vec<usize>,
}

/// Everything that decides the results of a run of attacks, and how the work is spread.
pub struct AttackRequest<'a> {
    /// The queries with their true labels.
    pub queries: &'a RecordSet,
    /// What is claimed of each.
    pub targets: &'a [AttackTarget],
    /// The certificate that gave the radii.
    pub certificate: CertificateName,
    /// The encoder.
    pub embedder: &'a OnnxEmbedder,
    /// Its gradients.
    pub gradients: &'a dyn InputGradients,
    /// The gallery that is searched; the plain encoder searches the embeddings of its clean pictures, or the smoothed
    /// vectors if it has none.
    pub gallery: &'a GalleryDirectory,
    /// Noise level; none if the certificates need no noise.
    pub sigma: Option<Sigma>,
    /// Root of the noise that is attacked with; the judge has its own.
    pub seed: Seed,
    /// How hard the attack tries.
    pub effort: Effort,
    /// How its results are judged; without noise they are seen.
    pub judging: Option<Judging>,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// How many threads work; the result does not depend on it.
    pub threads: NonZeroUsize,
}

/// What a run of attacks has shown.
#[derive(Debug)]
pub struct AttackReport {
    /// One result per query, in the order of the queries.
    pub results: Vec<Attacked>,
    /// Queries that an earlier, interrupted run had done already.
    pub resumed: usize,
}

/// The root of the judge's noise in a run that was begun before, so that it goes on as it began.
///
/// A run that has not begun has none: its seed is drawn then, after everything that the attack does was fixed.
pub fn begun_judge_seed(journal_path: &Path) -> Result<Option<Seed>, PipelineError> {
    let Some(contents) = Journal::read(journal_path)? else { return Ok(None) };
    let seed = contents.description.pointer("/judging/seed").cloned();
    Ok(seed.and_then(|seed| serde_json::from_value(seed).ok()))
}

/// Attacks every query; `journal` is where progress is kept and `journal` alone decides what is left to do.
///
/// # Panics
///
/// If there are not as many targets as queries.
pub fn attack(
    request: &AttackRequest<'_>,
    journal: &Path,
    observer: &dyn Observer,
) -> Result<AttackReport, PipelineError> {
    assert_eq!(request.targets.len(), request.queries.len(), "a target for every query");
    let embedder = request.embedder;
    for count in request.judging.iter().flat_map(|judging| [judging.pilot, judging.samples]) {
        Samples::check_memory(count.get(), embedder.dimension())?;
    }
    let records = request.queries;
    let claims: Vec<_> = request.targets.iter().map(|target| (target.radius, &target.excluded)).collect();
    let description = EncoderDescription::new(embedder).beside(json!({
        "command": "attack",
        "tool": env!("CARGO_PKG_VERSION"),
        "certificate": request.certificate,
        "mode": request.gradients.mode(),
        "factors": FACTORS,
        "effort": request.effort,
        "judging": request.judging,
        "sigma": request.sigma,
        "seed": request.seed,
        "project": request.excess == Excess::Project,
        "queries": records.digest(),
        "claims": Digest::of_json(&json!(claims)),
        "gallery": request.gallery.digest(),
        "plain_gallery": if request.gallery.plain().is_some() { "clean" } else { "stored" },
    }));
    let (pictures, broken) = (records.len(), BrokenPictures::Fatal);
    let run = ResumableRun { journal, description: &description, pictures, broken }.open()?;
    let gallery = &request.gallery.gallery;
    let encoder: (&dyn Embedder, _) = (embedder, request.gradients);
    let mut attacker = match request.sigma.zip(request.judging) {
        Some((sigma, judging)) => {
            Attacker::new(encoder, gallery, sigma, request.seed, request.effort, judging)
                .excess(request.excess)
                .retriever(Retriever::of(request.certificate))
        }
        None => Attacker::without_noise(encoder, gallery, request.seed, request.effort),
    };
    if let Some(plain) = request.gallery.plain().filter(|_| request.sigma.is_some()) {
        attacker = attacker.plain_gallery(plain);
    }
    let inputs = EncoderInputs { records, config: embedder.model_config(), broken };
    let finished = run.finish(request.threads, observer, |position| {
        inputs.with(position, |Record { identity, label, .. }, picture| {
            let AttackTarget { radius, excluded } = &request.targets[position];
            let relevance = relevance_of(gallery.label_named(label), excluded.clone());
            let attacked = attacker.query(picture, &relevance, *radius);
            attacked
                .map_err(|source| PipelineError::Attack { query: identity.clone(), source: Box::new(source) })
        })
    })?;
    let resumed = finished.resumed;
    Ok(AttackReport { results: finished.results(), resumed })
}
