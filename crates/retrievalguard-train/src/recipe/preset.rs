//! Recipes that come with the crate.

use std::fmt;
use std::str::FromStr;

use super::RecipeError;

/// A recipe that comes with the crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// The paper's: ResNet-50, 224 pixels, 100 epochs.
    Paper,
    /// For small machines: EfficientNet-Lite0, 112 pixels, 10 epochs.
    #[default]
    Small,
    /// One pass without noise: a Lipschitz encoder, 32 pixels, 12 epochs.
    Lipschitz,
    /// Noise distilled out of a pretrained encoder, no labels: EfficientNet-Lite0, 96 pixels, 4 epochs.
    Distillation,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 4] = [Self::Paper, Self::Small, Self::Lipschitz, Self::Distillation];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Small => "small",
            Self::Lipschitz => "lipschitz",
            Self::Distillation => "distillation",
        }
    }

    /// Its text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Paper => include_str!("../../presets/paper.toml"),
            Self::Small => include_str!("../../presets/small.toml"),
            Self::Lipschitz => include_str!("../../presets/lipschitz.toml"),
            Self::Distillation => include_str!("../../presets/distillation.toml"),
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = RecipeError;

    fn from_str(text: &str) -> Result<Self, RecipeError> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == text);
        found.ok_or_else(|| RecipeError::Preset { found: text.to_owned() })
    }
}
