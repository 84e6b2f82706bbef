//! Journals cut at every byte, flipped at every bit, and held by two; `tests/children.rs` kills their writers.

use serde_json::json;

use super::*;

fn run() -> Value {
    json!({"samples": 100, "sigma": 0.25, "model": {"engine": "rten", "digest": "ab"}})
}

fn open(path: &Path) -> Result<Opened, JournalError> {
    Journal::open_or_create(path, Digest::of_json(&run()), &run())
}

/// A temporary directory in memory where there is one: thousands of small files need no disk.
fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn record(number: usize) -> Vec<u8> {
    json!({"identity": format!("picture ü {number}"), "radius": number as f64 / 8.0}).to_string().into_bytes()
}

/// A journal of `count` records, as bytes.
fn written(count: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut journal = open(&path).unwrap().journal;
    for number in 0..count {
        journal.append(&record(number)).unwrap();
    }
    assert_eq!(journal.records(), count as u64);
    drop(journal);
    fs::read(&path).unwrap()
}

#[test]
fn stopped_at_any_byte_it_keeps_whole_records_and_goes_on() {
    let whole = written(4);
    let folder = folder_in_memory();
    let path = folder.path().join("journal");
    let wanted: Vec<Vec<u8>> = (0..4).map(record).collect();
    let mut seen = 0;
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let mut opened = open(&path).unwrap_or_else(|error| panic!("cut to {length} bytes: {error}"));
        let kept = opened.records.len();
        assert_eq!(opened.records, wanted[..kept], "cut to {length} bytes");
        assert!(kept >= seen, "cut to {length} bytes: {kept} records after {seen}");
        seen = kept;
        for number in kept..4 {
            opened.journal.append(&record(number)).unwrap();
        }
        drop(opened);
        assert_eq!(fs::read(&path).unwrap(), whole, "cut to {length} bytes");
    }
    assert_eq!(seen, 4);
}

