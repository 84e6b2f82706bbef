//! What a run of certificates is asked for: one set of options with its checks, whoever reads it from flags or arguments.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use retrievalguard::certificate::{
    CertificateError, CertificateName, LipschitzName, Retriever, fewest_to_decide,
};
use retrievalguard::storage::manifest::Provenance;
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};
use retrievalguard::{Alpha, Excess, ParameterError, SampleCount, Seed, Sigma, TargetRadius};

use super::{CertifyRequest, LeaveOneOut};
use crate::dataset::{BrokenPictures, Selected};
use crate::engine::OnnxEmbedder;
use crate::receipt::ReceiptsTo;
use crate::run::{LipschitzBounded, Method, Procedure, Smoothed};

/// Options that mean nothing together, or too little.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A target radius for more certificates than one, or for one that has no test of it.
    #[error("{}", self.spelled(str::to_owned))]
    UndecidedCertificates,
    /// Radii for Recall@k under another certificate.
    #[error("{}", self.spelled(str::to_owned))]
    OtherCertificates,
    /// No query can be decided with so few samples.
    #[error("{}", self.spelled(str::to_owned))]
    CapTooLow {
        /// The most samples that may be drawn.
        cap: SampleCount,
        /// The fewest that decide a query.
        fewest: u32,
        /// The radius to decide.
        target: TargetRadius,
    },
    /// Bets are planned again where there are none.
    #[error("{}", self.spelled(str::to_owned))]
    NothingToReplan,
    /// Both of them.
    #[error("{}", self.spelled(str::to_owned))]
    TargetBesideTopK,
    /// Certificates from samples, of a gallery that has no noise level, and none was given.
    #[error("{}", self.spelled(str::to_owned))]
    NoSigma {
        /// Name of the gallery.
        gallery: String,
    },
    /// Certificates that need no noise, and a noise level.
    #[error("{}", self.spelled(str::to_owned))]
    NoiseUnwanted {
        /// The noise level.
        sigma: Sigma,
    },
    /// Certificates from samples and others together.
    #[error("{}", self.spelled(str::to_owned))]
    MixedCertificates,
    /// The encoder has no bound without which nothing is certified without noise.
    #[error("{}", self.spelled(str::to_owned))]
    NoBound {
        /// Name of the gallery.
        gallery: String,
        /// What the verifier says.
        why: String,
    },
    /// A number is out of its range.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The gallery is on disk, and what is asked for needs it in memory.
    #[error(transparent)]
    InMemoryOnly(CertificateError),
}

impl OptionsError {
    /// The message with the names of options as flags.
    pub fn as_flags(&self) -> String {
        self.spelled(|name| format!("--{}", name.replace('_', "-")))
    }

    fn spelled(&self, name: impl Fn(&str) -> String) -> String {
        let [target_radius, top_k, certificate, sigma, samples, replan_bets] =
            ["target_radius", "top_k", "certificate", "sigma", "samples", "replan_bets"].map(name);
        match self {
            Self::UndecidedCertificates => format!(
                "{target_radius} decides one certificate of half-space, vote and pairwise, wanted one {certificate} of these"
            ),
            Self::OtherCertificates => {
                format!(
                    "{top_k} applies to half-space only, or to lipschitz and lipschitz-margin; wanted no other {certificate}"
                )
            }
            Self::CapTooLow { cap, fewest, target } => format!(
                "{samples} is {cap}, too few for any query: {target_radius} {target} takes at least {fewest} samples even if all \
                 of them agree"
            ),
            Self::NothingToReplan => format!(
                "{replan_bets} is for the bets of half-space with a fixed number of samples, wanted that {certificate} and no {target_radius}"
            ),
            Self::TargetBesideTopK => {
                format!("{target_radius} decides recall@1, wanted no {top_k} beside it")
            }
            Self::NoSigma { gallery } => {
                format!("gallery `{gallery}` does not say its noise level, wanted {sigma}")
            }
            Self::NoiseUnwanted { sigma: found } => {
                format!(
                    "lipschitz and lipschitz-margin need no noise, found {sigma} {found}; wanted none, and a gallery without one"
                )
            }
            Self::MixedCertificates => format!(
                "lipschitz and lipschitz-margin need no noise, every other {certificate} does; wanted one kind at a time"
            ),
            Self::NoBound { gallery, why } => format!(
                "gallery `{gallery}` has no noise level, and without noise the encoder needs a bound: {why}; wanted such an \
                 encoder, or {sigma}"
            ),
            Self::Parameter(error) => error.to_string(),
            Self::InMemoryOnly(error) => error.to_string(),
        }
    }
}

