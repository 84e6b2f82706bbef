//! Rule by rule: graphs of a few lines, and what is known about their batches.

use std::path::Path;

use super::*;
use crate::graph::builder::model;

fn read_with(operators: i64, batch: Option<usize>, lines: &str) -> BatchReading {
    let model = Model::from_bytes(Path::new("test.onnx"), model(operators, lines)).unwrap();
    let spec = BatchSpec { input: "pictures", picture: [3, 8, 8], batch, output: "embeddings" };
    BatchReading::of(&model, &spec).unwrap()
}

fn read(lines: &str) -> BatchReading {
    read_with(17, None, lines)
}

/// The end of every graph: the pictures' values in any shape, made one row for each.
const ROWS: &str = "
    features = Flatten(last)
    embeddings = Identity(features)
";

fn with_rows(lines: &str) -> BatchReading {
    read(&format!("{lines}\n{ROWS}"))
}

#[test]
fn operators_that_leave_pictures_alone_are_followed() {
    let cases = [
        ("convolution", "w: float[4,3,3,3]\n b: float[4]\n last = Conv(pictures, w, b) pads=[1,1,1,1]"),
        ("strides and groups", "w: float[6,1,3,3]\n last = Conv(pictures, w) strides=[2,2] group=3"),
        ("transposed convolution", "w: float[3,4,2,2]\n last = ConvTranspose(pictures, w) strides=[2,2]"),
        ("activations", "a = Relu(pictures)\n b = Sigmoid(a)\n c = HardSwish(b)\n last = Mul(b, c)"),
        ("constants of one channel", "c: float[3,1,1]\n last = Add(pictures, c)"),
        ("a constant of rank four", "c: float[1,3,1,1]\n last = Mul(c, pictures)"),
        ("bounds", "lo: float[]\n hi: float[]\n last = Clip(pictures, lo, hi)"),
        ("left out bounds", "hi: float[]\n last = Clip(pictures, _, hi)"),
        (
            "batch normalisation after training",
            "s: float[3]\n b: float[3]\n m: float[3]\n v: float[3]\n last = BatchNormalization(pictures, s, b, m, v)",
        ),
        (
            "instance normalisation",
            "s: float[3]\n b: float[3]\n last = InstanceNormalization(pictures, s, b)",
        ),
        ("layer normalisation", "s: float[8]\n b: float[8]\n last = LayerNormalization(pictures, s, b)"),
        (
            "pools",
            "a = MaxPool(pictures) kernel_shape=[2,2] strides=[2,2]\n b = AveragePool(a) kernel_shape=[2,2]\n last = GlobalMaxPool(b)",
        ),
        ("means over places", "last = ReduceMean(pictures) axes=[2,3] keepdims=0"),
        ("norms of rows", "f = Flatten(pictures)\n n = ReduceL2(f) axes=[1]\n last = Div(f, n)"),
        ("softmax over places", "last = Softmax(pictures) axis=-1"),
        ("largest place", "a = ArgMax(pictures) axis=1\n last = Cast(a) to=1"),
        (
            "transposed and back",
            "a = Transpose(pictures) perm=[2,3,0,1]\n b = Relu(a)\n last = Transpose(b) perm=[2,3,0,1]",
        ),
        (
            "squeezed and unsqueezed",
            "a = GlobalAveragePool(pictures)\n x: int[2] = 2,3\n b = Squeeze(a, x)\n last = Unsqueeze(b, x)",
        ),
        ("a matrix", "f = Flatten(pictures)\n w: float[192,5]\n b: float[5]\n last = Gemm(f, w, b)"),
        (
            "a matrix from the left",
            "f = Flatten(pictures)\n t = Transpose(f)\n w: float[5,192]\n u = MatMul(w, t)\n last = Transpose(u)",
        ),
        ("a matrix of each channel", "w: float[3,8,8]\n last = MatMul(pictures, w)"),
        ("a matrix and a vector", "w: float[8]\n last = MatMul(pictures, w)"),
        ("pictures with themselves", "t = Transpose(pictures) perm=[0,1,3,2]\n last = MatMul(pictures, t)"),
        ("einsum", "w: float[3,5]\n last = Einsum(pictures, w) equation=nchw,cd->ndhw"),
        ("concatenation", "a = Relu(pictures)\n last = Concat(a, pictures) axis=1"),
        ("split", "a, b, c = Split(pictures) axis=1\n d = Add(a, c)\n last = Sub(d, b)"),
        (
            "slices",
            "s: int[1] = 1\n e: int[1] = 9223372036854775807\n x: int[1] = 1\n last = Slice(pictures, s, e, x)",
        ),
        (
            "a slice of all pictures",
            "s: int[2] = 0,1\n e: int[2] = 9223372036854775807,3\n x: int[2] = 0,1\n last = Slice(pictures, s, e, x)",
        ),
        ("one channel", "i: int[] = 1\n last = Gather(pictures, i) axis=1"),
        ("padding", "p: int[8] = 0,0,1,1,0,0,1,1\n last = Pad(pictures, p) mode=reflect"),
        ("enlarging", "s: float[4] = 1,1,2,2\n last = Resize(pictures, _, s)"),
        (
            "channels to places",
            "w: float[4,3,1,1]\n c = Conv(pictures, w)\n d = DepthToSpace(c) blocksize=2\n last = SpaceToDepth(d) blocksize=2",
        ),
        (
            "eight bits with constant scales",
            "s: float[] = 0.1\n z: int[] = 0\n q = QuantizeLinear(pictures, s, z)\n last = DequantizeLinear(q, s, z)",
        ),
        (
            "scales of channels",
            "s: float[3]\n q = QuantizeLinear(pictures, s) axis=1\n last = DequantizeLinear(q, s) axis=1",
        ),
        ("dropout that drops nothing", "last = Dropout(pictures)"),
        ("a choice of numbers", "z: float[]\n c = Greater(pictures, z)\n last = Where(c, pictures, z)"),
        ("largest two", "k: int[1] = 2\n v, i = TopK(pictures, k) axis=1\n last = Identity(v)"),
        ("a triangle of places", "last = Trilu(pictures)"),
        ("onnxruntime's operators", "last = com.microsoft::QuickGelu(pictures)"),
    ];
    for (name, lines) in cases {
        assert_eq!(with_rows(lines), BatchReading::Independent, "{name}");
    }
}

