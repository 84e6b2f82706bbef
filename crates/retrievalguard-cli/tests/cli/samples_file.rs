//! `certify --samples-file`: certificates of embeddings made elsewhere.

use serde_json::Value;

use crate::arrays::{cloud, npy, npy_f64_fortran, with_header};
use crate::sandbox::{CERTIFICATES, ENCODER, Sandbox, json_lines};

const DIMENSION: usize = 4;
const GALLERY: &str = "--gallery-file G.npy --gallery-labels L.txt --sigma 0.25";

/// Three labels with two items each, and 600 samples around the first of them.
fn files() -> Sandbox {
    let sandbox = Sandbox::new();
    let gallery: Vec<f32> = (0..3).flat_map(|axis| cloud(2, DIMENSION, axis, 7 + axis as u32)).collect();
    sandbox.write("G.npy", npy(&[6, DIMENSION], &gallery));
    sandbox.write("L.txt", "ant\nant\nbee\nbee\ncow\ncow\n");
    sandbox.write("S.npy", npy(&[600, DIMENSION], &cloud(600, DIMENSION, 0, 1)));
    sandbox.write("P.npy", npy(&[100, DIMENSION], &cloud(100, DIMENSION, 0, 2)));
    sandbox
}

#[test]
fn one_object_holds_every_certificate_with_its_reasons() {
    let sandbox = files();
    let line = format!(
        "certify --samples-file S.npy --pilot-file P.npy {GALLERY} --label ant --certificate all \
         --gallery-samples 1000000 --json"
    );
    let run = sandbox.run(&line).succeeds();
    assert!(run.errors.is_empty(), "{run}");
    let answer = run.json();
    assert!(answer["retrieved"].as_u64().unwrap() < 2, "{answer}");
    assert_eq!(answer["retrieved_label"], "ant");
    let certificates = answer["certificates"].as_object().unwrap();
    assert_eq!(certificates.len(), CERTIFICATES.len());
    for name in CERTIFICATES {
        let certificate = certificates[name].as_object().unwrap();
        let verdict = certificate["verdict"].as_str().unwrap();
        assert!(["certified", "abstained", "misretrieved"].contains(&verdict), "{name}: {verdict}");
        assert!(certificate["unbounded"].is_boolean(), "{name}");
        assert!(certificate.contains_key("explain"), "{name}");
        let radius = &certificate["radius"];
        assert_eq!(radius.is_number(), verdict == "certified", "{name}: {radius}");
    }
    for name in ["half-space-mean", "half-space", "vote"] {
        assert!(certificates[name]["radius"].as_f64().unwrap() > 0.1, "{name}: {answer}");
    }
    // A label that is not the nearest one is misretrieved, and one that the gallery lacks, too.
    for label in ["cow", "yak"] {
        let line =
            format!("certify --samples-file S.npy --pilot-file P.npy {GALLERY} --label {label} --json");
        let answer = sandbox.run(&line).succeeds().json();
        assert_eq!(answer["certificates"]["half-space"]["verdict"], "misretrieved", "{label}");
        assert_eq!(answer["certificates"]["half-space"]["radius"], Value::Null, "{label}");
        assert_eq!(answer["retrieved_label"], "ant");
    }
    let text = sandbox.run(&format!("certify --samples-file S.npy --pilot-file P.npy {GALLERY}")).succeeds();
    text.prints(&["query 0: retrieved row", "label ant", "half-space", "certified"]);
}

#[test]
fn without_a_pilot_the_first_tenth_serves_and_that_is_said() {
    let sandbox = files();
    let run = sandbox.run(&format!("certify --samples-file S.npy {GALLERY} --json")).succeeds();
    let run = run.tells(&["no --pilot-file", "first tenth"]);
    let answer = run.json();
    assert_eq!(answer["label"], "ant");
    assert_eq!(answer["certificates"]["half-space"]["samples"], 540);
    // The same with the tenth cut off by hand.
    let all = cloud(600, DIMENSION, 0, 1);
    let (first, rest) = all.split_at(60 * DIMENSION);
    sandbox.write("P60.npy", npy(&[60, DIMENSION], first));
    sandbox.write("S540.npy", npy(&[540, DIMENSION], rest));
    let line = format!("certify --samples-file S540.npy --pilot-file P60.npy {GALLERY} --json");
    assert_eq!(sandbox.run(&line).succeeds().json(), answer);
}

