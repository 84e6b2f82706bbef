//! Files that are there completely or not at all.
//!
//! Bytes go to a temporary file beside the target, reach the disk, and take the target's name in one step; then the
//! directory reaches the disk. Whoever opens the target sees the old bytes or the new ones, never a mixture, also after
//! a power cut. A process that is killed may leave a file named `.name.number.partial` behind, which nothing reads.
//!
//! A target that is no regular file (`/dev/stdout`, a named pipe) cannot be replaced; it is written to directly.
//!
//! ```
//! use std::io::Write;
//! use retrievalguard::storage::atomic::{self, AtomicFile};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("report.txt");
//! atomic::write(&path, b"first")?;
//! let mut file = AtomicFile::create(&path)?;
//! file.write_all(b"second")?;
//! assert_eq!(std::fs::read(&path)?, b"first");
//! file.commit()?;
//! assert_eq!(std::fs::read(&path)?, b"second");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a file could not be written; every variant names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The device has no room left.
    #[error("`{}` cannot be written: the disk is full", path.display())]
    DiskFull {
        /// The file that was to be written.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A limit of the user or the process was reached (quota, `ulimit -f`).
    #[error("`{}` cannot be written: it would exceed the limit on file sizes or the disk quota", path.display())]
    SizeLimit {
        /// The file that was to be written.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The directory or the file does not admit writing.
    #[error("`{}` cannot be written: its directory or the file itself is read-only", path.display())]
    ReadOnly {
        /// The file that was to be written.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The directory is not there.
    #[error("`{}` cannot be written: its directory does not exist", path.display())]
    NoDirectory {
        /// The file that was to be written.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The name belongs to a directory, or to nothing.
    #[error("`{}` is a directory, wanted the name of a file", path.display())]
    IsDirectory {
        /// The name that was given.
        path: PathBuf,
    },
    /// Anything else.
    #[error("`{}` cannot be written", path.display())]
    Other {
        /// The file that was to be written.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl WriteError {
    /// Sorts an error of the operating system by what the user can do about it.
    pub fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull => Self::DiskFull { path, source },
            io::ErrorKind::FileTooLarge | io::ErrorKind::QuotaExceeded => Self::SizeLimit { path, source },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly { path, source }
            }
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NoDirectory { path, source },
            io::ErrorKind::IsADirectory => Self::IsDirectory { path },
            _ => Self::Other { path, source },
        }
    }

    /// The file that could not be written.
    pub fn path(&self) -> &Path {
        match self {
            Self::DiskFull { path, .. }
            | Self::SizeLimit { path, .. }
            | Self::ReadOnly { path, .. }
            | Self::NoDirectory { path, .. }
            | Self::IsDirectory { path }
            | Self::Other { path, .. } => path,
        }
    }
}

/// Writes the whole file or leaves everything as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(|error| WriteError::new(path, error))?;
    file.commit()
}

/// A file under construction: it takes its name when it is [committed](AtomicFile::commit), and vanishes otherwise.
#[derive(Debug)]
pub struct AtomicFile {
    /// The name as the caller gave it, for messages.
    path: PathBuf,
    writer: BufWriter<File>,
    /// `None` for a target that is written to directly.
    replacement: Option<Replacement>,
}

/// A temporary file and the name it will get; removed when dropped.
#[derive(Debug)]
struct Replacement {
    temporary: PathBuf,
    target: PathBuf,
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After the renaming there is nothing of this name, which is as good.
        let _ = fs::remove_file(&self.temporary);
    }
}

