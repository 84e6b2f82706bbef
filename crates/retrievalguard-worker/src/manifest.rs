//! What a shared run is.

use std::num::NonZeroU32;

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::FileRecord;
use retrievalguard::{Excess, Seed};
use retrievalguard_encoder::dataset::BrokenPictures;
use retrievalguard_encoder::picture::{PictureError, PictureLimits, PixelBox, RgbPicture};
use retrievalguard_encoder::pipeline::Procedure;
use retrievalguard_encoder::pipeline::run_files::Places;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{RunStore, WorkerError};

/// Version of the layout of a shared run.
pub const RUN_FORMAT: u32 = 1;

/// Who shares, works and merges; all of them must be the same version.
pub(crate) const TOOL: &str = concat!("retrievalguard ", env!("CARGO_PKG_VERSION"));

pub(crate) const MANIFEST: &str = "run.json";
pub(crate) const MODEL: &str = "model.onnx";
pub(crate) const CONTRACT: &str = "contract.toml";
pub(crate) const GALLERY: &str = "gallery";
pub(crate) const GALLERY_FILES: [&str; 3] = ["vectors.npy", "items.jsonl", "manifest.json"];
pub(crate) const PARTS: &str = "parts";

/// Everything that decides what a run's parts hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunManifest {
    /// Version of the layout, [`RUN_FORMAT`].
    pub format: u32,
    /// Version of the tool that shared it.
    pub tool: String,
    /// How each query is certified.
    pub procedure: Procedure,
    /// Root of the noise.
    pub seed: Seed,
    /// Whether embeddings above the norm bound are projected instead of refused.
    pub project: bool,
    /// Whether broken pictures are left out instead of ending the run.
    pub skip_broken: bool,
    /// Samples of one task; whole queries if there is none.
    pub chunk: Option<NonZeroU32>,
    /// Who computes; last digits depend on it.
    pub engine: String,
    /// What the run is made with, as it will stand in the table's metadata.
    pub description: serde_json::Value,
    /// Queries that are kept from finding themselves.
    pub left_out: usize,
    /// Queries that share an identity with a gallery item which may or may not be the same picture.
    pub namesakes: usize,
    /// What the merge needs beside the parts.
    pub notes: Notes,
    /// The encoder's file.
    pub model: FileRecord,
    /// The contract's file.
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
    pub places: Places,
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
    /// Reads the manifest of a run, and the digest that its parts carry.
    pub fn read(store: &RunStore) -> Result<(Self, Digest), WorkerError> {
        let run = store.address().to_owned();
        let text = store.get(MANIFEST)?.ok_or_else(|| WorkerError::NoRun { run: run.clone() })?;
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let wrong = |wanted: String| WorkerError::Manifest { run: run.clone(), wanted };
        let version: Version =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("a run's manifest: {error}")))?;
        if version.format != RUN_FORMAT {
            return Err(wrong(format!("of format {RUN_FORMAT}, it is of format {}", version.format)));
        }
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("a run's manifest: {error}")))?;
        if manifest.chunk.is_some() && manifest.procedure.target.is_some() {
            return Err(WorkerError::ChunkedTarget);
        }
        if manifest.tool != TOOL {
            return Err(wrong(format!("a run of {TOOL}, it is one of {}", manifest.tool)));
        }
        if manifest.gallery.len() != GALLERY_FILES.len() || manifest.procedure.certificates.is_empty() {
            return Err(wrong(
                "a manifest with three files of a gallery and at least one certificate".to_owned(),
            ));
        }
        if let Some(field) = manifest.contradiction() {
            return Err(wrong(format!(
                "of one mind: its description says another {field} than what is to be done"
            )));
        }
        Ok((manifest, Digest::of_bytes(&text)))
    }

    /// A field of the description, which will stand in the table, that is not what workers will do.
    fn contradiction(&self) -> Option<&'static str> {
        let procedure = &self.procedure;
        let done = json!({
            "sigma": procedure.sigma,
            "alpha": procedure.alpha,
            "pilot": procedure.pilot,
            "samples": procedure.samples,
            "certificates": procedure.certificates,
            "top_k": procedure.top_k,
            "target_radius": procedure.target,
            "seed": self.seed,
            "project": self.project,
            "engine": self.engine,
            "leave_one_out": self.left_out,
            "excluded_rows": Digest::of_json(&json!(
                self.queries.iter().map(|query| &query.excluded).collect::<Vec<_>>()
            )),
        });
        const FIELDS: [&str; 12] = [
            "sigma",
            "alpha",
            "pilot",
            "samples",
            "certificates",
            "top_k",
            "target_radius",
            "seed",
            "project",
            "engine",
            "leave_one_out",
            "excluded_rows",
        ];
        FIELDS.into_iter().find(|field| self.description.get(field) != done.get(field))
    }

    pub(crate) fn excess(&self) -> Excess {
        if self.project { Excess::Project } else { Excess::Refuse }
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

/// Size and digest of some bytes.
pub(crate) fn record(bytes: &[u8]) -> FileRecord {
    FileRecord { bytes: bytes.len() as u64, sha256: Digest::of_bytes(bytes) }
}
