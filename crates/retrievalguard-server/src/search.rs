//! The search for a perturbation that changes a retriever's answer, within a time.
//!
//! It looks at several sizes, the smallest first, each with its share of the time; what it has when that is over counts.
//! What it finds is seen, not proved. That it finds nothing shows how hard it looked and nothing more, least of all where
//! it had only the encoder's outputs to go by.

use std::sync::Arc;
use std::time::{Duration, Instant};

use retrievalguard::attack::{
    Against, AttackError, Attacker, BlackBox, Effort, InputGradients, Judging, Mode, NoisyCopies, Pixels,
};
use retrievalguard::gallery::{Positives, Relevance};
use retrievalguard::{Alpha, EmbedderFailure, Picture, SampleCount};
use serde::Serialize;
use utoipa::ToSchema;

use crate::perturbation::Target;
use crate::problem::Problem;
use crate::scheduler::{PassError, Prepared, Ticket};
use crate::secret_seed;
use crate::service::Service;

/// Halvings of the interval in which the smoothed retriever changes; each takes a pilot.
const SMOOTHED_HALVINGS: u32 = 6;

/// Sizes at which a search looks, as shares of the one that was asked for.
const SIZES: [f64; 4] = [0.125, 0.25, 0.5, 1.0];

/// Share of the time for the search itself; the rest is for the size at which its result changes the answer.
const SEARCHING: [(Target, f64); 2] = [(Target::Plain, 0.9), (Target::Smoothed, 0.6)];

/// Fewest steps and noisy copies that are worth a search at one size.
const FEWEST: (u32, u32) = (8, 16);

/// Moments of a restart at which candidates are compared.
const COMPARED: u32 = 4;

/// Steps, restarts and noisy copies per step of a search at one size that has all the time it wants.
fn whole_effort(mode: Mode) -> (u32, u32, u32) {
    match mode {
        Mode::WhiteBox => (40, 3, 32),
        Mode::BlackBox => (40, 1, 128),
    }
}

/// Steps, restarts and noisy copies for which there is time, at so many passes per second.
fn effort(mode: Mode, speed: f64, seconds: f64) -> (u32, u32, u32) {
    let (steps, restarts, noise) = whole_effort(mode);
    // How fast gradients are is not known; the clock ends the search.
    if mode == Mode::WhiteBox || speed <= 0.0 {
        return (steps, restarts, noise);
    }
    let passes = speed * seconds;
    let noise = ((passes / f64::from(FEWEST.0)) as u32).clamp(FEWEST.1, noise).next_multiple_of(2);
    let steps = ((passes / f64::from(noise)) as u32).clamp(FEWEST.0, steps);
    (steps, restarts, noise)
}

/// Passes of a search at every size.
fn passes(mode: Mode, target: Target, (steps, restarts, noise): (u32, u32, u32)) -> u64 {
    // The gradient of the plain encoder needs no noise.
    let noise = match (mode, target) {
        (Mode::WhiteBox, Target::Plain) => 1,
        (Mode::WhiteBox, Target::Smoothed) | (Mode::BlackBox, _) => noise,
    };
    SIZES.len() as u64 * u64::from(restarts * (steps + COMPARED) * noise)
}

/// How much was searched
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Searched {
    /// How: `white-box`, with the encoder's gradients, or `black-box`, by its outputs alone
    mode: &'static str,
    /// Encoder passes of the search
    passes: u64,
    /// About as many as a search takes that is not ended by the clock
    whole_passes: u64,
    seconds: f64,
    /// Whether there was time for less than a whole search
    cut_short: bool,
}

/// What a search has found.
pub(crate) struct Found {
    /// The perturbation that came closest, or that changes the answer.
    pub(crate) shift: Vec<f64>,
    /// The smallest size along it at which the answer was seen to change.
    pub(crate) broken_at: Option<f64>,
    pub(crate) searched: Searched,
}

