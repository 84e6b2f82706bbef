//! Do items with several views hold their level, and would it be noticed if they did not?
//!
//! The same harness must notice three faults that exist only here: a view of a wrong item that is forgotten, a view of the
//! query's own picture that stays visible, and views that count as items of their own.

use super::coverage::{MARGIN, MINUS, PLUS, Random, Tally, cells, finite};
use super::*;
use crate::certificate::{Form, HalfSpaceOptions};
use crate::gallery::{Metric, Positives};
use crate::normal;
use crate::{Excess, NormBound};

const ALPHA: f64 = 0.2;
/// Behind everything that is embedded.
const FAR: [f32; 2] = [-3.0, 0.0];

/// A gallery of items that all have the same number of views.
fn gallery<const VIEWS: usize>(items: &[(&str, [[f32; 2]; VIEWS])]) -> Gallery {
    let vectors = items.iter().flat_map(|(_, views)| views.as_flattened().to_vec()).collect();
    let names = (0..items.len() * VIEWS).map(|row| format!("item {}", row / VIEWS)).collect();
    let labels: Vec<&str> = items.iter().flat_map(|(label, _)| [*label; VIEWS]).collect();
    let gallery = Gallery::new(vectors, 2, names, &labels, Metric::Euclidean).unwrap();
    gallery.with_views((0..VIEWS).map(|view| format!("view {view}")).collect()).unwrap()
}

fn certifier(gallery: &Gallery) -> Certifier<'_> {
    Certifier::new(gallery, Sigma::new(1.0).unwrap(), Alpha::new(ALPHA).unwrap())
}

fn two_cells(random: &mut Random) -> SampledQuery {
    let p = normal::distribution(MARGIN);
    SampledQuery { pilot: cells(random, p, 60, PLUS, MINUS), certifying: cells(random, p, 400, PLUS, MINUS) }
}

fn right(gallery: &Gallery) -> Positives {
    Positives::Label(gallery.label_named("right").unwrap())
}

#[test]
fn recall_at_k_over_items_with_views_holds_its_level() {
    // Every wrong item has a view in the tight place, some have it three times: no union over views, and none over items.
    let mut items = vec![("right", [FAR, PLUS, FAR])];
    items.extend([("wrong", [FAR, FAR, MINUS]); 4]);
    items.extend([("wrong", [MINUS; 3]); 4]);
    let gallery = gallery(&items);
    let relevance = Relevance::new(right(&gallery), vec![]);
    for form in [Form::ByPilot, Form::Thresholds, Form::Betting] {
        for top_k in [1, 2, 3] {
            let options = HalfSpaceOptions { top_k, form };
            let tally = Tally::of(ALPHA, 400, |random| {
                let query = two_cells(random);
                let outcome = certifier(&gallery).half_space(&query, &relevance, &options).unwrap();
                finite(outcome.verdicts[top_k - 1]) > MARGIN
            });
            tally.accept(&format!("recall@{top_k} with {form:?}"));
        }
    }
}

#[test]
fn a_forgotten_view_of_a_wrong_item_is_noticed() {
    let items = [("right", [PLUS; 2]), ("wrong", [FAR, MINUS])];
    let exceeds = |gallery: &Gallery, random: &mut Random| {
        let relevance = Relevance::new(right(gallery), vec![]);
        CertificateName::SMOOTHED
            .into_iter()
            .filter(|name| !matches!(name, CertificateName::Paper | CertificateName::PaperLinear))
            .map(|name| {
                let verdict =
                    certifier(gallery).certify(name, &two_cells(random), &relevance).unwrap().verdict;
                finite(verdict)
            })
            .fold(0.0, f64::max)
            > MARGIN
    };
    let whole = gallery(&items);
    for name in [CertificateName::HalfSpace, CertificateName::Vote, CertificateName::Pairwise] {
        let relevance = Relevance::new(right(&whole), vec![]);
        let tally = Tally::of(ALPHA, 1_000, |random| {
            finite(certifier(&whole).certify(name, &two_cells(random), &relevance).unwrap().verdict) > MARGIN
        });
        tally.accept(name.as_str());
    }
    let first_views = gallery(&items.map(|(label, [first, _])| (label, [first])));
    Tally::of(ALPHA, 200, |random| exceeds(&first_views, random)).reject("a forgotten view");
}

#[test]
fn a_view_of_the_querys_own_picture_that_stays_visible_is_noticed() {
    // Without its own picture the query has no right item within reach, so that whatever is certified is wrong.
    let gallery = gallery(&[("right", [PLUS; 2]), ("right", [[4.0, 0.0]; 2]), ("wrong", [MINUS, FAR])]);
    let own = gallery.rows_of("item 0");
    assert_eq!(own, [0, 1]);
    for name in [CertificateName::HalfSpace, CertificateName::Vote, CertificateName::Pairwise] {
        let certified = |hidden: &[usize]| {
            let relevance = Relevance::new(right(&gallery), hidden.to_vec());
            Tally::of(ALPHA, 300, |random| {
                finite(certifier(&gallery).certify(name, &two_cells(random), &relevance).unwrap().verdict)
                    > 0.0
            })
        };
        assert_eq!(certified(&own).wrong, 0, "{name}");
        certified(&own[..1]).reject(&format!("{name} with a visible view"));
    }
}

/// The rival item has its two views in two corners; a copy near one of them is nearer to the right item than to the other.
const CORNERS: [(&str, [[f32; 2]; 2]); 2] =
    [("right", [[0.0, 1.0]; 2]), ("wrong", [[0.87, -0.49], [-0.87, -0.49]])];
