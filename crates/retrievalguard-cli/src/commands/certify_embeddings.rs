//! `retrievalguard certify --embeddings-file`: certificates without noise of embeddings made elsewhere, no encoder.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use retrievalguard::certificate::{
    ConstantOrigin, LipschitzBound, LipschitzCertifier, LipschitzName, LipschitzOutcome, Mixtures, Radius,
    Verdict,
};
use retrievalguard::evaluation::Guarantee;
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::storage::npy;
use retrievalguard::{ForwardError, LipschitzConstant};
use retrievalguard_encoder::table::gallery_file::import_npy;
use serde_json::{Map, Value, json};

use super::certify::CertifyArgs;
use super::certify_samples::{labels, words};
use crate::progress::tell;

/// What says nothing about one embedding per query.
const NOT_WITH_EMBEDDINGS: [&str; 40] = [
    "keep_samples",
    "receipts",
    "replan_bets",
    "non_negative",
    "samples_file",
    "pilot_file",
    "norm_bound",
    "discrete",
    "gallery_samples",
    "sigma",
    "alpha",
    "simultaneous",
    "samples",
    "pilot",
    "seed",
    "certificate",
    "retriever",
    "target_radius",
    "project",
    "queries",
    "gallery",
    "model",
    "contract",
    "leave_one_out",
    "jsonl",
    "tsv",
    "split",
    "skip_broken",
    "every",
    "boxes",
    "limit",
    "format",
    "out",
    "share",
    "chunk",
    "engine",
    "onnxruntime",
    "provider",
    "threads",
    "batch",
];

/// Embeddings of an encoder that moves no faster than a constant.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Embeddings made elsewhere, by a Lipschitz encoder")]
pub(crate) struct EmbeddingFile {
    /// One embedding per query, .npy: (queries, k), or (k); needs no noise, no alpha and no samples
    #[arg(
        long,
        value_name = "FILE",
        requires = "gallery_file",
        requires = "lipschitz",
        conflicts_with_all = NOT_WITH_EMBEDDINGS
    )]
    pub(super) embeddings_file: Option<PathBuf>,
    /// Lipschitz constant of the encoder, from pixels in [0, 1] to embeddings, in the l2 norm: your word is taken for it
    #[arg(long, value_name = "L", requires = "embeddings_file", allow_negative_numbers = true)]
    lipschitz: Option<LipschitzConstant>,
    /// Largest l2 error with which the encoder computes its embeddings; twice of it is taken off
    #[arg(
        long,
        value_name = "E",
        default_value = "0",
        requires = "embeddings_file",
        allow_negative_numbers = true
    )]
    forward_error: ForwardError,
}

pub(super) fn run(arguments: &CertifyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (files, own) = (&arguments.files, &arguments.embeddings);
    let (Some(path), Some(gallery_file), Some(gallery_labels), Some(constant)) =
        (&own.embeddings_file, &files.gallery_file, &files.gallery_labels, own.lipschitz)
    else {
        bail!("wanted --embeddings-file, --gallery-file, --gallery-labels and --lipschitz together")
    };
    let gallery = import_npy(gallery_file, gallery_labels, None, Some(Metric::Euclidean))?.gallery;
    let embeddings = read(path, gallery.dimension())?;
    let queries = embeddings.len() / gallery.dimension();
    let labels = labels(arguments, queries)?;
    let bound = LipschitzBound { constant, forward_error: own.forward_error, origin: ConstantOrigin::Stated };
    tell(format_args!(
        "note: the Lipschitz constant {constant} and the forward error {} are your word; `retrievalguard check-model --lipschitz` \
         computes a constant from a model's weights",
        own.forward_error
    ));
    let certifier = LipschitzCertifier::new(&gallery, bound)
        .top_k(arguments.top_k)
        .mixtures(arguments.mixtures.map_or(Mixtures::One, Mixtures::UpTo));
    for (position, embedding) in embeddings.chunks_exact(gallery.dimension()).enumerate() {
        let answer = Answer::new(&certifier, embedding, labels.get(position).map(String::as_str))
            .with_context(|| format!("query {position} of `{}` cannot be certified", path.display()))?;
        if !arguments.json {
            answer.print(&gallery, position, out)?;
        } else if queries == 1 {
            writeln!(out, "{:#}", answer.json(&certifier))?;
        } else {
            let mut value = answer.json(&certifier);
            value["query"] = json!(position);
            writeln!(out, "{value}")?;
        }
    }
    Ok(())
}

