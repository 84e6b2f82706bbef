//! Every kind of file that a run leaves, with one bit changed: it is refused, or nothing comes of the change.
//!
//! The files are made by the program and read, in this process, by the functions that its commands read them with.

use std::fmt::Debug;
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use retrievalguard::Sigma;
use retrievalguard::gallery::{Gallery, NewItem};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::Journal;
use retrievalguard::storage::live::{Edit, LiveGallery};
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard::storage::sample_cache::SampleCache;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::engine::{EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::pipeline::check_gallery;
use retrievalguard_encoder::pipeline::run_files::StoredRun;
use retrievalguard_encoder::table::gallery_file::{
    ImportedGallery, import_clip_retrieval, import_npy, import_parquet,
};
use retrievalguard_encoder::table::{ResultTable, Unverified};
use retrievalguard_encoder::work::Unobserved;
use retrievalguard_report::attack::Attack;
use retrievalguard_worker::{RunStore, merge};

use crate::sandbox::{ENCODER, Sandbox};

#[path = "../../../retrievalguard/tests/kept_samples/mod.rs"]
mod kept_samples;

const FLIPS: usize = 300;

/// Results of the flips in one kind of file.
struct Tally {
    kind: &'static str,
    refused: usize,
    same: usize,
    wrong: Vec<usize>,
}

/// Reproducible numbers (splitmix64), so that a failing case can be run again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Flips single bits of the file at `path` and reads it with `reader`, whose result stands for everything that comes of it.
fn flip<T: PartialEq + Debug, E: Debug>(
    tallies: &mut Vec<Tally>,
    kind: &'static str,
    path: &Path,
    reader: impl Fn() -> Result<T, E>,
) {
    let whole = fs::read(path).unwrap();
    let wanted = reader().map_err(|error| format!("{kind}: {error:?}")).unwrap();
    let mut numbers = Numbers(Digest::of_bytes(kind.as_bytes()).bytes()[0].into());
    let mut tally = Tally { kind, refused: 0, same: 0, wrong: Vec::new() };
    for _ in 0..FLIPS {
        let bit = numbers.below(8 * whole.len());
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
        match panic::catch_unwind(AssertUnwindSafe(&reader)) {
            Ok(Ok(found)) if found == wanted => tally.same += 1,
            Ok(Ok(_)) | Err(_) => tally.wrong.push(bit),
            Ok(Err(_)) => tally.refused += 1,
        }
    }
    fs::remove_file(path).unwrap();
    fs::write(path, whole).unwrap();
    tallies.push(tally);
}

/// Everything that a search in a gallery can depend on, and where its pictures lie.
fn content(gallery: &Gallery, paths: &[Option<String>]) -> Vec<(String, String, Vec<u32>, Option<String>)> {
    let item = |row: usize| {
        let bits = gallery.vector(row).iter().map(|value| value.to_bits()).collect();
        let label = gallery.label_name(gallery.label(row)).to_owned();
        (gallery.identity(row).to_owned(), label, bits, paths[row].clone())
    };
    (0..gallery.len()).map(item).collect()
}

fn imported(found: ImportedGallery) -> impl PartialEq + Debug {
    let ImportedGallery { gallery, paths, provenance } = found;
    (content(&gallery, &paths), gallery.metric(), provenance)
}

fn galleries(sandbox: &Sandbox, tallies: &mut Vec<Tally>) {
    let folder = sandbox.path("gallery");
    let read = || {
        GalleryDirectory::read(&folder).map(|stored| {
            let paths = stored.paths.clone();
            (content(&stored.gallery, &paths), stored.manifest, stored.gallery.metric())
        })
    };
    for (kind, file) in [
        ("gallery: vectors.npy", "vectors.npy"),
        ("gallery: items.jsonl", "items.jsonl"),
        ("gallery: manifest.json", "manifest.json"),
    ] {
        flip(tallies, kind, &folder.join(file), read);
    }
    let viewed = sandbox.path("viewed");
    let read = || {
        GalleryDirectory::read(&viewed).map(|stored| {
            let (paths, views) = (stored.paths.clone(), stored.gallery.view_names().to_vec());
            (content(&stored.gallery, &paths), stored.manifest, views)
        })
    };
    for (kind, file) in [
        ("gallery with views: items.jsonl", "items.jsonl"),
        ("gallery with views: manifest.json", "manifest.json"),
    ] {
        flip(tallies, kind, &viewed.join(file), read);
    }
    let at = |name: &str| sandbox.path(name);
    flip(tallies, "export with views: Parquet", &at("e/views.parquet"), || {
        import_parquet(&at("e/views.parquet"), None).map(imported)
    });
    let npy = || import_npy(&at("e/v.npy"), &at("e/l.txt"), Some(&at("e/i.txt")), None).map(imported);
    for (kind, file) in [
        ("export: vectors.npy", "e/v.npy"),
        ("export: labels", "e/l.txt"),
        ("export: identities", "e/i.txt"),
        ("export: vectors.npy.json", "e/v.npy.json"),
    ] {
        flip(tallies, kind, &at(file), npy);
    }
    flip(tallies, "export: Parquet", &at("e/g.parquet"), || {
        import_parquet(&at("e/g.parquet"), None).map(imported)
    });
    let clip = || import_clip_retrieval(&at("e/clip"), None, None).map(imported);
    for (kind, file) in [
        ("export: clip-retrieval array", "e/clip/img_emb/img_emb_1.npy"),
        ("export: clip-retrieval table", "e/clip/metadata/metadata_1.parquet"),
        ("export: clip-retrieval manifest", "e/clip/retrievalguard.json"),
    ] {
        flip(tallies, kind, &at(file), clip);
    }
}

/// The encoder and its model config, beside a gallery that was made with them.
fn encoders(sandbox: &Sandbox, tallies: &mut Vec<Tally>) {
    let (model, stored) = (sandbox.path("model/convolutional.onnx"), sandbox.path("gallery"));
    let stored = StoredGallery::open(&stored).unwrap();
    let open = || {
        let config = ModelConfig::for_model(&model).map_err(|error| error.to_string())?;
        let options = EngineOptions { engine: "rten".parse().ok(), ..EngineOptions::default() };
        let embedder = OnnxEmbedder::open(&model, config, &options).map_err(|error| error.to_string())?;
        let sigma = Sigma::new(0.1).unwrap();
        check_gallery(&stored, "gallery", &embedder, Some(sigma)).map_err(|error| error.to_string())?;
        Ok::<_, String>(embedder.model_config().clone())
    };
    flip(tallies, "encoder.onnx", &model, open);
    flip(tallies, "encoder.toml", &sandbox.path("model/encoder.toml"), open);
}

fn runs(sandbox: &Sandbox, tallies: &mut Vec<Tally>) {
    let run = sandbox.path("run");
    let open = || StoredRun::open(&run).map(|run| (run.table, run.description, run.inputs));
    for (kind, file) in [
        ("run: certificates.parquet", "certificates.parquet"),
        ("run: certificates.jsonl", "certificates.jsonl"),
        ("run: half-space.tsv", "half-space.tsv"),
        ("run: recall-at-k.jsonl", "recall-at-k.jsonl"),
        ("run: run.json", "run.json"),
        ("run: places.json", "places.json"),
    ] {
        flip(tallies, kind, &run.join(file), open);
    }
    // The table and the lines by themselves, as `evaluate` takes them.
    for (kind, file) in
        [("table: Parquet", "certificates.parquet"), ("table: JSON lines", "certificates.jsonl")]
    {
        let path = run.join(file);
        flip(tallies, kind, &path, || ResultTable::read(&path, Unverified::Refuse));
    }
    let record = run.join("run.json");
    let lines = run.join("certificates.jsonl");
    flip(tallies, "record of JSON lines", &record, || ResultTable::read(&lines, Unverified::Refuse));
    let attack = sandbox.path("run/attack.json");
    flip(tallies, "run: attack.json", &attack, || Attack::parse(&fs::read(&attack).unwrap()));
    // A last record that is lost is computed again, to the same bytes.
    let journal = run.join("certify.journal");
    let whole = Journal::read(&journal).unwrap().unwrap();
    flip(tallies, "run: certify.journal", &journal, || {
        let found = Journal::read(&journal)?;
        Ok::<_, retrievalguard::storage::journal::JournalError>(found.map(|mut found| {
            let missing = whole.records.len() - found.records.len();
            assert!(missing <= 1, "{missing} records are gone");
            found.records.extend_from_slice(&whole.records[whole.records.len() - missing..]);
            (found.run_key, found.description, found.records)
        }))
    });
}

fn shared_runs(sandbox: &Sandbox, tallies: &mut Vec<Tally>) {
    for (run, kinds) in [
        ("whole", ["shared run: shared.json", "shared run: part with an outcome"]),
        ("cut", ["shared run in pieces: shared.json", "shared run in pieces: part with samples"]),
    ] {
        let folder = sandbox.path(run);
        let store = RunStore::open(&folder.display().to_string()).unwrap();
        let merged = || {
            let merged = merge(&store, NonZeroUsize::MIN, &Unobserved)?;
            Ok::<_, retrievalguard_worker::WorkerError>((merged.report.table, merged.report.description))
        };
        flip(tallies, kinds[0], &folder.join("shared.json"), merged);
        flip(tallies, kinds[1], &folder.join("parts/000001-000"), merged);
    }
}

fn samples(sandbox: &Sandbox, tallies: &mut Vec<Tally>) {
    let cache = SampleCache::new(&sandbox.path("cache"));
    let key = kept_samples::key();
    cache.write(&key, &kept_samples::samples()).unwrap();
    let folder = fs::read_dir(sandbox.path("cache")).unwrap().next().unwrap().unwrap().path();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let array = path.extension().is_some_and(|ending| ending == "npy");
        let kind = if array { "samples: block" } else { "samples: manifest" };
        flip(tallies, kind, &path, || cache.read(&key));
    }
}

