//! One resumable run: what is done is in its journal, and the journal alone decides what is left.
//!
//! Opening replays the journal; the positions it lacks are worked on by several threads, each result appended as it comes;
//! then the journal is read again, so that what is returned is what was written. A run that ends anywhere on the way is
//! continued by the same call.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;

use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Journal, Opened};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::PipelineError;
use crate::dataset::BrokenPictures;
use crate::work::{Observer, Stopped, WorkQueue};

/// The result of one picture, or why it was left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureOutcome<T> {
    /// Its result.
    Done(T),
    /// It is broken.
    Skipped(String),
}

/// One line of a journal: the result for the picture at a position.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry<T> {
    /// Its result.
    Done { position: usize, result: T },
    /// It was broken and left out.
    Skipped { position: usize, reason: String },
}

impl<T: Serialize> Entry<T> {
    fn new(position: usize, outcome: PictureOutcome<T>) -> Self {
        match outcome {
            PictureOutcome::Done(result) => Self::Done { position, result },
            PictureOutcome::Skipped(reason) => Self::Skipped { position, reason },
        }
    }

    fn line(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an entry is strings and numbers")
    }
}

/// A run over numbered pictures, by its journal.
#[derive(Clone, Copy)]
pub(crate) struct ResumableRun<'a> {
    /// Where the journal lies; its folder is made if it is missing.
    pub(crate) journal: &'a Path,
    /// Everything that decides the results; a journal with another description is refused.
    pub(crate) description: &'a Value,
    /// How many pictures there are.
    pub(crate) pictures: usize,
    /// Whether a picture that an earlier run has skipped stays skipped, or is still to be done.
    pub(crate) broken: BrokenPictures,
}

impl<'a> ResumableRun<'a> {
    /// Opens the journal, or begins one, and replays it.
    pub(crate) fn open<T: DeserializeOwned>(self) -> Result<OpenRun<'a, T>, PipelineError> {
        if let Some(folder) = self.journal.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
        }
        let Replayed { journal, outcomes } = self.replay()?;
        Ok(OpenRun { run: self, journal, outcomes })
    }

    /// Reads the journal, each outcome into its place.
    fn replay<T: DeserializeOwned>(&self) -> Result<Replayed<T>, PipelineError> {
        let key = Digest::of_json(self.description);
        let Opened { journal, records, .. } = Journal::open_or_create(self.journal, key, self.description)?;
        let mut outcomes: Vec<_> = (0..self.pictures).map(|_| None).collect();
        for (number, record) in records.iter().enumerate() {
            let wrong = || PipelineError::Record { path: self.journal.display().to_string(), record: number };
            let (position, outcome) = match serde_json::from_slice(record).map_err(|_| wrong())? {
                Entry::Done { position, result } => (position, Some(PictureOutcome::Done(result))),
                Entry::Skipped { position, reason } => {
                    let kept = self.broken == BrokenPictures::Skip;
                    (position, kept.then_some(PictureOutcome::Skipped(reason)))
                }
            };
            *outcomes.get_mut(position).ok_or_else(wrong)? = outcome;
        }
        Ok(Replayed { journal, outcomes })
    }
}

/// A journal and what it holds.
struct Replayed<T> {
    journal: Journal,
    /// By position; none where a picture is still to be done.
    outcomes: Vec<Option<PictureOutcome<T>>>,
}

/// A run whose journal is open.
pub(crate) struct OpenRun<'a, T> {
    run: ResumableRun<'a>,
    journal: Journal,
    outcomes: Vec<Option<PictureOutcome<T>>>,
}

/// A run that is complete.
pub(crate) struct FinishedRun<T> {
    /// The outcome of every picture, in order.
    pub(crate) outcomes: Vec<PictureOutcome<T>>,
    /// How many of them an earlier run had done already.
    pub(crate) resumed: usize,
    /// The journal, for whoever needs it no longer.
    pub(crate) journal: Journal,
}

