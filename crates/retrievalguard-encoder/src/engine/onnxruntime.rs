//! onnxruntime, loaded at run time from a library that the user has installed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::ep;
use ort::logging::LogLevel;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions, Session};
use ort::value::TensorRef;

use super::discovery::{Candidate, LibraryLocation, candidates};
use super::error::engine_failure;
use super::{Attempt, Consumer, EngineError, Provider};

/// The library that this process uses; a process can load one only.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    environment: Environment,
    pub(crate) path: PathBuf,
    pub(crate) place: LibraryLocation,
    pub(crate) version: String,
    /// Places that were tried before.
    pub(crate) attempts: Vec<Attempt>,
}

static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// Loads the first library that works, or says for every place why it does not.
pub(super) fn library(option: Option<&Path>) -> Result<Library, Vec<Attempt>> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = loaded.as_ref() {
        return already(library, option);
    }
    let mut attempts = Vec::new();
    for Candidate { place, library } in candidates(option) {
        match library.and_then(|path| load(place, path)) {
            Ok(library) => {
                let library = Library { attempts, ..library };
                *loaded = Some(library.clone());
                return Ok(library);
            }
            Err(reason) => attempts.push(Attempt { place, reason }),
        }
    }
    Err(attempts)
}

/// Hands out the library in use unless another one was asked for.
fn already(library: &Library, option: Option<&Path>) -> Result<Library, Vec<Attempt>> {
    let Some(path) = option else { return Ok(library.clone()) };
    let wanted = candidates(Some(path)).into_iter().next().map(|candidate| candidate.library);
    let reason = match wanted {
        Some(Ok(wanted)) if wanted == library.path => return Ok(library.clone()),
        Some(Err(reason)) => reason,
        Some(Ok(_)) | None => format!("this process already uses `{}`", library.path.display()),
    };
    Err(vec![Attempt { place: LibraryLocation::Option, reason }])
}

fn load(place: LibraryLocation, path: PathBuf) -> Result<Library, String> {
    let builder = ort::init_from(&path).map_err(|error| explain(&error))?;
    let environment = builder
        .with_name("retrievalguard")
        .with_telemetry(false)
        .build()
        .map_err(|error| format!("`{}`: {error}", path.display()))?;
    // Warnings are about speed on other hardware; everything that matters comes back as an error.
    environment.set_log_level(LogLevel::Error);
    let version = version(ort::info(), &path);
    Ok(Library { environment, path, place, version, attempts: Vec::new() })
}

/// What `ort` says about a library, without its own name and with the system's reason.
fn explain(error: &LoadDynamicError) -> String {
    match error {
        LoadDynamicError::Dlopen { error, path } => {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!("`{}` does not load: {reason}", path.display())
        }
        LoadDynamicError::MissingApi { path } => format!("`{}` is not onnxruntime's library", path.display()),
        LoadDynamicError::InvalidVersionString => "the library's version is not text".to_owned(),
        LoadDynamicError::BadVersion { version_str, path } => {
            let wanted = ort::MINOR_VERSION;
            format!("`{}` is version {version_str}, wanted 1.{wanted} or later", path.display())
        }
    }
}

