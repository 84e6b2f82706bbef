//! Encoders that couple the pictures of a batch: how often certificates are wrong, and that batches change nothing.
//!
//! `shared_factor.onnx` gives every picture `sign(p₀ − ½) · sign(p₁ − ½)`, the second sign that of the first picture of
//! the batch. The distribution of each embedding is the one it has alone, so the true radius is known; the samples of a batch are
//! not independent, so a certificate that counts them as if they were is wrong far more often than α. The harness must
//! see that in an encoder that is run in batches, and must not see it in the same encoder as this crate runs it.
//! `RETRIEVALGUARD_LONG_TESTS=1` runs ten times as many repetitions.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use retrievalguard::certificate::{CertificateName, Certifier, SampledQuery};
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::noise::Stage;
use retrievalguard::normal::Probability;
use retrievalguard::{
    Alpha, Embedder, EmbedderFailure, NormBound, Picture, Samples, Seed, Sigma, Smoother, binomial,
};
use retrievalguard_encoder::check::{Companions, Passes};
use retrievalguard_encoder::engine::{Engine, EngineError, EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::graph::batch::BatchReading;
use retrievalguard_encoder::model_config::ModelConfig;

const PIXELS: usize = 3 * 16 * 16;
const SIGMA: f64 = 0.1;
/// Distance of the picture's second pixel from one half, and its true radius.
const MARGIN: f64 = 0.07;
const ALPHA: f64 = 0.01;

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

fn open(name: &str) -> Result<OnnxEmbedder, EngineError> {
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    OnnxEmbedder::open(&model(name), ModelConfig::for_model(&model(name)).unwrap(), &options)
}

fn count(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap()
}

/// A picture whose first pixel is far from one half and whose second is a margin away.
fn picture() -> Vec<f32> {
    let mut pixels = vec![0.5; PIXELS];
    pixels[0] = 1.0;
    pixels[1] = 0.5 + MARGIN as f32;
    pixels
}

/// The same encoder as in the file, run in whatever batches it is given.
struct InBatches;

impl Embedder for InBatches {
    fn input_shape(&self) -> &[usize] {
        &[3, 16, 16]
    }

    fn dimension(&self) -> usize {
        1
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        let factor = (pictures[1] - 0.5).signum();
        for (picture, row) in pictures.chunks_exact(PIXELS).zip(embeddings) {
            *row = (picture[0] - 0.5).signum() * factor;
        }
        Ok(())
    }
}

/// Certificates of one picture with a radius above the true one, among so many repetitions with fresh noise.
fn wrong(encoder: &(dyn Embedder + Sync), repetitions: u32) -> u32 {
    let gallery = Gallery::new(
        vec![1.0, -1.0],
        1,
        vec!["near".to_owned(), "far".to_owned()],
        &["right", "wrong"],
        Metric::Euclidean,
    )
    .unwrap();
    let sigma = Sigma::new(SIGMA).unwrap();
    let certifier = Certifier::new(&gallery, sigma, Alpha::new(ALPHA).unwrap());
    let relevance = Relevance::new(Positives::Label(gallery.label_named("right").unwrap()), Vec::new());
    let pixels = picture();
    let next = AtomicU32::new(0);
    let work = || {
        let mut wrong = 0;
        loop {
            let repetition = next.fetch_add(1, Ordering::Relaxed);
            if repetition >= repetitions {
                return wrong;
            }
            let seed = Seed::new(u64::from(repetition));
            let smoother = Smoother::new(encoder, sigma, seed).batch(count(64));
            let picture = Picture { identity: "query", pixels: &pixels };
            let draw = |stage, range| smoother.samples(&picture, stage, range).unwrap();
            let query =
                SampledQuery { pilot: draw(Stage::Pilot, 0..64), certifying: draw(Stage::Certify, 0..256) };
            let outcome = certifier.certify(CertificateName::HalfSpace, &query, &relevance).unwrap();
            let radius = outcome.verdict.radius();
            wrong += u32::from(radius.is_some_and(|radius| radius.get() > MARGIN));
        }
    };
    std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    })
}

