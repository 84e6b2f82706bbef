//! Engines that run encoders: onnxruntime where it is installed, rten everywhere.
//!
//! [`OnnxEmbedder`] is an [`Embedder`]: pictures in `[0, 1]` (noise already added) in, embeddings out. Channel order,
//! mean and standard deviation are applied inside, and the output is normalised if the [`Contract`] says so. Every
//! calling thread has a single-threaded session to itself, so threads never wait for each other.
//!
//! ```
//! use std::path::Path;
//! use retrievalguard::Embedder;
//! use retrievalguard_encoder::contract::Contract;
//! use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
//!
//! let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/convolutional.onnx");
//! let contract = Contract::for_model(&model)?;
//! let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
//! let encoder = OnnxEmbedder::open(&model, contract, &options)?;
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
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use retrievalguard::{Embedder, EmbedderFailure, NormBound};
use serde::{Deserialize, Serialize};

use crate::contract::{ChannelOrder, Contract, Layout};

mod discovery;
mod model;
mod onnxruntime;
mod rten;

use self::rten::{RtenModel, RtenSession};
pub use discovery::Place;
use model::shape_text;
pub use model::{ElementType, Extent, ModelFacts, ModelFileError, TensorFacts};
use onnxruntime::{Library, OnnxruntimeSession};

/// An engine that can run encoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Microsoft's onnxruntime, from a library that the user has installed.
    Onnxruntime,
    /// rten, built in.
    Rten,
}

/// The hardware on which onnxruntime computes. Only `cpu` has been run by the authors; the others are untested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The processor.
    #[default]
    Cpu,
    /// NVIDIA graphics cards (untested).
    Cuda,
    /// NVIDIA graphics cards, networks compiled by TensorRT (untested).
    Tensorrt,
    /// Intel processors and graphics (untested).
    Openvino,
    /// Apple hardware (untested).
    Coreml,
}

macro_rules! words {
    ($name:ident, $what:literal, $wanted:literal, $($word:literal => $variant:ident),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }

        impl FromStr for $name {
            type Err = EngineError;

            fn from_str(text: &str) -> Result<Self, EngineError> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(EngineError::Word { what: $what, found: text.to_owned(), wanted: $wanted }),
                }
            }
        }
    };
}

words!(Engine, "engine", "onnxruntime or rten", "onnxruntime" => Onnxruntime, "rten" => Rten);
words!(Provider, "provider", "cpu, cuda, tensorrt, openvino or coreml",
    "cpu" => Cpu, "cuda" => Cuda, "tensorrt" => Tensorrt, "openvino" => Openvino, "coreml" => Coreml);

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The engine; by default onnxruntime if it is found, else rten.
    pub engine: Option<Engine>,
    /// onnxruntime's library, or the folder that holds it.
    pub library: Option<PathBuf>,
    /// Where onnxruntime computes.
    pub provider: Provider,
    /// How many sessions to open at once; more are opened when more threads call.
    pub sessions: Option<NonZeroUsize>,
}

/// Which engine ran; stands in every manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineReport {
    /// The engine.
    pub engine: Engine,
    /// Its version.
    pub version: String,
    /// Where it computed.
    pub provider: Provider,
    /// Where onnxruntime's library was found; not part of what decides a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,
}

impl EngineReport {
    /// What makes results under `other` differ from these, or `None`; the library's place does not.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let name = |report: &Self| format!("{} {} ({})", report.engine, report.version, report.provider);
        (name(self) != name(other)).then(|| format!("{} here, {} there", name(self), name(other)))
    }
}

/// A place where onnxruntime was looked for in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The place.
    pub place: Place,
    /// Why nothing was loaded from there.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.reason)
    }
}

