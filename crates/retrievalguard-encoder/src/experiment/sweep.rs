//! Runs an experiment: galleries, samples and verdicts, each made once.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::{CertificateName, Certifier, SampledQuery, Verdict};
use retrievalguard::gallery::Metric;
use retrievalguard::noise::Stage;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::{Engine, GalleryDirectory};
use retrievalguard::storage::sample_cache::{CacheError, SampleCache, SampleKey};
use retrievalguard::{Alpha, Embedder, Excess, Picture, SampleCount, Samples, Sigma, Smoother};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::config::{EncoderEntry, ExperimentConfig, Sweep};
use super::results::{Results, Setting, TidyRow};
use crate::check::Passes;
use crate::dataset::{BrokenPictures, Record, RecordSet};
use crate::engine::{EngineError, EngineOptions, OnnxEmbedder};
use crate::model_config::{ModelConfig, ModelConfigError};
use crate::pipeline::{
    EncoderInputs, IndexRequest, PipelineError, ResumableRun, index, relevance_of, uncertified,
};
use crate::run::EncoderDescription;
use crate::work::Observer;

/// Ends of the first blocks of a picture's samples: the sizes that are asked for most often.
const ENDS: [u32; 5] = [100, 300, 1_000, 3_000, 10_000];

/// Why a sweep ended without results; what was drawn is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// An encoder's model config cannot be used.
    #[error(transparent)]
    ModelConfig(#[from] ModelConfigError),
    /// An encoder cannot be run.
    #[error(transparent)]
    Encoder(#[from] EngineError),
    /// Drawing or certifying failed, or was told to stop.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

/// The pictures of a sweep.
#[derive(Clone, Debug)]
pub struct SweepData {
    /// What is searched.
    pub gallery: RecordSet,
    /// What is searched for.
    pub queries: RecordSet,
    /// Whether the queries are pictures of the gallery, which must not find themselves.
    pub leave_one_out: bool,
}

/// Where and with what a sweep is run; nothing here changes its results.
#[derive(Clone, Copy, Debug)]
pub struct SweepContext<'a> {
    /// Folder for galleries, samples and journals, which later sweeps use again.
    pub folder: &'a Path,
    /// What runs the encoders.
    pub engine: &'a EngineOptions,
    /// How many threads work.
    pub threads: NonZeroUsize,
    /// Noisy copies that go through the encoder together.
    pub batch: NonZeroUsize,
}

/// Verdicts of one query at one encoder and noise level.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer(Vec<(u32, Alpha, CertificateName, Verdict)>);

/// One part of a longer run, as its observer sees it.
struct SubProgress<'a> {
    whole: &'a dyn Observer,
    before: usize,
    total: usize,
}

impl Observer for SubProgress<'_> {
    fn advanced(&self, done: usize, _: usize) {
        self.whole.advanced(self.before + done, self.total);
    }

    fn stop(&self) -> bool {
        self.whole.stop()
    }
}

/// Runs every setting of the experiment; encoders are looked for in `encoders`.
pub fn sweep(
    config: &ExperimentConfig,
    encoders: &Path,
    data: &SweepData,
    context: &SweepContext<'_>,
    observer: &dyn Observer,
) -> Result<Results, SweepError> {
    let Some(sweep) = config.sweep() else { return Ok(Results::default()) };
    let points: Vec<(Sigma, &EncoderEntry)> = sweep
        .sigma
        .iter()
        .flat_map(|&sigma| config.encoders_at(sigma).map(move |encoder| (sigma, encoder)))
        .collect();
    let each = data.gallery.len() + data.queries.len();
    let total = points.len() * each;
    let mut results = Results::default();
    for (place, (sigma, encoder)) in points.into_iter().enumerate() {
        let model = encoders.join(&encoder.model);
        let model_config = ModelConfig::for_model(&model)?;
        let embedder = OnnxEmbedder::open(&model, model_config, context.engine)?;
        let point = SweepPoint { sweep, sigma, embedder: &embedder, data, context };
        let gallery = point.gallery(&SubProgress { whole: observer, before: place * each, total })?;
        let before = place * each + data.gallery.len();
        let answers = point.answers(&gallery, &SubProgress { whole: observer, before, total })?;
        point.file(&encoder.name, &answers, &mut results);
    }
    Ok(results)
}

/// One encoder at one noise level.
struct SweepPoint<'a> {
    sweep: &'a Sweep,
    sigma: Sigma,
    embedder: &'a OnnxEmbedder,
    data: &'a SweepData,
    context: &'a SweepContext<'a>,
}

