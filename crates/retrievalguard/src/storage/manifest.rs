//! A gallery on disk: its vectors, its items, and a manifest that says what they were made from.
//!
//! ```text
//! gallery/
//!   vectors.npy     f32, one row per item
//!   items.jsonl     one {"identity": …, "label": …, "path": …} per row; the path may be missing
//!   manifest.json   how it was made, and the SHA-256 of the other two and of itself; written last
//!   writes.journal  items added and removed since then, see [`live`]
//!   writes.anchor   how many of these writes were acknowledged
//!   pictures/       pictures of added items
//! ```
//!
//! A directory without a manifest is unfinished. Reading checks sizes and digests before anything is used, so what
//! comes back is what was written, and what was written to it since.
//!
//! ```
//! use retrievalguard::gallery::{Gallery, Metric};
//! use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};
//! use retrievalguard::NormBound;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("gallery");
//! let names = ["cat-1", "dog-1"].map(String::from).to_vec();
//! let gallery = Gallery::new(vec![0.0, 1.0, 1.0, 0.0], 2, names, &["cat", "dog"], Metric::Euclidean)?;
//! GalleryDirectory::write(&path, &gallery, &[], Provenance::unknown(NormBound::UNIT))?;
//!
//! let stored = GalleryDirectory::read(&path)?;
//! assert_eq!(stored.gallery.vectors(), gallery.vectors());
//! assert_eq!(stored.manifest.items, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::recorded::{hashed, parse_sealed};
use super::sealed;
use crate::gallery::{Gallery, Metric};

mod comparison;
mod directory;
mod error;
mod provenance;

pub use super::recorded::FileRecord;
pub use comparison::{Disagreement, Mismatch, QuerySide};
pub use directory::GalleryDirectory;
pub(super) use directory::{Item, content_digest};
use directory::{write_items, write_vectors};
pub use error::StorageError;
pub use provenance::{Engine, Provenance, SeedRecord};

/// Version of the layout of a gallery directory.
///
/// In format 1 the manifest does not hold a digest of itself; it is read all the same.
pub const GALLERY_FORMAT: u32 = 2;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const VECTORS: &str = "vectors.npy";
pub(super) const ITEMS: &str = "items.jsonl";

/// What wrote a manifest.
pub(super) const TOOL: &str = concat!("retrievalguard ", env!("CARGO_PKG_VERSION"));

/// A manifest is a page of text; more is not one of ours.
const MANIFEST_LIMIT: u64 = 1 << 20;

/// Longest line of `items.jsonl`: two names and a path.
pub(super) const LINE_LIMIT: u64 = 1 << 20;

/// What a gallery is and what it was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GalleryManifest {
    /// Version of the layout, [`GALLERY_FORMAT`].
    pub format: u32,
    /// Version of the tool that wrote it.
    pub tool: String,
    /// Number of items.
    pub items: usize,
    /// Length of a vector.
    pub dimension: usize,
    /// How vectors are compared.
    pub metric: Metric,
    /// How the vectors were made.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// The file of vectors.
    pub vectors_file: FileRecord,
    /// The file of identities and labels.
    pub items_file: FileRecord,
}

impl GalleryManifest {
    fn new(
        gallery: &Gallery,
        provenance: Provenance,
        vectors_file: FileRecord,
        items_file: FileRecord,
    ) -> Self {
        Self {
            format: GALLERY_FORMAT,
            tool: TOOL.to_owned(),
            items: gallery.len(),
            dimension: gallery.dimension(),
            metric: gallery.metric(),
            provenance,
            vectors_file,
            items_file,
        }
    }

    /// What [`GalleryDirectory::write`] would say of this gallery; `paths` has one entry per item or none.
    pub fn describe(gallery: &Gallery, paths: &[Option<String>], provenance: Provenance) -> Self {
        let vectors_file = hashed(|writer| write_vectors(writer, gallery));
        let items_file = hashed(|writer| write_items(writer, gallery, paths));
        Self::new(gallery, provenance, vectors_file, items_file)
    }

    /// What [`GalleryDirectory::write`] would say of a gallery that this one has become by writes.
    pub(super) fn after_writes(&self, gallery: &Gallery, paths: &[Option<String>]) -> Self {
        let provenance = Provenance { data_set: None, ..self.provenance.clone() };
        Self { tool: self.tool.clone(), format: self.format, ..Self::describe(gallery, paths, provenance) }
    }

    /// Whether this is the manifest of a gallery that came by way of the file at `path`: every vector, identity, label and
    /// path.
    pub fn check_content(
        &self,
        gallery: &Gallery,
        paths: &[Option<String>],
        path: &Path,
    ) -> Result<(), StorageError> {
        let found = Self::describe(gallery, paths, self.provenance.clone());
        let numbers = |manifest: &Self| {
            [
                ("a number of items of", manifest.items.to_string()),
                ("the dimension", manifest.dimension.to_string()),
                ("the metric", format!("{:?}", manifest.metric).to_lowercase()),
                ("vectors with sha256", manifest.vectors_file.sha256.to_string()),
                ("identities, labels and paths with sha256", manifest.items_file.sha256.to_string()),
            ]
        };
        for ((what, found), (_, wanted)) in numbers(&found).into_iter().zip(numbers(self)) {
            if found != wanted {
                return Err(StorageError::Other { path: path.to_owned(), what, found, wanted });
            }
        }
        Ok(())
    }

    /// Reads the text of a manifest, which came from the file at `path`, and checks it against its own digest.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, StorageError> {
        parse_sealed(text, path, GALLERY_FORMAT, "a gallery manifest")
    }

    /// The text of the manifest, with its digest.
    pub fn sealed(&self) -> String {
        sealed::seal(self).expect("a manifest is strings and numbers")
    }
}

#[cfg(test)]
mod tests;
