//! Galleries written and read back, damaged, lied about, and checked against queries.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::gallery::GalleryError;
use crate::storage::digest::Digest;
use crate::{Components, NormBound, Seed, Sigma};

fn gallery(metric: Metric) -> Gallery {
    let vectors = (1..=12).map(|number| number as f32 / 7.0).collect();
    let identities = ["cat 1", "kätzchen \"2\"", "dog\n1", "cat 1"].map(String::from).to_vec();
    Gallery::new(vectors, 3, identities, &["cat", "cat", "dog", "cat"], metric).unwrap()
}

fn provenance() -> Provenance {
    Provenance {
        sigma: Some(Sigma::new(0.1).unwrap()),
        samples: Some(16),
        seed: Some(SeedRecord::Fixed(Seed::from_bytes([0xfe; 16]))),
        norm_bound: NormBound::UNIT,
        components: Components::Any,
        model: Some(Digest::of_bytes(b"model")),
        contract: Some(Digest::of_bytes(b"contract")),
        engine: Some(Engine { name: "rten".into(), version: "0.25".into() }),
        data_set: None,
        views: None,
    }
}

fn paths() -> Vec<Option<String>> {
    ["a.jpg", "b.jpg", "c.jpg"].map(|path| Some(path.to_owned())).into_iter().chain([None]).collect()
}

/// A temporary directory in memory where there is one: thousands of small files need no disk.
fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A gallery in a temporary directory.
fn stored() -> (tempfile::TempDir, PathBuf) {
    let folder = folder_in_memory();
    let path = folder.path().join("inner/gallery");
    GalleryDirectory::write(&path, &gallery(Metric::Cosine), &paths(), provenance()).unwrap();
    (folder, path)
}

/// Changes one thing in the text of a manifest, and seals it again.
fn edit(directory: &Path, from: &str, to: &str) {
    let path = directory.join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    let mut value: serde_json::Value = serde_json::from_str(&text.replacen(from, to, 1)).unwrap();
    value.as_object_mut().unwrap().remove(sealed::SEAL);
    fs::write(&path, sealed::seal(&value).unwrap()).unwrap();
}

#[test]
fn a_manifest_that_was_changed_is_refused_in_every_field() {
    let (_folder, path) = stored();
    let file = path.join(MANIFEST);
    let text = fs::read_to_string(&file).unwrap();
    let GalleryDirectory { manifest: wanted, .. } = GalleryDirectory::read(&path).unwrap();
    for (from, to) in [
        ("\"sigma\": 0.1", "\"sigma\": 0.2"),
        ("\"samples\": ", "\"samples\": 1"),
        ("\"norm_bound\": 1.0", "\"norm_bound\": 2.0"),
        ("\"metric\": \"cosine\"", "\"metric\": \"euclidean\""),
        ("\"tool\": \"retrievalguard", "\"tool\": \"ratrievalguard"),
        ("\"sigma\"", "\"sygma\""),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let error = GalleryDirectory::read(&path).unwrap_err();
        assert!(matches!(error, StorageError::Seal { .. }), "{to}: {error}");
    }
    // A manifest of format 1 has no seal and is read.
    let plain = serde_json::to_string(&GalleryManifest { format: 1, ..wanted.clone() }).unwrap();
    fs::write(&file, plain).unwrap();
    assert_eq!(GalleryDirectory::read(&path).unwrap().manifest.provenance, wanted.provenance);
}

#[test]
fn the_digest_of_a_gallery_is_of_everything_but_where_its_pictures_lie() {
    let folder = tempfile::tempdir().unwrap();
    let mut digests = Vec::new();
    let elsewhere: Vec<Option<String>> =
        paths().iter().map(|path| path.as_ref().map(|path| format!("./{path}"))).collect();
    let other = Provenance { samples: Some(9), ..provenance() };
    for (place, (paths, provenance)) in
        [(paths(), provenance()), (elsewhere, provenance()), (Vec::new(), provenance()), (paths(), other)]
            .into_iter()
            .enumerate()
    {
        let path = folder.path().join(place.to_string());
        GalleryDirectory::write(&path, &gallery(Metric::Cosine), &paths, provenance).unwrap();
        digests.push(GalleryDirectory::read(&path).unwrap().digest());
    }
    assert_eq!((digests[1], digests[2]), (digests[0], digests[0]));
    assert_ne!(digests[3], digests[0]);
}

