//! What operations have in common in the OpenAPI document: why they refuse, and how a picture is sent.
//!
//! Handlers describe what is theirs alone; the rest follows from the address and from whether a body is sent. What a
//! handler says itself stays.

use utoipa::openapi::path::Operation;
use utoipa::openapi::{Content, ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema};

use super::layers::{TO_THE_END, needs_token};

/// What anybody may be refused for.
const ANYWHERE: [(&str, &str); 4] = [
    ("400", "The header `Host` is not a name"),
    ("403", "Not from here"),
    ("429", "Too many connections of this client"),
    ("500", "A fault of the service; its log says why"),
];

/// What whoever sends a picture may be refused for.
const WITH_A_PICTURE: [(&str, &str); 7] = [
    ("400", "A parameter or the form is wrong"),
    ("408", "The body came too slowly"),
    ("413", "The body or the picture is too large"),
    ("415", "Not a picture"),
    ("422", "The picture does not fit the encoder"),
    ("429", "Too many requests of this client at once"),
    ("503", "Busy, too long, or shutting down"),
];

/// How a picture is sent that is a body of its own instead of a part of a form.
const RAW: [&str; 4] = ["application/octet-stream", "image/jpeg", "image/png", "image/webp"];

/// Adds to every operation what it has in common with others.
pub(super) fn describe(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
            add_raw_pictures(operation);
            add_refusals(path, operation);
        }
    }
}

fn add_raw_pictures(operation: &mut Operation) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    for media_type in RAW {
        let bytes: RefOr<Schema> = utoipa::schema!(Vec<u8>).into();
        body.content.insert(media_type.to_owned(), Content::new(Some(bytes)).into());
    }
}

fn add_refusals(path: &str, operation: &mut Operation) {
    let mut refusals = Vec::new();
    if operation.request_body.is_some() {
        refusals.extend(WITH_A_PICTURE);
    }
    if path.contains('{') {
        refusals.push(("400", "The address is not text"));
    }
    if needs_token(path) {
        refusals.push(("401", "No known token"));
    }
    if !TO_THE_END.contains(&path) {
        refusals.push(("503", "The service is shutting down"));
    }
    refusals.extend(ANYWHERE);
    for (status, description) in refusals {
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert_with(|| refusal(description).into());
    }
}

fn refusal(description: &str) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    ResponseBuilder::new().description(description).content("application/json", body).build()
}
