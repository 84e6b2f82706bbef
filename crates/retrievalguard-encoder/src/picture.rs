//! From the bytes of a picture to 8-bit RGB, the way Pillow's `Image.open(path).convert("RGB")` does it.
//!
//! JPEG, PNG and WebP in grey, colour, palette, with and without transparency (which is dropped, not blended), 8 or 16
//! bits; the EXIF orientation is applied as `PIL.ImageOps.exif_transpose` applies it. Nothing is allocated before the
//! header's size has passed [`PictureLimits`].
//!
//! The pixels must be Pillow's: an exported encoder was trained on them. The greatest difference in 1/255 of any decoded
//! value from Pillow 13 (libjpeg-turbo 3.2), on JPEGs of `tests/reference/pictures`:
//!
//! | decoder | pictures | difference | if wider than 3 pixels |
//! |---|---|---|---|
//! | this module | all | 0 | 0 |
//! | zune-jpeg 0.5.15 | 32 | 29 | 4 |
//! | jpeg-decoder 0.3.2 | 32 | 29 | 4 |
//!
//! Hence the module's own JPEG decoder: the crates round the cosine transform and spread chroma differently from libjpeg.

mod error;
mod exif;
mod jpeg;
mod png;
mod webp;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use self::error::PictureError;

/// A file format of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// JPEG, sequential or progressive.
    Jpeg,
    /// Portable Network Graphics.
    Png,
    /// WebP, lossy or lossless.
    WebP,
}

impl PictureFormat {
    /// The format that the first bytes announce.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            _ => None,
        }
    }

    /// Whether the file's name ends like a picture of one of the formats.
    pub(crate) fn has_picture_name(path: &Path) -> bool {
        path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| {
            ["jpg", "jpeg", "png", "webp"].iter().any(|known| ending.eq_ignore_ascii_case(known))
        })
    }
}

impl std::fmt::Display for PictureFormat {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        })
    }
}

/// What a picture may cost before it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureLimits {
    /// Pixels, by the header.
    pub pixels: u64,
    /// Bytes of memory for the file, the decoder and the pixels, each.
    pub bytes: u64,
}

impl Default for PictureLimits {
    /// 100 million pixels and 1 GiB.
    fn default() -> Self {
        Self { pixels: 100_000_000, bytes: 1 << 30 }
    }
}

impl PictureLimits {
    fn admit(&self, width: u64, height: u64) -> Result<(), Fault> {
        match width.checked_mul(height) {
            Some(pixels) if (1..=self.pixels).contains(&pixels) => Ok(()),
            _ => Err(Fault::PixelCount { width, height, limit: self.pixels }),
        }
    }

    fn admit_bytes(&self, needed: u64) -> Result<(), Fault> {
        if needed > self.bytes {
            return Err(Fault::Memory { needed, limit: self.bytes });
        }
        Ok(())
    }
}

/// A failure that does not know the picture's name yet.
#[derive(Debug)]
enum Fault {
    Broken(String),
    Unsupported(String),
    PixelCount { width: u64, height: u64, limit: u64 },
    Memory { needed: u64, limit: u64 },
}

impl Fault {
    fn broken(reason: impl Into<String>) -> Self {
        Self::Broken(reason.into())
    }

    fn unsupported(feature: impl Into<String>) -> Self {
        Self::Unsupported(feature.into())
    }

    fn named(self, picture: &str, format: PictureFormat) -> PictureError {
        let picture = picture.to_owned();
        match self {
            Self::Broken(reason) => PictureError::Broken { picture, format, reason },
            Self::Unsupported(feature) => PictureError::Unsupported { picture, format, feature },
            Self::PixelCount { width, height, limit } => {
                PictureError::PixelCount { picture, width, height, limit }
            }
            Self::Memory { needed, limit } => PictureError::Memory { picture, needed, limit },
        }
    }
}

/// Refuses a header that announces more pixels than so few bytes can hold, before memory is taken for them.
fn admit_content(width: u64, height: u64, least: u64, found: usize) -> Result<(), Fault> {
    if least > found as u64 {
        return Err(Fault::broken(format!(
            "its header announces {width}x{height} pixels, which take at least {least} bytes, and it has {found}"
        )));
    }
    Ok(())
}

/// What a decoder returns.
struct Decoded {
    width: usize,
    height: usize,
    /// Interleaved RGB.
    pixels: Vec<u8>,
    colours: Colours,
    exif: Option<Vec<u8>>,
}

/// How many numbers a pixel of the file has, whatever it is decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// One: the three channels are equal and change together.
    Grey,
    /// Three, or what becomes three on the way (palettes, CMYK).
    Rgb,
}

