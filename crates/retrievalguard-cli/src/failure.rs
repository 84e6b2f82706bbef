//! What an error means for the exit status, and how it is told.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use retrievalguard::SmoothingError;
use retrievalguard::attack::AttackError;
use retrievalguard::certificate::CertificateError;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::journal::JournalError;
use retrievalguard::storage::lock::LockError;
use retrievalguard::storage::manifest::{Disagreement, Mismatch, StorageError};
use retrievalguard_encoder::experiment::SweepError;
use retrievalguard_encoder::picture::PictureError;
use retrievalguard_encoder::pipeline::PipelineError;
use retrievalguard_encoder::pipeline::upgrade::UpgradeError;
use retrievalguard_encoder::recall::RecallError;
use retrievalguard_encoder::receipt::{Refusal, VerifyError};
use retrievalguard_encoder::recommend::RecommendError;
use retrievalguard_encoder::synthetic::SyntheticError;
use retrievalguard_encoder::table::TableError;
use retrievalguard_server::OpenError;
use retrievalguard_worker::WorkerError;

use crate::commands::attack::AttackFailed;
use crate::progress;

/// Bad input: 2. Work that failed though the input was good: 1.
fn status(error: &anyhow::Error) -> u8 {
    let failed =
        error.chain().any(|cause| work_failed(cause) || cause.downcast_ref().is_some_and(is_failure));
    if failed { 1 } else { 2 }
}

/// Whether a result could not be computed or written; a transparent wrapper hides what it wraps, so it is opened.
fn work_failed(cause: &(dyn Error + 'static)) -> bool {
    let journal = |error: &JournalError| matches!(error, JournalError::Write(_) | JournalError::InUse { .. });
    let lock = |error: &LockError| matches!(error, LockError::InUse { .. } | LockError::Write(_));
    let encoder = |error: &SmoothingError| matches!(error, SmoothingError::Embedder { .. });
    let storage = |error: &StorageError| match error {
        StorageError::Write(_) => true,
        StorageError::Journal(error) => journal(error),
        _ => false,
    };
    let table = |error: &TableError| matches!(error, TableError::Write(_));
    let attack = |error: &AttackError| match error {
        AttackError::Smoothing(error) => encoder(error),
        AttackError::Gradients { .. } => true,
        _ => false,
    };
    let pipeline = |error: &PipelineError| match error {
        PipelineError::Write(_) | PipelineError::Stopped { .. } => true,
        PipelineError::Journal(error) => journal(error),
        PipelineError::Smoothing(error) => encoder(error),
        PipelineError::Attack { source, .. } => attack(source),
        PipelineError::Storage(error) => storage(error),
        PipelineError::Table(error) => table(error),
        _ => false,
    };
    let upgrade = |error: &UpgradeError| match error {
        UpgradeError::Journal(error) => journal(error),
        UpgradeError::Lock(error) => lock(error),
        UpgradeError::Gallery(error) => storage(error),
        UpgradeError::Table(error) => table(error),
        UpgradeError::Pipeline(error) => pipeline(error),
        _ => false,
    };
    let merging = |error: &WorkerError| matches!(error, WorkerError::Lock(error) if lock(error));
    let synthetic =
        |error: &SyntheticError| matches!(error, SyntheticError::Write(_) | SyntheticError::Stopped { .. });
    let recall = |error: &RecallError| match error {
        RecallError::Stopped { .. } => true,
        RecallError::Smoothing(error) => encoder(error),
        _ => false,
    };
    let recommend = |error: &RecommendError| matches!(error, RecommendError::Recall(error) if recall(error));
    let sweep = |error: &SweepError| matches!(error, SweepError::Pipeline(error) if pipeline(error));
    let service = |error: &OpenError| match error {
        OpenError::Gallery(error) => storage(error),
        OpenError::Mismatch(error) => pipeline(error),
        OpenError::Jobs { .. } | OpenError::Threads(_) | OpenError::Encoder(_) | OpenError::Listen { .. } => {
            true
        }
        _ => false,
    };
    let refused = |error: &VerifyError| match error {
        VerifyError::Refused(_) => true,
        VerifyError::Pipeline(error) => pipeline(error),
        _ => false,
    };
    training_failed(cause)
        || cause.downcast_ref().is_some_and(refused)
        || cause.downcast_ref().is_some_and(service)
        || cause.downcast_ref().is_some_and(sweep)
        || cause.downcast_ref().is_some_and(upgrade)
        || cause.downcast_ref().is_some_and(merging)
        || cause.is::<WriteError>()
        || cause.is::<AttackFailed>()
        || cause.downcast_ref().is_some_and(recall)
        || cause.downcast_ref().is_some_and(recommend)
        || cause.downcast_ref().is_some_and(synthetic)
        || cause.downcast_ref().is_some_and(journal)
        || cause.downcast_ref().is_some_and(lock)
        || cause.downcast_ref().is_some_and(encoder)
        || cause.downcast_ref().is_some_and(storage)
        || cause.downcast_ref().is_some_and(table)
        || cause.downcast_ref().is_some_and(pipeline)
}

/// Whether training ended for another reason than its input.
#[cfg(feature = "train")]
fn training_failed(cause: &(dyn Error + 'static)) -> bool {
    use retrievalguard_train::checkpoint::CheckpointError;
    use retrievalguard_train::trainer::TrainError;

    matches!(
        cause.downcast_ref(),
        Some(
            TrainError::LossNotFinite { .. }
                | TrainError::WeightsNotFinite { .. }
                | TrainError::Checkpoint(CheckpointError::Write(_))
                | TrainError::Recall(RecallError::Smoothing(SmoothingError::Embedder { .. }))
                | TrainError::Sampling { .. }
                | TrainError::Teacher { .. }
                | TrainError::Stopped { .. }
                | TrainError::Folder { .. }
                | TrainError::Lock(_)
                | TrainError::Log(_)
                | TrainError::Events(_)
                | TrainError::Export(_)
                | TrainError::Write(_)
        )
    )
}

#[cfg(not(feature = "train"))]
fn training_failed(_cause: &(dyn Error + 'static)) -> bool {
    false
}

/// Whether the system failed, rather than a name that leads nowhere or to something else.
fn is_failure(error: &io::Error) -> bool {
    use io::ErrorKind;

    let writing = error.get_ref().is_some_and(|inner| inner.is::<WriteError>());
    let input = matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
            | ErrorKind::UnexpectedEof
    );
    writing || !input
}

/// Standard output, whose errors say so.
pub(crate) struct StandardOutput<W>(pub(crate) W);

impl<W: Write> Write for StandardOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), WriteError::new(Path::new("standard output"), error))
}

