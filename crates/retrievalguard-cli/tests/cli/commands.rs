//! Every command on sound input, end to end.

use std::fs;

use retrievalguard_encoder::dataset::{Format, NamedSplit};
use serde_json::{Value, json};

use crate::sandbox::{CERTIFICATES, CLASSES, ENCODER, PICTURES, Sandbox, json_lines, onnxruntime};

const COMMANDS: [&str; 13] = [
    "demo",
    "index",
    "certify",
    "query",
    "recall",
    "recommend",
    "evaluate",
    "import",
    "export",
    "check-model",
    "doctor",
    "completions",
    "man",
];

#[test]
fn pictures_become_a_gallery_certificates_and_tables() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let run = sandbox.run(&format!("index pictures --gallery gallery {ENCODER}")).succeeds();
    assert_eq!(run.out, "gallery: 30 items of dimension 8\n");
    assert!(!sandbox.path("gallery/index.journal").exists());

    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --certificate all --samples 200 --pilot 50 --out run \
         --jsonl --tsv"
    );
    let run = sandbox.run(&line).succeeds();
    let run = run.tells(&[
        "plan: 30 queries against 30 items, 50 + 200 noisy copies each, sigma 0.1, alpha 0.01",
        "plan: half-space can reach 0.",
        "plan: at most 7530 encoder calls, about",
        "certifying 30/30",
    ]);
    let run = run.prints(&[
        "vote             30 of 30 certified, 0 abstained, 0 misretrieved (recall@1 1.0000), mean radius",
        "run/certificates.parquet",
    ]);
    assert!(!run.errors.contains("wrong label"), "{run}");
    assert!(!run.out.contains("-0.0"), "{run}");
    let rows = json_lines(&sandbox.text("run/certificates.jsonl"));
    assert_eq!(rows.len(), PICTURES);
    for row in &rows {
        assert_eq!(row["certificates"].as_object().unwrap().len(), CERTIFICATES.len());
        let cell = &row["certificates"]["vote"];
        let [radius, in_sigmas, in_steps] =
            ["radius", "radius_in_sigmas", "radius_in_8bit_steps"].map(|field| cell[field].as_f64().unwrap());
        assert!(
            (radius / 0.1 - in_sigmas).abs() < 1e-12 && (radius * 255.0 - in_steps).abs() < 1e-9,
            "{row}"
        );
    }
    for name in CERTIFICATES {
        let table = sandbox.text(&format!("run/{name}.tsv"));
        assert_eq!(table.lines().count(), PICTURES + 1, "{name}");
        assert!(table.starts_with("idx\tlabel\tpredict\tradius\tcorrect\ttime\n"), "{name}");
    }
    // Times and threads are in the log and nowhere else.
    let log = json_lines(&sandbox.text("run/run-log.jsonl"));
    assert_eq!((log.len(), &log[0]["queries"], &log[0]["batch"]), (1, &PICTURES.into(), &64.into()));
    assert!(log[0]["run"]["engine"].as_str().unwrap().starts_with("rten "), "{}", log[0]);

    let table = "run/certificates.parquet";
    let run = sandbox.run(&format!("evaluate {table}")).succeeds();
    let run =
        run.prints(&["30 queries, sigma 0.1", "probability at most 0.01", "certified recall", "half-space"]);
    assert!(!run.out.contains("-0.0"), "{run}");
    let run = sandbox.run(&format!("evaluate {table} --csv --radii 0,0.05,9")).succeeds();
    assert!(run.out.starts_with("certificate,radius,recall,lower,upper,count,queries\n"), "{run}");
    assert_eq!(run.out.lines().count(), 1 + 3 * CERTIFICATES.len());
    let run = run.prints(&["vote,0,1,", "vote,9,0,"]);
    assert!(run.errors.is_empty(), "{run}");
    let summary = sandbox.run(&format!("evaluate {table} --json")).succeeds().json();
    assert_eq!(summary["queries"], PICTURES);
    assert_eq!(summary["run"]["samples"], 200);
    for name in CERTIFICATES {
        let certificate = &summary["certificates"][name];
        assert_eq!(certificate["curve"].as_array().unwrap().len(), 11, "{name}");
        assert_eq!(certificate["summary"]["recall"]["share"], 1.0, "{name}");
    }
    // JSON lines say everything but the failure probability, which stands in run.json beside them.
    let from_lines = sandbox.run("evaluate run/certificates.jsonl --csv").succeeds();
    assert_eq!(from_lines.out, sandbox.run(&format!("evaluate {table} --csv")).succeeds().out);
    sandbox.write("alone.jsonl", sandbox.bytes("run/certificates.jsonl"));
    sandbox
        .run("evaluate alone.jsonl")
        .fails(2, &["`alone.jsonl` has no digest", "hint: `retrievalguard upgrade`"]);
    sandbox.run("evaluate alone.jsonl --unverified").fails(2, &["does not say its alpha", "--alpha"]);
    sandbox.run("evaluate run/certificates.jsonl --alpha 0.05").fails(2, &["--alpha is 0.05", "0.01"]);
    sandbox.run("evaluate run/vote.tsv").fails(2, &["vote.tsv", ".parquet or .jsonl"]);
}

