//! A gallery that is open for writing, or read once and served as it is.

use std::path::Path;
use std::sync::Arc;

use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::live::{self, Edit, EditError, LiveGallery};
use retrievalguard::storage::manifest::StorageError;

use crate::OpenError;
use crate::problem::Problem;

/// Why nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOnly {
    /// It was asked for.
    Asked,
    /// The disk or the directory does not admit it.
    Disk,
    /// There was no room on the disk when the service started.
    Full,
}

impl ReadOnly {
    /// What is told to whoever wants to write.
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Asked => Problem::read_only("the gallery is served read-only, as --read-only asks"),
            Self::Disk => Problem::read_only("the gallery cannot be written to, so it is served read-only"),
            Self::Full => Problem::no_room(
                "the disk had no room when the service started, so the gallery is served read-only; wanted room and a restart",
            ),
        }
    }
}

/// The gallery as it is held: open for writing, or as it was read.
pub(super) enum Held {
    Live(Box<LiveGallery>),
    Fixed(Arc<live::Snapshot>),
}

impl Held {
    /// Opens a gallery for writing, if that is wanted and possible.
    pub(super) fn open(directory: &Path, read_only: bool) -> Result<(Self, Option<ReadOnly>), OpenError> {
        let fixed = || Ok::<_, OpenError>(Self::Fixed(Arc::new(live::Snapshot::read(directory)?)));
        if read_only {
            return Ok((fixed()?, Some(ReadOnly::Asked)));
        }
        match LiveGallery::open(directory) {
            Ok(live) => Ok((Self::Live(Box::new(live)), None)),
            Err(StorageError::Write(error)) => {
                let reason = match error {
                    WriteError::ReadOnly { .. } => ReadOnly::Disk,
                    WriteError::DiskFull { .. } | WriteError::SizeLimit { .. } => ReadOnly::Full,
                    other => return Err(StorageError::Write(other).into()),
                };
                tracing::warn!(cause = %error, "the gallery cannot be written to and is served read-only");
                Ok((fixed()?, Some(reason)))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn snapshot(&self) -> Arc<live::Snapshot> {
        match self {
            Self::Live(live) => live.snapshot(),
            Self::Fixed(stored) => Arc::clone(stored),
        }
    }

    pub(super) fn store_picture(&self, bytes: &[u8], format: &str) -> Result<String, Problem> {
        match self {
            Self::Live(live) => {
                live.store_picture(bytes, format).map_err(|error| Problem::not_stored(&error))
            }
            Self::Fixed(_) => Err(Problem::read_only("the gallery is served read-only")),
        }
    }

    pub(super) fn write(&mut self, edits: Vec<Edit>) -> Result<Vec<Result<(), EditError>>, Problem> {
        match self {
            Self::Live(live) => live.write(edits).map_err(|error| Problem::not_stored(&error)),
            Self::Fixed(_) => Err(Problem::read_only("the gallery is served read-only")),
        }
    }

    /// Brings what the journal is held against to the disk.
    pub(super) fn settle(&mut self) {
        if let Self::Live(live) = self
            && let Err(error) = live.settle()
        {
            tracing::warn!(cause = %error, "the anchor of the writes is behind");
        }
    }
}
