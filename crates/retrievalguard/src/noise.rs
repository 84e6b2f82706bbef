//! Gaussian noise as a pure function of `(seed, image, stage, sample, pixel)`.
//!
//! Every value has its own counter of a counter-based generator, so the order in which values are asked for, the
//! batch size, the number of threads and a restart in the middle never change a result.
//!
//! ```
//! use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
//! use retrievalguard::{Seed, Sigma};
//!
//! let identity = ImageIdentity::new("birds/albatross-7.jpg");
//! let stream = NoiseStream::new(Seed::new(42), &identity, Stage::Certify);
//!
//! let image = vec![0.5_f32; 3 * 32 * 32];
//! let mut noisy = vec![0.0_f32; image.len()];
//! stream.add(17, Sigma::new(0.25)?, &image, &mut noisy);
//!
//! // Any piece of sample 17 comes out the same on its own.
//! let mut piece = [0.0_f32; 10];
//! stream.fill(17, 1000, &mut piece);
//! assert_eq!(noisy[1005], 0.5 + 0.25 * piece[5]);
//! # Ok::<(), retrievalguard::ParameterError>(())
//! ```
//!
//! # Counters
//!
//! Values come from Philox4x32-10, which turns a key of 64 bits and a counter of four 32-bit words into 128 random
//! bits. One block of 128 bits makes four values.
//!
//! | word | bits | what |
//! |---|---|---|
//! | key 0, key 1 | 64 | stream: from the seed and the image |
//! | counter 0 | 32 | block: `16 · (pixel / 64) + pixel % 16` |
//! | counter 1 | 32 | sample |
//! | counter 2, bits 0 … 7 | 8 | stage |
//! | counter 2, bits 8 … 15 | 8 | 0 for the values, 1 for the further bits of the tails |
//! | counter 2, bits 16 … 31 | 16 | stream, continued |
//! | counter 3 | 32 | stream, continued |
//!
//! Pixels, samples and stages of one image therefore never share a counter. Two images, or two seeds, share their
//! 112 stream bits with probability `2⁻¹¹²` per pair. A sample holds [`PIXELS_PER_SAMPLE`] values.
//!
//! # Limits
//!
//! A finite-precision Gaussian is not exactly Gaussian. A radius comes from 32 random bits, from 64 in the tails, and
//! a direction from 32; no value is further out than 9.5 standard deviations; values differ from the exact transform
//! of their bits by up to 4.4e-7 of themselves; and `x + σz` is rounded to `f32`, with a `σ` that is itself the `f32`
//! nearest to the given one. The certificates are theorems about the exact Gaussian. V. Voráček and M. Hein, *Sound
//! randomized smoothing in floating-point arithmetic*, ICLR 2023, show how an adversary can use the difference.
//! Philox is no cipher either: keep a deployment's seed secret, and do not publish its noise.

mod chunk;
mod gaussian;
mod instruction_set;
mod philox;

use std::fmt;

use crate::parameters::{Seed, Sigma};

use self::chunk::Counter;

pub use self::instruction_set::InstructionSet;

/// Values that one sample of one image can hold: four for each of the `2³²` blocks.
pub const PIXELS_PER_SAMPLE: u64 = 1 << 34;

/// What the noise is for; samples of different stages are independent.
///
/// Whatever looks at noise and then decides something has a stage of its own, so that no decision is made on the sample that
/// proves (theory, section 0, says who may look at what). The numbers are part of the noise: they are never changed or
/// used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Sample on which everything that needs a choice is chosen.
    Pilot = 1,
    /// Fresh sample that the certificate is computed from.
    Certify = 2,
    /// Sample that a stored vector of the gallery is the mean of.
    Gallery = 3,
    /// Noise that an attack averages its gradients over.
    Attack = 4,
    /// Noise added to pictures while an encoder is trained.
    Train = 5,
    /// Fresh sample on which the result of an attack is judged; the attack never sees it.
    Judge = 6,
    /// Noise of what is measured before anything is certified: recall of an encoder, while it is trained and afterwards.
    Measure = 7,
    /// Noise on which settings of a run are compared and chosen: `σ`, samples, a retriever.
    Choose = 8,
    /// Noise that is drawn to see how fast the encoder is, and thrown away.
    Trial = 9,
}

impl Stage {
    /// Every stage, in the order of their numbers.
    pub const ALL: [Stage; 9] = [
        Stage::Pilot,
        Stage::Certify,
        Stage::Gallery,
        Stage::Attack,
        Stage::Train,
        Stage::Judge,
        Stage::Measure,
        Stage::Choose,
        Stage::Trial,
    ];

    /// The name that files and Python have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Pilot => "pilot",
            Stage::Certify => "certify",
            Stage::Gallery => "gallery",
            Stage::Attack => "attack",
            Stage::Train => "train",
            Stage::Judge => "judge",
            Stage::Measure => "measure",
            Stage::Choose => "choose",
            Stage::Trial => "trial",
        }
    }
}

