//! Tables for other programs: certificates and galleries in Parquet, JSON lines, TSV and `.npy`.
//!
//! Parquet is written and read column by column through the low-level interface of the `parquet` crate: without Arrow it
//! builds in half the time, and pandas, polars, DuckDB and pyarrow read the same files.

pub(crate) mod columns;
pub mod gallery_file;
mod plausible;
mod record;
mod results;

use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::Sigma;
use retrievalguard::certificate::CertificateName;
use retrievalguard::gallery::{GalleryError, Metric};
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::StorageError;
use retrievalguard::storage::npy::NpyError;
use retrievalguard::storage::sealed::SealError;

pub use record::{TableRecord, Unverified};
pub use results::{Cell, FilePixels, PlainAnswer, ResultRow, ResultTable, StoredTable, WrongItem};

use crate::run::DescriptionError;

/// Why a table could not be read or written; every variant names the file or the row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file could not be opened or read.
    #[error("table `{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The Parquet file is damaged, or uses something that is not supported.
    #[error("table `{}` is not a readable Parquet file: {reason}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        reason: String,
    },
    /// A column is not there.
    #[error("table `{}` has no column `{column}`, it has {found}", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column that was wanted.
        column: String,
        /// The columns that are there.
        found: String,
    },
    /// A column holds something else.
    #[error("column `{column}` of table `{}` holds {found}, wanted {wanted}", path.display())]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What it holds.
        found: String,
        /// What was wanted.
        wanted: &'static str,
    },
    /// One value is not what it should be.
    #[error("row {row} of `{}`: {field} is {found}, wanted {wanted}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which row, counted from 0.
        row: usize,
        /// Which field of it.
        field: String,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: String,
    },
    /// A certificate from samples without a noise level, or one that needs no noise with one.
    #[error(
        "certificate {certificate} stands beside {}, wanted {}",
        sigma.map_or("no sigma".to_owned(), |sigma| format!("sigma {sigma}")),
        if sigma.is_some() { "none: it needs no noise" } else { "the sigma of its samples" }
    )]
    Noise {
        /// The certificate.
        certificate: CertificateName,
        /// The noise level of the table.
        sigma: Option<Sigma>,
    },
    /// Two things that belong together differ in length.
    #[error("`{}` has {found} {what}, wanted {wanted}", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// There is nothing in the table.
    #[error("table `{}` has no rows, wanted at least one", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The name does not say what the file is.
    #[error("`{}` is not a table of certificates, wanted a .parquet or .jsonl file", path.display())]
    Ending {
        /// The file.
        path: PathBuf,
    },
    /// Nothing tells whether the table is what was written.
    #[error(
        "table `{}` has no digest: an earlier version wrote it, or another program",
        path.display()
    )]
    NoDigest {
        /// The file.
        path: PathBuf,
    },
    /// The table was changed after it had been written.
    #[error(
        "table `{}` was changed: its rows and description have sha256 {found:.16}…, wanted {wanted:.16}…",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Digest of what is there.
        found: Digest,
        /// Digest of what was written.
        wanted: Digest,
    },
    /// The table's description of its run cannot be used.
    #[error("table `{}` has no usable description of its run", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: DescriptionError,
    },
    /// The record of a run's files cannot be verified.
    #[error("record `{}` failed verification", path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        source: SealError,
    },
    /// The record of a run's files is intact but says something else.
    #[error("record `{}` does not describe a table of certificates: {reason}", path.display())]
    OtherRecord {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A gallery was exported with another metric than the one that is asked for.
    #[error("gallery `{}` was exported with the metric {found:?}, wanted {wanted:?}", path.display())]
    Metric {
        /// The file or directory.
        path: PathBuf,
        /// The metric of the export.
        found: Metric,
        /// The metric that was asked for.
        wanted: Metric,
    },
    /// A gallery in the file of another program is not the one that was exported.
    #[error(transparent)]
    Exported(#[from] StorageError),
    /// A row has other certificates than the table.
    #[error("row {row} (`{identity}`) has certificates {found}, the table has {wanted}")]
    Certificates {
        /// Which row, counted from 0.
        row: usize,
        /// The query.
        identity: String,
        /// Its certificates.
        found: String,
        /// Those of the table.
        wanted: String,
    },
    /// The directory holds no embeddings of clip-retrieval.
    #[error("`{}` holds no img_emb/img_emb_*.npy with metadata/metadata_*.parquet", path.display())]
    NoShards {
        /// The directory.
        path: PathBuf,
    },
    /// An array of embeddings lacks its metadata, or the other way round.
    #[error("`{}` has no matching `{}`", path.display(), partner.display())]
    NoPartner {
        /// The file that is there.
        path: PathBuf,
        /// The file that is not.
        partner: PathBuf,
    },
    /// The vectors are not an array.
    #[error(transparent)]
    Array(#[from] NpyError),
    /// The vectors are no gallery.
    #[error("gallery `{}` cannot be used", path.display())]
    Gallery {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        source: GalleryError,
    },
}

impl TableError {
    fn value(path: &Path, row: usize, field: &str, found: impl ToString, wanted: &str) -> Self {
        Self::Value {
            path: path.to_owned(),
            row,
            field: field.to_owned(),
            found: found.to_string(),
            wanted: wanted.to_owned(),
        }
    }
}
