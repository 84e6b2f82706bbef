//! `retrievalguard doctor`: which engine will run here, and what would make it faster.

use std::io::Write;

use anyhow::bail;
use retrievalguard_encoder::doctor::{BuildReport, doctor};
use retrievalguard_encoder::engine::Engine;

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
    let mut report = doctor(&arguments.engine.options());
    report.build = Some(build());
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

/// What this program was built from and with.
///
/// scripts/release names the commit. Asking git in every build would compile the program again after every commit, and
/// would name a commit also where the files are not those of the commit.
fn build() -> BuildReport {
    let features = [
        ("train", cfg!(feature = "train")),
        ("cloud", cfg!(feature = "cloud")),
        ("cuda", cfg!(feature = "cuda")),
        ("tch", cfg!(feature = "tch")),
        ("wgpu", cfg!(feature = "wgpu")),
    ];
    BuildReport {
        commit: option_env!("RETRIEVALGUARD_COMMIT").map(str::to_owned),
        features: features.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect(),
        engines: vec![Engine::Onnxruntime, Engine::Rten, Engine::Double],
    }
}
