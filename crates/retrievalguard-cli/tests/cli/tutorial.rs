//! docs/tutorial.md, as it stands there: its commands run in one shell, in order, and say what the page says they do.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::export::blocks;
use crate::sandbox::Finished;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial.md");
const ENCODERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/encoders.md");

/// A line with every number replaced, because engines differ in last digits and attacks in their noise, and with single spaces.
fn pattern(line: &str) -> String {
    let mut found = String::new();
    for character in line.chars() {
        match character {
            '0'..='9' | '.' if found.ends_with('#') => {}
            '0'..='9' | '.' => found.push('#'),
            other => found.push(other),
        }
    }
    found.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_command_of_the_tutorial_works_and_prints_what_the_page_says() {
    let page = fs::read_to_string(PAGE).unwrap();
    let commands = blocks(&page, "sh");
    let shown = blocks(&page, "text");
    assert!(commands.len() >= 14 && shown.len() >= 8, "{} and {}", commands.len(), shown.len());
    for word in
        ["check-model", "recommend", "index", "certify", "attack", "report", "serve", "query", "curl", "kill"]
    {
        assert!(commands.iter().any(|block| block.contains(word)), "no block has `{word}`");
    }

    // Whatever fails ends the shell, and the service with it.
    let script =
        format!("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}", commands.concat());
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_retrievalguard")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-xc", &script]).current_dir(folder.path()).env("PATH", path).env_remove("RUST_LOG");
    let finished =
        Finished::new("(docs/tutorial.md)", bash.stdin(Stdio::null()).output().unwrap()).succeeds();

    let printed: Vec<_> = finished.out.lines().map(pattern).collect();
    for line in shown.iter().flat_map(|block| block.lines()) {
        assert!(printed.contains(&pattern(line)), "the page shows `{line}`\n{finished}");
    }
    assert!(folder.path().join("mine/run/report.html").exists());
    let config = fs::read_to_string(folder.path().join("mine/encoder.toml")).unwrap();
    for line in blocks(&page, "toml").concat().lines() {
        assert!(
            config.lines().any(|found| found == line),
            "mine/encoder.toml has no line `{line}`\n{config}"
        );
    }
}

/// `the_snippets_of_the_page_export_encoders_that_may_be_certified` runs that call.
#[test]
fn the_tutorial_exports_by_the_call_that_the_page_about_encoders_shows() {
    let page = fs::read_to_string(PAGE).unwrap();
    let encoders = fs::read_to_string(ENCODERS).unwrap();
    let [snippet] = &blocks(&page, "python")[..] else { panic!("wanted one block of Python") };
    let (_, call) = snippet.split_once("torch.onnx.export(").unwrap();
    assert!(encoders.contains(call), "docs/encoders.md has no call `{call}`");
}
