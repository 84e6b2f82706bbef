//! What earlier versions wrote: read, refused or upgraded, as docs/file-formats.md says.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::CertificateName;
use retrievalguard::storage::lock::FolderLock;
use retrievalguard::storage::manifest::{GALLERY_FORMAT, GalleryDirectory};
use retrievalguard_encoder::pipeline::run_files::{RunError, StoredRun};
use retrievalguard_encoder::pipeline::upgrade::{UpgradeError, Upgraded, upgrade};
use retrievalguard_encoder::table::gallery_file::import_parquet;
use retrievalguard_encoder::table::{ResultTable, TableError, TableRecord, Unverified};

/// A copy of what a version wrote.
fn written_by(format: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/formats/{format}"));
    let path = folder.path().to_owned();
    copy(&source, &path);
    (folder, path)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).unwrap();
        }
    }
}

#[test]
fn a_gallery_of_format_1_is_read_and_upgraded_in_place() {
    let (_folder, path) = written_by(1);
    let gallery = path.join("gallery");
    let before = GalleryDirectory::read(&gallery).unwrap();
    assert_eq!((before.manifest.format, before.gallery.len()), (1, 9));
    assert_eq!(upgrade(&gallery, None, Unverified::Refuse).unwrap(), Upgraded::Gallery);
    let after = GalleryDirectory::read(&gallery).unwrap();
    assert_eq!(after.manifest.format, GALLERY_FORMAT);
    assert_eq!(after.digest(), before.digest());
    assert_eq!(after.paths, before.paths);
    let again = upgrade(&gallery, None, Unverified::Refuse);
    assert!(matches!(again, Err(UpgradeError::Nothing { .. })), "{again:?}");

    // Its export holds the digests of both files, though not of the manifest.
    let imported = import_parquet(&path.join("gallery.parquet"), None).unwrap();
    assert_eq!(imported.gallery.vectors(), before.gallery.vectors());
    assert_eq!(imported.provenance, Some(before.manifest.provenance));
}

#[test]
fn a_table_of_format_1_is_refused_unless_it_is_asked_for() {
    let (_folder, path) = written_by(1);
    let run = path.join("run");
    for name in ["certificates.parquet", "certificates.jsonl"] {
        let refused = ResultTable::read(&run.join(name), Unverified::Refuse);
        assert!(matches!(refused, Err(TableError::NoDigest { .. })), "{name}: {refused:?}");
        let stored = ResultTable::read(&run.join(name), Unverified::Accept).unwrap();
        assert!(!stored.verified && stored.run.is_none(), "{name}");
        assert_eq!(stored.table.rows().len(), 9, "{name}");
    }
    assert!(matches!(StoredRun::open(&run), Err(RunError::Old { .. })));
}

#[test]
fn a_run_of_format_1_is_held_against_its_journal_and_upgraded() {
    let (_folder, path) = written_by(1);
    let (run, gallery) = (path.join("run"), path.join("gallery"));
    let before = ResultTable::read(&run.join("certificates.parquet"), Unverified::Accept).unwrap().table;
    // The gallery is not where it was.
    let lost = upgrade(&run, None, Unverified::Refuse);
    assert!(matches!(lost, Err(UpgradeError::Gallery(_))), "{lost:?}");
    assert_eq!(upgrade(&run, Some(&gallery), Unverified::Refuse).unwrap(), Upgraded::Run);
    let stored = StoredRun::open(&run).unwrap();
    assert_eq!(stored.table, before);
    assert_eq!(stored.description.gallery.digest, GalleryDirectory::read(&gallery).unwrap().digest());
    let smoothed = stored.description.smoothed().unwrap();
    assert_eq!(smoothed.procedure.certificates, [CertificateName::HalfSpace, CertificateName::Vote]);
    for name in ["certificates.parquet", "certificates.jsonl"] {
        assert!(ResultTable::read(&run.join(name), Unverified::Refuse).unwrap().verified, "{name}");
    }
    assert!(!run.join("inputs.json").exists());
}

