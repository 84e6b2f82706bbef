//! What earlier versions left, brought to the present format.
//!
//! A table of format 1 carries no digest. The journal of its run does: each record has a checksum, and the table was built
//! from them alone. So the table is checked against the journal, row by row, and written again with its digest. Identities and
//! labels are not in the journal: they are checked against the data set if it is still the one of the run, and are taken from
//! the table as they are otherwise.
//!
//! `inputs.json` is removed last. While it is there an upgrade that was cut short is finished by the same command.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Journal, JournalError};
use retrievalguard::storage::lock::{FolderLock, LockError};
use retrievalguard::storage::manifest::{GALLERY_FORMAT, GalleryDirectory, QuerySide, StorageError};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Alpha, Components, NormBound, SampleCount, Seed, Sigma, TargetRadius};
use serde::Deserialize;
use serde_json::Value;

use retrievalguard::certificate::{CertificateName, Verdict};

use super::resumable::Entry;
use super::run_files::{
    DEEPER_FILE, Inputs, LINES_FILE, OLD_PLACES_FILE, RunError, RunPlaces, StoredRun, TABLE_FILE,
    write_deeper,
};
use super::{PipelineError, QueryAnswer};
use crate::dataset::{Boxes, DatasetOptions, Format, Record, data_set_digest, open};
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
        "`{}` is missing, so the table cannot be verified; wanted it back, or --unverified",
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
    /// Somebody else writes to the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// What an earlier attempt has written cannot be used.
    #[error(transparent)]
    Run(#[from] Box<RunError>),
    /// The result could not be written.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

/// What was upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgraded {
    /// A gallery: its files were checked against its manifest, which is sealed now.
    Gallery,
    /// A run whose table agrees with its journal; nothing told whether its identities and labels were changed.
    Run,
    /// The same, and its identities and labels agree with the data set.
    WholeRun,
    /// A run whose table was taken as it is.
    UnverifiedRun,
}

/// Brings a gallery or a run of format 1 to the present one.
///
/// A run needs the gallery that it searched, which is where it was or at `gallery`.
pub fn upgrade(
    folder: &Path,
    gallery: Option<&Path>,
    unverified: Unverified,
) -> Result<Upgraded, UpgradeError> {
    if !folder.is_dir() {
        return Err(UpgradeError::Nothing { path: folder.to_owned() });
    }
    let _lock = FolderLock::take(folder)?;
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
    places: RunPlaces,
    excluded: std::collections::BTreeMap<String, Vec<usize>>,
    pictures: Digest,
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, UpgradeError> {
    let text = fs::read(path).map_err(|source| UpgradeError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| UpgradeError::Json { path: path.to_owned(), source })
}

fn differs<T>(
    path: &Path,
    what: impl Into<String>,
    found: &dyn ToString,
    wanted: &dyn ToString,
) -> Result<T, UpgradeError> {
    let (path, what) = (path.to_owned(), what.into());
    Err(UpgradeError::Differs { path, what, found: found.to_string(), wanted: wanted.to_string() })
}

fn upgrade_run(
    folder: &Path,
    gallery: Option<&Path>,
    unverified: Unverified,
) -> Result<Upgraded, UpgradeError> {
    let (path, record_path) = (folder.join(TABLE_FILE), folder.join(TableRecord::FILE));
    if TableRecord::read(&record_path)?.is_some() {
        // All that an earlier attempt has left to do is to remove the old places.
        let run = StoredRun::open(folder).map_err(Box::new)?;
        let checked = JournalCheck::by_journal(&run.table, None, folder, unverified)?;
        let labels = labels_agree(&run.table, &run.inputs.places, run.inputs.pictures)?;
        remove_old_places(folder)?;
        return Ok(checked.upgraded(labels));
    }
    let StoredTable { table, run: rewritten, described: in_table, verified } =
        ResultTable::read(&path, Unverified::Accept)?;
    let described: Value = read_json(&record_path)?;
    if !verified {
        let in_table = in_table.ok_or_else(|| UpgradeError::Nothing { path: folder.to_owned() })?;
        if described != in_table {
            return differs(&record_path, "the description", &described, &in_table);
        }
    }
    let old = OldDescription::deserialize(&described)
        .map_err(|source| UpgradeError::Json { path: record_path.clone(), source })?;
    let inputs: OldInputs = read_json(&folder.join(OLD_PLACES_FILE))?;
    let checked = JournalCheck::by_journal(&table, Some(&described), folder, unverified)?;

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
    let side = QuerySide {
        sigma: Some(old.sigma),
        dimension: stored.manifest.dimension,
        norm_bound: stored.manifest.provenance.norm_bound,
        components: Components::Any,
        model: Some(old.model),
        contract: Some(old.contract),
    };
    stored.manifest.check_against(&gallery.display().to_string(), &side).map_err(PipelineError::from)?;
    let description = old.into_current(&stored.into())?;
    let run = TableDescription::Run(Box::new(description.clone()));
    // Before anything is overwritten: what could not be read again afterwards would be lost.
    table.check_plausible(&run, &path)?;
    if let Some(rewritten) = rewritten.filter(|_| verified)
        && rewritten.to_value() != run.to_value()
    {
        return differs(&path, "the description", &rewritten.to_value(), &run.to_value());
    }
    let labels = labels_agree(&table, &inputs.places, inputs.pictures)?;
    let places = RunPlaces { gallery: absolute(gallery)?, ..inputs.places };
    let (excluded, pictures) = (inputs.excluded, inputs.pictures);
    let inputs = Inputs { run: description.digest(), places, excluded, pictures };
    rewrite(folder, &table, &checked, &run, &inputs)?;
    remove_old_places(folder)?;
    Ok(checked.upgraded(labels))
}

fn remove_old_places(folder: &Path) -> Result<(), UpgradeError> {
    let path = folder.join(OLD_PLACES_FILE);
    fs::remove_file(&path).map_err(|source| UpgradeError::Read { path, source })
}

/// Whether identities and labels are known to be those of the data set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Labels {
    Agree,
    Unknown,
}

