//! A gallery in shards is taken wherever a gallery is, and gives the same bytes.

use std::fs;

use crate::same_bytes::Running;
use crate::sandbox::{ENCODER, Sandbox};

/// The thirty pictures in memory, in `gallery`, and in four shards, in `shards`.
fn both_kinds() -> Sandbox {
    let sandbox = Sandbox::indexed();
    let run = sandbox.run(&format!("index pictures --gallery shards {ENCODER} --shards 4")).succeeds();
    assert_eq!(run.out, "shards: 30 items of dimension 8\n");
    sandbox
}

#[test]
fn certificates_in_shards_are_those_in_memory_byte_for_byte() {
    let sandbox = both_kinds();
    assert!(sandbox.path("shards/shard-00003/vectors.npy").exists());
    assert!(!sandbox.path("shards/manifest.json").exists() && !sandbox.path("shards/index.journal").exists());
    let names = "paper,paper-linear,paper-repaired,paper-frozen,half-space,vote,pairwise";
    for (case, flags) in [
        ("several", format!("--certificate {names} --samples 120 --pilot 40")),
        ("target", "--retriever pairwise --target-radius 0.1 --samples 200".to_owned()),
        ("vote", "--retriever vote --target-radius 0.05 --samples 200".to_owned()),
    ] {
        let tables = ["gallery", "shards"].map(|gallery| {
            let out = format!("{case}-{gallery}");
            let line = format!("certify pictures --gallery {gallery} {ENCODER} {flags} --out {out}");
            let run = sandbox.run(&line).succeeds();
            assert!(run.errors.contains("leave-one-out: 30 queries"), "{run}");
            let files = ["certificates.parquet", "run.json"];
            (run.out.replace(&out, ""), files.map(|name| sandbox.bytes(&format!("{out}/{name}"))))
        });
        assert!(tables[0] == tables[1], "{case}");
    }
    let explained = ["several-gallery", "several-shards"].map(|run| {
        let line = format!("explain class-1/2.png --run {run} --certificate pairwise --engine rten");
        sandbox.run(&line).succeeds().out
    });
    assert_eq!(explained[0], explained[1]);
    sandbox.run("evaluate several-shards/certificates.parquet").succeeds().prints(&["pairwise"]);
    let report = sandbox.run("report several-shards").succeeds();
    assert!(!report.errors.contains("without pictures"), "{report}");
    for retriever in ["mean", "vote", "pairwise"] {
        let answers = ["gallery", "shards"].map(|gallery| {
            let line = format!(
                "query pictures/class-2/1.png --gallery {gallery} {ENCODER} --retriever {retriever} --samples 100 --seed 5 --json"
            );
            sandbox.run(&line).succeeds().out
        });
        assert!(answers[0].contains("\"label\": \"class-2\""), "{}", answers[0]);
        assert_eq!(answers[0], answers[1], "{retriever}");
    }
}

#[test]
fn an_interrupted_index_in_shards_goes_on_and_ends_with_the_same_bytes() {
    let sandbox = both_kinds();
    let line = format!("index pictures --gallery again {ENCODER} --samples 400 --threads 1 --shards 3");
    let mut running = Running::start(&sandbox, &line);
    running.wait_for_lines(&sandbox, "again/index.journal", 6);
    running.signal("-KILL");
    drop(running);
    let unfinished = format!("query pictures/class-2/1.png --gallery again {ENCODER}");
    sandbox.run(&unfinished).fails(2, &["`again` has no manifest.json"]);
    sandbox.run(&line).succeeds().tells(&["pictures were done before and were not embedded again"]);
    let whole = format!("index pictures --gallery whole {ENCODER} --samples 400 --shards 3");
    sandbox.run(&whole).succeeds();
    for file in ["shards.json", "labels.jsonl", "shard-00002/vectors.npy", "shard-00001/items.jsonl"] {
        assert!(sandbox.bytes(&format!("again/{file}")) == sandbox.bytes(&format!("whole/{file}")), "{file}");
    }
}