fn attempts_text(attempts: &[Attempt]) -> String {
    attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why an encoder cannot be opened or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A word that names nothing.
    #[error("{what} is `{found}`, wanted {wanted}")]
    Word {
        /// What was being read.
        what: &'static str,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: &'static str,
    },
    /// The model's file cannot be read.
    #[error("the model cannot be read")]
    File(#[from] ModelFileError),
    /// onnxruntime was asked for and is not there.
    #[error("onnxruntime was not found: {}", attempts_text(attempts))]
    NoOnnxruntime {
        /// Every place, and why it gave nothing.
        attempts: Vec<Attempt>,
    },
    /// Only onnxruntime knows providers other than the processor.
    #[error("provider `{provider}` needs onnxruntime, found only rten, which runs on the processor")]
    ProviderNeedsOnnxruntime {
        /// The provider asked for.
        provider: Provider,
    },
    /// This build of onnxruntime cannot use the provider.
    #[error("the onnxruntime at `{library}` cannot use provider `{provider}`")]
    Provider {
        /// The provider asked for.
        provider: Provider,
        /// The library.
        library: PathBuf,
        /// What onnxruntime said.
        source: EmbedderFailure,
    },
    /// The engine cannot load the model.
    #[error("the engine cannot load model `{model}`")]
    Load {
        /// The model.
        model: PathBuf,
        /// What the engine said.
        source: EmbedderFailure,
    },
    /// The engine failed on a batch.
    #[error("the engine failed on a batch")]
    Run {
        /// What the engine said.
        source: EmbedderFailure,
    },
    /// The model has no such input or output, or too many to choose from.
    #[error("model `{model}` has {side} {found:?}, wanted {wanted}")]
    Tensor {
        /// The model.
        model: PathBuf,
        /// `inputs` or `outputs`.
        side: &'static str,
        /// Names of those it has.
        found: Vec<String>,
        /// What was looked for.
        wanted: String,
    },
    /// The input or output does not hold 32-bit floating-point numbers.
    #[error("{side} `{tensor}` of model `{model}` is {found}, wanted float32")]
    Element {
        /// The model.
        model: PathBuf,
        /// `input` or `output`.
        side: &'static str,
        /// Its name.
        tensor: String,
        /// Its type.
        found: ElementType,
    },
    /// The input does not have the contract's shape.
    #[error("input `{tensor}` of model `{model}` has shape {found}, the contract says {wanted}")]
    InputShape {
        /// The model.
        model: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: String,
        /// The contract's.
        wanted: String,
    },
    /// The output is not one vector per picture.
    #[error("output `{tensor}` of model `{model}` has shape {found}, wanted [batch, dimension]")]
    OutputShape {
        /// The model.
        model: PathBuf,
        /// Its name.
        tensor: String,
        /// Its shape.
        found: String,
    },
    /// A batch gave another number of embeddings than it had pictures.
    #[error("a batch of {pictures} pictures gave an output of shape {found:?}, wanted {wanted:?}")]
    BatchShape {
        /// Number of pictures.
        pictures: usize,
        /// Shape of the output.
        found: Vec<usize>,
        /// Shape that was wanted.
        wanted: Vec<usize>,
    },
    /// An embedding cannot be normalised.
    #[error("picture {row} of the batch has an embedding of length 0, which cannot be normalised")]
    ZeroNorm {
        /// Which picture of the batch, counted from 0.
        row: usize,
    },
    /// The caller's slices do not hold whole pictures and embeddings.
    #[error(
        "found {pictures} pixel values and room for {embeddings} embedding values, wanted multiples of {pixels} and {dimension} for the same number of pictures"
    )]
    Slices {
        /// Values given.
        pictures: usize,
        /// Room given.
        embeddings: usize,
        /// Values of one picture.
        pixels: usize,
        /// Values of one embedding.
        dimension: usize,
    },
}

fn engine_failure(model: &Path, error: impl fmt::Display) -> EngineError {
    EngineError::Load { model: model.to_owned(), source: error.to_string().into() }
}

/// The engine that the options lead to, before any model is opened.
#[derive(Clone, Debug)]
pub(crate) enum Runtime {
    Onnxruntime(Library),
    /// With every place where onnxruntime was looked for, if it was.
    Rten(Vec<Attempt>),
}

