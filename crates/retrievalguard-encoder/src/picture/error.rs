use super::{PictureFormat, PixelBox};

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
    /// Its bytes are not those that the run began with.
    #[error("picture `{picture}` was changed after the run began: found {found}, wanted {wanted}")]
    Changed {
        /// Path of the picture.
        picture: String,
        /// The digest of its bytes, or that it cannot be read.
        found: String,
        /// The same as it was when the run began.
        wanted: String,
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
    #[error("picture `{picture}` needs at least {needed} bytes of memory, wanted at most {limit}")]
    Memory {
        /// Name of the picture.
        picture: String,
        /// Bytes needed at least.
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
