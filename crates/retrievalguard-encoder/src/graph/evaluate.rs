//! What does a graph compute, and how does it change with the picture? Values and gradients, in `f32` or `f64`.
//!
//! [`Evaluator::new`] reads a graph for one shape of its input. Whatever does not depend on the input is computed at once,
//! shapes included; what is left is a list of operators with every setting resolved. [`Evaluator::value`] runs it,
//! [`Evaluator::trace`] runs it and keeps what [`Evaluator::pull_back`] needs: the transpose of the derivative, applied to a
//! vector. Matrix products and convolutions are done by [`Scalar::product`], every entry one sum in the order of a plain
//! loop over blocks: no Winograd transform, no flushing to zero, and no number depends on the number of threads.
//!
//! Rounding to integers (`QuantizeLinear`) has no slope; gradients pass it as if it were not there, but stop where it clips.
//! An operator that is not known, or whose setting is not, is named.
//!
//! ```
//! use std::path::Path;
//! use retrievalguard_encoder::graph::Model;
//! use retrievalguard_encoder::graph::evaluate::{EvaluationSpec, Evaluator};
//!
//! let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/convolutional.onnx");
//! let model = Model::read(&path)?;
//! let spec = EvaluationSpec { input: "pictures", shape: &[1, 3, 16, 16], output: "embeddings" };
//! let evaluator = Evaluator::<f64>::new(&path, &model, &spec)?;
//!
//! let picture: Vec<f64> = (0..evaluator.input_len()).map(|place| (place as f64 * 0.618).fract()).collect();
//! let trace = evaluator.trace(&picture, 1)?;
//! let mut direction = vec![0.0; trace.value().len()];
//! direction[0] = 1.0;
//! let (value, slope) = (trace.value()[0], evaluator.pull_back(trace, &direction, 1)?);
//!
//! let mut moved = picture.clone();
//! moved[7] += 1e-6;
//! let change = evaluator.value(&moved, 1)?[0] - value;
//! assert!((change - 1e-6 * slope[7]).abs() < 1e-10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{GraphError, Model, TensorError};
use crate::graph::ModelFileError;

mod compile;
mod convolution;
mod operation;
mod pairs;
mod pointwise;
mod pooling;
mod products;
mod reductions;
mod scalar;
mod shape;
#[cfg(test)]
mod tests;
mod workspace;

pub use scalar::{Matrix, Scalar, Target};

use operation::{Operation, add};
use pointwise::Needs;
use workspace::Workspace;

/// Why a graph cannot be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// Its names make no flow.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An operator that is not known here.
    #[error("node `{node}` ({operator}) is of a kind that cannot be evaluated here")]
    Unsupported {
        /// Its name, or that of its output.
        node: String,
        /// What it is.
        operator: String,
    },
    /// A known operator with a setting or an argument that is not.
    #[error("node `{node}` ({operator}) cannot be evaluated here: {why}")]
    Node {
        /// Its name, or that of its output.
        node: String,
        /// What it is.
        operator: String,
        /// What was found and what was wanted.
        why: String,
    },
    /// The numbers of a constant cannot be had.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A file of weights beside the model cannot be read.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// The output is a constant.
    #[error("output `{output}` does not depend on input `{input}`")]
    Constant {
        /// The output.
        output: String,
        /// The input.
        input: String,
    },
    /// A vector of another length.
    #[error("found {found} numbers, wanted {wanted}")]
    Length {
        /// How many there are.
        found: usize,
        /// How many there should be.
        wanted: usize,
    },
}

/// Which way through a graph is computed.
#[derive(Clone, Copy, Debug)]
pub struct EvaluationSpec<'a> {
    /// The input that is given.
    pub input: &'a str,
    /// Its shape, the number of pictures included.
    pub shape: &'a [usize],
    /// The output that is wanted.
    pub output: &'a str,
}

/// Where an operator finds an argument.
#[derive(Clone, Debug)]
enum Operand<S> {
    /// In the value of this number: 0 is the input, and step `i` gives value `i + 1`.
    Value(usize),
    /// In the graph.
    Constant(Arc<Vec<S>>),
}

