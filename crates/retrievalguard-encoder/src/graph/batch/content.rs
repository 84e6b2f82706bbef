//! Arithmetic on the integers that shapes are computed from, some of them multiples of the number of pictures.

use super::fact::Dim::{self, Batch, Known, Open};

/// Whether an engine that counts in 32 bits finds the same number, whatever the batch; batches have up to 2¹² pictures.
pub(super) fn is_followed(dim: Dim) -> bool {
    match dim {
        Known(number) => number.unsigned_abs() < 1 << 24,
        Batch(times) => times.unsigned_abs() < 1 << 19,
        Open => true,
    }
}

/// Whether it is a number that single precision holds exactly, whatever the batch.
pub(super) fn is_exact(dim: Dim) -> bool {
    match dim {
        Known(number) => number.unsigned_abs() < 1 << 24,
        Batch(times) => times.unsigned_abs() < 1 << 12,
        Open => false,
    }
}

/// What a binary operator makes of two integers; nothing if the result grows with the pictures in some other way, or if
/// engines that count in other types may disagree about it.
pub(super) fn binary(operator: &str, left: Dim, right: Dim) -> Option<Dim> {
    if !is_followed(left) || !is_followed(right) {
        return None;
    }
    exactly(operator, left, right).filter(|&result| result == Open || is_exact(result))
}

fn exactly(operator: &str, left: Dim, right: Dim) -> Option<Dim> {
    if left == Open || right == Open {
        let grows = matches!(left, Batch(_)) || matches!(right, Batch(_));
        return (!grows).then_some(Open);
    }
    let flag = |is: bool| Some(Known(i64::from(is)));
    match (operator, left, right) {
        ("Add", Known(left), Known(right)) => left.checked_add(right).map(Known),
        ("Add", Batch(left), Batch(right)) => left.checked_add(right).map(Batch),
        ("Add", Batch(times), Known(0)) | ("Add", Known(0), Batch(times)) => Some(Batch(times)),
        ("Sub", Known(left), Known(right)) => left.checked_sub(right).map(Known),
        ("Sub", Batch(times), Known(0)) => Some(Batch(times)),
        ("Sub", Batch(left), Batch(right)) => match left.checked_sub(right)? {
            0 => Some(Known(0)),
            times => Some(Batch(times)),
        },
        ("Mul", Known(left), Known(right)) => left.checked_mul(right).map(Known),
        ("Mul", Batch(times), Known(number)) | ("Mul", Known(number), Batch(times)) => {
            match times.checked_mul(number)? {
                0 => Some(Known(0)),
                times => Some(Batch(times)),
            }
        }
        // Integers are divided towards zero, other numbers are not: both agree where nothing is left over.
        ("Div", Known(left), Known(right)) => exact(left, right).map(Known),
        ("Div", Batch(left), Known(right)) => exact(left, right).map(Batch),
        ("Div", Batch(left), Batch(right)) => exact(left, right).map(Known),
        ("Max", Known(left), Known(right)) => Some(Known(left.max(right))),
        ("Min", Known(left), Known(right)) => Some(Known(left.min(right))),
        ("Mod", Known(left), Known(right)) if left >= 0 && right > 0 => Some(Known(left % right)),
        ("Equal", Known(left), Known(right)) => flag(left == right),
        ("Equal", Batch(left), Batch(right)) => flag(left == right),
        // A positive multiple of the number of pictures is never zero or negative.
        ("Equal", Batch(times), Known(number)) | ("Equal", Known(number), Batch(times))
            if times > 0 && number <= 0 =>
        {
            flag(false)
        }
        ("Greater", Known(left), Known(right)) => flag(left > right),
        ("Less", Known(left), Known(right)) => flag(left < right),
        ("GreaterOrEqual", Known(left), Known(right)) => flag(left >= right),
        ("LessOrEqual", Known(left), Known(right)) => flag(left <= right),
        ("And", Known(left), Known(right)) => flag(left != 0 && right != 0),
        ("Or", Known(left), Known(right)) => flag(left != 0 || right != 0),
        _ => None,
    }
}

fn exact(left: i64, right: i64) -> Option<i64> {
    (left.checked_rem(right)? == 0).then(|| left.checked_div(right)).flatten()
}

/// The product of lengths as a number and a count of how often the number of pictures is a factor.
pub(super) fn product(dims: &[Dim]) -> Option<(i64, u32)> {
    dims.iter().try_fold((1_i64, 0), |(number, batches), dim| match dim {
        Known(side) => Some((number.checked_mul(*side)?, batches)),
        Batch(times) => Some((number.checked_mul(*times)?, batches + 1)),
        Open => None,
    })
}

/// The product as one length, if it is one.
pub(super) fn length(dims: &[Dim]) -> Option<Dim> {
    match product(dims) {
        Some((number, 0)) => Some(Known(number)),
        Some((number, 1)) => Some(Batch(number)),
        Some(_) => None,
        None => dims.iter().all(|dim| !matches!(dim, Batch(_))).then_some(Open),
    }
}

/// The lengths of a shape that is known.
pub(super) fn sides(dims: &[Dim]) -> Option<Vec<usize>> {
    let side = |dim: &Dim| if let Known(side) = dim { usize::try_from(*side).ok() } else { None };
    dims.iter().map(side).collect()
}

/// How far apart neighbours along each axis lie.
pub(super) fn strides(sides: &[usize]) -> Vec<usize> {
    let mut steps = vec![1_usize; sides.len()];
    for axis in (0..sides.len().saturating_sub(1)).rev() {
        steps[axis] = steps[axis + 1].saturating_mul(sides[axis + 1]);
    }
    steps
}

/// The numbers at chosen places along axes, given with how far apart neighbours lie, the last axis running fastest.
pub(super) fn picked(content: &[Dim], along: &[(usize, Vec<usize>)]) -> Option<Vec<Dim>> {
    let mut offsets = vec![0_usize];
    for (step, places) in along {
        if offsets.len().saturating_mul(places.len()) > content.len() {
            return None;
        }
        offsets = offsets
            .iter()
            .flat_map(|offset| {
                places.iter().map(move |place| offset.saturating_add(step.saturating_mul(*place)))
            })
            .collect();
    }
    offsets.into_iter().map(|offset| content.get(offset).copied()).collect()
}
