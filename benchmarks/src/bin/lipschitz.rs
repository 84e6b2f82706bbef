//! Certifying without noise: CPU time of `lipschitz` per query, one query at a time and many together.
//!
//! `benchmarks/lipschitz.sh` runs this beside a search by faiss in the same vectors:
//!
//! ```text
//! lipschitz generate FOLDER    write gallery.npy and queries.npy
//! lipschitz measure FOLDER     read them; print CPU ms per query one by one, together, and how many were certified
//! ```

#![expect(clippy::print_stdout, reason = "the measurements are the program's output")]

use std::error::Error;
use std::fs;
use std::path::Path;

use cpu_time::ProcessTime;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use retrievalguard::LipschitzConstant;
use retrievalguard::certificate::{LipschitzBound, LipschitzCertifier, LipschitzName, Verdict};
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::storage::npy;

const DIMENSION: usize = 128;
const ROWS: usize = 100_000;
/// Items of one label.
const TOGETHER: usize = 5;
const QUERIES: usize = 64;
/// How far items and queries are from the middle of their label, beside distances of 16 between labels.
const SPREAD: f64 = 0.5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["generate", folder] => generate(Path::new(folder)),
        ["measure", folder] => measure(Path::new(folder)),
        _ => Err("usage: lipschitz generate FOLDER | lipschitz measure FOLDER".into()),
    }
}

fn generate(folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut normal = || -> f64 { StandardNormal.sample(&mut random) };
    let (mut gallery, mut queries) = (Vec::new(), Vec::new());
    for label in 0..ROWS / TOGETHER {
        let middle: Vec<f64> = (0..DIMENSION).map(|_| normal()).collect();
        for _ in 0..TOGETHER {
            gallery.extend(middle.iter().map(|value| (value + SPREAD * normal()) as f32));
        }
        if label < QUERIES {
            queries.extend(middle.iter().map(|value| (value + SPREAD * normal()) as f32));
        }
    }
    npy::write_f32(&folder.join("gallery.npy"), &[ROWS, DIMENSION], &gallery)?;
    npy::write_f32(&folder.join("queries.npy"), &[QUERIES, DIMENSION], &queries)?;
    Ok(())
}

fn measure(folder: &Path) -> Result<(), Box<dyn Error>> {
    let vectors = npy::read_matrix(&folder.join("gallery.npy"))?.values;
    let queries: Vec<f64> =
        npy::read_matrix(&folder.join("queries.npy"))?.values.into_iter().map(f64::from).collect();
    let names: Vec<String> = (0..ROWS).map(|row| row.to_string()).collect();
    let labels: Vec<String> = (0..ROWS).map(|row| (row / TOGETHER).to_string()).collect();
    let gallery = Gallery::new(vectors, DIMENSION, names, &labels, Metric::Euclidean)?;
    let certifier = LipschitzCertifier::new(&gallery, LipschitzBound::stated(LipschitzConstant::new(1.0)?));
    let relevance: Vec<Relevance> = (0..QUERIES)
        .map(|query| Relevance::new(Positives::Label(gallery.label(query * TOGETHER)), Vec::new()))
        .collect();
    let one_by_one = || -> Result<usize, Box<dyn Error>> {
        let mut certified = 0;
        for (query, relevance) in queries.chunks_exact(DIMENSION).zip(&relevance) {
            let outcome = certifier.certify(LipschitzName::Lipschitz, query, relevance)?;
            certified += usize::from(matches!(outcome.verdict(), Verdict::Certified { .. }));
        }
        Ok(certified)
    };
    one_by_one()?;
    let before = ProcessTime::now();
    let certified = one_by_one()?;
    println!("{}", before.elapsed().as_secs_f64() * 1e3 / QUERIES as f64);
    let before = ProcessTime::now();
    certifier.certify_each(&[LipschitzName::Lipschitz], &queries, |query| &relevance[query], |_, _| {})?;
    println!("{}", before.elapsed().as_secs_f64() * 1e3 / QUERIES as f64);
    println!("{certified}");
    Ok(())
}
