//! Everything that decides how an encoder is trained, in one TOML file.
//!
//! A run begins with a preset, then a file may replace parts of it, then single values given as `key=value`. What is
//! left is written beside the results, complete, so that it can be run again.
//!
//! ```
//! use retrievalguard_train::recipe::{Preset, Recipe};
//!
//! let recipe = Recipe::assemble(Preset::Paper, None, &["noise.sigma=0.5".to_owned()])?;
//! assert_eq!((recipe.schedule.epochs, recipe.loss.beta), (100, 1.2));
//! assert_eq!(recipe.learning_rate(29), 1e-5);
//! assert_eq!(recipe.learning_rate(30), 1e-5 * 0.3);
//! # Ok::<(), retrievalguard_train::recipe::RecipeError>(())
//! ```

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs, io};

use retrievalguard::{Seed, Sigma};
use retrievalguard_encoder::resize::Interpolation;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::augment::Augmentation;
use crate::export::Preparation;
use crate::loss::{Average, DistanceWeights, Pairing, TripletSampler};
use crate::network::{Architecture, NetworkConfig, PictureSize, Statistics};

/// Noise of the smoothed recall where neither training nor the recipe has any.
const USUAL_SIGMA: f64 = 0.25;

/// A recipe that comes with the crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// The paper's: ResNet-50, 224 pixels, 100 epochs.
    Paper,
    /// For small machines: EfficientNet-Lite0, 112 pixels, 10 epochs.
    #[default]
    Small,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 2] = [Self::Paper, Self::Small];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Small => "small",
        }
    }

    /// Its text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Paper => include_str!("../presets/paper.toml"),
            Self::Small => include_str!("../presets/small.toml"),
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

/// Most bytes of pixels in one step; what the network makes of them takes a multiple of it.
const MOST_BATCH_BYTES: u64 = 4 << 30;

/// Why there is no recipe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// No preset has this name.
    #[error("preset is `{found}`, wanted paper or small")]
    Preset {
        /// The name given.
        found: String,
    },
    /// The file could not be read.
    #[error("recipe `{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The text is not TOML.
    #[error("recipe `{origin}` is not TOML")]
    Syntax {
        /// The file, or what stands for it.
        origin: String,
        /// Where it goes wrong.
        source: Box<toml::de::Error>,
    },
    /// A single value is not of the form `table.key=value`.
    #[error("`{found}` does not change a recipe, wanted table.key=value, such as schedule.epochs=20")]
    Assignment {
        /// The words given.
        found: String,
    },
    /// A key is unknown or a value has the wrong type.
    #[error("the recipe does not fit together: {message}")]
    Content {
        /// What TOML's reader says: it names the key.
        message: String,
    },
    /// A number is out of its range.
    #[error("`{key}` is {found}, wanted {wanted}")]
    Value {
        /// The key, with its table.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: &'static str,
    },
}

/// Everything that decides how an encoder is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Seed of initial weights, batches, views and noise.
    pub seed: u64,
    /// What is trained.
    pub network: NetworkPart,
    /// How pictures become inputs.
    pub pictures: PicturesPart,
    /// What one step sees.
    pub batch: BatchPart,
    /// Noise on the pictures; none for plain metric learning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoisePart>,
    /// The margin loss.
    pub loss: LossPart,
    /// Adam.
    pub optimiser: OptimiserPart,
    /// How long, and how the steps shrink.
    pub schedule: SchedulePart,
    /// What is measured on the way.
    pub evaluation: EvaluationPart,
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPart {
    /// The backbone.
    pub architecture: Architecture,
    /// Length `k` of an embedding.
    pub dimension: usize,
    /// 3 for colour, 1 for grey.
    pub channels: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Which statistics batch normalisation uses.
    pub batch_norm: Statistics,
    /// Channels of the small encoder's convolutions; other architectures have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<usize>,
}

/// How pictures become inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PicturesPart {
    /// Shorter side before the centre is cut out for evaluation.
    pub resize: usize,
    /// Filter of every resize.
    pub interpolation: Interpolation,
    /// Smallest and largest share of a picture's area that a training crop takes.
    pub crop_area: [f64; 2],
    /// Smallest and largest ratio of a training crop's width to its height.
    pub crop_ratio: [f64; 2],
    /// Whether half of the training views are mirrored.
    pub flip: bool,
}

