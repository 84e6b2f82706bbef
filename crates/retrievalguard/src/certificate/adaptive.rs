//! Adaptive sampling: draw until a target radius is decided (theory, sections 2.3 and 2.5).
//!
//! The test says which samples it wants next and is shown them; sampling stays with the caller. Whether to go on may
//! depend on everything seen so far: wealth may be looked at as often as one likes (Ville), and looks at the threshold
//! form spend shares of `α` that sum to at most `α`.
//!
//! ```
//! use retrievalguard::certificate::{AdaptiveOptions, AdaptiveTest, Certifier, Decision};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Sigma, TargetRadius};
//!
//! # let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! # let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
//! # let relevance = Relevance::new(Positives::Item(0), vec![]);
//! let draw = |count| Samples::new([0.9, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse);
//! let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
//! let options = AdaptiveOptions::new(TargetRadius::new(0.2)?, SampleCount::new(100_000)?);
//! let test = AdaptiveTest::new(&certifier, &draw(100)?, &relevance, &options)?;
//! let run = test.run(|range| Ok(draw(range.len())?), |error| Box::<dyn std::error::Error>::from(error))?;
//! assert_eq!(run.outcome.decision, Decision::Reached);
//! assert!(run.outcome.samples <= 256);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use serde::Serialize;

use super::betting::{Rungs, Wealth};
use super::pilot_choice::{Harmless, PilotChooser, Test, Wager};
use super::projection::{for_each_score, narrow};
use super::separation::{HalfSpace, Separation};
use super::thresholds::RADIUS_CAP;
use super::{
    Bets, CertificateError, Certifier, Explanation, Form, HalfSpaceOptions, HalfSpacePlan, Radius, Verdict,
    check_alike,
};
use crate::gallery::Relevance;
use crate::samples::{add_into, run_sum};
use crate::{Alpha, ParameterError, SampleCount, Samples, TargetRadius};

/// How a target radius is tested while samples come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The dual betting test: valid at any stopping time, no share of `α` spent on looking.
    #[default]
    Betting,
    /// The threshold form at look `i` with its share `α/(i(i+1))`.
    Looks,
}

/// A radius to decide and how much may be spent on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveOptions {
    /// The radius to decide.
    pub target: TargetRadius,
    /// Most samples that may be drawn.
    pub cap: SampleCount,
    /// Samples of the first look; every further look doubles the total.
    pub first: SampleCount,
    /// How the radius is tested.
    pub rule: Rule,
}

impl AdaptiveOptions {
    /// Betting, with a first look after 256 samples.
    pub fn new(target: TargetRadius, cap: SampleCount) -> Self {
        let first = SampleCount::new(256).expect("256 is a sample count");
        Self { target, cap, first, rule: Rule::Betting }
    }
}

/// Why sampling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// More samples are wanted.
    Open,
    /// The target radius is certified.
    Reached,
    /// The cap was reached without a certificate.
    Capped,
    /// The samples so far grow too slowly to get there before the cap.
    Hopeless,
}

impl Decision {
    /// The word that JSON has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Open => "open",
            Decision::Reached => "reached",
            Decision::Capped => "capped",
            Decision::Hopeless => "hopeless",
        }
    }
}

/// Verdict at the target radius and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AdaptiveOutcome {
    /// Certified means at least the target radius.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Certifying samples drawn.
    pub samples: u32,
    /// Why sampling ended.
    pub decision: Decision,
}

/// A decided radius and the samples that decided it, if any were needed.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveRun {
    /// What was decided.
    pub outcome: AdaptiveOutcome,
    /// The certifying samples that were drawn.
    pub samples: Option<Samples>,
    /// What was tested, with the results.
    pub explain: Explanation,
}

/// One query on its way to a target radius.
pub struct AdaptiveTest<'a> {
    plan: HalfSpacePlan<'a>,
    options: AdaptiveOptions,
    state: State,
    sums: Vec<f64>,
    seen: u32,
    looks: u32,
    decision: Decision,
}

