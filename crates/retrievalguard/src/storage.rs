//! The file formats: arrays, journals, manifests and caches, each written so that a crash never leaves half of one.
//!
//! Stages of the method meet in files. Every file either carries a manifest that says what it was made from, or is a
//! plain array that other programs read; nothing is ever inferred from a file name. Parquet lives elsewhere, with its
//! dependencies.
//!
//! A program that uses the library keeps galleries with [`manifest`], changes them with [`live`], cuts large ones into
//! [`shards`], and reads and writes arrays with [`npy`]. The other modules are what these and RetrievalGuard's own crates
//! are built from; they are public for those crates alone and change with them. The formats themselves are described,
//! with what is promised of them, in `docs/file-formats.md`.

pub mod atomic;
pub mod content;
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
pub mod stored;