/// The release that a library's build text or file name tells.
///
/// Releases are built from branches called `rel-1.31.1`; a build from elsewhere is known by its branch and commit.
fn version(build: &str, path: &Path) -> String {
    let part = |key: &str| {
        let start = build.find(key)? + key.len();
        build[start..].split([',', ' ']).next().filter(|text| !text.is_empty())
    };
    if let Some(release) = part("git-branch=").and_then(|branch| branch.strip_prefix("rel-")) {
        return release.to_owned();
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let digits = name.find(|letter: char| letter.is_ascii_digit()).map(|start| &name[start..]);
    let release = digits.map(|text| text.trim_end_matches(|letter: char| !letter.is_ascii_digit()));
    match (release, part("git-commit-id=")) {
        (Some(release), Some(commit)) => format!("{release} ({commit})"),
        (Some(release), None) => release.to_owned(),
        (None, Some(commit)) => format!("commit {commit}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// A session that works on the thread that calls it.
pub(super) struct OnnxruntimeSession {
    session: Session,
    output: String,
    options: RunOptions<HasSelectedOutputs>,
}

impl OnnxruntimeSession {
    /// A session for a model in a file, or for the bytes of that file.
    pub(super) fn new(
        library: &Library,
        model: &Path,
        bytes: Option<&[u8]>,
        provider: Provider,
        output: &str,
    ) -> Result<Self, EngineError> {
        let failure = |error: ort::Error| engine_failure(model, error);
        let mut builder = Session::builder(&library.environment).map_err(failure)?;
        builder = recover(builder.with_intra_threads(1)).map_err(failure)?;
        builder = recover(builder.with_inter_threads(1)).map_err(failure)?;
        builder = recover(builder.with_parallel_execution(false)).map_err(failure)?;
        builder = recover(builder.with_optimization_level(GraphOptimizationLevel::All)).map_err(failure)?;
        builder = recover(builder.with_deterministic_compute(true)).map_err(failure)?;
        let chosen = match provider {
            Provider::Cpu => ep::CPU::default().with_arena_allocator(true).build(),
            Provider::Cuda => ep::CUDA::default().build(),
            Provider::Tensorrt => ep::TensorRT::default().build(),
            Provider::Openvino => ep::OpenVINO::default().build(),
            Provider::Coreml => ep::CoreML::default().build(),
        };
        builder =
            recover(builder.with_execution_providers([chosen.error_on_failure()])).map_err(|error| {
                EngineError::Provider { provider, library: library.path.clone(), source: error.into() }
            })?;
        let session = match bytes {
            Some(bytes) => builder.commit_from_memory(bytes),
            None => builder.commit_from_file(model),
        };
        let session = session.map_err(failure)?;
        let selector = OutputSelector::no_default().with(output);
        let options = RunOptions::new().map_err(failure)?.with_outputs(selector);
        Ok(Self { session, output: output.to_owned(), options })
    }

    /// Runs one batch and hands its output to `consume`: shape and numbers.
    pub(super) fn run(
        &mut self,
        shape: &[usize],
        pictures: &[f32],
        consume: &mut Consumer<'_>,
    ) -> Result<(), EngineError> {
        let failure = |error: ort::Error| EngineError::Run { source: error.into() };
        let input = TensorRef::from_array_view((shape, pictures)).map_err(failure)?;
        let outputs = self.session.run_with_options(ort::inputs![input], &self.options).map_err(failure)?;
        let value = &outputs[self.output.as_str()];
        let (found, numbers) = value.try_extract_tensor::<f32>().map_err(failure)?;
        let found: Vec<usize> = found.iter().map(|&length| usize::try_from(length).unwrap_or(0)).collect();
        consume(&found, numbers)
    }
}

/// Drops the builder that `ort` hands back with an error.
fn recover<T, R>(result: Result<T, ort::Error<R>>) -> Result<T, ort::Error> {
    result.map_err(|error| ort::Error::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_branch_or_the_file_name() {
        let release = "ORT Build Info: git-branch=rel-1.31.1, git-commit-id=26250ae, build type=Release";
        let other = "ORT Build Info: git-branch=main, git-commit-id=26250ae, build type=Release";
        let (plain, numbered) = (Path::new("libonnxruntime.so"), Path::new("libonnxruntime.so.1.30.0"));
        assert_eq!(version(release, plain), "1.31.1");
        assert_eq!(version(other, numbered), "1.30.0 (26250ae)");
        assert_eq!(version(other, plain), "commit 26250ae");
        assert_eq!(version("", Path::new("onnxruntime.1.30.0.dylib")), "1.30.0");
        assert_eq!(version("", plain), "unknown");
    }
}
