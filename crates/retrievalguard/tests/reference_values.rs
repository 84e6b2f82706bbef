//! The normal and binomial functions against 32-digit values, written by `reference/make_normal_binomial.py`.

use retrievalguard::binomial::{lower_bound, lower_tail, upper_bound, upper_tail};
use retrievalguard::normal::{Probability, distribution, probability, quantile};

const NORMAL: &str = include_str!("reference/normal.tsv");
const BINOMIAL: &str = include_str!("reference/binomial.tsv");

/// What the theory asks for in both tails.
const TOLERANCE: f64 = 1e-12;

fn rows<'a>(text: &'a str, kind: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(move |row| row[0] == kind)
}

fn number(text: &str) -> f64 {
    text.parse().expect("the tables hold numbers")
}

fn assert_close(found: f64, expected: f64, row: &[&str]) {
    let error = if found == expected { 0.0 } else { (found - expected).abs() / expected.abs() };
    assert!(error <= TOLERANCE, "found {found}, wanted {expected} (relative error {error:.1e}): {row:?}");
}

#[test]
fn the_normal_distribution_equals_its_reference_values() {
    let mut compared = 0;
    for row in rows(NORMAL, "distribution") {
        let x = number(row[1]);
        assert_close(distribution(x), number(row[2]), &row);
        assert_close(probability(x).get(), number(row[2]), &row);
        assert_close(probability(x).complement(), number(row[3]), &row);
        compared += 1;
    }
    assert_eq!(compared, 319);
}

#[test]
fn the_normal_quantile_equals_its_reference_values() {
    let mut compared = 0;
    for row in rows(NORMAL, "below") {
        assert_close(quantile(Probability::new(number(row[1])).unwrap()), number(row[2]), &row);
        compared += 1;
    }
    for row in rows(NORMAL, "above") {
        let p = Probability::from_complement(number(row[1])).unwrap();
        assert_eq!(p.get(), number(row[3]), "{row:?}");
        assert_close(quantile(p), number(row[2]), &row);
        compared += 1;
    }
    assert_eq!(compared, 94);
}

#[test]
fn clopper_pearson_bounds_equal_their_reference_values_and_stay_on_the_safe_side() {
    let mut compared = 0;
    for row in rows(BINOMIAL, "bounds") {
        let (trials, successes) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        let level = number(row[3]);
        let lower = lower_bound(successes, trials, level).unwrap();
        assert_close(lower.get(), number(row[4]), &row);
        assert_close(lower.complement(), number(row[5]), &row);
        assert!(lower.get() <= number(row[4]) && lower.complement() >= number(row[5]), "{row:?}");
        let upper = upper_bound(successes, trials, level).unwrap();
        assert_close(upper.get(), number(row[6]), &row);
        assert_close(upper.complement(), number(row[7]), &row);
        assert!(upper.get() >= number(row[6]) && upper.complement() <= number(row[7]), "{row:?}");
        compared += 1;
    }
    assert_eq!(compared, 404);
}

#[test]
fn binomial_tails_equal_their_reference_values() {
    let mut compared = 0;
    for row in rows(BINOMIAL, "tails") {
        let (trials, successes): (u32, u32) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        let p = Probability::new(number(row[3])).unwrap();
        assert_close(upper_tail(successes, trials, p), number(row[4]), &row);
        if let Some(fewer) = successes.checked_sub(1) {
            assert_close(lower_tail(fewer, trials, p), number(row[5]), &row);
        }
        compared += 1;
    }
    assert_eq!(compared, 237);
}
