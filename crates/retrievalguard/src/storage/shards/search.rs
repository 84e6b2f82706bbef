//! Exact search over all shards: threads take blocks in the order of rows, and what they found is reduced to the nearest.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::files::read_at;
use super::{Shard, ShardedGallery, ShardsError};
use crate::gallery::{
    AheadBatch, Answers, Extent, Metric, NORM_LIMIT, NearestBatch, NearestDistances, NearestPair,
    NearestPairBatch, Neighbour, Positives, Relevance, RivalSet, Rows, Scratch, Search, batch_queries,
    positive_rows, queries_per_pass,
};

/// Numbers of a block: half a mebibyte, so that it is still cached when it has been decoded and multiplied.
const BLOCK_NUMBERS: usize = 1 << 17;

impl ShardedGallery {
    /// Nearest positive and nearest negative of every query, as
    /// [`Gallery::nearest_positive_and_negative`] gives them for the same items.
    ///
    /// The queries are laid end to end; `relevance` is asked with their position. Every block of vectors is read once for
    /// all of them.
    ///
    /// [`Gallery::nearest_positive_and_negative`]: crate::gallery::Gallery::nearest_positive_and_negative
    pub fn nearest_positive_and_negative<'relevance, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        relevance: impl Fn(usize) -> &'relevance Relevance,
    ) -> Result<Vec<NearestPair>, ShardsError> {
        self.extent().check_with_relevance(queries, &relevance)?;
        let found = self.search(queries, |group, first| {
            NearestPairBatch::new(group, self.dimension(), first, &relevance)
        })?;
        Ok(found.iter().flat_map(NearestPairBatch::answers).collect())
    }

    /// The `count` nearest rows of every query, as [`Gallery::nearest`] gives them for the same items.
    ///
    /// [`Gallery::nearest`]: crate::gallery::Gallery::nearest
    pub fn nearest<'excluded, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Result<Vec<Vec<Neighbour>>, ShardsError> {
        self.extent().check_neighbours(queries, count, &excluded)?;
        let found = self.search(queries, |group, first| {
            NearestBatch::new(group, self.dimension(), first, count, &excluded)
        })?;
        Ok(found.into_iter().flat_map(NearestBatch::answers).collect())
    }

    /// Shows `see` every query in order, with the rivals that are ahead in it, as
    /// [`Gallery::rivals_ahead`] finds them for the same items.
    ///
    /// Every block of vectors is read once for as many queries as have room for their sets: a bit for each rival.
    ///
    /// [`Gallery::rivals_ahead`]: crate::gallery::Gallery::rivals_ahead
    pub fn rivals_ahead<T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        relevance: &Relevance,
        mut see: impl FnMut(usize, &RivalSet),
    ) -> Result<(), ShardsError> {
        let answers = Answers { positives: &[relevance.positives], excluded: &relevance.excluded };
        self.rivals_ahead_of_each(queries, &answers, |query, _, rivals| see(query, rivals))
    }

    /// The same for several answers, by query and answer.
    pub(crate) fn rivals_ahead_of_each<T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        answers: &Answers<'_>,
        mut see: impl FnMut(usize, usize, &RivalSet),
    ) -> Result<(), ShardsError> {
        answers.check(&self.extent(), queries)?;
        let (dimension, rivals) = (self.dimension(), answers.rival_numbers(self.label_count(), self.len()));
        // Every thread has sets of its own.
        let together = (queries_per_pass(answers, rivals) / self.threads).max(1);
        for (group, first) in queries.chunks(together * dimension).zip((0..).step_by(together)) {
            let values: Vec<f64> = group.iter().map(|&value| value.into()).collect();
            let distances = answers
                .positives
                .iter()
                .map(|&positives| self.nearest_distances(&values, positives, answers.excluded))
                .collect::<Result<Vec<_>, _>>()?;
            let found = self.search(&values, |batch, first| {
                let queries = first..first + batch.len() / dimension;
                let distances: Vec<Vec<f64>> =
                    distances.iter().map(|distances| distances[queries.clone()].to_vec()).collect();
                AheadBatch::new(batch, dimension, answers, &distances, rivals)
            })?;
            let mut before = first;
            for batch in found {
                batch.show(|query, answer, rivals| see(before + query, answer, rivals));
                before += batch.len();
            }
        }
        Ok(())
    }

    /// Squared distance of each query from the nearest positive, infinite if there is none.
    fn nearest_distances(
        &self,
        queries: &[f64],
        positives: Positives,
        excluded: &[usize],
    ) -> Result<Vec<f64>, ShardsError> {
        let mut nearest = NearestDistances::new(queries, self.dimension());
        let rows = positive_rows(&self.labels, 1, positives, excluded);
        for rows in rows.chunks(block_rows(self.dimension())) {
            let vectors = self.load_rows(rows)?;
            let norms: Vec<f64> = vectors.chunks_exact(self.dimension()).map(squared_norm).collect();
            nearest.visit(&vectors, &norms);
        }
        Ok(nearest.squared())
    }

    /// What queries are checked against.
    pub(crate) fn extent(&self) -> Extent {
        Extent { length: self.len(), dimension: self.dimension(), label_count: self.label_count() }
    }

    /// Shows all rows to searches for the queries, batch by batch.
    fn search<T: Copy, S: Search>(
        &self,
        queries: &[T],
        new: impl Fn(&[T], usize) -> S,
    ) -> Result<Vec<S>, ShardsError> {
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        let together = batch_queries(self.dimension());
        let groups = || queries.chunks(together * self.dimension()).zip((0..).step_by(together));
        let next = AtomicUsize::new(0);
        let searches: Vec<Vec<S>> = (0..self.threads.get())
            .map(|_| groups().map(|(group, first)| new(group, first)).collect())
            .collect();
        let found: Vec<Result<Vec<S>, ShardsError>> = thread::scope(|scope| {
            let workers: Vec<_> =
                searches.into_iter().map(|own| scope.spawn(|| self.search_blocks(own, &next))).collect();
            let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
            joined.map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let mut found = found.into_iter();
        let mut nearest = found.next().expect("there is at least one thread")?;
        for other in found {
            nearest.iter_mut().zip(other?).for_each(|(own, other)| own.merge(other));
        }
        Ok(nearest)
    }

    /// Takes block after block until there are no more; the blocks of one thread ascend.
    fn search_blocks<S: Search>(
        &self,
        mut searches: Vec<S>,
        next: &AtomicUsize,
    ) -> Result<Vec<S>, ShardsError> {
        let block_rows = block_rows(self.dimension());
        let mut scratch = Scratch::default();
        let (mut block, mut before) = (next.fetch_add(1, Ordering::Relaxed), 0);
        for shard in &self.shards {
            let blocks = shard.items.div_ceil(block_rows);
            let mut reader = None;
            while block < before + blocks {
                let first = (block - before) * block_rows;
                let rows = first..shard.items.min(first + block_rows);
                let reader = match &mut reader {
                    Some(reader) => reader,
                    none => none.insert(BlockReader::open(shard)?),
                };
                let result = reader.read(shard, rows.clone(), |vectors, squared_norms| {
                    let first_row = shard.first_row + rows.start;
                    let labels = &self.labels[first_row..shard.first_row + rows.end];
                    let rows = Rows { first_row, vectors, squared_norms, labels, views: 1 };
                    for search in &mut searches {
                        search.visit(&rows, &mut scratch);
                    }
                });
                if let Err(error) = result {
                    // Nobody needs the rest.
                    next.store(usize::MAX / 2, Ordering::Relaxed);
                    return Err(error);
                }
                block = next.fetch_add(1, Ordering::Relaxed);
            }
            before += blocks;
        }
        Ok(searches)
    }
}

fn block_rows(dimension: usize) -> usize {
    (BLOCK_NUMBERS / dimension).max(1)
}

/// Reads vectors of one shard into buffers that are used again, and checks each of them.
pub(super) struct BlockReader {
    file: File,
    start: u64,
    bytes: Vec<u8>,
    vectors: Vec<f32>,
    squared_norms: Vec<f64>,
}

impl BlockReader {
    pub(super) fn open(shard: &Shard) -> Result<Self, ShardsError> {
        let array = shard.vectors();
        let (file, start) = (array.open()?, array.header.len() as u64);
        Ok(Self { file, start, bytes: Vec::new(), vectors: Vec::new(), squared_norms: Vec::new() })
    }

    /// Shows some rows of the shard, block by block, with their squared norms.
    pub(super) fn read(
        &mut self,
        shard: &Shard,
        rows: Range<usize>,
        mut visit: impl FnMut(&[f32], &[f64]),
    ) -> Result<(), ShardsError> {
        let dimension = shard.manifest.dimension;
        for first in rows.clone().step_by(block_rows(dimension)) {
            let count = block_rows(dimension).min(rows.end - first);
            self.bytes.resize(count * dimension * 4, 0);
            let offset = self.start + first as u64 * dimension as u64 * 4;
            read_at(&mut self.file, offset, &mut self.bytes, &shard.vectors().path)?;
            self.vectors.clear();
            self.vectors.extend(self.bytes.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)));
            self.squared_norms.clear();
            self.squared_norms.extend(self.vectors.chunks_exact(dimension).map(squared_norm));
            self.check(shard, first)?;
            visit(&self.vectors, &self.squared_norms);
        }
        Ok(())
    }

    /// Refuses vectors that could not have been written; `first` is the row of the first one.
    fn check(&self, shard: &Shard, first: usize) -> Result<(), ShardsError> {
        // Summed in another order than when they were written, so a little more is allowed.
        let (allowed, wanted) = match shard.manifest.metric {
            Metric::Euclidean => (0.0..=(NORM_LIMIT * (1.0 + 1e-9)).powi(2), "a finite one, at most 1e15"),
            Metric::Cosine => {
                let off = 1.001 * f64::from(f32::EPSILON);
                ((1.0 - off).powi(2)..=(1.0 + off).powi(2), "1 for the cosine metric")
            }
        };
        match self.squared_norms.iter().position(|squared| !allowed.contains(squared)) {
            None => Ok(()),
            Some(place) => Err(ShardsError::Vector {
                path: shard.vectors().path,
                row: first + place,
                norm: self.squared_norms[place].sqrt(),
                wanted,
            }),
        }
    }
}

/// `Σ v_i²` in `f64`, in eight sums at once; not finite if a component is not.
fn squared_norm(vector: &[f32]) -> f64 {
    const LANES: usize = 8;
    let (chunks, rest) = vector.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            let value = f64::from(chunk[lane]);
            sums[lane] += value * value;
        }
    }
    let rest: f64 = rest.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    sums.into_iter().sum::<f64>() + rest
}
