//! What is certified, in words, and what decided it.

use maud::{Markup, html};
use retrievalguard::certificate::{CertificateName, Radius, Retriever, round_down};
use retrievalguard::evaluation::{Counts, Share, Summary};

use retrievalguard_encoder::table::PLAIN_UNKNOWN;

use super::{Basis, LipschitzFacts, Prepared, SampleFacts, date, in_thousands, round_up};

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
                (summary.recall.count) " of " (queries) " queries retrieved rightly by the " (retriever(prepared.headline).0)
                "; " (interval(summary.recall))
            }))
            (card("certified", percent(summary.certified.share), html! {
                (summary.certified.count) " of " (queries) " queries have a proof, " (summary.rejected.count)
                " abstained, " (summary.misretrieved.count) " misretrieved; " (interval(summary.certified))
            }))
            (card("mean certified radius", radius.to_string(), html! {
                @if radius == Radius::Unbounded {
                    (summary.unbounded) " queries have no limit; the others have " (round_down(summary.average_finite_radius, 4)) " on average"
                } @else {
                    @if let Some(sigma) = sigma { "= " (round_down(radius.in_sigmas(sigma), 3)) " σ, or " }
                    @if let Some(values) = values(prepared) {
                        (round_down(radius.in_grey_levels(values), 2)) " of 255 grey levels if spread over all values; "
                    }
                    "mean over all queries, 0 where there is no proof"
                }
            }))
            (card("rejected", percent(summary.rejected.share), html! {
                (summary.rejected.count) " abstained: right, but "
                @if sigma.is_some() { "these samples do not prove it" } @else { "rounding takes what little there is to prove" }
            }))
        }
        @if let Some(warning) = counts(prepared).warning() {
            aside.notes aria-label="Warning" { p { strong.bad { "Most answers are wrong: " } (warning) "." } }
        }
    }
}

/// What became of the queries under the headline's certificate.
fn counts(prepared: &Prepared<'_>) -> Counts {
    Counts::of(prepared.report.table.rows().iter().map(|row| row.certificates[&prepared.headline].verdict))
}

/// How many numbers a picture is, if that is known.
fn values(prepared: &Prepared<'_>) -> Option<usize> {
    prepared.report.facts.input.map(|[channels, height, width]| channels * height * width)
}

/// The retriever that a certificate speaks of, and how it answers.
fn retriever(name: CertificateName) -> (&'static str, &'static str) {
    match name {
        CertificateName::Vote => {
            ("voting retriever", "it answers with the label that most noisy copies of the query retrieve")
        }
        CertificateName::Pairwise => (
            "pairwise retriever",
            "it answers with the label that comes before each other one in most noisy copies of the query",
        ),
        CertificateName::Lipschitz | CertificateName::LipschitzMargin => (
            "plain retriever",
            "it answers with the stored item nearest to the embedding of the query itself, computed in double precision",
        ),
        CertificateName::PaperRepaired => (
            "mean retriever",
            "it answers with the exactly smoothed item nearest to the mean embedding of the query's noisy copies",
        ),
        CertificateName::Paper
        | CertificateName::PaperLinear
        | CertificateName::PaperFrozen
        | CertificateName::HalfSpaceMean
        | CertificateName::HalfSpace => (
            "mean retriever",
            "it answers with the stored item nearest to the mean embedding of the query's noisy copies",
        ),
    }
}

