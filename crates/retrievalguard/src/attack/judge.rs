//! The judge: was the retrieval broken? Proved on fresh noise, or not claimed.
//!
//! The machinery of certificates, asked the opposite question: does the retriever answer something else at the perturbed
//! picture? A certified radius above zero is a proof at radius zero (theory, section 10.3). For the mean, an item of one wrong
//! label is nearer than every right item; in pairs, one wrong label beats the right one; in a vote, another label wins.

use serde::{Deserialize, Serialize};

use super::{AttackError, Cost, PointOutcome};
use crate::certificate::{Certifier, HalfSpaceOptions, Retriever, SampledQuery, Verdict};
use crate::gallery::{Positives, Relevance, RowRelevance};
use crate::noise::Stage;
use crate::{Alpha, Picture, SampleCount, Samples, Seed, Smoother};

/// Each point is looked at twice: with this share of the samples, and with all of them.
const FIRST_LOOK: u32 = 4;

/// Looks at one point.
const LOOKS: u32 = 2;

/// How the results of an attack are judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judging {
    /// Probability that anything proved about one query is false; all its points and looks share it.
    pub alpha: Alpha,
    /// Samples on which it is decided what to prove.
    pub pilot: SampleCount,
    /// Most samples that a proof may take.
    pub samples: SampleCount,
    /// Points between the smallest break and the size below it that are judged too, to tighten the bracket.
    pub refinements: u32,
    /// Root of the judge's noise: drawn when a run begins, so that nothing that was tried before knew it.
    pub seed: Seed,
}

/// Judges perturbed copies of one query, each on noise of its own.
pub struct Judge<'a> {
    certifier: Certifier<'a>,
    smoother: Smoother<'a>,
    identity: &'a str,
    relevance: &'a Relevance,
    retriever: Retriever,
    judging: Judging,
    level: Alpha,
    next_sample: u32,
    cost: Cost,
}

impl<'a> Judge<'a> {
    /// A judge of at most `points` perturbations and the refinements that `judging` allows.
    ///
    /// The smoother says how noisy copies are embedded; the root of the noise is that of `judging`.
    pub fn new(
        certifier: Certifier<'a>,
        smoother: Smoother<'a>,
        identity: &'a str,
        relevance: &'a Relevance,
        judging: Judging,
        points: u32,
    ) -> Self {
        let shares = u64::from(points.saturating_add(judging.refinements).max(1)) * u64::from(LOOKS);
        let shares = SampleCount::new(shares).unwrap_or(judging.samples);
        let level = judging.alpha.share(shares);
        Self {
            certifier,
            smoother: smoother.seed(judging.seed),
            identity,
            relevance,
            retriever: Retriever::Mean,
            judging,
            level,
            next_sample: 0,
            cost: Cost::default(),
        }
    }

    /// Judges another retriever than the mean.
    #[must_use]
    pub fn retriever(self, retriever: Retriever) -> Self {
        Self { retriever, ..self }
    }

