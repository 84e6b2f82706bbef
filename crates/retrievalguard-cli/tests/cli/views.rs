//! Galleries whose items have several views, from `index` to the last command that reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use retrievalguard::storage::manifest::GalleryDirectory;
use serde_json::{Value, json};

use crate::sandbox::{ENCODER, PICTURES, Sandbox, json_lines};
use crate::serve_client::{Service, form};

fn indexed_with(views: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    sandbox.run(&format!("index pictures --gallery gallery {ENCODER} --views {views}")).succeeds();
    sandbox
}

fn manifest(sandbox: &Sandbox) -> Value {
    serde_json::from_str(&sandbox.text("gallery/manifest.json")).unwrap()
}

#[test]
fn every_named_set_makes_a_gallery_that_says_so() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    sandbox.run(&format!("index pictures --gallery plain {ENCODER}")).succeeds();
    let plain = GalleryDirectory::read(&sandbox.path("plain")).unwrap();
    for (name, views) in [("shifts", 9), ("flips", 2), ("crops", 6), ("rotations", 5), ("all", 19)] {
        let line = format!("index pictures --gallery {name} {ENCODER} --views {name} --samples 4");
        let run = sandbox.run(&line).succeeds();
        assert_eq!(run.out, format!("{name}: 30 items with {views} views each, of dimension 8\n"));
        let stored = GalleryDirectory::read(&sandbox.path(name)).unwrap();
        assert_eq!((stored.manifest.items, stored.gallery.len()), (PICTURES, PICTURES * views), "{name}");
        assert_eq!(stored.manifest.provenance.views.as_ref().unwrap().name(), name);
        // Views are different pictures.
        let rows = stored.gallery.rows_of(stored.gallery.identity(0));
        let vectors: BTreeSet<Vec<u32>> = rows
            .iter()
            .map(|&row| stored.gallery.vector(row).iter().map(|value| value.to_bits()).collect())
            .collect();
        assert_eq!((rows.len(), vectors.len()), (views, views), "{name}");
    }
    // The picture as it is has the vector that it has without views.
    sandbox.run(&format!("index pictures --gallery flips {ENCODER} --views flips")).succeeds();
    let flips = GalleryDirectory::read(&sandbox.path("flips")).unwrap();
    for row in 0..PICTURES {
        assert_eq!(flips.gallery.vector(2 * row), plain.gallery.vector(row));
        assert_eq!(flips.gallery.view(2 * row), Some("as is"));
    }
}

#[test]
fn a_set_of_ones_own_is_read_from_a_file_or_refused_before_any_work() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let index = format!("index pictures --gallery gallery {ENCODER} --samples 2 --views");
    let set = |views: &str| format!("name = \"mine\"\n{views}");
    let view = |fields: &str| format!("[[views]]\n{fields}\n");
    let as_is = view("name = \"as is\"");
    sandbox
        .write("mine.toml", set(&(as_is.clone() + &view("name = \"low\"\nshift = [0, 0.125]\nrotate = 4"))));
    sandbox.run(&format!("{index} mine.toml")).succeeds().prints(&["30 items with 2 views each"]);
    let stored = manifest(&sandbox);
    assert_eq!((&stored["format"], &stored["items"]), (&json!(4), &json!(PICTURES)));
    assert_eq!(
        (&stored["views"]["set"], &stored["views"]["views"][1]["name"]),
        (&json!("mine"), &json!("low"))
    );
    assert_eq!(stored["views"]["sha256"].as_str().unwrap().len(), 64);
    let before = sandbox.bytes("gallery/manifest.json");
    let many: String = (0..65).map(|turn| view(&format!("name = \"{turn}\"\nrotate = {turn}"))).collect();
    for (text, words) in [
        (set(&view("name = \"gone\"\nshift = [1.0, 0.0]")), "leave the picture empty"),
        (
            set(&view("name = \"gone\"\nshift = [0.75, 0.0]")),
            "25 % of view `gone` are inside a picture of 16×16 pixels",
        ),
        (set(&view("name = \"gone\"\ncrop = 0.0")), "leave the picture empty"),
        (set(&view("name = \"gone\"\ncrop = 0.1")), "leaves 1.6 pixels of 16"),
        (set(&(as_is.clone() + &as_is)), "two views `as is`"),
        (set(&(as_is.clone() + &view("name = \"b\""))), "views `as is` and `b` are the same picture"),
        (
            set(&(as_is.clone() + &view("name = \"b\"\nshift = [0.01, 0]"))),
            "the same picture of 16×16 pixels",
        ),
        (set(&view("name = \"a\"\nzoom = 2")), "unknown field `zoom`"),
        (set(""), "has 0 views"),
        (set(&many), "has 65 views, wanted 1 to 64"),
        ("views".to_owned(), "bad.toml"),
    ] {
        sandbox.write("bad.toml", &text);
        sandbox.run(&format!("{index} bad.toml")).fails(2, &[words]);
    }
    sandbox.run(&format!("{index} shift")).fails(2, &["no view set `shift`, wanted shifts, flips"]);
    sandbox.run(&format!("{index} none.toml")).fails(2, &["view set `none.toml` cannot be read"]);
    assert_eq!(sandbox.bytes("gallery/manifest.json"), before, "nothing was touched");
}

