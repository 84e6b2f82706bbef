//! Is an encoder a function of each picture alone? Follows the batch axis through the graph.
//!
//! Every value on the way from the input to the output is one of these: a constant; a value that depends on nothing but
//! how many pictures there are; or a tensor in which the pictures lie one after the other along one axis, the slice of
//! each a function of that picture alone, and the same function for all. An operator whose rule keeps that property
//! passes it on. A rule that cannot keep it says why: the operator couples the pictures, as a mean over the batch or
//! `DynamicQuantizeLinear` does, or nothing is known about it. Only `Independent` is a proof, for every number of
//! pictures from two up and up to the engine's rounding; shapes are followed with the picture's own size, the one
//! under which the encoder runs.
//!
//! ```
//! use std::path::Path;
//! use retrievalguard_encoder::graph::Model;
//! use retrievalguard_encoder::graph::batch::{BatchReading, BatchSpec};
//!
//! let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
//! let read = |name: &str| {
//!     let model = Model::read(&models.join(name)).unwrap();
//!     let spec = BatchSpec { input: "pictures", picture: [3, 16, 16], batch: None, output: "embeddings" };
//!     BatchReading::of(&model, &spec).unwrap()
//! };
//! assert_eq!(read("convolutional.onnx"), BatchReading::Independent);
//! let mean = read("batch_mean.onnx").to_string();
//! assert_eq!(mean, "the pictures of a batch are coupled by node `mean` (ReduceMean): it reduces over the batch");
//! ```

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use self::fact::{Dim, Fact, Fault, MOST_AXES};
use super::{Flow, GraphError, Model, Node, Source};

mod args;
mod content;
mod elementwise;
mod enlarging;
mod fact;
mod layers;
mod reshaping;
mod rules;
mod selection;
#[cfg(test)]
mod tests;

/// What the graph says about pictures that share a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BatchReading {
    /// The embedding of every picture is a function of that picture alone.
    Independent,
    /// An operator lets pictures of a batch act on each other.
    Coupled {
        /// Its name, or that of its output.
        node: String,
        /// What it is.
        operator: String,
        /// What it does.
        why: String,
    },
    /// An operator of which nothing is known.
    Unknown {
        /// Its name, or that of its output.
        node: String,
        /// What it is.
        operator: String,
        /// What could not be followed.
        why: String,
    },
    /// An operator that draws random numbers: the encoder is no function at all.
    Random {
        /// Its name, or that of its output.
        node: String,
        /// What it is.
        operator: String,
    },
}

impl fmt::Display for BatchReading {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Independent => out.write_str("every embedding is a function of its picture alone"),
            Self::Coupled { node, operator, why } => {
                write!(out, "the pictures of a batch are coupled by node `{node}` ({operator}): {why}")
            }
            Self::Unknown { node, operator, why } => {
                write!(out, "nothing is known about the batch after node `{node}` ({operator}): {why}")
            }
            Self::Random { node, operator } => {
                write!(out, "node `{node}` ({operator}) draws random numbers")
            }
        }
    }
}

/// Which way through a graph is followed.
#[derive(Clone, Copy, Debug)]
pub struct BatchSpec<'a> {
    /// The input that takes the pictures, the batch on its first axis.
    pub input: &'a str,
    /// The other three axes of the input.
    pub picture: [usize; 3],
    /// How many pictures the model always takes, if it says so.
    pub batch: Option<usize>,
    /// The output that gives the embeddings.
    pub output: &'a str,
}

impl BatchReading {
    /// Follows the batch axis from the input to the output.
    pub fn of(model: &Model, spec: &BatchSpec<'_>) -> Result<Self, GraphError> {
        let flow = Flow::new(&model.graph)?;
        let order = flow.order(spec.output)?;
        let fixed = spec.batch.map(|batch| batch as i64);
        let mut shape = vec![fixed.map_or(Dim::Batch(1), Dim::Known)];
        shape.extend(spec.picture.iter().map(|&side| Dim::Known(side as i64)));
        let pictures = Fact::pictures(shape);
        let mut walk = Walk { model, flow: &flow, spec, pictures, fixed, facts: HashMap::new() };
        for &place in &order {
            walk.visit(place);
        }
        Ok(walk.verdict())
    }
}

/// A fact about a value, or the node because of which there is none.
type Finding<'g> = Result<Fact<'g>, Blame>;

#[derive(Clone, Debug)]
struct Blame {
    node: Option<usize>,
    fault: Fault,
}

struct Walk<'g, 'q> {
    model: &'g Model,
    flow: &'q Flow<'g>,
    spec: &'q BatchSpec<'q>,
    pictures: Fact<'g>,
    fixed: Option<i64>,
    facts: HashMap<&'g str, Finding<'g>>,
}

