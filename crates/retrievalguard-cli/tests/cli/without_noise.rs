//! Galleries without a noise level: one pass in double precision, from `index` to `attack`, and no flag about noise.

use std::fs;

use retrievalguard::storage::sealed::{seal, unseal};
use serde_json::Value;

use crate::sandbox::Sandbox;

const MODEL: &str = "--model copies/encoder.onnx";

/// The thirty pictures, the encoder of block means, and their gallery without noise.
fn indexed() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    sandbox.run("copy-encoder --out copies --size 16 --grid 4").succeeds();
    let run = sandbox.run(&format!("index pictures --gallery gallery {MODEL}")).succeeds();
    assert_eq!(run.out, "gallery: 30 items of dimension 48\n");
    sandbox
}

fn certified(sandbox: &Sandbox, flags: &str) -> Vec<Value> {
    let line = format!("certify pictures --gallery gallery {MODEL} --json {flags}");
    sandbox.run(&line).succeeds().json_lines()
}

fn radius(row: &Value, name: &str) -> Option<f64> {
    row["certificates"][name]["radius"].as_f64()
}

#[test]
fn a_gallery_without_noise_is_certified_by_one_pass_and_says_always() {
    let sandbox = indexed();
    let manifest: Value = serde_json::from_slice(&sandbox.bytes("gallery/manifest.json")).unwrap();
    assert_eq!((&manifest["sigma"], &manifest["samples"]), (&Value::Null, &0.into()));
    assert_eq!(manifest["engine"]["name"], "double");
    let run = sandbox.run(&format!("certify pictures --gallery gallery {MODEL} --out run")).succeeds();
    let run =
        run.tells(&["no noise: what is certified holds always", "one pass each", "30 queries were kept"]);
    run.prints(&["lipschitz ", "lipschitz-margin", "30 passes, holds always"]);
    let described: Value = serde_json::from_slice(&sandbox.bytes("run/run.json")).unwrap();
    assert_eq!(described["run"]["method"], "lipschitz");
    let constant = described["run"]["lipschitz"]["constant"].as_f64().unwrap();
    assert!((0.999_999..1.000_001).contains(&constant), "{constant}");
    assert!(described["run"].get("alpha").is_none() && described["run"].get("sigma").is_none());

    let text = sandbox.run("evaluate run/certificates.parquet").succeeds();
    text.prints(&["no noise", "holds always"]);
    let value = sandbox.run("evaluate run/certificates.parquet --json").succeeds().json();
    assert_eq!((&value["guarantee"], &value["sigma"]), (&"always".into(), &Value::Null));
    for flag in ["--alpha 0.01", "--simultaneous"] {
        sandbox
            .run(&format!("evaluate run/certificates.parquet {flag}"))
            .fails(2, &[flag.split(' ').next().unwrap(), "hold always"]);
    }
    let explained = sandbox.run("explain class-1/2.png --run run").succeeds();
    explained.prints(&[
        "changes the label, always",
        "Lipschitz constant L",
        "forward error e",
        "verified from",
    ]);
    let report = sandbox.run("report run").succeeds();
    assert!(!report.errors.contains("without pictures"), "{report}");
    let page = sandbox.text("run/report.html");
    for words in ["every certificate of the table holds always", "without noise", "plain retriever"] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("failure probability α"), "a probability where there is none");
    assert!(page.contains("retrievalguard index pictures --model"), "the command that made the gallery");
}

#[test]
fn bisectors_prove_no_less_than_margins_and_right_items_together_no_less_than_one() {
    let sandbox = indexed();
    let rows = certified(&sandbox, "--out run");
    let together = certified(&sandbox, "--mixtures 4 --out together");
    assert_eq!((rows.len(), together.len()), (30, 30));
    let mut count = 0;
    for (row, together) in rows.iter().zip(&together) {
        let (Some(exact), Some(margin)) = (radius(row, "lipschitz"), radius(row, "lipschitz-margin")) else {
            continue;
        };
        assert!(exact >= margin && exact.is_finite(), "{row}");
        assert!(radius(together, "lipschitz").unwrap() >= exact * (1.0 - 1e-12), "{row} {together}");
        assert_eq!(row["certificates"]["lipschitz"]["samples"], 0);
        assert!(row.get("sigma").is_none(), "{row}");
        count += 1;
    }
    assert!(count >= 10, "{count}: the test has lost its teeth");
}

