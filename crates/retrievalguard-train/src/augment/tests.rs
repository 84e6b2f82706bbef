use retrievalguard::Seed;

use super::*;
use crate::random::{Purpose, RandomCounter};

fn source(slot: u64) -> RandomSource {
    RandomSource::new(Seed::new(9), Purpose::View, RandomCounter { epoch: 0, step: 0, slot })
}

fn model_config(channels: usize, height: usize, width: usize) -> ModelConfig {
    let numbers = |number: &str| vec![number; channels].join(", ");
    ModelConfig::from_toml(&format!(
        r#"
        [input]
        channels = {channels}
        height = {height}
        width = {width}
        mean = [{}]
        std = [{}]
        [resize]
        rule = "exact"
        height = {height}
        width = {width}
        interpolation = "bilinear"
        [crop]
        rule = "none"
        [output]
        normalise = true
        "#,
        numbers("0.0"),
        numbers("1.0"),
    ))
    .unwrap()
}

/// A picture whose pixels are all different.
fn picture(width: usize, height: usize) -> RgbPicture {
    let pixels = (0..width * height).flat_map(|at| [at as u8, (at * 7) as u8, (at * 31) as u8]).collect();
    RgbPicture::new("picture", width, height, pixels).unwrap()
}

fn choose(augmentation: Augmentation, width: usize, height: usize, slot: u64) -> View {
    let side = |length| NonZeroUsize::new(length).unwrap();
    augmentation.choose(side(width), side(height), &mut source(slot))
}

/// The whole picture, mirrored or not.
fn whole(flip: f64) -> Augmentation {
    Augmentation { area: (1.0, 1.0), aspect: (1.0, 1.0), flip }
}

#[test]
fn parts_lie_inside_and_their_areas_and_aspects_fill_the_ranges() {
    let augmentation = Augmentation { area: (0.2, 0.8), ..Augmentation::default() };
    let (width, height) = (400, 300);
    let mut ranges = [(f64::INFINITY, 0.0_f64); 2];
    let mut mirrored = 0;
    let mut mean_area = 0.0;
    for slot in 0..4_000 {
        let View { part, mirrored: flip } = choose(augmentation, width, height, slot);
        assert!(part.left < part.right && part.right <= width, "{part:?}");
        assert!(part.top < part.bottom && part.bottom <= height, "{part:?}");
        let (wide, high) = ((part.right - part.left) as f64, (part.bottom - part.top) as f64);
        let share = wide * high / (width * height) as f64;
        mean_area += share / 4_000.0;
        for (range, value) in ranges.iter_mut().zip([share, wide / high]) {
            *range = (range.0.min(value), range.1.max(value));
        }
        mirrored += u32::from(flip);
    }
    let [areas, aspects] = ranges;
    assert!((0.195..0.21).contains(&areas.0) && (0.78..0.81).contains(&areas.1), "{areas:?}");
    assert!((0.74..0.77).contains(&aspects.0) && (1.31..1.35).contains(&aspects.1), "{aspects:?}");
    // Parts that are wide or high and large are drawn again, so the mean lies a little below 0.5.
    assert!((0.46..0.51).contains(&mean_area), "{mean_area}");
    // Four standard deviations around 2000.
    assert!((1874..2127).contains(&mirrored), "{mirrored}");
}

#[test]
fn pictures_that_no_part_fits_into_give_their_centre() {
    let augmentation = Augmentation { area: (0.9, 1.0), flip: 0.0, ..Augmentation::default() };
    let cases = [
        // (width, height) and (left, top, right, bottom), as torchvision's fallback computes it.
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
        ((1, 90), (0, 44, 1, 45)),
    ];
    for ((width, height), (left, top, right, bottom)) in cases {
        let View { part, mirrored } = choose(augmentation, width, height, 0);
        assert_eq!(part, PixelBox { left, top, right, bottom }, "{width} × {height}");
        assert!(!mirrored);
    }
}

#[test]
fn the_whole_picture_at_its_size_is_the_picture_and_its_mirror_image_reverses_rows() {
    let (width, height) = (6, 6);
    let picture = picture(width, height);
    let training = |flip| {
        let augmenter = Augmenter::new(model_config(3, height, width), whole(flip)).unwrap();
        augmenter.training("picture", &picture, &mut source(0)).unwrap()
    };
    let upright = training(0.0);
    for (at, pixel) in picture.pixels().as_chunks::<3>().0.iter().enumerate() {
        for channel in 0..3 {
            assert_eq!(upright[channel * 36 + at], f32::from(pixel[channel]) / 255.0, "{at}");
        }
    }
    let mirrored = training(1.0);
    for (row, line) in upright.chunks(width).enumerate() {
        let reversed: Vec<f32> = line.iter().rev().copied().collect();
        assert_eq!(mirrored[row * width..][..width], reversed, "row {row}");
    }
}

/// What the exported encoder sees of a picture.
fn evaluation(augmenter: &Augmenter, picture: &RgbPicture) -> Vec<f32> {
    let config = augmenter.model_config();
    input_values(config, "picture", config.preparation().apply("picture", picture).unwrap()).unwrap()
}

#[test]
fn a_part_is_resized_as_evaluation_resizes_a_picture() {
    let picture = picture(40, 30);
    let augmenter = Augmenter::new(model_config(3, 12, 16), Augmentation::default()).unwrap();
    for slot in 0..20 {
        let view = choose(Augmentation::default(), 40, 30, slot);
        let part = picture.cropped("part", view.part).unwrap();
        let mut wanted = evaluation(&augmenter, &part);
        if view.mirrored {
            wanted.chunks_exact_mut(16).for_each(<[f32]>::reverse);
        }
        let found = augmenter.training("picture", &picture, &mut source(slot)).unwrap();
        assert_eq!(found, wanted, "slot {slot}");
        assert!(found.iter().all(|value| (0.0..=1.0).contains(value)));
    }
}

#[test]
fn an_encoder_of_one_channel_sees_luminance_in_training_and_evaluation() {
    let picture = picture(6, 6);
    let augmenter = Augmenter::new(model_config(1, 6, 6), whole(0.0)).unwrap();
    let training = augmenter.training("picture", &picture, &mut source(0)).unwrap();
    assert_eq!(training.len(), 36);
    assert_eq!(training, evaluation(&augmenter, &picture));
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let good = Augmentation::default();
    let cases = [
        (Augmentation { area: (0.0, 1.0), ..good }, "the area of a view"),
        (Augmentation { area: (0.5, 1.1), ..good }, "the area of a view"),
        (Augmentation { area: (0.9, 0.8), ..good }, "the area of a view"),
        (Augmentation { area: (f64::NAN, 0.8), ..good }, "the area of a view"),
        (Augmentation { aspect: (0.0, 1.0), ..good }, "the aspect of a view"),
        (Augmentation { aspect: (1.0, f64::INFINITY), ..good }, "the aspect of a view"),
        (Augmentation { flip: 1.5, ..good }, "the probability of a flip"),
    ];
    for (augmentation, wanted) in cases {
        let error = augmentation.check().unwrap_err();
        assert!(
            matches!(error, ViewError::Range { parameter, .. } if parameter == wanted),
            "{augmentation:?}: {error:?}"
        );
    }
}
