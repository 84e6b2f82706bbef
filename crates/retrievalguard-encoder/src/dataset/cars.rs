//! CARS196 (Krause et al. 2013), in both of its layouts.
//!
//! The metric-learning archive has one list for all pictures, `cars_annos.mat` beside `car_ims/`. The classification
//! archive, which most people have, has a list for each half: `devkit/cars_train_annos.mat` beside `cars_train/`, and
//! `cars_test_annos_withlabels.mat`, which came later, beside `cars_test/`. The halves are not the splits of metric
//! learning: both hold all classes, and the splits divide the classes.

use std::path::{Path, PathBuf};

use super::mat::{self, Value};
use super::{Boxes, DatasetError, Format, PictureSource, Record, Role, Split};
use crate::picture::PixelBox;

/// The list of the metric-learning archive, at the root.
const ANNOTATIONS: &str = "cars_annos.mat";
/// The folder of its pictures, which is in the paths of the list.
const PICTURES: &str = "car_ims";
/// The classification archive's lists, each with the folder of its pictures.
const HALVES: [(&str, &str); 2] =
    [("cars_train_annos.mat", "cars_train"), ("cars_test_annos_withlabels.mat", "cars_test")];
/// Where the classification archive keeps its lists; torchvision puts the second one at the root.
const DEVKIT: &str = "devkit";
const VARIABLE: &str = "annotations";
const CLASSES: usize = 196;
/// Metric learning trains on the classes up to this one, whichever half a picture is in.
const LAST_TRAINING_CLASS: usize = 98;

/// One list and what it says of its pictures.
struct List {
    file: PathBuf,
    /// The field with a picture's path.
    path_field: &'static str,
    /// The folder that it is relative to, if that is not the root.
    folder: Option<&'static str>,
}

impl List {
    fn whole(file: PathBuf) -> Self {
        Self { file, path_field: "relative_im_path", folder: None }
    }

    fn half(file: PathBuf, folder: &'static str) -> Self {
        Self { file, path_field: "fname", folder: Some(folder) }
    }
}

/// What was read.
pub(super) struct Cars {
    pub(super) records: Vec<Record>,
    /// What a person should know about the lists.
    pub(super) notes: Vec<String>,
}

/// Whether a folder holds a list.
pub(super) fn looks_like(root: &Path) -> bool {
    !lists(root).is_empty()
}

/// The lists of a folder: the one for all pictures, or those of the halves that are there.
///
/// Where there are both kinds, the pictures decide: the list for all is only of use beside `car_ims/`.
fn lists(root: &Path) -> Vec<List> {
    let half = |(list, folder): (&str, &'static str)| {
        let places = [root.join(DEVKIT).join(list), root.join(list)];
        places.into_iter().find(|file| file.is_file()).map(|file| List::half(file, folder))
    };
    let halves: Vec<List> = HALVES.into_iter().filter_map(half).collect();
    let whole = root.join(ANNOTATIONS);
    if whole.is_file() && (halves.is_empty() || root.join(PICTURES).is_dir()) {
        return vec![List::whole(whole)];
    }
    halves
}

/// The folder that a list's pictures are relative to, and the list.
fn single(file: &Path) -> (PathBuf, List) {
    let folder = file.parent().unwrap_or(Path::new(""));
    let half = HALVES.into_iter().find(|(list, _)| file.file_name().is_some_and(|name| name == *list));
    match half {
        Some((_, pictures)) => {
            let inside = folder.file_name().is_some_and(|name| name == DEVKIT);
            let root = if inside { folder.parent().unwrap_or(folder) } else { folder };
            (root.to_owned(), List::half(file.to_owned(), pictures))
        }
        None => (folder.to_owned(), List::whole(file.to_owned())),
    }
}

/// Reads the lists; `path` is the root or one of the lists.
pub(super) fn read(path: &Path, boxes: Boxes) -> Result<Cars, DatasetError> {
    let (root, lists) = if path.is_dir() {
        (path.to_owned(), lists(path))
    } else {
        let (root, list) = single(path);
        (root, vec![list])
    };
    if lists.is_empty() {
        let file = format!("{ANNOTATIONS}` or `{DEVKIT}/{}", HALVES[0].0);
        return Err(DatasetError::MissingFile { path: root, file, format: Format::Cars });
    }
    let mut records = Vec::new();
    for list in &lists {
        let bytes = std::fs::read(&list.file)
            .map_err(|source| DatasetError::Read { path: list.file.clone(), source })?;
        let read = annotated(&bytes, list, &root, boxes);
        records.extend(read.map_err(|reason| DatasetError::Mat { file: list.file.clone(), reason })?);
    }
    let unlisted = |(_, folder): &(&str, &str)| {
        let listed = |list: &List| list.folder.is_none_or(|known| known == *folder);
        path.is_dir() && root.join(folder).is_dir() && !lists.iter().any(listed)
    };
    let note = |(list, folder): (&str, &str)| {
        format!("the pictures in `{folder}` are left out, because no `{list}` says what they show")
    };
    Ok(Cars { records, notes: HALVES.into_iter().filter(unlisted).map(note).collect() })
}

fn annotated(bytes: &[u8], list: &List, root: &Path, boxes: Boxes) -> Result<Vec<Record>, String> {
    let (fields, elements) = match mat::variable(bytes, VARIABLE)? {
        Some(Value::Structs { fields, elements }) => (fields, elements),
        Some(_) => return Err(format!("variable `{VARIABLE}` is not a struct array")),
        None => return Err(format!("it has no variable `{VARIABLE}`")),
    };
    let find = |wanted: &str| {
        let found = fields.iter().position(|field| field == wanted);
        found.ok_or_else(|| format!("`{VARIABLE}` has no field `{wanted}`, found {}", fields.join(", ")))
    };
    let path_field = find(list.path_field)?;
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
            Some(Value::Text(path)) if !path.is_empty() => {
                list.folder.map_or_else(|| path.clone(), |folder| format!("{folder}/{path}"))
            }
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
