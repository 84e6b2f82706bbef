//! A network as an ONNX graph: convolutions with their batch normalisations folded in, a matrix, rows of length 1.
//!
//! The numbers of the fields are those of `onnx.proto`.

use std::collections::HashMap;

use retrievalguard_encoder::protobuf::MessageWriter;

use super::ExportError;
use crate::kernel::Activation;
use crate::network::{
    Factored, HeadKind, Network, PictureSize, Pooling, ProjectionSpec, ResidualSpec, SHORTEST, Step,
    UnitSpec, Value, exported_scales,
};

/// Name of the graph's input.
pub(crate) const INPUT: &str = "pictures";
/// Name of the graph's output.
pub(crate) const OUTPUT: &str = "embeddings";

/// Name of the program that writes the file.
pub(crate) const PRODUCER: &str = "retrievalguard";

/// Version of the file format and of the operators: what both engines have known for years.
const IR_VERSION: i64 = 8;
const OPERATORS: i64 = 17;

/// The element types: single precision, and whole numbers for shapes.
const FLOAT: i64 = 1;
const INT64: i64 = 7;

/// What a graph gives for a picture, at length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// What the head makes of the features.
    Embeddings,
    /// What the head gets.
    Features,
}

/// The ONNX file of a network, as bytes; a pure function of its weights.
pub(super) fn encode(network: &Network, rows: Rows) -> Result<Vec<u8>, ExportError> {
    let config = network.config();
    let mut graph = Graph::new(network);
    let features = graph.backbone(network)?;
    let normalises = config.architecture.normalises();
    let length = match (rows, config.head) {
        (Rows::Embeddings, HeadKind::Linear) if normalises => {
            let rows = graph.head(&features, config.dimension)?;
            graph.normalise(&rows);
            config.dimension
        }
        (Rows::Embeddings, HeadKind::Linear) => {
            graph.orthonormal_head(&features, config.dimension)?;
            config.dimension
        }
        (Rows::Features, _) | (Rows::Embeddings, HeadKind::None) => {
            if normalises {
                graph.shortest()?;
                graph.normalise(&features);
            } else {
                graph.node("Identity", &[&features], OUTPUT, &[]);
            }
            network.layer_graph().features()
        }
    };
    let PictureSize { channels, height, width } = config.picture;
    let body = graph
        .body
        .text(2, config.architecture.name())
        .message(11, &value(INPUT, &[channels, height, width]))
        .message(12, &value(OUTPUT, &[length]));
    let model = MessageWriter::default()
        .number(1, IR_VERSION)
        .text(2, PRODUCER)
        .text(3, env!("CARGO_PKG_VERSION"))
        .message(7, &body)
        .message(8, &MessageWriter::default().text(1, "").number(2, OPERATORS));
    Ok(model.into_bytes())
}

/// A tensor of any number of rows, as a graph declares it.
fn value(name: &str, sides: &[usize]) -> MessageWriter {
    let batch = MessageWriter::default().message(1, &MessageWriter::default().text(2, "batch"));
    let shape = sides
        .iter()
        .fold(batch, |shape, &side| shape.message(1, &MessageWriter::default().number(1, side as i64)));
    let tensor = MessageWriter::default().number(1, FLOAT).message(2, &shape);
    MessageWriter::default().text(1, name).message(2, &MessageWriter::default().message(1, &tensor))
}

/// Sides and the like, as the format has them.
fn whole(values: &[usize]) -> impl Iterator<Item = i64> {
    values.iter().map(|&value| value as i64)
}

/// An attribute of an operator.
enum Attribute<'a> {
    Number(&'static str, usize),
    Numbers(&'static str, &'a [usize]),
}

impl Attribute<'_> {
    fn encode(&self) -> MessageWriter {
        match *self {
            Self::Number(name, value) => {
                MessageWriter::default().text(1, name).number(3, value as i64).number(20, 2)
            }
            Self::Numbers(name, values) => {
                MessageWriter::default().text(1, name).numbers(8, whole(values)).number(20, 7)
            }
        }
    }
}

