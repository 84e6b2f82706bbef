//! The plain retriever's gallery: the same items, embedded without noise.
//!
//! An encoder that was trained with noise gives a clean picture another embedding, so held against the stored means the
//! plain retriever would look worse than it is.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use retrievalguard::gallery::Gallery;
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard_encoder::dataset::{PictureSource, Record, Role, data_set_digest};

use super::snapshot::Snapshot;

/// Most vectors that are embedded once more for the plain retriever.
const MOST_PLAIN: usize = 20_000;

/// How the plain retriever's gallery stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlainState {
    /// Its pictures are being embedded.
    Preparing,
    /// It has embeddings of its own.
    Own,
    /// It searches in the stored vectors.
    Stored,
}

impl PlainState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Own => "own",
            Self::Stored => "stored",
        }
    }
}

/// Embeddings of clean pictures, of every view one after the other, by identity.
#[derive(Default)]
pub(super) struct CleanEmbeddings(pub(super) HashMap<String, Vec<f32>>);

impl CleanEmbeddings {
    /// Embeds the pictures of a gallery by `embed`; `None` if they are not what was indexed, or too many.
    pub(super) fn of(
        snapshot: &Snapshot,
        directory: &Path,
        embed: impl Fn(&str, &[u8]) -> Option<Vec<f32>>,
    ) -> Option<Self> {
        let gallery = snapshot.gallery();
        let items = gallery.item_count();
        let distinct: HashSet<&str> = (0..gallery.len()).map(|row| gallery.identity(row)).collect();
        if gallery.len() > MOST_PLAIN || distinct.len() < items || !pictures_are_whole(directory) {
            return None;
        }
        let mut clean = HashMap::with_capacity(items);
        for row in (0..items).map(|item| gallery.item_rows(item).start) {
            let bytes = std::fs::read(snapshot.picture_path(row)?).ok()?;
            let identity = gallery.identity(row);
            clean.insert(identity.to_owned(), embed(identity, &bytes)?);
        }
        Some(Self(clean))
    }

    /// The same items with their clean embeddings; `None` if one is not known.
    pub(super) fn gallery_like(&self, gallery: &Gallery) -> Option<Gallery> {
        let mut vectors = Vec::with_capacity(gallery.len() * gallery.dimension());
        let (mut identities, mut labels) = (Vec::new(), Vec::new());
        for row in 0..gallery.len() {
            let identity = gallery.identity(row);
            if row % gallery.views() == 0 {
                vectors.extend_from_slice(self.0.get(identity)?);
            }
            identities.push(identity.to_owned());
            labels.push(gallery.label_name(gallery.label(row)));
        }
        let plain = Gallery::new(vectors, gallery.dimension(), identities, &labels, gallery.metric()).ok()?;
        if gallery.view_names().is_empty() {
            return Some(plain);
        }
        plain.with_views(gallery.view_names().to_vec()).ok()
    }
}

/// Whether the pictures of the gallery as it was made are whole files that have not changed since.
fn pictures_are_whole(directory: &Path) -> bool {
    let Ok(base) = GalleryDirectory::read_base(directory) else { return false };
    let records: Option<Vec<Record>> = (0..base.gallery.item_count())
        .map(|item| {
            let row = base.gallery.item_rows(item).start;
            Some(Record {
                identity: base.gallery.identity(row).to_owned(),
                source: PictureSource::File(base.paths.get(row)?.as_deref()?.into()),
                crop: None,
                label: base.gallery.label_name(base.gallery.label(row)).to_owned(),
                category: None,
                split: None,
                role: Role::Gallery,
            })
        })
        .collect();
    records.is_some_and(|records| base.manifest.provenance.data_set == Some(data_set_digest(&records)))
}
