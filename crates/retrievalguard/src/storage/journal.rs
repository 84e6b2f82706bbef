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

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::atomic::{WriteError, directory_of, sync_directory};
use super::digest::{Digest, canonical_json};
use super::lock::{self, LockError};

const TITLE: &str = "retrievalguard journal ";
const VERSION: &str = "1";
const CHECKSUM_DIGITS: usize = 16;
const HEADER_LINES: usize = 3;

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

/// One field in which two descriptions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field, with dots between levels.
    pub field: String,
    /// What the journal says, as JSON.
    pub found: Option<String>,
    /// What the run says, as JSON.
    pub wanted: Option<String>,
}

/// Every field in which the description of a journal differs from that of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences(pub Vec<Difference>);

impl Differences {
    /// Compares two descriptions field by field, in alphabetical order.
    pub fn between(found: &Value, wanted: &Value) -> Self {
        let mut differences = Vec::new();
        compare("", Some(found), Some(wanted), &mut differences);
        Self(differences)
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return formatter.write_str("its key differs, though its description is the same");
        }
        for (position, Difference { field, found, wanted }) in self.0.iter().enumerate() {
            if position > 0 {
                formatter.write_str("; ")?;
            }
            let field = if field.is_empty() { "the description" } else { field };
            match (found, wanted) {
                (Some(found), Some(wanted)) => write!(formatter, "{field} is {found}, wanted {wanted}")?,
                (None, Some(wanted)) => write!(formatter, "{field} is missing, wanted {wanted}")?,
                (Some(found), None) => write!(formatter, "{field} is {found}, wanted none")?,
                (None, None) => write!(formatter, "{field} differs")?,
            }
        }
        Ok(())
    }
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
    /// `run_key` stands for everything that the records depend on; `description` says it in words, for the message when
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

    /// Where the journal is.
    pub fn path(&self) -> &Path {
        &self.path
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

fn header(run_key: Digest, description: &Value) -> String {
    let description = canonical_json(description);
    let checksum = checksum(run_key, "description", description.as_bytes());
    format!("{TITLE}{VERSION}\n{run_key}\n{checksum} {description}\n")
}

fn checksum(run_key: Digest, number: &str, text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(64 + text.len());
    bytes.extend_from_slice(run_key.bytes());
    bytes.extend_from_slice(number.as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(text);
    format!("{:.*}", CHECKSUM_DIGITS, Digest::of_bytes(&bytes))
}

/// The records that reached the disk together: a power cut may leave the later ones of them without the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    first: u64,
    last: u64,
}

fn record_line(run_key: Digest, number: u64, Group { first, last }: Group, record: &[u8]) -> Vec<u8> {
    let number = if first == last { number.to_string() } else { format!("{number}/{first}-{last}") };
    let checksum = checksum(run_key, &number, record);
    let mut line = Vec::with_capacity(record.len() + 40);
    line.extend_from_slice(format!("{number} {checksum} ").as_bytes());
    line.extend_from_slice(record);
    line.push(b'\n');
    line
}

/// The line at `start` without its line break, and where the next one begins.
fn line_at(bytes: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let length = bytes[start..].iter().position(|&byte| byte == b'\n')?;
    Some((&bytes[start..start + length], start + length + 1))
}

/// Splits at the first space.
fn word(line: &[u8]) -> Option<(&str, &[u8])> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    Some((str::from_utf8(&line[..space]).ok()?, &line[space + 1..]))
}

/// The three lines at the beginning of a journal.
struct Header {
    run_key: Digest,
    description: Value,
    /// Where the records begin.
    end: usize,
}

/// Reads the three lines of the header.
fn read_header(bytes: &[u8], path: &Path) -> Result<Header, JournalError> {
    let damaged =
        |offset: usize, what| JournalError::Damaged { path: path.to_owned(), offset: offset as u64, what };
    let shown = &bytes[..bytes.len().min(40)];
    let foreign = || JournalError::NotAJournal {
        path: path.to_owned(),
        found: String::from_utf8_lossy(shown.split(|&byte| byte == b'\n').next().unwrap_or_default())
            .into_owned(),
    };
    let version = bytes.strip_prefix(TITLE.as_bytes()).ok_or_else(foreign)?;
    let (version, _) = line_at(version, 0).ok_or_else(foreign)?;
    if version != VERSION.as_bytes() {
        let found = String::from_utf8_lossy(&version[..version.len().min(20)]).into_owned();
        return Err(JournalError::Version { path: path.to_owned(), found });
    }
    let key_start = TITLE.len() + VERSION.len() + 1;
    let wanted = "wanted the key of the run, 64 hexadecimal digits";
    let (key, description_start) = line_at(bytes, key_start).ok_or_else(|| damaged(key_start, wanted))?;
    let run_key: Digest = str::from_utf8(key)
        .ok()
        .and_then(|text| text.parse().ok().filter(|digest: &Digest| digest.to_string() == text))
        .ok_or_else(|| damaged(key_start, wanted))?;
    let wanted = "wanted a checksum and the description of the run";
    let unreadable = || damaged(description_start, wanted);
    let (line, end) = line_at(bytes, description_start).ok_or_else(unreadable)?;
    let (sum, text) = word(line).ok_or_else(unreadable)?;
    if sum != checksum(run_key, "description", text) {
        return Err(unreadable());
    }
    let description = serde_json::from_slice(text).map_err(|_| unreadable())?;
    Ok(Header { run_key, description, end })
}

