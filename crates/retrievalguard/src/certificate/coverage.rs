//! Are certificates wrong no more often than they may be? Thousands of repetitions, judged by an exact binomial test.
//!
//! The cases are tight: scores that rise with `⟨w, x⟩`, for which the whole-distribution bound is the truth, so that
//! a bound that is too bold by a constant fails. The same harness must reject five faults that exist only here.
//! `RETRIEVALGUARD_LONG_TESTS=1` runs ten times as many repetitions.

use super::adaptive::share_of_look;
use super::betting::Rungs;
use super::domain::ScoreRange;
use super::empirical_distribution::EmpiricalDistribution;
use super::pilot_choice::ScoreTables;
use super::thresholds::{StepBound, count_above};
use super::*;
use crate::certificate::{
    AdaptiveOptions, AdaptiveTest, Form, GrowingOptions, GrowingTest, HalfSpaceOptions, Rule, Similarity,
};
use crate::gallery::{Metric, Positives};
use crate::normal::{self, Probability};
use crate::{Excess, NormBound, TargetRadius, binomial};

/// SplitMix64 (Steele, Lea and Flood 2014): test data only.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^= word >> 31;
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Repetitions of a case and how many of them were wrong.
pub(super) struct Tally {
    pub(super) wrong: u32,
    repetitions: u32,
    alpha: f64,
}

impl Tally {
    pub(super) fn of(alpha: f64, repetitions: u32, mut wrong: impl FnMut(&mut Random) -> bool) -> Self {
        let long = std::env::var_os("RETRIEVALGUARD_LONG_TESTS").is_some();
        let repetitions = if long { 10 * repetitions } else { repetitions };
        let mut random = Random(0x5EED);
        let wrong = (0..repetitions).map(|_| u32::from(wrong(&mut random))).sum();
        Self { wrong, repetitions, alpha }
    }

    pub(super) fn rate(&self) -> f64 {
        f64::from(self.wrong) / f64::from(self.repetitions)
    }

    /// Probability of at least so many failures if each had probability `alpha`.
    fn p_value(&self) -> f64 {
        binomial::upper_tail(self.wrong, self.repetitions, Probability::new(self.alpha).unwrap())
    }

    pub(super) fn accept(&self, case: &str) {
        assert!(
            self.p_value() > 1e-4,
            "{case}: {} of {} at alpha {}",
            self.wrong,
            self.repetitions,
            self.alpha
        );
    }

    pub(super) fn reject(&self, case: &str) {
        assert!(self.p_value() < 1e-9, "{case} went unnoticed: rate {} at alpha {}", self.rate(), self.alpha);
    }
}

/// Scores of the two-cell encoder.
const BALL: ScoreRange = ScoreRange { lower: -1.0, upper: 1.0 };

/// Deliberate mistakes in the threshold form.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The observed frequency instead of its Clopper–Pearson bound.
    ObservedFrequency,
    /// Every threshold at the full level.
    NoShare,
}

/// Radius of the threshold form from scores, `None` if nothing is certified.
fn threshold_radius(
    scores: &[f32],
    thresholds: &[f32],
    offset: f64,
    alpha: f64,
    fault: Fault,
) -> Option<f64> {
    let trials = u32::try_from(scores.len()).unwrap();
    let mut counts = vec![0; thresholds.len()];
    count_above(scores, thresholds, &mut counts);
    let mut tables = ScoreTables::new(trials, alpha);
    let bounds: Vec<f64> = counts
        .iter()
        .map(|&count| match fault {
            Fault::None => tables.score(thresholds.len(), count),
            Fault::NoShare => tables.score(1, count),
            Fault::ObservedFrequency => {
                normal::quantile(Probability::new(f64::from(count) / f64::from(trials)).unwrap())
            }
        })
        .collect();
    StepBound::new(thresholds, bounds.into_iter(), BALL, Sigma::new(1.0).unwrap()).radius(offset)
}

/// `n` scores that are 1 with probability `p` and −1 otherwise.
fn coin_scores(random: &mut Random, p: f64, n: usize) -> Vec<f32> {
    (0..n).map(|_| if random.uniform() < p { 1.0 } else { -1.0 }).collect()
}

pub(super) const MARGIN: f64 = 0.7;

/// The two-cell encoder in line with its items, σ = 1: the true radius is the margin.
fn two_cell(fault: Fault) -> Tally {
    let p = normal::distribution(MARGIN);
    Tally::of(0.1, 4_000, |random| {
        let thresholds = EmpiricalDistribution::new(coin_scores(random, p, 60), BALL, 2).thresholds(400);
        let scores = coin_scores(random, p, 400);
        threshold_radius(&scores, &thresholds, 0.0, 0.1, fault).is_some_and(|radius| radius > MARGIN)
    })
}

