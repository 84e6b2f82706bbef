//! Bad input ends in a typed error or an honest verdict: never in a panic, never in a certificate.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use common::{by_label, gallery_of};
use retrievalguard::certificate::{
    AdaptiveOptions, AdaptiveTest, CertificateError, CertificateName, Certifier, Decision, Form,
    GrowingOptions, GrowingTest, HalfSpaceOptions, Radius, Rule, SampledQuery, Similarity, Verdict,
};
use retrievalguard::gallery::{Gallery, GalleryError, Metric, Positives, Relevance, SearchError};
use retrievalguard::{Alpha, Excess, NormBound, SampleCount, SampleError, Samples, Sigma, TargetRadius};

fn samples(rows: &[[f32; 2]], count: usize) -> Samples {
    let values = rows.iter().cycle().take(count).flatten().copied().collect();
    Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
}

fn query(row: [f32; 2]) -> SampledQuery {
    SampledQuery { pilot: samples(&[row], 50), certifying: samples(&[row], 500) }
}

fn certifier(gallery: &Gallery) -> Certifier<'_> {
    Certifier::new(gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap())
        .gallery_samples(SampleCount::new(1_000).unwrap())
}

/// The outcome of every certificate.
fn all(
    gallery: &Gallery,
    query: &SampledQuery,
    relevance: &Relevance,
) -> Vec<Result<Verdict, CertificateError>> {
    CertificateName::SMOOTHED
        .into_iter()
        .map(|name| certifier(gallery).certify(name, query, relevance).map(|outcome| outcome.verdict))
        .collect()
}

#[test]
fn a_gallery_without_items_is_refused() {
    let empty = Gallery::new(vec![], 2, vec![], &[] as &[&str], Metric::Euclidean);
    assert!(matches!(empty, Err(GalleryError::Empty)), "{empty:?}");
}

#[test]
fn a_gallery_with_nan_is_refused_by_name() {
    let names = vec!["cat".to_owned(), "dog".to_owned()];
    let error =
        Gallery::new(vec![0.0, 1.0, f32::NAN, 0.0], 2, names, &["a", "b"], Metric::Euclidean).unwrap_err();
    assert!(matches!(error, GalleryError::NotFinite { .. }), "{error:?}");
    assert!(error.to_string().contains("dog"), "{error}");
}

#[test]
fn one_label_only_leaves_nothing_to_certify() {
    let gallery = gallery_of(&[("only", [1.0, 0.0]), ("only", [0.0, 1.0])]);
    for result in all(&gallery, &query([0.9, 0.1]), &by_label(&gallery, "only")) {
        assert_eq!(result, Err(CertificateError::NoNegatives));
    }
}

#[test]
fn a_query_whose_label_is_absent_is_misretrieved() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [0.0, 1.0])]);
    let absent = Relevance::new(Positives::Absent, vec![]);
    // Its only picture is the query itself.
    let alone = Relevance { excluded: vec![0], ..by_label(&gallery, "a") };
    for relevance in [absent, alone] {
        for result in all(&gallery, &query([0.9, 0.1]), &relevance) {
            assert_eq!(result, Ok(Verdict::Misretrieved));
        }
        let options = AdaptiveOptions::new(TargetRadius::new(0.1).unwrap(), SampleCount::new(1_000).unwrap());
        let test = AdaptiveTest::new(&certifier(&gallery), &samples(&[[0.9, 0.1]], 50), &relevance, &options)
            .unwrap();
        assert_eq!(test.wants(), None);
        assert_eq!(
            (test.outcome().verdict, test.outcome().decision),
            (Verdict::Misretrieved, Decision::Hopeless)
        );
    }
}

#[test]
fn duplicate_vectors_across_labels_are_never_certified() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [1.0, 0.0]), ("c", [-1.0, 0.0])]);
    for result in all(&gallery, &query([0.9, 0.1]), &by_label(&gallery, "a")) {
        assert_eq!(result, Ok(Verdict::Misretrieved));
    }
    // A copy under the right label does not help against a copy under a wrong one.
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("a", [0.0, 1.0]), ("b", [1.0, 0.0])]);
    for result in all(&gallery, &query([0.9, 0.1]), &by_label(&gallery, "a")) {
        assert_eq!(result, Ok(Verdict::Misretrieved));
    }
}

#[test]
fn other_dimensions_are_refused() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [0.0, 1.0])]);
    let wide = Samples::new(vec![0.1; 300], 3, NormBound::UNIT, Excess::Refuse).unwrap();
    let narrow = samples(&[[0.9, 0.1]], 50);
    let relevance = by_label(&gallery, "a");
    let both = SampledQuery { pilot: wide.clone(), certifying: wide.clone() };
    for result in all(&gallery, &both, &relevance) {
        assert_eq!(result, Err(CertificateError::DimensionMismatch { found: 3, wanted: 2 }));
    }
    let mixed = SampledQuery { pilot: narrow, certifying: wide };
    for result in all(&gallery, &mixed, &relevance) {
        assert!(
            matches!(result, Err(CertificateError::PilotMismatch { pilot: 2, certifying: 3, .. })),
            "{result:?}"
        );
    }
}

