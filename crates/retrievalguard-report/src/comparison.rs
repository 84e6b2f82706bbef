//! Certificates of several runs in one figure with common axes: with noise and without, encoder beside encoder.
//!
//! Curves are compared over the queries of their panel. Who makes a [`Comparison`] answers for these being the same.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use retrievalguard::Sigma;
use retrievalguard::certificate::CertificateName;
use retrievalguard::evaluation::{EvaluationError, Guarantee, Share, Summary};
use retrievalguard_encoder::run::{Method, TableDescription};
use retrievalguard_encoder::table::ResultTable;

use crate::chart::{Axis, Dash, Figure, Marks, Panel, Series, ticks};
use crate::recall_curve::{RADIUS, SHARE, finite_radii, look, recall_steps};
use crate::report::in_thousands;

/// Colour of what is not proved.
const PLAIN: usize = 6;

/// How many radii the CSV file has, about.
const CSV_RADII: usize = 40;

/// Curves of one certificate that are told apart by their dashes; more are by their colours.
const MOST_DASHES: usize = 2;

/// A table of certificates as it is compared.
#[derive(Clone, Debug)]
pub struct ComparedRun<'a> {
    /// What tells its certificates from the same ones of other runs; none if they are the only ones.
    pub name: Option<String>,
    /// Which of the panels it belongs to.
    pub panel: usize,
    /// The certificates.
    pub table: &'a ResultTable,
    /// What they were made with, if the table says so.
    pub description: Option<&'a TableDescription>,
    /// How often they may be wrong.
    pub guarantee: Guarantee,
}

/// One certificate of one run.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Which run, if other runs have the same certificate.
    pub run: Option<String>,
    /// Which of the panels.
    pub panel: usize,
    /// Which certificate.
    pub certificate: CertificateName,
    /// Noise level; none without noise.
    pub sigma: Option<Sigma>,
    /// Encoder passes per query behind the certificate, on average; none if unknown.
    pub passes: Option<f64>,
    /// Shares, mean radius and guarantee.
    pub summary: Summary,
    /// What the encoder retrieves without noise, if it was measured.
    pub plain: Option<Share>,
    radii: Vec<f64>,
}

/// Curves with common axes.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What the figure shows.
    pub title: String,
    /// The small line below it: the command and the version.
    pub note: String,
    /// Titles of the panels.
    pub panels: Vec<String>,
    /// The curves.
    pub curves: Vec<Curve>,
}

impl ComparedRun<'_> {
    /// A curve for each of the certificates `wanted` that the table has, in its order.
    pub fn curves(&self, wanted: impl Fn(CertificateName) -> bool) -> Result<Vec<Curve>, EvaluationError> {
        let names = self.table.certificates().iter().copied().filter(|&name| wanted(name));
        names.map(|name| self.curve(name)).collect()
    }

    fn curve(&self, certificate: CertificateName) -> Result<Curve, EvaluationError> {
        let rows = self.table.rows();
        let verdicts: Vec<_> = rows.iter().map(|row| row.certificates[&certificate].verdict).collect();
        Ok(Curve {
            run: self.name.clone(),
            panel: self.panel,
            certificate,
            sigma: self.table.sigma(),
            passes: self.passes(certificate),
            summary: Summary::new(&verdicts, self.guarantee)?,
            plain: self.table.plain_recall(),
            radii: finite_radii(self.table, certificate),
        })
    }

    fn passes(&self, certificate: CertificateName) -> Option<f64> {
        let TableDescription::Run(run) = self.description? else { return None };
        let Method::Smoothed(smoothed) = &run.method else { return Some(1.0) };
        let procedure = &smoothed.procedure;
        let pilot = if procedure.draws_pilot() { f64::from(procedure.pilot.get()) } else { 0.0 };
        let rows = self.table.rows();
        let samples: f64 = rows.iter().map(|row| f64::from(row.certificates[&certificate].samples)).sum();
        Some(pilot + samples / rows.len() as f64)
    }
}

impl Curve {
    /// The certificate, with its run if it needs one.
    pub fn name(&self) -> String {
        match &self.run {
            Some(run) => format!("{} ({run})", self.certificate),
            None => self.certificate.to_string(),
        }
    }

    /// Encoder passes per query in words.
    pub fn passes_in_words(&self) -> String {
        self.passes.map_or("unknown".to_owned(), |passes| in_thousands(passes.round() as u64))
    }

    /// Failure probability in words.
    pub fn alpha_in_words(&self) -> String {
        match self.summary.guarantee {
            Guarantee::Always => "always".to_owned(),
            Guarantee::PerQuery { alpha } => alpha.to_string(),
            Guarantee::Simultaneous { alpha } => format!("{alpha} for all"),
        }
    }

    /// Certified recall over the radius, up to `end`, which is above every radius.
    fn points(&self, end: f64) -> Vec<(f64, f64)> {
        let steps = recall_steps(&self.summary, &self.radii, end);
        steps.into_iter().map(|(radius, share)| (radius, share.share)).collect()
    }

    /// The name in the legend: what was certified, at what cost and with what chance of being wrong.
    fn legend(&self) -> String {
        let mut text = format!("{}: ", self.name());
        if let Some(sigma) = self.sigma {
            let _ = write!(text, "σ = {sigma}, ");
        }
        let passes = self.passes_in_words();
        let _ = match self.passes {
            Some(1.0) => write!(text, "1 pass, "),
            Some(_) => write!(text, "{passes} passes, "),
            None => write!(text, "passes {passes}, "),
        };
        match self.summary.guarantee {
            Guarantee::Always => text.push_str("holds always"),
            Guarantee::PerQuery { .. } | Guarantee::Simultaneous { .. } => {
                let _ = write!(text, "α = {}", self.alpha_in_words());
            }
        }
        if self.summary.certified.count == 0 {
            text.push_str(" (certifies none)");
        }
        text
    }
}