#[test]
fn rows_that_cannot_be_independent_are_refused() {
    let sandbox = files();
    let (samples, pilot) = (cloud(600, DIMENSION, 0, 1), cloud(100, DIMENSION, 0, 2));
    let line = |files: &str, rest: &str| sandbox.run(&format!("certify {files} {GALLERY} {rest}"));
    // One file as both: by its name, by another name for it, and as a copy. No flag allows it.
    std::fs::hard_link(sandbox.path("S.npy"), sandbox.path("linked.npy")).unwrap();
    sandbox.write("copy.npy", npy(&[600, DIMENSION], &samples));
    sandbox.write("double.npy", npy_f64_fortran(600, DIMENSION, &samples));
    for other in ["S.npy", "./S.npy", "linked.npy", "copy.npy", "double.npy"] {
        for flag in ["", "--discrete"] {
            let run = line(&format!("--samples-file S.npy --pilot-file {other}"), flag);
            let words = ["query 0 of `S.npy`", "the pilot is the certifying sample, 600 rows"];
            let run = run.fails(2, &words);
            assert!(!run.errors.contains("hint"), "{run}");
        }
    }

    let hint = "hint: --discrete lets rows repeat";
    let of = |rows: &[f32]| npy(&[rows.len() / DIMENSION, DIMENSION], rows);
    let gallery: Vec<f32> = (0..3).flat_map(|axis| cloud(2, DIMENSION, axis, 7 + axis as u32)).collect();
    let table = [
        (
            "a slice",
            of(&samples),
            of(&samples[..100 * DIMENSION]),
            "100 of 600 certifying rows are rows of the pilot, row 0 is row 0",
            "the pilot is rows 0 to 100 of the certifying sample",
        ),
        (
            "no noise",
            of(&samples[..DIMENSION].repeat(400)),
            of(&pilot),
            "all 400 certifying rows are the same",
            "the 400 certifying rows repeat with period 1,",
        ),
        (
            "twice",
            of(&samples.repeat(2)),
            of(&pilot),
            "600 of 1200 certifying rows repeat an earlier one, row 600 is row 0",
            "the 1200 certifying rows repeat with period 600,",
        ),
        (
            "stretched",
            of(&samples.chunks(DIMENSION).flat_map(|row| row.repeat(2)).collect::<Vec<f32>>()),
            of(&pilot),
            "600 of 1200 certifying rows repeat an earlier one, row 1 is row 0",
            "each of the 1200 certifying rows occurs 2 times in succession",
        ),
        (
            "the gallery",
            of(&[&samples[..], &gallery[..DIMENSION]].concat()),
            of(&pilot),
            "1 of 601 certifying rows are vectors of the gallery, row 600 is item 0",
            "",
        ),
    ];
    for (case, samples, pilot, refused, discrete) in table {
        sandbox.write("S2.npy", samples);
        sandbox.write("P2.npy", pilot);
        let files = "--samples-file S2.npy --pilot-file P2.npy";
        line(files, "").fails(2, &["query 0 of `S2.npy` cannot be used", refused, hint]);
        let run = line(files, "--discrete");
        if discrete.is_empty() {
            run.succeeds();
        } else {
            let run = run.fails(2, &[discrete]);
            assert!(!run.errors.contains("hint"), "{case}: {run}");
        }
    }
}

