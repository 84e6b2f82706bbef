//! Encoders whose smoothed retrieval has a closed form: no certificate may exceed the true radius.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use common::{TwoCell, by_label, gallery_of};
use retrievalguard::certificate::{
    CertificateName, Certifier, Decision, Form, GrowingOptions, GrowingOutcome, GrowingTest,
    HalfSpaceOptions, Radius, SampledQuery, Verdict, certified_radius, certified_radius_linear,
    half_space_mean_radius, lipschitz_bound, lipschitz_bound_linear,
};
use retrievalguard::gallery::Relevance;
use retrievalguard::noise::Stage;
use retrievalguard::{
    Alpha, NormBound, Picture, SampleCount, Samples, Seed, Sigma, Smoother, TargetRadius, normal,
};

const SIGMA: f64 = 0.25;

fn certifier(gallery: &retrievalguard::gallery::Gallery) -> Certifier<'_> {
    Certifier::new(gallery, Sigma::new(SIGMA).unwrap(), Alpha::new(0.01).unwrap())
        .gallery_samples(SampleCount::new(100_000).unwrap())
}

fn sample(encoder: &TwoCell, margin: f64, pilot: u32, certifying: u32, seed: u64) -> SampledQuery {
    let smoother = Smoother::new(encoder, Sigma::new(SIGMA).unwrap(), Seed::new(seed));
    let pixels = encoder.picture(margin);
    let picture = Picture { identity: "query", pixels: &pixels };
    SampledQuery {
        pilot: smoother.samples(&picture, Stage::Pilot, 0..pilot).unwrap(),
        certifying: smoother.samples(&picture, Stage::Certify, 0..certifying).unwrap(),
    }
}

#[test]
fn the_sign_encoder_meets_the_lipschitz_bound_with_equality() {
    let sigma = Sigma::new(0.1).unwrap();
    let bound = NormBound::new(3.0).unwrap();
    for x in [0.001, 0.01, 0.1, 0.3, 1.0] {
        let smoothed = 3.0 * (normal::distribution(x / 0.1) - normal::distribution(-x / 0.1));
        let distance = 2.0 * smoothed;
        let limit = lipschitz_bound(2.0 * x, sigma, bound);
        assert!((distance - limit).abs() <= 1e-12 * limit, "x = {x}: {distance} and {limit}");
        assert!(limit <= lipschitz_bound_linear(2.0 * x, sigma, bound), "x = {x}");
    }
}

#[test]
fn the_linear_radius_is_never_above_the_printed_one() {
    let sigma = Sigma::new(0.5).unwrap();
    for step in 1..=200 {
        let margin = f64::from(step) / 100.0;
        let printed = certified_radius(margin, sigma, NormBound::UNIT);
        assert!(certified_radius_linear(margin, sigma, NormBound::UNIT) <= printed, "margin {margin}");
        // The radius is where the Lipschitz bound reaches half the margin.
        let shift = lipschitz_bound(printed, sigma, NormBound::UNIT);
        assert!((shift - margin / 2.0).abs() < 1e-12, "margin {margin}: {shift}");
    }
    assert!((certified_radius(0.3, sigma, NormBound::UNIT) / 0.5 - 0.188).abs() < 1e-3);
}