#[test]
fn shapes_that_are_computed_from_the_number_of_pictures_are_followed() {
    let cases = [
        (
            "rows from a computed shape",
            "n = Shape(pictures)
             zero: int[] = 0
             b = Gather(n, zero)
             axes: int[1] = 0
             u = Unsqueeze(b, axes)
             open: int[1] = -1
             s = Concat(u, open) axis=0
             embeddings = Reshape(pictures, s)",
        ),
        (
            "rows from a part of a shape",
            "n = Shape(pictures) start=0 end=1
             d: int[1] = 192
             s = Concat(n, d) axis=0
             embeddings = Reshape(pictures, s)",
        ),
        (
            "rows from an open length",
            "s: int[2] = -1,192
             embeddings = Reshape(pictures, s)",
        ),
        (
            "a token for each picture, as transformers have it",
            "n = Shape(pictures)
             zero: int[1] = 0
             b = Gather(n, zero)
             rest: int[2] = 3,64
             s = Concat(b, rest) axis=0
             patches = Reshape(pictures, s)
             one: int[2] = 1,64
             wanted = Concat(b, one) axis=0
             length: int[1] = 3
             ones = ConstantOfShape(length) value=int[1]:1
             minus: int[] = -1
             open = Mul(ones, minus)
             same = Equal(wanted, open)
             clean = Where(same, ones, wanted)
             token: float[1,1,64]
             tokens = Expand(token, clean)
             all = Concat(tokens, patches) axis=1
             first: int[] = 0
             embeddings = Gather(all, first) axis=1",
        ),
        (
            "attention of several heads with the pictures in the middle",
            "n = Shape(pictures) start=0 end=1
             s: int[3] = 0,3,64
             p = Reshape(pictures, s)
             x = Transpose(p) perm=[1,0,2]
             w: float[64,64]
             q = MatMul(x, w)
             four: int[1] = 4
             heads = Mul(n, four)
             three: int[1] = 3
             width: int[1] = 16
             qs = Concat(three, heads, width) axis=0
             q4 = Reshape(q, qs)
             q5 = Transpose(q4) perm=[1,0,2]
             k5 = Transpose(q4) perm=[1,2,0]
             scores = MatMul(q5, k5)
             weights = Softmax(scores) axis=-1
             mixed = MatMul(weights, q5)
             m1 = Transpose(mixed) perm=[1,0,2]
             back: int[1] = 64
             bs = Concat(three, n, back) axis=0
             m2 = Reshape(m1, bs)
             m3 = Transpose(m2) perm=[1,0,2]
             embeddings = Flatten(m3)",
        ),
        (
            "patches of all pictures in one list, those of a picture apart from each other",
            "s: int[3] = -1,3,64
             p = Reshape(pictures, s)
             x = Transpose(p) perm=[1,0,2]
             t: int[2] = -1,64
             all = Reshape(x, t)
             w: float[64,64]
             y = Gemm(all, w)
             u: int[3] = 3,-1,64
             z = Reshape(y, u)
             last = Transpose(z) perm=[1,0,2]
             embeddings = Flatten(last)",
        ),
        (
            "widths of padding that are computed in a table",
            "w: int[8] = 0,0,1,1,0,0,0,0
             two: int[2] = -1,2
             a = Reshape(w, two)
             from: int[1] = -1
             to: int[1] = -9223372036854775807
             axis: int[1] = 0
             b = Slice(a, from, to, axis, from)
             c = Transpose(b) perm=[1,0]
             flat: int[1] = -1
             d = Reshape(c, flat)
             e = Cast(d) to=7
             padded = Pad(pictures, e)
             embeddings = Flatten(padded)",
        ),
        (
            "windows of each picture, as shifted-window transformers have them",
            "s: int[6] = 0,3,2,4,2,4
             a = Reshape(pictures, s)
             b = Transpose(a) perm=[0,2,4,1,3,5]
             t: int[2] = -1,48
             w = Reshape(b, t)
             v: float[48,48]
             y = MatMul(w, v)
             n = Shape(y) start=0 end=1
             four: int[1] = 4
             own = Div(n, four)
             rest: int[1] = 192
             u = Concat(own, rest) axis=0
             embeddings = Reshape(y, u)",
        ),
        (
            "a constant for each picture",
            "n = Shape(pictures) start=0 end=1
             rest: int[3] = 3,8,8
             s = Concat(n, rest) axis=0
             zeros = ConstantOfShape(s)
             all = Concat(pictures, zeros) axis=2
             embeddings = Flatten(all)",
        ),
    ];
    for (name, lines) in cases {
        assert_eq!(read(lines), BatchReading::Independent, "{name}");
    }
}

