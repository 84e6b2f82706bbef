//! The noise of one picture in one stage.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use retrievalguard::noise::{ImageIdentity, NoiseStream, PIXELS_PER_SAMPLE};

use crate::errors::refused;
use crate::parameters;

/// Standard normals as a function of seed, identity, stage, sample and pixel.
#[pyclass(frozen, module = "retrievalguard._native")]
pub(crate) struct Noise(NoiseStream);

#[pymethods]
impl Noise {
    #[new]
    fn new(seed: &str, identity: &[u8], stage: &str) -> PyResult<Self> {
        Ok(Self(NoiseStream::new(
            parameters::seed(seed)?,
            &ImageIdentity::new(identity),
            parameters::stage(stage)?,
        )))
    }

    /// The values of `count` pixels of one sample.
    fn fill<'py>(
        &self,
        py: Python<'py>,
        sample: u32,
        first_pixel: u64,
        count: usize,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        check_end(first_pixel, count)?;
        let values = py.detach(|| {
            let mut values = vec![0.0; count];
            self.0.fill(sample, first_pixel as usize, &mut values);
            values
        });
        Ok(PyArray1::from_vec(py, values))
    }

    /// Noisy copies of a picture, one row for each sample from `first` on.
    fn add<'py>(
        &self,
        py: Python<'py>,
        image: PyReadonlyArray1<'py, f32>,
        first: u32,
        count: u32,
        sigma: f64,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let sigma = parameters::sigma(sigma)?;
        let image = image.as_slice()?.to_vec();
        check_end(0, image.len())?;
        let end = first
            .checked_add(count)
            .ok_or_else(|| refused(format!("{count} samples from {first} on, wanted an end below 2^32")))?;
        let pixels = image.len();
        let values = py.detach(|| {
            let mut values = vec![0.0; pixels * count as usize];
            if pixels > 0 {
                for (sample, noisy) in (first..end).zip(values.chunks_exact_mut(pixels)) {
                    self.0.add(sample, sigma, &image, noisy);
                }
            }
            values
        });
        PyArray1::from_vec(py, values).reshape([count as usize, pixels])
    }
}

/// What the stream would panic at.
fn check_end(first_pixel: u64, count: usize) -> PyResult<()> {
    match first_pixel.checked_add(count as u64) {
        Some(end) if end <= PIXELS_PER_SAMPLE => Ok(()),
        _ => Err(refused(format!(
            "{count} values from pixel {first_pixel} on, wanted an end of at most {PIXELS_PER_SAMPLE}"
        ))),
    }
}
