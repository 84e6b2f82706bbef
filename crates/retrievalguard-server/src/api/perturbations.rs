//! Perturbed pictures: take a direction or search for one; [`look`] shows both retrievers along it.

pub(super) mod look;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::StatusCode;
use retrievalguard::Embedder;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::layers::{Context, enter};
use super::stream::{EventSender, events, run, wants_events};
use crate::form::{Fields, Form};
use crate::perturbation::{Kind, Perturbation, Target};
use crate::problem::{ErrorBody, Problem};
use crate::query_execution::milliseconds;
use crate::scheduler::Ticket;
use crate::search::{Searched, Searches};
use crate::secret_seed;
use crate::service::Service;

/// Largest size of a perturbation.
const LARGEST: f64 = 1e3;

/// Time between two events of a search.
const BETWEEN_EVENTS: Duration = Duration::from_millis(200);

/// A picture and how it is to be perturbed, as a form
#[derive(ToSchema)]
#[expect(dead_code, reason = "it stands for the form in the OpenAPI document")]
pub(crate) struct PerturbationForm {
    /// The picture's file: JPEG, PNG or WebP
    #[schema(format = Binary, content_media_type = "application/octet-stream")]
    picture: Vec<u8>,
    /// Noise or a search
    kind: Option<Kind>,
    /// Which retriever a search tries to mislead; without noise there is only `plain`
    against: Option<Target>,
    /// l2 norm within which a search looks
    size: Option<f64>,
    /// The answer to defend; that of the retriever whose answers are certified by default
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
    /// Which retriever a search tries to mislead; without noise there is only `plain`
    #[param(inline)]
    against: Option<Target>,
    /// l2 norm within which a search looks
    #[param(exclusive_minimum = 0.0, maximum = 1000.0)]
    size: Option<f64>,
    /// The answer to defend; that of the retriever whose answers are certified by default
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
    request_body(content = PerturbationForm, content_type = "multipart/form-data"),
    responses(
        (status = 201, description = "It can be looked at for 15 minutes", body = Made),
        (status = 200, description = "Events of the search", body = String, content_type = "text/event-stream"),
        (status = 409, description = "The gallery has but one label", body = ErrorBody),
        (status = 422, description = "The picture does not fit the encoder, or no direction was found", body = ErrorBody),
        (status = 503, description = "Another search is running, too long, or shutting down", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "perturbations"
)]
pub(crate) async fn make(
    State(service): State<Arc<Service>>,
    State(searches): State<Arc<Searches>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, Problem> {
    let streamed = wants_events(request.headers());
    let (slot, request) = enter(&service, &context, request).await?;
    let form =
        Form::read(request, &PerturbationOptions::KNOWN, 1, service.settings.limits.body_bytes).await?;
    let options = PerturbationOptions::new(&service, &searches, &form.fields)?;
    let turn = match options.kind {
        Kind::Noise => None,
        Kind::Adversarial => Some(searches.begin(options.time)?),
    };
    let ticket = Arc::new(service.scheduler.ticket());
    let (limit, time) = (service.time_limit(), options.time);
    let guess = service.guarantees.basis.sampling().map_or(1, |sampling| sampling.pilot.get());
    let expected = searches.expected_passes(options.against, time) + u64::from(guess);
    let work = move |ticket: &Ticket| {
        let made = options.make(&service, &searches, form.picture(), ticket)?;
        drop((slot, turn));
        Ok(made)
    };
    if streamed {
        let work = move |ticket: &Ticket, events: &EventSender| {
            with_progress(ticket, events, (expected, time), || work(ticket))
        };
        return Ok(events(ticket, limit, context.request_id, work));
    }
    let made = run(&ticket, limit, work).await?;
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

/// What a perturbation is to be, within the limits.
struct PerturbationOptions {
    kind: Kind,
    against: Target,
    size: f64,
    /// Longest that a search may take.
    time: Duration,
    label: Option<String>,
}

impl PerturbationOptions {
    const KNOWN: [&str; 5] = ["kind", "against", "size", "label", "seconds"];

    fn new(service: &Service, searches: &Searches, fields: &Fields) -> Result<Self, Problem> {
        let kind = match fields.word("kind", &["noise", "adversarial"])? {
            Some("adversarial") => Kind::Adversarial,
            _ => Kind::Noise,
        };
        let sampling = service.guarantees.basis.sampling();
        let against = match (fields.word("against", &["plain", "smoothed"])?, sampling) {
            (Some("smoothed"), Some(_)) => Target::Smoothed,
            (Some("smoothed"), None) => {
                return Err(Problem::bad_request(
                    "parameter `against` is `smoothed`, and without noise there is no smoothed retriever; wanted plain",
                ));
            }
            _ => Target::Plain,
        };
        // Without noise, a twentieth of the norm of a white picture.
        let white = (service.embedder.input_len() as f64).sqrt();
        let usual = sampling.map_or(white / 20.0, |sampling| 4.0 * sampling.sigma.get());
        let size = norm_of_change(fields, "size")?.unwrap_or(usual);
        if size <= 0.0 {
            return Err(Problem::bad_request("parameter `size` is 0, wanted more"));
        }
        let most = searches.longest();
        let seconds = fields.number("seconds", 1, most.as_secs().max(1))?;
        let time = seconds.map_or(most, Duration::from_secs).min(most);
        Ok(Self { kind, against, size, time, label: fields.text("label").map(ToOwned::to_owned) })
    }

    /// Finds the direction, and keeps it for those who want to look along it.
    fn make(
        self,
        service: &Service,
        searches: &Searches,
        picture: &[u8],
        ticket: &Ticket,
    ) -> Result<Made, Problem> {
        let Self { kind, against, size, time, label } = self;
        let started = Instant::now();
        let (picture, hash) = service.prepare("perturbed", picture)?;
        let label = match label {
            Some(label) => label,
            None => service.guess(&service.gallery.current(), &picture, ticket)?,
        };
        let (made, found) = match kind {
            Kind::Noise => {
                let seed = secret_seed().map_err(Problem::internal)?;
                let made = Perturbation::random(picture, hash, label.clone(), seed);
                let none = || Problem::unprocessable("the picture has no pixels to change");
                (made.ok_or_else(none)?, None)
            }
            Kind::Adversarial => {
                let left = time.saturating_sub(started.elapsed());
                let mut found = searches.search(against, &picture, &label, (size, left), ticket)?;
                let shift = std::mem::take(&mut found.shift);
                let made = Perturbation::along(picture, hash, label.clone(), shift);
                let none =
                    || Problem::unprocessable("the search found no direction that changes the retrieval");
                (made.ok_or_else(none)?, Some(found))
            }
        };
        Ok(Made {
            id: searches.keep(made)?,
            kind,
            against: (kind == Kind::Adversarial).then_some(against),
            size,
            broken_at: found.as_ref().and_then(|found| found.broken_at),
            label,
            statement: found.as_ref().map(|found| found.statement(against)),
            searched: found.map(|found| found.searched),
            milliseconds: milliseconds(started),
        })
    }
}

/// Does the work and sends events of its progress until it ends.
fn with_progress(
    ticket: &Ticket,
    events: &EventSender,
    (expected, most): (u64, Duration),
    work: impl FnOnce() -> Result<Made, Problem>,
) -> Result<Made, Problem> {
    let started = Instant::now();
    thread::scope(|scope| {
        // Dropped with the work, whatever its end.
        let (end, ended) = channel::<()>();
        let watcher = scope.spawn(move || {
            while !ticket.is_cancelled() {
                let passes = ticket.served();
                let expected = expected.max(passes);
                let (seconds, most_seconds) = (started.elapsed().as_secs_f64(), most.as_secs_f64());
                events.send("progress", &SearchProgress { passes, expected, seconds, most_seconds });
                if ended.recv_timeout(BETWEEN_EVENTS) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let result = work();
        drop(end);
        // Its last words must come before the end.
        watcher.join().map_err(|_| Problem::internal("the watcher of a search panicked"))?;
        result
    })
}

/// A parameter that is the l2 norm of a change.
pub(super) fn norm_of_change(fields: &Fields, name: &str) -> Result<Option<f64>, Problem> {
    let Some(norm) = fields.parse::<f64>(name)? else { return Ok(None) };
    if (0.0..=LARGEST).contains(&norm) {
        return Ok(Some(norm));
    }
    Err(Problem::bad_request(format!("parameter `{name}` is {norm}, wanted a number from 0 to {LARGEST}")))
}
