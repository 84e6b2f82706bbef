use super::{
    Gallery, GalleryError, Label, Metric, NearestPair, Neighbour, NewItem, Positives, Relevance,
    RowRelevance, SearchError,
};

/// Reproducible numbers (splitmix64), so that a failing case can be run again.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Uniform in `[-1, 1)`.
    fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|row| format!("item-{row}")).collect()
}

fn labels(count: usize, distinct: usize, numbers: &mut Numbers) -> Vec<String> {
    (0..count).map(|_| format!("label-{}", numbers.below(distinct))).collect()
}

fn euclidean(vectors: Vec<f32>, dimension: usize, labels: &[String]) -> Gallery {
    Gallery::new(vectors, dimension, names(labels.len()), labels, Metric::Euclidean).unwrap()
}

fn naive_squared_distance<T: Copy + Into<f64>>(query: &[T], vector: &[f32]) -> f64 {
    let mut sum = 0.0;
    for (&left, &right) in query.iter().zip(vector) {
        let left: f64 = left.into();
        let difference = left - f64::from(right);
        sum += difference * difference;
    }
    sum
}

fn naive_pair<T: Copy + Into<f64>>(gallery: &Gallery, query: &[T], relevance: &Relevance) -> NearestPair {
    let mut pair = NearestPair::default();
    for row in 0..gallery.len() {
        let nearest = match relevance.of_row(gallery, row) {
            RowRelevance::Positive => &mut pair.positive,
            RowRelevance::Negative => &mut pair.negative,
            RowRelevance::Excluded => continue,
        };
        let squared_distance = naive_squared_distance(query, gallery.vector(row));
        if nearest.is_none_or(|nearest| squared_distance < nearest.squared_distance) {
            *nearest = Some(Neighbour { row, squared_distance });
        }
    }
    pair
}

fn naive_nearest<T: Copy + Into<f64>>(
    gallery: &Gallery,
    query: &[T],
    count: usize,
    excluded: &[usize],
) -> Vec<Neighbour> {
    let mut all: Vec<Neighbour> = (0..gallery.len())
        .filter(|row| !excluded.contains(row))
        .map(|row| Neighbour { row, squared_distance: naive_squared_distance(query, gallery.vector(row)) })
        .collect();
    all.sort_by(|left, right| left.squared_distance.total_cmp(&right.squared_distance));
    all.truncate(count);
    all
}

fn random_relevance(gallery: &Gallery, numbers: &mut Numbers) -> Relevance {
    let row = numbers.below(gallery.len());
    let positives = match numbers.below(4) {
        0 => Positives::Item(row),
        1 => Positives::Absent,
        _ => Positives::Label(gallery.label(row)),
    };
    let excluded = (0..numbers.below(6)).map(|_| numbers.below(gallery.len())).collect();
    Relevance::new(positives, excluded)
}

/// Compares both searches with the double loop, bit for bit.
fn assert_exact<T: Copy + Into<f64>>(case: &str, gallery: &Gallery, queries: &[T], numbers: &mut Numbers) {
    let dimension = gallery.dimension();
    let relevances: Vec<Relevance> =
        (0..queries.len() / dimension).map(|_| random_relevance(gallery, numbers)).collect();
    let count = 1 + numbers.below(20);
    let pairs = gallery.nearest_positive_and_negative(queries, |query| &relevances[query]).unwrap();
    let nearest = gallery.nearest(queries, count, |query| &relevances[query].excluded).unwrap();
    assert_eq!(pairs.len(), relevances.len(), "{case}");
    assert_eq!(nearest.len(), relevances.len(), "{case}");
    for (position, query) in queries.chunks_exact(dimension).enumerate() {
        let relevance = &relevances[position];
        let expected = naive_pair(gallery, query, relevance);
        assert_eq!(pairs[position], expected, "{case}: pair of query {position}, {relevance:?}");
        let expected = naive_nearest(gallery, query, count, &relevance.excluded);
        assert_eq!(nearest[position], expected, "{case}: {count} nearest of query {position}");
    }
}

