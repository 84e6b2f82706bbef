//! Writes and reads the files of a gallery.

use std::borrow::Cow;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    FileRecord, GalleryFiles, GalleryManifest, ITEMS, LINE_LIMIT, MANIFEST, MANIFEST_LIMIT, PLAIN,
    Provenance, StorageError, VECTORS,
};
use crate::gallery::{Gallery, Metric};
use crate::storage::atomic::{self, WriteError};
use crate::storage::digest::{Digest, HashingWriter};
use crate::storage::live::{self, Written};
use crate::storage::npy;
use crate::storage::recorded::{check_digest, open_recorded, read_small, write_hashed, write_json};
use crate::storage::shards;
use crate::storage::stored::StoredGallery;
use crate::views::ViewSet;

/// One line of `items.jsonl`.
#[derive(Serialize, Deserialize)]
pub(in crate::storage) struct Item<'a> {
    pub(in crate::storage) identity: Cow<'a, str>,
    pub(in crate::storage) label: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::storage) path: Option<Cow<'a, str>>,
    /// Which view of the item the row is, if items have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::storage) view: Option<Cow<'a, str>>,
}

impl Item<'_> {
    /// Writes the line.
    pub(in crate::storage) fn write_to(&self, writer: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *writer, self)?;
        writer.write_all(b"\n")
    }
}

/// A gallery as it is on disk.
#[derive(Clone, Debug)]
pub struct GalleryDirectory {
    /// The vectors with their labels and identities.
    pub gallery: Gallery,
    /// Where the picture of each row was, if that was stored; see [`GalleryDirectory::picture_path`].
    pub paths: Vec<Option<String>>,
    /// What the gallery was made from.
    ///
    /// After writes it describes the gallery as it has become: the number of items, the digests that the two files would
    /// have, and no data set, because there is none that holds these items.
    pub manifest: GalleryManifest,
    pub(in crate::storage) written: Written,
    pub(in crate::storage) directory: PathBuf,
}

