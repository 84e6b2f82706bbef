//! A gallery that is larger than memory: shards on disk, searched exactly.
//!
//! ```text
//! gallery/
//!   shards.json        the shards in the order of their rows, how they were made, sizes and SHA-256; written last
//!   labels.jsonl       one name per line: label 0, 1, …, in order of first appearance
//!   shard-00000/       an ordinary gallery directory, see [`manifest`](super::manifest), and three files beside it:
//!     manifest.json, vectors.npy, items.jsonl
//!     labels.npy       u32, number of each item's label
//!     line_ends.npy    u64, where each item's line of items.jsonl ends
//!     by_identity.npy  u32, the shard's rows in the order of identity and row
//! ```
//!
//! Rows are numbered through all shards, labels as [`Gallery`] would number them. In memory are the label of every row
//! (four bytes) and the name of every label; vectors are read block by block, once for all queries, and identities are
//! looked up on disk. Every answer is that of a [`Gallery`] of the same items, bit for bit: the distances are the same
//! sums in `f64`, and the nearest over all shards is the nearest of what each shard answers, ties going to the smaller
//! row.
//!
//! Opening checks every size, and the digests of what is kept in memory; [`ShardedGallery::verify`] checks those of all
//! files. A search checks each vector as it is read: one whose norm cannot be is an error. Other damage is found by
//! `verify` alone.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use retrievalguard::gallery::{Metric, Positives, Relevance};
//! use retrievalguard::storage::manifest::Provenance;
//! use retrievalguard::storage::shards::{ShardItem, ShardOptions, ShardWriter, ShardedGallery};
//! use retrievalguard::NormBound;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("gallery");
//! let rows = NonZeroUsize::new(2).ok_or("zero")?;
//! let options = ShardOptions { dimension: 2, metric: Metric::Euclidean, rows };
//! let mut writer = ShardWriter::create(&path, options, Provenance::unknown(NormBound::UNIT))?;
//! for (identity, label, vector) in [("cat-1", "cat", [0.0, 0.0]), ("cat-2", "cat", [1.0, 0.0]), ("dog", "dog", [0.0, 3.0])] {
//!     writer.push(&ShardItem { identity, label, vector: &vector, path: None })?;
//! }
//! writer.finish()?;
//!
//! let gallery = ShardedGallery::open(&path)?;
//! assert_eq!((gallery.len(), gallery.shard_count()), (3, 2));
//! let cat = gallery.label_named("cat").ok_or("no cat")?;
//! let relevance = Relevance::new(Positives::Label(cat), gallery.rows_of("cat-1")?);
//! let answers = gallery.nearest_positive_and_negative(&[0.0_f32, 0.0], |_| &relevance)?;
//! assert_eq!(answers[0].positive.map(|found| found.row), Some(1));
//! assert_eq!(answers[0].negative.map(|found| found.row), Some(2));
//! assert_eq!(gallery.identity(2)?, "dog");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod certify;
mod files;
mod lipschitz;
mod pieces;
mod search;
mod write;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use self::files::{ArrayFile, LINE_ENDS};
use super::atomic::WriteError;
use super::digest::Digest;
use super::manifest::{self, FileRecord, GalleryManifest, Provenance, StorageError};
use crate::gallery::{Gallery, GalleryError, Label, Metric, SearchError};

pub use self::write::{ShardItem, ShardOptions, ShardWriter};

/// Version of the layout of a sharded gallery.
///
/// In format 1 the manifest does not hold a digest of itself; it is read all the same.
const SHARDS_FORMAT: u32 = 2;

const MANIFEST: &str = "shards.json";
const LABEL_NAMES: &str = "labels.jsonl";

