//! How fast can an encoder move? An upper bound on its Lipschitz constant, read off the graph and its weights.
//!
//! The graph is walked once. Every value on the way has a bound on `‖v(x) − v(y)‖/‖x − y‖` for pictures `x`, `y` in
//! `[0, 1]`, a bound on its norm and one on the error with which it is computed, all of them rounded upwards. An operator whose
//! rule is proved (theory, sections 14.5 and 14.6) passes them on; any other ends in [`BoundReading::Unknown`], and nothing is
//! claimed. Nothing that a file *says* about its constant is believed.
//!
//! ```
//! use std::path::Path;
//! use retrievalguard_encoder::graph::Model;
//! use retrievalguard_encoder::graph::bound::BoundReading;
//! use retrievalguard_encoder::model_config::ModelConfig;
//!
//! let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
//! let model = Model::read(&models.join("convolutional.onnx"))?;
//! let config = ModelConfig::read(&models.join("encoder.toml"))?;
//! // It scales its embeddings to length 1, and near zero that is as steep as one likes.
//! let BoundReading::Unknown { why, .. } = BoundReading::of(&model, &config)? else { panic!("bounded") };
//! assert!(why.contains("length 1"), "{why}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use retrievalguard::certificate::{ConstantOrigin, LipschitzBound};
use retrievalguard::{ForwardError, LipschitzConstant, ParameterError};
use serde::{Deserialize, Serialize};

use self::constant::Constant;
use self::upwards::{Affine, add, div, mul, root};
use super::{Extent, Flow, GraphError, Model, Node, Source};
use crate::model_config::{Layout, ModelConfig};

mod attributes;
mod constant;
mod layers;
mod norms;
mod pointwise;
mod residual;
mod shapes;
#[cfg(test)]
mod tests;
pub(crate) mod upwards;

/// What the graph says about how fast its output moves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BoundReading {
    /// No faster than this.
    Bounded(NetworkBound),
    /// The first operator for which there is no bound.
    Unknown {
        /// Its name, or that of its output.
        node: String,
        /// What it is.
        operator: String,
        /// Why there is none.
        why: String,
    },
}

/// A proved bound, layer by layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkBound {
    /// Upper bound on the Lipschitz constant, from pixels in `[0, 1]` to embeddings, in the l2 norm.
    pub constant: f64,
    /// Every operator that moves its output faster or slower than its input, in the order of the graph.
    pub layers: Vec<LayerBound>,
    /// Forward error of an evaluation in `f64`, in any order of summation.
    pub double_error: ErrorBound,
    /// Forward error of an evaluation in `f32`, in any order of summation; not Winograd, TF32 or flushed subnormal numbers.
    pub single_error: ErrorBound,
}

/// What one operator adds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerBound {
    /// Its name, or that of its output.
    pub node: String,
    /// What it is.
    pub operator: String,
    /// Upper bound on the constant of the operator alone.
    pub factor: f64,
    /// Upper bound on the constant from the picture to its output.
    pub so_far: f64,
}

/// Bound on the forward error, which grows with the norm of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBound {
    /// Per unit of the picture's norm.
    pub slope: f64,
    /// At a picture of zeros.
    pub offset: f64,
}

impl ErrorBound {
    /// The error at every picture of at most this l2 norm, rounded upwards: the picture's own and the radius on top of it.
    pub fn at(&self, norm: f64) -> Result<ForwardError, ParameterError> {
        ForwardError::new(add(mul(self.slope, norm), self.offset))
    }
}

/// In which precision embeddings are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// `f64`.
    Double,
    /// `f32`, as inference engines do.
    Single,
}

impl NetworkBound {
    /// What certificates take, for a picture that has at most this l2 norm together with everything in the certified ball.
    ///
    /// `‖x‖ + R/L` is such a norm for an embedding that may move by `R` in the gallery: no certified radius is larger.
    pub fn at(&self, precision: Precision, norm: f64) -> Result<LipschitzBound, ParameterError> {
        let error = match precision {
            Precision::Double => self.double_error,
            Precision::Single => self.single_error,
        };
        Ok(LipschitzBound {
            constant: LipschitzConstant::new(self.constant)?,
            forward_error: error.at(norm)?,
            origin: ConstantOrigin::Verified,
        })
    }
}

