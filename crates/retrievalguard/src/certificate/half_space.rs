//! `half-space`: the whole-distribution certificate (theory, sections 2.3 to 2.5), the default.
//!
//! A negative `b` can come first only if the mean of the score `S = ⟨h(x+z), u⟩` falls to `s`. How far it can fall
//! under a shift of the picture is known from the distribution of `S` alone, so every negative gets its own radius,
//! and the smallest is the query's. Each negative is tested at the full level: an error matters only for the one
//! whose true radius is smallest (section 2.5).

use super::betting::{Ladder, Rungs};
use super::domain::Domain;
use super::pilot_choice::{DangerousNegative, Harmless, PilotChooser, ScoreTables, Test};
use super::projection::{for_each_score, narrow, scores, scores_in_all};
use super::separation::{HalfSpace, Separation, WEIGHT_UNIT, separate};
use super::thresholds::{ScoreTable, StepBound, count_above};
use super::{
    CertificateError, CertificateName, Certifier, Explanation, Outcome, Radius, SampledQuery, Verdict,
    VisibleRows, check_alike,
};
use crate::gallery::{Gallery, Relevance};
use crate::normal;
use crate::storage::stored::GalleryRef;
use crate::{Alpha, Components, SampleCount, Samples};

/// Which finite-sample form tests a negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The pilot decides, negative by negative.
    #[default]
    ByPilot,
    /// Thresholds with Clopper–Pearson bounds.
    Thresholds,
    /// The dual betting test.
    Betting,
}

/// When the bets of the second form are planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bets {
    /// On the pilot, once and for all.
    #[default]
    Fixed,
    /// On the pilot, and again at doublings of the certifying sample, from what was seen of it.
    Replanned,
}

/// What is asked of the whole-distribution certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfSpaceOptions {
    /// Radii `R_1 … R_k` for Recall@1 to Recall@k.
    pub top_k: usize,
    /// Which form tests a negative.
    pub form: Form,
}

impl Default for HalfSpaceOptions {
    fn default() -> Self {
        Self { top_k: 1, form: Form::ByPilot }
    }
}

/// Radii for Recall@1 to Recall@k and the numbers behind the first.
#[derive(Clone, Debug, PartialEq)]
pub struct HalfSpaceOutcome {
    /// Verdict for Recall@1, Recall@2, …; each is valid at `α` by itself.
    ///
    /// Recall@j is tested at `α/j`, so a deeper radius can come out below a shallower one. The larger of two is not proved at
    /// `α`: that of Recall@1 and Recall@2 only at `3α/2` (theory, section 2.5).
    pub verdicts: Vec<Verdict>,
    /// Certifying samples used.
    pub samples: u32,
    /// The chain of numbers behind the verdict for Recall@1.
    pub explain: Explanation,
}

impl HalfSpaceOutcome {
    /// The verdict for Recall@1.
    pub fn into_outcome(self) -> Outcome {
        let verdict = self.verdicts.first().copied().unwrap_or(Verdict::Abstained);
        Outcome { name: CertificateName::HalfSpace, verdict, samples: self.samples, explain: self.explain }
    }
}

/// Everything the pilot decided about one query; certifying samples are judged by it and change nothing in it.
#[derive(Clone, Debug)]
pub(crate) struct HalfSpacePlan<'a> {
    pub(crate) certifier: Certifier<'a>,
    pub(crate) gallery: &'a Gallery,
    visible: VisibleRows,
    pub(crate) dangerous: Vec<DangerousNegative>,
    pub(crate) harmless: Vec<Harmless>,
    top_k: usize,
    pub(crate) domain: Domain,
    pilot: Samples,
}

