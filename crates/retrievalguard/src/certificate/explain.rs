//! The chain of numbers behind a verdict.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::Verdict;

/// A number, a count, a word or a list that a certificate went through.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StepValue {
    /// A real number.
    Number(f64),
    /// A count or a row.
    Count(u64),
    /// A name.
    Text(String),
    /// One number per threshold, sample or item.
    List(Vec<f64>),
}

impl From<f64> for StepValue {
    fn from(value: f64) -> Self {
        StepValue::Number(value)
    }
}

impl From<u32> for StepValue {
    fn from(value: u32) -> Self {
        StepValue::Count(u64::from(value))
    }
}

impl From<usize> for StepValue {
    fn from(value: usize) -> Self {
        StepValue::Count(value as u64)
    }
}

impl From<&str> for StepValue {
    fn from(value: &str) -> Self {
        StepValue::Text(value.to_owned())
    }
}

impl From<Vec<f64>> for StepValue {
    fn from(value: Vec<f64>) -> Self {
        StepValue::List(value)
    }
}

impl fmt::Display for StepValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepValue::Number(value) => value.fmt(formatter),
            StepValue::Count(value) => value.fmt(formatter),
            StepValue::Text(value) => formatter.pad(value),
            StepValue::List(values) => {
                for (place, value) in values.iter().enumerate() {
                    if place > 0 {
                        formatter.write_str(" ")?;
                    }
                    value.fmt(formatter)?;
                }
                Ok(())
            }
        }
    }
}

/// One quantity, its value, and the statement of the theory that uses it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What the number is.
    pub quantity: Cow<'static, str>,
    /// The number.
    pub value: StepValue,
    /// Where the theory says so.
    pub statement: Cow<'static, str>,
}

/// All steps of one certificate, in the order in which they were computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Explanation {
    steps: Vec<Step>,
}

impl Explanation {
    pub(crate) fn add(
        &mut self,
        quantity: &'static str,
        value: impl Into<StepValue>,
        statement: &'static str,
    ) -> &mut Self {
        self.steps.push(Step {
            quantity: Cow::Borrowed(quantity),
            value: value.into(),
            statement: Cow::Borrowed(statement),
        });
        self
    }

    /// Adds the radius, if one was proved.
    pub(crate) fn conclude(&mut self, verdict: Verdict, statement: &'static str) {
        if let Some(radius) = verdict.radius() {
            self.add("radius", radius.get(), statement);
        }
    }

    /// Replaces the value of the first step with this name, if there is one.
    pub(crate) fn set(&mut self, quantity: &str, value: impl Into<StepValue>) {
        if let Some(step) = self.steps.iter_mut().find(|step| step.quantity == quantity) {
            step.value = value.into();
        }
    }

    /// Drops the first step with this name and all behind it.
    pub(crate) fn drop_from(&mut self, quantity: &str) {
        let end = self.steps.iter().position(|step| step.quantity == quantity);
        self.steps.truncate(end.unwrap_or(self.steps.len()));
    }

    /// The same steps, with the radius named as an estimate: of samples that a recorded verdict was not made of.
    pub fn estimated(mut self) -> Self {
        for step in &mut self.steps {
            if step.quantity == "radius" {
                step.quantity = Cow::Borrowed("radius, estimated");
            }
        }
        self
    }

    /// The steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The value of the first step with this name.
    pub fn value(&self, quantity: &str) -> Option<&StepValue> {
        self.steps.iter().find(|step| step.quantity == quantity).map(|step| &step.value)
    }

    /// The value of a step that is a number or a count.
    pub fn number(&self, quantity: &str) -> Option<f64> {
        match self.value(quantity)? {
            StepValue::Number(value) => Some(*value),
            StepValue::Count(value) => Some(*value as f64),
            StepValue::Text(_) | StepValue::List(_) => None,
        }
    }
}

