//! Large certifications that run when there is time, and outlive the service.
//!
//! ```text
//! jobs/ID/
//!   picture-0, picture-1, …   as they were sent
//!   request.json              written last: with it the job is accepted
//!   answer-0.json, …          one per picture, as soon as it is there
//!   ended.json                how it ended, if not by its last answer
//! jobs/ID.forgotten/          a job that is no more, while it is being removed
//! ```
//!
//! A job whose service was killed goes on with the first picture that has no answer. Its seed is kept in its folder,
//! which nobody else may read, so it answers what it would have answered, if the gallery is the one that it was. Against
//! another gallery it draws other noise: radii that were shown on the way may be why the gallery is another.
//!
//! Below the JSON of a file stands its SHA-256, and the request has those of the pictures, so that nothing is answered
//! that was changed on the disk. A job that cannot be read is shown with the reason, and left as it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use hyper::StatusCode;
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::lock::{FolderLock, LockError};
use retrievalguard::{SampleCount, Seed, TargetRadius};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::answer::Answer;
use crate::problem::Problem;
use crate::scheduler::Ticket;

const REQUEST: &str = "request.json";
const ENDED: &str = "ended.json";

/// Ends the name of a job's folder from the moment at which the job is no more.
const FORGOTTEN: &str = ".forgotten";

/// Most pictures that a job on disk is believed to have.
const MOST_PICTURES: usize = 1_000_000;

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
    /// It was called off
    Cancelled,
    /// What is kept of it cannot be read; it stays where it is, for somebody to look at
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

/// What a job asks, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobRequest {
    pub(crate) samples: SampleCount,
    pub(crate) target: Option<TargetRadius>,
    pub(crate) top_k: usize,
    pub(crate) pictures: usize,
    pub(crate) seed: Seed,
    pub(crate) request_id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Who asked, as clients are told apart.
    #[serde(default)]
    pub(crate) client: String,
    /// SHA-256 of each picture as it was sent.
    #[serde(default)]
    pub(crate) picture_hashes: Vec<Digest>,
}

#[derive(Serialize, Deserialize)]
struct Ended {
    state: JobState,
    error: Option<String>,
}

/// A job without its answers
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct JobSummary {
    pub(crate) id: String,
    pub(crate) state: JobState,
    /// How many pictures it has
    pub(crate) pictures: usize,
    /// How many of them are answered
    pub(crate) done: usize,
    /// Seconds since 1970
    pub(crate) created: u64,
    /// Why it failed, or what is damaged
    pub(crate) error: Option<String>,
}

/// How far a job is
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct JobProgress {
    pub(crate) state: JobState,
    pub(crate) done: usize,
    pub(crate) pictures: usize,
    /// Encoder passes so far, pilots included
    pub(crate) samples_drawn: u64,
    /// Most encoder passes that the job can take
    pub(crate) samples_asked: u64,
    /// The radius certified so far, picture by picture
    pub(crate) radii: Vec<Option<f64>>,
}

/// A job with its answers
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct JobReport {
    pub(crate) id: String,
    pub(crate) created: u64,
    #[serde(flatten)]
    pub(crate) progress: JobProgress,
    /// One per picture, null until it is there
    pub(crate) answers: Vec<Option<Answer>>,
    /// Why it failed
    pub(crate) error: Option<String>,
}

/// One job.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) request: JobRequest,
    folder: PathBuf,
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

/// All jobs, and who runs next.
pub(crate) struct Jobs {
    folder: Option<PathBuf>,
    /// Why no job can be taken or run.
    unavailable: Option<Problem>,
    most: usize,
    pilot: u32,
    queue: Mutex<JobQueue>,
    arrived: Condvar,
    /// Keeps other services from running the same jobs.
    _lock: Option<FolderLock>,
}

#[derive(Default)]
struct JobQueue {
    jobs: BTreeMap<String, Arc<Job>>,
    /// Names of those that cannot be read, and why.
    damaged: BTreeMap<String, String>,
    /// Jobs that are on their way to the disk; each has its place.
    arriving: usize,
    closed: bool,
}

