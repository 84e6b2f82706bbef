//! What a certified radius looks like: a query, the query changed by its radius, and the change enlarged.

use maud::{Markup, html};
use retrievalguard::certificate::round_down;

use super::{Prepared, VisibleRadius, in_thousands};
use crate::picture::Thumbnail;

/// The section of the page.
pub(super) fn section(prepared: &Prepared<'_>) -> Markup {
    let values = prepared.report.facts.input.map(|shape| shape.iter().product::<usize>());
    html! {
        section #visible aria-labelledby="visible-title" {
            h2 #visible-title { "What a radius looks like" }
            div.prose {
                p {
                    "The input of the encoder, the same after a change of exactly the certified radius, and the change alone. The "
                    "direction is random: the proof covers every direction, also those that someone aims."
                }
            }
            @for shown in &prepared.report.visible {
                div.prose { p { (words(shown, values)) } }
                div.visible {
                    (figure(shown, &shown.original, "the query", "as the encoder gets it".to_owned()))
                    (figure(shown, &shown.changed, "changed by its radius", format!("‖δ‖₂ = {}", shown.radius)))
                    (figure(shown, &shown.change.0, "the change", format!("the change, {} times", shown.change.1)))
                }
            }
        }
    }
}

fn words(shown: &VisibleRadius, values: Option<usize>) -> Markup {
    let VisibleRadius { rank, identity, radius, .. } = shown;
    html! {
        strong { (rank) } ", " code { (identity) } ": l2 radius " (radius)
        @if let Some(values) = values {
            "; the same energy spread over all " (in_thousands(values as u64)) " values is "
            (round_down(radius.in_grey_levels(values), 2)) " of 255 grey levels on each, and every change of at most that much per value (l∞ "
            (round_down(radius.l_infinity(values).get(), 6)) ") is covered; on a single value it is "
            @if radius.in_8bit_steps() < 255.0 { (round_down(radius.in_8bit_steps(), 1)) " of 255." }
            @else { "all of its 255." }
        } @else { "." }
    }
}

fn figure(shown: &VisibleRadius, picture: &Thumbnail, what: &str, caption: String) -> Markup {
    html! {
        figure {
            img src=(picture.uri()) alt=(format!("{}: {what}", shown.identity)) width=(picture.width) height=(picture.height) {}
            figcaption { (caption) @if picture.piece { " (centre)" } }
        }
    }
}
