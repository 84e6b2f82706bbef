//! How far answers may differ because another engine, or another processor, has other last bits.

use retrievalguard::certificate::{CertificateName, Certifier, Contest, VoteRule, Votes};
use retrievalguard::gallery::{Relevance, RowRelevance};
use retrievalguard::storage::stored::GalleryRef;
use retrievalguard::{NormBound, Samples};

use super::body::{CertifiedAnswer, Counted, RivalCount};
use super::counted::{certifying, radius_of};
use super::statement::{Circumstances, of_verdict};
use super::verify::{Refusal, compare_drawn, paired};
use super::{Real, Receipt};
use crate::pipeline::Drawn;

/// Embeddings are taken to be within this share of the norm bound of each other.
const EMBEDDING: f64 = 1e-4;
/// Radii that are computed from the same counts agree within this share.
const SAME: f64 = 1e-6;
/// Numbers that are computed in double precision from the same pixels agree within this share.
const DOUBLE: f64 = 1e-9;
/// Radii of other forms agree within this share.
const ALIKE: f64 = 1e-4;

/// What decides how far answers may differ.
pub(super) struct Rounding<'a> {
    smoothed: Option<Smoothed<'a>>,
}

struct Smoothed<'a> {
    certifier: Certifier<'a>,
    relevance: Relevance,
    drawn: Drawn,
    /// How far distances of the same copy may differ.
    tolerance: f64,
    /// Whether the number of samples was fixed.
    fixed_number: bool,
}

/// The fewest and the most copies that count for something.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    sure: u32,
    possible: u32,
}

impl Span {
    fn count(&mut self, sure: bool, possible: bool) {
        self.sure += u32::from(sure);
        self.possible += u32::from(possible);
    }

    fn holds(self, found: u32) -> bool {
        (self.sure..=self.possible).contains(&found)
    }
}

/// Distances of one copy from the nearest right row and from the nearest row of every wrong label.
struct Distances {
    right: f64,
    rivals: Vec<f64>,
}

impl<'a> Rounding<'a> {
    pub(super) fn of_bound() -> Self {
        Self { smoothed: None }
    }

    pub(super) fn of_samples(
        certifier: Certifier<'a>,
        relevance: Relevance,
        drawn: Drawn,
        norm_bound: NormBound,
        fixed_number: bool,
    ) -> Self {
        let tolerance = 2.0 * EMBEDDING * norm_bound.get();
        Self { smoothed: Some(Smoothed { certifier, relevance, drawn, tolerance, fixed_number }) }
    }

    /// Accepts what last bits explain; says how many copies they could have moved.
    pub(super) fn agree(&self, receipt: &Receipt, again: &Receipt) -> Result<u64, Refusal> {
        compare_drawn(receipt, again)?;
        let mut undecided = 0;
        for (found, wanted) in paired(receipt, again)? {
            let refused =
                |differences: String| Refusal::Answer { certificate: wanted.certificate, differences };
            for (field, found, wanted) in [
                ("certificate", found.certificate.to_string(), wanted.certificate.to_string()),
                ("label", format!("{:?}", found.label), format!("{:?}", wanted.label)),
                ("samples", found.samples.to_string(), wanted.samples.to_string()),
                ("decision", format!("{:?}", found.decision), format!("{:?}", wanted.decision)),
            ] {
                if found != wanted {
                    return Err(refused(format!("{field} is {found}, wanted {wanted}")));
                }
            }
            same_kinds(&found.counted, &wanted.counted).map_err(refused)?;
            undecided += match &self.smoothed {
                Some(smoothed) => smoothed.agree(found, wanted).map_err(refused)?,
                None => {
                    within(found, wanted, DOUBLE)
                        .and_then(|()| same_bound(found, wanted))
                        .map_err(refused)?;
                    0
                }
            };
            says_what_it_found(found, receipt).map_err(refused)?;
        }
        Ok(undecided)
    }
}

/// Whether the same things were counted: what nobody looks at is not in a verified receipt.
fn same_kinds(found: &Counted, wanted: &Counted) -> Result<(), String> {
    let kinds = |counted: &Counted| {
        [
            ("losses", counted.losses.is_some()),
            ("votes", counted.votes.is_some()),
            ("tests", counted.tests.is_some()),
            ("bound", counted.bound.is_some()),
        ]
    };
    for ((field, found), (_, wanted)) in kinds(found).into_iter().zip(kinds(wanted)) {
        if found != wanted {
            let there = |is: bool| if is { "there" } else { "missing" };
            return Err(format!("counted.{field} is {}, wanted {}", there(found), there(wanted)));
        }
    }
    Ok(())
}

