//! What is certified, in words, and what decided it.

use maud::{Markup, html};
use retrievalguard::certificate::{CertificateName, Radius, round_down};
use retrievalguard::evaluation::{Guarantee, Share, Summary};

use super::{Prepared, date, in_thousands, round_up};

/// A share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1}\u{a0}%", 100.0 * share)
}

fn interval(share: Share) -> String {
    format!("95\u{a0}% interval {} to {}", percent(share.lower), percent(share.upper))
}

/// The numbers that a reader wants first.
pub(super) fn headline(prepared: &Prepared<'_>) -> Markup {
    let summary = prepared.summary();
    let sigma = prepared.report.table.sigma();
    let radius = summary.average_certified_radius;
    let queries = in_thousands(u64::from(summary.queries));
    let card = |name: &str, value: String, more: Markup| {
        html! { div.card { dt { (name) } dd.value { (value) } dd.more { (more) } } }
    };
    html! {
        dl.cards aria-label="Headline numbers" {
            (card("recall@1", percent(summary.recall.share), html! {
                (summary.recall.count) " of " (queries) " queries retrieved rightly; " (interval(summary.recall))
            }))
            (card("certified", percent(summary.certified.share), html! {
                (summary.certified.count) " of " (queries) " queries have a proof; " (interval(summary.certified))
            }))
            (card("mean certified radius", radius.to_string(), html! {
                @if radius == Radius::Unbounded {
                    (summary.unbounded) " queries have no limit; the others have " (round_down(summary.average_finite_radius, 4)) " on average"
                } @else {
                    "= " (round_down(radius.in_sigmas(sigma), 3)) " σ = " (round_down(radius.in_8bit_steps(), 1))
                    " eight-bit steps; over all queries, 0 where there is no proof"
                }
            }))
            (card("rejected", percent(summary.rejected.share), html! {
                (summary.rejected.count) " right but without a proof; " (summary.misretrieved.count) " misretrieved"
            }))
        }
    }
}

/// The statement with its probability, its units and its limits.
pub(super) fn statement(prepared: &Prepared<'_>) -> Markup {
    let (report, summary) = (prepared.report, prepared.summary());
    let (facts, sigma) = (&report.facts, report.table.sigma());
    let alpha = facts.alpha;
    let seen = facts.input.map_or_else(
        || "at the size that the encoder takes".to_owned(),
        |[channels, height, width]| {
            format!(
                "at {height} × {width} pixels, {channels} channel{}",
                if channels == 1 { "" } else { "s" }
            )
        },
    );
    let stays = match prepared.headline {
        CertificateName::Vote => html! {
            "the label that wins the vote over the retrievals of all noisy copies of x + δ"
        },
        CertificateName::PaperRepaired => html! {
            "the label of the exactly smoothed gallery item nearest to the mean embedding g(x + δ) = E h(x + δ + z)"
        },
        CertificateName::Paper
        | CertificateName::PaperLinear
        | CertificateName::PaperFrozen
        | CertificateName::HalfSpaceMean
        | CertificateName::HalfSpace => html! {
            "the label of the stored gallery item nearest to the mean embedding g(x + δ) = E h(x + δ + z)"
        },
    };
    html! {
        section #statement aria-labelledby="statement-title" {
            h2 #statement-title { "What is certified" }
            div.prose {
                p {
                    "Let x be a query, as the encoder h sees it: resized and cropped, " (seen) ", values from 0 to 1. "
                    "For a query that is marked certified by " code { (prepared.headline) } " with the radius r: "
                    strong {
                        "whatever change δ is made to these pixels, as long as its l2 norm is below r, "
                        (stays)
                        @if facts.left_out > 0 { ", among the items other than the query's own picture," }
                        " is still the right one."
                    }
                    " Here z is Gaussian noise with standard deviation σ = " (sigma) " on every value."
                    @if facts.left_out > 0 {
                        " The gallery holds the picture of " (in_thousands(facts.left_out)) " of "
                        (in_thousands(u64::from(summary.queries))) " queries; the search leaves it out."
                    }
                }
                p {
                    "The proof assumes nothing about the encoder but its norm bound. It rests on random samples and may be unlucky: "
                    strong { "a query's certificate is wrong with probability at most α = " (alpha) "." }
                    " " (simultaneous(summary.queries, alpha.get()))
                }
                h3 { "Units" }
                p {
                    "A radius is an l2 distance: the root of the sum of squared changes of all values, each between 0 and 1. "
                    "A radius of " (sigma) " is one σ; 1 is 255 steps of an eight-bit pixel, all of which one value may take alone"
                    (spread(prepared)) "."
                }
                h3 { "What is not claimed" }
                ul {
                    li { "Nothing about the encoder without smoothing, or about any system that approximates the search." }
                    li { "Nothing about changes before resizing and cropping, or of another kind: rotations, other crops, new pictures." }
                    li { "Nothing about another gallery: adding, removing or changing items needs new certificates." }
                    li { "Nothing about queries that are not in the table. Intervals above speak of the choice of queries, not of the proofs." }
                    li { "Abstained is not unsafe, and misretrieved is not attacked: the first lacks a proof, the second a right answer." }
                    @if report.table.certificates().len() > 1 {
                        li { "Each certificate is valid at α by itself. The largest of several for a query is not." }
                    }
                }
            }
        }
    }
}

