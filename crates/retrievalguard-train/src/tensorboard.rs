//! Scalars in the event files that TensorBoard reads.
//!
//! An event file is a sequence of TFRecords, each a protocol-buffer message `Event` between its length and checksums:
//!
//! ```text
//! u64 length | u32 masked CRC-32C of the length | message | u32 masked CRC-32C of the message     (little-endian)
//! ```
//!
//! TensorBoard reads all files of a folder in the order of their names, so that a resumed run writes a file of its own.
//! TensorBoard 2.21 showed two files of a resumed run as one curve with every step once.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use retrievalguard_encoder::protobuf::MessageWriter;

/// Why an event file cannot be written; every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventFileError {
    /// The file cannot be created.
    #[error("event file `{path}` cannot be created")]
    Create {
        /// The file, or its folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("event file `{path}` cannot be written")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// An event file that is being written.
#[derive(Debug)]
pub(crate) struct EventFile {
    path: PathBuf,
    output: BufWriter<File>,
}

impl EventFile {
    /// Begins a file in a folder, which is made if it is not there; `wall_time` is in seconds since 1970.
    ///
    /// A run resumed after `resumed_after` steps makes TensorBoard forget later steps of earlier files.
    pub(crate) fn create(
        folder: &Path,
        wall_time: f64,
        resumed_after: Option<u64>,
    ) -> Result<Self, EventFileError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| EventFileError::Create { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let name =
            |number: u32| format!("events.out.tfevents.{:010}.retrievalguard.{number:03}", wall_time as u64);
        let mut number = 0;
        let (path, output) = loop {
            let path = folder.join(name(number));
            match File::create_new(&path) {
                Ok(output) => break (path, BufWriter::new(output)),
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => return Err(failed(&path)(source)),
            }
        };
        let mut file = Self { path, output };
        let version = MessageWriter::default().text(3, "brain.Event:2");
        file.event(wall_time, 0, &version)?;
        if let Some(step) = resumed_after {
            // SessionLog, whose first field is its status: 1 is START.
            let session = MessageWriter::default().number(1, 1);
            let start = MessageWriter::default().message(7, &session);
            file.event(wall_time, step + 1, &start)?;
        }
        file.flush()?;
        Ok(file)
    }

    /// Adds one value of a curve; `wall_time` is in seconds since 1970.
    pub(crate) fn scalar(
        &mut self,
        tag: &str,
        step: u64,
        wall_time: f64,
        value: f32,
    ) -> Result<(), EventFileError> {
        let entry = MessageWriter::default().text(1, tag).single(2, value);
        let summary = MessageWriter::default().message(1, &entry);
        self.event(wall_time, step, &MessageWriter::default().message(5, &summary))
    }

    /// Flushes everything to the operating system, so that TensorBoard sees it.
    pub(crate) fn flush(&mut self) -> Result<(), EventFileError> {
        self.output.flush().map_err(|source| EventFileError::Write { path: self.path.clone(), source })
    }

    /// Writes an event with the given content.
    fn event(&mut self, wall_time: f64, step: u64, content: &MessageWriter) -> Result<(), EventFileError> {
        let event = MessageWriter::default().double(1, wall_time).number(2, step as i64).append(content);
        self.output
            .write_all(&record(&event.into_bytes()))
            .map_err(|source| EventFileError::Write { path: self.path.clone(), source })
    }
}

/// Puts a message between its length and checksums.
fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(message.len() + 16);
    record.extend(length);
    record.extend(masked(checksum(&length)).to_le_bytes());
    record.extend(message);
    record.extend(masked(checksum(message)).to_le_bytes());
    record
}

/// TFRecord's mask, without which a checksum over checksums would be weak.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), RFC 3720, Appendix B.4.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |state: u32, &byte| TABLE[usize::from(state as u8 ^ byte)] ^ state >> 8)
}

/// The effect of each byte on the checksum; the polynomial is reflected.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 { state >> 1 ^ 0x82f6_3b78 } else { state >> 1 };
            bit += 1;
        }
        table[byte] = state;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the records out of a file, checking both checksums.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(word(8), masked(checksum(&bytes[..8])));
            let message = &bytes[12..12 + length];
            assert_eq!(word(12 + length), masked(checksum(message)));
            records.push(message.to_vec());
            bytes = &bytes[16 + length..];
        }
        records
    }

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, Appendix B.4, and the usual check value.
        let ascending: Vec<u8> = (0..32).collect();
        let cases: [(&[u8], u32); 5] = [
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"123456789", 0xe306_9283),
            (b"", 0),
        ];
        for (bytes, wanted) in cases {
            assert_eq!(checksum(bytes), wanted, "{bytes:?}");
        }
    }

    #[test]
    fn a_file_has_a_version_and_then_its_scalars() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(&folder.path().join("run"), 1_700_000_000.5, None).unwrap();
        file.scalar("loss", 300, 1.0, 0.25).unwrap();
        file.flush().unwrap();
        let found = records(&fs::read(&file.path).unwrap());
        let time = 1_700_000_000.5_f64.to_le_bytes();
        let version = [&[0x09][..], &time, &[0x10, 0, 0x1a, 13], b"brain.Event:2"].concat();
        let entry = [&[0x0a, 4][..], b"loss", &[0x15], &0.25_f32.to_le_bytes()].concat();
        let scalar = [
            &[0x09][..],
            &1.0_f64.to_le_bytes(),
            &[0x10, 0xac, 0x02, 0x2a, entry.len() as u8 + 2, 0x0a, entry.len() as u8],
            &entry,
        ]
        .concat();
        assert_eq!(found, [version, scalar]);
    }

    #[test]
    fn a_resumed_run_writes_a_later_file_that_begins_a_session() {
        let folder = tempfile::tempdir().unwrap();
        let first = EventFile::create(folder.path(), 1_700_000_000.0, None).unwrap();
        let second = EventFile::create(folder.path(), 1_700_000_000.9, Some(40)).unwrap();
        let third = EventFile::create(folder.path(), 1_700_000_001.0, Some(50)).unwrap();
        assert!(first.path < second.path && second.path < third.path);
        let found = records(&fs::read(&second.path).unwrap());
        // Step 41; field 7, two bytes: field 1 is 1.
        assert_eq!(found[1][9..], [0x10, 41, 0x3a, 2, 0x08, 1]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::write(&taken, "a file").unwrap();
        let error = EventFile::create(&taken, 0.0, None).unwrap_err();
        assert!(matches!(error, EventFileError::Create { ref path, .. } if *path == taken), "{error:?}");
    }
}
