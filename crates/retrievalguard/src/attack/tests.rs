use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::binomial;
use crate::gallery::{Metric, Positives};
use crate::noise::Stage;
use crate::normal::Probability;
use crate::{Alpha, NormBound, SampleCount};

const SIGMA: f64 = 0.25;
const PIXELS: usize = 24;

/// `h(x) = (cos θ, sin θ)` with `θ = a⟨u, x⟩` and a unit vector `u`.
///
/// With `μ = a⟨u, x⟩`, the mean over noise is `exp(−a²σ²/2) (cos μ, sin μ)`: smoothing shortens it and keeps its angle.
struct Circle {
    turn: f64,
    calls: AtomicU64,
}

impl Circle {
    fn new() -> Self {
        Self { turn: 2.0, calls: AtomicU64::new(0) }
    }

    /// Component of the unit vector at a pixel; all pixels matter, half of them against the other half.
    fn weight(pixel: usize) -> f64 {
        let sign = if pixel.is_multiple_of(2) { 1.0 } else { -1.0 };
        sign / (PIXELS as f64).sqrt()
    }

    fn angle(&self, picture: &[f32]) -> f64 {
        let along: f64 =
            picture.iter().enumerate().map(|(pixel, &value)| f64::from(value) * Self::weight(pixel)).sum();
        self.turn * along
    }

    /// A picture with this angle.
    fn picture(&self, angle: f64) -> Vec<f32> {
        (0..PIXELS).map(|pixel| (0.5 + angle / self.turn * Self::weight(pixel)) as f32).collect()
    }

    /// How far a picture is from the angle half way between the right item at 0 and the wrong one at 1.
    fn true_radius(&self, picture: &[f32]) -> f64 {
        (0.5 - self.angle(picture)) / self.turn
    }
}

impl Embedder for Circle {
    fn input_shape(&self) -> &[usize] {
        &[PIXELS]
    }
    fn dimension(&self) -> usize {
        2
    }
    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }
    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        self.calls.fetch_add((embeddings.len() / 2) as u64, Ordering::Relaxed);
        for (picture, row) in pictures.chunks_exact(PIXELS).zip(embeddings.chunks_exact_mut(2)) {
            let angle = self.angle(picture);
            row.copy_from_slice(&[angle.cos() as f32, angle.sin() as f32]);
        }
        Ok(())
    }
}

impl InputGradients for Circle {
    fn mode(&self) -> Mode {
        Mode::WhiteBox
    }

    fn gradient(
        &self,
        noisy: &NoisyCopies<'_>,
        towards: &mut dyn FnMut(&[f32]) -> Vec<f32>,
    ) -> Result<Vec<f64>, EmbedderFailure> {
        let count = noisy.copies.len() / PIXELS;
        let angles: Vec<f64> = noisy.copies.chunks_exact(PIXELS).map(|copy| self.angle(copy)).collect();
        let rows: Vec<f32> =
            angles.iter().flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect();
        let direction = towards(&rows);
        let along: f64 = angles
            .iter()
            .map(|angle| f64::from(direction[1]) * angle.cos() - f64::from(direction[0]) * angle.sin())
            .sum();
        Ok((0..PIXELS).map(|pixel| self.turn * along / count as f64 * Self::weight(pixel)).collect())
    }
}

fn gallery() -> Gallery {
    let angles = [0.0_f32, 1.0, 2.9];
    let vectors = angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
    let names = ["at 0", "at 1", "far"].map(String::from).to_vec();
    Gallery::new(vectors, 2, names, &["right", "wrong", "other"], Metric::Euclidean).unwrap()
}

fn right(gallery: &Gallery) -> Relevance {
    Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), vec![])
}

fn judging(alpha: f64, samples: u64, refinements: u32) -> Judging {
    let count = |value| SampleCount::new(value).unwrap();
    let (pilot, samples, seed) = (count(200), count(samples), Seed::new(77));
    Judging { alpha: Alpha::new(alpha).unwrap(), pilot, samples, refinements, seed }
}

const EFFORT: Effort = Effort { steps: 20, restarts: 2, noise: 32, pixels: Pixels::Free };

