//! `vote` and `pairwise` while samples come in: a target radius decided by tens of samples, or a radius that grows
//! (theory, section 11.2).
//!
//! Both ask how often something is won: by the answer against all, by the answer against each rival, by everything else
//! against a rival. The test says which samples it wants next and is shown them; sampling stays with the caller.
//!
//! ```
//! use retrievalguard::certificate::{Certifier, Decision, RateOptions, RateTest};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Sigma, TargetRadius};
//!
//! # let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! # let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
//! # let relevance = Relevance::new(Positives::Item(0), vec![]);
//! let draw = |count| Samples::new([0.9, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse);
//! let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
//! let options = RateOptions::deciding(TargetRadius::new(0.25)?, SampleCount::new(2_000)?);
//! let mut test = RateTest::pairwise(&certifier, &relevance, &options)?;
//! while let Some(range) = test.wants() {
//!     test.see(&draw(range.len())?)?;
//! }
//! assert_eq!(test.outcome().decision, Decision::Reached);
//! assert_eq!(test.outcome().samples, 38);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::thresholds::RADIUS_CAP;
use super::vote::{Ballot, Rule, Slip, Votes};
use super::win_rates::{WinRates, fewest_samples, log_wealth, most_losses};
use super::{CertificateError, Certifier, Decision, Explanation, GrowingOutcome, Radius, Verdict};
use crate::gallery::{Relevance, RivalSet};
use crate::normal::{self, Probability};
use crate::samples::{add_into, run_sum};
use crate::storage::stored::GalleryRef;
use crate::{Alpha, SampleCount, Samples, Sigma, TargetRadius};

/// Samples between two looks.
const STRIDE: u32 = 16;
/// Later looks are further apart: this part of what was seen.
const STRETCH: u32 = 16;
/// Samples for which a gallery on disk is read once, where that many looks are to come.
const SEARCHED_TOGETHER: u32 = 64;
/// Rungs of a growing radius for each σ.
const RUNGS_PER_SIGMA: u32 = 64;
/// A growing radius is looked for up to so many σ.
const RUNGS_UP_TO: u32 = 6;
const STATEMENT: &str = "theory 11.2, rates of winning while samples come in";

/// What is to be shown and how much may be spent on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateOptions {
    /// Most samples that may be drawn.
    cap: SampleCount,
    /// A radius that is enough: once it is shown, no more samples are wanted.
    target: Option<TargetRadius>,
    /// Whether smaller radii are shown on the way.
    growing: bool,
}

impl RateOptions {
    /// One radius is decided, and no other is shown.
    pub fn deciding(target: TargetRadius, cap: SampleCount) -> Self {
        Self { cap, target: Some(target), growing: false }
    }

    /// A radius that grows, up to the target if there is one.
    pub fn growing(target: Option<TargetRadius>, cap: SampleCount) -> Self {
        Self { cap, target, growing: true }
    }

    /// The radii that may be shown, ascending.
    fn radii(&self, sigma: Sigma) -> Vec<f64> {
        let target = self.target.map(TargetRadius::get);
        let below = |radius: &f64| target.is_none_or(|target| *radius < target);
        let step = sigma.certified() / f64::from(RUNGS_PER_SIGMA);
        let rungs = (1..=RUNGS_PER_SIGMA * RUNGS_UP_TO).map(|rung| f64::from(rung) * step).filter(below);
        rungs.filter(|_| self.growing).chain(target).collect()
    }
}

/// How many samples a decision takes, for queries of three kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionCost {
    /// If every noisy copy agrees; no query takes fewer.
    pub clear: u32,
    /// If 97 of 100 do; none if that is too little for the target, or the cap too low.
    pub typical: Option<u32>,
    /// If every other one does: the target is given up.
    pub hopeless: u32,
}

/// What a target radius costs under `vote` by majority and under `pairwise`; none if the cap is too low for any query.
///
/// ```
/// use retrievalguard::certificate::decision_cost;
/// use retrievalguard::{Alpha, SampleCount, Sigma, TargetRadius};
///
/// let (sigma, alpha) = (Sigma::new(0.25)?, Alpha::new(0.01)?);
/// let cost = |radius, cap| Ok(decision_cost(TargetRadius::new(radius)?, sigma, alpha, SampleCount::new(cap)?));
/// let at_sigma = cost(0.25, 2_000)?.unwrap();
/// assert_eq!(at_sigma.clear, 38);
/// assert!(at_sigma.typical < Some(80) && at_sigma.hopeless <= 32);
/// assert_eq!(cost(0.25, 37)?, None);
/// # Ok::<(), retrievalguard::ParameterError>(())
/// ```
pub fn decision_cost(
    target: TargetRadius,
    sigma: Sigma,
    alpha: Alpha,
    cap: SampleCount,
) -> Option<DecisionCost> {
    let clear = fewest_to_decide(target, sigma, alpha).filter(|&clear| clear <= cap.get())?;
    let typical = decided_at(0.97, target, sigma, alpha, cap);
    let hopeless = decided_at(0.5, target, sigma, alpha, cap).0;
    Some(DecisionCost { clear, typical: typical.1.then_some(typical.0), hopeless })
}

