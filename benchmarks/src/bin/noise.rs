//! Gaussian noise for one picture: ours, with every instruction set of this CPU, beside the usual ziggurat.
//!
//! Rounds are interleaved, so that whatever else the machine does falls on all contestants alike.
//!
//! ```text
//! cargo run --release -p retrievalguard-benchmarks --bin noise
//! ```

#![expect(clippy::print_stdout, reason = "the table is what the program is for")]

use std::hint::black_box;
use std::time::Instant;

use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use retrievalguard::noise::{ImageIdentity, InstructionSet, NoiseStream, Stage};
use retrievalguard::{Seed, Sigma};

/// A colour picture of 224 × 224.
const PIXELS: usize = 3 * 224 * 224;
const ROUNDS: u32 = 400;

/// What a contestant does to the buffer in the given round.
type Fill = Box<dyn FnMut(u32, &mut [f32])>;

struct Contestant {
    name: String,
    fill: Fill,
    nanoseconds: Vec<f64>,
}

impl Contestant {
    fn new(name: impl Into<String>, fill: impl FnMut(u32, &mut [f32]) + 'static) -> Self {
        Self { name: name.into(), fill: Box::new(fill), nanoseconds: Vec::new() }
    }

    fn run(&mut self, round: u32, buffer: &mut [f32]) {
        let start = Instant::now();
        (self.fill)(round, buffer);
        self.nanoseconds.push(start.elapsed().as_secs_f64() * 1e9 / buffer.len() as f64);
        black_box(buffer);
    }
}

/// Owns the generator while it fills: its state can then live in registers, which is its best case.
fn ziggurat(mut generator: Xoshiro256PlusPlus, buffer: &mut [f32]) -> Xoshiro256PlusPlus {
    for value in buffer {
        *value = StandardNormal.sample(&mut generator);
    }
    generator
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stream = NoiseStream::new(Seed::new(1), &ImageIdentity::new("benchmark"), Stage::Certify);
    let sigma = Sigma::new(0.25)?;
    let image = vec![0.5_f32; PIXELS];
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(1);

    let mut contestants = vec![Contestant::new("ziggurat, xoshiro256++", move |_, buffer| {
        generator = ziggurat(generator.clone(), buffer);
    })];
    for instructions in InstructionSet::available() {
        let name = format!("fill, {}", instructions.name());
        contestants.push(Contestant::new(name, move |round, buffer| {
            stream.fill_with(instructions, round, 0, buffer);
        }));
    }
    contestants.push(Contestant::new("fill", move |round, buffer| stream.fill(round, 0, buffer)));
    contestants.push(Contestant::new("add to an image", move |round, buffer| {
        stream.add(round, sigma, &image, buffer);
    }));

    let mut buffer = vec![0.0_f32; PIXELS];
    for round in 0..ROUNDS {
        for contestant in &mut contestants {
            contestant.run(round, &mut buffer);
        }
    }

    println!("{PIXELS} values, {ROUNDS} interleaved rounds, nanoseconds per value");
    println!("{:<24} {:>8} {:>8} {:>16}", "", "median", "best", "median/ziggurat");
    let mut reference = None;
    for contestant in &mut contestants {
        contestant.nanoseconds.sort_by(f64::total_cmp);
        let median = contestant.nanoseconds[contestant.nanoseconds.len() / 2];
        let best = contestant.nanoseconds[0];
        let ratio = median / *reference.get_or_insert(median);
        println!("{:<24} {median:>8.3} {best:>8.3} {ratio:>16.3}", contestant.name);
    }
    Ok(())
}