#[test]
fn a_gallery_is_read_back_as_it_was_written() {
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let folder = tempfile::tempdir().unwrap();
        let written = gallery(metric);
        let manifest = GalleryDirectory::write(folder.path(), &written, &paths(), provenance()).unwrap();
        let found = GalleryDirectory::read(folder.path()).unwrap();
        assert_eq!(found.manifest, manifest);
        assert_eq!(found.paths, paths());
        assert_eq!(found.gallery.vectors(), written.vectors());
        assert_eq!(found.gallery.metric(), metric);
        for row in 0..written.len() {
            assert_eq!(found.gallery.identity(row), written.identity(row));
            let name = |gallery: &Gallery| gallery.label_name(gallery.label(row)).to_owned();
            assert_eq!(name(&found.gallery), name(&written));
        }
    }
}

#[test]
fn the_same_gallery_is_the_same_bytes() {
    let ((_first, one), (_second, other)) = (stored(), stored());
    for name in [MANIFEST, VECTORS, ITEMS] {
        assert_eq!(fs::read(one.join(name)).unwrap(), fs::read(other.join(name)).unwrap(), "{name}");
    }
}

#[test]
fn a_gallery_from_elsewhere_knows_what_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let unknown = Provenance::unknown(NormBound::UNIT);
    GalleryDirectory::write(folder.path(), &gallery(Metric::Euclidean), &[], unknown.clone()).unwrap();
    let manifest = GalleryDirectory::read(folder.path()).unwrap().manifest;
    assert_eq!(manifest.provenance, unknown);
    assert_eq!(manifest.unknown(), ["sigma", "samples", "model", "model config", "engine", "data set"]);
    let secret = Provenance { seed: Some(SeedRecord::Secret), ..provenance() };
    GalleryDirectory::write(folder.path(), &gallery(Metric::Euclidean), &[], secret.clone()).unwrap();
    assert_eq!(GalleryDirectory::read(folder.path()).unwrap().manifest.provenance, secret);
}

#[test]
fn a_directory_without_a_manifest_is_unfinished() {
    let (_folder, path) = stored();
    fs::remove_file(path.join(MANIFEST)).unwrap();
    let error = GalleryDirectory::read(&path).unwrap_err();
    assert!(matches!(error, StorageError::NoManifest { .. }), "{error}");
    assert!(error.to_string().contains("has no manifest.json"), "{error}");
    let error = GalleryDirectory::read(Path::new("/nowhere")).unwrap_err();
    assert!(matches!(error, StorageError::NoManifest { .. }), "{error}");
}

#[test]
fn any_changed_byte_of_any_file_is_noticed() {
    let (_folder, path) = stored();
    for name in [VECTORS, ITEMS] {
        let whole = fs::read(path.join(name)).unwrap();
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            fs::write(path.join(name), &bytes).unwrap();
            assert!(GalleryDirectory::read(&path).is_err(), "byte {place} of {name}");
        }
        for length in 0..whole.len() {
            fs::write(path.join(name), &whole[..length]).unwrap();
            let error = GalleryDirectory::read(&path).unwrap_err();
            assert!(matches!(error, StorageError::Size { .. }), "{name} cut to {length}: {error}");
        }
        fs::write(path.join(name), &whole).unwrap();
    }
    let manifest = fs::read(path.join(MANIFEST)).unwrap();
    for length in 0..manifest.len() - 1 {
        fs::write(path.join(MANIFEST), &manifest[..length]).unwrap();
        let error = GalleryDirectory::read(&path).unwrap_err();
        assert!(matches!(error, StorageError::Json { .. }), "manifest cut to {length}: {error}");
    }
}

#[test]
fn lying_manifests_are_refused() {
    let table = [
        ("\"format\": 2", "\"format\": 7", "has format version 7, wanted 2"),
        ("\"items\": 4", "\"items\": 5", "has 4 vectors, its manifest says 5"),
        ("\"dimension\": 3", "\"dimension\": 4", "has 3 components per vector, its manifest says 4"),
        ("\"sigma\": 0.1", "\"sigma\": -0.1", "is not a gallery manifest"),
        ("\"metric\": \"cosine\"", "\"metric\": \"manhattan\"", "is not a gallery manifest"),
        ("\"items\": 4", "\"items\": -4", "is not a gallery manifest"),
        ("\"bytes\": 1", "\"bytes\": 9999999991", "its manifest says 9999999991"),
    ];
    for (from, to, wanted) in table {
        let (_folder, path) = stored();
        edit(&path, from, to);
        let error = GalleryDirectory::read(&path).unwrap_err().to_string();
        assert!(error.contains(wanted), "{to}: {error}");
    }
    let (_folder, path) = stored();
    fs::write(path.join(MANIFEST), vec![b' '; (MANIFEST_LIMIT + 1) as usize]).unwrap();
    assert!(matches!(GalleryDirectory::read(&path), Err(StorageError::TooLarge { .. })));
}