/// Why a sharded gallery could not be written, opened or searched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardsError {
    /// A file could not be read or is not what its manifest says.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The search makes no sense.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// An item cannot be stored, or rows are no gallery.
    #[error(transparent)]
    Gallery(#[from] GalleryError),
    /// The directory was never finished, or is not a sharded gallery.
    #[error("`{}` has no {MANIFEST}: it is not a sharded gallery, or writing it was interrupted", path.display())]
    NoManifest {
        /// The directory.
        path: PathBuf,
    },
    /// A sharded gallery is written into a directory of its own.
    #[error("`{}` is not empty, wanted a new or empty directory for a sharded gallery", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A gallery in shards has one vector per item.
    #[error("sharded gallery `{}` would have items with views `{set}`, wanted one vector for each", path.display())]
    Views {
        /// The directory.
        path: PathBuf,
        /// Name of the view set.
        set: String,
    },
    /// An earlier write failed, so rows are missing.
    #[error("sharded gallery `{}` lost rows when an earlier write failed, wanted it written again from the start", path.display())]
    Interrupted {
        /// The directory.
        path: PathBuf,
    },
    /// A shard is outside its gallery.
    #[error("`{}` names a shard `{name}`, wanted the name of a folder beside it", path.display())]
    Name {
        /// The manifest.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A manifest does not agree with another, or with itself.
    #[error("`{}` says that {what} is {found}, wanted {wanted}", path.display())]
    Disagrees {
        /// The manifest.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What it says.
        found: String,
        /// What would agree.
        wanted: String,
    },
    /// A shard is searched as it was made.
    #[error("`{}` holds {writes} writes to a shard, wanted none", path.display())]
    Writes {
        /// The journal.
        path: PathBuf,
        /// How many writes it holds.
        writes: usize,
    },
    /// An array is not headed by its type and shape.
    #[error("`{}` does not begin with the .npy header of {shape:?} `{element}`", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// NumPy's name of the type.
        element: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// An entry of an index points nowhere.
    #[error("entry {entry} of `{}` is {found}, wanted {wanted}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// Which entry.
        entry: usize,
        /// What was found.
        found: u64,
        /// What would have been accepted.
        wanted: String,
    },
    /// A stored vector is not one that could have been written.
    #[error("row {row} of `{}` has norm {norm:e}, wanted {wanted}", path.display())]
    Vector {
        /// The file.
        path: PathBuf,
        /// Row within the file.
        row: usize,
        /// The norm that was computed.
        norm: f64,
        /// What would have been accepted.
        wanted: &'static str,
    },
    /// A row is asked for that is not there.
    #[error("row {row} was asked for, wanted one below the gallery's length {length}")]
    RowOutOfRange {
        /// The row.
        row: usize,
        /// Number of rows there are.
        length: usize,
    },
}

impl From<WriteError> for ShardsError {
    fn from(error: WriteError) -> Self {
        Self::Storage(error.into())
    }
}

/// What a sharded gallery is and what it was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardsManifest {
    /// Version of the layout.
    pub format: u32,
    /// Version of the tool that wrote it.
    pub tool: String,
    /// Number of items in all shards.
    pub items: usize,
    /// Length of a vector.
    pub dimension: usize,
    /// How vectors are compared.
    pub metric: Metric,
    /// How the vectors were made.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Number of different labels.
    pub labels: usize,
    /// The file of label names.
    pub labels_file: FileRecord,
    /// What all shards hold together; in galleries of earlier versions it is found by reading them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ShardsContent>,
    /// The shards, in the order of their rows.
    pub shards: Vec<ShardRecord>,
}

/// What a gallery holds, however it is cut into shards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardsContent {
    /// Digest of the `vectors.npy` that the gallery would have in one piece.
    pub vectors: Digest,
    /// Digest of its `items.jsonl`, without the paths of pictures.
    pub names: Digest,
    /// Largest norm of a vector.
    pub largest_norm: f64,
}

/// One shard as the manifest knows it; its own manifest has the records of vectors and items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// Name of its folder.
    pub name: String,
    /// Number of items.
    pub items: usize,
    /// Its manifest.
    pub manifest_file: FileRecord,
    /// Numbers of the labels.
    pub labels_file: FileRecord,
    /// Where the lines of the items end.
    pub line_ends_file: FileRecord,
    /// Rows in the order of identities.
    pub by_identity_file: FileRecord,
}

/// Vectors in shards on disk, with their labels in memory.
#[derive(Clone, Debug)]
pub struct ShardedGallery {
    directory: PathBuf,
    manifest: ShardsManifest,
    version: Digest,
    content: OnceLock<ShardsContent>,
    shards: Vec<Shard>,
    labels: Vec<Label>,
    label_names: Vec<String>,
    labels_by_name: Vec<Label>,
    threads: NonZeroUsize,
}

/// An opened shard.
#[derive(Clone, Debug)]
struct Shard {
    directory: PathBuf,
    first_row: usize,
    items: usize,
    manifest: GalleryManifest,
}

