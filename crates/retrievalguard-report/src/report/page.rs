//! The page around everything.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::{Prepared, ReportError, date, evidence, figures, queries, statement, visible};
use crate::chart::Layout;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("sort.js");

/// Width of a figure beside another one.
const HALF_PAGE: Layout = Layout { width: 560.0, columns: 1 };

/// The whole file.
pub(super) fn page(prepared: &Prepared<'_>) -> Result<String, ReportError> {
    let report = prepared.report;
    let title = format!("RetrievalGuard report: {}", report.name);
    // Nothing is fetched, and no script runs but this one.
    let policy = format!(
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()))
    );
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("retrievalguard {}", report.facts.tool));
                // No request for an icon.
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#queries" { "Skip to the table of queries" }
                header {
                    p.kind { "RetrievalGuard report" }
                    h1 { (report.name) }
                    p.muted {
                        "Certificates of " (report.table.rows().len()) " queries "
                        @if let Some(sigma) = report.table.sigma() { "at σ = " (sigma) } @else { "without noise" }
                        @if let Some(finished) = report.facts.finished { ", finished " (date(finished)) }
                        ". Numbers speak of " code { (prepared.headline) } " unless they say otherwise."
                    }
                    nav aria-label="Sections" {
                        a href="#statement" { "Statement" }
                        a href="#certificates" { "Certificates" }
                        @if !report.visible.is_empty() { a href="#visible" { "A radius, seen" } }
                        a href="#figures" { "Figures" }
                        @if report.attack.is_some() { a href="#attacks" { "Attacks" } }
                        a href="#queries" { "Queries" }
                        a href="#facts" { "Inputs" }
                        a href="#commands" { "Commands" }
                    }
                }
                main {
                    (statement::headline(prepared))
                    @if !report.notes.is_empty() {
                        aside.notes aria-label="Notes" {
                            ul { @for note in &report.notes { li { (note) } } }
                        }
                    }
                    (statement::statement(prepared))
                    (statement::certificates(prepared))
                    @if !report.visible.is_empty() { (visible::section(prepared)) }
                    (drawn(prepared))
                    @if let Some(attack) = report.attack { (evidence::section(attack)) }
                    (queries::section(prepared))
                    (statement::facts(prepared))
                    (commands(prepared))
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    Ok(markup.into_string())
}

fn drawn(prepared: &Prepared<'_>) -> Markup {
    html! {
        section #figures aria-labelledby="figures-title" {
            h2 #figures-title { "Figures" }
            p.muted { "Each lies beside this page as SVG and PNG, in " code { "figures/" } "." }
            div.figures {
                @for figure in figures::all(prepared) {
                    figure id=(format!("figure-{}", figure.name)) {
                        // Two shapes of one figure; the style sheet shows the one that fits.
                        div.wide { (PreEscaped(figure.figure.svg_in(HALF_PAGE))) }
                        div.narrow { (PreEscaped(figure.figure.svg_in(Layout::NARROW))) }
                        figcaption { (figure.caption) }
                    }
                }
            }
        }
    }
}

fn commands(prepared: &Prepared<'_>) -> Markup {
    html! {
        section #commands aria-labelledby="commands-title" {
            h2 #commands-title { "Commands to make it again" }
            @for command in &prepared.report.commands {
                p { (command.purpose) }
                @if let Some(line) = &command.line { pre tabindex="0" { code { (line) } } }
            }
            p.muted {
                "The same inputs, parameters and engine give the same bytes; "
                code { "retrievalguard explain QUERY --run " (prepared.report.name) }
                " prints the numbers behind one certificate."
            }
        }
    }
}
