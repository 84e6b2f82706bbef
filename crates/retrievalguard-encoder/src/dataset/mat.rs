//! The part of MATLAB's level 5 MAT-file format that lists of annotations use.
//!
//! Struct arrays, cells, text and real numbers, plain or zlib-compressed, in both byte orders, after "MAT-File Format"
//! (The MathWorks, R2019b). Other variables are stepped over. A file that is cut or lies about its sizes is an error:
//! nothing is allocated on a header's word.

use std::fmt;
use std::io::Read;

use flate2::read::ZlibDecoder;

use super::unfolded_limit;

const HEADER_BYTES: usize = 128;
/// The most that a file's compressed variables may unfold to, however large the file is.
const UNFOLDED_LIMIT: u64 = 256 << 20;
/// Type and size of an element.
const TAG_BYTES: u64 = 8;
/// Deeper than lists of annotations nest.
const DEPTH_LIMIT: usize = 16;

// Types of data elements.
const INT8: u32 = 1;
const UINT8: u32 = 2;
const INT16: u32 = 3;
const UINT16: u32 = 4;
const INT32: u32 = 5;
const UINT32: u32 = 6;
const SINGLE: u32 = 7;
const DOUBLE: u32 = 9;
const INT64: u32 = 12;
const UINT64: u32 = 13;
const MATRIX: u32 = 14;
const COMPRESSED: u32 = 15;
const UTF8: u32 = 16;
const UTF16: u32 = 17;

// Classes of arrays.
const CELL_CLASS: u32 = 1;
const STRUCT_CLASS: u32 = 2;
const CHAR_CLASS: u32 = 4;
const NUMERIC_CLASSES: std::ops::RangeInclusive<u32> = 6..=15;

/// An array.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A character array, by columns.
    Text(String),
    /// A real array, by columns; of a complex one the real part.
    Numbers(Vec<f64>),
    /// A struct array: for each element its values, in the order of the fields.
    Structs { fields: Vec<String>, elements: Vec<Vec<Value>> },
    /// A cell array.
    Cells(Vec<Value>),
    /// Anything else.
    Other,
}

impl Value {
    /// The number, if it is exactly one.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Numbers(values) if values.len() == 1 => Some(values[0]),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Text(text) => write!(formatter, "`{text}`"),
            Self::Numbers(values) if values.len() == 1 => write!(formatter, "{}", values[0]),
            Self::Numbers(values) => write!(formatter, "({} numbers)", values.len()),
            Self::Structs { elements, .. } => write!(formatter, "({} structs)", elements.len()),
            Self::Cells(cells) => write!(formatter, "({} cells)", cells.len()),
            Self::Other => formatter.write_str("(another kind of array)"),
        }
    }
}

#[derive(Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

/// Reads elements one after the other.
#[derive(Clone)]
struct Elements<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

struct Element<'a> {
    kind: u32,
    content: &'a [u8],
}

