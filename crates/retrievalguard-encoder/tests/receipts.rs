//! Receipts: made by a run, verified, forged in every field, sealed again, and refused.
//!
//! Pictures are drawn into a temporary folder and embedded by the small models of these tests with the built-in engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::BufWriter;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::CertificateName;
use retrievalguard::gallery::Metric;
use retrievalguard::storage::digest::{Digest, canonical_json};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Alpha, Excess, SampleCount, Seed, Sigma, TargetRadius};
use retrievalguard_encoder::block_means::BlockMeans;
use retrievalguard_encoder::dataset::{BrokenPictures, DatasetOptions, Format, Selected, open};
use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::pipeline::{CertifyOptions, IndexRequest, LeaveOneOut, certify, index};
use retrievalguard_encoder::receipt::{
    Evidence, Expected, Receipt, ReceiptError, ReceiptKey, ReceiptsTo, Refusal, Verified, VerifyError, verify,
};
use retrievalguard_encoder::work::Unobserved;
use serde_json::{Value, json};
use tempfile::TempDir;

const CLASSES: usize = 4;
const PER_CLASS: usize = 5;

/// Pictures, an encoder and the gallery of the first pictures of each class.
struct Setting {
    folder: TempDir,
    embedder: OnnxEmbedder,
    gallery: StoredGallery,
    sigma: Option<Sigma>,
}

fn draw(folder: &Path, classes: usize, per_class: usize, shift: usize) {
    for class in 0..classes {
        fs::create_dir_all(folder.join(format!("class-{class}"))).unwrap();
        for variant in 0..per_class {
            let (width, height) = (18 + variant, 24 - variant);
            let pixel = |place: usize| -> [u8; 3] {
                let wave = ((place % width) * (class + 2) + (place / width) * 3 + variant * 7 + shift) % 40;
                let mut pixel = [60 + wave as u8; 3];
                pixel[class % 3] = 220 - wave as u8;
                if class >= 3 {
                    pixel[(class + 1) % 3] = 200;
                }
                pixel
            };
            let pixels: Vec<u8> = (0..width * height).flat_map(pixel).collect();
            let file = fs::File::create(folder.join(format!("class-{class}/{variant}.png"))).unwrap();
            let mut encoder = png::Encoder::new(BufWriter::new(file), width as u32, height as u32);
            encoder.set_color(png::ColorType::Rgb);
            encoder.set_depth(png::BitDepth::Eight);
            encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        }
    }
}

