//! Choosing a noise level and a retriever: the estimate is held to what certifying then gives.

use std::fs;

use crate::sandbox::Sandbox;

const PRODUCTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/encoders/products/gdml-0.25/encoder.onnx");

#[test]
fn an_estimate_comes_near_to_what_is_certified_on_fresh_queries() {
    let sandbox = Sandbox::new();
    for part in ["gallery", "queries"] {
        sandbox.run(&format!("draw products --out products --part {part}")).succeeds();
    }
    // All pictures of a class together; two thirds of them are asked for to choose, the rest is certified.
    let mut pictures = Vec::new();
    for part in ["gallery", "queries"] {
        for class in fs::read_dir(sandbox.path(&format!("products/{part}"))).unwrap() {
            let class = class.unwrap();
            let Ok(files) = fs::read_dir(class.path()) else { continue };
            for file in files {
                let file = file.unwrap();
                let name = format!("{}/{part}-{}", class.file_name().display(), file.file_name().display());
                pictures.push((name, file.path()));
            }
        }
    }
    pictures.sort();
    assert_eq!(pictures.len(), 480);
    for (place, (name, path)) in pictures.iter().enumerate() {
        let picture = fs::read(path).unwrap();
        sandbox.write(&format!("all/{name}"), &picture);
        if place % 3 == 2 {
            sandbox.write(&format!("fresh/{name}"), &picture);
        }
    }
    let encoder = format!("--model {PRODUCTS} --engine rten");
    let line =
        format!("recommend all {encoder} --sigma 0.25,0.1 --queries 320 --samples 500 --figure choice.svg");
    let found = sandbox.run(&format!("{line} --json")).succeeds().json();
    assert_eq!((found["queries"].as_u64(), found["classes"].as_u64()), (Some(320), Some(60)));
    let settings = found["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 6);
    let chosen = &settings[found["recommended"].as_u64().unwrap() as usize];
    assert_eq!((&chosen["sigma"], &chosen["retriever"]), (&0.25.into(), &"pairwise".into()), "{found}");
    assert!(sandbox.text("choice.svg").contains("plain encoder"));

    // In words it says what to do next; batches and threads change nothing but the speed.
    let few = line.replace("--queries 320", "--queries 12 --copies 30 --gallery-copies 2");
    let words = sandbox.run(&few).succeeds();
    words.prints(&["recommended: sigma", "is an estimate", "retrievalguard index", "retrievalguard certify"]);
    let timeless = |line: &str| {
        let mut found = sandbox.run(&format!("{line} --json")).succeeds().json();
        found["passes_per_second"].take();
        found["settings"].as_array_mut().unwrap().iter_mut().for_each(|setting| {
            setting["seconds"].take();
        });
        found
    };
    assert_eq!(timeless(&few), timeless(&format!("{few} --batch 7 --threads 1")));

    sandbox.run(&format!("index all --gallery gallery --sigma 0.25 --samples 8 {encoder}")).succeeds();
    let line = "certify fresh --gallery gallery --certificate half-space,vote,pairwise";
    let run = sandbox.run(&format!("{line} --samples 500 --out run {encoder}")).succeeds();
    run.prints(&["of 160 certified"]);
    let table = sandbox.run("evaluate run/certificates.parquet --radii 0.125,0.25 --json").succeeds().json();
    for setting in settings.iter().filter(|setting| setting["sigma"] == 0.25) {
        let retriever = setting["retriever"].as_str().unwrap();
        let certificate = if retriever == "mean" { "half-space" } else { retriever };
        let curve = table["certificates"][certificate]["curve"].as_array().unwrap();
        for radius in [0.125, 0.25] {
            let at = |points: &[serde_json::Value]| {
                let near =
                    |point: &&serde_json::Value| (point["radius"].as_f64().unwrap() - radius).abs() < 1e-9;
                points.iter().find(near).expect("the radius is shown").clone()
            };
            let estimate = at(setting["certified"].as_array().unwrap())["estimate"].as_f64().unwrap();
            let certified = at(curve)["recall"]["share"].as_f64().unwrap();
            assert!(
                (estimate - certified).abs() < 0.05,
                "{retriever} at {radius}: estimated {estimate:.3}, certified {certified:.3}"
            );
        }
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let line = "recommend pictures --model model/convolutional.onnx --engine rten --copies 10";
    sandbox.run(&format!("{line} --sigma 0.1,-1")).fails(2, &["-1"]);
    sandbox.run(&format!("{line} --figure choice.pdf")).fails(2, &["choice.pdf", ".svg or .png"]);
    sandbox.run(&format!("{line} --recall-loss 2")).fails(2, &["from 0 to 1"]);
    sandbox.run(&format!("{line} --limit 6")).fails(2, &["all 6 pictures have the label", "two labels"]);
    sandbox.write("pictures/broken/one.png", b"no picture");
    sandbox.run(line).fails(2, &["one.png"]);
    sandbox.run(&format!("{line} --skip-broken")).succeeds().tells(&["skipped: broken/one.png"]);
}
