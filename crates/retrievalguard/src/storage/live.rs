//! A gallery that changes while it is used: the directory as it was made, and a journal of everything written to it since.
//!
//! ```text
//! gallery/
//!   manifest.json, vectors.npy, items.jsonl   as `index` made them; never changed by a write
//!   writes.journal                            {"add": {"identity", "label", "path", "bits"}} or {"remove": {"identity"}}
//!   writes.anchor                             how many of them were acknowledged, and the version after them
//!   pictures/SHA-256.EXTENSION                pictures of added items
//! ```
//!
//! The journal's key is the SHA-256 of the manifest, so that no gallery ever gets the writes of another one. A journal
//! that does not begin with the writes in the anchor was cut, or another stands in its place; nobody reads such a
//! gallery before [`accept_loss`] was told to make do with what is there. A
//! [`LiveGallery`] holds the journal's lock: there is one writer. Readers need no lock, see
//! [`GalleryDirectory::read`]. A [`Snapshot`] stays what it is while writes go on.
//!
//! ```
//! use retrievalguard::gallery::{Gallery, Metric, NewItem};
//! use retrievalguard::storage::live::{Edit, LiveGallery};
//! use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};
//! use retrievalguard::NormBound;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("gallery");
//! let names = ["cat-1", "dog-1"].map(String::from).to_vec();
//! let gallery = Gallery::new(vec![0.0, 1.0, 1.0, 0.0], 2, names, &["cat", "dog"], Metric::Euclidean)?;
//! GalleryDirectory::write(&path, &gallery, &[], Provenance::unknown(NormBound::UNIT))?;
//!
//! let mut live = LiveGallery::open(&path)?;
//! let before = live.snapshot();
//! let item = NewItem { identity: "cat-2".into(), label: "cat".into(), vector: vec![0.5, 0.5] };
//! let answers = live.write(vec![
//!     Edit::Add { item, path: Some(live.store_picture(b"bytes of a file", "png")?) },
//!     Edit::Remove { identity: "dog-7".into() },
//! ])?;
//! assert_eq!(answers[0], Ok(()));
//! assert!(answers[1].is_err(), "there is no dog-7");
//! assert_eq!((before.gallery().len(), live.snapshot().gallery().len()), (2, 3));
//!
//! // Other commands see it too, while this one goes on.
//! let stored = GalleryDirectory::read(&path)?;
//! assert_eq!((stored.gallery.len(), stored.writes()), (3, 1));
//! assert_eq!(stored.version(), live.version());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod anchor;
mod batch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::atomic::{self, WriteError};
use super::digest::Digest;
use super::journal::{Contents, Journal, Opened};
use super::manifest::{GalleryDirectory, GalleryManifest, Provenance, StorageError};
use crate::gallery::{Gallery, GalleryError, NewItem};

pub use anchor::ANCHOR;
pub(super) use anchor::Anchor;
use anchor::AnchorFile;
use batch::Batch;

/// The journal of writes, in the gallery's directory.
pub const WRITES: &str = "writes.journal";

/// The folder of added pictures, in the gallery's directory.
pub const PICTURES: &str = "pictures";

/// Longest identity or label of an added item, in bytes.
pub const NAME_LIMIT: usize = 1 << 12;

/// One change of a gallery.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Adds an item behind the others; its vector must be made as the gallery's manifest says.
    Add {
        /// The item; no other may have its identity.
        item: NewItem,
        /// Its picture, as [`LiveGallery::store_picture`] calls it.
        path: Option<String>,
    },
    /// Removes every row of one picture.
    Remove {
        /// Name of the picture.
        identity: String,
    },
}

