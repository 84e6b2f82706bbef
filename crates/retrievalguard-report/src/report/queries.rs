//! The table of queries, with pictures.

use maud::{Markup, html};
use retrievalguard::certificate::{CertificateName, Radius, Verdict, round_down};
use retrievalguard_encoder::table::{Cell, FilePixels, ResultRow};

use super::{Prepared, RowPictures, in_thousands};
use crate::picture::Thumbnail;

/// The section of the page.
pub(super) fn section(prepared: &Prepared<'_>) -> Markup {
    let report = prepared.report;
    let rows = report.table.rows();
    let listed = report.pictures.len().min(rows.len());
    let varied = report.facts.basis.samples().is_some_and(|facts| {
        rows.iter().any(|row| row.certificates[&prepared.headline].samples != facts.samples.get())
    });
    let plain = rows.iter().any(|row| row.plain.is_some());
    let piece = report.pictures.iter().any(|row| row.perturbed.as_ref().is_some_and(|shown| shown.piece));
    html! {
        section #queries aria-labelledby="queries-title" {
            h2 #queries-title { "Queries" }
            div.prose {
                p {
                    @if listed < rows.len() {
                        "The first " (in_thousands(listed as u64)) " of " (in_thousands(rows.len() as u64))
                        " queries; " code { "certificates.parquet" } " has them all, and " code { "--most" } " lists more. "
                    } @else {
                        "All " (in_thousands(listed as u64)) " queries. "
                    }
                    "A number is a certified radius (l2, pixels in [0, 1], rounded down)"
                    @if rows.iter().any(|row| row.file.is_some()) {
                        ", first of the picture as the encoder sees it, below it of the file's own pixels"
                    }
                    ". A heading sorts the table."
                }
                p.muted {
                    "The fourth picture is the query with a change of exactly the radius that "
                    code { (prepared.headline) } " certifies, at the encoder's own resolution"
                    @if piece { " (its centre)" }
                    ". The direction is random; the proof covers every direction. Values beyond black and white are cut off for display alone."
                }
            }
            div.scroll tabindex="0" role="region" aria-label="Table of queries" {
                table.queries #query-table role="table" {
                    thead role="rowgroup" {
                        tr role="row" {
                            (heading("query", "text"))
                            (heading("retrieved", "text"))
                            (heading("nearest wrong", "text"))
                            @if plain { (heading("without noise", "text")) }
                            (heading("changed by r", "number"))
                            @for name in report.table.certificates() { (heading(name.as_str(), "number")) }
                            @if varied { (heading("samples", "number")) }
                        }
                    }
                    tbody role="rowgroup" {
                        @for (row, pictures) in rows.iter().zip(&report.pictures) {
                            (query(prepared, row, pictures, (varied, plain)))
                        }
                    }
                }
            }
        }
    }
}

fn heading(name: &str, kind: &str) -> Markup {
    html! {
        th scope="col" role="columnheader" aria-sort="none" data-kind=(kind) {
            button type="button" disabled { (name) span.arrow aria-hidden="true" {} }
        }
    }
}

