//! Labelled vectors and the exact search in them.
//!
//! The certificates speak of the nearest *stored* vector (frozen gallery, section 0 of the theory), so the
//! vectors kept here are the retrieval system itself and the search never approximates: every answer is the one
//! that a double loop in `f64` over all rows gives, bit for bit, with ties going to the smaller row.
//!
//! ```
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//!
//! let vectors = vec![0.0_f32, 0.0, 1.0, 0.0, 0.0, 3.0];
//! let identities = ["cat-1", "cat-2", "dog-1"].map(String::from).to_vec();
//! let gallery = Gallery::new(vectors, 2, identities, &["cat", "cat", "dog"], Metric::Euclidean)?;
//!
//! // The picture "cat-1" asks for its label without being allowed to find itself.
//! let cat = gallery.label_named("cat").ok_or("no cat")?;
//! let relevance = Relevance::new(Positives::Label(cat), gallery.rows_of("cat-1"));
//! let answers = gallery.nearest_positive_and_negative(gallery.vector(0), |_| &relevance)?;
//! let positive = answers[0].positive.ok_or("no other cat")?;
//! let negative = answers[0].negative.ok_or("nothing but cats")?;
//! assert_eq!((positive.row, positive.squared_distance), (1, 1.0));
//! assert_eq!((negative.row, negative.squared_distance), (2, 9.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod edit;
mod extent;
mod nearby;
mod relevance;
mod rivals;
mod scores;
mod search;

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use edit::NewItem;
pub(crate) use extent::Extent;
pub use extent::SearchError;
pub(crate) use nearby::Nearby;
pub use relevance::{Positives, Relevance, RowRelevance};
pub use rivals::RivalSet;
pub(crate) use rivals::{AheadBatch, Answers, NearestDistances, positive_rows, queries_per_pass};
pub(crate) use scores::{Rows, Scratch, batch_queries};
pub(crate) use search::{NearestBatch, NearestPairBatch, Search};
pub use search::{NearestPair, Neighbour};

/// Largest norm of a stored vector: with it on both sides, no `f32` product or sum comes near overflow.
pub(crate) const NORM_LIMIT: f64 = 1e15;

/// Name of a class of pictures, interned by the [`Gallery`] it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub(crate) u32);

impl Label {
    /// Position of the label in order of first appearance, below [`Gallery::label_count`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How two vectors are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// The smallest Euclidean distance to the vectors as given wins.
    Euclidean,
    /// The stored vectors are scaled to norm 1, unless rounding already left them there, so the smallest Euclidean
    /// distance is the largest cosine; queries are never scaled, because their length does not change the order.
    Cosine,
}

