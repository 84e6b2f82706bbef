//! Samples of one picture kept on disk, so that every certificate and every gallery can use them again.
//!
//! Drawing samples is the expensive part; they depend on nothing but the encoder, the noise and the picture, and that is
//! what a [`SampleKey`] holds. Each entry is a pair of files named by the digest of its key: an array that NumPy reads,
//! and a manifest with the key and the digests of the array and of itself, written last.
//!
//! ```
//! use retrievalguard::noise::Stage;
//! use retrievalguard::storage::digest::Digest;
//! use retrievalguard::storage::manifest::Engine;
//! use retrievalguard::storage::sample_cache::{SampleCache, SampleKey};
//! use retrievalguard::{Excess, NormBound, Samples, Seed, Sigma};
//!
//! # let folder = tempfile::tempdir()?;
//! let cache = SampleCache::new(folder.path());
//! let key = SampleKey {
//!     model: Digest::of_bytes(b"model"),
//!     contract: Digest::of_bytes(b"contract"),
//!     engine: Engine { name: "rten".into(), version: "1".into() },
//!     seed: Seed::new(7),
//!     identity: "cat-1".into(),
//!     stage: Stage::Certify,
//!     sigma: Sigma::new(0.25)?,
//!     range: 0..2,
//! };
//! assert_eq!(cache.read(&key)?, None);
//! let samples = Samples::new(vec![0.6, 0.8, 1.0, 0.0], 2, NormBound::UNIT, Excess::Refuse)?;
//! cache.write(&key, &samples)?;
//! assert_eq!(cache.read(&key)?, Some(samples));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::atomic::WriteError;
use super::digest::{Digest, canonical_json};
use super::manifest::{Engine, StorageError};
use super::npy;
use super::recorded::{
    FileRecord, check_digest, open_recorded, parse_sealed, read_small, write_hashed, write_json,
};
use crate::noise::Stage;
use crate::{NormBound, SampleError, Samples, Seed, Sigma};

const FORMAT: u32 = 2;
const MANIFEST_LIMIT: u64 = 1 << 20;

/// Why cached samples could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The files cannot be read, written or verified.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The numbers are no samples.
    #[error("cached samples `{}` cannot be used", path.display())]
    Samples {
        /// The array.
        path: PathBuf,
        /// What is wrong with it.
        source: SampleError,
    },
    /// The manifest belongs to other samples.
    #[error("manifest `{}` is for other samples: {found}, wanted {wanted}", path.display())]
    Key {
        /// The manifest.
        path: PathBuf,
        /// The key in it.
        found: String,
        /// The key that was asked for.
        wanted: String,
    },
    /// There are more or fewer samples than the key says.
    #[error("samples of `{identity}` have {found} rows, wanted {wanted} for their range")]
    Count {
        /// The picture.
        identity: String,
        /// How many there are.
        found: u32,
        /// How many the range has.
        wanted: u32,
    },
}

impl From<WriteError> for CacheError {
    fn from(error: WriteError) -> Self {
        StorageError::Write(error).into()
    }
}

/// Everything that samples depend on.
///
/// The seed is written to the disk: a cache is for evaluation with fixed seeds, never for secret ones.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleKey {
    /// Digest of the model file.
    pub model: Digest,
    /// Digest of the model config.
    pub contract: Digest,
    /// What ran the model.
    pub engine: Engine,
    /// Root of the noise.
    pub seed: Seed,
    /// Name of the picture.
    pub identity: String,
    /// What the samples are for.
    pub stage: Stage,
    /// Noise level.
    pub sigma: Sigma,
    /// Which samples.
    pub range: Range<u32>,
}

