//! From random words to standard normals: the Box–Muller transform in `f32`.
//!
//! ```text
//! r = √(−2 ln u),   (z₀, z₁) = r (cos θ, sin θ),   u uniform in (0, 1), θ uniform on the circle
//! ```
//!
//! G. E. P. Box and M. E. Muller, *A note on the generation of random normal deviates*, Annals of Mathematical
//! Statistics 29 (1958), doi:10.1214/aoms/1177706645. Only integer operations and the `f32` additions, products,
//! square roots and integer conversions that IEEE 754 rounds correctly are used, and no fused multiply-add: every
//! processor and every vector width gives the same bits.

/// Radius words below this get 32 further bits, see [`extended_pair`].
pub(super) const TAIL: u32 = 1 << 20;

/// `−2 ln(1 + f) / f` for `|f| ≤ 1/3`, ascending powers of `f`.
///
/// Source: `tests/reference/noise_polynomials.py`. Worst relative error 2.96e-8 in exact arithmetic.
const LOGARITHM: [f32; 9] = [
    -2.0,
    9.999_987e-1,
    -6.666_656e-1,
    5.001_575_4e-1,
    -4.001_361_4e-1,
    3.283_076_3e-1,
    -2.812_465_7e-1,
    3.078_041_4e-1,
    -2.743_62e-1,
];

/// `sin(πy/4) / y` for `|y| ≤ 1`, ascending powers of `y²`.
///
/// Source: `tests/reference/noise_polynomials.py`. Worst relative error 2.78e-8 in exact arithmetic.
const SINE: [f32; 4] = [7.853_982e-1, -8.074_562e-2, 2.490_375_4e-3, -3.616_238e-5];

/// `cos(πy/4)` for `|y| ≤ 1`, ascending powers of `y²`.
///
/// Source: `tests/reference/noise_polynomials.py`. Worst relative error 5.17e-10 in exact arithmetic.
const COSINE: [f32; 5] = [1.0, -3.084_251_3e-1, 1.585_429_2e-2, -3.258_876_7e-4, 3.505_633_7e-6];

const TWO_TO_MINUS_31: f32 = 1.0 / 2_147_483_648.0;
const TWO_TO_MINUS_32: f32 = 1.0 / 4_294_967_296.0;
const TWO_TO_MINUS_64: f32 = TWO_TO_MINUS_32 * TWO_TO_MINUS_32;

/// Two independent standard normals from a radius word of at least [`TAIL`] and an angle word.
///
/// Worst relative error of either, against the exact transform of the same words: 3.1e-7 in 2²⁰ draws.
#[inline(always)]
pub(super) fn pair(radius_word: u32, angle_word: u32) -> (f32, f32) {
    rotate(squared_radius(radius_word).sqrt(), angle_word)
}

/// Two independent standard normals from a radius word below [`TAIL`], its extension and an angle word.
///
/// ```text
/// u = (2³² radius_word + extension + 1/2) / 2⁶⁴ ≥ 2⁻⁶⁵,   so r reaches √(130 ln 2) = 9.49
/// ```
///
/// Worst relative error of the radius 1.7e-7.
pub(super) fn extended_pair(radius_word: u32, extension: u32, angle_word: u32) -> (f32, f32) {
    let wide = (u64::from(radius_word) << 32) | u64::from(extension);
    let uniform = (wide as f32 + 0.5) * TWO_TO_MINUS_64;
    rotate(minus_two_logarithm(uniform, 0.0).sqrt(), angle_word)
}

/// `−2 ln u` with `u = (word + 1/2) / 2³²`; worst relative error 3.0e-7 for words of at least [`TAIL`].
#[inline(always)]
fn squared_radius(word: u32) -> f32 {
    // All ones in the upper half of the range, where 1 − u has the digits that u has lost.
    let upper = (word as i32 >> 31) as u32;
    let nearer_end = ((word ^ upper) as i32 as f32 + 0.5) * TWO_TO_MINUS_32;
    let uniform = select(upper, 1.0 - nearer_end, nearer_end);
    minus_two_logarithm(uniform, nearer_end)
}

