//! A gallery on disk: its vectors, its items, and a manifest that says what they were made from.
//!
//! ```text
//! gallery/
//!   vectors.npy     f32, one row per item
//!   items.jsonl     one {"identity": …, "label": …, "path": …} per row; the path may be missing
//!   manifest.json   how it was made, and the SHA-256 of the other two and of itself; written last
//!   writes.journal  items added and removed since then, see [`live`]
//!   writes.anchor   how many of these writes were acknowledged
//!   pictures/       pictures of added items
//! ```
//!
//! A directory without a manifest is unfinished. Reading checks sizes and digests before anything is believed, so what
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

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::atomic::{self, AtomicFile, WriteError};
use super::digest::{Digest, HashingReader, HashingWriter};
use super::journal::JournalError;
use super::live::{self, Written};
use super::npy::{self, NpyError};
use super::sealed::{self, SealError};
use crate::gallery::{Gallery, GalleryError, Metric};
use crate::{NormBound, Seed, Sigma};

/// Version of the layout of a gallery directory.
///
/// In format 1 the manifest does not hold a digest of itself; it is read all the same.
pub const GALLERY_FORMAT: u32 = 2;

/// The format before manifests were [sealed].
const UNSEALED_FORMAT: u64 = 1;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const VECTORS: &str = "vectors.npy";
pub(super) const ITEMS: &str = "items.jsonl";

/// What wrote a manifest.
pub(super) const TOOL: &str = concat!("retrievalguard ", env!("CARGO_PKG_VERSION"));

/// A manifest is a page of text; more is not one of ours.
const MANIFEST_LIMIT: u64 = 1 << 20;

/// Longest line of `items.jsonl`: two names and a path.
pub(super) const LINE_LIMIT: u64 = 1 << 20;

/// Why a gallery directory could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A file could not be opened or read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The directory was never finished, or is not a gallery.
    #[error("`{}` has no {MANIFEST}: it is no gallery, or one whose writing was interrupted", path.display())]
    NoManifest {
        /// The directory.
        path: PathBuf,
    },
    /// A file is larger than anything this tool writes there.
    #[error("`{}` has {found} bytes, wanted at most {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The largest that is read.
        limit: u64,
    },
    /// The layout has moved on.
    #[error("`{}` has format version {found}, wanted {wanted}", path.display())]
    Format {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that this tool reads.
        wanted: u32,
    },
    /// A manifest was changed after it had been written.
    #[error("`{}` cannot be believed", path.display())]
    Seal {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        source: SealError,
    },
    /// A gallery that came by way of another file is not the one that its manifest describes.
    #[error("the gallery in `{}` has {what} {found}, its manifest says {wanted}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the gallery has.
        found: String,
        /// What stands in the manifest.
        wanted: String,
    },
    /// Text that is not the JSON it should be.
    #[error("line {line} of `{}` is not {wanted}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: usize,
        /// What should stand there.
        wanted: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A file does not have the size that the manifest gives.
    #[error("`{}` has {found} bytes, its manifest says {wanted}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size in the manifest.
        wanted: u64,
    },
    /// A file was changed after the manifest was written.
    #[error("`{}` has sha256 {found:.16}…, its manifest says {wanted:.16}…", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its digest.
        found: Digest,
        /// The digest in the manifest.
        wanted: Digest,
    },
    /// Two parts that belong together have different sizes.
    #[error("`{}` has {found} {what}, its manifest says {wanted}", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many the manifest announces.
        wanted: usize,
    },
    /// Paths are given for every item or for none.
    #[error("{found} paths were given for {wanted} gallery items, wanted one for each or none")]
    Paths {
        /// How many were given.
        found: usize,
        /// How many items there are.
        wanted: usize,
    },
    /// The vectors are not an array.
    #[error(transparent)]
    Array(#[from] NpyError),
    /// The vectors are no gallery.
    #[error("gallery `{}` cannot be used", path.display())]
    Gallery {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        source: GalleryError,
    },
    /// The journal of writes is in use or damaged.
    #[error(transparent)]
    Journal(JournalError),
    /// A gallery with writes is not replaced: they would be lost.
    #[error(
        "`{}` holds {writes} writes to the gallery that would be replaced; wanted another directory, or this journal \
         and {} moved away, which drops them",
        path.display(),
        live::ANCHOR
    )]
    Writes {
        /// The journal.
        path: PathBuf,
        /// How many writes it holds.
        writes: usize,
    },
    /// The writes were made to a gallery that has been replaced.
    #[error(
        "`{}` holds {writes} writes to the gallery whose manifest has sha256 {found:.16}…, the one beside it has \
         {wanted:.16}…; wanted that gallery back, or this journal and {} moved away, which drops them",
        path.display(),
        live::ANCHOR
    )]
    OtherWrites {
        /// The journal.
        path: PathBuf,
        /// How many writes it holds.
        writes: usize,
        /// Digest of the manifest that the writes belong to.
        found: Digest,
        /// Digest of the manifest that is there.
        wanted: Digest,
    },
    /// Acknowledged writes are missing from the journal, or others stand in their place.
    #[error(
        "`{}` holds {found} writes to the gallery, and not the {wanted} that were acknowledged; wanted the whole journal \
         back, or `retrievalguard repair --accept-loss`, which makes do with what is there",
        path.display()
    )]
    LostWrites {
        /// The journal.
        path: PathBuf,
        /// How many writes it holds.
        found: u64,
        /// How many it should hold, at least.
        wanted: u64,
    },
    /// Nothing can be said about missing writes.
    #[error(
        "`{}`, which says how many writes were acknowledged, is {what}; wanted it back, or `retrievalguard repair \
         --accept-loss`, which makes do with the writes that are there; beside no manifest, wanted it moved away",
        path.display()
    )]
    Anchor {
        /// The anchor.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A record of the journal is intact but cannot be applied.
    #[error("record {record} of `{}` is not a write to this gallery", path.display())]
    WriteRecord {
        /// The journal.
        path: PathBuf,
        /// Number of the record.
        record: usize,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The name of a picture file ends in letters and digits.
    #[error(
        "a picture is to be stored with the extension `{found}`, wanted 1 to 8 lower-case letters and digits"
    )]
    Extension {
        /// What was given.
        found: String,
    },
}