/// How many samples a decision takes under `vote` by majority and under `pairwise`, if this share of the copies agrees
/// whenever one looks: about the median. The cap, if it can never be decided.
///
/// ```
/// use retrievalguard::certificate::samples_to_decide;
/// use retrievalguard::{Alpha, SampleCount, Sigma, TargetRadius};
///
/// let (sigma, alpha, cap) = (Sigma::new(0.25)?, Alpha::new(0.01)?, SampleCount::new(2_000)?);
/// let takes = |rate| samples_to_decide(rate, TargetRadius::new(0.25).unwrap(), sigma, alpha, cap);
/// assert_eq!(takes(1.0), 38);
/// assert!(takes(0.97) > takes(1.0) && takes(0.9) > takes(0.97) && takes(0.5) < takes(0.9));
/// # Ok::<(), retrievalguard::ParameterError>(())
/// ```
pub fn samples_to_decide(
    rate: f64,
    target: TargetRadius,
    sigma: Sigma,
    alpha: Alpha,
    cap: SampleCount,
) -> u32 {
    decided_at(rate, target, sigma, alpha, cap).0
}

/// The samples at which a query is decided whose copies agree with this rate, and whether the target is then reached.
fn decided_at(rate: f64, target: TargetRadius, sigma: Sigma, alpha: Alpha, cap: SampleCount) -> (u32, bool) {
    let Some(fewest) = fewest_to_decide(target, sigma, alpha) else { return (0, false) };
    let (null, need, cap) = (null_at(0.0, target.get(), sigma), -alpha.get().ln(), cap.get());
    let lost = |seen: u32| (f64::from(seen) * (1.0 - rate.clamp(0.0, 1.0)) + 1e-9).floor() as u32;
    let given_up = |seen: u32| {
        let mut rates = WinRates::new(vec![null], alpha.get());
        (0..lost(seen)).for_each(|_| rates.lose(0));
        rates.look(seen);
        rates.is_hopeless(0, cap)
    };
    let mut seen = next_look(0, fewest);
    while seen <= cap {
        if log_wealth(seen - lost(seen), lost(seen), null) >= need {
            return (seen, true);
        }
        if given_up(seen) {
            return (seen, false);
        }
        seen = next_look(seen, fewest);
    }
    (cap, false)
}

/// The fewest samples with which `vote` or `pairwise` can decide a target radius; none if no number is enough.
pub fn fewest_to_decide(target: TargetRadius, sigma: Sigma, alpha: Alpha) -> Option<u32> {
    let null = null_at(0.0, target.get(), sigma);
    fewest_samples(null, -alpha.get().ln(), u32::MAX - 1).filter(|_| !is_beyond(target, sigma))
}

/// The rate that a radius takes, rounded up; `middle` is zero but for a vote against its runner-up.
fn null_at(middle: f64, radius: f64, sigma: Sigma) -> Probability {
    normal::probability(middle + radius / sigma.certified() * (1.0 + 1e-12) + 1e-12)
}

/// Nothing is ever certified beyond this.
fn is_beyond(target: TargetRadius, sigma: Sigma) -> bool {
    target.get() > RADIUS_CAP * sigma.certified()
}

/// The number of samples at the next look; `fewest` is where the first decision is possible.
fn next_look(seen: u32, fewest: u32) -> u32 {
    let stride = STRIDE.max(seen / STRETCH / STRIDE * STRIDE);
    let next = seen.saturating_add(stride);
    if seen < fewest { next.min(fewest) } else { next }
}

/// How what is won is counted.
#[derive(Clone, Debug)]
enum System {
    /// The answer against each rival.
    Pairwise { rivals: WinRates },
    /// The answer against all others together.
    Majority { answer: WinRates, votes: Votes },
    /// The answer against all others, and all others against each rival, with the middle of the two scores.
    RunnerUp { middle: f64, answer: WinRates, rivals: WinRates, votes: Votes },
}

/// How samples fared, each by itself.
enum Found {
    /// The rivals ahead in each.
    Ahead(Vec<RivalSet>),
    /// What each votes for.
    Slips(Vec<Slip>),
}

