//! Perturbed pictures for the page: a picture, a direction, and any size along it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use retrievalguard::Seed;
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::scheduler::Prepared;

/// How long one is kept after it was used last.
const KEPT: Duration = Duration::from_secs(15 * 60);

/// Most that are kept.
const MOST: usize = 64;

/// Most numbers, of all pictures and directions together: 256 MB.
const MOST_NUMBERS: usize = 64 << 20;

/// Where a perturbation comes from
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A random direction
    Noise,
    /// A direction found by a search
    Adversarial,
}

/// Which retriever a search tries to mislead
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Target {
    /// The encoder without noise
    Plain,
    /// The smoothed retriever
    Smoothed,
}

/// A picture and a direction to move it in.
pub(crate) struct Perturbation {
    pub(crate) picture: Arc<Prepared>,
    pub(crate) picture_hash: String,
    /// A unit vector.
    direction: Vec<f64>,
    /// The answer at size zero.
    pub(crate) label: String,
}

impl Perturbation {
    /// Along `shift`, whatever its length; `None` if it has none.
    pub(crate) fn along(
        picture: Arc<Prepared>,
        picture_hash: String,
        label: String,
        mut shift: Vec<f64>,
    ) -> Option<Self> {
        let norm = norm(&shift);
        if !(norm > 0.0 && norm.is_finite()) {
            return None;
        }
        shift.iter_mut().for_each(|value| *value /= norm);
        Some(Self { picture, picture_hash, direction: shift, label })
    }

    /// In a random direction.
    pub(crate) fn random(
        picture: Arc<Prepared>,
        picture_hash: String,
        label: String,
        seed: Seed,
    ) -> Option<Self> {
        let mut noise = vec![0.0; picture.pixels.len()];
        // A name of its own, so that these numbers are no part of any sample.
        let identity = ImageIdentity::new(format!("shown on the page: {}", picture.identity));
        NoiseStream::new(seed, &identity, Stage::Attack).fill(0, 0, &mut noise);
        Self::along(picture, picture_hash, label, noise.into_iter().map(f64::from).collect())
    }

    /// The picture at a size, and the norm of the change as it is after rounding.
    pub(crate) fn at(&self, size: f64) -> (Prepared, f64) {
        let moved = |(&pixel, direction): (&f32, &f64)| (f64::from(pixel) + size * direction) as f32;
        let pixels: Vec<f32> = self.picture.pixels.iter().zip(&self.direction).map(moved).collect();
        let change: Vec<f64> = pixels
            .iter()
            .zip(&self.picture.pixels)
            .map(|(&there, &here)| f64::from(there) - f64::from(here))
            .collect();
        (Prepared { identity: self.picture.identity.clone(), pixels, file: None }, norm(&change))
    }

    fn numbers(&self) -> usize {
        self.picture.pixels.len() + 2 * self.direction.len()
    }
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

struct Kept {
    id: String,
    perturbation: Arc<Perturbation>,
    used: Instant,
}

/// The perturbations that can still be asked for.
#[derive(Default)]
pub(crate) struct Store {
    kept: Mutex<VecDeque<Kept>>,
}

impl Store {
    pub(crate) fn keep(&self, id: String, perturbation: Perturbation) {
        let mut kept = self.kept();
        kept.push_back(Kept { id, perturbation: Arc::new(perturbation), used: Instant::now() });
        let numbers =
            |kept: &VecDeque<Kept>| kept.iter().map(|kept| kept.perturbation.numbers()).sum::<usize>();
        while kept.len() > 1 && (kept.len() > MOST || numbers(&kept) > MOST_NUMBERS) {
            kept.pop_front();
        }
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Perturbation>, Problem> {
        let mut kept = self.kept();
        kept.retain(|kept| kept.used.elapsed() < KEPT);
        let Some(place) = kept.iter().position(|kept| kept.id == id) else {
            let id: String = id.chars().take(80).collect();
            return Err(Problem::not_found(format!(
                "there is no perturbation `{id}`; they are kept for 15 minutes"
            )));
        };
        // The one that was used last goes to the end, so that the others go first.
        let mut found = kept.remove(place).expect("it was just found there");
        found.used = Instant::now();
        let perturbation = Arc::clone(&found.perturbation);
        kept.push_back(found);
        Ok(perturbation)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Arc<Prepared> {
        Arc::new(Prepared { identity: "p".to_owned(), pixels: vec![0.5; 48], file: None })
    }

    #[test]
    fn a_perturbation_has_the_size_that_was_asked_for() {
        let made = Perturbation::random(picture(), "hash".into(), "mug".into(), Seed::new(3)).unwrap();
        for size in [0.0, 0.01, 0.3, 2.0] {
            let (moved, norm) = made.at(size);
            assert!((norm - size).abs() < 1e-6, "{norm} {size}");
            assert_eq!(moved.pixels.len(), 48);
        }
        assert_eq!(made.at(0.0).0.pixels, picture().pixels);
        assert!(Perturbation::along(picture(), String::new(), String::new(), vec![0.0; 48]).is_none());
    }

    #[test]
    fn the_one_that_was_not_used_is_forgotten_first() {
        let store = Store::default();
        let made = || Perturbation::random(picture(), "hash".into(), "mug".into(), Seed::new(3)).unwrap();
        (0..MOST).for_each(|number| store.keep(number.to_string(), made()));
        assert!(store.find("0").is_ok());
        store.keep("one more".to_owned(), made());
        assert!(store.find("0").is_ok());
        assert!(store.find("one more").is_ok());
        assert_eq!(store.find("1").err().map(|problem| problem.code), Some("not_found"));
    }
}
