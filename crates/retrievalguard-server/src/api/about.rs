//! What the service is.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use retrievalguard::gallery::Metric;
use serde::Serialize;
use utoipa::ToSchema;

use super::layers::Context;
use crate::access::Role;
use crate::search::Searches;
use crate::service::Service;

/// Encoder, gallery, guarantee and limits
#[derive(Serialize, ToSchema)]
pub(crate) struct About {
    version: &'static str,
    /// Whether a token is asked for: `none` or `required`
    auth: &'static str,
    may_read: bool,
    may_write: bool,
    gallery: AboutGallery,
    sigma: f64,
    alpha: f64,
    /// Which smoothed retriever answers: `mean`, `vote` or `pairwise`
    retriever: &'static str,
    pilot: u32,
    defaults: Defaults,
    limits: AboutLimits,
    input: AboutInput,
    /// What the plain retriever searches: `own` clean embeddings, or the `stored` vectors for want of them
    plain: &'static str,
    /// How perturbations are searched: `white-box` or `black-box`
    search: &'static str,
    /// No query can be certified beyond this with the usual number of samples
    largest_radius: Option<f64>,
    hashes: AboutHashes,
    engine: String,
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
    /// Noisy copies behind each stored vector
    samples: Option<u32>,
    /// Changes with every write
    version: String,
    /// Whether it cannot be changed, with any token
    read_only: bool,
}

#[derive(Serialize, ToSchema)]
struct Defaults {
    samples: u32,
    top_k: usize,
}

#[derive(Serialize, ToSchema)]
struct AboutLimits {
    body_bytes: usize,
    pixels: u64,
    samples: u32,
    job_samples: u32,
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
    let limits = &settings.limits;
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
            samples: snapshot.provenance().samples,
            version: version.clone(),
            read_only: service.gallery.is_read_only(),
        },
        sigma: settings.sigma.get(),
        alpha: settings.alpha.get(),
        retriever: settings.retriever.as_str(),
        pilot: settings.pilot.get(),
        defaults: Defaults { samples: settings.samples.get(), top_k: limits.top_k.min(5) },
        limits: AboutLimits {
            body_bytes: limits.body_bytes,
            pixels: limits.pixels,
            samples: limits.samples,
            job_samples: limits.job_samples,
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
