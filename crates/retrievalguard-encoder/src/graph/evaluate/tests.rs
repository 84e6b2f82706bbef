use std::path::Path;

use super::*;
use crate::graph::builder::{self, random};

const SHAPE: [usize; 4] = [2, 3, 8, 8];

fn evaluator<S: Scalar>(operators: i64, lines: &str) -> Result<Evaluator<S>, EvaluationError> {
    let path = Path::new("test.onnx");
    let model = Model::from_bytes(path, builder::model(operators, lines)).unwrap();
    let spec = EvaluationSpec { input: "pictures", shape: &SHAPE, output: "embeddings" };
    Evaluator::new(path, &model, &spec)
}

/// Compares the gradient of a random score with its slope along random directions.
fn slopes_agree(case: &str, evaluator: &Evaluator<f64>, picture: &[f64]) {
    let trace = evaluator.trace(picture, 1).unwrap();
    let value = evaluator.value(picture, 2).unwrap();
    assert_eq!(trace.value(), value, "{case}: keeping changes the value");
    assert!(value.iter().all(|value| value.is_finite()), "{case}: {value:?}");
    let score: Vec<f64> = random(5, value.len()).collect();
    let gradient = evaluator.pull_back(trace, &score, 1).unwrap();
    let again = evaluator.pull_back(evaluator.trace(picture, 2).unwrap(), &score, 2).unwrap();
    assert_eq!(gradient, again, "{case}: threads change the gradient");
    let scored = |picture: &[f64]| -> f64 {
        evaluator.value(picture, 1).unwrap().iter().zip(&score).map(|(value, score)| value * score).sum()
    };
    let step = 1e-6;
    let size: f64 = gradient.iter().map(|slope| slope * slope).sum::<f64>().sqrt();
    assert!(size > 0.0, "{case}: no gradient at all");
    for seed in 10..16 {
        let direction: Vec<f64> = random(seed, picture.len()).collect();
        let moved = |factor: f64| -> Vec<f64> {
            picture.iter().zip(&direction).map(|(pixel, direction)| pixel + factor * direction).collect()
        };
        let measured = (scored(&moved(step)) - scored(&moved(-step))) / (2.0 * step);
        let computed: f64 = gradient.iter().zip(&direction).map(|(slope, step)| slope * step).sum();
        assert!((measured - computed).abs() < 1e-6 * size.max(1.0), "{case}: {measured} against {computed}");
    }
}

