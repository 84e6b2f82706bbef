//! Runs that many machines share, on one machine.

use std::time::{Duration, Instant};

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::{SEAL, seal};
use serde_json::{Value, json};

use crate::sandbox::{ENCODER, PICTURES, Sandbox};

/// Certifies alone, and shares the same run under several cuts; all tables must be equal.
fn shared(sandbox: &Sandbox, run: &str, flags: &str) {
    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --samples 300 --pilot 60 --certificate all --jsonl"
    );
    sandbox.run(&format!("{line} --share {run} {flags}")).succeeds();
}

fn single(sandbox: &Sandbox) {
    let line = format!(
        "certify pictures --gallery gallery {ENCODER} --samples 300 --pilot 60 --certificate all --jsonl"
    );
    sandbox.run(&format!("{line} --out single")).succeeds();
}

fn same_bytes(sandbox: &Sandbox, merged: &str) {
    for file in ["certificates.parquet", "certificates.jsonl", "run.json"] {
        assert!(
            sandbox.bytes(&format!("single/{file}")) == sandbox.bytes(&format!("{merged}/{file}")),
            "{file} of {merged} differs"
        );
    }
}

#[test]
fn any_cut_into_tasks_and_shares_gives_the_bytes_of_one_machine() {
    let sandbox = Sandbox::indexed();
    single(&sandbox);
    for (run, flags, shares) in [("whole", "", 3), ("cut", "--chunk 77", 4), ("one", "--chunk 300", 1)] {
        shared(&sandbox, run, flags);
        // Shares in another order than theirs, one of them twice.
        for index in (0..shares).rev().chain([0]) {
            let line = format!("worker --run {run} --engine rten --threads 1 --index {index} --of {shares}");
            sandbox.run(&line).succeeds();
        }
        sandbox.run(&format!("merge --run {run} --out merged-{run}")).succeeds();
        same_bytes(&sandbox, &format!("merged-{run}"));
        // What comes of it can be explained like any run.
        let explained = sandbox.run(&format!("explain class-1/2.png --run merged-{run} --engine rten"));
        explained.succeeds().prints(&["radius"]);
    }
    // The same run shared again is the same run; another one is told to go elsewhere.
    shared(&sandbox, "whole", "");
    let other = format!("certify pictures --gallery gallery {ENCODER} --samples 301 --share whole");
    sandbox.run(&other).fails(2, &["`whole` holds another run already"]);
}

#[test]
fn a_worker_that_is_killed_again_and_again_ends_with_the_same_bytes() {
    let sandbox = Sandbox::indexed();
    single(&sandbox);
    shared(&sandbox, "run", "--chunk 50");
    sandbox.run("merge --run run --out merged").fails(2, &["210 of 210 parts", "the pilot of query"]);
    let parts = |sandbox: &Sandbox| std::fs::read_dir(sandbox.path("run/parts")).map_or(0, Iterator::count);
    for wanted in [20, 60, 110] {
        let mut worker = sandbox.start("worker --run run --engine rten --threads 1");
        let started = Instant::now();
        while parts(&sandbox) < wanted && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(2));
        }
        worker.kill().unwrap();
        worker.wait().unwrap();
        assert!(parts(&sandbox) >= wanted, "{} parts", parts(&sandbox));
    }
    sandbox.run("worker --run run --engine rten").succeeds().tells(&["tasks were done before"]);
    sandbox.run("merge --run run --out merged").succeeds();
    same_bytes(&sandbox, "merged");
}

#[test]
fn schedulers_of_array_jobs_say_which_share_is_whose() {
    let sandbox = Sandbox::indexed();
    single(&sandbox);
    shared(&sandbox, "run", "");
    let with = |variables: &str, flags: &str| {
        sandbox.run_in_bash(
            &format!("{variables} exec \"$0\" \"$@\""),
            &format!("worker --run run --engine rten {flags}"),
        )
    };
    let tasks = PICTURES / 3;
    let done = format!("{tasks} of {PICTURES} tasks are done");
    with("SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_COUNT=3", "")
        .succeeds()
        .prints(&[&done]);
    with("SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_COUNT=3", "")
        .succeeds()
        .prints(&[&done]);
    with("JOB_COMPLETION_INDEX=2", "").fails(2, &["JOB_COMPLETION_INDEX", "--of"]);
    with("JOB_COMPLETION_INDEX=2", "--of 3").succeeds().prints(&[&done]);
    with("SLURM_ARRAY_TASK_ID=x", "").fails(2, &["SLURM_ARRAY_TASK_ID is `x`"]);
    sandbox.run("merge --run run --out merged").succeeds();
    same_bytes(&sandbox, "merged");
}