#[test]
fn operators_that_couple_pictures_are_named_with_what_they_do() {
    let cases = [
        (
            "q, s, z = DynamicQuantizeLinear(pictures)\n last = DequantizeLinear(q, s, z)",
            "its scale from the whole batch",
        ),
        ("m = ReduceMean(pictures) axes=[0]\n last = Sub(pictures, m)", "it reduces over the batch"),
        ("m = ReduceMax(pictures)\n last = Div(pictures, m)", "it reduces over the batch"),
        ("m = ReduceMean(pictures) axes=[-4]\n last = Sub(pictures, m)", "it reduces over the batch"),
        ("last = Softmax(pictures) axis=0", "it normalises over the batch"),
        ("last = MeanVarianceNormalization(pictures)", "it normalises over the batch"),
        (
            "s: float[3]\n b: float[3]\n last = BatchNormalization(pictures, s, b, s, b) training_mode=1",
            "training mode",
        ),
        (
            "t = Transpose(pictures) perm=[1,0,2,3]\n w: float[4,3,1,1]\n u = Conv(t, w)\n last = Transpose(u) perm=[1,0,2,3]",
            "for channels",
        ),
        ("t = Transpose(pictures) perm=[1,0,2,3]\n last = Add(t, pictures)", "different places"),
        ("f = Flatten(pictures)\n t = Transpose(f)\n last = MatMul(f, t)", "with each other"),
        ("f = Flatten(pictures)\n t = Transpose(f)\n last = MatMul(t, f)", "it sums over the batch"),
        ("f = Flatten(pictures)\n last = Gemm(f, f) transB=1", "with each other"),
        ("last = Einsum(pictures, pictures) equation=nchw,mchw->nm", "with each other"),
        ("last = Einsum(pictures) equation=nchw->chw", "it sums over the batch"),
        ("i: int[] = 0\n f = Gather(pictures, i) axis=0\n last = Add(pictures, f)", "by their places"),
        (
            "s: int[1] = 0\n e: int[1] = 1\n f = Slice(pictures, s, e)\n last = Add(pictures, f)",
            "by their places",
        ),
        (
            "s: int[1] = -1\n e: int[1] = -9223372036854775808\n x: int[1] = 0\n f = Slice(pictures, s, e, x, s)\n last = Add(pictures, f)",
            "by their places",
        ),
        ("a, b = Split(pictures) axis=0\n last = Sub(a, b)", "it splits the batch"),
        ("x: float[1,3,8,8]\n last = Concat(pictures, x) axis=0", "not laid out"),
        ("last = Concat(pictures, pictures) axis=0", "it joins batches"),
        ("p: int[8] = 1,0,0,0,0,0,0,0\n last = Pad(pictures, p)", "it pads the batch"),
        ("c: float[2,1,1,1]\n last = Mul(pictures, c)", "differs from place to place"),
        (
            "s: float[2]\n q = QuantizeLinear(pictures, s) axis=0\n last = Cast(q) to=1",
            "a scale for each place",
        ),
        ("t: int[3] = 3,-1,64\n last = Reshape(pictures, t)", "do not stay by themselves"),
        ("x: int[] = 0\n last = CumSum(pictures, x)", "it sums over the batch"),
        (
            "n = Shape(pictures) start=0 end=1\n f = Cast(n) to=1\n last = Mul(pictures, f)",
            "how many pictures there are",
        ),
        ("n = Size(pictures)\n f = Cast(n) to=1\n last = Div(pictures, f)", "how many pictures there are"),
        ("s: float[4] = 2,1,1,1\n last = Resize(pictures, _, s)", "it resizes the batch"),
        ("k: int[1] = 1\n last, i = TopK(pictures, k) axis=0", "it ranks"),
        ("r: int[4] = 2,1,1,1\n last = Tile(pictures, r)", "it repeats the batch"),
    ];
    for (lines, wanted) in cases {
        match with_rows(lines) {
            BatchReading::Coupled { why, .. } => assert!(why.contains(wanted), "{lines}: {why}"),
            other => panic!("{lines}: {other}"),
        }
    }
}

