//! `retrievalguard completions`: a completion script for a shell.

use std::io::Write;

use clap::CommandFactory;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: retrievalguard completions bash > ~/.local/share/bash-completion/completions/retrievalguard"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub(super) fn run(arguments: &CompletionsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut script = Vec::new();
    let mut command = crate::Invocation::command();
    clap_complete::generate(arguments.shell, &mut command, "retrievalguard", &mut script);
    out.write_all(&script)?;
    Ok(())
}
