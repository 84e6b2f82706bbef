//! One query, answered without noise: one pass in double precision, and a bound on the encoder (theory, section 14).

use retrievalguard::certificate::{
    CertificateError, CertificateName, Distance, LipschitzBound, LipschitzCertifier, LipschitzName,
    LipschitzOutcome, Mixtures, Outcome, Similarity, Threshold, Verdict,
};
use retrievalguard::gallery::Label;
use retrievalguard::storage::manifest::StorageError;
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};

use super::answer::settled;
use super::{Answered, PipelineError, Query, uncertified};
use crate::engine::OnnxEmbedder;
use crate::graph::bound::Precision;
use crate::graph::bound::upwards::{add, div, mul, root};
use crate::run::LipschitzBounded;

/// Certifies queries against one gallery, from one embedding each.
#[derive(Clone, Copy, Debug)]
pub struct PlainCertifier<'a> {
    bounded: &'a LipschitzBounded,
    gallery: GalleryRef<'a>,
    /// Largest norm of a stored vector.
    largest_norm: f64,
}

/// A query that was answered without noise.
#[derive(Clone, Debug)]
pub struct PlainAnswered {
    /// The answer; its mean is the embedding.
    pub answered: Answered,
    /// What was known about the encoder at this picture: the constant, and the forward error that was taken off twice.
    pub bound: LipschitzBound,
}

impl<'a> PlainCertifier<'a> {
    /// A certifier for a stored gallery.
    pub fn stored(bounded: &'a LipschitzBounded, gallery: &'a StoredGallery) -> Result<Self, StorageError> {
        Ok(Self { bounded, gallery: gallery.gallery(), largest_norm: gallery.largest_norm()? })
    }

    /// A certifier for a gallery whose largest norm is known.
    pub fn new(bounded: &'a LipschitzBounded, gallery: GalleryRef<'a>, largest_norm: f64) -> Self {
        Self { bounded, gallery, largest_norm }
    }

    /// The gallery that is searched.
    pub fn gallery(&self) -> GalleryRef<'a> {
        self.gallery
    }

    /// What is known about the encoder at one picture and everywhere in the ball that could be certified around it.
    ///
    /// The forward error grows with the norm of what is embedded. An embedding that moves by `R` carries the picture by at most
    /// `R/L`, and no certified movement is longer than from the embedding to the farthest stored vector (theory, section 14.6).
    /// A threshold may lie `beyond` that.
    fn bound_at(
        &self,
        pixels: &[f32],
        embedding: &[f64],
        beyond: f64,
    ) -> Result<LipschitzBound, CertificateError> {
        let network = &self.bounded.lipschitz;
        let squares = |sum: f64, value: f64| add(sum, mul(value, value));
        let picture = root(pixels.iter().fold(0.0, |sum, &value| squares(sum, f64::from(value))));
        let own = root(embedding.iter().fold(0.0, |sum, &value| squares(sum, value)));
        // The stored norm was computed with rounding; a millionth is more than that.
        let movement = add(beyond, add(own, mul(self.largest_norm, 1.0 + 1e-6)));
        Ok(network.at(Precision::Double, add(picture, div(movement, network.constant)))?)
    }

    fn certifier(&self, bound: LipschitzBound) -> LipschitzCertifier<'a> {
        let mixtures = match self.bounded.mixtures.get() {
            1 => Mixtures::One,
            _ => Mixtures::UpTo(self.bounded.mixtures),
        };
        LipschitzCertifier::new(self.gallery, bound).top_k(self.bounded.top_k).mixtures(mixtures)
    }

    /// Certifies one picture, given its embedding in double precision.
    pub fn answer(
        &self,
        query: &Query<'_>,
        pixels: &[f32],
        embedding: Vec<f64>,
    ) -> Result<PlainAnswered, CertificateError> {
        let bound = self.bound_at(pixels, &embedding, 0.0)?;
        let certifier = self.certifier(bound);
        let nearest = |excluded: &[usize]| -> Result<Option<Label>, CertificateError> {
            Ok(certifier.retrieve(&embedding, excluded)?.map(|nearest| self.gallery.label(nearest.row)))
        };
        let (label, relevance) = settled(self.gallery, query, |_, excluded| nearest(excluded))?;
        let names: Vec<LipschitzName> =
            self.bounded.certificates.iter().filter_map(|name| name.lipschitz()).collect();
        let mut found: Vec<LipschitzOutcome> = Vec::new();
        certifier.certify_each(&names, &embedding, |_| &relevance, |_, outcomes| found = outcomes)?;
        let deeper: Vec<Verdict> = found
            .first()
            .map(|outcome| outcome.verdicts.iter().skip(1).copied().collect())
            .unwrap_or_default();
        let outcome = |found: LipschitzOutcome| Outcome {
            name: CertificateName::from(found.name),
            verdict: found.verdict(),
            samples: 0,
            explain: found.explain,
        };
        let outcomes = found.into_iter().map(outcome).collect();
        let answered = Answered { label, relevance, outcomes, deeper, decision: None, mean: embedding };
        Ok(PlainAnswered { answered, bound })
    }

    /// Runs the encoder once and certifies the picture.
    pub fn answer_picture(
        &self,
        query: &Query<'_>,
        embedder: &OnnxEmbedder,
        (identity, pixels): (&str, &[f32]),
    ) -> Result<PlainAnswered, PipelineError> {
        let embedding = embedder.embed_double(pixels)?;
        self.answer(query, pixels, embedding).map_err(uncertified::<PipelineError>(identity))
    }

    /// Radius inside which the distance or similarity of one row stays on its side of a threshold.
    pub fn threshold(
        &self,
        pixels: &[f32],
        embedding: &[f64],
        row: usize,
        threshold: Threshold,
    ) -> Result<LipschitzOutcome, CertificateError> {
        let beyond = match threshold {
            Threshold::Distance(Distance::Below(limit) | Distance::Above(limit)) => limit.abs(),
            // Its plane is |T|/‖v‖ from the origin, which the largest norm does not bound.
            Threshold::Similarity(Similarity::Above(limit) | Similarity::Below(limit)) => {
                let shortest = self.gallery.nearest(&vec![0.0; embedding.len()], 1, |_| &[])?;
                let shortest = shortest.into_iter().flatten().next().map_or(0.0, |row| row.squared_distance);
                div(limit.abs(), shortest.sqrt() * (1.0 - 1e-6))
            }
        };
        self.certifier(self.bound_at(pixels, embedding, beyond)?).threshold(embedding, row, threshold)
    }
}
