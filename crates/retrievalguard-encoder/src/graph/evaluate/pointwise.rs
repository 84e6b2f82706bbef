//! Operators that change every number by itself, by a rule that may depend on its channel.

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::sync::Arc;

use super::scalar::Scalar;

/// What happens to each number.
#[derive(Clone, Debug)]
pub(super) enum Pointwise<S> {
    Relu,
    /// Numbers below zero are multiplied by it.
    LeakyRelu(S),
    /// Least and greatest.
    Clip(S, S),
    Sigmoid,
    /// `x · sigmoid(αx)`.
    Swish(S),
    /// `min(1, max(0, αx + β))`.
    HardSigmoid(S, S),
    HardSwish,
    Tanh,
    Exp,
    Ln,
    Sqrt,
    Abs,
    Negate,
    Reciprocal,
    Erf,
    /// `x Φ(x)`.
    Gelu,
    /// The same with `Φ` by a hyperbolic tangent.
    GeluByTanh,
    Softplus,
    /// `α(eˣ − 1)` below zero.
    Elu(S),
    /// `scale · x + shift`, channel by channel.
    Affine {
        channels: Channels,
        scale: Arc<Vec<S>>,
        shift: Arc<Vec<S>>,
    },
    /// `clip(round(x / scale) + zero)`; its gradient is that of the same without rounding.
    Quantise {
        channels: Channels,
        scale: Arc<Vec<S>>,
        zero: Arc<Vec<S>>,
        least: S,
        most: S,
    },
}

/// How channels lie in memory: so many of them, each of so many numbers, over and over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    pub(super) count: usize,
    pub(super) inner: usize,
}

impl Channels {
    /// Calls `visit` with the channel of every run of numbers that share one.
    fn each<S>(self, values: &mut [S], mut visit: impl FnMut(usize, &mut [S])) {
        for (place, run) in values.chunks_mut(self.inner).enumerate() {
            visit(place % self.count, run);
        }
    }
}

/// What of the way forwards is needed on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    Inputs,
    Output,
}

impl<S: Scalar> Pointwise<S> {
    pub(super) fn needs(&self) -> Needs {
        match self {
            Self::Negate | Self::Affine { .. } => Needs::Nothing,
            // Below zero the output does not show where the input was.
            &Self::LeakyRelu(slope) | &Self::Elu(slope) if slope <= S::ZERO => Needs::Inputs,
            Self::Relu
            | Self::LeakyRelu(_)
            | Self::Clip(..)
            | Self::Sigmoid
            | Self::HardSigmoid(..)
            | Self::Tanh
            | Self::Exp
            | Self::Sqrt
            | Self::Reciprocal
            | Self::Elu(_)
            | Self::Quantise { .. } => Needs::Output,
            Self::Swish(_)
            | Self::HardSwish
            | Self::Ln
            | Self::Abs
            | Self::Erf
            | Self::Gelu
            | Self::GeluByTanh
            | Self::Softplus => Needs::Inputs,
        }
    }

    pub(super) fn apply(&self, values: &mut [S]) {
        let one = S::ONE;
        match self {
            Self::Relu => map(values, |x| x.at_least(S::ZERO)),
            &Self::LeakyRelu(slope) => map(values, |x| if x < S::ZERO { slope * x } else { x }),
            &Self::Clip(least, most) => map(values, |x| x.at_least(least).at_most(most)),
            Self::Sigmoid => map(values, sigmoid),
            &Self::Swish(alpha) => map(values, |x| x * sigmoid(alpha * x)),
            &Self::HardSigmoid(alpha, beta) => {
                map(values, |x| (alpha * x + beta).at_least(S::ZERO).at_most(one));
            }
            Self::HardSwish => map(values, |x| x * hard_swish_gate(x)),
            Self::Tanh => map(values, S::tanh),
            Self::Exp => map(values, S::exp),
            Self::Ln => map(values, S::ln),
            Self::Sqrt => map(values, S::sqrt),
            Self::Abs => map(values, S::abs),
            Self::Negate => map(values, |x| -x),
            Self::Reciprocal => map(values, |x| one / x),
            Self::Erf => map(values, S::erf),
            Self::Gelu => map(values, |x| x * normal(x)),
            Self::GeluByTanh => map(values, |x| x * normal_by_tanh(x).0),
            Self::Softplus => map(values, |x| x.at_least(S::ZERO) + (-x.abs()).exp().ln_1p()),
            &Self::Elu(alpha) => map(values, |x| if x < S::ZERO { alpha * (x.exp() - one) } else { x }),
            Self::Affine { channels, scale, shift } => channels.each(values, |channel, run| {
                let (scale, shift) = (scale[channel], shift[channel]);
                map(run, |x| scale * x + shift);
            }),
            Self::Quantise { channels, scale, zero, least, most } => channels.each(values, |channel, run| {
                let (scale, zero) = (scale[channel], zero[channel]);
                map(run, |x| ((x / scale).round_even() + zero).at_least(*least).at_most(*most));
            }),
        }
    }

