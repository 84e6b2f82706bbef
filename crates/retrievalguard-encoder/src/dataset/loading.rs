//! Pictures of a data set, decoded and prepared one at a time, by any number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{PictureSource, Record};
use crate::picture::{PictureError, PictureLimits, RgbPicture};
use crate::resize::{Preparation, PreparedPicture};

/// What to do about a picture that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BrokenPictures {
    /// The first one ends the loading.
    #[default]
    Fatal,
    /// It is left out and listed.
    Skip,
}

/// A picture that was left out.
#[derive(Debug)]
pub struct SkippedPicture {
    /// Position of its record in the data set.
    pub position: usize,
    /// Its identity.
    pub identity: String,
    /// Why.
    pub error: PictureError,
}

/// A picture ready for the encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPicture<'a> {
    /// Position of its record in the data set.
    pub position: usize,
    /// Who it is.
    pub record: &'a Record,
    /// Its pixels.
    pub picture: PreparedPicture,
}

impl Record {
    /// Decodes the picture and cuts out its box.
    pub fn read(&self, limits: &PictureLimits) -> Result<RgbPicture, PictureError> {
        let whole = match &self.source {
            PictureSource::File(path) => RgbPicture::from_path(path, limits)?,
            PictureSource::Grey { width, height, pixels } => {
                RgbPicture::from_grey(&self.identity, *width, *height, pixels)?
            }
        };
        match self.crop {
            Some(crop) => whole.cropped(&self.identity, crop),
            None => Ok(whole),
        }
    }
}

/// Hands out the pictures of a list of records, each once.
///
/// Shared by reference: every thread may iterate over the same `&Loader`, and decodes what it takes. A thread gets its
/// pictures in the order of the records; [`LoadedPicture::position`] tells where each belongs.
///
/// ```
/// use retrievalguard_encoder::dataset::{BrokenPictures, Loader};
/// use retrievalguard_encoder::resize::{Interpolation, PassOrder, Preparation, Resize};
///
/// let preparation = Preparation {
///     resize: Resize::Exact { height: 28, width: 28 },
///     interpolation: Interpolation::Bilinear,
///     crop: None,
///     order: PassOrder::default(),
/// };
/// let loader = Loader::new(&[], preparation, BrokenPictures::Skip);
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| {
///             for loaded in &loader {
///                 assert!(loaded.is_ok());
///             }
///         });
///     }
/// });
/// assert!(loader.into_skipped().is_empty());
/// ```
#[derive(Debug)]
pub struct Loader<'a> {
    records: &'a [Record],
    preparation: Preparation,
    limits: PictureLimits,
    broken: BrokenPictures,
    next: AtomicUsize,
    skipped: Mutex<Vec<SkippedPicture>>,
}

impl<'a> Loader<'a> {
    /// Begins at the first record.
    pub fn new(records: &'a [Record], preparation: Preparation, broken: BrokenPictures) -> Self {
        Self {
            records,
            preparation,
            limits: PictureLimits::default(),
            broken,
            next: AtomicUsize::new(0),
            skipped: Mutex::new(Vec::new()),
        }
    }

    /// Replaces the limits on each picture.
    pub fn with_limits(mut self, limits: PictureLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Decodes and prepares the record at `position`, whatever was handed out before.
    ///
    /// # Panics
    ///
    /// If there is no such record.
    pub fn load(&self, position: usize) -> Result<LoadedPicture<'a>, PictureError> {
        let record = &self.records[position];
        let picture = self.preparation.apply(&record.identity, &record.read(&self.limits)?)?;
        Ok(LoadedPicture { position, record, picture })
    }

    /// The next picture nobody has taken; after a fatal error there is none.
    pub fn take_next(&self) -> Option<Result<LoadedPicture<'a>, PictureError>> {
        loop {
            let position = self
                .next
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                    (next < self.records.len()).then_some(next + 1)
                })
                .ok()?;
            match (self.load(position), self.broken) {
                (Ok(loaded), _) => return Some(Ok(loaded)),
                (Err(error), BrokenPictures::Fatal) => {
                    self.next.store(self.records.len(), Ordering::Relaxed);
                    return Some(Err(error));
                }
                (Err(error), BrokenPictures::Skip) => {
                    let identity = self.records[position].identity.clone();
                    let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
                    skipped.push(SkippedPicture { position, identity, error });
                }
            }
        }
    }

    /// How many pictures were left out so far.
    pub fn skipped_count(&self) -> usize {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The pictures that were left out, in the order of the records.
    pub fn into_skipped(self) -> Vec<SkippedPicture> {
        let mut skipped = self.skipped.into_inner().unwrap_or_else(PoisonError::into_inner);
        skipped.sort_by_key(|picture| picture.position);
        skipped
    }
}

/// Iterates over what is left of a shared [`Loader`].
#[derive(Debug)]
pub struct Loading<'loader, 'a>(&'loader Loader<'a>);

impl<'a> Iterator for Loading<'_, 'a> {
    type Item = Result<LoadedPicture<'a>, PictureError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take_next()
    }
}

impl<'loader, 'a> IntoIterator for &'loader Loader<'a> {
    type Item = Result<LoadedPicture<'a>, PictureError>;
    type IntoIter = Loading<'loader, 'a>;

    fn into_iter(self) -> Loading<'loader, 'a> {
        Loading(self)
    }
}
