//! Constants of a graph: their shapes at once, their numbers when someone asks.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{ElementType, ModelFileError};
use crate::protobuf::{Message, Payload};

/// A constant tensor; its numbers stay in the file's bytes until [`Tensor::values`] is called.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name; empty for the value of an attribute.
    pub name: String,
    /// Type of its numbers.
    pub element: ElementType,
    /// Its shape; empty for a single number.
    pub shape: Vec<usize>,
    /// The file beside the model that holds its numbers, if the model itself does not.
    pub location: Option<String>,
    /// The file's bytes, and the part of them that describes this tensor.
    pub(super) file: Arc<Vec<u8>>,
    pub(super) place: Range<usize>,
}

/// The numbers of a tensor, the last axis running fastest.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Single precision; half precision and bfloat16 are widened, which loses nothing.
    Single(Vec<f32>),
    /// Double precision.
    Double(Vec<f64>),
    /// Integers of any width, and booleans as 0 and 1; 64-bit numbers without sign keep their bits.
    Integers(Vec<i64>),
}

/// Why the numbers of a tensor cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// They are in another file.
    #[error("tensor `{tensor}` keeps its numbers in `{location}`, wanted them in the model's own file")]
    Elsewhere {
        /// The tensor.
        tensor: String,
        /// The other file.
        location: String,
    },
    /// They are of a type that is not supported.
    #[error("tensor `{tensor}` is {found}, wanted floating-point numbers, integers or booleans")]
    Element {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: ElementType,
    },
    /// There are more or fewer of them than the shape says.
    #[error("tensor `{tensor}` holds {found} bytes or numbers, which do not fill its shape {shape:?}")]
    Length {
        /// The tensor.
        tensor: String,
        /// What was found: bytes of raw data, or else numbers.
        found: usize,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// They are in another file, which has not got them.
    #[error("the numbers of tensor `{tensor}` cannot be read from `{location}`: {reason}")]
    Outside {
        /// The tensor.
        tensor: String,
        /// The other file.
        location: String,
        /// What is wrong.
        reason: String,
    },
    /// The bytes are not those of a tensor.
    #[error("tensor `{tensor}` is damaged: {reason}")]
    Damaged {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
}

impl Tensor {
    /// Number of elements, unless the shape overflows.
    pub fn count(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |count, &side| count.checked_mul(side))
    }

    /// Reads the numbers, from a file beside the model if they are there; `model` is the path of its file.
    pub fn values_beside(&self, model: &Path) -> Result<Values, TensorError> {
        let Some(location) = &self.location else { return self.values() };
        let outside = |reason: String| TensorError::Outside {
            tensor: self.name.clone(),
            location: location.clone(),
            reason,
        };
        let kind = Kind::of(self.element)
            .ok_or_else(|| TensorError::Element { tensor: self.name.clone(), found: self.element })?;
        let wanted = self.count().and_then(|count| count.checked_mul(kind.bytes()));
        let wanted = wanted.ok_or_else(|| outside(format!("its shape is {:?}", self.shape)))?;
        let (offset, length) = self.extent().map_err(|error| outside(error.to_string()))?;
        if length.is_some_and(|length| length != wanted as u64) {
            return Err(TensorError::Length {
                tensor: self.name.clone(),
                found: length.unwrap_or_default() as usize,
                shape: self.shape.clone(),
            });
        }
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(model.with_file_name(location))?;
            let held = file.metadata()?.len();
            if offset.checked_add(wanted as u64).is_none_or(|end| end > held) {
                let reason = format!("it has {held} bytes, wanted {wanted} from byte {offset} on");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
            }
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = vec![0; wanted];
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        read().map(|bytes| kind.read_raw(&bytes)).map_err(|error| outside(error.to_string()))
    }

    /// Where in another file its numbers begin, and how many bytes they are.
    fn extent(&self) -> Result<(u64, Option<u64>), ModelFileError> {
        let bytes = self.file.get(self.place.clone()).unwrap_or_default();
        let message = Message { path: Path::new(""), bytes, start: self.place.start };
        let (mut offset, mut length) = (0, None);
        for field in message.fields() {
            if let (13, Payload::Bytes(entry)) = field?
                && let (Some(key), Some(value)) = super::read::pair(&entry)?
            {
                let number = || value.parse().map_err(|_| entry.fault(0, "found a place that is no number"));
                match key.as_str() {
                    "offset" => offset = number()?,
                    "length" => length = Some(number()?),
                    _ => {}
                }
            }
        }
        Ok((offset, length))
    }

    /// Reads the numbers; what is allocated is bounded by the bytes that are there.
    pub fn values(&self) -> Result<Values, TensorError> {
        if let Some(location) = &self.location {
            let (tensor, location) = (self.name.clone(), location.clone());
            return Err(TensorError::Elsewhere { tensor, location });
        }
        let found = self
            .stored()
            .map_err(|error| TensorError::Damaged { tensor: self.name.clone(), reason: error.to_string() })?;
        let length =
            |found| TensorError::Length { tensor: self.name.clone(), found, shape: self.shape.clone() };
        let kind = Kind::of(self.element)
            .ok_or_else(|| TensorError::Element { tensor: self.name.clone(), found: self.element })?;
        let values = match found.raw {
            Some(raw) => {
                let bytes = self.count().and_then(|count| count.checked_mul(kind.bytes()));
                if bytes != Some(raw.bytes.len()) {
                    return Err(length(raw.bytes.len()));
                }
                kind.read_raw(raw.bytes)
            }
            None => kind.read_fields(found),
        };
        let found = match &values {
            Values::Single(values) => values.len(),
            Values::Double(values) => values.len(),
            Values::Integers(values) => values.len(),
        };
        if self.count() != Some(found) {
            return Err(length(found));
        }
        Ok(values)
    }

    /// The data fields of a `TensorProto`.
    fn stored(&self) -> Result<Stored<'_>, ModelFileError> {
        let bytes = self.file.get(self.place.clone()).unwrap_or_default();
        let message = Message { path: Path::new(""), bytes, start: self.place.start };
        let mut stored = Stored::default();
        for field in message.fields() {
            match field? {
                (9, Payload::Bytes(raw)) => stored.raw = Some(raw),
                (4, Payload::Fixed32(bits)) => stored.singles.push(f32::from_le_bytes(bits)),
                (4, Payload::Bytes(packed)) => {
                    let (chunks, rest) = packed.bytes.as_chunks::<4>();
                    if !rest.is_empty() {
                        return Err(packed.fault(0, "found part of a number"));
                    }
                    stored.singles.extend(chunks.iter().map(|&bits| f32::from_le_bytes(bits)));
                }
                (10, Payload::Fixed64(bits)) => stored.doubles.push(f64::from_le_bytes(bits)),
                (10, Payload::Bytes(packed)) => {
                    let (chunks, rest) = packed.bytes.as_chunks::<8>();
                    if !rest.is_empty() {
                        return Err(packed.fault(0, "found part of a number"));
                    }
                    stored.doubles.extend(chunks.iter().map(|&bits| f64::from_le_bytes(bits)));
                }
                // int32_data, int64_data and uint64_data; which of them holds the numbers follows from the type.
                (field @ (5 | 7 | 11), Payload::Number(number)) => {
                    stored.numbers(field).push(number as i64);
                }
                (field @ (5 | 7 | 11), Payload::Bytes(packed)) => {
                    for number in packed.packed() {
                        stored.numbers(field).push(number? as i64);
                    }
                }
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(stored)
    }
}

/// What the data fields hold.
#[derive(Default)]
struct Stored<'a> {
    raw: Option<Message<'a>>,
    singles: Vec<f32>,
    doubles: Vec<f64>,
    narrow: Vec<i64>,
    wide: Vec<i64>,
    unsigned: Vec<i64>,
}

