//! `retrievalguard explain`: the chain of numbers behind one certificate of a run.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use retrievalguard::certificate::{
    AdaptiveOptions, AdaptiveTest, CertificateName, Certifier, Explanation, Outcome, Radius, SampledQuery,
    StepValue, Verdict, statement_in_words,
};
use retrievalguard::gallery::{Positives, Question};
use retrievalguard::noise::Stage;
use retrievalguard::{Picture, SampleCount, Smoother};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::table::ResultRow;
use serde_json::json;

use super::run_directory::{RunDirectory, certificate_of, pixels_of};
use crate::arguments::EngineArgs;
use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard explain product-240/05.png --run retrievalguard-demo/certificates\n\n\
        The samples are drawn again from the run's seed, so the numbers are those behind the table."
)]
pub(crate) struct ExplainArgs {
    /// The query: its identity in the run, or the end of it
    query: String,
    /// The run, as written by `retrievalguard certify` or `retrievalguard demo`
    #[arg(long, value_name = "DIR", default_value = "certificates")]
    run: PathBuf,
    /// The certificate to explain; half-space or, if the run has none, its first by default
    #[arg(long)]
    certificate: Option<CertificateName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(arguments: &ExplainArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let run = RunDirectory::open(&arguments.run)?;
    let position = find(run.table.rows(), &arguments.query)?;
    let row = &run.table.rows()[position];
    let name = certificate_of(&run, arguments.certificate)?;
    let stored = run.gallery()?;
    let gallery = &stored.gallery;
    let embedder = run.encoder(&arguments.engine)?;
    let description = &run.description;
    let record = run.records()?.swap_remove(position);
    let pixels = pixels_of(&record, &embedder)?;
    let picture = Picture { identity: &record.identity, pixels: &pixels };
    let smoother = Smoother::new(&embedder, description.sigma, description.seed)
        .excess(description.excess())
        .batch(arguments.engine.batch)
        .threads(arguments.engine.threads());
    let mut certifier = Certifier::new(gallery, description.sigma, description.alpha);
    let behind = stored.manifest.provenance.samples;
    if let Some(samples) = behind.and_then(|count| SampleCount::new(u64::from(count)).ok()) {
        certifier = certifier.gallery_samples(samples);
    }
    let label = gallery.label_named(&record.label);
    let question = Question::new(
        label.map_or(Positives::Absent, Positives::Label),
        run.excluded(&record.identity).to_vec(),
    );
    let pilot = smoother.samples(&picture, Stage::Pilot, 0..description.pilot.get())?;
    let draw = |range| smoother.samples(&picture, Stage::Certify, range);
    let outcome = match description.target_radius {
        Some(target) => {
            let options = AdaptiveOptions::new(target, description.samples);
            let decided = AdaptiveTest::new(&certifier, &pilot, &question, &options)?
                .run(|range| Ok(draw(range)?), anyhow::Error::from)?;
            // The adaptive rule decides one radius; the chain is that of the fixed-size test on the same samples.
            tell(format_args!(
                "note: the run decided the radius {target} adaptively: {:?}",
                decided.outcome.decision
            ));
            let certifying = decided.samples.unwrap_or_else(|| pilot.clone());
            let chain = certifier.certify(name, &SampledQuery { pilot, certifying }, &question)?;
            Outcome { verdict: decided.outcome.verdict, samples: decided.outcome.samples, ..chain }
        }
        None => {
            let certifying = draw(0..description.samples.get())?;
            certifier.certify(name, &SampledQuery { pilot, certifying }, &question)?
        }
    };
    compare(&run, row, &outcome, &embedder)?;
    if arguments.json {
        let value = json!({ "query": row.identity, "label": row.label, "outcome": outcome });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        return Ok(());
    }
    print(&run, row, &outcome, out)
}

/// The row of an identity, or of the only identity that ends so.
fn find(rows: &[ResultRow], query: &str) -> anyhow::Result<usize> {
    if let Some(position) = rows.iter().position(|row| row.identity == query) {
        return Ok(position);
    }
    let ending: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].identity.ends_with(query)).collect();
    match ending.as_slice() {
        [position] => Ok(*position),
        [] => bail!(
            "the run has no query `{query}`, wanted one of its {}, `{}` for instance",
            rows.len(),
            rows.first().map_or("", |row| &row.identity)
        ),
        several => bail!("{} queries of the run end in `{query}`, wanted one of them", several.len()),
    }
}

