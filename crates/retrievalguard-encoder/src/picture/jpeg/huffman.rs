//! Entropy-coded bits and the Huffman codes in them (ITU-T T.81, annexes C and F.2.2).

use super::super::Fault;

/// Longest code that one table look-up resolves.
const LOOKUP_BITS: u32 = 9;

/// A stream of bits that ends at the next marker.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// The next bits, the first of them topmost.
    bits: u64,
    /// How many of `bits` are valid.
    count: u32,
    /// How many of these are zeros in place of bits beyond the end.
    padding: u32,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8], position: usize) -> Self {
        Self { bytes, position, bits: 0, count: 0, padding: 0 }
    }

    /// Where the next marker is to be looked for.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    fn next_byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.position)?;
        if byte != 0xFF {
            self.position += 1;
            return Some(byte);
        }
        let mut next = self.position + 1;
        while self.bytes.get(next) == Some(&0xFF) {
            next += 1;
        }
        if self.bytes.get(next) == Some(&0) {
            self.position = next + 1;
            return Some(0xFF);
        }
        None
    }

    /// Makes at least 48 bits available.
    fn refill(&mut self) {
        while self.count <= 48 {
            match self.next_byte() {
                Some(byte) => self.bits |= u64::from(byte) << (56 - self.count),
                None => self.padding += 8,
            }
            self.count += 8;
        }
    }

    fn skip(&mut self, length: u32) {
        self.bits <<= length;
        self.count -= length;
    }

    /// The next `length ≤ 16` bits as a number.
    pub(super) fn take(&mut self, length: u32) -> u32 {
        if length == 0 {
            return 0;
        }
        if self.count < 16 {
            self.refill();
        }
        let value = (self.bits >> (64 - length)) as u32;
        self.skip(length);
        value
    }

    /// One bit.
    pub(super) fn bit(&mut self) -> bool {
        self.take(1) == 1
    }

    /// A signed number of `size` bits in JPEG's notation (figure F.12).
    pub(super) fn signed(&mut self, size: u32) -> i32 {
        let value = self.take(size) as i32;
        if size == 0 || value >= 1 << (size - 1) { value } else { value - (1 << size) + 1 }
    }

    /// An error if bits beyond the end were used.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.count < self.padding {
            return Err(Fault::broken("its compressed pixels end early"));
        }
        Ok(())
    }

    /// Steps over a restart marker.
    pub(super) fn restart(&mut self) -> Result<(), Fault> {
        (self.bits, self.count, self.padding) = (0, 0, 0);
        while self.next_byte().is_some() {}
        while self.bytes.get(self.position + 1) == Some(&0xFF) {
            self.position += 1;
        }
        match self.bytes.get(self.position + 1) {
            Some(0xD0..=0xD7) => self.position += 2,
            Some(other) => {
                return Err(Fault::broken(format!(
                    "marker {other:#04x} stands where a restart marker belongs"
                )));
            }
            None => return Err(Fault::broken("its compressed pixels end early")),
        }
        Ok(())
    }
}

/// A Huffman code.
#[derive(Clone)]
pub(super) struct HuffmanTable {
    /// Length and symbol for each start of `LOOKUP_BITS` bits; length 0 for longer codes.
    lookup: Vec<(u8, u8)>,
    /// First code of each length, one beyond its last, and the index of its first symbol.
    lengths: [(u32, u32, usize); 17],
    symbols: Vec<u8>,
}

impl HuffmanTable {
    /// Builds the code from the number of symbols of each length, 1 to 16.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Self, Fault> {
        let mut lookup = vec![(0, 0); 1 << LOOKUP_BITS];
        let mut lengths = [(0, 0, 0); 17];
        let (mut code, mut index) = (0_u32, 0_usize);
        for length in 1..=16_u32 {
            let count = u32::from(counts[length as usize - 1]);
            if code + count > 1 << length {
                return Err(Fault::broken(format!("a Huffman table has too many codes of {length} bits")));
            }
            lengths[length as usize] = (code, code + count, index);
            for _ in 0..count {
                if length <= LOOKUP_BITS {
                    let free = LOOKUP_BITS - length;
                    let start = (code << free) as usize;
                    lookup[start..start + (1 << free)].fill((length as u8, symbols[index]));
                }
                code += 1;
                index += 1;
            }
            code <<= 1;
        }
        Ok(Self { lookup, lengths, symbols: symbols.to_vec() })
    }

    /// The next symbol.
    pub(super) fn decode(&self, reader: &mut BitReader) -> Result<u8, Fault> {
        if reader.count < 16 {
            reader.refill();
        }
        let (length, symbol) = self.lookup[(reader.bits >> (64 - LOOKUP_BITS)) as usize];
        if length > 0 {
            reader.skip(u32::from(length));
            return Ok(symbol);
        }
        for length in LOOKUP_BITS + 1..=16 {
            let code = (reader.bits >> (64 - length)) as u32;
            let (first, end, index) = self.lengths[length as usize];
            if (first..end).contains(&code) {
                reader.skip(length);
                return Ok(self.symbols[index + (code - first) as usize]);
            }
        }
        reader.skip(16);
        reader.check()?;
        Err(Fault::broken("its compressed pixels hold a code that no Huffman table explains"))
    }
}
