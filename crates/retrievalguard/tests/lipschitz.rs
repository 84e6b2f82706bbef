//! Linear encoders with orthonormal rows: their true radius is a distance between a point and some polyhedra.
//!
//! A perturbation `Wᵀw` moves the embedding by exactly `w` and is no longer than it, so whatever an embedding can be moved
//! to inside a ball is reached by a picture. The certificate with mixtures must meet the truth from below.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::num::NonZeroUsize;

use retrievalguard::certificate::{
    LipschitzBound, LipschitzCertifier, LipschitzName, Mixtures, Radius, Verdict,
};
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::{ForwardError, LipschitzConstant};

const PIXELS: usize = 24;
const DIMENSION: usize = 5;

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    fn vector(&mut self, length: usize) -> Vec<f64> {
        (0..length).map(|_| self.next()).collect()
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

fn norm(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

/// `h(x) = factor · Wx`, the rows of `W` orthonormal: its Lipschitz constant is `factor`, and it is met everywhere.
struct Linear {
    rows: Vec<Vec<f64>>,
    factor: f64,
}

impl Linear {
    fn new(numbers: &mut Numbers, factor: f64) -> Self {
        let mut rows: Vec<Vec<f64>> = Vec::new();
        while rows.len() < DIMENSION {
            let mut row = numbers.vector(PIXELS);
            // Twice, because once leaves what rounding left.
            for _ in 0..2 {
                for other in &rows {
                    let share = dot(&row, other);
                    row.iter_mut().zip(other).for_each(|(value, other)| *value -= share * other);
                }
            }
            let length = norm(&row);
            rows.push(row.into_iter().map(|value| value / length).collect());
        }
        Self { rows, factor }
    }

    fn embed(&self, picture: &[f64]) -> Vec<f64> {
        self.rows.iter().map(|row| self.factor * dot(row, picture)).collect()
    }

    /// The shortest perturbation that moves the embedding by this.
    fn perturbation(&self, shift: &[f64]) -> Vec<f64> {
        (0..PIXELS)
            .map(|pixel| {
                self.rows.iter().zip(shift).map(|(row, shift)| row[pixel] * shift).sum::<f64>() / self.factor
            })
            .collect()
    }
}

/// Solves a small system by elimination; none if it is singular.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let size = right.len();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        if matrix[pivot][column].abs() < 1e-9 {
            return None;
        }
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        for row in 0..size {
            if row != column {
                let share = matrix[row][column] / matrix[column][column];
                let pivot = matrix[column].clone();
                matrix[row].iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= share * pivot);
                right[row] -= share * right[column];
            }
        }
    }
    Some((0..size).map(|row| right[row] / matrix[row][row]).collect())
}

/// The shortest shift of an embedding to where `wrong` is at least as near as all `rights`: every set of bisectors is tried.
fn shortest_shift(embedding: &[f64], rights: &[Vec<f64>], wrong: &[f64]) -> Vec<f64> {
    let square = |point: &[f64]| point.iter().zip(embedding).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    // ⟨w, v_a − v_b⟩ ≤ (‖h−v_a‖² − ‖h−v_b‖²)/2 for every a.
    let normals: Vec<Vec<f64>> =
        rights.iter().map(|right| right.iter().zip(wrong).map(|(a, b)| a - b).collect()).collect();
    let limits: Vec<f64> = rights.iter().map(|right| (square(right) - square(wrong)) / 2.0).collect();
    let mut best: Option<Vec<f64>> = None;
    for set in 0_u32..1 << rights.len() {
        let chosen: Vec<usize> = (0..rights.len()).filter(|place| set >> place & 1 == 1).collect();
        let gram = chosen
            .iter()
            .map(|&left| chosen.iter().map(|&right| dot(&normals[left], &normals[right])).collect())
            .collect();
        let Some(weights) = solve(gram, chosen.iter().map(|&place| limits[place]).collect()) else {
            continue;
        };
        let mut shift = vec![0.0; embedding.len()];
        for (weight, &place) in weights.iter().zip(&chosen) {
            shift.iter_mut().zip(&normals[place]).for_each(|(shift, normal)| *shift += weight * normal);
        }
        let allowed = normals.iter().zip(&limits).all(|(normal, limit)| dot(normal, &shift) <= limit + 1e-12);
        if allowed && best.as_ref().is_none_or(|best| norm(&shift) < norm(best)) {
            best = Some(shift);
        }
    }
    best.unwrap()
}

