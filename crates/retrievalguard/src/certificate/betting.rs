//! Tests of bounded means by betting, and the dual form of the whole-distribution certificate
//! (theory, section 2.3, second form).

use std::ops::Range;

use super::domain::ScoreRange;
use super::empirical_distribution::EmpiricalDistribution;
use crate::normal::{self, Probability};
use crate::{Sigma, TargetRadius};

/// Bets that share the stake of one test.
pub(crate) const BETS: usize = 4;
/// Stake of each bet.
const STAKES: [f64; BETS] = [0.2, 0.3, 0.3, 0.2];
/// Each bet as a multiple of the one that grew fastest on the pilot.
const SPREAD: [f64; BETS] = [0.4, 0.7, 1.0, 1.35];
/// No bet risks more than this part of the wealth.
const LARGEST_BET: f64 = 0.99;
/// Number of samples between two looks at the wealth.
const STRIDE: usize = 16;
/// Allowance for the rounding of a product of many factors, in units of log wealth.
const ROUNDING: f64 = 1e-5;

/// Wealth of a gambler who bets that the mean of non-negative `Y` exceeds one.
///
/// ```text
/// W_t = Σ_l ω_l Π_{i≤t} (1 − f_l + f_l Y_i),     0 ≤ f_l < 1,  Σ ω_l = 1
/// ```
///
/// If `E Y ≤ 1` then `W` is a non-negative supermartingale with `W_0 = 1`, so it ever reaches `1/level` with
/// probability at most `level` (Ville). The fractions that multiply a sample are fixed before it is seen.
#[derive(Clone, Debug)]
pub(crate) struct Wealth {
    fractions: [f64; BETS],
    factors: [f64; BETS],
    logs: [f64; BETS],
    since: usize,
    highest: f64,
}

impl Wealth {
    pub(crate) fn new(fractions: [f64; BETS]) -> Self {
        Self { fractions, factors: [1.0; BETS], logs: [0.0; BETS], since: 0, highest: 0.0 }
    }

    /// Other fractions from the next observation on; what each bet has made so far stays with it.
    fn replan(&mut self, fractions: [f64; BETS]) {
        self.settle();
        self.fractions = fractions;
    }

    /// One more observation.
    pub(crate) fn see(&mut self, value: f64) {
        for (factor, &fraction) in self.factors.iter_mut().zip(&self.fractions) {
            *factor *= 1.0 - fraction + fraction * value;
        }
        self.since += 1;
        if self.since == STRIDE {
            self.settle();
        }
    }

    /// Folds the running factors into the logarithms and notes the wealth.
    pub(crate) fn settle(&mut self) {
        for (log, factor) in self.logs.iter_mut().zip(&mut self.factors) {
            *log += factor.ln();
            *factor = 1.0;
        }
        self.since = 0;
        self.highest = self.highest.max(self.log());
    }

    /// Logarithm of the wealth at the last settlement.
    pub(crate) fn log(&self) -> f64 {
        let largest = self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.logs.iter().zip(STAKES).map(|(log, stake)| stake * (log - largest).exp()).sum();
        largest + sum.ln() - ROUNDING
    }