/// A rectangle of pixels; `right` and `bottom` are just outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelBox {
    /// First column.
    pub left: usize,
    /// First row.
    pub top: usize,
    /// One beyond the last column.
    pub right: usize,
    /// One beyond the last row.
    pub bottom: usize,
}

/// A decoded picture: 8-bit RGB, upright, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbPicture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    colours: Colours,
}

impl RgbPicture {
    /// Takes over interleaved RGB pixels; `picture` is the name that an error gives.
    pub fn new(picture: &str, width: usize, height: usize, pixels: Vec<u8>) -> Result<Self, PictureError> {
        let wanted = width.saturating_mul(height).saturating_mul(3);
        if pixels.len() != wanted || wanted == 0 {
            let picture = picture.to_owned();
            return Err(PictureError::PixelBytes { picture, width, height, found: pixels.len(), wanted });
        }
        Ok(Self { width, height, pixels, colours: Colours::Rgb })
    }

    /// Makes a picture of grey pixels, one byte each.
    pub fn from_grey(picture: &str, width: usize, height: usize, grey: &[u8]) -> Result<Self, PictureError> {
        let whole = Self::new(picture, width, height, grey.iter().flat_map(|&level| [level; 3]).collect())?;
        Ok(Self { colours: Colours::Grey, ..whole })
    }

    /// Reads a file.
    pub fn from_path(path: &Path, limits: &PictureLimits) -> Result<Self, PictureError> {
        Self::from_bytes(&path.display().to_string(), &Self::read_file(path, limits.bytes)?, limits)
    }

    /// The bytes of a file, one more than allowed at most.
    pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, PictureError> {
        let read = || {
            let mut bytes = Vec::new();
            File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|source| PictureError::Read { picture: path.display().to_string(), source })
    }

    /// Decodes a file that is in memory; `picture` is the name that an error gives.
    pub fn from_bytes(picture: &str, bytes: &[u8], limits: &PictureLimits) -> Result<Self, PictureError> {
        let Some(format) = PictureFormat::of(bytes) else {
            return Err(PictureError::UnknownFormat { picture: picture.to_owned(), found: beginning(bytes) });
        };
        let decoded = limits.admit_bytes(bytes.len() as u64).and_then(|()| match format {
            PictureFormat::Jpeg => jpeg::decode(bytes, limits),
            PictureFormat::Png => png::decode(bytes, limits),
            PictureFormat::WebP => webp::decode(bytes, limits),
        });
        let Decoded { width, height, pixels, colours, exif } =
            decoded.map_err(|fault| fault.named(picture, format))?;
        let upright = Self { width, height, pixels, colours };
        Ok(match exif.as_deref().and_then(exif::orientation) {
            Some(orientation) => upright.turned(orientation),
            None => upright,
        })
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// How many numbers a pixel of the file has.
    pub fn colours(&self) -> Colours {
        self.colours
    }

    /// Interleaved RGB, row by row.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The part inside the box, which is cut off at the picture's edges; `picture` is the name that an error gives.
    pub fn cropped(&self, picture: &str, crop: PixelBox) -> Result<Self, PictureError> {
        let (right, bottom) = (crop.right.min(self.width), crop.bottom.min(self.height));
        if crop.left >= right || crop.top >= bottom {
            let picture = picture.to_owned();
            return Err(PictureError::Box { picture, width: self.width, height: self.height, crop });
        }
        let (width, height) = (right - crop.left, bottom - crop.top);
        let mut pixels = Vec::with_capacity(width * height * 3);
        for row in crop.top..bottom {
            let start = (row * self.width + crop.left) * 3;
            pixels.extend_from_slice(&self.pixels[start..start + width * 3]);
        }
        Ok(Self { width, height, pixels, colours: self.colours })
    }

    /// Applies an EXIF orientation, 1 to 8.
    fn turned(self, orientation: u8) -> Self {
        if orientation <= 1 {
            return self;
        }
        let (last_column, last_row) = (self.width - 1, self.height - 1);
        let (width, height) =
            if orientation >= 5 { (self.height, self.width) } else { (self.width, self.height) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for row in 0..height {
            for column in 0..width {
                let (from_row, from_column) = match orientation {
                    2 => (row, last_column - column),
                    3 => (last_row - row, last_column - column),
                    4 => (last_row - row, column),
                    5 => (column, row),
                    6 => (last_row - column, row),
                    7 => (last_row - column, last_column - row),
                    _ => (column, last_column - row),
                };
                let start = (from_row * self.width + from_column) * 3;
                pixels.extend_from_slice(&self.pixels[start..start + 3]);
            }
        }
        Self { width, height, pixels, colours: self.colours }
    }
}

/// The first bytes of a file, for people.
fn beginning(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (it is empty)".to_owned();
    }
    let shown: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("bytes {}", shown.join(" "))
}

#[cfg(test)]
mod tests;
