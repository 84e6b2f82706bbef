//! Bounds that are never too small, on matrices, convolutions and whole networks, and networks that get none.

use std::fmt::Write;
use std::path::Path;

use retrievalguard::Embedder;

use super::norms::{self, Kernel};
use super::shapes::Windows;
use super::*;
use crate::engine::{Engine, EngineOptions, OnnxEmbedder};
use crate::graph::builder;

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    fn below(&mut self, limit: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * limit as f64) as usize % limit
    }

    fn singles(&mut self, count: usize, scale: f64) -> Vec<f64> {
        (0..count).map(|_| f64::from((scale * self.next()) as f32)).collect()
    }
}

fn config(rest: &str) -> ModelConfig {
    let text = "[input]\nchannels = 3\nheight = 8\nwidth = 8\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n[resize]\nrule = \"none\"\n\
                [crop]\nrule = \"none\"\n[output]\nnormalise = false\nnorm_bound = 1e6\n";
    ModelConfig::from_toml(&match rest {
        "" => text.to_owned(),
        "normalise" => text.replace("normalise = false\nnorm_bound = 1e6", "normalise = true"),
        std => text.replace("std = [1, 1, 1]", &format!("std = {std}")),
    })
    .unwrap()
}

fn reading(lines: &str) -> BoundReading {
    let model = Model::from_bytes(Path::new("test.onnx"), builder::model(17, lines)).unwrap();
    BoundReading::of(&model, &config("")).unwrap()
}

fn bounded(lines: &str) -> NetworkBound {
    match reading(lines) {
        BoundReading::Bounded(bound) => bound,
        BoundReading::Unknown { .. } => panic!("{}\n{lines}", reading(lines)),
    }
}

