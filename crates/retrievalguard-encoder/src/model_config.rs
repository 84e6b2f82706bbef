//! The model config: how a picture file becomes the numbers that an encoder was trained on.
//!
//! An ONNX file says how large its input is, but not how pictures are brought to that size, in which order the
//! channels are or what is subtracted from them; a wrong guess costs recall without any error. `encoder.toml` beside
//! the model says it, and a `config.json` of timm is understood too. Noise is added to pixels in `[0, 1]`, before mean
//! and standard deviation.
//!
//! ```
//! use retrievalguard_encoder::model_config::{ModelConfig, Crop, Resize};
//! use retrievalguard_encoder::resize::{Interpolation, PassOrder, Resampling};
//!
//! let config = ModelConfig::from_toml(
//!     r#"
//!     [input]
//!     channels = 3
//!     height = 224
//!     width = 224
//!     mean = [0.485, 0.456, 0.406]
//!     std = [0.229, 0.224, 0.225]
//!
//!     [resize]
//!     rule = "shorter-side"
//!     size = 256
//!     interpolation = "bilinear"
//!
//!     [crop]
//!     rule = "centre"
//!
//!     [output]
//!     normalise = true
//!     "#,
//! )?;
//! let resize = Resize::ShorterSide {
//!     size: 256,
//!     interpolation: Interpolation::Bilinear,
//!     order: PassOrder::Cheaper,
//!     resampling: Resampling::EightBit,
//! };
//! assert_eq!(config.resize, resize);
//! assert_eq!(config.crop, Crop::Centre);
//! assert_eq!(config.norm_bound().get(), 1.0);
//! assert_eq!(ModelConfig::from_toml(&config.to_toml())?, config);
//! # Ok::<(), retrievalguard_encoder::model_config::ModelConfigFault>(())
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::NormBound;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::picture::RgbPicture;
use crate::resize::{Interpolation, PassOrder, Preparation, Resampling, Size};
use crate::table::FilePixels;

mod timm;

/// Name of the model config file that is looked for first.
const FILE_NAME: &str = "encoder.toml";

/// What an encoder wants from a picture and promises about its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The tensor that the encoder takes.
    pub input: Input,
    /// How a picture is scaled.
    pub resize: Resize,
    /// How the scaled picture is cut to the input's size.
    pub crop: Crop,
    /// The tensor that the encoder gives.
    pub output: Output,
}

/// The tensor that an encoder takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Name of the input in the ONNX graph; its only input when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of channels: 1 (grey) or 3 (colour).
    pub channels: usize,
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Order of the channels of a colour picture.
    #[serde(default)]
    pub channel_order: ChannelOrder,
    /// Order of the axes.
    #[serde(default)]
    pub layout: Layout,
    /// Subtracted from pixels in `[0, 1]`, one number per channel in the encoder's order.
    pub mean: Vec<f64>,
    /// Divides what is left, one number per channel in the encoder's order.
    pub std: Vec<f64>,
}

/// Order of the channels of a colour picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelOrder {
    /// Red, green, blue: torchvision and timm.
    #[default]
    Rgb,
    /// Blue, green, red: OpenCV and Caffe.
    Bgr,
}

/// Order of the axes of the input tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Batch, channel, row, column: PyTorch.
    #[default]
    Nchw,
    /// Batch, row, column, channel: TensorFlow.
    Nhwc,
}

/// How a picture is scaled; the filters are Pillow's, which average over the source when they shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Resize {
    /// The shorter side becomes `size`, the other keeps the proportions: torchvision's `Resize(size)`.
    ShorterSide {
        /// Length of the shorter side afterwards.
        size: usize,
        /// Filter.
        interpolation: Interpolation,
        /// Which axis is resampled first.
        #[serde(default, skip_serializing_if = "is_default")]
        order: PassOrder,
        /// In which numbers.
        #[serde(default, skip_serializing_if = "is_default")]
        resampling: Resampling,
    },
    /// Both sides are given, whatever the proportions: torchvision's `Resize((height, width))`.
    Exact {
        /// Height afterwards.
        height: usize,
        /// Width afterwards.
        width: usize,
        /// Filter.
        interpolation: Interpolation,
        /// Which axis is resampled first.
        #[serde(default, skip_serializing_if = "is_default")]
        order: PassOrder,
        /// In which numbers.
        #[serde(default, skip_serializing_if = "is_default")]
        resampling: Resampling,
    },
    /// Pictures already have the right size.
    None {},
}

/// How the scaled picture is cut to the input's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Crop {
    /// The middle, as torchvision's `CenterCrop` rounds it.
    Centre,
    /// Nothing is cut off.
    None,
}