/// Every operator that is known, in a graph of its own, with the settings that differ from the usual ones.
const OPERATORS: &[(&str, &str)] = &[
    (
        "a convolution",
        "w: float[5,3,3,3] = random\nb: float[5] = random\nembeddings = Conv(pictures, w, b) pads=[1,1,1,1]",
    ),
    (
        "strides, pads that differ and dilation",
        "w: float[5,3,3,2] = random\nembeddings = Conv(pictures, w) pads=[0,1,2,1] strides=[2,3] dilations=[2,1]",
    ),
    ("a pointwise convolution", "w: float[4,3,1,1] = random\nembeddings = Conv(pictures, w)"),
    ("groups", "w: float[6,1,3,3] = random\nembeddings = Conv(pictures, w) group=3 pads=[1,1,1,1]"),
    (
        "a depthwise convolution",
        "w: float[3,1,5,5] = random\nembeddings = Conv(pictures, w) group=3 pads=[2,2,2,2] strides=[2,2]",
    ),
    (
        "kernels larger than the picture",
        "w: float[3,1,9,9] = random\nembeddings = Conv(pictures, w) group=3 pads=[4,4,4,4]",
    ),
    (
        "padding to the same size",
        "w: float[2,3,3,3] = random\nembeddings = Conv(pictures, w) auto_pad=SAME_UPPER strides=[2,2]",
    ),
    (
        "a transposed convolution",
        "w: float[3,5,3,3] = random\nb: float[5] = random\nembeddings = ConvTranspose(pictures, w, b) pads=[1,1,1,1] strides=[2,2] output_padding=[1,1]",
    ),
    (
        "groups of a transposed convolution",
        "w: float[3,2,2,3] = random\nembeddings = ConvTranspose(pictures, w) group=3 dilations=[2,1]",
    ),
    (
        "a matrix",
        "w: float[7,192] = random\nb: float[7] = random\nf = Flatten(pictures)\nembeddings = Gemm(f, w, b) transB=1 alpha=0.5 beta=2.0",
    ),
    (
        "a transposed matrix",
        "w: float[2,4] = random\nf = Flatten(pictures)\nembeddings = Gemm(f, w) transA=1",
    ),
    ("a product with a constant", "w: float[8,5] = random\nembeddings = MatMul(pictures, w)"),
    ("a product with a constant on the left", "w: float[3,5,8] = random\nembeddings = MatMul(w, pictures)"),
    ("a product of values", "t = Transpose(pictures) perm=[0,1,3,2]\nembeddings = MatMul(pictures, t)"),
    ("a product of stretched values", "m = ReduceMean(pictures) axes=[1]\nembeddings = MatMul(m, pictures)"),
    ("a product with a vector", "w: float[8] = random\nembeddings = MatMul(pictures, w)"),
    (
        "batch normalisation",
        "s: float[3] = random\nb: float[3] = random\nm: float[3] = random\nv: float[3] = 0.5,1,2\nembeddings = BatchNormalization(pictures, s, b, m, v) epsilon=0.001",
    ),
    ("relu", "embeddings = Relu(pictures)"),
    ("leaky relu", "embeddings = LeakyRelu(pictures) alpha=0.3"),
    ("parametric relu", "s: float[3,1,1] = random\nembeddings = PRelu(pictures, s)"),
    ("a clip", "a: float[] = -0.5\nb: float[] = 0.25\nembeddings = Clip(pictures, a, b)"),
    ("a sigmoid", "embeddings = Sigmoid(pictures)"),
    ("swish from its parts", "s = Sigmoid(pictures)\nembeddings = Mul(pictures, s)"),
    ("swish", "embeddings = Swish(pictures) alpha=1.5"),
    ("hard sigmoid", "embeddings = HardSigmoid(pictures) alpha=0.75 beta=0.4"),
    ("hard swish", "c: float[] = 5\nx = Mul(pictures, c)\nembeddings = HardSwish(x)"),
    ("tanh", "embeddings = Tanh(pictures)"),
    ("exp and log", "e = Exp(pictures)\no: float[] = 1\ns = Add(e, o)\nembeddings = Log(s)"),
    ("softplus", "embeddings = Softplus(pictures)"),
    ("elu", "embeddings = Elu(pictures) alpha=0.7"),
    ("gelu", "embeddings = Gelu(pictures)"),
    ("gelu by tanh", "embeddings = Gelu(pictures) approximate=tanh"),
    (
        "gelu from its parts",
        "r: float[] = 1.4142135\nh: float[] = 0.5\no: float[] = 1\nd = Div(pictures, r)\ne = Erf(d)\na = Add(e, o)\nm = Mul(pictures, a)\nembeddings = Mul(m, h)",
    ),
    ("absolute values and signs", "a = Abs(pictures)\nn = Neg(pictures)\nembeddings = Sub(a, n)"),
    ("reciprocals", "c: float[] = 3\ns = Add(pictures, c)\nembeddings = Reciprocal(s)"),
    (
        "quotients of values",
        "c: float[] = 3\ns = Add(pictures, c)\nm = ReduceMean(s) axes=[2,3]\nq = Div(pictures, m)\nembeddings = Div(m, s)\nembeddings2 = Add(q, q)",
    ),
    (
        "stretched quotients",
        "c: float[] = 3\ns = Add(pictures, c)\nm = ReduceMean(s) axes=[1]\nembeddings = Div(pictures, m)",
    ),
    ("powers", "c: float[] = 3\np: float[] = 2.5\ns = Add(pictures, c)\nembeddings = Pow(s, p)"),
    ("powers of constants", "c: float[] = 3\nembeddings = Pow(c, pictures)"),
    (
        "squares and roots",
        "c: float[] = 3\nt: float[] = 2\ns = Add(pictures, c)\np = Pow(s, t)\nembeddings = Sqrt(p)",
    ),
    (
        "greatest and least",
        "t = Transpose(pictures) perm=[0,1,3,2]\nlow: float[8] = random\nhigh: float[3,1,8] = random\na = Max(pictures, t, low)\nembeddings = Min(a, high)",
    ),
    ("sums of several", "c: float[8] = random\nembeddings = Sum(pictures, c, pictures)"),
    ("softmax", "embeddings = Softmax(pictures) axis=1"),
    ("softmax of the last axis", "embeddings = Softmax(pictures)"),
    ("log softmax", "embeddings = LogSoftmax(pictures) axis=2"),
    (
        "layer normalisation",
        "s: float[8] = random\nb: float[8] = random\nembeddings = LayerNormalization(pictures, s, b)",
    ),
    (
        "layer normalisation of three axes",
        "s: float[3,8,8] = random\nembeddings = LayerNormalization(pictures, s) axis=1",
    ),
    (
        "layer normalisation from its parts",
        "t: float[] = 2\ne: float[] = 0.00001\nm = ReduceMean(pictures) axes=[-1]\nd = Sub(pictures, m)\np = Pow(d, t)\nv = ReduceMean(p) axes=[-1]\na = Add(v, e)\nr = Sqrt(a)\nembeddings = Div(d, r)",
    ),
    (
        "instance normalisation",
        "s: float[3] = random\nb: float[3] = random\nembeddings = InstanceNormalization(pictures, s, b)",
    ),
    (
        "group normalisation",
        "s: float[3] = random\nb: float[3] = random\nembeddings = GroupNormalization(pictures, s, b) num_groups=1",
    ),
    ("unit length", "f = Flatten(pictures)\nembeddings = LpNormalization(f) axis=1 p=2"),
    ("unit sum", "embeddings = LpNormalization(pictures) axis=1 p=1"),
    ("a global mean", "embeddings = GlobalAveragePool(pictures)"),
    ("a global maximum", "embeddings = GlobalMaxPool(pictures)"),
    (
        "means of windows",
        "embeddings = AveragePool(pictures) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]",
    ),
    (
        "means with padding",
        "embeddings = AveragePool(pictures) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1] count_include_pad=1 ceil_mode=1",
    ),
    ("maxima of windows", "embeddings = MaxPool(pictures) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]"),
    (
        "maxima with gaps",
        "embeddings = MaxPool(pictures) kernel_shape=[2,3] dilations=[2,1] ceil_mode=1 strides=[3,2]",
    ),
    ("means of axes that lie apart", "embeddings = ReduceMean(pictures) axes=[1,3] keepdims=0"),
    ("sums", "a: int[2] = 1,2\nembeddings = ReduceSum(pictures, a)"),
    ("maxima", "embeddings = ReduceMax(pictures) axes=[1]"),
    ("minima", "embeddings = ReduceMin(pictures) axes=[-1] keepdims=0"),
    ("lengths", "embeddings = ReduceL2(pictures) axes=[1]"),
    ("absolute sums", "embeddings = ReduceL1(pictures) axes=[2]"),
    ("sums of squares", "embeddings = ReduceSumSquare(pictures) axes=[3]"),
    ("transposes", "embeddings = Transpose(pictures) perm=[3,0,2,1]"),
    (
        "a slice",
        "a: int[2] = 1,-1\ne: int[2] = 3,-7\nx: int[2] = 1,3\nt: int[2] = 1,-2\nembeddings = Slice(pictures, a, e, x, t)",
    ),
    ("a gather with repeats", "i: int[2,2] = 0,-1,2,0\nembeddings = Gather(pictures, i) axis=1"),
    ("a gather of one", "i: int[] = 1\nembeddings = Gather(pictures, i) axis=2"),
    (
        "pieces joined in another order",
        "s: int[3] = 1,5,2\na, b, c = Split(pictures, s) axis=2\nembeddings = Concat(c, a, b, a) axis=2",
    ),
    ("equal pieces", "a, b = Split(pictures) axis=3\nembeddings = Mul(a, b)"),
    ("zeros around", "p: int[8] = 0,0,1,2,0,0,0,-1\nv: float[] = 0.5\nembeddings = Pad(pictures, p, v)"),
    (
        "mirrors around",
        "p: int[4] = 1,3,2,1\nx: int[2] = 2,3\nembeddings = Pad(pictures, p, _, x) mode=reflect",
    ),
    ("edges around", "p: int[8] = 0,0,1,2,0,0,3,1\nembeddings = Pad(pictures, p) mode=edge"),
    (
        "a stretched value",
        "m = ReduceMean(pictures) axes=[1]\ns: int[4] = 2,4,8,8\nembeddings = Expand(m, s)",
    ),
    ("a repeated value", "r: int[4] = 1,2,1,3\nembeddings = Tile(pictures, r)"),
    ("squares to channels", "embeddings = SpaceToDepth(pictures) blocksize=2"),
    (
        "channels to squares",
        "w: float[12,3,1,1] = random\nc = Conv(pictures, w)\nembeddings = DepthToSpace(c) blocksize=2",
    ),
    (
        "channels to squares in columns",
        "w: float[12,3,1,1] = random\nc = Conv(pictures, w)\nembeddings = DepthToSpace(c) blocksize=2 mode=CRD",
    ),
    (
        "a choice by a constant",
        "c: bool[8] = 1,0,0,1,1,0,1,0\no: float[] = 1\nembeddings = Where(c, pictures, o)",
    ),
    (
        "a choice of stretched values",
        "c: bool[1,8,1] = 1,0,0,1,1,0,1,0\nm = ReduceMean(pictures) axes=[1]\nembeddings = Where(c, m, pictures)",
    ),
    (
        "shapes that are computed",
        "s = Shape(pictures)\nz: int[1] = 0\nb = Gather(s, z)\nm: int[1] = -1\nt = Concat(b, m) axis=0\nembeddings = Reshape(pictures, t)",
    ),
    (
        "renaming",
        "u = Unsqueeze(pictures) axes=[0]\ns = Squeeze(u)\nd = Dropout(s)\nc = Cast(d) to=1\nembeddings = Identity(c)",
    ),
    (
        "a residual layer",
        "w: float[5,3,3,3] = random\nb: float[5] = random\nd: float[5,1,1] = 0.1,0.2,0.1,0.3,0.2\nk = Conv(pictures, w, b) pads=[1,1,1,1]\nr = Relu(k)\nm = Mul(r, d)\nt = ConvTranspose(m, w) pads=[1,1,1,1]\nembeddings = Sub(pictures, t)",
    ),
    (
        "greater and lesser halves",
        "a, b = Split(pictures) axis=3\nm = Max(a, b)\nn = Min(a, b)\nembeddings = Concat(m, n) axis=3",
    ),
];

