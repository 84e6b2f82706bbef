//! `retrievalguard repair`: checks whether a gallery has lost writes, and continues with those that are left.

use std::io::Write;
use std::path::PathBuf;

use retrievalguard::storage::live;
use retrievalguard::storage::manifest::GalleryDirectory;

use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard repair products.gallery, and with --accept-loss if the journal of writes is lost for good"
)]
pub(crate) struct RepairArgs {
    /// Gallery directory, as written by `retrievalguard index`
    gallery: PathBuf,
    /// Give up acknowledged writes that the journal has lost
    #[arg(long)]
    accept_loss: bool,
}

pub(super) fn run(arguments: &RepairArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let shown = arguments.gallery.display();
    if arguments.accept_loss {
        let live::Remaining { found, acknowledged } = live::accept_loss(&arguments.gallery)?;
        match acknowledged {
            Some(acknowledged) if acknowledged > found => {
                tell(format_args!("{shown}: {found} of {acknowledged} acknowledged writes are left"));
            }
            Some(_) => tell(format_args!("{shown}: nothing is lost; its {found} writes are all there")),
            None => tell(format_args!("{shown}: {found} writes are left; how many there were is not known")),
        }
    }
    let stored = GalleryDirectory::read(&arguments.gallery)?;
    writeln!(out, "{shown}: whole, {} items, {} writes", stored.gallery.item_count(), stored.writes())?;
    Ok(())
}
