//! A gallery whose directory is replaced while it is open, and whether another one has what was written to it.

use super::*;
use crate::NormBound;
use crate::gallery::{Gallery, Metric};
use crate::storage::manifest::Provenance;

fn gallery(names: &[(&str, &str, f32)]) -> Gallery {
    let vectors = names.iter().flat_map(|&(_, _, first)| [first, 0.5]).collect();
    let identities = names.iter().map(|(identity, _, _)| (*identity).to_owned()).collect();
    let labels: Vec<&str> = names.iter().map(|(_, label, _)| *label).collect();
    Gallery::new(vectors, 2, identities, &labels, Metric::Euclidean).unwrap()
}

fn make(directory: &Path, names: &[(&str, &str, f32)]) {
    GalleryDirectory::write(directory, &gallery(names), &[], Provenance::unknown(NormBound::UNIT)).unwrap();
}

fn add(identity: &str, label: &str, first: f32) -> Edit {
    let item =
        NewItem { identity: identity.into(), label: label.into(), vector: vec![first, 0.5], plain: None };
    Edit::Add { item, path: None }
}

fn remove(identity: &str) -> Edit {
    Edit::Remove { identity: identity.into() }
}

const MADE: [(&str, &str, f32); 3] = [("a", "cat", 0.1), ("b", "dog", 0.2), ("c", "cat", 0.3)];

#[test]
fn only_a_gallery_with_every_write_has_kept_them() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), &MADE);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    // `b` goes and comes back, `c` goes, `x` comes and goes, `y` comes.
    for edits in [
        vec![remove("b"), remove("c"), add("x", "fish", 0.7)],
        vec![remove("x"), add("b", "dog", 0.25), add("y", "fish", 0.9)],
    ] {
        assert!(live.write(edits).unwrap().iter().all(Result::is_ok));
    }
    let kept = [("y", "fish", 0.9), ("z", "bird", 0.8), ("b", "dog", 0.25)];
    let missing = |identity: &str| MissingWrite::Added { identity: identity.into() };
    let changed = |identity: &str| MissingWrite::Changed { identity: identity.into() };
    type Items<'a> = &'a [(&'a str, &'a str, f32)];
    let cases: [(&str, Items<'_>, Result<(), MissingWrite>); 8] = [
        ("all of it", &kept, Ok(())),
        ("an item that was not written about is gone", &kept[..], Ok(())),
        ("as it was made", &MADE, Err(changed("b"))),
        ("no y", &[("b", "dog", 0.25), ("a", "cat", 0.1)], Err(missing("y"))),
        ("another label", &[("y", "bird", 0.9), ("b", "dog", 0.25)], Err(changed("y"))),
        ("another vector", &[("y", "fish", 0.9), ("b", "dog", 0.2)], Err(changed("b"))),
        ("two of a name", &[kept[0], kept[0], kept[2]], Err(changed("y"))),
        ("c again", &[kept[0], kept[2], MADE[2]], Err(MissingWrite::Removed { identity: "c".into() })),
    ];
    let reopened = {
        let before = live.snapshot();
        drop(live);
        let live = LiveGallery::open(folder.path()).unwrap();
        assert_eq!(live.snapshot().made(), before.made());
        [before, live.snapshot()]
    };
    for (case, names, wanted) in cases {
        for snapshot in &reopened {
            assert_eq!(snapshot.check_kept_by(&gallery(names)), wanted, "{case}");
        }
    }
}

#[cfg(unix)]
#[test]
fn nothing_is_written_by_name_into_a_directory_that_took_the_place_of_the_gallerys() {
    let folder = tempfile::tempdir().unwrap();
    let [served, old, new] = ["served", "old", "new"].map(|name| folder.path().join(name));
    make(&served, &MADE);
    make(&new, &[("n", "cat", 0.6), ("m", "dog", 0.4)]);
    let mut live = LiveGallery::open(&served).unwrap();
    live.write(vec![add("before", "fish", 0.7)]).unwrap();
    assert!(live.is_in(&served) && !live.is_in(&new));
    fs::rename(&served, &old).unwrap();
    fs::rename(&new, &served).unwrap();
    assert!(live.is_in(&old) && !live.is_in(&served));
    let version = live.version();
    let replaced = |error: StorageError| matches!(error, StorageError::Replaced { path } if path == served);
    assert!(replaced(live.write(vec![add("after", "fish", 0.8)]).unwrap_err()));
    assert!(replaced(live.store_picture(b"bytes", "png").unwrap_err()));
    assert_eq!(live.version(), version);
    assert!(!served.join(PICTURES).exists() && !old.join(PICTURES).exists());
    drop(live);
    assert_eq!(GalleryDirectory::read(&old).unwrap().version(), version);
    assert_eq!(GalleryDirectory::read(&served).unwrap().writes(), 0);
    // Back in its place it goes on.
    fs::remove_dir_all(&served).unwrap();
    fs::rename(&old, &served).unwrap();
    LiveGallery::open(&served).unwrap().write(vec![add("after", "fish", 0.8)]).unwrap();
}
