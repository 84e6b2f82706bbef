//! A stored gallery of either kind, and a gallery wherever it is.
//!
//! A gallery directory is read into memory; one in [`shards`] stays on disk, and every search reads it from
//! there. [`StoredGallery::open`] opens whichever a directory holds, and [`GalleryRef`] is what certificates search.
//!
//! ```
//! use retrievalguard::gallery::{Gallery, Metric};
//! use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};
//! use retrievalguard::storage::stored::StoredGallery;
//! use retrievalguard::NormBound;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("gallery");
//! let names = ["cat-1", "dog-1"].map(String::from).to_vec();
//! let gallery = Gallery::new(vec![0.0, 1.0, 1.0, 0.0], 2, names, &["cat", "dog"], Metric::Euclidean)?;
//! GalleryDirectory::write(&path, &gallery, &[], Provenance::unknown(NormBound::UNIT))?;
//!
//! let stored = StoredGallery::open(&path)?;
//! let found = stored.gallery().nearest(&[0.1_f32, 0.9], 1, |_| &[])?;
//! assert_eq!(stored.gallery().identity(found[0][0].row)?, "cat-1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::Digest;
use super::manifest::{GalleryDirectory, MANIFEST, Mismatch, Provenance, QuerySide, StorageError};
use super::shards::{self, ShardedGallery, ShardsError};
use crate::certificate::CertificateError;
use crate::gallery::{
    Answers, Extent, Gallery, Label, Metric, NearestPair, Neighbour, Positives, Relevance, RivalSet,
    queries_per_pass,
};

/// Vectors that are read at once when all of them are looked at.
const VISITED_ROWS: usize = 1 << 14;

/// A gallery in memory, or in shards on disk.
#[derive(Clone, Copy, Debug)]
pub enum GalleryRef<'a> {
    /// All of it is in memory.
    Memory(&'a Gallery),
    /// Its vectors and names are on disk.
    Shards(&'a ShardedGallery),
}

impl<'a> From<&'a Gallery> for GalleryRef<'a> {
    fn from(gallery: &'a Gallery) -> Self {
        Self::Memory(gallery)
    }
}

impl<'a> From<&'a ShardedGallery> for GalleryRef<'a> {
    fn from(gallery: &'a ShardedGallery) -> Self {
        Self::Shards(gallery)
    }
}

/// Why a gallery on disk could not be searched; equal if it says the same.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct Unsearchable(Arc<ShardsError>);

impl PartialEq for Unsearchable {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl From<ShardsError> for CertificateError {
    fn from(error: ShardsError) -> Self {
        match error {
            ShardsError::Search(error) => Self::Search(error),
            other => Self::Unsearchable(Unsearchable(Arc::new(other))),
        }
    }
}

impl<'a> GalleryRef<'a> {
    /// Number of stored vectors, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty gallery cannot be made")]
    pub fn len(self) -> usize {
        self.labels().len()
    }

    /// Number of components of every vector, at least 1.
    pub fn dimension(self) -> usize {
        match self {
            Self::Memory(gallery) => gallery.dimension(),
            Self::Shards(gallery) => gallery.dimension(),
        }
    }

    /// How vectors are compared.
    pub fn metric(self) -> Metric {
        match self {
            Self::Memory(gallery) => gallery.metric(),
            Self::Shards(gallery) => gallery.metric(),
        }
    }

    /// Labels of all rows.
    pub fn labels(self) -> &'a [Label] {
        match self {
            Self::Memory(gallery) => gallery.labels(),
            Self::Shards(gallery) => gallery.labels(),
        }
    }

    /// Label of a row; panics if there is no such row.
    pub fn label(self, row: usize) -> Label {
        self.labels()[row]
    }

    /// Number of different labels.
    pub fn label_count(self) -> usize {
        match self {
            Self::Memory(gallery) => gallery.label_count(),
            Self::Shards(gallery) => gallery.label_count(),
        }
    }