/// Attacks pictures whose certificates claim `claim` times their true radius.
fn attack(mode: Mode, claim: f64, queries: u32, effort: Effort) -> Vec<(f64, Attacked)> {
    attack_retriever(Retriever::Mean, mode, claim, queries, effort)
}

fn attack_retriever(
    retriever: Retriever,
    mode: Mode,
    claim: f64,
    queries: u32,
    effort: Effort,
) -> Vec<(f64, Attacked)> {
    let (circle, gallery) = (Circle::new(), gallery());
    let black_box = BlackBox::new(&circle);
    let gradients: &dyn InputGradients = match mode {
        Mode::WhiteBox => &circle,
        Mode::BlackBox => &black_box,
    };
    let relevance = right(&gallery);
    let judging = judging(1e-3, 8_000, 6);
    let sigma = Sigma::new(SIGMA).unwrap();
    let attacker = Attacker::new((&circle, gradients), &gallery, sigma, Seed::new(5), effort, judging);
    let attacker = attacker.retriever(retriever);
    (0..queries)
        .map(|query| {
            let pixels = circle.picture(-0.1 - 0.02 * f64::from(query));
            let truth = circle.true_radius(&pixels);
            let identity = format!("query {query}");
            let picture = Picture { identity: &identity, pixels: &pixels };
            (truth, attacker.query(&picture, &relevance, claim * truth).unwrap())
        })
        .collect()
}

#[test]
fn votes_and_pairs_are_broken_just_outside_their_true_radius_and_never_inside() {
    // The noise turns the angle to both sides alike, so all three retrievers change their answer half way.
    for retriever in [Retriever::Vote, Retriever::Pairwise] {
        for (truth, attacked) in attack_retriever(retriever, Mode::WhiteBox, 0.7, 4, EFFORT) {
            let broken = attacked.smallest_break.unwrap();
            assert!(broken >= truth && broken <= 1.25 * truth, "{retriever}: {broken} of {truth}");
            assert!(!attacked.broken_inside(), "{retriever}");
            assert_eq!(attacked.smoothed[0].outcome, PointOutcome::Held, "{retriever}");
        }
    }
}

