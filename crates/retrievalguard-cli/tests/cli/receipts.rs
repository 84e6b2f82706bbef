//! Receipts as users leave and check them: `query`, `certify`, the service, `verify` and `receipt-key`.

use serde_json::Value;

use crate::sandbox::{ENCODER, PICTURES, Sandbox};
use crate::serve_client::{Service, form};

const MODEL: &str = "--gallery gallery --model model/convolutional.onnx --engine rten";
const PICTURE: &str = "pictures/class-1/3.png";

fn verify(receipt: &str, flags: &str) -> String {
    format!("verify {receipt} --picture {PICTURE} {MODEL} {flags}")
}

fn receipt(sandbox: &Sandbox, name: &str) -> Value {
    serde_json::from_slice(&sandbox.bytes(name)).unwrap()
}

#[test]
fn a_query_commits_before_it_draws_and_its_receipt_is_verified() {
    let sandbox = Sandbox::indexed();
    sandbox.run("receipt-key own.key").succeeds().tells(&["own.key.pub is for auditors"]);
    sandbox.run("receipt-key own.key").fails(1, &["own.key"]);
    sandbox.run("receipt-key other.key").succeeds();
    for retriever in ["pairwise", "vote", "mean"] {
        let query = format!(
            "query {PICTURE} {MODEL} --samples 300 --retriever {retriever} --receipt r.json --receipt-key own.key --challenge xyz"
        );
        let asked = sandbox.run(&query).succeeds();
        let commitment = asked.errors.lines().find_map(|line| line.strip_prefix("commitment "));
        let commitment = commitment.expect("a commitment").to_owned();
        let left = receipt(&sandbox, "r.json");
        assert_eq!(left["commitment"], commitment.as_str());
        assert_eq!(left["fixed"]["noise"]["seed_from"], "fresh");
        let flags = format!("--commitment {commitment} --challenge xyz --public-key own.key.pub");
        let verified = sandbox.run(&verify("r.json", &flags)).succeeds();
        let statement = left["answers"][0]["statement"].as_str().unwrap();
        verified.prints(&["verified: every number is the same", statement, "as wanted"]);
        let again = sandbox.run(&verify("r.json", "--json")).succeeds().json();
        assert_eq!((&again["verified"], &again["undecided_copies"]), (&true.into(), &Value::Null));
        // Every query has a seed and a salt of its own.
        sandbox.run(&query).succeeds();
        assert_ne!(receipt(&sandbox, "r.json")["opened"], left["opened"]);

        sandbox.run(&verify("r.json", "--challenge other")).fails(1, &["the challenge is", "\"xyz\""]);
        sandbox
            .run(&verify("r.json", &format!("--commitment {commitment}")))
            .fails(1, &["wanted", &commitment]);
        sandbox.run(&verify("r.json", "--public-key other.key.pub")).fails(1, &["is signed by"]);
        let text = sandbox.text("r.json").replacen("class-1", "class-2", 1);
        sandbox.write("forged.json", text);
        sandbox.run(&verify("forged.json", "")).fails(1, &["refused", "was sealed with digest"]);
    }
    sandbox.write("cut.json", &sandbox.text("r.json")[..200]);
    sandbox.run(&verify("cut.json", "")).fails(2, &["cut.json", "no receipt of format 1"]);
    sandbox.run(&verify("none.json", "")).fails(2, &["none.json"]);
    sandbox.run(&verify("r.json", "--most-samples 100")).fails(2, &["300 samples, wanted at most 100"]);
    let other = verify("r.json", "").replace("class-1/3", "class-1/4");
    sandbox.run(&other).fails(1, &["not about these files", "picture.file"]);
}

#[test]
fn a_given_seed_leaves_the_same_receipt_and_is_called_no_secret() {
    let sandbox = Sandbox::indexed();
    let query = format!("query {PICTURE} {MODEL} --samples 100 --seed 5 --receipt");
    for name in ["one.json", "two.json"] {
        sandbox.run(&format!("{query} {name}")).succeeds();
    }
    assert_eq!(sandbox.bytes("one.json"), sandbox.bytes("two.json"));
    sandbox.run(&verify("one.json", "")).succeeds().tells(&["the seed was given, so it was no secret"]);
}

