//! Relevance: which rows are positive, negative or excluded for a query.

use super::Label;
use crate::storage::stored::GalleryRef;

/// What counts as a right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Positives {
    /// Every row with this label.
    Label(Label),
    /// The item of this row, with all its views: the same item must stay first.
    Item(usize),
    /// No row at all: the true label is not in the gallery.
    Absent,
}

/// What a row is to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowRelevance {
    /// A right answer.
    Positive,
    /// A wrong answer.
    Negative,
    /// Left out of the search.
    Excluded,
}

/// Which rows are positive for a query, and which it must not see; all others are negative.
///
/// ```
/// use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance, RowRelevance};
///
/// let names = (0..3).map(|row| row.to_string()).collect();
/// let gallery = Gallery::new(vec![0.0, 1.0, 2.0], 1, names, &["cat", "cat", "dog"], Metric::Euclidean)?;
/// let cat = gallery.label_named("cat").map_or(Positives::Absent, Positives::Label);
/// // Leave-one-out: the query is picture 0 of the gallery.
/// let relevance = Relevance::new(cat, gallery.rows_of("0"));
/// let rows = [0, 1, 2].map(|row| relevance.of_row(&gallery, row));
/// assert_eq!(rows, [RowRelevance::Excluded, RowRelevance::Positive, RowRelevance::Negative]);
/// # Ok::<(), retrievalguard::gallery::GalleryError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relevance {
    /// What counts as a right answer.
    pub positives: Positives,
    /// Rows left out of the search, strictly ascending (leave-one-out: the rows of the query's own picture, each view).
    pub excluded: Vec<usize>,
}

impl Relevance {
    /// Accepts the excluded rows in any order and with repetitions.
    pub fn new(positives: Positives, mut excluded: Vec<usize>) -> Self {
        excluded.sort_unstable();
        excluded.dedup();
        Self { positives, excluded }
    }

    /// What a row is; exclusion comes before everything else.
    pub fn of_row<'g>(&self, gallery: impl Into<GalleryRef<'g>>, row: usize) -> RowRelevance {
        if self.excluded.binary_search(&row).is_ok() {
            return RowRelevance::Excluded;
        }
        let positive = match self.positives {
            Positives::Label(label) => gallery.into().label(row) == label,
            Positives::Item(item) => {
                let gallery = gallery.into();
                gallery.item(row) == gallery.item(item)
            }
            Positives::Absent => false,
        };
        if positive { RowRelevance::Positive } else { RowRelevance::Negative }
    }
}
