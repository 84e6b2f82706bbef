//! Puts everything that workers need where they find it.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use retrievalguard::storage::manifest::{FileRecord, GalleryDirectory};
use retrievalguard::storage::sealed::seal;
use retrievalguard_encoder::dataset::{BrokenPictures, DescribedPicture};
use retrievalguard_encoder::pipeline::{CertifyPlan, CertifyRequest};
use retrievalguard_encoder::run::Method;
use retrievalguard_encoder::work::{Observer, WorkQueue};

use crate::manifest::{GALLERY, GALLERY_FILES, MANIFEST, MODEL, MODEL_CONFIG, SHARED_FORMAT, picture_name};
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
    let target = match &request.method {
        Method::Smoothed(smoothed) => smoothed.procedure.target_radius,
        Method::Lipschitz(_) => None,
    };
    if sharing.chunk.is_some() && target.is_some() {
        return Err(WorkerError::ChunkedTarget);
    }
    let plan = CertifyPlan::new(request)?;
    let model = read(sharing.model)?;
    let config = request.embedder.model_config().to_toml().into_bytes();
    let gallery = gallery_files(request, sharing.gallery)?;
    let shared = |(position, excluded): (usize, &Vec<usize>)| {
        let query = &request.queries[position];
        let picture = match request.queries.picture_record(position) {
            Some(picture) => picture,
            // What could not be read when it was digested says why when it is read again.
            None => FileRecord::of_bytes(&request.queries.picture_bytes(position)?),
        };
        let DescribedPicture { crop, grey, .. } = query.described(None);
        let (identity, label, excluded) = (query.identity.clone(), query.label.clone(), excluded.clone());
        Ok(SharedQuery { identity, label, excluded, crop, grey, picture })
    };
    let queries = plan.excluded.iter().enumerate().map(shared).collect::<Result<_, WorkerError>>()?;
    let manifest = RunManifest {
        format: SHARED_FORMAT,
        run: plan.description,
        skip_broken: request.options.broken == BrokenPictures::Skip,
        chunk: sharing.chunk,
        namesakes: plan.namesakes,
        notes: sharing.notes,
        model: FileRecord::of_bytes(&model),
        contract: FileRecord::of_bytes(&config),
        gallery: gallery.iter().map(|(_, bytes)| FileRecord::of_bytes(bytes)).collect(),
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
    // Stores are slow and far away; every picture goes by itself.
    let queue =
        WorkQueue { pieces: manifest.queries.len(), before: 0, threads: request.options.threads, observer };
    queue.run(|index| {
        let bytes = request.queries.picture_bytes(index)?.into_owned();
        store.put(&picture_name(index), bytes)
    })?;
    store.put(MANIFEST, text)?;
    Ok(Task::count(&manifest))
}

/// The gallery as it is, with everything that was written to it since it was made.
fn gallery_files(
    request: &CertifyRequest<'_>,
    directory: &Path,
) -> Result<Vec<(&'static str, Vec<u8>)>, WorkerError> {
    let stored = request.gallery.in_memory()?;
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
