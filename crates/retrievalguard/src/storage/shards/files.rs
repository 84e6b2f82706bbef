//! The files of a sharded gallery: what must hold before they are used, and single items looked up in them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    LABEL_NAMES, MANIFEST, SHARDS_FORMAT, Shard, ShardRecord, ShardsContent, ShardsError, ShardsManifest,
};
use crate::gallery::Label;
use crate::storage::digest::{Digest, HashingWriter};
use crate::storage::live::{self, WRITES};
use crate::storage::manifest::{
    self, GalleryDirectory, ITEMS, Item, LINE_LIMIT, PLAIN, StorageError, VECTORS,
};
use crate::storage::npy::header;
use crate::storage::recorded::{FileRecord, check_digest, open_recorded, parse_sealed, read_small};

pub(super) const LABELS: &str = "labels.npy";
pub(super) const LINE_ENDS: &str = "line_ends.npy";
pub(super) const BY_IDENTITY: &str = "by_identity.npy";

/// Room for the records of some ten thousand shards.
const MANIFEST_LIMIT: u64 = 1 << 24;

/// Where an array is, and the header that it must have.
pub(super) struct ArrayFile {
    pub(super) path: PathBuf,
    pub(super) element: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) header: Vec<u8>,
}

impl ArrayFile {
    pub(super) fn vectors(directory: &Path, name: &str, items: usize, dimension: usize) -> Self {
        Self::new(directory.join(name), "<f4", vec![items, dimension])
    }

    pub(super) fn column(directory: &Path, name: &str, element: &'static str, items: usize) -> Self {
        Self::new(directory.join(name), element, vec![items])
    }

    fn new(path: PathBuf, element: &'static str, shape: Vec<usize>) -> Self {
        let header = header::bytes(element, &shape);
        Self { path, element, shape, header }
    }

    /// Opens the file behind its header.
    pub(super) fn open(&self) -> Result<File, ShardsError> {
        let mut file = File::open(&self.path).map_err(|source| failed(&self.path, source))?;
        let mut found = vec![0; self.header.len()];
        match file.read_exact(&mut found) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Err(failed(&self.path, error).into())
            }
            Ok(()) if found == self.header => Ok(file),
            Ok(()) | Err(_) => Err(ShardsError::Header {
                path: self.path.clone(),
                element: self.element,
                shape: self.shape.clone(),
            }),
        }
    }

    /// Checks that the file has the recorded size, and that this is the size of the array.
    pub(super) fn check(&self, record: &FileRecord) -> Result<(), ShardsError> {
        let width = if self.element == "<u8" { 8 } else { 4 };
        let numbers =
            self.shape.iter().try_fold(width, |product: u64, &length| product.checked_mul(length as u64));
        let wanted = numbers.and_then(|bytes| bytes.checked_add(self.header.len() as u64));
        if wanted != Some(record.bytes) {
            return Err(ShardsError::Disagrees {
                path: self.path.clone(),
                what: "its recorded size",
                found: format!("{} bytes", record.bytes),
                wanted: format!("that of {:?} `{}`", self.shape, self.element),
            });
        }
        check_size(&self.path, record)?;
        self.open().map(drop)
    }
}

fn failed(path: &Path, source: io::Error) -> StorageError {
    StorageError::Read { path: path.to_owned(), source }
}

fn check_size(path: &Path, record: &FileRecord) -> Result<(), StorageError> {
    let found = std::fs::metadata(path).map_err(|source| failed(path, source))?.len();
    if found == record.bytes {
        return Ok(());
    }
    Err(StorageError::Size { path: path.to_owned(), found, wanted: record.bytes })
}

/// The manifest, consistent in itself, and its digest.
pub(super) fn read_manifest(directory: &Path) -> Result<(ShardsManifest, Digest), ShardsError> {
    let path = directory.join(MANIFEST);
    let text = match read_small(&path, MANIFEST_LIMIT) {
        Err(StorageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(ShardsError::NoManifest { path: directory.to_owned() });
        }
        other => other?,
    };
    let manifest: ShardsManifest = parse_sealed(&text, &path, SHARDS_FORMAT, "a manifest of shards")?;
    check_manifest(&manifest, &path)?;
    Ok((manifest, Digest::of_bytes(&text)))
}

