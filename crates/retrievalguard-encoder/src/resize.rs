//! Resizing and cropping a picture the way an exported encoder saw its training pictures.
//!
//! [`Preparation`] is torchvision's `Resize` and `CenterCrop` on Pillow images, to the last bit: Pillow's resampling works
//! on 8-bit pixels in 22-bit fixed point, one axis after the other, with the filter widened when shrinking. Measured
//! on 102 preparations of 38 JPEGs in `tests/reference/pictures`: no value differs from Pillow 13.
//!
//! Only the part that the crop keeps is computed, so that a picture one pixel wide costs no more than another.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::picture::{PictureError, RgbPicture};

/// Fractional bits of the filter weights (`PRECISION_BITS` of Pillow's `Resample.c`).
const WEIGHT_BITS: u32 = 32 - 8 - 2;

/// The most pixels a picture may have after preparation.
const MOST_PIXELS: u64 = 100_000_000;

/// The longest side before cropping, as in Pillow.
const LONGEST_SIDE: usize = i32::MAX as usize;

/// How the size is changed before cropping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resize {
    /// The shorter side becomes this long, the longer in proportion, rounded down: torchvision's `Resize(n)`.
    Shorter(usize),
    /// Both sides are given, the proportions not kept: torchvision's `Resize((height, width))`.
    Exact {
        /// Rows wanted.
        height: usize,
        /// Columns wanted.
        width: usize,
    },
    /// The size stays.
    Keep,
}

/// The filter that pixels are resampled with; all but `Nearest` widen when shrinking (antialias).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Triangle, two pixels wide.
    Bilinear,
    /// Keys' cubic with `a = −1/2`, four pixels wide.
    Bicubic,
    /// Lanczos' windowed sinc, six pixels wide.
    Lanczos,
}

impl Interpolation {
    /// Half the filter's width.
    fn support(self) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Nearest => 1.0,
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Bicubic => 0.0,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Which axis is resampled first; between the passes pixels are rounded to 8 bits, so it shows.
///
/// The two agree unless the height loses more than twice as many pixels as the width: under [`Resize::Shorter`] only
/// pictures more than twice as high as wide. There they differed by at most 13/255 on sharp edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassOrder {
    /// Pillow 13: down first when the height loses more than twice as many pixels as the width.
    #[default]
    Cheaper,
    /// Pillow up to 12.
    AcrossFirst,
}

/// Rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// What is done to a picture before the encoder sees it: resize, then cut out the centre.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    /// The size before cropping.
    pub resize: Resize,
    /// The filter.
    pub interpolation: Interpolation,
    /// The centre kept; a smaller picture gets a black border, as with torchvision's `CenterCrop`.
    pub crop: Option<Size>,
    /// Which axis is resampled first.
    #[serde(default)]
    pub order: PassOrder,
}

/// A picture ready for an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedPicture {
    /// Rows and columns.
    pub size: Size,
    /// The red plane, the green, the blue, each row by row, in `[0, 1]`.
    pub values: Vec<f32>,
}

/// Where one axis of the result comes from.
struct Axis {
    /// Length after resizing.
    resized: usize,
    /// First position after resizing that is kept, and how many.
    start: usize,
    kept: usize,
    /// Black before the kept part.
    border: usize,
    /// Length of the result.
    length: usize,
}

impl Axis {
    /// torchvision's `CenterCrop`: border rounded down, crop start rounded half to even.
    fn new(resized: usize, crop: Option<usize>) -> Self {
        let length = crop.unwrap_or(resized);
        if length >= resized {
            return Self { resized, start: 0, kept: resized, border: (length - resized) / 2, length };
        }
        let start = ((resized - length) as f64 / 2.0).round_ties_even() as usize;
        Self { resized, start, kept: length, border: 0, length }
    }
}

/// For each position of the result the first pixel it depends on, and the weights from there on.
type Weights = Vec<(usize, Vec<i32>)>;