/// Whether the statement is that of the label and of the radius.
fn says_what_it_found(found: &CertifiedAnswer, receipt: &Receipt) -> Result<(), String> {
    let config: Result<crate::model_config::ModelConfig, _> =
        serde_json::from_str(&receipt.fixed.encoder.config);
    let config = config.map_err(|error| error.to_string())?;
    let alpha = receipt.fixed.noise.as_ref().map(|noise| noise.alpha.to_string());
    let under = Circumstances {
        retriever: receipt.fixed.retriever,
        input: config.picture_shape(),
        alpha: alpha.as_deref(),
        hidden: &receipt.fixed.gallery.excluded,
    };
    let certified = found.label.as_deref().zip(radius_of(found));
    let wanted = of_verdict(found.certificate, certified, under);
    match found.statement == wanted {
        true => Ok(()),
        false => Err(format!("statement is {:?}, wanted {wanted:?}", found.statement)),
    }
}

/// Whether constant, forward error and embedding are those that were computed.
fn same_bound(found: &CertifiedAnswer, wanted: &CertifiedAnswer) -> Result<(), String> {
    let (Some(found), Some(wanted)) = (&found.counted.bound, &wanted.counted.bound) else {
        return Err("counted.bound is missing, wanted constant, forward error and embedding".to_owned());
    };
    let close = |found: Real, wanted: Real, scale: f64| (found.get() - wanted.get()).abs() <= DOUBLE * scale;
    for (field, found, wanted) in [
        ("constant", found.constant, wanted.constant),
        ("forward_error", found.forward_error, wanted.forward_error),
    ] {
        if !close(found, wanted, wanted.get()) {
            return Err(format!("counted.bound.{field} is {found}, wanted {wanted}"));
        }
    }
    let length = wanted.embedding.iter().map(|value| value.get().powi(2)).sum::<f64>().sqrt();
    let mut pairs = found.embedding.iter().zip(&wanted.embedding);
    let same = found.embedding.len() == wanted.embedding.len()
        && pairs.all(|(&found, &wanted)| close(found, wanted, length));
    if same { Ok(()) } else { Err("counted.bound.embedding is not that of the picture".to_owned()) }
}

/// Whether verdicts are the same and radii within a share of each other.
fn within(found: &CertifiedAnswer, wanted: &CertifiedAnswer, share: f64) -> Result<(), String> {
    let close = match (found.radius.map(Real::get), wanted.radius.map(Real::get)) {
        (None, None) => true,
        (Some(found), Some(wanted)) => {
            found == wanted || (wanted.is_finite() && (found - wanted).abs() <= share * wanted)
        }
        _ => false,
    };
    if close && found.verdict == wanted.verdict {
        return Ok(());
    }
    let text = |answer: &CertifiedAnswer| {
        let radius = answer.radius.map(|radius| format!(" with radius {radius}")).unwrap_or_default();
        format!("{:?}{radius}", answer.verdict).to_lowercase()
    };
    Err(format!("it is {}, wanted {}, within {share} of it", text(found), text(wanted)))
}

