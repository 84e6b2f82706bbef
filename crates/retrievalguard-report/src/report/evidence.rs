//! What attacks found, beside what is proved.

use maud::{Markup, html};
use retrievalguard::attack::{Fate, Mode, Pixels, Rates};

use super::figures::{RADIUS, figure};
use super::statement::plain_table;
use super::{NamedFigure, Prepared, in_thousands};
use crate::attack::{Attack, AttackedQuery, PlainGallery};
use crate::chart::{Axis, Marks, Panel, Series};

/// Per query: certified radius ≤ true radius ≤ smallest successful attack.
pub(super) fn bracket(prepared: &Prepared<'_>, attack: &Attack) -> NamedFigure {
    let mut queries: Vec<&AttackedQuery> = attack.queries.iter().collect();
    queries.sort_by(|one, other| one.radius.total_cmp(&other.radius));
    let ranked = |norm: fn(&AttackedQuery) -> Option<f64>| -> Vec<(f64, f64)> {
        let places = queries.iter().enumerate();
        places.filter_map(|(rank, query)| Some((rank as f64 + 1.0, norm(query)?))).collect()
    };
    let certified = ranked(|query| Some(query.radius));
    let reach: Vec<(f64, f64)> =
        queries.iter().map(|query| (query.radius, query.smallest_break.unwrap_or(query.radius))).collect();
    let mut series = vec![
        Series::new("certified: nothing smaller can break it", 0, certified).marks(Marks::Points).band(reach),
        Series::new("smallest attack that broke it", 1, ranked(|query| query.smallest_break))
            .marks(Marks::Points),
        Series::new("largest attack that it held, none broke it", 6, ranked(held)).marks(Marks::Points),
        Series::new("smallest attack without smoothing", 3, ranked(plain)).marks(Marks::Points),
    ];
    series.retain(|series| !series.points.is_empty());
    // Room around the marks, which would otherwise lie on the axes.
    let norms = series.iter().flat_map(|series| &series.points).map(|&(_, norm)| norm);
    let (low, high) =
        norms.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), norm| (low.min(norm), high.max(norm)));
    let panel = Panel {
        title: String::new(),
        x: Axis::linear("attacked queries, by certified radius").range(0.0, queries.len() as f64 + 1.0),
        y: Axis::log10(RADIUS).range(low * 0.8, high * 1.25),
        series,
    };
    NamedFigure {
        name: "bracket",
        caption: "Between proof and attack: the true radius of a query lies somewhere on its line, at or above the \
                  certified radius and at or below the smallest attack that succeeded."
            .to_owned(),
        figure: figure(prepared, "Certified ≤ true ≤ attacked", panel),
    }
}

fn held(query: &AttackedQuery) -> Option<f64> {
    let held = query.smoothed.iter().filter(|attempt| attempt.outcome == Fate::Held);
    let largest = held.map(|attempt| attempt.norm).reduce(f64::max);
    largest.filter(|_| query.smallest_break.is_none())
}

fn plain(query: &AttackedQuery) -> Option<f64> {
    query.plain_smallest_break.filter(|_| query.plain_right)
}

/// The section of the page.
pub(super) fn section(attack: &Attack) -> Markup {
    let broken = attack.broken_inside();
    let knew = match attack.mode {
        Mode::WhiteBox => "White box: the attack follows the encoder's gradients",
        Mode::BlackBox => "Black box: the attack sees the encoder's outputs alone",
    };
    let pixels = match attack.pixels {
        Some(Pixels::Free) => ", and may leave the range of pixels, as the certificates allow",
        Some(Pixels::Clipped) => {
            ", and keeps pixels in [0, 1], though the certificates cover other values, too"
        }
        None => "",
    };
    let among = match attack.plain_gallery {
        Some(PlainGallery::Clean) => ", searching among the gallery's pictures embedded without noise",
        Some(PlainGallery::Stored) => ", searching among the smoothed vectors, which are not its own",
        None => "",
    };
    let row = |&factor: &f64| {
        let (smoothed, plain) = (attack.smoothed(factor), attack.plain(factor));
        let name = html! { (factor) " × radius" @if factor < 1.0 { span.muted { " (inside)" } } };
        let cells = vec![
            share(smoothed.broken, smoothed),
            share(smoothed.held, smoothed),
            share(smoothed.undecided, smoothed),
            share(plain.broken, plain),
        ];
        (name, cells)
    };
    let rows: Vec<_> = attack.factors.iter().map(row).collect();
    html! {
        section #attacks aria-labelledby="attacks-title" {
            h2 #attacks-title { "Attacks" }
            div.prose {
                p {
                    @if broken == 0 {
                        strong { "No attack changed an answer inside its certified radius (" (attack.certificate) "), " }
                        "in " (in_thousands(attack.queries.len() as u64)) " attacked queries."
                    } @else {
                        strong.bad {
                            (broken) " of " (attack.queries.len())
                            " attacked queries were broken inside their certified radius (" (attack.certificate) ")."
                        }
                        " A certificate may be wrong with probability " (attack.alpha) "; more than that is a defect."
                    }
                }
                p {
                    (knew) (pixels)
                    ". A break counts if fresh noise, on which the attack did not optimise, shows it with an error of at most "
                    (attack.judge_alpha)
                    ". The encoder without smoothing is attacked at the same sizes" (among) ", for contrast; only queries that it had right count."
                }
            }
            div.scroll tabindex="0" role="region" aria-label="Attacks by size" {
                (plain_table(
                    "size of the attack",
                    &["smoothed: broken", "held", "undecided", "not smoothed: broken"],
                    &rows,
                ))
            }
            @if !attack.budget.is_empty() {
                p.muted {
                    "Budget: "
                    @for (place, (name, amount)) in attack.budget.iter().enumerate() {
                        @if place > 0 { ", " }
                        (name.replace('_', " ")) " "
                        (amount.as_u64().map_or_else(|| amount.to_string(), in_thousands))
                    }
                    "."
                }
            }
        }
    }
}

fn share(count: usize, tally: Rates) -> String {
    match tally.total() {
        0 => "–".to_owned(),
        all => format!("{count} of {all} ({:.1} %)", 100.0 * count as f64 / all as f64),
    }
}
