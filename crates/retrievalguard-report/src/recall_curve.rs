//! Certified recall over the radius as a curve, and how each certificate looks, the same in every figure.

use retrievalguard::certificate::{CertificateName, Radius};
use retrievalguard::evaluation::{Share, Summary};
use retrievalguard_encoder::table::ResultTable;

use crate::chart::Dash;

/// Words for a radius on an axis.
pub(crate) const RADIUS: &str = "radius r (l2, pixels in [0, 1])";

/// Words for certified recall on an axis.
pub(crate) const SHARE: &str = "share of all queries with a certified radius above r";

/// Steps of a curve that one can tell apart.
const MOST_STEPS: usize = 600;

/// Colour and dash of a certificate.
pub(crate) fn look(name: CertificateName) -> (usize, Dash) {
    match name {
        CertificateName::Paper => (1, Dash::Solid),
        CertificateName::PaperLinear => (4, Dash::Dashed),
        CertificateName::PaperRepaired => (3, Dash::Dotted),
        CertificateName::PaperFrozen => (6, Dash::Solid),
        CertificateName::HalfSpaceMean => (5, Dash::Dashed),
        CertificateName::HalfSpace => (0, Dash::Solid),
        CertificateName::Vote => (2, Dash::Solid),
        CertificateName::Pairwise => (7, Dash::Solid),
        CertificateName::Lipschitz => (3, Dash::Solid),
        CertificateName::LipschitzMargin => (3, Dash::Dashed),
    }
}

/// All certified radii of a table that are finite, ascending.
pub(crate) fn finite_radii(table: &ResultTable, name: CertificateName) -> Vec<f64> {
    let mut radii: Vec<f64> = table
        .rows()
        .iter()
        .filter_map(|row| row.certificates[&name].verdict.radius())
        .map(Radius::get)
        .filter(|radius| radius.is_finite())
        .collect();
    radii.sort_by(f64::total_cmp);
    radii
}

/// Recall@1(r) from zero to `end`: each share holds from its radius until the next.
pub(crate) fn recall_steps(summary: &Summary, radii: &[f64], end: f64) -> Vec<(f64, Share)> {
    steps(radii, end).into_iter().map(|(from, to)| (from, summary.certified_recall(to))).collect()
}

/// Where a curve jumps, and the radius whose recall is shown from there on.
///
/// With few radii these are the same. Many are thinned out, and the recall shown is that at the end of a step, so
/// that the curve is never above the truth.
fn steps(radii: &[f64], end: f64) -> Vec<(f64, f64)> {
    let every = radii.len().div_ceil(MOST_STEPS).max(1);
    let mut places: Vec<f64> = std::iter::once(0.0).chain(radii.iter().copied().step_by(every)).collect();
    places.extend(radii.last());
    places.push(end);
    places.dedup();
    if every == 1 {
        return places.iter().map(|&place| (place, place)).collect();
    }
    let next = places.iter().copied().skip(1).chain([end]);
    places.iter().copied().zip(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_of_many_radii_is_never_above_the_truth() {
        let radii: Vec<f64> = (1..=5_000).map(|place| f64::from(place) / 5_000.0).collect();
        let steps = steps(&radii, 1.1);
        assert!(steps.len() < 700, "{}", steps.len());
        for &(from, to) in &steps {
            assert!(to >= from, "the recall at {to} is shown from {from}");
        }
        assert_eq!(steps.last(), Some(&(1.1, 1.1)));
    }

    #[test]
    fn a_curve_of_few_radii_jumps_at_each() {
        assert_eq!(steps(&[0.1, 0.1, 0.4], 0.5), [0.0, 0.1, 0.4, 0.5].map(|place| (place, place)));
        assert_eq!(steps(&[], 1.0), [(0.0, 0.0), (1.0, 1.0)]);
    }
}
