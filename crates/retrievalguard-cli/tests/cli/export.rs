//! The export snippets of docs/encoders.md, as they stand there: run, and the program takes what they wrote.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::sandbox::Sandbox;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/encoders.md");

/// The interpreter of `target/torch-venv`; `None` where that may be missing and is.
fn torch(test: &str) -> Option<PathBuf> {
    let executable = std::env::current_exe().unwrap();
    let places = executable.ancestors().map(|folder| folder.join("torch-venv/bin/python"));
    let found = places.into_iter().find(|python| python.exists());
    if found.is_none() {
        let required = std::env::var("RETRIEVALGUARD_REQUIRE_TORCH").is_ok_and(|value| value == "1");
        assert!(!required, "{test}: there is no target/torch-venv, and RETRIEVALGUARD_REQUIRE_TORCH is 1");
        let line = format!("skipped: {test}: there is no target/torch-venv (1 test not run)\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}

/// What stands between the fences of a language.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = text.split(&fence).skip(1);
    parts.map(|part| part.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_snippets_of_the_page_export_encoders_that_may_be_certified() {
    let page = fs::read_to_string(PAGE).unwrap();
    let snippets = blocks(&page, "python");
    assert_eq!(snippets.len(), 2);
    for (snippet, words) in
        snippets.iter().zip([["torchvision", "torch.onnx.export"], ["timm.", "torch.onnx.export"]])
    {
        assert!(words.iter().all(|word| snippet.contains(word)), "{snippet}");
    }
    let Some(python) = torch("the_snippets_of_the_page_export_encoders_that_may_be_certified") else {
        return;
    };
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    for (snippet, name, dimension) in
        [(&snippets[0], "resnet18", "dimension     512"), (&snippets[1], "mobilenet", "dimension     1024")]
    {
        let done =
            Command::new(&python).args(["-c", snippet]).current_dir(sandbox.path("")).output().unwrap();
        assert!(done.status.success(), "{snippet}\n{}", String::from_utf8_lossy(&done.stderr));
        let line = format!("check-model pictures --limit 4 --model {name}/encoder.onnx --engine rten");
        sandbox
            .run(&line)
            .succeeds()
            .prints(&["every embedding is a function of its picture alone", dimension]);
    }
}
