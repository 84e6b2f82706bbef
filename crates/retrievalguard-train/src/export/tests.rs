//! Both engines on every exported architecture; onnxruntime is found and missed as in the encoder's own tests.

use std::io::Write;
use std::num::NonZeroUsize;

use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Embedder, NormBound, Seed};
use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder, OnnxGradients};

use super::*;
use crate::certified::LipschitzEncoder;
use crate::network::{Architecture, NetworkConfig};

/// The library that the tests may use, if there is one.
fn onnxruntime() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/lib");
    let version = fs::read_dir(packages).ok()?.flatten().next()?.path();
    let folder = version.join("site-packages/onnxruntime/capi");
    folder.is_dir().then_some(folder)
}

/// Options for every engine at hand; a test that cannot use onnxruntime says so past the harness, which would hide it.
fn engines(test: &str) -> Vec<EngineOptions> {
    let rten = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let library = onnxruntime();
    if library.is_none() {
        assert!(
            std::env::var_os("RETRIEVALGUARD_REQUIRE_ONNXRUNTIME").is_none_or(|value| value != "1"),
            "{test}: onnxruntime not found, and RETRIEVALGUARD_REQUIRE_ONNXRUNTIME is 1"
        );
        let line = format!("skipped: {test}: onnxruntime not found\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
    }
    let onnxruntime = library.map(|library| EngineOptions {
        engine: Some(Engine::Onnxruntime),
        library: Some(library),
        ..EngineOptions::default()
    });
    std::iter::once(rten).chain(onnxruntime).collect()
}

/// Pixels in and around `[0, 1]`.
fn pixels(count: usize) -> Vec<f32> {
    let mut pixels = vec![0.0; count];
    NoiseStream::new(Seed::new(8), &ImageIdentity::new("pixels"), Stage::Pilot).fill(0, 0, &mut pixels);
    pixels.iter_mut().for_each(|pixel| *pixel = 0.5 + 0.3 * *pixel);
    pixels
}

fn network(architecture: Architecture, picture: [usize; 3]) -> Network {
    let [channels, height, width] = picture;
    let picture = PictureSize { channels, height, width };
    let config = NetworkConfig { dimension: 6, width: 8, ..NetworkConfig::new(architecture, picture) };
    Network::lifelike(&config, Seed::new(4), &Device::default())
}

#[test]
fn every_engine_gives_the_embeddings_of_the_network() {
    let usual = Architecture::ALL.into_iter().filter(|architecture| architecture.normalises());
    let mut cases: Vec<_> = usual.map(|architecture| (architecture, [3, 48, 37])).collect();
    cases.push((Architecture::Small, [1, 28, 28]));
    cases.push((Architecture::EfficientnetLite0, [3, 64, 64]));
    let folder = tempfile::tempdir().unwrap();
    for (architecture, picture) in cases {
        let network = network(architecture, picture);
        let [_, height, width] = picture;
        let preparation = Preparation::shorter_side(height.max(width), Interpolation::Bilinear);
        let exported = export(&network, preparation, folder.path()).unwrap();
        let model_config = ModelConfig::for_model(&exported.model).unwrap();
        assert_eq!(model_config, super::model_config(network.config(), preparation).unwrap());
        assert_eq!(model_config.norm_bound(), NormBound::UNIT);

        let pixels = pixels(3 * picture.iter().product::<usize>());
        for options in engines("every_engine_gives_the_embeddings_of_the_network") {
            let encoder = OnnxEmbedder::open(&exported.model, model_config.clone(), &options).unwrap();
            // Attacks differentiate the graph; opening it compares it with the engine.
            OnnxGradients::open(&exported.model, &encoder, NonZeroUsize::MIN).unwrap();
            for count in [1, 3] {
                let pixels = &pixels[..pixels.len() / 3 * count];
                let shape = [count, picture[0], height, width];
                let pictures = Tensor::from_data(TensorData::new(pixels.to_vec(), shape), &Device::default());
                let wanted = network.forward(network.config().normalise(pictures)).into_data();
                let wanted: Vec<f32> = wanted.try_into_vec().unwrap();
                let mut found = vec![0.0; wanted.len()];
                encoder.embed(pixels, &mut found).unwrap();
                for (found, wanted) in found.iter().zip(&wanted) {
                    let difference = (found - wanted).abs();
                    assert!(
                        difference <= 1e-5,
                        "{architecture} {picture:?} {:?}: {difference}",
                        options.engine
                    );
                }
            }
        }
    }
}

#[test]
fn features_are_exported_as_the_head_gets_them_at_length_one() {
    let folder = tempfile::tempdir().unwrap();
    for architecture in [Architecture::Small, Architecture::EfficientnetLite0] {
        let network = network(architecture, [3, 64, 64]);
        let preparation = Preparation::shorter_side(64, Interpolation::Bilinear);
        let exported = export_features(&network, preparation, folder.path()).unwrap();
        let model_config = ModelConfig::for_model(&exported.model).unwrap();
        let pixels = pixels(2 * 3 * 64 * 64);
        let pictures = TensorData::new(pixels.clone(), [2, 3, 64, 64]);
        let pictures = network.config().normalise(Tensor::from_data(pictures, &Device::default()));
        let features: Vec<f32> = network.features(pictures).into_data().try_into_vec().unwrap();
        for options in engines("features_are_exported_as_the_head_gets_them_at_length_one") {
            let encoder = OnnxEmbedder::open(&exported.model, model_config.clone(), &options).unwrap();
            assert_eq!(encoder.dimension(), features.len() / 2, "{architecture}");
            let mut found = vec![0.0; features.len()];
            encoder.embed(&pixels, &mut found).unwrap();
            for (found, row) in found.chunks(features.len() / 2).zip(features.chunks(features.len() / 2)) {
                let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
                for (found, wanted) in found.iter().zip(row) {
                    assert!((found - wanted / length).abs() <= 1e-5, "{architecture} {:?}", options.engine);
                }
            }
        }
    }
}

#[test]
fn a_lipschitz_encoder_is_verified_with_constant_one_and_runs_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    for picture in [[3, 32, 32], [1, 28, 28]] {
        let [channels, height, width] = picture;
        let config = PictureSize { channels, height, width };
        let config = NetworkConfig { dimension: 64, ..NetworkConfig::new(Architecture::Lipschitz, config) };
        let network = Network::lifelike(&config, Seed::new(4), &Device::default());
        let preparation = Preparation::shorter_side(height, Interpolation::Bilinear);
        let exported = export(&network, preparation, folder.path()).unwrap();
        let model_config = ModelConfig::for_model(&exported.model).unwrap();
        let encoder = LipschitzEncoder::open(&exported.model).unwrap();
        let bound = encoder.bound();
        assert!(bound.constant <= 1.0 + 1e-6, "{picture:?}: {}", bound.constant);
        let residuals = bound.layers.iter().filter(|layer| layer.operator == "residual layer").count();
        assert_eq!(residuals, 6, "{:?}", bound.layers);
        let size = fs::metadata(&exported.model).unwrap().len();
        assert!(size <= 2_000_000, "{size} bytes");

        let pixels = pixels(3 * picture.iter().product::<usize>());
        let shape = [3, channels, height, width];
        let pictures = Tensor::from_data(TensorData::new(pixels.clone(), shape), &Device::default());
        let wanted: Vec<f32> = network.forward(pictures).into_data().try_into_vec().unwrap();
        for options in engines("a_lipschitz_encoder_is_verified_with_constant_one_and_runs_everywhere") {
            let encoder = OnnxEmbedder::open(&exported.model, model_config.clone(), &options).unwrap();
            let mut found = vec![0.0; wanted.len()];
            encoder.embed(&pixels, &mut found).unwrap();
            for (found, wanted) in found.iter().zip(&wanted) {
                assert!(
                    (found - wanted).abs() <= 1e-4,
                    "{picture:?} {:?}: {found}, {wanted}",
                    options.engine
                );
            }
        }
    }
}

