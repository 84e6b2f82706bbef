//! From data sets to galleries, tables of certificates and attacks on them, resumable at any moment.
//!
//! All runs keep an append-only journal: what it acknowledges is on disk. The same call made again after an
//! interruption takes up where the journal ends and writes the same bytes as an uninterrupted run, because every
//! record is a function of inputs, parameters and engine alone.

mod attack;
mod certify;
mod index;
pub mod run_files;
pub mod upgrade;

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use retrievalguard::attack::AttackError;
use retrievalguard::certificate::CertificateError;
use retrievalguard::gallery::GalleryError;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Differences, Journal, JournalError};
use retrievalguard::storage::manifest::{Mismatch, StorageError};
use retrievalguard::storage::sample_cache::CacheError;
use retrievalguard::{ParameterError, SampleError, SmoothingError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use attack::{AttackReport, AttackRequest, AttackTarget, attack, begun_judge_seed};
pub use certify::{
    Asked, CertifyPlan, CertifyReport, CertifyRequest, LeaveOneOut, QueryAnswer, QueryCertifier,
    QueryOutcome, certify, check_gallery,
};
pub use index::{IndexReport, IndexRequest, index};

use crate::dataset::{BrokenPictures, PictureSource, Record};
use crate::model_config::ModelConfig;
use crate::picture::PictureError;
use crate::resize::PreparedPicture;
use crate::run::DescriptionError;
use crate::table::TableError;

/// Why a run ended without its result; everything acknowledged before is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A picture could not be read.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A picture does not have the encoder's input size after preparation.
    #[error(
        "picture `{picture}` is {found_height} × {found_width} after resizing, wanted {height} × {width} for the encoder"
    )]
    Size {
        /// Identity of the picture.
        picture: String,
        /// Its height.
        found_height: usize,
        /// Its width.
        found_width: usize,
        /// Height of the encoder's input.
        height: usize,
        /// Width of the encoder's input.
        width: usize,
    },
    /// The encoder failed or broke its promise.
    #[error(transparent)]
    Smoothing(#[from] SmoothingError),
    /// More samples were asked for than memory may hold.
    #[error(transparent)]
    Samples(#[from] SampleError),
    /// A query could not be certified.
    #[error("query `{query}` cannot be certified")]
    Certificate {
        /// Identity of the query.
        query: String,
        /// Why not.
        source: CertificateError,
    },
    /// A query could not be attacked.
    #[error("query `{query}` cannot be attacked")]
    Attack {
        /// Identity of the query.
        query: String,
        /// Why not.
        source: Box<AttackError>,
    },
    /// The gallery could not be built.
    #[error(transparent)]
    Gallery(#[from] GalleryError),
    /// The gallery and the queries were made differently.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The gallery's files could not be written or read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The journal could not be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A record of the journal is intact but not one of ours.
    #[error("record {record} of journal `{path}` is not a result of this run")]
    Record {
        /// The journal.
        path: String,
        /// Number of the record.
        record: usize,
    },
    /// The table could not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The run is described otherwise than it is made.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// Kept samples could not be read or written.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A parameter is out of its range.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// Nothing is left to work on.
    #[error("no picture is left: all {skipped} were skipped as broken")]
    NothingLeft {
        /// How many were skipped.
        skipped: usize,
    },
    /// The run was told to stop; what was acknowledged is kept.
    #[error("stopped after {done} of {total}; the same command continues from there")]
    Stopped {
        /// How many are done.
        done: usize,
        /// How many there are.
        total: usize,
    },
}

/// The model config that a gallery's pictures were prepared by, in its directory.
const MODEL_CONFIG_FILE: &str = "contract.toml";

/// How it was settled that the encoder of a gallery is a function of each picture alone, in its directory.
const CHECK_FILE: &str = "encoder-check.json";

/// Says in which fields the model config of a gallery differs from the queries', if the gallery has kept its own.
pub fn model_config_difference(gallery: &Path, queries: &ModelConfig) -> Option<String> {
    let own = ModelConfig::read(&gallery.join(MODEL_CONFIG_FILE)).ok()?;
    let [own, queries] = [&own, queries].map(|config| serde_json::to_value(config).ok());
    let differences = Differences::between(&own?, &queries?);
    (!differences.0.is_empty()).then(|| differences.to_string())
}

/// Hears how a run is going and may stop it.
pub trait Observer: Sync {
    /// `done` of `total` pictures are on disk.
    fn advanced(&self, done: usize, total: usize);

    /// Whether to stop after the current pictures.
    fn stop(&self) -> bool {
        false
    }
}

/// Digest of a data set: identities, labels, boxes and the bytes of every picture.
///
/// A file that cannot be read is a broken picture like others: what happens to it is not decided here.
pub fn data_set_digest(records: &[Record]) -> Digest {
    digest_of_pictures(records.iter().map(|record| {
        let (pixels, grey) = match &record.source {
            PictureSource::File(path) => (Digest::of_file(path).ok(), None),
            PictureSource::Grey { width, height, pixels } => {
                (Some(Digest::of_bytes(pixels)), Some([*width, *height]))
            }
        };
        let crop = record.crop.map(|crop| [crop.left, crop.top, crop.right, crop.bottom]);
        DescribedPicture { identity: &record.identity, label: &record.label, crop, grey, pixels }
    }))
}

/// Everything of a picture that decides what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct DescribedPicture<'a> {
    /// Its name.
    pub identity: &'a str,
    /// Its label.
    pub label: &'a str,
    /// The part that is used: left, top, right, bottom.
    pub crop: Option<[usize; 4]>,
    /// Width and height, if its bytes are nothing but grey pixels.
    pub grey: Option<[usize; 2]>,
    /// Digest of its bytes; none if they cannot be read.
    pub pixels: Option<Digest>,
}

/// The digest of a data set from what decides each picture.
pub fn digest_of_pictures<'a>(pictures: impl Iterator<Item = DescribedPicture<'a>>) -> Digest {
    let mut text = String::new();
    for DescribedPicture { identity, label, crop, grey, pixels } in pictures {
        let line = match grey {
            // Files know their own sides.
            None => serde_json::json!([identity, label, crop, pixels]),
            Some(sides) => serde_json::json!([identity, label, crop, pixels, sides]),
        };
        text.push_str(&line.to_string());
        text.push('\n');
    }
    Digest::of_bytes(text.as_bytes())
}

