//! Class-balanced batches: which pictures are seen together.
//!
//! A batch has `P` classes and `K` pictures of each, so that every picture in it has positives and negatives. Which
//! they are is a pure function of `(seed, epoch, batch)`.

use std::collections::HashMap;

use retrievalguard::Seed;
use retrievalguard_encoder::dataset::Record;

use crate::random::{Purpose, RandomCounter, RandomSource};

/// Labels as class numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    /// The class of each record.
    pub of_record: Vec<u32>,
    /// The label of each class, in order of first appearance.
    pub labels: Vec<String>,
}

impl Classes {
    /// Numbers the labels of some records.
    pub(crate) fn new(records: &[Record]) -> Self {
        let mut numbers = HashMap::new();
        let mut labels = Vec::new();
        let number = |record: &Record| {
            *numbers.entry(record.label.clone()).or_insert_with(|| {
                labels.push(record.label.clone());
                labels.len() as u32 - 1
            })
        };
        Self { of_record: records.iter().map(number).collect(), labels }
    }
}

/// Why there are no batches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchPlanError {
    /// There is nothing to choose from.
    #[error("the training set is empty, wanted pictures")]
    Empty,
    /// Negatives need a second class.
    #[error("a batch has {0} classes, wanted at least 2")]
    ClassesPerBatch(usize),
    /// Positives need a second picture.
    #[error("a batch has {0} pictures of each class, wanted at least 2")]
    PicturesPerClass(usize),
    /// The set has too few classes.
    #[error("the training set has {found} classes, wanted at least the {wanted} of one batch")]
    TooFewClasses {
        /// Classes of the set.
        found: usize,
        /// Classes of a batch.
        wanted: usize,
    },
    /// A picture without any positive.
    #[error("class `{label}` has 1 picture, wanted at least 2; so have {classes} classes in all")]
    SinglePicture {
        /// The first such class.
        label: String,
        /// How many there are.
        classes: usize,
    },
}

/// The batches of every epoch.
#[derive(Clone, Debug)]
pub(crate) struct BatchPlan {
    /// The pictures of each class.
    members: Vec<Vec<usize>>,
    classes_per_batch: usize,
    pictures_per_class: usize,
    batches: u64,
    seed: Seed,
}

impl BatchPlan {
    /// Batches of `classes_per_batch · pictures_per_class` pictures.
    pub(crate) fn new(
        classes: &Classes,
        classes_per_batch: usize,
        pictures_per_class: usize,
        seed: Seed,
    ) -> Result<Self, BatchPlanError> {
        if classes_per_batch < 2 {
            return Err(BatchPlanError::ClassesPerBatch(classes_per_batch));
        }
        if pictures_per_class < 2 {
            return Err(BatchPlanError::PicturesPerClass(pictures_per_class));
        }
        if classes.of_record.is_empty() {
            return Err(BatchPlanError::Empty);
        }
        let mut members = vec![Vec::new(); classes.labels.len()];
        for (position, &class) in classes.of_record.iter().enumerate() {
            members[class as usize].push(position);
        }
        if members.len() < classes_per_batch {
            let found = members.len();
            return Err(BatchPlanError::TooFewClasses { found, wanted: classes_per_batch });
        }
        let mut single = (0..members.len()).filter(|&class| members[class].len() < 2);
        if let Some(first) = single.next() {
            let label = classes.labels[first].clone();
            return Err(BatchPlanError::SinglePicture { label, classes: 1 + single.count() });
        }
        let pictures = classes_per_batch * pictures_per_class;
        let batches = ((classes.of_record.len() + pictures / 2) / pictures).max(1) as u64;
        Ok(Self { members, classes_per_batch, pictures_per_class, batches, seed })
    }

    /// Batches of `pictures` pictures, whatever their classes: each once in an epoch, in a random order.
    pub(crate) fn unlabelled(records: usize, pictures: usize, seed: Seed) -> Result<Self, BatchPlanError> {
        if records == 0 {
            return Err(BatchPlanError::Empty);
        }
        let batches = ((records + pictures / 2) / pictures).max(1) as u64;
        let members = vec![(0..records).collect()];
        Ok(Self { members, classes_per_batch: 1, pictures_per_class: pictures, batches, seed })
    }

    /// Batches of an epoch: as many as hold about as many pictures as the set, at least one.
    pub(crate) fn batches_per_epoch(&self) -> u64 {
        self.batches
    }

    /// Positions of the pictures of one batch, class after class.
    ///
    /// In rounds, the classes are put into a random order and dealt out to batches; the few that do not fill a batch sit
    /// the round out. In its round number `r` of an epoch a class gives the pictures `rK … rK + K − 1` of a random order
    /// of its own, beginning anew at the end. So all classes are seen equally often, a class gives a picture
    /// twice only when it has given all, and a batch has a picture twice only if its class has fewer than `K`.
    pub(crate) fn positions(&self, epoch: u64, batch: u64) -> Vec<usize> {
        let batches_per_round = (self.members.len() / self.classes_per_batch) as u64;
        let (round, deal) = (batch / batches_per_round, (batch % batches_per_round) as usize);
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        self.source(Purpose::Classes, epoch, round).shuffle(&mut order);
        let dealt = &order[deal * self.classes_per_batch..][..self.classes_per_batch];
        dealt.iter().flat_map(|&class| self.pictures(epoch, round, class)).collect()
    }

    /// What a class gives in a round.
    fn pictures(&self, epoch: u64, round: u64, class: usize) -> Vec<usize> {
        let mut members = self.members[class].clone();
        self.source(Purpose::Pictures, epoch, class as u64).shuffle(&mut members);
        let first = (round % members.len() as u64) as usize * self.pictures_per_class;
        (first..first + self.pictures_per_class).map(|at| members[at % members.len()]).collect()
    }

