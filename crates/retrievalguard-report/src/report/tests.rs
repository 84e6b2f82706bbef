use std::collections::BTreeMap;

use retrievalguard::Sigma;
use retrievalguard::attack::{Mode, Pixels, Point, PointOutcome};
use retrievalguard::certificate::{Radius, Verdict, round_down};
use retrievalguard_encoder::picture::RgbPicture;
use retrievalguard_encoder::table::{Cell, PlainAnswer, ResultRow, WrongItem};

use super::*;
use crate::attack::{AttackedQuery, PlainGallery};
use crate::chart::Marks;
use crate::picture::SIDE;

const HOSTILE: &str = "<img src=x onerror=alert(1)> & \"quotes\" 'too'";

fn table(rows: usize, certificates: &[CertificateName]) -> ResultTable {
    let row = |number: usize| {
        let verdict = match number % 5 {
            0 => Verdict::Misretrieved,
            1 => Verdict::Abstained,
            2 if number == 2 => Verdict::Certified { radius: Radius::Unbounded },
            _ => Verdict::Certified { radius: Radius::Finite(0.1 + number as f64 * 0.003) },
        };
        ResultRow {
            identity: format!("{HOSTILE}/{number}.png"),
            label: HOSTILE.to_owned(),
            retrieved: "item".to_owned(),
            retrieved_label: if number.is_multiple_of(5) { "other".to_owned() } else { HOSTILE.to_owned() },
            retrieved_view: (number % 3 == 1).then(|| HOSTILE.to_owned()),
            nearest_wrong: number.is_multiple_of(2).then(|| WrongItem {
                identity: "wrong".to_owned(),
                label: "wrong".to_owned(),
                view: None,
            }),
            plain: None,
            file: None,
            certificates: certificates.iter().map(|&name| (name, Cell { verdict, samples: 1_000 })).collect(),
        }
    };
    ResultTable::new(Sigma::new(0.25).ok(), certificates.to_vec(), (0..rows).map(row).collect()).unwrap()
}

fn facts() -> Facts {
    Facts {
        basis: Basis::Samples(SampleFacts {
            sigma: Sigma::new(0.25).unwrap(),
            alpha: Alpha::new(0.01).unwrap(),
            pilot: SampleCount::new(200).unwrap(),
            samples: SampleCount::new(1_000).unwrap(),
            target_radius: None,
            seed: "7".to_owned(),
        }),
        left_out: 0,
        engine: HOSTILE.to_owned(),
        tool: "0.1.0".to_owned(),
        finished: Some(1_794_797_415),
        digests: vec![("model".to_owned(), "c796bc19".to_owned())],
        gallery: Some(GalleryFacts {
            items: 300,
            dimension: 64,
            norm_bound: NormBound::UNIT,
            samples: None,
            views: None,
        }),
        input: Some([3, 32, 32]),
    }
}

fn report(table: &ResultTable, listed: usize) -> Report<'_> {
    let picture = RgbPicture::new("p", 30, 20, vec![99; 1_800]).unwrap();
    let shown = Thumbnail::new("p", &picture, SIDE).ok();
    let pictures = RowPictures { query: shown.clone(), retrieved: shown, ..RowPictures::default() };
    Report {
        name: HOSTILE.to_owned(),
        table,
        facts: facts(),
        pictures: vec![pictures; listed],
        visible: vec![],
        commands: vec![CommandLine { purpose: "Again:".to_owned(), line: Some(HOSTILE.to_owned()) }],
        attack: None,
        notes: vec![],
    }
}

#[test]
fn nothing_hostile_becomes_markup_and_nothing_is_fetched() {
    let table = table(20, &CertificateName::SMOOTHED);
    let mut report = report(&table, 20);
    report.notes.push(HOSTILE.to_owned());
    let html = report.html().unwrap();
    assert!(!html.contains("<img src=x") && html.contains("&lt;img src=x onerror=alert(1)&gt; &amp; &quot;"));
    assert!(html.contains("default-src 'none'"));
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http:") && !outside.contains("https:"), "an address");
    for word in ["<link rel=\"stylesheet", "@import", "url(", "<iframe", " src=\"/", "<object"] {
        assert!(!outside.contains(word), "{word}");
    }
    assert_eq!(html.matches("<script").count(), 1);
}

