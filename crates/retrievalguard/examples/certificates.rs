//! Mean certified radius of every certificate on a random but realistic retrieval problem, and of `half-space` grown in
//! looks.
//!
//! 128 dimensions, 60 classes with 5 items each, and an encoder under which the noise has a decaying spectrum.
//!
//! ```text
//! cargo run --release --example certificates              # 20 queries, n up to 100,000
//! cargo run --release --example certificates -- 3 10000   # 3 queries, n up to 10,000
//! ```
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;

use retrievalguard::certificate::{
    CertificateName, Certifier, GrowingOptions, GrowingTest, SampledQuery, Verdict, round_down,
};
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{
    Alpha, Embedder, EmbedderFailure, NormBound, Picture, SampleCount, Seed, Sigma, Smoother,
};

const DIMENSION: usize = 128;
const CLASSES: usize = 60;
const ITEMS: usize = 5;
const GALLERY_SAMPLES: u32 = 200;
const PILOT: u32 = 500;

/// Scales each pixel by a falling factor and normalises, so that noise is strong along a few directions.
struct Encoder {
    scale: Vec<f32>,
}

impl Encoder {
    fn new() -> Self {
        let falling: Vec<f64> = (1..=DIMENSION).map(|place| (place as f64).powf(-0.6)).collect();
        let norm = falling.iter().map(|value| value * value).sum::<f64>().sqrt();
        Self { scale: falling.iter().map(|value| (3.0 * value / norm) as f32).collect() }
    }

    /// The picture whose clean embedding points along `target`.
    fn draw(&self, target: &[f32]) -> Vec<f32> {
        target.iter().zip(&self.scale).map(|(target, scale)| target / scale).collect()
    }
}

impl Embedder for Encoder {
    fn input_shape(&self) -> &[usize] {
        &[DIMENSION]
    }

    fn dimension(&self) -> usize {
        DIMENSION
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        let rows = pictures.chunks_exact(DIMENSION).zip(embeddings.chunks_exact_mut(DIMENSION));
        for (picture, embedding) in rows {
            let mut squared = 0.0;
            for ((out, pixel), scale) in embedding.iter_mut().zip(picture).zip(&self.scale) {
                *out = pixel * scale;
                squared += *out * *out;
            }
            embedding.iter_mut().for_each(|value| *value /= squared.sqrt());
        }
        Ok(())
    }
}

/// A unit vector near `centre`, the farther the larger `spread`.
fn near(centre: &[f32], spread: f32, name: &str) -> Vec<f32> {
    let stream = NoiseStream::new(Seed::new(1), &ImageIdentity::new(name), Stage::Gallery);
    let mut vector = vec![0.0; DIMENSION];
    stream.fill(0, 0, &mut vector);
    let each = spread / (DIMENSION as f32).sqrt();
    vector.iter_mut().zip(centre).for_each(|(value, centre)| *value = centre + each * *value);
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter_mut().for_each(|value| *value /= norm);
    vector
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let queries: usize = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let most: u32 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;

    let encoder = Encoder::new();
    let sigma = Sigma::new(0.25)?;
    let smoother =
        Smoother::new(&encoder, sigma, Seed::new(2)).threads(std::thread::available_parallelism()?);
    // All classes share a common part, as the classes of a real data set do.
    let common = near(&[0.0; DIMENSION], 1.0, "common");
    let centres: Vec<Vec<f32>> =
        (0..CLASSES).map(|class| near(&common, 1.5, &format!("class {class}"))).collect();

    let (mut vectors, mut names, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for (class, centre) in centres.iter().enumerate() {
        for item in 0..ITEMS {
            let name = format!("class {class} item {item}");
            let pixels = encoder.draw(&near(centre, 0.8, &name));
            let picture = Picture { identity: &name, pixels: &pixels };
            let smoothed = smoother.mean(&picture, Stage::Gallery, 0..GALLERY_SAMPLES)?;
            vectors.extend(smoothed.mean.iter().map(|&value| value as f32));
            names.push(name);
            labels.push(format!("class {class}"));
        }
    }
    let gallery = Gallery::new(vectors, DIMENSION, names, &labels, Metric::Euclidean)?;
    let certifier = Certifier::new(&gallery, sigma, Alpha::new(0.01)?)
        .gallery_samples(SampleCount::new(u64::from(GALLERY_SAMPLES))?);

    let sizes: Vec<u32> = [1_000, 10_000, 100_000].into_iter().filter(|&size| size <= most).collect();
    // The last row is `half-space` with looks on the way.
    let growing = CertificateName::SMOOTHED.len();
    let mut totals = vec![vec![0.0; sizes.len()]; growing + 1];
    let mut certified = vec![vec![0; sizes.len()]; growing + 1];
    for query in 0..queries {
        let class = query % CLASSES;
        let name = format!("query {query}");
        let pixels = encoder.draw(&near(&centres[class], 0.8, &name));
        let picture = Picture { identity: &name, pixels: &pixels };
        let pilot = smoother.samples(&picture, Stage::Pilot, 0..PILOT)?;
        let all = smoother.samples(&picture, Stage::Certify, 0..sizes.iter().copied().max().unwrap_or(1))?;
        let label = gallery.label_named(&format!("class {class}")).ok_or("every class is in the gallery")?;
        let relevance = Relevance::new(Positives::Label(label), vec![]);
        for (column, &size) in sizes.iter().enumerate() {
            let certifying = all.slice(0..size).ok_or("the sample is long enough")?;
            let query = SampledQuery { pilot: pilot.clone(), certifying };
            for (row, name) in CertificateName::SMOOTHED.into_iter().enumerate() {
                let outcome = certifier.certify(name, &query, &relevance)?;
                if let Verdict::Certified { radius } = outcome.verdict {
                    totals[row][column] += radius.get();
                    certified[row][column] += 1;
                }
            }
            let options = GrowingOptions::new(SampleCount::new(u64::from(size))?);
            let mut test = GrowingTest::new(&certifier, &query.pilot, &relevance, &options)?;
            while let Some(range) = test.wants() {
                test.see(&all.slice(range).ok_or("the sample is long enough")?)?;
            }
            if let Verdict::Certified { radius } = test.outcome().verdict {
                totals[growing][column] += radius.get();
                certified[growing][column] += 1;
            }
        }
    }

    println!(
        "mean certified radius over {queries} queries (certified queries), sigma {sigma}, alpha 0.01, pilot {PILOT}"
    );
    print!("{:<16}", "");
    sizes.iter().for_each(|size| print!("{:>22}", format!("n = {size}")));
    println!();
    let names = CertificateName::SMOOTHED.iter().map(|name| name.to_string());
    for (row, name) in names.chain(["growing".to_owned()]).enumerate() {
        print!("{name:<16}");
        for column in 0..sizes.len() {
            let mean = round_down(totals[row][column] / queries as f64, 4);
            let cell = format!("{mean} ({})", certified[row][column]);
            print!("{cell:>22}");
        }
        println!();
    }
    Ok(())
}