    /// The label with this name, if any stored vector has it.
    pub fn label_named(self, name: &str) -> Option<Label> {
        match self {
            Self::Memory(gallery) => gallery.label_named(name),
            Self::Shards(gallery) => gallery.label_named(name),
        }
    }

    /// Name of a label of this gallery; panics if the label comes from a gallery with more labels.
    pub fn label_name(self, label: Label) -> &'a str {
        match self {
            Self::Memory(gallery) => gallery.label_name(label),
            Self::Shards(gallery) => gallery.label_name(label),
        }
    }

    /// Name of the picture that a row was made from; panics if it is in memory and has no such row.
    pub fn identity(self, row: usize) -> Result<Cow<'a, str>, CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.identity(row).into()),
            Self::Shards(gallery) => Ok(gallery.identity(row)?.into()),
        }
    }

    /// Rows made from one picture, ascending.
    pub fn rows_of(self, identity: &str) -> Result<Vec<usize>, CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.rows_of(identity)),
            Self::Shards(gallery) => Ok(gallery.rows_of(identity)?),
        }
    }

    /// The same items in the same rows by the embeddings of their clean pictures, if the gallery has them beside others.
    pub fn plain(self) -> Option<Self> {
        match self {
            Self::Memory(gallery) => gallery.plain().map(Self::Memory),
            Self::Shards(gallery) => gallery.plain().map(Self::Shards),
        }
    }

    /// Number of views of every item, at least 1; in shards an item is one vector.
    pub fn views(self) -> usize {
        match self {
            Self::Memory(gallery) => gallery.views(),
            Self::Shards(_) => 1,
        }
    }

    /// Names of the views, in the order of an item's rows; none where an item is a row.
    pub fn view_names(self) -> &'a [String] {
        match self {
            Self::Memory(gallery) => gallery.view_names(),
            Self::Shards(_) => &[],
        }
    }

    /// Name of the view that a row is; none where an item is a row.
    pub fn view(self, row: usize) -> Option<&'a str> {
        self.view_names().get(row % self.views()).map(String::as_str)
    }

    /// Number of items, at least 1.
    pub fn item_count(self) -> usize {
        self.len() / self.views()
    }

    /// The item that a row belongs to.
    pub fn item(self, row: usize) -> usize {
        row / self.views()
    }

    /// The rows of an item, one for each view.
    pub fn item_rows(self, item: usize) -> Range<usize> {
        item * self.views()..(item + 1) * self.views()
    }

    /// Number of items among ascending rows.
    pub(crate) fn count_items(self, rows: &[usize]) -> usize {
        rows.chunk_by(|&left, &right| self.item(left) == self.item(right)).count()
    }

    /// The vector of a row; panics if it is in memory and has no such row.
    pub(crate) fn vector(self, row: usize) -> Result<Cow<'a, [f32]>, CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.vector(row).into()),
            Self::Shards(gallery) => Ok(gallery.load_rows(&[row])?.into()),
        }
    }

    /// Shows `see` every stored vector with its row, in ascending order.
    pub(crate) fn visit_vectors(self, mut see: impl FnMut(usize, &[f32])) -> Result<(), CertificateError> {
        match self {
            Self::Memory(gallery) => (0..gallery.len()).for_each(|row| see(row, gallery.vector(row))),
            Self::Shards(gallery) => {
                for first in (0..gallery.len()).step_by(VISITED_ROWS) {
                    let rows: Vec<usize> = (first..gallery.len().min(first + VISITED_ROWS)).collect();
                    let vectors = gallery.load_rows(&rows)?;
                    let vectors = vectors.chunks_exact(gallery.dimension());
                    rows.iter().zip(vectors).for_each(|(&row, vector)| see(row, vector));
                }
            }
        }
        Ok(())
    }

    /// Nearest positive and nearest negative of every query, see [`Gallery::nearest_positive_and_negative`].
    pub fn nearest_positive_and_negative<'relevance, T: Copy + Into<f64>>(
        self,
        queries: &[T],
        relevance: impl Fn(usize) -> &'relevance Relevance,
    ) -> Result<Vec<NearestPair>, CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.nearest_positive_and_negative(queries, relevance)?),
            Self::Shards(gallery) => Ok(gallery.nearest_positive_and_negative(queries, relevance)?),
        }
    }

    /// The `count` nearest rows of every query, see [`Gallery::nearest`].
    pub fn nearest<'excluded, T: Copy + Into<f64>>(
        self,
        queries: &[T],
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Result<Vec<Vec<Neighbour>>, CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.nearest(queries, count, excluded)?),
            Self::Shards(gallery) => Ok(gallery.nearest(queries, count, excluded)?),
        }
    }

    /// The `count` nearest items of every query, each by its nearest row, see [`Gallery::nearest_items`].
    pub fn nearest_items<'excluded, T: Copy + Into<f64>>(
        self,
        queries: &[T],
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Result<Vec<Vec<Neighbour>>, CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.nearest_items(queries, count, excluded)?),
            Self::Shards(gallery) => Ok(gallery.nearest(queries, count, excluded)?),
        }
    }

    /// Shows `see` every query in order, with the rivals that are ahead in it, see [`Gallery::rivals_ahead`].
    pub fn rivals_ahead<T: Copy + Into<f64>>(
        self,
        queries: &[T],
        relevance: &Relevance,
        mut see: impl FnMut(usize, &RivalSet),
    ) -> Result<(), CertificateError> {
        let answers = Answers { positives: &[relevance.positives], excluded: &relevance.excluded };
        self.rivals_ahead_of_each(queries, &answers, |query, _, rivals| see(query, rivals))
    }

    /// The same for several answers, by query and answer.
    pub(crate) fn rivals_ahead_of_each<T: Copy + Into<f64>>(
        self,
        queries: &[T],
        answers: &Answers<'_>,
        see: impl FnMut(usize, usize, &RivalSet),
    ) -> Result<(), CertificateError> {
        match self {
            Self::Memory(gallery) => Ok(gallery.rivals_ahead_of_each(queries, answers, see)?),
            Self::Shards(gallery) => Ok(gallery.rivals_ahead_of_each(queries, answers, see)?),
        }
    }

    /// How many numbers rivals may have.
    pub(crate) fn rival_numbers(self, positives: Positives) -> usize {
        let answers = Answers { positives: &[positives], excluded: &[] };
        answers.rival_numbers(self.label_count(), self.item_count())
    }

    /// Samples whose sets of rivals are held at once.
    pub(crate) fn samples_per_pass(self, positives: Positives) -> usize {
        let answers = Answers { positives: &[positives], excluded: &[] };
        queries_per_pass(&answers, self.rival_numbers(positives))
    }

    /// What queries are checked against.
    pub(crate) fn extent(self) -> Extent {
        Extent { length: self.len(), dimension: self.dimension(), label_count: self.label_count() }
    }
}