/// Why one change was refused; the others of the same call are not affected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The identity is taken.
    #[error("the gallery has an item `{identity}` already")]
    Exists {
        /// Name of the item.
        identity: String,
    },
    /// There is nothing to remove.
    #[error("the gallery has no item `{identity}`")]
    Unknown {
        /// Name of the item.
        identity: String,
    },
    /// A gallery has at least one item.
    #[error("`{identity}` is the last item of the gallery, which cannot be empty")]
    Last {
        /// Name of the item.
        identity: String,
    },
    /// A name is longer than any that is read back.
    #[error("the {what} of a new item has {found} bytes, wanted at most {NAME_LIMIT}")]
    LongName {
        /// Which name.
        what: &'static str,
        /// Its length.
        found: usize,
    },
    /// The picture was not stored by [`LiveGallery::store_picture`], or is not there any more.
    #[error("the picture `{path}` of item `{identity}` is not among the gallery's stored pictures")]
    Picture {
        /// Name of the item.
        identity: String,
        /// Where the picture should be.
        path: String,
    },
    /// The vector cannot be part of this gallery.
    #[error(transparent)]
    Item(#[from] GalleryError),
}

/// What has been written to a gallery since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// How many writes.
    pub(super) count: u64,
    /// Rows from here on were added.
    pub(super) first_added: usize,
    /// Chained digest of the manifest and the writes.
    pub(super) version: Digest,
}

impl Written {
    /// What the anchor of the gallery with the manifest `key` says.
    fn anchor(&self, key: Digest) -> Anchor {
        Anchor { key, writes: self.count, version: self.version }
    }

    pub(super) fn picture_path(
        &self,
        paths: &[Option<String>],
        directory: &Path,
        row: usize,
    ) -> Option<PathBuf> {
        let path = paths.get(row)?.as_deref()?;
        Some(if row >= self.first_added { directory.join(path) } else { PathBuf::from(path) })
    }
}

/// A gallery at one moment; later writes do not change it.
#[derive(Debug)]
pub struct Snapshot {
    gallery: Gallery,
    paths: Vec<Option<String>>,
    written: Written,
    directory: PathBuf,
    base: Arc<GalleryManifest>,
    manifest: OnceLock<GalleryManifest>,
}

impl Snapshot {
    /// A gallery as it stands on disk, for those who only read it: no lock is taken and nothing is written.
    pub fn read(directory: &Path) -> Result<Self, StorageError> {
        let GalleryDirectory { gallery, paths, manifest, written, directory } =
            GalleryDirectory::read(directory)?;
        Ok(Self { gallery, paths, written, directory, base: Arc::new(manifest), manifest: OnceLock::new() })
    }

    /// The vectors with their labels and identities.
    pub fn gallery(&self) -> &Gallery {
        &self.gallery
    }

    /// Where each item's picture is, if that was stored; see [`Snapshot::picture_path`].
    pub fn paths(&self) -> &[Option<String>] {
        &self.paths
    }

    /// How the vectors were made; no data set describes the items once there are writes.
    pub fn provenance(&self) -> Provenance {
        let provenance = self.base.provenance.clone();
        if self.written.count == 0 { provenance } else { Provenance { data_set: None, ..provenance } }
    }

    /// The manifest of the gallery as it has become, see [`GalleryDirectory::manifest`].
    ///
    /// The first call digests all vectors; ask for the [provenance](Snapshot::provenance) where that will do.
    pub fn manifest(&self) -> &GalleryManifest {
        self.manifest.get_or_init(|| match self.written.count {
            0 => GalleryManifest::clone(&self.base),
            _ => self.base.after_writes(&self.gallery, &self.paths),
        })
    }

    /// Number of writes since the gallery was made.
    pub fn writes(&self) -> u64 {
        self.written.count
    }

    /// Stands for the gallery as it was made and every write to it, in order.
    pub fn version(&self) -> Digest {
        self.written.version
    }

    /// Whether an item was added after the gallery had been made.
    pub fn is_added(&self, row: usize) -> bool {
        row >= self.written.first_added
    }

    /// Where the picture of an item is, see [`GalleryDirectory::picture_path`].
    pub fn picture_path(&self, row: usize) -> Option<PathBuf> {
        self.written.picture_path(&self.paths, &self.directory, row)
    }

    /// A copy in the form that [`GalleryDirectory::read`] gives.
    pub fn to_directory(&self) -> GalleryDirectory {
        GalleryDirectory {
            gallery: self.gallery.clone(),
            paths: self.paths.clone(),
            manifest: self.manifest().clone(),
            written: self.written,
            directory: self.directory.clone(),
        }
    }
}