#[test]
fn gradients_are_the_slopes_of_the_value_for_every_operator() {
    let picture: Vec<f64> = random(1, SHAPE.iter().product()).collect();
    for (case, lines) in OPERATORS {
        // Attributes became arguments over time; these graphs mix both, so each is read as the version that has it.
        let evaluator = evaluator::<f64>(21, lines).unwrap_or_else(|error| panic!("{case}: {error}"));
        slopes_agree(case, &evaluator, &picture);
    }
}

#[test]
fn single_precision_computes_what_double_precision_does() {
    let picture: Vec<f64> = random(1, SHAPE.iter().product()).collect();
    let single: Vec<f32> = picture.iter().map(|&pixel| pixel as f32).collect();
    for (case, lines) in OPERATORS {
        let (double, short) = (evaluator::<f64>(21, lines).unwrap(), evaluator::<f32>(21, lines).unwrap());
        let value =
            double.value(&single.iter().map(|&pixel| f64::from(pixel)).collect::<Vec<_>>(), 1).unwrap();
        for (found, wanted) in short.value(&single, 1).unwrap().iter().zip(&value) {
            assert!(
                (f64::from(*found) - wanted).abs() < 2e-5 * wanted.abs().max(1.0),
                "{case}: {found} {wanted}"
            );
        }
    }
}

