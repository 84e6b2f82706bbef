//! Recall and certified radii of a Lipschitz encoder on folders of pictures, in one pass.
//!
//! ```sh
//! retrievalguard draw products --out products
//! cargo run --release -p retrievalguard-train --example certified_recall -- \
//!     crates/retrievalguard-cli/demo/lipschitz/encoder.onnx products/queries products/gallery
//! ```
//!
//! Without a gallery every picture asks for its label among all the others.

#![expect(clippy::print_stdout, reason = "the measurements are the program's output")]

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use retrievalguard_encoder::dataset::{DatasetOptions, Format, RecordSet, open};
use retrievalguard_encoder::work::Unobserved;
use retrievalguard_train::certified::{LipschitzEncoder, RADII, certified_recall};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, queries, gallery) = match arguments.as_slice() {
        [model, queries] => (model, read(queries)?, None),
        [model, queries, gallery] => (model, read(queries)?, Some(read(gallery)?)),
        _ => return Err("usage: certified_recall MODEL QUERIES [GALLERY]".into()),
    };
    let encoder = LipschitzEncoder::open(Path::new(model))?;
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let found = certified_recall(&encoder, &queries, gallery.as_ref(), threads, &Unobserved)?;
    println!("{} queries of {} classes", found.pictures, found.classes);
    println!("Lipschitz constant   at most {:.9}", found.constant.next_up());
    println!("Recall@1             {:.4}", found.recall);
    println!("average radius       {:.4}", found.average_radius);
    for (radius, share) in RADII.iter().zip(found.certified) {
        println!("certified at {radius:<5}   {share:.4}");
    }
    Ok(())
}

fn read(folder: &str) -> Result<RecordSet, Box<dyn Error>> {
    Ok(open(Path::new(folder), Format::ImageFolder, DatasetOptions::default())?.records.into())
}
