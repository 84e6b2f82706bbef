//! Lines, steps, points, bars and bands.

use std::collections::HashMap;
use std::fmt::Write;

use maud::{Markup, html};

use super::scale::PlacedAxis;
use super::{Dash, Marks, Panel, Series, theme};

/// The largest number that is drawn; beyond it, distances overflow.
const MOST: f64 = 1e300;

/// From so many points on, marks are lighter.
const MANY: usize = 60;

/// Half the width of a mark.
const MARK: f64 = 3.4;

/// Height of an arrow.
pub(super) const ARROW: f64 = 9.0;

/// Whether both coordinates are numbers that an axis can hold.
pub(super) fn drawable(&(x, y): &(f64, f64)) -> bool {
    x.abs() <= MOST && y.abs() <= MOST
}

/// One bar, in the numbers of its axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    /// The series it belongs to.
    series: usize,
    /// The point it shows.
    point: usize,
    /// Its position on the axis of places.
    pub(super) place: f64,
    /// Both ends on the axis of values.
    pub(super) ends: (f64, f64),
    /// Which of the bars at one place it is.
    slot: usize,
}

/// Every bar of a panel; `floor` is where a bar begins.
pub(super) fn bars(panel: &Panel, horizontal: bool, floor: f64) -> Vec<Bar> {
    let mut found = Vec::new();
    let mut heights: HashMap<u64, f64> = HashMap::new();
    let mut slot = 0;
    for (series, content) in panel.series.iter().enumerate() {
        let stacked = match content.marks {
            Marks::Stacked => true,
            Marks::Bars => false,
            Marks::Line | Marks::Steps | Marks::Points | Marks::Arrows | Marks::LineAndPoints => continue,
        };
        for (point, &(x, y)) in content.points.iter().enumerate().filter(|(_, point)| drawable(point)) {
            let (place, value) = if horizontal { (y, x) } else { (x, y) };
            let from = if stacked { heights.get(&place.to_bits()).copied().unwrap_or(floor) } else { floor };
            let to = if stacked { from + value } else { value };
            if stacked {
                heights.insert(place.to_bits(), to);
            }
            let slot = if stacked { 0 } else { slot };
            found.push(Bar { series, point, place, ends: (from, to), slot });
        }
        slot += usize::from(!stacked);
    }
    found
}

/// The smallest distance between two places that have bars; none if there is one place only.
pub(super) fn gap(places: impl Iterator<Item = f64>) -> Option<f64> {
    let mut places: Vec<f64> = places.collect();
    places.sort_by(f64::total_cmp);
    places.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0).reduce(f64::min)
}

/// Draws every bar of a panel.
pub(super) fn draw_bars(panel: &Panel, x: &PlacedAxis, y: &PlacedAxis) -> Markup {
    let horizontal = y.has_names();
    let (places, values) = if horizontal { (y, x) } else { (x, y) };
    let bars = bars(panel, horizontal, values.floor());
    let slots = bars.iter().map(|bar| bar.slot + 1).max().unwrap_or(1) as f64;
    let gap = gap(bars.iter().filter_map(|bar| places.place(bar.place))).unwrap_or(36.0);
    let filled = if places.has_names() { 0.72 } else { 0.94 };
    let thickness = (gap * filled / slots).max(0.5);
    html! {
        @for bar in &bars {
            @if let (Some(at), Some(one), Some(other)) =
                (places.place(bar.place), values.place(bar.ends.0), values.place(bar.ends.1)) {
                @let side = at + (bar.slot as f64 - slots / 2.0) * thickness;
                @let (start, length) = (one.min(other), (one - other).abs());
                @let series = &panel.series[bar.series];
                @if horizontal {
                    rect class=(theme::fill(series.colour)) x=(number(start)) y=(number(side))
                        width=(number(length)) height=(number(thickness)) {}
                } @else {
                    rect class=(theme::fill(series.colour)) x=(number(side)) y=(number(start))
                        width=(number(thickness)) height=(number(length)) {}
                }
                @if let Some(&(low, high)) = series.band.as_ref().and_then(|band| band.get(bar.point)) {
                    @if let (Some(low), Some(high)) = (values.place(low), values.place(high)) {
                        @let middle = side + thickness / 2.0;
                        @if horizontal {
                            path class="rg-axis" d=(format!("M{} {}H{}", number(low), number(middle), number(high))) stroke-width="1.5" {}
                        } @else {
                            path class="rg-axis" d=(format!("M{} {}V{}", number(middle), number(low), number(high))) stroke-width="1.5" {}
                        }
                    }
                }
            }
        }
    }
}