/// A gallery as it is on disk: read into memory, or left there in shards.
#[derive(Clone, Debug)]
pub enum StoredGallery {
    /// A gallery directory with everything written to it, in memory.
    Memory(Box<GalleryDirectory>),
    /// A gallery in shards, opened.
    Shards(Box<ShardedGallery>),
}

impl From<GalleryDirectory> for StoredGallery {
    fn from(stored: GalleryDirectory) -> Self {
        Self::Memory(Box::new(stored))
    }
}

impl StoredGallery {
    /// Opens the gallery of a directory, of whichever kind it is.
    ///
    /// Every file is checked against its digest. Shards stay on disk: a search reads them again.
    pub fn open(directory: &Path) -> Result<Self, StorageError> {
        if shards::is_sharded(directory) {
            if directory.join(MANIFEST).exists() {
                return Err(StorageError::BothKinds { path: directory.to_owned() });
            }
            let gallery = ShardedGallery::open(directory)?;
            gallery.verify()?;
            return Ok(Self::Shards(Box::new(gallery)));
        }
        Ok(GalleryDirectory::read(directory)?.into())
    }

    /// Writes a gallery, in so many shards if a number is given, replacing the one of the same kind that may be there;
    /// `paths` has one entry per item or none.
    pub fn write(
        directory: &Path,
        gallery: &Gallery,
        paths: &[Option<String>],
        provenance: Provenance,
        shards: Option<NonZeroUsize>,
    ) -> Result<(), StorageError> {
        match shards {
            None => drop(GalleryDirectory::write(directory, gallery, paths, provenance)?),
            Some(shards) => drop(ShardedGallery::write(directory, gallery, paths, provenance, shards)?),
        }
        Ok(())
    }

