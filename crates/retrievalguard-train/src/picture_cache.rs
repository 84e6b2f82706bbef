//! Pictures that are decoded once, not once per epoch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use retrievalguard_encoder::dataset::Record;
use retrievalguard_encoder::picture::{PictureError, PictureLimits, RgbPicture};

/// Decoded pictures of a data set, kept as long as they fit a budget.
///
/// What is kept stays: every epoch asks for each picture about once in a new order, so that throwing out a picture for
/// another would not save decoding either.
#[derive(Debug)]
pub(crate) struct PictureCache {
    records: Vec<Record>,
    limits: PictureLimits,
    kept: Vec<OnceLock<Arc<RgbPicture>>>,
    budget: u64,
    /// Bytes of pixels that are kept.
    used: AtomicU64,
}

impl PictureCache {
    /// Keeps at most `budget` bytes of pixels.
    pub(crate) fn new(records: Vec<Record>, budget: u64) -> Self {
        let kept = records.iter().map(|_| OnceLock::new()).collect();
        Self { records, limits: PictureLimits::default(), kept, budget, used: AtomicU64::new(0) }
    }

    /// The records, in their order.
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// The picture of a record, decoded if it is not kept.
    ///
    /// # Panics
    ///
    /// If there is no such record.
    pub(crate) fn picture(&self, position: usize) -> Result<Arc<RgbPicture>, PictureError> {
        if let Some(kept) = self.kept[position].get() {
            return Ok(Arc::clone(kept));
        }
        let picture = Arc::new(self.records[position].read(&self.limits)?);
        let bytes = picture.pixels().len() as u64;
        let room = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= self.budget)
        });
        if room.is_ok() && self.kept[position].set(Arc::clone(&picture)).is_err() {
            // Another thread was faster with the same picture.
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        Ok(picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrievalguard_encoder::dataset::{PictureSource, Role};

    fn record(number: u8, source: PictureSource) -> Record {
        let identity = format!("picture {number}");
        let label = "all".to_owned();
        Record { identity, source, crop: None, label, category: None, split: None, role: Role::Unassigned }
    }

    fn grey(number: u8) -> Record {
        record(number, PictureSource::Grey { width: 2, height: 1, pixels: vec![number; 2] })
    }

    #[test]
    fn pictures_are_kept_up_to_the_budget_and_read_again_beyond_it() {
        // Two pictures of six bytes fit.
        let cache = PictureCache::new((0..4).map(grey).collect(), 17);
        for _ in 0..2 {
            for position in [3, 1, 0, 2] {
                let picture = cache.picture(position).unwrap();
                assert_eq!(picture.pixels(), [position as u8; 6], "{position}");
            }
            assert_eq!(cache.used.load(Ordering::Relaxed), 12);
        }
        let same = |position| {
            let [first, second] = [0; 2].map(|_| cache.picture(position).unwrap());
            Arc::ptr_eq(&first, &second)
        };
        assert_eq!([0, 1, 2, 3].map(same), [false, true, false, true]);
    }

    #[test]
    fn a_missing_picture_is_named() {
        let path = std::path::PathBuf::from("no/such/picture.png");
        let cache = PictureCache::new(vec![record(0, PictureSource::File(path))], 1 << 20);
        let error = cache.picture(0).unwrap_err();
        assert!(matches!(error, PictureError::Read { ref picture, .. } if picture.contains("picture.png")));
        assert_eq!(cache.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_that_ask_for_the_same_picture_count_it_once() {
        let cache = PictureCache::new((0..50).map(grey).collect(), 1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|position| drop(cache.picture(position).unwrap())));
            }
        });
        assert_eq!(cache.used.load(Ordering::Relaxed), 300);
    }
}
