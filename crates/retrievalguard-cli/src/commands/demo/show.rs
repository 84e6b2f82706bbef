//! What a demo ends with: one table and one figure of both kinds of certificates, in words, and what to try next.

use std::io::Write;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::{CertificateName, Radius};
use retrievalguard::evaluation::Guarantee;
use retrievalguard_encoder::dataset::RecordSet;
use retrievalguard_encoder::pipeline::CertifyReport;
use retrievalguard_encoder::run::TableDescription;
use retrievalguard_encoder::synthetic::Part;
use retrievalguard_report::comparison::{ComparedRun, Comparison, Curve};

use super::super::compare::{USUAL, print_table, write_comparison};
use super::super::{command_note, quoted};
use super::{DemoArgs, DemoPaths, VIEWS};

/// Radii at which certificates are compared.
const COMPARED_AT: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 1.0];

/// The same queries, certified three times.
pub(super) struct Runs {
    pub(super) smoothed: CertifyReport,
    /// One pass, without noise.
    pub(super) bounded: CertifyReport,
    /// The same against several views of each item.
    pub(super) views: CertifyReport,
}

impl Runs {
    /// Every certificate with its numbers, those with noise first.
    fn curves(&self, arguments: &DemoArgs) -> anyhow::Result<Vec<Curve>> {
        let mut curves = Vec::new();
        for (name, report) in
            [(None, &self.smoothed), (None, &self.bounded), (Some(VIEWS.to_owned()), &self.views)]
        {
            let guarantee = match report.table.sigma() {
                Some(_) => Guarantee::PerQuery { alpha: arguments.alpha },
                None => Guarantee::Always,
            };
            let description = TableDescription::Run(Box::new(report.description.clone()));
            let (table, description) = (&report.table, Some(&description));
            curves.extend(ComparedRun { name, panel: 0, table, description, guarantee }.curves(|_| true)?);
        }
        Ok(curves)
    }
}

/// The table, what it means, the figure, where everything is and what to try next.
pub(super) fn show(
    arguments: &DemoArgs,
    paths: &DemoPaths,
    runs: &Runs,
    queries: &RecordSet,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let curves = runs.curves(arguments)?;
    let items = runs.smoothed.description.gallery.items;
    let mut comparison = Comparison {
        title: "Certified Recall@1 with noise and without".to_owned(),
        note: command_note(),
        panels: vec![format!("{} queries against {items} items", queries.len())],
        curves,
    };
    print_table(&comparison, &COMPARED_AT, out)?;
    let wrong =
        Guarantee::PerQuery { alpha: arguments.alpha }.expected_failures(u32::try_from(queries.len())?);
    writeln!(
        out,
        "sigma {}; among the {} certificates of a row at most {wrong} wrong ones are to be expected, none of lipschitz;\n\
         ({VIEWS}): against nine views of each item\n",
        arguments.sigma,
        queries.len()
    )?;
    explain(&comparison.curves, out)?;
    comparison.curves.retain(|curve| USUAL.contains(&curve.certificate));
    write_comparison(&comparison, &COMPARED_AT, &paths.figure)?;

    let shown = |path: &Path| path.display().to_string();
    writeln!(out, "\nwhere it lies")?;
    for (what, path) in [
        ("the table as a figure", paths.figure.clone()),
        ("table of certificates", paths.certificates.join("certificates.parquet")),
        ("the same as JSON lines", paths.certificates.join("certificates.jsonl")),
        ("gallery", paths.gallery.clone()),
        ("pictures", paths.pictures.clone()),
        ("encoder and its config", paths.encoder.clone()),
        ("the same without noise", paths.without_noise.clone()),
    ] {
        writeln!(out, "  {what:<25} {}", shown(&path))?;
    }
    try_next(arguments, paths, queries, out)
}

