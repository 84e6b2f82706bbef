//! Exact bounds on a probability from counted successes, and the binomial tails behind them.
//!
//! The Clopper–Pearson bounds turn "so many of so many samples exceeded the threshold" into a statement about the
//! true probability that is wrong with at most the given level, whatever that probability is. Bounds are rounded
//! outward, so that the statement survives floating-point arithmetic.
//!
//! ```
//! use retrievalguard::binomial::{lower_bound, upper_tail};
//!
//! // 990 of 1,000 noisy copies were retrieved correctly; allow a failure once in a thousand.
//! let bound = lower_bound(990, 1_000, 0.001)?;
//! assert!((bound.get() - 0.976_036).abs() < 1e-6);
//! assert!((upper_tail(990, 1_000, bound) / 0.001 - 1.0).abs() < 1e-11);
//!
//! // Even without a single miss, certainty is never claimed.
//! assert!((lower_bound(1_000, 1_000, 0.001)?.complement() - 0.006_884).abs() < 1e-6);
//! # Ok::<(), retrievalguard::binomial::BinomialError>(())
//! ```

mod tail;

use self::tail::{UpperTail, surplus};
use crate::normal::{Probability, quantile};

/// Relative amount by which a bound is moved to its safe side, for levels from 1e-20 on; see [`outward`].
///
/// Four times the largest relative error measured before the move against 50-digit values, 9e-15 (1 to 4·10⁹ trials,
/// levels from 1e-12 to 0.9).
const SAFETY: f64 = 4e-14;

/// Below `e^LOWEST_LOGARITHM` (about 1e-304) a lower bound is given as 0, before `f64` runs out of digits.
const LOWEST_LOGARITHM: f64 = -700.0;

/// A question about counts that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BinomialError {
    /// Without trials nothing is known about a probability.
    #[error("number of trials is 0, wanted at least 1")]
    NoTrials,
    /// More successes than trials.
    #[error("{successes} successes in {trials} trials, wanted at most as many successes as trials")]
    Successes {
        /// Successes counted.
        successes: u32,
        /// Trials made.
        trials: u32,
    },
    /// The probability of being wrong lies strictly between 0 and 1.
    #[error("level is {0}, wanted a number between 0 and 1, both excluded")]
    Level(f64),
}

/// Lower confidence bound on the probability of success (Clopper and Pearson 1934, doi:10.1093/biomet/26.4.404).
///
/// ```text
/// P(Bin(trials, p) ≥ successes) = level
/// no success:      p = 0
/// only successes:  p = level^(1/trials)
/// ```
///
/// Above the true probability with probability at most `level`. Increasing in `successes` and in `level`.
/// Rounded toward safety: the returned `p` is smaller and `1 - p` larger than the solution, each by 4e-14 of itself
/// (in proportion more for levels below 1e-20), which exceeds the largest error measured. Solutions below 1e-304 are
/// given as 0.
pub fn lower_bound(successes: u32, trials: u32, level: f64) -> Result<Probability, BinomialError> {
    check(successes, trials, level)?;
    let solution = if successes == 0 {
        return Ok(Probability::ZERO);
    } else if level <= 0.5 || successes == trials {
        solve_upper_tail(successes, trials, level)
    } else {
        // The opposite event is the smaller one: trials − successes + 1 failures or more.
        solve_upper_tail(trials - successes + 1, trials, 1.0 - level).opposite()
    };
    let margin = outward(level);
    Ok(Probability::from_parts(
        solution.get() * (1.0 - margin),
        (solution.complement() * (1.0 + margin)).min(1.0),
    ))
}

/// Upper confidence bound on the probability of success: the lower bound on that of failure, turned around.
///
/// ```text
/// P(Bin(trials, p) ≤ successes) = level
/// ```
///
/// Below the true probability with probability at most `level`. Increasing in `successes`, decreasing in `level`;
/// rounded toward safety like [`lower_bound`].
pub fn upper_bound(successes: u32, trials: u32, level: f64) -> Result<Probability, BinomialError> {
    check(successes, trials, level)?;
    lower_bound(trials - successes, trials, level).map(Probability::opposite)
}

/// Two-sided confidence interval: the lower and the upper bound at half the level each.
pub fn interval(
    successes: u32,
    trials: u32,
    level: f64,
) -> Result<(Probability, Probability), BinomialError> {
    check(successes, trials, level)?;
    let half = 0.5 * level;
    Ok((lower_bound(successes, trials, half)?, upper_bound(successes, trials, half)?))
}

