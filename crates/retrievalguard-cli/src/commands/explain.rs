//! `retrievalguard explain`: the chain of numbers behind one certificate of a run.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use retrievalguard::certificate::{
    CertificateName, Explanation, Outcome, Radius, Retriever, StepValue, Verdict, statement_in_words,
};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Picture, Smoother};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::pipeline::{PlainCertifier, Query, QueryCertifier, Relevant};
use retrievalguard_encoder::run::{LipschitzBounded, Method, Procedure, Smoothed};
use retrievalguard_encoder::table::ResultRow;
use serde_json::json;

use super::certify_samples::words;
use super::run_directory::{RunDirectory, certificate_of, pixels_of};
use crate::arguments::EngineArgs;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard explain product-240/05.png --run retrievalguard-demo/certificates\n\n\
        The samples are drawn again from the run's seed, so the numbers are those behind the table; with another engine\n\
        they may differ, and are then called estimates."
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
    let embedder = run.encoder(&arguments.engine)?;
    let records = run.records()?;
    let record = &records[position];
    let pixels = pixels_of(record, &embedder)?;
    let picture = Picture { identity: &record.identity, pixels: &pixels };
    let excluded = run.excluded(&record.identity);
    let query = Query { relevant: Relevant::Label(&record.label), excluded };
    let again = match &run.description.method {
        Method::Smoothed(smoothed) => {
            draw_again(arguments, (&embedder, &stored), smoothed, name, &query, &picture)?
        }
        Method::Lipschitz(bounded) => {
            let bounded = LipschitzBounded { certificates: vec![name], ..bounded.clone() };
            let certifier = PlainCertifier::stored(&bounded, &stored)?;
            let found = certifier.answer_picture(&query, &embedder, (&record.identity, &pixels))?;
            found.answered.outcomes.into_iter().next().context("the run has no certificates")?
        }
    };
    let repeated = compare(&run, row, &again, &embedder)?;
    // What the run has proved is in its table; the samples drawn again can only show why.
    let recorded = row.certificates[&name];
    let found = again.verdict;
    let explain = match repeated {
        Repeated::Exactly => again.explain,
        Repeated::Otherwise => again.explain.estimated(),
    };
    let outcome = Outcome { name, verdict: recorded.verdict, samples: recorded.samples, explain };
    if arguments.json {
        let in_file = row.file.zip(recorded.verdict.radius()).and_then(|(file, radius)| file.radius(radius));
        let file_radius = in_file.map(Radius::get).filter(|radius| radius.is_finite());
        let value = json!({
            "query": row.identity,
            "label": row.label,
            "outcome": outcome,
            "file_radius": file_radius,
            "numbers_of_the_run": repeated == Repeated::Exactly,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        return Ok(());
    }
    print(&run, row, &outcome, repeated, out)?;
    if repeated == Repeated::Otherwise {
        writeln!(
            out,
            "estimated     with {}: there the numbers below lead to `{}`; the verdict above is the run's",
            embedder.report(),
            in_words(found)
        )?;
    }
    print_steps(&outcome.explain, out)
}

/// Draws the samples of one query once more and certifies them.
fn draw_again(
    arguments: &ExplainArgs,
    (embedder, stored): (&OnnxEmbedder, &StoredGallery),
    smoothed: &Smoothed,
    name: CertificateName,
    query: &Query<'_>,
    picture: &Picture<'_>,
) -> anyhow::Result<Outcome> {
    let smoother = Smoother::new(embedder, smoothed.procedure.sigma, smoothed.seed)
        .excess(smoothed.excess())
        .batch(arguments.engine.batch)
        .threads(arguments.engine.threads());
    // A run with a target radius has tested that one while samples came in, so that test alone says what was proved.
    let procedure = Procedure { certificates: vec![name], top_k: 1, ..smoothed.procedure.clone() };
    let certifier = QueryCertifier::stored(&procedure, stored);
    let draw = |stage, range| Ok(smoother.samples(picture, stage, range)?);
    Ok(certifier.answer(query, draw, anyhow::Error::from)?.outcomes.remove(0))
}

/// Whether samples drawn again give the verdict that the run has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeated {
    /// The numbers are those behind the verdict.
    Exactly,
    /// Another engine rounds otherwise: the numbers are near those behind the verdict, and prove nothing.
    Otherwise,
}

fn in_words(verdict: Verdict) -> String {
    let (word, radius) = words(verdict);
    if radius.is_empty() { word.to_owned() } else { format!("{word} within {radius}") }
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
) -> anyhow::Result<Repeated> {
    let cell = row.certificates[&outcome.name];
    let same = cell.verdict == outcome.verdict;
    if embedder.report().to_string() != run.description.encoder.engine {
        run.tell_engine(embedder);
        let adaptive =
            run.description.smoothed().is_ok_and(|smoothed| smoothed.procedure.target_radius.is_some());
        let exactly = same && cell.samples == outcome.samples && shows_its_numbers(outcome, adaptive);
        return Ok(if exactly { Repeated::Exactly } else { Repeated::Otherwise });
    }
    if same {
        return Ok(Repeated::Exactly);
    }
    bail!(
        "the table says {:?} of `{}`, the samples drawn again say {:?}; the picture or the program has changed",
        cell.verdict,
        row.identity,
        outcome.verdict
    )
}

