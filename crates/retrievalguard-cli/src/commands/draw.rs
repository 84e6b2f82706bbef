//! `retrievalguard draw`: synthetic pictures to try things out with.

use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::lock::FolderLock;
use retrievalguard_encoder::engine::MOST_THREADS;
use retrievalguard_encoder::synthetic::{Part, Subject, SyntheticDataset};

use crate::arguments::up_to;
use crate::progress::Progress;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard draw fabrics --out fabrics\n\n\
        Writes OUT/train (240 classes of 16 pictures), OUT/gallery and OUT/queries (60 other classes of 5 and 3)."
)]
pub(crate) struct DrawArgs {
    /// What to draw: products or fabrics
    subject: Subject,
    /// Folder for the pictures
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only this part: train, gallery or queries
    #[arg(long)]
    part: Option<Part>,
    /// Seed of the pictures; 1 is that of the demo and of the encoders that ship with the project
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Threads; one per core by default
    #[arg(long, value_parser = up_to::<MOST_THREADS>)]
    threads: Option<NonZeroUsize>,
}

pub(super) fn run(arguments: &DrawArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = arguments.threads.unwrap_or_else(cores);
    fs::create_dir_all(&arguments.out).map_err(|error| WriteError::new(&arguments.out, error))?;
    let _lock = FolderLock::take(&arguments.out)?;
    let dataset = SyntheticDataset::new(arguments.seed).of(arguments.subject);
    for part in Part::ALL.into_iter().filter(|&part| arguments.part.is_none_or(|only| only == part)) {
        let progress = Progress::new("drawing");
        let written = dataset.write(&arguments.out, part, threads, &progress);
        progress.finish();
        let counts = written?;
        let folder = arguments.out.join(part.name());
        writeln!(out, "{}: {} pictures drawn, {} kept", folder.display(), counts.rendered, counts.kept)?;
    }
    Ok(())
}