/// What one step sees: `classes × pictures` views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchPart {
    /// Classes `P` in a batch.
    pub classes: usize,
    /// Pictures `K` of each.
    pub pictures: usize,
}

/// Noise on the pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoisePart {
    /// Standard deviation `σ`, in pixels scaled to `[0, 1]`; zero for none.
    pub sigma: f64,
}

/// The margin loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossPart {
    /// Initial boundary `β` between the classes' distances.
    pub beta: f64,
    /// Learning rate of `β`.
    pub beta_learning_rate: f64,
    /// Margin `γ` on both sides of the boundary.
    pub gamma: f64,
    /// What the sum over triplets is divided by.
    pub average: Average,
    /// Which positives an anchor meets.
    #[serde(default)]
    pub pairing: Pairing,
    /// Distances of negatives below this count as this.
    #[serde(default = "lower_cutoff")]
    pub lower_cutoff: f64,
    /// Negatives this far away or farther are not sampled; 2, which none is beyond, for no such limit.
    #[serde(default = "upper_cutoff")]
    pub upper_cutoff: f64,
}

fn lower_cutoff() -> f64 {
    DistanceWeights::default().lower_cutoff
}

fn upper_cutoff() -> f64 {
    DistanceWeights::default().upper_cutoff.unwrap_or(2.0)
}

/// Adam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimiserPart {
    /// Learning rate of the backbone at the start.
    pub learning_rate: f64,
    /// Learning rate of the head, as a multiple of the backbone's.
    pub head_factor: f64,
    /// Pulls weights to zero, added to the gradient.
    pub weight_decay: f64,
}

/// How long, and how the steps shrink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulePart {
    /// Times the training set is seen.
    pub epochs: u32,
    /// Epochs (counted from zero) from which on the learning rate is smaller.
    pub milestones: Vec<u32>,
    /// Factor on the learning rate at each.
    pub factor: f64,
}

/// What is measured on the way: Recall@1 on classes that are not trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationPart {
    /// Epochs from one evaluation to the next; the last epoch is always evaluated. Zero for never.
    pub every: u32,
    /// Share of the classes kept out of training for it, unless other pictures are given.
    pub held_out: f64,
    /// At most so many pictures.
    pub pictures: usize,
    /// Noisy copies averaged per picture for the smoothed recall.
    pub samples: u32,
    /// Noise of the smoothed recall; that of training, or 0.25 if there is none, by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
}

impl Recipe {
    /// The preset, changed by the file's tables, changed by `table.key=value`.
    pub fn assemble(
        preset: Preset,
        file: Option<&Path>,
        assignments: &[String],
    ) -> Result<Self, RecipeError> {
        let mut table = parse(preset.name(), preset.text())?;
        if let Some(path) = file {
            let text = fs::read_to_string(path)
                .map_err(|source| RecipeError::Read { path: path.to_owned(), source })?;
            merge(&mut table, parse(&path.display().to_string(), &text)?);
        }
        for assignment in assignments {
            merge(&mut table, parse_assignment(assignment)?);
        }
        Self::from_table(table)
    }

    /// Reads a complete recipe.
    pub fn from_toml(origin: &str, text: &str) -> Result<Self, RecipeError> {
        Self::from_table(parse(origin, text)?)
    }

