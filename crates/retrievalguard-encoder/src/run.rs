//! What decides the results of a run: one description for its journal, its tables, its parts on other machines, its report
//! and Python.
//!
//! A description holds digests and parameters and no path, so the same inputs have the same description wherever they are
//! and however they were named.

use std::num::NonZeroUsize;

use retrievalguard::certificate::CertificateName;
pub use retrievalguard::certificate::Retriever;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::Differences;
use retrievalguard::storage::manifest::StorageError;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{
    Alpha, Components, Embedder, Excess, NormBound, SampleCount, Seed, Sigma, TargetRadius,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::check::EncoderCheck;
use crate::engine::OnnxEmbedder;
use crate::graph::bound::NetworkBound;
use crate::pipeline::{check_bets, check_depth};

/// Version of [`RunDescription`]; descriptions of format 1 do not name their format.
pub const RUN_FORMAT: u32 = 2;

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// It does not say its format, as none did before format 2.
    #[error("the description of the run names no format, wanted {RUN_FORMAT}")]
    Unversioned,
    /// It is of another format.
    #[error("the description of the run has format {found}, wanted {RUN_FORMAT}")]
    Format {
        /// Its format.
        found: Value,
    },
    /// A field is missing or holds something else.
    #[error("the description of the run cannot be used")]
    Json(#[from] serde_json::Error),
    /// It says more, or says it otherwise, than a description of this format.
    #[error("the description of the run is inconsistent: {0}")]
    Other(Differences),
    /// Two of its fields contradict each other.
    #[error("the description of the run has {field} {found}, wanted {wanted}")]
    Contradiction {
        /// Which field.
        field: &'static str,
        /// What was found.
        found: String,
        /// What the other fields want.
        wanted: String,
    },
    /// The certificates do not come from noise.
    #[error("the run was certified by a Lipschitz bound, wanted one with noise")]
    NotSmoothed,
}

/// What makes a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunCommand {
    /// Pictures, an encoder and a gallery.
    Certify,
    /// Arrays of samples that someone else has drawn.
    CertifyArrays,
}

/// The encoder, and who runs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EncoderDescription {
    /// Digest of the model file.
    pub model: Digest,
    /// Whether it computes with small integers; a certificate is then about the quantised network.
    pub quantised: bool,
    /// Digest of the model config: preprocessing and normalisation.
    pub contract: Digest,
    /// Length of its embeddings.
    pub dimension: usize,
    /// Norm bound `F` of its embeddings.
    pub norm_bound: NormBound,
    /// Whether negative components of its embeddings are set to zero.
    #[serde(default, skip_serializing_if = "Components::is_any")]
    pub components: Components,
    /// Who computes; last digits depend on it.
    pub engine: String,
    /// How it was settled that it is a function of each picture alone; none in a run that was upgraded from format 1.
    pub encoder_check: Option<EncoderCheck>,
}

impl EncoderDescription {
    /// Describes an encoder that is open.
    pub fn new(embedder: &OnnxEmbedder) -> Self {
        let digest = |text: &str| text.parse().expect("hashes of models and model configs are SHA-256");
        Self {
            model: digest(&embedder.facts().hash),
            quantised: embedder.facts().quantised,
            contract: digest(&embedder.model_config().hash()),
            dimension: embedder.dimension(),
            norm_bound: embedder.norm_bound(),
            components: embedder.components(),
            engine: embedder.report().to_string(),
            encoder_check: Some(embedder.check().clone()),
        }
    }

    /// The description of something else that this encoder decides, as journals have it: the encoder by the keys that tell it
    /// from others, beside further ones.
    pub(crate) fn beside(&self, mut further: Value) -> Value {
        let Self { model, contract, components, engine, encoder_check, .. } = self;
        if !components.is_any() {
            further["components"] = serde_json::to_value(components).expect("components are a word");
        }
        further["model"] = model.to_string().into();
        further["contract"] = contract.to_string().into();
        further["engine"] = engine.as_str().into();
        further["encoder_check"] = serde_json::to_value(encoder_check).expect("a check is words");
        further
    }
}

