//! Stanford Online Products (Song et al. 2016): one list for training and one for testing.

use std::path::{Path, PathBuf};

use super::{DatasetError, Format, PictureSource, Record, Role, Split, read_text};

const TRAIN: &str = "Ebay_train.txt";
const TEST: &str = "Ebay_test.txt";
const HEADER: &str = "image_id class_id super_class_id path";
/// Test classes that the paper evaluates on; it does not say which, so the first are taken.
pub(super) const PAPER_CLASSES: usize = 1_000;

/// The folders of the lists and of the pictures, in either of the two layouts.
pub(super) fn lists(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let layouts = [(root.to_owned(), root.to_owned()), (root.join("Info_Files"), root.join("images"))];
    layouts.into_iter().find(|(lists, _)| lists.join(TRAIN).is_file() || lists.join(TEST).is_file())
}

/// Reads both lists, training first.
pub(super) fn read(root: &Path) -> Result<Vec<Record>, DatasetError> {
    let Some((lists, pictures)) = lists(root) else {
        let (path, file) = (root.to_owned(), TRAIN.to_owned());
        return Err(DatasetError::MissingFile { path, file, format: Format::OnlineProducts });
    };
    let mut records = Vec::new();
    for (file, split) in [(TRAIN, Split::Train), (TEST, Split::Test)] {
        let text = read_text(&lists, file, Format::OnlineProducts)?;
        let wrong = |line: u64, text: &str, wanted: &str| DatasetError::Line {
            file: lists.join(file),
            line,
            found: format!("`{text}`"),
            wanted: wanted.to_owned(),
        };
        let header = text.lines().next().unwrap_or("");
        if header.split_whitespace().ne(HEADER.split(' ')) {
            return Err(wrong(1, header, HEADER));
        }
        for (line, number) in text.lines().zip(1..).skip(1).filter(|(line, _)| !line.trim().is_empty()) {
            let parts: Vec<&str> = line.trim().splitn(4, ' ').collect();
            let numbers = parts.iter().take(3).all(|part| part.parse::<u32>().is_ok_and(|value| value > 0));
            let [_, class, category, path] = parts[..] else {
                return Err(wrong(number, line, "four fields"));
            };
            if !numbers {
                return Err(wrong(number, line, "three numbers from 1 on and a path"));
            }
            records.push(Record {
                identity: path.to_owned(),
                source: PictureSource::File(pictures.join(path)),
                crop: None,
                label: class.to_owned(),
                category: Some(category.to_owned()),
                split: Some(split),
                role: Role::Unassigned,
            });
        }
    }
    Ok(records)
}
