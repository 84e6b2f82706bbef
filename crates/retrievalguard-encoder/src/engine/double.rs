//! The graph itself, evaluated in `f64` without an engine: what certificates of Lipschitz encoders are about.
//!
//! Inference engines have no convolution in `f64`, and in `f32` the forward error of a few residual layers is larger than
//! most radii (theory, section 14.6).

use std::path::Path;
use std::sync::Arc;

use super::{Batch, Consumer, EngineError};
use crate::graph::Model;
use crate::graph::evaluate::{EvaluationError, EvaluationSpec, Evaluator};

/// Version of the evaluator: that of the program which it is a part of.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A compiled graph; sessions share it.
#[derive(Clone)]
pub(super) struct DoubleModel {
    evaluator: Arc<Evaluator<f64>>,
    /// Pictures of one run of the graph.
    places: usize,
}

impl DoubleModel {
    pub(super) fn new(
        path: &Path,
        model: &Model,
        (input, axes, output): (&str, [usize; 3], &str),
        batch: Batch,
    ) -> Result<Self, EngineError> {
        let places = match batch {
            Batch::Any => 1,
            Batch::Always(size) => size,
        };
        let [first, second, third] = axes;
        let spec = EvaluationSpec { input, shape: &[places, first, second, third], output };
        let evaluator = Evaluator::new(path, model, &spec)
            .map_err(|error| EngineError::Load { model: path.to_owned(), source: Box::new(error) })?;
        Ok(Self { evaluator: Arc::new(evaluator), places })
    }

    /// The embedding of one prepared picture.
    pub(super) fn value(&self, prepared: &[f32]) -> Result<Vec<f64>, EngineError> {
        let picture: Vec<f64> = prepared.iter().map(|&value| f64::from(value)).collect();
        let mut value = self.evaluator.value(&picture.repeat(self.places), 1).map_err(failed)?;
        // Every place holds the same picture.
        value.truncate(value.len() / self.places);
        Ok(value)
    }

    /// Runs one batch and hands its output, rounded, to `consume`: shape and numbers.
    pub(super) fn run(
        &self,
        shape: &[usize],
        pictures: &[f32],
        consume: &mut Consumer<'_>,
    ) -> Result<(), EngineError> {
        let mut rows = Vec::new();
        for pictures in pictures.chunks(self.evaluator.input_len()) {
            let pictures: Vec<f64> = pictures.iter().map(|&value| f64::from(value)).collect();
            rows.extend(
                self.evaluator.value(&pictures, 1).map_err(failed)?.iter().map(|&value| value as f32),
            );
        }
        let mut found = self.evaluator.output_shape().to_vec();
        if let (Some(rows), Some(&pictures)) = (found.first_mut(), shape.first()) {
            *rows = *rows * pictures / self.places;
        }
        consume(&found, &rows)
    }
}

fn failed(error: EvaluationError) -> EngineError {
    EngineError::Run { source: Box::new(error) }
}
