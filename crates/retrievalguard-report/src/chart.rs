//! Figures: plain numbers in, SVG or PNG out.
//!
//! A figure is panels side by side with one legend below them. The same figure gives the same bytes, always.
//!
//! ```
//! use retrievalguard_report::chart::{Axis, Figure, Marks, Panel, Series};
//!
//! let curve = Series::new("half-space", 0, vec![(0.0, 0.9), (0.2, 0.5), (0.4, 0.0)]).marks(Marks::Steps);
//! let figure = Figure {
//!     title: "Certified recall".to_owned(),
//!     note: "retrievalguard report run".to_owned(),
//!     panels: vec![Panel {
//!         title: String::new(),
//!         x: Axis::linear("radius r (l2, pixels in [0, 1])"),
//!         y: Axis::linear("recall@1 at r").range(0.0, 1.0),
//!         series: vec![curve],
//!     }],
//! };
//! assert!(figure.svg().contains("half-space"));
//! assert!(figure.png(2.0)?.starts_with(b"\x89PNG"));
//! # Ok::<(), retrievalguard_report::chart::FigureError>(())
//! ```
//!
//! # Numbers that cannot be drawn
//!
//! A point with a coordinate that is infinite or not a number, or not above zero on a logarithmic axis, is left out,
//! and a line is interrupted there. A point outside an axis' range is left out; a line to it is cut at the edge. A
//! panel without any point that can be drawn says so.

mod canvas;
mod legend;
mod marks;
mod panel;
mod raster;
mod scale;
mod text;
mod theme;
pub(crate) mod ticks;

pub use raster::FigureError;

/// Panels under one title, with one legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What the figure shows.
    pub title: String,
    /// A small line below everything: the command, the commit, the date.
    pub note: String,
    /// The panels, in reading order.
    pub panels: Vec<Panel>,
}

/// One pair of axes and what is drawn between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What this panel shows; empty for none.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, the first at the bottom.
    pub series: Vec<Series>,
}

/// An axis with its words.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What is measured, with its unit.
    pub label: String,
    /// How numbers become places.
    pub scale: Scale,
    /// Both ends; chosen from the points if absent, and if the ends are not finite and ascending (on a logarithmic
    /// axis also above zero).
    pub range: Option<(f64, f64)>,
}

/// How numbers become places on an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Equal steps are equally long.
    Linear,
    /// Equal factors are equally long.
    Log10,
    /// The number `i` means the name at place `i`; on a vertical axis the first name is at the top.
    Names(Vec<String>),
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend; a series without one is not in the legend.
    pub name: String,
    /// A place in the palette of eight colours, counted round.
    pub colour: usize,
    /// How its line is drawn.
    pub dash: Dash,
    /// How its points are drawn.
    pub marks: Marks,
    /// The points, in drawing order.
    pub points: Vec<(f64, f64)>,
    /// Lower and upper end of the uncertainty of each point's value, if there is any; a missing tail has none.
    pub band: Option<Vec<(f64, f64)>>,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dash {
    /// Without gaps.
    Solid,
    /// Long strokes.
    Dashed,
    /// Dots.
    Dotted,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Straight lines from point to point.
    Line,
    /// A value holds until the next point, where it jumps.
    Steps,
    /// A mark at each point, its shape going with the colour.
    Points,
    /// An arrow upwards from each point, outlined: what is sought lies somewhere beyond, if anywhere.
    Arrows,
    /// Both lines and points.
    LineAndPoints,
    /// Bars from zero, beside those of other series at the same place; horizontal if the vertical axis has names.
    Bars,
    /// Bars that begin where those of the series before end.
    Stacked,
}

/// How much room a figure has, in units of the view box; text is 11 to 16 units high.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Width of the whole figure.
    pub width: f64,
    /// Most panels in a row.
    pub columns: usize,
}

impl Layout {
    /// As wide as a phone: every panel in a row of its own.
    pub const NARROW: Self = Self { width: 340.0, columns: 1 };

    /// A single panel has 640 units; several have at least 340 each, two or three in a row.
    pub fn usual(panels: usize) -> Self {
        match panels {
            0 | 1 => Self { width: 640.0, columns: 1 },
            2 | 4 => Self { width: 760.0, columns: 2 },
            _ => Self { width: 1060.0, columns: 3 },
        }
    }
}

impl Figure {
    /// A whole SVG file for light and dark backgrounds, with words for screen readers.
    pub fn svg(&self) -> String {
        self.svg_in(Layout::usual(self.panels.len()))
    }

    /// The same with another shape, for another width of page.
    pub fn svg_in(&self, layout: Layout) -> String {
        canvas::draw(self, layout, theme::Theme::LightAndDark)
    }

    /// The figure on white as a PNG file, `scale` pixels per unit of the SVG.
    pub fn png(&self, scale: f32) -> Result<Vec<u8>, FigureError> {
        let svg = canvas::draw(self, Layout::usual(self.panels.len()), theme::Theme::Light);
        raster::png(&svg, scale)
    }
}

impl Axis {
    /// An axis of equal steps.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, range: None }
    }

    /// An axis of equal factors.
    pub fn log10(label: impl Into<String>) -> Self {
        Self { scale: Scale::Log10, ..Self::linear(label) }
    }

    /// An axis of names.
    pub fn names(label: impl Into<String>, names: Vec<String>) -> Self {
        Self { scale: Scale::Names(names), ..Self::linear(label) }
    }

    /// Sets both ends.
    #[must_use]
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }
}

impl Series {
    /// A solid line.
    pub fn new(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, dash: Dash::Solid, marks: Marks::Line, points, band: None }
    }

    /// Sets how the points are drawn.
    #[must_use]
    pub fn marks(self, marks: Marks) -> Self {
        Self { marks, ..self }
    }

    /// Sets how the line is drawn.
    #[must_use]
    pub fn dash(self, dash: Dash) -> Self {
        Self { dash, ..self }
    }

    /// Sets the uncertainty of each value.
    #[must_use]
    pub fn band(self, band: Vec<(f64, f64)>) -> Self {
        Self { band: Some(band), ..self }
    }
}

#[cfg(test)]
mod tests;
