//! `retrievalguard experiment`: a sweep in, tidy results and a figure out.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use retrievalguard::certificate::Radius;
use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard_encoder::dataset::{DatasetOptions, Format, RecordSet, Role, open};
use retrievalguard_encoder::experiment::{
    ExperimentConfig, Results, SweepContext, SweepData, SweepError, sweep,
};
use retrievalguard_encoder::pipeline::PipelineError;
use retrievalguard_encoder::synthetic::{Part, Subject, SyntheticDataset};
use retrievalguard_report::experiment::{figure, lipschitz_curves, lipschitz_figure};
use serde_json::json;

use super::demo::SYNTHETIC_SEED;
use super::{command_note, write_figure};
use crate::arguments::{DataArgs, EngineArgs};
use crate::progress::{Progress, tell};

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard experiment experiments/figure-2.toml --quick\n  \
        retrievalguard experiment experiments/figure-2.toml --data birds/ --encoders runs/birds --queries 100\n\n\
        Noisy embeddings are kept in --cache; a later run with other sample sizes, failure probabilities or\n\
        certificates draws none of them again. The same command continues an interrupted run."
)]
pub(crate) struct ExperimentArgs {
    /// TOML file of the experiment
    file: PathBuf,
    /// Folder for the results and the figure; the file's name by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder for pictures, galleries and noisy embeddings, shared by all experiments
    #[arg(long, value_name = "DIR", default_value = "experiment-cache")]
    cache: PathBuf,
    /// Fewer queries and samples, as the file says
    #[arg(long)]
    quick: bool,
    /// Real pictures instead of synthetic ones, each searched for among the others
    #[arg(long, value_name = "PICTURES")]
    data: Option<PathBuf>,
    /// Folder of the encoders instead of the file's
    #[arg(long, value_name = "DIR")]
    encoders: Option<PathBuf>,
    /// How many queries instead of the file's number
    #[arg(long)]
    queries: Option<NonZeroUsize>,
    #[command(flatten)]
    reading: DataArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(arguments: &ExperimentArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let config = ExperimentConfig::read(&arguments.file)?;
    let config = if arguments.quick { config.quickened() } else { config };
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => arguments.file.file_stem().map(PathBuf::from).context("the experiment has no name")?,
    };
    std::fs::create_dir_all(&folder).map_err(|error| WriteError::new(&folder, error))?;
    let note = note(arguments);
    let drawing = match config.lipschitz {
        Some(closed_form) => {
            let mut text = "distance,bound,linear_bound\n".to_owned();
            for [distance, bound, linear] in lipschitz_curves(closed_form) {
                text.push_str(&format!("{distance},{bound},{linear}\n"));
            }
            write(&folder.join("curves.csv"), text.as_bytes())?;
            lipschitz_figure(&config.title, closed_form, &note)
        }
        None => {
            let results = measure(arguments, &config)?;
            let description = json!({
                "tool": env!("CARGO_PKG_VERSION"),
                "command": note,
                "experiment": std::fs::read_to_string(&arguments.file)?,
            });
            let metadata = [("retrievalguard.experiment".to_owned(), description.to_string())];
            results.write_parquet(&folder.join("results.parquet"), &metadata)?;
            results.write_summary(&folder.join("summary.csv"))?;
            print(&results, out)?;
            let wanted = config.figure.as_ref().context("the experiment has no [figure]")?;
            figure(&config.title, wanted, &results, &note)?
        }
    };
    write_figure(&drawing, &folder.join("figure.svg"))?;
    writeln!(out, "{}", folder.join("figure.svg").display())?;
    if config.lipschitz.is_none() {
        tell(format_args!(
            "note: certify a setting that you choose by these results with another --seed: the noise of the sweep's own, \
             which is certify's default unless the file names one, was looked at"
        ));
    }
    Ok(())
}

