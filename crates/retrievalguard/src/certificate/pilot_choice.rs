//! What the pilot decides for `half-space`: which negatives look dangerous, which positive or mixture faces each of
//! them, and which form of the test it gets (theory, sections 2.3, 2.4 and 2.6).
//!
//! Everything here may be approximate. A choice made on the pilot costs radius when it is poor, never validity.

use super::betting::{Cells, DualTest, Ladder, Replanning, Rungs};
use super::domain::{Domain, ScoreRange};
use super::empirical_distribution::EmpiricalDistribution;
use super::projection::scores;
use super::separation::{HalfSpace, Separation, Share, WEIGHT_UNIT, separate};
use super::thresholds::{ScoreTable, StepBound};
use super::{Bets, Form, VisibleRows, squared_distance};
use crate::gallery::Gallery;
use crate::normal::{self, Probability};
use crate::product::product;
use crate::{Samples, Sigma};

/// Positives that are tried against a dangerous negative, and from which mixtures are made.
const CANDIDATES: usize = 8;
/// Single positives whose distribution is looked at in full.
const SINGLES: usize = 3;
/// Pilot samples that suffice to rank negatives.
const RANKING_SAMPLES: usize = 256;
/// Negatives that get the careful treatment.
const DANGEROUS: usize = 48;
/// Gallery rows that go through the ranking product together.
const BLOCK: usize = 512;
/// Depths below the mean, in standard deviations, at which negatives that look harmless are counted.
const HARMLESS_DEPTHS: [f32; 12] = [5.0, 4.2, 3.5, 2.9, 2.4, 1.9, 1.4, 0.9, 0.4, -0.2, -0.8, -1.5];

/// One negative and how it will be tested.
#[derive(Clone, Debug)]
pub(crate) struct DangerousNegative {
    /// Row of the negative.
    pub(crate) row: usize,
    /// Rows and weights of the positives that face it.
    pub(crate) positives: Vec<Share>,
    pub(crate) test: Test,
}

impl DangerousNegative {
    /// The half-space that decides, where one does.
    pub(crate) fn half_space(&self) -> Option<&HalfSpace> {
        match &self.test {
            Test::Always | Test::Never => None,
            Test::Thresholds { half_space, .. } | Test::Betting { half_space, .. } => Some(half_space),
        }
    }
}

/// How a dangerous negative is tested.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    /// It can never come first.
    Always,
    /// It cannot be beaten.
    Never,
    /// Count scores above thresholds.
    Thresholds { half_space: HalfSpace, thresholds: Vec<f32> },
    /// Climb a ladder of bets.
    Betting { half_space: HalfSpace, ladder: Ladder },
}

/// A negative that looked harmless on the pilot: one positive, thresholds from two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Harmless {
    pub(crate) negative: usize,
    pub(crate) positive: usize,
    /// Mean and standard deviation of the score, on the pilot.
    pub(crate) mean: f32,
    pub(crate) deviation: f32,
}

impl Harmless {
    /// Ascending thresholds within the range of the score.
    pub(crate) fn thresholds(&self, range: ScoreRange) -> Vec<f32> {
        let (lower, upper) = (range.lower as f32, range.upper as f32);
        let mut places: Vec<f32> = HARMLESS_DEPTHS
            .iter()
            .map(|depth| self.mean - depth * self.deviation)
            .filter(|&place| lower < place && place < upper)
            .collect();
        places.dedup();
        places
    }

    /// Every harmless negative shares its level over this many thresholds, however many survive.
    pub(crate) const fn most_thresholds() -> usize {
        HARMLESS_DEPTHS.len()
    }
}

/// Chooses tests on the pilot, from what is known before any certifying sample is drawn.
pub(crate) struct PilotChooser<'a> {
    pub(crate) gallery: &'a Gallery,
    pub(crate) pilot: &'a Samples,
    pub(crate) sigma: Sigma,
    pub(crate) domain: Domain,
    /// Failure probability of one negative's test.
    pub(crate) level: f64,
    /// Certifying samples that are going to be drawn.
    pub(crate) samples: u32,
    pub(crate) form: Form,
    pub(crate) top_k: usize,
    pub(crate) rungs: Rungs,
    /// Whether bets are planned again while certifying samples come in.
    pub(crate) bets: Bets,
}

/// A negative with its rank on the pilot.
struct Ranked {
    /// Expected radius in units of σ if the scores were Gaussian.
    promise: f64,
    harmless: Harmless,
}