impl SampleKey {
    fn to_json(&self) -> Value {
        json!({
            "model": self.model,
            "contract": self.contract,
            "engine": self.engine,
            "seed": self.seed,
            "identity": self.identity,
            "stage": self.stage.as_str(),
            "sigma": self.sigma,
            "start": self.range.start,
            "end": self.range.end,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct EntryManifest {
    format: u32,
    key: Value,
    norm_bound: NormBound,
    samples_file: FileRecord,
}

/// A directory of samples.
#[derive(Clone, Debug)]
pub struct SampleCache {
    directory: PathBuf,
}

impl SampleCache {
    /// A cache in a directory, which is made when something is written.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Where the array and the manifest of a key are, whether they exist or not.
    fn files(&self, key: &Value) -> (PathBuf, PathBuf) {
        let name = Digest::of_json(key).to_string();
        // A few hundred directories, so that none holds a hundred thousand files.
        let folder = self.directory.join(&name[..2]);
        (folder.join(format!("{name}.npy")), folder.join(format!("{name}.json")))
    }

    /// Stores the samples of a key.
    pub fn write(&self, key: &SampleKey, samples: &Samples) -> Result<(), CacheError> {
        let wanted = key.range.end.saturating_sub(key.range.start);
        if samples.count() != wanted {
            return Err(CacheError::Count { identity: key.identity.clone(), found: samples.count(), wanted });
        }
        let key = key.to_json();
        let (array, manifest) = self.files(&key);
        let folder = array.parent().unwrap_or(&self.directory);
        fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
        let samples_file = write_hashed(&array, |writer| {
            npy::write_f32_to(writer, &[samples.count() as usize, samples.dimension()], samples.values())
        })?;
        let entry = EntryManifest { format: FORMAT, key, norm_bound: samples.norm_bound(), samples_file };
        write_json(&manifest, &entry)?;
        Ok(())
    }

    /// The samples of a key, bit by bit as they were written, or `None` if there are none.
    pub fn read(&self, key: &SampleKey) -> Result<Option<Samples>, CacheError> {
        let wanted = key.range.end.saturating_sub(key.range.start);
        let identity = &key.identity;
        let key = key.to_json();
        let (array, manifest) = self.files(&key);
        let text = match read_small(&manifest, MANIFEST_LIMIT) {
            Err(StorageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            other => other?,
        };
        let entry: EntryManifest = parse_sealed(&text, &manifest, FORMAT, "a manifest of samples")?;
        // Nothing told whether an entry of another format is what was written: it is drawn again.
        if entry.format != FORMAT {
            return Ok(None);
        }
        if entry.key != key {
            let (found, wanted) = (canonical_json(&entry.key), canonical_json(&key));
            return Err(CacheError::Key { path: manifest, found, wanted });
        }
        let mut reader = open_recorded(&array, &entry.samples_file)?;
        let read =
            npy::read_from(&mut reader, entry.samples_file.bytes, &array).map_err(StorageError::from)?;
        check_digest(reader, &array, &entry.samples_file)?;
        let matrix = read.into_matrix(&array).map_err(StorageError::from)?;
        if matrix.rows != wanted as usize {
            let found = u32::try_from(matrix.rows).unwrap_or(u32::MAX);
            return Err(CacheError::Count { identity: identity.clone(), found, wanted });
        }
        admitted(matrix, entry.norm_bound)
            .map(Some)
            .map_err(|source| CacheError::Samples { path: array, source })
    }
}

/// Rows that were in the ball when they were written; taken as they are, so nothing is rounded a second time.
fn admitted(matrix: npy::Matrix, norm_bound: NormBound) -> Result<Samples, SampleError> {
    let dimension = matrix.columns;
    if dimension == 0 {
        return Err(SampleError::ZeroDimension);
    }
    if matrix.values.is_empty() {
        return Err(SampleError::Empty { dimension });
    }
    for (sample, row) in matrix.values.chunks_exact(dimension).enumerate() {
        if let Some(component) = row.iter().position(|value| !value.is_finite()) {
            return Err(SampleError::NotFinite { sample, component, value: row[component] });
        }
        let norm = row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
        // Half of what certificates allow for rounding: the other half is theirs.
        if norm > norm_bound.get() * (1.0 + 5e-13) {
            return Err(SampleError::NormExceeded { sample, norm, bound: norm_bound.get() });
        }
    }
    Ok(Samples::from_admitted(matrix.values, dimension, norm_bound))
}

#[cfg(test)]
#[path = "../../tests/kept_samples/mod.rs"]
mod kept_samples;
#[cfg(test)]
mod tests {
    use super::super::sealed;
    use super::kept_samples::{key, samples};
    use super::*;

    /// Paths of the array and of the manifest of the only entry.
    fn entry(folder: &Path) -> (PathBuf, PathBuf) {
        SampleCache::new(folder).files(&key().to_json())
    }

    #[test]
    fn samples_come_back_bit_by_bit_and_only_under_their_own_key() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SampleCache::new(&folder.path().join("cache"));
        cache.write(&key(), &samples()).unwrap();
        assert_eq!(cache.read(&key()).unwrap(), Some(samples()));
        for other in [
            SampleKey { model: Digest::of_bytes(b"other"), ..key() },
            SampleKey { contract: Digest::of_bytes(b"other"), ..key() },
            SampleKey { engine: Engine { name: "rten".into(), version: "2".into() }, ..key() },
            SampleKey { seed: Seed::new(8), ..key() },
            SampleKey { identity: "cat 2".into(), ..key() },
            SampleKey { stage: Stage::Certify, ..key() },
            SampleKey { sigma: Sigma::new(0.2).unwrap(), ..key() },
            SampleKey { range: 11..61, ..key() },
            SampleKey { range: 10..61, ..key() },
        ] {
            assert_eq!(cache.read(&other).unwrap(), None, "{other:?}");
        }
    }

    #[test]
    fn an_entry_without_its_manifest_does_not_exist() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SampleCache::new(folder.path());
        cache.write(&key(), &samples()).unwrap();
        fs::remove_file(entry(folder.path()).1).unwrap();
        assert_eq!(cache.read(&key()).unwrap(), None);
    }

    #[test]
    fn damaged_and_lying_entries_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SampleCache::new(folder.path());
        cache.write(&key(), &samples()).unwrap();
        let (array, manifest) = entry(folder.path());
        let (bytes, text) = (fs::read(&array).unwrap(), fs::read_to_string(&manifest).unwrap());

        fs::write(&array, &bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Storage(StorageError::Size { .. }))));
        let mut flipped = bytes.clone();
        flipped[200] ^= 1;
        fs::write(&array, &flipped).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Storage(StorageError::Changed { .. }))));
        let mut not_a_number = bytes.clone();
        not_a_number[128..132].copy_from_slice(&f32::NAN.to_le_bytes());
        let mut outside = bytes.clone();
        outside[128..132].copy_from_slice(&1.5_f32.to_le_bytes());
        for lie in [not_a_number, outside] {
            fs::write(&array, &lie).unwrap();
            let digest = |bytes| Digest::of_bytes(bytes).to_string();
            fs::write(&manifest, resealed(&text, &digest(&bytes), &digest(&lie))).unwrap();
            assert!(matches!(cache.read(&key()), Err(CacheError::Samples { .. })));
        }
        fs::write(&array, &bytes).unwrap();
        fs::write(&manifest, text.replace("cat 1", "cat 2")).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Storage(StorageError::Seal { .. }))));
        fs::write(&manifest, resealed(&text, "cat 1", "cat 2")).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Key { .. })));
        fs::write(&manifest, text.replace("\"norm_bound\": 1.0", "\"norm_bound\": 3.0")).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Storage(StorageError::Seal { .. }))));
        fs::write(&manifest, text.replace("\"format\": 2", "\"format\": 3")).unwrap();
        assert!(matches!(
            cache.read(&key()),
            Err(CacheError::Storage(StorageError::Format { found: 3, .. }))
        ));
        // The format of an earlier version is no way around the seal.
        let renamed = text.replace("\"format\": 2", "\"format\": 1");
        fs::write(&manifest, &renamed).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Storage(StorageError::Seal { .. }))));
        // What an earlier version left is drawn again.
        let mut old: Value = serde_json::from_str(&renamed).unwrap();
        old.as_object_mut().unwrap().remove(sealed::SEAL);
        fs::write(&manifest, old.to_string()).unwrap();
        assert_eq!(cache.read(&key()).unwrap(), None);
        fs::write(&manifest, &text[..text.len() / 2]).unwrap();
        assert!(matches!(cache.read(&key()), Err(CacheError::Storage(StorageError::Json { .. }))));
    }

    /// The text with one thing changed, and sealed again.
    fn resealed(text: &str, from: &str, to: &str) -> String {
        let mut value: Value = serde_json::from_str(&text.replace(from, to)).unwrap();
        value.as_object_mut().unwrap().remove(sealed::SEAL);
        sealed::seal(&value).unwrap()
    }

    #[test]
    fn a_range_has_as_many_samples_as_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SampleCache::new(folder.path());
        let written = cache.write(&SampleKey { range: 0..49, ..key() }, &samples());
        assert!(matches!(written, Err(CacheError::Count { found: 50, wanted: 49, .. })));
    }
}
