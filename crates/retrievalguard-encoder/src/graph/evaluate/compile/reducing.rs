//! Operators along axes: means, sums, norms, softmax and normalisations.

use std::sync::Arc;

use super::{Compiler, Outcome, Value, axis, because, sorted_axes};
use crate::graph::Node;
use crate::graph::evaluate::operation::Operation;
use crate::graph::evaluate::pointwise::{Channels, Pointwise};
use crate::graph::evaluate::reductions::{Along, Lines, Normalise, Reduce, Reduction};
use crate::graph::evaluate::scalar::Scalar;

impl<'g, S: Scalar> Compiler<'g, S> {
    pub(super) fn reducing(&mut self, node: &'g Node) -> Outcome<Option<Value<S>>> {
        let reduction = match node.operator.as_str() {
            "ReduceMean" => Reduction::Mean,
            "ReduceSum" => Reduction::Sum,
            "ReduceMax" => Reduction::Greatest,
            "ReduceMin" => Reduction::Least,
            "ReduceL1" => Reduction::Absolute,
            "ReduceL2" => Reduction::Length,
            "ReduceSumSquare" => Reduction::Squares,
            "GlobalAveragePool" => return self.global(node, Reduction::Mean).map(Some),
            "GlobalMaxPool" => return self.global(node, Reduction::Greatest).map(Some),
            "Softmax" => return self.softmax(node, Normalise::Softmax).map(Some),
            "LogSoftmax" => return self.softmax(node, Normalise::LogSoftmax).map(Some),
            "LpNormalization" => return self.unit_length(node).map(Some),
            "LayerNormalization" => return self.layer_normalisation(node).map(Some),
            "InstanceNormalization" => return self.group_normalisation(node, None).map(Some),
            "GroupNormalization" => {
                let groups = node.int("num_groups").and_then(|groups| usize::try_from(groups).ok());
                return self.group_normalisation(node, Some(groups.unwrap_or(0))).map(Some);
            }
            _ => return Ok(None),
        };
        let value = self.argument(node, 0)?;
        let rank = value.shape().len();
        let axes = match self.axes(node, "axes", 1)? {
            Some(axes) if !axes.is_empty() => sorted_axes(&axes, rank)?,
            _ if node.int("noop_with_empty_axes").unwrap_or(0) != 0 => return Ok(Some(value)),
            _ => (0..rank).collect(),
        };
        let keep = node.int("keepdims").unwrap_or(1) != 0;
        self.reduce(value, &axes, reduction, keep).map(Some)
    }

    fn global(&mut self, node: &'g Node, reduction: Reduction) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let axes: Vec<usize> = (2..value.shape().len()).collect();
        self.reduce(value, &axes, reduction, true)
    }