    /// Logarithm of what the best single bet has made of a stake of one.
    pub(crate) fn best(&self) -> f64 {
        self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Logarithm of the highest wealth seen at any settlement.
    pub(crate) fn highest(&self) -> f64 {
        self.highest
    }
}

/// Fractions around the one that grows fastest when `Y` follows `points` (value, mass).
///
/// Returns them with the expected growth of log wealth per sample at the best one.
pub(crate) fn plan_bets(points: &[(f64, f64)]) -> ([f64; BETS], f64) {
    // The derivative of Σ mass·ln(1 + f(Y−1)) falls in f; its root is the fastest growth.
    let slope = |fraction: f64| -> f64 {
        points.iter().map(|&(value, mass)| mass * (value - 1.0) / (1.0 + fraction * (value - 1.0))).sum()
    };
    let (mut low, mut high) = (0.0, LARGEST_BET);
    if slope(low) <= 0.0 {
        // The pilot sees no gain; small bets cost little if it was wrong.
        return ([0.02, 0.05, 0.1, 0.2], 0.0);
    }
    if slope(high) < 0.0 {
        for _ in 0..16 {
            let middle = f64::midpoint(low, high);
            if slope(middle) > 0.0 {
                low = middle;
            } else {
                high = middle;
            }
        }
    } else {
        low = high;
    }
    let growth = points.iter().map(|&(value, mass)| mass * (1.0 - low + low * value).ln()).sum();
    (SPREAD.map(|factor| (low * factor).min(LARGEST_BET)), growth)
}

/// Lower confidence bound on the mean of `values` in `[0, ∞)`, from bets planned beforehand.
///
/// The mean exceeds `m` unless the wealth against `E Y ≤ m` stayed below `1/level`; the wealth falls in `m`, so the
/// bound is found by bisection between zero and `most`. Nothing above `most` is looked for.
pub(crate) fn mean_lower_bound(
    values: &[f32],
    shift: f64,
    fractions: [f64; BETS],
    level: f64,
    most: f64,
) -> f64 {
    let target = -level.ln();
    let exceeds = |mean: f64| {
        let mut wealth = Wealth::new(fractions);
        for &value in values {
            wealth.see((f64::from(value) + shift).max(0.0) / mean);
        }
        wealth.settle();
        wealth.log() >= target
    };
    if exceeds(most) {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    while high - low > 1e-7 * most {
        let middle = f64::midpoint(low, high);
        if exceeds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Cells `(e_{j−1}, e_j]` that cover every possible score, with the pilot's normal score for each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cells {
    /// `e_0 < e_1 < … < e_J`, from the least possible score to the largest: `−F` and `F` in the ball.
    edges: Vec<f64>,
    /// `Φ⁻¹(p⁰_j)`.
    scores: Vec<f64>,
}

impl Cells {
    /// Cells between ascending `inner` edges; `guess(τ)` is the pilot's `P(S > τ)`, never nearer to one than `floor`.
    ///
    /// An atom of the distribution lies at most `nudge` above an edge.
    pub(crate) fn new(
        inner: &[f32],
        range: ScoreRange,
        floor: f64,
        nudge: f64,
        guess: impl Fn(f64) -> Probability,
    ) -> Self {
        let mut edges = vec![range.lower];
        edges.extend(inner.iter().map(|&edge| f64::from(edge)).filter(|&edge| range.encloses(edge)));
        edges.push(range.upper);
        let scores = edges
            .windows(2)
            .map(|pair| {
                // Edges sit just below atoms, where the distribution jumps: what counts is what it does inside the cell.
                let (left, right) = (guess(pair[0] + nudge), guess(pair[1]));
                let below = f64::midpoint(left.complement(), right.complement()).max(floor).min(1.0 - 1e-12);
                let above = f64::midpoint(left.get(), right.get()).min(1.0 - floor).max(1e-12);
                normal::quantile(Probability::from_parts(above, below))
            })
            .collect();
        Self { edges, scores }
    }

    /// Cells between thresholds that an empirical distribution has placed.
    pub(crate) fn between(thresholds: &[f32], empirical: &EmpiricalDistribution, floor: f64) -> Self {
        let guess = |place| empirical.above(place);
        Self::new(thresholds, empirical.range(), floor, 2.0 * empirical.nudge(), guess)
    }

    /// Which cell a score falls into; scores at or below `e_0` belong to the first.
    pub(crate) fn cell(&self, score: f64) -> usize {
        self.edges.partition_point(|&edge| edge < score).clamp(1, self.scores.len()) - 1
    }
}

/// The statement `E_{x+δ} S > s` for all `‖δ‖ ≤ ρ`, as one bounded mean at `x`.
///
/// ```text
/// κ_j = exp(ρz_j/σ − ρ²/2σ²),   c_j = κ_j p⁰_j − Φ(z_j − ρ/σ)
/// ψ(S) = Σ_j κ_j clip(S − e_{j−1}, 0, Δ_j),   y₀ = s − e_0 + Σ_j c_j Δ_j
/// E ψ > y₀   ⇒   L(ρ) > s
/// ```
///
/// `w_ρ` is convex, so its tangent at `p⁰_j` bounds it from below on the whole cell, whatever `p⁰_j` is.
/// Values are kept divided by `y₀`, so that the test is `E Y > 1` for `Y = ψ/y₀`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DualTest {
    /// `Y` at the lower edge of each cell.
    base: Vec<f64>,
    /// Slope of `Y` in each cell.
    slope: Vec<f64>,
    pub(crate) fractions: [f64; BETS],
    /// `y₀`, at most zero when the statement holds without looking.
    pub(crate) hurdle: f64,
    /// Expected growth of log wealth per sample, on the pilot.
    pub(crate) growth: f64,
}

impl DualTest {
    pub(crate) fn new(cells: &Cells, points: &[(f64, f64)], radius: f64, offset: f64, sigma: Sigma) -> Self {
        let shift = radius / sigma.certified();
        let mut hurdle = offset - cells.edges[0];
        let mut slope = Vec::with_capacity(cells.scores.len());
        for (pair, &score) in cells.edges.windows(2).zip(&cells.scores) {
            let width = pair[1] - pair[0];
            let kappa = (shift * score - shift * shift / 2.0).exp();
            let intercept = kappa * normal::distribution(score) - normal::distribution(score - shift);
            // The intercept is a difference of rounded numbers of size κ.
            hurdle += width * (intercept + 1e-13 * (1.0 + kappa));
            slope.push(kappa);
        }
        // A radius so large that the arithmetic overflows is no statement that a sample could support.
        if !hurdle.is_finite() || slope.iter().any(|slope| !slope.is_finite()) {
            let (base, slope) = (vec![0.0; slope.len()], vec![0.0; slope.len()]);
            return Self { base, slope, fractions: [LARGEST_BET; BETS], hurdle: f64::INFINITY, growth: 0.0 };
        }
        let scale = if hurdle > 0.0 { 1.0 / hurdle } else { 1.0 };
        let mut base = Vec::with_capacity(slope.len());
        let mut total = 0.0;
        for (pair, slope) in cells.edges.windows(2).zip(&mut slope) {
            *slope *= scale;
            base.push(total);
            total += *slope * (pair[1] - pair[0]);
        }
        let mut test = Self { base, slope, fractions: [0.0; BETS], hurdle, growth: 0.0 };
        let values: Vec<(f64, f64)> =
            points.iter().map(|&(score, mass)| (test.value(cells, cells.cell(score), score), mass)).collect();
        (test.fractions, test.growth) = plan_bets(&values);
        test
    }

    /// `Y` for a score in the given cell.
    pub(crate) fn value(&self, cells: &Cells, cell: usize, score: f64) -> f64 {
        self.base[cell] + self.slope[cell] * (score - cells.edges[cell]).max(0.0)
    }
}

/// Radii of a negative's betting test, ascending, each with its own bounded mean.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ladder {
    pub(crate) cells: Cells,
    pub(crate) rungs: Vec<(f64, DualTest)>,
    /// Whether bets and cells are planned again while scores come in; the rungs never are.
    pub(crate) replanning: Option<Replanning>,
}

/// Scores after which bets are planned again for the first time; each further time there are twice as many.
const FIRST_REPLAN: usize = 128;

/// What bets and cells are planned again with (theory, section 12.2).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Replanning {
    /// Scores of the pilot.
    pub(crate) pilot: Vec<f32>,
    pub(crate) range: ScoreRange,
    pub(crate) dimension: usize,
    /// Certifying samples that are going to be drawn.
    pub(crate) samples: u32,
    /// A mass below this cannot be told from nothing.
    pub(crate) floor: f64,
    pub(crate) offset: f64,
    pub(crate) sigma: Sigma,
}

