//! The one matrix product that search and certificates are built on.

use matrixmultiply::sgemm;

/// `out[i][j] = ⟨left_i, right_j⟩` for row-major `left`, `right` and `out`.
#[expect(unsafe_code, reason = "the matrix product takes raw pointers; the lengths are checked here")]
pub(crate) fn product(left: &[f32], right: &[f32], dimension: usize, out: &mut [f32]) {
    let (rows, columns) = (left.len() / dimension, right.len() / dimension);
    assert_eq!((left.len(), right.len()), (rows * dimension, columns * dimension), "rows must be whole");
    assert_eq!(out.len(), rows * columns, "the result has one entry per pair of rows");
    let stride = |length: usize| isize::try_from(length).expect("a slice is no longer than isize::MAX");
    // SAFETY: `left` holds rows × dimension values read with strides (dimension, 1), `right` holds
    // columns × dimension values read as its transpose with strides (1, dimension), and `out` holds
    // rows × columns values written with strides (columns, 1); the assertions above check each length,
    // and the borrow rules keep `out` apart from the inputs.
    unsafe {
        sgemm(
            rows,
            dimension,
            columns,
            1.0,
            left.as_ptr(),
            stride(dimension),
            1,
            right.as_ptr(),
            1,
            stride(dimension),
            0.0,
            out.as_mut_ptr(),
            stride(columns),
            1,
        );
    }
}
