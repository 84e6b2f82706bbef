//! `retrievalguard query`: one picture in, the retrieved items and a guarantee out.

mod plain;
mod receipt;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use retrievalguard::certificate::{Outcome, Radius, Verdict};
use retrievalguard::gallery::Neighbour;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Alpha, Embedder, Picture, SampleCount, Samples, Seed, Sigma, Smoother, TargetRadius};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::picture::{PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::{
    Answered, Drawn, Query, QueryCertifier, Relevant, check_cap, check_gallery, check_kind, default_pilot,
    input_values, nearest_plain, noise_of,
};
use retrievalguard_encoder::run::{Procedure, Retriever};
use retrievalguard_encoder::table::{FilePixels, PLAIN_UNKNOWN};
use retrievalguard_server::secret_seed;
use serde_json::{Value, json};

use super::certify::{usual_alpha, usual_samples, with_config_difference};
use super::certify_samples::words;
use crate::arguments::{ModelArgs, RetrieverArg};

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard query photo.jpg --gallery products.gallery --model encoder.onnx"
)]
pub(crate) struct QueryArgs {
    /// The picture
    picture: PathBuf,
    /// Gallery to search in, as written by `retrievalguard index`
    #[arg(long, value_name = "DIR")]
    gallery: PathBuf,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]; that of the gallery by default
    #[arg(long, allow_negative_numbers = true)]
    sigma: Option<Sigma>,
    /// Probability that the answer's guarantee is wrong, 0.01 by default
    #[arg(long, allow_negative_numbers = true)]
    alpha: Option<Alpha>,
    /// Certifying samples, 1000 by default; the most that are drawn if --target-radius is given
    #[arg(long)]
    samples: Option<SampleCount>,
    /// Pilot samples, on which the label is chosen: 200, or 20 where they choose little (pairwise, and vote with
    /// --target-radius)
    #[arg(long)]
    pilot: Option<SampleCount>,
    /// Which retriever answers: pairwise by default, plain for a gallery without noise
    #[arg(long, value_enum)]
    retriever: Option<RetrieverArg>,
    /// Stop as soon as this radius is certified, or out of reach
    #[arg(long, value_name = "RADIUS", allow_negative_numbers = true)]
    target_radius: Option<TargetRadius>,
    /// Call an item a match only within this l2 distance of embeddings; for a gallery without noise
    #[arg(long, value_name = "DISTANCE", value_parser = distance)]
    within: Option<f64>,
    /// How many items to show
    #[arg(long, default_value = "5")]
    top_k: usize,
    /// Seed of the noise; drawn from the operating system and kept secret by default
    #[arg(long)]
    seed: Option<Seed>,
    #[command(flatten)]
    receipt: receipt::ReceiptArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

