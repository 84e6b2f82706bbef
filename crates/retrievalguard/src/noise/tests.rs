//! What can be said of the noise without looking inside: same bits everywhere, and Gaussian in every direction.

use statrs::distribution::{Binomial, DiscreteCDF};

use super::chunk::EXTENSION;
use super::{ImageIdentity, InstructionSet, NoiseStream, PIXELS_PER_SAMPLE, Stage, gaussian, philox};
use crate::parameters::{Seed, Sigma};

fn stream(seed: u64, name: &str, stage: Stage) -> NoiseStream {
    NoiseStream::new(Seed::new(seed), &ImageIdentity::new(name), stage)
}

fn normals(stream: NoiseStream, sample: u32, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    stream.fill(sample, 0, &mut values);
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One pixel by the counter table of the module's documentation.
fn single(stream: NoiseStream, sample: u32, pixel: u64) -> f32 {
    let block = (16 * (pixel / 64) + pixel % 16) as u32;
    let place = [block, sample, stream.place[0], stream.place[1]];
    let words = philox::block(place, stream.key);
    let quarter = (pixel % 64 / 16) as usize;
    let first = quarter / 2 * 2;
    let pair = if words[first] < gaussian::TAIL {
        let place = [block, sample, stream.place[0] | EXTENSION, stream.place[1]];
        let extension = philox::block(place, stream.key)[first];
        gaussian::extended_pair(words[first], extension, words[first + 1])
    } else {
        gaussian::pair(words[first], words[first + 1])
    };
    if quarter == first { pair.0 } else { pair.1 }
}

/// `P(Z > t)` for standard normal `Z`.
fn upper_tail(t: f64) -> f64 {
    0.5 * libm::erfc(t / std::f64::consts::SQRT_2)
}

/// Kolmogorov–Smirnov: `√n sup |F̂ − F|` for values that should be uniform in `[0, 1]`.
///
/// Above 1.95 with probability 1e-3 (`2 exp(−2t²)`).
fn kolmogorov_smirnov(mut uniforms: Vec<f64>) -> f64 {
    uniforms.sort_unstable_by(f64::total_cmp);
    let count = uniforms.len() as f64;
    let distance = uniforms.iter().enumerate().fold(0.0, |distance: f64, (index, value)| {
        distance.max(value - index as f64 / count).max((index + 1) as f64 / count - value)
    });
    distance * count.sqrt()
}

#[test]
fn every_instruction_set_gives_the_portable_bits() {
    let stream = stream(1, "paths", Stage::Certify);
    // A million pixels hold some 250 pairs in the tail.
    let long = 1 << 20;
    let last = PIXELS_PER_SAMPLE as usize;
    let mut ranges =
        vec![(0, long), (5, long + 3), (last - 1000, 1000), (last - 64, 64), (last - 1, 1), (last, 0)];
    for length in [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 784, 1000] {
        for start in [0, 1, 15, 16, 63, 64, 65, 100] {
            ranges.push((start, length));
        }
    }
    for (start, length) in ranges {
        let mut expected = vec![0.0; length];
        stream.fill_with(InstructionSet::PORTABLE, 3, start, &mut expected);
        for instructions in InstructionSet::available() {
            let mut values = vec![f32::NAN; length];
            stream.fill_with(instructions, 3, start, &mut values);
            let same = bits(&values) == bits(&expected);
            assert!(same, "{} differs for {length} values from {start} on", instructions.name());
        }
    }
}

#[test]
fn every_value_is_the_one_its_counter_says() {
    let stream = stream(2, "reference", Stage::Gallery);
    let values = normals(stream, 77, 300_000);
    for (pixel, value) in values.iter().enumerate() {
        let expected = single(stream, 77, pixel as u64);
        assert_eq!(value.to_bits(), expected.to_bits(), "pixel {pixel}");
    }
    let mut last = [0.0];
    stream.fill(u32::MAX, PIXELS_PER_SAMPLE as usize - 1, &mut last);
    assert_eq!(last[0], single(stream, u32::MAX, PIXELS_PER_SAMPLE - 1));
}

#[test]
fn filling_in_pieces_equals_filling_at_once() {
    let stream = stream(3, "pieces", Stage::Pilot);
    let whole = normals(stream, 9, 10_000);
    for piece in [1, 7, 64, 100, 1000, 4097] {
        let mut values = vec![0.0; whole.len()];
        for (index, out) in values.chunks_mut(piece).enumerate() {
            stream.fill(9, index * piece, out);
        }
        assert_eq!(bits(&values), bits(&whole), "pieces of {piece}");
    }
}

#[test]
fn adding_is_one_product_and_one_sum_per_pixel() {
    let stream = stream(4, "add", Stage::Attack);
    for length in [0, 1, 784, 2047, 2048, 2049, 10_000] {
        let image: Vec<f32> = (0..length).map(|pixel| (pixel % 256) as f32 / 255.0).collect();
        let expected: Vec<f32> = normals(stream, 5, length)
            .iter()
            .zip(&image)
            .map(|(value, pixel)| pixel + 0.3_f32 * value)
            .collect();
        let mut out = vec![0.0; length];
        stream.add(5, Sigma::new(0.3).unwrap(), &image, &mut out);
        assert_eq!(bits(&out), bits(&expected), "{length} pixels");
    }
}

#[test]
fn the_noise_of_this_version_is_the_noise_of_every_version() {
    assert_eq!(ImageIdentity::new("").get(), 0xe91f_ecb7_0389_75d6_ad72_e258_62a3_d3f1);
    let identity = ImageIdentity::new("birds/albatross-7.jpg");
    assert_eq!(identity.get(), 0xaed5_3556_a219_5529_3bd8_eec2_f320_add0);
    let stream = NoiseStream::new(Seed::from_bytes([7; 16]), &ImageIdentity::new("golden"), Stage::Certify);
    let values = normals(stream, 1, 1 << 16);
    assert_eq!(bits(&values[..4]), [0xbf09_398c, 0x3eda_3def, 0xbe4f_2725, 0xbf20_62de]);
    // All of them, by way of the hash of their bytes.
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(ImageIdentity::new(bytes).get(), 0x544a_251a_4fde_689d_0bd2_a303_d1c5_f521);
}

#[test]
#[should_panic(expected = "wanted an end of at most 17179869184")]
fn a_pixel_beyond_the_counter_is_refused() {
    stream(1, "long", Stage::Pilot).fill(0, PIXELS_PER_SAMPLE as usize - 1, &mut [0.0; 2]);
}

#[test]
#[should_panic(expected = "wanted an end of at most 17179869184")]
fn a_range_that_overflows_is_refused() {
    stream(1, "long", Stage::Pilot).fill(0, usize::MAX, &mut [0.0; 2]);
}

#[test]
#[should_panic(expected = "different lengths")]
fn an_image_of_another_length_is_refused() {
    stream(1, "length", Stage::Pilot).add(0, Sigma::new(1.0).unwrap(), &[0.0; 3], &mut [0.0; 4]);
}

#[test]
fn names_with_the_same_padding_have_different_identities() {
    let names: [&[u8]; 8] =
        [b"", b"\0", b"\0\0", b"\0\0\0\0\0\0\0\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0"];
    for (index, first) in names.iter().enumerate() {
        for second in &names[..index] {
            assert_ne!(ImageIdentity::new(first), ImageIdentity::new(second), "{first:?} {second:?}");
        }
    }
}

#[test]
fn half_an_identity_still_separates_a_quarter_of_a_million_names() {
    // Two of 2¹⁸ random 64-bit numbers are equal with probability 2⁻²⁹.
    for shift in [0, 64] {
        let mut halves: Vec<u64> = (0..1 << 18)
            .map(|index| (ImageIdentity::new(format!("images/{index:07}.png")).get() >> shift) as u64)
            .collect();
        halves.sort_unstable();
        halves.dedup();
        assert_eq!(halves.len(), 1 << 18, "shift {shift}");
    }
}

#[test]
fn one_bit_of_the_name_flips_half_of_the_identity() {
    let name = *b"images/0001.png, then some";
    let identity = ImageIdentity::new(name).get();
    let mut flipped = 0;
    for bit in 0..8 * name.len() {
        let mut other = name;
        other[bit / 8] ^= 1 << (bit % 8);
        flipped += (identity ^ ImageIdentity::new(other).get()).count_ones();
    }
    // Binomial(128 · 208, 1/2): standard deviation 81.6.
    let expected = 64.0 * 8.0 * name.len() as f64;
    assert!((f64::from(flipped) - expected).abs() < 4.0 * 81.6, "{flipped} of {expected}");
}

#[test]
fn seeds_and_identities_enter_the_stream_with_all_their_bits() {
    let identity = ImageIdentity::new("bits");
    let base = NoiseStream::new(Seed::new(0), &identity, Stage::Pilot);
    for bit in 0..128 {
        let seed = Seed::from_bytes((1_u128 << bit).to_le_bytes());
        let other = NoiseStream::new(seed, &identity, Stage::Pilot);
        assert!(other.key != base.key && other.place != base.place, "seed bit {bit}");
        let flipped = ImageIdentity(identity.get() ^ (1 << bit));
        let other = NoiseStream::new(Seed::new(0), &flipped, Stage::Pilot);
        assert!(other.key != base.key && other.place != base.place, "identity bit {bit}");
    }
}

#[test]
fn stages_differ_in_their_own_counter_bits_only() {
    let [first, others @ ..] = Stage::ALL.map(|stage| stream(8, "stages", stage));
    for (other, stage) in others.iter().zip(&Stage::ALL[1..]) {
        assert_eq!(other.key, first.key);
        assert_eq!(other.place[1], first.place[1]);
        assert_eq!(other.place[0] ^ first.place[0], *stage as u32 ^ Stage::Pilot as u32);
    }
}

#[test]
fn no_stage_has_changed_its_number_or_shares_it() {
    let numbers: Vec<(&str, u8)> = Stage::ALL.iter().map(|&stage| (stage.as_str(), stage as u8)).collect();
    let wanted = [
        ("pilot", 1),
        ("certify", 2),
        ("gallery", 3),
        ("attack", 4),
        ("train", 5),
        ("judge", 6),
        ("measure", 7),
        ("choose", 8),
        ("trial", 9),
    ];
    assert_eq!(numbers, wanted);
}

#[test]
fn a_stream_does_not_print_its_key() {
    assert_eq!(format!("{:?}", stream(1, "secret", Stage::Certify)), "NoiseStream(..)");
}

#[test]
fn moments_up_to_the_eighth_are_gaussian() {
    // E zᵏ and E z²ᵏ − (E zᵏ)² for k = 1 … 8.
    const MEANS: [f64; 8] = [0.0, 1.0, 0.0, 3.0, 0.0, 15.0, 0.0, 105.0];
    const VARIANCES: [f64; 8] = [1.0, 2.0, 15.0, 96.0, 945.0, 10_170.0, 135_135.0, 2_016_000.0];
    let (samples, pixels) = (32, 1 << 18);
    let stream = stream(5, "moments", Stage::Certify);
    let mut sums = [0.0; 8];
    for sample in 0..samples {
        for value in normals(stream, sample, pixels) {
            let mut power = 1.0;
            for sum in &mut sums {
                power *= f64::from(value);
                *sum += power;
            }
        }
    }
    let count = f64::from(samples) * pixels as f64;
    for order in 0..8 {
        let deviations = (sums[order] / count - MEANS[order]) / (VARIANCES[order] / count).sqrt();
        println!("moment {}: {deviations:.2} standard deviations", order + 1);
        assert!(deviations.abs() < 4.0, "moment {} is off by {deviations} standard deviations", order + 1);
    }
}

#[test]
fn tails_have_the_gaussian_probabilities() {
    let (samples, pixels) = (128, 1 << 18);
    let stream = stream(6, "tails", Stage::Certify);
    let mut counts = [[0_u64; 2]; 4];
    for sample in 0..samples {
        for value in normals(stream, sample, pixels) {
            for (count, threshold) in counts.iter_mut().zip([2.0, 3.0, 4.0, 5.0]) {
                count[0] += u64::from(value > threshold);
                count[1] += u64::from(value < -threshold);
            }
        }
    }
    let total = u64::from(samples) * pixels as u64;
    for (count, threshold) in counts.iter().zip([2.0, 3.0, 4.0, 5.0]) {
        let binomial = Binomial::new(upper_tail(threshold), total).unwrap();
        for (&count, side) in count.iter().zip(["above", "below minus"]) {
            let lower = binomial.cdf(count);
            let upper = binomial.sf(count.saturating_sub(1));
            println!("{count} {side} {threshold}: {lower:.4} {upper:.4}");
            assert!(lower.min(upper) > 1e-4, "{count} of {total} {side} {threshold}: {lower:e}, {upper:e}");
        }
    }
}

#[test]
fn values_follow_the_normal_distribution_function() {
    let values = normals(stream(7, "distribution", Stage::Train), 0, 1 << 21);
    let statistic = kolmogorov_smirnov(values.iter().map(|&value| upper_tail(f64::from(value))).collect());
    println!("Kolmogorov-Smirnov {statistic:.3}");
    assert!(statistic < 1.95, "{statistic}");
}

#[test]
fn partners_of_a_pair_are_jointly_gaussian() {
    // exp(−r²/2) and the angle of each pair are uniform.
    let values = normals(stream(8, "partners", Stage::Certify), 0, 1 << 21);
    let (mut radii, mut angles) = (Vec::new(), Vec::new());
    for chunk in values.chunks_exact(32) {
        for (&first, &second) in chunk[..16].iter().zip(&chunk[16..]) {
            let (first, second) = (f64::from(first), f64::from(second));
            radii.push((-0.5 * (first * first + second * second)).exp());
            angles.push(second.atan2(first) / std::f64::consts::TAU + 0.5);
        }
    }
    for (name, uniforms) in [("radius", radii), ("angle", angles)] {
        let statistic = kolmogorov_smirnov(uniforms);
        println!("Kolmogorov-Smirnov of the {name} {statistic:.3}");
        assert!(statistic < 1.95, "{name}: {statistic}");
    }
}

#[test]
fn small_values_are_not_granular() {
    // The radius keeps its relative precision near zero: a value below 1e-3 has many neighbours.
    let values = normals(stream(9, "small", Stage::Certify), 0, 1 << 22);
    let mut small: Vec<f32> = values.into_iter().filter(|value| value.abs() < 1e-3).collect();
    small.sort_unstable_by(f32::total_cmp);
    let count = small.len();
    small.dedup();
    assert!(count > 3000 && small.len() > count - 5, "{} different of {count}", small.len());
}

#[test]
fn values_with_different_counters_are_uncorrelated() {
    let count = 1 << 20;
    let base = stream(10, "image", Stage::Certify);
    let first = normals(base, 0, count + 4096);
    let mut cases = Vec::new();
    for stage in Stage::ALL.into_iter().filter(|&stage| stage != Stage::Certify) {
        cases.push((format!("{stage:?}"), normals(stream(10, "image", stage), 0, count)));
    }
    for sample in [1, 2, 16, 1 << 16, u32::MAX] {
        cases.push((format!("sample {sample}"), normals(base, sample, count)));
    }
    for name in ["imagf", "image2", "imag", ""] {
        cases.push((format!("image `{name}`"), normals(stream(10, name, Stage::Certify), 0, count)));
    }
    for seed in [11, 0, 1 << 63] {
        cases.push((format!("seed {seed}"), normals(stream(seed, "image", Stage::Certify), 0, count)));
    }
    // Among the lags are the partners of a pair (16, for half of the pixels) and the other pair of a block (32).
    for lag in [1, 2, 3, 8, 15, 16, 32, 48, 64, 224, 1024, 4096] {
        cases.push((format!("lag {lag}"), first[lag..lag + count].to_vec()));
    }
    for (name, second) in &cases {
        let (mut values, mut squares) = (0.0, 0.0);
        for (&first, &second) in first.iter().zip(second) {
            let (first, second) = (f64::from(first), f64::from(second));
            values += first * second;
            squares += (first * first - 1.0) * (second * second - 1.0) / 2.0;
        }
        // Either sum has mean 0 and variance `count` if the two are independent; there are 64 of them.
        for (what, sum) in [("values", values), ("squares", squares)] {
            let deviations = sum / (count as f64).sqrt();
            assert!(deviations.abs() < 4.0, "{what} of {name}: {deviations} standard deviations");
        }
    }
}
