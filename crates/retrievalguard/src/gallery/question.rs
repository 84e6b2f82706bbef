//! What a query asks for: which rows are right answers, which are wrong, which do not count.

use super::{Gallery, Label};

/// What counts as a right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Positives {
    /// Every row with this label.
    Label(Label),
    /// This row alone: the same item must stay first.
    Item(usize),
    /// No row at all: the true label is not in the gallery.
    Absent,
}

/// Where a row stands in a [`Question`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// A right answer.
    Positive,
    /// A wrong answer.
    Negative,
    /// Left out of the search.
    Excluded,
}

/// The right answers to one query and the rows that it must not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What counts as a right answer.
    pub positives: Positives,
    /// Rows left out of the search, strictly ascending (leave-one-out: the rows of the query's own picture).
    pub excluded: Vec<usize>,
}

impl Question {
    /// Accepts the excluded rows in any order and with repetitions.
    pub fn new(positives: Positives, mut excluded: Vec<usize>) -> Self {
        excluded.sort_unstable();
        excluded.dedup();
        Self { positives, excluded }
    }

    /// Where a row stands; exclusion comes before everything else.
    pub fn side(&self, gallery: &Gallery, row: usize) -> Side {
        if self.excluded.binary_search(&row).is_ok() {
            return Side::Excluded;
        }
        let positive = match self.positives {
            Positives::Label(label) => gallery.label(row) == label,
            Positives::Item(item) => row == item,
            Positives::Absent => false,
        };
        if positive { Side::Positive } else { Side::Negative }
    }

    /// Whether a row is a right answer that the search may give.
    pub fn is_positive(&self, gallery: &Gallery, row: usize) -> bool {
        self.side(gallery, row) == Side::Positive
    }
}