impl<'a> Certifier<'a> {
    /// Radii for Recall@1 to Recall@k.
    ///
    /// ```
    /// use retrievalguard::certificate::{Certifier, Form, HalfSpaceOptions, SampledQuery};
    /// use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
    /// use retrievalguard::{Alpha, Excess, NormBound, Samples, Sigma};
    ///
    /// let names = |word: &str| (0..3).map(|row| format!("{word} {row}")).collect::<Vec<_>>();
    /// let vectors = vec![1.0, 0.0, -1.0, 0.0, 0.0, -1.0];
    /// let gallery = Gallery::new(vectors, 2, names("item"), &names("label"), Metric::Euclidean)?;
    /// let near = |count| Samples::new([0.9, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse);
    /// let query = SampledQuery { pilot: near(100)?, certifying: near(1_000)? };
    /// // The same item stays first, and stays among the first two.
    /// let relevance = Relevance::new(Positives::Item(0), vec![]);
    /// let options = HalfSpaceOptions { top_k: 2, form: Form::ByPilot };
    /// let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
    /// let outcome = certifier.half_space(&query, &relevance, &options)?;
    /// assert!(outcome.verdicts.iter().all(|verdict| verdict.radius().is_some()));
    /// println!("{}", outcome.explain);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn half_space(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
        options: &HalfSpaceOptions,
    ) -> Result<HalfSpaceOutcome, CertificateError> {
        check_alike(&query.pilot, &query.certifying)?;
        if let GalleryRef::Shards(gallery) = self.gallery {
            return match options.top_k {
                0 => Err(CertificateError::TopKZero),
                1 => self.half_space_in_shards(gallery, query, relevance, options.form),
                _ => Err(CertificateError::InMemoryOnly("half-space for recall@2 and deeper")),
            };
        }
        let samples = SampleCount::new(u64::from(query.certifying.count())).expect("samples are never empty");
        self.plan_half_space(&query.pilot, relevance, samples, options)?.certify(&query.certifying)
    }

    /// Decides on the pilot how `samples` certifying samples will be judged.
    pub(crate) fn plan_half_space(
        &self,
        pilot: &Samples,
        relevance: &Relevance,
        samples: SampleCount,
        options: &HalfSpaceOptions,
    ) -> Result<HalfSpacePlan<'a>, CertificateError> {
        self.plan_with_rungs(pilot, relevance, samples, options, Rungs::AtTheEnd)
    }

    /// The same, with these rungs on every ladder.
    pub(crate) fn plan_with_rungs(
        &self,
        pilot: &Samples,
        relevance: &Relevance,
        samples: SampleCount,
        options: &HalfSpaceOptions,
        rungs: Rungs,
    ) -> Result<HalfSpacePlan<'a>, CertificateError> {
        self.check_dimension(pilot)?;
        let gallery = self.memory("a target radius of half-space")?;
        let visible = self.visible_rows(relevance)?;
        if options.top_k == 0 {
            return Err(CertificateError::TopKZero);
        }
        let negatives = self.gallery.count_items(&visible.negatives);
        if options.top_k > negatives {
            return Err(CertificateError::TopKTooLarge { top_k: options.top_k, negatives });
        }
        let chooser = self.chooser(gallery, pilot, samples.get(), options, rungs);
        let (domain, (dangerous, harmless)) = (
            chooser.domain,
            if visible.positives.is_empty() { (Vec::new(), Vec::new()) } else { chooser.choose(&visible) },
        );
        Ok(HalfSpacePlan {
            certifier: *self,
            gallery,
            visible,
            dangerous,
            harmless,
            top_k: options.top_k,
            domain,
            pilot: pilot.clone(),
        })
    }

    fn chooser<'pilot>(
        &self,
        gallery: &'pilot Gallery,
        pilot: &'pilot Samples,
        samples: u32,
        options: &HalfSpaceOptions,
        rungs: Rungs,
    ) -> PilotChooser<'pilot> {
        PilotChooser {
            gallery,
            pilot,
            sigma: self.sigma,
            domain: Domain::of(pilot),
            level: self.alpha.get(),
            samples,
            form: options.form,
            top_k: options.top_k,
            rungs,
            bets: self.bets,
        }
    }

    /// The negatives that look most dangerous on the pilot, each behind its rank, for a piece of a gallery.
    pub(crate) fn most_dangerous(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
    ) -> Result<Vec<(f64, usize)>, CertificateError> {
        let gallery = self.memory("a piece of a gallery")?;
        let visible = self.check_and_split(query, relevance)?;
        let options = HalfSpaceOptions::default();
        let samples = query.certifying.count();
        let chooser = self.chooser(gallery, &query.pilot, samples, &options, Rungs::AtTheEnd);
        Ok(chooser.most_dangerous(&visible))
    }

    /// The smallest radius of the negatives that are not dangerous, with its row, if one does not reach `enough`.
    ///
    /// The rows in `dangerous` ascend. Each negative is tested as [`Certifier::half_space`] tests it.
    pub(crate) fn weakest_harmless(
        &self,
        query: &SampledQuery,
        relevance: &Relevance,
        dangerous: &[usize],
        enough: Radius,
    ) -> Result<Option<(Radius, usize)>, CertificateError> {
        let gallery = self.memory("a piece of a gallery")?;
        let visible = self.check_and_split(query, relevance)?;
        let options = HalfSpaceOptions::default();
        let samples = query.certifying.count();
        let chooser = self.chooser(gallery, &query.pilot, samples, &options, Rungs::AtTheEnd);
        let (domain, harmless) = (chooser.domain, chooser.harmless(&visible, dangerous));
        let pilot = query.pilot.clone();
        let dangerous = Vec::new();
        let certifier = *self;
        let plan =
            HalfSpacePlan { certifier, gallery, visible, dangerous, harmless, top_k: 1, domain, pilot };
        let found = plan.test_harmless(&query.certifying, &[self.alpha.get()], &[enough]);
        Ok(found.iter().map(|one| (one.radii[0], one.negative)).reduce(weaker))
    }
}

