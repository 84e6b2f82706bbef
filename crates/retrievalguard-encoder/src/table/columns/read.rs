//! Columns by their names, as text, numbers, flags and vectors.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::Type as Physical;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::AUTHOR;
use super::decode::{Decoded, Leaf, contained};
use crate::table::TableError;

/// A Parquet file, open for reading its columns by name.
pub(in crate::table) struct Table {
    reader: SerializedFileReader<File>,
    path: PathBuf,
    rows: usize,
}

impl Table {
    pub(in crate::table) fn open(path: &Path) -> Result<Self, TableError> {
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

    pub(in crate::table) fn rows(&self) -> usize {
        self.rows
    }

    /// Text that was stored beside the columns.
    pub(in crate::table) fn metadata(&self) -> Vec<(String, String)> {
        let entries = self.reader.metadata().file_metadata().key_value_metadata();
        entries
            .into_iter()
            .flatten()
            .filter_map(|entry| Some((entry.key.clone(), entry.value.clone()?)))
            .collect()
    }

    /// Whether this tool wrote the file.
    pub(in crate::table) fn is_ours(&self) -> bool {
        let author = self.reader.metadata().file_metadata().created_by();
        author.is_some_and(|author| author.starts_with(AUTHOR))
    }

    /// Names of the columns at the top, in order.
    pub(in crate::table) fn names(&self) -> Vec<String> {
        let schema = self.reader.metadata().file_metadata().schema();
        schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
    }

    pub(in crate::table) fn has(&self, name: &str) -> bool {
        self.names().iter().any(|found| found == name)
    }

    /// Text of every row; whole numbers are read as their digits, because labels often are numbers.
    pub(in crate::table) fn optional_text(&self, name: &str) -> Result<Vec<Option<String>>, TableError> {
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
    pub(in crate::table) fn text(&self, name: &str) -> Result<Vec<String>, TableError> {
        self.complete(name, self.optional_text(name)?)
    }

    pub(in crate::table) fn optional_numbers(&self, name: &str) -> Result<Vec<Option<f64>>, TableError> {
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

    pub(in crate::table) fn numbers(&self, name: &str) -> Result<Vec<f64>, TableError> {
        self.complete(name, self.optional_numbers(name)?)
    }

    pub(in crate::table) fn counts(&self, name: &str) -> Result<Vec<i64>, TableError> {
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

    pub(in crate::table) fn flags(&self, name: &str) -> Result<Vec<bool>, TableError> {
        let leaf = self.flat(name)?;
        let found = leaf.values.describe();
        let Decoded::Bool(values) = leaf.values else {
            return Err(self.other_type(name, found, "booleans"));
        };
        self.complete(name, spread(values, &leaf.present))
    }

    /// Vectors of one length, laid end to end, and that length.
    pub(in crate::table) fn vectors(&self, name: &str) -> Result<(Vec<f32>, usize), TableError> {
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
        let (leaf, records) = contained(&self.path, || Leaf::decode(&self.reader, leaf))?;
        if records != self.rows {
            let reason = format!("column `{name}` has {records} rows, the table {}", self.rows);
            return Err(TableError::Parquet { path: self.path.clone(), reason });
        }
        Ok(leaf)
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