impl From<JournalError> for StorageError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Write(error) => Self::Write(error),
            other => Self::Journal(other),
        }
    }
}

/// Which randomness a gallery was smoothed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeedRecord {
    /// A fixed seed: the gallery can be made again.
    Fixed(Seed),
    /// A seed that was drawn and not kept.
    Secret,
}

/// Program that ran the encoder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// How the vectors of a gallery were made; unknown things are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Noise level, `None` for vectors of clean pictures or from elsewhere.
    pub sigma: Option<Sigma>,
    /// Samples behind each vector, 0 for the embedding of the clean picture, `None` if unknown.
    pub samples: Option<u32>,
    /// Randomness of the noise, if there was any.
    pub seed: Option<SeedRecord>,
    /// Norm bound `F` of the encoder.
    pub norm_bound: NormBound,
    /// Digest of the model file.
    pub model: Option<Digest>,
    /// Digest of the model config: preprocessing and normalisation.
    pub contract: Option<Digest>,
    /// What ran the model.
    pub engine: Option<Engine>,
    /// Digest of the pictures and labels.
    pub data_set: Option<Digest>,
}

impl Provenance {
    /// For vectors that were made elsewhere: nothing is known but their norm.
    pub fn unknown(norm_bound: NormBound) -> Self {
        Self {
            sigma: None,
            samples: None,
            seed: None,
            norm_bound,
            model: None,
            contract: None,
            engine: None,
            data_set: None,
        }
    }
}

/// Size and digest of one file of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Number of bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes.
    pub sha256: Digest,
}

/// What a gallery is and what it was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GalleryManifest {
    /// Version of the layout, [`GALLERY_FORMAT`].
    pub format: u32,
    /// Version of the tool that wrote it.
    pub tool: String,
    /// Number of items.
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
    /// The file of identities and labels.
    pub items_file: FileRecord,
}

/// What the queries of a run are embedded with, to be held against a gallery.
#[derive(Clone, Debug, PartialEq)]
pub struct QuerySide {
    /// Noise level of the queries.
    pub sigma: Sigma,
    /// Length of their embeddings.
    pub dimension: usize,
    /// Norm bound of their encoder.
    pub norm_bound: NormBound,
    /// Digest of the model file, if there is one.
    pub model: Option<Digest>,
    /// Digest of the model config, if there is one.
    pub contract: Option<Digest>,
}

