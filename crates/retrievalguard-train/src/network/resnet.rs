//! ResNet-18 and ResNet-50 (He, Zhang, Ren, Sun: *Deep residual learning for image recognition*, 2016), with
//! torchvision's names and its stride on the 3 × 3 convolution of a bottleneck.

use super::layer_graph::{LayerGraph, Pooling, UnitOptions, Value};
use crate::kernel::Activation;

/// PyTorch's default.
const EPSILON: f64 = 1e-5;

/// What a residual block consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Two 3 × 3 convolutions.
    Basic,
    /// 1 × 1, 3 × 3, 1 × 1; the last has four times as many channels.
    Bottleneck,
}

/// The layers for pictures of `[channels, height, width]`, with so many blocks in each of the four stages.
pub(super) fn layers(picture: [usize; 3], block: Block, blocks: [usize; 4]) -> LayerGraph {
    let mut graph = LayerGraph::new(picture, EPSILON, Pooling::Average);
    let stem = UnitOptions { stride: 2, ..UnitOptions::new(64, 7) };
    let mut value = graph.unit(graph.pictures(), "conv1".into(), "bn1".into(), stem);
    value = graph.max_pool(value, 3, 2, 1);
    for (stage, count) in blocks.into_iter().enumerate() {
        for number in 0..count {
            let stride = if stage > 0 && number == 0 { 2 } else { 1 };
            value = residual(
                &mut graph,
                value,
                &format!("layer{}.{number}", stage + 1),
                block,
                64 << stage,
                stride,
            );
        }
    }
    graph
}

fn residual(
    graph: &mut LayerGraph,
    input: Value,
    name: &str,
    block: Block,
    channels: usize,
    stride: usize,
) -> Value {
    let identity = Activation::Identity;
    let units = match block {
        Block::Basic => vec![
            UnitOptions { stride, ..UnitOptions::new(channels, 3) },
            UnitOptions { activation: identity, ..UnitOptions::new(channels, 3) },
        ],
        Block::Bottleneck => vec![
            UnitOptions::new(channels, 1),
            UnitOptions { stride, ..UnitOptions::new(channels, 3) },
            UnitOptions { activation: identity, ..UnitOptions::new(4 * channels, 1) },
        ],
    };
    let mut value = input;
    for (number, options) in (1..).zip(units) {
        value = graph.unit(value, format!("{name}.conv{number}"), format!("{name}.bn{number}"), options);
    }
    let mut kept = input;
    if stride != 1 || input.channels != value.channels {
        let options = UnitOptions { stride, activation: identity, ..UnitOptions::new(value.channels, 1) };
        kept = graph.unit(input, format!("{name}.downsample.0"), format!("{name}.downsample.1"), options);
    }
    graph.add(value, kept, Activation::Relu)
}
