//! Operator by operator: how much faster than its input an output can move.
//!
//! A rule may be wrong on one side only. Where it is not certain, it says so, and there is no bound.

use std::rc::Rc;

use super::attributes::{float, int, ints, text, without};
use super::constant::{Constant, Numbers};
use super::norms::{self, Kernel};
use super::pointwise::{dynamic, length};
use super::shapes::{Windows, axis, elements, reshaped, sides};
use super::upwards::{add, div, mul, root};
use super::{Fact, Fault, Step, Value, no};
use crate::graph::Node;

/// A node with what is known about its inputs.
pub(super) struct Rule<'g, 'w> {
    pub(super) node: &'g Node,
    pub(super) inputs: Vec<Option<Fact>>,
    pub(super) operators: i64,
    pub(super) wholes: &'w mut usize,
}

pub(super) type Outcome = Result<Vec<Fact>, Fault>;

impl Rule<'_, '_> {
    /// Facts about the outputs, in order.
    pub(super) fn apply(&mut self) -> Outcome {
        match self.node.operator.as_str() {
            "Constant" => Ok(vec![Fact::Constant(Rc::new(Constant::of_node(self.node)?))]),
            "Identity" => Ok(vec![self.fact(0)?.clone()]),
            "Conv" => self.convolution(),
            "ConvTranspose" => no(
                "a transposed convolution is understood only as the end of a residual layer, x − Kᵀ(D relu(Kx + b))",
            ),
            "Gemm" => self.gemm(),
            "MatMul" => self.product(),
            "Relu" | "Abs" | "Neg" => self.exact(),
            "LeakyRelu" => self.leaky_relu(),
            "Clip" => self.clip(),
            "Max" | "Min" => self.extreme(),
            "Add" | "Sub" | "Sum" => self.sum(),
            "Mul" | "Div" => self.scale(),
            "AveragePool" => self.average_pool(),
            "GlobalAveragePool" => self.global_average_pool(),
            "MaxPool" => self.max_pool(),
            "Reshape" => self.reshape(),
            "Flatten" => self.flatten(),
            "Squeeze" => self.squeeze(),
            "Unsqueeze" => self.unsqueeze(),
            "Transpose" => self.transpose(),
            "SpaceToDepth" => self.space_to_depth(),
            "DepthToSpace" => self.depth_to_space(),
            "Pad" => self.pad(),
            "Concat" => self.concat(),
            "Split" => self.split(),
            "Slice" => self.slice(),
            "Gather" => self.gather(),
            "TopK" => self.sort(),
            "BatchNormalization" => no("normalisation was left in; fold it into the convolution before it"),
            "LpNormalization" => no("it scales to a fixed length, which is as steep as one likes near zero"),
            _ => no("nothing is known about how fast it moves"),
        }
    }

    pub(super) fn fact(&self, place: usize) -> Result<&Fact, Fault> {
        let fact = self.inputs.get(place).and_then(Option::as_ref);
        fact.ok_or_else(|| Fault(format!("its input {place} was left out")))
    }

    pub(super) fn value(&self, place: usize) -> Result<&Value, Fault> {
        match self.fact(place)? {
            Fact::Dynamic(value) => Ok(value),
            Fact::Constant(_) => no("it computes with constants only, which is not followed"),
        }
    }

    pub(super) fn constant(&self, place: usize) -> Result<&Constant, Fault> {
        match self.fact(place)? {
            Fact::Constant(constant) => Ok(constant),
            Fact::Dynamic(_) => no(format!("its input {place} depends on the picture, wanted a constant")),
        }
    }

