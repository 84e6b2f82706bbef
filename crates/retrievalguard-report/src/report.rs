//! One HTML file about a run, and the figures in it.
//!
//! The page needs nothing else: no network, no fonts, no script but the one that sorts its table. What is shown is
//! handed in; a picture that is missing is shown as missing.

mod contrast;
mod evidence;
mod figures;
mod page;
mod queries;
mod statement;
mod visible;

use retrievalguard::certificate::CertificateName;
use retrievalguard::evaluation::{EvaluationError, Guarantee, Summary};
use retrievalguard::{Alpha, NormBound, SampleCount, Sigma, TargetRadius};
use retrievalguard_encoder::table::ResultTable;

use crate::attack::Attack;
use crate::chart::{Figure, ticks};
use crate::picture::Thumbnail;
use crate::visible::VisibleRadius;

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The table has no certificate.
    #[error("the table has no certificates, wanted at least one")]
    NoCertificates,
    /// The table cannot be summarised.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
}

/// Everything that a report shows.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// What the run is called.
    pub name: String,
    /// The certificates.
    pub table: &'a ResultTable,
    /// What decided them.
    pub facts: Facts,
    /// Pictures of the first rows of the table; only these rows are listed.
    pub pictures: Vec<RowPictures>,
    /// What certified radii look like, on a few queries.
    pub visible: Vec<QueryRadius>,
    /// The commands that make the run again.
    pub commands: Vec<CommandLine>,
    /// What attacks on the run found.
    pub attack: Option<&'a Attack>,
    /// What the reader should know about the report itself, such as pictures that are gone.
    pub notes: Vec<String>,
}

/// What decided the numbers of a run.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What the certificates rest on.
    pub basis: Basis,
    /// How many queries searched without their own picture, which the gallery holds.
    pub left_out: u64,
    /// What ran the encoder.
    pub engine: String,
    /// Version of the tool that made the run.
    pub tool: String,
    /// When the run was finished, in seconds since 1970.
    pub finished: Option<u64>,
    /// Names of inputs and their digests.
    pub digests: Vec<(String, String)>,
    /// The gallery, if it is still there.
    pub gallery: Option<GalleryFacts>,
    /// Channels, rows and columns of the encoder's input, if its model config is still there.
    pub input: Option<[usize; 3]>,
}

/// What certificates rest on.
#[derive(Clone, Debug)]
pub enum Basis {
    /// Samples of noisy copies.
    Samples(SampleFacts),
    /// A bound on the encoder itself.
    Lipschitz(LipschitzFacts),
}

/// How samples were drawn.
#[derive(Clone, Debug)]
pub struct SampleFacts {
    /// Noise level.
    pub sigma: Sigma,
    /// Failure probability of each certificate.
    pub alpha: Alpha,
    /// Pilot samples per query.
    pub pilot: SampleCount,
    /// Certifying samples per query, or the most of them.
    pub samples: SampleCount,
    /// The radius that was decided, if only one was.
    pub target_radius: Option<TargetRadius>,
    /// Seed of the noise.
    pub seed: String,
}

/// What was proved of the encoder.
#[derive(Clone, Debug)]
pub struct LipschitzFacts {
    /// Upper bound on its Lipschitz constant, as it is printed: never below the bound.
    pub constant: String,
    /// Upper bound on the error with which any picture is embedded that is changed by no more than the norm of a white one;
    /// none if the size of pictures is not known.
    pub forward_error: Option<f64>,
    /// How many operators of the graph the bound was put together from.
    pub layers: usize,
}

impl Basis {
    /// How often certificates may be wrong.
    fn guarantee(&self) -> Guarantee {
        match self {
            Self::Samples(samples) => Guarantee::PerQuery { alpha: samples.alpha },
            Self::Lipschitz(_) => Guarantee::Always,
        }
    }

    /// How samples were drawn, if any were.
    fn samples(&self) -> Option<&SampleFacts> {
        match self {
            Self::Samples(samples) => Some(samples),
            Self::Lipschitz(_) => None,
        }
    }
}

/// What is known of the gallery.
#[derive(Clone, Copy, Debug)]
pub struct GalleryFacts {
    /// Items.
    pub items: usize,
    /// Length of a vector.
    pub dimension: usize,
    /// Norm bound of the encoder.
    pub norm_bound: NormBound,
    /// Samples behind each vector.
    pub samples: Option<SampleCount>,
    /// Views of each item; none where an item is one vector.
    pub views: Option<usize>,
}

