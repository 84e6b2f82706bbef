//! The encoder without noise beside what is proved: what it retrieves, and what an attack leaves of that.

use std::collections::HashMap;

use maud::{Markup, html};
use retrievalguard::attack::PointOutcome;
use retrievalguard::certificate::round_down;
use retrievalguard::evaluation::Share;
use retrievalguard_encoder::table::PLAIN_UNKNOWN;

use super::{Prepared, in_thousands};
use crate::attack::{Attack, AttackedQuery, PlainGallery};

/// Recall of the plain encoder, and of what is certified, at one radius.
pub(super) struct Contrast {
    /// Recall@1 of the encoder without noise, if the table says what it retrieves.
    pub(super) clean: Option<Share>,
    /// The middle of the certified radii, rounded down; none if nothing is certified.
    pub(super) radius: Option<f64>,
    /// Queries with a larger radius.
    pub(super) certified: Share,
    /// What the attack leaves of the plain encoder at that radius.
    pub(super) attacked: Option<PlainUnderAttack>,
}

/// The plain encoder under attack.
pub(super) struct PlainUnderAttack {
    /// Queries, of all, that it still retrieves rightly as far as the attack shows: at most so many.
    pub(super) right: Share,
    /// Those among them that were not attacked.
    pub(super) untried: u32,
}

impl Contrast {
    pub(super) fn new(prepared: &Prepared<'_>) -> Self {
        let (table, summary) = (prepared.report.table, prepared.summary());
        let radius = middle_radius(prepared);
        let certified = summary.certified_recall(radius.unwrap_or(0.0));
        let clean = table.plain_recall();
        let attacked = match (clean, radius, prepared.report.attack) {
            (Some(_), Some(radius), Some(attack)) => under_attack(prepared, attack, radius),
            _ => None,
        };
        Self { clean, radius, certified, attacked }
    }

    /// The headline in one sentence.
    pub(super) fn sentence(&self) -> String {
        let plain = match (self.clean, &self.attacked, self.radius) {
            (None, ..) => format!("plain {PLAIN_UNKNOWN}"),
            (Some(clean), Some(attacked), Some(radius)) => {
                format!(
                    "plain {:.2} clean, at most {:.2} under attack at {radius}",
                    clean.share, attacked.right.share
                )
            }
            (Some(clean), ..) => format!("plain {:.2} clean", clean.share),
        };
        match self.radius {
            Some(radius) => format!("{plain}; certified {:.2} at {radius}", self.certified.share),
            None => format!("{plain}; nothing certified"),
        }
    }
}

/// The middle of the finite certified radii of the headline's certificate, rounded down as it is shown.
fn middle_radius(prepared: &Prepared<'_>) -> Option<f64> {
    let rows = prepared.report.table.rows().iter();
    let radii = rows.filter_map(|row| row.certificates[&prepared.headline].verdict.radius());
    let mut radii: Vec<f64> = radii.map(|radius| radius.get()).filter(|radius| radius.is_finite()).collect();
    radii.sort_by(f64::total_cmp);
    let middle = *radii.get(radii.len() / 2)?;
    // What is counted is the radius that is shown, unless nothing would be left of it.
    round_down(middle, 4).parse().ok().filter(|&shown: &f64| shown > 0.0).or(Some(middle))
}

/// Queries that no perturbation up to `radius` is known to break, among all of the table.
fn under_attack(prepared: &Prepared<'_>, attack: &Attack, radius: f64) -> Option<PlainUnderAttack> {
    // Among smoothed vectors it was another retriever that was attacked.
    if attack.plain_gallery != Some(PlainGallery::Clean) {
        return None;
    }
    let tried: HashMap<&str, &AttackedQuery> =
        attack.queries.iter().map(|query| (query.identity.as_str(), query)).collect();
    let (mut right, mut untried) = (0, 0);
    for row in prepared.report.table.rows().iter().filter(|row| row.plain_right() == Some(true)) {
        match tried.get(row.identity.as_str()) {
            None => (right, untried) = (right + 1, untried + 1),
            Some(query) => right += u32::from(query.plain_right && !broken_within(query, radius)),
        }
    }
    let queries = u32::try_from(prepared.report.table.rows().len()).ok()?;
    Some(PlainUnderAttack { right: Share::new(right, queries), untried })
}

/// Whether a perturbation of at most this norm broke the plain encoder.
fn broken_within(query: &AttackedQuery, radius: f64) -> bool {
    let broken = query.plain.iter().filter(|point| point.outcome == PointOutcome::Broken);
    broken.map(|point| point.norm).chain(query.plain_smallest_break).any(|norm| norm <= radius)
}

/// The headline of the page.
pub(super) fn headline(prepared: &Prepared<'_>) -> Markup {
    // Certificates without noise speak of the encoder itself.
    if prepared.report.table.sigma().is_none() {
        return html! {};
    }
    let contrast = Contrast::new(prepared);
    let queries = in_thousands(prepared.report.table.rows().len() as u64);
    html! {
        section.contrast #contrast aria-label="The plain encoder beside what is proved" {
            p.headline { strong { (contrast.sentence()) } }
            p.muted {
                "Shares of all " (queries) " queries that are retrieved rightly: plain is the encoder without noise, "
                "about which nothing is proved; certified, by " code { (prepared.headline) } ", is proved at that size. "
                @if let Some(radius) = contrast.radius {
                    (radius) " (l2, pixels in [0, 1]) is the middle of the certified radii. "
                }
                @match (&contrast.clean, &contrast.attacked) {
                    (None, _) => {
                        "The gallery has no embeddings of its clean pictures: " code { "retrievalguard index" } " and "
                        code { "certify" } " it again."
                    }
                    (Some(_), Some(PlainUnderAttack { untried: 0, .. })) => {
                        "An attack is a search: what it does not break, another one may."
                    }
                    (Some(_), Some(PlainUnderAttack { untried, .. })) => {
                        "An attack is a search: what it does not break, another one may. "
                        (untried) " queries were not attacked and count as right."
                    }
                    (Some(_), None) => {
                        code { "retrievalguard attack" } " shows what a search for small changes leaves of the plain encoder."
                    }
                }
            }
        }
    }
}
