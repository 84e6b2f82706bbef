//! `retrievalguard doctor`: which engine will run here, and what would make it faster.

use std::io::Write;

use anyhow::bail;
use retrievalguard_encoder::doctor::doctor;

use crate::arguments::EngineArgs;

#[derive(clap::Args, Debug)]
#[command(args_override_self = true, after_help = "Example: retrievalguard doctor")]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(arguments: &DoctorArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let report = doctor(&arguments.engine.options());
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "{report}")?;
    }
    if report.engine.is_none() {
        bail!("no engine can run with these options, wanted at least one");
    }
    Ok(())
}
