//! Galleries that hold the embeddings of their clean pictures beside the vectors that certificates speak of.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use retrievalguard::gallery::{Gallery, GalleryError, Metric, NewItem};
use retrievalguard::storage::live::{Edit, EditError, LiveGallery};
use retrievalguard::storage::manifest::{GALLERY_FORMAT, GalleryDirectory, PLAIN_FORMAT, Provenance};
use retrievalguard::storage::shards::{ShardItem, ShardOptions, ShardWriter, ShardedGallery};
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};
use retrievalguard::views::{Flip, View, ViewSet};
use retrievalguard::{NormBound, Sigma};

const DIMENSION: usize = 3;

fn vectors(items: usize, step: f32) -> Vec<f32> {
    (0..items * DIMENSION).map(|place| (place as f32 * step).sin()).collect()
}

fn smoothed(items: usize, metric: Metric) -> Gallery {
    let names = (0..items).map(|item| format!("item {item}")).collect();
    let labels: Vec<String> = (0..items).map(|item| format!("label {}", item % 3)).collect();
    Gallery::new(vectors(items, 0.7), DIMENSION, names, &labels, metric).unwrap()
}

fn with_plain(items: usize, metric: Metric) -> Gallery {
    smoothed(items, metric).with_plain(vectors(items, 1.3)).unwrap()
}

fn provenance() -> Provenance {
    let sigma = Some(Sigma::new(0.25).unwrap());
    Provenance { sigma, samples: Some(8), ..Provenance::unknown(NormBound::new(10.0).unwrap()) }
}

fn nearest(gallery: GalleryRef<'_>) -> Vec<(usize, u64)> {
    let queries = vectors(5, 2.1);
    let found = gallery.nearest(&queries, 2, |_| &[1]).unwrap();
    found.into_iter().flatten().map(|found| (found.row, found.squared_distance.to_bits())).collect()
}

fn item(identity: &str, plain: Option<Vec<f32>>) -> Edit {
    let vector = vec![0.1, 0.2, 0.3];
    Edit::Add { item: NewItem { identity: identity.into(), label: "new".into(), vector, plain }, path: None }
}

#[test]
fn plain_vectors_come_back_and_searches_in_them_are_a_double_loop() {
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let folder = tempfile::tempdir().unwrap();
        let gallery = with_plain(7, metric);
        let manifest = GalleryDirectory::write(folder.path(), &gallery, &[], provenance()).unwrap();
        assert_eq!(manifest.format, PLAIN_FORMAT);
        let stored = GalleryDirectory::read(folder.path()).unwrap();
        let plain = stored.plain().unwrap();
        assert_eq!(plain.vectors(), gallery.plain().unwrap().vectors());
        assert_eq!(stored.gallery.vectors(), gallery.vectors());
        assert_eq!((plain.identity(4), plain.label(4)), (gallery.identity(4), gallery.label(4)));
        // By hand, in f64, the smaller row first among equals.
        for query in vectors(5, 2.1).chunks(DIMENSION) {
            let distance = |row: usize| -> f64 {
                let parts = plain.vector(row).iter().zip(query);
                parts.map(|(&one, &other)| (f64::from(one) - f64::from(other)).powi(2)).sum()
            };
            let wanted = (0..7).filter(|&row| row != 1);
            let wanted = wanted.min_by(|&one, &other| distance(one).total_cmp(&distance(other))).unwrap();
            assert_eq!(plain.nearest(query, 1, |_| &[1]).unwrap()[0][0].row, wanted, "{metric:?}");
        }
        // The certificates' own vectors are searched as if there were no others.
        assert_eq!(nearest((&stored.gallery).into()), nearest((&smoothed(7, metric)).into()));
    }
}

#[test]
fn the_digest_of_a_gallery_covers_its_plain_vectors_and_that_of_one_without_stays() {
    let folder = tempfile::tempdir().unwrap();
    let digest = |gallery: &Gallery| {
        GalleryDirectory::write(folder.path(), gallery, &[], provenance()).unwrap();
        GalleryDirectory::read(folder.path()).unwrap().digest()
    };
    let plain = digest(&with_plain(7, Metric::Euclidean));
    let other = digest(&smoothed(7, Metric::Euclidean).with_plain(vectors(7, 1.4)).unwrap());
    let without = digest(&smoothed(7, Metric::Euclidean));
    assert!(plain != other && plain != without && other != without);
    assert!(!folder.path().join("plain.npy").exists(), "that of the gallery before was left");
    let stored = GalleryDirectory::read(folder.path()).unwrap();
    assert_eq!((stored.manifest.format, stored.plain().is_none()), (GALLERY_FORMAT, true));
}

