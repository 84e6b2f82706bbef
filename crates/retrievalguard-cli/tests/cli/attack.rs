//! Attacks on a small demo: what they show, that they can be interrupted, and what they do not let pass.

use std::fs;
use std::path::Path;

use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::storage::sealed::{seal, unseal};
use retrievalguard_encoder::pipeline::run_files::{PLACES_FILE, TABLE_FILE};
use retrievalguard_encoder::run::TableDescription;
use retrievalguard_encoder::table::{ResultTable, StoredTable, TableRecord, Unverified};
use serde_json::Value;

use crate::same_bytes::Running;
use crate::sandbox::{ENCODER, Sandbox};

/// Enough samples to certify, few enough to be quick.
const DEMO: &str = "demo --queries 12 --samples 200 --pilot 50 --engine rten";

const RUN: &str = "retrievalguard-demo/certificates";

/// A short attack.
const QUICK: &str =
    "--engine rten --steps 10 --restarts 1 --noise 16 --judge-samples 300 --judge-pilot 50 --refinements 1";

fn demo() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.run(DEMO).succeeds();
    sandbox
}

fn attack_json(sandbox: &Sandbox, name: &str) -> Value {
    serde_json::from_str(&sandbox.text(name)).unwrap()
}

/// What every attack.json has, and no break inside a radius.
fn check(value: &Value, mode: &str, queries: usize) {
    assert_eq!(value["mode"], mode);
    assert_eq!(value["gradients"], if mode == "white-box" { "computed" } else { "estimated" });
    assert_eq!(value["caution"].is_null(), mode == "white-box", "{}", value["caution"]);
    assert_eq!(value["certificate"], "half-space");
    assert_eq!(value["alpha"], 0.01);
    assert_eq!(value["judge_alpha"], 0.001);
    assert_eq!(value["factors"], serde_json::json!([0.5, 0.9, 0.99, 2.0, 5.0]));
    assert_eq!(value["budget"]["steps"], 10);
    assert!(value["budget"]["encoder_calls"].as_u64().unwrap() > 0);
    assert_eq!(value["budget"]["gradient_passes"].as_u64().unwrap() > 0, mode == "white-box");
    assert_eq!(value["queries"].as_array().unwrap().len(), queries);
    for query in value["queries"].as_array().unwrap() {
        let radius = query["radius"].as_f64().unwrap();
        let smallest = query["smallest_break"].as_f64().unwrap_or(f64::INFINITY);
        assert!(smallest > radius, "{query}");
        assert_eq!(query["smoothed"].as_array().unwrap().len(), 5);
        let plain = if query["plain_right"] == true { 5 } else { 0 };
        assert_eq!(query["plain"].as_array().unwrap().len(), plain);
        for point in query["smoothed"].as_array().unwrap() {
            let wanted = point["factor"].as_f64().unwrap() * radius;
            assert!((point["norm"].as_f64().unwrap() / wanted - 1.0).abs() < 1e-4, "{point}");
            assert!(["held", "broken", "undecided"].contains(&point["outcome"].as_str().unwrap()));
        }
    }
}

fn plain_breaks(value: &Value) -> usize {
    let queries = value["queries"].as_array().unwrap().iter();
    queries.filter(|query| query["plain_smallest_break"].is_f64()).count()
}

#[test]
fn an_attack_breaks_the_plain_encoder_and_no_certificate() {
    let sandbox = demo();
    let first = sandbox.run(&format!("attack {RUN} {QUICK} --queries 8")).succeeds();
    let first =
        first.prints(&["8 certified queries attacked", "white box", "gradient passes", "plain, broken"]);
    let first = first.tells(&["no certificate was broken inside its radius"]);
    let found = attack_json(&sandbox, &format!("{RUN}/attack.json"));
    check(&found, "white-box", 8);
    assert!(plain_breaks(&found) >= 5, "{first}");

    // The same again with the judge's seed, on one thread and from the beginning.
    let seed = found["judge_seed"].as_str().unwrap();
    let again = format!("attack {RUN} {QUICK} --queries 8 --threads 1 --judge-seed {seed} --out again");
    sandbox.run(&again).succeeds();
    assert!(sandbox.bytes(&format!("{RUN}/attack.json")) == sandbox.bytes("again/attack.json"));

    // Other parameters are another attack.
    let other = sandbox.run(&format!("attack {RUN} {QUICK} --queries 8 --clip"));
    other.fails(2, &["attack.journal", "belongs to another run", "effort.pixels"]);
    let clipped = sandbox.run(&format!("attack {RUN} {QUICK} --queries 2 --clip --out clipped")).succeeds();
    clipped.prints(&["pixels kept in [0, 1]"]);
    assert_eq!(attack_json(&sandbox, "clipped/attack.json")["pixels"], "clipped");
}

