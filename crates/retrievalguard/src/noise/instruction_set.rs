//! Which vector instructions the noise is made with: a question of speed only.

use super::chunk::{self, Counter};

/// Instructions that this processor was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionSet(Choice);

/// Private, so that the vector choices exist only where they were detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl InstructionSet {
    /// What the compiler may assume everywhere: SSE2 on x86-64, NEON on 64-bit ARM.
    pub(crate) const PORTABLE: InstructionSet = InstructionSet(Choice::Portable);

    /// The widest vectors this processor has; the standard library remembers what it detected.
    pub fn fastest() -> Self {
        Self::avx512().or_else(Self::avx2).unwrap_or(Self::PORTABLE)
    }

    /// Every choice this processor has, the portable one first.
    pub fn available() -> Vec<Self> {
        [Some(Self::PORTABLE), Self::avx2(), Self::avx512()].into_iter().flatten().collect()
    }

    /// Its usual name, in lower case.
    pub fn name(self) -> &'static str {
        match self.0 {
            Choice::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => "avx512",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(Choice::Avx2))
    }

    #[cfg(target_arch = "x86_64")]
    fn avx512() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(Choice::Avx512))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn avx2() -> Option<Self> {
        None
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn avx512() -> Option<Self> {
        None
    }

    /// Writes the pixels from `first_pixel` on with these instructions.
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "calling code compiled for instructions detected at run time")
    )]
    pub(super) fn fill(self, counter: Counter, first_pixel: u64, out: &mut [f32]) {
        match self.0 {
            Choice::Portable => chunk::fill(counter, first_pixel, out),
            // SAFETY: this choice is made only by `avx2`, after the processor was found to have the instructions.
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2 => unsafe { fill_avx2(counter, first_pixel, out) },
            // SAFETY: this choice is made only by `avx512`, after the processor was found to have the instructions.
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512 => unsafe { fill_avx512(counter, first_pixel, out) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(counter: Counter, first_pixel: u64, out: &mut [f32]) {
    chunk::fill(counter, first_pixel, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn fill_avx512(counter: Counter, first_pixel: u64, out: &mut [f32]) {
    chunk::fill(counter, first_pixel, out);
}