    /// Whether [`StoredGallery::write`] may replace what is there, to be asked before long work: neither a gallery of the
    /// other kind nor one with writes is replaced.
    pub fn check_replaceable(directory: &Path, in_shards: bool) -> Result<(), StorageError> {
        Self::check_kind(directory, in_shards)?;
        if in_shards { Ok(()) } else { GalleryDirectory::check_replaceable(directory) }
    }

    /// Whether no gallery of the other kind is there.
    pub(super) fn check_kind(directory: &Path, in_shards: bool) -> Result<(), StorageError> {
        let other = if in_shards { directory.join(MANIFEST).exists() } else { shards::is_sharded(directory) };
        if other {
            Err(StorageError::OtherKind { path: directory.to_owned(), in_shards: !in_shards })
        } else {
            Ok(())
        }
    }

    /// The gallery that is searched.
    pub fn gallery(&self) -> GalleryRef<'_> {
        match self {
            Self::Memory(stored) => GalleryRef::Memory(&stored.gallery),
            Self::Shards(gallery) => GalleryRef::Shards(gallery),
        }
    }

    /// The gallery that the plain retriever searches: by the embeddings of clean pictures, if there are any.
    pub fn plain(&self) -> Option<GalleryRef<'_>> {
        let clean = self.provenance().samples == Some(0);
        if clean { Some(self.gallery()) } else { self.gallery().plain() }
    }

    /// The gallery in memory; one in shards is refused.
    pub fn in_memory(&self) -> Result<&GalleryDirectory, StorageError> {
        match self {
            Self::Memory(stored) => Ok(stored),
            Self::Shards(gallery) => Err(StorageError::InShards { path: gallery.directory().to_owned() }),
        }
    }

    /// How the vectors were made.
    pub fn provenance(&self) -> &Provenance {
        match self {
            Self::Memory(stored) => &stored.manifest.provenance,
            Self::Shards(gallery) => &gallery.manifest().provenance,
        }
    }

    /// Whether queries made with `queries` may be asked of the gallery called `name`.
    pub fn check_against(&self, name: &str, queries: &QuerySide) -> Result<(), Mismatch> {
        self.provenance().check_against(self.gallery().dimension(), name, queries)
    }

    /// Stands for everything of the gallery that decides a search in it, whether it is in shards or not; see
    /// [`GalleryDirectory::digest`].
    pub fn digest(&self) -> Result<Digest, StorageError> {
        match self {
            Self::Memory(stored) => Ok(stored.digest()),
            Self::Shards(gallery) => Ok(gallery.digest()?),
        }
    }

    /// Largest norm of a stored vector.
    pub fn largest_norm(&self) -> Result<f64, StorageError> {
        match self {
            Self::Memory(stored) => Ok(stored.gallery.largest_norm()),
            Self::Shards(gallery) => Ok(gallery.largest_norm()?),
        }
    }

    /// Where the picture of an item is, if that was stored; see [`GalleryDirectory::picture_path`].
    pub fn picture_path(&self, row: usize) -> Result<Option<PathBuf>, StorageError> {
        match self {
            Self::Memory(stored) => Ok(stored.picture_path(row)),
            Self::Shards(gallery) => Ok(gallery.picture_path(row)?),
        }
    }
}
