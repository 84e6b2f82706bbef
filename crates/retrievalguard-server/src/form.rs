//! What a request brings: pictures and parameters, from a form, a raw body and the address.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::multipart::MultipartError;
use axum::extract::{FromRequest, Multipart, Request};
use futures_util::StreamExt;
use hyper::{StatusCode, header};
use utoipa::ToSchema;

use crate::problem::Problem;

/// Longest text of a parameter.
const LONGEST: usize = 4_096;

/// How many times the largest body is read for the sake of an answer.
const PATIENCE: usize = 8;

/// Longest that a client may take to send its body.
const SENDING: Duration = Duration::from_secs(30);

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
                format!("the body did not come within {seconds} s"),
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
            let message = format!("the body has {found} bytes, wanted at most {bytes}");
            // A client that is still sending hears nothing; one that waits to be asked is not asked.
            if !request.headers().contains_key(header::EXPECT) {
                swallow(request, PATIENCE * bytes).await;
            }
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        let fields = Fields::of_address(request.uri().query(), known)?;
        let mut form = Self { pictures: Vec::new(), fields };
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.map_or("", |kind| kind.to_str().unwrap_or("?")).to_ascii_lowercase();
        if kind.starts_with("multipart/form-data") {
            let parts = Multipart::from_request(request, &()).await;
            let mut parts = parts.map_err(|error| Problem::bad_request(error.body_text()))?;
            while let Some(part) = parts.next_field().await.map_err(refused)? {
                let name = part.name().unwrap_or("").to_owned();
                if name == "picture" {
                    if form.pictures.len() == most {
                        return Err(Problem::bad_request(format!("the form has more than {most} pictures")));
                    }
                    form.pictures.push(part.bytes().await.map_err(refused)?);
                } else {
                    let text = part.text().await.map_err(refused)?;
                    form.fields.add(&name, text, known)?;
                }
            }
        } else if kind.is_empty()
            || kind.starts_with("image/")
            || kind.starts_with("application/octet-stream")
        {
            let bytes = Bytes::from_request(request, &()).await;
            form.pictures.push(bytes.map_err(|error| of_status(error.status(), error.body_text()))?);
        } else {
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
        if let Some(place) = form.pictures.iter().position(Bytes::is_empty) {
            return Err(Problem::bad_request(format!("picture {} has no bytes", place + 1)));
        }
        Ok(form)
    }

    /// The only picture.
    pub(crate) fn picture(&self) -> &Bytes {
        &self.pictures[0]
    }
}

/// Reads a body that is not wanted, up to a point.
async fn swallow(request: Request, most: usize) {
    let mut body = request.into_body().into_data_stream();
    let mut read = 0;
    while let Some(Ok(piece)) = body.next().await {
        read += piece.len();
        if read > most {
            return;
        }
    }
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
    /// Certifying samples, or the most of them if there is a target radius
    samples: Option<u32>,
    /// Stop as soon as this radius is certified
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