/// A gallery directory that is open for writing.
#[derive(Debug)]
pub struct LiveGallery {
    directory: PathBuf,
    /// Digest of the manifest.
    key: Digest,
    /// Before the journal: dropping it writes, and the journal's lock must be held until then.
    anchor: AnchorFile,
    journal: Journal,
    current: Arc<Snapshot>,
}

impl LiveGallery {
    /// Opens a gallery with everything written to it so far, and keeps other writers out.
    pub fn open(directory: &Path) -> Result<Self, StorageError> {
        let path = directory.join(WRITES);
        loop {
            let (_, key) = GalleryDirectory::read_manifest_with_digest(directory)?;
            let Opened { journal, records, .. } = open_writes(directory, key)?;
            let base = GalleryDirectory::read_base(directory)?;
            // Made again just before the lock was taken.
            if base.written.version != key {
                continue;
            }
            let mut batch = Batch::new(&base.gallery, base.written);
            let replayed = batch.replay(&records, &path);
            let dropped = batch.dropped_pictures(&base.paths);
            let (gallery, paths, written) = replayed.and_then(|()| finish(batch, &base.paths, directory))?;
            let current = Arc::new(Snapshot {
                gallery,
                paths,
                written,
                directory: directory.to_owned(),
                base: Arc::new(base.manifest),
                manifest: OnceLock::new(),
            });
            let anchor = AnchorFile::open(directory, written.anchor(key))?;
            let live = Self { directory: directory.to_owned(), key, anchor, journal, current };
            // A process that stopped after a removal may have left the pictures.
            live.delete_unused(&dropped);
            return Ok(live);
        }
    }

    /// The gallery as it is at this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current)
    }

    /// Where the gallery is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Stands for the gallery as it was made and every write to it, in order; the same after opening it again.
    pub fn version(&self) -> Digest {
        self.current.version()
    }

    /// Whether an item was added after the gallery had been made.
    pub fn is_added(&self, row: usize) -> bool {
        self.current.is_added(row)
    }

    /// Makes changes, in order, each in view of those before it; what is refused is answered for itself.
    ///
    /// When this returns, the accepted ones are on the disk, all by one sync, and in the next [`snapshot`](Self::snapshot).
    /// An error of the whole call leaves the gallery as it was. Pictures that nothing refers to any more are deleted, if
    /// that is possible.
    pub fn write(&mut self, edits: Vec<Edit>) -> Result<Vec<Result<(), EditError>>, StorageError> {
        let current = Arc::clone(&self.current);
        let mut batch = Batch::new(&current.gallery, current.written);
        let (mut answers, mut records, mut refused) =
            (Vec::with_capacity(edits.len()), Vec::new(), Vec::new());
        let mut stored = Vec::new();
        for mut edit in edits {
            if let Edit::Add { path: Some(path), .. } = &edit {
                stored.push(path.clone());
            }
            let answer = batch.admit(&mut edit).and_then(|()| self.check_picture(&edit));
            match (&answer, edit) {
                (Ok(()), edit) => {
                    let record = batch::record(&edit);
                    batch.take(edit, record.as_bytes());
                    records.push(record);
                }
                (Err(_), Edit::Add { path: Some(path), .. }) => refused.push(path),
                (Err(_), Edit::Add { path: None, .. } | Edit::Remove { .. }) => {}
            }
            answers.push(answer);
        }
        let mut dropped = batch.dropped_pictures(&current.paths);
        dropped.append(&mut refused);
        if !records.is_empty() {
            let (gallery, paths, written) = finish(batch, &current.paths, &self.directory)?;
            if let Err(error) = self.journal.append_all(&records) {
                // On a full disk, pictures without items would be in the way.
                self.delete_unused(&stored);
                return Err(error.into());
            }
            self.anchor.advance(written.anchor(self.key));
            let (base, manifest) = (Arc::clone(&current.base), OnceLock::new());
            let directory = self.directory.clone();
            self.current = Arc::new(Snapshot { gallery, paths, written, directory, base, manifest });
        }
        self.delete_unused(&dropped);
        Ok(answers)
    }

    /// Brings the anchor of the writes to the disk; they themselves are there already.
    ///
    /// A power cut before it leaves an anchor that says less than was acknowledged, which is harmless unless the journal
    /// is cut as well. So it may come after the answers, when there is time; dropping the gallery does it, too.
    pub fn settle(&mut self) -> Result<(), StorageError> {
        Ok(self.anchor.settle()?)
    }

    /// Brings a picture to the disk, under a name made of its content; returns its path inside the gallery's directory.
    ///
    /// The next [`write`](Self::write) must add an item with it: a write in between may delete a picture that has no item.
    pub fn store_picture(&self, bytes: &[u8], extension: &str) -> Result<String, StorageError> {
        if !is_extension(extension) {
            return Err(StorageError::Extension { found: extension.to_owned() });
        }
        let folder = self.directory.join(PICTURES);
        match fs::create_dir(&folder) {
            Ok(()) => atomic::sync_directory(&self.directory)
                .map_err(|error| WriteError::new(&self.directory, error))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(WriteError::new(&folder, error).into()),
        }
        let digest = Digest::of_bytes(bytes);
        let path = format!("{PICTURES}/{digest}.{extension}");
        let file = self.directory.join(&path);
        if Digest::of_file(&file).ok() != Some(digest) {
            atomic::write(&file, bytes)?;
        }
        Ok(path)
    }

    fn check_picture(&self, edit: &Edit) -> Result<(), EditError> {
        match edit {
            Edit::Add { item, path: Some(path) } if !self.directory.join(path).is_file() => {
                Err(EditError::Picture { identity: item.identity.clone(), path: path.clone() })
            }
            Edit::Add { .. } | Edit::Remove { .. } => Ok(()),
        }
    }

    /// Deletes the pictures among `candidates` that no added item has; what cannot be deleted is in nobody's way.
    fn delete_unused(&self, candidates: &[String]) {
        if candidates.is_empty() {
            return;
        }
        let added = &self.current.paths[self.current.written.first_added..];
        for path in candidates {
            let used = added.iter().any(|other| other.as_ref() == Some(path));
            if is_stored_picture(path) && !used {
                let _ = fs::remove_file(self.directory.join(path));
            }
        }
    }
}

