use super::*;
use crate::loss::reference::Reference;

/// Rows around the unit circle of the first two of `dimension` axes.
fn on_a_circle(angles: &[f64], dimension: usize) -> Vec<f32> {
    angles
        .iter()
        .flat_map(|angle| {
            let mut row = vec![0.0; dimension];
            row[0] = angle.cos() as f32;
            row[1] = angle.sin() as f32;
            row
        })
        .collect()
}

/// The definition, one pair at a time, without logarithms.
fn naive_probabilities(embeddings: &[f32], labels: &[u32], anchor: usize) -> Vec<f64> {
    let d = embeddings.len() / labels.len();
    let mut weights = vec![0.0; labels.len()];
    for other in 0..labels.len() {
        let mut squared = 0.0;
        for axis in 0..d {
            squared += f64::from(embeddings[anchor * d + axis] - embeddings[other * d + axis]).powi(2);
        }
        let distance = squared.sqrt().max(0.5);
        if labels[other] != labels[anchor] && distance < 1.4 {
            let density =
                distance.powi(d as i32 - 2) * (1.0 - distance * distance / 4.0).powf((d as f64 - 3.0) / 2.0);
            weights[other] = 1.0 / density;
        }
    }
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn probabilities(weights: DistanceWeights, embeddings: &[f32], labels: &[u32], anchor: usize) -> Vec<f64> {
    let dimension = embeddings.len() / labels.len();
    let mut distances = vec![0.0; labels.len()];
    distances_from(anchor, embeddings, dimension, &mut distances);
    weights.probabilities(&distances, dimension, labels, labels[anchor])
}

#[test]
fn probabilities_are_those_of_pytorch_metric_learning_and_of_the_double_loop() {
    let reference = Reference::read();
    for case in &reference.cases {
        let embeddings = case.embeddings();
        for (anchor, wanted) in case.probabilities.iter().enumerate() {
            let found = probabilities(DistanceWeights::default(), &embeddings, &reference.labels, anchor);
            let Some(wanted) = wanted else {
                // The miner leaves such an anchor out; here all its negatives are equally likely.
                let negatives = reference.labels.iter().filter(|&&label| label != reference.labels[anchor]);
                let share = 1.0 / negatives.count() as f64;
                for (found, label) in found.iter().zip(&reference.labels) {
                    let wanted = if *label == reference.labels[anchor] { 0.0 } else { share };
                    assert_eq!(*found, wanted, "{anchor}");
                }
                continue;
            };
            let naive = naive_probabilities(&embeddings, &reference.labels, anchor);
            for ((found, wanted), naive) in found.iter().zip(wanted).zip(&naive) {
                let place = (case.dimension, anchor);
                // The miner scales rows to length 1 once more, which they are only up to 6e-8.
                assert!((found - wanted).abs() < 2e-6, "{place:?}: {found} for {wanted}");
                assert!((found - naive).abs() < 1e-5, "{place:?}: {found} for {naive}");
            }
        }
    }
}

#[test]
fn log_weights_are_tabulated() {
    // mpmath with 40 digits: (2-d)*log(D) - (d-3)/2*log(1-D**2/4), the nearest doubles.
    let cases = [
        (2, 0.5, -0.03226926056878559),
        (2, 1.0, -0.14384103622589045),
        (2, 1.375, -0.3199513330205665),
        (3, 0.5, std::f64::consts::LN_2),
        (3, 1.0, 0.0),
        (3, 1.375, -0.3184537311185346),
        (4, 0.5, 1.4185636216886761),
        (4, 1.0, 0.14384103622589045),
        (4, 1.375, -0.31695612921650274),
        (128, 0.5, 91.3702023216513),
        (128, 1.0, 17.980129528236308),
        (128, 1.375, -0.13125349336454742),
        (2048, 0.5, 1484.1697692888147),
        (2048, 1.0, 294.154919081946),
        (2048, 1.375, 2.744142158536696),
    ];
    for (dimension, distance, wanted) in cases {
        let found = DistanceWeights::default().log_weight(distance, dimension);
        assert!((found - wanted).abs() <= 1e-13 * wanted.abs().max(1.0), "{dimension} {distance}: {found}");
    }
}

#[test]
fn near_negatives_count_as_the_lower_cutoff_and_far_ones_not_at_all() {
    let weights = DistanceWeights::default();
    for dimension in [2, 3, 4, 128, 2048] {
        let nearest = weights.log_weight(0.5, dimension);
        assert_eq!(weights.log_weight(0.0, dimension), nearest, "{dimension}");
        assert_eq!(weights.log_weight(0.499, dimension), nearest, "{dimension}");
        assert_eq!(weights.log_weight(1.4, dimension), f64::NEG_INFINITY, "{dimension}");
        assert!(weights.log_weight(1.3999, dimension).is_finite(), "{dimension}");
    }
}

#[test]
fn extreme_distances_never_make_a_probability_that_is_not_a_number() {
    let labels = [0, 0, 1, 2, 3, 4];
    let angles = [0.0, 1e-9, 0.0, 1e-9, std::f64::consts::PI, std::f64::consts::PI - 1e-7];
    for dimension in [2, 3, 4, 128, 2048] {
        for weights in [DistanceWeights::default(), DistanceWeights::ROTH] {
            let embeddings = on_a_circle(&angles, dimension);
            let found = probabilities(weights, &embeddings, &labels, 0);
            assert!(found.iter().all(|value| (0.0..=1.0).contains(value)), "{dimension}: {found:?}");
            assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{dimension}: {found:?}");
            assert_eq!(found[..2], [0.0, 0.0]);
        }
    }
    // Only antipodes are left.
    for weights in [DistanceWeights::default(), DistanceWeights::ROTH] {
        let found = probabilities(weights, &on_a_circle(&[0.0, 0.0, std::f64::consts::PI], 4), &[0, 0, 1], 0);
        assert_eq!(found, [0.0, 0.0, 1.0]);
    }
}

#[test]
fn negatives_are_chosen_as_often_as_their_weights_say() {
    let labels = [0, 0, 1, 1, 2, 2, 3];
    let embeddings = on_a_circle(&[0.0, 0.2, 0.4, 0.7, 0.9, 1.2, 2.5], 16);
    let wanted = probabilities(DistanceWeights::default(), &embeddings, &labels, 0);
    let sampler = TripletSampler::default();
    let mut counts = [0.0; 7];
    let draws = 4_000;
    for step in 0..draws {
        let triplets = sampler.triplets(&embeddings, &labels, Seed::new(1), 0, step).unwrap();
        assert_eq!((triplets.anchors[0], triplets.positives[0]), (0, 1));
        counts[triplets.negatives[0]] += 1.0;
    }
    let statistic: f64 = wanted
        .iter()
        .zip(counts)
        .filter(|(wanted, _)| **wanted > 0.0)
        .map(|(wanted, count)| {
            let expected = wanted * draws as f64;
            (count - expected).powi(2) / expected
        })
        .sum();
    // 99.9th percentile of chi-square with 3 degrees of freedom: four of the five negatives can be chosen.
    assert!(statistic < 16.27, "{statistic}: {counts:?} for {wanted:?}");
    assert_eq!(counts[6], 0.0);
}

#[test]
fn every_anchor_meets_every_positive_or_one() {
    let labels = [0, 1, 0, 1, 0, 2];
    let embeddings = on_a_circle(&[0.0, 0.5, 1.0, 1.5, 2.0, 2.5], 3);
    let every = TripletSampler::default().triplets(&embeddings, &labels, Seed::new(3), 1, 2).unwrap();
    let pairs: Vec<_> = every.anchors.iter().copied().zip(every.positives.iter().copied()).collect();
    assert_eq!(pairs, [(0, 2), (0, 4), (1, 3), (2, 0), (2, 4), (3, 1), (4, 0), (4, 2)]);
    let one = TripletSampler { pairing: Pairing::OnePositive, ..TripletSampler::default() };
    let one = one.triplets(&embeddings, &labels, Seed::new(3), 1, 2).unwrap();
    assert_eq!(one.anchors, [0, 1, 2, 3, 4]);
    for triplets in [&every, &one] {
        for at in 0..triplets.len() {
            let [anchor, positive, negative] =
                [&triplets.anchors, &triplets.positives, &triplets.negatives].map(|list| list[at]);
            assert!(anchor != positive && labels[anchor] == labels[positive]);
            assert_ne!(labels[anchor], labels[negative]);
        }
    }
}

#[test]
fn batches_without_triplets_are_refused() {
    let sampler = TripletSampler::default();
    let sample =
        |embeddings: &[f32], labels: &[u32]| sampler.triplets(embeddings, labels, Seed::new(0), 0, 0);
    assert_eq!(sample(&[1.0; 5], &[0, 1]), Err(SamplingError::Shape { labels: 2, values: 5 }));
    assert_eq!(sample(&[], &[]), Err(SamplingError::Shape { labels: 0, values: 0 }));
    assert_eq!(sample(&[1.0; 2], &[0, 1]), Err(SamplingError::Dimension { found: 1 }));
    assert_eq!(sample(&[1.0; 6], &[0, 1, 2]), Err(SamplingError::NoTriplet { labels: 3 }));
    assert_eq!(sample(&[1.0; 6], &[1, 1, 1]), Err(SamplingError::NoTriplet { labels: 3 }));
    let error = sample(&[1.0, 0.0, 1.0, f32::INFINITY, 1.0, 0.0], &[0, 0, 1]).unwrap_err();
    assert_eq!(error, SamplingError::NotFinite { row: 1, column: 1, value: f32::INFINITY });
}
