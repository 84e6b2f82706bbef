//! From the nodes of a graph to operators with every setting resolved, for one shape of the input.
//!
//! A value is either made from the input, and then its shape is known, or it is a constant, and then its numbers are.
//! Integers exist as constants only: they are what shapes, indices and settings are computed from.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::operation::Operation;
use super::scalar::Scalar;
use super::shape::count;
use super::workspace::Workspace;
use super::{EvaluationError, EvaluationSpec, Operand, Step};
use crate::graph::{ElementType, Flow, Model, Node, Source, Tensor, Values};

mod elementwise;
mod integers;
mod layers;
mod reducing;
mod selecting;

/// A value of the graph.
#[derive(Clone, Debug)]
pub(super) enum Value<S> {
    /// It depends on the input: which value it is, and its shape.
    Made { value: usize, shape: Vec<usize> },
    /// Constant numbers.
    Real { shape: Vec<usize>, numbers: Arc<Vec<S>> },
    /// Constant integers or truth values.
    Whole { shape: Vec<usize>, numbers: Arc<Vec<i64>>, element: ElementType },
}

impl<S> Value<S> {
    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Made { shape, .. } | Self::Real { shape, .. } | Self::Whole { shape, .. } => shape,
        }
    }

    fn reshaped(self, shape: Vec<usize>) -> Self {
        match self {
            Self::Made { value, .. } => Self::Made { value, shape },
            Self::Real { numbers, .. } => Self::Real { shape, numbers },
            Self::Whole { numbers, element, .. } => Self::Whole { shape, numbers, element },
        }
    }
}

/// Why a node has no rule.
pub(super) enum Fault {
    /// Its operator is not known.
    Unknown,
    /// Something about it is not.
    Because(String),
    /// Something else.
    Other(EvaluationError),
}

impl From<EvaluationError> for Fault {
    fn from(error: EvaluationError) -> Self {
        Self::Other(error)
    }
}

/// Constant numbers and their shape.
type Numbers<S> = (Vec<usize>, Arc<Vec<S>>);

pub(super) type Outcome<T> = Result<T, Fault>;

pub(super) fn because<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Fault::Because(why.into()))
}

/// What is left of a graph.
pub(super) struct Compiled<S> {
    pub(super) steps: Vec<Step<S>>,
    pub(super) output: usize,
    pub(super) shape: Vec<usize>,
}

/// Follows the graph from the input to the output.
pub(super) fn compile<S: Scalar>(
    path: &Path,
    model: &Model,
    spec: &EvaluationSpec<'_>,
) -> Result<Compiled<S>, EvaluationError> {
    let flow = Flow::new(&model.graph)?;
    let order = flow.order(spec.output)?;
    let mut compiler = Compiler {
        path,
        operators: model.operators(),
        flow: &flow,
        steps: Vec::new(),
        values: HashMap::new(),
        work: Workspace::new(),
    };
    let input = Value::Made { value: 0, shape: spec.shape.to_vec() };
    compiler.values.insert(spec.input, input);
    for place in order {
        let node = &model.graph.nodes[place];
        let (label, operator) = (node.label().to_owned(), node.operator.clone());
        let made = compiler.node(node).map_err(|fault| match fault {
            Fault::Unknown => EvaluationError::Unsupported { node: label, operator },
            Fault::Because(why) => EvaluationError::Node { node: label, operator, why },
            Fault::Other(error) => error,
        })?;
        for (name, value) in node.outputs.iter().zip(made) {
            compiler.values.insert(name, value);
        }
    }
    match compiler.values.remove(spec.output) {
        Some(Value::Made { value, shape }) => Ok(Compiled { steps: compiler.steps, output: value, shape }),
        _ => Err(EvaluationError::Constant { output: spec.output.into(), input: spec.input.into() }),
    }
}

pub(super) struct Compiler<'g, S> {
    path: &'g Path,
    /// Version of ONNX's own operators.
    operators: i64,
    flow: &'g Flow<'g>,
    steps: Vec<Step<S>>,
    values: HashMap<&'g str, Value<S>>,
    work: Workspace<S>,
}

impl<'g, S: Scalar> Compiler<'g, S> {
    /// The outputs of a node.
    fn node(&mut self, node: &'g Node) -> Outcome<Vec<Value<S>>> {
        if !node.is_standard() || node.subgraphs().next().is_some() {
            return Err(Fault::Unknown);
        }
        if let Some(values) = self.selecting(node)? {
            return Ok(values);
        }
        let value = match self.integers(node)? {
            Some(value) => Some(value),
            None => match self.elementwise(node)? {
                Some(value) => Some(value),
                None => match self.layers(node)? {
                    Some(value) => Some(value),
                    None => self.reducing(node)?,
                },
            },
        };
        value.map(|value| vec![value]).ok_or(Fault::Unknown)
    }

    /// An argument, unless it is left out.
    fn optional(&mut self, node: &'g Node, place: usize) -> Outcome<Option<Value<S>>> {
        let Some(name) = node.input(place) else { return Ok(None) };
        if let Some(value) = self.values.get(name) {
            return Ok(Some(value.clone()));
        }
        let value = match self.flow.source(name) {
            Some(Source::Initializer(tensor)) => self.constant(tensor)?,
            Some(Source::Sparse) => return because(format!("constant `{name}` is sparse")),
            Some(Source::Input) => return because(format!("it takes `{name}`, another input")),
            Some(Source::Node(_)) | None => return because(format!("nothing computes `{name}`")),
        };
        self.values.insert(name, value.clone());
        Ok(Some(value))
    }

