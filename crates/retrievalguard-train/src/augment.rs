//! Views of a picture for training: a random part at a random size, possibly mirrored.

use std::num::NonZeroUsize;

use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::picture::{PictureError, PixelBox, RgbPicture};
use retrievalguard_encoder::pipeline::{PipelineError, input_values};
use retrievalguard_encoder::resize::{Preparation, Resize, Size};

use crate::random::RandomSource;

/// How parts of pictures are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Augmentation {
    /// Smallest and largest share of the picture's area.
    pub area: (f64, f64),
    /// Smallest and largest width over height.
    pub aspect: (f64, f64),
    /// Probability of a mirrored view.
    pub flip: f64,
}

impl Default for Augmentation {
    /// torchvision's: areas from 0.08 to 1, aspects from 3/4 to 4/3, half of the views mirrored.
    fn default() -> Self {
        Self { area: (0.08, 1.0), aspect: (3.0 / 4.0, 4.0 / 3.0), flip: 0.5 }
    }
}

/// A part of a picture and whether it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The part.
    pub part: PixelBox,
    /// Whether left and right change places.
    pub mirrored: bool,
}

/// Why a view cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A range that is not one.
    #[error("{parameter} ranges from {low} to {high}, wanted {wanted}")]
    Range {
        /// What ranges.
        parameter: &'static str,
        /// Its lower end.
        low: f64,
        /// Its upper end.
        high: f64,
        /// What would have been accepted.
        wanted: &'static str,
    },
    /// The picture cannot be read or resized.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// The prepared picture does not fit the encoder.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

impl Augmentation {
    /// Attempts to find a part that fits, as in torchvision.
    const ATTEMPTS: usize = 10;

    /// Refuses ranges that are empty or make no sense.
    pub(crate) fn check(&self) -> Result<(), ViewError> {
        let refuse = |parameter, (low, high), wanted| Err(ViewError::Range { parameter, low, high, wanted });
        let ordered = |(low, high): (f64, f64)| low > 0.0 && low <= high && high.is_finite();
        if !(ordered(self.area) && self.area.1 <= 1.0) {
            return refuse("the area of a view", self.area, "0 < low ≤ high ≤ 1");
        }
        if !ordered(self.aspect) {
            return refuse("the aspect of a view", self.aspect, "0 < low ≤ high");
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return refuse("the probability of a flip", (self.flip, self.flip), "a number from 0 to 1");
        }
        Ok(())
    }

    /// Chooses a view of a picture: torchvision's `RandomResizedCrop.get_params`, then `RandomHorizontalFlip`.
    ///
    /// The area is uniform, the aspect uniform in its logarithm. If ten attempts do not fit into the picture, the view
    /// is the largest central part whose aspect is in range.
    pub(crate) fn choose(
        &self,
        width: NonZeroUsize,
        height: NonZeroUsize,
        source: &mut RandomSource,
    ) -> View {
        let (width, height) = (width.get(), height.get());
        let part = (0..Self::ATTEMPTS)
            .find_map(|_| {
                let area = (width * height) as f64 * source.between(self.area.0, self.area.1);
                let aspect = source.between(self.aspect.0.ln(), self.aspect.1.ln()).exp();
                let wide = (area * aspect).sqrt().round_ties_even() as usize;
                let high = (area / aspect).sqrt().round_ties_even() as usize;
                if !(1..=width).contains(&wide) || !(1..=height).contains(&high) {
                    return None;
                }
                let top = source.below(height - high + 1);
                let left = source.below(width - wide + 1);
                Some(PixelBox { left, top, right: left + wide, bottom: top + high })
            })
            .unwrap_or_else(|| self.central(width, height));
        View { part, mirrored: source.uniform() < self.flip }
    }

    fn central(&self, width: usize, height: usize) -> PixelBox {
        let aspect = width as f64 / height as f64;
        let (wide, high) = if aspect < self.aspect.0 {
            (width, (width as f64 / self.aspect.0).round_ties_even() as usize)
        } else if aspect > self.aspect.1 {
            ((height as f64 * self.aspect.1).round_ties_even() as usize, height)
        } else {
            (width, height)
        };
        // A picture one pixel wide would round to nothing.
        let (wide, high) = (wide.clamp(1, width), high.clamp(1, height));
        let (left, top) = ((width - wide) / 2, (height - high) / 2);
        PixelBox { left, top, right: left + wide, bottom: top + high }
    }
}

/// Makes the encoder's input out of pictures, for training and for evaluation.
#[derive(Clone, Debug)]
pub(crate) struct Augmenter {
    model_config: ModelConfig,
    augmentation: Augmentation,
}

impl Augmenter {
    /// Views for an encoder.
    pub(crate) fn new(model_config: ModelConfig, augmentation: Augmentation) -> Result<Self, ViewError> {
        augmentation.check()?;
        Ok(Self { model_config, augmentation })
    }

    /// The encoder's model config.
    pub(crate) fn model_config(&self) -> &ModelConfig {
        &self.model_config
    }

    /// A random view of a picture as channels of rows in `[0, 1]`; `identity` is the name that an error gives.
    ///
    /// Paper: Section 4.3, training parameters: randomly resized and cropped.
    pub(crate) fn training(
        &self,
        identity: &str,
        picture: &RgbPicture,
        source: &mut RandomSource,
    ) -> Result<Vec<f32>, ViewError> {
        let [_, height, width] = self.model_config.picture_shape();
        let side = |length: usize| NonZeroUsize::new(length).expect("a picture has at least one pixel");
        let view = self.augmentation.choose(side(picture.width()), side(picture.height()), source);
        let preparation = Preparation {
            resize: Resize::Exact { height, width },
            crop: None,
            ..self.model_config.preparation()
        };
        let prepared = preparation.apply(identity, &picture.cropped(identity, view.part)?)?;
        let Size { width, .. } = prepared.size;
        let mut values = input_values(&self.model_config, identity, prepared)?;
        if view.mirrored {
            values.chunks_exact_mut(width).for_each(<[f32]>::reverse);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests;
