//! Operator by operator: what becomes of the batch axis.
//!
//! A rule may be wrong on one side only. Where it is not certain that every picture stays by itself, it says so, and the
//! encoder runs picture by picture.

use std::cell::Cell;

use super::content;
use super::fact::{BatchLayout, Dim, Fact, Fault, Kind, coupled, distinct, place, unknown};
use crate::graph::{ElementType, Node, Tensor};

/// Operators that draw random numbers.
pub(super) const RANDOM: [&str; 6] =
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"];

/// Operators with bodies; what happens inside is not followed.
const BODIES: [&str; 5] = ["If", "Loop", "Scan", "SequenceMap", "SequenceAt"];

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

/// A node with what is known about its inputs.
pub(super) struct Args<'g> {
    pub(super) node: &'g Node,
    pub(super) inputs: Vec<Option<Fact<'g>>>,
    pub(super) operators: i64,
    pub(super) fixed: Option<i64>,
    /// Whether a rule asked for an attribute that is there with another type.
    pub(super) mistyped: Cell<bool>,
}

pub(super) type Outcome<'g> = Result<Vec<Fact<'g>>, Fault>;

impl<'g> Args<'g> {
    /// Facts about the outputs, in order.
    pub(super) fn apply(&self) -> Outcome<'g> {
        let node = self.node;
        let name = node.operator.as_str();
        if node.is_standard() && BODIES.contains(&name) || node.subgraphs().next().is_some() {
            return unknown("what happens in its branches is not followed");
        }
        let found = if node.is_standard() { self.standard(name) } else { self.contributed() };
        let found = match found {
            // The rule went by the default, an engine may go by the value.
            Ok(_) if self.mistyped.get() => unknown("an attribute of it has another type than it should"),
            Ok(facts) => facts.into_iter().map(|fact| self.honest(fact)).collect(),
            Err(fault) => Err(fault),
        };
        if !node.is_standard() {
            return found;
        }
        // Whatever is computed from constants is a constant, even where its shape is not known.
        match found {
            Err(Fault::Random) => Err(Fault::Random),
            Err(fault) => {
                let facts = || self.inputs.iter().flatten();
                if facts().any(|fact| fact.batch().is_some()) || self.inputs.is_empty() {
                    return Err(fault);
                }
                let sized = facts().any(|fact| fact.kind == Kind::Sized);
                let fact = if sized { Fact::sized(None) } else { Fact::constant(None) };
                Ok(vec![fact; node.outputs.len()])
            }
            Ok(facts) => Ok(facts),
        }
    }

    /// A result that would depend on less than the inputs do is believed only where its numbers are known.
    fn honest(&self, fact: Fact<'g>) -> Result<Fact<'g>, Fault> {
        let facts = || self.inputs.iter().flatten();
        // The first two ask for lengths only, the third for a type.
        if fact.kind != Kind::Constant
            || fact.content.is_some()
            || ["Shape", "Size", "CastLike"].contains(&self.node.operator.as_str())
        {
            return Ok(fact);
        }
        if facts().any(|input| input.batch().is_some()) {
            return unknown("what it makes of the pictures is not followed");
        }
        Ok(if facts().any(|input| input.kind == Kind::Sized) { Fact::sized(None) } else { fact })
    }

    /// An attribute, if it is there; one that is there with another type spoils what the rule finds.
    fn typed<T>(&self, name: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && self.node.attributes.iter().any(|attribute| attribute.name == name) {
            self.mistyped.set(true);
        }
        value
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.typed(name, self.node.int(name))
    }

    pub(super) fn ints(&self, name: &str) -> Option<&'g [i64]> {
        self.typed(name, self.node.ints(name))
    }

    fn float(&self, name: &str) -> Option<f32> {
        self.typed(name, self.node.float(name))
    }

    pub(super) fn floats(&self, name: &str) -> Option<&'g [f32]> {
        self.typed(name, self.node.floats(name))
    }

    pub(super) fn text(&self, name: &str) -> Option<&'g str> {
        self.typed(name, self.node.text(name))
    }

    fn tensor(&self, name: &str) -> Option<&'g Tensor> {
        self.typed(name, self.node.tensor(name))
    }

    /// Demands that an attribute and the input that took its place are not both there: engines differ in whom they obey.
    pub(super) fn said_once(&self, attribute: &str, input: usize) -> Result<(), Fault> {
        let named = self.node.attributes.iter().any(|other| other.name == attribute);
        if named && self.optional(input).is_some() {
            return unknown("an attribute and an input of it say the same thing");
        }
        Ok(())
    }

    fn standard(&self, name: &str) -> Outcome<'g> {
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
    fn contributed(&self) -> Outcome<'g> {
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

    pub(super) fn input(&self, place: usize) -> Result<&Fact<'g>, Fault> {
        let fact = self.inputs.get(place).and_then(Option::as_ref);
        fact.ok_or_else(|| Fault::Unknown(format!("its input {place} was left out")))
    }

    pub(super) fn optional(&self, place: usize) -> Option<&Fact<'g>> {
        self.inputs.get(place).and_then(Option::as_ref)
    }

    /// Demands that these inputs, where given, are constants.
    pub(super) fn constants(&self, places: std::ops::Range<usize>) -> Result<(), Fault> {
        for fact in places.filter_map(|place| self.optional(place)) {
            match fact.kind {
                Kind::Constant => {}
                Kind::Sized => return coupled("its parameters depend on how many pictures there are"),
                Kind::Batched { .. } => return coupled("its parameters are computed from the pictures"),
            }
        }
        Ok(())
    }

    /// Demands that an input, where given, is one constant number.
    pub(super) fn single(&self, place: usize) -> Result<(), Fault> {
        self.constants(place..place + 1)?;
        match self.optional(place) {
            Some(fact) if !fact.is_single() => unknown("a scale or zero point of it is not one number"),
            Some(_) | None => Ok(()),
        }
    }

    /// Demands that scales and zero points of a right operand are constants, and single ones if the pictures are its
    /// columns.
    fn of_columns(&self, right: usize, mut places: std::ops::Range<usize>) -> Result<(), Fault> {
        match self.input(right)?.batch() {
            Some(_) => places.try_for_each(|place| self.single(place)),
            None => self.constants(places),
        }
    }

    /// Demands that the batch lies on none of these axes.
    pub(super) fn apart(&self, fact: &Fact<'_>, axes: &[i64], why: &str) -> Result<(), Fault> {
        let Some((batch, _)) = fact.batch() else { return Ok(()) };
        let rank = fact.dims()?.len();
        for &axis in axes {
            if place(axis, rank)? == batch {
                return coupled(why);
            }
        }
        Ok(())
    }

    /// An operator that works along one axis and keeps the shape.
    fn along(&self, axis: i64, why: &str) -> Outcome<'g> {
        let fact = self.input(0)?;
        self.apart(fact, &[axis], why)?;
        Ok(vec![fact.other_numbers()])
    }

    fn unary(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let mut result = fact.other_numbers();
        if self.node.operator == "Neg"
            && let Some(numbers) = &fact.content
        {
            let zero = Dim::Known(0);
            let negated: Option<Vec<Dim>> = numbers
                .iter()
                .map(|&number| match number {
                    Dim::Batch(times) => times.checked_neg().map(Dim::Batch),
                    number => content::binary("Sub", zero, number),
                })
                .collect();
            result.content = negated;
        }
        if ["Floor", "Ceil", "Round"].contains(&self.node.operator.as_str()) {
            result.content = fact.content.clone();
        }
        Ok(vec![result])
    }

    /// Integers stay what they are in every type that holds them exactly.
    fn cast(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let mut result = fact.other_numbers();
        let wide = [ElementType::INT32, ElementType::INT64, ElementType::FLOAT, ElementType::DOUBLE];
        let target = ElementType(self.int("to").unwrap_or(0) as u64);
        result.content = fact.content.clone().filter(|content| {
            wide.contains(&target)
                && (target == ElementType::INT64 || content.iter().copied().all(content::is_exact))
        });
        if target == ElementType::BOOL
            && let Ok(numbers) = fact.known_numbers()
        {
            let flags = numbers.iter().map(|&number| Dim::Known(i64::from(number != 0)));
            result.content = Some(flags.collect());
        }
        Ok(vec![result])
    }

    /// In training some numbers are dropped at random.
    fn dropout(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let training = match self.optional(2) {
            None => false,
            Some(mode) => mode.known_numbers()? != [0],
        };
        let training = training || self.operators < 7 && self.int("is_test").unwrap_or(0) == 0;
        if training {
            return Err(Fault::Random);
        }
        Ok(vec![fact.other_numbers(), fact.other_numbers()])
    }

    fn elementwise(&self) -> Outcome<'g> {
        let facts: Vec<&Fact<'g>> = self.inputs.iter().flatten().collect();
        if facts.is_empty() {
            return unknown("it takes nothing");
        }
        // Before ONNX 7 the second input was aligned by an attribute, not from the right.
        if self.operators < 7 && self.int("broadcast").unwrap_or(0) != 0 {
            return unknown("it broadcasts by the rules of old ONNX versions");
        }
        if let Some(fact) = self.numbers(&facts) {
            return Ok(vec![fact]);
        }
        Ok(vec![broadcast(&facts)?])
    }

    /// The result as integers, if all inputs are some that are followed.
    fn numbers(&self, facts: &[&Fact<'g>]) -> Option<Fact<'g>> {
        let contents: Vec<&[Dim]> =
            facts.iter().map(|fact| fact.content.as_deref()).collect::<Option<_>>()?;
        if facts.iter().any(|fact| fact.shape.as_ref().is_none_or(|shape| shape.len() > 1)) {
            return None;
        }
        let length = contents.iter().map(|content| content.len()).max()?;
        if contents.iter().any(|content| content.len() != length && content.len() != 1) {
            return None;
        }
        let at = |content: &[Dim], place: usize| if content.len() == 1 { content[0] } else { content[place] };
        let results: Option<Vec<Dim>> = (0..length)
            .map(|place| match (self.node.operator.as_str(), &contents[..]) {
                ("Where", [flag, yes, no]) => match at(flag, place) {
                    Dim::Known(0) => Some(at(no, place)),
                    Dim::Known(_) => Some(at(yes, place)),
                    Dim::Batch(_) | Dim::Open => None,
                },
                (operator, [left, right]) => content::binary(operator, at(left, place), at(right, place)),
                _ => None,
            })
            .collect();
        let shape =
            facts.iter().map(|fact| fact.shape.clone()).max_by_key(|shape| shape.as_ref().map(Vec::len))?;
        let shape = if length == 1 { shape } else { Some(vec![Dim::Known(length as i64)]) };
        results.map(|results| Fact::numbers(results, shape))
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

/// Aligns shapes from the right, as numpy does, with the pictures on one and the same axis.
pub(super) fn broadcast<'g>(facts: &[&Fact<'g>]) -> Result<Fact<'g>, Fault> {
    let batched = facts.iter().any(|fact| fact.batch().is_some());
    let sized = facts.iter().any(|fact| fact.kind == Kind::Sized);
    if !batched {
        let shape = facts.iter().map(|fact| fact.dims()).collect::<Result<Vec<_>, _>>();
        let shape = shape.and_then(|shapes| aligned(&shapes)).ok();
        return Ok(if sized { Fact::sized(shape) } else { Fact::constant(shape) });
    }
    if sized {
        return coupled("it mixes how many pictures there are into their values");
    }
    let shapes = facts.iter().map(|fact| fact.dims()).collect::<Result<Vec<_>, _>>()?;
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    // Axes are compared counted from the right.
    let mut found = None;
    for (fact, shape) in facts.iter().zip(&shapes) {
        let Some((axis, layout)) = fact.batch() else { continue };
        let here = (shape.len() - axis, layout);
        if *found.get_or_insert(here) != here {
            return coupled("it combines pictures in different places of the batch");
        }
    }
    let Some((from_right, layout)) = found else { return unknown("it takes no pictures") };
    for (fact, shape) in facts.iter().zip(&shapes) {
        let there = shape.len().checked_sub(from_right).map(|place| shape[place]);
        if fact.batch().is_none() && !matches!(there, None | Some(Dim::Known(1))) {
            return coupled("a constant of it differs from place to place of the batch");
        }
    }
    Fact::batched(rank - from_right, layout, aligned(&shapes)?)
}

/// The shape that these shapes broadcast to.
pub(super) fn aligned(shapes: &[&[Dim]]) -> Result<Vec<Dim>, Fault> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    (0..rank)
        .map(|axis| {
            let mut length = Dim::Known(1);
            for shape in shapes {
                let Some(place) = (axis + shape.len()).checked_sub(rank) else { continue };
                length = match (length, shape[place]) {
                    (Dim::Known(1), other) | (other, Dim::Known(1)) => other,
                    (one, other) if one == other => one,
                    (Dim::Open, Dim::Known(side)) | (Dim::Known(side), Dim::Open) => Dim::Known(side),
                    _ => return unknown("its shapes do not fit each other"),
                };
            }
            Ok(length)
        })
        .collect()
}