/// A staircase of three steps whose true radius is 5 σ: far out, chance errors of single steps are magnified.
fn staircase(fault: Fault) -> Tally {
    let (alpha, radius) = (0.6, 5.0);
    let above: Vec<f64> = (1..=3).map(|step| 0.4_f64.powi(step)).collect();
    let left: Vec<f64> = above
        .iter()
        .map(|&p| normal::distribution(normal::quantile(Probability::new(p).unwrap()) - radius))
        .collect();
    // Widths for which every step contributes the same after the shift.
    let total: f64 = left.iter().map(|left| 1.0 / left).sum();
    let mut place = -1.0;
    let thresholds: Vec<f32> = left
        .iter()
        .map(|left| {
            place += 1.999 / left / total;
            place as f32
        })
        .collect();
    let mut previous = -1.0;
    let mut offset = -1.0;
    for (&threshold, left) in thresholds.iter().zip(&left) {
        offset += (f64::from(threshold) - previous) * left;
        previous = f64::from(threshold);
    }
    Tally::of(alpha, 20_000, |random| {
        let scores: Vec<f32> = (0..10)
            .map(|_| {
                let draw = random.uniform();
                let steps = above.iter().filter(|&&p| draw < p).count();
                if steps == 0 { -1.0 } else { thresholds[steps - 1] + 1e-4 }
            })
            .collect();
        threshold_radius(&scores, &thresholds, offset, alpha, fault).is_some_and(|found| found > radius)
    })
}

#[test]
fn the_threshold_form_is_wrong_no_more_often_than_alpha() {
    let tally = two_cell(Fault::None);
    tally.accept("two cells");
    // Tight: a level twice too large would be noticed.
    assert!(tally.rate() > 0.05, "the case lost its teeth: {}", tally.rate());
    staircase(Fault::None).accept("staircase");
}

#[test]
fn an_observed_frequency_in_place_of_its_bound_is_noticed() {
    two_cell(Fault::ObservedFrequency).reject("observed frequency");
}

#[test]
fn thresholds_without_their_share_of_alpha_are_noticed() {
    staircase(Fault::NoShare).reject("thresholds at the full level");
}

/// Two cells at margin zero: whichever label is claimed, its true radius is zero and any certificate is wrong.
fn undecided(choose_on_pilot: bool) -> Tally {
    Tally::of(0.1, 4_000, |random| {
        let pilot = coin_scores(random, 0.5, 101);
        let scores = coin_scores(random, 0.5, 401);
        let chooser = if choose_on_pilot { &pilot } else { &scores };
        let sign = chooser.iter().sum::<f32>().signum();
        let towards = |values: &[f32]| values.iter().map(|value| sign * value).collect::<Vec<f32>>();
        let thresholds = EmpiricalDistribution::new(towards(chooser), BALL, 2).thresholds(401);
        threshold_radius(&towards(&scores), &thresholds, 0.0, 0.1, Fault::None)
            .is_some_and(|radius| radius > 0.0)
    })
}

#[test]
fn choosing_on_the_certifying_sample_is_noticed_and_choosing_on_the_pilot_is_not() {
    undecided(true).accept("label chosen on the pilot");
    undecided(false).reject("label chosen on the certifying sample");
}

/// Samples of an encoder with two outputs.
pub(super) fn cells(random: &mut Random, p: f64, n: usize, plus: [f32; 2], minus: [f32; 2]) -> Samples {
    let values = (0..n).flat_map(|_| if random.uniform() < p { plus } else { minus }).collect();
    Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
}

/// Unit vectors around `centre`, each number moved by Gaussian noise of this spread and then given its `shape`.
pub(super) fn unit_vectors(
    random: &mut Random,
    centre: &[f32],
    spread: f64,
    rows: usize,
    shape: fn(f64) -> f64,
) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows * centre.len());
    for _ in 0..rows {
        let row: Vec<f64> = centre
            .iter()
            .map(|&value| {
                let level = random.uniform().clamp(1e-12, 1.0 - 1e-12);
                let score = normal::quantile(Probability::from_parts(level, 1.0 - level));
                shape(f64::from(value) + spread * score)
            })
            .collect();
        let norm = row.iter().map(|value| value * value).sum::<f64>().sqrt();
        values.extend(row.iter().map(|value| (value / norm) as f32));
    }
    values
}

pub(super) fn gallery(items: &[(&str, [f32; 2])]) -> Gallery {
    let vectors = items.iter().flat_map(|(_, vector)| *vector).collect();
    let names = (0..items.len()).map(|row| row.to_string()).collect();
    let labels: Vec<&str> = items.iter().map(|(label, _)| *label).collect();
    Gallery::new(vectors, 2, names, &labels, Metric::Euclidean).unwrap()
}

