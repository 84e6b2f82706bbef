//! An encoder is tried before anything depends on it: beside hostile companions, and twice.
//!
//! What the graph says is a proof about the graph; the engine that runs it is another program, and a file may say one
//! thing to us and another to the engine. So two pictures are run by themselves and between companions that would show
//! any trace of coupling: nothing but zeros, one large constant, and noise a thousand times larger than a picture, of
//! either sign, in batches of several sizes. Twenty-five pictures go through the network in all.
//!
//! **Tolerance.** Where companions cannot matter, what is left is the rounding of sums that an engine may take in another
//! order in a batch of another size: about `√n · 2⁻²⁴` of a sum of `n` terms, 10⁻⁶ of an embedding's norm in the deepest
//! networks that were measured, and no bit at all in most. Where they do matter, companions a thousand times larger
//! move the statistics that are shared, and with them the embedding, by the order of its norm. [`TOLERANCE`] is between.

use std::path::Path;

use super::preparation::Preparation;
use super::{Batch, EngineError, FEWEST, Slot};
use crate::check::{Companions, EncoderCheck, Passes};
use crate::graph::batch::BatchReading;

/// Largest difference that companions may make in any component, as a share of the embedding's norm.
pub(super) const TOLERANCE: f64 = 1e-5;

/// How much larger than a picture the largest companions are.
const LOUD: f32 = 1000.0;

/// How many pictures run together where the model leaves it open.
const BESIDE: usize = 4;

/// Further sizes of batches, the last of them no larger than those that will be run: what an encoder makes of the number
/// of pictures may begin to show at any of them.
const OTHERS: [usize; 2] = [3, 8];

/// What is tried: one model under its model config, in one session.
pub(super) struct Trial<'a> {
    pub(super) model: &'a Path,
    pub(super) slot: &'a mut Slot,
    pub(super) preparation: &'a Preparation,
    pub(super) batch: Batch,
    pub(super) dimension: usize,
    /// Most pictures that will run together.
    pub(super) together: usize,
}

/// How much companions changed an embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CompanionEffect {
    /// Largest difference in any component, as a share of the embedding's norm.
    pub(super) difference: f64,
}

impl CompanionEffect {
    pub(super) fn is_rounding(self) -> bool {
        self.difference <= TOLERANCE
    }
}

