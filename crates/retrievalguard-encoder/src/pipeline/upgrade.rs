//! What earlier versions left, brought to the present format.
//!
//! A table of format 1 carries no digest. The journal of its run does: each record has a checksum, and the table was built
//! from them alone. So the table is held against the journal, row by row, and written again with its digest. Identities and
//! labels are not in the journal and are taken from the table as they are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Journal, JournalError};
use retrievalguard::storage::manifest::{GALLERY_FORMAT, GalleryDirectory, StorageError};
use retrievalguard::{Alpha, NormBound, SampleCount, Seed, Sigma, TargetRadius};
use serde::Deserialize;
use serde_json::Value;

use retrievalguard::certificate::CertificateName;

use super::run_files::{DEEPER_FILE, Inputs, LINES_FILE, OLD_PLACES_FILE, Places, TABLE_FILE};
use super::{Entry, PipelineError, QueryAnswer};
use crate::run::{
    EncoderDescription, GalleryDescription, Method, Procedure, RUN_FORMAT, RunCommand, RunDescription,
    Smoothed, TableDescription,
};
use crate::table::{ResultTable, StoredTable, TableError, TableRecord, Unverified};

/// The journal of a run, from which its table was built.
const JOURNAL_FILE: &str = "certify.journal";

/// Why something cannot be upgraded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeError {
    /// There is nothing of an earlier version.
    #[error("`{}` is neither a gallery nor a run of an earlier version", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file is not one of the earlier version.
    #[error("`{}` is not what an earlier version wrote", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// Two files that belong together differ.
    #[error("`{}` has {what} {found}, wanted {wanted}", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
        /// What it has.
        found: String,
        /// What the other one has.
        wanted: String,
    },
    /// Nothing tells whether the table was changed.
    #[error(
        "`{}` is not there, so nothing tells whether the table was changed; wanted it back, or --unverified",
        path.display()
    )]
    NoJournal {
        /// The journal.
        path: PathBuf,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The table cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The gallery cannot be used.
    #[error(transparent)]
    Gallery(#[from] StorageError),
    /// The result could not be written.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

/// What was upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgraded {
    /// A gallery: its files were held against its manifest, which is sealed now.
    Gallery,
    /// A run whose table agrees with its journal.
    Run,
    /// A run whose table was taken as it is.
    UnverifiedRun,
}

/// Brings a gallery or a run of format 1 to the present one.
///
/// A run needs the gallery that it searched, which lies where it lay or at `gallery`.
pub fn upgrade(
    folder: &Path,
    gallery: Option<&Path>,
    unverified: Unverified,
) -> Result<Upgraded, UpgradeError> {
    if folder.join(OLD_PLACES_FILE).is_file() && folder.join(TABLE_FILE).is_file() {
        return upgrade_run(folder, gallery, unverified);
    }
    match GalleryDirectory::read(folder) {
        Ok(stored) if stored.manifest.format < GALLERY_FORMAT => {
            let provenance = stored.manifest.provenance.clone();
            GalleryDirectory::write(folder, &stored.gallery, &stored.paths, provenance)?;
            Ok(Upgraded::Gallery)
        }
        Ok(_) | Err(StorageError::NoManifest { .. }) => {
            Err(UpgradeError::Nothing { path: folder.to_owned() })
        }
        Err(error) => Err(error.into()),
    }
}

/// A description of format 1.
#[derive(Deserialize)]
struct OldDescription {
    tool: String,
    sigma: Sigma,
    alpha: Alpha,
    pilot: SampleCount,
    samples: SampleCount,
    certificates: Vec<CertificateName>,
    top_k: usize,
    target_radius: Option<TargetRadius>,
    seed: Seed,
    leave_one_out: usize,
    excluded_rows: Digest,
    project: bool,
    model: Digest,
    quantised: bool,
    contract: Digest,
    engine: String,
    queries: Digest,
    gallery_vectors: Digest,
    gallery_items: Digest,
}

/// `inputs.json` of format 1.
#[derive(Deserialize)]
struct OldInputs {
    #[serde(flatten)]
    places: Places,
    excluded: std::collections::BTreeMap<String, Vec<usize>>,
    pictures: Digest,
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, UpgradeError> {
    let text = fs::read(path).map_err(|source| UpgradeError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| UpgradeError::Json { path: path.to_owned(), source })
}

fn upgrade_run(
    folder: &Path,
    gallery: Option<&Path>,
    unverified: Unverified,
) -> Result<Upgraded, UpgradeError> {
    let path = folder.join(TABLE_FILE);
    let StoredTable { table, described, .. } = ResultTable::read(&path, Unverified::Accept)?;
    let described = described.ok_or_else(|| UpgradeError::Nothing { path: folder.to_owned() })?;
    let record_path = folder.join(TableRecord::FILE);
    let recorded: Value = read_json(&record_path)?;
    let differs = |path: &Path, what: &str, found: &dyn ToString, wanted: &dyn ToString| {
        let (path, what) = (path.to_owned(), what.to_owned());
        Err(UpgradeError::Differs { path, what, found: found.to_string(), wanted: wanted.to_string() })
    };
    if recorded != described {
        return differs(&record_path, "the description", &recorded, &described);
    }
    let old = OldDescription::deserialize(&described)
        .map_err(|source| UpgradeError::Json { path: record_path.clone(), source })?;
    let inputs: OldInputs = read_json(&folder.join(OLD_PLACES_FILE))?;
    let upgraded = match hold_against_journal(&table, &described, &folder.join(JOURNAL_FILE)) {
        Ok(()) => Upgraded::Run,
        Err(UpgradeError::NoJournal { .. }) if unverified == Unverified::Accept => Upgraded::UnverifiedRun,
        Err(error) => return Err(error),
    };

    let gallery = gallery.unwrap_or(&inputs.places.gallery);
    let stored = GalleryDirectory::read(gallery)?;
    for (what, found, wanted) in [
        ("vectors with sha256", stored.manifest.vectors_file.sha256, old.gallery_vectors),
        ("items with sha256", stored.manifest.items_file.sha256, old.gallery_items),
    ] {
        if found != wanted {
            return differs(gallery, what, &found, &wanted);
        }
    }
    let description = old.into_current(&stored);
    let places = Places { gallery: absolute(gallery)?, ..inputs.places };
    let (excluded, pictures) = (inputs.excluded, inputs.pictures);
    let inputs = Inputs { run: description.digest(), places, excluded, pictures };
    rewrite(folder, &table, description, &inputs)?;
    let old_places = folder.join(OLD_PLACES_FILE);
    fs::remove_file(&old_places).map_err(|source| UpgradeError::Read { path: old_places, source })?;
    Ok(upgraded)
}

fn absolute(path: &Path) -> Result<PathBuf, UpgradeError> {
    std::path::absolute(path).map_err(|source| UpgradeError::Read { path: path.to_owned(), source })
}

impl OldDescription {
    fn into_current(self, stored: &GalleryDirectory) -> RunDescription {
        let norm_bound: NormBound = stored.manifest.provenance.norm_bound;
        let procedure = Procedure {
            sigma: self.sigma,
            alpha: self.alpha,
            pilot: self.pilot,
            samples: self.samples,
            certificates: self.certificates,
            top_k: self.top_k,
            target_radius: self.target_radius,
        };
        let excess =
            if self.project { retrievalguard::Excess::Project } else { retrievalguard::Excess::Refuse };
        RunDescription {
            format: RUN_FORMAT,
            command: RunCommand::Certify,
            tool: self.tool,
            encoder: EncoderDescription {
                model: self.model,
                quantised: self.quantised,
                contract: self.contract,
                // Queries and gallery agreed in both, or there would be no run.
                dimension: stored.manifest.dimension,
                norm_bound,
                engine: self.engine,
                encoder_check: None,
            },
            queries: self.queries,
            leave_one_out: self.leave_one_out,
            excluded_rows: self.excluded_rows,
            gallery: GalleryDescription::new(stored),
            method: Method::Smoothed(Smoothed::new(procedure, self.seed, excess)),
        }
    }
}

/// Whether every row is what the journal says of its query.
fn hold_against_journal(table: &ResultTable, described: &Value, path: &Path) -> Result<(), UpgradeError> {
    let Some(contents) = Journal::read(path)? else {
        return Err(UpgradeError::NoJournal { path: path.to_owned() });
    };
    let differs = |what: String, found: String, wanted: String| {
        Err(UpgradeError::Differs { path: path.to_owned(), what, found, wanted })
    };
    if contents.description != *described {
        return differs("the description".into(), contents.description.to_string(), described.to_string());
    }
    let mut answers = std::collections::BTreeMap::new();
    for record in &contents.records {
        let entry: Entry<QueryAnswer> = serde_json::from_slice(record)
            .map_err(|source| UpgradeError::Json { path: path.to_owned(), source })?;
        match entry {
            Entry::Done { position, result } => answers.insert(position, Some(result)),
            Entry::Skipped { position, .. } => answers.insert(position, None),
        };
    }
    let answers: Vec<QueryAnswer> = answers.into_values().flatten().collect();
    if answers.len() != table.rows().len() {
        let (found, wanted) = (answers.len().to_string(), table.rows().len().to_string());
        return differs("a number of results of".into(), found, format!("{wanted} as in the table"));
    }
    for (number, (answer, row)) in answers.into_iter().zip(table.rows()).enumerate() {
        let (found, _) = answer.into_row(&row.identity, &row.label);
        if found != *row {
            return differs(
                format!("for row {number} (`{}`)", row.identity),
                format!("{found:?}"),
                format!("{row:?} as in the table"),
            );
        }
    }
    Ok(())
}

/// Writes the tables that are there again, and the record of all of them.
fn rewrite(
    folder: &Path,
    table: &ResultTable,
    description: RunDescription,
    inputs: &Inputs,
) -> Result<(), UpgradeError> {
    let run = TableDescription::Run(Box::new(description));
    table.write_parquet(&folder.join(TABLE_FILE), Some(&run))?;
    let mut names = vec![TABLE_FILE.to_owned()];
    if folder.join(LINES_FILE).exists() {
        table.write_json_lines(&folder.join(LINES_FILE))?;
        names.push(LINES_FILE.to_owned());
    }
    for &name in table.certificates() {
        let file = format!("{name}.tsv");
        if folder.join(&file).exists() {
            table.write_tsv(&folder.join(&file), name)?;
            names.push(file);
        }
    }
    if folder.join(DEEPER_FILE).exists() {
        names.push(DEEPER_FILE.to_owned());
    }
    inputs.write(folder)?;
    let record = TableRecord::new(table, Some(&run));
    let record = record.with_files(folder, names.iter().map(String::as_str))?;
    Ok(record.write(&folder.join(TableRecord::FILE))?)
}
