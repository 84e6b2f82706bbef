//! Does a model fit its model config? Decided from the file alone, alike for every engine.

use std::path::Path;

use super::preparation::Preparation;
use super::{Batch, EngineError, ModelFacts};
use crate::graph::{ElementType, Extent, TensorFacts, shape_text};
use crate::model_config::ModelConfig;

/// Checks name, type and shape of the input; returns how many pictures it takes.
pub(super) fn check_input(
    model: &Path,
    facts: &ModelFacts,
    config: &ModelConfig,
) -> Result<Batch, EngineError> {
    let name = config.input.name.as_deref();
    let tensor = facts.input(name).ok_or_else(|| EngineError::Tensor {
        model: model.to_owned(),
        side: "inputs",
        found: facts.inputs.iter().map(|input| input.name.clone()).collect(),
        wanted: name.map_or_else(
            || "exactly one".to_owned(),
            |name| format!("`{name}` (the model config's input.name)"),
        ),
    })?;
    if facts.inputs.len() != 1 {
        return Err(EngineError::Tensor {
            model: model.to_owned(),
            side: "inputs",
            found: facts.inputs.iter().map(|input| input.name.clone()).collect(),
            wanted: "exactly one".to_owned(),
        });
    }
    check_element(model, "input", tensor)?;
    let axes = Preparation::new(config).axes;
    let Some(shape) = &tensor.shape else { return Ok(Batch::Any) };
    let fits = shape.len() == 4 && shape[1..].iter().zip(axes).all(|(extent, length)| extent.accepts(length));
    if !fits {
        let [first, second, third] = axes;
        return Err(EngineError::InputShape {
            model: model.to_owned(),
            tensor: tensor.name.clone(),
            found: shape_text(shape),
            wanted: format!("[batch, {first}, {second}, {third}]"),
        });
    }
    match shape[0] {
        Extent::Fixed(size) => Ok(Batch::Always(size)),
        Extent::Dynamic(_) => Ok(Batch::Any),
    }
}

/// Checks name, type and, where the file tells it, shape of the output.
pub(super) fn check_output<'f>(
    model: &Path,
    facts: &'f ModelFacts,
    config: &ModelConfig,
) -> Result<&'f TensorFacts, EngineError> {
    let name = config.output.name.as_deref();
    let tensor = facts.output(name).ok_or_else(|| EngineError::Tensor {
        model: model.to_owned(),
        side: "outputs",
        found: facts.outputs.iter().map(|output| output.name.clone()).collect(),
        wanted: name.map_or_else(
            || "at least one".to_owned(),
            |name| format!("`{name}` (the model config's output.name)"),
        ),
    })?;
    check_element(model, "output", tensor)?;
    match &tensor.shape {
        Some(shape) if shape.len() != 2 => Err(EngineError::OutputShape {
            model: model.to_owned(),
            tensor: tensor.name.clone(),
            found: shape_text(shape),
        }),
        Some(_) | None => Ok(tensor),
    }
}

fn check_element(model: &Path, side: &'static str, tensor: &TensorFacts) -> Result<(), EngineError> {
    if tensor.element == ElementType::FLOAT {
        return Ok(());
    }
    let (model, name) = (model.to_owned(), tensor.name.clone());
    Err(EngineError::Element { model, side, tensor: name, found: tensor.element })
}
