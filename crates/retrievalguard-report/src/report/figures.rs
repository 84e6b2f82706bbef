//! Which figures a report has.

use retrievalguard::certificate::{CertificateName, Verdict};
use retrievalguard::evaluation::Summary;
use retrievalguard::planner::Ceiling;
use retrievalguard::{SampleCount, certificate::round_down};

use super::{NamedFigure, Prepared, SampleFacts, date, evidence, in_thousands};
use crate::chart::{Axis, Dash, Figure, Marks, Panel, Series};
use crate::recall_curve::{RADIUS, SHARE, finite_radii, look, recall_steps};

pub(super) fn all(prepared: &Prepared<'_>) -> Vec<NamedFigure> {
    let mut figures = vec![recall(prepared), histogram(prepared)];
    if let Some(facts) = prepared.report.facts.basis.samples() {
        figures.push(samples(prepared, facts));
    }
    figures.push(shares(prepared));
    if let Some(attack) = prepared.report.attack {
        figures.push(evidence::bracket(prepared, attack));
    }
    figures
}

/// A figure with one panel and the line below it that says where it comes from.
pub(super) fn figure(prepared: &Prepared<'_>, title: &str, panel: Panel) -> Figure {
    let report = prepared.report;
    let mut note = format!("retrievalguard {} · {}", report.facts.tool, report.name);
    if let Some(finished) = report.facts.finished {
        note.push_str(&format!(" · run of {}", date(finished)));
    }
    Figure { title: title.to_owned(), note, panels: vec![panel] }
}

/// All certified radii that are finite, ascending.
fn radii(prepared: &Prepared<'_>, name: CertificateName) -> Vec<f64> {
    finite_radii(prepared.report.table, name)
}

fn recall(prepared: &Prepared<'_>) -> NamedFigure {
    let largest = prepared
        .summaries
        .iter()
        .filter_map(|(name, _)| radii(prepared, *name).last().copied())
        .fold(0.0, f64::max);
    let end = if largest > 0.0 { largest * 1.04 } else { 1.0 };
    let series = prepared.summaries.iter().map(|(name, summary)| {
        let shares = recall_steps(summary, &radii(prepared, *name), end);
        let points = shares.iter().map(|(radius, share)| (*radius, share.share)).collect();
        let (colour, dash) = look(*name);
        let series = Series::new(name.as_str(), colour, points).marks(Marks::Steps).dash(dash);
        if *name == prepared.headline {
            series.band(shares.iter().map(|(_, share)| (share.lower, share.upper)).collect())
        } else {
            series
        }
    });
    let panel = Panel {
        title: String::new(),
        x: Axis::linear(RADIUS),
        y: Axis::linear(SHARE).range(0.0, 1.0),
        series: series.collect(),
    };
    NamedFigure {
        name: "certified-recall",
        caption: format!(
            "Certified recall: how many of all queries are proved to stay right under every change of size r. \
             Higher and further to the right is better. The shaded band is the 95 % interval of {} over the choice \
             of queries.",
            prepared.headline
        ),
        figure: figure(prepared, "Certified recall@1", panel),
    }
}

fn histogram(prepared: &Prepared<'_>) -> NamedFigure {
    let radii = radii(prepared, prepared.headline);
    let largest = radii.last().copied().unwrap_or(0.0);
    let width = bin_width(largest);
    let mut counts = vec![0_u32; (largest / width).floor() as usize + 1];
    for radius in &radii {
        counts[(radius / width).floor() as usize] += 1;
    }
    let points = counts
        .iter()
        .enumerate()
        .map(|(place, &count)| ((place as f64 + 0.5) * width, f64::from(count)))
        .collect();
    let (colour, _) = look(prepared.headline);
    let series =
        if radii.is_empty() { vec![] } else { vec![Series::new("", colour, points).marks(Marks::Bars)] };
    let panel =
        Panel { title: String::new(), x: Axis::linear(RADIUS), y: Axis::linear("certified queries"), series };
    let summary = prepared.summary();
    let mut caption = format!(
        "Radii of the {} queries that {} certifies, in bins of {width}",
        in_thousands(radii.len() as u64),
        prepared.headline
    );
    if let Some(median) = radii.get((radii.len().max(1) - 1) / 2) {
        caption.push_str(&format!("; half of them are at least {}", round_down(*median, 4)));
    }
    caption.push_str(&format!(
        ". The other {} have no radius",
        in_thousands(u64::from(summary.rejected.count + summary.misretrieved.count))
    ));
    if summary.unbounded > 0 {
        caption.push_str(&format!(", {} have an unbounded one", summary.unbounded));
    }
    caption.push('.');
    NamedFigure {
        name: "radius-histogram",
        caption,
        figure: figure(prepared, &format!("Certified radii, {}", prepared.headline), panel),
    }
}

