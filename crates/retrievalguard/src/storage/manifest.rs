//! A gallery on disk: its vectors, its items, and a manifest that says what they were made from.
//!
//! ```text
//! gallery/
//!   vectors.npy     f32, one row per item, or one for each of its views
//!   plain.npy       the same of the clean pictures, which the plain retriever searches; missing where vectors.npy is that
//!   items.jsonl     one {"identity": …, "label": …, "path": …} per row; the path may be missing, a view is named
//!   manifest.json   how it was made, and the SHA-256 of the others and of itself; written last
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
use crate::views::ViewSet;

mod comparison;
mod directory;
mod error;
mod provenance;

pub use super::recorded::FileRecord;
pub use comparison::{Disagreement, Mismatch, QuerySide};
pub use directory::GalleryDirectory;
pub(super) use directory::{ContentDigests, Item};
use directory::{write_items, write_vectors};
pub use error::StorageError;
pub use provenance::{Engine, Provenance, SeedRecord};

/// Version of the layout of a gallery directory.
///
/// In format 1 the manifest does not hold a digest of itself; it is read all the same.
pub const GALLERY_FORMAT: u32 = 2;

/// Version of the layout of a gallery whose items have several views.
///
/// Versions that know nothing of views would take each for an item; the number keeps them out.
pub const VIEWS_FORMAT: u32 = 3;

/// Version of the layout of a gallery that holds the embeddings of its clean pictures as well, with views or without.
///
/// Versions that know nothing of them would add items that lack them; the number keeps them out.
pub const PLAIN_FORMAT: u32 = 4;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const VECTORS: &str = "vectors.npy";
pub(super) const PLAIN: &str = "plain.npy";
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
    /// Version of the layout, [`GALLERY_FORMAT`], [`VIEWS_FORMAT`] or [`PLAIN_FORMAT`].
    pub format: u32,
    /// Version of the tool that wrote it.
    pub tool: String,
    /// Number of items; with views there are so many times more vectors.
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
    /// The file of the embeddings of clean pictures; none where there is none, or where the vectors are that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain_file: Option<FileRecord>,
    /// The file of identities and labels.
    pub items_file: FileRecord,
}

/// Size and digest of each file of a gallery beside its manifest.
pub(super) struct GalleryFiles {
    pub(super) vectors: FileRecord,
    pub(super) plain: Option<FileRecord>,
    pub(super) items: FileRecord,
}

impl GalleryManifest {
    /// The manifest of so many items in these files.
    pub(super) fn new(
        (items, dimension): (usize, usize),
        metric: Metric,
        provenance: Provenance,
        files: GalleryFiles,
    ) -> Self {
        let GalleryFiles { vectors: vectors_file, plain: plain_file, items: items_file } = files;
        let format = match (&plain_file, &provenance.views) {
            (Some(_), _) => PLAIN_FORMAT,
            (None, Some(_)) => VIEWS_FORMAT,
            (None, None) => GALLERY_FORMAT,
        };
        let tool = TOOL.to_owned();
        Self { format, tool, items, dimension, metric, provenance, vectors_file, plain_file, items_file }
    }

    fn of(gallery: &Gallery, provenance: Provenance, files: GalleryFiles) -> Self {
        Self::new((gallery.item_count(), gallery.dimension()), gallery.metric(), provenance, files)
    }

    /// What [`GalleryDirectory::write`] would say of this gallery; `paths` has one entry per row or none.
    pub fn describe(gallery: &Gallery, paths: &[Option<String>], provenance: Provenance) -> Self {
        let files = GalleryFiles {
            vectors: hashed(|writer| write_vectors(writer, gallery)),
            plain: gallery.plain().map(|plain| hashed(|writer| write_vectors(writer, plain))),
            items: hashed(|writer| write_items(writer, gallery, paths)),
        };
        Self::of(gallery, provenance, files)
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
        Self::check_views(gallery, &self.provenance)?;
        let found = Self::describe(gallery, paths, self.provenance.clone());
        let numbers = |manifest: &Self| {
            [
                ("a number of items of", manifest.items.to_string()),
                ("the dimension", manifest.dimension.to_string()),
                ("the metric", format!("{:?}", manifest.metric).to_lowercase()),
                ("vectors with sha256", manifest.vectors_file.sha256.to_string()),
                (
                    "vectors of clean pictures with sha256",
                    manifest.plain_file.map_or("none".to_owned(), |file| file.sha256.to_string()),
                ),
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
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let format = match serde_json::from_slice(text) {
            Ok(Version { format: known @ (VIEWS_FORMAT | PLAIN_FORMAT) }) => known,
            Ok(_) | Err(_) => GALLERY_FORMAT,
        };
        let manifest: Self = parse_sealed(text, path, format, "a gallery manifest")?;
        if format != PLAIN_FORMAT && manifest.provenance.views.is_some() != (format == VIEWS_FORMAT) {
            return Err(StorageError::ViewsFormat { path: path.to_owned(), format: manifest.format });
        }
        if manifest.plain_file.is_some() != (format == PLAIN_FORMAT) {
            return Err(StorageError::PlainFormat { path: path.to_owned(), format: manifest.format });
        }
        Ok(manifest)
    }

    /// Number of vectors.
    pub fn rows(&self) -> usize {
        self.items.saturating_mul(self.provenance.views.as_ref().map_or(1, |set| set.views().len()))
    }

    /// Whether a gallery has the views that its provenance speaks of.
    pub(in crate::storage) fn check_views(
        gallery: &Gallery,
        provenance: &Provenance,
    ) -> Result<(), StorageError> {
        let wanted = provenance.views.as_ref().map(ViewSet::names).unwrap_or_default();
        if gallery.view_names() == wanted {
            return Ok(());
        }
        Err(StorageError::OtherViews { found: gallery.view_names().to_vec(), wanted })
    }

    /// The text of the manifest, with its digest.
    pub fn sealed(&self) -> String {
        sealed::seal(self).expect("a manifest is strings and numbers")
    }
}

#[cfg(test)]
mod tests;
