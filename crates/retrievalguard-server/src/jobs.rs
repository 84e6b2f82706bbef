//! Large certifications that run when there is time, and survive a restart of the service.
//!
//! A job whose service was killed goes on with the first picture that has no answer. Its seed is kept in its folder,
//! which nobody else may read, so it answers what it would have answered, if the gallery is the one that it was. Against
//! another gallery it draws other noise: radii that were shown on the way may be why the gallery is another.
//!
//! [`store`] keeps jobs on the disk, [`job`] is one of them, [`runner`] works on them, [`view`] is what clients see, and
//! [`Jobs`] knows all of them and which is next.

mod job;
mod runner;
mod store;
mod view;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use hyper::StatusCode;
use retrievalguard::SampleCount;

use self::store::{FoundJob, JobStore};
use crate::problem::Problem;

pub(crate) use self::job::{Job, JobState};
pub(crate) use self::runner::JobRunner;
pub(crate) use self::store::JobRequest;
pub(crate) use self::view::{JobReport, JobSummary};

/// All jobs, and which is next.
pub(crate) struct Jobs {
    store: JobStore,
    most: usize,
    /// Samples of a pilot; none without noise.
    pilot: Option<SampleCount>,
    queue: Mutex<JobQueue>,
    arrived: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: BTreeMap<String, Arc<Job>>,
    /// Names of those that cannot be read, and why.
    damaged: BTreeMap<String, String>,
    /// Jobs that are being written to the disk; each holds a slot.
    arriving: usize,
    closed: bool,
}

impl Jobs {
    /// Takes up what an earlier service left.
    pub(crate) fn open(folder: Option<&Path>, most: usize, pilot: Option<SampleCount>) -> io::Result<Self> {
        let (store, found) = JobStore::open(folder)?;
        let mut queue = JobQueue::default();
        for FoundJob { id, job } in found {
            match job {
                Ok(stored) => {
                    queue.jobs.insert(id.clone(), Arc::new(Job::new(id, stored, pilot)));
                }
                Err(fault) => {
                    queue.damaged.insert(id, fault);
                }
            }
        }
        Ok(Self { store, most, pilot, queue: Mutex::new(queue), arrived: Condvar::new() })
    }

    /// Accepts a job: once this returns, the job outlives the service.
    pub(crate) fn accept(&self, request: JobRequest, pictures: &[Bytes]) -> Result<Arc<Job>, Problem> {
        if self.is_closed() {
            return Err(Problem::closing());
        }
        self.check_available()?;
        let id = crate::random_name().map_err(Problem::internal)?;
        self.reserve()?;
        let stored = self.store.create(&id, request, pictures);
        let mut queue = self.queue();
        queue.arriving -= 1;
        // It is on the disk: if the service is ending, the next one runs it.
        let job = Arc::new(Job::new(id.clone(), stored?, self.pilot));
        queue.jobs.insert(id, Arc::clone(&job));
        drop(queue);
        self.arrived.notify_all();
        self.forget_oldest();
        Ok(job)
    }

    /// Refuses jobs that could not be kept.
    pub(crate) fn check_available(&self) -> Result<(), Problem> {
        self.store.check_available()
    }

    /// Reserves a slot for a job that is being written to the disk; finished jobs hold none.
    fn reserve(&self) -> Result<(), Problem> {
        let mut queue = self.queue();
        let unfinished = queue.jobs.values().filter(|job| !job.state().is_over()).count();
        if unfinished + queue.arriving >= self.most {
            return Err(Problem::busy(format!("all {} slots for jobs are taken", self.most), 60));
        }
        queue.arriving += 1;
        Ok(())
    }

    /// Forgets the oldest jobs that are over, for as long as there are more jobs than slots.
    fn forget_oldest(&self) {
        loop {
            let oldest = {
                let queue = self.queue();
                if queue.jobs.len() <= self.most {
                    return;
                }
                let over = queue.jobs.values().filter(|job| job.state().is_over());
                over.min_by_key(|job| job.request.created).cloned()
            };
            let Some(job) = oldest else { return };
            if let Err(problem) = self.forget(&job) {
                tracing::warn!(job = %job.id, cause = problem.message, "a finished job could not be removed");
                return;
            }
        }
    }

    /// Removes a job; an error leaves it as it was.
    fn forget(&self, job: &Job) -> Result<(), Problem> {
        job.remove()?;
        self.queue().jobs.remove(&job.id);
        Ok(())
    }

