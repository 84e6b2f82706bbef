//! The training run: pictures in, an encoder out, stopped and resumed at any step.
//!
//! Everything random is a function of the seed and of the position in the run (epoch, batch, slot), and a checkpoint holds
//! everything else. A run that was interrupted therefore ends with the weights of one that was not.

mod error;
mod folder;
mod held_out;
mod learner;
mod report;
mod teacher;

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::Excess;
use retrievalguard::storage::digest::Digest;
use retrievalguard_encoder::dataset::{BrokenPictures, Record, RecordSet, data_set_digest};
use retrievalguard_encoder::engine::{EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::recall::{RecallError, Smoothing, recall_at_1};
use retrievalguard_encoder::work::Observer;
use serde::Serialize;

pub use self::error::TrainError;
pub use self::folder::{Inputs, RunFolder};
use self::learner::Learner;
pub use self::report::{EvaluationReport, Measured, StepReport, TrainObserver, TrainReport};
use self::teacher::Teacher;
use crate::augment::Augmenter;
use crate::backend::Backend;
use crate::batches::{BatchPlan, Classes};
use crate::certified::{CertifiedError, LipschitzEncoder, certified_recall};
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

/// Pictures whose principal components orthonormal rows begin with, as far as there are so many.
const FIRST_PICTURES: usize = 384;

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
    /// The teacher of a distillation; the network as it begins unless given.
    pub teacher: Option<&'a Path>,
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
    let plan = if recipe.uses_labels() {
        BatchPlan::new(&classes, batch.classes, batch.pictures, seed)?
    } else {
        BatchPlan::unlabelled(records.len(), batch.classes * batch.pictures, seed)?
    };
    let model_config =
        model_config(&recipe.network_config(), recipe.preparation()).map_err(ExportError::from)?;
    let augmenter = Augmenter::new(model_config, recipe.augmentation())?;
    if request.teacher.is_some() && recipe.distillation.is_none() {
        return Err(TrainError::NoDistillation);
    }
    let inputs = Inputs {
        pictures: data_set_digest(&records),
        weights: request.weights.map(digest_of_weights).transpose()?,
        teacher: request.teacher.map(digest_of_weights).transpose()?,
        backend: request.backend,
    };
    let loader = Arc::new(BatchLoader {
        pictures: PictureCache::new(records, request.cache),
        classes,
        plan,
        augmenter,
        sigma: recipe.sigma(),
        keeps_clean: recipe.distillation.is_some(),
        seed,
    });
    let _lock = folder.take(start)?;
    let (learner, position) = match start {
        Start::Fresh => begin(request, folder, &inputs, &loader, &device, observer)?,
        Start::Resume => resume(request, folder, &inputs, &loader, &device)?,
    };
    let mut run = Run {
        request,
        folder,
        observer,
        loader,
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
    loader: &BatchLoader,
    device: &Device,
    observer: &dyn TrainObserver,
) -> Result<(Learner, TrainingPosition), TrainError> {
    let recipe = request.recipe;
    let network = first_network(request, loader, device, observer)?;
    let learns_alone = request.weights.is_none() && recipe.network.architecture.normalises();
    if learns_alone && recipe.network.batch_norm == Statistics::Frozen {
        observer.note(
            "batch normalisation is frozen though there are no --weights; network.batch_norm=batch learns it",
        );
    }
    let teacher = teacher(request, || Ok(network.clone()), device)?;
    let position = TrainingPosition { epoch: 0, batch: 0, step: 0, run: inputs.run(recipe) };
    let learner = Learner::new(recipe, network, teacher, device);
    folder.begin(recipe, inputs, &learner.checkpoint(position)?)?;
    Ok((learner, position))
}

/// The network before the first step; a pure function of the recipe, the weights and the pictures.
fn first_network(
    request: &TrainRequest<'_>,
    loader: &BatchLoader,
    device: &Device,
    observer: &dyn TrainObserver,
) -> Result<Network, TrainError> {
    let recipe = request.recipe;
    let network = Network::new(&recipe.network_config(), recipe.seed(), device)?;
    let Some(path) = request.weights else {
        return if recipe.network.architecture.normalises() {
            Ok(network)
        } else {
            let pictures = first_pictures(recipe, loader, device)?;
            Ok(network.with_principal_components(pictures))
        };
    };
    let weights = Weights::read(path)?;
    // A network of ours brings its head; one that was trained for something else does not.
    let head = if weights.config() == Some(network.config()) { Head::Required } else { Head::Fresh };
    let (network, report) = network.load(&weights, head)?;
    observer.note(&format!(
        "{} tensors of `{}` were loaded, {} were not needed",
        report.loaded,
        path.display(),
        report.ignored.len()
    ));
    Ok(network)
}

/// Views of the first steps, without noise where they are kept so, as the network takes them.
fn first_pictures(recipe: &Recipe, loader: &BatchLoader, device: &Device) -> Result<Tensor<4>, TrainError> {
    let mut pixels = Vec::new();
    let mut shape = [0; 4];
    for step in 0..loader.plan.batches_per_epoch() {
        let batch = loader.load(step)?;
        pixels.extend(batch.clean.unwrap_or(batch.pixels));
        shape = [shape[0] + batch.shape[0], batch.shape[1], batch.shape[2], batch.shape[3]];
        if shape[0] >= FIRST_PICTURES {
            break;
        }
    }
    let pictures = Tensor::from_data(TensorData::new(pixels, shape), &device.clone().inner());
    Ok(recipe.network_config().normalise(pictures))
}

/// Who teaches beside the labels, or instead of them.
fn teacher(
    request: &TrainRequest<'_>,
    first: impl FnOnce() -> Result<Network, TrainError>,
    device: &Device,
) -> Result<Option<Teacher>, TrainError> {
    let recipe = request.recipe;
    if recipe.distillation.is_none() {
        return Ok(None);
    }
    let plain = device.clone().inner();
    let teacher = match request.teacher {
        Some(model) => Teacher::onnx(recipe, model, request.engine, &plain)?,
        None => Teacher::initial(recipe, &first()?, &plain)?,
    };
    Ok(Some(teacher))
}

fn resume(
    request: &TrainRequest<'_>,
    folder: &RunFolder,
    inputs: &Inputs,
    loader: &BatchLoader,
    device: &Device,
) -> Result<(Learner, TrainingPosition), TrainError> {
    let recipe = request.recipe;
    let began = folder.check_inputs(inputs)?;
    let checkpoint = Checkpoint::read(&folder.checkpoint())?;
    if checkpoint.position.run != began.run(recipe) {
        return Err(TrainError::ForeignCheckpoint { file: folder.checkpoint() });
    }
    let first = || {
        if began.weights.is_some() && request.weights.is_none() {
            return Err(TrainError::TeacherWeights);
        }
        first_network(request, loader, device, &Silent)
    };
    let teacher = teacher(request, first, device)?;
    Ok((Learner::resume(recipe, &checkpoint, teacher, device)?, checkpoint.position))
}

/// Hears nothing: what it would be told was told when the run began.
struct Silent;

impl TrainObserver for Silent {
    fn stepped(&self, _report: &StepReport) {}
    fn evaluated(&self, _report: &EvaluationReport) {}
    fn note(&self, _words: &str) {}
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
    untrained: Option<Measured>,
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
            let rate = recipe.learning_rate_at(self.position.epoch, self.position.batch, per_epoch);
            let outcome = self.learner.step(recipe, batch, self.position, rate)?;
            let report = StepReport {
                epoch: self.position.epoch + 1,
                step: self.position.step + 1,
                steps,
                loss: outcome.loss,
                beta: outcome.beta,
                active: outcome.active,
                distillation: outcome.distillation,
                learning_rate: rate,
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
        let numbers: Vec<(&str, f64)> = [
            ("train/loss", Some(report.loss)),
            ("train/beta", report.beta),
            ("train/active_pairs", report.active),
            ("train/distillation", report.distillation),
            ("train/learning_rate", Some(report.learning_rate)),
            ("train/pictures_per_second", Some(report.pictures_per_second)),
        ]
        .into_iter()
        .filter_map(|(tag, value)| Some((tag, value?)))
        .collect();
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
        let measured = self.measure(&self.folder.encoder())?;
        self.clock.pause(paused.elapsed());
        let sigma = self.request.recipe.evaluation_sigma().get();
        let report = EvaluationReport {
            epochs: self.position.epoch,
            step: self.position.step,
            sigma: matches!(measured, Measured::Smoothed(_)).then_some(sigma),
            radius: self.request.recipe.evaluation.radius,
            measured,
            untrained: self.untrained,
        };
        self.evaluation = Some(report);
        self.observer.evaluated(&report);
        let mut numbers: Vec<(String, f64)> = Vec::new();
        // The baseline with every evaluation, so that it is a line beside the curve.
        for (prefix, measured) in [("", Some(measured)), ("untrained_", self.untrained)] {
            let found = measured.iter().flat_map(Measured::numbers);
            numbers.extend(found.map(|(name, value)| (format!("held_out/{prefix}{name}"), value)));
        }
        let numbers: Vec<(&str, f64)> = numbers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        self.record(EVALUATION, report.step, &report, &numbers)
    }

    /// Recall of the backbone's features as they are, before any head.
    fn recall_of_features(&self) -> Result<Measured, TrainError> {
        let folder = self.folder.untrained();
        let exported = export_features(self.learner.network(), self.request.recipe.preparation(), &folder)?;
        let measured = self.measure(&exported.model);
        fs::remove_dir_all(&folder).map_err(|source| TrainError::Folder { folder, source })?;
        measured
    }

    /// What an exported encoder finds among the held-out pictures, and what is certified of it without noise.
    fn measure(&self, model: &Path) -> Result<Measured, TrainError> {
        let recipe = self.request.recipe;
        if !recipe.network.architecture.normalises() {
            let encoder = LipschitzEncoder::open(model)?;
            let stopping = Stopping(self.observer);
            let found = certified_recall(&encoder, self.held_out, None, self.request.threads, &stopping);
            return found.map(Measured::Certified).map_err(|error| match error {
                CertifiedError::Stopped { .. } => TrainError::Stopped { position: self.position },
                error => error.into(),
            });
        }
        let embedder = OnnxEmbedder::open(model, ModelConfig::for_model(model)?, self.request.engine)?;
        let smoothing = Smoothing {
            sigma: recipe.evaluation_sigma(),
            samples: recipe.evaluation.samples,
            seed: recipe.seed(),
            excess: Excess::Refuse,
            batch: self.request.batch,
            target: recipe.evaluation_target(),
        };
        let stopping = Stopping(self.observer);
        let threads = self.request.threads;
        let recall =
            recall_at_1(&embedder, self.held_out, smoothing, BrokenPictures::Fatal, threads, &stopping);
        let (recall, _) = recall.map_err(|error| match error {
            RecallError::Stopped { .. } => TrainError::Stopped { position: self.position },
            error => TrainError::Recall(error),
        })?;
        Ok(Measured::Smoothed(recall))
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
