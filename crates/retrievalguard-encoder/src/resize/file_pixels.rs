//! How far can the encoder's input move when pixels of the file change? (theory, section 15)
//!
//! With `T` for everything between decoded pixels in `[0, 1]` and the tensor that noise is added to, and pictures `x`, `y` of the
//! same width and height,
//!
//! ```text
//! ‖T(x) − T(y)‖ ≤ scale·‖x − y‖ + rounding
//! ```
//!
//! Both numbers come from the weights with which *this* picture is resampled, rounded upwards.

use retrievalguard::certificate::Radius;

use super::banded::norm;
use super::weights::{Axis, WEIGHT_BITS, Weights};
use super::{Interpolation, Preparation, Resampling};
use crate::graph::bound::gamma;
use crate::graph::bound::upwards::{add, div, mul, root};
use crate::picture::{Colours, RgbPicture};
use crate::table::FilePixels;

/// Unit roundoff of `f64`.
const ROUNDOFF: f64 = f64::EPSILON / 2.0;
/// Half a unit in the last place of an `f32` in `[1/2, 1]`: what rounding changes in a number of `[0, 1]` at most.
const TO_SINGLE: f64 = f32::EPSILON as f64 / 4.0;
/// What `0.299 R + 0.587 G + 0.114 B` in `f32` is off by: weights, products and sums, four roundings of numbers up to 1.
const LUMINANCE_ERROR: f64 = 5.0 * (f32::EPSILON as f64 / 2.0);

impl FilePixels {
    /// What a radius of the encoder's input says about the file, as a sentence.
    pub fn statement(&self, radius: Radius) -> String {
        match self.radius(radius) {
            Some(Radius::Unbounded) => {
                "The same holds for every change of the file's own pixels that keeps width and height."
                    .to_owned()
            }
            Some(radius) => format!(
                "In the file's own pixels (decoded, scaled to [0, 1], same width and height) that is every change with an l2 norm below {radius}."
            ),
            None => format!(
                "In the file's own pixels nothing follows: rounding while the picture is resized may move it by up to {:.4}.",
                (self.rounding * 1e4).ceil() / 1e4
            ),
        }
    }
}

/// One pass of two.
struct Pass {
    /// At least the norm of its matrix.
    norm: f64,
    /// At least the largest sum of magnitudes of the weights of one position.
    magnitude: f64,
    /// Products in a sum, at most.
    terms: usize,
    /// Whether it is more than copying.
    filters: bool,
}

impl Pass {
    fn new(weights: &Weights<f64>) -> Self {
        let terms = weights.0.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
        let sum = |row: &[f64]| row.iter().map(|weight| weight.abs()).sum::<f64>();
        let largest = weights.0.iter().map(|(_, row)| sum(row)).fold(0.0, f64::max);
        Self {
            norm: norm(weights),
            magnitude: mul(largest, add(1.0, gamma(terms, ROUNDOFF))),
            terms,
            filters: weights.0.iter().any(|(_, row)| row != &[1.0]),
        }
    }
}

impl Preparation {
    /// How far the input of an encoder with so many channels moves, for a picture of this width, height and colours.
    ///
    /// None if fixed-point sums could overflow. No filter has weights of that size; then nothing would be known.
    pub fn file_pixels(&self, picture: &RgbPicture, channels: usize) -> Option<FilePixels> {
        let (width, height) = (picture.width(), picture.height());
        let (rows, columns) = self.axes(width, height);
        let by_row = self.pass_weights(height, &rows)?;
        let by_column = self.pass_weights(width, &columns)?;
        let (down, across) = (Pass::new(&by_row), Pass::new(&by_column));
        // Values between the passes, and after them, of one colour.
        let (first, second, between) = if self.down_first(picture, &rows, &columns) {
            (&down, &across, rows.kept * by_column.reach().len())
        } else {
            (&across, &down, columns.kept * by_row.reach().len())
        };
        let kept = rows.kept * columns.kept;
        let colours = match picture.colours() {
            Colours::Grey => 1,
            Colours::Rgb => 3,
        };
        let spread = spread(picture.colours(), channels);
        let scale = mul(spread, mul(first.norm, second.norm));

        // Each value of the tensor is off by so much from the exact one, and that of the other picture, too.
        let mut error = TO_SINGLE;
        if channels == 1 {
            error = add(error, LUMINANCE_ERROR);
        }
        let mut rounding = 0.0;
        match self.resampling {
            Resampling::Float => {
                // Sums in both passes and the division by 255.
                let sums = gamma(first.terms + second.terms + 3, ROUNDOFF);
                error = add(error, mul(sums, mul(first.magnitude, second.magnitude)));
            }
            Resampling::EightBit => {
                // Half a step of 1/255 for each of the two pictures.
                let steps = |values: usize| div(root((colours * values) as f64), 255.0);
                if first.filters {
                    rounding = mul(second.norm, steps(between));
                }
                if second.filters {
                    rounding = add(rounding, steps(kept));
                }
                rounding = mul(spread, rounding);
            }
        }
        let twice = mul(2.0, mul(error, root((channels * kept) as f64)));
        Some(FilePixels { scale, rounding: add(rounding, twice) })
    }

    /// The weights of a pass as it computes; none if its sums could overflow.
    fn pass_weights(&self, source: usize, axis: &Axis) -> Option<Weights<f64>> {
        let exact = axis.weights(source, self.interpolation);
        if self.resampling == Resampling::Float || self.interpolation == Interpolation::Nearest {
            return Some(exact);
        }
        let fixed = exact.fixed();
        let largest = |row: &[i32]| row.iter().map(|weight| i64::from(weight.abs()) * 255).sum::<i64>();
        let safe = |row: &[i32]| largest(row) + (1 << (WEIGHT_BITS - 1)) <= i64::from(i32::MAX);
        fixed.0.iter().all(|(_, row)| safe(row)).then(|| fixed.exact())
    }
}

/// Norm of the map from the colours of a pixel in the file to the channels of the encoder.
fn spread(colours: Colours, channels: usize) -> f64 {
    match (colours, channels) {
        // Three equal channels.
        (Colours::Grey, 3) => root(3.0),
        // The length of the luminance's weights; the allowance covers the rounding of the decimal numbers.
        (Colours::Rgb, 1) => {
            mul(root(0.299 * 0.299 + 0.587 * 0.587 + 0.114 * 0.114), 1.0 + 8.0 * f64::EPSILON)
        }
        _ => 1.0,
    }
}
