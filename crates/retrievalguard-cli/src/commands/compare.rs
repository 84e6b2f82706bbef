//! `retrievalguard compare`: certificates of several runs in, one figure with common axes and its numbers out.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use retrievalguard::certificate::{CertificateName, Radius};
use retrievalguard::evaluation::Guarantee;
use retrievalguard::storage::atomic::{WriteError, write};
use retrievalguard::storage::digest::Digest;
use retrievalguard_encoder::pipeline::run_files::{StoredRun, TABLE_FILE};
use retrievalguard_encoder::run::TableDescription;
use retrievalguard_encoder::table::{ResultTable, StoredTable, Unverified};
use retrievalguard_report::comparison::{ComparedRun, Comparison, Curve};

use super::evaluate::Radii;
use super::write_figure;
use crate::arguments::Certificates;

/// Certificates that are compared unless others are named: the paper's, the two retrievers with noise, and the one without.
pub(super) const USUAL: [CertificateName; 4] = [
    CertificateName::Paper,
    CertificateName::HalfSpace,
    CertificateName::Pairwise,
    CertificateName::Lipschitz,
];

/// Where `certify` and `demo` leave a run unless they are told.
const USUAL_FOLDER: &str = "certificates";

/// How many radii the printed table has, about, unless they are named.
const COLUMNS: usize = 10;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard compare demo/certificates demo/without-noise/certificates --out common.svg\n  \
        retrievalguard compare GDML=runs/gdml distilled=runs/distilled --certificate half-space --out encoders.svg\n\n\
        PNG and CSV files are written beside the SVG file."
)]
pub(crate) struct CompareArgs {
    /// Runs of `certify`, with noise or without, or their tables; a run can be given a name for the figure
    #[arg(required = true, value_name = "[NAME=]RUN")]
    runs: Vec<String>,
    /// The figure to write
    #[arg(long, value_name = "FILE.svg", default_value = "comparison.svg")]
    out: PathBuf,
    /// Certificates, separated by commas, or all; paper, half-space, pairwise and lipschitz by default
    #[arg(long)]
    certificate: Option<Certificates>,
    /// Title of the figure
    #[arg(long, default_value = "Certified Recall@1")]
    title: String,
    /// Titles of data sets, separated by commas: runs over other queries get a panel of their own instead of being refused
    #[arg(long, value_name = "TITLES")]
    panels: Option<String>,
    /// Radii of the printed table
    #[arg(long)]
    radii: Option<Radii>,
    /// Read a table that has no digest, as those of earlier versions and of other programs do
    #[arg(long)]
    unverified: bool,
}

/// A run that was read, under the name it has in the figure.
struct Given {
    path: PathBuf,
    name: Option<String>,
    table: ResultTable,
    description: Option<TableDescription>,
    guarantee: Guarantee,
}

pub(super) fn run(arguments: &CompareArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if arguments.out.extension().is_none_or(|ending| ending != "svg") {
        bail!("--out is `{}`, wanted a name that ends in .svg", arguments.out.display());
    }
    let unverified = if arguments.unverified { Unverified::Accept } else { Unverified::Refuse };
    let runs = arguments
        .runs
        .iter()
        .map(|given| Given::read(given, unverified))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let wanted = |name: CertificateName| match &arguments.certificate {
        None => USUAL.contains(&name),
        Some(Certificates::All) => true,
        Some(Certificates::Named(names)) => names.contains(&name),
    };
    for run in &runs {
        let names = run.table.certificates();
        if !names.iter().any(|&name| wanted(name)) {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            bail!(
                "`{}` has none of the certificates to compare, wanted --certificate with one of {}",
                run.path.display(),
                names.join(", ")
            );
        }
    }
    let panels = panels(&runs, arguments.panels.as_deref())?;
    let mut curves = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        let repeated = runs.iter().enumerate().any(|(other, found)| {
            let both = |&name: &CertificateName| wanted(name) && run.table.certificates().contains(&name);
            other != place
                && panels.of[other] == panels.of[place]
                && found.table.certificates().iter().any(both)
        });
        let compared = ComparedRun {
            name: run.name.clone().or_else(|| repeated.then(|| run.folder())),
            panel: panels.of[place],
            table: &run.table,
            description: run.description.as_ref(),
            guarantee: run.guarantee,
        };
        curves.extend(compared.curves(wanted)?);
    }
    // Where runs lie is nobody's business but their owner's: a figure travels.
    let folders: Vec<String> = runs.iter().map(Given::folder).collect();
    let note =
        format!("retrievalguard compare {} · version {}", folders.join(" "), env!("CARGO_PKG_VERSION"));
    let comparison = Comparison { title: arguments.title.clone(), note, panels: panels.titles, curves };
    let radii = match &arguments.radii {
        Some(Radii(radii)) => radii.clone(),
        None => comparison.radii(COLUMNS).into_iter().filter(|&radius| radius > 0.0).collect(),
    };
    print_table(&comparison, &radii, out)?;
    write_comparison(&comparison, &radii, &arguments.out)?;
    writeln!(out, "\n{}", arguments.out.display())?;
    Ok(())
}

