//! A whole run of attacks: rates, and whether they are what the certificates and the attack promise.

use super::{Attacked, FACTORS, Mode, PointOutcome};
use crate::normal::Probability;
use crate::{Alpha, binomial};

/// Breaks inside the radii that are less likely than this under true certificates condemn the run.
const SURPRISE: f64 = 1e-3;

/// Plain retrievals that must have been attacked before finding none broken condemns the attack.
const ENOUGH_PLAIN: usize = 5;

/// How many queries were held, broken or left undecided at one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Proved to be right still.
    pub held: usize,
    /// Proved to be broken.
    pub broken: usize,
    /// Neither.
    pub undecided: usize,
}

impl Rates {
    fn count(&mut self, outcome: PointOutcome) {
        match outcome {
            PointOutcome::Held => self.held += 1,
            PointOutcome::Broken => self.broken += 1,
            PointOutcome::Undecided => self.undecided += 1,
        }
    }

    /// All queries attacked at this size.
    pub fn total(&self) -> usize {
        self.held + self.broken + self.undecided
    }
}

/// What is wrong with a run of attacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttackFault {
    /// More certificates are broken inside their radii than their failure probability explains.
    Certificates {
        /// Queries broken inside.
        broken: usize,
        /// Probability of so many or more among the queries asked, if every certificate is wrong with probability `α`.
        probability: f64,
    },
    /// The attack cannot even break the plain encoder, so that it broke no certificate says nothing.
    Attack {
        /// Plain retrievals that it could not break.
        plain: usize,
    },
}

/// What must be said beside the rates of an attack that shows little, so that nobody reads a robust encoder out of them.
///
/// `right` retrievals of the plain encoder were attacked, and `broken` of them broken at some size.
pub fn caution(mode: Mode, right: usize, broken: usize) -> Option<String> {
    let estimated = "its gradients were estimated from the encoder's outputs";
    match (mode, right, broken) {
        (_, 0, _) => Some(
            "the plain encoder retrieves none of the attacked queries rightly, so nothing shows how strong the attack is"
                .to_owned(),
        ),
        (Mode::BlackBox, right, 0) => Some(format!(
            "this attack found no way to break any of {right} plain retrievals, and that proves little: {estimated}, and \
             one that computes them may break most"
        )),
        (Mode::WhiteBox, right, 0) => Some(format!(
            "this attack found no way to break any of {right} plain retrievals, and that proves little: a longer one may"
        )),
        (Mode::BlackBox, ..) => {
            Some(format!("the attack is weak: {estimated}, and one that computes them may find more and smaller breaks"))
        }
        (Mode::WhiteBox, ..) => None,
    }
}

/// Counts over all attacked queries.
#[derive(Clone, Debug, PartialEq)]
pub struct AttackSummary {
    /// The smoothed retriever, size by size.
    pub smoothed: [Rates; FACTORS.len()],
    /// The plain encoder, size by size, over the queries that it retrieves rightly.
    pub plain: [Rates; FACTORS.len()],
    /// Queries attacked.
    pub queries: usize,
    /// Positions of the queries that were broken inside their radii.
    pub inside: Vec<usize>,
    /// Queries with a proved break of any size.
    pub bracketed: usize,
    /// Queries that the plain encoder retrieves rightly.
    pub plain_right: usize,
    /// How many of those were broken, at any size.
    pub plain_broken: usize,
}

impl AttackSummary {
    /// Counts.
    pub fn new<'r>(results: impl IntoIterator<Item = &'r Attacked>) -> Self {
        let mut summary = Self {
            smoothed: Default::default(),
            plain: Default::default(),
            queries: 0,
            inside: Vec::new(),
            bracketed: 0,
            plain_right: 0,
            plain_broken: 0,
        };
        for (position, result) in results.into_iter().enumerate() {
            summary.queries += 1;
            for (rates, points) in
                [(&mut summary.smoothed, &result.smoothed), (&mut summary.plain, &result.plain)]
            {
                rates.iter_mut().zip(points).for_each(|(rates, point)| rates.count(point.outcome));
            }
            if result.broken_inside() {
                summary.inside.push(position);
            }
            summary.bracketed += usize::from(result.certified().1.is_some());
            summary.plain_right += usize::from(result.plain_right);
            summary.plain_broken += usize::from(result.plain_broken());
        }
        summary
    }

    /// What is wrong with the run, if anything.
    ///
    /// `asked` is the number of queries for which a certificate was *asked*, those that abstained included: a query is
    /// certified and wrong with probability `alpha` at most, but one that is known to be certified may be wrong more
    /// often. A break that is none is proved with probability `judge_alpha` at most, and queries have independent noise.
    /// So the breaks inside are at most as many as `Bin(asked, alpha + judge_alpha)`, and a number whose tail is below
    /// 0.001 cannot be explained by chance.
    pub fn fault(&self, asked: usize, alpha: Alpha, judge_alpha: Alpha) -> Option<AttackFault> {
        let probability = self.chance(asked, alpha, judge_alpha);
        if !self.inside.is_empty() && probability < SURPRISE {
            return Some(AttackFault::Certificates { broken: self.inside.len(), probability });
        }
        if self.plain_right >= ENOUGH_PLAIN && self.plain_broken == 0 {
            return Some(AttackFault::Attack { plain: self.plain_right });
        }
        None
    }

    /// Probability of as many breaks inside or more among `asked` queries, if every certificate is valid at `alpha`.
    pub fn chance(&self, asked: usize, alpha: Alpha, judge_alpha: Alpha) -> f64 {
        let either = (alpha.get() + judge_alpha.get()).min(1.0);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        match Probability::new(either) {
            Ok(either) => {
                binomial::upper_tail(count(self.inside.len()), count(asked.max(self.queries)), either)
            }
            // A sum of two levels in (0, 1), cut at 1, is a probability.
            Err(_) => 1.0,
        }
    }
}