/// One query under `vote` or `pairwise` while samples come in.
#[derive(Clone, Debug)]
pub struct RateTest<'a> {
    certifier: Certifier<'a>,
    relevance: Relevance,
    options: RateOptions,
    radii: Vec<f64>,
    system: System,
    fewest: u32,
    sums: Vec<f64>,
    seen: u32,
    looks: u32,
    decision: Decision,
}

impl<'a> RateTest<'a> {
    /// A test of the pairwise retriever. It needs no pilot.
    pub fn pairwise(
        certifier: &Certifier<'a>,
        relevance: &Relevance,
        options: &RateOptions,
    ) -> Result<Self, CertificateError> {
        let radii = options.radii(certifier.sigma);
        let ladder = ladder(&radii, 0.0, 1.0, certifier.sigma);
        let system = System::Pairwise { rivals: WinRates::new(ladder, certifier.alpha.get()) };
        Self::begin(certifier, relevance, options, radii, system)
    }

    /// A test of the voting retriever; the pilot chooses between its two rules. Without one it is the majority.
    pub fn vote(
        certifier: &Certifier<'a>,
        pilot: Option<&Samples>,
        relevance: &Relevance,
        options: &RateOptions,
    ) -> Result<Self, CertificateError> {
        let (radii, alpha) = (options.radii(certifier.sigma), certifier.alpha.get());
        let ballot = pilot.map(|pilot| certifier.ballot(pilot, relevance)).transpose()?;
        let rates = |middle, side, level| WinRates::new(ladder(&radii, middle, side, certifier.sigma), level);
        let votes = Votes::default();
        let system = match ballot.and_then(|ballot| middle_of(&ballot, certifier, options)) {
            None => System::Majority { answer: rates(0.0, 1.0, alpha), votes },
            Some(middle) => {
                // Both are needed, and if the radius is false, one of them is about a null that is true.
                let (answer, rivals) = (rates(middle, 1.0, alpha), rates(middle, -1.0, alpha));
                System::RunnerUp { middle, answer, rivals, votes }
            }
        };
        Self::begin(certifier, relevance, options, radii, system)
    }

    fn begin(
        certifier: &Certifier<'a>,
        relevance: &Relevance,
        options: &RateOptions,
        radii: Vec<f64>,
        system: System,
    ) -> Result<Self, CertificateError> {
        certifier.check_negatives(relevance)?;
        let beyond = options.target.is_some_and(|target| is_beyond(target, certifier.sigma));
        let mut test = Self {
            certifier: *certifier,
            relevance: relevance.clone(),
            options: *options,
            radii,
            system,
            fewest: 0,
            sums: vec![0.0; certifier.gallery.dimension()],
            seen: 0,
            looks: 0,
            decision: Decision::Open,
        };
        test.fewest = test.fewest();
        if beyond || test.is_hopeless() {
            test.decision = Decision::Hopeless;
        }
        Ok(test)
    }

    /// The fewest samples that decide the target, one if there is none.
    fn fewest(&self) -> u32 {
        let (cap, alpha) = (self.options.cap.get(), self.certifier.alpha.get());
        let Some(target) = self.options.target.map(TargetRadius::get) else { return 1 };
        let fewest = |middle: f64| {
            fewest_samples(null_at(middle, target, self.certifier.sigma), -alpha.ln(), cap).unwrap_or(cap)
        };
        match self.system {
            System::Pairwise { .. } | System::Majority { .. } => fewest(0.0),
            System::RunnerUp { middle, .. } => fewest(middle).max(fewest(-middle)),
        }
    }

    /// Indices of the certifying samples that are wanted next; `None` once it is decided.
    ///
    /// In memory these are the samples of one look. A gallery on disk is read for those of several looks at once; if an
    /// early one of them decides, the rest was drawn for nothing and counts for nothing.
    pub fn wants(&self) -> Option<Range<u32>> {
        if self.decision != Decision::Open {
            return None;
        }
        let together = match self.certifier.gallery {
            GalleryRef::Memory(_) => self.seen,
            // Nothing is reached before the fewest samples that could.
            GalleryRef::Shards(_) if self.seen < self.fewest => self.fewest,
            GalleryRef::Shards(_) => self.seen.saturating_add(SEARCHED_TOGETHER),
        };
        // Every sample has a set of rivals until it is looked at.
        let room = self.certifier.gallery.samples_per_pass(self.relevance.positives);
        let together = together.min(self.seen.saturating_add(u32::try_from(room).unwrap_or(u32::MAX)));
        let cap = self.options.cap.get();
        let mut end = self.next_look(self.seen);
        while end < together.min(cap) {
            end = self.next_look(end);
        }
        Some(self.seen..end)
    }

