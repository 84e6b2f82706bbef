//! Clamped encoders: are their certificates wrong no more often than they may be, what do they gain, and are two ways of
//! claiming too much noticed? The harness is that of `coverage`.

use super::coverage::{MARGIN, Random, Tally, cells, finite, gallery, unit_vectors};
use super::*;
use crate::certificate::{
    AdaptiveOptions, AdaptiveTest, Form, GrowingOptions, GrowingTest, HalfSpaceOptions, Similarity,
};
use crate::gallery::{Metric, Positives};
use crate::normal::{self, Probability};
use crate::{Excess, NormBound, TargetRadius};

const HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;

/// Unit vectors of the quarter plane: `u = (1, −1)/√2` and `s = 0`, so that scores lie within `±1/√2`.
const ITEMS: [(&str, [f32; 2]); 2] = [("right", [1.0, 0.0]), ("wrong", [0.0, 1.0])];

type Method<'a> = &'a dyn Fn(&Certifier<'_>, &SampledQuery, &Relevance) -> f64;

/// Runs a method on a clamped two-cell encoder (σ = 1), `plus` with probability `p`, and counts radii above `truth`.
fn clamped_cells(p: f64, minus: [f32; 2], truth: f64, method: Method<'_>) -> Tally {
    let gallery = gallery(&ITEMS);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.2).unwrap());
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    Tally::of(0.2, 1_500, |random| {
        let mut draw = |n| cells(random, p, n, [1.0, 0.0], minus).clamped();
        let query = SampledQuery { pilot: draw(60), certifying: draw(400) };
        method(&certifier, &query, &relevance) > truth
    })
}

#[test]
fn clamped_encoders_are_certified_wrongly_no_more_often_than_alpha() {
    let p = normal::distribution(MARGIN);
    let mean = |certifier: &Certifier<'_>, query: &SampledQuery, relevance: &Relevance| {
        finite(certifier.certify(CertificateName::HalfSpaceMean, query, relevance).unwrap().verdict)
    };
    // The output of the other cell is at the lower end of the scores, and the radius is the margin.
    let tally = clamped_cells(p, [0.0, 1.0], MARGIN, &mean);
    tally.accept("half-space-mean");
    assert!(tally.wrong > 0, "half-space-mean never errs: the case is not tight");
    for form in [Form::Thresholds, Form::Betting, Form::ByPilot] {
        let options = HalfSpaceOptions { top_k: 1, form };
        let tally = clamped_cells(p, [0.0, 1.0], MARGIN, &|certifier, query, relevance| {
            finite(certifier.half_space(query, relevance, &options).unwrap().verdicts[0])
        });
        tally.accept(&format!("{form:?}"));
        assert!(tally.wrong > 0, "{form:?} never errs: the case is not tight");
        // ⟨g, v⟩ is Φ(m − r), above its threshold 1/2 inside the margin.
        let similarity = clamped_cells(p, [0.0, 1.0], MARGIN, &|certifier, query, _| {
            finite(certifier.similarity(query, 0, Similarity::Above(0.5), form).unwrap().verdict)
        });
        similarity.accept(&format!("similarity with {form:?}"));
    }
    let growing = clamped_cells(p, [0.0, 1.0], MARGIN, &|certifier, query, relevance| {
        let options = GrowingOptions::new(SampleCount::new(400).unwrap());
        let mut test = GrowingTest::new(certifier, &query.pilot, relevance, &options).unwrap();
        while let Some(range) = test.wants() {
            test.see(&query.certifying.slice(range).unwrap()).unwrap();
        }
        finite(test.outcome().verdict)
    });
    growing.accept("growing");
    let adaptive = clamped_cells(p, [0.0, 1.0], MARGIN, &|certifier, query, relevance| {
        let (target, cap) = (TargetRadius::new(MARGIN * 1.0001).unwrap(), SampleCount::new(400).unwrap());
        let options = AdaptiveOptions::new(target, cap);
        let mut test = AdaptiveTest::new(certifier, &query.pilot, relevance, &options).unwrap();
        while let Some(range) = test.wants() {
            test.see(&query.certifying.slice(range).unwrap()).unwrap();
        }
        finite(test.outcome().verdict)
    });
    adaptive.accept("adaptive");
}

#[test]
fn the_radius_of_a_clamped_encoder_taken_for_that_of_the_encoder_is_noticed() {
    // Scores 1/√2 and −1; clamping makes −1/2 of the latter. The mean is zero where P(plus) is 0.586, clamped 0.414.
    let zero = |lower: f64| {
        let share = -lower / (f64::from(HALF) - lower);
        normal::quantile(Probability::new(share).unwrap())
    };
    let start = MARGIN + zero(-1.0);
    let p = normal::distribution(start);
    for form in [Form::Thresholds, Form::Betting] {
        let options = HalfSpaceOptions { top_k: 1, form };
        let radius = |certifier: &Certifier<'_>, query: &SampledQuery, relevance: &Relevance| {
            finite(certifier.half_space(query, relevance, &options).unwrap().verdicts[0])
        };
        clamped_cells(p, [-HALF, HALF], start - zero(-0.5), &radius).accept("the clamped encoder");
        clamped_cells(p, [-HALF, HALF], MARGIN, &radius).reject("the encoder as it was");
    }
}