#[test]
fn a_query_of_the_gallery_does_not_find_any_view_of_itself() {
    let sandbox = indexed_with("flips");
    let certify =
        format!("{ENCODER} --samples 200 --pilot 50 --jsonl --certificate half-space,vote,pairwise");
    let line = format!("certify pictures --gallery gallery {certify} --out run");
    sandbox.run(&line).succeeds().tells(&["plan: 30 queries against 30 items"]);
    let rows = json_lines(&sandbox.text("run/certificates.jsonl"));
    assert_eq!(rows.len(), PICTURES);
    for row in &rows {
        assert_ne!(row["retrieved"], row["identity"], "{row}");
        assert!(["as is", "mirrored"].contains(&row["retrieved_view"].as_str().unwrap()), "{row}");
        assert!(["as is", "mirrored"].contains(&row["nearest_wrong"]["view"].as_str().unwrap()), "{row}");
    }
    // With the only other pictures of a label gone, its query has no right answer: a view of itself would be one.
    for variant in 1..6 {
        fs::remove_file(sandbox.path(&format!("pictures/class-4/{variant}.png"))).unwrap();
    }
    sandbox.run(&format!("index pictures --gallery few {ENCODER} --views flips")).succeeds();
    let line = format!("certify pictures --gallery few {certify} --out alone");
    sandbox.run(&line).succeeds();
    let rows = json_lines(&sandbox.text("alone/certificates.jsonl"));
    let row = rows.iter().find(|row| row["label"] == "class-4").unwrap();
    for name in ["half-space", "vote", "pairwise"] {
        assert_eq!(row["certificates"][name]["verdict"], "misretrieved", "{row}");
    }
    sandbox.run(&format!("{line}-seeing --leave-one-out never")).succeeds();
    let rows = json_lines(&sandbox.text("alone-seeing/certificates.jsonl"));
    let row = rows.iter().find(|row| row["label"] == "class-4").unwrap();
    assert_eq!(row["retrieved"], row["identity"], "the planted fault must show");
}

#[test]
fn tables_explanations_and_the_report_say_which_view_was_nearest() {
    let sandbox = indexed_with("shifts");
    let line =
        format!("certify pictures --gallery gallery {ENCODER} --samples 200 --pilot 50 --out run --top-k 3");
    sandbox.run(&line).succeeds();
    let run: Value = serde_json::from_str(&sandbox.text("run/run.json")).unwrap();
    let gallery = run.pointer("/run/gallery").unwrap();
    assert_eq!((&gallery["items"], &gallery["views"]), (&json!(PICTURES), &json!(9)));
    // Recall@k counts items, so that there are no more ranks than wrong items.
    let most = |top_k: usize| {
        let certify =
            format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --limit 1");
        sandbox.run(&format!("{certify} --out most-{top_k} --top-k {top_k}"))
    };
    most(24).succeeds();
    most(25).fails(2, &["top_k is 25, wanted at most 24"]);
    let explained = sandbox.run("explain class-1/3.png --run run --engine rten").succeeds();
    explained.prints(&["retrieved     class-1/", ", view ", "views of an item", "its view", "theory 13"]);
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    for words in ["view: ", "30 items with 9 views each", "--views shifts"] {
        assert!(page.contains(words), "{words}");
    }
    let query = format!("query pictures/class-1/3.png --gallery gallery {ENCODER} --samples 200 --top-k 12");
    let found = sandbox.run(&format!("{query} --json")).succeeds().json();
    let items = found["items"].as_array().unwrap();
    let identities: BTreeSet<&str> = items.iter().filter_map(|item| item["identity"].as_str()).collect();
    assert_eq!((items.len(), identities.len()), (12, 12), "{found}");
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    for item in items {
        let row = item["row"].as_u64().unwrap() as usize;
        assert_eq!(item["view"].as_str(), stored.gallery.view(row), "{item}");
    }
    let lines = sandbox.run(&query).succeeds().out;
    let named = lines.lines().filter(|line| line.ends_with(')') && line.contains(".png  (")).count();
    assert_eq!(named, 12, "{lines}");
    // The whole gallery is the most that there is.
    let all = sandbox.run(&format!("{query}00 --json")).succeeds().json();
    assert_eq!(all["items"].as_array().unwrap().len(), PICTURES);
}