/// Nodes and constants under construction.
struct Graph {
    /// The graph's message; its fields may come in any order.
    body: MessageWriter,
    /// The network's numbers by name.
    tensors: HashMap<String, Vec<f32>>,
    /// Constants that activations share, written when first used.
    six: bool,
}

impl Graph {
    fn new(network: &Network) -> Self {
        let tensors = network.tensors().into_iter().map(|tensor| (tensor.name, tensor.values)).collect();
        Self { body: MessageWriter::default(), tensors, six: false }
    }

    fn take(&mut self, name: &str) -> Vec<f32> {
        self.tensors.remove(name).expect("a network holds every tensor of its layers, once")
    }

    fn node(&mut self, operator: &str, inputs: &[&str], output: &str, attributes: &[Attribute<'_>]) {
        let node =
            MessageWriter::default().texts(1, inputs).text(2, output).text(3, output).text(4, operator);
        let node = attributes.iter().fold(node, |node, attribute| node.message(5, &attribute.encode()));
        self.add(1, &node);
    }

    fn constant(&mut self, name: &str, sides: &[usize], values: &[f32]) -> Result<(), ExportError> {
        if values.iter().any(|value| !value.is_finite()) {
            return Err(ExportError::NotFinite { tensor: name.to_owned() });
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor =
            MessageWriter::default().numbers(1, whole(sides)).number(2, FLOAT).text(8, name).bytes(9, &bytes);
        self.add(5, &tensor);
        Ok(())
    }

    /// A list of whole numbers, such as a shape.
    fn list(&mut self, name: &str, values: &[usize]) {
        let bytes: Vec<u8> = whole(values).flat_map(i64::to_le_bytes).collect();
        let sides = [values.len()];
        let tensor = MessageWriter::default()
            .numbers(1, whole(&sides))
            .number(2, INT64)
            .text(8, name)
            .bytes(9, &bytes);
        self.add(5, &tensor);
    }

    fn add(&mut self, field: u64, message: &MessageWriter) {
        self.body = std::mem::take(&mut self.body).message(field, message);
    }

    /// Every step, then the pooling; returns the name of the features.
    fn backbone(&mut self, network: &Network) -> Result<String, ExportError> {
        let layers = network.layer_graph();
        let mut names = vec![INPUT.to_owned()];
        for (at, &step) in layers.steps.iter().enumerate() {
            let name = match step {
                Step::Unit { input, unit } => self.unit(&layers.units[unit], &names[input])?,
                Step::MaxPool { input, window, stride, padding } => {
                    let name = format!("pool.{at}");
                    let attributes = [
                        Attribute::Numbers("kernel_shape", &[window; 2]),
                        Attribute::Numbers("strides", &[stride; 2]),
                        Attribute::Numbers("pads", &[padding; 4]),
                    ];
                    self.node("MaxPool", &[&names[input]], &name, &attributes);
                    name
                }
                Step::Add { left, right, activation } => {
                    let name = format!("sum.{at}");
                    self.node("Add", &[&names[left], &names[right]], &name, &[]);
                    self.activation(activation, name)?
                }
                Step::SpaceToDepth { input, block } => {
                    self.space_to_depth(layers.value(input), block, &names[input], at)
                }
                Step::PadChannels { input, channels } => {
                    let name = format!("pad.{at}");
                    let pads = format!("{name}.pads");
                    self.list(&pads, &[0, 0, 0, 0, 0, channels - layers.value(input).channels, 0, 0]);
                    self.node("Pad", &[&names[input], &pads], &name, &[]);
                    name
                }
                Step::Residual { input, residual } => {
                    self.residual(&layers.residuals[residual], &names[input])?
                }
                Step::Projection { input, projection } => {
                    self.projection(&layers.projections[projection], &names[input])?
                }
            };
            names.push(name);
        }
        let mut last = names.pop().unwrap_or_default();
        if layers.pooling == Pooling::Average {
            self.node("GlobalAveragePool", &[&last], "pooled", &[]);
            last = "pooled".to_owned();
        }
        self.node("Flatten", &[&last], "features", &[Attribute::Number("axis", 1)]);
        Ok("features".to_owned())
    }

    /// A convolution that does what it and its batch normalisation did:
    ///
    /// ```text
    /// s = scale / √(variance + ε),   weight' = s · weight,   bias' = shift − s · mean
    /// ```
    fn unit(&mut self, spec: &UnitSpec, input: &str) -> Result<String, ExportError> {
        let UnitSpec { convolution, norm, shape, geometry, epsilon, activation } = spec;
        let weight = self.take(&format!("{convolution}.weight"));
        let [scale, shift, mean, variance] = ["weight", "bias", "running_mean", "running_var"]
            .map(|part| self.take(&format!("{norm}.{part}")).into_iter().map(f64::from).collect::<Vec<_>>());
        let [outputs, inputs, rows, columns] = *shape;
        let (mut folded, mut bias) = (Vec::with_capacity(weight.len()), Vec::with_capacity(outputs));
        for (channel, kernels) in weight.chunks_exact(inputs * rows * columns).enumerate() {
            let factor = scale[channel] / (variance[channel] + epsilon).sqrt();
            folded.extend(kernels.iter().map(|&weight| (f64::from(weight) * factor) as f32));
            bias.push((shift[channel] - mean[channel] * factor) as f32);
        }
        let [weight, bias_name] = ["weight", "bias"].map(|part| format!("{convolution}.{part}"));
        self.constant(&weight, shape, &folded)?;
        self.constant(&bias_name, &[outputs], &bias)?;
        let [(above, below), (left, right)] = geometry.padding;
        let attributes = [
            Attribute::Numbers("kernel_shape", &[rows, columns]),
            Attribute::Numbers("strides", &geometry.stride),
            Attribute::Numbers("pads", &[above, left, below, right]),
            Attribute::Number("group", geometry.groups),
        ];
        self.node("Conv", &[input, &weight, &bias_name], convolution, &attributes);
        self.activation(*activation, convolution.clone())
    }

    /// Blocks of positions as channels; in three steps, since not every engine has ONNX's `SpaceToDepth`.
    fn space_to_depth(&mut self, from: Value, block: usize, input: &str, at: usize) -> String {
        let Value { channels, height, width, .. } = from;
        let (rows, columns) = (height / block, width / block);
        let [blocks, turned, name] = ["blocks", "turned", "channels"].map(|part| format!("{part}.{at}"));
        let [cut, joined] = ["cut", "joined"].map(|part| format!("{part}.{at}"));
        // A side of 0 stays what it is: any number of pictures.
        self.list(&cut, &[0, channels, rows, block, columns, block]);
        self.list(&joined, &[0, channels * block * block, rows, columns]);
        self.node("Reshape", &[input, &cut], &blocks, &[]);
        self.node("Transpose", &[&blocks], &turned, &[Attribute::Numbers("perm", &[0, 3, 5, 1, 2, 4])]);
        self.node("Reshape", &[&turned, &joined], &name, &[]);
        name
    }

    /// `x − Kᵀ D relu(Kx + b)`: one set of weights for both convolutions, and the scale as a product of its own, so that
    /// the verifier finds the exact transpose and a scale of at most `2/T`.
    fn residual(&mut self, spec: &ResidualSpec, input: &str) -> Result<String, ExportError> {
        let ResidualSpec { name, inner, channels, kernel } = spec;
        let [weight_name, bias_name, scale_name] =
            ["weight", "bias", "scale"].map(|part| format!("{name}.{part}"));
        let (weight, bias) = (self.take(&weight_name), self.take(&bias_name));
        let scales = exported_scales(spec, &weight, &self.take(&format!("{name}.balance")));
        self.constant(&weight_name, &[*inner, *channels, *kernel, *kernel], &weight)?;
        self.constant(&bias_name, &[*inner], &bias)?;
        self.constant(&scale_name, &[1, *inner, 1, 1], &scales)?;
        let zeros = kernel / 2;
        let attributes = [
            Attribute::Numbers("kernel_shape", &[*kernel; 2]),
            Attribute::Numbers("strides", &[1; 2]),
            Attribute::Numbers("pads", &[zeros; 4]),
            Attribute::Number("group", 1),
        ];
        let [forth, active, scaled, back] =
            ["forth", "active", "scaled", "back"].map(|part| format!("{name}.{part}"));
        self.node("Conv", &[input, &weight_name, &bias_name], &forth, &attributes);
        self.node("Relu", &[&forth], &active, &[]);
        self.node("Mul", &[&active, &scale_name], &scaled, &[]);
        self.node("ConvTranspose", &[&scaled, &weight_name], &back, &attributes);
        self.node("Sub", &[input, &back], name, &[]);
        Ok(name.clone())
    }

    fn projection(&mut self, spec: &ProjectionSpec, input: &str) -> Result<String, ExportError> {
        let ProjectionSpec { name, outputs, inputs } = spec;
        let weight = format!("{name}.weight");
        let rows = self.orthonormal(&weight, *outputs);
        self.constant(&weight, &[*outputs, *inputs, 1, 1], &rows)?;
        self.node("Conv", &[input, &weight], name, &[Attribute::Numbers("kernel_shape", &[1; 2])]);
        Ok(name.clone())
    }

    /// `y = W x` with orthonormal rows, the graph's output.
    fn orthonormal_head(&mut self, features: &str, dimension: usize) -> Result<(), ExportError> {
        let weight = "head.weight";
        let rows = self.orthonormal(weight, dimension);
        self.constant(weight, &[dimension, rows.len() / dimension], &rows)?;
        self.node("Gemm", &[features, weight], OUTPUT, &[Attribute::Number("transB", 1)]);
        Ok(())
    }

    /// The orthonormal rows of a matrix that learnt.
    fn orthonormal(&mut self, name: &str, rows: usize) -> Vec<f32> {
        let values = self.take(name);
        let columns = values.len() / rows;
        Factored::of(&values, rows, columns).rows.into_iter().map(|value| value as f32).collect()
    }

    fn activation(&mut self, activation: Activation, input: String) -> Result<String, ExportError> {
        let output = format!("{input}.activation");
        match activation {
            Activation::Identity => return Ok(input),
            Activation::Relu => self.node("Relu", &[&input], &output, &[]),
            Activation::Relu6 => {
                if !self.six {
                    self.constant("zero", &[], &[0.0])?;
                    self.constant("six", &[], &[6.0])?;
                    self.six = true;
                }
                self.node("Clip", &[&input, "zero", "six"], &output, &[]);
            }
        }
        Ok(output)
    }

    /// `y = W x + b`; returns the name of the rows.
    fn head(&mut self, features: &str, dimension: usize) -> Result<String, ExportError> {
        let [weight, bias] = ["head.weight", "head.bias"];
        let (matrix, summand) = (self.take(weight), self.take(bias));
        self.constant(weight, &[dimension, matrix.len() / dimension], &matrix)?;
        self.constant(bias, &[dimension], &summand)?;
        self.shortest()?;
        self.node("Gemm", &[features, weight, bias], "rows", &[Attribute::Number("transB", 1)]);
        Ok("rows".to_owned())
    }

    /// The constant that rows are normalised with; before the nodes that use it, so that files keep their bytes.
    fn shortest(&mut self) -> Result<(), ExportError> {
        self.constant("shortest", &[], &[SHORTEST as f32])
    }

    /// `y / max(‖y‖₂, 10⁻¹²)`, the graph's output.
    fn normalise(&mut self, rows: &str) {
        let attributes = [Attribute::Numbers("axes", &[1]), Attribute::Number("keepdims", 1)];
        self.node("ReduceL2", &[rows], "lengths", &attributes);
        self.node("Max", &["lengths", "shortest"], "divisors", &[]);
        self.node("Div", &[rows, "divisors"], OUTPUT, &[]);
    }
}
