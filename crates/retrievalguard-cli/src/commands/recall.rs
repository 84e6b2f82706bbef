//! `retrievalguard recall`: how well an encoder retrieves, before anything is certified.

use std::io::Write;
use std::path::PathBuf;

use retrievalguard::{Alpha, SampleCount, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::recall::{RecallTarget, Smoothing, recall_at_1};
use serde_json::json;

use crate::arguments::{DataArgs, ModelArgs, tell_skipped};
use crate::progress::Progress;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard recall products/ --model encoder.onnx --sigma 0.25"
)]
pub(crate) struct RecallArgs {
    /// Pictures with labels: a folder of folders, a CSV list, or a data set's folder
    pictures: PathBuf,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]
    #[arg(long, allow_negative_numbers = true)]
    sigma: Sigma,
    /// Noisy copies averaged per picture
    #[arg(long, default_value = "8")]
    samples: SampleCount,
    /// Seed of the noise
    #[arg(long, default_value = "0")]
    seed: Seed,
    /// Also the share of pictures certified at this radius by the pairwise retriever (by the shares of its noisy copies,
    /// against the others' means; for choosing encoders, while `certify` is for results)
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    radius: Option<TargetRadius>,
    /// Probability that one of these decisions is wrong
    #[arg(long, default_value = "0.01", requires = "radius")]
    alpha: Alpha,
    /// Most noisy copies for one of these decisions
    #[arg(long, default_value = "200", requires = "radius")]
    cap: SampleCount,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    data: DataArgs,
}

pub(super) fn run(arguments: &RecallArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let embedder = arguments.model.open()?;
    let records = arguments.data.read(&arguments.pictures, Role::Gallery)?.chosen;
    let samples = arguments.samples.get();
    let smoothing = Smoothing {
        sigma: arguments.sigma,
        samples,
        seed: arguments.seed,
        excess: arguments.model.excess(),
        batch: arguments.model.engine.batch,
        target: arguments.radius.map(|radius| RecallTarget {
            radius,
            alpha: arguments.alpha,
            cap: arguments.cap,
        }),
    };
    let progress = Progress::new("embedding");
    let (broken, threads) = (arguments.data.broken(), arguments.model.engine.threads());
    let result = recall_at_1(&embedder, &records, smoothing, broken, threads, &progress);
    progress.finish();
    let (recall, skipped) = result?;
    tell_skipped(&skipped);
    if arguments.json {
        let value = json!({ "recall": recall, "sigma": arguments.sigma, "samples": samples });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        writeln!(
            out,
            "{} pictures of {} classes, each asking for its label among the others",
            recall.pictures, recall.classes
        )?;
        writeln!(out, "recall@1 clean     {:.4}", recall.clean)?;
        writeln!(
            out,
            "recall@1 smoothed  {:.4}  (sigma {}, {samples} noisy copies of each)",
            recall.smoothed, arguments.sigma
        )?;
        if let (Some(certified), Some(radius)) = (recall.certified, arguments.radius) {
            writeln!(
                out,
                "certified          {certified:.4}  (pairwise, radius {radius}, alpha {})",
                arguments.alpha
            )?;
        }
    }
    Ok(())
}