impl Jobs {
    /// Takes up what an earlier service left.
    pub(crate) fn open(folder: Option<&Path>, most: usize, pilot: SampleCount) -> io::Result<Self> {
        let mut jobs = Self {
            folder: folder.map(ToOwned::to_owned),
            unavailable: None,
            most,
            pilot: pilot.get(),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            _lock: None,
        };
        let Some(folder) = folder else {
            let message = "the service was given no place for jobs, wanted --jobs with a folder";
            jobs.unavailable = Some(Problem::read_only(message));
            return Ok(jobs);
        };
        let cannot_write = || {
            Problem::read_only(
                "jobs are kept where the service cannot write, wanted --jobs with another folder",
            )
        };
        match lock(folder) {
            Ok(lock) => jobs._lock = Some(lock),
            Err(LockError::Write(error)) => {
                jobs.unavailable = Some(match error {
                    WriteError::ReadOnly { .. } => cannot_write(),
                    WriteError::DiskFull { .. } | WriteError::SizeLimit { .. } => Problem::no_room(
                        "there was no room for jobs on the disk when the service started, wanted room and another start",
                    ),
                    other => return Err(io::Error::other(other)),
                });
                tracing::warn!(cause = %error, "no jobs are taken: their folder cannot be written to");
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(jobs),
            // It belongs to somebody else, as folders with seeds in them are made.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!(cause = %error, "no jobs are shown: their folder cannot be read");
                jobs.unavailable.get_or_insert_with(cannot_write);
                return Ok(jobs);
            }
            other => other?,
        };
        for entry in entries {
            // One folder that cannot be read or removed keeps nobody from the others.
            match entry {
                Ok(entry) => jobs.take_up(&entry.path()),
                Err(error) => tracing::error!(cause = %error, "the folder of jobs cannot be read to its end"),
            }
        }
        Ok(jobs)
    }

