//! How the service answers a query: samples from the scheduler, certified as every query is, in the words of an answer.
//!
//! It runs on a thread of its own that mostly waits: for passes in the scheduler's queue, and for a permit whenever it has
//! arithmetic to do. Without noise there is nothing to wait for: [`bounded`] is one pass and one answer.

mod bounded;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use retrievalguard::certificate::{CertificateError, Decision, GrowingOutcome, Verdict};
use retrievalguard::gallery::Label;
use retrievalguard::noise::Stage;
use retrievalguard::{Excess, SampleCount, Samples, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::pipeline::{
    Answered, Drawn, Query, QueryCertifier, Relevant, Sighting, nearest_plain,
};
use retrievalguard_encoder::receipt::{Asked, PictureFacts, Premises, Promise, ReceiptKey, Secret};
use serde_json::Value;

use crate::admission::AdmissionSlot;
use crate::answer::{
    Answer, Commitment, DecisionWord, Guarantee, GuaranteeWord, Hashes, Item, Milliseconds, Step,
    asking_again,
};
use crate::gallery_writer::Snapshot;
use crate::problem::Problem;
use crate::scheduler::{Prepared, Ticket};
use crate::settings::{Guarantees, Sampling};

/// What is asked about one picture.
pub(crate) struct QueryRequest {
    pub(crate) picture: Arc<Prepared>,
    /// SHA-256 of the picture as it was sent.
    pub(crate) picture_hash: String,
    /// What is asked of samples; nothing where there are none.
    pub(crate) draws: Option<Draws>,
    pub(crate) top_k: usize,
    /// The receipt that is wanted, if one is.
    pub(crate) receipt: Option<WantedReceipt>,
    pub(crate) request_id: String,
}

/// What a receipt is made with, beside the answer.
pub(crate) struct WantedReceipt {
    /// 32 random bytes that hide the seed.
    pub(crate) salt: [u8; 32],
    /// Text of the asker.
    pub(crate) challenge: Option<String>,
}

/// What a query asks of samples.
#[derive(Clone, Copy)]
pub(crate) struct Draws {
    /// Certifying samples, or the most of them.
    pub(crate) samples: SampleCount,
    pub(crate) target: Option<TargetRadius>,
    /// Drawn after the picture was here, so that nobody could aim at the noise.
    pub(crate) seed: Seed,
}

/// What is reported before the answer.
pub(crate) enum QueryProgress {
    /// What the receipt of the answer is going to open; nothing was drawn yet.
    Promised(Commitment),
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
    pub(crate) embedder: &'a OnnxEmbedder,
    /// The key that signs receipts.
    pub(crate) key: Option<&'a ReceiptKey>,
}

impl<'a> QueryExecution<'a> {
    /// One answer from a fixed number of samples, or from as many as a target radius takes.
    pub(crate) fn once(
        &self,
        (sampling, draws): (&Sampling, Draws),
        request: &QueryRequest,
    ) -> Result<Answer, Problem> {
        let (started, procedure) = (Instant::now(), sampling.procedure(draws.samples, draws.target));
        let certifier = QueryCertifier::new(&procedure, self.snapshot.gallery());
        let promise = self.promise(request, &certifier, draws.seed, false)?;
        let plain = self.plain(request)?;
        let (mut permit, noise) = (None, (sampling.sigma, draws.seed));
        let mut drawn = promise.is_some().then(Drawn::default);
        let draw = |stage, range| self.draw(request, noise, (&mut permit, &mut drawn), stage, range);
        let answered = certifier.answer(&self.query(), draw, Problem::from)?;
        let receipt = self.receipt(promise, &certifier, (&answered, drawn))?;
        let answer = self.finish((request, draws.target), started, &certifier, (answered, plain))?;
        Ok(Answer { receipt, ..answer })
    }

    /// An answer whose radius grows while samples come in; `report` hears of every step and must not wait for anybody:
    /// the encoder does not go on before it returns.
    pub(crate) fn growing(
        &self,
        (sampling, draws): (&Sampling, Draws),
        request: &QueryRequest,
        report: &mut dyn FnMut(QueryProgress),
    ) -> Result<Answer, Problem> {
        let (started, procedure) = (Instant::now(), sampling.procedure(draws.samples, draws.target));
        let certifier = QueryCertifier::new(&procedure, self.snapshot.gallery());
        let promise = self.promise(request, &certifier, draws.seed, true)?;
        if let Some(commitment) = promise.as_ref().and_then(Promise::commitment) {
            report(QueryProgress::Promised(Commitment { commitment: commitment.to_string() }));
        }
        let plain = self.plain(request)?;
        let (mut permit, noise) = (None, (sampling.sigma, draws.seed));
        let mut drawn = promise.is_some().then(Drawn::default);
        let draw = |stage, range| self.draw(request, noise, (&mut permit, &mut drawn), stage, range);
        let tell = |sighting: Sighting<'_>| {
            match sighting {
                Sighting::Pilot { label, mean } => {
                    let items = self.items(&certifier, mean, request.top_k)?;
                    let open = Some((0, DecisionWord::Open));
                    let label = self.label_name(label);
                    let first = self.answer(
                        request,
                        started,
                        (Verdict::Abstained, label),
                        open,
                        (items, plain.clone()),
                    );
                    report(QueryProgress::First(Box::new(first)));
                }
                Sighting::Radius { label, outcome } => {
                    report(QueryProgress::Step(self.step(request, started, label, outcome)));
                }
            }
            Ok(())
        };
        let answered = certifier.answer_growing(&self.query(), draw, Problem::from, tell)?;
        let receipt = self.receipt(promise, &certifier, (&answered, drawn))?;
        let answer = self.finish((request, draws.target), started, &certifier, (answered, plain))?;
        Ok(Answer { receipt, ..answer })
    }

    /// What a receipt is about.
    fn asked<'q>(&self, request: &QueryRequest, query: &'q Query<'q>) -> Result<Asked<'q>, Problem> {
        let file = request.picture_hash.parse().map_err(Problem::internal)?;
        let picture = PictureFacts::new(&request.picture.identity, file, &request.picture.pixels);
        let challenge = request.receipt.as_ref().and_then(|receipt| receipt.challenge.clone());
        Ok(Asked { picture, query, challenge })
    }

    /// What is promised before anything is drawn, if a receipt is wanted.
    fn promise(
        &self,
        request: &QueryRequest,
        certifier: &QueryCertifier<'_>,
        seed: Seed,
        growing: bool,
    ) -> Result<Option<Promise>, Problem> {
        let Some(WantedReceipt { salt, .. }) = &request.receipt else { return Ok(None) };
        let query = self.query();
        let asked = self.asked(request, &query)?;
        let how = (certifier.procedure(), growing);
        let promise =
            self.premises()?.with_noise(asked, certifier.gallery(), how, Secret::Fresh(seed, *salt));
        promise.map(Some).map_err(Problem::internal)
    }

    fn premises(&self) -> Result<Premises, Problem> {
        let excess = self.guarantees.basis.sampling().map_or(Excess::Refuse, |sampling| sampling.excess);
        let _permit = self.permits.take();
        Ok(Premises::new(self.embedder, excess, self.snapshot.content()?))
    }

    /// The receipt that was promised.
    fn receipt(
        &self,
        promise: Option<Promise>,
        certifier: &QueryCertifier<'_>,
        (answered, drawn): (&Answered, Option<Drawn>),
    ) -> Result<Option<Value>, Problem> {
        let Some((promise, drawn)) = promise.zip(drawn) else { return Ok(None) };
        Ok(Some(promise.keep(certifier, answered, &drawn, self.key)?.to_value()))
    }

    /// What a query is asked about: the label that is retrieved, by the pilot if there is one.
    fn query(&self) -> Query<'static> {
        Query { relevant: Relevant::Retrieved(self.guarantees.basis.retriever()), excluded: &[] }
    }

    /// Draws samples. The permit for arithmetic goes back while it waits for them, and is taken again with them.
    fn draw(
        &self,
        request: &QueryRequest,
        noise: (Sigma, Seed),
        (permit, drawn): (&mut Option<Permit<'a>>, &mut Option<Drawn>),
        stage: Stage,
        range: Range<u32>,
    ) -> Result<Samples, Problem> {
        *permit = None;
        let count = range.len() as u64;
        let samples = self.ticket.samples(&request.picture, noise, stage, range)?;
        if let Some(slot) = self.slot {
            slot.spend(count);
        }
        *permit = Some(self.permits.take());
        if let Some(drawn) = drawn {
            drawn.add(stage, &samples).map_err(CertificateError::from)?;
        }
        Ok(samples)
    }

    /// What the encoder without noise retrieves, from one pass; none where the gallery has no clean embeddings.
    fn plain(&self, request: &QueryRequest) -> Result<Option<Item>, Problem> {
        let Some(gallery) = self.snapshot.plain() else { return Ok(None) };
        let embedding = self.ticket.plain(request.picture.pixels.clone())?;
        if let Some(slot) = self.slot {
            slot.spend(1);
        }
        let _permit = self.permits.take();
        let found = nearest_plain(gallery.into(), embedding.row(0), &[])?;
        Ok(Item::list(self.snapshot, found.as_slice()).into_iter().next())
    }

    /// The answer to a query that is certified.
    fn finish(
        &self,
        (request, target): (&QueryRequest, Option<TargetRadius>),
        started: Instant,
        certifier: &QueryCertifier<'_>,
        (answered, plain): (Answered, Option<Item>),
    ) -> Result<Answer, Problem> {
        let Answered { label, outcomes, decision, mean, .. } = answered;
        let outcome = outcomes.into_iter().next();
        let outcome = outcome.ok_or_else(|| Problem::internal("a query has no certificate"))?;
        let items = self.items(certifier, &mean, request.top_k)?;
        // Without a target the cap is the number that was asked for.
        let decision = decision.filter(|&decision| target.is_some() || decision != Decision::Capped);
        let decision = decision.map_or(DecisionWord::Fixed, DecisionWord::from);
        let cost = Some((outcome.samples, decision));
        let certified = (outcome.verdict, self.label_name(label));
        Ok(self.answer(request, started, certified, cost, (items, plain)))
    }

    fn items(
        &self,
        certifier: &QueryCertifier<'_>,
        mean: &[f64],
        count: usize,
    ) -> Result<Vec<Item>, Problem> {
        Ok(Item::list(self.snapshot, &certifier.nearest(mean, count, &[])?))
    }

    fn label_name(&self, label: Option<Label>) -> Option<String> {
        label.map(|label| self.snapshot.gallery().label_name(label).to_owned())
    }

    fn step(
        &self,
        request: &QueryRequest,
        started: Instant,
        label: Option<Label>,
        outcome: GrowingOutcome,
    ) -> Step {
        let (label, samples) = (self.label_name(label), outcome.samples);
        let system = (self.guarantees, samples);
        let Guarantee { verdict, label, radius, file_radius, unbounded, statement } =
            Guarantee::new(outcome.verdict, label.as_deref(), system, request.picture.file);
        let milliseconds = milliseconds(started);
        Step { samples, verdict, label, radius, file_radius, unbounded, statement, milliseconds }
    }

    fn answer(
        &self,
        request: &QueryRequest,
        started: Instant,
        (verdict, candidate): (Verdict, Option<String>),
        drawn: Option<(u32, DecisionWord)>,
        (items, plain): (Vec<Item>, Option<Item>),
    ) -> Answer {
        let samples = drawn.map(|(samples, _)| samples);
        let system = (self.guarantees, samples.unwrap_or(0));
        let Guarantee { verdict, label, radius, file_radius, unbounded, statement } =
            Guarantee::new(verdict, candidate.as_deref(), system, request.picture.file);
        let basis = &self.guarantees.basis;
        let sampling = basis.sampling();
        Answer {
            verdict,
            label,
            candidate_label: candidate,
            radius,
            file_radius,
            unbounded,
            statement,
            guarantee: GuaranteeWord::from(basis),
            retriever: basis.retriever().as_str().to_owned(),
            samples,
            pilot: sampling.map(|sampling| sampling.pilot.get()),
            decision: drawn.map(|(_, decision)| decision),
            sigma: sampling.map(|sampling| sampling.sigma.get()),
            alpha: sampling.map(|sampling| sampling.alpha.get()),
            asking_again: sampling.map(|sampling| asking_again(sampling.alpha)),
            lipschitz: None,
            items,
            plain,
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
            receipt: None,
            request_id: request.request_id.clone(),
        }
    }
}

pub(crate) fn milliseconds(started: Instant) -> f64 {
    rounded(started.elapsed().as_secs_f64() * 1e3)
}

fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 10.0).round() / 10.0
}