#[test]
fn what_shards_cannot_give_and_what_is_wrong_with_them_is_said_in_words() {
    let sandbox = both_kinds();
    let certify = |flags: &str| {
        sandbox.run(&format!("certify pictures --gallery shards {ENCODER} --samples 50 {flags} --out out"))
    };
    for flags in ["--certificate all", "--top-k 3", "--target-radius 0.1"] {
        certify(flags).fails(2, &["needs the gallery in memory, and this one is in shards on disk"]);
    }
    assert!(!sandbox.path("out").exists(), "nothing was begun");
    for line in [
        format!("serve --gallery shards {ENCODER} --port 0"),
        "export shards --parquet out.parquet".to_owned(),
        format!("certify pictures --gallery shards {ENCODER} --retriever vote --samples 50 --share shared"),
    ] {
        sandbox.run(&line).fails(2, &["`shards` is a gallery in shards, which stays on disk"]);
    }
    sandbox
        .run(&format!("index pictures --gallery shards {ENCODER}"))
        .fails(2, &["`shards` holds a gallery in shards, wanted another directory"]);
    sandbox
        .run(&format!("index pictures --gallery gallery {ENCODER} --shards 2"))
        .fails(2, &["`gallery` holds a gallery in a single piece, wanted another directory"]);

    // A changed bit, a shard of another gallery, and none at all.
    let query = || sandbox.run(&format!("query pictures/class-2/1.png --gallery shards {ENCODER} --seed 1"));
    query().succeeds();
    let vectors = sandbox.bytes("shards/shard-00002/vectors.npy");
    let mut changed = vectors.clone();
    let last = changed.len() - 4;
    changed[last] ^= 1;
    sandbox.write("shards/shard-00002/vectors.npy", &changed);
    query().fails(2, &["shard-00002/vectors.npy` has sha256"]);
    sandbox.write("shards/shard-00002/vectors.npy", &vectors);
    query().succeeds();
    sandbox.run(&format!("index pictures --gallery other {ENCODER} --shards 4 --seed 3")).succeeds();
    let (own, kept) = (sandbox.path("shards/shard-00001"), sandbox.path("kept"));
    fs::rename(&own, &kept).unwrap();
    query().fails(2, &["shard-00001"]);
    fs::rename(sandbox.path("other/shard-00001"), &own).unwrap();
    query().fails(2, &["shard-00001/manifest.json` has sha256"]);
    fs::remove_dir_all(&own).unwrap();
    fs::rename(&kept, &own).unwrap();
    query().succeeds();

    // Another encoder, and a gallery in which nothing can be wrong.
    sandbox
        .run("query pictures/class-2/1.png --gallery shards --model model/convolutional.onnx --engine rten --sigma 0.2")
        .fails(2, &["was smoothed with sigma 0.1, the queries with 0.2"]);
    fs::create_dir_all(sandbox.path("one")).unwrap();
    fs::rename(sandbox.path("pictures/class-3"), sandbox.path("one/class-3")).unwrap();
    sandbox.run(&format!("index one --gallery single {ENCODER} --shards 2")).succeeds();
    sandbox
        .run(&format!("query pictures/class-2/1.png --gallery single {ENCODER}"))
        .fails(2, &["the gallery has no item that would be a wrong answer"]);
}

#[test]
fn a_label_whose_only_item_is_the_query_is_never_certified_in_shards() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    for variant in 1..6 {
        fs::remove_file(sandbox.path(&format!("pictures/class-0/{variant}.png"))).unwrap();
    }
    sandbox.run(&format!("index pictures --gallery shards {ENCODER} --shards 3")).succeeds();
    for retriever in ["mean", "vote", "pairwise"] {
        let line = format!(
            "certify pictures --gallery shards {ENCODER} --retriever {retriever} --samples 60 --json --out {retriever}"
        );
        let rows = sandbox.run(&line).succeeds().json_lines();
        let certificate = if retriever == "mean" { "half-space" } else { retriever };
        let alone = rows.iter().find(|row| row["label"] == "class-0").unwrap();
        assert_eq!(alone["certificates"][certificate]["verdict"], "misretrieved", "{alone}");
    }
}

#[test]
fn an_export_is_imported_into_shards() {
    let sandbox = both_kinds();
    sandbox.run("export gallery --parquet out.parquet").succeeds();
    sandbox.run("import --parquet out.parquet --gallery imported --shards 4").succeeds();
    for shard in 0..4 {
        let file = format!("shard-0000{shard}/vectors.npy");
        assert!(
            sandbox.bytes(&format!("imported/{file}")) == sandbox.bytes(&format!("shards/{file}")),
            "{file}"
        );
    }
}

#[test]
fn a_gallery_in_shards_takes_no_views() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let line = format!("index pictures --gallery gallery {ENCODER} --views flips --shards 2");
    sandbox.run(&line).fails(2, &["--views", "--shards"]);
    assert!(!sandbox.path("gallery").exists());
}