impl<T: Serialize + DeserializeOwned> OpenRun<'_, T> {
    /// What an earlier run has done.
    pub(crate) fn done(&self) -> impl Iterator<Item = &PictureOutcome<T>> {
        self.outcomes.iter().flatten()
    }

    /// The places of what an earlier run has done, those that could not be read left out.
    pub(crate) fn answered(&self) -> impl Iterator<Item = usize> {
        let done = |outcome: &Option<PictureOutcome<T>>| matches!(outcome, Some(PictureOutcome::Done(_)));
        self.outcomes.iter().enumerate().filter(move |(_, outcome)| done(outcome)).map(|(place, _)| place)
    }

    /// How many pictures are left.
    pub(crate) fn left(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.is_none()).count()
    }

    /// Works on what is left, journals each result, and reads all of them again.
    pub(crate) fn finish(
        self,
        threads: NonZeroUsize,
        observer: &dyn Observer,
        work: impl Fn(usize) -> Result<PictureOutcome<T>, PipelineError> + Sync,
    ) -> Result<FinishedRun<T>, PipelineError> {
        let Self { run, journal, outcomes } = self;
        let todo: Vec<usize> = (0..run.pictures).filter(|&position| outcomes[position].is_none()).collect();
        let resumed = run.pictures - todo.len();
        drop(outcomes);
        let journal = Mutex::new(journal);
        observer.advanced(resumed, run.pictures);
        let queue = WorkQueue { pieces: todo.len(), before: resumed, threads, observer };
        queue.run(|piece| {
            let position = todo[piece];
            let line = Entry::new(position, work(position)?).line();
            Ok::<(), PipelineError>(journal.lock().expect("no holder of this lock can panic").append(&line)?)
        })?;
        drop(journal);
        // What was written is what is read: the result comes from the journal alone.
        let Replayed { journal, outcomes } = run.replay()?;
        let done = outcomes.iter().flatten().count();
        let outcomes: Option<Vec<_>> = outcomes.into_iter().collect();
        let outcomes = outcomes.ok_or(Stopped { done, total: run.pictures })?;
        Ok(FinishedRun { outcomes, resumed, journal })
    }
}

