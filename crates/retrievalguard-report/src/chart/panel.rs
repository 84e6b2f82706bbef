//! One pair of axes: its room, its grid, its words.

use maud::{Markup, html};

use super::canvas::{LABEL, TICK, TITLE_OF_PANEL, words};
use super::marks::{bars, draw_bars, draw_series, drawable, gap, number};
use super::scale::{Direction, PlacedAxis};
use super::text::{printable, shortened, width, wrap};
use super::{Marks, Panel, Scale};

/// Room between lines of text, as a multiple of their size.
const LEADING: f64 = 1.35;

/// Room that marks at the very edge may take beyond it.
const BLEED: f64 = 5.0;

/// A panel that knows how much room it takes.
pub(super) struct Frame<'a> {
    panel: &'a Panel,
    title: Vec<String>,
    above: Vec<String>,
    below: Vec<String>,
    x: PlacedAxis,
    y: PlacedAxis,
    left: f64,
    plot: (f64, f64),
    slanted: bool,
    tick_room: f64,
}

impl<'a> Frame<'a> {
    /// Lays a panel out in a given width.
    pub(super) fn new(panel: &'a Panel, room: f64) -> Self {
        let horizontal = matches!(panel.y.scale, Scale::Names(_));
        let height = match &panel.y.scale {
            Scale::Names(names) => names.len().max(1) as f64 * 28.0,
            Scale::Linear | Scale::Log10 => (room * 0.56).clamp(170.0, 300.0),
        };
        let (across, down) = values(panel, horizontal);
        let mut y = PlacedAxis::new(&panel.y, down.into_iter(), Direction::Vertical, (height, 0.0), TICK);
        if horizontal {
            for (_, name) in &mut y.ticks {
                *name = shortened(name, TICK, room * 0.42);
            }
        }
        let left = y.ticks.iter().map(|(_, label)| width(label, TICK)).fold(0.0, f64::max) + 8.0;
        let place = |right: f64| {
            let ends = (0.0, (room - left - right).max(40.0));
            (PlacedAxis::new(&panel.x, across.iter().copied(), Direction::Horizontal, ends, TICK), ends.1)
        };
        let (mut x, mut length) = place(14.0);
        // The last number is centred on the end of the axis and must not leave the figure.
        let overhang = x.ticks.last().map_or(0.0, |(_, label)| width(label, TICK) / 2.0);
        if overhang > 14.0 && !x.has_names() {
            (x, length) = place(overhang);
        }
        let slanted = matches!(panel.x.scale, Scale::Names(_))
            && x.ticks.iter().any(|(_, name)| width(name, TICK) > x.unit() - 6.0);
        if slanted {
            for (_, name) in &mut x.ticks {
                *name = shortened(name, TICK, 110.0);
            }
        }
        let longest = x.ticks.iter().map(|(_, name)| width(name, TICK)).fold(0.0, f64::max);
        let tick_room = if slanted { longest * 0.64 + TICK } else { TICK * LEADING } + 7.0;
        Self {
            panel,
            title: wrap(&printable(&panel.title), TITLE_OF_PANEL, room),
            above: wrap(&printable(&panel.y.label), LABEL, room),
            below: wrap(&printable(&panel.x.label), LABEL, length + 14.0),
            x,
            y,
            left,
            plot: (length, height),
            slanted,
            tick_room,
        }
    }

    /// Room that the words above the plot take.
    pub(super) fn head(&self) -> f64 {
        let lines = |lines: &[String], size: f64| lines.len() as f64 * size * LEADING;
        lines(&self.title, TITLE_OF_PANEL) + lines(&self.above, LABEL) + 8.0
    }

    /// Room that the plot and everything below it take.
    pub(super) fn body(&self) -> f64 {
        self.plot.1 + self.tick_room + self.below.len() as f64 * LABEL * LEADING + 4.0
    }

