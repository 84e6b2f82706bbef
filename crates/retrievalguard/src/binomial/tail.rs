//! The upper tail of the binomial distribution and its derivative, to nearly full relative precision.

use crate::normal::Probability;

/// `ln(2π)/2`, computed with mpmath at 50 digits.
const HALF_LOG_TWO_PI: f64 = 0.9189385332046728;

/// `ln n! − ln(√(2πn) (n/e)ⁿ)` for `n = 1..=15`, computed with mpmath at 50 digits; correctly rounded.
const STIRLING_ERRORS: [f64; 15] = [
    0.08106146679532726,
    0.0413406959554093,
    0.02767792568499834,
    0.020790672103765093,
    0.016644691189821193,
    0.013876128823070748,
    0.01189670994589177,
    0.010411265261972096,
    0.009255462182712733,
    0.00833056343336287,
    0.007573675487951841,
    0.00694284010720953,
    0.006408994188004207,
    0.0059513701127588475,
    0.005554733551962801,
];

/// `successes − trials·p`, taken from the smaller of `p` and `1 − p` and with the product's rounding error restored.
pub(super) fn surplus(successes: u32, trials: u32, p: Probability) -> f64 {
    let n = f64::from(trials);
    if p.get() <= p.complement() {
        let product = n * p.get();
        (f64::from(successes) - product) - n.mul_add(p.get(), -product)
    } else {
        let product = n * p.complement();
        (product - f64::from(trials - successes)) + n.mul_add(p.complement(), -product)
    }
}

/// `T(p) = P(Bin(trials, p) ≥ successes)` for fixed `0 < successes < trials`, near and left of its middle.
///
/// ```text
/// ln T = ln(b(successes; trials, p) · successes · (1 − p)) − ln T′,     T′ = d ln T/dθ,   θ = ln(p/(1−p))
/// ```
///
/// with the point probability `b` in Loader's form and `T′` as a continued fraction of positive terms.
pub(super) struct UpperTail {
    counts: (u32, u32),
    pub(super) successes: f64,
    failures: f64,
    pub(super) trials: f64,
    /// `ln` of the point probability without its deviances.
    log_scale: f64,
}

/// `ln T` and its first derivative in `θ` at one `p`.
pub(super) struct TailPoint {
    pub(super) logarithm: f64,
    pub(super) slope: f64,
    /// `successes − (trials + 1) p`: `ln T` has the second derivative `slope·(surplus − slope)`.
    pub(super) surplus: f64,
}

impl UpperTail {
    /// Prepares what does not depend on `p`.
    ///
    /// ```text
    /// log_scale = δ(n) − δ(k) − δ(n−k) + ½ ln(n/(2π k (n−k)))
    /// ```
    pub(super) fn new(successes: u32, trials: u32) -> Self {
        let failures = trials - successes;
        let (k, f, n) = (f64::from(successes), f64::from(failures), f64::from(trials));
        let log_scale = stirling_error(trials) - stirling_error(successes) - stirling_error(failures)
            + 0.5 * libm::log(n / k / f)
            - HALF_LOG_TWO_PI;
        Self { counts: (successes, trials), successes: k, failures: f, trials: n, log_scale }
    }

    /// `ln (trials choose successes)`, from the point probability at `p = successes/trials`.
    pub(super) fn log_binomial_coefficient(&self) -> f64 {
        self.log_scale
            - self.successes * libm::log(self.successes / self.trials)
            - self.failures * libm::log1p(-self.successes / self.trials)
    }

    /// The tail at `p`. Needs `successes − (trials + 1) p > −1`, where all terms of the continued fraction are positive.
    pub(super) fn at(&self, p: Probability) -> TailPoint {
        let excess = surplus(self.counts.0, self.counts.1, p);
        let log_point = self.log_scale
            - deviance(self.successes, self.trials * p.get(), excess)
            - deviance(self.failures, self.trials * p.complement(), -excess);
        let surplus = excess - p.get();
        let slope = self.slope(p, surplus);
        let logarithm = log_point + libm::log(self.successes * p.complement() / slope);
        TailPoint { logarithm, slope, surplus }
    }

    /// Derivative of `ln T` in `θ`.
    ///
    /// ```text
    /// T′ = β₁ + α₂/(β₂ + α₃/(β₃ + …)),    β₁ = a (λ + 1)/(a + 1)
    /// α_{j+1} = (a+j−1)(a+b+j−1) j (b−j) p²/(a+2j−1)²
    /// β_{j+1} = j + j (b−j) p/(a+2j−1) + (a+j)(λ + 1 + j(2−p))/(a+2j+1)
    /// a = successes,  b = trials − successes + 1,  λ = a − (a+b) p
    /// ```
    ///
    /// Didonato and Morris 1992, doi:10.1145/131766.131776, the fraction of their `BFRAC`, summed by Lentz's method.
    /// It ends at `j = b`; as its terms are positive, consecutive approximants enclose the limit.
    fn slope(&self, p: Probability, surplus: f64) -> f64 {
        let (a, b) = (self.successes, self.failures + 1.0);
        let (x, y) = (p.get(), p.complement());
        let mut value = a * (surplus + 1.0) / (a + 1.0);
        let mut numerators = value;
        let mut denominators = 0.0;
        let mut j = 1.0;
        while j < b {
            let over = 1.0 / (a + 2.0 * j - 1.0);
            let share = j * (b - j) * x * over;
            let alpha = (a + j - 1.0) * (a + b + j - 1.0) * over * share * x;
            let beta = j + share + (a + j) * (surplus + 1.0 + j * (1.0 + y)) / (a + 2.0 * j + 1.0);
            denominators = 1.0 / (beta + alpha * denominators);
            numerators = beta + alpha / numerators;
            let factor = numerators * denominators;
            value *= factor;
            if (factor - 1.0).abs() <= f64::EPSILON {
                break;
            }
            j += 1.0;
        }
        value
    }
}