#[test]
fn a_killed_black_box_attack_ends_with_the_bytes_of_one_that_was_not() {
    let sandbox = demo();
    let line = format!("attack {RUN} {QUICK} --black-box --queries 6");
    let cut = format!("{line} --out cut");
    let mut running = Running::start(&sandbox, &cut);
    // Three lines of header, then two queries.
    running.wait_for_lines(&sandbox, "cut/attack.journal", 5);
    running.signal("-KILL");
    running.finish();
    assert!(!sandbox.path("cut/attack.json").exists());
    let resumed = sandbox.run(&cut).succeeds();
    let resumed = resumed.tells(&["queries were done before and were not attacked again"]);
    let found = attack_json(&sandbox, "cut/attack.json");
    check(&found, "black-box", 6);

    // The judge's noise was drawn when the run began, and a resumed run goes on with it.
    let seed = found["judge_seed"].as_str().unwrap();
    resumed.prints(&["black box", "and 0 gradient passes", &format!("fresh noise (seed {seed})")]);
    sandbox.run(&format!("{line} --judge-seed {seed} --out whole")).succeeds();
    assert!(sandbox.bytes("cut/attack.json") == sandbox.bytes("whole/attack.json"));
    let other = sandbox.run(&format!("{cut} --judge-seed 1"));
    other.fails(2, &["attack.journal", "belongs to another run", "judging.seed"]);

    // Another run is judged on noise that nobody has seen.
    sandbox.run(&format!("{line} --out fresh")).succeeds();
    assert_ne!(attack_json(&sandbox, "fresh/attack.json")["judge_seed"], found["judge_seed"]);
}

/// Multiplies every radius of half-space in a run, and seals everything again as a forger would.
fn inflate(folder: &Path, factor: f64) {
    let path = folder.join(TABLE_FILE);
    let StoredTable { table, run, .. } = ResultTable::read(&path, Unverified::Refuse).unwrap();
    let Some(TableDescription::Run(mut run)) = run else { unreachable!("it is the table of a run") };
    // With items as long as the norm bound allows there is no ceiling.
    run.gallery.largest_norm = 1.0;
    let mut rows = table.rows().to_vec();
    for cell in rows.iter_mut().filter_map(|row| row.certificates.get_mut(&CertificateName::HalfSpace)) {
        if let Verdict::Certified { radius: Radius::Finite(radius) } = cell.verdict {
            cell.verdict = Verdict::Certified { radius: Radius::Finite(factor * radius) };
        }
    }
    let table = ResultTable::new(table.sigma(), table.certificates().to_vec(), rows).unwrap();
    let digest = run.digest();
    let run = TableDescription::Run(run);
    table.write_parquet(&path, Some(&run)).unwrap();
    let record = TableRecord::new(&table, Some(&run)).with_files(folder, [TABLE_FILE]).unwrap();
    record.write(&folder.join(TableRecord::FILE)).unwrap();
    let places = folder.join(PLACES_FILE);
    let mut value = unseal(&fs::read(&places).unwrap()).unwrap();
    value["run"] = serde_json::to_value(digest).unwrap();
    fs::write(places, seal(&value).unwrap()).unwrap();
}

