//! Operators of two values, stretched to one shape: sums, products, powers, the greater of both.

use std::sync::Arc;

use super::pointwise::Needs;
use super::scalar::Scalar;
use super::shape::Broadcast;

/// What is made of each pair of numbers.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
    Greatest,
    Least,
    /// `x` if it is above zero, `x` times the right number otherwise.
    Slope,
    /// The left number where the constant says so, the right one elsewhere.
    Choose(Arc<Vec<bool>>),
}

#[derive(Clone, Debug)]
pub(super) struct Pairs {
    pub(super) rule: Rule,
    pub(super) broadcast: Broadcast,
}

impl Pairs {
    pub(super) fn needs(&self) -> Needs {
        match self.rule {
            Rule::Add | Rule::Subtract | Rule::Choose(_) => Needs::Nothing,
            Rule::Multiply | Rule::Divide | Rule::Power | Rule::Greatest | Rule::Least | Rule::Slope => {
                Needs::Inputs
            }
        }
    }

    pub(super) fn forward<S: Scalar>(&self, left: &[S], right: &[S], out: &mut [S]) {
        match &self.rule {
            Rule::Add => self.map(left, right, out, |a, b| a + b),
            Rule::Subtract => self.map(left, right, out, |a, b| a - b),
            Rule::Multiply => self.map(left, right, out, |a, b| a * b),
            Rule::Divide => self.map(left, right, out, |a, b| a / b),
            Rule::Power => self.map(left, right, out, power),
            Rule::Greatest => self.map(left, right, out, S::at_least),
            Rule::Least => self.map(left, right, out, S::at_most),
            Rule::Slope => self.map(left, right, out, |a, b| if a < S::ZERO { a * b } else { a }),
            Rule::Choose(choice) => self.broadcast.each(|start, from_left, from_right| {
                let [moves_left, moves_right] = self.broadcast.moves;
                for step in 0..self.broadcast.run {
                    out[start + step] = if choice[start + step] {
                        left[from_left + if moves_left { step } else { 0 }]
                    } else {
                        right[from_right + if moves_right { step } else { 0 }]
                    };
                }
            }),
        }
    }

    /// Adds the gradient with respect to the left value (`place` 0) or the right one.
    pub(super) fn backward<S: Scalar>(
        &self,
        place: usize,
        (left, right): (&[S], &[S]),
        gradient: &[S],
        into: &mut [S],
    ) {
        let (zero, one) = (S::ZERO, S::ONE);
        let share = |is: bool| if is { one } else { zero };
        match (&self.rule, place) {
            (Rule::Add, _) | (Rule::Subtract, 0) => self.pull_plain(place, gradient, into, |g| g),
            (Rule::Subtract, _) => self.pull_plain(place, gradient, into, |g| -g),
            (Rule::Multiply, 0) => self.pull(0, left, right, gradient, into, |_, b| b),
            (Rule::Multiply, _) => self.pull(1, left, right, gradient, into, |a, _| a),
            (Rule::Divide, 0) => self.pull(0, left, right, gradient, into, |_, b| one / b),
            (Rule::Divide, _) => self.pull(1, left, right, gradient, into, |a, b| -a / (b * b)),
            (Rule::Power, 0) => self.pull(0, left, right, gradient, into, |a, b| {
                if b == zero { zero } else { b * power(a, b - one) }
            }),
            (Rule::Power, _) => {
                let slope = |a: S, b: S| if a > zero { power(a, b) * a.ln() } else { zero };
                self.pull(1, left, right, gradient, into, slope);
            }
            (Rule::Greatest, 0) => self.pull(0, left, right, gradient, into, |a, b| {
                share(a.partial_cmp(&b) != Some(std::cmp::Ordering::Less))
            }),
            (Rule::Greatest, _) => self.pull(1, left, right, gradient, into, |a, b| share(b > a)),
            (Rule::Least, 0) => self.pull(0, left, right, gradient, into, |a, b| {
                share(a.partial_cmp(&b) != Some(std::cmp::Ordering::Greater))
            }),
            (Rule::Least, _) => self.pull(1, left, right, gradient, into, |a, b| share(b < a)),
            (Rule::Slope, 0) => {
                self.pull(0, left, right, gradient, into, |a, b| if a < zero { b } else { one });
            }
            (Rule::Slope, _) => {
                self.pull(1, left, right, gradient, into, |a, _| if a < zero { a } else { zero });
            }
            (Rule::Choose(choice), _) => self.broadcast.each(|start, from_left, from_right| {
                let from = if place == 0 { from_left } else { from_right };
                let moves = self.broadcast.moves[place.min(1)];
                for step in 0..self.broadcast.run {
                    if choice[start + step] == (place == 0) {
                        into[from + if moves { step } else { 0 }] += gradient[start + step];
                    }
                }
            }),
        }
    }

