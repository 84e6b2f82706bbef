//! The table is a function of inputs, parameters and engine: not of threads, batches or interruptions.

use std::fs;
use std::io::Read;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use crate::sandbox::{ENCODER, PICTURES, Sandbox, json_lines, onnxruntime};

#[test]
fn threads_and_batches_do_not_change_a_byte() {
    let sandbox = Sandbox::indexed();
    let gallery = sandbox.bytes("gallery/vectors.npy");
    let line =
        format!("certify pictures --gallery gallery {ENCODER} --certificate all --samples 150 --pilot 50");
    let mut wanted = None;
    for (threads, batch) in [(1, 64), (2, 1), (2, 7), (1, 256)] {
        let index = format!("index pictures --gallery again {ENCODER} --threads {threads} --batch {batch}");
        sandbox.run(&index).succeeds();
        assert_eq!(sandbox.bytes("again/vectors.npy"), gallery, "{threads} threads, batch {batch}");
        let out = format!("run-{threads}-{batch}");
        sandbox.run(&format!("{line} --threads {threads} --batch {batch} --out {out}")).succeeds();
        let found = sandbox.bytes(&format!("{out}/certificates.parquet"));
        let wanted = wanted.get_or_insert_with(|| found.clone());
        assert!(*wanted == found, "{threads} threads, batch {batch}");
    }
}

/// The scale of its eight bits is that of the whole batch, so it is never given one.
#[test]
fn no_batch_changes_a_radius_of_an_encoder_that_couples_its_batch() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    sandbox.add_model("dynamic_quantised.onnx");
    let encoder = "--model model/dynamic_quantised.onnx --sigma 0.1 --engine rten";
    let index = format!("index pictures --gallery gallery {encoder} --samples 20");
    let why = "note: every picture goes through the encoder by itself, which is slower: the pictures of a batch are coupled by node `levels` (DynamicQuantizeLinear)";
    sandbox.run(&index).succeeds().tells(&[why]);
    let line = format!("certify pictures --gallery gallery {encoder} --samples 100 --pilot 20 --every 5");
    let mut wanted = None;
    for batch in [1, 3, 64] {
        sandbox.run(&format!("{line} --batch {batch} --out run-{batch}")).succeeds().tells(&[why]);
        let found = sandbox.bytes(&format!("run-{batch}/certificates.parquet"));
        assert!(*wanted.get_or_insert_with(|| found.clone()) == found, "batch {batch}");
    }
    // What was found is kept with the run.
    let run: serde_json::Value = serde_json::from_str(&sandbox.text("run-3/run.json")).unwrap();
    let check = &run["run"]["encoder_check"];
    assert_eq!(
        (&check["passes"], &check["graph"]["verdict"]),
        (&"one-by-one".into(), &"coupled".into()),
        "{run}"
    );
}

#[test]
fn how_a_path_is_spelled_changes_no_byte_of_the_table() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let whole = sandbox.path("").display().to_string();
    let mut wanted: Option<[Vec<u8>; 2]> = None;
    for (place, folder) in ["", "./", "pictures/../", &whole].into_iter().enumerate() {
        let gallery = format!("gallery-{place}");
        sandbox
            .run(&format!("index {folder}pictures --gallery {folder}{gallery} {ENCODER} --samples 20"))
            .succeeds();
        let out = format!("run-{place}");
        let line = format!(
            "certify {folder}pictures --gallery {folder}{gallery} {ENCODER} --samples 60 --pilot 20 --out {folder}{out}"
        );
        sandbox.run(&line).succeeds();
        // Each knows where its own pictures lie.
        let report = sandbox.run(&format!("report {out}")).succeeds();
        assert!(!report.errors.contains("could not be read"), "{report}");
        let found = ["certificates.parquet", "run.json"].map(|name| sandbox.bytes(&format!("{out}/{name}")));
        let wanted = wanted.get_or_insert_with(|| found.clone());
        assert!(*wanted == found, "`{folder}` makes another table");
    }
}

/// A child that is killed if the test fails.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Waits until the journal at `path` has at least so many records; its header has three lines.
    fn wait_for_records(&mut self, sandbox: &Sandbox, path: &str, records: usize) {
        self.wait_for_lines(sandbox, path, 3 + records);
    }

    pub(crate) fn start(sandbox: &Sandbox, line: &str) -> Self {
        Self(sandbox.start(line))
    }

    /// Waits until the file at `path` has at least so many lines.
    pub(crate) fn wait_for_lines(&mut self, sandbox: &Sandbox, path: &str, wanted: usize) {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let lines = fs::read(sandbox.path(path))
                .unwrap_or_default()
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count();
            if lines >= wanted {
                return;
            }
            assert!(self.0.try_wait().unwrap().is_none(), "the run ended before it could be interrupted");
            assert!(Instant::now() < patience, "no progress in {path}");
            sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let status = self.0.wait().unwrap().code();
        let mut errors = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status, errors)
    }
}

/// Some moment within the work on a query.
fn arbitrary_moment() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    sleep(Duration::from_micros(u64::from(now.subsec_nanos()) % 20_000));
}

/// Takes some seconds, so that there is something to interrupt.
const SLOW: &str = "--certificate half-space,vote --samples 1500 --pilot 50";