#[test]
fn breaks_are_found_just_outside_the_true_radius_and_never_inside() {
    for mode in [Mode::WhiteBox, Mode::BlackBox] {
        for (truth, attacked) in attack(mode, 0.7, 6, EFFORT) {
            let broken = attacked.smallest_break.unwrap();
            assert!(broken >= truth && broken <= 1.25 * truth, "{mode:?}: {broken} of {truth}");
            assert!(attacked.plain_smallest_break.unwrap() >= truth * (1.0 - 1e-4), "{mode:?}");
            assert!(attacked.plain_smallest_break.unwrap() <= truth * 1.2, "{mode:?} {attacked:?}");
            for (point, plain) in attacked.smoothed.iter().zip(&attacked.plain) {
                assert!((point.norm - point.factor * attacked.radius).abs() < 1e-5);
                // Away from the truth both are decided, and as they are.
                if point.norm < 0.8 * truth {
                    assert_eq!(
                        (point.outcome, plain.outcome),
                        (PointOutcome::Held, PointOutcome::Held),
                        "{mode:?} {attacked:?}"
                    );
                } else if point.norm > 1.3 * truth {
                    assert_eq!(
                        (point.outcome, plain.outcome),
                        (PointOutcome::Broken, PointOutcome::Broken),
                        "{mode:?} {attacked:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn radii_claimed_twice_too_large_are_found_out_and_true_ones_are_not() {
    let (alpha, judge_alpha) = (Alpha::new(0.01).unwrap(), Alpha::new(0.001).unwrap());
    let verdict = |claim| {
        let results: Vec<Attacked> =
            attack(Mode::WhiteBox, claim, 10, EFFORT).into_iter().map(|(_, attacked)| attacked).collect();
        AttackSummary::new(&results)
    };
    let planted = verdict(2.0);
    assert_eq!(planted.inside.len(), 10);
    let fault = planted.fault(planted.queries, alpha, judge_alpha);
    assert!(
        matches!(fault, Some(AttackFault::Certificates { broken: 10, probability }) if probability < 1e-15)
    );
    let honest = verdict(0.97);
    assert_eq!(honest.fault(honest.queries, alpha, judge_alpha), None);
    assert_eq!(honest.inside, Vec::<usize>::new());
    assert_eq!(honest.smoothed.map(|rates| rates.broken), [0, 0, 0, 10, 10]);
    assert_eq!(honest.plain[4], Rates { held: 0, broken: 10, undecided: 0 });
}

#[test]
fn a_single_break_inside_is_chance_and_several_are_not() {
    let (alpha, judge_alpha) = (Alpha::new(0.01).unwrap(), Alpha::new(0.001).unwrap());
    let result = |smallest_break| Attacked {
        radius: 1.0,
        smoothed: Vec::new(),
        smallest_break,
        plain_right: false,
        plain: Vec::new(),
        plain_smallest_break: None,
        cost: Cost::default(),
    };
    let summary = |inside: usize| {
        let results: Vec<Attacked> = (0..100).map(|query| result((query < inside).then_some(0.5))).collect();
        AttackSummary::new(&results)
    };
    assert_eq!(summary(0).fault(0, alpha, judge_alpha), None);
    assert_eq!(summary(1).fault(0, alpha, judge_alpha), None);
    assert_eq!(summary(1).inside, [0]);
    let fault = summary(8).fault(0, alpha, judge_alpha);
    assert!(matches!(fault, Some(AttackFault::Certificates { broken: 8, .. })), "{fault:?}");
    // Eight wrong certificates are what a hundredth of a thousand queries gives, however few of them are certified.
    assert_eq!(summary(8).fault(1_000, alpha, judge_alpha), None);
}

#[test]
fn an_attack_that_breaks_nothing_is_a_fault_of_the_attack() {
    let held = Point { factor: 5.0, norm: 5.0, outcome: PointOutcome::Held };
    let result = Attacked {
        radius: 1.0,
        smoothed: vec![held; 5],
        smallest_break: None,
        plain_right: true,
        plain: vec![held; 5],
        plain_smallest_break: None,
        cost: Cost::default(),
    };
    let level = Alpha::new(0.01).unwrap();
    assert_eq!(AttackSummary::new(&vec![result.clone(); 4]).fault(0, level, level), None);
    assert_eq!(
        AttackSummary::new(&vec![result; 5]).fault(0, level, level),
        Some(AttackFault::Attack { plain: 5 })
    );
}

#[test]
fn the_judge_is_wrong_no_more_often_than_its_level() {
    let (circle, gallery) = (Circle::new(), gallery());
    let relevance = right(&gallery);
    let sigma = Sigma::new(SIGMA).unwrap();
    // Half way between right and wrong neither is nearer, so whatever is proved is false.
    let pixels = circle.picture(0.5);
    let level = 0.5;
    let (trials, points) = (400, 5);
    let mut wrong = 0;
    for seed in 0..trials {
        let certifier = Certifier::new(&gallery, sigma, Alpha::new(level).unwrap());
        let smoother = Smoother::new(&circle, sigma, Seed::new(0));
        let judging = Judging { seed: Seed::new(u64::from(seed)), ..judging(level, 400, 0) };
        let mut judge = Judge::new(certifier, smoother, "tie", &relevance, judging, points);
        let proofs = (0..points).filter(|_| judge.judge(&pixels).unwrap() != PointOutcome::Undecided).count();
        wrong += u32::from(proofs > 0);
    }
    let tail = binomial::upper_tail(wrong, trials, Probability::new(level).unwrap());
    assert!(tail > 1e-3, "{wrong} of {trials}");
    assert!(wrong > 0, "a judge that never errs at a level of {level} has no power");
}

/// Judges many ties, keeps those that were proved one way or the other, and judges these again.
///
/// Returns how many were kept and how many of them were proved again; each proof is false.
fn judged_again(first: Seed, second: Seed, level: f64) -> (u32, u32) {
    let (circle, gallery) = (Circle::new(), gallery());
    let relevance = right(&gallery);
    let sigma = Sigma::new(SIGMA).unwrap();
    let pixels = circle.picture(0.5);
    let proved = |seed: Seed, name: &str| {
        let certifier = Certifier::new(&gallery, sigma, Alpha::new(level).unwrap());
        let smoother = Smoother::new(&circle, sigma, Seed::new(0));
        let judging = Judging { seed, ..judging(level, 400, 0) };
        Judge::new(certifier, smoother, name, &relevance, judging, 1).judge(&pixels).unwrap()
            != PointOutcome::Undecided
    };
    let names: Vec<String> = (0..2_000).map(|query| format!("tie {query}")).collect();
    let kept: Vec<&String> = names.iter().filter(|name| proved(first, name)).collect();
    let again = kept.iter().filter(|name| proved(second, name)).count();
    (u32::try_from(kept.len()).unwrap(), u32::try_from(again).unwrap())
}

#[test]
fn an_attack_picked_by_what_the_judge_said_is_noticed_unless_the_judge_draws_again() {
    let level = Probability::new(0.5).unwrap();
    let (kept, again) = judged_again(Seed::new(1), Seed::new(1), 0.5);
    assert!(
        kept >= 30 && binomial::upper_tail(again, kept, level) < 1e-9,
        "the same noise twice went unnoticed: {again} of {kept}"
    );
    let (kept, again) = judged_again(Seed::new(1), Seed::new(2), 0.5);
    assert!(binomial::upper_tail(again, kept, level) > 1e-3, "{again} of {kept}");
}

#[test]
fn the_judge_does_not_use_the_noise_of_the_attack() {
    let (circle, gallery) = (Circle::new(), gallery());
    let sigma = Sigma::new(SIGMA).unwrap();
    let run = |judge: u64| {
        let judging = Judging { seed: Seed::new(judge), ..judging(0.5, 60, 4) };
        let attacker = Attacker::new((&circle, &circle), &gallery, sigma, Seed::new(3), EFFORT, judging);
        let outcomes = (0..12).map(|query| {
            let pixels = circle.picture(0.1);
            let identity = format!("query {query}");
            let picture = Picture { identity: &identity, pixels: &pixels };
            let attacked = attacker.query(&picture, &right(&gallery), 0.19).unwrap();
            let points: Vec<(f64, f64)> =
                attacked.smoothed.iter().map(|point| (point.factor, point.norm)).collect();
            let outcomes: Vec<PointOutcome> = attacked.smoothed.iter().map(|point| point.outcome).collect();
            (points, outcomes)
        });
        outcomes.unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (points, outcomes) = run(1);
    let (same_points, other_outcomes) = run(2);
    assert_eq!(points, same_points, "the search does not depend on who judges");
    assert_ne!(outcomes, other_outcomes, "near the boundary the judge's own noise decides");
    assert_eq!(run(1), (points, outcomes));
}

#[test]
fn the_judge_proves_what_is_clear_and_leaves_excluded_rows_out() {
    let (circle, gallery) = (Circle::new(), gallery());
    let sigma = Sigma::new(SIGMA).unwrap();
    let judge_of = |angle: f64, excluded: Vec<usize>| {
        let relevance = Relevance::new(right(&gallery).positives, excluded);
        let certifier = Certifier::new(&gallery, sigma, Alpha::new(0.01).unwrap());
        let smoother = Smoother::new(&circle, sigma, Seed::new(1));
        let mut judge = Judge::new(certifier, smoother, "clear", &relevance, judging(0.01, 2_000, 0), 5);
        judge.judge(&circle.picture(angle)).unwrap()
    };
    assert_eq!(judge_of(0.2, vec![]), PointOutcome::Held);
    assert_eq!(judge_of(0.8, vec![]), PointOutcome::Broken);
    // Without the item at 1, the nearest wrong item is at 2.9 and the boundary at 1.45.
    assert_eq!(judge_of(0.8, vec![1]), PointOutcome::Held);
    assert_eq!(judge_of(2.2, vec![1]), PointOutcome::Broken);
}

#[test]
fn gradients_estimated_from_outputs_point_where_computed_ones_do() {
    let circle = Circle::new();
    let centre = circle.picture(-0.2);
    let stream = crate::noise::NoiseStream::new(
        Seed::new(3),
        &crate::noise::ImageIdentity::new("cloud"),
        Stage::Attack,
    );
    let mut copies = Vec::new();
    for sample in 0..500 {
        let mut noise = vec![0.0; PIXELS];
        stream.fill(sample, 0, &mut noise);
        for sign in [SIGMA as f32, -(SIGMA as f32)] {
            copies.extend(centre.iter().zip(&noise).map(|(pixel, noise)| pixel + sign * noise));
        }
    }
    let noisy = NoisyCopies { centre: &centre, copies: &copies, sigma: SIGMA };
    let mut towards = |_: &[f32]| vec![-0.6, 0.8];
    let computed = circle.gradient(&noisy, &mut towards).unwrap();
    let estimated = BlackBox::new(&circle).gradient(&noisy, &mut towards).unwrap();
    let inner = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(l, r)| l * r).sum::<f64>();
    let lengths = (inner(&computed, &computed) * inner(&estimated, &estimated)).sqrt();
    assert!(inner(&computed, &estimated) / lengths > 0.95, "{}", inner(&computed, &estimated) / lengths);
    let along = inner(&computed, &estimated) / inner(&computed, &computed);
    assert!((along - 1.0).abs() < 0.1, "{along}");
}

#[test]
fn the_same_seed_gives_the_same_attack_and_its_cost_is_counted() {
    let run = |seed| {
        let (circle, gallery) = (Circle::new(), gallery());
        let black_box = BlackBox::new(&circle);
        let sigma = Sigma::new(SIGMA).unwrap();
        let attacker = Attacker::new(
            (&circle, &black_box),
            &gallery,
            sigma,
            Seed::new(seed),
            EFFORT,
            judging(0.001, 1_000, 2),
        );
        let pixels = circle.picture(-0.1);
        let picture = Picture { identity: "query", pixels: &pixels };
        let attacked = attacker.query(&picture, &right(&gallery), 0.2).unwrap();
        assert_eq!(attacked.cost.encoder_calls, circle.calls.load(Ordering::Relaxed));
        assert_eq!(attacked.cost.gradient_passes, 0);
        attacked
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn the_plain_encoder_searches_in_a_gallery_of_its_own() {
    let (circle, gallery) = (Circle::new(), gallery());
    let names = |row| (gallery.identity(row).to_owned(), gallery.label_name(gallery.label(row)).to_owned());
    let (identities, labels): (Vec<String>, Vec<String>) = (0..3).map(names).unzip();
    // The right item moved so far that the plain encoder finds another first.
    let moved: Vec<f32> = [3.1_f32, 1.0, 2.9].iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
    let plain = Gallery::new(moved, 2, identities, &labels, Metric::Euclidean).unwrap();
    let sigma = Sigma::new(SIGMA).unwrap();
    let judging = judging(0.01, 1_000, 0);
    let attacker = Attacker::new((&circle, &circle), &gallery, sigma, Seed::new(1), EFFORT, judging);
    let pixels = circle.picture(0.1);
    let picture = Picture { identity: "query", pixels: &pixels };
    let relevance = right(&gallery);
    assert!(attacker.query(&picture, &relevance, 0.1).unwrap().plain_right);
    let attacked = attacker.plain_gallery(&plain).query(&picture, &relevance, 0.1).unwrap();
    assert!(!attacked.plain_right);
    assert_eq!(attacked.plain, []);
}

#[test]
fn clipped_pictures_stay_pictures() {
    let clipped = Effort { pixels: Pixels::Clipped, ..EFFORT };
    // At many times the radius the free attack leaves [0, 1], the clipped one ends with a smaller norm.
    let results = attack(Mode::WhiteBox, 2.9, 1, clipped);
    let last = results[0].1.smoothed[4];
    assert!(last.norm < 0.99 * last.factor * results[0].1.radius, "{last:?}");
}

#[test]
fn queries_that_cannot_be_attacked_are_refused() {
    let (circle, gallery) = (Circle::new(), gallery());
    let sigma = Sigma::new(SIGMA).unwrap();
    let attacker =
        Attacker::new((&circle, &circle), &gallery, sigma, Seed::new(1), EFFORT, judging(0.01, 100, 0));
    let pixels = circle.picture(0.0);
    let picture = Picture { identity: "query", pixels: &pixels };
    for radius in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let error = attacker.query(&picture, &right(&gallery), radius).unwrap_err();
        assert!(matches!(error, AttackError::Radius { .. }), "{error}");
    }
    let none = Relevance::new(Positives::Absent, vec![]);
    let error = attacker.query(&picture, &none, 0.1).unwrap_err();
    assert!(matches!(error, AttackError::OneSided { right: 0, wrong: 3, .. }), "{error}");
    let all = Relevance::new(right(&gallery).positives, vec![1, 2]);
    let error = attacker.query(&picture, &all, 0.1).unwrap_err();
    assert!(matches!(error, AttackError::OneSided { right: 1, wrong: 0, .. }), "{error}");
}

#[test]
fn one_perturbation_is_as_long_as_asked_and_breaks_where_the_truth_says() {
    let (circle, gallery) = (Circle::new(), gallery());
    let black_box = BlackBox::new(&circle);
    let relevance = right(&gallery);
    let sigma = Sigma::new(SIGMA).unwrap();
    let pixels = circle.picture(-0.1);
    let truth = circle.true_radius(&pixels);
    let picture = Picture { identity: "query", pixels: &pixels };
    let gradients: [&dyn InputGradients; 2] = [&circle, &black_box];
    for gradients in gradients {
        let mode = gradients.mode();
        let attacker =
            Attacker::new((&circle, gradients), &gallery, sigma, Seed::new(5), EFFORT, judging(0.01, 100, 0));
        for against in [Against::Smoothed, Against::Plain] {
            for (factor, broken) in [(0.7, false), (1.4, true)] {
                let size = factor * truth;
                let found = attacker.perturb(against, &picture, &relevance, size).unwrap();
                // With gradients, a break is as short as the search can make it.
                let least = if broken && mode == Mode::WhiteBox { 0.9 * truth } else { 0.999 * size };
                assert!(found.norm <= size && found.norm > least, "{mode:?} {against:?} {found:?}");
                assert_eq!(found.margin < 0.0, broken, "{mode:?} {against:?} {factor}");
                let shift: f64 = found
                    .pixels
                    .iter()
                    .zip(&pixels)
                    .map(|(&there, &here)| (f64::from(there) - f64::from(here)).powi(2))
                    .sum();
                assert_eq!(found.norm, shift.sqrt());
                let smallest = attacker.smallest_break(&picture, &relevance, &found).unwrap();
                // The shortest break of the mean over a few copies may lie a little inside that of the plain retriever.
                if against == Against::Plain || mode == Mode::BlackBox {
                    assert_eq!(smallest.is_some(), broken, "{mode:?} {against:?} {factor}");
                }
                if let Some(smallest) = smallest {
                    assert!(smallest.margin <= 0.0);
                    assert!(smallest.norm >= truth * (1.0 - 1e-4), "{mode:?} {against:?} {}", smallest.norm);
                    assert!(smallest.norm <= truth * 1.25, "{mode:?} {against:?} {}", smallest.norm);
                }
            }
        }
        let again = || attacker.perturb(Against::Smoothed, &picture, &relevance, 0.2).unwrap();
        assert_eq!(again(), again());
    }
}

#[test]
fn a_perturbation_is_never_longer_than_asked_even_below_rounding() {
    let (circle, gallery) = (Circle::new(), gallery());
    let sigma = Sigma::new(SIGMA).unwrap();
    let attacker =
        Attacker::new((&circle, &circle), &gallery, sigma, Seed::new(1), EFFORT, judging(0.01, 100, 0));
    let pixels = circle.picture(0.1);
    let picture = Picture { identity: "query", pixels: &pixels };
    for size in [1e-9, 3e-8, 1e-7, 1e-6, 1e-3, 0.3] {
        let found = attacker.perturb(Against::Plain, &picture, &right(&gallery), size).unwrap();
        assert!(found.norm <= size, "{size}: {}", found.norm);
    }
}

#[test]
fn a_picture_that_is_wrong_as_it_is_breaks_at_zero() {
    let (circle, gallery) = (Circle::new(), gallery());
    let sigma = Sigma::new(SIGMA).unwrap();
    let attacker =
        Attacker::new((&circle, &circle), &gallery, sigma, Seed::new(1), EFFORT, judging(0.01, 100, 0));
    let pixels = circle.picture(0.8);
    let picture = Picture { identity: "query", pixels: &pixels };
    let relevance = right(&gallery);
    let found = attacker.perturb(Against::Plain, &picture, &relevance, 0.1).unwrap();
    let smallest = attacker.smallest_break(&picture, &relevance, &found).unwrap().unwrap();
    assert_eq!((smallest.norm, smallest.pixels), (0.0, pixels.clone()));
    assert!(smallest.margin <= 0.0);
}

/// Fails from some call on, as an encoder does whose caller has gone.
struct Cancelled<'a> {
    circle: &'a Circle,
    calls: u64,
}

impl Embedder for Cancelled<'_> {
    fn input_shape(&self) -> &[usize] {
        self.circle.input_shape()
    }
    fn dimension(&self) -> usize {
        self.circle.dimension()
    }
    fn norm_bound(&self) -> NormBound {
        self.circle.norm_bound()
    }
    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        if self.circle.calls.load(Ordering::Relaxed) >= self.calls {
            return Err("cancelled".into());
        }
        self.circle.embed(pictures, embeddings)
    }
}

#[test]
fn an_encoder_that_fails_ends_the_search_with_its_words() {
    let gallery = gallery();
    let sigma = Sigma::new(SIGMA).unwrap();
    for against in [Against::Smoothed, Against::Plain] {
        for calls in [0, 1, 40, 200] {
            let circle = Circle::new();
            let cancelled = Cancelled { circle: &circle, calls };
            let black_box = BlackBox::new(&cancelled);
            let encoder: (&dyn Embedder, &dyn InputGradients) = (&cancelled, &black_box);
            let attacker =
                Attacker::new(encoder, &gallery, sigma, Seed::new(1), EFFORT, judging(0.01, 100, 0));
            let pixels = circle.picture(0.0);
            let picture = Picture { identity: "query", pixels: &pixels };
            let error = attacker.perturb(against, &picture, &right(&gallery), 0.1).unwrap_err();
            let mut cause: &dyn std::error::Error = &error;
            while let Some(source) = cause.source() {
                cause = source;
            }
            assert_eq!(cause.to_string(), "cancelled", "{against:?} {calls}");
            assert!(circle.calls.load(Ordering::Relaxed) < calls + 256, "{against:?} {calls}: it went on");
        }
    }
}

#[test]
fn a_perturbation_that_cannot_be_searched_for_is_refused() {
    let (circle, gallery) = (Circle::new(), gallery());
    let sigma = Sigma::new(SIGMA).unwrap();
    let effort = Effort { restarts: 1, ..EFFORT };
    let attacker =
        Attacker::new((&circle, &circle), &gallery, sigma, Seed::new(1), effort, judging(0.01, 100, 0));
    let pixels = circle.picture(0.0);
    let ask = |pixels: &[f32], relevance: &Relevance, size| {
        attacker.perturb(Against::Plain, &Picture { identity: "query", pixels }, relevance, size).unwrap_err()
    };
    for size in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        assert!(matches!(ask(&pixels, &right(&gallery), size), AttackError::Radius { .. }));
    }
    let error = ask(&pixels[1..], &right(&gallery), 0.1);
    assert!(matches!(error, AttackError::Smoothing(SmoothingError::Shape { .. })), "{error}");
    let none = Relevance::new(Positives::Absent, vec![]);
    assert!(matches!(ask(&pixels, &none, 0.1), AttackError::OneSided { right: 0, .. }));
}
