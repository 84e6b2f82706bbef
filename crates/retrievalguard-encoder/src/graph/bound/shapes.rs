//! Shapes of what operators make of one picture.

use super::attributes::{int, ints, lengths, text};
use super::{Fault, no};
use crate::graph::Node;

/// An axis counted from either end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, Fault> {
    let place = if axis < 0 { axis + rank as i64 } else { axis };
    if (0..rank as i64).contains(&place) { Ok(place as usize) } else { no(format!("it has no axis {axis}")) }
}

/// How a window moves over the two last axes of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) kernel: [usize; 2],
    pub(super) strides: [usize; 2],
    pub(super) dilations: [usize; 2],
    /// Rows and columns added before, then behind.
    pub(super) pads: [usize; 4],
}

impl Windows {
    pub(super) fn of(node: &Node, kernel: [usize; 2]) -> Result<Self, Fault> {
        let pair = |name: &str| -> Result<[usize; 2], Fault> {
            let found = lengths(node, name, &[1, 1], 1)?;
            Ok([found[0], found[1]])
        };
        let pads = lengths(node, "pads", &[0; 4], 0)?;
        match text(node, "auto_pad", "NOTSET")? {
            "NOTSET" => {}
            "VALID" if pads == [0; 4] => {}
            other => return no(format!("its auto_pad is `{other}`, wanted explicit pads")),
        }
        if let Some(declared) = ints(node, "kernel_shape")?
            && declared != kernel.map(|side| side as i64)
        {
            return no(format!("its kernel_shape is {declared:?}, its weights have {kernel:?}"));
        }
        Ok(Self {
            kernel,
            strides: pair("strides")?,
            dilations: pair("dilations")?,
            pads: [pads[0], pads[1], pads[2], pads[3]],
        })
    }

    /// The windows of a pool, whose size is an attribute.
    pub(super) fn of_pool(node: &Node) -> Result<Self, Fault> {
        if ints(node, "kernel_shape")?.is_none() {
            return no("it does not say its kernel_shape");
        }
        let kernel = lengths(node, "kernel_shape", &[1, 1], 1)?;
        let windows = Self::of(node, [kernel[0], kernel[1]])?;
        if int(node, "ceil_mode", 0)? != 0 {
            return no("it is in ceil mode");
        }
        Ok(windows)
    }

    /// How far a window reaches along an axis.
    pub(super) fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilations[axis] + 1
    }

    /// How many windows there are along both axes.
    pub(super) fn count(&self, sides: [usize; 2]) -> Result<[usize; 2], Fault> {
        let mut count = [0; 2];
        for axis in 0..2 {
            let room = (sides[axis] + self.pads[axis] + self.pads[axis + 2]).checked_sub(self.reach(axis));
            let Some(room) = room else { return no("its window is larger than the picture") };
            count[axis] = room / self.strides[axis] + 1;
        }
        Ok(count)
    }
}

/// Most numbers of a value that is followed.
const MOST_NUMBERS: usize = 1 << 34;

/// How many numbers a tensor of this shape holds; none if they are more than are followed.
pub(super) fn elements(shape: &[usize]) -> Option<usize> {
    let count = shape.iter().try_fold(1_usize, |count, &side| count.checked_mul(side))?;
    (count <= MOST_NUMBERS).then_some(count)
}

/// The sides of a picture of four axes.
pub(super) fn sides(shape: &[usize]) -> Result<[usize; 4], Fault> {
    match *shape {
        [batch, channels, height, width] => Ok([batch, channels, height, width]),
        _ => no(format!("it takes a tensor of shape {shape:?}, wanted four axes")),
    }
}

/// The shape that `Reshape` makes.
pub(super) fn reshaped(from: &[usize], to: &[i64], keep_zeros: bool) -> Result<Vec<usize>, Fault> {
    let total: usize = from.iter().product();
    let mut shape = Vec::with_capacity(to.len());
    let mut open = None;
    for (place, &side) in to.iter().enumerate() {
        shape.push(match side {
            -1 if open.is_none() => {
                open = Some(place);
                1
            }
            0 if !keep_zeros => match from.get(place) {
                Some(&side) => side,
                None => return no("its new shape is not followed"),
            },
            side if (1..1 << 40).contains(&side) => side as usize,
            _ => return no("its new shape is not followed"),
        });
    }
    let known = shape.iter().try_fold(1_usize, |count, &side| count.checked_mul(side));
    match (known, open) {
        (Some(known), Some(place)) if known > 0 && total.is_multiple_of(known) => {
            shape[place] = total / known;
        }
        (Some(known), None) if known == total => {}
        _ => return no(format!("it cannot bring {from:?} to {to:?}")),
    }
    Ok(shape)
}

/// Whether a constant of this shape is broadcast to another without changing it.
pub(super) fn fits(constant: &[usize], value: &[usize]) -> bool {
    constant.len() <= value.len()
        && constant.iter().rev().zip(value.iter().rev()).all(|(&own, &other)| own == 1 || own == other)
}
