//! The search for a perturbation that changes an answer.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use retrievalguard::attack::{
    Against, Attacker, BlackBox, Effort, InputGradients, Judging, Mode, NoisyCopies, Pixels,
};
use retrievalguard::gallery::{Positives, Relevance};
use retrievalguard::{Alpha, Embedder, EmbedderFailure, Picture, SampleCount, Sigma};

use crate::encoder::Encoder;
use crate::errors::{raised, refused};
use crate::gallery::Gallery;
use crate::parameters;
use crate::smooth::Function;

/// What decides a search.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Searching {
    shape: Vec<usize>,
    dimension: usize,
    norm_bound: f64,
    identity: String,
    label: String,
    excluded: Vec<usize>,
    size: f64,
    sigma: Option<f64>,
    steps: u32,
    restarts: u32,
    noise: u32,
    clip: bool,
    seed: String,
}

/// A Python function with its gradient, a function of pictures and a direction.
struct Differentiated<'a> {
    function: &'a Function,
    gradient: Py<PyAny>,
}

impl InputGradients for Differentiated<'_> {
    fn mode(&self) -> Mode {
        Mode::WhiteBox
    }

    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure> {
        let pixels = noisy.centre.len();
        let count = noisy.copies.len() / pixels;
        let mut embeddings = vec![0.0; count * self.function.dimension()];
        self.function.embed(noisy.copies, &mut embeddings)?;
        let direction = towards(&embeddings);
        Python::attach(|py| {
            let mut shape = vec![count];
            shape.extend(self.function.input_shape());
            let batch = PyArray1::from_slice(py, noisy.copies).reshape(shape)?;
            let result = self.gradient.bind(py).call1((batch, PyArray1::from_slice(py, &direction)))?;
            let rows: PyReadonlyArray2<'_, f32> = result.extract()?;
            if rows.shape() != [count, pixels] {
                return Err(refused(format!(
                    "the gradient has the shape {:?} for {count} pictures, wanted {:?}",
                    rows.shape(),
                    [count, pixels]
                )));
            }
            let mut gradient = vec![0.0; pixels];
            for row in rows.as_slice()?.chunks_exact(pixels) {
                gradient
                    .iter_mut()
                    .zip(row)
                    .for_each(|(sum, &value)| *sum += f64::from(value) / count as f64);
            }
            Ok(gradient)
        })
        .map_err(|error: PyErr| error.into())
    }
}

/// Changed pixels, their norm, their margin, and how gradients were had.
type Found<'py> = (Bound<'py, PyArray1<f32>>, f64, f64, &'static str);

/// Looks for a perturbation up to a size, of an ONNX encoder or of a function with or without its gradient.
#[pyfunction]
#[pyo3(signature = (encoder, function, gradient, pixels, gallery, searching))]
pub(crate) fn perturb<'py>(
    py: Python<'py>,
    encoder: Option<PyRef<'py, Encoder>>,
    function: Option<Py<PyAny>>,
    gradient: Option<Py<PyAny>>,
    pixels: PyReadonlyArray1<'py, f32>,
    gallery: PyRef<'py, Gallery>,
    searching: Searching,
) -> PyResult<Found<'py>> {
    let pixels = pixels.as_slice()?.to_vec();
    let seed = parameters::seed(&searching.seed)?;
    let against = if searching.sigma.is_some() { Against::Smoothed } else { Against::Plain };
    // The plain retriever draws no noise, and nothing is judged here.
    let sigma: Sigma = parameters::sigma(searching.sigma.unwrap_or(1.0))?;
    let (few, alpha): (SampleCount, Alpha) = (parameters::sample_count(1)?, parameters::alpha(0.5)?);
    let judging = Judging { alpha, pilot: few, samples: few, refinements: 0, seed };
    let Searching { steps, restarts, noise, .. } = searching;
    let kept = if searching.clip { Pixels::Clipped } else { Pixels::Free };
    let effort = Effort { steps, restarts, noise, pixels: kept };
    let items = gallery.in_memory()?;
    let Some(label) = items.label_named(&searching.label) else {
        return Err(refused(format!("the gallery has no label `{}`", searching.label)));
    };
    let relevance = Relevance::new(Positives::Label(label), searching.excluded);
    let picture = Picture { identity: &searching.identity, pixels: &pixels };
    let attacked = |embedder: &dyn Embedder, gradients: &dyn InputGradients| {
        Attacker::new((embedder, gradients), items, sigma, seed, effort, judging)
            .perturb(against, &picture, &relevance, searching.size)
            .map(|found| (found, gradients.mode().gradients()))
            .map_err(|error| raised(&error))
    };
    let (found, gradients) = match (encoder, function) {
        (Some(encoder), _) => {
            let (embedder, computed) = (&encoder.embedder, encoder.gradients(py)?);
            py.detach(|| attacked(embedder, computed))?
        }
        (None, Some(call)) => {
            let norm_bound = parameters::norm_bound(searching.norm_bound)?;
            let (shape, dimension) = (searching.shape, searching.dimension);
            let function = Function { call: Some(call), shape, dimension, norm_bound };
            py.detach(|| match gradient {
                Some(gradient) => attacked(&function, &Differentiated { function: &function, gradient }),
                None => attacked(&function, &BlackBox::new(&function)),
            })?
        }
        (None, None) => return Err(refused("there is neither an encoder nor a function")),
    };
    Ok((PyArray1::from_vec(py, found.pixels), found.norm, found.margin, gradients))
}