/// `−2 ln u` for normal `u < 1`; where `u ≥ 2/3` it is computed from the complement `1 − u` alone.
///
/// ```text
/// u = 2ᵉ (1 + f),   2/3 ≤ 1 + f < 4/3,   −2 ln u = −2 e ln 2 + f · (−2 ln(1 + f) / f)
/// ```
#[inline(always)]
fn minus_two_logarithm(uniform: f32, complement: f32) -> f32 {
    const TWO_THIRDS: u32 = 0x3f2a_aaab;
    const MINUS_TWO_LN_2: f32 = -2.0 * std::f32::consts::LN_2;
    let above = uniform.to_bits().wrapping_sub(TWO_THIRDS);
    let exponent = above as i32 >> 23;
    let fraction = f32::from_bits((above & 0x007f_ffff).wrapping_add(TWO_THIRDS)) - 1.0;
    // The exponent is −1 or less below 2/3, so its sign is the mask.
    let fraction = select((exponent >> 31) as u32, fraction, -complement);
    exponent as f32 * MINUS_TWO_LN_2 + fraction * logarithm_quotient(fraction)
}

/// The polynomial [`LOGARITHM`] by Estrin's scheme, whose short chain of operations Horner's rule would double.
#[inline(always)]
fn logarithm_quotient(fraction: f32) -> f32 {
    let square = fraction * fraction;
    let [c0, c1, c2, c3, c4, c5, c6, c7, c8] = LOGARITHM;
    let low = (c0 + c1 * fraction) + (c2 + c3 * fraction) * square;
    let high = (c4 + c5 * fraction) + ((c6 + c7 * fraction) + c8 * square) * square;
    low + high * (square * square)
}

/// The point at distance `radius` in the direction of the angle word.
///
/// ```text
/// bit 31       s, the sign of the cosine
/// bit 30       whether the two coordinates change places
/// bits 29 … 0  y in (−1, 1), at the middles of 2³⁰ equal cells
///
/// radius · (s cos(πy/4), sin(πy/4)), or the two exchanged
/// ```
///
/// These are four arcs of 90° that cover the circle once. Worst relative error: sine 1.7e-7, cosine 1.2e-7.
#[inline(always)]
fn rotate(radius: f32, angle_word: u32) -> (f32, f32) {
    let y = (angle_word << 2 | 2) as i32 as f32 * TWO_TO_MINUS_31;
    let square = y * y;
    let sine = y * polynomial(&SINE, square);
    let cosine = polynomial(&COSINE, square);
    let cosine = f32::from_bits(cosine.to_bits() ^ (angle_word & 0x8000_0000));
    let exchanged = ((angle_word << 1) as i32 >> 31) as u32;
    (radius * select(exchanged, sine, cosine), radius * select(exchanged, cosine, sine))
}

/// `chosen` where the mask is all ones, `otherwise` where it is zero.
#[inline(always)]
fn select(mask: u32, chosen: f32, otherwise: f32) -> f32 {
    f32::from_bits((chosen.to_bits() & mask) | (otherwise.to_bits() & !mask))
}

