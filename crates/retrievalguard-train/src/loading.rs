//! A batch from the files to the numbers that training begins with.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Seed, Sigma};

use crate::augment::{Augmenter, ViewError};
use crate::batches::{BatchPlan, Classes};
use crate::picture_cache::PictureCache;
use crate::prefetch::Prefetch;
use crate::random::{Purpose, RandomCounter, RandomSource};

/// The pictures of one step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    /// Step of the run, counted from 0.
    pub step: u64,
    /// Epoch it belongs to, counted from 0.
    pub epoch: u64,
    /// Pictures, channels, rows, columns.
    pub shape: [usize; 4],
    /// Pixels in that order: in `[0, 1]`, or beyond it by the noise; the encoder's mean and deviation not yet applied.
    pub pixels: Vec<f32>,
    /// The same without the noise, if someone asked for it and there is noise.
    pub clean: Option<Vec<f32>>,
    /// Class of each picture.
    pub labels: Vec<u32>,
    /// Where each picture's record stands in the data set.
    pub positions: Vec<usize>,
}

/// Makes the batches of a run, each from its number alone.
#[derive(Debug)]
pub(crate) struct BatchLoader {
    /// The pictures.
    pub pictures: PictureCache,
    /// Their classes.
    pub classes: Classes,
    /// Which of them are seen together.
    pub plan: BatchPlan,
    /// How they are seen.
    pub augmenter: Augmenter,
    /// Level of the noise on them; none for training without noise.
    pub sigma: Option<Sigma>,
    /// Whether batches keep the views without noise, too.
    pub keeps_clean: bool,
    /// Seed of the views and of the noise.
    pub seed: Seed,
}

impl BatchLoader {
    /// Makes the batch of a step.
    ///
    /// With a noise level every picture of the batch has noise of its own, not cut off at black and white:
    ///
    /// ```text
    /// pixels = view + σ z,   z standard normal, a pure function of (seed, picture, epoch, batch, slot)
    /// ```
    ///
    /// Paper: Section 4.2. `Z₁`, `Z₂` and `Z₃` are independent because the three have different slots. Departure: a
    /// picture keeps its noise in all triplets of a batch that it is part of.
    pub(crate) fn load(&self, step: u64) -> Result<Batch, ViewError> {
        let (epoch, number) = (step / self.plan.batches_per_epoch(), step % self.plan.batches_per_epoch());
        let positions = self.plan.positions(epoch, number);
        let [channels, height, width] = self.augmenter.model_config().picture_shape();
        let values = channels * height * width;
        let mut pixels = vec![0.0; positions.len() * values];
        let mut clean = (self.keeps_clean && self.sigma.is_some()).then(|| Vec::with_capacity(pixels.len()));
        for (slot, (&position, out)) in positions.iter().zip(pixels.chunks_exact_mut(values)).enumerate() {
            let counter = RandomCounter { epoch, step: number, slot: slot as u64 };
            let identity = &self.pictures.records()[position].identity;
            let picture = self.pictures.picture(position)?;
            let mut source = RandomSource::new(self.seed, Purpose::View, counter);
            let view = self.augmenter.training(identity, &picture, &mut source)?;
            if let Some(clean) = &mut clean {
                clean.extend_from_slice(&view);
            }
            match self.sigma {
                Some(sigma) => self.noise(identity, counter).add(0, sigma, &view, out),
                None => out.copy_from_slice(&view),
            }
        }
        let labels = positions.iter().map(|&position| self.classes.of_record[position]).collect();
        let shape = [positions.len(), channels, height, width];
        Ok(Batch { step, epoch, shape, pixels, clean, labels, positions })
    }

    /// The noise of a picture at its position in the run.
    fn noise(&self, identity: &str, counter: RandomCounter) -> NoiseStream {
        let mut name = identity.as_bytes().to_vec();
        // Of fixed length and last, so that no two pictures and places have the same name.
        for word in [counter.epoch, counter.step, counter.slot] {
            name.extend(word.to_le_bytes());
        }
        NoiseStream::new(self.seed, &ImageIdentity::new(name), Stage::Train)
    }

    /// The batches of some steps in order, made ahead by threads of their own.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        steps: Range<u64>,
        threads: NonZeroUsize,
        depth: usize,
    ) -> Prefetch<Batch, ViewError> {
        let loader = Arc::clone(self);
        Prefetch::new(steps, threads, depth, move |step| loader.load(step))
    }
}

#[cfg(test)]
mod tests {
    use retrievalguard_encoder::dataset::{PictureSource, Record, Role};
    use retrievalguard_encoder::model_config::ModelConfig;

    use super::*;
    use crate::augment::Augmentation;

    const MODEL_CONFIG: &str = r#"
        [input]
        channels = 1
        height = 8
        width = 8
        mean = [0.0]
        std = [1.0]
        [resize]
        rule = "exact"
        height = 8
        width = 8
        interpolation = "bilinear"
        [crop]
        rule = "none"
        [output]
        normalise = true
    "#;