/// The tensor that an encoder gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Name of the output in the ONNX graph; its first output when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the tool scales every embedding to length 1.
    pub normalise: bool,
    /// Norm bound `F`; 1 when the tool normalises, otherwise what the network itself guarantees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_bound: Option<NormBound>,
}

/// Why a model has no usable config; every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelConfigError {
    /// Nothing beside the model describes it.
    #[error("model `{model}` has no model config: looked for {}", list(looked_for))]
    Missing {
        /// The model.
        model: PathBuf,
        /// Every file that would have been read.
        looked_for: Vec<PathBuf>,
    },
    /// Two files beside the model describe it.
    #[error("model `{model}` has two model configs, wanted one: {}", list(found))]
    Ambiguous {
        /// The model.
        model: PathBuf,
        /// The files.
        found: Vec<PathBuf>,
    },
    /// The file cannot be read.
    #[error("model config `{path}` cannot be read")]
    Read {
        /// The model config file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file can be read but makes no sense.
    #[error("model config `{path}` is not usable")]
    Content {
        /// The model config file.
        path: PathBuf,
        /// What is wrong with it.
        source: ModelConfigFault,
    },
}

/// What is wrong with the text of a model config.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelConfigFault {
    /// Not TOML, an unknown key, a key that is missing or a value of the wrong kind.
    #[error("line {line}: {message}")]
    Toml {
        /// Line, counted from 1.
        line: usize,
        /// What the parser said; it names the key.
        message: String,
    },
    /// Not JSON.
    #[error("it is not JSON")]
    Json(#[from] serde_json::Error),
    /// JSON without timm's fields.
    #[error("it is not a timm configuration: found no `{missing}`")]
    NotTimm {
        /// The key that is missing.
        missing: &'static str,
    },
    /// A field has a value that is not supported.
    #[error("`{field}` is {found}, wanted {wanted}")]
    Value {
        /// The field.
        field: &'static str,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: String,
    },
}

/// Most values of a picture as the encoder takes it: 4,096 × 4,096 in colour, and some.
const MOST_VALUES: usize = 1 << 26;

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ")
}

impl ModelConfig {
    /// Reads the config of a model: `encoder.toml` or `<model's stem>.toml`, else timm's `config.json`, all in the
    /// model's folder.
    pub fn for_model(model: &Path) -> Result<Self, ModelConfigError> {
        Self::read(&Self::find(model)?)
    }

    /// Finds the file that [`for_model`](Self::for_model) reads.
    pub fn find(model: &Path) -> Result<PathBuf, ModelConfigError> {
        let toml = [model.with_file_name(FILE_NAME), model.with_extension("toml")];
        let json = model.with_file_name("config.json");
        let mut found: Vec<PathBuf> = toml.iter().filter(|path| path.is_file()).cloned().collect();
        found.dedup();
        match <[PathBuf; 1]>::try_from(found) {
            Ok([path]) => Ok(path),
            Err(found) if found.is_empty() && json.is_file() => Ok(json),
            Err(found) if found.is_empty() => {
                let looked_for = toml.into_iter().chain([json]).collect();
                Err(ModelConfigError::Missing { model: model.to_owned(), looked_for })
            }
            Err(found) => Err(ModelConfigError::Ambiguous { model: model.to_owned(), found }),
        }
    }

