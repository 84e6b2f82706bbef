//! Writes that are read back, cut at every byte, flipped, refused, and checked against another gallery.

use serde_json::json;

use super::*;
use crate::NormBound;
use crate::gallery::{Gallery, Metric};
use crate::storage::journal::JournalError;
use crate::storage::manifest::{GalleryManifest, Provenance};

/// A temporary directory in memory where there is one: thousands of small files need no disk.
fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn base(metric: Metric) -> Gallery {
    let vectors = (1..=12).map(|number| number as f32 / 7.0).collect();
    let identities = ["cat 1", "kätzchen \"2\"", "dog\n1", "cat 1"].map(String::from).to_vec();
    Gallery::new(vectors, 3, identities, &["cat", "cat", "dog", "cat"], metric).unwrap()
}

fn make(directory: &Path, metric: Metric) -> Result<GalleryManifest, StorageError> {
    let provenance =
        Provenance { data_set: Some(Digest::of_bytes(b"pictures")), ..Provenance::unknown(NormBound::UNIT) };
    let paths: Vec<Option<String>> =
        ["a.jpg", "b.jpg", "c.jpg"].map(|path| Some(path.to_owned())).into_iter().chain([None]).collect();
    GalleryDirectory::write(directory, &base(metric), &paths, provenance)
}

fn made(metric: Metric) -> tempfile::TempDir {
    let folder = folder_in_memory();
    make(folder.path(), metric).unwrap();
    folder
}

fn add(identity: &str, label: &str, first: f32) -> Edit {
    let item = NewItem {
        identity: identity.into(),
        label: label.into(),
        vector: vec![first, 0.5, 0.1],
        plain: None,
    };
    Edit::Add { item, path: None }
}

fn remove(identity: &str) -> Edit {
    Edit::Remove { identity: identity.into() }
}

/// Everything that can be seen of a gallery.
fn seen(stored: &GalleryDirectory) -> String {
    let gallery = &stored.gallery;
    let rows: Vec<_> = (0..gallery.len())
        .map(|row| {
            let bits: Vec<u32> = gallery.vector(row).iter().map(|value| value.to_bits()).collect();
            let label = gallery.label(row);
            let names = (gallery.identity(row).to_owned(), gallery.label_name(label).to_owned());
            (names, label, bits, stored.paths[row].clone(), stored.is_added(row))
        })
        .collect();
    format!("{:?}", (rows, &stored.manifest, stored.writes(), stored.version()))
}

/// Writes of every kind, in calls of one to three.
fn calls() -> Vec<Vec<Edit>> {
    vec![
        vec![add("new 1", "bird", 0.25)],
        vec![remove("cat 1"), add("cat 1", "cat", -3.0), add("new\n\"2\"", "dog", 4.0)],
        vec![add("brief", "fish", 1.0), remove("brief")],
        vec![remove("new 1"), remove("dog\n1")],
        vec![add("new 1", "fish", 7.5)],
    ]
}

#[test]
fn what_was_written_is_there_when_it_is_opened_again_and_for_every_reader() {
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let folder = made(metric);
        let mut live = LiveGallery::open(folder.path()).unwrap();
        assert_eq!(
            seen(&live.snapshot().to_directory()),
            seen(&GalleryDirectory::read(folder.path()).unwrap())
        );
        let mut versions = vec![live.version()];
        let mut writes = 0;
        for edits in calls() {
            let first = live.snapshot();
            let before = seen(&first.to_directory());
            writes += edits.len() as u64;
            assert!(live.write(edits).unwrap().iter().all(Result::is_ok));
            assert_eq!(seen(&first.to_directory()), before, "a snapshot has changed");
            assert!(!versions.contains(&live.version()), "the version stayed");
            versions.push(live.version());
            let now = seen(&live.snapshot().to_directory());
            // A reader does not wait for the writer.
            assert_eq!(seen(&GalleryDirectory::read(folder.path()).unwrap()), now, "{metric:?}");
            drop(live);
            live = LiveGallery::open(folder.path()).unwrap();
            assert_eq!(seen(&live.snapshot().to_directory()), now, "{metric:?}");
            assert_eq!(live.snapshot().writes(), writes);
        }
        let stored = GalleryDirectory::read(folder.path()).unwrap();
        let identities: Vec<&str> =
            (0..stored.gallery.len()).map(|row| stored.gallery.identity(row)).collect();
        assert_eq!(identities, ["kätzchen \"2\"", "cat 1", "new\n\"2\"", "new 1"]);
        assert_eq!([0, 1, 2, 3].map(|row| live.snapshot().is_added(row)), [false, true, true, true]);
        assert_eq!(stored.gallery.label_count(), 3);
    }
}

