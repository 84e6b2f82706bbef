mod cars;
mod idx;
#[path = "../../tests/idx_files/mod.rs"]
mod idx_files;
mod lists;

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{Dataset, DatasetError, DatasetOptions, Format, open};

/// A folder that holds the given files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

fn open_guessed(path: &Path) -> Result<Dataset, DatasetError> {
    open(path, Format::Auto, DatasetOptions::default())
}

fn identities(dataset: &Dataset) -> Vec<&str> {
    dataset.records.iter().map(|record| record.identity.as_str()).collect()
}

fn labels(dataset: &Dataset) -> Vec<&str> {
    dataset.records.iter().map(|record| record.label.as_str()).collect()
}
