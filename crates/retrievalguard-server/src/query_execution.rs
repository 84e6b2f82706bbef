//! How a query is answered: pilot, label, certificate, answer.
//!
//! It runs on a thread of its own that mostly waits: for passes in the scheduler's queue, and for a permit whenever it has
//! arithmetic to do. Sampling and certifying stay what they are in the method crate.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use retrievalguard::certificate::{
    AdaptiveOptions, AdaptiveTest, CertificateName, Certifier, Decision, GrowingOptions, GrowingTest,
    SampledQuery, Verdict,
};
use retrievalguard::gallery::{Positives, Relevance};
use retrievalguard::noise::Stage;
use retrievalguard::{SampleCount, Samples, Seed, TargetRadius};

use crate::admission::AdmissionSlot;
use crate::answer::{Answer, DecisionWord, Guarantee, Hashes, Item, Milliseconds, Step, asking_again};
use crate::gallery_writer::Snapshot;
use crate::problem::Problem;
use crate::scheduler::{PassError, Prepared, Ticket};
use crate::settings::Guarantees;

/// What is asked about one picture.
pub(crate) struct QueryRequest {
    pub(crate) picture: Arc<Prepared>,
    /// SHA-256 of the picture as it was sent.
    pub(crate) picture_hash: String,
    /// Certifying samples, or the most of them.
    pub(crate) samples: SampleCount,
    pub(crate) target: Option<TargetRadius>,
    pub(crate) top_k: usize,
    /// Drawn after the picture was here, so that nobody could aim at the noise.
    pub(crate) seed: Seed,
    pub(crate) request_id: String,
}

/// What is reported before the answer.
pub(crate) enum QueryProgress {
    /// The candidate and its neighbours, by the pilot; nothing is proved yet.
    First(Box<Answer>),
    /// A certified radius, or none yet.
    Step(Step),
}

/// Permits for arithmetic: as many at once as there are cores.
pub(crate) struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

pub(crate) struct Permit<'a>(&'a Permits);

impl Permits {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), returned: Condvar::new() }
    }

    pub(crate) fn take(&self) -> Permit<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.returned.notify_one();
    }
}

/// Everything that answering needs but the question.
pub(crate) struct QueryExecution<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) guarantees: &'a Guarantees,
    pub(crate) ticket: &'a Ticket,
    pub(crate) permits: &'a Permits,
    /// The query's slot, if it has promised its passes.
    pub(crate) slot: Option<&'a AdmissionSlot>,
}

