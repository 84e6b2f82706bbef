//! The gallery as readers see it.

use std::path::PathBuf;
use std::sync::Arc;

use retrievalguard::gallery::Gallery;
use retrievalguard::storage::live;
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};

/// The gallery at one moment.
pub(crate) struct Snapshot {
    stored: Arc<live::Snapshot>,
    provenance: Provenance,
    version: String,
}

impl Snapshot {
    pub(super) fn new(stored: Arc<live::Snapshot>) -> Self {
        Self { provenance: stored.provenance(), version: stored.version().to_string(), stored }
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

    /// The same items in the same rows, embedded without noise, if the gallery has them.
    pub(crate) fn plain(&self) -> Option<&Gallery> {
        self.stored.plain()
    }

    /// What the plain retriever searches.
    pub(crate) fn plain_state(&self) -> &'static str {
        if self.plain().is_some() { "own" } else { "stored" }
    }
}