impl Runtime {
    pub(crate) fn choose(options: &EngineOptions) -> Result<Self, EngineError> {
        let provider = options.provider;
        if options.engine == Some(Engine::Rten) {
            return match provider {
                Provider::Cpu => Ok(Self::Rten(Vec::new())),
                Provider::Cuda | Provider::Tensorrt | Provider::Openvino | Provider::Coreml => {
                    Err(EngineError::ProviderNeedsOnnxruntime { provider })
                }
            };
        }
        match onnxruntime::library(options.library.as_deref()) {
            Ok(library) => Ok(Self::Onnxruntime(library)),
            // Whoever names an engine, a library or a provider wants that or nothing.
            Err(attempts)
                if options.engine.is_some() || options.library.is_some() || provider != Provider::Cpu =>
            {
                Err(EngineError::NoOnnxruntime { attempts })
            }
            Err(attempts) => Ok(Self::Rten(attempts)),
        }
    }

    pub(crate) fn report(&self, provider: Provider) -> EngineReport {
        match self {
            Self::Onnxruntime(library) => EngineReport {
                engine: Engine::Onnxruntime,
                version: library.version.clone(),
                provider,
                library: Some(library.path.clone()),
            },
            Self::Rten(_) => EngineReport {
                engine: Engine::Rten,
                version: rten::VERSION.to_owned(),
                provider: Provider::Cpu,
                library: None,
            },
        }
    }

    /// What a person should be told once.
    pub(crate) fn notices(&self) -> Vec<String> {
        match self {
            Self::Rten(attempts) if !attempts.is_empty() => vec![format!(
                "onnxruntime was not found, so the slower built-in engine rten {} runs ({})",
                rten::VERSION,
                attempts_text(attempts)
            )],
            Self::Rten(_) | Self::Onnxruntime(_) => Vec::new(),
        }
    }
}

/// Takes the output of a batch: shape and numbers.
type Consumer<'a> = dyn FnMut(&[usize], &[f32]) -> Result<(), EngineError> + 'a;

/// What new sessions are made from.
enum Factory {
    Onnxruntime { library: Library, model: PathBuf, provider: Provider, output: String },
    Rten(RtenModel),
}

impl Factory {
    fn slot(&self) -> Result<Slot, EngineError> {
        let session = match self {
            Self::Onnxruntime { library, model, provider, output } => {
                Session::Onnxruntime(OnnxruntimeSession::new(library, model, *provider, output)?)
            }
            Self::Rten(model) => Session::Rten(model.session()),
        };
        Ok(Slot { session, prepared: Vec::new() })
    }
}

/// One thread's session.
enum Session {
    Onnxruntime(OnnxruntimeSession),
    Rten(RtenSession),
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

/// Fewest pictures that are run together if the model leaves it open.
///
/// Engines multiply a single row by other code, whose last digits differ; with a companion every picture is treated
/// alike, and results do not depend on the batch size.
const FEWEST: usize = 2;

/// An encoder in an ONNX file, run by onnxruntime or rten.
pub struct OnnxEmbedder {
    contract: Contract,
    facts: ModelFacts,
    report: EngineReport,
    notices: Vec<String>,
    shape: [usize; 3],
    dimension: usize,
    batch: Batch,
    preparation: Preparation,
    factory: Factory,
    idle: Mutex<Vec<Slot>>,
}

impl fmt::Debug for OnnxEmbedder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { contract, facts, report, dimension, batch, .. } = self;
        out.debug_struct("OnnxEmbedder")
            .field("contract", contract)
            .field("facts", facts)
            .field("report", report)
            .field("dimension", dimension)
            .field("batch", batch)
            .finish_non_exhaustive()
    }
}

