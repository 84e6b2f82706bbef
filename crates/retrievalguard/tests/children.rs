//! Writers in processes of their own, killed or at the end of their disk.
//!
//! These tests have a binary to themselves: between fork and exec, a child holds every lock that its parent holds, also
//! those of tests in other threads.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use retrievalguard::NormBound;
use retrievalguard::gallery::{Gallery, Metric, NewItem};
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Journal, JournalError, Opened};
use retrievalguard::storage::live::{Edit, LiveGallery};
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};
use serde_json::Value;

/// One of these tests at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What a child is told to write to.
const PLACE: &str = "RETRIEVALGUARD_PLACE";

const RECORD: &[u8] = br#"{"identity":"picture","radius":0.125}"#;

fn place() -> PathBuf {
    PathBuf::from(std::env::var_os(PLACE).expect("the parent names the place"))
}

fn open(path: &Path) -> Result<Opened, JournalError> {
    Journal::open_or_create(path, Digest::of_json(&Value::Null), &Value::Null)
}

#[test]
#[ignore = "needs a limit on file sizes, which its parent sets"]
fn child_that_writes_until_the_limit() {
    let path = place();
    let mut journal = open(&path).unwrap().journal;
    let mut groups = (1..=3).cycle();
    for _ in 0..2 {
        let error = loop {
            let group = vec![RECORD; groups.next().unwrap()];
            let before = (journal.records(), fs::metadata(&path).unwrap().len());
            if let Err(error) = journal.append_all(&group) {
                assert_eq!((journal.records(), fs::metadata(&path).unwrap().len()), before);
                break error;
            }
        };
        assert!(matches!(error, JournalError::Write(WriteError::SizeLimit { .. })), "{error}");
    }
    let error = atomic::write(&path.with_extension("npy"), &[1; 5000]).unwrap_err();
    assert!(matches!(error, WriteError::SizeLimit { .. }), "{error}");
}

#[test]
fn a_limit_on_file_sizes_is_an_error_that_loses_no_record() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    // A signal that is ignored stays ignored through exec, and then the write fails instead of the process.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_that_writes_until_the_limit"])
        .env(PLACE, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    let opened = open(&path).unwrap();
    assert_eq!(opened.dropped_bytes, 0, "the failed append was taken back");
    assert!(opened.records.len() > 1 && opened.records.iter().all(|found| found == RECORD));
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["journal"], "nothing is left of the array");
}

#[test]
#[ignore = "writes until its parent kills it"]
fn child_that_writes_until_it_is_killed() {
    let mut live = LiveGallery::open(&place()).unwrap();
    let first = live.snapshot().writes();
    for number in (first..).step_by(3) {
        let edits = (number..number + 3).map(|number| {
            let vector = vec![number as f32, 0.5];
            let path = live.store_picture(&number.to_le_bytes(), "bin").unwrap();
            let item =
                NewItem { identity: format!("item {number}"), label: "cat".into(), vector, plain: None };
            Edit::Add { item, path: Some(path) }
        });
        let edits = edits.collect();
        assert!(live.write(edits).unwrap().iter().all(Result::is_ok));
        println!("\nacknowledged {}", number + 3);
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let base = Gallery::new(vec![9.0, 9.0], 2, vec!["base".into()], &["dog"], Metric::Euclidean).unwrap();
    GalleryDirectory::write(directory, &base, &[], Provenance::unknown(NormBound::UNIT)).unwrap();
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "--exact", "child_that_writes_until_it_is_killed"])
            .env(PLACE, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut numbers = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        let seen = numbers.by_ref().nth(5 + round).expect("the child goes on writing");
        assert!(GalleryDirectory::read(directory).unwrap().writes() >= seen, "beside the writer");
        child.kill().unwrap();
        let acknowledged = numbers.last().unwrap_or(seen);
        child.wait().unwrap();

        let stored = GalleryDirectory::read(directory).unwrap();
        assert!(stored.writes() >= acknowledged, "{} of {acknowledged} writes", stored.writes());
        for (row, number) in (1..stored.gallery.len()).zip(0_u64..) {
            assert_eq!(stored.gallery.identity(row), format!("item {number}"));
            assert_eq!(stored.gallery.vector(row), [number as f32, 0.5]);
            let picture = stored.picture_path(row).unwrap();
            assert_eq!(fs::read(picture).unwrap(), number.to_le_bytes());
        }
        let live = LiveGallery::open(directory).unwrap();
        assert_eq!((live.version(), live.snapshot().manifest()), (stored.version(), &stored.manifest));
    }
}