#[test]
fn a_summary_of_known_verdicts_is_known_to_the_letter() {
    let sandbox = Sandbox::new();
    let line = |identity: usize, verdict: &str, [radius, sigmas, steps]: [&str; 3]| {
        format!(
            r#"{{"identity":"{identity}","label":"a","retrieved":"b","retrieved_label":"a","sigma":0.25,"certificates":{{"vote":{{"verdict":"{verdict}","radius":{radius},"radius_in_sigmas":{sigmas},"radius_in_8bit_steps":{steps},"unbounded":false,"samples":100}}}}}}"#
        )
    };
    let rows = [
        line(0, "certified", ["0.5", "2", "127.5"]),
        line(1, "certified", ["0.25", "1", "63.75"]),
        line(2, "abstained", ["null"; 3]),
        line(3, "misretrieved", ["null"; 3]),
    ];
    sandbox.write("table.jsonl", rows.join("\n") + "\n");
    let run = sandbox.run("evaluate table.jsonl --unverified --alpha 0.05 --radii 0,0.25,0.5").succeeds();
    let run = run.tells(&["`table.jsonl` has no digest, so it cannot be verified"]);
    let wanted = "\
4 queries, sigma 0.25 (pixels in [0, 1]); each certificate is wrong with probability at most 0.05,
so at most 0.2 wrong ones are to be expected

certificate         recall  certified  rejected  misretrieved     radius   in sigma
vote                0.7500     0.5000    0.2500        0.2500     0.1875      0.750
plain            unknown: index again

rejected: right but abstained; misretrieved: wrong before anybody attacks
plain: the encoder without noise, about which nothing is proved
radius: mean certified radius over all queries, 0 where there is none

certified recall: share of all queries whose certified radius exceeds r
r                 0.0000  0.2500  0.5000
vote              0.5000  0.2500  0.0000
";
    assert_eq!(run.out, wanted, "{run}");
}

#[test]
fn wrong_answers_are_counted_and_pointed_at() {
    let sandbox = Sandbox::indexed();
    // Every picture under the label of the next class, but for the first.
    for class in 0..CLASSES {
        let label = if class == 0 { 0 } else { (class + 1) % CLASSES };
        let picture = sandbox.bytes(&format!("pictures/class-{class}/3.png"));
        sandbox.write(&format!("queries/class-{label}/of-{class}.png"), picture);
    }
    let line =
        "certify queries --gallery gallery --model model/convolutional.onnx --engine rten --samples 200";
    let run = sandbox.run(line).succeeds();
    let counts = "1 of 5 certified, 0 abstained, 4 misretrieved (recall@1 0.2000)";
    let warning = "warning: half-space: 4 of 5 queries retrieve a wrong label before anybody attacks them";
    run.prints(&[counts]).tells(&[warning, "`retrievalguard recall`"]);
    sandbox.run(&format!("{line} --json")).succeeds().tells(&[warning]);
    let run = sandbox.run("evaluate certificates/certificates.parquet").succeeds();
    run.prints(&["rejected: right but abstained; misretrieved: wrong"]).tells(&[warning]);
}

#[test]
fn the_noise_level_is_that_of_the_gallery_unless_it_says_none() {
    let sandbox = Sandbox::indexed();
    let model = "--model model/convolutional.onnx --engine rten --samples 50 --pilot 20";
    let certify = format!("certify pictures --gallery gallery {model} --limit 3");
    sandbox.run(&format!("{certify} --out given --sigma 0.1")).succeeds();
    sandbox.run(&format!("{certify} --out found")).succeeds().tells(&["sigma 0.1"]);
    let table = |run: &str| sandbox.bytes(&format!("{run}/certificates.parquet"));
    assert!(table("given") == table("found"));
    let query = format!("query pictures/class-2/3.png --gallery gallery {model} --json");
    assert_eq!(sandbox.run(&query).succeeds().json()["sigma"], 0.1);
    for command in [&certify, &query] {
        let refused = "was smoothed with sigma 0.1, the queries with 0.2";
        sandbox.run(&format!("{command} --sigma 0.2")).fails(2, &[refused, "hint: leave --sigma out"]);
    }
    sandbox.run("export gallery --npy v.npy --labels l.txt").succeeds();
    // Without what the export says of itself, nothing is known of the arrays.
    fs::remove_file(sandbox.path("v.npy.json")).unwrap();
    sandbox.run("import --npy v.npy --labels l.txt --gallery bare").succeeds();
    for command in [certify, query] {
        let line = command.replace("--gallery gallery", "--gallery bare");
        sandbox.run(&line).fails(2, &["gallery `bare` has no noise level, which --sigma would give"]);
    }
    sandbox
        .run("certify --samples-file s.npy --gallery-file v.npy --gallery-labels l.txt")
        .fails(2, &["--sigma"]);
}

