//! An append-only, checksummed list of records that survives being stopped at any moment.
//!
//! A journal is text, so that a person can look at it while a run goes on:
//!
//! ```text
//! retrievalguard journal 1
//! <run key: 64 hexadecimal digits>
//! <checksum: 16 digits> <description of the run: JSON>
//! <record number> <checksum: 16 digits> <record: JSON or any other line>
//! <record number>/<first>-<last> <checksum: 16 digits> <one of several records that were written together>
//! …
//! ```
//!
//! A checksum is the beginning of the SHA-256 of the run key, the number and the text, so a record cannot be changed,
//! moved, repeated or brought in from another run without notice. Each record is on the disk before [`Journal::append`]
//! returns; stopping in the middle of it loses that record only. [`Journal::append_all`] brings several to the disk at
//! once; stopping in the middle of it loses the last of them, or all. A journal is locked while it is open, and
//! [`Journal::read`] looks into it all the same.
//!
//! ```
//! use retrievalguard::storage::digest::Digest;
//! use retrievalguard::storage::journal::Journal;
//! use serde_json::json;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("journal");
//! let run = json!({"sigma": 0.25, "samples": 1000});
//! let mut opened = Journal::open_or_create(&path, Digest::of_json(&run), &run)?;
//! opened.journal.append(br#"{"identity":"cat-1"}"#)?;
//! drop(opened);
//!
//! let resumed = Journal::open_or_create(&path, Digest::of_json(&run), &run)?;
//! assert_eq!(resumed.records, [br#"{"identity":"cat-1"}"#]);
//! drop(resumed);
//!
//! let other = json!({"sigma": 0.5, "samples": 1000});
//! let refused = Journal::open_or_create(&path, Digest::of_json(&other), &other).unwrap_err();
//! assert!(refused.to_string().ends_with("belongs to another run: sigma is 0.25, wanted 0.5"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::atomic::{WriteError, directory_of, sync_directory};
use super::digest::Digest;
use super::lock::{self, LockError};

mod differences;
mod lines;

pub use differences::{Difference, Differences};
use lines::{Group, check_header, contents, header, record_line, replay};

/// Why a journal cannot be used; every variant names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file could not be opened, locked or read.
    #[error("journal `{}` cannot be read", path.display())]
    Read {
        /// The journal.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A record, or the header of a new journal, could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Another process, or this one, has the journal open.
    #[error("journal `{}` is in use by another process", path.display())]
    InUse {
        /// The journal.
        path: PathBuf,
    },
    /// The file is something else, and stays untouched.
    #[error("`{}` is not a journal: it begins with `{found}`, wanted `retrievalguard journal`", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
        /// Its first line, shortened.
        found: String,
    },
    /// The format has moved on.
    #[error("journal `{}` has format version {found}, wanted 1", path.display())]
    Version {
        /// The journal.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// The run that wrote the journal is not the one that wants to go on with it.
    #[error("journal `{}` belongs to another run: {differences}", path.display())]
    OtherRun {
        /// The journal.
        path: PathBuf,
        /// What differs.
        differences: Differences,
    },
    /// Bytes were changed after they had been written.
    #[error("journal `{}` is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Where the damaged line begins.
        offset: u64,
        /// What was wanted there.
        what: &'static str,
    },
    /// Lines separate records, so a record cannot hold one.
    #[error("record {number} for journal `{}` holds a line break at byte {position}, wanted a single line", path.display())]
    LineBreak {
        /// The journal.
        path: PathBuf,
        /// Number that the record would have had.
        number: u64,
        /// Where the break is.
        position: usize,
    },
}

/// An open, locked journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    run_key: Digest,
    /// Bytes that hold the header and whole records.
    length: u64,
    records: u64,
    /// Whether a failed append may have left bytes behind `length`.
    torn: bool,
}

/// What opening a journal gives.
#[derive(Debug)]
pub struct Opened {
    /// The journal, ready for more records.
    pub journal: Journal,
    /// The records that were there, in order.
    pub records: Vec<Vec<u8>>,
    /// Bytes of an unfinished record that were cut off; zero after an orderly end.
    pub dropped_bytes: u64,
}

/// What a journal holds, whoever has it open.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Key of the run that it belongs to.
    pub run_key: Digest,
    /// What the run says about itself.
    pub description: Value,
    /// The whole records, in order.
    pub records: Vec<Vec<u8>>,
    /// Bytes behind them: a record that is being written, or was when its process stopped.
    pub unfinished_bytes: u64,
}