impl GalleryDirectory {
    /// Writes a gallery, replacing the one that may be there; `paths` has one entry per row or none.
    ///
    /// Interrupted, it leaves a directory without a manifest, which [`GalleryDirectory::read`] refuses. A gallery with
    /// [writes](live) is not replaced.
    pub fn write(
        directory: &Path,
        gallery: &Gallery,
        paths: &[Option<String>],
        provenance: Provenance,
    ) -> Result<GalleryManifest, StorageError> {
        if !paths.is_empty() && paths.len() != gallery.len() {
            return Err(StorageError::Paths { found: paths.len(), wanted: gallery.len() });
        }
        StoredGallery::check_kind(directory, false)?;
        GalleryManifest::check_views(gallery, &provenance)?;
        let failed = |error| WriteError::new(directory, error);
        fs::create_dir_all(directory).map_err(failed)?;
        // Held until the end, so that nobody begins to write to what is being replaced.
        let no_writes = live::hold_empty(directory)?;
        match fs::remove_file(directory.join(MANIFEST)) {
            Ok(()) => atomic::sync_directory(directory).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error).into()),
        }

        let write = |name, gallery| -> Result<FileRecord, StorageError> {
            Ok(write_hashed(&directory.join(name), |writer| write_vectors(writer, gallery))?)
        };
        let plain = gallery.plain().map(|plain| write(PLAIN, plain)).transpose()?;
        if plain.is_none() {
            remove_stale(&directory.join(PLAIN)).map_err(failed)?;
        }
        let files = GalleryFiles {
            vectors: write(VECTORS, gallery)?,
            plain,
            items: write_hashed(&directory.join(ITEMS), |writer| write_items(writer, gallery, paths))?,
        };
        let manifest = GalleryManifest::of(gallery, provenance, files);
        write_json(&directory.join(MANIFEST), &manifest)?;
        live::remove_empty(directory, no_writes)?;
        Ok(manifest)
    }

    /// Whether [`GalleryDirectory::write`] may replace what is there, to be asked before long work: writes to it would be
    /// lost.
    pub fn check_replaceable(directory: &Path) -> Result<(), StorageError> {
        live::hold_empty(directory).map(drop)
    }

    /// Reads the manifest alone, which knows nothing of writes.
    pub fn read_manifest(directory: &Path) -> Result<GalleryManifest, StorageError> {
        Ok(Self::read_manifest_with_digest(directory)?.0)
    }

    /// The manifest, and the digest of its file.
    pub(in crate::storage) fn read_manifest_with_digest(
        directory: &Path,
    ) -> Result<(GalleryManifest, Digest), StorageError> {
        let path = directory.join(MANIFEST);
        let text = match read_small(&path, MANIFEST_LIMIT) {
            Err(StorageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let path = directory.to_owned();
                return Err(match shards::is_sharded(directory) {
                    true => StorageError::InShards { path },
                    false => StorageError::NoManifest { path },
                });
            }
            other => other?,
        };
        let manifest = GalleryManifest::parse(&text, &path)?;
        Ok((manifest, Digest::of_bytes(&text)))
    }

    /// Reads a gallery with everything written to it so far, and checks every file against the manifest.
    ///
    /// It does not wait for whoever is writing: a write in flight is seen whole or not at all.
    pub fn read(directory: &Path) -> Result<Self, StorageError> {
        live::with_writes(Self::read_base(directory)?, directory)
    }

    /// Number of writes since the gallery was made: items added, and identities removed.
    pub fn writes(&self) -> u64 {
        self.written.count
    }

    /// Stands for the gallery as it was made and every write to it, in order.
    pub fn version(&self) -> Digest {
        self.written.version
    }

    /// Whether an item was added after the gallery had been made.
    pub fn is_added(&self, row: usize) -> bool {
        row >= self.written.first_added
    }

    /// Where the picture of an item is, if that was stored: that of an added item is in the gallery's `directory`, any
    /// other where it lay when the gallery was made, seen from the working directory of that time.
    pub fn picture_path(&self, row: usize) -> Option<PathBuf> {
        self.written.picture_path(&self.paths, &self.directory, row)
    }

    /// Reads a gallery as it was made.
    pub fn read_base(directory: &Path) -> Result<Self, StorageError> {
        let (manifest, digest) = Self::read_manifest_with_digest(directory)?;

        let vectors = read_vectors(&directory.join(VECTORS), &manifest.vectors_file, &manifest)?;
        let plain = manifest.plain_file.as_ref();
        let plain = plain.map(|file| read_vectors(&directory.join(PLAIN), file, &manifest)).transpose()?;

        let path = directory.join(ITEMS);
        let mut reader = open_recorded(&path, &manifest.items_file)?;
        let (mut identities, mut labels, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        let views = manifest.provenance.views.as_ref().map(ViewSet::names).unwrap_or_default();
        let mut line = Vec::new();
        let mut lines = BufReader::new(&mut reader);
        loop {
            line.clear();
            let read = io::Read::take(&mut lines, LINE_LIMIT).read_until(b'\n', &mut line);
            let length = read.map_err(|source| StorageError::Read { path: path.clone(), source })?;
            if length == 0 {
                break;
            }
            let item: Item<'_> = serde_json::from_slice(&line).map_err(|source| StorageError::Json {
                path: path.clone(),
                line: identities.len() + 1,
                wanted: "an item with identity and label",
                source,
            })?;
            let wanted = views.get(identities.len() % views.len().max(1));
            if item.view.as_deref() != wanted.map(String::as_str) {
                let (found, wanted) = (item.view.map(Cow::into_owned), wanted.cloned());
                return Err(StorageError::OtherView { path, line: identities.len() + 1, found, wanted });
            }
            identities.push(item.identity.into_owned());
            labels.push(item.label.into_owned());
            paths.push(item.path.map(Cow::into_owned));
        }
        check_digest(reader, &path, &manifest.items_file)?;
        if identities.len() != manifest.rows() {
            let (found, wanted) = (identities.len(), manifest.rows());
            return Err(StorageError::Count { path, what: "items", found, wanted });
        }

        let gallery = Gallery::new(vectors, manifest.dimension, identities, &labels, manifest.metric)
            .and_then(|gallery| if views.is_empty() { Ok(gallery) } else { gallery.with_views(views) })
            .and_then(|gallery| match plain {
                Some(plain) => gallery.with_plain(plain),
                None => Ok(gallery),
            })
            .map_err(|source| StorageError::Gallery { path: directory.to_owned(), source })?;
        let written = Written { count: 0, first_added: gallery.len(), made: digest, version: digest };
        Ok(Self { gallery, paths, manifest, written, directory: directory.to_owned() })
    }

    /// The same items as the plain retriever searches them: by the embeddings of clean pictures, if there are any.
    pub fn plain(&self) -> Option<&Gallery> {
        let clean = self.manifest.provenance.samples == Some(0);
        if clean { Some(&self.gallery) } else { self.gallery.plain() }
    }

    /// Stands for everything of the gallery that decides a search in it: vectors, those of clean pictures, identities,
    /// labels, metric, and how the vectors were made. The paths of pictures do not.
    pub fn digest(&self) -> Digest {
        let gallery = &self.gallery;
        let mut names = HashingWriter::new(io::sink());
        write_items(&mut names, gallery, &[]).expect("a sink takes everything");
        let (_, names, _) = names.finish();
        let GalleryManifest { items, dimension, metric, provenance, vectors_file, plain_file, .. } =
            &self.manifest;
        let content =
            ContentDigests { vectors: vectors_file.sha256, plain: plain_file.map(|file| file.sha256), names };
        content.digest((*items, *dimension), *metric, provenance)
    }
}

