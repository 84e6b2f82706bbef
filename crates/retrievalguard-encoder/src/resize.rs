//! Resizing and cropping a picture the way an exported encoder saw its training pictures.
//!
//! [`Preparation`] is torchvision's `Resize` and `CenterCrop` on Pillow images, to the last bit: Pillow's resampling works
//! on 8-bit pixels in 22-bit fixed point, one axis after the other, with the filter widened when shrinking. Measured
//! on 102 preparations of 38 JPEGs in `tests/reference/pictures`: no value differs from Pillow 13.
//!
//! [`Resampling::Float`] has the same filters without rounding to 8 bits, as Pillow resamples images of mode `F`: linear, so
//! that a small change of a picture stays a small change. [`Preparation::file_pixels`] says how small.
//!
//! Only the part that the crop keeps is computed, so that a picture one pixel wide costs no more than another.

use serde::{Deserialize, Serialize};

use self::passes::{Lines, Weighs, Weight};
use self::weights::{Axis, Weights};
use crate::picture::{PictureError, RgbPicture};

mod banded;
mod file_pixels;
mod passes;
mod weights;

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

/// In which numbers pixels are resampled; nothing but [`Float`](Self::Float) is linear, and so is worth a radius of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resampling {
    /// Pillow's: every pass ends in 8 bits.
    #[default]
    #[serde(rename = "8-bit")]
    EightBit,
    /// `f64` in both passes, cut to `[0, 1]` and rounded to `f32` once, at the end.
    Float,
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
    /// In which numbers.
    #[serde(default)]
    pub resampling: Resampling,
}

/// A picture ready for an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedPicture {
    /// Rows and columns.
    pub size: Size,
    /// The red plane, the green, the blue, each row by row, in `[0, 1]`.
    pub values: Vec<f32>,
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

    /// Where the rows and columns of the result come from.
    fn axes(&self, width: usize, height: usize) -> (Axis, Axis) {
        let (height, width) = self.resized(width, height);
        let rows = Axis::new(height, self.crop.map(|size| size.height));
        (rows, Axis::new(width, self.crop.map(|size| size.width)))
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
        let (rows, columns) = self.axes(picture.width(), picture.height());
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
                    values[channel * plane + start + column] = value;
                }
            }
        }
        Ok(PreparedPicture { size: Size { height: rows.length, width: columns.length }, values })
    }

    /// The kept part as interleaved RGB in `[0, 1]`.
    fn resample(&self, picture: &RgbPicture, rows: &Axis, columns: &Axis) -> Vec<f32> {
        let (width, height) = (picture.width(), picture.height());
        let level = |value: u8| f32::from(value) / 255.0;
        if self.interpolation == Interpolation::Nearest {
            let columns = columns.nearest(width);
            return rows
                .nearest(height)
                .into_iter()
                .flat_map(|row| columns.iter().map(move |&column| (row * width + column) * 3))
                .flat_map(|at| &picture.pixels()[at..at + 3])
                .map(|&value| level(value))
                .collect();
        }
        let by_row = rows.weights(height, self.interpolation);
        let by_column = columns.weights(width, self.interpolation);
        let down_first = self.down_first(picture, rows, columns);
        match self.resampling {
            Resampling::EightBit => {
                let levels = both_passes(picture, &by_row.fixed(), &by_column.fixed(), down_first);
                levels.into_iter().map(level).collect()
            }
            Resampling::Float => both_passes(picture, &by_row, &by_column, down_first)
                .into_iter()
                .map(|value| (value / 255.0).clamp(0.0, 1.0) as f32)
                .collect(),
        }
    }

    fn down_first(&self, picture: &RgbPicture, rows: &Axis, columns: &Axis) -> bool {
        let lost = |source: usize, resized: usize| source as i64 - resized as i64;
        let (height, width) = (lost(picture.height(), rows.resized), lost(picture.width(), columns.resized));
        self.order == PassOrder::Cheaper && height > 0 && height > 2 * width
    }
}

/// The kept positions of a picture, in steps of 1/255: one pass over the picture and one over what the first leaves.
fn both_passes<W>(
    picture: &RgbPicture,
    by_row: &Weights<W>,
    by_column: &Weights<W>,
    down_first: bool,
) -> Vec<W::Value>
where
    W: Weighs<u8> + Weighs<<W as Weight>::Value>,
{
    let source = Lines { pixels: picture.pixels(), stride: picture.width() * 3, left: 0, top: 0 };
    let (rows, columns) = (by_row.reach(), by_column.reach());
    if down_first {
        let pixels = source.down(columns.clone(), by_row);
        let lines = Lines { pixels: &pixels, stride: columns.len() * 3, left: columns.start, top: 0 };
        lines.across(0..by_row.len(), by_column)
    } else {
        let pixels = source.across(rows.clone(), by_column);
        let lines = Lines { pixels: &pixels, stride: by_column.len() * 3, left: 0, top: rows.start };
        lines.down(0..by_column.len(), by_row)
    }
}

#[cfg(test)]
mod tests {
    use super::{Interpolation, PassOrder, Preparation, Resampling, Resize, Size};
    use crate::picture::{PictureError, RgbPicture};

    fn preparation(resize: Resize, crop: Option<Size>) -> Preparation {
        let (order, resampling) = (PassOrder::default(), Resampling::default());
        Preparation { resize, interpolation: Interpolation::Bilinear, crop, order, resampling }
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
