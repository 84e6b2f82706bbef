use super::*;
use crate::gallery::Metric;

/// Numbers from −1 to 1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    fn vector(&mut self, length: usize) -> Vec<f64> {
        (0..length).map(|_| self.next()).collect()
    }

    fn gallery(&mut self, rows: usize, dimension: usize, labels: usize) -> Gallery {
        let vectors = (0..rows * dimension).map(|_| self.next() as f32).collect();
        let names: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
        let labels: Vec<String> = (0..rows).map(|row| format!("label {}", row % labels)).collect();
        Gallery::new(vectors, dimension, names, &labels, Metric::Euclidean).unwrap()
    }
}

fn one() -> LipschitzBound {
    LipschitzBound::stated(LipschitzConstant::new(1.0).unwrap())
}

fn radius(verdict: Verdict) -> f64 {
    verdict.radius().map_or(0.0, Radius::get)
}

#[test]
fn the_search_answers_as_a_double_loop_over_all_pairs() {
    let mut numbers = Numbers(1);
    let mut certified = 0;
    let mut wide = 0;
    for (rows, dimension, labels, top_k) in
        [(30, 2, 5, 1), (300, 8, 20, 3), (2_000, 16, 40, 2), (9, 130, 3, 1), (6_000, 128, 1_000, 2)]
    {
        let gallery = numbers.gallery(rows, dimension, labels);
        for trial in 0..30 {
            // Near an item, so that something is certified; not too near where distances should hardly differ.
            let spread = if dimension == 128 { 0.8 } else { 0.1 };
            let own = (trial * 7) % rows;
            let query: Vec<f64> =
                gallery.vector(own).iter().map(|&value| f64::from(value) + spread * numbers.next()).collect();
            let excluded = if trial % 2 == 0 { vec![] } else { vec![own] };
            let relevance = Relevance::new(Positives::Label(gallery.label(own)), excluded);
            let certifier = LipschitzCertifier::new(&gallery, one()).top_k(NonZeroUsize::new(top_k).unwrap());
            let outcome = certifier.certify(LipschitzName::Lipschitz, &query, &relevance).unwrap();

            let nearby = Nearby::new(&gallery, &query, |_| &relevance.excluded);
            let question = Question::new((&certifier, &gallery), &nearby, 0, &query, &relevance).unwrap();
            wide += usize::from(question.is_wide());

            let square = |row: usize| super::super::squared_distance(&query, gallery.vector(row));
            let visible: Vec<usize> = (0..rows).filter(|row| !relevance.excluded.contains(row)).collect();
            let mut distances: Vec<f64> = visible
                .iter()
                .filter(|&&row| gallery.label(row) != gallery.label(own))
                .map(|&wrong| {
                    let positives = visible.iter().filter(|&&row| gallery.label(row) == gallery.label(own));
                    positives
                        .map(|&right| {
                            let gap = norm(
                                gallery
                                    .vector(right)
                                    .iter()
                                    .zip(gallery.vector(wrong))
                                    .map(|(&a, &b)| f64::from(a) - f64::from(b)),
                            );
                            (square(wrong) - square(right)) / (2.0 * gap)
                        })
                        .fold(f64::NEG_INFINITY, f64::max)
                })
                .collect();
            distances.sort_by(f64::total_cmp);
            for (verdict, &distance) in outcome.verdicts.iter().zip(&distances) {
                assert!(
                    (radius(*verdict) - distance.max(0.0)).abs() < 1e-11,
                    "{rows} rows, trial {trial}: {verdict:?} and {distance}"
                );
                certified += usize::from(distance > 0.0);
            }
            let margin = certifier.certify(LipschitzName::LipschitzMargin, &query, &relevance).unwrap();
            for (verdict, wider) in margin.verdicts.iter().zip(&outcome.verdicts) {
                assert!(radius(*verdict) <= radius(*wider) + 1e-12, "{verdict:?} beside {wider:?}");
            }
        }
    }
    assert!(certified > 80 && wide > 10, "{certified} certified, {wide} with many wrong items in reach");
}

#[test]
fn most_wrong_items_are_cleared_by_their_distance_alone() {
    let mut numbers = Numbers(3);
    let gallery = numbers.gallery(5_000, 32, 50);
    let query: Vec<f64> =
        gallery.vector(17).iter().map(|&value| f64::from(value) + 0.05 * numbers.next()).collect();
    let relevance = Relevance::new(Positives::Label(gallery.label(17)), vec![]);
    let outcome = LipschitzCertifier::new(&gallery, one())
        .certify(LipschitzName::Lipschitz, &query, &relevance)
        .unwrap();
    let looked_at = outcome.explain.number("wrong items looked at").unwrap();
    assert!(looked_at < 500.0, "{looked_at}");
}

