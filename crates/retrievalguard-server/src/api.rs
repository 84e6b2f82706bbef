//! The addresses of the service, and the document that describes them.

#![expect(unused_qualifications, reason = "the macro that describes parameters writes them")]

mod about;
mod items;
mod jobs;
mod layers;
mod perturbations;
mod pictures;
mod query;
mod refusals;
mod reload;
mod stream;
mod system;
mod visible;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::problem::Problem;

/// Name of the way in which tokens are presented.
const BEARER: &str = "bearer";

/// All addresses, with what stands in front of them.
pub(crate) fn router(app: &App) -> Router {
    let (router, mut document) = documented().split_for_parts();
    refusals::describe(&mut document);
    let document: Arc<str> = document.to_json().unwrap_or_default().into();
    let router = router
        .merge(system::undocumented(document))
        .fallback(async || Problem::not_found("there is nothing at this address"))
        .method_not_allowed_fallback(system::method_not_allowed)
        .with_state(app.clone());
    router
        .layer(DefaultBodyLimit::max(app.service.settings.limits.body_bytes))
        .layer(from_fn_with_state(app.clone(), layers::guard))
        .layer(from_fn_with_state(app.clone(), layers::name_and_log))
}

/// The OpenAPI document, generated from the handlers.
pub fn document() -> OpenApi {
    let mut document = documented().split_for_parts().1;
    refusals::describe(&mut document);
    document
}

fn documented() -> OpenApiRouter<App> {
    let info = InfoBuilder::new()
        .title("RetrievalGuard")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Image retrieval whose answers come with a proof: a radius inside which no change of the picture as the \
             encoder gets it, in the l2 norm of pixels scaled to [0, 1], changes the retrieved label.",
        ))
        .build();
    let mut document = OpenApiBuilder::new().info(info).build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    OpenApiRouter::with_openapi(document)
        .routes(routes!(about::about))
        .routes(routes!(query::query))
        .routes(routes!(visible::show))
        .routes(routes!(items::list, items::add))
        .routes(routes!(items::show, items::remove))
        .routes(routes!(pictures::picture))
        .routes(routes!(items::labels))
        .routes(routes!(reload::reload))
        .routes(routes!(jobs::list, jobs::accept))
        .routes(routes!(jobs::show, jobs::end))
        .routes(routes!(jobs::events))
        .routes(routes!(perturbations::make))
        .routes(routes!(perturbations::look::look))
        .routes(routes!(perturbations::look::picture))
        .routes(routes!(system::alive))
        .routes(routes!(system::ready))
        .routes(routes!(system::metrics))
}
