//! For those who run the service, and the page.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::jobs::Jobs;
use crate::page;
use crate::problem::{ErrorBody, Problem};
use crate::service::Service;

/// One word
#[derive(Serialize, ToSchema)]
pub(crate) struct Status {
    status: &'static str,
}

/// Whether the program runs
#[utoipa::path(
    get,
    path = "/healthz",
    responses(
        (status = 200, description = "It does", body = Status),
    ),
    tag = "service"
)]
pub(crate) async fn alive() -> Json<Status> {
    Json(Status { status: "alive" })
}

/// Whether queries are taken
#[utoipa::path(
    get,
    path = "/readyz",
    responses(
        (status = 200, description = "They are", body = Status),
        (status = 503, description = "The service is shutting down", body = ErrorBody),
    ),
    tag = "service"
)]
pub(crate) async fn ready(State(service): State<Arc<Service>>) -> Result<Json<Status>, Problem> {
    if service.is_closing() { Err(Problem::closing()) } else { Ok(Json(Status { status: "ready" })) }
}

/// Numbers for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
    ),
    security((), ("bearer" = [])),
    tag = "service"
)]
pub(crate) async fn metrics(
    State(service): State<Arc<Service>>,
    State(jobs): State<Arc<Jobs>>,
) -> Result<Response, Problem> {
    let text = service.metrics.text(&service.readings(jobs.unfinished())).map_err(Problem::internal)?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response())
}

/// The page and the OpenAPI document, which do not stand in it.
pub(super) fn undocumented(document: Arc<str>) -> Router<App> {
    let text = move || async move {
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], document.to_string())
    };
    let file = async |request: Request| {
        let headers: &HeaderMap = request.headers();
        page::file(request.uri().path(), headers).ok_or_else(|| Problem::not_found("there is no such file"))
    };
    let mut router = Router::new().route("/openapi.json", get(text));
    for path in page::paths() {
        router = router.route(path, get(file));
    }
    router
}

/// The address exists, but not for this method.
pub(super) async fn method_not_allowed(request: Request) -> Response {
    let method: String = request.method().as_str().chars().take(20).collect();
    let message = format!("{method} is not allowed at this address");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}
