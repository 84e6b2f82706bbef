//! Exact search: CPU time of `nearest_positive_and_negative` per query, and peak memory with a million vectors.
//!
//! `benchmarks/search.sh` runs this beside numpy and faiss on the same vectors:
//!
//! ```text
//! search generate FOLDER    write gallery.npy and queries.npy
//! search measure FOLDER     read them; print CPU ms per query and the nearest row of every query
//! search large              build 1,000,000 × 128 and search it; print CPU ms per query and peak memory
//! ```

#![expect(clippy::print_stdout, reason = "the measurements are the program's output")]

use std::error::Error;
use std::fs;
use std::path::Path;

use cpu_time::ProcessTime;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};

const DIMENSION: usize = 128;
const QUERIES: usize = 256;
const LABELS: usize = 5_000;
const ROWS: usize = 200_000;
const LARGE_ROWS: usize = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["generate", folder] => generate(Path::new(folder)),
        ["measure", folder] => measure(Path::new(folder)),
        ["large"] => large(),
        _ => Err("usage: search generate FOLDER | search measure FOLDER | search large".into()),
    }
}

fn generate(folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    write_npy(&folder.join("gallery.npy"), &unit_vectors(ROWS, 1))?;
    write_npy(&folder.join("queries.npy"), &unit_vectors(QUERIES, 2))
}

fn measure(folder: &Path) -> Result<(), Box<dyn Error>> {
    let vectors = read_npy(&folder.join("gallery.npy"))?;
    let queries = read_npy(&folder.join("queries.npy"))?;
    let gallery = labelled(vectors)?;
    let (milliseconds, rows) = search(&gallery, &queries)?;
    println!("{milliseconds}");
    println!("{}", rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}

fn large() -> Result<(), Box<dyn Error>> {
    let before = cpu_milliseconds();
    let vectors = unit_vectors(LARGE_ROWS, 1);
    let generated = cpu_milliseconds();
    let gallery = labelled(vectors)?;
    let built = cpu_milliseconds();
    let (milliseconds, _) = search(&gallery, &unit_vectors(QUERIES, 2))?;
    println!("rows {LARGE_ROWS}, dimension {DIMENSION}, queries {QUERIES}, labels {LABELS}");
    println!("generate {:.0} CPU ms, build {:.0} CPU ms", generated - before, built - generated);
    println!("nearest_positive_and_negative {milliseconds:.3} CPU ms per query");
    println!("peak memory {:.3} GB", peak_gigabytes()?);
    Ok(())
}

/// CPU milliseconds per query of one batched search, and the nearest row of every query.
fn search(gallery: &Gallery, queries: &[f32]) -> Result<(f64, Vec<usize>), Box<dyn Error>> {
    let relevances: Vec<Relevance> = (0..QUERIES)
        .map(|query| Relevance::new(Positives::Label(gallery.label(query * 7)), Vec::new()))
        .collect();
    // The first few queries alone, so that page faults and frequency changes are not measured.
    gallery.nearest_positive_and_negative(&queries[..8 * DIMENSION], |query| &relevances[query])?;
    let before = cpu_milliseconds();
    let nearest = gallery.nearest_positive_and_negative(queries, |query| &relevances[query])?;
    let milliseconds = (cpu_milliseconds() - before) / QUERIES as f64;
    let rows = nearest
        .iter()
        .map(|nearest| {
            let both = [nearest.positive, nearest.negative].into_iter().flatten();
            both.min_by(|left, right| left.squared_distance.total_cmp(&right.squared_distance))
                .map(|nearest| nearest.row)
                .ok_or_else(|| "a gallery has at least one row".into())
        })
        .collect::<Result<_, Box<dyn Error>>>()?;
    Ok((milliseconds, rows))
}

fn labelled(vectors: Vec<f32>) -> Result<Gallery, Box<dyn Error>> {
    let rows = vectors.len() / DIMENSION;
    let identities = (0..rows).map(|row| format!("picture-{row:07}")).collect();
    let labels: Vec<String> = (0..rows).map(|row| format!("label-{:04}", row % LABELS)).collect();
    Ok(Gallery::new(vectors, DIMENSION, identities, &labels, Metric::Euclidean)?)
}

/// Directions drawn uniformly from the sphere.
fn unit_vectors(rows: usize, seed: u64) -> Vec<f32> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut vectors: Vec<f32> = Vec::with_capacity(rows * DIMENSION);
    let mut vector = [0.0_f32; DIMENSION];
    for _ in 0..rows {
        vector.fill_with(|| StandardNormal.sample(&mut generator));
        let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        vectors.extend(vector.iter().map(|value| value / norm));
    }
    vectors
}

/// Writes rows of [`DIMENSION`] numbers in numpy's format, version 1.0.
fn write_npy(path: &Path, vectors: &[f32]) -> Result<(), Box<dyn Error>> {
    let shape = format!("({}, {DIMENSION})", vectors.len() / DIMENSION);
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend_from_slice(format!("{header:<117}\n").as_bytes());
    bytes.extend(vectors.iter().flat_map(|value| value.to_le_bytes()));
    Ok(fs::write(path, bytes)?)
}

/// Reads what [`write_npy`] wrote.
fn read_npy(path: &Path) -> Result<Vec<f32>, Box<dyn Error>> {
    let bytes = fs::read(path)?;
    let (numbers, _) = bytes.get(128..).ok_or("file has no header")?.as_chunks::<4>();
    Ok(numbers.iter().map(|&number| f32::from_le_bytes(number)).collect())
}

/// CPU time of this process so far, all its threads together.
fn cpu_milliseconds() -> f64 {
    ProcessTime::now().as_duration().as_secs_f64() * 1e3
}

/// Largest resident memory of this process so far.
fn peak_gigabytes() -> Result<f64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM line")?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024.0 / 1e9)
}
