//! The extension module `retrievalguard._native`: arrays in, arrays out, and no interpreter lock while it computes.
//!
//! What Python users see (names, defaults, docstrings, tables, figures) is the package in `python/retrievalguard`; here is
//! only what has to be Rust. Values are copied out of NumPy before the lock is released, so no other thread can change
//! what a certificate is computed from.

mod certify;
mod embeddings;
mod encoder;
mod errors;
mod gallery;
mod interruptible;
mod noise;
mod parameters;
mod perturb;
mod picture;
mod pipeline;
mod planner;
mod receipts;
mod recommend;
mod runs;
mod smooth;
mod table;

/// The module as Python imports it.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::certify::certify;
    #[pymodule_export]
    use crate::embeddings::certify_embeddings;
    #[pymodule_export]
    use crate::encoder::{Encoder, decode_bytes, decode_file};
    #[pymodule_export]
    use crate::gallery::Gallery;
    #[pymodule_export]
    use crate::noise::Noise;
    #[pymodule_export]
    use crate::perturb::perturb;
    #[pymodule_export]
    use crate::picture::certify_picture;
    #[pymodule_export]
    use crate::pipeline::{certify_pictures, index};
    #[pymodule_export]
    use crate::planner::{largest_radius, samples_needed};
    #[pymodule_export]
    use crate::receipts::verify_receipt;
    #[pymodule_export]
    use crate::recommend::recommend;
    #[pymodule_export]
    use crate::runs::{Worker, merge, share_pictures, unfinished, work};
    #[pymodule_export]
    use crate::smooth::{check_picture, smooth};
    #[pymodule_export]
    use crate::table::{describe_arrays, intervals, read_certificates, write_certificates};
}
