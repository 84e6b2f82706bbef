//! The gallery: look, add, remove.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::StatusCode;
use retrievalguard::storage::digest::Digest;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::layers::{Context, PathName, enter, path_name};
use super::stream::run;
use crate::form::{Fields, Form, ItemForm};
use crate::gallery_writer::Snapshot;
use crate::problem::{ErrorBody, Problem};
use crate::scheduler::Ticket;
use crate::service::Service;

/// Most items of one page of the list.
const PAGE: u64 = 200;

/// Longest label or identity.
const LONGEST: usize = 512;

/// An item of the gallery
#[derive(Serialize, ToSchema)]
pub(crate) struct GalleryItem {
    identity: String,
    label: String,
    /// Whether its picture can be had
    picture: bool,
    /// Whether it was added through this service
    added: bool,
}

impl GalleryItem {
    fn new(snapshot: &Snapshot, row: usize) -> Self {
        let gallery = snapshot.gallery();
        Self {
            identity: gallery.identity(row).to_owned(),
            label: gallery.label_name(gallery.label(row)).to_owned(),
            picture: snapshot.picture_path(row).is_some(),
            added: snapshot.is_added(row),
        }
    }
}

/// Some items of the gallery
#[derive(Serialize, ToSchema)]
pub(crate) struct ItemList {
    /// How many there are in all
    total: usize,
    /// How many come before the first of these
    offset: usize,
    items: Vec<GalleryItem>,
}

/// Which items
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct ListParameters {
    /// How many to leave out
    #[param(minimum = 0)]
    offset: Option<u32>,
    /// How many to return, 50 by default
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Only those with this label
    label: Option<String>,
}