/// The noise level that was given, or else that of the gallery; without either, queries have no noise.
///
/// A given one that is another is refused with the rest of the gallery's disagreements.
pub fn noise_of(given: Option<Sigma>, provenance: &Provenance) -> Option<Sigma> {
    given.or(provenance.sigma)
}

/// The certificates of a run that names none.
pub fn usual_certificates(sigma: Option<Sigma>) -> Vec<CertificateName> {
    match sigma {
        Some(_) => vec![CertificateName::HalfSpace],
        None => LipschitzName::ALL.map(CertificateName::from).to_vec(),
    }
}

/// Whether certificates need no noise; both kinds together are refused.
fn without_noise(certificates: &[CertificateName]) -> Result<bool, OptionsError> {
    let without = certificates.iter().filter(|name| name.lipschitz().is_some()).count();
    match without {
        0 => Ok(false),
        without if without == certificates.len() => Ok(true),
        _ => Err(OptionsError::MixedCertificates),
    }
}

/// Refuses a target radius and radii for Recall@k where they mean nothing.
pub fn check_depth(
    certificates: &[CertificateName],
    top_k: usize,
    target_radius: Option<TargetRadius>,
) -> Result<(), OptionsError> {
    if without_noise(certificates)? {
        return if target_radius.is_some() { Err(OptionsError::UndecidedCertificates) } else { Ok(()) };
    }
    let decidable = |name: &CertificateName| Retriever::of(*name).certificate() == *name;
    if target_radius.is_some() && !matches!(certificates, [name] if decidable(name)) {
        return Err(OptionsError::UndecidedCertificates);
    }
    if top_k > 1 && certificates != [CertificateName::HalfSpace] {
        return Err(OptionsError::OtherCertificates);
    }
    if target_radius.is_some() && top_k > 1 {
        return Err(OptionsError::TargetBesideTopK);
    }
    Ok(())
}

/// Refuses to plan bets again where there are none, or where they decide a target radius.
pub fn check_bets(
    certificates: &[CertificateName],
    target_radius: Option<TargetRadius>,
    replan_bets: bool,
) -> Result<(), OptionsError> {
    let bets = certificates.contains(&CertificateName::HalfSpace) && target_radius.is_none();
    if replan_bets && !bets { Err(OptionsError::NothingToReplan) } else { Ok(()) }
}

/// Samples of the pilot, unless the user says how many: few where they only choose the label, or the rule of a vote.
pub fn default_pilot(certificates: &[CertificateName], target_radius: Option<TargetRadius>) -> SampleCount {
    let chooses_little = |name: &CertificateName| match Retriever::of(*name) {
        Retriever::Mean => false,
        Retriever::Vote => target_radius.is_some(),
        Retriever::Pairwise | Retriever::Plain => true,
    };
    let count = if certificates.iter().all(chooses_little) { 20 } else { 200 };
    SampleCount::new(count).expect("a number above zero")
}

/// Refuses a number of samples with which no query could be decided.
pub fn check_cap(procedure: &Procedure) -> Result<(), OptionsError> {
    let Procedure { sigma, alpha, samples: cap, ref certificates, target_radius, .. } = *procedure;
    let (Some(target), [name]) = (target_radius, &certificates[..]) else { return Ok(()) };
    if Retriever::of(*name) == Retriever::Mean {
        return Ok(());
    }
    match fewest_to_decide(target, sigma, alpha) {
        Some(fewest) if fewest > cap.get() => Err(OptionsError::CapTooLow { cap, fewest, target }),
        Some(_) | None => Ok(()),
    }
}

/// Refuses what cannot be had of a gallery in shards, before a sample is drawn.
pub fn check_kind(procedure: &Procedure, gallery: GalleryRef<'_>) -> Result<(), OptionsError> {
    let Procedure { certificates, top_k, target_radius, .. } = procedure;
    let what = match gallery {
        GalleryRef::Memory(_) => None,
        GalleryRef::Shards(_) if certificates.contains(&CertificateName::HalfSpaceMean) => {
            Some("half-space-mean")
        }
        GalleryRef::Shards(_) if *top_k > 1 => Some("half-space for recall@2 and deeper"),
        GalleryRef::Shards(_) if target_radius.is_some() && procedure.retriever() == Retriever::Mean => {
            Some("a target radius of half-space")
        }
        GalleryRef::Shards(_) => None,
    };
    what.map_or(Ok(()), |what| Err(OptionsError::InMemoryOnly(CertificateError::InMemoryOnly(what))))
}

