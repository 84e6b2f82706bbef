//! The residual layer `x − Kᵀ D relu(Kx + b)`, recognised by its structure and its weights.
//!
//! Between any two inputs it acts as `I − Kᵀ S K` with a diagonal `0 ≤ S ≤ D`: symmetric, with eigenvalues from `1 − β` to 1
//! where `β ≥ ‖D^½ K‖²`. So it has the constant `max(1, β − 1)`, which is 1 for `D ≤ 2T⁻¹` (theory, section 14.5). That
//! takes the same `K` twice: both sets of weights are compared number by number.

use super::attributes::{float, int, ints, lengths, text};
use super::constant::Constant;
use super::layers::{convolution, matrix};
use super::norms::{self, Kernel};
use super::pointwise::length;
use super::shapes::{self, Windows, sides};
use super::upwards::{add, mul, root};
use super::{Affine, Fact, Fault, PRECISIONS, Step, Value, Walk, gamma, no};
use crate::graph::Node;

/// Beyond this `β` the scale is not `2T⁻¹` with rounding; something else was meant.
const LARGEST_BETA: f64 = 2.00001;

/// `K` as an operator on one picture.
struct Inner {
    kernel: Kernel,
    /// None for a matrix.
    windows: Option<Windows>,
    /// Shape of `Kx`.
    shape: Vec<usize>,
    /// `‖b‖` over all positions.
    bias: f64,
}

/// The nodes of the branch, from its end.
struct Branch<'g> {
    back: &'g Node,
    scale: &'g Node,
    relu: &'g Node,
    shift: Option<&'g Node>,
    forth: &'g Node,
}

