//! What is kept of jobs on the disk.
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
//! Below the JSON of a file stands its SHA-256, and the request has those of the pictures, so that nothing is answered
//! that was changed on the disk. A job that cannot be read is shown with the reason, and left as it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use axum::body::Bytes;
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::lock::{FolderLock, LockError};
use retrievalguard::{SampleCount, Seed, TargetRadius};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::job::JobState;
use crate::answer::Answer;
use crate::problem::Problem;
use crate::query_execution::Draws;

const REQUEST: &str = "request.json";
const ENDED: &str = "ended.json";

/// Ends the name of a job's folder from the moment at which the job is no more.
pub(super) const FORGOTTEN: &str = ".forgotten";

/// Most pictures that a job on disk is believed to have.
const MOST_PICTURES: usize = 1_000_000;

/// What a job asks, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobRequest {
    /// None without noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) samples: Option<SampleCount>,
    pub(crate) target: Option<TargetRadius>,
    pub(crate) top_k: usize,
    pub(crate) pictures: usize,
    /// None without noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<Seed>,
    pub(crate) request_id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The client that asked.
    #[serde(default)]
    pub(crate) client: String,
    /// SHA-256 of each picture as it was sent.
    #[serde(default)]
    pub(crate) picture_hashes: Vec<Digest>,
}

impl JobRequest {
    /// What each picture asks of samples; nothing without noise.
    pub(super) fn draws(&self) -> Option<Draws> {
        let (samples, seed) = self.samples.zip(self.seed)?;
        Some(Draws { samples, target: self.target, seed })
    }
}

/// How a job ended without all of its answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobEnd {
    pub(super) state: JobState,
    /// Why it failed.
    pub(super) error: Option<String>,
}

/// A job as it is on the disk.
pub(super) struct StoredJob {
    pub(super) folder: JobFolder,
    pub(super) request: JobRequest,
    /// One per picture, `None` until it is there.
    pub(super) answers: Vec<Option<Answer>>,
    pub(super) end: Option<JobEnd>,
}

/// A job that was found on the disk, or what is wrong with it.
pub(super) struct FoundJob {
    pub(super) id: String,
    pub(super) job: Result<StoredJob, String>,
}

/// The folder of all jobs.
pub(super) struct JobStore {
    folder: Option<PathBuf>,
    /// Why nothing can be written.
    unavailable: Option<Problem>,
    /// Keeps other services from running the same jobs.
    _lock: Option<FolderLock>,
}

impl JobStore {
    /// Opens the folder and reads what an earlier service left in it.
    pub(super) fn open(folder: Option<&Path>) -> io::Result<(Self, Vec<FoundJob>)> {
        let mut store = Self { folder: folder.map(ToOwned::to_owned), unavailable: None, _lock: None };
        let Some(folder) = folder else {
            let message = "the service has no folder for jobs, wanted --jobs with a folder";
            store.unavailable = Some(Problem::read_only(message));
            return Ok((store, Vec::new()));
        };
        let cannot_write = || {
            Problem::read_only("the folder of jobs cannot be written to, wanted --jobs with another folder")
        };
        match lock(folder) {
            Ok(lock) => store._lock = Some(lock),
            Err(LockError::Write(error)) => {
                store.unavailable = Some(match error {
                    WriteError::ReadOnly { .. } => cannot_write(),
                    WriteError::DiskFull { .. } | WriteError::SizeLimit { .. } => Problem::no_room(
                        "the disk had no room for jobs when the service started, wanted room and a restart",
                    ),
                    other => return Err(io::Error::other(other)),
                });
                tracing::warn!(cause = %error, "jobs are refused: their folder cannot be written to");
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((store, Vec::new())),
            // Folders with seeds in them admit their owner only, and this one has another.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!(cause = %error, "jobs are not listed: their folder cannot be read");
                store.unavailable.get_or_insert_with(cannot_write);
                return Ok((store, Vec::new()));
            }
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            // One folder that cannot be read or removed does not hide the others.
            match entry {
                Ok(entry) => found.extend(store.read(&entry.path())),
                Err(error) => {
                    tracing::error!(cause = %error, "an entry of the folder of jobs cannot be read");
                }
            }
        }
        Ok((store, found))
    }

    /// Reads what stands in the folder under one name, if it is a job; what never became one is removed.
    fn read(&self, path: &Path) -> Option<FoundJob> {
        let name = path.file_name()?.to_str()?;
        if name.strip_suffix(FORGOTTEN).is_some_and(is_id) && self.unavailable.is_none() {
            remove(path);
        }
        if !is_id(name) || !path.is_dir() {
            return None;
        }
        let fault = match (JobFolder { path: path.to_owned() }).load() {
            Ok(Some(job)) => return Some(FoundJob { id: name.to_owned(), job: Ok(job) }),
            Ok(None) => match Remains::of(path) {
                Ok(Remains::Unaccepted) if self.unavailable.is_none() => {
                    remove(path);
                    return None;
                }
                Ok(Remains::Unaccepted | Remains::Foreign) => return None,
                Ok(Remains::Accepted) => format!("{REQUEST} is missing"),
                Err(error) => format!("its folder cannot be read: {error}"),
            },
            Err(fault) => fault,
        };
        tracing::error!(job = name, fault, "a job is damaged; it is left as it is and not run");
        Some(FoundJob { id: name.to_owned(), job: Err(fault) })
    }

