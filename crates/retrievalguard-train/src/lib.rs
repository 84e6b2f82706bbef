//! Trains encoders: deep metric learning with the margin loss, with and without Gaussian noise on the pictures; and gives
//! their gradients to whoever attacks them.

pub mod augment;
pub mod backend;
pub mod batches;
pub mod checkpoint;
pub mod export;
pub mod kernel;
pub mod loading;
pub mod loss;
pub mod network;
pub mod picture_cache;
pub mod prefetch;
pub mod random;
pub mod recipe;
pub mod run_log;
pub mod tensorboard;
pub mod trainer;
pub mod weights;
pub mod white_box;
