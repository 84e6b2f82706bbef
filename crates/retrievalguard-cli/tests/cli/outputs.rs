//! Outputs that cannot be written: full disks, limits, read-only places. All of them end with status 1.

use crate::sandbox::{ENCODER, Sandbox};

/// Lets no file grow beyond 1024 bytes.
const SMALL_FILES: &str = r#"ulimit -f 1; exec "$0" "$@""#;

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_that_names_the_file() {
    let sandbox = Sandbox::indexed();
    let full = ["/dev/full", "the disk is full"];
    sandbox.run("export gallery --npy /dev/full --labels l.txt").fails(1, &full);
    sandbox.run("export gallery --npy v.npy --labels /dev/full").fails(1, &full);
    sandbox.run("export gallery --parquet /dev/full").fails(1, &full);
    let line = format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --limit 2");
    std::os::unix::fs::symlink("/dev/full", sandbox.path("run-log.jsonl")).unwrap();
    sandbox.run(&format!("{line} --out .")).fails(1, &["run-log.jsonl", "the disk is full"]);

    let full = ["`standard output` cannot be written: the disk is full"];
    for line in ["doctor --engine rten", "evaluate certificates.parquet", "completions bash"] {
        sandbox.run_in_bash(r#"exec "$0" "$@" > /dev/full"#, line).fails(1, &full);
    }
    // A reader that has seen enough is no failure, and nobody listening to words is none either.
    sandbox.run_in_bash(r#"set -o pipefail; "$0" "$@" | head -c 10"#, "completions bash").succeeds();
    let index = format!("index pictures --gallery again {ENCODER}");
    sandbox.run_in_bash(r#"exec "$0" "$@" 2> /dev/full"#, &index).succeeds();
    sandbox.run_in_bash(r#"exec "$0" "$@" 2> /dev/full"#, "evaluate nowhere.parquet").ends_with_status(2);
}

#[test]
#[cfg(unix)]
fn a_limit_on_file_sizes_is_an_error_and_not_the_end_of_the_process() {
    let sandbox = Sandbox::indexed();
    let limit = "it would exceed the limit on file sizes";
    let line = "export gallery --npy vectors.npy --labels l.txt";
    sandbox.run_in_bash(SMALL_FILES, line).fails(1, &["`vectors.npy` cannot be written", limit]);
    assert!(!sandbox.path("vectors.npy").exists());
    sandbox.run_in_bash(SMALL_FILES, "export gallery --parquet g.parquet").fails(1, &["`g.parquet`", limit]);
    sandbox
        .run_in_bash(SMALL_FILES, "import --npy gallery/vectors.npy --labels no.txt --gallery g")
        .fails(2, &["no.txt"]);
    let certify = format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --out run");
    sandbox.run_in_bash(SMALL_FILES, &certify).fails(1, &["`run/certify.journal`", limit]);
    let index = format!("index pictures --gallery other {ENCODER}");
    sandbox.run_in_bash(SMALL_FILES, &index).fails(1, &["`other/index.journal`", limit]);
    // With room again, the same commands end well.
    sandbox.run(&certify).succeeds();
    sandbox.run(&index).succeeds();
    assert_eq!(sandbox.bytes("other/vectors.npy"), sandbox.bytes("gallery/vectors.npy"));
}

#[test]
#[cfg(unix)]
fn places_that_admit_no_files_are_named() {
    let sandbox = Sandbox::indexed();
    sandbox.write("file", "not a folder");
    let certify = format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --limit 1");
    let index = format!("index pictures {ENCODER} --limit 1");
    // Permissions do not bind the superuser, so the places are ones where nobody can write.
    let mut places = vec!["file/below"];
    if cfg!(target_os = "linux") {
        places.push("/sys/retrievalguard");
    }
    for place in places {
        let named = format!("`{place}");
        sandbox.run(&format!("{certify} --out {place}")).fails(1, &[&named, "cannot be written"]);
        sandbox.run(&format!("{index} --gallery {place}")).fails(1, &[&named, "cannot be written"]);
        let import = "import --npy gallery/vectors.npy --labels labels.txt";
        sandbox.run("export gallery --npy v.npy --labels labels.txt").succeeds();
        sandbox.run(&format!("{import} --gallery {place}")).fails(1, &[&named, "cannot be written"]);
        sandbox
            .run(&format!("export gallery --parquet {place}/g.parquet"))
            .fails(1, &[&named, "cannot be written"]);
        sandbox
            .run(&format!("export gallery --clip-retrieval {place}"))
            .fails(1, &[&named, "cannot be written"]);
    }
    sandbox.run("export gallery --parquet pictures").fails(1, &["`pictures` is a directory"]);
}