impl<'g> Walk<'g, '_> {
    fn finding(&self, name: &str) -> Finding<'g> {
        if let Some(finding) = self.facts.get(name) {
            return finding.clone();
        }
        let unknown = |why: &str| Err(Blame { node: None, fault: Fault::Unknown(why.to_owned()) });
        match self.flow.source(name) {
            Some(Source::Input) if name == self.spec.input => Ok(self.pictures.clone()),
            Some(Source::Initializer(tensor)) => Ok(Fact::of_tensor(tensor)),
            Some(Source::Sparse) => Ok(Fact::constant(None)),
            Some(Source::Input) => unknown("it takes another input of the graph"),
            Some(Source::Node(_)) | None => unknown("what it takes was not followed"),
        }
    }

    /// Finds out about the outputs of a node whose inputs were visited before.
    fn visit(&mut self, place: usize) {
        let node = &self.model.graph.nodes[place];
        // The numbers of a constant are read once, however many operators take it.
        for name in &node.inputs {
            if let Some(Source::Initializer(tensor)) = self.flow.source(name) {
                self.facts.entry(name).or_insert_with(|| Ok(Fact::of_tensor(tensor)));
            }
        }
        let findings = match self.apply(node) {
            Ok(facts) => {
                let missing = || {
                    let why = "this output of it cannot be followed".to_owned();
                    Err(Blame { node: Some(place), fault: Fault::Unknown(why) })
                };
                let mut facts = facts.into_iter().map(Ok);
                node.outputs.iter().map(|_| facts.next().unwrap_or_else(missing)).collect::<Vec<_>>()
            }
            Err(blame) => {
                let blame = Blame { node: blame.node.or(Some(place)), fault: blame.fault };
                vec![Err(blame); node.outputs.len()]
            }
        };
        for (name, finding) in node.outputs.iter().zip(findings) {
            self.facts.insert(name, finding);
        }
    }

    fn apply(&self, node: &'g Node) -> Result<Vec<Fact<'g>>, Blame> {
        let own = |fault| Blame { node: None, fault };
        let defined = |function: &super::FunctionName| {
            let standard = matches!(function.domain.as_str(), "" | "ai.onnx");
            function.name == node.operator
                && (function.domain == node.domain || node.is_standard() && standard)
        };
        if self.model.functions.iter().any(defined) {
            return Err(own(Fault::Unknown("the file defines this operator itself".to_owned())));
        }
        if node.is_standard() && rules::RANDOM.contains(&node.operator.as_str()) {
            return Err(own(Fault::Random));
        }
        let (mut inputs, mut worst): (Vec<Option<Fact<'g>>>, Option<Blame>) = (Vec::new(), None);
        for name in &node.inputs {
            if name.is_empty() {
                inputs.push(None);
                continue;
            }
            match self.finding(name) {
                Ok(fact) => inputs.push(Some(fact)),
                Err(blame) => {
                    let worse = worst.as_ref().is_none_or(|worst| worst.fault.rank() < blame.fault.rank());
                    if worse {
                        worst = Some(blame);
                    }
                }
            }
        }
        if let Some(blame) = worst {
            return Err(blame);
        }
        let operators = self.model.operators();
        let mistyped = Cell::new(false);
        let facts =
            args::Args { node, inputs, operators, fixed: self.fixed, mistyped }.apply().map_err(own)?;
        let deep = |fact: &Fact<'_>| fact.shape.as_ref().is_some_and(|shape| shape.len() > MOST_AXES);
        if facts.iter().any(deep) {
            return Err(own(Fault::Unknown("it makes too many axes".to_owned())));
        }
        Ok(facts)
    }

    /// What is known about the output.
    fn verdict(&self) -> BatchReading {
        let named = |place: Option<usize>| {
            let node = place.map(|place| &self.model.graph.nodes[place]);
            let name = node.map_or(self.spec.output, Node::label).to_owned();
            (name, node.map_or("output", |node| node.operator.as_str()).to_owned())
        };
        let last = match self.flow.source(self.spec.output) {
            Some(Source::Node(place)) => Some(place),
            _ => None,
        };
        let blame = match self.finding(self.spec.output) {
            Ok(fact) if fact.is_one_row_per_picture() => return BatchReading::Independent,
            Ok(_) => {
                let why = "the output does not have the pictures on its first axis, a row for each";
                Blame { node: last, fault: Fault::Unknown(why.to_owned()) }
            }
            Err(blame) => blame,
        };
        let (node, operator) = named(blame.node);
        match blame.fault {
            Fault::Coupled(why) => BatchReading::Coupled { node, operator, why },
            Fault::Unknown(why) => BatchReading::Unknown { node, operator, why },
            Fault::Random => BatchReading::Random { node, operator },
        }
    }
}
