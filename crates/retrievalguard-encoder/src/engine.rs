//! Engines that run encoders: onnxruntime where it is installed, rten everywhere.
//!
//! [`OnnxEmbedder`] is an [`Embedder`]: pictures in `[0, 1]` (noise already added) in, embeddings out. Channel order,
//! mean and standard deviation are applied inside, and the output is normalised if the [`ModelConfig`] says so. Every
//! calling thread has a single-threaded session to itself, so threads never wait for each other.
//!
//! Certificates are about an encoder that is a function of each picture alone. [`OnnxEmbedder::open`] settles that before
//! anything can be run: [`crate::graph::batch`] follows the batch through the graph, and a trial beside hostile companions
//! asks the engine itself. Pictures share batches only if both find nothing; otherwise each of them runs alone.
//!
//! ```
//! use std::path::Path;
//! use retrievalguard::Embedder;
//! use retrievalguard_encoder::model_config::ModelConfig;
//! use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
//!
//! let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/convolutional.onnx");
//! let config = ModelConfig::for_model(&model)?;
//! let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
//! let encoder = OnnxEmbedder::open(&model, config, &options)?;
//!
//! let pictures = vec![0.5; 2 * encoder.input_len()];
//! let mut embeddings = vec![0.0; 2 * encoder.dimension()];
//! encoder.embed(&pictures, &mut embeddings)?;
//! assert_eq!(embeddings[..8], embeddings[8..]);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retrievalguard::{Components, Embedder, EmbedderFailure, NormBound};

use self::double::DoubleModel;
use self::fit::{check_input, check_output};
use self::onnxruntime::{Library, OnnxruntimeSession};
use self::preparation::{Preparation, ZeroNorm, l2_normalise};
use self::rten::{RtenModel, RtenSession};
use self::trial::Trial;
use crate::check::{EncoderCheck, Passes};
use crate::graph::Model;
use crate::graph::batch::{BatchReading, BatchSpec};
use crate::graph::bound::{BoundReading, NetworkBound};
use crate::model_config::ModelConfig;

mod choice;
mod discovery;
mod double;
mod error;
mod fit;
mod gradients;
mod model;
mod onnxruntime;
mod preparation;
mod rten;
mod trial;

pub(crate) use choice::Runtime;
pub use choice::{Attempt, Engine, EngineOptions, EngineReport, MOST_BATCH, MOST_THREADS, Provider};
pub use discovery::LibraryLocation;
pub use error::EngineError;
pub use gradients::{GradientsError, OnnxGradients};
pub use model::ModelFacts;

/// Takes the output of a batch: shape and numbers.
type Consumer<'a> = dyn FnMut(&[usize], &[f32]) -> Result<(), EngineError> + 'a;

/// What new sessions are made from.
enum Factory {
    Onnxruntime { library: Library, model: Checked, provider: Provider, output: String },
    Rten(RtenModel),
    Double(DoubleModel),
}

/// The model that was read and checked; its file may be another by the time that a further session is made.
struct Checked {
    path: PathBuf,
    /// The file's bytes, unless it keeps weights in others.
    bytes: Option<Arc<Vec<u8>>>,
    /// The hash of all of them.
    hash: String,
}

impl Checked {
    fn new(path: &Path, model: &Model, facts: &ModelFacts) -> Self {
        let bytes = model.elsewhere.is_empty().then(|| Arc::clone(&model.file));
        Self { path: path.to_owned(), bytes, hash: facts.hash.clone() }
    }

    /// Refuses files that changed; bytes in memory cannot.
    fn still(&self) -> Result<(), EngineError> {
        if self.bytes.is_none() && ModelFacts::read(&self.path)?.hash != self.hash {
            let source = "its files changed since it was checked".into();
            return Err(EngineError::Load { model: self.path.clone(), source });
        }
        Ok(())
    }
}

impl Factory {
    fn slot(&self) -> Result<Slot, EngineError> {
        let session = match self {
            Self::Onnxruntime { library, model, provider, output } => {
                let bytes = model.bytes.as_ref().map(|bytes| &bytes[..]);
                let session = OnnxruntimeSession::new(library, &model.path, bytes, *provider, output)?;
                // Afterwards, so that no change can slip in between.
                model.still()?;
                Session::Onnxruntime(session)
            }
            Self::Rten(model) => Session::Rten(model.session()),
            Self::Double(model) => Session::Double(model.clone()),
        };
        Ok(Slot { session, prepared: Vec::new() })
    }
}