impl Replanning {
    /// Cells and points from the pilot and the scores that were seen.
    fn plan(&self, seen: &[f32]) -> (Cells, Vec<(f64, f64)>) {
        let scores = [self.pilot.as_slice(), seen].concat();
        let empirical = EmpiricalDistribution::new(scores, self.range, self.dimension);
        (Cells::between(&empirical.thresholds(self.samples), &empirical, self.floor), empirical.points())
    }
}

/// Consecutive scores that are bet on with one plan.
struct Stage {
    bets: Range<usize>,
    /// Cells and points of the plan, if it is not the pilot's.
    plan: Option<(Cells, Vec<(f64, f64)>)>,
    /// The cell of each score.
    places: Vec<u16>,
}

/// Rungs relative to the radius that the pilot expects to reach.
const RUNGS: [f64; 29] = [
    0.01, 0.05, 0.1, 0.2, 0.4, 0.55, 0.65, 0.72, 0.77, 0.81, 0.85, 0.88, 0.91, 0.94, 0.96, 0.98, 1.0, 1.02,
    1.04, 1.07, 1.1, 1.13, 1.16, 1.2, 1.25, 1.32, 1.4, 1.55, 1.8,
];

/// Further rungs for results that are shown before the last sample has come, relative to the same radius.
const RUNGS_ON_THE_WAY: [f64; 17] =
    [0.02, 0.035, 0.07, 0.13, 0.16, 0.23, 0.26, 0.29, 0.32, 0.35, 0.375, 0.43, 0.46, 0.49, 0.52, 0.58, 0.615];

