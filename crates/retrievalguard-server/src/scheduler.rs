//! Who gets the encoder next: passes of all queries go through one set of threads, in shared batches.
//!
//! Every query has a [`Ticket`]. Its passes are served in the order of tickets, newcomers before those that have had
//! much already: a ticket sinks a level each time its passes grow fourfold, and lower levels go first; background
//! tickets come last. Of four turns one belongs to the oldest ticket whatever its level and one to the oldest background
//! ticket, so that an expensive query or job is slowed down and never starved. Room that one ticket leaves in a batch goes
//! to the next ticket. A batch that fails is run again ticket by ticket, so that no query fails for another's picture.
//! Dropping a ticket takes its passes out of the queue.
//!
//! Noise is a function of its counters and the encoder treats every picture of a batch alike, so no result depends on
//! who shared a batch with whom.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Embedder, EmbedderFailure, Excess, NormBound, SampleError, Samples, Seed, Sigma};

/// Passes after which a ticket sinks by one level; each further level is four times as wide.
const FIRST_LEVEL: u64 = 2_048;

/// The lowest level.
const LEVELS: u32 = 5;

/// Turns after which the order of turns begins again.
const ROUND: u64 = 4;

/// Which turn of a round is the oldest ticket's, and which the oldest background ticket's.
const OLDEST: u64 = 0;
const OLDEST_BACKGROUND: u64 = 2;

/// Fewest passes worth a batch of their own while other threads are idle.
const FEWEST: usize = 8;

/// Weight of the newest batch in the measured speed.
const SPEED_MEMORY: f64 = 0.05;

/// An encoder that may be shared between threads.
pub type SharedEmbedder = Arc<dyn Embedder + Send + Sync>;

/// Why passes did not come back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The client has left, or the time is over.
    #[error("the request was cancelled")]
    Cancelled,
    /// The service is ending.
    #[error("the service is shutting down")]
    Closed,
    /// The encoder failed on these passes.
    #[error("the encoder failed: {0}")]
    Encoder(String),
    /// The encoder's output breaks its promise.
    #[error(transparent)]
    Samples(#[from] SampleError),
}

/// The pixels of one query, prepared and checked.
#[derive(Debug)]
pub struct Prepared {
    /// Name under which its noise is drawn.
    pub identity: String,
    /// Planes in `[0, 1]`, as the encoder takes them.
    pub pixels: Vec<f32>,
}

/// A query's place in the queue; dropping it cancels what is queued.
pub struct Ticket {
    account: Arc<Account>,
    shared: Arc<Shared>,
}

/// What is known about a ticket.
struct Account {
    number: u64,
    served: AtomicU64,
    waited: AtomicU64,
    cancelled: AtomicBool,
    background: bool,
}

impl Account {
    fn level(&self) -> u32 {
        if self.background {
            return LEVELS + 1;
        }
        let quotas = self.served.load(Ordering::Relaxed) / FIRST_LEVEL;
        if quotas == 0 { 0 } else { (1 + quotas.ilog2() / 2).min(LEVELS) }
    }
}

/// Passes that were asked for together.
struct Task {
    account: Arc<Account>,
    source: Source,
    /// Next pass that nobody has taken.
    next: usize,
    count: usize,
    asked: Instant,
    result: Arc<TaskResult>,
}

/// Where the pixels of a pass come from.
#[derive(Clone)]
enum Source {
    Noisy { picture: Arc<Prepared>, stream: NoiseStream, first: u32, sigma: Sigma },
    Given(Arc<Vec<f32>>),
}

struct TaskResult {
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    rows: Vec<f32>,
    missing: usize,
    failure: Option<PassError>,
}

/// Part of a task that one thread runs.
struct Portion {
    source: Source,
    range: Range<usize>,
    result: Arc<TaskResult>,
}

/// Queue order: level, ticket, task.
type QueueKey = (u32, u64, u64);

struct Queue {
    tasks: BTreeMap<QueueKey, Task>,
    turn: u64,
    next_task: u64,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    embedder: SharedEmbedder,
    threads: NonZeroUsize,
    batch: usize,
    excess: Excess,
    tickets: AtomicU64,
    passes: AtomicU64,
    batches: AtomicU64,
    shared_batches: AtomicU64,
    speed: Mutex<f64>,
}

/// The threads that run the encoder, and the queue in front of them.
pub struct Scheduler {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// What the threads have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pictures embedded.
    pub passes: u64,
    /// Calls of the encoder.
    pub batches: u64,
    /// Calls in which several queries had a part.
    pub shared_batches: u64,
}

