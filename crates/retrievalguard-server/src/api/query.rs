//! One picture in; its neighbours and a guarantee out.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use retrievalguard::{SampleCount, TargetRadius};
use retrievalguard_encoder::pipeline::check_cap;
use utoipa::IntoParams;

use super::layers::{Context, enter};
use super::stream::{EventSender, events, run, wants_events};
use crate::answer::Answer;
use crate::form::{Fields, Form, QueryForm};
use crate::problem::{ErrorBody, Problem};
use crate::query_execution::{QueryProgress, QueryRequest};
use crate::scheduler::Ticket;
use crate::secret_seed;
use crate::service::Service;

/// Parameters of a query
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct QueryParameters {
    /// Certifying samples, or the most of them if there is a target radius
    #[param(minimum = 1)]
    samples: Option<u32>,
    /// Stop as soon as this radius is certified
    #[param(exclusive_minimum = 0.0)]
    target_radius: Option<f64>,
    /// Items to return
    #[param(minimum = 1)]
    top_k: Option<u32>,
}

pub(crate) const KNOWN: [&str; 3] = ["samples", "target_radius", "top_k"];

/// What a query asks for, within the limits.
pub(crate) struct QueryOptions {
    pub(crate) samples: SampleCount,
    pub(crate) target: Option<TargetRadius>,
    pub(crate) top_k: usize,
}

impl QueryOptions {
    pub(crate) fn new(service: &Service, fields: &Fields, most: u32) -> Result<Self, Problem> {
        let limits = &service.settings.limits;
        let samples = match fields.number("samples", 1, u64::from(most))? {
            Some(number) => {
                SampleCount::new(number).map_err(|error| Problem::bad_request(error.to_string()))?
            }
            None => service.settings.samples,
        };
        let top_k = fields.number("top_k", 1, limits.top_k as u64)?.unwrap_or(5);
        Ok(Self { samples, target: fields.parse("target_radius")?, top_k: top_k as usize })
    }

    /// Refuses so few samples that no query could be decided.
    fn check_cap(&self, service: &Service) -> Result<(), Problem> {
        let procedure = service.guarantees.procedure(self.samples, self.target);
        check_cap(&procedure).map_err(|error| Problem::bad_request(error.to_string()))
    }
}

/// Retrieve for a picture
///
/// The picture is the body itself, or the part `picture` of a form. With `Accept: text/event-stream` the answer comes as
/// events: `first` after the pilot, `radius` for every certified radius (they never shrink, and all of them hold together
/// with probability 1 − alpha; if the samples turn against the label, the answer is an abstention), then `done` with the answer or `error`.
#[utoipa::path(
    post,
    path = "/v1/query",
    params(QueryParameters),
    request_body(content = QueryForm, content_type = "multipart/form-data"),
    responses(
        (status = 200, description = "The answer", content(
            (Answer = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = 409, description = "The gallery has but one label", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "query"
)]
pub(crate) async fn query(
    State(service): State<Arc<Service>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, Problem> {
    let streamed = wants_events(request.headers());
    let (slot, request) = enter(&service, &context, request).await?;
    let form = Form::read(request, &KNOWN, 1, service.settings.limits.body_bytes).await?;
    let options = QueryOptions::new(&service, &form.fields, service.settings.limits.samples)?;
    // A stream shows smaller radii on the way.
    if !streamed {
        options.check_cap(&service)?;
    }
    // Certifying samples, the pilot, and the picture without noise.
    let passes = u64::from(options.samples.get()) + u64::from(service.settings.pilot.get()) + 1;
    slot.promise(passes, service.scheduler.speed())?;
    let ticket = Arc::new(service.scheduler.ticket());
    let (limit, request_id) = (service.time_limit(), context.request_id.clone());
    let prepare = move |service: &Service| {
        let (picture, picture_hash) = service.prepare("query", form.picture())?;
        Ok::<_, Problem>(QueryRequest {
            picture,
            picture_hash,
            samples: options.samples,
            target: options.target,
            top_k: options.top_k,
            seed: secret_seed().map_err(Problem::internal)?,
            request_id: context.request_id,
        })
    };
    if service.gallery.current().gallery().label_count() < 2 {
        return Err(retrievalguard::certificate::CertificateError::NoNegatives.into());
    }
    if streamed {
        // What is wrong with the picture is a status, not an event.
        let own = Arc::clone(&service);
        let request = run(&Arc::new(service.scheduler.ticket()), limit, move |_| prepare(&own)).await?;
        let work = move |ticket: &Ticket, events: &EventSender| {
            let mut report = |progress: QueryProgress| match progress {
                QueryProgress::First(answer) => events.send("first", &answer),
                QueryProgress::Step(step) => events.send("radius", &step),
            };
            service.answer(&request, ticket, Some(&slot), Some(&mut report))
        };
        return Ok(events(ticket, limit, request_id, work));
    }
    let work = move |ticket: &Ticket| service.answer(&prepare(&service)?, ticket, Some(&slot), None);
    Ok(Json(run(&ticket, limit, work).await?).into_response())
}