#[test]
fn quantised_values_are_rounded_and_gradients_pass_straight_through() {
    let lines = "s: float[3] = 0.1,0.2,0.05\nz: byte[3] = 1,-3,7\nq = QuantizeLinear(pictures, s, z)\n\
        embeddings = DequantizeLinear(q, s, z)";
    let evaluator = evaluator::<f64>(21, lines).unwrap();
    let mut picture: Vec<f64> = random(1, SHAPE.iter().product()).collect();
    // Beyond the greatest level of the first channel.
    picture[5] = 20.0;
    let trace = evaluator.trace(&picture, 1).unwrap();
    let scales = [0.1_f32, 0.2, 0.05].map(f64::from);
    for (place, (value, pixel)) in trace.value().iter().zip(&picture).enumerate() {
        let scale = scales[place / 64 % 3];
        if place == 5 {
            assert!((value - 126.0 * scale).abs() < 1e-9, "{value}");
        } else {
            assert!((value - pixel).abs() <= 0.5 * scale + 1e-12, "{place}: {value} for {pixel}");
            let level = value / scale;
            assert!((level - level.round()).abs() < 1e-9, "{place}: {level}");
        }
    }
    let slopes = evaluator.pull_back(trace, &vec![1.0; picture.len()], 1).unwrap();
    for (place, slope) in slopes.into_iter().enumerate() {
        let wanted = if place == 5 { 0.0 } else { 1.0 };
        assert!((slope - wanted).abs() < 1e-12, "{place}: {slope}");
    }
}

