//! Where onnxruntime's library is looked for.
//!
//! In this order: the path that was asked for, `ORT_DYLIB_PATH`, beside the executable, the Python environment that the
//! executable was installed into, the one that `python3` points at, the system's library path. A path that was asked for by
//! option or variable must work; the other places are merely tried.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Prints the folder of the `onnxruntime` package without importing it: importing runs its code and takes a second.
///
/// The current directory is not searched: a library is never taken from wherever the tool happens to be started.
const PYTHON: &str = "import sys; sys.path[:] = [p for p in sys.path if p]; \
                      import importlib.util as u; s = u.find_spec('onnxruntime'); \
                      print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')";

/// A place where the library may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LibraryLocation {
    /// The path that the caller asked for.
    Option,
    /// The environment variable `ORT_DYLIB_PATH`.
    Variable,
    /// The folder of the running program.
    Executable,
    /// The `onnxruntime` package of the Python environment in which the running program lies.
    Environment,
    /// The `onnxruntime` package of `python3`.
    Python,
    /// Wherever the system looks for libraries.
    System,
}

impl fmt::Display for LibraryLocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Option => "the given path",
            Self::Variable => "ORT_DYLIB_PATH",
            Self::Executable => "beside the executable",
            Self::Environment => "the program's own Python environment",
            Self::Python => "python3's packages",
            Self::System => "the system's library path",
        })
    }
}

/// One place, and the library there or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) place: LibraryLocation,
    pub(crate) library: Result<PathBuf, String>,
}

/// Every place in order; with a path or a variable given, that one alone.
pub(crate) fn candidates(option: Option<&Path>) -> Vec<Candidate> {
    let candidate = |place, library| Candidate { place, library };
    if let Some(path) = option {
        return vec![candidate(LibraryLocation::Option, existing(path))];
    }
    if let Some(path) = env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return vec![candidate(LibraryLocation::Variable, existing(Path::new(&path)))];
    }
    let mut candidates = vec![candidate(LibraryLocation::Executable, beside_executable())];
    if let Some(python) = own_python() {
        candidates.push(candidate(LibraryLocation::Environment, python_package(&python)));
    }
    candidates.push(candidate(LibraryLocation::Python, python_package(Path::new("python3"))));
    candidates.push(candidate(LibraryLocation::System, Ok(PathBuf::from(library_name()))));
    candidates
}

fn library_name() -> String {
    format!("{}onnxruntime{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX)
}

/// A library, or the library inside a folder.
fn existing(path: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    if path.is_dir() { in_folder(&path) } else { readable(path) }
}

fn readable(path: PathBuf) -> Result<PathBuf, String> {
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(error) => Err(format!("`{}`: {error}", path.display())),
    }
}

/// The library in a folder, with or without a version at the end of its name.
fn in_folder(folder: &Path) -> Result<PathBuf, String> {
    let (plain, stem) = (library_name(), format!("{}onnxruntime", env::consts::DLL_PREFIX));
    let entries = fs::read_dir(folder).map_err(|error| format!("`{}`: {error}", folder.display()))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| {
        let version = name
            .strip_prefix(&plain)
            .or_else(|| name.strip_prefix(&stem).and_then(|rest| rest.strip_suffix(env::consts::DLL_SUFFIX)));
        version.is_some_and(|version| version.chars().all(|letter| letter == '.' || letter.is_ascii_digit()))
    });
    names.sort();
    let name = names.pop().ok_or_else(|| format!("no `{plain}` in `{}`", folder.display()))?;
    Ok(folder.join(name))
}

fn beside_executable() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    in_folder(program.parent().ok_or("the executable has no folder")?)
}

/// The interpreter beside the executable: pip puts the command of a wheel into the folder of the environment's `python3`.
///
/// The one on the search path is another as long as nobody has activated the environment.
fn own_python() -> Option<PathBuf> {
    let name = if cfg!(windows) { "python.exe" } else { "python3" };
    let python = env::current_exe().ok()?.parent()?.join(name);
    python.is_file().then_some(python)
}

fn python_package(python: &Path) -> Result<PathBuf, String> {
    let name = python.display();
    let output = Command::new(python)
        .args(["-c", PYTHON])
        .output()
        .map_err(|error| format!("`{name}` does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim() {
        _ if !output.status.success() => Err(format!("`{name}` failed with {}", output.status)),
        "" => Err(format!("`{name}` has no package `onnxruntime`")),
        folder => in_folder(&Path::new(folder).join("capi")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_path_is_the_only_candidate() {
        let found = candidates(Some(Path::new("/nowhere/libonnxruntime.so")));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, LibraryLocation::Option);
        assert!(found[0].library.as_ref().unwrap_err().contains("/nowhere/libonnxruntime.so"));
    }

    #[test]
    fn in_a_folder_the_library_is_told_from_its_companions() {
        let folder = env::temp_dir().join(format!("retrievalguard-discovery-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(in_folder(&folder).is_err());
        let name = library_name();
        for name in ["libonnxruntime_providers_shared.so", "onnxruntime_pybind11_state.so", "README"] {
            fs::write(folder.join(name), "").unwrap();
        }
        assert!(in_folder(&folder).is_err());
        fs::write(folder.join(format!("{name}.1.31.1")), "").unwrap();
        assert_eq!(existing(&folder), Ok(folder.join(format!("{name}.1.31.1"))));
        fs::remove_dir_all(folder).unwrap();
    }
}