impl Journal {
    /// Reads a journal without its lock and without changing it; `None` if there is none, or only part of a header.
    pub fn read(path: &Path) -> Result<Option<Contents>, JournalError> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|source| JournalError::Read { path: path.to_owned(), source })?,
        };
        contents(&bytes, path)
    }

    /// Opens the journal of a run, or begins one.
    ///
    /// `run_key` identifies everything that the records depend on; `description` says it in words, for the message when
    /// the keys differ.
    pub fn open_or_create(path: &Path, run_key: Digest, description: &Value) -> Result<Opened, JournalError> {
        let mut file = open_alone(path)?;
        let read = |source| JournalError::Read { path: path.to_owned(), source };
        let write = |source| WriteError::new(path, source);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(read)?;

        let header = header(run_key, description);
        if bytes.len() < header.len() && header.as_bytes().starts_with(&bytes) {
            // New, or stopped while the header was being written.
            let dropped_bytes = bytes.len() as u64;
            file.set_len(0).map_err(write)?;
            file.seek(SeekFrom::Start(0)).map_err(write)?;
            if let Err(error) = file.write_all(header.as_bytes()).and_then(|()| file.sync_all()) {
                // An empty file is a new journal; half a header of another run would be in the way.
                let _ = file.set_len(0);
                return Err(write(error).into());
            }
            sync_directory(directory_of(path)).map_err(write)?;
            let length = header.len() as u64;
            let journal = Self { file, path: path.to_owned(), run_key, length, records: 0, torn: false };
            return Ok(Opened { journal, records: Vec::new(), dropped_bytes });
        }

        let start = check_header(&bytes, path, run_key, description)?;
        let (records, length) = replay(&bytes, start, path, run_key)?;
        let dropped_bytes = (bytes.len() - length) as u64;
        if dropped_bytes > 0 {
            file.set_len(length as u64).map_err(write)?;
        }
        // A process that was killed before its sync left records, or the name, in memory only. Whoever goes on with them
        // speaks of them elsewhere, and must not be on the disk ahead of them.
        file.sync_all().and_then(|()| sync_directory(directory_of(path))).map_err(write)?;
        let journal = Self {
            file,
            path: path.to_owned(),
            run_key,
            length: length as u64,
            records: records.len() as u64,
            torn: false,
        };
        Ok(Opened { journal, records, dropped_bytes })
    }

    /// Adds a record and brings it to the disk; an error leaves the journal as it was.
    pub fn append(&mut self, record: &[u8]) -> Result<(), JournalError> {
        self.append_all(&[record])
    }

    /// Adds several records and brings them to the disk together; an error leaves the journal as it was.
    ///
    /// Stopped in the middle of it, the journal holds the first few of them, or none.
    pub fn append_all(&mut self, records: &[impl AsRef<[u8]>]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        let count = records.len() as u64;
        let group = Group { first: self.records, last: self.records + (count - 1) };
        let mut lines = Vec::new();
        for (number, record) in (self.records..).zip(records) {
            let record = record.as_ref();
            if let Some(position) = record.iter().position(|&byte| byte == b'\n') {
                return Err(JournalError::LineBreak { path: self.path.clone(), number, position });
            }
            lines.extend_from_slice(&record_line(self.run_key, number, group, record));
        }
        match self.write_lines(&lines) {
            Ok(()) => {
                self.length += lines.len() as u64;
                self.records += count;
                Ok(())
            }
            Err(error) => {
                self.torn = self.file.set_len(self.length).is_err();
                Err(WriteError::new(&self.path, error).into())
            }
        }
    }

    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.length)?;
            self.torn = false;
        }
        self.file.seek(SeekFrom::Start(self.length))?;
        self.file.write_all(lines)?;
        self.file.sync_data()
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether `path` leads to this very file, which others may have moved away since it was opened.
    pub(in crate::storage) fn is_at(&self, path: &Path) -> bool {
        lock::is_at(&self.file, path)
    }

    /// Deletes the journal, once what it was kept for is safe elsewhere.
    pub fn remove(self) -> Result<(), WriteError> {
        fs::remove_file(&self.path).map_err(|error| WriteError::new(&self.path, error))
    }
}

/// Opens the journal's file and keeps everyone else out.
fn open_alone(path: &Path) -> Result<File, JournalError> {
    match lock::open_locked(path) {
        Ok(lock::Opened::Locked(file)) => Ok(file),
        Ok(lock::Opened::InUse(_)) | Err(LockError::InUse { .. }) => {
            Err(JournalError::InUse { path: path.to_owned() })
        }
        Err(LockError::Write(error)) => Err(error.into()),
        Err(LockError::Lock { path, source }) => Err(JournalError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests;