/// The smaller of two radii, the first if they are equal.
pub(crate) fn weaker(left: (Radius, usize), right: (Radius, usize)) -> (Radius, usize) {
    if right.0 < left.0 { right } else { left }
}

/// Radii of one negative at the levels `α, α/2, …, α/k`.
struct NegativeRadii {
    negative: usize,
    /// Index into the dangerous negatives, if it is one of them.
    dangerous: Option<usize>,
    radii: Vec<Radius>,
}

/// A negative that could not be shown to be beaten even at radius zero.
const BEATEN: Radius = Radius::Finite(f64::NEG_INFINITY);

impl HalfSpacePlan<'_> {
    /// Judges certifying samples at the certifier's `α`.
    pub(crate) fn certify(&self, samples: &Samples) -> Result<HalfSpaceOutcome, CertificateError> {
        self.certify_at(samples, self.certifier.alpha)
    }

    /// Judges certifying samples at another failure probability, for instance one look's share.
    ///
    /// Section 2.5: for `R_j` every negative is tested at `α/j`; the j-th smallest of the radii then exceeds the true
    /// one only if one of the j truly smallest was overestimated. Items count, each by the least radius of its views: an
    /// item is overestimated only if its truly weakest view is (section 13).
    pub(crate) fn certify_at(
        &self,
        samples: &Samples,
        alpha: Alpha,
    ) -> Result<HalfSpaceOutcome, CertificateError> {
        self.judge(samples, alpha, alpha)
    }

    /// Judges certifying samples: bets at the failure probability `betting`, counts at `counting`.
    ///
    /// Each negative has one form, so it is tested at one of the two (section 2.8).
    pub(crate) fn judge(
        &self,
        samples: &Samples,
        betting: Alpha,
        counting: Alpha,
    ) -> Result<HalfSpaceOutcome, CertificateError> {
        check_alike(&self.pilot, samples)?;
        let n = samples.count();
        let mut explain = self.explain_setting(n, betting, counting);
        let before = self.visible.negatives_before_positives(self.gallery, &samples.mean());
        let Some(before) = before else {
            return Ok(HalfSpaceOutcome {
                verdicts: vec![Verdict::Misretrieved; self.top_k],
                samples: n,
                explain,
            });
        };
        let shares =
            |alpha: Alpha| -> Vec<f64> { (1..=self.top_k).map(|rank| alpha.get() / rank as f64).collect() };
        let (betting, counting) = (shares(betting), shares(counting));
        let mut tables: Vec<ScoreTables> = counting.iter().map(|&level| ScoreTables::new(n, level)).collect();
        let mut found = self.test_dangerous(samples, &betting, &mut tables);
        // What a harmless negative must reach in order not to matter.
        let enough: Vec<Radius> = (0..self.top_k)
            .map(|rank| self.nth_smallest(&found, rank).unwrap_or(Radius::Unbounded))
            .collect();
        found.extend(self.test_harmless(samples, &counting, &enough));

        let radii: Vec<Radius> =
            (0..self.top_k).map(|rank| self.nth_smallest(&found, rank).unwrap_or(BEATEN)).collect();
        self.explain_weakest(&found, samples, betting[0], &mut tables[0], &mut explain);
        let verdicts: Vec<Verdict> = radii
            .iter()
            .enumerate()
            .map(|(rank, &radius)| Verdict::from_radius(before <= rank, Some(radius)))
            .collect();
        explain.conclude(verdicts[0], "theory 2.4, 2.5");
        Ok(HalfSpaceOutcome { verdicts, samples: n, explain })
    }

    /// What is tested, before any result.
    pub(super) fn explain_setting(&self, samples: u32, betting: Alpha, counting: Alpha) -> Explanation {
        let mut explain = Explanation::default();
        explain
            .add("samples n", samples, "theory 2.3")
            .add("pilot samples", self.pilot.count(), "theory 0, pilot")
            .add("norm bound F", self.pilot.norm_bound().get(), "theory 0")
            .add("sigma", self.certifier.sigma.get(), "theory 0")
            .add("alpha", betting.get(), "theory 2.5");
        if counting != betting {
            explain.add("share of alpha for counts", counting.get(), "theory 2.8");
        }
        if self.pilot.components() == Components::NonNegative {
            explain.add("components", "clamped", "theory 12.1");
        }
        let gallery = self.certifier.gallery;
        explain.add("positives", gallery.count_items(&self.visible.positives), "theory 2.1").add(
            "negatives",
            gallery.count_items(&self.visible.negatives),
            "theory 2.1",
        );
        if gallery.views() > 1 {
            explain.add("views of an item", gallery.views(), "theory 13");
        }
        explain
    }

    /// Radii of the dangerous negatives, from bets at these levels or from counts by these tables.
    fn test_dangerous(
        &self,
        samples: &Samples,
        levels: &[f64],
        tables: &mut [ScoreTables],
    ) -> Vec<NegativeRadii> {
        let targets: Vec<f64> = levels.iter().map(|level| -level.ln()).collect();
        let sigma = self.certifier.sigma;
        let mut found: Vec<NegativeRadii> = Vec::with_capacity(self.dangerous.len());
        // Scores of several negatives come out of one product; few enough at a time to stay small.
        let together = (SCORES_AT_ONCE / samples.count() as usize).max(1);
        for (group, negatives) in self.dangerous.chunks(together).enumerate() {
            let directions: Vec<&[f64]> = negatives
                .iter()
                .filter_map(DangerousNegative::half_space)
                .map(|half| half.direction.as_slice())
                .collect();
            let mut scores = scores_in_all(samples, self.domain.range, &directions).into_iter();
            for (place, negative) in negatives.iter().enumerate() {
                let mut own = || scores.next().unwrap_or_default();
                let radii = match &negative.test {
                    Test::Always => vec![Radius::Unbounded; levels.len()],
                    Test::Never => vec![BEATEN; levels.len()],
                    Test::Thresholds { half_space, thresholds } => {
                        let mut counts = vec![0; thresholds.len()];
                        count_above(&own(), thresholds, &mut counts);
                        tables
                            .iter_mut()
                            .map(|table| {
                                let scores = counts.iter().map(|&count| table.score(thresholds.len(), count));
                                let bound = StepBound::new(thresholds, scores, half_space.scores, sigma);
                                bound.radius(half_space.offset).map_or(BEATEN, Radius::Finite)
                            })
                            .collect()
                    }
                    Test::Betting { ladder, .. } => {
                        // Above what another negative has shown already, a radius cannot change the result.
                        let enough = if levels.len() == 1 {
                            self.nth_smallest(&found, 0).map_or(f64::INFINITY, Radius::get)
                        } else {
                            f64::INFINITY
                        };
                        let reached = ladder.climb(&own(), &targets, enough);
                        reached.into_iter().map(|radius| radius.map_or(BEATEN, Radius::Finite)).collect()
                    }
                };
                let dangerous = Some(group * together + place);
                found.push(NegativeRadii { negative: negative.row, dangerous, radii });
            }
        }
        found
    }

    /// Radii of the harmless negatives; those that reach `enough` are left out, because they cannot matter.
    fn test_harmless(&self, samples: &Samples, levels: &[f64], enough: &[Radius]) -> Vec<NegativeRadii> {
        let sharing = Harmless::most_thresholds();
        let mut tables: Vec<ScoreTable> =
            levels.iter().map(|level| ScoreTable::new(samples.count(), level / sharing as f64)).collect();
        let mut found = Vec::new();
        let mut open: Vec<(&Harmless, HalfSpace, Vec<f32>, Vec<u32>)> = Vec::with_capacity(HARMLESS_BLOCK);
        for block in self.harmless.chunks(HARMLESS_BLOCK) {
            open.clear();
            for harmless in block {
                match self.separate(harmless) {
                    Separation::Always => {}
                    Separation::Never => {
                        let radii = vec![BEATEN; levels.len()];
                        found.push(NegativeRadii { negative: harmless.negative, dangerous: None, radii });
                    }
                    Separation::Open(half_space) => {
                        let thresholds = harmless.thresholds(half_space.scores);
                        let counts = vec![0; thresholds.len()];
                        open.push((harmless, half_space, thresholds, counts));
                    }
                }
            }
            let directions: Vec<&[f64]> = open.iter().map(|one| one.1.direction.as_slice()).collect();
            let places: Vec<&[f32]> = open.iter().map(|one| one.2.as_slice()).collect();
            let mut counts: Vec<Vec<u32>> = places.iter().map(|places| vec![0; places.len()]).collect();
            for_each_score(
                samples,
                self.domain.range,
                directions.len(),
                |place, row| narrow(directions[place], row),
                |place, _, scores| count_above(scores, places[place], &mut counts[place]),
            );
            for ((harmless, half_space, thresholds, _), counts) in open.iter().zip(counts) {
                let mut matters = false;
                let radii = tables
                    .iter_mut()
                    .zip(enough)
                    .map(|(table, &enough)| {
                        let scores = counts.iter().map(|&count| table.score(count));
                        let bound =
                            StepBound::new(thresholds, scores, half_space.scores, self.certifier.sigma);
                        if let Radius::Finite(radius) = enough
                            && bound.mean_after(radius.max(0.0)) > half_space.offset
                        {
                            return Radius::Unbounded;
                        }
                        matters = true;
                        bound.radius(half_space.offset).map_or(BEATEN, Radius::Finite)
                    })
                    .collect();
                if matters {
                    found.push(NegativeRadii { negative: harmless.negative, dangerous: None, radii });
                }
            }
        }
        found
    }

    /// The `rank`-th smallest radius of an item, counted from zero, among those at the level of that rank.
    ///
    /// An item's radius is the least of its rows'.
    fn nth_smallest(&self, found: &[NegativeRadii], rank: usize) -> Option<Radius> {
        let gallery = self.certifier.gallery;
        let mut rows: Vec<(usize, f64)> =
            found.iter().map(|one| (gallery.item(one.negative), one.radii[rank].get())).collect();
        if rank > 0 && gallery.views() > 1 {
            rows.sort_unstable_by(|left, right| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)));
            rows.dedup_by_key(|row| row.0);
        }
        if rank >= rows.len() {
            return None;
        }
        let (_, &mut (_, radius), _) =
            rows.select_nth_unstable_by(rank, |left, right| left.1.total_cmp(&right.1));
        Some(if radius == f64::INFINITY { Radius::Unbounded } else { Radius::Finite(radius) })
    }

    /// The pilot on which everything was decided.
    pub(crate) fn pilot(&self) -> &Samples {
        &self.pilot
    }

    /// Whether some negative cannot be beaten, whatever the samples are; without positives none can.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.visible.positives.is_empty()
            || self.dangerous.iter().any(|negative| matches!(negative.test, Test::Never))
            || self.harmless.iter().any(|harmless| matches!(self.separate(harmless), Separation::Never))
    }

    /// Whether the stored vector nearest to `mean` is a right answer.
    pub(crate) fn retrieves(&self, mean: &[f64]) -> bool {
        self.visible.negatives_before_positives(self.gallery, mean) == Some(0)
    }

    pub(crate) fn separate(&self, harmless: &Harmless) -> Separation {
        let gallery = self.gallery;
        let positive = [(gallery.vector(harmless.positive), WEIGHT_UNIT)];
        separate(&positive, gallery.vector(harmless.negative), &self.domain)
    }

    /// The numbers of the negative that decided Recall@1.
    fn explain_weakest(
        &self,
        found: &[NegativeRadii],
        samples: &Samples,
        level: f64,
        table: &mut ScoreTables,
        explain: &mut Explanation,
    ) {
        let weakest =
            found.iter().reduce(|left, right| if right.radii[0] < left.radii[0] { right } else { left });
        let Some(weakest) = weakest else { return };
        let gallery = self.gallery;
        explain
            .add("deciding negative row", weakest.negative, "theory 2.4")
            .add("deciding negative", gallery.identity(weakest.negative), "theory 2.4")
            .add("its label", gallery.label_name(gallery.label(weakest.negative)), "theory 2.4");
        if let Some(view) = gallery.view(weakest.negative) {
            explain.add("its view", view, "theory 13");
        }
        let Some(negative) = weakest.dangerous.map(|place| &self.dangerous[place]) else {
            let harmless = self.harmless.iter().find(|one| one.negative == weakest.negative);
            if let Some(harmless) = harmless
                && let Separation::Open(half_space) = self.separate(harmless)
            {
                explain.add("positive rows", vec![harmless.positive as f64], "theory 2.1");
                explain_half_space(&half_space, samples, explain);
                let (thresholds, sharing) =
                    (harmless.thresholds(half_space.scores), Harmless::most_thresholds());
                let counting = Counting { half_space: &half_space, thresholds: &thresholds, sharing };
                counting.explain(samples, self.domain.range, table, explain);
            }
            return;
        };
        let rows = negative.positives.iter().map(|&(row, _)| row as f64).collect::<Vec<_>>();
        let weights = negative.positives.iter().map(|&(_, share)| f64::from(share) / f64::from(WEIGHT_UNIT));
        explain.add("positive rows", rows, "theory 2.1").add(
            "positive weights",
            weights.collect::<Vec<_>>(),
            "theory 2.1",
        );
        match &negative.test {
            Test::Always => {
                explain.add("form", "every embedding lies inside the half-space", "theory 2.1");
            }
            Test::Never => {
                explain.add("form", "this negative cannot be beaten", "theory 2.1");
            }
            Test::Thresholds { half_space, thresholds } => {
                explain_half_space(half_space, samples, explain);
                let counting = Counting { half_space, thresholds, sharing: thresholds.len() };
                counting.explain(samples, self.domain.range, table, explain);
            }
            Test::Betting { half_space, ladder } => {
                explain_half_space(half_space, samples, explain);
                let scores = scores(samples, self.domain.range, &half_space.direction);
                explain_ladder(ladder, &scores, level, explain);
            }
        }
    }
}

