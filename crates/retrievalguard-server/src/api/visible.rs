//! What a certified radius looks like on a picture.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use retrievalguard::Seed;
use retrievalguard_report::picture::Part;
use retrievalguard_report::visible::VisibleRadius;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::layers::{Context, enter};
use super::perturbations::norm_of_change;
use crate::form::{Form, QueryForm};
use crate::problem::Problem;
use crate::service::Service;

/// Which radius
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct VisibleParameters {
    /// l2 norm of the change
    #[param(minimum = 0.0, maximum = 1000.0)]
    radius: f64,
}

/// A radius around a picture, seen; pictures are `data:` addresses
#[derive(Serialize, ToSchema)]
pub(crate) struct Visible {
    /// l2 norm of the change
    radius: f64,
    /// Numbers in the encoder's input
    values: usize,
    /// By how many of 255 grey levels every value may change at once
    grey_levels: f64,
    /// By how much every value may change at once, pixels in [0, 1]
    l_infinity: f64,
    /// The radius in l2, in grey levels and in l∞
    words: String,
    /// The picture as the encoder gets it
    original: String,
    /// The same after a change of this norm, in a random direction
    changed: String,
    /// The change alone, enlarged around grey
    change: String,
    /// How many times it is enlarged
    times: u32,
}

impl From<&VisibleRadius> for Visible {
    fn from(seen: &VisibleRadius) -> Self {
        Self {
            radius: seen.radius.get(),
            values: seen.values,
            grey_levels: seen.radius.in_grey_levels(seen.values),
            l_infinity: seen.radius.l_infinity(seen.values).get(),
            words: seen.words(),
            original: seen.original.uri(),
            changed: seen.changed.uri(),
            change: seen.change.uri(),
            times: seen.times,
        }
    }
}

/// Show what a radius looks like
///
/// The picture as the encoder gets it, the same after a change of exactly this l2 norm in a random direction, and the change
/// alone, enlarged. No encoder runs, and nothing is said about whether the radius is certified.
#[utoipa::path(
    post,
    path = "/v1/visible-radius",
    params(VisibleParameters),
    request_body(content = QueryForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "Three pictures and the radius in words", body = Visible)),
    security((), ("bearer" = [])),
    tag = "query"
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Json<Visible>, Problem> {
    let (slot, request) = enter(&service, &context, request).await?;
    let form = Form::read(request, &["radius"], 1, service.settings.limits.body_bytes).await?;
    let radius = norm_of_change(&form.fields, "radius")?
        .ok_or_else(|| Problem::bad_request("parameter `radius` is missing"))?;
    let turn = service.drawing.acquire().await.map_err(Problem::internal)?;
    let own = Arc::clone(&service);
    let drawn = tokio::task::spawn_blocking(move || {
        let (picture, hash) = own.prepare("shown", form.picture())?;
        let _permit = own.permits.take();
        // The direction is for the eye alone, so the same picture may get the same one.
        let (config, seed) = (own.embedder.model_config(), Seed::new(0));
        VisibleRadius::new(&hash, &picture.pixels, config, radius, seed, Part::Whole)
            .map_err(Problem::internal)
    });
    let seen = drawn.await.map_err(Problem::internal)??;
    drop((turn, slot));
    Ok(Json(Visible::from(&seen)))
}
