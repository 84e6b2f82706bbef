//! JPEG, decoded to the same bytes as libjpeg-turbo with its default settings, which is what Pillow uses.
//!
//! Sequential and progressive Huffman coding with 8 bits per sample; arithmetic coding, 12 bits and lossless JPEG are
//! refused by name. Unlike libjpeg, which guesses on, this decoder answers damaged pixels with an error, and it does
//! not smooth the blocks of a progressive file whose later scans were left out.

mod colour;
mod huffman;
mod scan;
mod transform;

use self::colour::ColourModel;
use self::huffman::HuffmanTable;
use self::scan::{ScanHeader, ZIGZAG};
use super::{Colours, Decoded, Fault, PictureLimits};

/// More scans than any writer makes; each costs a pass over the picture.
const MOST_SCANS: usize = 256;

/// One of the planes a picture is made of.
struct Component {
    identifier: u8,
    /// Sampling factors.
    across: usize,
    down: usize,
    /// Size in samples, without padding.
    width: usize,
    height: usize,
    /// Samples per stored row, a multiple of eight.
    stride: usize,
    /// Stored rows, a multiple of eight.
    stored_height: usize,
    quantiser_index: usize,
    /// The table as it was when the component's first scan began.
    quantiser: Option<[u16; 64]>,
    plane: Vec<u8>,
    /// Of a progressive picture, 64 for each block.
    coefficients: Vec<i16>,
    scanned: bool,
}

impl Component {
    fn row(&self, row: usize) -> &[u8] {
        &self.plane[row * self.stride..row * self.stride + self.width]
    }
}

struct Frame {
    width: usize,
    height: usize,
    progressive: bool,
    components: Vec<Component>,
    /// Interleaved coding units.
    units_across: usize,
    units_down: usize,
}

#[derive(Default)]
struct Tables {
    quantisers: [Option<Box<[u16; 64]>>; 4],
    first_codes: [Option<HuffmanTable>; 4],
    other_codes: [Option<HuffmanTable>; 4],
    restart_interval: usize,
}

fn short() -> Fault {
    Fault::broken("one of its headers is too short")
}

impl Tables {
    fn read_quantisers(&mut self, mut segment: &[u8]) -> Result<(), Fault> {
        while let Some((&kind, rest)) = segment.split_first() {
            let bytes_each = usize::from(kind >> 4) + 1;
            let slot = self.quantisers.get_mut(usize::from(kind & 15)).ok_or_else(short)?;
            if bytes_each > 2 || rest.len() < 64 * bytes_each {
                return Err(short());
            }
            let mut table = Box::new([0; 64]);
            for (value, &position) in rest.chunks_exact(bytes_each).zip(&ZIGZAG) {
                table[position] = value.iter().fold(0, |sum, &byte| sum << 8 | u16::from(byte));
            }
            *slot = Some(table);
            segment = &rest[64 * bytes_each..];
        }
        Ok(())
    }

