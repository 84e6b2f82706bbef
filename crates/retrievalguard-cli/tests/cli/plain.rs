//! The encoder without noise, beside every number.

use retrievalguard::gallery::Gallery;
use retrievalguard::storage::manifest::GalleryDirectory;
use serde_json::Value;

use crate::sandbox::{ENCODER, PICTURES, Sandbox, json_lines};

fn certify(sandbox: &Sandbox, gallery: &str, out: &str) {
    let line =
        format!("certify pictures --gallery {gallery} {ENCODER} --samples 60 --pilot 40 --jsonl --out {out}");
    sandbox.run(&line).prints(&["recall@1", "plain"]);
}

/// Item and label that a double loop finds for each item of a gallery among the others.
fn by_hand(gallery: &Gallery) -> Vec<(String, String, String)> {
    let distance = |one: usize, other: usize| -> f64 {
        let parts = gallery.vector(one).iter().zip(gallery.vector(other));
        parts.map(|(&one, &other)| (f64::from(one) - f64::from(other)).powi(2)).sum()
    };
    let nearest = |query: usize| {
        let others = (0..gallery.len()).filter(|&row| row != query);
        let row =
            others.min_by(|&one, &other| distance(query, one).total_cmp(&distance(query, other))).unwrap();
        let label = gallery.label_name(gallery.label(row)).to_owned();
        (gallery.identity(query).to_owned(), gallery.identity(row).to_owned(), label)
    };
    (0..gallery.len()).map(nearest).collect()
}

fn plain_answers(rows: &[Value]) -> Vec<(String, String, String)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let answer = |row: &Value| {
        let plain = &row["plain"];
        (word(&row["identity"]), word(&plain["retrieved"]), word(&plain["retrieved_label"]))
    };
    rows.iter().map(answer).collect()
}

#[test]
fn a_runs_plain_answers_are_those_of_a_brute_force_search_in_clean_embeddings() {
    let sandbox = Sandbox::indexed();
    sandbox.run(&format!("index pictures {ENCODER} --sigma 0.1 --samples 0 --gallery clean")).succeeds();
    let clean = GalleryDirectory::read(&sandbox.path("clean")).unwrap();
    assert!(!sandbox.path("clean/plain.npy").exists(), "stored twice");
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    assert_eq!(stored.plain().unwrap().vectors(), clean.gallery.vectors());
    assert_ne!(stored.gallery.vectors(), clean.gallery.vectors());

    certify(&sandbox, "gallery", "run");
    let rows = json_lines(&sandbox.text("run/certificates.jsonl"));
    let wanted = by_hand(&clean.gallery);
    assert_eq!(plain_answers(&rows), wanted);
    let right = rows.iter().filter(|row| row["plain"]["retrieved_label"] == row["label"]).count();
    let evaluated = sandbox.run("evaluate run/certificates.parquet --json").succeeds().json();
    assert_eq!(evaluated["plain"]["recall"]["count"], right);
    let share = format!("{:.4}", right as f64 / PICTURES as f64);
    sandbox.run("evaluate run/certificates.parquet").prints(&[
        "plain            ",
        &share,
        "nothing is proved",
    ]);

    // In shards, and cut into tasks, it is the same run.
    let index = format!("index pictures {ENCODER} --sigma 0.1 --samples 8 --gallery");
    for (gallery, flags) in [("whole", ""), ("cut", "--shards 3")] {
        sandbox.run(&format!("{index} {gallery} {flags}")).succeeds();
        certify(&sandbox, gallery, &format!("run-{gallery}"));
        let rows = json_lines(&sandbox.text(&format!("run-{gallery}/certificates.jsonl")));
        assert_eq!(plain_answers(&rows), wanted, "{gallery}");
    }
    assert_eq!(
        sandbox.bytes("run-whole/certificates.parquet"),
        sandbox.bytes("run-cut/certificates.parquet")
    );
    let share = format!(
        "certify pictures --gallery whole {ENCODER} --samples 60 --pilot 40 --jsonl --chunk 25 --share tasks"
    );
    sandbox.run(&share).succeeds();
    sandbox.run("worker --run tasks --engine rten").succeeds();
    sandbox.run("merge --run tasks --out merged").succeeds();
    assert_eq!(sandbox.text("merged/certificates.jsonl"), sandbox.text("run-whole/certificates.jsonl"));
}

#[test]
fn a_gallery_without_clean_embeddings_is_used_and_the_tables_say_what_is_missing() {
    let sandbox = Sandbox::indexed();
    let GalleryDirectory { gallery, paths, manifest, .. } =
        GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    let names = (0..gallery.len()).map(|row| gallery.identity(row).to_owned()).collect();
    let labels: Vec<&str> = (0..gallery.len()).map(|row| gallery.label_name(gallery.label(row))).collect();
    let vectors = gallery.vectors().to_vec();
    let old = Gallery::new(vectors, gallery.dimension(), names, &labels, gallery.metric()).unwrap();
    GalleryDirectory::write(&sandbox.path("old"), &old, &paths, manifest.provenance).unwrap();
    certify(&sandbox, "old", "run");
    assert!(json_lines(&sandbox.text("run/certificates.jsonl")).iter().all(|row| row["plain"].is_null()));
    sandbox.run("evaluate run/certificates.parquet").prints(&["plain            unknown: index again"]);
    let evaluated = sandbox.run("evaluate run/certificates.parquet --json").succeeds().json();
    assert!(evaluated["plain"].is_null());
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    assert!(page.contains("plain unknown: index again; certified") && !page.contains("without noise</"));
    let attack = "attack run --engine rten --queries 2 --steps 4 --restarts 1 --noise 8 --refinements 0 --judge-samples 100";
    sandbox
        .run(attack)
        .tells(&["has no embeddings of its clean pictures", "index again for a fair contrast"]);
    // The other numbers do not depend on it.
    certify(&sandbox, "gallery", "beside");
    let certificates = |run: &str| -> Vec<Value> {
        let rows = json_lines(&sandbox.text(&format!("{run}/certificates.jsonl")));
        rows.into_iter().map(|row| row["certificates"].clone()).collect()
    };
    assert_eq!(certificates("run"), certificates("beside"));
}

#[test]
fn a_report_begins_with_the_plain_encoder_beside_what_is_proved() {
    let sandbox = Sandbox::indexed();
    certify(&sandbox, "gallery", "run");
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    let headline = page.split("class=\"headline\"").nth(1).unwrap();
    let headline = headline.split("</p>").next().unwrap();
    assert!(headline.contains("plain ") && headline.contains(" clean; certified "), "{headline}");
    assert!(page.contains("plain encoder") && page.contains("data-label=\"without noise"));
    let attack =
        "attack run --engine rten --steps 20 --restarts 1 --noise 8 --refinements 0 --judge-samples 100";
    sandbox.run(attack).prints(&["plain, broken by this attack"]);
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    let headline = page.split("class=\"headline\"").nth(1).unwrap();
    let headline = headline.split("</p>").next().unwrap();
    assert!(headline.contains(" clean, at most ") && headline.contains(" under attack at "), "{headline}");
}