/// Writes figure and numbers under one name with three endings; the numbers have the printed table's radii, too.
pub(super) fn write_comparison(comparison: &Comparison, radii: &[f64], path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
    }
    write_figure(&comparison.figure(), path)?;
    Ok(write(&path.with_extension("csv"), comparison.csv(radii).as_bytes())?)
}

impl Given {
    /// A folder or a table, `NAME=` before it or not.
    fn read(given: &str, unverified: Unverified) -> anyhow::Result<Self> {
        let (name, path) = match given.split_once('=') {
            Some((name, path)) if !Path::new(given).exists() => (Some(name.to_owned()), Path::new(path)),
            Some(_) | None => (None, Path::new(given)),
        };
        let (table, description) = if path.is_dir() {
            let StoredRun { table, description, .. } = StoredRun::open(path)?;
            (table, Some(TableDescription::Run(Box::new(description))))
        } else {
            let StoredTable { table, run, .. } = ResultTable::read(path, unverified)?;
            (table, run)
        };
        let guarantee = match (table.sigma(), description.as_ref().and_then(TableDescription::alpha)) {
            (None, _) => Guarantee::Always,
            (Some(_), Some(alpha)) => Guarantee::PerQuery { alpha },
            (Some(_), None) => {
                bail!("`{}` does not say its alpha, wanted the table of a run", path.display())
            }
        };
        Ok(Self { path: path.to_owned(), name, table, description, guarantee })
    }

    /// What a run is called that was given no name: the last folder of its path with a name of its own.
    fn folder(&self) -> String {
        let usual = |name: &str| name == TABLE_FILE || name == USUAL_FOLDER;
        let words = self.path.components().rev().map(|part| part.as_os_str().to_string_lossy().into_owned());
        words.into_iter().find(|name| !usual(name)).unwrap_or_else(|| self.path.display().to_string())
    }

    /// Digest of the queries with their pictures, if the table knows.
    fn queries(&self) -> Option<Digest> {
        Some(self.description.as_ref()?.run()?.queries)
    }

    /// Items that were searched, if the table knows.
    fn items(&self) -> Option<usize> {
        Some(self.description.as_ref()?.run()?.gallery.items)
    }

    /// In what its queries differ from those of another run; nothing if they are the same.
    fn differs(&self, other: &Self) -> Option<String> {
        let (own, others) = (self.table.rows(), other.table.rows());
        if own.len() != others.len() {
            return Some(format!("{} queries, wanted {}", own.len(), others.len()));
        }
        let same = own
            .iter()
            .zip(others)
            .enumerate()
            .find(|(_, (own, other))| (&own.identity, &own.label) != (&other.identity, &other.label));
        if let Some((place, (own, other))) = same {
            return Some(format!(
                "query {place} is `{}` of `{}`, wanted `{}` of `{}`",
                own.identity, own.label, other.identity, other.label
            ));
        }
        match (self.queries(), other.queries()) {
            (Some(own), Some(other)) if own != other => {
                Some(format!("pictures with the digest {own:.16}…, wanted {other:.16}…"))
            }
            _ => None,
        }
    }
}

