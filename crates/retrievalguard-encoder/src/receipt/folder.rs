//! The receipts of a run: one file for each query, by its place.

use std::path::{Path, PathBuf};

use retrievalguard::Excess;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::stored::StoredGallery;

use super::{Asked, PictureFacts, Premises, Receipt, ReceiptError, ReceiptKey};
use crate::dataset::{PictureSource, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::pipeline::{PipelineError, Query, uncertified};

/// Where the receipts of a run go, and who signs them.
#[derive(Clone, Debug)]
pub struct ReceiptsTo {
    /// The folder.
    pub folder: PathBuf,
    /// The key that signs; none for receipts without a signature.
    pub key: Option<ReceiptKey>,
}

/// A folder that is open for receipts.
pub(crate) struct ReceiptFolder<'a> {
    to: &'a ReceiptsTo,
    pub(crate) premises: Premises,
}

impl<'a> ReceiptFolder<'a> {
    /// Makes the folder, and digests the gallery; refuses queries that are no whole files.
    pub(crate) fn open(
        to: &'a ReceiptsTo,
        (embedder, excess): (&OnnxEmbedder, Excess),
        (gallery, gallery_name): (&StoredGallery, &str),
        queries: &RecordSet,
    ) -> Result<Self, PipelineError> {
        let part = |record: &&crate::Record| {
            record.crop.is_some() || !matches!(record.source, PictureSource::File(_))
        };
        if let Some(record) = queries.iter().find(part) {
            return Err(ReceiptError::NoFile(record.identity.clone()).into());
        }
        std::fs::create_dir_all(&to.folder).map_err(|error| WriteError::new(&to.folder, error))?;
        let content =
            GalleryContent::of(gallery.gallery()).map_err(uncertified::<PipelineError>(gallery_name))?;
        Ok(Self { to, premises: Premises::new(embedder, excess, content) })
    }

    /// Refuses to go on with a run whose queries have left no receipts: an answer that is there is not made again.
    pub(crate) fn holds(&self, position: usize, queries: &RecordSet) -> Result<(), PipelineError> {
        let path = self.to.folder.join(Receipt::file_name(position));
        if path.is_file() {
            return Ok(());
        }
        Err(ReceiptError::Answered { identity: queries[position].identity.clone(), path }.into())
    }

    /// What is asked of a query.
    pub(crate) fn asked<'q>(
        &self,
        queries: &RecordSet,
        position: usize,
        query: &'q Query<'q>,
        pixels: &[f32],
    ) -> Result<Asked<'q>, PipelineError> {
        let identity = &queries[position].identity;
        let file: Option<Digest> = queries.picture_digest(position);
        let file = file.ok_or_else(|| ReceiptError::NoFile(identity.clone()))?;
        Ok(Asked { picture: PictureFacts::new(identity, file, pixels), query, challenge: None })
    }

    /// The key that signs.
    pub(crate) fn key(&self) -> Option<&ReceiptKey> {
        self.to.key.as_ref()
    }

    /// Writes the receipt of the query at a position.
    pub(crate) fn write(&self, position: usize, receipt: &Receipt) -> Result<(), PipelineError> {
        let path: &Path = &self.to.folder.join(Receipt::file_name(position));
        Ok(receipt.write(path)?)
    }
}