/// Draws what is not there yet and certifies everything.
fn measure(arguments: &ExperimentArgs, config: &ExperimentConfig) -> anyhow::Result<Results> {
    let data = data(arguments, config)?;
    let beside = arguments.file.parent().unwrap_or(Path::new("")).join(&config.encoders);
    let encoders = arguments.encoders.as_deref().unwrap_or(&beside);
    if let Some(sweep) = config.sweep() {
        let points: usize = sweep.sigma.iter().map(|&sigma| config.encoders_at(sigma).count()).sum();
        let most = sweep.samples.iter().map(|count| u64::from(count.get())).max().unwrap_or(0);
        let each = most + u64::from(sweep.pilot.get());
        let per_gallery = u64::from(sweep.gallery_samples.get()) * data.gallery.len() as u64;
        let calls = points as u64 * (each * data.queries.len() as u64 + per_gallery);
        tell(format_args!(
            "plan: {points} encoders and noise levels, {} queries, {} items; at most {calls} encoder calls",
            data.queries.len(),
            data.gallery.len()
        ));
    }
    let options = arguments.engine.options();
    let context = SweepContext {
        folder: &arguments.cache,
        engine: &options,
        threads: arguments.engine.threads(),
        batch: arguments.engine.batch,
    };
    let progress = Progress::new("measuring");
    let results = sweep(config, encoders, &data, &context, &progress);
    progress.finish();
    results.map_err(|error| {
        let damaged = matches!(error, SweepError::Pipeline(PipelineError::Cache(_)));
        let error = anyhow::Error::from(error);
        if !damaged {
            return error;
        }
        error.context(format!("the cache `{}` is damaged; it may be deleted", arguments.cache.display()))
    })
}

/// The pictures: synthetic ones, or those of --data.
fn data(arguments: &ExperimentArgs, config: &ExperimentConfig) -> anyhow::Result<SweepData> {
    let wanted = arguments.queries.map(NonZeroUsize::get);
    if let Some(path) = &arguments.data {
        let gallery = arguments.reading.read(path, Role::Query)?.chosen;
        let count = wanted.or(config.data.as_ref().map(|data| data.queries)).unwrap_or(gallery.len());
        let queries = gallery.spread(count);
        return Ok(SweepData { gallery, queries, leave_one_out: true });
    }
    let Some(data) = &config.data else {
        bail!("experiment `{}` has no [data], wanted --data", arguments.file.display())
    };
    let subject: Subject = data.catalogue.parse()?;
    let folder = arguments.cache.join("pictures").join(subject.as_str());
    let part = |part: Part| -> anyhow::Result<RecordSet> {
        let progress = Progress::new("drawing");
        let dataset = SyntheticDataset::new(SYNTHETIC_SEED).of(subject);
        let written = dataset.write(&folder, part, arguments.engine.threads(), &progress);
        progress.finish();
        written?;
        Ok(open(&folder.join(part.name()), Format::ImageFolder, DatasetOptions::default())?.records.into())
    };
    let queries = part(Part::Queries)?.spread(wanted.unwrap_or(data.queries));
    Ok(SweepData { gallery: part(Part::Gallery)?, queries, leave_one_out: false })
}

/// The command that makes the figure again, the program's version, and the commit whose files it used.
fn note(arguments: &ExperimentArgs) -> String {
    let command = command_note();
    match commit(&arguments.file) {
        Some(commit) => format!("{command}, commit {commit}"),
        None => command,
    }
}

/// The commit that a file is in, if any.
fn commit(file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(folder).args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    git(&["ls-files", "--error-unmatch", file.file_name()?.to_str()?])?;
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { format!("{commit} with changes") } else { commit })
}

/// One line per setting.
fn print(results: &Results, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:<12} {:>4} {:>6} {:>8} {:>7}  {:<16} {:>7} {:>9} {:>8} {:>8}",
        "encoder",
        "k",
        "sigma",
        "samples",
        "alpha",
        "certificate",
        "recall",
        "certified",
        "rejected",
        "radius"
    )?;
    for (setting, summary) in results.settings.iter().zip(results.summaries()?) {
        writeln!(
            out,
            "{:<12} {:>4} {:>6} {:>8} {:>7}  {:<16} {:>7.4} {:>9.4} {:>8.4} {:>8}",
            setting.encoder,
            setting.dimension,
            setting.sigma.to_string(),
            setting.samples,
            setting.alpha.to_string(),
            setting.certificate,
            summary.recall.share,
            summary.certified.share,
            summary.rejected.share,
            Radius::Finite(summary.average_finite_radius).to_string()
        )?;
    }
    Ok(())
}
