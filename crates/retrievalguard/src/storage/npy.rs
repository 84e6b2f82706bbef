//! NumPy's `.npy` files of floating-point numbers: the format that embeddings travel in.
//!
//! Read: float32, float64, and float16 (which clip-retrieval writes) widened to `f32`; format versions 1 to 3, both byte
//! orders, C and Fortran order, any number of axes. Written: float32 and float64 in version 1, little-endian, C order, the
//! same bytes that NumPy writes. Nothing in a header is trusted before it has been checked
//! against the size of the file, so a lying header costs no memory.
//!
//! ```
//! use retrievalguard::storage::npy::{self, Values};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("vectors.npy");
//! npy::write_f32(&path, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let array = npy::read(&path)?;
//! assert_eq!(array.shape(), [2, 3]);
//! assert!(matches!(array.values(), Values::F32(values) if values[4] == 5.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(super) mod header;

use std::collections::TryReserveError;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use self::header::{ByteOrder, Element, Header, Order};
use super::atomic::{AtomicFile, WriteError};

/// Why a `.npy` file could not be read; every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The file could not be opened or read.
    #[error("array `{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Only a regular file has a size that a header can be checked against.
    #[error("array `{}` is not a regular file", path.display())]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// The file begins with something else.
    #[error("`{}` is not a .npy file: it begins with {found:02x?}, wanted 93 followed by `NUMPY`", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// The first bytes.
        found: Vec<u8>,
    },
    /// The format has moved on.
    #[error("array `{}` has .npy version {major}.{minor}, wanted 1.0, 2.0 or 3.0", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// First number of the version.
        major: u8,
        /// Second number of the version.
        minor: u8,
    },
    /// The file ends within its header.
    #[error("array `{}` has {found} bytes, wanted at least {wanted} for its header", path.display())]
    HeaderTruncated {
        /// The file.
        path: PathBuf,
        /// Size of the file.
        found: u64,
        /// Where its header would end.
        wanted: u64,
    },
    /// No header of numbers is this long.
    #[error("array `{}` announces a header of {found} bytes, wanted at most {limit}", path.display())]
    HeaderTooLong {
        /// The file.
        path: PathBuf,
        /// The announced length.
        found: u32,
        /// The longest that is read.
        limit: u32,
    },
    /// The header is not the dictionary it should be.
    #[error("header of array `{}`: {field} is `{found}`, wanted {wanted}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Which part of the header.
        field: &'static str,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: &'static str,
    },
    /// The shape has more elements than can be counted.
    #[error("array `{}` has shape {shape:?}, more elements than can be addressed", path.display())]
    ShapeOverflow {
        /// The file.
        path: PathBuf,
        /// The announced shape.
        shape: Vec<usize>,
    },
    /// The file is shorter or longer than its header says.
    #[error("array `{}` has {found} bytes of numbers, wanted {wanted} for its shape {shape:?}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// The announced shape.
        shape: Vec<usize>,
        /// Bytes behind the header.
        found: u64,
        /// Bytes that the shape needs.
        wanted: u64,
    },
    /// The array is as large as it says, but memory is not.
    #[error("array `{}` has {elements} numbers, more than there is memory for", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// How many numbers it holds.
        elements: usize,
        /// What the allocator said.
        source: TryReserveError,
    },
    /// The array has another number of axes than its use needs.
    #[error("array `{}` has shape {found:?}, wanted {wanted}", path.display())]
    Rank {
        /// The file.
        path: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that was wanted, in words.
        wanted: &'static str,
    },
}

/// The numbers of an array, last axis fastest.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Single precision, or half precision widened.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

/// An array of numbers in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    shape: Vec<usize>,
    values: Values,
}

/// A table of numbers: rows of equal length, laid end to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// All rows, one after the other.
    pub values: Vec<f32>,
}

impl Array {
    /// Length of every axis, slowest first; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The numbers, last axis fastest.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The numbers in double precision, which loses nothing.
    pub fn into_f64(self) -> Vec<f64> {
        match self.values {
            Values::F32(values) => values.into_iter().map(f64::from).collect(),
            Values::F64(values) => values,
        }
    }

