//! Tables of certificates.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use retrievalguard::Sigma;
use retrievalguard::binomial;
use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard_encoder::run::{ArraysDescription, RUN_FORMAT, RunCommand, TableDescription};
use retrievalguard_encoder::table::{
    Cell, FilePixels, PlainAnswer, ResultRow, ResultTable, StoredTable, Unverified, WrongItem,
};

use crate::errors::{raised, refused};
use crate::parameters;

/// What one certificate says of every query.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Column {
    certificate: String,
    verdicts: Vec<String>,
    radii: Vec<Option<f64>>,
    samples: Vec<u32>,
}

/// A table by its columns.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Columns {
    /// None without noise.
    sigma: Option<f64>,
    identities: Vec<String>,
    labels: Vec<String>,
    retrieved: Vec<String>,
    retrieved_labels: Vec<String>,
    nearest_wrong: Vec<Option<String>>,
    nearest_wrong_labels: Vec<Option<String>>,
    retrieved_views: Vec<Option<String>>,
    nearest_wrong_views: Vec<Option<String>>,
    plain_retrieved: Vec<Option<String>>,
    plain_retrieved_labels: Vec<Option<String>>,
    file_scales: Vec<Option<f64>>,
    file_roundings: Vec<Option<f64>>,
    certificates: Vec<Column>,
    /// JSON of what the run was made with.
    run: Option<String>,
}

impl Columns {
    pub(crate) fn new(table: &ResultTable, run: Option<String>) -> Self {
        let rows = table.rows();
        let text = |field: fn(&ResultRow) -> &str| rows.iter().map(|row| field(row).to_owned()).collect();
        let wrong = |field: fn(&WrongItem) -> &str| {
            rows.iter().map(|row| row.nearest_wrong.as_ref().map(|item| field(item).to_owned())).collect()
        };
        let column = |&name: &CertificateName| {
            let cells = || rows.iter().map(move |row| row.certificates[&name]);
            let described = || cells().map(|cell| parameters::verdict(cell.verdict));
            Column {
                certificate: name.as_str().to_owned(),
                verdicts: described().map(|(verdict, _)| verdict.to_owned()).collect(),
                radii: described().map(|(_, radius)| radius).collect(),
                samples: cells().map(|cell| cell.samples).collect(),
            }
        };
        Self {
            sigma: table.sigma().map(Sigma::get),
            identities: text(|row| &row.identity),
            labels: text(|row| &row.label),
            retrieved: text(|row| &row.retrieved),
            retrieved_labels: text(|row| &row.retrieved_label),
            nearest_wrong: wrong(|item| &item.identity),
            nearest_wrong_labels: wrong(|item| &item.label),
            retrieved_views: rows.iter().map(|row| row.retrieved_view.clone()).collect(),
            nearest_wrong_views: rows.iter().map(|row| row.nearest_wrong.as_ref()?.view.clone()).collect(),
            plain_retrieved: rows.iter().map(|row| Some(row.plain.as_ref()?.retrieved.clone())).collect(),
            plain_retrieved_labels: rows
                .iter()
                .map(|row| Some(row.plain.as_ref()?.retrieved_label.clone()))
                .collect(),
            file_scales: rows.iter().map(|row| row.file.map(|file| file.scale)).collect(),
            file_roundings: rows.iter().map(|row| row.file.map(|file| file.rounding)).collect(),
            certificates: table.certificates().iter().map(column).collect(),
            run,
        }
    }

