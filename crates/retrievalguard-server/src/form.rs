//! What a request brings: pictures and parameters, from a form, a raw body and the address.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::multipart::{Field as MultipartField, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use futures_util::StreamExt;
use hyper::{StatusCode, header};
use utoipa::ToSchema;

use crate::problem::Problem;

/// Longest text of a parameter.
const LONGEST: usize = 4_096;

/// Most bytes of a refused body that are read for the sake of the answer.
const PATIENCE: usize = 64 << 20;

/// Longest that a refused body is read.
const DRAINING: Duration = Duration::from_secs(5);

/// Longest that a client may take to send its body.
const SENDING: Duration = Duration::from_secs(15);

/// Parameters by name, each given once.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    values: BTreeMap<String, String>,
}

impl Fields {
    /// The parameters of an address.
    pub(crate) fn of_address(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut fields = Self::default();
        for (name, value) in form_urlencoded::parse(query.unwrap_or("").as_bytes()) {
            fields.add(&name, value.into_owned(), known)?;
        }
        Ok(fields)
    }

    fn add(&mut self, name: &str, value: String, known: &[&str]) -> Result<(), Problem> {
        if !known.contains(&name) {
            let name: String = name.chars().take(80).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Problem::bad_request(format!(
                "parameter `{name}` is unknown, wanted one of {known}"
            )));
        }
        if value.len() > LONGEST {
            let found = value.len();
            return Err(Problem::bad_request(format!(
                "parameter `{name}` has {found} bytes, wanted at most {LONGEST}"
            )));
        }
        if self.values.insert(name.to_owned(), value).is_some() {
            return Err(Problem::bad_request(format!("parameter `{name}` is given twice, wanted it once")));
        }
        Ok(())
    }

    /// A parameter as text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A parameter as a value that is checked when it is made.
    pub(crate) fn parse<T>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some(text) = self.text(name) else { return Ok(None) };
        let refused = |error: T::Err| {
            let text: String = text.chars().take(80).collect();
            Problem::bad_request(format!("parameter `{name}` is `{text}`: {error}"))
        };
        text.parse().map(Some).map_err(refused)
    }

    /// A whole number within a range.
    pub(crate) fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            Ok(_) | Err(_) => {
                let text: String = text.chars().take(80).collect();
                Err(Problem::bad_request(format!(
                    "parameter `{name}` is `{text}`, wanted a whole number from {least} to {most}"
                )))
            }
        }
    }

    /// One word out of a list.
    pub(crate) fn word<'w>(&self, name: &str, words: &[&'w str]) -> Result<Option<&'w str>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let found = words.iter().find(|word| **word == text).copied();
        found.map(Some).ok_or_else(|| {
            let text: String = text.chars().take(80).collect();
            Problem::bad_request(format!(
                "parameter `{name}` is `{text}`, wanted one of {}",
                words.join(", ")
            ))
        })
    }
}

/// Pictures and parameters.
#[derive(Debug, Default)]
pub(crate) struct Form {
    pub(crate) pictures: Vec<Bytes>,
    pub(crate) fields: Fields,
}

