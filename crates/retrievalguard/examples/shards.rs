//! A gallery in shards on disk: written, searched exactly, compared with a double loop, and a certificate against it.
//!
//! ```text
//! cargo run --release --example shards                                    # all of it, small, in a temporary folder
//! cargo run --release --example shards -- write FOLDER 10000000 1000000   # 10 million rows, a million in each shard
//! cargo run --release --example shards -- search FOLDER                   # seconds per query and peak memory
//! cargo run --release --example shards -- memory FOLDER/shard-00000       # one shard, in memory, one thread
//! cargo run --release --example shards -- certify FOLDER 1000             # one query with 1,000 certifying samples
//! ```
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use retrievalguard::certificate::{CertificateName, Certifier, Radius, SampledQuery};
use retrievalguard::gallery::{Metric, NearestPair, Neighbour, Positives, Relevance};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};
use retrievalguard::storage::shards::{ShardItem, ShardOptions, ShardWriter, ShardedGallery};
use retrievalguard::{Alpha, Excess, NormBound, Samples, Seed, Sigma};

const DIMENSION: usize = 128;
const LABELS: usize = 5_000;
const QUERIES: usize = 64;
/// Queries that are searched together.
const TOGETHER: [usize; 3] = [1, 16, 64];
const ROUNDS: usize = 5;
/// Queries that are compared with the double loop.
const CHECKED: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => {
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("gallery");
            write(&path, 50_000, 20_000)?;
            search(&path)?;
            memory(&path.join("shard-00000"))?;
            certify(&path, 1_000)
        }
        ["write", folder, items, rows] => write(Path::new(folder), items.parse()?, rows.parse()?),
        ["search", folder] => search(Path::new(folder)),
        ["memory", folder] => memory(Path::new(folder)),
        ["certify", folder, samples] => certify(Path::new(folder), samples.parse()?),
        _ => Err("wanted nothing, or: write FOLDER ITEMS ROWS | search FOLDER | memory FOLDER | certify FOLDER SAMPLES"
            .into()),
    }
}

/// Noise that stands for embeddings: row after row, the same for any cut into shards.
fn noise(stage: Stage) -> NoiseStream {
    NoiseStream::new(Seed::new(7), &ImageIdentity::new("shards"), stage)
}

fn write(folder: &Path, items: u32, rows: usize) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let rows = NonZeroUsize::new(rows).ok_or("a shard has at least one row")?;
    let options = ShardOptions { dimension: DIMENSION, metric: Metric::Cosine, rows };
    let mut writer = ShardWriter::create(folder, options, Provenance::unknown(NormBound::UNIT))?;
    let mut vector = [0.0; DIMENSION];
    let stream = noise(Stage::Gallery);
    for row in 0..items {
        stream.fill(row, 0, &mut vector);
        let label = format!("label-{}", row as usize % LABELS);
        writer.push(&ShardItem {
            identity: &format!("picture-{row}"),
            label: &label,
            vector: &vector,
            plain: None,
            path: None,
        })?;
    }
    let manifest = writer.finish()?;
    let (shards, seconds) = (manifest.shards.len(), started.elapsed().as_secs_f64());
    println!("wrote {items} × {DIMENSION} in {shards} shards: {seconds:.1} s, {}", peak_memory());
    Ok(())
}

fn queries() -> Vec<f32> {
    let mut queries = vec![0.0; QUERIES * DIMENSION];
    for (place, query) in (0..).zip(queries.chunks_exact_mut(DIMENSION)) {
        noise(Stage::Pilot).fill(place, 0, query);
    }
    queries
}

fn search(folder: &Path) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let gallery = ShardedGallery::open(folder)?;
    let seconds = started.elapsed().as_secs_f64();
    let (rows, shards) = (gallery.len(), gallery.shard_count());
    println!("{rows} rows in {shards} shards, opened in {seconds:.2} s");
    let queries = queries();
    let label = |query: usize| gallery.label_named(&format!("label-{query}")).ok_or("a label is missing");
    let relevances: Vec<Relevance> = (0..QUERIES)
        .map(|query| Ok(Relevance::new(Positives::Label(label(query)?), vec![query])))
        .collect::<Result<_, &str>>()?;
    let mut found = Vec::new();
    for together in TOGETHER {
        let seconds = time(|| {
            found = gallery.nearest_positive_and_negative(&queries[..together * DIMENSION], |query| {
                &relevances[query]
            })?;
            Ok(())
        })?;
        show(together, &seconds);
    }
    println!("{}", peak_memory());

    let started = Instant::now();
    let wanted = double_loop(&gallery, &queries[..CHECKED * DIMENSION], &relevances)?;
    if found[..CHECKED] != wanted {
        return Err(format!("the double loop gives {wanted:?}, the search {:?}", &found[..CHECKED]).into());
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{CHECKED} queries equal the double loop bit for bit ({seconds:.1} s)");
    Ok(())
}