#[test]
fn the_manifest_is_that_of_the_gallery_written_anew() {
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let folder = made(metric);
        let before = GalleryDirectory::read(folder.path()).unwrap();
        assert_eq!(before.manifest.provenance.data_set, Some(Digest::of_bytes(b"pictures")));
        let mut live = LiveGallery::open(folder.path()).unwrap();
        assert_eq!(live.snapshot().provenance(), before.manifest.provenance);
        for edits in calls() {
            live.write(edits).unwrap();
        }
        let GalleryDirectory { gallery, paths, manifest, .. } =
            GalleryDirectory::read(folder.path()).unwrap();
        let other = folder_in_memory();
        let provenance = Provenance { data_set: None, ..before.manifest.provenance };
        assert_eq!(live.snapshot().provenance(), provenance);
        let anew = GalleryDirectory::write(other.path(), &gallery, &paths, provenance).unwrap();
        assert_eq!(manifest, anew);
        assert_eq!(manifest.items, gallery.len());
    }
}

#[test]
fn refused_changes_are_answered_one_by_one_and_leave_no_trace() {
    let folder = made(Metric::Cosine);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    let item = |identity: &str, vector: Vec<f32>| Edit::Add {
        item: NewItem { identity: identity.into(), label: "cat".into(), vector, plain: None },
        path: None,
    };
    let with_path = |path: &str| {
        let Edit::Add { item, .. } = add("pictured", "cat", 1.0) else { panic!() };
        Edit::Add { item, path: Some(path.to_owned()) }
    };
    let absent = format!("pictures/{}.png", Digest::of_bytes(b"never stored"));
    let version = live.version();
    let answers = live
        .write(vec![
            remove("nobody"),
            add("cat 1", "cat", 1.0),
            item("short", vec![1.0]),
            item("zero", vec![0.0; 3]),
            item("nan", vec![0.0, f32::NAN, 1.0]),
            item(&"x".repeat(NAME_LIMIT + 1), vec![1.0; 3]),
            with_path("../../secret.png"),
            with_path("pictures/../manifest.json"),
            with_path(&absent),
        ])
        .unwrap();
    let identity = || "pictured".to_owned();
    assert_eq!(answers[0], Err(EditError::Unknown { identity: "nobody".into() }));
    assert_eq!(answers[1], Err(EditError::Exists { identity: "cat 1".into() }));
    assert!(matches!(&answers[2], Err(EditError::Item(GalleryError::Dimension { found: 1, row: 4, .. }))));
    assert!(matches!(&answers[3], Err(EditError::Item(GalleryError::ZeroVector { .. }))));
    assert!(matches!(&answers[4], Err(EditError::Item(GalleryError::NotFinite { component: 1, .. }))));
    assert!(matches!(&answers[5], Err(EditError::LongName { what: "identity", .. })));
    for (answer, path) in answers[6..].iter().zip(["../../secret.png", "pictures/../manifest.json", &absent])
    {
        assert_eq!(*answer, Err(EditError::Picture { identity: identity(), path: path.to_owned() }));
    }
    assert_eq!((live.version(), live.snapshot().writes()), (version, 0));

    // Each in view of those before it, and the others go on.
    let answers = live
        .write(vec![
            remove("cat 1"),
            remove("cat 1"),
            add("cat 1", "cat", 1.0),
            add("cat 1", "cat", 2.0),
            remove("kätzchen \"2\""),
            remove("dog\n1"),
            remove("cat 1"),
        ])
        .unwrap();
    assert_eq!(
        answers.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true, false, true, true, false]
    );
    assert_eq!(answers[6], Err(EditError::Last { identity: "cat 1".into() }));
    drop(live);
    let stored = GalleryDirectory::read(folder.path()).unwrap();
    assert_eq!((stored.gallery.len(), stored.writes()), (1, 4));
}