impl Comparison {
    /// The largest finite radius of all curves.
    pub fn largest_radius(&self) -> f64 {
        self.curves.iter().filter_map(|curve| curve.radii.last()).copied().fold(0.0, f64::max)
    }

    /// Radii from zero to just above the largest, `wanted` or somewhat more, at whole steps.
    pub fn radii(&self, wanted: usize) -> Vec<f64> {
        let largest = self.largest_radius();
        let (low, high) = ticks::widened(0.0, if largest > 0.0 { largest } else { 1.0 }, wanted);
        ticks::linear(low, high, wanted)
    }

    /// The figure: certified recall as falling curves; marks at r = 0 are Recall@1, proved or not.
    pub fn figure(&self) -> Figure {
        let largest = self.largest_radius();
        let end = if largest > 0.0 { 1.04 * largest } else { 1.0 };
        let looks = self.looks();
        let panels = self.panels.iter().enumerate().map(|(place, title)| {
            let own = || self.curves.iter().zip(&looks).filter(|(curve, _)| curve.panel == place);
            let mut series: Vec<Series> = Vec::new();
            let plain: BTreeSet<u32> =
                own().filter_map(|(curve, _)| curve.plain).map(|plain| plain.count).collect();
            let queries = own().map(|(curve, _)| f64::from(curve.summary.queries)).next().unwrap_or(1.0);
            if !plain.is_empty() {
                let points = plain.into_iter().map(|count| (0.0, f64::from(count) / queries)).collect();
                let name = "plain encoder of the runs with noise: Recall@1, nothing is proved";
                series.push(Series::new(name, PLAIN, points).marks(Marks::Points));
            }
            for (curve, &(colour, dash)) in own() {
                let mut points = curve.points(end);
                // Where several curves lie on the axis only one could be seen: a curve ends there, unless it is nowhere else.
                if !curve.radii.is_empty() {
                    points.pop_if(|last| last.1 == 0.0);
                }
                series.push(Series::new(curve.legend(), colour, points).marks(Marks::Steps).dash(dash));
                let mark = vec![(0.0, curve.summary.recall.share)];
                series.push(Series::new("", colour, mark).marks(Marks::Points));
            }
            Panel {
                title: title.clone(),
                x: Axis::linear(format!("{RADIUS}; marks at r = 0: Recall@1, proved or not")).range(0.0, end),
                y: Axis::linear(SHARE).range(0.0, 1.0),
                series,
            }
        });
        Figure { title: self.title.clone(), note: self.note.clone(), panels: panels.collect() }
    }

    /// Colour and dash of each curve.
    ///
    /// A certificate has the colour that it has everywhere while at most two runs of a panel have it; of more runs each has
    /// a colour of its own.
    fn looks(&self) -> Vec<(usize, Dash)> {
        let before = |place: usize| {
            let curve = &self.curves[place];
            let same = |other: &&Curve| (other.panel, other.certificate) == (curve.panel, curve.certificate);
            self.curves[..place].iter().filter(same).count()
        };
        let places = 0..self.curves.len();
        if places.clone().all(|place| before(place) < MOST_DASHES) {
            let of = |place: usize| {
                let (colour, dash) = look(self.curves[place].certificate);
                (colour, if before(place) > 0 { Dash::Dashed } else { dash })
            };
            return places.map(of).collect();
        }
        let (mut runs, mut names) = (Vec::new(), Vec::new());
        let dashes = [Dash::Solid, Dash::Dashed, Dash::Dotted];
        let curves = self.curves.iter();
        curves
            .map(|curve| {
                let run = place_of(&mut runs, curve.run.clone().unwrap_or_default());
                let name = place_of(&mut names, curve.certificate.to_string());
                (run, dashes[name % dashes.len()])
            })
            .collect()
    }

    /// The numbers: a line per curve and radius, at regular radii and at `further` ones.
    pub fn csv(&self, further: &[f64]) -> String {
        let mut text =
            "panel,certificate,run,sigma,passes,alpha,queries,plain_recall,recall,mean_radius,radius,\
                        certified_recall,lower,upper\n"
                .to_owned();
        let mut radii = self.radii(CSV_RADII);
        radii.extend(further);
        radii.sort_by(f64::total_cmp);
        radii.dedup();
        for curve in &self.curves {
            let Curve { run, panel, certificate, sigma, passes, summary, plain, .. } = curve;
            let or_nothing = |number: Option<String>| number.unwrap_or_default();
            let begin = format!(
                "{},{certificate},{},{},{},{},{},{},{},{}",
                quoted(self.panels.get(*panel).map_or("", String::as_str)),
                quoted(run.as_deref().unwrap_or("")),
                or_nothing(sigma.map(|sigma| sigma.to_string())),
                or_nothing(passes.map(|passes| passes.to_string())),
                curve.alpha_in_words(),
                summary.queries,
                or_nothing(plain.map(|plain| plain.share.to_string())),
                summary.recall.share,
                summary.average_finite_radius,
            );
            for point in summary.curve(&radii) {
                let recall = point.recall;
                let _ = writeln!(
                    text,
                    "{begin},{},{},{},{}",
                    point.radius, recall.share, recall.lower, recall.upper
                );
            }
        }
        text
    }
}

/// The place of a name among those known, where it is put if it is not.
fn place_of(known: &mut Vec<String>, wanted: String) -> usize {
    known.iter().position(|other| *other == wanted).unwrap_or_else(|| {
        known.push(wanted);
        known.len() - 1
    })
}

/// A field of a CSV file, in quotation marks where it needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests;