impl ShardedGallery {
    /// Writes a gallery in so many shards, replacing the sharded one that may be there; `paths` has one entry per item or
    /// none.
    ///
    /// The shards are equally long but for the last; there are fewer of them if that leaves none empty.
    pub fn write(
        directory: &Path,
        gallery: &Gallery,
        paths: &[Option<String>],
        provenance: Provenance,
        shards: NonZeroUsize,
    ) -> Result<ShardsManifest, ShardsError> {
        if !paths.is_empty() && paths.len() != gallery.len() {
            return Err(StorageError::Paths { found: paths.len(), wanted: gallery.len() }.into());
        }
        // Views are refused below by their name; a gallery whose provenance does not know them is refused here.
        GalleryManifest::check_views(gallery, &provenance)?;
        let rows = NonZeroUsize::new(gallery.len().div_ceil(shards.get())).unwrap_or(NonZeroUsize::MIN);
        let options = ShardOptions { dimension: gallery.dimension(), metric: gallery.metric(), rows };
        let mut writer = ShardWriter::replace(directory, options, provenance)?;
        for row in 0..gallery.len() {
            writer.push(&ShardItem {
                identity: gallery.identity(row),
                label: gallery.label_name(gallery.label(row)),
                vector: gallery.vector(row),
                path: paths.get(row).and_then(Option::as_deref),
            })?;
        }
        writer.finish()
    }

