//! Rules for layers: convolutions, pools, normalisations and products of matrices.

use super::args::{Args, Outcome};
use super::elementwise::aligned;
use super::fact::{BatchLayout, Dim, Fact, Fault, Kind, coupled, place, unknown};
use super::rules::unbatched;

/// Rows and columns, and on which of them the pictures lie.
type Matrix = ([Dim; 2], Option<(usize, BatchLayout)>);

impl<'g> Args<'g> {
    /// The first input of a layer that treats every member of its first axis by itself.
    fn layered(&self) -> Result<(&Fact<'g>, &[Dim]), Fault> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        match fact.batch() {
            Some((0, _)) if dims.len() > 1 => Ok((fact, dims)),
            Some(_) => coupled("it takes the axis of the pictures for channels or places"),
            None => unknown("its shape is not followed"),
        }
    }

    /// The same shape, except for the axes from the second on.
    fn layer(&self, rest: impl Iterator<Item = Dim>) -> Outcome<'g> {
        let (fact, dims) = self.layered()?;
        let shape = std::iter::once(dims[0]).chain(rest).collect();
        let Some((axis, layout)) = fact.batch() else { return unknown("its shape is not followed") };
        Ok(vec![Fact::batched(axis, layout, shape)?])
    }

    /// An operator that treats every picture by itself and keeps the shape.
    pub(super) fn of_each_picture(&self) -> Outcome<'g> {
        self.constants(1..self.inputs.len())?;
        let (fact, _) = self.layered()?;
        Ok(vec![fact.other_numbers()])
    }

    pub(super) fn convolution(&self) -> Outcome<'g> {
        self.constants(1..self.inputs.len())?;
        // Scales and zero points of the pictures and of the result are single numbers, those of weights lie on channels.
        let single: &[usize] = match self.node.operator.as_str() {
            "QLinearConv" => &[1, 2, 6, 7],
            "ConvInteger" => &[2],
            _ => &[],
        };
        for &place in single {
            self.single(place)?;
        }
        let (_, dims) = self.layered()?;
        let weight = self.input(if self.node.operator == "QLinearConv" { 3 } else { 1 })?.dims()?;
        if weight.len() != dims.len() {
            return unknown("its weight has another number of axes than the pictures");
        }
        self.layer(std::iter::once(weight[0]).chain(self.windows(&dims[2..], &weight[2..])))
    }

    pub(super) fn transposed_convolution(&self) -> Outcome<'g> {
        self.constants(1..self.inputs.len())?;
        let (_, dims) = self.layered()?;
        let weight = self.input(1)?.dims()?;
        let channels = match (weight.get(1), self.int("group").unwrap_or(1)) {
            (Some(&Dim::Known(channels)), groups) => {
                channels.checked_mul(groups).map_or(Dim::Open, Dim::Known)
            }
            _ => Dim::Open,
        };
        self.layer(std::iter::once(channels).chain(dims[2..].iter().map(|_| Dim::Open)))
    }

    /// The largest value comes with its place in the whole batch, which nothing may use: one output only.
    pub(super) fn pool(&self) -> Outcome<'g> {
        let (_, dims) = self.layered()?;
        let window: Vec<Dim> = match self.ints("kernel_shape") {
            Some(sides) => sides.iter().map(|&side| Dim::Known(side)).collect(),
            None => vec![Dim::Open; dims.len() - 2],
        };
        self.layer(std::iter::once(dims[1]).chain(self.windows(&dims[2..], &window)))
    }

    pub(super) fn global_pool(&self) -> Outcome<'g> {
        let (_, dims) = self.layered()?;
        self.layer(std::iter::once(dims[1]).chain(dims[2..].iter().map(|_| Dim::Known(1))))
    }

    /// How many places a window has along each axis.
    fn windows(&self, dims: &[Dim], window: &[Dim]) -> Vec<Dim> {
        let each = |name, axis: usize, usual| {
            self.ints(name).map_or(Some(usual), |values| values.get(axis).copied())
        };
        let windows = |axis: usize, length: i64, side: i64| -> Option<i64> {
            let stride = each("strides", axis, 1).filter(|&stride| stride > 0)?;
            let dilation = each("dilations", axis, 1)?;
            let (before, after) = match self.text("auto_pad").unwrap_or("NOTSET") {
                "NOTSET" | "" => (each("pads", axis, 0)?, each("pads", axis + dims.len(), 0)?),
                "VALID" => (0, 0),
                "SAME_UPPER" | "SAME_LOWER" => {
                    return Some(length / stride + i64::from(length % stride != 0));
                }
                _ => return None,
            };
            let reach = side.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
            let room = length.checked_add(before)?.checked_add(after)?.checked_sub(reach)?;
            // A window that reaches beyond the end counts by rules that differ between versions.
            let partial = self.int("ceil_mode").unwrap_or(0) != 0 && room % stride != 0;
            if room < 0 || partial {
                return None;
            }
            (room / stride).checked_add(1)
        };
        dims.iter()
            .enumerate()
            .map(|(axis, dim)| match (dim, window.get(axis)) {
                (Dim::Known(length), Some(Dim::Known(side))) => {
                    windows(axis, *length, *side).map_or(Dim::Open, Dim::Known)
                }
                _ => Dim::Open,
            })
            .collect()
    }

    /// In training the mean and the variance are those of the batch.
    pub(super) fn batch_normalization(&self) -> Outcome<'g> {
        let training = match self.operators {
            ..7 => self.int("is_test").unwrap_or(0) == 0,
            7..14 => self.node.outputs.iter().filter(|name| !name.is_empty()).count() > 1,
            _ => self.int("training_mode").unwrap_or(0) != 0,
        };
        if training {
            return coupled("it is in training mode and normalises over the batch");
        }
        self.of_each_picture()
    }

    /// Normalises over the named axis and all that follow.
    pub(super) fn layer_normalization(&self) -> Outcome<'g> {
        self.constants(1..self.inputs.len())?;
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let first = place(self.int("axis").unwrap_or(-1), dims.len())?;
        let Some((batch, layout)) = fact.batch() else { return unknown("its shape is not followed") };
        if batch >= first {
            return coupled("it normalises over the batch");
        }
        for parameter in [1, 2].into_iter().filter_map(|place| self.optional(place)) {
            let shape = parameter.dims()?;
            let there = (batch + shape.len()).checked_sub(dims.len()).map(|place| shape[place]);
            if !matches!(there, None | Some(Dim::Known(1))) {
                return coupled("a constant of it differs from place to place of the batch");
            }
        }
        let statistics = dims.iter().enumerate();
        let statistics =
            statistics.map(|(axis, &dim)| if axis < first { dim } else { Dim::Known(1) }).collect();
        let statistics = Fact::batched(batch, layout, statistics)?;
        Ok(vec![fact.other_numbers(), statistics.clone(), statistics])
    }

    pub(super) fn gemm(&self) -> Outcome<'g> {
        self.product_of_matrices(0, 1, Some(2))
    }

    /// `A B + C` with two axes each, transposed by attributes.
    pub(super) fn product_of_matrices(&self, left: usize, right: usize, sum: Option<usize>) -> Outcome<'g> {
        let facts = || self.inputs.iter().flatten();
        if facts().any(|fact| fact.batch().is_some()) && facts().any(|fact| fact.kind == Kind::Sized) {
            return coupled("it mixes how many pictures there are into their values");
        }
        let turned = |fact: &Fact<'g>, name| -> Result<Matrix, Fault> {
            let &[rows, columns] = fact.dims()? else { return unknown("it takes no matrix of two axes") };
            let turn = self.int(name).unwrap_or(0) != 0;
            let batch = fact.batch().map(|(axis, layout)| (if turn { 1 - axis } else { axis }, layout));
            Ok((if turn { [columns, rows] } else { [rows, columns] }, batch))
        };
        let (left, left_batch) = turned(self.input(left)?, "transA")?;
        let (right, right_batch) = turned(self.input(right)?, "transB")?;
        let shape = [left[0], right[1]];
        let (axis, layout) = match (left_batch, right_batch) {
            (Some((0, layout)), None) => (0, layout),
            (None, Some((1, layout))) => (1, layout),
            (None, None) => return Ok(vec![unbatched(&self.inputs, Some(shape.to_vec()))?]),
            _ => return coupled("it multiplies pictures of the batch with each other"),
        };
        if let Some(sum) = sum.and_then(|place| self.optional(place)) {
            beside(sum, &shape, axis, layout)?;
        }
        Ok(vec![Fact::batched(axis, layout, shape.to_vec())?])
    }

    /// numpy's `matmul`: the last two axes are matrices, the others are broadcast.
    pub(super) fn matrix_product(&self, left: usize, right: usize) -> Outcome<'g> {
        let (left, right) = (self.input(left)?, self.input(right)?);
        let sized = [left, right].iter().any(|fact| fact.kind == Kind::Sized);
        if sized && (left.batch().is_some() || right.batch().is_some()) {
            return coupled("it mixes how many pictures there are into their values");
        }
        let (a, b) = (left.dims()?, right.dims()?);
        if a.len() < 2 || b.is_empty() {
            return unknown("it takes a vector in the place of a matrix");
        }
        // A vector on the right is a matrix of one column that is dropped afterwards.
        let vector = b.len() == 1;
        let column: Vec<Dim> = b.iter().copied().chain(vector.then_some(Dim::Known(1))).collect();
        let b = &column[..];
        let leading = aligned(&[&a[..a.len() - 2], &b[..b.len() - 2]])?;
        let rank = leading.len() + 2;
        let mut shape = leading.clone();
        shape.extend([a[a.len() - 2], b[b.len() - 1]]);
        // Where an axis of an operand lies in the result, if it is not summed over.
        let lies = |axis: usize, operand: &[Dim], summed: usize| match axis {
            axis if axis == summed => coupled("it sums over the batch"),
            axis => Ok(axis + rank - operand.len()),
        };
        let mut found = None;
        for (fact, operand, summed) in [(left, a, a.len() - 1), (right, b, b.len() - 2)] {
            let Some((axis, layout)) = fact.batch() else { continue };
            let here = (lies(axis, operand, summed)?, layout);
            if *found.get_or_insert(here) != here {
                return coupled("it multiplies pictures of the batch with each other");
            }
        }
        let Some((axis, layout)) = found else {
            if vector {
                shape.pop();
            }
            return Ok(vec![unbatched(&self.inputs, Some(shape))?]);
        };
        if axis + 2 < rank {
            for operand in [(left, a), (right, b)] {
                let there = (axis + operand.1.len()).checked_sub(rank).map(|place| operand.1[place]);
                if operand.0.batch().is_none() && !matches!(there, None | Some(Dim::Known(1))) {
                    return coupled("a constant of it differs from place to place of the batch");
                }
            }
        } else if left.batch().is_some() && right.batch().is_some() {
            return coupled("it multiplies pictures of the batch with each other");
        }
        if vector {
            shape.pop();
        }
        Ok(vec![Fact::batched(axis, layout, shape)?])
    }

    /// Sums of products named by letters, without repeated letters in an operand and without `...`.
    pub(super) fn einsum(&self) -> Outcome<'g> {
        let equation: String =
            self.text("equation").unwrap_or_default().chars().filter(|letter| *letter != ' ').collect();
        let Some((left, result)) = equation.split_once("->") else {
            return unknown("its equation leaves the result open");
        };
        let operands: Vec<Vec<char>> = left.split(',').map(|term| term.chars().collect()).collect();
        if operands.len() != self.inputs.len() || equation.contains('.') {
            return unknown("its equation is not followed");
        }
        let mut lengths: Vec<(char, Dim)> = Vec::new();
        let mut batch = None;
        for (place, letters) in operands.iter().enumerate() {
            let fact = self.input(place)?;
            let dims = fact.dims()?;
            if letters.len() != dims.len() || repeats(letters) {
                return unknown("its equation is not followed");
            }
            if fact.kind == Kind::Sized {
                return coupled("it mixes how many pictures there are into their values");
            }
            lengths.extend(letters.iter().copied().zip(dims.iter().copied()));
            let Some((axis, layout)) = fact.batch() else { continue };
            let here = (letters[axis], layout);
            if *batch.get_or_insert(here) != here {
                return coupled("it multiplies pictures of the batch with each other");
            }
        }
        let Some((letter, layout)) = batch else { return unknown("its shape is not followed") };
        for (place, letters) in operands.iter().enumerate() {
            if self.input(place)?.batch().is_none() && letters.contains(&letter) {
                return coupled("a constant of it differs from place to place of the batch");
            }
        }
        let letters: Vec<char> = result.chars().collect();
        if letters.len() > lengths.len() || repeats(&letters) {
            return unknown("its equation is not followed");
        }
        let Some(axis) = letters.iter().position(|other| *other == letter) else {
            return coupled("it sums over the batch");
        };
        let length = |letter: &char| {
            let found = lengths.iter().filter(|(other, _)| other == letter).map(|(_, dim)| *dim);
            // A length of 1 is broadcast.
            found.max_by_key(|dim| *dim != Dim::Known(1)).unwrap_or(Dim::Open)
        };
        Ok(vec![Fact::batched(axis, layout, letters.iter().map(length).collect())?])
    }
}

/// Whether a letter occurs twice.
fn repeats(letters: &[char]) -> bool {
    letters.iter().enumerate().any(|(at, letter)| letters[..at].contains(letter))
}

/// Demands that a summand leaves every picture of the result by itself.
fn beside(sum: &Fact<'_>, shape: &[Dim], axis: usize, layout: BatchLayout) -> Result<(), Fault> {
    let dims = sum.dims()?;
    let there = (axis + dims.len()).checked_sub(shape.len());
    match sum.batch() {
        Some((place, own)) if there == Some(place) && own == layout => Ok(()),
        Some(_) => coupled("it combines pictures in different places of the batch"),
        None if sum.kind == Kind::Constant => match there.map(|place| dims[place]) {
            None | Some(Dim::Known(1)) => Ok(()),
            Some(_) => coupled("a constant of it differs from place to place of the batch"),
        },
        None => coupled("it mixes how many pictures there are into their values"),
    }
}