impl<'g> Walk<'g, '_> {
    /// The value behind a residual layer that ends in this node, its constant, and the labels of what is inside of it.
    pub(super) fn residual(&self, node: &'g Node) -> Result<Option<(Value, f64, Vec<String>)>, Fault> {
        let Some(branch) = self.branch(node) else { return Ok(None) };
        let (Some(stem), Ok(Fact::Dynamic(value))) = (node.input(0), self.finding(&node.inputs[0])) else {
            return Ok(None);
        };
        if branch.forth.input(0) != Some(stem) {
            return Ok(None);
        }
        let Some(inner) = self.inner(&branch, &value)? else { return Ok(None) };
        let scales = self.scales(&branch, &inner)?;
        if !self.is_transpose(&branch, &inner, &value)? {
            return Ok(None);
        }
        if !inner.kernel.is_small() {
            return no("this residual layer has too many channels to be bounded");
        }
        let plain = Windows { kernel: [1, 1], strides: [1, 1], dilations: [1, 1], pads: [0; 4] };
        let windows = inner.windows.as_ref().unwrap_or(&plain);
        let beta = norms::weighted(&norms::correlations(&inner.kernel, windows), &scales, 2.0);
        if beta > LARGEST_BETA {
            return no(format!(
                "the scale of this residual layer is too large: ‖D^½K‖² may be {beta:.6}, wanted at most 2 (D = 2/T)"
            ));
        }
        let factor = if beta <= 2.0 { 1.0 } else { (beta - 1.0).next_up().max(1.0) };
        let found = layer(&value, &inner, windows, &scales, factor);
        let inside =
            [Some(branch.back), Some(branch.scale), Some(branch.relu), branch.shift, Some(branch.forth)];
        let inside = inside.into_iter().flatten().map(|node| node.label().to_owned()).collect();
        Ok(Some((found, factor, inside)))
    }

    fn branch(&self, node: &'g Node) -> Option<Branch<'g>> {
        let standard = |node: &'g Node, names: &[&str]| {
            (node.is_standard() && names.contains(&node.operator.as_str())).then_some(node)
        };
        standard(node, &["Sub"])?;
        let back = standard(self.maker(node.input(1)?)?, &["ConvTranspose", "MatMul", "Gemm"])?;
        let scale = standard(self.maker(back.input(0)?)?, &["Mul"])?;
        let made = |name: Option<&str>, names: &[&str]| {
            name.and_then(|name| self.maker(name)).and_then(|node| standard(node, names))
        };
        let relu = made(scale.input(0), &["Relu"]).or_else(|| made(scale.input(1), &["Relu"]))?;
        let before = self.maker(relu.input(0)?)?;
        let forward = ["Conv", "MatMul", "Gemm"];
        let (shift, forth) = match standard(before, &["Add"]) {
            Some(add) => {
                let forth = made(add.input(0), &forward).or_else(|| made(add.input(1), &forward))?;
                (Some(add), forth)
            }
            None => (None, standard(before, &forward)?),
        };
        Some(Branch { back, scale, relu, shift, forth })
    }

    fn known(&self, name: Option<&str>) -> Result<Option<std::rc::Rc<Constant>>, Fault> {
        let Some(name) = name else { return Ok(None) };
        match self.finding(name) {
            Ok(Fact::Constant(constant)) => Ok(Some(constant)),
            Ok(Fact::Dynamic(_)) => Ok(None),
            Err((_, fault)) => Err(fault),
        }
    }

    fn inner(&self, branch: &Branch<'g>, value: &Value) -> Result<Option<Inner>, Fault> {
        let node = branch.forth;
        let Some(weights) = self.known(node.input(1))? else { return Ok(None) };
        let (kernel, windows, shape) = if node.operator == "Conv" {
            let (kernel, windows, shape) = convolution(node, value, &weights)?;
            (kernel, Some(windows), shape)
        } else {
            let Some(kernel) = self.dense(node, &weights)? else { return Ok(None) };
            if value.shape[..] != [1, kernel.inputs] {
                return Ok(None);
            }
            let shape = vec![1, kernel.outputs];
            (kernel, None, shape)
        };
        let positions = (shape.iter().product::<usize>() / kernel.outputs) as f64;
        let mut bias = 0.0;
        let added = match branch.shift {
            Some(add) => match add.inputs.iter().find(|name| !node.outputs.contains(name)) {
                Some(other) => Some(other.as_str()),
                // It is added to itself.
                None => return Ok(None),
            },
            None => None,
        };
        for name in [node.input(2), added].into_iter().flatten() {
            // Whatever is added must not depend on the picture.
            let Some(constant) = self.known(Some(name))? else { return Ok(None) };
            if added == Some(name) && !shapes::fits(&constant.shape, &shape) {
                return no("what is added in this residual layer repeats its values");
            }
            let numbers = constant.reals()?;
            let repeats = match numbers.len() {
                1 => kernel.outputs as f64 * positions,
                count if count == kernel.outputs => positions,
                _ => return no("the bias of this residual layer has no number for each channel"),
            };
            bias = add(bias, mul(length(numbers), root(repeats)));
        }
        Ok(Some(Inner { kernel, windows, shape, bias }))
    }

    /// A matrix from the left operand to the result, rows being outputs; none for scaled or turned ones.
    fn dense(&self, node: &Node, weights: &Constant) -> Result<Option<Kernel>, Fault> {
        if node.operator == "MatMul" {
            return matrix(weights, true).map(Some);
        }
        let plain = float(node, "alpha", 1.0)? == 1.0 && float(node, "beta", 1.0)? == 1.0;
        if !plain || int(node, "transA", 0)? != 0 {
            return Ok(None);
        }
        matrix(weights, int(node, "transB", 0)? == 0).map(Some)
    }

    /// `D`, one number per channel.
    fn scales(&self, branch: &Branch<'g>, inner: &Inner) -> Result<Vec<f64>, Fault> {
        let relu = &branch.relu.outputs;
        let name = branch.scale.inputs.iter().find(|name| !relu.contains(name)).map(String::as_str);
        let Some(constant) = self.known(name)? else {
            return no("the scale of this residual layer depends on the picture");
        };
        if !shapes::fits(&constant.shape, &inner.shape) {
            return no("the scale of this residual layer repeats its values");
        }
        let (numbers, channels) = (constant.reals()?, inner.kernel.outputs);
        // Channels stand before two axes of space, or last.
        let behind = if inner.windows.is_some() { 2 } else { 0 };
        let rank = constant.shape.len();
        let on_channels =
            rank > behind && rank <= inner.shape.len() && constant.shape[rank - 1 - behind] == channels;
        let scales = match numbers {
            [number] => vec![*number; channels],
            numbers if numbers.len() == channels && on_channels => numbers.to_vec(),
            _ => return no("the scale of this residual layer does not have one number per channel"),
        };
        if scales.iter().any(|&scale| scale < 0.0) {
            return no("the scale of this residual layer is negative somewhere");
        }
        Ok(scales)
    }

    /// Whether the way back is the exact transpose of the way forth.
    fn is_transpose(&self, branch: &Branch<'g>, inner: &Inner, value: &Value) -> Result<bool, Fault> {
        let node = branch.back;
        let Some(weights) = self.known(node.input(1))? else { return Ok(false) };
        let kernel = &inner.kernel;
        let Some(windows) = &inner.windows else {
            if node.operator == "ConvTranspose" || node.input(2).is_some() {
                return Ok(false);
            }
            let Some(back) = self.dense(node, &weights)? else { return Ok(false) };
            let same = |output: usize, input: usize| {
                back.weights[input * back.inputs + output] == kernel.weights[output * kernel.inputs + input]
            };
            return Ok((back.outputs, back.inputs) == (kernel.inputs, kernel.outputs)
                && (0..kernel.outputs).all(|output| (0..kernel.inputs).all(|input| same(output, input))));
        };
        if node.operator != "ConvTranspose" {
            return Ok(false);
        }
        let refuse = |what: &str| {
            no(format!(
                "the transposed convolution `{}` of this residual layer has {what} than the convolution before it",
                node.label()
            ))
        };
        if node.input(2).is_some() {
            return no(format!(
                "the transposed convolution `{}` of this residual layer has a bias",
                node.label()
            ));
        }
        if weights.shape != [kernel.outputs, kernel.inputs, kernel.window[0], kernel.window[1]] {
            return refuse("weights of another shape");
        }
        if let Some(place) =
            weights.reals()?.iter().zip(&kernel.weights).position(|(left, right)| left != right)
        {
            return refuse(&format!("other weights (number {place})"));
        }
        if int(node, "group", 1)? != int(branch.forth, "group", 1)? {
            return refuse("other groups");
        }
        if ints(node, "output_shape")?.is_some() || text(node, "auto_pad", "NOTSET")? != "NOTSET" {
            return no("the transposed convolution of this residual layer leaves its pads open");
        }
        let back = Windows::of(node, kernel.window)?;
        if back.strides != windows.strides
            || back.dilations != windows.dilations
            || back.pads[..2] != windows.pads[..2]
        {
            return refuse("other pads, strides or dilations");
        }
        let extra = lengths(node, "output_padding", &[0, 0], 0)?;
        let [_, _, height, width] = sides(&value.shape)?;
        for (axis, side) in [height, width].into_iter().enumerate() {
            let length =
                (windows.strides[axis] * (inner.shape[2 + axis] - 1) + windows.reach(axis) + extra[axis])
                    .checked_sub(back.pads[axis] + back.pads[axis + 2]);
            if length != Some(side) {
                return refuse(&format!("another output ({length:?} instead of {side})"));
            }
        }
        Ok(true)
    }
}

