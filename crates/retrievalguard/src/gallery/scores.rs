//! Scores of many rows at once in `f32`, and a proven bound on how far they can be from the `f64` answer.
//!
//! Rows are ordered by the squared distance `D̂(v) = fl(Σ (q_i − v_i)²)` of the double loop in `f64`, or, which
//! is the same order, by `key(v) = (D̂(v) − ‖q‖²)/2`. A blocked matrix product gives the *score*
//!
//! ```text
//! score(v) = fl₃₂( fl₃₂(‖v‖²/2) − fl₃₂⟨q̃, v⟩ ),      q̃ = fl₃₂(q)
//! ```
//!
//! and [`slack`] bounds `|score(v) − key(v)|`. Hence, if `key(w) ≤ upper` for some row `w`, every row that could
//! come before `w` has `score ≤ upper + slack`; only those rows are measured again in `f64`.
//!
//! Derivation, with `u = 2⁻²⁴`, `U = 2⁻⁵³`, `η = 2⁻¹²⁶`, `k` the dimension (at most 2¹⁶), `Q ≥ ‖q‖`, `V ≥ ‖v‖`
//! and `γ_k = ku/(1 − ku) ≤ 1.004 ku`; `η` bounds what one operand or result loses to underflow, even when the
//! processor flushes subnormal numbers to zero:
//!
//! ```text
//! rounding the query      |⟨q̃,v⟩ − ⟨q,v⟩|           ≤ u QV + η√k (V + 2Q)
//! dot product             |fl⟨q̃,v⟩ − ⟨q̃,v⟩|         ≤ γ_k (1+u) QV + 3kη (1 + V)
//!                          for every order of summation, with or without fused multiply-add, because no term
//!                          passes through more than k roundings and Σ|q̃_i v_i| ≤ ‖q̃‖‖v‖
//! half norm               |fl₃₂(‖v‖²/2) − ‖v‖²/2|   ≤ u V²/2 + U(k+1) V²/2 + η,  again for every order
//! subtraction             u (|half| + |dot|)         ≤ u (1+u)(1+γ_k) (V²/2 + QV) + η
//! the double loop         |D̂ − D|/2                 ≤ U(k+2) (1 + 2kU) (Q+V)²/2 + 2η√k (Q + V)
//! ```
//!
//! because `D = ‖q − v‖² ≤ (Q+V)²` and `(D − ‖q‖²)/2 = ‖v‖²/2 − ⟨q,v⟩` exactly. The sum is below
//!
//! ```text
//! slack = 1.01 · ( u ((k+4) QV + 2V²) + 2U (k+4) (Q+V)² + 8η (k+4) (1 + Q + V) )
//! ```
//!
//! and what remains between the two also covers the rounding of `slack`, `Q` and `V` themselves.

use std::ops::Range;

use super::{Gallery, Label, NORM_LIMIT, squared_norm};
use crate::product::product;

/// Queries multiplied with a tile at once: enough that reading the gallery is cheap beside the product.
const BATCH_QUERIES: usize = 256;
/// Rows of a tile: enough to repay packing the batch again, few enough that its scores are still cached when they
/// are scanned (measured best of 64 to 4096).
const TILE_ROWS: usize = 1024;
/// Below this many queries, packing a tile for the matrix product costs more than it saves (measured at dimensions 32,
/// 128 and 1024, where the two meet at 3, 8 and 5).
const FEW_QUERIES: usize = 4;
/// Numbers of a batch: limits its memory for very long vectors.
const BATCH_NUMBERS: usize = 1 << 21;
/// Largest dimension for which [`slack`] is proved.
const SLACK_DIMENSION: usize = 1 << 16;
/// Unit roundoff of `f64`, `U = 2⁻⁵³`.
pub(super) const UNIT_ROUNDOFF: f64 = f64::EPSILON / 2.0;
/// A label that no row has.
const NO_LABEL: Label = Label(u32::MAX);

/// How many queries of this dimension form a batch.
pub(crate) fn batch_queries(dimension: usize) -> usize {
    (BATCH_NUMBERS / dimension).clamp(8, BATCH_QUERIES)
}

/// One query of a batch.
pub(super) struct Query<'a> {
    values: &'a [f64],
    norm: QueryNorm,
}

#[derive(Clone, Copy)]
struct QueryNorm {
    squared: f64,
    upper: f64,
    /// Whether `f32` can say nothing about the query, so that every row is measured in `f64`.
    exhaustive: bool,
}

impl QueryNorm {
    fn new(query: &[f64]) -> Self {
        let squared = squared_norm(query);
        let upper = norm_upper(squared);
        Self { squared, upper, exhaustive: upper > NORM_LIMIT || query.len() > SLACK_DIMENSION }
    }
}