/// Commands that work as they are printed.
fn try_next(
    arguments: &DemoArgs,
    paths: &DemoPaths,
    queries: &RecordSet,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let program = std::env::args_os().next().map_or_else(|| "retrievalguard".into(), PathBuf::from);
    let [program, gallery, model, table, pictures, decisions] = [
        &program,
        &paths.gallery,
        &paths.encoder,
        &paths.certificates.join("certificates.parquet"),
        &paths.part(Part::Queries),
        &arguments.out.join("decisions"),
    ]
    .map(|path| quoted(path));
    let picture = quoted(&paths.part(Part::Queries).join(&queries[0].identity));
    let run = quoted(&paths.certificates);
    let with =
        format!("--gallery {gallery} --model {model} --sigma {}{}", arguments.sigma, engine(arguments));
    writeln!(out, "\ntry next")?;
    writeln!(out, "  {program} report {run}")?;
    writeln!(out, "  {program} explain {} --run {run}{}", queries[0].identity, engine(arguments))?;
    writeln!(out, "  {program} query {picture} {with}")?;
    writeln!(out, "  {program} evaluate {table} --radii 0,0.1,0.2,0.4")?;
    writeln!(
        out,
        "  {program} certify {pictures} {with} --target-radius 0.1 --samples 5000 --every 9 --out {decisions}"
    )?;
    Ok(())
}

/// What the table proves, in words.
fn explain(curves: &[Curve], out: &mut dyn Write) -> anyhow::Result<()> {
    let of = |wanted: CertificateName| curves.iter().find(|curve| curve.certificate == wanted);
    let (Some(half_space), Some(paper)) = (of(CertificateName::HalfSpace), of(CertificateName::Paper)) else {
        return Ok(());
    };
    let queries = half_space.summary.queries;
    let [here, there] = [half_space, paper].map(|curve| curve.summary.average_finite_radius);
    writeln!(
        out,
        "The encoder has never seen these products and finds the right one for {} of {queries} queries.",
        half_space.summary.recall.count
    )?;
    writeln!(
        out,
        "For {} of them half-space proves that no change of the pixels with an l2 norm below the\n\
         query's radius makes the answer wrong; the mean radius over all queries is {}.",
        half_space.summary.certified.count,
        Radius::Finite(here)
    )?;
    writeln!(
        out,
        "From the same samples the paper's certificate proves {} of them, with a mean radius of {}.",
        paper.summary.certified.count,
        Radius::Finite(there)
    )?;
    if let Some(plain) = half_space.plain {
        writeln!(
            out,
            "Without noise the encoder finds the right one for {} of {queries} queries, about which nothing is proved.",
            plain.count
        )?;
    }
    for sentence in kinds(curves) {
        writeln!(out, "{sentence}")?;
    }
    Ok(())
}

/// Where each kind of certificate proves more than the other: noise at the smallest such radius of the table, a bound from the
/// radius on beyond which noise never does.
fn kinds(curves: &[Curve]) -> Vec<String> {
    let best = |noise: bool, radius: f64| {
        let kind = curves.iter().filter(|curve| curve.sigma.is_some() == noise);
        let shares = kind.map(|curve| (curve.summary.certified_recall(radius).share, curve.name()));
        shares.max_by(|one, other| one.0.total_cmp(&other.0))
    };
    let pairs: Vec<_> = COMPARED_AT
        .iter()
        .filter_map(|&radius| Some((radius, best(true, radius)?, best(false, radius)?)))
        .collect();
    let smoothing = pairs.iter().find(|(_, noisy, still)| noisy.0 > still.0);
    let further = pairs.iter().rev().take_while(|(_, noisy, still)| still.0 >= noisy.0);
    let bounded = further.filter(|(_, noisy, still)| still.0 > noisy.0).last();
    let mut sentences = Vec::new();
    if let Some((radius, noisy, still)) = smoothing {
        let small = if bounded.is_some() { " at small radii" } else { "" };
        sentences.push(format!(
            "Smoothing holds more{small}: at {radius} {} certifies {:.4}, {} {:.4}.",
            noisy.1, noisy.0, still.1, still.0
        ));
    }
    if let Some((radius, noisy, still)) = bounded {
        sentences.push(format!(
            "Lipschitz reaches further, by one pass and always: at {radius} {} certifies {:.4}, {} {:.4}.",
            still.1, still.0, noisy.1, noisy.0
        ));
    }
    sentences
}

/// The engine's flags as they were given.
fn engine(arguments: &DemoArgs) -> String {
    let mut flags = String::new();
    if let Some(engine) = arguments.engine.engine {
        flags.push_str(&format!(" --engine {engine}"));
    }
    if let Some(library) = &arguments.engine.onnxruntime {
        flags.push_str(&format!(" --onnxruntime {}", quoted(library)));
    }
    flags
}