impl SweepPoint<'_> {
    /// Where the files of a description are kept.
    fn storage_path(&self, kind: &str, description: &serde_json::Value) -> PathBuf {
        let name = Digest::of_json(description).to_string();
        self.context.folder.join(kind).join(&name[..16])
    }

    /// The gallery as it is kept, made first if it is not there.
    fn gallery(&self, observer: &dyn Observer) -> Result<GalleryDirectory, SweepError> {
        let description = EncoderDescription::new(self.embedder).beside(json!({
            "sigma": self.sigma,
            "samples": self.sweep.gallery_samples,
            "seed": self.sweep.seed,
            "data_set": self.data.gallery.digest(),
        }));
        let folder = self.storage_path("galleries", &description);
        let request = IndexRequest {
            records: &self.data.gallery,
            embedder: self.embedder,
            sigma: Some(self.sigma),
            samples: self.sweep.gallery_samples.get(),
            seed: self.sweep.seed,
            metric: Metric::Euclidean,
            views: None,
            excess: Excess::Refuse,
            broken: BrokenPictures::Fatal,
            threads: self.context.threads,
            shards: None,
            batch: self.context.batch,
        };
        index(&request, &folder, observer)?;
        Ok(GalleryDirectory::read(&folder).map_err(PipelineError::from)?)
    }

    /// Verdicts of every query, in their order.
    fn answers(
        &self,
        gallery: &GalleryDirectory,
        observer: &dyn Observer,
    ) -> Result<Vec<Answer>, SweepError> {
        let queries = &self.data.queries;
        let description = EncoderDescription::new(self.embedder).beside(json!({
            "command": "experiment",
            "tool": env!("CARGO_PKG_VERSION"),
            "sigma": self.sigma,
            "samples": self.sweep.samples,
            "alpha": self.sweep.alpha,
            "certificates": self.sweep.certificates,
            "pilot": self.sweep.pilot,
            "seed": self.sweep.seed,
            "leave_one_out": self.data.leave_one_out,
            "queries": queries.digest(),
            "gallery": gallery.digest(),
        }));
        for count in self.sweep.samples.iter().chain([&self.sweep.pilot]) {
            Samples::check_memory(count.get(), self.embedder.dimension()).map_err(PipelineError::from)?;
        }
        let path = self.storage_path("journals", &description).with_extension("journal");
        let broken = BrokenPictures::Fatal;
        let run = ResumableRun { journal: &path, description: &description, pictures: queries.len(), broken }
            .open()?;
        let inputs = EncoderInputs { records: queries, config: self.embedder.model_config(), broken };
        let finished = run.finish(self.context.threads, observer, |position| {
            inputs.with(position, |record, picture| self.query(record, picture, gallery))
        })?;
        Ok(finished.results())
    }

    /// Every certificate at every sample size and failure probability, from one set of samples.
    fn query(
        &self,
        record: &Record,
        picture: &Picture<'_>,
        stored: &GalleryDirectory,
    ) -> Result<Answer, PipelineError> {
        let gallery = &stored.gallery;
        let pilot = self.samples(picture, Stage::Pilot, self.sweep.pilot)?;
        let most = self.sweep.samples.iter().copied().max_by_key(|count| count.get());
        let most = most.unwrap_or(self.sweep.pilot);
        let drawn = self.samples(picture, Stage::Certify, most)?;
        let label = gallery.label_named(&record.label);
        let own = if self.data.leave_one_out { gallery.rows_of(&record.identity) } else { Vec::new() };
        let relevance = relevance_of(label, own);
        let refused = uncertified::<PipelineError>(&record.identity);
        let mut answers = Vec::new();
        for count in &self.sweep.samples {
            let certifying = drawn.slice(0..count.get()).unwrap_or_else(|| drawn.clone());
            let query = SampledQuery { pilot: pilot.clone(), certifying };
            for &alpha in &self.sweep.alpha {
                let certifier =
                    Certifier::new(gallery, self.sigma, alpha).gallery_samples(self.sweep.gallery_samples);
                for &name in &self.sweep.certificates {
                    let outcome = certifier.certify(name, &query, &relevance).map_err(&refused)?;
                    answers.push((count.get(), alpha, name, outcome.verdict));
                }
            }
        }
        Ok(Answer(answers))
    }

    /// The first so many samples of a picture: kept ones where there are any, drawn and kept where not.
    fn samples(
        &self,
        picture: &Picture<'_>,
        stage: Stage,
        count: SampleCount,
    ) -> Result<Samples, PipelineError> {
        let cache = SampleCache::new(&self.context.folder.join("samples"));
        let smoother = Smoother::new(self.embedder, self.sigma, self.sweep.seed).batch(self.context.batch);
        let mut all: Option<Samples> = None;
        for range in blocks(count.get()) {
            let key = self.key(picture.identity, pixels_digest(picture.pixels), stage, range.clone());
            let block = match key.as_ref().map(|key| cache.read(key)).transpose()?.flatten() {
                Some(block) => block,
                None => {
                    let block = smoother.samples(picture, stage, range)?;
                    if let Some(key) = &key {
                        cache.write(key, &block)?;
                    }
                    block
                }
            };
            match &mut all {
                Some(all) => all.append(&block).map_err(|source| {
                    let path = self.context.folder.join("samples");
                    PipelineError::from(CacheError::Samples { path, source })
                })?,
                None => all = Some(block),
            }
        }
        // A count is never zero, so there is a block.
        Ok(all.expect("a count is at least 1"))
    }

    /// What the samples of a picture depend on; none if the model's digest is not one.
    fn key(&self, identity: &str, pixels: Digest, stage: Stage, range: Range<u32>) -> Option<SampleKey> {
        let report = self.embedder.report();
        Some(SampleKey {
            model: self.embedder.facts().hash.parse().ok()?,
            contract: self.embedder.model_config().hash().parse().ok()?,
            engine: Engine {
                // Samples of an encoder that must run one by one are not those it gave in batches.
                name: match self.embedder.check().passes {
                    Passes::Together => format!("{} ({})", report.engine, report.provider),
                    Passes::OneByOne => format!("{} ({}), one by one", report.engine, report.provider),
                },
                version: report.version.clone(),
            },
            seed: self.sweep.seed,
            // The same name may stand for another picture in another data set; the noise goes by the name alone.
            identity: format!("{identity} {pixels}"),
            stage,
            sigma: self.sigma,
            range,
        })
    }

    /// Puts the answers into the results, setting by setting.
    fn file(&self, encoder: &str, answers: &[Answer], results: &mut Results) {
        let settings = answers.first().map_or(0, |answer| answer.0.len());
        for place in 0..settings {
            let (samples, alpha, certificate, _) = answers[0].0[place];
            results.settings.push(Setting {
                encoder: encoder.to_owned(),
                dimension: self.embedder.dimension(),
                sigma: self.sigma,
                samples,
                alpha,
                certificate,
            });
            let setting = results.settings.len() - 1;
            for (record, answer) in self.data.queries.iter().zip(answers) {
                let verdict = answer.0[place].3;
                results.rows.push(TidyRow { setting, query: record.identity.clone(), verdict });
            }
        }
    }
}