    /// Opens a gallery: checks every size, reads the labels, and leaves the vectors where they are.
    pub fn open(directory: &Path) -> Result<Self, ShardsError> {
        let (manifest, version) = files::read_manifest(directory)?;
        let label_names = files::read_label_names(directory, &manifest)?;
        let mut labels_by_name: Vec<Label> = (0..label_names.len() as u32).map(Label).collect();
        labels_by_name.sort_unstable_by_key(|label| label_names[label.index()].as_str());
        let name = |label: &Label| label_names[label.index()].as_str();
        if let Some(pair) = labels_by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(ShardsError::Disagrees {
                path: directory.join(LABEL_NAMES),
                what: "the name of a label",
                found: format!("`{}` twice", name(&pair[0])),
                wanted: "each name once".to_owned(),
            });
        }
        let (mut shards, mut labels) = (Vec::with_capacity(manifest.shards.len()), Vec::new());
        for record in &manifest.shards {
            shards.push(files::open_shard(directory, &manifest, record, &mut labels)?);
        }
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let directory = directory.to_owned();
        let content = manifest.content.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Self {
            directory,
            manifest,
            version,
            content,
            shards,
            labels,
            label_names,
            labels_by_name,
            threads,
        })
    }

    /// Sets how many threads read and search, by default as many as there are; no answer depends on it.
    #[must_use]
    pub fn threads(self, threads: NonZeroUsize) -> Self {
        Self { threads, ..self }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the gallery was made from.
    pub fn manifest(&self) -> &ShardsManifest {
        &self.manifest
    }

    /// Digest of the manifest, which holds the digests of everything else.
    pub fn version(&self) -> Digest {
        self.version
    }

    /// Stands for everything that decides a search: that of the same gallery in one piece, see
    /// [`GalleryDirectory::digest`](super::manifest::GalleryDirectory::digest).
    pub fn digest(&self) -> Result<Digest, ShardsError> {
        let ShardsManifest { items, dimension, metric, provenance, .. } = &self.manifest;
        let ShardsContent { vectors, names, .. } = self.content()?;
        Ok(manifest::content_digest((*items, *dimension), *metric, provenance, vectors, names))
    }

    /// Largest norm of a stored vector.
    pub fn largest_norm(&self) -> Result<f64, ShardsError> {
        Ok(self.content()?.largest_norm)
    }

    fn content(&self) -> Result<ShardsContent, ShardsError> {
        if let Some(&content) = self.content.get() {
            return Ok(content);
        }
        let content = files::measure(&self.directory, &self.manifest.shards, self.dimension())?;
        Ok(*self.content.get_or_init(|| content))
    }

    /// Number of stored vectors, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty gallery cannot be written")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Number of components of every vector, at least 1.
    pub fn dimension(&self) -> usize {
        self.manifest.dimension
    }

    /// How vectors are compared.
    pub fn metric(&self) -> Metric {
        self.manifest.metric
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Labels of all rows.
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// Label of a row; panics if there is no such row.
    pub fn label(&self, row: usize) -> Label {
        self.labels[row]
    }

    /// Number of different labels.
    pub fn label_count(&self) -> usize {
        self.label_names.len()
    }

    /// The label with this name, if any stored vector has it.
    pub fn label_named(&self, name: &str) -> Option<Label> {
        self.labels_by_name
            .binary_search_by_key(&name, |label| self.label_names[label.index()].as_str())
            .ok()
            .map(|position| self.labels_by_name[position])
    }

    /// Name of a label of this gallery; panics if the label comes from a gallery with more labels.
    pub fn label_name(&self, label: Label) -> &str {
        &self.label_names[label.index()]
    }

    /// Name of the picture that a row was made from, read from the disk.
    pub fn identity(&self, row: usize) -> Result<String, ShardsError> {
        let shard = self.shard_of(row)?;
        files::Items::open(shard)?.identity(row - shard.first_row)
    }

    /// Where the picture of a row lay when the gallery was made, if that was stored, read from the disk.
    pub fn picture_path(&self, row: usize) -> Result<Option<PathBuf>, ShardsError> {
        let shard = self.shard_of(row)?;
        files::Items::open(shard)?.path(row - shard.first_row)
    }

    /// Rows made from one picture, ascending; found by bisection on the disk, in every shard.
    pub fn rows_of(&self, identity: &str) -> Result<Vec<usize>, ShardsError> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let rows = files::Items::open(shard)?.rows_of(identity)?;
            found.extend(rows.into_iter().map(|row| shard.first_row + row));
        }
        Ok(found)
    }

    /// The stored vectors of some rows, laid end to end.
    pub fn load_rows(&self, rows: &[usize]) -> Result<Vec<f32>, ShardsError> {
        let mut vectors = Vec::with_capacity(rows.len() * self.dimension());
        let mut reader: Option<(usize, search::BlockReader)> = None;
        for run in rows.chunk_by(|left, right| left + 1 == *right) {
            let mut run = run;
            while let Some(&row) = run.first() {
                let shard = self.shard_of(row)?;
                let left = shard.first_row + shard.items - row;
                let (here, rest) = run.split_at(run.len().min(left));
                let reader = match &mut reader {
                    Some((first_row, reader)) if *first_row == shard.first_row => reader,
                    other => &mut other.insert((shard.first_row, search::BlockReader::open(shard)?)).1,
                };
                let local = row - shard.first_row;
                reader.read(shard, local..local + here.len(), |block, _| vectors.extend_from_slice(block))?;
                run = rest;
            }
        }
        Ok(vectors)
    }

    /// Some rows as a gallery in memory, in the order given; labels are numbered anew.
    pub fn subset(&self, rows: &[usize]) -> Result<Gallery, ShardsError> {
        let vectors = self.load_rows(rows)?;
        let mut items: Option<(usize, files::Items<'_>)> = None;
        let mut identities = Vec::with_capacity(rows.len());
        for &row in rows {
            let shard = self.shard_of(row)?;
            let items = match &mut items {
                Some((first_row, items)) if *first_row == shard.first_row => items,
                other => &mut other.insert((shard.first_row, files::Items::open(shard)?)).1,
            };
            identities.push(items.identity(row - shard.first_row)?);
        }
        let labels: Vec<&str> = rows.iter().map(|&row| self.label_name(self.label(row))).collect();
        Ok(Gallery::new(vectors, self.dimension(), identities, &labels, self.metric())?)
    }

    /// Reads every file and checks it against its digest, several shards at a time.
    pub fn verify(&self) -> Result<(), ShardsError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), ShardsError> {
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some((shard, record)) = self.shards.get(place).zip(self.manifest.shards.get(place))
                else {
                    return Ok(());
                };
                files::verify_shard(shard, record)?;
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> =
                (0..self.threads.get().min(self.shards.len())).map(|_| scope.spawn(work)).collect();
            let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
            let mut joined = joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.try_for_each(|done| done)
        })
    }

    fn shard_of(&self, row: usize) -> Result<&Shard, ShardsError> {
        let place = self.shards.partition_point(|shard| shard.first_row + shard.items <= row);
        self.shards.get(place).ok_or(ShardsError::RowOutOfRange { row, length: self.len() })
    }
}

/// Whether a directory holds a finished sharded gallery.
pub(super) fn is_sharded(directory: &Path) -> bool {
    directory.join(MANIFEST).exists()
}

impl Shard {
    /// The array of vectors.
    fn vectors(&self) -> ArrayFile {
        ArrayFile::vectors(&self.directory, self.items, self.manifest.dimension)
    }

    /// The array of line ends.
    fn line_ends(&self) -> ArrayFile {
        ArrayFile::column(&self.directory, LINE_ENDS, "<u8", self.items)
    }
}

#[cfg(test)]
mod certificate_tests;
#[cfg(test)]
mod tests;
