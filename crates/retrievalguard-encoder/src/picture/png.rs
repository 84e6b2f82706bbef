//! PNG, reduced to 8-bit RGB as Pillow does it.

use std::io::Cursor;

use super::{Colours, Decoded, Fault, PictureLimits};

/// Bytes that one byte of a deflate stream can encode.
const MOST_UNFOLDED: u64 = 1_032;

/// Decodes a whole file.
pub(super) fn decode(bytes: &[u8], limits: &PictureLimits) -> Result<Decoded, Fault> {
    let fault = |error: png::DecodingError| match error {
        png::DecodingError::LimitsExceeded => {
            Fault::Memory { needed: limits.bytes.saturating_add(1), limit: limits.bytes }
        }
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
    let bits = depth as u64 * colour.samples() as u64 * u64::from(width) * u64::from(height);
    super::admit_content(width.into(), height.into(), bits / 8 / MOST_UNFOLDED, bytes.len())?;
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
    // A palette was expanded to what it holds, colours or grey; a pixel of it is an index.
    let grey = matches!(colour, png::ColorType::Grayscale | png::ColorType::GrayscaleAlpha);
    let colours = if grey { Colours::Grey } else { Colours::Rgb };
    // The orientation may stand after the pixels; damage there costs nothing but the orientation.
    let _ = reader.finish();
    let exif = reader.info().exif_metadata.as_ref().map(|exif| exif.to_vec());
    let (width, height) = (frame.width as usize, frame.height as usize);
    if pixels.len() != width * height * 3 {
        return Err(Fault::broken("it has too few pixels"));
    }
    Ok(Decoded { width, height, pixels, colours, exif })
}
