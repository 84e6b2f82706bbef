//! `retrievalguard query`: one picture in, the retrieved items and a guarantee out.

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use retrievalguard::certificate::{Outcome, Radius, Verdict};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Alpha, Embedder, Picture, SampleCount, Samples, Seed, Sigma, Smoother, TargetRadius};
use retrievalguard_encoder::picture::{PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::{
    Answered, Query, QueryCertifier, Relevant, check_cap, check_gallery, check_kind, default_pilot,
    input_values, nearest_plain,
};
use retrievalguard_encoder::run::{Procedure, Retriever};
use retrievalguard_encoder::table::PLAIN_UNKNOWN;
use retrievalguard_server::secret_seed;
use serde_json::json;

use super::certify::with_config_difference;
use super::certify_samples::words;
use crate::arguments::{ModelArgs, RetrieverArg, sigma_for};

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
    /// Probability that the answer's guarantee is wrong
    #[arg(long, default_value = "0.01", allow_negative_numbers = true)]
    alpha: Alpha,
    /// Certifying samples; the most that are drawn if --target-radius is given
    #[arg(long, default_value = "1000")]
    samples: SampleCount,
    /// Pilot samples, on which the label is chosen: 200, or 20 where they choose little (pairwise, and vote with
    /// --target-radius)
    #[arg(long)]
    pilot: Option<SampleCount>,
    /// Which smoothed retriever answers
    #[arg(long, value_enum, default_value = "pairwise")]
    retriever: RetrieverArg,
    /// Stop as soon as this radius is certified, or out of reach
    #[arg(long, value_name = "RADIUS", allow_negative_numbers = true)]
    target_radius: Option<TargetRadius>,
    /// How many items to show
    #[arg(long, default_value = "5")]
    top_k: usize,
    /// Seed of the noise; drawn from the operating system and kept secret by default
    #[arg(long)]
    seed: Option<Seed>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

pub(super) fn run(arguments: &QueryArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let retriever = Retriever::from(arguments.retriever);
    let certificates = vec![retriever.certificate()];
    let pilot = arguments.pilot.unwrap_or_else(|| default_pilot(&certificates, arguments.target_radius));
    let stored = StoredGallery::open(&arguments.gallery)?;
    let sigma = sigma_for(arguments.sigma, stored.provenance(), &arguments.gallery)?;
    let procedure = Procedure {
        sigma,
        alpha: arguments.alpha,
        pilot,
        samples: arguments.samples,
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
    let checked = check_gallery(&stored, &name, &embedder, sigma);
    checked.map_err(|error| with_config_difference(error, &arguments.gallery, &embedder))?;
    for count in [pilot, arguments.samples] {
        Samples::check_memory(count.get(), embedder.dimension())?;
    }
    let identity = arguments.picture.display().to_string();
    let picture = RgbPicture::from_path(&arguments.picture, &PictureLimits::default())?;
    let prepared = embedder.model_config().preparation().apply(&identity, &picture)?;
    let pixels = input_values(embedder.model_config(), &identity, prepared)?;
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
    let draw = |stage, range| Ok(smoother.samples(&picture, stage, range)?);
    let plain = match stored.plain() {
        Some(gallery) => nearest_plain(gallery, &smoother.clean(&picture)?, &[])?,
        None => None,
    };
    let plain_label = plain.map(|found| gallery.label_name(gallery.label(found.row)));
    let Answered { label, mut outcomes, mean, .. } = certifier.answer(&query, draw, anyhow::Error::from)?;
    let Outcome { verdict, samples, explain, .. } = outcomes.remove(0);
    // The vote has two rules; the pilot has chosen one.
    let rule = explain.value("rule").filter(|_| retriever == Retriever::Vote).map(ToString::to_string);
    let nearest = certifier.nearest(&mean, arguments.top_k.max(1), &[])?;
    // An answer is given only with a proof at radius zero; everything else is an abstention.
    let answered = matches!(verdict, Verdict::Certified { .. });
    let label = label.map(|label| gallery.label_name(label));
    let (word, radius) = if answered { words(verdict) } else { ("abstained", String::new()) };
    let again = match arguments.seed {
        None => format!("asking again draws other noise and is a new attempt at {}", arguments.alpha),
        Some(_) => format!(
            "another --seed is a new attempt at {}; the same one after the gallery or a setting was changed in view of this \
             answer proves nothing",
            arguments.alpha
        ),
    };
    if arguments.json {
        let items = nearest
            .iter()
            .map(|item| {
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
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let value = json!({
            "label": label.filter(|_| answered),
            "candidate_label": label,
            "verdict": word,
            "radius": verdict.radius().map(Radius::get).filter(|radius| radius.is_finite()),
            "unbounded": verdict.radius() == Some(Radius::Unbounded),
            "retriever": retriever,
            "samples": samples,
            "pilot": pilot,
            "sigma": sigma,
            "alpha": arguments.alpha,
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
                None => serde_json::Value::Null,
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
                "except with probability {} over the noise ({retriever} retriever, {samples} samples{rule})",
                arguments.alpha
            )?;
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
    for item in &nearest {
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
