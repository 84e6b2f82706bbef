//! Which vector instructions the loops are compiled for: a question of speed only.

/// A loop that is compiled once for every set of instructions.
///
/// `run` must be `#[inline(always)]`, and so must what it calls: only then does it become part of the function that
/// may use the instructions.
pub(super) trait Kernel {
    /// Runs it; `FUSED` says that [`multiply_add`] is one instruction here.
    fn run<const FUSED: bool>(self);
}

/// Runs a loop with the widest instructions that this CPU was found to have.
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calling code compiled for instructions detected at run time")
)]
pub(super) fn dispatch(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the CPU was found to have both, on the line above.
        return unsafe { run_avx2(kernel) };
    }
    // Every 64-bit ARM CPU fuses; on the others a fused product would be a library call.
    if cfg!(target_arch = "aarch64") { kernel.run::<true>() } else { kernel.run::<false>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2(kernel: impl Kernel) {
    kernel.run::<true>();
}

/// `left · right + sum`, rounded once where that is one instruction and twice elsewhere.
#[inline(always)]
pub(super) fn multiply_add<const FUSED: bool>(left: f32, right: f32, sum: f32) -> f32 {
    if FUSED { left.mul_add(right, sum) } else { left * right + sum }
}

/// Values in a vector of the widest instructions made use of.
pub(super) const LANES: usize = 8;

/// Sum of a vector, by halves: the order every instruction set can follow.
#[inline(always)]
pub(super) fn sum(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
