//! Galleries in memory and on disk.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyType;
use retrievalguard::gallery as method;
use retrievalguard::storage::manifest::{
    Engine, GalleryDirectory, GalleryManifest, Provenance, QuerySide, SeedRecord, StorageError,
};
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};
use retrievalguard::{Components, Embedder, NormBound, SampleCount, Sigma};
use retrievalguard_encoder::agreement::Agreement;
use retrievalguard_encoder::pipeline::{check_gallery, query_side};

use crate::encoder::Encoder;
use crate::errors::{raised, refused};
use crate::parameters;
use crate::pipeline::misfit;

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
    /// In memory, from arrays, with what was said of how they were made.
    Vectors(Box<method::Gallery>, Option<Box<GalleryManifest>>),
    /// From a directory, of either kind.
    Stored(StoredGallery),
}

/// What is known of how vectors were made.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Made<'py> {
    sigma: Option<f64>,
    samples: Option<u32>,
    seed: Option<String>,
    norm_bound: f64,
    /// Embeddings of the clean pictures.
    plain: Option<PyReadonlyArray2<'py, f32>>,
    encoder: Option<Bound<'py, Encoder>>,
}

impl Made<'_> {
    fn provenance(&self) -> PyResult<Provenance> {
        let own = Provenance {
            sigma: self.sigma.map(parameters::sigma).transpose()?,
            samples: self.samples,
            seed: self.seed.as_deref().map(parameters::seed).transpose()?.map(SeedRecord::Fixed),
            ..Provenance::unknown(parameters::norm_bound(self.norm_bound)?)
        };
        let Some(encoder) = &self.encoder else { return Ok(own) };
        let embedder = &encoder.get().embedder;
        let report = embedder.report();
        Ok(Provenance {
            norm_bound: embedder.norm_bound(),
            components: embedder.components(),
            model: embedder.facts().hash.parse().ok(),
            contract: embedder.model_config().hash().parse().ok(),
            engine: Some(Engine { name: report.engine.to_string(), version: report.version.clone() }),
            ..own
        })
    }
}

impl Gallery {
    /// The gallery that is searched.
    pub(crate) fn gallery(&self) -> GalleryRef<'_> {
        match &self.held {
            Held::Vectors(gallery, _) => gallery.as_ref().into(),
            Held::Stored(stored) => stored.gallery(),
        }
    }

    /// The gallery in memory; one in shards is refused.
    pub(crate) fn in_memory(&self) -> PyResult<&method::Gallery> {
        match &self.held {
            Held::Vectors(gallery, _) => Ok(gallery),
            Held::Stored(stored) => Ok(&stored.in_memory().map_err(|error| raised(&error))?.gallery),
        }
    }

    /// What messages call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Noise level under which the vectors were smoothed, if that is known.
    pub(crate) fn noise(&self) -> Option<Sigma> {
        self.provenance()?.sigma
    }

    /// The gallery that the plain retriever searches, if there is one.
    pub(crate) fn plain(&self) -> Option<GalleryRef<'_>> {
        match &self.held {
            Held::Vectors(gallery, _) if self.provenance()?.samples == Some(0) => {
                Some(gallery.as_ref().into())
            }
            Held::Vectors(..) => self.gallery().plain(),
            Held::Stored(stored) => stored.plain(),
        }
    }

    /// Largest norm of a stored vector.
    pub(crate) fn largest_norm(&self) -> Result<f64, StorageError> {
        match &self.held {
            Held::Vectors(gallery, _) => Ok(gallery.largest_norm()),
            Held::Stored(stored) => stored.largest_norm(),
        }
    }

    /// Whether an encoder's queries may be asked; a gallery that says nothing of itself takes all of its dimension.
    pub(crate) fn check_encoder(&self, encoder: &Encoder, sigma: Option<Sigma>) -> PyResult<()> {
        let embedder = &encoder.embedder;
        match &self.held {
            Held::Stored(stored) => check_gallery(stored, &self.name, embedder, sigma)
                .map_err(|error| misfit(&error, Path::new(&self.name), encoder)),
            Held::Vectors(_, Some(manifest)) => {
                let queries = query_side(embedder, sigma);
                manifest.check_against(&self.name, &queries).map_err(|error| raised(&error))
            }
            Held::Vectors(..) => Ok(()),
        }
    }

    fn provenance(&self) -> Option<&Provenance> {
        match &self.held {
            Held::Vectors(_, manifest) => Some(&manifest.as_ref()?.provenance),
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
        let queries =
            QuerySide { sigma: Some(sigma), dimension, norm_bound, components, model: None, contract: None };
        let checked = match &self.held {
            Held::Stored(stored) => stored.check_against(&self.name, &queries),
            Held::Vectors(_, Some(manifest)) => manifest.check_against(&self.name, &queries),
            Held::Vectors(_, None) => Ok(()),
        };
        checked.map_err(|error| raised(&error))
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
        made: Option<Made<'_>>,
    ) -> PyResult<Self> {
        let metric = parameters::metric(metric)?;
        let dimension = vectors.as_array().ncols();
        let values = vectors.as_slice()?.to_vec();
        let provenance = made.as_ref().map(Made::provenance).transpose()?;
        let clean = made.and_then(|made| made.plain);
        let clean = clean.map(|plain| plain.as_slice().map(<[f32]>::to_vec)).transpose()?;
        let held = py.detach(|| {
            let mut gallery = method::Gallery::new(values, dimension, identities, &labels, metric)?;
            if let Some(names) = views {
                gallery = gallery.with_views(names)?;
            }
            if let Some(clean) = clean {
                gallery = gallery.with_plain(clean)?;
            }
            let manifest = provenance.map(|made| Box::new(GalleryManifest::describe(&gallery, &[], made)));
            Ok(Held::Vectors(Box::new(gallery), manifest))
        });
        let held = held.map_err(|error: method::GalleryError| raised(&error))?;
        Ok(Self { held, name: "in memory".to_owned() })
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
            Held::Vectors(..) => Vec::new(),
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

    /// How often rows that another search answered agree with exact search: queries with the same item, with the same label,
    /// and without an answer.
    fn agreement(
        &self,
        py: Python<'_>,
        queries: PyReadonlyArray2<'_, f32>,
        answers: Vec<Option<usize>>,
    ) -> PyResult<(u32, u32, u32)> {
        let values = queries.as_slice()?.to_vec();
        let found = py.detach(|| Agreement::of(self.gallery(), &values, &answers));
        let found = found.map_err(|error| raised(&error))?;
        Ok((found.same_item.count, found.same_label.count, found.unanswered))
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

    /// Where the picture of a row is, if that was stored.
    fn picture_path(&self, row: usize) -> PyResult<Option<PathBuf>> {
        match &self.held {
            Held::Stored(stored) if row < self.gallery().len() => {
                stored.picture_path(row).map_err(|error| raised(&error))
            }
            Held::Stored(_) | Held::Vectors(..) => Ok(None),
        }
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