/// A gallery as it was made, with the writes in its directory.
pub(super) fn with_writes(
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

/// The journal of the gallery whose manifest has the digest `key`, held against its anchor.
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
pub(super) fn count_writes(directory: &Path) -> Result<u64, StorageError> {
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

/// Makes do with the writes that are still there, so that the gallery can be used without those that are lost.
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
    AnchorFile::replace(directory, written.anchor(key))?;
    Ok(Remaining { found: written.count, acknowledged: before.map(|anchor| anchor.writes) })
}

/// Locks the journal of a gallery that is to be replaced, if there is one; refuses if it holds writes.
pub(super) fn hold_empty(directory: &Path) -> Result<Option<Journal>, StorageError> {
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
pub(super) fn remove_empty(directory: &Path, journal: Option<Journal>) -> Result<(), StorageError> {
    // Without the lock the anchor may be that of somebody who has begun to write; one without writes refuses nothing.
    let Some(journal) = journal else { return Ok(()) };
    AnchorFile::remove(directory)?;
    Ok(journal.remove()?)
}

/// Opens the journal of the gallery whose manifest has the digest `key`.
fn open_writes(directory: &Path, key: Digest) -> Result<Opened, StorageError> {
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
fn finish(
    batch: Batch<'_>,
    paths: &[Option<String>],
    directory: &Path,
) -> Result<(Gallery, Vec<Option<String>>, Written), StorageError> {
    batch.finish(paths).map_err(|source| StorageError::Gallery { path: directory.to_owned(), source })
}

/// Whether a path is of the form that [`LiveGallery::store_picture`] gives; nothing else is ever deleted.
fn is_stored_picture(path: &str) -> bool {
    path.strip_prefix(PICTURES).and_then(|rest| rest.strip_prefix('/')?.split_once('.')).is_some_and(
        |(digest, extension)| {
            digest.parse::<Digest>().is_ok_and(|parsed| parsed.to_string() == digest)
                && is_extension(extension)
        },
    )
}

fn is_extension(text: &str) -> bool {
    (1..=8).contains(&text.len())
        && text.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
}

#[cfg(test)]
mod tests;