pub(super) const PLUS: [f32; 2] = [1.0, 0.0];
pub(super) const MINUS: [f32; 2] = [-1.0, 0.0];
pub(super) const ITEMS: [(&str, [f32; 2]); 2] = [("right", PLUS), ("wrong", MINUS)];

/// Runs a certificate on the in-line two-cell encoder (σ = 1) and counts radii above the margin.
fn public(
    alpha: f64,
    repetitions: u32,
    items: &[(&str, [f32; 2])],
    radius: impl Fn(&Certifier<'_>, &SampledQuery, &Relevance) -> f64,
) -> Tally {
    let gallery = gallery(items);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(alpha).unwrap())
        .gallery_samples(SampleCount::new(1_000_000).unwrap());
    let relevance = Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), vec![]);
    let p = normal::distribution(MARGIN);
    Tally::of(alpha, repetitions, |random| {
        let query = SampledQuery {
            pilot: cells(random, p, 60, PLUS, MINUS),
            certifying: cells(random, p, 400, PLUS, MINUS),
        };
        radius(&certifier, &query, &relevance) > MARGIN
    })
}

pub(super) fn finite(verdict: Verdict) -> f64 {
    verdict.radius().map_or(0.0, Radius::get)
}

#[test]
fn every_certificate_is_wrong_no_more_often_than_alpha() {
    for name in CertificateName::SMOOTHED {
        let tally = public(0.2, 2_000, &ITEMS, |certifier, query, relevance| {
            finite(certifier.certify(name, query, relevance).unwrap().verdict)
        });
        tally.accept(name.as_str());
    }
}

#[test]
fn both_forms_and_both_similarities_hold_their_level() {
    for form in [Form::Thresholds, Form::Betting, Form::ByPilot] {
        let options = HalfSpaceOptions { top_k: 1, form };
        let tally = public(0.2, 2_000, &ITEMS, |certifier, query, relevance| {
            finite(certifier.half_space(query, relevance, &options).unwrap().verdicts[0])
        });
        tally.accept(&format!("{form:?}"));
        for (row, side) in [(0, Similarity::Above(0.0)), (1, Similarity::Below(0.0))] {
            let tally = public(0.2, 1_000, &ITEMS, |certifier, query, _| {
                finite(certifier.similarity(query, row, side, form).unwrap().verdict)
            });
            tally.accept(&format!("{side:?} with {form:?}"));
        }
    }
}

#[test]
fn many_equal_negatives_and_recall_at_two_hold_their_level() {
    // Copies of one negative: the smallest of their radii must hold without a union over them.
    let mut items = vec![ITEMS[0]];
    items.extend([ITEMS[1]; 70]);
    for top_k in [1, 2] {
        let options = HalfSpaceOptions { top_k, form: Form::ByPilot };
        let tally = public(0.2, 300, &items, |certifier, query, relevance| {
            finite(certifier.half_space(query, relevance, &options).unwrap().verdicts[top_k - 1])
        });
        tally.accept(&format!("recall@{top_k}"));
    }
}

#[test]
fn the_mean_bound_of_harmless_negatives_holds_its_level() {
    // Enough negatives that most of them get the empirical Bernstein bound instead of bets.
    let mut items = vec![ITEMS[0]];
    items.extend([ITEMS[1]; 40]);
    let tally = public(0.2, 500, &items, |certifier, query, relevance| {
        finite(certifier.certify(CertificateName::HalfSpaceMean, query, relevance).unwrap().verdict)
    });
    tally.accept("half-space-mean against forty");
}

#[test]
fn adaptive_tests_reach_a_false_target_no_more_often_than_alpha() {
    let gallery = gallery(&ITEMS);
    let p = normal::distribution(MARGIN);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.2).unwrap());
    for rule in [Rule::Betting, Rule::Looks] {
        let mut options = AdaptiveOptions::new(
            TargetRadius::new(MARGIN * 1.0001).unwrap(),
            SampleCount::new(2_000).unwrap(),
        );
        options.rule = rule;
        options.first = SampleCount::new(30).unwrap();
        let tally = Tally::of(0.2, 2_000, |random| {
            let pilot = cells(random, p, 60, PLUS, MINUS);
            let mut test = AdaptiveTest::new(&certifier, &pilot, &relevance, &options).unwrap();
            while let Some(range) = test.wants() {
                test.see(&cells(random, p, range.len(), PLUS, MINUS)).unwrap();
            }
            matches!(test.outcome().verdict, Verdict::Certified { .. })
        });
        tally.accept(&format!("{rule:?}"));
        assert!(tally.wrong > 0, "{rule:?} never errs: the case is not tight");
    }
}