/// Prints the causes one per line, then a hint where there is one.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // A reader that closed the pipe has seen enough.
    if error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }) {
        progress::succeeded();
        return ExitCode::SUCCESS;
    }
    let mut causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    // Transparent wrappers repeat what they wrap.
    causes.dedup();
    let (status, hint) = (status(error), hint(error));
    if progress::failed(status, &causes, hint) {
        return ExitCode::from(status);
    }
    let mut message = format!("error: {}", causes.join("\n  because: "));
    if let Some(hint) = hint {
        message.push_str("\nhint: ");
        message.push_str(hint);
    }
    message.push('\n');
    // With nowhere left to write, the exit status still tells.
    let _ = io::stderr().write_all(message.as_bytes());
    ExitCode::from(status)
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let repeats = |cause: &(dyn Error + 'static)| matches!(cause.downcast_ref(), Some(CertificateError::Rows(rows)) if rows.may_be_discrete());
    if error.chain().any(repeats) {
        return Some(
            "--discrete lets rows repeat, if the encoder has few outputs and each row has independent noise",
        );
    }
    let no_digest =
        |cause: &(dyn Error + 'static)| matches!(cause.downcast_ref(), Some(TableError::NoDigest { .. }));
    if error.chain().any(no_digest) {
        return Some(
            "`retrievalguard upgrade` converts a run to this version; `evaluate --unverified` reads any table",
        );
    }
    let other_export = |cause: &(dyn Error + 'static)| {
        matches!(cause.downcast_ref(), Some(TableError::Exported(StorageError::Other { .. })))
    };
    if error.chain().any(other_export) {
        return Some(
            "import an export whole, with --identities if they were written; to import a part or a changed copy as a new \
             gallery, move the manifest (NAME.npy.json, retrievalguard.json) away",
        );
    }
    let shared = |cause: &(dyn Error + 'static)| {
        matches!(cause.downcast_ref(), Some(WorkerError::Picture(PictureError::Changed { .. })))
    };
    if error.chain().any(shared) {
        return Some("the same command begins anew with the pictures as they are");
    }
    let other_bits = |cause: &(dyn Error + 'static)| matches!(cause.downcast_ref(), Some(VerifyError::Refused(Refusal::Files(list))) if list.starts_with("encoder.engine"));
    if error.chain().any(other_bits) {
        return Some(
            "verify with the receipt's engine, or let last bits differ with --allow-rounding (docs/receipts.md, tolerances)",
        );
    }
    training_hint(error).or_else(|| {
        error.chain().find_map(|cause| match cause.downcast_ref::<PipelineError>() {
            Some(PipelineError::Mismatch(Mismatch { disagreements, .. }))
                if matches!(disagreements[..], [Disagreement::Sigma { .. }]) =>
            {
                Some("leave --sigma out to use the gallery's, or make the gallery again with `retrievalguard index`")
            }
            Some(PipelineError::Mismatch(_)) => {
                Some("make the gallery again with `retrievalguard index` and the queries' model and sigma")
            }
            Some(PipelineError::Journal(JournalError::OtherRun { .. })) => {
                Some("write to another directory, or remove the journal to start over")
            }
            Some(PipelineError::Picture(PictureError::Changed { .. })) => {
                Some("the same command begins anew with the pictures as they are, in another directory")
            }
            Some(PipelineError::Picture(_)) => {
                Some("--skip-broken skips broken pictures and counts them")
            }
            Some(_) | None => None,
        })
    })
}

#[cfg(feature = "train")]
fn training_hint(error: &anyhow::Error) -> Option<&'static str> {
    use retrievalguard_train::trainer::TrainError;

    error.chain().find_map(|cause| match cause.downcast_ref::<TrainError>() {
        Some(TrainError::Occupied { .. }) => {
            Some("--resume continues that run, another --out starts a new one")
        }
        Some(
            TrainError::LossNotFinite { .. }
            | TrainError::WeightsNotFinite { .. }
            | TrainError::Sampling { .. },
        ) => Some("a smaller optimiser.learning_rate often helps, in a new run"),
        Some(TrainError::View(_) | TrainError::Recall(RecallError::Picture(_))) => {
            Some("--skip-broken skips broken pictures and counts them")
        }
        Some(_) | None => None,
    })
}

#[cfg(not(feature = "train"))]
fn training_hint(_error: &anyhow::Error) -> Option<&'static str> {
    None
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