/// Bounds behind the layer: its own constant for what comes in, and the roundings of its four steps.
fn layer(value: &Value, inner: &Inner, windows: &Windows, scales: &[f64], factor: f64) -> Value {
    let kernel = &inner.kernel;
    let norm =
        if inner.windows.is_some() { norms::convolution(kernel, windows) } else { norms::dense(kernel) };
    let spread = norms::absolute(kernel);
    let largest = scales.iter().copied().fold(0.0, f64::max);
    let forth = Step { factor: norm, offset: inner.bias, terms: kernel.terms() + 2, spread };
    let scaled = Step { factor: largest, offset: 0.0, terms: 1, spread: largest };
    let per_group = kernel.outputs / kernel.groups * kernel.window[0] * kernel.window[1];
    let back = Step { factor: norm, offset: 0.0, terms: per_group, spread };
    let errors: [Affine; 2] = std::array::from_fn(|place| {
        // The computed input, taken for an exact one.
        let none = Affine { slope: 0.0, offset: 0.0 };
        let given = value.norm.plus(value.errors[place]);
        let input = Value { norm: given, errors: [none; 2], ..value.clone() };
        let branch = input.after(&forth, inner.shape.clone());
        let branch = branch.after(&scaled, inner.shape.clone()).after(&back, value.shape.clone());
        let computed = given.plus(branch.norm).plus(branch.errors[place]);
        let rounded = computed.scaled(gamma(1, PRECISIONS[place].0));
        value.errors[place].scaled(factor).plus(branch.errors[place]).plus(rounded)
    });
    let at_zero = mul(mul(norm, largest), inner.bias);
    Value {
        shape: value.shape.clone(),
        constant: mul(value.constant, factor),
        norm: value.norm.scaled(factor).plus_offset(at_zero),
        errors,
        part: None,
    }
}
