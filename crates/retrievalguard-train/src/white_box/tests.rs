use std::fs;

use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::resize::Interpolation;

use super::*;
use crate::export::{Preparation, export};

/// An exported network, as the engine runs it and as it is rebuilt.
fn exported(architecture: Architecture, [channels, height, width]: [usize; 3]) -> (OnnxEmbedder, WhiteBox) {
    let folder = tempfile::tempdir().unwrap();
    let picture = PictureSize { channels, height, width };
    let config = NetworkConfig { dimension: 6, width: 8, ..NetworkConfig::new(architecture, picture) };
    let network = Network::lifelike(&config, Seed::new(4), &Device::default());
    let preparation = Preparation::shorter_side(height.max(width), Interpolation::Bilinear);
    let files = export(&network, preparation, folder.path()).unwrap();
    let model_config = ModelConfig::for_model(&files.model).unwrap();
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let encoder = OnnxEmbedder::open(&files.model, model_config.clone(), &options).unwrap();
    (encoder, WhiteBox::open(&files.model, &model_config).unwrap())
}

fn pixels(count: usize, sample: u32) -> Vec<f32> {
    let mut pixels = vec![0.0; count];
    NoiseStream::new(Seed::new(8), &ImageIdentity::new("pixels"), Stage::Pilot).fill(sample, 0, &mut pixels);
    pixels.iter_mut().for_each(|pixel| *pixel = 0.5 + 0.3 * *pixel);
    pixels
}

#[test]
fn a_rebuilt_network_gives_the_engines_embeddings() {
    let mut cases: Vec<_> =
        Architecture::ALL.into_iter().map(|architecture| (architecture, [3, 48, 37])).collect();
    cases.push((Architecture::Small, [1, 28, 28]));
    for (architecture, picture) in cases {
        let (encoder, white_box) = exported(architecture, picture);
        white_box.check(&encoder).unwrap();
        let pictures = pixels(3 * encoder.input_len(), 0);
        let mut wanted = vec![0.0; 3 * 6];
        encoder.embed(&pictures, &mut wanted).unwrap();
        let mut seen = Vec::new();
        let centre = vec![0.5; encoder.input_len()];
        let noisy = NoisyCopies { centre: &centre, copies: &pictures, sigma: 0.3 };
        let mut towards = |embeddings: &[f32]| {
            seen = embeddings.to_vec();
            vec![1.0; 6]
        };
        white_box.gradient(&noisy, &mut towards).unwrap();
        for (found, wanted) in seen.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 1e-4, "{architecture} {picture:?}: {found} not {wanted}");
        }
    }
}

#[test]
fn gradients_are_the_differences_of_the_engines_scores() {
    let (encoder, white_box) = exported(Architecture::Small, [3, 32, 32]);
    let direction = [0.5_f32, -0.3, 0.2, 0.6, -0.4, 0.1];
    let copies = pixels(2 * encoder.input_len(), 1);
    let centre = vec![0.5; encoder.input_len()];
    let score = |copies: &[f32]| -> f64 {
        let mut rows = vec![0.0; 2 * 6];
        encoder.embed(copies, &mut rows).unwrap();
        let of = |row: &[f32]| -> f64 {
            row.iter().zip(direction).map(|(&left, right)| f64::from(left) * f64::from(right)).sum()
        };
        rows.chunks_exact(6).map(of).sum::<f64>() / 2.0
    };
    let noisy = NoisyCopies { centre: &centre, copies: &copies, sigma: 0.3 };
    let gradient = white_box.gradient(&noisy, &mut |_| direction.to_vec()).unwrap();
    let length = gradient.iter().map(|value| value * value).sum::<f64>().sqrt();
    // Along the gradient itself and along other directions of length 1, both copies moved alike.
    let mut along: Vec<Vec<f64>> = vec![gradient.iter().map(|value| value / length).collect()];
    for sample in 2..5 {
        let other = pixels(gradient.len(), sample);
        let norm = other.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        along.push(other.iter().map(|&value| f64::from(value) / norm).collect());
    }
    for (number, along) in along.iter().enumerate() {
        let step = 2e-3;
        let moved = |sign: f64| -> Vec<f32> {
            let shift = along.iter().cycle();
            copies.iter().zip(shift).map(|(&pixel, shift)| pixel + (sign * step * shift) as f32).collect()
        };
        let found = (score(&moved(1.0)) - score(&moved(-1.0))) / (2.0 * step);
        let wanted: f64 = gradient.iter().zip(along).map(|(left, right)| left * right).sum();
        assert!((found - wanted).abs() <= 0.02 * length, "direction {number}: {found} not {wanted}");
    }
}

#[test]
fn other_models_are_refused_by_name() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../retrievalguard-encoder/tests/models");
    let foreign = models.join("convolutional.onnx");
    let model_config = ModelConfig::for_model(&foreign).unwrap();
    let error = WhiteBox::open(&foreign, &model_config).err().unwrap();
    assert!(matches!(error, WhiteBoxError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("convolutional.onnx"), "{error}");

    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../retrievalguard-cli/demo/encoder.onnx");
    let mut model_config = ModelConfig::for_model(&demo).unwrap();
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let encoder = OnnxEmbedder::open(&demo, model_config.clone(), &options).unwrap();
    WhiteBox::open(&demo, &model_config).unwrap().check(&encoder).unwrap();
    // Another normalisation is another map from pixels to embeddings.
    model_config.input.mean[0] += 0.2;
    let error = WhiteBox::open(&demo, &model_config).unwrap().check(&encoder).unwrap_err();
    assert!(matches!(error, WhiteBoxError::Unlike { .. }), "{error}");
    model_config.input.channel_order = ChannelOrder::Bgr;
    let error = WhiteBox::open(&demo, &model_config).err().unwrap();
    assert!(matches!(error, WhiteBoxError::ModelConfig { .. }), "{error}");

    let (folder, whole) = (tempfile::tempdir().unwrap(), fs::read(&demo).unwrap());
    let cut = folder.path().join("cut.onnx");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let error = WhiteBox::open(&cut, &model_config).err().unwrap();
    assert!(matches!(error, WhiteBoxError::Model(_)), "{error}");
}