/// A constant in the builder's words.
fn floats(name: &str, shape: &[usize], numbers: &[f64]) -> String {
    let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
    let mut text = format!("{name}: float[{}] = ", shape.join(","));
    for (place, number) in numbers.iter().enumerate() {
        write!(text, "{}{:e}", if place > 0 { "," } else { "" }, *number as f32).unwrap();
    }
    text.push('\n');
    text
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

/// The norm of a matrix given by what it does and what its transpose does: from below, by iteration.
fn norm_from_below(
    inputs: usize,
    forth: impl Fn(&[f64]) -> Vec<f64>,
    back: impl Fn(&[f64]) -> Vec<f64>,
) -> f64 {
    let mut numbers = Numbers(99);
    let mut vector: Vec<f64> = (0..inputs).map(|_| numbers.next()).collect();
    let mut norm = 0.0;
    for _ in 0..400 {
        let length = dot(&vector, &vector).sqrt();
        vector.iter_mut().for_each(|value| *value /= length);
        let image = forth(&vector);
        norm = dot(&image, &image).sqrt();
        vector = back(&image);
    }
    norm
}

/// A convolution of a small picture, as loops over everything.
fn convolve(kernel: &Kernel, windows: &Windows, side: usize, input: &[f64], turned: bool) -> Vec<f64> {
    let count = windows.count([side, side]).unwrap();
    let channels = kernel.inputs * kernel.groups;
    let mut output =
        vec![0.0; if turned { channels * side * side } else { kernel.outputs * count[0] * count[1] }];
    for out in 0..kernel.outputs {
        let group = out / (kernel.outputs / kernel.groups);
        for channel in 0..kernel.inputs {
            for (row, column) in (0..count[0]).flat_map(|row| (0..count[1]).map(move |column| (row, column)))
            {
                for (down, across) in (0..kernel.window[0])
                    .flat_map(|down| (0..kernel.window[1]).map(move |across| (down, across)))
                {
                    let at = |axis: usize, place: usize, offset: usize| {
                        (place * windows.strides[axis] + offset * windows.dilations[axis])
                            .checked_sub(windows.pads[axis])
                            .filter(|&place| place < side)
                    };
                    let (Some(y), Some(x)) = (at(0, row, down), at(1, column, across)) else { continue };
                    let weight = kernel.weights[((out * kernel.inputs + channel) * kernel.window[0] + down)
                        * kernel.window[1]
                        + across];
                    let outside = (out * count[0] + row) * count[1] + column;
                    let inside = ((group * kernel.inputs + channel) * side + y) * side + x;
                    if turned {
                        output[inside] += weight * input[outside];
                    } else {
                        output[outside] += weight * input[inside];
                    }
                }
            }
        }
    }
    output
}

#[test]
fn no_convolution_has_a_larger_norm_than_its_bound() {
    let mut numbers = Numbers(3);
    let mut tightest = f64::INFINITY;
    for trial in 0..60 {
        let groups = [1, 1, 2][trial % 3];
        let window = [1 + numbers.below(3), 1 + numbers.below(3)];
        let kernel = Kernel {
            outputs: groups * (1 + numbers.below(4)),
            inputs: 1 + numbers.below(4),
            groups,
            window,
            weights: vec![],
        };
        let weights = numbers.singles(kernel.outputs * kernel.terms(), 1.0);
        let kernel = Kernel { weights, ..kernel };
        let mut pair = |most: usize| [1 + numbers.below(most), 1 + numbers.below(most)];
        let (strides, dilations) = (pair(3), pair(2));
        let pads = [numbers.below(2), numbers.below(2), numbers.below(2), numbers.below(2)];
        let windows = Windows { kernel: window, strides, dilations, pads };
        let side = 9;
        let bound = norms::convolution(&kernel, &windows);
        let truth = norm_from_below(
            kernel.inputs * groups * side * side,
            |input| convolve(&kernel, &windows, side, input, false),
            |output| convolve(&kernel, &windows, side, output, true),
        );
        assert!(truth <= bound, "trial {trial}: {truth} above {bound}, {windows:?}");
        assert!(truth <= norms::absolute(&kernel) + 1e-12, "trial {trial}");
        tightest = tightest.min(bound / truth);
    }
    assert!(tightest < 1.02, "{tightest}");
}

#[test]
fn the_bound_of_a_matrix_is_tight_and_for_orthonormal_rows_within_a_ten_millionth() {
    let mut numbers = Numbers(7);
    for (outputs, inputs) in [(1, 1), (5, 40), (40, 5), (64, 64), (96, 300)] {
        let weights = numbers.singles(outputs * inputs, 1.0);
        let matrix = Kernel { outputs, inputs, groups: 1, window: [1, 1], weights };
        let row = |place: usize| &matrix.weights[place * inputs..(place + 1) * inputs];
        let truth = norm_from_below(
            inputs,
            |input| (0..outputs).map(|place| dot(row(place), input)).collect(),
            |output| {
                (0..inputs)
                    .map(|column| (0..outputs).map(|place| row(place)[column] * output[place]).sum())
                    .collect()
            },
        );
        let bound = norms::dense(&matrix);
        assert!(truth <= bound && bound < 1.01 * truth, "{outputs} × {inputs}: {truth} and {bound}");

        // Orthonormal rows, rounded to f32 as a file has them.
        let count = outputs.min(inputs);
        let mut rows: Vec<Vec<f64>> = Vec::new();
        for place in 0..count {
            let mut own = row(place).to_vec();
            for _ in 0..2 {
                for other in &rows {
                    let share = dot(&own, other);
                    own.iter_mut().zip(other).for_each(|(value, other)| *value -= share * other);
                }
            }
            let length = dot(&own, &own).sqrt();
            rows.push(own.into_iter().map(|value| value / length).collect());
        }
        let weights: Vec<f64> = rows.concat().into_iter().map(|value| f64::from(value as f32)).collect();
        let matrix = Kernel { outputs: count, inputs, groups: 1, window: [1, 1], weights };
        let row = |place: usize| &matrix.weights[place * inputs..(place + 1) * inputs];
        let truth = norm_from_below(
            inputs,
            |input| (0..count).map(|place| dot(row(place), input)).collect(),
            |output| {
                (0..inputs)
                    .map(|column| (0..count).map(|place| row(place)[column] * output[place]).sum())
                    .collect()
            },
        );
        let bound = norms::dense(&matrix);
        assert!(bound >= truth && bound <= truth + 1e-7, "{count} × {inputs}: {bound} and {truth}");
    }
}

/// The residual layer's lines: `K` of `inner` channels over `channels`, 3 × 3, and `D = 2/T` times `slack`.
fn residual(
    numbers: &mut Numbers,
    name: &str,
    input: &str,
    channels: usize,
    inner: usize,
    slack: f64,
) -> String {
    let weights = numbers.singles(inner * channels * 9, 0.4);
    let kernel =
        Kernel { outputs: inner, inputs: channels, groups: 1, window: [3, 3], weights: weights.clone() };
    let windows = Windows { kernel: [3, 3], strides: [1, 1], dilations: [1, 1], pads: [1; 4] };
    let correlations = norms::correlations(&kernel, &windows);
    // T with weights q of its own, as training finds them.
    let q: Vec<f64> = (0..inner).map(|_| 1.5 + numbers.next()).collect();
    let scales: Vec<f64> = (0..inner)
        .map(|row| {
            let sum: f64 =
                (0..inner).map(|column| correlations[row * inner + column] * q[column] / q[row]).sum();
            let scale = slack * 2.0 / sum;
            // Towards zero.
            let single = scale as f32;
            f64::from(if f64::from(single) > scale { single.next_down() } else { single })
        })
        .collect();
    let bias = numbers.singles(inner, 0.3);
    let mut lines = floats(&format!("{name}k"), &[inner, channels, 3, 3], &weights);
    lines += &floats(&format!("{name}d"), &[1, inner, 1, 1], &scales);
    lines += &floats(&format!("{name}b"), &[1, inner, 1, 1], &bias);
    lines
        + &format!(
            "{name}c = Conv({input}, {name}k) pads=[1,1,1,1] strides=[1,1] dilations=[1,1]\n{name}a = Add({name}c, {name}b)\n{name}r = Relu({name}a)\n\
             {name}m = Mul({name}r, {name}d)\n{name}t = ConvTranspose({name}m, {name}k) pads=[1,1,1,1] strides=[1,1] dilations=[1,1]\n\
             {name} = Sub({input}, {name}t)\n"
        )
}

fn head(numbers: &mut Numbers, input: &str, columns: usize, rows: usize) -> String {
    floats("w", &[columns, rows], &numbers.singles(columns * rows, 0.1))
        + &format!("f = Flatten({input})\nembeddings = MatMul(f, w)\n")
}

#[test]
fn a_residual_layer_has_the_constant_one() {
    let mut numbers = Numbers(5);
    let lines = residual(&mut numbers, "l", "pictures", 3, 7, 1.0) + "embeddings = Flatten(l)\n";
    let bound = bounded(&lines);
    assert!(bound.constant <= 1.0 + 1e-7, "{}", bound.constant);
    let layers: Vec<&str> = bound.layers.iter().map(|layer| layer.operator.as_str()).collect();
    assert_eq!(layers, ["residual layer"]);
    // A stride, groups of two, and rows that no window reaches.
    let strided = lines.replace("strides=[1,1]", "strides=[2,2]").replacen(
        "ConvTranspose(lm, lk) pads=[1,1,1,1] strides=[2,2]",
        "ConvTranspose(lm, lk) pads=[1,1,1,1] strides=[2,2] output_padding=[1,1]",
        1,
    );
    assert!(bounded(&strided).constant <= 1.0 + 1e-7);
    // The dense form.
    let weights = numbers.singles(5 * 192, 0.2);
    let total: f64 = weights.iter().map(|weight| weight * weight).sum();
    let dense = "f = Flatten(pictures)\n".to_owned()
        + &floats("k", &[5, 192], &weights)
        + &floats("d", &[5], &[0.9 * 2.0 / (5.0 * total); 5])
        + &floats("b", &[5], &[0.1; 5])
        + "c = Gemm(f, k, b) transB=1\nr = Relu(c)\nm = Mul(d, r)\nt = MatMul(m, k)\nembeddings = Sub(f, t)\n";
    assert_eq!(bounded(&dense).constant, 1.0);
}

#[test]
fn residual_layers_that_are_none_get_no_bound() {
    let mut numbers = Numbers(6);
    let lines = residual(&mut numbers, "l", "pictures", 3, 7, 1.0) + "embeddings = Flatten(l)\n";
    let kernel = lines.lines().find(|line| line.starts_with("lk:")).unwrap();
    let (before, last) = kernel.rsplit_once(',').unwrap();
    let nudged = f32::from_bits(last.parse::<f32>().unwrap().to_bits() + 1);
    let other = format!("{},{nudged:e}\n", before.replacen("lk:", "lz:", 1));
    let apart = lines.replace("ConvTranspose(lm, lk)", "ConvTranspose(lm, lz)");
    let larger = residual(&mut Numbers(6), "l", "pictures", 3, 7, 1.2) + "embeddings = Flatten(l)\n";
    let table = [
        ("one weight changed", other.clone() + &apart, "other weights (number 188)"),
        ("wrong T", larger, "the scale of this residual layer is too large"),
        (
            "other pads",
            lines.replace("ConvTranspose(lm, lk) pads=[1,1,1,1]", "ConvTranspose(lm, lk) pads=[0,0,2,2]"),
            "other pads",
        ),
        (
            "another size",
            lines.replace(
                "ConvTranspose(lm, lk) pads=[1,1,1,1] strides=[1,1]",
                "ConvTranspose(lm, lk) pads=[1,1,1,1] strides=[2,2]",
            ),
            "other pads, strides",
        ),
        (
            "a sum",
            lines.replace("l = Sub(pictures, lt)", "l = Add(pictures, lt)"),
            "only as the end of a residual layer",
        ),
        (
            "another stem",
            lines.replace("Sub(pictures, lt)", "Sub(half, lt)")
                + "s: float[1] = 0.5\nhalf = Mul(pictures, s)\n",
            "only as the end of a residual layer",
        ),
        (
            "added to itself",
            lines.replace("la = Add(lc, lb)", "la = Add(lc, lc)"),
            "only as the end of a residual layer",
        ),
        ("a bias that repeats", lines.replace("lb: float[1,7,1,1]", "lb: float[7,1,1,1]"), "repeats"),
        ("a scale that repeats", lines.replace("ld: float[1,7,1,1]", "ld: float[7,1,1,1]"), "repeats"),
        ("no relu", lines.replace("lr = Relu(la)", "lr = Neg(la)"), "only as the end of a residual layer"),
        (
            "negative scale",
            lines.replace("Mul(lr, ld)", "Mul(lr, minus)") + "minus: float[1] = -0.001\n",
            "negative somewhere",
        ),
    ];
    for (case, lines, words) in table {
        let found = reading(&lines).to_string();
        assert!(found.starts_with("no Lipschitz bound") && found.contains(words), "{case}: {found}");
    }
}

#[test]
fn every_operator_has_its_constant() {
    let half = "c: float[1] = 0.5\n";
    let table: [(&str, String, f64); 19] = [
        ("relu", "x = Relu(pictures)\n".into(), 1.0),
        ("clip", "l: float[] = 0\nu: float[] = 6\nx = Clip(pictures, l, u)\n".into(), 1.0),
        ("shift", "c: float[3,1,1] = 1,2,-3\nx = Add(c, pictures)\n".into(), 1.0),
        ("scale", "c: float[3,1,1] = 1,2,-3\nx = Mul(pictures, c)\n".into(), 3.0),
        ("divide", "c: float[3,1,1] = 1,-0.25,4\nx = Div(pictures, c)\n".into(), 4.0),
        ("average", "x = AveragePool(pictures) kernel_shape=[2,2] strides=[2,2]\n".into(), 0.5),
        ("average of all", "x = GlobalAveragePool(pictures)\n".into(), 0.125),
        ("largest", "x = MaxPool(pictures) kernel_shape=[2,2] strides=[2,2]\n".into(), 1.0),
        ("blocks", "x = SpaceToDepth(pictures) blocksize=2\n".into(), 1.0),
        (
            "axes",
            "s: int[4] = 1,3,-1,4\nr = Reshape(pictures, s)\nx = Transpose(r) perm=[0,3,1,2]\n".into(),
            1.0,
        ),
        ("frame", "p: int[8] = 0,0,1,1,0,0,2,2\nv: float[1] = 0.3\nx = Pad(pictures, p, v)\n".into(), 1.0),
        ("branches", "r = Relu(pictures)\nx = Add(r, pictures)\n".into(), 2.0),
        ("side by side", "r = Relu(pictures)\nx = Concat(r, pictures) axis=1\n".into(), 2.0_f64.sqrt()),
        ("cut and joined", "a, b, d = Split(pictures) axis=1\nx = Concat(d, a, b) axis=1\n".into(), 1.0),
        (
            "sorted pairs",
            "a, b = Split(pictures) axis=2\nl = Max(a, b)\ns = Min(b, a)\nx = Concat(l, s) axis=2\n".into(),
            1.0,
        ),
        ("sorted", "k: int[1] = 8\nx, i = TopK(pictures, k) axis=-1\n".into(), 1.0),
        ("chosen", "i: int[2] = 2,0\nx = Gather(pictures, i) axis=1\n".into(), 1.0),
        (
            "mean filter",
            "w: float[3,1,2,2] = 0.25,0.25,0.25,0.25,0.25,0.25,0.25,0.25,0.25,0.25,0.25,0.25\n\
           x = Conv(pictures, w) group=3 strides=[2,2]\n"
                .into(),
            0.5,
        ),
        ("halves", format!("{half}a = Mul(pictures, c)\nx = Mul(a, c)\n"), 0.25),
    ];
    for (case, lines, wanted) in table {
        let bound = bounded(&(lines + "embeddings = Flatten(x)\n"));
        let found = bound.constant;
        assert!(found >= wanted && found <= wanted * (1.0 + 1e-12), "{case}: {found}, wanted {wanted}");
    }
    // Preprocessing belongs to the encoder.
    let model =
        Model::from_bytes(Path::new("t"), builder::model(17, "embeddings = Flatten(pictures)\n")).unwrap();
    let BoundReading::Bounded(bound) = BoundReading::of(&model, &config("[0.5, 0.25, 1]")).unwrap() else {
        panic!("no bound")
    };
    assert!(
        bound.constant >= 4.0 && bound.constant < 4.0 + 1e-12 && bound.layers[0].operator == "preprocessing"
    );
}

#[test]
fn what_is_not_understood_is_named_and_gets_no_bound() {
    let table = [
        ("m: float[3]\nx = BatchNormalization(pictures, m, m, m, m)\n", "x` (BatchNormalization)", "left in"),
        ("x = LpNormalization(pictures) axis=1\n", "x` (LpNormalization)", "fixed length"),
        ("n = Abs(pictures)\nx = Div(pictures, n)\n", "x` (Div)", "as a normalisation does"),
        ("x = Mul(pictures, pictures)\n", "x` (Mul)", "two values"),
        ("x = Softmax(pictures)\n", "x` (Softmax)", "nothing is known"),
        ("x = com.microsoft::Gelu(pictures)\n", "x` (Gelu)", "ONNX's own"),
        (
            "w: float[1,3,1,1] = 1,nan,1\nx = Conv(pictures, w)\n",
            "x` (Conv)",
            "number 1 of its constant `w` is NaN",
        ),
        ("w: float[1,3,1,1] = 1,inf,1\nx = Conv(pictures, w)\n", "x` (Conv)", "finite weights"),
        ("i: int[2] = 1,1\nx = Gather(pictures, i) axis=1\n", "x` (Gather)", "twice"),
        ("p: int[8] = 0,0,1,1,0,0,1,1\nx = Pad(pictures, p) mode=reflect\n", "x` (Pad)", "repeats numbers"),
        (
            "x = AveragePool(pictures) kernel_shape=[2,2] strides=[2,2] pads=[1,1,1,1]\n",
            "x` (AveragePool)",
            "padding",
        ),
        (
            "x = AveragePool(pictures) kernel_shape=[3,3] strides=[2,2] ceil_mode=1\n",
            "x` (AveragePool)",
            "ceil",
        ),
        ("x = MaxPool(pictures) kernel_shape=[3,3] strides=[2,2]\n", "x` (MaxPool)", "overlap"),
        ("c: float[5,1,3,1,1]\nx = Mul(pictures, c)\n", "x` (Mul)", "repeats a value"),
        ("w: float[3,3,1,1]\nx = Conv(pictures, w) strides=2\n", "x` (Conv)", "`strides` has another type"),
        ("w: float[3,3,1,1]\nx = Conv(pictures, w) auto_pad=SAME_UPPER\n", "x` (Conv)", "explicit pads"),
        // What an evaluation obeys and a bound does not look at would be certified as something else.
        (
            "s: int[1] = 0\ne: int[1] = 8\na: int[1] = 2\nx = Slice(pictures, s, e, a) starts=[0] ends=[1] axes=[2]\n",
            "x` (Slice)",
            "another version",
        ),
        (
            "p: int[8] = 0,0,1,1,0,0,1,1\nf: float[1] = 0\nx = Pad(pictures, p, f) value=9\n",
            "x` (Pad)",
            "another version",
        ),
        ("x = Clip(pictures) min=9\n", "x` (Clip)", "another version"),
    ];
    for (lines, node, words) in table {
        let found = reading(&(lines.to_owned() + "embeddings = Flatten(x)\n")).to_string();
        assert!(found.contains(node) && found.contains(words), "{found}");
    }
    let model =
        Model::from_bytes(Path::new("t"), builder::model(17, "embeddings = Flatten(pictures)\n")).unwrap();
    let found = BoundReading::of(&model, &config("normalise")).unwrap().to_string();
    assert!(found.contains("model config") && found.contains("length 1"), "{found}");
}

#[test]
fn a_constant_in_a_long_sum_is_charged_for_every_rounding_behind_it() {
    let error = |inputs: usize| {
        let branches = vec!["pictures"; inputs].join(", ");
        let lines =
            format!("c: float[1,3,1,1] = 1e15,1e15,1e15\nx = Sum(c, {branches})\nembeddings = Flatten(x)\n");
        match reading(&lines) {
            BoundReading::Bounded(bound) => bound.double_error.offset,
            unknown @ BoundReading::Unknown { .. } => panic!("{unknown}"),
        }
    };
    assert!(error(8) >= 7.9 * error(1), "{} and {}", error(8), error(1));
}

/// A network of random layers, its lines and how long its embeddings are.
fn random_network(numbers: &mut Numbers) -> String {
    let (mut lines, mut input) = (String::new(), "pictures".to_owned());
    let (mut channels, mut side) = (3, 8);
    for layer in 0..3 {
        let name = format!("v{layer}");
        match numbers.below(6) {
            0 => {
                let inner = 4 + numbers.below(5);
                lines += &residual(numbers, &name, &input, channels, inner, 1.0);
            }
            1 if side > 3 => {
                // SpaceToDepth in steps, because the engine does not know it.
                let half = side / 2;
                lines += &format!(
                    "{name}i: int[6] = -1,{channels},{half},2,{half},2\n{name}o: int[4] = -1,{},{half},{half}\n\
                     {name}s = Reshape({input}, {name}i)\n{name}t = Transpose({name}s) perm=[0,3,5,1,2,4]\n\
                     {name} = Reshape({name}t, {name}o)\n",
                    4 * channels
                );
                (channels, side) = (channels * 4, side / 2);
            }
            2 if channels % 2 == 0 => {
                let half = channels / 2;
                lines += &format!(
                    "{name}h: int[2] = {half},{half}\n{name}a, {name}b = Split({input}, {name}h) axis=1\n{name}l = Max({name}a, {name}b)\n\
                     {name}s = Min({name}a, {name}b)\n{name} = Concat({name}l, {name}s) axis=1\n"
                );
            }
            3 if side > 3 => {
                lines += &format!(
                    "{name} = AveragePool({input}) kernel_shape=[2,2] strides=[2,2] pads=[0,0,0,0]\n"
                );
                side /= 2;
            }
            4 => {
                lines += &format!("{name}r = Relu({input})\n{name} = Add({name}r, {input})\n");
            }
            _ => {
                let outputs = 2 * (1 + numbers.below(4));
                lines += &floats(
                    &format!("{name}w"),
                    &[outputs, channels, 3, 3],
                    &numbers.singles(outputs * channels * 9, 0.3),
                );
                lines += &floats(&format!("{name}b"), &[outputs], &numbers.singles(outputs, 0.3));
                lines += &format!(
                    "{name}c = Conv({input}, {name}w, {name}b) pads=[1,1,1,1] strides=[1,1] dilations=[1,1]\n{name} = Relu({name}c)\n"
                );
                channels = outputs;
            }
        }
        input = name;
    }
    lines + &head(numbers, &input, channels * side * side, 6)
}

#[test]
fn no_random_network_moves_faster_than_its_bound_and_none_computes_worse_than_its_error() {
    let mut numbers = Numbers(17);
    let folder = tempfile::tempdir().unwrap();
    let mut tightest = f64::INFINITY;
    for trial in 0..50 {
        let lines = random_network(&mut numbers);
        let bound = bounded(&lines);
        // The engine wants a shape of its input.
        let path = folder.path().join(format!("{trial}.onnx"));
        std::fs::write(&path, builder::model(17, &lines)).unwrap();
        let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
        let embedder = OnnxEmbedder::open(&path, config(""), &options).unwrap();
        let embed = |picture: &[f32]| {
            let mut embedding = vec![0.0_f32; embedder.dimension()];
            embedder.embed(picture, &mut embedding).unwrap();
            embedding.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>()
        };
        let picture: Vec<f32> = (0..192).map(|_| ((numbers.next() + 1.0) / 2.0) as f32).collect();
        let centre = embed(&picture);
        // Its Jacobian by differences: a step short enough to cross few kinks and long enough for f32.
        let step = 1.0 / 64.0;
        let columns: Vec<Vec<f64>> = (0..192)
            .map(|pixel| {
                let mut moved = picture.clone();
                moved[pixel] += step;
                embed(&moved)
                    .iter()
                    .zip(&centre)
                    .map(|(there, here)| (there - here) / f64::from(step))
                    .collect()
            })
            .collect();
        let mut direction = norm_direction(&columns);
        // Far enough that rounding does not matter beside it.
        direction.iter_mut().for_each(|value| *value *= 0.5);
        let moved: Vec<f32> =
            picture.iter().zip(&direction).map(|(&pixel, &change)| pixel + change as f32).collect();
        let there = embed(&moved);
        let length = |values: Vec<f64>| dot(&values, &values).sqrt();
        let gone = length(there.iter().zip(&centre).map(|(there, here)| there - here).collect());
        let went = length(moved.iter().zip(&picture).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect());
        let norm = 1.1 * length(picture.iter().map(|&value| f64::from(value)).collect());
        let error = bound.single_error.at(norm).unwrap().get();
        assert!(gone <= bound.constant * went + 2.0 * error, "trial {trial}: {gone} after {went}\n{lines}");
        assert!(2.0 * error < 0.1 * bound.constant * went, "trial {trial}: nothing could fail");
        tightest = tightest.min(bound.constant * went / gone);
        let double = bound.at(Precision::Double, norm).unwrap();
        assert!(double.forward_error.get() < 1e-8 * error && double.origin == ConstantOrigin::Verified);
    }
    assert!(tightest < 3.0, "{tightest}");
}

/// The unit vector that a matrix stretches most, by its columns.
fn norm_direction(columns: &[Vec<f64>]) -> Vec<f64> {
    let mut direction = vec![1.0; columns.len()];
    for _ in 0..200 {
        let length = dot(&direction, &direction).sqrt();
        let image = (0..columns[0].len()).map(|row| {
            columns.iter().zip(&direction).map(|(column, value)| column[row] * value).sum::<f64>() / length
        });
        let image: Vec<f64> = image.collect();
        direction = columns.iter().map(|column| dot(column, &image)).collect();
    }
    let length = dot(&direction, &direction).sqrt();
    direction.into_iter().map(|value| value / length).collect()
}

#[test]
fn a_bound_is_printed_no_smaller_than_it_is() {
    for (value, shown) in [(1.000_000_000_1, "1.000001"), (1.0, "1.000000"), (0.123_456_1, "0.123457")] {
        assert_eq!(Above(value).to_string(), shown);
    }
    assert_eq!(format!("{:>8.2}|", Above(1.001)), "    1.01|");
}

#[test]
fn weights_whose_products_overflow_have_no_small_bound() {
    let absolute = [f64::INFINITY, f64::NAN, f64::NAN, f64::INFINITY];
    assert_eq!(norms::weighted(&absolute, &[1.0, 1.0], 0.0), f64::INFINITY);
    let weights = vec![1e160, 1e160, 1e160, -1e160];
    let kernel = Kernel { outputs: 2, inputs: 2, groups: 1, window: [1, 1], weights };
    assert!(norms::dense(&kernel) >= 1e160);
}
