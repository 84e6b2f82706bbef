//! Random numbers that are pure functions of counters.
//!
//! SplitMix64 (G. Steele, D. Lea, C. Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014) gives the
//! `i`-th number of a key without the ones before it. Integers and exact `f64` steps only: the same on every machine.

/// The odd integer nearest to `2⁶⁴` divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's finaliser: each bit of the result depends on every bit of the argument.
fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// What the numbers are for; purposes never share a key.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Purpose {
    /// What the products of a line have in common.
    Line = 1,
    /// What sets one product apart.
    Product = 2,
    /// How one picture was taken.
    Scene = 3,
    /// The camera's noise.
    Camera = 4,
    /// What the fabrics of a line have in common.
    Bolt = 5,
    /// What sets one fabric apart.
    Fabric = 6,
    /// How a fabric lies in one picture.
    Folds = 7,
}

/// A sequence of numbers with a key of its own.
#[derive(Clone, Debug)]
pub(super) struct CounterRng {
    key: u64,
    count: u64,
}

impl CounterRng {
    /// The sequence of this purpose, this class (or line) and this picture.
    pub(super) fn new(seed: u64, purpose: Purpose, class: u64, picture: u64) -> Self {
        let key = [purpose as u64, class, picture]
            .into_iter()
            .fold(mixed(seed.wrapping_add(STEP)), |key, part| mixed((key ^ part).wrapping_add(STEP)));
        Self { key, count: 0 }
    }

    fn bits(&mut self) -> u64 {
        self.count += 1;
        mixed(self.key.wrapping_add(self.count.wrapping_mul(STEP)))
    }

    /// Uniform in `[0, 1)`, a multiple of `2⁻⁵³`.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// One of the choices.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.uniform() * choices.len() as f64) as usize]
    }

    /// Four uniform numbers added, with mean 0 and variance 1: a bell as a camera's noise has it, and no logarithm.
    pub(super) fn bell(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| self.uniform()).sum();
        (sum - 2.0) * 3.0_f64.sqrt()
    }

    /// A key for a [`Grain`] of its own.
    pub(super) fn grain(&mut self) -> Grain {
        Grain(self.bits())
    }
}

/// Smooth noise over the plane: random values at whole coordinates, blended between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grain(u64);

impl Grain {
    fn corner(self, column: f64, row: f64) -> f64 {
        let place =
            mixed(self.0 ^ (column as i64).cast_unsigned()).wrapping_add((row as i64).cast_unsigned());
        (mixed(place.wrapping_mul(STEP)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The value in `[0, 1]` at a point.
    pub(super) fn at(self, x: f64, y: f64) -> f64 {
        let (column, row) = (x.floor(), y.floor());
        let ease = |t: f64| t * t * (3.0 - 2.0 * t);
        let (across, down) = (ease(x - column), ease(y - row));
        let blend = |from: f64, to: f64, share: f64| from + (to - from) * share;
        blend(
            blend(self.corner(column, row), self.corner(column + 1.0, row), across),
            blend(self.corner(column, row + 1.0), self.corner(column + 1.0, row + 1.0), across),
            down,
        )
    }
}