#[test]
fn adaptive_tests_reach_a_true_target_with_far_fewer_samples_than_the_cap() {
    let gallery = gallery(&ITEMS);
    let p = normal::distribution(1.5);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.01).unwrap());
    for rule in [Rule::Betting, Rule::Looks] {
        let mut options =
            AdaptiveOptions::new(TargetRadius::new(1.0).unwrap(), SampleCount::new(50_000).unwrap());
        options.rule = rule;
        let mut random = Random(4);
        let pilot = cells(&mut random, p, 200, PLUS, MINUS);
        let mut test = AdaptiveTest::new(&certifier, &pilot, &relevance, &options).unwrap();
        while let Some(range) = test.wants() {
            test.see(&cells(&mut random, p, range.len(), PLUS, MINUS)).unwrap();
        }
        let outcome = test.outcome();
        assert_eq!(outcome.decision, Decision::Reached, "{rule:?}");
        assert!(outcome.samples <= 1_024, "{rule:?} took {}", outcome.samples);
    }
}

/// A query at the in-line two-cell encoder, with continuous scatter so that choices differ between samples.
fn scattered(random: &mut Random, n: usize) -> Samples {
    let values = (0..n)
        .flat_map(|_| {
            let angle = (random.uniform() + random.uniform() - 1.0) as f32 * 1.4;
            [0.95 * angle.cos(), 0.95 * angle.sin()]
        })
        .collect();
    Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
}

/// Both items are equally near to the mean and the pilot names the label, so any certificate is wrong.
///
/// With `again` the certifying sample is its own pilot.
fn at_a_tie(name: CertificateName, again: bool) -> Tally {
    let gallery = gallery(&ITEMS);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.3).unwrap());
    Tally::of(0.3, 1_000, |random| {
        let certifying = cells(random, 0.5, 400, PLUS, MINUS);
        let pilot = if again { certifying.clone() } else { cells(random, 0.5, 400, PLUS, MINUS) };
        let row = certifier.retrieve(&pilot, &[]).unwrap().unwrap().row;
        let relevance = Relevance::new(Positives::Label(gallery.label(row)), vec![]);
        let query = SampledQuery { pilot, certifying };
        certifier.certify(name, &query, &relevance).unwrap().verdict.radius().is_some()
    })
}

#[test]
fn the_pilot_given_again_as_the_sample_is_noticed_and_refused() {
    for name in [CertificateName::HalfSpace, CertificateName::Vote] {
        let (apart, again) = (at_a_tie(name, false), at_a_tie(name, true));
        println!("{name}: wrong {:.3} apart, {:.3} with the pilot given again", apart.rate(), again.rate());
        apart.accept(name.as_str());
        again.reject(name.as_str());
    }
    let gallery = gallery(&ITEMS);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.3).unwrap());
    let (pilot, certifying) = (scattered(&mut Random(1), 200), scattered(&mut Random(2), 400));
    for outputs in [Outputs::Continuous, Outputs::Discrete] {
        assert!(certifier.sampled(pilot.clone(), certifying.clone(), outputs).is_ok());
        let refused = |pilot: Samples| certifier.sampled(pilot, certifying.clone(), outputs).unwrap_err();
        let error = refused(certifying.clone());
        assert_eq!(error, CertificateError::Rows(RowsError::SameRows { rows: 400 }));
        assert!(matches!(refused(certifying.slice(100..300).unwrap()), CertificateError::Rows(_)));
    }
}

#[test]
fn an_adaptive_test_explains_the_radius_it_was_asked_for_and_no_other() {
    let gallery = gallery(&ITEMS);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.01).unwrap());
    let p = normal::distribution(1.5);
    for rule in [Rule::Betting, Rule::Looks] {
        for (target, cap, reached) in [(0.5, 50_000, true), (1.6, 600, false), (50.0, 600, false)] {
            let mut options =
                AdaptiveOptions::new(TargetRadius::new(target).unwrap(), SampleCount::new(cap).unwrap());
            options.rule = rule;
            let mut random = Random(15);
            let pilot = cells(&mut random, p, 200, PLUS, MINUS);
            let test = AdaptiveTest::new(&certifier, &pilot, &relevance, &options).unwrap();
            let draw = |range: std::ops::Range<u32>| Ok(cells(&mut random, p, range.len(), PLUS, MINUS));
            let run = test.run::<CertificateError>(draw, |error| error).unwrap();
            let (decision, explain) = (run.outcome.decision, &run.explain);
            assert_eq!(decision == Decision::Reached, reached, "{rule:?} {target}");
            assert_eq!(explain.number("target radius"), Some(target));
            assert_eq!(explain.number("samples n"), Some(f64::from(run.outcome.samples)));
            assert_eq!(explain.value("decision").unwrap().to_string(), decision.as_str());
            let proved = (decision == Decision::Reached).then_some(target);
            assert_eq!(explain.number("radius"), proved, "{rule:?} {target}: {explain}");
            for step in explain.steps() {
                assert!(statement_in_words(&step.statement).is_some(), "{}", step.statement);
            }
        }
    }
}

