//! Encoders in ONNX files.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use numpy::{PyArray1, PyArray2, PyArray3, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use retrievalguard::attack::{InputGradients, NoisyCopies};
use retrievalguard::{Embedder, EmbedderFailure, Picture, Smoother};
use retrievalguard_encoder::engine::{
    EngineError, EngineOptions, MOST_BATCH, MOST_THREADS, OnnxEmbedder, OnnxGradients,
};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::picture::{PictureError, PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::input_values;
use retrievalguard_encoder::work::{Unobserved, WorkQueue};

use crate::errors::{encoder_failed, in_context, raised, refused};
use crate::parameters;

/// Which encoder, and what runs it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Opening {
    model: PathBuf,
    contract: Option<PathBuf>,
    engine: Option<String>,
    library: Option<PathBuf>,
    provider: String,
    threads: Option<usize>,
    batch: usize,
    non_negative: bool,
}

/// What decides samples of one picture.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Sampling {
    identity: String,
    sigma: f64,
    seed: String,
    stage: String,
    start: u32,
    end: u32,
    excess: String,
}

/// A count that was given under a name.
pub(crate) fn positive(what: &str, value: usize, most: usize) -> PyResult<NonZeroUsize> {
    let number = NonZeroUsize::new(value).filter(|_| value <= most);
    number.ok_or_else(|| refused(format!("{what} is {value}, wanted a number from 1 to {most}")))
}

/// An embedding and a gradient.
type Differentiated<'py> = (Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<f64>>);

/// An ONNX file under its model config, run by an engine.
#[pyclass(frozen, module = "retrievalguard._native")]
pub(crate) struct Encoder {
    pub(crate) embedder: OnnxEmbedder,
    pub(crate) model: PathBuf,
    pub(crate) contract: Option<PathBuf>,
    pub(crate) threads: NonZeroUsize,
    pub(crate) batch: NonZeroUsize,
    gradients: OnceLock<OnnxGradients>,
}

impl Encoder {
    fn prepared<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        decode: impl FnOnce() -> Result<RgbPicture, PictureError> + Send,
    ) -> PyResult<Bound<'py, PyArray3<f32>>> {
        let config = self.embedder.model_config();
        let values = py
            .detach(|| {
                let prepared = config.preparation().apply(name, &decode()?)?;
                input_values(config, name, prepared)
            })
            .map_err(|error| raised(&error))?;
        PyArray1::from_vec(py, values).reshape(config.picture_shape())
    }
}

impl Encoder {
    /// Its gradients: the graph is read when someone first asks.
    pub(crate) fn gradients(&self, py: Python<'_>) -> PyResult<&OnnxGradients> {
        if let Some(gradients) = self.gradients.get() {
            return Ok(gradients);
        }
        let opened = py.detach(|| OnnxGradients::open(&self.model, &self.embedder, self.threads));
        let opened = opened.map_err(|error| raised(&error))?;
        Ok(self.gradients.get_or_init(|| opened))
    }
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(py: Python<'_>, opening: Opening) -> PyResult<Self> {
        let Opening { model, contract, .. } = opening;
        let threads = match opening.threads {
            Some(threads) => positive("threads", threads, MOST_THREADS)?,
            None => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        };
        let batch = positive("batch", opening.batch, MOST_BATCH)?;
        let word = |error: EngineError| raised(&error);
        let options = EngineOptions {
            engine: opening.engine.map(|engine| engine.parse()).transpose().map_err(word)?,
            library: opening.library,
            provider: opening.provider.parse().map_err(word)?,
            sessions: Some(NonZeroUsize::MIN),
            ..EngineOptions::default()
        };
        // Checked first: a misspelt model should not be reported as a missing config.
        match fs::metadata(&model) {
            Ok(found) if found.is_file() => {}
            Ok(_) => {
                return Err(refused(format!(
                    "model `{}` is not a file, wanted an ONNX file",
                    model.display()
                )));
            }
            Err(error) => {
                return Err(in_context(&format!("model `{}` cannot be read", model.display()), &error));
            }
        }
        let read = match &contract {
            Some(path) => ModelConfig::read(path),
            None => ModelConfig::for_model(&model),
        };
        let read = read.map_err(|error| raised(&error))?;
        let opened = py.detach(|| OnnxEmbedder::open(&model, read, &options));
        let embedder = opened.map_err(|error| raised(&error))?;
        let embedder = embedder.with_components(parameters::components(opening.non_negative));
        Ok(Self { embedder, model, contract, threads, batch, gradients: OnceLock::new() })
    }

