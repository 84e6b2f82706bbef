//! CARS196 (Krause et al. 2013): one MAT-file that names the pictures, their classes and boxes.

use std::path::Path;

use super::mat::{self, Value};
use super::{Boxes, DatasetError, Format, PictureSource, Record, Role, Split};
use crate::picture::PixelBox;

/// The list, at the root.
pub(super) const ANNOTATIONS: &str = "cars_annos.mat";
const VARIABLE: &str = "annotations";
const CLASSES: usize = 196;
/// Metric learning trains on the classes up to this one; the field `test` is not used.
const LAST_TRAINING_CLASS: usize = 98;

/// Reads the list; `path` is the root or the list itself.
pub(super) fn read(path: &Path, boxes: Boxes) -> Result<Vec<Record>, DatasetError> {
    let file = if path.is_dir() { path.join(ANNOTATIONS) } else { path.to_owned() };
    let root = file.parent().unwrap_or(Path::new(""));
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound && path.is_dir() => {
            let (path, file) = (path.to_owned(), ANNOTATIONS.to_owned());
            return Err(DatasetError::MissingFile { path, file, format: Format::Cars });
        }
        Err(source) => return Err(DatasetError::Read { path: file, source }),
    };
    records(&bytes, root, boxes).map_err(|reason| DatasetError::Mat { file, reason })
}

fn records(bytes: &[u8], root: &Path, boxes: Boxes) -> Result<Vec<Record>, String> {
    let (fields, elements) = match mat::variable(bytes, VARIABLE)? {
        Some(Value::Structs { fields, elements }) => (fields, elements),
        Some(_) => return Err(format!("variable `{VARIABLE}` is not a struct array")),
        None => return Err(format!("it has no variable `{VARIABLE}`")),
    };
    let find = |wanted: &str| {
        let found = fields.iter().position(|field| field == wanted);
        found.ok_or_else(|| format!("`{VARIABLE}` has no field `{wanted}`, found {}", fields.join(", ")))
    };
    let path_field = find("relative_im_path")?;
    let class_field = find("class")?;
    let corner_fields = match boxes {
        Boxes::Crop => Some([find("bbox_x1")?, find("bbox_y1")?, find("bbox_x2")?, find("bbox_y2")?]),
        Boxes::Usual | Boxes::Ignore => None,
    };
    let annotation = |number: usize, element: &[Value]| {
        let wrong = |field: usize, wanted: &str| {
            let found = element.get(field).map_or("nothing".to_owned(), Value::to_string);
            format!("annotation {} has `{}` {found}, wanted {wanted}", number + 1, fields[field])
        };
        let whole = |field: usize, most: usize| {
            let value = element.get(field).and_then(Value::number).unwrap_or(f64::NAN);
            if value.fract() == 0.0 && (1.0..=most as f64).contains(&value) {
                Ok(value as usize)
            } else {
                Err(wrong(field, &format!("a whole number from 1 to {most}")))
            }
        };
        let path = match element.get(path_field) {
            Some(Value::Text(path)) if !path.is_empty() => path.clone(),
            _ => return Err(wrong(path_field, "a path")),
        };
        let class = whole(class_field, CLASSES)?;
        let crop = match corner_fields {
            // MATLAB counts pixels from one and includes the last.
            Some(corners) => {
                let [left, top, right, bottom] = corners.map(|field| whole(field, u32::MAX as usize));
                Some(PixelBox { left: left? - 1, top: top? - 1, right: right?, bottom: bottom? })
            }
            None => None,
        };
        Ok(Record {
            identity: path.clone(),
            source: PictureSource::File(root.join(path)),
            crop,
            label: class.to_string(),
            category: None,
            split: Some(if class <= LAST_TRAINING_CLASS { Split::Train } else { Split::Test }),
            role: Role::Unassigned,
        })
    };
    elements.iter().enumerate().map(|(number, element)| annotation(number, element)).collect()
}
