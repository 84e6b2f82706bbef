//! One scan: the blocks it covers and how their coefficients are coded (ITU-T T.81, annexes F and G).

use super::super::Fault;
use super::huffman::{BitReader, HuffmanTable};
use super::transform;
use super::{Frame, Tables};

/// Position in the block of the n-th coefficient.
pub(super) const ZIGZAG: [usize; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// What a scan header says.
pub(super) struct ScanHeader {
    /// Component, and its tables for the first coefficient and for the others.
    pub(super) members: Vec<(usize, usize, usize)>,
    /// First and last coefficient.
    pub(super) band: (usize, usize),
    /// Bit position before this scan; 0 for a first pass.
    pub(super) high: u32,
    /// Bit position after it.
    pub(super) low: u32,
}

/// The Huffman tables of one component in one scan; those it does not need may be missing.
struct Codes<'a> {
    first: Option<&'a HuffmanTable>,
    others: Option<&'a HuffmanTable>,
}

impl<'a> Codes<'a> {
    fn first(&self) -> Result<&'a HuffmanTable, Fault> {
        self.first.ok_or_else(|| Fault::broken("a scan uses a Huffman table that is not there"))
    }

    fn others(&self) -> Result<&'a HuffmanTable, Fault> {
        self.others.ok_or_else(|| Fault::broken("a scan uses a Huffman table that is not there"))
    }
}

fn beyond_block() -> Fault {
    Fault::broken("a block has more than 64 coefficients")
}

fn size_of_first(code: u8) -> Result<u32, Fault> {
    if code > 15 {
        return Err(Fault::broken(format!("a first coefficient has {code} bits, at most 15 are possible")));
    }
    Ok(u32::from(code))
}

fn sequential(
    block: &mut [i16],
    reader: &mut BitReader,
    codes: &Codes,
    previous: &mut i32,
) -> Result<(), Fault> {
    let size = size_of_first(codes.first()?.decode(reader)?)?;
    *previous = previous.wrapping_add(reader.signed(size));
    block[0] = *previous as i16;
    let table = codes.others()?;
    let mut index = 1;
    while index < 64 {
        let code = table.decode(reader)?;
        let (run, size) = (usize::from(code >> 4), u32::from(code & 15));
        if size == 0 {
            if run != 15 {
                break;
            }
            index += 16;
            continue;
        }
        index += run;
        let value = reader.signed(size);
        *block.get_mut(*ZIGZAG.get(index).ok_or_else(beyond_block)?).ok_or_else(beyond_block)? = value as i16;
        index += 1;
    }
    Ok(())
}

fn first_pass(
    block: &mut [i16],
    reader: &mut BitReader,
    table: &HuffmanTable,
    header: &ScanHeader,
    empty_blocks: &mut u32,
) -> Result<(), Fault> {
    if *empty_blocks > 0 {
        *empty_blocks -= 1;
        return Ok(());
    }
    let mut index = header.band.0;
    while index <= header.band.1 {
        let code = table.decode(reader)?;
        let (run, size) = (usize::from(code >> 4), u32::from(code & 15));
        if size == 0 {
            if run != 15 {
                *empty_blocks = (1 << run) - 1 + reader.take(run as u32);
                break;
            }
            index += 16;
            continue;
        }
        index += run;
        let value = reader.signed(size) << header.low;
        block[*ZIGZAG.get(index).ok_or_else(beyond_block)?] = value as i16;
        index += 1;
    }
    Ok(())
}

/// Adds a bit of precision to a coefficient that is not zero.
fn correct(coefficient: &mut i16, reader: &mut BitReader, bit: i16) {
    if reader.bit() && *coefficient & bit == 0 {
        let step = if *coefficient >= 0 { bit } else { -bit };
        *coefficient = coefficient.wrapping_add(step);
    }
}