#[test]
fn an_encoder_with_few_outputs_is_certified_once_that_is_said() {
    let sandbox = files();
    // Far from a boundary every noisy copy of a picture has the same hash.
    let hash = [0.5_f32, 0.5, -0.5, 0.5];
    sandbox.write("S.npy", npy(&[400, DIMENSION], &hash.repeat(400)));
    sandbox.write("P.npy", npy(&[100, DIMENSION], &hash.repeat(100)));
    let line = format!("certify --samples-file S.npy --pilot-file P.npy {GALLERY} --json");
    sandbox.run(&line).fails(2, &["all 400 certifying rows are the same"]);
    let answer = sandbox.run(&format!("{line} --discrete")).succeeds().json();
    assert_eq!(answer["certificates"]["half-space"]["verdict"], "certified", "{answer}");
}

#[test]
fn double_precision_in_fortran_order_gives_the_same_answer() {
    let sandbox = files();
    let line = format!("certify --samples-file S.npy {GALLERY} --certificate all --json");
    let wanted = sandbox.run(&line).succeeds().json();
    sandbox.write("S.npy", npy_f64_fortran(600, DIMENSION, &cloud(600, DIMENSION, 0, 1)));
    assert_eq!(sandbox.run(&line).succeeds().json(), wanted);
}

#[test]
fn a_stack_of_queries_takes_a_label_for_each() {
    let sandbox = files();
    let stack: Vec<f32> = (0..3).flat_map(|axis| cloud(200, DIMENSION, axis, 30)).collect();
    sandbox.write("Q.npy", npy(&[3, 200, DIMENSION], &stack));
    sandbox.write("Y.txt", "ant\nbee\nant\n");
    let line = format!("certify --samples-file Q.npy {GALLERY} --labels-file Y.txt --json");
    let answers = sandbox.run(&line).succeeds().json_lines();
    let verdicts: Vec<&Value> =
        answers.iter().map(|answer| &answer["certificates"]["half-space"]["verdict"]).collect();
    assert_eq!(verdicts, ["certified", "certified", "misretrieved"]);
    assert_eq!(answers[2]["query"], 2);
    assert_eq!(answers[2]["retrieved_label"], "cow");
    // Shared over three queries, alpha is smaller and so are the radii.
    let shared = sandbox.run(&format!("{line} --simultaneous")).succeeds().json_lines();
    let radius = |answer: &Value| answer["certificates"]["half-space"]["radius"].as_f64().unwrap();
    assert!(radius(&shared[0]) < radius(&answers[0]), "{shared:?}");

    sandbox.write("Y.txt", "ant\nbee\n");
    sandbox.run(&line).fails(2, &["`Y.txt` has 2 labels", "3 queries"]);
    let line = format!("certify --samples-file Q.npy --pilot-file P.npy {GALLERY}");
    sandbox.run(&line).fails(2, &["`P.npy` has pilots for 1 queries", "`Q.npy` samples for 3"]);
}