/// One thing in which a gallery and the queries disagree.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Disagreement {
    /// Another noise level.
    Sigma {
        /// That of the gallery.
        gallery: Sigma,
        /// That of the queries.
        queries: Sigma,
    },
    /// Another length of embeddings.
    Dimension {
        /// That of the gallery.
        gallery: usize,
        /// That of the queries.
        queries: usize,
    },
    /// Another norm bound.
    NormBound {
        /// That of the gallery.
        gallery: NormBound,
        /// That of the queries.
        queries: NormBound,
    },
    /// Another model file.
    Model {
        /// That of the gallery.
        gallery: Digest,
        /// That of the queries.
        queries: Digest,
    },
    /// Another preprocessing.
    ModelConfig {
        /// That of the gallery.
        gallery: Digest,
        /// That of the queries.
        queries: Digest,
    },
}

impl fmt::Display for Disagreement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sigma { gallery, queries } => {
                write!(formatter, "was smoothed with sigma {gallery}, the queries with {queries}")
            }
            Self::Dimension { gallery, queries } => {
                write!(formatter, "has vectors of dimension {gallery}, the queries of {queries}")
            }
            Self::NormBound { gallery, queries } => {
                write!(formatter, "has norm bound {gallery}, the queries {queries}")
            }
            Self::Model { gallery, queries } => {
                write!(formatter, "was embedded by model {gallery:.12}…, the queries by {queries:.12}…")
            }
            Self::ModelConfig { gallery, queries } => {
                write!(
                    formatter,
                    "was prepared by model config {gallery:.12}…, the queries by {queries:.12}…"
                )
            }
        }
    }
}

/// A gallery and queries that do not belong together, with every reason.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("gallery `{gallery}` {}", .disagreements.iter().map(ToString::to_string).collect::<Vec<_>>().join("; it "))]
pub struct Mismatch {
    /// Name of the gallery.
    pub gallery: String,
    /// What differs, at least one thing.
    pub disagreements: Vec<Disagreement>,
}

impl GalleryManifest {
    /// Whether queries made with `queries` may be asked of the gallery called `name`.
    ///
    /// What either side does not know is not compared, see [`GalleryManifest::unknown`]; a gallery of clean embeddings
    /// has no noise level and serves every one.
    pub fn check_against(&self, name: &str, queries: &QuerySide) -> Result<(), Mismatch> {
        let own = &self.provenance;
        let mut disagreements = Vec::new();
        if let Some(gallery) = own.sigma.filter(|&sigma| sigma != queries.sigma) {
            disagreements.push(Disagreement::Sigma { gallery, queries: queries.sigma });
        }
        if self.dimension != queries.dimension {
            let (gallery, queries) = (self.dimension, queries.dimension);
            disagreements.push(Disagreement::Dimension { gallery, queries });
        }
        if own.norm_bound != queries.norm_bound {
            let (gallery, queries) = (own.norm_bound, queries.norm_bound);
            disagreements.push(Disagreement::NormBound { gallery, queries });
        }
        if let Some((gallery, queries)) = own.model.zip(queries.model).filter(|(left, right)| left != right) {
            disagreements.push(Disagreement::Model { gallery, queries });
        }
        if let Some((gallery, queries)) =
            own.contract.zip(queries.contract).filter(|(left, right)| left != right)
        {
            disagreements.push(Disagreement::ModelConfig { gallery, queries });
        }
        if disagreements.is_empty() {
            Ok(())
        } else {
            Err(Mismatch { gallery: name.to_owned(), disagreements })
        }
    }

    /// Names of the things that the manifest does not know and that can therefore not be checked.
    pub fn unknown(&self) -> Vec<&'static str> {
        let own = &self.provenance;
        [
            // Clean embeddings have no sigma, and say so by zero samples.
            ("sigma", own.sigma.is_none() && own.samples != Some(0)),
            ("samples", own.samples.is_none()),
            ("model", own.model.is_none()),
            ("model config", own.contract.is_none()),
            ("engine", own.engine.is_none()),
            ("data set", own.data_set.is_none()),
        ]
        .into_iter()
        .filter_map(|(name, missing)| missing.then_some(name))
        .collect()
    }
}

/// One line of `items.jsonl`.
#[derive(Serialize, Deserialize)]
pub(super) struct Item<'a> {
    pub(super) identity: std::borrow::Cow<'a, str>,
    pub(super) label: std::borrow::Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<std::borrow::Cow<'a, str>>,
}