    pub(super) fn optional_constant(&self, place: usize) -> Result<Option<&Constant>, Fault> {
        match self.inputs.get(place).and_then(Option::as_ref) {
            Some(_) => self.constant(place).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn constant_result(&self) -> Outcome {
        no("it computes with constants only, which is not followed")
    }

    /// Integers of an attribute, or of the input that took its place.
    fn listed(&self, attribute: &str, input: usize) -> Result<Option<Vec<i64>>, Fault> {
        match (ints(self.node, attribute)?, self.optional_constant(input)?) {
            (Some(_), Some(_)) => no("an attribute and an input of it say the same thing"),
            (Some(list), None) => Ok(Some(list.to_vec())),
            (None, Some(constant)) => Ok(Some(constant.wholes()?.to_vec())),
            (None, None) => Ok(None),
        }
    }

    fn convolution(&self) -> Outcome {
        let value = self.value(0)?;
        let (kernel, windows, output) = convolution(self.node, value, self.constant(1)?)?;
        let positions = (output[2] * output[3]) as f64;
        let bias = match self.optional_constant(2)? {
            Some(bias) if bias.reals()?.len() == kernel.outputs => {
                mul(length(bias.reals()?), root(positions))
            }
            Some(_) => return no("its bias does not have a number for each channel"),
            None => 0.0,
        };
        let step = Step {
            factor: norms::convolution(&kernel, &windows),
            offset: bias,
            terms: kernel.terms() + 1,
            spread: norms::absolute(&kernel),
        };
        Ok(vec![dynamic(value.after(&step, output))])
    }

    /// `A B + C` with the picture on the left.
    fn gemm(&self) -> Outcome {
        let value = self.value(0)?;
        if int(self.node, "transA", 0)? != 0 {
            return no("it transposes what depends on the picture");
        }
        let (alpha, beta) = (float(self.node, "alpha", 1.0)?.abs(), float(self.node, "beta", 1.0)?.abs());
        let matrix = matrix(self.constant(1)?, int(self.node, "transB", 0)? == 0)?;
        let [1, columns] = value.shape[..] else { return no("it takes more than one row per picture") };
        if columns != matrix.inputs {
            return no("its matrix does not fit what it takes");
        }
        let offset = match self.optional_constant(2)? {
            Some(shift) => {
                let repeats = match shift.reals()?.len() {
                    1 => matrix.outputs,
                    count if count == matrix.outputs => 1,
                    _ => return no("its bias does not have a number for each output"),
                };
                mul(beta, mul(length(shift.reals()?), root(repeats as f64)))
            }
            None => 0.0,
        };
        let step = Step {
            factor: mul(alpha, norms::dense(&matrix)),
            offset,
            terms: matrix.inputs + 3,
            spread: mul(alpha, norms::absolute(&matrix)),
        };
        Ok(vec![dynamic(value.after(&step, vec![1, matrix.outputs]))])
    }

    /// A constant matrix on either side.
    fn product(&self) -> Outcome {
        let (value, constant, left) = match (self.fact(0)?, self.fact(1)?) {
            (Fact::Dynamic(value), Fact::Constant(constant)) => (value, constant, false),
            (Fact::Constant(constant), Fact::Dynamic(value)) => (value, constant, true),
            (Fact::Constant(_), Fact::Constant(_)) => return self.constant_result(),
            (Fact::Dynamic(_), Fact::Dynamic(_)) => {
                return no("it multiplies two values that depend on the picture");
            }
        };
        let matrix = matrix(constant, !left)?;
        let mut shape = value.shape.clone();
        let rank = shape.len();
        if rank < 2 {
            return no("it takes a vector in the place of a matrix");
        }
        let summed = if left { rank - 2 } else { rank - 1 };
        if shape[summed] != matrix.inputs {
            return no("its matrix does not fit what it takes");
        }
        shape[summed] = matrix.outputs;
        let step = Step {
            factor: norms::dense(&matrix),
            offset: 0.0,
            terms: matrix.inputs,
            spread: norms::absolute(&matrix),
        };
        Ok(vec![dynamic(value.after(&step, shape))])
    }

    /// A convolution of each channel with one over the window's size.
    fn average_pool(&self) -> Outcome {
        let value = self.value(0)?;
        let windows = Windows::of_pool(self.node)?;
        if windows.pads != [0; 4] {
            return no("it averages over padding");
        }
        let [batch, channels, height, width] = sides(&value.shape)?;
        let count = windows.count([height, width])?;
        let size = windows.kernel[0] * windows.kernel[1];
        // One channel stands for all of them.
        let weight = div(1.0, size as f64);
        let kernel =
            Kernel { outputs: 1, inputs: 1, groups: 1, window: windows.kernel, weights: vec![weight; size] };
        let factor = norms::convolution(&kernel, &windows);
        let step = Step { factor, offset: 0.0, terms: size + 2, spread: norms::absolute(&kernel) };
        Ok(vec![dynamic(value.after(&step, vec![batch, channels, count[0], count[1]]))])
    }

    fn global_average_pool(&self) -> Outcome {
        let value = self.value(0)?;
        let [batch, channels, height, width] = sides(&value.shape)?;
        let factor = div(1.0, root((height * width) as f64).next_down().next_down().max(1.0));
        let step = Step { factor, offset: 0.0, terms: height * width + 2, spread: factor };
        Ok(vec![dynamic(value.after(&step, vec![batch, channels, 1, 1]))])
    }

    /// The largest of numbers that no other window looks at.
    fn max_pool(&self) -> Outcome {
        let value = self.value(0)?;
        let windows = Windows::of_pool(self.node)?;
        let apart = windows.kernel[0] <= windows.strides[0] && windows.kernel[1] <= windows.strides[1];
        if !apart || windows.pads != [0; 4] || windows.dilations != [1; 2] || self.node.outputs.len() > 1 {
            return no("its windows overlap or are padded");
        }
        let [batch, channels, height, width] = sides(&value.shape)?;
        let count = windows.count([height, width])?;
        Ok(vec![dynamic(value.moved(vec![batch, channels, count[0], count[1]]))])
    }

    fn reshape(&self) -> Outcome {
        let value = self.value(0)?;
        let Some(to) = self.listed("shape", 1)? else { return no("it does not say its new shape") };
        let shape = reshaped(&value.shape, &to, int(self.node, "allowzero", 0)? != 0)?;
        Ok(vec![dynamic(value.moved(shape))])
    }

    fn flatten(&self) -> Outcome {
        let value = self.value(0)?;
        let rank = value.shape.len();
        let at = match int(self.node, "axis", 1)? {
            end if end == rank as i64 => rank,
            other => axis(other, rank)?,
        };
        let (rows, columns) = value.shape.split_at(at);
        Ok(vec![dynamic(value.moved(vec![rows.iter().product(), columns.iter().product()]))])
    }

    fn squeeze(&self) -> Outcome {
        let value = self.value(0)?;
        let Some(axes) = self.listed("axes", 1)? else { return no("it does not name its axes") };
        let mut places = Vec::new();
        for named in axes {
            places.push(axis(named, value.shape.len())?);
        }
        if places.iter().any(|&place| value.shape[place] != 1) {
            return no("it drops an axis that is longer than 1");
        }
        let kept = value.shape.iter().enumerate().filter(|(place, _)| !places.contains(place));
        Ok(vec![dynamic(value.moved(kept.map(|(_, &side)| side).collect()))])
    }

    fn unsqueeze(&self) -> Outcome {
        let value = self.value(0)?;
        let Some(axes) = self.listed("axes", 1)? else { return no("it does not name its axes") };
        let rank = value.shape.len() + axes.len();
        let mut places = Vec::new();
        for named in axes {
            places.push(axis(named, rank)?);
        }
        places.sort_unstable();
        places.dedup();
        let mut rest = value.shape.iter();
        let side = |place: usize| if places.contains(&place) { Some(1) } else { rest.next().copied() };
        let shape: Option<Vec<usize>> = (0..rank).map(side).collect();
        let Some(shape) = shape else { return no("it names an axis twice") };
        Ok(vec![dynamic(value.moved(shape))])
    }

    fn transpose(&self) -> Outcome {
        let value = self.value(0)?;
        let rank = value.shape.len();
        let order = match ints(self.node, "perm")? {
            Some(order) => {
                order.iter().map(|&place| axis(place, rank)).collect::<Result<Vec<usize>, Fault>>()?
            }
            None => (0..rank).rev().collect(),
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted != (0..rank).collect::<Vec<_>>() {
            return no("its order of axes is no permutation");
        }
        Ok(vec![dynamic(value.moved(order.iter().map(|&place| value.shape[place]).collect()))])
    }

    fn space_to_depth(&self) -> Outcome {
        let value = self.value(0)?;
        let [batch, channels, height, width] = sides(&value.shape)?;
        let block = usize::try_from(int(self.node, "blocksize", 0)?).unwrap_or(0);
        if block == 0 || !height.is_multiple_of(block) || !width.is_multiple_of(block) {
            return no("its blocks do not fill the picture");
        }
        let shape = vec![batch, channels * block * block, height / block, width / block];
        Ok(vec![dynamic(value.moved(shape))])
    }

    fn depth_to_space(&self) -> Outcome {
        let value = self.value(0)?;
        let [batch, channels, height, width] = sides(&value.shape)?;
        let block = usize::try_from(int(self.node, "blocksize", 0)?).unwrap_or(0);
        if block == 0 || block > 1 << 16 || !channels.is_multiple_of(block * block) {
            return no("its blocks do not divide the channels");
        }
        let shape = vec![batch, channels / (block * block), height * block, width * block];
        Ok(vec![dynamic(value.moved(shape))])
    }

    /// A frame of constants; what it cuts off, where numbers are negative, only helps.
    fn pad(&self) -> Outcome {
        let value = self.value(0)?;
        let mode = text(self.node, "mode", "constant")?;
        if mode != "constant" {
            return no(format!("its mode is `{mode}`, which repeats numbers, wanted `constant`"));
        }
        if self.inputs.len() > 3 && self.inputs[3].is_some() {
            return no("it names its axes, which is not followed");
        }
        let Some(pads) = self.listed("pads", 1)? else { return no("it does not say its pads") };
        let rank = value.shape.len();
        if pads.len() != 2 * rank {
            return no("its pads do not fit what it takes");
        }
        let mut shape = Vec::with_capacity(rank);
        for (place, &side) in value.shape.iter().enumerate() {
            let padded = i64::try_from(side).ok().and_then(|side| {
                side.checked_add(pads[place])?
                    .checked_add(pads[place + rank])
                    .filter(|side| (1..1 << 32).contains(side))
            });
            let Some(padded) = padded else { return no("its pads leave nothing") };
            shape.push(padded as usize);
        }
        let filling = match self.optional_constant(2)? {
            Some(constant) => {
                without(self.node, &["value"])?;
                constant.reals()?.first().copied().unwrap_or(0.0).abs()
            }
            None => float(self.node, "value", 0.0)?.abs(),
        };
        if !filling.is_finite() {
            return no("it pads with a number that is not finite");
        }
        if elements(&shape).is_none() {
            return no("its pads are too wide");
        }
        let numbers = shape.iter().product::<usize>() as f64;
        let mut padded = value.moved(shape);
        padded.norm = padded.norm.plus_offset(mul(filling, root(numbers)));
        Ok(vec![dynamic(padded)])
    }

    fn concat(&self) -> Outcome {
        let mut values: Vec<&Value> = Vec::new();
        let mut constants = 0.0_f64;
        let mut shape: Option<Vec<usize>> = None;
        let named = int(self.node, "axis", 1)?;
        for place in 0..self.inputs.len() {
            let own = match self.fact(place)? {
                Fact::Dynamic(value) => {
                    values.push(value);
                    &value.shape
                }
                Fact::Constant(constant) => {
                    constants = add(constants, length(constant.reals()?));
                    &constant.shape
                }
            };
            match &mut shape {
                None => shape = Some(own.clone()),
                Some(shape) => {
                    let at = axis(named, shape.len())?;
                    let apart = own.len() == shape.len()
                        && own
                            .iter()
                            .zip(shape.iter())
                            .enumerate()
                            .all(|(place, (a, b))| place == at || a == b);
                    if !apart {
                        return no("it joins values of different shapes");
                    }
                    shape[at] += own[at];
                }
            }
        }
        let (Some(shape), false) = (shape, values.is_empty()) else { return self.constant_result() };
        if axis(named, shape.len())? == 0 {
            return no("it joins along the batch");
        }
        let mut joined = Value::beside(&values, shape);
        joined.norm = joined.norm.plus_offset(constants);
        Ok(vec![dynamic(joined)])
    }

    /// Parts that have no number in common.
    fn split(&mut self) -> Outcome {
        let value = self.value(0)?;
        let at = axis(int(self.node, "axis", 0)?, value.shape.len())?;
        let parts = self.node.outputs.len();
        let sides: Vec<i64> = match self.listed("split", 1)? {
            Some(sides) => sides,
            None if value.shape[at].is_multiple_of(parts) => vec![(value.shape[at] / parts) as i64; parts],
            None => return no("it cuts into unequal parts without saying how"),
        };
        let fits = sides.len() == parts
            && sides.iter().all(|&side| side > 0)
            && sides.iter().sum::<i64>() == value.shape[at] as i64;
        if !fits {
            return no("its parts do not make up what it takes");
        }
        let whole = *self.wholes;
        let cut = |(index, &side): (usize, &i64)| {
            let mut shape = value.shape.clone();
            shape[at] = side as usize;
            let mut part = value.moved(shape);
            part.part = Some((whole, index));
            dynamic(part)
        };
        let facts = sides.iter().enumerate().map(cut).collect();
        *self.wholes += 1;
        Ok(facts)
    }

    /// Some of the numbers, each once.
    fn slice(&self) -> Outcome {
        let value = self.value(0)?;
        let rank = value.shape.len();
        if self.operators < 10 {
            return no("it is of a version that is not followed");
        }
        without(self.node, &["starts", "ends", "axes", "steps"])?;
        let (starts, ends) = (self.constant(1)?.wholes()?, self.constant(2)?.wholes()?);
        let axes = match self.optional_constant(3)? {
            Some(axes) => axes.wholes()?.to_vec(),
            None => (0..starts.len() as i64).collect(),
        };
        let steps = match self.optional_constant(4)? {
            Some(steps) => steps.wholes()?.to_vec(),
            None => vec![1; starts.len()],
        };
        if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
            return no("its lists have different lengths");
        }
        let mut shape = value.shape.clone();
        for (((&start, &end), &named), &step) in starts.iter().zip(ends).zip(&axes).zip(&steps) {
            let at = axis(named, rank)?;
            if step < 1 {
                return no("it goes backwards, which is not followed");
            }
            let side = value.shape[at] as i64;
            let place =
                |place: i64| if place < 0 { place.saturating_add(side) } else { place }.clamp(0, side);
            let length = (place(end) - place(start)).max(0);
            shape[at] = ((length + step - 1) / step) as usize;
        }
        if shape.contains(&0) {
            return no("it leaves nothing");
        }
        Ok(vec![dynamic(value.moved(shape))])
    }

    /// Some of the numbers; one that is taken twice moves faster than it does.
    fn gather(&self) -> Outcome {
        let value = self.value(0)?;
        let at = axis(int(self.node, "axis", 0)?, value.shape.len())?;
        let indices = self.constant(1)?;
        let side = value.shape[at];
        let mut taken: Vec<usize> =
            indices.wholes()?.iter().map(|&index| axis(index, side)).collect::<Result<_, _>>()?;
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        if taken.len() != count || count == 0 {
            return no("it takes a number twice, or none");
        }
        let mut shape = value.shape[..at].to_vec();
        shape.extend(&indices.shape);
        shape.extend(&value.shape[at + 1..]);
        Ok(vec![dynamic(value.moved(shape))])
    }

    /// `TopK` of everything: sorting moves no faster than what is sorted.
    fn sort(&self) -> Outcome {
        let value = self.value(0)?;
        let at = axis(int(self.node, "axis", -1)?, value.shape.len())?;
        let count = match self.optional_constant(1)? {
            Some(Constant { numbers: Numbers::Whole(count), .. }) => count.clone(),
            _ => return no("it does not say how many it keeps"),
        };
        if count != [value.shape[at] as i64] || int(self.node, "sorted", 1)? != 1 {
            return no("it does not sort all numbers");
        }
        Ok(vec![dynamic(value.moved(value.shape.clone()))])
    }
}

/// The kernel of a convolution, its windows, and the shape of its result.
pub(super) fn convolution(
    node: &Node,
    value: &Value,
    weights: &Constant,
) -> Result<(Kernel, Windows, Vec<usize>), Fault> {
    let [batch, channels, height, width] = sides(&value.shape)?;
    let [outputs, inputs, rows, columns] = sides(&weights.shape)?;
    let windows = Windows::of(node, [rows, columns])?;
    let groups = usize::try_from(int(node, "group", 1)?).unwrap_or(0);
    if groups == 0
        || inputs.checked_mul(groups) != Some(channels)
        || !outputs.is_multiple_of(groups)
        || inputs == 0
    {
        return no("its weights do not fit what it takes");
    }
    let kernel =
        Kernel { outputs, inputs, groups, window: [rows, columns], weights: weights.reals()?.to_vec() };
    let count = windows.count([height, width])?;
    Ok((kernel, windows, vec![batch, outputs, count[0], count[1]]))
}

/// A constant matrix whose rows are the outputs; `turned` if they are its columns.
pub(super) fn matrix(constant: &Constant, turned: bool) -> Result<Kernel, Fault> {
    let [rows, columns] = constant.shape[..] else {
        return no("it multiplies by a constant that is no matrix");
    };
    if rows == 0 || columns == 0 {
        return no("its matrix is empty");
    }
    let values = constant.reals()?;
    let weights = if turned {
        (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
    } else {
        values.to_vec()
    };
    let (outputs, inputs) = if turned { (columns, rows) } else { (rows, columns) };
    Ok(Kernel { outputs, inputs, groups: 1, window: [1, 1], weights })
}
