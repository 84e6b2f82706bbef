//! How a picture of a data set is read.

use retrievalguard::storage::digest::Digest;

use super::{PictureSource, Record};
use crate::picture::{PictureError, PictureLimits, RgbPicture};

/// What to do about a picture that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BrokenPictures {
    /// The first one ends the loading.
    #[default]
    Fatal,
    /// It is left out and listed.
    Skip,
}

impl Record {
    /// Decodes the picture and cuts out its box.
    pub fn read(&self, limits: &PictureLimits) -> Result<RgbPicture, PictureError> {
        self.read_as(None, limits)
    }

    /// The same, if the bytes of the file have the digest that was found before, none for a file that could not be read.
    pub(super) fn read_as(
        &self,
        found_before: Option<&Option<Digest>>,
        limits: &PictureLimits,
    ) -> Result<RgbPicture, PictureError> {
        let whole = match &self.source {
            PictureSource::File(path) => {
                let (picture, bytes) = (path.display().to_string(), RgbPicture::read_file(path, limits)?);
                // Bytes beyond the limit were not read; the decoder refuses the rest.
                if let Some(before) = found_before.filter(|_| bytes.len() as u64 <= limits.bytes) {
                    let found = Digest::of_bytes(&bytes);
                    if *before != Some(found) {
                        let wanted = before.map_or("none".to_owned(), |wanted| format!("{wanted:.16}…"));
                        return Err(PictureError::Changed { picture, found, wanted });
                    }
                }
                RgbPicture::from_bytes(&picture, &bytes, limits)?
            }
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
