//! Rules for operators that repeat numbers, join them or put others between and around them.

use super::args::{Args, Outcome};
use super::content;
use super::elementwise::aligned;
use super::fact::{BatchLayout, Dim, Fact, Kind, coupled, distinct, place, unknown};
use crate::graph::Values;

impl<'g> Args<'g> {
    pub(super) fn expand(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let Some(wanted) = &self.input(1)?.content else {
            return unknown("the shape that it makes is computed in a way that is not followed");
        };
        let shape = aligned(&[dims, wanted])?;
        if let Some((axis, layout)) = fact.batch() {
            let axis = axis + shape.len() - dims.len();
            return Ok(vec![Fact::batched(axis, layout, shape)?]);
        }
        let grown: Vec<(usize, i64)> = shape
            .iter()
            .enumerate()
            .filter_map(|(axis, dim)| if let Dim::Batch(times) = dim { Some((axis, *times)) } else { None })
            .collect();
        match grown[..] {
            [] => Ok(vec![fact.unbatched(Some(shape))]),
            // The same numbers for every picture.
            [(axis, times)] if fact.kind == Kind::Constant => {
                Ok(vec![Fact::batched(axis, BatchLayout::beside(times), shape)?])
            }
            _ => Ok(vec![Fact::sized(None)]),
        }
    }

    pub(super) fn tile(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let Some(times) = &self.input(1)?.content else {
            return unknown("the shape that it makes is computed in a way that is not followed");
        };
        if times.len() != dims.len() {
            return unknown("it repeats another number of axes than there are");
        }
        let shape: Option<Vec<Dim>> =
            dims.iter().zip(times).map(|(&dim, &times)| content::binary("Mul", dim, times)).collect();
        match (fact.batch(), shape) {
            (Some((axis, layout)), Some(shape)) => {
                if times[axis] != Dim::Known(1) {
                    return coupled("it repeats the batch");
                }
                Ok(vec![Fact::batched(axis, layout, shape)?])
            }
            (None, Some(shape)) => match shape.iter().position(|dim| matches!(dim, Dim::Batch(_))) {
                None => Ok(vec![fact.unbatched(Some(shape))]),
                Some(axis) if fact.kind == Kind::Constant && dims[axis] == Dim::Known(1) => {
                    let Dim::Batch(times) = shape[axis] else { return unknown("its shape is not followed") };
                    Ok(vec![Fact::batched(axis, BatchLayout::beside(times), shape)?])
                }
                Some(_) => Ok(vec![Fact::sized(None)]),
            },
            (_, None) => unknown("its shape cannot be followed"),
        }
    }