/// Probability of `successes` or more in `trials` independent trials.
///
/// ```text
/// P(Bin(trials, p) ≥ successes) = I_p(successes, trials − successes + 1)
/// ```
///
/// More successes than trials have probability 0. Largest relative error measured against 50-digit values: 2e-14 for
/// tails down to 1e-12, 3e-13 for tails down to 1e-300.
pub fn upper_tail(successes: u32, trials: u32, p: Probability) -> f64 {
    at_least(successes, trials, p).get()
}

/// Probability of `successes` or fewer in `trials` independent trials.
///
/// ```text
/// P(Bin(trials, p) ≤ successes) = P(Bin(trials, 1 − p) ≥ trials − successes)
/// ```
///
/// As accurate as [`upper_tail`].
pub fn lower_tail(successes: u32, trials: u32, p: Probability) -> f64 {
    match trials.checked_sub(successes) {
        Some(failures) => upper_tail(failures, trials, p.opposite()),
        None => 1.0,
    }
}

/// `ln (trials choose successes)`, for no more successes than trials.
pub(crate) fn log_coefficient(successes: u32, trials: u32) -> f64 {
    if successes == 0 || successes >= trials {
        return 0.0;
    }
    UpperTail::new(successes, trials).log_binomial_coefficient()
}

fn check(successes: u32, trials: u32, level: f64) -> Result<(), BinomialError> {
    if trials == 0 {
        Err(BinomialError::NoTrials)
    } else if successes > trials {
        Err(BinomialError::Successes { successes, trials })
    } else if level > 0.0 && level < 1.0 {
        Ok(())
    } else {
        Err(BinomialError::Level(level))
    }
}

/// Relative move of a bound toward safety.
///
/// The rounding of `ln level` grows with its size and passes into the bound, so for tiny levels the move grows alike.
fn outward(level: f64) -> f64 {
    SAFETY * (-libm::log(level) / 50.0).max(1.0)
}

/// The event `Bin(trials, p) ≥ successes`, with the side that is not above about 0.63 computed directly.
fn at_least(successes: u32, trials: u32, p: Probability) -> Probability {
    if successes == 0 {
        Probability::ONE
    } else if successes > trials || p == Probability::ZERO {
        Probability::ZERO
    } else if p == Probability::ONE {
        Probability::ONE
    } else if surplus(successes, trials, p) >= p.get() {
        direct_upper_tail(successes, trials, p)
    } else {
        direct_upper_tail(trials - successes + 1, trials, p.opposite()).opposite()
    }
}

/// `P(Bin(trials, p) ≥ successes)` for `(trials + 1) p ≤ successes ≤ trials` and `0 < p < 1`.
fn direct_upper_tail(successes: u32, trials: u32, p: Probability) -> Probability {
    let logarithm = if successes == trials {
        let log_p = if p.get() < 0.5 { libm::log(p.get()) } else { libm::log1p(-p.complement()) };
        f64::from(trials) * log_p
    } else {
        UpperTail::new(successes, trials).at(p).logarithm
    };
    // The logarithm of a sure event may round to something above 0.
    let logarithm = logarithm.min(0.0);
    Probability::from_parts(libm::exp(logarithm), -libm::expm1(logarithm))
}

