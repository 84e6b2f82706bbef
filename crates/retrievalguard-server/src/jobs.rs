//! Large certifications that run when there is time, and outlive the service.
//!
//! ```text
//! jobs/ID/
//!   picture-0, picture-1, …   as they were sent
//!   request.json              written last: with it the job is accepted
//!   answer-0.json, …          one per picture, as soon as it is there
//!   ended.json                how it ended, if not by its last answer
//! ```
//!
//! A job whose service was killed goes on with the first picture that has no answer. Its seed is kept in its folder,
//! which nobody else may read, so it answers what it would have answered.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use hyper::StatusCode;
use retrievalguard::storage::atomic;
use retrievalguard::{SampleCount, Seed, TargetRadius};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::answer::Answer;
use crate::problem::Problem;
use crate::scheduler::Ticket;

const REQUEST: &str = "request.json";
const ENDED: &str = "ended.json";

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
}

impl JobState {
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Finished | Self::Failed | Self::Cancelled => true,
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
    course: Mutex<JobCourse>,
    changed: watch::Sender<u64>,
}

struct JobCourse {
    state: JobState,
    answers: Vec<Option<Answer>>,
    radii: Vec<Option<f64>>,
    error: Option<String>,
    ticket: Option<Arc<Ticket>>,
}

/// All jobs, and who runs next.
pub(crate) struct Jobs {
    folder: PathBuf,
    most: usize,
    pilot: u32,
    line: Mutex<JobLine>,
    arrived: Condvar,
}

#[derive(Default)]
struct JobLine {
    jobs: BTreeMap<String, Arc<Job>>,
    closed: bool,
}

