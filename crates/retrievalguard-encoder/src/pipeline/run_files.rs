//! What a run of certificates leaves in its directory: tables, what they were made with, and where the inputs lay.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard::storage::digest::Digest;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{CertifyReport, PipelineError};
use crate::dataset::{Boxes, Record};

/// Key of the run's description in the metadata of a table.
pub const RUN_KEY: &str = "retrievalguard.run";

/// The run's description beside its tables.
pub const RUN_FILE: &str = "run.json";

/// Where the run's inputs lay.
pub const INPUTS_FILE: &str = "inputs.json";

/// The table of a run.
pub const TABLE_FILE: &str = "certificates.parquet";

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

/// Writes a run's tables and its description.
pub fn write_tables(folder: &Path, report: &CertifyReport, tables: Tables) -> Result<(), PipelineError> {
    // Beside tables that have no room for it, the run's description stands in a file of its own.
    write(&folder.join(RUN_FILE), format!("{:#}\n", report.description).as_bytes())?;
    let metadata = [(RUN_KEY.to_owned(), report.description.to_string())];
    report.table.write_parquet(&folder.join(TABLE_FILE), &metadata)?;
    if tables.jsonl {
        report.table.write_json_lines(&folder.join("certificates.jsonl"))?;
    }
    if tables.tsv {
        for &name in report.table.certificates() {
            report.table.write_tsv(&folder.join(format!("{name}.tsv")), name)?;
        }
    }
    if tables.recall_at_k {
        let mut text = String::new();
        for (row, deeper) in report.table.rows().iter().zip(&report.deeper) {
            let line = json!({ "identity": row.identity, "recall_at_2_and_deeper": deeper });
            text.push_str(&line.to_string());
            text.push('\n');
        }
        write(&folder.join("recall-at-k.jsonl"), text.as_bytes())?;
    }
    Ok(())
}

/// The command that was given, and where its inputs lay then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
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
    /// Its contract, if it does not lie beside it.
    pub contract: Option<PathBuf>,
}

impl Places {
    /// The places of a command, with paths that hold wherever they are read.
    pub fn new(
        command: Vec<String>,
        (path, format, boxes): (&Path, &str, Boxes),
        gallery: &Path,
        model: &Path,
        contract: Option<&Path>,
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
            contract: contract.map(absolute).transpose()?,
        })
    }
}

/// Where the inputs of a run lay; everything that decides its numbers stands in its description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The command and its places.
    #[serde(flatten)]
    pub places: Places,
    /// Rows of the gallery that a query did not see, by the query's identity.
    pub excluded: BTreeMap<String, Vec<usize>>,
    /// Digest of the pictures behind the table's rows.
    pub pictures: Digest,
}

impl Inputs {
    /// The inputs of a run whose table stands on pictures with this digest.
    pub fn new(places: Places, pictures: Digest, report: &CertifyReport) -> Self {
        let rows = report.table.rows().iter().map(|row| row.identity.clone()).zip(report.excluded.clone());
        let excluded = rows.filter(|(_, rows)| !rows.is_empty()).collect();
        Self { places, excluded, pictures }
    }

    /// Writes them into the run's directory.
    pub fn write(&self, folder: &Path) -> Result<(), PipelineError> {
        let mut text = serde_json::to_string_pretty(self).expect("inputs are strings and numbers");
        text.push('\n');
        Ok(write(&folder.join(INPUTS_FILE), text.as_bytes())?)
    }
}

/// The records that are in a report's table.
pub fn used(records: &[Record], report: &CertifyReport) -> Vec<Record> {
    let skipped: HashSet<&str> = report.skipped.iter().map(|(identity, _)| identity.as_str()).collect();
    records.iter().filter(|record| !skipped.contains(record.identity.as_str())).cloned().collect()
}