#[test]
fn samples_with_nan_are_refused() {
    let error = Samples::new(vec![0.1, f32::NAN], 2, NormBound::UNIT, Excess::Project).unwrap_err();
    assert!(matches!(error, SampleError::NotFinite { sample: 0, component: 1, .. }));
}

#[test]
fn k_beyond_the_gallery_is_refused() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [0.0, 1.0]), ("b", [0.1, 1.0])]);
    let ask = |top_k| {
        let options = HalfSpaceOptions { top_k, form: Form::ByPilot };
        certifier(&gallery).half_space(&query([0.9, 0.1]), &by_label(&gallery, "a"), &options)
    };
    assert_eq!(ask(3).unwrap_err(), CertificateError::TopKTooLarge { top_k: 3, negatives: 2 });
    assert_eq!(ask(0).unwrap_err(), CertificateError::TopKZero);
    assert_eq!(ask(2).unwrap().verdicts.len(), 2);
}

#[test]
fn relevance_in_another_gallery_is_refused() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [0.0, 1.0])]);
    let larger = gallery_of(&[("a", [1.0, 0.0]), ("b", [0.0, 1.0]), ("c", [0.5, 0.5])]);
    let foreign = by_label(&larger, "c");
    let beyond = Relevance::new(Positives::Item(7), vec![]);
    let excluded = Relevance::new(Positives::Item(0), vec![9]);
    for relevance in [foreign, beyond, excluded] {
        for result in all(&gallery, &query([0.9, 0.1]), &relevance) {
            assert!(matches!(result, Err(CertificateError::Search(_))), "{result:?}");
        }
    }
}

#[test]
fn one_sample_certifies_nothing_and_breaks_nothing() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [-1.0, 0.0])]);
    let single = SampledQuery { pilot: samples(&[[1.0, 0.0]], 1), certifying: samples(&[[1.0, 0.0]], 1) };
    for result in all(&gallery, &single, &by_label(&gallery, "a")) {
        assert_eq!(result, Ok(Verdict::Abstained));
    }
}

#[test]
fn similarity_questions_are_checked_too() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [0.0, 0.0])]);
    let ask = |row, side| certifier(&gallery).similarity(&query([0.9, 0.1]), row, side, Form::ByPilot);
    assert_eq!(ask(1, Similarity::Above(0.5)).unwrap_err(), CertificateError::ZeroVector);
    assert!(matches!(ask(0, Similarity::Above(f64::NAN)), Err(CertificateError::SimilarityThreshold(_))));
    assert!(matches!(
        ask(5, Similarity::Above(0.5)),
        Err(CertificateError::Search(SearchError::RowOutOfRange { .. }))
    ));
    assert_eq!(ask(0, Similarity::Above(2.0)).unwrap().verdict, Verdict::Misretrieved);
    assert!(ask(0, Similarity::Below(2.0)).unwrap().verdict.radius().is_some());
}

#[test]
fn adaptive_tests_take_exactly_what_they_asked_for() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [-1.0, 0.0])]);
    let options = AdaptiveOptions::new(TargetRadius::new(0.1).unwrap(), SampleCount::new(1_000).unwrap());
    let pilot = samples(&[[0.9, 0.1]], 50);
    let mut test =
        AdaptiveTest::new(&certifier(&gallery), &pilot, &by_label(&gallery, "a"), &options).unwrap();
    assert_eq!(test.wants(), Some(0..256));
    let error = test.see(&samples(&[[0.9, 0.1]], 10)).unwrap_err();
    assert_eq!(error, CertificateError::UnwantedSamples { found: 10, wanted: 256 });
}

/// Far items and a query that never leaves the right one: as easy as it gets.
#[test]
fn no_target_is_certified_beyond_what_any_certificate_can_show() {
    let gallery = gallery_of(&[("cat", [1.0, 0.0]), ("dog", [-1.0, 0.0])]);
    let relevance = by_label(&gallery, "cat");
    let certifier = certifier(&gallery);
    let cap = SampleCount::new(2_000).unwrap();
    let near = |count: u32| samples(&[[1.0, 0.0]], count as usize);
    for target in [10.1, 41.0, 1e6, 1e100, 1e154, 1e200, 1e307, 4.4e307, 1e308, f64::MAX] {
        let target = TargetRadius::new(target).unwrap();
        for rule in [Rule::Betting, Rule::Looks] {
            let options = AdaptiveOptions { rule, ..AdaptiveOptions::new(target, cap) };
            let test = AdaptiveTest::new(&certifier, &near(100), &relevance, &options).unwrap();
            let run = test.run(|range| Ok(near(range.end - range.start)), |error| error).unwrap();
            assert_ne!(run.outcome.decision, Decision::Reached, "{target} {rule:?}");
            assert_eq!(run.outcome.verdict, Verdict::Abstained, "{target} {rule:?}");
        }
        let options = GrowingOptions { target: Some(target), ..GrowingOptions::new(cap) };
        let mut test = GrowingTest::new(&certifier, &near(100), &relevance, &options).unwrap();
        while let Some(range) = test.wants() {
            test.see(&near(range.end - range.start)).unwrap();
        }
        assert_ne!(test.outcome().decision, Decision::Reached, "{target}");
        let radius = test.outcome().verdict.radius().map_or(0.0, Radius::get);
        assert!(radius < 10.0, "{target}: {radius}");
    }
}