impl Stored<'_> {
    fn numbers(&mut self, field: u64) -> &mut Vec<i64> {
        match field {
            5 => &mut self.narrow,
            7 => &mut self.wide,
            _ => &mut self.unsigned,
        }
    }
}

/// Element types whose numbers can be read.
#[derive(Clone, Copy)]
enum Kind {
    Single,
    Double,
    Half,
    Brain,
    Signed8,
    Signed16,
    Signed32,
    Signed64,
    Unsigned8,
    Unsigned16,
    Unsigned32,
    Unsigned64,
}

impl Kind {
    fn of(element: ElementType) -> Option<Self> {
        Some(match element {
            ElementType::FLOAT => Self::Single,
            ElementType::DOUBLE => Self::Double,
            ElementType::FLOAT16 => Self::Half,
            ElementType::BFLOAT16 => Self::Brain,
            ElementType::INT8 => Self::Signed8,
            ElementType::INT16 => Self::Signed16,
            ElementType::INT32 => Self::Signed32,
            ElementType::INT64 => Self::Signed64,
            ElementType::UINT8 | ElementType::BOOL => Self::Unsigned8,
            ElementType::UINT16 => Self::Unsigned16,
            ElementType::UINT32 => Self::Unsigned32,
            ElementType::UINT64 => Self::Unsigned64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::Signed8 | Self::Unsigned8 => 1,
            Self::Half | Self::Brain | Self::Signed16 | Self::Unsigned16 => 2,
            Self::Single | Self::Signed32 | Self::Unsigned32 => 4,
            Self::Double | Self::Signed64 | Self::Unsigned64 => 8,
        }
    }

    fn read_raw(self, raw: &[u8]) -> Values {
        fn numbers<const LENGTH: usize, T>(raw: &[u8], read: fn([u8; LENGTH]) -> T) -> Vec<T> {
            raw.as_chunks::<LENGTH>().0.iter().map(|&bits| read(bits)).collect()
        }
        match self {
            Self::Single => Values::Single(numbers(raw, f32::from_le_bytes)),
            Self::Double => Values::Double(numbers(raw, f64::from_le_bytes)),
            Self::Half => Values::Single(numbers(raw, |bits| half(u16::from_le_bytes(bits)))),
            Self::Brain => Values::Single(numbers(raw, |bits| brain(u16::from_le_bytes(bits)))),
            Self::Signed8 => Values::Integers(numbers(raw, |bits| i64::from(i8::from_le_bytes(bits)))),
            Self::Signed16 => Values::Integers(numbers(raw, |bits| i64::from(i16::from_le_bytes(bits)))),
            Self::Signed32 => Values::Integers(numbers(raw, |bits| i64::from(i32::from_le_bytes(bits)))),
            Self::Signed64 | Self::Unsigned64 => Values::Integers(numbers(raw, i64::from_le_bytes)),
            Self::Unsigned8 => Values::Integers(numbers(raw, |bits| i64::from(u8::from_le_bytes(bits)))),
            Self::Unsigned16 => Values::Integers(numbers(raw, |bits| i64::from(u16::from_le_bytes(bits)))),
            Self::Unsigned32 => Values::Integers(numbers(raw, |bits| i64::from(u32::from_le_bytes(bits)))),
        }
    }

    fn read_fields(self, stored: Stored<'_>) -> Values {
        let bits = |read: fn(u16) -> f32, numbers: &[i64]| {
            Values::Single(numbers.iter().map(|&number| read(number as u16)).collect())
        };
        match self {
            Self::Single => Values::Single(stored.singles),
            Self::Double => Values::Double(stored.doubles),
            Self::Half => bits(half, &stored.narrow),
            Self::Brain => bits(brain, &stored.narrow),
            Self::Signed64 => Values::Integers(stored.wide),
            Self::Unsigned32 | Self::Unsigned64 => Values::Integers(stored.unsigned),
            Self::Signed8 | Self::Signed16 | Self::Signed32 | Self::Unsigned8 | Self::Unsigned16 => {
                Values::Integers(stored.narrow)
            }
        }
    }
}

/// IEEE 754 binary16, widened.
fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2.0_f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1024.0 + fraction) * 2.0_f32.powi(exponent - 25),
    }
}

/// The upper half of a single-precision number.
fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