pub(super) fn run(arguments: &QueryArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let stored = StoredGallery::open(&arguments.gallery)?;
    let Some(sigma) = noise_of(arguments.sigma, stored.provenance()) else {
        return plain::run(arguments, &stored, out);
    };
    if arguments.within.is_some() {
        bail!("--within is for galleries without noise, found sigma {sigma}; wanted no --within");
    }
    let retriever = Retriever::from(arguments.retriever.unwrap_or(RetrieverArg::Pairwise));
    if retriever == Retriever::Plain {
        bail!("the plain retriever has no noise, found sigma {sigma}; wanted mean, vote or pairwise");
    }
    let alpha = arguments.alpha.unwrap_or_else(usual_alpha);
    let samples = arguments.samples.unwrap_or_else(usual_samples);
    let certificates = vec![retriever.certificate()];
    let pilot = arguments.pilot.unwrap_or_else(|| default_pilot(&certificates, arguments.target_radius));
    let procedure = Procedure {
        sigma,
        alpha,
        pilot,
        samples,
        certificates,
        top_k: 1,
        target_radius: arguments.target_radius,
        replan_bets: false,
    };
    check_cap(&procedure)
        .and_then(|()| check_kind(&procedure, stored.gallery()))
        .map_err(|error| anyhow!(error.as_flags()))?;
    let embedder = arguments.model.open()?;
    let name = arguments.gallery.display().to_string();
    let checked = check_gallery(&stored, &name, &embedder, Some(sigma));
    checked.map_err(|error| with_config_difference(error, &arguments.gallery, &embedder))?;
    for count in [pilot, samples] {
        Samples::check_memory(count.get(), embedder.dimension())?;
    }
    let identity = arguments.picture.display().to_string();
    let (pixels, file) = pixels_of(arguments, &embedder)?;
    // The seed is drawn after the picture is here, so that nobody could aim at the noise.
    let seed = arguments.seed.map_or_else(secret_seed, Ok)?;
    let smoother = Smoother::new(&embedder, sigma, seed)
        .excess(arguments.model.excess())
        .batch(arguments.model.engine.batch)
        .threads(arguments.model.engine.threads());
    let picture = Picture { identity: &identity, pixels: &pixels };
    let gallery = stored.gallery();
    let certifier = QueryCertifier::stored(&procedure, &stored);
    let query = Query { relevant: Relevant::Retrieved(retriever), excluded: &[] };
    let promise =
        arguments.receipt.promise(arguments, &stored, &embedder, (&query, &pixels), (&procedure, seed))?;
    let mut drawn = Drawn::default();
    let draw = |stage, range| -> anyhow::Result<Samples> {
        let samples = smoother.samples(&picture, stage, range)?;
        if promise.is_some() {
            drawn.add(stage, &samples)?;
        }
        Ok(samples)
    };
    let plain = match stored.plain() {
        Some(gallery) => nearest_plain(gallery, &smoother.clean(&picture)?, &[])?,
        None => None,
    };
    let plain_label = plain.map(|found| gallery.label_name(gallery.label(found.row)));
    let answered = certifier.answer(&query, draw, anyhow::Error::from)?;
    if let Some((promise, to)) = promise {
        promise.keep(&certifier, &answered, &drawn, to.key()?.as_ref())?.write(to.path)?;
    }
    let Answered { label, mut outcomes, mean, .. } = answered;
    let Outcome { verdict, samples, explain, .. } = outcomes.remove(0);
    // The vote has two rules; the pilot has chosen one.
    let rule = explain.value("rule").filter(|_| retriever == Retriever::Vote).map(ToString::to_string);
    let nearest = certifier.nearest(&mean, arguments.top_k.max(1), &[])?;
    // An answer is given only with a proof at radius zero; everything else is an abstention.
    let answered = matches!(verdict, Verdict::Certified { .. });
    let label = label.map(|label| gallery.label_name(label));
    let (word, radius) = if answered { words(verdict) } else { ("abstained", String::new()) };
    let file_radius =
        file.zip(verdict.radius().filter(|_| answered)).and_then(|(file, radius)| file.radius(radius));
    let again = match arguments.seed {
        None => format!("asking again draws other noise and is a new attempt at {alpha}"),
        Some(_) => format!(
            "another --seed is a new attempt at {alpha}; the same one after the gallery or a setting was changed in view of this \
             answer proves nothing"
        ),
    };
    if arguments.json {
        let items =
            nearest.iter().map(|item| item_json(&stored, item)).collect::<anyhow::Result<Vec<_>>>()?;
        let value = json!({
            "label": label.filter(|_| answered),
            "candidate_label": label,
            "verdict": word,
            "radius": verdict.radius().map(Radius::get).filter(|radius| radius.is_finite()),
            "file_radius": file_radius.map(Radius::get).filter(|radius| radius.is_finite()),
            "unbounded": verdict.radius() == Some(Radius::Unbounded),
            "retriever": retriever,
            "samples": samples,
            "pilot": pilot,
            "sigma": sigma,
            "alpha": alpha,
            "asking_again": again,
            "rule": rule,
            "items": items,
            "plain": match plain {
                Some(found) => json!({
                    "row": found.row,
                    "identity": gallery.identity(found.row)?,
                    "label": plain_label,
                    "distance": found.squared_distance.sqrt(),
                }),
                None => Value::Null,
            },
            "model": embedder.facts().hash,
            "contract": embedder.model_config().hash(),
            "engine": embedder.report(),
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        return Ok(());
    }
    match label.filter(|_| answered) {
        Some(label) => {
            writeln!(
                out,
                "label {label}: no change of the prepared picture with l2 norm below {radius} changes it,"
            )?;
            let rule = rule.map_or(String::new(), |rule| format!(", {rule} rule"));
            writeln!(
                out,
                "except with probability {alpha} over the noise ({retriever} retriever, {samples} samples{rule})"
            )?;
            if let Some((file, radius)) = file.zip(verdict.radius()) {
                writeln!(out, "{}", file.statement(radius))?;
            }
        }
        None => writeln!(
            out,
            "abstained: after {samples} samples no label can be guaranteed (candidate: {})",
            label.unwrap_or("none")
        )?,
    }
    match plain_label {
        Some(plain) => {
            writeln!(out, "without noise the encoder says {plain}, about which nothing is proved")?;
        }
        None => writeln!(out, "without noise: {PLAIN_UNKNOWN}")?,
    }
    writeln!(out, "{again}")?;
    print_items(&stored, &nearest, out)
}

fn distance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "wanted a finite number above 0".to_owned())
}

/// The picture as the encoder takes it, and how far that moves with the pixels of the file.
fn pixels_of(
    arguments: &QueryArgs,
    embedder: &OnnxEmbedder,
) -> anyhow::Result<(Vec<f32>, Option<FilePixels>)> {
    let identity = arguments.picture.display().to_string();
    let picture = RgbPicture::from_path(&arguments.picture, &PictureLimits::default())?;
    let config = embedder.model_config();
    let prepared = config.preparation().apply(&identity, &picture)?;
    Ok((input_values(config, &identity, prepared)?, config.file_pixels(&picture)))
}

/// A retrieved item for programs.
fn item_json(stored: &StoredGallery, item: &Neighbour) -> anyhow::Result<Value> {
    let gallery = stored.gallery();
    let mut shown = json!({
        "row": item.row,
        "identity": gallery.identity(item.row)?,
        "label": gallery.label_name(gallery.label(item.row)),
        "distance": item.squared_distance.sqrt(),
        "path": stored.picture_path(item.row)?,
    });
    if let Some(view) = gallery.view(item.row) {
        shown["view"] = json!(view);
    }
    Ok(shown)
}

/// Retrieved items for people, the nearest first.
fn print_items(stored: &StoredGallery, nearest: &[Neighbour], out: &mut dyn Write) -> anyhow::Result<()> {
    let gallery = stored.gallery();
    for item in nearest {
        let view = gallery.view(item.row).map(|view| format!("  ({view})")).unwrap_or_default();
        writeln!(
            out,
            "{:>8.4}  {}  {}{view}",
            item.squared_distance.sqrt(),
            gallery.label_name(gallery.label(item.row)),
            gallery.identity(item.row)?
        )?;
    }
    Ok(())
}