/// Every row against every query in `f64`.
fn double_loop(
    gallery: &ShardedGallery,
    queries: &[f32],
    relevances: &[Relevance],
) -> Result<Vec<NearestPair>, Box<dyn Error>> {
    let mut nearest = vec![NearestPair::default(); queries.len() / DIMENSION];
    let rows: Vec<usize> = (0..gallery.len()).collect();
    for block in rows.chunks(100_000) {
        let vectors = gallery.load_rows(block)?;
        for (&row, vector) in block.iter().zip(vectors.chunks_exact(DIMENSION)) {
            for (place, query) in queries.chunks_exact(DIMENSION).enumerate() {
                if relevances[place].excluded.contains(&row) {
                    continue;
                }
                let positive = relevances[place].positives == Positives::Label(gallery.label(row));
                let side = if positive { &mut nearest[place].positive } else { &mut nearest[place].negative };
                let mut squared_distance = 0.0;
                for (&left, &right) in query.iter().zip(vector) {
                    let difference = f64::from(left) - f64::from(right);
                    squared_distance += difference * difference;
                }
                if side.is_none_or(|other| squared_distance < other.squared_distance) {
                    *side = Some(Neighbour { row, squared_distance });
                }
            }
        }
    }
    Ok(nearest)
}

fn memory(folder: &Path) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let gallery = GalleryDirectory::read(folder)?.gallery;
    let (rows, seconds) = (gallery.len(), started.elapsed().as_secs_f64());
    println!("{rows} rows in memory, one thread, read in {seconds:.2} s");
    let queries = queries();
    let label = |query: usize| gallery.label_named(&format!("label-{query}")).ok_or("a label is missing");
    let relevances: Vec<Relevance> = (0..QUERIES)
        .map(|query| Ok(Relevance::new(Positives::Label(label(query)?), vec![query])))
        .collect::<Result<_, &str>>()?;
    for together in TOGETHER {
        let seconds = time(|| {
            gallery.nearest_positive_and_negative(&queries[..together * DIMENSION], |query| {
                &relevances[query]
            })?;
            Ok(())
        })?;
        show(together, &seconds);
    }
    println!("{}", peak_memory());
    Ok(())
}

/// Certifies that a row stays nearest to a query whose noisy embeddings lie around it.
fn certify(folder: &Path, samples: u32) -> Result<(), Box<dyn Error>> {
    let gallery = ShardedGallery::open(folder)?;
    let row = gallery.len() / 3;
    let centre = gallery.load_rows(&[row])?;
    let around = |stage, count: u32| {
        let mut values = vec![0.0; count as usize * DIMENSION];
        for (place, vector) in (0..).zip(values.chunks_exact_mut(DIMENSION)) {
            noise(stage).fill(place, 0, vector);
            vector.iter_mut().zip(&centre).for_each(|(value, centre)| *value = centre + 0.08 * *value);
            let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt() * 1.000_001;
            vector.iter_mut().for_each(|value| *value /= norm);
        }
        Samples::new(values, DIMENSION, NormBound::UNIT, Excess::Refuse)
    };
    let query =
        SampledQuery { pilot: around(Stage::Pilot, 500)?, certifying: around(Stage::Certify, samples)? };
    let relevance = Relevance::new(Positives::Item(row), vec![]);
    let started = Instant::now();
    let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
    let outcome = certifier.certify(CertificateName::HalfSpace, &query, &relevance)?;
    let (seconds, rows) = (started.elapsed().as_secs_f64(), gallery.len());
    let radius = outcome.verdict.radius().map_or(0.0, Radius::get);
    println!(
        "one query, n = {samples}, {rows} rows: certified radius {radius:.4} in {seconds:.1} s, {}",
        peak_memory()
    );
    Ok(())
}

/// Seconds of every round.
fn time(mut work: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut seconds = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        work()?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

fn show(together: usize, seconds: &[f64]) {
    let first = seconds[0];
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let per_query = sorted[sorted.len() / 2] / together as f64;
    println!(
        "{together:>3} queries: {per_query:.4} s per query, median of {ROUNDS} (first pass {first:.2} s in all)"
    );
}

/// The most memory that the process has had at any time, where the system says it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "peak memory unknown".to_owned(), |size| format!("peak memory {}", size.trim()))
}