#[test]
fn what_has_no_rule_is_unknown_and_what_draws_lots_is_random() {
    let unknown = [
        ("last = Unheard(pictures)", "Unheard"),
        ("last = ai.other::Relu(pictures)", "Relu"),
        ("last = com.microsoft::DynamicQuantizeMatMul(pictures, pictures)", "DynamicQuantizeMatMul"),
        ("last = Squeeze(pictures)", "Squeeze"),
        ("v, i = MaxPool(pictures) kernel_shape=[1,1]\n last = Cast(i) to=1", "MaxPool"),
        ("n = NonZero(pictures)\n last = Cast(n) to=1", "NonZero"),
        ("h, w = LSTM(pictures, pictures)\n last = Identity(h)", "LSTM"),
    ];
    for (lines, wanted) in unknown {
        match with_rows(lines) {
            BatchReading::Unknown { operator, .. } => assert_eq!(operator, wanted, "{lines}"),
            other => panic!("{lines}: {other}"),
        }
    }
    let random = [
        ("r = RandomNormalLike(pictures)\n last = Add(pictures, r)", "RandomNormalLike"),
        ("r = RandomUniform() shape=[3,8,8]\n last = Add(pictures, r)", "RandomUniform"),
        ("r: float[]\n t: bool[] = 1\n last = Dropout(pictures, r, t)", "Dropout"),
        // Told before anything that would only be slow.
        ("u = Unheard(pictures)\n r = Bernoulli(pictures)\n last = Add(u, r)", "Bernoulli"),
    ];
    for (lines, wanted) in random {
        match with_rows(lines) {
            BatchReading::Random { operator, .. } => assert_eq!(operator, wanted, "{lines}"),
            other => panic!("{lines}: {other}"),
        }
    }
}

