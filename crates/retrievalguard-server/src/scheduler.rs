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

mod queue;
mod shared;
mod task;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{
    Components, Embedder, EmbedderFailure, Excess, NormBound, SampleError, Samples, Seed, Sigma,
};
use retrievalguard_encoder::table::FilePixels;

use self::queue::Account;
use self::shared::Shared;
use self::task::{Source, Task, TaskResult};

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
    /// How far they move when pixels of the file change; none if they do not come from a file.
    pub file: Option<FilePixels>,
}

/// A query's place in the queue; dropping it cancels what is queued.
pub struct Ticket {
    account: Arc<Account>,
    shared: Arc<Shared>,
}

/// The threads that run the encoder, and the queue in front of them.
pub struct Scheduler {
    shared: Arc<Shared>,
    tickets: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
        let shared = Arc::new(Shared::new(embedder, threads, batch, excess));
        let threads = (0..threads.get())
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::Builder::new().name(format!("encoder-{number}")).spawn(move || shared.work())
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { shared, tickets: AtomicU64::new(0), threads: Mutex::new(threads) })
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
        let number = self.tickets.fetch_add(1, Ordering::Relaxed);
        Ticket { account: Arc::new(Account::new(number, background)), shared: Arc::clone(&self.shared) }
    }

    /// Passes that are waiting to be run.
    pub fn backlog(&self) -> u64 {
        self.shared.queue().backlog() as u64
    }

    /// Pictures per second that all threads together embed when they are busy; zero before the first batch.
    pub fn speed(&self) -> f64 {
        self.shared.speed()
    }

    /// What was done so far.
    pub fn work(&self) -> Work {
        self.shared.done()
    }

    /// Ends the threads; whoever waits gets [`PassError::Closed`].
    pub fn close(&self) {
        self.shared.close();
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let closed = self.shared.queue().is_closed();
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
        self.shared.samples(self.rows(source, range.len())?)
    }

    /// Embeddings of pictures as they are, checked like every sample.
    pub fn plain(&self, pictures: Vec<f32>) -> Result<Samples, PassError> {
        self.shared.samples(self.raw(pictures)?)
    }

    /// The encoder behind the queue, for whoever wants to call it directly.
    pub fn embedder(&self) -> QueuedEmbedder<'_> {
        QueuedEmbedder { ticket: self }
    }

    /// Takes this ticket's passes out of the queue; whoever waits for them gets [`PassError::Cancelled`].
    pub fn cancel(&self) {
        self.account.cancelled.store(true, Ordering::SeqCst);
        let removed = self.shared.queue().remove(&self.account);
        removed.into_iter().for_each(|task| task.result.fail(PassError::Cancelled));
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

    /// Counts time in which this ticket waited for work outside of the queue.
    pub(crate) fn charge_waiting(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.account.waited.fetch_add(time, Ordering::Relaxed);
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
        let result = Arc::new(TaskResult::new(count, self.shared.dimension()));
        if count > 0 {
            self.shared.push(Task::new(&self.account, source, count, &result))?;
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

    fn components(&self) -> Components {
        self.ticket.shared.embedder.components()
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        embeddings.copy_from_slice(&self.ticket.raw(pictures.to_vec())?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
