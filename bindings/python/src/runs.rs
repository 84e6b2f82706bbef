//! Runs that many machines share.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::thread;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use retrievalguard_encoder::engine::{EngineError, EngineOptions, MOST_BATCH, MOST_THREADS};
use retrievalguard_worker::{Assignment, Notes, RunStore, Sharing, WorkerError, WorkerOptions};

use crate::encoder::{Encoder, positive};
use crate::errors::{encoder_failed, raised, refused};
use crate::interruptible::interruptible;
use crate::pipeline::{Certified, Certifying, Pictures, failed, misfit, ordered};

/// Writes a run where workers find it; returns its number of tasks.
#[pyfunction]
pub(crate) fn share_pictures<'py>(
    py: Python<'py>,
    pictures: Pictures,
    encoder: &Bound<'py, Encoder>,
    places: (PathBuf, String),
    certifying: Certifying,
    chunk: Option<u32>,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<usize> {
    let (encoder, (gallery, run)) = (encoder.get(), places);
    let chunk =
        chunk.map(|chunk| NonZeroU32::new(chunk).ok_or_else(|| refused("chunk is 0, wanted at least 1")));
    let chunk = chunk.transpose()?;
    ordered(py, "share_pictures", &pictures, (encoder, &gallery), &certifying, |ordered| {
        let store = RunStore::open(&run).map_err(|error| raised(&error))?;
        let tasks = interruptible(py, progress.as_ref(), |observer| {
            let notes = Notes { places: ordered.places.clone(), jsonl: false, tsv: false };
            let sharing = Sharing { model: &encoder.model, gallery: &gallery, chunk, notes };
            retrievalguard_worker::share(&store, &ordered.request, sharing, observer)
        })?;
        tasks.map_err(|error| match error {
            WorkerError::Pipeline(error) => misfit(&error, &gallery, encoder),
            error => raised_by_run(&error),
        })
    })
}

/// Numbers of the tasks that have no part yet, and how many tasks there are.
#[pyfunction]
pub(crate) fn unfinished(py: Python<'_>, run: &str) -> PyResult<(Vec<usize>, usize)> {
    let found = py.detach(|| retrievalguard_worker::unfinished(&RunStore::open(run)?, &Assignment::All));
    let found = found.map_err(|error| raised(&error))?;
    Ok((found.numbers, found.total))
}

/// Puts the parts of a run together and writes what `retrievalguard certify` writes.
#[pyfunction]
pub(crate) fn merge<'py>(
    py: Python<'py>,
    run: &str,
    out: PathBuf,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Certified> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let merged = interruptible(py, progress.as_ref(), |observer| {
        let merged = retrievalguard_worker::merge(&RunStore::open(run)?, threads, observer)?;
        merged.write(&out)?;
        Ok(merged)
    })?;
    let merged = merged.map_err(|error| raised_by_run(&error))?;
    Ok(Certified::new(merged.report))
}

/// How a worker works.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Working {
    engine: Option<String>,
    library: Option<PathBuf>,
    provider: String,
    batch: usize,
    cache: Option<PathBuf>,
}

impl Working {
    fn options(self) -> PyResult<WorkerOptions> {
        let word = |error: EngineError| raised(&error);
        let engine = EngineOptions {
            engine: self.engine.map(|engine| engine.parse()).transpose().map_err(word)?,
            library: self.library,
            provider: self.provider.parse().map_err(word)?,
            sessions: Some(NonZeroUsize::MIN),
            ..EngineOptions::default()
        };
        Ok(WorkerOptions { engine, batch: positive("batch", self.batch, MOST_BATCH)?, cache: self.cache })
    }
}

/// Does the tasks that are left, all of them or those of a share.
#[pyfunction]
pub(crate) fn work<'py>(
    py: Python<'py>,
    run: &str,
    share: Option<(usize, usize)>,
    threads: usize,
    working: Working,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let assignment = share.map_or(Ok(Assignment::All), |(index, of)| Assignment::share(index, of));
    let assignment = assignment.map_err(|error| raised(&error))?;
    let (threads, options) = (positive("threads", threads, MOST_THREADS)?, working.options()?);
    let worked = interruptible(py, progress.as_ref(), |observer| {
        retrievalguard_worker::work(RunStore::open(run)?, &assignment, threads, &options, observer)
    })?;
    worked.map(drop).map_err(|error| raised_by_run(&error))
}

/// A run with its encoder and gallery opened.
#[pyclass(frozen, module = "retrievalguard._native")]
pub(crate) struct Worker {
    worker: retrievalguard_worker::Worker,
}

#[pymethods]
impl Worker {
    #[new]
    fn new(py: Python<'_>, run: &str, working: Working) -> PyResult<Self> {
        let options = working.options()?;
        let opened = py.detach(|| retrievalguard_worker::Worker::open(RunStore::open(run)?, &options));
        Ok(Self { worker: opened.map_err(|error| raised(&error))? })
    }

    /// Does a task and writes its part.
    fn carry_out(&self, py: Python<'_>, number: usize) -> PyResult<()> {
        py.detach(|| self.worker.carry_out(number)).map_err(|error| match error {
            WorkerError::Encoder(error) => encoder_failed(&error),
            WorkerError::Pipeline(error) => failed(&error),
            error => raised(&error),
        })
    }
}

/// A stop was asked for by the progress callback, whose exception has been raised already.
fn raised_by_run(error: &WorkerError) -> PyErr {
    match error {
        WorkerError::Stopped { .. } => PyKeyboardInterrupt::new_err(error.to_string()),
        _ => raised(error),
    }
}
