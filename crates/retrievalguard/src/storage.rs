//! Files of our own: arrays, journals, manifests and caches, each written so that a crash never leaves half of one.
//!
//! Stages of the method meet in files. Every file either carries a manifest that says what it was made from, or is a
//! plain array that other programs read; nothing is ever inferred from a file name. Parquet lives elsewhere, with its
//! dependencies.

pub mod atomic;
pub mod digest;
pub mod journal;
pub mod live;
pub mod lock;
pub mod manifest;
pub mod npy;
mod recorded;
pub mod sample_cache;
pub mod sealed;
pub mod shards;