/// One operator on its way.
#[derive(Clone, Debug)]
struct Step<S> {
    operation: Operation<S>,
    operands: Vec<Operand<S>>,
    /// How many numbers it gives.
    length: usize,
}

/// A graph that can be run, for one shape of its input.
#[derive(Debug)]
pub struct Evaluator<S> {
    steps: Vec<Step<S>>,
    input_len: usize,
    /// The value that is the output, and its shape.
    output: usize,
    output_shape: Vec<usize>,
    /// For every value: the last step that takes it, and whether the way back needs it.
    last_use: Vec<usize>,
    kept: Vec<bool>,
    idle: Mutex<Vec<Workspace<S>>>,
}

/// What the way forwards leaves for the way back.
#[derive(Debug)]
pub struct Trace<S> {
    values: Vec<Option<Vec<S>>>,
    output: Vec<S>,
}

impl<S> Trace<S> {
    /// The output.
    pub fn value(&self) -> &[S] {
        &self.output
    }
}

impl<S: Scalar> Evaluator<S> {
    /// Reads the way from an input to an output; `path` is the model's file, beside which weights may lie.
    pub fn new(path: &Path, model: &Model, spec: &EvaluationSpec<'_>) -> Result<Self, EvaluationError> {
        let compiled = compile::compile(path, model, spec)?;
        let input_len = spec.shape.iter().product();
        let (steps, output, output_shape) = (compiled.steps, compiled.output, compiled.shape);
        let mut last_use = vec![0; steps.len() + 1];
        let mut kept = vec![false; steps.len() + 1];
        for (place, step) in steps.iter().enumerate() {
            let needs = step.operation.needs();
            for (position, operand) in step.operands.iter().enumerate() {
                if let Operand::Value(value) = *operand {
                    last_use[value] = place;
                    // The factor of a constant is not needed: only the constant's gradient would take it.
                    let other = step.operands.get(1 - position.min(1));
                    let alone = matches!(step.operation, Operation::Products(_))
                        && matches!(other, Some(Operand::Constant(_)));
                    kept[value] |= needs == Needs::Inputs && !alone;
                }
            }
            kept[place + 1] |= needs == Needs::Output;
        }
        Ok(Self { steps, input_len, output, output_shape, last_use, kept, idle: Mutex::default() })
    }

    /// How many numbers it takes.
    pub fn input_len(&self) -> usize {
        self.input_len
    }

    /// The shape of what it gives.
    pub fn output_shape(&self) -> &[usize] {
        &self.output_shape
    }

    /// Numbers that a [`Trace`] holds.
    pub fn trace_len(&self) -> usize {
        let lengths = std::iter::once(self.input_len).chain(self.steps.iter().map(|step| step.length));
        lengths.zip(&self.kept).filter(|(_, kept)| **kept).map(|(length, _)| length).sum()
    }

    /// The output for this input.
    pub fn value(&self, input: &[S], threads: usize) -> Result<Vec<S>, EvaluationError> {
        self.forward(input, threads, false).map(|trace| trace.output)
    }

    /// The output for this input, with what the way back needs.
    pub fn trace(&self, input: &[S], threads: usize) -> Result<Trace<S>, EvaluationError> {
        self.forward(input, threads, true)
    }

    /// The gradient of `⟨direction, output⟩` with respect to the input.
    pub fn pull_back(
        &self,
        trace: Trace<S>,
        direction: &[S],
        threads: usize,
    ) -> Result<Vec<S>, EvaluationError> {
        check(direction.len(), trace.output.len())?;
        let mut work = self.workspace(threads);
        let mut values = trace.values;
        let mut gradients: Vec<Option<Vec<S>>> = vec![None; self.steps.len() + 1];
        let mut first = work.take(direction.len());
        first.copy_from_slice(direction);
        gradients[self.output] = Some(first);
        for (place, step) in self.steps.iter().enumerate().rev() {
            if let Some(gradient) = gradients[place + 1].take() {
                self.step_back((step, place), gradient, &values, &mut gradients, &mut work);
            }
            if let Some(value) = values[place + 1].take() {
                work.give(value);
            }
        }
        let gradient = gradients[0].take().unwrap_or_else(|| vec![S::ZERO; self.input_len]);
        values.into_iter().chain(gradients).flatten().for_each(|buffer| work.give(buffer));
        self.idle().push(work);
        Ok(gradient)
    }

