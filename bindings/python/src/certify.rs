//! Certificates from samples that are there already.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use retrievalguard::certificate::{
    self, CertificateError, CertificateName, Decision, Outputs, StepValue, statement_in_words,
};
use retrievalguard::gallery::Neighbour;
use retrievalguard::{Components, Excess, NormBound, SampleCount, SampleError, Samples};
use retrievalguard_encoder::pipeline::{self, Answered, QueryCertifier, Relevant, check_bets, check_depth};
use retrievalguard_encoder::run::Procedure;
use retrievalguard_encoder::work::{Stopped, WorkQueue};

use crate::errors::{in_context, raised, refused};
use crate::gallery::Gallery;
use crate::interruptible::interruptible;
use crate::parameters;

/// One query, as Python hands it over.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Query<'py> {
    name: Option<String>,
    samples: PyReadonlyArray2<'py, f32>,
    pilot: PyReadonlyArray2<'py, f32>,
    label: Option<String>,
    item: Option<usize>,
    excluded: Vec<usize>,
}

/// What holds for all queries.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Settings {
    certificates: Vec<String>,
    sigma: f64,
    alpha: f64,
    norm_bound: f64,
    excess: String,
    non_negative: bool,
    replan_bets: bool,
    discrete: bool,
    gallery_samples: Option<u64>,
    target_radius: Option<f64>,
    top_k: usize,
    threads: usize,
}

/// A value of an explanation.
#[derive(IntoPyObject)]
enum Value {
    #[pyo3(transparent)]
    Number(f64),
    #[pyo3(transparent)]
    Count(u64),
    #[pyo3(transparent)]
    Text(String),
    #[pyo3(transparent)]
    List(Vec<f64>),
}

/// Quantity, value as it is, value as text, statement, statement in words.
type Step = (String, Value, String, String, Option<&'static str>);

/// What one certificate says about one query.
#[derive(IntoPyObject)]
pub(crate) struct Outcome {
    certificate: &'static str,
    verdict: &'static str,
    radius: Option<f64>,
    samples: u32,
    steps: Vec<Step>,
    deeper: Vec<(&'static str, Option<f64>)>,
    decision: Option<&'static str>,
}

impl Outcome {
    /// The same with verdicts for Recall@2 and deeper.
    pub(crate) fn with_deeper(self, deeper: Vec<(&'static str, Option<f64>)>) -> Self {
        Self { deeper, ..self }
    }

    /// The same with the reason for which sampling ended.
    pub(crate) fn decided(self, decision: Option<Decision>) -> Self {
        Self { decision: decision.map(Decision::as_str), ..self }
    }
}

/// What is said about one query.
#[derive(IntoPyObject)]
pub(crate) struct Answer {
    pub(crate) label: Option<String>,
    pub(crate) retrieved: Option<usize>,
    pub(crate) nearest_wrong: Option<usize>,
    /// What the encoder without noise retrieves, where that was looked up.
    pub(crate) plain: Option<usize>,
    pub(crate) outcomes: Vec<Outcome>,
}

/// Why a query was not answered.
enum Fault {
    Samples(SampleError),
    Pilot(SampleError),
    Certificate(CertificateError),
}

impl From<CertificateError> for Fault {
    fn from(error: CertificateError) -> Self {
        Self::Certificate(error)
    }
}

impl Fault {
    fn of(self, name: Option<&str>) -> PyErr {
        let (error, what): (Box<dyn std::error::Error>, _) = match self {
            Self::Samples(error) => (Box::new(error), None),
            Self::Pilot(error) => (Box::new(error), Some("the pilot cannot be used")),
            Self::Certificate(CertificateError::Rows(error)) if error.may_be_discrete() => {
                (Box::new(error), Some("rows repeat, wanted discrete=True if the encoder has few outputs"))
            }
            Self::Certificate(error) => (Box::new(error), None),
        };
        match (name, what) {
            (None, None) => raised(error.as_ref()),
            (None, Some(what)) => in_context(what, error.as_ref()),
            (Some(name), None) => in_context(&format!("{name} cannot be certified"), error.as_ref()),
            (Some(name), Some(what)) => {
                in_context(&format!("{name} cannot be certified: {what}"), error.as_ref())
            }
        }
    }
}

/// A query whose numbers have been copied out of Python.
struct Copied {
    name: Option<String>,
    samples: (Vec<f32>, usize),
    pilot: (Vec<f32>, usize),
    label: Option<String>,
    item: Option<usize>,
    excluded: Vec<usize>,
}

impl Query<'_> {
    fn copied(self) -> PyResult<Copied> {
        let copy = |rows: &PyReadonlyArray2<'_, f32>| -> PyResult<(Vec<f32>, usize)> {
            Ok((rows.as_slice()?.to_vec(), rows.shape()[1]))
        };
        let (samples, pilot) = (copy(&self.samples)?, copy(&self.pilot)?);
        let Self { name, label, item, excluded, .. } = self;
        Ok(Copied { name, samples, pilot, label, item, excluded })
    }
}

/// Settings after their check at the door.
struct Checked<'a> {
    gallery: &'a Gallery,
    gallery_samples: Option<SampleCount>,
    procedure: Procedure,
    norm_bound: NormBound,
    excess: Excess,
    components: Components,
    outputs: Outputs,
    threads: NonZeroUsize,
}

