//! The layers on the CPU: loops over plain slices, free of any tensor type.
//!
//! Every sum is cut by the shapes alone and added up in a fixed order, so no result depends on the number of threads.

pub(super) mod dense;
pub(super) mod depthwise;
pub(super) mod pointwise;
pub(super) mod pooling;
mod product;
mod vector;

/// What a convolution joins: `[pictures, inputs, …]` with `[outputs, …, kernel]` to `[pictures, outputs, …]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) pictures: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) input: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) output: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) padding: [(usize, usize); 2],
}

impl Sizes {
    /// Values of one kernel.
    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Positions of one plane of the output.
    fn positions(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// For positions of the input with this remainder by the stride: `(shift, tap)` for every tap that meets them, the
    /// output being `position / stride + shift`.
    fn shifts(&self, axis: usize, phase: usize) -> Vec<(isize, usize)> {
        let stride = self.stride[axis].cast_signed();
        let origin = (phase + self.padding[axis].0).cast_signed();
        (0..self.kernel[axis])
            .map(|tap| (origin - tap.cast_signed(), tap))
            .filter(|(distance, _)| distance % stride == 0)
            .map(|(distance, tap)| (distance / stride, tap))
            .collect()
    }
}

/// Planes with zeros around them.
#[derive(Clone, Copy, Debug)]
struct Frame {
    inner: [usize; 2],
    /// Zeros above and to the left.
    before: [usize; 2],
    padded: [usize; 2],
}

impl Frame {
    /// Values that may be read past the last plane.
    const ROOM: usize = 16;

    fn around_input(sizes: &Sizes) -> Self {
        let padded = [0, 1].map(|axis| {
            let (before, after) = sizes.padding[axis];
            before + sizes.input[axis] + after
        });
        Self { inner: sizes.input, before: sizes.padding.map(|(before, _)| before), padded }
    }

    /// Room for every shift of the gradient, and the first of them that has room.
    fn around_gradient(sizes: &Sizes) -> (Self, [isize; 2]) {
        let shifts = [0, 1].map(|axis| {
            let all = || {
                (0..sizes.stride[axis]).flat_map(|phase| sizes.shifts(axis, phase)).map(|(shift, _)| shift)
            };
            (all().fold(0, isize::min), all().fold(0, isize::max))
        });
        let first = shifts.map(|(first, _)| first);
        let before = first.map(isize::unsigned_abs);
        let padded = [0, 1].map(|axis| {
            let reach = sizes.input[axis].div_ceil(sizes.stride[axis]) + shifts[axis].1.unsigned_abs();
            before[axis] + reach.max(sizes.output[axis])
        });
        (Self { inner: sizes.output, before, padded }, first)
    }

    /// Values of a plane with its zeros.
    fn plane(&self) -> usize {
        self.padded[0] * self.padded[1]
    }

    /// Values of a plane without its zeros.
    fn inner_plane(&self) -> usize {
        self.inner[0] * self.inner[1]
    }

    /// The planes with their zeros: as they are if there are none, else copied.
    fn place<'a>(&self, planes: &'a [f32], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        if self.padded == self.inner { planes } else { self.place_all(std::iter::once(planes), scratch) }
    }

    /// Several runs of planes, one after another, with their zeros and room at the end.
    fn place_all<'a, 'b>(
        &self,
        runs: impl ExactSizeIterator<Item = &'b [f32]>,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let (mut end, pitch) = (0, self.padded[1]);
        for run in runs {
            let planes = run.len() / self.inner_plane();
            let needed = end + planes * self.plane() + Self::ROOM;
            if scratch.len() < needed {
                scratch.resize(needed, 0.0);
            }
            for (plane, target) in
                run.chunks_exact(self.inner_plane()).zip(scratch[end..].chunks_exact_mut(self.plane()))
            {
                target[..self.before[0] * pitch].fill(0.0);
                target[(self.before[0] + self.inner[0]) * pitch..].fill(0.0);
                let rows = target[self.before[0] * pitch..].chunks_exact_mut(pitch);
                for (row, target) in plane.chunks_exact(self.inner[1]).zip(rows) {
                    target[..self.before[1]].fill(0.0);
                    target[self.before[1]..self.before[1] + row.len()].copy_from_slice(row);
                    target[self.before[1] + row.len()..].fill(0.0);
                }
            }
            end += planes * self.plane();
        }
        scratch[end..end + Self::ROOM].fill(0.0);
        &scratch[..end + Self::ROOM]
    }
}
