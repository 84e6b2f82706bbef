//! Operators along one axis: means, sums, norms, softmax, and normalisation by mean and variance.

use std::sync::Arc;

use super::pointwise::Needs;
use super::scalar::Scalar;

/// An axis of `length` members, `inner` numbers apart, `outer` times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along {
    pub(super) outer: usize,
    pub(super) length: usize,
    pub(super) inner: usize,
}

impl Along {
    /// Calls `visit` with the number of each line and where it begins.
    fn each(self, mut visit: impl FnMut(usize, usize)) {
        for outer in 0..self.outer {
            for inner in 0..self.inner {
                visit(outer * self.inner + inner, outer * self.length * self.inner + inner);
            }
        }
    }

    /// The numbers of the line that begins there.
    fn line<S: Copy>(self, values: &[S], start: usize) -> impl Iterator<Item = S> + '_ {
        values[start..].iter().copied().step_by(self.inner).take(self.length)
    }

    fn line_mut<S>(self, values: &mut [S], start: usize) -> impl Iterator<Item = &mut S> {
        values[start..].iter_mut().step_by(self.inner).take(self.length)
    }
}

/// What a line is reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    Mean,
    Sum,
    Greatest,
    Least,
    /// Sum of absolute values.
    Absolute,
    /// Sum of squares.
    Squares,
    /// Root of the sum of squares.
    Length,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reduce {
    pub(super) reduction: Reduction,
    pub(super) along: Along,
}

impl Reduce {
    pub(super) fn needs(&self) -> Needs {
        match self.reduction {
            Reduction::Mean | Reduction::Sum => Needs::Nothing,
            Reduction::Greatest
            | Reduction::Least
            | Reduction::Absolute
            | Reduction::Squares
            | Reduction::Length => Needs::Inputs,
        }
    }

    pub(super) fn forward<S: Scalar>(&self, input: &[S], out: &mut [S]) {
        let length = S::of(self.along.length as f64);
        self.along.each(|number, start| {
            let line = self.along.line(input, start);
            out[number] = match self.reduction {
                Reduction::Mean => line.sum::<S>() / length,
                Reduction::Sum => line.sum(),
                Reduction::Greatest => line.fold(S::LOWEST, S::at_least),
                Reduction::Least => line.fold(-S::LOWEST, S::at_most),
                Reduction::Absolute => line.map(S::abs).sum(),
                Reduction::Squares => line.map(|x| x * x).sum(),
                Reduction::Length => line.map(|x| x * x).sum::<S>().sqrt(),
            };
        });
    }

    pub(super) fn backward<S: Scalar>(&self, input: &[S], gradient: &[S], into: &mut [S]) {
        let length = S::of(self.along.length as f64);
        self.along.each(|number, start| {
            let gradient = gradient[number];
            let slope = |x: S| match self.reduction {
                Reduction::Absolute if x > S::ZERO => gradient,
                Reduction::Absolute if x < S::ZERO => -gradient,
                Reduction::Absolute => S::ZERO,
                _ => S::of(2.0) * x * gradient,
            };
            match self.reduction {
                Reduction::Mean => {
                    self.along.line_mut(into, start).for_each(|into| *into += gradient / length);
                }
                Reduction::Sum => self.along.line_mut(into, start).for_each(|into| *into += gradient),
                Reduction::Greatest | Reduction::Least => {
                    let better = |x: S, best: S| match self.reduction {
                        Reduction::Least => x < best,
                        _ => x > best,
                    };
                    let mut best: Option<(usize, S)> = None;
                    for (place, x) in self.along.line(input, start).enumerate() {
                        if best.is_none_or(|(_, found)| better(x, found)) {
                            best = Some((place, x));
                        }
                    }
                    if let Some((place, _)) = best {
                        into[start + place * self.along.inner] += gradient;
                    }
                }
                Reduction::Absolute | Reduction::Squares => {
                    let line = self.along.line(input, start);
                    self.along.line_mut(into, start).zip(line).for_each(|(into, x)| *into += slope(x));
                }
                Reduction::Length => {
                    let norm = self.along.line(input, start).map(|x| x * x).sum::<S>().sqrt();
                    if norm > S::ZERO {
                        let line = self.along.line(input, start);
                        let scaled = self.along.line_mut(into, start).zip(line);
                        scaled.for_each(|(into, x)| *into += gradient * x / norm);
                    }
                }
            }
        });
    }
}

