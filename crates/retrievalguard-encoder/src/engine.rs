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
use std::sync::{Mutex, MutexGuard, PoisonError};

use retrievalguard::{Embedder, EmbedderFailure, NormBound};

use self::fit::{check_input, check_output};
use self::onnxruntime::{Library, OnnxruntimeSession};
use self::preparation::{Preparation, ZeroNorm, l2_normalise};
use self::rten::{RtenModel, RtenSession};
use crate::contract::Contract;

mod choice;
mod discovery;
mod error;
mod fit;
mod model;
mod onnxruntime;
mod preparation;
mod rten;

pub(crate) use choice::Runtime;
pub use choice::{Attempt, Engine, EngineOptions, EngineReport, Provider};
pub use discovery::Place;
pub use error::EngineError;
pub use model::{ModelFacts, StoredNetwork, StoredTensor};

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

/// Most pictures that the processor runs together unless asked otherwise.
///
/// The layers' outputs for a few pictures stay in its caches: the four-block encoder of `benchmarks/engines.sh` takes
/// 0.85 of the time that batches of 256 take, and ResNet-50 as long.
const MOST: usize = 8;

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
    together: usize,
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
        let together = match (options.together, report.provider) {
            (Some(together), _) => together.get(),
            (None, Provider::Cpu) => MOST,
            (None, Provider::Cuda | Provider::Tensorrt | Provider::Openvino | Provider::Coreml) => usize::MAX,
        };
        Ok(Self {
            contract,
            facts,
            report,
            notices,
            shape,
            dimension,
            batch,
            together,
            preparation,
            factory,
            idle,
        })
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
            Batch::Any => count.clamp(1, self.together),
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