impl<'a> Elements<'a> {
    fn word(&self, bytes: [u8; 4]) -> u32 {
        match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        }
    }

    /// The next element; the padding after it is stepped over, except after compressed ones, which have none.
    fn next(&mut self) -> Result<Element<'a>, String> {
        let cut = || "it is cut within an element's tag".to_owned();
        let (first, rest) = self.bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let first = self.word(*first);
        if first >> 16 != 0 {
            // A small element: size and type share the first word, the content the second.
            let (kind, size) = (first & 0xFFFF, (first >> 16) as usize);
            if size > 4 {
                return Err(format!("a small element has {size} bytes, at most 4 are possible"));
            }
            let content = rest.get(..4).ok_or_else(cut)?;
            self.bytes = &rest[4..];
            return Ok(Element { kind, content: &content[..size] });
        }
        let (size, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let size = self.word(*size) as usize;
        let content = rest
            .get(..size)
            .ok_or_else(|| format!("an element announces {size} bytes, {} are left", rest.len()))?;
        let padded = if first == COMPRESSED { size } else { size.next_multiple_of(8).min(rest.len()) };
        self.bytes = &rest[padded..];
        Ok(Element { kind: first, content })
    }

    /// The next element's numbers, whatever their type.
    fn numbers(&mut self) -> Result<Vec<f64>, String> {
        let Element { kind, content } = self.next()?;
        match kind {
            INT8 => self.values(content, |bytes| f64::from(i8::from_le_bytes(bytes))),
            UINT8 | UTF8 => self.values(content, |bytes| f64::from(u8::from_le_bytes(bytes))),
            INT16 => self.values(content, |bytes| f64::from(i16::from_le_bytes(bytes))),
            UINT16 | UTF16 => self.values(content, |bytes| f64::from(u16::from_le_bytes(bytes))),
            INT32 => self.values(content, |bytes| f64::from(i32::from_le_bytes(bytes))),
            UINT32 => self.values(content, |bytes| f64::from(u32::from_le_bytes(bytes))),
            SINGLE => self.values(content, |bytes| f64::from(f32::from_le_bytes(bytes))),
            DOUBLE => self.values(content, f64::from_le_bytes),
            INT64 => self.values(content, |bytes| i64::from_le_bytes(bytes) as f64),
            UINT64 => self.values(content, |bytes| u64::from_le_bytes(bytes) as f64),
            other => Err(format!("an element has type {other} where numbers belong")),
        }
    }

    /// Values of `WIDTH` bytes each; `convert` expects them in little-endian order.
    fn values<const WIDTH: usize>(
        &self,
        content: &[u8],
        convert: impl Fn([u8; WIDTH]) -> f64,
    ) -> Result<Vec<f64>, String> {
        let (values, rest) = content.as_chunks::<WIDTH>();
        if !rest.is_empty() {
            return Err(format!("{} bytes are no whole number of {WIDTH}-byte values", content.len()));
        }
        let value = |bytes: &[u8; WIDTH]| {
            let mut bytes = *bytes;
            match self.order {
                ByteOrder::Little => {}
                ByteOrder::Big => bytes.reverse(),
            }
            convert(bytes)
        };
        Ok(values.iter().map(value).collect())
    }

    /// The next element's text.
    fn text(&mut self) -> Result<String, String> {
        let mut ahead = self.clone();
        let element = ahead.next()?;
        if matches!(element.kind, UTF8 | INT8) {
            self.bytes = ahead.bytes;
            return Ok(String::from_utf8_lossy(element.content).into_owned());
        }
        let units: Vec<u16> = self.numbers()?.into_iter().map(|unit| unit as u16).collect();
        Ok(String::from_utf16_lossy(&units))
    }
}

/// The parts that every array begins with.
struct ArrayHeader {
    class: u32,
    count: usize,
    name: String,
}

fn array_header(elements: &mut Elements) -> Result<ArrayHeader, String> {
    let flags = elements.numbers()?;
    let class = *flags.first().ok_or("an array has no flags")? as u32 & 0xFF;
    let count = elements
        .numbers()?
        .iter()
        .try_fold(
            1_usize,
            |count, &length| {
                if length < 0.0 { None } else { count.checked_mul(length as usize) }
            },
        )
        .ok_or("an array has impossible dimensions")?;
    Ok(ArrayHeader { class, count, name: elements.text()? })
}

fn array(element: &Element, order: ByteOrder, depth: usize) -> Result<Value, String> {
    if element.kind != MATRIX {
        return Err(format!("an element has type {} where an array belongs", element.kind));
    }
    if element.content.is_empty() {
        return Ok(Value::Numbers(Vec::new()));
    }
    let mut inside = Elements { bytes: element.content, order };
    let header = array_header(&mut inside)?;
    array_content(&header, &mut inside, depth)
}

/// The variable in the element, if it has the wanted name.
fn named_array(element: &Element, order: ByteOrder, wanted: &str) -> Result<Option<Value>, String> {
    if element.kind != MATRIX || element.content.is_empty() {
        return Ok(None);
    }
    let mut inside = Elements { bytes: element.content, order };
    let header = array_header(&mut inside)?;
    if header.name != wanted {
        return Ok(None);
    }
    array_content(&header, &mut inside, 0).map(Some)
}

