//! What happened in a run, one JSON object per line.
//!
//! Each line has the `step` after which it was written and an `event`, which says what the other fields are:
//!
//! ```text
//! {"step":200,"event":"train","loss":0.31,"beta":1.18}
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Why a log cannot be used; every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunLogError {
    /// The file cannot be opened.
    #[error("log `{path}` cannot be opened")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be read, cut or written.
    #[error("log `{path}` cannot be read or written")]
    Access {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line that this module does not write.
    #[error("log `{path}`, line {line} is not a log entry, wanted a JSON object with a `step`")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// Fields that are not those of an object.
    #[error("log `{path}`: the fields of event `{event}` are not a JSON object")]
    Fields {
        /// The file.
        path: PathBuf,
        /// What happened.
        event: String,
        /// What the writer said.
        source: serde_json::Error,
    },
}

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct RunLog {
    path: PathBuf,
    file: File,
}

/// A line as it is written.
#[derive(Serialize)]
struct Entry<'a, T> {
    step: u64,
    event: &'a str,
    #[serde(flatten)]
    fields: &'a T,
}

/// What has to be known of a line that is there.
#[derive(Deserialize)]
struct Stamp {
    step: u64,
}

impl RunLog {
    /// Continues the log of a run that is resumed after `step` steps, or begins it if there is none.
    ///
    /// From the first line of a later step on everything is cut off, since it will happen again; so is a last line that
    /// was only half written.
    pub(crate) fn resume(path: &Path, step: u64) -> Result<Self, RunLogError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|source| RunLogError::Open { path: path.to_owned(), source })?;
        let access = |source| RunLogError::Access { path: path.to_owned(), source };
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(access)?;
        let mut kept = 0;
        for (index, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if !line.ends_with(b"\n") {
                break;
            }
            let stamp: Stamp = serde_json::from_slice(line).map_err(|source| RunLogError::Line {
                path: path.to_owned(),
                line: index + 1,
                source,
            })?;
            if stamp.step > step {
                break;
            }
            kept += line.len() as u64;
        }
        file.set_len(kept).map_err(access)?;
        file.seek(SeekFrom::Start(kept)).map_err(access)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds a line; numbers that JSON does not have (infinities, not a number) become `null`.
    ///
    /// `fields` is a struct or a map without `step` and `event`.
    pub(crate) fn append<T: Serialize>(
        &mut self,
        step: u64,
        event: &str,
        fields: &T,
    ) -> Result<(), RunLogError> {
        let mut line = serde_json::to_vec(&Entry { step, event, fields }).map_err(|source| {
            RunLogError::Fields { path: self.path.clone(), event: event.to_owned(), source }
        })?;
        line.push(b'\n');
        // One call, so that a reader never sees half a line unless the machine stops.
        self.file.write_all(&line).map_err(|source| RunLogError::Access { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Training {
        loss: f64,
        beta: f32,
    }

    fn write(log: &mut RunLog, steps: &[u64]) {
        for &step in steps {
            log.append(step, "train", &Training { loss: 0.5, beta: 1.25 }).unwrap();
        }
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<Stamp>(line).unwrap().step).collect()
    }

    #[test]
    fn a_line_is_one_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = RunLog::resume(&path, 0).unwrap();
        log.append(7, "train", &Training { loss: f64::NAN, beta: 1.25 }).unwrap();
        log.append(7, "epoch", &serde_json::json!({ "recall": 0.5 })).unwrap();
        let wanted = "{\"step\":7,\"event\":\"train\",\"loss\":null,\"beta\":1.25}\n\
                      {\"step\":7,\"event\":\"epoch\",\"recall\":0.5}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
        let error = log.append(8, "train", &3).unwrap_err();
        assert!(matches!(error, RunLogError::Fields { ref event, .. } if event == "train"), "{error:?}");
    }

    #[test]
    fn a_resumed_log_has_every_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        write(&mut RunLog::resume(&path, 0).unwrap(), &[10, 20, 20, 30, 40]);
        // Half a line, as a stopped machine leaves it.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"step\":5").unwrap();
        for (resumed_after, wanted) in [
            (50, vec![10, 20, 20, 30, 40, 51]),
            (25, vec![10, 20, 20, 26]),
            (20, vec![10, 20, 20, 21]),
            (0, vec![1]),
        ] {
            let mut log = RunLog::resume(&path, resumed_after).unwrap();
            write(&mut log, &[resumed_after + 1]);
            assert_eq!(steps(&path), wanted, "resumed after {resumed_after}");
        }
        let fresh = folder.path().join("fresh.jsonl");
        write(&mut RunLog::resume(&fresh, 9).unwrap(), &[10]);
        assert_eq!(steps(&fresh), [10]);
    }

    #[test]
    fn a_foreign_file_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let text = "{\"step\":1}\nnot a log\n{\"step\":2}\n";
        std::fs::write(&path, text).unwrap();
        let error = RunLog::resume(&path, 5).unwrap_err();
        assert!(matches!(error, RunLogError::Line { line: 2, .. }), "{error:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
