//! Tables and galleries in the files of other programs: written and read back, damaged, and lied about.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use retrievalguard::certificate::{CertificateName, Radius, Verdict};
use retrievalguard::gallery::{Gallery, GalleryError, Metric};
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::manifest::Provenance;
use retrievalguard::storage::npy;
use retrievalguard::{Alpha, NormBound, Sigma};
use retrievalguard_encoder::run::{ArraysDescription, RUN_FORMAT, RunCommand, TableDescription};
use retrievalguard_encoder::table::gallery_file::{
    export_clip_retrieval, export_npy, export_parquet, import_clip_retrieval, import_npy, import_parquet,
    read_labels,
};
use retrievalguard_encoder::table::{
    Cell, FilePixels, PlainAnswer, ResultRow, ResultTable, TableError, Unverified, WrongItem,
};
use serde_json::Value;

fn gallery(items: usize, metric: Metric) -> Gallery {
    let vectors = (0..items * 5).map(|number| ((number * 7919 % 1009) as f32 - 500.0) / 331.0).collect();
    let identities = (0..items).map(|row| format!("bild \"{row}\", ü.jpg")).collect();
    let labels: Vec<String> = (0..items).map(|row| format!("Größe {}", row % 3)).collect();
    Gallery::new(vectors, 5, identities, &labels, metric).expect("finite vectors, none of them zero")
}

fn paths(items: usize) -> Vec<Option<String>> {
    (0..items).map(|row| (row % 4 != 1).then(|| format!("a/{row}.jpg"))).collect()
}

/// How the vectors of a gallery may have been made.
fn made() -> Provenance {
    let sigma = Sigma::new(0.25).expect("in range");
    Provenance { sigma: Some(sigma), samples: Some(100), ..Provenance::unknown(NormBound::UNIT) }
}

fn read(path: &Path) -> Result<ResultTable, TableError> {
    ResultTable::read(path, Unverified::Refuse).map(|stored| stored.table)
}

fn assert_same(found: &Gallery, wanted: &Gallery, what: &str) {
    let bits = |gallery: &Gallery| gallery.vectors().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(found), bits(wanted), "{what}");
    assert_eq!((found.len(), found.dimension()), (wanted.len(), wanted.dimension()), "{what}");
    for row in 0..wanted.len() {
        assert_eq!(found.identity(row), wanted.identity(row), "{what}");
        assert_eq!(found.label_name(found.label(row)), wanted.label_name(wanted.label(row)), "{what}");
    }
}

fn results() -> ResultTable {
    let row = |number: usize, verdict: Verdict| ResultRow {
        identity: format!("query {number}"),
        label: "cat\tor dog".into(),
        retrieved: "item 1".into(),
        retrieved_label: "cow".into(),
        retrieved_view: None,
        nearest_wrong: (number > 0).then(|| WrongItem {
            identity: format!("item {number}"),
            label: "cow".into(),
            view: None,
        }),
        plain: None,
        file: None,
        certificates: BTreeMap::from([
            (CertificateName::HalfSpace, Cell { verdict, samples: 1000 }),
            (CertificateName::PaperFrozen, Cell { verdict: Verdict::Abstained, samples: 500 }),
        ]),
    };
    let certified = |radius| Verdict::Certified { radius };
    let rows = [
        certified(Radius::Finite(0.3)),
        Verdict::Abstained,
        Verdict::Misretrieved,
        certified(Radius::Unbounded),
    ];
    let rows = rows.into_iter().enumerate().map(|(number, verdict)| row(number, verdict)).collect();
    let names = vec![CertificateName::HalfSpace, CertificateName::PaperFrozen];
    let sigma = Sigma::new(0.1).expect("in range");
    ResultTable::new(Some(sigma), names, rows).expect("every row has both certificates")
}

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/parquet").join(name).with_extension("parquet")
}

/// A new file of this name: some file systems flush one that is overwritten, which takes longer than all the rest.
fn replace(path: &Path, bytes: impl AsRef<[u8]>) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).expect("temporary files can be written");
}

