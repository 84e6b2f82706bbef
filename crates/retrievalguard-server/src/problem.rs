//! What goes wrong, as clients see it.

use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use retrievalguard::certificate::CertificateError;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::manifest::StorageError;
use retrievalguard_encoder::picture::PictureError;
use retrievalguard_encoder::pipeline::PipelineError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::scheduler::PassError;

/// An answer that is no answer: status, code, words, and when to come back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// Seconds after which asking again makes sense.
    pub(crate) retry_after: Option<u64>,
}

/// What is wrong with a request, or with the service.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorFacts,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorFacts {
    /// Short name that programs can rely on
    pub(crate) code: String,
    /// What was found and what was wanted
    pub(crate) message: String,
    /// Name of the request in the logs
    pub(crate) request_id: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", message)
    }

    /// The service cannot take this on at the moment.
    pub(crate) fn busy(message: impl Into<String>, seconds: u64) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
        Self { retry_after: Some(seconds.max(1)), ..problem }
    }

    pub(crate) fn closing() -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "closing", "the service is shutting down");
        Self { retry_after: Some(5), ..problem }
    }

    /// A fault of the service itself; the cause goes to the log, not to the client.
    pub(crate) fn internal(cause: impl std::fmt::Display) -> Self {
        tracing::error!(cause = %cause, "internal error");
        let message = "the service failed; its log says why, under this request id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// Something could not be brought to the disk, so it did not happen; the cause goes to the log.
    pub(crate) fn not_written(error: &WriteError) -> Self {
        let cause = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        let cause: Vec<String> = cause.map(ToString::to_string).collect();
        match error {
            WriteError::DiskFull { .. } | WriteError::SizeLimit { .. } => {
                tracing::error!(cause = cause.join(": "), "no room on the disk");
                let message = "the service has no room left on its disk, so nothing was changed; queries work as before";
                let problem = Self::new(StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", message);
                Self { retry_after: Some(60), ..problem }
            }
            WriteError::ReadOnly { .. } => {
                tracing::error!(cause = cause.join(": "), "the disk cannot be written to");
                Self::read_only("the service cannot write to its disk, so nothing was changed")
            }
            other => Self::internal(other),
        }
    }

    /// Like [`Problem::not_written`], for a gallery.
    pub(crate) fn not_stored(error: &StorageError) -> Self {
        match error {
            StorageError::Write(error) => Self::not_written(error),
            StorageError::Replaced { .. } => {
                tracing::error!(cause = %error, "the gallery cannot be written to");
                let message = "the gallery was replaced on the disk, so nothing was changed; wanted a reload";
                let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "gallery_replaced", message);
                Self { retry_after: Some(5), ..problem }
            }
            other => Self::internal(other),
        }
    }

    /// A picture was embedded as a gallery wanted it that is served no longer.
    pub(crate) fn embedded_otherwise() -> Self {
        let message = "the gallery was replaced while the picture was embedded, by one whose vectors are made otherwise";
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "gallery_replaced", message);
        Self { retry_after: Some(1), ..problem }
    }

    /// Another gallery was not taken, and the one before it stays.
    pub(crate) fn not_reloaded(cause: &str) -> Self {
        let message = format!("the gallery stays as it was: {cause}");
        Self::new(StatusCode::CONFLICT, "not_reloaded", message)
    }

    /// There was no room on the disk when the gallery was opened; that does not change before it is opened again.
    pub(crate) fn no_room(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", message)
    }

    /// The service may read only.
    pub(crate) fn read_only(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "service_read_only", message)
    }

    pub(crate) fn body(&self, request_id: &str) -> ErrorBody {
        let (code, message) = (self.code.to_owned(), self.message.clone());
        ErrorBody { error: ErrorFacts { code, message, request_id: request_id.to_owned() } }
    }
}

impl IntoResponse for Problem {
    /// Leaves the body to the outermost layer, which knows the request id.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<PassError> for Problem {
    fn from(error: PassError) -> Self {
        match error {
            PassError::Cancelled => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "cancelled", error.to_string())
            }
            PassError::Closed => Self::closing(),
            // What an encoder makes of a picture depends on the picture; the words are the encoder's.
            PassError::Encoder(_) | PassError::Samples(_) => Self::unprocessable(error.to_string()),
        }
    }
}

impl From<CertificateError> for Problem {
    fn from(error: CertificateError) -> Self {
        match error {
            CertificateError::NoNegatives => Self::conflict(error.to_string()),
            other => Self::unprocessable(other.to_string()),
        }
    }
}

impl From<PictureError> for Problem {
    fn from(error: PictureError) -> Self {
        match error {
            PictureError::PixelCount { .. } | PictureError::Memory { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error.to_string())
            }
            other => Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_a_picture", other.to_string()),
        }
    }
}

impl From<PipelineError> for Problem {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Picture(error) => error.into(),
            other => Self::unprocessable(other.to_string()),
        }
    }
}
