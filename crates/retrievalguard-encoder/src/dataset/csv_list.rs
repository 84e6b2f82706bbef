//! open-metric-learning's list of pictures.

use std::fs::File;
use std::path::Path;

use csv::StringRecord;

use super::{Boxes, DatasetError, PictureSource, Record, Role, Split};
use crate::picture::PixelBox;

/// Columns of the box, in the order of [`PixelBox`].
const BOX: [&str; 4] = ["x_1", "y_1", "x_2", "y_2"];

/// Where the columns are.
struct Columns {
    label: usize,
    path: usize,
    split: usize,
    is_query: usize,
    is_gallery: usize,
    category: Option<usize>,
    corners: Option<[usize; 4]>,
}

impl Columns {
    fn find(file: &Path, header: &StringRecord) -> Result<Self, DatasetError> {
        let find = |wanted: &str| {
            header.iter().position(|name| name.trim_start_matches('\u{feff}').trim() == wanted)
        };
        let need = |column: &str| {
            find(column).ok_or_else(|| DatasetError::MissingColumn {
                file: file.to_owned(),
                column: column.to_owned(),
                found: header.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            })
        };
        let corners = if BOX.iter().any(|name| find(name).is_some()) {
            Some([need(BOX[0])?, need(BOX[1])?, need(BOX[2])?, need(BOX[3])?])
        } else {
            None
        };
        Ok(Self {
            label: need("label")?,
            path: need("path")?,
            split: need("split")?,
            is_query: need("is_query")?,
            is_gallery: need("is_gallery")?,
            category: find("category"),
            corners,
        })
    }
}

/// One row, with what its errors need.
struct Row<'a> {
    file: &'a Path,
    line: u64,
    fields: &'a StringRecord,
}

impl Row<'_> {
    fn field(&self, column: usize) -> &str {
        self.fields.get(column).unwrap_or("").trim()
    }

    fn wrong(&self, column: &str, text: &str, wanted: &str) -> DatasetError {
        let (file, found) = (self.file.to_owned(), format!("{column} is `{text}`"));
        DatasetError::Line { file, line: self.line, found, wanted: wanted.to_owned() }
    }

    fn filled(&self, column: usize, name: &str) -> Result<&str, DatasetError> {
        match self.field(column) {
            "" => Err(self.wrong(name, "", "some text")),
            text => Ok(text),
        }
    }

    /// Empty for rows of the training split; pandas may write numbers.
    fn truth(&self, column: usize, name: &str) -> Result<Option<bool>, DatasetError> {
        match self.field(column) {
            "" => Ok(None),
            "True" | "true" | "TRUE" | "1" | "1.0" => Ok(Some(true)),
            "False" | "false" | "FALSE" | "0" | "0.0" => Ok(Some(false)),
            text => Err(self.wrong(name, text, "True, False or nothing")),
        }
    }

    fn split(&self, column: usize) -> Result<Split, DatasetError> {
        match self.field(column) {
            "train" => Ok(Split::Train),
            "validation" => Ok(Split::Validation),
            "test" => Ok(Split::Test),
            text => Err(self.wrong("split", text, "train, validation or test")),
        }
    }

    fn corners(&self, columns: [usize; 4]) -> Result<Option<PixelBox>, DatasetError> {
        if columns.iter().all(|&column| self.field(column).is_empty()) {
            return Ok(None);
        }
        let mut corners = [0; 4];
        for ((corner, column), name) in corners.iter_mut().zip(columns).zip(BOX) {
            let text = self.field(column);
            // pandas writes whole numbers as `12.0` once a column has gaps.
            *corner = match text.parse::<f64>() {
                Ok(value) if (0.0..1e9).contains(&value) => value as usize,
                _ => return Err(self.wrong(name, text, "a number of pixels, 0 or more")),
            };
        }
        let [left, top, right, bottom] = corners;
        if left >= right || top >= bottom {
            let found = format!("({left}, {top}) to ({right}, {bottom})");
            return Err(self.wrong("the box", &found, "x_1 below x_2 and y_1 below y_2"));
        }
        Ok(Some(PixelBox { left, top, right, bottom }))
    }
}

/// Reads the list; paths are relative to it.
pub(super) fn read(file: &Path, boxes: Boxes) -> Result<Vec<Record>, DatasetError> {
    let opened = File::open(file).map_err(|source| DatasetError::Read { path: file.to_owned(), source })?;
    let mut reader = csv::ReaderBuilder::new().from_reader(opened);
    let failed = |error| failed(file, error);
    let columns = Columns::find(file, &reader.headers().map_err(failed)?.clone())?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut records = Vec::new();
    for fields in reader.records() {
        let fields = fields.map_err(failed)?;
        let row = Row { file, line: fields.position().map_or(0, csv::Position::line), fields: &fields };
        let path = row.filled(columns.path, "path")?;
        let crop = match (columns.corners, boxes) {
            (Some(columns), Boxes::Usual | Boxes::Crop) => row.corners(columns)?,
            (None, _) | (_, Boxes::Ignore) => None,
        };
        let role = match (
            row.truth(columns.is_query, "is_query")?.unwrap_or(false),
            row.truth(columns.is_gallery, "is_gallery")?.unwrap_or(false),
        ) {
            (true, true) => Role::Both,
            (true, false) => Role::Query,
            (false, true) => Role::Gallery,
            (false, false) => Role::Unassigned,
        };
        let identity = match crop {
            // A list may name a picture once for each thing in it.
            Some(PixelBox { left, top, right, bottom }) => format!("{path}#{left},{top},{right},{bottom}"),
            None => path.to_owned(),
        };
        records.push(Record {
            identity,
            source: PictureSource::File(folder.join(path)),
            crop,
            label: row.filled(columns.label, "label")?.to_owned(),
            category: columns
                .category
                .map(|column| row.field(column))
                .filter(|text| !text.is_empty())
                .map(str::to_owned),
            split: Some(row.split(columns.split)?),
            role,
        });
    }
    Ok(records)
}

/// What the reader of comma-separated values said, as an error of the data set.
fn failed(file: &Path, error: csv::Error) -> DatasetError {
    let line = error.position().map_or(1, csv::Position::line);
    let (found, wanted) = match error.into_kind() {
        csv::ErrorKind::Io(source) => return DatasetError::Read { path: file.to_owned(), source },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            (format!("{len} fields"), format!("{expected_len}, as in the header"))
        }
        csv::ErrorKind::Utf8 { .. } => ("bytes that are not text".to_owned(), "UTF-8".to_owned()),
        other => (format!("{other:?}"), "comma-separated values".to_owned()),
    };
    DatasetError::Line { file: file.to_owned(), line, found, wanted }
}
