//! How far the encoder's input moves when pixels of the file change: against Pillow, against numpy, and by trying.

use std::path::{Path, PathBuf};

use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::picture::{PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::input_values;
use retrievalguard_encoder::resize::{Interpolation, PassOrder, Preparation, Resampling, Resize, Size};

const FILTERS: [Interpolation; 4] =
    [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Lanczos];

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference")
}

fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(reference().join(name)).expect("the table is there");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("the tables hold numbers")
}

fn size(text: &str) -> Size {
    let (height, width) = text.split_once('x').expect("sizes are written as 32x30");
    Size { height: number(height), width: number(width) }
}

fn filter(name: &str) -> Interpolation {
    FILTERS.into_iter().find(|filter| format!("{filter:?}").to_lowercase() == name).expect("a known filter")
}

fn preparation(resize: Resize, interpolation: Interpolation, resampling: Resampling) -> Preparation {
    Preparation { resize, interpolation, crop: None, order: PassOrder::default(), resampling }
}

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn picture(&mut self, width: usize, height: usize) -> RgbPicture {
        let pixels = (0..width * height * 3).map(|_| self.below(256) as u8).collect();
        RgbPicture::new("noise", width, height, pixels).expect("as many pixels as the picture has")
    }
}

fn distance(left: &[f32], right: &[f32]) -> f64 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}

/// Distance of decoded pixels in `[0, 1]`.
fn moved(left: &[u8], right: &[u8]) -> f64 {
    left.iter().zip(right).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt() / 255.0
}

#[test]
fn floating_point_gives_the_values_of_pillow() {
    let mut compared = 0;
    for row in table("resampling-float.tsv") {
        let [name, words, values] = &row[..] else { panic!("{row:?}") };
        let parts: Vec<&str> = words.split(", ").collect();
        let resize = match parts[0].split_once(' ') {
            None => Resize::Keep,
            Some(("shorter", length)) => Resize::Shorter(number(length)),
            Some((_, text)) => Resize::Exact { height: size(text).height, width: size(text).width },
        };
        let crop = (parts[2] != "none").then(|| size(parts[2]));
        let preparation = Preparation { crop, ..preparation(resize, filter(parts[1]), Resampling::Float) };
        let path = reference().join("pictures").join(name);
        let picture = RgbPicture::from_path(&path, &PictureLimits::default()).unwrap();
        let found = preparation.apply(name, &picture).unwrap().values;
        let wanted: Vec<f64> = values.split(' ').map(number).collect();
        assert_eq!(found.len(), wanted.len(), "{name}: {words}");
        for (found, wanted) in found.iter().zip(wanted) {
            // Pillow rounds to `f32` between the passes.
            assert!((f64::from(*found) - wanted).abs() < 4e-7, "{name}, {words}: {found} for {wanted}");
            compared += 1;
        }
    }
    assert!(compared > 2_000, "{compared} values");
}

#[test]
fn a_scale_is_the_singular_value_of_numpy_and_not_below_it() {
    for row in table("resampling-norms.tsv") {
        let [name, before, after, _, kept, wanted] = &row[..] else { panic!("{row:?}") };
        let (before, after, kept): (usize, usize, usize) = (number(before), number(after), number(kept));
        let wanted: f64 = number(wanted);
        for resampling in [Resampling::Float, Resampling::EightBit] {
            let across = Preparation {
                crop: Some(Size { height: 1, width: kept }),
                ..preparation(Resize::Exact { height: 1, width: after }, filter(name), resampling)
            };
            let down = Preparation {
                crop: Some(Size { height: kept, width: 1 }),
                ..preparation(Resize::Exact { height: after, width: 1 }, filter(name), resampling)
            };
            for (preparation, width, height) in [(across, before, 1), (down, 1, before)] {
                let picture = RgbPicture::new("black", width, height, vec![0; width * height * 3]).unwrap();
                let found = preparation.file_pixels(&picture, 3).unwrap().scale;
                // Pillow's weights are read off in `f32`; fixed point has 22 bits.
                let close =
                    (found / wanted - 1.0).abs() < if resampling == Resampling::Float { 3e-7 } else { 3e-6 };
                assert!(close, "{row:?}, {resampling:?}: {found}");
            }
        }
    }
}