impl fmt::Display for BoundReading {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bounded(bound) => {
                write!(out, "embeddings move at most {:.9} times as fast as pictures", Above(bound.constant))
            }
            Self::Unknown { node, operator, why } => {
                write!(out, "no Lipschitz bound: node `{node}` ({operator}): {why}")
            }
        }
    }
}

/// A number that is printed no smaller than it is.
pub struct Above(pub f64);

impl fmt::Display for Above {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = out.precision().unwrap_or(6);
        let text = format!("{:.decimals$}", self.0);
        let step = 10.0_f64.powi(-(i32::try_from(decimals).unwrap_or(0)));
        let text = match text.parse::<f64>() {
            Ok(printed) if printed < self.0 => format!("{:.decimals$}", self.0 + step),
            _ => text,
        };
        out.pad_integral(true, "", &text)
    }
}

/// Why there is no bound.
#[derive(Clone, Debug)]
struct Fault(String);

fn no<T>(why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault(why.into()))
}

/// What is known about a value that depends on the picture; the batch has one picture.
#[derive(Clone, Debug)]
struct Value {
    shape: Vec<usize>,
    /// Bound on its Lipschitz constant.
    constant: f64,
    /// Bound on its norm.
    norm: Affine,
    /// Bounds on its error when computed in `f64` and in `f32`.
    errors: [Affine; 2],
    /// Of which value it is a part, and which: different parts have no number in common.
    part: Option<(usize, usize)>,
}

/// Unit roundoff and smallest normal number of both precisions.
const PRECISIONS: [(f64, f64); 2] =
    [(f64::EPSILON / 2.0, f64::MIN_POSITIVE), (f32::EPSILON as f64 / 2.0, f32::MIN_POSITIVE as f64)];

/// How an operator changes what is known: `y = f(x)`.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Lipschitz constant of `f`.
    factor: f64,
    /// `‖f(0)‖`.
    offset: f64,
    /// The computed result is off by at most `γ_terms (spread ‖x‖ + offset)`; nothing is rounded if it is zero.
    terms: usize,
    spread: f64,
}

impl Value {
    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The same numbers in another shape or order, or some of them.
    fn moved(&self, shape: Vec<usize>) -> Self {
        Self { shape, part: None, ..self.clone() }
    }

    fn after(&self, step: &Step, shape: Vec<usize>) -> Self {
        let Step { factor, offset, terms, spread } = *step;
        let numbers = shape.iter().product::<usize>() as f64;
        let errors = std::array::from_fn(|place| {
            let (roundoff, smallest) = PRECISIONS[place];
            let carried = self.errors[place].scaled(factor);
            if terms == 0 {
                return carried;
            }
            let share = gamma(terms, roundoff);
            // What is computed with has the norm of the exact value and its error.
            let local = self.norm.plus(self.errors[place]).scaled(spread).plus_offset(offset).scaled(share);
            // What underflow takes from each product.
            let underflow = mul(mul(terms as f64, smallest), root(numbers));
            carried.plus(local).plus_offset(underflow)
        });
        let norm = self.norm.scaled(factor).plus_offset(offset);
        Self { shape, constant: mul(self.constant, factor), norm, errors, part: None }
    }

    /// Several values side by side.
    fn beside(values: &[&Value], shape: Vec<usize>) -> Self {
        if let [first, ..] = values
            && let Some((whole, _)) = first.part
            && distinct_parts(values, whole)
        {
            // Together they are no more than what they were cut from, of which each remembers the bounds.
            return first.moved(shape);
        }
        let length = |of: &dyn Fn(&Value) -> f64| {
            root(values.iter().fold(0.0, |sum, value| add(sum, mul(of(value), of(value)))))
        };
        let affine = |of: &dyn Fn(&Value) -> Affine| Affine {
            slope: length(&|value| of(value).slope),
            offset: length(&|value| of(value).offset),
        };
        Self {
            shape,
            constant: length(&|value| value.constant),
            norm: affine(&|value| value.norm),
            errors: std::array::from_fn(|place| affine(&|value| value.errors[place])),
            part: None,
        }
    }