/// Which radii a ladder has rungs at; rungs share no level, so more of them cost none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rungs {
    /// Close together around the radius that all samples should reach.
    AtTheEnd,
    /// Also on the way there, and exactly at a target.
    OnTheWay { target: Option<TargetRadius> },
}

/// Radius, in σ, around which rungs are placed when the pilot sees no hope.
const HOPELESS: f64 = 0.1;

impl Ladder {
    /// Rungs up to and around the radius that `samples` samples should reach at `level`; also returns that radius.
    ///
    /// The radius is `None` where the pilot sees no hope. The ladder then begins near zero, where it asks little more
    /// than whether the mean score is above the offset.
    pub(crate) fn new(
        cells: Cells,
        points: &[(f64, f64)],
        samples: u32,
        level: f64,
        offset: f64,
        sigma: Sigma,
        rungs: Rungs,
    ) -> (Self, Option<f64>) {
        let needed = -level.ln() - STAKES[2].ln();
        let reaches = |radius: f64| {
            let test = DualTest::new(&cells, points, radius, offset, sigma);
            test.hurdle <= 0.0 || f64::from(samples) * test.growth >= needed
        };
        let unit = sigma.certified();
        let expected = reaches(1e-3 * unit).then(|| {
            let (mut low, mut high) = (1e-3 * unit, 2.0 * unit);
            while reaches(high) && high < super::thresholds::RADIUS_CAP * unit {
                (low, high) = (high, 2.0 * high);
            }
            for _ in 0..8 {
                let middle = f64::midpoint(low, high);
                if reaches(middle) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            low
        });
        let centre = expected.unwrap_or(HOPELESS * unit);
        let mut radii: Vec<f64> = RUNGS.iter().map(|factor| centre * factor).collect();
        if let Rungs::OnTheWay { target } = rungs {
            radii.extend(RUNGS_ON_THE_WAY.iter().map(|factor| centre * factor));
            radii.extend(target.map(TargetRadius::get));
            radii.sort_unstable_by(f64::total_cmp);
            radii.dedup();
        }
        let rungs = radii
            .into_iter()
            .map(|radius| (radius, DualTest::new(&cells, points, radius, offset, sigma)))
            .collect();
        (Self { cells, rungs, replanning: None }, expected)
    }

    /// The highest rung below which every rung was passed, for each of several ascending targets of log wealth.
    ///
    /// The nulls are nested, so testing in ascending order and stopping at the first failure needs no share of α.
    /// Rungs at or above `enough` need not be tested: the caller knows a smaller radius already.
    pub(crate) fn climb(&self, scores: &[f32], targets: &[f64], enough: f64) -> Vec<Option<f64>> {
        let stages = self.stages(scores);
        let strictest = targets.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut reached = vec![None; targets.len()];
        let mut alive = vec![true; targets.len()];
        for (radius, test) in &self.rungs {
            let highest = self.wealth(*radius, test, &stages, scores, strictest);
            for ((reached, alive), &target) in reached.iter_mut().zip(&mut alive).zip(targets) {
                *alive &= highest >= target;
                if *alive {
                    *reached = Some(*radius);
                }
            }
            if !alive.contains(&true) || *radius >= enough {
                break;
            }
        }
        reached
    }
}

/// One rung as it was tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rung {
    pub(crate) radius: f64,
    /// `y₀`.
    pub(crate) hurdle: f64,
    /// Highest log wealth, infinite where the hurdle is cleared without looking.
    pub(crate) log_wealth: f64,
}