/// One thread's session.
enum Session {
    Onnxruntime(OnnxruntimeSession),
    Rten(RtenSession),
    Double(DoubleModel),
}

/// A session and the buffer in which its input is prepared.
struct Slot {
    session: Session,
    prepared: Vec<f32>,
}

/// How many pictures a model takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch {
    Any,
    Always(usize),
}

/// Most pictures that the processor runs together unless asked otherwise.
///
/// The layers' outputs for a few pictures stay in its caches: the four-block encoder of `benchmarks/engines.sh` takes
/// 0.85 of the time that batches of 256 take, and ResNet-50 as long.
const MOST: usize = 8;

/// Fewest pictures that are run together if the model leaves it open.
///
/// Engines multiply a single row by other code, whose last digits differ; with a copy of itself as companion every
/// picture is treated alike, and results do not depend on the batch size.
const FEWEST: usize = 2;

/// An encoder in an ONNX file, run by onnxruntime or rten.
pub struct OnnxEmbedder {
    path: PathBuf,
    model_config: ModelConfig,
    facts: ModelFacts,
    report: EngineReport,
    notices: Vec<String>,
    shape: [usize; 3],
    dimension: usize,
    components: Components,
    batch: Batch,
    check: EncoderCheck,
    together: usize,
    preparation: Preparation,
    factory: Factory,
    /// How fast it moves; asked only where it is evaluated in double precision.
    bound: Option<BoundReading>,
    idle: Mutex<Vec<Slot>>,
}

impl fmt::Debug for OnnxEmbedder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model_config, facts, report, dimension, batch, check, .. } = self;
        out.debug_struct("OnnxEmbedder")
            .field("model_config", model_config)
            .field("facts", facts)
            .field("report", report)
            .field("dimension", dimension)
            .field("batch", batch)
            .field("check", check)
            .finish_non_exhaustive()
    }
}

impl OnnxEmbedder {
    /// Opens a model, checks it against its model config, and settles that its embeddings are functions of single pictures.
    ///
    /// A model that draws random numbers, gives other numbers the second time or gives numbers that are not finite is
    /// refused; one that couples the pictures of a batch, or may do so, runs picture by picture.
    pub fn open(path: &Path, config: ModelConfig, options: &EngineOptions) -> Result<Self, EngineError> {
        let model = Model::read(path)?;
        let facts = ModelFacts::of(path, &model)?;
        let batch = check_input(path, &facts, &config)?;
        let output = check_output(path, &facts, &config)?;
        let input = facts.input(config.input.name.as_deref()).map_or("", |input| &input.name);
        let preparation = Preparation::new(&config);
        let reading = reading(path, &model, input, &preparation, batch, &output.name)?;
        let checked = Checked::new(path, &model, &facts);
        let runtime = Runtime::choose(options)?;
        let graph = |source| EngineError::Graph { model: path.to_owned(), source };
        let bound = match runtime {
            Runtime::Double => Some(BoundReading::of(&model, &config).map_err(graph)?),
            Runtime::Onnxruntime(_) | Runtime::Rten(_) => None,
        };
        let (report, mut notices) = (runtime.report(options.provider), runtime.notices());
        let factory = match runtime {
            Runtime::Onnxruntime(library) => Factory::Onnxruntime {
                library,
                model: checked,
                provider: options.provider,
                output: output.name.clone(),
            },
            Runtime::Rten(_) => Factory::Rten(RtenModel::new(path, input, &output.name)?),
            Runtime::Double => {
                let way = (input, preparation.axes, output.name.as_str());
                let evaluated = DoubleModel::new(path, &model, way, batch)?;
                // Weights in other files were read again.
                checked.still()?;
                Factory::Double(evaluated)
            }
        };
        drop(model);
        let mut slot = factory.slot()?;
        let passes = match reading {
            BatchReading::Independent => Passes::Together,
            _ => Passes::OneByOne,
        };
        let dimension = probe(&mut slot, path, &output.name, &preparation, run_size(passes, batch, 1))?;
        let together = match (options.together, report.provider) {
            (Some(together), _) => together.get(),
            (None, Provider::Cpu) => MOST,
            (None, Provider::Cuda | Provider::Tensorrt | Provider::Openvino | Provider::Coreml) => usize::MAX,
        };
        let mut trial =
            Trial { model: path, slot: &mut slot, preparation: &preparation, batch, dimension, together };
        let check = trial.settle(reading, passes, config.output.normalise)?;
        // A model that takes one picture at a time loses nothing by it.
        if batch != Batch::Always(1) {
            notices.extend(check.notice());
        }
        let mut idle = vec![slot];
        for _ in 1..options.sessions.map_or(1, NonZeroUsize::get) {
            idle.push(factory.slot()?);
        }
        let shape = config.picture_shape();
        let idle = Mutex::new(idle);
        Ok(Self {
            path: path.to_owned(),
            model_config: config,
            facts,
            report,
            notices,
            shape,
            dimension,
            components: Components::Any,
            batch,
            check,
            together,
            preparation,
            factory,
            bound,
            idle,
        })
    }

