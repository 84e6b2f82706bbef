//! Reading: what is written comes back, and no file however hostile does more than be refused.

use std::path::Path;

use super::builder::{graph, model, tensor};
use super::*;
use crate::protobuf::MessageWriter as Writer;

fn read_bytes(bytes: Vec<u8>) -> Result<Model, ModelFileError> {
    Model::from_bytes(Path::new("test.onnx"), bytes)
}

fn read(model: Writer) -> Result<Model, ModelFileError> {
    read_bytes(model.into_bytes())
}

#[test]
fn nodes_attributes_and_constants_come_back() {
    let bytes = model(
        17,
        "w: float[2,1] = 0.5,-2\n s: int[3] = 1,-1,300\n f: bool[2] = 1,0
         a, b = Split(pictures, s) axis=-1 sizes=[4,5] alpha=0.25 mode=linear value=int[2]:7,8
         embeddings = com.microsoft::Gelu(a, _, b)",
    );
    let model = read_bytes(bytes).unwrap();
    assert_eq!(model.operators(), 17);
    let [split, gelu] = &model.graph.nodes[..] else { panic!("{:?}", model.graph) };
    assert_eq!((split.operator.as_str(), split.label()), ("Split", "a"));
    assert_eq!((split.inputs.len(), split.outputs.len()), (2, 2));
    assert_eq!(split.int("axis"), Some(-1));
    assert_eq!(split.ints("sizes"), Some(&[4, 5][..]));
    assert_eq!(split.float("alpha"), Some(0.25));
    assert_eq!(split.text("mode"), Some("linear"));
    assert_eq!(split.int("mode"), None);
    let value = split.tensor("value").unwrap();
    assert_eq!(value.values().unwrap(), Values::Integers(vec![7, 8]));
    assert!(split.is_standard() && !gelu.is_standard());
    assert_eq!((gelu.input(1), gelu.input(2), gelu.input(3)), (None, Some("b"), None));
    let [w, s, f] = &model.graph.initializers[..] else { panic!("{:?}", model.graph) };
    assert_eq!((w.name.as_str(), &w.shape[..], w.element), ("w", &[2, 1][..], ElementType::FLOAT));
    assert_eq!(w.values().unwrap(), Values::Single(vec![0.5, -2.0]));
    assert_eq!(s.values().unwrap(), Values::Integers(vec![1, -1, 300]));
    assert_eq!(f.values().unwrap(), Values::Integers(vec![1, 0]));
    assert_eq!(model.graph.open_inputs().count(), 1);
}

#[test]
fn every_element_type_is_read_from_raw_bytes_and_from_fields() {
    let tensor = |kind: i64, rest: Writer| {
        let tensor = Writer::default().number(1, 2).number(2, kind).bytes(8, b"t").append(&rest);
        let model = read(Writer::default().message(7, &Writer::default().message(5, &tensor))).unwrap();
        model.graph.initializers[0].values()
    };
    let raw = |bytes: &[u8]| Writer::default().bytes(9, bytes);
    let numbers = |field, list: [i64; 2]| Writer::default().numbers(field, list);
    let singles = |list: [f32; 2]| Ok(Values::Single(list.to_vec()));
    let integers = |list: [i64; 2]| Ok(Values::Integers(list.to_vec()));
    let cases = [
        (1, raw(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]), singles([1.0, -2.0])),
        (1, Writer::default().bytes(4, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]), singles([1.0, -2.0])),
        (10, raw(&[0x00, 0x3c, 0x01, 0x80]), singles([1.0, -(2.0_f32.powi(-24))])),
        (10, numbers(5, [0x3c00, 0x7bff]), singles([1.0, 65504.0])),
        (16, raw(&[0x80, 0x3f, 0x00, 0xc0]), singles([1.0, -2.0])),
        (2, raw(&[255, 1]), integers([255, 1])),
        (3, raw(&[255, 1]), integers([-1, 1])),
        (3, numbers(5, [-1, 1]), integers([-1, 1])),
        (4, raw(&[255, 255, 1, 0]), integers([65535, 1])),
        (5, raw(&[255, 255, 1, 0]), integers([-1, 1])),
        (6, raw(&[255, 255, 255, 255, 1, 0, 0, 0]), integers([-1, 1])),
        (12, raw(&[255, 255, 255, 255, 1, 0, 0, 0]), integers([4_294_967_295, 1])),
        (7, numbers(7, [-9, 1 << 40]), integers([-9, 1 << 40])),
        (9, numbers(5, [1, 0]), integers([1, 0])),
        (13, numbers(11, [5, 6]), integers([5, 6])),
    ];
    for (kind, rest, wanted) in cases {
        assert_eq!(tensor(kind, rest), wanted, "kind {kind}");
    }
    let doubles = [1.5_f64.to_le_bytes(), (-0.1_f64).to_le_bytes()].concat();
    assert_eq!(tensor(11, raw(&doubles)), Ok(Values::Double(vec![1.5, -0.1])));
    assert_eq!(tensor(11, Writer::default().bytes(10, &doubles)), Ok(Values::Double(vec![1.5, -0.1])));
    assert!(matches!(tensor(8, raw(b"ab")), Err(TensorError::Element { .. })));
    assert!(matches!(tensor(1, raw(&[0; 7])), Err(TensorError::Length { found: 7, .. })));
    assert!(matches!(tensor(7, numbers(5, [1, 2])), Err(TensorError::Length { found: 0, .. })));
}