impl Scheduler {
    /// Starts the threads.
    pub fn start(
        embedder: SharedEmbedder,
        threads: NonZeroUsize,
        batch: NonZeroUsize,
        excess: Excess,
    ) -> std::io::Result<Self> {
        let queue = Queue { tasks: BTreeMap::new(), turn: 0, next_task: 0, closed: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            embedder,
            threads,
            batch: batch.get(),
            excess,
            tickets: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            shared_batches: AtomicU64::new(0),
            speed: Mutex::new(0.0),
        });
        let workers = (0..threads.get())
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::Builder::new().name(format!("encoder-{number}")).spawn(move || shared.work())
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { shared, workers: Mutex::new(workers) })
    }

    /// A ticket behind all that exist.
    pub fn ticket(&self) -> Ticket {
        self.new_ticket(false)
    }

    /// A ticket behind all others, later ones too, with a share of the turns of its own.
    pub fn background_ticket(&self) -> Ticket {
        self.new_ticket(true)
    }

    fn new_ticket(&self, background: bool) -> Ticket {
        let account = Account {
            number: self.shared.tickets.fetch_add(1, Ordering::Relaxed),
            served: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            background,
        };
        Ticket { account: Arc::new(account), shared: Arc::clone(&self.shared) }
    }

    /// Passes that are waiting to be run.
    pub fn backlog(&self) -> u64 {
        self.shared.queue().tasks.values().map(|task| (task.count - task.next) as u64).sum()
    }

    /// Pictures per second that all threads together embed when they are busy; zero before the first batch.
    pub fn speed(&self) -> f64 {
        *self.shared.speed.lock().unwrap_or_else(PoisonError::into_inner) * self.shared.threads.get() as f64
    }

    /// What was done so far.
    pub fn work(&self) -> Work {
        Work {
            passes: self.shared.passes.load(Ordering::Relaxed),
            batches: self.shared.batches.load(Ordering::Relaxed),
            shared_batches: self.shared.shared_batches.load(Ordering::Relaxed),
        }
    }

    /// Ends the threads; whoever waits gets [`PassError::Closed`].
    pub fn close(&self) {
        let tasks = {
            let mut queue = self.shared.queue();
            queue.closed = true;
            std::mem::take(&mut queue.tasks)
        };
        self.shared.arrived.notify_all();
        tasks.into_values().for_each(|task| task.result.fail(PassError::Closed));
        for worker in std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let closed = self.shared.queue().closed;
        if !closed && !thread::panicking() {
            self.close();
        }
    }
}

impl Ticket {
    /// Embeddings of noisy copies `x + σz_i` for a range of sample indices; waits until all are there.
    pub fn samples(
        &self,
        picture: &Arc<Prepared>,
        (sigma, seed): (Sigma, Seed),
        stage: Stage,
        range: Range<u32>,
    ) -> Result<Samples, PassError> {
        let stream = NoiseStream::new(seed, &ImageIdentity::new(&picture.identity), stage);
        let source = Source::Noisy { picture: Arc::clone(picture), stream, first: range.start, sigma };
        let rows = self.rows(source, range.len())?;
        Ok(Samples::new(
            rows,
            self.shared.dimension(),
            self.shared.embedder.norm_bound(),
            self.shared.excess,
        )?)
    }

    /// Embeddings of pictures as they are, checked like every sample.
    pub fn plain(&self, pictures: Vec<f32>) -> Result<Samples, PassError> {
        let rows = self.raw(pictures)?;
        Ok(Samples::new(
            rows,
            self.shared.dimension(),
            self.shared.embedder.norm_bound(),
            self.shared.excess,
        )?)
    }

    /// The encoder behind the queue, for whoever wants to call it directly.
    pub fn embedder(&self) -> QueuedEmbedder<'_> {
        QueuedEmbedder { ticket: self }
    }

    /// Takes this ticket's passes out of the queue; whoever waits for them gets [`PassError::Cancelled`].
    pub fn cancel(&self) {
        self.account.cancelled.store(true, Ordering::SeqCst);
        let dropped: Vec<Task> = {
            let mut queue = self.shared.queue();
            let keys: Vec<QueueKey> = queue
                .tasks
                .iter()
                .filter(|(_, task)| Arc::ptr_eq(&task.account, &self.account))
                .map(|(&key, _)| key)
                .collect();
            keys.iter().filter_map(|key| queue.tasks.remove(key)).collect()
        };
        dropped.into_iter().for_each(|task| task.result.fail(PassError::Cancelled));
    }

    /// Whether [`Ticket::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.account.cancelled.load(Ordering::SeqCst)
    }

    /// Passes that were run or are being run for this ticket.
    pub fn served(&self) -> u64 {
        self.account.served.load(Ordering::Relaxed)
    }

    /// Counts work that was done for this ticket outside of the queue as if it had been queued.
    pub(crate) fn charge(&self, passes: u64) {
        self.account.served.fetch_add(passes, Ordering::Relaxed);
    }

    /// Time between asking for passes and the first of them, summed over what was asked.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.account.waited.load(Ordering::Relaxed))
    }

    fn raw(&self, pictures: Vec<f32>) -> Result<Vec<f32>, PassError> {
        let count = pictures.len() / self.shared.embedder.input_len();
        self.rows(Source::Given(Arc::new(pictures)), count)
    }

    fn rows(&self, source: Source, count: usize) -> Result<Vec<f32>, PassError> {
        let rows = vec![0.0; count * self.shared.dimension()];
        let result = Arc::new(TaskResult {
            progress: Mutex::new(Progress { rows, missing: count, failure: None }),
            changed: Condvar::new(),
        });
        if count > 0 {
            let task = Task {
                account: Arc::clone(&self.account),
                source,
                next: 0,
                count,
                asked: Instant::now(),
                result: Arc::clone(&result),
            };
            let mut queue = self.shared.queue();
            if queue.closed {
                return Err(PassError::Closed);
            }
            // Looked at under the lock: a cancellation before it is seen here, one after it finds the task.
            if self.is_cancelled() {
                return Err(PassError::Cancelled);
            }
            let key = (self.account.level(), self.account.number, queue.next_task);
            queue.next_task += 1;
            queue.tasks.insert(key, task);
            drop(queue);
            self.shared.arrived.notify_all();
        }
        result.wait()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// An encoder whose calls are queued like everybody's.
pub struct QueuedEmbedder<'t> {
    ticket: &'t Ticket,
}