/// The gallery that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GalleryDescription {
    /// Stands for its vectors, names, labels and how they were made, see [`StoredGallery::digest`].
    pub digest: Digest,
    /// Number of items.
    pub items: usize,
    /// Samples behind each vector, 0 for embeddings of clean pictures, none if unknown.
    pub samples: Option<u32>,
    /// Largest norm of a stored vector; radii of half-spaces have a ceiling that depends on it.
    pub largest_norm: f64,
    /// Views of each item; none where an item is one vector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub views: Option<usize>,
}

impl GalleryDescription {
    /// Describes a stored gallery.
    pub fn new(stored: &StoredGallery) -> Result<Self, StorageError> {
        Ok(Self {
            digest: stored.digest()?,
            items: stored.gallery().item_count(),
            samples: stored.provenance().samples,
            largest_norm: stored.largest_norm()?,
            views: stored.provenance().views.as_ref().map(|set| set.views().len()),
        })
    }
}

/// How one query is certified: everything but the query, the noise and the gallery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Procedure {
    /// Noise level.
    pub sigma: Sigma,
    /// Failure probability of one certificate.
    pub alpha: Alpha,
    /// Samples on which every choice is made.
    pub pilot: SampleCount,
    /// Certifying samples; the cap if a target radius is given.
    pub samples: SampleCount,
    /// The certificates wanted, in order, each once.
    pub certificates: Vec<CertificateName>,
    /// Radii for Recall@1 to Recall@k under `half-space`.
    pub top_k: usize,
    /// A radius to decide with as few samples as possible, under the only certificate.
    pub target_radius: Option<TargetRadius>,
    /// Whether bets of `half-space` are planned again while samples come in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replan_bets: bool,
}

impl Procedure {
    /// The retriever that answers: the one that all certificates speak of, the mean if they speak of several.
    pub fn retriever(&self) -> Retriever {
        match retrievers(&self.certificates)[..] {
            [retriever] => retriever,
            _ => Retriever::Mean,
        }
    }

    /// Whether a query whose label is known has a pilot: not where nothing is left to choose.
    pub fn draws_pilot(&self) -> bool {
        self.target_radius.is_none() || self.retriever() != Retriever::Pairwise
    }
}

/// Certificates from noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Smoothed {
    /// How each query is certified.
    #[serde(flatten)]
    pub procedure: Procedure,
    /// Which retrievers the certificates speak of, in order, each once.
    pub retrievers: Vec<Retriever>,
    /// Root of the noise.
    pub seed: Seed,
    /// Whether embeddings above the norm bound are projected instead of refused.
    pub project: bool,
}

impl Smoothed {
    /// A run of this procedure.
    pub fn new(procedure: Procedure, seed: Seed, excess: Excess) -> Self {
        let retrievers = retrievers(&procedure.certificates);
        Self { procedure, retrievers, seed, project: excess == Excess::Project }
    }

    /// What happens to embeddings above the norm bound.
    pub fn excess(&self) -> Excess {
        if self.project { Excess::Project } else { Excess::Refuse }
    }
}

