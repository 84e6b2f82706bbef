//! One query against a gallery in shards, decided at a target radius of σ by the pairwise retriever, after the encoder.
//!
//! ```text
//! cargo build --release -p retrievalguard-benchmarks --bin shards
//! target/release/shards write DIR 10000000 100000 10   # items, labels, shards
//! target/release/shards query DIR 5                    # rounds
//! ```
//!
//! Stored vectors are unit vectors around the centre of their label. The noisy embeddings of a query lie around a vector of
//! its label: near it (clear), further (typical, hard), and so far that most have another label before it (hopeless). Each query
//! goes the way of `retrievalguard query`: a pilot of 20 chooses the label, samples are drawn until the radius is decided, and
//! the five nearest items are looked up and named.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::cell::Cell;
use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use cpu_time::ProcessTime;
use retrievalguard::certificate::{CertificateError, CertificateName, Retriever};
use retrievalguard::gallery::Metric;
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::storage::manifest::Provenance;
use retrievalguard::storage::shards::{ShardItem, ShardOptions, ShardWriter};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::pipeline::{Query, QueryCertifier, Relevant};
use retrievalguard_encoder::run::Procedure;

const DIMENSION: usize = 128;
/// How far items lie from the centre of their label, and noisy embeddings from their item, in each component.
const ITEM_SPREAD: f32 = 0.06;
const QUERIES: [(&str, f32); 4] = [("clear", 0.05), ("typical", 0.125), ("hard", 0.3), ("hopeless", 0.6)];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["write", folder, items, labels, shards] => {
            write(Path::new(folder), items.parse()?, labels.parse()?, shards.parse()?)
        }
        ["query", folder, rounds] => query(Path::new(folder), rounds.parse()?),
        _ => Err("wanted write FOLDER ITEMS LABELS SHARDS | query FOLDER ROUNDS".into()),
    }
}

fn stream(name: &str) -> NoiseStream {
    NoiseStream::new(Seed::new(7), &ImageIdentity::new(name), Stage::Gallery)
}

/// A unit vector around a centre, which it takes the place of.
fn around(centre: &mut [f32; DIMENSION], spread: f32, noise: &NoiseStream, place: u32) {
    let mut values = [0.0; DIMENSION];
    noise.fill(place, 0, &mut values);
    centre.iter_mut().zip(values).for_each(|(centre, value)| *centre += spread * value);
    let norm = centre.iter().map(|value| value * value).sum::<f32>().sqrt() * 1.000_001;
    centre.iter_mut().for_each(|value| *value /= norm);
}

/// The stored vector of a row.
fn item(row: u32, labels: u32, centres: &NoiseStream, rows: &NoiseStream) -> [f32; DIMENSION] {
    let mut vector = [0.0; DIMENSION];
    around(&mut vector, 1.0, centres, row % labels);
    around(&mut vector, ITEM_SPREAD, rows, row);
    vector
}

fn write(folder: &Path, items: u32, labels: u32, shards: usize) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let rows = NonZeroUsize::new((items as usize).div_ceil(shards.max(1))).ok_or("a gallery has items")?;
    let options = ShardOptions { dimension: DIMENSION, metric: Metric::Euclidean, rows };
    let mut writer = ShardWriter::replace(folder, options, Provenance::unknown(NormBound::UNIT))?;
    let (centres, noise) = (stream("centres"), stream("rows"));
    for row in 0..items {
        let (identity, label) = (format!("picture-{row}"), format!("label-{}", row % labels));
        let vector = item(row, labels, &centres, &noise);
        writer.push(&ShardItem {
            identity: &identity,
            label: &label,
            vector: &vector,
            plain: None,
            path: None,
        })?;
    }
    let shards = writer.finish()?.shards.len();
    println!(
        "wrote {items} × {DIMENSION}, {labels} labels, {shards} shards: {:.1} s, {}",
        started.elapsed().as_secs_f64(),
        peak_memory()
    );
    Ok(())
}

fn query(folder: &Path, rounds: usize) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let stored = StoredGallery::open(folder)?;
    let gallery = stored.gallery();
    let (items, labels) = (gallery.len(), gallery.label_count());
    println!(
        "{items} items, {labels} labels, opened and verified in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let sigma = Sigma::new(0.25)?;
    let procedure = Procedure {
        sigma,
        alpha: Alpha::new(0.01)?,
        pilot: SampleCount::new(20)?,
        samples: SampleCount::new(2_000)?,
        certificates: vec![CertificateName::Pairwise],
        top_k: 1,
        target_radius: Some(TargetRadius::new(sigma.get())?),
        replan_bets: false,
    };
    let certifier = QueryCertifier::stored(&procedure, &stored);
    let (centres, rows) = (stream("centres"), stream("rows"));
    for (kind, spread) in QUERIES {
        for round in 0..rounds {
            let row = (items / (rounds + 1) * (round + 1)) as u32;
            let centre = item(row, labels as u32, &centres, &rows);
            let drawn = Cell::new(0);
            let draw = |stage, range: std::ops::Range<u32>| {
                let noise = stream(&format!("{kind} {round} {stage:?}"));
                let mut values = Vec::with_capacity(range.len() * DIMENSION);
                drawn.set(drawn.get() + range.len());
                for place in range {
                    let mut vector = centre;
                    around(&mut vector, spread, &noise, place);
                    values.extend(vector);
                }
                let samples = Samples::new(values, DIMENSION, NormBound::UNIT, Excess::Refuse);
                samples.map_err(CertificateError::from)
            };
            let (wall, cpu) = (Instant::now(), ProcessTime::now());
            let asked = Query { relevant: Relevant::Retrieved(Retriever::Pairwise), excluded: &[] };
            let answered = certifier.answer(&asked, draw, |error| error)?;
            let decided = wall.elapsed().as_secs_f64();
            let nearest = certifier.nearest(&answered.mean, 5, &[])?;
            let first = gallery.identity(nearest[0].row)?;
            println!(
                "{kind:<9} {:<9} {:>4} samples, {:>4} drawn with the pilot: {decided:>5.1} s, {:>5.1} s with the nearest items \
                 ({:.1} CPU s), first {first}",
                answered.decision.map_or("", |decision| decision.as_str()),
                answered.outcomes[0].samples,
                drawn.get(),
                wall.elapsed().as_secs_f64(),
                cpu.elapsed().as_secs_f64(),
            );
        }
    }
    println!("{}", peak_memory());
    Ok(())
}

/// The most memory that the process has had at any time, where the system says it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "peak memory unknown".to_owned(), |size| format!("peak memory {}", size.trim()))
}
