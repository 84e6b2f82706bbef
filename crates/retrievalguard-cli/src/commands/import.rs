//! `retrievalguard import`: a gallery made elsewhere becomes one of ours.

use std::fmt::Display;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::bail;
use clap::ArgGroup;
use retrievalguard::gallery::Metric;
use retrievalguard::storage::manifest::Provenance;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{NormBound, Sigma};
use retrievalguard_encoder::table::gallery_file::{import_clip_retrieval, import_npy, import_parquet};

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    group = ArgGroup::new("source").required(true).args(["npy", "parquet", "clip_retrieval"]),
    after_help = "Example: retrievalguard import --npy vectors.npy --labels labels.txt --gallery mine.gallery"
)]
pub(crate) struct ImportArgs {
    /// Vectors as .npy, one row per item; needs --labels
    #[arg(long, value_name = "FILE")]
    npy: Option<PathBuf>,
    /// Labels for --npy, one per line
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Identities for --npy, one per line; row numbers if absent
    #[arg(long, value_name = "FILE")]
    identities: Option<PathBuf>,
    /// Parquet with the columns label, vector and perhaps identity
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Output folder of clip-retrieval: img_emb/ and metadata/
    #[arg(long, value_name = "DIR")]
    clip_retrieval: Option<PathBuf>,
    /// Column of clip-retrieval's metadata that holds the label
    #[arg(long)]
    label_column: Option<String>,
    /// Directory to write the gallery to
    #[arg(long, value_name = "DIR")]
    gallery: PathBuf,
    /// Norm bound of the encoder that made the vectors; 1 if nothing is known
    #[arg(long)]
    norm_bound: Option<NormBound>,
    /// Noise level that the vectors were smoothed with, if they were
    #[arg(long)]
    sigma: Option<Sigma>,
    /// Noisy copies behind each vector, if known
    #[arg(long)]
    samples: Option<u32>,
    /// Write the gallery in so many shards, which are searched on disk instead of in memory
    #[arg(long, value_name = "NUMBER")]
    shards: Option<NonZeroUsize>,
    /// Compare by cosine instead of Euclidean distance
    #[arg(long)]
    cosine: bool,
}

pub(super) fn run(arguments: &ImportArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let metric = arguments.cosine.then_some(Metric::Cosine);
    let imported = if let Some(vectors) = &arguments.npy {
        let Some(labels) = &arguments.labels else { bail!("--npy was given without --labels, wanted both") };
        import_npy(vectors, labels, arguments.identities.as_deref(), metric)?
    } else if let Some(path) = &arguments.parquet {
        import_parquet(path, metric)?
    } else if let Some(folder) = &arguments.clip_retrieval {
        import_clip_retrieval(folder, arguments.label_column.as_deref(), metric)?
    } else {
        bail!("nothing to import, wanted --npy, --parquet or --clip-retrieval")
    };
    let provenance = match imported.provenance {
        // What an export of ours says about itself is kept, and not contradicted.
        Some(known) => {
            let norm_bound = arguments.norm_bound.filter(|&bound| bound != known.norm_bound);
            refuse("--norm-bound", norm_bound, known.norm_bound)?;
            if let Some(sigma) = known.sigma {
                refuse("--sigma", arguments.sigma.filter(|&asked| asked != sigma), sigma)?;
            }
            if let Some(samples) = known.samples {
                refuse("--samples", arguments.samples.filter(|&asked| asked != samples), samples)?;
            }
            Provenance {
                sigma: known.sigma.or(arguments.sigma),
                samples: known.samples.or(arguments.samples),
                ..known
            }
        }
        None => Provenance {
            sigma: arguments.sigma,
            samples: arguments.samples,
            ..Provenance::unknown(arguments.norm_bound.unwrap_or(NormBound::UNIT))
        },
    };
    let (gallery, paths) = (&imported.gallery, &imported.paths);
    StoredGallery::write(&arguments.gallery, gallery, paths, provenance, arguments.shards)?;
    writeln!(
        out,
        "{}: {} items of dimension {}",
        arguments.gallery.display(),
        gallery.item_count(),
        gallery.dimension()
    )?;
    Ok(())
}

/// Says that a flag contradicts what the files say of themselves, if it does.
fn refuse(flag: &str, asked: Option<impl Display>, known: impl Display) -> anyhow::Result<()> {
    match asked {
        Some(asked) => bail!("{flag} is {asked}, the export says {known}; wanted none beside it"),
        None => Ok(()),
    }
}
