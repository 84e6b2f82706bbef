//! Small ONNX files for tests, written line by line.
//!
//! ```text
//! w: float[8,3,3,3]                        a constant of ones
//! s: int[2] = 0,-1                         a constant of 64-bit integers
//! c = Conv(pictures, w) pads=[1,1,1,1]     an operator with attributes: integers, lists, numbers (1.0) or texts
//! q = com.microsoft::Gelu(c)               an operator of another domain
//! ```

/// A message under construction.
#[derive(Clone, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn varint(mut self, mut number: u64) -> Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    pub(crate) fn number(self, field: u64, number: i64) -> Self {
        self.varint(field << 3).varint(number as u64)
    }

    pub(crate) fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        let mut writer = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        writer.0.extend_from_slice(bytes);
        writer
    }

    pub(crate) fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    pub(crate) fn single(self, field: u64, value: f32) -> Self {
        let mut writer = self.varint(field << 3 | 5);
        writer.0.extend_from_slice(&value.to_le_bytes());
        writer
    }
}

/// A model of one input `pictures: [batch, 3, 8, 8]` and one output `embeddings`, with these lines in between.
pub(crate) fn model(operators: i64, lines: &str) -> Vec<u8> {
    let graph = graph(lines).message(11, &value("pictures")).message(12, &value("embeddings"));
    let set = Writer::default().number(2, operators);
    Writer::default().number(1, 8).message(7, &graph).message(8, &set).0
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
    Writer::default().bytes(1, name.as_bytes()).message(2, &kind)
}

/// `float[2,3]` or `int[2] = 1,2`.
pub(crate) fn tensor(name: &str, text: &str) -> Writer {
    let (kind, numbers) = text.split_once(" = ").unwrap_or((text, ""));
    let (kind, sides) = kind.trim_end_matches(']').split_once('[').unwrap();
    let sides: Vec<i64> = list(sides);
    let mut tensor = Writer::default().bytes(8, name.as_bytes());
    for &side in &sides {
        tensor = tensor.number(1, side);
    }
    let count: i64 = sides.iter().product();
    match kind {
        "int" => {
            let numbers =
                list(numbers).into_iter().fold(Writer::default(), |all, number| all.varint(number as u64));
            tensor.number(2, 7).message(7, &numbers)
        }
        "bool" => list(numbers).into_iter().fold(tensor.number(2, 9), |all, number| all.number(5, number)),
        "float" if numbers.is_empty() => {
            tensor.number(2, 1).bytes(9, &1.0_f32.to_le_bytes().repeat(count as usize))
        }
        "float" => {
            let numbers = numbers.split(',').map(|number| number.trim().parse::<f32>().unwrap());
            tensor.number(2, 1).bytes(9, &numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        }
        _ => panic!("no constants of kind {kind}"),
    }
}

fn list(text: &str) -> Vec<i64> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
}

fn node(line: &str) -> Writer {
    let (outputs, call) = line.split_once(" = ").unwrap();
    let (operator, rest) = call.split_once('(').unwrap();
    let (inputs, attributes) = rest.split_once(')').unwrap();
    let (domain, operator) = operator.split_once("::").unwrap_or(("", operator));
    let mut node = Writer::default().bytes(4, operator.as_bytes()).bytes(7, domain.as_bytes());
    for input in inputs.split(',').map(str::trim).filter(|_| !inputs.is_empty()) {
        node = node.bytes(1, input.trim_matches('_').as_bytes());
    }
    for output in outputs.split(',').map(str::trim) {
        node = node.bytes(2, output.as_bytes());
    }
    attributes.split_whitespace().fold(node, |node, attribute| {
        let (name, value) = attribute.split_once('=').unwrap();
        node.message(5, &self::attribute(name, value))
    })
}

fn attribute(name: &str, value: &str) -> Writer {
    let attribute = Writer::default().bytes(1, name.as_bytes());
    if let Some(numbers) = value.strip_prefix('[') {
        let numbers = list(numbers.trim_end_matches(']'));
        return numbers.into_iter().fold(attribute.number(20, 7), |all, number| all.number(8, number));
    }
    if value.starts_with("int[") {
        return attribute.number(20, 4).message(5, &tensor("", &value.replace(':', " = ")));
    }
    if let Ok(number) = value.parse::<i64>() {
        return attribute.number(20, 2).number(3, number);
    }
    match value.parse::<f32>() {
        Ok(number) => attribute.number(20, 1).single(2, number),
        Err(_) => attribute.number(20, 3).bytes(4, value.as_bytes()),
    }
}