/// Solves `P(Bin(trials, p) ≥ successes) = target` for `0 < successes`; `target ≤ 1/2` unless all trials succeed.
///
/// Newton's method for `ln T` as a function of `θ = ln(p/(1−p))`. Counts are log-concave, which makes `ln T` concave
/// in `θ`: a step from anywhere ends left of the solution, and from there the steps climb without passing it. So no
/// bracket is needed, and stopping early errs on the safe side.
fn solve_upper_tail(successes: u32, trials: u32, target: f64) -> Probability {
    let log_target = libm::log(target);
    if successes == trials {
        let exponent = log_target / f64::from(trials);
        if exponent < LOWEST_LOGARITHM {
            return Probability::ZERO;
        }
        return Probability::from_parts(libm::exp(exponent), -libm::expm1(exponent));
    }
    let tail = UpperTail::new(successes, trials);
    // T ≤ (trials choose successes) p^successes puts this left of the solution.
    let leftmost = (log_target - tail.log_binomial_coefficient()) / tail.successes;
    if leftmost < LOWEST_LOGARITHM {
        return Probability::ZERO;
    }
    let leftmost = libm::exp(leftmost);
    let start = initial_log_odds(successes, trials, target);
    let mean = tail.successes / (tail.trials + 1.0);
    let mut p = if start.is_finite() && start > LOWEST_LOGARITHM {
        shift_log_odds(Probability::from_parts(0.5, 0.5), start)
    } else {
        Probability::ZERO
    };
    if p.get() > mean {
        p = Probability::from_parts(mean, (tail.trials + 1.0 - tail.successes) / (tail.trials + 1.0));
    }
    // Quadratic convergence needs a handful of steps; the limit only guards against a fault of the arithmetic.
    for _ in 0..200 {
        if p.get() < leftmost {
            p = Probability::from_parts(leftmost, 1.0 - leftmost);
        }
        let point = tail.at(p);
        let step = (log_target - point.logarithm) / point.slope;
        p = shift_log_odds(p, step);
        // Error left after this step, from the second derivative slope·(surplus − slope) of ln T.
        if 0.5 * step * step * (point.slope - point.surplus).abs() <= 1e-16 {
            break;
        }
    }
    p
}

/// Adds `step` to `ln(p/(1−p))` without rounding either side against the other.
fn shift_log_odds(p: Probability, step: f64) -> Probability {
    let (value, complement) = if step <= 0.0 {
        (p.get() * libm::exp(step), p.complement())
    } else {
        (p.get(), p.complement() * libm::exp(-step))
    };
    let sum = value + complement;
    Probability::from_parts(value / sum, complement / sum)
}

