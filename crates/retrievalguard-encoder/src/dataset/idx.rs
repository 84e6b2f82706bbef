//! The IDX files of the MNIST family: a big-endian header, then one byte per pixel or label.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::{DatasetError, Format, PictureSource, Record, Role, Split};

/// Beginning of the files' names, and the split they hold.
const PARTS: [(&str, Split); 2] = [("train", Split::Train), ("t10k", Split::Test)];
const PICTURES: [&str; 2] = ["-images-idx3-ubyte", "-images.idx3-ubyte"];
const LABELS: [&str; 2] = ["-labels-idx1-ubyte", "-labels.idx1-ubyte"];
/// Far above the largest of the family, EMNIST with 0.6 GB.
const LARGEST_FILE: u64 = 4 << 30;

/// The file of the given kind, plain or gzipped.
fn find(root: &Path, part: &str, kinds: [&str; 2]) -> Option<PathBuf> {
    kinds
        .iter()
        .flat_map(|kind| ["", ".gz"].map(|ending| root.join(format!("{part}{kind}{ending}"))))
        .find(|path| path.is_file())
}

/// Whether the folder holds pictures in IDX files.
pub(super) fn looks_like(root: &Path) -> bool {
    PARTS.iter().any(|(part, _)| find(root, part, PICTURES).is_some())
}

/// Reads an array of unsigned bytes; returns its lengths and its bytes.
fn read_array<const DIMENSIONS: usize>(file: &Path) -> Result<([usize; DIMENSIONS], Vec<u8>), DatasetError> {
    let failed = |source| DatasetError::Read { path: file.to_owned(), source };
    let wrong = |found: String, wanted: String| DatasetError::Idx { file: file.to_owned(), found, wanted };
    let opened = BufReader::new(File::open(file).map_err(failed)?);
    let zipped = file.extension().is_some_and(|ending| ending == "gz");
    let mut reader: Box<dyn Read> =
        if zipped { Box::new(MultiGzDecoder::new(opened)) } else { Box::new(opened) };
    let header_bytes = 4 + 4 * DIMENSIONS;
    let mut header = Vec::new();
    reader.by_ref().take(header_bytes as u64).read_to_end(&mut header).map_err(failed)?;
    let words = header.as_chunks::<4>().0;
    if header.len() != header_bytes {
        return Err(wrong(format!("{} bytes", header.len()), format!("a header of {header_bytes} bytes")));
    }
    let magic = [0, 0, 8, DIMENSIONS as u8];
    if words[0] != magic {
        return Err(wrong(format!("magic number {:02x?}", words[0]), format!("{magic:02x?}")));
    }
    let lengths: [usize; DIMENSIONS] =
        std::array::from_fn(|axis| u32::from_be_bytes(words[axis + 1]) as usize);
    let total = lengths
        .iter()
        .try_fold(1_u64, |total, &length| total.checked_mul(length as u64))
        .filter(|&total| total > 0 && total <= LARGEST_FILE)
        .ok_or_else(|| {
            wrong(format!("dimensions {lengths:?}"), format!("between 1 and {LARGEST_FILE} values"))
        })?;
    // The bytes are read as they come, so that a header that lies allocates nothing.
    let mut bytes = Vec::new();
    reader.take(total + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 != total {
        let found = if bytes.len() as u64 > total { "more".to_owned() } else { bytes.len().to_string() };
        return Err(wrong(
            format!("{found} bytes after its header"),
            format!("{total} for dimensions {lengths:?}"),
        ));
    }
    Ok((lengths, bytes))
}

/// Reads whichever of the two parts are there.
pub(super) fn read(root: &Path) -> Result<Vec<Record>, DatasetError> {
    let mut records = Vec::new();
    let missing =
        |file: String| DatasetError::MissingFile { path: root.to_owned(), file, format: Format::Idx };
    for (part, split) in PARTS {
        let Some(pictures_file) = find(root, part, PICTURES) else { continue };
        let labels_file = find(root, part, LABELS).ok_or_else(|| missing(format!("{part}{}", LABELS[0])))?;
        let ([count, height, width], pixels) = read_array::<3>(&pictures_file)?;
        let ([label_count], labels) = read_array::<1>(&labels_file)?;
        if label_count != count {
            return Err(DatasetError::Idx {
                file: labels_file,
                found: format!("{label_count} labels"),
                wanted: format!("{count}, one for each picture"),
            });
        }
        for (number, (picture, label)) in pixels.chunks_exact(height * width).zip(labels).enumerate() {
            records.push(Record {
                identity: format!("{part}/{number:05}"),
                source: PictureSource::Grey { width, height, pixels: picture.to_vec() },
                crop: None,
                label: label.to_string(),
                category: None,
                split: Some(split),
                role: Role::Unassigned,
            });
        }
    }
    if records.is_empty() {
        return Err(missing(format!("train{}", PICTURES[0])));
    }
    Ok(records)
}