impl Query<'_> {
    /// `‖q‖²`, off by at most `U(k+1)‖q‖²`.
    pub(super) fn squared_norm(&self) -> f64 {
        self.norm.squared
    }

    /// Squared distance to a stored vector exactly as the double loop computes it.
    pub(super) fn squared_distance(&self, vector: &[f32]) -> f64 {
        self.values.iter().zip(vector).fold(0.0, |sum, (&query, &stored)| {
            let difference = query - f64::from(stored);
            sum + difference * difference
        })
    }

    /// Upper bound on the key of a row whose squared distance has been measured.
    ///
    /// The computed `‖q‖²` is off by at most `U(k+1)‖q‖²`, the subtraction by `U(D̂ + ‖q‖²)`.
    pub(super) fn key_upper(&self, squared_distance: f64) -> f64 {
        let roundings = UNIT_ROUNDOFF * (self.values.len() as f64 + 4.0);
        (squared_distance - self.norm.squared) / 2.0
            + roundings * (squared_distance + self.norm.squared)
            + f64::MIN_POSITIVE
    }
}

/// Queries that are multiplied with the gallery together.
pub(super) struct Batch {
    values: Vec<f64>,
    rounded: Vec<f32>,
    norms: Vec<QueryNorm>,
    dimension: usize,
}

impl Batch {
    /// Takes finite queries, laid end to end.
    pub(super) fn new<T: Copy + Into<f64>>(queries: &[T], dimension: usize) -> Self {
        let values: Vec<f64> = queries.iter().map(|&value| value.into()).collect();
        let norms: Vec<QueryNorm> = values.chunks_exact(dimension).map(QueryNorm::new).collect();
        let mut rounded: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        for (query, norm) in rounded.chunks_exact_mut(dimension).zip(&norms) {
            if norm.exhaustive {
                // Whatever the scores are, they must be finite: infinity marks a hidden row.
                query.fill(0.0);
            }
        }
        Self { values, rounded, norms, dimension }
    }

    /// Number of queries.
    pub(super) fn len(&self) -> usize {
        self.norms.len()
    }

    /// One query of the batch.
    pub(super) fn query(&self, position: usize) -> Query<'_> {
        let start = position * self.dimension;
        Query { values: &self.values[start..start + self.dimension], norm: self.norms[position] }
    }

    /// `⟨q̃, v⟩` of every query with every vector.
    fn multiply(&self, vectors: &[f32], dots: &mut [f32]) {
        if self.len() >= FEW_QUERIES {
            return product(&self.rounded, vectors, self.dimension, dots);
        }
        let rows = vectors.len() / self.dimension;
        for (row, vector) in vectors.chunks_exact(self.dimension).enumerate() {
            for (position, query) in self.rounded.chunks_exact(self.dimension).enumerate() {
                dots[position * rows + row] = dot(query, vector);
            }
        }
    }

    /// Shows every query every tile of consecutive rows, in ascending order.
    pub(super) fn visit_tiles(
        &self,
        rows: &Rows<'_>,
        scratch: &mut Scratch,
        mut visit: impl FnMut(usize, Tile<'_>),
    ) {
        let Scratch { dots, half_norms } = scratch;
        let longest = self.len() * TILE_ROWS.min(rows.labels.len());
        if dots.len() < longest {
            dots.resize(longest, 0.0);
        }
        let tiles = rows
            .vectors
            .chunks(TILE_ROWS * self.dimension)
            .zip(rows.squared_norms.chunks(TILE_ROWS))
            .zip(rows.labels.chunks(TILE_ROWS))
            .zip((rows.first_row..).step_by(TILE_ROWS));
        for (((vectors, squared_norms), labels), first_row) in tiles {
            let count = labels.len();
            half_norms.clear();
            half_norms.extend(squared_norms.iter().map(|&squared| (squared / 2.0) as f32));
            let largest_squared_norm = squared_norms.iter().copied().fold(0.0, f64::max);

            self.multiply(vectors, &mut dots[..self.len() * count]);
            for (position, dots) in dots.chunks_exact_mut(count).take(self.len()).enumerate() {
                visit(
                    position,
                    Tile {
                        first_row,
                        vectors,
                        half_norms,
                        labels,
                        dots,
                        views: rows.views,
                        norm_upper: norm_upper(largest_squared_norm),
                    },
                );
            }
        }
    }
}

/// Consecutive rows of a gallery, wherever they are kept.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Number of the first row in the gallery.
    pub(crate) first_row: usize,
    /// The vectors, laid end to end.
    pub(crate) vectors: &'a [f32],
    /// Squared norm of each, in `f64` but in any order of summation.
    pub(crate) squared_norms: &'a [f64],
    /// Label of each.
    pub(crate) labels: &'a [Label],
    /// Consecutive rows that are one item, counted from row 0 of the gallery.
    pub(crate) views: usize,
}

