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

use std::fs;
use std::path::Path;

use retrievalguard::{Alpha, SampleCount, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::recall::RecallTarget;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::augment::Augmentation;
use crate::export::Preparation;
use crate::loss::{CertifiedRadiusLoss, DistanceWeights, TripletSampler};
use crate::network::{NetworkConfig, PictureSize};

mod check;
mod error;
mod parts;
mod preset;

pub use error::RecipeError;
pub use parts::{
    BatchPart, Curve, DistillationPart, EvaluationPart, LossKind, LossPart, NetworkPart, NoisePart,
    OptimiserPart, PicturesPart, SchedulePart,
};
pub use preset::Preset;

/// Noise of the smoothed recall where neither training nor the recipe has any.
const USUAL_SIGMA: f64 = 0.25;

/// Probability that a decision on a held-out picture is wrong.
const EVALUATION_ALPHA: f64 = 0.01;
/// Most noisy copies for such a decision.
const EVALUATION_CAP: u64 = 200;

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
    /// The loss that labels teach by.
    pub loss: LossPart,
    /// A teacher beside the labels, or instead of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distillation: Option<DistillationPart>,
    /// Adam.
    pub optimiser: OptimiserPart,
    /// How long, and how the steps shrink.
    pub schedule: SchedulePart,
    /// What is measured on the way.
    pub evaluation: EvaluationPart,
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
        let NetworkPart { architecture, dimension, channels, height, width, filters, head, .. } =
            self.network;
        let config = NetworkConfig::new(architecture, PictureSize { channels, height, width });
        let stages = self.network.stages.clone();
        NetworkConfig { dimension, width: filters.unwrap_or(config.width), stages, head, ..config }
    }

    /// How pictures are brought to the network's size after training.
    pub fn preparation(&self) -> Preparation {
        let PicturesPart { resize, interpolation, resampling, .. } = self.pictures;
        Preparation::shorter_side(resize, interpolation, resampling)
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
    pub(crate) fn augmentation(&self) -> Augmentation {
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

    /// Where certified recall is measured with noise, if anywhere.
    pub(crate) fn evaluation_target(&self) -> Option<RecallTarget> {
        let checked = "a recipe is checked when it is made";
        let radius = TargetRadius::new(self.evaluation.radius?).expect(checked);
        let (alpha, cap) = (Alpha::new(EVALUATION_ALPHA), SampleCount::new(EVALUATION_CAP));
        Some(RecallTarget { radius, alpha: alpha.expect("between 0 and 1"), cap: cap.expect("above 0") })
    }

    /// Learning rate of the backbone in an epoch counted from zero.
    ///
    /// Paper: Section 4.3, training hyper-parameters: a factor at each milestone.
    pub fn learning_rate(&self, epoch: u32) -> f64 {
        let passed = self.schedule.milestones.iter().filter(|&&milestone| milestone <= epoch).count();
        let passed = i32::try_from(passed).unwrap_or(i32::MAX);
        self.optimiser.learning_rate * self.schedule.factor.powi(passed)
    }

    /// Learning rate of the backbone for a batch of an epoch, both counted from zero.
    pub fn learning_rate_at(&self, epoch: u32, batch: u32, batches_per_epoch: u64) -> f64 {
        match self.schedule.curve {
            Curve::Steps => self.learning_rate(epoch),
            Curve::Cosine => {
                let done = f64::from(epoch) + f64::from(batch) / batches_per_epoch.max(1) as f64;
                let share = done / f64::from(self.schedule.epochs);
                0.5 * self.optimiser.learning_rate * (1.0 + (std::f64::consts::PI * share).cos())
            }
        }
    }

    /// The certified-radius loss with the recipe's numbers.
    pub fn certified_radius_loss(&self) -> CertifiedRadiusLoss {
        CertifiedRadiusLoss { rho: self.loss.rho, tau: self.loss.tau }
    }

    /// Whether labels have any part in it.
    pub fn uses_labels(&self) -> bool {
        self.loss.weight > 0.0
    }

    fn from_table(table: Table) -> Result<Self, RecipeError> {
        let recipe: Self = Value::Table(table)
            .try_into()
            .map_err(|error: toml::de::Error| RecipeError::Content { message: error.message().to_owned() })?;
        recipe.check()?;
        Ok(recipe)
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
    use crate::network::{Architecture, Statistics};

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
    fn a_cosine_falls_from_the_learning_rate_to_zero() {
        let recipe = Recipe::assemble(Preset::Lipschitz, None, &["schedule.epochs=4".to_owned()]).unwrap();
        let share = |epoch, batch| recipe.learning_rate_at(epoch, batch, 10) / 0.005;
        for (found, wanted) in [(share(0, 0), 1.0), (share(2, 0), 0.5), (share(1, 0), 0.853_553_390_6)] {
            assert!((found - wanted).abs() < 1e-9, "{found}, wanted {wanted}");
        }
        assert!(share(3, 9) < 0.01 && share(0, 1) < 1.0);
        let steps = Recipe::assemble(Preset::Paper, None, &[]).unwrap();
        assert_eq!(steps.learning_rate_at(30, 7, 10), steps.learning_rate(30));
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
            ("schedule.curve=cosine", "`schedule.milestones` is [6, 9]"),
            ("loss.kind=certified-radius", "`loss.kind` is certified-radius"),
            ("loss.weight=0", "`loss.weight` is 0"),
            ("loss.tau=0", "`loss.tau` is 0"),
            ("distillation.scale=2", "`distillation.scale` is 2"),
            ("optimiser.clip=-1", "`optimiser.clip` is -1"),
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
