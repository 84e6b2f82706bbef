//! A 1-Lipschitz backbone: blocks of positions become channels, residual layers work on them (theory, section 14.5).
//!
//! Every step keeps the constant 1: rearranging and appending zeros move nothing, orthonormal combinations of channels
//! shorten, and the residual layer of Araujo et al. (*A unified algebraic perspective on Lipschitz neural networks*, ICLR
//! 2023) is built so. There is no batch normalisation and no row of fixed length.

use serde::{Deserialize, Serialize};

use super::config::{ConfigError, PictureSize, fault};
use super::layer_graph::{LayerGraph, Pooling, Value};

/// Side of every kernel.
const KERNEL: usize = 3;

/// Most features that the usual stages hand to the head: with 64 dimensions the file stays below 2 MB.
const USUAL_FEATURES: usize = 1920;

/// Positions become channels, channels are appended or combined, then come residual layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LipschitzStage {
    /// Side of the blocks that become channels; 1 for none.
    pub block: usize,
    /// Channels of the stage: more than the blocks give are zeros, fewer are orthonormal combinations.
    pub channels: usize,
    /// Channels between the two convolutions of a residual layer.
    pub inner: usize,
    /// Number of residual layers.
    pub layers: usize,
}

/// Grids of about 16, 8 and 4 positions along a side.
pub(super) fn usual(picture: PictureSize) -> Vec<LipschitzStage> {
    let PictureSize { height, width, .. } = picture;
    let divides = |block: usize| height.is_multiple_of(block) && width.is_multiple_of(block);
    let nearest = |block: &usize| (height.min(width) / block).abs_diff(16);
    let first = (1..=height.min(width)).filter(|&block| divides(block)).min_by_key(nearest).unwrap_or(1);
    let second = if divides(2 * first) { 2 } else { 1 };
    let third = if divides(2 * first * second) { 2 } else { 1 };
    let positions = (height * width) / (first * second * third).pow(2);
    let last = (USUAL_FEATURES / positions.max(1) / 8 * 8).clamp(8, 120);
    vec![
        LipschitzStage { block: first, channels: 48, inner: 48, layers: 3 },
        LipschitzStage { block: second, channels: 48 * second * second, inner: 40, layers: 3 },
        LipschitzStage { block: third, channels: last, inner: 8, layers: 0 },
    ]
}

/// The layers for pictures of `[channels, height, width]`.
pub(super) fn layers(picture: [usize; 3], stages: &[LipschitzStage]) -> Result<LayerGraph, ConfigError> {
    let mut graph = LayerGraph::new(picture, 0.0, Pooling::Flatten);
    let mut value = graph.pictures();
    for (number, stage) in stages.iter().enumerate() {
        value = append(&mut graph, value, number, stage)?;
    }
    Ok(graph)
}

fn append(
    graph: &mut LayerGraph,
    mut value: Value,
    number: usize,
    stage: &LipschitzStage,
) -> Result<Value, ConfigError> {
    let LipschitzStage { block, channels, inner, layers } = *stage;
    let Value { height, width, .. } = value;
    if block == 0 || !height.is_multiple_of(block) || !width.is_multiple_of(block) {
        fault(
            "stages.block",
            block,
            format!("a divisor of {height} and {width}, the sides before stage {number}"),
        )?;
    }
    for (field, count) in [("stages.channels", channels), ("stages.inner", inner)] {
        if !(1..=4096).contains(&count) {
            fault(field, count, "a number from 1 to 4096")?;
        }
    }
    if layers > 100 {
        fault("stages.layers", layers, "at most 100")?;
    }
    if block > 1 {
        value = graph.space_to_depth(value, block);
    }
    if channels > value.channels {
        value = graph.pad_channels(value, channels);
    } else if channels < value.channels {
        value = graph.projection(value, format!("stages.{number}.projection"), channels);
    }
    for layer in 0..layers {
        value = graph.residual(value, format!("stages.{number}.layers.{layer}"), inner, KERNEL);
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
