//! A gallery in shards, piece by piece: the positives of a query beside consecutive rows, as galleries in memory.
//!
//! Every negative has a radius of its own and the smallest is the query's, so whoever certifies may look at pieces, as long
//! as the positives are part of each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{ShardedGallery, ShardsError};
use crate::certificate::CertificateError;
use crate::gallery::{Gallery, Positives, Relevance, positive_rows};

/// Rows of a piece: each thread holds the vectors of one, twice.
const PIECE_ROWS: usize = 1 << 16;

/// A gallery that is looked at piece by piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'a> {
    pub(super) gallery: &'a ShardedGallery,
    pub(super) piece_rows: usize,
}

/// A query to the whole gallery, with what every piece needs of it.
pub(super) struct Case<'a> {
    pub(super) relevance: &'a Relevance,
    /// Rows of the right answers, ascending.
    pub(super) positives: Vec<usize>,
    /// Their vectors.
    vectors: Vec<f32>,
}

/// The positives and some consecutive rows as a gallery of their own.
pub(super) struct Piece {
    pub(super) gallery: Gallery,
    /// Row of the whole gallery for each row of the piece, ascending.
    pub(super) rows: Vec<usize>,
    pub(super) relevance: Relevance,
}

impl<'a> Pieces<'a> {
    /// Pieces of the usual size.
    pub(super) fn new(gallery: &'a ShardedGallery) -> Self {
        Self { gallery, piece_rows: PIECE_ROWS }
    }

    /// What every piece needs of a query.
    pub(super) fn case<'relevance>(
        &self,
        relevance: &'relevance Relevance,
    ) -> Result<Case<'relevance>, ShardsError> {
        let positives = positive_rows(self.gallery.labels(), 1, relevance.positives, &relevance.excluded);
        let vectors = self.gallery.load_rows(&positives)?;
        Ok(Case { relevance, positives, vectors })
    }

    /// Does some work for every piece that has a negative, on several threads; the results are in the order of rows.
    pub(super) fn reduce<T: Send>(
        &self,
        case: &Case<'_>,
        work: impl Fn(&Piece) -> Result<T, CertificateError> + Sync,
    ) -> Result<Vec<T>, CertificateError> {
        let pieces = self.gallery.len().div_ceil(self.piece_rows);
        let next = AtomicUsize::new(0);
        let run = || {
            let mut done = Vec::new();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                if place >= pieces {
                    return Ok(done);
                }
                if let Some(piece) = self.piece(case, place)? {
                    done.push((place, work(&piece)?));
                }
            }
        };
        let done: Vec<Result<Vec<(usize, T)>, CertificateError>> = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.gallery.threads.get()).map(|_| scope.spawn(run)).collect();
            let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
            joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let mut all: Vec<(usize, T)> = Vec::with_capacity(pieces);
        for part in done {
            all.append(&mut part?);
        }
        all.sort_unstable_by_key(|&(place, _)| place);
        Ok(all.into_iter().map(|(_, result)| result).collect())
    }

    /// The positives and the rows of one piece, in ascending order; nothing if there is no negative among them.
    fn piece(&self, case: &Case<'_>, place: usize) -> Result<Option<Piece>, ShardsError> {
        let start = place * self.piece_rows;
        let end = self.gallery.len().min(start + self.piece_rows);
        let excluded = &case.relevance.excluded;
        let own: Vec<usize> = (start..end).filter(|row| excluded.binary_search(row).is_err()).collect();
        let before = case.positives.partition_point(|&row| row < start);
        let behind = case.positives.partition_point(|&row| row < end);
        if own.len() == behind - before {
            return Ok(None);
        }
        let dimension = self.gallery.dimension();
        let rows = [&case.positives[..before], &own, &case.positives[behind..]].concat();
        let loaded = self.gallery.load_rows(&own)?;
        let vectors =
            [&case.vectors[..before * dimension], &loaded, &case.vectors[behind * dimension..]].concat();
        drop(loaded);
        // Nothing asks a piece for names.
        let identities = vec![String::new(); rows.len()];
        self.assemble(case, rows, vectors, identities).map(Some)
    }

    /// The positives and the dangerous negatives.
    pub(super) fn core(&self, case: &Case<'_>, dangerous: &[usize]) -> Result<Piece, ShardsError> {
        let mut rows = [&case.positives, dangerous].concat();
        rows.sort_unstable();
        let vectors = self.gallery.load_rows(&rows)?;
        let mut identities = vec![String::new(); rows.len()];
        for (identity, row) in identities.iter_mut().zip(&rows) {
            if dangerous.binary_search(row).is_ok() {
                *identity = self.gallery.identity(*row)?;
            }
        }
        self.assemble(case, rows, vectors, identities)
    }

    fn assemble(
        &self,
        case: &Case<'_>,
        rows: Vec<usize>,
        vectors: Vec<f32>,
        identities: Vec<String>,
    ) -> Result<Piece, ShardsError> {
        let labels: Vec<&str> =
            rows.iter().map(|&row| self.gallery.label_name(self.gallery.label(row))).collect();
        let gallery =
            Gallery::new(vectors, self.gallery.dimension(), identities, &labels, self.gallery.metric())?;
        let positives = match case.relevance.positives {
            Positives::Label(label) => gallery
                .label_named(self.gallery.label_name(label))
                .map_or(Positives::Absent, Positives::Label),
            Positives::Item(row) => rows.binary_search(&row).map_or(Positives::Absent, Positives::Item),
            Positives::Absent => Positives::Absent,
        };
        Ok(Piece { gallery, rows, relevance: Relevance::new(positives, Vec::new()) })
    }
}
