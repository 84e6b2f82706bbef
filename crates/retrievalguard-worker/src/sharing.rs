//! Puts everything that workers need where they find it.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard::storage::sealed::seal;
use retrievalguard_encoder::dataset::{BrokenPictures, PictureSource, Record};
use retrievalguard_encoder::pipeline::{CertifyPlan, CertifyRequest};
use retrievalguard_encoder::work::Observer;

use crate::manifest::{
    GALLERY, GALLERY_FILES, MANIFEST, MODEL, MODEL_CONFIG, SHARED_FORMAT, picture_name, record,
};
use crate::store::temporary_folder;
use crate::task::Task;
use crate::{Notes, RunManifest, RunStore, SharedQuery, WorkerError};

/// What is shared, beside the request itself.
pub struct Sharing<'a> {
    /// The encoder's file.
    pub model: &'a Path,
    /// The gallery's directory.
    pub gallery: &'a Path,
    /// Samples of one task; whole queries if there is none.
    pub chunk: Option<NonZeroU32>,
    /// What the merge finds in the manifest again.
    pub notes: Notes,
}

/// Writes a run; the manifest comes last, so that a run is there completely or not at all. Returns its number of tasks.
pub fn share(
    store: &RunStore,
    request: &CertifyRequest<'_>,
    sharing: Sharing<'_>,
    observer: &dyn Observer,
) -> Result<usize, WorkerError> {
    if sharing.chunk.is_some() && request.target.is_some() {
        return Err(WorkerError::ChunkedTarget);
    }
    let plan = CertifyPlan::new(request)?;
    let model = read(sharing.model)?;
    let config = request.embedder.model_config().to_toml().into_bytes();
    let gallery = gallery_files(request, sharing.gallery)?;
    let total = request.queries.len();
    let mut queries = Vec::with_capacity(total);
    for (query, excluded) in request.queries.iter().zip(&plan.excluded) {
        let (bytes, grey) = picture(query)?;
        let crop = query.crop.map(|crop| [crop.left, crop.top, crop.right, crop.bottom]);
        queries.push(SharedQuery {
            identity: query.identity.clone(),
            label: query.label.clone(),
            excluded: excluded.clone(),
            crop,
            grey,
            picture: record(&bytes),
        });
    }
    let manifest = RunManifest {
        format: SHARED_FORMAT,
        run: plan.description,
        skip_broken: request.broken == BrokenPictures::Skip,
        chunk: sharing.chunk,
        namesakes: plan.namesakes,
        notes: sharing.notes,
        model: record(&model),
        contract: record(&config),
        gallery: gallery.iter().map(|(_, bytes)| record(bytes)).collect(),
        queries,
    };
    let text = seal(&manifest).expect("a manifest is strings and numbers").into_bytes();
    match store.get(MANIFEST)? {
        Some(found) if found == text => return Ok(Task::count(&manifest)),
        // Parts of one run are nothing to another.
        Some(_) => return Err(WorkerError::Taken { run: store.address().to_owned() }),
        None => {}
    }
    store.put(MODEL, model)?;
    store.put(MODEL_CONFIG, config)?;
    for (name, bytes) in gallery {
        store.put(&format!("{GALLERY}/{name}"), bytes)?;
    }
    for (index, query) in request.queries.iter().enumerate() {
        store.put(&picture_name(index), picture(query)?.0)?;
        observer.advanced(index + 1, total);
        if observer.stop() {
            return Err(WorkerError::Stopped { done: index + 1, total });
        }
    }
    store.put(MANIFEST, text)?;
    Ok(Task::count(&manifest))
}

/// The bytes of a query's picture, and its sides if they are nothing but grey pixels.
fn picture(query: &Record) -> Result<(Vec<u8>, Option<[usize; 2]>), WorkerError> {
    match &query.source {
        PictureSource::File(path) => Ok((read(path)?, None)),
        PictureSource::Grey { width, height, pixels } => Ok((pixels.clone(), Some([*width, *height]))),
    }
}

/// The gallery as it is, with everything that was written to it since it was made.
fn gallery_files(
    request: &CertifyRequest<'_>,
    directory: &Path,
) -> Result<Vec<(&'static str, Vec<u8>)>, WorkerError> {
    let stored = request.gallery;
    if stored.writes() == 0 {
        return GALLERY_FILES.iter().map(|name| Ok((*name, read(&directory.join(name))?))).collect();
    }
    let temporary = temporary_folder()?;
    let folder = temporary.path().join(GALLERY);
    let provenance = stored.manifest.provenance.clone();
    GalleryDirectory::write(&folder, &stored.gallery, &stored.paths, provenance)?;
    GALLERY_FILES.iter().map(|name| Ok((*name, read(&folder.join(name))?))).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, WorkerError> {
    fs::read(path).map_err(|source| WorkerError::File { path: path.display().to_string(), source })
}
