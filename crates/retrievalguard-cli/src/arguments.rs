//! Flags that several commands share.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use retrievalguard::certificate::{CertificateName, Retriever};
use retrievalguard::{Components, Excess};
use retrievalguard_encoder::dataset::{Boxes, BrokenPictures, Format, NamedSplit, Role, Selected, Selection};
#[cfg(feature = "train")]
use retrievalguard_encoder::dataset::{Record, RecordSet};
use retrievalguard_encoder::engine::{
    Engine, EngineOptions, MOST_BATCH, MOST_THREADS, OnnxEmbedder, Provider,
};
use retrievalguard_encoder::model_config::ModelConfig;
#[cfg(feature = "train")]
use retrievalguard_encoder::picture::PictureLimits;
use retrievalguard_encoder::pipeline::OptionsError;
#[cfg(feature = "train")]
use retrievalguard_encoder::work::{Stopped, Unobserved, WorkQueue};

use crate::progress::tell;

/// A whole number from 1 to `MOST`, refused before anything is started or reserved for it.
pub(crate) fn up_to<const MOST: usize>(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|number: &NonZeroUsize| number.get() <= MOST);
    number.ok_or_else(|| format!("wanted a whole number from 1 to {MOST}"))
}

/// Which encoder runs, and on what.
#[derive(Args, Debug)]
pub(crate) struct EngineArgs {
    /// Engine: onnxruntime, rten or double; onnxruntime if it is found, by default, and double without noise
    #[arg(long, help_heading = "Engine")]
    pub(crate) engine: Option<Engine>,
    /// onnxruntime's library, or the folder that holds it
    #[arg(long, value_name = "PATH", help_heading = "Engine")]
    pub(crate) onnxruntime: Option<PathBuf>,
    /// Where onnxruntime computes: cpu, cuda, tensorrt, openvino, coreml (all but cpu untested)
    #[arg(long, default_value = "cpu", help_heading = "Engine")]
    pub(crate) provider: Provider,
    /// Threads, each with its own session; one per core by default. Results do not depend on it
    #[arg(long, value_parser = up_to::<MOST_THREADS>, help_heading = "Engine")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Noisy copies per call of the encoder. Results do not depend on it
    #[arg(long, default_value = "64", value_parser = up_to::<MOST_BATCH>, help_heading = "Engine")]
    pub(crate) batch: NonZeroUsize,
}

impl EngineArgs {
    pub(crate) fn threads(&self) -> NonZeroUsize {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.threads.unwrap_or_else(cores)
    }

    pub(crate) fn options(&self) -> EngineOptions {
        EngineOptions {
            engine: self.engine,
            library: self.onnxruntime.clone(),
            provider: self.provider,
            sessions: Some(self.threads()),
            ..EngineOptions::default()
        }
    }

    /// Opens a model that is to be certified without noise: in double precision, whoever would run it otherwise.
    pub(crate) fn open_double(
        &self,
        model: &Path,
        model_config: Option<&Path>,
        why: &str,
    ) -> anyhow::Result<OnnxEmbedder> {
        self.open_double_telling(model, model_config, why, |note| tell(format_args!("note: {note}")))
    }

    /// The same; `tell` hears what a person should know.
    fn open_double_telling(
        &self,
        model: &Path,
        model_config: Option<&Path>,
        why: &str,
        tell: impl Fn(&str),
    ) -> anyhow::Result<OnnxEmbedder> {
        let other = self.engine.is_some_and(|engine| engine != Engine::Double);
        let elsewhere = self.onnxruntime.is_some() || self.provider != Provider::Cpu;
        for (flag, given) in [("--engine", other), ("--onnxruntime or --provider", elsewhere)] {
            if given {
                bail!(
                    "{flag} chooses who computes in single precision, and {why}; wanted the engine double or none"
                );
            }
        }
        Self::open_with(model, model_config, &self.double(), tell)
    }

    /// Double precision, whoever would compute otherwise.
    pub(crate) fn double(&self) -> EngineOptions {
        let sessions = Some(self.threads());
        EngineOptions { engine: Some(Engine::Double), sessions, ..EngineOptions::default() }
    }

    /// Opens the model with its config and tells once what a person should know.
    pub(crate) fn open(&self, model: &Path, model_config: Option<&Path>) -> anyhow::Result<OnnxEmbedder> {
        self.open_telling(model, model_config, |note| tell(format_args!("note: {note}")))
    }

