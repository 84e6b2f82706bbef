//! What a verdict is arithmetic on, counted from the samples that it rests on.

use std::collections::BTreeMap;

use retrievalguard::certificate::{
    CertificateError, CertificateName, HalfSpaceOptions, Outcome, PlannedTest, Radius, Verdict,
};
use retrievalguard::storage::stored::GalleryRef;
use retrievalguard::{SampleCount, Samples};

use super::body::{
    BoundCounts, CertifiedAnswer, Counted, DrawnRange, PlannedShare, RivalCount, StepFacts, TestFacts,
    VerdictName, VoteCounts,
};
use super::statement::{Circumstances, of_verdict};
use crate::pipeline::{Answered, Drawn, PlainAnswered, QueryCertifier};

/// The ranges of samples that were drawn.
pub(super) fn drawn_ranges(drawn: &Drawn) -> Vec<DrawnRange> {
    let range = |stage: &str, samples: &Option<Samples>| {
        let end = samples.as_ref()?.count();
        Some(DrawnRange { stage: stage.to_owned(), first: 0, end })
    };
    [range("pilot", &drawn.pilot), range("certify", &drawn.certify)].into_iter().flatten().collect()
}

/// The answers from noise, with what they were counted from.
pub(super) fn of_samples(
    certifier: &QueryCertifier<'_>,
    answered: &Answered,
    drawn: &Drawn,
    under: Circumstances<'_>,
) -> Result<Vec<CertifiedAnswer>, CertificateError> {
    let counted = |outcome: &Outcome| {
        Ok(answer(certifier.gallery(), answered, outcome, under, count(certifier, answered, outcome, drawn)?))
    };
    answered.outcomes.iter().map(counted).collect()
}

/// The answers from a bound on the encoder.
pub(super) fn of_bound(
    gallery: GalleryRef<'_>,
    PlainAnswered { answered, bound }: &PlainAnswered,
    under: Circumstances<'_>,
) -> Vec<CertifiedAnswer> {
    let counted = |outcome: &Outcome| {
        let bound = BoundCounts {
            constant: bound.constant.get().into(),
            forward_error: bound.forward_error.get().into(),
            embedding: answered.mean.iter().map(|&value| value.into()).collect(),
        };
        let counted = Counted { bound: Some(bound), steps: steps(outcome), ..Counted::default() };
        answer(gallery, answered, outcome, under, counted)
    };
    answered.outcomes.iter().map(counted).collect()
}

fn answer(
    gallery: GalleryRef<'_>,
    answered: &Answered,
    outcome: &Outcome,
    under: Circumstances<'_>,
    counted: Counted,
) -> CertifiedAnswer {
    let label = answered.label.map(|label| gallery.label_name(label));
    let radius = outcome.verdict.radius();
    CertifiedAnswer {
        certificate: outcome.name,
        label: label.map(str::to_owned),
        verdict: match outcome.verdict {
            Verdict::Certified { .. } => VerdictName::Certified,
            Verdict::Abstained => VerdictName::Abstained,
            Verdict::Misretrieved => VerdictName::Misretrieved,
        },
        radius: radius.map(|radius| radius.get().into()),
        samples: outcome.samples,
        decision: answered.decision.map(|decision| decision.as_str().to_owned()),
        statement: of_verdict(outcome.name, label.zip(radius), under),
        counted,
    }
}

fn steps(outcome: &Outcome) -> Vec<StepFacts> {
    let step = |step: &retrievalguard::certificate::Step| StepFacts {
        quantity: step.quantity.to_string(),
        value: step.value.to_string(),
    };
    outcome.explain.steps().iter().map(step).collect()
}

fn count(
    certifier: &QueryCertifier<'_>,
    answered: &Answered,
    outcome: &Outcome,
    drawn: &Drawn,
) -> Result<Counted, CertificateError> {
    let mut counted = Counted { steps: steps(outcome), ..Counted::default() };
    let samples = certifying(drawn, outcome.samples);
    let (judge, relevance) = (certifier.certifier(), &answered.relevance);
    let gallery = certifier.gallery();
    match outcome.name {
        CertificateName::Pairwise => {
            let losses = samples.as_ref().map(|samples| judge.losses(samples, relevance)).transpose()?;
            let losses = losses.unwrap_or_default().into_iter().enumerate();
            counted.losses = Some(by_label(gallery, losses));
        }
        CertificateName::Vote => {
            let votes = samples.as_ref().map(|samples| judge.count_votes(samples, relevance)).transpose()?;
            let votes = votes.unwrap_or_default();
            counted.votes = Some(VoteCounts {
                right: votes.right,
                rule: outcome.explain.value("rule").map(ToString::to_string).unwrap_or_default(),
                rivals: by_label(gallery, votes.rivals.into_iter()),
            });
        }
        CertificateName::HalfSpace => counted.tests = planned(certifier, answered, drawn)?,
        CertificateName::Paper
        | CertificateName::PaperLinear
        | CertificateName::PaperRepaired
        | CertificateName::PaperFrozen
        | CertificateName::HalfSpaceMean
        | CertificateName::Lipschitz
        | CertificateName::LipschitzMargin => {}
    }
    Ok(counted)
}

/// The first so many certifying samples; none if there are none.
pub(super) fn certifying(drawn: &Drawn, count: u32) -> Option<Samples> {
    drawn.certify.as_ref().filter(|_| count > 0).and_then(|samples| samples.slice(0..count))
}

/// How `half-space` tested dangerous rows, where the number of samples was fixed and the gallery is in memory.
fn planned(
    certifier: &QueryCertifier<'_>,
    answered: &Answered,
    drawn: &Drawn,
) -> Result<Option<Vec<TestFacts>>, CertificateError> {
    let procedure = certifier.procedure();
    let (None, GalleryRef::Memory(_), Some(pilot)) = (answered.decision, certifier.gallery(), &drawn.pilot)
    else {
        return Ok(None);
    };
    let samples = SampleCount::new(u64::from(procedure.samples.get()))?;
    let options = HalfSpaceOptions { top_k: procedure.top_k, ..HalfSpaceOptions::default() };
    let planned = certifier.certifier().planned_tests(pilot, &answered.relevance, samples, &options)?;
    let facts = |PlannedTest { row, positives, form }| TestFacts {
        row,
        positives: positives.into_iter().map(|(row, share)| PlannedShare { row, share }).collect(),
        form: form.as_str().to_owned(),
    };
    Ok(Some(planned.into_iter().map(facts).collect()))
}

/// Counts above zero, by the names of labels and in their order.
fn by_label(gallery: GalleryRef<'_>, counts: impl Iterator<Item = (usize, u32)>) -> Vec<RivalCount> {
    let mut names: Vec<&str> = vec![""; gallery.label_count()];
    for &label in gallery.labels() {
        names[label.index()] = gallery.label_name(label);
    }
    let named: BTreeMap<&str, u32> =
        counts.filter(|&(_, copies)| copies > 0).map(|(number, copies)| (names[number], copies)).collect();
    named.into_iter().map(|(label, copies)| RivalCount { label: label.to_owned(), copies }).collect()
}

/// The radius of an answer as certificates have it.
pub(super) fn radius_of(answer: &CertifiedAnswer) -> Option<Radius> {
    let radius = answer.radius?.get();
    Some(if radius == f64::INFINITY { Radius::Unbounded } else { Radius::Finite(radius) })
}