#[test]
fn vectors_of_clean_pictures_are_the_plain_ones_and_not_stored_twice() {
    let folder = tempfile::tempdir().unwrap();
    let clean = Provenance { samples: Some(0), sigma: None, ..provenance() };
    GalleryDirectory::write(folder.path(), &smoothed(4, Metric::Euclidean), &[], clean).unwrap();
    assert!(!folder.path().join("plain.npy").exists());
    let stored = StoredGallery::open(folder.path()).unwrap();
    assert_eq!(nearest(stored.plain().unwrap()), nearest(stored.gallery()));
}

#[test]
fn every_view_has_a_plain_vector() {
    let mirrored = View { flip: Some(Flip::Horizontal), ..View::named("mirrored") };
    let set = ViewSet::new("flips", vec![View::named("as is"), mirrored]).unwrap();
    let names: Vec<String> = ["a", "a", "b", "b"].map(String::from).to_vec();
    let gallery = Gallery::new(vectors(4, 0.7), DIMENSION, names, &["x", "x", "y", "y"], Metric::Euclidean);
    let gallery = gallery.unwrap().with_plain(vectors(4, 1.3)).unwrap().with_views(set.names()).unwrap();
    assert_eq!(gallery.plain().unwrap().view(1), gallery.view(1));
    let folder = tempfile::tempdir().unwrap();
    let made = Provenance { views: Some(set), ..provenance() };
    let manifest = GalleryDirectory::write(folder.path(), &gallery, &[], made).unwrap();
    assert_eq!(manifest.format, PLAIN_FORMAT);
    let stored = GalleryDirectory::read(folder.path()).unwrap();
    assert_eq!(stored.plain().unwrap().item_count(), 2);
    assert_eq!(stored.plain().unwrap().view_names(), gallery.view_names());
}

#[test]
fn shards_search_plain_vectors_as_one_piece_does() {
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let gallery = with_plain(11, metric);
        let whole = tempfile::tempdir().unwrap();
        GalleryDirectory::write(whole.path(), &gallery, &[], provenance()).unwrap();
        let whole = StoredGallery::open(whole.path()).unwrap();
        for shards in [1, 3, 4, 11] {
            let folder = tempfile::tempdir().unwrap();
            let number = NonZeroUsize::new(shards).unwrap();
            ShardedGallery::write(folder.path(), &gallery, &[], provenance(), number).unwrap();
            let cut = StoredGallery::open(folder.path()).unwrap();
            assert_eq!(nearest(cut.plain().unwrap()), nearest(whole.plain().unwrap()), "{shards} {metric:?}");
            assert_eq!(nearest(cut.gallery()), nearest(whole.gallery()), "{shards} {metric:?}");
            assert_eq!(cut.digest().unwrap(), whole.digest().unwrap(), "{shards} {metric:?}");
            let StoredGallery::Shards(sharded) = &cut else { panic!("not in shards") };
            let single = ShardedGallery::clone(sharded).threads(NonZeroUsize::MIN);
            assert_eq!(nearest(single.plain().unwrap().into()), nearest(whole.plain().unwrap()));
            // Each shard is a gallery of its own.
            let first = GalleryDirectory::read(&folder.path().join("shard-00000")).unwrap();
            assert_eq!(first.plain().unwrap().vector(0), gallery.plain().unwrap().vector(0));
        }
    }
}

