//! Rules for operators that move numbers without changing them.

use super::content;
use super::fact::{BatchLayout, Dim, Fact, Fault, Kind, MOST_AXES, coupled, distinct, place, unknown};
use super::rules::{Args, Outcome, aligned};
use crate::graph::Values;

impl<'g> Args<'g> {
    pub(super) fn transpose(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let rank = dims.len();
        let order: Vec<usize> = match self.ints("perm") {
            Some(order) => order.iter().map(|&axis| place(axis, rank)).collect::<Result<_, _>>()?,
            None => (0..rank).rev().collect(),
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..rank) {
            return unknown("its order of axes is none");
        }
        let shape: Vec<Dim> = order.iter().map(|&axis| dims[axis]).collect();
        match fact.batch() {
            Some((axis, layout)) => {
                let axis = order.iter().position(|&from| from == axis).unwrap_or_default();
                Ok(vec![Fact::batched(axis, layout, shape)?])
            }
            None => {
                let content = fact.content.as_ref().and_then(|content| {
                    let sides = sides(dims)?;
                    let apart = strides(&sides);
                    let along: Vec<(usize, Vec<usize>)> =
                        order.iter().map(|&axis| (apart[axis], (0..sides[axis]).collect())).collect();
                    picked(content, &along)
                });
                Ok(vec![Fact { content, ..fact.unbatched(Some(shape)) }])
            }
        }
    }

