//! Receipts, held against the files that they are about.

use std::path::PathBuf;

use pyo3::prelude::*;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::StorageError;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::receipt::{Evidence, Expected, Receipt, VerifyError, read_public_key, verify};

use crate::encoder::Encoder;
use crate::errors::{message, raised, refused};

/// What an auditor knows beforehand.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Auditing {
    commitment: Option<String>,
    challenge: Option<String>,
    public_key: Option<PathBuf>,
    allow_rounding: bool,
    most_samples: u32,
}

/// Why a receipt is refused, none if it is not; the copies that depend on last bits; and its statements.
type Checked = (Option<String>, Option<u64>, Vec<String>);

/// Makes the answer of a receipt again; `files` are the receipt, the gallery and the picture.
#[pyfunction]
pub(crate) fn verify_receipt(
    py: Python<'_>,
    files: (PathBuf, PathBuf, PathBuf),
    encoder: &Bound<'_, Encoder>,
    auditing: Auditing,
) -> PyResult<Checked> {
    let (receipt, gallery, picture) = files;
    let encoder = encoder.get();
    let commitment = auditing.commitment.as_deref().map(str::parse::<Digest>).transpose();
    let expected = Expected {
        commitment: commitment.map_err(|error| refused(format!("commitment: {error}")))?,
        challenge: auditing.challenge,
        key: auditing
            .public_key
            .as_deref()
            .map(read_public_key)
            .transpose()
            .map_err(|error| raised(&error))?,
        rounding: auditing.allow_rounding,
        most_samples: Some(auditing.most_samples),
    };
    let receipt = Receipt::read(&receipt).map_err(|error| raised(&error))?;
    let bytes = std::fs::read(&picture).map_err(|error| raised(&error))?;
    let checked = py.detach(|| {
        let stored = StoredGallery::open(&gallery).map_err(Failure::Gallery)?;
        let evidence = Evidence {
            embedder: &encoder.embedder,
            gallery: &stored,
            gallery_name: &gallery.display().to_string(),
            picture: &bytes,
            threads: encoder.threads,
            batch: encoder.batch,
        };
        verify(&receipt, &evidence, &expected).map_err(Failure::Verify)
    });
    let statements = receipt.answers.iter().map(|answer| answer.statement.clone()).collect();
    match checked {
        Ok(verified) => Ok((None, verified.undecided, statements)),
        Err(Failure::Verify(VerifyError::Refused(refusal))) => {
            Ok((Some(message(&refusal)), None, statements))
        }
        Err(Failure::Verify(error)) => Err(raised(&error)),
        Err(Failure::Gallery(error)) => Err(raised(&error)),
    }
}

/// What can go wrong while the interpreter lock is released.
enum Failure {
    Verify(VerifyError),
    Gallery(StorageError),
}