    /// Sets negative components of every embedding to zero, or leaves them: the first makes another encoder of it, unless it is
    /// never negative ([`Samples::clamped`](retrievalguard::Samples::clamped)).
    #[must_use]
    pub fn with_components(self, components: Components) -> Self {
        Self { components, ..self }
    }

    /// The model config under which the encoder runs.
    pub fn model_config(&self) -> &ModelConfig {
        &self.model_config
    }

    /// What the ONNX file says about itself, with its hash.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Which engine runs it.
    pub fn report(&self) -> &EngineReport {
        &self.report
    }

    /// Why its embeddings are functions of single pictures; belongs to the description of every run.
    pub fn check(&self) -> &EncoderCheck {
        &self.check
    }

    /// How fast its embeddings move, proved from the weights; only for an encoder that is evaluated in double precision.
    pub fn lipschitz(&self) -> Result<&NetworkBound, EngineError> {
        let why = match &self.bound {
            Some(BoundReading::Bounded(bound)) => return Ok(bound),
            Some(unknown @ BoundReading::Unknown { .. }) => unknown.to_string(),
            None => format!("{} computes in single precision, wanted the engine double", self.report),
        };
        Err(EngineError::NoBound { model: self.path.clone(), why })
    }

    /// The embedding of one picture in double precision, neither normalised nor rounded.
    pub fn embed_double(&self, picture: &[f32]) -> Result<Vec<f64>, EngineError> {
        let pixels = self.preparation.pixels;
        if picture.len() != pixels {
            let (pictures, embeddings, dimension) = (picture.len(), self.dimension, self.dimension);
            return Err(EngineError::Slices { pictures, embeddings, pixels, dimension });
        }
        let Factory::Double(model) = &self.factory else {
            return Err(self.lipschitz().map(|_| ()).expect_err("only this engine has a bound"));
        };
        let mut prepared = vec![0.0; pixels];
        self.preparation.apply(picture, &mut prepared);
        model.value(&prepared)
    }