    fn next_look(&self, seen: u32) -> u32 {
        next_look(seen, self.fewest).min(self.options.cap.get())
    }

    /// Takes exactly the samples that were wanted, and looks at all so far, until it is decided.
    pub fn see(&mut self, samples: &Samples) -> Result<(), CertificateError> {
        let wanted = self.wants().map_or(0, |range| range.len());
        if samples.count() as usize != wanted {
            return Err(CertificateError::UnwantedSamples { found: samples.count() as usize, wanted });
        }
        self.certifier.check_dimension(samples)?;
        let found = self.search(samples)?;
        let mut rows = samples.values();
        let mut shown = 0;
        while self.decision == Decision::Open && shown < samples.count() {
            let count = self.next_look(self.seen) - self.seen;
            let (own, rest) = rows.split_at(count as usize * samples.dimension());
            rows = rest;
            add_into(&mut self.sums, &run_sum(own, samples.dimension()));
            self.look(&found, shown..shown + count);
            shown += count;
        }
        Ok(())
    }

    /// How each sample fares, which depends on no other.
    fn search(&self, samples: &Samples) -> Result<Found, CertificateError> {
        match &self.system {
            System::Pairwise { .. } => {
                let mut ahead = Vec::with_capacity(samples.count() as usize);
                let gallery = self.certifier.gallery;
                gallery.rivals_ahead(samples.values(), &self.relevance, |_, rivals| {
                    ahead.push(rivals.clone());
                })?;
                Ok(Found::Ahead(ahead))
            }
            System::Majority { .. } | System::RunnerUp { .. } => {
                Ok(Found::Slips(self.certifier.votes(samples, &self.relevance)?))
            }
        }
    }

    /// Looks at everything after some more samples, by their place among those that were searched.
    fn look(&mut self, found: &Found, places: Range<u32>) {
        let (count, places) = (places.len() as u32, places.start as usize..places.end as usize);
        match (&mut self.system, found) {
            (System::Pairwise { rivals }, Found::Ahead(ahead)) => {
                ahead[places].iter().flat_map(RivalSet::iter).for_each(|rival| rivals.lose(rival));
                rivals.look(count);
            }
            (System::Majority { answer, votes }, Found::Slips(slips)) => {
                count_votes(&slips[places], answer, votes, |_| ());
                answer.look(count);
            }
            (System::RunnerUp { answer, rivals, votes, .. }, Found::Slips(slips)) => {
                count_votes(&slips[places], answer, votes, |rival| rivals.lose(rival));
                answer.look(count);
                rivals.look(count);
            }
            (System::Pairwise { .. }, Found::Slips(_))
            | (System::Majority { .. } | System::RunnerUp { .. }, Found::Ahead(_)) => {
                unreachable!("what is searched for is what is counted")
            }
        }
        self.seen += count;
        self.looks += 1;
        self.decision = if self.passed() == self.radii.len() {
            Decision::Reached
        } else if self.seen >= self.options.cap.get() {
            Decision::Capped
        } else if self.is_hopeless() {
            Decision::Hopeless
        } else {
            Decision::Open
        };
    }

    fn passed(&self) -> usize {
        match &self.system {
            System::Pairwise { rivals: rates } | System::Majority { answer: rates, .. } => rates.passed(),
            System::RunnerUp { answer, rivals, .. } => answer.passed().min(rivals.passed()),
        }
    }

    /// Whether every radius that may be shown is out of reach.
    fn is_hopeless(&self) -> bool {
        // Without smaller radii on the way, the only rung is the target.
        let (rung, cap) = (0, self.options.cap.get());
        match &self.system {
            System::Pairwise { rivals: rates } | System::Majority { answer: rates, .. } => {
                rates.is_hopeless(rung, cap)
            }
            System::RunnerUp { answer, rivals, .. } => {
                answer.is_hopeless(rung, cap) || rivals.is_hopeless(rung, cap)
            }
        }
    }

    /// Whether the answer won so far.
    fn retrieves(&self) -> bool {
        match &self.system {
            System::Pairwise { rivals } => 2 * u64::from(rivals.hardest().0) < u64::from(self.seen.max(1)),
            System::Majority { votes, .. } | System::RunnerUp { votes, .. } => {
                self.seen == 0 || votes.right > votes.of_strongest_rival()
            }
        }
    }

