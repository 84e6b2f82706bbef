//! EfficientNet-Lite0 to Lite2 with the names, the padding and the epsilon of the package `efficientnet_lite_pytorch`
//! 0.1.0: EfficientNet (Tan, Le, 2019) without squeeze-and-excitation and with ReLU6.
//!
//! The padding depends on the size of the picture, as TensorFlow's `SAME` does.

use super::layer_graph::{LayerGraph, Padding, Pooling, UnitOptions, Value};
use crate::kernel::Activation;

const EPSILON: f64 = 1e-3;
const STEM_CHANNELS: usize = 32;
const FEATURES: usize = 1280;

/// Blocks one after another; the first has the stride and changes the number of channels.
struct Stage {
    blocks: usize,
    kernel: usize,
    stride: usize,
    expansion: usize,
    channels: usize,
}

const STAGES: [Stage; 7] = [
    Stage { blocks: 1, kernel: 3, stride: 1, expansion: 1, channels: 16 },
    Stage { blocks: 2, kernel: 3, stride: 2, expansion: 6, channels: 24 },
    Stage { blocks: 2, kernel: 5, stride: 2, expansion: 6, channels: 40 },
    Stage { blocks: 3, kernel: 3, stride: 2, expansion: 6, channels: 80 },
    Stage { blocks: 3, kernel: 5, stride: 1, expansion: 6, channels: 112 },
    Stage { blocks: 4, kernel: 5, stride: 2, expansion: 6, channels: 192 },
    Stage { blocks: 1, kernel: 3, stride: 1, expansion: 6, channels: 320 },
];

fn options(channels: usize, kernel: usize, stride: usize) -> UnitOptions {
    let (padding, activation) = (Padding::Same, Activation::Relu6);
    UnitOptions { stride, padding, activation, ..UnitOptions::new(channels, kernel) }
}

/// How much wider and deeper than Lite0, in tenths; the stem, the features and the number of blocks of the first and of
/// the last stage stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    width: usize,
    depth: usize,
}

impl Scale {
    pub(super) const LITE0: Self = Self { width: 10, depth: 10 };
    pub(super) const LITE1: Self = Self { width: 10, depth: 11 };
    pub(super) const LITE2: Self = Self { width: 11, depth: 12 };

    /// The nearest multiple of 8, and never less than 0.9 of what was asked for.
    fn channels(self, channels: usize) -> usize {
        let wanted = channels * self.width;
        let rounded = ((wanted + 40) / 80 * 8).max(8);
        if rounded * 100 < 9 * wanted { rounded + 8 } else { rounded }
    }

    fn blocks(self, stage: usize) -> usize {
        let blocks = STAGES[stage].blocks;
        if stage == 0 || stage + 1 == STAGES.len() { blocks } else { (blocks * self.depth).div_ceil(10) }
    }
}

/// The layers for pictures of `[channels, height, width]`.
pub(super) fn layers(picture: [usize; 3], scale: Scale) -> LayerGraph {
    let mut graph = LayerGraph::new(picture, EPSILON, Pooling::Average);
    let stem = options(STEM_CHANNELS, 3, 2);
    let mut value = graph.unit(graph.pictures(), "_conv_stem".into(), "_bn0".into(), stem);
    let mut number = 0;
    for (place, stage) in STAGES.iter().enumerate() {
        let stage = Stage { channels: scale.channels(stage.channels), ..*stage };
        for position in 0..scale.blocks(place) {
            let stride = if position == 0 { stage.stride } else { 1 };
            value = block(&mut graph, value, &format!("_blocks.{number}"), &stage, stride);
            number += 1;
        }
    }
    graph.unit(value, "_conv_head".into(), "_bn1".into(), options(FEATURES, 1, 1));
    graph
}

/// Widens, convolves every channel alone, narrows; adds its input where the shapes allow it.
fn block(graph: &mut LayerGraph, input: Value, name: &str, stage: &Stage, stride: usize) -> Value {
    let mut value = input;
    let wide = input.channels * stage.expansion;
    if stage.expansion != 1 {
        value =
            graph.unit(value, format!("{name}._expand_conv"), format!("{name}._bn0"), options(wide, 1, 1));
    }
    let depthwise = UnitOptions { groups: wide, ..options(wide, stage.kernel, stride) };
    value = graph.unit(value, format!("{name}._depthwise_conv"), format!("{name}._bn1"), depthwise);
    let narrow = UnitOptions { activation: Activation::Identity, ..options(stage.channels, 1, 1) };
    value = graph.unit(value, format!("{name}._project_conv"), format!("{name}._bn2"), narrow);
    if stride == 1 && input.channels == stage.channels {
        value = graph.add(value, input, Activation::Identity);
    }
    value
}
