//! `retrievalguard upgrade`: a gallery or a run of an earlier version becomes one of this one.

use std::io::Write;
use std::path::PathBuf;

use retrievalguard_encoder::pipeline::upgrade::{Upgraded, upgrade};
use retrievalguard_encoder::table::Unverified;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard upgrade run\n\n\
        A run's table is checked against the run's journal and written again with its digest; a gallery's files are\n\
        checked against its manifest."
)]
pub(crate) struct UpgradeArgs {
    /// The gallery or the run, which is changed in place
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The gallery that the run searched, if it has moved
    #[arg(long, value_name = "DIR")]
    gallery: Option<PathBuf>,
    /// Accept the table of a run without a journal, unverified
    #[arg(long)]
    unverified: bool,
}

pub(super) fn run(arguments: &UpgradeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let unverified = if arguments.unverified { Unverified::Accept } else { Unverified::Refuse };
    let upgraded = upgrade(&arguments.directory, arguments.gallery.as_deref(), unverified)?;
    let what = match upgraded {
        Upgraded::Gallery => "the gallery agreed with its manifest",
        Upgraded::Run => "the table agreed with the journal; identities and labels were taken as they are",
        Upgraded::WholeRun => {
            "the table agreed with the journal, identities and labels with the data set and its pictures"
        }
        Upgraded::UnverifiedRun => "the table was taken as it is, nothing told whether it was changed",
    };
    writeln!(out, "{}: {what}", arguments.directory.display())?;
    Ok(())
}
