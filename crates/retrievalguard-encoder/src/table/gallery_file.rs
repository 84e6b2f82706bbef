//! Galleries to and from the files of other programs.
//!
//! | form | files |
//! |---|---|
//! | arrays | `vectors.npy` (f32, one row per item), labels and identities as text, one per line |
//! | Parquet | columns `identity`, `label`, `vector` (list of float), `path` if known, `view` if items have several, `plain` (list of float) where clean pictures were embedded too |
//! | clip-retrieval | `img_emb/img_emb_0.npy` …, `metadata/metadata_0.parquet` … with `image_path` and `label` or `caption` |
//!
//! An item with several views has as many rows, one after the other. Arrays and clip-retrieval's folders have no place for the
//! embeddings of clean pictures: what is exported to them comes back without.
//!
//! Each comes with the gallery's manifest: in the metadata of the Parquet file, as `vectors.npy.json` beside the array, as
//! `retrievalguard.json` in the folder. What is imported with a manifest is checked against it, every vector, identity, label
//! and path, so a gallery that was exported comes back as it was or not at all. Files of other programs have none and are
//! taken as they are.
//!
//! ```
//! use retrievalguard::NormBound;
//! use retrievalguard::gallery::{Gallery, Metric};
//! use retrievalguard::storage::manifest::Provenance;
//! use retrievalguard_encoder::table::gallery_file::{export_parquet, import_parquet};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("gallery.parquet");
//! let names = ["cat-1", "dog-1"].map(String::from).to_vec();
//! let gallery = Gallery::new(vec![0.0, 1.0, 1.0, 0.0], 2, names, &["cat", "dog"], Metric::Euclidean)?;
//! export_parquet(&path, &gallery, &[], &Provenance::unknown(NormBound::UNIT))?;
//! let imported = import_parquet(&path, None)?;
//! assert_eq!(imported.gallery.vectors(), gallery.vectors());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use retrievalguard::gallery::{Gallery, Metric};
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::manifest::{GalleryManifest, Provenance};
use retrievalguard::storage::npy;
use retrievalguard::views::ViewSet;

use super::TableError;
use super::columns::{self, Column, Table};

/// Key of the gallery's manifest in the metadata of an exported Parquet file.
const MANIFEST_KEY: &str = "retrievalguard.gallery";

/// The gallery's manifest among clip-retrieval's folders.
const CLIP_MANIFEST: &str = "retrievalguard.json";

/// A gallery from elsewhere.
#[derive(Clone, Debug)]
pub struct ImportedGallery {
    /// The vectors with their labels and identities.
    pub gallery: Gallery,
    /// Where each item's picture is, as far as the files say.
    pub paths: Vec<Option<String>>,
    /// How the vectors were made, if the files come from an export of ours.
    pub provenance: Option<Provenance>,
}

/// A gallery whose files have been read, before it is checked against its manifest.
struct Found {
    vectors: Vec<f32>,
    dimension: usize,
    /// Items are called by their numbers if there are none.
    identities: Option<Vec<String>>,
    labels: Vec<String>,
    paths: Vec<Option<String>>,
    /// Which view each row is, if the file says so.
    views: Option<Vec<Option<String>>>,
    /// Embeddings of the clean pictures, if the file has them.
    plain: Option<Vec<f32>>,
}

impl Found {
    /// The gallery that the files of an export hold, before its manifest is written.
    fn exported(self, path: &Path, gallery: &Gallery) -> Result<ImportedGallery, TableError> {
        self.gallery(path, gallery.metric(), gallery.view_names())
    }