/// Checks that the header is that of this run; returns where the records begin.
fn check_header(
    bytes: &[u8],
    path: &Path,
    run_key: Digest,
    description: &Value,
) -> Result<usize, JournalError> {
    let found = read_header(bytes, path)?;
    if found.run_key != run_key {
        let differences = Differences::between(&found.description, description);
        return Err(JournalError::OtherRun { path: path.to_owned(), differences });
    }
    Ok(found.end)
}

/// Whole records of whichever run; `None` if the header was never finished.
fn contents(bytes: &[u8], path: &Path) -> Result<Option<Contents>, JournalError> {
    let title = format!("{TITLE}{VERSION}\n");
    let common = bytes.len().min(title.len());
    let whole = bytes.iter().filter(|&&byte| byte == b'\n').count() >= HEADER_LINES;
    if !whole && bytes[..common] == title.as_bytes()[..common] {
        return Ok(None);
    }
    let Header { run_key, description, end } = read_header(bytes, path)?;
    let (records, length) = replay(bytes, end, path, run_key)?;
    let unfinished_bytes = (bytes.len() - length) as u64;
    Ok(Some(Contents { run_key, description, records, unfinished_bytes }))
}

/// The records from `start` on, and where the last whole one ends.
fn replay(
    bytes: &[u8],
    start: usize,
    path: &Path,
    run_key: Digest,
) -> Result<(Vec<Vec<u8>>, usize), JournalError> {
    let mut records = Vec::new();
    let mut offset = start;
    while let Some((line, next)) = line_at(bytes, offset) {
        match record_of(line, run_key) {
            Some((number, _, record)) if number == records.len() as u64 => records.push(record.to_vec()),
            Some(_) | None => break,
        }
        offset = next;
    }
    let rest = &bytes[offset..];
    // Records that were being written when the process stopped have no end; a power cut may also have kept some of their
    // blocks from the disk, which then read as zeros. Anything else was whole once.
    let unfinished = rest.last() != Some(&b'\n') || rest.contains(&0);
    let missing = records.len() as u64;
    let mut later = rest.split(|&byte| byte == b'\n').skip(1).filter_map(|line| record_of(line, run_key));
    // What reached the disk later than the missing record says that the missing one had been there.
    let followed = later.any(|(_, group, _)| !(group.first..=group.last).contains(&missing));
    if !rest.is_empty() && (!unfinished || followed) {
        let what = "wanted a record with its number and checksum";
        return Err(JournalError::Damaged { path: path.to_owned(), offset: offset as u64, what });
    }
    Ok((records, offset))
}

/// Number, group and text of the record in a line, if the line is whole.
fn record_of(line: &[u8], run_key: Digest) -> Option<(u64, Group, &[u8])> {
    let (numbers, rest) = word(line)?;
    let (sum, record) = word(rest)?;
    let (number, group) = match numbers.split_once('/') {
        None => {
            let number = numbers.parse().ok()?;
            (number, Group { first: number, last: number })
        }
        Some((number, group)) => {
            let (first, last) = group.split_once('-')?;
            (number.parse().ok()?, Group { first: first.parse().ok()?, last: last.parse().ok()? })
        }
    };
    (sum == checksum(run_key, numbers, record)).then_some((number, group, record))
}

/// Collects the leaves in which two values differ.
fn compare(field: &str, found: Option<&Value>, wanted: Option<&Value>, differences: &mut Vec<Difference>) {
    if found == wanted {
        return;
    }
    if let (Some(Value::Object(left)), Some(Value::Object(right))) = (found, wanted) {
        let mut names: Vec<&String> = left.keys().chain(right.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
            compare(&inner, left.get(name), right.get(name), differences);
        }
        return;
    }
    differences.push(Difference {
        field: field.to_owned(),
        found: found.map(canonical_json),
        wanted: wanted.map(canonical_json),
    });
}

#[cfg(test)]
mod tests;