#[test]
fn many_queries_get_what_each_gets_by_itself() {
    let mut numbers = Numbers(8);
    let gallery = numbers.gallery(400, 12, 20);
    let queries = numbers.vector(40 * 12);
    let relevance: Vec<Relevance> =
        (0..40).map(|query| Relevance::new(Positives::Label(gallery.label(query)), vec![query])).collect();
    let certifier = LipschitzCertifier::new(&gallery, one());
    let mut seen = 0;
    let visit = |query: usize, outcomes: Vec<LipschitzOutcome>| {
        for (name, outcome) in LipschitzName::ALL.into_iter().zip(outcomes) {
            let own = &queries[query * 12..(query + 1) * 12];
            assert_eq!(outcome, certifier.certify(name, own, &relevance[query]).unwrap(), "query {query}");
            seen += 1;
        }
    };
    certifier.certify_each(&LipschitzName::ALL, &queries, |query| &relevance[query], visit).unwrap();
    assert_eq!(seen, 80);
}

#[test]
fn a_computed_distance_is_never_above_the_exact_one() {
    let mut numbers = Numbers(5);
    let mut tight = 0;
    // Whole numbers: sums of products are exact in 128 bits. Far from the origin everything cancels.
    for (offset, spread, dimension) in
        [(0, 1_000, 3), (4_000_000, 40, 9), (8_000_000, 4, 130), (16_000_000, 3, 40)]
    {
        for _ in 0..300 {
            let mut whole = |wide: i64| offset + (numbers.next() * wide as f64) as i64;
            let (right, wrong, query): (Vec<i64>, Vec<i64>, Vec<i64>) = (
                (0..dimension).map(|_| whole(spread)).collect(),
                (0..dimension).map(|_| whole(spread)).collect(),
                (0..dimension).map(|_| whole(spread)).collect(),
            );
            let (mut product, mut squares) = (0_i128, 0_i128);
            for ((&a, &b), &h) in right.iter().zip(&wrong).zip(&query) {
                product += i128::from(2 * h - a - b) * i128::from(a - b);
                squares += i128::from(a - b) * i128::from(a - b);
            }
            let single = |values: &[i64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
            let query: Vec<f64> = query.iter().map(|&value| value as f64).collect();
            let wrong = single(&wrong);
            let found = Facing::new(&query, &wrong).against(0, &single(&right));
            if squares == 0 {
                assert_eq!(found, 0.0);
                continue;
            }
            let exact = product as f64 / (2.0 * (squares as f64).sqrt());
            assert!(found <= exact - 1e-15 * exact.abs(), "{found} above {exact}");
            tight += usize::from(exact - found < 1e-4 * exact.abs().max(1.0));
        }
    }
    assert!(tight > 1_000, "{tight}");
}

#[test]
fn ties_and_copies_of_a_right_item_certify_nothing() {
    let names = |word: &str| (0..3).map(|row| format!("{word} {row}")).collect::<Vec<_>>();
    let vectors = vec![1.0, 0.0, -1.0, 0.0, 1.0, 0.0];
    let gallery = Gallery::new(vectors, 2, names("item"), &names("label"), Metric::Euclidean).unwrap();
    let certify = |query: [f64; 2], excluded: Vec<usize>| {
        let relevance = Relevance::new(Positives::Item(0), excluded);
        LipschitzName::ALL.map(|name| {
            LipschitzCertifier::new(&gallery, one()).certify(name, &query, &relevance).unwrap().verdict()
        })
    };
    assert_eq!(certify([0.9, 0.0], vec![]), [Verdict::Misretrieved; 2], "item 2 is a copy of item 0");
    assert_eq!(certify([0.0, 0.3], vec![2]), [Verdict::Misretrieved; 2], "as near to either");
    assert_eq!(certify([-0.1, 0.3], vec![2]), [Verdict::Misretrieved; 2]);
    let [bisector, margin] = certify([0.9, 0.0], vec![2]);
    assert!((radius(bisector) - 0.9).abs() < 1e-12 && (radius(margin) - 0.9).abs() < 1e-12);
    assert_eq!(certify([1e-17, 0.0], vec![2]), [Verdict::Misretrieved; 2], "nearer, but not in f64");
    assert_eq!(certify([1e-15, 0.0], vec![2]), [Verdict::Abstained; 2], "nearer, within rounding");
    assert_eq!(certify([0.9, 0.0], vec![0, 2]), [Verdict::Misretrieved; 2], "the right item is hidden");
}

#[test]
fn unanswerable_questions_are_refused_by_name() {
    let mut numbers = Numbers(2);
    let gallery = numbers.gallery(4, 3, 1);
    let certifier = LipschitzCertifier::new(&gallery, one());
    let everything = Relevance::new(Positives::Label(gallery.label(0)), vec![]);
    let certify = |query: &[f64], relevance| certifier.certify(LipschitzName::Lipschitz, query, relevance);
    assert_eq!(certify(&[0.0; 3], &everything), Err(CertificateError::NoNegatives));
    let short = CertificateError::DimensionMismatch { found: 2, wanted: 3 };
    assert_eq!(certify(&[0.0; 2], &everything), Err(short));
    assert!(matches!(certify(&[0.0, f64::NAN, 0.0], &everything), Err(CertificateError::Search(_))));
    let item = Relevance::new(Positives::Item(0), vec![]);
    let deep = certifier.top_k(NonZeroUsize::new(4).unwrap());
    let refused = deep.certify(LipschitzName::Lipschitz, &[0.0; 3], &item);
    assert_eq!(refused, Err(CertificateError::TopKTooLarge { top_k: 4, negatives: 3 }));
    let threshold = |threshold| certifier.threshold(&[0.0; 3], 0, threshold);
    assert_eq!(
        threshold(Threshold::Distance(Distance::Above(-1.0))),
        Err(CertificateError::DistanceThreshold(-1.0))
    );
    assert!(threshold(Threshold::Similarity(Similarity::Above(f64::INFINITY))).is_err());
    // Numbers beyond all squares end in an abstention or a wrong answer, not in a radius.
    let huge = certify(&[1e300, 0.0, 0.0], &item).unwrap().verdict();
    assert!(matches!(huge, Verdict::Abstained | Verdict::Misretrieved), "{huge:?}");
    assert_eq!("lipschitz-margin".parse(), Ok(LipschitzName::LipschitzMargin));
    assert!("half-space".parse::<LipschitzName>().is_err());
}

#[test]
fn thresholds_have_their_plane_and_their_sphere() {
    let gallery = Gallery::new(vec![3.0, 4.0], 2, vec!["a".into()], &["a"], Metric::Euclidean).unwrap();
    let bound = LipschitzBound { forward_error: ForwardError::new(0.25).unwrap(), ..one() };
    let certifier = LipschitzCertifier::new(&gallery, bound);
    let ask = |threshold| certifier.threshold(&[3.0, 0.0], 0, threshold).unwrap().verdict();
    let table = [
        // ⟨h, v⟩ = 9 and ‖v‖ = 5, so 4 is one away; twice the error is taken off.
        (Threshold::Similarity(Similarity::Above(4.0)), Some(0.5)),
        (Threshold::Similarity(Similarity::Below(14.0)), Some(0.5)),
        (Threshold::Similarity(Similarity::Above(9.0)), None),
        (Threshold::Distance(Distance::Below(5.0)), Some(0.5)),
        (Threshold::Distance(Distance::Above(2.0)), Some(1.5)),
        (Threshold::Distance(Distance::Above(4.0)), None),
    ];
    for (threshold, wanted) in table {
        match (ask(threshold), wanted) {
            (Verdict::Certified { radius }, Some(wanted)) => {
                assert!(radius.get() <= wanted && radius.get() > wanted - 1e-12, "{threshold:?}");
            }
            (Verdict::Misretrieved, None) => {}
            (verdict, _) => panic!("{threshold:?}: {verdict:?}"),
        }
    }
    let inside = ask(Threshold::Distance(Distance::Below(4.4)));
    assert_eq!(inside, Verdict::Abstained, "twice the forward error is more than what is left");
}

#[test]
fn every_step_refers_to_a_statement_that_has_words() {
    let mut numbers = Numbers(4);
    let gallery = numbers.gallery(40, 3, 4);
    let relevance = Relevance::new(Positives::Label(gallery.label(0)), vec![]);
    let query: Vec<f64> = gallery.vector(0).iter().map(|&value| f64::from(value)).collect();
    let certifier =
        LipschitzCertifier::new(&gallery, one()).mixtures(Mixtures::UpTo(NonZeroUsize::new(8).unwrap()));
    let mut outcomes =
        LipschitzName::ALL.map(|name| certifier.certify(name, &query, &relevance).unwrap()).to_vec();
    outcomes.push(certifier.threshold(&query, 0, Threshold::Distance(Distance::Below(1.0))).unwrap());
    for outcome in &outcomes {
        assert!(outcome.explain.steps().len() > 4);
        for step in outcome.explain.steps() {
            assert!(super::super::statement_in_words(&step.statement).is_some(), "{}", step.statement);
        }
    }
}
