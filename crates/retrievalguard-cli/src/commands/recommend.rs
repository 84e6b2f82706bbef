//! `retrievalguard recommend`: which noise level, which retriever, and what a decision will cost.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::bail;
use retrievalguard::storage::atomic;
use retrievalguard::{Alpha, SampleCount, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::recommend::{RecommendOptions, Recommendation, Setting, recommend};
use retrievalguard_report::recommendation::recommendation_figure;

use super::{PNG_SCALE, quoted};
use crate::arguments::{DataArgs, ModelArgs, tell_skipped};
use crate::progress::{Progress, tell};

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard recommend products/ --model encoder.onnx\n  \
        retrievalguard recommend products/ --model encoder.onnx --sigma 0.05,0.1,0.2 --radius 0.1 --figure choice.svg\n\n\
        Nothing is certified here. Certified recall is an estimate from few noisy copies, with the interval that the\n\
        number of queries leaves; its noise is used by no certificate."
)]
pub(crate) struct RecommendArgs {
    /// Pictures with labels: a folder of folders, a CSV list, or a data set's folder
    pictures: PathBuf,
    /// Noise levels to try, in pixels scaled to [0, 1]
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.25,0.5", value_name = "SIGMA,…")]
    sigma: Vec<Sigma>,
    /// The radius that matters to you; by default the average certified radius decides
    #[arg(long)]
    radius: Option<TargetRadius>,
    /// How much Recall@1 of the plain encoder may be lost
    #[arg(long, default_value_t = 0.05, allow_negative_numbers = true)]
    recall_loss: f64,
    /// Pictures that are asked for, spread over all; the others are searched in
    #[arg(long, default_value = "100")]
    queries: NonZeroUsize,
    /// Noisy copies of each query
    #[arg(long, default_value = "100")]
    copies: SampleCount,
    /// Noisy copies behind each stored vector
    #[arg(long, default_value = "8")]
    gallery_copies: SampleCount,
    /// Samples of the certificates that are estimated
    #[arg(long, default_value = "1000")]
    samples: SampleCount,
    /// Failure probability of the certificates that are estimated
    #[arg(long, default_value = "0.01")]
    alpha: Alpha,
    /// Seed of the noise
    #[arg(long, default_value = "0")]
    seed: Seed,
    /// Write a figure: a file that ends in .svg or .png
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    data: DataArgs,
}

pub(super) fn run(arguments: &RecommendArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let kind = arguments.figure.as_deref().map(figure_kind).transpose()?;
    let options = RecommendOptions {
        sigmas: arguments.sigma.clone(),
        radius: arguments.radius,
        recall_loss: arguments.recall_loss,
        queries: arguments.queries,
        copies: arguments.copies,
        gallery_copies: arguments.gallery_copies,
        planned: arguments.samples,
        alpha: arguments.alpha,
        seed: arguments.seed,
        excess: arguments.model.excess(),
        broken: arguments.data.broken(),
        batch: arguments.model.engine.batch,
        threads: arguments.model.engine.threads(),
    }
    .check()?;
    let embedder = arguments.model.open()?;
    let records = arguments.data.read(&arguments.pictures, Role::Gallery)?.chosen;
    let queries = options.queries.get().min(records.len()) as u64;
    let each = u64::from(options.gallery_copies.get()) * records.len() as u64;
    let passes = records.len() as u64
        + options.sigmas.len() as u64 * (each + queries * u64::from(options.copies.get()));
    tell(format_args!(
        "{} pictures, {queries} of them queries, {} noise levels: {passes} encoder passes",
        records.len(),
        options.sigmas.len()
    ));
    let progress = Progress::new("trying");
    let result = recommend(&embedder, &records, &options, &progress);
    progress.finish();
    let (found, skipped) = result?;
    tell_skipped(&skipped);
    if let (Some(path), Some(kind)) = (&arguments.figure, kind) {
        let note = format!(
            "retrievalguard recommend, {} queries among {} pictures, {} noisy copies of each query, for {} samples",
            found.queries, found.pictures, arguments.copies, arguments.samples
        );
        let figure = recommendation_figure(&found, &note);
        match kind {
            FigureFormat::Svg => atomic::write(path, figure.svg().as_bytes())?,
            FigureFormat::Png => atomic::write(path, &figure.png(PNG_SCALE)?)?,
        }
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?;
    } else {
        print(&found, arguments, out)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum FigureFormat {
    Svg,
    Png,
}

fn figure_kind(path: &Path) -> anyhow::Result<FigureFormat> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(FigureFormat::Svg),
        Some("png") => Ok(FigureFormat::Png),
        _ => bail!("--figure is `{}`, wanted a file that ends in .svg or .png", path.display()),
    }
}

fn print(found: &Recommendation, arguments: &RecommendArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let Recommendation { pictures, classes, queries, plain_recall, passes_per_second, .. } = found;
    writeln!(
        out,
        "{queries} queries among {pictures} pictures of {classes} classes; the plain encoder finds the right class for {plain_recall:.3}"
    )?;
    writeln!(
        out,
        "estimates for {} samples at alpha {}; {passes_per_second:.0} encoder passes a second\n",
        arguments.samples, arguments.alpha
    )?;
    let radii: Vec<f64> = found
        .settings
        .first()
        .map(|first| first.certified.iter().map(|at| at.radius).collect())
        .unwrap_or_default();
    write!(out, "{:<7} {:<9} {:>8} {:>12}", "sigma", "retriever", "recall@1", "avg. radius")?;
    for radius in &radii {
        write!(out, " {:>18}", format!("certified at {radius:.3}"))?;
    }
    writeln!(out, " {:>8} {:>9}", "passes", "seconds")?;
    for (place, setting) in found.settings.iter().enumerate() {
        let Setting { sigma, retriever, recall, average_radius, certified, passes, seconds, .. } = setting;
        write!(out, "{:<7} {retriever:<9} {recall:>8.3} {average_radius:>12.3}", sigma.to_string())?;
        for at in certified {
            let text = format!("{:.2} ({:.2}–{:.2})", at.estimate, at.lower, at.upper);
            write!(out, " {text:>18}")?;
        }
        let mark = if place == found.recommended { "  <" } else { "" };
        writeln!(out, " {passes:>8} {seconds:>9.2}{mark}")?;
    }
    writeln!(
        out,
        "\nEvery number but the plain one is an estimate; the intervals are about which queries were asked. Passes decide\n\
         one query in the median: for mean all samples and their pilot, otherwise {}.",
        match arguments.radius {
            Some(radius) => format!("whether the radius {radius} holds"),
            None => "whether a radius of sigma holds".to_owned(),
        }
    )?;
    let choice = found.choice();
    writeln!(
        out,
        "\nrecommended: sigma {}, retriever {}\nwhy: {}\n",
        choice.sigma, choice.retriever, found.reason
    )?;
    let (pictures, model) = (quoted(&arguments.pictures), quoted(&arguments.model.model));
    writeln!(
        out,
        "retrievalguard index {pictures} --model {model} --sigma {} --gallery my.gallery",
        choice.sigma
    )?;
    writeln!(
        out,
        "retrievalguard certify QUERIES --gallery my.gallery --model {model} --certificate {} --samples {} --out run",
        choice.retriever.certificate(),
        arguments.samples
    )?;
    Ok(())
}