impl Ladder {
    /// Highest log wealth of one rung; stops looking once it reaches `enough`.
    fn wealth(&self, radius: f64, test: &DualTest, stages: &[Stage], scores: &[f32], enough: f64) -> f64 {
        if test.hurdle <= 0.0 {
            return f64::INFINITY;
        }
        let mut wealth = Wealth::new(test.fractions);
        for stage in stages {
            let replanned =
                self.replanning.as_ref().zip(stage.plan.as_ref()).map(|(with, (cells, points))| {
                    (cells, DualTest::new(cells, points, radius, with.offset, with.sigma))
                });
            let (cells, test) = match &replanned {
                Some((cells, test)) => {
                    wealth.replan(test.fractions);
                    (*cells, test)
                }
                None => (&self.cells, test),
            };
            for (&cell, &score) in stage.places.iter().zip(&scores[stage.bets.clone()]) {
                wealth.see(test.value(cells, usize::from(cell), f64::from(score)));
                if wealth.highest() >= enough {
                    break;
                }
            }
            if wealth.highest() >= enough {
                break;
            }
        }
        wealth.settle();
        wealth.highest()
    }

    /// The stages of betting on these scores: each is planned from all scores before it.
    fn stages(&self, scores: &[f32]) -> Vec<Stage> {
        let doubled = |start: usize| if start == 0 { FIRST_REPLAN } else { 2 * start };
        self.stages_with(scores, doubled, |bets| 0..bets.start)
    }

    /// Stages from each `start` to `end(start)`, planned from the scores in `known(bets)`.
    fn stages_with(
        &self,
        scores: &[f32],
        end: impl Fn(usize) -> usize,
        known: impl Fn(&Range<usize>) -> Range<usize>,
    ) -> Vec<Stage> {
        let mut stages = Vec::new();
        let mut start = 0;
        while start < scores.len() {
            let end = if self.replanning.is_some() { end(start).min(scores.len()) } else { scores.len() };
            let bets = start..end;
            let replanning = self.replanning.as_ref().filter(|_| start > 0);
            let plan = replanning.map(|with| with.plan(&scores[known(&bets)]));
            let cells = plan.as_ref().map_or(&self.cells, |(cells, _)| cells);
            let places =
                scores[bets.clone()].iter().map(|&score| cells.cell(f64::from(score)) as u16).collect();
            stages.push(Stage { bets, plan, places });
            start = end;
        }
        stages
    }

    /// After how many of these scores bets were planned again.
    pub(crate) fn replanned_after(&self, scores: usize) -> Vec<f64> {
        let doubling = |&place: &usize| (2 * place < scores).then_some(2 * place);
        let first = (self.replanning.is_some() && FIRST_REPLAN < scores).then_some(FIRST_REPLAN);
        std::iter::successors(first, doubling).map(|place| place as f64).collect()
    }

    /// The rungs that were tested against one target, the first failure last.
    pub(crate) fn trace(&self, scores: &[f32], target: f64) -> Vec<Rung> {
        let stages = self.stages(scores);
        let mut trace = Vec::new();
        for (radius, test) in &self.rungs {
            let log_wealth = self.wealth(*radius, test, &stages, scores, target);
            trace.push(Rung { radius: *radius, hurdle: test.hurdle, log_wealth });
            if log_wealth < target {
                break;
            }
        }
        trace
    }
}