    fn record(number: usize) -> Record {
        let pixels = (0..100).map(|at| (at * (number + 3)) as u8).collect();
        Record {
            identity: format!("{number}.png"),
            source: PictureSource::Grey { width: 10, height: 10, pixels },
            crop: None,
            label: format!("class {}", number % 4),
            category: None,
            split: None,
            role: Role::Unassigned,
        }
    }

    fn loader(sigma: Option<f64>, seed: u64, records: Vec<Record>) -> Arc<BatchLoader> {
        let classes = Classes::new(&records);
        let seed = Seed::new(seed);
        let model_config = ModelConfig::from_toml(MODEL_CONFIG).unwrap();
        Arc::new(BatchLoader {
            plan: BatchPlan::new(&classes, 2, 3, seed).unwrap(),
            pictures: PictureCache::new(records, 1 << 20),
            classes,
            augmenter: Augmenter::new(model_config, Augmentation::default()).unwrap(),
            sigma: sigma.map(|sigma| Sigma::new(sigma).unwrap()),
            keeps_clean: false,
            seed,
        })
    }

    fn records() -> Vec<Record> {
        (0..24).map(record).collect()
    }

    #[test]
    fn a_run_resumed_at_any_step_sees_the_same_batches() {
        let all: Vec<Batch> =
            (0..12).map(|step| loader(Some(0.25), 1, records()).load(step).unwrap()).collect();
        assert_eq!((all[0].shape, all[7].epoch, all[7].step), ([6, 1, 8, 8], 1, 7));
        for begin in [0, 5, 11] {
            for threads in [1, 3] {
                let threads = NonZeroUsize::new(threads).unwrap();
                let ahead = loader(Some(0.25), 1, records()).prefetch(begin..12, threads, 2);
                let found: Vec<Batch> = ahead.map(Result::unwrap).collect();
                assert_eq!(found, all[begin as usize..], "from {begin} with {threads} threads");
            }
        }
        assert_ne!(loader(Some(0.25), 2, records()).load(0).unwrap().pixels, all[0].pixels);
    }

    #[test]
    fn noise_is_added_to_the_same_views_and_is_never_cut_off() {
        let (plain, noisy) = (loader(None, 1, records()), loader(Some(0.5), 1, records()));
        let mut noise = Vec::new();
        for step in 0..40 {
            let (plain, noisy) = (plain.load(step).unwrap(), noisy.load(step).unwrap());
            assert_eq!((&plain.labels, &plain.positions), (&noisy.labels, &noisy.positions));
            assert!(plain.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
            let added = noisy.pixels.iter().zip(&plain.pixels);
            noise.extend(added.map(|(noisy, plain)| f64::from(noisy - plain) / 0.5));
        }
        let count = noise.len() as f64;
        let moment = |power: i32| noise.iter().map(|value| value.powi(power)).sum::<f64>() / count;
        // Four standard deviations of each.
        assert!(moment(1).abs() < 4.0 / count.sqrt(), "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 4.0 * (2.0 / count).sqrt(), "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 4.0 * (96.0 / count).sqrt(), "{}", moment(4));
    }

    #[test]
    fn slots_have_independent_noise_even_for_the_same_picture() {
        // Three pictures of each class are asked for, and there are two.
        let records: Vec<Record> = (0..8).map(record).collect();
        let (plain, noisy) = (loader(None, 1, records.clone()), loader(Some(0.5), 1, records));
        let (plain, noisy) = (plain.load(0).unwrap(), noisy.load(0).unwrap());
        let noise: Vec<f32> =
            noisy.pixels.iter().zip(&plain.pixels).map(|(noisy, plain)| noisy - plain).collect();
        let slots: Vec<&[f32]> = noise.chunks_exact(64).collect();
        let mut repeated = 0;
        for left in 0..6 {
            for right in left + 1..6 {
                repeated += usize::from(noisy.positions[left] == noisy.positions[right]);
                let correlation: f32 =
                    slots[left].iter().zip(slots[right]).map(|(left, right)| left * right).sum::<f32>()
                        / 16.0;
                // Four and a half standard deviations of a correlation over 64 pixels.
                assert!(correlation.abs() < 4.5 / 8.0, "slots {left} and {right}: {correlation}");
            }
        }
        assert_eq!(repeated, 2);
    }

    #[test]
    fn a_broken_picture_ends_the_batches_with_its_name() {
        let mut records = records();
        for record in &mut records {
            record.source = PictureSource::File("gone.jpg".into());
        }
        let mut ahead = loader(None, 1, records).prefetch(0..5, NonZeroUsize::MIN, 2);
        let error = ahead.next().unwrap().unwrap_err();
        assert!(error.to_string().contains("gone.jpg"), "{error}");
        assert!(ahead.next().is_none());
    }
}
