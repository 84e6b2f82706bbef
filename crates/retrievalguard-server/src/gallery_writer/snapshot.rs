//! The gallery as readers see it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use retrievalguard::certificate::CertificateError;
use retrievalguard::gallery::Gallery;
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::live;
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};

/// The gallery at one moment.
pub(crate) struct Snapshot {
    stored: Arc<live::Snapshot>,
    provenance: Provenance,
    version: String,
    content: OnceLock<GalleryContent>,
}

impl Snapshot {
    pub(super) fn new(stored: Arc<live::Snapshot>) -> Self {
        let (provenance, version) = (stored.provenance(), stored.version().to_string());
        Self { provenance, version, stored, content: OnceLock::new() }
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

    /// Digests of what is searched, which are computed when they are first asked for.
    pub(crate) fn content(&self) -> Result<GalleryContent, CertificateError> {
        if let Some(&content) = self.content.get() {
            return Ok(content);
        }
        let content = GalleryContent::of(self.gallery().into())?;
        Ok(*self.content.get_or_init(|| content))
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