#[test]
fn no_certificate_exceeds_the_true_radius_of_a_two_cell_encoder() {
    // Galleries with one positive: in line with the cells, skewed, with several negatives, with unequal norms.
    let galleries: [&[(&str, [f32; 2])]; 4] = [
        &[("right", [1.0, 0.0]), ("wrong", [-1.0, 0.0])],
        &[("right", [0.7, 0.5]), ("wrong", [-0.6, 0.3])],
        &[("right", [0.5, -0.2]), ("wrong", [-0.5, 0.4]), ("other", [0.1, -0.9]), ("third", [-0.9, -0.1])],
        &[("right", [0.9, 0.1]), ("wrong", [0.2, 0.1]), ("other", [-0.3, 0.2])],
    ];
    let encoder = TwoCell::new([1.0, 0.0], [-0.8, 0.4]);
    let mut certified = 0;
    for (index, items) in galleries.iter().enumerate() {
        let gallery = gallery_of(items);
        let relevance = by_label(&gallery, "right");
        for margin in [-0.5, 0.1, 0.5, 1.0, 2.0, 3.0] {
            let truth = encoder.true_radius(items, margin * SIGMA, SIGMA);
            let query = sample(&encoder, margin * SIGMA, 500, 5_000, index as u64);
            // Hundreds of certificates at this level: one failure by chance would be a surprise.
            let certifier = Certifier::new(&gallery, Sigma::new(SIGMA).unwrap(), Alpha::new(1e-5).unwrap())
                .gallery_samples(SampleCount::new(100_000).unwrap());
            for name in CertificateName::SMOOTHED {
                // Retrievers that vote or compare in pairs are other systems: their answers change where the cells' own do.
                let truth = match name {
                    CertificateName::Vote => encoder.true_voting_radius(items, margin * SIGMA, SIGMA),
                    CertificateName::Pairwise => encoder.true_pairwise_radius(items, margin * SIGMA, SIGMA),
                    _ => truth,
                };
                let outcome = certifier.certify(name, &query, &relevance).unwrap();
                if let Verdict::Certified { radius } = outcome.verdict {
                    certified += 1;
                    assert!(
                        radius.get() <= truth,
                        "gallery {index}, margin {margin} σ, {name}: {radius} > {truth}\n{}",
                        outcome.explain
                    );
                }
            }
        }
    }
    assert!(certified > 60, "only {certified} certificates: the test has lost its teeth");
}

#[test]
fn half_space_comes_within_five_percent_of_the_truth() {
    let items: &[(&str, [f32; 2])] = &[("right", [1.0, 0.0]), ("wrong", [-1.0, 0.0])];
    let gallery = gallery_of(items);
    let certifier = certifier(&gallery);
    let relevance = by_label(&gallery, "right");
    // Where the lower atom lies inside the ball, n samples cannot exclude a mass of ln(1/α)/n below it, and a shift
    // by 3 σ makes that mass felt: the best possible bound then ends 6 % below the truth.
    for (encoder, share) in
        [(TwoCell::new([1.0, 0.0], [-1.0, 0.0]), 0.95), (TwoCell::new([0.9, 0.3], [-0.5, -0.6]), 0.9)]
    {
        for margin in [0.5, 1.0, 2.0, 3.0] {
            let truth = encoder.true_radius(items, margin * SIGMA, SIGMA);
            let query = sample(&encoder, margin * SIGMA, 1_000, 100_000, 3);
            let outcome = certifier.certify(CertificateName::HalfSpace, &query, &relevance).unwrap();
            let Verdict::Certified { radius } = outcome.verdict else {
                panic!("margin {margin} σ: {:?}", outcome.verdict)
            };
            assert!(radius.get() <= truth, "margin {margin} σ: {radius} above {truth}");
            assert!(
                radius.get() >= share * truth,
                "margin {margin} σ: {radius} far below {truth}\n{}",
                outcome.explain
            );
        }
    }
}

#[test]
fn a_mixture_of_two_positives_beats_the_better_one_three_times() {
    let items: &[(&str, [f32; 2])] =
        &[("right", [0.8, -0.05]), ("right", [-0.8, -0.05]), ("wrong", [0.0, 0.9])];
    let encoder = TwoCell::new([1.0, 0.0], [-1.0, 0.0]);
    let query = sample(&encoder, 0.3 * SIGMA, 1_000, 100_000, 5);
    let radius = |items: &[(&str, [f32; 2])]| {
        let gallery = gallery_of(items);
        let outcome = certifier(&gallery)
            .certify(CertificateName::HalfSpace, &query, &by_label(&gallery, "right"))
            .unwrap();
        outcome.verdict.radius().map_or(0.0, Radius::get)
    };
    let single = radius(&[items[0], items[2]]).max(radius(&[items[1], items[2]]));
    let mixture = radius(items);
    assert!((single / SIGMA - 0.43).abs() < 0.03, "a single positive gives {} σ", single / SIGMA);
    assert!(mixture >= 3.0 * single, "mixture {mixture}, single {single}");
}