    /// Whether jobs can be written; they are not run otherwise, either.
    pub(super) fn is_available(&self) -> bool {
        self.unavailable.is_none()
    }

    /// Refuses jobs that could not be kept.
    pub(super) fn check_available(&self) -> Result<(), Problem> {
        self.unavailable.clone().map_or(Ok(()), Err)
    }

    /// Brings a job to the disk: once this returns, the job outlives the service.
    pub(super) fn create(
        &self,
        id: &str,
        request: JobRequest,
        pictures: &[Bytes],
    ) -> Result<StoredJob, Problem> {
        let Some(parent) = &self.folder else { return Err(Problem::internal("there is no folder for jobs")) };
        let hashes = pictures.iter().map(|picture| Digest::of_bytes(picture)).collect();
        let request = JobRequest { picture_hashes: hashes, ..request };
        let path = parent.join(id);
        let written = (|| {
            create_private(&path).map_err(|error| WriteError::new(&path, error))?;
            for (index, picture) in pictures.iter().enumerate() {
                atomic::write(&path.join(picture_name(index)), picture)?;
            }
            write(&path, REQUEST, &request)?;
            // The folder's own name, too, must outlive a power cut.
            fs::File::open(parent)
                .and_then(|parent| parent.sync_all())
                .map_err(|error| WriteError::new(parent, error))
        })();
        if let Err(error) = written {
            // What is left without a request is cleared away by the next start.
            let _ = fs::remove_dir_all(&path);
            return Err(Problem::not_written(&error));
        }
        let answers = vec![None; request.pictures];
        Ok(StoredJob { folder: JobFolder { path }, request, answers, end: None })
    }
}

/// The folder of one job.
pub(super) struct JobFolder {
    path: PathBuf,
}

impl JobFolder {
    /// The job as it was left; `None` if it was never accepted. What cannot be read is said, never forgotten.
    fn load(self) -> Result<Option<StoredJob>, String> {
        let Some(request) = read::<JobRequest>(&self.path, REQUEST)? else { return Ok(None) };
        if request.pictures > MOST_PICTURES {
            return Err(format!(
                "{REQUEST} names {} pictures, wanted at most {MOST_PICTURES}",
                request.pictures
            ));
        }
        if request.samples.is_some() != request.seed.is_some() {
            return Err(format!("{REQUEST} has samples or a seed, wanted both or neither"));
        }
        let answers = (0..request.pictures)
            .map(|index| read(&self.path, &answer_name(index)))
            .collect::<Result<_, _>>()?;
        let end = read(&self.path, ENDED)?;
        Ok(Some(StoredJob { folder: self, request, answers, end }))
    }

    /// A picture as it was sent, or why it cannot be had.
    pub(super) fn picture(&self, index: usize, hash: Option<&Digest>) -> Result<Vec<u8>, String> {
        let name = picture_name(index);
        let bytes =
            fs::read(self.path.join(&name)).map_err(|error| format!("{name} cannot be read: {error}"))?;
        if hash.is_some_and(|hash| *hash != Digest::of_bytes(&bytes)) {
            return Err(format!("{name} is not the picture that was sent: its sha256 differs"));
        }
        Ok(bytes)
    }

    /// Writes the answer to a picture.
    pub(super) fn write_answer(&self, index: usize, answer: &Answer) -> Result<(), WriteError> {
        write(&self.path, &answer_name(index), answer)
    }

    /// Writes how the job ended.
    pub(super) fn write_end(&self, end: &JobEnd) -> Result<(), WriteError> {
        write(&self.path, ENDED, end)
    }

    /// Removes everything; an error leaves it as it was.
    pub(super) fn remove(&self) -> Result<(), WriteError> {
        // The name goes in one step: no part of a job is ever taken for one.
        let mut forgotten = self.path.clone().into_os_string();
        forgotten.push(FORGOTTEN);
        let forgotten = PathBuf::from(forgotten);
        match fs::rename(&self.path, &forgotten) {
            // Somebody else was asked to do the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WriteError::new(&self.path, error)),
            Ok(()) => remove(&forgotten),
        }
        Ok(())
    }
}

/// Writes JSON with its digest below.
fn write(folder: &Path, name: &str, content: &impl Serialize) -> Result<(), WriteError> {
    let path = folder.join(name);
    let json = serde_json::to_string(content).map_err(|error| WriteError::new(&path, error.into()))?;
    atomic::write(&path, format!("{json}\n{}\n", Digest::of_bytes(json.as_bytes())).as_bytes())
}

/// What [`write`] wrote; `None` if it is not there, and in words what is wrong with it.
fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, String> {
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
        tracing::warn!(folder = %folder.display(), cause = %error, "a folder that holds no job could not be removed");
    }
}

fn picture_name(index: usize) -> String {
    format!("picture-{index}")
}

fn answer_name(index: usize) -> String {
    format!("answer-{index}.json")
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
