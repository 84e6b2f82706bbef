//! From planes at their own resolutions to rows of RGB, as libjpeg-turbo's `jdsample.c` and `jdcolor.c` do it.

use super::Component;

/// What the components mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColourModel {
    Grey,
    Rgb,
    YCbCr,
    /// Stored inverted, as Adobe's programs do and Pillow assumes.
    Cmyk,
    /// CMYK whose first three components went through the YCbCr transform.
    Ycck,
}

/// How a component's samples are spread over the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spreading {
    None,
    /// Triangle filter across.
    Across,
    /// Triangle filter down.
    Down,
    /// Triangle filter both ways.
    Both,
    /// Each sample repeated.
    Repeat {
        across: usize,
        down: usize,
    },
}

impl Spreading {
    /// The choice of `jinit_upsampler`: triangle filters for factors of two, unless the row is too short.
    fn of(component: &Component, most_across: usize, most_down: usize) -> Self {
        let across = most_across / component.across;
        let down = most_down / component.down;
        match (across, down) {
            (1, 1) => Self::None,
            (2, 1) if component.width > 2 => Self::Across,
            (1, 2) => Self::Down,
            (2, 2) if component.width > 2 => Self::Both,
            _ => Self::Repeat { across, down },
        }
    }
}

/// Writes row `row` of the component at full resolution to `output`, which holds at least two samples for each of the component's.
fn spread(component: &Component, spreading: Spreading, row: usize, output: &mut [u8]) {
    let last = component.width - 1;
    // The nearer of the two rows weighs three times as much; beyond the edge the edge is repeated.
    let near_and_far = || {
        let near = row / 2;
        let far =
            if row.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(component.height - 1) };
        (component.row(near), component.row(far))
    };
    match spreading {
        Spreading::None => output[..component.width].copy_from_slice(component.row(row)),
        Spreading::Across => {
            let input = component.row(row);
            for (column, pair) in output.chunks_exact_mut(2).take(component.width).enumerate() {
                let centre = u32::from(input[column]);
                let (left, right) = (input[column.saturating_sub(1)], input[(column + 1).min(last)]);
                pair[0] = ((3 * centre + u32::from(left) + 1) >> 2) as u8;
                pair[1] = ((3 * centre + u32::from(right) + 2) >> 2) as u8;
            }
        }
        Spreading::Down => {
            let (near, far) = near_and_far();
            let bias = if row.is_multiple_of(2) { 1 } else { 2 };
            for ((value, &near), &far) in output.iter_mut().zip(near).zip(far) {
                *value = ((3 * u32::from(near) + u32::from(far) + bias) >> 2) as u8;
            }
        }
        Spreading::Both => {
            let (near, far) = near_and_far();
            let sum = |column: usize| 3 * u32::from(near[column]) + u32::from(far[column]);
            let (mut left, mut centre) = (sum(0), sum(0));
            for (column, pair) in output.chunks_exact_mut(2).take(component.width).enumerate() {
                let right = sum((column + 1).min(last));
                pair[0] = ((3 * centre + left + 8) >> 4) as u8;
                pair[1] = ((3 * centre + right + 7) >> 4) as u8;
                (left, centre) = (centre, right);
            }
        }
        Spreading::Repeat { across, down } => {
            let input = component.row(row / down);
            for (column, value) in output.iter_mut().enumerate() {
                *value = input[(column / across).min(last)];
            }
        }
    }
}

const fn fixed(value: f64) -> i32 {
    (value * 65536.0 + 0.5) as i32
}

/// ITU-R BT.601 in 16 fractional bits.
fn rgb(luminance: u8, blue: u8, red: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (luminance, blue, red) = (i32::from(luminance), i32::from(blue) - 128, i32::from(red) - 128);
    let level = |value: i32| value.clamp(0, 255) as u8;
    [
        level(luminance + ((fixed(1.402) * red + HALF) >> 16)),
        level(luminance + ((HALF - fixed(0.344_14) * blue - fixed(0.714_14) * red) >> 16)),
        level(luminance + ((fixed(1.772) * blue + HALF) >> 16)),
    ]
}

/// Ink on black, the way Pillow turns CMYK to RGB; `ink` and `key` are stored inverted.
fn inked(ink: u8, key: u8) -> u8 {
    let product = u32::from(255 - ink) * u32::from(key) + 128;
    key.saturating_sub((((product >> 8) + product) >> 8) as u8)
}

/// The whole picture as interleaved RGB.
pub(super) fn assemble(components: &[Component], model: ColourModel, width: usize, height: usize) -> Vec<u8> {
    let most_across = components.iter().map(|component| component.across).max().unwrap_or(1);
    let most_down = components.iter().map(|component| component.down).max().unwrap_or(1);
    let spreadings: Vec<Spreading> =
        components.iter().map(|component| Spreading::of(component, most_across, most_down)).collect();
    let mut rows: Vec<Vec<u8>> =
        components.iter().map(|component| vec![0; width.max(2 * component.width)]).collect();
    let mut pixels = vec![0_u8; width * height * 3];
    for (row, output) in pixels.chunks_exact_mut(width * 3).enumerate() {
        for ((component, &spreading), samples) in components.iter().zip(&spreadings).zip(&mut rows) {
            spread(component, spreading, row, samples);
        }
        let pixels = output.as_chunks_mut::<3>().0.iter_mut().enumerate();
        match model {
            ColourModel::Grey => pixels.for_each(|(at, pixel)| *pixel = [rows[0][at]; 3]),
            ColourModel::Rgb => {
                pixels.for_each(|(at, pixel)| *pixel = [rows[0][at], rows[1][at], rows[2][at]]);
            }
            ColourModel::YCbCr => {
                pixels.for_each(|(at, pixel)| *pixel = rgb(rows[0][at], rows[1][at], rows[2][at]));
            }
            ColourModel::Cmyk => pixels.for_each(|(at, pixel)| {
                *pixel = [rows[0][at], rows[1][at], rows[2][at]].map(|ink| inked(ink, rows[3][at]));
            }),
            ColourModel::Ycck => pixels.for_each(|(at, pixel)| {
                let inks = rgb(rows[0][at], rows[1][at], rows[2][at]);
                *pixel = inks.map(|ink| inked(255 - ink, rows[3][at]));
            }),
        }
    }
    pixels
}