#[test]
fn a_page_says_what_is_certified_with_its_numbers() {
    let table = table(20, &[CertificateName::HalfSpace]);
    let html = report(&table, 20).html().unwrap();
    for words in [
        "at most α = 0.01.",
        "σ = 0.25",
        "among 20 at most 0.2 wrong certificates",
        "except with probability at most 0.2",
        "32 × 32 pixels, 3 channels",
        "2026-11-16 02:50 UTC",
        "What is not claimed",
        "unbounded",
        "misretrieved",
        "could not be read",
    ] {
        assert!(html.contains(words), "{words}");
    }
    assert!(!html.contains("largest of several"), "there is one certificate");
    assert!(!html.contains("other than the query"), "no query has its own picture in the gallery");
}

#[test]
fn a_radius_is_shown_on_a_query_with_its_change_enlarged() {
    let table = table(20, &[CertificateName::HalfSpace]);
    let mut report = report(&table, 20);
    assert!(!report.html().unwrap().contains("What a radius looks like"), "there is nothing to show");
    let picture = report.pictures[0].query.clone().unwrap();
    let radius = Radius::Finite(0.25);
    report.visible.push(QueryRadius {
        rank: "The typical query",
        identity: HOSTILE.to_owned(),
        seen: VisibleRadius {
            radius,
            values: 3_072,
            original: picture.clone(),
            changed: picture.clone(),
            change: picture,
            times: 20,
        },
    });
    let html = report.html().unwrap();
    let levels = round_down(radius.in_grey_levels(3_072), 2);
    for words in [
        "What a radius looks like",
        "The typical query",
        "the change, 20 times",
        &format!("{levels} of 255 grey levels"),
        "(l∞ 0.00451",
    ] {
        assert!(html.contains(words), "{words}");
    }
    assert!(!html.contains("<img src=x"));
}

#[test]
fn a_radius_is_said_in_grey_levels_of_all_values_and_of_one() {
    let table = table(20, &[CertificateName::HalfSpace]);
    let html = report(&table, 20).html().unwrap();
    let finite = (3..20).filter(|number| number % 5 > 1).map(|number| 0.1 + f64::from(number) * 0.003);
    let mean = finite.sum::<f64>() / 19.0;
    let [all, one] = [mean * 255.0 / f64::from(3 * 32 * 32).sqrt(), mean * 255.0];
    assert!(all < 1.0 && one > 10.0, "the two must not be mistaken for each other: {all} and {one}");
    let words = format!(
        ", spread evenly over all 3,072 values, changes each by {} of 255 grey levels; spent on a single value, it changes \
         that one by {} of 255",
        round_down(all, 2),
        round_down(one, 1)
    );
    assert!(html.contains(&words), "{words}");
    for words in ["eight-bit", "8-bit"] {
        assert!(!html.contains(words), "{words}");
    }
    // Without the size of a picture nothing is said of grey levels.
    let mut report = report(&table, 20);
    report.facts.input = None;
    assert!(!report.html().unwrap().contains("grey levels"));
}

#[test]
fn wrong_answers_are_counted_beside_the_proofs_and_pointed_at_when_they_are_the_most() {
    let few = table(20, &[CertificateName::HalfSpace]);
    let html = report(&few, 20).html().unwrap();
    assert!(html.contains("12 of 20 queries have a proof, 4 abstained, 4 misretrieved"));
    assert!(!html.contains("Most answers are wrong"));
    let most = table(1, &[CertificateName::HalfSpace]);
    let html = report(&most, 1).html().unwrap();
    assert!(
        html.contains("Most answers are wrong") && html.contains("1 of 1 queries retrieve a wrong label")
    );
}

