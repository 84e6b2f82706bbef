//! A node with what is known about its inputs, and what its rule may ask of them.

use std::cell::Cell;

use super::fact::{Fact, Fault, Kind, coupled, place, unknown};
use crate::graph::{Node, Tensor};

/// Operators with bodies; what happens inside is not followed.
const BODIES: [&str; 5] = ["If", "Loop", "Scan", "SequenceMap", "SequenceAt"];

/// A node with what is known about its inputs.
pub(super) struct Args<'g> {
    pub(super) node: &'g Node,
    pub(super) inputs: Vec<Option<Fact<'g>>>,
    pub(super) operators: i64,
    pub(super) fixed: Option<i64>,
    /// Whether a rule asked for an attribute that is there with another type.
    pub(super) mistyped: Cell<bool>,
}

pub(super) type Outcome<'g> = Result<Vec<Fact<'g>>, Fault>;

impl<'g> Args<'g> {
    /// Facts about the outputs, in order.
    pub(super) fn apply(&self) -> Outcome<'g> {
        let node = self.node;
        let name = node.operator.as_str();
        if node.is_standard() && BODIES.contains(&name) || node.subgraphs().next().is_some() {
            return unknown("what happens in its branches is not followed");
        }
        let found = if node.is_standard() { self.standard(name) } else { self.contributed() };
        let found = match found {
            // The rule went by the default, an engine may go by the value.
            Ok(_) if self.mistyped.get() => unknown("an attribute of it has another type than it should"),
            Ok(facts) => facts.into_iter().map(|fact| self.honest(fact)).collect(),
            Err(fault) => Err(fault),
        };
        if !node.is_standard() {
            return found;
        }
        // Whatever is computed from constants is a constant, even where its shape is not known.
        match found {
            Err(Fault::Random) => Err(Fault::Random),
            Err(fault) => {
                let facts = || self.inputs.iter().flatten();
                if facts().any(|fact| fact.batch().is_some()) || self.inputs.is_empty() {
                    return Err(fault);
                }
                let sized = facts().any(|fact| fact.kind == Kind::Sized);
                let fact = if sized { Fact::sized(None) } else { Fact::constant(None) };
                Ok(vec![fact; node.outputs.len()])
            }
            Ok(facts) => Ok(facts),
        }
    }

    /// A result that would depend on less than the inputs do is believed only where its numbers are known.
    fn honest(&self, fact: Fact<'g>) -> Result<Fact<'g>, Fault> {
        let facts = || self.inputs.iter().flatten();
        // The first two ask for lengths only, the third for a type.
        if fact.kind != Kind::Constant
            || fact.content.is_some()
            || ["Shape", "Size", "CastLike"].contains(&self.node.operator.as_str())
        {
            return Ok(fact);
        }
        if facts().any(|input| input.batch().is_some()) {
            return unknown("what it makes of the pictures is not followed");
        }
        Ok(if facts().any(|input| input.kind == Kind::Sized) { Fact::sized(None) } else { fact })
    }

    /// An attribute, if it is there; one that is there with another type spoils what the rule finds.
    fn typed<T>(&self, name: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && self.node.attributes.iter().any(|attribute| attribute.name == name) {
            self.mistyped.set(true);
        }
        value
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.typed(name, self.node.int(name))
    }

    pub(super) fn ints(&self, name: &str) -> Option<&'g [i64]> {
        self.typed(name, self.node.ints(name))
    }

    pub(super) fn float(&self, name: &str) -> Option<f32> {
        self.typed(name, self.node.float(name))
    }

    pub(super) fn floats(&self, name: &str) -> Option<&'g [f32]> {
        self.typed(name, self.node.floats(name))
    }

    pub(super) fn text(&self, name: &str) -> Option<&'g str> {
        self.typed(name, self.node.text(name))
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&'g Tensor> {
        self.typed(name, self.node.tensor(name))
    }

    /// Demands that an attribute and the input that took its place are not both there: engines differ in whom they obey.
    pub(super) fn said_once(&self, attribute: &str, input: usize) -> Result<(), Fault> {
        let named = self.node.attributes.iter().any(|other| other.name == attribute);
        if named && self.optional(input).is_some() {
            return unknown("an attribute and an input of it say the same thing");
        }
        Ok(())
    }

    pub(super) fn input(&self, place: usize) -> Result<&Fact<'g>, Fault> {
        let fact = self.inputs.get(place).and_then(Option::as_ref);
        fact.ok_or_else(|| Fault::Unknown(format!("its input {place} was left out")))
    }

    pub(super) fn optional(&self, place: usize) -> Option<&Fact<'g>> {
        self.inputs.get(place).and_then(Option::as_ref)
    }

    /// Demands that these inputs, where given, are constants.
    pub(super) fn constants(&self, places: std::ops::Range<usize>) -> Result<(), Fault> {
        for fact in places.filter_map(|place| self.optional(place)) {
            match fact.kind {
                Kind::Constant => {}
                Kind::Sized => return coupled("its parameters depend on how many pictures there are"),
                Kind::Batched { .. } => return coupled("its parameters are computed from the pictures"),
            }
        }
        Ok(())
    }

    /// Demands that an input, where given, is one constant number.
    pub(super) fn single(&self, place: usize) -> Result<(), Fault> {
        self.constants(place..place + 1)?;
        match self.optional(place) {
            Some(fact) if !fact.is_single() => unknown("a scale or zero point of it is not one number"),
            Some(_) | None => Ok(()),
        }
    }

    /// Demands that scales and zero points of a right operand are constants, and single ones if the pictures are its
    /// columns.
    pub(super) fn of_columns(&self, right: usize, mut places: std::ops::Range<usize>) -> Result<(), Fault> {
        match self.input(right)?.batch() {
            Some(_) => places.try_for_each(|place| self.single(place)),
            None => self.constants(places),
        }
    }

    /// Demands that the batch lies on none of these axes.
    pub(super) fn apart(&self, fact: &Fact<'_>, axes: &[i64], why: &str) -> Result<(), Fault> {
        let Some((batch, _)) = fact.batch() else { return Ok(()) };
        let rank = fact.dims()?.len();
        for &axis in axes {
            if place(axis, rank)? == batch {
                return coupled(why);
            }
        }
        Ok(())
    }

    /// An operator that works along one axis and keeps the shape.
    pub(super) fn along(&self, axis: i64, why: &str) -> Outcome<'g> {
        let fact = self.input(0)?;
        self.apart(fact, &[axis], why)?;
        Ok(vec![fact.other_numbers()])
    }
}
