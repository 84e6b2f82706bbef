//! `retrievalguard export`: a gallery for pandas, polars, faiss, DuckDB and clip-retrieval.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::bail;
use clap::ArgGroup;
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard_encoder::table::gallery_file::{export_clip_retrieval, export_npy, export_parquet};

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    group = ArgGroup::new("target").required(true).multiple(true).args(["npy", "parquet", "clip_retrieval"]),
    after_help = "Example: retrievalguard export products.gallery --parquet products.parquet"
)]
pub(crate) struct ExportArgs {
    /// Gallery directory, as written by `retrievalguard index`
    gallery: PathBuf,
    /// Write vectors as .npy; needs --labels
    #[arg(long, value_name = "FILE")]
    npy: Option<PathBuf>,
    /// Write labels for --npy, one per line
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Write identities for --npy, one per line
    #[arg(long, value_name = "FILE")]
    identities: Option<PathBuf>,
    /// Write Parquet with the columns identity, label and vector
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Write img_emb/ and metadata/ as clip-retrieval does
    #[arg(long, value_name = "DIR")]
    clip_retrieval: Option<PathBuf>,
    /// Items per shard of --clip-retrieval
    #[arg(long, default_value = "1000000")]
    shard_items: NonZeroUsize,
}

pub(super) fn run(arguments: &ExportArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let stored = GalleryDirectory::read(&arguments.gallery)?;
    let provenance = &stored.manifest.provenance;
    let paths: Vec<Option<String>> = (0..stored.gallery.len())
        .map(|row| stored.picture_path(row).map(|path| path.display().to_string()))
        .collect();
    if let Some(vectors) = &arguments.npy {
        let Some(labels) = &arguments.labels else { bail!("--npy was given without --labels, wanted both") };
        export_npy(&stored.gallery, vectors, labels, arguments.identities.as_deref(), provenance)?;
        writeln!(out, "{}", vectors.display())?;
    }
    if let Some(path) = &arguments.parquet {
        export_parquet(path, &stored.gallery, &paths, provenance)?;
        writeln!(out, "{}", path.display())?;
    }
    if let Some(folder) = &arguments.clip_retrieval {
        export_clip_retrieval(folder, &stored.gallery, &paths, arguments.shard_items, provenance)?;
        writeln!(out, "{}", folder.display())?;
    }
    Ok(())
}
