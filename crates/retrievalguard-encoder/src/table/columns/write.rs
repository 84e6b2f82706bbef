//! Columns on their way to a file.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use retrievalguard::storage::atomic::{AtomicFile, WriteError};

use super::AUTHOR;
use crate::table::TableError;

/// Rows per group: small enough to read a part, large enough to compress.
const GROUP_ROWS: usize = 1 << 16;

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
