//! Decoding, resizing and cropping against Pillow, by the pictures that `reference/make_pictures.py` wrote.

use std::path::{Path, PathBuf};

use retrievalguard_encoder::picture::{PictureLimits, RgbPicture};
use retrievalguard_encoder::resize::{Interpolation, PassOrder, Preparation, Resampling, Resize, Size};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pictures")
}

fn rows() -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(folder().join("list.tsv")).expect("the list is there");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            line.split('\t')
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .try_into()
                .expect("rows have three fields")
        })
        .collect()
}

fn read(name: &str) -> RgbPicture {
    RgbPicture::from_path(&folder().join(name), &PictureLimits::default())
        .expect("reference pictures are sound")
}

fn number(text: &str) -> usize {
    text.parse().expect("the list holds whole numbers")
}

fn size(text: &str) -> Size {
    let (height, width) = text.split_once('x').expect("sizes are written as 32x30");
    Size { height: number(height), width: number(width) }
}

/// Reads e.g. `shorter 40, bilinear, 32x32`.
fn preparation(text: &str) -> Preparation {
    let words: Vec<&str> = text.split(", ").collect();
    let resize = match words[0].split_once(' ') {
        None => Resize::Keep,
        Some(("shorter", length)) => Resize::Shorter(number(length)),
        Some((_, text)) => Resize::Exact { height: size(text).height, width: size(text).width },
    };
    let interpolation = match words[1] {
        "nearest" => Interpolation::Nearest,
        "bilinear" => Interpolation::Bilinear,
        "bicubic" => Interpolation::Bicubic,
        _ => Interpolation::Lanczos,
    };
    let order = if words.len() > 3 { PassOrder::AcrossFirst } else { PassOrder::Cheaper };
    let crop = (words[2] != "none").then(|| size(words[2]));
    Preparation { resize, interpolation, crop, order, resampling: Resampling::EightBit }
}

/// Greatest difference in steps of 1/255.
fn difference(found: impl Iterator<Item = u8>, wanted: &[u8]) -> u8 {
    found.zip(wanted).map(|(found, &wanted)| found.abs_diff(wanted)).max().unwrap_or(u8::MAX)
}

#[test]
fn every_picture_decodes_to_the_bytes_of_pillow() {
    let mut compared = 0;
    for [name, _, reference] in rows().iter().filter(|[_, preparation, _]| preparation == "decoded") {
        let (found, wanted) = (read(name), read(reference));
        assert_eq!((found.width(), found.height()), (wanted.width(), wanted.height()), "{name}");
        let difference = difference(found.pixels().iter().copied(), wanted.pixels());
        assert_eq!(difference, 0, "{name} differs by {difference}/255");
        compared += 1;
    }
    assert!(compared >= 50, "{compared} pictures");
}

#[test]
fn every_preparation_gives_the_pixels_of_pillow_and_torchvision() {
    let mut jpegs = std::collections::BTreeSet::new();
    for [name, words, reference] in rows().iter().filter(|[_, preparation, _]| preparation != "decoded") {
        let wanted = read(reference);
        let found = preparation(words).apply(name, &read(name)).unwrap();
        assert_eq!(
            (found.size.width, found.size.height),
            (wanted.width(), wanted.height()),
            "{name}: {words}"
        );
        let plane = found.size.width * found.size.height;
        let interleaved =
            (0..plane).flat_map(|at| [0, 1, 2].map(|channel| found.values[channel * plane + at] * 255.0));
        let difference = difference(interleaved.map(|value| value.round() as u8), wanted.pixels());
        assert_eq!(difference, 0, "{name}: {words} differs by {difference}/255");
        assert!(found.values.iter().all(|value| (0.0..=1.0).contains(value)), "{name}: {words}");
        if name.ends_with(".jpg") {
            jpegs.insert(name.clone());
        }
    }
    assert!(jpegs.len() >= 30, "{} JPEGs", jpegs.len());
}
