//! What a run of certificates leaves in its directory, and how everybody takes it up again.
//!
//! `run.json`, the record, is written last. It holds the run's description and the digest of every table; whoever opens the
//! directory goes through [`StoredRun::open`], which believes nothing that does not agree with it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::Verdict;
use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::{SealError, seal, unseal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CertifyReport, PipelineError};
use crate::dataset::{Boxes, RecordSet};
use crate::run::{DescriptionError, RunDescription, TableDescription};
use crate::table::{ResultTable, StoredTable, TableError, TableRecord, Unverified};

/// Where the run's inputs were.
pub const PLACES_FILE: &str = "places.json";

/// The same before format 2, beside a `run.json` that held the description alone.
pub(super) const OLD_PLACES_FILE: &str = "inputs.json";

/// The table of a run.
pub const TABLE_FILE: &str = "certificates.parquet";

/// The same rows as JSON lines.
pub const LINES_FILE: &str = "certificates.jsonl";

/// Verdicts for Recall@2 and deeper.
pub const DEEPER_FILE: &str = "recall-at-k.jsonl";

/// Which tables are written beside the Parquet file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The same rows as JSON lines.
    pub jsonl: bool,
    /// A table per certificate, in the layout of randomised smoothing's usual tools.
    pub tsv: bool,
    /// Verdicts for Recall@2 and deeper.
    pub recall_at_k: bool,
}

/// Writes a run's tables, where its inputs were, and the record of all of it.
pub fn write_run(
    folder: &Path,
    report: &CertifyReport,
    inputs: &Inputs,
    tables: Tables,
) -> Result<(), PipelineError> {
    let run = TableDescription::Run(Box::new(report.description.clone()));
    let mut names = vec![TABLE_FILE.to_owned()];
    report.table.write_parquet(&folder.join(TABLE_FILE), Some(&run))?;
    if tables.jsonl {
        report.table.write_json_lines(&folder.join(LINES_FILE))?;
        names.push(LINES_FILE.to_owned());
    }
    if tables.tsv {
        for &name in report.table.certificates() {
            let file = format!("{name}.tsv");
            report.table.write_tsv(&folder.join(&file), name)?;
            names.push(file);
        }
    }
    if tables.recall_at_k {
        write_deeper(folder, &report.table, &report.deeper)?;
        names.push(DEEPER_FILE.to_owned());
    }
    inputs.write(folder)?;
    let record = TableRecord::new(&report.table, Some(&run));
    let record = record.with_files(folder, names.iter().map(String::as_str))?;
    Ok(record.write(&folder.join(TableRecord::FILE))?)
}

/// Writes the verdicts for Recall@2 and deeper of every row.
pub(super) fn write_deeper(
    folder: &Path,
    table: &ResultTable,
    deeper: &[Vec<Verdict>],
) -> Result<(), PipelineError> {
    let mut text = String::new();
    for (row, deeper) in table.rows().iter().zip(deeper) {
        let line = json!({ "identity": row.identity, "recall_at_2_and_deeper": deeper });
        text.push_str(&line.to_string());
        text.push('\n');
    }
    Ok(write(&folder.join(DEEPER_FILE), text.as_bytes())?)
}

/// The command that was given, and where its inputs were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPlaces {
    /// The command as it was given.
    pub command: Vec<String>,
    /// Where it was given.
    pub directory: PathBuf,
    /// The queries' data set.
    pub queries: PathBuf,
    /// Its layout.
    pub format: String,
    /// Which boxes were cut out.
    pub boxes: String,
    /// The gallery.
    pub gallery: PathBuf,
    /// The encoder.
    pub model: PathBuf,
    /// Its model config, if it is not beside it.
    pub contract: Option<PathBuf>,
}

impl RunPlaces {
    /// The places of a command, with paths that hold wherever they are read.
    pub fn new(
        command: Vec<String>,
        (path, format, boxes): (&Path, &str, Boxes),
        gallery: &Path,
        model: &Path,
        model_config: Option<&Path>,
    ) -> Result<Self, PipelineError> {
        let absolute = |path: &Path| std::path::absolute(path).map_err(|error| WriteError::new(path, error));
        Ok(Self {
            command,
            directory: std::env::current_dir().map_err(|error| WriteError::new(Path::new("."), error))?,
            queries: absolute(path)?,
            format: format.to_owned(),
            boxes: boxes.name().to_owned(),
            gallery: absolute(gallery)?,
            model: absolute(model)?,
            contract: model_config.map(absolute).transpose()?,
        })
    }
}

/// Where the inputs of a run were; everything that decides its numbers is in its description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The run, see [`RunDescription::digest`].
    pub run: Digest,
    /// The command and its places.
    #[serde(flatten)]
    pub places: RunPlaces,
    /// Rows of the gallery that a query did not see, by the query's identity.
    pub excluded: BTreeMap<String, Vec<usize>>,
    /// Digest of the pictures behind the table's rows.
    pub pictures: Digest,
}

impl Inputs {
    /// The inputs of a run whose table was made from pictures with this digest.
    pub fn new(places: RunPlaces, pictures: Digest, report: &CertifyReport) -> Self {
        let rows = report.table.rows().iter().map(|row| row.identity.clone()).zip(report.excluded.clone());
        let excluded = rows.filter(|(_, rows)| !rows.is_empty()).collect();
        Self { run: report.description.digest(), places, excluded, pictures }
    }

