//! The header of a `.npy` file: a Python dictionary of three entries.

use std::io::{self, Read};
use std::path::Path;

use super::NpyError;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// A header of three entries and at most 32 axes fits several times into this.
const LENGTH_LIMIT: u32 = 1 << 16;

/// NumPy leaves room to write a longer first axis over a shorter one.
const GROWTH_DIGITS: usize = 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F16,
    F32,
    F64,
}

impl Element {
    pub(super) fn size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

/// Which axis is fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    C,
    Fortran,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Header {
    pub(super) element: Element,
    pub(super) byte_order: ByteOrder,
    pub(super) order: Order,
    pub(super) shape: Vec<usize>,
}

impl Header {
    /// Reads the header of a file of `size` bytes; returns it and the number of bytes it takes.
    pub(super) fn read(reader: &mut impl Read, size: u64, path: &Path) -> Result<(Self, u64), NpyError> {
        let failed = |source: io::Error| NpyError::Read { path: path.to_owned(), source };
        let truncated = |wanted| NpyError::HeaderTruncated { path: path.to_owned(), found: size, wanted };

        let mut magic = Vec::new();
        reader.by_ref().take(6).read_to_end(&mut magic).map_err(failed)?;
        if magic != MAGIC {
            return Err(NpyError::Magic { path: path.to_owned(), found: magic });
        }
        if size < 10 {
            return Err(truncated(10));
        }
        let mut version = [0; 2];
        reader.read_exact(&mut version).map_err(failed)?;
        let (length, prefix) = match version {
            [1, 0] => {
                let mut bytes = [0; 2];
                reader.read_exact(&mut bytes).map_err(failed)?;
                (u32::from(u16::from_le_bytes(bytes)), 10)
            }
            [2 | 3, 0] => {
                if size < 12 {
                    return Err(truncated(12));
                }
                let mut bytes = [0; 4];
                reader.read_exact(&mut bytes).map_err(failed)?;
                (u32::from_le_bytes(bytes), 12)
            }
            [major, minor] => return Err(NpyError::Version { path: path.to_owned(), major, minor }),
        };
        if length > LENGTH_LIMIT {
            return Err(NpyError::HeaderTooLong {
                path: path.to_owned(),
                found: length,
                limit: LENGTH_LIMIT,
            });
        }
        let end = prefix + u64::from(length);
        if size < end {
            return Err(truncated(end));
        }
        let mut text = vec![0; length as usize];
        reader.read_exact(&mut text).map_err(failed)?;
        // Versions 1 and 2 are Latin-1 and version 3 is UTF-8, but no header of plain numbers leaves ASCII.
        let text = String::from_utf8_lossy(&text);
        let header = parse(&text).map_err(|fault| NpyError::Header {
            path: path.to_owned(),
            field: fault.field,
            found: fault.found,
            wanted: fault.wanted,
        })?;
        Ok((header, end))
    }

    /// How many numbers the shape has, if they can be counted.
    pub(super) fn elements(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1_usize, |product, &length| product.checked_mul(length))
    }
}

/// The bytes that NumPy writes before the numbers of a C-ordered array.
pub(in crate::storage) fn bytes(element: &str, shape: &[usize]) -> Vec<u8> {
    let lengths: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let tuple = match lengths.as_slice() {
        [only] => format!("({only},)"),
        lengths => format!("({})", lengths.join(", ")),
    };
    let mut text = format!("{{'descr': '{element}', 'fortran_order': False, 'shape': {tuple}, }}");
    if let Some(first) = lengths.first() {
        text.push_str(&" ".repeat(GROWTH_DIGITS.saturating_sub(first.len())));
    }
    let unpadded = MAGIC.len() + 4 + text.len() + 1;
    text.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    text.push('\n');

    let length = u16::try_from(text.len()).expect("a shape of a few axes takes a few hundred letters");
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// What is wrong with the text of a header.
#[derive(Debug, PartialEq)]
struct Fault {
    field: &'static str,
    found: String,
    wanted: &'static str,
}

const DICTIONARY: &str = "a dictionary of 'descr', 'fortran_order' and 'shape'";

fn fault(field: &'static str, found: &str, wanted: &'static str) -> Fault {
    let shortened: String = found.trim().chars().take(80).collect();
    Fault { field, found: shortened, wanted }
}

fn parse(text: &str) -> Result<Header, Fault> {
    let whole = || fault("text", text, DICTIONARY);
    let mut rest = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or_else(whole)?;
    let (mut element, mut order, mut shape) = (None, None, None);
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        let (key, after) = quoted(rest).ok_or_else(whole)?;
        let after = after.trim_start().strip_prefix(':').ok_or_else(whole)?.trim_start();
        let value = &after[..value_length(after)];
        rest = after[value.len()..].trim_start();
        rest = match rest.strip_prefix(',') {
            Some(rest) => rest,
            None if rest.is_empty() => rest,
            None => return Err(whole()),
        };
        let value = value.trim_end();
        let seen = match key {
            "descr" => element.replace(parse_element(value)?).is_some(),
            "fortran_order" => order.replace(parse_order(value)?).is_some(),
            "shape" => shape.replace(parse_shape(value)?).is_some(),
            _ => true,
        };
        if seen {
            return Err(whole());
        }
    }
    match (element, order, shape) {
        (Some((element, byte_order)), Some(order), Some(shape)) => {
            Ok(Header { element, byte_order, order, shape })
        }
        _ => Err(whole()),
    }
}

