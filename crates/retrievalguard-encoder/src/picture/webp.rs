//! WebP, reduced to 8-bit RGB as Pillow does it.

use std::io::Cursor;

use super::{Decoded, Fault, PictureLimits};

/// Decodes a whole file.
pub(super) fn decode(bytes: &[u8], limits: &PictureLimits) -> Result<Decoded, Fault> {
    let fault = |error: image_webp::DecodingError| match error {
        image_webp::DecodingError::MemoryLimitExceeded => {
            Fault::Memory { needed: limits.bytes.saturating_add(1), limit: limits.bytes }
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