impl Embedder for QueuedEmbedder<'_> {
    fn input_shape(&self) -> &[usize] {
        self.ticket.shared.embedder.input_shape()
    }

    fn dimension(&self) -> usize {
        self.ticket.shared.dimension()
    }

    fn norm_bound(&self) -> NormBound {
        self.ticket.shared.embedder.norm_bound()
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        embeddings.copy_from_slice(&self.ticket.raw(pictures.to_vec())?);
        Ok(())
    }
}

impl TaskResult {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: PassError) {
        self.progress().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    fn deliver(&self, range: Range<usize>, rows: &[f32]) {
        let mut progress = self.progress();
        let width = rows.len() / range.len();
        progress.rows[range.start * width..range.end * width].copy_from_slice(rows);
        progress.missing -= range.len();
        if progress.missing == 0 {
            self.changed.notify_all();
        }
    }

    fn wait(&self) -> Result<Vec<f32>, PassError> {
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

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dimension(&self) -> usize {
        self.embedder.dimension()
    }

    /// One thread: takes portions and runs them until the queue is closed.
    fn work(&self) {
        let (pixels, dimension) = (self.embedder.input_len(), self.dimension());
        let mut pictures = vec![0.0; self.batch * pixels];
        let mut rows = vec![0.0; self.batch * dimension];
        while let Some(portions) = self.take() {
            let count: usize = portions.iter().map(|portion| portion.range.len()).sum();
            let (pictures, rows) = (&mut pictures[..count * pixels], &mut rows[..count * dimension]);
            let started = Instant::now();
            let mut start = 0;
            for portion in &portions {
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
            for portion in &portions {
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

    /// The passes to run next, from one ticket or several; `None` once the queue is closed.
    fn take(&self) -> Option<Vec<Portion>> {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return None;
            }
            if !queue.tasks.is_empty() {
                break;
            }
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let waiting: usize = queue.tasks.values().map(|task| task.count - task.next).sum();
        // A lone query is spread over all threads.
        let mut room = self.batch.min(waiting.div_ceil(self.threads.get()).max(FEWEST));
        queue.turn += 1;
        let mut portions = Vec::new();
        let turn = queue.turn % ROUND;
        let mut keys = queue.tasks.keys().copied().filter(|&(level, ..)| match turn {
            OLDEST => level <= LEVELS,
            OLDEST_BACKGROUND => level > LEVELS,
            _ => false,
        });
        let first = keys.next();
        let older = |first: QueueKey, next: QueueKey| {
            if (next.1, next.2) < (first.1, first.2) { next } else { first }
        };
        if let Some(key) = first.map(|first| keys.fold(first, older)) {
            queue.take_from(key, &mut room, &mut portions);
        }
        while room > 0
            && let Some((&key, _)) = queue.tasks.first_key_value()
        {
            queue.take_from(key, &mut room, &mut portions);
        }
        Some(portions)
    }
}

impl Queue {
    /// Moves up to `room` passes of a task into portions and puts the rest where it belongs now.
    fn take_from(&mut self, key: QueueKey, room: &mut usize, portions: &mut Vec<Portion>) {
        let Some(mut task) = self.tasks.remove(&key) else { return };
        let count = (*room).min(task.count - task.next);
        let range = task.next..task.next + count;
        if task.next == 0 {
            let waited = u64::try_from(task.asked.elapsed().as_micros()).unwrap_or(u64::MAX);
            task.account.waited.fetch_add(waited, Ordering::Relaxed);
        }
        portions.push(Portion { source: task.source.clone(), range, result: Arc::clone(&task.result) });
        *room -= count;
        task.next += count;
        task.account.served.fetch_add(count as u64, Ordering::Relaxed);
        if task.next < task.count {
            let (_, ticket, number) = key;
            self.tasks.insert((task.account.level(), ticket, number), task);
        }
    }
}

impl Portion {
    /// Writes the pixels of every pass, noise added.
    fn fill(&self, pictures: &mut [f32], pixels: usize) {
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

#[cfg(test)]
mod tests;
