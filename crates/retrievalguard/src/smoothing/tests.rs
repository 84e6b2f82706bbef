//! Samples and means on any number of threads, and encoders and pictures that are refused.

use super::*;
use crate::{EmbedderFailure, NormBound};

/// Three components that depend on every pixel, normalised.
struct Wave {
    shape: [usize; 2],
}

impl Embedder for Wave {
    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn dimension(&self) -> usize {
        3
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        let rows = pictures.chunks_exact(self.input_len()).zip(embeddings.chunks_exact_mut(3));
        for (picture, embedding) in rows {
            let sum: f32 = picture.iter().sum();
            embedding.copy_from_slice(&[sum.sin(), sum.cos(), picture[0]]);
            let norm = embedding.iter().map(|value| value * value).sum::<f32>().sqrt();
            embedding.iter_mut().for_each(|value| *value /= norm);
        }
        Ok(())
    }
}

/// Misbehaves on demand.
struct Broken {
    output: [f32; 2],
    fails: bool,
}

impl Embedder for Broken {
    fn input_shape(&self) -> &[usize] {
        &[1]
    }

    fn dimension(&self) -> usize {
        2
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, _: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        embeddings.chunks_exact_mut(2).for_each(|row| row.copy_from_slice(&self.output));
        if self.fails { Err("out of memory".into()) } else { Ok(()) }
    }
}

fn count(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap()
}

#[test]
fn threads_batches_and_ranges_do_not_change_a_bit() {
    let wave = Wave { shape: [5, 7] };
    let pixels = vec![0.4; 35];
    let picture = Picture { identity: "wave", pixels: &pixels };
    let plain = Smoother::new(&wave, Sigma::new(0.3).unwrap(), Seed::new(3));
    let samples = plain.samples(&picture, Stage::Certify, 0..1_001).unwrap();
    let mean = plain.mean(&picture, Stage::Certify, 0..1_001).unwrap();
    assert_eq!(mean, SmoothedEmbedding { count: 1_001, mean: samples.mean() });
    for threads in [1, 2, 5] {
        for batch in [1, 7, 256, 1_000] {
            let other = plain.threads(count(threads)).batch(count(batch));
            let found = other.samples(&picture, Stage::Certify, 0..1_001).unwrap();
            assert_eq!(found, samples, "{threads} threads, batch {batch}");
            let found = other.mean(&picture, Stage::Certify, 0..1_001).unwrap();
            assert_eq!(found, mean, "{threads} threads, batch {batch}");
        }
    }
    let mut joined = plain.samples(&picture, Stage::Certify, 0..300).unwrap();
    joined.append(&plain.samples(&picture, Stage::Certify, 300..1_001).unwrap()).unwrap();
    assert_eq!(joined, samples);
    assert_ne!(plain.samples(&picture, Stage::Pilot, 0..1_001).unwrap(), samples);
}

#[test]
fn a_clamped_smoother_has_no_negative_component_in_samples_means_or_clean_embeddings() {
    let wave = Wave { shape: [5, 7] };
    let pixels = vec![0.1; 35];
    let picture = Picture { identity: "wave", pixels: &pixels };
    let plain = Smoother::new(&wave, Sigma::new(0.3).unwrap(), Seed::new(3));
    let clamped = plain.clamped();
    let samples = plain.samples(&picture, Stage::Certify, 0..600).unwrap();
    let found = clamped.samples(&picture, Stage::Certify, 0..600).unwrap();
    assert!(samples.values().iter().any(|&value| value < 0.0), "the case must tell the two apart");
    assert_eq!(found, samples.clamped());
    let mean = clamped.mean(&picture, Stage::Certify, 0..600).unwrap();
    assert_eq!(mean.mean, found.mean());
    let clean = plain.clean(&picture).unwrap();
    assert!(clean.iter().any(|&value| value < 0.0), "the case must tell the two apart");
    assert_eq!(
        clamped.clean(&picture).unwrap(),
        clean.iter().map(|value| value.max(0.0)).collect::<Vec<_>>()
    );
}

#[test]
fn a_broken_encoder_is_an_error_that_names_the_picture() {
    let sigma = Sigma::new(0.3).unwrap();
    let picture = Picture { identity: "cat.png", pixels: &[0.5] };
    let ask = |broken: &Broken, excess| {
        let smoother = Smoother::new(broken, sigma, Seed::new(1)).excess(excess).threads(count(2));
        smoother.samples(&picture, Stage::Pilot, 0..700).map(|samples| samples.row(0).to_vec())
    };
    let nan = Broken { output: [0.0, f32::NAN], fails: false };
    let error = ask(&nan, Excess::Project).unwrap_err();
    assert!(
        matches!(&error, SmoothingError::NotFinite { picture, component: 1, .. } if picture == "cat.png")
    );
    let long = Broken { output: [3.0, 4.0], fails: false };
    let error = ask(&long, Excess::Refuse).unwrap_err();
    assert!(
        matches!(&error, SmoothingError::NormExceeded { norm, bound, .. } if *norm == 5.0 && *bound == 1.0)
    );
    let row = ask(&long, Excess::Project).unwrap();
    assert!((row[0] - 0.6).abs() < 1e-6 && (row[1] - 0.8).abs() < 1e-6, "{row:?}");
    let failing = Broken { output: [0.0, 0.0], fails: true };
    let error = ask(&failing, Excess::Refuse).unwrap_err();
    assert!(error.to_string().contains("cat.png"), "{error}");
}

#[test]
fn pictures_that_do_not_fit_are_refused_before_the_encoder_runs() {
    let wave = Wave { shape: [2, 1] };
    let smoother = Smoother::new(&wave, Sigma::new(0.3).unwrap(), Seed::new(1));
    let ask = |pixels: &[f32], range| {
        smoother.mean(&Picture { identity: "a", pixels }, Stage::Pilot, range).unwrap_err()
    };
    assert!(matches!(ask(&[0.0], 0..1), SmoothingError::Shape { found: 1, wanted: 2, .. }));
    assert!(matches!(ask(&[0.0, f32::NAN], 0..1), SmoothingError::Pixel { pixel: 1, .. }));
    assert!(matches!(ask(&[0.0, 0.0], 4..4), SmoothingError::NoSamples { start: 4, end: 4, .. }));
    assert!(matches!(ask(&[1e9, 0.0], 0..1), SmoothingError::Resolution { .. }));
    let check = |pixels: &[f32]| smoother.check_picture(&Picture { identity: "a", pixels });
    assert!(check(&[0.0, 1.0]).is_ok());
    assert!(matches!(check(&[0.0]), Err(SmoothingError::Shape { found: 1, wanted: 2, .. })));
    assert!(matches!(check(&[f32::INFINITY, 0.0]), Err(SmoothingError::Pixel { pixel: 0, .. })));
    assert!(matches!(check(&[1e9, 0.0]), Err(SmoothingError::Resolution { .. })));
    for shape in [[0, 1], [usize::MAX, 2]] {
        let odd = Wave { shape };
        let smoother = Smoother::new(&odd, Sigma::new(0.3).unwrap(), Seed::new(1));
        let error =
            smoother.samples(&Picture { identity: "a", pixels: &[] }, Stage::Pilot, 0..1).unwrap_err();
        assert!(matches!(error, SmoothingError::Encoder { dimension: 3, .. }), "{error}");
    }
}
