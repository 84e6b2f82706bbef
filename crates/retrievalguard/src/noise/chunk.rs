//! Sixty-four pixels at a time: from counters to standard normals.
//!
//! Lane `j` of the sixteen blocks of a chunk makes its pixels `j`, `16 + j`, `32 + j` and `48 + j`, so that vector
//! registers of any width up to sixteen lanes are stored as they are, with no transposition.

use super::gaussian;
use super::philox::{self, LANES};

/// Pixels in a chunk: four from each block.
pub(super) const PIXELS: usize = 4 * LANES;

/// Set in counter word 2 of the blocks whose words extend radius words in the tail.
pub(super) const EXTENSION: u32 = 1 << 8;

/// Everything about the blocks of one sample but their index.
#[derive(Clone, Copy)]
pub(super) struct Counter {
    pub(super) key: [u32; 2],
    /// Counter words 1, 2 and 3.
    pub(super) others: [u32; 3],
}

/// Writes the pixels from `first_pixel` on; the caller keeps their end within the counter.
#[inline(always)]
pub(super) fn fill(counter: Counter, first_pixel: u64, out: &mut [f32]) {
    let mut partial = [0.0; PIXELS];
    // Pixels end at 2³⁴, so the block index wraps only at that end, where nothing is left to write.
    let mut first_block = ((first_pixel / PIXELS as u64) as u32).wrapping_mul(LANES as u32);
    let mut skipped = (first_pixel % PIXELS as u64) as usize;
    let mut rest = out;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut(rest.len().min(PIXELS - skipped));
        chunk(counter, first_block, now.first_chunk_mut().unwrap_or(&mut partial));
        if now.len() < PIXELS {
            now.copy_from_slice(&partial[skipped..skipped + now.len()]);
        }
        first_block = first_block.wrapping_add(LANES as u32);
        skipped = 0;
        rest = later;
    }
}

#[inline(always)]
fn chunk(counter: Counter, first_block: u32, out: &mut [f32; PIXELS]) {
    let words = philox::blocks(first_block, counter.others, counter.key);
    let pairs = [transform(&words[0], &words[1]), transform(&words[2], &words[3])];
    for (out, values) in out.as_chunks_mut().0.iter_mut().zip(pairs.as_flattened()) {
        *out = *values;
    }
    let smallest = words[0].iter().chain(&words[2]).fold(u32::MAX, |smallest, &word| smallest.min(word));
    if smallest < gaussian::TAIL {
        extend_tails(counter, first_block, &words, out);
    }
}

/// The first and the second normals of sixteen pairs.
#[inline(always)]
fn transform(radius_words: &[u32; LANES], angle_words: &[u32; LANES]) -> [[f32; LANES]; 2] {
    let mut normals = [[0.0; LANES]; 2];
    for lane in 0..LANES {
        (normals[0][lane], normals[1][lane]) = gaussian::pair(radius_words[lane], angle_words[lane]);
    }
    normals
}

/// Writes the pairs with a radius word in the tail again; one chunk in 128 has one.
#[cold]
#[inline(never)]
fn extend_tails(counter: Counter, first_block: u32, words: &[[u32; LANES]; 4], out: &mut [f32; PIXELS]) {
    let [sample, stage, stream] = counter.others;
    for lane in 0..LANES {
        for word in [0, 2] {
            let radius_word = words[word][lane];
            if radius_word < gaussian::TAIL {
                let place = [first_block + lane as u32, sample, stage | EXTENSION, stream];
                let extension = philox::block(place, counter.key)[word];
                let pair = gaussian::extended_pair(radius_word, extension, words[word + 1][lane]);
                (out[word * LANES + lane], out[(word + 1) * LANES + lane]) = pair;
            }
        }
    }
}