/// Everything about a run of certificates but its pictures, its encoder and its gallery.
#[derive(Clone, Debug)]
pub struct CertifyOptions {
    /// Failure probability of one certificate, or of all together.
    pub alpha: Alpha,
    /// Whether all certificates are to hold at once.
    pub simultaneous: bool,
    /// Samples on which every choice is made; [`default_pilot`] if none are given.
    pub pilot: Option<SampleCount>,
    /// Certifying samples; the cap if a target radius is given.
    pub samples: SampleCount,
    /// The certificates wanted.
    pub certificates: Vec<CertificateName>,
    /// Radii for Recall@1 to Recall@k under `half-space`, or without noise.
    pub top_k: usize,
    /// How many right items may stand together against a wrong one, without noise.
    pub mixtures: NonZeroUsize,
    /// A radius to decide with as few samples as possible, under the only certificate.
    pub target_radius: Option<TargetRadius>,
    /// Whether bets of `half-space` are planned again while samples come in.
    pub replan_bets: bool,
    /// Root of the noise.
    pub seed: Seed,
    /// Whether a query may find itself.
    pub leave_one_out: LeaveOneOut,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// What happens to broken pictures.
    pub broken: BrokenPictures,
    /// Folder in which the embeddings of noisy copies are kept.
    pub keep_samples: Option<PathBuf>,
    /// Where each query leaves a receipt.
    pub receipts: Option<ReceiptsTo>,
    /// How many threads work; the result does not depend on it.
    pub threads: NonZeroUsize,
    /// Noisy copies that go through the encoder together; the result does not depend on it.
    pub batch: NonZeroUsize,
}

impl CertifyOptions {
    /// Refuses options that mean nothing together, before anything is opened.
    pub fn check(&self) -> Result<(), OptionsError> {
        check_depth(&self.certificates, self.top_k, self.target_radius)?;
        check_bets(&self.certificates, self.target_radius, self.replan_bets)
    }

    /// How each of so many queries is certified.
    pub fn procedure(&self, sigma: Sigma, queries: usize) -> Result<Procedure, OptionsError> {
        let alpha = match self.simultaneous {
            true => self.alpha.share(SampleCount::new(queries as u64)?),
            false => self.alpha,
        };
        let procedure = Procedure {
            sigma,
            alpha,
            pilot: self.pilot.unwrap_or_else(|| default_pilot(&self.certificates, self.target_radius)),
            samples: self.samples,
            certificates: self.certificates.clone(),
            top_k: self.top_k,
            target_radius: self.target_radius,
            replan_bets: self.replan_bets,
        };
        check_cap(&procedure)?;
        Ok(procedure)
    }

    /// What the certificates of so many queries rest on: noise of this level, or without one a bound on the encoder.
    pub fn method(
        &self,
        sigma: Option<Sigma>,
        queries: usize,
        embedder: &OnnxEmbedder,
        gallery_name: &str,
    ) -> Result<Method, OptionsError> {
        let gallery = || gallery_name.to_owned();
        match (without_noise(&self.certificates)?, sigma) {
            (false, None) => Err(OptionsError::NoSigma { gallery: gallery() }),
            (true, Some(sigma)) => Err(OptionsError::NoiseUnwanted { sigma }),
            (false, Some(sigma)) => {
                let procedure = self.procedure(sigma, queries)?;
                Ok(Method::Smoothed(Smoothed::new(procedure, self.seed, self.excess)))
            }
            (true, None) => {
                let bound = embedder.lipschitz();
                let bound = bound
                    .map_err(|error| OptionsError::NoBound { gallery: gallery(), why: error.to_string() })?;
                let top_k = NonZeroUsize::new(self.top_k).unwrap_or(NonZeroUsize::MIN);
                Ok(Method::Lipschitz(LipschitzBounded {
                    certificates: self.certificates.clone(),
                    top_k,
                    mixtures: self.mixtures,
                    lipschitz: bound.clone(),
                }))
            }
        }
    }

