//! What can be wrong with the files of a gallery.

use std::io;
use std::path::PathBuf;

use super::MANIFEST;
use crate::gallery::GalleryError;
use crate::storage::atomic::WriteError;
use crate::storage::digest::Digest;
use crate::storage::journal::JournalError;
use crate::storage::live;
use crate::storage::npy::NpyError;
use crate::storage::sealed::SealError;
use crate::storage::shards::ShardsError;

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
    #[error("`{}` has no {MANIFEST}: it is not a gallery, or writing it was interrupted", path.display())]
    NoManifest {
        /// The directory.
        path: PathBuf,
    },
    /// A gallery in shards stays on disk, and what was asked for needs it in memory.
    #[error(
        "`{}` is a gallery in shards, which stays on disk; wanted one in a single piece, as `retrievalguard index` writes it \
         without --shards",
        path.display()
    )]
    InShards {
        /// The directory.
        path: PathBuf,
    },
    /// Nobody can tell which of two galleries is meant.
    #[error("`{}` holds both {MANIFEST} and shards.json, wanted one gallery", path.display())]
    BothKinds {
        /// The directory.
        path: PathBuf,
    },
    /// A gallery is replaced by one of its kind only.
    #[error(
        "`{}` holds a gallery {}, wanted another directory or the same kind of gallery",
        path.display(),
        if *in_shards { "in shards" } else { "in a single piece" }
    )]
    OtherKind {
        /// The directory.
        path: PathBuf,
        /// Whether the gallery that is there is in shards.
        in_shards: bool,
    },
    /// A gallery in shards could not be used.
    #[error(transparent)]
    Shards(Box<ShardsError>),
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
    #[error("`{}` failed verification", path.display())]
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
        /// What the manifest says.
        wanted: String,
    },
    /// Text that is not the JSON it should be.
    #[error("line {line} of `{}` is not {wanted}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: usize,
        /// What was wanted.
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
    /// A manifest speaks of views in a format that has none, or of none in the one that does.
    #[error("`{}` has format version {format}, which disagrees with its views", path.display())]
    ViewsFormat {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        format: u32,
    },
    /// A manifest speaks of embeddings of clean pictures in a format that has none, or of none in the one that does.
    #[error("`{}` has format version {format}, which disagrees with its plain vectors", path.display())]
    PlainFormat {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        format: u32,
    },
    /// A gallery has other views than its provenance says.
    #[error("the items of the gallery have {}, wanted {}", views_in_words(found), views_in_words(wanted))]
    OtherViews {
        /// Names of the gallery's views.
        found: Vec<String>,
        /// Names of the views that its vectors are said to be made with.
        wanted: Vec<String>,
    },
    /// A row is not the view that it should be.
    #[error(
        "line {line} of `{}` is {}, its manifest says {}",
        path.display(),
        view_in_words(found.as_deref()),
        view_in_words(wanted.as_deref())
    )]
    OtherView {
        /// The file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: usize,
        /// The view that is there, if any.
        found: Option<String>,
        /// The view that should be there.
        wanted: Option<String>,
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
    /// Paths are given for every row or for none.
    #[error("{found} paths were given for {wanted} gallery items, wanted one for each or none")]
    Paths {
        /// How many were given.
        found: usize,
        /// How many rows there are.
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
         and {} moved away, which drops the writes",
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
         {wanted:.16}…; wanted that gallery back, or this journal and {} moved away, which drops the writes",
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
    /// Acknowledged writes are missing from the journal, or were replaced by others.
    #[error(
        "`{}` holds {found} writes to the gallery, {wanted} were acknowledged; wanted the whole journal back, or \
         `retrievalguard repair --accept-loss`, which gives up those that are lost",
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
        "`{}`, which counts the acknowledged writes, is {what}; wanted it back, or `retrievalguard repair --accept-loss`, which \
         accepts the writes that are there; if there is no manifest, wanted it moved away",
        path.display()
    )]
    Anchor {
        /// The anchor.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Another directory has taken the place of a gallery that is open for writing.
    #[error("gallery `{}` was replaced while it was open, wanted it to be opened again", path.display())]
    Replaced {
        /// The gallery.
        path: PathBuf,
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
    #[error("the extension of a stored picture is `{found}`, wanted 1 to 8 lower-case letters and digits")]
    Extension {
        /// What was given.
        found: String,
    },
}

fn views_in_words(names: &[String]) -> String {
    match names.len() {
        0 => "no views".to_owned(),
        _ => format!("the views {}", names.join(", ")),
    }
}

fn view_in_words(name: Option<&str>) -> String {
    name.map_or_else(|| "no view".to_owned(), |name| format!("the view `{name}`"))
}

impl From<JournalError> for StorageError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Write(error) => Self::Write(error),
            other => Self::Journal(other),
        }
    }
}

impl From<ShardsError> for StorageError {
    fn from(error: ShardsError) -> Self {
        match error {
            ShardsError::Storage(error) => error,
            other => Self::Shards(Box::new(other)),
        }
    }
}
