//! The page about a run: complete, the same bytes each time, and looked at in a browser.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::seal;
use serde_json::json;

use crate::sandbox::{ENCODER, PICTURES, Sandbox, json_lines};

const FIGURES: [&str; 4] = ["certified-recall", "radius-histogram", "radius-against-samples", "verdicts"];

/// The pictures certified against themselves, each query without its own item.
fn certified() -> Sandbox {
    let sandbox = Sandbox::indexed();
    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --samples 60 --pilot 40 --certificate all --jsonl --out run"
    );
    sandbox.run(&line).succeeds();
    sandbox
}

#[test]
fn a_report_is_one_page_and_the_figures_beside_it() {
    let sandbox = certified();
    sandbox.run("report run").succeeds().prints(&["run/report.html"]);
    let page = sandbox.text("run/report.html");
    for words in [
        "What is certified",
        "σ = 0.1",
        "at most α = 0.01.",
        "certify pictures --gallery gallery",
        "retrievalguard index pictures --model",
        "&amp;&amp; retrievalguard report run",
        "among the items other than the query's own picture",
        "class-0/0.png",
        "default-src &#39;none&#39;",
    ] {
        let found = page.contains(words) || page.contains(&words.replace("&#39;", "'"));
        assert!(found, "`{words}` is missing");
    }
    assert_eq!(page.matches("data-label=\"query\"").count(), PICTURES);
    assert_eq!(page.matches("<code>cd ").count(), 3, "each command says where it is given");
    assert!(!page.contains("could not be read"), "a picture is missing");
    let figures: Vec<Vec<u8>> = FIGURES
        .iter()
        .flat_map(|name| ["svg", "png"].map(|ending| sandbox.bytes(&format!("run/figures/{name}.{ending}"))))
        .collect();
    assert!(figures.iter().all(|bytes| bytes.len() > 1_000));

    // Nothing but the run decides the bytes.
    sandbox.run("report run --out again.html").succeeds().prints(&["again.html"]);
    assert!(sandbox.text("again.html") == page);
    let run: serde_json::Value = serde_json::from_slice(&sandbox.bytes("run/run.json")).unwrap();
    for key in ["/run/model", "/run/contract", "/run/gallery/digest", "/run/queries"] {
        let digest = run.pointer(key).unwrap().as_str().unwrap();
        assert!(page.contains(digest), "the digest {key} is missing");
    }
    sandbox.run("report run --most 4 --out short.html").succeeds();
    assert!(sandbox.text("short.html").contains("The first 4 of 30 queries"));
}

#[test]
fn what_is_gone_since_the_run_is_marked_and_what_is_wrong_is_refused() {
    let sandbox = certified();
    fs::remove_file(sandbox.path("pictures/class-0/0.png")).unwrap();
    sandbox.write("pictures/class-1/0.png", "no picture");
    let told = sandbox.run("report run").succeeds().tells(&["pictures could not be read any more"]);
    let page = sandbox.text("run/report.html");
    assert!(
        page.contains("the picture could not be read") && page.contains("could not be read any more"),
        "{told}"
    );
    // The same folder would make another gallery.
    assert!(page.contains("The command that made the gallery is not known"));
    assert!(!page.contains("retrievalguard index"));

    let config = sandbox.text("model/encoder.toml").replacen("normalise", "# another\nnormalise", 1);
    sandbox.write("model/encoder.toml", config.replacen("mean = [", "mean = [0.125, ", 1));
    sandbox.run("report run").succeeds().tells(&["Changed pictures are not shown"]);
    fs::remove_dir_all(sandbox.path("gallery")).unwrap();
    sandbox.run("report run").succeeds().tells(&["Items of the gallery are shown without pictures"]);

    sandbox.run("report pictures").fails(2, &["`pictures` is not a finished run of `certify`"]);
    sandbox.write("run/attack.json", "{}");
    let told = ["Attacks are not shown", "no digest of itself", "attack the run again"];
    sandbox.run("report run").succeeds().tells(&told);
    sandbox.write("run/attack.json", seal(&json!({})).unwrap());
    sandbox
        .run("report run")
        .fails(2, &["`run/attack.json` cannot be shown", "it does not hold results of an attack"]);
}