enum State {
    Betting(OpenTests),
    Looks { samples: Option<Samples> },
}

/// The negatives that have not been beaten yet, each with what is bet on and what the bets have made so far.
#[derive(Default)]
struct OpenTests {
    open: Vec<(OpenNegative, Wager)>,
    wealth: Vec<Wealth>,
}

enum OpenNegative {
    /// Its direction is kept.
    Dangerous(HalfSpace),
    /// Its direction is computed again for each look, to save memory.
    Harmless(Harmless),
}

/// Share of the cap after which slow growth counts as hopeless.
const PATIENCE: f64 = 1.0 / 8.0;
/// Growth below this share of what is needed to reach the level at the cap counts as slow.
const SLOW: f64 = 0.25;

impl<'a> AdaptiveTest<'a> {
    /// Makes every choice on the pilot.
    pub fn new(
        certifier: &Certifier<'a>,
        pilot: &Samples,
        relevance: &Relevance,
        options: &AdaptiveOptions,
    ) -> Result<Self, CertificateError> {
        let form = match options.rule {
            Rule::Betting => Form::ByPilot,
            Rule::Looks => Form::Thresholds,
        };
        let plan =
            certifier.plan_half_space(pilot, relevance, options.cap, &HalfSpaceOptions { top_k: 1, form })?;
        // Nothing is ever certified beyond this many σ, so no sample need be drawn for it.
        let beyond = options.target.get() > RADIUS_CAP * certifier.sigma.certified();
        let mut decision = if beyond { Decision::Hopeless } else { Decision::Open };
        let state = match options.rule {
            Rule::Betting if beyond => State::Betting(OpenTests::default()),
            Rule::Looks => State::Looks { samples: None },
            Rule::Betting => match OpenTests::new(&plan, pilot, options) {
                Some(tests) => State::Betting(tests),
                None => {
                    decision = Decision::Hopeless;
                    State::Betting(OpenTests::default())
                }
            },
        };
        let sums = vec![0.0; pilot.dimension()];
        Ok(Self { plan, options: *options, state, sums, seen: 0, looks: 0, decision })
    }

    /// Indices of the certifying samples that are wanted next; `None` once the radius is decided.
    pub fn wants(&self) -> Option<Range<u32>> {
        if self.decision != Decision::Open {
            return None;
        }
        next_look(self.seen, self.options.first, self.options.cap)
    }

    /// Takes the samples that were wanted.
    pub fn see(&mut self, samples: &Samples) -> Result<(), CertificateError> {
        let wanted = self.wants().map_or(0, |range| range.len());
        if samples.count() as usize != wanted {
            return Err(CertificateError::UnwantedSamples { found: samples.count() as usize, wanted });
        }
        check_alike(self.plan.pilot(), samples)?;
        add_into(&mut self.sums, &run_sum(samples.values(), samples.dimension()));
        self.seen += samples.count();
        self.looks += 1;
        let reached = match &mut self.state {
            State::Betting(tests) => {
                let target = -self.plan.certifier.alpha.get().ln();
                tests.bet(&self.plan, samples, target);
                let share = f64::from(self.seen) / f64::from(self.options.cap.get());
                let slow = |wealth: &Wealth| wealth.best() / share < SLOW * target;
                if share >= PATIENCE && tests.wealth.iter().any(slow) {
                    self.decision = Decision::Hopeless;
                }
                tests.open.is_empty()
            }
            State::Looks { samples: all } => {
                let alpha = share_of_look(self.plan.certifier.alpha, self.looks)?;
                let all = match all {
                    Some(all) => {
                        all.append(samples)?;
                        &*all
                    }
                    None => all.insert(samples.clone()),
                };
                let outcome = self.plan.certify_at(all, alpha)?;
                let radius = outcome.verdicts[0].radius().map_or(0.0, Radius::get);
                radius >= self.options.target.get()
            }
        };
        if reached {
            self.decision = Decision::Reached;
        } else if self.decision == Decision::Open && self.seen >= self.options.cap.get() {
            self.decision = Decision::Capped;
        }
        Ok(())
    }

