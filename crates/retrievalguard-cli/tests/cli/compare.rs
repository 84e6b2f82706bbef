//! Certificates of several runs with common axes: only over the same queries, unless panels are asked for.

use std::fs;

use crate::sandbox::{ENCODER, Sandbox};

/// Two runs with noise over the same fifteen queries and one over ten others, and one without noise over the fifteen.
fn certified() -> Sandbox {
    let sandbox = Sandbox::indexed();
    let certify = format!(
        "certify pictures --gallery gallery {ENCODER} --pilot 40 --certificate paper,half-space,vote"
    );
    sandbox.run(&format!("{certify} --samples 60 --every 2 --out few")).succeeds();
    sandbox.run(&format!("{certify} --samples 120 --every 2 --out many")).succeeds();
    sandbox.run(&format!("{certify} --samples 60 --every 3 --out other")).succeeds();
    let model = "--model copies/encoder.onnx --gallery plain";
    sandbox.run("copy-encoder --out copies --size 16 --grid 4").succeeds();
    sandbox.run(&format!("index pictures {model}")).succeeds();
    sandbox.run(&format!("certify pictures {model} --every 2 --out runs/still/certificates")).succeeds();
    sandbox
}

#[test]
fn certificates_with_noise_and_without_share_a_table_a_figure_and_its_numbers() {
    let sandbox = certified();
    let compare = "compare few runs/still/certificates --out out/common.svg --title Both --radii 0.02,0.05,1";
    let run = sandbox.run(compare).succeeds();
    let run = run.prints(&["15 queries against 30 items", "at 0.05", "at 1", "out/common.svg"]);
    let line = |name: &str| -> Vec<&str> {
        run.out.lines().find(|line| line.starts_with(name)).expect(name).split_whitespace().collect()
    };
    assert_eq!(
        (&line("half-space")[1..3], &line("lipschitz")[1..4]),
        (&["100", "0.01"][..], &["1", "always", "-"][..])
    );
    assert!(!run.out.contains("vote"), "four certificates unless others are named\n{run}");
    let figure = sandbox.text("out/common.svg");
    for words in [
        "Both",
        "half-space: σ = 0.1, 100 passes, α = 0.01",
        "lipschitz: 1 pass, holds always",
        "compare few still · version",
    ] {
        assert!(figure.contains(words), "`{words}` is missing");
    }
    assert!(!figure.contains("out/common.svg") && !figure.contains("runs/still"), "a figure says no paths");
    assert!(sandbox.bytes("out/common.png").starts_with(b"\x89PNG"));

    // The numbers are those of `evaluate`.
    let radii = "0,0.02,0.05,1";
    let wanted = sandbox.run(&format!("evaluate few/certificates.parquet --csv --radii {radii}")).succeeds();
    let numbers = sandbox.text("out/common.csv");
    let wanted: Vec<&str> = wanted.out.lines().filter(|line| line.starts_with("half-space,")).collect();
    for line in &wanted {
        let fields: Vec<&str> = line.split(',').collect();
        let ending = format!(",{}", fields[1..5].join(","));
        let found = numbers.lines().find(|line| line.contains(",half-space,") && line.ends_with(&ending));
        assert!(found.is_some(), "`{ending}` is missing\n{numbers}");
    }
    assert_eq!(wanted.len(), 4);
}

#[test]
fn the_same_certificate_of_several_runs_is_told_apart_by_their_names() {
    let sandbox = certified();
    let run = sandbox.run("compare few=few many/certificates.parquet --certificate half-space").succeeds();
    run.prints(&["half-space (few)", "half-space (many)", "comparison.svg"]);
    let figure = sandbox.text("comparison.svg");
    assert!(
        figure.contains("half-space (few): σ = 0.1, 100 passes")
            && figure.contains("(many): σ = 0.1, 160 passes")
    );
}

#[test]
fn runs_over_other_queries_are_refused_unless_they_get_a_panel() {
    let sandbox = certified();
    let other = sandbox.run("compare few other");
    other.fails(2, &["`other` has other queries than `few`: 10 queries, wanted 15", "or --panels"]);
    assert!(!sandbox.path("comparison.svg").exists());
    sandbox.run("compare few other many --panels second,third").succeeds().prints(&[
        "second: 15 queries against 30 items",
        "third: 10 queries against 30 items",
        "half-space (many)",
    ]);
    sandbox.run("compare few many --panels second,third").fails(2, &["--panels has 2 titles, wanted 1"]);

    // The same names with other pictures are other queries.
    let picture = sandbox.bytes("pictures/class-0/1.png");
    fs::write(sandbox.path("pictures/class-0/0.png"), picture).unwrap();
    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --samples 60 --pilot 40 --every 2 --out changed"
    );
    sandbox.run(&line).succeeds();
    sandbox.run("compare few changed").fails(2, &["other queries than `few`: pictures with the digest"]);
}

#[test]
fn what_cannot_be_compared_is_said() {
    let sandbox = certified();
    let none = sandbox.run("compare few runs/still/certificates --certificate half-space");
    none.fails(2, &["`runs/still/certificates` has none of the certificates", "lipschitz, lipschitz-margin"]);
    sandbox.run("compare few --out figure.png").fails(2, &["wanted a name that ends in .svg"]);
    sandbox.run("compare pictures").fails(2, &["is not a finished run of `certify`"]);
    sandbox.run("compare").fails(2, &["RUN"]);
}
