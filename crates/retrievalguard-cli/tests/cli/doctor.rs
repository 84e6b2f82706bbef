//! What the program says of itself, and where it finds its engine.

use crate::sandbox::Sandbox;

#[test]
fn the_doctor_names_the_engine_and_fails_where_none_is() {
    let sandbox = Sandbox::new();
    let run = sandbox.run("doctor --engine rten").succeeds();
    assert!(run.out.ends_with('\n'), "{run}");
    run.prints(&["engine          rten", "cores", "instructions", "advice"]);
    let report = sandbox.run("doctor --engine rten --json").succeeds().json();
    assert_eq!(report["engine"]["engine"], "rten");
    let run = sandbox.run("doctor --engine onnxruntime --onnxruntime /nowhere/lib.so");
    run.fails(2, &["no engine"]).prints(&["/nowhere/lib.so", "pip install onnxruntime"]);
}

#[test]
fn the_doctor_says_what_the_program_was_built_from_and_with() {
    let sandbox = Sandbox::new();
    let chosen = [("train", cfg!(feature = "train")), ("cloud", cfg!(feature = "cloud"))];
    let chosen: Vec<&str> = chosen.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    let commit = option_env!("RETRIEVALGUARD_COMMIT");
    let features = if chosen.is_empty() { "none".to_owned() } else { chosen.join(" ") };
    sandbox.run("doctor --engine rten").succeeds().prints(&[
        &format!("retrievalguard  {}\n", env!("CARGO_PKG_VERSION")),
        &format!("commit          {}", commit.unwrap_or("unknown: not built as a release")),
        &format!("features        {features}\n"),
        "engines         onnxruntime rten double\n",
    ]);
    let report = sandbox.run("doctor --engine rten --json").succeeds().json();
    assert_eq!(report["build"]["commit"].as_str(), commit);
    assert_eq!(report["build"]["features"].as_array().unwrap().len(), chosen.len());
    let version = sandbox.run("--version").succeeds().out;
    assert_eq!(version, format!("retrievalguard {}\n", env!("CARGO_PKG_VERSION")));
}

#[cfg(unix)]
#[test]
fn the_python_beside_the_program_is_asked_before_the_one_on_the_path() {
    use std::env::{consts, var};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    let sandbox = Sandbox::new();
    // As pip lays it out: interpreter and command in one folder. The libraries are none, so it is told of both why.
    let library = format!("{}onnxruntime{}", consts::DLL_PREFIX, consts::DLL_SUFFIX);
    for place in ["own", "other"] {
        sandbox.write(&format!("{place}/package/capi/{library}"), "no library");
        let package = sandbox.path(&format!("{place}/package"));
        sandbox.write(&format!("{place}/bin/python3"), format!("#!/bin/sh\necho '{}'\n", package.display()));
        let python = sandbox.path(&format!("{place}/bin/python3"));
        fs::set_permissions(python, Permissions::from_mode(0o755)).unwrap();
    }
    let (built, program) = (env!("CARGO_BIN_EXE_retrievalguard"), sandbox.path("own/bin/retrievalguard"));
    fs::hard_link(built, &program).or_else(|_| fs::copy(built, &program).map(|_| ())).unwrap();

    let path = format!("{}:{}", sandbox.path("other/bin").display(), var("PATH").unwrap());
    let mut command = Command::new(&program);
    command.args(["doctor", "--json"]).env("PATH", path).env_remove("ORT_DYLIB_PATH");
    let output = command.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let attempts = report["attempts"].as_array().unwrap();
    let wanted =
        [("executable", "own/bin"), ("environment", "own/package/capi"), ("python", "other/package/capi")];
    for (attempt, (place, folder)) in attempts.iter().zip(wanted) {
        assert_eq!(attempt["place"], place, "{report}");
        assert!(attempt["reason"].as_str().unwrap().contains(folder), "{report}");
    }
    assert!(attempts.len() >= wanted.len(), "{report}");
}
