//! What could be certified at all.

use pyo3::prelude::*;
use retrievalguard::planner::Ceiling;

use crate::parameters;

/// What decides a ceiling.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Guarantee {
    sigma: f64,
    alpha: f64,
    norm_bound: f64,
    dimension: usize,
    gallery_samples: Option<u64>,
}

impl Guarantee {
    fn ceiling(&self) -> PyResult<Ceiling> {
        let (sigma, alpha) = (parameters::sigma(self.sigma)?, parameters::alpha(self.alpha)?);
        let ceiling = Ceiling::new(sigma, alpha, parameters::norm_bound(self.norm_bound)?, self.dimension);
        Ok(match self.gallery_samples {
            Some(samples) => ceiling.gallery_samples(parameters::sample_count(samples)?),
            None => ceiling,
        })
    }
}

/// The largest radius that any query could have, or none.
#[pyfunction]
pub(crate) fn largest_radius(certificate: &str, samples: u64, guarantee: Guarantee) -> PyResult<Option<f64>> {
    let (name, samples) = (parameters::certificate(certificate)?, parameters::sample_count(samples)?);
    Ok(guarantee.ceiling()?.largest_radius(name, samples))
}

/// The fewest samples that could reach a radius, or none.
#[pyfunction]
pub(crate) fn samples_needed(certificate: &str, radius: f64, guarantee: Guarantee) -> PyResult<Option<u32>> {
    let (name, radius) = (parameters::certificate(certificate)?, parameters::target_radius(radius)?);
    Ok(guarantee.ceiling()?.samples_needed(name, radius.get()).map(|samples| samples.get()))
}
