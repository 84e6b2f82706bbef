//! Experiments: a file in, tidy results and a figure out, nothing computed twice.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use retrievalguard_encoder::experiment::ExperimentConfig;

use crate::sandbox::Sandbox;

fn experiments() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

/// Three queries of the synthetic data set, few samples, the project's own encoder.
const PLAN: &str = r#"
title = "A small sweep"
encoders = "encoders"
[data]
catalogue = "products"
queries = 3
[[encoder]]
name = "GDML"
model = "encoder.onnx"
[sweep]
sigma = [0.25]
samples = [100, 300]
alpha = [0.01]
certificates = ["half-space-mean", "half-space"]
pilot = 40
gallery_samples = 4
[figure]
kind = "certified-recall"
panels = ["certificate"]
series = "samples"
[quick]
samples = [100]
"#;

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let encoder = experiments().join("encoders/products/gdml-0.25");
    for name in ["encoder.onnx", "encoder.toml"] {
        sandbox.write(&format!("encoders/{name}"), fs::read(encoder.join(name)).unwrap());
    }
    sandbox.write("small.toml", PLAN);
    sandbox
}

/// Names of all files below a folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let below = if path.is_dir() { files(&path) } else { BTreeSet::from([path]) };
        found.extend(below);
    }
    found
}

#[test]
fn a_sweep_gives_the_numbers_of_certify_and_draws_no_sample_twice() {
    let sandbox = sandbox();
    let experiment = "experiment small.toml --out out --engine rten";
    let first = sandbox.run(experiment).succeeds();
    first
        .prints(&["half-space-mean", "half-space", "out/figure.svg"])
        .tells(&["certify a setting that you choose by these results with another --seed"]);
    let summary = sandbox.text("out/summary.csv");
    let lines: Vec<Vec<&str>> = summary.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 4, "{summary}");
    assert!(sandbox.bytes("out/figure.png").starts_with(b"\x89PNG"));
    assert!(sandbox.text("out/figure.svg").contains("A small sweep"));

    // The gallery that was made, the same queries, the same seed: certify must find the same radii.
    let gallery =
        fs::read_dir(sandbox.path("experiment-cache/galleries")).unwrap().next().unwrap().unwrap().path();
    let certify = format!(
        "certify experiment-cache/pictures/products/queries --every 60 --gallery {} --model encoders/encoder.onnx \
         --sigma 0.25 --samples 300 --pilot 40 --certificate half-space-mean,half-space --engine rten --out run",
        gallery.display()
    );
    let mut certified = sandbox.run(&certify).succeeds();
    for name in ["half-space-mean", "half-space"] {
        let line = lines.iter().find(|line| line[3] == "300" && line[5] == name).unwrap();
        certified = certified.prints(&[&format!("mean radius over all queries {}", line[11])]);
    }

    // Another failure probability and another certificate are arithmetic on the samples that are there.
    let samples = sandbox.path("experiment-cache/samples");
    let before = files(&samples);
    let other = PLAN
        .replace("panels = [\"certificate\"]", "panels = [\"certificate\", \"alpha\"]")
        .replace("alpha = [0.01]", "alpha = [0.01, 0.1]")
        .replace("\"half-space\"]", "\"half-space\", \"vote\"]");
    sandbox.write("small.toml", other);
    sandbox.run(experiment).succeeds().prints(&["vote"]);
    assert_eq!(files(&samples), before);
    let again = sandbox.text("out/summary.csv");
    for line in summary.lines() {
        assert!(again.contains(line), "{line}\n{again}");
    }
    sandbox.run(&format!("{experiment} --quick")).succeeds();
    assert_eq!(files(&samples), before);
    assert_eq!(sandbox.text("out/summary.csv").lines().count(), 1 + 6);
}

#[test]
fn a_sweep_over_given_pictures_keeps_each_from_finding_itself() {
    let sandbox = sandbox();
    sandbox.draw("pictures");
    let experiment = "experiment small.toml --out out --engine rten --data pictures --encoders encoders --queries 2 --quick";
    sandbox.run(experiment).succeeds();
    let svg = sandbox.text("out/figure.svg");
    assert!(svg.contains("--data pictures --encoders encoders --queries 2"), "{svg}");
    // The only picture of its label cannot be found among the others; one that found itself would be.
    let first = sandbox.text("out/summary.csv");
    for entry in fs::read_dir(sandbox.path("pictures")).unwrap() {
        for (number, picture) in files(&entry.unwrap().path()).into_iter().enumerate() {
            if number > 0 {
                fs::remove_file(picture).unwrap();
            }
        }
    }
    sandbox.run(experiment).succeeds();
    let second = sandbox.text("out/summary.csv");
    assert_ne!(first, second);
    for line in second.lines().skip(1) {
        assert_eq!(line.split(',').nth(7), Some("0.0000"), "{second}");
    }
}