impl Found {
    /// What this shows, and what it does not.
    pub(crate) fn statement(&self, target: Target) -> String {
        let whom = match target {
            Target::Plain => "plain",
            Target::Smoothed => "smoothed",
        };
        let Searched { mode, passes, whole_passes, seconds, cut_short } = self.searched;
        let short = if cut_short {
            format!(", and in {seconds:.0} s it had time for {passes} of about {whole_passes} passes")
        } else {
            String::new()
        };
        let estimated = match target {
            Target::Plain => "",
            Target::Smoothed => " This is an estimate from few samples.",
        };
        match (self.broken_at, mode == Mode::BlackBox.name()) {
            (Some(0.0), _) => format!("The {whom} retriever answers otherwise without any change."),
            (Some(size), _) => format!(
                "The search found a change: at the size {size:.4} the {whom} retriever answers otherwise.{estimated} Smaller ones may exist."
            ),
            (None, true) => format!(
                "The search found nothing that changes the {whom} retriever's answer. This proves little: it had only the \
                 encoder's outputs to go by{short}. A search with gradients may find what this one cannot."
            ),
            (None, false) => format!(
                "The search found nothing that changes the {whom} retriever's answer. This is no proof: it followed the \
                 encoder's gradients{short}, and another search may find what this one did not."
            ),
        }
    }
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

impl Service {
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
        let snapshot = self.gallery.current();
        let gallery = snapshot.gallery();
        let Some(wanted) = gallery.label_named(label) else {
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
        let share = SEARCHING.iter().find(|(each, _)| *each == target).map_or(0.5, |(_, share)| *share);
        let searching = time.mul_f64(share);
        let affordable = effort(mode, self.scheduler.speed(), searching.as_secs_f64() / SIZES.len() as f64);
        let (steps, restarts, noise) = affordable;
        let effort = Effort { steps, restarts, noise, pixels: Pixels::Free };
        // Nothing is judged here: what the search finds is looked at by both retrievers afterwards.
        let few = SampleCount::new(1).expect("one is a sample count");
        let alpha = Alpha::new(0.5).expect("a half is a probability");
        let seed = secret_seed().map_err(Problem::internal)?;
        let judging = Judging { alpha, pilot: few, samples: few, refinements: 0, seed };
        let attacker =
            Attacker::new((&queued, &watched), gallery, self.settings.sigma, seed, effort, judging)
                .excess(self.settings.excess);
        let attacker = match snapshot.plain() {
            Some(plain) => attacker.plain_gallery(plain),
            None => attacker,
        };
        let against = match target {
            Target::Plain => Against::Plain,
            Target::Smoothed => Against::Smoothed,
        };
        let asked = Picture { identity: &picture.identity, pixels: &picture.pixels };
        let failed = |error: AttackError| {
            if ticket.is_cancelled() {
                PassError::Cancelled.into()
            } else {
                Problem::unprocessable(error.to_string())
            }
        };
        let (mut found, mut cut_short) = (None, affordable != whole_effort(mode));
        for (place, share) in SIZES.iter().enumerate() {
            // Each size has its share of the time that is left, so that the last one has one.
            let (now, left) = (Instant::now(), (SIZES.len() - place) as u32);
            let end = now + (started + searching).saturating_duration_since(now) / left;
            let over = move || Instant::now() >= end;
            let looked = attacker.until(&over).perturb(against, &asked, &relevance, share * size);
            let looked = looked.map_err(failed)?;
            let broken = looked.margin <= 0.0;
            cut_short |= !broken && over();
            found = Some(looked);
            // The smallest size at which something is found gives the direction that breaks soonest.
            if broken {
                cut_short = false;
                break;
            }
        }
        let Some(found) = found else { return Err(Problem::internal("a search looked at no size")) };
        let shift: Vec<f64> = found
            .pixels
            .iter()
            .zip(&picture.pixels)
            .map(|(&there, &here)| f64::from(there) - f64::from(here))
            .collect();
        let broken_at = match target {
            Target::Plain => {
                let broken = attacker.smallest_break(&asked, &relevance, &found).map_err(failed)?;
                broken.map(|broken| broken.norm)
            }
            Target::Smoothed => {
                self.smoothed_break(picture, (&shift, found.norm), label, started + time, ticket)?
            }
        };
        let searched = Searched {
            mode: mode.name(),
            passes: ticket.served() - before,
            whole_passes: passes(mode, target, whole_effort(mode)),
            seconds: started.elapsed().as_secs_f64(),
            cut_short,
        };
        Ok(Found { shift, broken_at, searched })
    }