#[test]
fn only_what_the_output_is_made_from_counts() {
    let lines = "q, s, z = DynamicQuantizeLinear(pictures)\n beside = DequantizeLinear(q, s, z)";
    assert_eq!(with_rows(&format!("{lines}\n last = Relu(pictures)")), BatchReading::Independent);
    // Constants may be treated in any way.
    let lines = "c: float[2,2]\n q, s, z = DynamicQuantizeLinear(c)\n d = DequantizeLinear(q, s, z)
        m = ReduceMean(d)\n axes: int[2] = 0,1\n e = Squeeze(m, axes)\n one: int[1] = 1\n f = Reshape(e, one)
        last = Mul(pictures, f)";
    assert_eq!(with_rows(lines), BatchReading::Independent);
}

#[test]
fn an_output_without_a_row_for_each_picture_is_unknown() {
    for lines in [
        "embeddings = Transpose(pictures)",
        "s: int[2] = 1,-1\n embeddings = Reshape(pictures, s)",
        "t: int[2] = -1,64\n embeddings = Reshape(pictures, t)",
        "c: float[1,4]\n embeddings = Identity(c)",
    ] {
        assert!(matches!(read(lines), BatchReading::Unknown { .. }), "{lines}: {}", read(lines));
    }
}

#[test]
fn meanings_that_changed_between_versions_are_those_of_the_file() {
    let softmax = format!(
        "t = Transpose(pictures) perm=[1,2,0,3]\n s = Softmax(t) axis=1\n last = Transpose(s) perm=[2,0,1,3]\n{ROWS}"
    );
    assert_eq!(read_with(13, None, &softmax), BatchReading::Independent);
    assert!(matches!(read_with(12, None, &softmax), BatchReading::Coupled { .. }));
    let norm = |outputs: &str, rest: &str| {
        format!("c: float[3]\n {outputs} = BatchNormalization(pictures, c, c, c, c){rest}\n{ROWS}")
    };
    assert_eq!(read_with(9, None, &norm("last", "")), BatchReading::Independent);
    assert!(matches!(read_with(9, None, &norm("last, m, v, n, w", "")), BatchReading::Coupled { .. }));
    assert!(matches!(read_with(6, None, &norm("last", "")), BatchReading::Coupled { .. }));
    assert_eq!(read_with(6, None, &norm("last", " is_test=1")), BatchReading::Independent);
    let dropout = |rest: &str| format!("last = Dropout(pictures){rest}\n{ROWS}");
    assert!(matches!(read_with(6, None, &dropout("")), BatchReading::Random { .. }));
    assert_eq!(read_with(6, None, &dropout(" is_test=1")), BatchReading::Independent);
}