/// Draws one series that is not bars.
pub(super) fn draw_series(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> Markup {
    let line = matches!(series.marks, Marks::Line | Marks::Steps | Marks::LineAndPoints);
    let points = matches!(series.marks, Marks::Points | Marks::LineAndPoints);
    if series.marks == Marks::Arrows {
        let path: String = visible(series, x, y).map(|(_, across, down)| arrow(across, down)).collect();
        return arrows(series.colour, &path);
    }
    if !line && !points {
        return html! {};
    }
    html! {
        @if line {
            @for area in areas(series, x, y) {
                path class=(theme::fill(series.colour)) fill-opacity="0.16" d=(area) {}
            }
            (stroke(series.colour, series.dash, &outline(series, x, y)))
        }
        @if points {
            @if !line {
                @let whiskers = whiskers(series, x, y);
                @if !whiskers.is_empty() {
                    path class=(theme::stroke(series.colour)) fill="none" stroke-width="1.2" d=(whiskers) {}
                }
            }
            @let marks = marks(series, x, y);
            @if !marks.is_empty() {
                // One path would cover overlaps once; many marks are light enough to see where they crowd.
                @let opacity = if series.points.len() > MANY { "0.55" } else { "0.85" };
                path class=(theme::fill(series.colour)) fill-opacity=(opacity) d=(marks) {}
            }
        }
    }
}

/// A line in a series' colour.
pub(super) fn stroke(colour: usize, dash: Dash, path: &str) -> Markup {
    let pattern = match dash {
        Dash::Solid => None,
        Dash::Dashed => Some("7 4"),
        Dash::Dotted => Some("0.1 4.5"),
    };
    html! {
        @if !path.is_empty() {
            path class=(theme::stroke(colour)) fill="none" stroke-width="2.2" stroke-linejoin="round"
                stroke-linecap=(if dash == Dash::Dotted { "round" } else { "butt" })
                stroke-dasharray=[pattern] d=(path) {}
        }
    }
}

/// Arrows in a series' colour; outlined, unlike the marks of values.
pub(super) fn arrows(colour: usize, path: &str) -> Markup {
    html! {
        @if !path.is_empty() {
            path class=(theme::stroke(colour)) fill="none" stroke-width="1.4" d=(path) {}
        }
    }
}

/// A bar at the point and an arrow upwards from it, as a path.
pub(super) fn arrow(x: f64, y: f64) -> String {
    let (r, n) = (MARK, number);
    format!("M{} {}h{}M{} {}v-{ARROW}l-{r} {r}m{r} -{r}l{r} {r}", n(x - r), n(y), n(2.0 * r), n(x), n(y))
}

/// The shape that goes with a colour, as a path around a centre.
pub(super) fn mark(colour: usize, x: f64, y: f64) -> String {
    let (r, n) = (MARK, number);
    match colour % 4 {
        0 => format!("M{} {}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", n(x - r), n(y), d = n(2.0 * r)),
        1 => format!("M{} {}l{r} {r}l-{r} {r}l-{r} -{r}z", n(x), n(y - r)),
        2 => format!("M{} {}l{r} {h}h-{h}z", n(x), n(y - r), h = n(2.0 * r)),
        _ => format!("M{} {}h{h}v{h}h-{h}z", n(x - r * 0.9), n(y - r * 0.9), h = n(1.8 * r)),
    }
}

/// A coordinate with as many digits as one can see.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// Runs of points without a gap, each with its place and its place in the series.
fn runs(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> Vec<Vec<(usize, f64, f64)>> {
    let mut runs = vec![Vec::new()];
    for (position, point) in series.points.iter().enumerate() {
        let place = drawable(point).then(|| Some((x.place(point.0)?, y.place(point.1)?))).flatten();
        match (place, runs.last_mut()) {
            (Some((across, down)), Some(run)) => run.push((position, across, down)),
            (Some(_), None) => {}
            (None, _) => runs.push(Vec::new()),
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

fn outline(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> String {
    let mut path = String::new();
    for run in runs(series, x, y) {
        let line: Vec<(f64, f64)> = run.iter().map(|&(_, across, down)| (across, down)).collect();
        trace(&mut path, 'M', series.marks == Marks::Steps, line.into_iter());
    }
    path
}

/// Writes a polyline, or steps, that begins with the given command.
fn trace(path: &mut String, begin: char, steps: bool, points: impl Iterator<Item = (f64, f64)>) {
    for (place, (across, down)) in points.enumerate() {
        let (across, down) = (number(across), number(down));
        let _ = match (place, steps) {
            (0, _) => write!(path, "{begin}{across} {down}"),
            (_, true) => write!(path, "H{across}V{down}"),
            (_, false) => write!(path, "L{across} {down}"),
        };
    }
}

/// The areas between the lower and the upper ends of the band.
fn areas(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> Vec<String> {
    let Some(band) = &series.band else { return Vec::new() };
    let steps = series.marks == Marks::Steps;
    let mut areas = Vec::new();
    for run in runs(series, x, y) {
        let ends: Vec<(f64, f64, f64)> = run
            .iter()
            .filter_map(|&(position, across, _)| {
                let &(low, high) = band.get(position)?;
                Some((across, y.place(low)?, y.place(high)?))
            })
            .collect();
        let mut path = String::new();
        trace(&mut path, 'M', steps, ends.iter().map(|&(across, _, high)| (across, high)));
        // Back along the lower ends: a step that was sideways, then down, is down, then sideways.
        for (place, &(across, low, _)) in ends.iter().enumerate().rev() {
            let _ = match ends.get(place + 1) {
                Some(_) if steps => write!(path, "V{}H{}", number(low), number(across)),
                _ => write!(path, "L{} {}", number(across), number(low)),
            };
        }
        if ends.len() > 1 {
            path.push('z');
            areas.push(path);
        }
    }
    areas
}

fn marks(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> String {
    visible(series, x, y).map(|(_, across, down)| mark(series.colour, across, down)).collect()
}

fn whiskers(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> String {
    let Some(band) = &series.band else { return String::new() };
    let whisker = |(position, across, _): (usize, f64, f64)| {
        let &(low, high) = band.get(position)?;
        Some(format!("M{} {}V{}", number(across), number(y.place(low)?), number(y.place(high)?)))
    };
    visible(series, x, y).filter_map(whisker).collect()
}

/// Points inside both axes.
fn visible(series: &Series, x: &PlacedAxis, y: &PlacedAxis) -> impl Iterator<Item = (usize, f64, f64)> {
    series.points.iter().enumerate().filter_map(|(position, point)| {
        let inside = drawable(point) && x.holds(point.0) && y.holds(point.1);
        inside.then(|| Some((position, x.place(point.0)?, y.place(point.1)?))).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::super::scale::Direction;
    use super::*;

    fn axes() -> (PlacedAxis, PlacedAxis) {
        let place = |direction, ends| {
            PlacedAxis::new(&Axis::linear("").range(0.0, 10.0), std::iter::empty(), direction, ends, 11.0)
        };
        (place(Direction::Horizontal, (0.0, 100.0)), place(Direction::Vertical, (100.0, 0.0)))
    }

    #[test]
    fn a_step_holds_its_value_until_the_next_point() {
        let (x, y) = axes();
        let series = Series::new("", 0, vec![(0.0, 9.0), (5.0, 4.0)]).marks(Marks::Steps);
        assert_eq!(outline(&series, &x, &y), "M0 10H50V60");
    }

    #[test]
    fn a_number_that_is_none_interrupts_the_line() {
        let (x, y) = axes();
        for bad in [(2.0, f64::NAN), (f64::INFINITY, 2.0), (2.0, 1e301)] {
            let series = Series::new("", 0, vec![(0.0, 0.0), (1.0, 1.0), bad, (3.0, 3.0), (4.0, 4.0)]);
            assert_eq!(outline(&series, &x, &y), "M0 100L10 90M30 70L40 60", "{bad:?}");
        }
    }

    #[test]
    fn points_outside_the_axes_have_no_mark() {
        let (x, y) = axes();
        let series = Series::new("", 0, vec![(5.0, 5.0), (11.0, 5.0), (5.0, -1.0)]).marks(Marks::Points);
        assert_eq!(visible(&series, &x, &y).count(), 1);
    }

    #[test]
    fn an_arrow_is_outlined_and_leads_upwards_from_its_point() {
        let (x, y) = axes();
        let series = Series::new("", 2, vec![(5.0, 5.0), (11.0, 5.0)]).marks(Marks::Arrows);
        let drawn = draw_series(&series, &x, &y).into_string();
        assert_eq!(drawn.matches("<path").count(), 1);
        assert!(drawn.contains("fill=\"none\"") && drawn.contains("M46.6 50h6.8M50 50v-9l"), "{drawn}");
    }

    #[test]
    fn stacked_bars_begin_where_the_one_below_ends() {
        let series = |name: &str| Series::new(name, 0, vec![(1.0, 0.25), (2.0, 0.5)]).marks(Marks::Stacked);
        let panel = Panel {
            title: String::new(),
            x: Axis::linear(""),
            y: Axis::linear(""),
            series: vec![series("one"), series("two")],
        };
        let ends: Vec<(f64, f64)> = bars(&panel, false, 0.0).iter().map(|bar| bar.ends).collect();
        assert_eq!(ends, [(0.0, 0.25), (0.0, 0.5), (0.25, 0.5), (0.5, 1.0)]);
    }

    #[test]
    fn a_band_is_a_closed_area_and_may_end_before_its_line() {
        let (x, y) = axes();
        let series =
            Series::new("", 0, vec![(0.0, 5.0), (5.0, 5.0), (9.0, 5.0)]).band(vec![(4.0, 6.0), (4.0, 6.0)]);
        assert_eq!(areas(&series, &x, &y), ["M0 40L50 40L50 60L0 60z"]);
        let steps = series.marks(Marks::Steps).band(vec![(4.0, 6.0), (3.0, 5.0)]);
        assert_eq!(areas(&steps, &x, &y), ["M0 40H50V50L50 70V60H0z"]);
    }
}
