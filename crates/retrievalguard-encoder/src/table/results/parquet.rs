//! Tables in Parquet: a column for every field of every certificate.

use std::collections::BTreeMap;
use std::path::Path;

use retrievalguard::certificate::CertificateName;

use super::cell::{FlatCell, column_name, parse_verdict};
use super::{Cell, DIGEST_KEY, RUN_KEY, ResultRow, ResultTable, WrongItem, common_sigma};
use crate::run::TableDescription;
use crate::table::TableError;
use crate::table::columns::{self, Column, Table};

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
            ("sigma".to_owned(), Column::Number(vec![self.sigma.get(); self.rows.len()])),
        ];
        let retrieved_views = self.rows.iter().map(|row| row.retrieved_view.as_deref()).collect();
        let wrong_views = self.rows.iter().map(|row| wrong(row)?.view.as_deref()).collect();
        for (name, column) in [(RETRIEVED_VIEW, retrieved_views), (WRONG_VIEW, wrong_views)] {
            let column: Vec<Option<&str>> = column;
            if column.iter().any(Option::is_some) {
                columns.push((name.to_owned(), Column::OptionalText(column)));
            }
        }
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

    /// The columns and the metadata of a Parquet file, also after another program wrote it again.
    pub(super) fn parse_parquet(path: &Path) -> Result<(Self, Vec<(String, String)>), TableError> {
        let table = Table::open(path)?;
        let (identities, labels) = (table.text("identity")?, table.text("label")?);
        let (retrieved, retrieved_labels) = (table.text("retrieved")?, table.text("retrieved_label")?);
        let sigma = common_sigma(path, &table.numbers("sigma")?)?;
        let views = |name: &str| {
            if table.has(name) { table.optional_text(name) } else { Ok(vec![None; table.rows()]) }
        };
        let retrieved_views = views(RETRIEVED_VIEW)?;
        let mut wrong = vec![None; identities.len()];
        if table.has("nearest_wrong") {
            let labels = table.text("nearest_wrong_label")?;
            let names = table.text("nearest_wrong")?.into_iter().zip(labels).zip(views(WRONG_VIEW)?);
            for (place, ((identity, label), view)) in wrong.iter_mut().zip(names) {
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
                    certificates,
                }
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
}
