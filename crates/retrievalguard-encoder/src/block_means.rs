//! The encoder for finding copies: means over blocks of a picture, an ONNX file that needs no training.
//!
//! Its rows are orthonormal, so it moves exactly as fast as the picture in the directions that it sees and not at all in the
//! others: its Lipschitz constant is 1, and [`graph::bound`](crate::graph::bound) finds that.
//!
//! ```
//! use retrievalguard_encoder::block_means::BlockMeans;
//!
//! // Three colours of 8 × 8 blocks, each of 4 × 4 pixels.
//! let encoder = BlockMeans::new(3, 32, 8)?;
//! assert_eq!(encoder.dimension(), 192);
//! assert!(BlockMeans::new(3, 224, 30).is_err(), "30 blocks do not divide 224 pixels");
//! # Ok::<(), retrievalguard_encoder::block_means::BlockMeansError>(())
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use retrievalguard::NormBound;
use retrievalguard::storage::atomic::{self, WriteError};

use crate::model_config::{ChannelOrder, Crop, Input, Layout, ModelConfig, Output, Resize};
use crate::protobuf::MessageWriter;
use crate::resize::{Interpolation, PassOrder, Resampling};

/// Largest side of a picture.
const LARGEST_SIZE: usize = 4096;

/// Why there is no such encoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockMeansError {
    /// Blocks must fill the picture.
    #[error(
        "a grid of {grid} does not divide a picture of {size} pixels, wanted a divisor of {size}, such as {suggested}"
    )]
    Grid {
        /// Blocks along a side.
        grid: usize,
        /// Pixels along a side.
        size: usize,
        /// A grid that fits.
        suggested: usize,
    },
    /// Pictures have a size.
    #[error("the size is {0} pixels, wanted 1 to {LARGEST_SIZE}")]
    Size(usize),
    /// Pictures are grey or coloured.
    #[error("the encoder has {0} channels, wanted 1 (grey) or 3 (colour)")]
    Channels(usize),
}

/// Means over the blocks of a square grid, scaled so that rows have length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMeans {
    channels: usize,
    size: usize,
    grid: usize,
}

impl BlockMeans {
    /// An encoder of `grid × grid` blocks of pictures of `size × size` pixels.
    pub fn new(channels: usize, size: usize, grid: usize) -> Result<Self, BlockMeansError> {
        if ![1, 3].contains(&channels) {
            return Err(BlockMeansError::Channels(channels));
        }
        if !(1..=LARGEST_SIZE).contains(&size) {
            return Err(BlockMeansError::Size(size));
        }
        if grid == 0 || !size.is_multiple_of(grid) {
            let fits = |other: &usize| size.is_multiple_of(*other);
            let suggested = (1..=size).filter(fits).min_by_key(|other| other.abs_diff(grid)).unwrap_or(1);
            return Err(BlockMeansError::Grid { grid, size, suggested });
        }
        Ok(Self { channels, size, grid })
    }

    /// Length of its embeddings.
    pub fn dimension(&self) -> usize {
        self.channels * self.grid * self.grid
    }

    /// The model config: the whole picture, squeezed to the encoder's size, pixels in `[0, 1]`.
    pub fn config(&self) -> ModelConfig {
        let Self { channels, size, .. } = *self;
        // Twice the norm of a white picture: room for whatever is added to it.
        let norm = 2.0 * ((channels * size * size) as f64).sqrt();
        ModelConfig {
            input: Input {
                name: Some("pictures".to_owned()),
                channels,
                height: size,
                width: size,
                channel_order: ChannelOrder::Rgb,
                layout: Layout::Nchw,
                mean: vec![0.0; channels],
                std: vec![1.0; channels],
            },
            resize: Resize::Exact {
                height: size,
                width: size,
                interpolation: Interpolation::Bilinear,
                order: PassOrder::default(),
                resampling: Resampling::Float,
            },
            crop: Crop::None,
            output: Output {
                name: Some("embeddings".to_owned()),
                normalise: false,
                norm_bound: Some(NormBound::new(norm).expect("a size up to 4096 has a norm below 1e6")),
            },
        }
    }

    /// The ONNX file: a convolution of each channel with itself, block by block.
    pub fn onnx(&self) -> Vec<u8> {
        let Self { channels, size, grid } = *self;
        let block = size / grid;
        let weight = towards_zero(1.0 / block as f64);
        let weights: Vec<u8> =
            std::iter::repeat_n(weight, channels * block * block).flat_map(f32::to_le_bytes).collect();
        let whole = |numbers: &[usize]| numbers.iter().map(|&number| number as i64).collect::<Vec<_>>();
        let kernel = MessageWriter::default()
            .numbers(1, whole(&[channels, 1, block, block]))
            .number(2, 1)
            .text(8, "block")
            .bytes(9, &weights);
        let list = |name: &str, numbers: &[usize]| {
            MessageWriter::default().text(1, name).numbers(8, whole(numbers)).number(20, 7)
        };
        let number = |name: &str, value: usize| {
            MessageWriter::default().text(1, name).number(3, value as i64).number(20, 2)
        };
        let means = MessageWriter::default()
            .texts(1, &["pictures", "block"])
            .texts(2, &["means"])
            .text(3, "block means")
            .text(4, "Conv")
            .message(5, &list("kernel_shape", &[block, block]))
            .message(5, &list("strides", &[block, block]))
            .message(5, &number("group", channels));
        let flat = MessageWriter::default()
            .texts(1, &["means"])
            .texts(2, &["embeddings"])
            .text(3, "flatten")
            .text(4, "Flatten")
            .message(5, &number("axis", 1));
        let graph = MessageWriter::default()
            .message(1, &means)
            .message(1, &flat)
            .text(2, "block means")
            .message(5, &kernel)
            .message(11, &declared("pictures", &[channels, size, size]))
            .message(12, &declared("embeddings", &[self.dimension()]));
        MessageWriter::default()
            .number(1, 8)
            .text(2, "retrievalguard")
            .text(3, env!("CARGO_PKG_VERSION"))
            .message(7, &graph)
            .message(8, &MessageWriter::default().text(1, "").number(2, 17))
            .into_bytes()
    }

