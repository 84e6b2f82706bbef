//! `pairwise`: the answer must come before every rival, one at a time (theory, section 11).
//!
//! This certifies a third smoothed system, the *pairwise* retriever: its answer is the label that in more than half of the
//! noisy copies is strictly nearer than each other label. At most one label can be that. Against each rival a copy counts
//! by itself, so copies that are split over many rivals cost less than they cost a vote.

use std::collections::BTreeMap;

use super::{
    CertificateError, CertificateName, Certifier, Explanation, Outcome, Radius, SampledQuery, Verdict,
};
use crate::gallery::{Answers, Label, Positives, Relevance};
use crate::{Samples, Sigma, binomial, normal};

/// Losses that a choice among several labels counts at once, a quarter of a gibibyte.
const LOSSES_AT_ONCE: usize = 1 << 26;

/// How the answer in question fared against the rival that was ahead of it most often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contest {
    /// Copies in which the answer was strictly nearer than that rival.
    pub wins: u32,
    /// Number of copies.
    pub total: u32,
    /// The rival: a label by its index, an item by its number; none if no rival was ever ahead.
    pub rival: Option<usize>,
}

impl Certifier<'_> {
    /// Compares the answer in question with every rival, copy by copy, and gives the hardest comparison.
    ///
    /// ```
    /// use retrievalguard::certificate::{Certifier, Contest};
    /// use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
    /// use retrievalguard::{Alpha, Excess, NormBound, Samples, Sigma};
    ///
    /// let names = |word: &str| (0..3).map(|row| format!("{word} {row}")).collect::<Vec<_>>();
    /// let vectors = vec![1.0, 0.0, -1.0, 0.0, 0.0, 1.0];
    /// let gallery = Gallery::new(vectors, 2, names("item"), &names("label"), Metric::Euclidean)?;
    /// let samples = Samples::new(vec![0.9, 0.0, 0.1, 0.9, -0.7, 0.0], 2, NormBound::UNIT, Excess::Refuse)?;
    /// let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
    /// // The second copy is nearer to item 2, the third to both others.
    /// let contest = certifier.contest(&samples, &Relevance::new(Positives::Item(0), vec![]))?;
    /// assert_eq!(contest, Contest { wins: 1, total: 3, rival: Some(2) });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contest(&self, samples: &Samples, relevance: &Relevance) -> Result<Contest, CertificateError> {
        let losses = self.losses(samples, relevance)?;
        // The first of equals, so that the answer does not depend on how it was found.
        let hardest = losses.iter().enumerate().rev().max_by_key(|&(_, &count)| count);
        let (rival, lost) = hardest.map_or((None, 0), |(rival, &count)| (Some(rival), count));
        Ok(Contest {
            wins: samples.count() - lost,
            total: samples.count(),
            rival: rival.filter(|_| lost > 0),
        })
    }

    /// In how many copies each rival is ahead of the answer in question: by label, or by item where one was asked for.
    pub fn losses(&self, samples: &Samples, relevance: &Relevance) -> Result<Vec<u32>, CertificateError> {
        self.check_dimension(samples)?;
        let mut losses = vec![0_u32; self.gallery.rival_numbers(relevance.positives)];
        self.gallery.rivals_ahead(samples.values(), relevance, |_, rivals| {
            for rival in rivals.iter() {
                losses[rival] += 1;
            }
        })?;
        Ok(losses)
    }

    /// What a contest proves, whoever counted it.
    pub fn judge_contest(&self, contest: &Contest) -> Verdict {
        self.judge(contest).0
    }

    /// The verdict on a contest, and the lower bound behind it.
    fn judge(&self, contest: &Contest) -> (Verdict, f64) {
        let (radius, lower) = pairwise_radius(contest, self.alpha.get(), self.sigma);
        let retrieved = 2 * u64::from(contest.wins) > u64::from(contest.total);
        let radius = radius.is_finite().then_some(Radius::Finite(radius));
        (Verdict::from_radius(retrieved, radius), lower)
    }

    /// The label that a pilot finds before each other in most copies; what deployment then certifies.
    ///
    /// Among the labels that are nearest in some copy, the one whose hardest rival is ahead least often, ties broken by the
    /// votes and then by the smaller label. It is a choice: whatever is chosen is tested on fresh copies.
    pub fn champion(&self, samples: &Samples, excluded: &[usize]) -> Result<Option<Label>, CertificateError> {
        self.check_dimension(samples)?;
        let mut votes: BTreeMap<Label, u32> = BTreeMap::new();
        for nearest in self.gallery.nearest(samples.values(), 1, |_| excluded)? {
            if let Some(neighbour) = nearest.first() {
                *votes.entry(self.gallery.label(neighbour.row)).or_insert(0) += 1;
            }
        }
        // One label that is nearest in every copy needs no comparison.
        if votes.len() < 2 {
            return Ok(votes.into_keys().next());
        }
        let labels: Vec<Label> = votes.keys().copied().collect();
        let mut best: Option<(u32, u32, Label)> = None;
        let rivals = self.gallery.label_count();
        for group in labels.chunks((LOSSES_AT_ONCE / rivals).max(1)) {
            let positives: Vec<Positives> = group.iter().map(|&label| Positives::Label(label)).collect();
            let answers = Answers { positives: &positives, excluded };
            let mut losses = vec![0_u32; group.len() * rivals];
            self.gallery.rivals_ahead_of_each(samples.values(), &answers, |_, answer, ahead| {
                ahead.iter().for_each(|rival| losses[answer * rivals + rival] += 1);
            })?;
            for (&label, losses) in group.iter().zip(losses.chunks_exact(rivals)) {
                let lost = losses.iter().copied().max().unwrap_or(0);
                let (wins, received) = (samples.count() - lost, votes[&label]);
                let better = |&(found, with, which): &(u32, u32, Label)| {
                    (wins, received).cmp(&(found, with)).then(which.cmp(&label)).is_gt()
                };
                if best.as_ref().is_none_or(better) {
                    best = Some((wins, received, label));
                }
            }
        }
        Ok(best.map(|(_, _, label)| label))
    }

    pub(super) fn pairwise(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<Outcome, CertificateError> {
        self.check(query, relevance)?;
        let contest = self.contest(&query.certifying, relevance)?;
        let (verdict, lower) = self.judge(&contest);
        let mut explain = Explanation::default();
        explain
            .add("noisy copies", contest.total, "theory 11")
            .add("copies before the hardest rival", contest.wins, "theory 11")
            .add("lower bound against every rival", lower, "theory 11, every rival at the full alpha");
        explain.conclude(verdict, "theory 11");
        Ok(Outcome { name: CertificateName::Pairwise, verdict, samples: contest.total, explain })
    }
}

