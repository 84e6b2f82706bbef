//! Tables in Parquet: a column for every field of every certificate.

use std::collections::BTreeMap;
use std::path::Path;

use retrievalguard::certificate::CertificateName;

use super::cell::{DerivedRadii, FlatCell, column_name, parse_verdict};
use super::{
    Cell, DIGEST_KEY, FilePixels, PlainAnswer, RUN_KEY, ResultRow, ResultTable, WrongItem, checked_file,
    common_sigma,
};
use crate::run::TableDescription;
use crate::table::TableError;
use crate::table::columns::{self, Column, Table};

/// Column of the noise level; not there without noise.
const SIGMA: &str = "sigma";

/// Columns of what the encoder without noise retrieves; there only if some row says it.
const PLAIN: &str = "plain_retrieved";
const PLAIN_LABEL: &str = "plain_retrieved_label";

/// Columns of how radii become radii of the file; there only if some picture came from one.
const FILE_SCALE: &str = "file_scale";
const FILE_ROUNDING: &str = "file_rounding";

/// Column of the view by which an item was retrieved; there only if some item has views.
const RETRIEVED_VIEW: &str = "retrieved_view";

/// Column of the nearest wrong item's view; there only if some item has views.
const WRONG_VIEW: &str = "nearest_wrong_view";