    /// The sum of several values of one shape.
    fn sum(values: &[&Value], shape: Vec<usize>) -> Self {
        let mut total = values[0].clone();
        for value in &values[1..] {
            total.constant = add(total.constant, value.constant);
            for (place, (roundoff, _)) in PRECISIONS.into_iter().enumerate() {
                let share = gamma(values.len(), roundoff);
                let local = total.norm.plus(total.errors[place]).plus(value.norm).plus(value.errors[place]);
                total.errors[place] = total.errors[place].plus(value.errors[place]).plus(local.scaled(share));
            }
            total.norm = total.norm.plus(value.norm);
        }
        Self { shape, part: None, ..total }
    }
}

fn distinct_parts(values: &[&Value], whole: usize) -> bool {
    values.iter().enumerate().all(|(place, value)| {
        value.part.is_some_and(|(of, _)| of == whole)
            && values[..place].iter().all(|other| other.part != value.part)
    })
}

/// `γ_n = nu/(1 − nu)`, upwards; infinite where it says nothing.
pub(crate) fn gamma(terms: usize, roundoff: f64) -> f64 {
    let share = mul(terms as f64, roundoff);
    if share < 0.5 { div(share, (1.0 - share).next_down()) } else { f64::INFINITY }
}

/// What is known about any value of the graph.
#[derive(Clone, Debug)]
enum Fact {
    Constant(Rc<Constant>),
    Dynamic(Box<Value>),
}

/// A fact, or the node because of which there is none.
type Finding = Result<Fact, (usize, Fault)>;

impl BoundReading {
    /// Follows the bound from the picture to the embedding: preprocessing as the config says, then the graph.
    pub fn of(model: &Model, config: &ModelConfig) -> Result<Self, GraphError> {
        let unknown = |node: &str, operator: &str, why: &str| {
            let (node, operator) = (node.to_owned(), operator.to_owned());
            Ok(Self::Unknown { node, operator, why: why.to_owned() })
        };
        if config.output.normalise {
            let why = "the model config scales every embedding to length 1, which is as steep as one likes near zero";
            return unknown("output.normalise", "model config", why);
        }
        let mut open = model.graph.open_inputs();
        let input = match &config.input.name {
            Some(name) => open.find(|input| input.name == *name),
            None => open.next(),
        };
        let output = match &config.output.name {
            Some(name) => model.graph.outputs.iter().find(|output| output.name == *name),
            None => model.graph.outputs.first(),
        };
        let (Some(input), Some(output)) = (input, output) else {
            return unknown("", "graph", "it has no input or no output of that name");
        };
        let [channels, height, width] = config.picture_shape();
        let shape = match config.input.layout {
            Layout::Nchw => vec![1, channels, height, width],
            Layout::Nhwc => vec![1, height, width, channels],
        };
        if let Some(declared) = &input.shape {
            let fits = declared.len() == 4
                && declared.iter().zip(&shape).all(|(side, &length)| side.accepts(length));
            if !fits {
                let found: Vec<String> = declared.iter().map(Extent::to_string).collect();
                let why = format!("it takes [{}], wanted one picture, {shape:?}", found.join(", "));
                return unknown(&input.name, "input", &why);
            }
        }
        let flow = Flow::new(&model.graph)?;
        let mut walk = Walk {
            model,
            flow: &flow,
            input: &input.name,
            picture: prepared(config, shape),
            facts: HashMap::new(),
            layers: Vec::new(),
            wholes: 0,
        };
        for place in flow.order(&output.name)? {
            walk.visit(place);
        }
        Ok(walk.verdict(&output.name))
    }
}

