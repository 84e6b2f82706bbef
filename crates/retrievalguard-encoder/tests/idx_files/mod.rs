//! Files of the MNIST family; tests inside and outside of the crate share this file by its path.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// An array of bytes with these lengths, whether or not there are as many bytes.
pub(crate) fn array(lengths: &[u32], content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, lengths.len() as u8];
    bytes.extend(lengths.iter().flat_map(|length| length.to_be_bytes()));
    bytes.extend_from_slice(content);
    bytes
}

pub(crate) fn zipped(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}