/// A gallery as it stands on disk.
#[derive(Clone, Debug)]
pub struct GalleryDirectory {
    /// The vectors with their labels and identities.
    pub gallery: Gallery,
    /// Where each item's picture was, if that was stored; see [`GalleryDirectory::picture_path`].
    pub paths: Vec<Option<String>>,
    /// What the gallery was made from.
    ///
    /// After writes it describes the gallery as it has become: the number of items, the digests that the two files would
    /// have, and no data set, because there is none that holds these items.
    pub manifest: GalleryManifest,
    pub(super) written: Written,
    pub(super) directory: PathBuf,
}

impl GalleryDirectory {
    /// Writes a gallery, replacing the one that may be there; `paths` has one entry per item or none.
    ///
    /// Interrupted, it leaves a directory without a manifest, which [`GalleryDirectory::read`] refuses. A gallery with
    /// [writes](live) is not replaced.
    pub fn write(
        directory: &Path,
        gallery: &Gallery,
        paths: &[Option<String>],
        provenance: Provenance,
    ) -> Result<GalleryManifest, StorageError> {
        if !paths.is_empty() && paths.len() != gallery.len() {
            return Err(StorageError::Paths { found: paths.len(), wanted: gallery.len() });
        }
        let failed = |error| WriteError::new(directory, error);
        fs::create_dir_all(directory).map_err(failed)?;
        // Held until the end, so that nobody begins to write to what is being replaced.
        let no_writes = live::hold_empty(directory)?;
        match fs::remove_file(directory.join(MANIFEST)) {
            Ok(()) => atomic::sync_directory(directory).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error).into()),
        }

        let vectors_file = write_hashed(&directory.join(VECTORS), |writer| write_vectors(writer, gallery))?;
        let items_file = write_hashed(&directory.join(ITEMS), |writer| write_items(writer, gallery, paths))?;
        let manifest = GalleryManifest::new(gallery, provenance, vectors_file, items_file);
        write_json(&directory.join(MANIFEST), &manifest)?;
        live::remove_empty(directory, no_writes)?;
        Ok(manifest)
    }

    /// Whether [`GalleryDirectory::write`] may replace what is there, to be asked before long work: writes to it would be
    /// lost.
    pub fn check_replaceable(directory: &Path) -> Result<(), StorageError> {
        live::hold_empty(directory).map(drop)
    }

    /// Reads the manifest alone, which knows nothing of writes.
    pub fn read_manifest(directory: &Path) -> Result<GalleryManifest, StorageError> {
        Ok(Self::read_manifest_with_digest(directory)?.0)
    }

    /// The manifest, and the digest of its file.
    pub(super) fn read_manifest_with_digest(
        directory: &Path,
    ) -> Result<(GalleryManifest, Digest), StorageError> {
        let path = directory.join(MANIFEST);
        let text = match read_small(&path, MANIFEST_LIMIT) {
            Err(StorageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StorageError::NoManifest { path: directory.to_owned() });
            }
            other => other?,
        };
        let manifest = GalleryManifest::parse(&text, &path)?;
        Ok((manifest, Digest::of_bytes(&text)))
    }

    /// Reads a gallery with everything written to it so far, and holds every file against the manifest.
    ///
    /// It does not wait for whoever is writing: a write in flight is seen whole or not at all.
    pub fn read(directory: &Path) -> Result<Self, StorageError> {
        live::with_writes(Self::read_base(directory)?, directory)
    }

    /// Number of writes since the gallery was made: items added, and identities removed.
    pub fn writes(&self) -> u64 {
        self.written.count
    }

    /// Stands for the gallery as it was made and every write to it, in order.
    pub fn version(&self) -> Digest {
        self.written.version
    }

    /// Whether an item was added after the gallery had been made.
    pub fn is_added(&self, row: usize) -> bool {
        row >= self.written.first_added
    }

    /// Where the picture of an item is, if that was stored: that of an added item lies in the gallery's `directory`, any
    /// other where it lay when the gallery was made, seen from the working directory of that time.
    pub fn picture_path(&self, row: usize) -> Option<PathBuf> {
        self.written.picture_path(&self.paths, &self.directory, row)
    }

    /// Reads a gallery as it was made.
    pub fn read_base(directory: &Path) -> Result<Self, StorageError> {
        let (manifest, digest) = Self::read_manifest_with_digest(directory)?;

        let path = directory.join(VECTORS);
        let mut reader = open_recorded(&path, &manifest.vectors_file)?;
        let array = npy::read_from(&mut reader, manifest.vectors_file.bytes, &path)?;
        check_digest(reader, &path, &manifest.vectors_file)?;
        let matrix = array.into_matrix(&path)?;
        let count = |what, found, wanted| StorageError::Count { path: path.clone(), what, found, wanted };
        if matrix.rows != manifest.items {
            return Err(count("vectors", matrix.rows, manifest.items));
        }
        if matrix.columns != manifest.dimension {
            return Err(count("components per vector", matrix.columns, manifest.dimension));
        }

        let path = directory.join(ITEMS);
        let mut reader = open_recorded(&path, &manifest.items_file)?;
        let (mut identities, mut labels, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        let mut line = Vec::new();
        let mut lines = BufReader::new(&mut reader);
        loop {
            line.clear();
            let read = io::Read::take(&mut lines, LINE_LIMIT).read_until(b'\n', &mut line);
            let length = read.map_err(|source| StorageError::Read { path: path.clone(), source })?;
            if length == 0 {
                break;
            }
            let item: Item<'_> = serde_json::from_slice(&line).map_err(|source| StorageError::Json {
                path: path.clone(),
                line: identities.len() + 1,
                wanted: "an item with identity and label",
                source,
            })?;
            identities.push(item.identity.into_owned());
            labels.push(item.label.into_owned());
            paths.push(item.path.map(std::borrow::Cow::into_owned));
        }
        check_digest(reader, &path, &manifest.items_file)?;
        if identities.len() != manifest.items {
            let (found, wanted) = (identities.len(), manifest.items);
            return Err(StorageError::Count { path, what: "items", found, wanted });
        }

        let gallery = Gallery::new(matrix.values, manifest.dimension, identities, &labels, manifest.metric)
            .map_err(|source| StorageError::Gallery { path: directory.to_owned(), source })?;
        let written = Written { count: 0, first_added: gallery.len(), version: digest };
        Ok(Self { gallery, paths, manifest, written, directory: directory.to_owned() })
    }
}

