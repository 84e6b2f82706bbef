//! Embeddings of noisy copies, kept while a run certifies: to look at, or to certify again without the encoder.
//!
//! Each query leaves `NNNNNN.pilot.npy` and `NNNNNN.certify.npy`, arrays of (samples, components) that `certify --samples-file`
//! and NumPy read; `NNNNNN` is its place among the queries. `queries.jsonl` says which is whose.

use std::path::{Path, PathBuf};

use retrievalguard::noise::Stage;
use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard::storage::npy;
use retrievalguard::{SampleError, Samples};
use serde_json::json;

use super::PipelineError;
use crate::dataset::RecordSet;

/// Name of the list of kept queries.
const LIST: &str = "queries.jsonl";

/// The samples of one query, as far as they were drawn.
#[derive(Debug, Default)]
pub struct Drawn {
    pub(crate) pilot: Option<Samples>,
    pub(crate) certify: Option<Samples>,
}

impl Drawn {
    /// Takes note of samples; those of a stage come in order.
    pub fn add(&mut self, stage: Stage, samples: &Samples) -> Result<(), SampleError> {
        let place = if stage == Stage::Pilot { &mut self.pilot } else { &mut self.certify };
        match place {
            Some(before) => before.append(samples),
            None => {
                *place = Some(samples.clone());
                Ok(())
            }
        }
    }
}

/// A folder for samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptSamples<'a>(pub(super) &'a Path);

impl KeptSamples<'_> {
    /// Makes the folder.
    pub(super) fn create(&self) -> Result<(), PipelineError> {
        std::fs::create_dir_all(self.0).map_err(|error| WriteError::new(self.0, error).into())
    }

    /// Writes what was drawn for the query at a position.
    pub(super) fn write(&self, position: usize, drawn: &Drawn) -> Result<(), PipelineError> {
        for (stage, samples) in [(Stage::Pilot, &drawn.pilot), (Stage::Certify, &drawn.certify)] {
            let Some(samples) = samples else { continue };
            let shape = [samples.count() as usize, samples.dimension()];
            npy::write_f32(&self.file(position, stage), &shape, samples.values())?;
        }
        Ok(())
    }

    /// Writes the list of all queries with the files that they have.
    pub(super) fn list(&self, queries: &RecordSet) -> Result<(), PipelineError> {
        let mut text = String::new();
        for (position, record) in queries.iter().enumerate() {
            let [pilot, certify] = [Stage::Pilot, Stage::Certify].map(|stage| {
                let path = self.file(position, stage);
                path.is_file().then(|| Self::name(position, stage))
            });
            if pilot.is_some() || certify.is_some() {
                let line = json!({
                    "identity": record.identity, "label": record.label, "pilot": pilot, "certify": certify
                });
                text.push_str(&format!("{line}\n"));
            }
        }
        Ok(write(&self.0.join(LIST), text.as_bytes())?)
    }

    fn file(&self, position: usize, stage: Stage) -> PathBuf {
        self.0.join(Self::name(position, stage))
    }

    fn name(position: usize, stage: Stage) -> String {
        format!("{position:06}.{}.npy", stage.as_str())
    }
}
