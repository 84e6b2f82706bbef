//! Certifying one query against many negatives: seconds, peak memory and the share of each certificate.
//!
//! ```text
//! cargo run --release -p retrievalguard-benchmarks --bin certify                # 60,000 negatives, n = 10,000
//! cargo run --release -p retrievalguard-benchmarks --bin certify -- 1000 1000   # negatives, n
//! ```
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::error::Error;
use std::time::Instant;

use cpu_time::ProcessTime;
use retrievalguard::certificate::{CertificateName, Certifier, SampledQuery};
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Alpha, Excess, NormBound, SampleCount, Samples, Seed, Sigma};

const DIMENSION: usize = 128;
const PILOT: usize = 1_000;
/// Items of the query's own class.
const POSITIVES: usize = 20;

fn normals(name: &str, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    NoiseStream::new(Seed::new(1), &ImageIdentity::new(name), Stage::Gallery).fill(0, 0, &mut values);
    values
}

/// Rows of unit length around `centre` with a spectrum that falls along the components.
fn cloud(name: &str, rows: usize, centre: &[f32], spread: f32) -> Vec<f32> {
    let mut values = normals(name, rows * DIMENSION);
    for row in values.chunks_exact_mut(DIMENSION) {
        for (place, (value, centre)) in row.iter_mut().zip(centre).enumerate() {
            *value = centre + spread * *value / (1.0 + place as f32).powf(0.6);
        }
        let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        row.iter_mut().for_each(|value| *value /= norm);
    }
    values
}

/// Peak resident memory in MB, where the system tells.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kilobytes| kilobytes / 1e3)
}

/// CPU seconds of this process.
fn cpu_seconds() -> f64 {
    ProcessTime::now().as_duration().as_secs_f64()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let negatives: usize = arguments.next().map_or(Ok(60_000), |text| text.parse())?;
    let samples: usize = arguments.next().map_or(Ok(10_000), |text| text.parse())?;

    let mut centre = normals("query", DIMENSION);
    let norm = centre.iter().map(|value| value * value).sum::<f32>().sqrt();
    centre.iter_mut().for_each(|value| *value /= norm);
    // Half of the negatives share a direction with the query, as the items of related classes do.
    let related: Vec<f32> = centre.iter().map(|value| 0.5 * value).collect();
    let mut vectors = cloud("positives", POSITIVES, &centre, 0.1);
    vectors.extend(cloud("related", negatives / 2, &related, 0.25));
    vectors.extend(cloud("others", negatives - negatives / 2, &[0.0; DIMENSION], 0.5));
    let names = (0..POSITIVES + negatives).map(|row| row.to_string()).collect();
    let labels: Vec<String> = (0..POSITIVES + negatives)
        .map(|row| if row < POSITIVES { "right".to_owned() } else { format!("class {}", row / 5) })
        .collect();
    let gallery = Gallery::new(vectors, DIMENSION, names, &labels, Metric::Euclidean)?;
    let draw = |name, count| {
        Samples::new(cloud(name, count, &centre, 0.2), DIMENSION, NormBound::UNIT, Excess::Refuse)
    };
    let query = SampledQuery { pilot: draw("pilot", PILOT)?, certifying: draw("certify", samples)? };
    let label = gallery.label_named("right").ok_or("the query's class is in the gallery")?;
    let relevance = Relevance::new(Positives::Label(label), vec![]);
    let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?)
        .gallery_samples(SampleCount::new(1_000)?);

    println!(
        "one query, {negatives} negatives, n = {samples}, dimension {DIMENSION}, pilot {PILOT}, one thread"
    );
    let before = peak_memory();
    for name in CertificateName::SMOOTHED {
        let mut times = Vec::new();
        let mut outcome = None;
        for _ in 0..3 {
            let (wall, cpu) = (Instant::now(), cpu_seconds());
            outcome = Some(certifier.certify(name, &query, &relevance)?);
            times.push((wall.elapsed().as_secs_f64(), cpu_seconds() - cpu));
        }
        times.sort_by(|left, right| left.0.total_cmp(&right.0));
        let radius =
            outcome.and_then(|outcome| outcome.verdict.radius()).map_or("none".to_owned(), |r| r.to_string());
        let (wall, cpu) = times[1];
        println!("{name:<16} {wall:>8.3} s, {cpu:>8.3} s of CPU (median of 3)   radius {radius}");
    }
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        println!("peak memory {after:.0} MB, of which {before:.0} MB are gallery and samples");
    }
    Ok(())
}