/// A gallery without writes, whatever was written to it.
fn forget_writes(folder: &Path) {
    fs::remove_file(folder.join(WRITES)).unwrap();
    fs::remove_file(folder.join(ANCHOR)).unwrap();
}

/// What one write after the other makes of a gallery, which has none of them afterwards.
fn states(folder: &Path) -> Vec<String> {
    let mut live = LiveGallery::open(folder).unwrap();
    let mut states = vec![seen(&live.snapshot().to_directory())];
    for edit in calls().into_iter().flatten() {
        live.write(vec![edit]).unwrap();
        states.push(seen(&live.snapshot().to_directory()));
    }
    drop(live);
    forget_writes(folder);
    states
}

#[test]
fn stopped_at_any_byte_a_gallery_has_the_first_of_its_writes() {
    let folder = made(Metric::Cosine);
    let states = states(folder.path());
    let (path, anchor) = (folder.path().join(WRITES), folder.path().join(ANCHOR));
    let (mut before, mut acknowledged) = (fs::read(&path).unwrap_or_default().len(), 0);
    for (call, edits) in calls().into_iter().enumerate() {
        let together = edits.len();
        let mut live = LiveGallery::open(folder.path()).unwrap();
        if call == 0 {
            before = fs::read(&path).unwrap().len();
        }
        let anchored = fs::read(&anchor).unwrap();
        live.write(edits).unwrap();
        drop(live);
        // Stopped while this call was on its way to the disk: the anchor speaks of the calls before it.
        let (whole, ahead) = (fs::read(&path).unwrap(), fs::read(&anchor).unwrap());
        let mut kept = acknowledged;
        for length in before..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            fs::write(&anchor, &anchored).unwrap();
            let read =
                GalleryDirectory::read(folder.path()).unwrap_or_else(|error| panic!("{length}: {error}"));
            let writes = read.writes() as usize;
            assert!(writes == kept || writes == kept + 1, "cut to {length} bytes");
            kept = writes;
            assert_eq!(seen(&read), states[writes], "cut to {length} bytes");
            assert_eq!(fs::read(&path).unwrap(), whole[..length], "reading has changed it");
            let live = LiveGallery::open(folder.path()).unwrap_or_else(|error| panic!("{length}: {error}"));
            assert_eq!(seen(&live.snapshot().to_directory()), states[writes], "cut to {length} bytes");
        }
        assert_eq!(kept, acknowledged + together);
        fs::write(&anchor, &ahead).unwrap();
        (before, acknowledged) = (whole.len(), kept);
    }
    assert_eq!(acknowledged + 1, states.len());
}

