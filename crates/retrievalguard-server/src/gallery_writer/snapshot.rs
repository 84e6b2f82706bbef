//! The gallery as readers see it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use retrievalguard::certificate::CertificateError;
use retrievalguard::gallery::Gallery;
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::live;
use retrievalguard::storage::manifest::Provenance;

/// The gallery at one moment.
pub(crate) struct Snapshot {
    stored: Arc<live::Snapshot>,
    provenance: Provenance,
    recipe: Arc<Recipe>,
    version: String,
    content: OnceLock<GalleryContent>,
}

/// Everything that decides what vectors an added picture gets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    made: Provenance,
    /// Whether embeddings of clean pictures are kept beside the others.
    plain: bool,
}

impl Snapshot {
    pub(super) fn new(stored: Arc<live::Snapshot>) -> Self {
        let provenance = stored.provenance();
        // Which pictures there are, and what embedded them, is no part of it.
        let made = Provenance { data_set: None, engine: None, ..provenance.clone() };
        let recipe = Arc::new(Recipe { made, plain: stored.gallery().plain().is_some() });
        Self { provenance, recipe, version: stored.version().to_string(), stored, content: OnceLock::new() }
    }

    /// As the gallery's crate has it.
    pub(crate) fn stored(&self) -> &live::Snapshot {
        &self.stored
    }

    /// How an added picture is embedded.
    pub(crate) fn recipe(&self) -> &Arc<Recipe> {
        &self.recipe
    }

    /// The vectors with their labels and identities.
    pub(crate) fn gallery(&self) -> &Gallery {
        self.stored.gallery()
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