#[test]
fn exports_keep_the_views_and_imports_refuse_others() {
    let sandbox = indexed_with("flips");
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    sandbox
        .run("export gallery --parquet a.parquet --npy a.npy --labels a.txt --clip-retrieval clip")
        .succeeds();
    sandbox.run("export gallery --npy b.npy --labels b.txt --identities b-names.txt").succeeds();
    let content = |stored: &GalleryDirectory| {
        let row = |row: usize| (stored.gallery.identity(row).to_owned(), stored.gallery.label(row));
        (0..stored.gallery.len()).map(row).collect::<Vec<_>>()
    };
    for (flags, identities) in [
        ("--parquet a.parquet", true),
        ("--npy a.npy --labels a.txt", false),
        ("--npy b.npy --labels b.txt --identities b-names.txt", true),
        ("--clip-retrieval clip", true),
    ] {
        let run = sandbox.run(&format!("import {flags} --gallery back")).succeeds();
        assert_eq!(run.out, "back: 30 items of dimension 8\n", "{flags}");
        let back = GalleryDirectory::read(&sandbox.path("back")).unwrap();
        assert_eq!(back.gallery.vectors(), stored.gallery.vectors(), "{flags}");
        assert_eq!(back.gallery.view_names(), stored.gallery.view_names(), "{flags}");
        assert_eq!(back.manifest.provenance.views, stored.manifest.provenance.views, "{flags}");
        if identities {
            assert_eq!(content(&back), content(&stored), "{flags}");
            // The other forms have no place for the embeddings of clean pictures.
            let whole = flags.starts_with("--parquet");
            assert_eq!(back.digest() == stored.digest(), whole, "{flags}");
            assert_eq!(back.plain().is_some(), whole, "{flags}");
        } else {
            // Items are called by their numbers, and their views still belong together.
            assert_eq!(back.gallery.rows_of("29"), [58, 59]);
        }
        fs::remove_dir_all(sandbox.path("back")).unwrap();
    }
    // Rows of another item in between.
    let mut names: Vec<String> = sandbox.text("b-names.txt").lines().map(str::to_owned).collect();
    names.swap(1, 2);
    sandbox.write("b-names.txt", names.join("\n"));
    sandbox
        .run("import --npy b.npy --labels b.txt --identities b-names.txt --gallery back")
        .fails(2, &["row 1 of the gallery is of item", "wanted view `mirrored`"]);
    // A manifest of other views does not fit the items.
    let text = sandbox.text("gallery/items.jsonl").replacen("mirrored", "as is", 1);
    sandbox.write("gallery/items.jsonl", text);
    let certify = format!("certify pictures --gallery gallery {ENCODER} --samples 50 --out run");
    sandbox.run(&certify).fails(2, &["items.jsonl"]);
}

#[test]
fn without_views_nothing_is_written_about_them() {
    let sandbox = Sandbox::indexed();
    let line =
        format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --out run --jsonl");
    sandbox.run(&line).succeeds();
    for file in ["gallery/manifest.json", "gallery/items.jsonl", "run/certificates.jsonl", "run/run.json"] {
        assert!(!sandbox.text(file).contains("view"), "{file}");
    }
    assert_eq!(manifest(&sandbox)["format"], 4);
}

#[test]
fn an_interrupted_index_with_views_goes_on_and_another_set_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    fs::write(sandbox.path("pictures/class-3/5.png"), b"broken").unwrap();
    let index = format!("index pictures --gallery gallery {ENCODER} --samples 2 --views");
    sandbox.run(&format!("{index} flips")).fails(2, &["5.png"]);
    sandbox.run(&format!("{index} shifts --skip-broken")).fails(2, &["views"]);
    let run = sandbox.run(&format!("{index} flips --skip-broken")).succeeds();
    run.tells(&["were done before"]).prints(&["29 items with 2 views each"]);
}