#[test]
fn a_journal_that_lost_acknowledged_writes_is_refused_wherever_it_was_cut() {
    let folder = made(Metric::Cosine);
    let states = states(folder.path());
    let mut live = LiveGallery::open(folder.path()).unwrap();
    let header = fs::read(folder.path().join(WRITES)).unwrap().len();
    for edits in calls() {
        live.write(edits).unwrap();
    }
    drop(live);
    let (path, anchor) = (folder.path().join(WRITES), folder.path().join(ANCHOR));
    let (whole, anchored) = (fs::read(&path).unwrap(), fs::read(&anchor).unwrap());
    let wanted_writes = states.len() as u64 - 1;
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        for error in [
            GalleryDirectory::read(folder.path()).unwrap_err(),
            LiveGallery::open(folder.path()).unwrap_err(),
            GalleryDirectory::check_replaceable(folder.path()).unwrap_err(),
        ] {
            match &error {
                StorageError::LostWrites { path: named, found, wanted } => {
                    assert!(*named == path && *found < *wanted && *wanted == wanted_writes, "{error}");
                }
                StorageError::Writes { writes, .. } => assert_eq!(*writes as u64, wanted_writes),
                // Cut in the key, the header is no header.
                _ => assert!(length < header, "cut to {length} bytes: {error}"),
            }
        }
        assert_eq!(fs::read(&path).unwrap(), whole[..length], "a refusal has changed it");
    }
    // Gone altogether.
    fs::remove_file(&path).unwrap();
    for error in
        [GalleryDirectory::read(folder.path()).unwrap_err(), LiveGallery::open(folder.path()).unwrap_err()]
    {
        assert!(matches!(error, StorageError::LostWrites { found: 0, .. }), "{error}");
        assert!(error.to_string().contains("repair --accept-loss"), "{error}");
    }
    assert!(!path.exists(), "a refusal has begun another journal");
    assert!(matches!(make(folder.path(), Metric::Cosine), Err(StorageError::Writes { .. })));

    // An older journal of the same gallery, and one with as many writes but others.
    let lines: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
    fs::write(&path, lines[..lines.len() - 2].concat()).unwrap();
    assert!(matches!(GalleryDirectory::read(folder.path()), Err(StorageError::LostWrites { .. })));
    let other = made(Metric::Cosine);
    let mut live = LiveGallery::open(other.path()).unwrap();
    for number in 0..wanted_writes {
        live.write(vec![add(&format!("other {number}"), "cat", 1.0)]).unwrap();
    }
    drop(live);
    fs::copy(other.path().join(WRITES), &path).unwrap();
    let error = GalleryDirectory::read(folder.path()).unwrap_err();
    assert!(matches!(error, StorageError::LostWrites { found, wanted, .. } if found == wanted), "{error}");

    // The whole journal is still right, and one that is longer is.
    fs::write(&path, &whole).unwrap();
    assert_eq!(seen(&GalleryDirectory::read(folder.path()).unwrap()), states[wanted_writes as usize]);
    fs::write(&anchor, &anchored).unwrap();
    LiveGallery::open(folder.path()).unwrap().write(vec![add("one more", "cat", 1.0)]).unwrap();
    fs::write(&anchor, &anchored).unwrap();
    assert_eq!(GalleryDirectory::read(folder.path()).unwrap().writes(), wanted_writes + 1);
}

#[test]
fn an_anchor_that_is_gone_or_damaged_is_refused_and_half_of_one_is_enough() {
    let folder = made(Metric::Euclidean);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    live.write(vec![add("one", "cat", 1.0)]).unwrap();
    live.write(vec![add("two", "cat", 2.0)]).unwrap();
    drop(live);
    let path = folder.path().join(ANCHOR);
    let whole = fs::read(&path).unwrap();
    let before = seen(&GalleryDirectory::read(folder.path()).unwrap());
    for place in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(seen(&GalleryDirectory::read(folder.path()).unwrap()), before, "byte {place}");
    }
    for bytes in [&b""[..], b"retrievalguard", &[0; 1024]] {
        fs::write(&path, bytes).unwrap();
        for error in [
            GalleryDirectory::read(folder.path()).unwrap_err(),
            LiveGallery::open(folder.path()).unwrap_err(),
        ] {
            assert!(matches!(&error, StorageError::Anchor { what: "damaged", .. }), "{error}");
        }
    }
    fs::remove_file(&path).unwrap();
    let error = GalleryDirectory::read(folder.path()).unwrap_err();
    assert!(matches!(&error, StorageError::Anchor { what: "missing", .. }), "{error}");
    assert!(LiveGallery::open(folder.path()).is_err());
    // A journal whose header does not say `anchored` gets an anchor when it is written to.
    let journal = folder.path().join(WRITES);
    let records = Journal::read(&journal).unwrap().unwrap();
    fs::remove_file(&journal).unwrap();
    let old = json!({"command": "writes", "manifest": records.run_key});
    Journal::open_or_create(&journal, records.run_key, &old)
        .unwrap()
        .journal
        .append_all(&records.records)
        .unwrap();
    assert_eq!(seen(&GalleryDirectory::read(folder.path()).unwrap()), before);
    drop(LiveGallery::open(folder.path()).unwrap());
    assert!(path.exists());
    fs::remove_file(&journal).unwrap();
    assert!(matches!(
        GalleryDirectory::read(folder.path()),
        Err(StorageError::LostWrites { found: 0, wanted: 2, .. })
    ));
}