#[test]
fn results_come_back_from_parquet_and_json_and_are_the_same_bytes_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let [parquet, again, lines] = ["a.parquet", "b.parquet", "c.jsonl"].map(|name| folder.path().join(name));
    let table = results();
    let run = TableDescription::Arrays(ArraysDescription {
        format: RUN_FORMAT,
        command: RunCommand::CertifyArrays,
        tool: "0.1.0".into(),
        sigma: table.sigma().unwrap(),
        alpha: Alpha::new(0.01).unwrap(),
        certificates: table.certificates().to_vec(),
        top_k: 1,
        target_radius: None,
    });
    for run in [Some(&run), None] {
        table.write_parquet(&parquet, run).unwrap();
        table.write_parquet(&again, run).unwrap();
        assert_eq!(fs::read(&parquet).unwrap(), fs::read(&again).unwrap());
        table.write_json_lines_with_record(&lines, run).unwrap();
        for path in [&parquet, &lines] {
            let found = ResultTable::read(path, Unverified::Refuse).unwrap();
            assert_eq!((found.table, found.run.as_ref(), found.verified), (table.clone(), run, true));
        }
    }
    let text = fs::read_to_string(&lines).unwrap();
    assert_eq!(
        text.lines().next().unwrap(),
        "{\"identity\":\"query 0\",\"label\":\"cat\\tor dog\",\"retrieved\":\"item 1\",\"retrieved_label\":\"cow\",\
         \"sigma\":0.1,\"certificates\":{\"paper-frozen\":{\"verdict\":\"abstained\",\"radius\":null,\
         \"radius_in_sigmas\":null,\"radius_in_8bit_steps\":null,\"unbounded\":false,\"samples\":500},\
         \"half-space\":{\"verdict\":\"certified\",\"radius\":0.3,\"radius_in_sigmas\":2.9999999999999996,\
         \"radius_in_8bit_steps\":76.5,\"unbounded\":false,\"samples\":1000}}}"
    );
}

#[test]
fn the_tsv_is_the_one_of_locuslab() {
    let mut bytes = Vec::new();
    results().tsv_to(&mut bytes, CertificateName::HalfSpace).unwrap();
    assert_eq!(
        String::from_utf8(bytes).unwrap(),
        "idx\tlabel\tpredict\tradius\tcorrect\ttime\n\
         0\tcat or dog\tcat or dog\t0.3\t1\t0\n\
         1\tcat or dog\t-1\t0\t0\t0\n\
         2\tcat or dog\tcow\t0\t0\t0\n\
         3\tcat or dog\tcat or dog\tinf\t1\t0\n"
    );
}

#[test]
fn every_radius_comes_back_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, lines) = (folder.path().join("a.parquet"), folder.path().join("b.jsonl"));
    let mut state = 1_u64;
    let rows = (0..2000).map(|number| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Below any ceiling for this noise.
        let radius = f64::from_bits((state >> 12) | 0x3f00_0000_0000_0000);
        let verdict = Verdict::Certified { radius: Radius::Finite(radius) };
        ResultRow {
            identity: number.to_string(),
            label: "a".into(),
            retrieved: "b".into(),
            retrieved_label: "a".into(),
            retrieved_view: None,
            nearest_wrong: None,
            plain: None,
            file: None,
            certificates: BTreeMap::from([(CertificateName::Vote, Cell { verdict, samples: u32::MAX })]),
        }
    });
    let sigma = Sigma::new(0.123_456_789_012_345_68).unwrap();
    let table = ResultTable::new(Some(sigma), vec![CertificateName::Vote], rows.collect()).unwrap();
    table.write_parquet(&parquet, None).unwrap();
    table.write_json_lines_with_record(&lines, None).unwrap();
    assert_eq!(read(&parquet).unwrap(), table);
    assert_eq!(read(&lines).unwrap(), table);
}

