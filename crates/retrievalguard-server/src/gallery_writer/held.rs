//! A gallery that is open for writing, or read once and served as it is.

use std::path::Path;
use std::sync::Arc;

use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::live::{self, Edit, EditError, LiveGallery, MissingWrite};
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
    /// There was no room on the disk when the gallery was opened.
    Full,
    /// It was given back for a reload, which failed.
    Parted,
}

impl ReadOnly {
    /// What is told to whoever wants to write.
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Asked => Problem::read_only("the gallery is served read-only, as --read-only asks"),
            Self::Disk => Problem::read_only("the gallery cannot be written to, so it is served read-only"),
            Self::Full => Problem::no_room(
                "the disk had no room when the gallery was opened, so it is served read-only; wanted room and a reload",
            ),
            Self::Parted => Problem::read_only(
                "a reload failed after the gallery had been given back, so it is served as it was; wanted another reload",
            ),
        }
    }
}

/// The gallery as it is held: open for writing, or as it was read.
pub(super) enum Held {
    Live(Box<LiveGallery>),
    Fixed(Arc<live::Snapshot>),
    /// As it was when it was given back: what was written to it is promised, and nothing more can be.
    Parted(Arc<live::Snapshot>),
}

impl Held {
    /// Opens a gallery for writing, if that is wanted and possible.
    ///
    /// The directory is one without links on the way: a link that is changed later must not lead writes astray.
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
            Self::Fixed(stored) | Self::Parted(stored) => Arc::clone(stored),
        }
    }

    pub(super) fn store_picture(&self, bytes: &[u8], format: &str) -> Result<String, Problem> {
        match self {
            Self::Live(live) => {
                live.store_picture(bytes, format).map_err(|error| Problem::not_stored(&error))
            }
            Self::Fixed(_) | Self::Parted(_) => Err(Problem::read_only("the gallery is served read-only")),
        }
    }

    /// Whether it is open for writing in this very directory.
    pub(super) fn is_in(&self, directory: &Path) -> bool {
        match self {
            Self::Live(live) => live.is_in(directory),
            Self::Fixed(_) | Self::Parted(_) => false,
        }
    }

    /// Whether `other` has every write that was acknowledged here; a gallery that was only read has promised none.
    pub(super) fn check_kept_by(&self, other: &live::Snapshot) -> Result<(), MissingWrite> {
        match self {
            Self::Live(_) | Self::Parted(_) => self.snapshot().check_kept_by(other.gallery()),
            Self::Fixed(_) => Ok(()),
        }
    }

    pub(super) fn write(&mut self, edits: Vec<Edit>) -> Result<Vec<Result<(), EditError>>, Problem> {
        match self {
            Self::Live(live) => live.write(edits).map_err(|error| Problem::not_stored(&error)),
            Self::Fixed(_) | Self::Parted(_) => Err(Problem::read_only("the gallery is served read-only")),
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