#[test]
fn each_certificate_names_the_retriever_it_speaks_of() {
    let both = table(20, &CertificateName::SMOOTHED);
    let html = report(&both, 20).html().unwrap();
    assert_eq!(html.matches("data-label=\"retriever\">mean<").count(), 6);
    assert_eq!(html.matches("data-label=\"retriever\">voting<").count(), 1);
    assert_eq!(html.matches("data-label=\"retriever\">pairwise<").count(), 1);
    assert!(html.contains("This is the mean retriever") && html.contains("Here there are several."));
    let but = "every certificate but <code>vote</code>, <code>pairwise</code> and <code>paper-repaired</code> is about it";
    let nobody = "<code>paper-repaired</code> is about a mean retriever of exactly smoothed items, which no command searches";
    let rules = "by majority or against the runner-up, chosen for each query on its pilot";
    assert!(html.contains(but) && html.contains(nobody) && html.contains(rules));
    let repaired = report(&table(20, &[CertificateName::PaperRepaired]), 20).html().unwrap();
    assert!(repaired.contains("no command searches exactly smoothed items"));
    assert!(!repaired.contains("<code>serve</code> run it") && !repaired.contains(rules));
    let vote = table(20, &[CertificateName::Vote]);
    let html = report(&vote, 20).html().unwrap();
    assert!(html.contains("This is the voting retriever") && html.contains("query --retriever vote"));
    assert!(!html.contains("mean retriever") && html.contains(rules));
    let pairs = report(&table(20, &[CertificateName::Pairwise]), 20).html().unwrap();
    assert!(pairs.contains("This is the pairwise retriever") && pairs.contains("query --retriever pairwise"));
    assert!(!pairs.contains("mean retriever") && !pairs.contains(rules));
}

#[test]
fn a_search_without_the_query_itself_is_said_to_be_one() {
    let table = table(20, &[CertificateName::HalfSpace]);
    let mut report = report(&table, 20);
    report.facts.left_out = 12;
    let html = report.html().unwrap();
    for words in [
        "E h(x + δ + z), among the items other than the query's own picture, is still the right one.",
        "holds the picture of 12 of 20 queries",
    ] {
        assert!(html.contains(words), "{words}");
    }
}

#[test]
fn upper_bounds_are_rounded_up_and_never_to_nothing() {
    for (value, shown) in [
        (0.2, "0.2"),
        (0.07 * 3.0, "0.21"),
        (0.01 / 30.0 * 30.0, "0.01"),
        (0.12341, "0.124"),
        (0.9991, "1"),
        (99.91, "100"),
        (12_345.0, "12400"),
        (1e-12 * 20.0, "2e-11"),
        (1.2341e-9, "1.24e-9"),
        (5e-324, "5e-324"),
        (0.0, "0"),
    ] {
        assert_eq!(round_up(value), shown, "{value:e}");
    }
    let table = table(20, &[CertificateName::HalfSpace]);
    let mut report = report(&table, 20);
    let Basis::Samples(samples) = &mut report.facts.basis else { panic!("no samples") };
    samples.alpha = Alpha::new(1e-12).unwrap();
    let html = report.html().unwrap();
    for words in ["among 20 at most 2e-11 wrong certificates", "except with probability at most 2e-11."] {
        assert!(html.contains(words), "{words}");
    }
}

#[test]
fn a_large_table_is_cut_and_the_page_says_so() {
    let table = table(150, &[CertificateName::HalfSpace]);
    let html = report(&table, 3).html().unwrap();
    assert!(html.contains("The first 3 of 150 queries"));
    assert_eq!(html.matches("data-label=\"query\"").count(), 3);
    assert!(html.contains("That all of them hold at once is not claimed"));
}

