//! `retrievalguard worker`: tasks of a shared run in, parts out.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use retrievalguard_worker::{Assignment, RunStore, WorkerOptions, work};

use crate::arguments::EngineArgs;
use crate::progress::{Progress, tell};

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard worker --run runs/large\n  \
        retrievalguard worker --run s3://bucket/large --index 3 --of 10\n\n\
        In an array job of Slurm, or an indexed job of Kubernetes with --of, each worker finds its own share.\n\
        Any number of workers, stopped and repeated at will, leave the same parts."
)]
pub(crate) struct WorkerArgs {
    /// The run: a directory, or an address such as s3://bucket/run
    #[arg(long, value_name = "RUN")]
    run: String,
    /// Tasks to do, by number: 0..100
    #[arg(long, value_name = "RANGE", conflicts_with_all = ["index", "of"])]
    tasks: Option<String>,
    /// Which share of the tasks to do, from 0
    #[arg(long, requires = "of")]
    index: Option<usize>,
    /// Of how many shares
    #[arg(long)]
    of: Option<usize>,
    /// Where encoder and gallery of a run in an object store are kept; the temporary folder by default
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(arguments: &WorkerArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let assignment = match (&arguments.tasks, arguments.index, arguments.of) {
        (Some(range), ..) => Assignment::range(range)?,
        (None, Some(index), Some(of)) => Assignment::share(index, of)?,
        (None, None, of) => {
            let found = Assignment::from_scheduler(|name| std::env::var(name).ok(), of)?;
            match (found, of) {
                (Some(found), _) => found,
                (None, None) => Assignment::All,
                (None, Some(of)) => {
                    bail!("--of {of} was given without --index, and no scheduler says which share this is")
                }
            }
        }
        (None, Some(_), None) => unreachable!("--index requires --of"),
    };
    let store = RunStore::open(&arguments.run)?;
    let options = WorkerOptions {
        engine: arguments.engine.options(),
        batch: arguments.engine.batch,
        cache: arguments.cache.clone(),
    };
    let progress = Progress::new("working");
    let worked = work(store, &assignment, arguments.engine.threads(), &options, &progress);
    progress.finish();
    let worked = worked?;
    if worked.found > 0 {
        tell(format_args!("{} tasks were done before", worked.found));
    }
    writeln!(out, "{} of {} tasks are done", worked.assigned, worked.total)?;
    Ok(())
}
