//! The command line of RetrievalGuard: parses, dispatches, and turns errors into exit codes.

mod arguments;
mod commands;
mod configuration;
mod failure;
mod progress;
mod service_manager;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use commands::Command;

/// Image retrieval whose answers come with a proof
#[derive(Debug, Parser)]
#[command(name = "retrievalguard", version, propagate_version = true)]
#[command(after_help = "Radii are l2 distances of pixels scaled to [0, 1]; sigma has the same unit.\n\
                        Every flag can stand in a TOML file given with --config.")]
struct Invocation {
    /// TOML file with flags: `sigma = 0.25`, or a table per command
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// How work shows itself on standard error: a bar or lines, JSON for programs, or not at all
    #[arg(long, global = true, value_enum, value_name = "HOW", default_value = "auto")]
    progress: progress::Style,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    env_logger::init();
    failure::survive_size_limits();
    let arguments = match configuration::expand(std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(error) => return failure::report(&error),
    };
    let invocation = match Invocation::try_parse_from(arguments) {
        Ok(invocation) => invocation,
        Err(error) => error.exit(),
    };
    progress::begin(invocation.progress, invocation.command.name());
    let mut out = failure::StandardOutput(std::io::stdout().lock());
    let result = commands::run(&invocation.command, &mut out).and_then(|()| Ok(out.flush()?));
    match result {
        Ok(()) => {
            progress::succeeded();
            ExitCode::SUCCESS
        }
        Err(error) => failure::report(&error),
    }
}