/// Operators that turn every line into a line.
#[derive(Clone, Debug)]
pub(super) enum Normalise<S> {
    Softmax,
    LogSoftmax,
    /// Divided by its length (`p` = 2) or by the sum of its absolute values (`p` = 1).
    Length {
        squared: bool,
    },
    /// `(x − mean)/√(variance + ε) · scale + shift`; scale and shift are as long as a line.
    Moments {
        epsilon: S,
        scale: Option<Arc<Vec<S>>>,
        shift: Option<Arc<Vec<S>>>,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Lines<S> {
    pub(super) normalise: Normalise<S>,
    pub(super) along: Along,
}

impl<S: Scalar> Lines<S> {
    pub(super) fn needs(&self) -> Needs {
        match self.normalise {
            Normalise::Softmax | Normalise::LogSoftmax => Needs::Output,
            Normalise::Length { .. } | Normalise::Moments { .. } => Needs::Inputs,
        }
    }

    pub(super) fn forward(&self, input: &[S], out: &mut [S]) {
        let along = self.along;
        along.each(|_, start| match &self.normalise {
            Normalise::Softmax => {
                let greatest = along.line(input, start).fold(S::LOWEST, S::at_least);
                let mut total = S::ZERO;
                for (out, x) in along.line_mut(out, start).zip(along.line(input, start)) {
                    *out = (x - greatest).exp();
                    total += *out;
                }
                along.line_mut(out, start).for_each(|out| *out = *out / total);
            }
            Normalise::LogSoftmax => {
                let greatest = along.line(input, start).fold(S::LOWEST, S::at_least);
                let total: S = along.line(input, start).map(|x| (x - greatest).exp()).sum();
                let shift = greatest + total.ln();
                along
                    .line_mut(out, start)
                    .zip(along.line(input, start))
                    .for_each(|(out, x)| *out = x - shift);
            }
            Normalise::Length { squared } => {
                let norm = self.norm(input, start, *squared);
                let lines = along.line_mut(out, start).zip(along.line(input, start));
                // An engine leaves nothing as nothing.
                lines.for_each(|(out, x)| *out = if norm > S::ZERO { x / norm } else { S::ZERO });
            }
            Normalise::Moments { epsilon, scale, shift } => {
                let (mean, deviation) = self.moments(input, start, *epsilon);
                let lines = along.line_mut(out, start).zip(along.line(input, start)).enumerate();
                for (place, (out, x)) in lines {
                    let scale = scale.as_ref().map_or(S::ONE, |scale| scale[place]);
                    let shift = shift.as_ref().map_or(S::ZERO, |shift| shift[place]);
                    *out = (x - mean) / deviation * scale + shift;
                }
            }
        });
    }

    /// `kept` is what [`Self::needs`] names.
    pub(super) fn backward(&self, kept: &[S], gradient: &[S], into: &mut [S]) {
        let along = self.along;
        along.each(|_, start| {
            let both = || along.line(kept, start).zip(along.line(gradient, start));
            match &self.normalise {
                Normalise::Softmax => {
                    let total: S = both().map(|(y, g)| y * g).sum();
                    let lines = along.line_mut(into, start).zip(both());
                    lines.for_each(|(into, (y, g))| *into += y * (g - total));
                }
                Normalise::LogSoftmax => {
                    let total: S = along.line(gradient, start).sum();
                    let lines = along.line_mut(into, start).zip(both());
                    lines.for_each(|(into, (y, g))| *into += g - y.exp() * total);
                }
                Normalise::Length { squared } => {
                    let norm = self.norm(kept, start, *squared);
                    if norm <= S::ZERO {
                        return;
                    }
                    let total: S = both().map(|(x, g)| x * g).sum::<S>() / (norm * norm);
                    let lines = along.line_mut(into, start).zip(both());
                    for (into, (x, g)) in lines {
                        let direction = match squared {
                            true => x / norm,
                            false if x > S::ZERO => S::ONE,
                            false if x < S::ZERO => -S::ONE,
                            false => S::ZERO,
                        };
                        *into += g / norm - direction * total;
                    }
                }
                Normalise::Moments { epsilon, scale, .. } => {
                    let (mean, deviation) = self.moments(kept, start, *epsilon);
                    let at = |place: usize| scale.as_ref().map_or(S::ONE, |scale| scale[place]);
                    let length = S::of(along.length as f64);
                    let (mut plain, mut weighted) = (S::ZERO, S::ZERO);
                    for (place, (x, g)) in both().enumerate() {
                        plain += g * at(place);
                        weighted += g * at(place) * (x - mean) / deviation;
                    }
                    let (plain, weighted) = (plain / length, weighted / length);
                    let lines = along.line_mut(into, start).zip(both()).enumerate();
                    for (place, (into, (x, g))) in lines {
                        *into += (g * at(place) - plain - (x - mean) / deviation * weighted) / deviation;
                    }
                }
            }
        });
    }

    fn norm(&self, values: &[S], start: usize, squared: bool) -> S {
        let line = self.along.line(values, start);
        if squared { line.map(|x| x * x).sum::<S>().sqrt() } else { line.map(S::abs).sum() }
    }

    /// Mean and standard deviation of a line.
    fn moments(&self, values: &[S], start: usize, epsilon: S) -> (S, S) {
        let length = S::of(self.along.length as f64);
        let mean = self.along.line(values, start).sum::<S>() / length;
        let variance = self.along.line(values, start).map(|x| (x - mean) * (x - mean)).sum::<S>() / length;
        (mean, (variance + epsilon).sqrt())
    }
}