    /// Reduces a value along sorted axes.
    fn reduce(
        &mut self,
        value: Value<S>,
        axes: &[usize],
        reduction: Reduction,
        keep: bool,
    ) -> Outcome<Value<S>> {
        let shape = value.shape().to_vec();
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let wanted: Vec<usize> = match keep {
            true => (0..shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] }).collect(),
            false => kept.iter().map(|&axis| shape[axis]).collect(),
        };
        let Some((&first, &last)) = axes.first().zip(axes.last()) else {
            return Ok(value.reshaped(wanted));
        };
        let sides = |axes: &[usize]| axes.iter().map(|&axis| shape[axis]).product::<usize>();
        if shape.contains(&0) {
            return because("it takes a tensor without numbers");
        }
        // Axes that lie apart are brought together at the end.
        let (value, along) = if last - first + 1 == axes.len() {
            let outer = shape[..first].iter().product();
            let inner = shape[last + 1..].iter().product();
            (value, Along { outer, length: sides(axes), inner })
        } else {
            let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
            let moved = self.transposed_by(value, &order)?;
            (moved, Along { outer: sides(&kept), length: sides(axes), inner: 1 })
        };
        self.emit(Operation::Reduce(Reduce { reduction, along }), vec![value], wanted)
    }

    fn lines(&mut self, normalise: Normalise<S>, value: Value<S>, along: Along) -> Outcome<Value<S>> {
        let shape = value.shape().to_vec();
        self.emit(Operation::Lines(Lines { normalise, along }), vec![value], shape)
    }

    fn softmax(&mut self, node: &'g Node, normalise: Normalise<S>) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        // Until version 13 everything from the axis on was one line.
        let usual = if self.operators >= 13 { -1 } else { 1 };
        let axis = axis(node.int("axis").unwrap_or(usual), shape.len())?;
        let outer = shape[..axis].iter().product();
        let along = if self.operators >= 13 {
            Along { outer, length: shape[axis], inner: shape[axis + 1..].iter().product() }
        } else {
            Along { outer, length: shape[axis..].iter().product(), inner: 1 }
        };
        self.lines(normalise, value, along)
    }

    fn unit_length(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let axis = axis(node.int("axis").unwrap_or(-1), shape.len())?;
        let squared = match node.int("p").unwrap_or(2) {
            1 => false,
            2 => true,
            other => return because(format!("its p is {other}, wanted 1 or 2")),
        };
        let (outer, inner) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
        self.lines(Normalise::Length { squared }, value, Along { outer, length: shape[axis], inner })
    }

    fn layer_normalisation(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        if node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
            return because("it gives mean and deviation, wanted the normalised value alone");
        }
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let axis = axis(node.int("axis").unwrap_or(-1), shape.len())?;
        let (outer, length) = (shape[..axis].iter().product(), shape[axis..].iter().product());
        let mut factors = [None, None];
        for (place, factor) in factors.iter_mut().enumerate() {
            if let Some((found, numbers)) = self.real(node, place + 1)? {
                if numbers.len() != length {
                    return because(format!("argument {} has the shape {found:?}", place + 1));
                }
                *factor = Some(numbers);
            }
        }
        let [scale, shift] = factors;
        let epsilon = S::of(f64::from(node.float("epsilon").unwrap_or(1e-5)));
        let normalise = Normalise::Moments { epsilon, scale, shift };
        self.lines(normalise, value, Along { outer, length, inner: 1 })
    }

    /// Normalises groups of channels, or every channel by itself, then scales and shifts channel by channel.
    fn group_normalisation(&mut self, node: &'g Node, groups: Option<usize>) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let [batch, channels, ..] = *shape.as_slice() else {
            return because(format!("it takes the shape {shape:?}, wanted batch and channels"));
        };
        let groups = groups.unwrap_or(channels);
        if groups == 0 || !channels.is_multiple_of(groups) {
            return because(format!("it has {groups} groups of {channels} channels"));
        }
        if shape.contains(&0) {
            return because("it takes a tensor without numbers");
        }
        let inner: usize = shape[2..].iter().product();
        let along = Along { outer: batch * groups, length: channels / groups * inner, inner: 1 };
        let epsilon = S::of(f64::from(node.float("epsilon").unwrap_or(1e-5)));
        let normalised =
            self.lines(Normalise::Moments { epsilon, scale: None, shift: None }, value, along)?;
        let (Some((_, scale)), Some((_, shift))) = (self.real(node, 1)?, self.real(node, 2)?) else {
            return because("it has no scale or no shift");
        };
        // Version 18 of GroupNormalization scales groups, later ones scale channels.
        let spread = |numbers: Arc<Vec<S>>| {
            if numbers.len() == channels {
                Some(numbers)
            } else if numbers.len() == groups {
                let wide = (0..channels).map(|channel| numbers[channel / (channels / groups)]);
                Some(Arc::new(wide.collect()))
            } else {
                None
            }
        };
        let (Some(scale), Some(shift)) = (spread(scale), spread(shift)) else {
            return because(format!("its scale and shift do not fit {channels} channels"));
        };
        let affine = Pointwise::Affine { channels: Channels { count: channels, inner }, scale, shift };
        self.emit(Operation::Pointwise(affine), vec![normalised], shape)
    }
}