    /// Reads one model config file; timm's if its name ends in `.json`.
    pub fn read(path: &Path) -> Result<Self, ModelConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ModelConfigError::Read { path: path.to_owned(), source })?;
        let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let config = if json { Self::from_timm(&text) } else { Self::from_toml(&text) };
        config.map_err(|source| ModelConfigError::Content { path: path.to_owned(), source })
    }

    /// Reads the text of an `encoder.toml`.
    pub fn from_toml(text: &str) -> Result<Self, ModelConfigFault> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            ModelConfigFault::Toml {
                line: before.matches('\n').count() + 1,
                message: error.message().to_owned(),
            }
        })?;
        config.check()?;
        Ok(config)
    }

    /// Reads the text of a timm `config.json`; what timm leaves open takes timm's default.
    ///
    /// timm says nothing about the embedding, so the tool normalises it (`F = 1`).
    pub fn from_timm(text: &str) -> Result<Self, ModelConfigFault> {
        let config = timm::read(text)?;
        config.check()?;
        Ok(config)
    }

    /// The text of an `encoder.toml` that reads back as this model config.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("strings, numbers and tables are all that a model config holds")
    }

    /// Everything that the model config says, as JSON in a fixed order: equal texts are equal configs.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a model config has no map with keys other than strings")
    }

    /// SHA-256, in hexadecimal, of everything that the model config says.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"retrievalguard contract 1\n");
        hash.update(self.to_json());
        hexadecimal(&hash.finalize())
    }

    /// Norm bound `F` of the embeddings as the tool hands them on.
    pub fn norm_bound(&self) -> NormBound {
        self.output.norm_bound.unwrap_or(NormBound::UNIT)
    }

    /// What is done to a picture before noise is added.
    pub fn preparation(&self) -> Preparation {
        let (resize, interpolation, order, resampling) = match self.resize {
            Resize::ShorterSide { size, interpolation, order, resampling } => {
                (crate::resize::Resize::Shorter(size), interpolation, order, resampling)
            }
            Resize::Exact { height, width, interpolation, order, resampling } => {
                (crate::resize::Resize::Exact { height, width }, interpolation, order, resampling)
            }
            Resize::None {} => (
                crate::resize::Resize::Keep,
                Interpolation::Bilinear,
                PassOrder::default(),
                Resampling::default(),
            ),
        };
        let size = Size { height: self.input.height, width: self.input.width };
        let crop = match self.crop {
            Crop::Centre => Some(size),
            Crop::None => None,
        };
        Preparation { resize, interpolation, crop, order, resampling }
    }

    /// How far the encoder's input moves when pixels of such a picture change; see [`Preparation::file_pixels`].
    pub fn file_pixels(&self, picture: &RgbPicture) -> Option<FilePixels> {
        self.preparation().file_pixels(picture, self.input.channels)
    }

    /// Shape of one picture as the tool holds it: channels, height, width, whatever the encoder's layout.
    pub fn picture_shape(&self) -> [usize; 3] {
        [self.input.channels, self.input.height, self.input.width]
    }

    /// Checks what the types cannot say: sizes that fit each other, numbers that can be divided by, a bound.
    pub fn check(&self) -> Result<(), ModelConfigFault> {
        let Input { channels, height, width, ref mean, ref std, .. } = self.input;
        if ![1, 3].contains(&channels) {
            return fault("input.channels", channels, "1 or 3");
        }
        for (field, side) in [("input.height", height), ("input.width", width)] {
            if !(1..=65_536).contains(&side) {
                return fault(field, side, "a number from 1 to 65536");
            }
        }
        if channels * height * width > MOST_VALUES {
            let wanted = format!("at most {MOST_VALUES} values in a picture");
            return fault("input", format!("{channels} × {height} × {width}"), wanted);
        }
        for (field, numbers) in [("input.mean", mean), ("input.std", std)] {
            if numbers.len() != channels {
                let wanted = format!("{channels}, one per channel");
                return fault(field, format!("a list of {}", numbers.len()), wanted);
            }
        }
        if let Some(number) = mean.iter().find(|number| !number.is_finite()) {
            return fault("input.mean", number, "finite numbers");
        }
        if let Some(number) = std.iter().find(|number| !(number.is_finite() && (**number as f32) > 0.0)) {
            return fault("input.std", number, "finite numbers above 0");
        }
        let crops = self.crop == Crop::Centre;
        match self.resize {
            Resize::ShorterSide { size, .. } => {
                if size < height.max(width) {
                    let wanted = format!("at least the input's {height} × {width}, which is cut out of it");
                    return fault("resize.size", size, wanted);
                }
                if !crops {
                    return fault("crop.rule", "`none`", "`centre` after `shorter-side`");
                }
            }
            Resize::Exact { height: scaled_height, width: scaled_width, .. } => {
                let fits = (scaled_height, scaled_width) == (height, width);
                let covers = scaled_height >= height && scaled_width >= width;
                if !(fits || crops && covers) {
                    let found = format!("{scaled_height} × {scaled_width}");
                    let wanted = format!("{height} × {width}, or more and a crop");
                    return fault("resize", found, wanted);
                }
            }
            Resize::None {} => {}
        }
        match self.output.norm_bound {
            Some(bound) if self.output.normalise && bound != NormBound::UNIT => {
                fault("output.norm_bound", bound.get(), "1, since `output.normalise` is true")
            }
            None if !self.output.normalise => {
                fault("output.norm_bound", "missing", "a number, since `output.normalise` is false")
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn fault(
    field: &'static str,
    found: impl ToString,
    wanted: impl Into<String>,
) -> Result<(), ModelConfigFault> {
    Err(ModelConfigFault::Value { field, found: found.to_string(), wanted: wanted.into() })
}

/// Lower-case hexadecimal digits of a hash.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
