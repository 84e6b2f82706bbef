//! Figures of experiments: the results of a sweep, or a closed form, as curves.

use retrievalguard::certificate::{Radius, lipschitz_bound, lipschitz_bound_linear};
use retrievalguard::evaluation::Summary;
use retrievalguard_encoder::experiment::{
    Factor, FigureConfig, FigureKind, LipschitzConfig, Results, ResultsError, Setting,
};

use crate::chart::{Axis, Dash, Figure, Marks, Panel, Series};
use crate::report::in_thousands;

/// Points of a closed-form curve.
const RESOLUTION: u32 = 200;

/// Distance, bound of Eq. (1) and bound of Eq. (2), from zero to the largest distance.
pub fn lipschitz_curves(config: LipschitzConfig) -> Vec<[f64; 3]> {
    let distance = |step: u32| config.distance * f64::from(step) / f64::from(RESOLUTION);
    (0..=RESOLUTION)
        .map(distance)
        .map(|distance| {
            let exact = lipschitz_bound(distance, config.sigma, config.norm_bound);
            [distance, exact, lipschitz_bound_linear(distance, config.sigma, config.norm_bound)]
        })
        .collect()
}

/// The two bounds on how far a smoothed embedding moves with its query.
///
/// Paper: Figure 1.
pub fn lipschitz_figure(title: &str, config: LipschitzConfig, note: &str) -> Figure {
    let curves = lipschitz_curves(config);
    let curve = |column: usize| curves.iter().map(|point| (point[0], point[column])).collect();
    let largest = 2.0 * config.norm_bound.get();
    let series = vec![
        Series::new("the bound of Eq. (1)", 0, curve(1)),
        Series::new("its tangent at zero, Eq. (2)", 1, curve(2)).dash(Dash::Dashed),
        Series::new("2F, the diameter of the ball", 7, vec![(0.0, largest), (config.distance, largest)])
            .dash(Dash::Dotted),
    ];
    let panel = Panel {
        title: format!("F = {}, σ = {}", config.norm_bound, config.sigma),
        x: Axis::linear("‖x − y‖₂ (pixels in [0, 1])").range(0.0, config.distance),
        y: Axis::linear("bound on ‖g(x) − g(y)‖₂").range(0.0, 1.5 * largest),
        series,
    };
    Figure { title: title.to_owned(), note: note.to_owned(), panels: vec![panel] }
}

/// The figure that an experiment asks for.
///
/// Paper: Figure 2, Figure 3, Figure 4 and Figure 5.
pub fn figure(
    title: &str,
    config: &FigureConfig,
    results: &Results,
    note: &str,
) -> Result<Figure, ResultsError> {
    let summaries = results.summaries()?;
    let key =
        |setting: &Setting| config.panels.iter().map(|&factor| setting.value(factor)).collect::<Vec<_>>();
    let places: Vec<usize> = (0..results.settings.len()).collect();
    let panels = grouped(&places, |place| key(&results.settings[place]))
        .into_iter()
        .map(|(values, members)| {
            let named: Vec<String> =
                config.panels.iter().zip(&values).map(|(&factor, value)| named(factor, value)).collect();
            let series = grouped(&members, |place| results.settings[place].value(config.series));
            let curves = series.into_iter().enumerate().map(|(number, (value, members))| {
                let points = match config.kind {
                    FigureKind::CertifiedRecall => recall_points(results, &summaries, &members),
                    FigureKind::RejectedRatio => rejected_points(results, &summaries, &members),
                };
                let marks = match config.kind {
                    FigureKind::CertifiedRecall => Marks::Steps,
                    FigureKind::RejectedRatio => Marks::LineAndPoints,
                };
                Series::new(named_series(config.series, &value), number, points).marks(marks)
            });
            let series: Vec<Series> = curves.collect();
            let (x, y) = axes(config.kind, &series);
            let nothing = series.iter().flat_map(|series| &series.points).all(|point| point.1 == 0.0);
            let empty = config.kind == FigureKind::CertifiedRecall && nothing;
            let title = named.join(", ") + if empty { ": nothing certified" } else { "" };
            Panel { title, x, y, series }
        })
        .collect();
    Ok(Figure { title: title.to_owned(), note: note.to_owned(), panels })
}

/// Members under their keys, keys in the order in which they first appear.
fn grouped<K: PartialEq>(members: &[usize], key: impl Fn(usize) -> K) -> Vec<(K, Vec<usize>)> {
    let mut groups: Vec<(K, Vec<usize>)> = Vec::new();
    for &member in members {
        let own = key(member);
        match groups.iter_mut().find(|(key, _)| *key == own) {
            Some((_, members)) => members.push(member),
            None => groups.push((own, vec![member])),
        }
    }
    groups
}

/// Recall@1(r) of settings taken together: a value holds until the next radius, where it falls.
fn recall_points(results: &Results, summaries: &[Summary], members: &[usize]) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for &member in members {
        let radii =
            results.rows.iter().filter(|row| row.setting == member).filter_map(|row| row.verdict.radius());
        let mut radii: Vec<f64> = radii.map(Radius::get).filter(|radius| radius.is_finite()).collect();
        radii.sort_by(f64::total_cmp);
        radii.dedup();
        let recall = |radius: f64| summaries[member].certified_recall(radius).share;
        points.push((0.0, recall(0.0)));
        points.extend(radii.into_iter().map(|radius| (radius, recall(radius))));
    }
    points
}

