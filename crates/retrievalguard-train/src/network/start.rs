//! Where orthonormal rows begin: the directions in which some pictures differ most.

use std::collections::HashMap;

use burn::tensor::{Tensor, TensorData};

use super::{Factored, Network, Step, flatten, layer};

/// Rounds of the power method on a whole subspace; more change the start by less than a step of training does.
const ROUNDS: usize = 24;

/// Share of the old rows in the new ones: with fewer pictures than rows some directions are found by nothing else.
const KEPT: f64 = 1e-3;

/// Most positions that a projection begins with.
const MOST_POSITIONS: usize = 8192;

impl Network {
    /// The same network, with the rows of its projections and of its head along the principal components of what they
    /// get for some normalised pictures; without such rows it is the same.
    ///
    /// Of all orthonormal rows these keep the most of the squared distances between the pictures.
    pub fn with_principal_components(&self, pictures: Tensor<4>) -> Self {
        let (config, pictures) = (self.config(), pictures.inner());
        let mut values: HashMap<String, Vec<f32>> =
            self.tensors().into_iter().map(|tensor| (tensor.name, tensor.values)).collect();
        let build = |values: &HashMap<String, Vec<f32>>, device| {
            Self::build(config, device, |slot| values[&slot.name].clone())
                .expect("the network was built from this very configuration")
        };
        let plain = self.device().inner();
        for (at, &step) in self.layer_graph().steps.iter().enumerate() {
            let Step::Projection { projection, .. } = step else { continue };
            let spec = &self.layer_graph().projections[projection];
            let before = build(&values, &plain)
                .run_until(at, pictures.clone(), |unit, spec, input| unit.forward(spec, input));
            let [count, channels, height, width] = before.dims();
            let positions = count * height * width;
            let rows = before.permute([0, 2, 3, 1]).reshape([positions, channels]);
            let rows = rows.slice([0..positions.min(MOST_POSITIONS), 0..channels]);
            let start = values.get_mut(&layer::projection_slot(spec).name).expect("every slot has values");
            *start = components(&rows, start, spec.outputs);
        }
        if self.orthonormal_head.is_some() {
            let last = build(&values, &plain).run(pictures, |unit, spec, input| unit.forward(spec, input));
            let features = flatten(last, self.layer_graph().pooling);
            let start = values.get_mut(layer::HEAD[0]).expect("every slot has values");
            *start = components(&features, start, config.dimension);
        }
        build(&values, &self.device())
    }
}

/// Orthonormal rows that span the directions in which `rows` vary most, the first most of all.
fn components(rows: &Tensor<2>, start: &[f32], count: usize) -> Vec<f32> {
    let columns = rows.dims()[1];
    let centred = rows.clone() - rows.clone().mean_dim(0);
    let mut found = start.to_vec();
    for _ in 0..ROUNDS {
        let orthonormal = orthonormal(&found, count, columns);
        let tensor =
            Tensor::<2>::from_data(TensorData::new(orthonormal.clone(), [count, columns]), &rows.device());
        let stretched = tensor.matmul(centred.clone().transpose()).matmul(centred.clone());
        let stretched: Vec<f32> = stretched.into_data().iter::<f32>().collect();
        let squared: f64 = stretched.iter().map(|&value| f64::from(value).powi(2)).sum();
        let factor = if squared > 0.0 { (count as f64 / squared).sqrt() } else { 0.0 };
        found = stretched
            .iter()
            .zip(&orthonormal)
            .map(|(&after, &before)| (factor * f64::from(after) + KEPT * f64::from(before)) as f32)
            .collect();
    }
    orthonormal(&found, count, columns)
}

fn orthonormal(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    Factored::of(values, rows, columns).rows.into_iter().map(|value| value as f32).collect()
}
