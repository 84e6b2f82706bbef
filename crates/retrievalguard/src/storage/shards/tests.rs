use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::NormBound;
use crate::gallery::{Positives, Relevance};
use crate::storage::live::{Edit, LiveGallery};
use crate::storage::manifest::GalleryDirectory;
use crate::storage::sealed::{seal, unseal};

/// Reproducible numbers (splitmix64), so that a failing case can be run again.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Uniform in `[-1, 1)`.
    fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

fn count(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap()
}

/// Writes the items of a gallery in shards of `rows` rows.
fn shard(path: &Path, gallery: &Gallery, rows: usize) -> ShardsManifest {
    let options =
        ShardOptions { dimension: gallery.dimension(), metric: gallery.metric(), rows: count(rows) };
    let mut writer = ShardWriter::create(path, options, Provenance::unknown(NormBound::UNIT)).unwrap();
    for row in 0..gallery.len() {
        let item = ShardItem {
            identity: gallery.identity(row),
            label: gallery.label_name(gallery.label(row)),
            vector: gallery.vector(row),
            plain: None,
            path: None,
        };
        writer.push(&item).unwrap();
    }
    writer.finish().unwrap()
}

/// Items whose pictures may own several rows.
fn gallery(vectors: Vec<f32>, dimension: usize, labels: usize, metric: Metric, seed: u64) -> Gallery {
    let mut numbers = Numbers(seed);
    let rows = vectors.len() / dimension;
    let identities = (0..rows).map(|_| format!("item \"{}\"\n", numbers.below(1 + rows))).collect();
    let labels: Vec<String> = (0..rows).map(|_| format!("label-{}", numbers.below(labels))).collect();
    Gallery::new(vectors, dimension, identities, &labels, metric).unwrap()
}

fn random_relevance(gallery: &Gallery, numbers: &mut Numbers) -> Relevance {
    let row = numbers.below(gallery.len());
    let positives = match numbers.below(4) {
        0 => Positives::Item(row),
        1 => Positives::Absent,
        _ => Positives::Label(gallery.label(row)),
    };
    let excluded = (0..numbers.below(6)).map(|_| numbers.below(gallery.len())).collect();
    Relevance::new(positives, excluded)
}

/// Cuts a gallery at random and compares every answer with that of the whole, bit for bit.
fn assert_equal(case: &str, whole: &Gallery, queries: &[f64], numbers: &mut Numbers) {
    let folder = tempfile::tempdir().unwrap();
    // Every shard is brought to the disk seven times over, so there are at most a dozen.
    let rows = (1 + numbers.below(whole.len())).max(whole.len() / 12);
    shard(folder.path(), whole, rows);
    let threads = 1 + numbers.below(4);
    let sharded = ShardedGallery::open(folder.path()).unwrap().threads(count(threads));
    let case = format!("{case}, shards of {rows}, {threads} threads");
    assert_eq!(sharded.labels(), whole.labels(), "{case}");
    let relevances: Vec<Relevance> =
        (0..queries.len() / whole.dimension()).map(|_| random_relevance(whole, numbers)).collect();
    let ask = |query: usize| &relevances[query];
    let excluded = |query: usize| relevances[query].excluded.as_slice();
    let wanted = 1 + numbers.below(20);
    assert_eq!(
        sharded.nearest_positive_and_negative(queries, ask).unwrap(),
        whole.nearest_positive_and_negative(queries, ask).unwrap(),
        "{case}"
    );
    assert_eq!(
        sharded.nearest(queries, wanted, excluded).unwrap(),
        whole.nearest(queries, wanted, excluded).unwrap(),
        "{case}"
    );
    let relevance = &relevances[0];
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    sharded.rivals_ahead(queries, relevance, |query, rivals| found.push((query, rivals.clone()))).unwrap();
    whole.rivals_ahead(queries, relevance, |query, rivals| wanted.push((query, rivals.clone()))).unwrap();
    assert_eq!(found, wanted, "{case}, {relevance:?}");
}

