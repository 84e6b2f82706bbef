//! Arithmetic on constant integers and truth values, from which shapes and indices are made.

use std::sync::Arc;

use super::selecting::whole;
use super::{Compiler, Outcome, Value, because, sorted_axes};
use crate::graph::evaluate::scalar::Scalar;
use crate::graph::evaluate::shape::{broadcast, count, places, stretched, strides};
use crate::graph::{ElementType, Node};

impl<'g, S: Scalar> Compiler<'g, S> {
    /// The result of an operator on integers; nothing if its arguments are not all integers.
    pub(super) fn integers(&mut self, node: &'g Node) -> Outcome<Option<Value<S>>> {
        let operator = node.operator.as_str();
        match operator {
            "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Max" | "Min" | "And" | "Or" | "Xor" => {
                let mut parts = Vec::new();
                for place in 0..node.inputs.len() {
                    match self.argument(node, place)? {
                        Value::Whole { shape, numbers, .. } => parts.push((shape, numbers)),
                        Value::Real { .. } | Value::Made { .. } => return Ok(None),
                    }
                }
                let mut parts = parts.into_iter();
                let Some(first) = parts.next() else { return because("it has no arguments") };
                let (shape, numbers) = parts.try_fold(first, |left, right| {
                    pairs(&left, &right, |left, right| arithmetic(operator, left, right))
                })?;
                Ok(Some(Value::Whole { shape, numbers, element: ElementType::INT64 }))
            }
            "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" => self.compare(node).map(Some),
            "Where" => {
                let Value::Whole { shape: condition, numbers, .. } = self.argument(node, 0)? else {
                    return Ok(None);
                };
                let (left, right) = (self.argument(node, 1)?, self.argument(node, 2)?);
                let (
                    Value::Whole { shape: one, numbers: left, .. },
                    Value::Whole { shape: other, numbers: right, .. },
                ) = (left, right)
                else {
                    return Ok(None);
                };
                // Both sides next to the condition, so that two rules for pairs are enough.
                let chosen =
                    pairs(&(condition.clone(), Arc::clone(&numbers)), &(one, left), |condition, value| {
                        Some(if condition != 0 { value } else { 0 })
                    })?;
                let rest = pairs(&(condition, numbers), &(other, right), |condition, value| {
                    Some(if condition == 0 { value } else { 0 })
                })?;
                // Where one is chosen the other is zero.
                let (shape, numbers) = pairs(&chosen, &rest, i64::checked_add)?;
                Ok(Some(Value::Whole { shape, numbers, element: ElementType::INT64 }))
            }
            "Neg" | "Abs" | "Not" => match self.argument(node, 0)? {
                Value::Whole { shape, numbers, element } => {
                    let number = |&number: &i64| match operator {
                        "Neg" => number.wrapping_neg(),
                        "Abs" => number.wrapping_abs(),
                        _ => i64::from(number == 0),
                    };
                    let numbers = Arc::new(numbers.iter().map(number).collect());
                    Ok(Some(Value::Whole { shape, numbers, element }))
                }
                Value::Real { .. } | Value::Made { .. } => Ok(None),
            },
            "Ceil" | "Floor" | "Round" | "Sign" => match self.argument(node, 0)? {
                Value::Real { shape, numbers } => {
                    let number = |number: &S| {
                        let number = number.wide();
                        S::of(match operator {
                            "Ceil" => number.ceil(),
                            "Floor" => number.floor(),
                            "Round" => number.round_ties_even(),
                            _ if number == 0.0 => 0.0,
                            _ => number.signum(),
                        })
                    };
                    let numbers = Arc::new(numbers.iter().map(number).collect());
                    Ok(Some(Value::Real { shape, numbers }))
                }
                Value::Whole { .. } | Value::Made { .. } => {
                    because("it rounds a value that depends on the picture, which leaves no slope to follow")
                }
            },
            "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => self.reduce_integers(node),
            _ => Ok(None),
        }
    }

