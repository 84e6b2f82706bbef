//! `vote`: retrieve with every noisy embedding and let the labels vote (theory, section 3).
//!
//! This certifies another smoothed system than the mean does: the *voting* retriever, whose answer is the nearest item
//! of the winning label. It has its own name, beside the others. Of the two rules that randomised smoothing has for
//! classifiers, by majority and by runner-up, the pilot chooses one; `rule` in the explanation says which.

use std::collections::{BTreeMap, HashMap};

use super::{
    CertificateError, CertificateName, Certifier, Explanation, Outcome, Radius, SampledQuery, Verdict,
};
use crate::binomial;
use crate::gallery::{Label, NearestPair, Positives, Relevance};
use crate::normal;
use crate::{Samples, Sigma};

/// How the noisy copies of one query voted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ballot {
    /// Votes for the answer in question; a tie with a wrong item is a vote against it.
    pub(super) right: u32,
    /// Votes for the wrong answer that got most of them.
    pub(super) rival: u32,
    /// Number of votes.
    pub(super) total: u32,
}

/// What one noisy copy votes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slip {
    /// The answer in question.
    Right,
    /// Something else: a label by its index, or an item by its number when one item was asked for.
    Rival(usize),
    /// Nothing is there to vote for.
    Nobody,
}

/// How many votes the answer in question and each rival have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Votes {
    /// Votes for the answer in question.
    pub right: u32,
    /// Votes of every rival that has any: labels by their index, items by their number.
    pub rivals: BTreeMap<usize, u32>,
}

impl Votes {
    fn of(slips: Vec<Slip>) -> Self {
        let mut votes = Self::default();
        slips.into_iter().for_each(|slip| votes.count(slip));
        votes
    }

    /// One more vote.
    pub(super) fn count(&mut self, slip: Slip) {
        match slip {
            Slip::Right => self.right += 1,
            Slip::Rival(rival) => *self.rivals.entry(rival).or_insert(0) += 1,
            Slip::Nobody => {}
        }
    }

    /// Votes of the rival that has most of them.
    pub(super) fn of_strongest_rival(&self) -> u32 {
        self.rivals.values().copied().max().unwrap_or(0)
    }
}

/// Which of the two bounds of a vote serves; decided on the pilot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// More than half of the votes: `r = σ Φ⁻¹(p_low)`.
    Majority,
    /// More votes than any rival: `r = σ/2 [Φ⁻¹(p_low) − Φ⁻¹(q_up)]`.
    RunnerUp,
}

impl Rule {
    /// The name that explanations have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Majority => "majority",
            Rule::RunnerUp => "runner-up",
        }
    }

    fn statement(self) -> &'static str {
        match self {
            Rule::Majority => "theory 3, majority",
            Rule::RunnerUp => "theory 3, runner-up",
        }
    }
}

impl Certifier<'_> {
    /// What each of a set of samples votes for.
    pub(super) fn votes(
        &self,
        samples: &Samples,
        relevance: &Relevance,
    ) -> Result<Vec<Slip>, CertificateError> {
        self.check_dimension(samples)?;
        let nearest = self.gallery.nearest_positive_and_negative(samples.values(), |_| relevance)?;
        let slip = |nearest: &NearestPair| match (nearest.positive, nearest.negative) {
            (Some(positive), Some(negative)) if positive.squared_distance < negative.squared_distance => {
                Slip::Right
            }
            (Some(_), None) => Slip::Right,
            (_, Some(negative)) => Slip::Rival(match relevance.positives {
                Positives::Label(_) | Positives::Absent => self.gallery.label(negative.row).index(),
                Positives::Item(_) => self.gallery.item(negative.row),
            }),
            (None, None) => Slip::Nobody,
        };
        Ok(nearest.iter().map(slip).collect())
    }

    /// Counts the votes of a set of samples for the answer in question.
    pub(super) fn ballot(
        &self,
        samples: &Samples,
        relevance: &Relevance,
    ) -> Result<Ballot, CertificateError> {
        let votes = self.count_votes(samples, relevance)?;
        Ok(Ballot { right: votes.right, rival: votes.of_strongest_rival(), total: samples.count() })
    }

    /// The votes of a set of samples, for the answer in question and for each rival.
    pub fn count_votes(&self, samples: &Samples, relevance: &Relevance) -> Result<Votes, CertificateError> {
        Ok(Votes::of(self.votes(samples, relevance)?))
    }

    /// What so many votes among `total` prove under one of the rules, whoever counted them.
    pub fn judge_votes(&self, rule: Rule, votes: &Votes, total: u32) -> Verdict {
        let ballot = Ballot { right: votes.right, rival: votes.of_strongest_rival(), total };
        self.judge_ballot(rule, &ballot).0
    }

    /// The verdict on a ballot, with the bounds of the answer and of the rival.
    fn judge_ballot(&self, rule: Rule, ballot: &Ballot) -> (Verdict, f64, f64) {
        let (radius, right_lower, rival_upper) = vote_radius(rule, ballot, self.alpha.get(), self.sigma);
        let radius = radius.is_finite().then_some(Radius::Finite(radius));
        (Verdict::from_radius(ballot.right > ballot.rival, radius), right_lower, rival_upper)
    }

    /// The rival with most votes, by its number, if it has at least as many as the answer in question.
    pub(crate) fn winning_rival(
        &self,
        samples: &Samples,
        relevance: &Relevance,
    ) -> Result<Option<usize>, CertificateError> {
        let votes = Votes::of(self.votes(samples, relevance)?);
        let strongest = votes.rivals.into_iter().max_by_key(|&(_, received)| received);
        Ok(strongest.filter(|&(_, received)| received >= votes.right).map(|(rival, _)| rival))
    }

    /// The label that wins the vote of a pilot, ties broken by the smaller label; what deployment then certifies.
    pub fn elect(&self, samples: &Samples, excluded: &[usize]) -> Result<Option<Label>, CertificateError> {
        self.check_dimension(samples)?;
        let mut votes: HashMap<Label, u32> = HashMap::new();
        for nearest in self.gallery.nearest(samples.values(), 1, |_| excluded)? {
            if let Some(neighbour) = nearest.first() {
                *votes.entry(self.gallery.label(neighbour.row)).or_insert(0) += 1;
            }
        }
        let best = votes.into_iter().max_by(|left, right| left.1.cmp(&right.1).then(right.0.cmp(&left.0)));
        Ok(best.map(|(label, _)| label))
    }

    pub(super) fn vote(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<Outcome, CertificateError> {
        self.check(query, relevance)?;
        let pilot = self.ballot(&query.pilot, relevance)?;
        let ballot = self.ballot(&query.certifying, relevance)?;
        let alpha = self.alpha.get();
        let expected = scale(&pilot, ballot.total);
        let by = |rule| vote_radius(rule, &expected, alpha, self.sigma).0;
        let rule = if by(Rule::RunnerUp) > by(Rule::Majority) { Rule::RunnerUp } else { Rule::Majority };
        let (verdict, right_lower, rival_upper) = self.judge_ballot(rule, &ballot);
        let mut explain = Explanation::default();
        explain
            .add("votes", ballot.total, "theory 3")
            .add("votes for the answer", ballot.right, "theory 3")
            .add("votes for the strongest rival", ballot.rival, "theory 3")
            .add("rule", rule.as_str(), "theory 3, chosen on the pilot")
            .add("lower bound of the answer", right_lower, rule.statement());
        // The other rule has no bound of the rival: it would need a share of alpha.
        if rule == Rule::RunnerUp {
            explain.add("upper bound of the rival", rival_upper, rule.statement());
        }
        explain.conclude(verdict, rule.statement());
        Ok(Outcome { name: CertificateName::Vote, verdict, samples: ballot.total, explain })
    }
}

