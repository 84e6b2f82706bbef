//! Exact search: the nearest right and wrong answers, and the nearest rows of all.
//!
//! `f32` scores from a blocked matrix product leave a few candidate rows for each query (`scores.rs` proves that
//! no other row can win); those are measured in `f64`, in the order of the components. The answers are therefore
//! a function of the vectors alone: neither the batch nor the processor changes a bit of them.

use std::collections::{BinaryHeap, HashSet};

use super::extent::{Extent, SearchError};
use super::relevance::{Positives, Relevance};
use super::scores::{Batch, Query, Rows, Scratch, Tile, batch_queries, cutoff};
use super::{Gallery, Label};

/// A row found by the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// Row of the stored vector.
    pub row: usize,
    /// `Σ (q_i − v_i)²`, summed in `f64` in the order of the components.
    pub squared_distance: f64,
}

/// The nearest right and the nearest wrong answer to one query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NearestPair {
    /// Nearest positive, if any row is one.
    pub positive: Option<Neighbour>,
    /// Nearest negative, if any row is one.
    pub negative: Option<Neighbour>,
}

impl Gallery {
    /// Nearest positive and nearest negative of every query, ties going to the smaller row.
    ///
    /// The queries are laid end to end; `relevance` is asked with their position. One thread, and memory that does
    /// not grow with the number of queries except for the answers.
    pub fn nearest_positive_and_negative<'relevance, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        relevance: impl Fn(usize) -> &'relevance Relevance,
    ) -> Result<Vec<NearestPair>, SearchError> {
        self.extent().check_with_relevance(queries, &relevance)?;
        let mut answers = Vec::with_capacity(queries.len() / self.dimension());
        for group in queries.chunks(batch_queries(self.dimension()) * self.dimension()) {
            let mut search = NearestPairBatch::new(group, self.dimension(), answers.len(), &relevance);
            search.visit(&self.rows(), &mut Scratch::default());
            answers.extend(search.answers());
        }
        Ok(answers)
    }

    /// The `count` nearest rows of every query, ascending by squared distance and then by row.
    ///
    /// `excluded` is asked with the position of a query for the rows it must not see, strictly ascending. An answer
    /// is shorter than `count` only when fewer rows are left.
    ///
    /// ```
    /// use retrievalguard::gallery::{Gallery, Metric};
    ///
    /// let names = vec!["near".to_owned(), "far".to_owned(), "query itself".to_owned()];
    /// let gallery = Gallery::new(vec![1.0, 9.0, 0.0], 1, names, &["a", "b", "a"], Metric::Euclidean)?;
    /// let found = gallery.nearest(&[0.0], 5, |_| &[2])?;
    /// assert_eq!(found[0].iter().map(|neighbour| neighbour.row).collect::<Vec<_>>(), [0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nearest<'excluded, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Result<Vec<Vec<Neighbour>>, SearchError> {
        self.extent().check_neighbours(queries, count, &excluded)?;
        let mut answers = Vec::with_capacity(queries.len() / self.dimension());
        for group in queries.chunks(batch_queries(self.dimension()) * self.dimension()) {
            let mut search = NearestBatch::new(group, self.dimension(), answers.len(), count, &excluded);
            search.visit(&self.rows(), &mut Scratch::default());
            answers.extend(search.answers());
        }
        Ok(answers)
    }

    /// The `count` nearest items of every query, each by its nearest row, in the order of [`Gallery::nearest`].
    ///
    /// An answer is shorter than `count` only when fewer items have a row that is not excluded.
    pub fn nearest_items<'excluded, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Result<Vec<Vec<Neighbour>>, SearchError> {
        // Fewer items than `count` cannot fill so many rows.
        let rows = count.saturating_mul(self.views()).min(self.len().max(count));
        let mut answers = self.nearest(queries, rows, excluded)?;
        if self.views() > 1 {
            let mut seen = HashSet::new();
            for answer in &mut answers {
                seen.clear();
                answer.retain(|found| seen.insert(self.item(found.row)));
                answer.truncate(count);
            }
        }
        Ok(answers)
    }

    /// What queries are checked against.
    pub(crate) fn extent(&self) -> Extent {
        Extent { length: self.len(), dimension: self.dimension(), label_count: self.label_count() }
    }

    pub(crate) fn check_relevance(&self, query: usize, relevance: &Relevance) -> Result<(), SearchError> {
        self.extent().check_relevance(query, relevance)
    }
}