/// A row that is certified by one certificate.
fn certified_by(name: CertificateName, radius: Radius, nearest_wrong: Option<WrongItem>) -> ResultTable {
    let verdict = Verdict::Certified { radius };
    let row = ResultRow {
        identity: "query".into(),
        label: "a".into(),
        retrieved: "b".into(),
        retrieved_label: "a".into(),
        retrieved_view: None,
        nearest_wrong,
        plain: None,
        file: None,
        certificates: BTreeMap::from([(name, Cell { verdict, samples: 1000 })]),
    };
    let sigma = Sigma::new(0.1).expect("0.1 is a noise level");
    ResultTable::new(Some(sigma), vec![name], vec![row]).expect("its one row has its one certificate")
}

#[test]
fn certificates_without_noise_have_a_table_without_sigma_and_those_from_samples_have_not() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, lines) = (folder.path().join("a.parquet"), folder.path().join("b.jsonl"));
    let names = vec![CertificateName::Lipschitz, CertificateName::LipschitzMargin];
    let row = |radius: f64| ResultRow {
        certificates: names
            .iter()
            .map(|&name| {
                (name, Cell { verdict: Verdict::Certified { radius: Radius::Finite(radius) }, samples: 0 })
            })
            .collect(),
        retrieved_label: "cat\tor dog".into(),
        ..results().rows()[0].clone()
    };
    let table = ResultTable::new(None, names.clone(), vec![row(0.5), row(33.0)]).unwrap();
    table.write_parquet(&parquet, None).unwrap();
    table.write_json_lines_with_record(&lines, None).unwrap();
    assert_eq!(read(&parquet).unwrap(), table);
    assert_eq!(read(&lines).unwrap(), table);
    let text = fs::read_to_string(&lines).unwrap();
    assert!(!text.contains("sigma") && text.contains("\"lipschitz-margin\""), "{text}");

    let sigma = Sigma::new(0.1).ok();
    let with_noise = ResultTable::new(sigma, names.clone(), vec![row(0.5)]).unwrap_err();
    assert!(with_noise.to_string().contains("it needs no noise"), "{with_noise}");
    let without = ResultTable::new(None, results().certificates().to_vec(), vec![]).unwrap_err();
    assert!(without.to_string().contains("wanted the sigma of its samples"), "{without}");
    // Samples that nobody drew are refused when the table is read.
    let mut drawn = row(0.5);
    drawn.certificates.values_mut().for_each(|cell| cell.samples = 7);
    ResultTable::new(None, names, vec![drawn]).unwrap().write_parquet(&parquet, None).unwrap();
    let error = read(&parquet).unwrap_err();
    assert!(error.to_string().contains("0 for a certificate that needs none"), "{error}");
}

#[test]
fn the_plain_answer_and_radii_of_the_file_come_back_and_a_radius_beside_them_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, lines) = (folder.path().join("a.parquet"), folder.path().join("b.jsonl"));
    let bare = results();
    let rows = bare.rows().iter().enumerate().map(|(number, row)| ResultRow {
        plain: (number != 1)
            .then(|| PlainAnswer { retrieved: format!("item {number}"), retrieved_label: "cow".into() }),
        file: (number != 2).then_some(FilePixels { scale: 0.5, rounding: 0.1 }),
        ..row.clone()
    });
    let table = ResultTable::new(bare.sigma(), bare.certificates().to_vec(), rows.collect()).unwrap();
    table.write_parquet(&parquet, None).unwrap();
    table.write_json_lines_with_record(&lines, None).unwrap();
    assert_eq!(read(&parquet).unwrap(), table);
    assert_eq!(read(&lines).unwrap(), table);
    let text = fs::read_to_string(&lines).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let radius = first["certificates"]["half-space"]["file_radius"].as_f64().unwrap();
    assert!(radius <= 0.4 && radius > 0.4 - 1e-12, "(0.3 - 0.1)/0.5 is not {radius}");
    // A larger one than follows from the radius beside it is a lie.
    let lie = text.replacen(&radius.to_string(), "0.41", 1);
    assert_ne!(lie, text);
    fs::write(&lines, lie).unwrap();
    let error = ResultTable::read(&lines, Unverified::Accept).unwrap_err();
    assert!(error.to_string().contains("file_radius"), "{error}");
    // Nothing is left where rounding is larger than the radius.
    let file = FilePixels { scale: 0.5, rounding: 0.3 };
    assert_eq!(file.radius(Radius::Finite(0.3)), None);
    assert_eq!(file.radius(Radius::Unbounded), Some(Radius::Unbounded));
    let absurd = FilePixels { scale: 0.0, rounding: 0.0 };
    let rows = vec![ResultRow { file: Some(absurd), ..bare.rows()[1].clone() }];
    let table = ResultTable::new(bare.sigma(), bare.certificates().to_vec(), rows).unwrap();
    table.write_json_lines_with_record(&lines, None).unwrap();
    assert!(read(&lines).unwrap_err().to_string().contains("file_scale"));
}