/// List the gallery
#[utoipa::path(
    get,
    path = "/v1/items",
    params(ListParameters),
    responses(
        (status = 200, description = "Items in the order of the gallery", body = ItemList),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn list(State(service): State<Arc<Service>>, uri: Uri) -> Result<Json<ItemList>, Problem> {
    let fields = Fields::of_address(uri.query(), &["offset", "limit", "label"])?;
    let offset = fields.number("offset", 0, u64::from(u32::MAX))?.unwrap_or(0) as usize;
    let limit = fields.number("limit", 1, PAGE)?.unwrap_or(50) as usize;
    let snapshot = service.gallery.current();
    let gallery = snapshot.gallery();
    let first_rows = (0..gallery.item_count()).map(|item| gallery.item_rows(item).start);
    let rows: Vec<usize> = match fields.text("label").map(|name| gallery.label_named(name)) {
        None => first_rows.collect(),
        Some(None) => Vec::new(),
        Some(Some(label)) => first_rows.filter(|&row| gallery.label(row) == label).collect(),
    };
    let items = rows.iter().skip(offset).take(limit).map(|&row| GalleryItem::new(&snapshot, row)).collect();
    Ok(Json(ItemList { total: rows.len(), offset, items }))
}

/// A label and how many items have it
#[derive(Serialize, ToSchema)]
pub(crate) struct LabelCount {
    label: String,
    items: usize,
}

/// The labels of the gallery
#[derive(Serialize, ToSchema)]
pub(crate) struct LabelList {
    labels: Vec<LabelCount>,
}

/// List the labels
#[utoipa::path(
    get,
    path = "/v1/labels",
    responses(
        (status = 200, description = "Labels in alphabetical order", body = LabelList),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn labels(State(service): State<Arc<Service>>) -> Json<LabelList> {
    let snapshot = service.gallery.current();
    let gallery = snapshot.gallery();
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for &label in gallery.labels().iter().step_by(gallery.views()) {
        *counts.entry(gallery.label_name(label)).or_default() += 1;
    }
    let labels =
        counts.into_iter().map(|(label, items)| LabelCount { label: label.to_owned(), items }).collect();
    Json(LabelList { labels })
}

/// A gallery with one more item
#[derive(Serialize, ToSchema)]
pub(crate) struct Added {
    identity: String,
    label: String,
    /// Version of the gallery with it
    gallery: String,
}

/// Parameters of a new item
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct AddParameters {
    /// What the picture shows; here or in the form
    label: Option<String>,
    /// Name of the item; made from the picture's digest by default
    identity: Option<String>,
}

/// Add an item
///
/// The picture is embedded as the gallery's own were, in every view that they have. The answer comes when the item is on disk.
#[utoipa::path(
    post,
    path = "/v1/items",
    params(AddParameters),
    request_body(content = ItemForm, content_type = "multipart/form-data"),
    responses(
        (status = 201, description = "It is in the gallery, and on disk", body = Added),
        (status = 403, description = "The token may not write, the gallery is served read-only, or not from here", body = ErrorBody),
        (status = 409, description = "There is such an item, or the gallery takes none", body = ErrorBody),
        (status = 507, description = "No room on the disk", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn add(
    State(service): State<Arc<Service>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, Problem> {
    let (slot, request) = enter(&service, &context, request).await?;
    let form = Form::read(request, &["label", "identity"], 1, service.settings.limits.body_bytes).await?;
    let label =
        form.fields.text("label").ok_or_else(|| Problem::bad_request("parameter `label` is missing"))?;
    let label = name("label", label)?;
    let identity = match form.fields.text("identity") {
        Some(identity) => name("identity", identity)?,
        None => format!("added/{:.16}", Digest::of_bytes(form.picture())),
    };
    let current = service.gallery.current();
    let noisy = service.guarantees.basis.sampling().and(current.provenance().samples);
    let each = 1 + u64::from(noisy.unwrap_or(0));
    let passes = each * current.gallery().views() as u64;
    slot.promise(passes, service.scheduler.speed())?;
    let ticket = Arc::new(service.scheduler.ticket());
    let limit = service.time_limit();
    let item = (identity.clone(), label.clone());
    let work = move |ticket: &Ticket| {
        let written = service.add(item, form.picture(), ticket)?;
        drop(slot);
        Ok(written)
    };
    let written = run(&ticket, limit, work).await?;
    let added = Added { identity, label, gallery: written.version };
    Ok((StatusCode::CREATED, Json(added)).into_response())
}

/// A name that can stand in an address and in a list.
fn name(what: &str, text: &str) -> Result<String, Problem> {
    let wrong = if text.trim().is_empty() {
        Some("is empty".to_owned())
    } else if text.len() > LONGEST {
        Some(format!("has {} bytes, wanted at most {LONGEST}", text.len()))
    } else if text.chars().any(char::is_control) {
        Some("has control characters".to_owned())
    } else if [".", ".."].contains(&text) {
        Some(format!("is `{text}`, which cannot be part of an address"))
    } else {
        None
    };
    wrong.map_or_else(
        || Ok(text.to_owned()),
        |fault| Err(Problem::bad_request(format!("parameter `{what}` {fault}"))),
    )
}

/// The first row of an item.
pub(super) fn row(snapshot: &Snapshot, identity: &str) -> Result<usize, Problem> {
    snapshot.gallery().rows_of(identity).first().copied().ok_or_else(|| unknown(identity))
}

fn unknown(identity: &str) -> Problem {
    let identity: String = identity.chars().take(80).collect();
    Problem::not_found(format!("the gallery has no item `{identity}`"))
}

/// Show an item
#[utoipa::path(
    get,
    path = "/v1/items/{identity}",
    params(("identity" = String, Path, description = "Name of the item, percent-encoded")),
    responses(
        (status = 200, description = "The item", body = GalleryItem),
        (status = 404, description = "No such item", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    path: PathName,
) -> Result<Json<GalleryItem>, Problem> {
    let snapshot = service.gallery.current();
    let row = row(&snapshot, &path_name(path)?)?;
    Ok(Json(GalleryItem::new(&snapshot, row)))
}

/// A gallery without an item
#[derive(Serialize, ToSchema)]
pub(crate) struct Removed {
    /// How many vectors it had, one for each view
    removed: usize,
    /// Version of the gallery without it
    gallery: String,
}

/// Remove an item
///
/// The answer comes when the removal is on disk.
#[utoipa::path(
    delete,
    path = "/v1/items/{identity}",
    params(("identity" = String, Path, description = "Name of the item, percent-encoded")),
    responses(
        (status = 200, description = "It is gone", body = Removed),
        (status = 403, description = "The token may not write, the gallery is served read-only, or not from here", body = ErrorBody),
        (status = 404, description = "No such item", body = ErrorBody),
        (status = 409, description = "It is the last one", body = ErrorBody),
        (status = 429, description = "Too many requests of this client at once", body = ErrorBody),
        (status = 503, description = "Busy, or shutting down", body = ErrorBody),
        (status = 507, description = "No room on the disk", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Extension(context): Extension<Context>,
    path: PathName,
) -> Result<Json<Removed>, Problem> {
    let identity = path_name(path)?;
    let slot = service.admission.enter(&context.client, service.scheduler.speed())?;
    row(&service.gallery.current(), &identity)?;
    let written = tokio::task::spawn_blocking(move || {
        let written = service.gallery.remove(identity);
        drop(slot);
        written
    });
    let written = written.await.map_err(Problem::internal)??;
    Ok(Json(Removed { removed: written.rows, gallery: written.version }))
}
