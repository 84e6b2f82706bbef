//! One operator with everything resolved: what it computes, and the transpose of its derivative.

use std::sync::Arc;

use super::convolution::Convolution;
use super::pairs::Pairs;
use super::pointwise::{Needs, Pointwise};
use super::pooling::Pool;
use super::products::Products;
use super::reductions::{Lines, Reduce};
use super::scalar::Scalar;
use super::workspace::Workspace;

/// Stands in a table of places for a number that comes from nowhere.
pub(super) const NOWHERE: u32 = u32::MAX;

/// What an operator does to values of known shapes.
#[derive(Clone, Debug)]
pub(super) enum Operation<S> {
    Convolution {
        map: Convolution<S>,
        bias: Option<Arc<Vec<S>>>,
    },
    /// The transpose of `map`, and a bias.
    Transposed {
        map: Convolution<S>,
        bias: Option<Arc<Vec<S>>>,
    },
    Products(Products),
    Pairs(Pairs),
    Pointwise(Pointwise<S>),
    Reduce(Reduce),
    Lines(Lines<S>),
    Pool(Pool),
    /// Every number of the output is one of the input, or `fill`: transposes, slices, padding and the like.
    Select {
        table: Arc<Vec<u32>>,
        fill: S,
    },
    /// Pieces of so many numbers from each input in turn, over and over.
    Interleave {
        pieces: Vec<usize>,
    },
}

impl<S: Scalar> Operation<S> {
    /// What [`Self::backward`] must be given.
    pub(super) fn needs(&self) -> Needs {
        match self {
            Self::Convolution { .. }
            | Self::Transposed { .. }
            | Self::Select { .. }
            | Self::Interleave { .. } => Needs::Nothing,
            Self::Products(_) => Needs::Inputs,
            Self::Pairs(pairs) => pairs.needs(),
            Self::Pointwise(pointwise) => pointwise.needs(),
            Self::Reduce(reduce) => reduce.needs(),
            Self::Lines(lines) => lines.needs(),
            Self::Pool(pool) => pool.needs(),
        }
    }

    pub(super) fn forward(&self, inputs: &[&[S]], out: &mut [S], work: &mut Workspace<S>) {
        match self {
            Self::Convolution { map, bias } => {
                begin(bias.as_ref(), map.given[0] * map.given[1], out);
                map.add_to(inputs[0], out, work);
            }
            Self::Transposed { map, bias } => {
                begin(bias.as_ref(), map.taken[0] * map.taken[1], out);
                map.add_transposed_to(inputs[0], out, work);
            }
            Self::Products(products) => products.forward(inputs[0], inputs[1], out, work),
            Self::Pairs(pairs) => pairs.forward(inputs[0], inputs[1], out),
            Self::Pointwise(pointwise) => {
                out.copy_from_slice(inputs[0]);
                pointwise.apply(out);
            }
            Self::Reduce(reduce) => reduce.forward(inputs[0], out),
            Self::Lines(lines) => lines.forward(inputs[0], out),
            Self::Pool(pool) => pool.forward(inputs[0], out),
            Self::Select { table, fill } => {
                for (out, &place) in out.iter_mut().zip(table.iter()) {
                    *out = if place == NOWHERE { *fill } else { inputs[0][place as usize] };
                }
            }
            Self::Interleave { pieces } => {
                let mut start = 0;
                let period: usize = pieces.iter().sum();
                for (input, &piece) in inputs.iter().zip(pieces) {
                    for (out, input) in out.chunks_exact_mut(period).zip(input.chunks_exact(piece)) {
                        out[start..start + piece].copy_from_slice(input);
                    }
                    start += piece;
                }
            }
        }
    }

    /// Adds the gradient with respect to one input; what [`Self::needs`] does not name may be empty.
    pub(super) fn backward(
        &self,
        place: usize,
        (inputs, output): (&[&[S]], &[S]),
        gradient: &[S],
        into: &mut [S],
        work: &mut Workspace<S>,
    ) {
        match self {
            Self::Convolution { map, .. } => map.add_transposed_to(gradient, into, work),
            Self::Transposed { map, .. } => map.add_to(gradient, into, work),
            Self::Products(products) if place == 0 => products.backward_left(inputs[1], gradient, into, work),
            Self::Products(products) => products.backward_right(inputs[0], gradient, into, work),
            Self::Pairs(pairs) => pairs.backward(place, (inputs[0], inputs[1]), gradient, into),
            Self::Pointwise(pointwise) => {
                let mut own = work.take(gradient.len());
                own.copy_from_slice(gradient);
                let kept = match pointwise.needs() {
                    Needs::Inputs => inputs[0],
                    Needs::Output | Needs::Nothing => output,
                };
                pointwise.pull_back(kept, &mut own);
                add(&own, into);
                work.give(own);
            }
            Self::Reduce(reduce) => reduce.backward(inputs[0], gradient, into),
            Self::Lines(lines) => {
                let kept = match lines.needs() {
                    Needs::Inputs => inputs[0],
                    Needs::Output | Needs::Nothing => output,
                };
                lines.backward(kept, gradient, into);
            }
            Self::Pool(pool) => pool.backward(inputs[0], gradient, into),
            Self::Select { table, .. } => {
                for (&gradient, &place) in gradient.iter().zip(table.iter()) {
                    if place != NOWHERE {
                        into[place as usize] += gradient;
                    }
                }
            }
            Self::Interleave { pieces } => {
                let start: usize = pieces[..place].iter().sum();
                let period: usize = pieces.iter().sum();
                let piece = pieces[place];
                for (gradient, into) in gradient.chunks_exact(period).zip(into.chunks_exact_mut(piece)) {
                    add(&gradient[start..start + piece], into);
                }
            }
        }
    }
}

/// Fills every channel with its bias, or all with zeros.
fn begin<S: Scalar>(bias: Option<&Arc<Vec<S>>>, plane: usize, out: &mut [S]) {
    match bias {
        None => out.fill(S::ZERO),
        Some(bias) => {
            for (place, out) in out.chunks_exact_mut(plane).enumerate() {
                out.fill(bias[place % bias.len()]);
            }
        }
    }
}

/// `into += values`.
pub(super) fn add<S: Scalar>(values: &[S], into: &mut [S]) {
    into.iter_mut().zip(values).for_each(|(into, &value)| *into += value);
}
