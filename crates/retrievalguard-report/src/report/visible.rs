//! What certified radii look like, on a few queries of the run.

use maud::{Markup, html};

use super::{Prepared, QueryRadius};
use crate::picture::Thumbnail;

/// The section of the page.
pub(super) fn section(prepared: &Prepared<'_>) -> Markup {
    html! {
        section #visible aria-labelledby="visible-title" {
            h2 #visible-title { "What a radius looks like" }
            div.prose {
                p {
                    "The input of the encoder, the same after a change of exactly the certified radius, and the change alone. The "
                    "direction is random: the proof covers every direction, also those that someone aims."
                }
            }
            @for QueryRadius { rank, identity, seen } in &prepared.report.visible {
                div.prose { p { strong { (rank) } ", " code { (identity) } ": " (seen.words()) } }
                div.visible {
                    (figure(identity, &seen.original, "the query", "as the encoder gets it".to_owned()))
                    (figure(identity, &seen.changed, "changed by its radius", format!("‖δ‖₂ = {}", seen.radius)))
                    (figure(identity, &seen.change, "the change", format!("the change, {} times", seen.times)))
                }
            }
        }
    }
}

fn figure(identity: &str, picture: &Thumbnail, what: &str, caption: String) -> Markup {
    html! {
        figure {
            img src=(picture.uri()) alt=(format!("{identity}: {what}")) width=(picture.width) height=(picture.height) {}
            figcaption { (caption) @if picture.piece { " (centre)" } }
        }
    }
}
