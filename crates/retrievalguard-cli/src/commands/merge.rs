//! `retrievalguard merge`: the parts of a shared run in, its table out.

use std::io::Write;
use std::path::PathBuf;

use retrievalguard_encoder::engine::MOST_THREADS;
use retrievalguard_worker::{RunStore, merge};

use super::certify::{print_rows, tell_left_out, tell_misretrieved};
use crate::arguments::up_to;
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
    #[arg(long, value_parser = up_to::<MOST_THREADS>)]
    threads: Option<std::num::NonZeroUsize>,
}

pub(super) fn run(arguments: &MergeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let cores = || std::thread::available_parallelism().unwrap_or(std::num::NonZeroUsize::MIN);
    let store = RunStore::open(&arguments.run)?;
    let progress = Progress::new("merging");
    let merged = merge(&store, arguments.threads.unwrap_or_else(cores), &progress);
    progress.finish();
    let merged = merged?;
    merged.write(&arguments.out)?;
    let report = merged.report;
    tell_left_out(&report);
    tell_misretrieved(&report.table);
    print_rows(&report, &arguments.out, out)
}