/// What a single failure probability says about the whole table.
fn simultaneous(queries: u32, alpha: f64) -> Markup {
    let together = alpha * f64::from(queries);
    let bound = round_up(together);
    html! {
        "That is said of each query by itself, so among " (in_thousands(u64::from(queries))) " at most " (bound)
        " wrong certificates are to be expected. "
        @if together < 1.0 && bound != "1" {
            "All of them hold at once except with probability at most " (bound) "."
        } @else {
            "That all of them hold at once is not claimed; " code { "certify --simultaneous" }
            " divides α among the queries and claims it."
        }
    }
}

fn spread(prepared: &Prepared<'_>) -> Markup {
    let mean = prepared.summary().average_finite_radius;
    html! {
        @if let Some([channels, height, width]) = prepared.report.facts.input {
            @let values = channels * height * width;
            @let each = Radius::Finite(mean).l_infinity(values).in_8bit_steps();
            @if mean > 0.0 {
                ", or, for the mean radius of " (round_down(mean, 4)) ", " (round_down(each, 2))
                " steps by every one of the " (in_thousands(values as u64)) " values at once"
            }
        }
    }
}

/// Everything that decided the numbers.
pub(super) fn facts(prepared: &Prepared<'_>) -> Markup {
    let (report, summary) = (prepared.report, prepared.summary());
    let facts = &report.facts;
    let Guarantee::PerQuery { alpha } = summary.guarantee else {
        return html! {};
    };
    let mut rows: Vec<(&str, String)> = vec![
        ("noise σ", format!("{} (pixels in [0, 1])", report.table.sigma())),
        ("failure probability α", format!("{alpha} per query")),
        ("queries", in_thousands(u64::from(summary.queries))),
        (
            "certifying samples n",
            match facts.target_radius {
                Some(target) => format!(
                    "at most {} per query, to decide the radius {target}",
                    in_thousands(u64::from(facts.samples.get()))
                ),
                None => format!("{} per query", in_thousands(u64::from(facts.samples.get()))),
            },
        ),
        ("pilot samples", format!("{} per query", in_thousands(u64::from(facts.pilot.get())))),
        ("seed", facts.seed.clone()),
    ];
    if let Some(gallery) = facts.gallery {
        let behind =
            gallery.samples.map_or(String::new(), |count| format!(", {count} noisy copies behind each"));
        rows.push(("gallery", format!("{} items{behind}", in_thousands(gallery.items as u64))));
        rows.push((
            "embedding",
            format!("{} dimensions, norm at most {}", gallery.dimension, gallery.norm_bound),
        ));
    }
    rows.push(("engine", facts.engine.clone()));
    rows.push(("tool", format!("retrievalguard {}", facts.tool)));
    if let Some(finished) = facts.finished {
        rows.push(("finished", date(finished)));
    }
    html! {
        section #facts aria-labelledby="facts-title" {
            h2 #facts-title { "What decided the numbers" }
            dl.facts {
                @for (name, value) in &rows { div { dt { (name) } dd { (value) } } }
            }
            h3 { "Inputs, by SHA-256" }
            dl.facts.digests {
                @for (name, digest) in &facts.digests { div { dt { (name) } dd { code { (digest) } } } }
            }
        }
    }
}

/// A line for each certificate.
pub(super) fn certificates(prepared: &Prepared<'_>) -> Markup {
    let sigma = prepared.report.table.sigma();
    let row = |(name, summary): &(CertificateName, Summary)| {
        let radius = summary.average_certified_radius;
        let (sigmas, steps) = if radius == Radius::Unbounded {
            ("–".to_owned(), "–".to_owned())
        } else {
            (round_down(radius.in_sigmas(sigma), 3), round_down(radius.in_8bit_steps(), 1))
        };
        let [recall, certified, rejected, misretrieved] =
            [summary.recall, summary.certified, summary.rejected, summary.misretrieved]
                .map(|share| percent(share.share));
        let cells = vec![recall, certified, rejected, misretrieved, radius.to_string(), sigmas, steps];
        (html! { code { (name) } }, cells)
    };
    let rows: Vec<_> = prepared.summaries.iter().map(row).collect();
    html! {
        section #certificates aria-labelledby="certificates-title" {
            h2 #certificates-title { "Certificates" }
            div.scroll tabindex="0" role="region" aria-label="Certificates" {
                (plain_table(
                    "certificate",
                    &["recall@1", "certified", "rejected", "misretrieved", "mean radius", "in σ", "in 8-bit steps"],
                    &rows,
                ))
            }
            p.muted { "Mean radius: over all queries, 0 where there is no proof; l2, pixels in [0, 1]. Every radius is rounded down." }
        }
    }
}

/// A table of numbers; every cell says what it is, because on phones a row becomes a card.
pub(super) fn plain_table(first: &str, headings: &[&str], rows: &[(Markup, Vec<String>)]) -> Markup {
    html! {
        table.plain role="table" {
            thead role="rowgroup" {
                tr role="row" {
                    th scope="col" role="columnheader" { (first) }
                    @for heading in headings { th scope="col" role="columnheader" { (heading) } }
                }
            }
            tbody role="rowgroup" {
                @for (name, cells) in rows {
                    tr role="row" {
                        th scope="row" role="rowheader" { (name) }
                        @for (heading, cell) in headings.iter().zip(cells) {
                            td role="cell" data-label=(heading) { (cell) }
                        }
                    }
                }
            }
        }
    }
}
