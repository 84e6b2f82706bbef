//! The four-block encoder of few-shot learning (Vinyals et al., *Matching networks*, 2016; Snell et al., 2017).

use super::layer_graph::{LayerGraph, Pooling, UnitOptions};

const EPSILON: f64 = 1e-5;
const BLOCKS: usize = 4;

/// The layers for pictures of `[channels, height, width]`, `width_of_block` channels in every block.
pub(super) fn layers(picture: [usize; 3], width_of_block: usize) -> LayerGraph {
    let mut graph = LayerGraph::new(picture, EPSILON, Pooling::Flatten);
    let mut value = graph.pictures();
    for number in 0..BLOCKS {
        let (convolution, norm) = (format!("blocks.{number}.convolution"), format!("blocks.{number}.norm"));
        value = graph.unit(value, convolution, norm, UnitOptions::new(width_of_block, 3));
        value = graph.max_pool(value, 2, 2, 0);
    }
    graph
}