    fn read_codes(&mut self, mut segment: &[u8]) -> Result<(), Fault> {
        while let Some((&kind, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(short)?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let symbols = rest.get(..total).ok_or_else(short)?;
            let group = if kind >> 4 == 0 { &mut self.first_codes } else { &mut self.other_codes };
            let slot = group.get_mut(usize::from(kind & 15)).ok_or_else(short)?;
            if kind >> 4 > 1 || total > 256 {
                return Err(Fault::broken("a Huffman table has an impossible header"));
            }
            *slot = Some(HuffmanTable::new(counts, symbols)?);
            segment = &rest[total..];
        }
        Ok(())
    }
}

fn read_frame(
    segment: &[u8],
    progressive: bool,
    file_bytes: usize,
    limits: &PictureLimits,
) -> Result<Frame, Fault> {
    let [precision, height_high, height_low, width_high, width_low, count, specifications @ ..] = segment
    else {
        return Err(short());
    };
    let width = usize::from(u16::from_be_bytes([*width_high, *width_low]));
    let height = usize::from(u16::from_be_bytes([*height_high, *height_low]));
    if *precision != 8 {
        return Err(Fault::unsupported(format!("{precision} bits per sample")));
    }
    if !matches!(count, 1 | 3 | 4) {
        return Err(Fault::unsupported(format!("{count} colour components")));
    }
    if specifications.len() < 3 * usize::from(*count) {
        return Err(short());
    }
    limits.admit(width as u64, height as u64)?;
    let factors: Vec<(usize, usize)> = specifications
        .chunks_exact(3)
        .take(usize::from(*count))
        .map(|specification| (usize::from(specification[1] >> 4), usize::from(specification[1] & 15)))
        .collect();
    if factors.iter().any(|&(across, down)| !(1..=4).contains(&across) || !(1..=4).contains(&down)) {
        return Err(Fault::broken("a sampling factor is not between 1 and 4"));
    }
    let most_across = factors.iter().map(|&(across, _)| across).max().unwrap_or(1);
    let most_down = factors.iter().map(|&(_, down)| down).max().unwrap_or(1);
    if factors.iter().any(|&(across, down)| most_across % across != 0 || most_down % down != 0) {
        return Err(Fault::unsupported("fractional sampling factors"));
    }
    let units_across = width.div_ceil(8 * most_across);
    let units_down = height.div_ceil(8 * most_down);
    // Every block takes a bit of the scan that has its mean, at the least.
    let blocks_of = |&(across, down): &(usize, usize)| {
        let columns = (width * across).div_ceil(most_across).div_ceil(8);
        (columns * (height * down).div_ceil(most_down).div_ceil(8)) as u64
    };
    let blocks: u64 = factors.iter().map(blocks_of).sum();
    super::admit_content(width as u64, height as u64, blocks / 8, file_bytes)?;
    let bytes_per_sample = if progressive { 3 } else { 1 };
    let samples: u64 =
        factors.iter().map(|&(across, down)| (units_across * across * units_down * down * 64) as u64).sum();
    limits.admit_bytes(samples * bytes_per_sample + 3 * (width * height) as u64)?;
    let components = specifications
        .chunks_exact(3)
        .zip(factors)
        .map(|(specification, (across, down))| {
            let stride = units_across * across * 8;
            let stored_height = units_down * down * 8;
            Component {
                identifier: specification[0],
                across,
                down,
                width: (width * across).div_ceil(most_across),
                height: (height * down).div_ceil(most_down),
                stride,
                stored_height,
                quantiser_index: usize::from(specification[2] & 3),
                quantiser: None,
                plane: vec![0; stride * stored_height],
                coefficients: if progressive { vec![0; stride * stored_height] } else { Vec::new() },
                scanned: false,
            }
        })
        .collect();
    Ok(Frame { width, height, progressive, components, units_across, units_down })
}

fn read_scan_header(segment: &[u8], frame: &Frame) -> Result<ScanHeader, Fault> {
    let (&count, rest) = segment.split_first().ok_or_else(short)?;
    let count = usize::from(count);
    if !(1..=4).contains(&count) || rest.len() < 2 * count + 3 {
        return Err(short());
    }
    let mut members: Vec<(usize, usize, usize)> = Vec::with_capacity(count);
    for specification in rest[..2 * count].chunks_exact(2) {
        let member = frame
            .components
            .iter()
            .position(|component| component.identifier == specification[0])
            .filter(|&member| members.iter().all(|&(other, _, _)| other != member))
            .ok_or_else(|| Fault::broken("a scan names a component that the frame does not have"))?;
        members.push((member, usize::from(specification[1] >> 4 & 3), usize::from(specification[1] & 3)));
    }
    let (mut band, mut high, mut low) = ((0, 63), 0, 0);
    if frame.progressive {
        let [first, last, approximation] = [rest[2 * count], rest[2 * count + 1], rest[2 * count + 2]];
        band = (usize::from(first), usize::from(last));
        (high, low) = (u32::from(approximation >> 4), u32::from(approximation & 15));
        let sound = if band.0 == 0 { band.1 == 0 } else { band.0 <= band.1 && band.1 < 64 && count == 1 };
        if !sound || low > 13 || (high != 0 && high != low + 1) {
            return Err(Fault::broken("a progressive scan has an impossible header"));
        }
    }
    Ok(ScanHeader { members, band, high, low })
}

fn colour_model(frame: &Frame, jfif: bool, adobe: Option<u8>) -> ColourModel {
    let identifiers: Vec<u8> = frame.components.iter().map(|component| component.identifier).collect();
    match (identifiers.len(), adobe) {
        (1, _) => ColourModel::Grey,
        (4, Some(2)) => ColourModel::Ycck,
        (4, _) => ColourModel::Cmyk,
        (_, _) if jfif => ColourModel::YCbCr,
        (_, Some(0)) => ColourModel::Rgb,
        (_, None) if identifiers == *b"RGB" => ColourModel::Rgb,
        (_, _) => ColourModel::YCbCr,
    }
}

/// The next marker at or after `position`, and where its segment begins; anything between is stepped over.
fn next_marker(bytes: &[u8], mut position: usize) -> Option<(u8, usize)> {
    loop {
        let byte = *bytes.get(position)?;
        let code = *bytes.get(position + 1)?;
        if byte == 0xFF && code != 0 && code != 0xFF {
            return Some((code, position + 2));
        }
        position += 1;
    }
}

/// Decodes a whole file.
pub(super) fn decode(bytes: &[u8], limits: &PictureLimits) -> Result<Decoded, Fault> {
    let mut tables = Tables::default();
    let mut frame: Option<Frame> = None;
    let (mut jfif, mut adobe, mut exif) = (false, None, None);
    let mut scans = 0;
    let mut position = 2;
    loop {
        let Some((marker, start)) = next_marker(bytes, position) else {
            // A sequential picture is whole once every component is there, even without its end marker.
            match &frame {
                Some(frame) if !frame.progressive && frame.components.iter().all(|part| part.scanned) => {
                    break;
                }
                _ => return Err(Fault::broken("it ends before its last marker")),
            }
        };
        position = start;
        match marker {
            0xD9 => break,
            0x01 | 0xD0..=0xD8 => continue,
            _ => {}
        }
        let length =
            bytes.get(start..start + 2).map_or(0, |size| usize::from(u16::from_be_bytes([size[0], size[1]])));
        let segment = bytes
            .get(start + 2..start + length)
            .filter(|_| length >= 2)
            .ok_or_else(|| Fault::broken("it ends within a header"))?;
        position = start + length;
        match marker {
            0xDB => tables.read_quantisers(segment)?,
            0xC4 => tables.read_codes(segment)?,
            0xDD => {
                let interval = segment.first_chunk::<2>().ok_or_else(short)?;
                tables.restart_interval = usize::from(u16::from_be_bytes(*interval));
            }
            0xC0..=0xC2 => {
                if frame.is_some() {
                    return Err(Fault::broken("it has two frame headers"));
                }
                frame = Some(read_frame(segment, marker == 0xC2, bytes.len(), limits)?);
            }
            0xC9..=0xCB | 0xCD..=0xCF => return Err(Fault::unsupported("arithmetic coding")),
            0xC3 | 0xC5..=0xC7 => return Err(Fault::unsupported("lossless or hierarchical coding")),
            0xE0 if segment.starts_with(b"JFIF\0") && segment.len() >= 14 => jfif = true,
            0xE1 if segment.starts_with(b"Exif\0\0") && exif.is_none() => exif = Some(segment[6..].to_vec()),
            0xEE if segment.starts_with(b"Adobe") && segment.len() >= 12 => adobe = Some(segment[11]),
            0xDA => {
                let frame =
                    frame.as_mut().ok_or_else(|| Fault::broken("a scan comes before the frame header"))?;
                scans += 1;
                if scans > MOST_SCANS {
                    return Err(Fault::broken(format!("it has more than {MOST_SCANS} scans")));
                }
                let header = read_scan_header(segment, frame)?;
                position = scan::read(frame, &tables, &header, bytes, position)?;
            }
            _ => {}
        }
    }
    let mut frame = frame.ok_or_else(|| Fault::broken("it has no frame header"))?;
    if !frame.components.iter().all(|component| component.scanned) {
        return Err(Fault::broken("not all of its colour components are there"));
    }
    for component in frame.components.iter_mut().filter(|_| frame.progressive) {
        let blocks_across = component.stride / 8;
        let quantiser = component.quantiser.as_ref().expect("every scanned component has its table");
        for (number, block) in component.coefficients.as_chunks::<64>().0.iter().enumerate() {
            let start = number / blocks_across * 8 * component.stride + number % blocks_across * 8;
            transform::inverse(block, quantiser, &mut component.plane, start, component.stride);
        }
        component.coefficients = Vec::new();
        debug_assert_eq!(component.plane.len(), component.stride * component.stored_height);
    }
    let model = colour_model(&frame, jfif, adobe);
    let pixels = colour::assemble(&frame.components, model, frame.width, frame.height);
    let colours = if frame.components.len() == 1 { Colours::Grey } else { Colours::Rgb };
    Ok(Decoded { width: frame.width, height: frame.height, pixels, colours, exif })
}