    /// The gallery, if it is the one of its manifest; `metric` is what was asked for.
    fn settle(
        self,
        path: &Path,
        manifest: Option<GalleryManifest>,
        metric: Option<Metric>,
    ) -> Result<ImportedGallery, TableError> {
        let stored = manifest.as_ref().map(|manifest| manifest.metric);
        if let Some((found, wanted)) = stored.zip(metric).filter(|(stored, asked)| stored != asked) {
            return Err(TableError::Metric { path: path.to_owned(), found, wanted });
        }
        let metric = stored.or(metric).unwrap_or(Metric::Euclidean);
        let views = manifest.as_ref().and_then(|manifest| manifest.provenance.views.as_ref());
        let mut imported = self.gallery(path, metric, &views.map(ViewSet::names).unwrap_or_default())?;
        if let Some(manifest) = manifest {
            manifest.check_content(&imported.gallery, &imported.paths, path)?;
            imported.provenance = Some(manifest.provenance);
        }
        Ok(imported)
    }

    /// The gallery whose items have these views; rows that are named as others are refused.
    fn gallery(self, path: &Path, metric: Metric, names: &[String]) -> Result<ImportedGallery, TableError> {
        let Self { vectors, dimension, identities, labels, paths, views, plain } = self;
        let each = names.len().max(1);
        for (row, found) in views.iter().flatten().enumerate() {
            let wanted = names.get(row % each);
            if found.as_ref() != wanted {
                let found = found.as_deref().unwrap_or("none");
                let wanted = wanted.map(String::as_str).unwrap_or_default();
                return Err(TableError::value(path, row, "view", found, &format!("`{wanted}`")));
            }
        }
        let identities =
            identities.unwrap_or_else(|| (0..labels.len()).map(|row| (row / each).to_string()).collect());
        let mut gallery = Gallery::new(vectors, dimension, identities, &labels, metric);
        if !names.is_empty() {
            gallery = gallery.and_then(|gallery| gallery.with_views(names.to_vec()));
        }
        if let Some(plain) = plain {
            gallery = gallery.and_then(|gallery| gallery.with_plain(plain));
        }
        let gallery = gallery.map_err(|source| TableError::Gallery { path: path.to_owned(), source })?;
        Ok(ImportedGallery { gallery, paths, provenance: None })
    }
}

/// Reads the manifest that an export left in a file of its own, if there is one.
fn read_manifest(path: &Path) -> Result<Option<GalleryManifest>, TableError> {
    match fs::read(path) {
        Ok(text) => Ok(Some(GalleryManifest::parse(&text, path)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TableError::Read { path: path.to_owned(), source }),
    }
}

/// Writes the manifest of what an import will find, which may be less than the gallery.
fn write_manifest(path: &Path, found: &ImportedGallery, provenance: &Provenance) -> Result<(), TableError> {
    let manifest = GalleryManifest::describe(&found.gallery, &found.paths, provenance.clone());
    Ok(atomic::write(path, manifest.sealed().as_bytes())?)
}

/// `vectors.npy.json` for `vectors.npy`.
fn manifest_beside(vectors: &Path) -> PathBuf {
    let mut name = vectors.file_name().unwrap_or_default().to_owned();
    name.push(".json");
    vectors.with_file_name(name)
}

/// Writes vectors as `.npy`, labels and identities as text with one name per line, and the manifest.
pub fn export_npy(
    gallery: &Gallery,
    vectors: &Path,
    labels: &Path,
    identities: Option<&Path>,
    provenance: &Provenance,
) -> Result<(), TableError> {
    let rows = 0..gallery.len();
    let label_text = lines(labels, "label", rows.clone().map(|row| label_of(gallery, row)))?;
    let identity_text = match identities {
        Some(path) => Some((path, lines(path, "identity", rows.map(|row| gallery.identity(row)))?)),
        None => None,
    };
    npy::write_f32(vectors, &[gallery.len(), gallery.dimension()], gallery.vectors())?;
    atomic::write(labels, label_text.as_bytes())?;
    if let Some((path, text)) = identity_text {
        atomic::write(path, text.as_bytes())?;
    }
    let found = find_npy(vectors, labels, identities)?.exported(vectors, gallery)?;
    write_manifest(&manifest_beside(vectors), &found, provenance)
}

/// Reads vectors from `.npy` and names from text; without identities an item is called by its number.
///
/// The metric is that of the manifest, or the one that is asked for, or Euclidean.
pub fn import_npy(
    vectors: &Path,
    labels: &Path,
    identities: Option<&Path>,
    metric: Option<Metric>,
) -> Result<ImportedGallery, TableError> {
    let manifest = read_manifest(&manifest_beside(vectors))?;
    find_npy(vectors, labels, identities)?.settle(vectors, manifest, metric)
}

fn find_npy(vectors: &Path, labels: &Path, identities: Option<&Path>) -> Result<Found, TableError> {
    let matrix = npy::read_matrix(vectors)?;
    let names = read_labels(labels)?;
    let count = |path: &Path, what, found| TableError::Count {
        path: path.to_owned(),
        what,
        found,
        wanted: matrix.rows,
    };
    if names.len() != matrix.rows {
        return Err(count(labels, "labels", names.len()));
    }
    let identities = match identities {
        Some(path) => {
            let identities = read_labels(path)?;
            if identities.len() != matrix.rows {
                return Err(count(path, "identities", identities.len()));
            }
            Some(identities)
        }
        None => None,
    };
    let paths = vec![None; matrix.rows];
    let (vectors, dimension) = (matrix.values, matrix.columns);
    Ok(Found { vectors, dimension, identities, labels: names, paths, views: None, plain: None })
}

/// Reads names from text, one per line.
///
/// An empty line is an empty name; the break behind the last name may be missing.
pub fn read_labels(path: &Path) -> Result<Vec<String>, TableError> {
    let bytes = fs::read(path).map_err(|source| TableError::Read { path: path.to_owned(), source })?;
    let text = match str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            let row = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
            return Err(TableError::value(path, row, "the line", "not UTF-8", "text"));
        }
    };
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(str::to_owned).collect())
}