#[test]
fn the_views_of_items_come_back_and_tables_without_them_have_no_such_column() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, lines) = (folder.path().join("a.parquet"), folder.path().join("b.jsonl"));
    let plain = results();
    let rows = plain.rows().iter().enumerate().map(|(number, row)| {
        let mut row = row.clone();
        row.retrieved_view = Some(format!("view {number}"));
        if let Some(wrong) = &mut row.nearest_wrong {
            wrong.view = Some("mirrored".to_owned());
        }
        row
    });
    let table = ResultTable::new(plain.sigma(), plain.certificates().to_vec(), rows.collect()).unwrap();
    table.write_parquet(&parquet, None).unwrap();
    table.write_json_lines_with_record(&lines, None).unwrap();
    assert_eq!(read(&parquet).unwrap(), table);
    assert_eq!(read(&lines).unwrap(), table);
    assert_ne!(table.digest(None), plain.digest(None));
    plain.write_parquet(&parquet, None).unwrap();
    let bytes = fs::read(&parquet).unwrap();
    assert!(!bytes.windows(5).any(|window| window == b"_view"));
}

#[test]
fn an_item_without_a_name_does_not_make_a_table_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, lines) = (folder.path().join("a.parquet"), folder.path().join("b.jsonl"));
    let nameless = WrongItem { identity: String::new(), label: "cow".into(), view: None };
    let table = certified_by(CertificateName::Vote, Radius::Finite(0.1), Some(nameless));
    table.write_parquet(&parquet, None).unwrap();
    table.write_json_lines_with_record(&lines, None).unwrap();
    assert_eq!(read(&parquet).unwrap(), table);
    assert_eq!(read(&lines).unwrap(), table);
}

#[test]
fn only_half_spaces_can_be_unbounded() {
    let folder = tempfile::tempdir().unwrap();
    for name in CertificateName::SMOOTHED {
        let path = folder.path().join(format!("{name}.parquet"));
        certified_by(name, Radius::Unbounded, None).write_parquet(&path, None).unwrap();
        let half_space = matches!(name, CertificateName::HalfSpace | CertificateName::HalfSpaceMean);
        assert_eq!(read(&path).is_ok(), half_space, "{name}");
    }
}

#[test]
fn rows_with_other_certificates_than_the_table_are_refused() {
    let rows = results().rows().to_vec();
    let error = ResultTable::new(Sigma::new(0.1).ok(), vec![CertificateName::Vote], rows).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 0 (`query 0`) has certificates paper-frozen, half-space, the table has vote"
    );
}

