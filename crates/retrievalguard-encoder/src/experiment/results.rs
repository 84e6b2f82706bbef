//! Tidy results: one row per query and setting.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::evaluation::{EvaluationError, Guarantee, Summary};
use retrievalguard::storage::atomic::{AtomicFile, WriteError};
use retrievalguard::{Alpha, ParameterError, Sigma};

use super::config::Factor;
use crate::table::TableError;
use crate::table::columns::{self, Column};

/// Why results could not be summed up or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// A setting has no queries.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// A failure probability is out of its range.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The table cannot be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The encoder's name.
    pub encoder: String,
    /// Length of its embeddings.
    pub dimension: usize,
    /// Noise level.
    pub sigma: Sigma,
    /// Certifying samples.
    pub samples: u32,
    /// Failure probability.
    pub alpha: Alpha,
    /// The certificate.
    pub certificate: CertificateName,
}

impl Setting {
    /// Its value of a factor, as figures show it.
    pub fn value(&self, factor: Factor) -> String {
        match factor {
            Factor::Encoder => self.encoder.clone(),
            Factor::Dimension => self.dimension.to_string(),
            Factor::Sigma => self.sigma.to_string(),
            Factor::Samples => self.samples.to_string(),
            Factor::Alpha => self.alpha.to_string(),
            Factor::Certificate => self.certificate.to_string(),
        }
    }
}

/// One query under one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct TidyRow {
    /// Which of the settings.
    pub setting: usize,
    /// Name of the query.
    pub query: String,
    /// What was proved.
    pub verdict: Verdict,
}

/// Everything an experiment found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// The settings, in the order of the sweep.
    pub settings: Vec<Setting>,
    /// The rows, settings in order and queries in order within them.
    pub rows: Vec<TidyRow>,
}

impl Results {
    /// What each setting amounts to.
    pub fn summaries(&self) -> Result<Vec<Summary>, ResultsError> {
        let mut verdicts: BTreeMap<usize, Vec<Verdict>> = BTreeMap::new();
        for row in &self.rows {
            verdicts.entry(row.setting).or_default().push(row.verdict);
        }
        let none = Vec::new();
        self.settings
            .iter()
            .enumerate()
            .map(|(place, setting)| {
                let verdicts = verdicts.get(&place).unwrap_or(&none);
                Ok(Summary::new(verdicts, Guarantee::PerQuery { alpha: setting.alpha })?)
            })
            .collect()
    }

    /// Writes the rows as Parquet, `metadata` into the file's key-value pairs.
    pub fn write_parquet(&self, path: &Path, metadata: &[(String, String)]) -> Result<(), ResultsError> {
        let setting = |row: &TidyRow| &self.settings[row.setting];
        let number = |field: fn(&Setting) -> f64| {
            Column::Number(self.rows.iter().map(|row| field(setting(row))).collect())
        };
        let count = |field: fn(&Setting) -> i64| {
            Column::Count(self.rows.iter().map(|row| field(setting(row))).collect())
        };
        let word = |verdict: Verdict| match verdict {
            Verdict::Certified { .. } => "certified",
            Verdict::Abstained => "abstained",
            Verdict::Misretrieved => "misretrieved",
        };
        let radius = |row: &TidyRow| row.verdict.radius();
        let columns = vec![
            (
                "encoder".to_owned(),
                Column::Text(self.rows.iter().map(|row| setting(row).encoder.as_str()).collect()),
            ),
            ("dimension".to_owned(), count(|setting| setting.dimension as i64)),
            ("sigma".to_owned(), number(|setting| setting.sigma.get())),
            ("samples".to_owned(), count(|setting| i64::from(setting.samples))),
            ("alpha".to_owned(), number(|setting| setting.alpha.get())),
            (
                "certificate".to_owned(),
                Column::Text(self.rows.iter().map(|row| setting(row).certificate.as_str()).collect()),
            ),
            ("query".to_owned(), Column::Text(self.rows.iter().map(|row| row.query.as_str()).collect())),
            ("verdict".to_owned(), Column::Text(self.rows.iter().map(|row| word(row.verdict)).collect())),
            (
                "radius".to_owned(),
                Column::OptionalNumber(
                    self.rows
                        .iter()
                        .map(|row| radius(row).map(Radius::get).filter(|radius| radius.is_finite()))
                        .collect(),
                ),
            ),
            (
                "unbounded".to_owned(),
                Column::Flag(self.rows.iter().map(|row| radius(row) == Some(Radius::Unbounded)).collect()),
            ),
        ];
        Ok(columns::write(path, self.rows.len(), &columns, metadata)?)
    }

    /// Writes one line per setting: its factors, shares of the queries, and the mean radius.
    pub fn write_summary(&self, path: &Path) -> Result<(), ResultsError> {
        let summaries = self.summaries()?;
        let mut file = AtomicFile::create(path)?;
        let failed = |error| WriteError::new(path, error);
        writeln!(
            file,
            "encoder,dimension,sigma,samples,alpha,certificate,queries,recall,certified,rejected,misretrieved,\
             mean_radius"
        )
        .map_err(failed)?;
        for (setting, summary) in self.settings.iter().zip(summaries) {
            let Setting { encoder, dimension, sigma, samples, alpha, certificate } = setting;
            writeln!(
                file,
                "{},{dimension},{sigma},{samples},{alpha},{certificate},{},{:.4},{:.4},{:.4},{:.4},{}",
                quoted(encoder),
                summary.queries,
                summary.recall.share,
                summary.certified.share,
                summary.rejected.share,
                summary.misretrieved.share,
                Radius::Finite(summary.average_finite_radius)
            )
            .map_err(failed)?;
        }
        Ok(file.commit()?)
    }
}

/// A field of a CSV file, in quotation marks where it needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
