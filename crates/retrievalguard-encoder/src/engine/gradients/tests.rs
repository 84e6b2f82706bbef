use super::*;
use crate::engine::{Engine, EngineOptions};
use crate::model_config::{ChannelOrder, Layout, ModelConfig};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn open(
    name: &str,
    change: impl FnOnce(&mut ModelConfig),
) -> (OnnxEmbedder, Result<OnnxGradients, GradientsError>) {
    let path = models().join(name);
    let mut config = ModelConfig::for_model(&path).unwrap();
    change(&mut config);
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let encoder = OnnxEmbedder::open(&path, config, &options).unwrap();
    let gradients = OnnxGradients::open(&path, &encoder, NonZeroUsize::MIN);
    (encoder, gradients)
}

fn pixels(count: usize, sample: u32) -> Vec<f32> {
    let mut pixels = vec![0.0; count];
    NoiseStream::new(Seed::new(8), &ImageIdentity::new("pixels"), Stage::Pilot).fill(sample, 0, &mut pixels);
    pixels.iter_mut().for_each(|pixel| *pixel = 0.5 + 0.3 * *pixel);
    pixels
}

/// Compares a gradient with differences of the engine's scores, along itself and along other directions.
fn agrees_with_the_engine(case: &str, encoder: &OnnxEmbedder, gradients: &OnnxGradients) {
    let dimension = encoder.dimension();
    let direction: Vec<f32> = (0..dimension).map(|place| ((place * 7 % 5) as f32 - 1.7) / 2.0).collect();
    let copies = pixels(2 * encoder.input_len(), 1);
    let centre = vec![0.5; encoder.input_len()];
    let score = |copies: &[f32]| -> f64 {
        let mut rows = vec![0.0; 2 * dimension];
        encoder.embed(copies, &mut rows).unwrap();
        let products = rows.iter().zip(direction.iter().cycle());
        products.map(|(&left, &right)| f64::from(left) * f64::from(right)).sum::<f64>() / 2.0
    };
    let noisy = NoisyCopies { centre: &centre, copies: &copies, sigma: 0.3 };
    let mut wanted = vec![0.0; 2 * dimension];
    encoder.embed(&copies, &mut wanted).unwrap();
    let mut seen = Vec::new();
    let mut towards = |embeddings: &[f32]| {
        seen = embeddings.to_vec();
        direction.clone()
    };
    let gradient = gradients.gradient(&noisy, &mut towards).unwrap();
    for (found, wanted) in seen.iter().zip(&wanted) {
        assert!((found - wanted).abs() <= 1e-4 * wanted.abs().max(1.0), "{case}: {found} not {wanted}");
    }
    let length = gradient.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!(length > 0.0, "{case}");
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
        assert!((found - wanted).abs() <= 0.02 * length, "{case}, direction {number}: {found} not {wanted}");
    }
}

#[test]
fn gradients_are_the_differences_of_the_engines_scores() {
    type Change = fn(&mut ModelConfig);
    let cases: [(&str, &str, Change); 5] = [
        ("as it is", "convolutional.onnx", |_| {}),
        ("normalised", "convolutional.onnx", |config| config.output.normalise = true),
        ("not normalised", "convolutional.onnx", |config| config.output.normalise = false),
        ("blue first, with mean and deviation", "convolutional.onnx", |config| {
            config.input.channel_order = ChannelOrder::Bgr;
            config.input.mean = vec![0.4, 0.5, 0.6];
            config.input.std = vec![0.2, 0.25, 0.3];
        }),
        ("always three pictures", "fixed_batch.onnx", |_| {}),
    ];
    for (case, name, change) in cases {
        let (encoder, gradients) = open(name, |config| {
            change(config);
            config.input.layout = Layout::Nchw;
        });
        agrees_with_the_engine(case, &encoder, &gradients.unwrap());
    }
}

#[test]
fn threads_and_memory_change_no_gradient() {
    let (encoder, one) = open("convolutional.onnx", |_| {});
    let one = one.unwrap();
    let path = models().join("convolutional.onnx");
    let copies = pixels(5 * encoder.input_len(), 3);
    let centre = vec![0.5; encoder.input_len()];
    let noisy = NoisyCopies { centre: &centre, copies: &copies, sigma: 0.3 };
    let gradient = |gradients: &OnnxGradients| gradients.gradient(&noisy, &mut |_| vec![1.0; 8]).unwrap();
    let wanted = gradient(&one);
    for threads in [2, 3, 16] {
        let many = OnnxGradients::open(&path, &encoder, NonZeroUsize::new(threads).unwrap()).unwrap();
        assert_eq!(gradient(&many), wanted, "{threads} threads");
    }
}

#[test]
fn the_score_of_a_quantised_encoder_rises_along_its_gradient() {
    let (encoder, gradients) = open("int8.onnx", |_| {});
    let gradients = gradients.unwrap();
    let centre = pixels(encoder.input_len(), 6);
    let score = |picture: &[f32]| -> f64 {
        let mut row = vec![0.0; encoder.dimension()];
        encoder.embed(picture, &mut row).unwrap();
        row.iter().map(|&value| f64::from(value)).sum()
    };
    let noisy = NoisyCopies { centre: &centre, copies: &centre, sigma: 0.0 };
    let gradient = gradients.gradient(&noisy, &mut |_| vec![1.0; encoder.dimension()]).unwrap();
    let length = gradient.iter().map(|value| value * value).sum::<f64>().sqrt();
    let moved: Vec<f32> =
        centre.iter().zip(&gradient).map(|(&pixel, slope)| pixel + (0.5 * slope / length) as f32).collect();
    let (found, wanted) = (score(&moved) - score(&centre), 0.5 * length);
    assert!((0.6..1.5).contains(&(found / wanted)), "rose by {found}, wanted about {wanted}");
}

#[test]
fn graphs_that_cannot_be_followed_and_files_that_changed_are_refused() {
    let (encoder, gradients) = open("dynamic_quantised.onnx", |_| {});
    let error = gradients.err().unwrap();
    assert!(error.to_string().contains("(DynamicQuantizeLinear)"), "{error}");
    let other = models().join("convolutional.onnx");
    let error = OnnxGradients::open(&other, &encoder, NonZeroUsize::MIN).err().unwrap();
    assert!(matches!(error, GradientsError::Changed { .. }), "{error}");
    // A graph that is not the encoder: what it computes decides, not what it is called.
    let (encoder, gradients) = open("convolutional.onnx", |_| {});
    let mut gradients = gradients.unwrap();
    gradients.normalise = !gradients.normalise;
    let error = gradients.compare(&encoder, ALIKE).unwrap_err();
    assert!(matches!(error, GradientsError::Unlike { .. }), "{error}");
}