    /// Multiplies a gradient by the derivative; `kept` is what [`Self::needs`] names.
    pub(super) fn pull_back(&self, kept: &[S], gradient: &mut [S]) {
        let (zero, one) = (S::ZERO, S::ONE);
        match self {
            Self::Relu => zip(gradient, kept, |g, y| if y > zero { g } else { zero }),
            // Input and output have the same sign, or the input is kept.
            &Self::LeakyRelu(slope) => zip(gradient, kept, |g, y| if y < zero { slope * g } else { g }),
            &Self::Clip(least, most) => {
                zip(gradient, kept, |g, y| if y > least && y < most { g } else { zero });
            }
            Self::Sigmoid => zip(gradient, kept, |g, y| g * y * (one - y)),
            &Self::Swish(alpha) => zip(gradient, kept, |g, x| {
                let gate = sigmoid(alpha * x);
                g * (gate + alpha * x * gate * (one - gate))
            }),
            &Self::HardSigmoid(alpha, _) => {
                zip(gradient, kept, |g, y| if y > zero && y < one { alpha * g } else { zero });
            }
            Self::HardSwish => {
                let (three, third) = (S::of(3.0), S::of(1.0 / 3.0));
                let half = S::of(0.5);
                zip(gradient, kept, |g, x| {
                    if x <= -three {
                        zero
                    } else if x >= three {
                        g
                    } else {
                        g * (x * third + half)
                    }
                });
            }
            Self::Tanh => zip(gradient, kept, |g, y| g * (one - y * y)),
            Self::Exp => zip(gradient, kept, |g, y| g * y),
            Self::Ln => zip(gradient, kept, |g, x| g / x),
            Self::Sqrt => {
                let half = S::of(0.5);
                zip(gradient, kept, |g, y| if y > zero { half * g / y } else { zero });
            }
            Self::Abs => zip(gradient, kept, |g, x| {
                if x > zero {
                    g
                } else if x < zero {
                    -g
                } else {
                    zero
                }
            }),
            Self::Negate => map(gradient, |g| -g),
            Self::Reciprocal => zip(gradient, kept, |g, y| -g * y * y),
            Self::Erf => {
                let factor = S::of(2.0 / PI.sqrt());
                zip(gradient, kept, |g, x| g * factor * (-x * x).exp());
            }
            Self::Gelu => {
                let (density, half) = (S::of(1.0 / (2.0 * PI).sqrt()), S::of(0.5));
                zip(gradient, kept, |g, x| g * (normal(x) + x * density * (-half * x * x).exp()));
            }
            Self::GeluByTanh => zip(gradient, kept, |g, x| {
                let (value, slope) = normal_by_tanh(x);
                g * (value + x * slope)
            }),
            Self::Softplus => zip(gradient, kept, |g, x| g * sigmoid(x)),
            &Self::Elu(alpha) if alpha <= zero => {
                zip(gradient, kept, |g, x| if x < zero { g * alpha * x.exp() } else { g });
            }
            &Self::Elu(alpha) => zip(gradient, kept, |g, y| if y < zero { g * (y + alpha) } else { g }),
            Self::Affine { channels, scale, .. } => channels.each(gradient, |channel, run| {
                let scale = scale[channel];
                map(run, |g| scale * g);
            }),
            Self::Quantise { channels, scale, least, most, .. } => {
                let mut rest = kept;
                channels.each(gradient, |channel, run| {
                    let (kept, after) = rest.split_at(run.len());
                    rest = after;
                    let scale = scale[channel];
                    zip(run, kept, |g, y| if y > *least && y < *most { g / scale } else { zero });
                });
            }
        }
    }
}

fn map<S: Copy>(values: &mut [S], rule: impl Fn(S) -> S) {
    values.iter_mut().for_each(|value| *value = rule(*value));
}

fn zip<S: Copy>(gradient: &mut [S], kept: &[S], rule: impl Fn(S, S) -> S) {
    gradient.iter_mut().zip(kept).for_each(|(gradient, &kept)| *gradient = rule(*gradient, kept));
}

fn sigmoid<S: Scalar>(x: S) -> S {
    S::ONE / (S::ONE + (-x).exp())
}

fn hard_swish_gate<S: Scalar>(x: S) -> S {
    (x * S::of(1.0 / 6.0) + S::of(0.5)).at_least(S::ZERO).at_most(S::ONE)
}

fn normal<S: Scalar>(x: S) -> S {
    S::of(0.5) * (S::ONE + (x * S::of(FRAC_1_SQRT_2)).erf())
}

/// `(1 + tanh(√(2/π)(x + 0.044715x³)))/2` and its slope.
fn normal_by_tanh<S: Scalar>(x: S) -> (S, S) {
    let (root, cubic, half) = (S::of((2.0 / PI).sqrt()), S::of(0.044715), S::of(0.5));
    let tanh = (root * (x + cubic * x * x * x)).tanh();
    let slope = half * (S::ONE - tanh * tanh) * root * (S::ONE + S::of(3.0) * cubic * x * x);
    (half * (S::ONE + tanh), slope)
}
