//! A reload that fails halfway: what was served goes on being served, and nothing is written.

use std::fs;

use retrievalguard::gallery::{Gallery, NewItem};
use retrievalguard::storage::live::Edit;
use retrievalguard::storage::manifest::Provenance;
use retrievalguard::{Components, NormBound};

use super::super::thread::Shown;
use super::*;

const FILES: [&str; 3] = ["vectors.npy", "items.jsonl", "manifest.json"];

fn make(directory: &Path, names: [&str; 2]) {
    let gallery = Gallery::new(
        vec![0.0, 1.0, 1.0, 0.0],
        2,
        names.map(String::from).to_vec(),
        &names,
        Metric::Euclidean,
    );
    GalleryDirectory::write(directory, &gallery.unwrap(), &[], Provenance::unknown(NormBound::UNIT)).unwrap();
}

fn copy(from: &Path, to: &Path) {
    for name in FILES {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn fit() -> Fit {
    let queries = QuerySide {
        sigma: None,
        dimension: 2,
        norm_bound: NormBound::UNIT,
        components: Components::Any,
        model: None,
        contract: None,
    };
    Fit { name: "served".to_owned(), queries }
}

fn open(directory: &Path) -> WriterThread {
    let (held, reason) = Held::open(directory, false).unwrap();
    let shown = Arc::new(Shown::new(Snapshot::new(held.snapshot()), reason));
    WriterThread::new(held, shown)
}

fn in_use(directory: &Path) -> Reload {
    let path = directory.join("writes.journal");
    let read = Box::new(live::Snapshot::read(directory).unwrap());
    let found = Found::InUse(read, JournalError::InUse { path });
    Reload { found, directory: directory.to_owned(), fit: fit() }
}

fn other(directory: &Path) -> Reload {
    let (held, read_only) = Held::open(directory, false).unwrap();
    Reload { found: Found::Other(held, read_only), directory: directory.to_owned(), fit: fit() }
}

#[test]
fn a_gallery_that_was_given_back_and_does_not_open_is_served_as_it_was_until_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let [served, first, second] = ["served", "first", "second"].map(|name| folder.path().join(name));
    make(&served, ["a", "b"]);
    make(&first, ["a", "b"]);
    make(&second, ["c", "d"]);
    let mut thread = open(&served);
    let before = thread.shown.snapshot().version().to_owned();
    copy(&second, &served);
    let reload = in_use(&served);
    // Damaged after it was read, as if somebody were still copying.
    fs::write(served.join("vectors.npy"), "half").unwrap();
    let problem = thread.reload(reload).err().unwrap();
    assert!(problem.message.contains("vectors.npy"), "{}", problem.message);
    assert_eq!(
        (thread.shown.snapshot().version(), thread.shown.read_only()),
        (&*before, Some(ReadOnly::Parted))
    );
    let item = NewItem { identity: "x".into(), label: "y".into(), vector: vec![0.5, 0.5], plain: None };
    assert!(thread.held.write(vec![Edit::Add { item, path: None }]).is_err());
    assert!(!thread.held.is_in(&served));
    // Whole again, it is opened as any other.
    copy(&second, &served);
    let reloaded = thread.reload(other(&served)).unwrap();
    assert_eq!((reloaded.before, reloaded.read_only), (before, false));
    assert_eq!(reloaded.after.gallery().identity(0), "c");
    assert!(thread.held.is_in(&served) && thread.shown.read_only().is_none());
}

#[test]
fn what_was_written_before_a_gallery_was_given_back_is_still_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let [served, without] = ["served", "without"].map(|name| folder.path().join(name));
    make(&served, ["a", "b"]);
    make(&without, ["a", "b"]);
    let mut thread = open(&served);
    let item = NewItem { identity: "x".into(), label: "y".into(), vector: vec![0.5, 0.5], plain: None };
    thread.held.write(vec![Edit::Add { item, path: None }]).unwrap();
    thread.held = Held::Parted(thread.held.snapshot());
    let problem = thread.reload(other(&without)).err().unwrap();
    assert!(problem.message.contains("no item `x`"), "{}", problem.message);
    thread.reload(other(&served)).unwrap();
    assert_eq!(thread.shown.snapshot().gallery().len(), 3);
}
