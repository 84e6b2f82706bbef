//! Pictures of items as they are sent: small, or the file as it is.

use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use retrievalguard_encoder::picture::{PictureFormat, PictureLimits, RgbPicture};
use retrievalguard_report::picture::Thumbnail;
use utoipa::IntoParams;

use super::items::row;
use super::layers::{PathName, path_name};
use crate::form::Fields;
use crate::problem::{ErrorBody, Problem};
use crate::service::Service;

/// Bytes of an original that are read at once.
const PIECE: u64 = 256 << 10;

/// Longest side of a picture that is sent.
const SIDE: usize = 192;

/// Which picture
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it stands for the parameters in the OpenAPI document")]
pub(crate) struct PictureParameters {
    /// The file as it is, instead of a small picture
    original: Option<bool>,
}

/// Show an item's picture
#[utoipa::path(
    get,
    path = "/v1/items/{identity}/picture",
    params(("identity" = String, Path, description = "Name of the item, percent-encoded"), PictureParameters),
    responses(
        (status = 200, description = "At most 192 pixels high and wide, or the original", content(
            (Vec<u8> = "image/jpeg"),
            (Vec<u8> = "image/png"),
            (Vec<u8> = "image/webp"),
        )),
        (status = 404, description = "No such item, or its picture is not there", body = ErrorBody),
    ),
    security((), ("bearer" = [])),
    tag = "gallery"
)]
pub(crate) async fn picture(
    State(service): State<Arc<Service>>,
    path: PathName,
    uri: Uri,
) -> Result<Response, Problem> {
    let identity = path_name(path)?;
    let fields = Fields::of_address(uri.query(), &["original"])?;
    let original = fields.word("original", &["true", "false"])? == Some("true");
    let snapshot = service.gallery.current();
    let row = row(&snapshot, &identity)?;
    let missing = || Problem::not_found(format!("the picture of `{identity}` is missing"));
    // Where pictures are is the gallery's own knowledge; nothing of a request becomes a path.
    let file = snapshot.picture_path(row).ok_or_else(missing)?;
    if original {
        let opened = tokio::task::spawn_blocking(move || Original::open(&file));
        let original = opened.await.map_err(Problem::internal)?.ok_or_else(missing)?;
        return Ok(sent(media_type(original.format), original.into_body()));
    }
    let name = identity.clone();
    let turn = service.drawing.acquire().await.map_err(Problem::internal)?;
    let own = Arc::clone(&service);
    let drawn = tokio::task::spawn_blocking(move || {
        let service = own;
        let _permit = service.permits.take();
        let limits = PictureLimits { pixels: service.settings.limits.pixels, ..PictureLimits::default() };
        let picture = RgbPicture::from_path(&file, &limits).ok()?;
        Thumbnail::new(&name, &picture, SIDE).ok()
    });
    let drawn = drawn.await.map_err(Problem::internal)?.ok_or_else(missing)?;
    drop(turn);
    Ok(shown(&drawn))
}

fn media_type(format: PictureFormat) -> &'static str {
    match format {
        PictureFormat::Jpeg => "image/jpeg",
        PictureFormat::Png => "image/png",
        PictureFormat::WebP => "image/webp",
    }
}

/// A small picture as an answer.
pub(super) fn shown(picture: &Thumbnail) -> Response {
    sent(picture.media_type(), picture.bytes().to_vec().into())
}

/// A stored picture that is sent piece by piece, so that no file is held in memory for a client that does not read.
struct Original {
    file: File,
    format: PictureFormat,
    first: Vec<u8>,
}

impl Original {
    /// Opens a file that is a picture.
    fn open(path: &std::path::Path) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let first = piece(&mut file).ok()?;
        let format = PictureFormat::of(&first)?;
        Some(Self { file, format, first })
    }

    fn into_body(self) -> Body {
        let state = (Some(self.first), Arc::new(Mutex::new(self.file)));
        Body::from_stream(stream::unfold(state, |(first, file)| async move {
            if let Some(first) = first {
                return Some((Ok(first), (None, file)));
            }
            let own = Arc::clone(&file);
            let read = tokio::task::spawn_blocking(move || {
                piece(&mut own.lock().unwrap_or_else(PoisonError::into_inner))
            });
            match read.await.map_err(io::Error::other).and_then(|piece| piece) {
                Ok(piece) if piece.is_empty() => None,
                result => Some((result, (None, file))),
            }
        }))
    }
}

/// The next bytes of a file; none at its end.
fn piece(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn sent(kind: &'static str, content: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=60")),
    ];
    (headers, content).into_response()
}
