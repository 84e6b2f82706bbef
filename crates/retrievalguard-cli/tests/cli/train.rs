//! Training as users run it: from pictures to an encoder, interrupted, resumed, and what is refused.

use std::fs;
use std::path::Path;

use crate::same_bytes::Running;
use crate::sandbox::Sandbox;

/// A small encoder on thirty synthetic pictures.
pub(crate) const SMALL: &str = "--architecture small --engine rten --sigma 0.1 --set network.height=16 --set network.width=16 \
    --set network.dimension=8 --set network.filters=8 --set network.batch_norm=batch --set pictures.resize=16 \
    --set batch.classes=3 --set batch.pictures=4 --set evaluation.held_out=0.4 --set evaluation.samples=2 \
    --set evaluation.every=2 --set schedule.milestones=[]";

#[test]
fn pictures_become_an_encoder_that_every_other_command_takes() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let run = sandbox.run(&format!("train pictures --out run --epochs 2 {SMALL}")).succeeds();
    let run = run.tells(&[
        "note: recall is measured on 12 pictures of 2 classes, and among so few the right one is easily found",
        "after 0 epochs: held-out Recall@1",
        "after 2 epochs: held-out Recall@1",
        "loss 0.",
        "beta 1.",
    ]);
    let run = run.prints(&[
        "run/encoder.onnx: trained for ",
        "held-out Recall@1 ",
        "smoothed with sigma 0.1, on 12 pictures of 2 classes (untrained backbone: ",
    ]);
    // What the log says of the backbone before the first step is what anybody measures of it.
    let log: Vec<serde_json::Value> =
        sandbox.text("run/log.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The last step is told and logged, with one speed.
    let last = log.iter().rfind(|line| line["event"] == "step").unwrap();
    run.tells(&[&format!("{:.1} pictures per second", last["pictures_per_second"].as_f64().unwrap())]);
    let evaluations: Vec<_> = log.iter().filter(|line| line["event"] == "evaluation").collect();
    assert_eq!(evaluations.len(), 2);
    assert!(evaluations.iter().all(|line| line["classes"] == 2 && line["untrained"]["pictures"] == 12));
    assert_eq!(evaluations[0]["untrained"], evaluations[1]["untrained"]);
    assert!(!sandbox.path("run/untrained").exists());

    let model = "--model run/encoder.onnx --sigma 0.1 --engine rten";
    let recall = sandbox.run(&format!("recall pictures {model} --json")).succeeds().json();
    assert_eq!(recall["recall"]["pictures"], 30);
    for kind in ["clean", "smoothed"] {
        let share = recall["recall"][kind].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{kind}: {share}");
    }
    sandbox.run(&format!("recall pictures {model}")).succeeds().prints(&["30 pictures", "recall@1 smoothed"]);
    sandbox.run("check-model pictures --model run/encoder.onnx --engine rten").succeeds();
    sandbox.run(&format!("index pictures --gallery gallery {model} --samples 4")).succeeds();
    let certify = format!("certify pictures --gallery gallery {model} --samples 50 --pilot 20 --limit 2");
    sandbox.run(&certify).succeeds();

    let weights = format!("train pictures --out again --epochs 1 {SMALL} --weights run/network.safetensors");
    sandbox.run(&weights).succeeds().tells(&["`run/network.safetensors` were loaded"]);
}