fn retrievers(certificates: &[CertificateName]) -> Vec<Retriever> {
    let mut found: Vec<Retriever> = certificates.iter().map(|&name| Retriever::of(name)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Certificates from an encoder whose outputs move no faster than a bound times its inputs: no noise, no chance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LipschitzBounded {
    /// The certificates wanted, in order, each once.
    pub certificates: Vec<CertificateName>,
    /// Radii for Recall@1 to Recall@k.
    pub top_k: NonZeroUsize,
    /// How many right items may stand together against a wrong one.
    pub mixtures: NonZeroUsize,
    /// What the verifier found in the encoder's weights.
    pub lipschitz: NetworkBound,
}

/// What the certificates rest on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "lowercase")]
pub enum Method {
    /// Noise.
    Smoothed(Smoothed),
    /// A bound on the encoder itself.
    Lipschitz(LipschitzBounded),
}

/// Everything that decides the tables of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunDescription {
    /// Version of the description, [`RUN_FORMAT`].
    pub format: u32,
    /// What makes the tables.
    pub command: RunCommand,
    /// Version of the tool.
    pub tool: String,
    /// The encoder.
    #[serde(flatten)]
    pub encoder: EncoderDescription,
    /// Digest of the queries: identities, labels, boxes and pictures.
    pub queries: Digest,
    /// Queries that are kept from finding themselves.
    pub leave_one_out: usize,
    /// Digest of the rows of the gallery that each query must not see.
    pub excluded_rows: Digest,
    /// The gallery that is searched.
    pub gallery: GalleryDescription,
    /// What the certificates rest on.
    #[serde(flatten)]
    pub method: Method,
}

impl RunDescription {
    /// The description as JSON.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a description is strings and finite numbers")
    }

    /// Stands for everything that decides the run's results.
    pub fn digest(&self) -> Digest {
        Digest::of_json(&self.to_value())
    }

    /// Takes a description of this format that says nothing else and does not contradict itself.
    pub fn parse(value: &Value) -> Result<Self, DescriptionError> {
        match value.get("format") {
            None => return Err(DescriptionError::Unversioned),
            Some(format) if *format != RUN_FORMAT => {
                return Err(DescriptionError::Format { found: format.clone() });
            }
            Some(_) => {}
        }
        let description = Self::deserialize(value)?;
        let differences = Differences::between(value, &description.to_value());
        if !differences.0.is_empty() {
            return Err(DescriptionError::Other(differences));
        }
        description.check()?;
        Ok(description)
    }

    fn check(&self) -> Result<(), DescriptionError> {
        let contradiction = |field, found: &dyn std::fmt::Debug, wanted: &dyn std::fmt::Debug| {
            let (found, wanted) = (format!("{found:?}"), format!("{wanted:?}"));
            Err(DescriptionError::Contradiction { field, found, wanted })
        };
        let names = self.certificates();
        let mut ordered = names.to_vec();
        ordered.sort_unstable();
        ordered.dedup();
        if names != ordered || names.is_empty() {
            return contradiction("certificates", &names, &"at least one, in order, each once");
        }
        let smoothed = match &self.method {
            Method::Smoothed(smoothed) => smoothed,
            Method::Lipschitz(bounded) => {
                if names.iter().any(|name| name.lipschitz().is_none()) {
                    return contradiction("certificates", &names, &"lipschitz and lipschitz-margin only");
                }
                let NetworkBound { constant, double_error, .. } = &bounded.lipschitz;
                let numbers = [*constant, double_error.slope, double_error.offset];
                if !(numbers.iter().all(|number| number.is_finite() && *number >= 0.0) && *constant > 0.0) {
                    return contradiction("lipschitz", &numbers, &"a finite constant above 0 and errors");
                }
                return Ok(());
            }
        };
        if names.iter().any(|name| name.lipschitz().is_some()) {
            return contradiction("certificates", &names, &"certificates from samples only");
        }
        let wanted = retrievers(names);
        if smoothed.retrievers != wanted {
            return contradiction("retrievers", &smoothed.retrievers, &wanted);
        }
        let Procedure { top_k, target_radius, replan_bets, .. } = smoothed.procedure;
        if check_bets(names, target_radius, replan_bets).is_err() {
            return contradiction(
                "replan_bets",
                &replan_bets,
                &"half-space without a target radius beside it",
            );
        }
        if check_depth(names, top_k, target_radius).is_err() {
            return contradiction(
                "certificates",
                &names,
                &"one of half-space, vote and pairwise beside a target radius, half-space beside top_k",
            );
        }
        Ok(())
    }

    /// The certificates of every row, in order, each once.
    pub fn certificates(&self) -> &[CertificateName] {
        match &self.method {
            Method::Smoothed(smoothed) => &smoothed.procedure.certificates,
            Method::Lipschitz(bounded) => &bounded.certificates,
        }
    }

    /// Noise level of the queries; none without noise.
    pub fn sigma(&self) -> Option<Sigma> {
        match &self.method {
            Method::Smoothed(smoothed) => Some(smoothed.procedure.sigma),
            Method::Lipschitz(_) => None,
        }
    }

    /// Radii for Recall@1 to Recall@k.
    pub fn top_k(&self) -> usize {
        match &self.method {
            Method::Smoothed(smoothed) => smoothed.procedure.top_k,
            Method::Lipschitz(bounded) => bounded.top_k.get(),
        }
    }

    /// What a run with noise has and no other.
    pub fn smoothed(&self) -> Result<&Smoothed, DescriptionError> {
        match &self.method {
            Method::Smoothed(smoothed) => Ok(smoothed),
            Method::Lipschitz(_) => Err(DescriptionError::NotSmoothed),
        }
    }
}