#[test]
fn only_certified_radii_are_explained() {
    let gallery = gallery(&ITEMS);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.01).unwrap())
        .gallery_samples(SampleCount::new(1_000_000).unwrap());
    let mut seen = [0; 2];
    for (repetition, margin) in [-1.0, 0.0, 0.05, 2.0].into_iter().enumerate() {
        let p = normal::distribution(margin);
        let mut random = Random(repetition as u64);
        let query = SampledQuery {
            pilot: cells(&mut random, p, 200, PLUS, MINUS),
            certifying: cells(&mut random, p, 2_000, PLUS, MINUS),
        };
        for name in CertificateName::SMOOTHED {
            let outcome = certifier.certify(name, &query, &relevance).unwrap();
            let radius = outcome.verdict.radius().map(Radius::get);
            assert_eq!(outcome.explain.number("radius"), radius, "{name} at {margin}: {}", outcome.explain);
            seen[usize::from(radius.is_some())] += 1;
        }
    }
    assert!(seen[0] > 6 && seen[1] > 6, "{seen:?}");
}

#[test]
fn a_vote_says_by_which_rule_it_was_certified() {
    // Against one strong rival the majority decides; against many weak ones the runner-up.
    let mut items = vec![ITEMS[0]];
    items.extend([("b", [-1.0, 0.0]), ("c", [0.0, 1.0]), ("d", [0.0, -1.0])]);
    let gallery = gallery(&items);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.01).unwrap());
    let mut random = Random(16);
    let mut draw = |count: usize, even: bool| {
        let values = (0..count)
            .flat_map(|_| {
                let rival = if even { 1 + (random.uniform() * 3.0) as usize } else { 1 };
                if random.uniform() < 0.6 { PLUS } else { items[rival].1 }
            })
            .collect();
        Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
    };
    for (even, rule) in [(false, "majority"), (true, "runner-up")] {
        let query = SampledQuery { pilot: draw(300, even), certifying: draw(3_000, even) };
        let outcome = certifier.certify(CertificateName::Vote, &query, &relevance).unwrap();
        assert_eq!(outcome.explain.value("rule").unwrap().to_string(), rule);
        let last = outcome.explain.steps().last().unwrap();
        assert_eq!((&*last.quantity, &*last.statement), ("radius", format!("theory 3, {rule}").as_str()));
        // A bound that the rule does not use has no level of its own, so it is not shown.
        assert_eq!(outcome.explain.value("upper bound of the rival").is_some(), even);
    }
}

#[test]
fn the_papers_certificates_are_their_formulas() {
    let gallery = gallery(&[("right", [0.9, 0.1]), ("right", [0.3, 0.9]), ("wrong", [-0.8, 0.3])]);
    let sigma = Sigma::new(0.5).unwrap();
    let certifier = Certifier::new(&gallery, sigma, Alpha::new(0.02).unwrap())
        .gallery_samples(SampleCount::new(50_000).unwrap());
    let relevance = Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), vec![]);
    let query =
        SampledQuery { pilot: scattered(&mut Random(1), 100), certifying: scattered(&mut Random(2), 20_000) };
    let mean = query.certifying.mean();
    let distance = |row| squared_distance(&mean, gallery.vector(row)).sqrt();
    let margin = distance(2) - distance(0).min(distance(1));
    let matrix = |n: f64, level: f64| (8.0 * (3.0 / level).ln() / (3.0 * n)).sqrt();
    let free = |n: f64, level: f64| (1.0 + (2.0 * (1.0 / level).ln()).sqrt()) / n.sqrt();
    let small = |n, level| f64::min(matrix(n, level), free(n, level));
    let printed = margin - 4.0 * matrix(20_000.0, 0.02 / 4.0);
    // Two positives: the level is shared over them, the query and the nearest negative.
    let repaired = margin - 2.0 * small(20_000.0, 0.02 / 4.0) - 2.0 * small(50_000.0, 0.02 / 4.0);
    let frozen = margin - 2.0 * small(20_000.0, 0.02);
    let exact = |d: f64| 2.0 * 0.5 * normal::quantile(Probability::new(0.5 + d / 8.0).unwrap());
    let linear = |d: f64| 0.5 * std::f64::consts::PI.sqrt() / (2.0 * 2_f64.sqrt()) * d;
    for (name, lower, radius) in [
        (CertificateName::Paper, printed, exact(printed)),
        (CertificateName::PaperLinear, printed, linear(printed)),
        (CertificateName::PaperRepaired, repaired, exact(repaired)),
        (CertificateName::PaperFrozen, frozen, exact(frozen)),
    ] {
        let outcome = certifier.certify(name, &query, &relevance).unwrap();
        let found = outcome.explain.number("lower margin").unwrap();
        assert!((found - lower).abs() < 1e-6, "{name}: {found}, not {lower}");
        let found = finite(outcome.verdict);
        assert!((found - radius).abs() < 1e-6 && found <= radius, "{name}: {found}, not {radius}");
    }
}