#[test]
fn an_upgrade_that_was_cut_short_is_finished_by_another() {
    let (_done, path) = written_by(1);
    let done = path.join("run");
    assert_eq!(upgrade(&done, Some(&path.join("gallery")), Unverified::Refuse).unwrap(), Upgraded::Run);
    // One file after the other, in the order in which they are written.
    let written = ["certificates.parquet", "certificates.jsonl", "half-space.tsv", "vote.tsv"];
    let written = [&written[..], &["places.json", "run.json"]].concat();
    for there in 1..=written.len() {
        let (_folder, path) = written_by(1);
        let (run, gallery) = (path.join("run"), path.join("gallery"));
        for name in &written[..there] {
            fs::copy(done.join(name), run.join(name)).unwrap();
        }
        let finished = upgrade(&run, Some(&gallery), Unverified::Refuse);
        assert!(matches!(finished, Ok(Upgraded::Run)), "{there} files: {finished:?}");
        assert_eq!(StoredRun::open(&run).unwrap().table, StoredRun::open(&done).unwrap().table);
        assert!(!run.join("inputs.json").exists());
    }
}

#[test]
fn verdicts_of_deeper_recalls_come_from_the_journal() {
    for journal in [true, false] {
        let (_folder, path) = written_by(1);
        let (run, gallery) = (path.join("run"), path.join("gallery"));
        let deeper = run.join("recall-at-k.jsonl");
        fs::write(&deeper, "made up\n").unwrap();
        if !journal {
            fs::remove_file(run.join("certify.journal")).unwrap();
        }
        upgrade(&run, Some(&gallery), Unverified::Accept).unwrap();
        let record = TableRecord::read(&run.join("run.json")).unwrap().unwrap();
        assert_eq!(record.files.contains_key("recall-at-k.jsonl"), journal);
        assert_eq!(fs::read_to_string(&deeper).unwrap() != "made up\n", journal);
    }
}

#[test]
fn nobody_upgrades_what_somebody_else_writes_to() {
    let (_folder, path) = written_by(1);
    for name in ["run", "gallery"] {
        let folder = path.join(name);
        let _lock = FolderLock::take(&folder).unwrap();
        let refused = upgrade(&folder, Some(&path.join("gallery")), Unverified::Refuse);
        assert!(matches!(refused, Err(UpgradeError::Lock(_))), "{refused:?}");
    }
}

#[test]
fn a_run_of_format_1_that_was_changed_is_not_upgraded() {
    for (name, from, to) in [
        ("certify.journal", "\"retrieved\":\"class", "\"retrieved\":\"glass"),
        ("run.json", "\"alpha\": 0.01", "\"alpha\": 0.02"),
    ] {
        let (_folder, path) = written_by(1);
        let (run, gallery) = (path.join("run"), path.join("gallery"));
        let text = fs::read_to_string(run.join(name)).unwrap();
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        fs::write(run.join(name), changed).unwrap();
        for unverified in [Unverified::Refuse, Unverified::Accept] {
            assert!(upgrade(&run, Some(&gallery), unverified).is_err(), "{name}");
        }
    }
    // Without the journal nothing tells whether the table was changed.
    let (_folder, path) = written_by(1);
    let (run, gallery) = (path.join("run"), path.join("gallery"));
    let table = run.join("certificates.parquet");
    let whole = fs::read(&table).unwrap();
    fs::remove_file(run.join("certify.journal")).unwrap();
    let unknown = upgrade(&run, Some(&gallery), Unverified::Refuse);
    assert!(matches!(unknown, Err(UpgradeError::NoJournal { .. })), "{unknown:?}");
    assert_eq!(fs::read(&table).unwrap(), whole);
    assert_eq!(upgrade(&run, Some(&gallery), Unverified::Accept).unwrap(), Upgraded::UnverifiedRun);
    assert!(StoredRun::open(&run).is_ok());
}
