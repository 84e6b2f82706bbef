//! Damaged files of other programs and of ours: pictures, data sets, networks, configurations and tables.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod idx_files;
#[path = "../../retrievalguard/tests/mutation/mod.rs"]
mod mutation;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use idx_files::{array, zipped};
use mutation::{CountingAllocator, Kind, Reading, run};
use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::gallery::{Gallery, Metric};
use retrievalguard::storage::manifest::Provenance;
use retrievalguard::{NormBound, Sigma};
use retrievalguard_encoder::block_means::BlockMeans;
use retrievalguard_encoder::dataset::{DatasetOptions, Format, open};
use retrievalguard_encoder::engine::{Engine, EngineOptions, ModelFacts, OnnxEmbedder};
use retrievalguard_encoder::experiment::ExperimentConfig;
use retrievalguard_encoder::graph::Model;
use retrievalguard_encoder::graph::bound::BoundReading;
use retrievalguard_encoder::graph::evaluate::{EvaluationSpec, Evaluator};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::picture::{PictureLimits, RgbPicture};
use retrievalguard_encoder::table::gallery_file::{export_parquet, import_parquet, read_labels};
use retrievalguard_encoder::table::{Cell, ResultRow, ResultTable, Unverified};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What any reader may take beside its input.
const BUFFERS: usize = 2 << 20;

/// What a picture may cost here; the file, the decoder and the pixels have as many bytes each.
const PICTURES: PictureLimits = PictureLimits { pixels: 1 << 18, bytes: 16 << 20 };

/// What a small compressed file may unfold to, and its numbers as `f64`.
const UNFOLDED: usize = 9 * (32 << 20);

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn examples(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| fs::read(reference(name)).unwrap()).collect()
}

fn pictures(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| fs::read(reference("reference/pictures").join(name)).unwrap()).collect()
}

fn decode(bytes: &[u8]) -> Reading {
    RgbPicture::from_bytes("damaged", bytes, &PICTURES).into()
}

/// Right check sums for the chunks of a PNG file.
fn with_chunk_sums(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let Some(end) = at.checked_add(8 + length).filter(|&end| end + 4 <= bytes.len()) else { break };
        let mut sum = flate2::Crc::new();
        sum.update(&bytes[at + 4..end]);
        bytes[end..end + 4].copy_from_slice(&sum.sum().to_be_bytes());
        at = end + 4;
    }
    bytes
}

fn results() -> ResultTable {
    let row = |number: usize| ResultRow {
        identity: format!("query {number}"),
        label: "cat".into(),
        retrieved: "item".into(),
        retrieved_label: "cat".into(),
        retrieved_view: None,
        nearest_wrong: None,
        plain: None,
        file: None,
        certificates: BTreeMap::from([(
            CertificateName::HalfSpace,
            Cell { verdict: Verdict::Certified { radius: Radius::Finite(0.05) }, samples: 1_000 },
        )]),
    };
    let sigma = Sigma::new(0.1).unwrap();
    ResultTable::new(Some(sigma), vec![CertificateName::HalfSpace], (0..5).map(row).collect()).unwrap()
}

fn gallery() -> Gallery {
    let vectors = (1..=20).map(|number| number as f32 / 7.0).collect();
    let identities = (0..4).map(|row| format!("item {row}")).collect();
    Gallery::new(vectors, 5, identities, &["cat", "cat", "dog", "cow"], Metric::Euclidean).unwrap()
}

#[test]
fn no_damaged_picture_makes_a_decoder_panic_hang_or_fill_the_memory() {
    let kind = |name, names: &[&str], repair| Kind {
        name,
        seeds: pictures(names),
        allowance: 3 * (PICTURES.bytes as usize),
        repair,
        read: &decode,
    };
    run(&[
        kind(
            "JPEG",
            &[
                "noise-33x47-420.jpg",
                "stripes-39x51-422.jpg",
                "cmyk-45x31.jpg",
                "turned-6.jpg",
                "grey-57x41.jpg",
            ],
            None,
        ),
        kind(
            "JPEG, progressive",
            &[
                "noise-49x35-420-progressive.jpg",
                "stripes-43x43-420-progressive.jpg",
                "grey-41x57-progressive.jpg",
            ],
            None,
        ),
        kind(
            "PNG",
            &[
                "png-colour.png",
                "png-palette-clear.png",
                "png-grey-16.png",
                "png-bilevel.png",
                "png-turned.png",
            ],
            Some(&with_chunk_sums),
        ),
        kind("WebP, lossy", &["webp-lossy.webp", "webp-lossy-alpha.webp", "webp-turned.webp"], None),
        kind("WebP, lossless", &["webp-lossless.webp", "webp-lossless-alpha.webp"], None),
    ]);
}