#[test]
fn a_query_is_answered_with_its_guarantee() {
    let sandbox = Sandbox::indexed();
    let query = format!(
        "query pictures/class-2/3.png --gallery gallery {ENCODER} --samples 300 --pilot 50 --retriever mean"
    );
    let run = sandbox.run(&query).succeeds();
    run.prints(&[
        "label class-2: no change of the prepared picture with l2 norm below 0.",
        "class-2/",
        "(mean retriever, 300 samples)",
        "asking again draws other noise and is a new attempt at 0.01",
    ]);

    let fixed = format!("{query} --seed 7 --json --top-k 3");
    let first = sandbox.run(&fixed).succeeds();
    let answer = first.json();
    assert_eq!(answer["label"], "class-2");
    assert_eq!(answer["verdict"], "certified");
    let again = "another --seed is a new attempt at 0.01; the same one after the gallery or a setting was changed in view \
                 of this answer proves nothing";
    assert_eq!(answer["asking_again"], again);
    assert_eq!(answer["items"].as_array().unwrap().len(), 3);
    assert_eq!(answer["items"][0]["label"], "class-2");
    assert_eq!(first.out, sandbox.run(&format!("{fixed} --threads 1 --batch 3")).succeeds().out);
    // Without a seed the noise is drawn anew each time, and nothing tells which.
    let secret = format!("{query} --json");
    let (one, other) = (sandbox.run(&secret).succeeds(), sandbox.run(&secret).succeeds());
    assert_ne!(one.out, other.out);
    assert!(!one.out.contains("seed"), "{one}");

    let voted = sandbox.run(&format!("{query} --retriever vote --json")).succeeds().json();
    assert_eq!(voted["label"], "class-2");
    let rule = voted["rule"].as_str().unwrap();
    assert!(["majority", "runner-up"].contains(&rule), "{voted}");
    assert!(answer["rule"].is_null(), "{answer}");
    let hasty = sandbox.run(&format!("{query} --target-radius 0.01 --json --samples 5000")).succeeds().json();
    assert!(hasty["samples"].as_u64().unwrap() < 5000, "{hasty}");
    for target in ["5", "1e100", "1e308"] {
        let far = sandbox.run(&format!("{query} --target-radius {target} --json")).succeeds().json();
        assert_eq!(far["verdict"], "abstained", "{target}: {far}");
    }
    assert_eq!((&answer["retriever"], &answer["pilot"]), (&json!("mean"), &json!(50)));
    for retriever in ["vote", "pairwise"] {
        let line = format!("{query} --retriever {retriever} --json");
        let whole = sandbox.run(&line).succeeds().json();
        assert_eq!((&whole["label"], &whole["retriever"]), (&json!("class-2"), &json!(retriever)), "{whole}");
        assert_eq!(whole["samples"], 300);
        // Tens of samples decide what hundreds prove.
        let decided = sandbox.run(&format!("{line} --target-radius 0.05")).succeeds().json();
        assert_eq!(decided["verdict"], "certified", "{decided}");
        assert!(decided["samples"].as_u64().unwrap() < 100, "{decided}");
        let few = sandbox.run(&format!("{line} --target-radius 0.1 --samples 20"));
        few.fails(2, &["--samples is 20, too few for any query", "--target-radius 0.1 takes at least 38"]);
        let far = sandbox.run(&format!("{line} --target-radius 1e100")).succeeds().json();
        assert_eq!((&far["verdict"], &far["samples"]), (&json!("abstained"), &json!(0)), "{far}");
    }
    // Twenty samples prove nothing at this failure probability: an abstention is an answer, not an error.
    let line = format!("{query} --alpha 1e-30 --samples 20");
    sandbox.run(&line).succeeds().prints(&["abstained: after 20 samples", "candidate: class-2"]);
}