    /// Writes `encoder.onnx` and `encoder.toml` into a folder and returns the path of the first.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, WriteError> {
        fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
        let model = folder.join("encoder.onnx");
        atomic::write(&model, &self.onnx())?;
        atomic::write(&folder.join("encoder.toml"), self.config().to_toml().as_bytes())?;
        Ok(model)
    }
}

/// The largest `f32` that is not above a positive number: rows must not be longer than 1.
fn towards_zero(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) > value { nearest.next_down() } else { nearest }
}

/// A tensor of any number of rows.
fn declared(name: &str, sides: &[usize]) -> MessageWriter {
    let batch = MessageWriter::default().message(1, &MessageWriter::default().text(2, "batch"));
    let shape = sides
        .iter()
        .fold(batch, |shape, &side| shape.message(1, &MessageWriter::default().number(1, side as i64)));
    let tensor = MessageWriter::default().number(1, 1).message(2, &shape);
    MessageWriter::default().text(1, name).message(2, &MessageWriter::default().message(1, &tensor))
}

#[cfg(test)]
mod tests {
    use retrievalguard::Embedder;

    use super::*;
    use crate::engine::{Engine, EngineOptions, OnnxEmbedder};
    use crate::graph::Model;
    use crate::graph::bound::BoundReading;

    #[test]
    fn every_size_and_grid_has_the_constant_one_and_computes_scaled_means() {
        let folder = tempfile::tempdir().unwrap();
        for (channels, size, grid) in [(3, 224, 32), (1, 224, 16), (3, 32, 32), (3, 12, 4), (1, 30, 1)] {
            let encoder = BlockMeans::new(channels, size, grid).unwrap();
            let path = encoder.write(&folder.path().join(format!("{channels}-{size}-{grid}"))).unwrap();
            let config = ModelConfig::for_model(&path).unwrap();
            assert_eq!(config, encoder.config());
            let model = Model::read(&path).unwrap();
            let BoundReading::Bounded(bound) = BoundReading::of(&model, &config).unwrap() else {
                panic!("no bound")
            };
            let constant = bound.constant;
            assert!(constant > 1.0 - 1e-6 && constant <= 1.0 + 1e-7, "{channels} {size} {grid}: {constant}");
            // White pictures have the norm that is printed; even f32 leaves most of a radius of 17 alone.
            let norm = ((channels * size * size) as f64).sqrt();
            assert!(bound.double_error.at(norm).unwrap().get() < 1e-9);
            assert!(bound.single_error.at(norm).unwrap().get() < 0.1);

            let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
            let embedder = OnnxEmbedder::open(&path, config, &options).unwrap();
            assert_eq!(embedder.dimension(), encoder.dimension());
            let picture: Vec<f32> =
                (0..channels * size * size).map(|place| (place * 37 % 101) as f32 / 100.0).collect();
            let mut embedding = vec![0.0; encoder.dimension()];
            embedder.embed(&picture, &mut embedding).unwrap();
            let block = size / grid;
            for (place, &found) in embedding.iter().enumerate() {
                let (channel, row, column) = (place / (grid * grid), place / grid % grid, place % grid);
                let mut sum = 0.0;
                for (y, x) in (0..block).flat_map(|y| (0..block).map(move |x| (y, x))) {
                    sum += f64::from(picture[(channel * size + row * block + y) * size + column * block + x]);
                }
                let wanted = sum / block as f64;
                assert!((f64::from(found) - wanted).abs() < 1e-4 * wanted.max(1.0), "{found} and {wanted}");
            }
        }
    }

    #[test]
    fn blocks_that_do_not_fit_are_refused_with_one_that_does() {
        let refused = BlockMeans::new(3, 224, 30);
        assert_eq!(refused, Err(BlockMeansError::Grid { grid: 30, size: 224, suggested: 28 }));
        assert_eq!(BlockMeans::new(3, 0, 1), Err(BlockMeansError::Size(0)));
        assert_eq!(BlockMeans::new(2, 224, 32), Err(BlockMeansError::Channels(2)));
        assert!(BlockMeans::new(3, 224, 0).is_err());
    }
}
