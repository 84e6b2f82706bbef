//! Philox4x32-10, the counter-based generator all noise is made from.
//!
//! J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011,
//! doi:10.1145/2063384.2063405. Constants and known answers are those of the authors' library Random123.

use std::array;

/// Blocks that [`blocks`] makes at once.
pub(super) const LANES: usize = 16;

/// Blocks whose rounds are interleaved: two vectors of 256 bits hide the latency of the products.
const WIDTH: usize = LANES / 2;

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Steps of the key schedule: the golden ratio and `√3 − 1`, as fractions of 2³².
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Each word in the low half of 64 bits, whose high half is whatever the last product left there.
///
/// Vector units multiply the low halves, so neither masks nor shuffles are needed between rounds.
type Lanes = [u64; WIDTH];

/// One block: 128 bits of counter and 64 bits of key in, 128 bits out.
pub(super) fn block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    for [left, right] in round_keys(key) {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(a);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(c);
        a = (second >> 32) as u32 ^ b ^ left;
        b = second as u32;
        c = (first >> 32) as u32 ^ d ^ right;
        d = first as u32;
    }
    [a, b, c, d]
}

/// Sixteen blocks whose first counter words are `first, first + 1, … first + 15`, word by word.
///
/// Entry `[word][lane]` equals `block([first + lane, others…], key)[word]`. The caller keeps `first ≤ 2³² − 16`.
#[inline(always)]
pub(super) fn blocks(first: u32, others: [u32; 3], key: [u32; 2]) -> [[u32; LANES]; 4] {
    let keys = round_keys(key);
    let mut words = [[0; LANES]; 4];
    write_half(0, first, others, &keys, &mut words);
    write_half(WIDTH, first, others, &keys, &mut words);
    words
}

#[inline(always)]
fn write_half(
    start: usize,
    first: u32,
    others: [u32; 3],
    keys: &[[u32; 2]; ROUNDS],
    words: &mut [[u32; LANES]; 4],
) {
    let indices = array::from_fn(|lane| u64::from(first.wrapping_add((start + lane) as u32)));
    let [second, third, fourth] = others.map(|word| [u64::from(word); WIDTH]);
    // Written out, because a loop over the rounds would not be turned into vector instructions.
    let state = round([indices, second, third, fourth], keys[0]);
    let state = round(state, keys[1]);
    let state = round(state, keys[2]);
    let state = round(state, keys[3]);
    let state = round(state, keys[4]);
    let state = round(state, keys[5]);
    let state = round(state, keys[6]);
    let state = round(state, keys[7]);
    let state = round(state, keys[8]);
    let state = round(state, keys[9]);
    for (words, lanes) in words.iter_mut().zip(state) {
        for (word, lane) in words[start..start + WIDTH].iter_mut().zip(lanes) {
            *word = lane as u32;
        }
    }
}

#[inline(always)]
fn round([a, b, c, d]: [Lanes; 4], [left, right]: [u32; 2]) -> [Lanes; 4] {
    let first = multiply(a, MULTIPLIERS[0]);
    let second = multiply(c, MULTIPLIERS[1]);
    [mix(second, b, left), second, mix(first, d, right), first]
}

#[inline(always)]
fn multiply(words: Lanes, multiplier: u32) -> Lanes {
    words.map(|word| (word & 0xffff_ffff).wrapping_mul(u64::from(multiplier)))
}

#[inline(always)]
fn mix(product: Lanes, word: Lanes, key: u32) -> Lanes {
    array::from_fn(|lane| (product[lane] >> 32) ^ word[lane] ^ u64::from(key))
}

#[inline(always)]
fn round_keys(key: [u32; 2]) -> [[u32; 2]; ROUNDS] {
    let mut keys = [key; ROUNDS];
    for round in 1..ROUNDS {
        let [left, right] = keys[round - 1];
        keys[round] = [left.wrapping_add(KEY_STEPS[0]), right.wrapping_add(KEY_STEPS[1])];
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_known_answers_come_out() {
        // Random123, tests/kat_vectors, `philox4x32 10`.
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(block(counter, key), expected, "counter {counter:x?}, key {key:x?}");
        }
    }

    #[test]
    fn sixteen_blocks_at_once_equal_sixteen_single_ones() {
        let key = [0xa409_3822, 0x299f_31d0];
        for first in [0, 16, 0x7fff_fff0, u32::MAX - 15] {
            let others = [first ^ 0x85a3_08d3, 0x1319_8a2e, u32::MAX];
            let words = blocks(first, others, key);
            for lane in 0..LANES {
                let single = block([first + lane as u32, others[0], others[1], others[2]], key);
                assert_eq!(words.map(|word| word[lane]), single, "first {first}, lane {lane}");
            }
        }
    }
}
