//! Galleries in memory and on disk.

use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyType;
use retrievalguard::gallery as method;
use retrievalguard::storage::manifest::{GalleryDirectory, GalleryManifest, Provenance, QuerySide};
use retrievalguard::{NormBound, SampleCount, Sigma};

use crate::errors::{raised, refused};
use crate::parameters;

/// Rows and squared distances, a line for each query.
type Found<'py> = (Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<f64>>);

/// Labelled vectors, and what is known of how they were made.
#[pyclass(frozen, module = "retrievalguard._native")]
pub(crate) struct Gallery {
    pub(crate) vectors: method::Gallery,
    paths: Vec<Option<String>>,
    manifest: Option<GalleryManifest>,
    name: String,
}

impl Gallery {
    /// Samples behind each vector, if the gallery says so.
    pub(crate) fn samples_behind(&self) -> Option<SampleCount> {
        let samples = self.manifest.as_ref()?.provenance.samples?;
        SampleCount::new(u64::from(samples)).ok()
    }

    /// Whether queries made like this may be asked; a gallery that says nothing of itself takes all.
    pub(crate) fn check(&self, sigma: Sigma, dimension: usize, norm_bound: NormBound) -> PyResult<()> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let queries = QuerySide { sigma, dimension, norm_bound, model: None, contract: None };
        manifest.check_against(&self.name, &queries).map_err(|error| raised(&error))
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
        Ok(Self { vectors, paths: Vec::new(), manifest: None, name: String::new() })
    }

    /// Reads a gallery directory.
    #[classmethod]
    fn read(_class: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let name = path.display().to_string();
        let read = py.detach(|| GalleryDirectory::read(&path)).map_err(|error| raised(&error))?;
        // Where pictures lie seen from here, so that a copy of the gallery finds them, too.
        let path = |row| read.picture_path(row).map(|path| path.display().to_string());
        let paths = (0..read.gallery.len()).map(path).collect();
        Ok(Self { vectors: read.gallery, paths, manifest: Some(read.manifest), name })
    }

    /// Writes a gallery directory; what is known of how the vectors were made goes with them.
    fn write(&self, py: Python<'_>, path: PathBuf, norm_bound: Option<f64>) -> PyResult<()> {
        let norm_bound = norm_bound.map(parameters::norm_bound).transpose()?;
        let mut provenance = match &self.manifest {
            Some(manifest) => manifest.provenance.clone(),
            None => Provenance::unknown(NormBound::UNIT),
        };
        if let Some(norm_bound) = norm_bound {
            provenance.norm_bound = norm_bound;
        }
        py.detach(|| GalleryDirectory::write(&path, &self.vectors, &self.paths, provenance))
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
            .detach(|| self.vectors.nearest_items(&values, count, |_| &[]))
            .map_err(|error| raised(&error))?;
        let count = count.min(self.vectors.item_count());
        let flat = || found.iter().flatten();
        let places: Vec<i64> = flat().map(|neighbour| neighbour.row as i64).collect();
        let distances: Vec<f64> = flat().map(|neighbour| neighbour.squared_distance).collect();
        Ok((
            PyArray1::from_vec(py, places).reshape([rows, count])?,
            PyArray1::from_vec(py, distances).reshape([rows, count])?,
        ))
    }

    fn __len__(&self) -> usize {
        self.vectors.len()
    }

    /// Number of items, each with all its views.
    #[getter]
    fn items(&self) -> usize {
        self.vectors.item_count()
    }

    /// Names of the views, in the order of an item's rows; none where an item is a row.
    #[getter]
    fn views(&self) -> Vec<&str> {
        self.vectors.view_names().iter().map(String::as_str).collect()
    }

    #[getter]
    fn dimension(&self) -> usize {
        self.vectors.dimension()
    }

    #[getter]
    fn metric(&self) -> &'static str {
        parameters::metric_word(self.vectors.metric())
    }

    /// A copy of the stored vectors.
    fn vectors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let shape = [self.vectors.len(), self.vectors.dimension()];
        PyArray1::from_slice(py, self.vectors.vectors()).reshape(shape)
    }

    fn labels(&self) -> Vec<&str> {
        self.vectors.labels().iter().map(|&label| self.vectors.label_name(label)).collect()
    }

    fn identities(&self) -> Vec<&str> {
        (0..self.vectors.len()).map(|row| self.vectors.identity(row)).collect()
    }

    /// Identity, label and view of a row.
    fn item(&self, row: usize) -> PyResult<(&str, &str, Option<&str>)> {
        if row >= self.vectors.len() {
            return Err(refused(format!("row is {row}, wanted one below {}", self.vectors.len())));
        }
        let label = self.vectors.label_name(self.vectors.label(row));
        Ok((self.vectors.identity(row), label, self.vectors.view(row)))
    }

    /// Rows of the picture with this name.
    fn rows_of(&self, identity: &str) -> Vec<usize> {
        self.vectors.rows_of(identity)
    }

    /// Noise level under which the vectors were smoothed, if that is known.
    #[getter]
    fn sigma(&self) -> Option<f64> {
        self.manifest.as_ref()?.provenance.sigma.map(Sigma::get)
    }

    /// Samples behind each vector, if that is known; 0 for clean pictures.
    #[getter]
    fn samples(&self) -> Option<u32> {
        self.manifest.as_ref()?.provenance.samples
    }

    /// Norm bound of the encoder that made the vectors, if that is known.
    #[getter]
    fn norm_bound(&self) -> Option<f64> {
        Some(self.manifest.as_ref()?.provenance.norm_bound.get())
    }
}
