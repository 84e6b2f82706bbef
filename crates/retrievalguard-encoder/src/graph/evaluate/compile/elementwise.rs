//! Operators that treat every number, or every pair of numbers, alike.

use std::sync::Arc;

use super::{Compiler, Fault, Outcome, Value, axis, because};
use crate::graph::evaluate::operation::Operation;
use crate::graph::evaluate::pairs::{Pairs, Rule};
use crate::graph::evaluate::pointwise::{Channels, Pointwise};
use crate::graph::evaluate::scalar::Scalar;
use crate::graph::evaluate::shape::{Broadcast, broadcast, count, places, stretched};
use crate::graph::{ElementType, Node};

/// What a (de)quantising operator counts in.
struct Levels<S> {
    scale: Arc<Vec<S>>,
    zero: Arc<Vec<S>>,
    /// The type of the integers, if it is known.
    element: Option<ElementType>,
    channels: Channels,
}

impl<'g, S: Scalar> Compiler<'g, S> {
    pub(super) fn elementwise(&mut self, node: &'g Node) -> Outcome<Option<Value<S>>> {
        let setting = |name: &str, usual: f64| S::of(node.float(name).map_or(usual, f64::from));
        let pointwise = match node.operator.as_str() {
            "Relu" => Pointwise::Relu,
            "LeakyRelu" => Pointwise::LeakyRelu(setting("alpha", f64::from(0.01_f32))),
            "Sigmoid" => Pointwise::Sigmoid,
            "Swish" => Pointwise::Swish(setting("alpha", 1.0)),
            "HardSigmoid" => {
                Pointwise::HardSigmoid(setting("alpha", f64::from(0.2_f32)), setting("beta", 0.5))
            }
            "HardSwish" => Pointwise::HardSwish,
            "Tanh" => Pointwise::Tanh,
            "Exp" => Pointwise::Exp,
            "Log" => Pointwise::Ln,
            "Sqrt" => Pointwise::Sqrt,
            "Abs" => Pointwise::Abs,
            "Neg" => Pointwise::Negate,
            "Reciprocal" => Pointwise::Reciprocal,
            "Erf" => Pointwise::Erf,
            "Gelu" if node.text("approximate") == Some("tanh") => Pointwise::GeluByTanh,
            "Gelu" => Pointwise::Gelu,
            "Softplus" => Pointwise::Softplus,
            "Elu" => Pointwise::Elu(setting("alpha", 1.0)),
            "Clip" => self.clip(node)?,
            "BatchNormalization" => self.batch_normalisation(node)?,
            "QuantizeLinear" => self.quantise(node)?,
            "DequantizeLinear" => self.dequantise(node)?,
            operator => {
                let rule = match operator {
                    "Add" => Rule::Add,
                    "Sub" => Rule::Subtract,
                    "Mul" => Rule::Multiply,
                    "Div" => Rule::Divide,
                    "Pow" => Rule::Power,
                    "PRelu" => Rule::Slope,
                    "Max" => return self.many(node, &Rule::Greatest).map(Some),
                    "Min" => return self.many(node, &Rule::Least).map(Some),
                    "Sum" => return self.many(node, &Rule::Add).map(Some),
                    "Where" => return self.choose(node).map(Some),
                    _ => return Ok(None),
                };
                let (left, right) = (self.argument(node, 0)?, self.argument(node, 1)?);
                return self.pair(rule, left, right).map(Some);
            }
        };
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        self.emit(Operation::Pointwise(pointwise), vec![value], shape).map(Some)
    }

    /// An operator on two values.
    pub(super) fn pair(&mut self, rule: Rule, left: Value<S>, right: Value<S>) -> Outcome<Value<S>> {
        let Some(shape) = broadcast(left.shape(), right.shape()) else {
            return because(format!(
                "its arguments have the shapes {:?} and {:?}, which do not fit",
                left.shape(),
                right.shape()
            ));
        };
        if count(&shape).is_none() {
            return because(format!("its output would have the shape {shape:?}, which is too large"));
        }
        let broadcast = Broadcast::new(left.shape(), right.shape(), &shape);
        self.emit(Operation::Pairs(Pairs { rule, broadcast }), vec![left, right], shape)
    }

    /// The same rule from the first argument to the last.
    fn many(&mut self, node: &'g Node, rule: &Rule) -> Outcome<Value<S>> {
        let mut value = self.argument(node, 0)?;
        for place in 1..node.inputs.len() {
            let next = self.argument(node, place)?;
            value = self.pair(rule.clone(), value, next)?;
        }
        Ok(value)
    }

    fn choose(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let Value::Whole { shape: own, numbers, .. } = self.argument(node, 0)? else {
            return because("its condition depends on the picture");
        };
        let (left, right) = (self.argument(node, 1)?, self.argument(node, 2)?);
        let shape = broadcast(left.shape(), right.shape()).and_then(|shape| broadcast(&shape, &own));
        let Some(shape) = shape.filter(|shape| count(shape).is_some()) else {
            return because("its arguments have shapes that do not fit, or are too large");
        };
        let choice = places(&shape, &stretched(&own, &shape), 0).into_iter().map(|place| numbers[place] != 0);
        let rule = Rule::Choose(Arc::new(choice.collect()));
        let broadcast = Broadcast::new(left.shape(), right.shape(), &shape);
        self.emit(Operation::Pairs(Pairs { rule, broadcast }), vec![left, right], shape)
    }

