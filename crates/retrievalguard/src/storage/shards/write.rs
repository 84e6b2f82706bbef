//! Writes a sharded gallery item by item; only names and labels of the shard at hand are in memory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::files::{self, ArrayFile, BY_IDENTITY, LABELS, LINE_ENDS};
use super::{LABEL_NAMES, MANIFEST, SHARDS_FORMAT, ShardRecord, ShardsError, ShardsManifest};
use crate::gallery::{GalleryError, Metric, admit};
use crate::storage::atomic::{self, WriteError};
use crate::storage::digest::{Digest, HashingWriter};
use crate::storage::manifest::{
    self, GalleryFiles, GalleryManifest, ITEMS, Item, PLAIN, Provenance, TOOL, VECTORS,
};
use crate::storage::npy::write_values;
use crate::storage::recorded::{FileRecord, write_hashed, write_json};
use crate::storage::stored::StoredGallery;

/// What the name of a shard's folder begins with; its number follows.
const SHARD: &str = "shard-";

fn is_shard_name(name: &str) -> bool {
    name.strip_prefix(SHARD)
        .is_some_and(|rest| rest.len() >= 5 && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether such a gallery can be written.
fn check(directory: &Path, options: &ShardOptions, provenance: &Provenance) -> Result<(), ShardsError> {
    if options.dimension == 0 {
        return Err(GalleryError::DimensionZero.into());
    }
    match &provenance.views {
        Some(set) => Err(ShardsError::Views { path: directory.to_owned(), set: set.name().to_owned() }),
        None => Ok(()),
    }
}

/// The shape of a sharded gallery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// Number of components of every vector.
    pub dimension: usize,
    /// How vectors are compared.
    pub metric: Metric,
    /// Rows of a shard; the last one may have fewer.
    pub rows: NonZeroUsize,
}

/// One item on its way to the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardItem<'a> {
    /// Name of the picture.
    pub identity: &'a str,
    /// Name of its label.
    pub label: &'a str,
    /// Its vector, which is scaled if the metric asks for it.
    pub vector: &'a [f32],
    /// The same of the clean picture; all items have one, or none.
    pub plain: Option<&'a [f32]>,
    /// Where the picture is, if that is to be stored.
    pub path: Option<&'a str>,
}

/// A sharded gallery that is being written.
///
/// Dropped before [`finish`](Self::finish), it leaves a directory without a manifest, which is refused when it is opened.
#[derive(Debug)]
pub struct ShardWriter {
    directory: PathBuf,
    options: ShardOptions,
    provenance: Provenance,
    numbers: HashMap<String, u32>,
    shards: Vec<ShardRecord>,
    items: usize,
    current: Option<OpenShard>,
    vector: Vec<f32>,
    plain: Vec<f32>,
    /// Whether items have an embedding of the clean picture, once there is one.
    has_plain: bool,
}

type HashedFile = HashingWriter<BufWriter<File>>;

/// The shard at hand.
#[derive(Debug)]
struct OpenShard {
    name: String,
    directory: PathBuf,
    vectors: HashedFile,
    plain: Option<HashedFile>,
    items: HashedFile,
    labels: Vec<u32>,
    line_ends: Vec<u64>,
    identities: Vec<Box<str>>,
    bytes: Vec<u8>,
}

impl ShardWriter {
    /// Begins a gallery in a new or empty directory.
    pub fn create(
        directory: &Path,
        options: ShardOptions,
        provenance: Provenance,
    ) -> Result<Self, ShardsError> {
        check(directory, &options, &provenance)?;
        let failed = |error| WriteError::new(directory, error);
        fs::create_dir_all(directory).map_err(failed)?;
        if fs::read_dir(directory).map_err(failed)?.next().is_some() {
            return Err(ShardsError::NotEmpty { path: directory.to_owned() });
        }
        Ok(Self::new(directory, options, provenance))
    }