    /// The complete recipe as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe holds numbers, words and lists only")
    }

    /// Seed of initial weights, batches, views and noise.
    pub fn seed(&self) -> Seed {
        Seed::new(self.seed)
    }

    /// What the network is built from.
    pub fn network_config(&self) -> NetworkConfig {
        let NetworkPart { architecture, dimension, channels, height, width, filters, .. } = self.network;
        let config = NetworkConfig::new(architecture, PictureSize { channels, height, width });
        NetworkConfig { dimension, width: filters.unwrap_or(config.width), ..config }
    }

    /// How pictures are brought to the network's size after training.
    pub fn preparation(&self) -> Preparation {
        Preparation::shorter_side(self.pictures.resize, self.pictures.interpolation)
    }

    /// How triplets are chosen.
    pub fn sampler(&self) -> TripletSampler {
        let LossPart { pairing, lower_cutoff, upper_cutoff, .. } = self.loss;
        TripletSampler {
            weights: DistanceWeights { lower_cutoff, upper_cutoff: Some(upper_cutoff) },
            pairing,
        }
    }

    /// How training views are chosen.
    pub fn augmentation(&self) -> Augmentation {
        let PicturesPart { crop_area, crop_ratio, flip, .. } = self.pictures;
        Augmentation { area: crop_area.into(), aspect: crop_ratio.into(), flip: if flip { 0.5 } else { 0.0 } }
    }

    /// Noise of the training views; none for plain metric learning.
    pub fn sigma(&self) -> Option<Sigma> {
        let sigma = self.noise.as_ref().map_or(0.0, |noise| noise.sigma);
        Sigma::new(sigma).ok()
    }

    /// Noise of the smoothed recall: what the recipe says, else that of training.
    pub fn evaluation_sigma(&self) -> Sigma {
        let checked = |sigma| Sigma::new(sigma).expect("a recipe is checked when it is made");
        let training = || self.sigma().unwrap_or_else(|| checked(USUAL_SIGMA));
        self.evaluation.sigma.map_or_else(training, checked)
    }

    /// Learning rate of the backbone in an epoch counted from zero.
    ///
    /// Paper: Section 4.3, training hyper-parameters: a factor at each milestone.
    pub fn learning_rate(&self, epoch: u32) -> f64 {
        let passed = self.schedule.milestones.iter().filter(|&&milestone| milestone <= epoch).count();
        let passed = i32::try_from(passed).unwrap_or(i32::MAX);
        self.optimiser.learning_rate * self.schedule.factor.powi(passed)
    }

    fn from_table(table: Table) -> Result<Self, RecipeError> {
        let recipe: Self = Value::Table(table)
            .try_into()
            .map_err(|error: toml::de::Error| RecipeError::Content { message: error.message().to_owned() })?;
        recipe.check()?;
        Ok(recipe)
    }

    fn check(&self) -> Result<(), RecipeError> {
        let wanted = |right: bool, key, found: String, wanted| {
            if right { Ok(()) } else { Err(RecipeError::Value { key, found, wanted }) }
        };
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let list = |values: &[f64; 2]| format!("{values:?}");
        let range =
            |values: &[f64; 2], most: f64| positive(values[0]) && values[0] <= values[1] && values[1] <= most;
        let network = &self.network;
        for (key, size) in [
            ("network.height", network.height),
            ("network.width", network.width),
            ("pictures.resize", self.pictures.resize),
        ] {
            wanted((1..=4096).contains(&size), key, size.to_string(), "a number from 1 to 4096")?;
        }
        wanted(
            (2..=4096).contains(&network.dimension),
            "network.dimension",
            network.dimension.to_string(),
            "a number from 2 to 4096",
        )?;
        wanted(
            self.evaluation.pictures >= 2,
            "evaluation.pictures",
            self.evaluation.pictures.to_string(),
            "at least 2",
        )?;
        wanted(
            matches!(network.channels, 1 | 3),
            "network.channels",
            network.channels.to_string(),
            "1 for grey or 3 for colour",
        )?;
        wanted(
            self.pictures.resize >= network.height.max(network.width),
            "pictures.resize",
            self.pictures.resize.to_string(),
            "at least the network's height and width",
        )?;
        wanted(
            range(&self.pictures.crop_area, 1.0),
            "pictures.crop_area",
            list(&self.pictures.crop_area),
            "two rising shares up to 1",
        )?;
        wanted(
            range(&self.pictures.crop_ratio, 100.0),
            "pictures.crop_ratio",
            list(&self.pictures.crop_ratio),
            "two rising ratios above 0",
        )?;
        wanted(
            (2..=10_000).contains(&self.batch.classes),
            "batch.classes",
            self.batch.classes.to_string(),
            "at least 2, for there to be negatives",
        )?;
        wanted(
            (2..=10_000).contains(&self.batch.pictures),
            "batch.pictures",
            self.batch.pictures.to_string(),
            "at least 2, for there to be positives",
        )?;
        let [classes, pictures] = [self.batch.classes, self.batch.pictures];
        let values = [classes, pictures, network.channels, network.height, network.width];
        let bytes = values.iter().fold(4_u64, |bytes, &count| bytes.saturating_mul(count as u64));
        wanted(
            bytes <= MOST_BATCH_BYTES,
            "batch.classes and batch.pictures",
            format!("{classes} and {pictures}, {bytes} bytes of pixels in a step"),
            "at most 4294967296 bytes",
        )?;
        if let Some(noise) = &self.noise {
            let right = noise.sigma == 0.0 || Sigma::new(noise.sigma).is_ok();
            wanted(right, "noise.sigma", noise.sigma.to_string(), "0, or a number from 0.0001 to 2")?;
        }
        for (key, value) in [
            ("loss.beta_learning_rate", self.loss.beta_learning_rate),
            ("loss.gamma", self.loss.gamma),
            ("optimiser.learning_rate", self.optimiser.learning_rate),
            ("optimiser.head_factor", self.optimiser.head_factor),
            ("schedule.factor", self.schedule.factor),
            ("loss.beta", self.loss.beta),
        ] {
            wanted(positive(value), key, value.to_string(), "a finite number above 0")?;
        }
        let LossPart { lower_cutoff, upper_cutoff, .. } = self.loss;
        wanted(
            positive(lower_cutoff) && lower_cutoff < upper_cutoff && upper_cutoff <= 2.0,
            "loss.lower_cutoff and loss.upper_cutoff",
            format!("{lower_cutoff} and {upper_cutoff}"),
            "two rising distances up to 2",
        )?;
        let decay = self.optimiser.weight_decay;
        let decay_fits = decay.is_finite() && decay >= 0.0;
        wanted(decay_fits, "optimiser.weight_decay", decay.to_string(), "a finite number from 0 up")?;
        wanted(self.schedule.epochs > 0, "schedule.epochs", self.schedule.epochs.to_string(), "at least 1")?;
        let held_out = self.evaluation.held_out;
        wanted(
            (0.0..1.0).contains(&held_out),
            "evaluation.held_out",
            held_out.to_string(),
            "a share from 0 up to but not including 1",
        )?;
        if let Some(sigma) = self.evaluation.sigma {
            let right = Sigma::new(sigma).is_ok();
            wanted(right, "evaluation.sigma", sigma.to_string(), "a number from 0.0001 to 2")?;
        }
        wanted(
            self.evaluation.samples > 0,
            "evaluation.samples",
            self.evaluation.samples.to_string(),
            "at least 1",
        )
    }
}

