//! The gallery of the plain retriever: the same pictures, embedded without noise.
//!
//! The stored vectors are means over noise. An encoder that was trained with noise gives a clean picture another embedding
//! altogether, so compared with them the plain encoder would be wrong without any attack.

use std::path::Path;

use retrievalguard::Seed;
use retrievalguard::storage::manifest::{Engine, GalleryDirectory};
use retrievalguard_encoder::dataset::{
    Boxes, BrokenPictures, DatasetOptions, PictureSource, Record, RecordSet, Role, open,
};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::pipeline::run_files::RunPlaces;
use retrievalguard_encoder::pipeline::{IndexRequest, index};

use super::super::run_directory::RunDirectory;
use crate::arguments::EngineArgs;
use crate::progress::{Progress, tell};

/// Embeds the gallery's pictures without noise into `folder`, if they are still what was indexed.
pub(super) fn gallery(
    run: &RunDirectory,
    stored: &GalleryDirectory,
    embedder: &OnnxEmbedder,
    engine: &EngineArgs,
    folder: &Path,
) -> anyhow::Result<Option<GalleryDirectory>> {
    let Some(records) = pictures(run, stored) else {
        tell(format_args!(
            "note: the pictures of gallery `{}` have moved or changed since it was made; the plain encoder searches \
             the smoothed vectors",
            run.inputs.places.gallery.display()
        ));
        return Ok(None);
    };
    let request = IndexRequest {
        records: &records,
        embedder,
        sigma: Some(run.description.smoothed()?.procedure.sigma),
        samples: 0,
        seed: Seed::new(0),
        metric: stored.manifest.metric,
        views: stored.manifest.provenance.views.as_ref(),
        excess: run.description.smoothed()?.excess(),
        broken: BrokenPictures::Fatal,
        threads: engine.threads(),
        shards: None,
        batch: engine.batch,
    };
    let made = GalleryDirectory::read(folder).ok().filter(|made| {
        let provenance = &made.manifest.provenance;
        provenance.samples == Some(0)
            && provenance.views == stored.manifest.provenance.views
            && provenance.data_set == stored.manifest.provenance.data_set
            && provenance.model == embedder.facts().hash.parse().ok()
            && provenance.contract == embedder.model_config().hash().parse().ok()
            && provenance.engine == stored_engine(embedder)
            && made.manifest.metric == stored.manifest.metric
    });
    if made.is_some() {
        return Ok(made);
    }
    let progress = Progress::new("indexing without noise");
    let result = index(&request, folder, &progress);
    progress.finish();
    result?;
    Ok(Some(GalleryDirectory::read(folder)?))
}

/// The engine as a manifest names it.
fn stored_engine(embedder: &OnnxEmbedder) -> Option<Engine> {
    let report = embedder.report();
    Some(Engine { name: report.engine.to_string(), version: report.version.clone() })
}

/// The records that the gallery was made from: by the paths it keeps, or those of the run's own queries.
fn pictures(run: &RunDirectory, stored: &GalleryDirectory) -> Option<RecordSet> {
    let digest = stored.manifest.provenance.data_set?;
    let same =
        |records: &RecordSet| records.len() == stored.gallery.item_count() && records.digest() == digest;
    by_path(&run.inputs.places, stored).filter(same).or_else(|| queries(&run.inputs.places).filter(same))
}

/// One record per item, whole pictures.
fn by_path(places: &RunPlaces, stored: &GalleryDirectory) -> Option<RecordSet> {
    let gallery = &stored.gallery;
    (0..gallery.item_count())
        .map(|item| {
            let row = gallery.item_rows(item).start;
            let path = stored.picture_path(row)?;
            // Relative paths are those of the command that made the gallery, most often given in the same place.
            let path = if path.is_relative() && !path.exists() { places.directory.join(path) } else { path };
            path.is_file().then(|| Record {
                identity: gallery.identity(row).to_owned(),
                source: PictureSource::File(path),
                crop: None,
                label: gallery.label_name(gallery.label(row)).to_owned(),
                category: None,
                split: None,
                role: Role::Gallery,
            })
        })
        .collect()
}

/// The data set of the queries, which is often that of the gallery; it knows its boxes.
fn queries(places: &RunPlaces) -> Option<RecordSet> {
    let boxes = Boxes::named(&places.boxes)?;
    let data = open(&places.queries, places.format.parse().ok()?, DatasetOptions { boxes }).ok()?;
    Some(data.records.into())
}