impl<T> FinishedRun<T> {
    /// The results of a run in which no picture may be skipped.
    pub(crate) fn results(self) -> Vec<T> {
        let result = |outcome| match outcome {
            PictureOutcome::Done(result) => Some(result),
            PictureOutcome::Skipped(_) => None,
        };
        self.outcomes.into_iter().filter_map(result).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;
    use tempfile::tempdir;

    use super::*;
    use crate::work::Unobserved;

    const PICTURES: usize = 12;

    /// Runs over twelve pictures, the squares of their positions; `fault` ends it at a position.
    fn squares(
        journal: &Path,
        broken: BrokenPictures,
        observer: &dyn Observer,
        fault: Option<usize>,
    ) -> (Result<FinishedRun<usize>, PipelineError>, usize) {
        let description = json!({ "command": "squares" });
        let run = ResumableRun { journal, description: &description, pictures: PICTURES, broken };
        let calls = AtomicUsize::new(0);
        let threads = NonZeroUsize::new(2).unwrap();
        let finished = run.open().and_then(|open| {
            open.finish(threads, observer, |position| {
                calls.fetch_add(1, Ordering::Relaxed);
                match position {
                    _ if fault == Some(position) => Err(PipelineError::NothingLeft { skipped: position }),
                    4 if broken == BrokenPictures::Skip => Ok(PictureOutcome::Skipped("torn".to_owned())),
                    _ => Ok(PictureOutcome::Done(position * position)),
                }
            })
        });
        (finished, calls.into_inner())
    }

    #[test]
    fn a_run_that_failed_on_the_way_continues_and_ends_with_the_same_results() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("made/for/it/run.journal");
        let (failed, _) = squares(&path, BrokenPictures::Fatal, &Unobserved, Some(7));
        assert!(matches!(failed, Err(PipelineError::NothingLeft { skipped: 7 })));
        let (finished, calls) = squares(&path, BrokenPictures::Fatal, &Unobserved, None);
        let finished = finished.unwrap();
        assert!(finished.resumed >= 7 && calls == PICTURES - finished.resumed, "{calls}");
        assert_eq!(finished.results(), (0..PICTURES).map(|place| place * place).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_that_was_killed_after_its_last_append_reads_its_journal_and_works_no_more() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("run.journal");
        drop(squares(&path, BrokenPictures::Fatal, &Unobserved, None).0.unwrap());
        let text = std::fs::read(&path).unwrap();
        // Killed while it wrote once more: half a line is cut off.
        std::fs::write(&path, [text.as_slice(), b"12 0123456789abcdef {\"done"].concat()).unwrap();
        let (finished, calls) = squares(&path, BrokenPictures::Fatal, &Unobserved, None);
        let finished = finished.unwrap();
        assert_eq!((finished.resumed, calls), (PICTURES, 0));
        assert_eq!(finished.journal.records(), PICTURES as u64);
        assert_eq!(std::fs::read(&path).unwrap(), text);
    }

    #[test]
    fn an_observer_that_stops_a_run_leaves_what_is_done() {
        struct Impatient(AtomicUsize);

        impl Observer for Impatient {
            fn advanced(&self, done: usize, _: usize) {
                self.0.store(done, Ordering::Relaxed);
            }

            fn stop(&self) -> bool {
                self.0.load(Ordering::Relaxed) >= 5
            }
        }

        let folder = tempdir().unwrap();
        let path = folder.path().join("run.journal");
        let observer = Impatient(AtomicUsize::new(0));
        let (stopped, _) = squares(&path, BrokenPictures::Fatal, &observer, None);
        let Err(PipelineError::Stopped { done, total: PICTURES }) = stopped else {
            panic!("the run was not stopped")
        };
        assert!((5..PICTURES).contains(&done), "{done}");
        let (finished, calls) = squares(&path, BrokenPictures::Fatal, &Unobserved, None);
        assert_eq!((finished.unwrap().resumed, calls), (done, PICTURES - done));
    }

    #[test]
    fn what_was_skipped_stays_skipped_or_is_done_after_all() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("run.journal");
        let (skipped, _) = squares(&path, BrokenPictures::Skip, &Unobserved, None);
        assert_eq!(skipped.unwrap().outcomes[4], PictureOutcome::Skipped("torn".to_owned()));
        let (again, calls) = squares(&path, BrokenPictures::Skip, &Unobserved, None);
        assert_eq!((again.unwrap().resumed, calls), (PICTURES, 0));
        let (strict, calls) = squares(&path, BrokenPictures::Fatal, &Unobserved, None);
        assert_eq!(calls, 1);
        assert_eq!(strict.unwrap().outcomes[4], PictureOutcome::Done(16));
    }

    #[test]
    fn lines_of_a_journal_keep_their_spelling() {
        let done = Entry::new(3, PictureOutcome::Done("x")).line();
        assert_eq!(done, br#"{"done":{"position":3,"result":"x"}}"#);
        let skipped = Entry::<()>::new(0, PictureOutcome::Skipped("torn".to_owned())).line();
        assert_eq!(skipped, br#"{"skipped":{"position":0,"reason":"torn"}}"#);
    }

    #[test]
    fn a_journal_of_something_else_is_refused() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("run.journal");
        let description = json!({ "command": "squares" });
        let opened = Journal::open_or_create(&path, Digest::of_json(&description), &description);
        opened.unwrap().journal.append(br#"{"done":{"position":12,"result":1}}"#).unwrap();
        let (refused, _) = squares(&path, BrokenPictures::Fatal, &Unobserved, None);
        assert!(matches!(refused, Err(PipelineError::Record { record: 0, .. })));
    }
}