/// The picture after mean and standard deviation: `x ↦ (x − mean)/std`.
fn prepared(config: &ModelConfig, shape: Vec<usize>) -> Value {
    let smallest = config.input.std.iter().copied().fold(f64::INFINITY, f64::min);
    let pixels = (config.input.height * config.input.width) as f64;
    let mean = config.input.mean.iter().fold(0.0, |sum, mean| add(sum, mul(mean.abs(), mean.abs())));
    let factor = div(1.0, smallest);
    let offset = mul(mul(root(mean), root(pixels)), factor);
    let exact =
        config.input.mean.iter().all(|&mean| mean == 0.0) && config.input.std.iter().all(|&std| std == 1.0);
    let none = Affine { slope: 0.0, offset: 0.0 };
    let picture = Value {
        shape: shape.clone(),
        constant: 1.0,
        norm: Affine { slope: 1.0, offset: 0.0 },
        errors: [none; 2],
        part: None,
    };
    // Mean and standard deviation may be rounded themselves, then a subtraction and a division.
    let terms = if exact { 0 } else { 4 };
    let value = picture.after(&Step { factor, offset, terms, spread: factor }, shape);
    // Pictures are prepared in f32, whatever computes the network.
    Value { errors: [value.errors[1]; 2], ..value }
}

struct Walk<'g, 'q> {
    model: &'g Model,
    flow: &'q Flow<'g>,
    input: &'q str,
    picture: Value,
    facts: HashMap<&'g str, Finding>,
    layers: Vec<LayerBound>,
    /// How many values were cut into parts.
    wholes: usize,
}

