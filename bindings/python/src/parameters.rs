//! Words and numbers from Python as the checked types of the method crate.

use pyo3::PyResult;
use retrievalguard::certificate::{CertificateName, Verdict};
use retrievalguard::gallery::Metric;
use retrievalguard::noise::Stage;
use retrievalguard::{
    Alpha, Components, Excess, NormBound, ParameterError, SampleCount, Seed, Sigma, TargetRadius,
};

use crate::errors::{raised, refused};

fn checked<T>(value: Result<T, ParameterError>) -> PyResult<T> {
    value.map_err(|error| raised(&error))
}

pub(crate) fn sigma(value: f64) -> PyResult<Sigma> {
    checked(Sigma::new(value))
}

pub(crate) fn alpha(value: f64) -> PyResult<Alpha> {
    checked(Alpha::new(value))
}

pub(crate) fn norm_bound(value: f64) -> PyResult<NormBound> {
    checked(NormBound::new(value))
}

pub(crate) fn target_radius(value: f64) -> PyResult<TargetRadius> {
    checked(TargetRadius::new(value))
}

pub(crate) fn sample_count(value: u64) -> PyResult<SampleCount> {
    checked(SampleCount::new(value))
}

/// Seeds have 128 bits and come as decimal digits.
pub(crate) fn seed(digits: &str) -> PyResult<Seed> {
    checked(digits.parse())
}

pub(crate) fn excess(word: &str) -> PyResult<Excess> {
    match word {
        "refuse" => Ok(Excess::Refuse),
        "project" => Ok(Excess::Project),
        _ => Err(refused(format!("excess is `{word}`, wanted refuse or project"))),
    }
}

pub(crate) fn metric(word: &str) -> PyResult<Metric> {
    match word {
        "euclidean" => Ok(Metric::Euclidean),
        "cosine" => Ok(Metric::Cosine),
        _ => Err(refused(format!("metric is `{word}`, wanted euclidean or cosine"))),
    }
}

pub(crate) fn metric_word(metric: Metric) -> &'static str {
    match metric {
        Metric::Euclidean => "euclidean",
        Metric::Cosine => "cosine",
    }
}

pub(crate) fn stage(word: &str) -> PyResult<Stage> {
    Stage::ALL.into_iter().find(|stage| stage.as_str() == word).ok_or_else(|| {
        refused(format!("stage is `{word}`, wanted {}", Stage::ALL.map(Stage::as_str).join(", ")))
    })
}

pub(crate) fn certificate(word: &str) -> PyResult<CertificateName> {
    word.parse().map_err(|error| raised(&error as &retrievalguard::certificate::CertificateError))
}

/// The verdict's word and its radius, infinite when unbounded.
pub(crate) fn verdict(verdict: Verdict) -> (&'static str, Option<f64>) {
    let word = match verdict {
        Verdict::Certified { .. } => "certified",
        Verdict::Abstained => "abstained",
        Verdict::Misretrieved => "misretrieved",
    };
    (word, verdict.radius().map(|radius| radius.get()))
}

/// Whether negative components are set to zero.
pub(crate) fn components(non_negative: bool) -> Components {
    if non_negative { Components::NonNegative } else { Components::Any }
}