    /// The smallest size along a shift at which the smoothed retriever is seen to change, by pilots alone.
    fn smoothed_break(
        &self,
        picture: &Arc<Prepared>,
        (shift, norm): (&[f64], f64),
        label: &str,
        end: Instant,
        ticket: &Ticket,
    ) -> Result<Option<f64>, Problem> {
        let changed = |share: f64| {
            let moved = picture
                .pixels
                .iter()
                .zip(shift)
                .map(|(&pixel, shift)| (f64::from(pixel) + share * shift) as f32);
            let moved = Prepared { identity: picture.identity.clone(), pixels: moved.collect() };
            self.check(&moved)?;
            Ok::<_, Problem>(self.guess(&Arc::new(moved), ticket)? != label)
        };
        if !changed(1.0)? {
            return Ok(None);
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..SMOOTHED_HALVINGS {
            if Instant::now() >= end {
                break;
            }
            let middle = f64::midpoint(low, high);
            if changed(middle)? {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(Some(high * norm))
    }

    /// How long a search may take: well within the time of a request.
    pub(crate) fn search_time(&self) -> Duration {
        let limits = &self.settings.limits;
        Duration::from_secs(limits.search_seconds).min(self.time_limit().mul_f64(2.0 / 3.0))
    }

    /// Most passes that a search of so long takes, for its progress.
    pub(crate) fn expected_passes(&self, target: Target, time: Duration) -> u64 {
        let (mode, seconds) = (self.search_mode(), time.as_secs_f64() / SIZES.len() as f64);
        passes(mode, target, effort(mode, self.scheduler.speed(), seconds))
    }

    /// How directions are searched.
    pub(crate) fn search_mode(&self) -> Mode {
        self.gradients.as_ref().map_or(Mode::BlackBox, |gradients| gradients.mode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_encoder_gets_a_smaller_search_and_a_fast_one_the_whole() {
        assert_eq!(effort(Mode::BlackBox, 1e6, 5.0), whole_effort(Mode::BlackBox));
        assert_eq!(effort(Mode::WhiteBox, 1.0, 5.0), whole_effort(Mode::WhiteBox));
        for speed in [1.0, 20.0, 144.0, 500.0] {
            let (steps, restarts, noise) = effort(Mode::BlackBox, speed, 5.0);
            assert!(steps >= FEWEST.0 && noise >= FEWEST.1 && noise % 2 == 0 && restarts == 1, "{speed}");
            let least = f64::from(FEWEST.0 * FEWEST.1);
            assert!(f64::from(steps * noise) <= (speed * 5.0).max(least) * 1.2, "{speed}: {steps} × {noise}");
        }
    }

    #[test]
    fn a_gradient_of_the_plain_encoder_takes_one_pass_where_others_take_many() {
        let whole = |mode, target| passes(mode, target, whole_effort(mode));
        let (plain, smoothed) =
            (whole(Mode::WhiteBox, Target::Plain), whole(Mode::WhiteBox, Target::Smoothed));
        assert_eq!(smoothed, 32 * plain);
        assert_eq!(whole(Mode::BlackBox, Target::Plain), whole(Mode::BlackBox, Target::Smoothed));
    }

    #[test]
    fn nothing_found_is_never_told_as_a_proof() {
        let searched = |mode: Mode, cut_short| Searched {
            mode: mode.name(),
            passes: 2_900,
            whole_passes: 22_528,
            seconds: 20.0,
            cut_short,
        };
        let found = |broken_at, mode, cut_short| {
            Found { shift: vec![1.0], broken_at, searched: searched(mode, cut_short) }
                .statement(Target::Plain)
        };
        let nothing = found(None, Mode::BlackBox, true);
        for words in ["found nothing", "proves little", "only the encoder's outputs", "2900 of about 22528"] {
            assert!(nothing.contains(words), "`{words}` is not in `{nothing}`");
        }
        assert!(found(None, Mode::WhiteBox, false).contains("no proof"));
        let broken = found(Some(0.25), Mode::BlackBox, false);
        assert!(broken.contains("found a change") && broken.contains("0.2500"), "{broken}");
    }
}
