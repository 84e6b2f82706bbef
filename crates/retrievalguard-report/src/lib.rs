//! What people look at: figures, and the report of a run.
//!
//! [`chart`] turns plain numbers into figures, as SVG and as PNG. It opens no file and knows nothing of certificates.
//! [`report`] turns the table of a run into one HTML file that needs nothing else, and into the figures of it;
//! [`picture`] makes the small pictures in it, and [`visible`] shows a radius. What they need is handed in: no function here opens a file.

pub mod attack;
pub mod chart;
pub mod comparison;
pub mod experiment;
pub mod picture;
mod recall_curve;
pub mod recommendation;
pub mod report;
pub mod visible;
