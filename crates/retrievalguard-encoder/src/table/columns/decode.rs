//! The pages of one column, decoded with care: files come from anywhere.

use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use parquet::basic::Type as Physical;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::table::TableError;

/// Records decoded at a time.
const BATCH: usize = 4096;

/// The values of one column that are there, and the levels that say where.
pub(super) struct Leaf {
    pub(super) values: Decoded,
    /// For each place, whether a value is there; empty if all are.
    pub(super) present: Vec<bool>,
    /// For each place, whether it begins a row; empty if all do.
    pub(super) begins: Vec<bool>,
}

pub(super) enum Decoded {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
}

impl Decoded {
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Bool(_) => "booleans",
            Self::Int32(_) | Self::Int64(_) => "whole numbers",
            Self::Float(_) | Self::Double(_) => "numbers",
            Self::Bytes(_) => "text",
        }
    }
}

impl Leaf {
    /// Decodes a leaf of the schema, of one of the types in [`Decoded`], and counts its rows.
    pub(super) fn decode(
        file: &SerializedFileReader<File>,
        leaf: usize,
    ) -> Result<(Self, usize), ParquetError> {
        let descriptor = file.metadata().file_metadata().schema_descr().column(leaf);
        let mut decoder = Decoder { leaf, full: descriptor.max_def_level(), ..Decoder::default() };
        let values = match descriptor.physical_type() {
            Physical::BOOLEAN => Decoded::Bool(decoder.run(file, |reader| match reader {
                ColumnReader::BoolColumnReader(reader) => Some(reader),
                _ => None,
            })?),
            Physical::INT32 => Decoded::Int32(decoder.run(file, |reader| match reader {
                ColumnReader::Int32ColumnReader(reader) => Some(reader),
                _ => None,
            })?),
            Physical::INT64 => Decoded::Int64(decoder.run(file, |reader| match reader {
                ColumnReader::Int64ColumnReader(reader) => Some(reader),
                _ => None,
            })?),
            Physical::FLOAT => Decoded::Float(decoder.run(file, |reader| match reader {
                ColumnReader::FloatColumnReader(reader) => Some(reader),
                _ => None,
            })?),
            Physical::DOUBLE => Decoded::Double(decoder.run(file, |reader| match reader {
                ColumnReader::DoubleColumnReader(reader) => Some(reader),
                _ => None,
            })?),
            Physical::BYTE_ARRAY | Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY => {
                Decoded::Bytes(decoder.run(file, |reader| match reader {
                    ColumnReader::ByteArrayColumnReader(reader) => Some(reader),
                    _ => None,
                })?)
            }
        };
        Ok((Self { values, present: decoder.present, begins: decoder.begins }, decoder.records))
    }
}

/// Collects one leaf over all groups of rows.
#[derive(Default)]
struct Decoder {
    leaf: usize,
    /// The level at which a value is there.
    full: i16,
    present: Vec<bool>,
    begins: Vec<bool>,
    records: usize,
}

impl Decoder {
    fn run<T: DataType>(
        &mut self,
        file: &SerializedFileReader<File>,
        typed: fn(ColumnReader) -> Option<ColumnReaderImpl<T>>,
    ) -> Result<Vec<T::T>, ParquetError> {
        let mut values = Vec::new();
        for group in 0..file.num_row_groups() {
            let group = file.get_row_group(group)?;
            let pages = Box::new(BoundedPages(group.get_column_page_reader(self.leaf)?));
            let descriptor = group.metadata().column(self.leaf).column_descr_ptr();
            // One more than it announces shows that it has too many, however many more they are.
            let most = usize::try_from(group.metadata().num_rows()).unwrap_or(0) + 1;
            let mut in_group = 0;
            let mut reader = typed(get_column_reader(descriptor, pages))
                .ok_or_else(|| ParquetError::General("a column changes its type between groups".into()))?;
            let (mut definition, mut repetition) = (Vec::new(), Vec::new());
            loop {
                definition.clear();
                repetition.clear();
                let wanted = BATCH.min(most - in_group);
                let (records, ..) =
                    reader.read_records(wanted, Some(&mut definition), Some(&mut repetition), &mut values)?;
                in_group += records;
                self.present.extend(definition.iter().map(|&level| level == self.full));
                self.begins.extend(repetition.iter().map(|&level| level == 0));
                self.records += records;
                if records == 0 {
                    break;
                }
            }
        }
        Ok(values)
    }
}

/// Pages whose dictionaries have no more values than their bytes can hold: memory is taken by what they announce.
struct BoundedPages(Box<dyn PageReader>);

impl BoundedPages {
    fn checked(page: Page) -> Result<Page, ParquetError> {
        match &page {
            // A value takes a byte or more; only flags take less, and they have no dictionaries.
            Page::DictionaryPage { buf, num_values, .. } if *num_values as usize > buf.len() => {
                let bytes = buf.len();
                Err(ParquetError::General(format!(
                    "a dictionary announces {num_values} values in {bytes} bytes, wanted a byte or more for each"
                )))
            }
            Page::DictionaryPage { .. } | Page::DataPage { .. } | Page::DataPageV2 { .. } => Ok(page),
        }
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        self.0.get_next_page()?.map(Self::checked).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.0.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.0.at_record_boundary()
    }
}

/// Runs the decoder; damaged files may make it panic as well as fail, and both are an error of the file.
pub(super) fn contained<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, TableError> {
    let reason = match panic::catch_unwind(AssertUnwindSafe(decode)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the decoder gave up on it".to_owned(),
    };
    Err(TableError::Parquet { path: path.to_owned(), reason })
}
