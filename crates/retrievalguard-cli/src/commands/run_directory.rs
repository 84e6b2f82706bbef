//! What a run of certificates leaves in its directory: tables, description and log.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime};

use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard_encoder::pipeline::{CertifyReport, CertifyRequest};
use serde_json::json;

/// Key of the run's description in the metadata of a table.
pub(super) const RUN_KEY: &str = "retrievalguard.run";

/// The run's description beside its tables.
pub(super) const RUN_FILE: &str = "run.json";

/// Which tables are written beside the Parquet file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    pub(super) jsonl: bool,
    pub(super) tsv: bool,
    pub(super) recall_at_k: bool,
}

pub(super) fn write_tables(folder: &Path, report: &CertifyReport, tables: Tables) -> anyhow::Result<()> {
    // Beside tables that have no room for it, the run's description stands in a file of its own.
    let mut description = serde_json::to_string_pretty(&report.description)?;
    description.push('\n');
    write(&folder.join(RUN_FILE), description.as_bytes())?;
    let metadata = [(RUN_KEY.to_owned(), report.description.to_string())];
    report.table.write_parquet(&folder.join("certificates.parquet"), &metadata)?;
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

/// Times, threads and dates go to a log, because the table holds only what the inputs decide.
pub(super) fn log_run(
    folder: &Path,
    request: &CertifyRequest<'_>,
    report: &CertifyReport,
    started: Instant,
) -> anyhow::Result<()> {
    let path = folder.join("run-log.jsonl");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let library = request.embedder.report().library.as_ref();
    let line = json!({
        "finished_unix_seconds": now,
        "seconds": started.elapsed().as_secs_f64(),
        "threads": request.threads,
        "batch": request.batch,
        "queries": report.table.rows().len(),
        "resumed": report.resumed,
        "skipped": report.skipped,
        "library": library.map(|path| path.display().to_string()),
        "run": report.description,
    });
    let failed = |error| WriteError::new(&path, error);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
    writeln!(file, "{line}").map_err(failed)?;
    Ok(())
}
