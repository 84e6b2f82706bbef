//! `.npy` files as NumPy writes them, and as it never would.

/// An array of `f32` in version 1 and C order.
pub(crate) fn npy(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let content: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    with_header("<f4", false, shape, &content)
}

/// An array of `f64` in Fortran order: first axis fastest.
pub(crate) fn npy_f64_fortran(rows: usize, columns: usize, values: &[f32]) -> Vec<u8> {
    let content: Vec<u8> = (0..columns)
        .flat_map(|column| (0..rows).map(move |row| row * columns + column))
        .flat_map(|place| f64::from(values[place]).to_le_bytes())
        .collect();
    with_header("<f8", true, &[rows, columns], &content)
}

/// Any header before any content.
pub(crate) fn with_header(element: &str, fortran: bool, shape: &[usize], content: &[u8]) -> Vec<u8> {
    let axes: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let order = if fortran { "True" } else { "False" };
    let mut header = format!("{{'descr': '{element}', 'fortran_order': {order}, 'shape': ({axes}), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(content);
    bytes
}

/// Rows of `dimension` numbers around the unit vector of `axis`, all of norm 0.99.
pub(crate) fn cloud(rows: usize, dimension: usize, axis: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut values = Vec::with_capacity(rows * dimension);
    for _ in 0..rows {
        let mut row: Vec<f32> = (0..dimension)
            .map(|component| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let jitter = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
                if component == axis { 1.0 + 0.2 * jitter } else { 0.2 * jitter }
            })
            .collect();
        let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        row.iter_mut().for_each(|value| *value *= 0.99 / norm);
        values.extend(row);
    }
    values
}
