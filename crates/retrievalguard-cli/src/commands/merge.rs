//! `retrievalguard merge`: the parts of a shared run in, its table out.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard_encoder::pipeline::digest_of_pictures;
use retrievalguard_worker::{Merged, RunStore, merge};

use super::certify::{Notes, print_rows, tell_left_out};
use super::run_directory::{Inputs, Tables, write_tables};
use crate::progress::Progress;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard merge --run s3://bucket/large --out large"
)]
pub(crate) struct MergeArgs {
    /// The run: a directory, or an address such as s3://bucket/run
    #[arg(long, value_name = "RUN")]
    run: String,
    /// Directory for the table
    #[arg(long, value_name = "DIR", default_value = "certificates")]
    out: PathBuf,
    /// Threads; one per core by default. Results do not depend on it
    #[arg(long)]
    threads: Option<std::num::NonZeroUsize>,
}

pub(super) fn run(arguments: &MergeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let cores = || std::thread::available_parallelism().unwrap_or(std::num::NonZeroUsize::MIN);
    let store = RunStore::open(&arguments.run)?;
    let progress = Progress::new("merging");
    let merged = merge(&store, arguments.threads.unwrap_or_else(cores), &progress);
    progress.finish();
    let Merged { report, manifest } = merged?;
    let notes: Notes = serde_json::from_value(manifest.notes)
        .with_context(|| format!("run `{}` was not shared by this program", arguments.run))?;
    std::fs::create_dir_all(&arguments.out).map_err(|error| WriteError::new(&arguments.out, error))?;
    let skipped: HashSet<&str> = report.skipped.iter().map(|(identity, _)| identity.as_str()).collect();
    let queries = manifest.queries.iter().filter(|query| !skipped.contains(query.identity.as_str()));
    let pictures = digest_of_pictures(queries.map(|query| {
        (query.identity.as_str(), query.label.as_str(), query.crop, Some(query.picture.sha256))
    }));
    Inputs::new(notes.places, pictures, &report).write(&arguments.out)?;
    let recall_at_k = manifest.procedure.top_k > 1;
    write_tables(&arguments.out, &report, Tables { jsonl: notes.jsonl, tsv: notes.tsv, recall_at_k })?;
    tell_left_out(&report);
    print_rows(&report, &arguments.out, out)
}