/// An explanation of another verdict than the table's would explain nothing.
fn compare(
    run: &RunDirectory,
    row: &ResultRow,
    outcome: &Outcome,
    embedder: &OnnxEmbedder,
) -> anyhow::Result<()> {
    let cell = row.certificates[&outcome.name];
    if cell.verdict == outcome.verdict {
        return Ok(());
    }
    if embedder.report().to_string() != run.description.engine {
        run.tell_engine(embedder);
        return Ok(());
    }
    bail!(
        "the table says {:?} of `{}`, the samples drawn again say {:?}; the picture or the program has changed",
        cell.verdict,
        row.identity,
        outcome.verdict
    )
}

fn print(run: &RunDirectory, row: &ResultRow, outcome: &Outcome, out: &mut dyn Write) -> anyhow::Result<()> {
    let ResultRow { identity, label, retrieved, retrieved_label, .. } = row;
    writeln!(out, "query         {identity}, label {label}")?;
    writeln!(out, "retrieved     {retrieved}, label {retrieved_label}")?;
    if let Some(wrong) = &row.nearest_wrong {
        writeln!(out, "nearest wrong {}, label {}", wrong.identity, wrong.label)?;
    }
    writeln!(out, "certificate   {}", outcome.name)?;
    let (alpha, sigma) = (run.description.alpha, run.description.sigma);
    match outcome.verdict {
        Verdict::Certified { radius: Radius::Unbounded } => {
            writeln!(out, "verdict       certified: no perturbation of any size changes the label")?;
        }
        Verdict::Certified { radius } => writeln!(
            out,
            "verdict       certified: no perturbation with an l2 norm below {radius} ({:.3} sigma) changes the label,\n\
             \x20             except with probability {alpha} over the noise",
            radius.in_sigmas(sigma)
        )?,
        Verdict::Abstained => {
            writeln!(
                out,
                "verdict       abstained: the label is right, but {} samples prove no radius",
                outcome.samples
            )?;
        }
        Verdict::Misretrieved => {
            writeln!(out, "verdict       misretrieved: the nearest item has another label")?;
        }
    }
    if !run.excluded(identity).is_empty() {
        writeln!(out, "              among the items other than the query's own picture")?;
    }
    writeln!(out)?;
    for step in outcome.explain.steps() {
        writeln!(out, "{:<28} {:<24} {}", step.quantity, shown(&step.value), step.statement)?;
        if let StepValue::List(values) = &step.value {
            for line in values.chunks(10) {
                let numbers: Vec<String> = line.iter().map(|value| format!("{value:>9.4}")).collect();
                writeln!(out, "    {}", numbers.join(" "))?;
            }
        }
    }
    writeln!(out)?;
    writeln!(out, "the statements (docs/theory.md has their proofs)")?;
    for reference in references(&outcome.explain) {
        writeln!(out, "  {reference:<28} {}", statement_in_words(&reference).unwrap_or_default())?;
    }
    Ok(())
}

/// A value on the line of its quantity; a list follows below it.
fn shown(value: &StepValue) -> String {
    match value {
        StepValue::List(values) => format!("{} numbers", values.len()),
        other => other.to_string(),
    }
}

/// Every statement that the steps refer to, once, in their order.
fn references(explanation: &Explanation) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for step in explanation.steps() {
        // `theory 2.4, 2.5` are two statements, `theory 2.3, first form` is one.
        let both = step
            .statement
            .split_once(", ")
            .filter(|(_, rest)| rest.starts_with(|sign: char| sign.is_ascii_digit()));
        let parts = match both {
            Some((first, rest)) => vec![first.to_owned(), format!("theory {rest}")],
            None => vec![step.statement.to_string()],
        };
        for part in parts {
            if !found.contains(&part) {
                found.push(part);
            }
        }
    }
    found
}
