//! Certificates against a gallery in shards are those against the same gallery in memory.

use std::num::NonZeroUsize;
use std::path::Path;

use super::ShardedGallery;
use crate::certificate::{
    CertificateError, CertificateName, Certifier, Decision, HalfSpaceOptions, RateOptions, RateTest,
    Retriever, SampledQuery, Similarity, Verdict,
};
use crate::gallery::{Gallery, Metric, Positives, Relevance};
use crate::noise::{ImageIdentity, NoiseStream, Stage};
use crate::storage::manifest::{GalleryDirectory, Provenance, StorageError};
use crate::storage::stored::StoredGallery;
use crate::{Alpha, Excess, NormBound, SampleCount, Samples, Seed, Sigma, TargetRadius};

const DIMENSION: usize = 8;
const LABELS: usize = 12;

fn fill(name: &str, place: u32, vector: &mut [f32]) {
    let stream = NoiseStream::new(Seed::new(11), &ImageIdentity::new(name), Stage::Certify);
    stream.fill(place, 0, vector);
}

fn unit(vector: &mut [f32]) {
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt() * 1.000_001;
    vector.iter_mut().for_each(|value| *value /= norm);
}

/// Unit vectors around the centres of their labels, some of them twice.
fn clusters(rows: usize) -> Gallery {
    let mut vectors = vec![0.0; rows * DIMENSION];
    for (row, vector) in vectors.chunks_exact_mut(DIMENSION).enumerate() {
        let (mut centre, kind) = ([0.0; DIMENSION], row % LABELS);
        fill("centres", kind as u32, &mut centre);
        fill("rows", (row - row % 3) as u32, vector);
        vector.iter_mut().zip(&centre).for_each(|(value, centre)| *value = centre + 0.5 * *value);
        unit(vector);
    }
    let names = |word: &str, period: usize| -> Vec<String> {
        (0..rows).map(|row| format!("{word} {}", row % period)).collect()
    };
    let labels = names("label", LABELS);
    Gallery::new(vectors, DIMENSION, names("item", rows), &labels, Metric::Euclidean).unwrap()
}

fn around(centre: &[f32], range: std::ops::Range<u32>, spread: f32, name: &str) -> Samples {
    let mut values = vec![0.0; range.len() * DIMENSION];
    for (place, vector) in range.zip(values.chunks_exact_mut(DIMENSION)) {
        fill(name, place, vector);
        vector.iter_mut().zip(centre).for_each(|(value, centre)| *value = centre + spread * *value);
        unit(vector);
    }
    Samples::new(values, DIMENSION, NormBound::UNIT, Excess::Refuse).unwrap()
}

fn in_shards(folder: &Path, gallery: &Gallery, shards: usize) -> ShardedGallery {
    let shards = NonZeroUsize::new(shards).unwrap();
    let provenance = Provenance::unknown(NormBound::UNIT);
    ShardedGallery::write(folder, gallery, &[], provenance, shards).unwrap();
    ShardedGallery::open(folder).unwrap().threads(NonZeroUsize::new(2).unwrap())
}

fn parameters() -> (Sigma, Alpha) {
    (Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap())
}

#[test]
fn every_certificate_that_shards_allow_is_the_one_in_memory() {
    let whole = clusters(500);
    let folder = tempfile::tempdir().unwrap();
    let sharded = in_shards(folder.path(), &whole, 7);
    let (sigma, alpha) = parameters();
    let samples = SampleCount::new(16).unwrap();
    let in_memory = Certifier::new(&whole, sigma, alpha).gallery_samples(samples);
    let on_disk = Certifier::new(&sharded, sigma, alpha).gallery_samples(samples);
    let mut certified = 0;
    for place in 0..9_usize {
        let (row, spread) = (41 * place + 3, [0.05, 0.15, 0.3][place % 3]);
        let query = SampledQuery {
            pilot: around(whole.vector(row), 0..60, spread, &format!("pilot {place}")),
            certifying: around(whole.vector(row), 0..400, spread, &format!("certifying {place}")),
        };
        let positives = match place {
            0 | 4 => Positives::Item(row),
            7 => Positives::Label(whole.label(row + 1)),
            8 => Positives::Absent,
            _ => Positives::Label(whole.label(row)),
        };
        let relevance = Relevance::new(positives, if place % 4 == 0 { vec![] } else { vec![row, 400] });
        for name in CertificateName::SMOOTHED {
            let wanted = in_memory.certify(name, &query, &relevance).unwrap();
            let found = on_disk.certify(name, &query, &relevance);
            if name == CertificateName::HalfSpaceMean {
                assert_eq!(found, Err(CertificateError::InMemoryOnly("half-space-mean")));
                continue;
            }
            let found = found.unwrap();
            assert_eq!(found.verdict, wanted.verdict, "{name}, query {place}");
            if name != CertificateName::HalfSpace {
                assert_eq!(found, wanted, "{name}, query {place}");
            }
            certified += u32::from(matches!(found.verdict, Verdict::Certified { .. }));
        }
        for retriever in Retriever::SMOOTHED {
            let candidate = |certifier: &Certifier<'_>| {
                certifier.candidate(retriever, &query.pilot, &relevance.excluded).unwrap()
            };
            assert_eq!(candidate(&on_disk), candidate(&in_memory), "{retriever}, query {place}");
        }
        assert_eq!(
            on_disk.contest(&query.certifying, &relevance),
            in_memory.contest(&query.certifying, &relevance),
            "query {place}"
        );
    }
    assert!((8..60).contains(&certified), "{certified} certified: the cases are too much alike");
}

