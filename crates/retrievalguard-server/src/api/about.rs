//! What the service is.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use retrievalguard::ForwardError;
use retrievalguard::gallery::Metric;
use retrievalguard_encoder::run::LipschitzBounded;
use serde::Serialize;
use utoipa::ToSchema;

use super::layers::Context;
use crate::access::Role;
use crate::answer::{GuaranteeWord, Origin};
use crate::search::Searches;
use crate::service::Service;
use crate::settings::Basis;

/// Encoder, gallery, guarantee and limits
#[derive(Serialize, ToSchema)]
pub(crate) struct About {
    version: &'static str,
    /// Whether a token is asked for: `none` or `required`
    auth: &'static str,
    may_read: bool,
    may_write: bool,
    gallery: AboutGallery,
    /// Whether chance is involved in what answers guarantee
    guarantee: GuaranteeWord,
    /// What answers rest on where there is no noise; null with noise
    lipschitz: Option<AboutBound>,
    /// Noise level; null without noise
    sigma: Option<f64>,
    /// Probability that an answer's guarantee is wrong; null without noise, where it holds always
    alpha: Option<f64>,
    /// Which retriever answers: `mean`, `vote` or `pairwise`, or `plain` without noise
    retriever: &'static str,
    /// Pilot samples; null without noise
    pilot: Option<u32>,
    defaults: Defaults,
    limits: AboutLimits,
    input: AboutInput,
    /// What the plain retriever searches: `own` clean embeddings, or the `stored` vectors, for want of them or without noise
    plain: &'static str,
    /// How perturbations are searched: `white-box` or `black-box`
    search: &'static str,
    /// No query can be certified beyond this with the usual number of samples; null where there is no such limit
    largest_radius: Option<f64>,
    hashes: AboutHashes,
    engine: String,
}

/// A bound on the encoder
#[derive(Serialize, ToSchema)]
struct AboutBound {
    /// Upper bound on the encoder's Lipschitz constant, from pixels in [0, 1] to embeddings, in the l2 norm
    constant: f64,
    /// Whose proof the constant is
    origin: Origin,
    /// How many operators of the network it was put together from
    layers: usize,
    /// Upper bound on the rounding error of any embedding of a picture that is changed by no more than the norm of a white
    /// one; every answer has its own, which is taken off twice. Null where it is too large to be of use
    forward_error: Option<f64>,
}

impl AboutBound {
    fn new(bounded: &LipschitzBounded, values: usize) -> Self {
        let bound = &bounded.lipschitz;
        // A white picture, and a change as large as it.
        let error = bound.double_error.at(2.0 * (values as f64).sqrt());
        Self {
            constant: bound.constant,
            origin: Origin::Verified,
            layers: bound.layers.len(),
            forward_error: error.ok().map(ForwardError::get),
        }
    }
}

#[derive(Serialize, ToSchema)]
struct AboutGallery {
    /// Name of its folder
    name: String,
    items: usize,
    /// Names of the views that every item has; absent where items have one vector each
    #[serde(skip_serializing_if = "Vec::is_empty")]
    views: Vec<String>,
    labels: usize,
    dimension: usize,
    /// `euclidean` or `cosine`
    metric: &'static str,
    /// Noisy copies behind each stored vector; null without noise
    samples: Option<u32>,
    /// Changes with every write
    version: String,
    /// Whether it cannot be changed, with any token
    read_only: bool,
}

#[derive(Serialize, ToSchema)]
struct Defaults {
    /// Null without noise
    samples: Option<u32>,
    top_k: usize,
}

#[derive(Serialize, ToSchema)]
struct AboutLimits {
    body_bytes: usize,
    pixels: u64,
    /// Certifying samples of a query; null without noise
    samples: Option<u32>,
    /// Certifying samples of each picture of a job; null without noise
    job_samples: Option<u32>,
    job_pictures: usize,
    top_k: usize,
    seconds: u64,
    /// Seconds that a search for a perturbation may take
    search_seconds: f64,
    queue: usize,
}

#[derive(Serialize, ToSchema)]
struct AboutInput {
    channels: usize,
    height: usize,
    width: usize,
}

#[derive(Serialize, ToSchema)]
struct AboutHashes {
    model: String,
    contract: String,
    gallery: String,
}

/// What is served here
///
/// Needs no token; with one it says what the token allows.
#[utoipa::path(
    get,
    path = "/v1/about",
    responses(
        (status = 200, description = "Encoder, gallery, guarantee and limits", body = About),
    ),
    security((), ("bearer" = [])),
    tag = "service"
)]
pub(crate) async fn about(
    State(service): State<Arc<Service>>,
    State(searches): State<Arc<Searches>>,
    Extension(context): Extension<Context>,
) -> Json<About> {
    let snapshot = service.gallery.current();
    let (gallery, settings) = (snapshot.gallery(), &service.settings);
    let (limits, basis) = (&settings.limits, &service.guarantees.basis);
    let sampling = basis.sampling();
    let [channels, height, width] = service.embedder.model_config().picture_shape();
    let version = snapshot.version().to_owned();
    let name = settings.gallery.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    Json(About {
        version: env!("CARGO_PKG_VERSION"),
        auth: if settings.tokens.is_empty() { "none" } else { "required" },
        may_read: context.role.is_some(),
        may_write: context.role == Some(Role::Write) && !service.gallery.is_read_only(),
        gallery: AboutGallery {
            name,
            items: gallery.item_count(),
            views: gallery.view_names().to_vec(),
            labels: gallery.label_count(),
            dimension: gallery.dimension(),
            metric: match gallery.metric() {
                Metric::Euclidean => "euclidean",
                Metric::Cosine => "cosine",
            },
            samples: sampling.and(snapshot.provenance().samples),
            version: version.clone(),
            read_only: service.gallery.is_read_only(),
        },
        guarantee: GuaranteeWord::from(basis),
        lipschitz: match basis {
            Basis::Samples(_) => None,
            Basis::Bound(bounded) => Some(AboutBound::new(bounded, channels * height * width)),
        },
        sigma: sampling.map(|sampling| sampling.sigma.get()),
        alpha: sampling.map(|sampling| sampling.alpha.get()),
        retriever: basis.retriever().as_str(),
        pilot: sampling.map(|sampling| sampling.pilot.get()),
        defaults: Defaults {
            samples: sampling.map(|sampling| sampling.samples.get()),
            top_k: limits.top_k.min(5),
        },
        limits: AboutLimits {
            body_bytes: limits.body_bytes,
            pixels: limits.pixels,
            samples: sampling.map(|_| limits.samples),
            job_samples: sampling.map(|_| limits.job_samples),
            job_pictures: limits.job_pictures,
            top_k: limits.top_k,
            seconds: limits.seconds,
            search_seconds: searches.longest().as_secs_f64(),
            queue: limits.queue,
        },
        input: AboutInput { channels, height, width },
        plain: snapshot.plain_state(),
        search: searches.mode().name(),
        largest_radius: service.largest_radius(&snapshot),
        hashes: AboutHashes {
            model: service.guarantees.model.clone(),
            contract: service.guarantees.contract.clone(),
            gallery: version,
        },
        engine: service.embedder.report().to_string(),
    })
}