fn array_content(header: &ArrayHeader, inside: &mut Elements, depth: usize) -> Result<Value, String> {
    if depth > DEPTH_LIMIT {
        return Err(format!("its arrays are nested more than {DEPTH_LIMIT} deep"));
    }
    let next_array = |inside: &mut Elements| {
        let element = inside.next()?;
        array(&element, inside.order, depth + 1)
    };
    // Every array takes at least the eight bytes of its tag.
    let admit = |wanted: Option<usize>, inside: &Elements| match wanted {
        Some(wanted) if wanted <= inside.bytes.len() / 8 => Ok(()),
        _ => Err(format!(
            "an array announces {} elements, {} bytes are left",
            header.count,
            inside.bytes.len()
        )),
    };
    match header.class {
        CHAR_CLASS => Ok(Value::Text(inside.text()?)),
        class if NUMERIC_CLASSES.contains(&class) => {
            let values = inside.numbers()?;
            if values.len() != header.count {
                return Err(format!("an array of {} numbers has {}", header.count, values.len()));
            }
            Ok(Value::Numbers(values))
        }
        CELL_CLASS => {
            admit(Some(header.count), inside)?;
            Ok(Value::Cells((0..header.count).map(|_| next_array(inside)).collect::<Result<_, String>>()?))
        }
        STRUCT_CLASS => {
            let length = inside.numbers()?.first().map_or(0.0, |&length| length) as usize;
            let names = inside.next()?;
            if length == 0 || names.content.len() % length != 0 {
                return Err("a struct array has impossible field names".to_owned());
            }
            let fields: Vec<String> = names
                .content
                .chunks_exact(length)
                .map(|name| {
                    let end = name.iter().position(|&byte| byte == 0).unwrap_or(length);
                    String::from_utf8_lossy(&name[..end]).into_owned()
                })
                .collect();
            admit(header.count.checked_mul(fields.len().max(1)), inside)?;
            let elements = (0..header.count)
                .map(|_| (0..fields.len()).map(|_| next_array(inside)).collect())
                .collect::<Result<_, String>>()?;
            Ok(Value::Structs { fields, elements })
        }
        _ => Ok(Value::Other),
    }
}

/// Unfolds a compressed variable as far as its own tag announces, if that is within what is left of the budget.
fn unfold(content: &[u8], order: ByteOrder, budget: &mut u64) -> Result<Vec<u8>, String> {
    let damaged = |error: std::io::Error| format!("a compressed variable is damaged: {error}");
    let mut reader = ZlibDecoder::new(content);
    let mut unfolded = Vec::new();
    reader.by_ref().take(TAG_BYTES).read_to_end(&mut unfolded).map_err(damaged)?;
    // A variable is an array, whose tag is never of the small kind; `next` refuses whatever is.
    if let [_, _, _, _, size @ ..] = unfolded.as_slice()
        && let Ok(size) = size.try_into()
    {
        let size = u64::from(Elements { bytes: &[], order }.word(size));
        *budget = budget.checked_sub(size).ok_or_else(|| {
            format!(
                "a compressed variable of {} bytes announces {size}, at most {budget} are read",
                content.len()
            )
        })?;
        reader.by_ref().take(size).read_to_end(&mut unfolded).map_err(damaged)?;
        // Beyond the array there is room for padding; the checksum is behind it.
        let rest = reader.take(TAG_BYTES).read_to_end(&mut Vec::new()).map_err(damaged)?;
        if rest as u64 == TAG_BYTES {
            return Err(format!("a compressed variable announces {size} bytes and holds more"));
        }
    }
    Ok(unfolded)
}

/// Reads the variable of the given name, if the file has it; an error is the reason, without the file's name.
pub(super) fn variable(bytes: &[u8], wanted: &str) -> Result<Option<Value>, String> {
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(|| {
        format!("it has {} bytes, wanted at least the header of {HEADER_BYTES}", bytes.len())
    })?;
    let (order, version) = match &header[124..] {
        [low, high, b'I', b'M'] => (ByteOrder::Little, u16::from_le_bytes([*low, *high])),
        [high, low, b'M', b'I'] => (ByteOrder::Big, u16::from_be_bytes([*high, *low])),
        _ => return Err("its header has no byte order mark, wanted a level 5 MAT-file".to_owned()),
    };
    if version != 0x0100 {
        let found = if version == 0x0200 { "7.3 (HDF5)".to_owned() } else { format!("{version:#06x}") };
        return Err(format!("its version is {found}, wanted level 5: save it with `-v7` or `-v6`"));
    }
    let mut elements = Elements { bytes: &bytes[HEADER_BYTES..], order };
    let mut budget = unfolded_limit(bytes.len() as u64).min(UNFOLDED_LIMIT);
    while !elements.bytes.is_empty() {
        let element = elements.next()?;
        let value = if element.kind == COMPRESSED {
            let unfolded = unfold(element.content, order, &mut budget)?;
            let inner = Elements { bytes: &unfolded, order }.next()?;
            named_array(&inner, order, wanted)?
        } else {
            named_array(&element, order, wanted)?
        };
        if value.is_some() {
            return Ok(value);
        }
    }
    Ok(None)
}
