//! Tables as lines of text: JSON, and the columns of locuslab/smoothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use retrievalguard::Sigma;
use retrievalguard::certificate::{CertificateName, Verdict};
use retrievalguard::storage::atomic::{AtomicFile, WriteError};
use serde::{Deserialize, Serialize};

use super::cell::{DerivedRadii, FlatCell, parse_verdict};
use super::{Cell, FilePixels, PlainAnswer, ResultRow, ResultTable, WrongItem, checked_file, common_sigma};
use crate::run::TableDescription;
use crate::table::TableError;
use crate::table::record::TableRecord;

/// Longest line of JSON that is read: names, and a handful of numbers per certificate.
const LINE_LIMIT: u64 = 1 << 20;

impl ResultTable {
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
    pub(super) fn parse_json_lines(path: &Path) -> Result<Self, TableError> {
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

/// A text without the signs that separate fields and lines.
fn one_field(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

/// A row as a line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRow {
    identity: String,
    label: String,
    retrieved: String,
    retrieved_label: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retrieved_view: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nearest_wrong: Option<WrongItem>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plain: Option<PlainAnswer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<FilePixels>,
    /// Missing where there is no noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sigma: Option<f64>,
    certificates: BTreeMap<CertificateName, FlatCell>,
}

impl JsonRow {
    fn new(row: &ResultRow, sigma: Option<Sigma>) -> Self {
        Self {
            identity: row.identity.clone(),
            label: row.label.clone(),
            retrieved: row.retrieved.clone(),
            retrieved_label: row.retrieved_label.clone(),
            retrieved_view: row.retrieved_view.clone(),
            nearest_wrong: row.nearest_wrong.clone(),
            plain: row.plain.clone(),
            file: row.file,
            sigma: sigma.map(Sigma::get),
            certificates: row
                .certificates
                .iter()
                .map(|(&name, &cell)| (name, FlatCell::new(cell, sigma, row.file)))
                .collect(),
        }
    }

    fn into_row(self, path: &Path, row: usize) -> Result<ResultRow, TableError> {
        let sigma = common_sigma(path, &[self.sigma])?;
        let file = self.file.map(|file| checked_file(path, row, file)).transpose()?;
        let mut certificates = BTreeMap::new();
        for (name, cell) in self.certificates {
            let verdict = parse_verdict(cell.verdict.as_str(), cell.radius, cell.unbounded)
                .map_err(|fault| fault.at(path, row, name))?;
            let read = Cell { verdict, samples: cell.samples };
            let beside = DerivedRadii {
                in_sigmas: cell.radius_in_sigmas.flatten(),
                in_8bit_steps: cell.radius_in_8bit_steps,
                in_file: cell.file_radius,
            };
            let derived = FlatCell::new(read, sigma, file);
            derived.agree(&beside).map_err(|fault| fault.at(path, row, name))?;
            certificates.insert(name, read);
        }
        Ok(ResultRow {
            identity: self.identity,
            label: self.label,
            retrieved: self.retrieved,
            retrieved_label: self.retrieved_label,
            retrieved_view: self.retrieved_view,
            nearest_wrong: self.nearest_wrong,
            plain: self.plain,
            file,
            certificates,
        })
    }
}
