//! Convolutions, matrix products and pooling.

use std::sync::Arc;

use super::{Compiler, Outcome, Value, because};
use crate::graph::Node;
use crate::graph::evaluate::convolution::Convolution;
use crate::graph::evaluate::operation::Operation;
use crate::graph::evaluate::pairs::Rule;
use crate::graph::evaluate::pooling::{Pool, Pooling};
use crate::graph::evaluate::products::Products;
use crate::graph::evaluate::scalar::Scalar;
use crate::graph::evaluate::shape::{broadcast, count, places, stretched};

/// Sides and steps beyond these no picture has.
const MOST_SIDE: usize = 1 << 16;

/// How a window moves over two axes.
struct Windows {
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    pads: [usize; 2],
    pads_after: [usize; 2],
}

impl Windows {
    /// Reads the attributes of a node whose kernel has this size, over axes of these lengths.
    fn of(node: &Node, kernel: [usize; 2], taken: [usize; 2]) -> Outcome<Self> {
        let numbers = |name: &str, usual: usize, least: usize| match node.ints(name) {
            None => Ok([usual; 2]),
            Some(found) => {
                let side = |&number: &i64| usize::try_from(number).ok();
                let sides: Vec<usize> = found.iter().filter_map(side).collect();
                match *sides.as_slice() {
                    [first, second]
                        if found.len() == 2 && sides.iter().all(|side| (least..MOST_SIDE).contains(side)) =>
                    {
                        Ok([first, second])
                    }
                    _ => because(format!("its {name} are {found:?}, wanted two numbers from {least} up")),
                }
            }
        };
        let (strides, dilations) = (numbers("strides", 1, 1)?, numbers("dilations", 1, 1)?);
        let reach = |axis: usize| (kernel[axis] - 1) * dilations[axis] + 1;
        let (mut pads, mut pads_after) = ([0; 2], [0; 2]);
        match node.text("auto_pad").unwrap_or("NOTSET") {
            "NOTSET" => match node.ints("pads") {
                None => {}
                Some(&[top, left, bottom, right]) => {
                    let side = |number: i64| usize::try_from(number).ok().filter(|&side| side < MOST_SIDE);
                    let sides = [top, left, bottom, right].map(side);
                    let [Some(top), Some(left), Some(bottom), Some(right)] = sides else {
                        return because(format!("its pads are {:?}", [top, left, bottom, right]));
                    };
                    (pads, pads_after) = ([top, left], [bottom, right]);
                }
                Some(found) => return because(format!("its pads are {found:?}, wanted four numbers")),
            },
            "VALID" => {}
            same @ ("SAME_UPPER" | "SAME_LOWER") => {
                for axis in 0..2 {
                    let given = taken[axis].div_ceil(strides[axis]);
                    let needed = ((given - 1) * strides[axis] + reach(axis)).saturating_sub(taken[axis]);
                    let (less, more) = (needed / 2, needed - needed / 2);
                    (pads[axis], pads_after[axis]) =
                        if same == "SAME_UPPER" { (less, more) } else { (more, less) };
                }
            }
            other => return because(format!("its auto_pad is {other}")),
        }
        Ok(Self { kernel, strides, dilations, pads, pads_after })
    }

    fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilations[axis] + 1
    }

    /// How many windows there are.
    fn given(&self, taken: [usize; 2], rounded_up: bool) -> Outcome<[usize; 2]> {
        let mut given = [0; 2];
        for axis in 0..2 {
            let padded = taken[axis] + self.pads[axis] + self.pads_after[axis];
            let Some(room) = padded.checked_sub(self.reach(axis)) else {
                return because(format!("its windows of {:?} do not fit into {taken:?}", self.kernel));
            };
            given[axis] = 1 + if rounded_up {
                let count = room.div_ceil(self.strides[axis]);
                // The last window must begin inside the picture or the padding before it.
                let begins_inside = count * self.strides[axis] < taken[axis] + self.pads[axis];
                if begins_inside { count } else { count.saturating_sub(1) }
            } else {
                room / self.strides[axis]
            };
        }
        Ok(given)
    }
}

