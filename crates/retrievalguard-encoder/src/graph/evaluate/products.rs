//! Matrix products, one or many, of constants and of values.

use super::scalar::{Matrix, Scalar, Target};
use super::workspace::{Workspace, product};

/// `left · right` for each pair of matrices.
#[derive(Clone, Debug)]
pub(super) struct Products {
    /// Rows of the left, columns of the left, columns of the right.
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) columns: usize,
    /// Where the two matrices of each product begin.
    pub(super) pairs: Vec<[usize; 2]>,
    /// Whether the right ones are stored transposed.
    pub(super) right_transposed: bool,
}

impl Products {
    fn left<'a, S>(&self, values: &'a [S], start: usize) -> Matrix<'a, S> {
        Matrix::new(&values[start..][..self.rows * self.inner], self.rows, self.inner)
    }

    fn right<'a, S>(&self, values: &'a [S], start: usize) -> Matrix<'a, S> {
        let values = &values[start..][..self.inner * self.columns];
        if self.right_transposed {
            Matrix::new(values, self.columns, self.inner).transposed()
        } else {
            Matrix::new(values, self.inner, self.columns)
        }
    }

    fn threads<S: Scalar>(&self, work: &Workspace<S>) -> usize {
        work.threads_for(self.rows * self.inner * self.columns)
    }

    pub(super) fn forward<S: Scalar>(&self, left: &[S], right: &[S], out: &mut [S], work: &Workspace<S>) {
        let threads = self.threads(work);
        for (&[from_left, from_right], out) in
            self.pairs.iter().zip(out.chunks_exact_mut(self.rows * self.columns))
        {
            let (left, right) = (self.left(left, from_left), self.right(right, from_right));
            product(threads, left, right, Target::Fresh, out);
        }
    }

    /// Adds the gradient with respect to the left matrices, given the right ones.
    pub(super) fn backward_left<S: Scalar>(
        &self,
        right: &[S],
        gradient: &[S],
        into: &mut [S],
        work: &Workspace<S>,
    ) {
        let threads = self.threads(work);
        for (&[from_left, from_right], gradient) in
            self.pairs.iter().zip(gradient.chunks_exact(self.rows * self.columns))
        {
            let gradient = Matrix::new(gradient, self.rows, self.columns);
            let into = &mut into[from_left..][..self.rows * self.inner];
            product(threads, gradient, self.right(right, from_right).transposed(), Target::Added, into);
        }
    }

    /// Adds the gradient with respect to the right matrices, given the left ones.
    pub(super) fn backward_right<S: Scalar>(
        &self,
        left: &[S],
        gradient: &[S],
        into: &mut [S],
        work: &Workspace<S>,
    ) {
        let threads = self.threads(work);
        for (&[from_left, from_right], gradient) in
            self.pairs.iter().zip(gradient.chunks_exact(self.rows * self.columns))
        {
            let gradient = Matrix::new(gradient, self.rows, self.columns);
            let left = self.left(left, from_left);
            let into = &mut into[from_right..][..self.inner * self.columns];
            if self.right_transposed {
                product(threads, gradient.transposed(), left, Target::Added, into);
            } else {
                product(threads, left.transposed(), gradient, Target::Added, into);
            }
        }
    }
}