impl Jobs {
    /// Takes up what an earlier service left.
    pub(crate) fn open(folder: &Path, most: usize, pilot: SampleCount) -> io::Result<Self> {
        create_private(folder)?;
        let jobs = Self {
            folder: folder.to_owned(),
            most,
            pilot: pilot.get(),
            line: Mutex::default(),
            arrived: Condvar::new(),
        };
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(id) = path.file_name().and_then(|name| name.to_str()).filter(|name| is_id(name)) else {
                continue;
            };
            match jobs.load(id, &path)? {
                Some(job) => {
                    jobs.line().jobs.insert(id.to_owned(), Arc::new(job));
                }
                // Without a request it was never accepted.
                None => clear_away(&path)?,
            }
        }
        Ok(jobs)
    }

    /// A job as it was left; `None` if it was never accepted. What cannot be read is an error, never forgotten.
    fn load(&self, id: &str, folder: &Path) -> io::Result<Option<Job>> {
        let Some(request) = read::<JobRequest>(&folder.join(REQUEST))? else { return Ok(None) };
        let answers: Vec<Option<Answer>> = (0..request.pictures)
            .map(|place| read(&folder.join(answer_name(place))))
            .collect::<io::Result<_>>()?;
        let ended: Option<Ended> = read(&folder.join(ENDED))?;
        let state = match &ended {
            Some(ended) => ended.state,
            None if answers.iter().all(Option::is_some) => JobState::Finished,
            None => JobState::Queued,
        };
        let passes = answers.iter().flatten().map(|answer| u64::from(answer.samples + answer.pilot)).sum();
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
            course: Mutex::new(JobCourse { state, answers, radii, error, ticket: None }),
            changed: watch::Sender::new(0),
            request,
        }
    }

    /// Accepts a job: once this returns, the job outlives the service.
    pub(crate) fn accept(&self, request: JobRequest, pictures: &[Bytes]) -> Result<Arc<Job>, Problem> {
        if self.is_closed() {
            return Err(Problem::closing());
        }
        self.make_room()?;
        let id = crate::random_name().map_err(Problem::internal)?;
        let folder = self.folder.join(&id);
        let written = (|| {
            create_private(&folder)?;
            for (place, picture) in pictures.iter().enumerate() {
                atomic::write(&folder.join(picture_name(place)), picture).map_err(io::Error::other)?;
            }
            let text = serde_json::to_vec(&request)?;
            atomic::write(&folder.join(REQUEST), &text).map_err(io::Error::other)?;
            // The folder's own name, too, must outlive a power cut.
            fs::File::open(&self.folder)?.sync_all()
        })();
        if let Err(error) = written {
            // What is left without a request is cleared away by the next start.
            let _ = fs::remove_dir_all(&folder);
            return Err(Problem::internal(error));
        }
        let answers = vec![None; request.pictures];
        let job = Arc::new(self.job(&id, request, &folder, JobState::Queued, answers, None, 0));
        // It is on the disk: if the service is ending, the next one runs it.
        self.line().jobs.insert(id, Arc::clone(&job));
        self.arrived.notify_all();
        Ok(job)
    }

    /// Forgets the oldest finished job if all places are taken.
    fn make_room(&self) -> Result<(), Problem> {
        loop {
            let oldest = {
                let line = self.line();
                if line.jobs.len() < self.most {
                    return Ok(());
                }
                let over = line.jobs.values().filter(|job| job.state().is_over());
                over.min_by_key(|job| job.request.created).cloned()
            };
            match oldest {
                Some(job) => self.forget(&job)?,
                None => {
                    return Err(Problem::busy(format!("all {} places for jobs are taken", self.most), 60));
                }
            }
        }
    }

    fn forget(&self, job: &Job) -> Result<(), Problem> {
        self.line().jobs.remove(&job.id);
        // The request goes first: a folder without it is no job.
        let removed =
            fs::remove_file(job.folder.join(REQUEST)).and_then(|()| fs::remove_dir_all(&job.folder));
        match removed {
            // Somebody else was asked to do the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(Problem::internal),
        }
    }

    /// Calls a job off, or forgets one that is over.
    pub(crate) fn end(&self, id: &str, may_end: impl Fn(&JobRequest) -> bool) -> Result<(), Problem> {
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
        let found = self.line().jobs.get(id).cloned();
        found.ok_or_else(|| {
            let id: String = id.chars().take(80).collect();
            Problem::not_found(format!("there is no job `{id}`"))
        })
    }

    /// Every job, the newest first.
    pub(crate) fn list(&self) -> Vec<JobSummary> {
        let mut list: Vec<JobSummary> = self.line().jobs.values().map(|job| job.summary()).collect();
        list.sort_by(|left, right| (right.created, &left.id).cmp(&(left.created, &right.id)));
        list
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.line().jobs.values().filter(|job| !job.state().is_over()).count()
    }

    /// The next job to run; waits for one, `None` once the service ends.
    pub(crate) fn next(&self) -> Option<Arc<Job>> {
        let mut line = self.line();
        loop {
            if line.closed {
                return None;
            }
            let waiting = line.jobs.values().filter(|job| job.state() == JobState::Queued);
            let oldest = waiting.min_by_key(|job| (job.request.created, job.id.clone()));
            if let Some(job) = oldest {
                return Some(Arc::clone(job));
            }
            line = self.arrived.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stops running jobs where they are; the next service goes on with them.
    pub(crate) fn close(&self) {
        let jobs: Vec<Arc<Job>> = {
            let mut line = self.line();
            line.closed = true;
            line.jobs.values().cloned().collect()
        };
        self.arrived.notify_all();
        for job in jobs {
            if let Some(ticket) = &job.course().ticket {
                ticket.cancel();
            }
            job.changed.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.line().closed
    }

    fn line(&self) -> MutexGuard<'_, JobLine> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn course(&self) -> MutexGuard<'_, JobCourse> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> JobState {
        self.course().state
    }

    /// Begins; `false` if it was called off meanwhile.
    pub(crate) fn begin(&self, ticket: &Arc<Ticket>) -> bool {
        let mut course = self.course();
        if course.state != JobState::Queued {
            return false;
        }
        course.state = JobState::Running;
        course.ticket = Some(Arc::clone(ticket));
        drop(course);
        self.tell();
        true
    }

    /// The first picture without an answer.
    pub(crate) fn open_picture(&self) -> Option<usize> {
        self.course().answers.iter().position(Option::is_none)
    }

    /// A picture as it was sent.
    pub(crate) fn picture(&self, place: usize) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(picture_name(place)))
    }

    /// A radius on the way.
    pub(crate) fn reached(&self, place: usize, radius: Option<f64>) {
        self.course().radii[place] = radius;
        self.tell();
    }

    /// An answer, kept before it is shown.
    pub(crate) fn answered(&self, place: usize, answer: Answer) -> Result<(), Problem> {
        let text = serde_json::to_vec(&answer).map_err(Problem::internal)?;
        atomic::write(&self.folder.join(answer_name(place)), &text).map_err(Problem::internal)?;
        let mut course = self.course();
        course.radii[place] = answer.radius;
        course.answers[place] = Some(answer);
        if course.answers.iter().all(Option::is_some) && course.state == JobState::Running {
            course.state = JobState::Finished;
        }
        drop(course);
        self.tell();
        Ok(())
    }

    /// The job is over without all of its answers.
    pub(crate) fn over(&self, state: JobState, error: Option<String>) -> Result<(), Problem> {
        // Held while it is written down: a job ends once.
        let mut course = self.course();
        if course.state.is_over() {
            return Ok(());
        }
        let text = serde_json::to_vec(&Ended { state, error: error.clone() }).map_err(Problem::internal)?;
        atomic::write(&self.folder.join(ENDED), &text).map_err(Problem::internal)?;
        course.state = state;
        course.error = error;
        let ticket = course.ticket.clone();
        drop(course);
        if let Some(ticket) = ticket {
            ticket.cancel();
        }
        self.tell();
        Ok(())
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Hears of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn summary(&self) -> JobSummary {
        let course = self.course();
        JobSummary {
            id: self.id.clone(),
            state: course.state,
            pictures: self.request.pictures,
            done: course.answers.iter().flatten().count(),
            created: self.request.created,
        }
    }

    pub(crate) fn progress(&self) -> JobProgress {
        let course = self.course();
        let now = course.ticket.as_ref().map_or(0, |ticket| ticket.served());
        JobProgress {
            state: course.state,
            done: course.answers.iter().flatten().count(),
            pictures: self.request.pictures,
            samples_drawn: self.passes_before.load(Ordering::Relaxed) + now,
            samples_asked: self.passes_asked,
            radii: course.radii.clone(),
        }
    }

    pub(crate) fn report(&self) -> JobReport {
        let progress = self.progress();
        let course = self.course();
        JobReport {
            id: self.id.clone(),
            created: self.request.created,
            progress,
            answers: course.answers.clone(),
            error: course.error.clone(),
        }
    }
}

/// A JSON file; `None` if it is not there.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| named(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(error)),
    }
}

/// Removes what is left of a job that was never accepted; a folder with anything else in it is not ours.
fn clear_away(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !name.to_string_lossy().trim_start_matches('.').starts_with("picture-")
            && !name.to_string_lossy().trim_start_matches('.').starts_with(REQUEST)
        {
            return Ok(());
        }
    }
    fs::remove_dir_all(folder)
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
