//! Rules for operators that treat every number by itself, or numbers in the same place together.

use super::args::{Args, Outcome};
use super::content;
use super::fact::{Dim, Fact, Fault, Kind, coupled, unknown};
use crate::graph::ElementType;

impl<'g> Args<'g> {
    pub(super) fn unary(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let mut result = fact.other_numbers();
        if self.node.operator == "Neg"
            && let Some(numbers) = &fact.content
        {
            let zero = Dim::Known(0);
            let negated: Option<Vec<Dim>> = numbers
                .iter()
                .map(|&number| match number {
                    Dim::Batch(times) => times.checked_neg().map(Dim::Batch),
                    number => content::binary("Sub", zero, number),
                })
                .collect();
            result.content = negated;
        }
        if ["Floor", "Ceil", "Round"].contains(&self.node.operator.as_str()) {
            result.content = fact.content.clone();
        }
        Ok(vec![result])
    }

    /// Integers stay what they are in every type that holds them exactly.
    pub(super) fn cast(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let mut result = fact.other_numbers();
        let wide = [ElementType::INT32, ElementType::INT64, ElementType::FLOAT, ElementType::DOUBLE];
        let target = ElementType(self.int("to").unwrap_or(0) as u64);
        result.content = fact.content.clone().filter(|content| {
            wide.contains(&target)
                && (target == ElementType::INT64 || content.iter().copied().all(content::is_exact))
        });
        if target == ElementType::BOOL
            && let Ok(numbers) = fact.known_numbers()
        {
            let flags = numbers.iter().map(|&number| Dim::Known(i64::from(number != 0)));
            result.content = Some(flags.collect());
        }
        Ok(vec![result])
    }

    /// In training some numbers are dropped at random.
    pub(super) fn dropout(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let training = match self.optional(2) {
            None => false,
            Some(mode) => mode.known_numbers()? != [0],
        };
        let training = training || self.operators < 7 && self.int("is_test").unwrap_or(0) == 0;
        if training {
            return Err(Fault::Random);
        }
        Ok(vec![fact.other_numbers(), fact.other_numbers()])
    }

    pub(super) fn elementwise(&self) -> Outcome<'g> {
        let facts: Vec<&Fact<'g>> = self.inputs.iter().flatten().collect();
        if facts.is_empty() {
            return unknown("it takes nothing");
        }
        // Before ONNX 7 the second input was aligned by an attribute, not from the right.
        if self.operators < 7 && self.int("broadcast").unwrap_or(0) != 0 {
            return unknown("it broadcasts by the rules of old ONNX versions");
        }
        if let Some(fact) = self.numbers(&facts) {
            return Ok(vec![fact]);
        }
        Ok(vec![broadcast(&facts)?])
    }

    /// The result as integers, if all inputs are some that are followed.
    fn numbers(&self, facts: &[&Fact<'g>]) -> Option<Fact<'g>> {
        let contents: Vec<&[Dim]> =
            facts.iter().map(|fact| fact.content.as_deref()).collect::<Option<_>>()?;
        if facts.iter().any(|fact| fact.shape.as_ref().is_none_or(|shape| shape.len() > 1)) {
            return None;
        }
        let length = contents.iter().map(|content| content.len()).max()?;
        if contents.iter().any(|content| content.len() != length && content.len() != 1) {
            return None;
        }
        let at = |content: &[Dim], place: usize| if content.len() == 1 { content[0] } else { content[place] };
        let results: Option<Vec<Dim>> = (0..length)
            .map(|place| match (self.node.operator.as_str(), &contents[..]) {
                ("Where", [flag, yes, no]) => match at(flag, place) {
                    Dim::Known(0) => Some(at(no, place)),
                    Dim::Known(_) => Some(at(yes, place)),
                    Dim::Batch(_) | Dim::Open => None,
                },
                (operator, [left, right]) => content::binary(operator, at(left, place), at(right, place)),
                _ => None,
            })
            .collect();
        let shape =
            facts.iter().map(|fact| fact.shape.clone()).max_by_key(|shape| shape.as_ref().map(Vec::len))?;
        let shape = if length == 1 { shape } else { Some(vec![Dim::Known(length as i64)]) };
        results.map(|results| Fact::numbers(results, shape))
    }
}

/// Aligns shapes from the right, as numpy does, with the pictures on one and the same axis.
pub(super) fn broadcast<'g>(facts: &[&Fact<'g>]) -> Result<Fact<'g>, Fault> {
    let batched = facts.iter().any(|fact| fact.batch().is_some());
    let sized = facts.iter().any(|fact| fact.kind == Kind::Sized);
    if !batched {
        let shape = facts.iter().map(|fact| fact.dims()).collect::<Result<Vec<_>, _>>();
        let shape = shape.and_then(|shapes| aligned(&shapes)).ok();
        return Ok(if sized { Fact::sized(shape) } else { Fact::constant(shape) });
    }
    if sized {
        return coupled("it mixes how many pictures there are into their values");
    }
    let shapes = facts.iter().map(|fact| fact.dims()).collect::<Result<Vec<_>, _>>()?;
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    // Axes are compared counted from the right.
    let mut found = None;
    for (fact, shape) in facts.iter().zip(&shapes) {
        let Some((axis, layout)) = fact.batch() else { continue };
        let here = (shape.len() - axis, layout);
        if *found.get_or_insert(here) != here {
            return coupled("it combines pictures in different places of the batch");
        }
    }
    let Some((from_right, layout)) = found else { return unknown("it takes no pictures") };
    for (fact, shape) in facts.iter().zip(&shapes) {
        let there = shape.len().checked_sub(from_right).map(|place| shape[place]);
        if fact.batch().is_none() && !matches!(there, None | Some(Dim::Known(1))) {
            return coupled("a constant of it differs from place to place of the batch");
        }
    }
    Fact::batched(rank - from_right, layout, aligned(&shapes)?)
}

/// The shape that these shapes broadcast to.
pub(super) fn aligned(shapes: &[&[Dim]]) -> Result<Vec<Dim>, Fault> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    (0..rank)
        .map(|axis| {
            let mut length = Dim::Known(1);
            for shape in shapes {
                let Some(place) = (axis + shape.len()).checked_sub(rank) else { continue };
                length = match (length, shape[place]) {
                    (Dim::Known(1), other) | (other, Dim::Known(1)) => other,
                    (one, other) if one == other => one,
                    (Dim::Open, Dim::Known(side)) | (Dim::Known(side), Dim::Open) => Dim::Known(side),
                    _ => return unknown("its shapes do not fit each other"),
                };
            }
            Ok(length)
        })
        .collect()
}