#[test]
fn no_damaged_data_set_makes_a_reader_panic_hang_or_fill_the_memory() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let read = |root: &Path, file: &str, bytes: &[u8], format| {
        fs::write(root.join(file), bytes).unwrap();
        Reading::from(open(root, format, DatasetOptions::default()))
    };
    let pixels: Vec<u8> = (0..3 * 4 * 5).map(|value| value * 3).collect();
    let [plain, packed, labels] = ["plain", "packed", "labels"].map(root);
    for root in [&plain, &packed] {
        fs::write(root.join("t10k-labels-idx1-ubyte"), array(&[3], &[1, 2, 3])).unwrap();
    }
    fs::write(labels.join("t10k-images-idx3-ubyte"), array(&[3, 4, 5], &pixels)).unwrap();
    let [cars, list, cub] = ["cars", "list", "cub"].map(root);
    fs::create_dir(cub.join("images")).unwrap();
    fs::write(cub.join("images.txt"), "1 001.Albatross/a.jpg\n2 002.Auklet/b.jpg\n").unwrap();
    let csv = "label,path,split,is_query,is_gallery,category,x_1,y_1,x_2,y_2\n\
               cat,a.jpg,train,False,False,pet,1,2,30,40\n\
               \"dog, big\",b.jpg,validation,True,True,pet,0,0,5,5\n";
    let csv_file = list.join("list.csv");
    run(&[
        Kind {
            name: "IDX",
            seeds: vec![array(&[3, 4, 5], &pixels)],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| read(&plain, "t10k-images-idx3-ubyte", bytes, Format::Idx),
        },
        Kind {
            name: "IDX, gzipped",
            seeds: vec![zipped(&array(&[3, 4, 5], &pixels))],
            allowance: UNFOLDED,
            repair: None,
            read: &|bytes| read(&packed, "t10k-images-idx3-ubyte.gz", bytes, Format::Idx),
        },
        Kind {
            name: "IDX, damaged, gzipped",
            seeds: vec![array(&[3, 4, 5], &pixels)],
            allowance: UNFOLDED,
            repair: None,
            read: &|bytes| read(&packed, "t10k-images-idx3-ubyte.gz", &zipped(bytes), Format::Idx),
        },
        Kind {
            name: "IDX labels",
            seeds: vec![array(&[3], &[7, 8, 9])],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| read(&labels, "t10k-labels-idx1-ubyte", bytes, Format::Idx),
        },
        Kind {
            name: "MAT",
            seeds: examples(&["reference/cars/cars_annos.mat"]),
            allowance: UNFOLDED,
            repair: None,
            read: &|bytes| read(&cars, "cars_annos.mat", bytes, Format::Cars),
        },
        Kind {
            name: "CSV list",
            seeds: vec![csv.into()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                fs::write(&csv_file, bytes).unwrap();
                open(&csv_file, Format::Csv, DatasetOptions::default()).into()
            },
        },
        Kind {
            name: "CUB list",
            seeds: vec![b"1 1\n2 2\n".to_vec()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| read(&cub, "image_class_labels.txt", bytes, Format::Cub),
        },
    ]);
}