/// Of negatives with their promise, those that [`PilotChooser::choose`] would call dangerous, most dangerous first.
pub(crate) fn smallest_promises(mut ranked: Vec<(f64, usize)>) -> Vec<(f64, usize)> {
    ranked.sort_unstable_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    ranked.truncate(DANGEROUS);
    ranked
}

impl PilotChooser<'_> {
    /// The positives that are tried against a dangerous negative.
    fn candidates(&self, visible: &VisibleRows, mean: &[f64]) -> Vec<usize> {
        let nearest = visible.nearest_positives(self.gallery, mean, CANDIDATES);
        nearest.into_iter().map(|(_, row)| row).collect()
    }

    /// What [`PilotChooser::choose`] ranks the negatives by, and the row of each, for the most dangerous of them.
    pub(crate) fn most_dangerous(&self, visible: &VisibleRows) -> Vec<(f64, usize)> {
        let mean = self.pilot.mean();
        let ranked = self.rank(visible, &mean, &self.candidates(visible, &mean));
        smallest_promises(ranked.iter().map(|one| (one.promise, one.harmless.negative)).collect())
    }

    /// The negatives but for the dangerous rows, which are ascending, as [`PilotChooser::choose`] sees harmless ones.
    pub(crate) fn harmless(&self, visible: &VisibleRows, dangerous: &[usize]) -> Vec<Harmless> {
        let mean = self.pilot.mean();
        let ranked = self.rank(visible, &mean, &self.candidates(visible, &mean));
        let harmless = ranked.into_iter().map(|one| one.harmless);
        harmless.filter(|one| dangerous.binary_search(&one.negative).is_err()).collect()
    }

    /// Splits the negatives into dangerous ones, most dangerous first, and harmless ones.
    pub(crate) fn choose(&self, visible: &VisibleRows) -> (Vec<DangerousNegative>, Vec<Harmless>) {
        let mean = self.pilot.mean();
        let candidates = self.candidates(visible, &mean);
        let mut ranked = self.rank(visible, &mean, &candidates);
        // Views of one item are about equally dangerous, so that as many items need as many more rows.
        let dangerous = (DANGEROUS.max(2 * self.top_k) * self.gallery.views()).min(ranked.len());
        let order = |left: &Ranked, right: &Ranked| {
            left.promise.total_cmp(&right.promise).then(left.harmless.negative.cmp(&right.harmless.negative))
        };
        if dangerous < ranked.len() {
            ranked.select_nth_unstable_by(dangerous, order);
        }
        let mut rest = ranked.split_off(dangerous);
        ranked.sort_unstable_by(order);
        rest.sort_unstable_by_key(|other| other.harmless.negative);

        let mut table = ScoreTables::new(self.samples, self.level);
        let chosen = ranked
            .iter()
            .map(|one| self.choose_test(one.harmless.negative, &mean, &candidates, &mut table))
            .collect();
        (chosen, rest.into_iter().map(|one| one.harmless).collect())
    }

    /// For every negative the best single positive, if scores were Gaussian: `ρ = σ (E S − s)/√Var S`.
    fn rank(&self, visible: &VisibleRows, mean: &[f64], candidates: &[usize]) -> Vec<Ranked> {
        let dimension = self.pilot.dimension();
        let centred = self.centred(mean);
        let drawn = centred.len() / dimension;
        // One product gives the pilot's projections and the inner products with the candidates.
        let mut probes = centred;
        for &row in candidates {
            probes.extend_from_slice(self.gallery.vector(row));
        }
        let width = drawn + candidates.len();
        let mut positive_probes = vec![0.0_f32; candidates.len() * width];
        product(&probes[drawn * dimension..], &probes, dimension, &mut positive_probes);
        let positive_distances: Vec<f64> =
            candidates.iter().map(|&row| squared_distance(mean, self.gallery.vector(row))).collect();

        let mut ranked = Vec::with_capacity(visible.negatives.len());
        let mut rows = vec![0.0_f32; BLOCK * dimension];
        let mut projected = vec![0.0_f32; BLOCK * width];
        for block in visible.negatives.chunks(BLOCK) {
            for (row, &negative) in rows.chunks_exact_mut(dimension).zip(block) {
                row.copy_from_slice(self.gallery.vector(negative));
            }
            let projected = &mut projected[..block.len() * width];
            product(&rows[..block.len() * dimension], &probes, dimension, projected);
            for (probe, &negative) in projected.chunks_exact(width).zip(block) {
                let distance = squared_distance(mean, self.gallery.vector(negative));
                let norm = self.gallery.squared_norm(negative);
                let best = candidates
                    .iter()
                    .zip(positive_probes.chunks_exact(width))
                    .zip(&positive_distances)
                    .enumerate()
                    .map(|(place, ((&positive, positive_probe), &positive_distance))| {
                        let squared: f32 = probe[..drawn]
                            .iter()
                            .zip(&positive_probe[..drawn])
                            .map(|(left, right)| (left - right) * (left - right))
                            .sum();
                        let inner = f64::from(probe[drawn + place]);
                        let gap = (norm + self.gallery.squared_norm(positive) - 2.0 * inner).max(0.0).sqrt();
                        let advantage = (distance - positive_distance) / 2.0;
                        let spread =
                            (f64::from(squared) / drawn as f64).sqrt() + 1e-3 * gap * self.domain.range;
                        let midpoint = (self.gallery.squared_norm(positive) - norm) / 2.0;
                        Ranked {
                            promise: advantage / spread.max(f64::MIN_POSITIVE),
                            harmless: Harmless {
                                negative,
                                positive,
                                mean: ((advantage + midpoint) / gap.max(1e-12)) as f32,
                                deviation: (spread / gap.max(1e-12)) as f32,
                            },
                        }
                    })
                    .reduce(|left, right| if right.promise > left.promise { right } else { left });
                ranked.extend(best);
            }
        }
        ranked
    }

    /// Rows of the pilot, evenly chosen, minus their mean.
    fn centred(&self, mean: &[f64]) -> Vec<f32> {
        let count = self.pilot.count() as usize;
        let used = count.min(RANKING_SAMPLES);
        (0..used)
            .flat_map(|place| {
                let row = self.pilot.row(place * count / used);
                row.iter().zip(mean).map(|(&value, &mean)| (f64::from(value) - mean) as f32)
            })
            .collect()
    }

    /// Chooses positives and test for one dangerous negative.
    fn choose_test(
        &self,
        negative: usize,
        mean: &[f64],
        candidates: &[usize],
        table: &mut ScoreTables,
    ) -> DangerousNegative {
        let mut singles: Vec<(f64, usize)> =
            candidates.iter().map(|&row| (self.promise(row, negative, mean), row)).collect();
        singles.sort_by(|left, right| right.0.total_cmp(&left.0));
        singles.truncate(SINGLES);
        let mut choices: Vec<Vec<Share>> = singles.iter().map(|&(_, row)| vec![(row, WEIGHT_UNIT)]).collect();
        choices.extend(self.mixture(negative, mean, candidates));

        let mut best: Option<(Vec<Share>, Sketch)> = None;
        for positives in choices {
            match self.separate(&positives, negative) {
                Separation::Always => {
                    return DangerousNegative { row: negative, positives, test: Test::Always };
                }
                Separation::Never => {}
                Separation::Open(half_space) => {
                    let sketch = self.sketch(half_space, table);
                    if best.as_ref().is_none_or(|(_, other)| sketch.promise() > other.promise()) {
                        best = Some((positives, sketch));
                    }
                }
            }
        }
        match best {
            Some((positives, sketch)) => {
                DangerousNegative { row: negative, positives, test: self.choose_form(sketch) }
            }
            None => DangerousNegative { row: negative, positives: Vec::new(), test: Test::Never },
        }
    }

    /// Gaussian guess of the radius for one positive against one negative, in units of σ.
    fn promise(&self, positive: usize, negative: usize, mean: &[f64]) -> f64 {
        let shares = [(positive, WEIGHT_UNIT)];
        match self.separate(&shares, negative) {
            Separation::Always => f64::INFINITY,
            Separation::Never => f64::NEG_INFINITY,
            Separation::Open(half_space) => {
                let centre: f64 =
                    mean.iter().zip(&half_space.direction).map(|(left, right)| left * right).sum();
                let scores = scores(self.pilot, self.domain.range, &half_space.direction);
                let variance: f64 =
                    scores.iter().map(|&score| (f64::from(score) - centre).powi(2)).sum::<f64>()
                        / scores.len() as f64;
                (centre - half_space.offset) / (variance.sqrt() + 1e-3 * self.domain.range)
            }
        }
    }

    pub(crate) fn separate(&self, positives: &[Share], negative: usize) -> Separation {
        let vectors: Vec<(&[f32], u32)> =
            positives.iter().map(|&(row, share)| (self.gallery.vector(row), share)).collect();
        separate(&vectors, self.gallery.vector(negative), &self.domain)
    }

    /// The mixture of positives with the largest ratio of mean to deviation against one negative.
    ///
    /// With `T_a = ⟨h, v_a − v_b⟩`, maximises `Σ λ_a n_a / sqrt(λᵀ G λ)` over `λ ≥ 0`, where `n_a` is the mean of
    /// `T_a` above its threshold and `G` its covariance: `min λᵀGλ/2 − nᵀλ` by coordinate descent, then scaled.
    fn mixture(&self, negative: usize, mean: &[f64], candidates: &[usize]) -> Option<Vec<Share>> {
        if candidates.len() < 2 {
            return None;
        }
        let dimension = self.pilot.dimension();
        let centred = self.centred(mean);
        let drawn = centred.len() / dimension;
        let differences: Vec<f32> = candidates
            .iter()
            .flat_map(|&row| {
                let pair = self.gallery.vector(row).iter().zip(self.gallery.vector(negative));
                pair.map(|(left, right)| left - right)
            })
            .collect();
        let count = candidates.len();
        let mut projected = vec![0.0_f32; count * drawn];
        product(&differences, &centred, dimension, &mut projected);
        let distance = squared_distance(mean, self.gallery.vector(negative));
        let advantages: Vec<f64> = candidates
            .iter()
            .map(|&row| (distance - squared_distance(mean, self.gallery.vector(row))) / 2.0)
            .collect();
        let gram = |left: usize, right: usize| -> f64 {
            let inner = |values: &[f32], width: usize| -> f64 {
                values[left * width..][..width]
                    .iter()
                    .zip(&values[right * width..][..width])
                    .map(|(&first, &second)| f64::from(first) * f64::from(second))
                    .sum()
            };
            // A little of the identity keeps directions without spread from being trusted for ever.
            inner(&projected, drawn) / drawn as f64
                + 1e-4 * self.domain.range.powi(2) * inner(&differences, dimension)
        };
        let matrix: Vec<f64> = (0..count * count).map(|place| gram(place / count, place % count)).collect();
        let mut weights = vec![0.0_f64; count];
        for _ in 0..60 {
            for place in 0..count {
                let row = &matrix[place * count..][..count];
                let others: f64 = row.iter().zip(&weights).map(|(entry, weight)| entry * weight).sum::<f64>()
                    - row[place] * weights[place];
                weights[place] = ((advantages[place] - others) / row[place].max(f64::MIN_POSITIVE)).max(0.0);
            }
        }
        let total: f64 = weights.iter().sum();
        if !(total.is_finite() && total > 0.0) {
            return None;
        }
        let mut shares: Vec<Share> = candidates
            .iter()
            .zip(&weights)
            .map(|(&row, weight)| (row, (weight / total * f64::from(WEIGHT_UNIT)).floor() as u32))
            .collect();
        shares.retain(|&(_, share)| share > WEIGHT_UNIT / 100);
        if shares.len() < 2 {
            return None;
        }
        // What flooring and dropping left over goes to the heaviest, so that the weights sum to one exactly.
        let given: u32 = shares.iter().map(|&(_, share)| share).sum();
        if let Some(heaviest) = shares.iter_mut().max_by_key(|share| share.1) {
            heaviest.1 += WEIGHT_UNIT - given;
        }
        Some(shares)
    }

    /// The pilot's scores in the direction of a half-space.
    fn empirical(&self, half_space: &HalfSpace) -> EmpiricalDistribution {
        let scores = scores(self.pilot, self.domain.range, &half_space.direction);
        EmpiricalDistribution::new(scores, half_space.scores, self.pilot.dimension())
    }

    /// What the pilot says about a half-space, with the radius that counting should give.
    pub(crate) fn sketch(&self, half_space: HalfSpace, table: &mut ScoreTables) -> Sketch {
        let empirical = self.empirical(&half_space);
        let thresholds = empirical.thresholds(self.samples);
        let trials = f64::from(self.samples);
        let sharing = thresholds.len().max(1);
        let scores = thresholds.iter().map(|&place| {
            let expected = (trials * empirical.above(f64::from(place)).get()).floor() as u32;
            table.score(sharing, expected)
        });
        let bound = StepBound::new(&thresholds, scores, half_space.scores, self.sigma);
        let counting = bound.radius(half_space.offset);
        Sketch { half_space, empirical, thresholds, counting }
    }

    /// Chooses between the two finite-sample forms.
    pub(crate) fn choose_form(&self, sketch: Sketch) -> Test {
        let Sketch { half_space, empirical, thresholds, counting } = sketch;
        if self.form == Form::Thresholds {
            return Test::Thresholds { half_space, thresholds };
        }
        let cells = Cells::between(&thresholds, &empirical, self.floor());
        let (samples, level, offset) = (self.samples, self.level, half_space.offset);
        let (mut ladder, radius) =
            Ladder::new(cells, &empirical.points(), samples, level, offset, self.sigma, self.rungs);
        // Where neither promises anything, bets near zero ask for least.
        if self.form == Form::Betting || radius >= counting {
            ladder.replanning = match self.bets {
                Bets::Fixed => None,
                Bets::Replanned => Some(self.replanning(&half_space)),
            };
            Test::Betting { half_space, ladder }
        } else {
            Test::Thresholds { half_space, thresholds }
        }
    }
}