#[test]
fn shards_answer_as_the_whole_gallery_does_for_random_cuts() {
    let mut numbers = Numbers(1);
    for (rows, dimension, labels, asked) in [
        (1, 1, 1, 2),
        (2, 3, 2, 5),
        (57, 2, 3, 9),
        (300, 16, 10, 300),
        (1500, 33, 7, 20),
        (1100, 300, 40, 11),
        (200, 2000, 3, 5),
        (3, 140_000, 2, 2),
    ] {
        for metric in [Metric::Euclidean, Metric::Cosine] {
            for scale in [1.0, 1e-4] {
                // The small one lies around a point, so that f32 can hardly tell the rows apart.
                let vectors = (0..rows * dimension)
                    .map(|place| ((place % dimension) as f64).cos() + scale * numbers.value());
                let vectors: Vec<f32> = vectors.map(|value| value as f32).collect();
                let whole = gallery(vectors, dimension, labels, metric, numbers.next());
                let queries: Vec<f64> = (0..asked * dimension)
                    .map(|place| ((place % dimension) as f64).cos() + scale * numbers.value())
                    .collect();
                let case = format!("{rows} × {dimension}, {metric:?}, scale {scale}");
                assert_equal(&case, &whole, &queries, &mut numbers);
            }
        }
    }
}

#[test]
fn ties_across_shards_go_to_the_smaller_row() {
    let mut numbers = Numbers(2);
    for dimension in [1, 2, 5] {
        for case in 0..20 {
            let rows = 1 + numbers.below(700);
            let vectors: Vec<f32> = (0..rows * dimension).map(|_| numbers.below(3) as f32 - 1.0).collect();
            let whole = gallery(vectors, dimension, 3, Metric::Euclidean, numbers.next());
            let queries: Vec<f64> =
                (0..10 * dimension).map(|_| numbers.below(5) as f64 / 2.0 - 1.0).collect();
            assert_equal(&format!("lattice {case}"), &whole, &queries, &mut numbers);
        }
    }
}

#[test]
fn names_rows_and_vectors_are_found_again_and_each_shard_is_a_gallery() {
    let mut numbers = Numbers(3);
    let vectors: Vec<f32> = (0..101 * 4).map(|_| numbers.value() as f32).collect();
    let whole = gallery(vectors, 4, 9, Metric::Cosine, 4);
    let folder = tempfile::tempdir().unwrap();
    let manifest = shard(folder.path(), &whole, 20);
    let sharded = ShardedGallery::open(folder.path()).unwrap();
    sharded.verify().unwrap();
    assert_eq!(sharded.manifest(), &manifest);
    assert_eq!((sharded.len(), sharded.shard_count(), sharded.label_count()), (101, 6, whole.label_count()));
    for row in 0..whole.len() {
        assert_eq!(sharded.identity(row).unwrap(), whole.identity(row), "row {row}");
        assert_eq!(sharded.rows_of(whole.identity(row)).unwrap(), whole.rows_of(whole.identity(row)));
        let name = whole.label_name(whole.label(row));
        assert_eq!(
            (sharded.label_named(name), sharded.label_name(whole.label(row))),
            (Some(whole.label(row)), name)
        );
    }
    assert_eq!(sharded.rows_of("absent").unwrap(), Vec::<usize>::new());
    assert_eq!(sharded.label_named("absent"), None);
    let rows = [100, 3, 18, 19, 20, 21, 22, 60, 59];
    let wanted: Vec<f32> = rows.iter().flat_map(|&row| whole.vector(row)).copied().collect();
    assert_eq!(sharded.load_rows(&rows).unwrap(), wanted);
    let all: Vec<usize> = (0..101).collect();
    let subset = sharded.subset(&all).unwrap();
    assert_eq!((subset.vectors(), subset.labels()), (whole.vectors(), whole.labels()));
    assert_eq!(subset.identity(57), whole.identity(57));
    assert!(matches!(
        sharded.load_rows(&[100, 101]).unwrap_err(),
        ShardsError::RowOutOfRange { row: 101, length: 101 }
    ));
    assert!(matches!(sharded.identity(101).unwrap_err(), ShardsError::RowOutOfRange { .. }));

    let last = GalleryDirectory::read(&folder.path().join("shard-00005")).unwrap();
    assert_eq!(last.gallery.vectors(), whole.vector(100));
    let first = GalleryDirectory::read(&folder.path().join("shard-00000")).unwrap();
    assert_eq!(first.gallery.vectors(), &whole.vectors()[..80]);
    assert_eq!(first.gallery.identity(7), whole.identity(7));
}

