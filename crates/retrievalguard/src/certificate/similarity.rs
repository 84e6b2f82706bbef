//! Similarity thresholds: verification and copy detection (theory, section 2.7).

use super::betting::Rungs;
use super::domain::Domain;
use super::half_space::{Counting, count_scores, explain_ladder};
use super::pilot_choice::{PilotChooser, ScoreTables, Test};
use super::projection::scores;
use super::separation::HalfSpace;
use super::thresholds::StepBound;
use super::{
    CertificateError, CertificateName, Certifier, Explanation, Form, Outcome, Radius, SampledQuery, Verdict,
    check_alike,
};
use crate::Components;
use crate::gallery::SearchError;

/// On which side of a threshold a similarity must stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Similarity {
    /// `⟨g, v⟩` stays above the threshold: the pair is accepted.
    Above(f64),
    /// `⟨g, v⟩` stays below the threshold: the pair is rejected.
    Below(f64),
}

impl Certifier<'_> {
    /// Radius inside which the similarity `⟨g(x+δ), v⟩` to a gallery row stays on its side (theory, section 2.7).
    ///
    /// No search is involved: verification and copy detection ask exactly this. [`Verdict::Misretrieved`] means that
    /// the certifying mean already lies on the other side.
    ///
    /// ```
    /// use retrievalguard::certificate::{Certifier, Form, SampledQuery, Similarity, Verdict};
    /// use retrievalguard::gallery::{Gallery, Metric};
    /// use retrievalguard::{Alpha, Excess, NormBound, Samples, Sigma};
    ///
    /// let gallery = Gallery::new(vec![1.0, 0.0], 2, vec!["face".into()], &["me"], Metric::Euclidean)?;
    /// let near = |count| Samples::new([0.9, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse);
    /// let query = SampledQuery { pilot: near(100)?, certifying: near(1_000)? };
    /// let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
    /// let outcome = certifier.similarity(&query, 0, Similarity::Above(0.5), Form::ByPilot)?;
    /// assert!(matches!(outcome.verdict, Verdict::Certified { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn similarity(
        &self,
        query: &SampledQuery,
        row: usize,
        side: Similarity,
        form: Form,
    ) -> Result<Outcome, CertificateError> {
        self.check_dimension(&query.pilot)?;
        check_alike(&query.pilot, &query.certifying)?;
        let gallery = self.memory("a similarity threshold")?;
        if row >= gallery.len() {
            return Err(SearchError::RowOutOfRange { query: 0, row, length: gallery.len() }.into());
        }
        let vector = gallery.vector(row);
        let norm = gallery.squared_norm(row).sqrt();
        if norm == 0.0 {
            return Err(CertificateError::ZeroVector);
        }
        let (sign, threshold) = match side {
            Similarity::Above(threshold) => (1.0, threshold),
            Similarity::Below(threshold) => (-1.0, threshold),
        };
        if !threshold.is_finite() {
            return Err(CertificateError::SimilarityThreshold(threshold));
        }
        let samples = &query.certifying;
        let domain = Domain::of(samples);
        let range = domain.range;
        let direction: Vec<f64> = vector.iter().map(|&value| sign * f64::from(value) / norm).collect();
        let exact = sign * threshold / norm;
        let offset = exact + (exact.abs() + range) * (vector.len() as f64 + 16.0) * f64::EPSILON;
        let mean: f64 = samples.mean().iter().zip(&direction).map(|(left, right)| left * right).sum();

        let mut explain = Explanation::default();
        explain.add("samples n", samples.count(), "theory 2.7").add("threshold s", offset, "theory 2.7").add(
            "mean score",
            mean,
            "theory 2.7",
        );
        let scores_within = domain.scores(&direction);
        if samples.components() == Components::NonNegative {
            let range = vec![scores_within.lower, scores_within.upper];
            explain.add("least and largest possible score", range, "theory 12.1");
        }
        let radius = if offset < scores_within.lower {
            Some(Radius::Unbounded)
        } else if offset >= scores_within.upper {
            None
        } else {
            let half_space = HalfSpace { direction, offset, scores: scores_within };
            let chooser = PilotChooser {
                gallery,
                pilot: &query.pilot,
                sigma: self.sigma,
                domain,
                level: self.alpha.get(),
                samples: samples.count(),
                form,
                top_k: 1,
                rungs: Rungs::AtTheEnd,
                bets: self.bets,
            };
            let mut table = ScoreTables::new(samples.count(), self.alpha.get());
            match chooser.choose_form(chooser.sketch(half_space, &mut table)) {
                Test::Always => Some(Radius::Unbounded),
                Test::Never => None,
                Test::Thresholds { half_space, thresholds } => {
                    let counting = Counting {
                        half_space: &half_space,
                        thresholds: &thresholds,
                        sharing: thresholds.len(),
                    };
                    counting.explain(samples, range, &mut table, &mut explain);
                    let counts = count_scores(samples, range, &half_space, &thresholds);
                    let scores = counts.iter().map(|&count| table.score(thresholds.len(), count));
                    let bound = StepBound::new(&thresholds, scores, half_space.scores, self.sigma);
                    bound.radius(half_space.offset).map(Radius::Finite)
                }
                Test::Betting { half_space, ladder } => {
                    let scores = scores(samples, range, &half_space.direction);
                    explain_ladder(&ladder, &scores, self.alpha.get(), &mut explain);
                    ladder.climb(&scores, &[-self.alpha.get().ln()], f64::INFINITY)[0].map(Radius::Finite)
                }
            }
        };
        let verdict = Verdict::from_radius(mean > offset, radius);
        explain.conclude(verdict, "theory 2.7");
        Ok(Outcome { name: CertificateName::HalfSpace, verdict, samples: samples.count(), explain })
    }
}
