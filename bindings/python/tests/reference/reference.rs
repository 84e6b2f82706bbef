//! Writes the values that the Python package must repeat bit for bit: `tests/reference/reference.json`.
//!
//! `cargo run --release --example reference -- ../../crates/retrievalguard-encoder/tests/models/convolutional.onnx`

use std::io::Write;
use std::path::Path;

use retrievalguard::certificate::{CertificateName, Certifier, SampledQuery, Verdict};
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::planner::Ceiling;
use retrievalguard::{
    Alpha, Embedder, EmbedderFailure, Excess, NormBound, Picture, SampleCount, Samples, Seed, Sigma, Smoother,
};
use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A quarter of the first four of six pixels: exact in every arithmetic.
struct Quarter;

impl Embedder for Quarter {
    fn input_shape(&self) -> &[usize] {
        &[2, 3]
    }

    fn dimension(&self) -> usize {
        4
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        for (picture, embedding) in pictures.chunks(6).zip(embeddings.chunks_mut(4)) {
            for (value, pixel) in embedding.iter_mut().zip(picture) {
                *value = 0.25 * pixel;
            }
        }
        Ok(())
    }
}

fn bits(values: &[f32]) -> Vec<String> {
    values.iter().map(|value| format!("{:08x}", value.to_bits())).collect()
}

fn noise() -> Value {
    let stages = [
        ("pilot", Stage::Pilot),
        ("certify", Stage::Certify),
        ("gallery", Stage::Gallery),
        ("attack", Stage::Attack),
        ("train", Stage::Train),
        ("judge", Stage::Judge),
    ];
    let mut cases = Vec::new();
    for (seed, identity) in
        [("0", ""), ("42", "birds/albatross-7.jpg"), ("340282366920938463463374607431768211455", "ä")]
    {
        for (word, stage) in stages {
            for (sample, first_pixel) in [(0, 0), (17, 1000), (u32::MAX, 12_345)] {
                let seed: Seed = seed.parse().expect("the seeds above are seeds");
                let stream = NoiseStream::new(seed, &ImageIdentity::new(identity), stage);
                let mut values = [0.0; 5];
                stream.fill(sample, first_pixel, &mut values);
                cases.push(json!({
                    "seed": seed, "identity": identity, "stage": word, "sample": sample,
                    "first_pixel": first_pixel, "bits": bits(&values),
                }));
            }
        }
    }
    json!(cases)
}

/// Rows around a point, from the noise itself.
fn rows(stage: Stage, identity: &str, centre: &[f32], count: u32) -> Result<Vec<f32>, Failure> {
    let stream = NoiseStream::new(Seed::new(5), &ImageIdentity::new(identity), stage);
    let mut values = vec![0.0; centre.len() * count as usize];
    for (sample, row) in (0..count).zip(values.chunks_mut(centre.len())) {
        stream.add(sample, Sigma::new(0.05)?, centre, row);
    }
    Ok(values)
}

fn certificates() -> Result<Value, Failure> {
    let centre = [0.5, 0.25, 0.0, 0.0, 0.125, 0.0, 0.0, 0.0];
    let vectors = rows(Stage::Gallery, "gallery", &[0.25; 8], 5)?;
    let identities = (0..5).map(|row| row.to_string()).collect();
    let gallery = Gallery::new(vectors, 8, identities, &["a", "a", "b", "b", "c"], Metric::Euclidean)?;
    let samples = |stage, count| -> Result<Samples, Failure> {
        Ok(Samples::new(rows(stage, "query", &centre, count)?, 8, NormBound::UNIT, Excess::Refuse)?)
    };
    let query =
        SampledQuery { pilot: samples(Stage::Pilot, 300)?, certifying: samples(Stage::Certify, 2_000)? };
    let certifier =
        Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?).gallery_samples(SampleCount::new(32)?);
    let mut cases = Vec::new();
    for label in ["a", "b", "c", "absent"] {
        let positives = gallery.label_named(label).map_or(Positives::Absent, Positives::Label);
        for excluded in [vec![], vec![0, 2]] {
            let relevance = Relevance::new(positives, excluded.clone());
            for name in CertificateName::SMOOTHED {
                let outcome = certifier.certify(name, &query, &relevance)?;
                let radius =
                    outcome.verdict.radius().map(|radius| format!("{:016x}", radius.get().to_bits()));
                let word = match outcome.verdict {
                    Verdict::Certified { .. } => "certified",
                    Verdict::Abstained => "abstained",
                    Verdict::Misretrieved => "misretrieved",
                };
                cases.push(json!({
                    "label": label, "excluded": excluded, "certificate": name, "verdict": word,
                    "radius_bits": radius, "samples": outcome.samples, "explain": outcome.explain,
                }));
            }
        }
    }
    Ok(json!(cases))
}

fn smoothed() -> Result<Value, Failure> {
    let smoother = Smoother::new(&Quarter, Sigma::new(0.25)?, Seed::new(9));
    let pixels = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5];
    let picture = Picture { identity: "six pixels", pixels: &pixels };
    let samples = smoother.samples(&picture, Stage::Certify, 500..507)?;
    Ok(json!({ "start": 500, "end": 507, "bits": bits(samples.values()) }))
}

fn onnx(model: &Path) -> Result<Value, Failure> {
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let encoder = OnnxEmbedder::open(model, ModelConfig::for_model(model)?, &options)?;
    let pixels: Vec<f32> = (0..encoder.input_len()).map(|pixel| (pixel % 64) as f32 / 64.0).collect();
    let smoother = Smoother::new(&encoder, Sigma::new(0.1)?, Seed::new(3));
    let samples = smoother.samples(&Picture { identity: "ramp", pixels: &pixels }, Stage::Pilot, 0..4)?;
    Ok(json!({ "bits": bits(samples.values()) }))
}

fn planner() -> Result<Value, Failure> {
    let ceiling = Ceiling::new(Sigma::new(0.25)?, Alpha::new(0.01)?, NormBound::UNIT, 64);
    let bits = |radius: f64| format!("{:016x}", radius.to_bits());
    let mut cases = Vec::new();
    for name in CertificateName::SMOOTHED {
        cases.push(json!({
            "certificate": name,
            "radius_bits": ceiling.largest_radius(name, SampleCount::new(5_000)?).map(bits),
            "samples": ceiling.samples_needed(name, 0.1).map(SampleCount::get),
        }));
    }
    Ok(json!(cases))
}

fn main() -> Result<(), Failure> {
    let model = std::env::args_os().nth(1).ok_or("wanted the path of convolutional.onnx")?;
    let value = json!({
        "noise": noise(),
        "certificates": certificates()?,
        "smooth": smoothed()?,
        "onnx": onnx(Path::new(&model))?,
        "planner": planner()?,
    });
    writeln!(std::io::stdout(), "{value:#}")?;
    Ok(())
}
