//! Which rows are within a distance of a query? The scores of all rows, kept, so that one pass answers several questions.
//!
//! The first question (who is nearest?) decides how far the second one reaches, and neither reads the gallery again: one
//! `f32` per row is kept for each query. As everywhere in this folder scores only choose which rows are measured in `f64`.

use super::Gallery;
use super::scores::{Batch, Scratch, UNIT_ROUNDOFF, cutoff};
use super::search::Neighbour;

/// Some queries with their scores for all rows.
pub(crate) struct Nearby<'g> {
    gallery: &'g Gallery,
    batch: Batch,
    scores: Vec<Vec<f32>>,
    slacks: Vec<f64>,
}

impl<'g> Nearby<'g> {
    /// Scores every row for checked queries, laid end to end; `excluded` says which rows a query must not see.
    pub(crate) fn new<'excluded>(
        gallery: &'g Gallery,
        queries: &[f64],
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Self {
        let batch = Batch::new(queries, gallery.dimension());
        let mut scores: Vec<Vec<f32>> = (0..batch.len()).map(|_| Vec::with_capacity(gallery.len())).collect();
        let mut slacks = vec![0.0_f64; batch.len()];
        batch.visit_tiles(&gallery.rows(), &mut Scratch::default(), |position, mut tile| {
            tile.hide_all(excluded(position));
            scores[position].extend(tile.scores());
            slacks[position] = slacks[position].max(tile.slack(&batch.query(position)));
        });
        Self { gallery, batch, scores, slacks }
    }

    /// Squared distance of a row, as the double loop computes it.
    pub(crate) fn measure(&self, query: usize, row: usize) -> Neighbour {
        let squared_distance = self.batch.query(query).squared_distance(self.gallery.vector(row));
        Neighbour { row, squared_distance }
    }

    /// The `count` nearest of the visible rows that belong, ascending by squared distance and then by row.
    pub(crate) fn nearest(
        &self,
        query: usize,
        count: usize,
        belongs: impl Fn(usize) -> bool,
    ) -> Vec<Neighbour> {
        let scores = self.scores[query].iter().enumerate();
        let visible = scores.filter(|&(row, score)| *score <= f32::MAX && belongs(row));
        let mut candidates: Vec<(f32, usize)> = visible.map(|(row, &score)| (score, row)).collect();
        if count > 0 && candidates.len() > count {
            let slack = self.slacks[query];
            let (_, last, _) = candidates.select_nth_unstable_by(count - 1, |a, b| a.0.total_cmp(&b.0));
            let most = cutoff(f64::from(last.0) + slack, slack);
            candidates.retain(|candidate| candidate.0 <= most);
        }
        let measured = candidates.into_iter().map(|(_, row)| self.measure(query, row)).collect();
        let mut nearest = ascending(measured);
        nearest.truncate(count);
        nearest
    }

    /// How many visible rows may be no farther than this.
    pub(crate) fn count_within(&self, query: usize, squared_distance: f64) -> usize {
        let most = self.most(query, squared_distance);
        self.scores[query].iter().filter(|&&score| score <= most).count()
    }

    /// The largest score of a row that is no farther than this.
    fn most(&self, query: usize, squared_distance: f64) -> f32 {
        cutoff(self.batch.query(query).key_upper(squared_distance), self.slacks[query])
    }