impl AtomicFile {
    /// Opens a temporary file beside `path`.
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let failed = |error| WriteError::new(path, error);
        let (file, replacement) = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(WriteError::IsDirectory { path: path.to_owned() }),
            Ok(found) if found.is_file() => {
                if found.permissions().readonly() {
                    return Err(failed(io::ErrorKind::PermissionDenied.into()));
                }
                // Through symbolic links, so that the file is replaced and not the link.
                let target = fs::canonicalize(path).map_err(failed)?;
                let (file, temporary) = create_beside(&target).map_err(failed)?;
                (file, Some(Replacement { temporary, target }))
            }
            Ok(_) => (OpenOptions::new().write(true).open(path).map_err(failed)?, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if path.file_name().is_none() {
                    return Err(WriteError::IsDirectory { path: path.to_owned() });
                }
                let (file, temporary) = create_beside(path).map_err(failed)?;
                (file, Some(Replacement { temporary, target: path.to_owned() }))
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path: path.to_owned(), writer: BufWriter::new(file), replacement })
    }

    /// Brings the bytes to the disk and gives the file its name.
    pub fn commit(self) -> Result<(), WriteError> {
        let Self { path, writer, replacement } = self;
        let failed = |error| WriteError::new(&path, error);
        let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
        let Some(replacement) = replacement else { return Ok(()) };
        file.sync_all().map_err(failed)?;
        drop(file);
        fs::rename(&replacement.temporary, &replacement.target).map_err(failed)?;
        sync_directory(directory_of(&replacement.target)).map_err(failed)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A file that did not exist, in the directory of `target`.
fn create_beside(target: &Path) -> io::Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}-{number}.partial", process::id()));
        let temporary = target.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            // Left behind by a process that was killed and had the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// The directory that holds the name of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Makes names that were given or taken away in a directory last through a power cut.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_bytes_stay_until_the_new_ones_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        write(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"half of the n").unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["table"]);
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["table"]);
    }

    #[test]
    fn names_that_cannot_be_files_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let error = write(folder.path(), b"x").unwrap_err();
        assert!(matches!(&error, WriteError::IsDirectory { .. }), "{error}");
        for nothing in ["", "/", ".."] {
            let error = write(Path::new(nothing), b"x").unwrap_err();
            assert!(matches!(&error, WriteError::IsDirectory { .. }), "`{nothing}`: {error}");
        }
        let error = write(&folder.path().join("missing/table"), b"x").unwrap_err();
        assert!(matches!(&error, WriteError::NoDirectory { .. }), "{error}");
        assert!(error.to_string().contains("missing/table"), "{error}");
        fs::write(folder.path().join("file"), b"x").unwrap();
        let error = write(&folder.path().join("file/table"), b"x").unwrap_err();
        assert!(matches!(&error, WriteError::NoDirectory { .. }), "{error}");
    }

    #[test]
    fn a_read_only_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        write(&path, b"old").unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        let error = write(&path, b"new").unwrap_err();
        assert!(matches!(error, WriteError::ReadOnly { .. }), "{error}");
        assert_eq!(names(folder.path()), ["table"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named_as_such_and_the_device_survives() {
        let device = Path::new("/dev/full");
        let error = write(device, b"x").unwrap_err();
        assert!(matches!(&error, WriteError::DiskFull { path, .. } if path == device), "{error}");
        assert_eq!(error.to_string(), "`/dev/full` cannot be written: the disk is full");
        assert!(!fs::metadata(device).unwrap().is_file(), "the device was replaced");
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file(), "the device was replaced");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_goes_on_pointing_at_the_file_that_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn every_error_of_the_system_is_sorted_by_what_can_be_done() {
        let path = Path::new("table");
        let sorted = |kind: io::ErrorKind| WriteError::new(path, kind.into());
        assert!(matches!(sorted(io::ErrorKind::StorageFull), WriteError::DiskFull { .. }));
        assert!(matches!(sorted(io::ErrorKind::FileTooLarge), WriteError::SizeLimit { .. }));
        assert!(matches!(sorted(io::ErrorKind::QuotaExceeded), WriteError::SizeLimit { .. }));
        assert!(matches!(sorted(io::ErrorKind::ReadOnlyFilesystem), WriteError::ReadOnly { .. }));
        assert!(matches!(sorted(io::ErrorKind::PermissionDenied), WriteError::ReadOnly { .. }));
        assert!(matches!(sorted(io::ErrorKind::BrokenPipe), WriteError::Other { .. }));
        assert_eq!(sorted(io::ErrorKind::StorageFull).path(), path);
    }
}