/// Writes one Parquet file with the manifest in its metadata; `paths` has one entry per item or none at all.
pub fn export_parquet(
    path: &Path,
    gallery: &Gallery,
    paths: &[Option<String>],
    provenance: &Provenance,
) -> Result<(), TableError> {
    check_paths(path, gallery, paths)?;
    let rows = 0..gallery.len();
    let mut columns = vec![
        ("identity".to_owned(), Column::Text(rows.clone().map(|row| gallery.identity(row)).collect())),
        ("label".to_owned(), Column::Text(rows.map(|row| label_of(gallery, row)).collect())),
        ("vector".to_owned(), Column::Vectors { values: gallery.vectors(), dimension: gallery.dimension() }),
    ];
    if !paths.is_empty() {
        columns.push(("path".to_owned(), Column::OptionalText(paths.iter().map(Option::as_deref).collect())));
    }
    if !gallery.view_names().is_empty() {
        let views = (0..gallery.len()).map(|row| gallery.view(row).unwrap_or_default()).collect();
        columns.push(("view".to_owned(), Column::Text(views)));
    }
    if let Some(plain) = gallery.plain() {
        let column = Column::Vectors { values: plain.vectors(), dimension: plain.dimension() };
        columns.push(("plain".to_owned(), column));
    }
    let manifest = GalleryManifest::describe(gallery, paths, provenance.clone());
    let metadata = [(MANIFEST_KEY.to_owned(), manifest.sealed())];
    columns::write(path, gallery.len(), &columns, &metadata)
}

