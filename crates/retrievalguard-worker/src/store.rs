//! Where a run lies: a directory, or an object store.
//!
//! Objects are whole or not there. In a directory that is done by writing aside, syncing and renaming; object stores
//! promise it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use retrievalguard::storage::atomic;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use url::Url;

use crate::WorkerError;

/// Variables of the environment that say how a store is reached.
const SETTINGS: [&str; 4] = ["aws_", "google_", "azure_", "object_store_"];

/// A place for one run.
pub struct RunStore {
    address: String,
    place: Place,
}

enum Place {
    Directory(PathBuf),
    Objects { store: Arc<dyn ObjectStore>, prefix: ObjectPath, runtime: Runtime },
}

impl RunStore {
    /// Opens a path, or an address such as `file:///…`, `s3://bucket/run`, `gs://…`, `az://…`.
    ///
    /// Keys, regions and endpoints come from the environment, under the names that each provider uses.
    pub fn open(address: &str) -> Result<Self, WorkerError> {
        let wrong = |reason: String| WorkerError::Address { address: address.to_owned(), reason };
        // Names with a colon are paths like others.
        let url = Url::parse(address).ok().filter(|_| address.contains("://"));
        let place = match url {
            None => Place::Directory(PathBuf::from(address)),
            Some(url) if url.scheme() == "file" => {
                Place::Directory(url.to_file_path().map_err(|()| wrong("it names no path".to_owned()))?)
            }
            Some(url) => {
                let settings = std::env::vars_os()
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                    .map(|(name, value)| (name.to_ascii_lowercase(), value))
                    .filter(|(name, _)| SETTINGS.iter().any(|start| name.starts_with(start)));
                let (store, prefix) =
                    object_store::parse_url_opts(&url, settings).map_err(|error| wrong(error.to_string()))?;
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
                Place::Objects { store: Arc::from(store), prefix, runtime }
            }
        };
        Ok(Self { address: address.to_owned(), place })
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The directory, if the run lies in one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Directory(directory) => Some(directory),
            Place::Objects { .. } => None,
        }
    }

    /// The bytes of an object; `None` if it is not there.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, WorkerError> {
        match &self.place {
            Place::Directory(directory) => match fs::read(directory.join(name)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(self.failed(name, "read", error.into())),
            },
            Place::Objects { store, prefix, runtime } => {
                let path = joined(prefix, name);
                let found = runtime.block_on(async { store.get(&path).await?.bytes().await });
                match found {
                    Ok(bytes) => Ok(Some(bytes.to_vec())),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(self.failed(name, "read", error.into())),
                }
            }
        }
    }

    /// Whether an object is there and not empty.
    pub(crate) fn has(&self, name: &str) -> Result<bool, WorkerError> {
        match &self.place {
            Place::Directory(directory) => match fs::metadata(directory.join(name)) {
                Ok(found) => Ok(found.len() > 0),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(self.failed(name, "read", error.into())),
            },
            Place::Objects { store, prefix, runtime } => {
                match runtime.block_on(store.head(&joined(prefix, name))) {
                    Ok(found) => Ok(found.size > 0),
                    Err(object_store::Error::NotFound { .. }) => Ok(false),
                    Err(error) => Err(self.failed(name, "read", error.into())),
                }
            }
        }
    }

    /// Writes an object, replacing the one that may be there.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), WorkerError> {
        match &self.place {
            Place::Directory(directory) => {
                let path = directory.join(name);
                let folder = path.parent().unwrap_or(directory);
                fs::create_dir_all(folder).map_err(|error| self.failed(name, "written", error.into()))?;
                Ok(atomic::write(&path, &bytes)?)
            }
            Place::Objects { store, prefix, runtime } => {
                let path = joined(prefix, name);
                let put = runtime.block_on(store.put(&path, bytes.into()));
                put.map(|_| ()).map_err(|error| self.failed(name, "written", error.into()))
            }
        }
    }

    /// Names of the objects in a folder that are not empty.
    pub(crate) fn list(&self, folder: &str) -> Result<BTreeSet<String>, WorkerError> {
        match &self.place {
            Place::Directory(directory) => {
                let failed = |error: io::Error| self.failed(folder, "listed", error.into());
                let entries = match fs::read_dir(directory.join(folder)) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
                    Err(error) => return Err(failed(error)),
                };
                let mut names = BTreeSet::new();
                for entry in entries {
                    let entry = entry.map_err(failed)?;
                    match entry.metadata() {
                        Ok(found) if found.len() > 0 => {
                            names.insert(entry.file_name().to_string_lossy().into_owned());
                        }
                        Ok(_) => {}
                        // Written aside by somebody else, and at its place by now.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(failed(error)),
                    }
                }
                Ok(names)
            }
            Place::Objects { store, prefix, runtime } => {
                let path = joined(prefix, folder);
                let found = runtime.block_on(store.list(Some(&path)).try_collect::<Vec<_>>());
                let found = found.map_err(|error| self.failed(folder, "listed", error.into()))?;
                let full = found.iter().filter(|object| object.size > 0);
                Ok(full.filter_map(|object| object.location.filename().map(ToOwned::to_owned)).collect())
            }
        }
    }

    fn failed(
        &self,
        name: &str,
        what: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> WorkerError {
        WorkerError::Store { run: self.address.clone(), name: name.to_owned(), what, source }
    }
}

/// A folder of one's own on this machine, gone when it is dropped.
pub(crate) fn aside() -> Result<TempDir, WorkerError> {
    let made = tempfile::Builder::new().prefix("retrievalguard-").tempdir();
    made.map_err(|source| WorkerError::File { path: std::env::temp_dir().display().to_string(), source })
}

fn joined(prefix: &ObjectPath, name: &str) -> ObjectPath {
    name.split('/').fold(prefix.clone(), |path, part| path.join(part))
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
        assert!(matches!(RunStore::open("ftp://host/run"), Err(WorkerError::Address { .. })));
    }
}
