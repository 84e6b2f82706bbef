//! From the bytes of a file to a [`Model`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path};
use std::sync::Arc;

use super::{
    Attribute, AttributeValue, ElementType, Extent, FunctionName, Graph, Model, ModelFileError, Node,
    OperatorSet, Tensor, TensorFacts,
};
use crate::protobuf::{Message, Payload};

/// Most nodes, names, attributes, constants and numbers in attributes that a model may have.
///
/// Large networks have some ten thousand. A file of a few bytes per part could otherwise fill a hundred times its own
/// size in memory.
pub const MOST_PARTS: usize = 1 << 20;

/// Branches inside branches may be this deep; no exporter writes deeper ones.
const DEEPEST: usize = 16;

/// An operator has at most this many attributes; ONNX's own have fewer than twenty.
const MOST_ATTRIBUTES: usize = 256;

/// Tensors have at most this many axes.
const MOST_AXES: usize = 64;

impl Model {
    /// Reads a model's file.
    pub fn read(path: &Path) -> Result<Self, ModelFileError> {
        let bytes =
            fs::read(path).map_err(|source| ModelFileError::Read { path: path.to_owned(), source })?;
        Self::from_bytes(path, bytes)
    }

    /// Reads a model from the bytes of a file; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, ModelFileError> {
        let file = Arc::new(bytes);
        let mut reader = Reader { file: Arc::clone(&file), parts: 0, elsewhere: BTreeSet::new() };
        let message = Message { path, bytes: &file, start: 0 };
        let (mut producer, mut graph) = (String::new(), None);
        let (mut operator_sets, mut functions) = (Vec::new(), Vec::new());
        for field in message.fields() {
            match field? {
                (2, Payload::Bytes(name)) => producer = name.text()?,
                (7, Payload::Bytes(body)) => {
                    if graph.is_some() {
                        return Err(body.fault(0, "found no single graph"));
                    }
                    graph = Some(reader.graph(&body, 0)?);
                }
                (8, Payload::Bytes(set)) => operator_sets.push(reader.operator_set(&set)?),
                (25, Payload::Bytes(function)) => functions.push(reader.function(&function)?),
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        let own = |set: &&OperatorSet| matches!(set.domain.as_str(), "" | "ai.onnx");
        let mut versions = operator_sets.iter().filter(own).map(|set: &OperatorSet| set.version);
        if let Some(first) = versions.next()
            && versions.any(|version| version != first)
        {
            return Err(message.fault(0, "found two versions of ONNX's own operators"));
        }
        let graph = graph.ok_or_else(|| message.fault(file.len(), "found no single graph"))?;
        let elsewhere = reader.elsewhere;
        Ok(Self { producer, operator_sets, functions, graph, elsewhere, file })
    }
}

struct Reader {
    file: Arc<Vec<u8>>,
    parts: usize,
    elsewhere: BTreeSet<String>,
}

impl Reader {
    /// Counts one more part of the model.
    fn part(&mut self, message: &Message<'_>) -> Result<(), ModelFileError> {
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(message.fault(0, "found more than a million parts"));
        }
        Ok(())
    }

    fn name(&mut self, message: &Message<'_>) -> Result<String, ModelFileError> {
        self.part(message)?;
        message.text()
    }

