//! The figure of a recommendation: forecast of certified recall, for every noise level and retriever that was tried.

use retrievalguard::certificate::Retriever;
use retrievalguard_encoder::recommend::Recommendation;

use crate::chart::{Axis, Dash, Figure, Panel, Series};

/// One panel per retriever, one curve per noise level, on common axes.
pub fn recommendation_figure(found: &Recommendation, note: &str) -> Figure {
    let largest = found.settings.iter().flat_map(|setting| &setting.curve);
    let largest = largest.filter(|point| point.1 > 0.0).map(|point| point.0).fold(0.0, f64::max);
    let end = if largest > 0.0 { 1.04 * largest } else { 1.0 };
    let mut panels = Vec::new();
    for retriever in Retriever::SMOOTHED {
        let mut series: Vec<Series> = found
            .settings
            .iter()
            .filter(|setting| setting.retriever == retriever)
            .enumerate()
            .map(|(place, setting)| {
                Series::new(format!("σ = {}", setting.sigma), place, setting.curve.clone())
            })
            .collect();
        let level = vec![(0.0, found.plain_recall), (end, found.plain_recall)];
        series.push(Series::new("plain encoder, no noise and no proof", 7, level).dash(Dash::Dotted));
        panels.push(Panel {
            title: retriever.to_string(),
            x: Axis::linear("radius r (l2, pixels in [0, 1])").range(0.0, end),
            y: Axis::linear("estimate of certified recall at r").range(0.0, 1.0),
            series,
        });
    }
    Figure { title: "What certifying would give: an estimate".to_owned(), note: note.to_owned(), panels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrievalguard::Sigma;
    use retrievalguard_encoder::recommend::Setting;

    #[test]
    fn every_noise_level_is_a_curve_under_every_retriever() {
        let setting = |sigma: f64, retriever| Setting {
            sigma: Sigma::new(sigma).unwrap(),
            retriever,
            recall: 0.9,
            average_radius: 0.1,
            certified: vec![],
            passes: 58,
            target: None,
            seconds: 1.0,
            curve: vec![(0.0, 0.9), (sigma, 0.4), (2.0 * sigma, 0.0)],
        };
        let settings = [0.1, 0.25].into_iter();
        let settings =
            settings.flat_map(|sigma| Retriever::SMOOTHED.map(|retriever| setting(sigma, retriever)));
        let found = Recommendation {
            pictures: 10,
            classes: 2,
            queries: 5,
            plain_recall: 0.93,
            passes_per_second: 100.0,
            settings: settings.collect(),
            recommended: 0,
            reason: String::new(),
        };
        let figure = recommendation_figure(&found, "note");
        assert_eq!(figure.panels.len(), 3);
        assert!(figure.panels.iter().all(|panel| panel.series.len() == 3));
        let drawn = figure.svg();
        for word in ["pairwise", "σ = 0.25", "plain encoder", "estimate"] {
            assert!(drawn.contains(word), "{word}");
        }
    }
}
