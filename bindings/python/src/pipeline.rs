//! The resumable runs over folders of pictures.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use retrievalguard::certificate::CertificateName;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Seed, Sigma};
use retrievalguard_encoder::dataset::{
    Boxes, BrokenPictures, DatasetError, NamedSplit, Role, Selected, Selection,
};
use retrievalguard_encoder::pipeline::run_files::{Inputs, RunPlaces, Tables, write_run};
use retrievalguard_encoder::pipeline::{
    CertifyOptions, CertifyReport, CertifyRequest, IndexRequest, LeaveOneOut, OptionsError, PipelineError,
    model_config_difference, noise_of, usual_certificates,
};
use retrievalguard_encoder::receipt::ReceiptsTo;
use retrievalguard_encoder::views::view_set;

use crate::encoder::Encoder;
use crate::errors::{in_context, raised, refused};
use crate::interruptible::interruptible;
use crate::parameters;
use crate::table::Columns;

/// Which pictures.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Pictures {
    path: PathBuf,
    format: String,
    split: Option<String>,
    every: usize,
    limit: Option<usize>,
    skip_broken: bool,
}

impl Pictures {
    /// All records that may serve in `role`, and those that were chosen among them.
    pub(crate) fn read(&self, role: Role) -> PyResult<Selected> {
        let failed = |error: DatasetError| raised(&error);
        let split = |word: &String| {
            NamedSplit::ALL.into_iter().find(|known| known.name() == word).ok_or_else(|| {
                let known: Vec<&str> = NamedSplit::ALL.iter().map(|split| split.name()).collect();
                refused(format!("split is `{word}`, wanted one of {}", known.join(", ")))
            })
        };
        let positive = |name: &str, number: usize| {
            NonZeroUsize::new(number).ok_or_else(|| refused(format!("{name} is 0, wanted at least 1")))
        };
        let selection = Selection {
            format: self.format.parse().map_err(failed)?,
            boxes: Boxes::Usual,
            split: self.split.as_ref().map(split).transpose()?,
            every: positive("every", self.every)?,
            limit: self.limit.map(|limit| positive("limit", limit)).transpose()?,
        };
        selection.read(&self.path, role, |_| ()).map_err(failed)
    }

    pub(crate) fn broken(&self) -> BrokenPictures {
        if self.skip_broken { BrokenPictures::Skip } else { BrokenPictures::Fatal }
    }
}

/// What decides a gallery.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Indexing {
    /// None for embeddings without noise.
    sigma: Option<f64>,
    samples: Option<u32>,
    seed: Option<String>,
    metric: String,
    views: Option<String>,
    excess: String,
    shards: Option<usize>,
}

/// What came of a run beside its result.
#[derive(IntoPyObject)]
pub(crate) struct Report {
    skipped: Vec<(String, String)>,
    resumed: usize,
}

/// Embeds pictures and writes a gallery directory.
#[pyfunction]
pub(crate) fn index<'py>(
    py: Python<'py>,
    pictures: Pictures,
    encoder: &Bound<'py, Encoder>,
    out: PathBuf,
    indexing: Indexing,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Report> {
    let encoder = encoder.get();
    if indexing.sigma.is_none() {
        for (name, given) in [("samples", indexing.samples.is_some()), ("seed", indexing.seed.is_some())] {
            if given {
                return Err(refused(format!(
                    "{name} says nothing without noise, and sigma is None; wanted no {name}"
                )));
            }
        }
    }
    let views = indexing.views.as_deref().map(view_set).transpose().map_err(|error| raised(&error))?;
    let records = pictures.read(Role::Gallery)?.chosen;
    let positive = |count| NonZeroUsize::new(count).ok_or_else(|| refused("shards is 0, wanted at least 1"));
    let shards = indexing.shards.map(positive).transpose()?;
    let request = IndexRequest {
        records: &records,
        embedder: &encoder.embedder,
        sigma: indexing.sigma.map(parameters::sigma).transpose()?,
        samples: indexing.samples.unwrap_or(32),
        seed: indexing.seed.as_deref().map_or(Ok(Seed::new(0)), parameters::seed)?,
        metric: parameters::metric(&indexing.metric)?,
        views: views.as_ref(),
        excess: parameters::excess(&indexing.excess)?,
        broken: pictures.broken(),
        threads: encoder.threads,
        batch: encoder.batch,
        shards,
    };
    let report = interruptible(py, progress.as_ref(), |observer| {
        retrievalguard_encoder::pipeline::index(&request, &out, observer)
    })?;
    let report = report.map_err(|error| failed(&error))?;
    Ok(Report { skipped: report.skipped, resumed: report.resumed })
}

