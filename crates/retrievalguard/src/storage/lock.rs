//! Files and folders that one process writes at a time.
//!
//! The lock is the operating system's and ends with the process, however it ends: a file that is left behind locks
//! nothing.
//!
//! ```
//! use retrievalguard::storage::lock::FolderLock;
//!
//! # let folder = tempfile::tempdir()?;
//! let lock = FolderLock::take(folder.path())?;
//! let refused = FolderLock::take(folder.path()).unwrap_err();
//! assert!(refused.to_string().contains(&format!("process {}", std::process::id())));
//! drop(lock);
//! FolderLock::take(folder.path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::atomic::WriteError;

/// Name of the lock file of a folder; it is there while the folder is in use, or after its user was killed.
pub const LOCK_FILE: &str = ".lock";

/// Longest account of a holder that is shown.
const HOLDER_BYTES: u64 = 100;

/// Why a lock was not taken; every variant names the file or the folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process, or this one, is writing there.
    #[error("`{}` is in use by {holder}, wanted a folder that no other process uses", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Who writes there, as far as it is known.
        holder: String,
    },
    /// The lock file of the folder could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The file could not be locked.
    #[error("`{}` cannot be locked", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A folder that no other process writes to while this value lives.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    /// Holds the lock until it is closed.
    _file: File,
}

impl FolderLock {
    /// Locks a folder that exists.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(LOCK_FILE);
        let mut file = match open_locked(&path)? {
            Opened::Locked(file) => file,
            Opened::InUse(mut file) => {
                let mut text = String::new();
                // Said by the holder, or nothing if it is about to.
                let _ = (&mut file).take(HOLDER_BYTES).read_to_string(&mut text);
                let holder = text.lines().next().filter(|line| !line.is_empty());
                let holder = holder.unwrap_or("another process").to_owned();
                return Err(LockError::InUse { folder: folder.to_owned(), holder });
            }
        };
        // The lock is held by now; on a full disk its holder has no name.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "process {}", std::process::id()));
        Ok(Self { path, _file: file })
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // While it is still locked: whoever waits for it looks again whether the file has its name.
        let _ = fs::remove_file(&self.path);
    }
}

/// What became of opening a file for oneself.
pub(crate) enum Opened {
    /// No other process has it open.
    Locked(File),
    /// Somebody holds the lock; the file may be read.
    InUse(File),
}

/// Opens the file that `path` leads to, makes it if it is not there, and keeps everyone else out.
pub(crate) fn open_locked(path: &Path) -> Result<Opened, LockError> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|source| WriteError::new(path, source))?;
        let failed = |source| LockError::Lock { path: path.to_owned(), source };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Opened::InUse(file)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
        }
        // Whoever held the lock before may have removed the file after it was opened here.
        if is_at(&file, path) {
            return Ok(Opened::Locked(file));
        }
    }
}

/// Whether `path` still leads to this open file.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    match (file.metadata(), fs::metadata(path)) {
        (Ok(opened), Ok(named)) => (opened.dev(), opened.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
pub(crate) fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_folder_belongs_to_one_holder_who_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::take(folder.path()).unwrap();
        let error = FolderLock::take(folder.path()).unwrap_err();
        let (shown, process) = (folder.path().display(), std::process::id());
        assert_eq!(
            error.to_string(),
            format!("`{shown}` is in use by process {process}, wanted a folder that no other process uses")
        );
        drop(first);
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "the lock leaves nothing behind");
        drop(FolderLock::take(folder.path()).unwrap());
    }

    #[test]
    fn what_a_killed_process_left_locks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(LOCK_FILE), "process 1 and a long story that ended\n").unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(LOCK_FILE)).unwrap();
        assert_eq!(text, format!("process {}\n", std::process::id()));
        drop(lock);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = FolderLock::take(&folder.path().join("missing")).unwrap_err();
        assert!(matches!(error, LockError::Write(WriteError::NoDirectory { .. })), "{error}");
    }

    #[test]
    fn holders_never_overlap_while_the_file_comes_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut taken = 0;
                    while taken < 50 {
                        if let Ok(lock) = FolderLock::take(folder.path()) {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            taken += 1;
                            drop(lock);
                        }
                    }
                });
            }
        });
    }
}