#[test]
fn a_closed_form_needs_nothing() {
    let sandbox = Sandbox::new();
    let file = experiments().join("figure-1.toml");
    sandbox.run(&format!("experiment {} --out one", file.display())).succeeds();
    assert_eq!(sandbox.text("one/curves.csv").lines().count(), 202);
    assert!(sandbox.text("one/figure.svg").contains("Eq. (2)"));
}

#[test]
fn files_that_are_no_experiments_are_refused_with_what_is_wrong() {
    let sandbox = sandbox();
    let refuse = |text: String, words: &[&str]| {
        sandbox.write("small.toml", text);
        drop(sandbox.run("experiment small.toml --out out --engine rten").fails(2, words));
    };
    refuse(PLAN.replace("pilot = 40", "pilots = 40"), &["`small.toml` is not usable", "pilots"]);
    refuse(PLAN.replace("samples = [100, 300]", "samples = []"), &["has no samples"]);
    refuse(PLAN.replace("samples = [100, 300]", "samples = [0]"), &["`small.toml` is not usable"]);
    refuse(PLAN.replace("\"encoder.onnx\"", "\"encoder.onnx\"\nsigma = 0.5"), &["no encoder for sigma 0.25"]);
    let encoder = "[[encoder]]\nname = \"GDML\"\nmodel = \"encoder.onnx\"\n";
    refuse(PLAN.replace("[sweep]", &format!("{encoder}[sweep]")), &["two encoders called `GDML`"]);
    refuse(
        PLAN.replace("\"products\"", "\"clouds\""),
        &["subject is `clouds`", "wanted products or fabrics"],
    );
    refuse(PLAN.replace("alpha = [0.01]", "alpha = [0.01, 0.1]"), &["2 values of Alpha in one curve"]);
    refuse(
        PLAN.replace("panels = [\"certificate\"]", "panels = []"),
        &["2 values of Certificate in one curve"],
    );
    refuse(PLAN.replace("encoder.onnx", "nobody.onnx"), &["nobody.onnx"]);
}

#[test]
fn every_experiment_of_the_project_is_usable_and_its_encoders_are_small() {
    let mut seen = 0;
    for entry in fs::read_dir(experiments()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let config = ExperimentConfig::read(&path).unwrap();
        seen += 1;
        let Some(sweep) = config.sweep() else { continue };
        let most = sweep.samples.iter().map(|count| count.get()).max();
        assert_eq!(most, Some(100_000), "{}", path.display());
        assert!(config.data.as_ref().is_some_and(|data| data.queries >= 20), "{}", path.display());
        for &sigma in &sweep.sigma {
            for encoder in config.encoders_at(sigma) {
                let model = experiments().join(&config.encoders).join(&encoder.model);
                let bytes =
                    fs::metadata(&model).unwrap_or_else(|error| panic!("{}: {error}", model.display())).len();
                assert!(bytes < 1_000_000, "{}: {bytes} bytes", model.display());
            }
        }
    }
    assert_eq!(seen, 7);
}

#[test]
fn every_experiment_on_photographs_is_usable_and_takes_its_pictures_from_the_command() {
    let folder = experiments().join("photographs");
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let config = ExperimentConfig::read(&path).unwrap();
        assert!(config.data.is_none() && config.figure.is_some(), "{}", path.display());
        let quick = config.quickened();
        let samples = &quick.sweep().expect("a sweep").samples;
        assert!(samples.iter().all(|count| count.get() <= 200), "{}", path.display());
        seen += 1;
    }
    assert_eq!(seen, 6);
    let sandbox = Sandbox::new();
    let file = folder.join("grocery-figure-2.toml");
    sandbox
        .run(&format!("experiment {} --out out", file.display()))
        .fails(2, &["has no [data], wanted --data"]);
}
