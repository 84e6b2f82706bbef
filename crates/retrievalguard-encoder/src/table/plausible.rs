//! What no run can have found, whatever a table says.

use std::path::Path;

use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::planner::Ceiling;
use retrievalguard::{SampleCount, Sigma};

use super::results::column_name;
use super::{ResultRow, ResultTable, TableError};
use crate::run::{Method, Retriever, RunDescription, Smoothed, TableDescription};

/// No quantile of the normal distribution that a double can hold lies further from zero.
const FARTHEST_SCORE: f64 = 39.0;

/// What rounding may add to a ceiling.
const ROUNDING: f64 = 1e-6;

/// Checks a table against the run that it says it comes from.
pub(super) fn check(table: &ResultTable, run: &TableDescription, path: &Path) -> Result<(), TableError> {
    check_rows(table, path)?;
    match run {
        TableDescription::Arrays(arrays) => {
            check_header(table, Some(arrays.sigma), &arrays.certificates, path)
        }
        TableDescription::Run(run) => match &run.method {
            Method::Smoothed(smoothed) => {
                let procedure = &smoothed.procedure;
                check_header(table, Some(procedure.sigma), &procedure.certificates, path)?;
                let mut rows = table.rows().iter().enumerate();
                rows.try_for_each(|(number, row)| check_row(row, run, smoothed, (path, number)))
            }
            Method::Lipschitz(bounded) => {
                check_header(table, None, &bounded.certificates, path)?;
                let mut rows = table.rows().iter().enumerate();
                rows.try_for_each(|(number, row)| check_answers(row, (path, number)))
            }
        },
    }
}

/// Checks a table of an unknown run against what any run could find.
pub(super) fn check_rows(table: &ResultTable, path: &Path) -> Result<(), TableError> {
    let farthest = table.sigma().map_or(f64::MAX, |sigma| 2.0 * FARTHEST_SCORE * sigma.get());
    for (number, row) in table.rows().iter().enumerate() {
        for (&name, cell) in &row.certificates {
            let refused = |field, found: &dyn ToString, wanted: &str| {
                Err(TableError::value(path, number, &column_name(name, field), found.to_string(), wanted))
            };
            match cell.verdict {
                Verdict::Certified { .. } if cell.samples == 0 && name.lipschitz().is_none() => {
                    return refused("samples", &0, "at least one for a certified query");
                }
                _ if cell.samples > 0 && name.lipschitz().is_some() => {
                    return refused("samples", &cell.samples, "0 for a certificate that needs none");
                }
                Verdict::Certified { radius: Radius::Finite(radius) } if radius > farthest => {
                    let wanted = format!("at most {farthest}, which no number of samples exceeds");
                    return refused("radius", &radius, &wanted);
                }
                Verdict::Certified { radius: Radius::Unbounded } if !may_be_unbounded(name) => {
                    return refused("unbounded", &true, "false, since this certificate is always finite");
                }
                Verdict::Certified { .. } | Verdict::Abstained | Verdict::Misretrieved => {}
            }
        }
    }
    Ok(())
}

/// Whether a certificate knows negatives that no embedding can be nearest to.
fn may_be_unbounded(name: CertificateName) -> bool {
    matches!(name, CertificateName::HalfSpaceMean | CertificateName::HalfSpace)
}

fn check_header(
    table: &ResultTable,
    sigma: Option<Sigma>,
    certificates: &[CertificateName],
    path: &Path,
) -> Result<(), TableError> {
    if table.sigma() != sigma {
        let shown = |sigma: Option<Sigma>| sigma.map_or("missing".to_owned(), |sigma| sigma.to_string());
        let wanted = format!("{}, that of the run", shown(sigma));
        return Err(TableError::value(path, 0, "sigma", shown(table.sigma()), &wanted));
    }
    if table.certificates() != certificates {
        let named =
            |names: &[CertificateName]| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        let wanted = format!("{}, those of the run", named(certificates));
        return Err(TableError::value(path, 0, "certificates", named(table.certificates()), &wanted));
    }
    Ok(())
}

/// Refuses names that contradict each other, and a certificate of what was not retrieved.
fn check_answers(row: &ResultRow, (path, number): (&Path, usize)) -> Result<(), TableError> {
    if let Some(wrong) = row.nearest_wrong.as_ref().filter(|wrong| wrong.label == row.label) {
        let wanted = "another label than the query's";
        return Err(TableError::value(path, number, "nearest_wrong_label", &wrong.label, wanted));
    }
    for (&name, cell) in &row.certificates {
        let of_nearest = matches!(Retriever::of(name), Retriever::Mean | Retriever::Plain);
        if cell.verdict.radius().is_some() && of_nearest && row.retrieved_label != row.label {
            let wanted = format!("misretrieved, since `{}` was retrieved", row.retrieved_label);
            let field = column_name(name, "verdict");
            return Err(TableError::value(path, number, &field, "certified", &wanted));
        }
    }
    Ok(())
}

fn check_row(
    row: &ResultRow,
    run: &RunDescription,
    smoothed: &Smoothed,
    (path, number): (&Path, usize),
) -> Result<(), TableError> {
    check_answers(row, (path, number))?;
    let procedure = &smoothed.procedure;
    for (&name, cell) in &row.certificates {
        let refused = |field, found: &dyn ToString, wanted: &str| {
            Err(TableError::value(path, number, &column_name(name, field), found.to_string(), wanted))
        };
        if cell.samples > procedure.samples.get() {
            let wanted = format!("at most {}, those of the run", procedure.samples);
            return refused("samples", &cell.samples, &wanted);
        }
        let Verdict::Certified { radius } = cell.verdict else { continue };
        let Radius::Finite(radius) = radius else {
            // Every negative would have to be beaten in the whole ball, by a threshold below -F; none lies below
            // minus the largest norm of an item (docs/theory.md, section 2.1).
            if run.gallery.largest_norm <= run.encoder.norm_bound.get() {
                return refused("unbounded", &true, "false, since every item lies within the norm bound");
            }
            continue;
        };
        // The planner speaks of items within the norm bound; vectors from elsewhere may lie outside.
        if run.gallery.largest_norm > run.encoder.norm_bound.get() * (1.0 + ROUNDING) {
            continue;
        }
        let ceiling = SampleCount::new(u64::from(cell.samples))
            .ok()
            .and_then(|samples| ceiling(run, smoothed).largest_radius(name, samples))
            .filter(|ceiling| !ceiling.is_nan());
        // Where not even the best query can be certified, nothing is.
        let ceiling = ceiling.unwrap_or(0.0);
        if radius > ceiling * (1.0 + ROUNDING) {
            let wanted = format!("at most {ceiling}, the ceiling of {} samples", cell.samples);
            return refused("radius", &radius, &wanted);
        }
    }
    Ok(())
}

/// The planner's ceiling for any query of the run.
fn ceiling(run: &RunDescription, smoothed: &Smoothed) -> Ceiling {
    let procedure = &smoothed.procedure;
    let mut ceiling =
        Ceiling::new(procedure.sigma, procedure.alpha, run.encoder.norm_bound, run.encoder.dimension)
            // The threshold of a half-space is never below the largest norm of an item (docs/theory.md, section 2.1).
            .offset(-run.gallery.largest_norm);
    if let Some(samples) = run.gallery.samples.and_then(|count| SampleCount::new(u64::from(count)).ok()) {
        ceiling = ceiling.gallery_samples(samples);
    }
    ceiling
}
