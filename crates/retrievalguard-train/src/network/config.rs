//! What a network is built from: architecture, picture, dimension, normalisation of the pixels.

use std::fmt;
use std::str::FromStr;

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::layer_graph::LayerGraph;
use super::lipschitz::{self, LipschitzStage};
use super::{efficientnet, resnet, small};

/// The backbone: everything before the linear head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Architecture {
    /// torchvision's `resnet18`, 512 features.
    #[serde(rename = "resnet-18")]
    Resnet18,
    /// torchvision's `resnet50`, 2048 features; the paper's backbone.
    #[serde(rename = "resnet-50")]
    Resnet50,
    /// EfficientNet-Lite0, 1280 features.
    #[serde(rename = "efficientnet-lite0")]
    EfficientnetLite0,
    /// EfficientNet-Lite1, 1280 features; built for 240 pixels.
    #[serde(rename = "efficientnet-lite1")]
    EfficientnetLite1,
    /// EfficientNet-Lite2, 1280 features; built for 260 pixels.
    #[serde(rename = "efficientnet-lite2")]
    EfficientnetLite2,
    /// Residual layers and an orthonormal head: embeddings move no faster than pictures, and have no fixed length.
    #[serde(rename = "lipschitz")]
    Lipschitz,
    /// Four blocks of convolution, batch normalisation, rectifier and pooling.
    #[serde(rename = "small")]
    Small,
}

impl Architecture {
    /// Every architecture.
    pub const ALL: [Self; 7] = [
        Self::Resnet18,
        Self::Resnet50,
        Self::EfficientnetLite0,
        Self::EfficientnetLite1,
        Self::EfficientnetLite2,
        Self::Lipschitz,
        Self::Small,
    ];

    /// The name under which it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resnet18 => "resnet-18",
            Self::Resnet50 => "resnet-50",
            Self::EfficientnetLite0 => "efficientnet-lite0",
            Self::EfficientnetLite1 => "efficientnet-lite1",
            Self::EfficientnetLite2 => "efficientnet-lite2",
            Self::Lipschitz => "lipschitz",
            Self::Small => "small",
        }
    }

    /// Whether it gives rows of length 1; the others move no faster than the picture instead.
    pub fn normalises(self) -> bool {
        self != Self::Lipschitz
    }

    /// Shortest side of a picture that leaves something to pool.
    fn shortest_side(self) -> usize {
        match self {
            Self::Resnet18
            | Self::Resnet50
            | Self::EfficientnetLite0
            | Self::EfficientnetLite1
            | Self::EfficientnetLite2 => 32,
            Self::Small => 16,
            Self::Lipschitz => 4,
        }
    }

    /// What its published weights expect: mean and standard deviation of red, green and blue.
    fn normalisation(self) -> [[f64; 3]; 2] {
        match self {
            Self::Resnet18 | Self::Resnet50 => [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]],
            // (255 · pixel − 127) / 128
            Self::EfficientnetLite0 | Self::EfficientnetLite1 | Self::EfficientnetLite2 => {
                [[127.0 / 255.0; 3], [128.0 / 255.0; 3]]
            }
            Self::Small => [[0.5; 3], [0.5; 3]],
            // A smaller deviation would be a larger Lipschitz constant, and a mean only rounding.
            Self::Lipschitz => [[0.0; 3], [1.0; 3]],
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Architecture {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|architecture| architecture.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(|architecture| format!("`{architecture}`"));
            ConfigError { field: "architecture", found: format!("`{text}`"), wanted: names.join(", ") }
        })
    }
}

/// A network that cannot be built: which field, what was found, what was wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {found}, wanted {wanted}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// What was found.
    pub found: String,
    /// What would have been accepted.
    pub wanted: String,
}

/// Size of the pictures that a network takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PictureSize {
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
}

/// What is done to pixels in `[0, 1]` before the first layer: `(pixel − mean) / std`, channel by channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// Subtracted, one number per channel.
    pub mean: Vec<f64>,
    /// Divides what is left, one number per channel.
    pub std: Vec<f64>,
}

/// What comes after the features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadKind {
    /// A matrix; its rows are orthonormal where the architecture keeps a Lipschitz constant.
    #[default]
    Linear,
    /// Nothing: the features are the embedding.
    None,
}

impl HeadKind {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Everything that determines a network's shape.
///
/// ```
/// use retrievalguard_train::network::{Architecture, NetworkConfig, PictureSize};
///
/// let picture = PictureSize { channels: 3, height: 112, width: 112 };
/// let config = NetworkConfig::new(Architecture::EfficientnetLite0, picture);
/// assert_eq!((config.dimension, config.features()?), (128, 1280));
/// # Ok::<(), retrievalguard_train::network::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// The backbone.
    pub architecture: Architecture,
    /// Dimension `k` of the embeddings.
    #[serde(default = "default_dimension")]
    pub dimension: usize,
    /// Channels of every block of [`Architecture::Small`]; the others take no notice of it.
    #[serde(default = "default_width")]
    pub width: usize,
    /// Stages of [`Architecture::Lipschitz`]; what suits the pictures' size unless given. The others take none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<LipschitzStage>,
    /// What comes after the features.
    #[serde(default, skip_serializing_if = "HeadKind::is_default")]
    pub head: HeadKind,
    /// Size of the pictures.
    pub picture: PictureSize,
    /// Normalisation of the pixels; what the architecture's published weights expect unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
}