#[test]
fn a_target_radius_is_decided_in_shards_as_in_memory() {
    let whole = clusters(300);
    let folder = tempfile::tempdir().unwrap();
    let sharded = in_shards(folder.path(), &whole, 4);
    let (sigma, alpha) = parameters();
    let [in_memory, on_disk] = [Certifier::new(&whole, sigma, alpha), Certifier::new(&sharded, sigma, alpha)];
    let mut decisions = Vec::new();
    for place in 0..12_usize {
        let (row, spread) = (23 * place, [0.05, 0.2, 0.35, 0.6][place % 4]);
        let relevance = match place % 3 {
            0 => Relevance::new(Positives::Item(row), vec![]),
            _ => Relevance::new(Positives::Label(whole.label(row)), vec![row]),
        };
        let draw = |range| around(whole.vector(row), range, spread, &format!("query {place}"));
        let pilot = around(whole.vector(row), 0..20, spread, &format!("pilot {place}"));
        let cap = SampleCount::new(300).unwrap();
        for options in [
            RateOptions::deciding(TargetRadius::new(0.2).unwrap(), cap),
            RateOptions::growing(TargetRadius::new(0.3).ok(), cap),
            RateOptions::growing(None, cap),
        ] {
            for vote in [false, true] {
                let run = |certifier: &Certifier<'_>| {
                    let test = match vote {
                        true => RateTest::vote(certifier, Some(&pilot), &relevance, &options),
                        false => RateTest::pairwise(certifier, &relevance, &options),
                    };
                    let mut test = test.unwrap();
                    let mut searches = 0;
                    while let Some(range) = test.wants() {
                        test.see(&draw(range)).unwrap();
                        searches += 1;
                    }
                    (test.outcome(), test.mean(), test.explain(), searches)
                };
                let (found, wanted) = (run(&on_disk), run(&in_memory));
                assert_eq!((&found.0, &found.1, &found.2), (&wanted.0, &wanted.1, &wanted.2), "{place}");
                // The gallery is read for several looks at once.
                assert!(found.3 <= 3 + found.0.samples / 64 && found.3 <= wanted.3, "{} searches", found.3);
                decisions.push(found.0.decision);
            }
        }
    }
    for wanted in [Decision::Reached, Decision::Capped, Decision::Hopeless] {
        assert!(decisions.contains(&wanted), "no query is {wanted:?}");
    }
}

#[test]
fn what_needs_the_vectors_in_memory_is_refused_in_words() {
    let whole = clusters(60);
    let folder = tempfile::tempdir().unwrap();
    let sharded = in_shards(folder.path(), &whole, 3);
    let (sigma, alpha) = parameters();
    let certifier = Certifier::new(&sharded, sigma, alpha);
    let samples = || around(whole.vector(0), 0..50, 0.1, "near");
    let query = SampledQuery { pilot: samples(), certifying: samples() };
    let relevance = Relevance::new(Positives::Label(whole.label(0)), vec![]);
    let deep = HalfSpaceOptions { top_k: 2, ..HalfSpaceOptions::default() };
    let error = certifier.half_space(&query, &relevance, &deep).unwrap_err();
    assert!(error.to_string().starts_with("half-space for recall@2 and deeper needs the gallery in memory"));
    let similar = certifier.similarity(&query, 0, Similarity::Above(0.1), Default::default());
    assert!(matches!(similar, Err(CertificateError::InMemoryOnly(_))));
    // A label whose items are all hidden is never retrieved, and a single label has no rival.
    let own: Vec<usize> = (0..60).filter(|row| row % LABELS == 0).collect();
    let hidden = Relevance::new(Positives::Label(whole.label(0)), own.clone());
    for name in [CertificateName::HalfSpace, CertificateName::Vote, CertificateName::Pairwise] {
        assert_eq!(
            certifier.certify(name, &query, &hidden).unwrap().verdict,
            Verdict::Misretrieved,
            "{name}"
        );
        let others = (0..60).filter(|row| row % LABELS != 0).collect();
        let alone = Relevance::new(Positives::Label(whole.label(0)), others);
        assert_eq!(certifier.certify(name, &query, &alone).unwrap_err(), CertificateError::NoNegatives);
    }
}