/// What a statement that steps refer to says, in a sentence; `docs/theory.md` proves it.
///
/// Several statements in one reference are answered by the first.
pub fn statement_in_words(reference: &str) -> Option<&'static str> {
    let table = [
        (
            "Definition 3.1",
            "the margin is the distance to the nearest wrong item less that to the nearest right one",
        ),
        ("Lemma 3.3", "g moves by at most 2F(2Φ(‖δ‖/2σ) − 1) when the query moves by δ"),
        ("Lemma 3.6", "the mean of n samples is within ε of g, except with a probability that falls in n"),
        ("Lemma 3.8", "the margin seen with samples is within twice their error of the true one"),
        ("Theorem 3.5", "a margin d keeps its sign inside the radius 2σ Φ⁻¹(1/2 + d/8F)"),
        ("Eq. (2)", "the same with the linear bound on how far g can move"),
        ("Algorithm 1", "one query is certified from n samples at failure probability α"),
        ("theory 0, pilot", "choices are made on a pilot sample that proves nothing"),
        ("theory 0, frozen gallery", "the stored vectors are the system, so only the query is random"),
        ("theory 0", "h maps into the ball of radius F, z has variance σ² in each pixel, g(x) = E h(x + z)"),
        (
            "theory 1, paper-repaired",
            "every item that takes part has its own share of α and its own sampling error",
        ),
        ("theory 1, the smaller of two bounds", "the error is bounded with the dimension and without it"),
        (
            "theory 2.1",
            "the right item is nearer than a wrong one where the score ⟨u, g⟩ exceeds a threshold s",
        ),
        ("theory 2.2", "a score in [−F, F] with a known mean can fall only so far when the query moves"),
        (
            "theory 2.3, first form",
            "counts of samples above thresholds bound the score's distribution (Clopper–Pearson)",
        ),
        (
            "theory 2.3, second form",
            "a bet against the score falling below s wins only if it cannot, except with probability α",
        ),
        (
            "theory 2.3",
            "no perturbation moves the score's distribution further than a shift of the noise does",
        ),
        (
            "theory 2.4",
            "retrieval holds as long as every wrong item is beaten, so the weakest radius decides",
        ),
        (
            "theory 2.5, adaptive sampling",
            "one radius, named before, is tested while samples come in; at most α of the tests reach a false one",
        ),
        (
            "theory 2.5",
            "each wrong item is tested at the whole α; the one with the smallest true radius holds the minimum down",
        ),
        ("theory 2.8", "looks at counts share α; bets may be looked at as often as one likes"),
        ("theory 2.7", "a similarity stays above its threshold as a score stays above s"),
        (
            "theory 3, chosen on the pilot",
            "which of the two rules applies is decided before the votes are counted",
        ),
        ("theory 3, majority", "an answer with p of the votes keeps more than half of them inside σ Φ⁻¹(p)"),
        (
            "theory 3, runner-up",
            "an answer with p of the votes stays before a rival with q inside σ/2 (Φ⁻¹(p) − Φ⁻¹(q))",
        ),
        (
            "theory 11.2, against a runner-up",
            "one bet is that the answer gets more than Φ(m + R/σ) of the votes, others that a rival gets less than Φ(m − R/σ)",
        ),
        (
            "theory 11.2",
            "bets on how often the answer wins may be looked at at any time; they ever win 1/α wrongly with probability α",
        ),
        (
            "theory 11, every rival at the full alpha",
            "each rival is tested at the whole α; the one that is truly hardest holds the minimum down",
        ),
        (
            "theory 11",
            "an answer that comes before every rival in p of the copies does so in more than half inside σ Φ⁻¹(p)",
        ),
        (
            "theory 12.1",
            "embeddings without negative components have scores between −F‖u₋‖ and F‖u₊‖; the encoder is the clamped one",
        ),
        (
            "theory 12.2",
            "a bet may depend on every sample before the one it is about; the radii that are tried may not",
        ),
        ("theory 13", "an item counts once, however many of its views are near; its weakest view decides"),
        ("Section 3.1", "an embedding that moves by less than half of its margin keeps its nearest label"),
        (
            "theory 14.1",
            "an embedding moves by at most L‖δ‖ + 2e, so it stays on its side of a plane that is farther away: always",
        ),
        (
            "theory 14.2, mixtures",
            "where a wrong item comes before several right ones is an intersection, at least as far as any of its sides",
        ),
        (
            "theory 14.2",
            "a wrong item can come first only behind its bisector with every right item; the nearest such place decides",
        ),
        ("theory 14.3", "a similarity changes sides at a plane, a distance at a sphere"),
        ("theory 3", "every noisy copy votes for the label of the item that is nearest to it"),
    ];
    table.iter().find(|(prefix, _)| reference.starts_with(prefix)).map(|&(_, words)| words)
}

impl fmt::Display for Explanation {
    /// One step per line: quantity, value, statement.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(formatter, "{:<28} {:<24} {}", step.quantity, step.value.to_string(), step.statement)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{CertificateName, Certifier, SampledQuery};
    use crate::gallery::{Gallery, Metric, Positives, Relevance};
    use crate::{Alpha, Excess, NormBound, SampleCount, Samples, Sigma};

    #[test]
    fn an_estimated_radius_is_not_listed_as_a_proved_one() {
        let mut explain = Explanation::default();
        explain.add("rule", "betting", "theory 2.3, second form").add("radius", 0.5, "theory 2.5");
        let estimated = explain.estimated();
        assert_eq!((estimated.number("radius"), estimated.number("radius, estimated")), (None, Some(0.5)));
        assert_eq!(estimated.steps().len(), 2);
    }

    #[test]
    fn every_step_of_every_certificate_refers_to_a_statement_that_has_words() {
        let names = |word: &str| (0..3).map(|row| format!("{word} {row}")).collect::<Vec<_>>();
        let vectors = vec![1.0, 0.0, -1.0, 0.0, 0.0, 1.0];
        let gallery = Gallery::new(vectors, 2, names("item"), &names("label"), Metric::Euclidean).unwrap();
        for (count, far) in [(200, 0.9), (2_000, 0.9), (2_000, -0.3)] {
            let near =
                |count| Samples::new([far, 0.1].repeat(count), 2, NormBound::UNIT, Excess::Refuse).unwrap();
            let query = SampledQuery { pilot: near(100), certifying: near(count) };
            let relevance = Relevance::new(Positives::Label(gallery.label(0)), vec![]);
            let certifier = Certifier::new(&gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap())
                .gallery_samples(SampleCount::new(32).unwrap());
            for name in CertificateName::SMOOTHED {
                let outcome = certifier.certify(name, &query, &relevance).unwrap();
                assert!(!outcome.explain.steps().is_empty(), "{name}");
                for step in outcome.explain.steps() {
                    assert!(statement_in_words(&step.statement).is_some(), "{name}: {}", step.statement);
                }
            }
        }
    }
}