/// Reads a Parquet file with the columns `label`, `vector`, and perhaps `identity` and `path`.
///
/// The metric is that of the manifest, or the one that is asked for, or Euclidean.
pub fn import_parquet(path: &Path, metric: Option<Metric>) -> Result<ImportedGallery, TableError> {
    let table = Table::open(path)?;
    if table.rows() == 0 {
        return Err(TableError::Empty { path: path.to_owned() });
    }
    let entry = table.metadata().into_iter().find(|(key, _)| key == MANIFEST_KEY);
    if entry.is_none() && table.is_ours() {
        return Err(TableError::NoDigest { path: path.to_owned() });
    }
    let manifest = entry.map(|(_, text)| GalleryManifest::parse(text.as_bytes(), path)).transpose()?;
    let labels = table.text("label")?;
    let identities = if table.has("identity") { Some(table.text("identity")?) } else { None };
    // In files of other programs a column of this name may be anything.
    let named = manifest.as_ref().is_some_and(|manifest| manifest.provenance.views.is_some());
    let views = if named && table.has("view") { Some(table.optional_text("view")?) } else { None };
    let paths = if table.has("path") { table.optional_text("path")? } else { vec![None; table.rows()] };
    let (vectors, dimension) = table.vectors("vector")?;
    let with_plain = manifest.as_ref().is_some_and(|manifest| manifest.plain_file.is_some());
    let plain = if with_plain { Some(table.vectors("plain")?.0) } else { None };
    Found { vectors, dimension, identities, labels, paths, views, plain }.settle(path, manifest, metric)
}

/// Writes the folders of clip-retrieval, so many items per shard, and the manifest beside them.
///
/// `image_path` is the item's path where it is known and its identity otherwise; identity and label have columns too.
pub fn export_clip_retrieval(
    directory: &Path,
    gallery: &Gallery,
    paths: &[Option<String>],
    shard_items: NonZeroUsize,
    provenance: &Provenance,
) -> Result<(), TableError> {
    check_paths(directory, gallery, paths)?;
    let (arrays, tables) = (directory.join("img_emb"), directory.join("metadata"));
    for folder in [&arrays, &tables] {
        fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
        if let Some(path) = shards(folder)?.into_values().next() {
            // A shard of an older and larger export would be read as part of this one.
            let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "a shard is there already");
            return Err(WriteError::new(&path, source).into());
        }
    }
    let (items, dimension) = (gallery.len(), gallery.dimension());
    let count = items.div_ceil(shard_items.get());
    // clip-retrieval reads shards in the order of their names, so all numbers get the same width.
    let width = (count - 1).to_string().len();
    for shard in 0..count {
        let start = shard * shard_items.get();
        let end = items.min(start + shard_items.get());
        let name = |prefix: &str, suffix: &str| format!("{prefix}_{shard:0width$}.{suffix}");
        npy::write_f32(
            &arrays.join(name("img_emb", "npy")),
            &[end - start, dimension],
            &gallery.vectors()[start * dimension..end * dimension],
        )?;
        let path_of = |row: usize| match paths.get(row).and_then(Option::as_deref) {
            Some(path) => path,
            None => gallery.identity(row),
        };
        let columns = [
            ("image_path".to_owned(), Column::Text((start..end).map(path_of).collect())),
            ("identity".to_owned(), Column::Text((start..end).map(|row| gallery.identity(row)).collect())),
            ("label".to_owned(), Column::Text((start..end).map(|row| label_of(gallery, row)).collect())),
        ];
        columns::write(&tables.join(name("metadata", "parquet")), end - start, &columns, &[])?;
    }
    let found = find_clip_retrieval(directory, None)?.exported(directory, gallery)?;
    write_manifest(&directory.join(CLIP_MANIFEST), &found, provenance)
}

/// Reads the folders of clip-retrieval, shards in the order of their numbers.
///
/// The label comes from `label_column`, or else from `label`, or else from `caption`; the identity from `identity`, or
/// else from `image_path`, or else from the row. The metric is that of the manifest, or the one that is asked for, or
/// Euclidean.
pub fn import_clip_retrieval(
    directory: &Path,
    label_column: Option<&str>,
    metric: Option<Metric>,
) -> Result<ImportedGallery, TableError> {
    let manifest = read_manifest(&directory.join(CLIP_MANIFEST))?;
    find_clip_retrieval(directory, label_column)?.settle(directory, manifest, metric)
}

