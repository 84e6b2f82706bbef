//! What people look at: figures, and the report of a run.
//!
//! [`chart`] turns plain numbers into figures, as SVG and as PNG. It opens no file and knows nothing of certificates.

pub mod chart;
pub mod experiment;