#[test]
fn a_sound_model_passes_and_one_that_mixes_its_batch_is_told_apart() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let line = "check-model pictures --engine rten --limit 6 --batch 4 --model model/convolutional.onnx";
    let report = sandbox.run(&format!("{line} --json")).succeeds().json();
    assert_eq!((&report["pictures"], &report["dimension"]), (&6.into(), &8.into()), "{report}");

    assert_eq!(report["encoder_check"]["passes"], "together", "{report}");
    sandbox
        .run(line)
        .succeeds()
        .prints(&["batch         together: every embedding is a function of its picture"]);

    // What is wrong with a model is the first thing that is said.
    for (model, first) in [
        (
            "batch_mean.onnx",
            "error: model `model/batch_mean.onnx` must run picture by picture (the pictures of a batch are coupled by node `mean` (ReduceMean)",
        ),
        (
            "random.onnx",
            "error: model `model/random.onnx` draws random numbers at node `lots` (RandomNormalLike)",
        ),
        (
            "wrong_rank.onnx",
            "error: output `embeddings` of model `model/wrong_rank.onnx` has shape [batch, 16, 2, 2], wanted [batch, dimension]",
        ),
        ("float16.onnx", "error: input `pictures` of model `model/float16.onnx` is float16, wanted float32"),
    ] {
        sandbox.add_model(model);
        for command in ["check-model pictures --limit 6", "index pictures --sigma 0.1 --gallery none"] {
            let run = sandbox.run(&format!("{command} --model model/{model}"));
            let run = run.ends_with_status(2);
            assert!(run.errors.starts_with(first), "{run}");
        }
    }
    let config =
        sandbox.text("model/encoder.toml").replace("normalise = true", "normalise = false\nnorm_bound = 10");
    sandbox.write("loose.toml", config);
    let line = "check-model pictures --engine rten --limit 6 --batch 4 --model model/batch_mean.onnx --contract loose.toml";
    sandbox
        .run(line)
        .succeeds()
        .prints(&["batch         one by one: the pictures of a batch are coupled by node `mean`"]);

    // Embeddings made elsewhere are compared; a gallery of clean pictures holds just those.
    sandbox.run(&format!("index pictures --gallery clean {ENCODER} --samples 0")).succeeds();
    let check = "check-model pictures --engine rten --model model/convolutional.onnx";
    sandbox.run(&format!("{check} --reference clean/vectors.npy")).succeeds();
    let line = format!("{check} --limit 4 --reference clean/vectors.npy");
    sandbox.run(&line).fails(2, &["the reference is 30 × 8, wanted 4 × 8"]);

    sandbox.write("pictures/class-0/0.png", b"no picture");
    let run = sandbox.run(&format!("{check} --limit 3"));
    run.fails(2, &["class-0/0.png", "hint: --skip-broken"]);
    let run = sandbox.run(&format!("{check} --limit 3 --skip-broken")).succeeds();
    run.tells(&["skipped: class-0/0.png", "1 broken pictures were skipped"]);
    sandbox.run(&format!("{check} --limit 1 --skip-broken")).fails(2, &["no picture is left: all 1"]);
}

#[test]
fn exported_galleries_come_back_unchanged() {
    let sandbox = Sandbox::indexed();
    let wanted = sandbox.bytes("gallery/vectors.npy");
    let items = |folder: &str| -> Vec<(String, String)> {
        let lines = json_lines(&sandbox.text(&format!("{folder}/items.jsonl")));
        let word = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        lines.iter().map(|line| (word(line, "identity"), word(line, "label"))).collect()
    };
    let run = sandbox.run(
        "export gallery --npy e/v.npy --labels e/l.txt --identities e/i.txt --parquet e/g.parquet --clip-retrieval e/clip \
         --shard-items 7",
    );
    run.fails(1, &["e/v.npy", "its directory does not exist"]);
    fs::create_dir(sandbox.path("e")).unwrap();
    let run = sandbox.run(
        "export gallery --npy e/v.npy --labels e/l.txt --identities e/i.txt --parquet e/g.parquet --clip-retrieval e/clip \
         --shard-items 7",
    );
    run.succeeds().prints(&["e/v.npy", "e/g.parquet", "e/clip"]);
    assert_eq!(fs::read_dir(sandbox.path("e/clip/img_emb")).unwrap().count(), 5);
    for (name, source) in [
        ("npy", "--npy e/v.npy --labels e/l.txt --identities e/i.txt"),
        ("parquet", "--parquet e/g.parquet"),
        ("clip", "--clip-retrieval e/clip"),
    ] {
        let run = sandbox.run(&format!("import {source} --gallery {name}")).succeeds();
        assert_eq!(run.out, format!("{name}: 30 items of dimension 8\n"));
        assert_eq!(sandbox.bytes(&format!("{name}/vectors.npy")), wanted, "{name}");
        assert_eq!(items(name), items("gallery"), "{name}");
    }
    for manifest in ["npy", "parquet", "clip"] {
        let known = sandbox.text(&format!("{manifest}/manifest.json"));
        assert!(known.contains("\"sigma\": 0.1"), "{manifest}: {known}");
    }
    sandbox
        .run("import --parquet e/g.parquet --gallery x --sigma 0.2")
        .fails(2, &["--sigma is 0.2, the export says 0.1"]);
    sandbox.run("import --parquet e/g.parquet --gallery x --cosine").fails(2, &["metric Euclidean"]);
    // What is not known about arrays from elsewhere is said, and certifying goes on.
    fs::remove_file(sandbox.path("e/v.npy.json")).unwrap();
    sandbox.run("import --npy e/v.npy --labels e/l.txt --identities e/i.txt --gallery npy").succeeds();
    let line =
        format!("certify pictures --gallery npy {ENCODER} --samples 50 --pilot 20 --limit 2 --out run");
    sandbox
        .run(&line)
        .succeeds()
        .tells(&["gallery `npy` does not say its sigma, samples, model, model config"]);
    sandbox.run("export gallery --clip-retrieval e/clip").fails(1, &["e/clip/img_emb", "already"]);
    sandbox.run("export gallery --npy x.npy").fails(2, &["--npy was given without --labels"]);
    sandbox.run("import --npy e/v.npy --gallery x").fails(2, &["--npy was given without --labels"]);
    sandbox.run("import --gallery x").fails(2, &["--parquet"]);
}