#[test]
fn every_figure_is_there_in_both_shapes_and_the_bracket_with_an_attack() {
    let table = table(40, &CertificateName::SMOOTHED);
    let mut report = report(&table, 40);
    let names = |report: &Report<'_>| -> Vec<&str> {
        report.figures().unwrap().iter().map(|figure| figure.name).collect()
    };
    let usual = ["certified-recall", "radius-histogram", "radius-against-samples", "verdicts"];
    assert_eq!(names(&report), usual);
    assert_eq!(report.html().unwrap().matches("role=\"img\" viewBox").count(), 8);
    let attack = Attack {
        table: None,
        certificate: "half-space".to_owned(),
        alpha: Some(0.01),
        judge_alpha: Some(0.001),
        factors: vec![0.5],
        mode: Mode::BlackBox,
        pixels: None,
        plain_gallery: None,
        budget: BTreeMap::from([("encoder_calls".to_owned(), 12_345.into())]),
        queries: vec![],
    };
    report.attack = Some(&attack);
    assert_eq!(names(&report).last(), Some(&"bracket"));
    let html = report.html().unwrap();
    assert!(html.contains("No attack changed an answer") && html.contains("encoder calls 12,345"));
    assert!(html.contains("outputs alone. A break") && html.contains("at the same sizes, for contrast"));
    for (pixels, gallery, words) in [
        (
            Pixels::Free,
            PlainGallery::Clean,
            ["outputs alone, and may leave", "sizes, searching among the gallery's"],
        ),
        (
            Pixels::Clipped,
            PlainGallery::Stored,
            ["outputs alone, and keeps", "sizes, searching among the smoothed"],
        ),
    ] {
        let attack = Attack { pixels: Some(pixels), plain_gallery: Some(gallery), ..attack.clone() };
        let html = Report { attack: Some(&attack), ..report.clone() }.html().unwrap();
        assert!(words.iter().all(|words| html.contains(words)), "{words:?}");
    }
}

#[test]
fn the_headline_counts_plain_answers_of_all_queries_clean_and_under_attack() {
    let plain = |row: &mut ResultRow, right: bool| {
        let retrieved_label = if right { row.label.clone() } else { "other".to_owned() };
        row.plain = Some(PlainAnswer { retrieved: "item".to_owned(), retrieved_label });
    };
    // Of 10 queries 6 are certified, 0.109 to 0.127 but for one without limit; the plain encoder has 8 right.
    let made = table(10, &[CertificateName::HalfSpace]);
    let mut rows = made.rows().to_vec();
    let unknown = report(&made, 10).html().unwrap();
    assert!(unknown.contains("plain unknown: index again; certified 0.40 at 0.121"), "{unknown}");
    rows.iter_mut().enumerate().for_each(|(number, row)| plain(row, number < 8));
    let names: Vec<String> = rows.iter().map(|row| row.identity.clone()).collect();
    let table = ResultTable::new(made.sigma(), made.certificates().to_vec(), rows).unwrap();
    let clean = report(&table, 10).html().unwrap();
    assert!(clean.contains("plain 0.80 clean; certified 0.40 at 0.121"), "{clean}");
    assert!(clean.contains("without noise: wrong") && clean.contains("plain encoder"));

    let mut attack = attack();
    attack.plain_gallery = Some(PlainGallery::Clean);
    let like = attack.queries[0].clone();
    let attacked = |place: usize, plain_right: bool, broken: Option<f64>| AttackedQuery {
        identity: names[place].clone(),
        plain_right,
        plain: vec![],
        plain_smallest_break: broken,
        ..like.clone()
    };
    // Broken within the radius, beyond it, not at all, and wrong from the start; the other five that are right were not attacked.
    attack.queries = vec![
        attacked(3, true, Some(0.1)),
        attacked(4, true, Some(0.2)),
        attacked(7, true, None),
        attacked(8, false, None),
    ];
    let html = Report { attack: Some(&attack), ..report(&table, 10) }.html().unwrap();
    assert!(html.contains("plain 0.80 clean, at most 0.70 under attack at 0.121"), "{html}");
    assert!(html.contains("5 queries were not attacked and count as right"));
    // Among smoothed vectors another retriever was attacked.
    attack.plain_gallery = Some(PlainGallery::Stored);
    let html = Report { attack: Some(&attack), ..report(&table, 10) }.html().unwrap();
    assert!(html.contains("plain 0.80 clean; certified"));
}

