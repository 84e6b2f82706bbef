//! One query, answered: draw the pilot, settle what is relevant, certify, and name what is nearest.
//!
//! Everybody who answers a query comes through [`QueryCertifier`]: runs, workers, merges, the service, `query`, `explain`
//! and certificates of arrays. They differ in who draws the samples, in whether the right label is known, and in what they
//! say about the answer.

use std::ops::Range;

use retrievalguard::certificate::{
    AdaptiveOptions, AdaptiveTest, CertificateError, CertificateName, Certifier, Decision, GrowingOptions,
    GrowingOutcome, GrowingTest, HalfSpaceOptions, Outcome, RateOptions, RateTest, SampledQuery, Verdict,
};
use retrievalguard::gallery::{Label, NearestPair, Neighbour, Positives, Relevance};
use retrievalguard::noise::Stage;
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};
use retrievalguard::{SampleCount, SampleError, Samples};

use super::PipelineError;
use crate::run::{Procedure, Retriever};

/// Which items of the gallery are right for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relevant<'a> {
    /// Those with the query's true label.
    Label(&'a str),
    /// The item of this row, every view of it.
    Item(usize),
    /// Those with the label that the pilot retrieves: it is what gets certified, whatever later samples retrieve.
    Retrieved(Retriever),
}

/// What a query is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// What would be right.
    pub relevant: Relevant<'a>,
    /// Rows of the gallery that it must not see, in any order; they hide the other views of their items, too.
    pub excluded: &'a [usize],
}

/// A query with its certificates.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The label that was certified or tried, if the gallery has it.
    pub label: Option<Label>,
    /// What counted as right, and what was not seen.
    pub relevance: Relevance,
    /// One per certificate of the procedure, in its order.
    pub outcomes: Vec<Outcome>,
    /// Verdicts for Recall@2 and deeper under `half-space`.
    pub deeper: Vec<Verdict>,
    /// Why sampling ended, where it did not go on to a fixed number.
    pub decision: Option<Decision>,
    /// Mean of the certifying samples; of the pilot, if none were needed.
    pub mean: Vec<f64>,
}

/// What is known of a query on the way to its answer.
#[derive(Clone, Copy, Debug)]
pub enum Sighting<'a> {
    /// By the pilot alone; nothing is proved yet.
    Pilot {
        /// The label that will be tried.
        label: Option<Label>,
        /// Mean of the pilot.
        mean: &'a [f64],
    },
    /// A radius that is proved.
    Radius {
        /// The label that is tried.
        label: Option<Label>,
        /// What is proved by the samples so far.
        outcome: GrowingOutcome,
    },
}

/// Certifies queries against one gallery, from samples that someone draws.
#[derive(Clone, Copy, Debug)]
pub struct QueryCertifier<'a> {
    procedure: &'a Procedure,
    certifier: Certifier<'a>,
}

impl<'a> QueryCertifier<'a> {
    /// A certifier for a gallery of which only the vectors are known.
    pub fn new(procedure: &'a Procedure, gallery: impl Into<GalleryRef<'a>>) -> Self {
        let certifier = Certifier::new(gallery, procedure.sigma, procedure.alpha);
        let certifier = if procedure.replan_bets { certifier.replanning_bets() } else { certifier };
        Self { procedure, certifier }
    }

    /// A certifier for a stored gallery, which may say how many samples are behind its vectors.
    pub fn stored(procedure: &'a Procedure, gallery: &'a StoredGallery) -> Self {
        let samples = gallery.provenance().samples;
        let samples = samples.and_then(|count| SampleCount::new(u64::from(count)).ok());
        Self::new(procedure, gallery.gallery()).gallery_samples(samples)
    }

    /// Says how many samples are behind each vector of the gallery, if that is known.
    #[must_use]
    pub fn gallery_samples(self, samples: Option<SampleCount>) -> Self {
        let Some(samples) = samples else { return self };
        Self { certifier: self.certifier.gallery_samples(samples), ..self }
    }