/// Which run is drawn where.
struct Panels {
    titles: Vec<String>,
    of: Vec<usize>,
}

/// A panel for each set of queries; more than one only if there are titles for them.
fn panels(runs: &[Given], titles: Option<&str>) -> anyhow::Result<Panels> {
    let mut firsts: Vec<&Given> = Vec::new();
    let mut of = Vec::new();
    for run in runs {
        let known = firsts.iter().position(|first| run.differs(first).is_none());
        if let (None, Some(first), None) = (known, firsts.first(), titles) {
            let difference = run.differs(first).unwrap_or_default();
            bail!(
                "`{}` has other queries than `{}`: {difference}; wanted the same, or --panels with a title for each data set",
                run.path.display(),
                first.path.display()
            );
        }
        of.push(known.unwrap_or_else(|| {
            firsts.push(run);
            firsts.len() - 1
        }));
    }
    let titles: Vec<&str> =
        titles.map(|titles| titles.split(',').map(str::trim).collect()).unwrap_or_default();
    if !titles.is_empty() && titles.len() != firsts.len() {
        bail!("--panels has {} titles, wanted {}: one for each set of queries", titles.len(), firsts.len());
    }
    let titles = firsts.iter().enumerate().map(|(place, first)| {
        let members = || runs.iter().zip(&of).filter(move |(_, panel)| **panel == place);
        let mut items: Vec<usize> = members().filter_map(|(run, _)| run.items()).collect();
        items.sort_unstable();
        let items = match (items.first(), items.last()) {
            (Some(least), Some(most)) if least == most => format!(" against {least} items"),
            (Some(least), Some(most)) => format!(" against {least} to {most} items"),
            _ => String::new(),
        };
        let begin = titles.get(place).map(|title| format!("{title}: ")).unwrap_or_default();
        format!("{begin}{} queries{items}", first.table.rows().len())
    });
    Ok(Panels { titles: titles.collect(), of })
}

/// A line per certificate: what it costs, how often it may be wrong, and what it proves at some radii.
pub(super) fn print_table(comparison: &Comparison, radii: &[f64], out: &mut dyn Write) -> anyhow::Result<()> {
    let name = |curve: &Curve| curve.name().chars().count();
    let width = comparison.curves.iter().map(name).max().unwrap_or(0).max("certificate".len());
    for (place, title) in comparison.panels.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{title}\n")?;
        write!(
            out,
            "{:<width$} {:>7} {:>7} {:>7} {:>7} {:>9} {:>7} ",
            "certificate", "passes", "alpha", "plain", "recall", "certified", "radius"
        )?;
        for radius in radii {
            write!(out, " {:>7}", format!("at {radius}"))?;
        }
        writeln!(out)?;
        for curve in comparison.curves.iter().filter(|curve| curve.panel == place) {
            let summary = &curve.summary;
            write!(
                out,
                "{:<width$} {:>7} {:>7} {:>7} {:>7.4} {:>9.4} {:>7} ",
                curve.name(),
                curve.passes_in_words(),
                curve.alpha_in_words(),
                curve.plain.map_or("-".to_owned(), |plain| format!("{:.4}", plain.share)),
                summary.recall.share,
                summary.certified.share,
                Radius::Finite(summary.average_finite_radius).to_string()
            )?;
            for &radius in radii {
                write!(out, " {:>7.4}", summary.certified_recall(radius).share)?;
            }
            writeln!(out)?;
        }
    }
    writeln!(
        out,
        "\npasses of the encoder per query; alpha: a certificate is wrong with at most this probability, or holds always"
    )?;
    writeln!(
        out,
        "plain: what the encoder retrieves without noise, about which nothing is proved; recall: what is certified retrieves"
    )?;
    writeln!(
        out,
        "radius: mean certified radius over all queries, 0 where there is none; at r: share of all queries certified beyond r"
    )?;
    Ok(())
}