#[test]
fn flags_about_noise_are_refused_wherever_there_is_none() {
    let sandbox = indexed();
    for flag in [
        "--alpha 0.01",
        "--simultaneous",
        "--samples 100",
        "--pilot 10",
        "--target-radius 0.1",
        "--seed 3",
        "--keep-samples kept",
        "--project",
        "--non-negative",
    ] {
        let name = flag.split(' ').next().unwrap();
        let line = format!("certify pictures --gallery gallery {MODEL} --out refused {flag}");
        let run = sandbox.run(&line);
        run.fails(2, &[name]);
        assert!(!sandbox.path("refused").exists(), "{flag}");
    }
    let line = format!("certify pictures --gallery gallery {MODEL} --out refused");
    for (flags, words) in [
        ("--certificate half-space", "does not say its noise level, wanted --sigma"),
        ("--certificate half-space,lipschitz", "one kind at a time"),
        ("--certificate lipschitz --sigma 0.1", "need no noise, found --sigma 0.1"),
        ("--engine rten", "--engine chooses who computes in single precision"),
    ] {
        sandbox.run(&format!("{line} {flags}")).fails(2, &[words]);
    }
    let query = format!("query pictures/class-2/1.png --gallery gallery {MODEL}");
    for flag in ["--alpha 0.1", "--samples 10", "--seed 1", "--retriever vote", "--target-radius 1"] {
        sandbox.run(&format!("{query} {flag}")).fails(2, &["has no noise level"]);
    }
    for (line, words) in [
        (
            format!("index pictures --gallery other {MODEL} --samples 5"),
            "--samples says nothing without noise",
        ),
        (format!("index pictures --gallery other {MODEL} --seed 5"), "--seed says nothing without noise"),
    ] {
        sandbox.run(&line).fails(2, &[words]);
    }
    // An encoder without a bound has no gallery without noise, and says which node is to blame.
    let line = "index pictures --gallery other --model model/convolutional.onnx";
    sandbox.run(line).fails(2, &["cannot be certified without noise", "length 1", "wanted it, or --sigma"]);
    // A smoothed gallery is none for queries without noise.
    sandbox.run(&format!("index pictures --gallery smoothed {MODEL} --sigma 0.1 --samples 2")).succeeds();
    let line = format!("certify pictures --gallery smoothed {MODEL} --certificate lipschitz --out refused");
    sandbox.run(&line).fails(2, &["need no noise, found --sigma 0.1"]);
}

#[test]
fn a_query_without_noise_answers_always_and_knows_strangers() {
    let sandbox = indexed();
    let query = format!("query pictures/class-2/1.png --gallery gallery {MODEL}");
    let text = sandbox.run(&query).succeeds();
    text.prints(&["label class-2: no change", "always", "plain retriever, one pass"]);
    let value = sandbox.run(&format!("{query} --json")).succeeds().json();
    assert_eq!((&value["label"], &value["guarantee"]), (&"class-2".into(), &"always".into()));
    assert_eq!(value["retriever"], "plain");
    // The stored vector is the embedding, rounded.
    let distance = value["items"][0]["distance"].as_f64().unwrap();
    assert!(distance < 1e-6, "{distance}");
    assert_eq!(value["lipschitz"]["origin"], "verified");
    assert!(!value.to_string().contains("alpha"), "{value}");
    let whole = value["radius"].as_f64().unwrap();
    // The smaller of two statements that hold always: it stays first, and within the distance.
    let near = sandbox.run(&format!("{query} --json --within 0.125")).succeeds().json();
    assert_eq!(near["match"], true);
    let radius = near["radius"].as_f64().unwrap();
    assert!(radius <= 0.125 && radius > 0.1249 && radius < whole, "{radius} and {whole}");
    sandbox.run("copy-encoder --out other --size 16 --grid 2").succeeds();
    let other = "query pictures/class-2/1.png --gallery gallery --model other/encoder.onnx";
    sandbox.run(other).fails(2, &["has vectors of dimension 48, the queries of 12"]);
    // A picture that is no copy stays a stranger up to a radius.
    let far = format!("query pictures/class-0/0.png --gallery without {MODEL} --within 0.001");
    fs::create_dir_all(sandbox.path("others")).unwrap();
    for class in 1..5 {
        let (from, to) = (format!("pictures/class-{class}"), format!("others/class-{class}"));
        fs::create_dir_all(sandbox.path(&to)).unwrap();
        fs::copy(sandbox.path(&format!("{from}/1.png")), sandbox.path(&format!("{to}/1.png"))).unwrap();
    }
    sandbox.run(&format!("index others --gallery without {MODEL}")).succeeds();
    sandbox.run(&far).succeeds().prints(&["no match: no change", "always"]);
    let far = sandbox.run(&format!("{far} --json")).succeeds().json();
    assert_eq!((&far["match"], &far["label"]), (&false.into(), &Value::Null));
    let (radius, distance) = (far["radius"].as_f64().unwrap(), far["items"][0]["distance"].as_f64().unwrap());
    assert!(radius <= distance - 0.001 && radius > distance - 0.0011, "{radius} {distance}");
}