#[test]
fn search_equals_the_double_loop_on_random_vectors_of_many_sizes() {
    let mut numbers = Numbers(1);
    for (rows, dimension, distinct, queries) in [
        (1, 1, 1, 3),
        (2, 1, 2, 5),
        (7, 2, 3, 9),
        (64, 3, 5, 17),
        (257, 16, 10, 33),
        (1023, 31, 40, 8),
        (1024, 64, 1, 8),
        (1025, 100, 1025, 300),
        (3000, 128, 50, 20),
        (2500, 300, 7, 11),
        (3, 70_000, 2, 3),
    ] {
        let vectors = (0..rows * dimension).map(|_| numbers.value() as f32).collect();
        let gallery = euclidean(vectors, dimension, &labels(rows, distinct, &mut numbers));
        let case = format!("{rows} rows of dimension {dimension}");
        let single: Vec<f32> = (0..queries * dimension).map(|_| numbers.value() as f32).collect();
        assert_exact(&case, &gallery, &single, &mut numbers);
        let double: Vec<f64> = (0..queries * dimension).map(|_| numbers.value()).collect();
        assert_exact(&case, &gallery, &double, &mut numbers);
    }
}

#[test]
fn search_equals_the_double_loop_when_f32_cannot_tell_the_rows_apart() {
    let mut numbers = Numbers(2);
    for (offset, spread) in [(1.0, 1e-4), (1.0, 1e-6), (1000.0, 1e-2), (0.01, 1e-8)] {
        let dimension = 48;
        let centre: Vec<f64> = (0..dimension).map(|_| offset * numbers.value()).collect();
        let mut near = |rows: usize| -> Vec<f64> {
            (0..rows * dimension).map(|i| centre[i % dimension] + spread * numbers.value()).collect()
        };
        let vectors = near(1500).iter().map(|&value| value as f32).collect();
        let queries = near(12);
        let gallery = euclidean(vectors, dimension, &labels(1500, 30, &mut numbers));
        assert_exact(&format!("spread {spread} around {offset}"), &gallery, &queries, &mut numbers);
    }
}

#[test]
fn search_equals_the_double_loop_on_a_lattice_full_of_ties() {
    let mut numbers = Numbers(3);
    for dimension in [1, 2, 5, 9] {
        let lattice = |numbers: &mut Numbers| numbers.below(3) as f32 - 1.0;
        let vectors = (0..1200 * dimension).map(|_| lattice(&mut numbers)).collect();
        let queries: Vec<f32> = (0..20 * dimension).map(|_| lattice(&mut numbers) / 2.0).collect();
        let gallery = euclidean(vectors, dimension, &labels(1200, 4, &mut numbers));
        assert_exact(&format!("lattice of dimension {dimension}"), &gallery, &queries, &mut numbers);
    }
}

#[test]
fn search_equals_the_double_loop_over_extreme_magnitudes() {
    let mut numbers = Numbers(4);
    let dimension = 20;
    for scale in [1e14_f32, 1e8, 1e-10, 1e-18, 1e-20, 1e-21, 1e-22, 3e-23, 1e-30, 1e-38, 1e-44, 0.0] {
        let vectors = (0..1100 * dimension).map(|_| scale * numbers.value() as f32).collect();
        let gallery = euclidean(vectors, dimension, &labels(1100, 9, &mut numbers));
        for query_scale in [f64::from(scale), 1e300, 1e200, 1e30, 1e16, 1.0, 1e-25, 1e-50, 1e-200, 0.0] {
            let queries: Vec<f64> = (0..3 * dimension).map(|_| query_scale * numbers.value()).collect();
            let case = format!("vectors of size {scale:e}, queries of size {query_scale:e}");
            assert_exact(&case, &gallery, &queries, &mut numbers);
        }
    }
}

