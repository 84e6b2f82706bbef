//! What every request passes: a name, a line in the log, and the guard.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, MatchedPath, Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::{Method, StatusCode};
use tracing::Instrument;

use crate::access::{Role, client_key};
use crate::admission::AdmissionSlot;
use crate::form::drain;
use crate::origin::check_sender;
use crate::problem::Problem;
use crate::service::Service;

/// Methods that are counted by name; what a stranger invents is not.
const KNOWN_METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::DELETE, Method::OPTIONS, Method::PUT];

/// Longest request id that is taken over from a client.
const LONGEST_ID: usize = 64;

/// What is known about a request before it is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) request_id: String,
    /// Name under which the client's requests are counted.
    pub(crate) client: String,
    /// What its token allows.
    pub(crate) role: Option<Role>,
}

impl Context {
    /// Whether the request may do this.
    pub(crate) fn require(&self, role: Role) -> Result<(), Problem> {
        match self.role {
            None => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorised",
                "the request has no valid token, wanted `Authorization: Bearer TOKEN`",
            )),
            Some(own) if own < role => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "read_only",
                "the token may read, wanted one that may write",
            )),
            Some(_) => Ok(()),
        }
    }
}

/// Gives the request a name, finishes error bodies with it, counts and logs.
pub(crate) async fn name_and_log(
    State(service): State<Arc<Service>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let request_id = request_id(&request);
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let address = address.unwrap_or(std::net::Ipv4Addr::LOCALHOST.into());
    let tokens = &service.settings.tokens;
    let context = Context {
        client: client_key(tokens, request.headers(), address),
        role: tokens.role(request.headers()),
        request_id: request_id.clone(),
    };
    request.extensions_mut().insert(context);
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "unknown".to_owned());
    let method = request.method().clone();
    let span = tracing::info_span!("request", request_id);
    let mut response = next.run(request).instrument(span).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = finished(&problem, &request_id, response);
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert("x-request-id", value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // No page elsewhere may show or measure anything of this, whatever its browser sends along.
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if service.is_closing() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let (status, time) = (response.status().as_u16(), started.elapsed());
    let counted = if KNOWN_METHODS.contains(&method) { method.as_str() } else { "other" };
    service.metrics.request(counted, &route, status, time);
    let milliseconds = (time.as_secs_f64() * 1e4).round() / 10.0;
    tracing::info!(request_id, method = counted, route, status, milliseconds, client = %address, "request");
    response
}

/// The problem as JSON, with the headers it needs.
fn finished(problem: &Problem, request_id: &str, old: Response) -> Response {
    let mut response = (problem.status, axum::Json(problem.body(request_id))).into_response();
    // What a layer further in has set, `Allow` for instance, stays.
    for (name, value) in old.headers() {
        if *name != header::CONTENT_TYPE && *name != header::CONTENT_LENGTH {
            response.headers_mut().insert(name.clone(), value.clone());
        }
    }
    if let Some(seconds) = problem.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    if problem.status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The client's own id if it is harmless, otherwise a fresh one.
fn request_id(request: &Request) -> String {
    let own = request.headers().get("x-request-id").and_then(|value| value.to_str().ok());
    let harmless = |id: &&str| {
        (1..=LONGEST_ID).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    match own.filter(harmless) {
        Some(id) => id.to_owned(),
        None => crate::random_name().unwrap_or_else(|_| "unnamed".to_owned()),
    }
}

/// What is answered while the service ends: whether it runs, whether it takes queries, and its numbers.
pub(crate) const TO_THE_END: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Keeps strangers out, and everyone while the service ends.
pub(crate) async fn guard(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    if let Err(problem) = admit(&service, &request) {
        drain(request).await;
        return problem.into_response();
    }
    next.run(request).await
}

fn admit(service: &Service, request: &Request) -> Result<(), Problem> {
    let settings = &service.settings;
    check_sender(request, &settings.tokens, &settings.hosts)?;
    let path = request.uri().path();
    if service.is_closing() && !TO_THE_END.contains(&path) {
        return Err(Problem::closing());
    }
    if !needs_token(path) {
        return Ok(());
    }
    let writes = !request.method().is_safe() && path.starts_with("/v1/items");
    let role = if writes || path == super::reload::PATH { Role::Write } else { Role::Read };
    let context = request.extensions().get::<Context>();
    context.ok_or_else(|| Problem::internal("a request has no context"))?.require(role)?;
    if writes { service.gallery.check_writable() } else { Ok(()) }
}

/// Whether an address asks for a token, if the service has any.
pub(crate) fn needs_token(path: &str) -> bool {
    (path.starts_with("/v1/") || path == "/metrics") && path != "/v1/about"
}

/// Takes a slot for a request; the body of one that is refused is read first.
pub(crate) async fn enter(
    service: &Service,
    context: &Context,
    request: Request,
) -> Result<(AdmissionSlot, Request), Problem> {
    match service.admission.enter(&context.client, service.scheduler.speed()) {
        Ok(slot) => Ok((slot, request)),
        Err(problem) => {
            drain(request).await;
            Err(problem)
        }
    }
}

/// The only name in an address, or why it is none.
pub(crate) type PathName = Result<Path<String>, PathRejection>;

/// The name in an address as text.
pub(crate) fn path_name(path: PathName) -> Result<String, Problem> {
    path.map(|Path(name)| name).map_err(|error| Problem::bad_request(error.body_text()))
}

/// An empty answer with a status.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