    /// Begins a gallery in place of the sharded one that may be there, finished or not; other files stay.
    ///
    /// Interrupted, it leaves a directory without a manifest.
    pub fn replace(
        directory: &Path,
        options: ShardOptions,
        provenance: Provenance,
    ) -> Result<Self, ShardsError> {
        check(directory, &options, &provenance)?;
        StoredGallery::check_kind(directory, true)?;
        let failed = |error| WriteError::new(directory, error);
        fs::create_dir_all(directory).map_err(failed)?;
        for name in [MANIFEST, LABEL_NAMES] {
            match fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error).into()),
                Ok(()) | Err(_) => atomic::sync_directory(directory).map_err(failed)?,
            }
        }
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if is_shard_name(&entry.file_name().to_string_lossy()) {
                fs::remove_dir_all(entry.path()).map_err(failed)?;
            }
        }
        Ok(Self::new(directory, options, provenance))
    }

    fn new(directory: &Path, options: ShardOptions, provenance: Provenance) -> Self {
        Self {
            directory: directory.to_owned(),
            options,
            provenance,
            numbers: HashMap::new(),
            shards: Vec::new(),
            items: 0,
            current: None,
            vector: Vec::new(),
            plain: Vec::new(),
            has_plain: false,
        }
    }

    /// Writes the next row; one that cannot be stored is refused and changes nothing.
    pub fn push(&mut self, item: &ShardItem<'_>) -> Result<(), ShardsError> {
        let (row, dimension, limit) = (self.items, self.options.dimension, u32::MAX as usize);
        for vector in std::iter::once(item.vector).chain(item.plain) {
            if vector.len() != dimension {
                let (identity, found) = (item.identity.to_owned(), vector.len());
                return Err(GalleryError::Dimension { identity, row, found, dimension }.into());
            }
        }
        let has_plain = item.plain.is_some();
        if row > 0 && has_plain != self.has_plain {
            let identity = item.identity.to_owned();
            return Err(match has_plain {
                true => GalleryError::PlainUnwanted { identity, row },
                false => GalleryError::PlainMissing { identity, row },
            }
            .into());
        }
        if row >= limit {
            return Err(GalleryError::TooManyItems { found: row + 1, limit }.into());
        }
        self.vector.clear();
        self.vector.extend_from_slice(item.vector);
        admit(&mut self.vector, row, item.identity, self.options.metric)?;
        self.plain.clear();
        self.plain.extend_from_slice(item.plain.unwrap_or_default());
        if has_plain {
            admit(&mut self.plain, row, item.identity, self.options.metric)?;
        }
        self.has_plain = has_plain;

        // Taken out, so that a shard that could not be written is not written to again.
        let mut shard = match self.current.take() {
            Some(shard) => shard,
            None => self.begin()?,
        };
        let number = match self.numbers.get(item.label) {
            Some(&number) => number,
            None => {
                // At most one label per item, and items are numbered with 32 bits.
                let number = self.numbers.len() as u32;
                self.numbers.insert(item.label.to_owned(), number);
                number
            }
        };
        self.items += 1;
        shard.push(item, &self.vector, &self.plain, number)?;
        if shard.labels.len() == self.options.rows.get() {
            self.close(shard)
        } else {
            self.current = Some(shard);
            Ok(())
        }
    }

    /// Writes what is left, and the manifest last.
    pub fn finish(mut self) -> Result<ShardsManifest, ShardsError> {
        if let Some(shard) = self.current.take() {
            self.close(shard)?;
        }
        if self.items == 0 {
            return Err(GalleryError::Empty.into());
        }
        if self.shards.iter().map(|shard| shard.items).sum::<usize>() != self.items {
            return Err(ShardsError::Interrupted { path: self.directory });
        }
        let mut names: Vec<(&str, u32)> =
            self.numbers.iter().map(|(name, &number)| (name.as_str(), number)).collect();
        names.sort_unstable_by_key(|&(_, number)| number);
        let labels_file = write_hashed(&self.directory.join(LABEL_NAMES), |writer| {
            for (name, _) in &names {
                serde_json::to_writer(&mut *writer, name)?;
                writer.write_all(b"\n")?;
            }
            Ok(())
        })?;
        let content = files::measure(&self.directory, &self.shards, self.options.dimension)?;
        let manifest = ShardsManifest {
            format: SHARDS_FORMAT,
            tool: TOOL.to_owned(),
            items: self.items,
            dimension: self.options.dimension,
            metric: self.options.metric,
            provenance: self.provenance,
            labels: names.len(),
            labels_file,
            content: Some(content),
            shards: self.shards,
        };
        write_json(&self.directory.join(MANIFEST), &manifest)?;
        Ok(manifest)
    }

    fn begin(&self) -> Result<OpenShard, ShardsError> {
        let name = format!("{SHARD}{:05}", self.shards.len());
        let directory = self.directory.join(&name);
        fs::create_dir(&directory).map_err(|error| WriteError::new(&directory, error))?;
        let create = |path: &Path| -> Result<HashedFile, WriteError> {
            let file = File::create_new(path).map_err(|error| WriteError::new(path, error))?;
            Ok(HashingWriter::new(BufWriter::with_capacity(1 << 18, file)))
        };
        // The header of a full shard; that of a shorter last one is put right at its end.
        let begin_array = |name| -> Result<HashedFile, WriteError> {
            let array = ArrayFile::vectors(&directory, name, self.options.rows.get(), self.options.dimension);
            let mut vectors = create(&array.path)?;
            vectors.write_all(&array.header).map_err(|error| WriteError::new(&array.path, error))?;
            Ok(vectors)
        };
        let vectors = begin_array(VECTORS)?;
        let plain = self.has_plain.then(|| begin_array(PLAIN)).transpose()?;
        let items = create(&directory.join(ITEMS))?;
        Ok(OpenShard {
            name,
            directory,
            vectors,
            plain,
            items,
            labels: Vec::new(),
            line_ends: Vec::new(),
            identities: Vec::new(),
            bytes: Vec::new(),
        })
    }

    fn close(&mut self, shard: OpenShard) -> Result<(), ShardsError> {
        let OpenShard { name, directory, vectors, plain, items, labels, line_ends, identities, .. } = shard;
        let short = labels.len() < self.options.rows.get();
        let finish_array = |name, file| {
            let array = ArrayFile::vectors(&directory, name, labels.len(), self.options.dimension);
            finish_file(file, &array.path, short.then_some(array.header.as_slice()))
        };
        let files = GalleryFiles {
            vectors: finish_array(VECTORS, vectors)?,
            plain: plain.map(|file| finish_array(PLAIN, file)).transpose()?,
            items: finish_file(items, &directory.join(ITEMS), None)?,
        };
        let mut by_identity: Vec<u32> = (0..labels.len() as u32).collect();
        by_identity.sort_unstable_by_key(|&row| (&identities[row as usize], row));
        let labels_file = write_column(&directory, LABELS, "<u4", labels.iter().map(|n| n.to_le_bytes()))?;
        let line_ends_file =
            write_column(&directory, LINE_ENDS, "<u8", line_ends.iter().map(|end| end.to_le_bytes()))?;
        let by_identity_file =
            write_column(&directory, BY_IDENTITY, "<u4", by_identity.iter().map(|row| row.to_le_bytes()))?;
        let size = (labels.len(), self.options.dimension);
        let manifest = GalleryManifest::new(size, self.options.metric, self.provenance.clone(), files);
        let manifest_file = write_json(&directory.join(manifest::MANIFEST), &manifest)?;
        self.shards.push(ShardRecord {
            name,
            items: labels.len(),
            manifest_file,
            labels_file,
            line_ends_file,
            by_identity_file,
        });
        Ok(atomic::sync_directory(&self.directory)
            .map_err(|error| WriteError::new(&self.directory, error))?)
    }
}

