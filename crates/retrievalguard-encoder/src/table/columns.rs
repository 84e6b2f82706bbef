//! Parquet, one column at a time.

use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use retrievalguard::storage::atomic::{AtomicFile, WriteError};

use super::TableError;

/// Rows per group: small enough to read a part, large enough to compress.
const GROUP_ROWS: usize = 1 << 16;

/// How files name the program that wrote them, before its version.
const AUTHOR: &str = "retrievalguard ";

/// Records decoded at a time.
const BATCH: usize = 4096;

/// One column to be written.
pub(crate) enum Column<'a> {
    Text(Vec<&'a str>),
    OptionalText(Vec<Option<&'a str>>),
    Count(Vec<i64>),
    Number(Vec<f64>),
    OptionalNumber(Vec<Option<f64>>),
    Flag(Vec<bool>),
    /// Vectors of one length, laid end to end.
    Vectors {
        values: &'a [f32],
        dimension: usize,
    },
}

/// Writes a table; the same columns give the same bytes.
pub(crate) fn write(
    path: &Path,
    rows: usize,
    columns: &[(String, Column<'_>)],
    metadata: &[(String, String)],
) -> Result<(), TableError> {
    let mut file = AtomicFile::create(path)?;
    write_to(&mut file, rows, columns, metadata).map_err(|error| match error {
        // Only the device can fail here, and it says so through the writer.
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => WriteError::new(path, *source).into(),
            Err(source) => TableError::Parquet { path: path.to_owned(), reason: source.to_string() },
        },
        error => TableError::Parquet { path: path.to_owned(), reason: error.to_string() },
    })?;
    Ok(file.commit()?)
}

fn write_to(
    file: &mut AtomicFile,
    rows: usize,
    columns: &[(String, Column<'_>)],
    metadata: &[(String, String)],
) -> Result<(), ParquetError> {
    let fields = columns.iter().map(|(name, column)| column.field(name)).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("table").with_fields(fields).build()?;
    let entries = metadata.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("{AUTHOR}{}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(entries))
        .build();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
    let mut start = 0;
    while start < rows {
        let end = rows.min(start + GROUP_ROWS);
        let mut group = writer.next_row_group()?;
        for (_, column) in columns {
            column.write(&mut group, start, end)?;
        }
        group.close()?;
        start = end;
    }
    writer.close()?;
    Ok(())
}

impl Column<'_> {
    fn field(&self, name: &str) -> Result<TypePtr, ParquetError> {
        let primitive = |name: &str, physical, repetition, logical| {
            Type::primitive_type_builder(name, physical)
                .with_repetition(repetition)
                .with_logical_type(logical)
                .build()
                .map(Arc::new)
        };
        let text = Some(LogicalType::String);
        match self {
            Self::Text(_) => primitive(name, Physical::BYTE_ARRAY, Repetition::REQUIRED, text),
            Self::OptionalText(_) => primitive(name, Physical::BYTE_ARRAY, Repetition::OPTIONAL, text),
            Self::Count(_) => primitive(name, Physical::INT64, Repetition::REQUIRED, None),
            Self::Number(_) => primitive(name, Physical::DOUBLE, Repetition::REQUIRED, None),
            Self::OptionalNumber(_) => primitive(name, Physical::DOUBLE, Repetition::OPTIONAL, None),
            Self::Flag(_) => primitive(name, Physical::BOOLEAN, Repetition::REQUIRED, None),
            Self::Vectors { .. } => {
                let element = primitive("element", Physical::FLOAT, Repetition::REQUIRED, None)?;
                let list = Type::group_type_builder("list")
                    .with_repetition(Repetition::REPEATED)
                    .with_fields(vec![element])
                    .build()?;
                Type::group_type_builder(name)
                    .with_repetition(Repetition::REQUIRED)
                    .with_logical_type(Some(LogicalType::List))
                    .with_fields(vec![Arc::new(list)])
                    .build()
                    .map(Arc::new)
            }
        }
    }

    /// Writes the rows `start..end` as the next column of a group.
    fn write<W: std::io::Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
        start: usize,
        end: usize,
    ) -> Result<(), ParquetError> {
        match self {
            Self::Text(values) => {
                let values: Vec<ByteArray> = values[start..end].iter().map(|&text| text.into()).collect();
                write_column::<ByteArrayType, W>(group, &values, None, None)
            }
            Self::OptionalText(values) => {
                let present: Vec<ByteArray> =
                    values[start..end].iter().flatten().map(|&text| text.into()).collect();
                let levels = levels(&values[start..end]);
                write_column::<ByteArrayType, W>(group, &present, Some(&levels), None)
            }
            Self::Count(values) => write_column::<Int64Type, W>(group, &values[start..end], None, None),
            Self::Number(values) => write_column::<DoubleType, W>(group, &values[start..end], None, None),
            Self::OptionalNumber(values) => {
                let present: Vec<f64> = values[start..end].iter().flatten().copied().collect();
                let levels = levels(&values[start..end]);
                write_column::<DoubleType, W>(group, &present, Some(&levels), None)
            }
            Self::Flag(values) => write_column::<BoolType, W>(group, &values[start..end], None, None),
            Self::Vectors { values, dimension } => {
                let values = &values[start * dimension..end * dimension];
                let definition = vec![1; values.len()];
                let repetition: Vec<i16> =
                    (0..values.len()).map(|place| i16::from(place % dimension != 0)).collect();
                write_column::<FloatType, W>(group, values, Some(&definition), Some(&repetition))
            }
        }
    }
}

/// One for every value that is there.
fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
    values.iter().map(|value| i16::from(value.is_some())).collect()
}

fn write_column<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("the schema has fewer columns than the table".into()))?;
    column.typed::<T>().write_batch(values, definition, repetition)?;
    column.close()
}