    /// Opens the model with its config; `tell` hears what a person should know.
    pub(crate) fn open_telling(
        &self,
        model: &Path,
        model_config: Option<&Path>,
        tell: impl Fn(&str),
    ) -> anyhow::Result<OnnxEmbedder> {
        Self::open_with(model, model_config, &self.options(), tell)
    }

    fn open_with(
        model: &Path,
        model_config: Option<&Path>,
        options: &EngineOptions,
        tell: impl Fn(&str),
    ) -> anyhow::Result<OnnxEmbedder> {
        // Asked first: whoever misspells the model does not want to hear of its config.
        let found =
            fs::metadata(model).with_context(|| format!("model `{}` cannot be read", model.display()))?;
        if !found.is_file() {
            bail!("model `{}` is not a file, wanted an ONNX file", model.display());
        }
        let config = match model_config {
            Some(path) => ModelConfig::read(path)?,
            None => ModelConfig::for_model(model)?,
        };
        // Its errors begin with what is wrong with the model, and name it.
        let embedder = OnnxEmbedder::open(model, config, options)?;
        for notice in embedder.notices() {
            tell(notice);
        }
        if embedder.facts().quantised {
            tell("the model is quantised; certificates are about the quantised network");
        }
        Ok(embedder)
    }
}

/// The encoder's files.
#[derive(Args, Debug)]
pub(crate) struct ModelArgs {
    /// Encoder in ONNX
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Model config of the encoder, if it is not beside it as encoder.toml or config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) contract: Option<PathBuf>,
    /// Project embeddings above the norm bound instead of refusing them
    #[arg(long)]
    pub(crate) project: bool,
    /// Set negative components of embeddings to zero, in gallery and queries alike: another encoder, unless it has none
    #[arg(long)]
    pub(crate) non_negative: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// What the flag says of an encoder's embeddings.
pub(crate) fn components(non_negative: bool) -> Components {
    if non_negative { Components::NonNegative } else { Components::Any }
}

impl ModelArgs {
    pub(crate) fn open(&self) -> anyhow::Result<OnnxEmbedder> {
        let embedder = self.engine.open(&self.model, self.contract.as_deref())?;
        Ok(embedder.with_components(components(self.non_negative)))
    }

    /// Opens a model that is to be certified without noise.
    pub(crate) fn open_double(&self, why: &str) -> anyhow::Result<OnnxEmbedder> {
        self.open_double_telling(why, |note| tell(format_args!("note: {note}")))
    }

    /// Opens a model that is to be certified without noise; `tell` hears what a person should know.
    pub(crate) fn open_double_telling(&self, why: &str, tell: impl Fn(&str)) -> anyhow::Result<OnnxEmbedder> {
        refuse_noise(why, &[("--project", self.project), ("--non-negative", self.non_negative)])?;
        self.engine.open_double_telling(&self.model, self.contract.as_deref(), why, tell)
    }

    pub(crate) fn excess(&self) -> Excess {
        if self.project { Excess::Project } else { Excess::Refuse }
    }
}

/// Refuses flags that say nothing where there is no noise; `given` says of each whether it was.
pub(crate) fn refuse_noise(why: &str, given: &[(&str, bool)]) -> anyhow::Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => bail!("{flag} says nothing without noise, and {why}; wanted no {flag}"),
        None => Ok(()),
    }
}

/// Options that were refused, in the words of this command line.
pub(crate) fn in_flags(error: OptionsError) -> anyhow::Error {
    anyhow::Error::msg(error.as_flags())
}