#[test]
fn json_lines_that_lie_are_refused_by_row_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.jsonl");
    // Without a record nothing but the numbers themselves can tell.
    let accepted = |path: &Path| ResultTable::read(path, Unverified::Accept).map(|stored| stored.table);
    results().write_json_lines(&path).unwrap();
    assert!(matches!(read(&path), Err(TableError::NoDigest { .. })));
    let whole = fs::read_to_string(&path).unwrap();
    for (from, to, wanted) in [
        ("\"radius\":0.3", "\"radius\":0.4", "half_space_radius_in_sigmas is 2.9999999999999996, wanted 4"),
        ("2.9999999999999996", "3.1", "half_space_radius_in_sigmas is 3.1, wanted 2.9999999999999996"),
        ("76.5", "null", "half_space_radius_in_8bit_steps is missing, wanted 76.5"),
        ("\"samples\":1000", "\"samples\":0", "half_space_samples is 0, wanted at least one"),
        ("\"radius\":0.3", "\"radius\":-0.3", "half_space_radius is -0.3, wanted a finite number above 0"),
        ("\"radius\":0.3", "\"radius\":null", "half_space_radius is missing"),
        ("\"radius\":0.3", "\"radius\":1e999", "the line is"),
        ("\"radius\":0.3", "\"radius\":\"NaN\"", "the line is"),
        ("\"radius\":null", "\"radius\":1.0", "paper_frozen_radius is 1, wanted none"),
        ("\"certified\"", "\"proved\"", "the line is"),
        ("\"half-space\"", "\"quarter-space\"", "the line is"),
        ("\"sigma\":0.1", "\"sigma\":0.2", "half_space_radius_in_sigmas is 2.9999999999999996, wanted 1.49"),
        ("\"sigma\":0.1", "\"sigma\":-1", "sigma is -1"),
        ("\"samples\":1000", "\"samples\":-1", "the line is"),
    ] {
        assert!(whole.contains(from), "{from}");
        replace(&path, whole.replacen(from, to, 1));
        let error = accepted(&path).expect_err(to).to_string();
        assert!(error.contains(wanted), "{to}: {error}");
        assert!(error.contains("c.jsonl"), "{to}: {error}");
    }
    for length in 0..whole.len() - 1 {
        if !whole.is_char_boundary(length) {
            continue;
        }
        replace(&path, &whole[..length]);
        if let Ok(table) = accepted(&path) {
            let rows = table.rows();
            assert_eq!(rows, &results().rows()[..rows.len()], "cut to {length}");
        }
    }
    replace(&path, "");
    assert!(matches!(accepted(&path), Err(TableError::Empty { .. })));
    replace(&path, vec![b'['; 3 << 20]);
    assert!(matches!(accepted(&path), Err(TableError::Value { row: 0, .. })));
}

#[test]
fn a_changed_table_is_refused_whichever_file_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let [parquet, lines, other] = ["a.parquet", "b.jsonl", "c.jsonl"].map(|name| folder.path().join(name));
    let table = results();
    table.write_json_lines_with_record(&lines, None).unwrap();
    let whole = fs::read_to_string(&lines).unwrap();
    // Numbers that agree with each other and were never found.
    let changed = whole
        .replacen("\"radius\":0.3", "\"radius\":0.6", 1)
        .replacen("2.9999999999999996", "5.999999999999999", 1)
        .replacen("76.5", "153.0", 1);
    let shorter: String = whole.lines().skip(1).map(|line| format!("{line}\n")).collect();
    for lie in [changed, shorter, whole.replacen("query 1", "query 9", 1)] {
        assert_ne!(lie, whole);
        replace(&lines, &lie);
        for unverified in [Unverified::Refuse, Unverified::Accept] {
            let error = ResultTable::read(&lines, unverified).unwrap_err();
            assert!(matches!(error, TableError::Changed { .. }), "{error}");
        }
        // Another table's record does not help.
        replace(&other, &lie);
        fs::copy(folder.path().join("b.jsonl.json"), folder.path().join("c.jsonl.json")).unwrap();
        assert!(matches!(read(&other), Err(TableError::Changed { .. })));
    }
    // A table that was written again without its digest is nobody's.
    table.write_parquet(&parquet, None).unwrap();
    let bytes = fs::read(&parquet).unwrap();
    let key = b"retrievalguard.table";
    let place = bytes.windows(key.len()).position(|window| window == key).unwrap();
    let mut renamed = bytes.clone();
    renamed[place] = b'R';
    replace(&parquet, &renamed);
    assert!(matches!(read(&parquet), Err(TableError::NoDigest { .. })));
    let accepted = ResultTable::read(&parquet, Unverified::Accept).unwrap();
    assert!(!accepted.verified && accepted.table == table);
}