#[test]
fn after_a_loss_was_accepted_the_gallery_goes_on_with_what_is_left() {
    let folder = made(Metric::Euclidean);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    for name in ["one", "two", "three"] {
        live.write(vec![add(name, "cat", 1.0)]).unwrap();
    }
    drop(live);
    let path = folder.path().join(WRITES);
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
    fs::write(&path, &whole[..=last]).unwrap();
    assert!(LiveGallery::open(folder.path()).is_err());
    assert_eq!(accept_loss(folder.path()).unwrap(), Remaining { found: 2, acknowledged: Some(3) });
    assert_eq!(GalleryDirectory::read(folder.path()).unwrap().writes(), 2);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    assert!(matches!(accept_loss(folder.path()), Err(StorageError::Journal(JournalError::InUse { .. }))));
    live.write(vec![add("four", "cat", 1.0)]).unwrap();
    drop(live);
    // The longer journal is another history.
    fs::write(&path, &whole).unwrap();
    assert!(matches!(GalleryDirectory::read(folder.path()), Err(StorageError::LostWrites { .. })));
    fs::remove_file(&path).unwrap();
    assert_eq!(accept_loss(folder.path()).unwrap(), Remaining { found: 0, acknowledged: Some(3) });
    fs::write(folder.path().join(ANCHOR), "?").unwrap();
    assert_eq!(accept_loss(folder.path()).unwrap(), Remaining { found: 0, acknowledged: None });
    assert_eq!(GalleryDirectory::read(folder.path()).unwrap().gallery.len(), 4);
}

#[test]
fn flipped_bytes_are_an_error_that_names_the_place() {
    let folder = made(Metric::Euclidean);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    for edits in calls() {
        live.write(edits).unwrap();
    }
    drop(live);
    let path = folder.path().join(WRITES);
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
    for place in 0..last {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let start = whole[..place].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end as u64 + 1);
        for error in [
            GalleryDirectory::read(folder.path()).unwrap_err(),
            LiveGallery::open(folder.path()).unwrap_err(),
        ] {
            match error {
                StorageError::Journal(JournalError::Damaged { path: named, offset, .. }) => {
                    assert_eq!(named, path);
                    // The key stands in a line of its own and is checked with the description.
                    assert!(offset == start || start < 100, "byte {place}: {offset}, wanted {start}");
                }
                StorageError::Journal(error) => assert!(start == 0, "byte {place}: {error}"),
                error => panic!("byte {place}: {error}"),
            }
        }
    }
}