struct Case {
    gallery: Gallery,
    relevance: Relevance,
    encoder: Linear,
    picture: Vec<f64>,
    /// The shortest shift of the embedding that changes the label.
    shift: Vec<f64>,
}

impl Case {
    fn new(numbers: &mut Numbers, factor: f64) -> Self {
        let encoder = Linear::new(numbers, factor);
        let picture: Vec<f64> = numbers.vector(PIXELS).iter().map(|value| (value + 1.0) / 2.0).collect();
        let embedding = encoder.embed(&picture);
        // Right items around the query, wrong ones farther away.
        let mut vectors: Vec<f32> = Vec::new();
        for row in 0..24 {
            let spread = if row % 4 == 0 { 0.6 } else { 2.5 };
            vectors.extend(embedding.iter().map(|value| (value + spread * numbers.next()) as f32));
        }
        let names: Vec<String> = (0..24).map(|row| row.to_string()).collect();
        let labels: Vec<String> = (0..24).map(|row| format!("{}", row % 4)).collect();
        let gallery = Gallery::new(vectors, DIMENSION, names, &labels, Metric::Euclidean).unwrap();
        let relevance = Relevance::new(Positives::Label(gallery.label(0)), vec![]);
        let vector =
            |row: usize| gallery.vector(row).iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let rights: Vec<Vec<f64>> = (0..24).filter(|row| row % 4 == 0).map(vector).collect();
        let shift = (0..24)
            .filter(|row| row % 4 != 0)
            .map(|row| shortest_shift(&embedding, &rights, &vector(row)))
            .min_by(|left, right| norm(left).total_cmp(&norm(right)))
            .unwrap();
        Self { gallery, relevance, encoder, picture, shift }
    }

    fn true_radius(&self) -> f64 {
        norm(&self.shift) / self.encoder.factor
    }

    fn certified(&self, bound: LipschitzBound, mixtures: Mixtures, name: LipschitzName) -> f64 {
        let certifier = LipschitzCertifier::new(&self.gallery, bound).mixtures(mixtures);
        let outcome = certifier.certify(name, &self.encoder.embed(&self.picture), &self.relevance).unwrap();
        outcome.verdict().radius().map_or(0.0, Radius::get)
    }

    /// Whether a picture retrieves the right label.
    fn is_right(&self, picture: &[f64]) -> bool {
        let nearest = self.gallery.nearest(&self.encoder.embed(picture), 1, |_| &[]).unwrap();
        Positives::Label(self.gallery.label(nearest[0][0].row)) == self.relevance.positives
    }

    fn moved(&self, perturbation: &[f64], length: f64) -> Vec<f64> {
        let scale = length / norm(perturbation);
        self.picture.iter().zip(perturbation).map(|(pixel, change)| pixel + scale * change).collect()
    }
}

fn bound(constant: f64, error: f64) -> LipschitzBound {
    let stated = LipschitzBound::stated(LipschitzConstant::new(constant).unwrap());
    LipschitzBound { forward_error: ForwardError::new(error).unwrap(), ..stated }
}

const ALL: Mixtures = Mixtures::UpTo(NonZeroUsize::MAX);