    /// Draws the panel with its plot beginning `head` below `top`.
    pub(super) fn draw(&self, left: f64, top: f64, head: f64) -> Markup {
        let (length, height) = self.plot;
        let origin = (left + self.left, top + head);
        let title_top = origin.1 - self.head();
        let above_top = title_top + self.title.len() as f64 * TITLE_OF_PANEL * LEADING;
        let below_top = origin.1 + height + self.tick_room;
        let inner = format!(
            "{} {} {} {}",
            number(-BLEED),
            number(-BLEED),
            number(length + 2.0 * BLEED),
            number(height + 2.0 * BLEED)
        );
        let lines = |texts: &[String], x: f64, top: f64, size: f64, class: &str, anchor: &str| {
            html! {
                @for (place, text) in texts.iter().enumerate() {
                    (words(x, top + (place as f64 * LEADING + 1.0) * size, size, class, anchor, text))
                }
            }
        };
        html! {
            (lines(&self.title, left, title_top, TITLE_OF_PANEL, "rg-ink rg-strong", "start"))
            (lines(&self.above, left, above_top, LABEL, "rg-muted", "start"))
            g transform=(format!("translate({} {})", number(origin.0), number(origin.1))) {
                (self.grid())
                (self.ticks())
                @if self.empty() {
                    (words(length / 2.0, height / 2.0, LABEL, "rg-muted", "middle", "nothing to show"))
                }
                // A nested view cuts lines at its edges without an identifier that could clash in a page.
                svg x=(number(-BLEED)) y=(number(-BLEED)) width=(number(length + 2.0 * BLEED))
                    height=(number(height + 2.0 * BLEED)) viewBox=(inner) {
                    (draw_bars(self.panel, &self.x, &self.y))
                    @for series in &self.panel.series { (draw_series(series, &self.x, &self.y)) }
                }
            }
            (lines(&self.below, origin.0 + length / 2.0, below_top, LABEL, "rg-muted", "middle"))
        }
    }

    fn empty(&self) -> bool {
        let shown = |&(x, y): &(f64, f64)| self.x.place(x).is_some() && self.y.place(y).is_some();
        !self
            .panel
            .series
            .iter()
            .any(|series| series.points.iter().any(|point| drawable(point) && shown(point)))
    }

    fn grid(&self) -> Markup {
        let (length, height) = self.plot;
        let mut lines = String::new();
        for (value, _) in self.y.ticks.iter().filter(|_| !self.y.has_names()) {
            if let Some(place) = self.y.place(*value) {
                lines.push_str(&format!("M0 {}H{}", number(place), number(length)));
            }
        }
        for (value, _) in self.x.ticks.iter().filter(|_| !self.x.has_names()) {
            if let Some(place) = self.x.place(*value) {
                lines.push_str(&format!("M{} 0V{}", number(place), number(height)));
            }
        }
        html! {
            path class="rg-grid" fill="none" stroke-width="1" d=(lines) {}
            path class="rg-axis" fill="none" stroke-width="1"
                d=(format!("M0 0V{}H{}", number(height), number(length))) {}
        }
    }

    fn ticks(&self) -> Markup {
        let height = self.plot.1;
        // Numbers that would touch their neighbour are left out; their grid line stays.
        let mut end = f64::NEG_INFINITY;
        let kept = self.x.ticks.iter().filter_map(|(value, label)| {
            let place = self.x.place(*value)?;
            let half = if self.slanted { 0.0 } else { width(label, TICK) / 2.0 };
            let fits = place - half > end + 5.0;
            if fits {
                end = place + half;
            }
            fits.then_some((place, label))
        });
        html! {
            @for (place, label) in kept {
                @if self.slanted {
                    g transform=(format!("translate({} {}) rotate(-40)", number(place + 4.0), number(height + TICK + 3.0))) {
                        (words(0.0, 0.0, TICK, "rg-muted", "end", label))
                    }
                } @else {
                    (words(place, height + TICK + 6.0, TICK, "rg-muted", "middle", label))
                }
            }
            @for (value, label) in &self.y.ticks {
                @if let Some(place) = self.y.place(*value) {
                    (words(-7.0, place + TICK * 0.36, TICK, "rg-muted", "end", label))
                }
            }
        }
    }
}

/// Every number that the axes have to show, of points that can be drawn.
fn values(panel: &Panel, horizontal: bool) -> (Vec<f64>, Vec<f64>) {
    let (mut across, mut down) = (Vec::new(), Vec::new());
    for series in &panel.series {
        let bars = matches!(series.marks, Marks::Bars | Marks::Stacked);
        for (place, point) in series.points.iter().enumerate().filter(|(_, point)| drawable(point)) {
            if !bars {
                across.push(point.0);
                down.push(point.1);
            }
            if let Some(&(low, high)) = series.band.as_ref().and_then(|band| band.get(place)) {
                let along = if bars && horizontal { &mut across } else { &mut down };
                along.extend([low, high].into_iter().filter(|end| drawable(&(*end, 0.0))));
            }
        }
    }
    let bars = bars(panel, horizontal, 0.0);
    let half = gap(bars.iter().map(|bar| bar.place)).unwrap_or(0.0) / 2.0;
    let (places, heights) = if horizontal { (&mut down, &mut across) } else { (&mut across, &mut down) };
    for bar in bars {
        places.extend([bar.place - half, bar.place + half]);
        heights.extend([bar.ends.0, bar.ends.1]);
    }
    (across, down)
}
