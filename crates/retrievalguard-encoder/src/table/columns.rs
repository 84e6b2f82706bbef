//! Parquet, one column at a time.

mod decode;
mod read;
mod write;

pub(super) use read::Table;
pub(crate) use write::{Column, write};

/// How files name the program that wrote them, before its version.
const AUTHOR: &str = "retrievalguard ";