    /// The inputs of a run over these queries, of which some may have been left out.
    pub fn of(places: RunPlaces, queries: &RecordSet, report: &CertifyReport) -> Self {
        let skipped: HashSet<&str> = report.skipped.iter().map(|(identity, _)| identity.as_str()).collect();
        let used = queries.filter(|record| !skipped.contains(record.identity.as_str()));
        Self::new(places, used.digest(), report)
    }

    /// Writes them into the run's directory.
    pub fn write(&self, folder: &Path) -> Result<(), PipelineError> {
        let text = seal(self).expect("inputs are strings and numbers");
        Ok(write(&folder.join(PLACES_FILE), text.as_bytes())?)
    }

    /// Reads them from the directory of this run.
    fn read(folder: &Path, run: Digest) -> Result<Self, RunError> {
        let path = folder.join(PLACES_FILE);
        let text = fs::read(&path).map_err(|source| RunError::NoPlaces { path: path.clone(), source })?;
        let value = unseal(&text).map_err(|source| RunError::Seal { path: path.clone(), source })?;
        let inputs: Self = serde_json::from_value(value)
            .map_err(|source| RunError::Places { path: path.clone(), source })?;
        if inputs.run == run {
            return Ok(inputs);
        }
        Err(RunError::OtherRun { path, found: inputs.run, wanted: run })
    }
}

/// Why the directory of a run cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no table.
    #[error("`{}` is not a finished run of `certify`, wanted a directory with {TABLE_FILE}", path.display())]
    NotFinished {
        /// The directory.
        path: PathBuf,
    },
    /// It was written before runs had a record.
    #[error(
        "`{}` holds a run of an earlier version, whose files cannot be verified; `retrievalguard upgrade` converts it",
        path.display()
    )]
    Old {
        /// The directory.
        path: PathBuf,
    },
    /// The record is gone.
    #[error("`{}` has no {}; the run's command, given again, writes it", path.display(), TableRecord::FILE)]
    NoRecord {
        /// The directory.
        path: PathBuf,
    },
    /// The table or its record cannot be verified.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The table is not that of a run over pictures.
    #[error("`{}` is not the table of a run over pictures", path.display())]
    NoRun {
        /// The table.
        path: PathBuf,
    },
    /// The table and its record are of different runs.
    #[error("`{}` belongs to run {found:.16}…, wanted {wanted:.16}…", path.display())]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// The run that it is of.
        found: Digest,
        /// The run of the directory.
        wanted: Digest,
    },
    /// The places of the inputs cannot be read.
    #[error("`{}` cannot be read; the run's command, given again, writes it", path.display())]
    NoPlaces {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file was changed.
    #[error("`{}` failed verification", path.display())]
    Seal {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: SealError,
    },
    /// A file is intact but says something else.
    #[error("`{}` does not say where the run's inputs were", path.display())]
    Places {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The run was not made with noise.
    #[error(transparent)]
    Description(#[from] DescriptionError),
}

/// A finished run, opened again and verified.
#[derive(Clone, Debug)]
pub struct StoredRun {
    /// Its rows.
    pub table: ResultTable,
    /// SHA-256 of the table's file.
    pub table_file: Digest,
    /// What decided them.
    pub description: RunDescription,
    /// Where its inputs were.
    pub inputs: Inputs,
}

impl StoredRun {
    /// Reads the record of a run's directory and checks every file of the run against it.
    pub fn open(folder: &Path) -> Result<Self, RunError> {
        let path = folder.join(TABLE_FILE);
        if !path.is_file() {
            return Err(RunError::NotFinished { path: folder.to_owned() });
        }
        let Some(record) = TableRecord::read(&folder.join(TableRecord::FILE))? else {
            let old = folder.join(OLD_PLACES_FILE).exists();
            let path = folder.to_owned();
            return Err(if old { RunError::Old { path } } else { RunError::NoRecord { path } });
        };
        record.check_files(folder)?;
        let StoredTable { table, run, .. } = ResultTable::read(&path, Unverified::Refuse)?;
        let description = match run {
            Some(TableDescription::Run(run)) => *run,
            Some(TableDescription::Arrays(_)) | None => return Err(RunError::NoRun { path }),
        };
        let table_file = record.files.get(TABLE_FILE).copied();
        let table_file = table_file.ok_or_else(|| RunError::NoRecord { path: folder.to_owned() })?;
        let wanted = description.digest();
        let found = record.run.as_ref().map_or_else(|| Digest::of_json(&Value::Null), Digest::of_json);
        if found != wanted {
            return Err(RunError::OtherRun { path: folder.join(TableRecord::FILE), found, wanted });
        }
        let inputs = Inputs::read(folder, wanted)?;
        Ok(Self { table, table_file, description, inputs })
    }

    /// Which run has left its results in a directory, if one has and says so.
    pub fn occupant(folder: &Path) -> Option<Digest> {
        let text = fs::read(folder.join(TableRecord::FILE)).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        Some(Digest::of_json(value.get("run").unwrap_or(&value)))
    }
}
