//! The little of the protocol-buffer format that writing an ONNX file takes.
//!
//! Lists of numbers are written one field per number, as `onnx.proto` (proto2) has them: rten refuses packed ones.

/// The fields of one message, in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

/// How the value of a field is laid out.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Length = 2,
}

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A whole number.
    pub(super) fn number(mut self, field: u64, value: usize) -> Self {
        self.key(field, Wire::Varint);
        self.varint(value as u64);
        self
    }

    /// Whole numbers, one field each.
    pub(super) fn numbers(self, field: u64, values: &[usize]) -> Self {
        values.iter().fold(self, |message, &value| message.number(field, value))
    }

    pub(super) fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.key(field, Wire::Length);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    pub(super) fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// Texts, one field each.
    pub(super) fn texts(self, field: u64, values: &[&str]) -> Self {
        values.iter().fold(self, |message, value| message.text(field, value))
    }

    pub(super) fn message(self, field: u64, value: &Message) -> Self {
        self.bytes(field, &value.0)
    }

    fn key(&mut self, field: u64, wire: Wire) {
        self.varint(field << 3 | wire as u64);
    }

    /// Seven bits per byte, the lowest first; the eighth says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_laid_out_as_the_format_describes() {
        // 150, "testing" and the nested message are the examples of the format's own description.
        let nested = Message::default().number(1, 150);
        let cases = [
            (nested.clone(), vec![0x08, 0x96, 0x01]),
            (Message::default().text(2, "testing"), b"\x12\x07testing".to_vec()),
            (Message::default().message(3, &nested), vec![0x1a, 0x03, 0x08, 0x96, 0x01]),
            (Message::default().numbers(8, &[1, 2]), vec![0x40, 1, 0x40, 2]),
            (Message::default().number(20, 7), vec![0xa0, 0x01, 7]),
        ];
        for (message, wanted) in cases {
            assert_eq!(message.into_bytes(), wanted);
        }
    }
}