    fn source(&self, purpose: Purpose, epoch: u64, step: u64) -> RandomSource {
        RandomSource::new(self.seed, purpose, RandomCounter { epoch, step, slot: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classes of the given sizes, their pictures taking turns.
    fn classes(sizes: &[usize]) -> Classes {
        let longest = sizes.iter().copied().max().unwrap_or(0);
        let of_record = (0..longest)
            .flat_map(|turn| (0..sizes.len()).filter(move |&class| sizes[class] > turn))
            .map(|class| class as u32)
            .collect();
        Classes { of_record, labels: (0..sizes.len()).map(|class| format!("class {class}")).collect() }
    }

    #[test]
    fn a_batch_has_k_pictures_of_each_of_p_classes() {
        let classes = classes(&[2, 3, 4, 5, 9, 30, 7]);
        let plan = BatchPlan::new(&classes, 3, 4, Seed::new(5)).unwrap();
        assert_eq!(plan.batches_per_epoch(), 5);
        for epoch in 0..4 {
            for batch in 0..plan.batches_per_epoch() {
                let positions = plan.positions(epoch, batch);
                let labels: Vec<u32> = positions.iter().map(|&at| classes.of_record[at]).collect();
                let mut seen = Vec::new();
                for (group, labels) in positions.chunks(4).zip(labels.chunks(4)) {
                    assert!(labels.iter().all(|&label| label == labels[0]), "{labels:?}");
                    assert!(!seen.contains(&labels[0]), "class {} twice", labels[0]);
                    seen.push(labels[0]);
                    let size = classes.of_record.iter().filter(|&&label| label == labels[0]).count();
                    let different: std::collections::HashSet<_> = group.iter().collect();
                    assert_eq!(different.len(), size.min(4), "class {} of {size}", labels[0]);
                }
                assert_eq!(seen.len(), 3);
            }
        }
    }

    #[test]
    fn an_epoch_of_equal_classes_sees_every_picture_once() {
        let classes = classes(&[8; 6]);
        let plan = BatchPlan::new(&classes, 3, 4, Seed::new(11)).unwrap();
        assert_eq!(plan.batches_per_epoch(), 4);
        let mut orders = Vec::new();
        for epoch in 0..3 {
            let mut seen: Vec<usize> = (0..4).flat_map(|batch| plan.positions(epoch, batch)).collect();
            orders.push(seen.clone());
            seen.sort_unstable();
            assert_eq!(seen, (0..48).collect::<Vec<_>>(), "epoch {epoch}");
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    }

    #[test]
    fn batches_depend_on_nothing_but_seed_epoch_and_number() {
        let classes = classes(&[5; 20]);
        let plan = BatchPlan::new(&classes, 4, 2, Seed::new(1)).unwrap();
        let later = plan.positions(7, 9);
        assert_eq!(BatchPlan::new(&classes, 4, 2, Seed::new(1)).unwrap().positions(7, 9), later);
        assert_ne!(BatchPlan::new(&classes, 4, 2, Seed::new(2)).unwrap().positions(7, 9), later);
        assert_ne!(plan.positions(8, 9), later);
        assert_ne!(plan.positions(7, 8), later);
    }

    #[test]
    fn all_classes_are_seen_equally_often() {
        let classes = classes(&[4, 6, 9, 4, 5]);
        let plan = BatchPlan::new(&classes, 2, 2, Seed::new(1)).unwrap();
        let mut counts = [0_u32; 5];
        for epoch in 0..500 {
            for position in (0..plan.batches_per_epoch()).flat_map(|batch| plan.positions(epoch, batch)) {
                counts[classes.of_record[position] as usize] += 1;
            }
        }
        let expected = f64::from(counts.iter().sum::<u32>()) / 5.0;
        assert!(counts.iter().all(|&count| (f64::from(count) / expected - 1.0).abs() < 0.05), "{counts:?}");
    }

    #[test]
    fn without_labels_an_epoch_sees_every_picture_once() {
        let plan = BatchPlan::unlabelled(24, 6, Seed::new(3)).unwrap();
        assert_eq!(plan.batches_per_epoch(), 4);
        let epoch = |epoch| (0..4).flat_map(|batch| plan.positions(epoch, batch)).collect::<Vec<usize>>();
        let mut seen = epoch(0);
        assert_ne!(seen, epoch(1));
        seen.sort_unstable();
        assert_eq!(seen, (0..24).collect::<Vec<_>>());
        assert_eq!(BatchPlan::unlabelled(4, 6, Seed::new(3)).unwrap().positions(0, 0).len(), 6);
        assert_eq!(BatchPlan::unlabelled(0, 6, Seed::new(3)).unwrap_err(), BatchPlanError::Empty);
    }

    #[test]
    fn sets_that_cannot_be_balanced_are_refused() {
        let plan = |sizes: &[usize], p, k| BatchPlan::new(&classes(sizes), p, k, Seed::new(0)).unwrap_err();
        assert_eq!(plan(&[], 2, 2), BatchPlanError::Empty);
        assert_eq!(plan(&[3; 9], 1, 2), BatchPlanError::ClassesPerBatch(1));
        assert_eq!(plan(&[3; 9], 2, 1), BatchPlanError::PicturesPerClass(1));
        assert_eq!(plan(&[3; 3], 4, 2), BatchPlanError::TooFewClasses { found: 3, wanted: 4 });
        let single = BatchPlanError::SinglePicture { label: "class 1".to_owned(), classes: 2 };
        assert_eq!(plan(&[3, 1, 2, 1], 2, 2), single);
    }
}