    fn step_back(
        &self,
        (step, place): (&Step<S>, usize),
        mut gradient: Vec<S>,
        values: &[Option<Vec<S>>],
        gradients: &mut [Option<Vec<S>>],
        work: &mut Workspace<S>,
    ) {
        let value = |value: usize| values[value].as_deref().unwrap_or_default();
        let inputs: Vec<&[S]> = step
            .operands
            .iter()
            .map(|operand| match operand {
                Operand::Value(place) => value(*place),
                Operand::Constant(values) => values.as_slice(),
            })
            .collect();
        let output = value(place + 1);
        if let (Operation::Pointwise(pointwise), [Operand::Value(target)]) =
            (&step.operation, step.operands.as_slice())
        {
            let kept = if pointwise.needs() == Needs::Inputs { inputs[0] } else { output };
            pointwise.pull_back(kept, &mut gradient);
            match &mut gradients[*target] {
                Some(into) => {
                    add(&gradient, into);
                    work.give(gradient);
                }
                empty => *empty = Some(gradient),
            }
            return;
        }
        for (position, operand) in step.operands.iter().enumerate() {
            let Operand::Value(target) = *operand else { continue };
            let length = if target == 0 { self.input_len } else { self.steps[target - 1].length };
            let mut into = gradients[target].take().unwrap_or_else(|| work.zeros(length));
            step.operation.backward(position, (&inputs, output), &gradient, &mut into, work);
            gradients[target] = Some(into);
        }
        work.give(gradient);
    }

    fn forward(&self, input: &[S], threads: usize, keep: bool) -> Result<Trace<S>, EvaluationError> {
        check(input.len(), self.input_len)?;
        let mut work = self.workspace(threads);
        let mut values: Vec<Option<Vec<S>>> = vec![None; self.steps.len() + 1];
        let mut first = work.take(input.len());
        first.copy_from_slice(input);
        values[0] = Some(first);
        let stays = |value: usize| value == self.output || keep && self.kept[value];
        for (place, step) in self.steps.iter().enumerate() {
            let ends = |value: usize| self.last_use[value] == place && !stays(value);
            let own = match (&step.operation, step.operands.as_slice()) {
                (Operation::Pointwise(_), &[Operand::Value(value)]) if ends(value) => values[value].take(),
                _ => None,
            };
            let made = match (own, &step.operation) {
                (Some(mut own), Operation::Pointwise(pointwise)) => {
                    pointwise.apply(&mut own);
                    own
                }
                _ => {
                    let inputs: Vec<&[S]> = step
                        .operands
                        .iter()
                        .map(|operand| match operand {
                            Operand::Value(place) => values[*place].as_deref().unwrap_or_default(),
                            Operand::Constant(values) => values.as_slice(),
                        })
                        .collect();
                    let mut out = work.take(step.length);
                    step.operation.forward(&inputs, &mut out, &mut work);
                    out
                }
            };
            values[place + 1] = Some(made);
            for operand in &step.operands {
                if let Operand::Value(value) = *operand
                    && ends(value)
                    && let Some(buffer) = values[value].take()
                {
                    work.give(buffer);
                }
            }
        }
        let output = values[self.output].clone().unwrap_or_default();
        if !keep {
            values.drain(..).flatten().for_each(|buffer| work.give(buffer));
        }
        self.idle().push(work);
        Ok(Trace { values, output })
    }

    fn workspace(&self, threads: usize) -> Workspace<S> {
        let mut work = self.idle().pop().unwrap_or_else(Workspace::new);
        work.threads = threads.max(1);
        work
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Workspace<S>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(found: usize, wanted: usize) -> Result<(), EvaluationError> {
    if found == wanted { Ok(()) } else { Err(EvaluationError::Length { found, wanted }) }
}