fn records(folder: &Path) -> retrievalguard_encoder::RecordSet {
    open(folder, Format::ImageFolder, DatasetOptions::default()).unwrap().records.into()
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

impl Setting {
    fn new(noise: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (model, engine) = if noise {
            let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
            (models.join("convolutional.onnx"), Engine::Rten)
        } else {
            (BlockMeans::new(3, 16, 4).unwrap().write(&folder.path().join("model")).unwrap(), Engine::Double)
        };
        let options = EngineOptions { engine: Some(engine), ..EngineOptions::default() };
        let embedder = OnnxEmbedder::open(&model, ModelConfig::for_model(&model).unwrap(), &options).unwrap();
        draw(&folder.path().join("items"), CLASSES, 3, 0);
        draw(&folder.path().join("queries"), CLASSES, PER_CLASS, 5);
        let sigma = noise.then(|| Sigma::new(0.1).unwrap());
        let gallery =
            Self::indexed(&folder.path().join("items"), &folder.path().join("gallery"), &embedder, sigma);
        Self { gallery, folder, embedder, sigma }
    }

    fn indexed(items: &Path, to: &Path, embedder: &OnnxEmbedder, sigma: Option<Sigma>) -> StoredGallery {
        let records = records(items);
        let request = IndexRequest {
            records: &records,
            embedder,
            sigma,
            samples: 8,
            seed: Seed::new(3),
            metric: Metric::Euclidean,
            views: None,
            excess: Excess::Refuse,
            broken: BrokenPictures::Fatal,
            threads: one(),
            batch: NonZeroUsize::new(16).unwrap(),
            shards: None,
        };
        index(&request, to, &Unobserved).unwrap();
        StoredGallery::open(to).unwrap()
    }

    /// The receipts of all queries under these certificates.
    fn receipts(
        &self,
        name: &str,
        certificates: &[CertificateName],
        target: Option<f64>,
        key: Option<ReceiptKey>,
    ) -> Vec<Receipt> {
        let to = self.folder.path().join(name);
        let options = CertifyOptions {
            alpha: Alpha::new(0.01).unwrap(),
            simultaneous: false,
            pilot: SampleCount::new(20).ok(),
            samples: SampleCount::new(100).unwrap(),
            certificates: certificates.to_vec(),
            top_k: 1,
            mixtures: one(),
            target_radius: target.map(|target| TargetRadius::new(target).unwrap()),
            replan_bets: false,
            seed: Seed::new(7),
            leave_one_out: LeaveOneOut::Auto,
            excess: Excess::Refuse,
            broken: BrokenPictures::Fatal,
            keep_samples: None,
            receipts: Some(ReceiptsTo { folder: to.clone(), key }),
            threads: one(),
            batch: NonZeroUsize::new(16).unwrap(),
        };
        let all = records(&self.folder.path().join("queries"));
        let selected = Selected { chosen: all.clone(), all };
        let request =
            options.request(self.sigma, &selected, &self.embedder, (&self.gallery, "gallery")).unwrap();
        certify(&request, &to.join("journal"), &Unobserved).unwrap();
        (0..CLASSES * PER_CLASS)
            .map(|place| Receipt::read(&to.join(Receipt::file_name(place))).unwrap())
            .collect()
    }

    fn picture_of(&self, receipt: &Receipt) -> PathBuf {
        self.folder.path().join("queries").join(&receipt.fixed.picture.identity)
    }

    fn verify(&self, receipt: &Receipt, expected: &Expected) -> Result<Verified, VerifyError> {
        self.verify_with(receipt, &self.gallery, &self.picture_of(receipt), expected)
    }

    fn verify_with(
        &self,
        receipt: &Receipt,
        gallery: &StoredGallery,
        picture: &Path,
        expected: &Expected,
    ) -> Result<Verified, VerifyError> {
        let picture = fs::read(picture).unwrap();
        let evidence = Evidence {
            embedder: &self.embedder,
            gallery,
            gallery_name: "gallery",
            picture: &picture,
            threads: one(),
            batch: NonZeroUsize::new(32).unwrap(),
        };
        verify(receipt, &evidence, expected)
    }
}

/// The messages of an error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

const ALL_NOISE: [CertificateName; 4] = [
    CertificateName::Pairwise,
    CertificateName::Vote,
    CertificateName::HalfSpace,
    CertificateName::PaperFrozen,
];
const ALL_BOUND: [CertificateName; 2] = [CertificateName::Lipschitz, CertificateName::LipschitzMargin];

#[test]
fn every_receipt_of_a_run_is_verified_bit_for_bit() {
    let setting = Setting::new(true);
    let mut certified = 0;
    for (name, certificates, target) in [
        ("pairwise", &ALL_NOISE[..1], None),
        ("vote", &ALL_NOISE[1..2], None),
        ("half-space", &ALL_NOISE[2..3], None),
        ("several", &ALL_NOISE[..], None),
        ("pairwise-target", &ALL_NOISE[..1], Some(0.05)),
        ("vote-target", &ALL_NOISE[1..2], Some(0.05)),
        ("half-space-target", &ALL_NOISE[2..3], Some(0.05)),
    ] {
        for receipt in setting.receipts(name, certificates, target, None) {
            let verified = setting.verify(&receipt, &Expected::default());
            let verified = verified.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
            assert_eq!(verified, Verified { signed_by: None, undecided: None }, "{name}");
            certified += receipt.answers.iter().filter(|answer| answer.radius.is_some()).count();
            // What is true bit for bit is true up to rounding.
            let rounding = Expected { rounding: true, ..Expected::default() };
            assert!(setting.verify(&receipt, &rounding).is_ok(), "{name}");
        }
    }
    assert!(certified > 40, "{certified} answers have a radius: the test has lost its teeth");
}

#[test]
fn receipts_without_noise_are_verified_and_have_no_commitment() {
    let setting = Setting::new(false);
    let receipts = setting.receipts("run", &ALL_BOUND, None, None);
    for receipt in &receipts {
        assert_eq!((receipt.commitment, &receipt.opened, receipt.drawn.len()), (None, &None, 0));
        let verified = setting.verify(receipt, &Expected::default());
        assert!(verified.is_ok(), "{}", chain(&verified.unwrap_err()));
    }
    let certified = receipts.iter().filter(|receipt| receipt.answers[0].radius.is_some()).count();
    assert!(certified > 10, "{certified}");
}

/// The commitment to what a forged receipt says.
fn committed(receipt: &mut Value) {
    let opened = json!({"fixed": receipt["fixed"], "opened": receipt["opened"]});
    let text = format!("retrievalguard receipt commitment 1\n{}", canonical_json(&opened));
    receipt["commitment"] = Digest::of_bytes(text.as_bytes()).to_string().into();
}

/// One forgery: its name, and what it does to a receipt; false if there is nothing to forge.
type Forgery = (&'static str, fn(&mut Value) -> bool);

fn answer(receipt: &mut Value) -> &mut Value {
    &mut receipt["answers"][0]
}

fn set(place: &mut Value, value: impl Into<Value>) -> bool {
    let value = value.into();
    let changed = *place != value;
    *place = value;
    changed
}

/// Changes the radius wherever it stands, so that everything but the computation fits.
fn with_radius(receipt: &mut Value, factor: f64) -> bool {
    let Some(radius) = answer(receipt)["radius"].as_str().and_then(|text| text.parse::<f64>().ok()) else {
        return false;
    };
    let (old, new) = (radius.to_string(), (radius * factor).to_string());
    let text = receipt["answers"].to_string().replace(&old, &new);
    receipt["answers"] = serde_json::from_str(&text).unwrap();
    let [old, new] =
        [radius, radius * factor].map(|radius| retrievalguard::certificate::round_down(radius, 4));
    let statement = answer(receipt)["statement"].as_str().unwrap().replace(&old, &new);
    answer(receipt)["statement"] = statement.into();
    true
}

const FORGERIES: &[Forgery] = &[
    ("a larger radius", |receipt| with_radius(receipt, 1.05)),
    ("a radius larger by a millionth part", |receipt| with_radius(receipt, 1.000_01)),
    ("a smaller radius", |receipt| with_radius(receipt, 0.5)),
    ("unbounded", |receipt| {
        answer(receipt)["radius"].is_string() && set(&mut answer(receipt)["radius"], "unbounded")
    }),
    ("another label", |receipt| {
        let other = if answer(receipt)["label"] == "class-1" { "class-2" } else { "class-1" };
        let old = answer(receipt)["label"].as_str().unwrap().to_owned();
        let statement = answer(receipt)["statement"].as_str().unwrap().replace(&old, other);
        answer(receipt)["statement"] = statement.into();
        set(&mut answer(receipt)["label"], other)
    }),
    ("another verdict", |receipt| {
        let other = if answer(receipt)["verdict"] == "certified" { "abstained" } else { "certified" };
        set(&mut answer(receipt)["verdict"], other)
    }),
    ("another statement", |receipt| {
        set(&mut answer(receipt)["statement"], "No change whatsoever makes a difference.")
    }),
    ("other counts", |receipt| {
        let counted = &mut answer(receipt)["counted"];
        if let Some(losses) = counted.get_mut("losses") {
            set(losses, json!([{"label": "class-0", "copies": 77}]))
        } else if let Some(votes) = counted.get_mut("votes") {
            let right = votes["right"].as_u64().unwrap();
            set(&mut votes["right"], right + 1)
        } else if counted.get("tests").is_some() {
            set(&mut counted["tests"], json!([]))
        } else {
            counted.get("bound").is_some() && set(&mut counted["bound"]["forward_error"], "0.5")
        }
    }),
    ("other steps", |receipt| set(&mut answer(receipt)["counted"]["steps"], json!([]))),
    ("no answers", |receipt| set(&mut receipt["answers"], json!([]))),
    ("fewer samples in the answer", |receipt| {
        answer(receipt)["samples"] != 0 && set(&mut answer(receipt)["samples"], 50)
    }),
    ("another range of samples", |receipt| {
        let last = receipt["drawn"].as_array().map_or(0, Vec::len);
        last > 0 && set(&mut receipt["drawn"][last - 1]["end"], 5)
    }),
    ("another first sample", |receipt| {
        let last = receipt["drawn"].as_array().map_or(0, Vec::len);
        last > 0 && set(&mut receipt["drawn"][last - 1]["first"], 1)
    }),
    ("another stage", |receipt| {
        let last = receipt["drawn"].as_array().map_or(0, Vec::len);
        last > 0 && set(&mut receipt["drawn"][last - 1]["stage"], "gallery")
    }),
    ("another seed", |receipt| receipt["opened"].is_object() && set(&mut receipt["opened"]["seed"], "8")),
    ("another salt", |receipt| {
        receipt["opened"].is_object() && set(&mut receipt["opened"]["salt"], "ab".repeat(32))
    }),
    ("another commitment", |receipt| {
        receipt["opened"].is_object() && set(&mut receipt["commitment"], "cd".repeat(32))
    }),
    ("no seed", |receipt| receipt["opened"].is_object() && set(&mut receipt["opened"], Value::Null)),
    ("another picture", |receipt| set(&mut receipt["fixed"]["picture"]["file"], "ef".repeat(32))),
    ("other pixels", |receipt| set(&mut receipt["fixed"]["picture"]["pixels"], "ef".repeat(32))),
    ("another model", |receipt| set(&mut receipt["fixed"]["encoder"]["model"], "ef".repeat(32))),
    ("another config", |receipt| set(&mut receipt["fixed"]["encoder"]["config"], "{}")),
    ("another engine", |receipt| set(&mut receipt["fixed"]["encoder"]["engine"], "an abacus")),
    ("other vectors", |receipt| set(&mut receipt["fixed"]["gallery"]["vectors"], "ef".repeat(32))),
    ("other items", |receipt| set(&mut receipt["fixed"]["gallery"]["items"], "ef".repeat(32))),
    ("more rows", |receipt| set(&mut receipt["fixed"]["gallery"]["rows"], 13)),
    ("rows out of order", |receipt| set(&mut receipt["fixed"]["gallery"]["excluded"], json!([2, 1]))),
    ("another sigma", |receipt| {
        receipt["fixed"]["noise"].is_object() && set(&mut receipt["fixed"]["noise"]["sigma"], "0.2")
    }),
    ("another alpha", |receipt| {
        receipt["fixed"]["noise"].is_object() && set(&mut receipt["fixed"]["noise"]["alpha"], "0.001")
    }),
    ("another number of samples", |receipt| {
        receipt["fixed"]["noise"].is_object() && set(&mut receipt["fixed"]["noise"]["samples"], 90)
    }),
    ("another pilot", |receipt| {
        receipt["fixed"]["noise"].is_object() && set(&mut receipt["fixed"]["noise"]["pilot"], 21)
    }),
    ("another schedule", |receipt| {
        receipt["fixed"]["noise"].is_object() && set(&mut receipt["fixed"]["noise"]["schedule"], "target")
    }),
    ("another retriever", |receipt| {
        let other = if receipt["fixed"]["retriever"] == "vote" { "mean" } else { "vote" };
        set(&mut receipt["fixed"]["retriever"], other)
    }),
    ("another certificate", |receipt| {
        let other = if answer(receipt)["certificate"] == "vote" { "pairwise" } else { "vote" };
        receipt["fixed"]["certificates"] = json!([other]);
        set(&mut answer(receipt)["certificate"], other)
    }),
    ("no certificate", |receipt| {
        receipt["answers"] = json!([]);
        set(&mut receipt["fixed"]["certificates"], json!([]))
    }),
    ("another constant", |receipt| {
        receipt["fixed"]["bound"].is_object() && set(&mut receipt["fixed"]["bound"]["constant"], "0.5")
    }),
    ("noise beside a bound", |receipt| {
        receipt["fixed"]["bound"].is_object()
            && set(
                &mut receipt["fixed"]["noise"],
                json!({"sigma": "0.1", "alpha": "0.01", "pilot": 20, "samples": 100, "schedule": "fixed",
                       "target_radius": null, "top_k": 1, "replan_bets": false, "seed_from": "fresh"}),
            )
    }),
];

#[expect(clippy::panic, reason = "a test says which forgery was accepted")]
/// Applies every forgery to a receipt in turn: as it is, sealed again, and with a new commitment as well.
fn forgeries_are_refused(setting: &Setting, receipt: &Receipt) -> usize {
    let mut refused = 0;
    for (name, forge) in FORGERIES {
        for (seal, commit) in [(false, false), (true, false), (true, true)] {
            let mut value = receipt.to_value();
            if !forge(&mut value) {
                continue;
            }
            if commit && value["opened"].is_object() && *name != "another commitment" {
                // A seed or a salt that is committed to anew is no forgery but another promise.
                if matches!(*name, "another salt" | "another seed") {
                    continue;
                }
                committed(&mut value);
            } else if commit {
                continue;
            }
            let forged = match Receipt::parse(value.to_string().as_bytes()) {
                Ok(forged) if seal => forged.sealed(None),
                Ok(forged) => forged,
                Err(error) => panic!("{name}: {}", chain(&error)),
            };
            let result = setting.verify(&forged, &Expected::default());
            let Err(error) = result else {
                panic!("{name}, sealed {seal}, committed {commit}: accepted\n{value:#}")
            };
            let text = chain(&error);
            let by_seal = matches!(error, VerifyError::Refused(Refusal::Digest { .. }));
            assert_eq!(by_seal, !seal, "{name}: {text}");
            refused += 1;
        }
    }
    refused
}

#[test]
fn every_forgery_of_twenty_receipts_is_refused_however_it_is_sealed() {
    let (noisy, plain) = (Setting::new(true), Setting::new(false));
    let (mut receipts, mut refused) = (0, 0);
    for (setting, name, certificates) in [
        (&noisy, "pairwise", &ALL_NOISE[..1]),
        (&noisy, "vote", &ALL_NOISE[1..2]),
        (&noisy, "half-space", &ALL_NOISE[2..3]),
        (&plain, "lipschitz", &ALL_BOUND[..1]),
    ] {
        for receipt in setting.receipts(name, certificates, None, None).iter().step_by(4) {
            refused += forgeries_are_refused(setting, receipt);
            receipts += 1;
        }
    }
    assert_eq!(receipts, 20);
    assert!(refused > 1_200, "{refused} forgeries: the test has lost its teeth");
}

#[test]
fn another_gallery_and_another_picture_are_refused_by_name() {
    let setting = Setting::new(true);
    let receipt = &setting.receipts("run", &ALL_NOISE[..1], None, None)[0];
    let folder = setting.folder.path();
    draw(&folder.join("others"), CLASSES, 3, 1);
    let other =
        Setting::indexed(&folder.join("others"), &folder.join("other"), &setting.embedder, setting.sigma);
    let picture = setting.picture_of(receipt);
    let error = setting.verify_with(receipt, &other, &picture, &Expected::default()).unwrap_err();
    assert!(chain(&error).contains("gallery.vectors is \""), "{}", chain(&error));
    let other = folder.join("queries/class-1/1.png");
    let error = setting.verify_with(receipt, &setting.gallery, &other, &Expected::default()).unwrap_err();
    assert!(chain(&error).contains("picture.file is \""), "{}", chain(&error));
}

#[test]
fn what_an_auditor_expects_must_be_there() {
    let setting = Setting::new(true);
    let key = ReceiptKey::from_bytes([7; 32]);
    let receipt = setting.receipts("run", &ALL_NOISE[..1], None, Some(key.clone())).remove(0);
    let signed = setting.verify(&receipt, &Expected { key: Some(key.public()), ..Expected::default() });
    assert_eq!(signed.unwrap().signed_by, Some(key.public()));
    let commitment = receipt.commitment;
    assert!(setting.verify(&receipt, &Expected { commitment, ..Expected::default() }).is_ok());

    let refused = |receipt: &Receipt, expected: Expected| match setting.verify(receipt, &expected) {
        Err(VerifyError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let other = ReceiptKey::from_bytes([8; 32]);
    let expected = || Expected { key: Some(other.public()), ..Expected::default() };
    assert!(matches!(refused(&receipt, expected()), Refusal::Signer { found: Some(_), .. }));
    let unsigned = receipt.clone().sealed(None);
    assert!(matches!(refused(&unsigned, expected()), Refusal::Signer { found: None, .. }));
    let published = Expected { commitment: Some(Digest::of_bytes(b"")), ..Expected::default() };
    assert!(matches!(refused(&receipt, published), Refusal::Published { .. }));
    let asked = Expected { challenge: Some("what I asked".to_owned()), ..Expected::default() };
    assert!(matches!(refused(&receipt, asked), Refusal::Challenge { found: None, .. }));

    // A signature holds what it signed, and belongs to its key.
    let mut forged = receipt.clone();
    forged.answers[0].statement.push('!');
    forged.digest = forged.own_digest();
    assert!(matches!(refused(&forged, Expected::default()), Refusal::Signature { .. }));
    let mut taken = receipt.clone().sealed(Some(&other));
    taken.signature.as_mut().unwrap().key = key.public();
    assert!(matches!(refused(&taken, Expected::default()), Refusal::Signature { .. }));
    let mut broken = receipt.clone();
    broken.signature.as_mut().unwrap().value = "é".repeat(64);
    assert!(matches!(refused(&broken, Expected::default()), Refusal::Signature { .. }));
    let few = Expected { most_samples: Some(99), ..Expected::default() };
    assert!(matches!(setting.verify(&receipt, &few), Err(VerifyError::Samples { found: 100, most: 99 })));
}

#[test]
fn last_bits_may_differ_only_where_that_is_allowed_and_never_by_more() {
    let setting = Setting::new(true);
    let rounding = Expected { rounding: true, ..Expected::default() };
    let mut forged = 0;
    for (name, certificates) in
        [("pairwise", &ALL_NOISE[..1]), ("vote", &ALL_NOISE[1..2]), ("half-space", &ALL_NOISE[2..3])]
    {
        for receipt in setting.receipts(name, certificates, None, None).iter().step_by(3) {
            let remade = |value: &mut Value| {
                if value["opened"].is_object() {
                    committed(value);
                }
                Receipt::parse(value.to_string().as_bytes()).unwrap().sealed(None)
            };
            // Another engine, and steps whose last digits are its own.
            let mut value = receipt.to_value();
            value["fixed"]["encoder"]["engine"] = "another engine".into();
            value["answers"][0]["counted"]["steps"] = json!([]);
            let elsewhere = remade(&mut value);
            let strict = setting.verify(&elsewhere, &Expected::default());
            assert!(matches!(strict, Err(VerifyError::Refused(Refusal::Files(_)))), "{strict:?}");
            let verified = setting.verify(&elsewhere, &rounding);
            let verified = verified.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
            assert!(verified.undecided.is_some());
            for factor in [1.001, 0.9] {
                let mut larger = value.clone();
                if with_radius(&mut larger, factor) {
                    assert!(setting.verify(&remade(&mut larger), &rounding).is_err(), "{name} {factor}");
                    forged += 1;
                }
            }
            for forge in ["another label", "another statement", "fewer samples in the answer"] {
                let mut other = value.clone();
                let (_, change) = FORGERIES.iter().find(|(name, _)| *name == forge).unwrap();
                assert!(change(&mut other), "{forge}");
                assert!(setting.verify(&remade(&mut other), &rounding).is_err(), "{name}: {forge}");
                forged += 1;
            }
        }
    }
    assert!(forged > 80, "{forged}");
}

#[test]
fn without_noise_last_bits_explain_next_to_nothing() {
    let setting = Setting::new(false);
    let rounding = Expected { rounding: true, ..Expected::default() };
    let mut forged = 0;
    for receipt in setting.receipts("run", &ALL_BOUND[..1], None, None).iter().step_by(4) {
        let sealed = |value: &Value| Receipt::parse(value.to_string().as_bytes()).unwrap().sealed(None);
        let mut elsewhere = receipt.to_value();
        elsewhere["fixed"]["encoder"]["engine"] = "another engine".into();
        elsewhere["answers"][0]["counted"]["steps"] = json!([]);
        assert!(setting.verify(&sealed(&elsewhere), &rounding).is_ok());
        let mut embedding = elsewhere.clone();
        embedding["answers"][0]["counted"]["bound"]["embedding"][0] = "0.5".into();
        let mut error = elsewhere.clone();
        error["answers"][0]["counted"]["bound"]["forward_error"] = "0".into();
        let mut without = elsewhere.clone();
        without["answers"][0]["counted"].as_object_mut().unwrap().remove("bound");
        let mut larger = elsewhere.clone();
        let larger = with_radius(&mut larger, 1.000_001).then_some(larger);
        for value in [embedding, error, without].into_iter().chain(larger) {
            assert!(setting.verify(&sealed(&value), &rounding).is_err(), "{value:#}");
            forged += 1;
        }
    }
    assert!(forged >= 15, "{forged}");
}

#[test]
fn hostile_texts_end_in_errors_that_name_what_is_wrong() {
    let setting = Setting::new(true);
    let receipt = &setting.receipts("run", &ALL_NOISE[..1], None, None)[0];
    let text = receipt.to_text();
    assert_eq!(Receipt::parse(text.as_bytes()).unwrap(), *receipt);
    for end in [0, 1, text.len() / 2, text.len() - 3] {
        assert!(matches!(Receipt::parse(&text.as_bytes()[..end]), Err(ReceiptError::Json(_))), "{end}");
    }
    let huge = vec![b' '; (16 << 20) + 1];
    assert!(matches!(Receipt::parse(&huge), Err(ReceiptError::Large)));
    let deep = format!("{{\"receipt\": 1, \"fixed\": {}", "[".repeat(100_000));
    assert!(matches!(Receipt::parse(deep.as_bytes()), Err(ReceiptError::Json(_))));
    let twice = text.replacen("\"drawn\"", "\"digest\": \"00\", \"drawn\"", 1);
    let error = Receipt::parse(twice.as_bytes()).unwrap_err();
    assert!(matches!(error, ReceiptError::Json(_)), "{}", chain(&error));
    let duplicate = text.replacen("\"sigma\": \"0.1\"", "\"sigma\": \"0.1\", \"sigma\": \"0.2\"", 1);
    assert_ne!(duplicate, text);
    let error = Receipt::parse(duplicate.as_bytes()).unwrap_err();
    assert!(chain(&error).contains("duplicate field `sigma`"), "{}", chain(&error));
    for (found, other, words) in [
        ("\"sigma\": \"0.1\"", "\"sigma\": \"NaN\"", "`NaN` is no number"),
        ("\"sigma\": \"0.1\"", "\"sigma\": \"1e-1\"", "`1e-1` is no number"),
        ("\"sigma\": \"0.1\"", "\"sigma\": 0.1", "expected a string"),
        ("\"pilot\": 20", "\"pilot\": 20.0", "invalid type"),
        ("\"pilot\": 20", "\"pilot\": -1", "invalid value"),
        ("\"pilot\": 20", "\"pilot\": 99999999999", "invalid value"),
        ("\"receipt\": 1", "\"receipt\": 2", "format 2, wanted 1"),
        ("\"challenge\": null", "\"challenge\": null, \"more\": 1", "unknown field `more`"),
        ("\"challenge\": null,", "", "challenge is missing"),
        ("\"seed\": \"7\"", "\"seed\": \"07\"", "seed is \"07\""),
    ] {
        let changed = text.replacen(found, other, 1);
        assert_ne!(changed, text, "{found}");
        let error = Receipt::parse(changed.as_bytes()).unwrap_err();
        assert!(chain(&error).contains(words), "{other}: {}", chain(&error));
    }
    // Parameters that no run has, in a receipt that is sealed and committed to.
    for (field, value) in [
        ("sigma", json!("-1")),
        ("alpha", json!("2")),
        ("pilot", json!(0)),
        ("samples", json!(0)),
        ("top_k", json!(0)),
        ("top_k", json!(9)),
        ("target_radius", json!("0")),
        ("replan_bets", json!(true)),
    ] {
        let mut forged = receipt.to_value();
        forged["fixed"]["noise"][field] = value;
        committed(&mut forged);
        let forged = Receipt::parse(forged.to_string().as_bytes()).unwrap().sealed(None);
        assert!(setting.verify(&forged, &Expected::default()).is_err(), "{field}");
    }
}