fn check_manifest(manifest: &ShardsManifest, path: &Path) -> Result<(), ShardsError> {
    let disagrees = |what, found: String, wanted: String| {
        Err(ShardsError::Disagrees { path: path.to_owned(), what, found, wanted })
    };
    if manifest.dimension == 0 {
        return disagrees("the dimension", "0".into(), "at least 1".into());
    }
    if let Some(set) = &manifest.provenance.views {
        return Err(ShardsError::Views { path: path.to_owned(), set: set.name().to_owned() });
    }
    let total = manifest.shards.iter().try_fold(0_usize, |sum, shard| sum.checked_add(shard.items));
    if total != Some(manifest.items) || manifest.items == 0 || manifest.items > u32::MAX as usize {
        let wanted = "the sum over its shards, at least 1 and below 2³²".to_owned();
        return disagrees("the number of items", manifest.items.to_string(), wanted);
    }
    if let Some(shard) = manifest.shards.iter().find(|shard| shard.items == 0) {
        return disagrees(
            "the number of items of a shard",
            format!("0 (`{}`)", shard.name),
            "at least 1".into(),
        );
    }
    if manifest.labels > manifest.items {
        let wanted = format!("at most one for each of {} items", manifest.items);
        return disagrees("the number of labels", manifest.labels.to_string(), wanted);
    }
    // One plain component, so that no manifest reaches outside its directory.
    let plain = |name: &str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(part)), None) if part == name)
    };
    match manifest.shards.iter().find(|shard| !plain(&shard.name)) {
        Some(shard) => Err(ShardsError::Name { path: path.to_owned(), name: shard.name.clone() }),
        None => Ok(()),
    }
}

/// The names of the labels, in the order of their numbers.
pub(super) fn read_label_names(
    directory: &Path,
    manifest: &ShardsManifest,
) -> Result<Vec<String>, ShardsError> {
    let path = directory.join(LABEL_NAMES);
    let mut reader = open_recorded(&path, &manifest.labels_file)?;
    let mut names: Vec<String> = Vec::new();
    let mut line = Vec::new();
    let mut lines = BufReader::new(&mut reader);
    loop {
        line.clear();
        let length = Read::take(&mut lines, LINE_LIMIT)
            .read_until(b'\n', &mut line)
            .map_err(|source| failed(&path, source))?;
        if length == 0 {
            break;
        }
        names.push(serde_json::from_slice(&line).map_err(|source| {
            let (line, wanted) = (names.len() + 1, "the name of a label");
            StorageError::Json { path: path.clone(), line, wanted, source }
        })?);
    }
    check_digest(reader, &path, &manifest.labels_file)?;
    if names.len() != manifest.labels {
        let (found, wanted) = (names.len(), manifest.labels);
        return Err(StorageError::Count { path, what: "labels", found, wanted }.into());
    }
    Ok(names)
}

/// Opens the next shard, whose first row is the number of labels read so far, and reads its labels behind them.
pub(super) fn open_shard(
    directory: &Path,
    whole: &ShardsManifest,
    record: &ShardRecord,
    labels: &mut Vec<Label>,
) -> Result<Shard, ShardsError> {
    let directory = directory.join(&record.name);
    let (manifest, found) = GalleryDirectory::read_manifest_with_digest(&directory)?;
    let path = directory.join(manifest::MANIFEST);
    check_size(&path, &record.manifest_file)?;
    if found != record.manifest_file.sha256 {
        return Err(StorageError::Changed { path, found, wanted: record.manifest_file.sha256 }.into());
    }
    for (what, found, wanted) in [
        ("the number of items", manifest.items.to_string(), record.items.to_string()),
        ("the dimension", manifest.dimension.to_string(), whole.dimension.to_string()),
        ("the metric", text(&manifest.metric), text(&whole.metric)),
        ("how the vectors were made", text(&manifest.provenance), text(&whole.provenance)),
    ] {
        if found != wanted {
            return Err(ShardsError::Disagrees { path, what, found, wanted });
        }
    }
    let journal = directory.join(WRITES);
    let writes = usize::try_from(live::count_writes(&directory)?).unwrap_or(usize::MAX);
    if writes > 0 {
        return Err(ShardsError::Writes { path: journal, writes });
    }

    let (first_row, items, array) = (labels.len(), record.items, VECTORS);
    let shard = Shard { directory, first_row, items, manifest, array };
    shard.vectors().check(&shard.manifest.vectors_file)?;
    if let Some(plain) = &shard.manifest.plain_file {
        ArrayFile::vectors(&shard.directory, PLAIN, items, whole.dimension).check(plain)?;
    }
    check_size(&shard.directory.join(ITEMS), &shard.manifest.items_file)?;
    shard.line_ends().check(&record.line_ends_file)?;
    let column = |name| ArrayFile::column(&shard.directory, name, "<u4", shard.items);
    column(BY_IDENTITY).check(&record.by_identity_file)?;
    column(LABELS).check(&record.labels_file)?;
    read_labels(&column(LABELS), &record.labels_file, whole.labels, labels)?;
    Ok(shard)
}

