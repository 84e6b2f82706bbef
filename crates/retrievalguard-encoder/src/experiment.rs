//! Experiments: a sweep over noise levels, sample sizes, failure probabilities, certificates and encoders.
//!
//! An [`ExperimentConfig`] is a TOML file; [`sweep`] runs it and gives tidy [`Results`], one row per query and setting.
//! Noisy embeddings are the cost, and they depend on encoder, noise level and picture alone: they are kept on disk in
//! blocks, so that every sample size, failure probability and certificate is arithmetic on what is there, in this run and
//! in later ones.

mod config;
mod results;
mod sweep;

pub use config::{
    DataConfig, EncoderEntry, ExperimentConfig, ExperimentConfigError, Factor, FigureConfig, FigureKind,
    LipschitzConfig, Overrides, Sweep,
};
pub use results::{Results, ResultsError, Setting, TidyRow};
pub use sweep::{SweepContext, SweepData, SweepError, sweep};
