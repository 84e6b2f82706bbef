//! Another gallery, without a restart.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::gallery_writer::{Reloaded, Turn};
use crate::problem::{ErrorBody, Problem};
use crate::query_execution::milliseconds;
use crate::service::Service;

/// It asks for a token that may write.
pub(super) const PATH: &str = "/v1/reload";

/// What a reload did
#[derive(Serialize, ToSchema)]
pub(crate) struct Reload {
    /// Whether another gallery is served now; if not, the directory holds what was served already
    changed: bool,
    /// Version of the gallery before it
    before: String,
    /// Version of the gallery that answers from now on, as answers name it
    gallery: String,
    /// Items of that gallery
    items: usize,
    /// Whether it cannot be changed, with any token
    read_only: bool,
    milliseconds: f64,
}

/// Serve what is in the gallery's directory by now
///
/// Opens the directory again, or that to which its name leads by now, and checks every digest. The gallery takes the place
/// of the one in service if it was made by the same encoder, with the same noise level, dimension, metric and kind, and has every
/// write that the service has acknowledged. If anything is wrong the answer is 409 with the reason, and the gallery in service
/// stays. Queries that are running end with the gallery with which they began; `hashes.gallery` of an answer names it. SIGHUP
/// does the same.
#[utoipa::path(
    post,
    path = "/v1/reload",
    responses(
        (status = 200, description = "The gallery that answers from now on", body = Reload),
        (status = 403, description = "The token may not write, or not from here", body = ErrorBody),
        (status = 409, description = "The gallery does not fit or is damaged; the one before it stays", body = ErrorBody),
        (status = 503, description = "Another reload is running, or the service is shutting down", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn reload(State(service): State<Arc<Service>>) -> Result<Json<Reload>, Problem> {
    let started = Instant::now();
    // Whoever asked may leave; what was begun is ended.
    let reloaded = tokio::task::spawn_blocking(move || service.reload(Turn::Refuse));
    let Reloaded { before, after, read_only } = reloaded.await.map_err(Problem::internal)??;
    let gallery = after.version().to_owned();
    let changed = before != gallery;
    let items = after.gallery().item_count();
    Ok(Json(Reload { changed, before, gallery, items, read_only, milliseconds: milliseconds(started) }))
}