#[test]
fn a_run_that_is_killed_and_interrupted_ends_with_the_bytes_of_one_that_was_not() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let flags = format!("{SMALL} --set evaluation.every=0 --epochs 400");
    sandbox.run(&format!("train pictures --out whole {flags}")).succeeds();

    let mut running = Running::start(&sandbox, &format!("train pictures --out parts {flags}"));
    running.wait_for_lines(&sandbox, "parts/log.jsonl", 5);
    let resume = "train pictures --out parts --resume --engine rten";
    sandbox.run(resume).fails(1, &["`parts` is in use by process "]);
    running.signal("-KILL");
    running.finish();
    let mut running = Running::start(&sandbox, resume);
    running.wait_for_lines(&sandbox, "parts/log.jsonl", 20);
    running.signal("-INT");
    let (status, errors) = running.finish();
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("stopped in epoch"), "{errors}");
    assert!(errors.contains("--resume goes on from there"), "{errors}");
    sandbox.run(resume).succeeds();
    for file in ["encoder.onnx", "network.safetensors", "checkpoint.safetensors"] {
        let same = sandbox.bytes(&format!("whole/{file}")) == sandbox.bytes(&format!("parts/{file}"));
        assert!(same, "{file}");
    }
    let steps = |run: &str| sandbox.text(&format!("{run}/log.jsonl")).lines().count();
    assert_eq!(steps("whole"), steps("parts"), "every line of the log stands there once");
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let train = |rest: &str| sandbox.run(&format!("train pictures {SMALL} {rest}"));
    sandbox.write("taken/recipe.toml", "");
    train("--out taken").fails(2, &["`taken` holds a run already", "hint: --resume continues that run"]);
    sandbox.run("train pictures --out nothing --resume").fails(2, &["there is no run to resume", "nothing"]);
    let changed = sandbox.run("train pictures --out nothing --resume --sigma 0.5");
    changed.fails(2, &["without flags that change it"]);
    train("--out new --set schedule.epoch=3").fails(2, &["epoch"]);
    train("--out new --backend cuda")
        .fails(2, &["backend cuda is not part of this program", "--features cuda"]);
    train("--out new --set batch.classes=4").fails(2, &["3 classes", "wanted at least the 4 of one batch"]);
    train("--out new --weights pictures/class-0/0.png").fails(2, &["pictures/class-0/0.png"]);
    train("--out new --weights nowhere.pth").fails(2, &["nowhere.pth"]);
    train("--out new --held-out pictures").fails(2, &["class `class-0` is both trained on and held out"]);
    train("--out new --set evaluation.held_out=0.1").fails(2, &["0 of 5 classes are held out"]);
    let foreign = fs::read(sandbox.path("model/convolutional.onnx")).unwrap();
    sandbox.write("foreign.safetensors", foreign);
    train("--out new --weights foreign.safetensors").fails(2, &["foreign.safetensors"]);
    assert!(!sandbox.path("new").exists(), "nothing is left of a run that did not begin");

    fs::write(sandbox.path("pictures/class-1/0.png"), "no picture").unwrap();
    train("--out broken").fails(2, &["pictures/class-1/0.png", "hint: --skip-broken"]);
    train("--out skipped --skip-broken --epochs 1").succeeds().tells(&["class-1/0.png", "1 broken pictures"]);
}

#[test]
fn a_recipe_is_shown_complete() {
    let sandbox = Sandbox::new();
    sandbox.run("train --help").succeeds().prints(&["Examples:", "retrievalguard train"]);
    let shown = sandbox.run("train --show-recipe --preset paper --sigma 0.5").succeeds();
    let shown = shown.prints(&["architecture = \"resnet-50\"", "sigma = 0.5", "milestones = ["]);
    sandbox.write("recipe.toml", &shown.out);
    let again = sandbox.run("train --show-recipe --recipe recipe.toml").succeeds();
    assert_eq!(again.out, shown.out);
}

#[test]
fn the_recipes_for_photographs_are_complete_and_change_their_presets() {
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/photographs/recipes");
    let sandbox = Sandbox::new();
    for (name, preset) in [
        ("metric", "small"),
        ("distilled", "distillation"),
        ("dm", "distillation"),
        ("lipschitz", "lipschitz"),
    ] {
        let plain = sandbox.run(&format!("train --preset {preset} --show-recipe")).succeeds();
        let recipe = recipes.join(format!("{name}.toml"));
        let changed = sandbox
            .run(&format!("train --preset {preset} --recipe {} --show-recipe", recipe.display()))
            .succeeds();
        assert!(changed.out != plain.out && changed.out.contains("pictures = "), "{name}\n{changed}");
    }
}