impl OnnxEmbedder {
    /// Opens a model, checks it against its contract and runs it once.
    pub fn open(model: &Path, contract: Contract, options: &EngineOptions) -> Result<Self, EngineError> {
        let facts = ModelFacts::read(model)?;
        let batch = check_input(model, &facts, &contract)?;
        let output = check_output(model, &facts, &contract)?;
        let runtime = Runtime::choose(options)?;
        let (report, notices) = (runtime.report(options.provider), runtime.notices());
        let factory = match runtime {
            Runtime::Onnxruntime(library) => Factory::Onnxruntime {
                library,
                model: model.to_owned(),
                provider: options.provider,
                output: output.name.clone(),
            },
            Runtime::Rten(_) => {
                let input = facts.input(contract.input.name.as_deref()).map_or("", |input| &input.name);
                Factory::Rten(RtenModel::new(model, input, &output.name)?)
            }
        };
        let sessions = options.sessions.map_or(1, NonZeroUsize::get);
        let mut idle = (0..sessions).map(|_| factory.slot()).collect::<Result<Vec<_>, _>>()?;
        let preparation = Preparation::new(&contract);
        let shape = contract.picture_shape();
        let dimension =
            idle.first_mut().map_or(Ok(0), |slot| probe(slot, model, &output.name, &preparation, batch))?;
        let idle = Mutex::new(idle);
        Ok(Self { contract, facts, report, notices, shape, dimension, batch, preparation, factory, idle })
    }

    /// The contract under which the encoder runs.
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// What the ONNX file says about itself, with its hash.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Which engine runs it.
    pub fn report(&self) -> &EngineReport {
        &self.report
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
        let step = match self.batch {
            Batch::Any => count.max(1),
            Batch::Always(size) => size,
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
        let run = match self.batch {
            Batch::Any => count.max(FEWEST),
            Batch::Always(size) => size,
        };
        let normalise = self.contract.output.normalise;
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

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Slot>> {
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
        self.contract.norm_bound()
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        Ok(self.run(pictures, embeddings)?)
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
        }
    }
}

/// From pixels in `[0, 1]` to the numbers that a model was trained on.
#[derive(Clone, Debug)]
struct Preparation {
    /// Number of values of one picture.
    pixels: usize,
    /// Axes of one picture in the model's layout.
    axes: [usize; 3],
    layout: Layout,
    /// For each of the model's channels: the picture's channel, what is subtracted, what divides.
    channels: Vec<(usize, f32, f32)>,
    /// Whether nothing changes at all.
    plain: bool,
}

impl Preparation {
    fn new(contract: &Contract) -> Self {
        let input = &contract.input;
        let axes = match input.layout {
            Layout::Nchw => [input.channels, input.height, input.width],
            Layout::Nhwc => [input.height, input.width, input.channels],
        };
        let channels: Vec<_> = (0..input.channels)
            .map(|channel| {
                let source = match input.channel_order {
                    ChannelOrder::Rgb => channel,
                    ChannelOrder::Bgr => input.channels - 1 - channel,
                };
                (source, input.mean[channel] as f32, input.std[channel] as f32)
            })
            .collect();
        let plain = (input.layout == Layout::Nchw || input.channels == 1)
            && channels.iter().enumerate().all(|(index, &channel)| channel == (index, 0.0, 1.0));
        Self { pixels: axes.iter().product(), axes, layout: input.layout, channels, plain }
    }

