//! Damages good files in every way that is cheap to think of and hands them to their readers.
//!
//! Tests of several crates share this file by its path. A reader may accept or refuse; it may not panic, take longer than
//! [`LONGEST`], or take more memory than a [`Kind`] allows. Everything is a function of one seed, so a fault is found again
//! by running the test again; the input is left in the temporary folder.
//!
//! `RETRIEVALGUARD_MUTATIONS` is the number of inputs of each kind and `RETRIEVALGUARD_MUTATION_SEED` another seed;
//! `scripts/mutate` sets both.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Inputs of each kind in an ordinary run of the tests.
const USUAL: u64 = 1_000;

/// Longest that a reader may take over one input, on a machine that is busy with other tests.
const LONGEST: Duration = Duration::from_secs(20);

/// Memory that any reader may take per byte of its input.
const PER_BYTE: usize = 64;

/// What a reader made of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Accepted,
    Refused,
}

impl<T, E> From<Result<T, E>> for Reading {
    fn from(result: Result<T, E>) -> Self {
        if result.is_ok() { Self::Accepted } else { Self::Refused }
    }
}

/// A kind of file, good examples of it, and its reader.
pub(crate) struct Kind<'a> {
    pub(crate) name: &'static str,
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Bytes of memory that the reader may take beside [`PER_BYTE`] for each of the input: what its limits allow.
    pub(crate) allowance: usize,
    /// Makes checksums right again, so that damage gets past them; half of the inputs pass through it.
    pub(crate) repair: Option<&'a dyn Fn(Vec<u8>) -> Vec<u8>>,
    pub(crate) read: &'a dyn Fn(&[u8]) -> Reading,
}

/// Counts what the calling thread has allocated.
pub(crate) struct CountingAllocator;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends has no counters any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().wrapping_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

#[expect(unsafe_code, reason = "memory is handed through to the system's allocator as it is")]
// SAFETY: every call is passed on unchanged; counting touches nothing but two numbers of the thread.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What became of all inputs of a kind.
struct Tally {
    tried: u64,
    accepted: u64,
    slowest: Duration,
    largest: usize,
    faults: Vec<String>,
}

/// Runs every kind, prints a table and fails if a reader panicked, was too slow or took too much memory.
pub(crate) fn run(kinds: &[Kind<'_>]) {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let inputs = setting("RETRIEVALGUARD_MUTATIONS").unwrap_or(USUAL);
    let seed = setting("RETRIEVALGUARD_MUTATION_SEED").unwrap_or(1);
    eprintln!("mutations of                  tried  accepted   refused  slowest ms  peak KiB");
    let mut faults = Vec::new();
    for kind in kinds {
        for (place, bytes) in kind.seeds.iter().enumerate() {
            let good = (kind.read)(bytes);
            assert_eq!(
                good,
                Reading::Accepted,
                "{}: example {place} is not read before it is damaged",
                kind.name
            );
        }
        let tally = run_kind(kind, inputs, seed);
        let Tally { tried, accepted, slowest, largest, .. } = tally;
        eprintln!(
            "{:<28} {tried:>6} {accepted:>9} {:>9} {:>11.1} {:>9}",
            kind.name,
            tried - accepted,
            slowest.as_secs_f64() * 1e3,
            largest >> 10
        );
        faults.extend(tally.faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn run_kind(kind: &Kind<'_>, inputs: u64, seed: u64) -> Tally {
    let mut tally = Tally { tried: 0, accepted: 0, slowest: Duration::ZERO, largest: 0, faults: Vec::new() };
    let watch = Watch::new(kind.name);
    for number in 0..inputs {
        let mut dice = Dice::new(seed, kind.name, number);
        let mut input = mutate(&kind.seeds, &mut dice);
        if let Some(repair) = kind.repair.filter(|_| dice.below(2) == 0) {
            input = repair(input);
        }
        watch.begin(number, &input);
        let (live, started) = (LIVE.get(), Instant::now());
        PEAK.set(live);
        let outcome = catch_unwind(AssertUnwindSafe(|| (kind.read)(&input)));
        let taken = usize::try_from(PEAK.get() - live).unwrap_or(0);
        let time = started.elapsed();
        watch.end();
        tally.tried += 1;
        tally.slowest = tally.slowest.max(time);
        tally.largest = tally.largest.max(taken);
        let mut fault = |what: String| {
            let file = keep(kind.name, number, &input);
            tally.faults.push(format!(
                "{} {number} of seed {seed}: {what} (`{}`)",
                kind.name,
                file.display()
            ));
        };
        let allowed = kind.allowance + PER_BYTE * input.len();
        if taken > allowed {
            fault(format!("it took {taken} bytes for an input of {}, wanted at most {allowed}", input.len()));
        }
        match outcome {
            Ok(Reading::Accepted) => tally.accepted += 1,
            Ok(Reading::Refused) => {}
            Err(_) => fault("the reader panicked".to_owned()),
        }
    }
    tally
}

/// Leaves an input where a person can look at it.
fn keep(kind: &str, number: u64, input: &[u8]) -> PathBuf {
    let name: String =
        kind.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
    let file = std::env::temp_dir().join(format!("retrievalguard-mutation-{name}-{number}"));
    let _ = std::fs::write(&file, input);
    file
}

/// When an input was begun, its number, and the input.
type InHand = (Instant, u64, Vec<u8>);

/// Ends the process if an input takes too long: a reader that hangs cannot be told to stop.
struct Watch {
    current: Arc<Mutex<Option<InHand>>>,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn new(kind: &'static str) -> Self {
        let watch = Self { current: Arc::default(), over: Arc::default() };
        let (current, over) = (Arc::clone(&watch.current), Arc::clone(&watch.over));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                let current = current.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((started, number, input)) = &*current
                    && started.elapsed() > LONGEST
                {
                    let file = keep(kind, *number, input);
                    eprintln!("{kind} {number}: no answer after {LONGEST:?} (`{}`)", file.display());
                    std::process::exit(1);
                }
            }
        });
        watch
    }

    fn begin(&self, number: u64, input: &[u8]) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), number, input.to_vec()));
    }

    fn end(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Numbers that follow from a seed, a kind and the number of an input.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, kind: &str, number: u64) -> Self {
        let mut dice = Self(seed);
        for byte in kind.bytes() {
            dice.0 = dice.next() ^ u64::from(byte);
        }
        dice.0 = dice.next() ^ number;
        dice
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ value >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Most often small.
    fn length(&mut self, most: usize) -> usize {
        let bits = self.below(16);
        self.below(1 << bits).min(most)
    }
}