#[test]
fn unusable_arrays_are_named_with_what_is_wrong() {
    let sandbox = files();
    let good = cloud(600, DIMENSION, 0, 1);
    let changed = |place: usize, value: f32| {
        let mut values = good.clone();
        values[place] = value;
        npy(&[600, DIMENSION], &values)
    };
    let whole = npy(&[600, DIMENSION], &good);
    let lying = with_header("<f4", false, &[600_000_000, DIMENSION], &[0; 160]);
    let overflowing = with_header("<f4", false, &[usize::MAX, usize::MAX], &[0; 160]);
    let table: [(&str, Vec<u8>, &[&str]); 10] = [
        ("NaN", changed(1234, f32::NAN), &["query 0", "sample 308 has NaN in component 2"]),
        ("too long", changed(4, 3.0), &["query 0", "sample 1 has norm 3.", "at most 1"]),
        ("lying", lying, &["160 bytes of numbers", "[600000000, 4]", "9600000000"]),
        ("overflow", overflowing, &["more elements than can be addressed"]),
        ("truncated", whole[..whole.len() - 1].to_vec(), &["9599 bytes of numbers", "9600"]),
        ("no header", whole[..40].to_vec(), &["40 bytes", "for its header"]),
        ("text", b"0.1 0.2\n".to_vec(), &["is not a .npy file"]),
        (
            "integers",
            with_header("<i8", false, &[2, 4], &[0; 64]),
            &["descr is `'<i8'`, wanted '<f2', '<f4' or '<f8'"],
        ),
        ("one axis", npy(&[8], &good[..8]), &["[8]", "wanted"]),
        ("wide", npy(&[10, 5], &cloud(10, 5, 0, 1)), &["dimension 5", "gallery's vectors 4"]),
    ];
    for (case, bytes, words) in table {
        sandbox.write("S.npy", bytes);
        let run = sandbox.run(&format!("certify --samples-file S.npy {GALLERY}")).fails(2, words);
        assert!(run.errors.contains("S.npy"), "{case}: {run}");
    }
    // Projected on request, the long sample is no error.
    sandbox.write("S.npy", changed(4, 3.0));
    sandbox.run(&format!("certify --samples-file S.npy {GALLERY} --project")).succeeds();
    sandbox.run(&format!("certify --samples-file S.npy {GALLERY} --norm-bound 4")).succeeds();
    sandbox.write("L.txt", "ant\nbee\n");
    let line = format!("certify --samples-file S.npy {GALLERY}");
    sandbox.run(&line).fails(2, &["`L.txt` has 2 labels, wanted 6"]);
}

#[test]
fn flags_that_mean_nothing_for_given_samples_are_refused() {
    let sandbox = files();
    for flag in ["--target-radius 0.1", "--top-k 3", "--samples 10", "--leave-one-out always", "--jsonl"] {
        let line = format!("certify --samples-file S.npy {GALLERY} {flag}");
        let name = flag.split(' ').next().unwrap();
        sandbox.run(&line).fails(2, &["cannot be used with", "--samples-file", name]);
    }
    sandbox.run("certify --samples-file S.npy --sigma 0.1").fails(2, &["--gallery-file"]);
}

#[test]
fn kept_samples_certify_again_without_the_encoder() {
    let sandbox = Sandbox::indexed();
    let line = "certify pictures --gallery gallery --limit 3 --samples 300 --pilot 50 --leave-one-out never";
    let line = format!("{line} --certificate half-space,vote,pairwise {ENCODER}");
    let rows =
        json_lines(&sandbox.run(&format!("{line} --out run --keep-samples kept --json")).succeeds().out);
    let listed = json_lines(&sandbox.text("kept/queries.jsonl"));
    assert_eq!(listed.len(), 3);
    sandbox.run("export gallery --npy vectors.npy --labels labels.txt").succeeds();
    for (row, kept) in rows.iter().zip(&listed) {
        assert_eq!(row["identity"], kept["identity"]);
        let [samples, pilot] = ["certify", "pilot"].map(|stage| kept[stage].as_str().unwrap().to_owned());
        let again = format!(
            "certify --samples-file kept/{samples} --pilot-file kept/{pilot} --gallery-file vectors.npy \
             --gallery-labels labels.txt --label {} --sigma 0.1 --certificate all --json",
            kept["label"].as_str().unwrap()
        );
        let again = sandbox.run(&again).succeeds().json();
        for name in ["half-space", "vote", "pairwise"] {
            assert_eq!(
                again["certificates"][name]["radius"], row["certificates"][name]["radius"],
                "{name}: {again} {row}"
            );
        }
    }
    // An interrupted run keeps what it has, and keeping changes no result.
    sandbox.run(&format!("{line} --out other")).succeeds();
    assert_eq!(sandbox.bytes("run/certificates.parquet"), sandbox.bytes("other/certificates.parquet"));
    sandbox
        .run(&format!("{line} --out shared --share there --keep-samples kept"))
        .fails(2, &["--keep-samples"]);
}