#[test]
fn recall_at_k_is_tested_at_a_kth_of_alpha() {
    // With two equal negatives, R_2 is the radius of one of them at half the level.
    let gallery = gallery(&[("right", PLUS), ("wrong", MINUS), ("other", MINUS)]);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let alpha = Alpha::new(0.2).unwrap();
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), alpha);
    let mut random = Random(3);
    let (pilot, certifying) =
        (cells(&mut random, 0.8, 100, PLUS, MINUS), cells(&mut random, 0.8, 500, PLUS, MINUS));
    for form in [Form::Thresholds, Form::Betting] {
        let samples = SampleCount::new(500).unwrap();
        let plan = |top_k| {
            let options = HalfSpaceOptions { top_k, form };
            certifier.plan_half_space(&pilot, &relevance, samples, &options).unwrap()
        };
        let both = plan(2).certify(&certifying).unwrap().verdicts;
        let half = plan(1).certify_at(&certifying, Alpha::new(0.1).unwrap()).unwrap().verdicts[0];
        let whole = plan(1).certify_at(&certifying, alpha).unwrap().verdicts[0];
        assert_eq!(both, [whole, half], "{form:?}");
        assert!(finite(half) < finite(whole), "{form:?}: the level must be felt");
    }
}

#[test]
fn harmless_negatives_share_alpha_over_their_thresholds() {
    // Enough copies of one negative that some are harmless; only those are kept.
    let mut items = vec![ITEMS[0]];
    items.extend([ITEMS[1]; 60]);
    let gallery = gallery(&items);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.1).unwrap());
    let (pilot, certifying) = (scattered(&mut Random(5), 200), scattered(&mut Random(6), 1_000));
    let options = HalfSpaceOptions::default();
    let mut plan =
        certifier.plan_half_space(&pilot, &relevance, SampleCount::new(1_000).unwrap(), &options).unwrap();
    plan.dangerous.clear();
    let harmless = plan.harmless[0];
    let found = finite(plan.certify(&certifying).unwrap().verdicts[0]);

    let separation::Separation::Open(half_space) = plan.separate(&harmless) else {
        panic!("it must be open")
    };
    let thresholds = harmless.thresholds(half_space.scores);
    let scores = projection::scores(&certifying, plan.domain.range, &[1.0, 0.0]);
    let mut counts = vec![0; thresholds.len()];
    count_above(&scores, &thresholds, &mut counts);
    let radius = |level: f64| {
        let mut table = thresholds::ScoreTable::new(1_000, level);
        let bounds: Vec<f64> = counts.iter().map(|&count| table.score(count)).collect();
        let bound =
            StepBound::new(&thresholds, bounds.into_iter(), half_space.scores, Sigma::new(1.0).unwrap());
        bound.radius(0.0).unwrap()
    };
    assert!((found - radius(0.1 / 12.0)).abs() < 1e-6, "{found} {}", radius(0.1 / 12.0));
    assert!(radius(0.1) > found + 1e-3, "the share must be felt");
}

#[test]
fn a_certificate_is_its_pilots_plan_applied_to_fresh_samples() {
    let gallery = gallery(&[
        ("right", [0.9, 0.1]),
        ("right", [0.8, -0.3]),
        ("wrong", [0.2, 0.9]),
        ("other", [0.1, -0.9]),
    ]);
    let relevance = Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(0.5).unwrap(), Alpha::new(0.1).unwrap());
    let query =
        SampledQuery { pilot: scattered(&mut Random(7), 150), certifying: scattered(&mut Random(8), 1_500) };
    let options = HalfSpaceOptions::default();
    let samples = SampleCount::new(1_500).unwrap();
    let planned = |chooser: &Samples| {
        let plan = certifier.plan_half_space(chooser, &relevance, samples, &options).unwrap();
        finite(plan.certify(&query.certifying).unwrap().verdicts[0])
    };
    let found = finite(certifier.half_space(&query, &relevance, &options).unwrap().verdicts[0]);
    assert_eq!(found, planned(&query.pilot));
    assert_ne!(found, planned(&query.certifying), "the case must tell the two apart");
}

#[test]
fn similarity_is_measured_against_the_vector_as_it_is() {
    // ⟨g, v⟩ = 2(2Φ(m) − 1) stays above 0.5 until 2Φ(m − r) − 1 = 0.25.
    let gallery = gallery(&[("long", [2.0, 0.0])]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(1e-4).unwrap());
    let p = normal::distribution(1.5);
    let mut random = Random(9);
    let query = SampledQuery {
        pilot: cells(&mut random, p, 500, PLUS, MINUS),
        certifying: cells(&mut random, p, 50_000, PLUS, MINUS),
    };
    let truth = 1.5 - normal::quantile(Probability::new(0.625).unwrap());
    let found =
        finite(certifier.similarity(&query, 0, Similarity::Above(0.5), Form::ByPilot).unwrap().verdict);
    assert!(found <= truth && found > 0.93 * truth, "{found} {truth}");
}

