//! Both engines on small models: agreement, batches, threads, and every model that must be refused.
//!
//! Tests that need onnxruntime take it from `ORT_DYLIB_PATH` or from `target/venv`; without it they are skipped, counted
//! and named on stderr. With `RETRIEVALGUARD_REQUIRE_ONNXRUNTIME=1` its absence is a failure.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retrievalguard::noise::Stage;
use retrievalguard::{Embedder, Picture, Seed, Sigma, Smoother};
use retrievalguard_encoder::check::{Agreement, CheckOptions, Passes, check_model};
use retrievalguard_encoder::doctor::doctor;
use retrievalguard_encoder::engine::{
    Engine, EngineError, EngineOptions, ModelFacts, OnnxEmbedder, Provider,
};
use retrievalguard_encoder::graph::ModelFileError;
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::protobuf::MessageWriter;

const PIXELS: usize = 3 * 16 * 16;
const DIMENSION: usize = 8;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

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

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Options for every engine at hand; a test that cannot use onnxruntime says so past the harness, which would hide it.
fn engines(test: &str) -> Vec<EngineOptions> {
    let rten = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    std::iter::once(rten).chain(with_onnxruntime(test)).collect()
}

fn with_onnxruntime(test: &str) -> Option<EngineOptions> {
    if let Some(library) = onnxruntime() {
        let (engine, library) = (Some(Engine::Onnxruntime), Some(library));
        return Some(EngineOptions { engine, library, ..EngineOptions::default() });
    }
    assert!(
        std::env::var_os("RETRIEVALGUARD_REQUIRE_ONNXRUNTIME").is_none_or(|value| value != "1"),
        "{test}: onnxruntime not found, and RETRIEVALGUARD_REQUIRE_ONNXRUNTIME is 1"
    );
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("skipped: {test}: onnxruntime not found ({count} so far)\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

fn config() -> ModelConfig {
    ModelConfig::for_model(&models().join("convolutional.onnx")).unwrap()
}

fn open(model: &str, options: &EngineOptions) -> Result<OnnxEmbedder, EngineError> {
    OnnxEmbedder::open(&models().join(model), config(), options)
}

/// Pictures and the embeddings that numpy computed in `f64`, not normalised.
fn reference() -> (Vec<f32>, Vec<f32>) {
    let bytes = fs::read(models().join("convolutional.f32")).unwrap();
    let numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let (pictures, embeddings) = numbers.split_at(3 * PIXELS);
    (pictures.to_vec(), embeddings.to_vec())
}

fn normalised(rows: &[f32]) -> Vec<f32> {
    let norm = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>().sqrt();
    rows.chunks_exact(DIMENSION).flat_map(|row| row.iter().map(move |value| value / norm(row))).collect()
}

fn embed(encoder: &OnnxEmbedder, pictures: &[f32]) -> Vec<f32> {
    let mut rows = vec![0.0; pictures.len() / PIXELS * DIMENSION];
    encoder.embed(pictures, &mut rows).unwrap();
    rows
}

fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}

fn count(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap()
}

#[test]
fn every_engine_gives_numpys_embeddings() {
    let (pictures, wanted) = reference();
    for options in engines("every_engine_gives_numpys_embeddings") {
        let mut config = config();
        let encoder = open("convolutional.onnx", &options).unwrap();
        assert_eq!((encoder.input_len(), encoder.dimension()), (PIXELS, DIMENSION));
        let difference = largest_difference(&embed(&encoder, &pictures), &normalised(&wanted));
        assert!(difference < 1e-5, "{options:?}: {difference}");

        config.output.normalise = false;
        config.output.norm_bound = Some(retrievalguard::NormBound::new(100.0).unwrap());
        // The pictures are brought to [0, 1] in a way that mean and std undo.
        config.input.mean = vec![0.5, 0.25, 0.125];
        config.input.std = vec![0.5, 2.0, 4.0];
        let mut moved = pictures.clone();
        for (index, value) in moved.iter_mut().enumerate() {
            let channel = index / 256 % 3;
            *value = value.mul_add(config.input.std[channel] as f32, config.input.mean[channel] as f32);
        }
        let encoder = OnnxEmbedder::open(&models().join("convolutional.onnx"), config, &options).unwrap();
        let difference = largest_difference(&embed(&encoder, &moved), &wanted);
        assert!(difference < 1e-5, "{options:?}: {difference}");
    }
}

#[test]
fn the_engines_agree_on_the_convolutional_and_on_the_int8_model() {
    let Some(options) = with_onnxruntime("the_engines_agree_on_the_convolutional_and_on_the_int8_model")
    else {
        return;
    };
    let rten = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let pictures = noisy_pictures(64);
    for (model, quantised) in [("convolutional.onnx", false), ("int8.onnx", true)] {
        let (left, right) = (open(model, &options).unwrap(), open(model, &rten).unwrap());
        assert_eq!(left.facts().quantised, quantised);
        assert_eq!(left.report().engine, Engine::Onnxruntime);
        assert_eq!(right.report().engine, Engine::Rten);
        let difference = largest_difference(&embed(&left, &pictures), &embed(&right, &pictures));
        assert!(difference <= 1e-4, "{model}: {difference}");
    }
}

/// Pictures with pixels in and around `[0, 1]`.
fn noisy_pictures(count: usize) -> Vec<f32> {
    let identity = retrievalguard::noise::ImageIdentity::new("engines");
    let stream = retrievalguard::noise::NoiseStream::new(Seed::new(5), &identity, Stage::Certify);
    let (picture, sigma) = (vec![0.5; PIXELS], Sigma::new(0.3).unwrap());
    let mut pictures = vec![0.0; count * PIXELS];
    for (sample, noisy) in pictures.chunks_exact_mut(PIXELS).enumerate() {
        stream.add(sample as u32, sigma, &picture, noisy);
    }
    pictures
}

#[test]
fn batch_size_and_threads_do_not_change_a_bit() {
    let (pictures, _) = reference();
    let picture = Picture { identity: "one", pixels: &pictures[..PIXELS] };
    for options in engines("batch_size_and_threads_do_not_change_a_bit") {
        for model in ["convolutional.onnx", "int8.onnx", "fixed_batch.onnx"] {
            let encoder = open(model, &options).unwrap();
            let smoother = Smoother::new(&encoder, Sigma::new(0.25).unwrap(), Seed::new(1));
            let wanted = smoother.samples(&picture, Stage::Certify, 0..515).unwrap();
            for (threads, batch) in [(1, 1), (2, 7), (2, 256), (3, 2), (1, 3)] {
                let other = smoother.threads(count(threads)).batch(count(batch));
                let found = other.samples(&picture, Stage::Certify, 0..515).unwrap();
                assert_eq!(found, wanted, "{model}, {:?}, {threads} threads, batch {batch}", options.engine);
            }
        }
    }
}

#[test]
fn sound_models_pass_the_check_and_the_batch_mean_runs_one_by_one() {
    let (pictures, wanted) = reference();
    let wanted = normalised(&wanted);
    for options in engines("sound_models_pass_the_check_and_the_batch_mean_runs_one_by_one") {
        let time = Duration::from_millis(20);
        let compared = CheckOptions { time, reference: Some(&wanted), ..CheckOptions::default() };
        let report =
            check_model(&open("convolutional.onnx", &options).unwrap(), &pictures, &compared).unwrap();
        assert!(report.passed(), "{report}");
        assert_eq!(report.independence.agreement, Agreement::SameBits, "{report}");
        assert!((report.largest_norm - 1.0).abs() < 1e-6, "{report}");

        let plain = CheckOptions { time, ..CheckOptions::default() };
        for model in ["int8.onnx", "fixed_batch.onnx"] {
            let report = check_model(&open(model, &options).unwrap(), &pictures, &plain).unwrap();
            assert!(report.passed(), "{model}: {report}");
        }
        let mut config = config();
        config.output.normalise = false;
        config.output.norm_bound = Some(retrievalguard::NormBound::new(10.0).unwrap());
        // Whatever it makes of a batch, it is given one picture at a time, of which its mean leaves nothing.
        let cheater = OnnxEmbedder::open(&models().join("batch_mean.onnx"), config, &options).unwrap();
        assert_eq!(cheater.check().passes, Passes::OneByOne);
        let report = check_model(&cheater, &pictures, &plain).unwrap();
        assert_eq!(report.independence.agreement, Agreement::SameBits, "{report}");
        assert_eq!(report.largest_norm, 0.0, "{report}");
    }
}

#[test]
fn models_that_do_not_fit_are_refused_alike_by_every_engine() {
    for options in engines("models_that_do_not_fit_are_refused_alike_by_every_engine") {
        let error = open("float16.onnx", &options).unwrap_err();
        assert!(error.to_string().contains("is float16, wanted float32"), "{error}");
        assert!(matches!(error, EngineError::Element { side: "input", .. }));

        let error = open("wrong_rank.onnx", &options).unwrap_err();
        assert!(error.to_string().contains("[batch, 16, 2, 2], wanted [batch, dimension]"), "{error}");

        let model = models().join("convolutional.onnx");
        let refuse = |change: fn(&mut ModelConfig)| {
            let mut config = config();
            change(&mut config);
            OnnxEmbedder::open(&model, config, &options).unwrap_err()
        };
        let error = refuse(|config| config.input.width = 24);
        let wanted = "has shape [batch, 3, 16, 16], the model config says [batch, 3, 16, 24]";
        assert!(error.to_string().contains(wanted), "{error}");
        let error = refuse(|config| config.output.name = Some("logits".to_owned()));
        assert!(matches!(&error, EngineError::Tensor { side: "outputs", .. }), "{error}");
        assert!(error.to_string().contains("[\"embeddings\"], wanted `logits`"), "{error}");
        let error = refuse(|config| config.input.name = Some("x".to_owned()));
        assert!(matches!(&error, EngineError::Tensor { side: "inputs", .. }), "{error}");

        let zero = open("zero.onnx", &options).unwrap();
        let error = zero.embed(&[0.5; PIXELS], &mut [0.0; DIMENSION]).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(EngineError::ZeroNorm { row: 0 })), "{error}");
        let error = zero.embed(&[0.5; PIXELS], &mut [0.0; 3]).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(EngineError::Slices { embeddings: 3, .. })), "{error}");
    }
}

