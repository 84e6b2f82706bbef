//! `retrievalguard train`: labelled pictures in, an encoder out.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use retrievalguard::Sigma;
use retrievalguard_encoder::dataset::{NamedSplit, Record, Role};
use retrievalguard_train::backend::Backend;
use retrievalguard_train::network::Architecture;
use retrievalguard_train::recipe::{Preset, Recipe};
use retrievalguard_train::trainer::{RunFolder, Start, TrainReport, TrainRequest, train};

use crate::arguments::{DataArgs, EngineArgs};
use crate::progress::TrainingProgress;

/// Mebibytes of decoded pictures that are kept in memory unless asked otherwise.
const CACHE: u32 = 2048;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard train products/ --weights efficientnet_lite0.pth --sigma 0.25 --out runs/gdml\n  \
        retrievalguard train --resume --out runs/gdml products/"
)]
pub(crate) struct TrainArgs {
    /// Pictures with labels: a folder of folders, a CSV list, or a data set's folder
    #[arg(required_unless_present = "show_recipe")]
    pictures: Option<PathBuf>,
    /// Folder for the encoder, the checkpoint and the logs
    #[arg(long, value_name = "DIR", required_unless_present = "show_recipe")]
    out: Option<PathBuf>,
    /// Go on from the checkpoint in --out, with the recipe kept there
    #[arg(long)]
    resume: bool,
    /// Recipe to begin with: small, paper, lipschitz or distillation; small by default
    #[arg(long, help_heading = "Recipe")]
    preset: Option<Preset>,
    /// TOML file whose values replace the preset's
    #[arg(long, value_name = "FILE", help_heading = "Recipe")]
    recipe: Option<PathBuf>,
    /// Noise on the training pictures; without it, plain metric learning
    #[arg(long, allow_negative_numbers = true, help_heading = "Recipe")]
    sigma: Option<Sigma>,
    /// Backbone: resnet-50, resnet-18, efficientnet-lite0, -lite1 or -lite2, lipschitz or small
    #[arg(long, help_heading = "Recipe")]
    architecture: Option<Architecture>,
    /// Times the training set is seen
    #[arg(long, help_heading = "Recipe")]
    epochs: Option<u32>,
    /// Seed of initial weights, batches, views and noise
    #[arg(long, help_heading = "Recipe")]
    seed: Option<u64>,
    /// Any value of the recipe, as table.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Recipe")]
    set: Vec<String>,
    /// Print the complete recipe and do nothing
    #[arg(long, help_heading = "Recipe")]
    show_recipe: bool,
    /// Initial weights of the backbone: safetensors, or a PyTorch checkpoint
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// ONNX encoder that teaches, with its model config beside it; the initial weights by default, if the recipe distils
    #[arg(long, value_name = "MODEL")]
    teacher: Option<PathBuf>,
    /// Pictures of other classes to measure recall on; some classes are held out by default
    #[arg(long, value_name = "PICTURES")]
    held_out: Option<PathBuf>,
    /// Part of the held-out data set, if it is not --split
    #[arg(long, value_name = "SPLIT", requires = "held_out")]
    held_out_split: Option<NamedSplit>,
    /// Backend: cpu, or libtorch, cuda or wgpu if this program was built with it
    #[arg(long, default_value = "cpu")]
    backend: Backend,
    /// Mebibytes of decoded pictures to keep in memory
    #[arg(long, default_value_t = CACHE, value_name = "MIB")]
    cache: u32,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    data: DataArgs,
}

pub(super) fn run(arguments: &TrainArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if arguments.show_recipe {
        write!(out, "{}", arguments.assemble()?.to_toml())?;
        return Ok(());
    }
    let (Some(pictures), Some(folder)) = (&arguments.pictures, &arguments.out) else {
        bail!("nothing to train on, wanted pictures and --out");
    };
    let threads = arguments.engine.threads();
    let records = arguments.data.readable(&arguments.data.read(pictures, Role::Unassigned)?.chosen, threads);
    let held_out = arguments.held_out.as_deref().map(|path| arguments.read_others(path)).transpose()?;
    run_in(arguments, folder, &records, held_out.as_deref(), out)
}