fn live_galleries(sandbox: &Sandbox, tallies: &mut Vec<Tally>) {
    let folder = sandbox.path("gallery");
    let mut live = LiveGallery::open(&folder).unwrap();
    for number in 0..4 {
        let vector = vec![0.1 * number as f32; 8];
        let item = NewItem { identity: format!("added {number}"), label: "class-0".into(), vector };
        live.write(vec![Edit::Add { item, path: None }]).unwrap().remove(0).unwrap();
    }
    drop(live);
    let read = || {
        GalleryDirectory::read(&folder).map(|stored| {
            let (paths, writes) = (stored.paths.clone(), stored.writes());
            (content(&stored.gallery, &paths), stored.manifest, writes)
        })
    };
    for (kind, file) in
        [("live gallery: writes.journal", "writes.journal"), ("live gallery: writes.anchor", "writes.anchor")]
    {
        flip(tallies, kind, &folder.join(file), read);
    }
}

#[test]
fn a_flipped_bit_in_any_file_of_a_run_is_refused_or_changes_nothing() {
    let sandbox = Sandbox::indexed();
    let certify = format!("certify pictures --limit 6 --gallery gallery {ENCODER} --samples 60 --pilot 20");
    sandbox.run(&format!("{certify} --top-k 3 --jsonl --tsv --out run")).succeeds();
    sandbox
        .run(
            "attack run --queries 2 --engine rten --black-box --steps 2 --restarts 1 --noise 2 --judge-samples 20 \
             --judge-pilot 10 --refinements 0",
        )
        .prints(&["run/attack.json"]);
    for (run, flags) in [("whole", "--certificate all"), ("cut", "--chunk 40")] {
        sandbox.run(&format!("{certify} {flags} --share {run}")).succeeds();
        sandbox.run(&format!("worker --run {run} --engine rten")).succeeds();
    }
    fs::create_dir(sandbox.path("e")).unwrap();
    sandbox
        .run(
            "export gallery --npy e/v.npy --labels e/l.txt --identities e/i.txt --parquet e/g.parquet \
             --clip-retrieval e/clip --shard-items 7",
        )
        .succeeds();
    sandbox.run(&format!("index pictures --gallery viewed {ENCODER} --samples 2 --views flips")).succeeds();
    sandbox.run("export viewed --parquet e/views.parquet").succeeds();

    let mut tallies = Vec::new();
    galleries(&sandbox, &mut tallies);
    encoders(&sandbox, &mut tallies);
    runs(&sandbox, &mut tallies);
    shared_runs(&sandbox, &mut tallies);
    samples(&sandbox, &mut tallies);
    live_galleries(&sandbox, &mut tallies);

    let mut table =
        format!("{:<42} {:>6} {:>8} {:>6} {:>6}\n", "kind of file", "flips", "refused", "same", "wrong");
    for Tally { kind, refused, same, wrong } in &tallies {
        table += &format!("{kind:<42} {FLIPS:>6} {refused:>8} {same:>6} {:>6}\n", wrong.len());
    }
    std::io::stderr().write_all(table.as_bytes()).unwrap();
    for Tally { kind, wrong, .. } in &tallies {
        assert!(wrong.is_empty(), "{kind}: bits {wrong:?} give another result\n{table}");
    }
}
