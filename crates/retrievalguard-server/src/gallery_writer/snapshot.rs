//! The gallery as readers see it.

use std::path::PathBuf;
use std::sync::Arc;

use retrievalguard::gallery::Gallery;
use retrievalguard::storage::live;
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};

use super::plain::CleanEmbeddings;

/// The gallery at one moment.
pub(crate) struct Snapshot {
    stored: Arc<live::Snapshot>,
    provenance: Provenance,
    version: String,
    plain: Option<Gallery>,
}

impl Snapshot {
    pub(super) fn new(stored: Arc<live::Snapshot>, clean: Option<&CleanEmbeddings>) -> Self {
        Self {
            provenance: stored.provenance(),
            version: stored.version().to_string(),
            plain: clean.and_then(|clean| clean.gallery_like(stored.gallery())),
            stored,
        }
    }

    /// The vectors with their labels and identities.
    pub(crate) fn gallery(&self) -> &Gallery {
        self.stored.gallery()
    }

    /// A copy in the form that other commands read.
    pub(crate) fn to_directory(&self) -> GalleryDirectory {
        self.stored.to_directory()
    }

    /// How the vectors were made.
    pub(crate) fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Changes with every write.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn is_added(&self, row: usize) -> bool {
        self.stored.is_added(row)
    }

    /// Where the picture of an item is.
    pub(crate) fn picture_path(&self, row: usize) -> Option<PathBuf> {
        self.stored.picture_path(row)
    }

    /// The same items in the same rows, embedded without noise.
    pub(crate) fn plain(&self) -> Option<&Gallery> {
        self.plain.as_ref()
    }
}
