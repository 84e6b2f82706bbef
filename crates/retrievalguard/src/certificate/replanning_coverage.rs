//! Bets that are planned again while samples come in: are they won wrongly no more often than they may be, what do they gain,
//! and is a plan that looks ahead noticed? The harness is that of `coverage`.

use std::ops::Range;

use super::coverage::{ITEMS, MARGIN, MINUS, PLUS, Random, Tally, cells, finite, gallery, unit_vectors};
use super::pilot_choice::Test;
use super::*;
use crate::certificate::{Form, GrowingOptions, GrowingTest, HalfSpaceOptions};
use crate::gallery::{Metric, Positives};
use crate::normal;
use crate::{Excess, NormBound};

const ALPHA: f64 = 0.2;
const PILOT: usize = 20;
const SAMPLES: usize = 2_000;

/// The in-line two-cell encoder, σ = 1: the true radius is the margin. Counts radii above it.
fn two_cells(radius: impl Fn(&Certifier<'_>, &SampledQuery, &Relevance) -> f64) -> Tally {
    let gallery = gallery(&ITEMS);
    let certifier =
        Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(ALPHA).unwrap()).replanning_bets();
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let p = normal::distribution(MARGIN);
    Tally::of(ALPHA, 1_000, |random| {
        let mut draw = |n| cells(random, p, n, PLUS, MINUS);
        let query = SampledQuery { pilot: draw(PILOT), certifying: draw(SAMPLES) };
        radius(&certifier, &query, &relevance) > MARGIN
    })
}

#[test]
fn replanned_bets_are_won_wrongly_no_more_often_than_alpha() {
    let options = HalfSpaceOptions { top_k: 1, form: Form::Betting };
    let tally = two_cells(|certifier, query, relevance| {
        finite(certifier.half_space(query, relevance, &options).unwrap().verdicts[0])
    });
    println!("wrong {:.3}", tally.rate());
    tally.accept("one look");
    assert!(tally.wrong > 0, "the case is not tight");
    let tally = two_cells(|certifier, query, relevance| {
        let mut options = GrowingOptions::new(SampleCount::new(SAMPLES as u64).unwrap());
        options.form = Form::Betting;
        options.first = SampleCount::new(100).unwrap();
        let mut test = GrowingTest::new(certifier, &query.pilot, relevance, &options).unwrap();
        while let Some(range) = test.wants() {
            test.see(&query.certifying.slice(range).unwrap()).unwrap();
        }
        test.explain().and_then(|explain| explain.number("radius")).unwrap_or(0.0)
    });
    println!("wrong {:.3} while growing", tally.rate());
    tally.accept("growing");
}

/// One rung, just above the true radius, with bets that are planned again after every 64 scores.
fn often(known: fn(&Range<usize>) -> Range<usize>) -> Tally {
    let options = HalfSpaceOptions { top_k: 1, form: Form::Betting };
    let samples = SampleCount::new(SAMPLES as u64).unwrap();
    two_cells(|certifier, query, relevance| {
        let plan = certifier.plan_half_space(&query.pilot, relevance, samples, &options).unwrap();
        let Test::Betting { half_space, ladder } = &plan.dangerous[0].test else {
            panic!("bets were asked for")
        };
        let scores = projection::scores(&query.certifying, plan.domain.range, &half_space.direction);
        let radius = MARGIN * 1.000_1;
        if ladder.passes(radius, &scores, -ALPHA.ln(), 64, known) { radius } else { 0.0 }
    })
}

#[test]
fn bets_that_are_planned_on_the_scores_they_are_about_are_noticed() {
    let before = often(|bets| 0..bets.start);
    println!("wrong {:.3} planned from scores before", before.rate());
    before.accept("planned from scores before");
    assert!(before.wrong > 0, "the case is not tight");
    let ahead = often(|bets| bets.clone());
    println!("wrong {:.3} planned from the scores themselves", ahead.rate());
    ahead.reject("planned from the scores themselves");
}

#[test]
fn replanned_certificates_say_when_and_leave_counts_alone() {
    let gallery = gallery(&ITEMS);
    let fixed = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.01).unwrap());
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let mut random = Random::seeded(3);
    let mut draw = |n| cells(&mut random, 0.9, n, PLUS, MINUS);
    let query = SampledQuery { pilot: draw(60), certifying: draw(1_000) };
    let run = |certifier: Certifier<'_>, form| {
        certifier.half_space(&query, &relevance, &HalfSpaceOptions { top_k: 1, form }).unwrap()
    };
    assert_eq!(run(fixed, Form::Thresholds), run(fixed.replanning_bets(), Form::Thresholds));
    let explain = run(fixed.replanning_bets(), Form::Betting).explain;
    assert_eq!(explain.value("bets planned again after").unwrap().to_string(), "128 256 512");
    assert_eq!(run(fixed, Form::Betting).explain.value("bets planned again after"), None);
    for step in explain.steps() {
        assert!(statement_in_words(&step.statement).is_some(), "{}", step.statement);
    }
}

/// Unit vectors around `centre`.
fn around(random: &mut Random, centre: &[f32], spread: f64, rows: usize) -> Vec<f32> {
    unit_vectors(random, centre, spread, rows, |value| value)
}

#[test]
fn replanned_bets_gain_where_the_pilot_is_small() {
    const DIMENSION: usize = 32;
    for pilot in [50, 100, 500] {
        for samples in [1_000, 10_000] {
            let mut random = Random::seeded(13);
            let items = around(&mut random, &[0.0; DIMENSION], 1.0, 12);
            let names: Vec<String> = (0..12).map(|row| row.to_string()).collect();
            let gallery =
                Gallery::new(items.clone(), DIMENSION, names.clone(), &names, Metric::Euclidean).unwrap();
            let fixed = Certifier::new(&gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap());
            let mut totals = [0.0; 2];
            for repetition in 0..24 {
                let row = repetition % 12;
                let relevance = Relevance::new(Positives::Item(row), vec![]);
                let mut draw = |n| {
                    let values = around(&mut random, &items[row * DIMENSION..][..DIMENSION], 0.25, n);
                    Samples::new(values, DIMENSION, NormBound::UNIT, Excess::Refuse).unwrap()
                };
                let query = SampledQuery { pilot: draw(pilot), certifying: draw(samples) };
                for (total, certifier) in totals.iter_mut().zip([fixed, fixed.replanning_bets()]) {
                    let outcome = certifier.certify(CertificateName::HalfSpace, &query, &relevance).unwrap();
                    *total += finite(outcome.verdict) / 24.0;
                }
            }
            let [fixed, replanned] = totals;
            println!(
                "pilot {pilot}, n = {samples}: {fixed:.4} fixed, {replanned:.4} planned again, {:.3}",
                replanned / fixed
            );
            let least = if pilot < 500 { 1.005 } else { 0.995 };
            assert!(replanned > least * fixed, "pilot {pilot}, n = {samples}: {totals:?}");
        }
    }
}
