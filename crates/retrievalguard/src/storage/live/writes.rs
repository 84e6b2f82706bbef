//! The journal of writes beside a gallery, checked against its manifest and its anchor.

use std::path::Path;

use serde_json::{Value, json};

use super::anchor::{ANCHOR, Anchor, AnchorFile};
use super::batch::Batch;
use super::{WRITES, Written};
use crate::gallery::Gallery;
use crate::storage::digest::Digest;
use crate::storage::journal::{Contents, Journal, Opened};
use crate::storage::manifest::{GalleryDirectory, StorageError};

/// A gallery as it was made, with the writes in its directory.
pub(in crate::storage) fn with_writes(
    base: GalleryDirectory,
    directory: &Path,
) -> Result<GalleryDirectory, StorageError> {
    let path = directory.join(WRITES);
    let contents = read_whole(directory, base.written.version)?;
    let Some(contents) = contents.filter(|contents| !contents.records.is_empty()) else {
        return Ok(base);
    };
    let mut batch = Batch::new(&base.gallery, base.written);
    batch.replay(&contents.records, &path)?;
    let (gallery, paths, written) = finish(batch, &base.paths, directory)?;
    let manifest = base.manifest.after_writes(&gallery, &paths);
    Ok(GalleryDirectory { gallery, paths, manifest, written, directory: directory.to_owned() })
}

/// The journal of the gallery whose manifest has the digest `key`, checked against its anchor.
fn read_whole(directory: &Path, key: Digest) -> Result<Option<Contents>, StorageError> {
    let path = directory.join(WRITES);
    // The anchor first: whoever writes meanwhile makes the journal longer, never shorter.
    let anchor = Anchor::read(directory)?;
    let contents = Journal::read(&path)?;
    if let Some(contents) = contents.as_ref().filter(|contents| !contents.records.is_empty()) {
        check_key(contents, key, &path)?;
    }
    let records = contents.as_ref().map_or(&[][..], |contents| &contents.records);
    match anchor {
        Some(anchor) if anchor.key == key => anchor.check(records, &path)?,
        // Made for a gallery that was replaced before anything was written to it.
        Some(Anchor { writes: 0, .. }) => {}
        Some(Anchor { writes, key: found, .. }) => {
            let writes = usize::try_from(writes).unwrap_or(usize::MAX);
            return Err(StorageError::OtherWrites { path, writes, found, wanted: key });
        }
        // A journal whose header does not say `anchored` needs none.
        None if records.is_empty() || !contents.as_ref().is_some_and(is_anchored) => {}
        // Journal and anchor may both have been begun between the two readings.
        None if Anchor::read(directory)?.is_some() => return read_whole(directory, key),
        None => return Err(StorageError::Anchor { path: directory.join(ANCHOR), what: "missing" }),
    }
    Ok(contents)
}

/// How many writes a gallery directory holds or should hold, whichever gallery they were made to.
pub(in crate::storage) fn count_writes(directory: &Path) -> Result<u64, StorageError> {
    let acknowledged = Anchor::read(directory)?.map_or(0, |anchor| anchor.writes);
    let found = Journal::read(&directory.join(WRITES))?.map_or(0, |contents| contents.records.len() as u64);
    Ok(found.max(acknowledged))
}

/// What is left of the writes to a gallery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Writes that the journal holds.
    pub found: u64,
    /// Writes that were acknowledged; `None` if the anchor cannot say it.
    pub acknowledged: Option<u64>,
}

/// Accepts the writes that are still there, so that the gallery can be used without those that are lost.
///
/// Every whole record of the journal stays. Nothing happens to a journal that is damaged in its middle or holds the
/// writes of another gallery: that one must be moved away together with its anchor.
pub fn accept_loss(directory: &Path) -> Result<Remaining, StorageError> {
    let path = directory.join(WRITES);
    let base = GalleryDirectory::read_base(directory)?;
    let key = base.written.version;
    let contents = Journal::read(&path)?;
    if let Some(contents) = contents.as_ref().filter(|contents| !contents.records.is_empty()) {
        check_key(contents, key, &path)?;
    }
    let Opened { journal: _locked, records, .. } = begin_writes(&path, key, contents)?;
    let mut batch = Batch::new(&base.gallery, base.written);
    batch.replay(&records, &path)?;
    let (_, _, written) = finish(batch, &base.paths, directory)?;
    // What cannot be read, or speaks of another gallery, says nothing of this one.
    let before = Anchor::read(directory).ok().flatten().filter(|anchor| anchor.key == key);
    AnchorFile::replace(directory, written.anchor())?;
    Ok(Remaining { found: written.count, acknowledged: before.map(|anchor| anchor.writes) })
}