#[test]
fn broken_files_are_named_with_what_is_wrong() {
    let folder = std::env::temp_dir().join(format!("retrievalguard-engines-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let open = |path: &Path| match OnnxEmbedder::open(path, config(), &options).unwrap_err() {
        EngineError::File(error) => error,
        error => panic!("{error}"),
    };
    let missing = open(&folder.join("missing.onnx"));
    assert!(matches!(missing, ModelFileError::Read { .. }), "{missing}");
    assert!(missing.to_string().contains("missing.onnx"));
    assert!(matches!(open(&folder), ModelFileError::Read { .. }));

    let whole = fs::read(models().join("convolutional.onnx")).unwrap();
    let path = folder.join("broken.onnx");
    for length in [1, 40, 100, whole.len() / 2, whole.len() - 40] {
        fs::write(&path, &whole[..length]).unwrap();
        let error = open(&path);
        assert!(matches!(error, ModelFileError::Truncated { .. }), "{length}: {error}");
    }
    for content in
        [&b""[..], b"version https://git-lfs.github.com/spec/v1\n", b"<!DOCTYPE html>", &[0xff; 64]]
    {
        fs::write(&path, content).unwrap();
        let error = open(&path);
        assert!(
            matches!(error, ModelFileError::NotOnnx { .. } | ModelFileError::Truncated { .. }),
            "{content:?}: {error}"
        );
    }
    // Whatever single byte is wrong, reading ends without a panic.
    for position in (0..whole.len()).step_by(13) {
        let mut other = whole.clone();
        other[position] ^= 0xff;
        fs::write(&path, other).unwrap();
        let _ = ModelFacts::read(&path);
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_models_hash_is_that_of_its_file() {
    let facts = ModelFacts::read(&models().join("convolutional.onnx")).unwrap();
    assert_eq!(facts.hash, "bb0d76124e032af886ad275dcfcd3e90cb5467678a3eb83c7b7acc61261e3149");
}

#[test]
fn weights_kept_in_another_file_belong_to_the_hash() {
    let folder = std::env::temp_dir().join(format!("retrievalguard-weights-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // A model whose graph has one initialiser with `external_data = {location: w.bin}` and nothing else.
    let model = |location: &str| {
        let entry = MessageWriter::default().text(1, "location").text(2, location);
        let tensor = MessageWriter::default().text(8, "w").message(13, &entry);
        let graph = MessageWriter::default().message(5, &tensor);
        MessageWriter::default().message(7, &graph).into_bytes()
    };
    let path = folder.join("model.onnx");
    fs::write(&path, model("w.bin")).unwrap();
    let error = ModelFacts::read(&path).unwrap_err();
    assert!(error.to_string().contains("w.bin"), "{error}");
    let hash = |weights: &[u8]| {
        fs::write(folder.join("w.bin"), weights).unwrap();
        ModelFacts::read(&path).unwrap().hash
    };
    assert_eq!(hash(b"one"), hash(b"one"));
    assert_ne!(hash(b"one"), hash(b"two"));
    fs::write(&path, model("../w.bin")).unwrap();
    assert!(matches!(ModelFacts::read(&path), Err(ModelFileError::NotOnnx { .. })));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_missing_library_is_an_error_or_an_announced_fallback() {
    let library = Some(PathBuf::from("/nowhere/libonnxruntime.so"));
    let error =
        open("convolutional.onnx", &EngineOptions { library, ..EngineOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("the given path: `/nowhere/libonnxruntime.so`"), "{error}");

    // Nothing is asked for: whatever runs, falling back is never silent.
    let encoder = open("convolutional.onnx", &EngineOptions::default()).unwrap();
    match encoder.report().engine {
        Engine::Double => panic!("nobody asked for it"),
        Engine::Rten => assert!(encoder.notices()[0].contains("no usable onnxruntime"), "{encoder:?}"),
        Engine::Onnxruntime => assert!(encoder.notices().is_empty(), "{encoder:?}"),
    }
    let provider = Provider::Cuda;
    let options = EngineOptions { engine: Some(Engine::Rten), provider, ..EngineOptions::default() };
    let error = open("convolutional.onnx", &options).unwrap_err();
    assert!(matches!(error, EngineError::ProviderNeedsOnnxruntime { provider: Provider::Cuda }), "{error}");
}

#[test]
fn onnxruntime_reports_itself_and_refuses_providers_it_lacks() {
    let Some(options) = with_onnxruntime("onnxruntime_reports_itself_and_refuses_providers_it_lacks") else {
        return;
    };
    let report = doctor(&options);
    let engine = report.engine.clone().unwrap();
    assert_eq!(engine.engine, Engine::Onnxruntime);
    assert!(engine.version.starts_with("1."), "{report}");
    assert!(engine.library.is_some(), "{report}");
    let error = open("convolutional.onnx", &EngineOptions { provider: Provider::Coreml, ..options.clone() });
    if !cfg!(target_os = "macos") {
        let error = error.unwrap_err();
        assert!(matches!(error, EngineError::Provider { provider: Provider::Coreml, .. }), "{error}");
    }
    let other = EngineOptions { library: Some(models().join("convolutional.onnx")), ..options };
    let error = open("convolutional.onnx", &other).unwrap_err();
    assert!(matches!(error, EngineError::NoOnnxruntime { .. }), "{error}");
}