/// Attacks on the certified queries, made up: they hold inside and break at twice the radius.
fn attack(sandbox: &Sandbox, run: &str) -> serde_json::Value {
    let rows = json_lines(&sandbox.text(&format!("{run}/certificates.jsonl")));
    let radius = |row: &serde_json::Value| row["certificates"]["half-space"]["radius"].as_f64();
    let queries: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let (radius, identity) = (radius(row)?, &row["identity"]);
            let attempt = |factor: f64, outcome: &str| json!({ "factor": factor, "norm": factor * radius, "outcome": outcome });
            Some(json!({
                "identity": identity, "radius": radius, "plain_right": true,
                "smoothed": [attempt(0.5, "held"), attempt(2.0, "broken")], "smallest_break": 2.0 * radius,
                "plain": [attempt(0.5, "broken"), attempt(2.0, "broken")], "plain_smallest_break": 0.5 * radius,
            }))
        })
        .collect();
    json!({
        "table": Digest::of_file(&sandbox.path(&format!("{run}/certificates.parquet"))).unwrap(),
        "certificate": "half-space", "alpha": 0.01, "judge_alpha": 0.001, "factors": [0.5, 2.0], "mode": "white-box",
        "pixels": "free", "plain_gallery": "clean", "budget": { "steps": 1, "restarts": 1 }, "queries": queries,
    })
}

#[test]
fn only_attacks_on_this_very_table_are_shown() {
    let sandbox = certified();
    let right = attack(&sandbox, "run");
    sandbox.write("run/attack.json", seal(&right).unwrap());
    sandbox.run("report run").succeeds();
    let page = sandbox.text("run/report.html");
    assert!(page.contains("id=\"attacks\"") && page.contains("may leave the range of pixels"));

    let mut other = right.clone();
    other["table"] = json!("ab".repeat(32));
    let mut nameless = right.clone();
    nameless.as_object_mut().unwrap().remove("table");
    for (attack, found) in [(other, "names the table abababababababab…"), (nameless, "names no table")] {
        sandbox.write("run/attack.json", seal(&attack).unwrap());
        let told = [found, "note: Attacks are not shown: `run/attack.json`", "attack the run again"];
        sandbox.run("report run").succeeds().tells(&told);
        let page = sandbox.text("run/report.html");
        assert!(page.contains("Attacks are not shown") && !page.contains("id=\"attacks\""), "{found}");
    }
    let mut foreign = right;
    foreign["certificate"] = json!("quarter-space");
    sandbox.write("run/attack.json", seal(&foreign).unwrap().replace("quarter", "corner"));
    sandbox
        .run("report run")
        .fails(2, &["`run/attack.json` cannot be shown", "failed verification", "sealed with"]);
    sandbox.write("run/attack.json", seal(&foreign).unwrap());
    sandbox
        .run("report run")
        .fails(2, &["`run/attack.json` attacks the certificate `quarter-space`, wanted one of"]);
}

/// Python with playwright, and Chromium; otherwise says what is skipped, or fails if nothing may be.
pub(crate) fn browser(test: &str) -> Option<PathBuf> {
    let executable = std::env::current_exe().unwrap();
    let target = executable.ancestors().find(|folder| folder.join("venv/bin/python").exists());
    let python = target.map(|folder| folder.join("venv/bin/python"));
    let playwright = |python: &PathBuf| {
        let found = Command::new(python).args(["-c", "import playwright"]).output();
        found.is_ok_and(|output| output.status.success())
    };
    let missing = match python.filter(playwright) {
        None => "there is no playwright in target/venv",
        Some(_) if !Path::new("/usr/bin/chromium").exists() => "there is no /usr/bin/chromium",
        found => return found,
    };
    let required = std::env::var_os("RETRIEVALGUARD_REQUIRE_BROWSER").is_some_and(|value| value == "1");
    assert!(!required, "{test}: {missing}, and RETRIEVALGUARD_REQUIRE_BROWSER is 1");
    let line = format!("skipped: {test}: {missing} (1 test not run)\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

#[test]
fn a_browser_shows_the_report_without_a_fault() {
    let Some(python) = browser("a_browser_shows_the_report_without_a_fault") else { return };
    let sandbox = Sandbox::new();
    sandbox.run("demo --out demo --queries 12 --samples 100 --pilot 60 --engine rten").succeeds();
    let attack = attack(&sandbox, "demo/certificates");
    sandbox.write("demo/certificates/attack.json", seal(&attack).unwrap());
    sandbox.run("report demo/certificates").succeeds();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/open_report.py");
    let screenshots = python.ancestors().nth(3).unwrap().join("browser");
    let opened = Command::new(&python)
        .arg(script)
        .args([sandbox.path("demo/certificates/report.html"), screenshots.clone()])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&opened.stdout) + String::from_utf8_lossy(&opened.stderr);
    assert!(opened.status.success(), "{words}");
    for name in ["desktop", "phone", "dark", "print"] {
        assert!(screenshots.join(format!("{name}.png")).exists(), "{name}\n{words}");
    }
}