/// Which image the noise belongs to: 128 bits that hash the bytes of its name.
///
/// Each 8 bytes `mᵢ`, little-endian and padded with zeros, are the Philox key of one step of a Davies–Meyer chain;
/// the last block is the number of bytes, so that padding cannot make two names equal.
///
/// ```text
/// Hᵢ = Philox(key = mᵢ, counter = Hᵢ₋₁) ⊕ Hᵢ₋₁,   H₀ = "image identity  "
/// ```
///
/// Two names collide with probability about `2⁻¹²⁸`, unless someone constructs them: this is no cryptographic hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageIdentity(u128);

impl ImageIdentity {
    /// The identity of the image with this name, path or other unique sequence of bytes.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        let name = name.as_ref();
        let mut chain = Chain::new(*b"image identity  ");
        for piece in name.chunks(8) {
            let mut block = [0; 8];
            block[..piece.len()].copy_from_slice(piece);
            chain.absorb(u64::from_le_bytes(block));
        }
        chain.absorb(name.len() as u64);
        Self(chain.value())
    }

    /// All 128 bits.
    pub fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for ImageIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ImageIdentity({:032x})", self.0)
    }
}

/// The Davies–Meyer chain over Philox that [`ImageIdentity`] describes.
struct Chain([u32; 4]);

impl Chain {
    fn new(purpose: [u8; 16]) -> Self {
        Self(words(u128::from_le_bytes(purpose)))
    }

    fn absorb(&mut self, block: u64) {
        let mixed = philox::block(self.0, [block as u32, (block >> 32) as u32]);
        for (word, mixed) in self.0.iter_mut().zip(mixed) {
            *word ^= mixed;
        }
    }

    fn value(self) -> u128 {
        self.0.iter().rev().fold(0, |value, &word| value << 32 | u128::from(word))
    }
}

/// Four words, the lowest first.
fn words(value: u128) -> [u32; 4] {
    [value as u32, (value >> 32) as u32, (value >> 64) as u32, (value >> 96) as u32]
}

/// All the noise of one image in one stage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NoiseStream {
    key: [u32; 2],
    /// Counter words 2 and 3.
    place: [u32; 2],
}

impl NoiseStream {
    /// The stream of one image and stage under one seed.
    ///
    /// The 112 stream bits are the start of the chain of [`ImageIdentity`] over the seed and the identity, beginning
    /// at `H₀ = "noise stream    "`.
    pub fn new(seed: Seed, identity: &ImageIdentity, stage: Stage) -> Self {
        let mut chain = Chain::new(*b"noise stream    ");
        for value in [seed.get(), identity.get()] {
            chain.absorb(value as u64);
            chain.absorb((value >> 64) as u64);
        }
        let [first, second, third, fourth] = words(chain.value());
        Self { key: [first, second], place: [fourth << 16 | stage as u32, third] }
    }

    /// Writes the standard normals of the pixels from `first_pixel` on.
    ///
    /// # Panics
    ///
    /// If a pixel lies at or beyond [`PIXELS_PER_SAMPLE`]: a single picture of 64 GiB.
    pub fn fill(&self, sample: u32, first_pixel: usize, out: &mut [f32]) {
        self.fill_with(InstructionSet::fastest(), sample, first_pixel, out);
    }

    /// [`fill`](Self::fill) with chosen instructions, for tests and benchmarks: all of them give the same bits.
    ///
    /// # Panics
    ///
    /// As [`fill`](Self::fill).
    pub fn fill_with(&self, instructions: InstructionSet, sample: u32, first_pixel: usize, out: &mut [f32]) {
        let end = (first_pixel as u64).checked_add(out.len() as u64);
        assert!(
            end.is_some_and(|end| end <= PIXELS_PER_SAMPLE),
            "{} values from pixel {first_pixel} on, wanted an end of at most {PIXELS_PER_SAMPLE}",
            out.len()
        );
        let counter = Counter { key: self.key, others: [sample, self.place[0], self.place[1]] };
        instructions.fill(counter, first_pixel as u64, out);
    }

    /// Writes a noisy copy of the image.
    ///
    /// ```text
    /// out = image + σ z,   z standard normal, sum and product rounded to f32
    /// ```
    ///
    /// # Panics
    ///
    /// If `image` and `out` differ in length, or if there are more than [`PIXELS_PER_SAMPLE`] pixels.
    pub fn add(&self, sample: u32, sigma: Sigma, image: &[f32], out: &mut [f32]) {
        // Noise is written and used again while it is still in the first-level cache.
        const PIECE: usize = 32 * chunk::PIXELS;
        assert_eq!(image.len(), out.len(), "an image and its noisy copy have different lengths");
        let scale = sigma.get() as f32;
        let instructions = InstructionSet::fastest();
        for (index, (image, out)) in image.chunks(PIECE).zip(out.chunks_mut(PIECE)).enumerate() {
            self.fill_with(instructions, sample, index * PIECE, out);
            for (value, pixel) in out.iter_mut().zip(image) {
                *value = pixel + scale * *value;
            }
        }
    }
}

impl fmt::Debug for NoiseStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stands for the seed, which may be secret.
        formatter.write_str("NoiseStream(..)")
    }
}

#[cfg(test)]
mod tests;
