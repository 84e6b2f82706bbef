//! The record of a table: what it was made with, and digests by which everybody who reads it can tell that it is what was
//! written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::storage::atomic;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::{SealError, seal, unseal};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ResultTable, TableError};
use crate::run::{RUN_FORMAT, TableDescription};

/// What happens to a table that has no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// It is refused.
    Refuse,
    /// It is read as it is; one whose digest is there and wrong is refused all the same.
    Accept,
}

/// Everything that is known of a table and the files beside it; [sealed](retrievalguard::storage::sealed) on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecord {
    /// Version of the record, [`RUN_FORMAT`].
    pub format: u32,
    /// What the table was made with.
    pub run: Option<Value>,
    /// Digest of rows and description, see [`ResultTable::digest`].
    pub table: Digest,
    /// SHA-256 of files in the same directory, by name.
    pub files: BTreeMap<String, Digest>,
}

impl TableRecord {
    /// The name of a run's record in its directory.
    pub const FILE: &str = "run.json";

    /// The record of a table without files.
    pub fn new(table: &ResultTable, run: Option<&TableDescription>) -> Self {
        Self {
            format: RUN_FORMAT,
            run: run.map(TableDescription::to_value),
            table: table.digest(run),
            files: BTreeMap::new(),
        }
    }

    /// Adds the files of a directory that are there under these names.
    pub fn with_files<'a>(
        mut self,
        folder: &Path,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, TableError> {
        for name in names {
            let path = folder.join(name);
            let digest = Digest::of_file(&path).map_err(|source| TableError::Read { path, source })?;
            self.files.insert(name.to_owned(), digest);
        }
        Ok(self)
    }

    /// Writes the record.
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        let text = seal(self).expect("a record is strings and numbers");
        Ok(atomic::write(path, text.as_bytes())?)
    }

    /// Writes the record of the table at `path` beside it.
    pub(super) fn write_beside(&self, path: &Path) -> Result<(), TableError> {
        self.write(&own_record(path))
    }

    /// Reads a record, if there is one.
    pub fn read(path: &Path) -> Result<Option<Self>, TableError> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|source| TableError::Read { path: path.to_owned(), source })?,
        };
        let value = match unseal(&text) {
            // Before format 2 a run's description stood alone in its file.
            Err(SealError::Unsealed) => return Ok(None),
            other => other.map_err(|source| TableError::Record { path: path.to_owned(), source })?,
        };
        let refused = |reason| TableError::OtherRecord { path: path.to_owned(), reason };
        let record: Self = serde_json::from_value(value).map_err(|error| refused(error.to_string()))?;
        if record.format == RUN_FORMAT {
            return Ok(Some(record));
        }
        Err(refused(format!("it has format {}, wanted {RUN_FORMAT}", record.format)))
    }

    /// The record of the table at `path`: its own, or that of the run in its directory.
    pub(super) fn beside(path: &Path) -> Result<Option<Self>, TableError> {
        match Self::read(&own_record(path))? {
            Some(own) => Ok(Some(own)),
            None => Self::read(&path.with_file_name(Self::FILE)),
        }
    }

    /// Checks every recorded file of a directory that is still there against its digest.
    pub(crate) fn check_files(&self, folder: &Path) -> Result<(), TableError> {
        for (name, &wanted) in &self.files {
            let path = folder.join(name);
            match Digest::of_file(&path) {
                Ok(found) if found == wanted => {}
                Ok(found) => return Err(TableError::Changed { path, found, wanted }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(TableError::Read { path, source }),
            }
        }
        Ok(())
    }
}

/// `certificates.jsonl.json` for `certificates.jsonl`.
fn own_record(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".json");
    path.with_file_name(name)
}
