use std::collections::BTreeMap;

use retrievalguard::Alpha;
use retrievalguard::certificate::{Radius, Verdict};
use retrievalguard_encoder::table::{Cell, PlainAnswer, ResultRow};

use super::*;

/// Four queries, the first without a right answer; the others have the radii, or none where it is zero.
fn table(sigma: Option<f64>, certificates: &[(CertificateName, [f64; 3])]) -> ResultTable {
    let row = |query: usize| {
        let cell = |radii: &[f64; 3]| {
            let verdict = match query.checked_sub(1).map(|place| radii[place]) {
                None => Verdict::Misretrieved,
                Some(0.0) => Verdict::Abstained,
                Some(radius) => Verdict::Certified { radius: Radius::Finite(radius) },
            };
            Cell { verdict, samples: if sigma.is_some() { 1_000 } else { 0 } }
        };
        let plain =
            PlainAnswer { retrieved: "x".into(), retrieved_label: ["a", "b"][usize::from(query > 1)].into() };
        let certificates: BTreeMap<_, _> =
            certificates.iter().map(|(name, radii)| (*name, cell(radii))).collect();
        ResultRow {
            identity: query.to_string(),
            label: "a".into(),
            retrieved: "item".into(),
            retrieved_label: if query == 0 { "b".into() } else { "a".into() },
            retrieved_view: None,
            nearest_wrong: None,
            plain: sigma.is_some().then_some(plain),
            file: None,
            certificates,
        }
    };
    let names = certificates.iter().map(|(name, _)| *name).collect();
    let sigma = sigma.map(|sigma| Sigma::new(sigma).unwrap());
    ResultTable::new(sigma, names, (0..4).map(row).collect()).unwrap()
}

fn run<'a>(name: Option<&str>, panel: usize, table: &'a ResultTable) -> ComparedRun<'a> {
    let guarantee = match table.sigma() {
        Some(_) => Guarantee::PerQuery { alpha: Alpha::new(0.01).unwrap() },
        None => Guarantee::Always,
    };
    ComparedRun { name: name.map(str::to_owned), panel, table, description: None, guarantee }
}

fn comparison(panels: usize, runs: &[ComparedRun<'_>]) -> Comparison {
    Comparison {
        title: "Title".into(),
        note: "note".into(),
        panels: (0..panels).map(|panel| format!("panel {panel}, all of it")).collect(),
        curves: runs.iter().flat_map(|run| run.curves(|_| true).unwrap()).collect(),
    }
}

const SMOOTHED: [(CertificateName, [f64; 3]); 2] =
    [(CertificateName::Paper, [0.0; 3]), (CertificateName::HalfSpace, [0.1, 0.2, 0.0])];

#[test]
fn both_kinds_share_their_axes_and_say_their_chance_of_being_wrong() {
    let (noisy, still) =
        (table(Some(0.25), &SMOOTHED), table(None, &[(CertificateName::Lipschitz, [0.05, 0.4, 0.8])]));
    let runs = [run(None, 0, &noisy), run(None, 1, &still)];
    let comparison = comparison(2, &runs);
    let figure = comparison.figure();
    let [first, second] = figure.panels.as_slice() else { panic!("{figure:?}") };
    assert_eq!((&first.x, &first.y), (&second.x, &second.y));
    assert_eq!(first.x.range, Some((0.0, 1.04 * 0.8)));
    let names = |panel: &Panel| -> Vec<String> {
        panel.series.iter().map(|series| series.name.clone()).filter(|name| !name.is_empty()).collect()
    };
    assert_eq!(
        names(first)[1..],
        [
            "paper: σ = 0.25, passes unknown, α = 0.01 (certifies none)",
            "half-space: σ = 0.25, passes unknown, α = 0.01"
        ]
    );
    assert_eq!(names(second), ["lipschitz: passes unknown, holds always"]);
    let curve = second.series.iter().find(|series| series.marks == Marks::Steps).unwrap();
    // It ends where it reaches zero; one that is zero throughout is seen throughout.
    assert_eq!(curve.points, [(0.0, 0.75), (0.05, 0.5), (0.4, 0.25), (0.8, 0.0)]);
    let paper = first.series.iter().find(|series| series.name.starts_with("paper")).unwrap();
    assert_eq!(paper.points, [(0.0, 0.0), (1.04 * 0.8, 0.0)]);
}

#[test]
fn recall_is_a_mark_at_zero_and_the_plain_encoder_another() {
    let noisy = table(Some(0.25), &SMOOTHED);
    let figure = comparison(1, &[run(None, 0, &noisy)]).figure();
    let marks: Vec<(usize, f64)> = figure.panels[0]
        .series
        .iter()
        .filter(|series| series.marks == Marks::Points)
        .map(|series| (series.colour, series.points[0].1))
        .collect();
    // Two of four without noise; three of four with it, whatever is proved.
    assert_eq!(marks, [(PLAIN, 0.5), (1, 0.75), (0, 0.75)]);
}

#[test]
fn a_certificate_keeps_its_colour_until_a_third_run_has_it() {
    let tables = [0.1, 0.2, 0.3].map(|radius| table(None, &[(CertificateName::Lipschitz, [radius; 3])]));
    let runs: Vec<ComparedRun<'_>> =
        ["one", "two", "three"].iter().zip(&tables).map(|(name, table)| run(Some(name), 0, table)).collect();
    let (colour, dash) = look(CertificateName::Lipschitz);
    assert_eq!(comparison(1, &runs[..2]).looks(), [(colour, dash), (colour, Dash::Dashed)]);
    let three = comparison(1, &runs);
    assert_eq!(three.looks(), [0, 1, 2].map(|colour| (colour, Dash::Solid)));
    assert_eq!(three.curves[2].name(), "lipschitz (three)");
}

#[test]
fn the_numbers_are_those_of_the_summary_at_every_radius() {
    let noisy = table(Some(0.25), &SMOOTHED);
    let comparison = comparison(1, &[run(Some("a, b"), 0, &noisy)]);
    let csv = comparison.csv(&[0.0, 0.123]);
    let lines: Vec<&str> = csv.lines().collect();
    let radii = comparison.radii(CSV_RADII);
    assert_eq!((radii[0], radii.last().copied()), (0.0, Some(0.2)));
    assert_eq!(lines.len(), 1 + 2 * (radii.len() + 1));
    let begin = "\"panel 0, all of it\",half-space,\"a, b\",0.25,,0.01,4,0.5,0.75,0.07500000000000001,";
    let line = lines.iter().find(|line| line.starts_with(&format!("{begin}0.1,"))).expect(&csv);
    assert!(line.starts_with(&format!("{begin}0.1,0.25,0.00")), "{line}");
    assert_eq!(lines[0].split(',').count(), 14);
}
