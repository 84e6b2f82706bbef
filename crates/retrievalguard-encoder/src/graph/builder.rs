//! Small ONNX files for tests, written line by line.
//!
//! ```text
//! w: float[8,3,3,3]                        a constant of ones
//! v: float[8,3] = random                   a constant of numbers between -1 and 1, the same in every run
//! s: int[2] = 0,-1                         a constant of 64-bit integers
//! c = Conv(pictures, w) pads=[1,1,1,1]     an operator with attributes: integers, lists, numbers (1.0) or texts
//! q = com.microsoft::Gelu(c)               an operator of another domain
//! ```

use crate::protobuf::MessageWriter as Writer;

/// A model of one input `pictures: [batch, 3, 8, 8]` and one output `embeddings`, with these lines in between.
pub(crate) fn model(operators: i64, lines: &str) -> Vec<u8> {
    let graph = graph(lines).message(11, &value("pictures")).message(12, &value("embeddings"));
    let set = Writer::default().number(2, operators);
    Writer::default().number(1, 8).message(7, &graph).message(8, &set).into_bytes()
}

pub(crate) fn graph(lines: &str) -> Writer {
    let mut graph = Writer::default();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        graph = match line.split_once(": ") {
            Some((name, constant)) => graph.message(5, &tensor(name, constant)),
            None => graph.message(1, &node(line)),
        };
    }
    graph
}

fn value(name: &str) -> Writer {
    let kind = Writer::default().message(1, &Writer::default().number(1, 1));
    Writer::default().text(1, name).message(2, &kind)
}

/// `float[2,3]` or `int[2] = 1,2`.
pub(crate) fn tensor(name: &str, text: &str) -> Writer {
    let (kind, numbers) = text.split_once(" = ").unwrap_or((text, ""));
    let (kind, sides) = kind.trim_end_matches(']').split_once('[').unwrap();
    let sides: Vec<i64> = list(sides);
    let count: i64 = sides.iter().product();
    let tensor = Writer::default().text(8, name).numbers(1, sides);
    match kind {
        "int" => tensor.number(2, 7).packed(7, list(numbers)),
        "byte" => tensor.number(2, 3).numbers(5, list(numbers)),
        "ubyte" => tensor.number(2, 2).numbers(5, list(numbers)),
        "bool" => tensor.number(2, 9).numbers(5, list(numbers)),
        "float" if numbers.is_empty() => {
            tensor.number(2, 1).bytes(9, &1.0_f32.to_le_bytes().repeat(count as usize))
        }
        "float" if numbers == "random" => {
            let numbers = random(name.len() as u64, count as usize).map(|number| number as f32);
            tensor.number(2, 1).bytes(9, &numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        }
        "float" => {
            let numbers = numbers.split(',').map(|number| number.trim().parse::<f32>().unwrap());
            tensor.number(2, 1).bytes(9, &numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        }
        _ => panic!("no constants of kind {kind}"),
    }
}

/// Numbers between -1 and 1 without a pattern (SplitMix64).
pub(crate) fn random(seed: u64, count: usize) -> impl Iterator<Item = f64> {
    (1..=count as u64).map(move |place| {
        let state = (seed << 32).wrapping_add(place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    })
}

fn list(text: &str) -> Vec<i64> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
}

fn node(line: &str) -> Writer {
    let (outputs, call) = line.split_once(" = ").unwrap();
    let (operator, rest) = call.split_once('(').unwrap();
    let (inputs, attributes) = rest.split_once(')').unwrap();
    let (domain, operator) = operator.split_once("::").unwrap_or(("", operator));
    let mut node = Writer::default().text(4, operator).text(7, domain);
    for input in inputs.split(',').map(str::trim).filter(|_| !inputs.is_empty()) {
        node = node.text(1, input.trim_matches('_'));
    }
    for output in outputs.split(',').map(str::trim) {
        node = node.text(2, output);
    }
    attributes.split_whitespace().fold(node, |node, attribute| {
        let (name, value) = attribute.split_once('=').unwrap();
        node.message(5, &self::attribute(name, value))
    })
}

fn attribute(name: &str, value: &str) -> Writer {
    let attribute = Writer::default().text(1, name);
    if let Some(numbers) = value.strip_prefix('[') {
        return attribute.number(20, 7).numbers(8, list(numbers.trim_end_matches(']')));
    }
    if value.starts_with("int[") {
        return attribute.number(20, 4).message(5, &tensor("", &value.replace(':', " = ")));
    }
    if let Ok(number) = value.parse::<i64>() {
        return attribute.number(20, 2).number(3, number);
    }
    match value.parse::<f32>() {
        Ok(number) => attribute.number(20, 1).single(2, number),
        Err(_) => attribute.number(20, 3).text(4, value),
    }
}