/// A gallery that cannot be built, with the offending value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GalleryError {
    /// There is nothing to search in.
    #[error("gallery has no items, wanted at least one")]
    Empty,
    /// Vectors have at least one component.
    #[error("gallery dimension is 0, wanted at least 1")]
    DimensionZero,
    /// The vectors, laid end to end, do not have the length that the items need.
    #[error("gallery vectors hold {found} numbers, wanted {items} items of dimension {dimension}")]
    VectorLength {
        /// How many numbers were given.
        found: usize,
        /// How many items there are.
        items: usize,
        /// How many components each vector has.
        dimension: usize,
    },
    /// Every item has exactly one label.
    #[error("gallery has {found} labels, wanted one for each of its {items} items")]
    LabelCount {
        /// How many labels were given.
        found: usize,
        /// How many items there are.
        items: usize,
    },
    /// Rows and labels are numbered with 32 bits.
    #[error("gallery has {found} items, wanted at most {limit}")]
    TooManyItems {
        /// How many items were given.
        found: usize,
        /// How many can be numbered.
        limit: usize,
    },
    /// An added vector does not have the gallery's dimension.
    #[error("gallery item `{identity}` (row {row}) has {found} components, wanted {dimension}")]
    Dimension {
        /// Name of the item.
        identity: String,
        /// Row that it would have had.
        row: usize,
        /// How many components it has.
        found: usize,
        /// How many the others have.
        dimension: usize,
    },
    /// A row that is to be removed is not there.
    #[error("row {row} of the gallery cannot be removed, wanted a row below {items}")]
    NoSuchRow {
        /// The row.
        row: usize,
        /// How many items there are.
        items: usize,
    },
    /// An item has at least one view.
    #[error("gallery items have no views, wanted at least one")]
    NoViews,
    /// Two views cannot be told apart.
    #[error("two views of a gallery's items are called `{name}`, wanted a name for each")]
    ViewNames {
        /// What both are called.
        name: String,
    },
    /// Some item lacks a view.
    #[error("gallery has {rows} vectors, wanted a multiple of {views}, the views of an item")]
    ViewCount {
        /// How many vectors there are.
        rows: usize,
        /// How many each item should have.
        views: usize,
    },
    /// The rows of an item are not all its own.
    #[error("row {row} of the gallery is of item {found}, wanted view `{view}` of {wanted}")]
    ViewOfAnother {
        /// The row.
        row: usize,
        /// Which view it should be.
        view: String,
        /// Name and label of the item that is there.
        found: String,
        /// Name and label of the item to which the view should belong.
        wanted: String,
    },
    /// Views go together or not at all.
    #[error("row {row} of the gallery cannot be removed without the other views of `{identity}`")]
    PartOfItem {
        /// The row.
        row: usize,
        /// Name of the item.
        identity: String,
    },
    /// The plain vectors, laid end to end, do not have the length that the items need.
    #[error(
        "plain vectors of the gallery hold {found} numbers, wanted {items} items of dimension {dimension}"
    )]
    PlainLength {
        /// How many numbers were given.
        found: usize,
        /// How many items there are.
        items: usize,
        /// How many components each vector has.
        dimension: usize,
    },
    /// All items have an embedding of the clean picture, or none.
    #[error(
        "gallery item `{identity}` (row {row}) has no embedding of its clean picture, wanted one as the others have"
    )]
    PlainMissing {
        /// Name of the item.
        identity: String,
        /// Row that it would have had.
        row: usize,
    },
    /// All items have an embedding of the clean picture, or none.
    #[error(
        "gallery item `{identity}` (row {row}) has an embedding of its clean picture, wanted none as the others have"
    )]
    PlainUnwanted {
        /// Name of the item.
        identity: String,
        /// Row that it would have had.
        row: usize,
    },
    /// A component is infinite or not a number.
    #[error(
        "component {component} of gallery item `{identity}` (row {row}) is {value}, wanted a finite number"
    )]
    NotFinite {
        /// Name of the item.
        identity: String,
        /// Row of the item.
        row: usize,
        /// Which component of its vector.
        component: usize,
        /// What was found there.
        value: f32,
    },
    /// A vector is so long that single-precision products of it could overflow.
    #[error("norm of gallery item `{identity}` (row {row}) is {norm:e}, wanted at most {limit:e}")]
    NormTooLarge {
        /// Name of the item.
        identity: String,
        /// Row of the item.
        row: usize,
        /// Its norm.
        norm: f64,
        /// The largest norm that is accepted.
        limit: f64,
    },
    /// A zero vector has no direction, so the cosine is undefined.
    #[error(
        "gallery item `{identity}` (row {row}) is the zero vector, wanted a direction for the cosine metric"
    )]
    ZeroVector {
        /// Name of the item.
        identity: String,
        /// Row of the item.
        row: usize,
    },
}

/// The stored vectors `v_1..v_N` with their labels and identities.
///
/// An *item* is a row, or, in a gallery [with views](Gallery::with_views), as many consecutive rows as there are views. One
/// picture may own several items: identities need not be unique.
#[derive(Clone, Debug)]
pub struct Gallery {
    vectors: Vec<f32>,
    dimension: usize,
    metric: Metric,
    labels: Vec<Label>,
    label_names: Vec<String>,
    labels_by_name: Vec<Label>,
    identities: Vec<String>,
    rows_by_identity: Vec<u32>,
    squared_norms: Vec<f64>,
    /// Names of an item's views; empty where an item is a row.
    view_names: Vec<String>,
    /// The same items by the embeddings of their clean pictures.
    plain: Option<Box<Gallery>>,
}

