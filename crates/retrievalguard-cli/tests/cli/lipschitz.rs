//! `check-model --lipschitz` and `copy-encoder`: constants that are computed, never believed.

use crate::sandbox::Sandbox;

#[test]
fn the_copy_encoder_is_written_and_its_constant_is_found_to_be_one() {
    let sandbox = Sandbox::new();
    let run = sandbox.run("copy-encoder --out copies --size 32 --grid 8").succeeds();
    run.prints(&["copies/encoder.onnx: 192 numbers per picture", "at most 1.0000000"]);
    let run = sandbox.run("check-model --lipschitz --model copies/encoder.onnx").succeeds();
    run.prints(&["Lipschitz constant   at most 1.0000000", "forward error in f64", "forward error in f32"]);
    let answer = sandbox.run("check-model --lipschitz --model copies/encoder.onnx --json").succeeds().json();
    assert_eq!(answer["verdict"], "bounded");
    let constant = answer["constant"].as_f64().unwrap();
    assert!((0.999_999..=1.000_000_1).contains(&constant), "{answer}");
    sandbox.run("copy-encoder --out grey --size 30 --grid 5 --grey").succeeds().prints(&["25 numbers"]);
    sandbox.run("copy-encoder --out odd --size 224 --grid 30").fails(2, &["a grid of 30", "such as 28"]);

    // What divides pixels belongs to the encoder: a quarter makes it four times as fast.
    let config = std::fs::read_to_string(sandbox.path("copies/encoder.toml")).unwrap();
    let steep = config.replace("std = [1.0, 1.0, 1.0]", "std = [1.0, 0.25, 1.0]");
    assert_ne!(steep, config);
    sandbox.write("copies/encoder.toml", &steep);
    let run = sandbox.run("check-model --lipschitz --model copies/encoder.onnx").succeeds();
    run.prints(&["input.std", "preprocessing", "at most 4.0000000"]);
    // Nothing that the config says about a constant is read.
    sandbox.write("copies/encoder.toml", format!("{config}lipschitz = 0.001\n"));
    sandbox
        .run("check-model --lipschitz --model copies/encoder.onnx")
        .fails(2, &["unknown field `lipschitz`"]);
}

#[test]
fn an_encoder_without_a_bound_is_refused_with_the_first_reason() {
    let sandbox = Sandbox::new();
    let line = "check-model --lipschitz --model model/convolutional.onnx";
    sandbox.run(line).fails(2, &["no Lipschitz bound", "length 1"]);
    sandbox.run(&format!("{line} pictures")).fails(2, &["cannot be used with"]);
    sandbox.run("check-model --model model/convolutional.onnx").fails(2, &["PICTURES"]);
}
