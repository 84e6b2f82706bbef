//! Pictures in, a gallery directory out.

use std::num::NonZeroUsize;
use std::path::Path;

use retrievalguard::gallery::{Gallery, Metric};
use retrievalguard::noise::Stage;
use retrievalguard::storage::atomic::write;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Journal, Opened};
use retrievalguard::storage::manifest::{Engine, GalleryDirectory, GalleryManifest, Provenance, SeedRecord};
use retrievalguard::{Embedder, Excess, Picture, Seed, Sigma, Smoother};
use serde_json::json;

use super::{
    CHECK_FILE, Entry, MODEL_CONFIG_FILE, Observer, PipelineError, Run, data_set_digest, input_values, replay,
};
use crate::dataset::{BrokenPictures, Loader, PictureSource, Record};
use crate::engine::OnnxEmbedder;

/// Everything that decides what a gallery is, and how the work is spread.
pub struct IndexRequest<'a> {
    /// The pictures with their labels.
    pub records: &'a [Record],
    /// The encoder.
    pub embedder: &'a OnnxEmbedder,
    /// Noise level.
    pub sigma: Sigma,
    /// Noisy copies averaged per picture; none for the embedding of the clean picture.
    pub samples: u32,
    /// Root of the noise.
    pub seed: Seed,
    /// How vectors will be compared.
    pub metric: Metric,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// What happens to broken pictures.
    pub broken: BrokenPictures,
    /// How many threads work; the result does not depend on it.
    pub threads: NonZeroUsize,
    /// Noisy copies that go through the encoder together; the result does not depend on it.
    pub batch: NonZeroUsize,
}

/// What an index run made.
#[derive(Debug)]
pub struct IndexReport {
    /// The gallery's manifest.
    pub manifest: GalleryManifest,
    /// Broken pictures that were left out: identity and reason.
    pub skipped: Vec<(String, String)>,
    /// Pictures that an earlier, interrupted run had done already.
    pub resumed: usize,
}

/// Embeds every picture and writes the gallery directory.
pub fn index(
    request: &IndexRequest<'_>,
    directory: &Path,
    observer: &dyn Observer,
) -> Result<IndexReport, PipelineError> {
    let embedder = request.embedder;
    let report = embedder.report();
    let data_set = data_set_digest(request.records);
    let description = json!({
        "command": "index",
        "tool": env!("CARGO_PKG_VERSION"),
        "sigma": request.sigma,
        "samples": request.samples,
        "seed": request.seed,
        "metric": request.metric,
        "project": request.excess == Excess::Project,
        "model": embedder.facts().hash,
        "contract": embedder.model_config().hash(),
        "engine": report.to_string(),
        "encoder_check": embedder.check(),
        "data_set": data_set,
    });
    std::fs::create_dir_all(directory)
        .map_err(|error| retrievalguard::storage::atomic::WriteError::new(directory, error))?;
    // Said before the work: a gallery with acknowledged writes is not replaced.
    GalleryDirectory::check_replaceable(directory)?;
    let path = directory.join("index.journal");
    let Opened { journal, records, .. } =
        Journal::open_or_create(&path, Digest::of_json(&description), &description)?;
    let total = request.records.len();
    let mut entries: Vec<Option<Entry<String>>> = (0..total).map(|_| None).collect();
    let resumed = replay(&records, &path, request.broken, &mut entries)?;
    let todo = (0..total).filter(|&position| entries[position].is_none()).collect();

    let loader = Loader::new(request.records, embedder.model_config().preparation(), request.broken);
    let smoother =
        Smoother::new(embedder, request.sigma, request.seed).batch(request.batch).excess(request.excess);
    let run = Run::new(journal, todo, total, observer);
    let journal = run.finish(request.threads, |position| {
        let entry = match (loader.load(position), request.broken) {
            (Ok(loaded), _) => {
                let identity = &loaded.record.identity;
                let pixels = input_values(embedder.model_config(), identity, loaded.picture)?;
                let picture = Picture { identity, pixels: &pixels };
                let vector: Vec<f32> = if request.samples == 0 {
                    smoother.clean(&picture)?
                } else {
                    let smoothed = smoother.mean(&picture, Stage::Gallery, 0..request.samples)?;
                    smoothed.mean.iter().map(|&value| value as f32).collect()
                };
                // Hexadecimal digits of the f32 bits: a vector comes back as it was.
                let bits: String = vector.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
                Entry::Done { position, result: bits }
            }
            (Err(error), BrokenPictures::Skip) => Entry::Skipped { position, reason: error.to_string() },
            (Err(error), BrokenPictures::Fatal) => return Err(error.into()),
        };
        Ok(entry.line())
    })?;
    drop(journal);
    // What was written is what is read: the gallery is built from the journal alone.
    let Opened { journal, records, .. } =
        Journal::open_or_create(&path, Digest::of_json(&description), &description)?;
    replay(&records, &path, request.broken, &mut entries)?;

    let dimension = embedder.dimension();
    let (mut vectors, mut identities, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let (mut paths, mut skipped) = (Vec::new(), Vec::new());
    for (record, entry) in request.records.iter().zip(entries) {
        match entry {
            Some(Entry::Done { result: bits, .. }) => {
                let values: Option<Vec<f32>> = (0..dimension)
                    .map(|place| bits.get(8 * place..8 * place + 8))
                    .map(|digits| u32::from_str_radix(digits?, 16).ok().map(f32::from_bits))
                    .collect();
                let wrong =
                    || PipelineError::Record { path: path.display().to_string(), record: identities.len() };
                vectors.extend(values.ok_or_else(wrong)?);
                identities.push(record.identity.clone());
                labels.push(record.label.as_str());
                paths.push(match &record.source {
                    PictureSource::File(path) => Some(path.display().to_string()),
                    PictureSource::Grey { .. } => None,
                });
            }
            Some(Entry::Skipped { reason, .. }) => skipped.push((record.identity.clone(), reason)),
            None => return Err(PipelineError::Stopped { done: identities.len(), total }),
        }
    }
    if identities.is_empty() {
        return Err(PipelineError::NothingLeft { skipped: skipped.len() });
    }
    let gallery = Gallery::new(vectors, dimension, identities, &labels, request.metric)?;
    let provenance = Provenance {
        sigma: (request.samples > 0).then_some(request.sigma),
        samples: Some(request.samples),
        seed: (request.samples > 0).then_some(SeedRecord::Fixed(request.seed)),
        norm_bound: embedder.norm_bound(),
        model: embedder.facts().hash.parse().ok(),
        contract: embedder.model_config().hash().parse().ok(),
        engine: Some(Engine { name: report.engine.to_string(), version: report.version.clone() }),
        data_set: Some(data_set),
    };
    // Kept so that a later mismatch can say what differs; the manifest holds its digest.
    write(&directory.join(MODEL_CONFIG_FILE), embedder.model_config().to_toml().as_bytes())?;
    let check = serde_json::to_string_pretty(embedder.check()).expect("a check is words");
    write(&directory.join(CHECK_FILE), format!("{check}\n").as_bytes())?;
    let manifest = GalleryDirectory::write(directory, &gallery, &paths, provenance)?;
    journal.remove()?;
    Ok(IndexReport { manifest, skipped, resumed })
}