#[test]
fn both_forms_stay_below_the_truth_and_find_most_of_it() {
    let items: &[(&str, [f32; 2])] = &[("right", [1.0, 0.0]), ("wrong", [-1.0, 0.0])];
    let gallery = gallery_of(items);
    let encoder = TwoCell::new([0.9, 0.1], [-0.7, 0.2]);
    let query = sample(&encoder, SIGMA, 1_000, 20_000, 8);
    let truth = encoder.true_radius(items, SIGMA, SIGMA);
    for form in [Form::Thresholds, Form::Betting, Form::ByPilot] {
        let options = HalfSpaceOptions { top_k: 1, form };
        let outcome = certifier(&gallery).half_space(&query, &by_label(&gallery, "right"), &options).unwrap();
        let radius = outcome.verdicts[0].radius().unwrap().get();
        assert!(radius <= truth && radius > 0.9 * truth, "{form:?}: {radius} of {truth}");
    }
}

#[test]
fn the_mean_only_radius_is_never_below_the_papers_in_population() {
    // m = E S − s is at least d/2, and for fixed m the half-space radius is least at t = −s = m/2.
    let sigma = Sigma::new(SIGMA).unwrap();
    let mut random = common::Random::new(11);
    let mut compared = 0;
    for trial in 0..20_000 {
        let dimension = 2 + trial % 9;
        let mut vector = |scale: f64| -> Vec<f64> {
            let mut values: Vec<f64> = (0..dimension).map(|_| random.normal()).collect();
            let norm = values.iter().map(|value| value * value).sum::<f64>().sqrt();
            let length = scale * random.uniform();
            values.iter_mut().for_each(|value| *value *= length / norm);
            values
        };
        let mean = vector(1.0);
        let positives: Vec<Vec<f64>> = (0..1 + trial % 4).map(|_| vector(1.0)).collect();
        let negatives: Vec<Vec<f64>> = (0..1 + trial % 6).map(|_| vector(1.0)).collect();
        let distance = |left: &[f64], right: &[f64]| -> f64 {
            left.iter().zip(right).map(|(left, right)| (left - right).powi(2)).sum::<f64>().sqrt()
        };
        let nearest =
            |set: &[Vec<f64>]| set.iter().map(|one| distance(&mean, one)).fold(f64::INFINITY, f64::min);
        let margin = nearest(&negatives) - nearest(&positives);
        if margin <= 0.0 {
            continue;
        }
        compared += 1;
        let half_space = negatives
            .iter()
            .map(|negative| {
                let against = |positive: &Vec<f64>| {
                    let gap = distance(positive, negative);
                    let inner = |other: &[f64]| -> f64 {
                        other
                            .iter()
                            .zip(positive.iter().zip(negative))
                            .map(|(x, (a, b))| x * (a - b))
                            .sum::<f64>()
                            / gap
                    };
                    let offset = (inner(positive) + inner(negative)) / 2.0;
                    half_space_mean_radius(inner(&mean), offset, sigma, NormBound::UNIT)
                };
                positives.iter().map(against).fold(f64::NEG_INFINITY, f64::max)
            })
            .fold(f64::INFINITY, f64::min);
        let paper = certified_radius(margin, sigma, NormBound::UNIT);
        assert!(half_space >= paper * (1.0 - 1e-9), "trial {trial}: {half_space} below {paper}");
    }
    assert!(compared > 5_000, "{compared}");
}

