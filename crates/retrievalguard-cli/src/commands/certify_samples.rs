//! `retrievalguard certify --samples-file`: the same certificates from embeddings made elsewhere, no encoder.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use retrievalguard::certificate::{CertificateError, Outcome, Outputs, Radius, SampledQuery, Verdict};
use retrievalguard::gallery::{Gallery, Label, Metric};
use retrievalguard::storage::npy::{self, Matrix};
use retrievalguard::{Components, Excess, NormBound, SampleCount, Samples};
use retrievalguard_encoder::pipeline::{Answered, Query, QueryCertifier, Relevant};
use retrievalguard_encoder::run::Procedure;
use retrievalguard_encoder::table::gallery_file::{import_npy, read_labels};
use serde_json::{Map, Value, json};

use super::certify::{CertifyArgs, USUAL_NORM_BOUND};
use crate::arguments::{components, in_flags};
use crate::progress::tell;

/// What says nothing about samples that are there already.
const NOT_WITH_SAMPLES: [&str; 19] = [
    "queries",
    "gallery",
    "model",
    "contract",
    "samples",
    "pilot",
    "target_radius",
    "top_k",
    "leave_one_out",
    "keep_samples",
    "receipts",
    "jsonl",
    "tsv",
    "split",
    "skip_broken",
    "every",
    "boxes",
    "format",
    "limit",
];

/// Files that stand in for an encoder.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Embeddings made elsewhere")]
pub(crate) struct SampleFiles {
    /// Embeddings of noisy copies, .npy: (n, k), or (queries, n, k)
    #[arg(long, value_name = "FILE", requires = "gallery_file", conflicts_with_all = NOT_WITH_SAMPLES)]
    pub(super) samples_file: Option<PathBuf>,
    /// Pilot embeddings, .npy of the same rank; the first tenth of the samples serves if absent
    #[arg(long, value_name = "FILE", requires = "samples_file")]
    pilot_file: Option<PathBuf>,
    /// Gallery vectors, .npy: (items, k)
    #[arg(long, value_name = "FILE", requires = "gallery_labels")]
    pub(super) gallery_file: Option<PathBuf>,
    /// Labels of the gallery, one per line
    #[arg(long, value_name = "FILE")]
    pub(super) gallery_labels: Option<PathBuf>,
    /// Label to certify; what is retrieved (by the pilot) if absent
    #[arg(long, conflicts_with = "labels_file")]
    label: Option<String>,
    /// One label per query, one per line
    #[arg(long, value_name = "FILE")]
    labels_file: Option<PathBuf>,
    /// Norm bound F of the embeddings, 1 by default
    #[arg(long, value_name = "F")]
    norm_bound: Option<NormBound>,
    /// Let rows repeat: the encoder has few outputs (signs, hashes), and you promise that each row has independent noise
    #[arg(long, requires = "samples_file")]
    discrete: bool,
    /// Noisy copies behind each gallery vector, for paper-repaired
    #[arg(long, value_name = "N")]
    gallery_samples: Option<SampleCount>,
}