#[test]
fn no_damaged_network_or_configuration_makes_a_reader_panic_hang_or_fill_the_memory() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let model = folder.path().join("model.onnx");
    let experiment = folder.path().join("experiment.toml");
    let networks = || examples(&["models/convolutional.onnx", "models/int8.onnx", "models/float16.onnx"]);
    let text = |bytes: &[u8], read: &dyn Fn(&str) -> Reading| {
        std::str::from_utf8(bytes).map_or(Reading::Refused, read)
    };
    let config = ModelConfig::read(&reference("models/encoder.toml")).unwrap();
    let timm = r#"{"architecture": "resnet50", "num_classes": 0, "pretrained_cfg": {"input_size": [3, 224, 224],
        "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "interpolation": "bicubic", "crop_pct": 0.875,
        "crop_mode": "center"}}"#;
    let figures = ["figure-1", "figure-2", "figure-3-left"]
        .map(|name| fs::read(reference("../../../experiments").join(name).with_extension("toml")).unwrap());
    run(&[
        Kind {
            name: "ONNX, what it says",
            seeds: networks(),
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                fs::write(&model, bytes).unwrap();
                ModelFacts::read(&model).into()
            },
        },
        Kind {
            name: "ONNX, evaluated",
            seeds: networks(),
            allowance: 64 << 20,
            repair: None,
            read: &|bytes| {
                fs::write(&model, bytes).unwrap();
                let Ok(read) = Model::read(&model) else { return Reading::Refused };
                let shape = [1, 3, 16, 16];
                let spec = EvaluationSpec { input: "pictures", shape: &shape, output: "embeddings" };
                let value = Evaluator::<f32>::new(&model, &read, &spec)
                    .and_then(|evaluator| evaluator.value(&vec![0.5; evaluator.input_len()], 1));
                value.into()
            },
        },
        Kind {
            name: "ONNX, its Lipschitz bound",
            seeds: [
                examples(&["models/convolutional.onnx"]),
                vec![BlockMeans::new(3, 16, 4).unwrap().onnx()],
            ]
            .concat(),
            // Correlations of every pair of channels, of which there may be as many as the file has numbers.
            allowance: 256 << 20,
            repair: None,
            read: &|bytes| {
                fs::write(&model, bytes).unwrap();
                let plain = BlockMeans::new(3, 16, 4).unwrap().config();
                match Model::read(&model).map(|model| BoundReading::of(&model, &plain)) {
                    Ok(Ok(BoundReading::Bounded(_))) => Reading::Accepted,
                    Ok(Ok(BoundReading::Unknown { .. }) | Err(_)) | Err(_) => Reading::Refused,
                }
            },
        },
        Kind {
            name: "ONNX, opened with rten",
            seeds: examples(&["models/convolutional.onnx"]),
            allowance: 64 << 20,
            repair: None,
            read: &|bytes| {
                fs::write(&model, bytes).unwrap();
                let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
                OnnxEmbedder::open(&model, config.clone(), &options).into()
            },
        },
        Kind {
            name: "encoder.toml",
            seeds: examples(&["models/encoder.toml"]),
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| text(bytes, &|text| ModelConfig::from_toml(text).into()),
        },
        Kind {
            name: "timm's config.json",
            seeds: vec![timm.into()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| text(bytes, &|text| ModelConfig::from_timm(text).into()),
        },
        Kind {
            name: "experiment",
            seeds: figures.to_vec(),
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| text(bytes, &|text| ExperimentConfig::from_toml(&experiment, text).into()),
        },
    ]);
}

#[test]
fn no_damaged_table_makes_a_reader_panic_hang_or_fill_the_memory() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let [table, lines, stored, names] = ["table.parquet", "table.jsonl", "gallery.parquet", "labels.txt"]
        .map(|name| folder.path().join(name));
    results().write_parquet(&table, None).unwrap();
    results().write_json_lines(&lines).unwrap();
    export_parquet(&stored, &gallery(), &[], &Provenance::unknown(NormBound::UNIT)).unwrap();
    let [tables, lists, galleries] = [&table, &lines, &stored].map(|path| fs::read(path).unwrap());
    let mut galleries = vec![galleries];
    galleries.extend(examples(&[
        "reference/parquet/plain.parquet",
        "reference/parquet/pandas-category.parquet",
        "reference/parquet/polars-array.parquet",
        "reference/parquet/groups.parquet",
    ]));
    run(&[
        Kind {
            name: "table in Parquet",
            seeds: vec![tables],
            allowance: 16 << 20,
            repair: None,
            read: &|bytes| {
                fs::write(&table, bytes).unwrap();
                ResultTable::read(&table, Unverified::Accept).into()
            },
        },
        Kind {
            name: "table in JSON lines",
            seeds: vec![lists],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                fs::write(&lines, bytes).unwrap();
                ResultTable::read(&lines, Unverified::Accept).into()
            },
        },
        Kind {
            name: "gallery in Parquet",
            seeds: galleries,
            allowance: 16 << 20,
            repair: None,
            read: &|bytes| {
                fs::write(&stored, bytes).unwrap();
                import_parquet(&stored, None).into()
            },
        },
        Kind {
            name: "list of labels",
            seeds: vec!["cat\ndog\nkätzchen\n".into()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                fs::write(&names, bytes).unwrap();
                read_labels(&names).into()
            },
        },
    ]);
}
