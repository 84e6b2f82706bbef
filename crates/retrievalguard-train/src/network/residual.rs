//! The residual layer `x − Kᵀ D relu(Kx + b)`, whose scale `D` follows from `K` so that it never stretches.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::layer::{Role, Slot};
use super::layer_graph::ResidualSpec;
use crate::kernel::{self, Activation, Geometry};

/// Sums below this count as this: a channel whose kernels are all zero passes nothing on, whatever its scale.
const LEAST_SUM: f64 = 1e-8;

/// Kernels, what is added after them, and the logarithms of the weights `q` that balance their channels.
#[derive(Module, Debug)]
pub(super) struct Residual {
    weight: Param<Tensor<4>>,
    bias: Param<Tensor<1>>,
    balance: Param<Tensor<1>>,
}

/// The tensors of a residual layer, in the order of [`Residual::new`].
pub(super) fn slots(spec: &ResidualSpec) -> [Slot; 3] {
    let ResidualSpec { name, inner, channels, kernel } = spec;
    [
        Slot::new(
            format!("{name}.weight"),
            &[*inner, *channels, *kernel, *kernel],
            Role::Kernels { groups: 1 },
        ),
        Slot::new(format!("{name}.bias"), &[*inner], Role::Bias),
        Slot::new(format!("{name}.balance"), &[*inner], Role::Bias),
    ]
}

impl Residual {
    pub(super) fn new(slots: &[Slot; 3], values: [Vec<f32>; 3], device: &Device) -> Self {
        let ([weight, bias, balance], [weights, biases, balances]) = (slots, values);
        Self {
            weight: weight.parameter(weights, device),
            bias: bias.parameter(biases, device),
            balance: balance.parameter(balances, device),
        }
    }

    pub(super) fn tensors(&self) -> [TensorData; 3] {
        let Self { weight, bias, balance } = self;
        [weight.val().into_data(), bias.val().into_data(), balance.val().into_data()]
    }

    #[cfg(test)]
    pub(super) fn gradients(&self, gradients: &burn::tensor::Gradients) -> [Option<TensorData>; 3] {
        let Self { weight, bias, balance } = self;
        let vector = |part: &Param<Tensor<1>>| part.val().grad(gradients).map(Tensor::into_data);
        [weight.val().grad(gradients).map(Tensor::into_data), vector(bias), vector(balance)]
    }

    pub(super) fn forward(&self, spec: &ResidualSpec, input: Tensor<4>) -> Tensor<4> {
        let (weight, geometry) = (self.weight.val(), spec.geometry());
        let scales = self.scales(spec);
        let inner = kernel::convolution(input.clone(), weight.clone(), geometry);
        // D is positive, so it may stand before the rectifier: D relu(Kx + b) = relu(D Kx + D b).
        let shift = scales.clone() * self.bias.val();
        let inner = kernel::scale_shift(inner, scales, shift, Activation::Relu);
        // With stride 1 the transpose of a convolution is one with turned kernels.
        let back = kernel::convolution(inner, -weight.swap_dims(0, 1).flip([2, 3]), geometry);
        kernel::add(input, back, Activation::Identity)
    }

    /// `D = 2/T`, channel by channel.
    ///
    /// ```text
    /// T_i = Σ_j A_ij q_j/q_i,    A_ij = Σ over offsets of |correlation of the kernels i and j|
    /// ```
    ///
    /// `KKᵀ ≼ T`, so that the layer has the constant 1 (theory, section 14.5).
    fn scales(&self, spec: &ResidualSpec) -> Tensor<1> {
        let weight = self.weight.val();
        let reach = spec.kernel - 1;
        let geometry = Geometry { stride: [1; 2], padding: [(reach, reach); 2], groups: 1 };
        let correlations = kernel::convolution(weight.clone(), weight, geometry).abs();
        let correlations = correlations.sum_dims_squeeze::<2, _>(&[2, 3]);
        let balance = self.balance.val().exp();
        let sums = correlations.matmul(balance.clone().unsqueeze_dim::<2>(1)).squeeze_dim::<1>(1) / balance;
        sums.clamp_min(LEAST_SUM).recip() * 2.0
    }
}

/// `D = 2/T` for a file, rounded towards zero: computed in `f64`, and less by more than its rounding.
pub(crate) fn exported_scales(spec: &ResidualSpec, weight: &[f32], balance: &[f32]) -> Vec<f32> {
    let ResidualSpec { inner, channels, kernel, .. } = *spec;
    let (side, size) = (kernel as isize, kernel * kernel);
    let at = |row: usize, channel: usize, place: isize| {
        f64::from(weight[(row * channels + channel) * size + place as usize])
    };
    let correlation = |left: usize, right: usize| -> f64 {
        let mut total = 0.0;
        for down in 1 - side..side {
            for across in 1 - side..side {
                let mut sum = 0.0;
                for row in down.max(0)..(side + down).min(side) {
                    for column in across.max(0)..(side + across).min(side) {
                        let (here, there) = (row * side + column, (row - down) * side + column - across);
                        sum += (0..channels)
                            .map(|channel| at(left, channel, here) * at(right, channel, there))
                            .sum::<f64>();
                    }
                }
                total += sum.abs();
            }
        }
        total
    };
    let balance: Vec<f64> = balance.iter().map(|&value| f64::from(value).exp()).collect();
    let scale = |row: usize| {
        let sum: f64 = (0..inner).map(|other| correlation(row, other) * balance[other] / balance[row]).sum();
        // The sums round by some 10⁻¹²; a billionth of the scale is nothing to the encoder.
        let scale = 2.0 / sum.max(LEAST_SUM) * (1.0 - 1e-9);
        let rounded = scale as f32;
        if f64::from(rounded) > scale { rounded.next_down() } else { rounded }
    };
    (0..inner).map(scale).collect()
}
