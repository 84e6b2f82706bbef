//! The graph of an ONNX file, typed: operators with their attributes, constants, inputs, outputs and known shapes.
//!
//! One reading of the file serves everything that wants to know what an encoder computes: its inputs and outputs, the
//! weights, and what [`batch`] finds out about pictures that share a batch. ONNX files are protocol buffers; the numbers
//! of the fields are those of `onnx.proto3`.
//!
//! Files come from anywhere. Whatever their bytes, reading ends in a [`Model`] or a [`ModelFileError`]; what is
//! allocated is bounded by the file's size and by [`MOST_PARTS`].
//!
//! ```
//! use std::path::Path;
//! use retrievalguard_encoder::graph::Model;
//!
//! let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/convolutional.onnx");
//! let model = Model::read(&path)?;
//! assert_eq!(model.graph.nodes[0].operator, "Conv");
//! assert_eq!(model.graph.nodes[0].ints("pads"), Some(&[1, 1, 1, 1][..]));
//! # Ok::<(), retrievalguard_encoder::graph::ModelFileError>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub mod batch;
pub mod bound;
pub mod evaluate;
mod flow;
mod read;
mod tensor;

pub use flow::GraphError;
pub(crate) use flow::{Flow, Source};
pub use read::MOST_PARTS;
pub use tensor::{Tensor, TensorError, Values};

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
    /// A constant is not what the file says of it.
    #[error("a constant in `{path}` cannot be used")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: TensorError,
    },
}

/// A model: its graph, and which versions of the operators it means.
#[derive(Clone, Debug)]
pub struct Model {
    /// The program that wrote it.
    pub producer: String,
    /// Versions of the operators, by domain.
    pub operator_sets: Vec<OperatorSet>,
    /// Operators that the file defines itself.
    pub functions: Vec<FunctionName>,
    /// The graph.
    pub graph: Graph,
    /// Files beside the model in which it keeps weights.
    pub elsewhere: BTreeSet<String>,
    /// The file's bytes.
    pub(crate) file: Arc<Vec<u8>>,
}

/// The version of the operators of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorSet {
    /// The domain; empty for ONNX's own operators.
    pub domain: String,
    /// The version.
    pub version: i64,
}

/// An operator that the file defines itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionName {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub name: String,
}

/// Operators and what flows between them, by names.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// Its operators, in the order of the file.
    pub nodes: Vec<Node>,
    /// Its constants.
    pub initializers: Vec<Tensor>,
    /// Names of constants that are stored as sparse tensors.
    pub sparse_initializers: Vec<String>,
    /// What it takes; old files name initialisers here, too.
    pub inputs: Vec<TensorFacts>,
    /// What it gives.
    pub outputs: Vec<TensorFacts>,
    /// What the file says about values in between.
    pub values: Vec<TensorFacts>,
}

/// One operator of a graph.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its name; may be empty.
    pub name: String,
    /// What it does.
    pub operator: String,
    /// Whose operator it is; empty for ONNX's own.
    pub domain: String,
    /// Names of what it takes; an empty name is an argument left out.
    pub inputs: Vec<String>,
    /// Names of what it gives.
    pub outputs: Vec<String>,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

/// A named setting of an operator.
#[derive(Clone, Debug)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum AttributeValue {
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A text.
    Text(String),
    /// A constant.
    Tensor(Box<Tensor>),
    /// The branch or body of an operator such as `If` or `Loop`.
    Graph(Box<Graph>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Texts(Vec<String>),
    /// Constants.
    Tensors(Vec<Tensor>),
    /// Several branches.
    Graphs(Vec<Graph>),
    /// Something that is not read here: a sparse tensor, a type, or a reference to a function's attribute.
    Other,
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }

    /// The integer attribute of this name.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name) {
            Some(AttributeValue::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// The integers of the attribute of this name.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name) {
            Some(AttributeValue::Ints(values)) => Some(values),
            _ => None,
        }
    }

    /// The number of the attribute of this name.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name) {
            Some(AttributeValue::Float(value)) => Some(*value),
            _ => None,
        }
    }

    /// The numbers of the attribute of this name.
    pub fn floats(&self, name: &str) -> Option<&[f32]> {
        match self.attribute(name) {
            Some(AttributeValue::Floats(values)) => Some(values),
            _ => None,
        }
    }

    /// The text of the attribute of this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name) {
            Some(AttributeValue::Text(value)) => Some(value),
            _ => None,
        }
    }

    /// The constant in the attribute of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        match self.attribute(name) {
            Some(AttributeValue::Tensor(value)) => Some(value),
            _ => None,
        }
    }

    /// The name of an input, unless it was left out.
    pub fn input(&self, place: usize) -> Option<&str> {
        self.inputs.get(place).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The graphs in its attributes.
    pub fn subgraphs(&self) -> impl Iterator<Item = &Graph> {
        self.attributes.iter().flat_map(|attribute| match &attribute.value {
            AttributeValue::Graph(graph) => std::slice::from_ref(graph.as_ref()),
            AttributeValue::Graphs(graphs) => graphs.as_slice(),
            _ => &[],
        })
    }

    /// Whether the operator is one of ONNX's own.
    pub fn is_standard(&self) -> bool {
        matches!(self.domain.as_str(), "" | "ai.onnx")
    }

    /// How people find it in a viewer: its name, or else that of its first output.
    pub fn label(&self) -> &str {
        if self.name.is_empty() { self.outputs.first().map_or("", String::as_str) } else { &self.name }
    }
}

impl Graph {
    /// Whether an operator with one of these names is here or in a branch.
    pub fn has_operator(&self, names: &[&str]) -> bool {
        self.nodes.iter().any(|node| {
            names.contains(&node.operator.as_str()) || node.subgraphs().any(|graph| graph.has_operator(names))
        })
    }

    /// What a caller must give: the inputs that have no initial value.
    pub fn open_inputs(&self) -> impl Iterator<Item = &TensorFacts> {
        let initialised: std::collections::HashSet<&str> =
            self.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
        self.inputs.iter().filter(move |input| !initialised.contains(input.name.as_str()))
    }
}

impl Model {
    /// Version of ONNX's own operators; 1 if the file does not say.
    pub fn operators(&self) -> i64 {
        let own = self.operator_sets.iter().filter(|set| matches!(set.domain.as_str(), "" | "ai.onnx"));
        own.map(|set| set.version).max().unwrap_or(1)
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementType(pub(crate) u64);

impl ElementType {
    /// 32-bit floating point.
    pub const FLOAT: Self = Self(1);
    /// 8-bit integer without sign.
    pub const UINT8: Self = Self(2);
    /// 8-bit integer.
    pub const INT8: Self = Self(3);
    /// 16-bit integer without sign.
    pub const UINT16: Self = Self(4);
    /// 16-bit integer.
    pub const INT16: Self = Self(5);
    /// 32-bit integer.
    pub const INT32: Self = Self(6);
    /// 64-bit integer.
    pub const INT64: Self = Self(7);
    /// True or false.
    pub const BOOL: Self = Self(9);
    /// 16-bit floating point.
    pub const FLOAT16: Self = Self(10);
    /// 64-bit floating point.
    pub const DOUBLE: Self = Self(11);
    /// 32-bit integer without sign.
    pub const UINT32: Self = Self(12);
    /// 64-bit integer without sign.
    pub const UINT64: Self = Self(13);
    /// The upper half of 32-bit floating point.
    pub const BFLOAT16: Self = Self(16);
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

#[cfg(test)]
pub(crate) mod builder;
#[cfg(test)]
mod tests;