/// About twenty bins of 1, 2 or 5 times a power of ten.
fn bin_width(largest: f64) -> f64 {
    let rough = if largest > 0.0 { largest / 20.0 } else { 0.05 };
    let power = rough.log10().floor() as i32;
    let widths = [1.0, 2.0, 5.0, 10.0].map(|factor| {
        // A quotient of whole numbers is printed without a tail of digits.
        if power < 0 { factor / 10_f64.powi(-power) } else { factor * 10_f64.powi(power) }
    });
    widths.into_iter().find(|width| *width >= rough).unwrap_or(widths[3])
}

fn samples(prepared: &Prepared<'_>, facts: &SampleFacts) -> NamedFigure {
    let (report, name) = (prepared.report, prepared.headline);
    let rows = report.table.rows();
    let used = |row: &retrievalguard_encoder::table::ResultRow| row.certificates[&name].samples;
    let most = facts.samples.get();
    let varied = rows.iter().any(|row| used(row) != most);
    let (colour, _) = look(name);
    let mut certified = Vec::new();
    let mut abstained = Vec::new();
    for row in rows {
        let cell = row.certificates[&name];
        match cell.verdict {
            Verdict::Certified { radius } => certified.push((f64::from(cell.samples), radius.get())),
            Verdict::Abstained => abstained.push((f64::from(cell.samples), 0.0)),
            Verdict::Misretrieved => {}
        }
    }
    let mut series = ceilings(prepared, if varied { &[] } else { &[CertificateName::Paper] });
    let bounded = !series.is_empty();
    series.push(Series::new(format!("{name}, certified queries"), colour, certified).marks(Marks::Points));
    if varied {
        series.push(Series::new(format!("{name}, abstained (no radius)"), 6, abstained).marks(Marks::Points));
    }
    let panel = Panel {
        title: String::new(),
        x: Axis::log10("certifying samples n per query"),
        y: Axis::linear(RADIUS),
        series,
    };
    let mut caption = if varied {
        "Each query drew only as many samples as its decision needed.".to_owned()
    } else {
        format!(
            "Every query drew {} samples; its radius is a mark above that number.",
            in_thousands(u64::from(most))
        )
    };
    if bounded {
        caption.push_str(
            " A line is a ceiling: the radius of a query whose every sample is as good as can be. \
             It shows what more samples could buy, and that no query can be above it.",
        );
    }
    NamedFigure {
        name: "radius-against-samples",
        caption,
        figure: figure(prepared, "Radius against samples", panel),
    }
}

/// Largest radii that any query could have, over the number of samples: of the headline and of `others` in the run.
fn ceilings(prepared: &Prepared<'_>, others: &[CertificateName]) -> Vec<Series> {
    let facts = &prepared.report.facts;
    let (Some(gallery), Some(samples)) = (facts.gallery, facts.basis.samples()) else { return Vec::new() };
    let mut ceiling = Ceiling::new(samples.sigma, samples.alpha, gallery.norm_bound, gallery.dimension);
    if let Some(samples) = gallery.samples {
        ceiling = ceiling.gallery_samples(samples);
    }
    let counts: Vec<SampleCount> = (4..=24)
        .filter_map(|quarter| SampleCount::new(10_f64.powf(f64::from(quarter) / 4.0).round() as u64).ok())
        .collect();
    let present = prepared.report.table.certificates().iter().copied();
    present
        .filter(|name| *name == prepared.headline || others.contains(name))
        .map(|name| {
            let points = counts
                .iter()
                .map(|&count| {
                    (f64::from(count.get()), ceiling.largest_radius(name, count).unwrap_or(f64::NAN))
                })
                .collect();
            Series::new(format!("ceiling of {name}"), look(name).0, points).dash(Dash::Dashed)
        })
        .collect()
}

fn shares(prepared: &Prepared<'_>) -> NamedFigure {
    let names = prepared.summaries.iter().map(|(name, _)| name.to_string()).collect();
    let part = |name: &str, colour: usize, share: fn(&Summary) -> f64| {
        let points = prepared.summaries.iter().enumerate();
        let points = points.map(|(place, (_, summary))| (share(summary), place as f64)).collect();
        Series::new(name, colour, points).marks(Marks::Stacked)
    };
    let panel = Panel {
        title: String::new(),
        x: Axis::linear("share of all queries").range(0.0, 1.0),
        y: Axis::names("", names),
        series: vec![
            part("certified", 2, |summary| summary.certified.share),
            part("abstained: right, no proof", 4, |summary| summary.rejected.share),
            part("misretrieved: wrong label", 6, |summary| summary.misretrieved.share),
        ],
    };
    NamedFigure {
        name: "verdicts",
        caption: "What became of the queries under each certificate. Abstained queries are the rejected ratio: the \
                  answer is right, but these samples prove nothing about it."
            .to_owned(),
        figure: figure(prepared, "Verdicts by certificate", panel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_about_twenty_and_have_short_names() {
        for largest in [1e-6, 0.037, 0.59, 1.0, 77.0, 1e5] {
            let width = bin_width(largest);
            assert!((8.0..=21.0).contains(&(largest / width)), "{largest} {width}");
            assert!(width.to_string().len() <= 10, "{width}");
        }
        assert!(bin_width(0.0) > 0.0);
    }
}