/// What decided a table that was made of arrays: nobody knows where the samples came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraysDescription {
    /// Version of the description, [`RUN_FORMAT`].
    pub format: u32,
    /// What made the table.
    pub command: RunCommand,
    /// Version of the tool.
    pub tool: String,
    /// Noise level.
    pub sigma: Sigma,
    /// Failure probability of one certificate.
    pub alpha: Alpha,
    /// The certificates of each row, in order, each once.
    pub certificates: Vec<CertificateName>,
    /// Radii for Recall@1 to Recall@k under `half-space`.
    pub top_k: usize,
    /// A radius that was decided, under the only certificate.
    pub target_radius: Option<TargetRadius>,
}

/// What a table says of the run behind it.
#[derive(Clone, Debug, PartialEq)]
pub enum TableDescription {
    /// A run over pictures.
    Run(Box<RunDescription>),
    /// Certificates of arrays.
    Arrays(ArraysDescription),
}

impl TableDescription {
    /// Takes either description.
    pub fn parse(value: &Value) -> Result<Self, DescriptionError> {
        if value.get("command") != Some(&serde_json::to_value(RunCommand::CertifyArrays)?) {
            return RunDescription::parse(value).map(Box::new).map(Self::Run);
        }
        match value.get("format") {
            Some(format) if *format == RUN_FORMAT => Ok(Self::Arrays(Deserialize::deserialize(value)?)),
            Some(format) => Err(DescriptionError::Format { found: format.clone() }),
            None => Err(DescriptionError::Unversioned),
        }
    }

    /// The description as JSON.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Run(run) => run.to_value(),
            Self::Arrays(arrays) => {
                serde_json::to_value(arrays).expect("a description is strings and finite numbers")
            }
        }
    }

    /// Failure probability of one certificate; none if no chance is involved.
    pub fn alpha(&self) -> Option<Alpha> {
        match self {
            Self::Run(run) => run.smoothed().ok().map(|smoothed| smoothed.procedure.alpha),
            Self::Arrays(arrays) => Some(arrays.alpha),
        }
    }

    /// The run over pictures.
    pub fn run(&self) -> Option<&RunDescription> {
        match self {
            Self::Run(run) => Some(run),
            Self::Arrays(_) => None,
        }
    }
}

