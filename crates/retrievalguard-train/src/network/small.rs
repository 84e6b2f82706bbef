//! The four-block encoder of few-shot learning (Vinyals et al., *Matching networks*, 2016; Snell et al., 2017).

use super::plan::{Plan, Pooling, UnitOptions};

const EPSILON: f64 = 1e-5;
const BLOCKS: usize = 4;

/// The layers for pictures of `[channels, height, width]`, `width_of_block` channels in every block.
pub(super) fn plan(picture: [usize; 3], width_of_block: usize) -> Plan {
    let mut plan = Plan::new(picture, EPSILON, Pooling::Flatten);
    let mut value = plan.pictures();
    for number in 0..BLOCKS {
        let (convolution, norm) = (format!("blocks.{number}.convolution"), format!("blocks.{number}.norm"));
        value = plan.unit(value, convolution, norm, UnitOptions::new(width_of_block, 3));
        value = plan.max_pool(value, 2, 2, 0);
    }
    plan
}
