//! SHA-256 of files and of descriptions: how one file names another, and how a run names itself.
//!
//! ```
//! use retrievalguard::storage::digest::Digest;
//!
//! // The order in which fields are written does not change what they say.
//! let one = serde_json::json!({"sigma": 0.25, "samples": 1000});
//! let other = serde_json::json!({"samples": 1000, "sigma": 0.25});
//! assert_eq!(Digest::of_json(&one), Digest::of_json(&other));
//! assert!(Digest::of_bytes(b"").to_string().starts_with("e3b0c44298fc1c14"));
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("digest is `{found}`, wanted 64 hexadecimal digits")]
pub struct DigestError {
    /// What was found.
    pub found: String,
}

/// The 32 bytes of a SHA-256, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// A digest that was computed elsewhere.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Digest of bytes in memory.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Digest of a file, read in pieces.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let mut reader = HashingReader::new(File::open(path)?);
        io::copy(&mut reader, &mut io::sink())?;
        Ok(reader.finish().0)
    }

    /// Digest of the canonical text of a JSON value, see [`canonical_json`].
    pub fn of_json(value: &Value) -> Self {
        Self::of_bytes(canonical_json(value).as_bytes())
    }

    /// The 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    /// All 64 digits, or as many as the precision asks for.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        formatter.pad(&digits)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let refused = || DigestError { found: text.chars().take(80).collect() };
        if text.len() != 64 || !text.bytes().all(|letter| letter.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let mut bytes = [0; 32];
        for (position, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * position..2 * position + 2], 16).map_err(|_| refused())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// The one text of a JSON value: no spaces, the fields of every object in alphabetical order.
pub fn canonical_json(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_unstable();
            let fields: Vec<String> = names
                .into_iter()
                .map(|name| format!("{}:{}", Value::from(name.as_str()), canonical_json(&fields[name])))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(canonical_json).collect::<Vec<_>>().join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Passes bytes on and digests them on the way.
pub(crate) struct HashingReader<R> {
    reader: R,
    hasher: Sha256,
    bytes: u64,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, hasher: Sha256::new(), bytes: 0 }
    }

    /// Digest and number of the bytes that were read.
    pub(crate) fn finish(self) -> (Digest, u64) {
        (Digest(self.hasher.finalize().into()), self.bytes)
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Passes bytes on and digests them on the way.
#[derive(Debug)]
pub(crate) struct HashingWriter<W> {
    writer: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: io::Write> HashingWriter<W> {
    pub(crate) fn new(writer: W) -> Self {
        Self { writer, hasher: Sha256::new(), bytes: 0 }
    }

    /// Number of bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The writer, and digest and number of the bytes that it took.
    pub(crate) fn finish(self) -> (W, Digest, u64) {
        (self.writer, Digest(self.hasher.finalize().into()), self.bytes)
    }
}

impl<W: io::Write> io::Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.writer.write(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_from_its_text_and_from_nothing_else() {
        let digest = Digest::of_bytes(b"abc");
        assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(format!("{digest:.8}"), "ba7816bf");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for text in ["", "ba78", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(text.parse::<Digest>(), Err(DigestError { found: text.to_owned() }));
        }
    }

    #[test]
    fn canonical_text_sorts_fields_at_every_depth_and_escapes_them() {
        let value: Value =
            serde_json::from_str(r#"{"b": {"z": 1, "a": [{"d": 0.1, "c": null}]}, "a\"": "ü"}"#).unwrap();
        assert_eq!(canonical_json(&value), r#"{"a\"":"ü","b":{"a":[{"c":null,"d":0.1}],"z":1}}"#);
    }

    #[test]
    fn a_file_has_the_digest_of_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        assert_eq!(Digest::of_file(&path).unwrap(), Digest::of_bytes(&[7; 100_000]));
    }
}