#[test]
fn certificates_of_a_coupled_encoder_are_wrong_in_batches_and_right_one_by_one() {
    let long = std::env::var_os("RETRIEVALGUARD_LONG_TESTS").is_some();
    let repetitions = if long { 4_000 } else { 400 };
    let p_value = |wrong| binomial::upper_tail(wrong, repetitions, Probability::new(ALPHA).unwrap());

    let in_batches = wrong(&InBatches, repetitions);
    let rate = f64::from(in_batches) / f64::from(repetitions);
    assert!(rate > 0.2 && p_value(in_batches) < 1e-9, "a coupled batch went unnoticed: {in_batches}");

    let encoder = open("shared_factor.onnx").unwrap();
    let one_by_one = wrong(&encoder, repetitions);
    assert!(p_value(one_by_one) > 1e-4, "{one_by_one} of {repetitions} certificates are wrong at {ALPHA}");
    eprintln!("wrong of {repetitions} at alpha {ALPHA}: {in_batches} in batches, {one_by_one} one by one");
}

#[test]
fn no_batch_size_changes_a_bit_of_a_coupled_encoder() {
    let mut pixels: Vec<f32> = (0..PIXELS).map(|pixel| pixel as f32 / PIXELS as f32).collect();
    pixels[0] = 0.9;
    let picture = Picture { identity: "one", pixels: &pixels };
    for name in ["dynamic_quantised.onnx", "shared_factor.onnx"] {
        let encoder = open(name).unwrap();
        assert_eq!(encoder.check().passes, Passes::OneByOne, "{name}");
        assert!(matches!(encoder.check().graph, BatchReading::Coupled { .. }), "{name}: {}", encoder.check());
        assert!(encoder.notices().iter().any(|notice| notice.contains("by itself")), "{name}");
        let samples = |batch| -> Samples {
            let smoother =
                Smoother::new(&encoder, Sigma::new(0.25).unwrap(), Seed::new(1)).batch(count(batch));
            smoother.samples(&picture, Stage::Certify, 0..100).unwrap()
        };
        let alone = samples(1);
        for batch in [2, 3, 64, 100] {
            assert_eq!(samples(batch), alone, "{name}, batch {batch}");
        }
    }
}

#[test]
fn companions_in_a_call_do_not_reach_a_picture() {
    // Strangers' pictures come in one call when a service shares its batches.
    let own = picture();
    for name in ["dynamic_quantised.onnx", "shared_factor.onnx"] {
        let encoder = open(name).unwrap();
        let dimension = encoder.dimension();
        let mut alone = vec![0.0; dimension];
        encoder.embed(&own, &mut alone).unwrap();
        for stranger in [vec![-1000.0; PIXELS], vec![1000.0; PIXELS], vec![0.0; PIXELS]] {
            let mut rows = vec![0.0; 3 * dimension];
            let batch = [stranger.clone(), own.clone(), stranger].concat();
            // A stranger of nothing but one colour may have no embedding; that is its own affair.
            if encoder.embed(&batch, &mut rows).is_ok() {
                assert_eq!(rows[dimension..2 * dimension], alone, "{name}");
            }
        }
    }
}

#[test]
fn sound_encoders_share_batches_and_others_are_refused_by_name() {
    for name in ["convolutional.onnx", "int8.onnx", "fixed_batch.onnx"] {
        let encoder = open(name).unwrap();
        let check = encoder.check();
        assert_eq!((check.passes, check.companions), (Passes::Together, Companions::Harmless), "{name}");
        assert_eq!(check.graph, BatchReading::Independent, "{name}");
        let text = serde_json::to_string(check).unwrap();
        assert_eq!(
            text,
            r#"{"graph":{"verdict":"independent"},"companions":"harmless","passes":"together"}"#
        );
    }
    let error = open("random.onnx").unwrap_err();
    assert!(
        matches!(&error, EngineError::Random { operator, .. } if operator == "RandomNormalLike"),
        "{error}"
    );
    // Its mean over the batch leaves nothing of a picture by itself: said as what it is, not as a length of 0.
    let error = open("batch_mean.onnx").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("coupled by node `mean` (ReduceMean): it reduces over the batch"), "{text}");
    assert!(matches!(error, EngineError::NothingAlone { .. }));
}