    /// What a person should be told once, for instance that a slower engine had to be taken.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Runs pictures through a session that no other thread uses meanwhile.
    fn run(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EngineError> {
        let (pixels, dimension) = (self.preparation.pixels, self.dimension);
        let count = pictures.len() / pixels;
        if pictures.len() != count * pixels || embeddings.len() != count * dimension {
            let (pictures, embeddings) = (pictures.len(), embeddings.len());
            return Err(EngineError::Slices { pictures, embeddings, pixels, dimension });
        }
        let mut slot = match self.idle().pop() {
            Some(slot) => slot,
            None => self.factory.slot()?,
        };
        let step = match (self.check.passes, self.batch) {
            (Passes::OneByOne, _) => 1,
            (Passes::Together, Batch::Any) => count.clamp(1, self.together),
            (Passes::Together, Batch::Always(size)) => size,
        };
        let mut batches =
            pictures.chunks(step * pixels).zip(embeddings.chunks_mut(step * dimension)).enumerate();
        let result = batches.try_for_each(|(index, (pictures, embeddings))| {
            self.run_batch(&mut slot, index * step, pictures, embeddings)
        });
        self.idle().push(slot);
        result
    }

    fn run_batch(
        &self,
        slot: &mut Slot,
        first: usize,
        pictures: &[f32],
        embeddings: &mut [f32],
    ) -> Result<(), EngineError> {
        let count = pictures.len() / self.preparation.pixels;
        let run = run_size(self.check.passes, self.batch, count);
        let normalise = self.model_config.output.normalise;
        slot.run(&self.preparation, run, pictures, &mut |shape, numbers| {
            let wanted = [run, self.dimension];
            if shape != wanted {
                let (found, wanted) = (shape.to_vec(), wanted.to_vec());
                return Err(EngineError::BatchShape { pictures: run, found, wanted });
            }
            embeddings.copy_from_slice(&numbers[..embeddings.len()]);
            if normalise {
                for (row, embedding) in embeddings.chunks_exact_mut(self.dimension).enumerate() {
                    l2_normalise(embedding).map_err(|ZeroNorm| EngineError::ZeroNorm { row: first + row })?;
                }
            }
            Ok(())
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Embedder for OnnxEmbedder {
    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn norm_bound(&self) -> NormBound {
        self.model_config.norm_bound()
    }

    fn components(&self) -> Components {
        self.components
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        self.run(pictures, embeddings)?;
        if self.components == Components::NonNegative {
            embeddings.iter_mut().filter(|value| **value < 0.0).for_each(|value| *value = 0.0);
        }
        Ok(())
    }
}

impl Slot {
    /// Prepares the pictures, fills up to `run` of them with copies of the first, and runs the model.
    fn run(
        &mut self,
        preparation: &Preparation,
        run: usize,
        pictures: &[f32],
        consume: &mut Consumer<'_>,
    ) -> Result<(), EngineError> {
        let pixels = preparation.pixels;
        let ready = if preparation.plain && pictures.len() == run * pixels {
            pictures
        } else {
            self.prepared.resize(run * pixels, 0.0);
            preparation.apply(pictures, &mut self.prepared);
            for copy in 1..=(run - pictures.len() / pixels) {
                let start = (run - copy) * pixels;
                self.prepared.copy_within(..pixels, start);
            }
            &self.prepared
        };
        let [first, second, third] = preparation.axes;
        let shape = [run, first, second, third];
        match &mut self.session {
            Session::Onnxruntime(session) => session.run(&shape, ready, consume),
            Session::Rten(session) => session.run(&shape, ready, consume),
            Session::Double(session) => session.run(&shape, ready, consume),
        }
    }
}

/// How many pictures go through the network for `count` different ones; the others are copies of the first.
fn run_size(passes: Passes, batch: Batch, count: usize) -> usize {
    match (passes, batch) {
        (_, Batch::Always(size)) => size,
        (Passes::OneByOne, Batch::Any) => 1,
        (Passes::Together, Batch::Any) => count.max(FEWEST),
    }
}

/// What the graph says about pictures that share a batch; a model that draws random numbers is refused.
fn reading(
    path: &Path,
    model: &Model,
    input: &str,
    preparation: &Preparation,
    batch: Batch,
    output: &str,
) -> Result<BatchReading, EngineError> {
    let size = match batch {
        Batch::Any => None,
        Batch::Always(size) => Some(size),
    };
    let spec = BatchSpec { input, picture: preparation.axes, batch: size, output };
    let graph = |source| EngineError::Graph { model: path.to_owned(), source };
    match BatchReading::of(model, &spec).map_err(graph)? {
        BatchReading::Random { node, operator } => {
            Err(EngineError::Random { model: path.to_owned(), node, operator })
        }
        reading => Ok(reading),
    }
}

/// Runs a grey picture through a fresh session and returns the dimension of what comes out.
fn probe(
    slot: &mut Slot,
    model: &Path,
    output: &str,
    preparation: &Preparation,
    run: usize,
) -> Result<usize, EngineError> {
    let mut dimension = 0;
    slot.run(preparation, run, &vec![0.5; preparation.pixels], &mut |shape, _| match *shape {
        [rows, found] if rows == run && found > 0 => {
            dimension = found;
            Ok(())
        }
        _ => Err(EngineError::OutputShape {
            model: model.to_owned(),
            tensor: output.to_owned(),
            found: format!("{shape:?} for a batch of {run}"),
        }),
    })?;
    Ok(dimension)
}