/// What decides a table of certificates.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Certifying {
    pub(crate) sigma: Option<f64>,
    alpha: Option<f64>,
    simultaneous: bool,
    pilot: Option<u64>,
    samples: Option<u64>,
    /// None for the usual ones of the kind of run; `all` for all of them.
    certificates: Option<Vec<String>>,
    top_k: usize,
    mixtures: Option<usize>,
    target_radius: Option<f64>,
    replan_bets: bool,
    seed: Option<String>,
    leave_one_out: String,
    excess: String,
    /// Folder for receipts.
    receipts: Option<PathBuf>,
}

impl Certifying {
    /// The certificates that are wanted at this noise level, or without noise.
    fn certificates(&self, sigma: Option<Sigma>) -> PyResult<Vec<CertificateName>> {
        match &self.certificates {
            Some(names) if *names == ["all"] && sigma.is_some() => Ok(CertificateName::SMOOTHED.to_vec()),
            Some(names) if *names != ["all"] => {
                names.iter().map(|name| parameters::certificate(name)).collect()
            }
            Some(_) | None => Ok(usual_certificates(sigma)),
        }
    }

    /// Everything about a run of certificates but its pictures, its encoder and its gallery.
    pub(crate) fn options(
        &self,
        sigma: Option<Sigma>,
        broken: BrokenPictures,
        (threads, batch): (NonZeroUsize, NonZeroUsize),
    ) -> PyResult<CertifyOptions> {
        let most = |count: usize| {
            NonZeroUsize::new(count).ok_or_else(|| refused("mixtures is 0, wanted at least 1"))
        };
        Ok(CertifyOptions {
            alpha: parameters::alpha(self.alpha.unwrap_or(0.01))?,
            simultaneous: self.simultaneous,
            pilot: self.pilot.map(parameters::sample_count).transpose()?,
            samples: parameters::sample_count(self.samples.unwrap_or(1_000))?,
            certificates: self.certificates(sigma)?,
            top_k: self.top_k,
            mixtures: self.mixtures.map(most).transpose()?.unwrap_or(NonZeroUsize::MIN),
            target_radius: self.target_radius.map(parameters::target_radius).transpose()?,
            replan_bets: self.replan_bets,
            seed: self.seed.as_deref().map_or(Ok(Seed::new(0)), parameters::seed)?,
            leave_one_out: match self.leave_one_out.as_str() {
                "auto" => LeaveOneOut::Auto,
                "always" => LeaveOneOut::Always,
                "never" => LeaveOneOut::Never,
                word => {
                    return Err(refused(format!("leave_one_out is `{word}`, wanted auto, always or never")));
                }
            },
            excess: parameters::excess(&self.excess)?,
            broken,
            keep_samples: None,
            receipts: self.receipts.clone().map(|folder| ReceiptsTo { folder, key: None }),
            threads,
            batch,
        })
    }

    /// Refuses what says nothing at this noise level, or without noise.
    pub(crate) fn refuse_unused(&self, sigma: Option<Sigma>, gallery: &str) -> PyResult<()> {
        if sigma.is_some() {
            return match self.mixtures {
                Some(_) => Err(refused(
                    "mixtures is for lipschitz, which needs no noise; wanted none beside a noise level",
                )),
                None => Ok(()),
            };
        }
        let given = [
            ("alpha", self.alpha.is_some()),
            ("simultaneous", self.simultaneous),
            ("samples", self.samples.is_some()),
            ("pilot", self.pilot.is_some()),
            ("target_radius", self.target_radius.is_some()),
            ("replan_bets", self.replan_bets),
            ("seed", self.seed.is_some()),
            ("excess", self.excess != "refuse"),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(refused(format!(
                "{name} says nothing without noise, and gallery `{gallery}` has no noise level; wanted no {name}"
            ))),
            None => Ok(()),
        }
    }
}

