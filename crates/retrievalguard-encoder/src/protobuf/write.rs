//! Puts the fields of a message one after the other.

/// A message under construction; its fields stay in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub struct MessageWriter(Vec<u8>);

/// How the value of a field is laid out.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
    Fixed32 = 5,
}

impl MessageWriter {
    /// The message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A whole number; a negative one takes ten bytes, as `int64` has it.
    pub fn number(mut self, field: u64, value: i64) -> Self {
        self.key(field, Wire::Varint);
        self.varint(value as u64);
        self
    }

    /// Whole numbers, one field each: rten refuses packed ones.
    pub fn numbers(self, field: u64, values: impl IntoIterator<Item = i64>) -> Self {
        values.into_iter().fold(self, |message, value| message.number(field, value))
    }

    /// Whole numbers, packed into one field.
    pub fn packed(self, field: u64, values: impl IntoIterator<Item = i64>) -> Self {
        let mut packed = Self::default();
        values.into_iter().for_each(|value| packed.varint(value as u64));
        self.message(field, &packed)
    }

    /// A number of single precision.
    pub fn single(mut self, field: u64, value: f32) -> Self {
        self.key(field, Wire::Fixed32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A number of double precision.
    pub fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, Wire::Fixed64);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Bytes of any kind.
    pub fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.key(field, Wire::Length);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// A text.
    pub fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// Texts, one field each.
    pub fn texts(self, field: u64, values: &[&str]) -> Self {
        values.iter().fold(self, |message, value| message.text(field, value))
    }

    /// A message inside this one.
    pub fn message(self, field: u64, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// The fields of another message, as if they had been written to this one.
    pub fn append(mut self, other: &Self) -> Self {
        self.0.extend(&other.0);
        self
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
        // 150, "testing", the nested message and -2 are the examples of the format's own description.
        let message = MessageWriter::default;
        let nested = message().number(1, 150);
        let negative = [&[0x08, 0xfe][..], &[0xff; 8], &[0x01]].concat();
        let cases = [
            (nested.clone(), vec![0x08, 0x96, 0x01]),
            (message().number(1, -2), negative),
            (message().text(2, "testing"), b"\x12\x07testing".to_vec()),
            (message().texts(2, &["a", ""]), b"\x12\x01a\x12\x00".to_vec()),
            (message().message(3, &nested), vec![0x1a, 0x03, 0x08, 0x96, 0x01]),
            (message().number(2, 1).append(&nested), vec![0x10, 1, 0x08, 0x96, 0x01]),
            (message().numbers(8, [1, 2]), vec![0x40, 1, 0x40, 2]),
            (message().packed(6, [3, 270, 86_942]), vec![0x32, 6, 3, 0x8e, 0x02, 0x9e, 0xa7, 0x05]),
            (message().number(20, 7), vec![0xa0, 0x01, 7]),
            (message().single(2, 1.0), vec![0x15, 0, 0, 0x80, 0x3f]),
            (message().double(1, 1.0), vec![0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]),
        ];
        for (message, wanted) in cases {
            assert_eq!(message.into_bytes(), wanted);
        }
    }
}