fn run_in(
    arguments: &TrainArgs,
    folder: &Path,
    records: &[Record],
    held_out: Option<&[Record]>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let run = RunFolder::new(folder);
    let (recipe, start) = if arguments.resume {
        if arguments.changes_recipe() {
            bail!(
                "a run is resumed with the recipe in `{}`, wanted --resume without flags that change it",
                run.recipe().display()
            );
        }
        (run.read_recipe()?, Start::Resume)
    } else {
        (arguments.assemble()?, Start::Fresh)
    };
    let inputs = TrainInputs {
        held_out,
        weights: arguments.weights.as_deref(),
        teacher: arguments.teacher.as_deref(),
        cache: arguments.cache,
    };
    let report = train_in(&recipe, records, inputs, &run, start, arguments.backend, &arguments.engine)?;
    writeln!(out, "{}: trained for {} steps", run.encoder().display(), report.steps)?;
    if let Some(evaluation) = report.evaluation {
        writeln!(out, "{evaluation}")?;
    }
    Ok(())
}

/// What training may be given beside its pictures.
struct TrainInputs<'a> {
    held_out: Option<&'a [Record]>,
    weights: Option<&'a Path>,
    teacher: Option<&'a Path>,
    /// Mebibytes of decoded pictures.
    cache: u32,
}

/// Trains on pictures alone, on the CPU.
pub(super) fn train_on(
    recipe: &Recipe,
    records: &[Record],
    folder: &Path,
    start: Start,
    engine: &EngineArgs,
) -> anyhow::Result<TrainReport> {
    let inputs = TrainInputs { held_out: None, weights: None, teacher: None, cache: CACHE };
    train_in(recipe, records, inputs, &RunFolder::new(folder), start, Backend::Cpu, engine)
}

fn train_in(
    recipe: &Recipe,
    records: &[Record],
    inputs: TrainInputs<'_>,
    run: &RunFolder,
    start: Start,
    backend: Backend,
    engine: &EngineArgs,
) -> anyhow::Result<TrainReport> {
    let request = TrainRequest {
        recipe,
        records,
        held_out: inputs.held_out,
        weights: inputs.weights,
        teacher: inputs.teacher,
        backend,
        engine: &engine.options(),
        threads: engine.threads(),
        batch: engine.batch,
        cache: u64::from(inputs.cache) << 20,
    };
    let progress = TrainingProgress::new();
    let result = train(&request, run, start, &progress);
    progress.finish();
    Ok(result?)
}

impl TrainArgs {
    fn assemble(&self) -> anyhow::Result<Recipe> {
        let mut changes = self.set.clone();
        let mut change = |key: &str, value: Option<String>| {
            changes.extend(value.map(|value| format!("{key}={value}")));
        };
        change("noise.sigma", self.sigma.map(|sigma| format!("{:?}", sigma.get())));
        change("network.architecture", self.architecture.map(|name| name.to_string()));
        change("schedule.epochs", self.epochs.map(|epochs| epochs.to_string()));
        change("seed", self.seed.map(|seed| seed.to_string()));
        Ok(Recipe::assemble(self.preset.unwrap_or_default(), self.recipe.as_deref(), &changes)?)
    }

    fn changes_recipe(&self) -> bool {
        let Self { preset, recipe, sigma, architecture, epochs, seed, set, .. } = self;
        preset.is_some()
            || recipe.is_some()
            || sigma.is_some()
            || architecture.is_some()
            || epochs.is_some()
            || seed.is_some()
            || !set.is_empty()
    }

    /// Held-out pictures: all of them, whatever --limit and --every say of the training set.
    fn read_others(&self, path: &Path) -> anyhow::Result<Vec<Record>> {
        let records = self.data.read_split(path, Role::Unassigned, self.held_out_split)?;
        Ok(self.data.readable(&records.all, self.engine.threads()))
    }
}
