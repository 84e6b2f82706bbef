//! A gallery at one moment.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Anchor;
use crate::gallery::Gallery;
use crate::storage::digest::Digest;
use crate::storage::manifest::{
    GalleryDirectory, GalleryManifest, Mismatch, Provenance, QuerySide, StorageError,
};

/// What has been written to a gallery since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Written {
    /// How many writes.
    pub(in crate::storage) count: u64,
    /// Rows from here on were added.
    pub(in crate::storage) first_added: usize,
    /// Digest of the manifest, which no write changes.
    pub(in crate::storage) made: Digest,
    /// Chained digest of the manifest and the writes.
    pub(in crate::storage) version: Digest,
}

impl Written {
    /// What the anchor says.
    pub(super) fn anchor(&self) -> Anchor {
        Anchor { key: self.made, writes: self.count, version: self.version }
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

/// A write that another gallery does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MissingWrite {
    /// An item was added, and the other gallery has none of its name.
    #[error("it has no item `{identity}`, which was added")]
    Added {
        /// Name of the item.
        identity: String,
    },
    /// An item was added, and that of the other gallery is another.
    #[error("its item `{identity}` has another label or another vector than the one that was added")]
    Changed {
        /// Name of the item.
        identity: String,
    },
    /// An item was removed, and the other gallery has it.
    #[error("it has the item `{identity}`, which was removed")]
    Removed {
        /// Name of the item.
        identity: String,
    },
}

/// Whether two rows have the same label, the same vector and, where both galleries have them, the same clean embedding.
fn same_item((left, row): (&Gallery, usize), (right, other): (&Gallery, usize)) -> bool {
    let bits =
        |gallery: &Gallery, row| gallery.vector(row).iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let plain = left.plain().zip(right.plain());
    left.label_name(left.label(row)) == right.label_name(right.label(other))
        && bits(left, row) == bits(right, other)
        && plain.is_none_or(|(left, right)| bits(left, row) == bits(right, other))
}

/// A gallery at one moment; later writes do not change it.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) gallery: Gallery,
    pub(super) paths: Vec<Option<String>>,
    pub(super) written: Written,
    /// Items that the gallery was made with and that were removed, as whoever has it open for writing knows.
    pub(super) removed: Arc<BTreeSet<String>>,
    pub(super) directory: PathBuf,
    pub(super) base: Arc<GalleryManifest>,
    pub(super) manifest: OnceLock<GalleryManifest>,
}

impl Snapshot {
    /// A gallery as it is on disk, for those who only read it: no lock is taken and nothing is written.
    pub fn read(directory: &Path) -> Result<Self, StorageError> {
        let GalleryDirectory { gallery, paths, manifest, written, directory } =
            GalleryDirectory::read(directory)?;
        let (removed, base, manifest) = (Arc::default(), Arc::new(manifest), OnceLock::new());
        Ok(Self { gallery, paths, written, removed, directory, base, manifest })
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

    /// Stands for the gallery as it was made, whatever was written to it since.
    pub fn made(&self) -> Digest {
        self.written.made
    }

    /// Whether queries made with `queries` may be asked of this gallery, see [`GalleryManifest::check_against`].
    pub fn check_against(&self, name: &str, queries: &QuerySide) -> Result<(), Mismatch> {
        self.base.check_against(name, queries)
    }

    /// Whether `other` has what was written to this gallery: every item that was added and is still here, with its label
    /// and the bits of its vectors, and none that was removed.
    ///
    /// Only the snapshots of a [`LiveGallery`](super::LiveGallery) know what was removed.
    pub fn check_kept_by(&self, other: &Gallery) -> Result<(), MissingWrite> {
        for row in self.written.first_added..self.gallery.len() {
            let identity = self.gallery.identity(row);
            let (own, rows) = (self.gallery.rows_of(identity), other.rows_of(identity));
            if rows.is_empty() {
                return Err(MissingWrite::Added { identity: identity.to_owned() });
            }
            let same =
                |(own, other_row): (&usize, &usize)| same_item((&self.gallery, *own), (other, *other_row));
            if own.len() != rows.len() || !own.iter().zip(&rows).all(same) {
                return Err(MissingWrite::Changed { identity: identity.to_owned() });
            }
        }
        // One that was removed and added again stands among those that were added.
        let gone = |identity: &&String| self.gallery.rows_of(identity).is_empty();
        match self.removed.iter().filter(gone).find(|identity| !other.rows_of(identity).is_empty()) {
            Some(identity) => Err(MissingWrite::Removed { identity: identity.clone() }),
            None => Ok(()),
        }
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