/// Digests of what a gallery holds.
pub(in crate::storage) struct ContentDigests {
    /// That of `vectors.npy`.
    pub(in crate::storage) vectors: Digest,
    /// That of `plain.npy`.
    pub(in crate::storage) plain: Option<Digest>,
    /// That of `items.jsonl` without paths.
    pub(in crate::storage) names: Digest,
}

impl ContentDigests {
    /// Stands for a gallery.
    pub(in crate::storage) fn digest(
        self,
        (items, dimension): (usize, usize),
        metric: Metric,
        provenance: &Provenance,
    ) -> Digest {
        let Self { vectors, plain, names } = self;
        let mut content = serde_json::json!({
            "items": items,
            "dimension": dimension,
            "metric": metric,
            "made": provenance,
            "vectors": vectors,
            "names": names,
        });
        // A gallery without them keeps the digest that it had before there were any.
        if let Some(plain) = plain {
            content["plain"] = serde_json::json!(plain);
        }
        Digest::of_json(&content)
    }
}

/// Reads an array of so many vectors as the manifest says.
fn read_vectors(
    path: &Path,
    record: &FileRecord,
    manifest: &GalleryManifest,
) -> Result<Vec<f32>, StorageError> {
    let mut reader = open_recorded(path, record)?;
    let array = npy::read_from(&mut reader, record.bytes, path)?;
    check_digest(reader, path, record)?;
    let matrix = array.into_matrix(path)?;
    let count = |what, found, wanted| StorageError::Count { path: path.to_owned(), what, found, wanted };
    if matrix.rows != manifest.rows() {
        return Err(count("vectors", matrix.rows, manifest.rows()));
    }
    if matrix.columns != manifest.dimension {
        return Err(count("components per vector", matrix.columns, manifest.dimension));
    }
    Ok(matrix.values)
}

/// Removes a file that an earlier gallery may have left.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The content of `vectors.npy`.
pub(super) fn write_vectors(writer: &mut impl Write, gallery: &Gallery) -> io::Result<()> {
    npy::write_f32_to(writer, &[gallery.len(), gallery.dimension()], gallery.vectors())
}

/// The content of `items.jsonl`.
pub(super) fn write_items(
    writer: &mut impl Write,
    gallery: &Gallery,
    paths: &[Option<String>],
) -> io::Result<()> {
    for row in 0..gallery.len() {
        let item = Item {
            identity: gallery.identity(row).into(),
            label: gallery.label_name(gallery.label(row)).into(),
            path: paths.get(row).and_then(Option::as_deref).map(Into::into),
            view: gallery.view(row).map(Into::into),
        };
        item.write_to(writer)?;
    }
    Ok(())
}