    fn clip(&mut self, node: &'g Node) -> Outcome<Pointwise<S>> {
        let bound = |from: &mut Self, name: &str, place: usize, none: S| {
            Ok::<_, Fault>(match node.float(name) {
                Some(value) => S::of(f64::from(value)),
                None => from.number(node, place)?.unwrap_or(none),
            })
        };
        let least = bound(self, "min", 1, S::LOWEST)?;
        let most = bound(self, "max", 2, -S::LOWEST)?;
        Ok(Pointwise::Clip(least, most))
    }

    /// How the channels of an argument lie in memory, if it has one per number of `numbers`.
    fn channels(&mut self, node: &'g Node, wanted: i64, numbers: usize) -> Outcome<Channels> {
        let shape = self.argument(node, 0)?.shape().to_vec();
        if numbers == 1 {
            return Ok(Channels { count: 1, inner: count(&shape).unwrap_or(1).max(1) });
        }
        let axis = axis(wanted, shape.len())?;
        if shape[axis] != numbers {
            return because(format!("it has {numbers} numbers for {} channels", shape[axis]));
        }
        Ok(Channels { count: numbers, inner: shape[axis + 1..].iter().product::<usize>().max(1) })
    }

    fn batch_normalisation(&mut self, node: &'g Node) -> Outcome<Pointwise<S>> {
        if node.int("training_mode").unwrap_or(0) != 0 || node.int("is_test") == Some(0) {
            return because("it is in training mode, where pictures of a batch act on each other");
        }
        let mut parts = Vec::new();
        for place in 1..=4 {
            match self.real(node, place)? {
                Some((_, numbers)) => parts.push(numbers),
                None => return because(format!("argument {place} is left out")),
            }
        }
        let [scale, shift, mean, variance] = parts.as_slice() else { return Err(Fault::Unknown) };
        let length = scale.len();
        if length == 0 || [shift, mean, variance].iter().any(|numbers| numbers.len() != length) {
            return because("its arguments differ in length");
        }
        let channels = match length {
            // A single channel is no single number: it still has its own axis.
            1 => self.channels(node, 1, 1)?,
            _ => self.channels(node, 1, length)?,
        };
        let epsilon = f64::from(node.float("epsilon").unwrap_or(1e-5));
        // In double precision, so that folding it costs no digits.
        let factor: Vec<f64> = scale
            .iter()
            .zip(variance.iter())
            .map(|(scale, variance)| scale.wide() / (variance.wide() + epsilon).sqrt())
            .collect();
        let added = factor.iter().zip(shift.iter()).zip(mean.iter());
        let added = added.map(|((factor, shift), mean)| S::of(shift.wide() - factor * mean.wide())).collect();
        let factor = factor.into_iter().map(S::of).collect();
        Ok(Pointwise::Affine { channels, scale: Arc::new(factor), shift: Arc::new(added) })
    }

    /// Scales, zero points and the type of the integers of a (de)quantising operator.
    fn levels(&mut self, node: &'g Node) -> Outcome<Levels<S>> {
        if node.int("block_size").unwrap_or(0) != 0 {
            return because("it quantises block by block");
        }
        let Some((_, scale)) = self.real(node, 1)? else { return because("it has no scale") };
        let element = match self.optional(node, 2)? {
            Some(Value::Whole { element, .. }) => Some(element),
            _ => None,
        };
        let zero = match self.real(node, 2)? {
            Some((_, zero)) => zero,
            None => Arc::new(vec![S::ZERO; scale.len()]),
        };
        if scale.is_empty() || zero.len() != scale.len() {
            return because(format!("it has {} scales and {} zero points", scale.len(), zero.len()));
        }
        let channels = self.channels(node, node.int("axis").unwrap_or(1), scale.len())?;
        Ok(Levels { scale, zero, element, channels })
    }

    fn quantise(&mut self, node: &'g Node) -> Outcome<Pointwise<S>> {
        let Levels { scale, zero, element, channels } = self.levels(node)?;
        let named = node.int("output_dtype").filter(|&number| number > 0);
        let named = named.map(|number| ElementType(number.unsigned_abs()));
        let (least, most) = match element.or(named).unwrap_or(ElementType::UINT8) {
            ElementType::UINT8 => (0.0, 255.0),
            ElementType::INT8 => (-128.0, 127.0),
            ElementType::UINT16 => (0.0, 65535.0),
            ElementType::INT16 => (-32768.0, 32767.0),
            other => return because(format!("it gives {other}, wanted integers of 8 or 16 bits")),
        };
        Ok(Pointwise::Quantise { channels, scale, zero, least: S::of(least), most: S::of(most) })
    }

    fn dequantise(&mut self, node: &'g Node) -> Outcome<Pointwise<S>> {
        let Levels { scale, zero, channels, .. } = self.levels(node)?;
        let shift = scale.iter().zip(zero.iter()).map(|(&scale, &zero)| -scale * zero).collect();
        Ok(Pointwise::Affine { channels, scale, shift: Arc::new(shift) })
    }
}