/// `precompute_coeffs` and `normalize_coeffs_8bpc` of Pillow's `Resample.c`, for the kept positions.
fn weights(source: usize, axis: &Axis, interpolation: Interpolation) -> Weights {
    let scale = source as f64 / axis.resized as f64;
    let filter_scale = scale.max(1.0);
    let support = interpolation.support() * filter_scale;
    (axis.start..axis.start + axis.kept)
        .map(|position| {
            let centre = (position as f64 + 0.5) * scale;
            // Casts to integers stop at zero, as Pillow's comparison does.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(source);
            let exact: Vec<f64> = (first..end)
                .map(|pixel| interpolation.weight((pixel as f64 - centre + 0.5) * (1.0 / filter_scale)))
                .collect();
            let total: f64 = exact.iter().sum();
            let fixed = |weight: &f64| {
                let weight = if total == 0.0 { *weight } else { weight / total };
                let scaled = weight * f64::from(1 << WEIGHT_BITS);
                (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
            };
            (first, exact.iter().map(fixed).collect())
        })
        .collect()
}

/// Source pixel of each kept position; Pillow adds up the steps instead of multiplying.
fn nearest(source: usize, axis: &Axis) -> Vec<usize> {
    let scale = source as f64 / axis.resized as f64;
    let mut at = scale * 0.5;
    let mut sources = Vec::with_capacity(axis.kept);
    for position in 0..axis.start + axis.kept {
        if position >= axis.start {
            sources.push((at as usize).min(source - 1));
        }
        at += scale;
    }
    sources
}

fn level(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Interleaved RGB rows, cut from a larger picture whose column `left` and row `top` they begin with.
struct Lines<'a> {
    pixels: &'a [u8],
    /// Bytes from one row to the next.
    stride: usize,
    left: usize,
    top: usize,
}

impl Lines<'_> {
    /// Resamples the given rows of the larger picture across.
    fn across(&self, rows: Range<usize>, weights: &Weights) -> Vec<u8> {
        let mut output = Vec::with_capacity(rows.len() * weights.len() * 3);
        for row in rows {
            let line = &self.pixels[(row - self.top) * self.stride..(row - self.top + 1) * self.stride];
            for (first, weights) in weights {
                let mut sums = [1_i32 << (WEIGHT_BITS - 1); 3];
                let pixels = line[(first - self.left) * 3..].as_chunks::<3>().0;
                for (pixel, &weight) in pixels.iter().zip(weights) {
                    for (sum, &value) in sums.iter_mut().zip(pixel) {
                        *sum += i32::from(value) * weight;
                    }
                }
                output.extend(sums.map(level));
            }
        }
        output
    }

    /// Resamples the given columns of the larger picture down.
    fn down(&self, columns: Range<usize>, weights: &Weights) -> Vec<u8> {
        let part = (columns.start - self.left) * 3..(columns.end - self.left) * 3;
        let mut output = Vec::with_capacity(weights.len() * part.len());
        let mut sums = vec![0_i32; part.len()];
        for (first, weights) in weights {
            sums.fill(1 << (WEIGHT_BITS - 1));
            let lines = self.pixels[(first - self.top) * self.stride..].chunks_exact(self.stride);
            for (line, &weight) in lines.zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(&line[part.clone()]) {
                    *sum += i32::from(value) * weight;
                }
            }
            output.extend(sums.iter().map(|&sum| level(sum)));
        }
        output
    }
}

/// The source pixels that the kept positions depend on.
fn reach(weights: &Weights) -> Range<usize> {
    let start = weights.first().map_or(0, |(first, _)| *first);
    start..weights.last().map_or(start, |(first, weights)| first + weights.len())
}

impl Preparation {
    /// Height and width after resizing.
    fn resized(&self, width: usize, height: usize) -> (usize, usize) {
        match self.resize {
            Resize::Keep => (height, width),
            Resize::Exact { height, width } => (height, width),
            Resize::Shorter(shorter) => {
                let longer =
                    |long: usize, short: usize| ((shorter as f64 * long as f64) / short as f64) as usize;
                if width <= height {
                    (longer(height, width), shorter)
                } else {
                    (shorter, longer(width, height))
                }
            }
        }
    }

    /// Prepares one picture; `name` is the name that an error gives.
    pub fn apply(&self, name: &str, picture: &RgbPicture) -> Result<PreparedPicture, PictureError> {
        let (height, width) = self.resized(picture.width(), picture.height());
        let refused = |width: usize, height: usize| {
            let (picture, width, height) = (name.to_owned(), width as u64, height as u64);
            PictureError::ResizedSize { picture, width, height, limit: MOST_PIXELS }
        };
        if !(1..=LONGEST_SIDE).contains(&height) || !(1..=LONGEST_SIDE).contains(&width) {
            return Err(refused(width, height));
        }
        let rows = Axis::new(height, self.crop.map(|size| size.height));
        let columns = Axis::new(width, self.crop.map(|size| size.width));
        if !(1..=MOST_PIXELS).contains(&(rows.length as u64).saturating_mul(columns.length as u64)) {
            return Err(refused(columns.length, rows.length));
        }
        let kept = self.resample(picture, &rows, &columns);
        let plane = rows.length * columns.length;
        let mut values = vec![0.0_f32; 3 * plane];
        for (row, line) in kept.chunks_exact(columns.kept * 3).enumerate() {
            let start = (rows.border + row) * columns.length + columns.border;
            for (column, pixel) in line.as_chunks::<3>().0.iter().enumerate() {
                for (channel, &value) in pixel.iter().enumerate() {
                    values[channel * plane + start + column] = f32::from(value) / 255.0;
                }
            }
        }
        Ok(PreparedPicture { size: Size { height: rows.length, width: columns.length }, values })
    }