#[test]
fn recall_at_k_radii_ascend_and_never_exceed_the_truth() {
    let items: &[(&str, [f32; 2])] =
        &[("right", [1.0, 0.0]), ("wrong", [-0.2, 0.9]), ("other", [-0.9, 0.1]), ("third", [-1.0, -0.5])];
    let gallery = gallery_of(items);
    let encoder = TwoCell::new([1.0, 0.0], [-0.9, 0.2]);
    let query = sample(&encoder, 0.8 * SIGMA, 1_000, 20_000, 4);
    let options = HalfSpaceOptions { top_k: 3, form: Form::ByPilot };
    let outcome = certifier(&gallery).half_space(&query, &by_label(&gallery, "right"), &options).unwrap();
    let radii: Vec<f64> = outcome.verdicts.iter().map(|verdict| verdict.radius().unwrap().get()).collect();
    let mut truths: Vec<f64> = (1..4)
        .map(|negative| encoder.true_radius(&[items[0], items[negative]], 0.8 * SIGMA, SIGMA))
        .collect();
    truths.sort_by(f64::total_cmp);
    for (rank, (radius, truth)) in radii.iter().zip(&truths).enumerate() {
        assert!(radius <= truth, "recall@{}: {radius} above {truth}", rank + 1);
        assert!(*radius > 0.8 * truth.min(4.0 * SIGMA), "recall@{}: {radius} far below {truth}", rank + 1);
    }
    assert!(radii.is_sorted(), "{radii:?}");
}

/// What a growing test says after each look, shown the samples of a query in order.
fn grow(
    certifier: &Certifier<'_>,
    query: &SampledQuery,
    relevance: &Relevance,
    options: &GrowingOptions,
) -> Vec<GrowingOutcome> {
    let mut test = GrowingTest::new(certifier, &query.pilot, relevance, options).unwrap();
    let mut outcomes = Vec::new();
    while let Some(range) = test.wants() {
        test.see(&query.certifying.slice(range).unwrap()).unwrap();
        outcomes.push(test.outcome());
    }
    outcomes
}

fn shown(outcome: &GrowingOutcome) -> f64 {
    outcome.verdict.radius().map_or(0.0, Radius::get)
}

#[test]
fn a_growing_radius_never_shrinks_and_no_look_is_above_the_truth() {
    let galleries: [&[(&str, [f32; 2])]; 3] = [
        &[("right", [1.0, 0.0]), ("wrong", [-1.0, 0.0])],
        &[("right", [0.5, -0.2]), ("wrong", [-0.5, 0.4]), ("other", [0.1, -0.9]), ("third", [-0.9, -0.1])],
        &[("right", [0.9, 0.1]), ("wrong", [0.2, 0.1]), ("other", [-0.3, 0.2])],
    ];
    let encoder = TwoCell::new([1.0, 0.0], [-0.8, 0.4]);
    let mut certified = 0;
    for (index, items) in galleries.iter().enumerate() {
        let gallery = gallery_of(items);
        let relevance = by_label(&gallery, "right");
        // Many looks at this level: one failure by chance would be a surprise.
        let certifier = Certifier::new(&gallery, Sigma::new(SIGMA).unwrap(), Alpha::new(1e-5).unwrap());
        for margin in [-0.5, 0.1, 0.5, 1.0, 2.0, 3.0] {
            let truth = encoder.true_radius(items, margin * SIGMA, SIGMA);
            let query = sample(&encoder, margin * SIGMA, 500, 5_000, index as u64);
            for form in [Form::Betting, Form::ByPilot, Form::Thresholds] {
                let mut options = GrowingOptions::new(SampleCount::new(5_000).unwrap());
                options.form = form;
                let case = format!("gallery {index}, margin {margin} σ, {form:?}");
                let outcomes = grow(&certifier, &query, &relevance, &options);
                let counts: Vec<u32> = outcomes.iter().map(|outcome| outcome.samples).collect();
                assert_eq!(counts, [128, 256, 512, 1_024, 2_048, 4_096, 5_000], "{case}");
                assert_eq!(outcomes[6].decision, Decision::Capped, "{case}");
                let radii: Vec<f64> = outcomes.iter().map(shown).filter(|&radius| radius > 0.0).collect();
                assert!(radii.is_sorted(), "{case}: {radii:?}");
                assert!(radii.iter().all(|&radius| radius <= truth), "{case}: {radii:?} above {truth}");
                certified += radii.len();
            }
        }
    }
    assert!(certified > 150, "only {certified} certificates: the test has lost its teeth");
}