#[cfg(test)]
impl Ladder {
    /// Whether a rung at `radius` is passed if bets are planned again after `every` scores, from the scores in `known(bets)`.
    pub(super) fn passes(
        &self,
        radius: f64,
        scores: &[f32],
        target: f64,
        every: usize,
        known: fn(&Range<usize>) -> Range<usize>,
    ) -> bool {
        let with = self.replanning.as_ref().expect("bets are planned again");
        let test = DualTest::new(&self.cells, &with.plan(&[]).1, radius, with.offset, with.sigma);
        let stages = self.stages_with(scores, |start| start + every, known);
        self.wealth(radius, &test, &stages, scores, target) >= target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sigma() -> Sigma {
        Sigma::new(1.0).unwrap()
    }

    #[test]
    fn wealth_is_the_product_of_its_factors() {
        let mut wealth = Wealth::new([0.1, 0.2, 0.3, 0.4]);
        let values = [0.5, 1.5, 2.0, 0.0, 3.0];
        values.iter().for_each(|&value| wealth.see(value));
        wealth.settle();
        let expected: f64 = [0.1, 0.2, 0.3, 0.4]
            .iter()
            .zip(STAKES)
            .map(|(fraction, stake)| {
                stake * values.iter().map(|value| 1.0 - fraction + fraction * value).product::<f64>()
            })
            .sum();
        assert!((wealth.log() + ROUNDING - expected.ln()).abs() < 1e-12);
        assert!((STAKES.iter().sum::<f64>() - 1.0).abs() < 1e-15);
    }

    #[test]
    fn tangents_never_exceed_the_shifted_probability() {
        // One cell, S two-valued at −1 and 1 with P(S = 1) = p: E ψ − Σ c Δ must not exceed 2 w_ρ(p).
        let cells = Cells { edges: vec![-1.0, 1.0], scores: vec![0.7] };
        for radius in [0.1, 1.0, 3.0] {
            let test = DualTest::new(&cells, &[(1.0, 0.8), (-1.0, 0.2)], radius, 5.0, sigma());
            let intercepts = test.hurdle - 5.0 - 1.0;
            for score in [-3.0, -1.0, 0.0, 0.7, 2.0, 4.0] {
                let mean = normal::distribution(score) * test.value(&cells, 0, 1.0) * test.hurdle;
                let truth = 2.0 * normal::distribution(score - radius);
                assert!(mean - intercepts <= truth + 1e-12, "radius {radius}, score {score}");
            }
        }
    }

    #[test]
    fn tangents_over_a_narrow_range_touch_where_they_were_laid() {
        // S is −0.2 or 0.9, the ends of its range: the mean after the shift is −0.2 + 1.1 w_ρ(p).
        let range = ScoreRange { lower: -0.2, upper: 0.9 };
        let cells = Cells::new(&[], range, 1e-6, 0.0, |_| normal::probability(0.7));
        for radius in [0.1, 1.0, 3.0] {
            let offset = 0.3;
            let test = DualTest::new(&cells, &[(0.9, 0.8), (-0.2, 0.2)], radius, offset, sigma());
            for score in [-3.0, -1.0, 0.0, 0.7, 2.0, 4.0] {
                let p = normal::distribution(score);
                let mean =
                    test.hurdle * (p * test.value(&cells, 0, 0.9) + (1.0 - p) * test.value(&cells, 0, -0.2));
                let (claimed, truth) =
                    (mean - test.hurdle + offset, -0.2 + 1.1 * normal::distribution(score - radius));
                assert!(claimed <= truth + 1e-12, "radius {radius}, score {score}");
                assert!(score != 0.7 || truth - claimed < 1e-9, "radius {radius}: {claimed} {truth}");
            }
        }
    }

    /// A ladder of one rung whose bets are planned again, with the scores of its pilot.
    fn replanning_ladder(radius: f64, pilot: &[f32]) -> Ladder {
        let range = ScoreRange::symmetric(1.0);
        let (samples, floor, offset) = (1_000, 0.01, 0.1);
        let replanning =
            Replanning { pilot: pilot.to_vec(), range, dimension: 2, samples, floor, offset, sigma: sigma() };
        let (cells, points) = replanning.plan(&[]);
        let rungs = vec![(radius, DualTest::new(&cells, &points, radius, offset, sigma()))];
        Ladder { cells, rungs, replanning: Some(replanning) }
    }

    #[test]
    fn replanned_wealth_is_the_product_of_factors_planned_from_earlier_scores() {
        let score = |place: usize| ((place * 7_919) % 997) as f32 / 997.0 - 0.2;
        let pilot: Vec<f32> = (0..60).map(|place| score(place + 5_000)).collect();
        let scores: Vec<f32> = (0..700).map(score).collect();
        let ladder = replanning_ladder(0.3, &pilot);
        assert_eq!(ladder.replanned_after(700), [128.0, 256.0, 512.0]);
        assert_eq!(ladder.replanned_after(128), [0.0; 0]);
        let mut logs = [0.0_f64; BETS];
        for (start, end) in [(0, 128), (128, 256), (256, 512), (512, 700)] {
            // With nothing seen it is the pilot's own plan.
            let with = ladder.replanning.as_ref().unwrap();
            let (cells, points) = with.plan(&scores[..start]);
            let test = DualTest::new(&cells, &points, 0.3, 0.1, sigma());
            for &score in &scores[start..end] {
                let score = f64::from(score);
                let value = test.value(&cells, cells.cell(score), score);
                for (log, fraction) in logs.iter_mut().zip(test.fractions) {
                    *log += (1.0 - fraction + fraction * value).ln();
                }
            }
        }
        let expected: f64 = logs.iter().zip(STAKES).map(|(log, stake)| stake * log.exp()).sum::<f64>().ln();
        let stages = ladder.stages(&scores);
        let mut wealth = Wealth::new(ladder.rungs[0].1.fractions);
        for stage in &stages {
            let test =
                stage.plan.as_ref().map(|(cells, points)| DualTest::new(cells, points, 0.3, 0.1, sigma()));
            let test = test.as_ref().unwrap_or(&ladder.rungs[0].1);
            let cells = stage.plan.as_ref().map_or(&ladder.cells, |(cells, _)| cells);
            wealth.replan(test.fractions);
            for (&cell, &score) in stage.places.iter().zip(&scores[stage.bets.clone()]) {
                wealth.see(test.value(cells, usize::from(cell), f64::from(score)));
            }
        }
        wealth.settle();
        assert!((wealth.log() + ROUNDING - expected).abs() < 1e-9, "{} {expected}", wealth.log());
        assert!((ladder.trace(&scores, 1e9)[0].log_wealth - wealth.highest()).abs() < 1e-12);
    }

    #[test]
    fn a_replanned_bet_does_not_depend_on_scores_that_are_still_to_come() {
        let score = |place: usize| ((place * 7_919) % 997) as f32 / 997.0 - 0.2;
        let pilot: Vec<f32> = (0..60).map(|place| score(place + 5_000)).collect();
        let ladder = replanning_ladder(0.3, &pilot);
        let scores: Vec<f32> = (0..700).map(score).collect();
        let mut others = scores.clone();
        others[600..].fill(-0.9);
        let plans = |scores: &[f32]| -> Vec<_> {
            ladder.stages(scores).into_iter().map(|stage| stage.plan).collect()
        };
        assert_eq!(plans(&scores), plans(&others));
        others[500] = -0.9;
        assert_ne!(plans(&scores), plans(&others), "what was seen before the last plan must be felt");
        // A shorter look is the beginning of a longer one.
        assert_eq!(plans(&scores[..600]), plans(&scores));
    }

    #[test]
    fn a_radius_beyond_all_numbers_is_never_passed() {
        let cells = Cells { edges: vec![-1.0, 0.0, 1.0], scores: vec![0.0, 2.0] };
        for radius in [1e154, 1e200, 1e307, 1e308, f64::MAX, f64::INFINITY] {
            let test = DualTest::new(&cells, &[(0.9, 1.0)], radius, 0.0, Sigma::new(0.25).unwrap());
            assert!(test.hurdle > 0.0, "radius {radius}: hurdle {}", test.hurdle);
            let ladder = Ladder { cells: cells.clone(), rungs: vec![(radius, test)], replanning: None };
            assert_eq!(ladder.climb(&vec![0.9; 5_000], &[1.0], f64::INFINITY), [None], "radius {radius}");
        }
    }

    #[test]
    fn a_ladder_ends_at_its_first_failure_even_if_a_higher_rung_would_pass() {
        let cells = Cells { edges: vec![-1.0, 1.0], scores: vec![0.0] };
        let points = [(0.9, 1.0)];
        let test = |radius, offset| (radius, DualTest::new(&cells, &points, radius, offset, sigma()));
        // Passes, fails because its offset is above every score, would pass again.
        let rungs = vec![test(0.1, 0.0), test(0.2, 0.95), test(0.3, 0.0)];
        let ladder = Ladder { cells: cells.clone(), rungs, replanning: None };
        let scores = vec![0.9_f32; 2_000];
        let target = 100_f64.ln();
        assert_eq!(ladder.climb(&scores, &[target], f64::INFINITY), [Some(0.1)]);
        let trace = ladder.trace(&scores, target);
        assert_eq!(trace.len(), 2);
        assert!(trace[0].log_wealth >= target && trace[1].log_wealth < target, "{trace:?}");
    }

    #[test]
    fn rungs_on_the_way_and_at_a_target_keep_the_others_and_the_order() {
        let points = [(1.0, 0.8), (-1.0, 0.2)];
        let radii = |rungs| -> Vec<f64> {
            let cells = Cells { edges: vec![-1.0, 1.0], scores: vec![0.5] };
            let (ladder, _) = Ladder::new(cells, &points, 1_000, 0.01, 0.0, sigma(), rungs);
            ladder.rungs.iter().map(|rung| rung.0).collect()
        };
        let plain = radii(Rungs::AtTheEnd);
        let way = radii(Rungs::OnTheWay { target: None });
        assert_eq!(way.len(), RUNGS.len() + RUNGS_ON_THE_WAY.len());
        assert!(way.is_sorted() && plain.iter().all(|radius| way.contains(radius)));
        let (low, high) = (plain[0], plain[plain.len() - 1]);
        for (target, more) in [(low / 2.0, 1), (high * 0.33, 1), (2.0 * high, 1), (low, 0)] {
            let found = radii(Rungs::OnTheWay { target: Some(TargetRadius::new(target).unwrap()) });
            assert_eq!(found.len(), way.len() + more, "target {target}");
            assert!(found.is_sorted() && found.contains(&target), "target {target}");
        }
    }

    #[test]
    fn the_mean_bound_is_below_the_mean_and_close_for_many_samples() {
        let values: Vec<f32> = (0..20_000).map(|index| if index % 4 == 0 { -1.0 } else { 1.0 }).collect();
        let (fractions, _) = plan_bets(&[(0.0, 0.25), (2.0 / 1.48, 0.75)]);
        let bound = mean_lower_bound(&values, 1.0, fractions, 0.01, 2.0);
        assert!(bound < 1.5 && bound > 1.47, "{bound}");
    }

    #[test]
    fn cells_cover_the_ball_and_clamp_what_lies_outside() {
        let cells = Cells::new(&[-0.5, 0.5], ScoreRange::symmetric(1.0), 1e-6, 0.0, |_| {
            Probability::from_parts(0.5, 0.5)
        });
        let found: Vec<usize> =
            [-2.0, -1.0, -0.7, -0.5, 0.0, 0.5, 0.9, 1.0, 2.0].map(|s| cells.cell(s)).to_vec();
        assert_eq!(found, [0, 0, 0, 0, 1, 1, 2, 2, 2]);
    }
}
