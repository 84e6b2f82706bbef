//! The retrievers along a perturbation, and the perturbed picture. Without noise there is but the plain one.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::{Extension, Json};
use retrievalguard::SampleCount;
use retrievalguard::certificate::Retriever;
use retrievalguard_encoder::pipeline::nearest_plain;
use retrievalguard_report::picture::{Part, Thumbnail};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::norm_of_change;
use crate::answer::{Item, VerdictWord};
use crate::api::layers::{Context, PathName, path_name};
use crate::api::pictures::shown;
use crate::api::query::refuse_samples;
use crate::api::stream::run;
use crate::form::Fields;
use crate::gallery_writer::Snapshot;
use crate::problem::{ErrorBody, Problem};
use crate::query_execution::{Draws, QueryRequest, milliseconds};
use crate::scheduler::Ticket;
use crate::search::Searches;
use crate::secret_seed;
use crate::service::Service;

/// Samples behind the smoothed retriever's answer, unless asked otherwise.
const SAMPLES: u64 = 300;

/// Where to look
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct LookParameters {
    /// l2 norm of the perturbation
    #[param(minimum = 0.0, maximum = 1000.0)]
    size: f64,
    /// Samples behind the smoothed retriever's answer; refused for a gallery without noise
    #[param(minimum = 1)]
    samples: Option<u32>,
}

/// What the encoder without noise retrieves
#[derive(Serialize, ToSchema)]
pub(crate) struct PlainLook {
    label: String,
    nearest: Item,
    /// Whether it is another label than at size zero
    changed: bool,
    /// Whether the label is proved, by a certificate of the perturbed picture itself; null with noise
    verdict: Option<VerdictWord>,
    /// The certified radius around the perturbed picture, if it is certified and finite; null with noise
    radius: Option<f64>,
}

/// What the smoothed retriever retrieves
#[derive(Serialize, ToSchema)]
pub(crate) struct SmoothedLook {
    label: String,
    nearest: Item,
    /// Whether it is another label than at size zero
    changed: bool,
    /// Whether the label is proved, by a certificate of the perturbed picture itself
    verdict: VerdictWord,
    radius: Option<f64>,
    samples: u32,
}

/// The retrievers at one size
#[derive(Serialize, ToSchema)]
pub(crate) struct Look {
    /// The size that was asked for
    size: f64,
    /// l2 norm of the change as the encoder gets it, after rounding
    norm: f64,
    /// The answer at size zero
    label: String,
    /// Version of the gallery that was searched
    gallery: String,
    plain: PlainLook,
    /// Null without noise
    smoothed: Option<SmoothedLook>,
    milliseconds: f64,
}