    fn table(&self) -> PyResult<ResultTable> {
        let rows = self.identities.len();
        let lengths = [self.labels.len(), self.retrieved.len(), self.retrieved_labels.len()];
        let further = [
            self.nearest_wrong.len(),
            self.nearest_wrong_labels.len(),
            self.retrieved_views.len(),
            self.nearest_wrong_views.len(),
            self.plain_retrieved.len(),
            self.plain_retrieved_labels.len(),
            self.file_scales.len(),
            self.file_roundings.len(),
        ];
        let columns = self.certificates.iter();
        let cells =
            columns.flat_map(|column| [column.verdicts.len(), column.radii.len(), column.samples.len()]);
        if lengths.into_iter().chain(further).chain(cells).any(|length| length != rows) {
            return Err(refused(format!("the columns differ in length, wanted {rows} rows in each")));
        }
        let names: Vec<CertificateName> = self
            .certificates
            .iter()
            .map(|column| parameters::certificate(&column.certificate))
            .collect::<PyResult<_>>()?;
        let row = |place: usize| -> PyResult<ResultRow> {
            let mut certificates = BTreeMap::new();
            for (&name, column) in names.iter().zip(&self.certificates) {
                let verdict = verdict(&column.verdicts[place], column.radii[place])?;
                certificates.insert(name, Cell { verdict, samples: column.samples[place] });
            }
            let plain = self.plain_retrieved[place].clone().zip(self.plain_retrieved_labels[place].clone());
            let file = self.file_scales[place].zip(self.file_roundings[place]);
            let wrong = self.nearest_wrong[place].clone().zip(self.nearest_wrong_labels[place].clone());
            Ok(ResultRow {
                identity: self.identities[place].clone(),
                label: self.labels[place].clone(),
                retrieved: self.retrieved[place].clone(),
                retrieved_label: self.retrieved_labels[place].clone(),
                retrieved_view: self.retrieved_views[place].clone(),
                nearest_wrong: wrong.map(|(identity, label)| {
                    let view = self.nearest_wrong_views[place].clone();
                    WrongItem { identity, label, view }
                }),
                plain: plain.map(|(retrieved, retrieved_label)| PlainAnswer { retrieved, retrieved_label }),
                file: file.map(|(scale, rounding)| FilePixels { scale, rounding }),
                certificates,
            })
        };
        let rows = (0..rows).map(row).collect::<PyResult<_>>()?;
        ResultTable::new(self.sigma.map(parameters::sigma).transpose()?, names, rows)
            .map_err(|error| raised(&error))
    }
}

fn verdict(word: &str, radius: Option<f64>) -> PyResult<Verdict> {
    match (word, radius) {
        ("certified", Some(radius)) if radius == f64::INFINITY => {
            Ok(Verdict::Certified { radius: Radius::Unbounded })
        }
        ("certified", Some(radius)) if radius > 0.0 => {
            Ok(Verdict::Certified { radius: Radius::Finite(radius) })
        }
        ("abstained", None) => Ok(Verdict::Abstained),
        ("misretrieved", None) => Ok(Verdict::Misretrieved),
        _ => Err(refused(format!("`{word}` with radius {radius:?} is no verdict"))),
    }
}

/// Reads a table of certificates, Parquet or JSON lines, and holds it against its digest.
#[pyfunction]
pub(crate) fn read_certificates(py: Python<'_>, path: PathBuf, unverified: bool) -> PyResult<Columns> {
    let unverified = if unverified { Unverified::Accept } else { Unverified::Refuse };
    let read = py.detach(|| ResultTable::read(&path, unverified));
    let StoredTable { table, described, .. } = read.map_err(|error| raised(&error))?;
    Ok(Columns::new(&table, described.map(|run| run.to_string())))
}

/// What decided a table of arrays, as JSON.
#[pyfunction]
pub(crate) fn describe_arrays(
    sigma: f64,
    alpha: f64,
    certificates: Vec<String>,
    top_k: usize,
    target_radius: Option<f64>,
) -> PyResult<String> {
    let names = certificates.iter().map(|name| parameters::certificate(name));
    let description = TableDescription::Arrays(ArraysDescription {
        format: RUN_FORMAT,
        command: RunCommand::CertifyArrays,
        tool: env!("CARGO_PKG_VERSION").to_owned(),
        sigma: parameters::sigma(sigma)?,
        alpha: parameters::alpha(alpha)?,
        certificates: names.collect::<PyResult<_>>()?,
        top_k,
        target_radius: target_radius.map(parameters::target_radius).transpose()?,
    });
    Ok(description.to_value().to_string())
}

/// Writes a table of certificates as Parquet, or as JSON lines if the name ends so.
#[pyfunction]
pub(crate) fn write_certificates(py: Python<'_>, path: PathBuf, columns: Columns) -> PyResult<()> {
    let table = columns.table()?;
    let parsed = columns.run.as_ref().map(|run| {
        let value = serde_json::from_str(run).map_err(|error| raised(&error))?;
        TableDescription::parse(&value).map_err(|error| raised(&error))
    });
    let run = parsed.transpose()?;
    let lines = path.extension().is_some_and(|ending| ending == "jsonl");
    py.detach(|| {
        if lines {
            table.write_json_lines_with_record(&path, run.as_ref())
        } else {
            table.write_parquet(&path, run.as_ref())
        }
    })
    .map_err(|error| raised(&error))
}

/// Clopper–Pearson intervals of counts among `queries`, at 95 %.
#[pyfunction]
pub(crate) fn intervals(counts: Vec<u32>, queries: u32) -> PyResult<Vec<(f64, f64)>> {
    counts
        .into_iter()
        .map(|count| {
            let ends = binomial::interval(count, queries, 0.05).map_err(|error| raised(&error))?;
            Ok((ends.0.get(), ends.1.get()))
        })
        .collect()
}
