//! Passes that were asked for together: where their pixels come from, and how their embeddings get back.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use retrievalguard::Sigma;
use retrievalguard::noise::NoiseStream;

use super::queue::Account;
use super::{PassError, Prepared};

/// Passes that were asked for together.
pub(super) struct Task {
    pub(super) account: Arc<Account>,
    source: Source,
    /// Next pass that nobody has taken.
    next: usize,
    count: usize,
    asked: Instant,
    pub(super) result: Arc<TaskResult>,
}

impl Task {
    pub(super) fn new(
        account: &Arc<Account>,
        source: Source,
        count: usize,
        result: &Arc<TaskResult>,
    ) -> Self {
        let (account, result) = (Arc::clone(account), Arc::clone(result));
        Self { account, source, next: 0, count, asked: Instant::now(), result }
    }

    /// Passes that nobody has taken.
    pub(super) fn left(&self) -> usize {
        self.count - self.next
    }

    /// Takes the next passes, so many at the most.
    pub(super) fn take(&mut self, most: usize) -> Portion {
        let count = most.min(self.left());
        if self.next == 0 {
            let waited = u64::try_from(self.asked.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.account.waited.fetch_add(waited, Ordering::Relaxed);
        }
        let range = self.next..self.next + count;
        self.next += count;
        self.account.served.fetch_add(count as u64, Ordering::Relaxed);
        Portion { source: self.source.clone(), range, result: Arc::clone(&self.result) }
    }
}

/// Where the pixels of a pass come from.
#[derive(Clone)]
pub(super) enum Source {
    Noisy { picture: Arc<Prepared>, stream: NoiseStream, first: u32, sigma: Sigma },
    Given(Arc<Vec<f32>>),
}

/// Part of a task that one thread runs.
pub(super) struct Portion {
    source: Source,
    pub(super) range: Range<usize>,
    pub(super) result: Arc<TaskResult>,
}

impl Portion {
    /// Writes the pixels of every pass, noise added.
    pub(super) fn fill(&self, pictures: &mut [f32], pixels: usize) {
        match &self.source {
            Source::Noisy { picture, stream, first, sigma } => {
                for (index, out) in self.range.clone().zip(pictures.chunks_exact_mut(pixels)) {
                    let sample = first + u32::try_from(index).expect("a range of u32 has no more members");
                    stream.add(sample, *sigma, &picture.pixels, out);
                }
            }
            Source::Given(given) => {
                pictures.copy_from_slice(&given[self.range.start * pixels..self.range.end * pixels]);
            }
        }
    }
}

/// The embeddings of a task, for whoever waits for them.
pub(super) struct TaskResult {
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    rows: Vec<f32>,
    missing: usize,
    failure: Option<PassError>,
}

impl TaskResult {
    pub(super) fn new(count: usize, dimension: usize) -> Self {
        let rows = vec![0.0; count * dimension];
        let progress = Mutex::new(Progress { rows, missing: count, failure: None });
        Self { progress, changed: Condvar::new() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, failure: PassError) {
        self.progress().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    pub(super) fn deliver(&self, range: Range<usize>, rows: &[f32]) {
        let mut progress = self.progress();
        let width = rows.len() / range.len();
        progress.rows[range.start * width..range.end * width].copy_from_slice(rows);
        progress.missing -= range.len();
        if progress.missing == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until every row is there, or one cannot come.
    pub(super) fn wait(&self) -> Result<Vec<f32>, PassError> {
        let mut progress = self.progress();
        loop {
            if let Some(failure) = progress.failure.take() {
                return Err(failure);
            }
            if progress.missing == 0 {
                return Ok(std::mem::take(&mut progress.rows));
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