impl Gallery {
    /// All rows.
    pub(super) fn rows(&self) -> Rows<'_> {
        Rows {
            first_row: 0,
            vectors: &self.vectors,
            squared_norms: &self.squared_norms,
            labels: &self.labels,
            views: self.views(),
        }
    }
}

/// Room for the scores of one tile, to be used again.
#[derive(Default)]
pub(crate) struct Scratch {
    dots: Vec<f32>,
    half_norms: Vec<f32>,
}

/// The scores of one query for consecutive rows.
pub(super) struct Tile<'a> {
    first_row: usize,
    vectors: &'a [f32],
    half_norms: &'a [f32],
    labels: &'a [Label],
    dots: &'a mut [f32],
    views: usize,
    norm_upper: f64,
}

impl Tile<'_> {
    /// Squared distance of a row of the tile from the query.
    pub(super) fn squared_distance(&self, query: &Query<'_>, row: usize) -> f64 {
        let start = (row - self.first_row) * query.values.len();
        query.squared_distance(&self.vectors[start..start + query.values.len()])
    }

    /// Whether a row lies in the tile.
    pub(super) fn contains(&self, row: usize) -> bool {
        row.checked_sub(self.first_row).is_some_and(|offset| offset < self.labels.len())
    }

    /// The rows of the item that a row belongs to, whether they lie in the tile or not.
    pub(super) fn views_of(&self, row: usize) -> Range<usize> {
        let first = row - row % self.views;
        first..first + self.views
    }

    /// The item that a row belongs to.
    pub(super) fn item(&self, row: usize) -> usize {
        row / self.views
    }

    /// Gives a row the score infinity, which no candidate has; rows outside the tile are ignored.
    pub(super) fn hide(&mut self, row: usize) {
        if let Some(dot) = row.checked_sub(self.first_row).and_then(|offset| self.dots.get_mut(offset)) {
            *dot = f32::NEG_INFINITY;
        }
    }

    /// Hides those of the ascending rows that lie in the tile.
    pub(super) fn hide_all(&mut self, rows: &[usize]) {
        if rows.is_empty() {
            return;
        }
        let start = rows.partition_point(|&row| row < self.first_row);
        let end = self.first_row + self.dots.len();
        for &row in rows[start..].iter().take_while(|&&row| row < end) {
            self.hide(row);
        }
    }

    /// Smallest score among rows with the label and among all others; infinity where there is none.
    pub(super) fn smallest(&self, label: Option<Label>) -> (f32, f32) {
        smallest_scores(self.half_norms, self.dots, self.labels, label.unwrap_or(NO_LABEL))
    }

    /// Rows with a score up to the cutoff, ascending, with their score and label.
    pub(super) fn candidates(&self, cutoff: f32) -> impl Iterator<Item = (usize, f32, Label)> {
        self.scores()
            .zip(self.labels)
            .zip(self.first_row..)
            .filter(move |&((score, _), _)| score <= cutoff)
            .map(|((score, &label), row)| (row, score, label))
    }

    /// The scores of its rows in order, infinite where hidden.
    pub(super) fn scores(&self) -> impl Iterator<Item = f32> {
        self.half_norms.iter().zip(self.dots.iter()).map(|(half, dot)| half - dot)
    }

    /// Bound on `|score − key|` for every row of the tile, infinite if `f32` can say nothing about the query.
    pub(super) fn slack(&self, query: &Query<'_>) -> f64 {
        if query.norm.exhaustive {
            f64::INFINITY
        } else {
            slack(query.norm.upper, self.norm_upper, query.values.len())
        }
    }
}

/// Largest score that a row with a key up to `upper` can have; finite, so that hidden rows stay hidden.
pub(super) fn cutoff(upper: f64, slack: f64) -> f32 {
    if slack.is_infinite() {
        // Every visible score is finite, and nothing is known beyond that.
        return f32::MAX;
    }
    // One step up: converting to `f32` may have rounded down.
    ((upper + slack) as f32).next_up().min(f32::MAX)
}

/// The bound on `|score − key|` that the head of this file derives.
fn slack(query_norm_upper: f64, row_norm_upper: f64, dimension: usize) -> f64 {
    let (q, v) = (query_norm_upper, row_norm_upper);
    let terms = dimension as f64 + 4.0;
    let single = f64::from(f32::EPSILON) / 2.0 * (terms * q * v + 2.0 * v * v);
    let double = 2.0 * UNIT_ROUNDOFF * terms * (q + v) * (q + v);
    let underflow = 8.0 * f64::from(f32::MIN_POSITIVE) * terms * (1.0 + q + v);
    1.01 * (single + double + underflow)
}

/// The norm, raised above the rounding of its square and of what that square lost to underflow.
fn norm_upper(squared_norm: f64) -> f64 {
    squared_norm.sqrt() * (1.0 + 1e-9) + 1e-150
}

