//! The layers under automatic differentiation: what is kept of a forward pass, and who gets which gradient.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};

use super::operations::{KernelOps, Window};
use super::{Activation, Geometry};

/// A tensor of the backend that does the work.
type Inner<B> = <B as burn::backend::BackendTypes>::FloatTensorPrimitive;

impl<B: KernelOps, C: CheckpointStrategy> KernelOps for Autodiff<B, C> {
    fn kernel_convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Convolution;

        impl<B: KernelOps> Backward<B, 2> for Convolution {
            type State = (Inner<B>, Inner<B>, Geometry);

            fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let [of_input, of_weight] = ops.parents;
                let gradient = gradients.consume::<B>(&ops.node);
                let (input, weight, geometry) = ops.state;
                if let Some(node) = of_weight {
                    let found = B::kernel_convolution_weight_gradient(
                        input.clone(),
                        weight.clone(),
                        gradient.clone(),
                        geometry,
                    );
                    gradients.register::<B>(node.id, found);
                }
                if let Some(node) = of_input {
                    let found = B::kernel_convolution_input_gradient(input, weight, gradient, geometry);
                    gradients.register::<B>(node.id, found);
                }
            }
        }

        let preparation = Convolution.prepare::<C>([input.node(), weight.node()]).compute_bound().stateful();
        let (input, weight) = (input.into_primitive(), weight.into_primitive());
        match preparation {
            OpsKind::Tracked(preparation) => preparation.finish(
                (input.clone(), weight.clone(), geometry),
                B::kernel_convolution(input, weight, geometry),
            ),
            OpsKind::UnTracked(preparation) => {
                preparation.finish(B::kernel_convolution(input, weight, geometry))
            }
        }
    }

    fn kernel_scale_shift(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct ScaleShift;

        impl<B: KernelOps> Backward<B, 3> for ScaleShift {
            type State = ([Inner<B>; 3], Activation);

            fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let gradient = gradients.consume::<B>(&ops.node);
                let ([input, scale, shift], activation) = ops.state;
                let found = B::kernel_scale_shift_gradient(input, scale, shift, gradient, activation);
                for (node, found) in ops.parents.into_iter().zip(<[_; 3]>::from(found)) {
                    if let Some(node) = node {
                        gradients.register::<B>(node.id, found);
                    }
                }
            }
        }

        let preparation =
            ScaleShift.prepare::<C>([input.node(), scale.node(), shift.node()]).compute_bound().stateful();
        let [input, scale, shift] = [input, scale, shift].map(|tensor| tensor.into_primitive());
        match preparation {
            OpsKind::Tracked(preparation) => preparation.finish(
                ([input.clone(), scale.clone(), shift.clone()], activation),
                B::kernel_scale_shift(input, scale, shift, activation),
            ),
            OpsKind::UnTracked(preparation) => {
                preparation.finish(B::kernel_scale_shift(input, scale, shift, activation))
            }
        }
    }

    fn kernel_normalise(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        #[derive(Debug)]
        struct Normalise;

        impl<B: KernelOps> Backward<B, 3> for Normalise {
            type State = ([Inner<B>; 5], f64, Activation);

            fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let gradient = gradients.consume::<B>(&ops.node);
                let ([input, scale, shift, mean, variance], epsilon, activation) = ops.state;
                let found = B::kernel_normalise_gradient(
                    input, scale, shift, mean, variance, gradient, epsilon, activation,
                );
                for (node, found) in ops.parents.into_iter().zip(<[_; 3]>::from(found)) {
                    if let Some(node) = node {
                        gradients.register::<B>(node.id, found);
                    }
                }
            }
        }

        let preparation =
            Normalise.prepare::<C>([input.node(), scale.node(), shift.node()]).compute_bound().stateful();
        let [input, scale, shift] = [input, scale, shift].map(|tensor| tensor.into_primitive());
        let (output, mean, variance) =
            B::kernel_normalise(input.clone(), scale.clone(), shift.clone(), epsilon, activation);
        let output = match preparation {
            OpsKind::Tracked(preparation) => {
                let kept = [input, scale, shift, mean.clone(), variance.clone()];
                preparation.finish((kept, epsilon, activation), output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        };
        (output, FloatTensor::<Self>::new(mean), FloatTensor::<Self>::new(variance))
    }

    fn kernel_add(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Add;

        impl<B: KernelOps> Backward<B, 2> for Add {
            type State = (Option<Inner<B>>, Activation);

            fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let gradient = gradients.consume::<B>(&ops.node);
                let (output, activation) = ops.state;
                let passed = match output {
                    Some(output) => B::kernel_activation_gradient(output, gradient, activation),
                    None => gradient,
                };
                for node in ops.parents.into_iter().flatten() {
                    gradients.register::<B>(node.id, passed.clone());
                }
            }
        }

        let preparation = Add.prepare::<C>([left.node(), right.node()]).compute_bound().stateful();
        let output = B::kernel_add(left.into_primitive(), right.into_primitive(), activation);
        match preparation {
            OpsKind::Tracked(preparation) => {
                let kept = (activation != Activation::Identity).then(|| output.clone());
                preparation.finish((kept, activation), output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn kernel_max_pool(input: FloatTensor<Self>, window: Window) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct MaxPool;

        impl<B: KernelOps> Backward<B, 1> for MaxPool {
            type State = (Inner<B>, IntTensor<B>, Window);

            fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let gradient = gradients.consume::<B>(&ops.node);
                let [of_input] = ops.parents;
                let (input, indices, window) = ops.state;
                if let Some(node) = of_input {
                    let found = B::kernel_max_pool_gradient(input, indices, gradient, window);
                    gradients.register::<B>(node.id, found);
                }
            }
        }

        let preparation = MaxPool.prepare::<C>([input.node()]).compute_bound().stateful();
        let input = input.into_primitive();
        match preparation {
            OpsKind::Tracked(preparation) => {
                let (output, indices) = B::kernel_max_pool_with_indices(input.clone(), window);
                preparation.finish((input, indices, window), output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(B::kernel_max_pool(input, window)),
        }
    }
}
