//! Perturbed pictures: find a direction, then look at both retrievers along it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::StatusCode;
use retrievalguard::SampleCount;
use retrievalguard::gallery::Neighbour;
use retrievalguard_report::picture::Thumbnail;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::items::shown;
use super::layers::{Context, PathName, enter, path_name};
use super::stream::{EventSender, events, run, wants_events};
use crate::answer::{Item, VerdictWord};
use crate::form::{Fields, Form};
use crate::perturbation::{Kind, Perturbation, Target};
use crate::problem::{ErrorBody, Problem};
use crate::query_execution::{QueryRequest, milliseconds};
use crate::scheduler::Ticket;
use crate::search::Searched;
use crate::secret_seed;
use crate::service::Service;

/// Largest size of a perturbation.
const LARGEST: f64 = 1e3;

/// Samples behind the smoothed retriever's answer, unless asked otherwise.
const SAMPLES: u64 = 300;

/// A picture and how it is to be perturbed, as a form
#[derive(ToSchema)]
#[expect(dead_code, reason = "it stands for the form in the OpenAPI document")]
pub(crate) struct PerturbationForm {
    /// The picture's file: JPEG, PNG or WebP
    #[schema(format = Binary, content_media_type = "application/octet-stream")]
    picture: Vec<u8>,
    /// Noise or a search
    kind: Option<Kind>,
    /// Which retriever a search tries to mislead
    against: Option<Target>,
    /// l2 norm within which a search looks
    size: Option<f64>,
    /// The answer to defend; the smoothed retriever's own by default
    label: Option<String>,
    /// Seconds that a search may take; as many as the service allows by default
    seconds: Option<u32>,
}

/// How a picture is to be perturbed
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct PerturbationParameters {
    /// Noise or a search
    #[param(inline)]
    kind: Option<Kind>,
    /// Which retriever a search tries to mislead
    #[param(inline)]
    against: Option<Target>,
    /// l2 norm within which a search looks
    #[param(exclusive_minimum = 0.0, maximum = 1000.0)]
    size: Option<f64>,
    /// The answer to defend; the smoothed retriever's own by default
    label: Option<String>,
    /// Seconds that a search may take; as many as the service allows by default
    #[param(minimum = 1)]
    seconds: Option<u32>,
}

/// A perturbation that can be looked at
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Made {
    id: String,
    kind: Kind,
    against: Option<Target>,
    /// Size within which was searched
    size: f64,
    /// Smallest size at which the attacked retriever was seen to change, along this direction; of the smoothed one by an estimate
    broken_at: Option<f64>,
    /// The answer at size zero
    label: String,
    /// What a search has shown, and what it has not
    statement: Option<String>,
    /// How much was searched
    searched: Option<Searched>,
    milliseconds: f64,
}

#[derive(Serialize)]
struct SearchProgress {
    passes: u64,
    expected: u64,
    /// Seconds so far
    seconds: f64,
    /// Seconds after which the search ends with what it has
    most_seconds: f64,
}

