use std::collections::BTreeMap;

use burn::tensor::{Device, TensorData};
use serde::Deserialize;

use super::*;
use crate::network::{Architecture, Network, NetworkConfig, PictureSize};

/// Values of PyTorch, made by `tests/reference/make_lipschitz.py`.
#[derive(Deserialize)]
struct Reference {
    clean: Vec<i32>,
    noise: Vec<i32>,
    tensors: BTreeMap<String, Vec<i32>>,
    teacher: Vec<f64>,
    loss: f64,
    gradients: BTreeMap<String, Vec<f64>>,
}

#[test]
fn value_and_gradients_on_the_same_weights_and_noise_are_those_of_pytorch() {
    let reference: Reference =
        serde_json::from_str(include_str!("../../../tests/reference/distillation.json")).unwrap();
    let sixty_fourths =
        |values: &[i32]| values.iter().map(|&value| value as f32 / 64.0).collect::<Vec<f32>>();
    let picture = PictureSize { channels: 1, height: 16, width: 16 };
    let config = NetworkConfig { dimension: 4, width: 3, ..NetworkConfig::new(Architecture::Small, picture) };
    let build = |device: &Device| {
        Network::build(&config, device, |slot| sixty_fourths(&reference.tensors[&slot.name])).unwrap()
    };
    let (plain, device) = (Device::flex(), Device::flex().autodiff());
    let clean = sixty_fourths(&reference.clean);
    let noisy: Vec<f32> =
        clean.iter().zip(sixty_fourths(&reference.noise)).map(|(clean, noise)| clean + noise).collect();
    let rows = |network: &Network, pixels: Vec<f32>, device: &Device| {
        let pictures = Tensor::<4>::from_data(TensorData::new(pixels, [5, 1, 16, 16]), device);
        network.forward(config.normalise(pictures))
    };
    let teacher = rows(&build(&plain), clean, &plain);
    for (found, wanted) in teacher.clone().into_data().iter::<f64>().zip(&reference.teacher) {
        assert!((found - wanted).abs() < 2e-6, "{found}, wanted {wanted}");
    }
    let student = build(&device);
    let loss = distillation_loss(rows(&student, noisy, &device), teacher.autodiff());
    let value: f64 = loss.clone().into_data().iter::<f64>().sum();
    assert!((value - reference.loss).abs() < 1e-6, "{value}, wanted {}", reference.loss);
    let gradients = student.gradients(&loss.backward());
    assert_eq!(gradients.len(), reference.gradients.len());
    for (name, found) in gradients {
        for (place, (found, wanted)) in found.iter().zip(&reference.gradients[&name]).enumerate() {
            let error = (f64::from(*found) - wanted).abs();
            assert!(error < 2e-6 + 1e-4 * wanted.abs(), "{name} {place}: {found}, wanted {wanted}");
        }
    }
}
