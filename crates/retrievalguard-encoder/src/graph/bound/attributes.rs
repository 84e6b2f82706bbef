//! Attributes by name and type: one that is there with another type is a fault, because an engine may obey it.

use super::{Fault, no};
use crate::graph::Node;

fn typed<T>(node: &Node, name: &str, value: Option<T>) -> Result<Option<T>, Fault> {
    if value.is_none() && node.attributes.iter().any(|attribute| attribute.name == name) {
        return no(format!("its attribute `{name}` has another type than it should"));
    }
    Ok(value)
}

pub(super) fn int(node: &Node, name: &str, default: i64) -> Result<i64, Fault> {
    Ok(typed(node, name, node.int(name))?.unwrap_or(default))
}

pub(super) fn ints<'g>(node: &'g Node, name: &str) -> Result<Option<&'g [i64]>, Fault> {
    typed(node, name, node.ints(name))
}

pub(super) fn float(node: &Node, name: &str, default: f32) -> Result<f64, Fault> {
    Ok(f64::from(typed(node, name, node.float(name))?.unwrap_or(default)))
}

pub(super) fn text<'g>(node: &'g Node, name: &str, default: &'static str) -> Result<&'g str, Fault> {
    Ok(typed(node, name, node.text(name))?.unwrap_or(default))
}

/// Refuses attributes that this version of an operator does not have: an engine may obey them all the same.
pub(super) fn without(node: &Node, names: &[&str]) -> Result<(), Fault> {
    match node.attributes.iter().find(|attribute| names.contains(&attribute.name.as_str())) {
        Some(attribute) => no(format!("its attribute `{}` belongs to another version of it", attribute.name)),
        None => Ok(()),
    }
}

/// A list of lengths, all of them at least `least`.
pub(super) fn lengths(node: &Node, name: &str, default: &[usize], least: i64) -> Result<Vec<usize>, Fault> {
    let Some(found) = ints(node, name)? else { return Ok(default.to_vec()) };
    let wanted =
        found.len() == default.len() && found.iter().all(|&length| (least..1 << 20).contains(&length));
    if !wanted {
        return no(format!("its `{name}` is {found:?}, wanted {} numbers from {least} up", default.len()));
    }
    Ok(found.iter().map(|&length| length as usize).collect())
}