impl<'a> Checked<'a> {
    fn new(settings: &Settings, gallery: &'a Gallery) -> PyResult<Self> {
        let (sigma, alpha) = (parameters::sigma(settings.sigma)?, parameters::alpha(settings.alpha)?);
        let names: Vec<CertificateName> = settings
            .certificates
            .iter()
            .map(|name| parameters::certificate(name))
            .collect::<PyResult<_>>()?;
        let norm_bound = parameters::norm_bound(settings.norm_bound)?;
        let components = parameters::components(settings.non_negative);
        gallery.check(sigma, gallery.gallery().dimension(), norm_bound, components)?;
        let behind = settings.gallery_samples.map(parameters::sample_count).transpose()?;
        let target = settings.target_radius.map(parameters::target_radius).transpose()?;
        check_depth(&names, settings.top_k, target)
            .and_then(|()| check_bets(&names, target, settings.replan_bets))
            .map_err(|error| raised(&error))?;
        // Every query brings its own samples, and its procedure their numbers.
        let (pilot, samples) = (parameters::sample_count(1)?, parameters::sample_count(1)?);
        let (certificates, top_k, target_radius) = (names, settings.top_k, target);
        Ok(Self {
            gallery,
            gallery_samples: behind.or(gallery.samples_behind()),
            procedure: Procedure {
                sigma,
                alpha,
                pilot,
                samples,
                certificates,
                top_k,
                target_radius,
                replan_bets: settings.replan_bets,
            },
            norm_bound,
            excess: parameters::excess(&settings.excess)?,
            components,
            outputs: if settings.discrete { Outputs::Discrete } else { Outputs::Continuous },
            threads: settings.threads.try_into().map_err(|_| refused("threads is 0, wanted at least 1"))?,
        })
    }

