//! One job, from the moment at which it is accepted until it is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retrievalguard::SampleCount;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use super::store::{JobEnd, JobFolder, JobRequest, StoredJob};
use super::view::{JobProgress, JobReport, JobSummary};
use crate::answer::Answer;
use crate::problem::Problem;
use crate::scheduler::Ticket;

/// Where a job stands
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobState {
    /// It waits for others
    Queued,
    /// It is being worked on
    Running,
    /// Every picture has its answer
    Finished,
    /// It could not be carried out
    Failed,
    /// It was cancelled
    Cancelled,
    /// Its files cannot be read; they are kept for inspection
    Damaged,
}

impl JobState {
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Finished | Self::Failed | Self::Cancelled | Self::Damaged => true,
        }
    }
}

/// One job.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) request: JobRequest,
    folder: JobFolder,
    passes_asked: u64,
    passes_before: AtomicU64,
    status: Mutex<JobStatus>,
    changed: watch::Sender<u64>,
}

struct JobStatus {
    state: JobState,
    answers: Vec<Option<Answer>>,
    radii: Vec<Option<f64>>,
    error: Option<String>,
    /// An answer, and whose, for which there was no room on the disk.
    unkept: Option<(usize, Answer)>,
    ticket: Option<Arc<Ticket>>,
}

impl Job {
    /// A job as it is on the disk; each of its pictures takes a pilot and a pass without noise beside the samples, or that pass alone.
    pub(super) fn new(id: String, stored: StoredJob, pilot: Option<SampleCount>) -> Self {
        let StoredJob { folder, request, answers, end } = stored;
        let asked = passes(request.samples.map(SampleCount::get), pilot.map(SampleCount::get), true);
        let drawn = answers
            .iter()
            .flatten()
            .map(|answer| passes(answer.samples, answer.pilot, answer.plain.is_some()))
            .sum();
        let radii = answers.iter().map(|answer| answer.as_ref().and_then(|answer| answer.radius)).collect();
        let (state, error) = match end {
            Some(end) => (end.state, end.error),
            None if answers.iter().all(Option::is_some) => (JobState::Finished, None),
            None => (JobState::Queued, None),
        };
        Self {
            id,
            passes_asked: asked * request.pictures as u64,
            passes_before: AtomicU64::new(drawn),
            folder,
            status: Mutex::new(JobStatus { state, answers, radii, error, unkept: None, ticket: None }),
            changed: watch::Sender::new(0),
            request,
        }
    }

    fn status(&self) -> MutexGuard<'_, JobStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> JobState {
        self.status().state
    }

    /// Begins; `false` if it was cancelled meanwhile.
    pub(super) fn begin(&self, ticket: &Arc<Ticket>) -> bool {
        let mut status = self.status();
        if status.state != JobState::Queued {
            return false;
        }
        status.state = JobState::Running;
        status.ticket = Some(Arc::clone(ticket));
        drop(status);
        self.notify();
        true
    }

    /// The first picture without an answer.
    pub(super) fn open_picture(&self) -> Option<usize> {
        self.status().answers.iter().position(Option::is_none)
    }

    /// Goes back into the queue, with the answers it has.
    pub(super) fn put_back(&self) {
        let mut status = self.status();
        if status.state == JobState::Running {
            status.state = JobState::Queued;
            if let Some(ticket) = status.ticket.take() {
                self.passes_before.fetch_add(ticket.served(), Ordering::Relaxed);
            }
        }
        drop(status);
        self.notify();
    }

    /// A picture as it was sent.
    pub(super) fn picture(&self, index: usize) -> Result<Vec<u8>, Problem> {
        self.folder.picture(index, self.request.picture_hashes.get(index)).map_err(|fault| {
            tracing::error!(job = %self.id, fault, "a picture of a job is damaged");
            Problem::unprocessable(fault)
        })
    }

    /// A radius on the way.
    pub(super) fn reached(&self, index: usize, radius: Option<f64>) {
        self.status().radii[index] = radius;
        self.notify();
    }

    /// An answer, kept before it is shown; if it cannot be kept, it waits for [`keep`](Self::keep).
    pub(super) fn answered(&self, index: usize, answer: Answer) -> Result<(), Problem> {
        self.status().unkept = Some((index, answer));
        self.keep()
    }

    /// Keeps the answer for which there was no room, if there is one; only the thread that runs jobs does it.
    pub(super) fn keep(&self) -> Result<(), Problem> {
        let unkept = self.status().unkept.take();
        let Some((index, answer)) = unkept else { return Ok(()) };
        if let Err(error) = self.folder.write_answer(index, &answer) {
            self.status().unkept = Some((index, answer));
            return Err(Problem::not_written(&error));
        }
        let mut status = self.status();
        status.radii[index] = answer.radius;
        status.answers[index] = Some(answer);
        if status.answers.iter().all(Option::is_some) && status.state == JobState::Running {
            status.state = JobState::Finished;
        }
        drop(status);
        self.notify();
        Ok(())
    }

    /// The job is over without all of its answers.
    pub(super) fn over(&self, state: JobState, error: Option<String>) -> Result<(), Problem> {
        // Held while it is written down: a job ends once.
        let mut status = self.status();
        if status.state.is_over() {
            return Ok(());
        }
        let end = JobEnd { state, error };
        self.folder.write_end(&end).map_err(|error| Problem::not_written(&error))?;
        status.state = end.state;
        status.error = end.error;
        let ticket = status.ticket.clone();
        drop(status);
        if let Some(ticket) = ticket {
            ticket.cancel();
        }
        self.notify();
        Ok(())
    }

    /// Stops where it is; the next service goes on with it.
    pub(super) fn stop(&self) {
        if let Some(ticket) = &self.status().ticket {
            ticket.cancel();
        }
        self.notify();
    }

    /// Removes what is kept of it; an error leaves it as it was.
    pub(super) fn remove(&self) -> Result<(), Problem> {
        self.folder.remove().map_err(|error| Problem::not_written(&error))
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Hears of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn summary(&self) -> JobSummary {
        let status = self.status();
        JobSummary {
            id: self.id.clone(),
            state: status.state,
            pictures: self.request.pictures,
            done: status.answers.iter().flatten().count(),
            created: self.request.created,
            error: status.error.clone(),
        }
    }

    pub(crate) fn progress(&self) -> JobProgress {
        let status = self.status();
        let now = status.ticket.as_ref().map_or(0, |ticket| ticket.served());
        JobProgress {
            state: status.state,
            done: status.answers.iter().flatten().count(),
            pictures: self.request.pictures,
            samples_drawn: self.passes_before.load(Ordering::Relaxed) + now,
            samples_asked: self.passes_asked,
            radii: status.radii.clone(),
        }
    }

    pub(crate) fn report(&self) -> JobReport {
        let progress = self.progress();
        let status = self.status();
        JobReport {
            id: self.id.clone(),
            created: self.request.created,
            progress,
            answers: status.answers.clone(),
            error: status.error.clone(),
        }
    }
}

/// Encoder passes of one picture; where samples are drawn, `plain` ones beside them.
fn passes(samples: Option<u32>, pilot: Option<u32>, plain: bool) -> u64 {
    samples.map_or(1, |samples| u64::from(samples) + u64::from(pilot.unwrap_or(0)) + u64::from(plain))
}
