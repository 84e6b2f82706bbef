//! Digests of what a search sees of a gallery, whatever files it is kept in: those that a stranger can compute from the
//! vectors and the names alone.
//!
//! ```
//! use retrievalguard::gallery::{Gallery, Metric};
//! use retrievalguard::storage::content::GalleryContent;
//! use retrievalguard::storage::digest::Digest;
//!
//! let names = ["cat-1", "dog-1"].map(String::from).to_vec();
//! let gallery = Gallery::new(vec![0.0, 1.0], 1, names, &["cat", "dog"], Metric::Euclidean)?;
//! let content = GalleryContent::of((&gallery).into())?;
//! assert_eq!(content.vectors, Digest::of_bytes(&[0, 0, 0, 0, 0, 0, 128, 63]));
//! assert_eq!(content.items, Digest::of_bytes(b"[\"cat-1\",\"cat\",null]\n[\"dog-1\",\"dog\",null]\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::{self, Write};

use serde_json::json;

use super::digest::{Digest, HashingWriter};
use super::stored::GalleryRef;
use crate::certificate::CertificateError;

/// What a gallery holds, by digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GalleryContent {
    /// Number of stored vectors.
    pub rows: usize,
    /// Length of each.
    pub dimension: usize,
    /// Vectors of each item.
    pub views: usize,
    /// Digest of all vectors in the order of rows, as little-endian `f32`, end to end.
    pub vectors: Digest,
    /// Digest of a line `[identity, label, view]` for each row, in JSON; the view is null where items are single vectors.
    pub items: Digest,
}

impl GalleryContent {
    /// Reads the whole gallery once.
    pub fn of(gallery: GalleryRef<'_>) -> Result<Self, CertificateError> {
        let digest = |writer: HashingWriter<io::Sink>| writer.finish().1;
        let mut vectors = HashingWriter::new(io::sink());
        gallery.visit_vectors(|_, vector| {
            for value in vector {
                vectors.write_all(&value.to_le_bytes()).expect("a sink takes everything");
            }
        })?;
        let mut items = HashingWriter::new(io::sink());
        for row in 0..gallery.len() {
            let label = gallery.label_name(gallery.label(row));
            let line = json!([gallery.identity(row)?, label, gallery.view(row)]);
            writeln!(items, "{line}").expect("a sink takes everything");
        }
        Ok(Self {
            rows: gallery.len(),
            dimension: gallery.dimension(),
            views: gallery.views(),
            vectors: digest(vectors),
            items: digest(items),
        })
    }
}