#[test]
fn vectors_that_are_no_numbers_are_refused_even_with_a_true_digest() {
    let (_folder, path) = stored();
    let mut bytes = fs::read(path.join(VECTORS)).unwrap();
    let before = Digest::of_bytes(&bytes).to_string();
    let place = bytes.len() - 4;
    bytes[place..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(path.join(VECTORS), &bytes).unwrap();
    edit(&path, &before, &Digest::of_bytes(&bytes).to_string());
    let error = GalleryDirectory::read(&path).unwrap_err();
    assert!(
        matches!(&error, StorageError::Gallery { source: GalleryError::NotFinite { row: 3, .. }, .. }),
        "{error}"
    );
}

#[test]
fn paths_are_given_for_all_items_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let written =
        GalleryDirectory::write(folder.path(), &gallery(Metric::Cosine), &paths()[..2], provenance());
    assert!(matches!(written, Err(StorageError::Paths { found: 2, wanted: 4 })));
}

#[test]
fn every_disagreement_with_the_queries_is_said() {
    let (_folder, path) = stored();
    let manifest = GalleryDirectory::read_manifest(&path).unwrap();
    let queries = QuerySide {
        sigma: Sigma::new(0.1).ok(),
        dimension: 3,
        norm_bound: NormBound::UNIT,
        components: Components::Any,
        model: Some(Digest::of_bytes(b"model")),
        contract: Some(Digest::of_bytes(b"contract")),
    };
    assert_eq!(manifest.check_against("x", &queries), Ok(()));
    assert_eq!(manifest.check_against("x", &QuerySide { model: None, ..queries.clone() }), Ok(()));
    let clamped = QuerySide { components: Components::NonNegative, ..queries.clone() };
    assert_eq!(
        manifest.check_against("x", &clamped).unwrap_err().to_string(),
        "gallery `x` has unclamped embeddings, the queries clamped ones"
    );
    let silent = QuerySide { sigma: None, ..queries.clone() };
    assert_eq!(
        manifest.check_against("x", &silent).unwrap_err().to_string(),
        "gallery `x` was smoothed with sigma 0.1, the queries have no noise"
    );
    let louder = QuerySide { sigma: Sigma::new(0.25).ok(), ..queries.clone() };
    assert_eq!(
        manifest.check_against("x", &louder).unwrap_err().to_string(),
        "gallery `x` was smoothed with sigma 0.1, the queries with 0.25"
    );
    let other = QuerySide {
        dimension: 4,
        norm_bound: NormBound::new(2.0).unwrap(),
        model: Some(Digest::of_bytes(b"other")),
        contract: Some(Digest::of_bytes(b"other")),
        ..queries
    };
    assert_eq!(
        manifest.check_against("x", &other).unwrap_err().to_string(),
        "gallery `x` has vectors of dimension 3, the queries of 4; it has norm bound 1, the queries 2; \
         it was embedded by model 9372c470eead…, the queries by d9298a10d1b0…; \
         it was prepared by model config cc8321d6375c…, the queries by d9298a10d1b0…"
    );
    let clean = GalleryManifest { provenance: Provenance { sigma: None, ..manifest.provenance }, ..manifest };
    assert_eq!(clean.check_against("x", &louder), Ok(()));
}

fn views() -> ViewSet {
    use crate::views::{Flip, View};
    let mirrored = View { flip: Some(Flip::Horizontal), ..View::named("mirrored") };
    ViewSet::new("flips", vec![View::named("as is"), mirrored]).unwrap()
}

/// Two items with two views each, in a temporary directory.
fn stored_with_views() -> (tempfile::TempDir, PathBuf) {
    let folder = folder_in_memory();
    let path = folder.path().join("gallery");
    let identities = ["cat", "cat", "dog", "dog"].map(String::from).to_vec();
    let vectors = (1..=12).map(|number| number as f32 / 7.0).collect();
    let gallery = Gallery::new(vectors, 3, identities.clone(), &identities, Metric::Euclidean).unwrap();
    let gallery = gallery.with_views(views().names()).unwrap();
    let provenance = Provenance { views: Some(views()), ..provenance() };
    GalleryDirectory::write(&path, &gallery, &paths(), provenance).unwrap();
    (folder, path)
}