#[test]
fn a_batch_of_fixed_size_may_stand_in_the_shapes() {
    let rows = "s: int[2] = 4,192\n embeddings = Reshape(pictures, s)";
    assert_eq!(read_with(17, Some(4), rows), BatchReading::Independent);
    assert_eq!(
        read_with(17, Some(2), "s: int[2] = 2,-1\n embeddings = Reshape(pictures, s)"),
        BatchReading::Independent
    );
    // Two halves of a picture are not two pictures, and two pictures in a row are not one each.
    assert!(!matches!(read_with(17, Some(2), rows), BatchReading::Independent));
    assert!(!matches!(read(rows), BatchReading::Independent));
    let mean = "m = ReduceMean(pictures) axes=[0]\n d = Sub(pictures, m)\n embeddings = Flatten(d)";
    assert!(matches!(read_with(17, Some(3), mean), BatchReading::Coupled { .. }));
}

#[test]
fn names_that_make_no_flow_are_refused() {
    let read = |lines: &str| {
        let model = Model::from_bytes(Path::new("test.onnx"), model(17, lines)).unwrap();
        let spec = BatchSpec { input: "pictures", picture: [3, 8, 8], batch: None, output: "embeddings" };
        BatchReading::of(&model, &spec).unwrap_err()
    };
    assert_eq!(read("a = Relu(pictures)"), GraphError::Output { name: "embeddings".to_owned() });
    assert_eq!(
        read("embeddings = Relu(nowhere)"),
        GraphError::Missing {
            node: "embeddings".to_owned(),
            operator: "Relu".to_owned(),
            name: "nowhere".to_owned()
        }
    );
    assert_eq!(
        read("a = Relu(pictures)\n a = Tanh(pictures)\n embeddings = Flatten(a)"),
        GraphError::Twice { name: "a".to_owned() }
    );
    assert!(matches!(
        read("a = Add(pictures, b)\n b = Relu(a)\n embeddings = Flatten(b)"),
        GraphError::Circle { .. }
    ));
    assert!(matches!(read("embeddings = Relu(embeddings)"), GraphError::Circle { .. }));
}

#[test]
fn a_long_chain_is_followed_without_recursion() {
    let mut lines = String::from("x0 = Relu(pictures)\n");
    for link in 1..20_000 {
        lines.push_str(&format!("x{link} = Relu(x{})\n", link - 1));
    }
    lines.push_str("embeddings = Flatten(x19999)\n");
    assert_eq!(read(&lines), BatchReading::Independent);
}

#[test]
fn readings_keep_their_form() {
    let coupled = BatchReading::Coupled { node: "n".into(), operator: "Op".into(), why: "it does".into() };
    let text = serde_json::to_string(&coupled).unwrap();
    assert_eq!(text, r#"{"verdict":"coupled","node":"n","operator":"Op","why":"it does"}"#);
    assert_eq!(serde_json::from_str::<BatchReading>(&text).unwrap(), coupled);
    let independent = serde_json::to_string(&BatchReading::Independent).unwrap();
    assert_eq!(independent, r#"{"verdict":"independent"}"#);
}

/// Every model that belongs to the project.
#[test]
fn the_projects_own_encoders_are_proved_independent() {
    use crate::model_config::{Layout, ModelConfig};
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut folders = vec![
        root.join("experiments/encoders"),
        root.join("crates/retrievalguard-cli/demo"),
        root.join("crates/retrievalguard-encoder/tests/models"),
    ];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "onnx") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 12, "{found:?}");
    for path in found {
        let model = Model::read(&path).unwrap();
        let Ok(config) = ModelConfig::for_model(&path) else { panic!("{}", path.display()) };
        assert_eq!(config.input.layout, Layout::Nchw);
        let [input] = &model.graph.open_inputs().cloned().collect::<Vec<_>>()[..] else { panic!() };
        let batch = match &input.shape.as_ref().unwrap()[0] {
            crate::graph::Extent::Fixed(batch) => Some(*batch),
            crate::graph::Extent::Dynamic(_) => None,
        };
        let output = &model.graph.outputs[0].name;
        let spec = BatchSpec { input: &input.name, picture: config.picture_shape(), batch, output };
        let reading = BatchReading::of(&model, &spec).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match name.as_str() {
            "batch_mean.onnx" | "dynamic_quantised.onnx" | "shared_factor.onnx" => {
                assert!(matches!(reading, BatchReading::Coupled { .. }), "{name}: {reading}");
            }
            "random.onnx" => assert!(matches!(reading, BatchReading::Random { .. }), "{name}: {reading}"),
            _ => assert_eq!(reading, BatchReading::Independent, "{}", path.display()),
        }
    }
}