    /// The numbers in single precision: double precision is rounded, and infinite beyond the range of `f32`.
    pub fn into_f32(self) -> Vec<f32> {
        match self.values {
            Values::F32(values) => values,
            Values::F64(values) => values.into_iter().map(|value| value as f32).collect(),
        }
    }

    /// An array of two axes; `path` names the file in the error.
    pub fn into_matrix(self, path: &Path) -> Result<Matrix, NpyError> {
        let &[rows, columns] = self.shape.as_slice() else {
            return Err(NpyError::Rank {
                path: path.to_owned(),
                found: self.shape,
                wanted: "(rows, columns)",
            });
        };
        Ok(Matrix { rows, columns, values: self.into_f32() })
    }

    /// Arrays of two axes along the first of three, or the one array if there are only two.
    ///
    /// This is what sample files hold: `(samples, dimension)` for one query, `(queries, samples, dimension)` for many.
    pub fn into_matrices(self, path: &Path) -> Result<Vec<Matrix>, NpyError> {
        let (layers, rows, columns) = match *self.shape.as_slice() {
            [rows, columns] => (1, rows, columns),
            [layers, rows, columns] => (layers, rows, columns),
            _ => {
                let wanted = "(samples, dimension) or (queries, samples, dimension)";
                return Err(NpyError::Rank { path: path.to_owned(), found: self.shape, wanted });
            }
        };
        if layers == 0 || rows == 0 || columns == 0 {
            let wanted = "at least one query, one sample and one component";
            return Err(NpyError::Rank { path: path.to_owned(), found: self.shape, wanted });
        }
        let values = self.into_f32();
        if layers == 1 {
            return Ok(vec![Matrix { rows, columns, values }]);
        }
        let layer = |values: &[f32]| Matrix { rows, columns, values: values.to_vec() };
        Ok(values.chunks_exact(rows * columns).map(layer).collect())
    }
}

/// Reads an array from a file.
pub fn read(path: &Path) -> Result<Array, NpyError> {
    let failed = |source| NpyError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(NpyError::NotAFile { path: path.to_owned() });
    }
    read_from(&mut BufReader::with_capacity(1 << 16, file), metadata.len(), path)
}

/// Reads an array of two axes from a file, in single precision.
pub fn read_matrix(path: &Path) -> Result<Matrix, NpyError> {
    read(path)?.into_matrix(path)
}

/// Reads an array from something that holds exactly `size` bytes; `path` only names it in errors.
pub(super) fn read_from(reader: &mut impl Read, size: u64, path: &Path) -> Result<Array, NpyError> {
    let (header, header_size) = Header::read(reader, size, path)?;
    let overflow = || NpyError::ShapeOverflow { path: path.to_owned(), shape: header.shape.clone() };
    let elements = header.elements().ok_or_else(overflow)?;
    let wanted = (elements as u64).checked_mul(header.element.size() as u64).ok_or_else(overflow)?;
    let found = size - header_size;
    if found != wanted {
        return Err(NpyError::Size { path: path.to_owned(), shape: header.shape, found, wanted });
    }
    let values = match header.element {
        Element::F16 => {
            let decode = match header.byte_order {
                ByteOrder::Little => |bytes| half_to_single(u16::from_le_bytes(bytes)),
                ByteOrder::Big => |bytes| half_to_single(u16::from_be_bytes(bytes)),
            };
            Values::F32(read_values(reader, elements, decode, path)?)
        }
        Element::F32 => {
            let decode = match header.byte_order {
                ByteOrder::Little => f32::from_le_bytes,
                ByteOrder::Big => f32::from_be_bytes,
            };
            Values::F32(read_values(reader, elements, decode, path)?)
        }
        Element::F64 => {
            let decode = match header.byte_order {
                ByteOrder::Little => f64::from_le_bytes,
                ByteOrder::Big => f64::from_be_bytes,
            };
            Values::F64(read_values(reader, elements, decode, path)?)
        }
    };
    let values = match (header.order, values) {
        (Order::C, values) => values,
        (Order::Fortran, Values::F32(values)) => Values::F32(to_row_major(&values, &header.shape, path)?),
        (Order::Fortran, Values::F64(values)) => Values::F64(to_row_major(&values, &header.shape, path)?),
    };
    Ok(Array { shape: header.shape, values })
}

