//! Damaged files of the method crate: arrays, galleries, shards, journals and kept samples.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kept_samples;
mod mutation;

use std::fs;
use std::hint::black_box;
use std::path::Path;

use mutation::{CountingAllocator, Kind, Reading, run};
use retrievalguard::NormBound;
use retrievalguard::gallery::{Gallery, Metric, NewItem};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::Journal;
use retrievalguard::storage::live::{Edit, LiveGallery};
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance};
use retrievalguard::storage::npy;
use retrievalguard::storage::sample_cache::SampleCache;
use retrievalguard::storage::sealed::{SEAL, seal};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What any reader may take beside its input: buffers, and the good files beside the damaged one.
const BUFFERS: usize = 1 << 20;

fn gallery() -> Gallery {
    let vectors = (1..=12).map(|number| number as f32 / 7.0).collect();
    let identities = ["cat 1", "kätzchen \"2\"", "dog\n1", "cat 2"].map(String::from).to_vec();
    Gallery::new(vectors, 3, identities, &["cat", "cat", "dog", "cat"], Metric::Cosine).unwrap()
}

/// In memory where there is such a folder: thousands of small files need no disk.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Reads a folder with one of its files replaced.
fn replaced<T, E>(file: &Path, bytes: &[u8], read: impl FnOnce() -> Result<T, E>) -> Reading {
    fs::write(file, bytes).unwrap();
    read().into()
}

fn npy_files(folder: &Path) -> Vec<Vec<u8>> {
    let path = folder.join("array.npy");
    let numbers: Vec<f32> = (0..24).map(|number| number as f32).collect();
    let mut files = Vec::new();
    for shape in [&[4, 6][..], &[2, 3, 4]] {
        npy::write_f32(&path, shape, &numbers).unwrap();
        files.push(fs::read(&path).unwrap());
    }
    let text = |file: &[u8], from: &str, to: &str| {
        let at = file.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
        [&file[..at], to.as_bytes(), &file[at + from.len()..]].concat()
    };
    files.push(text(&text(&files[0], "False", "True "), "<f4", ">f4"));
    files
}