#[test]
fn values_are_those_of_numpy() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let path = models.join("convolutional.onnx");
    let numbers: Vec<f32> = std::fs::read(models.join("convolutional.f32"))
        .unwrap()
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&bits| f32::from_le_bytes(bits))
        .collect();
    let (pictures, wanted) = numbers.split_at(3 * 3 * 16 * 16);
    let model = Model::read(&path).unwrap();
    let spec = EvaluationSpec { input: "pictures", shape: &[3, 3, 16, 16], output: "embeddings" };
    let single = Evaluator::<f32>::new(&path, &model, &spec).unwrap().value(pictures, 1).unwrap();
    let pictures: Vec<f64> = pictures.iter().map(|&pixel| f64::from(pixel)).collect();
    let double = Evaluator::<f64>::new(&path, &model, &spec).unwrap().value(&pictures, 1).unwrap();
    for ((single, double), &wanted) in single.into_iter().zip(double).zip(wanted) {
        assert!((single - wanted).abs() < 1e-5, "{single} and {wanted}");
        // The reference was computed in double precision and rounded once.
        assert_eq!(double as f32, wanted);
    }
}

#[test]
fn what_cannot_be_evaluated_is_named() {
    let unsupported = |lines: &str| match evaluator::<f32>(17, lines).unwrap_err() {
        EvaluationError::Unsupported { node, operator } => (node, operator),
        error => panic!("{error}"),
    };
    let named = |node: &str, operator: &str| (node.to_owned(), operator.to_owned());
    assert_eq!(unsupported("embeddings = Unheard(pictures)"), named("embeddings", "Unheard"));
    assert_eq!(unsupported("embeddings = com.microsoft::Relu(pictures)"), named("embeddings", "Relu"));
    let reasons = [
        ("w: float[5,4,3,3]\nembeddings = Conv(pictures, w)", "3 channels"),
        ("embeddings = Conv(pictures, pictures)", "depends on the picture"),
        ("w: float[5,3,9,9]\nembeddings = Conv(pictures, w)", "do not fit"),
        ("w: float[5,3,3,3]\nembeddings = Conv(pictures, w) strides=[0,1]", "strides"),
        ("w: float[7]\nembeddings = Add(pictures, w)", "do not fit"),
        ("s: int[2] = 5,-1\nembeddings = Reshape(pictures, s)", "[2, 3, 8, 8]"),
        ("embeddings = Cast(pictures) to=7", "int64"),
        ("embeddings = Transpose(pictures) perm=[0,0,1,2]", "4 axes"),
        ("embeddings = Softmax(pictures) axis=9", "axis 9 of 4"),
        (
            "s: int[4] = 1000000,3,1000,1000\nm = ReduceMean(pictures) axes=[0,2,3]\nembeddings = Expand(m, s)",
            "too large",
        ),
        ("a = Sign(pictures)\nembeddings = Relu(a)", "node `a` (Sign) cannot be evaluated here: it rounds"),
        ("embeddings = Equal(pictures, pictures)", "depend on the picture"),
        ("i: int[1] = 3\nembeddings = Gather(pictures, i) axis=1", "beyond 3"),
        ("embeddings = Add(pictures, elsewhere)", ""),
    ];
    for (lines, part) in reasons {
        let message = evaluator::<f32>(17, lines).unwrap_err().to_string();
        assert!(message.contains(part), "{lines}: {message}");
    }
    let constant = evaluator::<f32>(17, "c: float[2,2]\nembeddings = Relu(c)").unwrap_err();
    assert!(matches!(constant, EvaluationError::Constant { .. }), "{constant}");
    let short = evaluator::<f32>(17, "embeddings = Relu(pictures)").unwrap().value(&[0.0; 3], 1).unwrap_err();
    assert!(matches!(short, EvaluationError::Length { found: 3, wanted: 384 }), "{short}");
}

