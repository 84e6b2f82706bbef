use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use retrievalguard::Seed;
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use serde::Deserialize;

use super::*;
use crate::loss::CertifiedRadiusLoss;
use crate::network::{Architecture, Network, NetworkConfig};

/// Values of PyTorch, made by `tests/reference/make_lipschitz.py`.
#[derive(Deserialize)]
struct Reference {
    labels: Vec<u32>,
    pictures: Vec<i32>,
    tensors: BTreeMap<String, Vec<i32>>,
    rows: Vec<f64>,
    loss: f64,
    gradients: BTreeMap<String, Vec<f64>>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../../../tests/reference/lipschitz.json")).unwrap()
}

fn tiny() -> NetworkConfig {
    let picture = PictureSize { channels: 1, height: 8, width: 8 };
    let stages = vec![
        LipschitzStage { block: 2, channels: 6, inner: 5, layers: 1 },
        LipschitzStage { block: 2, channels: 24, inner: 3, layers: 1 },
        LipschitzStage { block: 1, channels: 10, inner: 1, layers: 0 },
    ];
    NetworkConfig { dimension: 4, stages, ..NetworkConfig::new(Architecture::Lipschitz, picture) }
}

fn sixty_fourths(values: &[i32]) -> Vec<f32> {
    values.iter().map(|&value| value as f32 / 64.0).collect()
}

