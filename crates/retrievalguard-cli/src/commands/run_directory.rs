//! What a run of certificates leaves in its directory, and how later commands take it up again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, bail};
use retrievalguard::certificate::CertificateName;
use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard::{Alpha, Excess, SampleCount, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::dataset::{Boxes, DatasetOptions, Record, open};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::picture::PictureLimits;
use retrievalguard_encoder::pipeline::{CertifyReport, CertifyRequest, data_set_digest, input_values};
use retrievalguard_encoder::table::ResultTable;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::arguments::EngineArgs;
use crate::progress::tell;

/// Key of the run's description in the metadata of a table.
pub(super) const RUN_KEY: &str = "retrievalguard.run";

/// The run's description beside its tables.
pub(super) const RUN_FILE: &str = "run.json";

/// Where the run's inputs lay.
const INPUTS_FILE: &str = "inputs.json";

/// What attacks have shown, beside the tables.
pub(super) const ATTACK_FILE: &str = "attack.json";

/// The table of a run.
pub(super) const TABLE_FILE: &str = "certificates.parquet";

/// Times, threads and dates, one line per finished run.
pub(super) const LOG_FILE: &str = "run-log.jsonl";

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

/// Times, threads and dates go to a log, because the table holds only what the inputs decide.
pub(super) fn log_run(
    folder: &Path,
    request: &CertifyRequest<'_>,
    report: &CertifyReport,
    started: Instant,
) -> anyhow::Result<()> {
    let path = folder.join(LOG_FILE);
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

/// Where the inputs of a run lay; everything that decides its numbers stands in its description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Inputs {
    /// The command as it was given.
    pub(super) command: Vec<String>,
    /// Where it was given.
    pub(super) directory: PathBuf,
    /// The queries' data set.
    pub(super) queries: PathBuf,
    /// Its layout.
    pub(super) format: String,
    /// Which boxes were cut out.
    pub(super) boxes: String,
    /// The gallery.
    pub(super) gallery: PathBuf,
    /// The encoder.
    pub(super) model: PathBuf,
    /// Its contract, if it does not lie beside it.
    pub(super) contract: Option<PathBuf>,
    /// Rows of the gallery that a query did not see, by the query's identity.
    pub(super) excluded: BTreeMap<String, Vec<usize>>,
    /// Digest of the pictures behind the table's rows.
    pub(super) pictures: Digest,
}

/// The command that was given, and where its inputs lay then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Places {
    command: Vec<String>,
    directory: PathBuf,
    queries: PathBuf,
    format: String,
    boxes: String,
    gallery: PathBuf,
    model: PathBuf,
    contract: Option<PathBuf>,
}

impl Places {
    /// The places of this very command, with paths that hold wherever they are read.
    pub(super) fn new(
        (path, format, boxes): (&Path, &str, Boxes),
        gallery: &Path,
        model: &Path,
        contract: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let absolute = |path: &Path| {
            std::path::absolute(path).with_context(|| format!("`{}` has no place", path.display()))
        };
        Ok(Self {
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            directory: std::env::current_dir().context("the working directory has no place")?,
            queries: absolute(path)?,
            format: format.to_owned(),
            boxes: boxes.name().to_owned(),
            gallery: absolute(gallery)?,
            model: absolute(model)?,
            contract: contract.map(absolute).transpose()?,
        })
    }
}

/// The records that are in a report's table.
pub(super) fn used(records: &[Record], report: &CertifyReport) -> Vec<Record> {
    let skipped: HashSet<&str> = report.skipped.iter().map(|(identity, _)| identity.as_str()).collect();
    records.iter().filter(|record| !skipped.contains(record.identity.as_str())).cloned().collect()
}

impl Inputs {
    /// The inputs of a run whose table stands on pictures with this digest.
    pub(super) fn new(places: Places, pictures: Digest, report: &CertifyReport) -> Self {
        let rows = report.table.rows().iter().map(|row| row.identity.clone()).zip(report.excluded.clone());
        let Places { command, directory, queries, format, boxes, gallery, model, contract } = places;
        let excluded = rows.filter(|(_, rows)| !rows.is_empty()).collect();
        Self { command, directory, queries, format, boxes, gallery, model, contract, excluded, pictures }
    }

    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(write(&folder.join(INPUTS_FILE), text.as_bytes())?)
    }
}

/// What decided the numbers of a run, as far as later commands ask for it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Description {
    pub(super) sigma: Sigma,
    pub(super) alpha: Alpha,
    pub(super) pilot: SampleCount,
    pub(super) samples: SampleCount,
    pub(super) target_radius: Option<TargetRadius>,
    pub(super) seed: Seed,
    pub(super) project: bool,
    pub(super) model: String,
    pub(super) contract: String,
    pub(super) engine: String,
    pub(super) gallery_vectors: Digest,
    pub(super) gallery_items: Digest,
}

impl Description {
    pub(super) fn excess(&self) -> Excess {
        if self.project { Excess::Project } else { Excess::Refuse }
    }
}

/// A finished run, opened again.
pub(super) struct RunDirectory {
    pub(super) table: ResultTable,
    /// Digest of the table's file.
    pub(super) table_digest: Digest,
    pub(super) description: Description,
    /// The description with everything in it.
    pub(super) described: Value,
    pub(super) inputs: Inputs,
}

