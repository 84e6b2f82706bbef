//! A radius that grows while samples come in (theory, section 2.8).
//!
//! Every radius that is ever shown is a proof, all of them together: with probability at least `1 − α` none exceeds the
//! true radius, however often one looks and whenever one stops. The test says which samples it wants next and is shown
//! them; sampling stays with the caller.
//!
//! ```
//! use retrievalguard::certificate::{Certifier, Decision, GrowingOptions, GrowingTest};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Sigma};
//!
//! # let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! # let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
//! # let relevance = Relevance::new(Positives::Item(0), vec![]);
//! let draw = |count| Samples::new([0.9, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse);
//! let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
//! let options = GrowingOptions::new(SampleCount::new(1_000)?);
//! let mut test = GrowingTest::new(&certifier, &draw(100)?, &relevance, &options)?;
//! let mut shown = Vec::new();
//! while let Some(range) = test.wants() {
//!     test.see(&draw(range.len())?)?;
//!     shown.extend(test.outcome().verdict.radius());
//! }
//! assert_eq!(shown.len(), 4); // after 128, 256, 512 and 1,000 samples
//! assert!(shown.is_sorted() && shown[0] < shown[3]);
//! assert_eq!(test.outcome().decision, Decision::Capped);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use serde::Serialize;

use super::adaptive::{next_look, share_of_look};
use super::betting::Rungs;
use super::{
    CertificateError, Certifier, Decision, Explanation, Form, HalfSpaceOptions, HalfSpacePlan, Radius,
    Verdict, check_alike,
};
use crate::gallery::Relevance;
use crate::{SampleCount, Samples, TargetRadius};

/// How much may be drawn, when it is looked at, and what would be enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrowingOptions {
    /// Most samples that may be drawn; the last look is at all of them.
    pub cap: SampleCount,
    /// Samples of the first look; every further look doubles the total.
    pub first: SampleCount,
    /// A radius that is enough: once it is shown, no more samples are wanted.
    pub target: Option<TargetRadius>,
    /// Which form tests a dangerous negative. Bets pay nothing for looking; looks at counts share `α`.
    pub form: Form,
}

impl GrowingOptions {
    /// Forms by the pilot, a first look after 128 samples, and no target.
    pub fn new(cap: SampleCount) -> Self {
        let first = SampleCount::new(128).expect("128 is a sample count");
        Self { cap, first, target: None, form: Form::ByPilot }
    }

    /// How many looks there are up to the cap.
    pub(super) fn looks(&self) -> u32 {
        let ends = |seen: &u32| next_look(*seen, self.first, self.cap).map(|range| range.end);
        std::iter::successors(ends(&0), ends).map(|_| 1).sum()
    }
}

/// What has been shown so far and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GrowingOutcome {
    /// Certified at the largest radius of all looks, provided that a right item is nearest to the mean so far.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Certifying samples seen.
    pub samples: u32,
    /// How often they were looked at.
    pub looks: u32,
    /// Why sampling ended. Without a target, `Reached` means that the radius is unbounded and cannot grow.
    pub decision: Decision,
}

/// One query whose certified radius grows.
#[derive(Clone, Debug)]
pub struct GrowingTest<'a> {
    plan: HalfSpacePlan<'a>,
    options: GrowingOptions,
    samples: Option<Samples>,
    looks: u32,
    /// The largest radius of all looks, and the numbers behind it.
    shown: Option<Radius>,
    explain: Option<Explanation>,
    mean: Vec<f64>,
    verdict: Verdict,
    decision: Decision,
}

impl<'a> GrowingTest<'a> {
    /// Makes every choice on the pilot.
    pub fn new(
        certifier: &Certifier<'a>,
        pilot: &Samples,
        relevance: &Relevance,
        options: &GrowingOptions,
    ) -> Result<Self, CertificateError> {
        let asked = HalfSpaceOptions { top_k: 1, form: options.form };
        let rungs = Rungs::OnTheWay { target: options.target };
        let plan = certifier.plan_with_rungs(pilot, relevance, options.cap, &asked, rungs)?;
        let mean = pilot.mean();
        let verdict = Verdict::from_radius(plan.retrieves(&mean), None);
        // What no sample can change need not be waited for.
        let decision = if plan.is_hopeless() { Decision::Hopeless } else { Decision::Open };
        Ok(Self {
            plan,
            options: *options,
            samples: None,
            looks: 0,
            shown: None,
            explain: None,
            mean,
            verdict,
            decision,
        })
    }

    /// Indices of the certifying samples that are wanted next; `None` once it is decided.
    pub fn wants(&self) -> Option<Range<u32>> {
        if self.decision != Decision::Open {
            return None;
        }
        next_look(self.seen(), self.options.first, self.options.cap)
    }

    /// Takes exactly the samples that were wanted, and looks at all so far; what is refused changes nothing.
    pub fn see(&mut self, samples: &Samples) -> Result<(), CertificateError> {
        let wanted = self.wants().map_or(0, |range| range.len());
        if samples.count() as usize != wanted {
            return Err(CertificateError::UnwantedSamples { found: samples.count() as usize, wanted });
        }
        check_alike(self.plan.pilot(), samples)?;
        let alpha = self.plan.certifier.alpha;
        // The last look has the largest share: it is the one whose radius stays.
        let share = share_of_look(alpha, self.options.looks() - self.looks)?;
        let all = match &mut self.samples {
            Some(all) => {
                all.append(samples)?;
                &*all
            }
            None => self.samples.insert(samples.clone()),
        };
        self.looks += 1;
        let outcome = self.plan.judge(all, alpha, share)?;
        self.mean = all.mean();
        let found = outcome.verdicts[0].radius();
        if self.shown.is_none() || found > self.shown {
            self.shown = found;
            self.explain = Some(outcome.explain);
        }
        self.verdict = match outcome.verdicts[0] {
            Verdict::Misretrieved => Verdict::Misretrieved,
            Verdict::Certified { .. } | Verdict::Abstained => Verdict::from_radius(true, self.shown),
        };
        let enough = match self.options.target {
            Some(target) => Radius::Finite(target.get()),
            None => Radius::Unbounded,
        };
        self.decision = if self.verdict.radius() >= Some(enough) {
            Decision::Reached
        } else if self.seen() >= self.options.cap.get() {
            Decision::Capped
        } else {
            Decision::Open
        };
        Ok(())
    }

    /// What has been shown so far.
    pub fn outcome(&self) -> GrowingOutcome {
        let (samples, looks) = (self.seen(), self.looks);
        GrowingOutcome { verdict: self.verdict, samples, looks, decision: self.decision }
    }

    /// Mean of all certifying samples so far, the pilot's before the first.
    pub fn mean(&self) -> Vec<f64> {
        self.mean.clone()
    }

    /// The numbers of the look that showed the largest radius, of the last one if none did; `None` before the first.
    pub fn explain(&self) -> Option<&Explanation> {
        self.explain.as_ref()
    }

    /// All certifying samples so far, in order.
    pub fn samples(&self) -> Option<&Samples> {
        self.samples.as_ref()
    }

    fn seen(&self) -> u32 {
        self.samples.as_ref().map_or(0, Samples::count)
    }
}