impl OpenShard {
    fn push(
        &mut self,
        item: &ShardItem<'_>,
        vector: &[f32],
        plain: &[f32],
        label: u32,
    ) -> Result<(), WriteError> {
        let failed = |name: &str, error| WriteError::new(&self.directory.join(name), error);
        // Whole rows and lines, because each write is digested by itself.
        let arrays = std::iter::once((VECTORS, &mut self.vectors, vector));
        for (name, file, vector) in arrays.chain(self.plain.as_mut().map(|file| (PLAIN, file, plain))) {
            self.bytes.clear();
            self.bytes.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
            file.write_all(&self.bytes).map_err(|error| failed(name, error))?;
        }
        let line = Item {
            identity: item.identity.into(),
            label: item.label.into(),
            path: item.path.map(Into::into),
            view: None,
        };
        self.bytes.clear();
        line.write_to(&mut self.bytes).map_err(|error| failed(ITEMS, error))?;
        self.items.write_all(&self.bytes).map_err(|error| failed(ITEMS, error))?;
        self.labels.push(label);
        self.line_ends.push(self.items.bytes());
        self.identities.push(item.identity.into());
        Ok(())
    }
}

/// Brings a file to the disk; with another header its digest is computed again.
fn finish_file(writer: HashedFile, path: &Path, header: Option<&[u8]>) -> Result<FileRecord, WriteError> {
    let failed = |error| WriteError::new(path, error);
    let (writer, mut sha256, bytes) = writer.finish();
    let mut file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    if let Some(header) = header {
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(header)).map_err(failed)?;
        sha256 = Digest::of_file(path).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(FileRecord { bytes, sha256 })
}

/// Writes an array of one axis.
fn write_column<const SIZE: usize>(
    directory: &Path,
    name: &str,
    element: &'static str,
    values: impl ExactSizeIterator<Item = [u8; SIZE]>,
) -> Result<FileRecord, WriteError> {
    write_hashed(&directory.join(name), |writer| write_values(writer, element, &[values.len()], values))
}
