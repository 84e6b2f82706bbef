//! The IDX files of the MNIST family: a big-endian header, then one byte per pixel or label.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::{DatasetError, Format, PictureSource, Record, Role, Split, unfolded_limit};

/// Beginning of the files' names, and the split they hold.
const PARTS: [(&str, Split); 2] = [("train", Split::Train), ("t10k", Split::Test)];
const PICTURES: [&str; 2] = ["-images-idx3-ubyte", "-images.idx3-ubyte"];
const LABELS: [&str; 2] = ["-labels-idx1-ubyte", "-labels.idx1-ubyte"];
/// Far above the largest of the family, EMNIST with 0.6 GB.
const LARGEST: u64 = 4 << 30;
/// What helps where pictures are so empty that they were packed better than others.
const UNPACK: &str = "; unpacked with gunzip it is bounded by its own length";
/// Memory that a picture takes beside its pixels: its name, its label and where it belongs.
const RECORD_BYTES: u64 = 512;

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

/// An array of unsigned bytes whose header has been read and checked.
struct Array<'a, const DIMENSIONS: usize> {
    file: &'a Path,
    reader: Box<dyn Read>,
    lengths: [usize; DIMENSIONS],
    /// Bytes after the header, by the header.
    total: u64,
}

impl<'a, const DIMENSIONS: usize> Array<'a, DIMENSIONS> {
    /// Reads the header; the array is refused if the file cannot hold what it announces.
    ///
    /// `beside` is the memory that each entry of the first axis takes beside its bytes.
    fn open(file: &'a Path, beside: u64) -> Result<Self, DatasetError> {
        let failed = |source| DatasetError::Read { path: file.to_owned(), source };
        let wrong =
            |found: String, wanted: String| DatasetError::Idx { file: file.to_owned(), found, wanted };
        let opened = File::open(file).map_err(failed)?;
        let stored = opened.metadata().map_err(failed)?.len();
        let opened = BufReader::new(opened);
        let zipped = file.extension().is_some_and(|ending| ending == "gz");
        let mut reader: Box<dyn Read> =
            if zipped { Box::new(MultiGzDecoder::new(opened)) } else { Box::new(opened) };
        let header_bytes = 4 + 4 * DIMENSIONS;
        let mut header = Vec::new();
        reader.by_ref().take(header_bytes as u64).read_to_end(&mut header).map_err(failed)?;
        let words = header.as_chunks::<4>().0;
        if header.len() != header_bytes {
            return Err(wrong(
                format!("{} bytes", header.len()),
                format!("a header of {header_bytes} bytes"),
            ));
        }
        let magic = [0, 0, 8, DIMENSIONS as u8];
        if words[0] != magic {
            return Err(wrong(format!("magic number {:02x?}", words[0]), format!("{magic:02x?}")));
        }
        let lengths: [usize; DIMENSIONS] =
            std::array::from_fn(|axis| u32::from_be_bytes(words[axis + 1]) as usize);
        let product = |lengths: &[usize]| {
            lengths.iter().try_fold(1_u64, |total, &length| total.checked_mul(length as u64))
        };
        let announced = || format!("dimensions {lengths:?}");
        let total = product(&lengths)
            .filter(|&total| total > 0 && total <= LARGEST)
            .ok_or_else(|| wrong(announced(), format!("between 1 and {LARGEST} values")))?;
        let after_header = stored.saturating_sub(header_bytes as u64);
        if !zipped && after_header != total {
            return Err(wrong(
                format!("{after_header} bytes after its header"),
                format!("{total} for dimensions {lengths:?}"),
            ));
        }
        // What is announced must fit the file's own size before anything is unfolded or made of it.
        let memory = total.saturating_add(beside.saturating_mul(lengths[0] as u64));
        let most = unfolded_limit(stored).min(LARGEST);
        if memory > most {
            return Err(wrong(
                format!("dimensions {lengths:?}, which take {memory} bytes of memory"),
                format!("at most {most} from a file of {stored} bytes{}", if zipped { UNPACK } else { "" }),
            ));
        }
        Ok(Self { file, reader, lengths, total })
    }

    /// The next so many bytes.
    fn next(&mut self, count: usize) -> Result<Vec<u8>, DatasetError> {
        let mut bytes = Vec::with_capacity(count);
        let read = self.reader.by_ref().take(count as u64).read_to_end(&mut bytes);
        read.map_err(|source| DatasetError::Read { path: self.file.to_owned(), source })?;
        if bytes.len() != count {
            return Err(self.ends("fewer"));
        }
        Ok(bytes)
    }

    /// Refuses a file that goes on after what its header announces.
    fn end(mut self) -> Result<(), DatasetError> {
        let more = self.reader.by_ref().take(1).read_to_end(&mut Vec::new());
        match more.map_err(|source| DatasetError::Read { path: self.file.to_owned(), source })? {
            0 => Ok(()),
            _ => Err(self.ends("more")),
        }
    }

    fn ends(&self, found: &str) -> DatasetError {
        DatasetError::Idx {
            file: self.file.to_owned(),
            found: format!("{found} bytes after its header"),
            wanted: format!("{} for dimensions {:?}", self.total, self.lengths),
        }
    }
}

/// Reads whichever of the two parts are there.
pub(super) fn read(root: &Path) -> Result<Vec<Record>, DatasetError> {
    let mut records = Vec::new();
    let missing =
        |file: String| DatasetError::MissingFile { path: root.to_owned(), file, format: Format::Idx };
    for (part, split) in PARTS {
        let Some(pictures_file) = find(root, part, PICTURES) else { continue };
        let labels_file = find(root, part, LABELS).ok_or_else(|| missing(format!("{part}{}", LABELS[0])))?;
        let mut pictures = Array::<3>::open(&pictures_file, RECORD_BYTES)?;
        let mut labels = Array::<1>::open(&labels_file, 0)?;
        let ([count, height, width], [label_count]) = (pictures.lengths, labels.lengths);
        if label_count != count {
            return Err(DatasetError::Idx {
                file: labels_file,
                found: format!("{label_count} labels"),
                wanted: format!("{count}, one for each picture"),
            });
        }
        let names = labels.next(count)?;
        labels.end()?;
        for (number, label) in names.into_iter().enumerate() {
            records.push(Record {
                identity: format!("{part}/{number:05}"),
                source: PictureSource::Grey { width, height, pixels: pictures.next(height * width)? },
                crop: None,
                label: label.to_string(),
                category: None,
                split: Some(split),
                role: Role::Unassigned,
            });
        }
        pictures.end()?;
    }
    if records.is_empty() {
        return Err(missing(format!("train{}", PICTURES[0])));
    }
    Ok(records)
}