#[test]
fn a_shape_that_promises_more_than_the_file_holds_allocates_nothing() {
    let huge = i64::MAX / 2;
    for sides in [vec![huge, huge], vec![1 << 40], vec![huge]] {
        let tensor = Writer::default().number(2, 1).bytes(8, b"t").bytes(9, &[0; 8]).numbers(1, sides);
        let model = read(Writer::default().message(7, &Writer::default().message(5, &tensor))).unwrap();
        assert!(matches!(model.graph.initializers[0].values(), Err(TensorError::Length { .. })));
    }
}

#[test]
fn weights_elsewhere_are_noted_and_not_read() {
    let entry = Writer::default().bytes(1, b"location").bytes(2, b"w.bin");
    let tensor = Writer::default().number(1, 1).number(2, 1).bytes(8, b"w").message(13, &entry);
    let model = read(Writer::default().message(7, &Writer::default().message(5, &tensor))).unwrap();
    assert!(model.elsewhere.contains("w.bin"));
    let error = model.graph.initializers[0].values().unwrap_err();
    assert_eq!(error, TensorError::Elsewhere { tensor: "w".to_owned(), location: "w.bin".to_owned() });
}

#[test]
fn branches_are_read_and_their_depth_is_bounded() {
    let nested = |depth: usize| {
        let mut body = graph("y = Relu(x)");
        for _ in 0..depth {
            let attribute = Writer::default().bytes(1, b"body").number(20, 5).message(6, &body);
            let node = Writer::default().bytes(4, b"If").bytes(2, b"y").message(5, &attribute);
            body = Writer::default().message(1, &node);
        }
        read(Writer::default().message(7, &body))
    };
    assert!(nested(3).unwrap().graph.has_operator(&["Relu"]));
    let error = nested(20_000).unwrap_err();
    assert!(error.to_string().contains("nested too deeply"), "{error}");
}

#[test]
fn a_file_of_nothing_but_parts_is_refused_before_it_fills_the_memory() {
    let node = Writer::default().message(1, &Writer::default().bytes(4, b"A")).into_bytes();
    let error = read(Writer::default().bytes(7, &node.repeat(MOST_PARTS + 1))).unwrap_err();
    assert!(error.to_string().contains("more than a million parts"), "{error}");
    let attribute = Writer::default().bytes(1, b"n").bytes(8, &vec![1; MOST_PARTS + 1]);
    let node = Writer::default().bytes(4, b"A").message(5, &attribute);
    let error = read(Writer::default().message(7, &Writer::default().message(1, &node))).unwrap_err();
    assert!(error.to_string().contains("more than a million parts"), "{error}");
}

