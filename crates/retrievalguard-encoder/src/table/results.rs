//! One row per query: what was retrieved, and what each certificate says about it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use retrievalguard::Sigma;
use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::storage::atomic::{AtomicFile, WriteError};
use retrievalguard::storage::digest::{Digest, canonical_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::columns::{self, Column, Table};
use super::record::{TableRecord, Unverified};
use super::{TableError, plausible};
use crate::run::TableDescription;

/// Key of the run's description in the metadata of a Parquet file.
const RUN_KEY: &str = "retrievalguard.run";

/// Key of the table's digest in the metadata of a Parquet file.
const DIGEST_KEY: &str = "retrievalguard.table";

/// Longest line of JSON that is read: names, and a handful of numbers per certificate.
const LINE_LIMIT: u64 = 1 << 20;

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
    /// The nearest item that would be a wrong answer; unknown in tables of other programs.
    pub nearest_wrong: Option<WrongItem>,
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
///     nearest_wrong: None,
///     certificates: BTreeMap::from([(CertificateName::HalfSpace, cell)]),
/// };
/// let table = ResultTable::new(Sigma::new(0.25)?, vec![CertificateName::HalfSpace], vec![row])?;
/// table.write_parquet(&path, None)?;
/// assert_eq!(ResultTable::read(&path, Unverified::Refuse)?.table, table);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ResultTable {
    sigma: Sigma,
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
    /// The same as it stands in the file, which may be of an earlier format if the table is not verified.
    pub described: Option<Value>,
    /// Whether it is what was written; otherwise nobody knows.
    pub verified: bool,
}