/// A prepared picture as the encoder's input: three planes, or one of `0.299 R + 0.587 G + 0.114 B`.
pub fn input_values(
    config: &ModelConfig,
    identity: &str,
    picture: PreparedPicture,
) -> Result<Vec<f32>, PipelineError> {
    let [channels, height, width] = config.picture_shape();
    if (picture.size.height, picture.size.width) != (height, width) {
        return Err(PipelineError::Size {
            picture: identity.to_owned(),
            found_height: picture.size.height,
            found_width: picture.size.width,
            height,
            width,
        });
    }
    if channels == 3 {
        return Ok(picture.values);
    }
    let plane = height * width;
    let (red, rest) = picture.values.split_at(plane);
    let (green, blue) = rest.split_at(plane);
    Ok(red
        .iter()
        .zip(green)
        .zip(blue)
        // Equal channels stay what they are, whatever the weights round to.
        .map(
            |((&red, &green), &blue)| {
                if red == green && green == blue { red } else { 0.299 * red + 0.587 * green + 0.114 * blue }
            },
        )
        .collect())
}

/// Works on the positions that the journal lacks, on several threads, and appends each result as it comes.
pub(crate) struct Run<'a> {
    journal: Mutex<Journal>,
    todo: Mutex<std::vec::IntoIter<usize>>,
    total: usize,
    done: Mutex<usize>,
    observer: &'a dyn Observer,
    failed: AtomicBool,
}

impl<'a> Run<'a> {
    pub(crate) fn new(journal: Journal, todo: Vec<usize>, total: usize, observer: &'a dyn Observer) -> Self {
        let done = total - todo.len();
        observer.advanced(done, total);
        Self {
            journal: Mutex::new(journal),
            todo: Mutex::new(todo.into_iter()),
            total,
            done: Mutex::new(done),
            observer,
            failed: AtomicBool::new(false),
        }
    }

    /// Calls `work` for every position and journals what it returns; gives the journal back.
    pub(crate) fn finish<W>(self, threads: NonZeroUsize, work: W) -> Result<Journal, PipelineError>
    where
        W: Fn(usize) -> Result<Vec<u8>, PipelineError> + Sync,
    {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.get()).map(|_| scope.spawn(|| self.work(&work))).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
        let done = *self.done.lock().expect("no holder of this lock can panic");
        if done < self.total {
            return Err(PipelineError::Stopped { done, total: self.total });
        }
        Ok(self.journal.into_inner().expect("no holder of this lock can panic"))
    }

    fn work(&self, work: &impl Fn(usize) -> Result<Vec<u8>, PipelineError>) -> Result<(), PipelineError> {
        loop {
            if self.failed.load(Ordering::Relaxed) || self.observer.stop() {
                return Ok(());
            }
            let next = self.todo.lock().expect("no holder of this lock can panic").next();
            let Some(position) = next else { return Ok(()) };
            let result = work(position).and_then(|record| {
                let mut journal = self.journal.lock().expect("no holder of this lock can panic");
                Ok(journal.append(&record)?)
            });
            if let Err(error) = result {
                self.failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            let mut done = self.done.lock().expect("no holder of this lock can panic");
            *done += 1;
            self.observer.advanced(*done, self.total);
        }
    }
}

/// One line of a journal: the result for the picture at a position.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry<T> {
    /// Its result.
    Done { position: usize, result: T },
    /// It was broken and left out.
    Skipped { position: usize, reason: String },
}

impl<T: Serialize> Entry<T> {
    /// The line as it is appended.
    pub(crate) fn line(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an entry is strings and numbers")
    }
}

/// Puts a journal's entries in their places and counts them.
///
/// Where broken pictures are fatal, one that an earlier run skipped is still to be done.
pub(crate) fn replay<T: DeserializeOwned>(
    records: &[Vec<u8>],
    path: &Path,
    broken: BrokenPictures,
    entries: &mut [Option<Entry<T>>],
) -> Result<usize, PipelineError> {
    for (number, record) in records.iter().enumerate() {
        let wrong = || PipelineError::Record { path: path.display().to_string(), record: number };
        let entry: Entry<T> = serde_json::from_slice(record).map_err(|_| wrong())?;
        let (Entry::Done { position, .. } | Entry::Skipped { position, .. }) = &entry;
        let place = entries.get_mut(*position).ok_or_else(wrong)?;
        let done = broken == BrokenPictures::Skip || !matches!(entry, Entry::Skipped { .. });
        *place = done.then_some(entry);
    }
    Ok(entries.iter().flatten().count())
}