/// The pilot's votes as they would look among `total`.
fn scale(pilot: &Ballot, total: u32) -> Ballot {
    let share = |votes: u32| (f64::from(votes) / f64::from(pilot.total) * f64::from(total)).round() as u32;
    Ballot { right: share(pilot.right).min(total), rival: share(pilot.rival).min(total), total }
}

/// Radius, lower bound of the answer's probability and upper bound of the rival's.
///
/// A negative or infinite radius certifies nothing. No union over rivals: an error matters only for the truly strongest.
fn vote_radius(rule: Rule, ballot: &Ballot, alpha: f64, sigma: Sigma) -> (f64, f64, f64) {
    let level = match rule {
        Rule::Majority => alpha,
        Rule::RunnerUp => alpha / 2.0,
    };
    let right = binomial::lower_bound(ballot.right, ballot.total, level);
    let rival = binomial::upper_bound(ballot.rival, ballot.total, level);
    let (Ok(right), Ok(rival)) = (right, rival) else { return (f64::NEG_INFINITY, 0.0, 1.0) };
    let score = match rule {
        Rule::Majority => normal::quantile(right),
        Rule::RunnerUp => (normal::quantile(right) - normal::quantile(rival)) / 2.0,
    };
    (sigma.certified() * score * (1.0 - 1e-12), right.get(), rival.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::{Gallery, Metric};
    use crate::{Alpha, Excess, NormBound};

    #[test]
    fn every_sample_votes_for_the_item_that_it_is_nearest_to() {
        let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
        let (items, labels) = (names("item"), names("label"));
        let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, items, &labels, Metric::Euclidean).unwrap();
        let values = vec![0.9, 0.0, 0.8, 0.1, -0.7, 0.0];
        let samples = Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap();
        let certifier = Certifier::new(&gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap());
        let ballot = certifier.ballot(&samples, &Relevance::new(Positives::Item(0), vec![])).unwrap();
        assert_eq!(ballot, Ballot { right: 2, rival: 1, total: 3 });
        assert_eq!(certifier.elect(&samples, &[]).unwrap(), gallery.label_named("label 0"));
    }

    #[test]
    fn both_rules_follow_their_formulas() {
        let sigma = Sigma::new(0.5).unwrap();
        let ballot = Ballot { right: 60, rival: 10, total: 100 };
        let (majority, right, _) = vote_radius(Rule::Majority, &ballot, 0.05, sigma);
        assert_eq!(right, binomial::lower_bound(60, 100, 0.05).unwrap().get());
        let expected = 0.5 * normal::quantile(binomial::lower_bound(60, 100, 0.05).unwrap());
        assert!((majority - expected).abs() < 1e-9);
        let (runner_up, _, rival) = vote_radius(Rule::RunnerUp, &ballot, 0.05, sigma);
        assert_eq!(rival, binomial::upper_bound(10, 100, 0.025).unwrap().get());
        assert!(runner_up > majority, "a weak rival makes the runner-up form larger");
    }

    #[test]
    fn a_minority_or_an_empty_vote_certifies_nothing() {
        let sigma = Sigma::new(0.5).unwrap();
        for (right, rival) in [(0, 100), (0, 0), (40, 60), (50, 50)] {
            let ballot = Ballot { right, rival, total: 100 };
            for rule in [Rule::Majority, Rule::RunnerUp] {
                assert!(vote_radius(rule, &ballot, 0.05, sigma).0 <= 0.0, "{right} {rival} {rule:?}");
            }
        }
    }
}