/// Look at the retrievers
#[utoipa::path(
    get,
    path = "/v1/perturbations/{id}",
    params(("id" = String, Path, description = "Name of the perturbation"), LookParameters),
    responses(
        (status = 200, description = "What they retrieve at this size", body = Look),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
        (status = 404, description = "No such perturbation, or no longer", body = ErrorBody),
        (status = 409, description = "The gallery has but one label", body = ErrorBody),
        (status = 422, description = "The perturbed picture does not fit the encoder", body = ErrorBody),
        (status = 429, description = "Too many requests of this client at once", body = ErrorBody),
        (status = 503, description = "Busy, too long, or shutting down", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "perturbations"
)]
pub(crate) async fn look(
    State(service): State<Arc<Service>>,
    State(searches): State<Arc<Searches>>,
    Extension(context): Extension<Context>,
    path: PathName,
    uri: Uri,
) -> Result<Json<Look>, Problem> {
    let id = path_name(path)?;
    let fields = Fields::of_address(uri.query(), &["size", "samples"])?;
    let size = norm_of_change(&fields, "size")?
        .ok_or_else(|| Problem::bad_request("parameter `size` is missing"))?;
    refuse_samples(&service, &fields, &["samples"])?;
    let most = u64::from(service.settings.limits.samples);
    let samples = fields.number("samples", 1, most)?.unwrap_or(SAMPLES.min(most));
    let samples = SampleCount::new(samples).map_err(|error| Problem::bad_request(error.to_string()))?;
    let sampling = service.guarantees.basis.sampling().copied();
    let perturbation = searches.find(&id)?;
    let slot = service.admission.enter(&context.client, service.scheduler.speed())?;
    let noisy = sampling.map_or(0, |sampling| u64::from(samples.get()) + u64::from(sampling.pilot.get()));
    let passes = 1 + noisy;
    slot.promise(passes, service.scheduler.speed())?;
    let ticket = Arc::new(service.scheduler.ticket());
    let limit = service.time_limit();
    let work = move |ticket: &Ticket| {
        let started = Instant::now();
        let (moved, norm) = perturbation.at(size);
        service.check(&moved)?;
        let moved = Arc::new(moved);
        let seed = sampling.map(|_| secret_seed()).transpose().map_err(Problem::internal)?;
        let request = QueryRequest {
            picture: Arc::clone(&moved),
            picture_hash: perturbation.picture_hash.clone(),
            draws: seed.map(|seed| Draws { samples, target: None, seed }),
            top_k: 1,
            receipt: None,
            request_id: context.request_id,
        };
        let snapshot = service.gallery.current();
        let answer = service.answer_from(&snapshot, &request, ticket, Some(&slot), None)?;
        let plain = match (sampling, answer.plain) {
            (None, _) => None,
            (Some(_), Some(nearest)) => Some(nearest),
            (Some(_), None) => Some(among_stored(&snapshot, &moved.pixels, ticket)?),
        };
        let plain = plain.map(|nearest| {
            let (label, changed) = (nearest.label.clone(), nearest.label != perturbation.label);
            PlainLook { label, changed, nearest, verdict: None, radius: None }
        });
        let nearest = answer.items.into_iter().next();
        let nearest = nearest.ok_or_else(|| Problem::conflict("the gallery is empty"))?;
        let changed = |label: &str| label != perturbation.label;
        let (own, gallery) = (perturbation.label.clone(), answer.hashes.gallery.clone());
        let (Some(sampling), Some(plain)) = (sampling, plain) else {
            let plain = PlainLook {
                changed: changed(&nearest.label),
                label: nearest.label.clone(),
                nearest,
                verdict: Some(answer.verdict),
                radius: answer.radius,
            };
            let milliseconds = milliseconds(started);
            return Ok(Look { size, norm, label: own, gallery, plain, smoothed: None, milliseconds });
        };
        // The mean of all samples says more than the pilot; other retrievers have no other word than the pilot's.
        let label = match sampling.retriever {
            Retriever::Mean | Retriever::Plain => nearest.label.clone(),
            Retriever::Vote | Retriever::Pairwise => {
                answer.candidate_label.ok_or_else(|| Problem::conflict("the gallery is empty"))?
            }
        };
        let smoothed = SmoothedLook {
            changed: changed(&label),
            label,
            nearest,
            verdict: answer.verdict,
            radius: answer.radius,
            samples: answer.samples.unwrap_or(0),
        };
        let (smoothed, milliseconds) = (Some(smoothed), milliseconds(started));
        Ok(Look { size, norm, label: own, gallery, plain, smoothed, milliseconds })
    };
    Ok(Json(run(&ticket, limit, work).await?))
}

/// What the encoder without noise retrieves among vectors that are means over noise, for want of others.
fn among_stored(snapshot: &Snapshot, pixels: &[f32], ticket: &Ticket) -> Result<Item, Problem> {
    let found = nearest_plain(snapshot.gallery().into(), ticket.plain(pixels.to_vec())?.row(0), &[])?;
    let nearest = Item::list(snapshot, found.as_slice()).into_iter().next();
    nearest.ok_or_else(|| Problem::conflict("the gallery is empty"))
}

/// Where to look
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct ShowParameters {
    /// l2 norm of the perturbation
    #[param(minimum = 0.0, maximum = 1000.0)]
    size: f64,
}

/// Show the perturbed picture as the encoder gets it
#[utoipa::path(
    get,
    path = "/v1/perturbations/{id}/picture",
    params(("id" = String, Path, description = "Name of the perturbation"), ShowParameters),
    responses(
        (status = 200, description = "Cut to [0, 1] for the eye", content((Vec<u8> = "image/png"))),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
        (status = 404, description = "No such perturbation, or no longer", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "perturbations"
)]
pub(crate) async fn picture(
    State(service): State<Arc<Service>>,
    State(searches): State<Arc<Searches>>,
    path: PathName,
    uri: Uri,
) -> Result<Response, Problem> {
    let id = path_name(path)?;
    let fields = Fields::of_address(uri.query(), &["size"])?;
    let size = norm_of_change(&fields, "size")?
        .ok_or_else(|| Problem::bad_request("parameter `size` is missing"))?;
    let perturbation = searches.find(&id)?;
    let turn = Arc::clone(&service);
    let turn = turn.drawing.acquire().await.map_err(Problem::internal)?;
    let drawn = tokio::task::spawn_blocking(move || {
        let _permit = service.permits.take();
        let (moved, _) = perturbation.at(size);
        Thumbnail::of_input("perturbed", &moved.pixels, service.embedder.model_config(), Part::Whole)
    });
    let drawn = drawn.await.map_err(Problem::internal)?.map_err(Problem::internal)?;
    drop(turn);
    Ok(shown(&drawn))
}