impl GalleryManifest {
    fn new(
        gallery: &Gallery,
        provenance: Provenance,
        vectors_file: FileRecord,
        items_file: FileRecord,
    ) -> Self {
        Self {
            format: GALLERY_FORMAT,
            tool: TOOL.to_owned(),
            items: gallery.len(),
            dimension: gallery.dimension(),
            metric: gallery.metric(),
            provenance,
            vectors_file,
            items_file,
        }
    }

    /// What [`GalleryDirectory::write`] would say of this gallery; `paths` has one entry per item or none.
    pub fn describe(gallery: &Gallery, paths: &[Option<String>], provenance: Provenance) -> Self {
        let vectors_file = hashed(|writer| write_vectors(writer, gallery));
        let items_file = hashed(|writer| write_items(writer, gallery, paths));
        Self::new(gallery, provenance, vectors_file, items_file)
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
        let found = Self::describe(gallery, paths, self.provenance.clone());
        let numbers = |manifest: &Self| {
            [
                ("a number of items of", manifest.items.to_string()),
                ("the dimension", manifest.dimension.to_string()),
                ("the metric", format!("{:?}", manifest.metric).to_lowercase()),
                ("vectors with sha256", manifest.vectors_file.sha256.to_string()),
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

    /// Reads the text of a manifest, which came from the file at `path`, and holds it against its own digest.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, StorageError> {
        parse_sealed(text, path, GALLERY_FORMAT, "a gallery manifest")
    }

    /// The text of the manifest, with its digest.
    pub fn sealed(&self) -> String {
        sealed::seal(self).expect("a manifest is strings and numbers")
    }
}

impl GalleryDirectory {
    /// Stands for everything of the gallery that decides a search in it: vectors, identities, labels, metric, and how the
    /// vectors were made. Where pictures lie does not.
    pub fn digest(&self) -> Digest {
        let gallery = &self.gallery;
        let mut names = HashingWriter::new(io::sink());
        write_items(&mut names, gallery, &[]).expect("a sink takes everything");
        let (_, names, _) = names.finish();
        let GalleryManifest { items, dimension, metric, provenance, vectors_file, .. } = &self.manifest;
        Digest::of_json(&serde_json::json!({
            "items": items,
            "dimension": dimension,
            "metric": metric,
            "made": provenance,
            "vectors": vectors_file.sha256,
            "names": names,
        }))
    }
}

/// Reads a manifest of this format, or of format 1, which had no seal.
pub(super) fn parse_sealed<T: serde::de::DeserializeOwned>(
    text: &[u8],
    path: &Path,
    format: u32,
    wanted: &'static str,
) -> Result<T, StorageError> {
    let refused = |source: serde_json::Error| {
        let line = source.line();
        StorageError::Json { path: path.to_owned(), line, wanted, source }
    };
    // The version first, so that another layout is told apart from a broken file.
    #[derive(Deserialize)]
    struct Version {
        format: u64,
        sha256: Option<serde::de::IgnoredAny>,
    }
    let Version { format: found, sha256: seal } = serde_json::from_slice(text).map_err(refused)?;
    // What holds a seal is held against it, whatever format it says it has.
    if found == UNSEALED_FORMAT && seal.is_none() {
        return serde_json::from_slice(text).map_err(refused);
    }
    let unseal =
        || sealed::unseal(text).map_err(|source| StorageError::Seal { path: path.to_owned(), source });
    if found != u64::from(format) {
        if found == UNSEALED_FORMAT {
            unseal()?;
        }
        return Err(StorageError::Format { path: path.to_owned(), found, wanted: format });
    }
    let value = unseal()?;
    serde_json::from_value(value).map_err(refused)
}

/// The content of `vectors.npy`.
fn write_vectors(writer: &mut impl Write, gallery: &Gallery) -> io::Result<()> {
    npy::write_f32_to(writer, &[gallery.len(), gallery.dimension()], gallery.vectors())
}

/// The content of `items.jsonl`.
fn write_items(writer: &mut impl Write, gallery: &Gallery, paths: &[Option<String>]) -> io::Result<()> {
    for row in 0..gallery.len() {
        let item = Item {
            identity: gallery.identity(row).into(),
            label: gallery.label_name(gallery.label(row)).into(),
            path: paths.get(row).and_then(Option::as_deref).map(Into::into),
        };
        serde_json::to_writer(&mut *writer, &item)?;
        writer.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes a manifest with its seal, and returns size and digest of the file.
pub(super) fn write_json(path: &Path, manifest: &impl Serialize) -> Result<FileRecord, WriteError> {
    let text = sealed::seal(manifest).map_err(|error| WriteError::new(path, error.into()))?;
    atomic::write(path, text.as_bytes())?;
    Ok(FileRecord { bytes: text.len() as u64, sha256: Digest::of_bytes(text.as_bytes()) })
}

/// Size and digest of a file that is not written.
fn hashed(content: impl FnOnce(&mut HashingWriter<io::Sink>) -> io::Result<()>) -> FileRecord {
    let mut writer = HashingWriter::new(io::sink());
    content(&mut writer).expect("a sink takes everything");
    let (_, sha256, bytes) = writer.finish();
    FileRecord { bytes, sha256 }
}

/// Writes a file through a digest.
pub(super) fn write_hashed(
    path: &Path,
    content: impl FnOnce(&mut HashingWriter<AtomicFile>) -> io::Result<()>,
) -> Result<FileRecord, WriteError> {
    let mut writer = HashingWriter::new(AtomicFile::create(path)?);
    content(&mut writer).map_err(|error| WriteError::new(path, error))?;
    let (file, sha256, bytes) = writer.finish();
    file.commit()?;
    Ok(FileRecord { bytes, sha256 })
}

/// Opens a file whose size is the recorded one.
pub(super) fn open_recorded(
    path: &Path,
    record: &FileRecord,
) -> Result<HashingReader<BufReader<File>>, StorageError> {
    let failed = |source| StorageError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    if found != record.bytes {
        return Err(StorageError::Size { path: path.to_owned(), found, wanted: record.bytes });
    }
    Ok(HashingReader::new(BufReader::with_capacity(1 << 16, file)))
}

/// Checks the digest of a file that was read to its end.
pub(super) fn check_digest(
    reader: HashingReader<BufReader<File>>,
    path: &Path,
    record: &FileRecord,
) -> Result<(), StorageError> {
    let (found, _) = reader.finish();
    if found == record.sha256 {
        Ok(())
    } else {
        Err(StorageError::Changed { path: path.to_owned(), found, wanted: record.sha256 })
    }
}

/// Reads a file that has no business being large.
pub(super) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, StorageError> {
    let failed = |source| StorageError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, limit + 1), &mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        let found = fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
        return Err(StorageError::TooLarge { path: path.to_owned(), found, limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