impl Trial<'_> {
    /// How pictures go through the network: as the graph allows, but one by one if they feel their companions.
    pub(super) fn settle(
        &mut self,
        graph: BatchReading,
        allowed: Passes,
        normalised: bool,
    ) -> Result<EncoderCheck, EngineError> {
        let companions = match allowed {
            Passes::OneByOne => Companions::None,
            Passes::Together => {
                let felt = self.together()?;
                match self.batch {
                    Batch::Always(1) => Companions::None,
                    _ if felt.is_rounding() => Companions::Harmless,
                    _ => Companions::Felt,
                }
            }
        };
        let passes = if companions == Companions::Felt { Passes::OneByOne } else { allowed };
        let check = EncoderCheck { graph, companions, passes };
        if passes == Passes::OneByOne {
            let row = self.alone()?;
            if normalised && row.iter().all(|&value| value == 0.0) {
                let reason = check.reason().unwrap_or_default();
                return Err(EngineError::NothingAlone { model: self.model.to_owned(), reason });
            }
        }
        Ok(check)
    }

    /// Runs pictures beside hostile companions, then the first again; says how much the companions mattered.
    pub(super) fn together(&mut self) -> Result<CompanionEffect, EngineError> {
        let Pictures { first, second, loud, quiet } = Pictures::new(self.preparation.pixels);
        let opposite: Vec<f32> = loud.iter().map(|value| -value).collect();
        let constant = vec![LOUD; self.preparation.pixels];
        let size = match self.batch {
            Batch::Any => BESIDE,
            Batch::Always(size) => size,
        };
        let own = match self.batch {
            Batch::Any => FEWEST,
            Batch::Always(size) => size,
        };
        let before = self.rows(&[&first], own)?;
        let mut effect = CompanionEffect { difference: 0.0 };
        if size > 1 {
            let alone = [before[..self.dimension].to_vec(), self.rows(&[&second], own)?];
            // Both pictures stand at an end once and between loud companions once; a larger batch repeats the last.
            let mut mixed: [Vec<&[f32]>; 2] =
                [vec![&loud, &first, &second, &opposite], vec![&second, &quiet, &constant, &first]];
            for batch in &mut mixed {
                if size < batch.len() {
                    // Two or three places: a picture and what is loudest.
                    batch.truncate(size);
                }
                let last = batch.last().copied().unwrap_or(&loud);
                batch.resize(size, last);
            }
            let [three, most] = OTHERS;
            let others = match self.batch {
                Batch::Any => vec![three, most.min(self.together)],
                Batch::Always(_) => Vec::new(),
            };
            let mut batches = mixed.to_vec();
            for other in others.into_iter().filter(|&other| other > 1 && other != size) {
                let mut batch = mixed[0].clone();
                batch.resize(other, &opposite);
                batches.push(batch);
            }
            for batch in &batches {
                let rows = self.rows(batch, batch.len())?;
                for (place, picture) in batch.iter().enumerate() {
                    for (own, alone) in [&first, &second].into_iter().zip(&alone) {
                        if std::ptr::eq(*picture, own.as_slice()) {
                            let row = &rows[place * self.dimension..][..self.dimension];
                            let difference = difference(&alone[..self.dimension], row);
                            effect.difference = effect.difference.max(difference);
                        }
                    }
                }
            }
        }
        self.same_again(&first, own, &before)?;
        Ok(effect)
    }

    /// Runs a picture by itself, a hostile one, and the first again.
    pub(super) fn alone(&mut self) -> Result<Vec<f32>, EngineError> {
        let Pictures { first, loud, .. } = Pictures::new(self.preparation.pixels);
        let own = match self.batch {
            Batch::Any => 1,
            Batch::Always(size) => size,
        };
        let mut before = self.rows(&[&first], own)?;
        self.rows(&[&loud], own)?;
        self.same_again(&first, own, &before)?;
        before.truncate(self.dimension);
        Ok(before)
    }

    fn same_again(&mut self, picture: &[f32], run: usize, before: &[f32]) -> Result<(), EngineError> {
        let again = self.rows(&[picture], run)?;
        let own = self.dimension;
        if let Some(component) = before[..own].iter().position(|value| !value.is_finite()) {
            let value = before[component];
            return Err(EngineError::NotFinite { model: self.model.to_owned(), component, value });
        }
        if before[..own].iter().zip(&again).any(|(before, again)| before.to_bits() != again.to_bits()) {
            let difference = difference(&before[..own], &again[..own]);
            return Err(EngineError::NotDeterministic { model: self.model.to_owned(), difference });
        }
        Ok(())
    }

    /// Output of a batch of `run` pictures, those given and copies of the first.
    fn rows(&mut self, pictures: &[&[f32]], run: usize) -> Result<Vec<f32>, EngineError> {
        let wanted = [run, self.dimension];
        let mut rows = Vec::new();
        self.slot.run(self.preparation, run, &pictures.concat(), &mut |shape, numbers| {
            if shape != wanted {
                let (found, wanted) = (shape.to_vec(), wanted.to_vec());
                return Err(EngineError::BatchShape { pictures: run, found, wanted });
            }
            rows.extend_from_slice(numbers);
            Ok(())
        })?;
        Ok(rows)
    }
}

/// Largest difference in any component as a share of the first row's norm; infinite if it has none.
fn difference(alone: &[f32], row: &[f32]) -> f64 {
    let norm = alone.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let largest = alone.iter().zip(row).filter(|(alone, other)| alone.to_bits() != other.to_bits()).fold(
        0.0_f64,
        |largest, (&alone, &other)| {
            let difference = (f64::from(alone) - f64::from(other)).abs();
            largest.max(if difference.is_nan() { f64::INFINITY } else { difference })
        },
    );
    // Zeros of either sign are the same number.
    if largest == 0.0 { 0.0 } else { largest / norm }
}

/// What is run: two pictures in `[0, 1]`, loud noise and silence, the same on every machine.
struct Pictures {
    first: Vec<f32>,
    second: Vec<f32>,
    loud: Vec<f32>,
    quiet: Vec<f32>,
}