    /// As [`within`](Self::within), without rows that are certainly farther than `reach` behind their bisector with a
    /// nearer row; `from` has that row as its query of this number.
    ///
    /// With the squared distances `D_a` and `D_b` of the nearer row and of another from the query, and `g²` between the two,
    /// the query is `(D_b − D_a)/2g` before their bisector. A row is left out if lower and upper bounds from scores show
    ///
    /// ```text
    /// (D_b − D_a)² ≥ (2 reach g)²,      D_b − D_a ≥ limit/1000
    /// ```
    ///
    /// where `reach` already has what rounding takes from bisectors of rows as far apart as the second condition says.
    pub(crate) fn before_bisectors(
        &self,
        query: usize,
        limit: f64,
        (from, nearer): (&Nearby<'_>, f64),
        reach: f64,
        belongs: impl Fn(usize) -> bool,
    ) -> Vec<Neighbour> {
        let roundings = 8.0 * UNIT_ROUNDOFF * (self.gallery.dimension() as f64 + 16.0);
        let (own, other) = (self.batch.query(query).squared_norm(), from.batch.query(query).squared_norm());
        let (own_slack, other_slack) = (self.slacks[query], from.slacks[query]);
        if !(own_slack.is_finite() && other_slack.is_finite() && limit.is_finite()) {
            return self.within(query, limit, belongs);
        }
        // Everything about squared distances up to the limit, as one allowance for each side.
        let largest = limit + own + 2.0 * own_slack;
        let subtracted = own - nearer - 2.0 * own_slack - roundings * largest;
        let farthest = 4.0 * (limit + own + other + other_slack);
        let added = other + 2.0 * other_slack + roundings * farthest;
        let square = 4.0 * reach * reach * (1.0 + 1e-9);
        let most = self.most(query, limit);
        let scores = self.scores[query].iter().zip(&from.scores[query]).enumerate();
        let open = scores.filter(|&(row, (&score, &between))| {
            let ahead = 2.0 * f64::from(score) + subtracted;
            let cleared =
                ahead >= 1e-3 * limit && ahead * ahead >= square * (2.0 * f64::from(between) + added);
            score <= most && !cleared && belongs(row)
        });
        let measured = open.map(|(row, _)| self.measure(query, row));
        ascending(measured.filter(|found| found.squared_distance <= limit).collect())
    }

    /// Every visible row that belongs and is no farther than this, ascending by squared distance and then by row.
    pub(crate) fn within(
        &self,
        query: usize,
        squared_distance: f64,
        belongs: impl Fn(usize) -> bool,
    ) -> Vec<Neighbour> {
        let most = self.most(query, squared_distance);
        let scores = self.scores[query].iter().enumerate();
        let candidates = scores.filter(|&(row, score)| *score <= most && belongs(row));
        let measured = candidates.map(|(row, _)| self.measure(query, row));
        ascending(measured.filter(|found| found.squared_distance <= squared_distance).collect())
    }
}

fn ascending(mut rows: Vec<Neighbour>) -> Vec<Neighbour> {
    rows.sort_unstable_by(|left, right| {
        left.squared_distance.total_cmp(&right.squared_distance).then(left.row.cmp(&right.row))
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::Metric;

    #[test]
    fn kept_scores_find_what_the_double_loop_finds() {
        let mut state = 5_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for (rows, dimension) in [(1, 1), (40, 3), (3_000, 17)] {
            let vectors: Vec<f32> = (0..rows * dimension).map(|_| next()).collect();
            let names: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
            let gallery = Gallery::new(vectors, dimension, names.clone(), &names, Metric::Euclidean).unwrap();
            let queries: Vec<f64> = (0..5 * dimension).map(|_| f64::from(next())).collect();
            let hidden = [rows / 2];
            let nearby = Nearby::new(&gallery, &queries, |query| if query == 1 { &hidden } else { &[] });
            for query in 0..5 {
                let values = &queries[query * dimension..(query + 1) * dimension];
                let visible = |row: &usize| query != 1 || *row != rows / 2;
                let odd = |row: usize| row % 2 == 1;
                let all: Vec<Neighbour> = ascending(
                    (0..rows)
                        .filter(visible)
                        .map(|row| {
                            let squared_distance =
                                values.iter().zip(gallery.vector(row)).fold(0.0, |sum, (&query, &stored)| {
                                    let difference: f64 = query - f64::from(stored);
                                    sum + difference * difference
                                });
                            Neighbour { row, squared_distance }
                        })
                        .collect(),
                );
                let wanted: Vec<Neighbour> = all.iter().copied().filter(|found| odd(found.row)).collect();
                for count in [0, 1, 7, 10_000] {
                    let found = nearby.nearest(query, count, odd);
                    assert_eq!(found, wanted[..count.min(wanted.len())], "{rows} rows, {count} nearest");
                }
                if let Some(last) = all.get(all.len() / 3) {
                    let found = nearby.within(query, last.squared_distance, |_| true);
                    assert_eq!(found, all[..=all.len() / 3], "{rows} rows within");
                }
            }
        }
    }
}