pub(super) fn run(arguments: &CertifyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let files = &arguments.files;
    let (Some(samples_file), Some(gallery_file), Some(gallery_labels)) =
        (&files.samples_file, &files.gallery_file, &files.gallery_labels)
    else {
        bail!("wanted --samples-file, --gallery-file and --gallery-labels together")
    };
    let Some(sigma) = arguments.sigma else { bail!("--samples-file was given without --sigma, wanted both") };
    let gallery = import_npy(gallery_file, gallery_labels, None, Some(Metric::Euclidean))?.gallery;
    let samples = read(samples_file)?;
    let pilots = files.pilot_file.as_deref().map(read).transpose()?;
    if let (Some(pilots), Some(pilot_file)) = (&pilots, &files.pilot_file)
        && pilots.len() != samples.len()
    {
        bail!(
            "`{}` has pilots for {} queries, `{}` samples for {}",
            pilot_file.display(),
            pilots.len(),
            samples_file.display(),
            samples.len()
        );
    }
    let labels = labels(arguments, samples.len())?;
    if pilots.is_none() {
        tell(format_args!(
            "note: no --pilot-file, so the first tenth of the samples is the pilot and the rest certifies"
        ));
    }
    let bound = files.norm_bound.unwrap_or(USUAL_NORM_BOUND);
    let excess = if arguments.project { Excess::Project } else { Excess::Refuse };
    let components = components(arguments.non_negative);
    let outputs = if files.discrete { Outputs::Discrete } else { Outputs::Continuous };
    if arguments.mixtures.is_some() {
        bail!("--mixtures is for lipschitz, wanted none beside --samples-file");
    }
    let options = arguments.options(Some(sigma));
    options.check().map_err(in_flags)?;
    if let Some(name) = options.certificates.iter().find(|name| name.lipschitz().is_some()) {
        bail!(
            "{name} is computed from one embedding per query, wanted --embeddings-file instead of --samples-file"
        );
    }
    let procedure = options.procedure(sigma, samples.len()).map_err(in_flags)?;
    let procedure = Procedure { top_k: 1, target_radius: None, ..procedure };
    let certifier = QueryCertifier::new(&procedure, &gallery).gallery_samples(files.gallery_samples);
    let single = samples.len() == 1;
    let mut pilots = pilots.map(Vec::into_iter);
    for (position, matrix) in samples.into_iter().enumerate() {
        let pilot = pilots.as_mut().and_then(Iterator::next);
        let (pilot, certifying) = samples_of(matrix, pilot, bound, (excess, components))
            .with_context(|| format!("query {position} of `{}` cannot be used", samples_file.display()))?;
        let query = certifier
            .certifier()
            .sampled(pilot, certifying, outputs)
            .with_context(|| format!("query {position} of `{}` cannot be used", samples_file.display()))?;
        let answer =
            Answer::new(&certifier, query, labels.get(position).map(String::as_str)).with_context(|| {
                format!("query {position} of `{}` cannot be certified", samples_file.display())
            })?;
        if arguments.json {
            let mut value = answer.json(&gallery);
            if !single && let Value::Object(object) = &mut value {
                object.insert("query".to_owned(), json!(position));
            }
            writeln!(
                out,
                "{}",
                if single { serde_json::to_string_pretty(&value)? } else { value.to_string() }
            )?;
        } else {
            answer.print(&gallery, position, out)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<Matrix>> {
    Ok(npy::read(path)?.into_matrices(path)?)
}

/// The labels to certify, one per query, or none where the pilot decides.
pub(super) fn labels(arguments: &CertifyArgs, queries: usize) -> anyhow::Result<Vec<String>> {
    let files = &arguments.files;
    if let Some(label) = &files.label {
        return Ok(vec![label.clone(); queries]);
    }
    let Some(path) = &files.labels_file else { return Ok(Vec::new()) };
    let labels = read_labels(path)?;
    if labels.len() != queries {
        bail!("`{}` has {} labels, wanted one for each of {queries} queries", path.display(), labels.len());
    }
    Ok(labels)
}

/// Pilot and certifying sample.
fn samples_of(
    matrix: Matrix,
    pilot: Option<Matrix>,
    bound: NormBound,
    (excess, components): (Excess, Components),
) -> anyhow::Result<(Samples, Samples)> {
    let make = |matrix: Matrix| {
        Samples::new(matrix.values, matrix.columns, bound, excess).map(|samples| samples.with(components))
    };
    let all = make(matrix)?;
    if let Some(pilot) = pilot {
        return Ok((make(pilot).context("the pilot cannot be used")?, all));
    }
    let tenth = (all.count() / 10).max(1);
    match (all.slice(0..tenth), all.slice(tenth..all.count())) {
        (Some(pilot), Some(certifying)) => Ok((pilot, certifying)),
        _ => bail!(
            "{} samples are too few for a pilot and a certifying sample, wanted at least 2",
            all.count()
        ),
    }
}

/// What is said about one query.
struct Answer {
    retrieved: Option<usize>,
    label: Option<Label>,
    outcomes: Vec<Outcome>,
}

impl Answer {
    fn new(
        certifier: &QueryCertifier<'_>,
        query: SampledQuery,
        label: Option<&str>,
    ) -> Result<Self, CertificateError> {
        if let Some(name) = label.filter(|name| certifier.gallery().label_named(name).is_none()) {
            tell(format_args!("note: the gallery has no label `{name}`, so it cannot be retrieved"));
        }
        let relevant = label.map_or(Relevant::Retrieved(certifier.retriever()), Relevant::Label);
        let answered = certifier.answer_sampled(&Query { relevant, excluded: &[] }, query)?;
        let Answered { label, outcomes, mean, .. } = answered;
        let retrieved = certifier.nearest(&mean, 1, &[])?.first().map(|found| found.row);
        Ok(Self { retrieved, label, outcomes })
    }

    fn json(&self, gallery: &Gallery) -> Value {
        let certificates: Map<String, Value> = self
            .outcomes
            .iter()
            .map(|outcome| {
                let radius = outcome.verdict.radius();
                let (verdict, _) = words(outcome.verdict);
                let value = json!({
                    "verdict": verdict,
                    "radius": radius.map(Radius::get).filter(|radius| radius.is_finite()),
                    "unbounded": radius == Some(Radius::Unbounded),
                    "samples": outcome.samples,
                    "explain": outcome.explain,
                });
                (outcome.name.to_string(), value)
            })
            .collect();
        json!({
            "retrieved": self.retrieved,
            "retrieved_label": self.retrieved.map(|row| gallery.label_name(gallery.label(row))),
            "label": self.label.map(|label| gallery.label_name(label)),
            "certificates": certificates,
        })
    }

    fn print(&self, gallery: &Gallery, position: usize, out: &mut dyn Write) -> anyhow::Result<()> {
        let retrieved = self.retrieved.map_or("nothing".to_owned(), |row| {
            format!("row {row}, label {}", gallery.label_name(gallery.label(row)))
        });
        writeln!(out, "query {position}: retrieved {retrieved}")?;
        for outcome in &self.outcomes {
            let (verdict, radius) = words(outcome.verdict);
            writeln!(out, "  {:<16} {verdict:<13} {radius}", outcome.name)?;
        }
        Ok(())
    }
}

/// The verdict and its radius, as people read them.
pub(super) fn words(verdict: Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Certified { radius } => ("certified", radius.to_string()),
        Verdict::Abstained => ("abstained", String::new()),
        Verdict::Misretrieved => ("misretrieved", String::new()),
    }
}
