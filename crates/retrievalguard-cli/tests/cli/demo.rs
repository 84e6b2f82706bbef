//! The demo: nothing needed, everything shown, and nobody's files touched.

use std::fs;

use retrievalguard::certificate::CertificateName;

use crate::sandbox::Sandbox;

/// Fewer samples than usual: retrieval shows with them, though certificates are small.
const DEMO: &str = "demo --queries 120 --samples 60 --pilot 40 --engine rten";

#[test]
fn a_demo_shows_every_certificate_and_continues_to_the_same_bytes() {
    let sandbox = Sandbox::new();
    let first = sandbox.run(DEMO).succeeds().prints(&[
        "120 queries",
        "where it lies",
        "try next",
        "Lipschitz reaches further, by one pass and always",
    ]);
    for name in CertificateName::SMOOTHED {
        let listed = first.out.lines().filter(|line| line.split_whitespace().next() == Some(name.as_str()));
        assert_eq!(listed.count(), 1, "{name}\n{first}");
    }
    // Both kinds in the same table: one pass without a chance of being wrong, against the items and against their views.
    let bounded: Vec<Vec<&str>> = first
        .out
        .lines()
        .filter(|line| line.starts_with("lipschitz "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(bounded.len(), 2, "{first}");
    assert_eq!(
        (&bounded[0][1..3], &bounded[1][1..4]),
        (&["1", "always"][..], &["(shifts)", "1", "always"][..])
    );
    let figure = sandbox.text("retrievalguard-demo/comparison.svg");
    for words in ["half-space: σ = 0.25, 100 passes, α = 0.01", "lipschitz (shifts): 1 pass, holds always"]
    {
        assert!(figure.contains(words), "`{words}` is missing");
    }
    assert!(!figure.contains("half-space-mean"), "the figure shows four certificates");
    assert!(sandbox.bytes("retrievalguard-demo/comparison.png").starts_with(b"\x89PNG"));
    let numbers = sandbox.text("retrievalguard-demo/comparison.csv");
    assert!(numbers.lines().any(|line| line.contains(",lipschitz,shifts,,1,always,120,")), "{numbers}");
    let places = first.out.lines().skip_while(|line| *line != "where it lies").skip(1);
    let places: Vec<&str> = places
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(places.len(), 7, "{first}");
    for place in places {
        assert!(sandbox.path(place).exists(), "{place}\n{first}");
    }

    let table = "retrievalguard-demo/certificates/certificates.parquet";
    let evaluation = sandbox.run(&format!("evaluate {table} --json")).succeeds().json();
    let recall = evaluation["certificates"]["half-space"]["summary"]["recall"]["share"].as_f64().unwrap();
    assert!((0.8..=0.98).contains(&recall), "recall {recall}\n{first}");

    // The commands to try next work as they are printed.
    let program = env!("CARGO_BIN_EXE_retrievalguard");
    let commands: Vec<&str> =
        first.out.lines().filter_map(|line| line.trim().strip_prefix(program)).map(str::trim).collect();
    let of = |name: &str| *commands.iter().find(|line| line.starts_with(name)).expect(name);
    sandbox.run(&format!("{} --samples 100", of("query"))).succeeds();
    sandbox.run(of("evaluate")).succeeds();
    sandbox.run(of("report")).succeeds();
    sandbox.run(of("explain")).succeeds();
    sandbox.run(&format!("{} --limit 1", of("certify"))).succeeds();

    // A certificate explains itself from the run alone, and only while the run's inputs are what they were.
    let explain = "explain 240/05.png --run retrievalguard-demo/certificates --engine rten";
    let explained = sandbox.run(explain).succeeds();
    explained.prints(&["product-240/05.png", "half-space", "threshold s", "theory 2.1", "ball of radius F"]);
    let vote = sandbox.run(&format!("{explain} --certificate vote --json")).succeeds().json();
    assert_eq!(vote["outcome"]["name"], "vote");
    let steps = vote["outcome"]["explain"].as_array().unwrap();
    let rule = steps.iter().find(|step| step["quantity"] == "rule").unwrap()["value"].as_str().unwrap();
    let text = sandbox.run(&format!("{explain} --certificate vote")).succeeds();
    text.prints(&[&format!("certificate   vote, {rule}"), &format!("theory 3, {rule}")]);
    let unknown = sandbox.run(&explain.replace("240/05.png", "nobody"));
    unknown.fails(2, &["no query `nobody`", "one of its 120"]);
    let several = sandbox.run(&explain.replace("240/05.png", "05.png"));
    several.fails(2, &["end in `05.png`, wanted one of them"]);
    sandbox.run("explain 240/05.png --run .").fails(2, &["is not a finished run of `certify`"]);
    let model = sandbox.bytes("retrievalguard-demo/encoder.toml");
    let changed = String::from_utf8_lossy(&model).replacen("size = 32", "size = 40", 1);
    sandbox.write("retrievalguard-demo/encoder.toml", &changed);
    sandbox.run(explain).fails(2, &["model config of", "has changed since the run"]);
    fs::write(sandbox.path("retrievalguard-demo/encoder.toml"), model).unwrap();

    // `compare` draws the same curves from the runs that the demo has left.
    let runs = "retrievalguard-demo/certificates retrievalguard-demo/without-noise/certificates";
    let views = "shifts=retrievalguard-demo/without-noise/certificates-shifts";
    sandbox
        .run(&format!("compare {runs} {views} --radii 0.1,0.25,0.5,0.75,1 --out again.svg"))
        .succeeds()
        .prints(&["again.svg"]);
    let drawn = sandbox.text("again.csv");
    let unnamed = drawn.replace(",lipschitz,without-noise,", ",lipschitz,,");
    assert_eq!(unnamed, numbers);

    let bytes = sandbox.bytes(table);
    let again = sandbox.run(&format!("{DEMO} --threads 1")).succeeds();
    let again = again.tells(&["120 queries were done before and were not certified again"]);
    assert_eq!(again.out, first.out);
    assert!(sandbox.bytes(table) == bytes, "{again}");

    let other = sandbox.run(&format!("{DEMO} --sigma 0.5"));
    other.fails(2, &["`retrievalguard-demo` holds another demo", "sigma is 0.25, wanted 0.5"]);
    assert!(sandbox.bytes(table) == bytes);
}

#[test]
fn a_demo_leaves_directories_with_other_files_alone() {
    let sandbox = Sandbox::new();
    sandbox.write("notes/mine.txt", "mine");
    sandbox.run("demo --out notes").fails(2, &["`notes` holds other files", "new or empty directory"]);
    assert_eq!(fs::read_dir(sandbox.path("notes")).unwrap().count(), 1);
    let refused = sandbox.run("demo --out notes/mine.txt");
    refused.fails(2, &["`notes/mine.txt` is not a usable directory"]);
    assert_eq!(sandbox.text("notes/mine.txt"), "mine");
    sandbox.write("old/demo.json", "not json");
    sandbox.run("demo --out old").fails(2, &["`old/demo.json` is not JSON"]);
}

#[test]
fn draw_leaves_what_is_there_and_refuses_what_is_another_seeds() {
    let sandbox = Sandbox::new();
    let draw = "draw fabrics --out cloth --part queries --seed 3";
    sandbox.run(draw).succeeds().prints(&["cloth/queries: 180 pictures drawn, 0 kept"]);
    sandbox.run(draw).succeeds().prints(&["cloth/queries: 0 pictures drawn, 180 kept"]);
    assert!(!sandbox.path("cloth/train").exists());
    let other = sandbox.run(&draw.replace("seed 3", "seed 4"));
    other.fails(2, &["is not the picture that this seed gives"]);
    sandbox.run("draw clouds --out sky").fails(2, &["subject is `clouds`", "products or fabrics"]);
    sandbox.run("draw fabrics --out cloth --part all").fails(2, &["part is `all`", "train, gallery"]);
}
