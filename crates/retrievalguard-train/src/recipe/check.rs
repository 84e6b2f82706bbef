//! The range of every number of a recipe.

use retrievalguard::{Sigma, TargetRadius};

use super::{Curve, DistillationPart, LossKind, LossPart, Recipe, RecipeError};

/// Most bytes of pixels in one step; what the network makes of them takes a multiple of it.
const MOST_BATCH_BYTES: u64 = 4 << 30;

/// An error unless the value is right.
fn wanted(right: bool, key: &'static str, found: String, wanted: &'static str) -> Result<(), RecipeError> {
    if right { Ok(()) } else { Err(RecipeError::Value { key, found, wanted }) }
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

impl Recipe {
    /// Holds every number against its range; the first that is out of it is named.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        self.check_pictures()?;
        self.check_batch()?;
        self.check_noise()?;
        self.check_learning()?;
        self.check_evaluation()
    }

    fn check_pictures(&self) -> Result<(), RecipeError> {
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
        )
    }

    fn check_batch(&self) -> Result<(), RecipeError> {
        let network = &self.network;
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
        )
    }

    fn check_noise(&self) -> Result<(), RecipeError> {
        if let Some(noise) = &self.noise {
            let right = noise.sigma == 0.0 || Sigma::new(noise.sigma).is_ok();
            wanted(right, "noise.sigma", noise.sigma.to_string(), "0, or a number from 0.0001 to 2")?;
        }
        Ok(())
    }

    fn check_learning(&self) -> Result<(), RecipeError> {
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
        self.check_loss()?;
        if let Some(clip) = self.optimiser.clip {
            wanted(positive(clip), "optimiser.clip", clip.to_string(), "a finite number above 0")?;
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
        wanted(
            self.schedule.curve == Curve::Steps || self.schedule.milestones.is_empty(),
            "schedule.milestones",
            format!("{:?}", self.schedule.milestones),
            "[] with schedule.curve=cosine, which falls step by step",
        )?;
        wanted(self.schedule.epochs > 0, "schedule.epochs", self.schedule.epochs.to_string(), "at least 1")
    }

    fn check_loss(&self) -> Result<(), RecipeError> {
        let LossPart { kind, weight, rho, tau, .. } = self.loss;
        let lipschitz = !self.network.architecture.normalises();
        for (key, value) in [("loss.rho", rho), ("loss.tau", tau)] {
            wanted(positive(value), key, value.to_string(), "a finite number above 0")?;
        }
        wanted(
            weight.is_finite() && weight >= 0.0,
            "loss.weight",
            weight.to_string(),
            "a finite number from 0 up",
        )?;
        wanted(
            kind == LossKind::Margin || lipschitz,
            "loss.kind",
            "certified-radius".to_owned(),
            "margin, or network.architecture=lipschitz",
        )?;
        let Some(DistillationPart { weight: teacher, scale }) = self.distillation else {
            return wanted(
                weight > 0.0,
                "loss.weight",
                weight.to_string(),
                "above 0, or a [distillation] table",
            );
        };
        wanted(positive(teacher), "distillation.weight", teacher.to_string(), "a finite number above 0")?;
        wanted(
            positive(scale) && (lipschitz || scale == 1.0),
            "distillation.scale",
            scale.to_string(),
            "1, or a finite number above 0 with network.architecture=lipschitz",
        )
    }

    fn check_evaluation(&self) -> Result<(), RecipeError> {
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
        if let Some(radius) = self.evaluation.radius {
            let right = TargetRadius::new(radius).is_ok() && self.network.architecture.normalises();
            let wish =
                "a number above 0, with noise: a Lipschitz encoder is measured at five radii of its own";
            wanted(right, "evaluation.radius", radius.to_string(), wish)?;
        }
        wanted(
            self.evaluation.samples > 0,
            "evaluation.samples",
            self.evaluation.samples.to_string(),
            "at least 1",
        )
    }
}
