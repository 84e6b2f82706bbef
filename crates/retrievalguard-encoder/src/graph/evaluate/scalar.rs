//! Numbers that graphs are evaluated in, and the matrix product of each.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// `f32`, as the engines compute, or `f64`, where rounding has to be bounded.
pub trait Scalar:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Sum
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + Neg<Output = Self>
    + 'static
{
    /// Nothing.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Less than every other number.
    const LOWEST: Self;

    /// The nearest of these numbers.
    fn of(value: f64) -> Self;
    /// The same number in double precision.
    fn wide(self) -> f64;
    /// `eˣ`.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + x)`.
    fn ln_1p(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Gauss's error function.
    fn erf(self) -> Self;
    /// Distance from zero.
    fn abs(self) -> Self;
    /// `selfᵉ`.
    fn powf(self, exponent: Self) -> Self;
    /// The nearest integer; halves go to the even one.
    fn round_even(self) -> Self;
    /// Whether it is a number at all, and not an infinite one.
    fn is_finite(self) -> bool;

    /// The greater of two; the first unless the second is greater.
    fn at_least(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    /// The lesser of two; the first unless the second is less.
    fn at_most(self, other: Self) -> Self {
        if other < self { other } else { self }
    }

    /// `out = left · right`, or `out += left · right`, for row-major `out`.
    fn product(left: Matrix<'_, Self>, right: Matrix<'_, Self>, target: Target, out: &mut [Self]);
}

/// Whether a product replaces what was there or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It replaces it.
    Fresh,
    /// It is added.
    Added,
}

/// A matrix in a slice: any distance between its rows and between its columns.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, S> {
    values: &'a [S],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, S> Matrix<'a, S> {
    /// A matrix that lies row after row.
    ///
    /// # Panics
    ///
    /// If the slice has another length.
    pub fn new(values: &'a [S], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} rows and {columns} columns");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The transpose of it.
    #[must_use]
    pub fn transposed(self) -> Self {
        let Self { values, rows, columns, row_stride, column_stride } = self;
        Self { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// So many of its rows.
    ///
    /// # Panics
    ///
    /// If it has not got them.
    #[must_use]
    pub fn rows(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.rows && count > 0, "rows {first} and {count} more of {}", self.rows);
        Self { values: &self.values[first * self.row_stride..], rows: count, ..self }
    }

    /// How many columns it has.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether every entry lies in the slice.
    fn is_inside(&self) -> bool {
        let last = (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride;
        last < self.values.len()
    }
}

macro_rules! scalar {
    ($number:ty, $gemm:path, $erf:path) => {
        impl Scalar for $number {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$number>::NEG_INFINITY;

            fn of(value: f64) -> Self {
                value as $number
            }

            fn wide(self) -> f64 {
                f64::from(self)
            }

            fn exp(self) -> Self {
                self.exp()
            }

            fn ln(self) -> Self {
                self.ln()
            }

            fn ln_1p(self) -> Self {
                self.ln_1p()
            }

            fn sqrt(self) -> Self {
                self.sqrt()
            }

            fn tanh(self) -> Self {
                self.tanh()
            }

            fn erf(self) -> Self {
                $erf(self)
            }

            fn abs(self) -> Self {
                self.abs()
            }

            fn powf(self, exponent: Self) -> Self {
                self.powf(exponent)
            }

            fn round_even(self) -> Self {
                self.round_ties_even()
            }

            fn is_finite(self) -> bool {
                self.is_finite()
            }

            #[expect(
                unsafe_code,
                reason = "the matrix product takes raw pointers; the lengths are checked here"
            )]
            fn product(left: Matrix<'_, Self>, right: Matrix<'_, Self>, target: Target, out: &mut [Self]) {
                let (rows, inner, columns) = (left.rows, left.columns, right.columns);
                assert_eq!(inner, right.rows, "the columns of the left matrix and the rows of the right one");
                assert_eq!(out.len(), rows * columns, "one entry per row and column");
                if rows == 0 || columns == 0 {
                    return;
                }
                if inner == 0 {
                    if target == Target::Fresh {
                        out.fill(0.0);
                    }
                    return;
                }
                assert!(left.is_inside() && right.is_inside(), "a matrix reaches beyond its slice");
                let stride = |length: usize| isize::try_from(length).expect("no longer than a slice");
                let keep = match target {
                    Target::Fresh => 0.0,
                    Target::Added => 1.0,
                };
                // SAFETY: the assertions above check that the largest index of each matrix lies in its slice, `out` is
                // written with strides (columns, 1), and the borrow rules keep it apart from what is read.
                unsafe {
                    $gemm(
                        rows,
                        inner,
                        columns,
                        1.0,
                        left.values.as_ptr(),
                        stride(left.row_stride),
                        stride(left.column_stride),
                        right.values.as_ptr(),
                        stride(right.row_stride),
                        stride(right.column_stride),
                        keep,
                        out.as_mut_ptr(),
                        stride(columns),
                        1,
                    );
                }
            }
        }
    };
}

scalar!(f32, matrixmultiply::sgemm, libm::erff);
scalar!(f64, matrixmultiply::dgemm, libm::erf);
