//! Which rivals come before the right answer: the comparisons behind pairwise retrieval.
//!
//! A *rival* is everything that would be the same wrong answer: a label, or a single item, with all its views, where one
//! item was asked for.
//! It is *ahead* of the right answer in a query if one of its rows is at least as near as the nearest positive; a tie
//! counts against the answer. The positives are measured first; all other rows are then looked at once, in `f32` with a
//! proven bound and, where that cannot settle it, in `f64`.

use super::extent::SearchError;
use super::relevance::{Positives, Relevance};
use super::scores::{Batch, Rows, Scratch, batch_queries, cutoff};
use super::search::{NearestPairBatch, Search};
use super::{Gallery, Label};

/// Bits of the sets that are held at once, 64 MiB: queries beyond that wait for another pass over the gallery.
const SET_BITS: usize = 1 << 29;
/// Positives that are gathered at once.
const GATHERED_ROWS: usize = 1024;
/// Everything is a wrong answer, so the nearest wrong one is the nearest of all.
static ALL_WRONG: Relevance = Relevance { positives: Positives::Absent, excluded: Vec::new() };

/// Rivals that are ahead in one query, by number: labels by [`Label::index`](super::Label::index), items by
/// [`Gallery::item`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RivalSet {
    words: Vec<u64>,
}

impl RivalSet {
    fn with_room_for(rivals: usize) -> Self {
        Self { words: vec![0; rivals.div_ceil(64)] }
    }

    fn insert(&mut self, rival: usize) {
        self.words[rival / 64] |= 1 << (rival % 64);
    }

    fn insert_all(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(own, other)| *own |= other);
    }

    /// Whether a rival is ahead.
    pub fn contains(&self, rival: usize) -> bool {
        self.words.get(rival / 64).is_some_and(|word| word >> (rival % 64) & 1 == 1)
    }

    /// Whether none is ahead: the right answer is the nearest of all.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The rivals that are ahead, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(place, &word)| {
            let rest = |&left: &u64| Some(left & (left - 1)).filter(|&rest| rest != 0);
            std::iter::successors(Some(word).filter(|&word| word != 0), rest)
                .map(move |left| 64 * place + left.trailing_zeros() as usize)
        })
    }
}

impl Gallery {
    /// Shows `see` every query in order, with the rivals that are ahead in it.
    ///
    /// The queries are laid end to end. Memory does not grow with their number: it is one bit per rival for each query of a
    /// batch.
    ///
    /// ```
    /// use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
    ///
    /// let names = (0..3).map(|row| row.to_string()).collect();
    /// let gallery = Gallery::new(vec![0.0, 4.0, 9.0], 1, names, &["cat", "dog", "owl"], Metric::Euclidean)?;
    /// let relevance = Relevance::new(Positives::Label(gallery.label_named("cat").unwrap()), vec![]);
    /// let mut ahead = Vec::new();
    /// gallery.rivals_ahead(&[1.0, 2.0, 8.0], &relevance, |_, rivals| ahead.push(rivals.iter().collect::<Vec<_>>()))?;
    /// // A tie counts against the answer.
    /// let [dog, owl] = ["dog", "owl"].map(|name| gallery.label_named(name).unwrap().index());
    /// assert_eq!(ahead, [vec![], vec![dog], vec![dog, owl]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rivals_ahead<T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        relevance: &Relevance,
        mut see: impl FnMut(usize, &RivalSet),
    ) -> Result<(), SearchError> {
        let answers = Answers { positives: &[relevance.positives], excluded: &relevance.excluded };
        self.rivals_ahead_of_each(queries, &answers, |query, _, rivals| see(query, rivals))
    }

    /// Shows `see` every query in order and, for each of some answers, the rivals that are ahead of it.
    pub(crate) fn rivals_ahead_of_each<T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        answers: &Answers<'_>,
        mut see: impl FnMut(usize, usize, &RivalSet),
    ) -> Result<(), SearchError> {
        answers.check(&self.extent(), queries)?;
        let rivals = answers.rival_numbers(self.label_count(), self.item_count());
        let together = batch_queries(self.dimension()).min(queries_per_pass(answers, rivals));
        for (group, first) in queries.chunks(together * self.dimension()).zip((0..).step_by(together)) {
            let values: Vec<f64> = group.iter().map(|&value| value.into()).collect();
            let bounds: Vec<Vec<f64>> = answers
                .positives
                .iter()
                .map(|&positives| self.nearest_distances(&values, positives, answers))
                .collect();
            let mut ahead = AheadBatch::new(&values, self.dimension(), answers, &bounds, rivals);
            ahead.visit(&self.rows(), &mut Scratch::default());
            ahead.show(|query, answer, rivals| see(first + query, answer, rivals));
        }
        Ok(())
    }

    /// Squared distance of each query from the nearest positive, infinite if there is none.
    fn nearest_distances(&self, queries: &[f64], positives: Positives, answers: &Answers<'_>) -> Vec<f64> {
        let mut nearest = NearestDistances::new(queries, self.dimension());
        let rows = positive_rows(&self.labels, self.views(), positives, answers.excluded);
        for rows in rows.chunks(GATHERED_ROWS) {
            let vectors: Vec<f32> = rows.iter().flat_map(|&row| self.vector(row)).copied().collect();
            let squared_norms: Vec<f64> = rows.iter().map(|&row| self.squared_norm(row)).collect();
            nearest.visit(&vectors, &squared_norms);
        }
        nearest.squared()
    }
}

