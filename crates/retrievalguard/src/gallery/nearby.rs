//! Which rows are within a distance of a query? The scores of all rows, kept, so that one pass answers several questions.
//!
//! The first question (who is nearest?) decides how far the second one reaches, and neither reads the gallery again: one
//! `f32` per row is kept for each query. As everywhere in this folder scores only choose which rows are measured in `f64`.

use super::Gallery;
use super::scores::{Batch, Scratch, cutoff};
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

    /// Every visible row that belongs and is no farther than this, ascending by squared distance and then by row.
    pub(crate) fn within(
        &self,
        query: usize,
        squared_distance: f64,
        belongs: impl Fn(usize) -> bool,
    ) -> Vec<Neighbour> {
        let upper = self.batch.query(query).key_upper(squared_distance);
        let most = cutoff(upper, self.slacks[query]);
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
