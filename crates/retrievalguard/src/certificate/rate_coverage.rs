//! Are the tests of `vote` and `pairwise` wrong no more often than they may be while samples come in?
//!
//! Beside tight cases, the same harness must notice four faults that exist only here: bets that know what comes, a rival that
//! is left out, a tie that counts as a win, and looks at a fixed bound that nobody paid for.

use super::coverage::{ITEMS, MARGIN, MINUS, PLUS, Random, Tally, cells, finite, gallery};
use super::*;
use crate::gallery::Positives;
use crate::normal::{self, Probability};
use crate::{Excess, NormBound, TargetRadius, binomial};

const ALPHA: f64 = 0.2;
/// Three labels at equal distances; a copy near one of the wrong ones is still nearer to the right one than to the other.
const CORNERS: [(&str, [f32; 2]); 3] =
    [("right", [0.0, 1.0]), ("one", [0.87, -0.49]), ("other", [-0.87, -0.49])];
const NEAR: [[f32; 2]; 3] = [[0.0, 1.0], [0.8, -0.3], [-0.8, -0.3]];

fn certifier(gallery: &Gallery) -> Certifier<'_> {
    Certifier::new(gallery, Sigma::new(1.0).unwrap(), Alpha::new(ALPHA).unwrap())
}

fn right(gallery: &Gallery) -> Relevance {
    Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), vec![])
}

fn deciding(target: f64) -> RateOptions {
    RateOptions::deciding(TargetRadius::new(target).unwrap(), SampleCount::new(2_000).unwrap())
}

fn growing() -> RateOptions {
    RateOptions::growing(None, SampleCount::new(2_000).unwrap())
}

/// Copies near the corners, each with its probability; the rest is near the first.
fn corners(random: &mut Random, [one, other]: [f64; 2], count: usize) -> Samples {
    let mut draw = || match random.uniform() {
        place if place < one => NEAR[1],
        place if place < one + other => NEAR[2],
        _ => NEAR[0],
    };
    let values = (0..count).flat_map(|_| draw()).collect();
    Samples::new(values, 2, NormBound::UNIT, Excess::Project).unwrap()
}

/// Whether a test shows more than the truth at any look.
fn exceeds(mut test: RateTest<'_>, truth: f64, mut draw: impl FnMut(usize) -> Samples) -> bool {
    while let Some(range) = test.wants() {
        test.see(&draw(range.len())).unwrap();
        if finite(test.outcome().verdict) > truth {
            return true;
        }
    }
    false
}

#[test]
fn pairwise_shows_more_than_the_truth_no_more_often_than_alpha() {
    let p = normal::distribution(MARGIN);
    let two = gallery(&ITEMS);
    let three = gallery(&CORNERS);
    for options in [deciding(MARGIN * 1.0001), growing()] {
        let tally = Tally::of(ALPHA, 1_500, |random| {
            let test = RateTest::pairwise(&certifier(&two), &right(&two), &options).unwrap();
            exceeds(test, MARGIN, |count| cells(random, p, count, PLUS, MINUS))
        });
        tally.accept(&format!("two cells, {options:?}"));
        assert!(tally.rate() > 0.03, "the case lost its teeth: {}", tally.rate());
        // Rivals that are ahead in different copies, each as often as the other: no union, and half of the copies are lost.
        Tally::of(ALPHA, 1_000, |random| {
            let test = RateTest::pairwise(&certifier(&three), &right(&three), &options).unwrap();
            exceeds(test, MARGIN, |count| corners(random, [1.0 - p; 2], count))
        })
        .accept(&format!("two rivals, {options:?}"));
    }
}

#[test]
fn a_rival_that_comes_late_does_not_profit_from_the_rungs_passed_before_it() {
    // Three copies of a hundred are lost: the first rungs are passed before the rival is seen at all.
    let two = gallery(&ITEMS);
    let truth = normal::quantile(Probability::new(0.97).unwrap());
    Tally::of(ALPHA, 1_000, |random| {
        let test = RateTest::pairwise(&certifier(&two), &right(&two), &growing()).unwrap();
        exceeds(test, truth, |count| cells(random, 0.97, count, PLUS, MINUS))
    })
    .accept("a late rival");
}