/// Answers that are compared with their rivals in the same queries.
#[derive(Clone, Copy)]
pub(crate) struct Answers<'a> {
    /// What each of them has for right.
    pub(crate) positives: &'a [Positives],
    /// Rows that no query sees, strictly ascending.
    pub(crate) excluded: &'a [usize],
}

impl Answers<'_> {
    pub(crate) fn check<T: Copy + Into<f64>>(
        &self,
        extent: &super::Extent,
        queries: &[T],
    ) -> Result<(), SearchError> {
        extent.check_neighbours(queries, 1, |_| self.excluded)?;
        self.positives.iter().try_for_each(|&positives| {
            extent.check_relevance(0, &Relevance { positives, excluded: Vec::new() })
        })
    }

    /// How many numbers rivals may have.
    pub(crate) fn rival_numbers(&self, labels: usize, stored: usize) -> usize {
        let items = self.positives.iter().any(|positives| matches!(positives, Positives::Item(_)));
        if items { stored.max(labels) } else { labels }
    }
}

/// Queries whose sets are held at once.
pub(crate) fn queries_per_pass(answers: &Answers<'_>, rivals: usize) -> usize {
    (SET_BITS / (answers.positives.len().max(1) * rivals.max(1))).max(1)
}

/// The rows of the right answers that may be seen, ascending.
pub(crate) fn positive_rows(
    labels: &[Label],
    views: usize,
    positives: Positives,
    excluded: &[usize],
) -> Vec<usize> {
    let visible = |row: &usize| excluded.binary_search(row).is_err();
    match positives {
        Positives::Label(label) => {
            let rows = labels.iter().zip(0..).filter(|&(&found, _)| found == label);
            rows.map(|(_, row)| row).filter(visible).collect()
        }
        Positives::Item(row) => {
            let first = row - row % views;
            (first..first + views).filter(visible).collect()
        }
        Positives::Absent => Vec::new(),
    }
}

/// How far each query is from the nearest of some vectors that are shown piece by piece.
pub(crate) struct NearestDistances {
    search: NearestPairBatch<'static>,
    labels: Vec<Label>,
    scratch: Scratch,
}

impl NearestDistances {
    /// Takes finite queries, laid end to end.
    pub(crate) fn new(queries: &[f64], dimension: usize) -> Self {
        let search = NearestPairBatch::new(queries, dimension, 0, |_| &ALL_WRONG);
        Self { search, labels: Vec::new(), scratch: Scratch::default() }
    }

    /// Looks at some vectors with their squared norms.
    pub(crate) fn visit(&mut self, vectors: &[f32], squared_norms: &[f64]) {
        self.labels.resize(squared_norms.len(), Label(0));
        let rows = Rows { first_row: 0, vectors, squared_norms, labels: &self.labels, views: 1 };
        self.search.visit(&rows, &mut self.scratch);
    }

    /// Squared distance of each query from the nearest, infinite if there was none.
    pub(crate) fn squared(&self) -> Vec<f64> {
        let distance =
            |pair: super::NearestPair| pair.negative.map_or(f64::INFINITY, |found| found.squared_distance);
        self.search.answers().map(distance).collect()
    }
}

/// Queries of a batch with, for each of some answers, how near a row must be to be ahead.
pub(crate) struct AheadBatch<'a> {
    batch: Batch,
    answers: Answers<'a>,
    /// By query and answer.
    bounds: Vec<f64>,
    /// The largest bound of each query.
    farthest: Vec<f64>,
    sets: Vec<RivalSet>,
}

impl<'a> AheadBatch<'a> {
    /// Takes finite queries, laid end to end, and how far each is from the nearest positive of each answer.
    pub(crate) fn new(
        queries: &[f64],
        dimension: usize,
        answers: &Answers<'a>,
        distances: &[Vec<f64>],
        rivals: usize,
    ) -> Self {
        let batch = Batch::new(queries, dimension);
        let of_query = |query: usize| distances.iter().map(move |distances| distances[query]);
        let bounds: Vec<f64> = (0..batch.len()).flat_map(of_query).collect();
        let farthest = (0..batch.len()).map(|query| of_query(query).fold(0.0, f64::max)).collect();
        let sets = vec![RivalSet::with_room_for(rivals); bounds.len()];
        Self { batch, answers: *answers, bounds, farthest, sets }
    }

