//! The search for a perturbation that changes a retriever's answer, within a time.
//!
//! With gradients it looks for the smallest change itself; without them it looks at several sizes, the smallest first, each with
//! its share of the time. What it has when that is over counts.
//! Without noise, the plain retriever is the one whose answers are certified, and what a search finds is looked at in double precision.
//! What it finds is seen, not proved. That it finds nothing shows how hard it looked and nothing more, least of all where
//! it had only the encoder's outputs to go by.

mod effort;
mod found;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use retrievalguard::attack::{
    self, Against, AttackError, Attacker, BlackBox, Effort, InputGradients, Judging, Mode, NoisyCopies,
    Pixels,
};
use retrievalguard::gallery::{Positives, Relevance};
use retrievalguard::{Alpha, Embedder, EmbedderFailure, Excess, Picture, SampleCount, Sigma};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::effort::{effort, passes, sizes, whole_effort};
use crate::gallery_writer::Snapshot;
use crate::perturbation::{Perturbation, Store, Target};
use crate::problem::Problem;
use crate::scheduler::{PassError, Prepared, Ticket};
use crate::secret_seed;
use crate::service::Service;

pub(crate) use self::found::{Found, Searched};

/// Halvings of the interval in which the smoothed retriever changes; each takes a pilot.
const SMOOTHED_HALVINGS: u32 = 6;

/// Halvings of the interval in which the plain retriever changes where it is looked at in double precision; each is one pass.
const DOUBLE_HALVINGS: u32 = 24;

/// Factor by which a change that did not suffice is stretched.
const LONGER: f64 = 1.5;

/// Gradients that the search for perturbations may use.
pub type SharedGradients = Arc<dyn InputGradients + Send + Sync>;

/// Searches for perturbations, and what was found lately.
pub(crate) struct Searches {
    service: Arc<Service>,
    gradients: Option<SharedGradients>,
    /// Gradients per second, as measured when the service was opened.
    gradient_speed: f64,
    /// One search at a time: they cost much and promise nothing.
    turn: Arc<Semaphore>,
    /// When the running search is over, or the last one was.
    end: Mutex<Instant>,
    perturbations: Store,
}

impl Searches {
    pub(crate) fn new(service: Arc<Service>, gradients: Option<SharedGradients>) -> Self {
        let (turn, end) = (Arc::new(Semaphore::new(1)), Mutex::new(Instant::now()));
        let gradient_speed = gradients.as_ref().map_or(0.0, |gradients| speed(&service, gradients));
        Self { service, gradients, gradient_speed, turn, end, perturbations: Store::default() }
    }

    /// How directions are searched.
    pub(crate) fn mode(&self) -> Mode {
        self.gradients.as_ref().map_or(Mode::BlackBox, |gradients| gradients.mode())
    }

    /// How long a search may take: well within the time of a request.
    pub(crate) fn longest(&self) -> Duration {
        let limits = &self.service.settings.limits;
        Duration::from_secs(limits.search_seconds).min(self.service.time_limit().mul_f64(2.0 / 3.0))
    }

    /// Most passes that a search of so long takes, for its progress.
    pub(crate) fn expected_passes(&self, target: Target, time: Duration) -> u64 {
        passes(self.mode(), target, self.affordable(target, time.mul_f64(searching_share(target))))
    }

    /// Steps, restarts and copies for which there is time.
    fn affordable(&self, target: Target, time: Duration) -> (u32, u32, u32) {
        let mode = self.mode();
        let speed = match mode {
            Mode::WhiteBox => self.gradient_speed,
            Mode::BlackBox => self.service.scheduler.speed(),
        };
        effort(mode, target, speed, time.as_secs_f64() / sizes(mode).len() as f64)
    }

    /// Takes the turn of a search that ends after so long, unless another is running.
    pub(crate) fn begin(&self, time: Duration) -> Result<OwnedSemaphorePermit, Problem> {
        let turn = Arc::clone(&self.turn).try_acquire_owned();
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turn.map_err(|_| {
            let left = end.saturating_duration_since(Instant::now());
            Problem::busy("another search is running", left.as_secs() + 1)
        })?;
        *end = Instant::now() + time;
        Ok(turn)
    }

    /// Keeps a perturbation for a while, under the name that is returned.
    pub(crate) fn keep(&self, perturbation: Perturbation) -> Result<String, Problem> {
        let id = crate::random_name().map_err(Problem::internal)?;
        self.perturbations.keep(id.clone(), perturbation);
        Ok(id)
    }

    /// A perturbation that was kept.
    pub(crate) fn find(&self, id: &str) -> Result<Arc<Perturbation>, Problem> {
        self.perturbations.find(id)
    }

