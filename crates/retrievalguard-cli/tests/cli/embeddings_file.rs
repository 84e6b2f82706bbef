//! `certify --embeddings-file`: certificates without noise of embeddings made elsewhere.

use serde_json::Value;

use crate::arrays::{npy, with_header};
use crate::sandbox::Sandbox;

const LINE: &str =
    "certify --embeddings-file E.npy --gallery-file G.npy --gallery-labels L.txt --lipschitz 1.0";

/// Four items on a line and one query between the first two.
fn files() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("G.npy", npy(&[4, 2], &[0.0, 0.0, 4.0, 0.0, 0.0, 8.0, 5.0, 0.0]));
    sandbox.write("L.txt", "ant\nbee\nant\nbee\n");
    sandbox.write("E.npy", npy(&[1, 2], &[1.0, 3.0]));
    sandbox
}

fn radius(answer: &Value, name: &str) -> f64 {
    answer["certificates"][name]["radius"].as_f64().unwrap()
}

#[test]
fn one_embedding_and_a_constant_give_both_certificates_and_whose_word_it_is() {
    let sandbox = files();
    let run = sandbox.run(&format!("{LINE} --label ant --json")).succeeds();
    let run = run.tells(&["Lipschitz constant 1", "your word", "check-model --lipschitz"]);
    let answer = run.json();
    assert_eq!(answer["retrieved"], 0);
    assert_eq!((&answer["retrieved_label"], &answer["label"]), (&"ant".into(), &"ant".into()));
    // One to the left of the bisector of the first two items; half of √18 − √10 by distances.
    let exact = radius(&answer, "lipschitz");
    assert!(exact <= 1.0 && exact > 1.0 - 1e-12, "{answer}");
    let margin = (18.0_f64.sqrt() - 10.0_f64.sqrt()) / 2.0;
    assert!((radius(&answer, "lipschitz-margin") - margin).abs() < 1e-12, "{answer}");
    for name in ["lipschitz", "lipschitz-margin"] {
        let certificate = answer["certificates"][name].as_object().unwrap();
        assert_eq!(certificate["verdict"], "certified");
        assert_eq!(certificate["unbounded"], false);
        assert!(!certificate.contains_key("samples"), "{answer}");
        let explained = certificate["explain"].to_string();
        assert!(explained.contains("the caller's word") && explained.contains("theory 14"), "{explained}");
    }
    assert_eq!(answer["lipschitz"]["origin"], "stated");
    assert_eq!(answer["guarantee"], "always");
    assert!(!answer.to_string().contains("alpha") && !answer.to_string().contains("probability"), "{answer}");

    let text = sandbox.run(LINE).succeeds();
    text.prints(&["query 0: retrieved row 0, label ant", "lipschitz ", "certified", "0.9999  always"]);
    // Twice the constant is half the radius; twice the forward error is taken off first.
    let halved = LINE.replace("--lipschitz 1.0", "--lipschitz 2.0 --forward-error 0.25");
    let answer = sandbox.run(&format!("{halved} --json")).succeeds().json();
    assert!((radius(&answer, "lipschitz") - 0.25).abs() < 1e-12, "{answer}");
    for label in ["bee", "yak"] {
        let answer = sandbox.run(&format!("{LINE} --label {label} --json")).succeeds().json();
        assert_eq!(answer["certificates"]["lipschitz"]["verdict"], "misretrieved", "{label}");
    }
}

#[test]
fn queries_may_be_many_in_double_precision_and_asked_for_recall_at_k() {
    let sandbox = files();
    let numbers = [1.0_f64, 3.0, 4.5, 0.0, 2.0, 1.0];
    let content: Vec<u8> = numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
    sandbox.write("E.npy", with_header("<f8", false, &[3, 2], &content));
    sandbox.write("Y.txt", "ant\nbee\nant\n");
    let line = format!("{LINE} --labels-file Y.txt --top-k 2 --json");
    let answers = sandbox.run(&line).succeeds().json_lines();
    let verdicts: Vec<&Value> =
        answers.iter().map(|answer| &answer["certificates"]["lipschitz"]["verdict"]).collect();
    assert_eq!(verdicts, ["certified", "certified", "misretrieved"], "a tie counts against");
    let deeper = &answers[2]["certificates"]["lipschitz"]["recall_at_k"];
    assert_eq!(deeper[0]["verdict"], "misretrieved");
    // Between the first item and the last there is half a step.
    assert!((deeper[1]["radius"].as_f64().unwrap() - 0.5).abs() < 1e-12, "{deeper}");
}

#[test]
fn noise_alpha_and_samples_are_refused_beside_embeddings() {
    let sandbox = files();
    for flag in [
        "--sigma 0.1",
        "--alpha 0.01",
        "--samples 10",
        "--pilot 10",
        "--seed 3",
        "--certificate half-space",
        "--simultaneous",
        "--target-radius 0.1",
        "--norm-bound 1",
        "--jsonl",
        "--out run",
        "--share run",
        "--engine rten",
        "--threads 2",
        "--leave-one-out always",
        "--samples-file E.npy",
    ] {
        let name = flag.split(' ').next().unwrap();
        sandbox.run(&format!("{LINE} {flag}")).fails(2, &["cannot be used with", name]);
    }
    let without = LINE.replace(" --lipschitz 1.0", "");
    sandbox.run(&without).fails(2, &["--lipschitz"]);
    sandbox.run(&LINE.replace("1.0", "-1")).fails(2, &["Lipschitz constant is -1", "from 1e-12 to 1e12"]);
    sandbox.run(&LINE.replace("1.0", "NaN")).fails(2, &["Lipschitz constant is NaN"]);
    sandbox.run(&format!("{LINE} --forward-error -0.1")).fails(2, &["forward error is -0.1"]);
    sandbox.write("E.npy", npy(&[1, 3], &[1.0, 3.0, 0.0]));
    sandbox.run(LINE).fails(2, &["`E.npy` has embeddings of dimension 3", "vectors have 2"]);
    sandbox.write("E.npy", npy(&[1, 2], &[1.0, f32::NAN]));
    sandbox.run(LINE).fails(2, &["query 0 of `E.npy`", "component 1", "NaN"]);
    sandbox.run("certify --lipschitz 1.0 queries").fails(2, &["--embeddings-file"]);
}
