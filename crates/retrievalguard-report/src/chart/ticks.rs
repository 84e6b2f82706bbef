//! Where an axis has its numbers, and how they are written.

/// Steps of 1, 2 or 5 times a power of ten that divide a range into about `wanted` parts; never more than twice as many.
///
/// The places are multiples of the step inside `[low, high]`.
pub(crate) fn linear(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let step = step(high - low, wanted);
    // A hair of slack, so that an end that is a multiple but for rounding is kept.
    let first = (low / step - 1e-9).ceil();
    let last = (high / step + 1e-9).floor();
    let count = (last - first).clamp(0.0, 1_000.0) as u32;
    // Adding zero turns a negative zero into a zero.
    (0..=count).map(|place| round_to((first + f64::from(place)) * step, step) + 0.0).collect()
}

/// The range widened to whole steps.
pub(crate) fn widened(low: f64, high: f64, wanted: usize) -> (f64, f64) {
    let step = step(high - low, wanted);
    (
        round_to((low / step + 1e-9).floor() * step, step) + 0.0,
        round_to((high / step - 1e-9).ceil() * step, step) + 0.0,
    )
}

/// Powers of ten in `[low, high]`; with 2 and 5 times them if there is room, every other or fewer if there is not.
pub(super) fn logarithmic(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let (first, last) = (low.log10(), high.log10());
    let decades = (last - first).max(1e-9);
    let wanted = wanted.max(2) as f64;
    let inside = |value: &f64| *value >= low * (1.0 - 1e-9) && *value <= high * (1.0 + 1e-9);
    if decades * 3.0 <= wanted + 1.0 {
        let (from, to) = (first.floor() as i32, last.ceil() as i32);
        let fine: Vec<f64> = (from..=to)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power)))
            .filter(inside)
            .collect();
        // Less than a factor of two or so: equal steps serve better.
        return if fine.len() >= 2 { fine } else { linear(low, high, wanted as usize) };
    }
    let every = (decades / wanted).ceil().max(1.0) as i32;
    let (from, to) = (first.floor() as i32, last.ceil() as i32);
    (from..=to)
        .filter(|power| power.rem_euclid(every) == 0)
        .map(|power| 10_f64.powi(power))
        .filter(inside)
        .collect()
}

/// The numbers as an axis of equal steps shows them: all with the digits that the step needs.
pub(super) fn linear_labels(ticks: &[f64]) -> Vec<String> {
    let gap = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(f64::INFINITY, f64::min);
    let largest = ticks.iter().fold(0.0_f64, |most, tick| most.max(tick.abs()));
    let smallest = if gap.is_finite() { gap } else { largest };
    ticks.iter().map(|&tick| written(tick, smallest, largest)).collect()
}

/// The numbers as an axis of equal factors shows them: each with its own digits.
pub(super) fn logarithmic_labels(ticks: &[f64]) -> Vec<String> {
    ticks.iter().map(|&tick| written(tick, tick, tick)).collect()
}

/// A number with the decimals that `smallest` has, or in powers of ten if that would be long.
fn written(value: f64, smallest: f64, largest: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if largest >= 1e7 || smallest < 1e-5 {
        return format!("{value:e}").replace('-', "\u{2212}");
    }
    let decimals = (0..=8).find(|&places| {
        let scaled = smallest * 10_f64.powi(places);
        (scaled - scaled.round()).abs() < 1e-6 * scaled && scaled >= 0.5
    });
    grouped(&format!("{:.*}", decimals.unwrap_or(8) as usize, value))
}

/// `12345.6` as `12,345.6`; four digits stay together.
fn grouped(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("\u{2212}", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, ""), |(whole, fraction)| (whole, fraction));
    let mut shown = String::from(sign);
    shown.push_str(&if whole.len() > 4 { in_thousands(whole) } else { whole.to_owned() });
    if !fraction.is_empty() {
        shown.push('.');
        shown.push_str(fraction);
    }
    shown
}

/// `1234567` as `1,234,567`.
pub(crate) fn in_thousands(digits: &str) -> String {
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

fn step(length: f64, wanted: usize) -> f64 {
    let rough = length / wanted.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let fitting = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    fitting.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// Takes away the last digits, in which a product of a step and a count differs from what is meant.
fn round_to(value: f64, step: f64) -> f64 {
    let fine = 10_f64.powf((step.abs().log10()).floor() - 3.0);
    let rounded = (value / fine).round();
    // Dividing by a power of ten is exact to the last bit, multiplying by its inverse is not.
    if fine < 1.0 { rounded / (1.0 / fine).round() } else { rounded * fine }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_one_two_or_five_times_a_power_of_ten() {
        for (low, high, wanted, expected) in [
            (0.0, 1.0, 5, vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (0.0, 0.73, 5, vec![0.0, 0.2, 0.4, 0.6]),
            (-3.0, 3.0, 3, vec![-2.0, 0.0, 2.0]),
            (1_000.0, 9_000.0, 4, vec![2_000.0, 4_000.0, 6_000.0, 8_000.0]),
            (0.0, 0.003, 3, vec![0.0, 0.001, 0.002, 0.003]),
        ] {
            assert_eq!(linear(low, high, wanted), expected, "{low} to {high}");
        }
    }

    #[test]
    fn ticks_are_ascending_and_inside_for_any_finite_range() {
        for power in -12..12 {
            for (low, high) in [(0.0, 1.0), (0.3, 0.31), (-7.0, 13.0), (0.999, 1.001)] {
                let scale = 10_f64.powi(power);
                let ticks = linear(low * scale, high * scale, 6);
                assert!((1..=13).contains(&ticks.len()), "{low} {high} {power}: {ticks:?}");
                assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{ticks:?}");
                let (wide_low, wide_high) = widened(low * scale, high * scale, 6);
                let slack = 1e-9 * scale;
                assert!(wide_low <= low * scale + slack && wide_high >= high * scale - slack);
            }
        }
    }

    #[test]
    fn logarithmic_ticks_are_decades_or_finer_where_there_is_room() {
        assert_eq!(logarithmic(100.0, 1e6, 6), [1e2, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(logarithmic(100.0, 1_000.0, 6), [100.0, 200.0, 500.0, 1_000.0]);
        assert_eq!(logarithmic(1e-10, 1e10, 5), [1e-8, 1e-4, 1.0, 1e4, 1e8]);
        assert!(logarithmic(30.0, 40.0, 5).len() >= 2);
    }

    #[test]
    fn labels_have_the_digits_that_tell_neighbours_apart() {
        assert_eq!(linear_labels(&linear(0.0, 1.0, 5)), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(linear_labels(&linear(0.0, 0.1, 2)), ["0", "0.05", "0.10"]);
        assert_eq!(linear_labels(&linear(-20_000.0, 20_000.0, 2)), ["−20,000", "0", "20,000"]);
        assert_eq!(linear_labels(&linear(0.0, 2e-6, 2)), ["0", "1e−6", "2e−6"]);
        let shown = logarithmic_labels(&[1e-7, 0.01, 0.5, 10.0, 100_000.0]);
        assert_eq!(shown, ["1e−7", "0.01", "0.5", "10", "100,000"]);
    }
}
