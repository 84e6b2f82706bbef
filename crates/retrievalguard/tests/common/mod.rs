//! Encoders with closed forms, and small galleries to ask them about.
#![allow(dead_code, reason = "each test binary uses its own part")]

use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::{Embedder, EmbedderFailure, NormBound, normal};

/// `h(x) = p₊` if `⟨w, x⟩ > 0`, else `p₋`, for a unit vector `w` over four pixels.
pub(crate) struct TwoCell {
    pub(crate) plus: [f32; 2],
    pub(crate) minus: [f32; 2],
}

impl TwoCell {
    pub(crate) fn new(plus: [f32; 2], minus: [f32; 2]) -> Self {
        Self { plus, minus }
    }

    /// A picture at signed distance `margin` from the boundary between the cells.
    pub(crate) fn picture(&self, margin: f64) -> Vec<f32> {
        vec![(margin / 2.0) as f32; 4]
    }

    /// `g` at a signed distance from the boundary.
    pub(crate) fn smoothed(&self, margin: f64, sigma: f64) -> [f64; 2] {
        let share = normal::distribution(margin / sigma);
        [0, 1].map(|axis| f64::from(self.plus[axis]) * share + f64::from(self.minus[axis]) * (1.0 - share))
    }

    /// Smallest distance along `±w` at which a wrong item is at least as near to `g` as every `right` one.
    ///
    /// `g` depends on `⟨w, x⟩` alone, so no shorter perturbation exists. Infinite if there is none within 12 σ.
    pub(crate) fn true_radius(&self, items: &[(&str, [f32; 2])], margin: f64, sigma: f64) -> f64 {
        first_failure(sigma, |shift| right_is_nearest(items, self.smoothed(margin + shift, sigma)))
    }

    /// The same for the retriever that votes with `h(x + z)`.
    pub(crate) fn true_voting_radius(&self, items: &[(&str, [f32; 2])], margin: f64, sigma: f64) -> f64 {
        let votes = [self.plus, self.minus].map(|cell| right_is_nearest(items, cell.map(f64::from)));
        first_failure(sigma, |shift| {
            let share = normal::distribution((margin + shift) / sigma);
            let right = if votes[0] { share } else { 0.0 } + if votes[1] { 1.0 - share } else { 0.0 };
            right > 0.5
        })
    }

    /// The same for the retriever whose answer must beat each other label by itself.
    pub(crate) fn true_pairwise_radius(&self, items: &[(&str, [f32; 2])], margin: f64, sigma: f64) -> f64 {
        let against = |rival: &str| {
            let pair: Vec<_> =
                items.iter().filter(|(label, _)| [rival, "right"].contains(label)).copied().collect();
            self.true_voting_radius(&pair, margin, sigma)
        };
        let rivals = items.iter().map(|(label, _)| *label).filter(|label| *label != "right");
        rivals.map(against).fold(f64::INFINITY, f64::min)
    }
}

fn right_is_nearest(items: &[(&str, [f32; 2])], point: [f64; 2]) -> bool {
    let nearest = |right: bool| {
        items
            .iter()
            .filter(|(label, _)| (*label == "right") == right)
            .map(|(_, item)| (0..2).map(|axis| (point[axis] - f64::from(item[axis])).powi(2)).sum::<f64>())
            .fold(f64::INFINITY, f64::min)
    };
    nearest(true) < nearest(false)
}

/// Smallest `|shift|` at which `holds` fails, on a fine grid, sharpened by bisection; 0 if it fails at once.
fn first_failure(sigma: f64, holds: impl Fn(f64) -> bool) -> f64 {
    if !holds(0.0) {
        return 0.0;
    }
    let step = sigma / 1_000.0;
    let mut smallest = f64::INFINITY;
    for sign in [1.0, -1.0] {
        if let Some(failing) = (1..12_000).find(|&index| !holds(sign * f64::from(index) * step)) {
            let (mut low, mut high) = (f64::from(failing - 1) * step, f64::from(failing) * step);
            for _ in 0..60 {
                let middle = f64::midpoint(low, high);
                if holds(sign * middle) { low = middle } else { high = middle }
            }
            smallest = smallest.min(high);
        }
    }
    smallest
}

impl Embedder for TwoCell {
    fn input_shape(&self) -> &[usize] {
        &[4]
    }

    fn dimension(&self) -> usize {
        2
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        for (picture, embedding) in pictures.chunks_exact(4).zip(embeddings.chunks_exact_mut(2)) {
            let score: f32 = picture.iter().map(|pixel| pixel / 2.0).sum();
            embedding.copy_from_slice(if score > 0.0 { &self.plus } else { &self.minus });
        }
        Ok(())
    }
}

/// A gallery of plane vectors with their labels.
pub(crate) fn gallery_of(items: &[(&str, [f32; 2])]) -> Gallery {
    let vectors = items.iter().flat_map(|(_, vector)| *vector).collect();
    let names = (0..items.len()).map(|row| format!("item {row}")).collect();
    let labels: Vec<&str> = items.iter().map(|(label, _)| *label).collect();
    Gallery::new(vectors, 2, names, &labels, Metric::Euclidean).unwrap()
}

/// All items with a label are right answers.
pub(crate) fn by_label(gallery: &Gallery, label: &str) -> Relevance {
    Relevance::new(Positives::Label(gallery.label_named(label).unwrap()), vec![])
}

/// A small generator for test data; certificates never see it.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