    /// Looks for a direction in which a retriever changes its mind, for about so long.
    pub(crate) fn search(
        &self,
        target: Target,
        picture: &Arc<Prepared>,
        label: &str,
        (size, time): (f64, Duration),
        ticket: &Ticket,
    ) -> Result<Found, Problem> {
        let (started, before) = (Instant::now(), ticket.served());
        let snapshot = self.service.gallery.current();
        let Some(wanted) = snapshot.gallery().label_named(label) else {
            return Err(Problem::unprocessable(format!("the gallery has no label `{label}`")));
        };
        let relevance = Relevance::new(Positives::Label(wanted), vec![]);
        let queued = ticket.embedder();
        let black_box = BlackBox::new(&queued);
        let gradients: &dyn InputGradients = match &self.gradients {
            Some(gradients) => gradients.as_ref(),
            None => &black_box,
        };
        let watched = WatchedGradients { gradients, ticket };
        let mode = gradients.mode();
        let searching = time.mul_f64(searching_share(target));
        let affordable = self.affordable(target, searching);
        let attacker = self.attacker((&queued, &watched), &snapshot, affordable)?;
        let asked = Picture { identity: &picture.identity, pixels: &picture.pixels };
        let failed = |error: AttackError| {
            if ticket.is_cancelled() {
                PassError::Cancelled.into()
            } else {
                Problem::unprocessable(error.to_string())
            }
        };
        let (found, out_of_time) =
            look_at_sizes(&attacker, (target, sizes(mode)), (&asked, &relevance), size, started + searching)
                .map_err(failed)?;
        let Some(found) = found else { return Err(Problem::internal("a search looked at no size")) };
        let shift: Vec<f64> = found
            .pixels
            .iter()
            .zip(&picture.pixels)
            .map(|(&there, &here)| f64::from(there) - f64::from(here))
            .collect();
        let along = (&shift[..], found.norm, size);
        let broken_at = match target {
            // Steered by rounded embeddings; what counts is the retriever itself.
            Target::Plain if self.service.guarantees.basis.sampling().is_none() => {
                if self.service.guess(&snapshot, picture, ticket)? == label {
                    self.seen_break(
                        (&*snapshot, picture),
                        along,
                        (label, DOUBLE_HALVINGS),
                        started + time,
                        ticket,
                    )?
                } else {
                    Some(0.0)
                }
            }
            Target::Plain => {
                let broken = attacker.smallest_break(&asked, &relevance, &found).map_err(failed)?;
                broken.map(|broken| broken.norm)
            }
            Target::Smoothed => self.seen_break(
                (&*snapshot, picture),
                along,
                (label, SMOOTHED_HALVINGS),
                started + time,
                ticket,
            )?,
        };
        let broken = found.margin <= 0.0;
        let searched = Searched {
            mode: mode.name(),
            passes: ticket.served() - before,
            whole_passes: passes(mode, target, whole_effort(mode)),
            seconds: started.elapsed().as_secs_f64(),
            cut_short: !broken && (out_of_time || affordable != whole_effort(mode)),
        };
        Ok(Found { shift, broken_at, searched })
    }

