//! Samples to keep and their key; tests inside and outside of the crate share this file by its path.

use retrievalguard::noise::Stage;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::Engine;
use retrievalguard::storage::sample_cache::SampleKey;
use retrievalguard::{Excess, NormBound, Samples, Seed, Sigma};

pub(crate) fn key() -> SampleKey {
    SampleKey {
        model: Digest::of_bytes(b"model"),
        contract: Digest::of_bytes(b"contract"),
        engine: Engine { name: "rten".into(), version: "1".into() },
        seed: Seed::new(7),
        identity: "cat 1".into(),
        stage: Stage::Pilot,
        sigma: Sigma::new(0.1).unwrap(),
        range: 10..60,
    }
}

pub(crate) fn samples() -> Samples {
    let values: Vec<f32> = (0..50 * 7_u32).map(|number| (number * 37 % 101) as f32 - 50.0).collect();
    Samples::new(values, 7, NormBound::UNIT, Excess::Project).unwrap()
}