#[test]
fn no_damaged_file_makes_a_reader_panic_hang_or_fill_the_memory() {
    let folder = folder();
    let root = folder.path();
    let arrays = npy_files(root);
    let array = root.join("array.npy");

    let stored = root.join("gallery");
    GalleryDirectory::write(&stored, &gallery(), &[], Provenance::unknown(NormBound::UNIT)).unwrap();
    let mut live = LiveGallery::open(&stored).unwrap();
    for number in 0..3 {
        let item = NewItem {
            identity: format!("new {number}"),
            label: "cat".into(),
            vector: vec![0.5, -0.25, number as f32],
            plain: None,
        };
        live.write(vec![Edit::Add { item, path: None }]).unwrap().remove(0).unwrap();
    }
    live.write(vec![Edit::Remove { identity: "dog\n1".into() }]).unwrap().remove(0).unwrap();
    drop(live);
    let [manifest, items, writes, anchor] =
        ["manifest.json", "items.jsonl", "writes.journal", "writes.anchor"].map(|name| stored.join(name));
    let good = [&manifest, &items, &writes, &anchor].map(|path| fs::read(path).unwrap());
    let mut contents = Journal::read(&writes).unwrap().unwrap();
    // Damaged writes are met behind the anchor, which would refuse nearly all of them.
    contents.description.as_object_mut().unwrap().remove("anchored");
    let records = contents.records.join(&b'\n');
    // The writes one by one, with checksums of their own.
    let journal_of = |records: &[u8]| {
        fs::remove_file(&writes).unwrap();
        let mut opened = Journal::open_or_create(&writes, contents.run_key, &contents.description).unwrap();
        for record in records.split(|&byte| byte == b'\n') {
            opened.journal.append(record).unwrap();
        }
    };
    let read_gallery = || GalleryDirectory::read(&stored);
    let restored = |path: &Path, good: &[u8], bytes: &[u8]| {
        let reading = replaced(path, bytes, read_gallery);
        fs::write(path, good).unwrap();
        reading
    };
    // Digests of the items in the manifest follow the damage, so that it is met behind them.
    let reseal = |items: &[u8]| {
        let text = String::from_utf8(good[0].clone()).unwrap();
        let [old, new] =
            [good[1].as_slice(), items].map(|bytes| (Digest::of_bytes(bytes).to_string(), bytes.len()));
        let text = text.replace(&old.0, &new.0);
        let text = text.replace(&format!("\"bytes\": {}", old.1), &format!("\"bytes\": {}", new.1));
        let mut manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
        manifest.as_object_mut().unwrap().remove(SEAL);
        seal(&manifest).unwrap()
    };

    let run_file = root.join("run.journal");
    let run_key = json!({"sigma": 0.25});
    let mut opened = Journal::open_or_create(&run_file, Digest::of_json(&run_key), &run_key).unwrap();
    opened.journal.append(b"{\"position\":0}").unwrap();
    opened.journal.append_all(&[b"{\"position\":1}", b"{\"position\":2}"]).unwrap();
    drop(opened);
    let run_bytes = fs::read(&run_file).unwrap();

    let cache = SampleCache::new(&root.join("samples"));
    let key = kept_samples::key();
    cache.write(&key, &kept_samples::samples()).unwrap();
    let kept: Vec<_> = walk(&root.join("samples"));
    let kept_manifest =
        kept.iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    let kept_array = kept.iter().find(|path| path.extension().is_some_and(|ending| ending == "npy")).unwrap();
    let kept_good = [kept_manifest, kept_array].map(|path| fs::read(path).unwrap());
    let read_cache = |path: &Path, good: &[u8], bytes: &[u8]| {
        let reading = replaced(path, bytes, || cache.read(&key));
        fs::write(path, good).unwrap();
        reading
    };

    run(&[
        Kind {
            name: "npy array",
            seeds: arrays,
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| replaced(&array, bytes, || npy::read(&array)?.into_matrices(&array)),
        },
        Kind {
            name: "gallery manifest",
            seeds: vec![good[0].clone()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| restored(&manifest, &good[0], bytes),
        },
        Kind {
            name: "gallery items",
            seeds: vec![good[1].clone()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                fs::write(&manifest, reseal(bytes)).unwrap();
                fs::remove_file(&writes).unwrap();
                fs::remove_file(&anchor).unwrap();
                let reading = restored(&items, &good[1], bytes);
                fs::write(&manifest, &good[0]).unwrap();
                fs::write(&writes, &good[2]).unwrap();
                fs::write(&anchor, &good[3]).unwrap();
                reading
            },
        },
        Kind {
            name: "gallery writes",
            seeds: vec![good[2].clone()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| restored(&writes, &good[2], bytes),
        },
        Kind {
            name: "gallery writes, records",
            seeds: vec![records],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| {
                journal_of(bytes);
                fs::remove_file(&anchor).unwrap();
                let reading = read_gallery().into();
                fs::write(&writes, &good[2]).unwrap();
                fs::write(&anchor, &good[3]).unwrap();
                reading
            },
        },
        Kind {
            name: "gallery anchor",
            seeds: vec![good[3].clone()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| restored(&anchor, &good[3], bytes),
        },
        Kind {
            name: "journal",
            seeds: vec![run_bytes],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| replaced(&run_file, bytes, || Journal::read(&run_file)),
        },
        Kind {
            name: "kept samples, manifest",
            seeds: vec![kept_good[0].clone()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| read_cache(kept_manifest, &kept_good[0], bytes),
        },
        Kind {
            name: "kept samples, array",
            seeds: vec![kept_good[1].clone()],
            allowance: BUFFERS,
            repair: None,
            read: &|bytes| read_cache(kept_array, &kept_good[1], bytes),
        },
    ]);
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// A reader of one kind that does `fault` on some of the inputs.
fn faulty(fault: &dyn Fn()) -> bool {
    let kind = Kind {
        name: "planted fault",
        seeds: vec![vec![7; 40]],
        allowance: BUFFERS,
        repair: None,
        read: &|bytes| {
            if bytes[..bytes.len().min(4)].contains(&0xFF) {
                fault();
            }
            Reading::Accepted
        },
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&[kind]))).is_err()
}

#[test]
fn a_reader_that_panics_or_believes_a_length_is_found() {
    assert!(!faulty(&|| {}));
    assert!(faulty(&|| assert_eq!(1, 2, "planted")));
    assert!(faulty(&|| drop(black_box(Vec::<u8>::with_capacity(8 << 20)))));
    // What is given back in time does not add up.
    assert!(!faulty(&|| (0..20).for_each(|_| drop(black_box(Vec::<u8>::with_capacity(BUFFERS / 2))))));
}