/// The rejected ratio against the number of samples.
fn rejected_points(results: &Results, summaries: &[Summary], members: &[usize]) -> Vec<(f64, f64)> {
    let point =
        |&member: &usize| (f64::from(results.settings[member].samples), summaries[member].rejected.share);
    let mut points: Vec<(f64, f64)> = members.iter().map(point).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

fn axes(kind: FigureKind, series: &[Series]) -> (Axis, Axis) {
    match kind {
        FigureKind::CertifiedRecall => {
            let radii = series.iter().flat_map(|series| &series.points).map(|point| point.0);
            let largest = radii.fold(0.0, f64::max);
            let x = Axis::linear("radius r (l2, pixels in [0, 1])");
            let x = if largest > 0.0 { x.range(0.0, 1.04 * largest) } else { x.range(0.0, 1.0) };
            (x, Axis::linear("Recall@1(r)").range(0.0, 1.0))
        }
        FigureKind::RejectedRatio => {
            (Axis::log10("certifying samples n"), Axis::linear("rejected ratio").range(0.0, 1.0))
        }
    }
}

/// A value of a factor in a panel's title.
fn named(factor: Factor, value: &str) -> String {
    match factor {
        Factor::Encoder | Factor::Certificate => value.to_owned(),
        other => named_series(other, value),
    }
}

/// A value of a factor in the legend.
fn named_series(factor: Factor, value: &str) -> String {
    match factor {
        Factor::Encoder | Factor::Certificate => value.to_owned(),
        Factor::Dimension => format!("k = {value}"),
        Factor::Sigma => format!("σ = {value}"),
        Factor::Samples => format!("n = {}", value.parse().map_or_else(|_| value.to_owned(), in_thousands)),
        Factor::Alpha => format!("α = {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrievalguard::certificate::{CertificateName, Verdict};
    use retrievalguard::{Alpha, NormBound, Sigma};
    use retrievalguard_encoder::experiment::TidyRow;

    fn results() -> Results {
        let mut results = Results::default();
        for certificate in [CertificateName::Paper, CertificateName::HalfSpace] {
            for samples in [1_000, 100_000] {
                results.settings.push(Setting {
                    encoder: "GDML".into(),
                    dimension: 64,
                    sigma: Sigma::new(0.25).unwrap(),
                    samples,
                    alpha: Alpha::new(0.01).unwrap(),
                    certificate,
                });
                let certified = |radius| Verdict::Certified { radius: Radius::Finite(radius) };
                let verdicts = match certificate {
                    CertificateName::HalfSpace => [certified(0.5), certified(0.25), Verdict::Misretrieved],
                    _ => [Verdict::Abstained, Verdict::Abstained, Verdict::Misretrieved],
                };
                for (query, verdict) in verdicts.into_iter().enumerate() {
                    let setting = results.settings.len() - 1;
                    results.rows.push(TidyRow { setting, query: query.to_string(), verdict });
                }
            }
        }
        results
    }

    #[test]
    fn a_panel_per_certificate_has_a_falling_curve_per_sample_size() {
        let config = FigureConfig {
            kind: FigureKind::CertifiedRecall,
            panels: vec![Factor::Certificate],
            series: Factor::Samples,
        };
        let figure = figure("by samples", &config, &results(), "note").unwrap();
        let titles: Vec<&str> = figure.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["paper: nothing certified", "half-space"]);
        let names: Vec<&str> = figure.panels[1].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["n = 1,000", "n = 100,000"]);
        let third = 1.0 / 3.0;
        assert_eq!(figure.panels[1].series[0].points, [(0.0, 2.0 * third), (0.25, third), (0.5, 0.0)]);
        assert_eq!(figure.panels[0].series[0].points, [(0.0, 0.0)]);
    }

    #[test]
    fn the_rejected_ratio_counts_queries_that_are_right_and_not_shown() {
        let config =
            FigureConfig { kind: FigureKind::RejectedRatio, panels: vec![], series: Factor::Certificate };
        let figure = figure("rejected", &config, &results(), "").unwrap();
        let [panel] = figure.panels.as_slice() else { panic!("{figure:?}") };
        assert_eq!(panel.series[0].points, [(1_000.0, 2.0 / 3.0), (100_000.0, 2.0 / 3.0)]);
        assert_eq!(panel.series[1].points, [(1_000.0, 0.0), (100_000.0, 0.0)]);
    }

    #[test]
    fn the_exact_bound_is_below_its_tangent_and_below_the_diameter() {
        let sigma = Sigma::new(0.1).unwrap();
        let config = LipschitzConfig { sigma, norm_bound: NormBound::UNIT, distance: 0.6 };
        let curves = lipschitz_curves(config);
        assert!(curves.iter().all(|&[_, exact, linear]| exact <= linear && exact <= 2.0));
        // Close to zero they touch: 4F/(σ√2π) · 0.003.
        assert!((curves[1][2] / curves[1][1] - 1.0).abs() < 1e-3, "{:?}", curves[1]);
        assert!(lipschitz_figure("bounds", config, "").svg().contains("Eq. (2)"));
    }
}
