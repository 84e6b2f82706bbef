//! What a shared run is.

use std::num::NonZeroU32;

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::FileRecord;
use retrievalguard::storage::sealed::unseal;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::dataset::{BrokenPictures, DescribedPicture, digest_of_pictures};
use retrievalguard_encoder::picture::{PictureError, PictureLimits, PixelBox, RgbPicture};
use retrievalguard_encoder::pipeline::PipelineError;
use retrievalguard_encoder::pipeline::run_files::RunPlaces;
use retrievalguard_encoder::run::{
    GalleryDescription, Method, Procedure, RunDescription, Smoothed, excluded_digest,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::part::RunKey;
use crate::{RunStore, WorkerError};

/// Version of the layout of a shared run.
pub const SHARED_FORMAT: u32 = 3;

pub(crate) const MANIFEST: &str = "shared.json";
pub(crate) const MODEL: &str = "model.onnx";
pub(crate) const MODEL_CONFIG: &str = "contract.toml";
pub(crate) const GALLERY: &str = "gallery";
/// The last is that of a gallery with embeddings of its clean pictures.
pub(crate) const GALLERY_FILES: [&str; 4] = ["vectors.npy", "items.jsonl", "manifest.json", "plain.npy"];
pub(crate) const PARTS: &str = "parts";

/// A run, and where its inputs are for those who work on it.
///
/// What decides the results is in the description alone; queries, gallery and encoder are held against it, so that the
/// table cannot say one thing and come from another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunManifest {
    /// Version of the layout, [`SHARED_FORMAT`].
    pub format: u32,
    /// What the run is made with, as it will stand in the table's metadata.
    pub run: RunDescription,
    /// Whether broken pictures are left out instead of ending the run.
    pub skip_broken: bool,
    /// Samples of one task; whole queries if there is none.
    pub chunk: Option<NonZeroU32>,
    /// Queries that share an identity with a gallery item which may or may not be the same picture.
    pub namesakes: usize,
    /// What the merge needs beside the parts.
    pub notes: Notes,
    /// The encoder's file.
    pub model: FileRecord,
    /// The model config's file.
    pub contract: FileRecord,
    /// The gallery's files, in the order of their names in the layout.
    pub gallery: Vec<FileRecord>,
    /// The queries, in order.
    pub queries: Vec<SharedQuery>,
}

/// Where a run came from, and which tables are wanted of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// The command that shared the run, and where its inputs lay.
    pub places: RunPlaces,
    /// Whether the table is written as JSON lines, too.
    pub jsonl: bool,
    /// Whether a table per certificate is written as TSV, too.
    pub tsv: bool,
}

/// One query of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedQuery {
    /// Its identity.
    pub identity: String,
    /// Its true label.
    pub label: String,
    /// Rows of the gallery that it must not see.
    pub excluded: Vec<usize>,
    /// The part of the picture to use: left, top, right, bottom.
    pub crop: Option<[usize; 4]>,
    /// Width and height of a picture that is nothing but grey pixels.
    pub grey: Option<[usize; 2]>,
    /// Its picture's file.
    pub picture: FileRecord,
}

impl SharedQuery {
    /// What decides what becomes of it.
    pub(crate) fn described(&self) -> DescribedPicture<'_> {
        DescribedPicture {
            identity: &self.identity,
            label: &self.label,
            crop: self.crop,
            grey: self.grey,
            pixels: Some(self.picture.sha256),
        }
    }

    /// The picture from the bytes of its file.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<RgbPicture, PictureError> {
        let picture = match self.grey {
            Some([width, height]) => RgbPicture::from_grey(&self.identity, width, height, bytes)?,
            None => RgbPicture::from_bytes(&self.identity, bytes, &PictureLimits::default())?,
        };
        match self.crop {
            Some([left, top, right, bottom]) => {
                picture.cropped(&self.identity, PixelBox { left, top, right, bottom })
            }
            None => Ok(picture),
        }
    }
}

/// Where a query's picture lies.
pub(crate) fn picture_name(query: usize) -> String {
    format!("pictures/{query:06}")
}