fn query(
    prepared: &Prepared<'_>,
    row: &ResultRow,
    pictures: &RowPictures,
    (varied, plain): (bool, bool),
) -> Markup {
    let right = row.label == row.retrieved_label;
    let wrong = row.nearest_wrong.as_ref();
    let cell = row.certificates[&prepared.headline];
    html! {
        tr role="row" {
            td.picture role="cell" data-label="query" data-sort=(row.identity) {
                (picture(pictures.query.as_ref(), "Query", &row.identity))
                (caption(&row.identity, &row.label, None))
            }
            td.picture.wrong[!right] role="cell" data-label=(if right { "retrieved" } else { "retrieved: wrong" })
                data-sort=(row.retrieved) {
                (picture(pictures.retrieved.as_ref(), "Retrieved item", &row.retrieved))
                (caption(&row.retrieved, &row.retrieved_label, row.retrieved_view.as_deref()))
            }
            td.picture role="cell" data-label="nearest wrong" data-sort=(wrong.map_or("", |item| &item.identity)) {
                @if let Some(item) = wrong {
                    (picture(pictures.nearest_wrong.as_ref(), "Nearest wrong item", &item.identity))
                    (caption(&item.identity, &item.label, item.view.as_deref()))
                } @else { span.muted { "unknown" } }
            }
            @if plain { (without_noise(row)) }
            td.picture role="cell" data-label="changed by r" data-sort=(rank(cell)) {
                @if let Verdict::Certified { radius } = cell.verdict {
                    @if radius == Radius::Unbounded {
                        span.muted { "any change" }
                    } @else {
                        (picture(pictures.perturbed.as_ref(), "Query after a random change of the certified size", &row.identity))
                        span.name { "‖δ‖₂ = " (radius) }
                    }
                } @else { div.placeholder.none { "no radius" } }
            }
            @for (&name, &cell) in &row.certificates { (verdict(prepared, name, cell, row.file)) }
            @if varied { td.number role="cell" data-label="samples" data-sort=(cell.samples) { (in_thousands(u64::from(cell.samples))) } }
        }
    }
}

/// What the encoder without noise retrieves.
fn without_noise(row: &ResultRow) -> Markup {
    let wrong = row.plain_right() == Some(false);
    let name = row.plain.as_ref().map_or("", |plain| &plain.retrieved);
    html! {
        td.picture.wrong[wrong] role="cell" data-label=(if wrong { "without noise: wrong" } else { "without noise" })
            data-sort=(name) {
            @if let Some(plain) = &row.plain { (caption(&plain.retrieved, &plain.retrieved_label, None)) }
            @else { span.muted { "unknown" } }
        }
    }
}

/// A number by which verdicts sort: radii, then abstentions, then wrong answers.
fn rank(cell: Cell) -> f64 {
    match cell.verdict {
        Verdict::Certified { radius } => radius.get().min(f64::MAX),
        Verdict::Abstained => -1.0,
        Verdict::Misretrieved => -2.0,
    }
}

fn verdict(prepared: &Prepared<'_>, name: CertificateName, cell: Cell, file: Option<FilePixels>) -> Markup {
    let sigma = prepared.report.table.sigma();
    html! {
        td.number.headline[name == prepared.headline] role="cell" data-label=(name) data-sort=(rank(cell)) {
            @match cell.verdict {
                Verdict::Certified { radius: Radius::Unbounded } => { "unbounded" }
                Verdict::Certified { radius } => {
                    (radius) @if let Some(sigma) = sigma { small { (round_down(radius.in_sigmas(sigma), 3)) " σ" } }
                    @match file.map(|file| file.radius(radius)) {
                        Some(Some(radius)) => { small { "file " (radius) } }
                        Some(None) => { small { "file: none" } }
                        None => {}
                    }
                }
                Verdict::Abstained => { span.abstained { "abstained" } }
                Verdict::Misretrieved => { span.misretrieved { "misretrieved" } }
            }
        }
    }
}

fn picture(shown: Option<&Thumbnail>, what: &str, name: &str) -> Markup {
    html! {
        @match shown {
            Some(shown) => {
                img src=(shown.uri()) alt=(format!("{what}: {name}")) width=(shown.width) height=(shown.height)
                    class=(if shown.width.max(shown.height) <= 48 { "small" } else { "large" }) {}
            }
            None => { div.placeholder role="img" aria-label=(format!("{what} {name}: the picture could not be read")) { "no picture" } }
        }
    }
}

/// Name and label of a picture, and which view of it was nearest, if items have several.
fn caption(identity: &str, label: &str, view: Option<&str>) -> Markup {
    html! {
        span.name { (identity) }
        span.label { (label) }
        @if let Some(view) = view { span.view { "view: " (view) } }
    }
}
