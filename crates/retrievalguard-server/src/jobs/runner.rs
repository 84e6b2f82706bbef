//! Who works on jobs: one thread, one job after the other, picture by picture.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use retrievalguard::certificate::Retriever;

use super::Jobs;
use super::job::{Job, JobState};
use crate::gallery_writer::Snapshot;
use crate::problem::Problem;
use crate::query_execution::{QueryProgress, QueryRequest};
use crate::scheduler::{Prepared, Ticket};
use crate::service::Service;
use crate::settings::{Guarantees, Sampling};

/// Longest that a job waits for room on the disk before it is tried again.
const FULL_DISK: Duration = Duration::from_secs(10);

/// Runs jobs when the encoder has time.
pub(crate) struct JobRunner {
    pub(crate) service: Arc<Service>,
    pub(crate) jobs: Arc<Jobs>,
}

impl JobRunner {
    /// Runs one job after the other, until the service ends.
    pub(crate) fn run(&self) {
        while let Some(job) = self.jobs.next() {
            let ticket = Arc::new(self.service.scheduler.background_ticket());
            if !job.begin(&ticket) {
                continue;
            }
            tracing::info!(job = %job.id, pictures = job.request.pictures, "job begins");
            let result = self.run_job(&job, &ticket);
            if self.jobs.is_closed() {
                return;
            }
            if let Err(problem) = result
                && !job.state().is_over()
            {
                let full = problem.status == StatusCode::INSUFFICIENT_STORAGE;
                // The answer that could not be kept is there; it is tried again to write it down.
                if full || job.over(JobState::Failed, Some(problem.message)).is_err() {
                    tracing::error!(job = %job.id, "a job could not be written and waits for room on the disk");
                    job.put_back();
                    self.jobs.pause(FULL_DISK);
                    continue;
                }
            }
            tracing::info!(job = %job.id, state = ?job.state(), "job ends");
        }
    }

    /// Answers every picture that has no answer yet.
    fn run_job(&self, job: &Job, ticket: &Ticket) -> Result<(), Problem> {
        let service = &self.service;
        job.keep()?;
        while let Some(index) = job.open_picture() {
            let bytes = job.picture(index)?;
            let (prepared, picture_hash) = service.prepare(&format!("{}-{index}", job.id), &bytes)?;
            let snapshot = service.gallery.current();
            let identity = self.noise_identity(job, index, &snapshot);
            let picture =
                Arc::new(Prepared { identity, pixels: prepared.pixels.clone(), file: prepared.file });
            let request = QueryRequest {
                picture,
                picture_hash,
                draws: job.request.draws(),
                top_k: job.request.top_k,
                // The seed serves every picture of the job, so no answer may open it.
                receipt: None,
                request_id: job.request.request_id.clone(),
            };
            let mut report = |progress: QueryProgress| match progress {
                QueryProgress::Promised(_) | QueryProgress::First(_) => {}
                QueryProgress::Step(step) => job.reached(index, step.radius),
            };
            let answer = service.answer_from(&snapshot, &request, ticket, None, Some(&mut report))?;
            job.answered(index, answer)?;
        }
        Ok(())
    }

    /// Under which name the noise of a job's picture is drawn from the job's seed.
    ///
    /// A job that goes on after a restart repeats a picture whose radii may have been shown already. Against the same system
    /// it repeats its noise, and so its answer. Against another gallery, or another guarantee, that noise would no longer be
    /// independent of what it is to prove: the name is another, and the noise with it.
    fn noise_identity(&self, job: &Job, index: usize, snapshot: &Snapshot) -> String {
        let Guarantees { basis, model, contract, .. } = &self.service.guarantees;
        let Some(Sampling { sigma, alpha, retriever, pilot, .. }) = basis.sampling() else {
            // Nothing is drawn.
            return format!("{}-{index}", job.id);
        };
        let (gallery, engine) = (snapshot.version(), self.service.embedder.report());
        // The mean goes without a name, as it did when there was no other.
        let retriever = match retriever {
            Retriever::Mean => String::new(),
            Retriever::Vote | Retriever::Pairwise | Retriever::Plain => format!(" {retriever}"),
        };
        format!("{}-{index} {gallery} {model} {contract} {engine} {sigma} {alpha} {pilot}{retriever}", job.id)
    }
}