const NEAR: [[f32; 2]; 3] = [[0.0, 1.0], [0.8, -0.3], [-0.8, -0.3]];

fn corners(random: &mut Random, count: usize) -> Samples {
    let lost = 1.0 - normal::distribution(MARGIN);
    let mut draw = || match random.uniform() {
        place if place < lost / 2.0 => NEAR[1],
        place if place < lost => NEAR[2],
        _ => NEAR[0],
    };
    let values = (0..count).flat_map(|_| draw()).collect();
    Samples::new(values, 2, NormBound::UNIT, Excess::Project).unwrap()
}

#[test]
fn views_that_count_as_items_of_their_own_are_noticed() {
    let together = gallery(&CORNERS);
    let apart: Vec<(&str, [[f32; 2]; 1])> =
        CORNERS.iter().flat_map(|(label, views)| views.map(|view| (*label, [view]))).collect();
    let apart = gallery(&apart);
    // The same item is asked for: the right one, by whichever of its rows.
    let tally = |gallery: &Gallery, name: CertificateName, row: usize, excluded: Vec<usize>| {
        let relevance = Relevance::new(Positives::Item(row), excluded);
        Tally::of(ALPHA, 600, |random| {
            let query = SampledQuery { pilot: corners(random, 60), certifying: corners(random, 400) };
            finite(certifier(gallery).certify(name, &query, &relevance).unwrap().verdict) > MARGIN
        })
    };
    for row in [0, 1] {
        for name in [CertificateName::Vote, CertificateName::Pairwise] {
            tally(&together, name, row, vec![]).accept(&format!("{name}, row {row}"));
        }
    }
    // The other row of the right item would be a rival of its own, too.
    tally(&apart, CertificateName::Pairwise, 0, vec![1]).reject("rows as rivals");
}

#[test]
fn an_item_counts_once_however_many_of_its_views_are_near() {
    // Three views of one wrong item are nearer than the right one; no other item is.
    let near = [0.9, 0.0];
    let items = [("wrong", [near; 3]), ("right", [[0.7, 0.0], FAR, FAR]), ("wrong", [MINUS, FAR, FAR])];
    let with_views = gallery(&items);
    let samples =
        |count: usize| Samples::new([0.95, 0.0].repeat(count), 2, NormBound::UNIT, Excess::Refuse).unwrap();
    let query = SampledQuery { pilot: samples(100), certifying: samples(1_000) };
    let relevance = Relevance::new(right(&with_views), vec![]);
    let options = |top_k| HalfSpaceOptions { top_k, form: Form::ByPilot };
    let found = certifier(&with_views).half_space(&query, &relevance, &options(2)).unwrap();
    // Not the first, but among the first two items.
    assert_eq!(found.verdicts[0], Verdict::Misretrieved);
    assert!(found.verdicts[1].radius().is_some(), "{:?}", found.verdicts);
    for (quantity, wanted) in [("positives", "1"), ("negatives", "2"), ("views of an item", "3")] {
        assert_eq!(found.explain.value(quantity).unwrap().to_string(), wanted, "{quantity}");
    }
    assert_eq!(
        certifier(&with_views).half_space(&query, &relevance, &options(3)),
        Err(CertificateError::TopKTooLarge { top_k: 3, negatives: 2 })
    );
    // The same rows as items of their own: the right one is the fourth.
    let flat: Vec<(&str, [[f32; 2]; 1])> =
        items.iter().flat_map(|(label, views)| views.map(|view| (*label, [view]))).collect();
    let flat = gallery(&flat);
    let relevance = Relevance::new(right(&flat), vec![]);
    let rows = certifier(&flat).half_space(&query, &relevance, &options(2)).unwrap();
    assert_eq!(rows.verdicts, [Verdict::Misretrieved; 2]);
}

#[test]
fn one_view_of_each_item_is_a_gallery_without_views() {
    let items: Vec<(&str, [[f32; 2]; 1])> = (0..70)
        .map(|place| {
            let angle = f64::from(place) * 0.7;
            let vector = [angle.cos() as f32, angle.sin() as f32];
            (if place % 9 == 0 { "right" } else { "wrong" }, [vector])
        })
        .collect();
    let one = gallery(&items);
    let vectors = items.iter().flat_map(|(_, [vector])| *vector).collect();
    let names = (0..items.len()).map(|row| format!("item {row}")).collect();
    let labels: Vec<&str> = items.iter().map(|(label, _)| *label).collect();
    let plain = Gallery::new(vectors, 2, names, &labels, Metric::Euclidean).unwrap();
    let mut random = Random::seeded(3);
    let query = two_cells(&mut random);
    for positives in [right(&plain), Positives::Item(0), Positives::Item(9)] {
        let relevance = Relevance::new(positives, vec![4, 18]);
        for name in CertificateName::SMOOTHED {
            let verdict = |gallery: &Gallery| {
                certifier(gallery).certify(name, &query, &relevance).map(|found| found.verdict)
            };
            assert_eq!(verdict(&one), verdict(&plain), "{name}");
        }
        let options = HalfSpaceOptions { top_k: 5, form: Form::ByPilot };
        let verdicts =
            |gallery: &Gallery| certifier(gallery).half_space(&query, &relevance, &options).unwrap().verdicts;
        assert_eq!(verdicts(&one), verdicts(&plain));
    }
}