/// Perturb a picture
///
/// `kind=noise` takes a random direction; `kind=adversarial` searches for one, for `seconds` at most, and then answers with
/// what came closest. That nothing was found is no proof of anything: the `statement` says how hard it was looked. With `Accept:
/// text/event-stream` the events are `progress`, then `done` with the perturbation or `error`.
#[utoipa::path(
    post,
    path = "/v1/perturbations",
    params(PerturbationParameters),
    request_body(content(
        (PerturbationForm = "multipart/form-data"),
        (Vec<u8> = "application/octet-stream"),
        (Vec<u8> = "image/jpeg"),
        (Vec<u8> = "image/png"),
        (Vec<u8> = "image/webp"),
    )),
    responses(
        (status = 201, description = "It can be looked at for 15 minutes", body = Made),
        (status = 200, description = "Events of the search", body = String, content_type = "text/event-stream"),
        (status = 400, description = "A parameter or the form is wrong", body = ErrorBody),
        (status = 401, description = "No known token", body = ErrorBody),
        (status = 403, description = "Not from here", body = ErrorBody),
        (status = 408, description = "The body came too slowly", body = ErrorBody),
        (status = 409, description = "The gallery has but one label", body = ErrorBody),
        (status = 413, description = "The body or the picture is too large", body = ErrorBody),
        (status = 415, description = "Not a picture", body = ErrorBody),
        (status = 422, description = "The picture does not fit the encoder, or no direction was found", body = ErrorBody),
        (status = 429, description = "Too many requests of this client at once", body = ErrorBody),
        (status = 503, description = "Another search is running, too long, or shutting down", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "perturbations"
)]
pub(crate) async fn make(
    State(service): State<Arc<Service>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, Problem> {
    let streamed = wants_events(request.headers());
    let (slot, request) = enter(&service, &context, request).await?;
    let known = ["kind", "against", "size", "label", "seconds"];
    let form = Form::read(request, &known, 1, service.settings.limits.body_bytes).await?;
    let kind = match form.fields.word("kind", &["noise", "adversarial"])? {
        Some("adversarial") => Kind::Adversarial,
        _ => Kind::Noise,
    };
    let against = match form.fields.word("against", &["plain", "smoothed"])? {
        Some("smoothed") => Target::Smoothed,
        _ => Target::Plain,
    };
    let size = size(&form.fields)?.unwrap_or(4.0 * service.settings.sigma.get());
    if size <= 0.0 {
        return Err(Problem::bad_request("parameter `size` is 0, wanted more"));
    }
    let most = service.search_time();
    let seconds = form.fields.number("seconds", 1, most.as_secs().max(1))?;
    let time = seconds.map_or(most, Duration::from_secs).min(most);
    let search = match kind {
        Kind::Noise => None,
        Kind::Adversarial => {
            let permit = Arc::clone(&service.searches).try_acquire_owned();
            let mut end = service.search_end.lock().unwrap_or_else(PoisonError::into_inner);
            let permit = permit.map_err(|_| {
                let left = end.saturating_duration_since(Instant::now());
                Problem::busy("another search is running", left.as_secs() + 1)
            })?;
            *end = Instant::now() + time;
            Some(permit)
        }
    };
    let ticket = Arc::new(service.scheduler.ticket());
    let limit = service.time_limit();
    let label = form.fields.text("label").map(ToOwned::to_owned);
    let own = Arc::clone(&service);
    let work = move |ticket: &Ticket| {
        let started = Instant::now();
        let (picture, hash) = own.prepare("perturbed", form.picture())?;
        let label = match label {
            Some(label) => label,
            None => own.guess(&picture, ticket)?,
        };
        let (made, found) = match kind {
            Kind::Noise => (own.random_direction(picture, hash, label.clone())?, None),
            Kind::Adversarial => {
                let left = time.saturating_sub(started.elapsed());
                let mut found = own.search(against, &picture, &label, (size, left), ticket)?;
                let shift = std::mem::take(&mut found.shift);
                let made = Perturbation::along(picture, hash, label.clone(), shift);
                let none =
                    || Problem::unprocessable("the search found no direction that changes the retrieval");
                (made.ok_or_else(none)?, Some(found))
            }
        };
        let id = crate::random_name().map_err(Problem::internal)?;
        own.perturbations.keep(id.clone(), made);
        drop((slot, search));
        Ok(Made {
            id,
            kind,
            against: (kind == Kind::Adversarial).then_some(against),
            size,
            broken_at: found.as_ref().and_then(|found| found.broken_at),
            label,
            statement: found.as_ref().map(|found| found.statement(against)),
            searched: found.map(|found| found.searched),
            milliseconds: milliseconds(started),
        })
    };
    if !streamed {
        let made = run(&ticket, limit, work).await?;
        return Ok((StatusCode::CREATED, Json(made)).into_response());
    }
    let expected = service.expected_passes(against, time) + u64::from(service.settings.pilot.get());
    let watched = Arc::clone(&ticket);
    let work = move |ticket: &Ticket, events: &EventSender| {
        let started = Instant::now();
        let (own, done) = (events.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let ended = Arc::clone(&done);
        let watcher = std::thread::spawn(move || {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) && !watched.is_cancelled() {
                let passes = watched.served();
                let expected = expected.max(passes);
                let (seconds, most_seconds) = (started.elapsed().as_secs_f64(), time.as_secs_f64());
                own.send("progress", &SearchProgress { passes, expected, seconds, most_seconds });
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let result = work(ticket);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        // Its last words must come before the end.
        if watcher.join().is_err() {
            return Err(Problem::internal("the watcher of a search panicked"));
        }
        result
    };
    Ok(events(ticket, limit, context.request_id, work))
}

fn size(fields: &Fields) -> Result<Option<f64>, Problem> {
    let Some(size) = fields.parse::<f64>("size")? else { return Ok(None) };
    if (0.0..=LARGEST).contains(&size) {
        return Ok(Some(size));
    }
    Err(Problem::bad_request(format!("parameter `size` is {size}, wanted a number from 0 to {LARGEST}")))
}

/// Where to look
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct LookParameters {
    /// l2 norm of the perturbation
    #[param(minimum = 0.0, maximum = 1000.0)]
    size: f64,
    /// Samples behind the smoothed retriever's answer
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

/// Both retrievers at one size
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
    smoothed: SmoothedLook,
    milliseconds: f64,
}

/// Look at both retrievers
#[utoipa::path(
    get,
    path = "/v1/perturbations/{id}",
    params(("id" = String, Path, description = "Name of the perturbation"), LookParameters),
    responses(
        (status = 200, description = "What both retrieve at this size", body = Look),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
        (status = 401, description = "No known token", body = ErrorBody),
        (status = 403, description = "Not from here", body = ErrorBody),
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
    Extension(context): Extension<Context>,
    path: PathName,
    uri: Uri,
) -> Result<Json<Look>, Problem> {
    let id = path_name(path)?;
    let fields = Fields::of_address(uri.query(), &["size", "samples"])?;
    let size = size(&fields)?.ok_or_else(|| Problem::bad_request("parameter `size` is missing"))?;
    let most = u64::from(service.settings.limits.samples);
    let samples = fields.number("samples", 1, most)?.unwrap_or(SAMPLES.min(most));
    let samples = SampleCount::new(samples).map_err(|error| Problem::bad_request(error.to_string()))?;
    let perturbation = service.perturbations.find(&id)?;
    let slot = service.admission.enter(&context.client, service.scheduler.speed())?;
    let passes = 1 + u64::from(samples.get()) + u64::from(service.settings.pilot.get());
    slot.promise(passes, service.scheduler.speed())?;
    let ticket = Arc::new(service.scheduler.ticket());
    let limit = service.time_limit();
    let work = move |ticket: &Ticket| {
        let started = Instant::now();
        let (moved, norm) = perturbation.at(size);
        service.check(&moved)?;
        let plain = plain(&service, &moved.pixels, &perturbation.label, ticket)?;
        let request = QueryRequest {
            picture: Arc::new(moved),
            picture_hash: perturbation.picture_hash.clone(),
            samples,
            target: None,
            top_k: 1,
            seed: secret_seed().map_err(Problem::internal)?,
            request_id: context.request_id,
        };
        let answer = service.answer(&request, ticket, Some(&slot), None)?;
        let nearest = answer.items.into_iter().next();
        let nearest = nearest.ok_or_else(|| Problem::conflict("the gallery is empty"))?;
        let smoothed = SmoothedLook {
            label: nearest.label.clone(),
            changed: nearest.label != perturbation.label,
            nearest,
            verdict: answer.verdict,
            radius: answer.radius,
            samples: answer.samples,
        };
        let (label, gallery) = (perturbation.label.clone(), answer.hashes.gallery);
        Ok(Look { size, norm, label, gallery, plain, smoothed, milliseconds: milliseconds(started) })
    };
    Ok(Json(run(&ticket, limit, work).await?))
}

fn plain(service: &Service, pixels: &[f32], label: &str, ticket: &Ticket) -> Result<PlainLook, Problem> {
    let snapshot = service.gallery.current();
    let gallery = snapshot.plain().unwrap_or_else(|| snapshot.gallery());
    let samples = ticket.plain(pixels.to_vec())?;
    let embedding: Vec<f64> = samples.row(0).iter().map(|&value| f64::from(value)).collect();
    let found: Vec<Vec<Neighbour>> =
        gallery.nearest(&embedding, 1, |_| &[]).map_err(|error| Problem::unprocessable(error.to_string()))?;
    let nearest = Item::list(&snapshot, found.first().map_or(&[], Vec::as_slice)).into_iter().next();
    let nearest = nearest.ok_or_else(|| Problem::conflict("the gallery is empty"))?;
    Ok(PlainLook { label: nearest.label.clone(), changed: nearest.label != label, nearest })
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
        (status = 401, description = "No known token", body = ErrorBody),
        (status = 403, description = "Not from here", body = ErrorBody),
        (status = 404, description = "No such perturbation, or no longer", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "perturbations"
)]
pub(crate) async fn picture(
    State(service): State<Arc<Service>>,
    path: PathName,
    uri: Uri,
) -> Result<Response, Problem> {
    let id = path_name(path)?;
    let fields = Fields::of_address(uri.query(), &["size"])?;
    let size = size(&fields)?.ok_or_else(|| Problem::bad_request("parameter `size` is missing"))?;
    let perturbation = service.perturbations.find(&id)?;
    let turn = Arc::clone(&service);
    let turn = turn.drawing.acquire().await.map_err(Problem::internal)?;
    let drawn = tokio::task::spawn_blocking(move || {
        let _permit = service.permits.take();
        let (moved, _) = perturbation.at(size);
        Thumbnail::of_input("perturbed", &moved.pixels, service.embedder.model_config())
    });
    let drawn = drawn.await.map_err(Problem::internal)?.map_err(Problem::internal)?;
    drop(turn);
    Ok(shown(&drawn))
}
