//! Rules for operators that give the same numbers another shape.

use super::args::{Args, Outcome};
use super::content::{self, picked, sides, strides};
use super::fact::{BatchLayout, Dim, Fact, Fault, MOST_AXES, coupled, distinct, place, unknown};

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