#[test]
fn searches_that_make_no_sense_are_refused_as_by_a_gallery() {
    let whole = gallery(vec![1.0; 6], 2, 1, Metric::Euclidean, 5);
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), &whole, 2);
    let sharded = ShardedGallery::open(folder.path()).unwrap();
    let relevance = Relevance::new(Positives::Item(3), vec![]);
    for (found, wanted) in [
        (sharded.nearest(&[0.0_f32; 2], 0, |_| &[]).unwrap_err(), SearchError::NoNeighbours),
        (
            sharded.nearest(&[0.0_f32; 3], 1, |_| &[]).unwrap_err(),
            SearchError::QueryLength { found: 3, dimension: 2 },
        ),
        (
            sharded.nearest_positive_and_negative(&[0.0_f32; 2], |_| &relevance).unwrap_err(),
            SearchError::RowOutOfRange { query: 0, row: 3, length: 3 },
        ),
    ] {
        assert!(matches!(&found, ShardsError::Search(found) if *found == wanted), "{found}");
    }
    assert_eq!(sharded.nearest::<f32>(&[], 1, |_| &[]).unwrap(), Vec::<Vec<_>>::new());
}

#[test]
fn what_cannot_be_written_is_refused_and_half_a_gallery_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery");
    let options = ShardOptions { dimension: 2, metric: Metric::Cosine, rows: count(2) };
    let create = |options| ShardWriter::create(&path, options, Provenance::unknown(NormBound::UNIT));
    let error = create(ShardOptions { dimension: 0, ..options }).unwrap_err();
    assert!(matches!(error, ShardsError::Gallery(GalleryError::DimensionZero)));
    let error = create(options).unwrap().finish().unwrap_err();
    assert!(matches!(error, ShardsError::Gallery(GalleryError::Empty)));

    let mut writer = create(options).unwrap();
    let mut push = |vector: &[f32]| {
        writer.push(&ShardItem { identity: "a", label: "b", vector, plain: None, path: None })
    };
    for vector in [[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]] {
        push(&vector).unwrap();
    }
    assert!(matches!(
        push(&[1.0]).unwrap_err(),
        ShardsError::Gallery(GalleryError::Dimension { row: 3, found: 1, dimension: 2, .. })
    ));
    assert!(matches!(push(&[0.0; 2]).unwrap_err(), ShardsError::Gallery(GalleryError::ZeroVector { .. })));
    assert!(matches!(
        push(&[f32::NAN, 0.0]).unwrap_err(),
        ShardsError::Gallery(GalleryError::NotFinite { row: 3, component: 0, .. })
    ));
    assert!(matches!(ShardedGallery::open(&path).unwrap_err(), ShardsError::NoManifest { .. }));
    assert!(matches!(create(options).unwrap_err(), ShardsError::NotEmpty { .. }));
    // A shard that cannot be begun can be begun later.
    fs::create_dir(path.join("shard-00002")).unwrap();
    push(&[1.0, 1.0]).unwrap();
    assert!(matches!(push(&[1.0, 1.0]).unwrap_err(), ShardsError::Storage(StorageError::Write(_))));
    fs::remove_dir(path.join("shard-00002")).unwrap();
    writer.finish().unwrap();
    assert_eq!(ShardedGallery::open(&path).unwrap().load_rows(&[0]).unwrap(), [0.6, 0.8]);
}

/// Changes a part of `shards.json` and seals it again.
fn edit(path: &Path, place: &str, value: Value) {
    let file = path.join(MANIFEST);
    let mut manifest = unseal(&fs::read(&file).unwrap()).unwrap();
    *manifest.pointer_mut(place).unwrap() = value;
    fs::write(&file, seal(&manifest).unwrap()).unwrap();
}