    fn operator_set(&mut self, message: &Message<'_>) -> Result<OperatorSet, ModelFileError> {
        self.part(message)?;
        let mut set = OperatorSet { domain: String::new(), version: 1 };
        for field in message.fields() {
            match field? {
                (1, Payload::Bytes(domain)) => set.domain = domain.text()?,
                (2, Payload::Number(version)) => set.version = version as i64,
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(set)
    }

    /// A function's name, and the weights that its body keeps elsewhere; the body is not followed.
    fn function(&mut self, message: &Message<'_>) -> Result<FunctionName, ModelFileError> {
        self.part(message)?;
        let mut function = FunctionName { domain: String::new(), name: String::new() };
        for field in message.fields() {
            match field? {
                (1, Payload::Bytes(name)) => function.name = name.text()?,
                (7, Payload::Bytes(node)) => drop(self.node(&node, 0)?),
                (10, Payload::Bytes(domain)) => function.domain = domain.text()?,
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(function)
    }

    fn graph(&mut self, message: &Message<'_>, depth: usize) -> Result<Graph, ModelFileError> {
        if depth > DEEPEST {
            return Err(message.fault(0, "found branches nested too deeply"));
        }
        let mut graph = Graph::default();
        for field in message.fields() {
            match field? {
                (1, Payload::Bytes(node)) => graph.nodes.push(self.node(&node, depth)?),
                (2, Payload::Bytes(name)) => graph.name = name.text()?,
                (5, Payload::Bytes(tensor)) => graph.initializers.push(self.tensor(&tensor)?),
                (11, Payload::Bytes(value)) => graph.inputs.push(self.value(&value)?),
                (12, Payload::Bytes(value)) => graph.outputs.push(self.value(&value)?),
                (13, Payload::Bytes(value)) => graph.values.push(self.value(&value)?),
                (15, Payload::Bytes(sparse)) => graph.sparse_initializers.push(self.sparse(&sparse)?),
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(graph)
    }

    fn node(&mut self, message: &Message<'_>, depth: usize) -> Result<Node, ModelFileError> {
        self.part(message)?;
        let mut node = Node::default();
        for field in message.fields() {
            match field? {
                (1, Payload::Bytes(name)) => node.inputs.push(self.name(&name)?),
                (2, Payload::Bytes(name)) => node.outputs.push(self.name(&name)?),
                (3, Payload::Bytes(name)) => node.name = name.text()?,
                (4, Payload::Bytes(operator)) => node.operator = operator.text()?,
                (5, Payload::Bytes(attribute)) => {
                    if node.attributes.len() == MOST_ATTRIBUTES {
                        return Err(message.fault(0, "found a node of more than 256 attributes"));
                    }
                    let attribute = self.attribute(&attribute, depth)?;
                    if node.attributes.iter().any(|other| other.name == attribute.name) {
                        return Err(message.fault(0, "found an attribute twice"));
                    }
                    node.attributes.push(attribute);
                }
                (7, Payload::Bytes(domain)) => node.domain = domain.text()?,
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        if node.operator.is_empty() {
            return Err(message.fault(0, "found a node without an operator"));
        }
        Ok(node)
    }

    fn attribute(&mut self, message: &Message<'_>, depth: usize) -> Result<Attribute, ModelFileError> {
        self.part(message)?;
        let mut found = AttributeFields::default();
        // Texts of attributes are bytes; those that are not UTF-8 mean nothing to any operator here.
        let lossy = |bytes: &Message<'_>| String::from_utf8_lossy(bytes.bytes).into_owned();
        for field in message.fields() {
            let field = field?;
            found.note(field.0);
            match field {
                (1, Payload::Bytes(text)) => found.name = text.text()?,
                (2, Payload::Fixed32(bits)) => found.float = f32::from_le_bytes(bits),
                (3, Payload::Number(number)) => found.int = number as i64,
                (4, Payload::Bytes(bytes)) => found.text = lossy(&bytes),
                (5 | 10, Payload::Bytes(tensor)) => found.tensors.push(self.tensor(&tensor)?),
                (6 | 11, Payload::Bytes(graph)) => found.graphs.push(self.graph(&graph, depth + 1)?),
                (7, Payload::Fixed32(bits)) => {
                    self.part(message)?;
                    found.floats.push(f32::from_le_bytes(bits));
                }
                (7, Payload::Bytes(packed)) => {
                    for &bits in packed.bytes.as_chunks::<4>().0 {
                        self.part(&packed)?;
                        found.floats.push(f32::from_le_bytes(bits));
                    }
                }
                (8, Payload::Number(number)) => {
                    self.part(message)?;
                    found.ints.push(number as i64);
                }
                (8, Payload::Bytes(packed)) => {
                    for number in packed.packed() {
                        self.part(&packed)?;
                        found.ints.push(number? as i64);
                    }
                }
                (9, Payload::Bytes(bytes)) => {
                    self.part(&bytes)?;
                    found.texts.push(lossy(&bytes));
                }
                (20, Payload::Number(number)) => found.kind = number,
                (21, Payload::Bytes(_)) => found.reference = true,
                (22 | 23, Payload::Bytes(sparse)) => drop(self.sparse(&sparse)?),
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        found.into_attribute(message)
    }

    /// The name of a `SparseTensorProto`, and the files in which its parts are kept.
    fn sparse(&mut self, message: &Message<'_>) -> Result<String, ModelFileError> {
        let mut name = String::new();
        for field in message.fields() {
            match field? {
                (1, Payload::Bytes(values)) => name = self.tensor(&values)?.name,
                (2, Payload::Bytes(indices)) => drop(self.tensor(&indices)?),
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(name)
    }

    fn tensor(&mut self, message: &Message<'_>) -> Result<Tensor, ModelFileError> {
        self.part(message)?;
        let place = message.start..message.start + message.bytes.len();
        let mut tensor = Tensor {
            name: String::new(),
            element: ElementType::default(),
            shape: Vec::new(),
            location: None,
            file: Arc::clone(&self.file),
            place,
        };
        let push = |shape: &mut Vec<usize>, side: u64| {
            if shape.len() == MOST_AXES {
                return Err(message.fault(0, "found a tensor of more than 64 axes"));
            }
            let side = i64::try_from(side).ok().and_then(|side| usize::try_from(side).ok());
            shape.push(side.ok_or_else(|| message.fault(0, "found a side without end"))?);
            Ok(())
        };
        for field in message.fields() {
            match field? {
                (1, Payload::Number(side)) => push(&mut tensor.shape, side)?,
                (1, Payload::Bytes(packed)) => {
                    for side in packed.packed() {
                        push(&mut tensor.shape, side?)?;
                    }
                }
                (2, Payload::Number(element)) => tensor.element = ElementType(element),
                (8, Payload::Bytes(name)) => tensor.name = name.text()?,
                (13, Payload::Bytes(entry)) => {
                    if let (key, Some(place)) = pair(&entry)?
                        && key.as_deref() == Some("location")
                    {
                        // The ONNX specification allows files below the model's folder only.
                        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
                        if !Path::new(&place).components().all(inside) {
                            return Err(entry.fault(0, "found weights outside the model's folder"));
                        }
                        self.elsewhere.insert(place.clone());
                        tensor.location = Some(place);
                    }
                }
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(tensor)
    }

    /// Reads a `ValueInfoProto`.
    fn value(&mut self, message: &Message<'_>) -> Result<TensorFacts, ModelFileError> {
        self.part(message)?;
        let mut facts = TensorFacts { name: String::new(), element: ElementType::default(), shape: None };
        for field in message.fields() {
            match field? {
                (1, Payload::Bytes(name)) => facts.name = name.text()?,
                (2, Payload::Bytes(kind)) => {
                    for field in kind.fields() {
                        if let (1, Payload::Bytes(tensor)) = field? {
                            tensor_type(&tensor, &mut facts)?;
                        }
                    }
                }
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
            }
        }
        Ok(facts)
    }
}

/// The two strings of a `StringStringEntryProto`.
pub(super) fn pair(entry: &Message<'_>) -> Result<(Option<String>, Option<String>), ModelFileError> {
    let (mut key, mut value) = (None, None);
    for field in entry.fields() {
        match field? {
            (1, Payload::Bytes(text)) => key = Some(text.text()?),
            (2, Payload::Bytes(text)) => value = Some(text.text()?),
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
        }
    }
    Ok((key, value))
}

fn tensor_type(tensor: &Message<'_>, facts: &mut TensorFacts) -> Result<(), ModelFileError> {
    for field in tensor.fields() {
        match field? {
            (1, Payload::Number(element)) => facts.element = ElementType(element),
            (2, Payload::Bytes(shape)) => {
                let extents = facts.shape.get_or_insert_default();
                for field in shape.fields() {
                    if let (1, Payload::Bytes(extent)) = field? {
                        if extents.len() == MOST_AXES {
                            return Err(extent.fault(0, "found a tensor of more than 64 axes"));
                        }
                        extents.push(read_extent(&extent)?);
                    }
                }
            }
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
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
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {}
        }
    }
    Ok(found)
}

/// What the fields of an attribute hold, before it is known which of them counts.
#[derive(Default)]
struct AttributeFields {
    name: String,
    /// The kind that the file says it has; zero if it does not say.
    kind: u64,
    /// Whether it stands for an attribute of the function around it.
    reference: bool,
    float: f32,
    int: i64,
    text: String,
    floats: Vec<f32>,
    ints: Vec<i64>,
    texts: Vec<String>,
    tensors: Vec<Tensor>,
    graphs: Vec<Graph>,
    /// A bit for each kind of which a value is there.
    filled: u64,
}

impl AttributeFields {
    /// Notes which kind of value a field holds.
    fn note(&mut self, field: u64) {
        // The kinds are numbered as the fields that hold their values, in another row.
        let holds = match field {
            field @ 2..=11 => field - 1,
            field @ (22 | 23) => field - 11,
            field @ (14 | 15) => field - 1,
            _ => 0,
        };
        self.filled |= 1 << holds;
    }

    fn into_attribute(mut self, message: &Message<'_>) -> Result<Attribute, ModelFileError> {
        let filled = self.filled & !1;
        // Files from before 2018 may leave the kind out; it then is whatever is there.
        if self.kind == 0 {
            self.kind = u64::from(filled.trailing_zeros());
        }
        // Engines differ in whether they go by the kind or by what is there.
        if filled & !(1_u64.checked_shl(self.kind as u32).unwrap_or(0)) != 0 {
            return Err(message.fault(0, "found an attribute with values of another type"));
        }
        let written = filled & 1 << 2 != 0;
        let single = |count: usize| {
            if count == 1 { Ok(()) } else { Err(message.fault(0, "found an attribute without its value")) }
        };
        let value = match self.kind {
            _ if self.reference => AttributeValue::Other,
            1 => AttributeValue::Float(self.float),
            2 if written => AttributeValue::Int(self.int),
            3 => AttributeValue::Text(self.text),
            4 => {
                single(self.tensors.len())?;
                AttributeValue::Tensor(Box::new(self.tensors.remove(0)))
            }
            5 => {
                single(self.graphs.len())?;
                AttributeValue::Graph(Box::new(self.graphs.remove(0)))
            }
            6 => AttributeValue::Floats(self.floats),
            7 => AttributeValue::Ints(self.ints),
            8 => AttributeValue::Texts(self.texts),
            9 => AttributeValue::Tensors(self.tensors),
            10 => AttributeValue::Graphs(self.graphs),
            _ => AttributeValue::Other,
        };
        Ok(Attribute { name: self.name, value })
    }
}
