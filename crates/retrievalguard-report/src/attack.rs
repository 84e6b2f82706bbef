//! What attacks on a run found: `attack.json`.

use std::collections::BTreeMap;

use retrievalguard::attack::{Mode, Pixels, Point, PointOutcome, Rates};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::{SealError, unseal};
use serde::Deserialize;
use serde_json::Value;

/// A run's attacks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Attack {
    /// The table of certificates that was attacked; old files do not name it.
    pub table: Option<Digest>,
    /// The certificate whose radii were attacked.
    pub certificate: String,
    /// Failure probability of a certificate; none if it holds always.
    pub alpha: Option<f64>,
    /// Probability that a perturbation is wrongly judged to break the smoothed retriever; none where breaks are seen.
    pub judge_alpha: Option<f64>,
    /// Sizes of the perturbations, as multiples of a query's certified radius.
    pub factors: Vec<f64>,
    /// What the attack knew.
    pub mode: Mode,
    /// Which values it could give to pixels, if the file says so.
    pub pixels: Option<Pixels>,
    /// Where the encoder without smoothing searched, if the file says so.
    pub plain_gallery: Option<PlainGallery>,
    /// What the attack was allowed.
    pub budget: BTreeMap<String, Value>,
    /// What it found.
    pub queries: Vec<AttackedQuery>,
}

/// Where the encoder without smoothing searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlainGallery {
    /// Among the gallery's pictures, embedded without noise.
    Clean,
    /// Among the stored vectors, which are smoothed.
    Stored,
}

/// One query under attack.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct AttackedQuery {
    /// Name of the query.
    pub identity: String,
    /// Its certified radius.
    pub radius: f64,
    /// Attacks on the smoothed retriever.
    pub smoothed: Vec<Point>,
    /// Norm of the smallest perturbation that broke the smoothed retriever.
    pub smallest_break: Option<f64>,
    /// Whether the plain retriever was right before the attack.
    pub plain_right: bool,
    /// Attacks on the encoder without smoothing.
    pub plain: Vec<Point>,
    /// Norm of the smallest perturbation that broke it.
    pub plain_smallest_break: Option<f64>,
}

/// Results of some perturbations.
fn rates<'a>(points: impl Iterator<Item = &'a Point>) -> Rates {
    let mut rates = Rates::default();
    for point in points {
        match point.outcome {
            PointOutcome::Held => rates.held += 1,
            PointOutcome::Broken => rates.broken += 1,
            PointOutcome::Undecided => rates.undecided += 1,
        }
    }
    rates
}

/// Why the text of `attack.json` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttackFileError {
    /// It is not what was written.
    #[error("the results of the attack failed verification")]
    Seal(#[from] SealError),
    /// It is intact but says something else.
    #[error("it does not hold results of an attack")]
    Json(#[from] serde_json::Error),
}

impl Attack {
    /// Reads the text of `attack.json` and checks it against its own digest.
    pub fn parse(text: &[u8]) -> Result<Self, AttackFileError> {
        Ok(serde_json::from_value(unseal(text)?)?)
    }

    /// Results of the attacks on the smoothed retriever at a factor.
    pub fn smoothed(&self, factor: f64) -> Rates {
        let points = self.queries.iter().flat_map(|query| &query.smoothed);
        rates(points.filter(|point| same(point.factor, factor)))
    }

    /// Results of the attacks on the plain retriever at a factor, where it was right before.
    pub fn plain(&self, factor: f64) -> Rates {
        let right = self.queries.iter().filter(|query| query.plain_right);
        rates(right.flat_map(|query| &query.plain).filter(|point| same(point.factor, factor)))
    }

    /// Queries that the plain retriever had right, and how many of them were broken at any size.
    pub fn plain_totals(&self) -> (usize, usize) {
        let broken =
            |query: &&AttackedQuery| query.plain.iter().any(|point| point.outcome == PointOutcome::Broken);
        let right = || self.queries.iter().filter(|query| query.plain_right);
        (right().count(), right().filter(broken).count())
    }

    /// How many certified radii were broken from inside.
    pub fn broken_inside(&self) -> usize {
        self.queries.iter().filter(|query| query.broken_inside()).count()
    }
}

impl AttackedQuery {
    /// What was found against the retriever that was certified: the plain one where there is no noise.
    pub fn certified(&self) -> (&[Point], Option<f64>) {
        if self.smoothed.is_empty() && self.smallest_break.is_none() {
            (&self.plain, self.plain_smallest_break)
        } else {
            (&self.smoothed, self.smallest_break)
        }
    }

    /// Whether anything below the radius broke the certified retriever, whatever its factor is called.
    pub fn broken_inside(&self) -> bool {
        let (points, smallest) = self.certified();
        let broken = points.iter().filter(|point| point.outcome == PointOutcome::Broken);
        broken.map(|point| point.norm).chain(smallest).any(|norm| norm < self.radius)
    }
}

/// Factors come from one list, so they differ by more than rounding or not at all.
fn same(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * other.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"certificate": "half-space", "alpha": 0.01, "judge_alpha": 0.001, "factors": [0.5, 2],
        "mode": "white-box", "budget": {"steps": 20, "restarts": 2},
        "queries": [
          {"identity": "a", "radius": 0.3, "smallest_break": 0.6, "plain_right": true, "plain_smallest_break": 0.15,
           "smoothed": [{"factor": 0.5, "norm": 0.15, "outcome": "held"}, {"factor": 2, "norm": 0.6, "outcome": "broken"}],
           "plain": [{"factor": 0.5, "norm": 0.15, "outcome": "broken"}]},
          {"identity": "b", "radius": 0.2, "smallest_break": null, "plain_right": false, "plain_smallest_break": null,
           "smoothed": [{"factor": 0.5, "norm": 0.1, "outcome": "undecided"}],
           "plain": [{"factor": 0.5, "norm": 0.1, "outcome": "broken"}]}]}"#;

    #[test]
    fn a_query_that_was_never_right_is_no_success_of_the_attack() {
        let attack: Attack = serde_json::from_str(TEXT).unwrap();
        assert_eq!(attack.plain(0.5), Rates { broken: 1, ..Rates::default() });
        assert_eq!(attack.smoothed(0.5), Rates { held: 1, undecided: 1, broken: 0 });
        assert_eq!((attack.smoothed(2.0).broken, attack.broken_inside()), (1, 0));
    }

    #[test]
    fn a_break_below_the_radius_is_counted() {
        for (found, instead, inside) in [
            ("\"held\"", "\"broken\"", 1),
            // A refinement lies between the factors and may be all that is inside.
            ("\"smallest_break\": 0.6", "\"smallest_break\": 0.29", 1),
            ("\"smallest_break\": 0.6", "\"smallest_break\": 0.3", 0),
            // The norm decides, not what the size is called.
            ("\"norm\": 0.6", "\"norm\": 0.29", 1),
            ("\"factor\": 2, \"norm\": 0.6", "\"factor\": 0.5, \"norm\": 0.6", 0),
        ] {
            let text = TEXT.replacen(found, instead, 1);
            assert_ne!(text, TEXT, "{found}");
            assert_eq!(serde_json::from_str::<Attack>(&text).unwrap().broken_inside(), inside, "{instead}");
        }
    }
}
