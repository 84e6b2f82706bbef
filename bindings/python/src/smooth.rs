//! Smoothing of any Python function.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use retrievalguard::{Embedder, EmbedderFailure, NormBound, Picture, Seed, Smoother};

use crate::errors::{raised, refused};
use crate::parameters;

/// A Python function that takes a batch of pictures and returns a row of numbers for each.
pub(crate) struct Function {
    pub(crate) call: Option<Py<PyAny>>,
    pub(crate) shape: Vec<usize>,
    pub(crate) dimension: usize,
    pub(crate) norm_bound: NormBound,
}

impl Embedder for Function {
    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn norm_bound(&self) -> NormBound {
        self.norm_bound
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        Python::attach(|py| {
            let Some(call) = &self.call else { return Ok(()) };
            let count = embeddings.len() / self.dimension;
            let mut shape = vec![count];
            shape.extend(&self.shape);
            let batch = PyArray1::from_slice(py, pictures).reshape(shape)?;
            let result = call.bind(py).call1((batch,))?;
            let rows: PyReadonlyArray2<'_, f32> = result.extract()?;
            if rows.shape() != [count, self.dimension] {
                return Err(refused(format!(
                    "the function gave an array of shape {:?} for {count} pictures, wanted {:?}",
                    rows.shape(),
                    [count, self.dimension]
                )));
            }
            embeddings.copy_from_slice(rows.as_slice()?);
            Ok(())
        })
        .map_err(|error: PyErr| error.into())
    }
}

/// What decides samples.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Smoothing {
    shape: Vec<usize>,
    dimension: usize,
    identity: String,
    sigma: f64,
    seed: String,
    stage: String,
    start: u32,
    end: u32,
    batch: usize,
    norm_bound: f64,
    excess: String,
}

/// Embeddings of noisy copies of a picture by a Python function.
#[pyfunction]
pub(crate) fn smooth<'py>(
    py: Python<'py>,
    function: Py<PyAny>,
    pixels: PyReadonlyArray1<'py, f32>,
    smoothing: Smoothing,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let Smoothing { shape, dimension, identity, start, end, batch, .. } = smoothing;
    let (sigma, seed) = (parameters::sigma(smoothing.sigma)?, parameters::seed(&smoothing.seed)?);
    let (stage, excess) = (parameters::stage(&smoothing.stage)?, parameters::excess(&smoothing.excess)?);
    let norm_bound = parameters::norm_bound(smoothing.norm_bound)?;
    let batch = batch.try_into().map_err(|_| refused("batch is 0, wanted at least 1"))?;
    let embedder = Function { call: Some(function), shape, dimension, norm_bound };
    let pixels = pixels.as_slice()?.to_vec();
    let samples = py.detach(|| {
        let smoother = Smoother::new(&embedder, sigma, seed).batch(batch).excess(excess);
        smoother.samples(&Picture { identity: &identity, pixels: &pixels }, stage, start..end)
    });
    let samples = samples.map_err(|error| raised(&error))?;
    let shape = [samples.count() as usize, dimension];
    PyArray1::from_slice(py, samples.values()).reshape(shape)
}

/// Raises if the picture cannot be smoothed, before any function is called.
#[pyfunction]
pub(crate) fn check_picture(
    pixels: PyReadonlyArray1<'_, f32>,
    shape: Vec<usize>,
    identity: &str,
    sigma: f64,
) -> PyResult<()> {
    let embedder = Function { call: None, shape, dimension: 1, norm_bound: NormBound::UNIT };
    let smoother = Smoother::new(&embedder, parameters::sigma(sigma)?, Seed::new(0));
    smoother.check_picture(&Picture { identity, pixels: pixels.as_slice()? }).map_err(|error| raised(&error))
}