    /// The same numbers in the same order under another shape, of a value that is not batched.
    fn renamed(&self, fact: &Fact<'g>, shape: Vec<Dim>) -> Fact<'g> {
        let content = fact.content.clone();
        let result = fact.unbatched(Some(shape));
        if result.shape.is_some() { Fact { content, ..result } } else { result }
    }

    /// The numbers stay in their order and get another shape.
    ///
    /// With `P` places in the axes before the pictures' own and before them on it, and `I` after them, picture `b` of `B`
    /// holds the numbers `(p·B + b)·I + q` for `p < P`, `q < I`. On an axis of the new shape that has `o` of those `P`
    /// and a length of `o·B·m` they are places of the same kind; what is left of `I` then lies on the axes after it.
    fn reshaped(&self, fact: &Fact<'g>, shape: Vec<Dim>) -> Outcome<'g> {
        let Some((axis, layout)) = fact.batch() else {
            return Ok(vec![self.renamed(fact, shape)]);
        };
        let before = match content::product(&fact.dims()?[..axis]) {
            Some((before, 0)) => before.checked_mul(layout.outer),
            _ => None,
        };
        let Some(before) = before else { return unknown("it reshapes a value of unknown size") };
        let multiple = |dim: Dim| match (dim, self.fixed) {
            (Dim::Batch(times), None) if times > 0 => Some(times),
            (Dim::Known(length), Some(batch)) if length > 0 && length % batch == 0 => Some(length / batch),
            _ => None,
        };
        let mut passed = 1_i64;
        for (axis, &dim) in shape.iter().enumerate() {
            if before.checked_rem(passed) == Some(0)
                && let Some(times) = multiple(dim)
                && let outer = before / passed
                && times.checked_rem(outer) == Some(0)
            {
                return Ok(vec![Fact::batched(axis, BatchLayout { outer, inner: times / outer }, shape)?]);
            }
            passed = match dim {
                Dim::Known(length) => passed.saturating_mul(length),
                Dim::Batch(_) | Dim::Open => break,
            };
        }
        coupled("it reshapes the batch so that pictures do not stay by themselves")
    }

    pub(super) fn reshape(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        self.said_once("shape", 1)?;
        let own: Vec<Dim>;
        let wanted: &[Dim] = match (self.ints("shape"), self.optional(1)) {
            (Some(shape), None) => {
                own = shape.iter().map(|&side| Dim::Known(side)).collect();
                &own
            }
            (_, Some(shape)) => match &shape.content {
                Some(content) => content,
                None => return unknown("the shape that it makes is computed in a way that is not followed"),
            },
            (None, None) => return unknown("it has no shape"),
        };
        let dims = fact.dims()?;
        let copies = self.int("allowzero").unwrap_or(0) == 0;
        let mut shape = Vec::with_capacity(wanted.len());
        let mut open = None;
        for (axis, &dim) in wanted.iter().enumerate() {
            shape.push(match dim {
                Dim::Known(0) if copies => *dims.get(axis).ok_or_else(|| {
                    Fault::Unknown("it copies the length of an axis that is not there".to_owned())
                })?,
                Dim::Known(-1) if open.is_none() => {
                    open = Some(axis);
                    Dim::Known(1)
                }
                Dim::Known(side) if side < 0 => return unknown("it makes an axis of negative length"),
                dim => dim,
            });
        }
        if let Some(axis) = open {
            shape[axis] = rest(dims, &shape)?;
        }
        self.reshaped(fact, shape)
    }

    pub(super) fn flatten(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let axis = self.int("axis").unwrap_or(1);
        let axis = if axis == dims.len() as i64 { dims.len() } else { place(axis, dims.len())? };
        let (left, right) = dims.split_at(axis);
        let [Some(left), Some(right)] = [left, right].map(content::length) else {
            return unknown("it flattens a value of unknown size");
        };
        self.reshaped(fact, vec![left, right])
    }

    /// Axes from an attribute or an input; none if neither is there.
    fn axes(&self) -> Result<Option<Vec<i64>>, Fault> {
        self.said_once("axes", 1)?;
        match (self.ints("axes"), self.optional(1)) {
            (Some(axes), _) => Ok(Some(axes.to_vec())),
            (None, Some(axes)) => axes.known_numbers().map(Some),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn squeeze(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let gone: Vec<usize> = match self.axes()? {
            Some(axes) => distinct(&axes, dims.len())?,
            // With a single picture its axis would go as well.
            None if fact.batch().is_some() => return unknown("it drops whatever axes have length 1"),
            None => (0..dims.len()).filter(|&axis| dims[axis] == Dim::Known(1)).collect(),
        };
        let kept = (0..dims.len()).filter(|axis| !gone.contains(axis));
        let shape: Vec<Dim> = kept.map(|axis| dims[axis]).collect();
        match fact.batch() {
            Some((axis, _)) if gone.contains(&axis) => unknown("it drops the axis of the pictures"),
            Some((axis, layout)) => {
                let axis = axis - gone.iter().filter(|&&other| other < axis).count();
                Ok(vec![Fact::batched(axis, layout, shape)?])
            }
            None => Ok(vec![self.renamed(fact, shape)]),
        }
    }

    pub(super) fn unsqueeze(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let Some(axes) = self.axes()? else { return unknown("it names no axes") };
        let rank = dims.len() + axes.len();
        if rank > MOST_AXES {
            return unknown("it makes too many axes");
        }
        let new = distinct(&axes, rank)?;
        let mut old = dims.iter().copied().enumerate();
        let (mut shape, mut batch) = (Vec::with_capacity(rank), None);
        for axis in 0..rank {
            if new.contains(&axis) {
                shape.push(Dim::Known(1));
                continue;
            }
            let Some((from, dim)) = old.next() else { return unknown("it names an axis twice") };
            if let Some((own, layout)) = fact.batch()
                && own == from
            {
                batch = Some((axis, layout));
            }
            shape.push(dim);
        }
        match batch {
            Some((axis, layout)) => Ok(vec![Fact::batched(axis, layout, shape)?]),
            None => Ok(vec![self.renamed(fact, shape)]),
        }
    }

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

    pub(super) fn split(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let axis = self.int("axis").unwrap_or(0);
        self.apart(fact, &[axis], "it splits the batch")?;
        let axis = place(axis, dims.len())?;
        let parts = self.node.outputs.len();
        self.said_once("split", 1)?;
        if self.int("num_outputs").is_some_and(|wanted| wanted != parts as i64) {
            return unknown("it makes another number of parts than it has outputs");
        }
        let own = self.ints("split").map(<[i64]>::to_vec);
        let lengths: Vec<Dim> = match (own, self.optional(1)) {
            (Some(lengths), _) => lengths.into_iter().map(Dim::Known).collect(),
            (None, Some(lengths)) => match (&lengths.content, lengths.kind) {
                (Some(lengths), _) => lengths.clone(),
                (None, Kind::Constant) => vec![Dim::Open; parts],
                (None, Kind::Sized | Kind::Batched { .. }) => return unknown("its parts cannot be followed"),
            },
            (None, None) => {
                let each = content::binary("Div", dims[axis], Dim::Known(parts as i64));
                vec![each.unwrap_or(Dim::Open); parts]
            }
        };
        if lengths.len() != parts {
            return unknown("it makes another number of parts than it has outputs");
        }
        // After a part of unknown length nobody knows where the next begins.
        let known = lengths.iter().all(|length| matches!(length, Dim::Known(_)));
        let content = fact.content.as_deref().filter(|_| dims.len() == 1 && known);
        let mut start = 0_usize;
        lengths
            .into_iter()
            .map(|length| {
                let mut shape = dims.to_vec();
                shape[axis] = length;
                if let (Some(content), Dim::Known(length)) = (content, length) {
                    let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
                    let part = content.get(start..end);
                    start = end;
                    return match part {
                        Some(part) => Ok(Fact::numbers(part.to_vec(), Some(shape))),
                        None => unknown("its parts cannot be followed"),
                    };
                }
                match fact.batch() {
                    Some((axis, layout)) => Fact::batched(axis, layout, shape),
                    None => Ok(fact.unbatched(Some(shape))),
                }
            })
            .collect()
    }

    pub(super) fn slice(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        for (name, place) in [("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4)] {
            self.said_once(name, place)?;
        }
        let list = |name: &str, place: usize| -> Result<Option<Vec<Dim>>, Fault> {
            match (self.ints(name), self.optional(place)) {
                (Some(numbers), _) => Ok(Some(numbers.iter().map(|&number| Dim::Known(number)).collect())),
                (None, Some(fact)) => match (&fact.content, fact.kind) {
                    (Some(content), _) => Ok(Some(content.clone())),
                    (None, Kind::Constant) => Ok(None),
                    (None, Kind::Sized | Kind::Batched { .. }) => unknown("its bounds cannot be followed"),
                },
                (None, None) => Ok(None),
            }
        };
        let (starts, ends, steps) = (list("starts", 1)?, list("ends", 2)?, list("steps", 4)?);
        let axes: Vec<i64> = match (self.ints("axes"), self.optional(3)) {
            (Some(axes), _) => axes.to_vec(),
            (None, Some(axes)) => axes.known_numbers()?,
            (None, None) => match &starts {
                Some(starts) => (0..starts.len() as i64).collect(),
                None => return unknown("its axes cannot be followed"),
            },
        };
        let axes = distinct(&axes, dims.len())?;
        let steps_given = steps.is_some() || self.optional(4).is_some();
        let at = |list: &Option<Vec<Dim>>, place: usize| {
            list.as_ref().and_then(|list| list.get(place).copied()).unwrap_or(Dim::Open)
        };
        let mut shape = dims.to_vec();
        let mut chosen: Vec<Option<Steps>> = dims.iter().map(|_| None).collect();
        for (place, &axis) in axes.iter().enumerate() {
            let step = if steps_given { at(&steps, place) } else { Dim::Known(1) };
            let (start, end) = (at(&starts, place), at(&ends, place));
            let whole = start == Dim::Known(0)
                && step == Dim::Known(1)
                && (end == dims[axis] && end != Dim::Open
                    || matches!(end, Dim::Known(end) if end >= i64::from(i32::MAX)));
            if whole {
                continue;
            }
            if fact.batch().is_some_and(|(batch, _)| batch == axis) {
                return coupled("it picks pictures by their places in the batch");
            }
            let bounds = match (dims[axis], start, end, step) {
                (Dim::Known(length), Dim::Known(start), Dim::Known(end), Dim::Known(step)) => {
                    Some(Steps::new(length, start, end, step)?)
                }
                _ => None,
            };
            if [start, end, step].iter().any(|dim| matches!(dim, Dim::Batch(_))) {
                return unknown("its bounds cannot be followed");
            }
            shape[axis] = bounds.as_ref().map_or(Dim::Open, |bounds| Dim::Known(bounds.count));
            chosen[axis] = bounds;
        }
        match fact.batch() {
            Some((axis, layout)) => Ok(vec![Fact::batched(axis, layout, shape)?]),
            None => {
                let content = fact.content.as_ref().and_then(|content| {
                    let sides = sides(dims).filter(|_| !shape.contains(&Dim::Open))?;
                    let apart = strides(&sides);
                    let along: Option<Vec<(usize, Vec<usize>)>> = chosen
                        .iter()
                        .enumerate()
                        .map(|(axis, bounds)| match bounds {
                            Some(bounds) => Some((apart[axis], bounds.places().collect::<Option<_>>()?)),
                            None => Some((apart[axis], (0..sides[axis]).collect())),
                        })
                        .collect();
                    picked(content, &along?)
                });
                match content {
                    Some(content) => Ok(vec![Fact::numbers(content, Some(shape))]),
                    None => Ok(vec![fact.unbatched(Some(shape))]),
                }
            }
        }
    }

    pub(super) fn gather(&self) -> Outcome<'g> {
        let (source, picks) = (self.input(0)?, self.input(1)?);
        let dims = source.dims()?;
        let axis = place(self.int("axis").unwrap_or(0), dims.len())?;
        let wanted = picks.dims()?;
        if let (Some(content), 1) = (&source.content, dims.len())
            && let Ok(numbers) = picks.known_numbers()
        {
            let count = content.len() as i64;
            let picked: Option<Vec<Dim>> = numbers
                .iter()
                .map(|&number| if number < 0 { number.saturating_add(count) } else { number })
                .map(|number| usize::try_from(number).ok().and_then(|number| content.get(number).copied()))
                .collect();
            return match picked {
                Some(picked) => Ok(vec![Fact::numbers(picked, Some(wanted.to_vec()))]),
                None => unknown("it picks beyond the end"),
            };
        }
        let shape: Vec<Dim> = dims[..axis].iter().chain(wanted).chain(&dims[axis + 1..]).copied().collect();
        match (source.batch(), picks.batch()) {
            (Some((batch, _)), None) if batch == axis => {
                coupled("it picks pictures by their places in the batch")
            }
            (Some((batch, layout)), None) => {
                if picks.kind == Kind::Sized {
                    return coupled("it picks by how many pictures there are");
                }
                let batch = if batch < axis { batch } else { batch + wanted.len() - 1 };
                Ok(vec![Fact::batched(batch, layout, shape)?])
            }
            (None, Some((batch, layout))) if source.kind == Kind::Constant => {
                Ok(vec![Fact::batched(axis + batch, layout, shape)?])
            }
            (None, Some(_)) => coupled("it picks from a value that depends on how many pictures there are"),
            (Some(_), Some(_)) => unknown("it picks with the pictures from the pictures"),
            (None, None) => {
                let sized = source.kind == Kind::Sized || picks.kind == Kind::Sized;
                Ok(vec![if sized { Fact::sized(None) } else { Fact::constant(Some(shape)) }])
            }
        }
    }

    pub(super) fn gather_elements(&self) -> Outcome<'g> {
        let (source, picks) = (self.input(0)?, self.input(1)?);
        let axis = self.int("axis").unwrap_or(0);
        self.apart(source, &[axis], "it picks pictures by their places in the batch")?;
        match (source.batch(), picks.batch()) {
            (Some(own), Some(other)) if own == other => Ok(vec![picks.other_numbers()]),
            _ => unknown("it picks with values that are not laid out as the pictures are"),
        }
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

    pub(super) fn depth_to_space(&self, spread: bool) -> Outcome<'g> {
        let fact = self.input(0)?;
        let &[first, channels, height, width] = fact.dims()? else {
            return unknown("it takes no value of four axes");
        };
        let Some((batch, layout)) = fact.batch() else { return unknown("its shape is not followed") };
        if batch != 0 {
            return coupled("it takes the axis of the pictures for channels or places");
        }
        let block = self.int("blocksize").unwrap_or(1);
        let area = block.checked_mul(block).map_or(Dim::Open, Dim::Known);
        let change = |dim, operator: &str, by| content::binary(operator, dim, by).unwrap_or(Dim::Open);
        let (fewer, more) = if spread { ("Div", "Mul") } else { ("Mul", "Div") };
        let block = Dim::Known(block);
        let shape = vec![
            first,
            change(channels, fewer, area),
            change(height, more, block),
            change(width, more, block),
        ];
        Ok(vec![Fact::batched(batch, layout, shape)?])
    }
}

/// The lengths of a shape that is known.
fn sides(dims: &[Dim]) -> Option<Vec<usize>> {
    let side = |dim: &Dim| if let Dim::Known(side) = dim { usize::try_from(*side).ok() } else { None };
    dims.iter().map(side).collect()
}

/// How far apart neighbours along each axis lie.
fn strides(sides: &[usize]) -> Vec<usize> {
    let mut steps = vec![1_usize; sides.len()];
    for axis in (0..sides.len().saturating_sub(1)).rev() {
        steps[axis] = steps[axis + 1].saturating_mul(sides[axis + 1]);
    }
    steps
}

/// The numbers at chosen places along axes, given with how far apart neighbours lie, the last axis running fastest.
fn picked(content: &[Dim], along: &[(usize, Vec<usize>)]) -> Option<Vec<Dim>> {
    let mut offsets = vec![0_usize];
    for (step, places) in along {
        if offsets.len().saturating_mul(places.len()) > content.len() {
            return None;
        }
        offsets = offsets
            .iter()
            .flat_map(|offset| {
                places.iter().map(move |place| offset.saturating_add(step.saturating_mul(*place)))
            })
            .collect();
    }
    offsets.into_iter().map(|offset| content.get(offset).copied()).collect()
}

/// The length that is left for one axis of a new shape, in which it counts as 1.
fn rest(old: &[Dim], new: &[Dim]) -> Result<Dim, Fault> {
    let unfollowed = || Fault::Unknown("it reshapes a value of unknown size".to_owned());
    match (content::product(old), content::product(new)) {
        (Some((total, batches)), Some((taken, taken_batches))) => {
            let length = total.checked_rem(taken).filter(|&left| left == 0).map(|_| total / taken);
            match (length, batches.checked_sub(taken_batches)) {
                (Some(length), Some(0)) => Ok(Dim::Known(length)),
                (Some(length), Some(1)) => Ok(Dim::Batch(length)),
                _ => Err(unfollowed()),
            }
        }
        // An unknown length is one that the number of pictures has no part in, so theirs must be taken already.
        _ => {
            let grows = |dims: &[Dim]| dims.iter().filter(|dim| matches!(dim, Dim::Batch(_))).count();
            if grows(old) == grows(new) { Ok(Dim::Open) } else { Err(unfollowed()) }
        }
    }
}

/// The places that a slice takes, by the rules of Python.
struct Steps {
    start: i64,
    step: i64,
    count: i64,
}

impl Steps {
    fn new(length: i64, start: i64, end: i64, step: i64) -> Result<Self, Fault> {
        if length < 0 {
            return unknown("it takes a value of unknown size");
        }
        let from_end = |bound: i64| if bound < 0 { bound.saturating_add(length) } else { bound };
        let (start, end) = (from_end(start), from_end(end));
        let (start, span) = match step {
            0 => return unknown("its step is 0"),
            1.. => {
                let start = start.clamp(0, length);
                (start, end.clamp(0, length) - start)
            }
            _ => {
                let start = start.clamp(-1, length - 1);
                (start, start - end.clamp(-1, length - 1))
            }
        };
        let step_size = step.checked_abs().ok_or_else(|| Fault::Unknown("its step overflows".to_owned()))?;
        let count = if span > 0 { span / step_size + i64::from(span % step_size != 0) } else { 0 };
        Ok(Self { start, step, count })
    }

    fn places(&self) -> impl Iterator<Item = Option<usize>> {
        let (start, step) = (self.start, self.step);
        (0..self.count).map(move |place| {
            let place = place.checked_mul(step).and_then(|offset| start.checked_add(offset))?;
            usize::try_from(place).ok()
        })
    }
}