    /// Whether the answer wins among other samples: what can be said before the first one is seen.
    pub fn retrieves_among(&self, pilot: &Samples) -> Result<bool, CertificateError> {
        match self.system {
            System::Pairwise { .. } => {
                let contest = self.certifier.contest(pilot, &self.relevance)?;
                Ok(2 * u64::from(contest.wins) > u64::from(contest.total))
            }
            System::Majority { .. } | System::RunnerUp { .. } => {
                let ballot = self.certifier.ballot(pilot, &self.relevance)?;
                Ok(ballot.right > ballot.rival)
            }
        }
    }

    /// What has been shown so far. Without a target, `Reached` means that no larger radius is looked for.
    pub fn outcome(&self) -> GrowingOutcome {
        let shown = self.passed().checked_sub(1).map(|rung| Radius::Finite(self.radii[rung]));
        let verdict = Verdict::from_radius(self.retrieves(), shown);
        GrowingOutcome { verdict, samples: self.seen, looks: self.looks, decision: self.decision }
    }

    /// Mean of all certifying samples so far; none before the first.
    pub fn mean(&self) -> Option<Vec<f64>> {
        let count = f64::from(self.seen);
        (self.seen > 0).then(|| self.sums.iter().map(|sum| sum / count).collect())
    }

    /// What was tested, with the results so far.
    pub fn explain(&self) -> Explanation {
        let mut explain = Explanation::default();
        explain.add("sigma", self.certifier.sigma.get(), "theory 0");
        explain.add("alpha", self.certifier.alpha.get(), "theory 0");
        if let Some(target) = self.options.target {
            explain.add("target radius", target.get(), STATEMENT);
        }
        explain.add("noisy copies", self.seen, STATEMENT).add("looks", self.looks, STATEMENT);
        match &self.system {
            System::Pairwise { rivals } => {
                let (losses, _) = rivals.hardest();
                explain.add("copies before the hardest rival", self.seen - losses, "theory 11");
            }
            System::Majority { votes, .. } | System::RunnerUp { votes, .. } => {
                let rule = match &self.system {
                    System::RunnerUp { .. } => Rule::RunnerUp,
                    System::Pairwise { .. } | System::Majority { .. } => Rule::Majority,
                };
                explain
                    .add("votes for the answer", votes.right, "theory 3")
                    .add("votes for the strongest rival", votes.of_strongest_rival(), "theory 3")
                    .add("rule", rule.as_str(), "theory 3, chosen on the pilot");
            }
        }
        if let System::RunnerUp { middle, .. } = self.system {
            explain.add("middle of both scores", middle, "theory 11.2, against a runner-up");
        }
        explain.add("decision", self.decision.as_str(), STATEMENT);
        explain.conclude(self.outcome().verdict, STATEMENT);
        explain
    }
}

/// Rates `Φ(±m + R/σ)` for ascending radii.
fn ladder(radii: &[f64], middle: f64, side: f64, sigma: Sigma) -> Vec<Probability> {
    radii.iter().map(|&radius| null_at(side * middle, radius, sigma)).collect()
}

/// Counts votes, and what is lost by them.
fn count_votes(slips: &[Slip], answer: &mut WinRates, votes: &mut Votes, mut lost: impl FnMut(usize)) {
    for &slip in slips {
        votes.count(slip);
        match slip {
            Slip::Right => {}
            Slip::Rival(rival) => {
                answer.lose(0);
                lost(rival);
            }
            Slip::Nobody => answer.lose(0),
        }
    }
}

/// The middle of the two scores, if the pilot expects more of a vote against the runner-up than of a majority: that it reaches
/// the target where a majority does not, or a larger radius.
fn middle_of(pilot: &Ballot, certifier: &Certifier<'_>, options: &RateOptions) -> Option<f64> {
    let rate = |votes: u32| (f64::from(votes) + 0.5) / (f64::from(pilot.total) + 1.0);
    let score = |votes: u32| Probability::new(rate(votes)).map_or(0.0, normal::quantile);
    let middle = f64::midpoint(score(pilot.right), score(pilot.rival));
    // Near the middle the majority is as good, and the rival's bound is free.
    if middle > -0.05 {
        return None;
    }
    let Some(target) = options.target else { return Some(middle) };
    let (cap, need) = (options.cap.get(), -certifier.alpha.get().ln());
    let passes = |middle: f64, rate: f64| {
        let most = most_losses(cap, null_at(middle, target.get(), certifier.sigma), need);
        most.is_some_and(|most| (1.0 - rate) * f64::from(cap) <= f64::from(most))
    };
    let majority = passes(0.0, rate(pilot.right));
    let runner_up = passes(middle, rate(pilot.right)) && passes(-middle, 1.0 - rate(pilot.rival));
    (runner_up && !majority).then_some(middle)
}