#[test]
fn a_picture_that_keeps_its_size_has_the_scale_one_and_enlarged_pixels_count_as_often_as_they_are_repeated() {
    let picture = Numbers(1).picture(12, 9);
    let grey = RgbPicture::from_grey("grey", 12, 9, &[7; 108]).unwrap();
    for resampling in [Resampling::Float, Resampling::EightBit] {
        let kept = Preparation {
            crop: Some(Size { height: 20, width: 5 }),
            ..preparation(Resize::Keep, Interpolation::Bilinear, resampling)
        };
        let found = kept.file_pixels(&picture, 3).unwrap();
        assert!((1.0..1.0 + 1e-14).contains(&found.scale), "{found:?}");
        // 9 rows and 5 columns of three colours, rounded to f32 twice.
        let rounding = 135.0_f64.sqrt() * f64::from(f32::EPSILON) / 2.0;
        assert!((rounding..rounding * 1.00001).contains(&found.rounding), "{found:?}");
        let threefold =
            preparation(Resize::Exact { height: 27, width: 24 }, Interpolation::Nearest, resampling);
        for (picture, channels, wanted) in
            [(&picture, 3, 1.0), (&grey, 3, 3.0), (&grey, 1, 1.0), (&picture, 1, 0.446_966)]
        {
            let found = threefold.file_pixels(picture, channels).unwrap().scale;
            let wanted = (6.0_f64 * wanted).sqrt();
            assert!((1.0..1.0 + 1e-14).contains(&(found / wanted)), "{channels}: {found} for {wanted}");
        }
    }
}

/// The direction in which a line of pixels moves the result most, from what the preparation makes of single pixels.
fn worst_line(preparation: &Preparation, length: usize, down: bool) -> Vec<f64> {
    let prepared = |levels: &[u8]| {
        let (width, height) = if down { (1, length) } else { (length, 1) };
        let line = RgbPicture::from_grey("line", width, height, levels).expect("as many levels as pixels");
        preparation.apply("line", &line).expect("a small size").values
    };
    let middle = prepared(&vec![128; length]);
    let columns: Vec<Vec<f64>> = (0..length)
        .map(|pixel| {
            let mut levels = vec![128; length];
            levels[pixel] = 218;
            prepared(&levels).iter().zip(&middle).map(|(a, b)| f64::from(a - b)).collect()
        })
        .collect();
    let mut vector: Vec<f64> = (0..length).map(|place| 1.0 + 0.3 * (place as f64).sin()).collect();
    for _ in 0..3_000 {
        let mut image = vec![0.0; middle.len()];
        for (column, value) in columns.iter().zip(&vector) {
            column.iter().zip(&mut image).for_each(|(weight, sum)| *sum += weight * value);
        }
        vector = columns.iter().map(|column| column.iter().zip(&image).map(|(a, b)| a * b).sum()).collect();
        let largest = vector.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        vector.iter_mut().for_each(|value| *value /= largest);
    }
    vector
}

/// Width and height before, height and width after, and what is kept.
const CASES: [(usize, usize, usize, usize, Option<Size>); 6] = [
    (60, 45, 16, 20, None),
    (33, 80, 24, 24, Some(Size { height: 17, width: 20 })),
    (90, 10, 30, 30, None),
    (13, 11, 40, 37, None),
    (13, 11, 40, 37, Some(Size { height: 21, width: 50 })),
    (41, 40, 40, 40, None),
];