fn parse(origin: &str, text: &str) -> Result<Table, RecipeError> {
    text.parse().map_err(|source| RecipeError::Syntax { origin: origin.to_owned(), source: Box::new(source) })
}

/// `schedule.epochs=20` as a table; a value that is not TOML by itself is a word.
fn parse_assignment(assignment: &str) -> Result<Table, RecipeError> {
    let wrong = || RecipeError::Assignment { found: assignment.to_owned() };
    let (key, value) = assignment.split_once('=').ok_or_else(wrong)?;
    let (key, value) = (key.trim(), value.trim());
    let bare = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !key.split('.').all(bare) {
        return Err(wrong());
    }
    let text = |value: &str| format!("{key} = {value}");
    text(value)
        .parse()
        .or_else(|_| text(&Value::String(value.to_owned()).to_string()).parse())
        .map_err(|_: toml::de::Error| wrong())
}

/// Values of `changes` replace those of `table`; tables are entered, lists replaced whole.
fn merge(table: &mut Table, changes: Table) {
    for (key, change) in changes {
        match (table.get_mut(&key), change) {
            (Some(Value::Table(inner)), Value::Table(change)) => merge(inner, change),
            (_, change) => {
                table.insert(key, change);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_complete_and_survives_being_written() {
        for preset in Preset::ALL {
            let recipe = Recipe::assemble(preset, None, &[]).unwrap();
            assert_eq!(Recipe::from_toml("again", &recipe.to_toml()).unwrap(), recipe, "{preset}");
            assert_eq!(preset.name().parse::<Preset>().unwrap(), preset);
        }
    }

    #[test]
    fn the_paper_preset_has_the_papers_numbers() {
        let recipe = Recipe::assemble(Preset::Paper, None, &[]).unwrap();
        assert_eq!(recipe.network.architecture, Architecture::Resnet50);
        assert_eq!((recipe.network.dimension, recipe.network.height, recipe.network.width), (128, 224, 224));
        assert_eq!(recipe.network.batch_norm, Statistics::Frozen);
        let loss = &recipe.loss;
        assert_eq!((loss.beta, loss.beta_learning_rate, loss.gamma), (1.2, 5e-4, 0.2));
        assert_eq!(recipe.sigma(), None);
        let rates = [0, 29, 30, 54, 55, 74, 75, 99].map(|epoch| recipe.learning_rate(epoch) / 1e-5);
        let wanted = [1.0, 1.0, 0.3, 0.3, 0.09, 0.09, 0.027, 0.027];
        for (found, wanted) in rates.into_iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-12, "{found} for {wanted}");
        }
    }

    #[test]
    fn a_later_word_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        fs::write(&path, "[schedule]\nepochs = 7\nmilestones = [3]\n[noise]\nsigma = 0.5\n").unwrap();
        let set = ["noise.sigma=0.25".to_owned(), "network.architecture=resnet-18".to_owned()];
        let recipe = Recipe::assemble(Preset::Small, Some(&path), &set).unwrap();
        assert_eq!((recipe.schedule.epochs, recipe.schedule.milestones.as_slice()), (7, &[3][..]));
        assert_eq!(recipe.sigma(), Some(Sigma::new(0.25).unwrap()));
        assert_eq!(recipe.network.architecture, Architecture::Resnet18);
        assert_eq!(recipe.batch.classes, 8, "what nobody changed stays");
    }

    #[test]
    fn the_evaluation_has_the_noise_that_the_recipe_says_or_that_of_training() {
        for (assignments, wanted) in [
            (&["noise.sigma=0.5", "evaluation.sigma=0.1"][..], 0.1),
            (&["noise.sigma=0.5"], 0.5),
            (&["evaluation.sigma=0.1"], 0.1),
            (&["noise.sigma=0", "evaluation.sigma=0.1"], 0.1),
            (&[], USUAL_SIGMA),
        ] {
            let assignments: Vec<String> = assignments.iter().map(|&words| words.to_owned()).collect();
            for preset in Preset::ALL {
                let recipe = Recipe::assemble(preset, None, &assignments).unwrap();
                assert_eq!(recipe.evaluation_sigma().get(), wanted, "{preset} with {assignments:?}");
                let again = Recipe::from_toml("again", &recipe.to_toml()).unwrap();
                assert_eq!(again.evaluation_sigma().get(), wanted, "{preset} with {assignments:?}, written");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (assignment, part) in [
            ("schedule.epochs=0", "`schedule.epochs` is 0"),
            ("schedule.epoch=3", "epoch"),
            ("noise.sigma=-1", "`noise.sigma` is -1"),
            ("noise.sigma=nan", "`noise.sigma` is NaN"),
            ("noise.sigma=25", "`noise.sigma` is 25, wanted 0, or a number from 0.0001 to 2"),
            ("evaluation.sigma=0", "`evaluation.sigma` is 0"),
            ("batch.pictures=1", "positives"),
            ("loss.lower_cutoff=1.5", "1.5 and 1.4"),
            ("network.dimension=1", "`network.dimension` is 1"),
            ("evaluation.pictures=0", "`evaluation.pictures` is 0"),
            ("network.channels=2", "`network.channels` is 2"),
            ("pictures.resize=8", "`pictures.resize` is 8"),
            ("pictures.crop_area=[0.5, 0.1]", "`pictures.crop_area` is [0.5, 0.1]"),
            ("evaluation.held_out=1", "evaluation.held_out"),
            ("optimiser.learning_rate=inf", "`optimiser.learning_rate` is inf"),
            ("network.architecture=vgg", "vgg"),
            ("epochs", "`epochs` does not change a recipe"),
            ("a b=1", "does not change a recipe"),
        ] {
            let error = Recipe::assemble(Preset::Small, None, &[assignment.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(part), "{assignment}: {error}");
        }
    }
}
