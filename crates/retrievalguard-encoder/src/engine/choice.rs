//! Which engine runs: what the user asked for, what is there, and what is reported about it.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::attempts_text;
use super::onnxruntime::{self, Library};
use super::{EngineError, LibraryLocation, double, rten};

/// Most threads that anybody may ask for.
pub const MOST_THREADS: usize = 1_024;

/// Most pictures that anybody may hand to the encoder at once.
pub const MOST_BATCH: usize = 4_096;

/// An engine that can run encoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Microsoft's onnxruntime, from a library that the user has installed.
    Onnxruntime,
    /// rten, built in.
    Rten,
    /// The graph itself, evaluated in double precision: slow, and what Lipschitz certificates are about.
    Double,
}

/// The hardware on which onnxruntime computes. Only `cpu` has been run by the authors; the others are untested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The processor.
    #[default]
    Cpu,
    /// NVIDIA graphics cards (untested).
    Cuda,
    /// NVIDIA graphics cards, networks compiled by TensorRT (untested).
    Tensorrt,
    /// Intel processors and graphics (untested).
    Openvino,
    /// Apple hardware (untested).
    Coreml,
}

macro_rules! words {
    ($name:ident, $what:literal, $wanted:literal, $($word:literal => $variant:ident),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }

        impl FromStr for $name {
            type Err = EngineError;

            fn from_str(text: &str) -> Result<Self, EngineError> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(EngineError::Word { what: $what, found: text.to_owned(), wanted: $wanted }),
                }
            }
        }
    };
}

words!(Engine, "engine", "onnxruntime, rten or double",
    "onnxruntime" => Onnxruntime, "rten" => Rten, "double" => Double);
words!(Provider, "provider", "cpu, cuda, tensorrt, openvino or coreml",
    "cpu" => Cpu, "cuda" => Cuda, "tensorrt" => Tensorrt, "openvino" => Openvino, "coreml" => Coreml);

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The engine; by default onnxruntime if it is found, else rten.
    pub engine: Option<Engine>,
    /// onnxruntime's library, or the folder that holds it.
    pub library: Option<PathBuf>,
    /// Where onnxruntime computes.
    pub provider: Provider,
    /// How many sessions to open at once; more are opened when more threads call.
    pub sessions: Option<NonZeroUsize>,
    /// How many pictures go through the network together at most, however many are handed over; by default 8 on the
    /// processor, whose caches hold no more, and all of them elsewhere.
    pub together: Option<NonZeroUsize>,
}

/// Which engine ran, as every manifest records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineReport {
    /// The engine.
    pub engine: Engine,
    /// Its version.
    pub version: String,
    /// Where it computed.
    pub provider: Provider,
    /// Where onnxruntime's library was found; not part of what decides a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,
}

impl fmt::Display for EngineReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} ({})", self.engine, self.version, self.provider)
    }
}

impl EngineReport {
    /// What makes results under `other` differ from these, or `None`; the library's place does not.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let name = Self::to_string;
        (name(self) != name(other)).then(|| format!("{} here, {} there", name(self), name(other)))
    }
}

/// A place where onnxruntime was looked for in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The place.
    pub place: LibraryLocation,
    /// Why nothing was loaded from there.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.reason)
    }
}

/// The engine that the options lead to, before any model is opened.
#[derive(Clone, Debug)]
pub(crate) enum Runtime {
    Onnxruntime(Library),
    /// With every place where onnxruntime was looked for, if it was.
    Rten(Vec<Attempt>),
    Double,
}

impl Runtime {
    pub(crate) fn choose(options: &EngineOptions) -> Result<Self, EngineError> {
        let provider = options.provider;
        let built_in = match options.engine {
            Some(Engine::Rten) => Some(Self::Rten(Vec::new())),
            Some(Engine::Double) => Some(Self::Double),
            Some(Engine::Onnxruntime) | None => None,
        };
        if let Some(built_in) = built_in {
            return match provider {
                Provider::Cpu => Ok(built_in),
                Provider::Cuda | Provider::Tensorrt | Provider::Openvino | Provider::Coreml => {
                    Err(EngineError::ProviderNeedsOnnxruntime { provider })
                }
            };
        }
        match onnxruntime::library(options.library.as_deref()) {
            Ok(library) => Ok(Self::Onnxruntime(library)),
            // Whoever names an engine, a library or a provider wants that or nothing.
            Err(attempts)
                if options.engine.is_some() || options.library.is_some() || provider != Provider::Cpu =>
            {
                Err(EngineError::NoOnnxruntime { attempts })
            }
            Err(attempts) => Ok(Self::Rten(attempts)),
        }
    }

    pub(crate) fn report(&self, provider: Provider) -> EngineReport {
        match self {
            Self::Onnxruntime(library) => EngineReport {
                engine: Engine::Onnxruntime,
                version: library.version.clone(),
                provider,
                library: Some(library.path.clone()),
            },
            Self::Rten(_) => EngineReport {
                engine: Engine::Rten,
                version: rten::VERSION.to_owned(),
                provider: Provider::Cpu,
                library: None,
            },
            Self::Double => EngineReport {
                engine: Engine::Double,
                version: double::VERSION.to_owned(),
                provider: Provider::Cpu,
                library: None,
            },
        }
    }

    /// What a person should be told once.
    pub(crate) fn notices(&self) -> Vec<String> {
        match self {
            Self::Rten(attempts) if !attempts.is_empty() => vec![format!(
                "no usable onnxruntime was found, so the slower built-in engine rten {} runs ({})",
                rten::VERSION,
                attempts_text(attempts)
            )],
            Self::Rten(_) | Self::Onnxruntime(_) | Self::Double => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_engines_and_providers_both_ways() {
        for engine in [Engine::Onnxruntime, Engine::Rten, Engine::Double] {
            assert_eq!(engine.to_string().parse::<Engine>().unwrap(), engine);
        }
        let providers =
            [Provider::Cpu, Provider::Cuda, Provider::Tensorrt, Provider::Openvino, Provider::Coreml];
        for provider in providers {
            assert_eq!(provider.to_string().parse::<Provider>().unwrap(), provider);
        }
        let error = "gpu".parse::<Provider>().unwrap_err();
        assert_eq!(error.to_string(), "provider is `gpu`, wanted cpu, cuda, tensorrt, openvino or coreml");
    }

    #[test]
    fn the_place_of_the_library_is_no_difference_but_version_engine_and_provider_are() {
        let report = EngineReport {
            engine: Engine::Onnxruntime,
            version: "1.31.1".to_owned(),
            provider: Provider::Cpu,
            library: Some("a/libonnxruntime.so".into()),
        };
        assert_eq!(report.difference(&EngineReport { library: None, ..report.clone() }), None);
        for other in [
            EngineReport { version: "1.30.0".to_owned(), ..report.clone() },
            EngineReport { engine: Engine::Rten, ..report.clone() },
            EngineReport { provider: Provider::Cuda, ..report.clone() },
        ] {
            let difference = report.difference(&other).unwrap();
            assert!(difference.starts_with("onnxruntime 1.31.1 (cpu) here, "), "{difference}");
        }
    }
}