#[test]
fn search_equals_the_double_loop_beside_enormous_outliers() {
    let mut numbers = Numbers(5);
    let (rows, dimension) = (2300, 24);
    let mut vectors: Vec<f32> = (0..rows * dimension).map(|_| numbers.value() as f32).collect();
    for row in [0, 700, 1500] {
        for value in &mut vectors[row * dimension..(row + 1) * dimension] {
            *value *= 1e14;
        }
    }
    let mut queries: Vec<f32> = (0..10 * dimension).map(|_| numbers.value() as f32).collect();
    queries.extend_from_slice(&vectors[700 * dimension..701 * dimension]);
    queries.extend((0..dimension).map(|_| 1e30));
    let gallery = euclidean(vectors, dimension, &labels(rows, 20, &mut numbers));
    assert_exact("outliers", &gallery, &queries, &mut numbers);
}

#[test]
fn search_equals_the_double_loop_with_rows_in_descending_order_of_distance() {
    let mut numbers = Numbers(6);
    let rows = 4000;
    let vectors = (0..rows).flat_map(|row| [(rows - row) as f32 * 1e-3, 0.0]).collect();
    let gallery = euclidean(vectors, 2, &labels(rows, 10, &mut numbers));
    assert_exact("descending", &gallery, &[-1.0_f32, 0.0, 0.0, 1.0], &mut numbers);
}

#[test]
fn search_equals_the_double_loop_for_the_cosine_metric() {
    let mut numbers = Numbers(7);
    let (rows, dimension) = (1300, 40);
    let vectors: Vec<f32> = (0..rows * dimension).map(|_| 50.0 * numbers.value() as f32).collect();
    let labels = labels(rows, 20, &mut numbers);
    let gallery = Gallery::new(vectors, dimension, names(rows), &labels, Metric::Cosine).unwrap();
    for row in 0..rows {
        assert!((gallery.squared_norm(row) - 1.0).abs() < 1e-6, "row {row}");
    }
    let queries: Vec<f64> = (0..15 * dimension).map(|_| numbers.value()).collect();
    assert_exact("cosine", &gallery, &queries, &mut numbers);
}

#[test]
fn an_answer_does_not_depend_on_the_queries_searched_with_it() {
    let mut numbers = Numbers(8);
    let (rows, dimension) = (1100, 33);
    let vectors = (0..rows * dimension).map(|_| numbers.value() as f32).collect();
    let gallery = euclidean(vectors, dimension, &labels(rows, 12, &mut numbers));
    let queries: Vec<f64> = (0..600 * dimension).map(|_| numbers.value()).collect();
    let relevances: Vec<Relevance> = (0..600).map(|_| random_relevance(&gallery, &mut numbers)).collect();
    let together = gallery.nearest_positive_and_negative(&queries, |query| &relevances[query]).unwrap();
    for position in [0, 1, 255, 256, 511, 512, 599] {
        let query = &queries[position * dimension..(position + 1) * dimension];
        let alone = gallery.nearest_positive_and_negative(query, |_| &relevances[position]).unwrap();
        assert_eq!(alone, [together[position]], "query {position}");
    }
}