/// Digest of the rows of a gallery that each query must not see.
pub fn excluded_digest<'a>(excluded: impl Iterator<Item = &'a [usize]>) -> Digest {
    Digest::of_json(&serde_json::json!(excluded.collect::<Vec<_>>()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::graph::bound::ErrorBound;
    use serde_json::json;

    /// Certificates without noise.
    fn bounded() -> LipschitzBounded {
        let error = ErrorBound { slope: 1e-15, offset: 1e-12 };
        LipschitzBounded {
            certificates: vec![CertificateName::Lipschitz, CertificateName::LipschitzMargin],
            top_k: NonZeroUsize::MIN,
            mixtures: NonZeroUsize::MIN,
            lipschitz: NetworkBound {
                constant: 1.5,
                layers: vec![],
                double_error: error,
                single_error: error,
            },
        }
    }

    /// A run of these certificates.
    pub(crate) fn description(certificates: Vec<CertificateName>) -> RunDescription {
        let procedure = Procedure {
            sigma: Sigma::new(0.1).unwrap(),
            alpha: Alpha::new(0.01).unwrap(),
            pilot: SampleCount::new(60).unwrap(),
            samples: SampleCount::new(1000).unwrap(),
            certificates,
            top_k: 1,
            target_radius: None,
            replan_bets: false,
        };
        RunDescription {
            format: RUN_FORMAT,
            command: RunCommand::Certify,
            tool: "0.1.0".into(),
            encoder: EncoderDescription {
                model: Digest::of_bytes(b"model"),
                quantised: false,
                contract: Digest::of_bytes(b"contract"),
                dimension: 16,
                norm_bound: NormBound::UNIT,
                components: Components::Any,
                engine: "rten 1".into(),
                encoder_check: None,
            },
            queries: Digest::of_bytes(b"queries"),
            leave_one_out: 0,
            excluded_rows: Digest::of_bytes(b"rows"),
            gallery: GalleryDescription {
                digest: Digest::of_bytes(b"gallery"),
                items: 30,
                samples: Some(100),
                largest_norm: 0.9,
                views: None,
            },
            method: Method::Smoothed(Smoothed::new(procedure, Seed::new(7), Excess::Refuse)),
        }
    }

    #[test]
    fn a_description_comes_back_and_its_fields_are_flat() {
        let written = description(vec![CertificateName::HalfSpace, CertificateName::Vote]);
        let value = written.to_value();
        assert_eq!(RunDescription::parse(&value).unwrap(), written);
        for (field, wanted) in [
            ("format", json!(2)),
            ("command", json!("certify")),
            ("method", json!("smoothed")),
            ("retrievers", json!(["mean", "vote"])),
            ("sigma", json!(0.1)),
            ("samples", json!(1000)),
            ("target_radius", json!(null)),
            ("engine", json!("rten 1")),
            ("project", json!(false)),
        ] {
            assert_eq!(value[field], wanted, "{field}");
        }
        let bounded = RunDescription { method: Method::Lipschitz(bounded()), ..written };
        let value = bounded.to_value();
        assert!(value.get("sigma").is_none() && value["method"] == "lipschitz");
        for (field, wrong) in [
            ("certificates", json!(["lipschitz-margin", "lipschitz"])),
            ("certificates", json!(["lipschitz", "vote"])),
            ("certificates", json!(["half-space"])),
            ("top_k", json!(0)),
        ] {
            let mut value = value.clone();
            value[field] = wrong.clone();
            assert!(RunDescription::parse(&value).is_err(), "{field} {wrong}");
        }
        let mut standing = value.clone();
        standing["lipschitz"]["constant"] = json!(0.0);
        assert!(matches!(RunDescription::parse(&standing), Err(DescriptionError::Contradiction { .. })));
        assert_eq!(RunDescription::parse(&value).unwrap(), bounded);
        assert!(matches!(bounded.smoothed(), Err(DescriptionError::NotSmoothed)));
    }

    #[test]
    fn journals_tell_encoders_apart_by_four_keys() {
        let encoder = description(vec![CertificateName::HalfSpace]).encoder;
        let described = encoder.beside(json!({ "command": "index", "samples": 3 }));
        let wanted = json!({
            "command": "index",
            "samples": 3,
            "model": Digest::of_bytes(b"model"),
            "contract": Digest::of_bytes(b"contract"),
            "engine": "rten 1",
            "encoder_check": null,
        });
        assert_eq!(described, wanted);
    }

    #[test]
    fn descriptions_that_are_not_of_this_format_are_refused() {
        let value = description(vec![CertificateName::HalfSpace, CertificateName::Vote]).to_value();
        let with = |field: &str, new: Value| {
            let mut value = value.clone();
            value[field] = new;
            RunDescription::parse(&value).unwrap_err()
        };
        assert!(matches!(with("format", json!(3)), DescriptionError::Format { .. }));
        assert!(matches!(with("sigma", json!(-1.0)), DescriptionError::Json(_)));
        assert!(matches!(with("colour", json!("red")), DescriptionError::Other(_)));
        assert!(matches!(with("retrievers", json!(["mean"])), DescriptionError::Contradiction { .. }));
        assert!(matches!(with("top_k", json!(5)), DescriptionError::Contradiction { .. }));
        let order = with("certificates", json!(["vote", "half-space"]));
        assert!(order.to_string().contains("certificates"), "{order}");
        let mut old = value.clone();
        old.as_object_mut().unwrap().remove("format");
        assert!(matches!(RunDescription::parse(&old), Err(DescriptionError::Unversioned)));
    }
}