#[test]
fn exported_galleries_are_imported_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let (written, paths) = (gallery(23, metric), paths(23));
        export_npy(&written, &at("v.npy"), &at("l.txt"), Some(&at("i.txt")), &made()).unwrap();
        let found = import_npy(&at("v.npy"), &at("l.txt"), Some(&at("i.txt")), None).unwrap();
        assert_same(&found.gallery, &written, "npy");
        assert_eq!((found.gallery.metric(), found.provenance), (metric, Some(made())));
        let unnamed = import_npy(&at("v.npy"), &at("l.txt"), None, None).unwrap_err();
        assert!(unnamed.to_string().contains("identities, labels and paths"), "{unnamed}");

        export_parquet(&at("g.parquet"), &written, &paths, &made()).unwrap();
        let found = import_parquet(&at("g.parquet"), None).unwrap();
        assert_eq!((found.gallery.metric(), found.provenance), (metric, Some(made())));
        assert_same(&found.gallery, &written, "parquet");
        assert_eq!(found.paths, paths);

        let clip = at(&format!("clip-{metric:?}"));
        export_clip_retrieval(&clip, &written, &paths, NonZeroUsize::new(2).unwrap(), &made()).unwrap();
        assert_eq!(fs::read_dir(clip.join("img_emb")).unwrap().count(), 12);
        assert!(clip.join("metadata/metadata_03.parquet").exists());
        let found = import_clip_retrieval(&clip, None, None).unwrap();
        assert_eq!((found.gallery.metric(), &found.provenance), (metric, &Some(made())));
        assert_same(&found.gallery, &written, "clip-retrieval");
        assert_eq!(found.paths[0].as_deref(), Some("a/0.jpg"));
        assert_eq!(found.paths[1].as_deref(), Some(written.identity(1)));
        let again = export_clip_retrieval(&clip, &written, &paths, NonZeroUsize::MIN, &made());
        assert!(matches!(again, Err(TableError::Write(WriteError::Other { .. }))), "{again:?}");
    }
    let other = import_parquet(&at("g.parquet"), Some(Metric::Euclidean)).unwrap_err();
    assert!(matches!(other, TableError::Metric { .. }), "{other}");
    export_npy(&gallery(23, Metric::Cosine), &at("v.npy"), &at("l.txt"), None, &made()).unwrap();
    let numbered = import_npy(&at("v.npy"), &at("l.txt"), None, None).unwrap();
    assert_eq!(numbered.gallery.identity(22), "22");
}

#[test]
fn a_gallery_of_several_row_groups_comes_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("g.parquet");
    let written = gallery(70_000, Metric::Euclidean);
    export_parquet(&path, &written, &[], &made()).unwrap();
    assert_same(&import_parquet(&path, None).unwrap().gallery, &written, "two groups");
}

#[test]
fn files_of_pandas_polars_and_pyarrow_are_read() {
    let vectors: Vec<f32> = (0..7).flat_map(|row| [row as f32, row as f32 + 0.5, -row as f32]).collect();
    for name in [
        "pandas",
        "pandas-category",
        "polars-double",
        "polars-array",
        "large",
        "groups",
        "plain",
        "labels-int",
    ] {
        let found =
            import_parquet(&reference(name), None).unwrap_or_else(|error| panic!("{name}: {error}")).gallery;
        assert_eq!(found.vectors(), vectors, "{name}");
        for row in 0..7 {
            let number = row.to_string();
            let label = match (name, row % 2) {
                ("labels-int", _) => number.as_str(),
                (_, 0) => "cat",
                _ => "dog",
            };
            assert_eq!(found.identity(row), format!("item {row}"), "{name}");
            assert_eq!(found.label_name(found.label(row)), label, "{name}");
        }
    }
}

