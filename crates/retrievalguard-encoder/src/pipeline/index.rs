//! Pictures in, a gallery directory out.

use std::num::NonZeroUsize;
use std::path::Path;

use retrievalguard::gallery::{Gallery, Metric};
use retrievalguard::noise::Stage;
use retrievalguard::storage::atomic::write;
use retrievalguard::storage::manifest::{Engine, Provenance, SeedRecord, StorageError};
use retrievalguard::storage::shards::ShardsError;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::views::ViewSet;
use retrievalguard::{Embedder, Excess, Picture, Seed, Sigma, Smoother};
use serde_json::json;

use super::resumable::FinishedRun;
use super::{CHECK_FILE, EncoderInputs, MODEL_CONFIG_FILE, PictureOutcome, PipelineError, ResumableRun};
use crate::dataset::{BrokenPictures, PictureSource, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::run::EncoderDescription;
use crate::work::Observer;

/// Everything that decides what a gallery is, and how the work is spread.
pub struct IndexRequest<'a> {
    /// The pictures with their labels.
    pub records: &'a RecordSet,
    /// The encoder.
    pub embedder: &'a OnnxEmbedder,
    /// Noise level; none for embeddings in double precision of an encoder that has a bound.
    pub sigma: Option<Sigma>,
    /// Noisy copies averaged per picture; none for the embedding of the clean picture. Without noise there are none.
    pub samples: u32,
    /// Root of the noise.
    pub seed: Seed,
    /// How vectors will be compared.
    pub metric: Metric,
    /// The views that every item gets; without them an item is the picture as it is.
    pub views: Option<&'a ViewSet>,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// What happens to broken pictures.
    pub broken: BrokenPictures,
    /// How many threads work; the result does not depend on it.
    pub threads: NonZeroUsize,
    /// Noisy copies that go through the encoder together; the result does not depend on it.
    pub batch: NonZeroUsize,
    /// How many shards the gallery is written in; none for a gallery that is read into memory.
    pub shards: Option<NonZeroUsize>,
}

/// What an index run made.
#[derive(Debug)]
pub struct IndexReport {
    /// Number of items in the gallery.
    pub items: usize,
    /// Length of a vector.
    pub dimension: usize,
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
    let IndexRequest { records, embedder, broken, .. } = *request;
    if request.sigma.is_none() {
        embedder.lipschitz()?;
    }
    let copies = if request.sigma.is_some() { request.samples } else { 0 };
    let data_set = records.digest();
    let views = request.views.map(|set| set.for_shape(embedder.input_shape())).transpose()?;
    let mut decides = json!({
        "command": "index",
        "tool": env!("CARGO_PKG_VERSION"),
        "sigma": request.sigma,
        "samples": copies,
        "seed": request.seed,
        "metric": request.metric,
        "project": request.excess == Excess::Project,
        "data_set": data_set,
    });
    if let Some(set) = request.views {
        decides["views"] = json!(set);
    }
    let description = EncoderDescription::new(embedder).beside(decides);
    std::fs::create_dir_all(directory)
        .map_err(|error| retrievalguard::storage::atomic::WriteError::new(directory, error))?;
    // Said before the work: a gallery with acknowledged writes is not replaced, nor one of the other kind.
    StoredGallery::check_replaceable(directory, request.shards.is_some())?;
    if let (Some(set), Some(_)) = (request.views, request.shards) {
        let refused = ShardsError::Views { path: directory.to_owned(), set: set.name().to_owned() };
        return Err(StorageError::from(refused).into());
    }
    let path = directory.join("index.journal");
    let run =
        ResumableRun { journal: &path, description: &description, pictures: records.len(), broken }.open()?;
    let inputs = EncoderInputs { records, config: embedder.model_config(), broken };
    let smoother = request.sigma.map(|sigma| {
        Smoother::new(embedder, sigma, request.seed).batch(request.batch).excess(request.excess)
    });
    let finished = run.finish(request.threads, observer, |position| {
        inputs.with(position, |_, picture| {
            let embed = |picture: &Picture<'_>| -> Result<Vec<f32>, PipelineError> {
                let Some(smoother) = &smoother else {
                    let embedding = embedder.embed_double(picture.pixels)?;
                    return Ok(embedding.iter().map(|&value| value as f32).collect());
                };
                if copies == 0 {
                    return Ok(smoother.clean(picture)?);
                }
                let smoothed = smoother.mean(picture, Stage::Gallery, 0..copies)?;
                Ok(smoothed.mean.iter().map(|&value| value as f32).collect())
            };
            let mut vector = Vec::new();
            match &views {
                None => vector = embed(picture)?,
                Some(views) => {
                    for pixels in views.of(picture.pixels) {
                        vector.extend(embed(&Picture { pixels: &pixels, ..*picture })?);
                    }
                }
            }
            // Hexadecimal digits of the f32 bits: a vector comes back as it was.
            Ok(vector.iter().map(|value| format!("{:08x}", value.to_bits())).collect::<String>())
        })
    })?;
    let FinishedRun { outcomes, resumed, journal } = finished;

    let (dimension, rows) = (embedder.dimension(), request.views.map_or(1, |set| set.views().len()));
    let (mut vectors, mut identities, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let (mut paths, mut skipped) = (Vec::new(), Vec::new());
    for (record, outcome) in records.iter().zip(outcomes) {
        match outcome {
            PictureOutcome::Done(bits) => {
                let values: Option<Vec<f32>> = (0..rows * dimension)
                    .map(|place| bits.get(8 * place..8 * place + 8))
                    .map(|digits| u32::from_str_radix(digits?, 16).ok().map(f32::from_bits))
                    .collect();
                let wrong = || PipelineError::Record {
                    path: path.display().to_string(),
                    record: identities.len() / rows,
                };
                vectors.extend(values.ok_or_else(wrong)?);
                let path = match &record.source {
                    PictureSource::File(path) => Some(path.display().to_string()),
                    PictureSource::Grey { .. } => None,
                };
                for _ in 0..rows {
                    identities.push(record.identity.clone());
                    labels.push(record.label.as_str());
                    paths.push(path.clone());
                }
            }
            PictureOutcome::Skipped(reason) => skipped.push((record.identity.clone(), reason)),
        }
    }
    if identities.is_empty() {
        return Err(PipelineError::NothingLeft { skipped: skipped.len() });
    }
    let mut gallery = Gallery::new(vectors, dimension, identities, &labels, request.metric)?;
    if let Some(set) = request.views {
        gallery = gallery.with_views(set.names())?;
    }
    let report = embedder.report();
    let provenance = Provenance {
        sigma: request.sigma.filter(|_| copies > 0),
        samples: Some(copies),
        seed: (copies > 0).then_some(SeedRecord::Fixed(request.seed)),
        norm_bound: embedder.norm_bound(),
        components: embedder.components(),
        model: embedder.facts().hash.parse().ok(),
        contract: embedder.model_config().hash().parse().ok(),
        engine: Some(Engine { name: report.engine.to_string(), version: report.version.clone() }),
        data_set: Some(data_set),
        views: request.views.cloned(),
    };
    // Kept so that a later mismatch can say what differs; the manifest holds its digest.
    write(&directory.join(MODEL_CONFIG_FILE), embedder.model_config().to_toml().as_bytes())?;
    let check = serde_json::to_string_pretty(embedder.check()).expect("a check is words");
    write(&directory.join(CHECK_FILE), format!("{check}\n").as_bytes())?;
    StoredGallery::write(directory, &gallery, &paths, provenance, request.shards)?;
    journal.remove()?;
    Ok(IndexReport { items: gallery.item_count(), dimension, skipped, resumed })
}