impl RunManifest {
    /// Reads the manifest of a run, and holds its queries against the description that the table will carry.
    pub fn read(store: &RunStore) -> Result<Self, WorkerError> {
        let run = store.address().to_owned();
        let text = store.get(MANIFEST)?.ok_or_else(|| WorkerError::NoRun { run: run.clone() })?;
        let wrong = |wanted: String| WorkerError::Manifest { run: run.clone(), wanted };
        let no_manifest = |error: serde_json::Error| wrong(format!("a run's manifest: {error}"));
        let value: Value = serde_json::from_slice(&text).map_err(no_manifest)?;
        let format = value.get("format").unwrap_or(&Value::Null);
        if *format != SHARED_FORMAT {
            return Err(wrong(format!("of format {SHARED_FORMAT}, it is of format {format}")));
        }
        let value = unseal(&text).map_err(|source| WorkerError::Seal { run: run.clone(), source })?;
        let described = RunDescription::parse(value.get("run").unwrap_or(&Value::Null));
        described.map_err(PipelineError::from)?;
        let manifest: Self = serde_json::from_value(value).map_err(no_manifest)?;
        let tool = env!("CARGO_PKG_VERSION");
        if manifest.run.tool != tool {
            return Err(wrong(format!("of retrievalguard {tool}, it is of {}", manifest.run.tool)));
        }
        match &manifest.run.method {
            Method::Smoothed(smoothed) if manifest.chunk.is_some() => {
                if smoothed.procedure.target_radius.is_some() {
                    return Err(WorkerError::ChunkedTarget);
                }
            }
            Method::Lipschitz(_) if manifest.chunk.is_some() => {
                return Err(wrong("one without chunks of samples, since it has no noise".to_owned()));
            }
            Method::Smoothed(_) | Method::Lipschitz(_) => {}
        }
        if ![GALLERY_FILES.len() - 1, GALLERY_FILES.len()].contains(&manifest.gallery.len()) {
            return Err(wrong("a manifest with three or four files of a gallery".to_owned()));
        }
        manifest.check_queries(&run)?;
        Ok(manifest)
    }

    /// Whether the queries are those of the description: identities, labels, boxes, pictures and what they must not see.
    fn check_queries(&self, run: &str) -> Result<(), WorkerError> {
        let other = |what, found: Digest, wanted: Digest| {
            Err(WorkerError::Other { run: run.to_owned(), what, found, wanted })
        };
        let queries = digest_of_pictures(self.queries.iter().map(SharedQuery::described));
        if queries != self.run.queries {
            return other("queries", queries, self.run.queries);
        }
        let excluded = excluded_digest(self.queries.iter().map(|query| query.excluded.as_slice()));
        if excluded != self.run.excluded_rows {
            return other("rows that queries must not see", excluded, self.run.excluded_rows);
        }
        Ok(())
    }

    /// Whether a gallery is the one that the description names.
    pub(crate) fn check_gallery(&self, run: &str, gallery: &StoredGallery) -> Result<(), WorkerError> {
        let found = GalleryDescription::new(gallery)?;
        if found == self.run.gallery {
            return Ok(());
        }
        let (what, found, wanted) = ("gallery", found.digest, self.run.gallery.digest);
        Err(WorkerError::Other { run: run.to_owned(), what, found, wanted })
    }

    /// What a run with noise has.
    pub(crate) fn smoothed(&self) -> Result<&Smoothed, WorkerError> {
        Ok(self.run.smoothed().map_err(PipelineError::from)?)
    }

    /// How each query is certified.
    pub(crate) fn procedure(&self) -> Result<&Procedure, WorkerError> {
        Ok(&self.smoothed()?.procedure)
    }

    /// Pilot and certifying samples of a query; none in a run without noise, whose tasks are whole queries.
    pub(crate) fn counts(&self) -> (u32, u32) {
        self.run
            .smoothed()
            .map_or((0, 0), |smoothed| (smoothed.procedure.pilot.get(), smoothed.procedure.samples.get()))
    }

    /// What every part of the run carries.
    pub(crate) fn key(&self) -> RunKey {
        RunKey { run: self.run.digest(), chunk: self.chunk }
    }

    pub(crate) fn broken(&self) -> BrokenPictures {
        if self.skip_broken { BrokenPictures::Skip } else { BrokenPictures::Fatal }
    }
}

/// An object whose digest is known.
pub(crate) fn checked(store: &RunStore, name: &str, record: &FileRecord) -> Result<Vec<u8>, WorkerError> {
    let run = || store.address().to_owned();
    let bytes = store.get(name)?.ok_or_else(|| WorkerError::Store {
        run: run(),
        name: name.to_owned(),
        what: "read",
        source: "it is not there".into(),
    })?;
    let found = Digest::of_bytes(&bytes);
    if found == record.sha256 {
        return Ok(bytes);
    }
    let (found, wanted) = (found.to_string(), record.sha256.to_string());
    Err(WorkerError::Changed { run: run(), name: name.to_owned(), found, wanted })
}

/// Name and content of each file of the run's gallery, held against the manifest.
pub(crate) fn gallery_files(
    store: &RunStore,
    manifest: &RunManifest,
) -> impl Iterator<Item = Result<(&'static str, Vec<u8>), WorkerError>> {
    let files = GALLERY_FILES.iter().zip(&manifest.gallery);
    files.map(move |(name, record)| Ok((*name, checked(store, &format!("{GALLERY}/{name}"), record)?)))
}
