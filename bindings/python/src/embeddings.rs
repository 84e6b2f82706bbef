//! Certificates without noise, from one embedding per query.

use std::num::NonZeroUsize;

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use retrievalguard::certificate::{
    self, CertificateName, ConstantOrigin, LipschitzBound, LipschitzCertifier, LipschitzName, Mixtures,
};
use retrievalguard::gallery::{Neighbour, Positives, Relevance};
use retrievalguard::{ForwardError, LipschitzConstant};

use crate::certify::{Answer, described};
use crate::errors::{in_context, raised, refused};
use crate::gallery::Gallery;
use crate::parameters;

/// One query, as Python hands it over.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Embedded<'py> {
    name: Option<String>,
    embedding: PyReadonlyArray1<'py, f64>,
    label: Option<String>,
    item: Option<usize>,
    excluded: Vec<usize>,
}

/// What holds for all queries.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Bounded {
    certificates: Vec<String>,
    lipschitz: f64,
    forward_error: f64,
    top_k: usize,
    mixtures: usize,
}

/// Certifies embeddings of an encoder that moves no faster than a constant.
#[pyfunction]
pub(crate) fn certify_embeddings<'py>(
    py: Python<'py>,
    queries: Vec<Embedded<'py>>,
    gallery: &Bound<'py, Gallery>,
    settings: Bounded,
) -> PyResult<Vec<Answer>> {
    let gallery = gallery.get().gallery();
    let positive = |what: &str, count: usize| {
        NonZeroUsize::new(count).ok_or_else(|| refused(format!("{what} is 0, wanted at least 1")))
    };
    let bound = LipschitzBound {
        constant: LipschitzConstant::new(settings.lipschitz).map_err(|error| raised(&error))?,
        forward_error: ForwardError::new(settings.forward_error).map_err(|error| raised(&error))?,
        origin: ConstantOrigin::Stated,
    };
    let mixtures = match positive("mixtures", settings.mixtures)? {
        NonZeroUsize::MIN => Mixtures::One,
        most => Mixtures::UpTo(most),
    };
    let certifier =
        LipschitzCertifier::new(gallery, bound).top_k(positive("top_k", settings.top_k)?).mixtures(mixtures);
    let names: Vec<LipschitzName> = settings
        .certificates
        .iter()
        .map(|name| name.parse().map_err(|error: certificate::CertificateError| raised(&error)))
        .collect::<PyResult<_>>()?;
    let mut answers = Vec::with_capacity(queries.len());
    for query in queries {
        let embedding = query.embedding.as_slice()?.to_vec();
        let Embedded { name, label, item, excluded, .. } = query;
        let answer = py.detach(|| answer(&certifier, &names, &embedding, (label, item), excluded));
        answers.push(answer.map_err(|error| match name {
            Some(name) => in_context(&format!("{name} cannot be certified"), &error),
            None => raised(&error),
        })?);
    }
    Ok(answers)
}

fn answer(
    certifier: &LipschitzCertifier<'_>,
    names: &[LipschitzName],
    embedding: &[f64],
    (label, item): (Option<String>, Option<usize>),
    excluded: Vec<usize>,
) -> Result<Answer, certificate::CertificateError> {
    let gallery = certifier.gallery();
    let unseen = Relevance::new(Positives::Absent, excluded).excluded;
    let found = certifier.retrieve(embedding, &unseen)?;
    let (positives, label) = match (item, label) {
        (Some(item), _) => (Positives::Item(item), None),
        (None, Some(name)) => {
            let known = gallery.label_named(&name);
            (known.map_or(Positives::Absent, Positives::Label), Some(name))
        }
        (None, None) => {
            let known = found.map(|found| gallery.label(found.row));
            let name = known.map(|label| gallery.label_name(label).to_owned());
            (known.map_or(Positives::Absent, Positives::Label), name)
        }
    };
    let relevance = Relevance::new(positives, unseen);
    let pair = gallery.nearest_positive_and_negative(embedding, |_| &relevance)?;
    let row = |neighbour: Neighbour| neighbour.row;
    let nearest_wrong = pair.first().and_then(|pair| pair.negative).map(row);
    let mut outcomes = Vec::new();
    certifier.certify_each(
        names,
        embedding,
        |_| &relevance,
        |_, found| {
            outcomes = found
                .into_iter()
                .map(|found| {
                    let deeper = found.verdicts.iter().skip(1).map(|&verdict| parameters::verdict(verdict));
                    let deeper = deeper.collect();
                    let outcome = certificate::Outcome {
                        name: CertificateName::from(found.name),
                        verdict: found.verdict(),
                        samples: 0,
                        explain: found.explain,
                    };
                    described(&outcome).with_deeper(deeper)
                })
                .collect();
        },
    )?;
    Ok(Answer { label, retrieved: found.map(row), nearest_wrong, plain: None, outcomes })
}