impl Smoothed<'_> {
    fn agree(&self, found: &CertifiedAnswer, wanted: &CertifiedAnswer) -> Result<u64, String> {
        let counted = self.fixed_number
            && matches!(found.certificate, CertificateName::Pairwise | CertificateName::Vote);
        let samples = certifying(&self.drawn, found.samples);
        let (Some(samples), GalleryRef::Memory(_), true) = (samples, self.certifier.gallery(), counted)
        else {
            // Which rows look most dangerous may depend on last bits; how many do does not.
            let tests = |answer: &CertifiedAnswer| answer.counted.tests.as_ref().map(Vec::len);
            let (own, wanted_tests) = (tests(found), tests(wanted));
            if own != wanted_tests {
                return Err(format!("counted.tests has {own:?} rows, wanted {wanted_tests:?}"));
            }
            return within(found, wanted, ALIKE).map(|()| 0);
        };
        let copies = self.distances(&samples);
        let names = self.names();
        let number = |name: &str| names.iter().position(|own| own == name);
        let total = samples.count();
        let mut counts = vec![0; names.len()];
        let mut take = |rivals: &[RivalCount]| -> Result<(), String> {
            let ascending = rivals.windows(2).all(|pair| pair[0].label < pair[1].label);
            if !ascending || rivals.iter().any(|rival| rival.copies == 0) {
                return Err("rivals are not each there once, in order, with a copy or more".to_owned());
            }
            for rival in rivals {
                let number =
                    number(&rival.label).ok_or(format!("{:?} is no label of the gallery", rival.label))?;
                counts[number] = rival.copies;
            }
            Ok(())
        };
        let off = |what: &str, found: u32, span: Span| {
            Err(format!("{what} is {found}, wanted {} to {}", span.sure, span.possible))
        };
        let mut undecided = 0;
        let verdict = if let (Some(losses), CertificateName::Pairwise) =
            (&found.counted.losses, found.certificate)
        {
            take(losses)?;
            for (rival, &count) in counts.iter().enumerate() {
                let span = self.losses(&copies, rival);
                undecided += u64::from(span.possible - span.sure);
                if !span.holds(count) {
                    return off(&format!("losses to {}", names[rival]), count, span);
                }
            }
            let wins = total - counts.iter().copied().max().unwrap_or(0);
            self.certifier.judge_contest(&Contest { wins, total, rival: None })
        } else if let Some(votes) = &found.counted.votes {
            take(&votes.rivals)?;
            let span = self.right(&copies);
            undecided += u64::from(span.possible - span.sure);
            if !span.holds(votes.right) {
                return off("votes for the label", votes.right, span);
            }
            for (rival, &count) in counts.iter().enumerate() {
                let span = self.votes(&copies, rival);
                if !span.holds(count) {
                    return off(&format!("votes for {}", names[rival]), count, span);
                }
            }
            let own = wanted.counted.votes.as_ref().map(|votes| votes.rule.as_str());
            let rule =
                [VoteRule::Majority, VoteRule::RunnerUp].into_iter().find(|rule| rule.as_str() == votes.rule);
            let rule = rule.filter(|rule| Some(rule.as_str()) == own);
            let rule = rule.ok_or(format!("rule is {}, wanted {}", votes.rule, own.unwrap_or("none")))?;
            let given: u64 =
                counts.iter().map(|&count| u64::from(count)).sum::<u64>() + u64::from(votes.right);
            if given != u64::from(total) {
                return Err(format!("{given} votes were given, wanted {total}"));
            }
            let rivals = counts.iter().copied().enumerate().filter(|&(_, count)| count > 0).collect();
            self.certifier.judge_votes(rule, &Votes { right: votes.right, rivals }, total)
        } else {
            return Err("counted holds no counts of copies".to_owned());
        };
        let judged = CertifiedAnswer {
            verdict: match verdict {
                retrievalguard::certificate::Verdict::Certified { .. } => super::VerdictName::Certified,
                retrievalguard::certificate::Verdict::Abstained => super::VerdictName::Abstained,
                retrievalguard::certificate::Verdict::Misretrieved => super::VerdictName::Misretrieved,
            },
            radius: verdict.radius().map(|radius| radius.get().into()),
            ..found.clone()
        };
        within(found, &judged, SAME)?;
        Ok(undecided)
    }

    /// The names of labels, by their numbers.
    fn names(&self) -> Vec<String> {
        let gallery = self.certifier.gallery();
        let mut names = vec![String::new(); gallery.label_count()];
        for &label in gallery.labels() {
            names[label.index()] = gallery.label_name(label).to_owned();
        }
        names
    }

    /// The double loop, in `f64`.
    fn distances(&self, samples: &Samples) -> Vec<Distances> {
        let GalleryRef::Memory(gallery) = self.certifier.gallery() else { return Vec::new() };
        let roles: Vec<RowRelevance> =
            (0..gallery.len()).map(|row| self.relevance.of_row(gallery, row)).collect();
        let one = |copy: &[f32]| {
            let mut found =
                Distances { right: f64::INFINITY, rivals: vec![f64::INFINITY; gallery.label_count()] };
            for (row, role) in roles.iter().enumerate() {
                let place = match role {
                    RowRelevance::Excluded => continue,
                    RowRelevance::Positive => &mut found.right,
                    RowRelevance::Negative => &mut found.rivals[gallery.label(row).index()],
                };
                let pairs = copy.iter().zip(gallery.vector(row));
                let squared: f64 =
                    pairs.map(|(&left, &right)| (f64::from(left) - f64::from(right)).powi(2)).sum();
                *place = place.min(squared.sqrt());
            }
            found
        };
        (0..samples.count() as usize).map(|copy| one(samples.row(copy))).collect()
    }

    fn losses(&self, copies: &[Distances], rival: usize) -> Span {
        let mut span = Span::default();
        for Distances { right, rivals } in copies {
            let lead = rivals[rival] - right;
            span.count(lead < -self.tolerance, lead <= self.tolerance);
        }
        span
    }

    fn right(&self, copies: &[Distances]) -> Span {
        let mut span = Span::default();
        for Distances { right, rivals } in copies {
            let lead = rivals.iter().copied().fold(f64::INFINITY, f64::min) - right;
            span.count(lead > self.tolerance, lead >= -self.tolerance);
        }
        span
    }

    fn votes(&self, copies: &[Distances], rival: usize) -> Span {
        let mut span = Span::default();
        for Distances { right, rivals } in copies {
            let others = rivals.iter().enumerate().filter(|&(other, _)| other != rival);
            let nearest = others.map(|(_, &distance)| distance).fold(*right, f64::min);
            let lead = nearest - rivals[rival];
            span.count(lead > self.tolerance, lead >= -self.tolerance);
        }
        span
    }
}