#[test]
fn every_command_explains_itself_with_an_example() {
    let sandbox = Sandbox::new();
    for command in COMMANDS {
        let run = sandbox.run(&format!("{command} --help")).succeeds();
        assert!(
            run.out.contains("Example") && run.out.contains(&format!("retrievalguard {command}")),
            "{run}"
        );
    }
    // Words wrap at the edge of the terminal, so the text is compared without its lines.
    let help = sandbox.run("index --help").succeeds().out.split_whitespace().collect::<Vec<_>>().join(" ");
    for name in NamedSplit::ALL.map(NamedSplit::name).into_iter().chain(Format::ALL.map(Format::name)) {
        assert!(help.contains(name), "{name} is not in {help}");
    }
    assert!(!help.contains("and so on"), "{help}");
    let help = sandbox.run("--help").succeeds().prints(&COMMANDS);
    help.prints(&["--config"]);
    sandbox.run("--version").succeeds().prints(&[env!("CARGO_PKG_VERSION")]);
    sandbox.run("frobnicate").fails(2, &["frobnicate"]);
    for shell in ["bash", "zsh", "fish"] {
        sandbox.run(&format!("completions {shell}")).succeeds().prints(&["certify", "--target-radius"]);
    }
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let sandbox = Sandbox::new();
    let help = sandbox.run("--help").succeeds().out;
    let listed: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // Further lines of a description begin further in.
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next())
        .filter(|name| *name != "help")
        .collect();
    assert!(listed.len() > 20 && COMMANDS.iter().all(|name| listed.contains(name)), "{listed:?}");
    let run = sandbox.run("man manual/man1").succeeds();
    assert_eq!(run.out, format!("manual/man1: {} pages\n", listed.len() + 1));
    let mut written: Vec<String> = fs::read_dir(sandbox.path("manual/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort_unstable();
    let mut wanted: Vec<String> = listed.iter().map(|name| format!("retrievalguard-{name}.1")).collect();
    wanted.push("retrievalguard.1".to_owned());
    wanted.sort_unstable();
    assert_eq!(written, wanted);
    for name in listed {
        let page = sandbox.text(&format!("manual/man1/retrievalguard-{name}.1"));
        for part in
            [&format!(".TH retrievalguard-{name} 1"), ".SH SYNOPSIS", "\\-\\-progress", "\\-\\-config"]
        {
            assert!(page.contains(part), "`{part}` is missing: {page}");
        }
    }
    let whole = sandbox.text("manual/man1/retrievalguard.1");
    assert!(whole.contains("retrievalguard\\-certify(1)"), "{whole}");
    // Once more over what is there.
    sandbox.run("man manual/man1").succeeds();
}

#[test]
fn flags_may_stand_in_a_file_and_those_given_by_hand_win() {
    let sandbox = Sandbox::indexed();
    let common =
        "sigma = 0.1\nmodel = \"model/convolutional.onnx\"\nengine = \"rten\"\ngallery = \"gallery\"\n";
    let certify =
        "[certify]\nsamples = 40\npilot = 20\nlimit = 3\njsonl = true\ncertificate = [\"vote\", \"paper\"]\n";
    sandbox.write("run.toml", format!("{common}{certify}[index]\nsamples = 7\n"));
    sandbox.run("certify pictures --config run.toml --samples 30 --out run").succeeds();
    let log = json_lines(&sandbox.text("run/run-log.jsonl"));
    let run = &log[0]["run"];
    assert_eq!((&run["samples"], &run["pilot"]), (&30.into(), &20.into()), "{run}");
    assert_eq!(run["certificates"], json!(["paper", "vote"]));
    assert_eq!(json_lines(&sandbox.text("run/certificates.jsonl")).len(), 3);

    sandbox.write("radii.toml", "radii = [0, 1]\n");
    let line = "evaluate run/certificates.parquet --csv --config=radii.toml";
    assert_eq!(sandbox.run(line).succeeds().out.lines().count(), 1 + 2 * 2);
    assert_eq!(sandbox.run(&format!("{line} --radii 0.5")).succeeds().out.lines().count(), 1 + 2);

    sandbox.run("certify pictures --config nowhere.toml").fails(2, &["nowhere.toml", "No such file"]);
    sandbox.write("broken.toml", "sigma = = 3\n");
    sandbox.run("certify pictures --config broken.toml").fails(2, &["`broken.toml` is not TOML"]);
    sandbox.write("unknown.toml", "sgima = 3\n");
    sandbox.run("certify pictures --config unknown.toml").fails(2, &["--sgima"]);
}

#[test]
fn a_query_does_not_find_itself_unless_told_to() {
    let sandbox = Sandbox::indexed();
    let certify = |flags: &str, out: &str| {
        let line = format!("certify pictures --gallery gallery {ENCODER} --samples 60 --pilot 20 --json");
        let run = sandbox.run(&format!("{line} {flags} --out {out}")).succeeds();
        let own = |row: &&Value| row["identity"] == row["retrieved"];
        let (rows, errors) = (run.json_lines(), run.errors);
        (rows.len(), rows.iter().filter(own).count(), errors)
    };
    let (rows, found_themselves, errors) = certify("", "auto");
    assert_eq!((rows, found_themselves), (PICTURES, 0));
    assert!(errors.contains("leave-one-out: 30 queries were kept from finding themselves"), "{errors}");
    let (_, found_themselves, errors) = certify("--leave-one-out never", "never");
    assert!(found_themselves > PICTURES / 6, "{found_themselves}");
    assert!(!errors.contains("kept from finding itself"), "{errors}");
    // A part of the gallery's pictures is no other set.
    let (rows, found_themselves, errors) = certify("--limit 7 --every 2", "part");
    assert_eq!((rows, found_themselves), (7, 0));
    assert!(errors.contains("leave-one-out: "), "{errors}");

    // A copy elsewhere is the same pictures, all but the one in which a byte was changed.
    sandbox.draw("copy");
    let mut picture = sandbox.bytes("pictures/class-4/5.png");
    picture.push(0);
    sandbox.write("copy/class-4/5.png", picture);
    let line = format!("certify copy --gallery gallery {ENCODER} --samples 60 --pilot 20 --out copied");
    let run = sandbox.run(&line).succeeds();
    run.tells(&["leave-one-out: 29 queries were kept from finding themselves"]);
    let run = sandbox.run(&format!("{line}-always --leave-one-out always")).succeeds();
    run.tells(&["leave-one-out: 30 queries were kept from finding themselves"]);

    // A gallery of fewer pictures, and one that was exported and imported, know their pictures, too.
    sandbox
        .run(&format!("index pictures --gallery part.gallery {ENCODER} --samples 8 --limit 20"))
        .succeeds();
    let line = format!("certify pictures {ENCODER} --samples 60 --pilot 20");
    let run = sandbox.run(&format!("{line} --gallery part.gallery --out fewer")).succeeds();
    run.tells(&["leave-one-out: 20 queries were kept from finding themselves"]);
    sandbox.run("export part.gallery --parquet g.parquet").succeeds();
    sandbox.run("import --parquet g.parquet --gallery again").succeeds();
    let run = sandbox.run(&format!("{line} --gallery again --out imported")).succeeds();
    run.tells(&["leave-one-out: 20 queries were kept from finding themselves"]);
    // An imported gallery still knows what it was made with.
    let line = line.replace("--sigma 0.1", "--sigma 0.2");
    sandbox.run(&format!("{line} --gallery again --out other")).fails(2, &["sigma 0.1", "0.2"]);
}

#[test]
fn another_model_config_is_refused_and_the_field_that_differs_is_named() {
    let sandbox = Sandbox::indexed();
    let config = sandbox.text("model/encoder.toml").replace("bilinear", "bicubic");
    sandbox.write("other.toml", config);
    for line in [
        format!("certify pictures --gallery gallery {ENCODER} --contract other.toml --out run"),
        format!("query pictures/class-0/0.png --gallery gallery {ENCODER} --contract other.toml"),
    ] {
        let words = ["another model config", "resize.interpolation", "bilinear", "bicubic", "hint: "];
        sandbox.run(&line).fails(2, &words);
    }
}

#[test]
fn a_target_radius_takes_as_many_samples_as_the_query_needs() {
    let sandbox = Sandbox::indexed();
    let line = format!("certify pictures --gallery gallery {ENCODER} --pilot 50 --json");
    let run = sandbox.run(&format!("{line} --samples 3000 --target-radius 0.09 --out run")).succeeds();
    let used: Vec<u64> = run
        .json_lines()
        .iter()
        .map(|row| row["certificates"]["half-space"]["samples"].as_u64().unwrap())
        .collect();
    let (fewest, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
    assert!(*fewest < 1000 && fewest < most && *most <= 3000, "{used:?}");
    let run = sandbox.run(&format!("{line} --samples 100 --target-radius 5 --out far --limit 1")).succeeds();
    run.tells(&["the target radius 5 is out of reach with 100 samples"]);
    for flags in ["--certificate all", "--certificate vote,pairwise", "--certificate paper"] {
        let refused = sandbox.run(&format!("{line} --target-radius 0.1 {flags} --out no"));
        refused.fails(2, &["--target-radius decides one certificate of half-space, vote and pairwise"]);
    }
    sandbox.run(&format!("{line} --top-k 2 --certificate vote --out no")).fails(2, &["half-space only"]);
    sandbox.run(&format!("{line} --target-radius 0.1 --top-k 2 --out no")).fails(2, &["recall@1"]);
}

#[test]
fn votes_and_pairs_are_decided_by_tens_of_samples_and_the_plan_says_how_many() {
    let sandbox = Sandbox::indexed();
    let line =
        format!("certify pictures --gallery gallery {ENCODER} --json --samples 2000 --target-radius 0.05");
    for retriever in ["vote", "pairwise"] {
        let run = sandbox.run(&format!("{line} --retriever {retriever} --out {retriever}")).succeeds();
        let run = run.tells(&["plan: a query takes", "if all of them agree", "and is given up after"]);
        let rows = run.json_lines();
        let used = |row: &Value| row["certificates"][retriever]["samples"].as_u64().unwrap();
        let mut samples: Vec<u64> = rows.iter().map(used).collect();
        samples.sort_unstable();
        assert!(samples[samples.len() / 2] < 100, "{retriever}: {samples:?}");
        let certified = |row: &&Value| row["certificates"][retriever]["verdict"] == "certified";
        let row = rows.iter().find(certified).unwrap();
        assert_eq!(row["certificates"][retriever]["radius"], 0.05);
        // The samples are drawn again and say the same.
        let identity = row["identity"].as_str().unwrap();
        let told =
            sandbox.run(&format!("explain {identity} --run {retriever} --engine rten --json")).succeeds();
        let outcome = &told.json()["outcome"];
        assert_eq!((&outcome["name"], &outcome["verdict"]), (&json!(retriever), &json!("certified")));
        assert_eq!(outcome["samples"], row["certificates"][retriever]["samples"]);
    }
    let both = format!("{line} --retriever vote --certificate vote --out no");
    sandbox.run(&both).fails(2, &["cannot be used with"]);
    let few = format!("{line} --retriever pairwise --samples 10 --out no");
    sandbox.run(&few).fails(2, &["--samples is 10, too few for any query"]);
}

#[test]
fn an_adaptive_run_is_explained_by_the_radius_it_has_tested_and_no_other() {
    let sandbox = Sandbox::indexed();
    let line = format!("certify pictures --gallery gallery {ENCODER} --pilot 50 --json");
    let run = sandbox.run(&format!("{line} --samples 1000 --target-radius 0.09 --out run")).succeeds();
    // Nothing is ever certified so far out, so that no sample is drawn at all.
    let far = sandbox.run(&format!("{line} --samples 100 --target-radius 40 --limit 1 --out far")).succeeds();
    let mut seen = std::collections::BTreeMap::new();
    for (folder, target, rows) in [("run", 0.09, run.json_lines()), ("far", 40.0, far.json_lines())] {
        for row in rows {
            let cell = &row["certificates"]["half-space"];
            let kind = (folder, cell["verdict"].as_str().unwrap().to_owned());
            if seen.insert(kind.clone(), ()).is_some() {
                continue;
            }
            let explain =
                format!("explain {} --run {folder} --engine rten", row["identity"].as_str().unwrap());
            let value = sandbox.run(&format!("{explain} --json")).succeeds().json();
            let outcome = &value["outcome"];
            assert_eq!((&outcome["verdict"], &outcome["samples"]), (&cell["verdict"], &cell["samples"]));
            assert_eq!(value["numbers_of_the_run"], true);
            let steps = outcome["explain"].as_array().unwrap();
            let step = |name: &str| {
                steps.iter().find(|step| step["quantity"] == name).map(|step| step["value"].clone())
            };
            assert_eq!(step("target radius").unwrap(), target, "{kind:?}");
            assert_eq!(step("samples n").as_ref(), Some(&cell["samples"]), "{kind:?}");
            // What the samples drawn so far would give in another test was not proved.
            let proved = (kind.1 == "certified").then(|| Value::from(target));
            assert_eq!(step("radius"), proved, "{kind:?}: {outcome}");
            let text = sandbox.run(&explain).succeeds();
            text.prints(&["certificate   half-space, betting", "decision", "theory 2.5, adaptive sampling"]);
        }
    }
    let kinds: Vec<_> = seen.keys().map(|(folder, verdict)| (*folder, verdict.as_str())).collect();
    assert!(kinds.contains(&("far", "abstained")) && kinds.contains(&("run", "certified")), "{kinds:?}");
}

#[test]
fn deeper_recall_has_a_verdict_for_each_depth() {
    let sandbox = Sandbox::indexed();
    let line =
        format!("certify pictures --gallery gallery {ENCODER} --samples 100 --pilot 50 --limit {CLASSES}");
    sandbox.run(&format!("{line} --top-k 3 --out run")).succeeds();
    let rows = json_lines(&sandbox.text("run/recall-at-k.jsonl"));
    assert_eq!(rows.len(), CLASSES);
    for row in rows {
        assert_eq!(row["recall_at_2_and_deeper"].as_array().unwrap().len(), 2, "{row}");
    }
    sandbox.run(&format!("{line} --top-k 0 --out no")).fails(2, &["--top-k"]);
    sandbox.run(&format!("{line} --top-k 29 --out no")).fails(2, &["top_k is 29", "wanted at most 24"]);
}

#[test]
fn recall_at_a_radius_needs_as_many_copies_as_its_decision() {
    let sandbox = Sandbox::indexed();
    let certified = |rest: &str| {
        let run = sandbox.run(&format!("recall pictures {ENCODER} --json {rest}")).succeeds();
        run.json()["recall"]["certified"].as_f64()
    };
    assert_eq!(certified(""), None);
    // Thirty-eight copies that agree decide a radius of sigma, and no fewer.
    assert_eq!(certified("--radius 0.1 --cap 37"), Some(0.0));
    let (near, far) = (certified("--radius 0.05").unwrap(), certified("--radius 0.15").unwrap());
    assert!(near >= far && near > 0.5, "{near} at half of sigma, {far} at one and a half");
    sandbox.run(&format!("recall pictures {ENCODER} --cap 50")).fails(2, &["--radius"]);
}

#[test]
fn the_engines_certify_alike_and_the_report_names_them() {
    let Some(engine) = onnxruntime("the_engines_certify_alike_and_the_report_names_them") else { return };
    let sandbox = Sandbox::indexed();
    let run = sandbox.run(&format!("doctor {engine}")).succeeds();
    run.prints(&["engine          onnxruntime 1.", "library"]);
    let line = "certify pictures --gallery gallery --model model/convolutional.onnx --sigma 0.1 --samples 200 \
                --pilot 50 --certificate vote --json";
    let rten = sandbox.run(&format!("{line} --engine rten --out rten")).succeeds().json_lines();
    let other = sandbox.run(&format!("{line} {engine} --out other")).succeeds().json_lines();
    for (one, other) in rten.iter().zip(&other) {
        assert_eq!(one["retrieved_label"], other["retrieved_label"]);
        assert_eq!(one["certificates"]["vote"]["verdict"], other["certificates"]["vote"]["verdict"]);
    }
    let log = json_lines(&sandbox.text("other/run-log.jsonl"));
    assert!(log[0]["run"]["engine"].as_str().unwrap().starts_with("onnxruntime 1."), "{}", log[0]);
    assert!(log[0]["library"].as_str().unwrap().contains("onnxruntime"), "{}", log[0]);
    // A quantised model is certified as it is, and that is said.
    sandbox.add_model("int8.onnx");
    let line = format!("index pictures --gallery int8 --model model/int8.onnx --sigma 0.1 {engine}");
    sandbox.run(&line).succeeds().tells(&["certificates are about the quantised network"]);
}