/// One query proved broken at 0.6, and one that no search broke.
fn attack() -> Attack {
    let point = |norm: f64, outcome: PointOutcome| Point { factor: norm / 0.3, norm, outcome };
    let query = |identity: &str, smoothed: Vec<Point>, smallest_break: Option<f64>| AttackedQuery {
        identity: identity.to_owned(),
        radius: 0.3,
        smoothed,
        smallest_break,
        plain_right: true,
        plain: vec![point(0.6, PointOutcome::Held)],
        plain_smallest_break: None,
    };
    Attack {
        table: None,
        certificate: "half-space".to_owned(),
        alpha: Some(0.01),
        judge_alpha: Some(0.001),
        factors: vec![0.5],
        mode: Mode::BlackBox,
        pixels: None,
        plain_gallery: None,
        budget: BTreeMap::new(),
        queries: vec![
            query(
                "broken",
                vec![point(0.15, PointOutcome::Held), point(0.6, PointOutcome::Broken)],
                Some(0.6),
            ),
            query("open", vec![point(0.15, PointOutcome::Held), point(1.5, PointOutcome::Undecided)], None),
        ],
    }
}

#[test]
fn a_search_that_failed_is_no_upper_bound_in_the_figure() {
    let table = table(20, &[CertificateName::HalfSpace]);
    let attack = attack();
    let report = Report { attack: Some(&attack), ..report(&table, 20) };
    let figures = report.figures().unwrap();
    let bracket = figures.last().unwrap();
    let series = &bracket.figure.panels[0].series;
    let named = |name: &str| series.iter().find(|series| series.name.contains(name)).unwrap();
    assert_eq!(named("certified").band.as_deref(), Some(&[(0.3, 0.6), (0.3, 0.3)][..]));
    assert_eq!(named("proved break").points, [(1.0, 0.6)]);
    let searched = named("searched up to here, no break proved");
    assert_eq!((searched.marks, searched.points.as_slice()), (Marks::Arrows, &[(2.0, 1.5)][..]));
    assert!(series.iter().all(|series| !series.name.contains("without smoothing")), "none was found");
    for words in ["for 1 of 2 queries", "A failed search bounds nothing"] {
        assert!(bracket.caption.contains(words), "{}", bracket.caption);
    }
    assert!(!bracket.figure.title.contains("attacked"), "{}", bracket.figure.title);
}

#[test]
fn an_attack_that_found_nothing_is_not_shown_as_strength() {
    let table = table(20, &[CertificateName::HalfSpace]);
    let found = |attack: &Attack| Report { attack: Some(attack), ..report(&table, 20) }.html().unwrap();
    let weak = attack();
    let html = found(&weak);
    let caution = "this attack found no way to break any of 2 plain retrievals, and that proves little: its gradients were \
                   estimated";
    assert!(html.contains(caution) && html.contains("estimates gradients from the encoder's outputs alone"));
    assert!(html.contains("No attack changed") && !html.contains("<strong>No attack changed"));
    let mut strong = Attack { mode: Mode::WhiteBox, ..weak };
    strong.queries[0].plain[0].outcome = PointOutcome::Broken;
    let html = found(&strong);
    assert!(html.contains("<strong>No attack changed") && !html.contains("Caution"));
}

#[test]
fn runs_with_nothing_to_show_still_have_a_page() {
    let nobody = ResultTable::new(Sigma::new(0.25).ok(), vec![CertificateName::Paper], vec![]).unwrap();
    assert!(matches!(report(&nobody, 0).html(), Err(ReportError::Evaluation(_))));
    let none = ResultTable::new(Sigma::new(0.25).ok(), vec![], vec![]).unwrap();
    assert!(matches!(report(&none, 0).html(), Err(ReportError::NoCertificates)));
    // One query, misretrieved; nothing is known of the gallery or the encoder.
    let one = table(1, &[CertificateName::Vote]);
    let mut report = report(&one, 1);
    (report.facts.gallery, report.facts.input, report.facts.finished) = (None, None, None);
    let html = report.html().unwrap();
    assert!(html.contains("nothing to show") && html.contains("wins the vote"));
}

#[test]
fn seconds_become_dates() {
    for (seconds, expected) in [
        (0, "1970-01-01 00:00 UTC"),
        (951_827_640, "2000-02-29 12:34 UTC"),
        (1_794_797_415, "2026-11-16 02:50 UTC"),
        (4_107_542_399, "2100-02-28 23:59 UTC"),
    ] {
        assert_eq!(date(seconds), expected);
    }
    assert_eq!([0, 999, 1_000, 1_234_567].map(in_thousands), ["0", "999", "1,000", "1,234,567"]);
}
