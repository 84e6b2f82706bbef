//! A query without noise: one pass in double precision, and an answer that holds always.

use std::io::Write;

use anyhow::{Context, bail};
use retrievalguard::certificate::{
    CertificateName, Distance, LipschitzBound, Outcome, Radius, Retriever, Threshold, Verdict,
};
use retrievalguard::evaluation::Guarantee;
use retrievalguard::gallery::Neighbour;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::pipeline::{
    Answered, PlainAnswered, PlainCertifier, Query, Relevant, check_gallery, nearest_items,
};
use retrievalguard_encoder::run::LipschitzBounded;
use retrievalguard_encoder::table::FilePixels;
use serde_json::json;

use super::super::certify::{no_noise, with_config_difference};
use super::{QueryArgs, item_json, pixels_of, print_items};
use crate::arguments::{RetrieverArg, refuse_noise};

/// What is found, and how far it is proved.
struct Found {
    label: Option<String>,
    nearest: Vec<Neighbour>,
    verdict: Verdict,
    bound: LipschitzBound,
    /// With `--within`: whether the nearest item is near enough, and the radius inside which that stays so.
    near: Option<(bool, Verdict)>,
    file: Option<FilePixels>,
}

impl Found {
    /// The radius inside which everything that is said stays true; several statements that hold always hold together.
    fn radius(&self) -> Option<Radius> {
        match self.near {
            None => self.verdict.radius(),
            Some((true, near)) => {
                let (first, near) = (self.verdict.radius()?, near.radius()?);
                Some(if near < first { near } else { first })
            }
            // A stranger stays one, whoever is nearest.
            Some((false, near)) => near.radius(),
        }
    }
}

pub(super) fn run(arguments: &QueryArgs, stored: &StoredGallery, out: &mut dyn Write) -> anyhow::Result<()> {
    let why = no_noise(&arguments.gallery);
    let given = [
        ("--alpha", arguments.alpha.is_some()),
        ("--samples", arguments.samples.is_some()),
        ("--pilot", arguments.pilot.is_some()),
        ("--target-radius", arguments.target_radius.is_some()),
        ("--seed", arguments.seed.is_some()),
    ];
    refuse_noise(&why, &given)?;
    if arguments.receipt.is_wanted() && arguments.within.is_some() {
        bail!("a receipt is about the label, found --within beside --receipt; wanted one of them");
    }
    if let Some(retriever) = arguments.retriever.filter(|&retriever| retriever != RetrieverArg::Plain) {
        let retriever = Retriever::from(retriever);
        bail!("the {retriever} retriever answers from noisy copies, and {why}; wanted plain");
    }
    let embedder = arguments.model.open_double(&why)?;
    let bound = embedder
        .lipschitz()
        .with_context(|| format!("{why}; an encoder without noise needs a Lipschitz bound"))?;
    let checked = check_gallery(stored, &arguments.gallery.display().to_string(), &embedder, None);
    checked.map_err(|error| with_config_difference(error, &arguments.gallery, &embedder))?;
    let bounded = LipschitzBounded {
        certificates: vec![CertificateName::Lipschitz],
        top_k: std::num::NonZeroUsize::MIN,
        mixtures: std::num::NonZeroUsize::MIN,
        lipschitz: bound.clone(),
    };
    let (pixels, file) = pixels_of(arguments, &embedder)?;
    let found = Found { file, ..find(arguments, stored, &embedder, &bounded, &pixels)? };
    if arguments.json { print_json(stored, &embedder, &found, out) } else { print(stored, &found, out) }
}

