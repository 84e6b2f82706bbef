//! `retrievalguard copy-encoder`: an encoder for finding copies and near-duplicates, without training.

use std::io::Write;
use std::path::PathBuf;

use retrievalguard_encoder::block_means::BlockMeans;
use retrievalguard_encoder::graph::Model;
use retrievalguard_encoder::graph::bound::BoundReading;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard copy-encoder --out copies\n\n\
        Writes OUT/encoder.onnx, means over the blocks of a grid, and OUT/encoder.toml. It finds pictures that were saved \
        again, blurred, brightened or shrunk, not those that were cropped or rotated. Its Lipschitz constant is 1."
)]
pub(crate) struct CopyEncoderArgs {
    /// Folder for the encoder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Pixels along each side to which pictures are brought
    #[arg(long, default_value = "224")]
    size: usize,
    /// Blocks along each side; must divide the size
    #[arg(long, default_value = "32")]
    grid: usize,
    /// Look at brightness alone
    #[arg(long)]
    grey: bool,
}

pub(super) fn run(arguments: &CopyEncoderArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let channels = if arguments.grey { 1 } else { 3 };
    let encoder = BlockMeans::new(channels, arguments.size, arguments.grid)?;
    let path = encoder.write(&arguments.out)?;
    let reading = BoundReading::of(&Model::read(&path)?, &encoder.config())?;
    writeln!(out, "{}: {} numbers per picture, {reading}", path.display(), encoder.dimension())?;
    Ok(())
}
