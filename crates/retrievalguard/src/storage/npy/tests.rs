//! Arrays against files written by NumPy (`tests/reference/make_npy.py`), and against files that lie.

use std::fs;

use super::*;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/npy").join(name).with_extension("npy")
}

/// What every reference file holds: 0, 1, 2, … in row-major order, minus a half.
fn counted(elements: usize) -> Vec<f64> {
    (0..elements).map(|element| element as f64 - 0.5).collect()
}

fn array_of(bytes: &[u8]) -> Result<Array, NpyError> {
    read_from(&mut &*bytes, bytes.len() as u64, Path::new("array.npy"))
}

fn file(version: u8, header: &str, numbers: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend_from_slice(&[version, 0]);
    match version {
        1 => bytes.extend_from_slice(&(header.len() as u16).to_le_bytes()),
        _ => bytes.extend_from_slice(&(header.len() as u32).to_le_bytes()),
    }
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + numbers, 0);
    bytes
}

fn with_shape(shape: &str, numbers: usize) -> Vec<u8> {
    file(1, &format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"), numbers)
}

#[test]
fn every_form_that_numpy_writes_is_read_as_the_same_numbers() {
    let table: [(&str, &[usize]); 13] = [
        ("f2-2x3-v1", &[2, 3]),
        ("f4-2x3-v1", &[2, 3]),
        ("f8-2x3-v1", &[2, 3]),
        ("f4-5-v1", &[5]),
        ("f4-scalar-v1", &[]),
        ("f4-0x3-v1", &[0, 3]),
        ("f4-2x3-v2", &[2, 3]),
        ("f8-2x3-v3", &[2, 3]),
        ("f4-2x3-big", &[2, 3]),
        ("f8-2x3-big", &[2, 3]),
        ("f4-2x3-fortran", &[2, 3]),
        ("f8-2x3x4-fortran", &[2, 3, 4]),
        ("f4-2x3x4-fortran-big", &[2, 3, 4]),
    ];
    for (name, shape) in table {
        let array = read(&reference(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(array.shape(), shape, "{name}");
        let wanted = counted(shape.iter().product());
        match array.values() {
            Values::F64(values) => assert_eq!(*values, wanted, "{name}"),
            Values::F32(values) => {
                assert_eq!(
                    values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>(),
                    wanted,
                    "{name}"
                );
            }
        }
        assert_eq!(matches!(array.values(), Values::F64(_)), name.starts_with("f8"), "{name}");
        let rounded: Vec<f32> = wanted.iter().map(|&value| value as f32).collect();
        assert_eq!(array.into_f32(), rounded, "{name}");
    }
}

#[test]
fn numbers_of_other_kinds_are_refused_by_name() {
    for (name, found) in [("i8-2x3-v1", "'<i8'"), ("c8-2-v1", "'<c8'"), ("record-2-v1", "[('é', '<f4')]")] {
        match read(&reference(name)).unwrap_err() {
            NpyError::Header { path, field: "descr", found: stands, .. } => {
                assert_eq!((path, stands.as_str()), (reference(name), found));
            }
            error => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn half_precision_is_widened_exactly() {
    for (bits, value) in [
        (0x0000, 0.0),
        (0x8000, -0.0),
        (0x0001, 2.0_f32.powi(-24)),
        (0x83ff, -1023.0 * 2.0_f32.powi(-24)),
        (0x0400, 2.0_f32.powi(-14)),
        (0x3555, 0.333_251_95),
        (0x3c00, 1.0),
        (0xc000, -2.0),
        (0x7bff, 65504.0),
        (0x7c00, f32::INFINITY),
        (0xfc00, f32::NEG_INFINITY),
    ] {
        assert_eq!(half_to_single(bits).to_bits(), f32::to_bits(value), "{bits:04x}");
    }
    assert!(half_to_single(0x7e00).is_nan());
}

#[test]
fn written_files_are_the_bytes_that_numpy_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.npy");
    for (name, shape) in
        [("f4-2x3-v1", vec![2, 3]), ("f4-5-v1", vec![5]), ("f4-scalar-v1", vec![]), ("f4-0x3-v1", vec![0, 3])]
    {
        let values: Vec<f32> = counted(shape.iter().product()).iter().map(|&value| value as f32).collect();
        write_f32(&path, &shape, &values).unwrap();
        assert_eq!(fs::read(&path).unwrap(), fs::read(reference(name)).unwrap(), "{name}");
    }
}

#[test]
fn every_bit_pattern_comes_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.npy");
    let values: Vec<f32> =
        (0..100_003_u32).map(|number| f32::from_bits(number.wrapping_mul(2_654_435_761))).collect();
    assert!(values.iter().any(|value| value.is_nan()));
    write_f32(&path, &[values.len()], &values).unwrap();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&read(&path).unwrap().into_f32()), bits(&values));
}

#[test]
fn a_file_cut_at_any_byte_is_an_error() {
    for name in ["f4-2x3-v1", "f8-2x3-v3", "f4-2x3x4-fortran-big"] {
        let whole = fs::read(reference(name)).unwrap();
        for length in 0..whole.len() {
            assert!(array_of(&whole[..length]).is_err(), "{name} cut to {length} bytes");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(matches!(array_of(&longer), Err(NpyError::Size { .. })), "{name} with a byte more");
    }
}

#[test]
fn a_header_with_any_bit_flipped_never_panics() {
    let whole = fs::read(reference("f4-2x3-v1")).unwrap();
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let _ = array_of(&bytes);
    }
}

#[test]
fn lying_headers_are_refused_before_anything_is_allocated() {
    let size = |error: NpyError| match error {
        NpyError::Size { found, wanted, .. } => (found, wanted),
        error => panic!("{error}"),
    };
    assert_eq!(size(array_of(&with_shape("(1000000000000, 4)", 16)).unwrap_err()), (16, 16_000_000_000_000));
    assert_eq!(size(array_of(&with_shape("(2, 2)", 12)).unwrap_err()), (12, 16));
    assert_eq!(size(array_of(&with_shape("(2, 2)", 20)).unwrap_err()), (20, 16));
    for shape in ["(4294967296, 4294967296)", "(18446744073709551615,)", "(3, 6148914691236517205, 2)"] {
        let error = array_of(&with_shape(shape, 16)).unwrap_err();
        assert!(matches!(&error, NpyError::ShapeOverflow { .. }), "{shape}: {error}");
    }
    let empty = array_of(&with_shape("(18446744073709551615, 0, 18446744073709551615)", 0)).unwrap();
    assert!(matches!(empty.clone().into_matrices(Path::new("array.npy")), Err(NpyError::Rank { .. })));
    assert!(empty.into_f32().is_empty());
    let huge =
        "{'descr': '<f8', 'fortran_order': True, 'shape': (18446744073709551615, 0, 18446744073709551615)}";
    assert!(array_of(&file(2, huge, 0)).unwrap().into_f32().is_empty());
    for shape in ["(-2, 2)", "(2.0, 2)", "(two, 2)", "(99999999999999999999, 1)"] {
        let error = array_of(&with_shape(shape, 16)).unwrap_err();
        assert!(matches!(&error, NpyError::Header { field: "shape", .. }), "{shape}: {error}");
    }
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(array_of(&long), Err(NpyError::HeaderTooLong { found: u32::MAX, .. })));
    assert!(matches!(array_of(&file(4, "{}", 0)), Err(NpyError::Version { major: 4, minor: 0, .. })));
    assert!(matches!(array_of(b"PK\x03\x04 an archive"), Err(NpyError::Magic { .. })));
}

#[test]
fn messages_name_the_file_what_was_found_and_what_was_wanted() {
    for (error, message) in [
        (
            array_of(&with_shape("(2, 2)", 12)),
            "array `array.npy` has 12 bytes of numbers, wanted 16 for its shape [2, 2]",
        ),
        (
            array_of(&with_shape("(-2, 2)", 12)),
            "header of array `array.npy`: shape is `(-2, 2)`, wanted a tuple of whole numbers that are not negative",
        ),
        (
            array_of(b"\x89PNG\r\n"),
            "`array.npy` is not a .npy file: it begins with [89, 50, 4e, 47, 0d, 0a], wanted 93 followed by `NUMPY`",
        ),
    ] {
        assert_eq!(error.unwrap_err().to_string(), message);
    }
    let missing = read(Path::new("/nowhere/array.npy")).unwrap_err();
    assert_eq!(missing.to_string(), "array `/nowhere/array.npy` cannot be read");
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(read(folder.path()), Err(NpyError::NotAFile { .. })));
}

#[test]
fn matrices_need_two_axes_and_stacks_of_them_three() {
    let path = Path::new("array.npy");
    let array = read(&reference("f8-2x3x4-fortran")).unwrap();
    assert!(matches!(array.clone().into_matrix(path), Err(NpyError::Rank { .. })));
    let layers = array.into_matrices(path).unwrap();
    assert_eq!(layers.len(), 2);
    assert_eq!((layers[1].rows, layers[1].columns, layers[1].values[0]), (3, 4, 11.5));
    let one = read(&reference("f4-2x3-fortran")).unwrap();
    assert_eq!(one.clone().into_matrices(path).unwrap(), [one.into_matrix(path).unwrap()]);
    for name in ["f4-5-v1", "f4-0x3-v1"] {
        let array = read(&reference(name)).unwrap();
        assert!(matches!(array.into_matrices(path), Err(NpyError::Rank { .. })), "{name}");
    }
}