#[test]
fn lifelike_networks_tell_pictures_apart_and_reach_the_six() {
    let network = network(Architecture::EfficientnetLite0, [3, 64, 64]);
    let pictures = TensorData::new(pixels(3 * 3 * 64 * 64), [3, 3, 64, 64]);
    let pictures = network.config().normalise(Tensor::from_data(pictures, &Device::default()));
    let rows: Vec<f32> = network.forward(pictures.clone()).into_data().try_into_vec().unwrap();
    let distance: f32 = rows[..6].iter().zip(&rows[6..12]).map(|(left, right)| (left - right).powi(2)).sum();
    assert!(distance > 1e-3, "{distance}");
    let largest = network.largest_activations(pictures);
    assert!(largest.iter().filter(|value| **value == 6.0).count() > 20, "{largest:?}");
}

#[test]
fn one_network_gives_the_same_files_twice() {
    let network = network(Architecture::Small, [3, 32, 32]);
    let preparation = Preparation { resize: Resize::None {}, crop: Crop::None };
    let [one, other] = [(), ()].map(|()| {
        let folder = tempfile::tempdir().unwrap();
        let exported = export(&network, preparation, &folder.path().join("new/folder")).unwrap();
        [exported.model, exported.model_config].map(|path| fs::read(path).unwrap())
    });
    assert_eq!(one, other);
}

#[test]
fn weights_and_preparations_that_cannot_be_used_are_refused() {
    let network = network(Architecture::Small, [3, 32, 32]);
    let folder = tempfile::tempdir().unwrap();
    let small = Preparation::shorter_side(31, Interpolation::Bicubic);
    let error = export(&network, small, folder.path()).unwrap_err();
    assert!(matches!(error, ExportError::ModelConfig(_)), "{error}");

    let config = NetworkConfig { dimension: 6, ..network.config().clone() };
    let broken = Network::build(&config, &Device::default(), |slot| {
        let value = if slot.name == "blocks.2.norm.running_var" { -1.0 } else { 1.0 };
        vec![value; slot.shape.iter().product()]
    })
    .unwrap();
    let usable = Preparation::shorter_side(40, Interpolation::Bicubic);
    let error = export(&broken, usable, folder.path()).unwrap_err();
    let tensor = "blocks.2.convolution.weight";
    assert!(matches!(&error, ExportError::NotFinite { tensor: found } if found == tensor), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = export(&network, usable, &file).unwrap_err();
    assert!(matches!(error, ExportError::Folder { .. }), "{error}");
}
