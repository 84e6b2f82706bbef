//! The page: files that are part of the program.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use retrievalguard::storage::digest::Digest;

/// Only what the service itself sends may run, be shown or be asked.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Name, media type and content of every file.
const FILES: [(&str, &str, &str); 15] = [
    ("/api.js", "text/javascript; charset=utf-8", include_str!("../page/api.js")),
    ("/app.css", "text/css; charset=utf-8", include_str!("../page/app.css")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/chart.js", "text/javascript; charset=utf-8", include_str!("../page/chart.js")),
    ("/elements.js", "text/javascript; charset=utf-8", include_str!("../page/elements.js")),
    ("/events.js", "text/javascript; charset=utf-8", include_str!("../page/events.js")),
    ("/facts.js", "text/javascript; charset=utf-8", include_str!("../page/facts.js")),
    ("/gallery.js", "text/javascript; charset=utf-8", include_str!("../page/gallery.js")),
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/notice.js", "text/javascript; charset=utf-8", include_str!("../page/notice.js")),
    ("/numbers.js", "text/javascript; charset=utf-8", include_str!("../page/numbers.js")),
    ("/perturb.js", "text/javascript; charset=utf-8", include_str!("../page/perturb.js")),
    ("/query.js", "text/javascript; charset=utf-8", include_str!("../page/query.js")),
    ("/thumbnails.js", "text/javascript; charset=utf-8", include_str!("../page/thumbnails.js")),
    ("/visible.js", "text/javascript; charset=utf-8", include_str!("../page/visible.js")),
];

/// The paths under which files are served; the page itself is at `/`.
pub(crate) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, ..)| *path)
}

/// A file of the page.
pub(crate) fn file(path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let (_, kind, text) = FILES.iter().find(|(name, ..)| *name == path)?;
    let tag = format!("\"{:.16}\"", Digest::of_bytes(text.as_bytes()));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = Response::new(if known { Body::empty() } else { Body::from(*text) });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    out.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    out.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        out.insert(header::ETAG, tag);
    }
    Some(response)
}