/// Locks the journal of a gallery that is to be replaced, if there is one; refuses if it holds writes.
pub(in crate::storage) fn hold_empty(directory: &Path) -> Result<Option<Journal>, StorageError> {
    let path = directory.join(WRITES);
    let held = |writes: u64| match writes {
        0 => Ok(()),
        _ => {
            let writes = usize::try_from(writes).unwrap_or(usize::MAX);
            Err(StorageError::Writes { path: path.clone(), writes })
        }
    };
    held(count_writes(directory)?)?;
    let (run_key, description) = match Journal::read(&path)? {
        Some(Contents { run_key, description, .. }) => (run_key, description),
        // An empty file may be that of somebody who is about to write, so it is locked like any other.
        None if path.exists() => (Digest::of_json(&Value::Null), Value::Null),
        None => return Ok(None),
    };
    let Opened { journal, records, .. } = Journal::open_or_create(&path, run_key, &description)?;
    held(records.len() as u64)?;
    Ok(Some(journal))
}

/// Removes the journal and the anchor of a gallery that was replaced and had no writes.
pub(in crate::storage) fn remove_empty(
    directory: &Path,
    journal: Option<Journal>,
) -> Result<(), StorageError> {
    // Without the lock the anchor may be that of somebody who has begun to write; one without writes refuses nothing.
    let Some(journal) = journal else { return Ok(()) };
    AnchorFile::remove(directory)?;
    Ok(journal.remove()?)
}

/// Opens the journal of the gallery whose manifest has the digest `key`.
pub(super) fn open_writes(directory: &Path, key: Digest) -> Result<Opened, StorageError> {
    let path = directory.join(WRITES);
    // Before anything is touched: opening cuts off what looks unfinished.
    let contents = read_whole(directory, key)?;
    let opened = begin_writes(&path, key, contents)?;
    // And once more, now that nobody else can write to it.
    if let Some(anchor) = Anchor::read(directory)?.filter(|anchor| anchor.key == key) {
        anchor.check(&opened.records, &path)?;
    }
    Ok(opened)
}

/// Opens the journal of the gallery whose manifest has the digest `key` and which has these contents, or begins one.
fn begin_writes(path: &Path, key: Digest, contents: Option<Contents>) -> Result<Opened, StorageError> {
    if let Some(contents) = contents.filter(|contents| contents.run_key != key) {
        // Begun for a gallery that was replaced before anything was written to it.
        let opened = Journal::open_or_create(path, contents.run_key, &contents.description)?;
        if opened.records.is_empty() {
            opened.journal.remove()?;
        }
    }
    Ok(Journal::open_or_create(path, key, &description(key))?)
}

fn description(key: Digest) -> Value {
    json!({"command": "writes", "manifest": key, "anchored": true})
}

/// Whether a journal was begun together with an anchor.
fn is_anchored(contents: &Contents) -> bool {
    contents.description["anchored"] == json!(true)
}

fn check_key(contents: &Contents, wanted: Digest, path: &Path) -> Result<(), StorageError> {
    if contents.run_key == wanted {
        return Ok(());
    }
    let (path, writes) = (path.to_owned(), contents.records.len());
    Err(StorageError::OtherWrites { path, writes, found: contents.run_key, wanted })
}

/// What a batch makes of a gallery.
pub(super) fn finish(
    batch: Batch<'_>,
    paths: &[Option<String>],
    directory: &Path,
) -> Result<(Gallery, Vec<Option<String>>, Written), StorageError> {
    batch.finish(paths).map_err(|source| StorageError::Gallery { path: directory.to_owned(), source })
}
