use std::path::PathBuf;

use burn::tensor::{Device, Tensor};
use retrievalguard::Seed;
use serde_json::Value;

use super::*;
use crate::network::{Architecture, PictureSize, Statistics};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

/// The network of `make_small.py`.
fn small(device: &Device) -> Network {
    let picture = PictureSize { channels: 1, height: 16, width: 16 };
    let config = NetworkConfig { dimension: 3, width: 2, ..NetworkConfig::new(Architecture::Small, picture) };
    Network::new(&config, Seed::new(1), device).unwrap()
}

fn pictures(device: &Device) -> Tensor<4> {
    let pixels: Vec<f32> = (0..4 * 256).map(|number| (number * 37 % 101) as f32 / 100.0).collect();
    Tensor::from_data(TensorData::new(pixels, [4, 1, 16, 16]), device)
}

fn close(what: &str, found: &[f32], wanted: &Value) {
    let wanted: Vec<f64> = serde_json::from_value(wanted.clone()).unwrap();
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(wanted) {
        let error = (f64::from(*found) - wanted).abs();
        assert!(error <= 1e-5 * (1.0 + wanted.abs()), "{what}: {found}, wanted {wanted}");
    }
}

fn numbers<const RANK: usize>(tensor: Tensor<RANK>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

#[test]
fn every_pytorch_format_gives_the_same_network() {
    let network = small(&Device::default());
    let load = |name| network.load(&Weights::read(&reference(name)).unwrap(), Head::Required).unwrap();
    let (zip, report) = load("small.pth");
    let counters: Vec<String> =
        (0..4).map(|block| format!("blocks.{block}.norm.num_batches_tracked")).collect();
    assert_eq!(report, LoadReport { loaded: 22, prefix: String::new(), ignored: counters });
    assert_ne!(zip.tensors(), network.tensors());
    assert_eq!(load("small-legacy.pth").0.tensors(), zip.tensors());

    let (wrapped, report) = load("small-wrapped.pth");
    assert_eq!(wrapped.tensors(), zip.tensors());
    assert_eq!(report.prefix, "state_dict.module.");
    assert_eq!(report.ignored.len(), 5);
    assert!(report.ignored.contains(&"optimizer.step".to_owned()), "{:?}", report.ignored);
}

#[test]
fn embeddings_gradients_and_statistics_are_pytorchs() {
    let device = Device::default().autodiff();
    let weights = Weights::read(&reference("small.pth")).unwrap();
    let (network, _) = small(&device).load(&weights, Head::Required).unwrap();
    let wanted: Value = serde_json::from_slice(&fs::read(reference("small.json")).unwrap()).unwrap();
    let factors: Vec<f32> = (0..12).map(|number| (number % 5) as f32 - 2.0).collect();
    let factors = Tensor::<2>::from_data(TensorData::new(factors, [4, 3]), &device);

    close("forward", &numbers(network.forward(pictures(&device))), &wanted["frozen"]["embeddings"]);
    for (key, statistics) in [("frozen", Statistics::Frozen), ("batch", Statistics::Batch)] {
        let (rows, seen) = network.forward_training(pictures(&device), statistics);
        close(key, &numbers(rows.clone()), &wanted[key]["embeddings"]);
        let gradients = (rows * factors.clone()).sum().backward();
        let found = network.gradients(&gradients);
        assert_eq!(found.len(), wanted[key]["gradients"].as_object().unwrap().len());
        for (name, values) in found {
            close(&format!("{key} {name}"), &values, &wanted[key]["gradients"][&name]);
        }
        let after = network.clone().absorb(seen);
        if statistics == Statistics::Frozen {
            assert_eq!(after.tensors(), network.tensors());
            continue;
        }
        let running: Vec<_> =
            after.tensors().into_iter().filter(|tensor| tensor.name.contains("running")).collect();
        assert_eq!(running.len(), wanted["running"].as_object().unwrap().len());
        for tensor in running {
            close(&tensor.name, &tensor.values, &wanted["running"][&tensor.name]);
        }
    }
}

#[test]
fn a_saved_network_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for architecture in Architecture::ALL {
        let picture = PictureSize { channels: 3, height: 32, width: 48 };
        let config = NetworkConfig { dimension: 7, ..NetworkConfig::new(architecture, picture) };
        let network = Network::new(&config, Seed::new(1), &Device::default()).unwrap();
        let path = folder.path().join("network");
        network.save_safetensors(&path).unwrap();

        let weights = Weights::read(&path).unwrap();
        assert_eq!(weights.config(), Some(&config));
        let other = Network::new(&config, Seed::new(2), &Device::default().autodiff()).unwrap();
        let (loaded, report) = other.load(&weights, Head::Required).unwrap();
        assert_eq!(loaded.tensors(), network.tensors(), "{architecture}");
        assert_eq!((report.ignored, report.loaded), (vec![], network.tensors().len()));
        assert!(loaded.device().is_autodiff());
    }
    let [one, other] = ["one", "other"].map(|name| {
        let path = folder.path().join(name);
        small(&Device::default()).save_safetensors(&path).unwrap();
        fs::read(path).unwrap()
    });
    assert_eq!(one, other, "two files of one network differ");
}

#[test]
fn a_fresh_head_stays_and_the_files_head_is_passed_over() {
    let network = small(&Device::default());
    let weights = Weights::read(&reference("small.pth")).unwrap();
    let (loaded, report) = network.load(&weights, Head::Fresh).unwrap();
    assert_eq!(report.loaded, 20);
    assert!(report.ignored.contains(&"head.weight".to_owned()), "{:?}", report.ignored);
    let (before, after) = (network.tensors(), loaded.tensors());
    assert_eq!(before[20..], after[20..]);
    assert_ne!(before[..20], after[..20]);
}

