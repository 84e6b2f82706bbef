//! `retrievalguard man`: the manual, a page for every command.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;
use retrievalguard::storage::atomic::{self, WriteError};

#[derive(clap::Args, Debug)]
#[command(after_help = "Example: retrievalguard man ~/.local/share/man/man1, then man retrievalguard-index")]
pub(crate) struct ManArgs {
    /// Folder for the pages; made if it is not there
    directory: PathBuf,
}

pub(super) fn run(arguments: &ManArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let ManArgs { directory } = arguments;
    fs::create_dir_all(directory).map_err(|error| WriteError::new(directory, error))?;
    // `help` is no command of its own; what it says is on the pages.
    let mut whole = crate::Invocation::command().disable_help_subcommand(true);
    // Commands get their full names and the flags that all of them have.
    whole.build();
    let source = format!("retrievalguard {}", env!("CARGO_PKG_VERSION"));
    let commands: Vec<clap::Command> = whole.get_subcommands().cloned().collect();
    let pages = commands.len() + 1;
    for command in std::iter::once(whole).chain(commands) {
        let page = clap_mangen::Man::new(command).source(&source).manual("RetrievalGuard");
        let mut text = Vec::new();
        page.render(&mut text)?;
        atomic::write(&directory.join(page.get_filename()), &text)?;
    }
    writeln!(out, "{}: {pages} pages", directory.display())?;
    Ok(())
}