/// Horner's rule, a product and a sum per coefficient.
#[inline(always)]
fn polynomial<const COUNT: usize>(ascending: &[f32; COUNT], at: f32) -> f32 {
    let mut sum = ascending[COUNT - 1];
    for &coefficient in ascending[..COUNT - 1].iter().rev() {
        sum = sum * at + coefficient;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// About four million words over the whole range, denser at both ends.
    fn radius_words() -> impl Iterator<Item = u32> {
        let even = (0..=u32::MAX).step_by(1021);
        let ends = (0..18).flat_map(|shift| (0..64).map(move |step| (64 + step) << shift));
        even.chain(ends.clone()).chain(ends.map(|word| !word)).chain([0, 1, 2, u32::MAX - 1, u32::MAX])
    }

    fn relative_error(value: f32, reference: f64) -> f64 {
        (f64::from(value) / reference - 1.0).abs()
    }

    fn worst(errors: impl Iterator<Item = f64>) -> f64 {
        errors.fold(0.0, f64::max)
    }

    /// `−2 ln u`, from whichever of `u` and `1 − u` is the smaller.
    fn reference_squared_radius(word: u32) -> f64 {
        let cell = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        -2.0 * if word >> 31 == 0 { cell(word).ln() } else { (-cell(!word)).ln_1p() }
    }

    /// `πy/4` of an angle word.
    fn reference_angle(word: u32) -> f64 {
        (f64::from((word << 2) as i32 / 4) + 0.5) / f64::from(1_u32 << 29) * std::f64::consts::FRAC_PI_4
    }

    #[test]
    fn the_squared_radius_keeps_its_stated_error() {
        let words = radius_words().filter(|&word| word >= TAIL);
        let error =
            worst(words.map(|word| relative_error(squared_radius(word), reference_squared_radius(word))));
        println!("squared radius {error:.3e}");
        assert!(error <= 3.0e-7, "{error:e}");
    }

    #[test]
    fn the_extended_radius_keeps_its_stated_error() {
        let mut error = 0.0_f64;
        for radius_word in radius_words().filter(|&word| word < TAIL).chain([TAIL - 1]) {
            for extension in [0, 1, 0x1234_5678, u32::MAX] {
                let uniform = (f64::from(radius_word) + (f64::from(extension) + 0.5) / 4_294_967_296.0)
                    / 4_294_967_296.0;
                let reference = (-2.0 * uniform.ln()).sqrt();
                let (first, second) = extended_pair(radius_word, extension, 0x0bad_cafe);
                let radius = f64::from(first).hypot(f64::from(second));
                error = error.max((radius / reference - 1.0).abs());
            }
        }
        println!("extended radius {error:.3e}");
        assert!(error <= 1.7e-7, "{error:e}");
    }

    #[test]
    fn the_direction_keeps_its_stated_error() {
        let (mut sine_error, mut cosine_error) = (0.0_f64, 0.0_f64);
        for low in (0..1_u32 << 30).step_by(257).chain([0x1fff_ffff, 0x2000_0000, 0x3fff_ffff]) {
            // The two upper bits are zero: no sign, no exchange.
            let (cosine, sine) = rotate(1.0, low);
            let angle = reference_angle(low);
            sine_error = sine_error.max(relative_error(sine, angle.sin()));
            cosine_error = cosine_error.max(relative_error(cosine, angle.cos()));
        }
        println!("sine {sine_error:.3e}, cosine {cosine_error:.3e}");
        assert!(sine_error <= 1.7e-7, "{sine_error:e}");
        assert!(cosine_error <= 1.7e-7, "{cosine_error:e}");
    }

    #[test]
    fn both_normals_keep_their_stated_error() {
        let mut error = 0.0_f64;
        for index in 0..1 << 20 {
            let [radius_word, angle_word, ..] = crate::noise::philox::block([index, 0, 0, 0], [1, 2]);
            // No sign, no exchange.
            let angle_word = angle_word & 0x3fff_ffff;
            let radius = reference_squared_radius(radius_word).sqrt();
            if radius_word >= TAIL {
                let (first, second) = pair(radius_word, angle_word);
                error = error.max(relative_error(first, radius * reference_angle(angle_word).cos()));
                error = error.max(relative_error(second, radius * reference_angle(angle_word).sin()));
            }
        }
        println!("normals {error:.3e}");
        assert!(error <= 3.1e-7, "{error:e}");
    }

    #[test]
    fn the_four_arcs_cover_the_circle_once() {
        let mut angles: Vec<f64> = (0..1_u32 << 12)
            .map(|step| {
                let (first, second) = rotate(1.0, step << 20 | 0x0008_0000);
                f64::from(second).atan2(f64::from(first))
            })
            .collect();
        angles.sort_by(f64::total_cmp);
        let spacing = std::f64::consts::TAU / angles.len() as f64;
        for neighbours in angles.windows(2) {
            let gap = neighbours[1] - neighbours[0];
            assert!((gap / spacing - 1.0).abs() < 1e-3, "gap of {gap} after {}", neighbours[0]);
        }
    }

    #[test]
    fn the_tail_reaches_beyond_nine_standard_deviations() {
        let (furthest, _) = extended_pair(0, 0, 0);
        assert!((f64::from(furthest) - (130.0 * std::f64::consts::LN_2).sqrt()).abs() < 1e-5, "{furthest}");
        // Sign and exchange bits bring the same distance to both ends of both coordinates.
        assert_eq!(extended_pair(0, 0, 0x8000_0000).0, -furthest);
        assert_eq!(extended_pair(0, 0, 0x4000_0000).1, furthest);
        assert_eq!(extended_pair(0, 0, 0xc000_0000).1, -furthest);
        // P(|z| > 8) is about 2⁻⁴⁹·⁵; words of that order lie beyond 8σ.
        assert!(extended_pair(0, 1 << 14, 0).0 > 8.0);
    }

    #[test]
    fn radii_join_where_the_extension_ends() {
        let below = extended_pair(TAIL - 1, u32::MAX, 0).0;
        let above = pair(TAIL, 0).0;
        assert!(below >= above && below - above < 1e-5, "{below} {above}");
        assert!(pair(u32::MAX, 0).0 > 0.0);
    }
}
