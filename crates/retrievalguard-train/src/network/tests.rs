use std::collections::HashSet;
use std::fs;
use std::path::Path;

use burn::module::list_param_ids;

use super::*;

fn config(architecture: Architecture) -> NetworkConfig {
    let picture = PictureSize { channels: 3, height: 40, width: 33 };
    NetworkConfig { dimension: 5, width: 4, ..NetworkConfig::new(architecture, picture) }
}

/// Noise in the shape of pictures.
fn pictures(count: usize, size: PictureSize, device: &Device) -> Tensor<4> {
    let shape = [count, size.channels, size.height, size.width];
    let mut pixels = vec![0.0; shape.iter().product()];
    NoiseStream::new(Seed::new(3), &ImageIdentity::new("pictures"), Stage::Pilot).fill(0, 0, &mut pixels);
    Tensor::from_data(TensorData::new(pixels, shape), device)
}

fn numbers<const RANK: usize>(tensor: Tensor<RANK>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn values(network: &Network, name: &str) -> Vec<f32> {
    let found = network.tensors().into_iter().find(|tensor| tensor.name == name);
    found.unwrap_or_else(|| panic!("no tensor `{name}`")).values
}

#[test]
fn names_and_shapes_are_those_of_the_pytorch_implementations() {
    for architecture in [
        Architecture::Resnet18,
        Architecture::Resnet50,
        Architecture::EfficientnetLite0,
        Architecture::EfficientnetLite1,
        Architecture::EfficientnetLite2,
    ] {
        let network = Network::new(&config(architecture), Seed::new(1), &Device::default()).unwrap();
        let mut found: Vec<String> = network
            .tensors()
            .into_iter()
            .filter(|tensor| !tensor.name.starts_with("head."))
            .map(|NamedTensor { name, shape, values }| {
                assert_eq!(shape.iter().product::<usize>(), values.len(), "{architecture}: {name}");
                let sides: Vec<String> = shape.iter().map(ToString::to_string).collect();
                format!("{name} {}", sides.join(" "))
            })
            .collect();
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/reference/{architecture}.txt"));
        let list = fs::read_to_string(list).unwrap();
        let mut wanted: Vec<&str> = list.lines().collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{architecture}");
    }
}

#[test]
fn the_seed_alone_decides_where_a_network_begins() {
    let config = config(Architecture::Small);
    let begin = |seed, device: Device| {
        let network = Network::new(&config, Seed::new(seed), &device).unwrap();
        network.tensors()
    };
    let first = begin(1, Device::default());
    assert_eq!(first, begin(1, Device::default().autodiff()));
    assert_ne!(first, begin(2, Device::default()));
}

#[test]
fn convolutions_begin_with_kaimings_variance() {
    let network =
        Network::new(&config(Architecture::EfficientnetLite0), Seed::new(1), &Device::default()).unwrap();
    for (name, variance) in [
        ("_blocks.9._expand_conv.weight", 2.0 / 672.0),
        ("_blocks.9._depthwise_conv.weight", 2.0 / 25.0),
        ("_conv_head.weight", 2.0 / 1280.0),
        ("head.weight", 1.0 / 3840.0),
    ] {
        let values = values(&network, name);
        let found = values.iter().map(|value| f64::from(value * value)).sum::<f64>() / values.len() as f64;
        let error = (found / variance - 1.0).abs();
        assert!(error < 5.0 * (2.0 / values.len() as f64).sqrt(), "{name}: {found}, wanted {variance}");
    }
}

#[test]
fn every_architecture_gives_rows_of_length_one_whatever_the_companions() {
    for architecture in Architecture::ALL.into_iter().filter(|architecture| architecture.normalises()) {
        let config = config(architecture);
        let device = Device::default();
        let network = Network::new(&config, Seed::new(1), &device).unwrap();
        let pictures = config.normalise(pictures(3, config.picture, &device));
        let together = network.forward(pictures.clone());
        assert_eq!(together.dims(), [3, 5], "{architecture}");
        assert_eq!(network.features(pictures.clone()).dims(), [3, config.features().unwrap()]);
        let together = numbers(together);
        for row in together.chunks(5) {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            assert!((length - 1.0).abs() < 1e-5, "{architecture}: {length}");
        }
        let alone = numbers(network.forward(pictures.narrow(0, 1, 1)));
        for (alone, together) in alone.iter().zip(&together[5..10]) {
            assert!((alone - together).abs() < 1e-5, "{architecture}: {alone} {together}");
        }
    }
}

#[test]
fn a_row_of_zeros_stays_one_and_has_a_finite_gradient() {
    let config = config(Architecture::Small);
    let device = Device::default().autodiff();
    let zeros = |slot: &Slot| vec![0.0; slot.shape.iter().product()];
    let network = Network::build(&config, &device, zeros).unwrap();
    let rows = network.forward(pictures(2, config.picture, &device));
    assert_eq!(numbers(rows.clone()), vec![0.0; 10]);
    let gradients = rows.sum().backward();
    for (name, values) in network.gradients(&gradients) {
        assert!(values.iter().all(|value| value.is_finite()), "{name}");
    }
}

#[test]
fn gradients_reach_what_learns_and_nothing_else() {
    for statistics in [Statistics::Frozen, Statistics::Batch] {
        let config = config(Architecture::Resnet18);
        let device = Device::default().autodiff();
        let network = Network::new(&config, Seed::new(1), &device).unwrap();
        let pictures = pictures(2, config.picture, &device);
        let (rows, _) = network.forward_training(pictures, statistics);
        let gradients = rows.slice([0..2, 0..1]).sum().backward();
        // Twenty units and the head; that the rest has none is asserted inside.
        assert_eq!(network.gradients(&gradients).len(), 3 * 20 + 2, "{statistics:?}");
    }
}

/// One channel, and kernels that hand their input on.
fn identity_network(device: &Device) -> Network {
    let picture = PictureSize { channels: 1, height: 16, width: 16 };
    let config = NetworkConfig { width: 1, ..NetworkConfig::new(Architecture::Small, picture) };
    Network::build(&config, device, |slot| match slot.role {
        Role::Kernels { .. } => vec![0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        _ => initial(slot, Seed::new(1)),
    })
    .unwrap()
}

#[test]
fn running_statistics_follow_the_batch_as_in_pytorch() {
    let device = Device::default().autodiff();
    let network = identity_network(&device);
    let pictures = pictures(3, network.config().picture, &device);
    let pixels: Vec<f64> = numbers(pictures.clone()).into_iter().map(f64::from).collect();
    let count = pixels.len() as f64;
    let mean = pixels.iter().sum::<f64>() / count;
    let variance = pixels.iter().map(|pixel| (pixel - mean).powi(2)).sum::<f64>() / (count - 1.0);

    let (_, statistics) = network.forward_training(pictures.clone(), Statistics::Frozen);
    let network = network.absorb(statistics);
    assert_eq!(values(&network, "blocks.0.norm.running_mean"), [0.0]);
    assert_eq!(values(&network, "blocks.0.norm.running_var"), [1.0]);

    let mut network = network;
    let (mut wanted_mean, mut wanted_variance) = (0.0, 1.0);
    for _ in 0..3 {
        let (_, statistics) = network.forward_training(pictures.clone(), Statistics::Batch);
        network = network.absorb(statistics);
        wanted_mean = 0.9 * wanted_mean + 0.1 * mean;
        wanted_variance = 0.9 * wanted_variance + 0.1 * variance;
        let found = f64::from(values(&network, "blocks.0.norm.running_mean")[0]);
        assert!((found - wanted_mean).abs() < 1e-6, "{found} {wanted_mean}");
        let found = f64::from(values(&network, "blocks.0.norm.running_var")[0]);
        assert!((found - wanted_variance).abs() < 1e-5, "{found} {wanted_variance}");
    }
}

#[test]
fn the_statistics_of_the_batch_normalise_it() {
    let device = Device::default();
    let network = identity_network(&device);
    let pictures = pictures(4, network.config().picture, &device);
    let (left, _) = network.forward_training(pictures.clone() * 7.0 + 3.0, Statistics::Batch);
    let (right, _) = network.forward_training(pictures.clone(), Statistics::Batch);
    // The identity kernels never see the border of zeros, so nothing but rounding is left.
    for (left, right) in numbers(left).iter().zip(numbers(right)) {
        assert!((left - right).abs() < 1e-4, "{left} {right}");
    }
    let frozen = numbers(network.forward(pictures.clone() * 7.0 + 3.0));
    assert_ne!(frozen, numbers(network.forward(pictures)));
}

#[test]
fn a_parameters_number_follows_from_its_name() {
    let config = config(Architecture::Resnet50);
    let build = |seed| Network::new(&config, Seed::new(seed), &Device::default()).unwrap();
    let (one, other) = (build(1), build(2));
    let ids = list_param_ids(&one);
    assert_eq!(ids, list_param_ids(&other));
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    let parts = [Part::Backbone, Part::Head].map(|part| one.parameters(part));
    assert_eq!(parts.concat(), ids);
    assert_eq!(parts[1].len(), 2);
}

#[test]
fn a_configuration_survives_toml_and_has_defaults() {
    let text = "architecture = \"resnet-50\"\n[picture]\nchannels = 3\nheight = 224\nwidth = 224\n";
    let config: NetworkConfig = toml::from_str(text).unwrap();
    let size = PictureSize { channels: 3, height: 224, width: 224 };
    assert_eq!(config, NetworkConfig::new(Architecture::Resnet50, size));
    let normalisation = Some(Normalisation { mean: vec![0.1; 3], std: vec![0.2; 3] });
    for config in [config.clone(), NetworkConfig { normalisation, ..config }] {
        assert_eq!(toml::from_str::<NetworkConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }
    for architecture in Architecture::ALL {
        assert_eq!(architecture.to_string().parse(), Ok(architecture));
        assert_eq!(serde_json::to_value(architecture).unwrap(), architecture.name());
    }
    let error = "resnet50".parse::<Architecture>().unwrap_err();
    assert!(error.to_string().contains("`resnet50`, wanted `resnet-18`"), "{error}");
}

#[test]
fn impossible_configurations_are_refused_by_field() {
    let usual = config(Architecture::Resnet18);
    let picture = usual.picture;
    let normalised = |mean, std| {
        let normalisation = Some(Normalisation { mean, std });
        NetworkConfig { normalisation, ..usual.clone() }
    };
    for (field, config) in [
        ("dimension", NetworkConfig { dimension: 0, ..usual.clone() }),
        ("width", NetworkConfig { width: 0, ..usual.clone() }),
        (
            "picture.channels",
            NetworkConfig { picture: PictureSize { channels: 2, ..picture }, ..usual.clone() },
        ),
        ("picture.height", NetworkConfig { picture: PictureSize { height: 31, ..picture }, ..usual.clone() }),
        ("picture.width", NetworkConfig { picture: PictureSize { width: 5000, ..picture }, ..usual.clone() }),
        (
            "architecture",
            NetworkConfig {
                architecture: Architecture::Small,
                width: 65_536,
                dimension: 65_536,
                picture: PictureSize { height: 4096, width: 4096, ..picture },
                ..usual.clone()
            },
        ),
        ("normalisation.mean", normalised(vec![0.5; 2], vec![0.5; 3])),
        ("normalisation.mean", normalised(vec![f64::NAN; 3], vec![0.5; 3])),
        ("normalisation.std", normalised(vec![0.5; 3], vec![0.0; 3])),
    ] {
        let error = Network::new(&config, Seed::new(1), &Device::default()).unwrap_err();
        assert_eq!(error.field, field);
    }
}