#[test]
fn the_service_adds_and_removes_items_with_all_their_views() {
    let sandbox = indexed_with("flips");
    let all = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    let picture = sandbox.bytes("pictures/class-1/3.png");
    let identity = (0..all.gallery.len())
        .map(|row| all.gallery.identity(row))
        .find(|name| name.contains("class-1/3"))
        .unwrap();
    fs::remove_file(sandbox.path("pictures/class-1/3.png")).unwrap();
    fs::remove_dir_all(sandbox.path("gallery")).unwrap();
    sandbox.run(&format!("index pictures --gallery gallery {ENCODER} --views flips")).succeeds();
    let service = Service::start(&sandbox, "");
    let about = service.get("/v1/about").expect(200);
    assert_eq!(
        (&about["gallery"]["items"], &about["gallery"]["views"]),
        (&json!(PICTURES - 1), &json!(["as is", "mirrored"]))
    );
    let (kind, body) = form(&[("label", "class-1"), ("identity", identity)], &[&picture]);
    service.post_as("/v1/items", &kind, &body).expect(201);
    // Every view has the vector that `index` would give it.
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    assert_eq!((stored.gallery.item_count(), stored.gallery.len()), (PICTURES, 2 * PICTURES));
    let [rows, wanted] = [&stored, &all].map(|directory| directory.gallery.rows_of(identity));
    assert_eq!(rows.len(), 2);
    for (&row, &other) in rows.iter().zip(&wanted) {
        assert_eq!(stored.gallery.vector(row), all.gallery.vector(other));
    }
    let listed = service.get("/v1/items?limit=200").expect(200);
    assert_eq!(listed["total"], PICTURES);
    let names: BTreeSet<&str> =
        listed["items"].as_array().unwrap().iter().filter_map(|item| item["identity"].as_str()).collect();
    assert_eq!(names.len(), PICTURES);
    let counted: BTreeMap<String, u64> = service.get("/v1/labels").expect(200)["labels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|label| (label["label"].as_str().unwrap().to_owned(), label["items"].as_u64().unwrap()))
        .collect();
    assert_eq!(counted["class-1"], 6);
    let answer = service.post("/v1/query?samples=300&top_k=7", &picture).expect(200);
    let items = answer["items"].as_array().unwrap();
    let names: BTreeSet<&str> = items.iter().filter_map(|item| item["identity"].as_str()).collect();
    assert_eq!((items.len(), names.len()), (7, 7), "{answer}");
    assert!(names.contains(identity), "{answer}");
    let known = |item: &Value| ["as is", "mirrored"].contains(&item["view"].as_str().unwrap());
    assert!(items.iter().all(known), "{answer}");
    let removed = service.delete(&format!("/v1/items/{}", identity.replace('/', "%2F"))).expect(200);
    assert_eq!(removed["removed"], 2);
    assert_eq!(service.get("/v1/items").expect(200)["total"], PICTURES - 1);
    drop(service);
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    assert_eq!((stored.gallery.item_count(), stored.writes()), (PICTURES - 1, 2));
    // A run against the gallery as it has become.
    let line = format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --out run");
    sandbox.run(&line).succeeds();
}

#[test]
fn attacks_and_shared_runs_take_a_gallery_with_views() {
    let sandbox = indexed_with("flips");
    let certify = format!("pictures --gallery gallery {ENCODER} --samples 200 --pilot 50");
    sandbox.run(&format!("certify {certify} --out run --jsonl")).succeeds();
    sandbox.run(&format!("certify {certify} --jsonl --share shared")).succeeds();
    sandbox.run("worker --run shared --engine rten").succeeds();
    sandbox.run("merge --run shared --out merged").succeeds();
    assert_eq!(sandbox.text("run/certificates.jsonl"), sandbox.text("merged/certificates.jsonl"));
    let attack = "attack run --engine rten --queries 2 --steps 4 --restarts 1 --noise 8 --refinements 1 --judge-samples 200 \
                  --judge-pilot 50";
    sandbox.run(attack).succeeds();
    assert!(sandbox.text("run/attack.json").contains("\"plain_gallery\": \"clean\""));
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    let plain = stored.plain().unwrap();
    assert_eq!((plain.item_count(), plain.len()), (PICTURES, 2 * PICTURES));
}