#[test]
fn dropped_bytes_are_counted() {
    let whole = written(2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let opened = open(&path).unwrap();
    let last = record_line(Digest::of_json(&run()), 1, Group { first: 1, last: 1 }, &record(1)).len() as u64;
    assert_eq!((opened.records.len(), opened.dropped_bytes), (1, last - 3));
    drop(opened);
    assert_eq!(open(&path).unwrap().dropped_bytes, 0);
}

#[test]
fn no_flipped_bit_ever_changes_a_record() {
    let whole = written(3);
    let folder = folder_in_memory();
    let path = folder.path().join("journal");
    let wanted: Vec<Vec<u8>> = (0..3).map(record).collect();
    let mut refused = 0;
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        match open(&path) {
            // Only the last record can look like one that was never finished.
            Ok(opened) => {
                assert_eq!(opened.records, wanted[..2], "bit {bit}");
                assert!(opened.dropped_bytes > 0, "bit {bit}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("journal"), "bit {bit}: {error}");
                assert_eq!(fs::read(&path).unwrap(), bytes, "bit {bit}: a refused file was changed");
            }
        }
    }
    assert!(refused > 7 * whole.len(), "{refused} of {}", 8 * whole.len());
}

#[test]
fn damage_in_the_middle_is_refused_with_its_place() {
    let whole = written(3);
    let key = Digest::of_json(&run());
    let lengths: Vec<usize> = (0..3)
        .map(|number| {
            record_line(key, number, Group { first: number, last: number }, &record(number as usize)).len()
        })
        .collect();
    let middle = whole.len() - lengths[2] - lengths[1];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut zeroed = whole.clone();
    zeroed[middle + 5..middle + 9].fill(0);
    let mut missing = whole.clone();
    missing.drain(middle..middle + lengths[1]);
    let mut repeated = whole.clone();
    repeated.extend_from_slice(&whole[middle..]);
    for (what, bytes, place) in
        [("zeroed", zeroed, middle), ("missing", missing, middle), ("repeated", repeated, whole.len())]
    {
        fs::write(&path, &bytes).unwrap();
        match open(&path) {
            Err(JournalError::Damaged { offset, .. }) => assert_eq!(offset, place as u64, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn a_last_record_that_a_power_cut_left_as_zeros_is_dropped() {
    let mut bytes = written(2);
    let length = bytes.len();
    bytes.extend_from_slice(&[0; 80]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    fs::write(&path, &bytes).unwrap();
    let opened = open(&path).unwrap();
    assert_eq!((opened.records.len(), opened.dropped_bytes), (2, 80));
    assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
}

/// A journal of a single record and groups of two, three and one, as bytes.
fn grouped() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut journal = open(&path).unwrap().journal;
    journal.append(&record(0)).unwrap();
    for (first, end) in [(1, 3), (3, 6), (6, 6), (6, 7)] {
        journal.append_all(&(first..end).map(record).collect::<Vec<_>>()).unwrap();
        assert_eq!(journal.records(), end as u64);
    }
    drop(journal);
    fs::read(&path).unwrap()
}

#[test]
fn records_written_together_are_kept_up_to_any_byte() {
    let whole = grouped();
    let folder = folder_in_memory();
    let path = folder.path().join("journal");
    let wanted: Vec<Vec<u8>> = (0..7).map(record).collect();
    let mut seen = 0;
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let looked_at = Journal::read(&path).unwrap_or_else(|error| panic!("cut to {length} bytes: {error}"));
        assert_eq!(fs::read(&path).unwrap(), whole[..length], "looking changed it");
        let mut opened = open(&path).unwrap_or_else(|error| panic!("cut to {length} bytes: {error}"));
        let kept = opened.records.len();
        assert_eq!(opened.records, wanted[..kept], "cut to {length} bytes");
        assert!(kept == seen || kept == seen + 1, "cut to {length} bytes: {kept} records after {seen}");
        seen = kept;
        match looked_at {
            Some(contents) => {
                assert_eq!(contents.run_key, Digest::of_json(&run()));
                assert_eq!(contents.description, run());
                assert_eq!(contents.records, opened.records, "cut to {length} bytes");
                assert_eq!(contents.unfinished_bytes, opened.dropped_bytes, "cut to {length} bytes");
            }
            None => assert_eq!(kept, 0, "cut to {length} bytes"),
        }
        opened.journal.append_all(&wanted[kept..]).unwrap();
        drop(opened);
        assert_eq!(open(&path).unwrap().records, wanted, "cut to {length} bytes and continued");
    }
    assert_eq!(seen, 7);
}

#[test]
fn a_power_cut_may_keep_later_records_of_the_last_group_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut journal = open(&path).unwrap().journal;
    journal.append(&record(0)).unwrap();
    let single = fs::metadata(&path).unwrap().len() as usize;
    let group: Vec<Vec<u8>> = (1..5).map(record).collect();
    journal.append_all(&group).unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> =
        (single..whole.len()).filter(|&place| whole[place] == b'\n').map(|place| place + 1).collect();
    // A block of the group that never reached the disk: what lies before it stays, what lies behind it was not promised.
    for (start, end, kept) in [(single, ends[0], 1), (ends[0] - 4, ends[1] - 9, 1), (ends[1], ends[2], 3)] {
        let mut bytes = whole.clone();
        bytes[start..end].fill(0);
        fs::write(&path, &bytes).unwrap();
        let opened = open(&path).unwrap_or_else(|error| panic!("{start}..{end}: {error}"));
        assert_eq!(opened.records, (0..kept).map(record).collect::<Vec<_>>(), "{start}..{end}");
        assert!(opened.dropped_bytes > 0);
    }
    // The record before the group was on the disk before the group was written.
    let mut bytes = whole.clone();
    bytes[single - 8..single - 2].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(open(&path), Err(JournalError::Damaged { .. })));
    // And a group is whole once something follows it.
    fs::write(&path, &whole).unwrap();
    open(&path).unwrap().journal.append(&record(5)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[ends[0] + 4..ends[0] + 9].fill(0);
    fs::write(&path, &bytes).unwrap();
    match open(&path) {
        Err(JournalError::Damaged { offset, .. }) => assert_eq!(offset, ends[0] as u64),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_flipped_bit_of_a_group_ever_changes_a_record() {
    let whole = grouped();
    let folder = folder_in_memory();
    let path = folder.path().join("journal");
    let wanted: Vec<Vec<u8>> = (0..7).map(record).collect();
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        match Journal::read(&path) {
            Ok(Some(contents)) => assert_eq!(contents.records, wanted[..6], "bit {bit}"),
            Ok(None) => panic!("bit {bit}: the header was taken for an unfinished one"),
            Err(error) => assert!(error.to_string().contains("journal"), "bit {bit}: {error}"),
        }
    }
}

#[test]
fn a_journal_is_read_while_another_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    assert_eq!(Journal::read(&path).unwrap(), None);
    let mut journal = open(&path).unwrap().journal;
    assert_eq!(Journal::read(&path).unwrap().unwrap().records, Vec::<Vec<u8>>::new());
    journal.append_all(&[record(0), record(1)]).unwrap();
    assert_eq!(Journal::read(&path).unwrap().unwrap().records, [record(0), record(1)]);
    for bytes in [&b"identity,label\n"[..], b"x", b"retrievalguard journal 2\nabc\n"] {
        let other = folder.path().join("other");
        fs::write(&other, bytes).unwrap();
        assert!(Journal::read(&other).is_err());
    }
}

#[test]
fn another_run_is_told_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    drop(open(&path).unwrap());
    let other = json!({"seed": "7", "sigma": 0.5, "model": {"engine": "onnxruntime", "digest": "ab"}});
    let error = Journal::open_or_create(&path, Digest::of_json(&other), &other).unwrap_err();
    let JournalError::OtherRun { differences, .. } = &error else { panic!("{error}") };
    assert_eq!(
        differences.to_string(),
        "model.engine is \"rten\", wanted \"onnxruntime\"; samples is 100, wanted none; \
         seed is missing, wanted \"7\"; sigma is 0.25, wanted 0.5"
    );
    let error = Journal::open_or_create(&path, Digest::of_bytes(b"inputs"), &run()).unwrap_err();
    assert!(error.to_string().ends_with("its key differs, though its description is the same"), "{error}");
}

#[test]
fn two_never_hold_the_same_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let first = open(&path).unwrap();
    assert!(matches!(open(&path), Err(JournalError::InUse { .. })));
    drop(first);
    let second = open(&path).unwrap();
    second.journal.remove().unwrap();
    assert!(!path.exists());
    assert_eq!(open(&path).unwrap().records.len(), 0);
}

#[test]
fn other_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    for (bytes, wanted) in [
        (&b"identity,label\n"[..], "it begins with `identity,label`"),
        (b"\xff\xfe\0\0", "is not a journal"),
        (b"retrievalguard journal 2\nabc\n", "has format version 2, wanted 1"),
        (b"retrievalguard journal 1\nabc\n", "is damaged at byte 25"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, JournalError::Write(WriteError::IsDirectory { .. })), "{error}");
    let error = open(&folder.path().join("missing/journal")).unwrap_err();
    assert!(matches!(error, JournalError::Write(WriteError::NoDirectory { .. })), "{error}");
}

#[test]
fn records_are_single_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder.path().join("journal")).unwrap().journal;
    assert!(matches!(journal.append(b"a\nb"), Err(JournalError::LineBreak { position: 1, .. })));
    let group = [&b"a"[..], b"", b"ab\n"];
    assert!(matches!(
        journal.append_all(&group),
        Err(JournalError::LineBreak { number: 2, position: 2, .. })
    ));
    journal.append(b"").unwrap();
    journal.append(b"\0\r\xff").unwrap();
    drop(journal);
    let opened = open(&folder.path().join("journal")).unwrap();
    assert_eq!(opened.records, [&b""[..], b"\0\r\xff"]);
}