#[test]
fn equal_distances_go_to_the_smaller_row_even_across_labels() {
    let stored = ["a", "b", "a", "b"].map(String::from);
    let gallery = euclidean(vec![1.0, -1.0, -1.0, 1.0], 1, &stored);
    let relevance = Relevance::new(Positives::Label(gallery.label(0)), vec![]);
    let pair = gallery.nearest_positive_and_negative(&[0.0_f32], |_| &relevance).unwrap()[0];
    assert_eq!(pair.positive, Some(Neighbour { row: 0, squared_distance: 1.0 }));
    assert_eq!(pair.negative, Some(Neighbour { row: 1, squared_distance: 1.0 }));
    let nearest = gallery.nearest(&[0.0_f32], 3, |_| &[]).unwrap();
    assert_eq!(nearest[0].iter().map(|found| found.row).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_gallery_of_duplicates_answers_with_its_first_visible_row() {
    let rows = 5000;
    let gallery = euclidean([0.3, 0.4].repeat(rows), 2, &vec!["only".to_owned(); rows]);
    let relevance = Relevance::new(Positives::Label(gallery.label(0)), vec![0, 1, 3]);
    let pair = gallery.nearest_positive_and_negative(&[0.3_f32, 0.4], |_| &relevance).unwrap()[0];
    assert_eq!(pair.positive, Some(Neighbour { row: 2, squared_distance: 0.0 }));
    assert_eq!(pair.negative, None);
    let nearest = gallery.nearest(&[0.3_f32, 0.4], 3, |_| &relevance.excluded).unwrap();
    assert_eq!(nearest[0].iter().map(|found| found.row).collect::<Vec<_>>(), [2, 4, 5]);
}

#[test]
fn a_side_without_rows_is_none() {
    let stored = ["a", "a", "b"].map(String::from);
    let gallery = euclidean(vec![1.0, 2.0, 3.0], 1, &stored);
    let (first, second) = (gallery.label(0), gallery.label(2));
    let row = |found: Option<Neighbour>| found.map(|found| found.row);
    for (positives, excluded, positive, negative) in [
        (Positives::Absent, vec![], None, Some(0)),
        (Positives::Absent, vec![0, 1, 2], None, None),
        (Positives::Label(second), vec![2], None, Some(0)),
        (Positives::Label(first), vec![2, 0], Some(1), None),
        (Positives::Item(1), vec![], Some(1), Some(0)),
        (Positives::Item(1), vec![1], None, Some(0)),
    ] {
        let relevance = Relevance::new(positives, excluded);
        let pair = gallery.nearest_positive_and_negative(&[0.0_f64], |_| &relevance).unwrap()[0];
        assert_eq!((row(pair.positive), row(pair.negative)), (positive, negative), "{relevance:?}");
    }
}

#[test]
fn asking_for_more_rows_than_there_are_gives_all_of_them() {
    let gallery = euclidean(vec![3.0, 1.0, 2.0], 1, &["a", "b", "c"].map(String::from));
    let nearest = gallery.nearest(&[0.0_f32, 0.0], usize::MAX, |query| &[1][..query]).unwrap();
    let rows: Vec<Vec<usize>> =
        nearest.iter().map(|found| found.iter().map(|found| found.row).collect()).collect();
    assert_eq!(rows, [vec![1, 2, 0], vec![2, 0]]);
}

#[test]
fn no_queries_have_no_answers() {
    let gallery = euclidean(vec![1.0], 1, &["a".to_owned()]);
    let relevance = Relevance::new(Positives::Absent, vec![]);
    assert_eq!(gallery.nearest_positive_and_negative::<f32>(&[], |_| &relevance), Ok(vec![]));
    assert_eq!(gallery.nearest::<f32>(&[], 1, |_| &[]), Ok(vec![]));
}

#[test]
fn names_and_rows_are_found_again() {
    let identities = ["p", "q", "p", "r"].map(String::from).to_vec();
    let stored = ["cat", "dog", "ant", "cat"];
    let gallery = Gallery::new(vec![1.0; 8], 2, identities, &stored, Metric::Euclidean).unwrap();
    assert_eq!((gallery.len(), gallery.dimension(), gallery.label_count()), (4, 2, 3));
    assert_eq!(gallery.metric(), Metric::Euclidean);
    assert_eq!(gallery.rows_of("p"), [0, 2]);
    assert_eq!(gallery.rows_of("r"), [3]);
    assert_eq!(gallery.rows_of("absent"), Vec::<usize>::new());
    assert_eq!(gallery.identity(1), "q");
    assert_eq!(gallery.squared_norms, [2.0; 4]);
    for (row, name) in stored.into_iter().enumerate() {
        assert_eq!(gallery.label_name(gallery.label(row)), name, "row {row}");
        assert_eq!(gallery.label_named(name), Some(gallery.label(row)), "row {row}");
    }
    assert_eq!(gallery.labels(), [Label(0), Label(1), Label(2), Label(0)]);
    assert_eq!(gallery.label_named("cow"), None);
}

#[test]
fn every_row_is_positive_negative_or_excluded() {
    let gallery = euclidean(vec![1.0; 3], 1, &["a", "b", "a"].map(String::from));
    let relevance = Relevance::new(Positives::Label(gallery.label(0)), vec![2, 2]);
    assert_eq!(relevance.excluded, [2]);
    let rows = [0, 1, 2].map(|row| relevance.of_row(&gallery, row));
    assert_eq!(rows, [RowRelevance::Positive, RowRelevance::Negative, RowRelevance::Excluded]);
}

#[test]
fn cosine_scales_vectors_of_any_length() {
    let vectors = vec![3.0, 4.0, 3e38, 0.0, 1e-45, 0.0];
    let gallery = Gallery::new(vectors, 2, names(3), &["a"; 3], Metric::Cosine).unwrap();
    assert_eq!(gallery.vectors(), [0.6, 0.8, 1.0, 0.0, 1.0, 0.0]);
}

#[test]
fn a_scaled_gallery_is_rebuilt_from_its_own_vectors_bit_by_bit() {
    let mut numbers = Numbers(21);
    for dimension in [1, 2, 3, 8, 64] {
        let vectors: Vec<f32> = (0..500 * dimension).map(|_| numbers.value() as f32).collect();
        let build =
            |vectors| Gallery::new(vectors, dimension, names(500), &["a"; 500], Metric::Cosine).unwrap();
        let gallery = build(vectors);
        let rebuilt = build(gallery.vectors().to_vec());
        assert_eq!(rebuilt.vectors(), gallery.vectors(), "dimension {dimension}");
    }
}

#[test]
fn a_gallery_that_makes_no_sense_is_refused() {
    let build = |vectors: &[f32], dimension: usize, items: usize, stored: &[&str], metric: Metric| {
        Gallery::new(vectors.to_vec(), dimension, names(items), stored, metric).unwrap_err()
    };
    let identity = || "item-1".to_owned();
    for (found, wanted) in [
        (build(&[], 2, 0, &[], Metric::Euclidean), GalleryError::Empty),
        (build(&[], 0, 0, &[], Metric::Euclidean), GalleryError::DimensionZero),
        (
            build(&[1.0; 5], 2, 2, &["a"; 2], Metric::Euclidean),
            GalleryError::VectorLength { found: 5, items: 2, dimension: 2 },
        ),
        (
            build(&[1.0; 4], usize::MAX, 2, &["a"; 2], Metric::Euclidean),
            GalleryError::VectorLength { found: 4, items: 2, dimension: usize::MAX },
        ),
        (
            build(&[1.0; 4], 2, 2, &["a"; 3], Metric::Euclidean),
            GalleryError::LabelCount { found: 3, items: 2 },
        ),
        (
            build(&[1.0, 1.0, 1.0, f32::INFINITY], 2, 2, &["a"; 2], Metric::Cosine),
            GalleryError::NotFinite { identity: identity(), row: 1, component: 1, value: f32::INFINITY },
        ),
        (
            build(&[1.0, 2e15], 1, 2, &["a"; 2], Metric::Euclidean),
            GalleryError::NormTooLarge {
                identity: identity(),
                row: 1,
                norm: f64::from(2e15_f32),
                limit: 1e15,
            },
        ),
        (
            build(&[1.0, -0.0], 1, 2, &["a"; 2], Metric::Cosine),
            GalleryError::ZeroVector { identity: identity(), row: 1 },
        ),
    ] {
        assert_eq!(found, wanted);
    }
    let error = build(&[1.0, f32::NAN], 1, 2, &["a"; 2], Metric::Euclidean);
    assert_eq!(
        error.to_string(),
        "component 0 of gallery item `item-1` (row 1) is NaN, wanted a finite number"
    );
}

#[test]
fn a_search_that_makes_no_sense_is_refused() {
    let gallery = euclidean(vec![1.0; 6], 2, &["a", "b", "c"].map(String::from));
    let ask = |queries: &[f64], positives: Positives, excluded: &[usize]| {
        let relevance = Relevance { positives, excluded: excluded.to_vec() };
        gallery.nearest_positive_and_negative(queries, |_| &relevance).unwrap_err()
    };
    let absent = Positives::Absent;
    for (found, wanted) in [
        (ask(&[0.0; 3], absent, &[]), SearchError::QueryLength { found: 3, dimension: 2 }),
        (
            ask(&[0.0, 0.0, 0.0, f64::NEG_INFINITY], absent, &[]),
            SearchError::NotFinite { query: 1, component: 1, value: f64::NEG_INFINITY },
        ),
        (ask(&[0.0; 2], Positives::Item(3), &[]), SearchError::RowOutOfRange { query: 0, row: 3, length: 3 }),
        (ask(&[0.0; 2], absent, &[1, 9]), SearchError::RowOutOfRange { query: 0, row: 9, length: 3 }),
        (
            ask(&[0.0; 2], Positives::Label(Label(3)), &[]),
            SearchError::UnknownLabel { query: 0, label: 3, count: 3 },
        ),
        (
            ask(&[0.0; 2], absent, &[1, 1]),
            SearchError::ExcludedNotAscending { query: 0, first: 1, second: 1 },
        ),
        (gallery.nearest(&[0.0_f32; 2], 0, |_| &[]).unwrap_err(), SearchError::NoNeighbours),
        (
            gallery.nearest(&[0.0_f32; 2], 1, |_| &[3]).unwrap_err(),
            SearchError::RowOutOfRange { query: 0, row: 3, length: 3 },
        ),
        (
            gallery.nearest(&[0.0_f32; 1], 1, |_| &[]).unwrap_err(),
            SearchError::QueryLength { found: 1, dimension: 2 },
        ),
    ] {
        assert_eq!(found, wanted);
    }
    let error = ask(&[0.0, 0.0, f64::NAN, 0.0], absent, &[]);
    assert_eq!(error.to_string(), "component 0 of query 1 is NaN, wanted a finite number");
}

/// Everything that a gallery consists of, with the bits of its numbers.
fn parts(gallery: &Gallery) -> impl PartialEq + std::fmt::Debug + use<> {
    let Gallery { vectors, dimension, metric, labels, label_names, labels_by_name, identities, .. } =
        gallery.clone();
    let bits: Vec<u32> = vectors.iter().map(|value| value.to_bits()).collect();
    let norms: Vec<u64> = gallery.squared_norms.iter().map(|norm| norm.to_bits()).collect();
    let names = (label_names, labels_by_name, identities, gallery.rows_by_identity.clone());
    (bits, dimension, metric, labels, names, norms)
}

#[test]
fn an_edited_gallery_is_the_one_made_of_the_resulting_list() {
    let mut numbers = Numbers(11);
    for metric in [Metric::Euclidean, Metric::Cosine] {
        for case in 0..200 {
            let dimension = 1 + numbers.below(5);
            let item = |numbers: &mut Numbers| NewItem {
                identity: format!("item {}", numbers.below(12)),
                label: format!("label {}", numbers.below(6)),
                vector: (0..dimension).map(|_| numbers.value() as f32 + 2.0).collect(),
                plain: None,
            };
            let made = |list: &[NewItem]| {
                let identities = list.iter().map(|item| item.identity.clone()).collect();
                let labels: Vec<&str> = list.iter().map(|item| item.label.as_str()).collect();
                let vectors = list.iter().flat_map(|item| item.vector.clone()).collect();
                Gallery::new(vectors, dimension, identities, &labels, metric)
            };
            let mut list: Vec<NewItem> = (0..1 + numbers.below(20)).map(|_| item(&mut numbers)).collect();
            let mut gallery = made(&list).unwrap();
            for _ in 0..5 {
                let removed: Vec<usize> = (0..numbers.below(6)).map(|_| numbers.below(list.len())).collect();
                let added: Vec<NewItem> = (0..numbers.below(4)).map(|_| item(&mut numbers)).collect();
                let mut row = 0;
                let mut next = list.clone();
                next.retain(|_| {
                    row += 1;
                    !removed.contains(&(row - 1))
                });
                next.extend(added.clone());
                let edited = gallery.edited(&removed, added);
                if next.is_empty() {
                    assert_eq!(edited.unwrap_err(), GalleryError::Empty);
                    continue;
                }
                (gallery, list) = (edited.unwrap(), next);
                assert_eq!(parts(&gallery), parts(&made(&list).unwrap()), "case {case}, {metric:?}");
                for item in &list {
                    let rows: Vec<usize> =
                        (0..list.len()).filter(|&row| list[row].identity == item.identity).collect();
                    assert_eq!(gallery.rows_of(&item.identity), rows);
                }
            }
        }
    }
}

#[test]
fn an_edit_that_cannot_be_made_names_the_item_and_its_row() {
    let gallery = |metric| Gallery::new(vec![1.0, 0.0, 0.0, 1.0], 2, names(2), &["a", "b"], metric).unwrap();
    let add = |metric, vector: Vec<f32>| {
        let item = NewItem { identity: "new".into(), label: "a".into(), vector, plain: None };
        gallery(metric).edited(&[0], vec![item]).unwrap_err()
    };
    let identity = || "new".to_owned();
    assert_eq!(
        add(Metric::Euclidean, vec![1.0; 3]),
        GalleryError::Dimension { identity: identity(), row: 1, found: 3, dimension: 2 }
    );
    assert_eq!(add(Metric::Cosine, vec![0.0; 2]), GalleryError::ZeroVector { identity: identity(), row: 1 });
    assert!(matches!(
        add(Metric::Euclidean, vec![0.0, f32::NAN]),
        GalleryError::NotFinite { row: 1, component: 1, .. }
    ));
    assert!(matches!(add(Metric::Euclidean, vec![1e20, 0.0]), GalleryError::NormTooLarge { row: 1, .. }));
    let edited = gallery(Metric::Cosine).edited(&[2], vec![]);
    assert_eq!(edited.unwrap_err(), GalleryError::NoSuchRow { row: 2, items: 2 });
    let edited = gallery(Metric::Cosine).edited(&[1, 0, 1], vec![]);
    assert_eq!(edited.unwrap_err(), GalleryError::Empty);
}

/// A gallery of items with views, some of them equal, with its rows in the order of the items.
fn with_views(items: usize, views: usize, dimension: usize, numbers: &mut Numbers) -> Gallery {
    let value = |numbers: &mut Numbers| (numbers.below(7) as f32 - 3.0) / 2.0;
    let vectors = (0..items * views * dimension).map(|_| value(numbers)).collect();
    let kinds = labels(items, 5, numbers);
    let rows = 0..items * views;
    let labels: Vec<&String> = rows.clone().map(|row| &kinds[row / views]).collect();
    let names = rows.map(|row| format!("item-{}", row / views)).collect();
    let gallery = Gallery::new(vectors, dimension, names, &labels, Metric::Euclidean).unwrap();
    gallery.with_views((0..views).map(|view| format!("view {view}")).collect()).unwrap()
}

#[test]
fn views_of_an_item_are_found_together_as_a_double_loop_finds_them() {
    let mut numbers = Numbers(11);
    // The last has tiles that end inside an item.
    for (items, views, dimension) in [(1, 3, 2), (9, 2, 1), (40, 9, 3), (500, 5, 4)] {
        let gallery = with_views(items, views, dimension, &mut numbers);
        assert_eq!((gallery.len(), gallery.item_count(), gallery.views()), (items * views, items, views));
        for case in 0..12 {
            let query: Vec<f64> = (0..dimension).map(|_| 2.0 * numbers.value()).collect();
            let row = numbers.below(gallery.len());
            let excluded = match case % 3 {
                0 => vec![],
                1 => gallery.rows_of(gallery.identity(numbers.below(gallery.len()))),
                _ => vec![numbers.below(gallery.len())],
            };
            let positives =
                if case % 2 == 0 { Positives::Item(row) } else { Positives::Label(gallery.label(row)) };
            let relevance = Relevance::new(positives, excluded.clone());
            let found = gallery.nearest_positive_and_negative(&query, |_| &relevance).unwrap();
            assert_eq!(found, [naive_pair(&gallery, &query, &relevance)], "{items} items, {positives:?}");
            for count in [1, 2, items + 3] {
                // All rows in order, and of every item the first one.
                let mut naive: Vec<Neighbour> = Vec::new();
                for neighbour in naive_nearest(&gallery, &query, gallery.len(), &excluded) {
                    if naive.iter().all(|other| gallery.item(other.row) != gallery.item(neighbour.row)) {
                        naive.push(neighbour);
                    }
                }
                naive.truncate(count);
                let found = gallery.nearest_items(&query, count, |_| &excluded).unwrap();
                assert_eq!(found, [naive], "{count} of {items} items");
            }
        }
    }
}

#[test]
fn rows_that_are_not_views_of_one_item_are_refused() {
    let make = |names: [&str; 4], labels: [&str; 4], views: &[&str]| {
        let names = names.map(str::to_owned).to_vec();
        let gallery = Gallery::new(vec![0.0; 4], 1, names, &labels, Metric::Euclidean).unwrap();
        gallery.with_views(views.iter().map(|&view| view.to_owned()).collect()).map(drop)
    };
    let (names, labels) = (["a", "a", "b", "b"], ["x", "x", "y", "y"]);
    make(names, labels, &["one", "two"]).unwrap();
    make(names, labels, &["one"]).unwrap();
    // One picture may own several items.
    make(["a"; 4], ["x"; 4], &["one", "two"]).unwrap();
    assert_eq!(make(names, labels, &[]), Err(GalleryError::NoViews));
    assert_eq!(make(names, labels, &["one", "one"]), Err(GalleryError::ViewNames { name: "one".to_owned() }));
    assert_eq!(
        make(names, labels, &["one", "two", "three"]),
        Err(GalleryError::ViewCount { rows: 4, views: 3 })
    );
    let moved = make(["a", "b", "a", "b"], ["x"; 4], &["one", "two"]).unwrap_err();
    assert_eq!(
        moved.to_string(),
        "row 1 of the gallery is of item `b` with label `x`, wanted view `two` of `a` with label `x`"
    );
    let relabelled = make(names, ["x", "x", "y", "x"], &["one", "two"]).unwrap_err();
    assert!(relabelled.to_string().contains("row 3 of the gallery is of item `b` with label `x`"));
}

#[test]
fn items_come_and_go_with_all_their_views() {
    let mut numbers = Numbers(5);
    let gallery = with_views(6, 3, 2, &mut numbers);
    let item = |identity: &str, length: usize| NewItem {
        identity: identity.to_owned(),
        label: "new".to_owned(),
        vector: (0..length).map(|value| value as f32).collect(),
        plain: None,
    };
    let edited = gallery.edited(&gallery.rows_of("item-2"), vec![item("fresh", 6)]).unwrap();
    assert_eq!((edited.item_count(), edited.views()), (6, 3));
    assert_eq!(edited.rows_of("fresh"), [15, 16, 17]);
    assert_eq!(edited.vector(17), [4.0, 5.0]);
    assert_eq!(edited.view(16), Some("view 1"));
    assert!(edited.rows_of("item-2").is_empty());
    // Half an item is neither taken nor left behind.
    let refused = gallery.edited(&[3], vec![]).unwrap_err();
    assert_eq!(refused, GalleryError::PartOfItem { row: 3, identity: "item-1".to_owned() });
    let short = gallery.edited(&[], vec![item("short", 2)]).unwrap_err();
    assert!(matches!(short, GalleryError::Dimension { found: 2, dimension: 6, .. }), "{short}");
}