    /// Draws what is wanted until the radius is decided; `refused` wraps what the test itself finds wrong.
    pub fn run<E>(
        mut self,
        mut draw: impl FnMut(Range<u32>) -> Result<Samples, E>,
        refused: impl Fn(CertificateError) -> E,
    ) -> Result<AdaptiveRun, E> {
        let mut samples: Option<Samples> = None;
        while let Some(range) = self.wants() {
            let more = draw(range)?;
            self.see(&more).map_err(&refused)?;
            match &mut samples {
                Some(all) => all.append(&more).map_err(|error| refused(error.into()))?,
                None => samples = Some(more),
            }
        }
        Ok(AdaptiveRun { outcome: self.outcome(), samples, explain: self.explain() })
    }

    /// The verdict on what was seen so far.
    pub fn outcome(&self) -> AdaptiveOutcome {
        let mean: Vec<f64> = self.sums.iter().map(|sum| sum / f64::from(self.seen.max(1))).collect();
        let mean = if self.seen == 0 { self.plan.pilot().mean() } else { mean };
        let radius = match self.decision {
            Decision::Reached => Some(Radius::Finite(self.options.target.get())),
            Decision::Open | Decision::Capped | Decision::Hopeless => None,
        };
        let verdict = Verdict::from_radius(self.plan.retrieves(&mean), radius);
        AdaptiveOutcome { verdict, samples: self.seen, decision: self.decision }
    }
}

impl AdaptiveTest<'_> {
    /// What was tested, with the results so far.
    ///
    /// The test decides one radius and no other, so the only radius in it is the target, and only once it is reached.
    pub fn explain(&self) -> Explanation {
        const STATEMENT: &str = "theory 2.5, adaptive sampling";
        let alpha = self.plan.certifier.alpha;
        let mut explain = self.plan.explain_setting(self.seen, alpha, alpha);
        explain.add("target radius", self.options.target.get(), STATEMENT).add(
            "rule",
            match self.options.rule {
                Rule::Betting => "betting",
                Rule::Looks => "looks",
            },
            STATEMENT,
        );
        explain.add("looks", self.looks, STATEMENT);
        // Without a sample nothing was tested: what was hopeless was so before.
        if self.seen > 0 {
            match &self.state {
                State::Betting(tests) => {
                    explain.add("log wealth needed", -alpha.get().ln(), "theory 2.3, second form");
                    explain.add("negatives not beaten yet", tests.open.len(), STATEMENT);
                    let least = tests.wealth.iter().map(Wealth::highest).reduce(f64::min);
                    if let Some(least) = least {
                        explain.add("least log wealth", least, "theory 2.3, second form");
                    }
                }
                State::Looks { .. } => {
                    if let Ok(share) = share_of_look(alpha, self.looks) {
                        explain.add("share of alpha for the look", share.get(), STATEMENT);
                    }
                }
            }
        }
        explain.add("decision", self.decision.as_str(), STATEMENT);
        explain.conclude(self.outcome().verdict, STATEMENT);
        explain
    }
}

/// Samples of the next look: `first` of them, then as many as there are already, up to `cap` in all.
pub(super) fn next_look(seen: u32, first: SampleCount, cap: SampleCount) -> Option<Range<u32>> {
    let next = if seen == 0 { first.get() } else { seen.saturating_mul(2) };
    (seen < cap.get()).then(|| seen..next.min(cap.get()))
}

/// Share `α/(i(i+1))` of look `i = 1, 2, …`; all of them sum to `α`.
pub(super) fn share_of_look(alpha: Alpha, look: u32) -> Result<Alpha, ParameterError> {
    let look = f64::from(look);
    Alpha::new(alpha.get() / (look * (look + 1.0)))
}

