//! `retrievalguard openapi`: the document that describes the service.

use std::io::Write;

#[derive(clap::Args, Debug)]
pub(crate) struct OpenapiArgs {}

pub(super) fn run(_arguments: &OpenapiArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", retrievalguard_server::document().to_pretty_json()?)?;
    Ok(())
}
