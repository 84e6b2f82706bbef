//! Where a run is kept: in a directory, or in an object store.
//!
//! Objects are whole or not there. In a directory that is done by writing a temporary file, syncing and renaming;
//! object stores promise it.

#[cfg(feature = "cloud")]
mod objects;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use retrievalguard::storage::atomic;
use tempfile::TempDir;

#[cfg(feature = "cloud")]
use self::objects::Objects;
use crate::WorkerError;

/// Why an object could not be read or written.
type StoreFailure = Box<dyn std::error::Error + Send + Sync>;

/// The objects of one run.
pub struct RunStore {
    address: String,
    backing: Backing,
}

enum Backing {
    Directory(PathBuf),
    #[cfg(feature = "cloud")]
    Objects(Objects),
}

impl RunStore {
    /// Opens a path, or an address such as `file:///…`, `s3://bucket/run`, `gs://…`, `az://…`.
    ///
    /// Keys, regions and endpoints come from the environment, under the names that each provider uses.
    pub fn open(address: &str) -> Result<Self, WorkerError> {
        let wrong = |reason: String| WorkerError::Address { address: address.to_owned(), reason };
        // Names with a colon are paths like others.
        let backing = match address.split_once("://") {
            None => Backing::Directory(PathBuf::from(address)),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") => {
                let path = file_path(rest).ok_or_else(|| wrong("it names no path".to_owned()))?;
                Backing::Directory(path)
            }
            #[cfg(feature = "cloud")]
            Some(_) => Backing::Objects(Objects::open(address).map_err(wrong)?),
            #[cfg(not(feature = "cloud"))]
            Some((scheme, _)) => {
                return Err(WorkerError::NoCloud { address: address.to_owned(), scheme: scheme.to_owned() });
            }
        };
        Ok(Self { address: address.to_owned(), backing })
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The directory, if the run is kept in one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.backing {
            Backing::Directory(directory) => Some(directory),
            #[cfg(feature = "cloud")]
            Backing::Objects(_) => None,
        }
    }

    /// The bytes of an object; `None` if it is not there.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, WorkerError> {
        let found = match &self.backing {
            Backing::Directory(directory) => match fs::read(directory.join(name)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.into()),
            },
            #[cfg(feature = "cloud")]
            Backing::Objects(objects) => objects.get(name),
        };
        found.map_err(|source| self.failed(name, "read", source))
    }

    /// Whether an object is there and not empty.
    pub(crate) fn has(&self, name: &str) -> Result<bool, WorkerError> {
        let found = match &self.backing {
            Backing::Directory(directory) => match fs::metadata(directory.join(name)) {
                Ok(found) => Ok(found.len() > 0),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error.into()),
            },
            #[cfg(feature = "cloud")]
            Backing::Objects(objects) => objects.has(name),
        };
        found.map_err(|source| self.failed(name, "read", source))
    }

    /// Writes an object, replacing the one that may be there.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), WorkerError> {
        match &self.backing {
            Backing::Directory(directory) => {
                let path = directory.join(name);
                let folder = path.parent().unwrap_or(directory);
                fs::create_dir_all(folder).map_err(|error| self.failed(name, "written", error.into()))?;
                Ok(atomic::write(&path, &bytes)?)
            }
            #[cfg(feature = "cloud")]
            Backing::Objects(objects) => {
                objects.put(name, bytes).map_err(|source| self.failed(name, "written", source))
            }
        }
    }

    /// Names of the objects in a folder that are not empty.
    pub(crate) fn list(&self, folder: &str) -> Result<BTreeSet<String>, WorkerError> {
        let found = match &self.backing {
            Backing::Directory(directory) => list_directory(&directory.join(folder)).map_err(Into::into),
            #[cfg(feature = "cloud")]
            Backing::Objects(objects) => objects.list(folder),
        };
        found.map_err(|source| self.failed(folder, "listed", source))
    }

    fn failed(&self, name: &str, what: &'static str, source: StoreFailure) -> WorkerError {
        WorkerError::Store { run: self.address.clone(), name: name.to_owned(), what, source }
    }
}

/// The path of a `file://` address without its scheme; none if it names another machine or no path.
fn file_path(rest: &str) -> Option<PathBuf> {
    let path = rest.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(rest);
    let path = path.split(['?', '#']).next().filter(|path| path.starts_with('/'))?;
    let decoded = percent_decode_str(path);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        Some(PathBuf::from(std::ffi::OsString::from_vec(decoded.collect())))
    }
    #[cfg(not(unix))]
    {
        // `/C:/runs` is the path of `file:///C:/runs`.
        Some(PathBuf::from(decoded.decode_utf8().ok()?.trim_start_matches('/')))
    }
}

/// Names of the files of a folder that are not empty; none if there is no such folder.
fn list_directory(folder: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.len() > 0 => {
                names.insert(entry.file_name().to_string_lossy().into_owned());
            }
            Ok(_) => {}
            // Another worker's temporary file, renamed by now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(names)
}

/// A temporary folder on this machine, removed when it is dropped.
pub(crate) fn temporary_folder() -> Result<TempDir, WorkerError> {
    let made = tempfile::Builder::new().prefix("retrievalguard-").tempdir();
    made.map_err(|source| WorkerError::File { path: std::env::temp_dir().display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn lists_are_whole_while_others_write() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::open(&folder.path().display().to_string()).unwrap();
        store.put("parts/first", b"1".to_vec()).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..300 {
                    store.put(&format!("parts/{number:03}"), b"more".to_vec()).unwrap();
                }
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                assert!(store.list("parts").unwrap().contains("first"));
            }
        });
        assert_eq!(store.list("parts").unwrap().len(), 301);
        assert!(store.has("parts/299").unwrap() && !store.has("parts/300").unwrap());
    }

    #[test]
    fn a_name_with_a_colon_is_a_path() {
        assert_eq!(RunStore::open("run:1").unwrap().directory(), Some(Path::new("run:1")));
        assert_eq!(RunStore::open("file:///run").unwrap().directory(), Some(Path::new("/run")));
        let spaced = RunStore::open("file://localhost/my%20run").unwrap();
        assert_eq!(spaced.directory(), Some(Path::new("/my run")));
        assert!(matches!(RunStore::open("file://elsewhere/run"), Err(WorkerError::Address { .. })));
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn an_address_that_no_store_knows_is_refused() {
        assert!(matches!(RunStore::open("ftp://host/run"), Err(WorkerError::Address { .. })));
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn an_object_store_is_refused_by_a_build_without_them() {
        let refused = RunStore::open("s3://bucket/run").map(drop).unwrap_err().to_string();
        assert!(refused.contains("`s3://`") && refused.contains("--features cloud"), "{refused}");
    }
}