    /// Takes up what stands in the folder of jobs under one name, if it is a job.
    fn take_up(&self, path: &Path) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
        if name.strip_suffix(FORGOTTEN).is_some_and(is_id) && self.unavailable.is_none() {
            remove(path);
        }
        if !is_id(name) || !path.is_dir() {
            return;
        }
        let fault = match self.load(name, path) {
            Ok(Some(job)) => {
                self.queue().jobs.insert(name.to_owned(), Arc::new(job));
                return;
            }
            Ok(None) => match Remains::of(path) {
                Ok(Remains::Unaccepted) if self.unavailable.is_none() => return remove(path),
                Ok(Remains::Unaccepted | Remains::Foreign) => return,
                Ok(Remains::Accepted) => format!("{REQUEST} is missing"),
                Err(error) => format!("its folder cannot be read: {error}"),
            },
            Err(fault) => fault,
        };
        tracing::error!(job = name, fault, "a job is damaged; it is left as it is and not run");
        self.queue().damaged.insert(name.to_owned(), fault);
    }

    /// A job as it was left; `None` if it was never accepted. What cannot be read is said, never forgotten.
    fn load(&self, id: &str, folder: &Path) -> Result<Option<Job>, String> {
        let Some(request) = read::<JobRequest>(folder, REQUEST)? else { return Ok(None) };
        if request.pictures > MOST_PICTURES {
            return Err(format!(
                "{REQUEST} speaks of {} pictures, wanted at most {MOST_PICTURES}",
                request.pictures
            ));
        }
        let answers: Vec<Option<Answer>> =
            (0..request.pictures).map(|place| read(folder, &answer_name(place))).collect::<Result<_, _>>()?;
        let ended: Option<Ended> = read(folder, ENDED)?;
        let state = match &ended {
            Some(ended) => ended.state,
            None if answers.iter().all(Option::is_some) => JobState::Finished,
            None => JobState::Queued,
        };
        let passes =
            answers.iter().flatten().map(|answer| u64::from(answer.samples) + u64::from(answer.pilot)).sum();
        let error = ended.and_then(|ended| ended.error);
        Ok(Some(self.job(id, request, folder, state, answers, error, passes)))
    }

    #[expect(clippy::too_many_arguments, reason = "the only place where a job is put together")]
    fn job(
        &self,
        id: &str,
        request: JobRequest,
        folder: &Path,
        state: JobState,
        answers: Vec<Option<Answer>>,
        error: Option<String>,
        passes: u64,
    ) -> Job {
        let asked = u64::from(request.samples.get()) + u64::from(self.pilot);
        let radii = answers.iter().map(|answer| answer.as_ref().and_then(|answer| answer.radius)).collect();
        Job {
            id: id.to_owned(),
            passes_asked: asked * request.pictures as u64,
            passes_before: AtomicU64::new(passes),
            folder: folder.to_owned(),
            status: Mutex::new(JobStatus { state, answers, radii, error, unkept: None, ticket: None }),
            changed: watch::Sender::new(0),
            request,
        }
    }

    /// Accepts a job: once this returns, the job outlives the service.
    pub(crate) fn accept(&self, request: JobRequest, pictures: &[Bytes]) -> Result<Arc<Job>, Problem> {
        if self.is_closed() {
            return Err(Problem::closing());
        }
        self.check_available()?;
        let Some(place) = &self.folder else { return Err(Problem::internal("there is no place for jobs")) };
        let id = crate::random_name().map_err(Problem::internal)?;
        self.reserve()?;
        let folder = place.join(&id);
        let hashes = pictures.iter().map(|picture| Digest::of_bytes(picture)).collect();
        let request = JobRequest { picture_hashes: hashes, ..request };
        let written = (|| {
            create_private(&folder).map_err(|error| WriteError::new(&folder, error))?;
            for (place, picture) in pictures.iter().enumerate() {
                atomic::write(&folder.join(picture_name(place)), picture)?;
            }
            write(&folder, REQUEST, &request)?;
            // The folder's own name, too, must outlive a power cut.
            fs::File::open(place)
                .and_then(|place| place.sync_all())
                .map_err(|error| WriteError::new(place, error))
        })();
        if let Err(error) = written {
            self.queue().arriving -= 1;
            // What is left without a request is cleared away by the next start.
            let _ = fs::remove_dir_all(&folder);
            return Err(Problem::not_written(&error));
        }
        let answers = vec![None; request.pictures];
        let job = Arc::new(self.job(&id, request, &folder, JobState::Queued, answers, None, 0));
        // It is on the disk: if the service is ending, the next one runs it.
        let mut queue = self.queue();
        queue.arriving -= 1;
        queue.jobs.insert(id, Arc::clone(&job));
        drop(queue);
        self.arrived.notify_all();
        self.forget_oldest();
        Ok(job)
    }

    /// Refuses jobs that could not be kept.
    pub(crate) fn check_available(&self) -> Result<(), Problem> {
        self.unavailable.clone().map_or(Ok(()), Err)
    }

    /// Keeps a place for a job that is on its way to the disk; those that are over give theirs.
    fn reserve(&self) -> Result<(), Problem> {
        let mut queue = self.queue();
        let unfinished = queue.jobs.values().filter(|job| !job.state().is_over()).count();
        if unfinished + queue.arriving >= self.most {
            return Err(Problem::busy(format!("all {} places for jobs are taken", self.most), 60));
        }
        queue.arriving += 1;
        Ok(())
    }

    /// Forgets the oldest jobs that are over, for as long as there are more jobs than places.
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
                tracing::warn!(job = %job.id, cause = problem.message, "a job that is over could not be removed");
                return;
            }
        }
    }

    /// Removes a job; an error leaves it as it was.
    fn forget(&self, job: &Job) -> Result<(), Problem> {
        // The name goes in one step: no part of a job is ever taken for one.
        let forgotten = job.folder.with_file_name(format!("{}{FORGOTTEN}", job.id));
        match fs::rename(&job.folder, &forgotten) {
            // Somebody else was asked to do the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Problem::not_written(&WriteError::new(&job.folder, error))),
            Ok(()) => remove(&forgotten),
        }
        self.queue().jobs.remove(&job.id);
        Ok(())
    }

    /// Calls a job off, or forgets one that is over.
    pub(crate) fn end(&self, id: &str, may_end: impl Fn(&JobRequest) -> bool) -> Result<(), Problem> {
        if self.queue().damaged.contains_key(id) {
            let message = "the job is damaged and kept as it is, wanted somebody to look at its folder";
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
        let progress = JobProgress {
            state: JobState::Damaged,
            done: 0,
            pictures: 0,
            samples_drawn: 0,
            samples_asked: 0,
            radii: Vec::new(),
        };
        Some(JobReport { id: id.to_owned(), created: 0, progress, answers: Vec::new(), error: Some(error) })
    }

    /// Every job, the newest first and those that are damaged last.
    pub(crate) fn list(&self) -> Vec<JobSummary> {
        let queue = self.queue();
        let damaged = queue.damaged.iter().map(|(id, error)| JobSummary {
            id: id.clone(),
            state: JobState::Damaged,
            pictures: 0,
            done: 0,
            created: 0,
            error: Some(error.clone()),
        });
        let mut list: Vec<JobSummary> = queue.jobs.values().map(|job| job.summary()).chain(damaged).collect();
        list.sort_by(|left, right| (right.created, &left.id).cmp(&(left.created, &right.id)));
        list
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.queue().jobs.values().filter(|job| !job.state().is_over()).count()
    }

    /// The next job to run; waits for one, `None` once the service ends.
    pub(crate) fn next(&self) -> Option<Arc<Job>> {
        let mut queue = self.queue();
        loop {
            if queue.closed || self.unavailable.is_some() {
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
    pub(crate) fn pause(&self, time: Duration) {
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
        for job in jobs {
            if let Some(ticket) = &job.status().ticket {
                ticket.cancel();
            }
            job.changed.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue().closed
    }

    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn status(&self) -> MutexGuard<'_, JobStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> JobState {
        self.status().state
    }

    /// Begins; `false` if it was called off meanwhile.
    pub(crate) fn begin(&self, ticket: &Arc<Ticket>) -> bool {
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
    pub(crate) fn open_picture(&self) -> Option<usize> {
        self.status().answers.iter().position(Option::is_none)
    }

    /// Goes back into the queue, with the answers it has.
    pub(crate) fn put_back(&self) {
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
    pub(crate) fn picture(&self, place: usize) -> Result<Vec<u8>, Problem> {
        let name = picture_name(place);
        let damaged = |fault: String| {
            tracing::error!(job = %self.id, fault, "a picture of a job is damaged");
            Problem::unprocessable(fault)
        };
        let bytes = fs::read(self.folder.join(&name))
            .map_err(|error| damaged(format!("{name} cannot be read: {error}")))?;
        let wanted = self.request.picture_hashes.get(place);
        if wanted.is_some_and(|wanted| *wanted != Digest::of_bytes(&bytes)) {
            return Err(damaged(format!("{name} is not the picture that was sent: its sha256 differs")));
        }
        Ok(bytes)
    }

    /// A radius on the way.
    pub(crate) fn reached(&self, place: usize, radius: Option<f64>) {
        self.status().radii[place] = radius;
        self.notify();
    }

    /// An answer, kept before it is shown; if it cannot be kept, it waits for [`keep`](Self::keep).
    pub(crate) fn answered(&self, place: usize, answer: Answer) -> Result<(), Problem> {
        self.status().unkept = Some((place, answer));
        self.keep()
    }

    /// Keeps the answer for which there was no room, if there is one; only the thread that runs jobs does it.
    pub(crate) fn keep(&self) -> Result<(), Problem> {
        let unkept = self.status().unkept.take();
        let Some((place, answer)) = unkept else { return Ok(()) };
        if let Err(error) = write(&self.folder, &answer_name(place), &answer) {
            self.status().unkept = Some((place, answer));
            return Err(Problem::not_written(&error));
        }
        let mut status = self.status();
        status.radii[place] = answer.radius;
        status.answers[place] = Some(answer);
        if status.answers.iter().all(Option::is_some) && status.state == JobState::Running {
            status.state = JobState::Finished;
        }
        drop(status);
        self.notify();
        Ok(())
    }

    /// The job is over without all of its answers.
    pub(crate) fn over(&self, state: JobState, error: Option<String>) -> Result<(), Problem> {
        // Held while it is written down: a job ends once.
        let mut status = self.status();
        if status.state.is_over() {
            return Ok(());
        }
        let ended = Ended { state, error: error.clone() };
        write(&self.folder, ENDED, &ended).map_err(|error| Problem::not_written(&error))?;
        status.state = state;
        status.error = error;
        let ticket = status.ticket.clone();
        drop(status);
        if let Some(ticket) = ticket {
            ticket.cancel();
        }
        self.notify();
        Ok(())
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Hears of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn summary(&self) -> JobSummary {
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

/// Writes JSON with its digest below.
fn write(folder: &Path, name: &str, content: &impl Serialize) -> Result<(), WriteError> {
    let path = folder.join(name);
    let json = serde_json::to_string(content).map_err(|error| WriteError::new(&path, error.into()))?;
    atomic::write(&path, format!("{json}\n{}\n", Digest::of_bytes(json.as_bytes())).as_bytes())
}

/// What [`write`] wrote; `None` if it is not there, and in words what is wrong with it.
fn read<T: serde::de::DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, String> {
    let text = match fs::read_to_string(folder.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| format!("{name} cannot be read: {error}"))?,
    };
    // A file of one line without an end has no digest.
    let (json, digest) = text.split_once('\n').unwrap_or((&text, ""));
    if !digest.is_empty() && digest.trim_end() != Digest::of_bytes(json.as_bytes()).to_string() {
        return Err(format!("{name} was changed after it had been written: its sha256 differs"));
    }
    serde_json::from_str(json).map(Some).map_err(|error| format!("{name} cannot be read: {error}"))
}

/// Makes the folder if it is not there, and keeps other services out of it.
fn lock(folder: &Path) -> Result<FolderLock, LockError> {
    create_private(folder).map_err(|error| WriteError::new(folder, error))?;
    FolderLock::take(folder)
}

/// What a folder without a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remains {
    /// The beginning of a job that was never accepted.
    Unaccepted,
    /// A job that had answers, or an end.
    Accepted,
    /// Not ours.
    Foreign,
}

impl Remains {
    fn of(folder: &Path) -> io::Result<Self> {
        let mut remains = Self::Unaccepted;
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let name = name.trim_start_matches('.');
            if name.starts_with("answer-") || name.starts_with(ENDED) {
                return Ok(Self::Accepted);
            }
            if !name.starts_with("picture-") && !name.starts_with(REQUEST) {
                remains = Self::Foreign;
            }
        }
        Ok(remains)
    }
}

/// Removes what is no job any more, or never was; what stays is tried again by the next start.
fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), cause = %error, "a folder of no job could not be removed");
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn picture_name(place: usize) -> String {
    format!("picture-{place}")
}

fn answer_name(place: usize) -> String {
    format!("answer-{place}.json")
}

fn is_id(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A folder that only its owner may enter: it holds seeds.
fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(folder: &Path) -> Jobs {
        Jobs::open(Some(folder), 1, SampleCount::new(10).unwrap()).unwrap()
    }

    fn asked(created: u64) -> JobRequest {
        JobRequest {
            samples: SampleCount::new(100).unwrap(),
            target: None,
            top_k: 1,
            pictures: 1,
            seed: Seed::new(1),
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