#[test]
fn the_number_of_pictures_is_in_no_product_and_in_no_step() {
    let size = "n = Shape(pictures)\n zero: int[1] = 0\n b = Gather(n, zero)";
    let product = format!(
        "{size}\n four: int[1] = 4\n m = Max(b, four)\n c = Cast(m) to=1\n one: int[2] = 1,1\n w = Reshape(c, one)
         r = ReduceMean(pictures) axes=[1,2,3]\n f = Flatten(r)\n g = Gemm(f, w)\n embeddings = Tanh(g)"
    );
    assert!(matches!(read(&product), BatchReading::Coupled { .. }), "{}", read(&product));
    let axes = "s: int[1] = 0\n e: int[1] = 8\n x: int[1] = 2";
    let step = format!("{size}\n {axes}\n last = Slice(pictures, s, e, x, b)");
    assert!(!matches!(with_rows(&step), BatchReading::Independent));
    let constant = format!(
        "{size}\n {axes}\n zeros: float[1,1,8,1]\n c = Slice(zeros, s, e, x, b)\n d = ReduceSum(c)\n last = Add(pictures, d)"
    );
    assert!(!matches!(with_rows(&constant), BatchReading::Independent));
}

#[test]
fn a_summand_of_pictures_is_not_forgotten() {
    let lines = "a: float[4,1]\n b: float[1,192]\n f = Flatten(pictures)\n k = Gemm(a, b, f)
        m = ReduceMean(k) axes=[0]\n embeddings = Sub(f, m)";
    assert!(!matches!(read_with(17, Some(4), lines), BatchReading::Independent));
}

#[test]
fn axes_named_twice_are_not_counted_twice() {
    let turned = "m = ReduceMean(pictures) axes=[2,3] keepdims=0\n t = Transpose(m)\n zero: int[1] = 0
        u = Unsqueeze(t, zero)\n x: int[2] = 0,0\n s = Squeeze(u, x)\n embeddings = Transpose(s)";
    let first = turned.replace("embeddings = Transpose(s)", "embeddings = Identity(s)");
    for lines in [
        turned,
        &first,
        "t = Transpose(pictures) perm=[1,0,2,3]\n embeddings = ReduceMean(t) axes=[0,0,2,3] keepdims=0",
        "s: int[2] = 1,1\n e: int[2] = 2,3\n x: int[2] = 1,-3\n last = Slice(pictures, s, e, x)\n embeddings = Flatten(last)",
        "p: int[4] = 1,1,1,1\n x: int[2] = 1,1\n last = Pad(pictures, p, _, x)\n embeddings = Flatten(last)",
    ] {
        let reading = read_with(17, Some(3), lines);
        assert!(matches!(reading, BatchReading::Unknown { .. }), "{lines}: {reading}");
    }
}