    /// Number of queries.
    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Shows every query and answer with the rivals that are ahead.
    pub(crate) fn show(&self, mut see: impl FnMut(usize, usize, &RivalSet)) {
        let answers = self.answers.positives.len();
        for (place, set) in self.sets.iter().enumerate() {
            see(place / answers, place % answers, set);
        }
    }
}

impl Search for AheadBatch<'_> {
    fn visit(&mut self, rows: &Rows<'_>, scratch: &mut Scratch) {
        let Self { batch, answers, bounds, farthest, sets } = self;
        batch.visit_tiles(rows, scratch, |position, mut tile| {
            tile.hide_all(answers.excluded);
            let query = batch.query(position);
            // Rows up to the cutoff may be as near as the bound; those beyond it cannot be.
            let cutoff = cutoff(query.key_upper(farthest[position]), tile.slack(&query));
            if tile.smallest(None).1 > cutoff {
                return;
            }
            let first = position * answers.positives.len();
            for (row, _, label) in tile.candidates(cutoff) {
                let mut measured = None;
                for (place, &positives) in (first..).zip(answers.positives) {
                    let rival = match positives {
                        Positives::Label(right) if right == label => continue,
                        Positives::Item(right) if tile.item(right) == tile.item(row) => continue,
                        Positives::Item(_) => tile.item(row),
                        Positives::Label(_) | Positives::Absent => label.index(),
                    };
                    let (bound, set) = (bounds[place], &mut sets[place]);
                    if !set.contains(rival)
                        && (bound == f64::INFINITY
                            || *measured.get_or_insert_with(|| tile.squared_distance(&query, row)) <= bound)
                    {
                        set.insert(rival);
                    }
                }
            }
        });
    }

    fn merge(&mut self, other: Self) {
        self.sets.iter_mut().zip(&other.sets).for_each(|(own, other)| own.insert_all(other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::{Metric, RowRelevance};

    #[test]
    fn rivals_ahead_are_those_of_a_double_loop() {
        let mut state = 7_u64;
        let mut value = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few values, so that ties are common.
            ((state >> 33) % 9) as f32 / 4.0 - 1.0
        };
        for (items, labels, dimension, queries, views) in [
            (1, 1, 2, 3, 1),
            (70, 9, 2, 40, 1),
            (1_500, 130, 3, 300, 1),
            (40, 40, 1, 20, 1),
            (1_500, 30, 3, 40, 5),
        ] {
            let vectors: Vec<f32> = (0..items * dimension).map(|_| value()).collect();
            let names = (0..items).map(|row| (row / views).to_string()).collect();
            let kinds: Vec<String> = (0..items).map(|row| (row / views % labels).to_string()).collect();
            let mut gallery = Gallery::new(vectors, dimension, names, &kinds, Metric::Euclidean).unwrap();
            if views > 1 {
                gallery = gallery.with_views((0..views).map(|view| view.to_string()).collect()).unwrap();
            }
            let points: Vec<f64> = (0..queries * dimension).map(|_| f64::from(value())).collect();
            let excluded = vec![0, items / 2];
            for positives in
                [Positives::Label(gallery.label(items - 1)), Positives::Item(items - 1), Positives::Absent]
            {
                let relevance = Relevance::new(positives, excluded.clone());
                let mut seen = 0;
                gallery
                    .rivals_ahead(&points, &relevance, |position, rivals| {
                        assert_eq!(position, seen);
                        seen += 1;
                        let point = &points[position * dimension..][..dimension];
                        let found: Vec<usize> = rivals.iter().collect();
                        assert_eq!(
                            found,
                            ahead(&gallery, point, &relevance),
                            "query {position}, {positives:?}"
                        );
                        assert_eq!(rivals.is_empty(), found.is_empty());
                        assert!(found.iter().all(|&rival| rivals.contains(rival)));
                    })
                    .unwrap();
                assert_eq!(seen, queries);
            }
        }
    }

    /// The same, item by item.
    fn ahead(gallery: &Gallery, point: &[f64], relevance: &Relevance) -> Vec<usize> {
        let distance = |row: usize| -> f64 {
            let vector = gallery.vector(row);
            point.iter().zip(vector).map(|(left, &right)| (left - f64::from(right)).powi(2)).sum()
        };
        let rows = |wanted| (0..gallery.len()).filter(move |&row| relevance.of_row(gallery, row) == wanted);
        let bound = rows(RowRelevance::Positive).map(distance).fold(f64::INFINITY, f64::min);
        let number = |row| match relevance.positives {
            Positives::Item(_) => gallery.item(row),
            Positives::Label(_) | Positives::Absent => gallery.label(row).index(),
        };
        let mut found: Vec<usize> =
            rows(RowRelevance::Negative).filter(|&row| distance(row) <= bound).map(number).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}
