//! The training run: pictures in, an encoder out, stopped and resumed at any step.
//!
//! Everything random is a function of the seed and of the position in the run (epoch, batch, slot), and a checkpoint holds
//! everything else. A run that was interrupted therefore ends with the weights of one that was not.

mod error;
mod folder;
mod held_out;
mod learner;
mod report;

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use burn::tensor::Device;
use retrievalguard::Excess;
use retrievalguard::storage::digest::Digest;
use retrievalguard_encoder::dataset::{BrokenPictures, Record, RecordSet, data_set_digest};
use retrievalguard_encoder::engine::{EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::recall::{Recall, RecallError, Smoothing, recall_at_1};
use retrievalguard_encoder::work::Observer;
use serde::Serialize;

pub use self::error::TrainError;
pub use self::folder::{Inputs, RunFolder};
use self::learner::Learner;
pub use self::report::{EvaluationReport, StepReport, TrainObserver, TrainReport};
use crate::augment::Augmenter;
use crate::backend::Backend;
use crate::batches::{BatchPlan, Classes};
use crate::checkpoint::{Checkpoint, TrainingPosition};
use crate::export::{ExportError, export, export_features, model_config};
use crate::loading::BatchLoader;
use crate::network::{Network, Statistics};
use crate::picture_cache::PictureCache;
use crate::recipe::Recipe;
use crate::run_log::RunLog;
use crate::tensorboard::EventFile;
use crate::weights::{Head, Weights};

/// Batches that are ready before they are needed.
const AHEAD: usize = 3;

/// Name of an evaluation in the log.
const EVALUATION: &str = "evaluation";

/// Steps from one line of the log to the next.
const LOG_EVERY: u64 = 10;

/// What is to be trained, on what.
#[derive(Clone, Debug)]
pub struct TrainRequest<'a> {
    /// How.
    pub recipe: &'a Recipe,
    /// The pictures.
    pub records: &'a [Record],
    /// Pictures of other classes to measure recall on; some classes of `records` if there are none.
    pub held_out: Option<&'a [Record]>,
    /// Initial weights of the backbone.
    pub weights: Option<&'a Path>,
    /// What computes.
    pub backend: Backend,
    /// What runs the exported encoder when recall is measured.
    pub engine: &'a EngineOptions,
    /// Threads that measure recall.
    pub threads: NonZeroUsize,
    /// Noisy copies per call of the encoder when recall is measured.
    pub batch: NonZeroUsize,
    /// Bytes of decoded pictures to keep in memory.
    pub cache: u64,
}

/// Whether a run begins or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In a folder without a run.
    Fresh,
    /// From the folder's checkpoint.
    Resume,
}

/// Trains an encoder, or goes on with it, and exports it into the folder.
pub fn train(
    request: &TrainRequest<'_>,
    folder: &RunFolder,
    start: Start,
    observer: &dyn TrainObserver,
) -> Result<TrainReport, TrainError> {
    let recipe = request.recipe;
    let device = request.backend.device()?.autodiff();
    if start == Start::Fresh {
        folder.check_free()?;
    }
    let (records, held_out) = held_out::divide(recipe, request.records, request.held_out)?;
    held_out::tell_few(recipe, &held_out, observer);
    let classes = Classes::new(&records);
    let batch = &recipe.batch;
    let seed = recipe.seed();
    let plan = BatchPlan::new(&classes, batch.classes, batch.pictures, seed)?;
    let model_config =
        model_config(&recipe.network_config(), recipe.preparation()).map_err(ExportError::from)?;
    let augmenter = Augmenter::new(model_config, recipe.augmentation())?;
    let inputs = Inputs {
        pictures: data_set_digest(&records),
        weights: request.weights.map(digest_of_weights).transpose()?,
        backend: request.backend,
    };
    let _lock = folder.take(start)?;
    let (learner, position) = match start {
        Start::Fresh => begin(request, folder, &inputs, &device, observer)?,
        Start::Resume => resume(recipe, folder, &inputs, &device)?,
    };
    let mut run = Run {
        request,
        folder,
        observer,
        loader: Arc::new(BatchLoader {
            pictures: PictureCache::new(records, request.cache),
            classes,
            plan,
            augmenter,
            sigma: recipe.sigma(),
            seed,
        }),
        held_out: &held_out.into(),
        learner,
        position,
        log: RunLog::resume(&folder.log(), position.step)?,
        events: EventFile::create(
            &folder.tensorboard(),
            now(),
            (position.step > 0).then_some(position.step),
        )?,
        clock: Clock::new(batch.classes * batch.pictures),
        untrained: folder.untrained_recall(),
        evaluation: None,
    };
    run.finish()?;
    Ok(TrainReport { steps: run.position.step, evaluation: run.evaluation })
}

