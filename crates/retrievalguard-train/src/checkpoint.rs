//! Everything a run needs to go on: weights, optimiser states, and the position it had reached.
//!
//! One safetensors file, replaced whole: `network.*` and `loss.beta` in `f32`, the optimisers' states as bytes, and the
//! position as JSON in the metadata. The weights can be read by anything that reads safetensors.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::digest::Digest;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

/// Key of the metadata that holds [`TrainingPosition`].
const POSITION_KEY: &str = "retrievalguard.place";

/// Name of the loss's boundary.
const BETA: &str = "loss.beta";

/// Prefix of the network's tensors.
const NETWORK: &str = "network.";

/// Prefix of the optimisers' states.
const OPTIMISER: &str = "optimiser.";

/// Where a run stands: the next batch to learn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingPosition {
    /// Epoch, counted from zero.
    pub epoch: u32,
    /// Batch of the epoch, counted from zero.
    pub batch: u32,
    /// Steps made since the beginning.
    pub step: u64,
    /// Digest of what the run depends on; another run does not go on from here.
    pub run: Digest,
}

impl TrainingPosition {
    /// After one more step.
    #[must_use]
    pub fn next(self, batches_per_epoch: u64) -> Self {
        let (batch, step) = (self.batch + 1, self.step + 1);
        if u64::from(batch) == batches_per_epoch {
            Self { epoch: self.epoch + 1, batch: 0, step, ..self }
        } else {
            Self { batch, step, ..self }
        }
    }
}

/// A checkpoint in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Where the run stands.
    pub position: TrainingPosition,
    /// The network's tensors by name, with their shapes.
    pub network: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// The loss's boundary `β`.
    pub beta: f32,
    /// States of the optimisers by name, as burn writes them.
    pub optimisers: BTreeMap<String, Vec<u8>>,
}

/// A checkpoint that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file could not be read.
    #[error("checkpoint `{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is damaged or is something else.
    #[error("checkpoint `{path}` is not a safetensors file")]
    Format {
        /// The file.
        path: PathBuf,
        /// What its reader says.
        source: SafeTensorError,
    },
    /// A part is missing or is not what it should be.
    #[error("{what} in checkpoint `{path}` is {found}, wanted {wanted}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The part.
        what: String,
        /// What was found.
        found: String,
        /// What belongs there.
        wanted: &'static str,
    },
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Checkpoint {
    /// Writes the file, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), CheckpointError> {
        let numbers: Vec<(String, &[usize], Vec<u8>)> = self
            .network
            .iter()
            .map(|(name, (shape, values))| {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                (format!("{NETWORK}{name}"), shape.as_slice(), bytes)
            })
            .collect();
        let beta = self.beta.to_le_bytes();
        let mut views: Vec<(String, TensorView<'_>)> = Vec::new();
        let view = |element, shape: &[usize], bytes| {
            TensorView::new(element, shape.to_vec(), bytes)
                .map_err(|source| CheckpointError::Format { path: path.to_owned(), source })
        };
        for (name, shape, bytes) in &numbers {
            views.push((name.clone(), view(Dtype::F32, shape, bytes)?));
        }
        for (name, state) in &self.optimisers {
            views.push((format!("{OPTIMISER}{name}"), view(Dtype::U8, &[state.len()], state)?));
        }
        views.push((BETA.to_owned(), view(Dtype::F32, &[1], &beta)?));
        let position = serde_json::to_string(&self.position).expect("a position holds numbers and a digest");
        let metadata = HashMap::from([(POSITION_KEY.to_owned(), position)]);
        let bytes = safetensors::serialize(views, Some(metadata))
            .map_err(|source| CheckpointError::Format { path: path.to_owned(), source })?;
        Ok(atomic::write(path, &bytes)?)
    }

    /// Reads a file that [`write`](Self::write) made.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        let bytes =
            fs::read(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
        let format = |source| CheckpointError::Format { path: path.to_owned(), source };
        let content = |what: &str, found: String, wanted| CheckpointError::Content {
            path: path.to_owned(),
            what: what.to_owned(),
            found,
            wanted,
        };
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(format)?;
        let position = metadata.metadata().as_ref().and_then(|metadata| metadata.get(POSITION_KEY));
        let position =
            position.ok_or_else(|| content("the position", "missing".to_owned(), "a run's position"))?;
        let position: TrainingPosition = serde_json::from_str(position).map_err(|error| {
            content("the position", format!("`{position}` ({error})"), "a run's position")
        })?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(format)?;
        let part = |name: &str, element: Dtype| {
            let missing = || content(name, "missing".to_owned(), "a tensor");
            let tensor = tensors.tensor(name).map_err(|_| missing())?;
            if tensor.dtype() != element {
                return Err(content(name, format!("{:?}", tensor.dtype()), "f32 numbers, or bytes"));
            }
            Ok(tensor)
        };
        let beta = numbers(part(BETA, Dtype::F32)?.data());
        let &[beta] = beta.as_slice() else {
            return Err(content(BETA, format!("{} numbers", beta.len()), "one number"));
        };
        let (mut network, mut optimisers) = (BTreeMap::new(), BTreeMap::new());
        for name in tensors.names() {
            if let Some(inner) = name.strip_prefix(NETWORK) {
                let tensor = part(name, Dtype::F32)?;
                network.insert(inner.to_owned(), (tensor.shape().to_vec(), numbers(tensor.data())));
            } else if let Some(inner) = name.strip_prefix(OPTIMISER) {
                optimisers.insert(inner.to_owned(), part(name, Dtype::U8)?.data().to_vec());
            }
        }
        Ok(Self { position, network, beta, optimisers })
    }
}

/// Little-endian numbers; safetensors has checked that the bytes are whole.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            position: TrainingPosition { epoch: 3, batch: 7, step: 1234, run: Digest::of_bytes(b"run") },
            network: BTreeMap::from([
                ("conv1.weight".to_owned(), (vec![2, 1], vec![1.5, -0.25])),
                ("head.bias".to_owned(), (vec![1], vec![f32::MIN_POSITIVE])),
            ]),
            beta: 1.2,
            optimisers: BTreeMap::from([("head".to_owned(), vec![1, 2, 3]), ("loss".to_owned(), vec![])]),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.safetensors");
        checkpoint().write(&path).unwrap();
        assert_eq!(Checkpoint::read(&path).unwrap(), checkpoint());
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.safetensors");
        assert!(matches!(Checkpoint::read(&path), Err(CheckpointError::Read { .. })));
        checkpoint().write(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let error = Checkpoint::read(&path).unwrap_err();
            assert!(error.to_string().contains("checkpoint.safetensors"), "{length}: {error}");
        }
        let other = safetensors::serialize(Vec::<(String, TensorView<'_>)>::new(), None).unwrap();
        fs::write(&path, other).unwrap();
        let error = Checkpoint::read(&path).unwrap_err();
        assert!(matches!(error, CheckpointError::Content { .. }), "{error}");
    }
}
