//! What an experiment is, as a TOML file says it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::CertificateName;
use retrievalguard::{Alpha, NormBound, SampleCount, Seed, Sigma};
use serde::{Deserialize, Serialize};

/// Why a file does not describe an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentConfigError {
    /// The file cannot be read.
    #[error("experiment `{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not TOML, or not of this shape.
    #[error("experiment `{}` is not usable", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A list has nothing in it.
    #[error("experiment `{}` has no {what}, wanted at least one", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// No encoder was made for a noise level of the sweep.
    #[error("experiment `{}` has no encoder for sigma {sigma}, wanted one for each of its noise levels", path.display())]
    NoEncoder {
        /// The file.
        path: PathBuf,
        /// The noise level.
        sigma: Sigma,
    },
    /// Settings that a figure would not tell apart.
    #[error(
        "experiment `{}` has {count} values of {factor:?} in one curve, wanted it among the panels or as the series", path.display()
    )]
    Merged {
        /// The file.
        path: PathBuf,
        /// What is swept and not shown.
        factor: Factor,
        /// How many values it has.
        count: usize,
    },
    /// Two encoders answer for the same point of the sweep.
    #[error("experiment `{}` has two encoders called `{name}` for sigma {sigma}, wanted one", path.display())]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// What both are called.
        name: String,
        /// The noise level.
        sigma: Sigma,
    },
}

/// Pictures that are searched, and searched for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Subject of the synthetic pictures: products or fabrics.
    pub catalogue: String,
    /// How many queries, spread evenly over all.
    pub queries: usize,
}

/// One encoder, for one noise level or for all.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderEntry {
    /// What figures call it; encoders for several noise levels may share a name.
    pub name: String,
    /// The ONNX file, from the folder of encoders.
    pub model: PathBuf,
    /// The only noise level it is used at.
    pub sigma: Option<Sigma>,
}

/// The values that are combined with each other.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Noise levels.
    pub sigma: Vec<Sigma>,
    /// Certifying samples.
    pub samples: Vec<SampleCount>,
    /// Failure probabilities.
    pub alpha: Vec<Alpha>,
    /// Certificates.
    pub certificates: Vec<CertificateName>,
    /// Pilot samples.
    pub pilot: SampleCount,
    /// Samples behind each gallery item.
    pub gallery_samples: SampleCount,
    /// Root of the noise.
    #[serde(default = "zero")]
    pub seed: Seed,
}

fn zero() -> Seed {
    Seed::new(0)
}

/// What distinguishes the settings of a sweep from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Factor {
    /// The encoder, by its name.
    Encoder,
    /// Length of the embeddings.
    Dimension,
    /// Noise level.
    Sigma,
    /// Certifying samples.
    Samples,
    /// Failure probability.
    Alpha,
    /// The certificate.
    Certificate,
}

/// What a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// Recall@1(r) against r.
    CertifiedRecall,
    /// The rejected ratio against the number of samples.
    RejectedRatio,
}

/// How results become a figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureConfig {
    /// What it shows.
    pub kind: FigureKind,
    /// A panel for each combination of these.
    pub panels: Vec<Factor>,
    /// A curve for each of these.
    pub series: Factor,
}

/// The two bounds of the paper's first figure, which need no data.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LipschitzConfig {
    /// Noise level.
    pub sigma: Sigma,
    /// Norm bound.
    pub norm_bound: NormBound,
    /// The largest distance shown.
    pub distance: f64,
}

/// What is less in the quick setting.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// How many queries.
    pub queries: Option<usize>,
    /// Certifying samples.
    pub samples: Option<Vec<SampleCount>>,
}

/// An experiment.
///
/// ```
/// use retrievalguard_encoder::experiment::ExperimentConfig;
///
/// let text = r#"
///     title = "Recall@1(r) by the number of samples"
///     encoders = "encoders"
///     [data]
///     catalogue = "products"
///     queries = 20
///     [[encoder]]
///     name = "GDML"
///     model = "gdml/encoder.onnx"
///     [sweep]
///     sigma = [0.25]
///     samples = [1000, 10000]
///     alpha = [0.01]
///     certificates = ["paper", "half-space"]
///     pilot = 200
///     gallery_samples = 32
///     [figure]
///     kind = "certified-recall"
///     panels = ["certificate"]
///     series = "samples"
/// "#;
/// let config = ExperimentConfig::from_toml("by-samples.toml".as_ref(), text)?;
/// assert_eq!(config.sweep().expect("it is no closed form").samples.len(), 2);
/// # Ok::<(), retrievalguard_encoder::experiment::ExperimentConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentConfig {
    /// What the figure is called.
    pub title: String,
    /// Folder of the encoders, from that of the file.
    #[serde(default)]
    pub encoders: PathBuf,
    /// Where pictures come from unless told otherwise.
    pub data: Option<DataConfig>,
    /// The encoders.
    #[serde(default, rename = "encoder")]
    encoder: Vec<EncoderEntry>,
    sweep: Option<Sweep>,
    /// The figure.
    pub figure: Option<FigureConfig>,
    /// A closed form instead of a sweep.
    pub lipschitz: Option<LipschitzConfig>,
    #[serde(default)]
    quick: Overrides,
}