fn digest_of_weights(file: &Path) -> Result<Digest, TrainError> {
    Digest::of_file(file).map_err(|source| TrainError::WeightsFile { file: file.to_owned(), source })
}

fn begin(
    request: &TrainRequest<'_>,
    folder: &RunFolder,
    inputs: &Inputs,
    device: &Device,
    observer: &dyn TrainObserver,
) -> Result<(Learner, TrainingPosition), TrainError> {
    let recipe = request.recipe;
    let seed = recipe.seed();
    let mut network = Network::new(&recipe.network_config(), seed, device)?;
    if let Some(path) = request.weights {
        let weights = Weights::read(path)?;
        // A network of ours brings its head; one that was trained for something else does not.
        let head = if weights.config() == Some(network.config()) { Head::Required } else { Head::Fresh };
        let (loaded, report) = network.load(&weights, head)?;
        network = loaded;
        observer.note(&format!(
            "{} tensors of `{}` were loaded, {} were not needed",
            report.loaded,
            path.display(),
            report.ignored.len()
        ));
    }
    if request.weights.is_none() && recipe.network.batch_norm == Statistics::Frozen {
        observer.note(
            "batch normalisation is frozen though there are no --weights; network.batch_norm=batch learns it",
        );
    }
    let position = TrainingPosition { epoch: 0, batch: 0, step: 0, run: inputs.run(recipe) };
    let learner = Learner::new(recipe, network, device);
    folder.begin(recipe, inputs, &learner.checkpoint(position)?)?;
    Ok((learner, position))
}

fn resume(
    recipe: &Recipe,
    folder: &RunFolder,
    inputs: &Inputs,
    device: &Device,
) -> Result<(Learner, TrainingPosition), TrainError> {
    let inputs = folder.check_inputs(inputs)?;
    let checkpoint = Checkpoint::read(&folder.checkpoint())?;
    if checkpoint.position.run != inputs.run(recipe) {
        return Err(TrainError::ForeignCheckpoint { file: folder.checkpoint() });
    }
    Ok((Learner::resume(recipe, &checkpoint, device)?, checkpoint.position))
}

/// A run between its start and its end.
struct Run<'a> {
    request: &'a TrainRequest<'a>,
    folder: &'a RunFolder,
    observer: &'a dyn TrainObserver,
    loader: Arc<BatchLoader>,
    held_out: &'a RecordSet,
    learner: Learner,
    position: TrainingPosition,
    log: RunLog,
    events: EventFile,
    clock: Clock,
    /// What the backbone could do before the first step.
    untrained: Option<Recall>,
    evaluation: Option<EvaluationReport>,
}

