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
use crate::query_execution::{Draws, QueryProgress, QueryRequest, WantedReceipt};
use crate::scheduler::Ticket;
use crate::secret_seed;
use crate::service::Service;

/// Parameters of a query
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct QueryParameters {
    /// Certifying samples, or the most of them if there is a target radius; refused for a gallery without noise
    #[param(minimum = 1)]
    samples: Option<u32>,
    /// Stop as soon as this radius is certified; refused for a gallery without noise
    #[param(exclusive_minimum = 0.0)]
    target_radius: Option<f64>,
    /// Items to return
    #[param(minimum = 1)]
    top_k: Option<u32>,
}

/// Parameters of a query that wants a receipt
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct ReceiptParameters {
    /// Whether the answer carries a receipt, which opens the seed that it was drawn with
    receipt: Option<bool>,
    /// Text of the asker that enters the commitment; needs `receipt=true`
    challenge: Option<String>,
}

pub(crate) const KNOWN: [&str; 3] = ["samples", "target_radius", "top_k"];
const KNOWN_WITH_RECEIPT: [&str; 5] = ["samples", "target_radius", "top_k", "receipt", "challenge"];

/// What a query asks for, within the limits.
pub(crate) struct QueryOptions {
    /// Certifying samples, or the most of them; none without noise.
    pub(crate) samples: Option<SampleCount>,
    pub(crate) target: Option<TargetRadius>,
    pub(crate) top_k: usize,
}

/// Refuses parameters that say something about samples, where there are none.
pub(super) fn refuse_samples(service: &Service, fields: &Fields, names: &[&str]) -> Result<(), Problem> {
    if service.guarantees.basis.sampling().is_some() {
        return Ok(());
    }
    match names.iter().find(|name| fields.text(name).is_some()) {
        Some(name) => Err(Problem::bad_request(format!(
            "parameter `{name}` says nothing without noise, and the gallery has no noise level: an answer is one pass; wanted \
             no `{name}`"
        ))),
        None => Ok(()),
    }
}

impl QueryOptions {
    pub(crate) fn new(service: &Service, fields: &Fields, most: u32) -> Result<Self, Problem> {
        let limits = &service.settings.limits;
        refuse_samples(service, fields, &["samples", "target_radius"])?;
        let samples =
            match (service.guarantees.basis.sampling(), fields.number("samples", 1, u64::from(most))?) {
                (None, _) => None,
                (Some(_), Some(number)) => {
                    Some(SampleCount::new(number).map_err(|error| Problem::bad_request(error.to_string()))?)
                }
                (Some(sampling), None) => Some(sampling.samples),
            };
        let top_k = fields.number("top_k", 1, limits.top_k as u64)?.unwrap_or(5);
        Ok(Self { samples, target: fields.parse("target_radius")?, top_k: top_k as usize })
    }

    /// Refuses so few samples that no query could be decided.
    fn check_cap(&self, service: &Service) -> Result<(), Problem> {
        let Some((sampling, samples)) = service.guarantees.basis.sampling().zip(self.samples) else {
            return Ok(());
        };
        let procedure = sampling.procedure(samples, self.target);
        check_cap(&procedure).map_err(|error| Problem::bad_request(error.to_string()))
    }

    /// Encoder passes of one picture, at most.
    fn passes(&self, service: &Service) -> u64 {
        let pilot = service.guarantees.basis.sampling().map_or(0, |sampling| sampling.pilot.get());
        // With samples the picture is also embedded without noise.
        1 + self.samples.map_or(0, |samples| u64::from(samples.get()) + u64::from(pilot))
    }

    /// What a picture that is here asks of samples, with a seed of its own.
    fn draws(&self) -> Result<Option<Draws>, Problem> {
        let Some(samples) = self.samples else { return Ok(None) };
        let seed = secret_seed().map_err(Problem::internal)?;
        Ok(Some(Draws { samples, target: self.target, seed }))
    }
}

/// The receipt that a query wants, if it wants one.
fn wanted_receipt(fields: &Fields) -> Result<Option<WantedReceipt>, Problem> {
    let wanted = fields.word("receipt", &["true", "false"])? == Some("true");
    let challenge = fields.text("challenge").map(ToOwned::to_owned);
    match (wanted, challenge) {
        (false, Some(_)) => Err(Problem::bad_request(
            "parameter `challenge` is for receipts, and none is asked for; wanted receipt=true beside it",
        )),
        (false, None) => Ok(None),
        (true, challenge) => {
            let salt = crate::random_bytes().map_err(Problem::internal)?;
            Ok(Some(WantedReceipt { salt, challenge }))
        }
    }
}

/// Retrieve for a picture
///
/// The picture is the body itself, or the part `picture` of a form. With `Accept: text/event-stream` the answer comes as
/// events: `first` after the pilot, `radius` for every certified radius (they never shrink, and all of them hold together
/// with probability 1 − alpha; if the samples turn against the label, the answer is an abstention), then `done` with the answer or `error`.
/// Without noise an answer is one pass, and `done` or `error` is the only event. With `receipt=true` the first event is
/// `commitment`, sent before anything is drawn, and the answer carries the receipt that opens it.
#[utoipa::path(
    post,
    path = "/v1/query",
    params(QueryParameters, ReceiptParameters),
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
    let form = Form::read(request, &KNOWN_WITH_RECEIPT, 1, service.settings.limits.body_bytes).await?;
    let options = QueryOptions::new(&service, &form.fields, service.settings.limits.samples)?;
    let receipt = wanted_receipt(&form.fields)?;
    // A stream shows smaller radii on the way.
    if !streamed {
        options.check_cap(&service)?;
    }
    slot.promise(options.passes(&service), service.scheduler.speed())?;
    let ticket = Arc::new(service.scheduler.ticket());
    let (limit, request_id) = (service.time_limit(), context.request_id.clone());
    let prepare = move |service: &Service| {
        let (picture, picture_hash) = service.prepare("query", form.picture())?;
        Ok::<_, Problem>(QueryRequest {
            picture,
            picture_hash,
            draws: options.draws()?,
            top_k: options.top_k,
            receipt,
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
                QueryProgress::Promised(commitment) => events.send("commitment", &commitment),
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