    /// Calls a job off, or forgets one that is over.
    pub(crate) fn end(&self, id: &str, may_end: impl Fn(&JobRequest) -> bool) -> Result<(), Problem> {
        if self.queue().damaged.contains_key(id) {
            let message = "the job is damaged and its folder is kept for inspection";
            return Err(Problem::conflict(message));
        }
        self.check_available()?;
        let job = self.find(id)?;
        if !may_end(&job.request) {
            let message = "the job is another client's, wanted its own token or one that may write";
            return Err(Problem::new(StatusCode::FORBIDDEN, "not_yours", message));
        }
        if job.state().is_over() {
            return self.forget(&job);
        }
        job.over(JobState::Cancelled, None)
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Job>, Problem> {
        let found = self.queue().jobs.get(id).cloned();
        found.ok_or_else(|| {
            let id: String = id.chars().take(80).collect();
            Problem::not_found(format!("there is no job `{id}`"))
        })
    }

    /// What is known of a damaged job.
    pub(crate) fn damaged(&self, id: &str) -> Option<JobReport> {
        let error = self.queue().damaged.get(id).cloned()?;
        Some(JobReport::damaged(id, error))
    }

    /// Every job, the newest first and those that are damaged last.
    pub(crate) fn list(&self) -> Vec<JobSummary> {
        let queue = self.queue();
        let damaged = queue.damaged.iter().map(|(id, error)| JobSummary::damaged(id, error));
        let mut list: Vec<JobSummary> = queue.jobs.values().map(|job| job.summary()).chain(damaged).collect();
        list.sort_by(|left, right| (right.created, &left.id).cmp(&(left.created, &right.id)));
        list
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.queue().jobs.values().filter(|job| !job.state().is_over()).count()
    }

    /// The next job to run; waits for one, `None` once the service ends.
    fn next(&self) -> Option<Arc<Job>> {
        let mut queue = self.queue();
        loop {
            if queue.closed || !self.store.is_available() {
                return None;
            }
            let waiting = queue.jobs.values().filter(|job| job.state() == JobState::Queued);
            let oldest = waiting.min_by_key(|job| (job.request.created, job.id.clone()));
            if let Some(job) = oldest {
                return Some(Arc::clone(job));
            }
            queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a while, or until the service ends.
    fn pause(&self, time: Duration) {
        let queue = self.queue();
        let waited = self.arrived.wait_timeout_while(queue, time, |queue| !queue.closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Stops running jobs where they are; the next service goes on with them.
    pub(crate) fn close(&self) {
        let jobs: Vec<Arc<Job>> = {
            let mut queue = self.queue();
            queue.closed = true;
            queue.jobs.values().cloned().collect()
        };
        self.arrived.notify_all();
        jobs.iter().for_each(|job| job.stop());
    }

    fn is_closed(&self) -> bool {
        self.queue().closed
    }

    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use retrievalguard::Seed;

    use super::store::FORGOTTEN;
    use super::*;

    fn opened(folder: &Path) -> Jobs {
        Jobs::open(Some(folder), 1, SampleCount::new(10).ok()).unwrap()
    }

    fn asked(created: u64) -> JobRequest {
        JobRequest {
            samples: SampleCount::new(100).ok(),
            target: None,
            top_k: 1,
            pictures: 1,
            seed: Some(Seed::new(1)),
            request_id: "request".to_owned(),
            created,
            client: String::new(),
            picture_hashes: Vec::new(),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name != retrievalguard::storage::lock::LOCK_FILE);
        names.sort();
        names
    }

    #[test]
    fn a_job_that_is_over_stays_until_another_is_on_the_disk() {
        let place = tempfile::tempdir().unwrap();
        let (folder, away) = (place.path().join("jobs"), place.path().join("away"));
        let jobs = opened(&folder);
        let pictures = [Bytes::from_static(b"a picture")];
        let first = jobs.accept(asked(1), &pictures).unwrap();
        let busy = jobs.accept(asked(2), &pictures).err().unwrap();
        assert_eq!(busy.code, "overloaded");
        first.over(JobState::Cancelled, None).unwrap();

        // Nothing can be written or removed where a file stands in the folder's place.
        fs::rename(&folder, &away).unwrap();
        fs::write(&folder, b"in the way").unwrap();
        assert!(jobs.accept(asked(3), &pictures).is_err());
        assert!(jobs.end(&first.id, |_| true).is_err());
        assert_eq!(jobs.list().len(), 1);
        assert!(jobs.find(&first.id).is_ok());
        fs::remove_file(&folder).unwrap();
        fs::rename(&away, &folder).unwrap();

        let second = jobs.accept(asked(4), &pictures).unwrap();
        assert!(jobs.find(&first.id).is_err());
        assert_eq!(names(&folder), std::slice::from_ref(&second.id));
        second.over(JobState::Cancelled, None).unwrap();
        jobs.end(&second.id, |_| true).unwrap();
        assert!(jobs.list().is_empty() && names(&folder).is_empty());
    }

    #[test]
    fn folders_without_a_request_are_cleared_shown_or_left_by_what_is_in_them() {
        let place = tempfile::tempdir().unwrap();
        let id = |digit: &str| digit.repeat(32);
        let forgotten = format!("{}{FORGOTTEN}", id("d"));
        for (name, file) in [
            (id("a"), "picture-0"),
            (id("b"), "answer-0.json"),
            (id("c"), "thesis.txt"),
            (forgotten, "answer-0.json"),
        ] {
            fs::create_dir(place.path().join(&name)).unwrap();
            fs::write(place.path().join(&name).join(file), b"anything").unwrap();
        }
        let jobs = opened(place.path());
        assert_eq!(names(place.path()), [id("b"), id("c")]);
        let listed = jobs.list();
        let shown: Vec<(&str, JobState)> = listed.iter().map(|job| (job.id.as_str(), job.state)).collect();
        assert_eq!(shown, [(id("b").as_str(), JobState::Damaged)]);
        assert!(listed[0].error.as_ref().unwrap().contains("request.json is missing"));
    }
}
