//! Galleries in memory and on disk.

use std::borrow::Cow;
use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyType;
use retrievalguard::gallery as method;
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance, QuerySide, StorageError};
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};
use retrievalguard::{Components, NormBound, SampleCount, Sigma};

use crate::errors::{raised, refused};
use crate::parameters;

/// Rows and squared distances, a line for each query.
type Found<'py> = (Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<f64>>);

/// Labelled vectors, and what is known of how they were made.
#[pyclass(frozen, module = "retrievalguard._native")]
pub(crate) struct Gallery {
    held: Held,
    name: String,
}

/// Where the vectors are.
enum Held {
    /// In memory, from arrays.
    Vectors(method::Gallery),
    /// From a directory, of either kind.
    Stored(StoredGallery),
}

impl Gallery {
    /// The gallery that is searched.
    pub(crate) fn gallery(&self) -> GalleryRef<'_> {
        match &self.held {
            Held::Vectors(gallery) => gallery.into(),
            Held::Stored(stored) => stored.gallery(),
        }
    }

    /// The gallery in memory; one in shards is refused.
    pub(crate) fn in_memory(&self) -> PyResult<&method::Gallery> {
        match &self.held {
            Held::Vectors(gallery) => Ok(gallery),
            Held::Stored(stored) => Ok(&stored.in_memory().map_err(|error| raised(&error))?.gallery),
        }
    }

    fn provenance(&self) -> Option<&Provenance> {
        match &self.held {
            Held::Vectors(_) => None,
            Held::Stored(stored) => Some(stored.provenance()),
        }
    }

    /// Samples behind each vector, if the gallery says so.
    pub(crate) fn samples_behind(&self) -> Option<SampleCount> {
        SampleCount::new(u64::from(self.provenance()?.samples?)).ok()
    }

    /// Whether queries made like this may be asked; a gallery that says nothing of itself takes all.
    pub(crate) fn check(
        &self,
        sigma: Sigma,
        dimension: usize,
        norm_bound: NormBound,
        components: Components,
    ) -> PyResult<()> {
        let Held::Stored(stored) = &self.held else { return Ok(()) };
        let queries =
            QuerySide { sigma: Some(sigma), dimension, norm_bound, components, model: None, contract: None };
        stored.check_against(&self.name, &queries).map_err(|error| raised(&error))
    }
}

#[pymethods]
impl Gallery {
    #[new]
    fn new(
        py: Python<'_>,
        vectors: PyReadonlyArray2<'_, f32>,
        labels: Vec<String>,
        identities: Vec<String>,
        metric: &str,
        views: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let metric = parameters::metric(metric)?;
        let dimension = vectors.as_array().ncols();
        let values = vectors.as_slice()?.to_vec();
        let made = py.detach(|| {
            let gallery = method::Gallery::new(values, dimension, identities, &labels, metric)?;
            match views {
                Some(names) => gallery.with_views(names),
                None => Ok(gallery),
            }
        });
        let vectors = made.map_err(|error| raised(&error))?;
        Ok(Self { held: Held::Vectors(vectors), name: String::new() })
    }

    /// Reads a gallery directory, or opens one in shards.
    #[classmethod]
    fn read(_class: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let name = path.display().to_string();
        let stored = py.detach(|| StoredGallery::open(&path)).map_err(|error| raised(&error))?;
        Ok(Self { held: Held::Stored(stored), name })
    }

    /// Writes a gallery directory; what is known of how the vectors were made goes with them.
    fn write(&self, py: Python<'_>, path: PathBuf, norm_bound: Option<f64>) -> PyResult<()> {
        let norm_bound = norm_bound.map(parameters::norm_bound).transpose()?;
        let vectors = self.in_memory()?;
        let provenance = self.provenance().cloned();
        let mut provenance = provenance.unwrap_or_else(|| Provenance::unknown(NormBound::UNIT));
        let paths: Vec<Option<String>> = match &self.held {
            Held::Vectors(_) => Vec::new(),
            // Where pictures lie seen from here, so that a copy of the gallery finds them, too.
            Held::Stored(stored) => (0..vectors.len())
                .map(|row| Ok(stored.picture_path(row)?.map(|path| path.display().to_string())))
                .collect::<Result<_, StorageError>>()
                .map_err(|error| raised(&error))?,
        };
        if let Some(norm_bound) = norm_bound {
            provenance.norm_bound = norm_bound;
        }
        py.detach(|| GalleryDirectory::write(&path, vectors, &paths, provenance))
            .map(drop)
            .map_err(|error| raised(&error))
    }