/// A part of a manifest as it is there.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Reads the labels of a shard, each below `count`.
fn read_labels(
    array: &ArrayFile,
    record: &FileRecord,
    count: usize,
    labels: &mut Vec<Label>,
) -> Result<(), ShardsError> {
    let mut reader = open_recorded(&array.path, record)?;
    let mut bytes = vec![0; 1 << 16];
    let header = &mut bytes[..array.header.len()];
    reader.read_exact(header).map_err(|source| failed(&array.path, source))?;
    let mut left = array.shape[0];
    labels.reserve(left);
    while left > 0 {
        let piece = left.min(bytes.len() / 4);
        let bytes = &mut bytes[..piece * 4];
        reader.read_exact(bytes).map_err(|source| failed(&array.path, source))?;
        for word in bytes.as_chunks::<4>().0 {
            let found = u32::from_le_bytes(*word);
            if found as usize >= count {
                let entry = array.shape[0] - left;
                let wanted = format!("a label below {count}");
                return Err(ShardsError::Index {
                    path: array.path.clone(),
                    entry,
                    found: found.into(),
                    wanted,
                });
            }
            labels.push(Label(found));
            left -= 1;
        }
    }
    Ok(check_digest(reader, &array.path, record)?)
}

/// Reads every file of a shard that opening did not read to its end.
pub(super) fn verify_shard(shard: &Shard, record: &ShardRecord) -> Result<(), ShardsError> {
    let plain = shard.manifest.plain_file.iter().map(|record| (PLAIN, record));
    let others = [
        (VECTORS, &shard.manifest.vectors_file),
        (ITEMS, &shard.manifest.items_file),
        (LABELS, &record.labels_file),
        (LINE_ENDS, &record.line_ends_file),
        (BY_IDENTITY, &record.by_identity_file),
    ];
    for (name, record) in others.into_iter().chain(plain) {
        let path = shard.directory.join(name);
        let mut reader = open_recorded(&path, record)?;
        io::copy(&mut reader, &mut io::sink()).map_err(|source| failed(&path, source))?;
        check_digest(reader, &path, record)?;
    }
    Ok(())
}

/// What shards hold together, by reading all of it: the header of the whole comes first and holds the number of rows.
pub(super) fn measure(
    directory: &Path,
    shards: &[ShardRecord],
    dimension: usize,
) -> Result<ShardsContent, ShardsError> {
    let mut names = HashingWriter::new(io::sink());
    for shard in shards {
        let directory = directory.join(&shard.name);
        let path = directory.join(ITEMS);
        let file = File::open(&path).map_err(|source| failed(&path, source))?;
        let mut lines = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        for row in 0..shard.items {
            line.clear();
            let read = Read::take(&mut lines, LINE_LIMIT).read_until(b'\n', &mut line);
            read.map_err(|source| failed(&path, source))?;
            let item = parse_item(&line, &path, row)?;
            Item { path: None, ..item }.write_to(&mut names).expect("a sink takes everything");
        }
    }
    let (vectors, largest_norm) = measure_vectors(directory, VECTORS, shards, dimension)?;
    let plain = match shards.first().map(|shard| directory.join(&shard.name)) {
        Some(first) if GalleryDirectory::read_manifest(&first)?.plain_file.is_some() => {
            Some(measure_vectors(directory, PLAIN, shards, dimension)?.0)
        }
        Some(_) | None => None,
    };
    Ok(ShardsContent { vectors, plain, names: names.finish().1, largest_norm })
}

/// Digest of the array that shards hold together, and the largest norm of a row.
fn measure_vectors(
    directory: &Path,
    name: &str,
    shards: &[ShardRecord],
    dimension: usize,
) -> Result<(Digest, f64), ShardsError> {
    let items = shards.iter().map(|shard| shard.items).sum();
    let mut vectors = HashingWriter::new(io::sink());
    let full = "a sink takes everything";
    vectors.write_all(&ArrayFile::vectors(directory, name, items, dimension).header).expect(full);
    let (mut bytes, mut largest) = (vec![0; 4 * dimension], 0.0_f64);
    for shard in shards {
        let array = ArrayFile::vectors(&directory.join(&shard.name), name, shard.items, dimension);
        let mut reader = BufReader::with_capacity(1 << 18, array.open()?);
        for _ in 0..shard.items {
            reader.read_exact(&mut bytes).map_err(|source| failed(&array.path, source))?;
            vectors.write_all(&bytes).expect(full);
            let squared = bytes.as_chunks::<4>().0.iter().fold(0.0, |sum, &word| {
                let value = f64::from(f32::from_le_bytes(word));
                sum + value * value
            });
            largest = largest.max(squared);
        }
    }
    Ok((vectors.finish().1, largest.sqrt()))
}

