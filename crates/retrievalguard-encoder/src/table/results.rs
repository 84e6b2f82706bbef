//! One row per query: what was retrieved, and what each certificate says about it.

use std::collections::BTreeMap;
use std::path::Path;

use retrievalguard::Sigma;
use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::storage::digest::{Digest, canonical_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{TableRecord, Unverified};
use super::{TableError, plausible};
use crate::run::TableDescription;

mod cell;
mod lines;
mod parquet;

pub(super) use cell::column_name;

/// Key of the run's description in the metadata of a Parquet file.
const RUN_KEY: &str = "retrievalguard.run";

/// Key of the table's digest in the metadata of a Parquet file.
const DIGEST_KEY: &str = "retrievalguard.table";

/// What one certificate says about one query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The verdict, with the radius if there is one.
    pub verdict: Verdict,
    /// Certifying samples that were used.
    pub samples: u32,
}

/// A stored item with another label than the query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongItem {
    /// Its name.
    pub identity: String,
    /// Its label.
    pub label: String,
    /// Which of its views is nearest, if items have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<String>,
}

/// What the encoder without noise retrieves for the same query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainAnswer {
    /// Name of the retrieved item.
    pub retrieved: String,
    /// Its label.
    pub retrieved_label: String,
}

/// How far changes of a file's decoded pixels move what the encoder gets (theory, section 15).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePixels {
    /// Upper bound on the norm of the resizing.
    pub scale: f64,
    /// Upper bound on what rounding adds on the way.
    pub rounding: f64,
}

impl FilePixels {
    /// A certified radius in the pixels of the file, rounded down; none if rounding alone takes all of it.
    ///
    /// ```text
    /// r_file = (r − rounding)/scale
    /// ```
    pub fn radius(&self, radius: Radius) -> Option<Radius> {
        let Radius::Finite(radius) = radius else { return Some(Radius::Unbounded) };
        let left = ((radius - self.rounding) / self.scale) * (1.0 - 4.0 * f64::EPSILON);
        (left > 0.0 && left.is_finite()).then_some(Radius::Finite(left))
    }

    /// Refuses what no picture has.
    fn check(self) -> Result<Self, (&'static str, f64)> {
        let Self { scale, rounding } = self;
        if !(scale.is_finite() && scale > 0.0) {
            return Err(("file_scale", scale));
        }
        if !(rounding.is_finite() && rounding >= 0.0) {
            return Err(("file_rounding", rounding));
        }
        Ok(self)
    }
}

/// One query.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultRow {
    /// Name of the query.
    pub identity: String,
    /// Label that a retrieval has to have to be right.
    pub label: String,
    /// Name of the retrieved item.
    pub retrieved: String,
    /// Its label.
    pub retrieved_label: String,
    /// Which of its views is nearest, if items have several.
    pub retrieved_view: Option<String>,
    /// The nearest item that would be a wrong answer; unknown in tables of other programs.
    pub nearest_wrong: Option<WrongItem>,
    /// What the encoder without noise retrieves, if the gallery says where its items are without it.
    pub plain: Option<PlainAnswer>,
    /// How radii of the encoder's input become radii of the file, if the picture came from one.
    pub file: Option<FilePixels>,
    /// What every requested certificate says.
    pub certificates: BTreeMap<CertificateName, Cell>,
}

impl ResultRow {
    /// The row as every table holds it: an item without a name is none, since columns of text have no other word for that.
    pub(crate) fn settled(mut self) -> Self {
        self.nearest_wrong = self.nearest_wrong.filter(|item| !item.identity.is_empty());
        self
    }
}

/// The certificates of a run: a pure function of its inputs, so the same run gives the same bytes.
///
/// ```
/// use std::collections::BTreeMap;
/// use retrievalguard::Sigma;
/// use retrievalguard::certificate::{CertificateName, Radius, Verdict};
/// use retrievalguard_encoder::table::{Cell, ResultRow, ResultTable, Unverified};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("certificates.parquet");
/// let cell = Cell { verdict: Verdict::Certified { radius: Radius::Finite(0.5) }, samples: 1000 };
/// let row = ResultRow {
///     identity: "cat-7".into(),
///     label: "cat".into(),
///     retrieved: "cat-1".into(),
///     retrieved_label: "cat".into(),
///     retrieved_view: None,
///     nearest_wrong: None,
///     plain: None,
///     file: None,
///     certificates: BTreeMap::from([(CertificateName::HalfSpace, cell)]),
/// };
/// let table = ResultTable::new(Some(Sigma::new(0.25)?), vec![CertificateName::HalfSpace], vec![row])?;
/// table.write_parquet(&path, None)?;
/// assert_eq!(ResultTable::read(&path, Unverified::Refuse)?.table, table);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ResultTable {
    sigma: Option<Sigma>,
    certificates: Vec<CertificateName>,
    rows: Vec<ResultRow>,
}

/// A table as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTable {
    /// The rows.
    pub table: ResultTable,
    /// What it was made with, if it says so.
    pub run: Option<TableDescription>,
    /// The same as in the file, which may be of an earlier format if the table is not verified.
    pub described: Option<Value>,
    /// Whether it is what was written; otherwise nobody knows.
    pub verified: bool,
}

