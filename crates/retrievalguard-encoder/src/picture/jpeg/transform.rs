//! The inverse cosine transform in the integers of libjpeg's `jidctint.c` ("slow but accurate"), bit for bit.

use std::num::Wrapping;

const CONSTANT_BITS: usize = 13;
const FIRST_PASS_BITS: usize = 2;

// Loeffler, Ligtenberg and Moschytz (ICASSP 1989), scaled by 2^13 and rounded.
const FIX_0_298631336: Wrapping<i32> = Wrapping(2446);
const FIX_0_390180644: Wrapping<i32> = Wrapping(3196);
const FIX_0_541196100: Wrapping<i32> = Wrapping(4433);
const FIX_0_765366865: Wrapping<i32> = Wrapping(6270);
const FIX_0_899976223: Wrapping<i32> = Wrapping(7373);
const FIX_1_175875602: Wrapping<i32> = Wrapping(9633);
const FIX_1_501321110: Wrapping<i32> = Wrapping(12299);
const FIX_1_847759065: Wrapping<i32> = Wrapping(15137);
const FIX_1_961570560: Wrapping<i32> = Wrapping(16069);
const FIX_2_053119869: Wrapping<i32> = Wrapping(16819);
const FIX_2_562915447: Wrapping<i32> = Wrapping(20995);
const FIX_3_072711026: Wrapping<i32> = Wrapping(25172);

/// One pass over eight values, before the final scaling.
fn pass(input: [Wrapping<i32>; 8]) -> [Wrapping<i32>; 8] {
    let [in0, in1, in2, in3, in4, in5, in6, in7] = input;
    let shared = (in2 + in6) * FIX_0_541196100;
    let even2 = shared - in6 * FIX_1_847759065;
    let even3 = shared + in2 * FIX_0_765366865;
    let even0 = (in0 + in4) << CONSTANT_BITS;
    let even1 = (in0 - in4) << CONSTANT_BITS;
    let sums = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];

    let (z1, z2, z3, z4) = (in7 + in1, in5 + in3, in7 + in3, in5 + in1);
    let z5 = (z3 + z4) * FIX_1_175875602;
    let z1 = -(z1 * FIX_0_899976223);
    let z2 = -(z2 * FIX_2_562915447);
    let z3 = z5 - z3 * FIX_1_961570560;
    let z4 = z5 - z4 * FIX_0_390180644;
    let odd0 = in7 * FIX_0_298631336 + z1 + z3;
    let odd1 = in5 * FIX_2_053119869 + z2 + z4;
    let odd2 = in3 * FIX_3_072711026 + z2 + z3;
    let odd3 = in1 * FIX_1_501321110 + z1 + z4;
    [
        sums[0] + odd3,
        sums[1] + odd2,
        sums[2] + odd1,
        sums[3] + odd0,
        sums[3] - odd0,
        sums[2] - odd1,
        sums[1] - odd2,
        sums[0] - odd3,
    ]
}

fn rounded(value: Wrapping<i32>, bits: usize) -> Wrapping<i32> {
    (value + Wrapping(1 << (bits - 1))) >> bits
}

/// Turns the coefficients of a block into its 8 × 8 samples, written to `plane` at `start` with the given row length.
pub(super) fn inverse(
    coefficients: &[i16],
    quantiser: &[u16; 64],
    plane: &mut [u8],
    start: usize,
    stride: usize,
) {
    let mut middle = [Wrapping(0_i32); 64];
    for column in 0..8 {
        let value = |row: usize| {
            let at = row * 8 + column;
            Wrapping(i32::from(coefficients[at])) * Wrapping(i32::from(quantiser[at]))
        };
        if (1..8).all(|row| coefficients[row * 8 + column] == 0) {
            let only = value(0) << FIRST_PASS_BITS;
            (0..8).for_each(|row| middle[row * 8 + column] = only);
            continue;
        }
        let output = pass(std::array::from_fn(value));
        for (row, value) in output.into_iter().enumerate() {
            middle[row * 8 + column] = rounded(value, CONSTANT_BITS - FIRST_PASS_BITS);
        }
    }
    for row in 0..8 {
        let output = pass(std::array::from_fn(|column| middle[row * 8 + column]));
        let samples = &mut plane[start + row * stride..start + row * stride + 8];
        for (sample, value) in samples.iter_mut().zip(output) {
            let level = rounded(value, CONSTANT_BITS + FIRST_PASS_BITS + 3) + Wrapping(128);
            *sample = level.0.clamp(0, 255) as u8;
        }
    }
}