impl<'g> Walk<'g, '_> {
    fn visit(&mut self, place: usize) {
        let node = &self.model.graph.nodes[place];
        for name in &node.inputs {
            if let Some(Source::Initializer(tensor)) = self.flow.source(name)
                && !self.facts.contains_key(name.as_str())
            {
                let constant = Constant::of(tensor).map(|constant| Fact::Constant(Rc::new(constant)));
                self.facts.insert(name, constant.map_err(|fault| (place, fault)));
            }
        }
        let found = self.apply(node).map_err(|(at, fault)| (at.unwrap_or(place), fault));
        for (number, name) in node.outputs.iter().enumerate() {
            let finding = match &found {
                Ok(facts) => facts
                    .get(number)
                    .cloned()
                    .ok_or_else(|| (place, Fault("this output of it is not followed".to_owned()))),
                Err(blame) => Err(blame.clone()),
            };
            self.facts.insert(name, finding);
        }
    }

    /// Facts about the outputs of a node, or a fault, with the node if it is another's.
    fn apply(&mut self, node: &'g Node) -> Result<Vec<Fact>, (Option<usize>, Fault)> {
        let own = |fault| (None, fault);
        let defined = self.model.functions.iter().any(|function| function.name == node.operator);
        if !node.is_standard() || defined {
            return Err(own(Fault("it is not one of ONNX's own operators".to_owned())));
        }
        if node.subgraphs().next().is_some() {
            return Err(own(Fault("what happens in its branches is not followed".to_owned())));
        }
        let before = self.layers.len();
        if let Some(layer) = self.residual(node).map_err(own)? {
            let (value, factor, inside) = layer;
            // What is inside of it is no layer of its own.
            self.layers.retain(|layer| !inside.contains(&layer.node));
            self.note(node, "residual layer", factor, value.constant);
            return Ok(vec![Fact::Dynamic(Box::new(value))]);
        }
        let mut inputs: Vec<Option<Fact>> = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            if name.is_empty() {
                inputs.push(None);
                continue;
            }
            inputs.push(Some(self.finding(name)?));
        }
        let slowest = inputs.iter().flatten().filter_map(|fact| match fact {
            Fact::Dynamic(value) => Some(value.constant),
            Fact::Constant(_) => None,
        });
        let carried = slowest.fold(0.0, f64::max);
        let facts = match self.extremes(node) {
            Some(facts) => facts,
            None => {
                let operators = self.model.operators();
                layers::Rule { node, inputs, operators, wholes: &mut self.wholes }.apply().map_err(own)?
            }
        };
        let large =
            |fact: &Fact| matches!(fact, Fact::Dynamic(value) if shapes::elements(&value.shape).is_none());
        if facts.iter().any(large) {
            return Err(own(Fault("it makes more numbers than are followed".to_owned())));
        }
        if let Some(Fact::Dynamic(value)) = facts.first()
            && value.constant != carried
            && before == self.layers.len()
        {
            let factor = if carried > 0.0 { div(value.constant, carried) } else { 0.0 };
            let so_far = value.constant;
            self.note(node, &node.operator, factor, so_far);
        }
        Ok(facts)
    }

    fn note(&mut self, node: &Node, operator: &str, factor: f64, so_far: f64) {
        let (node, operator) = (node.label().to_owned(), operator.to_owned());
        self.layers.push(LayerBound { node, operator, factor, so_far });
    }

    fn finding(&self, name: &str) -> Result<Fact, (Option<usize>, Fault)> {
        if let Some(finding) = self.facts.get(name) {
            return finding.clone().map_err(|(at, fault)| (Some(at), fault));
        }
        let fault = |why: &str| Err((None, Fault(why.to_owned())));
        match self.flow.source(name) {
            Some(Source::Input) if name == self.input => Ok(Fact::Dynamic(Box::new(self.picture.clone()))),
            Some(Source::Input) => fault("it takes another input of the graph"),
            Some(Source::Sparse) => fault("it takes a constant that is stored as a sparse tensor"),
            Some(Source::Node(_) | Source::Initializer(_)) | None => fault("what it takes was not followed"),
        }
    }

    /// The node that makes a value.
    fn maker(&self, name: &str) -> Option<&'g Node> {
        match self.flow.source(name) {
            Some(Source::Node(place)) => Some(&self.model.graph.nodes[place]),
            _ => None,
        }
    }

    /// The larger and the smaller of the same two values, side by side: a sorted pair moves no faster than the pair.
    fn extremes(&self, node: &Node) -> Option<Vec<Fact>> {
        let [left, right] = &node.inputs[..] else { return None };
        let (left, right) = (self.maker(left)?, self.maker(right)?);
        let names = |node: &Node| {
            let mut names = node.inputs.clone();
            names.sort();
            names
        };
        let both = (node.operator == "Concat")
            && matches!((left.operator.as_str(), right.operator.as_str()), ("Max", "Min") | ("Min", "Max"))
            && left.is_standard()
            && right.is_standard()
            && left.inputs.len() == 2
            && names(left) == names(right)
            && left.inputs[0] != left.inputs[1];
        if !both {
            return None;
        }
        let dynamic = |name: &String| match self.finding(name) {
            Ok(Fact::Dynamic(value)) => Some(value),
            _ => None,
        };
        let (first, second) = (dynamic(&left.inputs[0])?, dynamic(&left.inputs[1])?);
        if first.shape != second.shape {
            return None;
        }
        let axis = shapes::axis(node.int("axis")?, first.shape.len()).ok()?;
        let mut shape = first.shape.clone();
        shape[axis] = shape[axis].checked_mul(2)?;
        Some(vec![Fact::Dynamic(Box::new(Value::beside(&[&first, &second], shape)))])
    }

    fn verdict(mut self, output: &str) -> BoundReading {
        let unknown = |node: &str, operator: &str, why: String| BoundReading::Unknown {
            node: node.to_owned(),
            operator: operator.to_owned(),
            why,
        };
        let value = match self.finding(output) {
            Ok(Fact::Dynamic(value)) => value,
            Ok(Fact::Constant(_)) => {
                return unknown(output, "output", "it does not depend on the picture".to_owned());
            }
            Err((at, Fault(why))) => {
                let node = at.map(|at| &self.model.graph.nodes[at]);
                return unknown(
                    node.map_or(output, Node::label),
                    node.map_or("output", |node| &node.operator),
                    why,
                );
            }
        };
        if value.shape.first() != Some(&1) || value.shape.len() < 2 {
            return unknown(
                output,
                "output",
                format!("its shape is {:?}, wanted one row per picture", value.shape),
            );
        }
        if !value.constant.is_finite() {
            return unknown(output, "output", "the bound is beyond all numbers".to_owned());
        }
        if self.picture.constant != 1.0 {
            let factor = self.picture.constant;
            let (node, operator) = ("input.std".to_owned(), "preprocessing".to_owned());
            self.layers.insert(0, LayerBound { node, operator, factor, so_far: factor });
        }
        let error = |place: usize| ErrorBound {
            slope: value.errors[place].slope,
            offset: value.errors[place].offset,
        };
        BoundReading::Bounded(NetworkBound {
            constant: value.constant,
            layers: self.layers,
            double_error: error(0),
            single_error: error(1),
        })
    }
}
