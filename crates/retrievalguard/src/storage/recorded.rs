//! Files whose size and digest are in a manifest, and manifests that hold their own digest.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::atomic::{self, AtomicFile, WriteError};
use super::digest::{Digest, HashingReader, HashingWriter};
use super::manifest::StorageError;
use super::sealed;

/// The format before manifests were [sealed].
const UNSEALED_FORMAT: u64 = 1;

/// Size and digest of one file of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Number of bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes.
    pub sha256: Digest,
}

impl FileRecord {
    /// Size and digest of bytes in memory.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: Digest::of_bytes(bytes) }
    }

    /// Size and digest of a file, from one reading.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let mut reader = HashingReader::new(File::open(path)?);
        let bytes = io::copy(&mut reader, &mut io::sink())?;
        Ok(Self { bytes, sha256: reader.finish().0 })
    }
}

/// Reads a manifest of this format, or of format 1, which had no seal.
pub(super) fn parse_sealed<T: serde::de::DeserializeOwned>(
    text: &[u8],
    path: &Path,
    format: u32,
    wanted: &'static str,
) -> Result<T, StorageError> {
    let refused = |source: serde_json::Error| {
        let line = source.line();
        StorageError::Json { path: path.to_owned(), line, wanted, source }
    };
    // The version first, so that another layout is told apart from a broken file.
    #[derive(Deserialize)]
    struct Version {
        format: u64,
        sha256: Option<serde::de::IgnoredAny>,
    }
    let Version { format: found, sha256: seal } = serde_json::from_slice(text).map_err(refused)?;
    // What holds a seal is checked against it, whatever format it says it has.
    if found == UNSEALED_FORMAT && seal.is_none() {
        return serde_json::from_slice(text).map_err(refused);
    }
    let unseal =
        || sealed::unseal(text).map_err(|source| StorageError::Seal { path: path.to_owned(), source });
    if found != u64::from(format) {
        if found == UNSEALED_FORMAT {
            unseal()?;
        }
        return Err(StorageError::Format { path: path.to_owned(), found, wanted: format });
    }
    let value = unseal()?;
    serde_json::from_value(value).map_err(refused)
}

/// Writes a manifest with its seal, and returns size and digest of the file.
pub(super) fn write_json(path: &Path, manifest: &impl Serialize) -> Result<FileRecord, WriteError> {
    let text = sealed::seal(manifest).map_err(|error| WriteError::new(path, error.into()))?;
    atomic::write(path, text.as_bytes())?;
    Ok(FileRecord::of_bytes(text.as_bytes()))
}

/// Size and digest of a file that is not written.
pub(super) fn hashed(content: impl FnOnce(&mut HashingWriter<io::Sink>) -> io::Result<()>) -> FileRecord {
    let mut writer = HashingWriter::new(io::sink());
    content(&mut writer).expect("a sink takes everything");
    let (_, sha256, bytes) = writer.finish();
    FileRecord { bytes, sha256 }
}

/// Writes a file through a digest.
pub(super) fn write_hashed(
    path: &Path,
    content: impl FnOnce(&mut HashingWriter<AtomicFile>) -> io::Result<()>,
) -> Result<FileRecord, WriteError> {
    let mut writer = HashingWriter::new(AtomicFile::create(path)?);
    content(&mut writer).map_err(|error| WriteError::new(path, error))?;
    let (file, sha256, bytes) = writer.finish();
    file.commit()?;
    Ok(FileRecord { bytes, sha256 })
}

/// Opens a file whose size is the recorded one.
pub(super) fn open_recorded(
    path: &Path,
    record: &FileRecord,
) -> Result<HashingReader<BufReader<File>>, StorageError> {
    let failed = |source| StorageError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    if found != record.bytes {
        return Err(StorageError::Size { path: path.to_owned(), found, wanted: record.bytes });
    }
    Ok(HashingReader::new(BufReader::with_capacity(1 << 16, file)))
}

/// Checks the digest of a file that was read to its end.
pub(super) fn check_digest(
    reader: HashingReader<BufReader<File>>,
    path: &Path,
    record: &FileRecord,
) -> Result<(), StorageError> {
    let (found, _) = reader.finish();
    if found == record.sha256 {
        Ok(())
    } else {
        Err(StorageError::Changed { path: path.to_owned(), found, wanted: record.sha256 })
    }
}

/// Reads a file that has no business being large.
pub(super) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, StorageError> {
    let failed = |source| StorageError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, limit + 1), &mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        let found = fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
        return Err(StorageError::TooLarge { path: path.to_owned(), found, limit });
    }
    Ok(bytes)
}