impl Run<'_> {
    /// Makes every step that is left and exports the encoder.
    fn finish(&mut self) -> Result<(), TrainError> {
        let recipe = self.request.recipe;
        // Stopped after the checkpoint of an epoch and before its evaluation, a run makes up for it.
        if self.evaluation_due() && !self.folder.evaluated(self.position.step) {
            self.evaluate()?;
        }
        let per_epoch = self.loader.plan.batches_per_epoch();
        let steps = per_epoch * u64::from(recipe.schedule.epochs);
        for batch in self.loader.prefetch(self.position.step..steps, NonZeroUsize::MIN, AHEAD) {
            if self.observer.stop() {
                self.save()?;
                return Err(TrainError::Stopped { position: self.position });
            }
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    self.save()?;
                    return Err(error.into());
                }
            };
            let outcome = self.learner.step(recipe, batch, self.position)?;
            let report = StepReport {
                epoch: self.position.epoch + 1,
                step: self.position.step + 1,
                steps,
                loss: outcome.loss,
                beta: outcome.beta,
                active: outcome.active,
                learning_rate: recipe.learning_rate(self.position.epoch),
                pictures_per_second: self.clock.stepped(),
            };
            self.position = self.position.next(per_epoch);
            self.observer.stepped(&report);
            if report.step.is_multiple_of(LOG_EVERY) || self.position.batch == 0 {
                self.record_step(&report)?;
            }
            if self.position.batch == 0 {
                self.save()?;
                if self.evaluation_due() {
                    self.evaluate()?;
                }
            }
        }
        self.export()
    }

    /// Whether recall is to be measured before the next step.
    fn evaluation_due(&self) -> bool {
        let Recipe { evaluation, schedule, .. } = self.request.recipe;
        let TrainingPosition { epoch, batch, .. } = self.position;
        let asked = evaluation.every > 0 && !self.held_out.is_empty();
        asked && batch == 0 && (epoch == schedule.epochs || epoch.is_multiple_of(evaluation.every))
    }

    fn record_step(&mut self, report: &StepReport) -> Result<(), TrainError> {
        let numbers = [
            ("train/loss", report.loss),
            ("train/beta", report.beta),
            ("train/active_pairs", report.active),
            ("train/learning_rate", report.learning_rate),
            ("train/pictures_per_second", report.pictures_per_second),
        ];
        self.record("step", report.step, report, &numbers)
    }

    fn record(
        &mut self,
        event: &str,
        step: u64,
        fields: &impl Serialize,
        numbers: &[(&str, f64)],
    ) -> Result<(), TrainError> {
        self.log.append(step, event, fields)?;
        for &(tag, value) in numbers {
            self.events.scalar(tag, step, now(), value as f32)?;
        }
        Ok(self.events.flush()?)
    }

    fn save(&self) -> Result<(), TrainError> {
        Ok(self.learner.checkpoint(self.position)?.write(&self.folder.checkpoint())?)
    }

    /// Writes the encoder as it is now.
    fn export(&self) -> Result<(), TrainError> {
        let network = self.learner.network();
        network.save_safetensors(&self.folder.weights())?;
        export(network, self.request.recipe.preparation(), self.folder.path())?;
        Ok(())
    }

    /// Measures recall of the encoder as it is now; before the first step, that of its backbone, too.
    fn evaluate(&mut self) -> Result<(), TrainError> {
        let paused = Instant::now();
        if self.position.step == 0 {
            self.untrained = Some(self.recall_of_features()?);
        }
        self.export()?;
        let recall = self.recall(&self.folder.encoder())?;
        self.clock.pause(paused.elapsed());
        let report = EvaluationReport {
            epochs: self.position.epoch,
            step: self.position.step,
            sigma: self.request.recipe.evaluation_sigma().get(),
            recall,
            untrained: self.untrained,
        };
        self.evaluation = Some(report);
        self.observer.evaluated(&report);
        let mut numbers =
            vec![("held_out/recall_clean", recall.clean), ("held_out/recall_smoothed", recall.smoothed)];
        if let Some(untrained) = self.untrained {
            // With every evaluation, so that it is a line beside the curve.
            numbers.push(("held_out/untrained_recall_clean", untrained.clean));
            numbers.push(("held_out/untrained_recall_smoothed", untrained.smoothed));
        }
        self.record(EVALUATION, report.step, &report, &numbers)
    }

    /// Recall of the backbone's features as they are, before any head.
    fn recall_of_features(&self) -> Result<Recall, TrainError> {
        let folder = self.folder.untrained();
        let exported = export_features(self.learner.network(), self.request.recipe.preparation(), &folder)?;
        let recall = self.recall(&exported.model);
        fs::remove_dir_all(&folder).map_err(|source| TrainError::Folder { folder, source })?;
        recall
    }

    /// Recall@1 of an exported encoder on the held-out pictures.
    fn recall(&self, model: &Path) -> Result<Recall, TrainError> {
        let recipe = self.request.recipe;
        let embedder = OnnxEmbedder::open(model, ModelConfig::for_model(model)?, self.request.engine)?;
        let smoothing = Smoothing {
            sigma: recipe.evaluation_sigma(),
            samples: recipe.evaluation.samples,
            seed: recipe.seed(),
            excess: Excess::Refuse,
            batch: self.request.batch,
        };
        let stopping = Stopping(self.observer);
        let threads = self.request.threads;
        let recall =
            recall_at_1(&embedder, self.held_out, smoothing, BrokenPictures::Fatal, threads, &stopping);
        let (recall, _) = recall.map_err(|error| match error {
            RecallError::Stopped { .. } => TrainError::Stopped { position: self.position },
            error => TrainError::Recall(error),
        })?;
        Ok(recall)
    }
}

/// Passes on the wish to stop; the progress of an evaluation is not shown.
struct Stopping<'a>(&'a dyn TrainObserver);

impl Observer for Stopping<'_> {
    fn advanced(&self, _done: usize, _total: usize) {}

    fn stop(&self) -> bool {
        self.0.stop()
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Pictures per second of this process, evaluations not counted.
struct Clock {
    pictures_per_step: usize,
    steps: u64,
    started: Instant,
    paused: Duration,
}

impl Clock {
    fn new(pictures_per_step: usize) -> Self {
        Self { pictures_per_step, steps: 0, started: Instant::now(), paused: Duration::ZERO }
    }

    fn stepped(&mut self) -> f64 {
        self.steps += 1;
        let seconds = self.started.elapsed().saturating_sub(self.paused).as_secs_f64();
        self.steps as f64 * self.pictures_per_step as f64 / seconds.max(1e-9)
    }

    fn pause(&mut self, time: Duration) {
        self.paused += time;
    }
}