#[test]
fn lying_and_damaged_files_are_refused_with_their_name() {
    let mut numbers = Numbers(6);
    let vectors: Vec<f32> = (0..30 * 4).map(|_| numbers.value() as f32).collect();
    let whole = gallery(vectors, 4, 3, Metric::Euclidean, 7);
    type Damage = fn(&Path);
    let cases: &[(&str, Damage, &str)] = &[
        ("no manifest", |path| fs::remove_file(path.join(MANIFEST)).unwrap(), "has no shards.json"),
        ("text", |path| fs::write(path.join(MANIFEST), "{").unwrap(), "line 1 of"),
        ("format", |path| edit(path, "/format", json!(3)), "has format version 3, wanted 2"),
        ("too many items", |path| edit(path, "/items", json!(31)), "the number of items is 31"),
        ("overflow", |path| edit(path, "/shards/0/items", json!(usize::MAX)), "the number of items is 30"),
        (
            "empty shard",
            |path| {
                edit(path, "/shards/0/items", json!(0));
                edit(path, "/items", json!(20));
            },
            "the number of items of a shard is 0",
        ),
        ("dimension", |path| edit(path, "/dimension", json!(5)), "says that the dimension is 4, wanted 5"),
        ("no dimension", |path| edit(path, "/dimension", json!(0)), "the dimension is 0"),
        ("metric", |path| edit(path, "/metric", json!("cosine")), "says that the metric is \"euclidean\""),
        ("provenance", |path| edit(path, "/norm_bound", json!(2.0)), "how the vectors were made"),
        (
            "elsewhere",
            |path| edit(path, "/shards/1/name", json!("../shard-00001")),
            "names a shard `../shard-00001`",
        ),
        ("absolute", |path| edit(path, "/shards/1/name", json!("/")), "names a shard `/`"),
        ("here", |path| edit(path, "/shards/1/name", json!(".")), "names a shard `.`"),
        (
            "missing shard",
            |path| fs::remove_dir_all(path.join("shard-00001")).unwrap(),
            "has no manifest.json",
        ),
        ("labels", |path| edit(path, "/labels", json!(2)), "labels.jsonl` has 3 labels"),
        ("many labels", |path| edit(path, "/labels", json!(31)), "the number of labels is 31"),
        (
            "swapped shards",
            |path| edit(path, "/shards/1/name", json!("shard-00002")),
            "manifest.json` has sha256",
        ),
        (
            "moved rows",
            |path| {
                edit(path, "/shards/0/items", json!(9));
                edit(path, "/shards/1/items", json!(11));
            },
            "the number of items is 10, wanted 9",
        ),
        (
            "truncated vectors",
            |path| {
                let file =
                    fs::OpenOptions::new().write(true).open(path.join("shard-00001/vectors.npy")).unwrap();
                file.set_len(200).unwrap();
            },
            "vectors.npy` has 200 bytes",
        ),
        (
            "other header",
            |path| {
                let file = path.join("shard-00002/vectors.npy");
                let mut bytes = fs::read(&file).unwrap();
                bytes[20] ^= 1;
                fs::write(file, bytes).unwrap();
            },
            "does not begin with the .npy header of [10, 4] `<f4`",
        ),
        (
            "truncated labels",
            |path| fs::write(path.join("shard-00001/labels.npy"), "x").unwrap(),
            "has 1 bytes",
        ),
        (
            "changed labels",
            |path| {
                let file = path.join("shard-00001/labels.npy");
                let mut bytes = fs::read(&file).unwrap();
                let last = bytes.len() - 4;
                bytes[last] = (bytes[last] + 1) % 3;
                fs::write(file, bytes).unwrap();
            },
            "labels.npy` has sha256",
        ),
        (
            "unknown label",
            |path| {
                let file = path.join("shard-00001/labels.npy");
                let mut bytes = fs::read(&file).unwrap();
                let last = bytes.len() - 4;
                bytes[last] = 3;
                fs::write(file, bytes).unwrap();
            },
            "entry 9 of",
        ),
        (
            "changed names",
            |path| {
                let file = path.join(LABEL_NAMES);
                let text = fs::read_to_string(&file).unwrap().replace("label-0", "label-9");
                fs::write(file, text).unwrap();
            },
            "labels.jsonl` has sha256",
        ),
        (
            "writes",
            |path| {
                let mut live = LiveGallery::open(&path.join("shard-00000")).unwrap();
                let item = crate::gallery::NewItem {
                    identity: "x".into(),
                    label: "y".into(),
                    vector: vec![0.0; 4],
                    plain: None,
                };
                live.write(vec![Edit::Add { item, path: None }]).unwrap();
            },
            "holds 1 writes to a shard",
        ),
    ];
    for (case, damage, wanted) in cases {
        let folder = tempfile::tempdir().unwrap();
        shard(folder.path(), &whole, 10);
        ShardedGallery::open(folder.path()).unwrap();
        damage(folder.path());
        let error = ShardedGallery::open(folder.path()).expect_err(case);
        assert!(error.to_string().contains(wanted), "{case}: {error}");
    }
}