impl ResultTable {
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
        ];
        if let Some(sigma) = self.sigma {
            columns.push((SIGMA.to_owned(), Column::Number(vec![sigma.get(); self.rows.len()])));
        }
        let retrieved_views = self.rows.iter().map(|row| row.retrieved_view.as_deref()).collect();
        let wrong_views = self.rows.iter().map(|row| wrong(row)?.view.as_deref()).collect();
        let plain = self.rows.iter().map(|row| Some(row.plain.as_ref()?.retrieved.as_str())).collect();
        let plain_labels =
            self.rows.iter().map(|row| Some(row.plain.as_ref()?.retrieved_label.as_str())).collect();
        for (name, column) in [
            (RETRIEVED_VIEW, retrieved_views),
            (WRONG_VIEW, wrong_views),
            (PLAIN, plain),
            (PLAIN_LABEL, plain_labels),
        ] {
            let column: Vec<Option<&str>> = column;
            if column.iter().any(Option::is_some) {
                columns.push((name.to_owned(), Column::OptionalText(column)));
            }
        }
        let from_files = self.rows.iter().any(|row| row.file.is_some());
        if from_files {
            let number = |field: fn(&FilePixels) -> f64| {
                Column::OptionalNumber(self.rows.iter().map(|row| row.file.as_ref().map(field)).collect())
            };
            columns.push((FILE_SCALE.to_owned(), number(|file| file.scale)));
            columns.push((FILE_ROUNDING.to_owned(), number(|file| file.rounding)));
        }
        for &name in &self.certificates {
            let flat: Vec<FlatCell> = self
                .rows
                .iter()
                .map(|row| FlatCell::new(row.certificates[&name], self.sigma, row.file))
                .collect();
            let number = |field: fn(&FlatCell) -> Option<f64>| {
                Column::OptionalNumber(flat.iter().map(field).collect())
            };
            let named = |field| column_name(name, field);
            columns.push((
                named("verdict"),
                Column::Text(flat.iter().map(|cell| cell.verdict.as_str()).collect()),
            ));
            columns.push((named("radius"), number(|cell| cell.radius)));
            if self.sigma.is_some() {
                columns.push((named("radius_in_sigmas"), number(|cell| cell.radius_in_sigmas.flatten())));
            }
            columns.push((named("radius_in_8bit_steps"), number(|cell| cell.radius_in_8bit_steps)));
            if from_files {
                columns.push((named("file_radius"), number(|cell| cell.file_radius)));
            }
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

    /// The columns and the metadata of a Parquet file, also after another program wrote it again.
    pub(super) fn parse_parquet(path: &Path) -> Result<(Self, Vec<(String, String)>), TableError> {
        let table = Table::open(path)?;
        let (identities, labels) = (table.text("identity")?, table.text("label")?);
        let (retrieved, retrieved_labels) = (table.text("retrieved")?, table.text("retrieved_label")?);
        let names = |name: &str| {
            if table.has(name) { table.optional_text(name) } else { Ok(vec![None; table.rows()]) }
        };
        let numbers = |name: &str| -> Result<Vec<Option<f64>>, TableError> {
            // pandas writes a missing number as NaN.
            let known = |number: Option<f64>| number.filter(|number| !number.is_nan());
            if !table.has(name) {
                return Ok(vec![None; table.rows()]);
            }
            Ok(table.optional_numbers(name)?.into_iter().map(known).collect())
        };
        let sigmas = match table.has(SIGMA) {
            true => table.numbers(SIGMA)?.into_iter().map(Some).collect(),
            false => vec![None; table.rows()],
        };
        let sigma = common_sigma(path, &sigmas)?;
        let retrieved_views = names(RETRIEVED_VIEW)?;
        let mut wrong = vec![None; identities.len()];
        if table.has("nearest_wrong") {
            let labels = table.text("nearest_wrong_label")?;
            let items = table.text("nearest_wrong")?.into_iter().zip(labels).zip(names(WRONG_VIEW)?);
            for (place, ((identity, label), view)) in wrong.iter_mut().zip(items) {
                *place = (!identity.is_empty()).then_some(WrongItem { identity, label, view });
            }
        }
        let mut rows: Vec<ResultRow> = identities
            .into_iter()
            .zip(labels)
            .zip(retrieved.into_iter().zip(retrieved_labels))
            .zip(retrieved_views.into_iter().zip(wrong))
            .map(|(((identity, label), (retrieved, retrieved_label)), (retrieved_view, nearest_wrong))| {
                let certificates = BTreeMap::new();
                ResultRow {
                    identity,
                    label,
                    retrieved,
                    retrieved_label,
                    retrieved_view,
                    nearest_wrong,
                    plain: None,
                    file: None,
                    certificates,
                }
            })
            .collect();
        let plain = names(PLAIN)?.into_iter().zip(names(PLAIN_LABEL)?);
        let files = numbers(FILE_SCALE)?.into_iter().zip(numbers(FILE_ROUNDING)?);
        for (row, (entry, (plain, file))) in rows.iter_mut().zip(plain.zip(files)).enumerate() {
            entry.plain = match plain {
                (Some(retrieved), Some(retrieved_label)) => Some(PlainAnswer { retrieved, retrieved_label }),
                (None, None) => None,
                (Some(_), None) => {
                    return Err(TableError::value(path, row, PLAIN_LABEL, "missing", "the item's label"));
                }
                (None, Some(_)) => {
                    return Err(TableError::value(path, row, PLAIN, "missing", "the item with that label"));
                }
            };
            entry.file = match file {
                (Some(scale), Some(rounding)) => {
                    Some(checked_file(path, row, FilePixels { scale, rounding })?)
                }
                (None, None) => None,
                (Some(_), None) | (None, Some(_)) => {
                    let wanted = "both of file_scale and file_rounding, or neither";
                    return Err(TableError::value(path, row, FILE_SCALE, "one of two", wanted));
                }
            };
        }
        let certificates: Vec<CertificateName> = CertificateName::ALL
            .into_iter()
            .filter(|&name| table.has(&column_name(name, "verdict")))
            .collect();
        for &name in &certificates {
            let verdicts = table.text(&column_name(name, "verdict"))?;
            let radii = table.optional_numbers(&column_name(name, "radius"))?;
            let sigmas = match sigma {
                Some(_) => table.optional_numbers(&column_name(name, "radius_in_sigmas"))?,
                None => numbers(&column_name(name, "radius_in_sigmas"))?,
            };
            let steps = table.optional_numbers(&column_name(name, "radius_in_8bit_steps"))?;
            let in_files = numbers(&column_name(name, "file_radius"))?;
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
                let beside = DerivedRadii {
                    in_sigmas: sigmas[row],
                    in_8bit_steps: steps[row],
                    in_file: in_files[row],
                };
                let derived = FlatCell::new(cell, sigma, entry.file);
                derived.agree(&beside).map_err(|fault| fault.at(path, row, name))?;
                entry.certificates.insert(name, cell);
            }
        }
        Ok((Self::new(sigma, certificates, rows)?, table.metadata()))
    }
}
