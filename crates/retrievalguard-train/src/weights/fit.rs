//! Whether weights fit a network, tensor by tensor and by name.

use std::fmt;

use super::Weights;
use crate::network::Network;

/// Tensors of a checkpoint that no backbone has: classifiers, and the counters of PyTorch's batch normalisations.
const CLASSIFIERS: [&str; 4] = ["fc.weight", "fc.bias", "_fc.weight", "_fc.bias"];
const COUNTER: &str = ".num_batches_tracked";

/// Names that a message lists before it only counts.
const LISTED: usize = 10;

/// Where the head comes from when weights are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The network keeps its own: the usual case for a pretrained backbone.
    Fresh,
    /// The weights must have it.
    Required,
}

/// What became of the tensors of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// How many tensors the network took.
    pub loaded: usize,
    /// What stood before every name, for instance `state_dict.`; mostly empty.
    pub prefix: String,
    /// Names of tensors that were passed over: classifiers, counters, a head that was not asked for, and whatever lies
    /// outside the prefix.
    pub ignored: Vec<String>,
}

/// A tensor of another shape than the network's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshapen {
    /// Its name.
    pub name: String,
    /// Its sides in the weights.
    pub found: Vec<usize>,
    /// Its sides in the network.
    pub wanted: Vec<usize>,
}

/// Why weights do not fit a network: every tensor that is wrong, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitError {
    /// The architecture.
    pub network: String,
    /// In the network, not in the weights.
    pub missing: Vec<String>,
    /// In the weights, not in the network.
    pub extra: Vec<String>,
    /// In both with different shapes.
    pub misshapen: Vec<Misshapen>,
    /// Not of floating-point numbers: the name and the type.
    pub wrong_type: Vec<(String, String)>,
    /// With a number that is not finite.
    pub not_finite: Vec<String>,
    /// With a variance below zero.
    pub negative: Vec<String>,
}

impl FitError {
    fn is_empty(&self) -> bool {
        let Self { network: _, missing, extra, misshapen, wrong_type, not_finite, negative } = self;
        let counts =
            [missing.len(), extra.len(), misshapen.len(), wrong_type.len(), not_finite.len(), negative.len()];
        counts == [0; 6]
    }
}

impl std::error::Error for FitError {}

impl fmt::Display for FitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let misshapen = self
            .misshapen
            .iter()
            .map(|Misshapen { name, found, wanted }| format!("`{name}` is {found:?}, wanted {wanted:?}"));
        let wrong_type = self.wrong_type.iter().map(|(name, found)| format!("`{name}` is {found}"));
        write!(out, "weights do not fit {}", self.network)?;
        for (what, tensors) in [
            ("missing", quoted(&self.missing)),
            ("not part of the network", quoted(&self.extra)),
            ("of another shape", misshapen.collect()),
            ("not of floating-point numbers", wrong_type.collect()),
            ("with a number that is not finite", quoted(&self.not_finite)),
            ("with a variance below zero", quoted(&self.negative)),
        ] {
            if tensors.is_empty() {
                continue;
            }
            write!(out, "; {what}: {}", tensors[..tensors.len().min(LISTED)].join(", "))?;
            if tensors.len() > LISTED {
                write!(out, " and {} more", tensors.len() - LISTED)?;
            }
        }
        Ok(())
    }
}

impl Network {
    /// The network with these weights in place of its own, on the same device.
    ///
    /// Every tensor must be there once, with its shape and finite; no other may be there but those that [`LoadReport`]
    /// lists. Names may share a prefix: the one under which most of the network's tensors are found is taken.
    pub fn load(&self, weights: &Weights, head: Head) -> Result<(Self, LoadReport), Box<FitError>> {
        let own = self.tensors();
        let prefix = prefix(weights, &own.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>());
        let mut error = FitError { network: self.config().architecture.to_string(), ..FitError::default() };
        let mut values = Vec::new();
        let mut loaded = Vec::new();
        for tensor in own {
            if head == Head::Fresh && is_head(&tensor.name) {
                values.push(tensor.values);
                continue;
            }
            let name = format!("{prefix}{}", tensor.name);
            let Some(found) = weights.tensors.get(&name) else {
                error.missing.push(name);
                continue;
            };
            match &found.values {
                _ if found.shape != tensor.shape => {
                    let (found, wanted) = (found.shape.clone(), tensor.shape);
                    error.misshapen.push(Misshapen { name: name.clone(), found, wanted });
                }
                Err(kind) => error.wrong_type.push((name.clone(), kind.clone())),
                Ok(numbers) if numbers.iter().any(|number| !number.is_finite()) => {
                    error.not_finite.push(name.clone());
                }
                Ok(numbers)
                    if name.ends_with(".running_var") && numbers.iter().any(|&number| number < 0.0) =>
                {
                    error.negative.push(name.clone());
                }
                Ok(numbers) => values.push(numbers.clone()),
            }
            loaded.push(name);
        }
        loaded.sort_unstable();
        let mut ignored = Vec::new();
        for name in
            weights.names().filter(|name| loaded.binary_search_by(|own| own.as_str().cmp(name)).is_err())
        {
            let passed_over = match name.strip_prefix(prefix.as_str()) {
                Some(name) => {
                    CLASSIFIERS.contains(&name)
                        || name.ends_with(COUNTER)
                        || head == Head::Fresh && is_head(name)
                }
                None => true,
            };
            if passed_over { &mut ignored } else { &mut error.extra }.push(name.to_owned());
        }
        if !error.is_empty() {
            return Err(Box::new(error));
        }
        let mut values = values.into_iter();
        let network = Self::build(self.config(), &self.device(), |_| {
            values.next().expect("one list of numbers for every tensor, in the network's own order")
        });
        let network = network.expect("the network was built from this very configuration");
        Ok((network, LoadReport { loaded: loaded.len(), prefix, ignored }))
    }
}

fn is_head(name: &str) -> bool {
    name.starts_with("head.")
}

/// What stands before the network's names in the weights; of several prefixes the one with the most tensors, then the
/// shortest.
fn prefix(weights: &Weights, own: &[&str]) -> String {
    let first = own.first().copied().unwrap_or_default();
    let candidates = weights.names().filter_map(|name| name.strip_suffix(first));
    let candidates = candidates.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    let found = |prefix: &str| {
        own.iter().filter(|name| weights.tensors.contains_key(&format!("{prefix}{name}"))).count()
    };
    let best = candidates.min_by_key(|prefix| (usize::MAX - found(prefix), prefix.len()));
    best.unwrap_or_default().to_owned()
}