#[test]
fn damage_that_opening_does_not_see_is_an_error_and_never_an_answer() {
    let mut numbers = Numbers(8);
    let vectors: Vec<f32> = (0..30 * 4).map(|_| numbers.value() as f32).collect();
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let whole = gallery(vectors.clone(), 4, 3, metric, 9);
        for (bits, threads) in
            [(f32::NAN.to_bits(), 1), (1e20_f32.to_bits(), 2), (f32::INFINITY.to_bits(), 3)]
        {
            let folder = tempfile::tempdir().unwrap();
            shard(folder.path(), &whole, 10);
            let sharded = ShardedGallery::open(folder.path()).unwrap().threads(count(threads));
            let file = folder.path().join("shard-00001/vectors.npy");
            let mut bytes = fs::read(&file).unwrap();
            let place = bytes.len() - 4 * 4 * 3;
            bytes[place..place + 4].copy_from_slice(&bits.to_le_bytes());
            fs::write(&file, &bytes).unwrap();
            let error = sharded.nearest(&[0.0_f32; 4], 1, |_| &[]).unwrap_err();
            assert!(matches!(&error, ShardsError::Vector { row: 7, .. }), "{error}");
            assert!(matches!(sharded.load_rows(&[17]).unwrap_err(), ShardsError::Vector { row: 7, .. }));
            let error = sharded.verify().unwrap_err();
            assert!(matches!(&error, ShardsError::Storage(StorageError::Changed { .. })), "{error}");
            // Cut off while it is open.
            fs::write(&file, &bytes[..200]).unwrap();
            let error = sharded.nearest(&[0.0_f32; 4], 1, |_| &[]).unwrap_err();
            assert!(matches!(&error, ShardsError::Storage(StorageError::Read { .. })), "{error}");
        }
    }

    let whole = gallery(vectors, 4, 3, Metric::Euclidean, 10);
    for (name, width, wanted) in
        [("line_ends.npy", 8, "the end of a line"), ("by_identity.npy", 4, "a row below 10")]
    {
        let folder = tempfile::tempdir().unwrap();
        shard(folder.path(), &whole, 10);
        let file = folder.path().join("shard-00001").join(name);
        let mut bytes = fs::read(&file).unwrap();
        let start = bytes.len() - 10 * width;
        bytes[start..].fill(0xff);
        fs::write(&file, bytes).unwrap();
        let sharded = ShardedGallery::open(folder.path()).unwrap();
        let error = sharded.rows_of("item").unwrap_err();
        assert!(matches!(&error, ShardsError::Index { .. }), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(sharded.verify().is_err());
    }
}

#[test]
fn items_with_views_are_not_put_into_shards() {
    use crate::views::{View, ViewSet};
    let folder = tempfile::tempdir().unwrap();
    let set = ViewSet::new("mine", vec![View::named("as is")]).unwrap();
    let provenance = Provenance { views: Some(set), ..Provenance::unknown(NormBound::UNIT) };
    let options = ShardOptions { dimension: 2, metric: Metric::Euclidean, rows: NonZeroUsize::MIN };
    let refused = ShardWriter::create(&folder.path().join("gallery"), options, provenance).map(drop);
    assert!(matches!(refused, Err(ShardsError::Views { ref set, .. }) if set == "mine"), "{refused:?}");
    let set = ViewSet::new("mine", vec![View::named("as is")]).unwrap();
    let provenance = Provenance { views: Some(set), ..Provenance::unknown(NormBound::UNIT) };
    let refused = ShardWriter::replace(&folder.path().join("gallery"), options, provenance).map(drop);
    assert!(matches!(refused, Err(ShardsError::Views { .. })), "{refused:?}");
}
