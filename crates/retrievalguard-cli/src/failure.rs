//! What an error means for the exit status, and how it is told.

use std::io::{self, Write};
use std::process::ExitCode;

use retrievalguard::SmoothingError;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::journal::JournalError;
use retrievalguard_encoder::pipeline::PipelineError;

/// Bad input: 2. Work that failed though the input was good: 1.
fn status(error: &anyhow::Error) -> u8 {
    let failed = error.chain().any(|cause| {
        cause.is::<WriteError>()
            || matches!(cause.downcast_ref(), Some(JournalError::Write { .. } | JournalError::InUse { .. }))
            || matches!(cause.downcast_ref(), Some(SmoothingError::Embedder { .. }))
            || matches!(cause.downcast_ref(), Some(PipelineError::Stopped { .. }))
            || cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() != io::ErrorKind::NotFound)
    });
    if failed { 1 } else { 2 }
}

/// Prints the causes one per line, then a hint where there is one.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // A reader that closed the pipe has seen enough.
    if error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }) {
        return ExitCode::SUCCESS;
    }
    let mut message = String::from("error: ");
    let mut previous = String::new();
    for (depth, cause) in error.chain().enumerate() {
        let text = cause.to_string();
        // Transparent wrappers repeat what they wrap.
        if text == previous {
            continue;
        }
        if depth > 0 {
            message.push_str("\n  because: ");
        }
        message.push_str(&text);
        previous = text;
    }
    if let Some(hint) = hint(error) {
        message.push_str("\nhint: ");
        message.push_str(hint);
    }
    message.push('\n');
    // With nowhere left to write, the exit status still tells.
    let _ = io::stderr().write_all(message.as_bytes());
    ExitCode::from(status(error))
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| match cause.downcast_ref::<PipelineError>() {
        Some(PipelineError::Mismatch(_)) => {
            Some("make the gallery again with `retrievalguard index` and the queries' model and sigma")
        }
        Some(PipelineError::Journal(JournalError::OtherRun { .. })) => {
            Some("give another --out, or remove the journal to start over")
        }
        Some(PipelineError::Picture(_)) => Some("--skip-broken leaves broken pictures out and counts them"),
        Some(_) | None => None,
    })
}

/// A file size limit should end in an error that names the file, not in a killed process.
pub(crate) fn survive_size_limits() {
    #[cfg(unix)]
    {
        let caught = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, caught) {
            log::warn!("file size limits will end this process without a message: {error}");
        }
    }
}