#[test]
fn no_change_of_pixels_moves_the_input_farther_than_promised_and_the_worst_comes_within_a_hundredth() {
    let mut numbers = Numbers(7);
    for interpolation in FILTERS {
        for resampling in [Resampling::Float, Resampling::EightBit] {
            for (width, height, rows, columns, crop) in CASES {
                let resize = Resize::Exact { height: rows, width: columns };
                let preparation = Preparation { crop, ..preparation(resize, interpolation, resampling) };
                let case =
                    format!("{interpolation:?} {resampling:?} {width}x{height} {rows}x{columns} {crop:?}");
                let apply = |pixels: &[u8]| {
                    let picture = RgbPicture::new("picture", width, height, pixels.to_vec()).unwrap();
                    preparation.apply("picture", &picture).unwrap().values
                };
                let picture = numbers.picture(width, height);
                let bound = preparation.file_pixels(&picture, 3).unwrap();
                let check = |left: &[u8], right: &[u8]| {
                    let (tensor, file) = (distance(&apply(left), &apply(right)), moved(left, right));
                    assert!(
                        tensor <= bound.scale * file + bound.rounding,
                        "{case}: {tensor} for {file}, {bound:?}"
                    );
                    tensor / file
                };
                // Another picture, single pixels, the last bit of all, a few of them.
                check(picture.pixels(), numbers.picture(width, height).pixels());
                for chance in [1, 7, 200] {
                    let mut changed = picture.pixels().to_vec();
                    for level in &mut changed {
                        if numbers.below(chance) == 0 {
                            *level = level.saturating_add_signed(numbers.below(3) as i8 - 1);
                        }
                    }
                    check(picture.pixels(), &changed);
                }
                // The worst direction, in all colours and in one, at several sizes.
                let line = |height, width, crop: Option<Size>| Preparation {
                    resize: Resize::Exact { height, width },
                    crop: crop
                        .map(|size| Size { height: size.height.min(height), width: size.width.min(width) }),
                    resampling: Resampling::Float,
                    ..preparation
                };
                let across = worst_line(&line(1, columns, crop), width, false);
                let down = worst_line(&line(rows, 1, crop), height, true);
                let grey = vec![128_u8; width * height * 3];
                for (amplitude, colours) in [(70.0, 3), (70.0, 1), (20.0, 3), (3.0, 3), (1.0, 2)] {
                    let mut changed = grey.clone();
                    for (place, level) in changed.iter_mut().enumerate() {
                        let (row, column, colour) = (place / 3 / width, place / 3 % width, place % 3);
                        if colour < colours {
                            *level = (128.0 + amplitude * down[row] * across[column]).round() as u8;
                        }
                    }
                    let reached = check(&grey, &changed);
                    if amplitude == 70.0 && resampling == Resampling::Float {
                        assert!(reached >= 0.99 * bound.scale, "{case}: {reached} of {bound:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn grey_files_and_grey_encoders_keep_the_promise() {
    let config = |channels: usize, resampling: &str| {
        let (mean, std) = (vec![0.5; channels], vec![0.25; channels]);
        ModelConfig::from_toml(&format!(
            "[input]\nchannels = {channels}\nheight = 9\nwidth = 14\nmean = {mean:?}\nstd = {std:?}\n\
             [resize]\nrule = \"exact\"\nheight = 9\nwidth = 14\ninterpolation = \"bicubic\"\nresampling = \"{resampling}\"\n\
             [crop]\nrule = \"none\"\n[output]\nnormalise = true\n"
        ))
        .unwrap()
    };
    let (width, height) = (31, 23);
    let mut numbers = Numbers(11);
    for resampling in ["float", "8-bit"] {
        for channels in [1, 3] {
            let config = config(channels, resampling);
            let line = |height, width| Preparation {
                resize: Resize::Exact { height, width },
                ..preparation(Resize::Keep, Interpolation::Bicubic, Resampling::Float)
            };
            let (across, down) =
                (worst_line(&line(1, 14), width, false), worst_line(&line(9, 1), height, true));
            let apply = |picture: &RgbPicture| {
                let prepared = config.preparation().apply("picture", picture).unwrap();
                input_values(&config, "picture", prepared).unwrap()
            };
            for grey in [true, false] {
                let picture = |levels: &[u8]| {
                    if grey {
                        RgbPicture::from_grey("grey", width, height, levels).unwrap()
                    } else {
                        RgbPicture::new("colour", width, height, levels.to_vec()).unwrap()
                    }
                };
                let per_pixel = if grey { 1 } else { 3 };
                let values = width * height * per_pixel;
                let bound = config.file_pixels(&picture(&vec![0; values])).unwrap();
                let check = |left: &[u8], right: &[u8]| {
                    let tensor = distance(&apply(&picture(left)), &apply(&picture(right)));
                    let file = moved(left, right);
                    assert!(tensor <= bound.scale * file + bound.rounding, "{tensor} for {file}, {bound:?}");
                    tensor / file
                };
                for _ in 0..20 {
                    let left: Vec<u8> = (0..values).map(|_| numbers.below(256) as u8).collect();
                    let right: Vec<u8> =
                        left.iter().map(|level| level.saturating_add(numbers.below(4) as u8)).collect();
                    check(&left, &right);
                }
                // Equal changes of all colours, or changes by what a grey encoder weighs them with.
                let weights =
                    if channels == 1 { [0.299, 0.587, 0.114].map(|weight| weight / 0.587) } else { [1.0; 3] };
                let middle = vec![128; values];
                let changed: Vec<u8> = (0..values)
                    .map(|place| {
                        let (pixel, colour) = (place / per_pixel, place % per_pixel);
                        let weight = if grey { 1.0 } else { weights[colour] };
                        (128.0 + 90.0 * weight * down[pixel / width] * across[pixel % width]).round() as u8
                    })
                    .collect();
                let reached = check(&middle, &changed);
                if resampling == "float" {
                    assert!(reached >= 0.99 * bound.scale, "{channels}, grey {grey}: {reached} of {bound:?}");
                }
            }
        }
    }
}

#[test]
fn files_know_whether_their_pixels_are_grey() {
    use retrievalguard_encoder::picture::Colours;
    for (name, wanted) in [
        ("grey-57x41.jpg", Colours::Grey),
        ("edges-97x61-420.jpg", Colours::Rgb),
        ("cmyk-45x31.jpg", Colours::Rgb),
        ("png-grey.png", Colours::Grey),
        ("png-grey-alpha.png", Colours::Grey),
        ("png-grey-16.png", Colours::Grey),
        ("png-bilevel.png", Colours::Grey),
        ("png-palette.png", Colours::Rgb),
        ("png-colour-alpha.png", Colours::Rgb),
        ("webp-lossless.webp", Colours::Rgb),
    ] {
        let path = reference().join("pictures").join(name);
        let picture = RgbPicture::from_path(&path, &PictureLimits::default()).unwrap();
        assert_eq!(picture.colours(), wanted, "{name}");
    }
}