#[test]
fn radii_that_someone_changed_and_runs_that_cannot_be_attacked_are_found_out() {
    let sandbox = demo();
    let attack = |rest: &str| sandbox.run(&format!("attack {RUN} {QUICK} {rest}"));
    attack("--certificate paper-repaired").fails(2, &["exactly smoothed items"]);
    attack("--certificate paper").fails(2, &["no query of the run has a finite radius under paper"]);
    attack("--certificate nothing").ends_with_status(2).tells(&["nothing"]);
    attack("--steps 0").fails(2, &["--steps is 0, wanted a number from 1 to"]);
    attack("--noise 0").fails(2, &["--noise is 0, wanted a number from 1 to 65536"]);
    attack("--noise 4294967295").fails(2, &["--noise is 4294967295"]);
    attack("--judge-samples 4294967295").fails(2, &["--judge-samples is 4294967295"]);
    attack("--white-box --black-box").ends_with_status(2).tells(&["cannot be used with"]);
    sandbox.run("attack nowhere").fails(2, &["`nowhere` is not a finished run of `certify`"]);

    // Radii that nobody could have proved are refused before they are attacked.
    let run = sandbox.path(RUN);
    inflate(&run, 500.0);
    attack("--out enlarged").fails(2, &["half_space_radius is", "wanted at most", "no number of samples"]);
    // The demo's own table again.
    sandbox.run(DEMO).succeeds();
    inflate(&run, 60.0);
    let words = ["certificates are broken inside their radii, which has probability", "product-"];
    // White box where it is built in; the later flags count.
    attack("--queries 5 --steps 20 --noise 64 --out enlarged").fails(1, &words);
    assert!(sandbox.path("enlarged/attack.json").exists());

    // Radii so small that nothing breaks at five times their size.
    inflate(&run, 1e-7);
    let weak = attack("--queries 7 --black-box --out shrunk");
    let weak = weak.fails(1, &["the attack broke none of", "plain retrievals", "says nothing"]);
    weak.prints(&[
        "gradients estimated",
        "caution: this attack found no way to break any of",
        "that proves little",
    ]);
    let caution = attack_json(&sandbox, "shrunk/attack.json")["caution"].clone();
    assert!(caution.as_str().unwrap().contains("its gradients were estimated"), "{caution}");

    // Another picture under a query's name has no certificate.
    let queries = sandbox.path("retrievalguard-demo/pictures/queries");
    fs::copy(queries.join("product-241/05.png"), queries.join("product-240/05.png")).unwrap();
    attack("--out swapped").fails(2, &["pictures in", "have changed since the run", "wanted"]);

    fs::remove_file(sandbox.path(&format!("{RUN}/places.json"))).unwrap();
    attack("").fails(2, &["places.json"]);
}

#[test]
fn encoders_of_other_programs_are_attacked_with_their_gradients() {
    let sandbox = Sandbox::indexed();
    let certify = "--samples 300 --pilot 60 --out run";
    sandbox.run(&format!("certify pictures --gallery gallery {ENCODER} {certify}")).succeeds();
    let line =
        "attack run --engine rten --steps 6 --restarts 1 --noise 16 --judge-samples 200 --judge-pilot 50";
    sandbox.run(&format!("{line} --queries 4 --white-box")).succeeds().prints(&["white box"]);
    let found = attack_json(&sandbox, "run/attack.json");
    assert_eq!(found["mode"], "white-box");
    assert_eq!(found["certificate"], CertificateName::HalfSpace.as_str());

    // The page about the run shows what this very attack has found.
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    assert!(page.contains("No attack changed an answer inside its certified radius"));
    assert!(sandbox.path("run/figures/bracket.svg").is_file());
}

#[test]
fn an_encoder_without_gradients_is_attacked_by_its_outputs_and_that_is_called_weak() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../retrievalguard-encoder/tests/models");
    fs::copy(models.join("dynamic_quantised.onnx"), sandbox.path("model/dynamic.onnx")).unwrap();
    let encoder = "--model model/dynamic.onnx --sigma 0.1 --engine rten";
    sandbox.run(&format!("index pictures --gallery gallery {encoder}")).succeeds();
    let certify = "--samples 200 --pilot 60 --out run";
    sandbox.run(&format!("certify pictures --gallery gallery {encoder} {certify}")).succeeds();
    let line =
        "attack run --engine rten --steps 4 --restarts 1 --noise 8 --judge-samples 200 --judge-pilot 50";
    let refused = sandbox.run(&format!("{line} --queries 2 --white-box"));
    refused.fails(2, &["--white-box wants gradients", "(DynamicQuantizeLinear)"]);
    let attacked = sandbox.run(&format!("{line} --queries 2")).succeeds();
    attacked.tells(&["(DynamicQuantizeLinear)", "estimated from the encoder's outputs alone", "far weaker"]);
    assert_eq!(attack_json(&sandbox, "run/attack.json")["mode"], "black-box");
}