#[test]
fn tensors_that_do_not_fit_are_reported_by_name() {
    let network = small(&Device::default());
    let mut weights = Weights::read(&reference("small.pth")).unwrap();
    let tensors = &mut weights.tensors;
    tensors.remove("blocks.1.norm.bias").unwrap();
    let stray = tensors.get("head.bias").unwrap().clone();
    tensors.insert("blocks.4.norm.bias".to_owned(), stray.clone());
    tensors.insert("fc.weight".to_owned(), stray);
    tensors.get_mut("head.weight").unwrap().shape = vec![2, 3];
    tensors.get_mut("head.bias").unwrap().values = Err("I64".to_owned());
    tensors.get_mut("blocks.0.norm.weight").unwrap().values.as_mut().unwrap()[1] = f32::NAN;
    tensors.get_mut("blocks.2.norm.running_var").unwrap().values.as_mut().unwrap()[0] = -1.0;
    let error = network.load(&weights, Head::Required).unwrap_err();
    let misshapen = Misshapen { name: "head.weight".to_owned(), found: vec![2, 3], wanted: vec![3, 2] };
    let wanted = FitError {
        network: "small".to_owned(),
        missing: vec!["blocks.1.norm.bias".to_owned()],
        extra: vec!["blocks.4.norm.bias".to_owned()],
        misshapen: vec![misshapen],
        wrong_type: vec![("head.bias".to_owned(), "I64".to_owned())],
        not_finite: vec!["blocks.0.norm.weight".to_owned()],
        negative: vec!["blocks.2.norm.running_var".to_owned()],
    };
    assert_eq!(*error, wanted);
    let text = error.to_string();
    for part in ["missing: `blocks.1.norm.bias`;", "`head.weight` is [2, 3], wanted [3, 2];"] {
        assert!(text.contains(part), "{text}");
    }

    let other = Weights::read(&reference("small.pth")).unwrap();
    let picture = PictureSize { channels: 3, height: 32, width: 32 };
    let config = NetworkConfig::new(Architecture::Resnet18, picture);
    let resnet = Network::new(&config, Seed::new(1), &Device::default()).unwrap();
    let error = resnet.load(&other, Head::Fresh).unwrap_err();
    assert_eq!((error.missing.len(), error.extra.len()), (100, 20));
    assert!(error.to_string().contains("`conv1.weight`"), "{error}");
    assert!(error.to_string().contains("and 90 more"), "{error}");
}

/// Reads damaged copies of a file: any error will do, a panic or a wrong length will not.
fn damage(name: &str) {
    let content = match name {
        "small.safetensors" => {
            let path = tempfile::NamedTempFile::new().unwrap();
            small(&Device::default()).save_safetensors(path.path()).unwrap();
            fs::read(path.path()).unwrap()
        }
        _ => fs::read(reference(name)).unwrap(),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged");
    let network = small(&Device::default());
    let mut outcomes = [0; 3];
    let mut check = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let outcome = match Weights::read(&path).map(|weights| network.load(&weights, Head::Required)) {
            Err(_) => 0,
            Ok(Err(_)) => 1,
            Ok(Ok(_)) => 2,
        };
        outcomes[outcome] += 1;
        outcome
    };
    assert_eq!(check(&content), 2, "{name}");
    let step = content.len() / 100 + 1;
    for length in (0..content.len()).step_by(step) {
        assert_ne!(check(&content[..length]), 2, "{name} cut to {length} bytes was accepted");
    }
    // Every byte of the beginning, where lengths and shapes are said, and some of the rest.
    for place in (0..content.len()).filter(|place| *place < 300 || place % step == 0) {
        let mut bytes = content.clone();
        bytes[place] = if place % 3 == 0 { 0xff } else { bytes[place] ^ 1 << (place % 8) };
        check(&bytes);
    }
    assert!(outcomes[0] > 100, "{name}: {outcomes:?}");
}

#[test]
fn damaged_zip_files_are_refused_without_a_panic() {
    damage("small.pth");
}

#[test]
fn damaged_legacy_files_are_refused_without_a_panic() {
    damage("small-legacy.pth");
}

#[test]
fn damaged_safetensors_files_are_refused_without_a_panic() {
    damage("small.safetensors");
}

#[test]
fn lying_and_alien_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Weights::read(&path)
    };
    assert!(matches!(read(b""), Err(WeightsError::Pytorch { .. })));
    assert!(matches!(read(b"just some text, quite long"), Err(WeightsError::Pytorch { .. })));
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend(b"{\"a\":1}");
    assert!(matches!(read(&huge), Err(WeightsError::Safetensors { .. })));
    let header = br#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}"#;
    let mut lying = (header.len() as u64).to_le_bytes().to_vec();
    lying.extend(header);
    lying.extend([0; 4]);
    assert!(matches!(read(&lying), Err(WeightsError::Safetensors { .. })));
    let empty = safetensors::serialize(Vec::<(String, TensorView<'_>)>::new(), None).unwrap();
    assert!(matches!(read(&empty), Err(WeightsError::Empty { .. })));
    assert!(matches!(Weights::read(folder.path()), Err(WeightsError::Read { .. })));
    // A call of `os.system`, as a pickle says it: read as data, refused as nothing that holds tensors.
    let call = b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.";
    assert!(matches!(read(call), Err(WeightsError::Pytorch { .. } | WeightsError::Empty { .. })));
}