#[test]
fn shards_of_which_some_lack_plain_vectors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        ShardOptions { dimension: DIMENSION, metric: Metric::Euclidean, rows: NonZeroUsize::new(2).unwrap() };
    let vector = [0.1, 0.2, 0.3];
    let mut writer = ShardWriter::create(folder.path(), options, provenance()).unwrap();
    let with = ShardItem { identity: "a", label: "b", vector: &vector, plain: Some(&vector), path: None };
    writer.push(&with).unwrap();
    let refused = writer.push(&ShardItem { plain: None, ..with }).unwrap_err();
    assert!(refused.to_string().contains("no embedding of its clean picture"), "{refused}");
    let short = writer.push(&ShardItem { plain: Some(&vector[..2]), ..with }).unwrap_err();
    assert!(short.to_string().contains("2 components"), "{short}");
    writer.push(&with).unwrap();
    writer.push(&with).unwrap();
    writer.finish().unwrap();
    assert_eq!(ShardedGallery::open(folder.path()).unwrap().plain().unwrap().len(), 3);
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_changed_bit_of_plain_vectors_is_noticed_in_one_piece_and_in_shards() {
    for shards in [None, NonZeroUsize::new(2)] {
        let folder = tempfile::tempdir().unwrap();
        StoredGallery::write(folder.path(), &with_plain(4, Metric::Euclidean), &[], provenance(), shards)
            .unwrap();
        let plain: Vec<_> =
            files(folder.path()).into_iter().filter(|path| path.ends_with("plain.npy")).collect();
        assert_eq!(plain.len(), shards.map_or(1, NonZeroUsize::get));
        for path in plain {
            let whole = fs::read(&path).unwrap();
            for place in 0..whole.len() {
                let mut bytes = whole.clone();
                bytes[place] ^= 1 << (place % 8);
                fs::write(&path, &bytes).unwrap();
                assert!(StoredGallery::open(folder.path()).is_err(), "byte {place} of {}", path.display());
            }
            fs::write(&path, &whole[..whole.len() - 1]).unwrap();
            assert!(StoredGallery::open(folder.path()).is_err());
            fs::remove_file(&path).unwrap();
            assert!(StoredGallery::open(folder.path()).is_err());
            fs::write(&path, &whole).unwrap();
            StoredGallery::open(folder.path()).unwrap();
        }
    }
}

#[test]
fn added_items_bring_their_plain_vectors_and_readers_see_what_the_writer_sees() {
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let folder = tempfile::tempdir().unwrap();
        GalleryDirectory::write(folder.path(), &with_plain(4, metric), &[], provenance()).unwrap();
        let mut live = LiveGallery::open(folder.path()).unwrap();
        let answers = live
            .write(vec![
                item("one", Some(vec![0.6, 0.0, 0.8])),
                item("none", None),
                item("short", Some(vec![0.6])),
                item("two", Some(vec![0.0, 3.0, 4.0])),
                Edit::Remove { identity: "item 2".into() },
                Edit::Remove { identity: "one".into() },
            ])
            .unwrap();
        let accepted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(accepted, [true, false, false, true, true, true]);
        assert!(matches!(&answers[1], Err(EditError::Item(GalleryError::PlainMissing { .. }))));
        let read = GalleryDirectory::read(folder.path()).unwrap();
        let snapshot = live.snapshot();
        assert_eq!(read.plain().unwrap().vectors(), snapshot.plain().unwrap().vectors());
        assert_eq!(read.plain().unwrap().identity(3), "two");
        let wanted = if metric == Metric::Cosine { [0.0, 0.6, 0.8] } else { [0.0, 3.0, 4.0] };
        assert_eq!(read.plain().unwrap().vector(3), wanted);
        // What it has become is what would be written anew.
        let anew = tempfile::tempdir().unwrap();
        let made = GalleryDirectory::write(anew.path(), &read.gallery, &read.paths, provenance()).unwrap();
        assert_eq!((made, read.manifest.clone()), (read.manifest.clone(), snapshot.manifest().clone()));
        drop(live);
        let again = LiveGallery::open(folder.path()).unwrap().snapshot();
        assert_eq!(again.plain().unwrap().vectors(), snapshot.plain().unwrap().vectors());
    }
}

#[test]
fn a_gallery_without_plain_vectors_takes_no_item_with_one() {
    let folder = tempfile::tempdir().unwrap();
    GalleryDirectory::write(folder.path(), &smoothed(4, Metric::Euclidean), &[], provenance()).unwrap();
    let mut live = LiveGallery::open(folder.path()).unwrap();
    let answers = live.write(vec![item("one", Some(vec![0.6, 0.0, 0.8])), item("two", None)]).unwrap();
    assert!(matches!(&answers[0], Err(EditError::Item(GalleryError::PlainUnwanted { .. }))));
    assert_eq!(answers[1], Ok(()));
    assert!(live.snapshot().plain().is_none());
}
