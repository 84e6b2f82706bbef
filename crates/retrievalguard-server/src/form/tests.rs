//! Damaged requests.

use axum::body::Body;

use super::mutation::{CountingAllocator, Kind, Reading, run};
use super::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Most bytes of a body here; what is read of one may be there twice.
const BODY: usize = 1 << 16;

#[test]
fn no_damaged_form_makes_the_reader_panic_hang_or_fill_the_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = |kind: &str, body: &[u8]| -> Reading {
        let request = Request::post("/v1/query?samples=100").header(header::CONTENT_TYPE, kind);
        let Ok(request) = request.body(Body::from(body.to_vec())) else { return Reading::Refused };
        runtime.block_on(Form::read(request, &["samples", "top_k"], 2, BODY)).into()
    };
    let form = b"--edge\r\ncontent-disposition: form-data; name=\"top_k\"\r\n\r\n3\r\n--edge\r\n\
        content-disposition: form-data; name=\"picture\"; filename=\"a.png\"\r\ncontent-type: image/png\r\n\r\n\
        \x89PNG\r\n\x1a\n0123456789\r\n--edge--\r\n";
    let kind = "multipart/form-data; boundary=edge";
    run(&[
        Kind {
            name: "form",
            seeds: vec![form.to_vec()],
            allowance: 4 * BODY,
            repair: None,
            read: &|bytes| read(kind, bytes),
        },
        Kind {
            name: "boundary of a form",
            seeds: vec![kind.into()],
            allowance: 4 * BODY,
            repair: None,
            read: &|bytes| std::str::from_utf8(bytes).map_or(Reading::Refused, |kind| read(kind, form)),
        },
        Kind {
            name: "parameters",
            seeds: vec![b"samples=100&top_k=5".to_vec(), b"samples=%31%30".to_vec()],
            allowance: 4 * BODY,
            repair: None,
            read: &|bytes| {
                let query = std::str::from_utf8(bytes);
                let fields = query.map(|query| {
                    let fields = Fields::of_address(Some(query), &["samples", "top_k"])?;
                    fields.number("samples", 1, 1_000)?;
                    fields.number("top_k", 1, 100)
                });
                fields.map_or(Reading::Refused, Reading::from)
            },
        },
    ]);
}