/// The statement with its probability, its units and its limits.
pub(super) fn statement(prepared: &Prepared<'_>) -> Markup {
    let (report, summary) = (prepared.report, prepared.summary());
    let facts = &report.facts;
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
        CertificateName::Pairwise => html! {
            "the label that comes before each other one in more than half of all noisy copies of x + δ"
        },
        CertificateName::Lipschitz | CertificateName::LipschitzMargin => html! {
            "the label of the stored gallery item nearest to the embedding h(x + δ)"
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
                    @match &facts.basis {
                        Basis::Samples(samples) => {
                            " Here z is Gaussian noise with standard deviation σ = " (samples.sigma) " on every value. This is the "
                            (retriever(prepared.headline).0) "; the encoder without noise is another one, and has no certificate."
                        }
                        Basis::Lipschitz(_) => {
                            " This is the " (retriever(prepared.headline).0) ": no noise is added, and one pass of the encoder answers."
                        }
                    }
                    @if facts.left_out > 0 {
                        " The gallery holds the picture of " (in_thousands(facts.left_out)) " of "
                        (in_thousands(u64::from(summary.queries))) " queries; the search leaves it out."
                    }
                }
                @match &facts.basis {
                    Basis::Samples(samples) => p {
                        "The proof assumes nothing about the encoder but its norm bound and that it treats each picture by itself, "
                        "which is checked when a model is opened. It rests on random samples and may be unlucky: "
                        strong { "each query's certificate is wrong with probability at most α = " (samples.alpha) "." }
                        " " (simultaneous(summary.queries, samples.alpha.get()))
                    },
                    Basis::Lipschitz(bound) => p {
                        "The proof rests on a bound on the encoder itself: its embeddings move at most " (bound.constant)
                        " times as fast as pictures, in l2 norms. That number was computed from the weights of the ONNX file, layer "
                        "by layer and rounded upwards; nothing that the file says about itself was believed. "
                        strong { "No chance is involved: every certificate of the table holds always." }
                        " Rounding while the encoder runs is bounded as well"
                        @if let Some(error) = bound.forward_error { " (at most " (round_up(error)) ")" }
                        " and taken off twice."
                    },
                }
                h3 { "What a radius means in a picture" }
                p {
                    "A radius is an l2 distance: the root of the sum of the squared changes of all values, each between 0 and "
                    "1. It is one budget for the whole picture, not an allowance for every pixel" (spread(prepared))
                    @if let Some(sigma) = report.table.sigma() { ". A radius of " (sigma) " is one σ" }
                    ". The table of queries shows certified pictures after a random "
                    "change of their own radius."
                }
                (in_files(prepared))
                h3 { "What is not claimed" }
                ul {
                    @match facts.basis {
                        Basis::Samples(_) => li { "Nothing about the encoder without smoothing, or about any system that approximates the search." },
                        Basis::Lipschitz(_) => li { "Nothing about another engine that runs the same network in single precision, or about any system that approximates the search." },
                    }
                    @if report.table.rows().iter().any(|row| row.file.is_some()) {
                        li { "Nothing about the compressed file, or about changes of another kind: rotations, other crops, other sizes, new pictures." }
                    } @else {
                        li { "Nothing about changes before resizing and cropping, or of another kind: rotations, other crops, new pictures." }
                    }
                    li { "Nothing about another gallery: adding, removing or changing items needs new certificates." }
                    li { "Nothing about queries that are not in the table. Intervals above speak of the choice of queries, not of the proofs." }
                    li { "Abstained is not unsafe, and misretrieved is not attacked: the first lacks a proof, the second a right answer." }
                    @if facts.basis.samples().is_some() && report.table.certificates().len() > 1 {
                        li { "Each certificate is valid at α by itself. The largest of several for a query is not." }
                    }
                }
            }
        }
    }
}