/// What is shown of one query; `None` where a picture is gone.
#[derive(Clone, Debug, Default)]
pub struct RowPictures {
    /// The query.
    pub query: Option<Thumbnail>,
    /// What was retrieved.
    pub retrieved: Option<Thumbnail>,
    /// The nearest item with another label.
    pub nearest_wrong: Option<Thumbnail>,
    /// The query after a random change of the certified size.
    pub perturbed: Option<Thumbnail>,
}

/// What a certified radius looks like on one query.
#[derive(Clone, Debug)]
pub struct QueryRadius {
    /// Which query this is among the certified ones: the typical one, the strongest.
    pub rank: &'static str,
    /// The query.
    pub identity: String,
    /// Its radius, seen.
    pub seen: VisibleRadius,
}

/// A command and what it is for.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// What it makes, or why there is no command for it.
    pub purpose: String,
    /// What to type, if that is known.
    pub line: Option<String>,
}

/// A figure with a name for its file and words for its meaning.
#[derive(Clone, Debug)]
pub struct NamedFigure {
    /// Name of its files, without an ending.
    pub name: &'static str,
    /// What can be seen.
    pub caption: String,
    /// The figure.
    pub figure: Figure,
}

impl Report<'_> {
    /// The page.
    pub fn html(&self) -> Result<String, ReportError> {
        page::page(&Prepared::new(self)?)
    }

    /// Every figure of the page.
    pub fn figures(&self) -> Result<Vec<NamedFigure>, ReportError> {
        Ok(figures::all(&Prepared::new(self)?))
    }

    /// The certificate that the headline speaks of: half-space, or the first if the run has none.
    pub fn headline(&self) -> Option<CertificateName> {
        headline(self.table)
    }
}

/// The certificate of a table that speaks for it: half-space, or its first.
pub fn headline(table: &ResultTable) -> Option<CertificateName> {
    let names = table.certificates();
    names.iter().copied().find(|&name| name == CertificateName::HalfSpace).or(names.first().copied())
}

/// A report with the sums that all its parts use.
struct Prepared<'a> {
    report: &'a Report<'a>,
    headline: CertificateName,
    summaries: Vec<(CertificateName, Summary)>,
}

impl<'a> Prepared<'a> {
    fn new(report: &'a Report<'a>) -> Result<Self, ReportError> {
        let headline = report.headline().ok_or(ReportError::NoCertificates)?;
        let guarantee = report.facts.basis.guarantee();
        let rows = report.table.rows();
        let summarise = |&name: &CertificateName| {
            let verdicts: Vec<_> = rows.iter().map(|row| row.certificates[&name].verdict).collect();
            Ok((name, Summary::new(&verdicts, guarantee)?))
        };
        let summaries =
            report.table.certificates().iter().map(summarise).collect::<Result<_, ReportError>>()?;
        Ok(Self { report, headline, summaries })
    }

    fn summary(&self) -> &Summary {
        let of = |(name, _): &&(CertificateName, Summary)| *name == self.headline;
        // The headline is one of the table's certificates, all of which were summarised.
        &self.summaries.iter().find(of).unwrap_or(&self.summaries[0]).1
    }
}

/// Seconds since 1970 as a date and a time of day in UTC.
fn date(seconds: u64) -> String {
    // Days to a civil date with years that begin in March: H. Hinnant, "chrono-compatible low-level date algorithms".
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3_600, rest % 3_600 / 60)
}

/// `1234567` as `1,234,567`.
pub(crate) fn in_thousands(count: u64) -> String {
    ticks::in_thousands(&count.to_string())
}

/// An upper bound with three digits: never below the value, and zero only for zero.
fn round_up(value: f64) -> String {
    // Digits beyond the fifteenth are the rounding of decimals to binary numbers.
    let text = format!("{value:.14e}");
    let Some((digits, power)) = text.split_once('e') else { return text };
    let (kept, rest) = digits.split_at(4);
    let one = u64::from(rest.bytes().any(|digit| digit != b'0'));
    let kept = kept.replace('.', "").parse::<u64>().map_or(0, |kept| kept + one);
    let power = power.parse::<i32>().unwrap_or(0) - 2;
    match format!("{kept}e{power}").parse::<f64>() {
        Ok(bound) if bound > 0.0 && bound < 1e-6 => format!("{bound:e}"),
        Ok(bound) => bound.to_string(),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests;