#[test]
fn votes_show_more_than_the_truth_no_more_often_than_alpha() {
    let two = gallery(&ITEMS);
    let p = normal::distribution(MARGIN);
    for options in [deciding(MARGIN * 1.0001), growing()] {
        let tally = Tally::of(ALPHA, 1_500, |random| {
            let pilot = cells(random, p, 20, PLUS, MINUS);
            let test = RateTest::vote(&certifier(&two), Some(&pilot), &right(&two), &options).unwrap();
            exceeds(test, MARGIN, |count| cells(random, p, count, PLUS, MINUS))
        });
        tally.accept(&format!("majority, {options:?}"));
    }
    // 0.45 of the votes against 0.275 twice: no majority, but a plurality.
    let shares = [0.275; 2];
    let score = |rate| normal::quantile(Probability::new(rate).unwrap());
    let truth = (score(0.45) - score(shares[0])) / 2.0;
    let three = gallery(&CORNERS);
    for options in [deciding(truth * 1.0001), growing()] {
        let mut against_runner_up = 0;
        Tally::of(ALPHA, 1_000, |random| {
            let pilot = corners(random, shares, 40);
            let test = RateTest::vote(&certifier(&three), Some(&pilot), &right(&three), &options).unwrap();
            let rule = test.explain().value("rule").map(ToString::to_string);
            against_runner_up += u32::from(rule.as_deref() == Some("runner-up"));
            exceeds(test, truth, |count| corners(random, shares, count))
        })
        .accept(&format!("runner-up, {options:?}"));
        assert!(against_runner_up > 100, "the rule was chosen {against_runner_up} times");
    }
}

#[test]
fn targets_that_hold_are_decided_by_tens_and_hopeless_ones_are_given_up() {
    let two = gallery(&ITEMS);
    let certifier = Certifier::new(&two, Sigma::new(1.0).unwrap(), Alpha::new(0.01).unwrap());
    let mut random = Random::seeded(7);
    let mut run = |rate: f64| {
        let mut test = RateTest::pairwise(&certifier, &right(&two), &deciding(1.0)).unwrap();
        while let Some(range) = test.wants() {
            test.see(&cells(&mut random, rate, range.len(), PLUS, MINUS)).unwrap();
        }
        (test.outcome().decision, test.outcome().samples)
    };
    let mut median = |rate: f64, decision: Decision| {
        let mut counts: Vec<u32> = (0..200)
            .filter_map(|_| Some(run(rate)).filter(|&(found, _)| found == decision))
            .map(|(_, samples)| samples)
            .collect();
        counts.sort_unstable();
        (counts.len(), counts.get(counts.len() / 2).copied().unwrap_or(0))
    };
    assert_eq!(median(1.0, Decision::Reached), (200, 38));
    let (decided, samples) = median(0.97, Decision::Reached);
    assert!(decided > 195 && samples < 80, "{decided} {samples}");
    let (given_up, samples) = median(0.5, Decision::Hopeless);
    assert!(given_up == 200 && samples <= 16, "{given_up} {samples}");
    let (given_up, samples) = median(0.7, Decision::Hopeless);
    assert!(given_up == 200 && samples <= 80, "{given_up} {samples}");
}

#[test]
fn bets_that_know_what_comes_are_noticed() {
    // The best single bet in hindsight, instead of an average over all that were fixed beforehand.
    let p = normal::distribution(MARGIN);
    Tally::of(ALPHA, 1_000, |random| {
        let (mut wins, mut seen) = (0.0, 0.0);
        (0..2_000).any(|_| {
            seen += 1.0;
            wins += f64::from(u8::from(random.uniform() < p));
            let rate: f64 = wins / seen;
            let lost = if rate < 1.0 { (1.0 - rate) * ((1.0 - rate) / (1.0 - p)).ln() } else { 0.0 };
            rate > p && seen * (rate * (rate / p).ln() + lost) >= -ALPHA.ln()
        })
    })
    .reject("bets in hindsight");
}

#[test]
fn a_rival_that_is_left_out_is_noticed() {
    let three = gallery(&CORNERS);
    let p = normal::distribution(MARGIN);
    let hidden = Relevance::new(right(&three).positives, vec![1]);
    Tally::of(ALPHA, 300, |random| {
        let test = RateTest::pairwise(&certifier(&three), &hidden, &deciding(MARGIN * 1.0001)).unwrap();
        exceeds(test, MARGIN, |count| corners(random, [1.0 - p, 0.01], count))
    })
    .reject("the hardest rival left out");
}

#[test]
fn a_tie_that_counts_as_a_win_is_noticed_and_one_that_counts_as_a_loss_is_sound() {
    let two = gallery(&ITEMS);
    let p = normal::distribution(MARGIN);
    let tally = |tie: [f32; 2]| {
        Tally::of(ALPHA, 500, |random| {
            let options = deciding(MARGIN * 1.0001);
            let test = RateTest::pairwise(&certifier(&two), &right(&two), &options).unwrap();
            exceeds(test, MARGIN, |count| cells(random, p, count, PLUS, tie))
        })
    };
    tally([0.0, 0.5]).accept("ties are losses");
    // As if the comparison were not strict.
    tally([1e-6, 0.5]).reject("ties are wins");
}

#[test]
fn looks_at_a_bound_that_nobody_paid_for_are_noticed() {
    let p = normal::distribution(MARGIN);
    Tally::of(ALPHA, 500, |random| {
        let (mut wins, mut seen) = (0, 0);
        (0..125).any(|_| {
            wins += (0..16).filter(|_| random.uniform() < p).count() as u32;
            seen += 16;
            binomial::lower_bound(wins, seen, ALPHA).unwrap().get() > p
        })
    })
    .reject("Clopper-Pearson at every look");
}