/// Writes single-precision numbers, last axis fastest, as a version 1 file.
///
/// Panics if the shape does not have as many elements as there are values.
pub fn write_f32(path: &Path, shape: &[usize], values: &[f32]) -> Result<(), WriteError> {
    let mut file = AtomicFile::create(path)?;
    write_f32_to(&mut file, shape, values).map_err(|error| WriteError::new(path, error))?;
    file.commit()
}

/// The bytes of [`write_f32`] to any writer.
pub(crate) fn write_f32_to(writer: &mut impl Write, shape: &[usize], values: &[f32]) -> io::Result<()> {
    write_values(writer, "<f4", shape, values.iter().map(|value| value.to_le_bytes()))
}

/// A header and numbers that are bytes already, last axis fastest.
pub(super) fn write_values<const SIZE: usize>(
    writer: &mut impl Write,
    element: &str,
    shape: &[usize],
    values: impl ExactSizeIterator<Item = [u8; SIZE]>,
) -> io::Result<()> {
    let elements: usize = shape.iter().product();
    assert_eq!(elements, values.len(), "a shape of {shape:?} for {} values", values.len());
    writer.write_all(&header::bytes(element, shape))?;
    let mut buffer = Vec::with_capacity(1 << 16);
    for value in values {
        buffer.extend_from_slice(&value);
        if buffer.len() + SIZE > 1 << 16 {
            writer.write_all(&buffer)?;
            buffer.clear();
        }
    }
    writer.write_all(&buffer)
}

/// The value of 16 bits in the half-precision format of IEEE 754; every one is an `f32`.
fn half_to_single(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        // Subnormal: a whole multiple of 2⁻²⁴.
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

/// Room for numbers, or an error instead of an abort.
fn room<T>(elements: usize, path: &Path) -> Result<Vec<T>, NpyError> {
    let mut values = Vec::new();
    values.try_reserve_exact(elements).map_err(|source| NpyError::Memory {
        path: path.to_owned(),
        elements,
        source,
    })?;
    Ok(values)
}

fn read_values<T, const SIZE: usize>(
    reader: &mut impl Read,
    elements: usize,
    decode: fn([u8; SIZE]) -> T,
    path: &Path,
) -> Result<Vec<T>, NpyError> {
    const PIECE: usize = 1 << 13;
    let mut values = room(elements, path)?;
    let mut buffer = [[0_u8; SIZE]; PIECE];
    while values.len() < elements {
        let piece = &mut buffer[..PIECE.min(elements - values.len())];
        reader
            .read_exact(piece.as_flattened_mut())
            .map_err(|source| NpyError::Read { path: path.to_owned(), source })?;
        values.extend(piece.iter().map(|&bytes| decode(bytes)));
    }
    Ok(values)
}

/// From first axis fastest to last axis fastest.
fn to_row_major<T: Copy>(values: &[T], shape: &[usize], path: &Path) -> Result<Vec<T>, NpyError> {
    let mut ordered = room(values.len(), path)?;
    if values.is_empty() {
        // The other axes may be longer than any product can count.
        return Ok(ordered);
    }
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = 1;
    for &length in shape {
        strides.push(stride);
        stride *= length;
    }
    let mut place = vec![0; shape.len()];
    let mut offset = 0;
    for _ in 0..values.len() {
        ordered.push(values[offset]);
        // Counts up like a clock, last axis first.
        for axis in (0..shape.len()).rev() {
            place[axis] += 1;
            offset += strides[axis];
            if place[axis] < shape[axis] {
                break;
            }
            offset -= place[axis] * strides[axis];
            place[axis] = 0;
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests;