#[test]
fn a_gallery_with_views_comes_back_and_counts_items() {
    let (_folder, path) = stored_with_views();
    let stored = GalleryDirectory::read(&path).unwrap();
    assert_eq!((stored.manifest.items, stored.manifest.rows(), stored.gallery.item_count()), (2, 4, 2));
    assert_eq!(stored.gallery.view_names(), ["as is", "mirrored"]);
    assert_eq!(stored.manifest.provenance.views, Some(views()));
    // Versions that know nothing of views must not take them for items.
    assert_eq!(stored.manifest.format, VIEWS_FORMAT);
    let lines = fs::read_to_string(path.join(ITEMS)).unwrap();
    assert!(lines.lines().nth(1).unwrap().contains(r#""view":"mirrored""#), "{lines}");
}

#[test]
fn a_gallery_without_views_says_nothing_of_them() {
    let (_folder, path) = stored();
    let text =
        fs::read_to_string(path.join(MANIFEST)).unwrap() + &fs::read_to_string(path.join(ITEMS)).unwrap();
    assert!(!text.contains("view"), "{text}");
    assert_eq!(GalleryDirectory::read(&path).unwrap().manifest.format, GALLERY_FORMAT);
}

#[test]
fn views_that_disagree_with_the_manifest_are_refused() {
    let refused = |path: &Path| GalleryDirectory::read(path).unwrap_err();
    // The manifest tells of other views than the rows, or of another number of them.
    let (_folder, path) = stored_with_views();
    edit(&path, "\"format\": 3", "\"format\": 2");
    assert!(matches!(refused(&path), StorageError::ViewsFormat { format: 2, .. }));
    let (_folder, path) = stored();
    edit(&path, "\"format\": 2", "\"format\": 3");
    assert!(matches!(refused(&path), StorageError::ViewsFormat { format: 3, .. }));
    let (_folder, path) = stored_with_views();
    edit(&path, "\"items\": 2", "\"items\": 4");
    assert!(matches!(refused(&path), StorageError::Count { found: 4, wanted: 8, .. }));
    let (_folder, path) = stored_with_views();
    edit(&path, "\"horizontal\"", "\"vertical\"");
    let error = refused(&path);
    assert!(matches!(error, StorageError::Json { .. }), "{error}");
    // A gallery is not written with other views than it has.
    let error = GalleryDirectory::write(
        &path,
        &gallery(Metric::Euclidean),
        &[],
        Provenance { views: Some(views()), ..provenance() },
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "the items of the gallery have no views, wanted the views as is, mirrored"
    );
    // Rows that are called another view, in a file that the manifest vouches for.
    for (from, to, wanted) in [
        (r#","view":"mirrored""#, "", "is no view, its manifest says the view `mirrored`"),
        ("mirrored", "as is", "line 2 of"),
    ] {
        let (_folder, path) = stored_with_views();
        let old = FileRecord::of_file(&path.join(ITEMS)).unwrap();
        let text = fs::read_to_string(path.join(ITEMS)).unwrap().replacen(from, to, 1);
        fs::write(path.join(ITEMS), &text).unwrap();
        let new = FileRecord::of_bytes(text.as_bytes());
        edit(&path, &old.sha256.to_string(), &new.sha256.to_string());
        edit(&path, &format!("\"bytes\": {}", old.bytes), &format!("\"bytes\": {}", new.bytes));
        let error = refused(&path);
        assert!(matches!(error, StorageError::OtherView { line: 2, .. }), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    // The names are right, but the rows are of another picture.
    let (_folder, path) = stored_with_views();
    let old = FileRecord::of_file(&path.join(ITEMS)).unwrap();
    let text = fs::read_to_string(path.join(ITEMS)).unwrap();
    let text = text.replacen(r#""identity":"dog""#, r#""identity":"cow""#, 1);
    fs::write(path.join(ITEMS), &text).unwrap();
    edit(&path, &old.sha256.to_string(), &FileRecord::of_bytes(text.as_bytes()).sha256.to_string());
    let error = refused(&path);
    assert!(
        matches!(error, StorageError::Gallery { source: GalleryError::ViewOfAnother { row: 3, .. }, .. }),
        "{error}"
    );
}