impl Gallery {
    /// Takes the vectors, laid end to end, with one identity and one label for each; nothing large is copied.
    pub fn new(
        mut vectors: Vec<f32>,
        dimension: usize,
        identities: Vec<String>,
        labels: &[impl AsRef<str>],
        metric: Metric,
    ) -> Result<Self, GalleryError> {
        let items = identities.len();
        if dimension == 0 {
            return Err(GalleryError::DimensionZero);
        }
        if items == 0 && vectors.is_empty() && labels.is_empty() {
            return Err(GalleryError::Empty);
        }
        if items.checked_mul(dimension) != Some(vectors.len()) {
            return Err(GalleryError::VectorLength { found: vectors.len(), items, dimension });
        }
        if labels.len() != items {
            return Err(GalleryError::LabelCount { found: labels.len(), items });
        }
        let limit = u32::MAX as usize;
        if items > limit {
            return Err(GalleryError::TooManyItems { found: items, limit });
        }

        let mut squared_norms = Vec::with_capacity(items);
        for (row, vector) in vectors.chunks_exact_mut(dimension).enumerate() {
            squared_norms.push(admit(vector, row, &identities[row], metric)?);
        }

        let (labels, label_names) = intern(labels);
        let mut labels_by_name: Vec<Label> = (0..label_names.len() as u32).map(Label).collect();
        labels_by_name.sort_unstable_by_key(|label| label_names[label.index()].as_str());
        let mut rows_by_identity: Vec<u32> = (0..items as u32).collect();
        rows_by_identity.sort_unstable_by_key(|&row| (identities[row as usize].as_str(), row));

        Ok(Self {
            vectors,
            dimension,
            metric,
            labels,
            label_names,
            labels_by_name,
            identities,
            rows_by_identity,
            squared_norms,
            view_names: Vec::new(),
            plain: None,
        })
    }

