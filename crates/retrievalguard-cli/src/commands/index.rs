//! `retrievalguard index`: labelled pictures in, a gallery out.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context;
use retrievalguard::gallery::Metric;
use retrievalguard::{Seed, Sigma};
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::pipeline::{IndexRequest, index};
use retrievalguard_encoder::views::view_set;

use crate::arguments::{DataArgs, ModelArgs, refuse_noise, tell_skipped};
use crate::progress::{Progress, tell};

/// Noisy copies behind each stored vector, unless the user says how many.
const USUAL_COPIES: u32 = 32;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard index products/ --model encoder.onnx --sigma 0.1 --gallery products.gallery\n  \
        retrievalguard index photographs/ --model copies/encoder.onnx --gallery originals.gallery    # no noise"
)]
pub(crate) struct IndexArgs {
    /// Pictures with labels: a folder of folders, a CSV list, or a data set's folder
    pictures: PathBuf,
    /// Directory to write the gallery to
    #[arg(long, value_name = "DIR")]
    gallery: PathBuf,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]; without it the encoder needs a Lipschitz bound, and its
    /// embeddings are computed in double precision
    #[arg(long, allow_negative_numbers = true)]
    sigma: Option<Sigma>,
    /// Noisy copies averaged per picture, 32 by default; 0 stores the embedding of the clean picture
    #[arg(long)]
    samples: Option<u32>,
    /// Seed of the noise, 0 by default
    #[arg(long)]
    seed: Option<Seed>,
    /// Stores several views of each picture: shifts, flips, crops, rotations, all, or a TOML file that lists views
    #[arg(long, value_name = "SET", conflicts_with = "shards")]
    views: Option<String>,
    /// Write the gallery in so many shards, which are searched on disk instead of in memory
    #[arg(long, value_name = "NUMBER")]
    shards: Option<NonZeroUsize>,
    /// Compare by cosine instead of Euclidean distance
    #[arg(long)]
    cosine: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    data: DataArgs,
}

pub(super) fn run(arguments: &IndexArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let views = arguments.views.as_deref().map(view_set).transpose()?;
    let embedder = match arguments.sigma {
        Some(_) => arguments.model.open()?,
        None => {
            let given = [("--samples", arguments.samples.is_some()), ("--seed", arguments.seed.is_some())];
            refuse_noise("no --sigma was given", &given)?;
            let embedder = arguments.model.open_double("no --sigma was given")?;
            embedder
                .lipschitz()
                .context("a gallery without noise needs such a bound; wanted it, or --sigma")?;
            embedder
        }
    };
    let records = arguments.data.read(&arguments.pictures, Role::Gallery)?.chosen;
    let progress = Progress::new("indexing");
    let request = IndexRequest {
        records: &records,
        embedder: &embedder,
        sigma: arguments.sigma,
        samples: arguments.samples.unwrap_or(USUAL_COPIES),
        seed: arguments.seed.unwrap_or(Seed::new(0)),
        metric: if arguments.cosine { Metric::Cosine } else { Metric::Euclidean },
        views: views.as_ref(),
        excess: arguments.model.excess(),
        broken: arguments.data.broken(),
        threads: arguments.model.engine.threads(),
        batch: arguments.model.engine.batch,
        shards: arguments.shards,
    };
    let result = index(&request, &arguments.gallery, &progress);
    progress.finish();
    let report = result?;
    if report.resumed > 0 {
        tell(format_args!("{} pictures were done before and were not embedded again", report.resumed));
    }
    tell_skipped(&report.skipped);
    let of_views = views.map(|set| format!(" with {} views each,", set.views().len())).unwrap_or_default();
    writeln!(
        out,
        "{}: {} items{of_views} of dimension {}",
        arguments.gallery.display(),
        report.items,
        report.dimension
    )?;
    Ok(())
}
