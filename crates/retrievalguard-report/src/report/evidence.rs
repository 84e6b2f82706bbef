//! What attacks found, beside what is proved.

use maud::{Markup, html};
use retrievalguard::attack::{Mode, Pixels, Rates, caution};

use super::figures::figure;
use super::statement::plain_table;
use super::{NamedFigure, Prepared, in_thousands};
use crate::attack::{Attack, AttackedQuery, PlainGallery};
use crate::chart::{Axis, Marks, Panel, Series};
use crate::recall_curve::RADIUS;

/// Per query: certified radius ≤ true radius ≤ smallest proved break. An attack without one bounds nothing from above.
pub(super) fn bracket(prepared: &Prepared<'_>, attack: &Attack) -> NamedFigure {
    let mut queries: Vec<&AttackedQuery> = attack.queries.iter().collect();
    queries.sort_by(|one, other| one.radius.total_cmp(&other.radius));
    let ranked = |norm: fn(&AttackedQuery) -> Option<f64>| -> Vec<(f64, f64)> {
        let places = queries.iter().enumerate();
        places.filter_map(|(rank, query)| Some((rank as f64 + 1.0, norm(query)?))).collect()
    };
    let noise = attack.judge_alpha.is_some();
    let certified = ranked(|query| Some(query.radius));
    let breaks = ranked(|query| query.certified().1);
    let searched = ranked(searched_up_to);
    let caption = caption(queries.len(), breaks.len(), searched.len());
    let reach: Vec<(f64, f64)> =
        queries.iter().map(|query| (query.radius, query.certified().1.unwrap_or(query.radius))).collect();
    let mut series = vec![
        Series::new("certified: nothing smaller breaks it", 0, certified).marks(Marks::Points).band(reach),
        Series::new(if noise { "smallest proved break" } else { "smallest break found" }, 1, breaks)
            .marks(Marks::Points),
        Series::new("searched up to here, no break proved", 6, searched).marks(Marks::Arrows),
        Series::new("smallest break found without smoothing", 3, if noise { ranked(plain) } else { vec![] })
            .marks(Marks::Points),
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
        caption,
        figure: figure(prepared, "Certified radii and proved breaks", panel),
    }
}

fn caption(queries: usize, broken: usize, searched: usize) -> String {
    let between = match broken {
        0 => "No break is proved, so no query has an upper end. ".to_owned(),
        broken => format!(
            "A proof and a proved break bound the true radius from both sides, for {} of {} queries: it lies on the line \
             between them. ",
            in_thousands(broken as u64),
            in_thousands(queries as u64)
        ),
    };
    let open = if searched > 0 {
        "An arrow begins at the largest size at which a search failed. A failed search bounds nothing: the true radius \
         may lie below the arrow or far above it."
    } else {
        ""
    };
    (between + open).trim_end().to_owned()
}

/// The largest size that was tried on a query without a proved break.
fn searched_up_to(query: &AttackedQuery) -> Option<f64> {
    let (points, smallest) = query.certified();
    points.iter().map(|attempt| attempt.norm).reduce(f64::max).filter(|_| smallest.is_none())
}

fn plain(query: &AttackedQuery) -> Option<f64> {
    query.plain_smallest_break.filter(|_| query.plain_right)
}

/// The section of the page.
pub(super) fn section(attack: &Attack) -> Markup {
    let broken = attack.broken_inside();
    let knew = match attack.mode {
        Mode::WhiteBox => "White box: the attack computes the encoder's gradients",
        Mode::BlackBox => "Black box: the attack estimates gradients from the encoder's outputs alone",
    };
    let (plain_right, plain_broken) = attack.plain_totals();
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
        if attack.judge_alpha.is_none() {
            return (name, vec![share(plain.broken, plain), share(plain.held, plain)]);
        }
        let cells = vec![
            share(smoothed.broken, smoothed),
            share(smoothed.held, smoothed),
            share(smoothed.undecided, smoothed),
            share(plain.broken, plain),
        ];
        (name, cells)
    };
    let rows: Vec<_> = attack.factors.iter().map(row).collect();
    let headings: &[&str] = match attack.judge_alpha {
        Some(_) => {
            &["smoothed: proved broken", "proved to hold", "undecided", "not smoothed: broken by this attack"]
        }
        None => &["broken by this attack", "not broken by it"],
    };
    html! {
        section #attacks aria-labelledby="attacks-title" {
            h2 #attacks-title { "Attacks" }
            div.prose {
                @if let Some(words) = caution(attack.mode, plain_right, plain_broken) {
                    p { strong.bad { "Caution: " } (words) "." }
                }
                p {
                    @if broken == 0 {
                        // Only an attack that is seen to break something makes this worth stressing.
                        @let answer = html! {
                            "No attack changed an answer inside its certified radius (" (attack.certificate) "), "
                        };
                        @if plain_broken > 0 { strong { (answer) } } @else { (answer) }
                        "in " (in_thousands(attack.queries.len() as u64)) " attacked queries."
                    } @else {
                        strong.bad {
                            (broken) " of " (attack.queries.len())
                            " attacked queries were broken inside their certified radius (" (attack.certificate) ")."
                        }
                        @match attack.alpha {
                            Some(alpha) => { " A certificate may be wrong with probability " (alpha) "; more than that is a defect." }
                            None => { " Without noise that is a defect: such a certificate holds always." }
                        }
                    }
                }
                p {
                    (knew) (pixels)
                    @match attack.judge_alpha {
                        Some(alpha) => {
                            ". A break counts if fresh noise, on which the attack did not optimise, shows it with an error of at most "
                            (alpha)
                            ". The encoder without smoothing is attacked at the same sizes" (among)
                            ", for contrast; only queries that it had right count."
                        }
                        None => {
                            ". Without noise there is nothing to judge: a break is an embedding, computed in double precision, that "
                            "has a wrong item nearest to it."
                        }
                    }
                }
            }
            div.scroll tabindex="0" role="region" aria-label="Attacks by size" {
                (plain_table("size of the attack", headings, &rows))
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

fn share(count: usize, rates: Rates) -> String {
    match rates.total() {
        0 => "–".to_owned(),
        all => format!("{count} of {all} ({:.1} %)", 100.0 * count as f64 / all as f64),
    }
}
