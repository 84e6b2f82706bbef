//! Which searches make sense: queries and their relevance, checked against the extent of a gallery.

use super::relevance::{Positives, Relevance};

/// A search that cannot be answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The queries are not whole vectors of the gallery's dimension.
    #[error("queries hold {found} numbers, wanted a multiple of the gallery's dimension {dimension}")]
    QueryLength {
        /// How many numbers were given.
        found: usize,
        /// The gallery's dimension.
        dimension: usize,
    },
    /// A component of a query is infinite or not a number.
    #[error("component {component} of query {query} is {value}, wanted a finite number")]
    NotFinite {
        /// Which query.
        query: usize,
        /// Which of its components.
        component: usize,
        /// What was found there.
        value: f64,
    },
    /// The relevance names a row that the gallery does not have.
    #[error("relevance of query {query} names row {row}, wanted one below the gallery's length {length}")]
    RowOutOfRange {
        /// Which query.
        query: usize,
        /// The row it names.
        row: usize,
        /// Number of rows there are.
        length: usize,
    },
    /// The relevance names a label of another gallery.
    #[error(
        "relevance of query {query} names label {label}, wanted one below the gallery's label count {count}"
    )]
    UnknownLabel {
        /// Which query.
        query: usize,
        /// Index of the label it asks for.
        label: usize,
        /// Number of labels there are.
        count: usize,
    },
    /// Excluded rows are listed once each, in ascending order.
    #[error("excluded rows of query {query} have {second} after {first}, wanted them strictly ascending")]
    ExcludedNotAscending {
        /// Which query.
        query: usize,
        /// The row before.
        first: usize,
        /// The row that should have been larger.
        second: usize,
    },
    /// No neighbours were asked for.
    #[error("number of neighbours is 0, wanted at least 1")]
    NoNeighbours,
}

/// How many rows, components and labels a gallery has.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) length: usize,
    pub(crate) dimension: usize,
    pub(crate) label_count: usize,
}

impl Extent {
    /// Checks finite queries and the relevance for each.
    pub(crate) fn check_with_relevance<'relevance, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        relevance: impl Fn(usize) -> &'relevance Relevance,
    ) -> Result<(), SearchError> {
        let count = self.check_queries(queries)?;
        (0..count).try_for_each(|query| self.check_relevance(query, relevance(query)))
    }

    /// Checks finite queries for some neighbours and the rows that each must not see.
    pub(crate) fn check_neighbours<'excluded, T: Copy + Into<f64>>(
        &self,
        queries: &[T],
        count: usize,
        excluded: impl Fn(usize) -> &'excluded [usize],
    ) -> Result<(), SearchError> {
        if count == 0 {
            return Err(SearchError::NoNeighbours);
        }
        let query_count = self.check_queries(queries)?;
        (0..query_count).try_for_each(|query| self.check_excluded(query, excluded(query)))
    }

    /// Number of queries, all of them finite.
    fn check_queries<T: Copy + Into<f64>>(&self, queries: &[T]) -> Result<usize, SearchError> {
        let dimension = self.dimension;
        if !queries.len().is_multiple_of(dimension) {
            return Err(SearchError::QueryLength { found: queries.len(), dimension });
        }
        let value_at = |position: usize| -> f64 { queries[position].into() };
        if let Some(position) = (0..queries.len()).find(|&position| !value_at(position).is_finite()) {
            let (query, component) = (position / dimension, position % dimension);
            return Err(SearchError::NotFinite { query, component, value: value_at(position) });
        }
        Ok(queries.len() / dimension)
    }

    pub(crate) fn check_relevance(&self, query: usize, relevance: &Relevance) -> Result<(), SearchError> {
        match relevance.positives {
            Positives::Label(label) if label.index() >= self.label_count => {
                let (label, count) = (label.index(), self.label_count);
                return Err(SearchError::UnknownLabel { query, label, count });
            }
            Positives::Item(row) => self.check_row(query, row)?,
            Positives::Label(_) | Positives::Absent => {}
        }
        self.check_excluded(query, &relevance.excluded)
    }

    fn check_excluded(&self, query: usize, excluded: &[usize]) -> Result<(), SearchError> {
        for pair in excluded.windows(2) {
            if pair[0] >= pair[1] {
                return Err(SearchError::ExcludedNotAscending { query, first: pair[0], second: pair[1] });
            }
        }
        excluded.last().map_or(Ok(()), |&row| self.check_row(query, row))
    }

    fn check_row(&self, query: usize, row: usize) -> Result<(), SearchError> {
        let length = self.length;
        if row < length { Ok(()) } else { Err(SearchError::RowOutOfRange { query, row, length }) }
    }
}
