//! The threads that run the encoder: what they share, and what each of them does.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use retrievalguard::{Excess, Samples};

use super::queue::Queue;
use super::task::{Portion, Task};
use super::{PassError, SharedEmbedder, Work};

/// Weight of the newest batch in the measured speed.
const SPEED_MEMORY: f64 = 0.05;

/// What the threads and all tickets share.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    pub(super) embedder: SharedEmbedder,
    threads: NonZeroUsize,
    batch: usize,
    excess: Excess,
    passes: AtomicU64,
    batches: AtomicU64,
    shared_batches: AtomicU64,
    /// Pictures per second of one thread.
    speed: Mutex<f64>,
}

impl Shared {
    pub(super) fn new(
        embedder: SharedEmbedder,
        threads: NonZeroUsize,
        batch: NonZeroUsize,
        excess: Excess,
    ) -> Self {
        Self {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            embedder,
            threads,
            batch: batch.get(),
            excess,
            passes: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            shared_batches: AtomicU64::new(0),
            speed: Mutex::new(0.0),
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dimension(&self) -> usize {
        self.embedder.dimension()
    }

    /// Embeddings that keep the encoder's promise.
    pub(super) fn samples(&self, rows: Vec<f32>) -> Result<Samples, PassError> {
        let samples = Samples::new(rows, self.dimension(), self.embedder.norm_bound(), self.excess)?;
        Ok(samples.with(self.embedder.components()))
    }

    /// Pictures per second that all threads together embed when they are busy; zero before the first batch.
    pub(super) fn speed(&self) -> f64 {
        *self.speed.lock().unwrap_or_else(PoisonError::into_inner) * self.threads.get() as f64
    }

    pub(super) fn done(&self) -> Work {
        Work {
            passes: self.passes.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            shared_batches: self.shared_batches.load(Ordering::Relaxed),
        }
    }

    /// Queues a task, unless the queue is closed or its ticket was cancelled.
    pub(super) fn push(&self, task: Task) -> Result<(), PassError> {
        let mut queue = self.queue();
        if queue.is_closed() {
            return Err(PassError::Closed);
        }
        // Looked at under the lock: a cancellation before it is seen here, one after it finds the task.
        if task.account.cancelled.load(Ordering::SeqCst) {
            return Err(PassError::Cancelled);
        }
        queue.push(task);
        drop(queue);
        self.arrived.notify_all();
        Ok(())
    }

    /// Closes the queue: threads end, and whoever waits gets [`PassError::Closed`].
    pub(super) fn close(&self) {
        let tasks = self.queue().close();
        self.arrived.notify_all();
        tasks.into_iter().for_each(|task| task.result.fail(PassError::Closed));
    }

    /// One thread: takes portions and runs them until the queue is closed.
    pub(super) fn work(&self) {
        let (pixels, dimension) = (self.embedder.input_len(), self.dimension());
        let mut pictures = vec![0.0; self.batch * pixels];
        let mut rows = vec![0.0; self.batch * dimension];
        while let Some(portions) = self.take() {
            let count: usize = portions.iter().map(|portion| portion.range.len()).sum();
            self.run(&portions, &mut pictures[..count * pixels], &mut rows[..count * dimension]);
        }
    }

    /// The passes to run next; waits for some, `None` once the queue is closed.
    fn take(&self) -> Option<Vec<Portion>> {
        let mut queue = self.queue();
        while !queue.is_closed() && queue.is_empty() {
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        (!queue.is_closed()).then(|| queue.take(self.batch, self.threads))
    }

    /// Runs portions as one batch and delivers what came of each.
    fn run(&self, portions: &[Portion], pictures: &mut [f32], rows: &mut [f32]) {
        let (pixels, dimension) = (self.embedder.input_len(), self.dimension());
        let count = rows.len() / dimension;
        let started = Instant::now();
        let mut start = 0;
        for portion in portions {
            let end = start + portion.range.len();
            portion.fill(&mut pictures[start * pixels..end * pixels], pixels);
            start = end;
        }
        let together = self.embed(pictures, rows);
        if together.is_ok() {
            self.note_speed(count, started.elapsed());
        }
        self.passes.fetch_add(count as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.shared_batches.fetch_add(u64::from(portions.len() > 1), Ordering::Relaxed);
        let mut start = 0;
        for portion in portions {
            let end = start + portion.range.len();
            let own = &mut rows[start * dimension..end * dimension];
            let outcome = match &together {
                Ok(()) => Ok(()),
                Err(failure) if portions.len() == 1 => Err(failure.clone()),
                // One picture fails the whole batch; its neighbours have nothing to do with it.
                Err(_) => self.embed(&pictures[start * pixels..end * pixels], own),
            };
            match outcome {
                Ok(()) => portion.result.deliver(portion.range.clone(), own),
                Err(failure) => portion.result.fail(PassError::Encoder(failure)),
            }
            start = end;
        }
    }

    /// Runs the encoder; a panic in it is a failure like others, and the thread lives on.
    fn embed(&self, pictures: &[f32], rows: &mut [f32]) -> Result<(), String> {
        let run =
            AssertUnwindSafe(|| self.embedder.embed(pictures, rows).map_err(|failure| failure.to_string()));
        catch_unwind(run).unwrap_or_else(|_| Err("it panicked".to_owned()))
    }

    fn note_speed(&self, count: usize, time: Duration) {
        let now = count as f64 / time.as_secs_f64().max(1e-9);
        let mut speed = self.speed.lock().unwrap_or_else(PoisonError::into_inner);
        *speed = if *speed == 0.0 { now } else { *speed + SPEED_MEMORY * (now - *speed) };
    }
}
