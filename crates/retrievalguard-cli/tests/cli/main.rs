//! The commands as users run them: whole runs, interrupted runs, and everything that must be refused.
//!
//! Pictures are drawn into a temporary folder and embedded by the small models of the encoder crate's tests. Nearly all
//! runs use the built-in engine; the few that need onnxruntime take it from `ORT_DYLIB_PATH` or from `target/venv`, and
//! without it they are skipped, counted and named on stderr. With `RETRIEVALGUARD_REQUIRE_ONNXRUNTIME=1` its absence is
//! a failure.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agreement;
mod arrays;
mod attack;
mod bad_input;
mod commands;
mod compare;
mod copies;
mod demo;
mod doctor;
mod embeddings_file;
mod experiment;
mod export;
mod file_radii;
mod flips;
mod lipschitz;
mod outputs;
mod plain;
mod progress;
mod receipts;
mod recommend;
mod report;
mod same_bytes;
mod samples_file;
mod sandbox;
mod serve;
mod serve_client;
mod serve_plain;
mod shards;
mod switches;
// They need `prlimit`, `setpriv` and every address of 127.0.0.0/8.
#[cfg(target_os = "linux")]
mod serve_disks;
#[cfg(target_os = "linux")]
mod serve_doors;
#[cfg(unix)]
mod serve_reload;
#[cfg(unix)]
mod serve_reload_writes;
#[cfg(feature = "train")]
mod train;
mod tutorial;
mod views;
mod without_noise;
mod workers;