    /// An argument that must be there.
    fn argument(&mut self, node: &'g Node, place: usize) -> Outcome<Value<S>> {
        match self.optional(node, place)? {
            Some(value) => Ok(value),
            None => because(format!("argument {place} is left out")),
        }
    }

    /// An argument as constant integers.
    fn whole(&mut self, node: &'g Node, place: usize) -> Outcome<Option<Vec<i64>>> {
        match self.optional(node, place)? {
            None => Ok(None),
            Some(Value::Whole { numbers, .. }) => Ok(Some(numbers.to_vec())),
            Some(Value::Real { .. }) => because(format!("argument {place} is not of integers")),
            Some(Value::Made { .. }) => because(format!("argument {place} depends on the picture")),
        }
    }

    /// An argument as constant numbers, with its shape.
    fn real(&mut self, node: &'g Node, place: usize) -> Outcome<Option<Numbers<S>>> {
        match self.optional(node, place)? {
            None => Ok(None),
            Some(Value::Real { shape, numbers }) => Ok(Some((shape, numbers))),
            Some(Value::Whole { shape, numbers, .. }) => {
                Ok(Some((shape, Arc::new(numbers.iter().map(|&number| S::of(number as f64)).collect()))))
            }
            Some(Value::Made { .. }) => because(format!("argument {place} depends on the picture")),
        }
    }

    /// An argument as one constant number.
    fn number(&mut self, node: &'g Node, place: usize) -> Outcome<Option<S>> {
        match self.real(node, place)? {
            None => Ok(None),
            Some((_, numbers)) if numbers.len() == 1 => Ok(Some(numbers[0])),
            Some((_, numbers)) => {
                because(format!("argument {place} has {} numbers, wanted one", numbers.len()))
            }
        }
    }

    /// Integers that newer operators take as an argument and older ones as an attribute.
    fn axes(&mut self, node: &'g Node, attribute: &str, place: usize) -> Outcome<Option<Vec<i64>>> {
        match node.ints(attribute) {
            Some(axes) => Ok(Some(axes.to_vec())),
            None => self.whole(node, place),
        }
    }

    fn constant(&self, tensor: &Tensor) -> Outcome<Value<S>> {
        let values = tensor.values_beside(self.path).map_err(EvaluationError::from)?;
        let shape = tensor.shape.clone();
        Ok(match values {
            Values::Single(numbers) => {
                let numbers = numbers.into_iter().map(|number| S::of(f64::from(number)));
                Value::Real { shape, numbers: Arc::new(numbers.collect()) }
            }
            Values::Double(numbers) => {
                Value::Real { shape, numbers: Arc::new(numbers.into_iter().map(S::of).collect()) }
            }
            Values::Integers(numbers) => {
                Value::Whole { shape, numbers: Arc::new(numbers), element: tensor.element }
            }
        })
    }

    /// Adds an operator, or computes its result at once if nothing it takes depends on the input.
    fn emit(
        &mut self,
        operation: Operation<S>,
        arguments: Vec<Value<S>>,
        shape: Vec<usize>,
    ) -> Outcome<Value<S>> {
        let Some(length) = count(&shape) else {
            return because(format!("its output would have the shape {shape:?}, which is too large"));
        };
        if length == 0 || arguments.iter().any(|argument| argument.shape().contains(&0)) {
            return because("it takes or gives a tensor without numbers");
        }
        let mut operands = Vec::with_capacity(arguments.len());
        for argument in arguments {
            operands.push(match argument {
                Value::Made { value, .. } => Operand::Value(value),
                Value::Real { numbers, .. } => Operand::Constant(numbers),
                Value::Whole { numbers, .. } => {
                    Operand::Constant(Arc::new(numbers.iter().map(|&number| S::of(number as f64)).collect()))
                }
            });
        }
        let constants: Option<Vec<&[S]>> = operands
            .iter()
            .map(|operand| match operand {
                Operand::Constant(numbers) => Some(numbers.as_slice()),
                Operand::Value(_) => None,
            })
            .collect();
        if let Some(inputs) = constants {
            let mut numbers = vec![S::ZERO; length];
            operation.forward(&inputs, &mut numbers, &mut self.work);
            return Ok(Value::Real { shape, numbers: Arc::new(numbers) });
        }
        self.steps.push(Step { operation, operands, length });
        Ok(Value::Made { value: self.steps.len(), shape })
    }
}

/// An axis counted from the front.
pub(super) fn axis(axis: i64, rank: usize) -> Outcome<usize> {
    let counted = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    match counted.and_then(|axis| usize::try_from(axis).ok()).filter(|&axis| axis < rank) {
        Some(axis) => Ok(axis),
        None => because(format!("it names axis {axis} of {rank}")),
    }
}

/// The same for several axes, sorted, none twice.
pub(super) fn sorted_axes(axes: &[i64], rank: usize) -> Outcome<Vec<usize>> {
    let mut found = axes.iter().map(|&number| axis(number, rank)).collect::<Outcome<Vec<usize>>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