    /// How queries are certified.
    pub fn procedure(&self) -> &'a Procedure {
        self.procedure
    }

    /// The certificates themselves.
    pub fn certifier(&self) -> &Certifier<'a> {
        &self.certifier
    }

    /// The retriever that answers.
    pub fn retriever(&self) -> Retriever {
        self.procedure.retriever()
    }

    /// The gallery that is searched.
    pub fn gallery(&self) -> GalleryRef<'a> {
        self.certifier.gallery()
    }

    /// Certifies one query, from a fixed number of samples or from as many as a target radius takes.
    ///
    /// `draw` gives the samples of a stage and range, `refused` wraps what certifying itself finds wrong.
    pub fn answer<E>(
        &self,
        query: &Query<'_>,
        mut draw: impl FnMut(Stage, Range<u32>) -> Result<Samples, E>,
        refused: impl Fn(CertificateError) -> E,
    ) -> Result<Answered, E> {
        let Procedure { certificates, samples, top_k, target_radius, .. } = self.procedure;
        if let (Some(target), Retriever::Vote | Retriever::Pairwise) = (*target_radius, self.retriever()) {
            let options = RateOptions::deciding(target, *samples);
            return self.answer_by_rates(query, &options, draw, refused, |_| Ok(()));
        }
        let (pilot, label, relevance) = self.begin(query, &mut draw, &refused)?;
        if let Some(target) = *target_radius {
            let options = AdaptiveOptions::new(target, *samples);
            let test = AdaptiveTest::new(&self.certifier, &pilot, &relevance, &options).map_err(&refused)?;
            let run = test.run(|range| draw(Stage::Certify, range), &refused)?;
            let outcome = Outcome {
                name: CertificateName::HalfSpace,
                verdict: run.outcome.verdict,
                samples: run.outcome.samples,
                explain: run.explain,
            };
            let (decision, mean) = (Some(run.outcome.decision), run.samples.unwrap_or(pilot).mean());
            return Ok(Answered {
                label,
                relevance,
                outcomes: vec![outcome],
                deeper: vec![],
                decision,
                mean,
            });
        }
        let certifying = draw(Stage::Certify, 0..samples.get())?;
        let sampled = SampledQuery { pilot, certifying };
        let (mut outcomes, mut deeper) = (Vec::with_capacity(certificates.len()), Vec::new());
        for &name in certificates {
            outcomes.push(if name == CertificateName::HalfSpace {
                let options = HalfSpaceOptions { top_k: *top_k, ..HalfSpaceOptions::default() };
                let found = self.certifier.half_space(&sampled, &relevance, &options).map_err(&refused)?;
                deeper = found.verdicts.iter().skip(1).copied().collect();
                found.into_outcome()
            } else {
                self.certifier.certify(name, &sampled, &relevance).map_err(&refused)?
            });
        }
        let mean = sampled.certifying.mean();
        Ok(Answered { label, relevance, outcomes, deeper, decision: None, mean })
    }

    /// Certifies one query from samples that are there already, all of them or as many as a target radius takes.
    pub fn answer_sampled(
        &self,
        query: &Query<'_>,
        sampled: SampledQuery,
    ) -> Result<Answered, CertificateError> {
        let [pilot, samples] =
            [&sampled.pilot, &sampled.certifying].map(|samples| SampleCount::new(u64::from(samples.count())));
        let procedure = Procedure { pilot: pilot?, samples: samples?, ..self.procedure.clone() };
        let certifier = QueryCertifier { procedure: &procedure, certifier: self.certifier };
        certifier.answer(query, drawn_before(sampled), |error| error)
    }

    /// Certifies one query with a radius that grows while samples come in; `tell` hears of every step.
    pub fn answer_growing<E>(
        &self,
        query: &Query<'_>,
        mut draw: impl FnMut(Stage, Range<u32>) -> Result<Samples, E>,
        refused: impl Fn(CertificateError) -> E,
        mut tell: impl FnMut(Sighting<'_>) -> Result<(), E>,
    ) -> Result<Answered, E> {
        let Procedure { samples, target_radius, .. } = *self.procedure;
        if self.retriever() != Retriever::Mean {
            let options = RateOptions::growing(target_radius, samples);
            return self.answer_by_rates(query, &options, draw, refused, tell);
        }
        let (pilot, label, relevance) = self.begin(query, &mut draw, &refused)?;
        tell(Sighting::Pilot { label, mean: &pilot.mean() })?;
        let options = GrowingOptions { target: target_radius, ..GrowingOptions::new(samples) };
        let mut test = GrowingTest::new(&self.certifier, &pilot, &relevance, &options).map_err(&refused)?;
        while let Some(range) = test.wants() {
            test.see(&draw(Stage::Certify, range)?).map_err(&refused)?;
            tell(Sighting::Radius { label, outcome: test.outcome() })?;
        }
        let GrowingOutcome { verdict, samples, decision, .. } = test.outcome();
        let explain = test.explain().cloned().unwrap_or_default();
        let outcome = Outcome { name: CertificateName::HalfSpace, verdict, samples, explain };
        let (decision, mean) = (Some(decision), test.mean());
        Ok(Answered { label, relevance, outcomes: vec![outcome], deeper: vec![], decision, mean })
    }

    /// Certifies one query under `vote` or `pairwise`, with as many samples as it takes.
    ///
    /// A pilot is drawn where it has something to choose: the label, or the rule of a vote.
    fn answer_by_rates<E>(
        &self,
        query: &Query<'_>,
        options: &RateOptions,
        mut draw: impl FnMut(Stage, Range<u32>) -> Result<Samples, E>,
        refused: impl Fn(CertificateError) -> E,
        mut tell: impl FnMut(Sighting<'_>) -> Result<(), E>,
    ) -> Result<Answered, E> {
        let (retriever, certifier) = (self.retriever(), &self.certifier);
        let (pilot, label, relevance) = match (retriever, query.relevant) {
            (Retriever::Pairwise, Relevant::Label(_) | Relevant::Item(_)) => {
                let (label, relevance) = self.settle(query, None, &refused)?;
                (None, label, relevance)
            }
            _ => {
                let (pilot, label, relevance) = self.begin(query, &mut draw, &refused)?;
                tell(Sighting::Pilot { label, mean: &pilot.mean() })?;
                (Some(pilot), label, relevance)
            }
        };
        let test = match retriever {
            Retriever::Pairwise => RateTest::pairwise(certifier, &relevance, options),
            Retriever::Mean | Retriever::Vote => {
                RateTest::vote(certifier, pilot.as_ref(), &relevance, options)
            }
            Retriever::Plain => Err(CertificateError::NotFromSamples(retriever.certificate())),
        };
        let mut test = test.map_err(&refused)?;
        while let Some(range) = test.wants() {
            test.see(&draw(Stage::Certify, range)?).map_err(&refused)?;
            tell(Sighting::Radius { label, outcome: test.outcome() })?;
        }
        let GrowingOutcome { mut verdict, samples, decision, .. } = test.outcome();
        let mean = match (test.mean(), pilot) {
            (Some(mean), _) => mean,
            // What needs no sample to be given up is still right or wrong, and has a nearest item.
            (None, pilot) => {
                let pilot = pilot.map_or_else(|| draw(Stage::Pilot, 0..self.procedure.pilot.get()), Ok)?;
                if !test.retrieves_among(&pilot).map_err(&refused)? {
                    verdict = Verdict::Misretrieved;
                }
                pilot.mean()
            }
        };
        let outcome = Outcome { name: retriever.certificate(), verdict, samples, explain: test.explain() };
        let decision = Some(decision);
        Ok(Answered { label, relevance, outcomes: vec![outcome], deeper: vec![], decision, mean })
    }

    /// Draws the pilot and settles what is relevant.
    fn begin<E>(
        &self,
        query: &Query<'_>,
        draw: &mut impl FnMut(Stage, Range<u32>) -> Result<Samples, E>,
        refused: impl Fn(CertificateError) -> E,
    ) -> Result<(Samples, Option<Label>, Relevance), E> {
        let pilot = draw(Stage::Pilot, 0..self.procedure.pilot.get())?;
        let (label, relevance) = self.settle(query, Some(&pilot), refused)?;
        Ok((pilot, label, relevance))
    }

    /// What is relevant; without a pilot nothing is retrieved.
    fn settle<E>(
        &self,
        query: &Query<'_>,
        pilot: Option<&Samples>,
        refused: impl Fn(CertificateError) -> E,
    ) -> Result<(Option<Label>, Relevance), E> {
        let retrieve = |retriever, excluded: &[usize]| match pilot {
            Some(pilot) => self.certifier.candidate(retriever, pilot, excluded),
            None => Ok(None),
        };
        settled(self.gallery(), query, retrieve).map_err(refused)
    }

    /// The items nearest to a mean of samples, each by its nearest view, among those that are not excluded.
    pub fn nearest(
        &self,
        mean: &[f64],
        count: usize,
        excluded: &[usize],
    ) -> Result<Vec<Neighbour>, CertificateError> {
        nearest_items(self.gallery(), mean, count, excluded)
    }

    /// The item that is nearest to a mean of samples, and the nearest wrong one, from one search.
    pub fn nearest_and_nearest_wrong(
        &self,
        mean: &[f64],
        relevance: &Relevance,
    ) -> Result<(Option<Neighbour>, Option<Neighbour>), CertificateError> {
        nearest_and_nearest_wrong(self.gallery(), mean, relevance)
    }
}

/// The items nearest to an embedding, each by its nearest view, among those that are not excluded.
pub fn nearest_items(
    gallery: GalleryRef<'_>,
    embedding: &[f64],
    count: usize,
    excluded: &[usize],
) -> Result<Vec<Neighbour>, CertificateError> {
    Ok(gallery.nearest_items(embedding, count, |_| excluded)?.into_iter().next().unwrap_or_default())
}

/// The item that is nearest to an embedding, and the nearest wrong one, from one search.
pub(super) fn nearest_and_nearest_wrong(
    gallery: GalleryRef<'_>,
    embedding: &[f64],
    relevance: &Relevance,
) -> Result<(Option<Neighbour>, Option<Neighbour>), CertificateError> {
    let found = gallery.nearest_positive_and_negative(embedding, |_| relevance)?;
    let NearestPair { positive, negative } = found.into_iter().next().unwrap_or_default();
    // Ties go to the smaller row.
    let order = |item: &Neighbour, other: &Neighbour| {
        item.squared_distance.total_cmp(&other.squared_distance).then(item.row.cmp(&other.row))
    };
    Ok((positive.into_iter().chain(negative).min_by(order), negative))
}

/// What is relevant for a query; `retrieve` says which label is found where none is given.
pub(super) fn settled(
    gallery: GalleryRef<'_>,
    query: &Query<'_>,
    retrieve: impl FnOnce(Retriever, &[usize]) -> Result<Option<Label>, CertificateError>,
) -> Result<(Option<Label>, Relevance), CertificateError> {
    // A view that stays visible would be the query's own picture.
    let excluded = whole_items(gallery, query.excluded);
    let label = match query.relevant {
        Relevant::Item(item) => return Ok((None, Relevance::new(Positives::Item(item), excluded))),
        Relevant::Label(name) => gallery.label_named(name),
        Relevant::Retrieved(retriever) => retrieve(retriever, &excluded)?,
    };
    Ok((label, relevance_of(label, excluded)))
}

/// The item that the encoder without noise retrieves in a gallery of clean embeddings, for the embedding of a clean picture.
///
/// What a query must not see is hidden as it is from certificates: with every view of its items.
pub fn nearest_plain(
    gallery: GalleryRef<'_>,
    embedding: &[f32],
    excluded: &[usize],
) -> Result<Option<Neighbour>, CertificateError> {
    let excluded = whole_items(gallery, excluded);
    Ok(gallery.nearest(embedding, 1, |_| &excluded)?.into_iter().flatten().next())
}

/// Every row of the items that some rows, in any order, belong to, ascending.
pub(crate) fn whole_items(gallery: GalleryRef<'_>, rows: &[usize]) -> Vec<usize> {
    let views =
        |&row: &usize| if row < gallery.len() { gallery.item_rows(gallery.item(row)) } else { row..row + 1 };
    Relevance::new(Positives::Absent, rows.iter().flat_map(views).collect()).excluded
}

/// What is right where a label is; nothing, where the gallery has no such label.
pub(crate) fn relevance_of(label: Option<Label>, excluded: Vec<usize>) -> Relevance {
    Relevance::new(label.map_or(Positives::Absent, Positives::Label), excluded)
}

/// Says of which query a certificate was refused.
pub fn uncertified<E: From<PipelineError>>(identity: &str) -> impl Fn(CertificateError) -> E {
    move |source| PipelineError::Certificate { query: identity.to_owned(), source }.into()
}

/// Gives out samples that are there already, as they are asked for.
fn drawn_before(sampled: SampledQuery) -> impl FnMut(Stage, Range<u32>) -> Result<Samples, CertificateError> {
    let (mut pilot, mut certifying) = (Some(sampled.pilot), Some(sampled.certifying));
    move |stage, range| {
        let kept = if stage == Stage::Pilot { &mut pilot } else { &mut certifying };
        let dimension = kept.as_ref().map_or(0, Samples::dimension);
        let wanted = match kept.as_ref().map(Samples::count) {
            // The whole of it is not copied.
            Some(count) if range == (0..count) => kept.take(),
            Some(_) => kept.as_ref().and_then(|kept| kept.slice(range)),
            None => None,
        };
        wanted.ok_or(CertificateError::from(SampleError::Empty { dimension }))
    }
}

#[cfg(test)]
mod tests {
    use retrievalguard::gallery::{Gallery, Metric};
    use retrievalguard::{Alpha, Excess, NormBound, Sigma, TargetRadius};

    use super::*;

    fn gallery() -> Gallery {
        let names = ["cat-1", "dog-1", "dog-2"].map(str::to_owned).to_vec();
        let vectors = vec![1.0, 0.0, -1.0, 0.0, 0.0, -1.0];
        Gallery::new(vectors, 2, names, &["cat", "dog", "dog"], Metric::Euclidean).unwrap()
    }

    fn procedure(certificates: &[CertificateName], target: Option<f64>) -> Procedure {
        Procedure {
            sigma: Sigma::new(0.25).unwrap(),
            alpha: Alpha::new(0.01).unwrap(),
            pilot: SampleCount::new(50).unwrap(),
            samples: SampleCount::new(1000).unwrap(),
            certificates: certificates.to_vec(),
            top_k: 1,
            target_radius: target.map(|radius| TargetRadius::new(radius).unwrap()),
            replan_bets: false,
        }
    }

    /// Samples near the cat, each a little different from the one before.
    fn near_cat(stage: Stage, range: Range<u32>) -> Result<Samples, CertificateError> {
        let offset = if stage == Stage::Pilot { 0.5 } else { 0.0 };
        let value = |sample: u32| ((f64::from(sample) + offset) * 0.618).fract() as f32;
        let rows = range.flat_map(|sample| [0.8 + 0.1 * value(sample), 0.2 * value(sample) - 0.1]);
        Ok(Samples::new(rows.collect(), 2, NormBound::UNIT, Excess::Refuse)?)
    }

    fn answer(procedure: &Procedure, gallery: &Gallery, relevant: Relevant<'_>) -> Answered {
        let query = Query { relevant, excluded: &[] };
        QueryCertifier::new(procedure, gallery).answer(&query, near_cat, |error| error).unwrap()
    }

    #[test]
    fn the_label_is_known_or_what_the_pilot_retrieves() {
        let (gallery, procedure) = (gallery(), procedure(&[CertificateName::HalfSpace], None));
        let cat = gallery.label_named("cat");
        for (relevant, label, certified) in [
            (Relevant::Label("cat"), cat, true),
            (Relevant::Item(0), None, true),
            (Relevant::Retrieved(Retriever::Mean), cat, true),
            (Relevant::Retrieved(Retriever::Vote), cat, true),
            (Relevant::Retrieved(Retriever::Pairwise), cat, true),
            (Relevant::Label("dog"), gallery.label_named("dog"), false),
            (Relevant::Label("cow"), None, false),
        ] {
            let answered = answer(&procedure, &gallery, relevant);
            assert_eq!(answered.label, label, "{relevant:?}");
            assert_eq!(answered.outcomes[0].verdict.radius().is_some(), certified, "{relevant:?}");
        }
    }

    #[test]
    fn what_is_excluded_is_neither_right_nor_nearest() {
        let (gallery, procedure) = (gallery(), procedure(&[CertificateName::HalfSpace], None));
        let certifier = QueryCertifier::new(&procedure, &gallery);
        let query = Query { relevant: Relevant::Retrieved(Retriever::Mean), excluded: &[0, 0] };
        let answered = certifier.answer(&query, near_cat, |error| error);
        // Among dogs alone nothing can go wrong, and nothing is proved.
        assert!(matches!(answered, Err(CertificateError::NoNegatives)), "{answered:?}");
        let nearest = certifier.nearest(&[0.9, 0.0], 5, &[0]).unwrap();
        assert_eq!(nearest.iter().map(|found| found.row).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_hidden_row_hides_every_view_of_its_item() {
        // The cat's second view is where the query is; the other cat is far away.
        let vectors = vec![-0.2, 0.9, 0.85, 0.0, -1.0, 0.0, 0.0, -1.0, 9.0, 9.0, 8.0, 8.0];
        let names = ["cat-1", "cat-1", "dog-1", "dog-1", "cat-2", "cat-2"].map(str::to_owned).to_vec();
        let labels = ["cat", "cat", "dog", "dog", "cat", "cat"];
        let gallery = Gallery::new(vectors, 2, names, &labels, Metric::Euclidean).unwrap();
        let gallery = gallery.with_views(vec!["as is".to_owned(), "mirrored".to_owned()]).unwrap();
        for name in [CertificateName::HalfSpace, CertificateName::Vote, CertificateName::Pairwise] {
            let procedure = procedure(&[name], None);
            let certifier = QueryCertifier::new(&procedure, &gallery);
            let verdict = |excluded: &[usize]| {
                let query = Query { relevant: Relevant::Label("cat"), excluded };
                let answered = certifier.answer(&query, near_cat, |error| error).unwrap();
                (answered.outcomes[0].verdict, answered.relevance.excluded)
            };
            assert!(verdict(&[]).0.radius().is_some(), "{name}");
            for own in [&[0][..], &[1], &[1, 0, 1]] {
                assert_eq!(verdict(own), (Verdict::Misretrieved, vec![0, 1]), "{name}, {own:?}");
            }
        }
        // Neighbours are items, each by its nearest view.
        let procedure = procedure(&[CertificateName::HalfSpace], None);
        let nearest = QueryCertifier::new(&procedure, &gallery).nearest(&[0.9, 0.0], 5, &[]).unwrap();
        assert_eq!(nearest.iter().map(|found| found.row).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn every_certificate_of_the_procedure_answers_in_its_order() {
        let names = [CertificateName::Vote, CertificateName::HalfSpace, CertificateName::PaperFrozen];
        let (gallery, procedure) = (gallery(), procedure(&names, None));
        let answered = answer(&procedure, &gallery, Relevant::Label("cat"));
        assert_eq!(answered.outcomes.iter().map(|outcome| outcome.name).collect::<Vec<_>>(), names);
        assert_eq!((answered.decision, answered.deeper.len()), (None, 0));
    }

    #[test]
    fn a_target_radius_takes_fewer_samples_and_says_why_it_ended() {
        let (gallery, procedure) = (gallery(), procedure(&[CertificateName::HalfSpace], Some(0.1)));
        let answered = answer(&procedure, &gallery, Relevant::Label("cat"));
        assert_eq!(answered.decision, Some(Decision::Reached));
        assert!(answered.outcomes[0].samples < 1000, "{:?}", answered.outcomes);
    }

    #[test]
    fn samples_that_are_there_already_give_the_answer_of_samples_that_are_drawn() {
        let gallery = gallery();
        for target in [None, Some(0.1), Some(5.0)] {
            let procedure = procedure(&[CertificateName::HalfSpace], target);
            let certifier = QueryCertifier::new(&procedure, &gallery);
            let query = Query { relevant: Relevant::Retrieved(Retriever::Mean), excluded: &[] };
            let pilot = near_cat(Stage::Pilot, 0..50).unwrap();
            let certifying = near_cat(Stage::Certify, 0..1000).unwrap();
            let there = certifier.answer_sampled(&query, SampledQuery { pilot, certifying }).unwrap();
            let drawn = certifier.answer(&query, near_cat, |error| error).unwrap();
            assert_eq!((there.outcomes, there.mean), (drawn.outcomes, drawn.mean), "{target:?}");
        }
    }

    #[test]
    fn a_growing_radius_is_told_from_the_pilot_to_the_answer() {
        let (gallery, procedure) = (gallery(), procedure(&[CertificateName::HalfSpace], None));
        let certifier = QueryCertifier::new(&procedure, &gallery);
        let query = Query { relevant: Relevant::Retrieved(Retriever::Mean), excluded: &[] };
        let (mut pilots, mut radii) = (0, Vec::new());
        let tell = |sighting: Sighting<'_>| {
            match sighting {
                Sighting::Pilot { label, mean } => {
                    assert!(radii.is_empty() && label.is_some() && mean.len() == 2);
                    pilots += 1;
                }
                Sighting::Radius { outcome, .. } => radii.extend(outcome.verdict.radius()),
            }
            Ok(())
        };
        let answered = certifier.answer_growing(&query, near_cat, |error| error, tell).unwrap();
        assert_eq!((pilots, answered.decision), (1, Some(Decision::Capped)));
        assert!(radii.len() > 1 && radii.is_sorted(), "{radii:?}");
        assert_eq!(answered.outcomes[0].verdict.radius(), radii.last().copied());
    }

    #[test]
    fn errors_of_whoever_draws_come_through_as_they_are() {
        let (gallery, procedure) = (gallery(), procedure(&[CertificateName::HalfSpace], None));
        let certifier = QueryCertifier::new(&procedure, &gallery);
        let query = Query { relevant: Relevant::Label("cat"), excluded: &[] };
        let draw = |stage, range| match stage {
            Stage::Pilot => near_cat(stage, range).map_err(|error| error.to_string()),
            _ => Err("the disk is gone".to_owned()),
        };
        let ended = certifier.answer(&query, draw, |error| format!("refused: {error}"));
        assert_eq!(ended.unwrap_err(), "the disk is gone");
        let short = |stage, _| near_cat(stage, 0..10).map_err(|error| error.to_string());
        let refused =
            certifier.answer_growing(&query, short, |error| format!("refused: {error}"), |_| Ok(()));
        assert!(refused.unwrap_err().starts_with("refused: "));
        let wrapped: PipelineError = uncertified("cat.jpg")(CertificateError::NoNegatives);
        assert_eq!(wrapped.to_string(), "query `cat.jpg` cannot be certified");
    }
}
