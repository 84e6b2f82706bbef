//! How a picture of a data set is read.

use std::borrow::Cow;

use retrievalguard::storage::manifest::FileRecord;

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

    /// The same, if its bytes are those that were found before.
    pub(super) fn read_as(
        &self,
        before: Option<Option<FileRecord>>,
        limits: &PictureLimits,
    ) -> Result<RgbPicture, PictureError> {
        let bytes = self.bytes_as(before, limits.bytes)?;
        let whole = match &self.source {
            PictureSource::File(path) => RgbPicture::from_bytes(&path.display().to_string(), &bytes, limits)?,
            PictureSource::Grey { width, height, .. } => {
                RgbPicture::from_grey(&self.identity, *width, *height, &bytes)?
            }
        };
        match self.crop {
            Some(crop) => whole.cropped(&self.identity, crop),
            None => Ok(whole),
        }
    }

    /// The bytes of the picture, of a file at most one more than the limit, if they are those that were found `before`:
    /// none inside if the file could not be read then.
    pub(super) fn bytes_as(
        &self,
        before: Option<Option<FileRecord>>,
        limit: u64,
    ) -> Result<Cow<'_, [u8]>, PictureError> {
        let path = match &self.source {
            PictureSource::Grey { pixels, .. } => return Ok(Cow::Borrowed(pixels)),
            PictureSource::File(path) => path,
        };
        let read = RgbPicture::read_file(path, limit);
        if let Some(wanted) = before {
            let found = match &read {
                Err(_) => None,
                // Only its beginning was read.
                Ok(bytes) if bytes.len() as u64 > limit => FileRecord::of_file(path).ok(),
                Ok(bytes) => Some(FileRecord::of_bytes(bytes)),
            };
            if found != wanted {
                let (found, wanted) = (sha256(found), sha256(wanted));
                return Err(PictureError::Changed { picture: path.display().to_string(), found, wanted });
            }
        }
        read.map(Cow::Owned)
    }
}

fn sha256(record: Option<FileRecord>) -> String {
    match record {
        Some(FileRecord { sha256, .. }) => format!("sha256 {sha256:.16}…"),
        None => "nothing that can be read".to_owned(),
    }
}