impl ResultTable {
    /// Takes rows that all have exactly these certificates.
    pub fn new(
        sigma: Sigma,
        mut certificates: Vec<CertificateName>,
        rows: Vec<ResultRow>,
    ) -> Result<Self, TableError> {
        let rows: Vec<ResultRow> = rows.into_iter().map(ResultRow::settled).collect();
        certificates.sort_unstable();
        certificates.dedup();
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

    /// Noise level of the queries.
    pub fn sigma(&self) -> Sigma {
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

    /// Holds the numbers against what this run could have found.
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

    /// Writes Parquet: for each certificate the columns `…_verdict`, `…_radius`, `…_radius_in_sigmas`,
    /// `…_radius_in_8bit_steps`, `…_unbounded` and `…_samples`; the description and the [digest](Self::digest) go into the
    /// file's key-value pairs.
    pub fn write_parquet(&self, path: &Path, run: Option<&TableDescription>) -> Result<(), TableError> {
        fn wrong(row: &ResultRow) -> Option<&WrongItem> {
            row.nearest_wrong.as_ref()
        }
        let text = |field: fn(&ResultRow) -> &str| Column::Text(self.rows.iter().map(field).collect());
        let mut columns = vec![
            ("identity".to_owned(), text(|row| &row.identity)),
            ("label".to_owned(), text(|row| &row.label)),
            ("retrieved".to_owned(), text(|row| &row.retrieved)),
            ("retrieved_label".to_owned(), text(|row| &row.retrieved_label)),
            ("nearest_wrong".to_owned(), text(|row| wrong(row).map_or("", |item| &item.identity))),
            ("nearest_wrong_label".to_owned(), text(|row| wrong(row).map_or("", |item| &item.label))),
            ("sigma".to_owned(), Column::Number(vec![self.sigma.get(); self.rows.len()])),
        ];
        for &name in &self.certificates {
            let flat: Vec<FlatCell> =
                self.rows.iter().map(|row| FlatCell::new(row.certificates[&name], self.sigma)).collect();
            let number = |field: fn(&FlatCell) -> Option<f64>| {
                Column::OptionalNumber(flat.iter().map(field).collect())
            };
            let named = |field| column_name(name, field);
            columns.push((
                named("verdict"),
                Column::Text(flat.iter().map(|cell| cell.verdict.as_str()).collect()),
            ));
            columns.push((named("radius"), number(|cell| cell.radius)));
            columns.push((named("radius_in_sigmas"), number(|cell| cell.radius_in_sigmas)));
            columns.push((named("radius_in_8bit_steps"), number(|cell| cell.radius_in_8bit_steps)));
            columns
                .push((named("unbounded"), Column::Flag(flat.iter().map(|cell| cell.unbounded).collect())));
            columns.push((
                named("samples"),
                Column::Count(flat.iter().map(|cell| i64::from(cell.samples)).collect()),
            ));
        }
        let mut metadata = Vec::new();
        if let Some(run) = run {
            metadata.push((RUN_KEY.to_owned(), run.to_value().to_string()));
        }
        metadata.push((DIGEST_KEY.to_owned(), self.digest(run).to_string()));
        columns::write(path, self.rows.len(), &columns, &metadata)
    }

    /// Reads a table, Parquet or JSON lines by the end of its name, and holds it against the digest that was written with
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

    /// The columns and the metadata of a Parquet file, also after another program wrote it again.
    fn parse_parquet(path: &Path) -> Result<(Self, Vec<(String, String)>), TableError> {
        let table = Table::open(path)?;
        let (identities, labels) = (table.text("identity")?, table.text("label")?);
        let (retrieved, retrieved_labels) = (table.text("retrieved")?, table.text("retrieved_label")?);
        let sigma = common_sigma(path, &table.numbers("sigma")?)?;
        let mut wrong = vec![None; identities.len()];
        if table.has("nearest_wrong") {
            let labels = table.text("nearest_wrong_label")?;
            for ((place, identity), label) in wrong.iter_mut().zip(table.text("nearest_wrong")?).zip(labels) {
                *place = (!identity.is_empty()).then_some(WrongItem { identity, label });
            }
        }
        let mut rows: Vec<ResultRow> = identities
            .into_iter()
            .zip(labels)
            .zip(retrieved.into_iter().zip(retrieved_labels))
            .zip(wrong)
            .map(|(((identity, label), (retrieved, retrieved_label)), nearest_wrong)| ResultRow {
                identity,
                label,
                retrieved,
                retrieved_label,
                nearest_wrong,
                certificates: BTreeMap::new(),
            })
            .collect();
        let certificates: Vec<CertificateName> = CertificateName::ALL
            .into_iter()
            .filter(|&name| table.has(&column_name(name, "verdict")))
            .collect();
        for &name in &certificates {
            let verdicts = table.text(&column_name(name, "verdict"))?;
            let radii = table.optional_numbers(&column_name(name, "radius"))?;
            let sigmas = table.optional_numbers(&column_name(name, "radius_in_sigmas"))?;
            let steps = table.optional_numbers(&column_name(name, "radius_in_8bit_steps"))?;
            let unbounded = table.flags(&column_name(name, "unbounded"))?;
            let samples = table.counts(&column_name(name, "samples"))?;
            for (row, entry) in rows.iter_mut().enumerate() {
                let field = |field| column_name(name, field);
                let samples = u32::try_from(samples[row]).map_err(|_| {
                    TableError::value(path, row, &field("samples"), samples[row], "a count below 2^32")
                })?;
                let verdict = parse_verdict(&verdicts[row], radii[row], unbounded[row])
                    .map_err(|fault| fault.at(path, row, name))?;
                let cell = Cell { verdict, samples };
                let derived = FlatCell::new(cell, sigma);
                derived.agree(sigmas[row], steps[row]).map_err(|fault| fault.at(path, row, name))?;
                entry.certificates.insert(name, cell);
            }
        }
        Ok((Self::new(sigma, certificates, rows)?, table.metadata()))
    }

    /// Writes one JSON object per line; a [record](TableRecord) beside them says what they are.
    pub fn write_json_lines(&self, path: &Path) -> Result<(), TableError> {
        let mut file = AtomicFile::create(path)?;
        self.json_lines_to(&mut file).map_err(|error| WriteError::new(path, error))?;
        Ok(file.commit()?)
    }

    /// The bytes of [`ResultTable::write_json_lines`] to any writer.
    pub fn json_lines_to(&self, writer: &mut impl Write) -> std::io::Result<()> {
        for row in &self.rows {
            serde_json::to_writer(&mut *writer, &JsonRow::new(row, self.sigma))?;
            writer.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Writes JSON lines and, beside them, the record by which they are read again.
    pub fn write_json_lines_with_record(
        &self,
        path: &Path,
        run: Option<&TableDescription>,
    ) -> Result<(), TableError> {
        self.write_json_lines(path)?;
        TableRecord::new(self, run).write_beside(path)
    }

    /// The rows of [`ResultTable::write_json_lines`].
    fn parse_json_lines(path: &Path) -> Result<Self, TableError> {
        let failed = |source| TableError::Read { path: path.to_owned(), source };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let (mut rows, mut sigmas) = (Vec::new(), Vec::new());
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = reader.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut line).map_err(failed)?;
            if length == 0 {
                break;
            }
            let row = rows.len();
            let parsed: JsonRow = serde_json::from_slice(&line)
                .map_err(|error| TableError::value(path, row, "the line", error, "a row of certificates"))?;
            sigmas.push(parsed.sigma);
            rows.push(parsed.into_row(path, row)?);
        }
        let sigma = common_sigma(path, &sigmas)?;
        let certificates =
            rows.first().map(|row| row.certificates.keys().copied().collect()).unwrap_or_default();
        Self::new(sigma, certificates, rows)
    }

    /// Writes the table of one certificate as locuslab/smoothing does, so that its scripts can read it.
    ///
    /// An abstention is `-1` there. `time` is always 0: the table depends on nothing but its inputs.
    pub fn write_tsv(&self, path: &Path, certificate: CertificateName) -> Result<(), TableError> {
        let mut file = AtomicFile::create(path)?;
        self.tsv_to(&mut file, certificate).map_err(|error| WriteError::new(path, error))?;
        Ok(file.commit()?)
    }

    /// The bytes of [`ResultTable::write_tsv`] to any writer; no rows if the certificate was not requested.
    pub fn tsv_to(&self, writer: &mut impl Write, certificate: CertificateName) -> std::io::Result<()> {
        writer.write_all(b"idx\tlabel\tpredict\tradius\tcorrect\ttime\n")?;
        for (number, row) in self.rows.iter().enumerate() {
            let Some(cell) = row.certificates.get(&certificate) else { continue };
            let label = one_field(&row.label);
            match cell.verdict {
                Verdict::Certified { radius } => {
                    writeln!(writer, "{number}\t{label}\t{label}\t{}\t1\t0", radius.get())?;
                }
                Verdict::Abstained => writeln!(writer, "{number}\t{label}\t-1\t0\t0\t0")?,
                Verdict::Misretrieved => {
                    writeln!(writer, "{number}\t{label}\t{}\t0\t0\t0", one_field(&row.retrieved_label))?;
                }
            }
        }
        Ok(())
    }
}

fn listed<'a>(names: impl IntoIterator<Item = &'a CertificateName>) -> String {
    let names: Vec<&str> = names.into_iter().map(|name| name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A text without the signs that separate fields and lines.
fn one_field(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

pub(super) fn column_name(certificate: CertificateName, field: &str) -> String {
    format!("{}_{field}", certificate.as_str().replace('-', "_"))
}

/// The noise level that every row has.
fn common_sigma(path: &Path, sigmas: &[f64]) -> Result<Sigma, TableError> {
    let &first = sigmas.first().ok_or_else(|| TableError::Empty { path: path.to_owned() })?;
    let sigma = Sigma::new(first)
        .map_err(|_| TableError::value(path, 0, "sigma", first, "a number between 1e-9 and 1e9"))?;
    match sigmas.iter().position(|&other| other.to_bits() != first.to_bits()) {
        None => Ok(sigma),
        Some(row) => Err(TableError::value(path, row, "sigma", sigmas[row], &format!("{first} as in row 0"))),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VerdictWord {
    Certified,
    Abstained,
    Misretrieved,
}

impl VerdictWord {
    fn as_str(self) -> &'static str {
        match self {
            Self::Certified => "certified",
            Self::Abstained => "abstained",
            Self::Misretrieved => "misretrieved",
        }
    }
}

/// A cell as tables show it: a verdict in a word, and numbers that may be missing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlatCell {
    verdict: VerdictWord,
    radius: Option<f64>,
    radius_in_sigmas: Option<f64>,
    radius_in_8bit_steps: Option<f64>,
    unbounded: bool,
    samples: u32,
}

impl FlatCell {
    fn new(cell: Cell, sigma: Sigma) -> Self {
        let verdict = match cell.verdict {
            Verdict::Certified { .. } => VerdictWord::Certified,
            Verdict::Abstained => VerdictWord::Abstained,
            Verdict::Misretrieved => VerdictWord::Misretrieved,
        };
        let radius = cell.verdict.radius();
        let finite = radius.filter(|&radius| radius != Radius::Unbounded);
        Self {
            verdict,
            radius: finite.map(Radius::get),
            radius_in_sigmas: finite.map(|radius| radius.in_sigmas(sigma)),
            radius_in_8bit_steps: finite.map(Radius::in_8bit_steps),
            unbounded: radius == Some(Radius::Unbounded),
            samples: cell.samples,
        }
    }
}

impl FlatCell {
    /// Whether numbers that follow from the radius are those that stand beside it.
    fn agree(&self, sigmas: Option<f64>, steps: Option<f64>) -> Result<(), CellFault> {
        for (field, found, wanted) in [
            ("radius_in_sigmas", sigmas, self.radius_in_sigmas),
            ("radius_in_8bit_steps", steps, self.radius_in_8bit_steps),
        ] {
            // pandas writes a missing number as NaN.
            let found = found.filter(|number| !number.is_nan());
            if found.map(f64::to_bits) != wanted.map(f64::to_bits) {
                let shown = |number: Option<f64>| number.map_or("missing".to_owned(), |it| it.to_string());
                let wanted = format!("{} by the radius beside it", shown(wanted));
                return Err(CellFault { field, found: shown(found), wanted: wanted.into() });
            }
        }
        Ok(())
    }
}

/// A cell that contradicts itself.
#[derive(Debug, PartialEq)]
struct CellFault {
    field: &'static str,
    found: String,
    wanted: Cow<'static, str>,
}

impl CellFault {
    fn at(self, path: &Path, row: usize, name: CertificateName) -> TableError {
        TableError::value(path, row, &column_name(name, self.field), self.found, &self.wanted)
    }
}

fn parse_verdict(word: &str, radius: Option<f64>, unbounded: bool) -> Result<Verdict, CellFault> {
    let fault = |field, found: &dyn ToString, wanted: &'static str| CellFault {
        field,
        found: found.to_string(),
        wanted: wanted.into(),
    };
    // pandas writes a missing number as NaN.
    let radius = radius.filter(|radius| !radius.is_nan());
    match (word, radius, unbounded) {
        ("certified", None, true) => Ok(Verdict::Certified { radius: Radius::Unbounded }),
        ("certified", Some(radius), false) if radius.is_finite() && radius > 0.0 => {
            Ok(Verdict::Certified { radius: Radius::Finite(radius) })
        }
        ("certified", Some(radius), _) => {
            Err(fault("radius", &radius, "a finite number above 0, or none with the unbounded flag"))
        }
        ("certified", None, false) => Err(fault("radius", &"missing", "a number for a certified query")),
        ("abstained", None, false) => Ok(Verdict::Abstained),
        ("misretrieved", None, false) => Ok(Verdict::Misretrieved),
        ("abstained" | "misretrieved", Some(radius), _) => {
            Err(fault("radius", &radius, "none for a query that was not certified"))
        }
        ("abstained" | "misretrieved", None, true) => {
            Err(fault("unbounded", &true, "false for a query that was not certified"))
        }
        (word, ..) => Err(fault("verdict", &format!("`{word}`"), "certified, abstained or misretrieved")),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRow {
    identity: String,
    label: String,
    retrieved: String,
    retrieved_label: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nearest_wrong: Option<WrongItem>,
    sigma: f64,
    certificates: BTreeMap<CertificateName, FlatCell>,
}

impl JsonRow {
    fn new(row: &ResultRow, sigma: Sigma) -> Self {
        Self {
            identity: row.identity.clone(),
            label: row.label.clone(),
            retrieved: row.retrieved.clone(),
            retrieved_label: row.retrieved_label.clone(),
            nearest_wrong: row.nearest_wrong.clone(),
            sigma: sigma.get(),
            certificates: row
                .certificates
                .iter()
                .map(|(&name, &cell)| (name, FlatCell::new(cell, sigma)))
                .collect(),
        }
    }

    fn into_row(self, path: &Path, row: usize) -> Result<ResultRow, TableError> {
        let sigma = common_sigma(path, &[self.sigma])?;
        let mut certificates = BTreeMap::new();
        for (name, cell) in self.certificates {
            let verdict = parse_verdict(cell.verdict.as_str(), cell.radius, cell.unbounded)
                .map_err(|fault| fault.at(path, row, name))?;
            let read = Cell { verdict, samples: cell.samples };
            let derived = FlatCell::new(read, sigma);
            derived
                .agree(cell.radius_in_sigmas, cell.radius_in_8bit_steps)
                .map_err(|fault| fault.at(path, row, name))?;
            certificates.insert(name, read);
        }
        Ok(ResultRow {
            identity: self.identity,
            label: self.label,
            retrieved: self.retrieved,
            retrieved_label: self.retrieved_label,
            nearest_wrong: self.nearest_wrong,
            certificates,
        })
    }
}