/// A search that is shown rows piece by piece, and that can be run on several pieces of a gallery at once.
///
/// One of them sees its rows in ascending order; merged, they answer as one that had seen all rows.
pub(crate) trait Search: Sized + Send {
    /// Looks at consecutive rows, all of them behind those seen before.
    fn visit(&mut self, rows: &Rows<'_>, scratch: &mut Scratch);

    /// Takes over what a search for the same queries found among other rows.
    fn merge(&mut self, other: Self);
}

/// The state of [`Gallery::nearest_positive_and_negative`] for a batch of queries.
pub(crate) struct NearestPairBatch<'relevance> {
    batch: Batch,
    searches: Vec<NearestPairSearch<'relevance>>,
}

impl<'relevance> NearestPairBatch<'relevance> {
    /// Takes checked queries and their relevance; `first` is the position of the first query.
    pub(crate) fn new<T: Copy + Into<f64>>(
        queries: &[T],
        dimension: usize,
        first: usize,
        relevance: impl Fn(usize) -> &'relevance Relevance,
    ) -> Self {
        let batch = Batch::new(queries, dimension);
        let searches =
            (0..batch.len()).map(|position| NearestPairSearch::new(relevance(first + position))).collect();
        Self { batch, searches }
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = NearestPair> {
        self.searches.iter().map(NearestPairSearch::pair)
    }
}

impl Search for NearestPairBatch<'_> {
    fn visit(&mut self, rows: &Rows<'_>, scratch: &mut Scratch) {
        let Self { batch, searches } = self;
        batch.visit_tiles(rows, scratch, |position, tile| {
            searches[position].visit(&batch.query(position), tile);
        });
    }

    fn merge(&mut self, other: Self) {
        for (search, other) in self.searches.iter_mut().zip(other.searches) {
            search.positive.merge(other.positive);
            search.negative.merge(other.negative);
        }
    }
}

/// The state of [`Gallery::nearest`] for a batch of queries.
pub(crate) struct NearestBatch<'excluded> {
    batch: Batch,
    searches: Vec<(NearestSearch, &'excluded [usize])>,
}

impl<'excluded> NearestBatch<'excluded> {
    /// Takes checked queries and excluded rows; `first` is the position of the first query.
    pub(crate) fn new<T: Copy + Into<f64>>(
        queries: &[T],
        dimension: usize,
        first: usize,
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Self {
        let batch = Batch::new(queries, dimension);
        let search = |position| (NearestSearch::new(count), excluded(first + position));
        let searches = (0..batch.len()).map(search).collect();
        Self { batch, searches }
    }

    pub(crate) fn answers(self) -> impl Iterator<Item = Vec<Neighbour>> {
        self.searches.into_iter().map(|(search, _)| search.neighbours())
    }
}

impl Search for NearestBatch<'_> {
    fn visit(&mut self, rows: &Rows<'_>, scratch: &mut Scratch) {
        let Self { batch, searches } = self;
        batch.visit_tiles(rows, scratch, |position, mut tile| {
            let (search, excluded) = &mut searches[position];
            tile.hide_all(excluded);
            search.visit(&batch.query(position), &tile);
        });
    }

    fn merge(&mut self, other: Self) {
        for ((search, _), (other, _)) in self.searches.iter_mut().zip(other.searches) {
            for found in other.nearest {
                search.offer(found);
            }
        }
    }
}

/// Nearest positive or negative so far, with an upper bound on the key of the nearest row.
struct Nearest {
    neighbour: Option<Neighbour>,
    key_upper: f64,
}

impl Nearest {
    const NONE: Self = Self { neighbour: None, key_upper: f64::INFINITY };

    /// Measures the candidates of a tile that belong, given the smallest of their scores.
    fn improve(
        &mut self,
        query: &Query<'_>,
        tile: &Tile<'_>,
        smallest: f32,
        belongs: impl Fn(Label) -> bool,
    ) {
        let slack = tile.slack(query);
        if smallest > cutoff(self.key_upper, slack) {
            return;
        }
        self.key_upper = self.key_upper.min(f64::from(smallest) + slack);
        for (row, _, label) in tile.candidates(cutoff(self.key_upper, slack)) {
            if belongs(label) {
                self.measure(query, tile, row);
            }
        }
    }

    /// Measures one row; rows come in ascending order, so an equal distance never replaces an earlier one.
    fn measure(&mut self, query: &Query<'_>, tile: &Tile<'_>, row: usize) {
        let squared_distance = tile.squared_distance(query, row);
        if self.neighbour.is_none_or(|nearest| squared_distance < nearest.squared_distance) {
            self.neighbour = Some(Neighbour { row, squared_distance });
            self.key_upper = self.key_upper.min(query.key_upper(squared_distance));
        }
    }

