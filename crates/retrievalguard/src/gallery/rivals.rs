//! Which rivals come before the right answer: the comparisons behind pairwise retrieval.
//!
//! A *rival* is everything that would be the same wrong answer: a label, or a single item, with all its views, where one
//! item was asked for.
//! It is *ahead* of the right answer in a query if one of its rows is at least as near as the nearest positive; a tie
//! counts against the answer. Most queries have no rival ahead, which the nearest negative shows; only the others are
//! compared row by row, in `f32` with a proven bound and, where that cannot settle it, in `f64`.

use super::Gallery;
use super::extent::SearchError;
use super::relevance::{Positives, Relevance};
use super::scores::{Batch, Rows, Scratch, batch_queries, cutoff};
use super::search::{NearestPairBatch, Search};

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
        self.extent().check_with_relevance(queries, |_| relevance)?;
        let none = RivalSet::default();
        let mut first = 0;
        for group in queries.chunks(batch_queries(self.dimension()) * self.dimension()) {
            let mut nearest = NearestPairBatch::new(group, self.dimension(), first, |_| relevance);
            nearest.visit(&self.rows(), &mut Scratch::default());
            // How near a rival must be to be ahead; none where no row is one.
            let bounds: Vec<Option<f64>> = nearest
                .answers()
                .map(|pair| {
                    let positive = pair.positive.map_or(f64::INFINITY, |found| found.squared_distance);
                    pair.negative.filter(|found| found.squared_distance <= positive).map(|_| positive)
                })
                .collect();
            let mut ahead = AheadBatch::new(group, self, relevance, &bounds);
            if !ahead.sets.is_empty() {
                ahead.visit(&self.rows(), relevance, &mut Scratch::default());
            }
            let mut compared = ahead.sets.iter();
            for (position, bound) in bounds.iter().enumerate() {
                let rivals = if bound.is_some() { compared.next().unwrap_or(&none) } else { &none };
                see(first + position, rivals);
            }
            first += bounds.len();
        }
        Ok(())
    }

    /// How many numbers rivals may have.
    pub(crate) fn rival_numbers(&self, positives: Positives) -> usize {
        match positives {
            Positives::Label(_) | Positives::Absent => self.label_count(),
            Positives::Item(_) => self.item_count(),
        }
    }
}

/// Those queries of a batch in which some row is ahead, each with how near a row must be.
struct AheadBatch {
    batch: Batch,
    bounds: Vec<f64>,
    sets: Vec<RivalSet>,
}

impl AheadBatch {
    fn new<T: Copy + Into<f64>>(
        queries: &[T],
        gallery: &Gallery,
        relevance: &Relevance,
        bounds: &[Option<f64>],
    ) -> Self {
        let rows = queries.chunks_exact(gallery.dimension()).zip(bounds);
        let compared = rows.filter_map(|(query, bound)| bound.map(|bound| (query, bound)));
        let (mut values, mut found) = (Vec::new(), Vec::new());
        for (query, bound) in compared {
            values.extend(query.iter().map(|&value| value.into()));
            found.push(bound);
        }
        let set = RivalSet::with_room_for(gallery.rival_numbers(relevance.positives));
        let sets = vec![set; found.len()];
        Self { batch: Batch::new::<f64>(&values, gallery.dimension()), bounds: found, sets }
    }

    /// Marks the rivals of consecutive rows that are ahead.
    fn visit(&mut self, rows: &Rows<'_>, relevance: &Relevance, scratch: &mut Scratch) {
        let Self { batch, bounds, sets } = self;
        batch.visit_tiles(rows, scratch, |position, mut tile| {
            tile.hide_all(&relevance.excluded);
            let (right, item) = match relevance.positives {
                Positives::Label(label) => (Some(label), false),
                Positives::Item(row) => {
                    tile.views_of(row).for_each(|view| tile.hide(view));
                    (None, true)
                }
                Positives::Absent => (None, false),
            };
            let (query, bound, set) = (batch.query(position), bounds[position], &mut sets[position]);
            // Rows up to the cutoff may be as near as the bound; those beyond it cannot be.
            let nearest = cutoff(query.key_upper(bound), tile.slack(&query));
            for (row, _, label) in tile.candidates(nearest) {
                let rival = if item { tile.item(row) } else { label.index() };
                if Some(label) != right && !set.contains(rival) && tile.squared_distance(&query, row) <= bound
                {
                    set.insert(rival);
                }
            }
        });
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
