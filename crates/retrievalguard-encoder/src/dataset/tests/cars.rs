//! CARS196, from MAT-files written here and by scipy.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::super::{Boxes, DatasetError, DatasetOptions, Format, NamedSplit, PictureSource, open};
use super::{folder, identities, labels, open_guessed};
use crate::picture::PixelBox;

/// Writes MAT-files in either byte order.
#[derive(Clone, Copy)]
struct Writer {
    big: bool,
    /// Whether contents of up to four bytes go into the tag.
    small: bool,
}

impl Writer {
    fn word(self, value: u32) -> [u8; 4] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn element(self, kind: u32, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let mut bytes;
        if self.small && (1..=4).contains(&length) && kind != 14 {
            bytes = self.word((length as u32) << 16 | kind).to_vec();
            bytes.extend_from_slice(content);
        } else {
            bytes = [self.word(kind), self.word(length as u32)].concat();
            bytes.extend_from_slice(content);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn array(self, class: u32, dimensions: [u32; 2], name: &str, rest: &[u8]) -> Vec<u8> {
        let flags = [self.word(class), self.word(0)].concat();
        let dimensions = dimensions.map(|length| self.word(length)).concat();
        let parts = [
            self.element(6, &flags),
            self.element(5, &dimensions),
            self.element(1, name.as_bytes()),
            rest.to_vec(),
        ];
        self.element(14, &parts.concat())
    }

    fn text(self, text: &str) -> Vec<u8> {
        let units: Vec<u8> = text
            .encode_utf16()
            .flat_map(|unit| if self.big { unit.to_be_bytes() } else { unit.to_le_bytes() })
            .collect();
        self.array(4, [1, text.len() as u32], "", &self.element(4, &units))
    }

    /// A number of class double, stored as a byte or in full, as MATLAB does.
    fn number(self, value: f64) -> Vec<u8> {
        let content = if value.fract() == 0.0 && (0.0..256.0).contains(&value) {
            self.element(2, &[value as u8])
        } else {
            self.element(9, &if self.big { value.to_be_bytes() } else { value.to_le_bytes() })
        };
        self.array(6, [1, 1], "", &content)
    }

    fn file(self, variables: &[Vec<u8>], compressed: bool) -> Vec<u8> {
        let mut bytes = b"MATLAB 5.0 MAT-file".to_vec();
        bytes.resize(124, b' ');
        bytes.extend_from_slice(if self.big { b"\x01\x00MI" } else { b"\x00\x01IM" });
        for variable in variables {
            if compressed {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(variable).unwrap();
                let content = encoder.finish().unwrap();
                bytes.extend_from_slice(&self.word(15));
                bytes.extend_from_slice(&self.word(content.len() as u32));
                bytes.extend_from_slice(&content);
            } else {
                bytes.extend_from_slice(variable);
            }
        }
        bytes
    }

    /// A struct array named `annotations`: its fields, then the values of each element in their order.
    fn annotations(self, names: &[&str], elements: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut fields = self.element(5, &self.word(32));
        let padded: Vec<u8> =
            names.iter().flat_map(|name| name.bytes().chain(std::iter::repeat(0)).take(32)).collect();
        fields.extend(self.element(1, &padded));
        fields.extend(elements.concat().concat());
        self.array(2, [1, elements.len() as u32], "annotations", &fields)
    }

    /// The metric-learning archive's variables, with one annotation for each class given.
    fn cars(self, classes: &[f64], compressed: bool) -> Vec<u8> {
        let names = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"];
        let element = |(number, &class): (usize, &f64)| {
            let path = self.text(&format!("car_ims/{:06}.jpg", number + 1));
            let numbers = [30.0, 52.0, 246.0, 1_147.0, class, 0.0].map(|value| self.number(value));
            [vec![path], numbers.to_vec()].concat()
        };
        let elements: Vec<_> = classes.iter().enumerate().map(element).collect();
        let class_names =
            self.array(1, [1, 2], "class_names", &[self.text("AM"), self.text("BMW X5")].concat());
        self.file(&[class_names, self.annotations(&names, &elements)], compressed)
    }

    /// A list of one half of the classification archive, with one annotation for each class given.
    fn half(self, classes: &[f64]) -> Vec<u8> {
        let names = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"];
        let element = |(number, &class): (usize, &f64)| {
            let mut values = [39.0, 116.0, 569.0, 375.0, class].map(|value| self.number(value)).to_vec();
            values.push(self.text(&format!("{:05}.jpg", number + 1)));
            values
        };
        let elements: Vec<_> = classes.iter().enumerate().map(element).collect();
        self.file(&[self.annotations(&names, &elements)], true)
    }
}

const LITTLE: Writer = Writer { big: false, small: true };

#[test]
fn cars_are_read_in_both_byte_orders_plain_and_compressed() {
    for big in [false, true] {
        for small in [false, true] {
            for compressed in [false, true] {
                let bytes = Writer { big, small }.cars(&[1.0, 98.0, 99.0, 196.0], compressed);
                let root = folder(&[("cars_annos.mat", &bytes)]);
                let dataset = open_guessed(root.path()).unwrap();
                assert_eq!(dataset.format, Format::Cars);
                assert_eq!(labels(&dataset.select(NamedSplit::CarsTrain).unwrap()), ["1", "98"]);
                let test = dataset.select(NamedSplit::CarsTest).unwrap();
                assert_eq!(identities(&test), ["car_ims/000003.jpg", "car_ims/000004.jpg"]);
                assert_eq!(
                    test.records[0].source,
                    PictureSource::File(root.path().join("car_ims/000003.jpg"))
                );
                assert_eq!(test.records[0].crop, None);
                let boxed = open(
                    &root.path().join("cars_annos.mat"),
                    Format::Auto,
                    DatasetOptions { boxes: Boxes::Crop },
                );
                let expected = PixelBox { left: 29, top: 51, right: 246, bottom: 1_147 };
                assert_eq!(boxed.unwrap().records[0].crop, Some(expected));
            }
        }
    }
}

#[test]
fn both_halves_of_stanford_cars_are_split_by_class() {
    let train = LITTLE.half(&[14.0, 98.0, 99.0]);
    let test = LITTLE.half(&[181.0, 1.0]);
    // The list of the test half with labels came later; some put it beside the others, torchvision at the root.
    for place in ["devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat"] {
        let root = folder(&[
            ("devkit/cars_train_annos.mat", &train),
            (place, &test),
            ("cars_train/00001.jpg", b""),
            ("cars_test/00001.jpg", b""),
        ]);
        let dataset = open_guessed(root.path()).unwrap();
        assert_eq!((dataset.format, dataset.notes.as_slice()), (Format::Cars, [].as_slice()), "{place}");
        let all = ["train/00001", "train/00002", "train/00003", "test/00001", "test/00002"];
        assert_eq!(identities(&dataset), all.map(|name| format!("cars_{name}.jpg")));
        assert_eq!(
            dataset.records[3].source,
            PictureSource::File(root.path().join("cars_test/00001.jpg")),
            "{place}"
        );
        assert_eq!(labels(&dataset.select(NamedSplit::CarsTrain).unwrap()), ["14", "98", "1"]);
        assert_eq!(labels(&dataset.select(NamedSplit::CarsTest).unwrap()), ["99", "181"]);
    }
}

#[test]
fn the_list_for_all_cars_counts_where_its_pictures_are() {
    let whole = LITTLE.cars(&[1.0], true);
    let half = LITTLE.half(&[14.0]);
    let root = folder(&[("cars_annos.mat", &whole), ("devkit/cars_train_annos.mat", &half)]);
    assert_eq!(identities(&open_guessed(root.path()).unwrap()), ["cars_train/00001.jpg"]);
    std::fs::create_dir(root.path().join("car_ims")).unwrap();
    assert_eq!(identities(&open_guessed(root.path()).unwrap()), ["car_ims/000001.jpg"]);
}

#[test]
fn one_half_of_stanford_cars_is_read_alone_and_pictures_without_labels_are_left_out_aloud() {
    let root = folder(&[
        ("devkit/cars_train_annos.mat", &LITTLE.half(&[14.0, 99.0])),
        ("devkit/cars_test_annos.mat", b"without labels"),
        ("cars_train/00001.jpg", b""),
    ]);
    let dataset = open_guessed(root.path()).unwrap();
    assert_eq!((labels(&dataset), dataset.notes.len()), (vec!["14", "99"], 0));
    let list = root.path().join("devkit/cars_train_annos.mat");
    let boxed = open(&list, Format::Auto, DatasetOptions { boxes: Boxes::Crop }).unwrap();
    assert_eq!(boxed.records[0].source, PictureSource::File(root.path().join("cars_train/00001.jpg")));
    assert_eq!(boxed.records[0].crop, Some(PixelBox { left: 38, top: 115, right: 569, bottom: 375 }));

    std::fs::create_dir(root.path().join("cars_test")).unwrap();
    let note = "the pictures in `cars_test` are left out, because no `cars_test_annos_withlabels.mat` says what they \
                show";
    assert_eq!(open_guessed(root.path()).unwrap().notes, [note]);

    let nothing = folder(&[("cars_train/00001.jpg", b"")]);
    let error = open(nothing.path(), Format::Cars, DatasetOptions::default()).unwrap_err();
    let wanted = "has no file `cars_annos.mat` or `devkit/cars_train_annos.mat`, which cars needs";
    assert!(error.to_string().ends_with(wanted), "{error}");
}

#[test]
fn cars_written_by_scipy_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/cars");
    let dataset = open(&root, Format::Cars, DatasetOptions { boxes: Boxes::Crop }).unwrap();
    assert_eq!(labels(&dataset), ["1", "98", "99", "196", "1", "99"]);
    assert_eq!(dataset.records[5].identity, "car_ims/000006.jpg");
    assert_eq!(dataset.records[5].crop, Some(PixelBox { left: 7, top: 4, right: 305, bottom: 200 }));
}

#[test]
fn a_cut_mat_file_is_an_error_at_every_length() {
    for compressed in [false, true] {
        let bytes = LITTLE.cars(&[1.0, 99.0], compressed);
        let root = folder(&[]);
        let file = root.path().join("cars_annos.mat");
        for length in 0..bytes.len() {
            std::fs::write(&file, &bytes[..length]).unwrap();
            let error = open_guessed(&file).map(|_| ()).expect_err(&format!("{length} bytes"));
            assert!(matches!(error, DatasetError::Mat { .. }), "{length}: {error:?}");
        }
    }
}

#[test]
fn a_damaged_mat_file_never_causes_a_panic() {
    for big in [false, true] {
        let bytes = Writer { big, small: true }.cars(&[1.0, 99.0], false);
        for at in 124..bytes.len() {
            for value in [0, 1, 14, 0x7F, 0x80, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = super::super::mat::variable(&damaged, "annotations");
            }
        }
    }
}

#[test]
fn a_mat_file_of_another_kind_says_what_is_wrong() {
    let mut newer = LITTLE.cars(&[1.0], false);
    newer[125] = 2;
    let mut unmarked = LITTLE.cars(&[1.0], false);
    unmarked[126] = b'X';
    // Sixteen million structs in a file of a few hundred bytes.
    let mut lying = LITTLE.cars(&[1.0], false);
    // Before the name's tag stand the two dimensions.
    let name = lying.windows(11).position(|bytes| bytes == b"annotations").unwrap();
    assert_eq!(lying[name - 16..name - 8], *b"\x01\0\0\0\x01\0\0\0");
    lying[name - 12..name - 9].fill(0xFF);
    let numbers = LITTLE.file(&[LITTLE.array(6, [1, 1], "annotations", &LITTLE.element(2, &[1]))], false);
    let cases = [
        (newer, "its version is 7.3 (HDF5), wanted level 5: save it with `-v7` or `-v6`"),
        (unmarked, "its header has no byte order mark, wanted a level 5 MAT-file"),
        (lying, "bytes are left"),
        (LITTLE.file(&[], false), "it has no variable `annotations`"),
        (numbers, "variable `annotations` is not a struct array"),
        (
            LITTLE.cars(&[1.0, 197.0], false),
            "annotation 2 has `class` 197, wanted a whole number from 1 to 196",
        ),
        (LITTLE.cars(&[1.5], false), "annotation 1 has `class` 1.5, wanted a whole number from 1 to 196"),
    ];
    for (bytes, words) in cases {
        let root = folder(&[("cars_annos.mat", &bytes)]);
        let error = open_guessed(root.path()).unwrap_err();
        assert!(error.to_string().ends_with(words), "{error}, wanted {words}");
    }
}

#[test]
fn a_compressed_bomb_is_refused_by_what_it_announces() {
    let file = |announced: u32, held: usize| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&[LITTLE.word(14), LITTLE.word(announced)].concat()).unwrap();
        encoder.write_all(&vec![0; held]).unwrap();
        let content = encoder.finish().unwrap();
        let mut bytes = LITTLE.file(&[], false);
        bytes.extend([LITTLE.word(15), LITTLE.word(content.len() as u32)].concat());
        bytes.extend(&content);
        (bytes, content.len())
    };
    let refused = |bytes: &[u8]| super::super::mat::variable(bytes, "annotations").unwrap_err();
    // Nothing of what is announced is there, so nothing could have been unfolded.
    let (bomb, stored) = file(257 << 20, 0);
    assert_eq!(
        refused(&bomb),
        format!("a compressed variable of {stored} bytes announces 269484032, at most 33554432 are read")
    );
    let (longer, _) = file(16, 1 << 20);
    assert_eq!(refused(&longer), "a compressed variable announces 16 bytes and holds more");
    let (shorter, _) = file(1 << 20, 16);
    assert_eq!(refused(&shorter), "an element announces 1048576 bytes, 16 are left");
}