#[test]
fn an_adaptive_bet_is_won_exactly_when_its_wealth_reaches_one_over_alpha() {
    let gallery = gallery(&ITEMS);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let alpha = Alpha::new(0.2).unwrap();
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), alpha);
    let mut options =
        AdaptiveOptions::new(TargetRadius::new(MARGIN * 0.98).unwrap(), SampleCount::new(60).unwrap());
    options.first = SampleCount::new(60).unwrap();
    let p = normal::distribution(MARGIN);
    let mut random = Random(10);
    let (mut won, mut between) = (0, 0);
    for repetition in 0..400 {
        let pilot = cells(&mut random, p, 60, PLUS, MINUS);
        let samples = cells(&mut random, p, 60, PLUS, MINUS);
        let mut test = AdaptiveTest::new(&certifier, &pilot, &relevance, &options).unwrap();
        test.see(&samples).unwrap();
        let highest = test.replay(&pilot, &samples);
        let reached = test.outcome().decision == Decision::Reached;
        assert_eq!(reached, highest >= -alpha.get().ln(), "repetition {repetition}: log wealth {highest}");
        won += u32::from(reached);
        between += u32::from(!reached && highest >= -(2.0 * alpha.get()).ln());
    }
    assert!(won >= 3 && between >= 3, "{won} won, {between} would be won at twice the level");
}

#[test]
fn betting_certificates_are_taken_at_alpha() {
    let gallery = gallery(&ITEMS);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.05).unwrap());
    let mut random = Random(11);
    let p = normal::distribution(MARGIN);
    let options = HalfSpaceOptions { top_k: 1, form: Form::Betting };
    let mut gained = 0.0;
    for _ in 0..30 {
        let (pilot, certifying) =
            (cells(&mut random, p, 100, PLUS, MINUS), cells(&mut random, p, 300, PLUS, MINUS));
        let plan =
            certifier.plan_half_space(&pilot, &relevance, SampleCount::new(300).unwrap(), &options).unwrap();
        let pilot_choice::Test::Betting { half_space, ladder } = &plan.dangerous[0].test else {
            panic!("betting was asked for")
        };
        let scores = projection::scores(&certifying, plan.domain.range, &half_space.direction);
        let climb = |level: f64| ladder.climb(&scores, &[-level.ln()], f64::INFINITY)[0].unwrap_or(0.0);
        let found = finite(plan.certify(&certifying).unwrap().verdicts[0]);
        assert_eq!(found, climb(0.05));
        gained += climb(0.1) - found;
    }
    assert!(gained > 0.0, "the level must be felt");
}

/// Looks after 10, 20, 40, … and at last `cap` samples.
fn growing(cap: u64, form: Form) -> GrowingOptions {
    let mut options = GrowingOptions::new(SampleCount::new(cap).unwrap());
    options.first = SampleCount::new(10).unwrap();
    options.form = form;
    options
}

/// Counts repetitions in which some look shows a radius above the margin; `shown` gives the largest of all looks.
fn some_look_is_wrong(
    repetitions: u32,
    items: &[(&str, [f32; 2])],
    cap: u64,
    shown: impl Fn(&Certifier<'_>, &SampledQuery, &Relevance) -> f64,
) -> Tally {
    let gallery = gallery(items);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), Alpha::new(0.2).unwrap());
    let p = normal::distribution(MARGIN);
    Tally::of(0.2, repetitions, |random| {
        let query = SampledQuery {
            pilot: cells(random, p, 60, PLUS, MINUS),
            certifying: cells(random, p, cap as usize, PLUS, MINUS),
        };
        shown(&certifier, &query, &relevance) > MARGIN
    })
}

/// The verdict after each look of a growing test.
fn grow(
    certifier: &Certifier<'_>,
    query: &SampledQuery,
    relevance: &Relevance,
    options: &GrowingOptions,
) -> Vec<Verdict> {
    let mut test = GrowingTest::new(certifier, &query.pilot, relevance, options).unwrap();
    let mut verdicts = Vec::new();
    while let Some(range) = test.wants() {
        test.see(&query.certifying.slice(range).unwrap()).unwrap();
        verdicts.push(test.outcome().verdict);
    }
    verdicts
}

fn largest(verdicts: Vec<Verdict>) -> f64 {
    verdicts.into_iter().map(finite).fold(0.0, f64::max)
}

