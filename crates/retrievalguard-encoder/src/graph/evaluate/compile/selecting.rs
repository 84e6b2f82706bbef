//! Operators that compute nothing: they rename, reorder, repeat, cut and join numbers.

use std::sync::Arc;

use super::{Compiler, Outcome, Value, axis, because, sorted_axes};
use crate::graph::evaluate::operation::{NOWHERE, Operation};
use crate::graph::evaluate::scalar::Scalar;
use crate::graph::evaluate::shape::{broadcast, count, places, strides};
use crate::graph::{ElementType, Node};

impl<'g, S: Scalar> Compiler<'g, S> {
    pub(super) fn selecting(&mut self, node: &'g Node) -> Outcome<Option<Vec<Value<S>>>> {
        let value = match node.operator.as_str() {
            "Constant" => self.stored(node)?,
            "ConstantOfShape" => self.constant_of_shape(node)?,
            "Range" => self.range(node)?,
            "Shape" => self.shape_of(node)?,
            "Size" => {
                let size = self.argument(node, 0)?.shape().iter().product::<usize>();
                whole(vec![], vec![size as i64])
            }
            "Identity" => self.argument(node, 0)?,
            "Dropout" => {
                let training = self.whole(node, 2)?.is_some_and(|training| training != [0]);
                if training || node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
                    return because("it is in training mode, or gives its mask");
                }
                self.argument(node, 0)?
            }
            "Cast" => self.cast(node)?,
            "CastLike" => self.cast_like(node)?,
            "Reshape" => self.reshape(node)?,
            "Flatten" => self.flatten(node)?,
            "Squeeze" => self.squeeze(node)?,
            "Unsqueeze" => self.unsqueeze(node)?,
            "Transpose" => self.transpose(node)?,
            "Slice" => self.slice(node)?,
            "Gather" => self.gather(node)?,
            "Expand" => self.expand(node)?,
            "Tile" => self.tile(node)?,
            "Pad" => self.pad(node)?,
            "DepthToSpace" | "SpaceToDepth" => self.blocks(node)?,
            "Concat" => self.concat(node)?,
            "Split" => return self.split(node).map(Some),
            _ => return Ok(None),
        };
        Ok(Some(vec![value]))
    }

    fn stored(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        if let Some(tensor) = node.tensor("value") {
            return self.constant(tensor);
        }
        let real = |shape: Vec<usize>, numbers: &[f32]| {
            let numbers = numbers.iter().map(|&number| S::of(f64::from(number))).collect();
            Value::Real { shape, numbers: Arc::new(numbers) }
        };
        if let Some(number) = node.int("value_int") {
            Ok(whole(vec![], vec![number]))
        } else if let Some(numbers) = node.ints("value_ints") {
            Ok(whole(vec![numbers.len()], numbers.to_vec()))
        } else if let Some(number) = node.float("value_float") {
            Ok(real(vec![], &[number]))
        } else if let Some(numbers) = node.floats("value_floats") {
            Ok(real(vec![numbers.len()], numbers))
        } else {
            because("its value is neither numbers nor a tensor")
        }
    }

    fn constant_of_shape(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let shape = sides(&self.whole(node, 0)?.unwrap_or_default())?;
        let count = checked(&shape)?;
        Ok(match node.tensor("value").map(|tensor| self.constant(tensor)).transpose()? {
            None => Value::Real { shape, numbers: Arc::new(vec![S::ZERO; count]) },
            Some(Value::Real { numbers, .. }) => {
                let number = numbers.first().copied().unwrap_or_default();
                Value::Real { shape, numbers: Arc::new(vec![number; count]) }
            }
            Some(Value::Whole { numbers, element, .. }) => {
                let number = numbers.first().copied().unwrap_or_default();
                Value::Whole { shape, numbers: Arc::new(vec![number; count]), element }
            }
            Some(Value::Made { .. }) => return because("its value depends on the picture"),
        })
    }

    fn range(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let mut parts = Vec::new();
        for place in 0..3 {
            match self.whole(node, place)?.as_deref() {
                Some(&[number]) => parts.push(number),
                _ => return because("it counts by something else than single integers"),
            }
        }
        let [start, end, step] = *parts.as_slice() else { return because("it wants three integers") };
        if step == 0 {
            return because("it counts in steps of nothing");
        }
        let length = (i128::from(end) - i128::from(start)).max(-i128::from(i64::MAX)) as f64 / step as f64;
        let length = length.ceil().max(0.0);
        if length > 1e6 {
            return because(format!("it counts to {length}"));
        }
        let numbers: Option<Vec<i64>> = (0..length as i64)
            .map(|place| place.checked_mul(step).and_then(|moved| moved.checked_add(start)))
            .collect();
        match numbers {
            Some(numbers) => Ok(whole(vec![numbers.len()], numbers)),
            None => because("it counts beyond all integers"),
        }
    }

    fn shape_of(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let shape = self.argument(node, 0)?.shape().to_vec();
        let rank = shape.len() as i64;
        let place = |number: i64| {
            let counted = if number < 0 { number.saturating_add(rank) } else { number };
            counted.clamp(0, rank) as usize
        };
        let (start, end) = (place(node.int("start").unwrap_or(0)), place(node.int("end").unwrap_or(rank)));
        let numbers: Vec<i64> = shape[start..end.max(start)].iter().map(|&side| side as i64).collect();
        Ok(whole(vec![numbers.len()], numbers))
    }

    fn cast(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let target = ElementType(node.int("to").unwrap_or(0).unsigned_abs());
        let value = self.argument(node, 0)?;
        cast_to(value, target)
    }

    fn cast_like(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        match self.argument(node, 1)? {
            Value::Made { .. } | Value::Real { .. } => cast_to(value, ElementType::FLOAT),
            Value::Whole { element, .. } => cast_to(value, element),
        }
    }

    fn reshape(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let Some(wanted) = self.axes(node, "shape", 1)? else { return because("it has no shape") };
        let own = value.shape().to_vec();
        let keeps_zero = node.int("allowzero").unwrap_or(0) != 0;
        let mut shape = Vec::with_capacity(wanted.len());
        let mut open = None;
        for (place, &side) in wanted.iter().enumerate() {
            shape.push(match side {
                -1 if open.is_none() => {
                    open = Some(place);
                    1
                }
                0 if !keeps_zero => own.get(place).copied().unwrap_or(0),
                side => match usize::try_from(side) {
                    Ok(side) => side,
                    Err(_) => return because(format!("its shape is {wanted:?}")),
                },
            });
        }
        let total = checked(&own)?;
        let others = checked(&shape)?;
        if let Some(place) = open {
            shape[place] = total.checked_div(others).unwrap_or(0);
        }
        if checked(&shape)? != total {
            return because(format!("it makes {wanted:?} of {own:?}"));
        }
        Ok(value.reshaped(shape))
    }

    fn flatten(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let place = node.int("axis").unwrap_or(1);
        // It may stand behind the last axis.
        let place = if place == shape.len() as i64 { shape.len() } else { axis(place, shape.len())? };
        checked(&shape)?;
        Ok(value.reshaped(vec![shape[..place].iter().product(), shape[place..].iter().product()]))
    }

    fn squeeze(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let gone = match self.axes(node, "axes", 1)? {
            Some(axes) => sorted_axes(&axes, shape.len())?,
            None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
        };
        if let Some(&axis) = gone.iter().find(|&&axis| shape[axis] != 1) {
            return because(format!("it drops axis {axis} of {shape:?}"));
        }
        let left = (0..shape.len()).filter(|axis| !gone.contains(axis)).map(|axis| shape[axis]).collect();
        Ok(value.reshaped(left))
    }

    fn unsqueeze(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let own = value.shape().to_vec();
        let Some(axes) = self.axes(node, "axes", 1)? else { return because("it has no axes") };
        let rank = own.len() + axes.len();
        let added = sorted_axes(&axes, rank)?;
        if added.len() != axes.len() {
            return because(format!("it adds the axes {axes:?}"));
        }
        let mut rest = own.into_iter();
        let sides = (0..rank).map(|axis| if added.contains(&axis) { 1 } else { rest.next().unwrap_or(1) });
        Ok(value.reshaped(sides.collect()))
    }

    fn transpose(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let rank = value.shape().len();
        let order = match node.ints("perm") {
            None => (0..rank).rev().collect(),
            Some(order) => order.iter().map(|&number| axis(number, rank)).collect::<Outcome<Vec<usize>>>()?,
        };
        self.transposed_by(value, &order)
    }

    /// A value with its axes in another order.
    pub(super) fn transposed_by(&mut self, value: Value<S>, order: &[usize]) -> Outcome<Value<S>> {
        let own = value.shape().to_vec();
        let mut seen = vec![false; own.len()];
        order.iter().for_each(|&axis| seen[axis] = true);
        if order.len() != own.len() || seen.contains(&false) {
            return because(format!("it orders {} axes as {order:?}", own.len()));
        }
        checked(&own)?;
        let shape: Vec<usize> = order.iter().map(|&axis| own[axis]).collect();
        let own_strides = strides(&own);
        let moved: Vec<usize> = order.iter().map(|&axis| own_strides[axis]).collect();
        let table = places(&shape, &moved, 0).into_iter().map(Some).collect();
        self.select(value, table, shape, S::ZERO)
    }

    fn slice(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let (starts, ends) = (self.axes(node, "starts", 1)?, self.axes(node, "ends", 2)?);
        let (Some(starts), Some(ends)) = (starts, ends) else { return because("it has no start or no end") };
        let axes = match self.axes(node, "axes", 3)? {
            Some(axes) => axes,
            None => (0..starts.len() as i64).collect(),
        };
        let steps = self.whole(node, 4)?.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()].iter().any(|&length| length != starts.len()) {
            return because("its starts, ends, axes and steps differ in length");
        }
        let mut lists = all(&shape)?;
        for (((&start, &end), &number), &step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
            let axis = axis(number, shape.len())?;
            let side = shape[axis] as i64;
            if step == 0 || step == i64::MIN {
                return because(format!("it takes steps of {step}"));
            }
            let counted = |place: i64| if place < 0 { place.saturating_add(side) } else { place };
            let (low, high) = if step > 0 { (0, side) } else { (-1, side - 1) };
            // The first place must exist; the end may stand beside it.
            let start = counted(start).clamp(if step > 0 { 0 } else { -1 }, high);
            let end = counted(end).clamp(low, high);
            let mut list = Vec::new();
            let mut place = start;
            while if step > 0 { place < end } else { place > end } {
                list.push(usize::try_from(place).ok());
                let Some(next) = place.checked_add(step) else { break };
                place = next;
            }
            lists[axis] = list;
        }
        self.select_lists(value, &lists, S::ZERO)
    }

    fn gather(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let own = value.shape().to_vec();
        let axis = axis(node.int("axis").unwrap_or(0), own.len())?;
        let Value::Whole { shape: indices_shape, numbers, .. } = self.argument(node, 1)? else {
            return because("its indices depend on the picture");
        };
        let side = own[axis] as i64;
        let place = |&index: &i64| {
            let counted = if index < 0 { index.saturating_add(side) } else { index };
            usize::try_from(counted).ok().filter(|&place| place < own[axis])
        };
        let list: Vec<Option<usize>> = numbers.iter().map(place).collect();
        if list.contains(&None) {
            return because(format!("its indices reach beyond {side}"));
        }
        let mut lists = all(&own)?;
        lists[axis] = list;
        let gathered = self.select_lists(value, &lists, S::ZERO)?;
        let shape = [&own[..axis], &indices_shape, &own[axis + 1..]].concat();
        Ok(gathered.reshaped(shape))
    }

    fn expand(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let wanted = sides(&self.whole(node, 1)?.unwrap_or_default())?;
        let own = value.shape().to_vec();
        let Some(shape) = broadcast(&own, &wanted) else {
            return because(format!("it stretches {own:?} to {wanted:?}"));
        };
        checked(&shape)?;
        let own = [vec![1; shape.len() - own.len()], own].concat();
        let lists: Vec<Vec<Option<usize>>> = own
            .iter()
            .zip(&shape)
            .map(|(&own, &side)| (0..side).map(|place| Some(if own == 1 { 0 } else { place })).collect())
            .collect();
        self.select_lists(value.reshaped(own), &lists, S::ZERO)
    }

    fn tile(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let times = sides(&self.whole(node, 1)?.unwrap_or_default())?;
        let own = value.shape().to_vec();
        if times.len() != own.len() {
            return because(format!("it repeats {own:?} by {times:?}"));
        }
        let Some(shape) = own
            .iter()
            .zip(&times)
            .map(|(side, times)| side.checked_mul(*times))
            .collect::<Option<Vec<usize>>>()
        else {
            return because(format!("it repeats {own:?} by {times:?}"));
        };
        checked(&shape)?;
        let lists: Vec<Vec<Option<usize>>> = own
            .iter()
            .zip(&shape)
            .map(|(&own, &side)| (0..side).map(|place| Some(place % own.max(1))).collect())
            .collect();
        self.select_lists(value, &lists, S::ZERO)
    }

    fn pad(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let Some(pads) = self.axes(node, "pads", 1)? else { return because("it has no pads") };
        let axes = match self.whole(node, 3)? {
            Some(axes) => {
                axes.iter().map(|&number| axis(number, shape.len())).collect::<Outcome<Vec<_>>>()?
            }
            None => (0..shape.len()).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return because(format!("its pads are {pads:?} for {} axes", axes.len()));
        }
        let fill = match node.float("value") {
            Some(number) => S::of(f64::from(number)),
            None => self.number(node, 2)?.unwrap_or_default(),
        };
        let mode = node.text("mode").unwrap_or("constant");
        let mut lists = all(&shape)?;
        for (place, &axis) in axes.iter().enumerate() {
            let (before, after) = (pads[place], pads[place + axes.len()]);
            let side = shape[axis] as i64;
            if before.max(after) > 1 << 16 || before.min(after) < -(1 << 16) {
                return because(format!("its pads are {pads:?}"));
            }
            let source = |place: i64| match mode {
                _ if (0..side).contains(&place) => Some(Some(place as usize)),
                "constant" => Some(None),
                "edge" if side > 0 => Some(Some(place.clamp(0, side - 1) as usize)),
                "reflect" if side > 1 => {
                    let period = 2 * (side - 1);
                    let turned = place.rem_euclid(period);
                    Some(Some(turned.min(period - turned) as usize))
                }
                "wrap" if side > 0 => Some(Some(place.rem_euclid(side) as usize)),
                _ => None,
            };
            let list: Option<Vec<Option<usize>>> = (-before..side + after).map(source).collect();
            match list {
                Some(list) => lists[axis] = list,
                None => return because(format!("its mode is {mode}")),
            }
        }
        if lists.iter().flatten().any(Option::is_none) && matches!(value, Value::Whole { .. }) {
            return because("it pads integers");
        }
        self.select_lists(value, &lists, fill)
    }

    /// Squares of neighbouring places to channels, or back.
    fn blocks(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let value = self.argument(node, 0)?;
        let Ok([batch, channels, height, width]) = <[usize; 4]>::try_from(value.shape()) else {
            return because(format!("it takes the shape {:?}, wanted four axes", value.shape()));
        };
        let side = usize::try_from(node.int("blocksize").unwrap_or(0)).unwrap_or(0);
        if side == 0 || side > 1 << 10 {
            return because(format!("its blocksize is {side}"));
        }
        let square = side * side;
        if node.operator == "DepthToSpace" {
            if !channels.is_multiple_of(square) {
                return because(format!(
                    "it makes squares of {channels} channels, wanted a multiple of {square}"
                ));
            }
            let fewer = channels / square;
            let (apart, order) = match node.text("mode").unwrap_or("DCR") {
                "CRD" => (vec![batch, fewer, side, side, height, width], [0, 1, 4, 2, 5, 3]),
                _ => (vec![batch, side, side, fewer, height, width], [0, 3, 4, 1, 5, 2]),
            };
            let moved = self.transposed_by(value.reshaped(apart), &order)?;
            return Ok(moved.reshaped(vec![batch, fewer, height * side, width * side]));
        }
        if !height.is_multiple_of(side) || !width.is_multiple_of(side) {
            return because(format!("it cuts {height} by {width} into squares of {side}"));
        }
        let (down, along) = (height / side, width / side);
        let apart = value.reshaped(vec![batch, channels, down, side, along, side]);
        let moved = self.transposed_by(apart, &[0, 3, 5, 1, 2, 4])?;
        Ok(moved.reshaped(vec![batch, channels * square, down, along]))
    }

    fn concat(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let mut parts = Vec::with_capacity(node.inputs.len());
        for place in 0..node.inputs.len() {
            parts.push(self.argument(node, place)?);
        }
        let Some(first) = parts.first().map(|part| part.shape().to_vec()) else {
            return because("it joins nothing");
        };
        let usual = if self.operators < 4 { Some(1) } else { None };
        let Some(number) = node.int("axis").or(usual) else { return because("it has no axis") };
        let axis = axis(number, first.len())?;
        let mut shape = first.clone();
        shape[axis] = 0;
        for part in &parts {
            let own = part.shape();
            let fits = own.len() == first.len()
                && (0..own.len()).all(|place| place == axis || own[place] == first[place]);
            if !fits {
                return because(format!("it joins {first:?} and {own:?}"));
            }
            shape[axis] = shape[axis].saturating_add(own[axis]);
        }
        checked(&shape)?;
        let inner: usize = shape[axis + 1..].iter().product();
        if let Some(lists) = parts.iter().map(integers).collect::<Option<Vec<_>>>() {
            let outer: usize = shape[..axis].iter().product();
            let mut numbers = Vec::new();
            for place in 0..outer {
                for (list, part) in lists.iter().zip(&parts) {
                    let length = part.shape()[axis] * inner;
                    numbers.extend_from_slice(&list[place * length..][..length]);
                }
            }
            return Ok(whole(shape, numbers));
        }
        // Parts without numbers add nothing.
        parts.retain(|part| part.shape()[axis] > 0);
        let pieces = parts.iter().map(|part| part.shape()[axis] * inner).collect();
        self.emit(Operation::Interleave { pieces }, parts, shape)
    }

    fn split(&mut self, node: &'g Node) -> Outcome<Vec<Value<S>>> {
        let value = self.argument(node, 0)?;
        let shape = value.shape().to_vec();
        let axis = axis(node.int("axis").unwrap_or(0), shape.len())?;
        let count = node.outputs.len().max(1);
        let lengths = match self.axes(node, "split", 1)? {
            Some(lengths) => sides(&lengths)?,
            None => {
                let piece = shape[axis].div_ceil(count);
                (0..count).map(|place| piece.min(shape[axis].saturating_sub(place * piece))).collect()
            }
        };
        if lengths.len() != count
            || lengths.iter().try_fold(0_usize, |sum, &length| sum.checked_add(length)) != Some(shape[axis])
        {
            return because(format!("it splits {} into {lengths:?}", shape[axis]));
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(count);
        for length in lengths {
            let mut lists = all(&shape)?;
            lists[axis] = (start..start + length).map(Some).collect();
            start += length;
            parts.push(self.select_lists(value.clone(), &lists, S::ZERO)?);
        }
        Ok(parts)
    }

    /// From each axis the members that a list names, in its order; a gap is filled.
    fn select_lists(&mut self, value: Value<S>, lists: &[Vec<Option<usize>>], fill: S) -> Outcome<Value<S>> {
        let own = strides(value.shape());
        let shape: Vec<usize> = lists.iter().map(Vec::len).collect();
        checked(&shape)?;
        let mut table = vec![Some(0)];
        for (list, stride) in lists.iter().zip(own) {
            table = table
                .iter()
                .flat_map(|&before: &Option<usize>| {
                    list.iter().map(move |&place| Some(before? + place? * stride))
                })
                .collect();
        }
        self.select(value, table, shape, fill)
    }

    /// The numbers at these places.
    fn select(
        &mut self,
        value: Value<S>,
        table: Vec<Option<usize>>,
        shape: Vec<usize>,
        fill: S,
    ) -> Outcome<Value<S>> {
        let total = checked(value.shape())?;
        if table.len() == total && table.iter().enumerate().all(|(place, from)| *from == Some(place)) {
            return Ok(value.reshaped(shape));
        }
        match value {
            Value::Whole { numbers, element, .. } => {
                let picked = table.iter().map(|place| place.map_or(0, |place| numbers[place])).collect();
                Ok(Value::Whole { shape, numbers: Arc::new(picked), element })
            }
            Value::Real { numbers, .. } => {
                let picked = table.iter().map(|place| place.map_or(fill, |place| numbers[place])).collect();
                Ok(Value::Real { shape, numbers: Arc::new(picked) })
            }
            made @ Value::Made { .. } => {
                let table: Vec<u32> =
                    table.iter().map(|place| place.map_or(NOWHERE, |place| place as u32)).collect();
                self.emit(Operation::Select { table: Arc::new(table), fill }, vec![made], shape)
            }
        }
    }
}