impl ExperimentConfig {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ExperimentConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ExperimentConfigError::Read { path: path.to_owned(), source })?;
        Self::from_toml(path, &text)
    }

    /// Checks the text of the file at `path`.
    pub fn from_toml(path: &Path, text: &str) -> Result<Self, ExperimentConfigError> {
        let config: Self = toml::from_str(text).map_err(|source| ExperimentConfigError::Toml {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        config.check(path)?;
        Ok(config)
    }

    fn check(&self, path: &Path) -> Result<(), ExperimentConfigError> {
        let missing = |what| ExperimentConfigError::Empty { path: path.to_owned(), what };
        if self.lipschitz.is_some() {
            return Ok(());
        }
        let sweep = self.sweep.as_ref().ok_or_else(|| missing("[sweep] and no [lipschitz]"))?;
        let figure = self.figure.as_ref().ok_or_else(|| missing("[figure]"))?;
        let quick = self.quick.samples.as_ref();
        for (what, count) in [
            ("sigma", sweep.sigma.len()),
            ("samples", sweep.samples.len()),
            ("samples of the quick setting", quick.map_or(1, Vec::len)),
            ("alpha", sweep.alpha.len()),
            ("certificates", sweep.certificates.len()),
            ("[[encoder]]", self.encoder.len()),
        ] {
            if count == 0 {
                return Err(missing(what));
            }
        }
        let along = match figure.kind {
            FigureKind::CertifiedRecall => None,
            FigureKind::RejectedRatio => Some(Factor::Samples),
        };
        for (factor, count) in [
            (Factor::Sigma, sweep.sigma.len()),
            (Factor::Samples, sweep.samples.len().max(quick.map_or(1, Vec::len))),
            (Factor::Alpha, sweep.alpha.len()),
            (Factor::Certificate, sweep.certificates.len()),
        ] {
            if count > 1 && !figure.mentions(factor) && along != Some(factor) {
                return Err(ExperimentConfigError::Merged { path: path.to_owned(), factor, count });
            }
        }
        for &sigma in &sweep.sigma {
            let mut names: Vec<&str> = self.encoders_at(sigma).map(|encoder| encoder.name.as_str()).collect();
            if names.is_empty() {
                return Err(ExperimentConfigError::NoEncoder { path: path.to_owned(), sigma });
            }
            names.sort_unstable();
            let count = names.iter().collect::<std::collections::BTreeSet<_>>().len();
            if count > 1 && !figure.mentions(Factor::Encoder) {
                return Err(ExperimentConfigError::Merged {
                    path: path.to_owned(),
                    factor: Factor::Encoder,
                    count,
                });
            }
            if !figure.mentions(Factor::Dimension)
                && let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1])
            {
                return Err(ExperimentConfigError::Ambiguous {
                    path: path.to_owned(),
                    name: pair[0].to_owned(),
                    sigma,
                });
            }
        }
        Ok(())
    }

    /// The encoders that serve at a noise level.
    pub fn encoders_at(&self, sigma: Sigma) -> impl Iterator<Item = &EncoderEntry> {
        self.encoder.iter().filter(move |encoder| encoder.sigma.is_none_or(|only| only == sigma))
    }

    /// The sweep, unless the experiment is a closed form.
    pub fn sweep(&self) -> Option<&Sweep> {
        self.sweep.as_ref()
    }

    /// The same experiment with fewer queries and samples, as its file says.
    #[must_use]
    pub fn quickened(mut self) -> Self {
        if let (Some(queries), Some(data)) = (self.quick.queries, &mut self.data) {
            data.queries = queries;
        }
        if let (Some(samples), Some(sweep)) = (&self.quick.samples, &mut self.sweep) {
            sweep.samples.clone_from(samples);
        }
        self
    }
}

impl FigureConfig {
    fn mentions(&self, factor: Factor) -> bool {
        self.series == factor || self.panels.contains(&factor)
    }
}