impl RunDirectory {
    /// Reads the table, its description and where its inputs lay.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        let table_path = folder.join(TABLE_FILE);
        if !table_path.is_file() {
            bail!(
                "`{}` is no finished run of certificates, wanted a directory with {TABLE_FILE}",
                folder.display()
            );
        }
        let table = ResultTable::read_parquet(&table_path)?;
        let table_digest = Digest::of_file(&table_path)
            .with_context(|| format!("`{}` cannot be read", table_path.display()))?;
        let metadata = ResultTable::read_metadata(&table_path)?;
        let (_, text) = metadata
            .iter()
            .find(|(key, _)| key == RUN_KEY)
            .with_context(|| format!("`{}` does not say what it was made with", table_path.display()))?;
        let unusable = || format!("`{}` has no usable description of its run", table_path.display());
        let described: Value = serde_json::from_str(text).with_context(unusable)?;
        let description = Description::deserialize(&described).with_context(unusable)?;
        let inputs_path = folder.join(INPUTS_FILE);
        let text = fs::read(&inputs_path).with_context(|| {
            format!("`{}` cannot be read; the run's command, given again, writes it", inputs_path.display())
        })?;
        let inputs = serde_json::from_slice(&text)
            .with_context(|| format!("`{}` does not say where a run's inputs lay", inputs_path.display()))?;
        Ok(Self { table, table_digest, description, described, inputs })
    }

    /// The records of the table's queries, in the order of the table.
    pub(super) fn records(&self) -> anyhow::Result<Vec<Record>> {
        let rows = self.table.rows().iter().zip(self.remaining_records()?);
        rows.map(|(row, record)| {
            record.with_context(|| {
                let queries = self.inputs.queries.display();
                format!("query `{}` of the run is not in `{queries}` any more", row.identity)
            })
        })
        .collect()
    }

    /// The same, with none in the place of a query that is gone.
    pub(super) fn remaining_records(&self) -> anyhow::Result<Vec<Option<Record>>> {
        let Inputs { queries, format, boxes, .. } = &self.inputs;
        let boxes = Boxes::named(boxes).with_context(|| format!("`{boxes}` is no rule for boxes"))?;
        let data = open(queries, format.parse()?, DatasetOptions { boxes })?;
        let mut known: HashMap<String, Record> =
            data.records.into_iter().map(|record| (record.identity.clone(), record)).collect();
        Ok(self.table.rows().iter().map(|row| known.remove(&row.identity)).collect())
    }

    /// Whether the queries' pictures are those that were certified.
    pub(super) fn check_pictures(&self, records: &[Record]) -> anyhow::Result<()> {
        let (found, wanted) = (data_set_digest(records), self.inputs.pictures);
        if found != wanted {
            bail!(
                "pictures in `{}` have changed since the run: their digest is {found}, wanted {wanted}",
                self.inputs.queries.display()
            );
        }
        Ok(())
    }

    /// Says so if another engine runs than that of the run.
    pub(super) fn tell_engine(&self, embedder: &OnnxEmbedder) {
        let (found, wanted) = (embedder.report().to_string(), &self.description.engine);
        if found != *wanted {
            tell(format_args!("note: the run used {wanted}, this is {found}, so the last digits may differ"));
        }
    }

    /// The gallery that was searched, and no other.
    pub(super) fn gallery(&self) -> anyhow::Result<GalleryDirectory> {
        let path = &self.inputs.gallery;
        let stored = GalleryDirectory::read(path)?;
        let found = (stored.manifest.vectors_file.sha256, stored.manifest.items_file.sha256);
        if found != (self.description.gallery_vectors, self.description.gallery_items) {
            bail!("gallery `{}` has changed since the run, wanted the one that was searched", path.display());
        }
        Ok(stored)
    }

    /// The encoder that was run, and no other.
    pub(super) fn encoder(&self, engine: &EngineArgs) -> anyhow::Result<OnnxEmbedder> {
        let Inputs { model, contract, .. } = &self.inputs;
        let embedder = engine.open(model, contract.as_deref())?;
        for (what, found, wanted) in [
            ("the encoder", &embedder.facts().hash, &self.description.model),
            ("the encoder's contract", &embedder.contract().hash(), &self.description.contract),
        ] {
            if found != wanted {
                bail!("{what} of `{}` has changed since the run: {found}, wanted {wanted}", model.display());
            }
        }
        Ok(embedder)
    }

    /// Rows of the gallery that a query did not see.
    pub(super) fn excluded(&self, identity: &str) -> &[usize] {
        self.inputs.excluded.get(identity).map_or(&[], Vec::as_slice)
    }
}

/// The certificate that was asked for, if the run has it.
pub(super) fn certificate_of(
    run: &RunDirectory,
    wanted: Option<CertificateName>,
) -> anyhow::Result<CertificateName> {
    let names = run.table.certificates();
    let usual =
        || names.iter().copied().find(|&name| name == CertificateName::HalfSpace).or(names.first().copied());
    let name = wanted.or_else(usual).context("the run has no certificates")?;
    if !names.contains(&name) {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        bail!("the run has no certificate {name}, wanted one of {}", names.join(", "));
    }
    Ok(name)
}

/// A picture as the encoder takes it.
pub(super) fn pixels_of(record: &Record, embedder: &OnnxEmbedder) -> anyhow::Result<Vec<f32>> {
    let contract = embedder.contract();
    let picture = record.read(&PictureLimits::default())?;
    let prepared = contract.preparation().apply(&record.identity, &picture)?;
    Ok(input_values(contract, &record.identity, prepared)?)
}
