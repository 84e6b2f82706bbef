//! `root/class/picture`, as torchvision's `ImageFolder` reads it.

use std::path::Path;

use super::{DatasetError, PictureSource, Record, Role};
use crate::picture::PictureFormat;

/// Deeper than any data set; links may form a circle.
const DEPTH_LIMIT: usize = 32;

struct Walk {
    records: Vec<Record>,
    ignored: usize,
}

/// Reads all pictures below the class folders; returns them and the number of other files.
pub(super) fn read(root: &Path) -> Result<(Vec<Record>, usize), DatasetError> {
    let mut walk = Walk { records: Vec::new(), ignored: 0 };
    walk.folder(root, &mut Vec::new())?;
    walk.records.sort_by(|one, other| one.identity.cmp(&other.identity));
    Ok((walk.records, walk.ignored))
}

impl Walk {
    /// `parents` are the names of the folders between the root and this one.
    fn folder(&mut self, folder: &Path, parents: &mut Vec<String>) -> Result<(), DatasetError> {
        if parents.len() > DEPTH_LIMIT {
            let (path, depth) = (folder.to_owned(), parents.len());
            return Err(DatasetError::Depth { path, depth, limit: DEPTH_LIMIT });
        }
        let failed = |source| DatasetError::Read { path: folder.to_owned(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            paths.push(entry.map_err(failed)?.path());
        }
        paths.sort();
        for path in paths {
            if path.is_dir() {
                parents.push(name(&path)?);
                self.folder(&path, parents)?;
                parents.pop();
            } else if !PictureFormat::has_picture_name(&path) {
                self.ignored += 1;
            } else if let Some(class) = parents.first() {
                let identity = format!("{}/{}", parents.join("/"), name(&path)?);
                self.records.push(Record {
                    identity,
                    source: PictureSource::File(path),
                    crop: None,
                    label: class.clone(),
                    category: None,
                    split: None,
                    role: Role::Unassigned,
                });
            } else {
                return Err(DatasetError::Unlabelled { path });
            }
        }
        Ok(())
    }
}

fn name(path: &Path) -> Result<String, DatasetError> {
    path.file_name()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
        .ok_or_else(|| DatasetError::Name { path: path.to_owned() })
}