fn explain_half_space(half_space: &HalfSpace, samples: &Samples, explain: &mut Explanation) {
    let mean: f64 = samples.mean().iter().zip(&half_space.direction).map(|(left, right)| left * right).sum();
    explain.add("threshold s", half_space.offset, "theory 2.1").add("mean score", mean, "theory 2.1");
    if samples.components() == Components::NonNegative {
        let range = vec![half_space.scores.lower, half_space.scores.upper];
        explain.add("least and largest possible score", range, "theory 12.1");
    }
}

pub(super) fn explain_ladder(ladder: &Ladder, scores: &[f32], level: f64, explain: &mut Explanation) {
    let statement = "theory 2.3, second form";
    let trace = ladder.trace(scores, -level.ln());
    explain
        .add("form", "dual betting test", statement)
        .add("log wealth needed", -level.ln(), statement)
        .add("radii tested", trace.iter().map(|rung| rung.radius).collect::<Vec<_>>(), statement)
        .add("hurdles y0", trace.iter().map(|rung| rung.hurdle).collect::<Vec<_>>(), statement)
        .add("log wealth reached", trace.iter().map(|rung| rung.log_wealth).collect::<Vec<_>>(), statement);
    let replanned = ladder.replanned_after(scores.len());
    if !replanned.is_empty() {
        explain.add("bets planned again after", replanned, "theory 12.2");
    }
}

