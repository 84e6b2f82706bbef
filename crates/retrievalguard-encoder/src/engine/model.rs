//! What an ONNX file says about itself, read without any engine, so that every engine gives the same verdict.
//!
//! ONNX files are protocol buffers. Of the schema (onnx.proto3) only the names, types and shapes of inputs and outputs,
//! the operators and the places of weights kept in other files are read; the weights are stepped over.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::protobuf::{Message, Payload};
use crate::contract::hexadecimal;

mod protobuf;
mod stored;

pub use stored::{StoredNetwork, StoredTensor};

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

/// Why an ONNX file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFileError {
    /// The file, or a file of weights that it names, cannot be read.
    #[error("`{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file ends before something that it announces.
    #[error("`{path}` is truncated: at byte {at} it announces {wanted} bytes and {found} are left")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        at: usize,
        /// How many bytes were announced.
        wanted: u64,
        /// How many are left.
        found: usize,
    },
    /// The bytes are not those of an ONNX model.
    #[error("`{path}` is not an ONNX model: {reason} at byte {at}")]
    NotOnnx {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        at: usize,
        /// What is wrong there.
        reason: &'static str,
    },
}

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

/// Name, type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorFacts {
    /// Name in the graph.
    pub name: String,
    /// Type of its numbers.
    pub element: ElementType,
    /// Shape, unless the file leaves it open.
    pub shape: Option<Vec<Extent>>,
}

/// Type of a tensor's numbers, by its number in onnx.proto3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementType(u64);

impl ElementType {
    /// 32-bit floating point.
    pub const FLOAT: Self = Self(1);
}

impl fmt::Display for ElementType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            "undefined",
            "float32",
            "uint8",
            "int8",
            "uint16",
            "int16",
            "int32",
            "int64",
            "string",
            "bool",
            "float16",
            "float64",
            "uint32",
            "uint64",
            "complex64",
            "complex128",
            "bfloat16",
        ];
        match usize::try_from(self.0).ok().and_then(|number| names.get(number)) {
            Some(name) => out.write_str(name),
            None => write!(out, "ONNX type {}", self.0),
        }
    }
}

/// Length of one axis of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Always this long.
    Fixed(usize),
    /// Known only when the model runs; the name may be empty.
    Dynamic(String),
}

impl Extent {
    /// Whether an axis of this length can have `length` members.
    pub fn accepts(&self, length: usize) -> bool {
        match self {
            Self::Fixed(fixed) => *fixed == length,
            Self::Dynamic(_) => true,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(out, "{length}"),
            Self::Dynamic(name) if name.is_empty() => out.write_str("?"),
            Self::Dynamic(name) => out.write_str(name),
        }
    }
}