#[test]
fn files_that_hold_no_gallery_are_refused_with_the_reason() {
    for (name, wanted) in [
        ("broken-null-vector", "row 4 of"),
        ("broken-empty-vector", "vector is missing or empty"),
        ("broken-ragged", "row 4 of"),
        ("broken-null-label", "label is missing, wanted a value in every row"),
        ("broken-no-label", "has no column `label`, it has `identity`, `vector`"),
        ("broken-empty", "has no rows"),
        ("broken-int-vector", "column `vector` of table"),
        ("broken-scalar-vector", "holds 0 levels of lists, wanted a list of numbers per row"),
        ("broken-gzip", "is not a readable Parquet file"),
    ] {
        let error = import_parquet(&reference(name), None).expect_err(name).to_string();
        assert!(error.contains(wanted) && error.contains(name), "{name}: {error}");
    }
    let error = import_parquet(&reference("broken-nan"), None).unwrap_err();
    let TableError::Gallery { source: GalleryError::NotFinite { row: 2, component: 1, .. }, .. } = error
    else {
        panic!("{error}");
    };
    assert!(matches!(import_parquet(Path::new("/nowhere.parquet"), None), Err(TableError::Read { .. })));
}

#[test]
fn damaged_parquet_files_are_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.parquet");
    // Every place in the long form, spread over all of them in the quick one.
    let thorough = std::env::var_os("RETRIEVALGUARD_THOROUGH").is_some_and(|value| value == "1");
    let step = |quick: usize| if thorough { 1 } else { quick };
    for name in ["pandas", "polars-array"] {
        let whole = fs::read(reference(name)).unwrap();
        for length in (0..whole.len()).step_by(step(37)) {
            replace(&path, &whole[..length]);
            assert!(import_parquet(&path, None).is_err(), "{name} cut to {length}");
        }
        for bit in (0..8 * whole.len()).step_by(step(31)) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            replace(&path, &bytes);
            let _ = import_parquet(&path, None);
        }
    }
    results().write_parquet(&path, None).unwrap();
    let whole = fs::read(&path).unwrap();
    for bit in (0..8 * whole.len()).step_by(step(61)) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        replace(&path, &bytes);
        if let Ok(found) = read(&path) {
            assert_eq!(found, results(), "bit {bit}");
        }
    }
}

#[test]
fn names_that_do_not_fit_on_a_line_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["two\nlines", "carriage\r", "\u{feff}mark"] {
        let written = Gallery::new(vec![1.0], 1, vec!["a".into()], &[name], Metric::Euclidean).unwrap();
        let error = export_npy(&written, &at("v.npy"), &at("l.txt"), None, &made()).unwrap_err();
        assert!(matches!(error, TableError::Value { row: 0, .. }), "{name:?}: {error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{name:?}");
    }
}

#[test]
fn labels_that_do_not_match_the_vectors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    npy::write_f32(&at("v.npy"), &[3, 2], &[0.0; 6]).unwrap();
    fs::write(at("l.txt"), "cat\r\ndog").unwrap();
    let error = import_npy(&at("v.npy"), &at("l.txt"), None, None).unwrap_err();
    assert!(error.to_string().ends_with("l.txt` has 2 labels, wanted 3"), "{error}");
    assert_eq!(read_labels(&at("l.txt")).unwrap(), ["cat", "dog"]);
    fs::write(at("l.txt"), b"cat\n\xff\ndog\n").unwrap();
    let error = import_npy(&at("v.npy"), &at("l.txt"), None, None).unwrap_err();
    assert!(matches!(error, TableError::Value { row: 1, .. }), "{error}");
    fs::write(at("l.txt"), "cat\ndog\ncow\n").unwrap();
    fs::write(at("i.txt"), "a\n").unwrap();
    let error = import_npy(&at("v.npy"), &at("l.txt"), Some(&at("i.txt")), None).unwrap_err();
    assert!(matches!(error, TableError::Count { what: "identities", found: 1, wanted: 3, .. }), "{error}");
}