    /// Embeds pictures that lie one after the other.
    fn embed<'py>(
        &self,
        py: Python<'py>,
        pictures: PyReadonlyArray1<'py, f32>,
        count: usize,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let pictures = pictures.as_slice()?.to_vec();
        let (pixels, dimension) = (self.embedder.input_len(), self.embedder.dimension());
        if count.checked_mul(pixels) != Some(pictures.len()) {
            return Err(refused(format!("{} values are not {count} pictures of {pixels}", pictures.len())));
        }
        let embeddings = py.detach(|| {
            let share = count.div_ceil(self.threads.get()).clamp(1, self.batch.get());
            let shares: Vec<&[f32]> = pictures.chunks(share * pixels).collect();
            let (pieces, threads) = (shares.len(), self.threads);
            let queue = WorkQueue { pieces, before: 0, threads, observer: &Unobserved };
            let embeddings = queue.collect(|place| {
                let mut rows = vec![0.0; shares[place].len() / pixels * dimension];
                self.embedder.embed(shares[place], &mut rows).map(|()| rows)
            })?;
            Ok(embeddings.concat())
        });
        let embeddings = embeddings.map_err(|error: EmbedderFailure| encoder_failed(error.as_ref()))?;
        PyArray1::from_vec(py, embeddings).reshape([count, dimension])
    }

    /// Upper bound on the Lipschitz constant, computed from the weights; raises where there is none.
    #[getter]
    fn lipschitz(&self) -> PyResult<f64> {
        Ok(self.embedder.lipschitz().map_err(|error| raised(&error))?.constant)
    }

    /// The embedding of one picture, and the gradient of its product with a direction.
    fn gradient<'py>(
        &self,
        py: Python<'py>,
        pixels: PyReadonlyArray1<'py, f32>,
        direction: PyReadonlyArray1<'py, f32>,
    ) -> PyResult<Differentiated<'py>> {
        let (pixels, direction) = (pixels.as_slice()?.to_vec(), direction.as_slice()?.to_vec());
        let gradients = self.gradients(py)?;
        let (gradient, embedding) = py.detach(|| {
            let noisy = NoisyCopies { centre: &pixels, copies: &pixels, sigma: 0.0 };
            let mut embedding = Vec::new();
            let gradient = gradients.gradient(&noisy, &mut |found| {
                embedding = found.to_vec();
                direction.clone()
            });
            (gradient, embedding)
        });
        let gradient = gradient.map_err(|error| encoder_failed(error.as_ref()))?;
        Ok((PyArray1::from_vec(py, embedding), PyArray1::from_vec(py, gradient)))
    }

    /// Embeddings of noisy copies of one picture.
    fn samples<'py>(
        &self,
        py: Python<'py>,
        pixels: PyReadonlyArray1<'py, f32>,
        sampling: Sampling,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let (sigma, seed) = (parameters::sigma(sampling.sigma)?, parameters::seed(&sampling.seed)?);
        let (stage, excess) = (parameters::stage(&sampling.stage)?, parameters::excess(&sampling.excess)?);
        let pixels = pixels.as_slice()?.to_vec();
        let samples = py.detach(|| {
            let smoother = Smoother::new(&self.embedder, sigma, seed)
                .batch(self.batch)
                .excess(excess)
                .threads(self.threads);
            let picture = Picture { identity: &sampling.identity, pixels: &pixels };
            smoother.samples(&picture, stage, sampling.start..sampling.end)
        });
        let samples = samples.map_err(|error| raised(&error))?;
        let shape = [samples.count() as usize, samples.dimension()];
        PyArray1::from_slice(py, samples.values()).reshape(shape)
    }

    /// Decodes and prepares a file.
    fn prepare_file<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyArray3<f32>>> {
        let name = path.display().to_string();
        self.prepared(py, &name, || RgbPicture::from_path(&path, &PictureLimits::default()))
    }

    /// Decodes and prepares a file that is in memory.
    fn prepare_bytes<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        bytes: &[u8],
    ) -> PyResult<Bound<'py, PyArray3<f32>>> {
        let bytes = bytes.to_vec();
        self.prepared(py, name, move || RgbPicture::from_bytes(name, &bytes, &PictureLimits::default()))
    }

    /// Prepares interleaved RGB pixels.
    fn prepare_pixels<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        height: usize,
        width: usize,
        pixels: PyReadonlyArray1<'py, u8>,
    ) -> PyResult<Bound<'py, PyArray3<f32>>> {
        let pixels = pixels.as_slice()?.to_vec();
        self.prepared(py, name, move || RgbPicture::new(name, width, height, pixels))
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.embedder.input_shape().to_vec()
    }

    #[getter]
    fn dimension(&self) -> usize {
        self.embedder.dimension()
    }

    #[getter]
    fn norm_bound(&self) -> f64 {
        self.embedder.norm_bound().get()
    }

    /// Which engine runs, with its version.
    #[getter]
    fn engine(&self) -> String {
        self.embedder.report().to_string()
    }

    /// A warning to show once.
    #[getter]
    fn notices(&self) -> Vec<String> {
        let quantised = "the model is quantised; certificates are about the quantised network";
        let quantised = self.embedder.facts().quantised.then(|| quantised.to_owned());
        self.embedder.notices().iter().cloned().chain(quantised).collect()
    }

    #[getter]
    fn model(&self) -> &Path {
        &self.model
    }

    /// How it was settled that embeddings are functions of single pictures.
    #[getter]
    fn check(&self) -> String {
        self.embedder.check().to_string()
    }

    /// SHA-256 of the ONNX file.
    #[getter]
    fn digest(&self) -> &str {
        &self.embedder.facts().hash
    }

    #[getter]
    fn threads(&self) -> usize {
        self.threads.get()
    }
}

/// Decodes a file: RGB, upright, row by row.
#[pyfunction]
pub(crate) fn decode_file(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyArray3<u8>>> {
    rows(py, py.detach(|| RgbPicture::from_path(&path, &PictureLimits::default())))
}

/// Decodes a file that is in memory.
#[pyfunction]
pub(crate) fn decode_bytes<'py>(
    py: Python<'py>,
    name: &str,
    bytes: &[u8],
) -> PyResult<Bound<'py, PyArray3<u8>>> {
    let bytes = bytes.to_vec();
    rows(py, py.detach(|| RgbPicture::from_bytes(name, &bytes, &PictureLimits::default())))
}

fn rows(py: Python<'_>, decoded: Result<RgbPicture, PictureError>) -> PyResult<Bound<'_, PyArray3<u8>>> {
    let picture = decoded.map_err(|error| raised(&error))?;
    PyArray1::from_slice(py, picture.pixels()).reshape([picture.height(), picture.width(), 3])
}