/// A good example with one to four faults.
fn mutate(seeds: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(4) {
        damage(&mut bytes, seeds, dice);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(bytes.len());
    let upto = (at + dice.length(bytes.len() - at.min(bytes.len()))).min(bytes.len());
    match dice.below(11) {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
        2 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF][dice.below(6)],
        3 if !bytes.is_empty() => bytes[at] = dice.next() as u8,
        // Lengths, counts and offsets, in both byte orders and four widths.
        4 | 5 => {
            let number = match dice.below(4) {
                0 => u64::MAX >> dice.below(64),
                1 => 1 << dice.below(64),
                2 => (bytes.len() as u64).wrapping_add_signed(dice.below(5) as i64 - 2),
                _ => dice.next(),
            };
            let width = 1 << dice.below(4);
            let number = if dice.below(2) == 0 {
                number.to_le_bytes()[..width].to_vec()
            } else {
                number.to_be_bytes()[8 - width..].to_vec()
            };
            for (byte, new) in bytes.iter_mut().skip(at).zip(number) {
                *byte = new;
            }
        }
        6 => bytes.truncate(at),
        7 => {
            bytes.drain(at..upto);
        }
        8 => {
            let copy = bytes[at..upto].to_vec();
            let times = if dice.below(8) == 0 { 20 } else { 1 };
            bytes.splice(at..at, copy.repeat(times));
        }
        // A piece of another example.
        9 => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.below(other.len());
            let end = (from + dice.length(other.len() - from.min(other.len()))).min(other.len());
            bytes.splice(at..upto, other[from..end].iter().copied());
        }
        // In texts, a number becomes one that nobody counts to.
        _ => {
            let digits =
                |bytes: &[u8], at: usize| bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let start = (at..bytes.len()).find(|&place| bytes[place].is_ascii_digit());
            if let Some(start) = start {
                let end = start + digits(bytes, start);
                let numbers: [&[u8]; 9] = [
                    b"-1",
                    b"0",
                    b"4294967296",
                    b"9223372036854775807",
                    b"18446744073709551615",
                    b"99999999999999999999999",
                    b"1e308",
                    b"0.5",
                    b"nan",
                ];
                bytes.splice(start..end, numbers[dice.below(9)].iter().copied());
            }
        }
    }
}