/// A half-space, its thresholds, and how many share the level.
pub(super) struct Counting<'a> {
    pub(super) half_space: &'a HalfSpace,
    pub(super) thresholds: &'a [f32],
    pub(super) sharing: usize,
}

impl Counting<'_> {
    /// Every number of the threshold form.
    pub(super) fn explain(
        &self,
        samples: &Samples,
        range: f64,
        table: &mut ScoreTables,
        explain: &mut Explanation,
    ) {
        let statement = "theory 2.3, first form";
        let counts = count_scores(samples, range, self.half_space, self.thresholds);
        let bounds = counts.iter().map(|&count| normal::distribution(table.score(self.sharing, count)));
        explain
            .add("form", "thresholds with Clopper–Pearson bounds", statement)
            .add("thresholds sharing alpha", self.sharing, statement)
            .add(
                "thresholds",
                self.thresholds.iter().map(|&place| f64::from(place)).collect::<Vec<_>>(),
                statement,
            )
            .add("samples above", counts.iter().map(|&count| f64::from(count)).collect::<Vec<_>>(), statement)
            .add("lower bounds", bounds.collect::<Vec<_>>(), statement);
    }
}

/// Scores that are kept at once while dangerous negatives are tested.
const SCORES_AT_ONCE: usize = 4_000_000;

/// Harmless negatives that are counted together.
const HARMLESS_BLOCK: usize = 256;

/// How many samples score above each threshold.
pub(super) fn count_scores(
    samples: &Samples,
    range: f64,
    half_space: &HalfSpace,
    thresholds: &[f32],
) -> Vec<u32> {
    let mut counts = vec![0; thresholds.len()];
    for_each_score(
        samples,
        range,
        1,
        |_, row| narrow(&half_space.direction, row),
        |_, _, scores| count_above(scores, thresholds, &mut counts),
    );
    counts
}