    /// `(pixel − mean) / std` in `f32`, as torchvision computes it.
    fn apply(&self, pictures: &[f32], prepared: &mut [f32]) {
        let area = self.pixels / self.channels.len();
        for (picture, prepared) in
            pictures.chunks_exact(self.pixels).zip(prepared.chunks_exact_mut(self.pixels))
        {
            for (channel, &(source, mean, std)) in self.channels.iter().enumerate() {
                let plane = &picture[source * area..][..area];
                match self.layout {
                    Layout::Nchw => {
                        for (pixel, value) in plane.iter().zip(&mut prepared[channel * area..][..area]) {
                            *value = (pixel - mean) / std;
                        }
                    }
                    Layout::Nhwc => {
                        let values = prepared.iter_mut().skip(channel).step_by(self.channels.len());
                        for (pixel, value) in plane.iter().zip(values) {
                            *value = (pixel - mean) / std;
                        }
                    }
                }
            }
        }
    }
}

/// An embedding without direction.
struct ZeroNorm;

/// Scales a row to length 1; a row that is not finite stays as it is, so that whoever checks it sees why.
fn l2_normalise(row: &mut [f32]) -> Result<(), ZeroNorm> {
    let norm = row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
    if norm == 0.0 {
        return Err(ZeroNorm);
    }
    if norm.is_finite() {
        for value in row {
            *value = (f64::from(*value) / norm) as f32;
        }
    }
    Ok(())
}

/// Checks name, type and shape of the input; returns how many pictures it takes.
fn check_input(model: &Path, facts: &ModelFacts, contract: &Contract) -> Result<Batch, EngineError> {
    let name = contract.input.name.as_deref();
    let tensor = facts.input(name).ok_or_else(|| EngineError::Tensor {
        model: model.to_owned(),
        side: "inputs",
        found: facts.inputs.iter().map(|input| input.name.clone()).collect(),
        wanted: name
            .map_or_else(|| "exactly one".to_owned(), |name| format!("`{name}` (the contract's input.name)")),
    })?;
    if facts.inputs.len() != 1 {
        return Err(EngineError::Tensor {
            model: model.to_owned(),
            side: "inputs",
            found: facts.inputs.iter().map(|input| input.name.clone()).collect(),
            wanted: "exactly one".to_owned(),
        });
    }
    check_element(model, "input", tensor)?;
    let axes = Preparation::new(contract).axes;
    let Some(shape) = &tensor.shape else { return Ok(Batch::Any) };
    let fits = shape.len() == 4 && shape[1..].iter().zip(axes).all(|(extent, length)| extent.accepts(length));
    if !fits {
        let [first, second, third] = axes;
        return Err(EngineError::InputShape {
            model: model.to_owned(),
            tensor: tensor.name.clone(),
            found: shape_text(shape),
            wanted: format!("[batch, {first}, {second}, {third}]"),
        });
    }
    match shape[0] {
        Extent::Fixed(size) => Ok(Batch::Always(size)),
        Extent::Dynamic(_) => Ok(Batch::Any),
    }
}

/// Checks name, type and, where the file tells it, shape of the output.
fn check_output<'f>(
    model: &Path,
    facts: &'f ModelFacts,
    contract: &Contract,
) -> Result<&'f TensorFacts, EngineError> {
    let name = contract.output.name.as_deref();
    let tensor = facts.output(name).ok_or_else(|| EngineError::Tensor {
        model: model.to_owned(),
        side: "outputs",
        found: facts.outputs.iter().map(|output| output.name.clone()).collect(),
        wanted: name.map_or_else(
            || "at least one".to_owned(),
            |name| format!("`{name}` (the contract's output.name)"),
        ),
    })?;
    check_element(model, "output", tensor)?;
    match &tensor.shape {
        Some(shape) if shape.len() != 2 => Err(EngineError::OutputShape {
            model: model.to_owned(),
            tensor: tensor.name.clone(),
            found: shape_text(shape),
        }),
        Some(_) | None => Ok(tensor),
    }
}

fn check_element(model: &Path, side: &'static str, tensor: &TensorFacts) -> Result<(), EngineError> {
    if tensor.element == ElementType::FLOAT {
        return Ok(());
    }
    let (model, name) = (model.to_owned(), tensor.name.clone());
    Err(EngineError::Element { model, side, tensor: name, found: tensor.element })
}

/// Runs grey pictures through a fresh session and returns the dimension of what comes out.
fn probe(
    slot: &mut Slot,
    model: &Path,
    output: &str,
    preparation: &Preparation,
    batch: Batch,
) -> Result<usize, EngineError> {
    let run = match batch {
        Batch::Any => FEWEST,
        Batch::Always(size) => size,
    };
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

#[cfg(test)]
mod tests;