fn find(
    arguments: &QueryArgs,
    stored: &StoredGallery,
    embedder: &OnnxEmbedder,
    bounded: &LipschitzBounded,
    pixels: &[f32],
) -> anyhow::Result<Found> {
    let certifier = PlainCertifier::stored(bounded, stored)?;
    let gallery = stored.gallery();
    let identity = arguments.picture.display().to_string();
    let query = Query { relevant: Relevant::Retrieved(Retriever::Plain), excluded: &[] };
    let promise =
        arguments.receipt.promise_bounded(arguments, stored, embedder, (&query, pixels), bounded)?;
    let found = certifier.answer_picture(&query, embedder, (&identity, pixels))?;
    if let Some((promise, to)) = promise {
        promise.keep_bounded(gallery, &found, to.key()?.as_ref()).write(to.path)?;
    }
    let PlainAnswered { answered, bound } = found;
    let Answered { label, mut outcomes, mean, .. } = answered;
    let Outcome { verdict, .. } = outcomes.remove(0);
    let nearest = nearest_items(gallery, &mean, arguments.top_k.max(1), &[])?;
    let near = match (arguments.within, nearest.first()) {
        (Some(limit), Some(first)) => {
            let inside = first.squared_distance.sqrt() < limit;
            // Whoever stays beyond the nearest item's distance stays beyond everybody's.
            let side = if inside { Distance::Below(limit) } else { Distance::Above(limit) };
            let outcome = certifier.threshold(pixels, &mean, first.row, Threshold::Distance(side))?;
            Some((inside, outcome.verdict()))
        }
        _ => None,
    };
    let label = label.map(|label| gallery.label_name(label).to_owned());
    Ok(Found { label, nearest, verdict, bound, near, file: None })
}

fn print_json(
    stored: &StoredGallery,
    embedder: &OnnxEmbedder,
    found: &Found,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let radius = found.radius();
    let file_radius = found.file.zip(radius).and_then(|(file, radius)| file.radius(radius));
    let items =
        found.nearest.iter().map(|item| item_json(stored, item)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut value = json!({
        "label": found.label.as_ref().filter(|_| radius.is_some()),
        "candidate_label": found.label,
        "verdict": if radius.is_some() { "certified" } else { "abstained" },
        "radius": radius.map(Radius::get).filter(|radius| radius.is_finite()),
        "file_radius": file_radius.map(Radius::get).filter(|radius| radius.is_finite()),
        "unbounded": radius == Some(Radius::Unbounded),
        "retriever": Retriever::Plain,
        "guarantee": Guarantee::Always,
        "lipschitz": found.bound,
        "items": items,
        "model": embedder.facts().hash,
        "contract": embedder.model_config().hash(),
        "engine": embedder.report(),
    });
    if let Some((inside, _)) = found.near {
        value["match"] = json!(inside);
        if !inside {
            value["label"] = json!(null);
        }
    }
    writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    Ok(())
}

fn print(stored: &StoredGallery, found: &Found, out: &mut dyn Write) -> anyhow::Result<()> {
    let label = found.label.as_deref().unwrap_or("none");
    match (found.near, found.radius()) {
        (Some((false, _)), Some(radius)) => writeln!(
            out,
            "no match: no change of the prepared picture with l2 norm below {radius} brings any item within the distance, always"
        )?,
        (Some((false, _)), None) => {
            writeln!(
                out,
                "no match: the nearest item is beyond the distance by less than rounding can tell"
            )?;
        }
        (near, Some(radius)) => writeln!(
            out,
            "label {label}: no change of the prepared picture with l2 norm below {radius} changes it{}, always\n\
             (plain retriever, one pass; the encoder moves at most {} times as fast as the picture)",
            if near.is_some() { " or carries it beyond the distance" } else { "" },
            found.bound.constant,
        )?,
        (near, None) => writeln!(
            out,
            "abstained: two labels are equally near{}, as far as rounding can tell (candidate: {label})",
            if near.is_some() { ", or the nearest item is at the distance itself" } else { "" }
        )?,
    }
    if let Some((file, radius)) = found.file.zip(found.radius()) {
        writeln!(out, "{}", file.statement(radius))?;
    }
    print_items(stored, &found.nearest, out)
}
