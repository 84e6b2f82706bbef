//! What an ONNX file says about itself, read without any engine, so that every engine gives the same verdict.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::graph::{Model, ModelFileError, TensorFacts};
use crate::model_config::hexadecimal;

/// Operators that only quantised networks have.
const QUANTISED: [&str; 9] = [
    "QuantizeLinear",
    "DynamicQuantizeLinear",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
    "QGemm",
    "QLinearAdd",
    "MatMulNBits",
];

/// What an ONNX file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// SHA-256, in hexadecimal, of the file; if weights are kept in other files, of those too.
    pub hash: String,
    /// Tensors that the model takes.
    pub inputs: Vec<TensorFacts>,
    /// Tensors that the model gives.
    pub outputs: Vec<TensorFacts>,
    /// Whether it computes with small integers; a certificate is then about the quantised network.
    pub quantised: bool,
}

impl ModelFacts {
    /// Reads and hashes a model.
    pub fn read(path: &Path) -> Result<Self, ModelFileError> {
        Self::of(path, &Model::read(path)?)
    }

    /// The facts about a model that was read from this file.
    pub fn of(path: &Path, model: &Model) -> Result<Self, ModelFileError> {
        Ok(Self {
            hash: hash(path, &model.file, &model.elsewhere)?,
            inputs: model.graph.open_inputs().cloned().collect(),
            outputs: model.graph.outputs.clone(),
            quantised: model.graph.has_operator(&QUANTISED),
        })
    }

    /// The input with this name, or the only one.
    pub(crate) fn input(&self, name: Option<&str>) -> Option<&TensorFacts> {
        match name {
            Some(name) => self.inputs.iter().find(|tensor| tensor.name == name),
            None => self.inputs.first().filter(|_| self.inputs.len() == 1),
        }
    }

    /// The output with this name, or the first one.
    pub(crate) fn output(&self, name: Option<&str>) -> Option<&TensorFacts> {
        match name {
            Some(name) => self.outputs.iter().find(|tensor| tensor.name == name),
            None => self.outputs.first(),
        }
    }
}

/// Hash of a model and of the files in which it keeps weights, in the order of their names.
fn hash(path: &Path, bytes: &[u8], elsewhere: &BTreeSet<String>) -> Result<String, ModelFileError> {
    let mut hash = Sha256::new();
    hash.update(bytes);
    for name in elsewhere {
        let path = path.with_file_name(name);
        let error = |source| ModelFileError::Read { path: path.clone(), source };
        let mut file = fs::File::open(&path).map_err(error)?;
        let length = file.metadata().map_err(error)?.len();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update(length.to_le_bytes());
        io::copy(&mut file, &mut io::BufWriter::with_capacity(1 << 20, Sink(&mut hash))).map_err(error)?;
    }
    Ok(hexadecimal(&hash.finalize()))
}

struct Sink<'a>(&'a mut Sha256);

impl io::Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