#[test]
fn what_no_exporter_writes_is_refused_with_its_place() {
    let node = |node: Writer| read(Writer::default().message(7, &Writer::default().message(1, &node)));
    let twice = Writer::default().bytes(1, b"axis").number(3, 1).number(20, 2);
    let cases = [
        (read_bytes(Vec::new()), "found no single graph"),
        (read(Writer::default().bytes(7, b"").bytes(7, b"")), "found no single graph"),
        (node(Writer::default().bytes(1, b"x")), "without an operator"),
        (node(Writer::default().bytes(4, b"A").message(5, &twice).message(5, &twice)), "an attribute twice"),
        (
            node(
                Writer::default().bytes(4, b"A").message(5, &Writer::default().bytes(1, b"t").number(20, 4)),
            ),
            "without its value",
        ),
        (node(Writer::default().bytes(4, &[0xff])), "not UTF-8"),
    ];
    for (found, wanted) in cases {
        let error = found.unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("test.onnx"), "{error}");
    }
    let sides = Writer::default().bytes(1, &[1; 65]);
    let error = read(Writer::default().message(7, &Writer::default().message(5, &sides))).unwrap_err();
    assert!(error.to_string().contains("more than 64 axes"), "{error}");
    let negative = tensor("t", "int[1] = 4").number(1, -1);
    assert!(read(Writer::default().message(7, &Writer::default().message(5, &negative))).is_err());
}

#[test]
fn whatever_bytes_are_changed_reading_and_following_end() {
    use super::batch::{BatchReading, BatchSpec};
    let lines = "w: float[4,3,3,3]\n c = Conv(pictures, w) pads=[1,1,1,1]\n s: int[2] = 0,-1
        n = Shape(c)\n one: int[1] = 1\n p, q = Split(n, one) axis=0\n r = Range(one, one, one)
        st: int[1] = 0\n en: int[1] = 3\n sl = Slice(n, st, en)\n t = Resize(c, _, _, n)
        a = Expand(one, n)\n embeddings = Reshape(t, s)";
    let whole = model(17, lines);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=next() % 4 {
            let place = next() as usize % bytes.len();
            bytes[place] = match next() % 3 {
                0 => next() as u8,
                1 => 0xff,
                _ => bytes[place] ^ (1 << (next() % 8)),
            };
        }
        if next() % 8 == 0 {
            bytes.truncate(next() as usize % bytes.len());
        }
        let Ok(model) = read_bytes(bytes) else { continue };
        for tensor in &model.graph.initializers {
            let _ = tensor.values();
        }
        let batch = (next() % 2 == 0).then_some(2);
        let spec = BatchSpec { input: "pictures", picture: [3, 8, 8], batch, output: "embeddings" };
        let _ = BatchReading::of(&model, &spec);
    }
}

#[test]
fn files_that_say_two_things_are_refused() {
    let with = |attribute: Writer| {
        let node = Writer::default().bytes(4, b"Softmax").message(5, &attribute);
        read(Writer::default().message(7, &Writer::default().message(1, &node)))
    };
    let axis = || Writer::default().bytes(1, b"axis");
    assert_eq!(with(axis().number(3, 0)).unwrap().graph.nodes[0].int("axis"), Some(0));
    assert_eq!(with(axis().number(20, 2)).unwrap().graph.nodes[0].int("axis"), None);
    for attribute in [
        axis().number(20, 1).number(3, 0),
        axis().number(20, 2).number(3, 0).number(8, 1),
        axis().single(2, 0.5).number(3, 1),
    ] {
        let error = with(attribute).unwrap_err().to_string();
        assert!(error.contains("values of another type"), "{error}");
    }
    let sets = |first: i64, second: i64| {
        let set = |domain: &[u8], version| Writer::default().bytes(1, domain).number(2, version);
        let model = Writer::default().message(7, &Writer::default());
        read(model.message(8, &set(b"", first)).message(8, &set(b"ai.onnx", second)))
    };
    assert_eq!(sets(17, 17).unwrap().operators(), 17);
    assert!(sets(12, 17).unwrap_err().to_string().contains("two versions"));
}