    pub(super) fn concat(&self) -> Outcome<'g> {
        let facts: Vec<&Fact<'g>> = self.inputs.iter().flatten().collect();
        let Some(first) = facts.first() else { return unknown("it takes nothing") };
        let rank = first.dims()?.len();
        let axis = place(self.int("axis").unwrap_or(1), rank)?;
        let contents: Option<Vec<&[Dim]>> = facts.iter().map(|fact| fact.content.as_deref()).collect();
        if let (Some(contents), 1) = (contents, rank) {
            let all: Vec<Dim> = contents.concat();
            let shape = vec![Dim::Known(all.len() as i64)];
            return Ok(vec![Fact::numbers(all, Some(shape))]);
        }
        let shapes = facts.iter().map(|fact| fact.dims()).collect::<Result<Vec<_>, _>>()?;
        if shapes.iter().any(|shape| shape.len() != rank) {
            return unknown("its inputs have different numbers of axes");
        }
        let lengths: Vec<Dim> = shapes.iter().map(|shape| shape[axis]).collect();
        let length =
            lengths.iter().copied().try_fold(Dim::Known(0), |sum, dim| content::binary("Add", sum, dim));
        let Some(batch) = facts.iter().find_map(|fact| fact.batch()) else {
            let sized = facts.iter().any(|fact| fact.kind == Kind::Sized);
            let mut shape = shapes[0].to_vec();
            shape[axis] = length.unwrap_or(Dim::Open);
            return Ok(vec![if sized { Fact::sized(None) } else { Fact::constant(Some(shape)) }]);
        };
        if facts.iter().any(|fact| fact.batch() != Some(batch)) {
            return coupled("it joins pictures with values that are not laid out as they are");
        }
        if batch.0 == axis {
            return coupled("it joins batches");
        }
        let Some(length) = length else { return unknown("its shape cannot be followed") };
        let mut shape = shapes[0].to_vec();
        shape[axis] = length;
        Ok(vec![Fact::batched(batch.0, batch.1, shape)?])
    }

    pub(super) fn pad(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        self.constants(2..3)?;
        self.said_once("pads", 1)?;
        self.said_once("paddings", 1)?;
        let widths = match (self.ints("pads").or(self.ints("paddings")), self.optional(1)) {
            (Some(widths), _) => widths.to_vec(),
            (None, Some(widths)) => widths.known_numbers()?,
            (None, None) => return unknown("it has no widths"),
        };
        let axes: Vec<usize> = match self.optional(3) {
            Some(axes) => {
                let axes = axes.known_numbers()?;
                distinct(&axes, dims.len())?
            }
            None => (0..dims.len()).collect(),
        };
        if widths.len() != 2 * axes.len() {
            return unknown("it has no width for the start and the end of every axis");
        }
        let mut shape = dims.to_vec();
        for (place, &axis) in axes.iter().enumerate() {
            let (before, after) = (widths[place], widths[place + axes.len()]);
            if fact.batch().is_some_and(|(batch, _)| batch == axis) {
                if (before, after) != (0, 0) {
                    return coupled("it pads the batch");
                }
                continue;
            }
            let width = before.checked_add(after).map_or(Dim::Open, Dim::Known);
            shape[axis] = content::binary("Add", shape[axis], width).unwrap_or(Dim::Open);
        }
        match fact.batch() {
            Some((axis, layout)) => Ok(vec![Fact::batched(axis, layout, shape)?]),
            None => Ok(vec![fact.unbatched(Some(shape))]),
        }
    }

    /// Enlarges or shrinks along axes; along that of the pictures by a factor of exactly 1.
    pub(super) fn resize(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let rank = dims.len();
        let Some((batch, layout)) = fact.batch() else { return unknown("its shape is not followed") };
        // Along an axis that keeps its length these leave every place where it is.
        let modes = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"];
        if self.text("coordinate_transformation_mode").is_some_and(|mode| !modes.contains(&mode)) {
            return unknown("what it does along the axis of the pictures is not followed");
        }
        // ONNX 10 and `Upsample` take the scales second, later versions third and the sizes fourth.
        let early = self.operators < 11 || self.node.operator == "Upsample";
        let (scales, sizes) =
            if early { (self.optional(1), None) } else { (self.optional(2), self.optional(3)) };
        let axes: Vec<usize> = match self.ints("axes") {
            Some(axes) => distinct(axes, rank)?,
            None => (0..rank).collect(),
        };
        // Old exporters leave an input out by a list of nothing.
        let given = |fact: &&Fact<'g>| fact.shape.as_deref() != Some(&[Dim::Known(0)]);
        let (scales, sizes) = (scales.filter(given), sizes.filter(given));
        if usize::from(self.floats("scales").is_some())
            + usize::from(scales.is_some())
            + usize::from(sizes.is_some())
            != 1
        {
            return unknown("it has not one statement of its sizes");
        }
        let mut shape = dims.to_vec();
        let scales: Option<Vec<f64>> = match (self.floats("scales"), scales) {
            (Some(scales), _) => Some(scales.iter().copied().map(f64::from).collect()),
            (None, Some(fact)) => match fact.tensor.and_then(|tensor| tensor.values().ok()) {
                Some(Values::Single(scales)) => Some(scales.into_iter().map(f64::from).collect()),
                _ => None,
            },
            (None, None) => None,
        };
        match (sizes.map(|sizes| &sizes.content), scales) {
            (Some(Some(sizes)), _) if sizes.len() == axes.len() => {
                for (&axis, &size) in axes.iter().zip(sizes) {
                    if axis == batch && size != dims[axis] {
                        return coupled("it resizes the batch");
                    }
                    shape[axis] = size;
                }
                // Other policies choose one scale for all axes.
                if self.text("keep_aspect_ratio_policy").is_some_and(|policy| policy != "stretch") {
                    if axes.contains(&batch) {
                        return unknown("it chooses one scale for all axes");
                    }
                    axes.iter().for_each(|&axis| shape[axis] = Dim::Open);
                }
            }
            (_, Some(scales)) if scales.len() == axes.len() => {
                for (&axis, &scale) in axes.iter().zip(&scales) {
                    if axis == batch {
                        if scale != 1.0 {
                            return coupled("it resizes the batch");
                        }
                        continue;
                    }
                    shape[axis] = match shape[axis] {
                        Dim::Known(length) if scale.is_finite() && (0.0..1e6).contains(&scale) => {
                            Dim::Known((length as f64 * scale).floor() as i64)
                        }
                        _ => Dim::Open,
                    };
                }
            }
            _ => return unknown("its sizes are computed in a way that is not followed"),
        }
        Ok(vec![Fact::batched(batch, layout, shape)?])
    }
}