    /// The request for these queries against a gallery and its name in messages.
    pub fn request<'a>(
        &'a self,
        sigma: Option<Sigma>,
        queries: &'a Selected,
        embedder: &'a OnnxEmbedder,
        (gallery, gallery_name): (&'a StoredGallery, &'a str),
    ) -> Result<CertifyRequest<'a>, OptionsError> {
        self.check()?;
        let method = self.method(sigma, queries.chosen.len(), embedder, gallery_name)?;
        if let Method::Smoothed(smoothed) = &method {
            check_kind(&smoothed.procedure, gallery.gallery())?;
        }
        Ok(CertifyRequest {
            queries: &queries.chosen,
            data_set: &queries.all,
            embedder,
            gallery,
            gallery_name,
            method,
            options: self,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> CertifyOptions {
        CertifyOptions {
            alpha: Alpha::new(0.01).unwrap(),
            simultaneous: false,
            pilot: SampleCount::new(20).ok(),
            samples: SampleCount::new(100).unwrap(),
            certificates: vec![CertificateName::HalfSpace],
            top_k: 1,
            mixtures: NonZeroUsize::MIN,
            target_radius: None,
            replan_bets: false,
            seed: Seed::new(0),
            leave_one_out: LeaveOneOut::Auto,
            excess: Excess::Refuse,
            broken: BrokenPictures::Fatal,
            keep_samples: None,
            receipts: None,
            threads: NonZeroUsize::MIN,
            batch: NonZeroUsize::MIN,
        }
    }

    #[test]
    fn options_that_mean_nothing_together_are_refused_in_flags_and_in_arguments() {
        let target = TargetRadius::new(0.1).ok();
        let both = vec![CertificateName::HalfSpace, CertificateName::Vote];
        let cases = [
            (
                CertifyOptions { target_radius: target, certificates: both.clone(), ..options() },
                "target_radius decides one",
            ),
            (
                CertifyOptions {
                    target_radius: target,
                    certificates: vec![CertificateName::PaperFrozen],
                    ..options()
                },
                "target_radius decides one",
            ),
            (
                CertifyOptions { top_k: 3, certificates: both.clone(), ..options() },
                "top_k applies to half-space only",
            ),
            (
                CertifyOptions { top_k: 3, target_radius: target, ..options() },
                "target_radius decides recall@1",
            ),
            (
                CertifyOptions { replan_bets: true, target_radius: target, ..options() },
                "replan_bets is for the bets",
            ),
            (
                CertifyOptions { replan_bets: true, certificates: vec![CertificateName::Vote], ..options() },
                "replan_bets is for the bets",
            ),
        ];
        for (refused, words) in cases {
            let error = refused.check().unwrap_err();
            assert!(error.to_string().starts_with(words), "{error}");
            let flags = format!("--{}", words.replacen('_', "-", 1));
            assert!(error.as_flags().starts_with(&flags), "{}", error.as_flags());
        }
        for sound in [
            options(),
            CertifyOptions { certificates: both, ..options() },
            CertifyOptions { top_k: 3, ..options() },
            CertifyOptions { replan_bets: true, top_k: 3, ..options() },
            CertifyOptions { target_radius: target, ..options() },
            CertifyOptions { target_radius: target, certificates: vec![CertificateName::Vote], ..options() },
            CertifyOptions {
                target_radius: target,
                certificates: vec![CertificateName::Pairwise],
                ..options()
            },
        ] {
            assert_eq!(sound.check(), Ok(()));
        }
        let silent = OptionsError::NoSigma { gallery: "g".to_owned() };
        assert_eq!(silent.as_flags(), "gallery `g` does not say its noise level, wanted --sigma");
        assert_eq!(silent.to_string(), "gallery `g` does not say its noise level, wanted sigma");
    }

    #[test]
    fn a_cap_below_what_could_decide_any_query_is_refused_before_a_sample_is_drawn() {
        let procedure = |certificate, samples| {
            let asked = CertifyOptions {
                certificates: vec![certificate],
                samples: SampleCount::new(samples).unwrap(),
                pilot: None,
                target_radius: TargetRadius::new(0.25).ok(),
                ..options()
            };
            asked.procedure(Sigma::new(0.25).unwrap(), 1)
        };
        for certificate in [CertificateName::Vote, CertificateName::Pairwise] {
            let error = procedure(certificate, 37).unwrap_err();
            assert!(
                error.to_string().contains("samples is 37") && error.to_string().contains("at least 38"),
                "{error}"
            );
            assert_eq!(procedure(certificate, 38).unwrap().pilot.get(), 20);
        }
        assert_eq!(procedure(CertificateName::HalfSpace, 37).unwrap().pilot.get(), 200);
    }

    #[test]
    fn certificates_that_hold_at_once_share_alpha_over_the_queries() {
        let sigma = Sigma::new(0.25).unwrap();
        let alpha = |simultaneous, queries| {
            CertifyOptions { simultaneous, ..options() }
                .procedure(sigma, queries)
                .map(|asked| asked.alpha.get())
        };
        assert_eq!(alpha(false, 50).unwrap(), 0.01);
        assert!((alpha(true, 50).unwrap() - 0.0002).abs() < 1e-12);
        assert!(alpha(true, 0).is_err());
    }
}