/// A half-space as the pilot sees it.
pub(crate) struct Sketch {
    half_space: HalfSpace,
    empirical: EmpiricalDistribution,
    thresholds: Vec<f32>,
    /// Radius that the threshold form should reach.
    counting: Option<f64>,
}

impl Sketch {
    /// Larger is better; half-spaces without hope are ordered by how far the mean is from the offset.
    fn promise(&self) -> f64 {
        self.counting
            .unwrap_or_else(|| (self.empirical.mean() - self.half_space.offset).min(0.0) - f64::MIN_POSITIVE)
    }
}

impl PilotChooser<'_> {
    /// A betting test of one radius for a half-space, chosen on the pilot's scores.
    pub(crate) fn wager(&self, half_space: &HalfSpace, radius: f64) -> Wager {
        let empirical = self.empirical(half_space);
        let thresholds = empirical.thresholds(self.samples);
        let cells = Cells::between(&thresholds, &empirical, self.floor());
        let test = DualTest::new(&cells, &empirical.points(), radius, half_space.offset, self.sigma);
        Wager { cells, test }
    }

    /// The same for a negative that looked harmless, from two moments of its score.
    pub(crate) fn wager_from_moments(
        &self,
        harmless: &Harmless,
        half_space: &HalfSpace,
        radius: f64,
    ) -> Wager {
        let thresholds = harmless.thresholds(half_space.scores);
        let (mean, deviation) = (f64::from(harmless.mean), f64::from(harmless.deviation).max(1e-9));
        let cells = Cells::new(&thresholds, half_space.scores, self.floor(), 0.0, |place| {
            normal::probability((mean - place) / deviation)
        });
        let points: Vec<(f64, f64)> = (0..MOMENT_POINTS)
            .map(|point| {
                let level = (point as f64 + 0.5) / MOMENT_POINTS as f64;
                let score = normal::quantile(Probability::from_parts(level, 1.0 - level));
                (mean + score * deviation, 1.0 / MOMENT_POINTS as f64)
            })
            .collect();
        let test = DualTest::new(&cells, &points, radius, half_space.offset, self.sigma);
        Wager { cells, test }
    }

    fn replanning(&self, half_space: &HalfSpace) -> Replanning {
        Replanning {
            pilot: scores(self.pilot, self.domain.range, &half_space.direction),
            range: half_space.scores,
            dimension: self.pilot.dimension(),
            samples: self.samples,
            floor: self.floor(),
            offset: half_space.offset,
            sigma: self.sigma,
        }
    }

    /// With this many samples a mass below this cannot be told from nothing.
    fn floor(&self) -> f64 {
        (-self.level.ln() / f64::from(self.samples)).min(0.5)
    }
}

/// A bounded mean to bet on, and the cells it is made of.
#[derive(Clone, Debug)]
pub(crate) struct Wager {
    pub(crate) cells: Cells,
    pub(crate) test: DualTest,
}

/// Quantiles that represent a Gaussian when a bet is planned.
const MOMENT_POINTS: usize = 24;

/// Score tables by the number of thresholds that share the level.
pub(crate) struct ScoreTables {
    samples: u32,
    level: f64,
    tables: Vec<Option<ScoreTable>>,
}

impl ScoreTables {
    pub(crate) fn new(samples: u32, level: f64) -> Self {
        Self { samples, level, tables: Vec::new() }
    }

    /// Normal score of the lower bound when `sharing` thresholds share the level.
    pub(crate) fn score(&mut self, sharing: usize, successes: u32) -> f64 {
        if self.tables.len() <= sharing {
            self.tables.resize_with(sharing + 1, || None);
        }
        let (samples, level) = (self.samples, self.level / sharing as f64);
        self.tables[sharing].get_or_insert_with(|| ScoreTable::new(samples, level)).score(successes)
    }
}
