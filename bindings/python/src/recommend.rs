//! Which noise level, which retriever, and what a decision will cost.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::recall::RecallError;
use retrievalguard_encoder::recommend::{RecommendError, RecommendOptions};

use crate::encoder::{Encoder, positive};
use crate::errors::{raised, refused};
use crate::interruptible::interruptible;
use crate::parameters;
use crate::pipeline::Pictures;

/// What is tried, and what it is judged by.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Trying {
    sigmas: Vec<f64>,
    radius: Option<f64>,
    recall_loss: f64,
    queries: usize,
    copies: u64,
    gallery_copies: u64,
    samples: u64,
    alpha: f64,
    seed: String,
    excess: String,
}

/// What was found, as the JSON text that `retrievalguard recommend --json` prints, and the pictures left out with their reasons.
#[pyfunction]
pub(crate) fn recommend<'py>(
    py: Python<'py>,
    pictures: Pictures,
    encoder: &Bound<'py, Encoder>,
    trying: Trying,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<(String, Vec<(String, String)>)> {
    let encoder = encoder.get();
    let options = RecommendOptions {
        sigmas: trying.sigmas.into_iter().map(parameters::sigma).collect::<PyResult<_>>()?,
        radius: trying.radius.map(parameters::target_radius).transpose()?,
        recall_loss: trying.recall_loss,
        queries: positive("queries", trying.queries, usize::MAX)?,
        copies: parameters::sample_count(trying.copies)?,
        gallery_copies: parameters::sample_count(trying.gallery_copies)?,
        planned: parameters::sample_count(trying.samples)?,
        alpha: parameters::alpha(trying.alpha)?,
        seed: parameters::seed(&trying.seed)?,
        excess: parameters::excess(&trying.excess)?,
        broken: pictures.broken(),
        batch: encoder.batch,
        threads: encoder.threads,
    };
    let options = options.check().map_err(|error| raised(&error))?;
    let records = pictures.read(Role::Gallery)?.chosen;
    let found = interruptible(py, progress.as_ref(), |observer| {
        retrievalguard_encoder::recommend::recommend(&encoder.embedder, &records, &options, observer)
    })?;
    let (found, skipped) = found.map_err(|error| match &error {
        RecommendError::Recall(RecallError::Stopped { .. }) => {
            PyKeyboardInterrupt::new_err(error.to_string())
        }
        _ => raised(&error),
    })?;
    let text = serde_json::to_string(&found).map_err(|error| refused(error.to_string()))?;
    Ok((text, skipped))
}