    /// Samples embedded so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// What is proved about the retrieval of `pixels`.
    ///
    /// The pilot decides which side to prove and against which wrong label. Both looks are at half of the point's share
    /// of the level, the second on more samples.
    pub fn judge(&mut self, pixels: &[f32]) -> Result<PointOutcome, AttackError> {
        let pilot = self.draw(pixels, self.judging.pilot.get())?;
        let nearest =
            self.certifier.gallery().nearest_positive_and_negative(&pilot.mean(), |_| self.relevance)?[0];
        let (Some(right), Some(wrong)) = (nearest.positive, nearest.negative) else {
            return Ok(PointOutcome::Undecided);
        };
        let winner = match self.retriever {
            Retriever::Mean => (wrong.squared_distance < right.squared_distance)
                .then(|| self.opposite(self.answer_of(wrong.row))),
            Retriever::Vote => {
                let rival = self.certifier.winning_rival(&pilot, self.relevance)?;
                rival.map(|rival| Relevance::new(self.rival(rival), self.relevance.excluded.clone()))
            }
            Retriever::Pairwise => {
                let contest = self.certifier.contest(&pilot, self.relevance)?;
                let beaten = 2 * u64::from(contest.wins) <= u64::from(contest.total);
                contest.rival.filter(|_| beaten).map(|rival| self.opposite(self.rival(rival)))
            }
            Retriever::Plain => {
                let certificate = self.retriever.certificate();
                return Err(crate::certificate::CertificateError::NotFromSamples(certificate).into());
            }
        };
        let (relevance, proved) = match winner {
            Some(relevance) => (relevance, PointOutcome::Broken),
            None => (self.relevance.clone(), PointOutcome::Held),
        };
        let most = self.judging.samples.get();
        let first = (most / FIRST_LOOK).max(1);
        let mut samples = self.draw(pixels, first)?;
        if self.proves(&pilot, &samples, &relevance)? {
            return Ok(proved);
        }
        if most > first {
            samples
                .append(&self.draw(pixels, most - first)?)
                .map_err(crate::certificate::CertificateError::from)?;
            if self.proves(&pilot, &samples, &relevance)? {
                return Ok(proved);
            }
        }
        Ok(PointOutcome::Undecided)
    }

    /// The answer that a wrong row would be.
    fn answer_of(&self, wrong: usize) -> Positives {
        // If the same item is asked for, a wrong item may have its label.
        match self.relevance.positives {
            Positives::Label(_) | Positives::Absent => {
                Positives::Label(self.certifier.gallery().label(wrong))
            }
            Positives::Item(_) => Positives::Item(wrong),
        }
    }

    /// The answer that a rival would be, by its number.
    fn rival(&self, number: usize) -> Positives {
        let gallery = self.certifier.gallery();
        match self.relevance.positives {
            Positives::Label(_) | Positives::Absent => (0..gallery.len())
                .map(|row| gallery.label(row))
                .find(|label| label.index() == number)
                .map_or(Positives::Absent, Positives::Label),
            Positives::Item(_) => Positives::Item(gallery.item_rows(number).start),
        }
    }

    /// The relevance under which a wrong answer is right, and what was right is wrong; nothing else is seen.
    fn opposite(&self, positives: Positives) -> Relevance {
        let gallery = self.certifier.gallery();
        let unseen = |&row: &usize| match self.relevance.of_row(gallery, row) {
            RowRelevance::Excluded => true,
            RowRelevance::Positive => false,
            RowRelevance::Negative => match positives {
                Positives::Label(label) => gallery.label(row) != label,
                Positives::Item(item) => gallery.item(row) != gallery.item(item),
                Positives::Absent => true,
            },
        };
        Relevance::new(positives, (0..gallery.len()).filter(unseen).collect())
    }

    fn proves(&self, pilot: &Samples, samples: &Samples, relevance: &Relevance) -> Result<bool, AttackError> {
        let count = SampleCount::new(u64::from(samples.count())).unwrap_or(self.judging.samples);
        let certifier = Certifier::new(self.certifier.gallery(), self.certifier.sigma(), self.level);
        if self.retriever != Retriever::Mean {
            let query = SampledQuery { pilot: pilot.clone(), certifying: samples.clone() };
            let verdict = certifier.certify(self.retriever.certificate(), &query, relevance)?.verdict;
            return Ok(matches!(verdict, Verdict::Certified { .. }));
        }
        let plan = certifier.plan_half_space(pilot, relevance, count, &HalfSpaceOptions::default())?;
        let verdict = plan.certify(samples)?.into_outcome().verdict;
        Ok(matches!(verdict, Verdict::Certified { .. }))
    }

    /// Noise that nothing has used before, neither the attack nor another point of this judge.
    fn draw(&mut self, pixels: &[f32], count: u32) -> Result<Samples, AttackError> {
        let picture = Picture { identity: self.identity, pixels };
        let range = self.next_sample..self.next_sample.saturating_add(count);
        self.next_sample = range.end;
        self.cost.encoder_calls += u64::from(count);
        Ok(self.smoother.samples(&picture, Stage::Judge, range)?)
    }
}
