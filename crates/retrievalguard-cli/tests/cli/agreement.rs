//! `recall --answers`: how often another search answers as exact search over the same gallery does.

use retrievalguard::storage::manifest::GalleryDirectory;

use crate::sandbox::{ENCODER, PICTURES, Sandbox};

/// The model without a noise level.
const CLEAN: &str = "--model model/convolutional.onnx --engine rten";

/// Answers of a double loop over vectors of the gallery's own pictures, of which every `wrong`th is another item.
fn answers(sandbox: &Sandbox, wrong: usize) -> String {
    let stored = GalleryDirectory::read(&sandbox.path("gallery")).unwrap();
    let gallery = stored.gallery.plain().unwrap();
    let name = |row: usize| gallery.identity(row).to_owned();
    // A picture of the gallery is nearest to itself.
    let line = |row: usize| match row % wrong {
        0 => format!("{},{}\n", name(row), name((row + PICTURES / 2) % PICTURES)),
        _ => format!("{0},{0}\n", name(row)),
    };
    format!("identity,answer\n{}", (0..PICTURES).map(line).collect::<String>())
}

#[test]
fn answers_of_another_search_are_counted_against_exact_search() {
    let sandbox = Sandbox::indexed();
    sandbox.write("answers.csv", answers(&sandbox, 3));
    let compare = format!("recall pictures {CLEAN} --gallery gallery --answers answers.csv");
    let found = sandbox.run(&format!("{compare} --json")).succeeds().json();
    let found = &found["agreement"];
    assert_eq!(found["queries"], PICTURES);
    assert_eq!(found["same_item"]["count"], PICTURES - PICTURES / 3);
    assert!(found["same_label"]["count"].as_u64() >= found["same_item"]["count"].as_u64());
    let lower = found["same_item"]["lower"].as_f64().unwrap();
    assert!(0.4 < lower && lower < 2.0 / 3.0, "{lower}");
    sandbox.run(&compare).prints(&[
        "30 queries, 0 of them unanswered",
        "same item   0.6667",
        "about exact search",
    ]);
}

#[test]
fn means_over_noisy_copies_are_compared_in_the_smoothed_vectors() {
    let sandbox = Sandbox::indexed();
    // Nobody is answered by itself for certain here; that all are answered is what is asked.
    sandbox.write("answers.csv", answers(&sandbox, PICTURES));
    let found =
        sandbox.run(&format!("recall pictures {ENCODER} --gallery gallery --answers answers.csv --json"));
    let found = found.succeeds().json();
    assert_eq!((&found["sigma"], &found["agreement"]["unanswered"]), (&0.1.into(), &0.into()));
    let other = "recall pictures --model model/convolutional.onnx --engine rten --sigma 0.2";
    let other = sandbox.run(&format!("{other} --gallery gallery --answers answers.csv"));
    other.fails(2, &["was smoothed with sigma 0.1, the queries with 0.2"]);
}

#[test]
fn what_is_wrong_with_answers_is_named() {
    let sandbox = Sandbox::indexed();
    let compare = format!("recall pictures {CLEAN} --gallery gallery --answers answers.csv");
    let first = answers(&sandbox, 3).lines().nth(1).unwrap().split(',').next().unwrap().to_owned();
    for (text, words) in [
        ("query,found\n".to_owned(), "wanted identity,answer"),
        ("identity,answer\n".to_owned(), "have none for query"),
        (format!("identity,answer\n{first},nobody\n"), "which the gallery does not have"),
    ] {
        sandbox.write("answers.csv", text);
        sandbox.run(&compare).fails(2, &[words]);
    }
    sandbox.run(&format!("recall pictures {CLEAN}")).fails(2, &["--sigma"]);
    sandbox.run(&format!("recall pictures {CLEAN} --answers answers.csv")).fails(2, &["--gallery"]);
}
