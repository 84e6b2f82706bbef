//! The weights in an ONNX file, for whoever wants to rebuild the network.

use std::path::Path;

use crate::graph::{ElementType, Graph, Model, ModelFileError, Values};

/// What an ONNX file keeps: who wrote it, what its graph is called, and its constants.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredNetwork {
    /// The program that wrote it.
    pub producer: String,
    /// The name of its graph.
    pub graph: String,
    /// Its constants of single precision in the file itself, in the order of the file.
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
        let Model { producer, graph, .. } = Model::read(path)?;
        let Graph { name, initializers, .. } = graph;
        let mut tensors = Vec::new();
        for tensor in initializers {
            if tensor.element != ElementType::FLOAT || tensor.location.is_some() {
                continue;
            }
            let wrong = |source| ModelFileError::Tensor { path: path.to_owned(), source };
            if let Values::Single(values) = tensor.values().map_err(wrong)? {
                tensors.push(StoredTensor { name: tensor.name, shape: tensor.shape, values });
            }
        }
        Ok(Self { producer, graph: name, tensors })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::graph::TensorError;
    use crate::protobuf::MessageWriter;

    fn model(sides: [i64; 2], kind: i64, numbers: &[f32]) -> Vec<u8> {
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let constant =
            MessageWriter::default().numbers(1, sides).number(2, kind).text(8, "matrix").bytes(9, &numbers);
        let graph = MessageWriter::default().text(2, "small").message(5, &constant);
        MessageWriter::default().text(2, "somebody").message(7, &graph).into_bytes()
    }

    #[test]
    fn constants_come_out_as_they_were_written_and_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let read = |bytes: Vec<u8>| {
            fs::write(&path, bytes).unwrap();
            StoredNetwork::read(&path)
        };
        let network = read(model([1, 2], 1, &[0.5, -3.0])).unwrap();
        assert_eq!((network.producer.as_str(), network.graph.as_str()), ("somebody", "small"));
        let matrix = StoredTensor { name: "matrix".into(), shape: vec![1, 2], values: vec![0.5, -3.0] };
        assert_eq!(network.tensors, [matrix]);
        assert_eq!(read(model([1, 2], 7, &[0.5, -3.0])).unwrap().tensors, []);
        let error = read(model([1, 3], 1, &[0.5, -3.0])).unwrap_err();
        assert!(
            matches!(error, ModelFileError::Tensor { source: TensorError::Length { found: 8, .. }, .. }),
            "{error}"
        );
        assert!(StoredNetwork::read(&folder.path().join("nowhere")).is_err());
    }
}