fn refinement(
    block: &mut [i16],
    reader: &mut BitReader,
    table: &HuffmanTable,
    header: &ScanHeader,
    empty_blocks: &mut u32,
) -> Result<(), Fault> {
    let bit = 1_i16 << header.low;
    let mut index = header.band.0;
    if *empty_blocks == 0 {
        while index <= header.band.1 {
            let code = table.decode(reader)?;
            let (mut run, size) = (code >> 4, code & 15);
            let mut value = 0;
            if size != 0 {
                value = if reader.bit() { bit } else { -bit };
            } else if run != 15 {
                *empty_blocks = (1 << run) + reader.take(u32::from(run));
                break;
            }
            while index <= header.band.1 {
                let coefficient = &mut block[ZIGZAG[index]];
                if *coefficient != 0 {
                    correct(coefficient, reader, bit);
                } else if run == 0 {
                    break;
                } else {
                    run -= 1;
                }
                index += 1;
            }
            if value != 0 {
                if index > header.band.1 {
                    return Err(beyond_block());
                }
                block[ZIGZAG[index]] = value;
            }
            index += 1;
        }
    }
    if *empty_blocks > 0 {
        while index <= header.band.1 {
            let coefficient = &mut block[ZIGZAG[index]];
            if *coefficient != 0 {
                correct(coefficient, reader, bit);
            }
            index += 1;
        }
        *empty_blocks -= 1;
    }
    Ok(())
}

/// Reads the scan that begins at `position`; returns where the next marker is to be looked for.
pub(super) fn read(
    frame: &mut Frame,
    tables: &Tables,
    header: &ScanHeader,
    bytes: &[u8],
    position: usize,
) -> Result<usize, Fault> {
    let alone = header.members.len() == 1;
    for &(member, _, _) in &header.members {
        let component = &mut frame.components[member];
        if component.quantiser.is_none() {
            let table = tables.quantisers[component.quantiser_index].as_deref().copied();
            component.quantiser = Some(
                table.ok_or_else(|| Fault::broken("a scan uses a quantisation table that is not there"))?,
            );
        }
    }
    let (units_across, units_down) = if alone {
        let component = &frame.components[header.members[0].0];
        (component.width.div_ceil(8), component.height.div_ceil(8))
    } else {
        (frame.units_across, frame.units_down)
    };
    let mut reader = BitReader::new(bytes, position);
    let mut previous = [0_i32; 4];
    let mut empty_blocks = 0_u32;
    let mut until_restart = tables.restart_interval;
    for unit in 0..units_across * units_down {
        if tables.restart_interval > 0 {
            if until_restart == 0 {
                reader.restart()?;
                previous = [0; 4];
                empty_blocks = 0;
                until_restart = tables.restart_interval;
            }
            until_restart -= 1;
        }
        let (unit_row, unit_column) = (unit / units_across, unit % units_across);
        for &(member, first, others) in &header.members {
            let component = &mut frame.components[member];
            let codes = Codes {
                first: tables.first_codes[first].as_ref(),
                others: tables.other_codes[others].as_ref(),
            };
            let (across, down) = if alone { (1, 1) } else { (component.across, component.down) };
            for inner in 0..across * down {
                let row = unit_row * down + inner / across;
                let column = unit_column * across + inner % across;
                if !frame.progressive {
                    let mut block = [0_i16; 64];
                    sequential(&mut block, &mut reader, &codes, &mut previous[member])?;
                    let quantiser = component.quantiser.as_ref().expect("set before the first block");
                    let stride = component.stride;
                    transform::inverse(
                        &block,
                        quantiser,
                        &mut component.plane,
                        row * 8 * stride + column * 8,
                        stride,
                    );
                    continue;
                }
                let start = (row * (component.stride / 8) + column) * 64;
                let block = &mut component.coefficients[start..start + 64];
                match (header.band.0, header.high) {
                    (0, 0) => {
                        let size = size_of_first(codes.first()?.decode(&mut reader)?)?;
                        previous[member] = previous[member].wrapping_add(reader.signed(size));
                        block[0] = (previous[member] << header.low) as i16;
                    }
                    (0, _) => {
                        if reader.bit() {
                            block[0] |= 1 << header.low;
                        }
                    }
                    (_, 0) => first_pass(block, &mut reader, codes.others()?, header, &mut empty_blocks)?,
                    (_, _) => refinement(block, &mut reader, codes.others()?, header, &mut empty_blocks)?,
                }
            }
        }
        reader.check()?;
    }
    for &(member, _, _) in &header.members {
        frame.components[member].scanned = true;
    }
    Ok(reader.position())
}
