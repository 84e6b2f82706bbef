//! Which name goes with which colour, below all panels.

use maud::{Markup, html};

use super::canvas::{TICK, words};
use super::marks::{ARROW, arrow, arrows, mark, number, stroke};
use super::text::{printable, shortened, width};
use super::{Dash, Marks, Panel, theme};

const SWATCH: f64 = 26.0;
const ROW: f64 = 20.0;
const GAP: f64 = 18.0;

struct Entry {
    name: String,
    colour: usize,
    dash: Dash,
    marks: Marks,
    x: f64,
    row: usize,
}

/// The names of a figure, in rows.
pub(super) struct Legend {
    entries: Vec<Entry>,
    rows: usize,
}

impl Legend {
    /// Collects every name once for each way in which it is drawn.
    pub(super) fn new(panels: &[Panel], room: f64) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        let (mut x, mut row) = (0.0, 0);
        for series in panels.iter().flat_map(|panel| &panel.series).filter(|series| !series.name.is_empty()) {
            let name = shortened(&printable(&series.name), TICK, room - SWATCH - 8.0);
            let known = |entry: &Entry| {
                (&entry.name, entry.colour, entry.dash, entry.marks)
                    == (&name, series.colour, series.dash, series.marks)
            };
            if entries.iter().any(known) {
                continue;
            }
            let length = SWATCH + 8.0 + width(&name, TICK);
            if x > 0.0 && x + length > room {
                (x, row) = (0.0, row + 1);
            }
            entries.push(Entry {
                name,
                colour: series.colour,
                dash: series.dash,
                marks: series.marks,
                x,
                row,
            });
            x += length + GAP;
        }
        let rows = if entries.is_empty() { 0 } else { row + 1 };
        Self { entries, rows }
    }

    pub(super) fn height(&self) -> f64 {
        self.rows as f64 * ROW
    }

    pub(super) fn draw(&self, left: f64, top: f64) -> Markup {
        html! {
            @for entry in &self.entries {
                @let (x, middle) = (left + entry.x, top + (entry.row as f64 + 0.5) * ROW);
                (swatch(entry, x, middle))
                (words(x + SWATCH + 8.0, middle + TICK * 0.36, TICK, "rg-ink", "start", &entry.name))
            }
        }
    }
}

fn swatch(entry: &Entry, x: f64, middle: f64) -> Markup {
    let line = format!("M{} {}h{SWATCH}", number(x), number(middle));
    let dot = mark(entry.colour, x + SWATCH / 2.0, middle);
    html! {
        @match entry.marks {
            Marks::Line | Marks::Steps => { (stroke(entry.colour, entry.dash, &line)) }
            Marks::Points => { path class=(theme::fill(entry.colour)) d=(dot) {} }
            Marks::Arrows => { (arrows(entry.colour, &arrow(x + SWATCH / 2.0, middle + ARROW / 2.0))) }
            Marks::LineAndPoints => {
                (stroke(entry.colour, entry.dash, &line))
                path class=(theme::fill(entry.colour)) d=(dot) {}
            }
            Marks::Bars | Marks::Stacked => {
                rect class=(theme::fill(entry.colour)) x=(number(x + 6.0)) y=(number(middle - 6.0))
                    width="14" height="12" {}
            }
        }
    }
}
