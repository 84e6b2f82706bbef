//! The MNIST family, from files written here.

use super::super::{DatasetError, DatasetOptions, Format, NamedSplit, PictureSource, open};
use super::idx_files::{array, zipped};
use super::{folder, identities, labels, open_guessed};

#[test]
fn both_parts_are_read_plain_or_zipped() {
    let root = folder(&[
        ("train-images-idx3-ubyte", &array(&[2, 2, 3], &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15])),
        ("train-labels-idx1-ubyte", &array(&[2], &[9, 0])),
        ("t10k-images-idx3-ubyte.gz", &zipped(&array(&[1, 1, 1], &[200]))),
        ("t10k-labels-idx1-ubyte.gz", &zipped(&array(&[1], &[3]))),
    ]);
    let dataset = open_guessed(root.path()).unwrap();
    assert_eq!(dataset.format, Format::Idx);
    assert_eq!(identities(&dataset), ["train/00000", "train/00001", "t10k/00000"]);
    assert_eq!(labels(&dataset), ["9", "0", "3"]);
    let second = PictureSource::Grey { width: 3, height: 2, pixels: vec![10, 11, 12, 13, 14, 15] };
    assert_eq!(dataset.records[1].source, second);
    assert_eq!(identities(&dataset.select(NamedSplit::Test).unwrap()), ["t10k/00000"]);
}

#[test]
fn a_lying_or_cut_file_is_refused_with_what_was_wanted() {
    let good = array(&[2, 2, 2], &[0; 8]);
    let cases: [(Vec<u8>, &str); 9] = [
        (array(&[u32::MAX, u32::MAX, u32::MAX], &[0; 8]), "wanted between 1 and 4294967296 values"),
        (
            array(&[60_000, 28, 28], &[0; 8]),
            "8 bytes after its header, wanted 47040000 for dimensions [60000, 28, 28]",
        ),
        (array(&[0, 28, 28], &[]), "dimensions [0, 28, 28], wanted between 1 and 4294967296 values"),
        (array(&[2, 2, 2], &[0; 9]), "9 bytes after its header, wanted 8 for dimensions [2, 2, 2]"),
        (array(&[2, 2, 2], &[0; 7]), "7 bytes after its header, wanted 8 for dimensions [2, 2, 2]"),
        (good[..15].to_vec(), "15 bytes, wanted a header of 16 bytes"),
        (Vec::new(), "0 bytes, wanted a header of 16 bytes"),
        (array(&[2, 4], &[0; 8]), "magic number [00, 00, 08, 02], wanted [00, 00, 08, 03]"),
        (array(&[1, 2, 2], &[0; 4]), "2 labels, wanted 1, one for each picture"),
    ];
    for (bytes, words) in cases {
        let root = folder(&[
            ("train-images-idx3-ubyte", &bytes),
            ("train-labels-idx1-ubyte", &array(&[2], &[1, 2])),
        ]);
        let error = open_guessed(root.path()).unwrap_err();
        assert!(matches!(error, DatasetError::Idx { .. }), "{error:?}");
        assert!(error.to_string().ends_with(words), "{error}, wanted {words}");
    }
}

#[test]
fn a_zipped_file_unfolds_to_what_its_header_announces_and_no_further() {
    let labels = zipped(&array(&[2], &[1, 2]));
    for (content, words) in [
        (array(&[2, 2, 2], &[0; 9]), "more bytes after its header, wanted 8 for dimensions [2, 2, 2]"),
        (array(&[2, 2, 2], &[0; 7]), "fewer bytes after its header, wanted 8 for dimensions [2, 2, 2]"),
    ] {
        let root = folder(&[
            ("t10k-images-idx3-ubyte.gz", &zipped(&content)),
            ("t10k-labels-idx1-ubyte.gz", &labels),
        ]);
        let error = open_guessed(root.path()).unwrap_err();
        assert!(error.to_string().ends_with(words), "{error}, wanted {words}");
    }
}

#[test]
fn a_bomb_is_refused_by_its_header_before_it_unfolds() {
    // The content is not there: whoever tried to unfold it would say that it is cut.
    for (lengths, memory) in [([60_000, 256, 256], 3_962_880_000_u64), ([2_000_000, 1, 1], 1_026_000_000)] {
        let bomb = zipped(&array(&lengths, &[0; 100_000]));
        let root = folder(&[
            ("t10k-images-idx3-ubyte.gz", &bomb),
            ("t10k-labels-idx1-ubyte", &array(&[2], &[1, 2])),
        ]);
        let error = open_guessed(root.path()).unwrap_err().to_string();
        let wanted = format!(
            "dimensions {lengths:?}, which take {memory} bytes of memory, wanted at most 33554432 from a file of {} bytes",
            bomb.len()
        );
        assert!(error.contains(&wanted) && error.contains("gunzip"), "{error}");
    }
}

#[test]
fn a_cut_zip_and_a_missing_file_are_named() {
    let whole = zipped(&array(&[1, 28, 28], &(0..784).map(|value| (value * 7) as u8).collect::<Vec<_>>()));
    let root = folder(&[
        ("train-images-idx3-ubyte.gz", &whole[..whole.len() / 2]),
        ("train-labels-idx1-ubyte", &array(&[1], &[1])),
    ]);
    assert!(matches!(open_guessed(root.path()), Err(DatasetError::Read { .. })));
    let root = folder(&[("t10k-images-idx3-ubyte.gz", &whole)]);
    let error = open_guessed(root.path()).unwrap_err();
    assert!(
        matches!(&error, DatasetError::MissingFile { file, .. } if file == "t10k-labels-idx1-ubyte"),
        "{error:?}"
    );
    let empty = folder(&[]);
    let error = open(empty.path(), Format::Idx, DatasetOptions::default()).unwrap_err();
    assert!(matches!(error, DatasetError::MissingFile { .. }), "{error:?}");
}
