//! Weights by name: out of safetensors and PyTorch files, into a network, and back into safetensors.
//!
//! The format is recognised by the content, never by the file's name. A pickle is read as data: nothing that it names is
//! looked up or called. What a file says about its own sizes is checked before anything is reserved for it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};
use pytorch_reader::{PytorchError, PytorchReader};
use retrievalguard::storage::atomic::{self, WriteError};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::network::{NamedTensor, Network, NetworkConfig};

mod fit;

pub use fit::{FitError, Head, LoadReport, Misshapen};

/// Key under which a safetensors file says what it was made from.
const METADATA_KEY: &str = "retrievalguard";

/// Why weights could not be read or written; every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be read.
    #[error("weights `{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It begins like a safetensors file but is not one.
    #[error("weights `{}` are not a usable safetensors file", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: SafeTensorError,
    },
    /// It is neither a safetensors file nor a PyTorch file that can be read.
    #[error("weights `{}` are neither a safetensors file nor a usable PyTorch file", path.display())]
    Pytorch {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PytorchError,
    },
    /// A tensor claims more bytes than the whole file has.
    #[error("tensor `{tensor}` of `{}` has {found} bytes, wanted at most the file's {wanted}", path.display())]
    Oversized {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its bytes.
        found: u64,
        /// The file's bytes.
        wanted: u64,
    },
    /// A tensor's numbers cannot be read.
    #[error("tensor `{tensor}` of `{}` cannot be read", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The file holds no tensor at all.
    #[error("weights `{}` hold no tensor", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("weights cannot be stored")]
    Write(#[from] WriteError),
    /// The tensors cannot be brought into a safetensors file.
    #[error("weights cannot be written to `{}`", path.display())]
    Serialize {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SafeTensorError,
    },
}

/// Tensors by name, as a file held them.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    tensors: BTreeMap<String, Stored>,
    config: Option<NetworkConfig>,
}

#[derive(Clone, Debug, PartialEq)]
struct Stored {
    shape: Vec<usize>,
    /// The numbers, or the name of a type that no network takes.
    values: Result<Vec<f32>, String>,
}

/// What a safetensors file of ours says about itself.
#[derive(Serialize, Deserialize)]
struct Metadata {
    version: String,
    network: NetworkConfig,
}

impl Weights {
    /// Reads a safetensors file or a PyTorch file, zip or older; half and double precision become single.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        let failed = |source| WeightsError::Read { path: path.to_owned(), source };
        let mut beginning = Vec::new();
        File::open(path).and_then(|file| file.take(9).read_to_end(&mut beginning)).map_err(failed)?;
        let weights = if is_safetensors(&beginning) { read_safetensors(path) } else { read_pytorch(path) }?;
        if weights.tensors.is_empty() {
            return Err(WeightsError::Empty { path: path.to_owned() });
        }
        Ok(weights)
    }

    /// The network that the weights were saved from, if it was one of ours.
    pub fn config(&self) -> Option<&NetworkConfig> {
        self.config.as_ref()
    }

    /// Names of all tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

/// A length in eight bytes, then JSON; no pickle and no archive has a brace there.
fn is_safetensors(beginning: &[u8]) -> bool {
    beginning.get(8) == Some(&b'{')
}

fn read_safetensors(path: &Path) -> Result<Weights, WeightsError> {
    let content = fs::read(path).map_err(|source| WeightsError::Read { path: path.to_owned(), source })?;
    let failed = |source| WeightsError::Safetensors { path: path.to_owned(), source };
    let (_, header) = SafeTensors::read_metadata(&content).map_err(failed)?;
    let metadata = header.metadata().as_ref().and_then(|metadata| metadata.get(METADATA_KEY));
    let metadata = metadata.and_then(|text| serde_json::from_str::<Metadata>(text).ok());
    let file = SafeTensors::deserialize(&content).map_err(failed)?;
    let tensors = file.iter().map(|(name, tensor)| {
        let kind = match tensor.dtype() {
            Dtype::F16 => Ok(DType::F16),
            Dtype::BF16 => Ok(DType::BF16),
            Dtype::F32 => Ok(DType::F32),
            Dtype::F64 => Ok(DType::F64),
            other => Err(format!("{other:?}")),
        };
        (name.to_owned(), stored(tensor.shape(), kind, || tensor.data().to_vec()))
    });
    Ok(Weights { tensors: tensors.collect(), config: metadata.map(|metadata| metadata.network) })
}

fn read_pytorch(path: &Path) -> Result<Weights, WeightsError> {
    let failed = |source| WeightsError::Read { path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(failed)?.len();
    let reader =
        PytorchReader::new(path).map_err(|source| WeightsError::Pytorch { path: path.to_owned(), source })?;
    let mut tensors = BTreeMap::new();
    for (name, tensor) in reader.into_tensors() {
        // A view may repeat a few numbers without end; a tensor of a checkpoint never does.
        let found = tensor.byte_len() as u64;
        if found > length {
            return Err(WeightsError::Oversized {
                path: path.to_owned(),
                tensor: name,
                found,
                wanted: length,
            });
        }
        let kind = match tensor.dtype() {
            pytorch_reader::DType::F16 => Ok(DType::F16),
            pytorch_reader::DType::BF16 => Ok(DType::BF16),
            pytorch_reader::DType::F32 => Ok(DType::F32),
            pytorch_reader::DType::F64 => Ok(DType::F64),
            other => Err(format!("{other:?}")),
        };
        let bytes = match kind {
            Ok(_) => tensor.read().map_err(|source| WeightsError::Tensor {
                path: path.to_owned(),
                tensor: name.clone(),
                source,
            })?,
            Err(_) => Vec::new(),
        };
        tensors.insert(name, stored(tensor.shape(), kind, || bytes));
    }
    Ok(Weights { tensors, config: None })
}

fn stored(shape: &[usize], kind: Result<DType, String>, bytes: impl FnOnce() -> Vec<u8>) -> Stored {
    let values = kind.map(|kind| {
        let values = TensorData::from_bytes_vec(bytes(), shape, kind).convert::<f32>();
        values.try_into_vec().expect("converted to 32 bits just before")
    });
    Stored { shape: shape.to_vec(), values }
}

impl Network {
    /// Writes every tensor, running statistics among them, under its PyTorch name into a safetensors file.
    ///
    /// The file says which network it belongs to, see [`Weights::config`]. It is there completely or not at all.
    pub fn save_safetensors(&self, path: &Path) -> Result<(), WeightsError> {
        let failed = |source| WeightsError::Serialize { path: path.to_owned(), source };
        let metadata =
            Metadata { version: env!("CARGO_PKG_VERSION").to_owned(), network: self.config().clone() };
        let metadata = serde_json::to_string(&metadata).expect("a configuration has no map with other keys");
        let metadata = HashMap::from([(METADATA_KEY.to_owned(), metadata)]);
        let tensors: Vec<(NamedTensor, Vec<u8>)> = self
            .tensors()
            .into_iter()
            .map(|tensor| {
                let bytes = tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect();
                (tensor, bytes)
            })
            .collect();
        let views = tensors
            .iter()
            .map(|(tensor, bytes)| {
                Ok((&tensor.name, TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)?))
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        let content = safetensors::serialize(views, Some(metadata)).map_err(failed)?;
        Ok(atomic::write(path, &content)?)
    }
}

#[cfg(test)]
mod tests;