#[test]
fn what_does_not_fit_a_run_is_refused_by_name() {
    let sandbox = Sandbox::indexed();
    sandbox.run("worker --run nowhere").fails(2, &["`nowhere` has no shared.json"]);
    sandbox.run("worker --run ftp://host/run").fails(2, &["ftp://host/run"]);
    sandbox.run("worker --run x --tasks 5..2").fails(2, &["5..2"]);
    sandbox.run("worker --run x --index 3 --of 3").fails(2, &["share 3 of 3"]);
    shared(&sandbox, "run", "--chunk 100");
    let target =
        format!("certify pictures --gallery gallery {ENCODER} --target-radius 0.1 --share t --chunk 9");
    sandbox.run(&target).fails(2, &["--chunk"]);
    sandbox.run("worker --run run --engine rten").succeeds();
    // A part that was changed is told by name, and made again once it is gone.
    let mut part = sandbox.bytes("run/parts/000003-002");
    let last = part.len() - 1;
    part[last] ^= 1;
    sandbox.write("run/parts/000003-002", &part);
    sandbox.run("merge --run run --out merged").fails(2, &["parts/000003-002", "changed"]);
    std::fs::remove_file(sandbox.path("run/parts/000003-002")).unwrap();
    sandbox.run("worker --run run --engine rten").succeeds();
    sandbox.run("merge --run run --out merged").succeeds();
    single(&sandbox);
    same_bytes(&sandbox, "merged");
    // A gallery that is whole in itself, but not the run's.
    sandbox.run(&format!("index pictures --limit 29 --gallery other {ENCODER}")).succeeds();
    for file in ["vectors.npy", "items.jsonl", "manifest.json", "plain.npy"] {
        sandbox.write(&format!("run/gallery/{file}"), sandbox.bytes(&format!("other/{file}")));
    }
    sandbox.run("merge --run run --out elsewhere").fails(2, &["gallery/vectors.npy", "sha256"]);
    let mut picture = sandbox.bytes("run/pictures/000000");
    picture[20] ^= 1;
    sandbox.write("run/pictures/000000", &picture);
    std::fs::remove_file(sandbox.path("run/parts/000000-000")).unwrap();
    sandbox.run("worker --run run --engine rten").fails(2, &["pictures/000000", "sha256"]);
}

/// Changes something in the manifest of a shared run; `again` is whether it is sealed again.
fn edit_manifest(sandbox: &Sandbox, run: &str, again: bool, change: impl FnOnce(&mut Value)) {
    let name = format!("{run}/shared.json");
    let mut value: Value = serde_json::from_str(&sandbox.text(&name)).unwrap();
    change(&mut value);
    if again {
        value.as_object_mut().unwrap().remove(SEAL);
    }
    sandbox.write(&name, if again { seal(&value).unwrap() } else { value.to_string() });
}

#[test]
fn a_shared_run_that_was_edited_is_not_worked_on() {
    let sandbox = Sandbox::indexed();
    shared(&sandbox, "whole", "");
    type Change = fn(&mut Value);
    let changes: [(&str, Change, &str); 7] = [
        ("a label", |run| run["queries"][3]["label"] = json!("class-4"), "other queries"),
        ("an identity", |run| run["queries"][3]["identity"] = json!("class-0/9.png"), "other queries"),
        ("a box", |run| run["queries"][3]["crop"] = json!([0, 0, 9, 9]), "other queries"),
        ("a picture's sides", |run| run["queries"][3]["grey"] = json!([20, 40]), "other queries"),
        ("a row that is seen", |run| run["queries"][3]["excluded"] = json!([]), "must not see"),
        ("the noise", |run| run["run"]["sygma"] = json!(0.1), "description of the run"),
        ("the version", |run| run["run"]["tool"] = json!("0.0.1"), "it is of 0.0.1"),
    ];
    let whole = sandbox.bytes("whole/shared.json");
    for (what, change, told) in changes {
        for (again, told) in [(false, "failed verification"), (true, told)] {
            edit_manifest(&sandbox, "whole", again, change);
            for line in ["worker --run whole --engine rten", "merge --run whole --out merged"] {
                let run = sandbox.run(line).fails(2, &[told]);
                assert!(!sandbox.path("whole/parts").exists(), "{what}: {run}");
            }
            sandbox.write("whole/shared.json", &whole);
        }
    }

    // A gallery that is whole in itself, with its digests in a manifest that was sealed again: not the run's.
    sandbox.run(&format!("index pictures --gallery other {ENCODER} --samples 7")).succeeds();
    let files = ["vectors.npy", "items.jsonl", "manifest.json", "plain.npy"];
    let mut records = Vec::new();
    for file in files {
        let bytes = sandbox.bytes(&format!("other/{file}"));
        records.push(json!({ "bytes": bytes.len(), "sha256": Digest::of_bytes(&bytes) }));
        sandbox.write(&format!("whole/gallery/{file}"), bytes);
    }
    edit_manifest(&sandbox, "whole", true, |run| run["gallery"] = json!(records));
    sandbox.run("worker --run whole --engine rten").fails(2, &["other gallery than its description says"]);

    // What is changed everywhere is another run: parts of this one are nothing to it, and its table says so.
    shared(&sandbox, "first", "");
    sandbox.run("worker --run first --engine rten --tasks 0..3").succeeds();
    edit_manifest(&sandbox, "first", true, |run| run["run"]["seed"] = json!("9"));
    sandbox.run("worker --run first --engine rten").succeeds();
    sandbox.run("merge --run first --out merged").fails(2, &["parts/000000-000", "belongs to run"]);
    for part in ["000000-000", "000001-000", "000002-000"] {
        std::fs::remove_file(sandbox.path(&format!("first/parts/{part}"))).unwrap();
    }
    sandbox.run("worker --run first --engine rten").succeeds();
    sandbox.run("merge --run first --out merged").succeeds();
    let run: Value = serde_json::from_str(&sandbox.text("merged/run.json")).unwrap();
    assert_eq!(run["run"]["seed"], "9");
}

