//! Rates of winning, tested while samples come in (theory, section 11.2).
//!
//! A *contest* is won or lost in every noisy copy. Several run side by side, and a claim is about all of them: each rate
//! of winning exceeds a rung `q_1 < q_2 < …` of a ladder that was fixed beforehand. Bets may be looked at as often as one
//! likes, and every contest is tested at the whole level: only the one with the truly smallest rate must not fail.

use std::collections::BTreeMap;

use crate::binomial;
use crate::normal::Probability;

/// Allowance for rounding, in units of log wealth.
const ROUNDING: f64 = 1e-6;
/// How unlikely a recovery must be for it to be given up.
const GIVE_UP: f64 = 0.01;

/// Logarithm of the wealth of a gambler who spreads his stake evenly over the rates above `null`.
///
/// ```text
/// W = 1/(1−q) ∫_q^1 (p/q)^w ((1−p)/(1−q))^l dp,     ∫_q^1 p^w (1−p)^l dp = P(Bin(n+1, q) ≤ w) / ((n+1) (n choose w))
/// ```
///
/// For each `p > q` the integrand is a product of factors whose mean is at most one if the true rate is at most `q`; so is
/// their average a non-negative supermartingale that begins with one, and it ever reaches `1/level` with probability at most
/// `level` (Ville).
pub(super) fn log_wealth(wins: u32, losses: u32, null: Probability) -> f64 {
    let (q, trials) = (null.get(), wins.saturating_add(losses));
    if q >= 1.0 || q <= 0.0 || trials == u32::MAX {
        return f64::NEG_INFINITY;
    }
    let rest = null.complement().ln();
    let log_q = if q < 0.5 { q.ln() } else { (-null.complement()).ln_1p() };
    let tail = binomial::lower_tail(wins, trials + 1, null).ln();
    let (won, lost) = (f64::from(wins) * log_q, f64::from(losses) * rest);
    let scale = (f64::from(trials) + 1.0).ln() + binomial::log_coefficient(wins, trials);
    // What is subtracted can be much larger than what is left.
    let rounding = ROUNDING + 1e-13 * (won.abs() + lost.abs() + scale);
    tail - scale - rest - won - lost - rounding
}