/// Deviance of a count from its mean, with `difference = count − mean` given to full relative precision.
///
/// ```text
/// D = count ln(count/mean) − difference
///   = difference·v + 2 count (v³/3 + v⁵/5 + …),    v = difference/(count + mean)
/// ```
///
/// Loader 2000, "Fast and accurate computation of binomial probabilities", section 3. The series serves counts near
/// their mean, where the two terms of the first form cancel.
fn deviance(count: f64, mean: f64, difference: f64) -> f64 {
    let v = difference / (count + mean);
    if v.abs() > 0.5 {
        return count * libm::log(count / mean) - difference;
    }
    let square = v * v;
    let mut power = 2.0 * count * v;
    let mut sum = difference * v;
    let mut odd = 3.0;
    loop {
        power *= square;
        let next = sum + power / odd;
        // Each term is below a quarter of the one before it: less than thirty change the sum.
        if next == sum || odd > 80.0 {
            return next;
        }
        sum = next;
        odd += 2.0;
    }
}

/// Error `δ` of Stirling's formula.
///
/// ```text
/// δ(n) = ln n! − ln(√(2πn) (n/e)ⁿ) = 1/12n − 1/360n³ + 1/1260n⁵ − 1/1680n⁷ + 1/1188n⁹ − 691/360360n¹¹ + …
/// ```
///
/// Tabulated below 16; from there on the first term left out is below 2e-18. Needs `n ≥ 1`.
/// Coefficients: Abramowitz and Stegun, Handbook of Mathematical Functions, 6.1.41.
fn stirling_error(count: u32) -> f64 {
    if let Some(&error) = (count as usize).checked_sub(1).and_then(|index| STIRLING_ERRORS.get(index)) {
        return error;
    }
    let n = f64::from(count);
    let square = 1.0 / (n * n);
    let series = 1.0 / 1188.0 - square * (691.0 / 360_360.0);
    let series = 1.0 / 1680.0 - square * series;
    let series = 1.0 / 1260.0 - square * series;
    let series = 1.0 / 360.0 - square * series;
    (1.0 / 12.0 - square * series) / n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_stirlings_formula_joins_its_table_smoothly() {
        for count in 2..40 {
            let n = f64::from(count);
            // δ(n−1) − δ(n) = (n − 1/2) ln(n/(n−1)) − 1, because n! = n (n−1)!.
            let step = (n - 0.5) * (1.0 / (n - 1.0)).ln_1p() - 1.0;
            let found = stirling_error(count - 1) - stirling_error(count);
            assert!((found - step).abs() < 1e-15, "n = {n}: {found} not {step}");
        }
    }

    #[test]
    fn both_forms_of_the_deviance_agree_where_they_meet() {
        for mean in [1e-3, 1.0, 37.5, 1e6] {
            for ratio in [0.33, 0.34, 0.9, 1.1, 2.99, 3.01] {
                let count = mean * ratio;
                let direct = count * f64::ln(ratio) - (count - mean);
                let found = deviance(count, mean, count - mean);
                assert!(
                    (found - direct).abs() <= 1e-13 * direct.abs(),
                    "{count} of {mean}: {found} not {direct}"
                );
            }
        }
        assert_eq!(deviance(5.0, 5.0, 0.0), 0.0);
    }

    #[test]
    fn the_slope_is_the_derivative_of_the_logarithm() {
        for (successes, trials, p) in
            [(1, 10, 0.05), (70, 100, 0.6), (500, 1_000, 0.49), (99_990, 100_000, 0.9998)]
        {
            let tail = UpperTail::new(successes, trials);
            let width = 1e-4 / f64::from(trials).sqrt();
            let around = |shift: f64| {
                let odds = p / (1.0 - p) * shift.exp();
                tail.at(Probability::from_parts(odds / (1.0 + odds), 1.0 / (1.0 + odds))).logarithm
            };
            let difference = (around(width) - around(-width)) / (2.0 * width);
            let slope = tail.at(Probability::new(p).unwrap()).slope;
            assert!(
                (difference / slope - 1.0).abs() < 1e-7,
                "{successes} of {trials}: {slope} not {difference}"
            );
        }
    }

    #[test]
    fn the_surplus_keeps_what_the_product_rounds_away() {
        let p = Probability::new(0.1).unwrap();
        // The double nearest 0.1 exceeds it by 5.55e-18, so ten of them exceed 1 by 5.55e-17.
        assert_eq!(surplus(1, 10, p), -5.551115123125783e-17);
        assert_eq!(surplus(9, 10, p.opposite()), 5.551115123125783e-17);
    }
}