#[test]
fn the_radius_with_mixtures_is_the_true_one_and_the_flip_is_just_behind_it() {
    let mut numbers = Numbers(11);
    let (mut tried, mut wider) = (0, 0);
    for trial in 0..60 {
        let factor = [1.0, 0.3, 7.0][trial % 3];
        let case = Case::new(&mut numbers, factor);
        let truth = case.true_radius();
        let certified = case.certified(bound(factor, 0.0), ALL, LipschitzName::Lipschitz);
        if truth < 1e-6 {
            assert_eq!(certified, 0.0, "trial {trial}");
            continue;
        }
        tried += 1;
        assert!(
            certified <= truth && certified > truth * (1.0 - 1e-6),
            "trial {trial}: {certified} of {truth}"
        );
        let single = case.certified(bound(factor, 0.0), Mixtures::One, LipschitzName::Lipschitz);
        let margin = case.certified(bound(factor, 0.0), Mixtures::One, LipschitzName::LipschitzMargin);
        assert!(margin <= single && single <= certified * (1.0 + 1e-12), "{margin} {single} {certified}");
        wider += usize::from(certified > single * 1.001);

        let flip = case.encoder.perturbation(&case.shift);
        assert!(!case.is_right(&case.moved(&flip, 1.001 * certified)), "trial {trial}");
        assert!(case.is_right(&case.moved(&flip, 0.999 * certified)), "trial {trial}");
        for _ in 0..300 {
            let anywhere = numbers.vector(PIXELS);
            assert!(case.is_right(&case.moved(&anywhere, 0.999 * certified)), "trial {trial}");
            let shift = numbers.vector(DIMENSION);
            let seen = case.encoder.perturbation(&shift);
            assert!(case.is_right(&case.moved(&seen, 0.999 * certified)), "trial {trial}");
        }
    }
    assert!(tried >= 40 && wider >= 5, "{tried} tried, {wider} made larger by mixtures");
}

/// How many of the certificates that a bound leads to are broken just inside their radius.
///
/// What runs is the encoder with a deterministic error of this size, turned against the certificate.
fn broken(stated: LipschitzBound, constant: f64, error: f64) -> usize {
    let mut numbers = Numbers(23);
    let mut broken = 0;
    for _ in 0..40 {
        let case = Case::new(&mut numbers, constant);
        if case.true_radius() < 1e-6 {
            continue;
        }
        let length = norm(&case.shift);
        let off: Vec<f64> = case.shift.iter().map(|shift| shift / length * error).collect();
        let computed: Vec<f64> =
            case.encoder.embed(&case.picture).iter().zip(&off).map(|(value, off)| value - off).collect();
        let certifier = LipschitzCertifier::new(&case.gallery, stated).mixtures(ALL);
        let outcome = certifier.certify(LipschitzName::Lipschitz, &computed, &case.relevance).unwrap();
        let Verdict::Certified { radius } = outcome.verdict() else { continue };
        let flip = case.encoder.perturbation(&case.shift);
        let there = case.encoder.embed(&case.moved(&flip, 0.9999 * radius.get()));
        let there: Vec<f64> = there.iter().zip(&off).map(|(value, off)| value + off).collect();
        let nearest = case.gallery.nearest(&there, 1, |_| &[]).unwrap();
        let found = Positives::Label(case.gallery.label(nearest[0][0].row));
        broken += usize::from(found != case.relevance.positives);
    }
    broken
}

#[test]
fn a_constant_that_is_too_small_and_an_error_that_is_left_out_are_noticed() {
    assert_eq!(broken(bound(1.0, 0.0), 1.0, 0.0), 0);
    assert_eq!(broken(bound(2.0, 0.01), 2.0, 0.01), 0);
    assert!(broken(bound(0.99, 0.0), 1.0, 0.0) > 20, "a constant that is a hundredth too small");
    assert!(broken(bound(1.0, 0.0), 1.0, 0.01) > 10, "no forward error");
    assert!(broken(bound(1.0, 0.005), 1.0, 0.01) > 10, "half of the forward error");
}
