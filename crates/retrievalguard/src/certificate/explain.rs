//! The chain of numbers behind a verdict.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

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

/// One quantity, its value, and the statement of the theory in which it stands.
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

impl fmt::Display for Explanation {
    /// One step per line: quantity, value, statement.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(formatter, "{:<28} {:<24} {}", step.quantity, step.value.to_string(), step.statement)?;
        }
        Ok(())
    }
}
