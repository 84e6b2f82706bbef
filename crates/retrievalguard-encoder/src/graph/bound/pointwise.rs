//! Operators that treat every number by itself, or numbers in the same place together.

use super::attributes::{float, without};
use super::layers::{Outcome, Rule};
use super::upwards::{add, div, mul, root};
use super::{Fact, Fault, Step, Value, no, shapes};

impl Rule<'_, '_> {
    /// `Relu`, `Abs`, `Neg`: exact, and no faster than what they take.
    pub(super) fn exact(&self) -> Outcome {
        let value = self.value(0)?;
        Ok(vec![dynamic(value.moved(value.shape.clone()))])
    }

    pub(super) fn leaky_relu(&self) -> Outcome {
        let value = self.value(0)?;
        let factor = float(self.node, "alpha", 0.01)?.abs().max(1.0);
        if !factor.is_finite() {
            return no("its slope is not finite");
        }
        let step = Step { factor, offset: 0.0, terms: 1, spread: factor };
        Ok(vec![dynamic(value.after(&step, value.shape.clone()))])
    }

    /// Clamps between constants.
    pub(super) fn clip(&self) -> Outcome {
        if self.inputs.iter().skip(1).flatten().any(|fact| matches!(fact, Fact::Dynamic(_))) {
            return no("its limits depend on the picture");
        }
        let value = self.value(0)?;
        let mut clamped = value.moved(value.shape.clone());
        // Limits may lift everything: the value at zero is the nearest limit.
        let mut lifted = 0.0_f64;
        for place in 1..self.inputs.len() {
            if let Some(limit) = self.optional_constant(place)? {
                lifted = limit.reals()?.iter().fold(lifted, |most, limit| most.max(limit.abs()));
            }
        }
        if self.operators >= 11 {
            without(self.node, &["min", "max"])?;
        } else {
            for name in ["min", "max"] {
                let limit = float(self.node, name, 0.0)?;
                lifted = lifted.max(if limit.is_finite() { limit.abs() } else { 0.0 });
            }
        }
        clamped.norm = clamped.norm.plus_offset(mul(lifted, root(value.count() as f64)));
        Ok(vec![dynamic(clamped)])
    }

    /// `Max` or `Min`: numbers in the same place, or against constants.
    pub(super) fn extreme(&self) -> Outcome {
        let mut values: Vec<&Value> = Vec::new();
        let mut lifted = 0.0_f64;
        for place in 0..self.inputs.len() {
            match self.fact(place)? {
                Fact::Dynamic(value) => values.push(value),
                Fact::Constant(constant) => {
                    let largest = constant.reals()?.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
                    lifted = lifted.max(largest);
                }
            }
        }
        let Some(shape) = values.first().map(|value| value.shape.clone()) else {
            return self.constant_result();
        };
        self.all_of(&values, &shape)?;
        let mut found =
            if let [value] = values[..] { value.moved(shape) } else { Value::beside(&values, shape) };
        let numbers = root(found.count() as f64);
        found.norm = found.norm.plus_offset(mul(lifted, numbers));
        Ok(vec![dynamic(found)])
    }

    /// `Add`, `Sub`, `Sum`: branches, or a shift by constants.
    pub(super) fn sum(&self) -> Outcome {
        let (mut values, mut shift): (Vec<&Value>, f64) = (Vec::new(), 0.0);
        let mut constants = 0;
        for place in 0..self.inputs.len() {
            match self.fact(place)? {
                Fact::Dynamic(value) => values.push(value),
                Fact::Constant(_) => constants += 1,
            }
        }
        let Some(shape) = values.first().map(|value| value.shape.clone()) else {
            return self.constant_result();
        };
        self.all_of(&values, &shape)?;
        for place in 0..self.inputs.len() {
            if let Fact::Constant(constant) = self.fact(place)? {
                let repeats = shape.iter().product::<usize>() / constant.reals()?.len().max(1);
                shift = add(shift, mul(length(constant.reals()?), root(repeats as f64)));
            }
        }
        let total = if let [value] = values[..] { value.clone() } else { Value::sum(&values, shape.clone()) };
        // Whatever order they are added in, a constant takes part in every rounding behind it.
        let terms = if constants > 0 { self.inputs.len() - 1 } else { 0 };
        let step = Step { factor: 1.0, offset: shift, terms, spread: 1.0 };
        Ok(vec![dynamic(total.after(&step, shape))])
    }

    /// `Mul` or `Div` by constants.
    pub(super) fn scale(&self) -> Outcome {
        let divides = self.node.operator == "Div";
        let (place, other) = match (self.fact(0)?, self.fact(1)?) {
            (Fact::Dynamic(_), Fact::Constant(_)) => (0, 1),
            (Fact::Constant(_), Fact::Dynamic(_)) if !divides => (1, 0),
            (Fact::Constant(_), Fact::Constant(_)) => return self.constant_result(),
            (Fact::Constant(_), Fact::Dynamic(_)) => return no("it divides by what depends on the picture"),
            (Fact::Dynamic(_), Fact::Dynamic(_)) if divides => {
                return no("it divides by what depends on the picture, as a normalisation does");
            }
            (Fact::Dynamic(_), Fact::Dynamic(_)) => {
                return no("it multiplies two values that depend on the picture");
            }
        };
        let (value, constant) = (self.value(place)?, self.constant(other)?);
        self.all_of(&[value], &value.shape)?;
        let mut factor = 0.0_f64;
        for &number in constant.reals()? {
            if divides && number == 0.0 {
                return no("it divides by zero");
            }
            factor = factor.max(if divides { div(1.0, number.abs()) } else { number.abs() });
        }
        let step = Step { factor, offset: 0.0, terms: 1, spread: factor };
        Ok(vec![dynamic(value.after(&step, value.shape.clone()))])
    }

    /// Demands that all values have this shape and that constants do not enlarge it.
    fn all_of(&self, values: &[&Value], shape: &[usize]) -> Result<(), Fault> {
        if values.iter().any(|value| value.shape != shape) {
            return no("it combines values of different shapes");
        }
        for fact in self.inputs.iter().flatten() {
            if let Fact::Constant(constant) = fact
                && !shapes::fits(&constant.shape, shape)
            {
                return no(format!(
                    "its constant of shape {:?} repeats a value of shape {shape:?}",
                    constant.shape
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn dynamic(value: Value) -> Fact {
    Fact::Dynamic(Box::new(value))
}

/// The norm of some numbers.
pub(super) fn length(numbers: &[f64]) -> f64 {
    root(numbers.iter().fold(0.0, |sum, number| add(sum, mul(number.abs(), number.abs()))))
}