impl Form {
    /// Reads a request whose parameters are among `known`, with at most `pictures` pictures and `bytes` bytes.
    pub(crate) async fn read(
        request: Request,
        known: &[&str],
        pictures: usize,
        bytes: usize,
    ) -> Result<Self, Problem> {
        let reading = tokio::time::timeout(SENDING, Self::read_whole(request, known, pictures, bytes));
        let late = |_| {
            let seconds = SENDING.as_secs();
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "too_slow",
                format!("the body did not arrive within {seconds} s"),
            )
        };
        reading.await.map_err(late)?
    }

    async fn read_whole(
        request: Request,
        known: &[&str],
        most: usize,
        bytes: usize,
    ) -> Result<Self, Problem> {
        let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if let Some(found) = announced.and_then(|length| length.parse::<usize>().ok())
            && found > bytes
        {
            drain(request).await;
            let message = format!("the body has {found} bytes, wanted at most {bytes}");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        let mut form = match Fields::of_address(request.uri().query(), known) {
            Ok(fields) => Self { pictures: Vec::new(), fields },
            Err(problem) => {
                drain(request).await;
                return Err(problem);
            }
        };
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.map_or("", |kind| kind.to_str().unwrap_or("?")).to_ascii_lowercase();
        if kind.starts_with("multipart/form-data") {
            let parts = Multipart::from_request(request, &()).await;
            let mut parts = parts.map_err(|error| Problem::bad_request(error.body_text()))?;
            let mut fault = None;
            while let Some(part) = parts.next_field().await.map_err(refused)? {
                // After a fault the rest is read all the same, so that the client hears of it.
                if let Err(problem) = form.take(part, known, most).await {
                    fault.get_or_insert(problem);
                }
            }
            if let Some(problem) = fault {
                return Err(problem);
            }
        } else if kind.is_empty()
            || kind.starts_with("image/")
            || kind.starts_with("application/octet-stream")
        {
            let bytes = Bytes::from_request(request, &()).await;
            form.pictures.push(bytes.map_err(|error| of_status(error.status(), error.body_text()))?);
        } else {
            drain(request).await;
            let kind: String = kind.chars().take(80).collect();
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                format!(
                    "the body is `{kind}`, wanted image/…, application/octet-stream or multipart/form-data"
                ),
            ));
        }
        if form.pictures.is_empty() {
            return Err(Problem::bad_request(
                "the form has no part `picture`, wanted one with the picture's file",
            ));
        }
        if let Some(index) = form.pictures.iter().position(Bytes::is_empty) {
            let message = format!("picture {} has no bytes, wanted a JPEG, PNG or WebP file", index + 1);
            return Err(Problem::bad_request(message));
        }
        Ok(form)
    }

    /// One part of a form.
    async fn take(&mut self, part: MultipartField<'_>, known: &[&str], most: usize) -> Result<(), Problem> {
        let Some(name) = part.name().map(ToOwned::to_owned) else {
            return Err(Problem::bad_request(
                "a part of the form has no name, wanted `picture` or a parameter's",
            ));
        };
        if name != "picture" {
            return self.fields.add(&name, part.text().await.map_err(refused)?, known);
        }
        if self.pictures.len() == most {
            return Err(Problem::bad_request(format!("the form has another picture, wanted at most {most}")));
        }
        self.pictures.push(part.bytes().await.map_err(refused)?);
        Ok(())
    }

    /// The only picture.
    pub(crate) fn picture(&self) -> &Bytes {
        &self.pictures[0]
    }
}

/// Reads the body of a request that is refused, up to a point: a client that is still sending hears nothing.
///
/// A client that sent `Expect: 100-continue` is not asked for its body.
pub(crate) async fn drain(request: Request) {
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    let reading = async {
        let mut body = request.into_body().into_data_stream();
        let mut read = 0;
        while let Some(Ok(piece)) = body.next().await {
            read += piece.len();
            if read > PATIENCE {
                return;
            }
        }
    };
    // A slower client does not get the reason.
    let _ = tokio::time::timeout(DRAINING, reading).await;
}

fn refused(error: MultipartError) -> Problem {
    of_status(error.status(), error.body_text())
}

fn of_status(status: StatusCode, message: String) -> Problem {
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        Problem::new(status, "too_large", message)
    } else {
        Problem::bad_request(message)
    }
}

/// One picture and its parameters, as a form
#[derive(ToSchema)]
#[expect(dead_code, reason = "it stands for the form in the OpenAPI document")]
pub(crate) struct QueryForm {
    /// The picture's file: JPEG, PNG or WebP
    #[schema(format = Binary, content_media_type = "application/octet-stream")]
    picture: Vec<u8>,
    /// Certifying samples, or the most of them if there is a target radius; refused for a gallery without noise
    samples: Option<u32>,
    /// Stop as soon as this radius is certified; refused for a gallery without noise
    target_radius: Option<f64>,
    /// Items to return
    top_k: Option<u32>,
}

/// A picture for the gallery, as a form
#[derive(ToSchema)]
#[expect(dead_code, reason = "it stands for the form in the OpenAPI document")]
pub(crate) struct ItemForm {
    /// The picture's file: JPEG, PNG or WebP
    #[schema(format = Binary, content_media_type = "application/octet-stream")]
    picture: Vec<u8>,
    label: String,
    /// Name of the item; made from the picture's digest by default
    identity: Option<String>,
}

#[cfg(test)]
#[path = "../../retrievalguard/tests/mutation/mod.rs"]
mod mutation;

#[cfg(test)]
mod tests;