#[test]
fn a_run_killed_twice_ends_with_the_bytes_of_one_that_was_not() {
    let sandbox = Sandbox::indexed();
    let line = format!("certify pictures --gallery gallery {ENCODER} {SLOW}");
    sandbox.run(&format!("{line} --out whole")).succeeds();

    let line = format!("{line} --out cut");
    let mut done = 0;
    for more in [3, 5] {
        let mut run = Running::start(&sandbox, &line);
        run.wait_for_records(&sandbox, "cut/certify.journal", done + more);
        arbitrary_moment();
        run.signal("-KILL");
        let (status, errors) = run.finish();
        assert_eq!(status, None, "{errors}");
        assert!(!sandbox.path("cut/certificates.parquet").exists());
        done += more;
    }
    // Half a record, as a power cut leaves it.
    let mut journal = sandbox.bytes("cut/certify.journal");
    journal.extend_from_slice(b"99 0123456789abcdef {\"que");
    sandbox.write("cut/certify.journal", journal);

    let run = sandbox.run(&line).succeeds().tells(&["queries were done before and were not certified again"]);
    let resumed = json_lines(&sandbox.text("cut/run-log.jsonl"))[0]["resumed"].as_u64().unwrap();
    assert!((done as u64..PICTURES as u64).contains(&resumed), "{resumed}\n{run}");
    assert!(run.errors.contains(&format!("{resumed} queries were done before")), "{run}");
    let name = "certificates.parquet";
    assert!(sandbox.bytes(&format!("cut/{name}")) == sandbox.bytes(&format!("whole/{name}")), "{run}");

    // Once more: nothing is left to do, and the bytes stay.
    let run = sandbox.run(&format!("{line} --threads 1 --batch 5")).succeeds();
    let run = run.tells(&["30 queries were done before"]);
    assert!(sandbox.bytes(&format!("cut/{name}")) == sandbox.bytes(&format!("whole/{name}")), "{run}");
}

#[test]
fn an_index_that_was_killed_goes_on_where_it_stopped() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let line = format!("index pictures {ENCODER} --samples 2000");
    sandbox.run(&format!("{line} --gallery whole")).succeeds();
    let line = format!("{line} --gallery cut");
    let mut run = Running::start(&sandbox, &line);
    run.wait_for_records(&sandbox, "cut/index.journal", 4);
    run.signal("-KILL");
    assert_eq!(run.finish().0, None);
    let query = format!("query pictures/class-0/0.png --gallery cut {ENCODER}");
    sandbox.run(&query).fails(2, &["`cut` has no manifest.json", "interrupted"]);
    sandbox.run(&line).succeeds().tells(&["pictures were done before and were not embedded again"]);
    for file in ["vectors.npy", "plain.npy", "items.jsonl", "manifest.json"] {
        assert_eq!(sandbox.bytes(&format!("cut/{file}")), sandbox.bytes(&format!("whole/{file}")), "{file}");
    }
}

#[test]
fn ctrl_c_stops_after_the_queries_in_hand_and_two_runs_do_not_mix() {
    let sandbox = Sandbox::indexed();
    let line = format!("certify pictures --gallery gallery {ENCODER} {SLOW} --out run");
    let mut run = Running::start(&sandbox, &line);
    run.wait_for_records(&sandbox, "run/certify.journal", 2);
    // Held fast, so that it cannot end while the other one tries.
    run.signal("-STOP");
    sandbox.run(&line).fails(1, &["run/certify.journal", "in use by another process"]);
    run.signal("-INT");
    run.signal("-CONT");
    let (status, errors) = run.finish();
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("of 30; the same command continues from there"), "{errors}");

    let another = |flags: &str, words: &[&str]| {
        let run = sandbox.run(&format!("{line} {flags}")).fails(2, words);
        run.tells(&["`run/certify.journal` belongs to another run", "hint: write to another directory"]);
    };
    another("--alpha 0.05", &["alpha is 0.01, wanted 0.05"]);
    another("--samples 70", &["samples is 1500, wanted 70"]);
    another("--seed 1", &["seed is \"0\", wanted \"1\""]);
    another("--limit 4", &["queries is "]);
    another("--leave-one-out never", &["leave_one_out is 30, wanted 0"]);
    another("--alpha 0.05 --pilot 9", &["alpha is 0.01, wanted 0.05; pilot is 50, wanted 9"]);
    sandbox.run(&line).succeeds().tells(&["queries were done before"]);
}

#[test]
fn a_run_cannot_be_resumed_with_another_sigma() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    // A gallery of clean pictures serves every noise level.
    sandbox.run(&format!("index pictures --gallery clean {ENCODER} --samples 0")).succeeds();
    let line =
        format!("certify pictures --gallery clean {ENCODER} --samples 50 --pilot 20 --limit 4 --out run");
    sandbox.run(&line).succeeds();
    let run = sandbox.run(&format!("{line} --sigma 0.2"));
    run.fails(2, &["`run/certify.journal` belongs to another run: sigma is 0.1, wanted 0.2", "hint: "]);
}

#[test]
fn a_run_cannot_be_resumed_with_another_engine() {
    let Some(engine) = onnxruntime("a_run_cannot_be_resumed_with_another_engine") else { return };
    let sandbox = Sandbox::indexed();
    let line = "certify pictures --gallery gallery --model model/convolutional.onnx --sigma 0.1 --samples 50 \
                --pilot 20 --limit 4 --out run";
    sandbox.run(&format!("{line} --engine rten")).succeeds();
    let run = sandbox.run(&format!("{line} {engine}"));
    run.fails(2, &["belongs to another run: engine is \"rten ", "wanted \"onnxruntime 1."]);
    // Nor does threading under onnxruntime change a byte.
    let mut tables = Vec::new();
    for (out, flags) in [("one", "--threads 1 --batch 7"), ("two", "--threads 2 --batch 64")] {
        sandbox.run(&format!("{line} {engine} {flags} --out {out}")).succeeds();
        tables.push(sandbox.bytes(&format!("{out}/certificates.parquet")));
    }
    assert!(tables[0] == tables[1]);
}