/// Checks identities and labels against the data set, where it is still there and still the one of the run.
fn labels_agree(table: &ResultTable, places: &RunPlaces, pictures: Digest) -> Result<Labels, UpgradeError> {
    let RunPlaces { queries, format, boxes, .. } = places;
    let (Ok(format), Some(boxes)) = (format.parse::<Format>(), Boxes::named(boxes)) else {
        return Ok(Labels::Unknown);
    };
    let Ok(data) = open(queries, format, DatasetOptions { boxes }) else { return Ok(Labels::Unknown) };
    let rows = table.rows();
    let known: HashMap<&str, &Record> =
        data.records.iter().map(|record| (record.identity.as_str(), record)).collect();
    let named: Vec<Record> =
        rows.iter().filter_map(|row| known.get(row.identity.as_str()).copied().cloned()).collect();
    // All of them, so that a changed identity shows, or those that the table names.
    for records in [&data.records, &named] {
        if records.len() != rows.len() || data_set_digest(records) != pictures {
            continue;
        }
        for (number, (record, row)) in records.iter().zip(rows).enumerate() {
            let (found, wanted) = ((&row.identity, &row.label), (&record.identity, &record.label));
            if found != wanted {
                let what = format!("for query {number} in the table");
                return differs(queries, what, &format!("{wanted:?}"), &format!("{found:?} as in the table"));
            }
        }
        return Ok(Labels::Agree);
    }
    Ok(Labels::Unknown)
}

fn absolute(path: &Path) -> Result<PathBuf, UpgradeError> {
    std::path::absolute(path).map_err(|source| UpgradeError::Read { path: path.to_owned(), source })
}