impl<'g, S: Scalar> Compiler<'g, S> {
    pub(super) fn layers(&mut self, node: &'g Node) -> Outcome<Option<Value<S>>> {
        Ok(Some(match node.operator.as_str() {
            "Conv" => self.convolution(node)?,
            "ConvTranspose" => self.transposed(node)?,
            "Gemm" => self.gemm(node)?,
            "MatMul" => {
                let (left, right) = (self.argument(node, 0)?, self.argument(node, 1)?);
                self.products(left, right, false)?
            }
            "MaxPool" => {
                if node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
                    return because("it gives the places of its maxima, wanted their values alone");
                }
                self.pool(node, Pooling::Greatest)?
            }
            "AveragePool" if node.int("count_include_pad").unwrap_or(0) != 0 => {
                self.pool(node, Pooling::PaddedMean)?
            }
            "AveragePool" => self.pool(node, Pooling::Mean)?,
            _ => return Ok(None),
        }))
    }

    /// The argument of a layer over two axes: batch, channels and the two.
    fn maps(&mut self, node: &'g Node) -> Outcome<(Value<S>, [usize; 4])> {
        let value = self.argument(node, 0)?;
        let Ok(shape) = <[usize; 4]>::try_from(value.shape()) else {
            return because(format!("it takes the shape {:?}, wanted four axes", value.shape()));
        };
        if shape.contains(&0) || shape.iter().any(|&side| side > MOST_SIDE) {
            return because(format!("it takes the shape {shape:?}"));
        }
        Ok((value, shape))
    }

    /// Constant kernels, their shape, and the number of groups.
    fn kernels(&mut self, node: &'g Node) -> Outcome<(Arc<Vec<S>>, [usize; 4], usize)> {
        let Some((shape, weights)) = self.real(node, 1)? else { return because("it has no kernels") };
        let Ok(shape) = <[usize; 4]>::try_from(shape.as_slice()) else {
            return because(format!("its kernels have the shape {shape:?}, wanted four axes"));
        };
        let groups = usize::try_from(node.int("group").unwrap_or(1)).unwrap_or(0);
        if groups == 0 || !shape[0].is_multiple_of(groups) || shape.contains(&0) {
            return because(format!("its kernels have the shape {shape:?} in {groups} groups"));
        }
        if shape.iter().any(|&side| side > MOST_SIDE) {
            return because(format!("its kernels have the shape {shape:?}"));
        }
        Ok((weights, shape, groups))
    }

    fn bias(&mut self, node: &'g Node, channels: usize) -> Outcome<Option<Arc<Vec<S>>>> {
        match self.real(node, 2)? {
            None => Ok(None),
            Some((_, bias)) if bias.len() == channels => Ok(Some(bias)),
            Some((_, bias)) => {
                because(format!("its bias has {} numbers for {channels} channels", bias.len()))
            }
        }
    }

    fn convolution(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let (value, [batch, inputs, height, width]) = self.maps(node)?;
        let (weights, [outputs, inner, down, along], groups) = self.kernels(node)?;
        if inner.checked_mul(groups) != Some(inputs) {
            return because(format!("it takes {inputs} channels, wanted {inner} in each of {groups} groups"));
        }
        let windows = Windows::of(node, [down, along], [height, width])?;
        let given = windows.given([height, width], false)?;
        let bias = self.bias(node, outputs)?;
        let map = Convolution {
            batch,
            groups,
            channels: [inputs, outputs],
            taken: [height, width],
            given,
            kernel: windows.kernel,
            strides: windows.strides,
            dilations: windows.dilations,
            pads: windows.pads,
            weights,
        };
        self.check_windows(&map)?;
        let shape = vec![batch, outputs, given[0], given[1]];
        self.emit(Operation::Convolution { map, bias }, vec![value], shape)
    }

    /// The transpose of a convolution that takes what this node gives.
    fn transposed(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let (value, [batch, inputs, height, width]) = self.maps(node)?;
        let (weights, [first, inner, down, along], groups) = self.kernels(node)?;
        if first != inputs {
            return because(format!("it takes {inputs} channels, wanted {first}"));
        }
        if !matches!(node.text("auto_pad"), None | Some("NOTSET")) || node.ints("output_shape").is_some() {
            return because("its padding follows from the shape of its output, wanted pads");
        }
        let Some(outputs) = inner.checked_mul(groups).filter(|&outputs| outputs <= MOST_SIDE) else {
            return because(format!("it gives {inner} channels in each of {groups} groups"));
        };
        let windows = Windows::of(node, [down, along], [height, width])?;
        let more = match node.ints("output_padding") {
            None => [0; 2],
            Some(&[down, along]) if (0..256).contains(&down) && (0..256).contains(&along) => {
                [down as usize, along as usize]
            }
            Some(found) => return because(format!("its output_padding is {found:?}")),
        };
        let given = [height, width];
        let mut taken = [0; 2];
        for axis in 0..2 {
            let whole = (given[axis] - 1) * windows.strides[axis] + windows.reach(axis) + more[axis];
            let cut = windows.pads[axis] + windows.pads_after[axis];
            match whole.checked_sub(cut) {
                Some(side) if side > 0 && side <= MOST_SIDE => taken[axis] = side,
                _ => return because(format!("its pads are {cut} of {whole}")),
            }
        }
        let bias = self.bias(node, outputs)?;
        let map = Convolution {
            batch,
            groups,
            channels: [outputs, inputs],
            taken,
            given,
            kernel: windows.kernel,
            strides: windows.strides,
            dilations: windows.dilations,
            pads: windows.pads,
            weights,
        };
        self.check_windows(&map)?;
        let shape = vec![batch, outputs, taken[0], taken[1]];
        self.emit(Operation::Transposed { map, bias }, vec![value], shape)
    }

    /// What a convolution needs in memory must be bounded, too.
    fn check_windows(&self, map: &Convolution<S>) -> Outcome<()> {
        let [inputs, _] = map.channels;
        let sides = [inputs / map.groups, map.kernel[0], map.kernel[1], map.given[0], map.given[1]];
        let taken = [map.batch, inputs, map.taken[0], map.taken[1]];
        let given = [map.batch, map.channels[1], map.given[0], map.given[1]];
        if count(&sides).is_none() || count(&taken).is_none() || count(&given).is_none() {
            return because("its windows are too many");
        }
        Ok(())
    }

    fn gemm(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let (mut left, mut right) = (self.argument(node, 0)?, self.argument(node, 1)?);
        for value in [&left, &right] {
            if value.shape().len() != 2 {
                return because(format!("it takes the shape {:?}, wanted a matrix", value.shape()));
            }
        }
        if node.int("transA").unwrap_or(0) != 0 {
            left = self.transposed_by(left, &[1, 0])?;
        }
        let alpha = node.float("alpha").unwrap_or(1.0);
        let scaled = |from: &mut Self, value: Value<S>, factor: f32| {
            if factor == 1.0 {
                return Ok(value);
            }
            let numbers = Arc::new(vec![S::of(f64::from(factor))]);
            from.pair(Rule::Multiply, value, Value::Real { shape: vec![], numbers })
        };
        right = scaled(self, right, alpha)?;
        let out = self.products(left, right, node.int("transB").unwrap_or(0) != 0)?;
        match self.optional(node, 2)? {
            None => Ok(out),
            Some(added) => {
                let added = scaled(self, added, node.float("beta").unwrap_or(1.0))?;
                let shape = out.shape().to_vec();
                let sum = self.pair(Rule::Add, out, added)?;
                if sum.shape() != shape {
                    return because(format!(
                        "its sum has the shape {:?}, its product {shape:?}",
                        sum.shape()
                    ));
                }
                Ok(sum)
            }
        }
    }

    /// Matrix products as numpy's `matmul` computes them; the right matrices may be stored transposed.
    fn products(&mut self, left: Value<S>, right: Value<S>, right_transposed: bool) -> Outcome<Value<S>> {
        let (mut lefts, mut rights) = (left.shape().to_vec(), right.shape().to_vec());
        let (alone, single) = (lefts.len() == 1, rights.len() == 1);
        if lefts.is_empty() || rights.is_empty() {
            return because("it takes a single number, wanted matrices");
        }
        if alone {
            lefts.insert(0, 1);
        }
        if single {
            rights.push(1);
        }
        let (before, sides) = (lefts.split_off(lefts.len() - 2), rights.split_off(rights.len() - 2));
        let (rows, inner) = (before[0], before[1]);
        let (found, columns) = if right_transposed { (sides[1], sides[0]) } else { (sides[0], sides[1]) };
        if inner != found {
            return because(format!("it multiplies {:?} by {:?}", left.shape(), right.shape()));
        }
        let Some(batch) = broadcast(&lefts, &rights) else {
            return because(format!("it multiplies {:?} by {:?}", left.shape(), right.shape()));
        };
        let mut shape = batch.clone();
        if !alone {
            shape.push(rows);
        }
        if !single {
            shape.push(columns);
        }
        if count(&shape).is_none() || count(&batch).is_none() {
            return because(format!("its output would have the shape {shape:?}, which is too large"));
        }
        // One matrix on the right of all: their rows lie one after the other.
        let together = rights.iter().all(|&side| side == 1) && lefts == batch;
        let products = if together {
            let rows = rows * lefts.iter().product::<usize>();
            Products { rows, inner, columns, pairs: vec![[0, 0]], right_transposed }
        } else {
            let place = |shape: &[usize], size: usize| {
                places(&batch, &stretched(shape, &batch), 0).into_iter().map(move |place| place * size)
            };
            let pairs = place(&lefts, rows * inner).zip(place(&rights, inner * columns));
            let pairs = pairs.map(|(left, right)| [left, right]).collect();
            Products { rows, inner, columns, pairs, right_transposed }
        };
        self.emit(Operation::Products(products), vec![left, right], shape)
    }

    fn pool(&mut self, node: &'g Node, pooling: Pooling) -> Outcome<Value<S>> {
        let (value, [batch, channels, height, width]) = self.maps(node)?;
        let Some(&[down, along]) = node.ints("kernel_shape") else {
            return because(format!("its kernel_shape is {:?}, wanted two sides", node.ints("kernel_shape")));
        };
        let side = |number: i64| usize::try_from(number).ok().filter(|side| (1..MOST_SIDE).contains(side));
        let (Some(down), Some(along)) = (side(down), side(along)) else {
            return because(format!("its kernel_shape is {:?}", [down, along]));
        };
        let windows = Windows::of(node, [down, along], [height, width])?;
        if (0..2).any(|axis| windows.pads[axis].max(windows.pads_after[axis]) >= windows.reach(axis)) {
            return because("its padding is as large as its windows");
        }
        let taken = [height, width];
        let given = windows.given(taken, node.int("ceil_mode").unwrap_or(0) != 0)?;
        let Windows { kernel, strides, dilations, pads, pads_after } = windows;
        let pool = Pool { pooling, taken, given, kernel, strides, dilations, pads, pads_after };
        let shape = vec![batch, channels, given[0], given[1]];
        self.emit(Operation::Pool(pool), vec![value], shape)
    }
}