#[cfg(feature = "cloud")]
mod object_store {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A server that speaks S3, on a free port.
    struct ObjectServer {
        child: Child,
        port: u16,
    }

    impl Drop for ObjectServer {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl ObjectServer {
        /// Starts moto from `target/venv`, with a bucket called `bucket`; `None` where it may be missing and is.
        fn start(test: &str) -> Option<Self> {
            let python = crate::serve::python(test)?;
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = Command::new(&python);
            command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let server = Self { child, port };
            let started = Instant::now();
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(started.elapsed() < Duration::from_secs(60), "moto did not start");
                std::thread::sleep(Duration::from_millis(50));
            }
            let address = format!("http://127.0.0.1:{port}/bucket");
            let made = ureq::put(address).header("host", &format!("127.0.0.1:{port}")).send_empty();
            assert!(made.is_ok_and(|answer| answer.status().is_success()), "the bucket could not be made");
            Some(server)
        }

        /// How many parts of a run it holds.
        fn parts(&self, run: &str) -> usize {
            let address = format!("http://127.0.0.1:{}/bucket?list-type=2&prefix={run}/parts/", self.port);
            let found = ureq::get(address).call().unwrap().body_mut().read_to_string().unwrap();
            found.matches("<Key>").count()
        }

        /// The environment that leads to it, with a variable that is no text.
        fn environment(&self) -> String {
            format!(
                "AWS_ENDPOINT=http://127.0.0.1:{} AWS_ALLOW_HTTP=true AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret \
                 AWS_REGION=us-east-1 ODD=$'\\xff'",
                self.port
            )
        }
    }

    #[test]
    fn a_run_in_an_object_store_survives_its_workers() {
        let Some(server) = ObjectServer::start("a_run_in_an_object_store_survives_its_workers") else {
            return;
        };
        let sandbox = Sandbox::indexed();
        single(&sandbox);
        let script = format!("{} exec \"$0\" \"$@\"", server.environment());
        let run = |line: &str| sandbox.run_in_bash(&script, line);
        let certify = format!(
            "certify pictures --gallery gallery {ENCODER} --samples 300 --pilot 60 --certificate all --jsonl"
        );
        run(&format!("{certify} --share s3://bucket/runs/one --chunk 50")).succeeds().prints(&["210 tasks"]);
        // Killed halfway, twice; then two workers at once, whose shares overlap with what is done.
        let worker = "worker --run s3://bucket/runs/one --engine rten --threads 1 --cache cache";
        for wanted in [5, 40] {
            let mut child = Command::new("bash")
                .args(["-c", &script, env!("CARGO_BIN_EXE_retrievalguard")])
                .args(worker.split_whitespace())
                .current_dir(sandbox.path("."))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let started = Instant::now();
            while server.parts("runs/one") < wanted && started.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let found = server.parts("runs/one");
            assert!((wanted..210).contains(&found), "{found} parts, wanted from {wanted} to 209");
        }
        std::thread::scope(|scope| {
            for index in 0..2 {
                let (run, worker) = (&run, &worker);
                scope.spawn(move || run(&format!("{worker} --index {index} --of 2")).succeeds());
            }
        });
        run("merge --run s3://bucket/runs/one --out merged").succeeds();
        same_bytes(&sandbox, "merged");
        assert!(sandbox.path("cache").is_dir());
        run("worker --run s3://bucket/runs/none").fails(2, &["s3://bucket/runs/none", "no shared.json"]);
    }
}