#[test]
fn a_growing_radius_ends_near_that_of_half_space_with_as_many_samples() {
    let items: &[(&str, [f32; 2])] = &[("right", [1.0, 0.0]), ("wrong", [-1.0, 0.0])];
    let gallery = gallery_of(items);
    let certifier = certifier(&gallery);
    let relevance = by_label(&gallery, "right");
    for encoder in [TwoCell::new([1.0, 0.0], [-1.0, 0.0]), TwoCell::new([0.9, 0.3], [-0.5, -0.6])] {
        for margin in [0.5, 1.0, 2.0, 3.0] {
            for cap in [1_000, 10_000] {
                let query = sample(&encoder, margin * SIGMA, 1_000, cap, 3);
                let fixed = certifier.certify(CertificateName::HalfSpace, &query, &relevance).unwrap();
                let fixed = fixed.verdict.radius().unwrap().get();
                let options = GrowingOptions::new(SampleCount::new(u64::from(cap)).unwrap());
                let outcomes = grow(&certifier, &query, &relevance, &options);
                // Measured: 0.975 to 1; where the pilot bets, nothing is lost.
                let ratio = shown(outcomes.last().unwrap()) / fixed;
                assert!(ratio >= 0.97, "margin {margin} σ, {cap} samples: {ratio} of it");
            }
        }
    }
}

#[test]
fn a_target_between_two_rungs_is_reached_exactly() {
    let items: &[(&str, [f32; 2])] = &[("right", [1.0, 0.0]), ("wrong", [-1.0, 0.0])];
    let gallery = gallery_of(items);
    let relevance = by_label(&gallery, "right");
    let query = sample(&TwoCell::new([0.9, 0.1], [-0.7, 0.2]), SIGMA, 1_000, 10_000, 8);
    let mut options = GrowingOptions::new(SampleCount::new(10_000).unwrap());
    options.form = Form::Betting;
    let ended = *grow(&certifier(&gallery), &query, &relevance, &options).last().unwrap();
    let target = shown(&ended) * 1.001;
    options.target = Some(TargetRadius::new(target).unwrap());
    let reached = *grow(&certifier(&gallery), &query, &relevance, &options).last().unwrap();
    assert_eq!((reached.decision, shown(&reached)), (Decision::Reached, target));
    // A nearer target ends sampling earlier.
    options.target = Some(TargetRadius::new(0.6 * target).unwrap());
    let reached = *grow(&certifier(&gallery), &query, &relevance, &options).last().unwrap();
    assert_eq!(reached.decision, Decision::Reached);
    assert!(shown(&reached) >= 0.6 * target && reached.samples < 5_000, "{reached:?}");
}

#[test]
fn a_growing_radius_does_not_depend_on_how_its_samples_were_drawn() {
    let items: &[(&str, [f32; 2])] = &[("right", [0.7, 0.5]), ("wrong", [-0.6, 0.3]), ("other", [0.1, -0.9])];
    let gallery = gallery_of(items);
    let relevance = by_label(&gallery, "right");
    let encoder = TwoCell::new([1.0, 0.0], [-0.8, 0.4]);
    let query = sample(&encoder, SIGMA, 500, 1_000, 6);
    let options = GrowingOptions::new(SampleCount::new(1_000).unwrap());
    let whole = grow(&certifier(&gallery), &query, &relevance, &options);

    let smoother = Smoother::new(&encoder, Sigma::new(SIGMA).unwrap(), Seed::new(6));
    let pixels = encoder.picture(SIGMA);
    let picture = Picture { identity: "query", pixels: &pixels };
    let mut test = GrowingTest::new(&certifier(&gallery), &query.pilot, &relevance, &options).unwrap();
    let mut outcomes = Vec::new();
    while let Some(range) = test.wants() {
        let mut pieces: Option<Samples> = None;
        for start in range.clone().step_by(37) {
            let piece = start..(start + 37).min(range.end);
            let piece = smoother.samples(&picture, Stage::Certify, piece).unwrap();
            match &mut pieces {
                Some(pieces) => pieces.append(&piece).unwrap(),
                None => pieces = Some(piece),
            }
        }
        test.see(&pieces.unwrap()).unwrap();
        outcomes.push(test.outcome());
    }
    assert_eq!(outcomes, whole);
    assert_eq!(test.samples(), Some(&query.certifying));
    assert_eq!(test.mean(), query.certifying.mean());
}