impl OldDescription {
    fn into_current(mut self, stored: &StoredGallery) -> Result<RunDescription, StorageError> {
        // In the order of the table.
        self.certificates.sort_unstable();
        self.certificates.dedup();
        let norm_bound: NormBound = stored.provenance().norm_bound;
        let procedure = Procedure {
            sigma: self.sigma,
            alpha: self.alpha,
            pilot: self.pilot,
            samples: self.samples,
            certificates: self.certificates,
            top_k: self.top_k,
            target_radius: self.target_radius,
            replan_bets: false,
        };
        let excess =
            if self.project { retrievalguard::Excess::Project } else { retrievalguard::Excess::Refuse };
        Ok(RunDescription {
            format: RUN_FORMAT,
            command: RunCommand::Certify,
            tool: self.tool,
            encoder: EncoderDescription {
                model: self.model,
                quantised: self.quantised,
                contract: self.contract,
                // Queries and gallery agreed in both, or there would be no run.
                dimension: stored.gallery().dimension(),
                norm_bound,
                components: Components::Any,
                engine: self.engine,
                encoder_check: None,
            },
            queries: self.queries,
            leave_one_out: self.leave_one_out,
            excluded_rows: self.excluded_rows,
            gallery: GalleryDescription::new(stored)?,
            method: Method::Smoothed(Smoothed::new(procedure, self.seed, excess)),
        })
    }
}

/// What is known of a table from the journal of its run.
enum JournalCheck {
    /// Every row is what the journal says; so are these verdicts for Recall@2 and deeper.
    Confirmed(Vec<Vec<Verdict>>),
    /// There is no journal, and the table is taken as it is.
    Missing,
}

impl JournalCheck {
    /// Checks every row against what the journal says of its query.
    fn by_journal(
        table: &ResultTable,
        described: Option<&Value>,
        folder: &Path,
        unverified: Unverified,
    ) -> Result<Self, UpgradeError> {
        match hold_against_journal(table, described, &folder.join(JOURNAL_FILE)) {
            Ok(deeper) => Ok(Self::Confirmed(deeper)),
            Err(UpgradeError::NoJournal { .. }) if unverified == Unverified::Accept => Ok(Self::Missing),
            Err(error) => Err(error),
        }
    }

    fn upgraded(&self, labels: Labels) -> Upgraded {
        match (self, labels) {
            (Self::Confirmed(_), Labels::Agree) => Upgraded::WholeRun,
            (Self::Confirmed(_), Labels::Unknown) => Upgraded::Run,
            (Self::Missing, _) => Upgraded::UnverifiedRun,
        }
    }
}

/// The verdicts for Recall@2 and deeper, if every row is what the journal says of its query.
///
/// `described` is the run that the journal must be of; it is none where the old description has been replaced.
fn hold_against_journal(
    table: &ResultTable,
    described: Option<&Value>,
    path: &Path,
) -> Result<Vec<Vec<Verdict>>, UpgradeError> {
    let Some(contents) = Journal::read(path)? else {
        return Err(UpgradeError::NoJournal { path: path.to_owned() });
    };
    if let Some(described) = described.filter(|&described| contents.description != *described) {
        return differs(path, "the description", &contents.description, described);
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
        let wanted = format!("{} as in the table", table.rows().len());
        return differs(path, "a number of results of", &answers.len(), &wanted);
    }
    let mut deeper = Vec::with_capacity(answers.len());
    for (number, (answer, row)) in answers.into_iter().zip(table.rows()).enumerate() {
        let (found, further) = answer.into_row(&row.identity, &row.label);
        let found = found.settled();
        if found != *row {
            let what = format!("for row {number} (`{}`)", row.identity);
            return differs(path, what, &format!("{found:?}"), &format!("{row:?} as in the table"));
        }
        deeper.push(further);
    }
    Ok(deeper)
}

/// Writes the tables that are there again, and the record of all of them.
fn rewrite(
    folder: &Path,
    table: &ResultTable,
    checked: &JournalCheck,
    run: &TableDescription,
    inputs: &Inputs,
) -> Result<(), UpgradeError> {
    table.write_parquet(&folder.join(TABLE_FILE), Some(run))?;
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
    // Nothing but the journal tells these verdicts; without it the file stays as it is, outside the record.
    if let JournalCheck::Confirmed(deeper) = checked
        && folder.join(DEEPER_FILE).exists()
    {
        write_deeper(folder, table, deeper)?;
        names.push(DEEPER_FILE.to_owned());
    }
    inputs.write(folder)?;
    let record = TableRecord::new(table, Some(run));
    let record = record.with_files(folder, names.iter().map(String::as_str))?;
    Ok(record.write(&folder.join(TableRecord::FILE))?)
}
