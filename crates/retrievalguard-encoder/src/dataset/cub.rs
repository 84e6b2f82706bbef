//! CUB-200-2011 (Wah et al. 2011): two lists, joined by the picture's number.

use std::collections::HashMap;
use std::path::Path;

use super::{DatasetError, Format, PictureSource, Record, Role, Split, read_text};

/// List of `number path`.
pub(super) const PICTURES: &str = "images.txt";
/// List of `number class`.
pub(super) const LABELS: &str = "image_class_labels.txt";
const CLASSES: u32 = 200;
/// Metric learning trains on the classes up to this one; `train_test_split.txt` is not used.
const LAST_TRAINING_CLASS: u32 = 100;

/// The lines of a list as number and rest, with their line numbers.
fn lines<'a>(
    root: &'a Path,
    file: &'static str,
    text: &'a str,
) -> impl Iterator<Item = Result<(u64, u32, &'a str), DatasetError>> {
    text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()).map(move |(line, number)| {
        let parts = line.trim().split_once(' ');
        let parsed = parts.and_then(|(key, rest)| Some((number, key.parse().ok()?, rest.trim())));
        parsed.ok_or_else(|| wrong(root, file, number, format!("`{line}`"), "a picture's number and a value"))
    })
}

fn wrong(root: &Path, file: &str, line: u64, found: String, wanted: &str) -> DatasetError {
    DatasetError::Line { file: root.join(file), line, found, wanted: wanted.to_owned() }
}

/// Reads both lists.
pub(super) fn read(root: &Path) -> Result<Vec<Record>, DatasetError> {
    let pictures = read_text(root, PICTURES, Format::Cub)?;
    let labels = read_text(root, LABELS, Format::Cub)?;
    let mut classes = HashMap::new();
    for line in lines(root, LABELS, &labels) {
        let (line, picture, class) = line?;
        let class = class.parse().ok().filter(|class| (1..=CLASSES).contains(class)).ok_or_else(|| {
            wrong(root, LABELS, line, format!("class `{class}`"), "a whole number from 1 to 200")
        })?;
        classes.insert(picture, class);
    }
    lines(root, PICTURES, &pictures)
        .map(|line| {
            let (line, picture, path) = line?;
            let class = classes.get(&picture).ok_or_else(|| {
                wrong(
                    root,
                    PICTURES,
                    line,
                    format!("picture {picture}"),
                    &format!("one that {LABELS} has a class for"),
                )
            })?;
            Ok(Record {
                identity: path.to_owned(),
                source: PictureSource::File(root.join("images").join(path)),
                crop: None,
                label: class.to_string(),
                category: None,
                split: Some(if *class <= LAST_TRAINING_CLASS { Split::Train } else { Split::Test }),
                role: Role::Unassigned,
            })
        })
        .collect()
}
