//! rten, an engine in pure Rust that is part of the program.

use std::path::Path;
use std::sync::Arc;

use rten::{Model, NodeId, RunOptions, ThreadPool, Value, ValueView};
use rten_tensor::{AsView, Layout};

use super::error::engine_failure;
use super::{Consumer, EngineError};

/// Version of rten that is built in.
pub(super) const VERSION: &str = "0.27.0";

/// A loaded model; sessions share its weights.
#[derive(Clone)]
pub(super) struct RtenModel {
    model: Arc<Model>,
    input: NodeId,
    output: NodeId,
}

impl RtenModel {
    pub(super) fn new(path: &Path, input: &str, output: &str) -> Result<Self, EngineError> {
        let mut options = rten::ModelOptions::with_all_ops();
        options.prepack_weights(true);
        let model = options.load_file(path).map_err(|error| engine_failure(path, error))?;
        let node = |name| model.node_id(name).map_err(|error| engine_failure(path, error));
        let (input, output) = (node(input)?, node(output)?);
        Ok(Self { model: Arc::new(model), input, output })
    }

    /// A session with a thread of its own, on which all its work is done.
    pub(super) fn session(&self) -> RtenSession {
        let pool = Arc::new(ThreadPool::with_num_threads(1));
        RtenSession { model: self.clone(), options: RunOptions::default().with_thread_pool(Some(pool)) }
    }
}

/// One thread's access to a model.
pub(super) struct RtenSession {
    model: RtenModel,
    options: RunOptions,
}

impl RtenSession {
    /// Runs one batch and hands its output to `consume`: shape and numbers.
    pub(super) fn run(
        &mut self,
        shape: &[usize],
        pictures: &[f32],
        consume: &mut Consumer<'_>,
    ) -> Result<(), EngineError> {
        let input = ValueView::from_shape(shape, pictures)
            .map_err(|error| EngineError::Run { source: Box::new(error) })?;
        let RtenModel { model, input: input_node, output } = &self.model;
        let mut values = model
            .run(vec![(*input_node, input.into())], &[*output], Some(self.options.clone()))
            .map_err(|error| EngineError::Run { source: error.to_string().into() })?;
        match values.pop() {
            Some(Value::FloatTensor(tensor)) => {
                let found = tensor.shape().to_vec();
                consume(&found, tensor.to_contiguous().data())
            }
            Some(other) => {
                let reason = format!("the output is {}, wanted tensor(f32)", other.dtype());
                Err(EngineError::Run { source: reason.into() })
            }
            None => Err(EngineError::Run { source: "rten gave no output".into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_version_is_the_one_that_is_built_in() {
        let lock = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));
        let package = lock.split("[[package]]").find(|package| package.starts_with("\nname = \"rten\"\n"));
        assert!(package.unwrap().contains(&format!("version = \"{VERSION}\"")));
    }
}