#[test]
fn numbers_are_followed_only_where_every_engine_finds_the_same() {
    let wraps = "a: int[1] = 2147483647\n e = Add(a, a)\n s: int[1] = 0\n x: int[1] = 0
        last = Slice(pictures, s, e, x)";
    assert!(!matches!(with_rows(wraps), BatchReading::Independent));
    // The second part begins nobody knows where.
    let parts =
        "w: float[3,4,2,2]\n c = ConvTranspose(pictures, w)\n h = Shape(c) start=2 end=3\n k: int[1] = 1
        l = Concat(h, k) axis=0\n n: int[10] = 0,0,0,0,0,0,0,0,0,1\n p, q = Split(n, l) axis=0
        e: int[1] = 9223372036854775807\n x: int[1] = 0\n last = Slice(pictures, q, e, x)";
    assert!(!matches!(with_rows(parts), BatchReading::Independent));
    let many = "a, b = Split(pictures) axis=1 num_outputs=3\n last = Relu(a)";
    assert!(matches!(with_rows(many), BatchReading::Unknown { .. }));
}

#[test]
fn constants_of_places_are_found_in_every_operator() {
    let columns = "f = Flatten(pictures)\n t = Transpose(f)\n a: float[5,192]\n z: float[]";
    for lines in [
        format!("{columns}\n p: float[4]\n m = MatMulInteger(a, t, z, p)\n last = Transpose(m)"),
        format!("{columns}\n p: float[4]\n m = QLinearMatMul(a, z, z, t, p, p, z, z)\n last = Transpose(m)"),
        "w: float[3,3,1,1]\n b: float[3]\n z: float[4,3,8,8]\n last = com.microsoft::FusedConv(pictures, w, b, z)"
            .to_owned(),
        "s: float[]\n z: int[4,1,1,1] = 0,1,2,3\n last = QuantizeLinear(pictures, s, z)".to_owned(),
    ] {
        let reading = read_with(17, Some(4), &format!("{lines}\n{ROWS}"));
        assert!(matches!(reading, BatchReading::Unknown { .. }), "{lines}: {reading}");
    }
}

#[test]
fn what_is_said_twice_or_in_another_type_is_unknown() {
    for lines in [
        "x: int[1] = 1\n last = ReduceMean(pictures, x) axes=[2]",
        "p: int[8] = 0,0,0,0,0,0,0,0\n last = Pad(pictures, p) pads=[0,0,1,1,0,0,1,1]",
        "s: float[4] = 1,1,2,2\n z: int[4] = 4,3,8,8\n last = Resize(pictures, _, s, z)",
        "s: float[4] = 1,1,2,2\n last = Resize(pictures, _, s) coordinate_transformation_mode=tf_crop_and_resize",
        "s: float[4] = 1,1,2,2\n last = Resize(pictures, _, s) coordinate_transformation_mode=unheard",
        "last = Softmax(pictures) axis=0.5",
        "last = Softmax(pictures) axis=[0]",
    ] {
        assert!(matches!(with_rows(lines), BatchReading::Unknown { .. }), "{lines}: {}", with_rows(lines));
    }
    // Exporters of ONNX 11 leave the scales out by an empty list.
    let sizes =
        "s: float[0]\n n = Shape(pictures) start=0 end=1\n r: int[3] = 3,4,4\n z = Concat(n, r) axis=0
        last = Resize(pictures, _, s, z)";
    assert_eq!(with_rows(sizes), BatchReading::Independent);
}

#[test]
fn hostile_lengths_and_ranks_do_no_harm() {
    let pool = "last = MaxPool(pictures) kernel_shape=[0,0] pads=[9223372036854775799,0,0,0]";
    let _ = with_rows(pool);
    let mut axes = (1..70).map(|axis| axis.to_string()).collect::<Vec<_>>().join(",");
    axes.insert(0, '[');
    let deep = format!("last = Unsqueeze(pictures) axes={axes}]");
    assert!(matches!(with_rows(&deep), BatchReading::Unknown { .. }));
}
