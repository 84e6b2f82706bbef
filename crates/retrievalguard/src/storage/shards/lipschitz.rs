//! Certificates without noise against a gallery in shards: those that the whole gallery in memory would give.

use super::ShardedGallery;
use super::pieces::Pieces;
use crate::certificate::{CertificateError, Findings, LipschitzCertifier};
use crate::gallery::{Neighbour, Relevance};

impl LipschitzCertifier<'_> {
    /// What is known of one embedding, from pieces that each thread reads once (theory, section 14.2).
    pub(crate) fn find_in_shards(
        &self,
        gallery: &ShardedGallery,
        embedding: &[f64],
        relevance: &Relevance,
    ) -> Result<Findings, CertificateError> {
        self.find_in_pieces(Pieces::new(gallery), embedding, relevance)
    }

    fn find_in_pieces(
        &self,
        pieces: Pieces<'_>,
        embedding: &[f64],
        relevance: &Relevance,
    ) -> Result<Findings, CertificateError> {
        let top_k = self.depth();
        let case = pieces.case(relevance)?;
        let found = pieces.reduce(&case, |piece| {
            let negatives = piece.rows.len() - case.positives.len();
            let certifier = self.no_deeper_than(negatives);
            let mut found = certifier.find_in_memory(&piece.gallery, embedding, &piece.relevance)?;
            let whole = |found: &mut Neighbour| found.row = piece.rows[found.row];
            found.nearest.iter_mut().chain(&mut found.negatives).for_each(whole);
            for reach in &mut found.reaches {
                (reach.negative, reach.positive) = (piece.rows[reach.negative], piece.rows[reach.positive]);
            }
            Ok(found)
        })?;
        let found = found.into_iter().reduce(|one, other| one.merge(other, top_k));
        let found = found.ok_or(CertificateError::NoNegatives)?;
        match found.negatives.len() {
            negatives if negatives < top_k => Err(CertificateError::TopKTooLarge { top_k, negatives }),
            _ => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::super::certify::tests::{clusters, sharded};
    use super::*;
    use crate::LipschitzConstant;
    use crate::certificate::{LipschitzBound, LipschitzName, Mixtures};
    use crate::gallery::Positives;

    #[test]
    fn pieces_give_the_verdicts_of_the_whole_gallery() {
        let whole = clusters(400, 8, 23, 5);
        let bound = LipschitzBound::stated(LipschitzConstant::new(1.5).unwrap());
        let (mut certified, mut wrong) = (0, 0);
        for place in 0..24_usize {
            let row = (place * 37) % whole.len();
            let other = whole.vector((row * 7 + 11) % whole.len());
            let share = 0.06 * place as f64;
            let embedding: Vec<f64> = whole
                .vector(row)
                .iter()
                .zip(other)
                .map(|(&own, &other)| f64::from(own) + share * (f64::from(other) - f64::from(own)))
                .collect();
            let (positives, excluded) = match place % 4 {
                0 => (Positives::Item(row), vec![]),
                1 => (Positives::Label(whole.label(row)), vec![row]),
                2 => (Positives::Label(whole.label(row)), vec![0, 399]),
                _ => (Positives::Absent, vec![row]),
            };
            let relevance = Relevance::new(positives, excluded);
            let top_k = NonZeroUsize::new([1, 3][place % 2]).unwrap();
            let mixtures = if place % 3 == 0 { Mixtures::UpTo(NonZeroUsize::MAX) } else { Mixtures::One };
            let memory = LipschitzCertifier::new(&whole, bound).top_k(top_k).mixtures(mixtures);
            let folder = tempfile::tempdir().unwrap();
            let shards = sharded(folder.path(), &whole, 150);
            let on_disk = LipschitzCertifier::new(&shards, bound).top_k(top_k).mixtures(mixtures);
            for piece_rows in [1, 7, 150, 1 << 16] {
                let found = on_disk
                    .find_in_pieces(Pieces { gallery: &shards, piece_rows }, &embedding, &relevance)
                    .unwrap();
                let wanted = memory.find_in_memory(&whole, &embedding, &relevance).unwrap();
                // Where nothing is above zero, nothing more is looked for.
                let distances = |findings: &Findings| {
                    findings.reaches.iter().map(|reach| reach.distance.max(0.0).to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(distances(&found), distances(&wanted), "query {place}, pieces of {piece_rows}");
                assert_eq!(found.negatives, wanted.negatives, "query {place}, pieces of {piece_rows}");
                assert_eq!(found.nearest, wanted.nearest, "query {place}, pieces of {piece_rows}");
            }
            for name in LipschitzName::ALL {
                let found = on_disk.certify(name, &embedding, &relevance).unwrap();
                let wanted = memory.certify(name, &embedding, &relevance).unwrap();
                assert_eq!(found.verdicts, wanted.verdicts, "query {place}, {name}");
                certified += usize::from(found.verdict().radius().is_some());
                wrong += usize::from(found.verdict().radius().is_none());
            }
        }
        assert!(
            certified > 5 && wrong > 5,
            "{certified} certified, {wrong} not: the cases are too much alike"
        );
    }

    #[test]
    fn more_wrong_items_than_there_are_cannot_be_asked_for() {
        let whole = clusters(40, 4, 5, 1);
        let folder = tempfile::tempdir().unwrap();
        let shards = sharded(folder.path(), &whole, 9);
        let bound = LipschitzBound::stated(LipschitzConstant::new(1.0).unwrap());
        let certifier = LipschitzCertifier::new(&shards, bound).top_k(NonZeroUsize::new(40).unwrap());
        let relevance = Relevance::new(Positives::Item(3), vec![]);
        let error = certifier.certify(LipschitzName::Lipschitz, &[0.1; 4], &relevance).unwrap_err();
        assert_eq!(error, CertificateError::TopKTooLarge { top_k: 40, negatives: 39 });
        let all = Relevance::new(Positives::Absent, (0..40).collect());
        let error = certifier.certify(LipschitzName::Lipschitz, &[0.1; 4], &all).unwrap_err();
        assert_eq!(error, CertificateError::NoNegatives);
    }
}