#[test]
fn weights_beside_the_model_are_read_and_short_files_are_refused() {
    use crate::protobuf::MessageWriter as Writer;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let entry = |key: &str, value: &str| Writer::default().text(1, key).text(2, value);
    let model = |offset: &str| {
        let tensor = Writer::default()
            .text(8, "w")
            .numbers(1, [8])
            .number(2, 1)
            .number(14, 1)
            .message(13, &entry("location", "model.data"))
            .message(13, &entry("offset", offset))
            .message(13, &entry("length", "32"));
        let graph = builder::graph("embeddings = Add(pictures, w)").message(5, &tensor);
        let value = |name: &str| Writer::default().text(1, name);
        let graph = graph.message(11, &value("pictures")).message(12, &value("embeddings"));
        let set = Writer::default().number(2, 17);
        let bytes = Writer::default().number(1, 8).message(7, &graph).message(8, &set).into_bytes();
        Model::from_bytes(&path, bytes).unwrap()
    };
    let numbers: Vec<u8> = (0..10).flat_map(|number| (number as f32).to_le_bytes()).collect();
    std::fs::write(folder.path().join("model.data"), numbers).unwrap();
    let spec = EvaluationSpec { input: "pictures", shape: &SHAPE, output: "embeddings" };
    let evaluator = Evaluator::<f32>::new(&path, &model("8"), &spec).unwrap();
    assert_eq!(evaluator.value(&[0.0; 384], 1).unwrap()[..8], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    for offset in ["12", "4000000000", "18446744073709551615", "-1"] {
        let error = Evaluator::<f32>::new(&path, &model(offset), &spec).unwrap_err();
        assert!(error.to_string().contains("model.data"), "{offset}: {error}");
    }
}

#[test]
fn whatever_bytes_are_changed_evaluating_ends() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let picture: Vec<f32> = random(1, SHAPE.iter().product()).map(|pixel| pixel as f32).collect();
    let (mut opened, rounds) = (0, 400);
    for (case, lines) in OPERATORS {
        let whole = builder::model(if case.len() % 2 == 0 { 21 } else { 11 }, lines);
        for _ in 0..rounds {
            let mut bytes = whole.clone();
            for _ in 0..=next() % 3 {
                let place = next() as usize % bytes.len();
                bytes[place] = match next() % 3 {
                    0 => next() as u8,
                    1 => 0xff,
                    _ => bytes[place] ^ (1 << (next() % 8)),
                };
            }
            let path = Path::new("test.onnx");
            let Ok(model) = Model::from_bytes(path, bytes) else { continue };
            let spec = EvaluationSpec { input: "pictures", shape: &SHAPE, output: "embeddings" };
            let Ok(evaluator) = Evaluator::<f32>::new(path, &model, &spec) else { continue };
            opened += 1;
            let trace = evaluator.trace(&picture, 1).unwrap();
            let score = vec![1.0; trace.value().len()];
            evaluator.pull_back(trace, &score, 1).unwrap();
        }
    }
    assert!(opened > OPERATORS.len() * rounds / 10, "only {opened} of the changed graphs could be evaluated");
}
