//! Errors as Python exceptions with the messages of the Rust crates, causes included.

use std::error::Error;
use std::io;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use retrievalguard_encoder::engine::EngineError;
use retrievalguard_worker::WorkerError;

/// The classes of `retrievalguard._errors`.
#[derive(Clone, Copy)]
enum Class {
    Input,
    File,
    MissingFile,
    Encoder,
}

/// An exception for an error of the Rust crates.
///
/// An exception that a Python function raised on the way comes out as it went in.
pub(crate) fn raised(error: &(dyn Error + 'static)) -> PyErr {
    let causes = || std::iter::successors(Some(error), |&cause| cause.source());
    if let Some(own) = causes().find_map(|cause| cause.downcast_ref::<PyErr>()) {
        return Python::attach(|py| own.clone_ref(py));
    }
    exception(class(error), message(error))
}

/// An exception with what was being done in front of an error and its causes.
pub(crate) fn in_context(context: &str, error: &(dyn Error + 'static)) -> PyErr {
    exception(class(error), format!("{context}: {}", message(error)))
}

fn class(error: &(dyn Error + 'static)) -> Class {
    let causes = || std::iter::successors(Some(error), |&cause| cause.source());
    match causes().find_map(|cause| cause.downcast_ref::<io::Error>()) {
        Some(error) if error.kind() == io::ErrorKind::NotFound => Class::MissingFile,
        Some(_) => Class::File,
        // Object stores fail in ways of their own; what they hold are files all the same.
        None if causes().any(|cause| matches!(cause.downcast_ref(), Some(WorkerError::Store { .. }))) => {
            Class::File
        }
        // An engine that fails below something else failed at work, not at the door.
        None if causes().skip(1).any(|cause| cause.is::<EngineError>()) => Class::Encoder,
        None => Class::Input,
    }
}

/// An exception for an encoder that failed.
pub(crate) fn encoder_failed(error: &(dyn Error + 'static)) -> PyErr {
    exception(Class::Encoder, message(error))
}

/// An exception for something that was asked wrongly.
pub(crate) fn refused(message: impl Into<String>) -> PyErr {
    exception(Class::Input, message.into())
}

/// The error and its causes, each once.
pub(crate) fn message(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |&cause| cause.source()) {
        let text = cause.to_string();
        // Transparent wrappers repeat what they wrap.
        if parts.last() != Some(&text) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

fn exception(class: Class, message: String) -> PyErr {
    static CLASSES: [PyOnceLock<Py<PyType>>; 4] = [const { PyOnceLock::new() }; 4];
    let name = match class {
        Class::Input => "InputError",
        Class::File => "FileError",
        Class::MissingFile => "MissingFileError",
        Class::Encoder => "EncoderError",
    };
    Python::attach(|py| match CLASSES[class as usize].import(py, "retrievalguard._errors", name) {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(error) => error,
    })
}
