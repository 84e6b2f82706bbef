//! `retrievalguard evaluate`: certificates in, certified recall and its kin out.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use retrievalguard::Alpha;
use retrievalguard::certificate::{CertificateName, Radius, round_down};
use retrievalguard::evaluation::{Guarantee, Summary};
use retrievalguard_encoder::run::TableDescription;
use retrievalguard_encoder::table::{PLAIN_UNKNOWN, ResultTable, StoredTable, Unverified};
use serde_json::{Value, json};

use super::certify::tell_misretrieved;
use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard evaluate run/certificates.parquet --radii 0,0.1,0.2"
)]
pub(crate) struct EvaluateArgs {
    /// Table of certificates: .parquet or .jsonl, as written by `retrievalguard certify`
    table: PathBuf,
    /// Radii of the certified-recall curve; eleven up to the largest radius by default
    #[arg(long)]
    radii: Option<Radii>,
    /// Failure probability of the certificates, if the table does not say
    #[arg(long)]
    alpha: Option<Alpha>,
    /// Read a table that has no digest, as those of earlier versions and of other programs do
    #[arg(long)]
    unverified: bool,
    /// The certificates were computed at alpha divided by the number of queries, so all hold at once
    #[arg(long)]
    simultaneous: bool,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `0,0.1,0.2`: one word, so that a later flag replaces an earlier one whole.
#[derive(Clone, Debug)]
pub(super) struct Radii(pub(super) Vec<f64>);

impl std::str::FromStr for Radii {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |word: &str| match word.trim().parse::<f64>() {
            Ok(radius) if radius.is_finite() && radius >= 0.0 => Ok(radius),
            _ => Err(format!("a radius is `{word}`, wanted a finite number from 0 up")),
        };
        text.split(',').map(parse).collect::<Result<_, _>>().map(Self)
    }
}

