//! Random choices as pure functions of `(seed, purpose, epoch, step, slot)`.
//!
//! A [`RandomSource`] is made where it is needed and never outlives one choice: there is no state to save, and a run
//! that is resumed at any step goes on exactly as if it had never stopped.
//!
//! ```
//! use retrievalguard::Seed;
//! use retrievalguard_train::random::{RandomCounter, Purpose, RandomSource};
//!
//! let counter = RandomCounter { epoch: 3, step: 14, slot: 15 };
//! let mut first = RandomSource::new(Seed::new(42), Purpose::View, counter);
//! let mut again = RandomSource::new(Seed::new(42), Purpose::View, counter);
//! assert_eq!(first.uniform(), again.uniform());
//! ```

use retrievalguard::Seed;
use retrievalguard::noise::ImageIdentity;

/// What a choice is about; choices of different purposes are independent.
///
/// The numbers are part of every run: they are never changed or used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// Which classes share a batch.
    Classes = 1,
    /// In which order the pictures of a class are taken.
    Pictures = 2,
    /// How a picture is cropped and flipped.
    View = 3,
    /// Which positives and negatives an anchor meets.
    Triplets = 4,
    /// What the weights begin with.
    Weights = 5,
}

/// Where in a run a choice is made; what a purpose does not distinguish is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RandomCounter {
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Batch of the epoch, or whatever else the purpose counts.
    pub step: u64,
    /// Position inside the step.
    pub slot: u64,
}

/// The random bits of one counter.
///
/// Draw `i` is half of a hash: of `(seed, purpose, epoch, step, slot)` first, then of the result and `i / 2`, both in
/// little-endian order. The hash is [`ImageIdentity`]'s, a chain of Philox4x32-10 blocks; the seed's noise uses another
/// beginning of the chain, so that choices and noise are independent.
#[derive(Clone)]
pub struct RandomSource {
    key: u128,
    drawn: u64,
    /// The second half of the last hash, if nobody has had it yet.
    spare: Option<u64>,
}

impl std::fmt::Debug for RandomSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stands for the seed, which may be secret.
        formatter.debug_struct("RandomSource").field("drawn", &self.drawn).finish_non_exhaustive()
    }
}

impl RandomSource {
    /// The bits of one counter under one seed.
    pub fn new(seed: Seed, purpose: Purpose, counter: RandomCounter) -> Self {
        let mut name = b"training choice ".to_vec();
        name.extend(seed.get().to_le_bytes());
        for word in [purpose as u64, counter.epoch, counter.step, counter.slot] {
            name.extend(word.to_le_bytes());
        }
        Self { key: ImageIdentity::new(name).get(), drawn: 0, spare: None }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let mut name = [0; 24];
        name[..16].copy_from_slice(&self.key.to_le_bytes());
        name[16..].copy_from_slice(&self.drawn.to_le_bytes());
        self.drawn += 1;
        let hash = ImageIdentity::new(name).get();
        self.spare = Some((hash >> 64) as u64);
        hash as u64
    }

    /// A number in `[0, 1)`, a multiple of `2⁻⁵³`.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number between two others.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// A whole number below `bound`, each with the same probability.
    ///
    /// D. Lemire, *Fast random integer generation in an interval*, ACM TOMACS 29 (2019), doi:10.1145/3230636.
    ///
    /// # Panics
    ///
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a number below 0 was asked for");
        let bound = bound as u64;
        // 2⁶⁴ mod bound products fall on some numbers once more than on others; those are drawn again.
        let surplus = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.bits()) * u128::from(bound);
            if product as u64 >= surplus {
                return (product >> 64) as usize;
            }
        }
    }

    /// Puts values into random order, each order with the same probability (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }

    /// A position, with probability in proportion to its weight; none if no weight is above zero.
    ///
    /// Weights are finite and not negative.
    pub fn weighted(&mut self, weights: &[f64]) -> Option<usize> {
        let total: f64 = weights.iter().sum();
        let last = weights.iter().rposition(|&weight| weight > 0.0)?;
        let mut left = self.uniform() * total;
        for (position, &weight) in weights[..last].iter().enumerate() {
            if left < weight {
                return Some(position);
            }
            left -= weight;
        }
        // Whatever rounding leaves belongs to the last position that can be chosen at all.
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(purpose: Purpose, epoch: u64, step: u64, slot: u64) -> RandomSource {
        RandomSource::new(Seed::new(7), purpose, RandomCounter { epoch, step, slot })
    }

    /// Pearson's statistic of counts against equal expectations.
    fn statistic(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
    }

    #[test]
    fn every_part_of_the_place_changes_the_bits() {
        let all = [
            source(Purpose::View, 0, 0, 0),
            source(Purpose::Triplets, 0, 0, 0),
            source(Purpose::View, 1, 0, 0),
            source(Purpose::View, 0, 1, 0),
            source(Purpose::View, 0, 0, 1),
            RandomSource::new(Seed::new(8), Purpose::View, RandomCounter::default()),
        ];
        let first: std::collections::HashSet<u64> = all.into_iter().map(|mut source| source.bits()).collect();
        assert_eq!(first.len(), 6);
    }

    #[test]
    fn the_bits_of_a_place_stay_what_they_are() {
        let mut source = source(Purpose::View, 1, 2, 3);
        let bits: Vec<String> = (0..3).map(|_| format!("{:016x}", source.bits())).collect();
        assert_eq!(bits, ["7616991ec7cbe562", "d82ab98a9fffc69c", "ad03dcc368c2afab"]);
    }

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut source = source(Purpose::View, 0, 0, 0);
        let mut counts = [0; 10];
        for _ in 0..20_000 {
            counts[source.below(10)] += 1;
        }
        // 99.9th percentile of chi-square with 9 degrees of freedom.
        assert!(statistic(&counts) < 27.88, "{counts:?}");
        // The bound for which plain remainders would be most uneven.
        let bound = (1_usize << 63) + 1;
        assert!((0..100).all(|_| source.below(bound) < bound));
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut source = source(Purpose::Pictures, 0, 0, 0);
        let mut counts = [0; 6];
        for _ in 0..12_000 {
            let mut order = [0, 1, 2];
            source.shuffle(&mut order);
            counts[order[0] * 2 + usize::from(order[1] > order[2])] += 1;
        }
        // 99.9th percentile of chi-square with 5 degrees of freedom.
        assert!(statistic(&counts) < 20.52, "{counts:?}");
    }

    #[test]
    fn choices_follow_their_weights_and_never_take_a_weight_of_zero() {
        let mut source = source(Purpose::Triplets, 0, 0, 0);
        let weights = [0.0, 1.0, 0.0, 3.0, 0.0];
        let mut counts = [0; 5];
        for _ in 0..8_000 {
            counts[source.weighted(&weights).unwrap()] += 1;
        }
        assert_eq!([counts[0], counts[2], counts[4]], [0; 3]);
        // Four standard deviations around 2000.
        assert!((1845..2155).contains(&counts[1]), "{counts:?}");
        assert_eq!(source.weighted(&[0.0; 3]), None);
        assert_eq!(source.weighted(&[]), None);
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval() {
        let mut source = source(Purpose::Weights, 0, 0, 0);
        let numbers: Vec<f64> = (0..10_000).map(|_| source.uniform()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 4.0 / (12.0_f64 * 10_000.0).sqrt(), "{mean}");
    }
}