/// What the radii are worth before the pictures are resized, if they come from files.
fn in_files(prepared: &Prepared<'_>) -> Markup {
    let radii: Vec<(Radius, Option<Radius>)> = prepared
        .report
        .table
        .rows()
        .iter()
        .filter_map(|row| {
            let radius = row.certificates[&prepared.headline].verdict.radius()?;
            row.file.map(|file| (radius, file.radius(radius)))
        })
        .filter(|(radius, _)| *radius != Radius::Unbounded)
        .collect();
    let left: Vec<f64> = radii.iter().filter_map(|(_, file)| file.map(Radius::get)).collect();
    if radii.is_empty() {
        return html! {};
    }
    let mean = left.iter().sum::<f64>() / left.len().max(1) as f64;
    html! {
        h3 { "In the pixels of the file" }
        p {
            "Resizing moves two pictures of the same width and height apart by at most a factor, and rounding adds a little; both are bounded for "
            "each query from the weights of its own resizing. What is left of a radius holds for every change of the file's decoded pixels, "
            "before resizing. "
            @if left.is_empty() {
                strong { "Here nothing is left: rounding to 8 bits while pictures are resized may use up every radius." }
            } @else {
                strong {
                    (in_thousands(left.len() as u64)) " of " (in_thousands(radii.len() as u64))
                    " certified queries with a limit have such a radius, " (round_down(mean, 4)) " on average."
                }
                @if left.len() < radii.len() {
                    " For the others rounding to 8 bits while pictures are resized may use it up."
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

/// The mean radius in grey levels: spent everywhere at once, and in one place.
fn spread(prepared: &Prepared<'_>) -> Markup {
    let mean = Radius::Finite(prepared.summary().average_finite_radius);
    html! {
        @if let Some(values) = values(prepared).filter(|_| mean.get() > 0.0) {
            ". The mean radius of " (mean) ", spread evenly over all " (in_thousands(values as u64)) " values, changes each by "
            (round_down(mean.in_grey_levels(values), 2)) " of 255 grey levels; spent on a single value, it changes that one by "
            @if mean.in_8bit_steps() < 255.0 { (round_down(mean.in_8bit_steps(), 1)) " of 255" }
            @else { "all of its 255" }
        }
    }
}

/// Everything that decided the numbers.
pub(super) fn facts(prepared: &Prepared<'_>) -> Markup {
    let (report, summary) = (prepared.report, prepared.summary());
    let facts = &report.facts;
    let mut rows: Vec<(&str, String)> = match &facts.basis {
        Basis::Samples(SampleFacts { sigma, alpha, pilot, samples, target_radius, seed }) => {
            let samples = in_thousands(u64::from(samples.get()));
            vec![
                ("noise σ", format!("{sigma} (pixels in [0, 1])")),
                ("failure probability α", format!("{alpha} per query")),
                (
                    "certifying samples n",
                    match target_radius {
                        Some(target) => {
                            format!("at most {samples} per query, to decide the radius {target}")
                        }
                        None => format!("{samples} per query"),
                    },
                ),
                ("pilot samples", format!("{} per query", in_thousands(u64::from(pilot.get())))),
                ("seed", seed.clone()),
            ]
        }
        Basis::Lipschitz(LipschitzFacts { constant, forward_error, layers }) => {
            let error = forward_error.map(|error| format!("at most {}, taken off twice", round_up(error)));
            vec![
                ("noise", "none, and no failure probability".to_owned()),
                ("passes", "1 per query, in double precision".to_owned()),
                ("Lipschitz constant", format!("at most {constant}, verified from {layers} operators")),
                ("forward error", error.unwrap_or_else(|| "bounded, taken off twice".to_owned())),
            ]
        }
    };
    rows.push(("queries", in_thousands(u64::from(summary.queries))));
    if let Some(gallery) = facts.gallery {
        let behind =
            gallery.samples.map_or(String::new(), |count| format!(", {count} noisy copies behind each"));
        let views = gallery.views.map(|count| format!(" with {count} views each")).unwrap_or_default();
        rows.push(("gallery", format!("{} items{views}{behind}", in_thousands(gallery.items as u64))));
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
        let finite = |text: String| if radius == Radius::Unbounded { "–".to_owned() } else { text };
        let [recall, certified, rejected, misretrieved] =
            [summary.recall, summary.certified, summary.rejected, summary.misretrieved]
                .map(|share| percent(share.share));
        let mut cells = vec![retriever(*name).0.trim_end_matches(" retriever").to_owned()];
        cells.extend([recall, certified, rejected, misretrieved, radius.to_string()]);
        cells.extend(sigma.map(|sigma| finite(round_down(radius.in_sigmas(sigma), 3))));
        cells.extend(values(prepared).map(|values| finite(round_down(radius.in_grey_levels(values), 2))));
        (html! { code { (name) } }, cells)
    };
    let mut rows: Vec<_> = prepared.summaries.iter().map(row).collect();
    // Certificates without noise speak of the encoder itself.
    if sigma.is_some() {
        let mut cells = vec!["no noise".to_owned()];
        match prepared.report.table.plain_recall() {
            Some(recall) => {
                cells.extend([percent(recall.share), "–".into(), "–".into(), percent(1.0 - recall.share)]);
            }
            None => cells.extend([PLAIN_UNKNOWN.to_owned(), "–".into(), "–".into(), "–".into()]),
        }
        cells.extend(std::iter::repeat_n("–".to_owned(), 2 + usize::from(values(prepared).is_some())));
        rows.push((html! { "plain encoder" }, cells));
    }
    let mut headings = vec!["retriever", "recall@1", "certified", "rejected", "misretrieved", "mean radius"];
    headings.extend(sigma.map(|_| "in σ"));
    headings.extend(values(prepared).map(|_| "grey levels, spread"));
    html! {
        section #certificates aria-labelledby="certificates-title" {
            h2 #certificates-title { "Certificates" }
            div.scroll tabindex="0" role="region" aria-label="Certificates" {
                (plain_table("certificate", &headings, &rows))
            }
            div.prose {
                p.muted {
                    "Mean radius: over all queries, 0 where there is no proof; l2, pixels in [0, 1]. Every radius is rounded down. "
                    @if values(prepared).is_some() {
                        "Grey levels, spread: of 255, for every value of the picture at once. "
                    }
                    "Rejected: right, but abstained. Misretrieved: wrong before anybody attacks."
                    @if sigma.is_some() { " Plain encoder: one pass without noise, about which nothing is proved." }
                }
                (ship(prepared))
            }
        }
    }
}

/// Which retriever goes with which certificate.
fn ship(prepared: &Prepared<'_>) -> Markup {
    let names = prepared.report.table.certificates();
    let votes = names.contains(&CertificateName::Vote);
    let mut others: Vec<Retriever> = names.iter().map(|&name| Retriever::of(name)).collect();
    others.sort_unstable();
    others.dedup();
    let kinds = others.len();
    let several = kinds > 1;
    others.retain(|&other| other != Retriever::Mean);
    let repaired = names.contains(&CertificateName::PaperRepaired);
    let (kind, answers) = retriever(prepared.headline);
    html! {
        p {
            "A certificate speaks of one retriever, and only that one may be shipped with it. "
            @if several && others.len() == kinds {
                "Here there are several, none of them the mean retriever."
                @for other in &others {
                    " The " strong { (retriever(other.certificate()).0) } ": " (retriever(other.certificate()).1) "."
                }
                " " code { "query" } " and " code { "serve" } " run the one that " code { "--retriever" } " names."
            } @else if several {
                "Here there are several. The " strong { "mean retriever" } " answers with the stored item nearest to the mean "
                "embedding of the query's noisy copies, and every certificate but "
                @for (place, other) in others.iter().enumerate() {
                    @if place > 0 { ", " } code { (other) }
                }
                @if repaired { " and " code { "paper-repaired" } } " is about it."
                @for other in &others {
                    " The " strong { (retriever(other.certificate()).0) } ": " (retriever(other.certificate()).1)
                    ", which often proves more but ranks no items."
                }
                " " code { "query" } " and " code { "serve" } " run the one that " code { "--retriever" } " names."
            } @else {
                "Here it is the " strong { (kind) } ": " (answers) "; "
                @if prepared.headline.lipschitz().is_some() {
                    code { "retrievalguard query" } " and " code { "serve" } " run it for a gallery without noise."
                }
                @else if let Some(other) = others.first() { code { "query --retriever " (other) } " runs it." }
                @else if prepared.headline == CertificateName::PaperRepaired { "no command searches exactly smoothed items." }
                @else { code { "retrievalguard query" } " and " code { "serve" } " run it." }
            }
            @if repaired && prepared.headline != CertificateName::PaperRepaired {
                " " code { "paper-repaired" } " is about a mean retriever of exactly smoothed items, which no command searches."
            }
            @if votes {
                " A radius of " code { "vote" } " is proved by majority or against the runner-up, chosen for each query on its pilot; "
                code { "explain" } " says which."
            }
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