fn pictures(reference: &Reference, device: &Device) -> Tensor<4> {
    let shape = [reference.labels.len(), 1, 8, 8];
    Tensor::from_data(TensorData::new(sixty_fourths(&reference.pictures), shape), device)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn noise(name: &str, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    NoiseStream::new(Seed::new(3), &ImageIdentity::new(name), Stage::Pilot).fill(0, 0, &mut values);
    values
}

const LOSS: CertifiedRadiusLoss = CertifiedRadiusLoss { rho: 1.0, tau: 0.25 };

#[test]
fn rows_loss_and_gradients_are_those_of_pytorch() {
    let reference = reference();
    let device = Device::flex().autodiff();
    let network =
        Network::build(&tiny(), &device, |slot| sixty_fourths(&reference.tensors[&slot.name])).unwrap();
    let rows = network.forward(pictures(&reference, &device));
    for (place, (found, wanted)) in numbers(rows.clone()).iter().zip(&reference.rows).enumerate() {
        assert!((f64::from(*found) - wanted).abs() < 2e-6, "row value {place}: {found}, wanted {wanted}");
    }
    let parts = LOSS.forward(rows, &reference.labels);
    let loss = f64::from(numbers(parts.total.clone())[0]);
    assert!((loss - reference.loss).abs() < 1e-5, "{loss}, wanted {}", reference.loss);
    let gradients = network.gradients(&parts.total.backward());
    assert_eq!(gradients.len(), reference.gradients.len());
    for (name, found) in gradients {
        let wanted = &reference.gradients[&name];
        let largest = wanted.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        assert!(largest > 1e-3, "{name} has something to compare");
        for (place, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let error = (f64::from(*found) - wanted).abs();
            assert!(error < 2e-4 * largest, "{name} {place}: {found}, wanted {wanted}");
        }
    }
}

#[test]
fn gradients_are_the_limits_of_differences() {
    let reference = reference();
    let loss_of = |network: &Network, device: &Device| {
        LOSS.forward(network.forward(pictures(&reference, device)), &reference.labels).total
    };
    let device = Device::flex().autodiff();
    let start = |name: &str| sixty_fourths(&reference.tensors[name]);
    let network = Network::build(&tiny(), &device, |slot| start(&slot.name)).unwrap();
    let gradients = network.gradients(&loss_of(&network, &device).backward());
    for (tensor, gradient) in gradients {
        // Along the gradient itself, where a difference is largest beside the rounding of f32.
        let length = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let step = 3e-3;
        let along = |sign: f64| {
            let moved = |slot: &crate::network::Slot| {
                let mut values = start(&slot.name);
                if slot.name == tensor {
                    for (value, slope) in values.iter_mut().zip(&gradient) {
                        *value += (sign * step * f64::from(*slope) / length) as f32;
                    }
                }
                values
            };
            let plain = Device::flex();
            f64::from(numbers(loss_of(&Network::build(&tiny(), &plain, moved).unwrap(), &plain))[0])
        };
        let slope = (along(1.0) - along(-1.0)) / (2.0 * step);
        assert!((slope - length).abs() < 0.02 * length + 1e-4, "{tensor}: {slope}, wanted {length}");
    }
}

#[test]
fn embeddings_move_no_faster_than_pictures() {
    let picture = PictureSize { channels: 3, height: 16, width: 16 };
    let config = NetworkConfig { dimension: 24, ..NetworkConfig::new(Architecture::Lipschitz, picture) };
    let device = Device::flex();
    let network = Network::lifelike(&config, Seed::new(5), &device);
    let count = 12;
    let size = 3 * 16 * 16;
    let tensor =
        |values: Vec<f32>| Tensor::<4>::from_data(TensorData::new(values, [count, 3, 16, 16]), &device);
    let one: Vec<f32> = noise("one", count * size).iter().map(|value| 0.5 + 0.3 * value).collect();
    for step in [1e-2, 0.3, 3.0] {
        let other: Vec<f32> =
            one.iter().zip(noise("other", count * size)).map(|(one, noise)| one + step * noise).collect();
        let rows =
            [numbers(network.forward(tensor(one.clone()))), numbers(network.forward(tensor(other.clone())))];
        let distance = |left: &[f32], right: &[f32]| -> f64 {
            left.iter().zip(right).map(|(left, right)| f64::from(left - right).powi(2)).sum::<f64>().sqrt()
        };
        for place in 0..count {
            let before = distance(&one[place * size..][..size], &other[place * size..][..size]);
            let after = distance(&rows[0][place * 24..][..24], &rows[1][place * 24..][..24]);
            assert!(after <= before * (1.0 + 1e-5) + 1e-5, "{after} from {before}");
        }
    }
}

#[test]
fn principal_components_keep_more_of_the_distances_than_random_rows() {
    let reference = reference();
    let device = Device::flex();
    let network = Network::new(&tiny(), Seed::new(1), &device).unwrap();
    let started = network.with_principal_components(pictures(&reference, &device));
    let spread = |network: &Network| {
        let rows = network.forward(pictures(&reference, &device));
        let centred = rows.clone() - rows.mean_dim(0);
        numbers(centred.powf_scalar(2.0).sum())[0]
    };
    let (random, principal) = (spread(&network), spread(&started));
    assert!(principal > 1.5 * random, "{principal} beside {random}");
    let head = started.tensors().pop().unwrap();
    for (place, row) in head.values.chunks(40).enumerate() {
        for (other, column) in head.values.chunks(40).enumerate() {
            let product: f32 = row.iter().zip(column).map(|(left, right)| left * right).sum();
            let wanted = f32::from(u8::from(place == other));
            assert!((product - wanted).abs() < 1e-5, "rows {place} and {other}: {product}");
        }
    }
}

#[test]
fn every_usual_size_has_stages_that_fit() {
    for side in [28, 32, 40, 48, 56, 64, 80, 84, 96] {
        let picture = PictureSize { channels: 3, height: side, width: side };
        let config = NetworkConfig { dimension: 64, ..NetworkConfig::new(Architecture::Lipschitz, picture) };
        let features = config.features().unwrap();
        assert!((512..=1920).contains(&features), "{side} pixels: {features} features");
    }
    let picture = PictureSize { channels: 3, height: 32, width: 32 };
    let stages = vec![LipschitzStage { block: 3, channels: 27, inner: 8, layers: 1 }];
    let config = NetworkConfig { stages, ..NetworkConfig::new(Architecture::Lipschitz, picture) };
    let error = config.features().unwrap_err();
    assert_eq!((error.field, error.found.as_str()), ("stages.block", "3"));
}
