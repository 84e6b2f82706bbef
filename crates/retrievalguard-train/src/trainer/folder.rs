//! The files of a run.

use std::fs;
use std::path::{Path, PathBuf};

use retrievalguard::storage::atomic;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::lock::FolderLock;
use serde::{Deserialize, Serialize};

use super::{Measured, Start, TrainError};
use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::recipe::Recipe;

/// A folder that no other run writes to; one that was made for a run which did not begin is removed.
#[derive(Debug)]
pub(super) struct HeldFolder<'a> {
    lock: Option<FolderLock>,
    made: Option<&'a PathBuf>,
}

impl Drop for HeldFolder<'_> {
    fn drop(&mut self) {
        // The lock is a file in it.
        self.lock = None;
        if let Some(folder) = self.made {
            // Fails where there is anything in it, as it should.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// What a run depends on beside its recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inputs {
    /// Digest of the training pictures, their labels and order.
    pub pictures: Digest,
    /// Digest of the file with the initial weights.
    pub weights: Option<Digest>,
    /// Digest of the teacher's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<Digest>,
    /// What computes; other backends round differently.
    pub backend: Backend,
}

impl Inputs {
    /// Digest of the recipe and of everything it is applied to.
    pub fn run(&self, recipe: &Recipe) -> Digest {
        let inputs = serde_json::to_string(self).expect("inputs are digests and a name");
        Digest::of_bytes(format!("{}\n{inputs}", recipe.to_toml()).as_bytes())
    }
}

/// Where a run keeps its files.
#[derive(Clone, Debug)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// The folder, which need not exist.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The complete recipe.
    pub fn recipe(&self) -> PathBuf {
        self.0.join("recipe.toml")
    }

    /// What the run depends on beside the recipe.
    pub fn inputs(&self) -> PathBuf {
        self.0.join("inputs.json")
    }

    /// Everything needed to go on.
    pub fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint.safetensors")
    }

    /// What happened, line by line.
    pub fn log(&self) -> PathBuf {
        self.0.join("log.jsonl")
    }

    /// Event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.0.join("tensorboard")
    }

    /// The weights by their PyTorch names.
    pub fn weights(&self) -> PathBuf {
        self.0.join("network.safetensors")
    }

    /// The encoder for `index` and `certify`; its model config is beside it.
    pub fn encoder(&self) -> PathBuf {
        self.0.join("encoder.onnx")
    }

    /// Whether the log has an evaluation after this many steps.
    pub(super) fn evaluated(&self, step: u64) -> bool {
        #[derive(Deserialize)]
        struct Line {
            step: u64,
            event: String,
        }

        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        lines.into_iter().any(|line| line.step == step && line.event == super::EVALUATION)
    }

    /// Where the encoder of the untrained backbone lies while its recall is measured.
    pub(super) fn untrained(&self) -> PathBuf {
        self.0.join("untrained")
    }

    /// What the log's first evaluation says of the untrained backbone.
    pub(super) fn untrained_recall(&self) -> Option<Measured> {
        #[derive(Deserialize)]
        struct Line {
            untrained: Measured,
        }

        let text = fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().find_map(|line| serde_json::from_str::<Line>(line).ok()).map(|line| line.untrained)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Takes the folder for one run: two would write over each other's checkpoints.
    pub(super) fn take(&self, start: Start) -> Result<HeldFolder<'_>, TrainError> {
        let made = !self.0.exists();
        match start {
            Start::Fresh => fs::create_dir_all(&self.0)
                .map_err(|source| TrainError::Folder { folder: self.0.clone(), source })?,
            Start::Resume if self.0.is_dir() => {}
            Start::Resume => return Err(TrainError::NothingToResume { file: self.recipe() }),
        }
        let held = HeldFolder { lock: Some(FolderLock::take(&self.0)?), made: made.then_some(&self.0) };
        if start == Start::Fresh {
            // Another run may have begun and ended since the folder was looked at.
            self.check_free()?;
        }
        Ok(held)
    }

    /// Refuses a folder with files that a run would replace.
    ///
    /// The recipe is written last, so inputs and a checkpoint without one are left from a start that was cut short.
    pub(super) fn check_free(&self) -> Result<(), TrainError> {
        let model_config = self.encoder().with_extension("toml");
        for file in [self.recipe(), self.encoder(), model_config, self.weights(), self.log()] {
            if file.exists() {
                return Err(TrainError::Occupied { folder: self.0.clone(), file });
            }
        }
        Ok(())
    }

    /// Begins a run in a folder that has none and is there.
    pub(super) fn begin(
        &self,
        recipe: &Recipe,
        inputs: &Inputs,
        checkpoint: &Checkpoint,
    ) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(inputs).expect("inputs are digests and a name") + "\n";
        atomic::write(&self.inputs(), text.as_bytes())?;
        checkpoint.write(&self.checkpoint())?;
        atomic::write(&self.recipe(), recipe.to_toml().as_bytes())?;
        Ok(())
    }

    /// The recipe of the run that is in the folder.
    pub fn read_recipe(&self) -> Result<Recipe, TrainError> {
        let path = self.recipe();
        let text =
            fs::read_to_string(&path).map_err(|_| TrainError::NothingToResume { file: path.clone() })?;
        Ok(Recipe::from_toml(&path.display().to_string(), &text)?)
    }

    /// Refuses to go on with other pictures, weights or another backend than the run began with.
    pub(super) fn check_inputs(&self, wanted: &Inputs) -> Result<Inputs, TrainError> {
        let path = self.inputs();
        let text =
            fs::read_to_string(&path).map_err(|_| TrainError::NothingToResume { file: path.clone() })?;
        let found: Inputs =
            serde_json::from_str(&text).map_err(|source| TrainError::Inputs { file: path, source })?;
        let changed = |what, found: String, given: String| TrainError::Changed { what, found, given };
        if found.pictures != wanted.pictures {
            let (found, given) = (found.pictures.to_string(), wanted.pictures.to_string());
            let what =
                "the training pictures (what --held-out, --limit, --every and --skip-broken leave of them)";
            return Err(changed(what, found, given));
        }
        if wanted.weights.is_some() && found.weights != wanted.weights {
            let text =
                |weights: Option<Digest>| weights.map_or("none".to_owned(), |digest| digest.to_string());
            return Err(changed("the initial weights", text(found.weights), text(wanted.weights)));
        }
        if found.teacher != wanted.teacher {
            let text =
                |teacher: Option<Digest>| teacher.map_or("none".to_owned(), |digest| digest.to_string());
            return Err(changed("the teacher", text(found.teacher), text(wanted.teacher)));
        }
        if found.backend != wanted.backend {
            return Err(changed("the backend", found.backend.to_string(), wanted.backend.to_string()));
        }
        Ok(found)
    }
}
