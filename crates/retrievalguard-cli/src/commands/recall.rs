//! `retrievalguard recall`: how well an encoder retrieves, before anything is certified, and how often another search answers as
//! exact search does.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use retrievalguard::evaluation::Share;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Alpha, SampleCount, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::agreement::{Agreement, embed_queries, read_answers};
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::pipeline::check_gallery;
use retrievalguard_encoder::recall::{RecallTarget, Smoothing, recall_at_1};
use serde_json::json;

use super::certify::with_config_difference;
use crate::arguments::{DataArgs, ModelArgs, tell_skipped};
use crate::progress::Progress;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples: retrievalguard recall products/ --model encoder.onnx --sigma 0.25\n\
        \x20         retrievalguard recall queries/ --model encoder.onnx --gallery products.gallery --answers answers.csv"
)]
pub(crate) struct RecallArgs {
    /// Pictures with labels: a folder of folders, a CSV list, or a data set's folder
    pictures: PathBuf,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]; with --answers, queries are clean without it
    #[arg(long, allow_negative_numbers = true, required_unless_present = "answers")]
    sigma: Option<Sigma>,
    /// What another search, such as an approximate index, answered to the same pictures: a CSV table `identity,answer` with the
    /// identities of queries and of the gallery's items. Says how often exact search over the gallery answers alike
    #[arg(long, value_name = "FILE", requires = "gallery")]
    answers: Option<PathBuf>,
    /// Gallery that both searched in, for --answers
    #[arg(long, value_name = "DIR", requires = "answers")]
    gallery: Option<PathBuf>,
    /// Noisy copies averaged per picture
    #[arg(long, default_value = "8")]
    samples: SampleCount,
    /// Seed of the noise
    #[arg(long, default_value = "0")]
    seed: Seed,
    /// Also the share of pictures certified at this radius by the pairwise retriever (by the shares of its noisy copies,
    /// against the others' means; for choosing encoders, while `certify` is for results)
    #[arg(long, value_name = "R", allow_negative_numbers = true, conflicts_with = "answers")]
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

impl RecallArgs {
    fn smoothing(&self, sigma: Sigma) -> Smoothing {
        Smoothing {
            sigma,
            samples: self.samples.get(),
            seed: self.seed,
            excess: self.model.excess(),
            batch: self.model.engine.batch,
            target: self.radius.map(|radius| RecallTarget { radius, alpha: self.alpha, cap: self.cap }),
        }
    }
}

pub(super) fn run(arguments: &RecallArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if let (Some(answers), Some(gallery)) = (&arguments.answers, &arguments.gallery) {
        return agreement(arguments, answers, gallery, out);
    }
    let Some(sigma) = arguments.sigma else {
        bail!("there is neither --sigma nor --answers, wanted one of them")
    };
    let embedder = arguments.model.open()?;
    let records = arguments.data.read(&arguments.pictures, Role::Gallery)?.chosen;
    let samples = arguments.samples.get();
    let smoothing = arguments.smoothing(sigma);
    let progress = Progress::new("embedding");
    let (broken, threads) = (arguments.data.broken(), arguments.model.engine.threads());
    let result = recall_at_1(&embedder, &records, smoothing, broken, threads, &progress);
    progress.finish();
    let (recall, skipped) = result?;
    tell_skipped(&skipped);
    if arguments.json {
        let value = json!({ "recall": recall, "sigma": sigma, "samples": samples });
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
            "recall@1 smoothed  {:.4}  (sigma {sigma}, {samples} noisy copies of each)",
            recall.smoothed
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

/// Compares the answers of another search with those of exact search over the same gallery.
fn agreement(
    arguments: &RecallArgs,
    answers: &Path,
    directory: &Path,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let stored = StoredGallery::open(directory)?;
    let provenance = stored.provenance();
    // What is searched without noise are the embeddings of clean pictures, where they are stored beside the means.
    let (gallery, sigma) = match (arguments.sigma, provenance.sigma, stored.plain()) {
        (Some(sigma), _, _) => (stored.gallery(), Some(sigma)),
        (None, known, Some(plain)) => (plain, known),
        (None, None, None) => (stored.gallery(), None),
        (None, Some(known), None) => bail!(
            "gallery `{}` was smoothed with sigma {known} and has no clean embeddings; wanted --sigma {known}",
            directory.display()
        ),
    };
    let embedder = arguments.model.open()?;
    let checked = check_gallery(&stored, &directory.display().to_string(), &embedder, sigma);
    checked.map_err(|error| with_config_difference(error, directory, &embedder))?;
    let records = arguments.data.read(&arguments.pictures, Role::Query)?.chosen;
    let identities: Vec<&str> = records.iter().map(|record| record.identity.as_str()).collect();
    let answered = read_answers(answers, gallery, &identities)?;
    let smoothing = arguments.sigma.map(|sigma| arguments.smoothing(sigma));
    let progress = Progress::new("embedding");
    let (broken, threads) = (arguments.data.broken(), arguments.model.engine.threads());
    let embedded = embed_queries(&embedder, &records, smoothing, broken, threads, &progress);
    progress.finish();
    let embedded = embedded?;
    tell_skipped(&embedded.skipped);
    let answered: Vec<Option<usize>> =
        embedded.positions.iter().map(|&position| answered[position]).collect();
    let found = Agreement::of(gallery, &embedded.values, &answered)?;
    if arguments.json {
        let value = json!({ "agreement": found, "sigma": arguments.sigma });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        return Ok(());
    }
    let shown = |share: Share| {
        format!("{:.4}  (95 % interval {:.4} to {:.4})", share.share, share.lower, share.upper)
    };
    writeln!(
        out,
        "{} queries, {} of them unanswered, against exact search",
        found.queries, found.unanswered
    )?;
    writeln!(out, "same item   {}", shown(found.same_item))?;
    writeln!(out, "same label  {}", shown(found.same_label))?;
    writeln!(
        out,
        "certificates are about exact search; nothing is proved about other queries or perturbed ones"
    )?;
    Ok(())
}
