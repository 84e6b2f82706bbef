//! The weights in an ONNX file, for whoever wants to rebuild the network.

use std::path::Path;

use super::protobuf::{Message, Payload};
use super::{ModelFileError, read};

/// Single precision, by its number in onnx.proto3.
const FLOAT: u64 = 1;

/// What an ONNX file keeps: who wrote it, what its graph is called, and its constants.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredNetwork {
    /// The program that wrote it.
    pub producer: String,
    /// The name of its graph.
    pub graph: String,
    /// Its constants of single precision that lie in the file itself, in the order of the file.
    pub tensors: Vec<StoredTensor>,
}

/// A constant of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// Its sides.
    pub shape: Vec<usize>,
    /// Its numbers, the last side running fastest.
    pub values: Vec<f32>,
}

impl StoredNetwork {
    /// Reads the constants of a model.
    pub fn read(path: &Path) -> Result<Self, ModelFileError> {
        let bytes = read(path)?;
        let mut network = Self { producer: String::new(), graph: String::new(), tensors: Vec::new() };
        let model = Message { path, bytes: &bytes, start: 0 };
        for field in model.fields() {
            match field? {
                (2, Payload::Bytes(producer)) => network.producer = producer.text()?,
                (7, Payload::Bytes(graph)) => {
                    for field in graph.fields() {
                        match field? {
                            (2, Payload::Bytes(name)) => network.graph = name.text()?,
                            (5, Payload::Bytes(constant)) => network.tensors.extend(tensor(&constant)?),
                            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
                        }
                    }
                }
                (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
            }
        }
        Ok(network)
    }
}

/// Reads a `TensorProto` whose numbers lie in one piece; others are not ours to read.
fn tensor(message: &Message<'_>) -> Result<Option<StoredTensor>, ModelFileError> {
    let (mut name, mut shape, mut kind, mut raw) = (String::new(), Vec::new(), 0, None);
    for field in message.fields() {
        match field? {
            (1, Payload::Number(side)) => {
                let side = usize::try_from(side).map_err(|_| message.fault(0, "found a side without end"))?;
                shape.push(side);
            }
            (2, Payload::Number(number)) => kind = number,
            (8, Payload::Bytes(text)) => name = text.text()?,
            (9, Payload::Bytes(bytes)) => raw = Some(bytes),
            (_, Payload::Bytes(_) | Payload::Number(_) | Payload::Fixed) => {}
        }
    }
    let Some(raw) = raw.filter(|_| kind == FLOAT) else { return Ok(None) };
    let wanted = shape.iter().try_fold(4_usize, |bytes, &side| bytes.checked_mul(side));
    if wanted != Some(raw.bytes.len()) {
        return Err(raw.fault(0, "found a constant of another length than its sides have"));
    }
    let (numbers, _) = raw.bytes.as_chunks::<4>();
    let values = numbers.iter().map(|&number| f32::from_le_bytes(number)).collect();
    Ok(Some(StoredTensor { name, shape, values }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A field with bytes in it; all lengths here are below 128.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn model(sides: &[u8], kind: u8, numbers: &[f32]) -> Vec<u8> {
        let mut constant: Vec<u8> = sides.iter().flat_map(|&side| [1 << 3, side]).collect();
        constant.extend([2 << 3, kind]);
        constant.extend(field(8, b"matrix"));
        constant
            .extend(field(9, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>()));
        let graph = [field(2, b"small"), field(5, &constant)].concat();
        [field(2, b"somebody"), field(7, &graph)].concat()
    }

    #[test]
    fn constants_come_out_as_they_were_written_and_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let read = |bytes: Vec<u8>| {
            fs::write(&path, bytes).unwrap();
            StoredNetwork::read(&path)
        };
        let network = read(model(&[1, 2], 1, &[0.5, -3.0])).unwrap();
        assert_eq!((network.producer.as_str(), network.graph.as_str()), ("somebody", "small"));
        let matrix = StoredTensor { name: "matrix".into(), shape: vec![1, 2], values: vec![0.5, -3.0] };
        assert_eq!(network.tensors, [matrix]);
        assert_eq!(read(model(&[1, 2], 7, &[0.5, -3.0])).unwrap().tensors, []);
        let error = read(model(&[3], 1, &[0.5, -3.0])).unwrap_err();
        assert!(error.to_string().contains("another length than its sides have"), "{error}");
        assert!(StoredNetwork::read(&folder.path().join("nowhere")).is_err());
    }
}
