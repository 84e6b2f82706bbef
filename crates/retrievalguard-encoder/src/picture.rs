//! From the bytes of a picture to 8-bit RGB, the way Pillow's `Image.open(path).convert("RGB")` does it.
//!
//! JPEG, PNG and WebP in grey, colour, palette, with and without transparency (which is dropped, not blended), 8 or 16
//! bits; the EXIF orientation is applied as `PIL.ImageOps.exif_transpose` applies it. Nothing is allocated before the
//! header's size has passed [`PictureLimits`].
//!
//! The pixels must be Pillow's: an exported encoder was trained on them. Measured on the pictures of
//! `tests/reference/pictures` against Pillow 13 (libjpeg-turbo 3.2), the greatest difference in 1/255 of any decoded value:
//!
//! | decoder | all pictures | wider than 3 pixels |
//! |---|---|---|
//! | this module | 0 | 0 |
//! | zune-jpeg 0.5.15 | 29 | 4 |
//! | jpeg-decoder 0.3.2 | 29 | 4 |
//!
//! Hence the module's own JPEG decoder: the crates round the cosine transform and spread chroma differently from libjpeg.

mod exif;
mod jpeg;

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

/// Why a picture was not read; every variant names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The file could not be opened or read.
    #[error("picture `{picture}` cannot be read")]
    Read {
        /// Path of the picture.
        picture: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The first bytes belong to none of the formats.
    #[error("picture `{picture}` begins with {found}, wanted a JPEG, PNG or WebP file")]
    UnknownFormat {
        /// Name of the picture.
        picture: String,
        /// Its first bytes.
        found: String,
    },
    /// The header claims more pixels than allowed, or none.
    #[error("picture `{picture}` claims {width} × {height} pixels, wanted between 1 and {limit}")]
    PixelCount {
        /// Name of the picture.
        picture: String,
        /// Claimed width.
        width: u64,
        /// Claimed height.
        height: u64,
        /// The most pixels allowed.
        limit: u64,
    },
    /// Reading it would take more memory than allowed.
    #[error("picture `{picture}` needs {needed} bytes of memory, allowed are {limit}")]
    Memory {
        /// Name of the picture.
        picture: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The file is damaged.
    #[error("picture `{picture}` is a broken {format} file: {reason}")]
    Broken {
        /// Name of the picture.
        picture: String,
        /// The format its first bytes announce.
        format: PictureFormat,
        /// What is wrong.
        reason: String,
    },
    /// The file is sound as far as it was read, but uses a feature that is not read here.
    #[error("picture `{picture}` is a {format} file with {feature}, which is not supported")]
    Unsupported {
        /// Name of the picture.
        picture: String,
        /// Its format.
        format: PictureFormat,
        /// The feature.
        feature: String,
    },
    /// A crop box has no area within the picture.
    #[error(
        "picture `{picture}` has {width} × {height} pixels, its box is ({}, {}) to ({}, {}), wanted a box inside",
        crop.left, crop.top, crop.right, crop.bottom
    )]
    Box {
        /// Name of the picture.
        picture: String,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// The offending box.
        crop: PixelBox,
    },
    /// Pixels handed over do not make up a picture.
    #[error("picture `{picture}` has {found} bytes, wanted {wanted} for {width} × {height} pixels")]
    PixelBytes {
        /// Name of the picture.
        picture: String,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Bytes handed over.
        found: usize,
        /// Bytes that would fit.
        wanted: usize,
    },
    /// The picture cannot be brought to the size asked for.
    #[error(
        "picture `{picture}` would have {width} × {height} pixels when prepared, wanted between 1 and {limit}"
    )]
    ResizedSize {
        /// Name of the picture.
        picture: String,
        /// Width it would have.
        width: u64,
        /// Height it would have.
        height: u64,
        /// The most pixels allowed.
        limit: u64,
    },
}

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
    pub fn has_picture_name(path: &Path) -> bool {
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

/// What a decoder returns.
struct Decoded {
    width: usize,
    height: usize,
    /// Interleaved RGB.
    pixels: Vec<u8>,
    exif: Option<Vec<u8>>,
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
}

impl RgbPicture {
    /// Takes over interleaved RGB pixels; `picture` is the name that an error gives.
    pub fn new(picture: &str, width: usize, height: usize, pixels: Vec<u8>) -> Result<Self, PictureError> {
        let wanted = width.saturating_mul(height).saturating_mul(3);
        if pixels.len() != wanted || wanted == 0 {
            let picture = picture.to_owned();
            return Err(PictureError::PixelBytes { picture, width, height, found: pixels.len(), wanted });
        }
        Ok(Self { width, height, pixels })
    }

    /// Makes a picture of grey pixels, one byte each.
    pub fn from_grey(picture: &str, width: usize, height: usize, grey: &[u8]) -> Result<Self, PictureError> {
        Self::new(picture, width, height, grey.iter().flat_map(|&level| [level; 3]).collect())
    }

    /// Reads a file.
    pub fn from_path(path: &Path, limits: &PictureLimits) -> Result<Self, PictureError> {
        let picture = path.display().to_string();
        let read = || {
            let mut bytes = Vec::new();
            File::open(path)?.take(limits.bytes.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| PictureError::Read { picture: picture.clone(), source })?;
        Self::from_bytes(&picture, &bytes, limits)
    }

    /// Decodes a file that is in memory; `picture` is the name that an error gives.
    pub fn from_bytes(picture: &str, bytes: &[u8], limits: &PictureLimits) -> Result<Self, PictureError> {
        let Some(format) = PictureFormat::of(bytes) else {
            return Err(PictureError::UnknownFormat { picture: picture.to_owned(), found: beginning(bytes) });
        };
        let decoded = limits.admit_bytes(bytes.len() as u64).and_then(|()| match format {
            PictureFormat::Jpeg => jpeg::decode(bytes, limits),
            PictureFormat::Png => decode_png(bytes, limits),
            PictureFormat::WebP => decode_webp(bytes, limits),
        });
        let Decoded { width, height, pixels, exif } =
            decoded.map_err(|fault| fault.named(picture, format))?;
        let upright = Self { width, height, pixels };
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
        Ok(Self { width, height, pixels })
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
        Self { width, height, pixels }
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

fn decode_png(bytes: &[u8], limits: &PictureLimits) -> Result<Decoded, Fault> {
    let fault = |error: png::DecodingError| match error {
        png::DecodingError::LimitsExceeded => Fault::Memory { needed: limits.bytes + 1, limit: limits.bytes },
        other => Fault::Broken(other.to_string()),
    };
    let memory = usize::try_from(limits.bytes).unwrap_or(usize::MAX);
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: memory });
    // Colour profiles and texts are of no use here, and a compressed one may be a bomb of its own.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(fault)?;
    let (width, height, depth) = (header.width, header.height, header.bit_depth);
    let colour = header.color_type;
    limits.admit(u64::from(width), u64::from(height))?;
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(fault)?;
    let needed = reader.output_buffer_size().ok_or_else(|| Fault::broken("its size overflows"))?;
    limits.admit_bytes(needed as u64 + 3 * u64::from(width) * u64::from(height))?;
    let mut samples = vec![0; needed];
    let frame = reader.next_frame(&mut samples).map_err(fault)?;
    samples.truncate(frame.buffer_size());
    if depth == png::BitDepth::Sixteen {
        // Pillow keeps the upper byte, except that it clips plain 16-bit grey at 255.
        let clips = colour == png::ColorType::Grayscale;
        let narrow = |&[high, low]: &[u8; 2]| {
            if clips && high > 0 {
                255
            } else if clips {
                low
            } else {
                high
            }
        };
        samples = samples.as_chunks::<2>().0.iter().map(narrow).collect();
    }
    let pixels: Vec<u8> = match frame.color_type {
        png::ColorType::Grayscale => samples.iter().flat_map(|&level| [level; 3]).collect(),
        png::ColorType::GrayscaleAlpha => {
            samples.as_chunks::<2>().0.iter().flat_map(|pixel| [pixel[0]; 3]).collect()
        }
        png::ColorType::Rgba => {
            samples.as_chunks::<4>().0.iter().flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
        }
        png::ColorType::Rgb => samples,
        png::ColorType::Indexed => return Err(Fault::broken("its palette is missing")),
    };
    // The orientation may stand after the pixels; damage there costs nothing but the orientation.
    let _ = reader.finish();
    let exif = reader.info().exif_metadata.as_ref().map(|exif| exif.to_vec());
    let (width, height) = (frame.width as usize, frame.height as usize);
    if pixels.len() != width * height * 3 {
        return Err(Fault::broken("it has too few pixels"));
    }
    Ok(Decoded { width, height, pixels, exif })
}

fn decode_webp(bytes: &[u8], limits: &PictureLimits) -> Result<Decoded, Fault> {
    let fault = |error: image_webp::DecodingError| match error {
        image_webp::DecodingError::MemoryLimitExceeded => {
            Fault::Memory { needed: limits.bytes + 1, limit: limits.bytes }
        }
        other => Fault::Broken(other.to_string()),
    };
    // The decoder reads past a missing end as if it were zeros.
    let size = bytes.get(4..).and_then(|rest| rest.first_chunk::<4>());
    let announced = size.map_or(u64::MAX, |size| u64::from(u32::from_le_bytes(*size)) + 8);
    if announced > bytes.len() as u64 {
        let found = bytes.len();
        return Err(Fault::broken(format!(
            "it has {found} bytes of the {announced} that its header announces"
        )));
    }
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(fault)?;
    let (width, height) = decoder.dimensions();
    limits.admit(u64::from(width), u64::from(height))?;
    decoder.set_memory_limit(usize::try_from(limits.bytes).unwrap_or(usize::MAX));
    let needed = decoder.output_buffer_size().ok_or_else(|| Fault::broken("its size overflows"))?;
    // The decoder holds four bytes per pixel of its own beside the output.
    limits.admit_bytes(needed as u64 + 4 * u64::from(width) * u64::from(height))?;
    let mut samples = vec![0; needed];
    let clear = decoder.has_alpha();
    decoder.read_image(&mut samples).map_err(fault)?;
    let pixels = if clear {
        samples.as_chunks::<4>().0.iter().flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
    } else {
        samples
    };
    let exif = decoder.exif_metadata().ok().flatten();
    Ok(Decoded { width: width as usize, height: height as usize, pixels, exif })
}

#[cfg(test)]
mod tests;
