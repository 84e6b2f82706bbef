//! Constants of a graph as rules take them: whole, finite and in `f64`, or as integers.

use super::{Fault, no};
use crate::graph::{ElementType, Node, Tensor, Values};

/// A constant tensor, its numbers in order.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    pub(super) shape: Vec<usize>,
    pub(super) numbers: Numbers,
}

#[derive(Clone, Debug)]
pub(super) enum Numbers {
    Real(Vec<f64>),
    Whole(Vec<i64>),
}

impl Constant {
    pub(super) fn of(tensor: &Tensor) -> Result<Self, Fault> {
        let name = &tensor.name;
        if !matches!(
            tensor.element,
            ElementType::FLOAT | ElementType::DOUBLE | ElementType::INT64 | ElementType::INT32
        ) {
            return no(format!("its constant `{name}` is {}, wanted float32 or float64", tensor.element));
        }
        let numbers = match tensor.values() {
            Ok(Values::Single(values)) => Numbers::Real(values.into_iter().map(f64::from).collect()),
            Ok(Values::Double(values)) => Numbers::Real(values),
            Ok(Values::Integers(values)) => Numbers::Whole(values),
            Err(error) => return no(error.to_string()),
        };
        if let Numbers::Real(values) = &numbers
            && let Some(place) = values.iter().position(|value| !value.is_finite())
        {
            return no(format!(
                "number {place} of its constant `{name}` is {}, wanted finite weights",
                values[place]
            ));
        }
        Ok(Self { shape: tensor.shape.clone(), numbers })
    }

    /// The value of a `Constant` node.
    pub(super) fn of_node(node: &Node) -> Result<Self, Fault> {
        let [attribute] = &node.attributes[..] else { return no("it has no single value") };
        if let Some(tensor) = node.tensor("value") {
            return Self::of(tensor);
        }
        let single = |numbers| Ok(Self { shape: vec![], numbers });
        let list = |length, numbers| Ok(Self { shape: vec![length], numbers });
        let constant = match attribute.name.as_str() {
            "value_int" => node.int("value_int").map(|value| single(Numbers::Whole(vec![value]))),
            "value_float" => {
                node.float("value_float").map(|value| single(Numbers::Real(vec![f64::from(value)])))
            }
            "value_ints" => {
                node.ints("value_ints").map(|values| list(values.len(), Numbers::Whole(values.to_vec())))
            }
            "value_floats" => node.floats("value_floats").map(|values| {
                list(values.len(), Numbers::Real(values.iter().map(|&value| f64::from(value)).collect()))
            }),
            _ => None,
        };
        let constant = constant.unwrap_or_else(|| no("its value is not followed"))?;
        match &constant.numbers {
            Numbers::Real(values) if values.iter().any(|value| !value.is_finite()) => {
                no("its value is not finite")
            }
            Numbers::Real(_) | Numbers::Whole(_) => Ok(constant),
        }
    }

    pub(super) fn reals(&self) -> Result<&[f64], Fault> {
        match &self.numbers {
            Numbers::Real(values) => Ok(values),
            Numbers::Whole(_) => no("a constant of it is made of integers, wanted floating-point numbers"),
        }
    }

    pub(super) fn wholes(&self) -> Result<&[i64], Fault> {
        match &self.numbers {
            Numbers::Whole(values) => Ok(values),
            Numbers::Real(_) => no("a constant of it is made of floating-point numbers, wanted integers"),
        }
    }
}