/// A Parquet file, open for reading its columns by name.
pub(super) struct Table {
    reader: SerializedFileReader<File>,
    path: PathBuf,
    rows: usize,
}

/// The values of one column that are there, and the levels that say where.
struct Leaf {
    values: Decoded,
    /// For each place, whether a value is there; empty if all are.
    present: Vec<bool>,
    /// For each place, whether it begins a row; empty if all do.
    begins: Vec<bool>,
}

enum Decoded {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
}

impl Decoded {
    fn describe(&self) -> &'static str {
        match self {
            Self::Bool(_) => "booleans",
            Self::Int32(_) | Self::Int64(_) => "whole numbers",
            Self::Float(_) | Self::Double(_) => "numbers",
            Self::Bytes(_) => "text",
        }
    }
}

impl Table {
    pub(super) fn open(path: &Path) -> Result<Self, TableError> {
        let file = File::open(path).map_err(|source| TableError::Read { path: path.to_owned(), source })?;
        let reader = contained(path, || SerializedFileReader::new(file))?;
        let found = reader.metadata().file_metadata().num_rows();
        let groups = reader.metadata().row_groups();
        let total = groups.iter().try_fold(0_i64, |total, group| total.checked_add(group.num_rows()));
        // Rows of a gallery are numbered with 32 bits, so more can never be used.
        let rows = u32::try_from(found)
            .ok()
            .filter(|_| total == Some(found) && groups.iter().all(|group| group.num_rows() >= 0))
            .ok_or_else(|| TableError::Parquet {
                path: path.to_owned(),
                reason: format!(
                    "it announces {found} rows, its groups {total:?}, wanted the same below 2^32"
                ),
            })?;
        Ok(Self { reader, path: path.to_owned(), rows: rows as usize })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Text that was stored beside the columns.
    pub(super) fn metadata(&self) -> Vec<(String, String)> {
        let entries = self.reader.metadata().file_metadata().key_value_metadata();
        entries
            .into_iter()
            .flatten()
            .filter_map(|entry| Some((entry.key.clone(), entry.value.clone()?)))
            .collect()
    }

    /// Whether this tool wrote the file.
    pub(super) fn is_ours(&self) -> bool {
        let author = self.reader.metadata().file_metadata().created_by();
        author.is_some_and(|author| author.starts_with(AUTHOR))
    }

    /// Names of the columns at the top, in order.
    pub(super) fn names(&self) -> Vec<String> {
        let schema = self.reader.metadata().file_metadata().schema();
        schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().iter().any(|found| found == name)
    }

    /// Text of every row; whole numbers are read as their digits, because labels often are numbers.
    pub(super) fn optional_text(&self, name: &str) -> Result<Vec<Option<String>>, TableError> {
        let leaf = self.flat(name)?;
        let found = leaf.values.describe();
        let values: Vec<String> = match leaf.values {
            Decoded::Bytes(values) => {
                let mut texts = Vec::with_capacity(values.len());
                for (row, value) in values.iter().enumerate() {
                    let text = str::from_utf8(value.data())
                        .map_err(|_| TableError::value(&self.path, row, name, "not UTF-8", "text"))?;
                    texts.push(text.to_owned());
                }
                texts
            }
            Decoded::Int32(values) => values.iter().map(ToString::to_string).collect(),
            Decoded::Int64(values) => values.iter().map(ToString::to_string).collect(),
            Decoded::Bool(_) | Decoded::Float(_) | Decoded::Double(_) => {
                return Err(self.other_type(name, found, "text"));
            }
        };
        Ok(spread(values, &leaf.present))
    }

    /// Text of every row, none missing.
    pub(super) fn text(&self, name: &str) -> Result<Vec<String>, TableError> {
        self.complete(name, self.optional_text(name)?)
    }

    pub(super) fn optional_numbers(&self, name: &str) -> Result<Vec<Option<f64>>, TableError> {
        let leaf = self.flat(name)?;
        let found = leaf.values.describe();
        let values: Vec<f64> = match leaf.values {
            Decoded::Double(values) => values,
            Decoded::Float(values) => values.into_iter().map(f64::from).collect(),
            Decoded::Int32(values) => values.into_iter().map(f64::from).collect(),
            Decoded::Int64(values) => values.into_iter().map(|value| value as f64).collect(),
            Decoded::Bool(_) | Decoded::Bytes(_) => return Err(self.other_type(name, found, "numbers")),
        };
        Ok(spread(values, &leaf.present))
    }

    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f64>, TableError> {
        self.complete(name, self.optional_numbers(name)?)
    }

    pub(super) fn counts(&self, name: &str) -> Result<Vec<i64>, TableError> {
        let leaf = self.flat(name)?;
        let found = leaf.values.describe();
        let values: Vec<i64> = match leaf.values {
            Decoded::Int64(values) => values,
            Decoded::Int32(values) => values.into_iter().map(i64::from).collect(),
            Decoded::Bool(_) | Decoded::Float(_) | Decoded::Double(_) | Decoded::Bytes(_) => {
                return Err(self.other_type(name, found, "whole numbers"));
            }
        };
        self.complete(name, spread(values, &leaf.present))
    }

    pub(super) fn flags(&self, name: &str) -> Result<Vec<bool>, TableError> {
        let leaf = self.flat(name)?;
        let found = leaf.values.describe();
        let Decoded::Bool(values) = leaf.values else {
            return Err(self.other_type(name, found, "booleans"));
        };
        self.complete(name, spread(values, &leaf.present))
    }

    /// Vectors of one length, laid end to end, and that length.
    pub(super) fn vectors(&self, name: &str) -> Result<(Vec<f32>, usize), TableError> {
        let wanted = "a list of numbers per row";
        let leaf = self.leaf(name, 1, wanted)?;
        let found = leaf.values.describe();
        let values = match leaf.values {
            Decoded::Float(values) => values,
            Decoded::Double(values) => values.into_iter().map(|value| value as f32).collect(),
            Decoded::Bool(_) | Decoded::Int32(_) | Decoded::Int64(_) | Decoded::Bytes(_) => {
                return Err(self.other_type(name, &format!("lists of {found}"), wanted));
            }
        };
        let mut row = 0;
        let (mut length, mut dimension) = (0, None);
        for place in 0..=leaf.begins.len() {
            let begins = leaf.begins.get(place).copied().unwrap_or(true);
            if begins && place > 0 {
                let first = *dimension.get_or_insert(length);
                if length != first {
                    let wanted = format!("{first} as in row 0");
                    return Err(TableError::value(
                        &self.path,
                        row,
                        name,
                        format!("{length} numbers"),
                        &wanted,
                    ));
                }
                (row, length) = (row + 1, 0);
            }
            if leaf.present.get(place) == Some(&false) {
                return Err(TableError::value(&self.path, row, name, "missing or empty", wanted));
            }
            length += 1;
        }
        Ok((values, dimension.unwrap_or(0)))
    }

    fn complete<T>(&self, name: &str, values: Vec<Option<T>>) -> Result<Vec<T>, TableError> {
        let missing = |row| TableError::value(&self.path, row, name, "missing", "a value in every row");
        values.into_iter().enumerate().map(|(row, value)| value.ok_or_else(|| missing(row))).collect()
    }

    fn other_type(&self, name: &str, found: &str, wanted: &'static str) -> TableError {
        let (path, column, found) = (self.path.clone(), name.to_owned(), found.to_owned());
        TableError::ColumnType { path, column, found, wanted }
    }

    fn flat(&self, name: &str) -> Result<Leaf, TableError> {
        self.leaf(name, 0, "one value per row")
    }

    /// Decodes the one leaf of a column with so many levels of lists.
    fn leaf(&self, name: &str, lists: i16, wanted: &'static str) -> Result<Leaf, TableError> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let leaves: Vec<usize> = (0..schema.num_columns())
            .filter(|&leaf| schema.column(leaf).path().parts().first().is_some_and(|part| part == name))
            .collect();
        let &[leaf] = leaves.as_slice() else {
            if leaves.is_empty() {
                let names: Vec<String> = self.names().iter().map(|name| format!("`{name}`")).collect();
                let (path, column, found) = (self.path.clone(), name.to_owned(), names.join(", "));
                return Err(TableError::NoColumn { path, column, found });
            }
            return Err(self.other_type(name, &format!("{} columns", leaves.len()), wanted));
        };
        let descriptor = schema.column(leaf);
        if descriptor.max_rep_level() != lists {
            let found = format!("{} levels of lists", descriptor.max_rep_level());
            return Err(self.other_type(name, &found, wanted));
        }
        match descriptor.physical_type() {
            Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY => {
                let found = descriptor.physical_type().to_string();
                return Err(self.other_type(name, &found, wanted));
            }
            Physical::BOOLEAN
            | Physical::INT32
            | Physical::INT64
            | Physical::FLOAT
            | Physical::DOUBLE
            | Physical::BYTE_ARRAY => {}
        }
        let found = contained(&self.path, || {
            let mut decoder = Decoder { leaf, full: descriptor.max_def_level(), ..Decoder::default() };
            let values = match descriptor.physical_type() {
                Physical::BOOLEAN => Decoded::Bool(decoder.run(&self.reader, |reader| match reader {
                    ColumnReader::BoolColumnReader(reader) => Some(reader),
                    _ => None,
                })?),
                Physical::INT32 => Decoded::Int32(decoder.run(&self.reader, |reader| match reader {
                    ColumnReader::Int32ColumnReader(reader) => Some(reader),
                    _ => None,
                })?),
                Physical::INT64 => Decoded::Int64(decoder.run(&self.reader, |reader| match reader {
                    ColumnReader::Int64ColumnReader(reader) => Some(reader),
                    _ => None,
                })?),
                Physical::FLOAT => Decoded::Float(decoder.run(&self.reader, |reader| match reader {
                    ColumnReader::FloatColumnReader(reader) => Some(reader),
                    _ => None,
                })?),
                Physical::DOUBLE => Decoded::Double(decoder.run(&self.reader, |reader| match reader {
                    ColumnReader::DoubleColumnReader(reader) => Some(reader),
                    _ => None,
                })?),
                Physical::BYTE_ARRAY | Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY => {
                    Decoded::Bytes(decoder.run(&self.reader, |reader| match reader {
                        ColumnReader::ByteArrayColumnReader(reader) => Some(reader),
                        _ => None,
                    })?)
                }
            };
            Ok((Leaf { values, present: decoder.present, begins: decoder.begins }, decoder.records))
        })?;
        let (leaf, records) = found;
        if records != self.rows {
            let reason = format!("column `{name}` has {records} rows, the table {}", self.rows);
            return Err(TableError::Parquet { path: self.path.clone(), reason });
        }
        Ok(leaf)
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

/// Puts values where they are present.
fn spread<T>(values: Vec<T>, present: &[bool]) -> Vec<Option<T>> {
    if present.is_empty() {
        return values.into_iter().map(Some).collect();
    }
    let mut values = values.into_iter();
    present.iter().map(|&here| if here { values.next() } else { None }).collect()
}

/// Runs the decoder; damaged files may make it panic as well as fail, and both are an error of the file.
fn contained<T>(path: &Path, decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, TableError> {
    let reason = match panic::catch_unwind(AssertUnwindSafe(decode)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the decoder gave up on it".to_owned(),
    };
    Err(TableError::Parquet { path: path.to_owned(), reason })
}