/// Radius `σ Φ⁻¹(p_low)` and the lower bound `p_low` on how often the answer comes before the hardest rival.
///
/// ```text
/// r = σ min_c Φ⁻¹(p_c),     p_c ≥ p_low(wins_c, n, α)
/// ```
///
/// No union over rivals: the bound grows with the wins, so the hardest rival's is below that of the rival with the truly
/// smallest `p_c`, and only that one must not fail. A radius that is negative or infinite certifies nothing.
fn pairwise_radius(contest: &Contest, alpha: f64, sigma: Sigma) -> (f64, f64) {
    match binomial::lower_bound(contest.wins, contest.total, alpha) {
        Ok(lower) => (sigma.certified() * normal::quantile(lower) * (1.0 - 1e-12), lower.get()),
        Err(_) => (f64::NEG_INFINITY, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::{Gallery, Metric};
    use crate::{Alpha, Excess, NormBound};

    const ITEMS: [(&str, [f32; 2]); 5] = [
        ("right", [0.9, 0.0]),
        ("left", [-0.9, 0.0]),
        ("up", [0.0, 0.9]),
        ("down", [0.0, -0.9]),
        ("right", [0.6, 0.6]),
    ];

    fn gallery() -> Gallery {
        let vectors = ITEMS.iter().flat_map(|(_, vector)| *vector).collect();
        let names = (0..ITEMS.len()).map(|row| row.to_string()).collect();
        let labels: Vec<&str> = ITEMS.iter().map(|(label, _)| *label).collect();
        Gallery::new(vectors, 2, names, &labels, Metric::Euclidean).unwrap()
    }

    /// Points of the unit square, moved to the right and shrunk into the ball.
    fn samples(count: usize, seed: u64, shift: f64) -> Samples {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut point = || [uniform() - 0.5 + shift, uniform() - 0.5].map(|value| (0.6 * value) as f32);
        let values = (0..count).flat_map(|_| point()).collect();
        Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
    }

    fn certifier(gallery: &Gallery) -> Certifier<'_> {
        Certifier::new(gallery, Sigma::new(0.5).unwrap(), Alpha::new(0.05).unwrap())
    }

    #[test]
    fn a_radius_follows_its_formula() {
        let sigma = Sigma::new(0.5).unwrap();
        let contest = Contest { wins: 90, total: 100, rival: Some(3) };
        let (radius, lower) = pairwise_radius(&contest, 0.05, sigma);
        let bound = binomial::lower_bound(90, 100, 0.05).unwrap();
        assert_eq!(lower, bound.get());
        assert!((radius - 0.5 * normal::quantile(bound)).abs() < 1e-9, "{radius}");
        for wins in [0, 40, 50] {
            assert!(pairwise_radius(&Contest { wins, ..contest }, 0.05, sigma).0 <= 0.0, "{wins} wins");
        }
    }

    #[test]
    fn pairwise_is_never_below_a_vote_by_majority() {
        let gallery = gallery();
        let certifier = certifier(&gallery);
        let relevance = Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), vec![]);
        let mut larger = 0;
        for seed in 0..200 {
            let samples = samples(150, seed, (seed % 10) as f64 / 10.0);
            let contest = certifier.contest(&samples, &relevance).unwrap();
            let ballot = certifier.ballot(&samples, &relevance).unwrap();
            assert!(contest.wins >= ballot.right, "{contest:?} {ballot:?}");
            larger += u32::from(contest.wins > ballot.right);
        }
        assert!(larger > 50, "{larger} of 200 contests were won more often than the vote");
    }

    #[test]
    fn no_two_labels_win_and_a_champion_is_the_one_that_does() {
        let gallery = gallery();
        let certifier = certifier(&gallery);
        let mut won = 0;
        for seed in 0..100 {
            let samples = samples(101, seed, (seed % 10) as f64 / 5.0 - 1.0);
            let winners: Vec<Label> = ["right", "left", "up", "down"]
                .into_iter()
                .filter_map(|name| gallery.label_named(name))
                .filter(|&label| {
                    let relevance = Relevance::new(Positives::Label(label), vec![]);
                    let contest = certifier.contest(&samples, &relevance).unwrap();
                    2 * contest.wins > contest.total
                })
                .collect();
            assert!(winners.len() <= 1, "{winners:?}");
            if let [winner] = winners[..] {
                won += 1;
                assert_eq!(certifier.champion(&samples, &[]).unwrap(), Some(winner));
            }
        }
        assert!(won > 50, "{won}");
    }

    #[test]
    fn a_tie_is_a_loss_and_an_absent_answer_loses_always() {
        let gallery = gallery();
        let certifier = certifier(&gallery);
        let middle = Samples::new([0.0, 0.0].repeat(4), 2, NormBound::UNIT, Excess::Refuse).unwrap();
        let left = Relevance::new(Positives::Label(gallery.label_named("left").unwrap()), vec![]);
        // Left, up, down and the first right item are equally far from the middle.
        assert_eq!(certifier.contest(&middle, &left).unwrap().wins, 0);
        let absent = Relevance::new(Positives::Absent, vec![]);
        assert_eq!(certifier.contest(&middle, &absent).unwrap().wins, 0);
        assert_eq!(certifier.contest(&samples(50, 1, 0.5), &absent).unwrap().wins, 0);
    }
}
