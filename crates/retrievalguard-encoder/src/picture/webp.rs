//! WebP, reduced to 8-bit RGB as Pillow does it.

use std::io::Cursor;

use super::{Colours, Decoded, Fault, PictureLimits};

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
    // The decoder takes memory for the size that the frame itself gives, whatever the canvas and the limit say.
    for (frame_width, frame_height) in frame_sizes(&bytes[12..]) {
        if frame_width > width || frame_height > height {
            return Err(Fault::broken(format!(
                "its frame has {frame_width}x{frame_height} pixels on a canvas of {width}x{height}"
            )));
        }
    }
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
    Ok(Decoded { width: width as usize, height: height as usize, pixels, colours: Colours::Rgb, exif })
}

/// Sizes that the frames among the chunks announce, those of animations included.
fn frame_sizes(mut chunks: &[u8]) -> Vec<(u32, u32)> {
    let mut sizes = Vec::new();
    while let Some((name, rest)) = chunks.split_first_chunk::<4>()
        && let Some((length, rest)) = rest.split_first_chunk::<4>()
    {
        let length = u32::from_le_bytes(*length) as usize;
        let mut step = length.next_multiple_of(2);
        match (name, &rest[..length.min(rest.len())]) {
            (b"VP8 ", [_, _, _, 0x9D, 0x01, 0x2A, width_low, width_high, height_low, height_high, ..]) => {
                let side = |low: u8, high: u8| u32::from(u16::from_le_bytes([low, high]) & 0x3FFF);
                sizes.push((side(*width_low, *width_high), side(*height_low, *height_high)));
            }
            (b"VP8L", [0x2F, first, second, third, fourth, ..]) => {
                let bits = u32::from_le_bytes([*first, *second, *third, *fourth]);
                sizes.push(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1));
            }
            // A frame of an animation holds chunks of its own, behind sixteen bytes.
            (b"ANMF", _) => step = 16,
            (_, _) => {}
        }
        chunks = rest.get(step..).unwrap_or_default();
    }
    sizes
}