impl ResultTable {
    /// Takes rows that all have exactly these certificates; certificates from samples have a noise level, others none.
    pub fn new(
        sigma: Option<Sigma>,
        mut certificates: Vec<CertificateName>,
        rows: Vec<ResultRow>,
    ) -> Result<Self, TableError> {
        let rows: Vec<ResultRow> = rows.into_iter().map(ResultRow::settled).collect();
        certificates.sort_unstable();
        certificates.dedup();
        if let Some(name) = certificates.iter().find(|name| name.lipschitz().is_some() == sigma.is_some()) {
            return Err(TableError::Noise { certificate: *name, sigma });
        }
        for (row, entry) in rows.iter().enumerate() {
            if !entry.certificates.keys().eq(&certificates) {
                return Err(TableError::Certificates {
                    row,
                    identity: entry.identity.clone(),
                    found: listed(entry.certificates.keys()),
                    wanted: listed(&certificates),
                });
            }
        }
        Ok(Self { sigma, certificates, rows })
    }

    /// Noise level of the queries; none for certificates that need no noise.
    pub fn sigma(&self) -> Option<Sigma> {
        self.sigma
    }

    /// The certificates of every row, in the order of their names' definition.
    pub fn certificates(&self) -> &[CertificateName] {
        &self.certificates
    }

    /// The rows, in the order of the queries.
    pub fn rows(&self) -> &[ResultRow] {
        &self.rows
    }

    /// Checks the numbers against what this run could have found.
    pub(crate) fn check_plausible(&self, run: &TableDescription, path: &Path) -> Result<(), TableError> {
        plausible::check(self, run, path)
    }

    /// Stands for every row and for what the table was made with.
    ///
    /// SHA-256 of the canonical JSON of the description, or `null`, a line break, and the rows as JSON lines.
    pub fn digest(&self, run: Option<&TableDescription>) -> Digest {
        let run = canonical_json(&run.map_or(Value::Null, TableDescription::to_value));
        let mut bytes = run.into_bytes();
        bytes.push(b'\n');
        self.json_lines_to(&mut bytes).expect("memory takes everything");
        Digest::of_bytes(&bytes)
    }

    /// Reads a table, Parquet or JSON lines by the end of its name, and checks it against the digest that was written with
    /// it, and its numbers against what the run could have found.
    ///
    /// The digest of a Parquet file is in its metadata, that of JSON lines in the record beside them.
    pub fn read(path: &Path, unverified: Unverified) -> Result<StoredTable, TableError> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let (table, described, wanted) = match ending {
            Some("parquet") => {
                let (table, metadata) = Self::parse_parquet(path)?;
                let entry = |wanted: &str| metadata.iter().find(|(key, _)| key == wanted);
                let described = match entry(RUN_KEY) {
                    Some((_, text)) => Some(serde_json::from_str(text).map_err(|error| {
                        TableError::Description { path: path.to_owned(), source: error.into() }
                    })?),
                    None => None,
                };
                let wanted = match entry(DIGEST_KEY) {
                    Some((_, text)) => Some(text.parse().map_err(|_| {
                        TableError::value(path, 0, DIGEST_KEY, text, "64 hexadecimal digits")
                    })?),
                    None => None,
                };
                (table, described, wanted)
            }
            Some("jsonl") => {
                let table = Self::parse_json_lines(path)?;
                match TableRecord::beside(path)? {
                    Some(TableRecord { run, table: digest, .. }) => (table, run, Some(digest)),
                    None => (table, None, None),
                }
            }
            Some(_) | None => return Err(TableError::Ending { path: path.to_owned() }),
        };
        table.held_against(path, described, wanted, unverified)
    }

    /// The table with what was stored beside its rows, if they belong together.
    fn held_against(
        self,
        path: &Path,
        described: Option<Value>,
        wanted: Option<Digest>,
        unverified: Unverified,
    ) -> Result<StoredTable, TableError> {
        let Some(wanted) = wanted else {
            if unverified == Unverified::Refuse {
                return Err(TableError::NoDigest { path: path.to_owned() });
            }
            plausible::check_rows(&self, path)?;
            let run = described.as_ref().and_then(|value| TableDescription::parse(value).ok());
            return Ok(StoredTable { table: self, run, described, verified: false });
        };
        let unusable = |source| TableError::Description { path: path.to_owned(), source };
        let run = described.as_ref().map(TableDescription::parse).transpose().map_err(unusable)?;
        let found = self.digest(run.as_ref());
        if found != wanted {
            return Err(TableError::Changed { path: path.to_owned(), found, wanted });
        }
        match &run {
            Some(run) => plausible::check(&self, run, path)?,
            None => plausible::check_rows(&self, path)?,
        }
        Ok(StoredTable { table: self, run, described, verified: true })
    }
}

fn listed<'a>(names: impl IntoIterator<Item = &'a CertificateName>) -> String {
    let names: Vec<&str> = names.into_iter().map(|name| name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The noise level that every row has, or that none has.
fn common_sigma(path: &Path, sigmas: &[Option<f64>]) -> Result<Option<Sigma>, TableError> {
    let shown = |sigma: Option<f64>| sigma.map_or("missing".to_owned(), |sigma| sigma.to_string());
    let &first = sigmas.first().ok_or_else(|| TableError::Empty { path: path.to_owned() })?;
    let sigma = first
        .map(Sigma::new)
        .transpose()
        .map_err(|_| TableError::value(path, 0, "sigma", shown(first), "a number between 1e-9 and 1e9"))?;
    let bits = |sigma: Option<f64>| sigma.map(f64::to_bits);
    match sigmas.iter().position(|&other| bits(other) != bits(first)) {
        None => Ok(sigma),
        Some(row) => {
            let wanted = format!("{} as in row 0", shown(first));
            Err(TableError::value(path, row, "sigma", shown(sigmas[row]), &wanted))
        }
    }
}

/// How pixels of a row's file matter, held against what a picture can have.
fn checked_file(path: &Path, row: usize, file: FilePixels) -> Result<FilePixels, TableError> {
    file.check().map_err(|(field, found)| {
        TableError::value(path, row, field, found, "a finite number, above zero for a scale")
    })
}