pub(super) fn run(arguments: &EvaluateArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let unverified = if arguments.unverified { Unverified::Accept } else { Unverified::Refuse };
    let StoredTable { table, run, described, verified } = ResultTable::read(&arguments.table, unverified)?;
    if !verified {
        tell(format_args!("note: `{}` has no digest, so it cannot be verified", arguments.table.display()));
    }
    let old = || described.as_ref().and_then(|run| Alpha::new(run["alpha"].as_f64()?).ok());
    let found = run.as_ref().map_or_else(old, TableDescription::alpha);
    let guarantee = guarantee(arguments, &table, verified, found)?;
    let summaries = summaries(&table, guarantee)?;
    let radii = match &arguments.radii {
        Some(Radii(radii)) => radii.clone(),
        None => usual_radii(&table),
    };
    if arguments.json {
        let certificates: serde_json::Map<String, Value> = summaries
            .iter()
            .map(|(name, summary)| {
                let value = json!({ "summary": summary, "curve": summary.curve(&radii) });
                (name.to_string(), value)
            })
            .collect();
        let value = json!({
            "queries": table.rows().len(),
            "sigma": table.sigma(),
            "guarantee": guarantee,
            "expected_wrong_at_most": guarantee.expected_failures(u32::try_from(table.rows().len())?),
            "certificates": certificates,
            "plain": table.plain_recall().map(|recall| json!({ "recall": recall })),
            "run": described,
            "verified": verified,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else if arguments.csv {
        writeln!(out, "certificate,radius,recall,lower,upper,count,queries")?;
        for (name, summary) in &summaries {
            for point in summary.curve(&radii) {
                let recall = point.recall;
                writeln!(
                    out,
                    "{name},{},{},{},{},{},{}",
                    point.radius, recall.share, recall.lower, recall.upper, recall.count, summary.queries
                )?;
            }
        }
    } else {
        print_text(&table, &summaries, &radii, guarantee, out)?;
    }
    tell_misretrieved(&table);
    Ok(())
}

/// How often the certificates of a table may be wrong.
fn guarantee(
    arguments: &EvaluateArgs,
    table: &ResultTable,
    verified: bool,
    found: Option<Alpha>,
) -> anyhow::Result<Guarantee> {
    if table.sigma().is_none() {
        let name = arguments.table.display();
        for (flag, given) in
            [("--alpha", arguments.alpha.is_some()), ("--simultaneous", arguments.simultaneous)]
        {
            if given {
                bail!("{flag} says nothing about `{name}`, whose certificates need no noise and hold always");
            }
        }
        return Ok(Guarantee::Always);
    }
    let alpha = match (arguments.alpha, found) {
        (Some(alpha), Some(found)) if verified && alpha != found => bail!(
            "--alpha is {alpha}, the certificates of `{}` were computed at {found}",
            arguments.table.display()
        ),
        (Some(alpha), _) => alpha,
        (None, Some(alpha)) => alpha,
        (None, None) => bail!("`{}` does not say its alpha, wanted --alpha", arguments.table.display()),
    };
    if arguments.simultaneous {
        // Each certificate was computed at the share; the table as a whole holds at their sum.
        let alpha = Alpha::new((alpha.get() * table.rows().len() as f64).min(0.999_999))?;
        return Ok(Guarantee::Simultaneous { alpha });
    }
    Ok(Guarantee::PerQuery { alpha })
}

/// The numbers of every certificate in the table.
fn summaries(table: &ResultTable, guarantee: Guarantee) -> anyhow::Result<Vec<(CertificateName, Summary)>> {
    table
        .certificates()
        .iter()
        .map(|&name| {
            let verdicts: Vec<_> = table.rows().iter().map(|row| row.certificates[&name].verdict).collect();
            Ok((name, Summary::new(&verdicts, guarantee)?))
        })
        .collect()
}

/// Eleven radii from zero to just below the largest finite one.
fn usual_radii(table: &ResultTable) -> Vec<f64> {
    let largest = table
        .rows()
        .iter()
        .flat_map(|row| row.certificates.values())
        .filter_map(|cell| cell.verdict.radius())
        .map(Radius::get)
        .filter(|radius| radius.is_finite())
        .fold(0.0, f64::max);
    // Steps of 1, 2 or 5 times a power of ten read well.
    let rough = (largest / 10.0).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=10).map(|place| f64::from(place) * step).collect()
}

/// For people: what is claimed, a line per certificate, and the curves.
fn print_text(
    table: &ResultTable,
    summaries: &[(CertificateName, Summary)],
    radii: &[f64],
    guarantee: Guarantee,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let queries = u32::try_from(table.rows().len())?;
    match table.sigma() {
        Some(sigma) => {
            writeln!(out, "{queries} queries, sigma {sigma} (pixels in [0, 1]); {guarantee},")?;
            let wrong = guarantee.expected_failures(queries);
            writeln!(out, "so at most {wrong} wrong ones are to be expected\n")?;
        }
        None => writeln!(out, "{queries} queries, no noise (pixels in [0, 1]); {guarantee}\n")?,
    }
    writeln!(
        out,
        "{:<16} {:>9} {:>10} {:>9} {:>13} {:>10}{}",
        "certificate",
        "recall",
        "certified",
        "rejected",
        "misretrieved",
        "radius",
        if table.sigma().is_some() { format!(" {:>10}", "in sigma") } else { String::new() }
    )?;
    for (name, summary) in summaries {
        let radius = summary.average_certified_radius;
        writeln!(
            out,
            "{name:<16} {:>9.4} {:>10.4} {:>9.4} {:>13.4} {:>10}{}",
            summary.recall.share,
            summary.certified.share,
            summary.rejected.share,
            summary.misretrieved.share,
            radius.to_string(),
            match table.sigma() {
                Some(_) if radius == Radius::Unbounded => format!(" {:>10}", "unbounded"),
                Some(sigma) => format!(" {:>10}", round_down(radius.in_sigmas(sigma), 3)),
                None => String::new(),
            },
        )?;
    }
    // Certificates without noise speak of the encoder itself.
    if table.sigma().is_some() {
        match table.plain_recall() {
            Some(recall) => writeln!(
                out,
                "{:<16} {:>9.4} {:>10} {:>9} {:>13.4} {:>10} {:>10}",
                "plain",
                recall.share,
                "-",
                "-",
                1.0 - recall.share,
                "-",
                "-"
            )?,
            None => writeln!(out, "{:<16} {PLAIN_UNKNOWN}", "plain")?,
        }
    }
    writeln!(out, "\nrejected: right but abstained; misretrieved: wrong before anybody attacks")?;
    if table.sigma().is_some() {
        writeln!(out, "plain: the encoder without noise, about which nothing is proved")?;
    }
    writeln!(out, "radius: mean certified radius over all queries, 0 where there is none\n")?;
    writeln!(out, "certified recall: share of all queries whose certified radius exceeds r")?;
    write!(out, "{:<16}", "r")?;
    for radius in radii {
        write!(out, " {radius:>7.4}")?;
    }
    writeln!(out)?;
    for (name, summary) in summaries {
        write!(out, "{name:<16}")?;
        for point in summary.curve(radii) {
            write!(out, " {:>7.4}", point.recall.share)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