/// The most losses among `trials` with which bets against `null` have reached the log wealth `need`; none if even none are few
/// enough.
pub(super) fn most_losses(trials: u32, null: Probability, need: f64) -> Option<u32> {
    // One more loss instead of a win always costs wealth.
    let passes = |losses: u32| log_wealth(trials - losses, losses, null) >= need;
    if !passes(0) {
        return None;
    }
    let (mut low, mut high) = (0, trials);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if passes(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(low)
}

/// The fewest samples, all won, with which bets against `null` reach the log wealth `need`; none up to `cap`.
pub(super) fn fewest_samples(null: Probability, need: f64, cap: u32) -> Option<u32> {
    let passes = |trials: u32| log_wealth(trials, 0, null) >= need;
    if !passes(cap) {
        return None;
    }
    let (mut low, mut high) = (1, cap);
    while low < high {
        let middle = low + (high - low) / 2;
        if passes(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low)
}

/// Contests side by side, and how far each has climbed the ladder.
#[derive(Clone, Debug)]
pub(super) struct WinRates {
    ladder: Vec<Probability>,
    need: f64,
    seen: u32,
    /// Rungs passed by every contest that was never lost.
    unlost: usize,
    lost: BTreeMap<usize, Lost>,
}

#[derive(Clone, Copy, Debug)]
struct Lost {
    losses: u32,
    passed: usize,
}

impl WinRates {
    /// No sample was seen. The rungs ascend.
    pub(super) fn new(ladder: Vec<Probability>, level: f64) -> Self {
        Self { ladder, need: -level.ln(), seen: 0, unlost: 0, lost: BTreeMap::new() }
    }

    /// Counts a loss in a sample that the next look is about.
    pub(super) fn lose(&mut self, contest: usize) {
        let new = Lost { losses: 0, passed: self.unlost };
        self.lost.entry(contest).or_insert(new).losses += 1;
    }

    /// Looks at everything after so many more samples.
    ///
    /// A rung counts once it was passed after all those below it. A contest passes one that it should not only if it passes
    /// the lowest of these, which has at most the probability `level`, however often one looks.
    pub(super) fn look(&mut self, samples: u32) {
        self.seen += samples;
        let Self { ladder, need, seen, unlost, lost } = self;
        let mut most: Vec<Option<Option<u32>>> = vec![None; ladder.len()];
        let mut climb = |passed: &mut usize, losses: u32| {
            while let Some(&null) = ladder.get(*passed) {
                let most = *most[*passed].get_or_insert_with(|| most_losses(*seen, null, *need));
                if most.is_none_or(|most| losses > most) {
                    break;
                }
                *passed += 1;
            }
        };
        climb(unlost, 0);
        for contest in lost.values_mut() {
            climb(&mut contest.passed, contest.losses);
        }
    }

    /// How many rungs every contest has passed.
    pub(super) fn passed(&self) -> usize {
        self.lost.values().map(|contest| contest.passed).fold(self.unlost, usize::min)
    }

    /// Losses of the contest that was lost most often, with its number: the smaller of equals.
    pub(super) fn hardest(&self) -> (u32, Option<usize>) {
        let by_losses = self.lost.iter().rev().max_by_key(|(_, contest)| contest.losses);
        by_losses.map_or((0, None), |(&number, contest)| (contest.losses, Some(number)))
    }

    /// Whether a contest will hardly pass this rung with at most `cap` samples.
    ///
    /// Given up is what could not recover by winning always, and what would have to win more often from now on than its
    /// record makes believable. To give up proves nothing, so this needs no share of the level.
    pub(super) fn is_hopeless(&self, rung: usize, cap: u32) -> bool {
        let Some(&null) = self.ladder.get(rung) else { return false };
        let climbing = self.lost.values().filter(|contest| contest.passed <= rung);
        let Some(losses) = climbing.map(|contest| contest.losses).max() else {
            return self.unlost <= rung && most_losses(cap, null, self.need).is_none();
        };
        let Some(most) = most_losses(cap, null, self.need).filter(|&most| losses <= most) else {
            return true;
        };
        let left = cap.saturating_sub(self.seen);
        if left == 0 || self.seen == 0 {
            return false;
        }
        let wanted = 1.0 - f64::from(most - losses) / f64::from(left);
        let believable = binomial::upper_bound(self.seen - losses, self.seen, GIVE_UP);
        believable.is_ok_and(|rate| rate.get() < wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normal;

    fn at(rate: f64) -> Probability {
        Probability::new(rate).unwrap()
    }

    /// The integral by Simpson's rule.
    fn integral(wins: i32, losses: i32, null: f64) -> f64 {
        let steps = 20_000;
        let height = (1.0 - null) / f64::from(steps);
        let value =
            |rate: f64| (rate / null).powi(wins) * ((1.0 - rate) / (1.0 - null)).powi(losses) / (1.0 - null);
        let weight = |step: i32| match step {
            0 => 1.0,
            step if step == steps => 1.0,
            step if step % 2 == 1 => 4.0,
            _ => 2.0,
        };
        (0..=steps).map(|step| weight(step) * value(null + height * f64::from(step))).sum::<f64>() * height
            / 3.0
    }

    #[test]
    fn wealth_is_the_average_of_all_likelihood_ratios() {
        for null in [0.3, 0.5, 0.691, 0.841, 0.977] {
            for (wins, losses) in [(0, 0), (1, 0), (0, 1), (13, 0), (38, 1), (60, 9), (9, 60), (400, 20)] {
                let found = log_wealth(wins, losses, at(null));
                let expected = integral(wins as i32, losses as i32, null).ln();
                assert!((found - expected).abs() < 1e-4, "{wins} {losses} {null}: {found} {expected}");
                assert!(found <= expected + 1e-7, "rounded up at {wins} {losses} {null}");
            }
        }
    }

    #[test]
    fn wealth_is_a_fair_game_at_its_null_and_a_losing_one_below() {
        let null = 0.8;
        for (wins, losses) in [(0, 0), (5, 1), (40, 8), (300, 100)] {
            let wealth = |won: u32, lost: u32| log_wealth(wins + won, losses + lost, at(null)).exp();
            let mean = |rate: f64| rate * wealth(1, 0) + (1.0 - rate) * wealth(0, 1);
            let now = wealth(0, 0);
            assert!((mean(null) / now - 1.0).abs() < 1e-5, "{wins} {losses}");
            assert!(mean(0.7) < now && mean(0.9) > now, "{wins} {losses}");
        }
    }

    #[test]
    fn unanimous_copies_decide_within_tens() {
        let need = -0.01_f64.ln();
        let fewest = |target: f64| fewest_samples(normal::probability(target), need, 10_000).unwrap();
        // The theory has 38 for a radius of one σ; half of it takes less, twice of it more.
        assert_eq!(fewest(1.0), 38);
        assert!(fewest(0.5) < 25 && fewest(2.0) > 200, "{} {}", fewest(0.5), fewest(2.0));
        assert_eq!(fewest_samples(normal::probability(1.0), need, 37), None);
        for trials in [38, 100, 333] {
            let most = most_losses(trials, normal::probability(1.0), need).unwrap();
            let wealth = |losses| log_wealth(trials - losses, losses, normal::probability(1.0));
            assert!(wealth(most) >= need && wealth(most + 1) < need, "{trials}");
        }
        assert_eq!(most_losses(37, normal::probability(1.0), need), None);
    }

    #[test]
    fn a_rung_counts_for_the_slowest_contest_and_stays_passed() {
        let mut rates = WinRates::new([0.3, 0.6, 0.9].map(at).to_vec(), 0.05);
        assert_eq!((rates.passed(), rates.hardest()), (0, (0, None)));
        rates.look(30);
        assert_eq!(rates.passed(), 2, "0.9 takes more");
        // A rival that is new has won all that was before.
        for _ in 0..8 {
            rates.lose(7);
        }
        rates.lose(3);
        rates.look(8);
        assert_eq!((rates.passed(), rates.hardest()), (2, (8, Some(7))));
        assert!(rates.is_hopeless(2, 60), "a contest with eight losses does not pass 0.9 any more");
        assert!(!rates.is_hopeless(1, 60), "what is passed is not waited for");
        assert!(!rates.is_hopeless(2, 100_000), "eight of 38 lost, but much may come");
    }

    #[test]
    fn what_cannot_be_decided_is_hopeless_from_the_beginning() {
        let rates = WinRates::new(vec![normal::probability(1.0)], 0.01);
        assert!(rates.is_hopeless(0, 37) && !rates.is_hopeless(0, 38));
        assert_eq!(log_wealth(10, 0, Probability::ONE), f64::NEG_INFINITY);
    }
}
