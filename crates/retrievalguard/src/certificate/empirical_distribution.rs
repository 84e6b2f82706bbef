//! The empirical distribution of the pilot's scores, and of those that were bet on already.
//!
//! Nothing here is proved and nothing needs to be: the distribution only places thresholds before the certifying sample
//! is looked at, and bets before the scores they are about are. A bad guess costs radius, never validity.

use super::domain::ScoreRange;
use super::projection::score_error;
use crate::normal::{self, Probability};

/// Quantiles that represent the pilot when a bet is planned.
const POINTS: usize = 96;
/// Thresholds at equally spaced normal scores of the pilot.
const QUANTILES: usize = 18;
/// Thresholds spread evenly between the least possible score and the pilot's tail.
const UNIFORM: usize = 4;

/// Scores of the pilot in one direction, with an exponential tail below the smallest.
#[derive(Clone, Debug)]
pub(crate) struct EmpiricalDistribution {
    sorted: Vec<f32>,
    /// Mean excess of the lowest tenth: the scale at which the tail is taken to decay.
    tail: f64,
    range: ScoreRange,
    dimension: usize,
}

/// Distance that is sure to exceed the rounding between equal scores: a range is never below `F/√2` at its larger end.
fn nudge(range: ScoreRange, dimension: usize) -> f64 {
    3.0 * score_error(dimension, range.size())
}

impl EmpiricalDistribution {
    pub(crate) fn new(mut scores: Vec<f32>, range: ScoreRange, dimension: usize) -> Self {
        scores.sort_unstable_by(f32::total_cmp);
        let lowest = scores.len().div_ceil(10);
        let knee = f64::from(scores[lowest.min(scores.len() - 1)]);
        let excess: f64 = scores[..lowest].iter().map(|&score| knee - f64::from(score)).sum();
        // Equal smallest scores are an atom: nothing suggests that the distribution reaches below it.
        let nudge = nudge(range, dimension);
        let atom = scores.get(2).is_some_and(|&third| f64::from(third) - f64::from(scores[0]) <= nudge);
        let tail = if atom { nudge } else { excess / lowest as f64 };
        Self { tail, sorted: scores, range, dimension }
    }

    /// Distance that is sure to exceed the rounding between equal scores.
    pub(crate) fn nudge(&self) -> f64 {
        nudge(self.range, self.dimension)
    }

    /// Where scores can lie.
    pub(crate) fn range(&self) -> ScoreRange {
        self.range
    }

    fn len(&self) -> f64 {
        self.sorted.len() as f64
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sorted.iter().map(|&score| f64::from(score)).sum::<f64>() / self.len()
    }

    fn smallest(&self) -> f64 {
        f64::from(self.sorted[0])
    }

    /// Guess of `P(S > threshold)`.
    pub(crate) fn above(&self, threshold: f64) -> Probability {
        let below = self.sorted.partition_point(|&score| f64::from(score) <= threshold) as f64;
        let total = self.len() + 1.0;
        let complement = if below > 0.0 {
            (below + 0.5) / total
        } else {
            let depth = (self.smallest() - threshold) / self.tail.max(1e-12 * self.range.size());
            (0.5 / total * (-depth).exp()).max(1e-18)
        };
        Probability::from_parts(1.0 - complement, complement)
    }

    /// Thresholds for `samples` certifying samples: some below the pilot's smallest score, its quantiles at equally
    /// spaced normal scores, and a few spread evenly.
    ///
    /// Each sits a little below a score of the pilot, so that an atom of the distribution counts as above it.
    pub(crate) fn thresholds(&self, samples: u32) -> Vec<f32> {
        let nudge = self.nudge();
        let smallest = self.smallest();
        let mut places = Vec::with_capacity(QUANTILES + UNIFORM + 4);
        let ratio = (f64::from(samples) / self.len()).max(1.0);
        let mut deepest = smallest;
        for factor in [0.0, 0.6, 2.5, 10.0] {
            deepest = smallest - self.tail * (1.0 + factor * ratio).ln();
            places.push(deepest);
        }
        for step in 0..UNIFORM {
            let share = (step as f64 + 1.0) / (UNIFORM as f64 + 1.0);
            places.push(self.range.lower + share * (deepest - self.range.lower));
        }
        let lowest = normal::quantile(Probability::from_parts(0.5 / self.len(), 1.0 - 0.5 / self.len()));
        for step in 0..QUANTILES {
            let score = lowest + (2.2 - lowest) * (step as f64 + 0.5) / QUANTILES as f64;
            let index = (normal::distribution(score) * self.len()) as usize;
            places.push(f64::from(self.sorted[index.min(self.sorted.len() - 1)]));
        }
        self.tidy(places.into_iter().map(|place| (place - nudge) as f32), nudge as f32)
    }

    /// Ascending, strictly within the range, and at least `apart` from each other.
    fn tidy(&self, places: impl Iterator<Item = f32>, apart: f32) -> Vec<f32> {
        let mut places: Vec<f32> = places.filter(|&place| self.range.encloses(f64::from(place))).collect();
        places.sort_unstable_by(f32::total_cmp);
        // Of two close ones the lower survives: it still lies below the atom that the upper one was meant for.
        let mut last = f32::NEG_INFINITY;
        places.retain(|&place| {
            let keep = place - last > apart;
            if keep {
                last = place;
            }
            keep
        });
        places
    }

    /// A few weighted scores that approximate the distribution, the tail below the pilot included.
    pub(crate) fn points(&self) -> Vec<(f64, f64)> {
        let tail_mass = 0.5 / (self.len() + 1.0);
        let count = POINTS.min(self.sorted.len());
        let mass = (1.0 - tail_mass) / count as f64;
        let mut points = vec![(self.smallest() - self.tail, tail_mass)];
        points.extend((0..count).map(|point| {
            let index = ((point as f64 + 0.5) / count as f64 * self.len()) as usize;
            (f64::from(self.sorted[index.min(self.sorted.len() - 1)]), mass)
        }));
        points
    }
}