    fn compare(&mut self, node: &'g Node) -> Outcome<Value<S>> {
        let flag = |ordering: Option<std::cmp::Ordering>| {
            let Some(ordering) = ordering else { return 0 };
            i64::from(match node.operator.as_str() {
                "Equal" => ordering.is_eq(),
                "Less" => ordering.is_lt(),
                "Greater" => ordering.is_gt(),
                "LessOrEqual" => ordering.is_le(),
                _ => ordering.is_ge(),
            })
        };
        let (left, right) = (self.argument(node, 0)?, self.argument(node, 1)?);
        let (shape, numbers) = match (left, right) {
            (
                Value::Whole { shape: one, numbers: left, .. },
                Value::Whole { shape: other, numbers: right, .. },
            ) => pairs(&(one, left), &(other, right), |left, right| Some(flag(Some(left.cmp(&right)))))?,
            (Value::Real { shape: one, numbers: left }, Value::Real { shape: other, numbers: right }) => {
                let compared = |left: S, right: S| Some(flag(left.partial_cmp(&right)));
                pairs(&(one, left), &(other, right), compared)?
            }
            _ => return because("it compares values that depend on the picture, or of two types"),
        };
        Ok(Value::Whole { shape, numbers, element: ElementType::BOOL })
    }

    fn reduce_integers(&mut self, node: &'g Node) -> Outcome<Option<Value<S>>> {
        let Value::Whole { shape, numbers, .. } = self.argument(node, 0)? else { return Ok(None) };
        let axes = match self.axes(node, "axes", 1)? {
            Some(axes) if !axes.is_empty() => sorted_axes(&axes, shape.len())?,
            _ => (0..shape.len()).collect(),
        };
        let keep = node.int("keepdims").unwrap_or(1) != 0;
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let own = strides(&shape);
        let pick =
            |axes: &[usize], values: &[usize]| axes.iter().map(|&axis| values[axis]).collect::<Vec<_>>();
        let starts = places(&pick(&kept, &shape), &pick(&kept, &own), 0);
        let steps = places(&pick(&axes, &shape), &pick(&axes, &own), 0);
        let reduced: Option<Vec<i64>> = starts
            .iter()
            .map(|start| {
                let mut line = steps.iter().map(|step| numbers[start + step]);
                match node.operator.as_str() {
                    "ReduceProd" => line.try_fold(1_i64, i64::checked_mul),
                    "ReduceSum" => line.try_fold(0_i64, i64::checked_add),
                    "ReduceMax" => line.max(),
                    _ => line.min(),
                }
            })
            .collect();
        let Some(reduced) = reduced else { return because("its integers are too large") };
        let sides = match keep {
            true => (0..shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] }).collect(),
            false => pick(&kept, &shape),
        };
        Ok(Some(whole(sides, reduced)))
    }
}

fn arithmetic(operator: &str, left: i64, right: i64) -> Option<i64> {
    match operator {
        "Add" => left.checked_add(right),
        "Sub" => left.checked_sub(right),
        "Mul" => left.checked_mul(right),
        "Div" => left.checked_div(right),
        "Mod" => left.checked_rem_euclid(right),
        "Max" => Some(left.max(right)),
        "Min" => Some(left.min(right)),
        "And" => Some(i64::from(left != 0 && right != 0)),
        "Or" => Some(i64::from(left != 0 || right != 0)),
        "Xor" => Some(i64::from((left != 0) != (right != 0))),
        _ => None,
    }
}

/// A rule on two constants, stretched to one shape.
fn pairs<L: Copy, R: Copy>(
    (one, left): &(Vec<usize>, Arc<Vec<L>>),
    (other, right): &(Vec<usize>, Arc<Vec<R>>),
    rule: impl Fn(L, R) -> Option<i64>,
) -> Outcome<(Vec<usize>, Arc<Vec<i64>>)> {
    let Some(shape) = broadcast(one, other).filter(|shape| count(shape).is_some()) else {
        return because(format!("its arguments have the shapes {one:?} and {other:?}"));
    };
    let lefts = places(&shape, &stretched(one, &shape), 0);
    let rights = places(&shape, &stretched(other, &shape), 0);
    let numbers: Option<Vec<i64>> =
        lefts.into_iter().zip(rights).map(|(one, other)| rule(left[one], right[other])).collect();
    match numbers {
        Some(numbers) => Ok((shape, Arc::new(numbers))),
        None => because("its integers are too large, or it divides by zero"),
    }
}