/// Digest of a prepared picture.
fn pixels_digest(pixels: &[f32]) -> Digest {
    let bytes: Vec<u8> = pixels.iter().flat_map(|value| value.to_le_bytes()).collect();
    Digest::of_bytes(&bytes)
}

/// Blocks in which samples are kept: up to each of [`ENDS`], then ten thousand each, the last cut short.
///
/// A run with more samples finds the blocks of one with fewer, if that ended at the end of a block.
fn blocks(count: u32) -> Vec<Range<u32>> {
    let last = ENDS[ENDS.len() - 1];
    let later = (1..).map(|block: u32| last.saturating_mul(block.saturating_add(1)));
    let mut blocks = Vec::new();
    let mut start = 0;
    for end in ENDS.into_iter().chain(later) {
        if start >= count {
            break;
        }
        blocks.push(start..end.min(count));
        start = end;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_every_sample_once_and_do_not_depend_on_later_ones() {
        assert_eq!(blocks(200), [0..100, 100..200]);
        assert_eq!(blocks(1_000), [0..100, 100..300, 300..1_000]);
        assert_eq!(blocks(25_000)[4..], [3_000..10_000, 10_000..20_000, 20_000..25_000]);
        assert_eq!(blocks(100_000)[..6], blocks(20_000));
        for count in [1, 999, 1_001, 99_999, 100_000, u32::MAX] {
            let blocks = blocks(count);
            assert_eq!(blocks.first().map(|block| block.start), Some(0));
            assert_eq!(blocks.last().map(|block| block.end), Some(count));
            assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start), "{count}");
        }
    }
}