/// Approximate `ln(p/(1−p))` at which the upper tail equals `target`.
///
/// ```text
/// w = y √(h + l)/h − (1/(2b−1) − 1/(2a−1)) (l + 5/6 − 2/(3h)),    θ = ln(a/b) − 2w
/// a = successes,  b = trials − successes + 1,  y = −Φ⁻¹(target),  l = (y² − 3)/6,  2/h = 1/(2a−1) + 1/(2b−1)
/// ```
///
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.22.
fn initial_log_odds(successes: u32, trials: u32, target: f64) -> f64 {
    let a = f64::from(successes);
    let b = f64::from(trials - successes) + 1.0;
    let score = -quantile(Probability::from_parts(target, 1.0 - target));
    let (over_a, over_b) = (1.0 / (2.0 * a - 1.0), 1.0 / (2.0 * b - 1.0));
    let h = 2.0 / (over_a + over_b);
    let l = (score * score - 3.0) / 6.0;
    let w = score * (h + l).sqrt() / h - (over_b - over_a) * (l + 5.0 / 6.0 - 2.0 / (3.0 * h));
    libm::log(a / b) - 2.0 * w
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: [u32; 9] = [1, 2, 3, 7, 20, 100, 1_000, 20_000, 300_000];
    const LEVELS: [f64; 8] = [1e-200, 1e-12, 1e-6, 0.01, 0.3, 0.5, 0.7, 0.95];

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found - expected).abs() <= tolerance * expected.abs()
    }

    /// All point probabilities, by multiplying out; good to about 1e-13 for a few dozen trials.
    fn point_probabilities(trials: u32, p: f64) -> Vec<f64> {
        let mut points = vec![1.0];
        for _ in 0..trials {
            let mut next = vec![0.0; points.len() + 1];
            for (count, point) in points.iter().enumerate() {
                next[count] += point * (1.0 - p);
                next[count + 1] += point * p;
            }
            points = next;
        }
        points
    }

    fn some_successes(trials: u32) -> Vec<u32> {
        let mut chosen: Vec<u32> = [1, 2, trials / 10, trials / 2, trials - trials / 5, trials - 1]
            .into_iter()
            .filter(|&successes| successes >= 1 && successes <= trials)
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    #[test]
    fn questions_without_an_answer_are_refused() {
        assert_eq!(lower_bound(0, 0, 0.1), Err(BinomialError::NoTrials));
        assert_eq!(upper_bound(0, 0, 0.1), Err(BinomialError::NoTrials));
        assert_eq!(interval(0, 0, 0.1), Err(BinomialError::NoTrials));
        let too_many = BinomialError::Successes { successes: 4, trials: 3 };
        assert_eq!(lower_bound(4, 3, 0.1), Err(too_many));
        assert_eq!(upper_bound(4, 3, 0.1), Err(too_many));
        assert_eq!(interval(4, 3, 0.1), Err(too_many));
        for level in [0.0, 1.0, -0.1, 1.1, f64::INFINITY] {
            assert_eq!(lower_bound(1, 3, level), Err(BinomialError::Level(level)));
            assert_eq!(upper_bound(1, 3, level), Err(BinomialError::Level(level)));
            assert_eq!(interval(1, 3, level), Err(BinomialError::Level(level)));
        }
        assert!(matches!(lower_bound(1, 3, f64::NAN), Err(BinomialError::Level(level)) if level.is_nan()));
        assert_eq!(
            too_many.to_string(),
            "4 successes in 3 trials, wanted at most as many successes as trials"
        );
    }

    #[test]
    fn without_success_the_lower_bound_is_zero_and_without_failure_the_upper_is_one() {
        for trials in COUNTS {
            for level in LEVELS {
                assert_eq!(lower_bound(0, trials, level), Ok(Probability::ZERO));
                assert_eq!(upper_bound(trials, trials, level), Ok(Probability::ONE));
            }
        }
    }

    #[test]
    fn with_only_successes_the_bound_is_a_root_of_the_level() {
        for level in LEVELS {
            let one = lower_bound(1, 1, level).unwrap();
            assert!(close(one.get(), level, 5e-13) && close(one.complement(), 1.0 - level, 5e-13), "{level}");
            let two = lower_bound(2, 2, level).unwrap();
            assert!(close(two.get(), level.sqrt(), 5e-13), "{level}");
            assert!(one.get() < level && two.get() < level.sqrt(), "{level}");
        }
    }

    #[test]
    fn one_success_has_a_closed_form() {
        for trials in COUNTS {
            for level in LEVELS {
                let exact = -((-level).ln_1p() / f64::from(trials)).exp_m1();
                let found = lower_bound(1, trials, level).unwrap().get();
                assert!(close(found, exact, 5e-13), "{trials} trials, level {level}: {found} not {exact}");
            }
        }
    }

    #[test]
    fn the_tail_at_the_bound_is_the_level() {
        for trials in COUNTS {
            for successes in some_successes(trials) {
                for level in LEVELS {
                    let lower = lower_bound(successes, trials, level).unwrap();
                    let tail = upper_tail(successes, trials, lower);
                    // Moving p outward changes the tail at most `successes` times as much.
                    let slack = 1e-12 + 2.0 * outward(level) * f64::from(successes);
                    assert!(close(tail, level, slack), "{successes} of {trials}, level {level}: {tail}");
                    assert!(tail <= level * (1.0 + 1e-12), "{successes} of {trials}, level {level}: {tail}");
                    let upper = upper_bound(successes - 1, trials, level).unwrap();
                    let tail = lower_tail(successes - 1, trials, upper);
                    assert!(tail <= level * (1.0 + 1e-12), "{successes} of {trials}, level {level}: {tail}");
                }
            }
        }
    }

    #[test]
    fn lower_and_upper_bounds_mirror_each_other() {
        for trials in COUNTS {
            for successes in some_successes(trials) {
                for level in LEVELS {
                    let lower = lower_bound(successes, trials, level).unwrap();
                    let upper = upper_bound(trials - successes, trials, level).unwrap();
                    assert_eq!(lower, upper.opposite());
                    let (low, high) = interval(successes, trials, level).unwrap();
                    assert_eq!(Ok(low), lower_bound(successes, trials, level / 2.0));
                    assert_eq!(Ok(high), upper_bound(successes, trials, level / 2.0));
                    let rate = f64::from(successes) / f64::from(trials);
                    assert!(
                        low.get() <= rate && rate <= high.get(),
                        "{successes} of {trials}, level {level}"
                    );
                }
            }
        }
    }

    #[test]
    fn bounds_increase_with_successes_and_the_lower_one_with_the_level() {
        for trials in [1, 2, 10, 1_000] {
            for level in LEVELS {
                for successes in 0..trials {
                    let here = lower_bound(successes, trials, level).unwrap();
                    let above = lower_bound(successes + 1, trials, level).unwrap();
                    assert!(here.get() <= above.get() && here.complement() >= above.complement());
                    assert_ne!(here, above, "{successes} of {trials}, level {level}");
                    let here = upper_bound(successes, trials, level).unwrap();
                    let above = upper_bound(successes + 1, trials, level).unwrap();
                    assert!(here.get() <= above.get() && here.complement() >= above.complement());
                    assert_ne!(here, above, "{successes} of {trials}, level {level}");
                }
            }
            for pair in LEVELS.windows(2) {
                for successes in 1..trials {
                    let strict = lower_bound(successes, trials, pair[0]).unwrap();
                    let loose = lower_bound(successes, trials, pair[1]).unwrap();
                    assert!(strict.get() <= loose.get() && strict.complement() >= loose.complement());
                    assert_ne!(strict, loose, "{successes} of {trials}, {pair:?}");
                    let strict = upper_bound(successes, trials, pair[0]).unwrap();
                    let loose = upper_bound(successes, trials, pair[1]).unwrap();
                    assert!(strict.get() >= loose.get() && strict.complement() <= loose.complement());
                    assert_ne!(strict, loose, "{successes} of {trials}, {pair:?}");
                }
            }
        }
    }

    #[test]
    fn the_bound_fails_no_more_often_than_its_level() {
        let trials = 40;
        for level in [0.001, 0.05, 0.4] {
            let bounds: Vec<f64> =
                (0..=trials).map(|successes| lower_bound(successes, trials, level).unwrap().get()).collect();
            for step in 1..100 {
                let p = f64::from(step) / 100.0;
                let points = point_probabilities(trials, p);
                let failure: f64 =
                    points.iter().zip(&bounds).filter(|&(_, &bound)| bound > p).map(|(point, _)| point).sum();
                assert!(failure <= level * (1.0 + 1e-12), "p = {p}, level {level}: fails with {failure}");
            }
        }
    }

    #[test]
    fn tails_equal_the_sums_of_point_probabilities() {
        for trials in [1, 2, 3, 10, 40] {
            for p in [1e-3, 0.1, 0.5, 0.75, 0.999] {
                let points = point_probabilities(trials, p);
                let p = Probability::new(p).unwrap();
                for successes in 0..=trials {
                    let (below, above) = points.split_at(successes as usize);
                    let upper: f64 = above.iter().sum();
                    let found = upper_tail(successes, trials, p);
                    assert!(
                        close(found, upper, 1e-12),
                        "{successes} of {trials}, {p:?}: {found} not {upper}"
                    );
                    if successes > 0 {
                        let lower: f64 = below.iter().sum();
                        let found = lower_tail(successes - 1, trials, p);
                        assert!(
                            close(found, lower, 1e-12),
                            "{successes} of {trials}, {p:?}: {found} not {lower}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn tails_of_sure_and_impossible_events_are_exact() {
        let half = Probability::new(0.5).unwrap();
        assert_eq!(upper_tail(0, 10, half), 1.0);
        assert_eq!(upper_tail(11, 10, half), 0.0);
        assert_eq!(lower_tail(10, 10, half), 1.0);
        assert_eq!(lower_tail(11, 10, half), 1.0);
        assert_eq!(upper_tail(0, 0, half), 1.0);
        assert_eq!(lower_tail(0, 0, half), 1.0);
        for successes in 1..=10 {
            assert_eq!(upper_tail(successes, 10, Probability::ZERO), 0.0);
            assert_eq!(upper_tail(successes, 10, Probability::ONE), 1.0);
            assert_eq!(lower_tail(successes - 1, 10, Probability::ZERO), 1.0);
            assert_eq!(lower_tail(successes - 1, 10, Probability::ONE), 0.0);
        }
    }

    #[test]
    fn absurdly_small_levels_give_safe_bounds() {
        for level in [f64::MIN_POSITIVE, 5e-324] {
            for (successes, trials) in [(1, 1), (1, 2), (1, u32::MAX), (2, 3), (500, 1_000)] {
                let lower = lower_bound(successes, trials, level).unwrap();
                assert!(lower.get() >= 0.0 && lower.get() < 0.2, "{successes} of {trials}: {lower:?}");
                let upper = upper_bound(trials - successes, trials, level).unwrap();
                assert!(upper.get() <= 1.0 && upper.get() > 0.8, "{successes} of {trials}: {upper:?}");
            }
        }
    }

    #[test]
    fn the_largest_counts_are_bounded_too() {
        for successes in [1, 1_000, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
            for level in [1e-12, 0.01] {
                let (low, high) = interval(successes, u32::MAX, level).unwrap();
                let rate = f64::from(successes) / f64::from(u32::MAX);
                assert!(low.get() < rate && rate <= high.get(), "{successes}, level {level}");
            }
        }
    }
}
