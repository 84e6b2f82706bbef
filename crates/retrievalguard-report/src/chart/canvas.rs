//! Puts title, panels, legend and note below each other.

use maud::{Markup, html};

use super::legend::Legend;
use super::marks::number;
use super::panel::Frame;
use super::text::{printable, wrap};
use super::theme::{Theme, style};
use super::{Figure, Layout, Panel, Scale};

/// Sizes of text, in units of the view box.
pub(super) const TITLE: f64 = 16.0;
pub(super) const TITLE_OF_PANEL: f64 = 13.0;
pub(super) const LABEL: f64 = 12.0;
pub(super) const TICK: f64 = 11.5;
const NOTE: f64 = 10.5;

const EDGE: f64 = 14.0;
const GAP: f64 = 22.0;
const LEADING: f64 = 1.35;

/// The fonts of a page; the renderer of PNG files knows the last word only.
const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

/// One line of text.
pub(super) fn words(x: f64, y: f64, size: f64, class: &str, anchor: &str, text: &str) -> Markup {
    let anchor = (anchor != "start").then_some(anchor);
    html! {
        text x=(number(x)) y=(number(y)) font-size=(number(size)) class=(class) text-anchor=[anchor] { (text) }
    }
}

/// The whole file.
pub(super) fn draw(figure: &Figure, layout: Layout, theme: Theme) -> String {
    let width = if layout.width.is_finite() { layout.width.clamp(240.0, 10_000.0) } else { 640.0 };
    let room = width - 2.0 * EDGE;
    let columns = layout.columns.clamp(1, figure.panels.len().max(1));
    let cell = (room - GAP * (columns as f64 - 1.0)) / columns as f64;
    let frames: Vec<Frame<'_>> = figure.panels.iter().map(|panel| Frame::new(panel, cell)).collect();
    let title = printable(&figure.title);
    let title_lines = wrap(&title, TITLE, room);
    let note_lines = wrap(&printable(&figure.note), NOTE, room);
    let legend = Legend::new(&figure.panels, room);

    let mut top = EDGE;
    let lines = |texts: &[String], top: f64, size: f64, class: &str| {
        html! {
            @for (place, text) in texts.iter().enumerate() {
                (words(EDGE, top + (place as f64 * LEADING + 1.0) * size, size, class, "start", text))
            }
        }
    };
    let heading = lines(&title_lines, top, TITLE, "rg-ink rg-strong");
    top += title_lines.len() as f64 * TITLE * LEADING + 6.0;
    let mut panels = Vec::new();
    for row in frames.chunks(columns) {
        let head = row.iter().map(Frame::head).fold(0.0, f64::max);
        let body = row.iter().map(Frame::body).fold(0.0, f64::max);
        for (column, frame) in row.iter().enumerate() {
            panels.push(frame.draw(EDGE + column as f64 * (cell + GAP), top, head));
        }
        top += head + body + 10.0;
    }
    let names = legend.draw(EDGE, top);
    top += legend.height() + if legend.height() > 0.0 { 6.0 } else { 0.0 };
    let note = lines(&note_lines, top, NOTE, "rg-muted");
    let height = top + note_lines.len() as f64 * NOTE * LEADING + EDGE - 4.0;

    let size = format!("0 0 {} {}", number(width), number(height));
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox=(size) width=(number(width))
            height=(number(height)) font-family=(FONTS) {
            title { (title) }
            desc { (description(figure)) }
            style { (maud::PreEscaped(style(theme))) ".rg-strong{font-weight:600}" }
            rect class="rg-paper" width=(number(width)) height=(number(height)) {}
            (heading)
            @for panel in &panels { (panel) }
            (names)
            (note)
        }
    }
    .into_string()
}

/// The figure in words, for those who cannot see it.
fn description(figure: &Figure) -> String {
    let described: Vec<String> = figure.panels.iter().map(panel_in_words).collect();
    printable(&described.join(" "))
}

fn panel_in_words(panel: &Panel) -> String {
    let axis = |name: &str, axis: &super::Axis| {
        let kind = match axis.scale {
            Scale::Linear | Scale::Names(_) => "",
            Scale::Log10 => ", logarithmic",
        };
        format!("{name}: {}{kind}.", if axis.label.is_empty() { "unnamed" } else { &axis.label })
    };
    let series: Vec<String> = panel
        .series
        .iter()
        .filter(|series| !series.name.is_empty())
        .map(|series| format!("{} ({} points)", series.name, series.points.len()))
        .collect();
    let title = if panel.title.is_empty() { String::new() } else { format!("{}. ", panel.title) };
    format!(
        "{title}{} {} Shown: {}.",
        axis("Across", &panel.x),
        axis("Up", &panel.y),
        if series.is_empty() { "nothing named".to_owned() } else { series.join(", ") }
    )
}
