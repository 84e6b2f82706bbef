//! Switches of half-space certificates: encoders without negative components, and bets that are planned again.

use serde_json::Value;

use crate::sandbox::{ENCODER, Sandbox};

/// The sum of all radii in a table, as `certify --json` prints it.
fn radii(rows: &[Value]) -> f64 {
    rows.iter().filter_map(|row| row["certificates"]["half-space"]["radius"].as_f64()).sum()
}

#[test]
fn a_clamped_encoder_is_another_encoder_in_every_command() {
    let sandbox = Sandbox::indexed();
    sandbox.run(&format!("index pictures --gallery clamped {ENCODER} --non-negative")).succeeds();
    let value = |name: &str| -> Value { serde_json::from_str(&sandbox.text(name)).unwrap() };
    assert_eq!(value("clamped/manifest.json")["components"], "non-negative");
    assert!(value("gallery/manifest.json").get("components").is_none());
    let vectors = sandbox.bytes("clamped/vectors.npy");
    let stored = vectors[128..].as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word));
    assert!(stored.clone().all(|value| value >= 0.0) && stored.clone().any(|value| value > 0.0));

    let certify = |gallery: &str, flags: &str, out: &str| {
        sandbox.run(&format!(
            "certify pictures --gallery {gallery} {ENCODER} --samples 150 --pilot 50 {flags} --out {out}"
        ))
    };
    certify("clamped", "--non-negative", "run").succeeds();
    assert_eq!(value("run/run.json")["run"]["components"], "non-negative");
    let explained = sandbox.run("explain class-1/2.png --run run --engine rten").succeeds();
    explained.prints(&["components", "clamped", "12.1"]);
    // The same run by workers, whole and in pieces.
    for (shared, flags) in [("whole", ""), ("cut", "--chunk 60")] {
        certify("clamped", &format!("--non-negative --share {shared} {flags}"), "unused").succeeds();
        sandbox.run(&format!("worker --run {shared} --engine rten")).succeeds();
        sandbox.run(&format!("merge --run {shared} --out merged-{shared}")).succeeds();
        let table = |run: &str| sandbox.bytes(&format!("{run}/certificates.parquet"));
        assert!(table("run") == table(&format!("merged-{shared}")), "{shared}");
    }

    let ours = "has clamped embeddings, the queries unclamped ones";
    let theirs = "has unclamped embeddings, the queries clamped ones";
    certify("clamped", "", "no").fails(2, &[ours]);
    certify("gallery", "--non-negative", "no").fails(2, &[theirs]);
    assert!(!sandbox.path("no/certificates.parquet").exists());
    let query = |gallery: &str, flags: &str| {
        sandbox.run(&format!(
            "query pictures/class-2/1.png --gallery {gallery} {ENCODER} --retriever mean --samples 100 --seed 1 {flags}"
        ))
    };
    query("clamped", "--non-negative").succeeds().prints(&["label class-2"]);
    query("clamped", "").fails(2, &[ours]);
    query("gallery", "--non-negative").fails(2, &[theirs]);
    sandbox.run(&format!("serve --gallery clamped {ENCODER} --port 0")).fails(2, &[ours]);
    // An export says so, and so does what is made of it.
    sandbox.run("export clamped --parquet out.parquet").succeeds();
    sandbox.run("import --parquet out.parquet --gallery imported --shards 2").succeeds();
    query("imported", "").fails(2, &[ours]);
    query("imported", "--non-negative").succeeds();
}

#[test]
fn bets_that_are_planned_again_are_part_of_the_run() {
    let sandbox = Sandbox::indexed();
    let certify = |flags: &str, out: &str| {
        sandbox.run(&format!(
            "certify pictures --gallery gallery {ENCODER} --samples 600 --pilot 20 --json {flags} --out {out}"
        ))
    };
    let fixed = certify("", "fixed").succeeds().json_lines();
    let replanned = certify("--replan-bets", "replanned").succeeds().json_lines();
    assert!(radii(&fixed) > 0.0 && radii(&fixed) != radii(&replanned));
    let value = |name: &str| -> Value { serde_json::from_str(&sandbox.text(name)).unwrap() };
    assert_eq!(value("replanned/run.json")["run"]["replan_bets"], true);
    assert!(value("fixed/run.json")["run"].get("replan_bets").is_none());
    // Drawn again, the numbers are those of the run, which `explain` insists on.
    for query in ["class-0/0.png", "class-4/5.png"] {
        sandbox.run(&format!("explain {query} --run replanned --engine rten")).succeeds();
    }
    // A run that is continued is the same run.
    certify("", "replanned").fails(2, &["replan_bets"]);
    let refused = "--replan-bets is for the bets of half-space";
    certify("--replan-bets --certificate vote", "no").fails(2, &[refused]);
    certify("--replan-bets --target-radius 0.1", "no").fails(2, &[refused]);
}