/// Constant integers.
pub(super) fn whole<S>(shape: Vec<usize>, numbers: Vec<i64>) -> Value<S> {
    Value::Whole { shape, numbers: Arc::new(numbers), element: ElementType::INT64 }
}

fn integers<S>(value: &Value<S>) -> Option<&[i64]> {
    match value {
        Value::Whole { numbers, .. } => Some(numbers),
        Value::Real { .. } | Value::Made { .. } => None,
    }
}

fn cast_to<S: Scalar>(value: Value<S>, target: ElementType) -> Outcome<Value<S>> {
    let floating = [ElementType::FLOAT, ElementType::FLOAT16, ElementType::BFLOAT16, ElementType::DOUBLE];
    match value {
        Value::Whole { shape, numbers, .. } if floating.contains(&target) => {
            let numbers = numbers.iter().map(|&number| S::of(number as f64)).collect();
            Ok(Value::Real { shape, numbers: Arc::new(numbers) })
        }
        value if floating.contains(&target) => Ok(value),
        Value::Made { .. } => because(format!("it turns a value that depends on the picture into {target}")),
        Value::Whole { shape, numbers, .. } if target == ElementType::BOOL => {
            let numbers = numbers.iter().map(|&number| i64::from(number != 0)).collect();
            Ok(Value::Whole { shape, numbers: Arc::new(numbers), element: target })
        }
        Value::Whole { shape, numbers, .. } => Ok(Value::Whole { shape, numbers, element: target }),
        Value::Real { shape, numbers } => {
            let number = |number: &S| match target {
                ElementType::BOOL => i64::from(*number != S::ZERO),
                _ => number.wide() as i64,
            };
            let numbers = Arc::new(numbers.iter().map(number).collect());
            Ok(Value::Whole { shape, numbers, element: target })
        }
    }
}

/// Integers as the sides of a shape.
fn sides(numbers: &[i64]) -> Outcome<Vec<usize>> {
    let sides: Option<Vec<usize>> = numbers.iter().map(|&side| usize::try_from(side).ok()).collect();
    sides.map_or_else(|| because(format!("it names the sides {numbers:?}")), Ok)
}

/// Number of elements of a shape that is not too large.
fn checked(shape: &[usize]) -> Outcome<usize> {
    count(shape).map_or_else(|| because(format!("it meets the shape {shape:?}, which is too large")), Ok)
}

/// Every member of every axis.
fn all(shape: &[usize]) -> Outcome<Vec<Vec<Option<usize>>>> {
    checked(shape)?;
    if shape.iter().any(|&side| side > 1 << 26) {
        return because(format!("it meets the shape {shape:?}, which is too large"));
    }
    Ok(shape.iter().map(|&side| (0..side).map(Some).collect()).collect())
}
