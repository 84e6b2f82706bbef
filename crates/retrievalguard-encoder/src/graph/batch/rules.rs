//! Operator by operator: what becomes of the batch axis.
//!
//! A rule may be wrong on one side only. Where it is not certain that every picture stays by itself, it says so, and the
//! encoder runs picture by picture.

use super::args::{Args, Outcome};
use super::content;
use super::elementwise::broadcast;
use super::fact::{BatchLayout, Dim, Fact, Fault, Kind, coupled, distinct, place, unknown};

/// Operators that draw random numbers.
pub(super) const RANDOM: [&str; 6] =
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"];

/// Operators that treat every number by itself.
#[rustfmt::skip]
const UNARY: [&str; 44] = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh",
    "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "ScaledTanh", "Selu", "Shrink", "Sigmoid", "Sign",
    "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "CastLike",
];

/// Operators that treat numbers in the same place together, one from each input.
#[rustfmt::skip]
const ELEMENTWISE: [&str; 26] = [
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub",
    "Sum", "Where", "Xor", "Dropout",
];

impl<'g> Args<'g> {
    /// One of ONNX's own operators.
    pub(super) fn standard(&self, name: &str) -> Outcome<'g> {
        if UNARY.contains(&name) {
            return self.unary();
        }
        match name {
            "Dropout" => self.dropout(),
            _ if ELEMENTWISE.contains(&name) => self.elementwise(),
            "Identity" => Ok(vec![self.input(0)?.clone()]),
            "Cast" => self.cast(),
            "Constant" => self.stored(),
            "ConstantOfShape" => self.constant_of_shape(),
            "Shape" | "Size" => self.shape(),
            "Range" => self.range(),
            "Conv" | "ConvInteger" | "QLinearConv" => self.convolution(),
            "ConvTranspose" => self.transposed_convolution(),
            "MaxPool" | "AveragePool" | "LpPool" => self.pool(),
            "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => self.global_pool(),
            "InstanceNormalization" | "GroupNormalization" | "LRN" => self.of_each_picture(),
            "BatchNormalization" => self.batch_normalization(),
            "LayerNormalization" | "RMSNormalization" => self.layer_normalization(),
            "MeanVarianceNormalization" => {
                let fact = self.input(0)?;
                let axes = self.ints("axes").unwrap_or(&[0, 2, 3]);
                self.apart(fact, axes, "it normalises over the batch")?;
                Ok(vec![fact.other_numbers()])
            }
            "LpNormalization" => self.along(self.int("axis").unwrap_or(-1), "it normalises over the batch"),
            "CumSum" => {
                let axis = self.input(1)?.known_numbers()?;
                let [axis] = axis[..] else { return unknown("it names no single axis") };
                self.along(axis, "it sums over the batch")
            }
            "Softmax" | "LogSoftmax" | "Hardmax" => self.softmax(),
            "Gemm" => self.gemm(),
            "MatMul" => self.matrix_product(0, 1),
            "MatMulInteger" => {
                self.single(2)?;
                self.of_columns(1, 3..4)?;
                self.matrix_product(0, 1)
            }
            "QLinearMatMul" => {
                for scale in [1, 2, 6, 7] {
                    self.single(scale)?;
                }
                self.of_columns(3, 4..6)?;
                self.matrix_product(0, 3)
            }
            "Einsum" => self.einsum(),
            "QuantizeLinear" | "DequantizeLinear" => self.quantize(),
            "DynamicQuantizeLinear" => match self.input(0)?.batch() {
                Some(_) => coupled("it takes its scale from the whole batch"),
                None => {
                    let fact = self.input(0)?.other_numbers();
                    let single = fact.unbatched(Some(Vec::new()));
                    Ok(vec![fact, single.clone(), single])
                }
            },
            "Transpose" => self.transpose(),
            "Reshape" => self.reshape(),
            "Flatten" => self.flatten(),
            "Squeeze" => self.squeeze(),
            "Unsqueeze" => self.unsqueeze(),
            "Expand" => self.expand(),
            "Tile" => self.tile(),
            "Concat" => self.concat(),
            "Split" => self.split(),
            "Slice" => self.slice(),
            "Gather" => self.gather(),
            "GatherElements" => self.gather_elements(),
            "Pad" => self.pad(),
            "Resize" | "Upsample" => self.resize(),
            "DepthToSpace" => self.depth_to_space(true),
            "SpaceToDepth" => self.depth_to_space(false),
            "ArgMax" | "ArgMin" => self.reduce(Some(self.int("axis").unwrap_or(0))),
            "ScatterND" | "ScatterElements" | "Scatter" => {
                match self.inputs.iter().flatten().any(|fact| fact.batch().is_some()) {
                    true => unknown("it writes to computed places"),
                    false => Ok(vec![unbatched(&self.inputs, self.input(0)?.shape.clone())?]),
                }
            }
            "TopK" => self.top_k(),
            "Trilu" => self.trilu(),
            _ if name.starts_with("Reduce") => self.reduce(None),
            _ => unknown("this operator has no rule"),
        }
    }

    /// Operators that onnxruntime's tools write into quantised and fused networks.
    pub(super) fn contributed(&self) -> Outcome<'g> {
        if self.node.domain != "com.microsoft" {
            return unknown("operators of this domain have no rules");
        }
        match self.node.operator.as_str() {
            "Gelu" | "QuickGelu" => self.unary(),
            "QLinearSigmoid" | "QLinearLeakyRelu" => {
                (1..5).try_for_each(|place| self.single(place))?;
                self.unary()
            }
            "QLinearAdd" | "QLinearMul" => {
                for scale in [1, 2, 4, 5, 6, 7] {
                    self.single(scale)?;
                }
                Ok(vec![broadcast(&[self.input(0)?, self.input(3)?])?])
            }
            "QLinearGlobalAveragePool" if self.int("channels_last").unwrap_or(0) == 0 => {
                (1..5).try_for_each(|place| self.single(place))?;
                self.global_pool()
            }
            "QGemm" => {
                for scale in [1, 2, 7, 8] {
                    self.single(scale)?;
                }
                self.of_columns(3, 4..6)?;
                self.product_of_matrices(0, 3, Some(6))
            }
            "FusedConv" if self.optional(3).is_some() => unknown("it adds a value of its own to each place"),
            "FusedConv" => self.convolution(),
            "BiasGelu" => self.elementwise(),
            _ => unknown("this operator has no rule"),
        }
    }

    fn stored(&self) -> Outcome<'g> {
        if self.node.attributes.len() != 1 {
            return Ok(vec![Fact::constant(None)]);
        }
        if let Some(tensor) = self.tensor("value") {
            return Ok(vec![Fact::of_tensor(tensor)]);
        }
        if let Some(number) = self.int("value_int") {
            return Ok(vec![Fact::numbers(vec![Dim::Known(number)], Some(Vec::new()))]);
        }
        if let Some(numbers) = self.ints("value_ints") {
            let shape = vec![Dim::Known(numbers.len() as i64)];
            let content = numbers.iter().map(|&number| Dim::Known(number)).collect();
            return Ok(vec![Fact::numbers(content, Some(shape))]);
        }
        if self.float("value_float").is_some() || self.text("value_string").is_some() {
            return Ok(vec![Fact::constant(Some(Vec::new()))]);
        }
        if let Some(numbers) = self.floats("value_floats") {
            return Ok(vec![Fact::constant(Some(vec![Dim::Known(numbers.len() as i64)]))]);
        }
        Ok(vec![Fact::constant(None)])
    }

    fn constant_of_shape(&self) -> Outcome<'g> {
        let Some(dims) = &self.input(0)?.content else { return unknown("its shape cannot be followed") };
        let axes: Vec<(usize, i64)> = dims
            .iter()
            .enumerate()
            .filter_map(|(axis, dim)| if let Dim::Batch(times) = dim { Some((axis, *times)) } else { None })
            .collect();
        match axes[..] {
            [] => {
                let mut fact = Fact::constant(Some(dims.clone()));
                let value = self.tensor("value").map(Fact::of_tensor);
                // Without an attribute the value is the number 0, which no shape is made of.
                if let ([Dim::Known(length)], Some(value)) = (&dims[..], value)
                    && let (Some([number]), 0..=64) = (value.content.as_deref(), *length)
                {
                    fact.content = Some(vec![*number; *length as usize]);
                }
                Ok(vec![fact])
            }
            [(axis, times)] => Ok(vec![Fact::batched(axis, BatchLayout::beside(times), dims.clone())?]),
            _ => Ok(vec![Fact::sized(None)]),
        }
    }

    fn shape(&self) -> Outcome<'g> {
        let Ok(dims) = self.input(0)?.dims() else { return unknown("its shape cannot be followed") };
        if self.node.operator == "Size" {
            let Some(count) = content::length(dims).filter(|&count| content::is_followed(count)) else {
                return unknown("its shape cannot be followed");
            };
            return Ok(vec![Fact::numbers(vec![count], Some(Vec::new()))]);
        }
        let rank = dims.len() as i64;
        let bound = |name, usual: i64| {
            let bound = self.int(name).unwrap_or(usual);
            let bound = if bound < 0 { bound.saturating_add(rank) } else { bound };
            bound.clamp(0, rank) as usize
        };
        let (start, end) = (bound("start", 0), bound("end", rank));
        let chosen = dims.get(start..end.max(start)).unwrap_or_default().to_vec();
        let shape = vec![Dim::Known(chosen.len() as i64)];
        Ok(vec![Fact::numbers(chosen, Some(shape))])
    }

    fn range(&self) -> Outcome<'g> {
        let numbers = [self.input(0)?, self.input(1)?, self.input(2)?].map(Fact::known_numbers);
        let [Ok(start), Ok(end), Ok(step)] = &numbers else { return unknown("its shape cannot be followed") };
        let ([start], [end], [step]) = (&start[..], &end[..], &step[..]) else {
            return unknown("it takes no single numbers");
        };
        if ![*start, *end, *step].into_iter().map(Dim::Known).all(content::is_followed) {
            return unknown("its bounds are too large to be followed");
        }
        let count = match end.checked_sub(*start) {
            Some(_) if *step == 0 => return unknown("its step is 0"),
            Some(span) if (span > 0) == (*step > 0) => {
                match (span.checked_div(*step), span.checked_rem(*step)) {
                    (Some(count), Some(rest)) => count.saturating_add(i64::from(rest != 0)),
                    _ => return unknown("its bounds overflow"),
                }
            }
            Some(_) => 0,
            None => return unknown("its bounds overflow"),
        };
        let shape = Some(vec![Dim::Known(count)]);
        if count > 64 {
            return Ok(vec![Fact::constant(shape)]);
        }
        let content = (0..count).map(|place| Dim::Known(start + place * step)).collect();
        Ok(vec![Fact::numbers(content, shape)])
    }

    /// `QuantizeLinear` and `DequantizeLinear`: constants turn every number by itself, or those of one axis alike.
    fn quantize(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        self.constants(1..3)?;
        let scale = self.input(1)?;
        let single = scale.is_single() && self.optional(2).is_none_or(Fact::is_single);
        if fact.batch().is_some() && !single {
            if scale.dims()?.len() != 1 {
                return unknown("its scales have more than one axis");
            }
            if self.optional(2).is_some_and(|zero| zero.shape != scale.shape) {
                return unknown("its zero points do not lie as its scales do");
            }
            self.apart(fact, &[self.int("axis").unwrap_or(1)], "it has a scale for each place of the batch")?;
        }
        Ok(vec![fact.other_numbers()])
    }

    fn top_k(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let axis = self.int("axis").unwrap_or(-1);
        self.apart(fact, &[axis], "it ranks the pictures of the batch")?;
        self.said_once("k", 1)?;
        let count = match (self.int("k"), self.optional(1)) {
            (Some(count), _) => Dim::Known(count),
            (None, Some(count)) => match count.content.as_deref() {
                Some(&[Dim::Known(count)]) => Dim::Known(count),
                _ if count.kind == Kind::Constant => Dim::Open,
                _ => return coupled("its count depends on how many pictures there are"),
            },
            (None, None) => return unknown("it has no count"),
        };
        let mut dims = dims.to_vec();
        let axis = place(axis, dims.len())?;
        dims[axis] = count;
        let fact = Fact { shape: Some(dims), ..fact.other_numbers() };
        Ok(vec![fact.clone(), fact])
    }

    /// The triangle of each matrix of the last two axes.
    fn trilu(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        self.constants(1..2)?;
        self.apart(fact, &[-1, -2], "it blanks a triangle of places of the batch")?;
        Ok(vec![fact.other_numbers()])
    }

    /// Reductions over the axes in an attribute or an input; `axis` for those that name one.
    fn reduce(&self, axis: Option<i64>) -> Outcome<'g> {
        let fact = self.input(0)?;
        let rank = fact.dims()?.len();
        self.said_once("axes", 1)?;
        let axes = match (axis, self.ints("axes"), self.optional(1)) {
            (Some(axis), _, _) => vec![axis],
            (None, Some(axes), _) => axes.to_vec(),
            (None, None, Some(axes)) => axes.known_numbers()?,
            (None, None, None) => Vec::new(),
        };
        if axes.is_empty() && self.int("noop_with_empty_axes").unwrap_or(0) != 0 {
            return Ok(vec![fact.other_numbers()]);
        }
        let all: Vec<i64> = (0..rank as i64).collect();
        let axes = if axes.is_empty() { all } else { axes };
        self.apart(fact, &axes, "it reduces over the batch")?;
        let axes = distinct(&axes, rank)?;
        let keep = self.int("keepdims").unwrap_or(1) != 0;
        let dims = fact.dims()?;
        let kept = dims.iter().enumerate().filter_map(|(axis, &dim)| match axes.contains(&axis) {
            false => Some(dim),
            true if keep => Some(Dim::Known(1)),
            true => None,
        });
        let shape: Vec<Dim> = kept.collect();
        match fact.batch() {
            None => Ok(vec![fact.unbatched(Some(shape))]),
            Some((batch, layout)) => {
                let gone = axes.iter().filter(|&&axis| axis < batch).count();
                let batch = if keep { batch } else { batch - gone };
                Ok(vec![Fact::batched(batch, layout, shape)?])
            }
        }
    }

    /// Before ONNX 13 all axes from the named one on are one.
    fn softmax(&self) -> Outcome<'g> {
        let old = self.operators < 13;
        let axis = self.int("axis").unwrap_or(if old { 1 } else { -1 });
        let fact = self.input(0)?;
        let rank = fact.dims()?.len();
        let axes: Vec<i64> =
            if old { (place(axis, rank)? as i64..rank as i64).collect() } else { vec![axis] };
        self.apart(fact, &axes, "it normalises over the batch")?;
        Ok(vec![fact.other_numbers()])
    }
}

/// A value that is computed from these, none of which depends on the pictures.
pub(super) fn unbatched<'g>(inputs: &[Option<Fact<'g>>], shape: Option<Vec<Dim>>) -> Result<Fact<'g>, Fault> {
    if inputs.iter().flatten().any(|fact| fact.batch().is_some()) {
        return unknown("what it makes of the pictures is not followed");
    }
    let sized = inputs.iter().flatten().any(|fact| fact.kind == Kind::Sized);
    let fact = if sized { Fact::sized(None) } else { Fact::constant(None) };
    Ok(fact.unbatched(shape))
}