    /// Keeps the nearer of two, ties going to the smaller row.
    fn merge(&mut self, other: Self) {
        self.neighbour = match (self.neighbour, other.neighbour) {
            (Some(left), Some(right)) => Some(Ranked(left).min(Ranked(right)).0),
            (left, right) => left.or(right),
        };
        self.key_upper = self.key_upper.min(other.key_upper);
    }
}

/// The state of one query in [`Gallery::nearest_positive_and_negative`].
struct NearestPairSearch<'relevance> {
    relevance: &'relevance Relevance,
    positive: Nearest,
    negative: Nearest,
}

impl<'relevance> NearestPairSearch<'relevance> {
    fn new(relevance: &'relevance Relevance) -> Self {
        Self { relevance, positive: Nearest::NONE, negative: Nearest::NONE }
    }

    fn visit(&mut self, query: &Query<'_>, mut tile: Tile<'_>) {
        let excluded = &self.relevance.excluded;
        tile.hide_all(excluded);
        let label = match self.relevance.positives {
            Positives::Label(label) => Some(label),
            Positives::Item(row) => {
                for view in tile.views_of(row) {
                    if tile.contains(view) && excluded.binary_search(&view).is_err() {
                        self.positive.measure(query, &tile, view);
                    }
                    tile.hide(view);
                }
                None
            }
            Positives::Absent => None,
        };
        let (smallest_positive, smallest_negative) = tile.smallest(label);
        self.positive.improve(query, &tile, smallest_positive, |found| Some(found) == label);
        self.negative.improve(query, &tile, smallest_negative, |found| Some(found) != label);
    }

    fn pair(&self) -> NearestPair {
        NearestPair { positive: self.positive.neighbour, negative: self.negative.neighbour }
    }
}

/// A neighbour in the order of the answer: by squared distance, then by row.
#[derive(Clone, Copy, PartialEq)]
struct Ranked(Neighbour);

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Squared distances of finite vectors are never NaN and never negative zero.
        self.0
            .squared_distance
            .total_cmp(&other.0.squared_distance)
            .then_with(|| self.0.row.cmp(&other.0.row))
    }
}

/// The state of one query in [`Gallery::nearest`].
struct NearestSearch {
    count: usize,
    /// The nearest rows so far, the farthest of them on top.
    nearest: BinaryHeap<Ranked>,
    scores: Vec<f32>,
}

impl NearestSearch {
    fn new(count: usize) -> Self {
        Self { count, nearest: BinaryHeap::new(), scores: Vec::new() }
    }

    /// Upper bound on the key of the last row of the answer, infinite while there are too few.
    fn key_upper(&self, query: &Query<'_>) -> f64 {
        match self.nearest.peek() {
            Some(farthest) if self.nearest.len() == self.count => {
                query.key_upper(farthest.0.squared_distance)
            }
            Some(_) | None => f64::INFINITY,
        }
    }

    fn visit(&mut self, query: &Query<'_>, tile: &Tile<'_>) {
        let slack = tile.slack(query);
        let (_, smallest) = tile.smallest(None);
        let loose_cutoff = cutoff(self.key_upper(query), slack);
        if smallest > loose_cutoff {
            return;
        }
        // The tile's own `count` smallest scores bound the answer too, and spare measuring rows in descending order.
        self.scores.clear();
        self.scores.extend(tile.candidates(loose_cutoff).map(|(_, score, _)| score));
        let tight_cutoff = if self.scores.len() > self.count {
            let (_, last, _) = self.scores.select_nth_unstable_by(self.count - 1, f32::total_cmp);
            loose_cutoff.min(cutoff(f64::from(*last) + slack, slack))
        } else {
            loose_cutoff
        };
        for (row, _, _) in tile.candidates(tight_cutoff) {
            let squared_distance = tile.squared_distance(query, row);
            self.offer(Ranked(Neighbour { row, squared_distance }));
        }
    }

    fn offer(&mut self, found: Ranked) {
        if self.nearest.len() < self.count {
            self.nearest.push(found);
        } else if let Some(mut farthest) = self.nearest.peek_mut()
            && found < *farthest
        {
            *farthest = found;
        }
    }

    fn neighbours(self) -> Vec<Neighbour> {
        self.nearest.into_sorted_vec().into_iter().map(|ranked| ranked.0).collect()
    }
}