/// `⟨q̃, v⟩` in sixteen sums at once: no term passes through more roundings than there are terms.
fn dot(query: &[f32], vector: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (query_chunks, query_rest) = query.as_chunks::<LANES>();
    let (chunks, rest) = vector.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (left, right) in query_chunks.iter().zip(chunks) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = query_rest.iter().zip(rest).map(|(left, right)| left * right).sum();
    sums.into_iter().sum::<f32>() + rest
}

/// Smallest `half − dot` among the rows with the label and among the others.
///
/// Selects instead of branches and independent lanes, so that it compiles to vector instructions.
fn smallest_scores(half_norms: &[f32], dots: &[f32], labels: &[Label], label: Label) -> (f32, f32) {
    const LANES: usize = 16;
    let mut with_label = [f32::INFINITY; LANES];
    let mut others = [f32::INFINITY; LANES];
    let (half_chunks, half_rest) = half_norms.as_chunks::<LANES>();
    let (dot_chunks, dot_rest) = dots.as_chunks::<LANES>();
    let (label_chunks, label_rest) = labels.as_chunks::<LANES>();
    for ((half, dot), found) in half_chunks.iter().zip(dot_chunks).zip(label_chunks) {
        for lane in 0..LANES {
            let score = half[lane] - dot[lane];
            let same = found[lane] == label;
            with_label[lane] = smaller(with_label[lane], if same { score } else { f32::INFINITY });
            others[lane] = smaller(others[lane], if same { f32::INFINITY } else { score });
        }
    }
    for ((half, dot), &found) in half_rest.iter().zip(dot_rest).zip(label_rest) {
        let side = if found == label { &mut with_label[0] } else { &mut others[0] };
        *side = smaller(*side, half - dot);
    }
    (with_label.into_iter().fold(f32::INFINITY, smaller), others.into_iter().fold(f32::INFINITY, smaller))
}

/// The minimum of two numbers that are not NaN, as the one instruction that the processor has for it.
fn smaller(left: f32, right: f32) -> f32 {
    if right < left { right } else { left }
}

#[cfg(test)]
mod tests {
    use super::{Batch, Gallery, Scratch, cutoff};
    use crate::gallery::Metric;

    #[test]
    fn scores_stay_within_their_slack_of_the_exact_key() {
        let mut state = 1_u64;
        let mut value = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
        };
        for (dimension, scale, query_scale) in [
            (1, 1.0, 1.0),
            (3, 1e-3, 1e5),
            (128, 1.0, 1.0),
            (700, 1e10, 1e-6),
            (300, 1e-19, 1.0),
            (9, 1.0, 1e-40),
            (40, 1e-22, 1e-22),
        ] {
            let rows = 300;
            // All components positive: the roundings of a sum add up instead of cancelling.
            let vectors = (0..rows * dimension).map(|_| (scale * value().abs()) as f32).collect();
            let names: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
            let gallery = Gallery::new(vectors, dimension, names.clone(), &names, Metric::Euclidean).unwrap();
            let queries: Vec<f64> = (0..5 * dimension).map(|_| query_scale * value().abs()).collect();
            let batch = Batch::new(&queries, dimension);
            let mut compared = 0;
            batch.visit_tiles(&gallery.rows(), &mut Scratch::default(), |position, tile| {
                let query = batch.query(position);
                let slack = tile.slack(&query);
                for (row, score, _) in tile.candidates(f32::MAX) {
                    let dot: f64 =
                        query.values.iter().zip(gallery.vector(row)).map(|(q, &v)| q * f64::from(v)).sum();
                    let key = gallery.squared_norm(row) / 2.0 - dot;
                    let error = (f64::from(score) - key).abs();
                    assert!(
                        error <= slack,
                        "dimension {dimension}, row {row}: error {error:e}, slack {slack:e}"
                    );
                    let squared_distance = query.squared_distance(gallery.vector(row));
                    assert!(f64::from(score) - slack <= query.key_upper(squared_distance), "row {row}");
                    compared += 1;
                }
            });
            assert_eq!(compared, 5 * rows);
        }
    }

    #[test]
    fn a_cutoff_is_finite_and_never_below_its_exact_value() {
        for (upper, slack) in
            [(1.0, 1e-9), (-1.0, 1e-9), (0.0, 0.0), (1e-46, 0.0), (-0.25, 0.25), (1e30, 3e20)]
        {
            assert!(f64::from(cutoff(upper, slack)) > upper + slack, "{upper} + {slack}");
        }
        for (upper, slack) in
            [(f64::INFINITY, 1.0), (0.0, f64::INFINITY), (f64::NAN, f64::INFINITY), (1e40, 0.0)]
        {
            assert_eq!(cutoff(upper, slack), f32::MAX, "{upper} + {slack}");
        }
    }
}