#[test]
fn no_look_at_a_growing_radius_is_wrong_more_often_than_alpha() {
    for form in [Form::Betting, Form::ByPilot, Form::Thresholds] {
        let options = growing(2_000, form);
        let tally = some_look_is_wrong(2_000, &ITEMS, 2_000, |certifier, query, relevance| {
            largest(grow(certifier, query, relevance, &options))
        });
        tally.accept(&format!("{form:?}"));
        assert!(tally.wrong > 0, "{form:?} never errs: the case is not tight");
    }
}

#[test]
fn no_look_at_a_growing_radius_against_many_negatives_is_wrong_more_often_than_alpha() {
    // Most of the copies are counted as harmless, the others are bet on.
    let mut items = vec![ITEMS[0]];
    items.extend([ITEMS[1]; 70]);
    let options = growing(400, Form::Betting);
    let tally = some_look_is_wrong(200, &items, 400, |certifier, query, relevance| {
        largest(grow(certifier, query, relevance, &options))
    });
    tally.accept("seventy negatives");
}

#[test]
fn looks_at_counts_without_their_share_of_alpha_are_noticed() {
    let options = growing(2_000, Form::Thresholds);
    let tally = some_look_is_wrong(2_000, &ITEMS, 2_000, |certifier, query, relevance| {
        let asked = HalfSpaceOptions { top_k: 1, form: options.form };
        let plan = certifier.plan_half_space(&query.pilot, relevance, options.cap, &asked).unwrap();
        let mut seen = 0;
        let mut verdicts = Vec::new();
        while let Some(range) = adaptive::next_look(seen, options.first, options.cap) {
            seen = range.end;
            let so_far = query.certifying.slice(0..seen).unwrap();
            verdicts.push(plan.certify(&so_far).unwrap().verdicts[0]);
        }
        largest(verdicts)
    });
    tally.reject("every look at the full level");
}

#[test]
fn a_look_is_the_plan_at_alpha_for_bets_and_at_its_share_for_counts() {
    let gallery = gallery(&ITEMS);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let alpha = Alpha::new(0.2).unwrap();
    let certifier = Certifier::new(&gallery, Sigma::new(1.0).unwrap(), alpha);
    let mut random = Random(12);
    let p = normal::distribution(1.5);
    for form in [Form::Betting, Form::Thresholds] {
        let options = growing(2_000, form);
        assert_eq!(options.looks(), 9);
        let query = SampledQuery {
            pilot: cells(&mut random, p, 100, PLUS, MINUS),
            certifying: cells(&mut random, p, 2_000, PLUS, MINUS),
        };
        let asked = HalfSpaceOptions { top_k: 1, form };
        let rungs = Rungs::OnTheWay { target: None };
        let plan = certifier.plan_with_rungs(&query.pilot, &relevance, options.cap, &asked, rungs).unwrap();
        let verdicts = grow(&certifier, &query, &relevance, &options);
        let (mut largest, mut felt) = (0.0_f64, 0);
        for (look, verdict) in (1_u32..).zip(&verdicts) {
            let samples = query.certifying.slice(0..2_000.min(10 << (look - 1))).unwrap();
            let level = match form {
                Form::Thresholds => share_of_look(alpha, 10 - look).unwrap(),
                Form::Betting | Form::ByPilot => alpha,
            };
            let at = |level| finite(plan.certify_at(&samples, level).unwrap().verdicts[0]);
            largest = largest.max(at(level));
            assert_eq!(finite(*verdict), largest, "{form:?}, look {look}");
            felt += u32::from(at(Alpha::new(2.0 * level.get()).unwrap()) > at(level));
        }
        assert_eq!(verdicts.len(), 9, "{form:?}");
        assert!(felt > 0, "{form:?}: the level must be felt");
    }
}

#[test]
fn a_growing_test_may_be_sent_to_another_thread() {
    fn sent<T: Send>() {}
    sent::<GrowingTest<'static>>();
}

#[test]
fn every_step_of_a_growing_test_refers_to_a_statement_that_has_words() {
    let mut items = vec![ITEMS[0]];
    items.extend([ITEMS[1]; 60]);
    let gallery = gallery(&items);
    let relevance = Relevance::new(Positives::Item(0), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(0.5).unwrap(), Alpha::new(0.1).unwrap());
    let pilot = scattered(&mut Random(13), 200);
    let mut test = GrowingTest::new(&certifier, &pilot, &relevance, &growing(10, Form::Betting)).unwrap();
    assert!(test.explain().is_none());
    assert_eq!(test.mean(), pilot.mean());
    let samples = scattered(&mut Random(14), 10);
    test.see(&samples).unwrap();
    assert_eq!(test.mean(), samples.mean());
    let explain = test.explain().unwrap();
    assert_eq!(explain.number("alpha"), Some(0.1));
    assert_eq!(explain.number("share of alpha for counts"), Some(0.05));
    for step in explain.steps() {
        assert!(statement_in_words(&step.statement).is_some(), "{}", step.statement);
    }
}