impl OpenTests {
    /// One test for every negative; `None` if one of them cannot be beaten.
    fn new(plan: &HalfSpacePlan<'_>, pilot: &Samples, options: &AdaptiveOptions) -> Option<Self> {
        let chooser = PilotChooser {
            gallery: plan.gallery,
            pilot,
            sigma: plan.certifier.sigma,
            domain: plan.domain,
            level: plan.certifier.alpha.get(),
            samples: options.cap.get(),
            form: Form::Betting,
            top_k: 1,
            rungs: Rungs::AtTheEnd,
            bets: Bets::Fixed,
        };
        let target = options.target.get();
        let mut tests = Self::default();
        for negative in &plan.dangerous {
            match &negative.test {
                Test::Always => {}
                Test::Never => return None,
                Test::Thresholds { half_space, .. } | Test::Betting { half_space, .. } => {
                    tests.add(OpenNegative::Dangerous(half_space.clone()), chooser.wager(half_space, target));
                }
            }
        }
        for harmless in &plan.harmless {
            match plan.separate(harmless) {
                Separation::Always => {}
                Separation::Never => return None,
                Separation::Open(half_space) => {
                    let wager = chooser.wager_from_moments(harmless, &half_space, target);
                    tests.add(OpenNegative::Harmless(*harmless), wager);
                }
            }
        }
        // Without positives there is nothing to bet on, and nothing can be certified.
        (!plan.dangerous.is_empty()).then_some(tests)
    }

    fn add(&mut self, negative: OpenNegative, wager: Wager) {
        // A hurdle at or below zero is cleared without looking; one that is no number is not.
        let cleared = wager.test.hurdle <= 0.0;
        if !cleared {
            self.wealth.push(Wealth::new(wager.test.fractions));
            self.open.push((negative, wager));
        }
    }

    /// Shows the samples to every open test and drops those that are won.
    fn bet(&mut self, plan: &HalfSpacePlan<'_>, samples: &Samples, target: f64) {
        let Self { open, wealth } = self;
        for_each_score(
            samples,
            plan.domain.range,
            open.len(),
            |place, row| match &open[place].0 {
                OpenNegative::Dangerous(half_space) => narrow(&half_space.direction, row),
                OpenNegative::Harmless(harmless) => match plan.separate(harmless) {
                    Separation::Open(half_space) => narrow(&half_space.direction, row),
                    Separation::Always | Separation::Never => {
                        unreachable!("a test is opened for open separations only, and they do not change")
                    }
                },
            },
            |place, _, scores| {
                let (wager, wealth) = (&open[place].1, &mut wealth[place]);
                for &score in scores {
                    if wealth.highest() >= target {
                        break;
                    }
                    let score = f64::from(score);
                    wealth.see(wager.test.value(&wager.cells, wager.cells.cell(score), score));
                }
                wealth.settle();
            },
        );
        let mut won = wealth.iter().map(|wealth| wealth.highest() >= target).collect::<Vec<_>>().into_iter();
        let mut again = won.clone();
        open.retain(|_| won.next() == Some(false));
        wealth.retain(|_| again.next() == Some(false));
    }
}

#[cfg(test)]
impl AdaptiveTest<'_> {
    /// Highest log wealth of a single negative's bet on these samples, computed apart from the test's own state.
    pub(super) fn replay(&self, pilot: &Samples, samples: &Samples) -> f64 {
        let tests = OpenTests::new(&self.plan, pilot, &self.options).expect("the negative can be beaten");
        let [(OpenNegative::Dangerous(half_space), wager)] = tests.open.as_slice() else {
            panic!("one open negative was expected")
        };
        let mut wealth = Wealth::new(wager.test.fractions);
        for score in super::projection::scores(samples, self.plan.domain.range, &half_space.direction) {
            let score = f64::from(score);
            wealth.see(wager.test.value(&wager.cells, wager.cells.cell(score), score));
        }
        wealth.settle();
        wealth.highest()
    }
}
