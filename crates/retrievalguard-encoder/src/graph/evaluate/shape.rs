//! Shapes: strides, broadcasting and tables of where each number comes from.

/// Most numbers that a value of a graph may have; no network for pictures comes near it.
pub(super) const MOST_NUMBERS: usize = 1 << 28;

/// Number of elements, if there are not too many of them.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    let count = shape.iter().try_fold(1_usize, |count, &side| count.checked_mul(side))?;
    (count <= MOST_NUMBERS).then_some(count)
}

/// Distance in memory from one member of each axis to the next.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

/// The shape that both can be stretched to.
pub(super) fn broadcast(left: &[usize], right: &[usize]) -> Option<Vec<usize>> {
    let rank = left.len().max(right.len());
    let side =
        |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |place| shape[place]);
    (0..rank)
        .map(|axis| match (side(left, axis), side(right, axis)) {
            (left, right) if left == right => Some(left),
            (1, side) | (side, 1) => Some(side),
            _ => None,
        })
        .collect()
}

/// Strides of a value that is stretched to `wanted`: zero along axes on which it has one member.
pub(super) fn stretched(shape: &[usize], wanted: &[usize]) -> Vec<usize> {
    let own = strides(shape);
    let missing = wanted.len() - shape.len();
    (0..wanted.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(place) if shape[place] != 1 => own[place],
            _ => 0,
        })
        .collect()
}

/// For every element of `shape`, in order, its place under other strides.
pub(super) fn places(shape: &[usize], strides: &[usize], offset: usize) -> Vec<usize> {
    let mut places = vec![offset];
    // The last axis runs fastest, so axes are added from the front.
    for (&side, &stride) in shape.iter().zip(strides) {
        places = places.iter().flat_map(|&place| (0..side).map(move |step| place + step * stride)).collect();
    }
    places
}

/// Two values stretched to one shape, with neighbouring axes merged where both allow it.
#[derive(Clone, Debug)]
pub(super) struct Broadcast {
    /// Places of the runs in the left and in the right value; runs follow each other in the output.
    starts: Vec<[usize; 2]>,
    /// Length of a run.
    pub(super) run: usize,
    /// Whether the numbers of each side change along a run.
    pub(super) moves: [bool; 2],
}

impl Broadcast {
    /// Both shapes stretched to `shape`.
    pub(super) fn new(left: &[usize], right: &[usize], shape: &[usize]) -> Self {
        let (left, right) = (stretched(left, shape), stretched(right, shape));
        let (mut run, mut axes) = (1, shape.len());
        let mut moves = [false; 2];
        while let Some(axis) = axes.checked_sub(1) {
            if shape[axis] != 1 {
                let found = [left[axis] != 0, right[axis] != 0];
                let continues = [left[axis], right[axis]]
                    .iter()
                    .zip(found)
                    .all(|(&stride, moves)| !moves || stride == run);
                if run > 1 && (found != moves || !continues) || run == 1 && !continues {
                    break;
                }
                moves = found;
                run *= shape[axis];
            }
            axes = axis;
        }
        let left = places(&shape[..axes], &left[..axes], 0);
        let right = places(&shape[..axes], &right[..axes], 0);
        let starts = left.into_iter().zip(right).map(|(left, right)| [left, right]).collect();
        Self { starts, run, moves }
    }

    /// Calls `visit` with where each run begins: in the output, on the left and on the right.
    pub(super) fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for (place, &[left, right]) in self.starts.iter().enumerate() {
            visit(place * self.run, left, right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_stretched_as_numpy_stretches_them() {
        assert_eq!(broadcast(&[2, 1, 3], &[4, 1]), Some(vec![2, 4, 3]));
        assert_eq!(broadcast(&[2, 3], &[4]), None);
        assert_eq!(broadcast(&[], &[4]), Some(vec![4]));
        assert_eq!(stretched(&[3, 1], &[2, 3, 5]), [0, 1, 0]);
        assert_eq!(places(&[2, 3], &[1, 2], 10), [10, 12, 14, 11, 13, 15]);
    }

    #[test]
    fn runs_of_two_values_visit_the_elements_that_a_plain_loop_visits() {
        let cases: [(&[usize], &[usize]); 7] = [
            (&[2, 3, 4], &[2, 3, 4]),
            (&[2, 3, 4], &[]),
            (&[2, 3, 4], &[3, 1]),
            (&[2, 1, 4], &[1, 3, 1]),
            (&[4], &[2, 3, 4]),
            (&[1, 3, 1, 1], &[2, 3, 2, 2]),
            (&[2, 1, 2], &[2, 2, 1]),
        ];
        for (left, right) in cases {
            let shape = broadcast(left, right).unwrap();
            let wanted: Vec<[usize; 2]> = places(&shape, &stretched(left, &shape), 0)
                .into_iter()
                .zip(places(&shape, &stretched(right, &shape), 0))
                .map(|(left, right)| [left, right])
                .collect();
            let plan = Broadcast::new(left, right, &shape);
            let mut found = vec![[usize::MAX; 2]; wanted.len()];
            plan.each(|out, left, right| {
                for step in 0..plan.run {
                    let moved = |start, moves| start + if moves { step } else { 0 };
                    found[out + step] = [moved(left, plan.moves[0]), moved(right, plan.moves[1])];
                }
            });
            assert_eq!(found, wanted, "{left:?} and {right:?}");
        }
    }
}
