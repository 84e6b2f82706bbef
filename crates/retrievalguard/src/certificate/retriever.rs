//! The three smoothed retrievers and the one without noise, and the label that each would answer with.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CertificateError, CertificateName, Certifier};
use crate::Samples;
use crate::gallery::Label;

/// Which system answers, and which one a certificate speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Retriever {
    /// The item nearest to the mean of the noisy embeddings.
    Mean,
    /// The label that most noisy embeddings retrieve.
    Vote,
    /// The label that comes before each other one in most noisy embeddings.
    Pairwise,
    /// The item nearest to the embedding itself, without noise.
    Plain,
}

impl Retriever {
    /// Every retriever.
    pub const ALL: [Self; 4] = [Self::Mean, Self::Vote, Self::Pairwise, Self::Plain];

    /// Those that answer from noisy copies.
    pub const SMOOTHED: [Self; 3] = [Self::Mean, Self::Vote, Self::Pairwise];

    /// The retriever that a certificate speaks of.
    pub fn of(certificate: CertificateName) -> Self {
        match certificate {
            CertificateName::Vote => Self::Vote,
            CertificateName::Pairwise => Self::Pairwise,
            CertificateName::Paper
            | CertificateName::PaperLinear
            | CertificateName::PaperRepaired
            | CertificateName::PaperFrozen
            | CertificateName::HalfSpaceMean
            | CertificateName::HalfSpace => Self::Mean,
            CertificateName::Lipschitz | CertificateName::LipschitzMargin => Self::Plain,
        }
    }

    /// The certificate that its answers are given with.
    pub fn certificate(self) -> CertificateName {
        match self {
            Self::Mean => CertificateName::HalfSpace,
            Self::Vote => CertificateName::Vote,
            Self::Pairwise => CertificateName::Pairwise,
            Self::Plain => CertificateName::Lipschitz,
        }
    }

    /// The name as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Vote => "vote",
            Self::Pairwise => "pairwise",
            Self::Plain => "plain",
        }
    }
}

impl fmt::Display for Retriever {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Retriever {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Self, CertificateError> {
        let found = Self::ALL.into_iter().find(|retriever| retriever.as_str() == text);
        found.ok_or_else(|| CertificateError::UnknownRetriever(text.to_owned()))
    }
}

impl Certifier<'_> {
    /// The label that a retriever answers with, judged by a pilot: what deployment then certifies.
    pub fn candidate(
        &self,
        retriever: Retriever,
        pilot: &Samples,
        excluded: &[usize],
    ) -> Result<Option<Label>, CertificateError> {
        match retriever {
            Retriever::Mean => {
                Ok(self.retrieve(pilot, excluded)?.map(|nearest| self.gallery.label(nearest.row)))
            }
            Retriever::Vote => self.elect(pilot, excluded),
            Retriever::Pairwise => self.champion(pilot, excluded),
            Retriever::Plain => Err(CertificateError::NotFromSamples(retriever.certificate())),
        }
    }
}