/// A shape as people write it.
pub(crate) fn shape_text(shape: &[Extent]) -> String {
    format!("[{}]", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

impl ModelFacts {
    /// Reads and hashes a model.
    pub fn read(path: &Path) -> Result<Self, ModelFileError> {
        let bytes = read(path)?;
        let mut facts =
            Self { hash: String::new(), inputs: Vec::new(), outputs: Vec::new(), quantised: false };
        let mut found = Found::default();
        let model = Message { path, bytes: &bytes, start: 0 };
        let mut graphs = 0_usize;
        for field in model.fields() {
            if let (7, Payload::Bytes(graph)) = field? {
                graphs += 1;
                found.graph(&graph, &mut facts, Depth::Top)?;
            }
        }
        if graphs != 1 {
            return Err(model.fault(bytes.len(), "found no single graph"));
        }
        facts.inputs.retain(|input| !found.initialised.contains(&input.name));
        facts.hash = hash(path, &bytes, &found.elsewhere)?;
        Ok(facts)
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

fn read(path: &Path) -> Result<Vec<u8>, ModelFileError> {
    fs::read(path).map_err(|source| ModelFileError::Read { path: path.to_owned(), source })
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

/// Names met on the way through the file.
#[derive(Default)]
struct Found {
    initialised: HashSet<String>,
    elsewhere: BTreeSet<String>,
}

/// Whether a graph is the model's own or the branch of an operator such as `If`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Top,
    Branch(u8),
}

/// Branches inside branches deeper than this are not followed; no exporter writes them.
const DEEPEST: u8 = 16;

impl Found {
    fn graph(
        &mut self,
        graph: &Message<'_>,
        facts: &mut ModelFacts,
        depth: Depth,
    ) -> Result<(), ModelFileError> {
        for field in graph.fields() {
            match field? {
                (1, Payload::Bytes(node)) => self.node(&node, facts, depth)?,
                (5, Payload::Bytes(tensor)) => self.tensor(&tensor, depth)?,
                (11, Payload::Bytes(value)) if depth == Depth::Top => {
                    facts.inputs.push(tensor_facts(&value)?);
                }
                (12, Payload::Bytes(value)) if depth == Depth::Top => {
                    facts.outputs.push(tensor_facts(&value)?);
                }
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        node: &Message<'_>,
        facts: &mut ModelFacts,
        depth: Depth,
    ) -> Result<(), ModelFileError> {
        for field in node.fields() {
            match field? {
                (4, Payload::Bytes(operator)) => {
                    facts.quantised |= QUANTISED.contains(&operator.text()?.as_str());
                }
                (5, Payload::Bytes(attribute)) => self.attribute(&attribute, facts, depth)?,
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
            }
        }
        Ok(())
    }

    fn attribute(
        &mut self,
        attribute: &Message<'_>,
        facts: &mut ModelFacts,
        depth: Depth,
    ) -> Result<(), ModelFileError> {
        let inner = match depth {
            Depth::Top => 1,
            Depth::Branch(level) => level + 1,
        };
        if inner > DEEPEST {
            return Ok(());
        }
        for field in attribute.fields() {
            match field? {
                (5, Payload::Bytes(tensor)) => self.tensor(&tensor, Depth::Branch(inner))?,
                (6 | 11, Payload::Bytes(graph)) => self.graph(&graph, facts, Depth::Branch(inner))?,
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
            }
        }
        Ok(())
    }

    fn tensor(&mut self, tensor: &Message<'_>, depth: Depth) -> Result<(), ModelFileError> {
        for field in tensor.fields() {
            match field? {
                (8, Payload::Bytes(name)) if depth == Depth::Top => {
                    self.initialised.insert(name.text()?);
                }
                (13, Payload::Bytes(entry)) => {
                    if let (key, Some(place)) = pair(&entry)?
                        && key.as_deref() == Some("location")
                    {
                        // The ONNX specification allows files below the model's folder only.
                        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
                        if !Path::new(&place).components().all(inside) {
                            return Err(entry.fault(0, "found weights outside the model's folder"));
                        }
                        self.elsewhere.insert(place);
                    }
                }
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
            }
        }
        Ok(())
    }
}

/// The two strings of a `StringStringEntryProto`.
fn pair(entry: &Message<'_>) -> Result<(Option<String>, Option<String>), ModelFileError> {
    let (mut key, mut value) = (None, None);
    for field in entry.fields() {
        match field? {
            (1, Payload::Bytes(text)) => key = Some(text.text()?),
            (2, Payload::Bytes(text)) => value = Some(text.text()?),
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
        }
    }
    Ok((key, value))
}

/// Reads a `ValueInfoProto`.
fn tensor_facts(value: &Message<'_>) -> Result<TensorFacts, ModelFileError> {
    let mut facts = TensorFacts { name: String::new(), element: ElementType(0), shape: None };
    for field in value.fields() {
        match field? {
            (1, Payload::Bytes(name)) => facts.name = name.text()?,
            (2, Payload::Bytes(kind)) => {
                for field in kind.fields() {
                    if let (1, Payload::Bytes(tensor)) = field? {
                        tensor_type(&tensor, &mut facts)?;
                    }
                }
            }
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
        }
    }
    Ok(facts)
}

fn tensor_type(tensor: &Message<'_>, facts: &mut TensorFacts) -> Result<(), ModelFileError> {
    for field in tensor.fields() {
        match field? {
            (1, Payload::Number(element)) => facts.element = ElementType(element),
            (2, Payload::Bytes(shape)) => {
                let extents = facts.shape.get_or_insert_default();
                for field in shape.fields() {
                    if let (1, Payload::Bytes(extent)) = field? {
                        extents.push(read_extent(&extent)?);
                    }
                }
            }
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
        }
    }
    Ok(())
}

fn read_extent(extent: &Message<'_>) -> Result<Extent, ModelFileError> {
    let mut found = Extent::Dynamic(String::new());
    for field in extent.fields() {
        match field? {
            // Some exporters write −1 or 0 for an axis of unknown length.
            (1, Payload::Number(length)) => {
                if let Some(length) = usize::try_from(length as i64).ok().filter(|&length| length > 0) {
                    found = Extent::Fixed(length);
                }
            }
            (2, Payload::Bytes(name)) => found = Extent::Dynamic(name.text()?),
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
        }
    }
    Ok(found)
}
