//! Large certifications, asked now and answered later.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::layers::{Context, PathName, empty, enter, path_name};
use super::query::{KNOWN, QueryOptions, QueryParameters};
use super::stream::events_of;
use crate::access::Role;
use crate::form::{Form, QueryForm, drain};
use crate::jobs::{JobReport, JobRequest, JobState, JobSummary, Jobs, now};
use crate::problem::{ErrorBody, Problem};
use crate::secret_seed;
use crate::service::Service;

/// A job that was accepted
#[derive(Serialize, ToSchema)]
pub(crate) struct Accepted {
    id: String,
    state: JobState,
}

/// The jobs that are kept
#[derive(Serialize, ToSchema)]
pub(crate) struct JobList {
    jobs: Vec<JobSummary>,
}

/// Ask for a large certification
///
/// One or several pictures, as parts `picture` of a form, or one as the body. An accepted job outlives the service.
#[utoipa::path(
    post,
    path = "/v1/jobs",
    params(QueryParameters),
    request_body(content = QueryForm, content_type = "multipart/form-data"),
    responses(
        (status = 202, description = "Accepted, and on disk", body = Accepted,
         headers(("Location" = String, description = "Where the job can be watched"))),
        (status = 403, description = "Not from here, or no job can be kept", body = ErrorBody),
        (status = 413, description = "The body or a picture is too large", body = ErrorBody),
        (status = 422, description = "A picture does not fit the encoder", body = ErrorBody),
        (status = 503, description = "No slot for another job, or shutting down", body = ErrorBody),
        (status = 507, description = "No room on the disk", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "jobs"
)]
pub(crate) async fn accept(
    State(service): State<Arc<Service>>,
    State(jobs): State<Arc<Jobs>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, Problem> {
    if let Err(problem) = jobs.check_available() {
        drain(request).await;
        return Err(problem);
    }
    let (slot, request) = enter(&service, &context, request).await?;
    let limits = service.settings.limits;
    let form = Form::read(request, &KNOWN, limits.job_pictures, service.settings.limits.body_bytes).await?;
    let options = QueryOptions::new(&service, &form.fields, limits.job_samples)?;
    let request = JobRequest {
        samples: options.samples,
        target: options.target,
        top_k: options.top_k,
        pictures: form.pictures.len(),
        seed: options.samples.map(|_| secret_seed()).transpose().map_err(Problem::internal)?,
        request_id: context.request_id,
        created: now(),
        client: context.client,
        picture_hashes: Vec::new(),
    };
    let accepted = tokio::task::spawn_blocking(move || {
        // A picture that cannot be read is said so now, not in an hour.
        for (index, picture) in form.pictures.iter().enumerate() {
            service.prepare(&format!("picture {}", index + 1), picture)?;
        }
        let job = jobs.accept(request, &form.pictures)?;
        drop(slot);
        Ok::<_, Problem>(job)
    });
    let job = accepted.await.map_err(Problem::internal)??;
    let accepted = Accepted { id: job.id.clone(), state: job.state() };
    let mut response = (StatusCode::ACCEPTED, Json(accepted)).into_response();
    if let Ok(address) = HeaderValue::from_str(&format!("/v1/jobs/{}", job.id)) {
        response.headers_mut().insert(header::LOCATION, address);
    }
    Ok(response)
}

/// List the jobs
#[utoipa::path(
    get,
    path = "/v1/jobs",
    responses(
        (status = 200, description = "Every job, the newest first", body = JobList),
    ),
    security((), ("bearer" = [])),
    tag = "jobs"
)]
pub(crate) async fn list(State(jobs): State<Arc<Jobs>>) -> Json<JobList> {
    Json(JobList { jobs: jobs.list() })
}

/// Show a job
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    params(("id" = String, Path, description = "Name of the job")),
    responses(
        (status = 200, description = "How far it is, and its answers", body = JobReport),
        (status = 404, description = "No such job", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "jobs"
)]
pub(crate) async fn show(State(jobs): State<Arc<Jobs>>, path: PathName) -> Result<Json<JobReport>, Problem> {
    let id = path_name(path)?;
    match jobs.damaged(&id) {
        Some(report) => Ok(Json(report)),
        None => Ok(Json(jobs.find(&id)?.report())),
    }
}

/// Call a job off, or forget one that is over
#[utoipa::path(
    delete,
    path = "/v1/jobs/{id}",
    params(("id" = String, Path, description = "Name of the job")),
    responses(
        (status = 204, description = "Done"),
        (status = 403, description = "Another client's job, not from here, or nothing can be written", body = ErrorBody),
        (status = 404, description = "No such job", body = ErrorBody),
        (status = 409, description = "The job is damaged and kept as it is", body = ErrorBody),
        (status = 507, description = "No room on the disk", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "jobs"
)]
pub(crate) async fn end(
    State(jobs): State<Arc<Jobs>>,
    Extension(context): Extension<Context>,
    path: PathName,
) -> Result<Response, Problem> {
    let id = path_name(path)?;
    let may_end = move |job: &JobRequest| job.client == context.client || context.role == Some(Role::Write);
    tokio::task::spawn_blocking(move || jobs.end(&id, may_end)).await.map_err(Problem::internal)??;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// Watch a job
///
/// Events `progress` whenever something changed, then `done` with the job as it ended; `error` if the service ends before it,
/// and the next one goes on with the job.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/events",
    params(("id" = String, Path, description = "Name of the job")),
    responses(
        (status = 200, description = "Events until the job is over", body = String, content_type = "text/event-stream"),
        (status = 404, description = "No such job", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "jobs"
)]
pub(crate) async fn events(
    State(service): State<Arc<Service>>,
    State(jobs): State<Arc<Jobs>>,
    Extension(context): Extension<Context>,
    path: PathName,
) -> Result<Response, Problem> {
    let id = path_name(path)?;
    if let Some(report) = jobs.damaged(&id) {
        return Ok(events_of(async move |events| events.send("done", &report)));
    }
    let job = jobs.find(&id)?;
    Ok(events_of(async move |events| {
        let mut watch = job.watch();
        loop {
            watch.mark_unchanged();
            let progress = job.progress();
            events.send("progress", &progress);
            if progress.state.is_over() {
                events.send("done", &job.report());
                return;
            }
            if service.is_closing() {
                events.send("error", &Problem::closing().body(&context.request_id));
                return;
            }
            if watch.changed().await.is_err() {
                return;
            }
        }
    }))
}