fn parse_item<'line>(line: &'line [u8], path: &Path, row: usize) -> Result<Item<'line>, StorageError> {
    let wanted = "an item with identity and label";
    serde_json::from_slice(line).map_err(|source| StorageError::Json {
        path: path.to_owned(),
        line: row + 1,
        wanted,
        source,
    })
}

/// Names of single items of a shard, read where they are.
pub(super) struct Items<'a> {
    shard: &'a Shard,
    items: (PathBuf, File),
    line_ends: (ArrayFile, File),
    by_identity: (ArrayFile, File),
}

impl<'a> Items<'a> {
    pub(super) fn open(shard: &'a Shard) -> Result<Self, ShardsError> {
        let open = |array: ArrayFile| -> Result<_, ShardsError> {
            let file = array.open()?;
            Ok((array, file))
        };
        let path = shard.directory.join(ITEMS);
        let file = File::open(&path).map_err(|source| failed(&path, source))?;
        Ok(Self {
            shard,
            items: (path, file),
            line_ends: open(shard.line_ends())?,
            by_identity: open(ArrayFile::column(&shard.directory, BY_IDENTITY, "<u4", shard.items))?,
        })
    }

    /// Identity of a row of the shard.
    pub(super) fn identity(&mut self, row: usize) -> Result<String, ShardsError> {
        Ok(self.item(row)?.identity.into_owned())
    }

    /// Where the picture of a row of the shard was, if that was stored.
    pub(super) fn path(&mut self, row: usize) -> Result<Option<PathBuf>, ShardsError> {
        Ok(self.item(row)?.path.map(|path| path.as_ref().into()))
    }

    fn item(&mut self, row: usize) -> Result<Item<'static>, ShardsError> {
        // The end of the line before, unless there is none, and the end of this one.
        let mut ends = [0_u8; 16];
        let first = row.saturating_sub(1);
        let bytes = if row == 0 { &mut ends[8..] } else { &mut ends[..] };
        let (array, file) = &mut self.line_ends;
        read_at(file, array.header.len() as u64 + 8 * first as u64, bytes, &array.path)?;
        let [start, end] = [0, 8].map(|place| {
            u64::from_le_bytes(ends[place..place + 8].try_into().expect("eight bytes are eight bytes"))
        });
        let size = self.shard.manifest.items_file.bytes;
        if start >= end || end > size || end - start > LINE_LIMIT {
            let wanted = format!("the end of a line behind {start}, up to {size}");
            return Err(ShardsError::Index { path: array.path.clone(), entry: row, found: end, wanted });
        }
        let mut line = vec![0; (end - start) as usize];
        let (path, file) = &mut self.items;
        read_at(file, start, &mut line, path)?;
        let item = parse_item(&line, path, row)?;
        Ok(Item {
            identity: item.identity.into_owned().into(),
            label: item.label.into_owned().into(),
            path: item.path.map(|path| path.into_owned().into()),
            view: item.view.map(|view| view.into_owned().into()),
        })
    }

    /// Rows of the shard that were made from one picture, ascending.
    pub(super) fn rows_of(&mut self, identity: &str) -> Result<Vec<usize>, ShardsError> {
        let (mut low, mut high) = (0, self.shard.items);
        while low < high {
            let middle = low + (high - low) / 2;
            let row = self.ranked(middle)?;
            if self.identity(row)?.as_str() < identity {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut rows = Vec::new();
        for place in low..self.shard.items {
            let row = self.ranked(place)?;
            if self.identity(row)? != identity {
                break;
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// The row at a place of the order by identity.
    fn ranked(&mut self, place: usize) -> Result<usize, ShardsError> {
        let (array, file) = &mut self.by_identity;
        let mut bytes = [0; 4];
        read_at(file, array.header.len() as u64 + 4 * place as u64, &mut bytes, &array.path)?;
        let row = u32::from_le_bytes(bytes);
        if row as usize >= self.shard.items {
            let wanted = format!("a row below {}", self.shard.items);
            return Err(ShardsError::Index {
                path: array.path.clone(),
                entry: place,
                found: row.into(),
                wanted,
            });
        }
        Ok(row as usize)
    }
}

/// Fills the bytes from a place of a file.
pub(super) fn read_at(
    file: &mut File,
    offset: u64,
    bytes: &mut [u8],
    path: &Path,
) -> Result<(), StorageError> {
    file.seek(SeekFrom::Start(offset))
        .and_then(|_| file.read_exact(bytes))
        .map_err(|source| failed(path, source))
}