/// How a data set is read.
#[derive(Args, Debug)]
pub(crate) struct DataArgs {
    /// Layout: auto, image-folder, csv, cub, cars, sop or idx
    #[arg(long, default_value = "auto", help_heading = "Data")]
    format: Format,
    /// Part of the data set: train, validation or test as the data set marks them; or by name: cub/train, cub/test,
    /// cars/train, cars/test, sop/train, sop/test or sop/paper
    #[arg(long, help_heading = "Data")]
    split: Option<NamedSplit>,
    /// Only the first N pictures
    #[arg(long, help_heading = "Data")]
    limit: Option<NonZeroUsize>,
    /// Only every N-th picture, before --limit
    #[arg(long, default_value = "1", help_heading = "Data")]
    every: NonZeroUsize,
    /// Cut the data set's boxes out of the pictures, or never do; lists are cut, CARS196 is not, by default
    #[arg(long, value_enum, default_value = "usual", help_heading = "Data")]
    boxes: BoxesArg,
    /// Skip broken pictures, with a list of them, instead of stopping
    #[arg(long, help_heading = "Data")]
    skip_broken: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BoxesArg {
    Usual,
    Crop,
    Ignore,
}

impl DataArgs {
    /// Reads the records that may serve in `role`, and chooses among them by --every and --limit.
    pub(crate) fn read(&self, path: &Path, role: Role) -> anyhow::Result<Selected> {
        self.read_split(path, role, None)
    }

    /// The same of a part of the data set, that of --split unless given.
    pub(crate) fn read_split(
        &self,
        path: &Path,
        role: Role,
        split: Option<NamedSplit>,
    ) -> anyhow::Result<Selected> {
        let selection = Selection {
            format: self.format,
            boxes: self.boxes(),
            split: split.or(self.split),
            every: self.every,
            limit: self.limit,
        };
        Ok(selection.read(path, role, |note| tell(format_args!("note: {note}")))?)
    }

    /// Which boxes are cut out.
    pub(crate) fn boxes(&self) -> Boxes {
        match self.boxes {
            BoxesArg::Usual => Boxes::Usual,
            BoxesArg::Crop => Boxes::Crop,
            BoxesArg::Ignore => Boxes::Ignore,
        }
    }

    /// The layout that was asked for.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The records whose pictures can be read, if broken ones are to be left out; otherwise all.
    #[cfg(feature = "train")]
    pub(crate) fn readable(&self, records: &RecordSet, threads: NonZeroUsize) -> Vec<Record> {
        if !self.skip_broken {
            return records.iter().cloned().collect();
        }
        let reason = |place: usize| {
            let read = records[place].read(&PictureLimits::default());
            Ok::<_, Stopped>(read.err().map(|error| error.to_string()))
        };
        let queue = WorkQueue { pieces: records.len(), before: 0, threads, observer: &Unobserved };
        let reasons = queue.collect(reason).expect("nobody stops it");
        let (mut skipped, mut kept) = (Vec::new(), Vec::new());
        for (record, reason) in records.iter().zip(reasons) {
            match reason {
                Some(reason) => skipped.push((record.identity.clone(), reason)),
                None => kept.push(record.clone()),
            }
        }
        tell_skipped(&skipped);
        kept
    }

    pub(crate) fn broken(&self) -> BrokenPictures {
        if self.skip_broken { BrokenPictures::Skip } else { BrokenPictures::Fatal }
    }
}

/// `half-space,paper` or `all`.
#[derive(Clone, Debug)]
pub(crate) enum Certificates {
    /// Every certificate that the kind of run has.
    All,
    /// These.
    Named(Vec<CertificateName>),
}

impl std::str::FromStr for Certificates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let names: Result<Vec<CertificateName>, _> =
            text.split(',').map(|name| name.trim().parse::<CertificateName>()).collect();
        names.map(Self::Named).map_err(|error| format!("{error}, or all"))
    }
}

/// Names what was left out.
pub(crate) fn tell_skipped(skipped: &[(String, String)]) {
    for (identity, reason) in skipped {
        tell(format_args!("skipped: {identity}: {reason}"));
    }
    if !skipped.is_empty() {
        tell(format_args!("{} broken pictures were skipped", skipped.len()));
    }
}

/// Which retriever answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RetrieverArg {
    /// Search with the mean of the noisy embeddings
    Mean,
    /// Let the noisy embeddings vote
    Vote,
    /// Compare the answer with every other label by itself: tens of samples decide
    Pairwise,
    /// Search with the embedding itself: for encoders with a Lipschitz bound and galleries without noise
    Plain,
}

impl From<RetrieverArg> for Retriever {
    fn from(word: RetrieverArg) -> Self {
        match word {
            RetrieverArg::Mean => Self::Mean,
            RetrieverArg::Vote => Self::Vote,
            RetrieverArg::Pairwise => Self::Pairwise,
            RetrieverArg::Plain => Self::Plain,
        }
    }
}
