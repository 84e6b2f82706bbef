//! A gallery that changes while it is used: the directory as it was made, and a journal of everything written to it since.
//!
//! ```text
//! gallery/
//!   manifest.json, vectors.npy, …             as `index` made them; never changed by a write
//!   writes.journal                            {"add": {"identity", "label", "path", "bits", "plain"}} or {"remove": {"identity"}}
//!   writes.anchor                             how many of them were acknowledged, and the version after them
//!   pictures/SHA-256.EXTENSION                pictures of added items
//! ```
//!
//! The journal's key is the SHA-256 of the manifest, so that no gallery ever gets the writes of another one. A journal
//! that does not begin with the writes in the anchor was cut, or replaced by another; no command reads such a
//! gallery before [`accept_loss`] is told to continue with what is there. A
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
//! let item = NewItem { identity: "cat-2".into(), label: "cat".into(), vector: vec![0.5, 0.5], plain: None };
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
mod snapshot;
mod writes;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::atomic::{self, WriteError};
use super::digest::Digest;
use super::journal::{Journal, Opened};
use super::manifest::{GalleryDirectory, StorageError};
use crate::gallery::{GalleryError, NewItem};

use anchor::AnchorFile;
pub(super) use anchor::{ANCHOR, Anchor};
use batch::Batch;
pub(super) use snapshot::Written;
pub use snapshot::{MissingWrite, Snapshot};
pub use writes::{Remaining, accept_loss};
pub(super) use writes::{count_writes, hold_empty, remove_empty, with_writes};
use writes::{finish, open_writes};

/// The journal of writes, in the gallery's directory.
pub(super) const WRITES: &str = "writes.journal";

/// The folder of added pictures, in the gallery's directory.
const PICTURES: &str = "pictures";

/// Longest identity or label of an added item, in bytes.
const NAME_LIMIT: usize = 1 << 12;

/// One change of a gallery.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Adds an item behind the others; its vector, or those of its views, must be made as the gallery's manifest says.
    Add {
        /// The item; no other may have its identity.
        item: NewItem,
        /// Its picture, as [`LiveGallery::store_picture`] calls it.
        path: Option<String>,
    },
    /// Removes every row of one picture, each view.
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

/// A gallery directory that is open for writing.
#[derive(Debug)]
pub struct LiveGallery {
    directory: PathBuf,
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
            let removed = batch.removed_items().collect();
            let (gallery, paths, written) = replayed.and_then(|()| finish(batch, &base.paths, directory))?;
            let current = Arc::new(Snapshot {
                gallery,
                paths,
                written,
                removed: Arc::new(removed),
                directory: directory.to_owned(),
                base: Arc::new(base.manifest),
                manifest: OnceLock::new(),
            });
            let anchor = AnchorFile::open(directory, written.anchor())?;
            let live = Self { directory: directory.to_owned(), anchor, journal, current };
            // A process that stopped after a removal may have left the pictures.
            live.delete_unused(&dropped);
            return Ok(live);
        }
    }

    /// The gallery as it is at this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current)
    }

    /// Whether this gallery is the one in `directory`: nobody else can open that for writing.
    pub fn is_in(&self, directory: &Path) -> bool {
        self.journal.is_at(&directory.join(WRITES))
    }

    /// Refuses to write by name into a directory that has taken the place of the gallery's own.
    fn check_place(&self) -> Result<(), StorageError> {
        if self.is_in(&self.directory) {
            Ok(())
        } else {
            Err(StorageError::Replaced { path: self.directory.clone() })
        }
    }

    /// Stands for the gallery as it was made and every write to it, in order; the same after opening it again.
    pub fn version(&self) -> Digest {
        self.current.version()
    }

    /// Makes changes, in order, each in view of those before it; what is refused is answered for itself.
    ///
    /// When this returns, the accepted ones are on the disk, all by one sync, and in the next [`snapshot`](Self::snapshot).
    /// An error of the whole call leaves the gallery as it was. Pictures that nothing refers to any more are deleted, if
    /// that is possible.
    pub fn write(&mut self, edits: Vec<Edit>) -> Result<Vec<Result<(), EditError>>, StorageError> {
        self.check_place()?;
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
            let (mut removed, gone) = (Arc::clone(&current.removed), batch.removed_items());
            let gone: Vec<String> = gone.collect();
            if !gone.is_empty() {
                Arc::make_mut(&mut removed).extend(gone);
            }
            let (gallery, paths, written) = finish(batch, &current.paths, &self.directory)?;
            if let Err(error) = self.journal.append_all(&records) {
                // On a full disk, pictures without items would be in the way.
                self.delete_unused(&stored);
                return Err(error.into());
            }
            self.anchor.advance(written.anchor());
            let (base, manifest) = (Arc::clone(&current.base), OnceLock::new());
            let directory = self.directory.clone();
            self.current = Arc::new(Snapshot { gallery, paths, written, removed, directory, base, manifest });
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
        self.check_place()?;
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

    /// Deletes the pictures among `candidates` that no added item has; what cannot be deleted does no harm.
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
mod replaced_tests;
#[cfg(test)]
mod tests;