impl Pictures {
    fn new(pixels: usize) -> Self {
        // SplitMix64 (Steele, Lea and Flood 2014): any numbers without a pattern would do.
        let mut state = 0_u64;
        let mut noise = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ mixed >> 31) >> 40) as f32 / (1_u64 << 24) as f32
        };
        let first: Vec<f32> = (0..pixels).map(|_| noise()).collect();
        let second = (0..pixels).map(|pixel| pixel as f32 / pixels as f32).collect();
        let loud = (0..pixels).map(|_| LOUD * noise()).collect();
        Self { first, second, loud, quiet: vec![0.0; pixels] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Checked, Factory, Model, ModelFacts, Provider, Runtime, probe};
    use super::*;
    use crate::engine::rten::RtenModel;
    use crate::engine::{Engine, EngineOptions};
    use crate::model_config::ModelConfig;

    fn model(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
    }

    /// Tries a model without asking its graph.
    fn tried<T>(
        path: &Path,
        factory: &Factory,
        batch: Batch,
        attempt: impl FnOnce(&mut Trial<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let preparation = Preparation::new(&ModelConfig::for_model(path).unwrap());
        let mut slot = factory.slot().unwrap();
        let run = match batch {
            Batch::Any => FEWEST,
            Batch::Always(size) => size,
        };
        let dimension = probe(&mut slot, path, "embeddings", &preparation, run).unwrap();
        let preparation = &preparation;
        attempt(&mut Trial { model: path, slot: &mut slot, preparation, batch, dimension, together: 8 })
    }

    #[test]
    fn hostile_companions_show_coupling_without_the_graphs_help() {
        let cases = [
            ("convolutional.onnx", Batch::Any, false),
            ("int8.onnx", Batch::Any, false),
            ("fixed_batch.onnx", Batch::Always(3), false),
            ("zero.onnx", Batch::Any, false),
            ("batch_mean.onnx", Batch::Any, true),
            ("dynamic_quantised.onnx", Batch::Any, true),
            ("shared_factor.onnx", Batch::Any, true),
        ];
        for (name, batch, coupled) in cases {
            let path = model(name);
            let factory = Factory::Rten(RtenModel::new(&path, "pictures", "embeddings").unwrap());
            let effect = tried(&path, &factory, batch, |trial| trial.together()).unwrap();
            assert_eq!(effect.is_rounding(), !coupled, "{name}: {effect:?}");
            // Nothing in between: coupling is not a matter of digits.
            assert!(!coupled || effect.difference > 1e-2, "{name}: {effect:?}");
            assert!(tried(&path, &factory, batch, |trial| trial.alone()).is_ok(), "{name}");
        }
    }

    #[test]
    fn an_encoder_that_draws_lots_is_refused_without_the_graphs_help() {
        // The built-in engine has no random operators.
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/lib");
        let environment = std::fs::read_dir(packages).ok().and_then(|mut entries| entries.next());
        let library = environment.map(|entry| entry.unwrap().path().join("site-packages/onnxruntime/capi"));
        let Some(library) = library.filter(|folder| folder.is_dir()) else { return };
        let options = EngineOptions {
            engine: Some(Engine::Onnxruntime),
            library: Some(library),
            ..EngineOptions::default()
        };
        let Runtime::Onnxruntime(library) = Runtime::choose(&options).unwrap() else { return };
        let path = model("random.onnx");
        let output = "embeddings".to_owned();
        let read = Model::read(&path).unwrap();
        let checked = Checked::new(&path, &read, &ModelFacts::of(&path, &read).unwrap());
        let factory = Factory::Onnxruntime { library, model: checked, provider: Provider::Cpu, output };
        for attempt in [
            |trial: &mut Trial<'_>| trial.together().map(drop),
            |trial: &mut Trial<'_>| trial.alone().map(drop),
        ] {
            let error = tried(&path, &factory, Batch::Any, attempt).unwrap_err();
            assert!(matches!(error, EngineError::NotDeterministic { .. }), "{error}");
        }
    }

    #[test]
    fn differences_are_shares_of_the_norm_and_nothing_hides_in_numbers_that_are_none() {
        assert_eq!(difference(&[3.0, 4.0], &[3.0, 4.5]), 0.1);
        assert_eq!(difference(&[0.0, 0.0], &[0.0, -0.0]), 0.0);
        assert_eq!(difference(&[0.0], &[1e-30]), f64::INFINITY);
        assert_eq!(difference(&[1.0], &[f32::NAN]), f64::INFINITY);
    }
}