/// A table and what came of the run beside it.
#[derive(IntoPyObject)]
pub(crate) struct Certified {
    columns: Columns,
    deeper: Vec<Vec<(&'static str, Option<f64>)>>,
    skipped: Vec<(String, String)>,
    resumed: usize,
    left_out: usize,
    namesakes: usize,
}

impl Certified {
    pub(crate) fn new(report: CertifyReport) -> Self {
        let deeper = report.deeper.iter();
        let deeper =
            deeper.map(|verdicts| verdicts.iter().map(|&verdict| parameters::verdict(verdict)).collect());
        Self {
            deeper: deeper.collect(),
            columns: Columns::new(&report.table, Some(report.description.to_value().to_string())),
            skipped: report.skipped,
            resumed: report.resumed,
            left_out: report.left_out,
            namesakes: report.namesakes,
        }
    }
}

/// A run that was asked for: the request, and where its inputs lie.
pub(crate) struct Ordered<'a> {
    pub(crate) request: CertifyRequest<'a>,
    pub(crate) places: RunPlaces,
}

/// Reads pictures and gallery, checks every word, and does `work` with what is asked; `name` is the function's.
pub(crate) fn ordered<T>(
    py: Python<'_>,
    name: &str,
    pictures: &Pictures,
    (encoder, gallery): (&Encoder, &Path),
    certifying: &Certifying,
    work: impl FnOnce(&Ordered<'_>) -> PyResult<T>,
) -> PyResult<T> {
    let given = certifying.sigma.map(parameters::sigma).transpose()?;
    let stored = py.detach(|| StoredGallery::open(gallery)).map_err(|error| raised(&error))?;
    let gallery_name = gallery.display().to_string();
    let sigma = noise_of(given, stored.provenance());
    certifying.refuse_unused(sigma, &gallery_name)?;
    let options = certifying.options(sigma, pictures.broken(), (encoder.threads, encoder.batch))?;
    let wrong = |error: OptionsError| raised(&error);
    options.check().map_err(wrong)?;
    let queries = pictures.read(Role::Query)?;
    let request =
        options.request(sigma, &queries, &encoder.embedder, (&stored, &gallery_name)).map_err(wrong)?;
    let command = vec!["python".to_owned(), format!("retrievalguard.{name}")];
    let described = (pictures.path.as_path(), pictures.format.as_str(), Boxes::Usual);
    let places = RunPlaces::new(command, described, gallery, &encoder.model, encoder.contract.as_deref());
    let places = places.map_err(|error| raised(&error))?;
    work(&Ordered { request, places })
}

/// Says in which fields two model configs differ, where a gallery and an encoder do not fit for that reason.
pub(crate) fn misfit(error: &PipelineError, gallery: &Path, encoder: &Encoder) -> PyErr {
    match model_config_difference(gallery, encoder.embedder.model_config()) {
        Some(difference) if matches!(error, PipelineError::Mismatch(_)) => in_context(
            &format!("gallery `{}` has another model config: {difference}", gallery.display()),
            error,
        ),
        Some(_) | None => failed(error),
    }
}

/// Certifies pictures and writes what `retrievalguard certify` writes.
#[pyfunction]
pub(crate) fn certify_pictures<'py>(
    py: Python<'py>,
    pictures: Pictures,
    encoder: &Bound<'py, Encoder>,
    places: (PathBuf, PathBuf),
    certifying: Certifying,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Certified> {
    let (encoder, (gallery, out)) = (encoder.get(), places);
    ordered(py, "certify_pictures", &pictures, (encoder, &gallery), &certifying, |ordered| {
        let request = &ordered.request;
        let journal = out.join("certify.journal");
        let report = interruptible(py, progress.as_ref(), |observer| {
            retrievalguard_encoder::pipeline::certify(request, &journal, observer)
        })?;
        let report = report.map_err(|error| misfit(&error, &gallery, encoder))?;
        let tables = Tables { recall_at_k: request.options.top_k > 1, ..Tables::default() };
        let inputs = Inputs::of(ordered.places.clone(), request.queries, &report);
        write_run(&out, &report, &inputs, tables).map_err(|error| raised(&error))?;
        Ok(Certified::new(report))
    })
}

/// A stop that no signal explains was asked for by the progress callback, whose exception has been raised already.
pub(crate) fn failed(error: &PipelineError) -> PyErr {
    match error {
        PipelineError::Stopped { .. } => PyKeyboardInterrupt::new_err(error.to_string()),
        _ => raised(error),
    }
}