/// A quoted word without escapes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&letter| letter == '\'' || letter == '"')?;
    text[1..].split_once(quote)
}

/// How far a value reaches: to the first comma outside brackets and quotes.
fn value_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut quote = None;
    for (position, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => return position,
            (None, _) => {}
        }
    }
    text.len()
}

fn parse_element(value: &str) -> Result<(Element, ByteOrder), Fault> {
    let refused =
        || fault("descr", value, "'<f2', '<f4' or '<f8', or the same with '>' (float16, float32 or float64)");
    match quoted(value).ok_or_else(refused)? {
        ("<f2", "") => Ok((Element::F16, ByteOrder::Little)),
        (">f2", "") => Ok((Element::F16, ByteOrder::Big)),
        ("<f4", "") => Ok((Element::F32, ByteOrder::Little)),
        ("<f8", "") => Ok((Element::F64, ByteOrder::Little)),
        (">f4", "") => Ok((Element::F32, ByteOrder::Big)),
        (">f8", "") => Ok((Element::F64, ByteOrder::Big)),
        _ => Err(refused()),
    }
}

fn parse_order(value: &str) -> Result<Order, Fault> {
    match value {
        "False" => Ok(Order::C),
        "True" => Ok(Order::Fortran),
        _ => Err(fault("fortran_order", value, "True or False")),
    }
}

fn parse_shape(value: &str) -> Result<Vec<usize>, Fault> {
    let refused = || fault("shape", value, "a tuple of whole numbers that are not negative");
    let inside = value.strip_prefix('(').and_then(|text| text.strip_suffix(')')).ok_or_else(refused)?.trim();
    if inside.is_empty() {
        return Ok(Vec::new());
    }
    let listed = inside.strip_suffix(',');
    // Without its comma, `(3)` is a number in brackets and no tuple.
    if listed.is_none() && !inside.contains(',') {
        return Err(refused());
    }
    listed
        .unwrap_or(inside)
        .split(',')
        .map(|length| {
            let length = length.trim();
            // Python 2 wrote long integers with an L behind them.
            let digits = length.strip_suffix('L').unwrap_or(length);
            if digits.is_empty() || !digits.bytes().all(|letter| letter.is_ascii_digit()) {
                return Err(refused());
            }
            digits.parse().map_err(|_| refused())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_read_however_python_writes_them() {
        let header = |order, shape: &[usize]| Header {
            element: Element::F32,
            byte_order: ByteOrder::Little,
            order,
            shape: shape.to_vec(),
        };
        for (text, wanted) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n", header(Order::C, &[3, 4])),
            ("{\"shape\":(3,),\"fortran_order\":True,\"descr\":\"<f4\"}", header(Order::Fortran, &[3])),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", header(Order::C, &[])),
            (
                " { 'shape' : ( 3L , 0L , ) , 'fortran_order' : False , 'descr' : '<f4' }",
                header(Order::C, &[3, 0]),
            ),
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn whatever_is_no_header_of_numbers_is_refused_with_the_part_that_is_wrong() {
        for (text, field) in [
            ("", "text"),
            ("{", "text"),
            ("{}", "text"),
            ("{'descr'}", "text"),
            ("{'descr': '<f4'", "text"),
            ("{'descr': '<f4', 'fortran_order': False}", "text"),
            ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "text"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "text"),
            ("{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", "descr"),
            ("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", "descr"),
            ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "descr"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "descr"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "fortran_order"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1.5, 2)}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (three, 2)}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,,2)}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3)}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': 3}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}", "shape"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ((1,), 2)}", "shape"),
            ("{'é", "text"),
            ("é", "text"),
        ] {
            let found = parse(text).expect_err(text);
            assert_eq!(found.field, field, "{text}: {found:?}");
        }
    }
}