#[test]
fn shards_of_clip_retrieval_need_their_partners_and_one_dimension() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let import = || import_clip_retrieval(folder.path(), None, None);
    assert!(matches!(import(), Err(TableError::NoShards { .. })));
    let (written, three) = (gallery(6, Metric::Euclidean), NonZeroUsize::new(3).unwrap());
    export_clip_retrieval(folder.path(), &written, &[], three, &made()).unwrap();
    assert_eq!(import().unwrap().gallery.len(), 6);
    let error = import_clip_retrieval(folder.path(), Some("caption"), None).unwrap_err();
    assert!(matches!(&error, TableError::NoColumn { column, .. } if column == "caption"), "{error}");
    npy::write_f32(&at("img_emb/img_emb_1.npy"), &[3, 4], &[0.0; 12]).unwrap();
    assert!(matches!(import(), Err(TableError::Count { what: "components per vector", .. })));
    npy::write_f32(&at("img_emb/img_emb_1.npy"), &[2, 5], &[0.0; 10]).unwrap();
    assert!(matches!(import(), Err(TableError::Count { what: "rows", found: 3, wanted: 2, .. })));
    fs::remove_file(at("img_emb/img_emb_1.npy")).unwrap();
    assert!(matches!(import(), Err(TableError::NoPartner { .. })));
    fs::remove_file(at("metadata/metadata_1.parquet")).unwrap();
    let fewer = import().unwrap_err();
    assert!(fewer.to_string().contains("a number of items of 3, its manifest says 6"), "{fewer}");
    fs::remove_file(at("retrievalguard.json")).unwrap();
    assert_eq!(import().unwrap().gallery.len(), 3);
    fs::copy(at("img_emb/img_emb_0.npy"), at("img_emb/img_emb_00.npy")).unwrap();
    assert!(matches!(import(), Err(TableError::Value { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_to_be_full() {
    let full = Path::new("/dev/full");
    let table = results();
    for result in [
        table.write_parquet(full, None),
        table.write_json_lines(full),
        table.write_tsv(full, CertificateName::HalfSpace),
        export_parquet(full, &gallery(2000, Metric::Cosine), &[], &made()),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, TableError::Write(WriteError::DiskFull { .. })), "{error}");
    }
}

/// Python of the environment in the target directory, where the programs to be tested are installed.
fn python() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let target = executable.ancestors().find(|folder| folder.join("venv").is_dir())?;
    let python = target.join("venv/bin/python");
    python.exists().then_some(python)
}

#[test]
fn exports_are_read_by_pandas_polars_duckdb_and_faiss() {
    let required = std::env::var_os("RETRIEVALGUARD_REQUIRE_PYTHON").is_some_and(|value| value == "1");
    let Some(python) = python() else {
        assert!(
            !required,
            "there is no venv in the target directory, wanted one with numpy, pandas and faiss"
        );
        println!("skipped: read_export: there is no venv in the target directory (1 test not run)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let written = gallery(23, Metric::Euclidean);
    let expected = serde_json::json!({
        "identities": (0..23).map(|row| written.identity(row)).collect::<Vec<_>>(),
        "labels": (0..23).map(|row| written.label_name(written.label(row))).collect::<Vec<_>>(),
        "vectors": (0..23).map(|row| written.vector(row)).collect::<Vec<_>>(),
    });
    fs::write(at("expected.json"), expected.to_string()).unwrap();
    export_npy(&written, &at("vectors.npy"), &at("labels.txt"), None, &made()).unwrap();
    export_parquet(&at("gallery.parquet"), &written, &[], &made()).unwrap();
    export_clip_retrieval(&at("clip"), &written, &[], NonZeroUsize::new(2).unwrap(), &made()).unwrap();
    results().write_parquet(&at("certificates.parquet"), None).unwrap();
    results().write_json_lines(&at("certificates.jsonl")).unwrap();
    results().write_tsv(&at("certificates.tsv"), CertificateName::HalfSpace).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/read_export.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if complained.contains("No module named 'numpy'") {
        assert!(!required, "{complained}");
        println!("skipped: read_export: numpy not installed (1 test not run)");
        return;
    }
    assert!(output.status.success(), "{said}{complained}");
    print!("{said}");
    let skipped = said.lines().filter(|line| line.starts_with("skipped:")).count();
    println!("{skipped} of 6 programs skipped");
    for program in ["numpy", "pandas", "faiss"] {
        assert!(!required || said.contains(&format!("checked: {program}\n")), "{said}");
    }
}