#[test]
fn intact_records_that_are_no_writes_are_refused_by_number() {
    for (record, wanted) in [
        (&br#"{"position": 3}"#[..], "unknown variant"),
        (br#"{"remove": {"identity": "nobody"}}"#, "has no item `nobody`"),
        (br#"{"add": {"identity": "a", "label": "b", "bits": "3f80000"}}"#, "8 hexadecimal digits"),
        (br#"{"add": {"identity": "a", "label": "b", "bits": "3f800000"}}"#, "has 1 components, wanted 3"),
        (
            br#"{"add": {"identity": "a", "label": "b", "bits": "", "path": "/etc/passwd"}}"#,
            "stored pictures",
        ),
    ] {
        let folder = made(Metric::Euclidean);
        let mut live = LiveGallery::open(folder.path()).unwrap();
        live.write(vec![add("x", "y", 1.0)]).unwrap();
        live.journal.append(record).unwrap();
        drop(live);
        let error = GalleryDirectory::read(folder.path()).unwrap_err();
        let StorageError::WriteRecord { record: 1, source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains(wanted), "{source}");
        assert!(LiveGallery::open(folder.path()).is_err());
    }
}

#[test]
fn there_is_one_writer() {
    let folder = made(Metric::Euclidean);
    let live = LiveGallery::open(folder.path()).unwrap();
    let error = LiveGallery::open(folder.path()).unwrap_err();
    assert!(matches!(error, StorageError::Journal(JournalError::InUse { .. })), "{error}");
    // Nor is the gallery replaced under its hands, even before the first write.
    let error = make(folder.path(), Metric::Euclidean).unwrap_err();
    assert!(matches!(error, StorageError::Journal(JournalError::InUse { .. })), "{error}");
    drop(live);
    make(folder.path(), Metric::Cosine).unwrap();
    assert!(!folder.path().join(WRITES).exists());
    LiveGallery::open(folder.path()).unwrap();
}

#[test]
fn a_gallery_made_again_never_drops_or_takes_over_writes() {
    let folder = made(Metric::Euclidean);
    let path = folder.path().join(WRITES);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    live.write(vec![add("new", "cat", 1.0), remove("new"), add("new", "cat", 2.0)]).unwrap();
    drop(live);
    let before = seen(&GalleryDirectory::read(folder.path()).unwrap());
    let checked = GalleryDirectory::check_replaceable(folder.path()).unwrap_err();
    for error in [checked, make(folder.path(), Metric::Cosine).unwrap_err()] {
        assert!(
            matches!(&error, StorageError::Writes { path: named, writes: 3 } if *named == path),
            "{error}"
        );
        assert!(error.to_string().contains("moved away"), "{error}");
    }
    assert_eq!(
        seen(&GalleryDirectory::read(folder.path()).unwrap()),
        before,
        "a refusal changed the gallery"
    );

    // Replaced by a program that does not know of writes.
    let (journal, anchor) = (fs::read(&path).unwrap(), fs::read(folder.path().join(ANCHOR)).unwrap());
    forget_writes(folder.path());
    make(folder.path(), Metric::Cosine).unwrap();
    fs::write(folder.path().join(ANCHOR), &anchor).unwrap();
    let error = GalleryDirectory::read(folder.path()).unwrap_err();
    assert!(matches!(error, StorageError::OtherWrites { writes: 3, .. }), "{error}");
    fs::write(&path, &journal).unwrap();
    for error in
        [GalleryDirectory::read(folder.path()).unwrap_err(), LiveGallery::open(folder.path()).unwrap_err()]
    {
        let StorageError::OtherWrites { path: named, writes: 3, found, wanted } = &error else {
            panic!("{error}")
        };
        assert!(*named == path && found != wanted);
        assert!(error.to_string().contains("moved away"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), journal);

    // The same bytes are the same gallery, and a journal without writes stands in nobody's way.
    forget_writes(folder.path());
    make(folder.path(), Metric::Euclidean).unwrap();
    fs::write(&path, &journal).unwrap();
    fs::write(folder.path().join(ANCHOR), &anchor).unwrap();
    assert_eq!(seen(&GalleryDirectory::read(folder.path()).unwrap()), before);
    forget_writes(folder.path());
    drop(LiveGallery::open(folder.path()).unwrap());
    let empty = fs::read(&path).unwrap();
    make(folder.path(), Metric::Cosine).unwrap();
    fs::write(&path, &empty).unwrap();
    assert_eq!(GalleryDirectory::read(folder.path()).unwrap().writes(), 0);
    LiveGallery::open(folder.path()).unwrap().write(vec![add("new", "cat", 1.0)]).unwrap();

    // An anchor without writes and without a journal whose lock could be held stays, and refuses nothing.
    forget_writes(folder.path());
    drop(LiveGallery::open(folder.path()).unwrap());
    fs::remove_file(&path).unwrap();
    make(folder.path(), Metric::Euclidean).unwrap();
    assert!(folder.path().join(ANCHOR).exists());
    LiveGallery::open(folder.path()).unwrap().write(vec![add("new", "cat", 1.0)]).unwrap();
    assert_eq!(GalleryDirectory::read(folder.path()).unwrap().writes(), 1);
}

#[test]
fn pictures_live_as_long_as_an_item_has_them() {
    let folder = made(Metric::Euclidean);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    let with = |live: &LiveGallery, identity: &str, bytes: &[u8]| {
        let Edit::Add { item, .. } = add(identity, "cat", 1.0) else { panic!() };
        Edit::Add { item, path: Some(live.store_picture(bytes, "png").unwrap()) }
    };
    let pictures = || fs::read_dir(folder.path().join(PICTURES)).map_or(0, Iterator::count);
    for extension in ["", "PNG", "a/b", "..", "ninechars"] {
        let error = live.store_picture(b"x", extension).unwrap_err();
        assert!(matches!(error, StorageError::Extension { .. }), "{error}");
    }
    let edits =
        vec![with(&live, "one", b"same"), with(&live, "two", b"same"), with(&live, "three", b"other")];
    live.write(edits).unwrap();
    assert_eq!(pictures(), 2);
    let stored = GalleryDirectory::read(folder.path()).unwrap();
    let path = stored.picture_path(5).unwrap();
    assert_eq!(path, live.snapshot().picture_path(5).unwrap());
    assert_eq!(fs::read(path).unwrap(), b"same");
    assert_eq!(stored.picture_path(0), Some(PathBuf::from("a.jpg")));
    assert_eq!(stored.picture_path(3), None);

    live.write(vec![remove("one"), remove("three")]).unwrap();
    assert_eq!(pictures(), 1, "`two` has it still");
    let again = with(&live, "three", b"same");
    live.write(vec![remove("two"), again]).unwrap();
    assert_eq!(pictures(), 1, "`three` has it in the same breath");
    let refused = with(&live, "three", b"of a refused item");
    assert!(live.write(vec![refused]).unwrap()[0].is_err());
    assert_eq!(pictures(), 1);

    // Stopped between a removal and the deletion of its picture.
    live.write(vec![remove("three")]).unwrap();
    assert_eq!(pictures(), 0);
    live.store_picture(b"same", "png").unwrap();
    drop(live);
    drop(LiveGallery::open(folder.path()).unwrap());
    assert_eq!(pictures(), 0);
}

#[test]
fn items_are_added_and_removed_with_all_their_views() {
    use crate::views::{View, ViewSet};
    let folder = folder_in_memory();
    let turned = View { rotate: 5.0, ..View::named("turned") };
    let set = ViewSet::new("turns", vec![View::named("as is"), turned]).unwrap();
    let identities = ["cat", "cat", "dog", "dog"].map(String::from).to_vec();
    let vectors = (1..=12).map(|number| number as f32 / 7.0).collect();
    let gallery = Gallery::new(vectors, 3, identities.clone(), &identities, Metric::Euclidean).unwrap();
    let gallery = gallery.with_views(set.names()).unwrap();
    let provenance = Provenance { views: Some(set), ..Provenance::unknown(NormBound::UNIT) };
    GalleryDirectory::write(folder.path(), &gallery, &[], provenance).unwrap();
    let wide = |identity: &str, values: usize| {
        let vector = (0..values).map(|value| value as f32).collect();
        let item = NewItem { identity: identity.into(), label: "bird".into(), vector, plain: None };
        Edit::Add { item, path: None }
    };
    let mut live = LiveGallery::open(folder.path()).unwrap();
    let path = live.store_picture(b"picture", "png").unwrap();
    let Edit::Add { item, .. } = wide("stork", 6) else { unreachable!() };
    let answers = live
        .write(vec![
            wide("half", 3),
            wide("robin", 6),
            remove("cat"),
            Edit::Add { item, path: Some(path.clone()) },
        ])
        .unwrap();
    assert!(matches!(answers[0], Err(EditError::Item(GalleryError::Dimension { .. }))), "{answers:?}");
    assert!(answers[1..].iter().all(Result::is_ok), "{answers:?}");
    let check = |stored: &GalleryDirectory| {
        let gallery = &stored.gallery;
        assert_eq!((gallery.item_count(), gallery.len(), stored.manifest.items), (3, 6, 3));
        assert_eq!((gallery.rows_of("robin"), gallery.rows_of("stork")), (vec![2, 3], vec![4, 5]));
        assert_eq!(gallery.view(3), Some("turned"));
        assert_eq!(gallery.vector(3), [3.0, 4.0, 5.0]);
        assert_eq!([1, 2, 5].map(|row| stored.is_added(row)), [false, true, true]);
        assert_eq!(stored.paths[4..], [Some(path.clone()), Some(path.clone())]);
    };
    check(&live.snapshot().to_directory());
    check(&GalleryDirectory::read(folder.path()).unwrap());
    drop(live);
    let mut live = LiveGallery::open(folder.path()).unwrap();
    check(&live.snapshot().to_directory());
    // The picture goes with its item, and the last item stays, however many rows it has.
    let answers = live.write(vec![remove("stork"), remove("dog"), remove("robin")]).unwrap();
    assert!(matches!(answers[..], [Ok(()), Ok(()), Err(EditError::Last { .. })]), "{answers:?}");
    assert!(!folder.path().join(path).exists());
    assert_eq!(live.snapshot().gallery().item_count(), 1);
}