fn default_dimension() -> usize {
    128
}

fn default_width() -> usize {
    64
}

impl NetworkConfig {
    /// The architecture for pictures of this size, everything else as usual.
    pub fn new(architecture: Architecture, picture: PictureSize) -> Self {
        let (dimension, width) = (default_dimension(), default_width());
        let (stages, head) = (Vec::new(), HeadKind::default());
        Self { architecture, dimension, width, stages, head, picture, normalisation: None }
    }

    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), ConfigError> {
        let PictureSize { channels, height, width } = self.picture;
        if ![1, 3].contains(&channels) {
            return fault("picture.channels", channels, "1 or 3");
        }
        let shortest = self.architecture.shortest_side();
        for (field, side) in [("picture.height", height), ("picture.width", width)] {
            if !(shortest..=4096).contains(&side) {
                return fault(field, side, format!("a number from {shortest} to 4096"));
            }
        }
        for (field, count) in [("dimension", self.dimension), ("width", self.width)] {
            if !(1..=65_536).contains(&count) {
                return fault(field, count, "a number from 1 to 65536");
            }
        }
        if self.architecture != Architecture::Lipschitz && !self.stages.is_empty() {
            return fault("stages", format!("a list of {}", self.stages.len()), "none but for lipschitz");
        }
        let Normalisation { mean, std } = self.normalisation();
        for (field, numbers) in [("normalisation.mean", &mean), ("normalisation.std", &std)] {
            if numbers.len() != channels {
                return fault(field, format!("a list of {}", numbers.len()), format!("{channels} numbers"));
            }
        }
        if let Some(number) = mean.iter().find(|number| !number.is_finite()) {
            return fault("normalisation.mean", number, "finite numbers");
        }
        if let Some(number) = std.iter().find(|number| !(number.is_finite() && (**number as f32) > 0.0)) {
            return fault("normalisation.std", number, "finite numbers above 0");
        }
        Ok(())
    }

    /// The normalisation that is asked for, or the architecture's; for grey pictures the mean over its channels.
    pub fn normalisation(&self) -> Normalisation {
        self.normalisation.clone().unwrap_or_else(|| {
            let usual = self.architecture.normalisation();
            let [mean, std] = match self.picture.channels {
                1 => usual.map(|numbers| vec![numbers.iter().sum::<f64>() / 3.0]),
                _ => usual.map(|numbers| numbers.to_vec()),
            };
            Normalisation { mean, std }
        })
    }

    /// Normalises pictures with pixels in `[0, 1]`, noise already added, as the network expects them.
    pub fn normalise(&self, pictures: Tensor<4>) -> Tensor<4> {
        let Normalisation { mean, std } = self.normalisation();
        let device = pictures.device();
        let row = |numbers: Vec<f64>| {
            let channels = numbers.len();
            let numbers: Vec<f32> = numbers.into_iter().map(|number| number as f32).collect();
            Tensor::from_data(TensorData::new(numbers, [1, channels, 1, 1]), &device)
        };
        (pictures - row(mean)) / row(std)
    }

    /// Number of features between the backbone and the head.
    pub fn features(&self) -> Result<usize, ConfigError> {
        Ok(self.layer_graph()?.features())
    }

    /// The layers.
    pub(crate) fn layer_graph(&self) -> Result<LayerGraph, ConfigError> {
        self.check()?;
        let PictureSize { channels, height, width } = self.picture;
        let picture = [channels, height, width];
        let graph = match self.architecture {
            Architecture::Resnet18 => resnet::layers(picture, resnet::Block::Basic, [2, 2, 2, 2]),
            Architecture::Resnet50 => resnet::layers(picture, resnet::Block::Bottleneck, [3, 4, 6, 3]),
            Architecture::EfficientnetLite0 => efficientnet::layers(picture, efficientnet::Scale::LITE0),
            Architecture::EfficientnetLite1 => efficientnet::layers(picture, efficientnet::Scale::LITE1),
            Architecture::EfficientnetLite2 => efficientnet::layers(picture, efficientnet::Scale::LITE2),
            Architecture::Lipschitz => lipschitz::layers(picture, &self.stages())?,
            Architecture::Small => small::layers(picture, self.width),
        };
        let features = graph.features();
        match self.head {
            HeadKind::None if self.dimension != features => fault(
                "dimension",
                self.dimension,
                format!("{features}, the number of features, without a head"),
            )?,
            // More orthonormal rows than columns there are none.
            HeadKind::Linear if !self.architecture.normalises() && self.dimension > features => {
                fault("dimension", self.dimension, format!("at most {features}, the number of features"))?;
            }
            HeadKind::None | HeadKind::Linear => {}
        }
        Ok(graph)
    }

    /// The stages of a Lipschitz encoder: those that are asked for, or what suits the pictures' size.
    pub fn stages(&self) -> Vec<LipschitzStage> {
        if self.stages.is_empty() { lipschitz::usual(self.picture) } else { self.stages.clone() }
    }
}

pub(super) fn fault(
    field: &'static str,
    found: impl ToString,
    wanted: impl Into<String>,
) -> Result<(), ConfigError> {
    Err(ConfigError { field, found: found.to_string(), wanted: wanted.into() })
}