#[test]
fn a_run_leaves_a_receipt_of_every_query_and_the_same_bytes_with_any_number_of_threads() {
    let sandbox = Sandbox::indexed();
    let run = |out: &str, flags: &str| {
        sandbox
            .run(&format!(
                "certify pictures --gallery gallery {ENCODER} --samples 100 --certificate pairwise --out {out} --receipts \
                 {out}/receipts {flags}"
            ))
            .succeeds();
    };
    run("one", "--threads 1");
    run("two", "--threads 4 --batch 7");
    for place in 0..PICTURES {
        let name = |out: &str| format!("{out}/receipts/{place:06}.receipt.json");
        assert_eq!(sandbox.bytes(&name("one")), sandbox.bytes(&name("two")), "{place}");
    }
    // A query that must not see itself says so.
    let left = receipt(&sandbox, "one/receipts/000009.receipt.json");
    assert_eq!(left["fixed"]["picture"]["identity"], "class-1/3.png");
    assert_eq!(left["fixed"]["gallery"]["excluded"], serde_json::json!([9]));
    let verified = sandbox.run(&verify("one/receipts/000009.receipt.json", "")).succeeds();
    if left["answers"][0]["verdict"] == "certified" {
        verified.prints(&["hidden from this query: 9"]);
    }
    // The same run again, with its receipts, is done already; with others it would leave none.
    run("one", "--threads 2");
    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --samples 100 --certificate pairwise --out one"
    );
    sandbox
        .run(&format!("{line} --receipts elsewhere"))
        .fails(2, &["was answered before and left no receipt at `elsewhere/000000.receipt.json`"]);
    sandbox
        .run("certify pictures --samples-file a --gallery-file b --gallery-labels c --receipts d")
        .fails(2, &["--receipts"]);
}

#[test]
fn an_answer_without_noise_leaves_a_receipt_without_a_commitment() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    sandbox.run("copy-encoder --out copies --size 16 --grid 4").succeeds();
    sandbox.run("index pictures --gallery gallery --model copies/encoder.onnx").succeeds();
    let model = "--gallery gallery --model copies/encoder.onnx";
    let asked = sandbox.run(&format!("query {PICTURE} {model} --receipt r.json")).succeeds();
    assert!(!asked.errors.contains("commitment"), "{asked}");
    let verified = sandbox.run(&format!("verify r.json --picture {PICTURE} {model}")).succeeds();
    verified.prints(&["verified: every number is the same", "This holds always", "not signed"]);
    sandbox
        .run(&format!("query {PICTURE} {model} --receipt r.json --within 0.1"))
        .fails(2, &["--within beside --receipt"]);
}

#[test]
fn the_service_publishes_its_commitment_first_and_opens_it_with_the_answer() {
    let sandbox = Sandbox::indexed();
    sandbox.run("receipt-key own.key").succeeds();
    let service = Service::start(&sandbox, "--receipt-key own.key");
    let picture = sandbox.bytes(PICTURE);
    let (kind, body) = form(&[("samples", "300"), ("receipt", "true"), ("challenge", "abc")], &[&picture]);
    let answer = service.post_as("/v1/query", &kind, &body).expect(200);
    sandbox.write("once.json", answer["receipt"].to_string());
    sandbox
        .run(&verify("once.json", "--challenge abc --public-key own.key.pub"))
        .succeeds()
        .prints(&["every number is the same"]);
    if answer["verdict"] == "certified" {
        let statement = answer["receipt"]["answers"][0]["statement"].as_str().unwrap();
        assert!(answer["statement"].as_str().unwrap().starts_with(statement), "{answer}");
    }

    let plain = service.post("/v1/query?samples=100", &picture).expect(200);
    assert!(plain.get("receipt").is_none(), "{plain}");
    let refused = service.post("/v1/query?challenge=abc", &picture).expect(400);
    assert!(refused.to_string().contains("wanted receipt=true"), "{refused}");
    let job = service.post("/v1/jobs?receipt=true", &picture).expect(400);
    assert!(job.to_string().contains("`receipt` is unknown"), "{job}");

    for flags in ["samples=500", "samples=500&target_radius=0.02"] {
        let told = service.stream(&format!("/v1/query?{flags}&receipt=true"), &picture);
        let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names[0], names[names.len() - 1]), ("commitment", "done"), "{names:?}");
        let published = told[0].1["commitment"].as_str().unwrap();
        sandbox.write("streamed.json", told[told.len() - 1].1["receipt"].to_string());
        sandbox.run(&verify("streamed.json", &format!("--commitment {published}"))).succeeds();
    }
}
