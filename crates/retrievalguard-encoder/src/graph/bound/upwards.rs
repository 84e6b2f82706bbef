//! Arithmetic that is never below the exact result, for numbers that are not negative.
//!
//! Every operation of IEEE 754 is the exact result rounded to nearest, so the next number up is at least the exact one.

pub(crate) fn add(left: f64, right: f64) -> f64 {
    if left == 0.0 || right == 0.0 { left + right } else { (left + right).next_up() }
}

pub(crate) fn mul(left: f64, right: f64) -> f64 {
    // Infinity times nothing is nothing: a bound that does not matter.
    if left == 0.0 || right == 0.0 {
        0.0
    } else if left == 1.0 || right == 1.0 {
        left * right
    } else {
        (left * right).next_up()
    }
}

/// `left/right` for `right` above zero.
pub(crate) fn div(left: f64, right: f64) -> f64 {
    if left == 0.0 || right == 1.0 { left } else { (left / right).next_up() }
}

pub(crate) fn root(value: f64) -> f64 {
    let rounded = value.sqrt();
    // Roots of square numbers are exact.
    let whole = value < 1e15 && rounded.fract() == 0.0 && rounded * rounded == value;
    if whole { rounded } else { rounded.next_up() }
}

/// `slope · N + offset`, a bound that grows with the norm `N` of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Affine {
    pub(crate) slope: f64,
    pub(crate) offset: f64,
}

impl Affine {
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { slope: mul(self.slope, factor), offset: mul(self.offset, factor) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { slope: add(self.slope, other.slope), offset: add(self.offset, other.offset) }
    }

    pub(crate) fn plus_offset(self, offset: f64) -> Self {
        Self { slope: self.slope, offset: add(self.offset, offset) }
    }
}