    fn answer(&self, query: Copied) -> Result<Answer, Fault> {
        let make = |(values, dimension)| {
            let samples = Samples::new(values, dimension, self.norm_bound, self.excess)?;
            Ok(samples.with(self.components))
        };
        let certifying = make(query.samples).map_err(Fault::Samples)?;
        let pilot = make(query.pilot).map_err(Fault::Pilot)?;
        let certifier = QueryCertifier::new(&self.procedure, self.gallery.gallery());
        let certifier = certifier.gallery_samples(self.gallery_samples);
        let sampled = certifier.certifier().sampled(pilot, certifying, self.outputs)?;
        // What is retrieved is decided by all samples, also where a target radius takes fewer.
        let mean = sampled.certifying.mean();
        let relevant = match (query.item, &query.label) {
            (Some(item), _) => Relevant::Item(item),
            (None, Some(name)) => Relevant::Label(name),
            (None, None) => Relevant::Retrieved(self.procedure.retriever()),
        };
        let asked = pipeline::Query { relevant, excluded: &query.excluded };
        let answered = certifier.answer_sampled(&asked, sampled)?;
        let Answered { label, relevance, outcomes, deeper, decision, .. } = answered;
        let gallery = certifier.gallery();
        let found = || label.map(|label| gallery.label_name(label).to_owned());
        let label = if query.item.is_some() { None } else { query.label.or_else(found) };
        let row = |neighbour: Neighbour| neighbour.row;
        let (retrieved, nearest_wrong) = certifier.nearest_and_nearest_wrong(&mean, &relevance)?;
        let (retrieved, nearest_wrong) = (retrieved.map(row), nearest_wrong.map(row));
        let outcome = |outcome: certificate::Outcome| {
            let half_space = outcome.name == CertificateName::HalfSpace;
            let deeper = deeper.iter().filter(|_| half_space).map(|&verdict| parameters::verdict(verdict));
            described(&outcome).with_deeper(deeper.collect()).decided(decision)
        };
        let outcomes = outcomes.into_iter().map(outcome).collect();
        Ok(Answer { label, retrieved, nearest_wrong, plain: None, outcomes })
    }
}

/// An outcome with its chain of numbers.
pub(crate) fn described(found: &certificate::Outcome) -> Outcome {
    let (verdict, radius) = parameters::verdict(found.verdict);
    let steps = found
        .explain
        .steps()
        .iter()
        .map(|step| {
            let value = match &step.value {
                StepValue::Number(value) => Value::Number(*value),
                StepValue::Count(value) => Value::Count(*value),
                StepValue::Text(value) => Value::Text(value.clone()),
                StepValue::List(values) => Value::List(values.clone()),
            };
            let (quantity, statement) = (step.quantity.to_string(), step.statement.to_string());
            let meaning = statement_in_words(&statement);
            (quantity, value, step.value.to_string(), statement, meaning)
        })
        .collect();
    Outcome {
        certificate: found.name.as_str(),
        verdict,
        radius,
        samples: found.samples,
        steps,
        deeper: Vec::new(),
        decision: None,
    }
}

/// Certifies queries on several threads; the answers do not depend on how many.
#[pyfunction]
pub(crate) fn certify<'py>(
    py: Python<'py>,
    queries: Vec<Query<'py>>,
    gallery: &Bound<'py, Gallery>,
    settings: Settings,
) -> PyResult<Vec<Answer>> {
    let gallery = gallery.get();
    let checked = Checked::new(&settings, gallery)?;
    let queries: Vec<Copied> = queries.into_iter().map(Query::copied).collect::<PyResult<_>>()?;
    let names: Vec<Option<String>> = queries.iter().map(|query| query.name.clone()).collect();
    // Each is handed over once, and its samples go when it is answered.
    let queries: Vec<_> = queries.into_iter().map(|query| Mutex::new(Some(query))).collect();
    let answers = interruptible(py, None, |observer| {
        let queue = WorkQueue { pieces: queries.len(), before: 0, threads: checked.threads, observer };
        queue.collect(|place| {
            let query = queries[place].lock().expect("no holder of this lock can panic").take();
            let query = query.expect("a queue gives each piece once");
            checked.answer(query).map_err(|fault| Ended::Failed { place, fault })
        })
    })?;
    answers.map_err(|ended| match ended {
        Ended::Failed { place, fault } => fault.of(names[place].as_deref()),
        // Whoever stops the work has raised the reason already.
        Ended::Stopped(stopped) => PyKeyboardInterrupt::new_err(stopped.to_string()),
    })
}

/// Why there are no answers.
enum Ended {
    Failed { place: usize, fault: Fault },
    Stopped(Stopped),
}

impl From<Stopped> for Ended {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}