    /// The kept part, as interleaved RGB.
    fn resample(&self, picture: &RgbPicture, rows: &Axis, columns: &Axis) -> Vec<u8> {
        let (width, height) = (picture.width(), picture.height());
        if self.interpolation == Interpolation::Nearest {
            let columns = nearest(width, columns);
            return nearest(height, rows)
                .into_iter()
                .flat_map(|row| columns.iter().map(move |&column| (row * width + column) * 3))
                .flat_map(|at| [picture.pixels()[at], picture.pixels()[at + 1], picture.pixels()[at + 2]])
                .collect();
        }
        let by_row = weights_or_copy(height, rows, self.interpolation);
        let by_column = weights_or_copy(width, columns, self.interpolation);
        let source = Lines { pixels: picture.pixels(), stride: width * 3, left: 0, top: 0 };
        let (source_rows, source_columns) = (reach(&by_row), reach(&by_column));
        if self.down_first(picture, rows, columns) {
            let pixels = source.down(source_columns.clone(), &by_row);
            let stride = source_columns.len() * 3;
            let lines = Lines { pixels: &pixels, stride, left: source_columns.start, top: 0 };
            lines.across(0..rows.kept, &by_column)
        } else {
            let pixels = source.across(source_rows.clone(), &by_column);
            let lines = Lines { pixels: &pixels, stride: columns.kept * 3, left: 0, top: source_rows.start };
            lines.down(0..columns.kept, &by_row)
        }
    }

    fn down_first(&self, picture: &RgbPicture, rows: &Axis, columns: &Axis) -> bool {
        let lost = |source: usize, resized: usize| source as i64 - resized as i64;
        let (height, width) = (lost(picture.height(), rows.resized), lost(picture.width(), columns.resized));
        self.order == PassOrder::Cheaper && height > 0 && height > 2 * width
    }
}

/// An axis that keeps its length is copied: each pixel with weight one.
fn weights_or_copy(source: usize, axis: &Axis, interpolation: Interpolation) -> Weights {
    if source == axis.resized {
        return (axis.start..axis.start + axis.kept).map(|at| (at, vec![1 << WEIGHT_BITS])).collect();
    }
    weights(source, axis, interpolation)
}

#[cfg(test)]
mod tests {
    use super::{Interpolation, PassOrder, Preparation, Resize, Size};
    use crate::picture::{PictureError, RgbPicture};

    fn preparation(resize: Resize, crop: Option<Size>) -> Preparation {
        Preparation { resize, interpolation: Interpolation::Bilinear, crop, order: PassOrder::default() }
    }

    #[test]
    fn a_picture_one_pixel_wide_is_cropped_without_making_the_whole() {
        let grey: Vec<u8> = (0..60_000_u32).map(|row| (row / 300) as u8).collect();
        let picture = RgbPicture::from_grey("thread", 1, 60_000, &grey).unwrap();
        for interpolation in [Interpolation::Nearest, Interpolation::Lanczos] {
            let crop = Some(Size { height: 224, width: 224 });
            let prepared = Preparation { interpolation, ..preparation(Resize::Shorter(256), crop) }
                .apply("thread", &picture)
                .unwrap();
            assert_eq!(prepared.values.len(), 3 * 224 * 224, "{interpolation:?}");
            assert!(prepared.values.iter().all(|&value| (value - 100.0 / 255.0).abs() < 1.5 / 255.0));
        }
        let error = preparation(Resize::Shorter(256), None).apply("thread", &picture).unwrap_err();
        assert!(
            matches!(error, PictureError::ResizedSize { width: 256, height: 15_360_000, .. }),
            "{error:?}"
        );
    }

    #[test]
    fn a_small_picture_gets_a_black_border_and_an_odd_one_is_cut_half_to_even() {
        let picture = RgbPicture::from_grey("row", 3, 1, &[255, 51, 255]).unwrap();
        let bordered =
            preparation(Resize::Keep, Some(Size { height: 2, width: 6 })).apply("row", &picture).unwrap();
        assert_eq!(bordered.values[..12], [0.0, 1.0, 0.2, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        // A start of 0.5 becomes 0, of 1.5 becomes 2.
        for (length, start) in [(3, 0.0), (5, 0.4)] {
            let grey: Vec<u8> = (0..length).map(|value: u8| value * 51).collect();
            let picture = RgbPicture::from_grey("row", grey.len(), 1, &grey).unwrap();
            let cut =
                preparation(Resize::Keep, Some(Size { height: 1, width: 2 })).apply("row", &picture).unwrap();
            assert_eq!(cut.values[0], start, "{length} pixels");
        }
    }

    #[test]
    fn a_size_of_zero_is_refused() {
        let picture = RgbPicture::from_grey("dot", 1, 1, &[7]).unwrap();
        let cases = [
            preparation(Resize::Shorter(0), None),
            preparation(Resize::Exact { height: 3, width: 0 }, None),
            preparation(Resize::Keep, Some(Size { height: 0, width: 3 })),
            preparation(Resize::Shorter(usize::MAX), Some(Size { height: 3, width: 3 })),
        ];
        for case in cases {
            let error = case.apply("dot", &picture).unwrap_err();
            assert!(matches!(error, PictureError::ResizedSize { .. }), "{case:?}: {error:?}");
        }
    }
}