/// Whether a verdict that comes out again to the last bit came from the same numbers.
///
/// A radius that was computed from them did. An abstention and an unbounded radius come from many; an adaptive test proves
/// the radius that it was given, and those of a vote and of pairwise comparisons follow from counts.
fn shows_its_numbers(outcome: &Outcome, adaptive: bool) -> bool {
    let computed = matches!(outcome.verdict.radius(), Some(Radius::Finite(_)));
    computed && !adaptive && matches!(Retriever::of(outcome.name), Retriever::Mean | Retriever::Plain)
}

fn print(
    run: &RunDirectory,
    row: &ResultRow,
    outcome: &Outcome,
    repeated: Repeated,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let ResultRow { identity, label, retrieved, retrieved_label, retrieved_view, .. } = row;
    let by = |view: &Option<String>| view.as_ref().map(|view| format!(", view {view}")).unwrap_or_default();
    writeln!(out, "query         {identity}, label {label}")?;
    writeln!(out, "retrieved     {retrieved}, label {retrieved_label}{}", by(retrieved_view))?;
    if let Some(wrong) = &row.nearest_wrong {
        writeln!(out, "nearest wrong {}, label {}{}", wrong.identity, wrong.label, by(&wrong.view))?;
    }
    // The voting retriever has two rules, and an adaptive test has two, too; samples of another engine may choose the other.
    match outcome.explain.value("rule").filter(|_| repeated == Repeated::Exactly) {
        Some(rule) => writeln!(out, "certificate   {}, {rule}", outcome.name)?,
        None => writeln!(out, "certificate   {}", outcome.name)?,
    }
    let procedure = run.description.smoothed().ok().map(|smoothed| &smoothed.procedure);
    match outcome.verdict {
        Verdict::Certified { radius: Radius::Unbounded } => {
            writeln!(out, "verdict       certified: no perturbation of any size changes the label")?;
        }
        Verdict::Certified { radius } => match procedure {
            Some(Procedure { alpha, sigma, .. }) => writeln!(
                out,
                "verdict       certified: no perturbation with an l2 norm below {radius} ({:.3} sigma) changes the label,\n\
                 \x20             except with probability {alpha} over the noise",
                radius.in_sigmas(*sigma)
            )?,
            None => writeln!(
                out,
                "verdict       certified: no perturbation with an l2 norm below {radius} changes the label, always"
            )?,
        },
        Verdict::Abstained if procedure.is_none() => {
            writeln!(
                out,
                "verdict       abstained: the label is right, but rounding takes what little there is to prove"
            )?;
        }
        Verdict::Abstained => match procedure.and_then(|procedure| procedure.target_radius) {
            Some(target) => writeln!(
                out,
                "verdict       abstained: the label is right, but {} samples do not prove the radius {target}",
                outcome.samples
            )?,
            None => writeln!(
                out,
                "verdict       abstained: the label is right, but {} samples prove no radius",
                outcome.samples
            )?,
        },
        Verdict::Misretrieved => {
            writeln!(out, "verdict       misretrieved: another label is retrieved")?;
        }
    }
    if let Some((file, radius)) = row.file.zip(outcome.verdict.radius()) {
        writeln!(out, "in the file   {}", file.statement(radius))?;
    }
    if !run.excluded(identity).is_empty() {
        writeln!(out, "              among the items other than the query's own picture")?;
    }
    Ok(())
}

fn print_steps(explanation: &Explanation, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out)?;
    for step in explanation.steps() {
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
    for reference in references(explanation) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_radius_that_was_computed_from_the_samples_shows_which_they_were() {
        let certified = |radius| Verdict::Certified { radius };
        let finite = certified(Radius::Finite(0.25));
        for (name, verdict, adaptive, shows) in [
            (CertificateName::HalfSpace, finite, false, true),
            (CertificateName::HalfSpace, finite, true, false),
            (CertificateName::HalfSpace, certified(Radius::Unbounded), false, false),
            (CertificateName::HalfSpace, Verdict::Abstained, false, false),
            (CertificateName::HalfSpace, Verdict::Misretrieved, false, false),
            (CertificateName::Vote, finite, false, false),
            (CertificateName::Pairwise, finite, false, false),
            (CertificateName::Lipschitz, finite, false, true),
        ] {
            let outcome = Outcome { name, verdict, samples: 100, explain: Explanation::default() };
            assert_eq!(shows_its_numbers(&outcome, adaptive), shows, "{name} {verdict:?} {adaptive}");
        }
    }
}