fn find_clip_retrieval(directory: &Path, label_column: Option<&str>) -> Result<Found, TableError> {
    let (arrays, tables) = (directory.join("img_emb"), directory.join("metadata"));
    let (arrays, mut tables) = (shards(&arrays)?, shards(&tables)?);
    if arrays.is_empty() {
        return Err(TableError::NoShards { path: directory.to_owned() });
    }
    let (mut vectors, mut dimension) = (Vec::new(), None);
    let (mut identities, mut labels, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for (number, array) in arrays {
        let Some(path) = tables.remove(&number) else {
            let partner = directory.join(format!("metadata/metadata_{number}.parquet"));
            return Err(TableError::NoPartner { path: array, partner });
        };
        let matrix = npy::read_matrix(&array)?;
        let wanted = *dimension.get_or_insert(matrix.columns);
        if matrix.columns != wanted {
            let (what, found) = ("components per vector", matrix.columns);
            return Err(TableError::Count { path: array, what, found, wanted });
        }
        let table = Table::open(&path)?;
        if table.rows() != matrix.rows {
            let (found, wanted) = (table.rows(), matrix.rows);
            return Err(TableError::Count { path, what: "rows", found, wanted });
        }
        let column = label_column.unwrap_or(if table.has("label") { "label" } else { "caption" });
        labels.extend(table.text(column)?);
        let image_paths = if table.has("image_path") {
            table.optional_text("image_path")?
        } else {
            vec![None; matrix.rows]
        };
        if table.has("identity") {
            identities.extend(table.text("identity")?);
        } else {
            let first = identities.len();
            let name = |(row, path): (usize, &Option<String>)| {
                path.clone().unwrap_or_else(|| (first + row).to_string())
            };
            identities.extend(image_paths.iter().enumerate().map(name));
        }
        paths.extend(image_paths);
        vectors.extend(matrix.values);
    }
    if let Some((number, path)) = tables.pop_first() {
        return Err(TableError::NoPartner {
            path,
            partner: directory.join(format!("img_emb/img_emb_{number}.npy")),
        });
    }
    let identities = Some(identities);
    Ok(Found {
        vectors,
        dimension: dimension.unwrap_or(0),
        identities,
        labels,
        paths,
        views: None,
        plain: None,
    })
}

/// Shards of a folder by number: `img_emb_007.npy` is number 7. A folder that is not there has none.
fn shards(folder: &Path) -> Result<std::collections::BTreeMap<u64, PathBuf>, TableError> {
    let failed = |source| TableError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(failed(error)),
    };
    let mut shards = std::collections::BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| {
                let arrays = name.strip_prefix("img_emb_").and_then(|rest| rest.strip_suffix(".npy"));
                arrays
                    .or_else(|| name.strip_prefix("metadata_").and_then(|rest| rest.strip_suffix(".parquet")))
            })
            .filter(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        if let Some(number) = number
            && let Some(twin) = shards.insert(number, path.clone())
        {
            let (row, field) = (0, "shard number");
            return Err(TableError::value(
                &path,
                row,
                field,
                number,
                &format!("another than `{}` has", twin.display()),
            ));
        }
    }
    Ok(shards)
}

fn label_of(gallery: &Gallery, row: usize) -> &str {
    gallery.label_name(gallery.label(row))
}

fn check_paths(path: &Path, gallery: &Gallery, paths: &[Option<String>]) -> Result<(), TableError> {
    if paths.is_empty() || paths.len() == gallery.len() {
        return Ok(());
    }
    Err(TableError::Count { path: path.to_owned(), what: "paths", found: paths.len(), wanted: gallery.len() })
}

/// One name per line, refused where a name would not be read back as it is.
fn lines<'a>(path: &Path, field: &str, names: impl Iterator<Item = &'a str>) -> Result<String, TableError> {
    let mut text = String::new();
    for (row, name) in names.enumerate() {
        if name.contains('\n') || name.ends_with('\r') || (row == 0 && name.starts_with('\u{feff}')) {
            let found = format!("{name:?}");
            return Err(TableError::value(path, row, field, found, "a name that fits on one line"));
        }
        text.push_str(name);
        text.push('\n');
    }
    Ok(text)
}
