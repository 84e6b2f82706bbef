//! Means and maxima over windows of two axes.

use super::pointwise::Needs;
use super::scalar::Scalar;

/// What is made of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    Greatest,
    /// The mean over what lies inside the picture.
    Mean,
    /// The mean with the zeros of the padding.
    PaddedMean,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) pooling: Pooling,
    pub(super) taken: [usize; 2],
    pub(super) given: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) strides: [usize; 2],
    pub(super) dilations: [usize; 2],
    pub(super) pads: [usize; 2],
    /// Zeros after the last row and column.
    pub(super) pads_after: [usize; 2],
}

impl Pool {
    pub(super) fn needs(&self) -> Needs {
        match self.pooling {
            Pooling::Greatest => Needs::Inputs,
            Pooling::Mean | Pooling::PaddedMean => Needs::Nothing,
        }
    }

    /// Where a window meets one axis: its first place, how many of its members are inside, and how many count.
    fn span(&self, axis: usize, place: usize) -> (usize, usize, usize) {
        let (start, pad, step) = (place * self.strides[axis], self.pads[axis], self.dilations[axis]);
        let before = pad.saturating_sub(start).div_ceil(step).min(self.kernel[axis]);
        let end = self.taken[axis] + pad;
        let members = end.saturating_sub(start).div_ceil(step).min(self.kernel[axis]);
        // With a rounded-up output the last window may reach beyond the padding; that part never counts.
        let padded =
            (end + self.pads_after[axis]).saturating_sub(start).div_ceil(step).min(self.kernel[axis]);
        ((start + before * step).saturating_sub(pad), members.saturating_sub(before), padded)
    }

    /// Calls `visit` for every window of a channel: its number, its two spans and what divides its mean.
    fn each(&self, mut visit: impl FnMut(usize, [(usize, usize); 2], usize)) {
        for down in 0..self.given[0] {
            let (top, rows, all_rows) = self.span(0, down);
            for along in 0..self.given[1] {
                let (left, columns, all_columns) = self.span(1, along);
                let counted = match self.pooling {
                    Pooling::PaddedMean => all_rows * all_columns,
                    Pooling::Greatest | Pooling::Mean => rows * columns,
                };
                visit(down * self.given[1] + along, [(top, rows), (left, columns)], counted.max(1));
            }
        }
    }

    /// Places of a window in its channel, row by row.
    fn places(&self, [(top, rows), (left, columns)]: [(usize, usize); 2]) -> impl Iterator<Item = usize> {
        let ([down, along], width) = (self.dilations, self.taken[1]);
        (0..rows).flat_map(move |row| {
            let line = (top + row * down) * width + left;
            (0..columns).map(move |column| line + column * along)
        })
    }

    pub(super) fn forward<S: Scalar>(&self, input: &[S], out: &mut [S]) {
        let (plane, area) = (self.taken[0] * self.taken[1], self.given[0] * self.given[1]);
        for (input, out) in input.chunks_exact(plane).zip(out.chunks_exact_mut(area)) {
            self.each(|number, spans, counted| {
                let values = self.places(spans).map(|place| input[place]);
                out[number] = match self.pooling {
                    Pooling::Greatest => values.fold(S::LOWEST, S::at_least),
                    Pooling::Mean | Pooling::PaddedMean => values.sum::<S>() / S::of(counted as f64),
                };
            });
        }
    }

    pub(super) fn backward<S: Scalar>(&self, input: &[S], gradient: &[S], into: &mut [S]) {
        let (plane, area) = (self.taken[0] * self.taken[1], self.given[0] * self.given[1]);
        for (channel, (gradient, into)) in
            gradient.chunks_exact(area).zip(into.chunks_exact_mut(plane)).enumerate()
        {
            self.each(|number, spans, counted| {
                let gradient = gradient[number];
                match self.pooling {
                    Pooling::Greatest => {
                        let input = &input[channel * plane..][..plane];
                        let mut best: Option<(usize, S)> = None;
                        for place in self.places(spans) {
                            if best.is_none_or(|(_, found)| input[place] > found) {
                                best = Some((place, input[place]));
                            }
                        }
                        if let Some((place, _)) = best {
                            into[place] += gradient;
                        }
                    }
                    Pooling::Mean | Pooling::PaddedMean => {
                        let share = gradient / S::of(counted as f64);
                        self.places(spans).for_each(|place| into[place] += share);
                    }
                }
            });
        }
    }
}
