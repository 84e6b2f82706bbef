//! Which classes are trained on, and which recall is measured on.

use std::collections::{BTreeSet, HashMap, HashSet};

use retrievalguard_encoder::dataset::Record;

use super::{TrainError, TrainObserver};
use crate::recipe::Recipe;

/// Fewest classes on either side that make sense.
const FEWEST: usize = 2;

/// Rather more classes than more pictures of one.
const MOST_OF_A_CLASS: usize = 10;

/// Below so many classes recall says more about their choice than about the encoder.
const FEW: usize = 10;

/// Says so when recall is measured on few classes.
pub(super) fn tell_few(recipe: &Recipe, held_out: &[Record], observer: &dyn TrainObserver) {
    let labels: HashSet<&str> = held_out.iter().map(|record| record.label.as_str()).collect();
    if recipe.evaluation.every > 0 && (1..FEW).contains(&labels.len()) {
        observer.note(&format!(
            "recall is measured on {} pictures of {} classes, and among so few the right one is easily found: it may rise \
             while that of many new classes falls; --held-out takes other pictures, `retrievalguard recall` any",
            held_out.len(),
            labels.len()
        ));
    }
}

/// Training pictures, and about as many others as the recipe asks for, spread evenly.
pub(super) fn divide(
    recipe: &Recipe,
    records: &[Record],
    others: Option<&[Record]>,
) -> Result<(Vec<Record>, Vec<Record>), TrainError> {
    let evaluation = &recipe.evaluation;
    let (train, held_out) = match others {
        Some(others) => {
            let labels: HashSet<&str> = records.iter().map(|record| record.label.as_str()).collect();
            if let Some(record) = others.iter().find(|record| labels.contains(record.label.as_str())) {
                return Err(TrainError::SharedClass { label: record.label.clone() });
            }
            (records.to_vec(), others.to_vec())
        }
        None if evaluation.every == 0 || evaluation.held_out == 0.0 => (records.to_vec(), Vec::new()),
        None => {
            let labels: BTreeSet<&str> = records.iter().map(|record| record.label.as_str()).collect();
            // Evenly over the sorted labels: whole part of the share, at every label one more.
            let share = |count: usize| (count as f64 * evaluation.held_out).floor() as usize;
            let chosen: HashSet<&str> = labels
                .iter()
                .enumerate()
                .filter(|(place, _)| share(place + 1) > share(*place))
                .map(|(_, label)| *label)
                .collect();
            if chosen.len() < FEWEST || labels.len() - chosen.len() < FEWEST {
                return Err(TrainError::HeldOut { held_out: chosen.len(), classes: labels.len() });
            }
            let held_out = |record: &&Record| chosen.contains(record.label.as_str());
            (
                records.iter().filter(|record| !held_out(record)).cloned().collect(),
                records.iter().filter(held_out).cloned().collect(),
            )
        }
    };
    Ok((train, thin(held_out, evaluation.pictures)))
}

/// About so many of the records, whole classes where they are small: a picture without a companion finds nothing.
fn thin(records: Vec<Record>, wanted: usize) -> Vec<Record> {
    let labels: BTreeSet<String> = records.iter().map(|record| record.label.clone()).collect();
    let count = labels.len();
    if records.len() <= wanted || count < FEWEST {
        return records;
    }
    let classes =
        (count * wanted / records.len()).clamp((wanted / MOST_OF_A_CLASS).clamp(FEWEST, count), count);
    let of_each = wanted.div_ceil(classes).max(2);
    let mut left: HashMap<String, usize> = labels
        .into_iter()
        .enumerate()
        .filter(|(place, _)| (place + 1) * classes / count > place * classes / count)
        .map(|(_, label)| (label, of_each))
        .collect();
    let mut keep = |record: &Record| match left.get_mut(&record.label) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        Some(_) | None => false,
    };
    records.into_iter().filter(|record| keep(record)).collect()
}

#[cfg(test)]
mod tests {
    use retrievalguard_encoder::dataset::{PictureSource, Role};

    use super::*;
    use crate::recipe::Preset;

    fn records(classes: std::ops::Range<usize>, pictures: usize) -> Vec<Record> {
        let record = |class: usize, picture: usize| Record {
            identity: format!("{class}/{picture}"),
            source: PictureSource::Grey { width: 1, height: 1, pixels: vec![0] },
            crop: None,
            label: format!("class {class:02}"),
            category: None,
            split: None,
            role: Role::Unassigned,
        };
        classes.flat_map(|class| (0..pictures).map(move |picture| record(class, picture))).collect()
    }

    fn labels(records: &[Record]) -> BTreeSet<&str> {
        records.iter().map(|record| record.label.as_str()).collect()
    }

    #[test]
    fn no_class_is_on_both_sides() {
        let set = ["evaluation.held_out=0.2".to_owned(), "evaluation.pictures=7".to_owned()];
        let recipe = Recipe::assemble(Preset::Small, None, &set).unwrap();
        let all = records(0..20, 5);
        let (train, held_out) = divide(&recipe, &all, None).unwrap();
        assert_eq!((train.len(), held_out.len()), (80, 8));
        assert!(labels(&train).is_disjoint(&labels(&held_out)));
        assert_eq!(labels(&held_out).len(), 2);
    }

    #[test]
    fn every_picture_that_recall_is_measured_on_has_a_companion() {
        for (classes, pictures, wanted) in
            [(100, 3, 30), (1000, 5, 500), (40, 60, 400), (3, 50, 20), (2, 2, 2)]
        {
            let kept = thin(records(0..classes, pictures), wanted);
            let mut counts = HashMap::new();
            for record in &kept {
                *counts.entry(record.label.as_str()).or_insert(0) += 1;
            }
            assert!(counts.values().all(|&count| count >= 2), "{classes} classes of {pictures}: {counts:?}");
            assert!(counts.len() >= 2);
            assert!(
                kept.len() <= wanted + wanted / 2 + 4 && 2 * kept.len() >= wanted,
                "{} of {wanted}",
                kept.len()
            );
        }
    }

    #[test]
    fn a_class_that_is_trained_on_cannot_be_held_out() {
        let recipe = Recipe::assemble(Preset::Small, None, &[]).unwrap();
        let (train, others) = (records(0..5, 2), records(4..8, 2));
        let error = divide(&recipe, &train, Some(&others)).unwrap_err();
        assert!(matches!(error, TrainError::SharedClass { label } if label == "class 04"));
        let others = records(5..8, 2);
        assert_eq!(divide(&recipe, &train, Some(&others)).unwrap(), (train, others));
    }

    #[test]
    fn too_few_classes_to_hold_some_out_is_an_error() {
        let recipe = Recipe::assemble(Preset::Small, None, &[]).unwrap();
        let error = divide(&recipe, &records(0..10, 2), None).unwrap_err();
        assert!(matches!(error, TrainError::HeldOut { held_out: 1, classes: 10 }), "{error}");
    }
}