/// The embeddings, laid end to end, in double precision.
fn read(path: &Path, dimension: usize) -> anyhow::Result<Vec<f64>> {
    let array = npy::read(path)?;
    let columns = match *array.shape() {
        [columns] => columns,
        [rows, columns] if rows > 0 => columns,
        _ => bail!(
            "`{}` has shape {:?}, wanted (queries, dimension) or (dimension)",
            path.display(),
            array.shape()
        ),
    };
    if columns != dimension {
        bail!(
            "`{}` has embeddings of dimension {columns}, the gallery's vectors have {dimension}",
            path.display()
        );
    }
    Ok(array.into_f64())
}

/// What is said about one query.
struct Answer {
    retrieved: Option<usize>,
    label: Option<String>,
    outcomes: Vec<LipschitzOutcome>,
}

impl Answer {
    fn new(
        certifier: &LipschitzCertifier<'_>,
        embedding: &[f64],
        label: Option<&str>,
    ) -> anyhow::Result<Self> {
        let gallery = certifier.gallery();
        let retrieved = certifier.retrieve(embedding, &[])?.map(|found| found.row);
        let wanted = match label {
            Some(name) => {
                let found = gallery.label_named(name);
                if found.is_none() {
                    tell(format_args!("note: the gallery has no label `{name}`, so it cannot be retrieved"));
                }
                found
            }
            None => retrieved.map(|row| gallery.label(row)),
        };
        let relevance = Relevance::new(wanted.map_or(Positives::Absent, Positives::Label), vec![]);
        let outcomes = LipschitzName::ALL
            .into_iter()
            .map(|name| certifier.certify(name, embedding, &relevance))
            .collect::<Result<_, _>>()?;
        let label = wanted.map(|label| gallery.label_name(label).to_owned());
        Ok(Self { retrieved, label, outcomes })
    }

    fn json(&self, certifier: &LipschitzCertifier<'_>) -> Value {
        let gallery = certifier.gallery();
        let certificates: Map<String, Value> = self
            .outcomes
            .iter()
            .map(|outcome| {
                let mut value = verdict_json(outcome.verdict());
                value["explain"] = json!(outcome.explain);
                if outcome.verdicts.len() > 1 {
                    value["recall_at_k"] = outcome.verdicts.iter().copied().map(verdict_json).collect();
                }
                (outcome.name.to_string(), value)
            })
            .collect();
        json!({
            "retrieved": self.retrieved,
            "retrieved_label": self.retrieved.map(|row| gallery.label_name(gallery.label(row))),
            "label": self.label,
            "certificates": certificates,
            "lipschitz": certifier.bound(),
            "guarantee": Guarantee::Always,
            "guarantee_in_words": format!(
                "{}, if the constant and the forward error that were stated are right",
                Guarantee::Always
            ),
        })
    }

    fn print(&self, gallery: &Gallery, position: usize, out: &mut dyn Write) -> anyhow::Result<()> {
        let retrieved = self.retrieved.map_or("nothing".to_owned(), |row| {
            format!("row {row}, label {}", gallery.label_name(gallery.label(row)))
        });
        writeln!(out, "query {position}: retrieved {retrieved}")?;
        for outcome in &self.outcomes {
            for (place, &verdict) in outcome.verdicts.iter().enumerate() {
                let (verdict, radius) = words(verdict);
                let name =
                    if place == 0 { outcome.name.to_string() } else { format!("  recall@{}", place + 1) };
                let held = if radius.is_empty() { "" } else { "  always, if L is right" };
                writeln!(out, "  {name:<16} {verdict:<13} {radius}{held}")?;
            }
        }
        Ok(())
    }
}

fn verdict_json(verdict: Verdict) -> Value {
    let radius = verdict.radius();
    json!({
        "verdict": words(verdict).0,
        "radius": radius.map(Radius::get).filter(|radius| radius.is_finite()),
        "unbounded": radius == Some(Radius::Unbounded),
    })
}
