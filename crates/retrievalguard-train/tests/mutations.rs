//! Damaged recipes, weights and checkpoints.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../retrievalguard/tests/mutation/mod.rs"]
mod mutation;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::Device;
use mutation::{CountingAllocator, Kind, Reading, run};
use retrievalguard::Seed;
use retrievalguard::storage::digest::Digest;
use retrievalguard_train::checkpoint::{Checkpoint, TrainingPosition};
use retrievalguard_train::network::{Architecture, Network, NetworkConfig, PictureSize};
use retrievalguard_train::recipe::{Preset, Recipe};
use retrievalguard_train::weights::Weights;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What any reader may take beside its input.
const BUFFERS: usize = 2 << 20;

fn pytorch(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)).unwrap()
}

#[test]
fn no_damaged_recipe_or_weights_make_a_reader_panic_hang_or_fill_the_memory() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let [file, kept] = ["weights", "checkpoint"].map(|name| folder.path().join(name));
    let picture = PictureSize { channels: 1, height: 16, width: 16 };
    let config = NetworkConfig { dimension: 3, width: 2, ..NetworkConfig::new(Architecture::Small, picture) };
    let network = Network::new(&config, Seed::new(1), &Device::default()).unwrap();
    network.save_safetensors(&file).unwrap();
    let safetensors = fs::read(&file).unwrap();
    let checkpoint = Checkpoint {
        position: TrainingPosition { epoch: 3, batch: 7, step: 1234, run: Digest::of_bytes(b"run") },
        network: BTreeMap::from([("conv1.weight".to_owned(), (vec![2, 1], vec![1.5, -0.25]))]),
        beta: 1.2,
        optimisers: BTreeMap::from([("head".to_owned(), vec![1, 2, 3]), ("loss".to_owned(), vec![])]),
    };
    checkpoint.write(&kept).unwrap();
    let checkpoint = fs::read(&kept).unwrap();
    let weights = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        Reading::from(Weights::read(&file))
    };
    let recipes = [Preset::Small, Preset::Paper]
        .map(|preset| Recipe::assemble(preset, None, &[]).unwrap().to_toml().into_bytes());
    run(&[
        Kind {
            name: "recipe",
            seeds: recipes.to_vec(),
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                let recipe = std::str::from_utf8(bytes).map(|text| Recipe::from_toml("recipe", text));
                recipe.map_or(Reading::Refused, Reading::from)
            },
        },
        Kind {
            name: "weights in safetensors",
            seeds: vec![safetensors],
            allowance: BUFFERS,
            repair: None,
            read: &weights,
        },
        Kind {
            name: "weights of PyTorch",
            seeds: ["small.pth", "small-wrapped.pth"].map(pytorch).to_vec(),
            allowance: BUFFERS,
            repair: None,
            read: &weights,
        },
        Kind {
            name: "weights of older PyTorch",
            seeds: vec![pytorch("small-legacy.pth")],
            allowance: BUFFERS,
            repair: None,
            read: &weights,
        },
        Kind {
            name: "checkpoint",
            seeds: vec![checkpoint],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                fs::write(&kept, bytes).unwrap();
                Checkpoint::read(&kept).into()
            },
        },
    ]);
}