    /// Rows and squared distances of the `count` nearest items of each query, each by its nearest view.
    fn nearest<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f64>,
        count: usize,
    ) -> PyResult<Found<'py>> {
        let values = queries.as_slice()?.to_vec();
        let rows = queries.as_array().nrows();
        let found = py
            .detach(|| self.gallery().nearest_items(&values, count, |_| &[]))
            .map_err(|error| raised(&error))?;
        let count = count.min(self.gallery().item_count());
        let flat = || found.iter().flatten();
        let places: Vec<i64> = flat().map(|neighbour| neighbour.row as i64).collect();
        let distances: Vec<f64> = flat().map(|neighbour| neighbour.squared_distance).collect();
        Ok((
            PyArray1::from_vec(py, places).reshape([rows, count])?,
            PyArray1::from_vec(py, distances).reshape([rows, count])?,
        ))
    }

    fn __len__(&self) -> usize {
        self.gallery().len()
    }

    /// Number of items, each with all its views.
    #[getter]
    fn items(&self) -> usize {
        self.gallery().item_count()
    }

    /// Names of the views, in the order of an item's rows; none where an item is a row.
    #[getter]
    fn views(&self) -> Vec<&str> {
        self.gallery().view_names().iter().map(String::as_str).collect()
    }

    #[getter]
    fn dimension(&self) -> usize {
        self.gallery().dimension()
    }

    #[getter]
    fn metric(&self) -> &'static str {
        parameters::metric_word(self.gallery().metric())
    }

    /// A copy of the stored vectors.
    fn vectors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let gallery = self.in_memory()?;
        PyArray1::from_slice(py, gallery.vectors()).reshape([gallery.len(), gallery.dimension()])
    }

    fn labels(&self) -> Vec<&str> {
        let gallery = self.gallery();
        gallery.labels().iter().map(|&label| gallery.label_name(label)).collect()
    }

    /// Number of different labels.
    #[getter]
    fn label_count(&self) -> usize {
        self.gallery().label_count()
    }

    fn identities(&self) -> PyResult<Vec<&str>> {
        let gallery = self.in_memory()?;
        Ok((0..gallery.len()).map(|row| gallery.identity(row)).collect())
    }

    /// Identity, label and view of a row.
    fn item(&self, row: usize) -> PyResult<(Cow<'_, str>, &str, Option<&str>)> {
        let gallery = self.gallery();
        if row >= gallery.len() {
            return Err(refused(format!("row is {row}, wanted one below {}", gallery.len())));
        }
        let identity = gallery.identity(row).map_err(|error| raised(&error))?;
        Ok((identity, gallery.label_name(gallery.label(row)), gallery.view(row)))
    }

    /// Rows of the picture with this name.
    fn rows_of(&self, identity: &str) -> PyResult<Vec<usize>> {
        self.gallery().rows_of(identity).map_err(|error| raised(&error))
    }

    /// Noise level under which the vectors were smoothed, if that is known.
    #[getter]
    fn sigma(&self) -> Option<f64> {
        self.provenance()?.sigma.map(Sigma::get)
    }

    /// Samples behind each vector, if that is known; 0 for clean pictures.
    #[getter]
    fn samples(&self) -> Option<u32> {
        self.provenance()?.samples
    }

    /// Norm bound of the encoder that made the vectors, if that is known.
    #[getter]
    fn norm_bound(&self) -> Option<f64> {
        Some(self.provenance()?.norm_bound.get())
    }
}
