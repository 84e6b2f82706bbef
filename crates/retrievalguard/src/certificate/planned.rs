//! How `half-space` is going to test the most dangerous wrong rows: what the pilot chose, for whoever wants to see it.

use super::pilot_choice::Test;
use super::{CertificateError, Certifier, HalfSpaceOptions};
use crate::gallery::Relevance;
use crate::{SampleCount, Samples};

/// The form that one wrong row's test has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedForm {
    /// It can never come first.
    Always,
    /// It cannot be beaten.
    Never,
    /// Scores above thresholds are counted.
    Thresholds,
    /// A ladder of bets is climbed.
    Betting,
}

impl PlannedForm {
    /// The name that files have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Never => "never",
            Self::Thresholds => "thresholds",
            Self::Betting => "betting",
        }
    }
}

/// One dangerous wrong row, and how it is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTest {
    /// The wrong row.
    pub row: usize,
    /// The right rows that face it, with their weights in 4096ths.
    pub positives: Vec<(usize, u32)>,
    /// The form of the test.
    pub form: PlannedForm,
}

impl Certifier<'_> {
    /// The tests of the wrong rows that look dangerous on the pilot, most dangerous first, as
    /// [`half_space`](Certifier::half_space) makes them for so many certifying samples; for a gallery in memory.
    ///
    /// ```
    /// use retrievalguard::certificate::{Certifier, HalfSpaceOptions};
    /// use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
    /// use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Sigma};
    ///
    /// # let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
    /// # let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
    /// let pilot = Samples::new([0.9, 0.1].repeat(100), 2, NormBound::UNIT, Excess::Refuse)?;
    /// let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
    /// let relevance = Relevance::new(Positives::Item(0), vec![]);
    /// let planned = certifier.planned_tests(&pilot, &relevance, SampleCount::new(1_000)?, &HalfSpaceOptions::default())?;
    /// assert_eq!((planned[0].row, &planned[0].positives[..]), (1, &[(0, 4096)][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn planned_tests(
        &self,
        pilot: &Samples,
        relevance: &Relevance,
        samples: SampleCount,
        options: &HalfSpaceOptions,
    ) -> Result<Vec<PlannedTest>, CertificateError> {
        let plan = self.plan_half_space(pilot, relevance, samples, options)?;
        let planned = plan.dangerous.into_iter().map(|negative| PlannedTest {
            row: negative.row,
            positives: negative.positives,
            form: match negative.test {
                Test::Always => PlannedForm::Always,
                Test::Never => PlannedForm::Never,
                Test::Thresholds { .. } => PlannedForm::Thresholds,
                Test::Betting { .. } => PlannedForm::Betting,
            },
        });
        Ok(planned.collect())
    }
}