    /// Adds the vectors that the encoder without noise gives for the same pictures, laid end to end in the same rows.
    ///
    /// They are what the plain retriever searches; no certificate looks at them.
    ///
    /// ```
    /// use retrievalguard::gallery::{Gallery, Metric};
    ///
    /// let names = ["cat-1", "dog-1"].map(String::from).to_vec();
    /// let gallery = Gallery::new(vec![0.0, 1.0], 1, names, &["cat", "dog"], Metric::Euclidean)?;
    /// let gallery = gallery.with_plain(vec![0.9, 0.1])?;
    /// let plain = gallery.plain().ok_or("no plain vectors")?;
    /// assert_eq!(gallery.nearest(&[0.2], 1, |_| &[])?[0][0].row, 0);
    /// assert_eq!(plain.nearest(&[0.2], 1, |_| &[])?[0][0].row, 1);
    /// assert_eq!(plain.identity(1), "dog-1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_plain(mut self, mut vectors: Vec<f32>) -> Result<Self, GalleryError> {
        let (items, dimension) = (self.len(), self.dimension);
        if items.checked_mul(dimension) != Some(vectors.len()) {
            return Err(GalleryError::PlainLength { found: vectors.len(), items, dimension });
        }
        let mut squared_norms = Vec::with_capacity(items);
        for (row, vector) in vectors.chunks_exact_mut(dimension).enumerate() {
            squared_norms.push(admit(vector, row, &self.identities[row], self.metric)?);
        }
        self.plain = Some(Box::new(Self {
            vectors,
            dimension,
            metric: self.metric,
            labels: self.labels.clone(),
            label_names: self.label_names.clone(),
            labels_by_name: self.labels_by_name.clone(),
            identities: self.identities.clone(),
            rows_by_identity: self.rows_by_identity.clone(),
            squared_norms,
            view_names: self.view_names.clone(),
            plain: None,
        }));
        Ok(self)
    }

    /// The same items in the same rows by the embeddings of their clean pictures, if they were
    /// [given](Gallery::with_plain).
    pub fn plain(&self) -> Option<&Gallery> {
        self.plain.as_deref()
    }

    /// Says that every item has these views, in consecutive rows and in this order.
    ///
    /// Whatever is counted in [items](Gallery::item) then counts an item once, however many of its views are near.
    ///
    /// ```
    /// use retrievalguard::gallery::{Gallery, Metric};
    ///
    /// let names = ["cat-1", "cat-1", "dog-1", "dog-1"].map(String::from).to_vec();
    /// let labels = ["cat", "cat", "dog", "dog"];
    /// let gallery = Gallery::new(vec![0.0, 1.0, 1.5, 9.0], 1, names, &labels, Metric::Euclidean)?;
    /// let gallery = gallery.with_views(vec!["as is".to_owned(), "mirrored".to_owned()])?;
    /// assert_eq!((gallery.len(), gallery.item_count()), (4, 2));
    /// // Two items, each by its nearest view.
    /// let found = gallery.nearest_items(&[1.1], 2, |_| &[])?;
    /// let seen: Vec<_> = found[0].iter().map(|found| (found.row, gallery.view(found.row))).collect();
    /// assert_eq!(seen, [(1, Some("mirrored")), (2, Some("as is"))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_views(self, names: Vec<String>) -> Result<Self, GalleryError> {
        let views = names.len();
        if views == 0 {
            return Err(GalleryError::NoViews);
        }
        for (place, name) in names.iter().enumerate() {
            if names[..place].contains(name) {
                return Err(GalleryError::ViewNames { name: name.clone() });
            }
        }
        if !self.len().is_multiple_of(views) {
            return Err(GalleryError::ViewCount { rows: self.len(), views });
        }
        for row in 0..self.len() {
            let first = row - row % views;
            if self.identities[row] != self.identities[first] || self.labels[row] != self.labels[first] {
                let [found, wanted] = [row, first].map(|row| {
                    format!("`{}` with label `{}`", self.identities[row], self.label_name(self.labels[row]))
                });
                return Err(GalleryError::ViewOfAnother {
                    row,
                    view: names[row % views].clone(),
                    found,
                    wanted,
                });
            }
        }
        let plain = self.plain.map(|plain| Box::new(Self { view_names: names.clone(), ..*plain }));
        Ok(Self { view_names: names, plain, ..self })
    }

    /// Number of views of every item, at least 1.
    pub fn views(&self) -> usize {
        self.view_names.len().max(1)
    }

    /// Names of the views, in the order of an item's rows; none where an item is a row.
    pub fn view_names(&self) -> &[String] {
        &self.view_names
    }

    /// Name of the view that a row is; none where an item is a row.
    pub fn view(&self, row: usize) -> Option<&str> {
        self.view_names.get(row % self.views()).map(String::as_str)
    }

    /// Number of items, at least 1.
    pub fn item_count(&self) -> usize {
        self.len() / self.views()
    }

    /// The item that a row belongs to, below [`Gallery::item_count`] for rows below [`Gallery::len`].
    pub fn item(&self, row: usize) -> usize {
        row / self.views()
    }

    /// The rows of an item, one for each view.
    pub fn item_rows(&self, item: usize) -> Range<usize> {
        item * self.views()..(item + 1) * self.views()
    }

    /// Number of items among ascending rows.
    pub(crate) fn count_items(&self, rows: &[usize]) -> usize {
        rows.chunk_by(|&left, &right| self.item(left) == self.item(right)).count()
    }

    /// Number of stored vectors, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty gallery cannot be built")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Number `k` of components of every vector, at least 1.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// How vectors are compared.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// The stored vector of a row; panics if the row is not below [`Gallery::len`].
    pub fn vector(&self, row: usize) -> &[f32] {
        &self.vectors[row * self.dimension..(row + 1) * self.dimension]
    }

    /// All stored vectors, laid end to end.
    pub fn vectors(&self) -> &[f32] {
        &self.vectors
    }

    /// Squared norm `‖v‖²` of a stored vector, summed in `f64`; panics if there is no such row.
    pub(crate) fn squared_norm(&self, row: usize) -> f64 {
        self.squared_norms[row]
    }

    /// Largest norm of a stored vector; 0 without any.
    pub fn largest_norm(&self) -> f64 {
        self.squared_norms.iter().copied().fold(0.0, f64::max).sqrt()
    }

    /// Label of a row; panics if there is no such row.
    pub fn label(&self, row: usize) -> Label {
        self.labels[row]
    }

    /// Labels of all rows.
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// Number of different labels.
    pub fn label_count(&self) -> usize {
        self.label_names.len()
    }

    /// The label with this name, if any stored vector has it.
    pub fn label_named(&self, name: &str) -> Option<Label> {
        self.labels_by_name
            .binary_search_by_key(&name, |label| self.label_names[label.index()].as_str())
            .ok()
            .map(|position| self.labels_by_name[position])
    }

    /// Name of a label of this gallery; panics if the label comes from a gallery with more labels.
    pub fn label_name(&self, label: Label) -> &str {
        &self.label_names[label.index()]
    }

    /// Name of the picture that a row was made from; panics if there is no such row.
    pub fn identity(&self, row: usize) -> &str {
        &self.identities[row]
    }

    /// Rows made from one picture, all views of it, ascending; what leave-one-out excludes.
    pub fn rows_of(&self, identity: &str) -> Vec<usize> {
        let name = |row: &u32| self.identities[*row as usize].as_str();
        let start = self.rows_by_identity.partition_point(|row| name(row) < identity);
        self.rows_by_identity[start..]
            .iter()
            .take_while(|row| name(row) == identity)
            .map(|&row| row as usize)
            .collect()
    }
}