/// Negative outputs so rare that half of all certifying samples have none.
fn rarely_negative(infer: bool) -> Tally {
    let gallery = gallery(&[("right", [0.5, -0.05]), ("wrong", [-0.5, 0.05])]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.2).unwrap());
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let p = 0.5_f64.powf(1.0 / 200.0);
    let truth = normal::quantile(Probability::new(p).unwrap());
    Tally::of(0.2, 1_000, |random| {
        let mut draw = |n| cells(random, p, n, [1.0, 0.0], [-1.0, 0.0]);
        let mut query = SampledQuery { pilot: draw(100), certifying: draw(200) };
        if infer && query.certifying.values().iter().all(|&value| value >= 0.0) {
            query = SampledQuery { pilot: query.pilot.clamped(), certifying: query.certifying.clamped() };
        }
        finite(certifier.certify(CertificateName::HalfSpace, &query, &relevance).unwrap().verdict) > truth
    })
}

#[test]
fn non_negative_components_inferred_from_the_certifying_sample_are_noticed() {
    rarely_negative(false).accept("nothing claimed");
    rarely_negative(true).reject("claimed because no row was negative");
}

#[test]
fn clamped_and_unclamped_samples_are_not_one_query() {
    let gallery = gallery(&ITEMS);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.2).unwrap());
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let draw = |n| cells(&mut Random::seeded(1), 0.9, n, [1.0, 0.0], [0.0, 1.0]);
    let query = SampledQuery { pilot: draw(60), certifying: draw(400).clamped() };
    for name in CertificateName::SMOOTHED {
        let error = certifier.certify(name, &query, &relevance).unwrap_err();
        assert_eq!(
            error,
            CertificateError::PilotComponents { pilot: Components::Any, certifying: Components::NonNegative },
            "{name}"
        );
        assert_eq!(
            error.to_string(),
            "the pilot has unclamped components, the certifying sample clamped ones"
        );
    }
}

#[test]
fn explanations_of_clamped_queries_say_so_in_statements_that_have_words() {
    let gallery = gallery(&ITEMS);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.2).unwrap());
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let mut random = Random::seeded(2);
    let mut draw = |n| cells(&mut random, 0.9, n, [1.0, 0.0], [0.0, 1.0]).clamped();
    let query = SampledQuery { pilot: draw(60), certifying: draw(400) };
    for name in [CertificateName::HalfSpace, CertificateName::HalfSpaceMean] {
        let explain = certifier.certify(name, &query, &relevance).unwrap().explain;
        assert_eq!(explain.value("components").unwrap().to_string(), "clamped", "{name}");
        for step in explain.steps() {
            assert!(statement_in_words(&step.statement).is_some(), "{}", step.statement);
        }
    }
}

/// Unit vectors without negative components around `centre`, as pooled features are.
fn features(random: &mut Random, centre: &[f32], spread: f64, rows: usize) -> Vec<f32> {
    unit_vectors(random, centre, spread, rows, |value| value.max(0.0))
}

/// Mean radii of several queries, without and with the claim; the rows are the same.
fn gain(samples: usize, method: Method<'_>) -> [f64; 2] {
    const DIMENSION: usize = 32;
    let mut random = Random::seeded(12);
    let centres = features(&mut random, &[0.0; DIMENSION], 1.0, 12);
    let names = (0..12).map(|row| row.to_string()).collect();
    let labels: Vec<String> = (0..12).map(|row| row.to_string()).collect();
    let gallery = Gallery::new(centres.clone(), DIMENSION, names, &labels, Metric::Euclidean).unwrap();
    let certifier = Certifier::new(&gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap());
    let mut totals = [0.0; 2];
    for (row, centre) in centres.chunks(DIMENSION).enumerate() {
        let relevance = Relevance::new(Positives::Item(row), vec![]);
        let mut draw = |n| {
            let values = features(&mut random, centre, 0.2, n);
            Samples::new(values, DIMENSION, NormBound::UNIT, Excess::Refuse).unwrap()
        };
        let query = SampledQuery { pilot: draw(200), certifying: draw(samples) };
        let clamped = SampledQuery {
            pilot: query.pilot.clone().clamped(),
            certifying: query.certifying.clone().clamped(),
        };
        assert_eq!(clamped.certifying.values(), query.certifying.values());
        for (total, query) in totals.iter_mut().zip([query, clamped]) {
            *total += method(&certifier, &query, &relevance) / 12.0;
        }
    }
    totals
}

#[test]
fn clamped_features_are_certified_further() {
    let form = |form| {
        move |certifier: &Certifier<'_>, query: &SampledQuery, relevance: &Relevance| {
            let options = HalfSpaceOptions { top_k: 1, form };
            finite(certifier.half_space(query, relevance, &options).unwrap().verdicts[0])
        }
    };
    let mean = |certifier: &Certifier<'_>, query: &SampledQuery, relevance: &Relevance| {
        finite(certifier.certify(CertificateName::HalfSpaceMean, query, relevance).unwrap().verdict)
    };
    let methods: [(&str, Method<'_>); 4] = [
        ("half-space", &form(Form::ByPilot)),
        ("half-space, thresholds", &form(Form::Thresholds)),
        ("half-space, betting", &form(Form::Betting)),
        ("half-space-mean", &mean),
    ];
    for (name, method) in methods {
        let ratios = [1_000, 10_000].map(|samples| {
            let [ball, clamped] = gain(samples, method);
            println!(
                "{name}, n = {samples}: {ball:.4} in the ball, {clamped:.4} clamped, {:.3}",
                clamped / ball
            );
            clamped / ball
        });
        assert!(ratios[0] > 1.01 && ratios[1] > 1.005, "{name}: {ratios:?}");
    }
}