#[test]
fn shards_workers_and_interrupted_runs_give_the_same_bytes() {
    let sandbox = indexed();
    sandbox.run(&format!("index pictures --gallery shards {MODEL} --shards 4")).succeeds();
    let flags = "--top-k 3 --certificate lipschitz";
    for gallery in ["gallery", "shards"] {
        let line = format!("certify pictures --gallery {gallery} {MODEL} {flags} --out run-{gallery}");
        sandbox.run(&line).succeeds();
    }
    let line = format!("certify pictures --gallery gallery {MODEL} {flags} --share shared");
    sandbox.run(&line).succeeds().prints(&["30 tasks"]);
    sandbox.run(&format!("{line} --chunk 10")).fails(2, &["--chunk says nothing without noise"]);
    sandbox.run("worker --run shared").succeeds();
    sandbox.run("merge --run shared --out merged").succeeds();
    for file in ["certificates.parquet", "recall-at-k.jsonl"] {
        let wanted = sandbox.bytes(&format!("run-gallery/{file}"));
        assert!(wanted == sandbox.bytes(&format!("run-shards/{file}")), "shards, {file}");
        assert!(wanted == sandbox.bytes(&format!("merged/{file}")), "workers, {file}");
    }
    let again = format!("certify pictures --gallery gallery {MODEL} {flags} --out run-gallery --threads 1");
    sandbox.run(&again).succeeds().tells(&["30 queries were done before"]);
}

#[test]
fn attacks_break_block_means_just_behind_their_radii_and_never_before() {
    let sandbox = indexed();
    sandbox
        .run(&format!(
            "certify pictures --gallery gallery {MODEL} --certificate lipschitz --mixtures 8 --out run"
        ))
        .succeeds();
    let run = sandbox.run("attack run --steps 60 --restarts 6").succeeds();
    let run = run.tells(&["no certificate was broken inside its radius"]);
    run.prints(&["without noise", "judge: none", "broken by this attack"]);
    let attack: Value = serde_json::from_slice(&sandbox.bytes("run/attack.json")).unwrap();
    assert_eq!((&attack["alpha"], &attack["sigma"]), (&Value::Null, &Value::Null));
    let queries = attack["queries"].as_array().unwrap();
    assert!(queries.len() >= 10, "{} attacked", queries.len());
    let mut near = 0;
    for query in queries {
        let (radius, found) = (query["radius"].as_f64().unwrap(), query["plain_smallest_break"].as_f64());
        let found = found.expect("a linear encoder is broken at five radii");
        assert!(found >= radius * (1.0 - 1e-9), "{query}");
        near += usize::from(found <= 1.01 * radius);
    }
    assert!(10 * near >= 9 * queries.len(), "{near} of {} break at 1.01 radii", queries.len());
    sandbox.run("attack run --judge-samples 10").fails(2, &["--judge-samples says nothing without noise"]);
    sandbox.run("report run").succeeds();
    assert!(sandbox.text("run/report.html").contains("Without noise there is nothing to judge"));
}

#[test]
fn a_run_that_claims_another_bound_is_refused_even_if_it_is_sealed_again() {
    let sandbox = indexed();
    sandbox.run(&format!("certify pictures --gallery gallery {MODEL} --out run")).succeeds();
    let mut record = unseal(&sandbox.bytes("run/run.json")).unwrap();
    let constant = record["run"]["lipschitz"]["constant"].as_f64().unwrap();
    record["run"]["lipschitz"]["constant"] = (constant / 2.0).into();
    sandbox.write("run/run.json", seal(&record).unwrap());
    sandbox.run("explain class-1/2.png --run run").ends_with_status(2);
    sandbox.run("attack run").ends_with_status(2);
}
