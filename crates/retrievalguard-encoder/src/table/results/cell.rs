//! A certificate's cell as tables show it, and what it may not contradict.

use std::borrow::Cow;
use std::path::Path;

use retrievalguard::Sigma;
use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use serde::{Deserialize, Serialize};

use super::{Cell, FilePixels};
use crate::table::TableError;

/// A verdict in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum VerdictWord {
    Certified,
    Abstained,
    Misretrieved,
}

impl VerdictWord {
    pub(super) fn as_str(self) -> &'static str {
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
pub(super) struct FlatCell {
    pub(super) verdict: VerdictWord,
    pub(super) radius: Option<f64>,
    /// Missing where there is no noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) radius_in_sigmas: Option<Option<f64>>,
    pub(super) radius_in_8bit_steps: Option<f64>,
    /// Missing where the picture did not come from a file, or nothing is left of the radius there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) file_radius: Option<f64>,
    pub(super) unbounded: bool,
    pub(super) samples: u32,
}

impl FlatCell {
    pub(super) fn new(cell: Cell, sigma: Option<Sigma>, file: Option<FilePixels>) -> Self {
        let verdict = match cell.verdict {
            Verdict::Certified { .. } => VerdictWord::Certified,
            Verdict::Abstained => VerdictWord::Abstained,
            Verdict::Misretrieved => VerdictWord::Misretrieved,
        };
        let radius = cell.verdict.radius();
        let finite = radius.filter(|&radius| radius != Radius::Unbounded);
        let in_file = |radius| file.and_then(|file| file.radius(radius));
        Self {
            verdict,
            radius: finite.map(Radius::get),
            radius_in_sigmas: sigma.map(|sigma| finite.map(|radius| radius.in_sigmas(sigma))),
            radius_in_8bit_steps: finite.map(Radius::in_8bit_steps),
            file_radius: finite.and_then(in_file).map(Radius::get),
            unbounded: radius == Some(Radius::Unbounded),
            samples: cell.samples,
        }
    }

    /// Whether numbers that follow from the radius are those that stand beside it.
    pub(super) fn agree(&self, beside: &DerivedRadii) -> Result<(), CellFault> {
        for (field, found, wanted) in [
            ("radius_in_sigmas", beside.in_sigmas, self.radius_in_sigmas.flatten()),
            ("radius_in_8bit_steps", beside.in_8bit_steps, self.radius_in_8bit_steps),
            ("file_radius", beside.in_file, self.file_radius),
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

/// Numbers of a cell that follow from its radius, as they were found.
pub(super) struct DerivedRadii {
    pub(super) in_sigmas: Option<f64>,
    pub(super) in_8bit_steps: Option<f64>,
    pub(super) in_file: Option<f64>,
}

/// A cell that contradicts itself.
#[derive(Debug, PartialEq)]
pub(super) struct CellFault {
    field: &'static str,
    found: String,
    wanted: Cow<'static, str>,
}

impl CellFault {
    pub(super) fn at(self, path: &Path, row: usize, name: CertificateName) -> TableError {
        TableError::value(path, row, &column_name(name, self.field), self.found, &self.wanted)
    }
}

pub(super) fn parse_verdict(word: &str, radius: Option<f64>, unbounded: bool) -> Result<Verdict, CellFault> {
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

/// Name of a certificate's column.
pub(in crate::table) fn column_name(certificate: CertificateName, field: &str) -> String {
    format!("{}_{field}", certificate.as_str().replace('-', "_"))
}
