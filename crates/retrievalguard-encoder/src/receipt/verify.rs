//! Makes the answer of a receipt again, and accepts nothing else.

use std::num::NonZeroUsize;

use retrievalguard::certificate::CertificateName;
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::{Difference, Differences};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Embedder, ParameterError, Picture, Samples, Smoother};
use serde_json::Value;

use super::body::{Fixed, GalleryFacts, NoiseFacts, Schedule};
use super::rounding::Rounding;
use super::{CertifiedAnswer, PictureFacts, Premises, Promise, Receipt};
use crate::engine::{EngineError, OnnxEmbedder};
use crate::picture::{PictureError, PictureLimits, RgbPicture};
use crate::pipeline::{
    Drawn, OptionsError, PipelineError, PlainCertifier, Query, QueryCertifier, Relevant, check_bets,
    check_depth, check_gallery, check_kind, input_values, uncertified, whole_items,
};
use crate::run::{LipschitzBounded, Procedure, Retriever};

/// Longest text of a difference that is shown.
const SHOWN: usize = 200;
/// Differences that are shown.
const LISTED: usize = 4;

/// The files, opened, that a receipt is held against.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The encoder; in double precision for a receipt without noise.
    pub embedder: &'a OnnxEmbedder,
    /// The gallery.
    pub gallery: &'a StoredGallery,
    /// Its name in messages.
    pub gallery_name: &'a str,
    /// The bytes of the picture's file.
    pub picture: &'a [u8],
    /// How many threads draw.
    pub threads: NonZeroUsize,
    /// Noisy copies that go through the encoder together.
    pub batch: NonZeroUsize,
}

/// What an auditor knows beforehand.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The commitment that was published before the answer.
    pub commitment: Option<Digest>,
    /// The challenge that was sent.
    pub challenge: Option<String>,
    /// The public key that must have signed.
    pub key: Option<Digest>,
    /// Whether an answer may differ by the last bits of another engine or processor.
    pub rounding: bool,
    /// The most samples that are drawn for its sake.
    pub most_samples: Option<u32>,
}

/// What was found to be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Who signed it, if anybody did.
    pub signed_by: Option<Digest>,
    /// Copies that count for or against the label depending on the last bits; none if every bit is the same.
    pub undecided: Option<u64>,
}

/// What a receipt says that is not so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It was changed after it had been sealed.
    #[error("the receipt was sealed with digest {found:.16}…, its fields have {wanted:.16}…")]
    Digest {
        /// The digest that it holds.
        found: Digest,
        /// That of its fields.
        wanted: Digest,
    },
    /// The signature is not that of its key.
    #[error("the signature is not that of key {key}")]
    Signature {
        /// The key.
        key: Digest,
    },
    /// Another key signed, or none.
    #[error("the receipt is signed by {}, wanted {wanted}", .found.map_or("nobody".to_owned(), |key| key.to_string()))]
    Signer {
        /// The key that signed.
        found: Option<Digest>,
        /// The key that should have.
        wanted: Digest,
    },
    /// The commitment is not to what it says.
    #[error("the commitment is {}, that to its fields, seed and salt is {}", shown(.found), shown(.wanted))]
    Commitment {
        /// The commitment that it holds.
        found: Option<Digest>,
        /// The commitment to what it says.
        wanted: Option<Digest>,
    },
    /// Another commitment was published.
    #[error("the commitment is {}, wanted {wanted}", shown(.found))]
    Published {
        /// The commitment that it holds.
        found: Option<Digest>,
        /// The one that was published.
        wanted: Digest,
    },
    /// Another challenge was sent.
    #[error("the challenge is {found:?}, wanted {wanted:?}")]
    Challenge {
        /// The challenge that it holds.
        found: Option<String>,
        /// The one that was sent.
        wanted: String,
    },
    /// Its fields contradict each other.
    #[error("{field} is {found}, wanted {wanted}")]
    Contradiction {
        /// Which field.
        field: &'static str,
        /// What it says.
        found: String,
        /// What the others want.
        wanted: String,
    },
    /// It is about other files.
    #[error("the receipt is not about these files: {0}")]
    Files(String),
    /// There is no such answer.
    #[error("the computation that the receipt is about ends without an answer")]
    NoAnswer(#[source] PipelineError),
    /// Other samples were drawn.
    #[error("other samples were drawn: {0}")]
    Drawn(String),
    /// The answer is another.
    #[error("the answer of `{certificate}` is another: {differences}")]
    Answer {
        /// Which certificate.
        certificate: CertificateName,
        /// In what it differs from the one that was computed.
        differences: String,
    },
}