/// Checks one vector, scales it if the metric asks for it, and returns its squared norm.
pub(crate) fn admit(
    vector: &mut [f32],
    row: usize,
    identity: &str,
    metric: Metric,
) -> Result<f64, GalleryError> {
    if let Some(component) = vector.iter().position(|value| !value.is_finite()) {
        let value = vector[component];
        return Err(GalleryError::NotFinite { identity: identity.to_owned(), row, component, value });
    }
    let squared_norm = squared_norm(vector);
    let norm = squared_norm.sqrt();
    match metric {
        Metric::Euclidean if norm > NORM_LIMIT => {
            Err(GalleryError::NormTooLarge { identity: identity.to_owned(), row, norm, limit: NORM_LIMIT })
        }
        Metric::Euclidean => Ok(squared_norm),
        // Scaling leaves each component within 2⁻²⁴ of its value, and so the norm: a stored gallery stays as it is.
        Metric::Cosine if (norm - 1.0).abs() <= f64::from(f32::EPSILON) => Ok(squared_norm),
        Metric::Cosine if norm == 0.0 => Err(GalleryError::ZeroVector { identity: identity.to_owned(), row }),
        Metric::Cosine => {
            for value in vector.iter_mut() {
                *value = (f64::from(*value) / norm) as f32;
            }
            Ok(self::squared_norm(vector))
        }
    }
}

/// `Σ v_i²` in `f64`, in the order of the components.
fn squared_norm<T: Copy + Into<f64>>(vector: &[T]) -> f64 {
    vector.iter().fold(0.0, |sum, &value| {
        let value: f64 = value.into();
        sum + value * value
    })
}

/// Numbers the names in order of first appearance.
fn intern(names: &[impl AsRef<str>]) -> (Vec<Label>, Vec<String>) {
    let mut numbers: HashMap<&str, Label> = HashMap::new();
    let mut distinct: Vec<String> = Vec::new();
    let labels = names
        .iter()
        .map(|name| {
            let name = name.as_ref();
            *numbers.entry(name).or_insert_with(|| {
                distinct.push(name.to_owned());
                // At most one label per item, and items are numbered with 32 bits.
                Label((distinct.len() - 1) as u32)
            })
        })
        .collect();
    (labels, distinct)
}

#[cfg(test)]
mod tests;
