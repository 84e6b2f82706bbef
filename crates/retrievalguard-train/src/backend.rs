//! Where training computes: the CPU in pure Rust, or what was chosen when the program was built.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// What carries out the tensor operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The CPU, in pure Rust; always there.
    #[default]
    Cpu,
    /// PyTorch's library on the CPU: feature `tch`.
    Libtorch,
    /// An NVIDIA graphics card: feature `cuda`.
    Cuda,
    /// Any graphics card that Vulkan, Metal or DirectX reach: feature `wgpu`.
    Wgpu,
}

/// A backend that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No backend has this name.
    #[error("backend is `{found}`, wanted cpu, libtorch, cuda or wgpu")]
    Name {
        /// The name given.
        found: String,
    },
    /// The program was built without it.
    #[error("backend {backend} is not part of this program, wanted a build with `--features {feature}`")]
    NotBuilt {
        /// The backend.
        backend: Backend,
        /// The feature that adds it.
        feature: &'static str,
    },
}

impl Backend {
    const ALL: [Self; 4] = [Self::Cpu, Self::Libtorch, Self::Cuda, Self::Wgpu];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Libtorch => "libtorch",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// The device, without gradients.
    pub fn device(self) -> Result<Device, BackendError> {
        match self {
            Self::Cpu => Ok(Device::flex()),
            #[cfg(feature = "tch")]
            Self::Libtorch => Ok(libtorch()),
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(Device::cuda(0)),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
            #[cfg(not(feature = "tch"))]
            Self::Libtorch => Err(BackendError::NotBuilt { backend: self, feature: "tch" }),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda => Err(BackendError::NotBuilt { backend: self, feature: "cuda" }),
            #[cfg(not(feature = "wgpu"))]
            Self::Wgpu => Err(BackendError::NotBuilt { backend: self, feature: "wgpu" }),
        }
    }
}

#[cfg(feature = "tch")]
#[expect(
    deprecated,
    reason = "burn 0.22 announces the end of its libtorch backend; until then it is offered"
)]
fn libtorch() -> Device {
    Device::libtorch()
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        let found = Self::ALL.into_iter().find(|backend| backend.name() == text);
        found.ok_or_else(|| BackendError::Name { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_was_not_built_says_how_to_build_it() {
        assert!(Backend::Cpu.device().is_ok());
        for (backend, feature) in [
            (Backend::Libtorch, cfg!(feature = "tch")),
            (Backend::Cuda, cfg!(feature = "cuda")),
            (Backend::Wgpu, cfg!(feature = "wgpu")),
        ] {
            if !feature {
                let error = backend.device().unwrap_err();
                assert!(matches!(error, BackendError::NotBuilt { .. }), "{error}");
            }
            assert_eq!(backend.name().parse(), Ok(backend));
        }
        assert_eq!("gpu".parse::<Backend>(), Err(BackendError::Name { found: "gpu".to_owned() }));
    }
}