#[test]
fn samples_that_are_rows_of_the_gallery_are_found_in_shards_as_in_memory() {
    let whole = clusters(90);
    let folder = tempfile::tempdir().unwrap();
    let sharded = in_shards(folder.path(), &whole, 4);
    let (sigma, alpha) = parameters();
    let mut values = around(whole.vector(0), 0..20, 0.1, "near").values().to_vec();
    values[5 * DIMENSION..6 * DIMENSION].copy_from_slice(whole.vector(71));
    values[9 * DIMENSION..10 * DIMENSION].copy_from_slice(whole.vector(71));
    let certifying = || Samples::new(values.clone(), DIMENSION, NormBound::UNIT, Excess::Refuse).unwrap();
    let refused = |certifier: Certifier<'_>| {
        let pilot = around(whole.vector(0), 0..20, 0.1, "pilot");
        certifier.sampled(pilot, certifying(), crate::certificate::Outputs::Continuous).unwrap_err()
    };
    let wanted = refused(Certifier::new(&whole, sigma, alpha));
    assert_eq!(refused(Certifier::new(&sharded, sigma, alpha)), wanted);
}

#[test]
fn a_directory_is_opened_as_what_it_holds() {
    let whole = clusters(50);
    let folder = tempfile::tempdir().unwrap();
    let [piece, shards] = ["piece", "shards"].map(|name| folder.path().join(name));
    let provenance = || Provenance::unknown(NormBound::UNIT);
    let paths: Vec<Option<String>> =
        (0..50).map(|row| (row % 2 == 0).then(|| format!("{row}.png"))).collect();
    GalleryDirectory::write(&piece, &whole, &paths, provenance()).unwrap();
    let number = NonZeroUsize::new(3).unwrap();
    ShardedGallery::write(&shards, &whole, &paths, provenance(), number).unwrap();
    // Another cut into shards takes the place of the first.
    std::fs::write(shards.join("note.txt"), "stays").unwrap();
    let number = NonZeroUsize::new(2).unwrap();
    let manifest = ShardedGallery::write(&shards, &whole, &paths, provenance(), number).unwrap();
    assert_eq!((manifest.shards.len(), shards.join("shard-00002").exists()), (2, false));
    assert!(shards.join("note.txt").exists());

    let [piece_stored, shards_stored] = [&piece, &shards].map(|path| StoredGallery::open(path).unwrap());
    assert!(matches!(piece_stored, StoredGallery::Memory(_)));
    assert!(matches!(shards_stored, StoredGallery::Shards(_)));
    // It is one gallery, however it is stored.
    assert_eq!(shards_stored.digest().unwrap(), piece_stored.digest().unwrap());
    assert_eq!(shards_stored.largest_norm().unwrap(), piece_stored.largest_norm().unwrap());
    for row in [0, 1, 24, 25, 49] {
        let found =
            (shards_stored.gallery().identity(row).unwrap(), shards_stored.picture_path(row).unwrap());
        assert_eq!(found, (whole.identity(row).into(), piece_stored.picture_path(row).unwrap()));
    }
    assert!(matches!(shards_stored.in_memory(), Err(StorageError::InShards { .. })));
    assert!(matches!(GalleryDirectory::read(&shards), Err(StorageError::InShards { .. })));
    for (path, number) in [(&shards, None), (&piece, Some(NonZeroUsize::MIN))] {
        let error = StoredGallery::write(path, &whole, &[], provenance(), number).unwrap_err();
        assert!(matches!(&error, StorageError::OtherKind { .. }), "{error}");
    }
    assert!(GalleryDirectory::write(&shards, &whole, &[], provenance()).is_err());

    // One changed bit of one vector, which a search alone would not see.
    let file = shards.join("shard-00001/vectors.npy");
    let bytes = std::fs::read(&file).unwrap();
    let mut changed = bytes.clone();
    let last = changed.len() - 4;
    changed[last] ^= 1;
    std::fs::write(&file, &changed).unwrap();
    let error = StoredGallery::open(&shards).unwrap_err();
    assert!(matches!(&error, StorageError::Changed { path, .. } if *path == file), "{error}");
    std::fs::write(&file, &bytes).unwrap();
    std::fs::copy(piece.join("manifest.json"), shards.join("manifest.json")).unwrap();
    assert!(matches!(StoredGallery::open(&shards), Err(StorageError::BothKinds { .. })));
}
