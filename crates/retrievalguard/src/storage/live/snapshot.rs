//! A gallery at one moment.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Anchor;
use crate::gallery::Gallery;
use crate::storage::digest::Digest;
use crate::storage::manifest::{GalleryDirectory, GalleryManifest, Provenance, StorageError};

/// What has been written to a gallery since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Written {
    /// How many writes.
    pub(in crate::storage) count: u64,
    /// Rows from here on were added.
    pub(in crate::storage) first_added: usize,
    /// Chained digest of the manifest and the writes.
    pub(in crate::storage) version: Digest,
}

impl Written {
    /// What the anchor of the gallery with the manifest `key` says.
    pub(super) fn anchor(&self, key: Digest) -> Anchor {
        Anchor { key, writes: self.count, version: self.version }
    }

    pub(in crate::storage) fn picture_path(
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
    pub(super) gallery: Gallery,
    pub(super) paths: Vec<Option<String>>,
    pub(super) written: Written,
    pub(super) directory: PathBuf,
    pub(super) base: Arc<GalleryManifest>,
    pub(super) manifest: OnceLock<GalleryManifest>,
}

impl Snapshot {
    /// A gallery as it is on disk, for those who only read it: no lock is taken and nothing is written.
    pub fn read(directory: &Path) -> Result<Self, StorageError> {
        let GalleryDirectory { gallery, paths, manifest, written, directory } =
            GalleryDirectory::read(directory)?;
        Ok(Self { gallery, paths, written, directory, base: Arc::new(manifest), manifest: OnceLock::new() })
    }

    /// The vectors with their labels and identities.
    pub fn gallery(&self) -> &Gallery {
        &self.gallery
    }

    /// The same items as the plain retriever searches them, see [`GalleryDirectory::plain`].
    pub fn plain(&self) -> Option<&Gallery> {
        let clean = self.base.provenance.samples == Some(0);
        if clean { Some(&self.gallery) } else { self.gallery.plain() }
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