fn growing() -> GrowingOptions {
    GrowingOptions::new(SampleCount::new(1_000).unwrap())
}

#[test]
fn growing_tests_take_exactly_what_they_asked_for_and_forget_what_they_refuse() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [-1.0, 0.0])]);
    let relevance = by_label(&gallery, "a");
    let pilot = samples(&[[0.9, 0.1]], 50);
    let mut test = GrowingTest::new(&certifier(&gallery), &pilot, &relevance, &growing()).unwrap();
    let before = test.outcome();
    for count in [1, 127, 129, 1_000] {
        let error = test.see(&samples(&[[0.9, 0.1]], count)).unwrap_err();
        assert_eq!(error, CertificateError::UnwantedSamples { found: count, wanted: 128 });
    }
    let wide = Samples::new(vec![0.1; 3 * 128], 3, NormBound::UNIT, Excess::Refuse).unwrap();
    let error = test.see(&wide).unwrap_err();
    assert!(matches!(error, CertificateError::PilotMismatch { pilot: 2, certifying: 3, .. }), "{error:?}");
    assert_eq!((test.outcome(), test.wants()), (before, Some(0..128)));
    while let Some(range) = test.wants() {
        test.see(&samples(&[[0.9, 0.1]], range.len())).unwrap();
    }
    let error = test.see(&samples(&[[0.9, 0.1]], 128)).unwrap_err();
    assert_eq!(error, CertificateError::UnwantedSamples { found: 128, wanted: 0 });
}

#[test]
fn growing_tests_refuse_what_every_certificate_refuses() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [-1.0, 0.0])]);
    let wide = Samples::new(vec![0.1; 300], 3, NormBound::UNIT, Excess::Refuse).unwrap();
    let error = GrowingTest::new(&certifier(&gallery), &wide, &by_label(&gallery, "a"), &growing())
        .map(|test| test.outcome());
    assert_eq!(error, Err(CertificateError::DimensionMismatch { found: 3, wanted: 2 }));
    let gallery = gallery_of(&[("only", [1.0, 0.0]), ("only", [0.0, 1.0])]);
    let pilot = samples(&[[0.9, 0.1]], 50);
    let error = GrowingTest::new(&certifier(&gallery), &pilot, &by_label(&gallery, "only"), &growing())
        .map(|test| test.outcome());
    assert_eq!(error, Err(CertificateError::NoNegatives));
}

#[test]
fn growing_tests_ask_for_no_sample_that_could_not_help() {
    // A label that is absent, and a wrong item on the very place of the right one.
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [1.0, 0.0]), ("c", [-1.0, 0.0])]);
    let pilot = samples(&[[0.9, 0.1]], 50);
    for relevance in [Relevance::new(Positives::Absent, vec![]), by_label(&gallery, "a")] {
        let test = GrowingTest::new(&certifier(&gallery), &pilot, &relevance, &growing()).unwrap();
        assert_eq!(test.wants(), None);
        let outcome = test.outcome();
        assert_eq!((outcome.verdict, outcome.decision), (Verdict::Misretrieved, Decision::Hopeless));
        assert_eq!((outcome.samples, outcome.looks), (0, 0));
    }
    // Far outside the ball, a wrong item can never come first.
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [-9.0, 0.0])]);
    let mut test =
        GrowingTest::new(&certifier(&gallery), &pilot, &by_label(&gallery, "a"), &growing()).unwrap();
    test.see(&samples(&[[0.9, 0.1]], 128)).unwrap();
    let outcome = test.outcome();
    assert_eq!(outcome.verdict, Verdict::Certified { radius: Radius::Unbounded });
    assert_eq!((outcome.decision, test.wants()), (Decision::Reached, None));
}

#[test]
fn a_growing_radius_is_withdrawn_while_a_wrong_item_is_nearest_to_the_mean() {
    let gallery = gallery_of(&[("a", [1.0, 0.0]), ("b", [-1.0, 0.0])]);
    let pilot = samples(&[[0.9, 0.1]], 50);
    let mut test =
        GrowingTest::new(&certifier(&gallery), &pilot, &by_label(&gallery, "a"), &growing()).unwrap();
    test.see(&samples(&[[0.9, 0.1]], 128)).unwrap();
    let first = test.outcome().verdict.radius().unwrap();
    test.see(&samples(&[[-0.95, 0.1]], 128)).unwrap();
    assert_eq!(test.outcome().verdict, Verdict::Misretrieved);
    test.see(&samples(&[[0.9, 0.1]], 256)).unwrap();
    assert!(test.outcome().verdict.radius().unwrap() >= first);
    test.see(&samples(&[[-0.95, 0.1]], 488)).unwrap();
    assert_eq!(test.outcome().verdict, Verdict::Misretrieved);
    assert_eq!(test.outcome().decision, Decision::Capped);
}