fn shown(digest: &Option<Digest>) -> String {
    digest.map_or("none".to_owned(), |digest| digest.to_string())
}

/// Why a receipt was not verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It is not true.
    #[error("the receipt is refused")]
    Refused(#[from] Refusal),
    /// A parameter is out of its range.
    #[error("the receipt has a parameter that no run has")]
    Parameter(#[from] ParameterError),
    /// Parameters that mean nothing together.
    #[error("the receipt has parameters that no run has")]
    Options(#[from] OptionsError),
    /// It asks for more work than the auditor allows.
    #[error("the receipt rests on up to {found} samples, wanted at most {most}")]
    Samples {
        /// Samples of the receipt.
        found: u32,
        /// The most that are drawn.
        most: u32,
    },
    /// The picture cannot be prepared.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// The encoder does not run, or has no bound.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Files cannot be used.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

/// In what one value differs from another, what matters most first, in a few words; empty if in nothing.
pub(super) fn differences(found: &Value, wanted: &Value) -> String {
    let Differences(mut list) = Differences::between(found, wanted);
    // What follows from counts comes before them.
    list.sort_by_key(|one| one.field.starts_with("counted"));
    let more = list.len().saturating_sub(LISTED);
    list.truncate(LISTED);
    let cut = |text: String| match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    let short = |one: Difference| Difference {
        found: one.found.map(cut),
        wanted: one.wanted.map(cut),
        field: one.field,
    };
    let list = Differences(list.into_iter().map(short).collect());
    match (list.0.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => list.to_string(),
        (false, more) => format!("{list}; and {more} more"),
    }
}

/// Makes the answer of a receipt again from the files, and compares.
///
/// Only what chooses the claim is taken from the receipt: the identity that enters the noise, the question, parameters, seed
/// and salt. Everything else is computed.
pub fn verify(
    receipt: &Receipt,
    evidence: &Evidence<'_>,
    expected: &Expected,
) -> Result<Verified, VerifyError> {
    check_seals(receipt, expected)?;
    let gallery = evidence.gallery.gallery();
    let refused = |error: PipelineError| VerifyError::from(Refusal::NoAnswer(error));
    let identity = receipt.fixed.picture.identity.as_str();
    let (fixed, pixels) = fixed_again(&receipt.fixed, evidence)?;
    let other_engine = receipt.fixed.encoder.engine != fixed.encoder.engine;
    let [found, wanted] = [&receipt.fixed, &fixed].map(|fixed| {
        let mut value = serde_json::to_value(fixed).expect("texts and whole numbers");
        if expected.rounding {
            value["encoder"]["engine"] = Value::Null;
        }
        value
    });
    let list = differences(&found, &wanted);
    if !list.is_empty() {
        return Err(Refusal::Files(list).into());
    }
    let procedure = fixed.noise.as_ref().map(|noise| procedure_of(noise, &fixed.certificates, expected));
    let procedure = procedure.transpose()?;
    let sigma = procedure.as_ref().map(|procedure| procedure.sigma);
    check_gallery(evidence.gallery, evidence.gallery_name, evidence.embedder, sigma).map_err(refused)?;

    let query = Query {
        relevant: match &fixed.question.label {
            Some(label) => Relevant::Label(label),
            None => Relevant::Retrieved(fixed.retriever),
        },
        excluded: &fixed.gallery.excluded,
    };
    let shape = evidence.embedder.model_config().picture_shape();
    let promise = Promise::new(receipt.fixed.clone(), receipt.opened.clone(), shape);
    let mut drawn = Drawn::default();
    let (again, rounding) =
        match (fixed.noise.as_ref().zip(procedure.as_ref()), &fixed.bound, &receipt.opened) {
            (Some((noise, procedure)), None, Some(opened)) => {
                check_kind(procedure, gallery)?;
                for count in [procedure.pilot, procedure.samples] {
                    Samples::check_memory(count.get(), evidence.embedder.dimension())
                        .map_err(PipelineError::from)?;
                }
                let smoother = Smoother::new(evidence.embedder, procedure.sigma, opened.seed)
                    .excess(fixed.encoder.excess)
                    .threads(evidence.threads)
                    .batch(evidence.batch);
                let picture = Picture { identity, pixels: &pixels };
                let draw = |stage, range| -> Result<Samples, PipelineError> {
                    let samples = smoother.samples(&picture, stage, range)?;
                    drawn.add(stage, &samples)?;
                    Ok(samples)
                };
                let certifier = QueryCertifier::stored(procedure, evidence.gallery);
                let answered = match noise.schedule {
                    Schedule::Growing => {
                        certifier.answer_growing(&query, draw, uncertified(identity), |_| Ok(()))
                    }
                    Schedule::Fixed | Schedule::Target => {
                        certifier.answer(&query, draw, uncertified(identity))
                    }
                };
                let answered = answered.map_err(refused)?;
                let certified = uncertified::<PipelineError>(identity);
                let again = promise.keep(&certifier, &answered, &drawn, None).map_err(certified)?;
                let certifier = *certifier.certifier();
                let norm_bound = evidence.embedder.norm_bound();
                let fixed_number = noise.schedule == Schedule::Fixed;
                (again, Rounding::of_samples(certifier, answered.relevance, drawn, norm_bound, fixed_number))
            }
            (None, Some(bound), None) => {
                let bounded = bounded_of(bound, &fixed, evidence.embedder)?;
                let certifier =
                    PlainCertifier::stored(&bounded, evidence.gallery).map_err(PipelineError::from)?;
                let picture = (identity, pixels.as_slice());
                let answered =
                    certifier.answer_picture(&query, evidence.embedder, picture).map_err(refused)?;
                (promise.keep_bounded(gallery, &answered, None), Rounding::of_bound())
            }
            (noise, bound, opened) => {
                let has = |there: bool| if there { "some" } else { "none" };
                let [noise, bound, seed] = [noise.is_some(), bound.is_some(), opened.is_some()].map(has);
                let found = format!("noise: {noise}, bound: {bound}, seed: {seed}");
                let wanted = "noise with a seed, or a bound without one".to_owned();
                return Err(Refusal::Contradiction { field: "fixed", found, wanted }.into());
            }
        };
    let signed_by = receipt.signature.as_ref().map(|signature| signature.key);
    match compare(receipt, &again) {
        Ok(()) if !other_engine => Ok(Verified { signed_by, undecided: None }),
        Ok(()) => Ok(Verified { signed_by, undecided: Some(0) }),
        Err(refusal) if !expected.rounding => Err(refusal.into()),
        Err(_) => Ok(Verified { signed_by, undecided: Some(rounding.agree(receipt, &again)?) }),
    }
}

/// Whether it is whole, signed and the one that was promised.
fn check_seals(receipt: &Receipt, expected: &Expected) -> Result<(), Refusal> {
    let (found, wanted) = (receipt.digest, receipt.own_digest());
    if found != wanted {
        return Err(Refusal::Digest { found, wanted });
    }
    if let Some(signature) = receipt.signature.as_ref().filter(|signature| !signature.is_of(found)) {
        return Err(Refusal::Signature { key: signature.key });
    }
    let signer = receipt.signature.as_ref().map(|signature| signature.key);
    if let Some(wanted) = expected.key.filter(|&key| signer != Some(key)) {
        return Err(Refusal::Signer { found: signer, wanted });
    }
    let promised = Promise::new(receipt.fixed.clone(), receipt.opened.clone(), [0; 3]).commitment();
    if receipt.commitment != promised {
        return Err(Refusal::Commitment { found: receipt.commitment, wanted: promised });
    }
    if let Some(wanted) = expected.commitment.filter(|&wanted| receipt.commitment != Some(wanted)) {
        return Err(Refusal::Published { found: receipt.commitment, wanted });
    }
    let challenge = &receipt.fixed.challenge;
    match expected.challenge.as_ref().filter(|&wanted| challenge.as_ref() != Some(wanted)) {
        Some(wanted) => Err(Refusal::Challenge { found: challenge.clone(), wanted: wanted.clone() }),
        None => Ok(()),
    }
}

/// What would have been settled beforehand with these files, and the prepared picture.
fn fixed_again(claimed: &Fixed, evidence: &Evidence<'_>) -> Result<(Fixed, Vec<f32>), VerifyError> {
    let Evidence { embedder, gallery, picture, .. } = *evidence;
    let identity = claimed.picture.identity.as_str();
    let decoded = RgbPicture::from_bytes(identity, picture, &PictureLimits::default())?;
    let config = embedder.model_config();
    let prepared = config.preparation().apply(identity, &decoded)?;
    let pixels = input_values(config, identity, prepared)?;
    let content = GalleryContent::of(gallery.gallery());
    let content = content.map_err(uncertified::<PipelineError>(identity))?;
    let hidden = whole_items(gallery.gallery(), &claimed.gallery.excluded);
    let mut fixed = claimed.clone();
    fixed.picture = PictureFacts::new(identity, Digest::of_bytes(picture), &pixels);
    fixed.encoder = Premises::new(embedder, claimed.encoder.excess, content).into_encoder();
    fixed.gallery = GalleryFacts::new(&content, hidden);
    match (&mut fixed.noise, &mut fixed.bound) {
        (Some(noise), _) => {
            fixed.retriever = noise.procedure(&claimed.certificates)?.retriever();
            noise.schedule = match (noise.schedule, noise.target_radius) {
                (Schedule::Growing, _) => Schedule::Growing,
                (Schedule::Fixed | Schedule::Target, Some(_)) => Schedule::Target,
                (Schedule::Fixed | Schedule::Target, None) => Schedule::Fixed,
            };
        }
        (None, Some(bound)) => {
            fixed.retriever = Retriever::Plain;
            bound.constant = embedder.lipschitz()?.constant.into();
        }
        (None, None) => {}
    }
    Ok((fixed, pixels))
}

/// The procedure of a receipt with noise, if a run can have it.
fn procedure_of(
    noise: &NoiseFacts,
    certificates: &[CertificateName],
    expected: &Expected,
) -> Result<Procedure, VerifyError> {
    let procedure = noise.procedure(certificates)?;
    if let Some(most) = expected.most_samples {
        let found = noise.samples.max(noise.pilot);
        if found > most {
            return Err(VerifyError::Samples { found, most });
        }
    }
    let unfit = certificates.is_empty() || certificates.iter().any(|name| name.lipschitz().is_some());
    if unfit {
        let (found, wanted) = (format!("{certificates:?}"), "certificates of samples".to_owned());
        return Err(Refusal::Contradiction { field: "fixed.certificates", found, wanted }.into());
    }
    if noise.top_k == 0 {
        let (found, wanted) = ("0".to_owned(), "at least 1".to_owned());
        return Err(Refusal::Contradiction { field: "fixed.noise.top_k", found, wanted }.into());
    }
    check_depth(certificates, noise.top_k, procedure.target_radius)?;
    check_bets(certificates, procedure.target_radius, noise.replan_bets)?;
    Ok(procedure)
}

/// The same without noise.
fn bounded_of(
    bound: &super::BoundFacts,
    fixed: &Fixed,
    embedder: &OnnxEmbedder,
) -> Result<LipschitzBounded, VerifyError> {
    let certificates = &fixed.certificates;
    let unfit = certificates.is_empty() || certificates.iter().any(|name| name.lipschitz().is_none());
    if unfit {
        let (found, wanted) = (format!("{certificates:?}"), "certificates that need no noise".to_owned());
        return Err(Refusal::Contradiction { field: "fixed.certificates", found, wanted }.into());
    }
    let positive = |field, number| {
        NonZeroUsize::new(number).ok_or_else(|| Refusal::Contradiction {
            field,
            found: "0".to_owned(),
            wanted: "at least 1".to_owned(),
        })
    };
    Ok(LipschitzBounded {
        certificates: certificates.clone(),
        top_k: positive("fixed.bound.top_k", bound.top_k)?,
        mixtures: positive("fixed.bound.mixtures", bound.mixtures)?,
        lipschitz: embedder.lipschitz()?.clone(),
    })
}

/// Whether a receipt says what was computed, bit for bit.
fn compare(receipt: &Receipt, again: &Receipt) -> Result<(), Refusal> {
    compare_drawn(receipt, again)?;
    for (found, wanted) in paired(receipt, again)? {
        let [found_value, wanted_value] =
            [found, wanted].map(|answer| serde_json::to_value(answer).expect("texts and whole numbers"));
        let differences = differences(&found_value, &wanted_value);
        if !differences.is_empty() {
            return Err(Refusal::Answer { certificate: wanted.certificate, differences });
        }
    }
    Ok(())
}

pub(super) fn compare_drawn(receipt: &Receipt, again: &Receipt) -> Result<(), Refusal> {
    let [found, wanted] =
        [receipt, again].map(|one| serde_json::to_value(&one.drawn).expect("texts and whole numbers"));
    let list = differences(&found, &wanted);
    if list.is_empty() { Ok(()) } else { Err(Refusal::Drawn(list)) }
}

/// Answers side by side, if there are as many.
pub(super) fn paired<'r>(
    receipt: &'r Receipt,
    again: &'r Receipt,
) -> Result<impl Iterator<Item = (&'r CertifiedAnswer, &'r CertifiedAnswer)>, Refusal> {
    let (found, wanted) = (receipt.answers.len(), again.answers.len());
    if found != wanted {
        let (found, wanted) = (format!("{found} of them"), format!("{wanted}"));
        return Err(Refusal::Contradiction { field: "answers", found, wanted });
    }
    Ok(receipt.answers.iter().zip(&again.answers))
}