impl QueryExecution<'_> {
    /// One answer from a fixed number of samples, or from as many as a target radius takes.
    pub(crate) fn once(&self, request: &QueryRequest) -> Result<Answer, Problem> {
        let started = Instant::now();
        let pilot = self.pilot(request)?;
        let gallery = self.snapshot.gallery();
        let certifier = self.certifier();
        let chosen = self.permits.take();
        let (relevance, label) = choose(&certifier, &pilot)?;
        let (verdict, decision, certifying) = match request.target {
            Some(target) => {
                let options = AdaptiveOptions::new(target, request.samples);
                let mut test = AdaptiveTest::new(&certifier, &pilot, &relevance, &options)?;
                drop(chosen);
                let mut seen: Option<Samples> = None;
                while let Some(range) = test.wants() {
                    let more = self.draw(request, range)?;
                    let _permit = self.permits.take();
                    test.see(&more)?;
                    match &mut seen {
                        Some(seen) => seen.append(&more).map_err(PassError::from)?,
                        None => seen = Some(more),
                    }
                }
                let outcome = test.outcome();
                (outcome.verdict, outcome.decision.into(), (outcome.samples, seen.unwrap_or(pilot)))
            }
            None => {
                drop(chosen);
                let certifying = self.draw(request, 0..request.samples.get())?;
                let query = SampledQuery { pilot, certifying };
                let _permit = self.permits.take();
                let outcome = certifier.certify(CertificateName::HalfSpace, &query, &relevance)?;
                (outcome.verdict, DecisionWord::Fixed, (outcome.samples, query.certifying))
            }
        };
        let (samples, certifying) = certifying;
        let _permit = self.permits.take();
        let nearest = gallery.nearest(&certifying.mean(), request.top_k, |_| &[]);
        let nearest = nearest.map_err(|error| Problem::unprocessable(error.to_string()))?.remove(0);
        let items = Item::list(self.snapshot, &nearest);
        Ok(self.answer(request, started, verdict, label, (samples, decision), items))
    }

    /// An answer whose radius grows while samples come in; `report` hears of every step.
    pub(crate) fn growing(
        &self,
        request: &QueryRequest,
        report: &mut dyn FnMut(QueryProgress),
    ) -> Result<Answer, Problem> {
        let started = Instant::now();
        let pilot = self.pilot(request)?;
        let gallery = self.snapshot.gallery();
        let certifier = self.certifier();
        let chosen = self.permits.take();
        let (relevance, label) = choose(&certifier, &pilot)?;
        let nearest = |mean: &[f64]| {
            let found = gallery.nearest(mean, request.top_k, |_| &[]);
            let found = found.map_err(|error| Problem::unprocessable(error.to_string()))?.remove(0);
            Ok::<_, Problem>(Item::list(self.snapshot, &found))
        };
        let options = GrowingOptions { target: request.target, ..GrowingOptions::new(request.samples) };
        let items = nearest(&pilot.mean())?;
        let open = (0, DecisionWord::Open);
        report(QueryProgress::First(Box::new(self.answer(
            request,
            started,
            Verdict::Abstained,
            label.clone(),
            open,
            items,
        ))));
        let mut test = GrowingTest::new(&certifier, &pilot, &relevance, &options)?;
        drop(chosen);
        while let Some(range) = test.wants() {
            let samples = self.draw(request, range)?;
            let permit = self.permits.take();
            test.see(&samples)?;
            drop(permit);
            let outcome = test.outcome();
            let guarantee =
                Guarantee::new(outcome.verdict, label.as_deref(), self.guarantees, outcome.samples);
            report(QueryProgress::Step(Step {
                samples: outcome.samples,
                verdict: guarantee.verdict,
                label: guarantee.label,
                radius: guarantee.radius,
                unbounded: guarantee.unbounded,
                statement: guarantee.statement,
                milliseconds: milliseconds(started),
            }));
        }
        let outcome = test.outcome();
        let _permit = self.permits.take();
        let items = nearest(&test.mean())?;
        let decision = match (outcome.decision, request.target) {
            // Without a target the cap is the number that was asked for.
            (Decision::Capped, None) => DecisionWord::Fixed,
            (decision, _) => decision.into(),
        };
        let cost = (outcome.samples, decision);
        Ok(self.answer(request, started, outcome.verdict, label, cost, items))
    }

    fn certifier(&self) -> Certifier<'_> {
        Certifier::new(self.snapshot.gallery(), self.guarantees.sigma, self.guarantees.alpha)
    }

    fn pilot(&self, request: &QueryRequest) -> Result<Samples, Problem> {
        let count = self.guarantees.pilot.get();
        self.sample(request, Stage::Pilot, 0..count)
    }

    fn draw(&self, request: &QueryRequest, range: std::ops::Range<u32>) -> Result<Samples, Problem> {
        self.sample(request, Stage::Certify, range)
    }

    fn sample(
        &self,
        request: &QueryRequest,
        stage: Stage,
        range: std::ops::Range<u32>,
    ) -> Result<Samples, Problem> {
        let count = range.len() as u64;
        let samples =
            self.ticket.samples(&request.picture, (self.guarantees.sigma, request.seed), stage, range)?;
        if let Some(slot) = self.slot {
            slot.spend(count);
        }
        Ok(samples)
    }

    fn answer(
        &self,
        request: &QueryRequest,
        started: Instant,
        verdict: Verdict,
        candidate: Option<String>,
        (samples, decision): (u32, DecisionWord),
        items: Vec<Item>,
    ) -> Answer {
        let Guarantee { verdict, label, radius, unbounded, statement } =
            Guarantee::new(verdict, candidate.as_deref(), self.guarantees, samples);
        Answer {
            verdict,
            label,
            candidate_label: candidate,
            radius,
            unbounded,
            statement,
            samples,
            pilot: self.guarantees.pilot.get(),
            decision,
            sigma: self.guarantees.sigma.get(),
            alpha: self.guarantees.alpha.get(),
            asking_again: asking_again(self.guarantees.alpha),
            items,
            milliseconds: Milliseconds {
                total: milliseconds(started),
                waiting: rounded(self.ticket.waited().as_secs_f64() * 1e3),
            },
            hashes: Hashes {
                picture: request.picture_hash.clone(),
                model: self.guarantees.model.clone(),
                contract: self.guarantees.contract.clone(),
                gallery: self.snapshot.version().to_owned(),
            },
            request_id: request.request_id.clone(),
        }
    }
}

/// What the pilot retrieves is what gets certified.
fn choose(certifier: &Certifier<'_>, pilot: &Samples) -> Result<(Relevance, Option<String>), Problem> {
    let gallery = certifier.gallery();
    let label = certifier.retrieve(pilot, &[])?.map(|found| gallery.label(found.row));
    let relevance = Relevance::new(label.map_or(Positives::Absent, Positives::Label), vec![]);
    Ok((relevance, label.map(|label| gallery.label_name(label).to_owned())))
}

pub(crate) fn milliseconds(started: Instant) -> f64 {
    rounded(started.elapsed().as_secs_f64() * 1e3)
}

fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 10.0).round() / 10.0
}