    fn map<S: Scalar>(&self, left: &[S], right: &[S], out: &mut [S], rule: impl Fn(S, S) -> S) {
        let run = self.broadcast.run;
        self.broadcast.each(|start, from_left, from_right| {
            let out = &mut out[start..start + run];
            match self.broadcast.moves {
                [true, true] => {
                    let (left, right) = (&left[from_left..][..run], &right[from_right..][..run]);
                    for ((out, &a), &b) in out.iter_mut().zip(left).zip(right) {
                        *out = rule(a, b);
                    }
                }
                [true, false] => {
                    let b = right[from_right];
                    out.iter_mut().zip(&left[from_left..][..run]).for_each(|(out, &a)| *out = rule(a, b));
                }
                [false, true] => {
                    let a = left[from_left];
                    out.iter_mut().zip(&right[from_right..][..run]).for_each(|(out, &b)| *out = rule(a, b));
                }
                [false, false] => out.fill(rule(left[from_left], right[from_right])),
            }
        });
    }

    /// The gradient where the derivative depends on nothing.
    fn pull_plain<S: Scalar>(&self, place: usize, gradient: &[S], into: &mut [S], rule: impl Fn(S) -> S) {
        let run = self.broadcast.run;
        self.broadcast.each(|start, left, right| {
            let from = if place == 0 { left } else { right };
            let gradient = &gradient[start..start + run];
            if self.broadcast.moves[place.min(1)] {
                let into = &mut into[from..from + run];
                into.iter_mut().zip(gradient).for_each(|(into, &g)| *into += rule(g));
            } else {
                into[from] += gradient.iter().map(|&g| rule(g)).sum();
            }
        });
    }

    fn pull<S: Scalar>(
        &self,
        place: usize,
        left: &[S],
        right: &[S],
        gradient: &[S],
        into: &mut [S],
        rule: impl Fn(S, S) -> S,
    ) {
        let run = self.broadcast.run;
        let [moves_left, moves_right] = self.broadcast.moves;
        self.broadcast.each(|start, from_left, from_right| {
            let gradient = &gradient[start..start + run];
            let from = if place == 0 { from_left } else { from_right };
            if moves_left && moves_right {
                let (left, right) = (&left[from_left..][..run], &right[from_right..][..run]);
                let into = &mut into[from..from + run];
                for (((into, &g), &a), &b) in into.iter_mut().zip(gradient).zip(left).zip(right) {
                    *into += g * rule(a, b);
                }
                return;
            }
            let at = |values: &[S], from: usize, moves: bool, step: usize| {
                values[if moves { from + step } else { from }]
            };
            let moves = self.broadcast.moves[place];
            for (step, &g) in gradient.iter().enumerate() {
                let (a, b) =
                    (at(left, from_left, moves_left, step), at(right, from_right, moves_right, step));
                into[if moves { from + step } else { from }] += g * rule(a, b);
            }
        });
    }
}

/// `aᵇ`, exact for the exponents that networks use.
fn power<S: Scalar>(base: S, exponent: S) -> S {
    if exponent == S::of(2.0) {
        base * base
    } else if exponent == S::ONE {
        base
    } else if exponent == S::of(3.0) {
        base * base * base
    } else if exponent == S::of(0.5) {
        base.sqrt()
    } else {
        base.powf(exponent)
    }
}
