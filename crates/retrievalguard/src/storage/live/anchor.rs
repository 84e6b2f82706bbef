//! The anchor of a journal of writes: how many of them were acknowledged, in a file of its own.
//!
//! A journal that was cut between two records looks like one to which less was written, and one that is gone like none.
//! The anchor tells them apart. It has two slots of 512 bytes that are written in turn, so that a power cut in the middle
//! of one leaves the other:
//!
//! ```text
//! retrievalguard anchor 1 <sha256 of the manifest> <writes> <version after them> <checksum: 16 digits> <spaces>
//! ```
//!
//! A write is on the disk before the anchor speaks of it, so the journal may hold more than the anchor says, never less.
//! Advancing it is one small write without a sync: while the system runs, everyone sees it at once. Only a power cut
//! can take it back, by what [`AnchorFile::settle`] has not brought to the disk yet, and an anchor that lags behind
//! refuses nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::storage::atomic::{self, WriteError};
use crate::storage::digest::Digest;
use crate::storage::manifest::StorageError;

/// The anchor of the journal of writes, in the gallery's directory.
pub(in crate::storage) const ANCHOR: &str = "writes.anchor";

const TITLE: &str = "retrievalguard anchor 1";

/// A slot is a sector, which disks write whole or not at all.
const SLOT: usize = 512;

const CHECKSUM_DIGITS: usize = 16;

/// What has been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Anchor {
    /// Digest of the manifest of the gallery that was written to.
    pub(in crate::storage) key: Digest,
    /// How many writes.
    pub(in crate::storage) writes: u64,
    /// Version of the gallery after them.
    pub(super) version: Digest,
}

impl Anchor {
    /// The anchor in a gallery's directory; `None` if there is none.
    pub(in crate::storage) fn read(directory: &Path) -> Result<Option<Self>, StorageError> {
        let path = directory.join(ANCHOR);
        let bytes = match read_slots(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|source| StorageError::Read { path: path.clone(), source })?,
        };
        let slots = bytes.chunks(SLOT).take(2).filter_map(Self::of_slot);
        let newest = slots.max_by_key(|anchor| anchor.writes);
        newest.map(Some).ok_or(StorageError::Anchor { path, what: "damaged" })
    }

    fn of_slot(slot: &[u8]) -> Option<Self> {
        let text = str::from_utf8(slot).ok()?.strip_suffix('\n')?.trim_end_matches(' ');
        let (facts, checksum) = text.rsplit_once(' ')?;
        let mut words = facts.strip_prefix(TITLE)?.strip_prefix(' ')?.split(' ');
        let (key, writes, version) = (words.next()?, words.next()?, words.next()?);
        let anchor =
            Self { key: key.parse().ok()?, writes: writes.parse().ok()?, version: version.parse().ok()? };
        (slot.len() == SLOT && words.next().is_none() && checksum == checksum_of(facts)).then_some(anchor)
    }

    fn slot(&self) -> Vec<u8> {
        let facts = format!("{TITLE} {} {} {}", self.key, self.writes, self.version);
        let line = format!("{facts} {}", checksum_of(&facts));
        format!("{line:<width$}\n", width = SLOT - 1).into_bytes()
    }

    /// Whether a journal begins with the writes that were acknowledged; `journal` is its name for messages.
    pub(super) fn check(&self, records: &[Vec<u8>], journal: &Path) -> Result<(), StorageError> {
        let acknowledged = usize::try_from(self.writes).ok().and_then(|count| records.get(..count));
        let version = acknowledged
            .map(|records| records.iter().fold(self.key, |version, record| version_after(version, record)));
        if version == Some(self.version) {
            return Ok(());
        }
        let (path, found, wanted) = (journal.to_owned(), records.len() as u64, self.writes);
        Err(StorageError::LostWrites { path, found, wanted })
    }
}

/// The bytes of both slots, and at most one more, by which a longer file is known.
fn read_slots(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(2 * SLOT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn checksum_of(facts: &str) -> String {
    format!("{:.*}", CHECKSUM_DIGITS, Digest::of_bytes(facts.as_bytes()))
}

/// Version of a gallery after one more write.
pub(super) fn version_after(version: Digest, record: &[u8]) -> Digest {
    Digest::of_bytes(&[&version.bytes()[..], record].concat())
}

/// The anchor of a gallery that is open for writing.
#[derive(Debug)]
pub(super) struct AnchorFile {
    file: File,
    path: PathBuf,
    anchor: Anchor,
    /// The slot that is written next.
    slot: u64,
    /// Whether the file does not say what it should.
    behind: bool,
    /// Whether the disk may not have all of it.
    unsettled: bool,
}

impl AnchorFile {
    /// Opens the anchor of a gallery whose journal is locked and has been checked against it.
    pub(super) fn open(directory: &Path, anchor: Anchor) -> Result<Self, StorageError> {
        let path = directory.join(ANCHOR);
        let failed = |error| WriteError::new(&path, error);
        let slots = |bytes: &[u8]| [0, 1].map(|slot| bytes.chunks(SLOT).nth(slot).and_then(Anchor::of_slot));
        let mut bytes = read_slots(&path).unwrap_or_default();
        let own = |slots: [Option<Anchor>; 2]| slots.into_iter().flatten().any(|slot| slot.key == anchor.key);
        if bytes.len() != 2 * SLOT || !own(slots(&bytes)) {
            Self::replace(directory, anchor)?;
            bytes = anchor.slot().repeat(2);
        }
        let slots = slots(&bytes);
        let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
        // The older slot is the one to lose; a damaged one has nothing to lose.
        let slot = u64::from(slots[0].map(|slot| slot.writes) > slots[1].map(|slot| slot.writes));
        let newest = slots.into_iter().flatten().max_by_key(|slot| slot.writes);
        let mut opened = Self { file, path, anchor, slot, behind: false, unsettled: false };
        if newest != Some(anchor) {
            opened.advance(anchor);
        }
        opened.settle()?;
        Ok(opened)
    }

    /// Writes an anchor anew, whatever was there.
    pub(super) fn replace(directory: &Path, anchor: Anchor) -> Result<(), WriteError> {
        atomic::write(&directory.join(ANCHOR), &anchor.slot().repeat(2))
    }

    /// Removes the anchor of a gallery without writes.
    pub(super) fn remove(directory: &Path) -> Result<(), WriteError> {
        let path = directory.join(ANCHOR);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(WriteError::new(&path, error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Speaks of writes that are on the disk; if that fails, [`settle`](Self::settle) tries again and says so.
    pub(super) fn advance(&mut self, anchor: Anchor) {
        self.anchor = anchor;
        self.unsettled = true;
        self.behind = self.write().is_err();
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.slot * SLOT as u64))?;
        self.file.write_all(&self.anchor.slot())?;
        self.slot = 1 - self.slot;
        Ok(())
    }

    /// Brings the anchor to the disk.
    pub(super) fn settle(&mut self) -> Result<(), WriteError> {
        self.sync().map_err(|error| WriteError::new(&self.path, error))
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.behind {
            self.write()?;
            self.behind = false;
        }
        if self.unsettled {
            self.file.sync_data()?;
            self.unsettled = false;
        }
        Ok(())
    }
}

impl Drop for AnchorFile {
    fn drop(&mut self) {
        // An anchor that lags behind refuses nothing.
        let _ = self.settle();
    }
}
