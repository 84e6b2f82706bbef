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
///
/// ```
/// use retrievalguard::gallery::{Gallery, Metric, Positives, Question, Side};
///
/// let names = (0..3).map(|row| row.to_string()).collect();
/// let gallery = Gallery::new(vec![0.0, 1.0, 2.0], 1, names, &["cat", "cat", "dog"], Metric::Euclidean)?;
/// let cat = gallery.label_named("cat").map_or(Positives::Absent, Positives::Label);
/// // Leave-one-out: the query is picture 0 of the gallery.
/// let question = Question::new(cat, gallery.rows_of("0"));
/// let sides = [0, 1, 2].map(|row| question.side(&gallery, row));
/// assert_eq!(sides, [Side::Excluded, Side::Positive, Side::Negative]);
/// # Ok::<(), retrievalguard::gallery::GalleryError>(())
/// ```
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