    /// What looks for perturbations against this state of the gallery.
    fn attacker<'a>(
        &self,
        encoder: (&'a dyn Embedder, &'a dyn InputGradients),
        snapshot: &'a Snapshot,
        (steps, restarts, noise): (u32, u32, u32),
    ) -> Result<Attacker<'a>, Problem> {
        let effort = Effort { steps, restarts, noise, pixels: Pixels::Free };
        // Nothing is judged here: what the search finds is looked at by both retrievers afterwards.
        let few = SampleCount::new(1).expect("one is a sample count");
        let alpha = Alpha::new(0.5).expect("a half is a probability");
        let seed = secret_seed().map_err(Problem::internal)?;
        let judging = Judging { alpha, pilot: few, samples: few, refinements: 0, seed };
        // Only a search against the smoothed retriever draws noise; without noise there is none.
        let (sigma, excess) = match self.service.guarantees.basis.sampling() {
            Some(sampling) => (sampling.sigma, sampling.excess),
            None => (Sigma::new(1.0).expect("one is a noise level"), Excess::Project),
        };
        let attacker =
            Attacker::new(encoder, snapshot.gallery(), sigma, seed, effort, judging).excess(excess);
        Ok(match snapshot.plain() {
            Some(plain) => attacker.plain_gallery(plain),
            None => attacker,
        })
    }

    /// The smallest size along a shift, up to the largest, at which the retriever whose answers are certified is seen to change:
    /// the smoothed one by pilots alone, the plain one in double precision.
    fn seen_break(
        &self,
        (snapshot, picture): (&Snapshot, &Arc<Prepared>),
        (shift, norm, most): (&[f64], f64, f64),
        (label, halvings): (&str, u32),
        end: Instant,
        ticket: &Ticket,
    ) -> Result<Option<f64>, Problem> {
        let changed = |share: f64| {
            let moved = picture
                .pixels
                .iter()
                .zip(shift)
                .map(|(&pixel, shift)| (f64::from(pixel) + share * shift) as f32);
            let (identity, pixels) = (picture.identity.clone(), moved.collect());
            let moved = Prepared { identity, pixels, file: None };
            self.service.check(&moved)?;
            let differences = moved.pixels.iter().zip(&picture.pixels);
            let squares = differences.map(|(&there, &here)| (f64::from(there) - f64::from(here)).powi(2));
            // As it is after rounding: a size that is said to break the answer must be that of a picture that does.
            let size = squares.sum::<f64>().sqrt();
            let other = self.service.guess(snapshot, &Arc::new(moved), ticket)? != label;
            Ok::<_, Problem>(other.then_some(size))
        };
        // The search is steered by the mean of few copies; the retriever itself may need a little more.
        let (mut low, mut high) = (0.0, 1.0);
        let mut smallest = loop {
            if let Some(size) = changed(high)? {
                break size;
            }
            let next = (high * LONGER).min(most / norm);
            if next <= high || Instant::now() >= end {
                return Ok(None);
            }
            (low, high) = (high, next);
        };
        for _ in 0..halvings {
            if Instant::now() >= end {
                break;
            }
            let middle = f64::midpoint(low, high);
            match changed(middle)? {
                Some(size) => (high, smallest) = (middle, size),
                None => low = middle,
            }
        }
        Ok(Some(smallest))
    }
}

/// Gradients per second, measured on grey pictures.
fn speed(service: &Service, gradients: &SharedGradients) -> f64 {
    let picture = vec![0.5; service.embedder.input_len()];
    let copies = picture.repeat(2);
    let noisy = NoisyCopies { centre: &picture, copies: &copies, sigma: 0.0 };
    let dimension = service.embedder.dimension();
    // The first is slower than those that follow.
    let _ = gradients.gradient(&noisy, &mut |_| vec![1.0; dimension]);
    let started = Instant::now();
    match gradients.gradient(&noisy, &mut |_| vec![1.0; dimension]) {
        Ok(_) => 2.0 / started.elapsed().as_secs_f64().max(1e-9),
        Err(_) => 0.0,
    }
}

/// Share of the time for the search itself; the rest is for the size at which its result changes the answer.
fn searching_share(target: Target) -> f64 {
    match target {
        Target::Plain => 0.9,
        Target::Smoothed => 0.6,
    }
}

/// Looks at one size after the other until something is found, and says whether the time of one of them ran out.
fn look_at_sizes(
    attacker: &Attacker<'_>,
    (target, sizes): (Target, &[f64]),
    (picture, relevance): (&Picture<'_>, &Relevance),
    size: f64,
    end: Instant,
) -> Result<(Option<attack::Perturbation>, bool), AttackError> {
    let against = match target {
        Target::Plain => Against::Plain,
        Target::Smoothed => Against::Smoothed,
    };
    let (mut found, mut out_of_time) = (None, false);
    for (place, share) in sizes.iter().enumerate() {
        // Each size has its share of the time that is left, so that the last one has one.
        let (now, left) = (Instant::now(), (sizes.len() - place) as u32);
        let end = now + end.saturating_duration_since(now) / left;
        let over = move || Instant::now() >= end;
        let looked = attacker.until(&over).perturb(against, picture, relevance, share * size)?;
        out_of_time |= over();
        // The smallest size at which something is found gives the direction that breaks soonest.
        let broken = looked.margin <= 0.0;
        found = Some(looked);
        if broken {
            break;
        }
    }
    Ok((found, out_of_time))
}

/// Counts gradients, and refuses them once the search is cancelled.
struct WatchedGradients<'a> {
    gradients: &'a dyn InputGradients,
    ticket: &'a Ticket,
}

impl InputGradients for WatchedGradients<'_> {
    fn mode(&self) -> Mode {
        self.gradients.mode()
    }

    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure> {
        if self.ticket.is_cancelled() {
            return Err(PassError::Cancelled.into());
        }
        // Estimated gradients are passes through the queue, which counts them itself.
        if self.mode() == Mode::WhiteBox {
            self.ticket.charge((noisy.copies.len() / noisy.centre.len().max(1)) as u64);
        }
        self.gradients.gradient(noisy, towards)
    }
}
