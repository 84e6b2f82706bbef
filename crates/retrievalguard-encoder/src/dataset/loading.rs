//! How a picture of a data set is read.

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
